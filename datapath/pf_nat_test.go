// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"

	"golang.org/x/sys/unix"
)

// natBenchOf is a natBench with rules.
func natBenchOf(t *testing.T, rules string) *bench {
	t.Helper()
	needRoot(t)
	rs, err := pf.Parse("pf.conf", []byte("set skip on st0\n"+rules), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	return natBench(t, rs)
}

// natOut is the first packet of a connection from a station behind the host.
func natOut(n int) []byte {
	return natFrame(&reference.Packet{
		Family: pf.Inet, Proto: reference.UDP, Direction: pf.Out, SrcPort: 7, DstPort: 53,
		Src: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), Dst: netip.MustParseAddr("1.1.1.1"),
	})
}

// keys looks at the tables of states: how many states there are, and how many second keys.
// Each has to have the other.
func (s *bench) keys() (states, keys int) {
	s.t.Helper()
	t, err := mapStates(s.gen.coll.Maps[kernelMapPfBuckets], s.gen.coll.Maps[kernelMapPfStates], &s.cfg, unix.PROT_READ)
	if err != nil {
		s.t.Fatal(err)
	}
	defer t.close()
	for i := range t.marks {
		m := atomic.LoadUint32(&t.marks[i])
		if m == markClaimed {
			s.t.Errorf("place %d is claimed, and nobody fills it in", i)
		}
		if m&markState == 0 {
			continue
		}
		st := &t.states[i]
		if m != mark(t.hash(st)) {
			s.t.Errorf("place %d has the mark of another key", i)
		}
		flags := StateFlags(st.Flags)
		if flags&kernelPfStateFlagPF_STATE_KEY != 0 {
			keys++
		} else {
			states++
		}
		if flags&(kernelPfStateFlagPF_STATE_KEY|kernelPfStateFlagPF_STATE_NAT) == 0 {
			continue
		}
		other := st.Diff[0] - 1
		if int(other) >= len(t.states) || t.states[other].Diff[0] != uint32(i)+1 || t.marks[other]&markState == 0 ||
			StateFlags(t.states[other].Flags)&(kernelPfStateFlagPF_STATE_KEY|kernelPfStateFlagPF_STATE_NAT) == flags&(kernelPfStateFlagPF_STATE_KEY|kernelPfStateFlagPF_STATE_NAT) {
			s.t.Errorf("place %d, with the flags %#x, lacks its other key", i, flags)
		}
	}
	return states, keys
}

func (s *bench) wantKeys(what string, states, keys int) {
	s.t.Helper()
	if gotStates, gotKeys := s.keys(); gotStates != states || gotKeys != keys {
		s.t.Errorf("%s: %d states with %d second keys, want %d and %d", what, gotStates, gotKeys, states, keys)
	}
}

// A state and its second key come and go together: by the limit of states, by request, and
// when the state is over.
func TestNATKeys(t *testing.T) {
	s := natBenchOf(t, "pass\nmatch out inet nat-to 192.0.2.1\n")
	const most = 200 // of natBench
	dropped := 0
	for n := range most + 20 {
		if o := s.tcx(1, natOut(n)); len(o.Drops) > 0 {
			dropped++
		}
	}
	states, keys := s.keys()
	if states != keys || states+dropped != most+20 || states < most*95/100 || states > most {
		t.Errorf("%d states with %d second keys, %d packets dropped", states, keys, dropped)
	}
	// an untranslated connection has one place
	if o := s.tcx(1, natFrame(&reference.Packet{Family: pf.Inet6, Proto: reference.UDP, Direction: pf.Out, Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd01::1")})); states < most && len(o.Drops) > 0 {
		t.Errorf("an untranslated connection: %v", o)
	}
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
		t.Fatal(err)
	}
	s.wantKeys("flushed", 0, 0)
	// their places are free after two seconds
	s.at(benchNow + 10)
	for n := range 50 {
		if o := s.tcx(1, natOut(n)); len(o.Drops) > 0 {
			t.Fatalf("connection %d: %v", n, o)
		}
	}
	s.wantKeys("made anew", 50, 50)
	// what is over is in nobody's way; only the sweep takes it from the count
	s.at(benchNow + 10 + 3600)
	for n := range most - 60 {
		if o := s.tcx(1, natOut(n+1000)); len(o.Drops) > 0 {
			t.Fatalf("connection %d, where others are over: %v", n, o)
		}
	}
	states, keys = s.keys()
	if states != keys || states < most-60 {
		t.Errorf("%d states with %d second keys", states, keys)
	}
}

// CPUs that see the first packets of one connection at the same moment make one state, and
// connections that ask for one port at the same moment get two.
func TestNATTogether(t *testing.T) {
	for _, test := range []struct {
		name, rules string
		frame       func(thread, i int) []byte
		most        int // states
	}{
		{"one connection", "pass\nmatch out inet nat-to 192.0.2.1\n", func(_, i int) []byte { return natOut(i) }, 40},
		{"one port", "pass\nmatch out inet nat-to 192.0.2.1 port 7\n", func(thread, i int) []byte { return natOut(thread<<8 | i) }, 1},
		{"few ports", "pass\nmatch out inet nat-to 192.0.2.1 port 7:16\n", func(thread, i int) []byte { return natOut(thread<<8 | i) }, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := natBenchOf(t, test.rules)
			const threads = 4
			for i := range 40 {
				err := s.rack.together(threads, func(thread int) error {
					for range 3 {
						_, err := s.run(hookTCX, s.rack.near[1], test.frame(thread, i))
						if err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil && !errors.Is(err, unix.EINTR) {
					t.Fatal(err)
				}
			}
			states, keys := s.keys()
			if states != keys || states > test.most || states < test.most*9/10 {
				t.Errorf("%d states with %d second keys, want at most %d", states, keys, test.most)
			}
			shared := kernelPfShared{}
			s.shares(func(all *kernelShared) { shared = kernelPfShared(all.Pf) })
			if int(shared.States) != states {
				t.Errorf("%d states are counted, and %d there", shared.States, states)
			}
		})
	}
}

// Checksums that a sender leaves to its device stay right, and those of UDP that are none.
func TestNATWithoutChecksum(t *testing.T) {
	s := natBenchOf(t, "pass\nmatch out inet nat-to 192.0.2.1\n")
	f := natOut(1)
	f[14+20+6], f[14+20+7] = 0, 0
	if o := s.tcx(1, f); len(o.Drops) > 0 {
		t.Fatal(o)
	}
	if sum := fmt.Sprintf("%x", s.out[14+20+6:14+20+8]); sum != "0000" {
		t.Errorf("UDP without a checksum has %s", sum)
	}
}
