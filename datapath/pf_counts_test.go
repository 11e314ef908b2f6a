// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// wantCounted checks that the counters of states match the states in the tables.
func wantCounted(t testing.TB, g *generation, c *Config) {
	t.Helper()
	sound(t, func() (any, []string) {
		y, err := g.missing(c)
		if err != nil {
			return nil, []string{err.Error()}
		}
		var faults []string // states that are not counted, or the reverse
		if y.all != (amount{}) {
			faults = append(faults, fmt.Sprintf("all: %+v", y.all))
		}
		for rule, n := range y.rules {
			faults = append(faults, fmt.Sprintf("rule %d: %+v", rule-1, n))
		}
		for k, n := range y.sources {
			faults = append(faults, fmt.Sprintf("%+v: %+v", k, n))
		}
		return nil, faults
	})
}

// After tables were copied for programs with larger ones, all counts are right, whatever
// connections ended and began in each of the tables, and whichever programs counted them.
func TestPFLateCount(t *testing.T) {
	more := map[string]func(c *Config){
		"states":  func(c *Config) { c.Pf.Buckets *= 2 },
		"sources": func(c *Config) { c.Pf.NodesMax *= 2 },
		"both":    func(c *Config) { c.Pf.Buckets *= 2; c.Pf.NodesMax *= 2 },
	}
	for _, c := range []struct {
		name         string
		inOld, inNew []int // ports of the connections that end there; those above 6 also begin there
		there        int
	}{
		{"in the old", []int{1, 2}, nil, 4},
		{"in the new", nil, []int{1, 2}, 4},
		{"in both", []int{1, 2, 3}, []int{2, 3, 4}, 2},
		{"all", []int{1, 2, 3, 4, 5, 6}, []int{1, 2, 3, 4, 5, 6}, 0},
		{"begun", []int{1, 2, -7, -8}, []int{2, 3, 4, -9}, 5},
	} {
		for size, change := range more {
			t.Run(c.name+"/"+size, func(t *testing.T) {
				s := newShelf(t, 2)
				b := s.create("br0", 2)
				s.loadPF(b, "pass keep state (source-track rule, max 50)\n")
				begin := func(g *generation, port int) {
					t.Helper()
					from := fmt.Sprintf("192.0.2.%d", 9+port%3)
					s.runBy(g.program(hookTCX), b, 0, udpFrame(2, 1, "192.0.2.1", from, 53, port))
				}
				old, err := b.openGeneration()
				if err != nil {
					t.Fatal(err)
				}
				defer old.Close()
				for i := range 6 {
					begin(old, 1+i)
				}
				next := b.Config
				change(&next)
				g, err := b.load(&next, Tables{})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				// as both programs do while they are exchanged
				act := func(g *generation, c *Config, ports []int) {
					t.Helper()
					for _, port := range ports {
						if port < 0 {
							begin(g, -port)
							continue
						}
						table, err := g.states(c)
						if err != nil {
							t.Fatal(err)
						}
						table.each(func(place uint32, st *kernelPfState) bool {
							has := min(fromNetwork(st.Key.Port[0]), fromNetwork(st.Key.Port[1]))
							if int(has) == port {
								r := kernelControl{Op: kernelControlOpCONTROL_PF_KILL, Place: place, State: *st}
								_, err = g.control(r)
							}
							return true
						})
						table.close()
						if err != nil {
							t.Fatalf("state %d: %v", port, err)
						}
					}
				}
				act(old, &b.Config, c.inOld)
				act(g, &next, c.inNew)
				if err := b.growPF(g, &next, true); err != nil {
					t.Fatal(err)
				}
				wantCounted(t, g, &next)
				to, err := g.states(&next)
				if err != nil {
					t.Fatal(err)
				}
				defer to.close()
				there := 0
				to.each(func(uint32, *kernelPfState) bool { there++; return true })
				if there != c.there {
					t.Errorf("%d states are there, should be %d", there, c.there)
				}
				var n PFCounters
				if err := b.pfCounters(&n); err != nil || n[PFInserts]-n[PFRemovals] != uint64(there) {
					t.Errorf("%d states were made, and %d removed, %v", n[PFInserts], n[PFRemovals], err)
				}
			})
		}
	}
}

// All counts are right after loads that resize tables, while connections begin and end at once.
func TestPFCountsUnderLoad(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	const rules = "pass keep state (source-track rule, max 900)\n"
	s.loadPF(b, rules)
	var frames [][]byte
	for port := range 300 {
		for n, flags := range []byte{0x02, 0x04} { // SYN; RST, which ends it
			d, m := station(2), station(1)
			segment := join(be16(port+1), be16(80), be16(0), be16(n), make([]byte, 4), []byte{0x50, flags},
				be16(1000), make([]byte, 4))
			frames = append(frames, join(d[:], m[:], be16(typeIP4),
				ip4(fmt.Sprintf("192.0.2.%d", 1+port%9), "192.0.2.100", unix.IPPROTO_TCP, 0, segment)))
		}
	}
	stop := s.send(0, frames...)
	for i := range 8 {
		s.loadPF(b, rules, func(_ *Config, p *PF) {
			p.Same = true
			p.StatesMax += uint32(i % 2 * 4000)
			p.NodesMax += uint32(i / 2 % 2 * 100)
		})
		if _, err := b.KillStates(func(st *State) bool { return st.From.Addr.Port()%7 == 0 }); err != nil {
			t.Error(err)
		}
		if _, err := b.KillSources(func(n *SourceNode) bool { return n.Addr.As4()[3]%4 == 0 }); err != nil {
			t.Error(err)
		}
	}
	stop()
	g, err := b.openGeneration()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if n := b.Config.Pf.Ruleset; n != 1 {
		t.Errorf("the ruleset became number %d", n)
	}
	wantCounted(t, g, &b.Config)
}

// A state that no longer counts for its sources does not change their counts when it ends. A later
// state of the same sources counts.
func TestNATForget(t *testing.T) {
	s := natBenchOf(t, "pass keep state (source-track rule)\n"+
		"match out inet nat-to { 192.0.2.1, 192.0.2.2 } sticky-address\n")
	table, err := s.gen.states(&s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	begin := func(port uint16) {
		t.Helper()
		frame := natOut(1)
		frame[35] = byte(port)
		if o := s.tcx(1, frame); len(o.Drops) > 0 {
			t.Fatalf("port %d: %v", port, o.Drops)
		}
	}
	places := func() (list []uint32) {
		table.each(func(place uint32, _ *kernelPfState) bool { list = append(list, place); return true })
		return list
	}
	forget := func() {
		t.Helper()
		keys := map[kernelPfSourceKey]bool{}
		for k := range s.sources() {
			keys[k] = true
		}
		if len(keys) != 2 {
			t.Fatalf("%d sources: %v", len(keys), slices.Collect(maps.Keys(keys)))
		}
		if err := table.untrack(s.request, keys); err != nil {
			t.Fatal(err)
		}
	}
	kill := func(place uint32) {
		t.Helper()
		r := kernelControl{Op: kernelControlOpCONTROL_PF_KILL, Place: place, State: table.states[place]}
		if _, err := s.request(r); err != nil {
			t.Fatal(err)
		}
		s.wantKeys("killed", len(places()), len(places()))
	}
	begin(1)
	first := places()
	forget()
	s.wantKeys("forgotten", 1, 1)
	if n := len(s.sources()); n != 0 {
		t.Errorf("%d sources are left", n)
	}
	begin(2) // in the same second
	s.wantKeys("begun anew", 2, 2)
	kill(first[0])
	if n := len(s.sources()); n != 2 {
		t.Errorf("%d sources count the second connection", n)
	}
	kill(places()[0])
	for k, n := range s.sources() {
		if n.States != 0 {
			t.Errorf("%+v counts %d states", k, int32(n.States))
		}
	}
}
