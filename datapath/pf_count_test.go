// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"

	"golang.org/x/sys/unix"
)

// ruleCounts are a rule's Packets and Bytes.
type ruleCounts struct{ Packets, Bytes [2]uint64 }

func countsOf(t testing.TB, b *Bridge) (list []ruleCounts) {
	t.Helper()
	stats, err := b.PFTraffic()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats.Rules {
		list = append(list, ruleCounts{s.Packets, s.Bytes})
	}
	return list
}

// Each packet counts once for a rule that decides on it, or that matches it, whether a
// state counts it or not.
func TestPFRuleCounts(t *testing.T) {
	const size = 58 // bytes of udpFrame's packets
	n := func(in, out uint64) ruleCounts {
		return ruleCounts{[2]uint64{in, out}, [2]uint64{in * size, out * size}}
	}
	for _, tt := range []struct {
		name, conf string
		want       []ruleCounts // after a packet from near0 to near1, twice, and its answer
	}{
		{"blocked", "block in on near0\n", []ruleCounts{n(2, 0)}},
		{"blocked going out", "pass in on near0 no state\nblock out on near1\n", []ruleCounts{n(2, 0), n(0, 2)}},
		{"blocked, with a state in mind", "pass in on near0\nblock out on near1\n", []ruleCounts{n(2, 0), n(0, 2)}},
		{"no state", "pass in on near0 no state\npass out on near1 no state\n", []ruleCounts{n(2, 0), n(0, 2)}},
		{"state", "pass in on near0\npass out on near1 no state\n", []ruleCounts{n(2, 1), n(1, 2)}},
		{"match", "match in on near0\npass in on near0\n", []ruleCounts{n(1, 0), n(2, 1)}},
		{"one rule for both", "pass\n", []ruleCounts{n(3, 3)}},
		{"a limit", "pass in on near0 keep state (max 1)\npass in on near1 no state\n", []ruleCounts{n(2, 1), n(0, 0)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newShelf(t, 2)
			b := s.create("br0", 2)
			s.loadPF(b, tt.conf)
			there := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000)
			for range 2 {
				s.run(b, 0, there)
			}
			blocked := false
			if list := statesOf(t, b); len(list) > 0 {
				s.run(b, 1, udpFrame(1, 2, "192.0.2.1", "192.0.2.2", 1000, 53))
			} else {
				blocked = true
			}
			check := func(when string) {
				t.Helper()
				for i, got := range countsOf(t, b) {
					if got != tt.want[i] {
						t.Errorf("%s (without states: %v), rule %d has counted %+v, want %+v", when, blocked, i, got, tt.want[i])
					}
				}
			}
			check("at last")
			if _, err := b.FlushStates(); err != nil {
				t.Fatal(err)
			}
			check("when the states are gone")
		})
	}
}

// Every packet whose state is looked up counts once, whatever the decision.
func TestPFSearches(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	s.loadPF(b, "pass\nblock in on near2\n")
	ask, answer := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000), udpFrame(1, 2, "192.0.2.1", "192.0.2.2", 1000, 53)
	other := udpFrame(1, 3, "192.0.2.1", "192.0.2.3", 1000, 53)
	short := udpFrame(1, 2, "192.0.2.1", "192.0.2.2", 1000, 53)
	short[17] = 10 // the IP header's length is 20
	check := func(when string, want map[PFCounter]uint64) {
		t.Helper()
		got, err := b.PFTraffic()
		if err != nil {
			t.Fatal(err)
		}
		for c, n := range want {
			if got.Counters[c] != n {
				t.Errorf("%s: counter %d is %d, want %d", when, c, got.Counters[c], n)
			}
		}
	}
	for _, p := range []struct {
		port  int
		frame []byte
	}{{0, ask}, {0, ask}, {1, answer}, {2, other}, {1, short}} {
		s.run(b, p.port, p.frame)
	}
	check("at last", map[PFCounter]uint64{PFSearches: 4, PFInserts: 1, PFShort: 1})
	if err := b.ZeroPFCounters(); err != nil {
		t.Fatal(err)
	}
	check("zero", map[PFCounter]uint64{PFSearches: 0, PFMatched: 0})
	s.run(b, 0, ask)
	s.run(b, 2, other)
	// the first packet was flooded: the rules for the way out have not been evaluated
	// yet
	check("again", map[PFCounter]uint64{PFSearches: 2, PFMatched: 2})
	if _, err := b.FlushStates(); err != nil {
		t.Fatal(err)
	}
	check("without states", map[PFCounter]uint64{PFSearches: 2, PFRemovals: 1})
}

func TestPFLogInterface(t *testing.T) {
	const size = 58
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	load := func(port int) {
		s.loadPF(b, "pass\nblock in on near2\nblock in on near0 proto udp to port 54\n", func(c *Config, p *PF) { p.LogInterface = Ports(c)[port].Id })
	}
	check := func(want [2][2]uint64) {
		t.Helper()
		got, err := b.PFPortStats()
		if err != nil {
			t.Fatal(err)
		}
		if got.Packets != [2][2][2]uint64{want} {
			t.Errorf("packets %d, want %d", got.Packets, want)
		}
		for dir := range want {
			for what, n := range want[dir] {
				if got.Bytes[0][dir][what] != n*size {
					t.Errorf("bytes %d of packets %d", got.Bytes, got.Packets)
				}
			}
		}
	}
	ask, answer := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000), udpFrame(1, 2, "192.0.2.1", "192.0.2.2", 1000, 53)
	load(0)
	check([2][2]uint64{})
	for range 3 {
		s.run(b, 0, ask)
		s.run(b, 1, answer)
	}
	s.run(b, 0, udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 54, 1000))
	s.run(b, 2, udpFrame(1, 3, "192.0.2.1", "192.0.2.3", 1000, 53))
	check([2][2]uint64{{3, 1}, {3, 0}})
	load(2)
	check([2][2]uint64{})
	s.run(b, 2, udpFrame(1, 3, "192.0.2.1", "192.0.2.3", 1000, 53))
	check([2][2]uint64{{0, 1}, {0, 0}})
}

// Packets that XDP passes are counted as by tcx.
func TestPFCountsXDP(t *testing.T) {
	for _, viaXDP := range []bool{false, true} {
		s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) { c.Pf.LogInterface = Ports(c)[0].Id })
		s.viaXDP = viaXDP
		p := datagram(unix.IPPROTO_UDP)
		for _, p := range []segment{p, p.reply(), p, p} {
			expect(t, "datagram", s.send(p), p.sent())
		}
		packets := s.only().Packets
		if n := s.count(kernelPfCounterPF_COUNT_SEARCHES) + packets[0] + packets[1]; n != 4 {
			t.Errorf("XDP %v: %d searches", viaXDP, n)
		}
		in, err := counterOf(s.gen.coll.Maps[kernelMapCounters], kernelCounterCOUNTER_PF_PORT)
		if err != nil {
			t.Fatal(err)
		}
		out, err := counterOf(s.gen.coll.Maps[kernelMapCounters], kernelCounterCOUNTER_PF_PORT+2)
		if err != nil {
			t.Fatal(err)
		}
		if in != 3 || out != 1 {
			t.Errorf("XDP %v: %d packets came in and %d went out, want 3 and 1", viaXDP, in, out)
		}
	}
}
