// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"golang.org/x/sys/unix"
)

// putAll fills a table with values at the keys from 0 on.
func putAll[T any](s *bench, table string, values ...T) {
	s.t.Helper()
	for i, v := range values {
		if err := s.gen.coll.Maps[table].Put(uint32(i), v); err != nil {
			s.t.Fatal(err)
		}
	}
}

// logging is pf with the given number of rules.
func logging(rules uint32) func(c *Config, p []*Port) {
	return func(c *Config, p []*Port) {
		filtered(c, p)
		c.Pf.Rules, c.Pf.Ruleset = rules, 7
	}
}

// logged reads the log until there are no more records.
func logged(t *testing.T, s *bench, put func()) (list []PFLogged) {
	t.Helper()
	r, err := openPFLog(s.gen.coll.Maps[kernelMapPfLogRing], clockNow(t))
	if err != nil {
		t.Fatal(err)
	}
	put()
	// the last record is one that the test recognizes
	enough := errors.New("enough")
	err = r.read(t.Context(), func(l PFLogged) error {
		if l.Rule == 0xfff0 {
			return enough
		}
		l.Data = slices.Clone(l.Data)
		list = append(list, l)
		return nil
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
	return list
}

// The packets that rules log, and the form of the records: the packet without its
// link-layer header.
func TestPFLog(t *testing.T) {
	const (
		logs    = kernelPfRuleFlagPF_LOG
		matches = kernelPfRuleFlagPF_LOG_MATCHES
		walk    = -1
		known   = 1 << 1 // PF_KNOWN
	)
	s := newBenchRules(t, []kernelPfRule{
		0: {Action: PFMatch, Flags: logs, LogTo: 1},
		1: {Action: PFMatch, Flags: logs | matches},
		2: {Action: PFPass},
		3: {Action: PFPass, Flags: logs, LogTo: 3},
		4: {Action: PFBlock, Flags: logs},
		5: {Action: PFBlock},
	})
	drop, options := uint8(kernelDropReasonDROP_PF), uint8(kernelDropReasonDROP_PF_OPTIONS)
	type want struct {
		rule   int
		action PFAction
		reason uint8
		to     int
		set    uint16
	}
	tests := []struct {
		name    string
		rule    int
		what    uint8
		set     int32
		matched []uint32
		want    []want
	}{
		{"no rule", -1, 0, walk, nil, nil},
		{"pass", 2, 0, walk, nil, nil},
		{"pass log", 3, 0, walk, nil, []want{{3, PFPass, 0, 3, 7}}},
		{"block", 5, drop, walk, nil, nil},
		{"block log", 4, drop, walk, nil, []want{{4, PFBlock, 0, 0, 7}}},
		{"match log", 2, 0, walk, []uint32{1}, []want{{0, PFMatch, 0, 1, 7}}},
		{"match log, block log", 4, drop, walk, []uint32{1}, []want{{0, PFMatch, 0, 1, 7}, {4, PFBlock, 0, 0, 7}}},
		{"match log (matches)", 5, drop, walk, []uint32{2}, []want{{1, PFMatch, 0, 0, 7}, {5, PFBlock, 0, 0, 7}}},
		{"match log (matches), no rule", -1, 0, walk, []uint32{2}, []want{{1, PFMatch, 0, 0, 7}, {-1, PFPass, 0, 0, 7}}},
		{"four matches", 2, 0, walk, []uint32{1, 1, 2, 1}, []want{{0, PFMatch, 0, 1, 7}, {0, PFMatch, 0, 1, 7}, {1, PFMatch, 0, 0, 7}, {0, PFMatch, 0, 1, 7}, {2, PFPass, 0, 0, 7}}},
		{"options", 2, options, walk, nil, []want{{2, PFBlock, options, 0, 7}}},
		{"options, no rule", -1, options, walk, nil, []want{{-1, PFBlock, options, 0, 7}}},
		{"of a state", 3, 0, 7, []uint32{1}, []want{{3, PFPass, 0, 3, 7}}},
		{"of a state, of another ruleset", 3, 0, 6, nil, []want{{3, PFPass, 0, 0, 6}}},
	}
	cases := readCases(t)
	for _, tt := range tests {
		for _, out := range []uint8{0, 1} {
			for _, ip := range [][]byte{cases[0].ip, cases[1].ip, append(slices.Clone(cases[9].ip), make([]byte, 300)...)} {
				what := fmt.Sprintf("%s, out %d, IPv%d", tt.name, out, ip[0]>>4)
				frame := framed(ip, tag{typeVLAN, 10, 0})
				s.probe("pf_look_skb", tag{}, 0, 1, benchNow).call(frame)
				// if its state is known, no record is made later
				s.setPacket(func(p *kernelPfPacket) { p.Direction, p.How = out, known })
				s.setWalk(func(w *kernelPfWalk) { w.Matched = uint32(copy(w.Matches[:], tt.matched)) })
				length := int(s.packet().Length)
				list := logged(t, s, func() {
					s.probe("pf_log", tag{}, 2, int32(tt.rule+1), int32(tt.what), tt.set).call(frame)
					s.probe("pf_log", tag{}, 2, 0xfff1, 0, 1).call(frame)
				})
				var got []want
				for _, l := range list {
					got = append(got, want{l.Rule, l.Action, l.Reason, l.LogTo, l.Ruleset})
					if l.Port != s.ids[1] || l.Out != (out == 1) || l.Family != ip[0]>>4 || l.Length != length {
						t.Errorf("%s: port %#x, out %v, family %d, %d bytes", what, l.Port, l.Out, l.Family, l.Length)
					}
					if !bytes.Equal(l.Data, ip[:min(length, 160)]) {
						t.Errorf("%s: % x is logged, want % x", what, l.Data, ip)
					}
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("%s: logged %+v, want %+v", what, got, tt.want)
				}
			}
		}
	}
}

// newBenchRules is a bench with these rules, without the tables by which rules are
// found.
func newBenchRules(t *testing.T, rules []kernelPfRule) *bench {
	t.Helper()
	r := sharedRack(t)
	s := newBenchOn(t, r, 2, logging(uint32(len(rules))))
	m := s.gen.coll.Maps[kernelMapPfRules]
	if m.MaxEntries() < uint32(len(rules)) {
		spec := &ebpf.MapSpec{Name: kernelMapPfRules, Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: uint32(len(rules))}
		larger, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		s.gen.coll.Maps[kernelMapPfRules] = larger
	}
	putAll(s, kernelMapPfRules, rules...)
	return s
}

// setWalk changes the result of the walk over the rules.
func (s *bench) setWalk(change func(*kernelPfWalk)) {
	s.t.Helper()
	m, part := s.gen.coll.Maps[kernelMapMemory], uint32(1) // MEMORY_PF
	var all []kernelMemory
	if err := m.Lookup(part, &all); err != nil {
		s.t.Fatal(err)
	}
	change((*kernelPfWalk)(unsafe.Pointer(&all[s.cpu()])))
	if err := m.Put(part, all); err != nil {
		s.t.Fatal(err)
	}
}

// A reader omits packets that were logged before it was opened; packets that find no
// room are counted.
func TestPFLogReader(t *testing.T) {
	s := newBenchRules(t, []kernelPfRule{{Flags: kernelPfRuleFlagPF_LOG}})
	frame := framed(readCases(t)[0].ip)
	s.probe("pf_look_skb", tag{}, 0, 1, benchNow).call(frame)
	one := s.probe("pf_log", tag{}, 1, 1, 0, 7)
	room := pfLogRing / (int(unsafe.Sizeof(kernelPfLogged{})) + 8) // including the buffer's own header
	for range room + 10 {
		one.call(frame)
	}
	missed, err := counterOf(s.gen.coll.Maps[kernelMapCounters], kernelCounterCOUNTER_PF_LOG_MISSED)
	if err != nil {
		t.Fatal(err)
	}
	if missed != 10 {
		t.Errorf("%d packets missed, of %d more than there is room for", missed, 10)
	}
	r, err := openPFLog(s.gen.coll.Maps[kernelMapPfLogRing], clockNow(t))
	if err != nil {
		t.Fatal(err)
	}
	enough, done := errors.New("enough"), make(chan error)
	go func() {
		done <- r.read(t.Context(), func(l PFLogged) error {
			if l.Rule != 4 {
				t.Errorf("rule %d is from before", l.Rule)
			}
			return enough
		})
	}()
	for again := s.probe("pf_log", tag{}, 1, 5, 0, 1); err == nil; { // until there is room
		again.call(frame)
		select {
		case err = <-done:
		default:
		}
	}
	if !errors.Is(err, enough) {
		t.Errorf("%v, want what the function returned", err)
	}
	// the context ends the reading, without an error
	r, err = openPFLog(s.gen.coll.Maps[kernelMapPfLogRing], clockNow(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.read(ctx, func(PFLogged) error { return nil }); err != nil {
		t.Error(err)
	}
}

// clockNow is CLOCK_MONOTONIC.
func clockNow(t testing.TB) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}
