// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// expectFDB fails the test unless the FDB has exactly these entries.
func (s *bench) expectFDB(want map[address]spot) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.fdb(), cmp.AllowUnexported(address{}, spot{})); diff != "" {
		s.t.Errorf("FDB (-want +got):\n%s", diff)
	}
}

func TestLearn(t *testing.T) {
	s := newBench(t, 4)
	expect(t, "unknown", s.tcx(0, unicast(2, 1)), sent(1, 2, 3))
	expect(t, "answer", s.tcx(1, unicast(1, 2)), sent(0))
	expect(t, "known", s.tcx(0, unicast(2, 1)), sent(1))
	s.expectFDB(map[address]spot{
		{station(1), 0}: {port: 0, used: benchNow},
		{station(2), 0}: {port: 1, used: benchNow},
	})
	for port, want := range []uint64{1, 1, 0, 0} {
		if got := s.stats(port).Learned; got != want {
			t.Errorf("port %d learned %d addresses, want %d", port, got, want)
		}
	}
}

// The source of every frame is learned, whatever its destination, unless the frame is
// refused at its port.
func TestLearnOf(t *testing.T) {
	tests := []struct {
		name  string
		dst   mac
		learn bool
	}{
		{"broadcast", broadcast, true},
		{"multicast", group(1), true},
		{"unknown unicast", station(9), true},
		{"unicast to its own port", station(7), true},
		{"its own address", station(1), true},
		{"reserved", reserved(3), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, 2)
			s.learn(0, 7)
			s.tcx(0, packet{dst: tt.dst, src: station(1)}.bytes())
			if _, ok := s.fdb()[address{station(1), 0}]; ok != tt.learn {
				t.Errorf("learned: %v, want %v", ok, tt.learn)
			}
		})
	}
}

// The same address in several VLANs has several entries.
func TestLearnPerVLAN(t *testing.T) {
	s := newBench(t, 3)
	p := packet{dst: broadcast, src: station(1)}
	s.tcx(0, p.bytes())
	s.tcx(1, p.tagged(10).bytes())
	s.tcx(2, p.tagged(20).bytes())
	s.expectFDB(map[address]spot{
		{station(1), 0}:  {port: 0, used: benchNow},
		{station(1), 10}: {port: 1, used: benchNow},
		{station(1), 20}: {port: 2, used: benchNow},
	})
}

func TestLearnOff(t *testing.T) {
	s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { p[0].Flags &^= PortLearn })
	s.learn(0, 1)
	s.learn(1, 2)
	s.expectFDB(map[address]spot{{station(2), 0}: {port: 1, used: benchNow}})
	expect(t, "to the unlearned", s.tcx(1, unicast(1, 2)), sent(0, 2))
	// a known address does not move to a port that does not learn
	s.learn(0, 2)
	s.expectFDB(map[address]spot{{station(2), 0}: {port: 1, used: benchNow}})
	// XDP has nothing to learn there, and so forwards the frame itself
	expect(t, "from the unlearned, by XDP", s.xdp(0, unicast(2, 1)), sent(1))
	// and the frame does not refresh the address
	s.at(benchNow + 10)
	s.learn(0, 2)
	s.expectFDB(map[address]spot{{station(2), 0}: {port: 1, used: benchNow}})
}

func TestRefresh(t *testing.T) {
	s := newBench(t, 3)
	s.learn(0, 1)
	s.learn(1, 2)
	for _, step := range []uint32{1, 2, 299, 598} {
		s.at(benchNow + step)
		expect(t, "from the station", s.tcx(0, unicast(2, 1)), sent(1))
		s.tcx(1, from(2))
		s.expectFDB(map[address]spot{
			{station(1), 0}: {port: 0, used: benchNow + step},
			{station(2), 0}: {port: 1, used: benchNow + step},
		})
	}
	if n := s.stats(0).Learned; n != 1 {
		t.Errorf("learned %d times, want once", n)
	}
}

func TestMove(t *testing.T) {
	s := newBench(t, 4)
	s.learn(0, 1)
	s.learn(3, 9)
	expect(t, "before", s.tcx(3, unicast(1, 9)), sent(0))
	epoch := s.clock().Epoch
	s.learn(1, 1)
	if s.clock().Epoch == epoch {
		t.Error("decisions stay after a move")
	}
	// the very next frame goes to the new port
	expect(t, "after", s.tcx(3, unicast(1, 9)), sent(1))
	s.expectFDB(map[address]spot{
		{station(1), 0}: {port: 1, used: benchNow},
		{station(9), 0}: {port: 3, used: benchNow},
	})
	if got := [...]uint64{s.stats(0).Moves, s.stats(1).Moves, s.stats(1).Learned}; got != [...]uint64{0, 1, 0} {
		t.Errorf("moves of the old and the new port, learned by the new: %v, want [0 1 0]", got)
	}
	// and back, a thousand times
	for range 1000 {
		s.learn(0, 1)
		s.learn(1, 1)
	}
	if got := [...]uint64{s.stats(0).Moves, s.stats(1).Moves}; got != [...]uint64{1000, 1001} {
		t.Errorf("moves %v, want [1000 1001]", got)
	}
	s.fdb()
}

// An address that has aged is learned anew on another port; this is not counted as a
// move.
func TestMoveOfAged(t *testing.T) {
	s := newBench(t, 3)
	s.learn(0, 1)
	s.at(benchNow + 300)
	s.learn(1, 1)
	s.expectFDB(map[address]spot{{station(1), 0}: {port: 1, used: benchNow + 300}})
	if got := [...]uint64{s.stats(1).Moves, s.stats(1).Learned}; got != [...]uint64{0, 1} {
		t.Errorf("moves and learned %v, want [0 1]", got)
	}
}

// Static and sticky addresses do not age, do not move, and are not refreshed.
func TestPinned(t *testing.T) {
	for name, pin := range map[string]uint32{"static": fdbStatic, "sticky": fdbSticky} {
		t.Run(name, func(t *testing.T) {
			s := newBench(t, 3)
			s.store(address{station(1), 0}, spot{port: 0, pin: pin})
			s.learn(2, 9)
			want := map[address]spot{
				{station(1), 0}: {port: 0, pin: pin},
				{station(9), 0}: {port: 2, used: benchNow},
			}
			s.expectFDB(want)
			if n := s.usage(0); n != 1 {
				t.Errorf("%d dynamic entries, want 1: pinned ones do not count", n)
			}
			s.learn(0, 1) // its own port
			if n := s.stats(0).Refused; n != 0 {
				t.Errorf("refused on its own port %d times", n)
			}
			for i := range 3 {
				s.learn(1, 1)
				if n := s.stats(1).Refused; n != uint64(i+1) {
					t.Errorf("refused %d times, want %d", n, i+1)
				}
			}
			s.expectFDB(want)
			s.at(benchNow + 1e6)
			expect(t, "a million seconds later", s.tcx(2, unicast(1, 9)), sent(0))
		})
	}
}

// An entry of `fdb add` replaces a learned one.
func TestStoreOverLearned(t *testing.T) {
	s := newBench(t, 3)
	s.learn(0, 1)
	s.store(address{station(1), 0}, spot{port: 1, pin: fdbStatic})
	s.expectFDB(map[address]spot{{station(1), 0}: {port: 1, pin: fdbStatic}})
	s.store(address{station(1), 0}, spot{port: 2, pin: fdbSticky})
	s.expectFDB(map[address]spot{{station(1), 0}: {port: 2, pin: fdbSticky}})
}
