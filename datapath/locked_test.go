// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// A switch behaves the same with a lock around its FDB.
func TestLocked(t *testing.T) {
	for _, tt := range []struct {
		name string
		test func(*testing.T)
	}{
		{"frames cut short", TestFrameTruncated},
		{"frames from no port", TestFrameFromNoPort},
		{"reserved addresses", TestReserved},
		{"bad sources", TestBadSource},
		{"learn", TestLearn},
		{"learn of", TestLearnOf},
		{"learn off", TestLearnOff},
		{"refresh", TestRefresh},
		{"move", TestMove},
		{"pinned", TestPinned},
		{"limit", TestLimitOfBridge},
		{"against a map", TestFDBAgainstMap},
		{"decisions end", TestDecisionEnds},
		{"decisions collide", TestDecisionsCollide},
		{"same port", TestSamePort},
		{"hairpin", TestHairpin},
		{"protected", TestProtected},
		{"MTU", TestMTU},
		{"MTU changes", TestMTUChanges},
		{"MTU of floods", TestMTUFlood},
		{"flood flags", TestFloodFlags},
		{"flood to nobody", TestFloodNobody},
		{"XDP declines", TestXDPDeclines},
		{"XDP does not learn", TestXDPDoesNotLearn},
		{"XDP, several buffers", TestXDPFragments},
		{"device gone", TestGoneDevice},
		{"learn together", TestLearnTogether},
		{"everything together", TestEverythingTogether},
		{"counts together", TestCountsTogether},
		{"pin while learning", TestPinWhileLearning},
		{"patch cables in a row", TestPatchRow},
		{"patch cables in a loop", TestPatchLoop},
		{"lock held by another", testLockHeld},
	} {
		if !t.Run(tt.name, tt.test) {
			return // a lock that is never released would make every frame wait
		}
	}
}

// underLock reports whether the test is part of TestLocked: its benches then have the
// lock.
func underLock(t testing.TB) bool { return strings.HasPrefix(t.Name(), "TestLocked/") }

// lock returns a variable of the lock; nil if the bench has none.
func (s *bench) lock(name string) *ebpf.Variable { return s.gen.coll.Variables[name] }

func (s *bench) lockGet(name string) (n uint32) {
	s.t.Helper()
	if err := s.lock(name).Get(&n); err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return n
}

// expectUnlocked fails the test if a frame has kept the lock.
func (s *bench) expectUnlocked() {
	s.t.Helper()
	if underLock(s.t) == (s.lock("lock_holder") == nil) {
		s.t.Fatal("the lock is where it must not be, or is not where it must be")
	}
	if underLock(s.t) {
		if holder := s.lockGet("lock_holder"); holder != 0 {
			s.t.Fatalf("the lock is held by CPU %d after the frame", holder-1)
		}
	}
}

// Every frame takes the lock. A frame that does not get it goes on in the end, and
// leaves the lock to its holder.
func testLockHeld(t *testing.T) {
	const other = 1000 // not a CPU of the test
	s := newBench(t, 3, allXDP)
	s.learn(0, 1)
	s.learn(1, 2)
	for _, tt := range []struct {
		name  string
		hook  hook
		frame []byte
		want  verdict
	}{
		{"new conversation", hookTCX, unicast(2, 1), redirect},
		{"remembered decision", hookTCX, unicast(2, 1), redirect},
		{"remembered decision, XDP", hookXDP, unicast(2, 1), redirect},
		{"broadcast", hookTCX, from(1), redirect},
		{"broadcast, XDP", hookXDP, from(1), redirect},
		{"new source", hookTCX, unicast(2, 3), redirect},
		{"new source, XDP", hookXDP, unicast(2, 4), pass},
		{"same port", hookTCX, unicast(1, 1), drop},
	} {
		for _, holder := range []uint32{other, 0} {
			if err := s.lock("lock_holder").Set(holder); err != nil {
				t.Fatal(err)
			}
			before := s.lockGet("lock_missed")
			if got := s.run1(tt.hook, s.rack.near[0], tt.frame); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
			missed := s.lockGet("lock_missed") - before
			if (missed > 0) != (holder != 0) {
				t.Errorf("%s: the lock was missed %d times while its holder was %d", tt.name, missed, holder)
			}
			if got := s.lockGet("lock_holder"); got != holder {
				t.Errorf("%s: the lock's holder is %d, was %d", tt.name, got, holder)
			}
		}
	}
}
