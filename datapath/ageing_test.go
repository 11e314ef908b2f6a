// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"math"
	"testing"
	"time"
)

// An address is unknown once its ageing time has passed, even without a sweep.
func TestAgeing(t *testing.T) {
	for _, ageing := range []uint32{1, 2, 300, 1e6} {
		s := newBench(t, 3, allXDP, func(c *Config, _ []*Port) { c.Ageing = ageing })
		s.learn(0, 1)
		s.at(benchNow + ageing - 1)
		s.learn(1, 2)
		expect(t, "one second before", s.tcx(1, unicast(1, 2)), sent(0))
		expect(t, "one second before, by XDP", s.xdp(1, unicast(1, 2)), sent(0))
		s.at(benchNow + ageing)
		s.learn(1, 2)
		expect(t, "at the ageing time, by XDP", s.xdp(1, unicast(1, 2)), sent(0, 2))
		expect(t, "at the ageing time", s.tcx(1, unicast(1, 2)), sent(0, 2))
		s.at(benchNow + 5*ageing)
		s.learn(1, 2)
		expect(t, "later", s.tcx(1, unicast(1, 2)), sent(0, 2))
		// the next frame makes the same entry known again
		s.learn(0, 1)
		expect(t, "heard again", s.tcx(1, unicast(1, 2)), sent(0))
		if n := s.usage(0); n != 2 {
			t.Errorf("%d entries, want 2", n)
		}
	}
}

// The clock starts at boot and overruns after 136 years; an address that was seen a
// moment ago is not old then.
func TestAgeingOverrun(t *testing.T) {
	s := newBench(t, 3)
	s.at(math.MaxUint32 - 1)
	s.learn(0, 1)
	s.at(3)
	expect(t, "5 seconds later", s.tcx(1, unicast(1, 2)), sent(0))
	s.at(298)
	expect(t, "300 seconds later", s.tcx(1, unicast(1, 3)), sent(0, 2))
}

// The first addresses of a machine that has just booted age like others.
func TestAgeingAtBoot(t *testing.T) {
	s := newBench(t, 3)
	s.at(0)
	s.learn(0, 1)
	expect(t, "at once", s.tcx(1, unicast(1, 2)), sent(0))
	s.at(299)
	expect(t, "young", s.tcx(1, unicast(1, 3)), sent(0))
	s.at(300)
	expect(t, "old", s.tcx(1, unicast(1, 4)), sent(0, 2))
}

// patience is how long something that is sure to happen may take.
const patience = 20 * time.Second

// until waits for something that is sure to happen; it fails the test if it
// does not.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// With its timer running the switch frees aged entries, and only those, with
// no process at work.
func TestSweep(t *testing.T) {
	const aged, pinned = 2000, 50
	s := newBench(t, 3, func(c *Config, _ []*Port) { c.Ageing, c.FdbMax = 2, 5000 })
	if err := s.gen.start(); err != nil {
		t.Fatal(err)
	}
	now := s.clock().Now
	for n := range aged {
		s.store(address{station(n), uint16(n % 3)}, spot{port: n % 3, used: now - 2})
	}
	for n := range pinned {
		s.store(address{station(20000 + n), 0}, spot{port: 1, pin: fdbStatic})
		s.store(address{station(30000 + n), 0}, spot{port: 1, pin: fdbSticky})
	}
	until(t, "the aged entries are freed", func() bool {
		// a talking host is known all the time
		start := s.clock().Now
		s.learn(2, 40000)
		got := s.tcx(0, unicast(40000, 40001))
		if s.clock().Now == start {
			expect(t, "to a talking host", got, sent(2))
		}
		return s.usage(0) == 2
	})
	until(t, "the last entries are freed", func() bool { return s.usage(0) == 0 })
	if n := len(s.fdb()); n != 2*pinned {
		t.Errorf("%d entries left, want %d pinned ones", n, 2*pinned)
	}
}
