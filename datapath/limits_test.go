// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// numbered returns count numbers, from first on.
func numbered(first, count int) (list []int) {
	for i := range count {
		list = append(list, first+i)
	}
	return list
}

func TestLimitOfBridge(t *testing.T) {
	s := newBench(t, 3, func(c *Config, _ []*Port) { c.FdbMax = 10 })
	s.learn(0, numbered(0, 6)...)
	s.learn(1, numbered(100, 6)...)
	table := s.fdb()
	if len(table) != 10 {
		t.Fatalf("%d addresses, want 10", len(table))
	}
	for _, n := range append(numbered(0, 6), numbered(100, 4)...) {
		if _, ok := table[address{station(n), 0}]; !ok {
			t.Errorf("station %d was lost", n)
		}
	}
	if n := s.stats(1).Refused; n != 2 {
		t.Errorf("refused %d, want 2", n)
	}
	// a full table still forwards, floods, refreshes, moves, and takes static entries
	expect(t, "to one that was learned", s.tcx(2, unicast(0, 50)), sent(0))
	expect(t, "to one that was not", s.tcx(2, unicast(105, 51)), sent(0, 1))
	s.at(benchNow + 5)
	s.learn(0, 0)
	s.learn(2, 1)
	s.store(address{station(200), 0}, spot{port: 2, pin: fdbStatic})
	s.store(address{station(201), 0}, spot{port: 2, pin: fdbSticky})
	table = s.fdb()
	if got := table[address{station(0), 0}].used; got != benchNow+5 {
		t.Errorf("refreshed at %d, want %d", got, benchNow+5)
	}
	if got := table[address{station(1), 0}].port; got != 2 {
		t.Errorf("moved to port %d, want 2", got)
	}
	if len(table) != 12 {
		t.Errorf("%d addresses, want 12", len(table))
	}
	// a static entry that replaces a learned one makes room for another learned one
	s.store(address{station(1), 0}, spot{port: 2, pin: fdbStatic})
	s.learn(1, 300, 301)
	if n := s.usage(0); n != 10 {
		t.Errorf("%d dynamic entries, want 10", n)
	}
	if _, ok := s.fdb()[address{station(300), 0}]; !ok {
		t.Error("room was not used")
	}
	// a request for a dynamic entry is refused
	_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: key(station(400), 0), Word: s.word(spot{})})
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want ENOSPC", err)
	}
}

// A program that still has a slot's former tenant may free that tenant's addresses when
// the count already belongs to the next tenant: the count does not go below zero.
func TestLimitOfNextTenant(t *testing.T) {
	s := newBench(t, 2, func(_ *Config, p []*Port) { p[0].FdbMax = 2 })
	s.learn(0, 1, 2)
	// as moveIn does
	if err := s.gen.shared(func(shared *kernelShared) { shared.Usage[0][Slot(s.ids[0])] = 0 }); err != nil {
		t.Fatal(err)
	}
	s.learn(1, 1) // it moves
	if err := s.remove(address{station(2), 0}); err != nil {
		t.Fatal(err)
	}
	if n := s.usage(1); n != 0 {
		t.Errorf("%d addresses are counted, want 0", n)
	}
	s.learn(0, 3, 4, 5)
	table := s.fdb()
	if len(table) != 3 || s.usage(1) != 2 {
		t.Errorf("%d addresses, %d of the port; want 3 and 2", len(table), s.usage(1))
	}
}

func TestLimitOfPort(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) { p[0].FdbMax = 4 })
	s.learn(0, numbered(0, 6)...)
	s.learn(1, numbered(100, 6)...)
	s.fdb()
	if got := [...]uint32{s.usage(0), s.usage(1), s.usage(2)}; got != [...]uint32{10, 4, 6} {
		t.Errorf("entries of the bridge and its ports %v, want [10 4 6]", got)
	}
	// nothing moves to a full port
	s.learn(0, 100)
	if got := s.fdb()[address{station(100), 0}].port; got != 1 {
		t.Errorf("moved to port %d in spite of its limit", got)
	}
	if n := s.stats(0).Refused; n != 3 {
		t.Errorf("refused %d, want 3", n)
	}
	// one address leaves, and another one is learned
	s.learn(1, 0)
	s.learn(0, 101)
	if got := [...]uint32{s.usage(0), s.usage(1), s.usage(2)}; got != [...]uint32{10, 4, 6} {
		t.Errorf("entries of the bridge and its ports %v, want [10 4 6]", got)
	}
	if err := s.remove(address{station(101), 0}); err != nil {
		t.Fatal(err)
	}
	s.learn(0, 5)
	if got := [...]uint32{s.usage(0), s.usage(1)}; got != [...]uint32{10, 4} {
		t.Errorf("entries of the bridge and its port %v, want [10 4]", got)
	}
	s.fdb()
}

// together runs f on several threads in the rack's namespace at once.
func (r *rack) together(threads int, f func(thread int) error) error {
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		jobs := r.worker()
		wg.Add(1)
		jobs <- func() {
			defer wg.Done()
			errs[i] = f(i)
		}
		close(jobs)
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Limits hold exactly when several CPUs learn at once.
func TestLimitsTogether(t *testing.T) {
	const threads, each, limit = 4, 600, 500
	tests := []struct {
		name  string
		limit func(c *Config, p []*Port)
		port  func(thread int) int
	}{
		{"of the bridge", func(c *Config, _ []*Port) { c.FdbMax = limit }, func(thread int) int { return thread }},
		{"of the bridge, one port", func(c *Config, _ []*Port) { c.FdbMax = limit }, func(int) int { return 0 }},
		{"of a port", func(_ *Config, p []*Port) { p[0].FdbMax = limit }, func(int) int { return 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, threads, tt.limit)
			err := s.rack.together(threads, func(thread int) error {
				for i := range each {
					if _, err := s.run(hookTCX, s.rack.near[tt.port(thread)], from(thread*each+i)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(s.fdb()); n != limit {
				t.Errorf("%d addresses, want %d", n, limit)
			}
			var learned, refused uint64
			for port := range threads {
				learned += s.stats(port).Learned
				refused += s.stats(port).Refused
			}
			if learned != limit || learned+refused != threads*each {
				t.Errorf("%d learned and %d refused, want %d and %d", learned, refused, limit, threads*each-limit)
			}
		})
	}
}
