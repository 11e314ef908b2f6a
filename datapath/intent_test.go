// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// Ports give back settings that were taken for a configuration that does not become the
// bridge's. If it does, they keep them.
func TestIntend(t *testing.T) {
	const new, hook, same = "new", "hook", "same"
	type stage struct {
		s    *shelf
		b    *Bridge
		next Config
		ids  map[string]uint32
	}
	intend := func(t *testing.T) *stage {
		t.Helper()
		s := newShelf(t, 3)
		b := s.create("br0", 2)
		st := &stage{s: s, b: b, next: b.Config, ids: map[string]uint32{}}
		p := Ports(&st.next)
		onXDP(p[0])
		come := NewPort(&st.next, "near2")
		come.Ifindex, come.Flags = s.rack.near[2], PortLearn|floods
		st.ids[hook], st.ids[same], st.ids[new] = p[0].Id, p[1].Id, come.Id
		s.do(b.Begin)
		s.do(func() error { return b.Intend(&st.next) })
		return st
	}
	unplug := func(st *stage) error {
		return st.s.try(func() error {
			l, err := netlink.LinkByIndex(int(st.s.rack.near[2]))
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
	}
	for _, tt := range []struct {
		name string
		do   func(*stage) error // nil for a command that is killed
		want []string           // ports that give settings back
	}{
		{"killed", nil, []string{hook, new}},
		{"relents", func(st *stage) error { return st.s.try(func() error { return st.b.Relent(keepAll) }) }, nil},
		{"intends again", func(st *stage) error {
			return st.s.try(func() error {
				if err := st.b.Relent(keepAll); err != nil {
					return err
				}
				onXDP(Ports(&st.next)[1])
				*TenantAt(&st.next, st.ids[new]) = Port{}
				return st.b.Intend(&st.next)
			})
		}, []string{hook, same}},
		{"killed while it writes that", func(st *stage) error { return os.Remove(st.b.pin(intention, configPin)) }, nil},
		{"the device has gone", unplug, []string{hook}},
		{"another device has its index", func(st *stage) error {
			if err := unplug(st); err != nil {
				return err
			}
			index, _, err := st.s.rack.cable(9, int(st.s.rack.near[2]))
			if err == nil && index != st.s.rack.near[2] {
				t.Error("it has another")
			}
			return err
		}, []string{hook}},
		{"killed after it is made", func(st *stage) error {
			if err := st.s.try(func() error { return st.b.Commit(&st.next, Tables{}, keepAll) }); err != nil {
				return err
			}
			if _, err := os.Stat(st.b.pin(intention)); err == nil {
				t.Error("the intention is left")
			}
			return nil
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			st := intend(t)
			defer st.s.store.Hold()()
			if tt.do != nil {
				if err := tt.do(st); err != nil {
					t.Fatal(err)
				}
			}
			var left leavers
			b := st.s.open("br0")
			st.s.do(func() error { return b.Mend(&left) })
			st.s.do(b.Done)
			var want leavers
			for _, name := range tt.want {
				want = append(want, st.ids[name])
			}
			slices.Sort(left)
			slices.Sort(want)
			if !slices.Equal(left, want) {
				t.Errorf("ports %#x gave back what they took, want %#x of %#x", left, want, st.ids)
			}
			expectTree(t, b, linkNames(b)...)
		})
	}

	t.Run("the bridge is deleted", func(t *testing.T) {
		st := intend(t)
		var left leavers
		st.s.do(func() error { return st.b.Remove(&left) })
		if !slices.Contains(left, st.ids[new]) {
			t.Errorf("ports %#x gave back what they took; %#x has not", left, st.ids[new])
		}
	})
}
