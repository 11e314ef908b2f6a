// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// TestReplaceEntries deletes, moves and adds at once; where something is refused
// nothing is done.
func TestReplaceEntries(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("10", "101up")) },
		func(e *Edit) error { return e.SetVLANs("p2", vids("10up", "100")) },
		func(e *Edit) error { return e.SetPrivateVLANs(100, PrivateVLANs{Community: []uint16{101}}) },
	)
	// "5 10 p1" is the static address 02:00:00:00:00:05 of VLAN 10, "5 10 p1 sticky" a sticky one
	entries := func(words ...string) (list []Entry) {
		for _, w := range words {
			e := Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0}}
			_, err := fmt.Sscan(w, &e.MAC[5], &e.VLAN, &e.Port)
			b.must(err)
			e.Sticky = strings.HasSuffix(w, "sticky")
			e.Static = !e.Sticky
			list = append(list, e)
		}
		return list
	}
	want := func(words ...string) {
		t.Helper()
		list, err := b.FDB("br0", Match{Static: true})
		b.must(err)
		var got []string
		for _, e := range list {
			w := fmt.Sprint(e.MAC[5], " ", e.VLAN, " ", e.Port)
			if e.Sticky {
				w += " sticky"
			}
			got = append(got, w)
		}
		if !slices.Equal(got, words) {
			t.Errorf("the FDB has %q, should have %q", got, words)
		}
	}
	// VLAN 0 is the PVID of each port, and a private VLAN is in its primary one
	b.must(b.ReplaceEntries("br0", nil, entries("1 0 p1", "2 0 p2", "3 10 p1", "4 101 p1 sticky", "5 10 p1")))
	before := []string{"2 10 p2", "3 10 p1", "5 10 p1", "1 100 p1", "4 100 p1 sticky"}
	want(before...)
	for _, c := range []struct {
		del, add []Entry
		words    string
	}{
		{entries("1 100 p1"), entries("6 10 p1", "3 10 p2"), "cannot add address 02:00:00:00:00:03 to br0: it is static on another port; delete that entry first with 'bascule fdb del br0 02:00:00:00:00:03 --vlan 10'"},
		{entries("1 100 p1"), entries("6 10 p1", "6 10 p2"), "it is static on another port"},
		{entries("1 100 p1"), entries("6 10 p1", "7 11 p1"), "unknown VLAN 11: port p1 is not in it"},
		{entries("1 100 p1"), entries("6 10 p1", "7 10 p3"), "p3"},
		{nil, entries("6 10 p1", "7 4095 p1"), "VLAN 4095"},
	} {
		if err := b.ReplaceEntries("br0", c.del, c.add); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: the error is %v, should be of %s", c.add, err, c.words)
		}
		want(before...)
	}
	b.must(b.ReplaceEntries("br0", entries("1 100 p1", "3 10 p1", "4 100 p1", "9 10 p1"), entries("3 10 p2", "4 101 p1", "5 10 p1 sticky", "6 0 p1")))
	want("2 10 p2", "3 10 p2", "5 10 p1 sticky", "4 100 p1", "6 100 p1")
	if err := b.ReplaceEntries("br9", nil, nil); err == nil {
		t.Error("a bridge that is not there is changed")
	}
}
