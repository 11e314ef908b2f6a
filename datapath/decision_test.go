// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"
)

// A decision is remembered; each change that could affect it ends it.
func TestDecisionEnds(t *testing.T) {
	flush := func(r kernelControl) func(*bench) {
		return func(s *bench) {
			r.Op = kernelControlOpCONTROL_FLUSH
			if _, err := s.request(r); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	remove := func(n int) func(*bench) {
		return func(s *bench) {
			if err := s.remove(address{station(n), 0}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name     string
		change   func(*bench)
		tcx, xdp outcome // of the next frame from station 0 to 1
		learned  bool    // station 0's entry is written again
	}{
		{"destination moves", func(s *bench) { s.learn(2, 1) }, sent(2), sent(2), false},
		{"source moves", func(s *bench) { s.learn(2, 0) }, sent(1), passed, true},
		{"destination moves to the source's port", func(s *bench) { s.learn(0, 1) }, dropped("same-port"), passed, false},
		{"destination is deleted", remove(1), sent(1, 2), sent(1, 2), false},
		{"source is deleted", remove(0), sent(1), passed, true},
		{"all is flushed", flush(kernelControl{Vlan: -1, Dynamic: 1}), sent(1, 2), passed, true},
		{"the VLAN is flushed", flush(kernelControl{Vlan: 0, Dynamic: 1}), sent(1, 2), passed, true},
		{"destination becomes static elsewhere", func(s *bench) { s.store(address{station(1), 0}, spot{port: 2, pin: fdbStatic}) }, sent(2), sent(2), false},
		{"destination becomes sticky elsewhere", func(s *bench) { s.store(address{station(1), 0}, spot{port: 2, pin: fdbSticky}) }, sent(2), sent(2), false},
		{"a second passes", func(s *bench) { s.at(benchNow + 1) }, sent(1), passed, true},
		{"the destination ages", func(s *bench) { s.at(benchNow + 300) }, sent(1, 2), passed, true},
		{"nothing", func(*bench) {}, sent(1), sent(1), false},
		{"another address moves", func(s *bench) { s.learn(0, 7); s.learn(2, 7) }, sent(1), sent(1), false},
		{"an address is learned", func(s *bench) { s.learn(2, 8) }, sent(1), sent(1), false},
	}
	for _, tt := range tests {
		for _, h := range []hook{hookTCX, hookXDP} {
			t.Run(tt.name+", "+h.String(), func(t *testing.T) {
				s := newBench(t, 3, allXDP)
				s.learn(0, 0)
				s.learn(1, 1)
				for range 3 {
					expect(t, "before", s.tcx(0, unicast(1, 0)), sent(1))
					expect(t, "before, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
				}
				tt.change(s)
				if h == hookXDP {
					expect(t, "after", s.xdp(0, unicast(1, 0)), tt.xdp)
					return
				}
				learned, moves := s.stats(0).Learned, s.stats(0).Moves
				now := s.clock().Now
				used := s.fdb()[address{station(0), 0}].used
				expect(t, "after", s.tcx(0, unicast(1, 0)), tt.tcx)
				written := s.stats(0).Learned != learned || s.stats(0).Moves != moves ||
					used != now && s.fdb()[address{station(0), 0}].used == now
				if written != tt.learned {
					t.Errorf("the source's entry was written: %v, want %v", written, tt.learned)
				}
			})
		}
	}
}

// A decision is about one destination, source, VLAN and port.
func TestDecisionIsOfOneConversation(t *testing.T) {
	s := newBench(t, 4, allXDP, func(_ *Config, p []*Port) { p[3].Flags &^= PortLearn })
	s.learn(0, 0)
	s.learn(1, 1)
	s.learn(2, 2)
	vlan := packet{dst: station(1), src: station(0)}.tagged(5)
	expect(t, "conversation", s.tcx(0, unicast(1, 0)), sent(1))
	expect(t, "in a VLAN", s.tcx(0, vlan.bytes()), sent(1, 2, 3))
	expect(t, "other destination", s.tcx(0, unicast(2, 0)), sent(2))
	expect(t, "other port", s.tcx(3, unicast(1, 0)), sent(1))
	expect(t, "the other way", s.tcx(1, unicast(0, 1)), sent(0))
	expect(t, "conversation, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
	expect(t, "in a VLAN, by XDP", s.xdp(0, vlan.bytes()), sent(1, 2, 3))
	// if the source is known at another port, the frame must be learned, and not be
	// decided from memory
	expect(t, "moved source, by XDP", s.xdp(2, unicast(1, 0)), passed)
	expect(t, "moved source", s.tcx(2, unicast(1, 0)), sent(1))
	if got := s.fdb()[address{station(0), 0}].port; got != 2 {
		t.Errorf("the source is on port %d, want 2", got)
	}
}

// Two ports look for the same conversation and share a cell: neither gets the other's
// decision.
func TestDecisionIsOfOnePort(t *testing.T) {
	cell := func(ifindex uint32) uint64 { // decision_cell()
		h := (key(station(1), 0)*3 + key(station(0), 0) + uint64(ifindex)) * 0x9e3779b97f4a7c15
		return h >> 55
	}
	r := ownRack(t, 2)
	index := r.near[0] + 100
	for cell(index) != cell(r.near[0]) {
		index++
	}
	near, far, err := r.cable(9, int(index))
	if err != nil {
		t.Fatal(err)
	}
	r.near, r.far = append(r.near, near), append(r.far, far)
	s := newBenchOn(t, r, 3, allXDP)
	s.learn(0, 0)
	s.learn(1, 1)
	expect(t, "one port", s.tcx(0, unicast(1, 0)), sent(1))
	expect(t, "the other, by XDP", s.xdp(2, unicast(1, 0)), passed)
	expect(t, "the other", s.tcx(2, unicast(1, 0)), sent(1))
	if n := s.stats(2).Moves; n != 1 {
		t.Errorf("the station moved %d times, want once", n)
	}
	expect(t, "the one again, by XDP", s.xdp(0, unicast(1, 0)), passed)
	expect(t, "the one again", s.tcx(0, unicast(1, 0)), sent(1))
}

// There are fewer cells than conversations: conversations evict each other, and the
// decisions are still right.
func TestDecisionsCollide(t *testing.T) {
	const stations = 60 // and so 3540 conversations
	s := newBench(t, 4, allXDP)
	for n := range stations {
		s.learn(n%4, n)
	}
	err := s.rack.do(func() error {
		for range 2 {
			for src := range stations {
				for dst := range stations {
					want := redirect
					if src%4 == dst%4 {
						want = drop
					}
					for _, h := range []hook{hookTCX, hookXDP} {
						if h == hookXDP && want == drop {
							want = pass
						}
						got, err := s.run(h, s.rack.near[src%4], unicast(dst, src))
						if err != nil {
							return err
						}
						if got != want {
							t.Errorf("%s from %d to %d: %s, want %s", h, src, dst, got, want)
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var received, sent uint64
	for port := range 4 {
		received += s.stats(port).RxFrames
		sent += s.stats(port).TxFrames
	}
	const unicasts, kept = stations * stations, stations * stations / 4
	if want := uint64(2*(2*unicasts-kept) + stations); received != want {
		t.Errorf("%d frames received, want %d", received, want)
	}
	if want := uint64(2*2*(unicasts-kept) + 3*stations); sent != want {
		t.Errorf("%d frames sent, want %d", sent, want)
	}
	// and each to the right port
	for port := range 4 {
		want := uint64(2*2*(unicasts-kept)/4) + 3*stations/4
		if got := s.stats(port).TxFrames; got != want {
			t.Errorf("%d frames sent to port %d, want %d", got, port, want)
		}
	}
}
