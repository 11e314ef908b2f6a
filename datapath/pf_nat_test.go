// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"bascule/pf"
	"bascule/pf/reference"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// natBenchOf is a natBench with the given rules.
func natBenchOf(t *testing.T, rules string) *bench {
	t.Helper()
	return natBench(t, natRules(t, rules))
}

func natRules(t *testing.T, rules string) *pf.Ruleset {
	t.Helper()
	needRoot(t)
	rs, err := pf.Parse("pf.conf", []byte("set skip on st0\n"+rules), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// natOut is the first packet of a connection from a station behind the host.
func natOut(n int) []byte {
	return natFrame(&reference.Packet{
		Family: pf.Inet, Proto: reference.UDP, Direction: pf.Out, SrcPort: 7, DstPort: 53,
		Src: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), Dst: netip.MustParseAddr("1.1.1.1"),
	})
}

// keys checks the tables of states, and returns the number of states and of second keys. They
// must refer to each other.
func (s *bench) keys() (states, keys int) {
	s.t.Helper()
	t, err := mapStates(s.gen.coll.Maps[kernelMapPfBuckets], s.gen.coll.Maps[kernelMapPfStates], s.gen.coll.Maps[kernelMapPfStamps], &s.cfg, unix.PROT_READ)
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
	wantCounted(s.t, s.gen, &s.cfg)
	return states, keys
}

func (s *bench) wantKeys(what string, states, keys int) {
	s.t.Helper()
	if gotStates, gotKeys := s.keys(); gotStates != states || gotKeys != keys {
		s.t.Errorf("%s: %d states with %d second keys, want %d and %d", what, gotStates, gotKeys, states, keys)
	}
}

// A state and its second key are made and removed together: by the limit of states, by request, and
// by timeout.
func TestNATKeys(t *testing.T) {
	s := natBenchOf(t, "pass\nmatch out inet nat-to 192.0.2.1\n")
	const most = 200 // natBench's limit
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
	// expired states are in no state's way; only the sweep subtracts them from the count
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

// CPUs that process the first packets of one connection at the same moment make one state, and
// connections that need the same port at the same moment get two ports.
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

// Two CPUs process the first packets of two connections at the same moment. If both need the same
// key, one is dropped: an answer to the other would belong to the first.
func TestNATPairs(t *testing.T) {
	const pairs, threads = 10000, 2
	addr := func(a, b byte, i int) netip.Addr { return netip.AddrFrom4([4]byte{a, b, byte(i >> 8), byte(i)}) }
	public := netip.MustParseAddr("192.0.2.1")
	for _, test := range []struct {
		name, rules  string
		frame        func(thread, i int) *reference.Packet
		pass         int // packets of each pair that pass
		states, keys int
	}{
		{"one port", "match out inet nat-to 192.0.2.1 port 7", func(thread, i int) *reference.Packet {
			return &reference.Packet{Direction: pf.Out, Src: addr(10, 0, thread), Dst: addr(1, 1, i)}
		}, 1, pairs, pairs},
		{"one translated", "match in inet to 192.0.2.1 rdr-to 192.0.2.9", func(thread, i int) *reference.Packet {
			to := []netip.Addr{public, netip.MustParseAddr("192.0.2.9")}[thread]
			return &reference.Packet{Direction: pf.In, Src: addr(1, 1, i), Dst: to}
		}, 1, pairs, -1},
		{"one mapping", "match out inet nat-to 192.0.2.1 endpoint-independent", func(thread, i int) *reference.Packet {
			return &reference.Packet{Direction: pf.Out, Src: addr(10, 0, i), Dst: addr(1, 1, thread)}
		}, 2, 2 * pairs, 2 * pairs},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := natBenchFor(t, natRules(t, "pass\n"+test.rules+"\n"), 6*pairs)
			var went [threads][pairs]bool
			var ready atomic.Int64
			err := s.rack.together(threads, func(thread int) error {
				defer ready.Add(threads * pairs) // threads no longer wait for this one
				for i := range pairs {
					p := test.frame(thread, i)
					p.Family, p.Proto, p.SrcPort, p.DstPort = pf.Inet, reference.UDP, 7, 53
					port := 0
					if p.Direction == pf.Out {
						port = 1
					}
					run := &ebpf.RunOptions{Data: natFrame(p), Context: &skbContext{Ifindex: s.rack.near[port]}}
					for ready.Add(1); ready.Load() < int64(threads*(i+1)); {
						runtime.Gosched()
					}
					code, err := s.gen.program(hookTCX).Run(run)
					if err != nil {
						return err
					}
					went[thread][i] = hookTCX.verdict(code) != drop
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var pass [threads + 1]int
			for i := range pairs {
				n := 0
				for thread := range threads {
					if went[thread][i] {
						n++
					}
				}
				pass[n]++
			}
			if pass[test.pass] != pairs {
				t.Errorf("of %d pairs %d went both, %d one, and %d neither", pairs, pass[2], pass[1], pass[0])
			}
			if test.keys >= 0 {
				s.wantKeys("all", test.states, test.keys)
			}
			ports := map[netip.Addr]uint16{}
			states, err := s.gen.states(&s.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer states.close()
			n := 0
			states.each(func(place uint32, st *kernelPfState) bool {
				n++
				key, side := states.before(place, st)
				from, to := key.addr(side).Addr(), st.addr(0)
				if to.Addr() != public {
					to = st.addr(1)
				}
				if had, ok := ports[from]; ok && had != to.Port() && test.pass == 2 {
					t.Errorf("%v has the ports %d and %d", from, had, to.Port())
				}
				ports[from] = to.Port()
				return true
			})
			if n != test.states {
				t.Errorf("%d states, want %d", n, test.states)
			}
		})
	}
}

// The next free port cannot be predicted: the chosen ports are spread over the whole range, with
// gaps anywhere. A search from a port on to the next free one would make long rows: some 60 of
// them, where 90 are expected here, with a standard deviation of less than 3.
func TestNATPortsScattered(t *testing.T) {
	const low, ports, taken = 10000, 1000, 900
	s := natBenchFor(t, natRules(t, fmt.Sprintf("pass\nmatch out inet nat-to 192.0.2.1 port %d:%d\n", low, low+ports-1)), 2*ports)
	for n := range taken {
		if o := s.tcx(1, natOut(n)); len(o.Drops) > 0 {
			t.Fatalf("connection %d: %v", n, o)
		}
	}
	states, err := mapStates(s.gen.coll.Maps[kernelMapPfBuckets], s.gen.coll.Maps[kernelMapPfStates], s.gen.coll.Maps[kernelMapPfStamps], &s.cfg, unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	defer states.close()
	var has [ports + 1]bool
	mapped, rows := 0, 0
	states.each(func(_ uint32, st *kernelPfState) bool {
		// the station outside has the lower address of the two sides
		if port := int(st.addr(1).Port()) - low; port >= 0 && port < ports && !has[port] {
			has[port] = true
			mapped++
		}
		return true
	})
	for port := range ports {
		if has[port] && !has[port+1] {
			rows++
		}
	}
	if mapped != taken || rows < 75 {
		t.Errorf("%d connections have %d ports, in %d rows", taken, mapped, rows)
	}
}

// Checksums that a sender leaves to its device stay right, and so do UDP packets without one.
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

// After a search for a port has failed, there is no new search for a while: each would take
// milliseconds of a CPU. When that time is up there is another one, and it finds a port that has
// become free.
func TestNATDry(t *testing.T) {
	const low, ports = 10000, 10000
	s := natBenchFor(t, natRules(t, fmt.Sprintf("pass\nmatch out inet nat-to 192.0.2.1 port %d:%d\n", low, low+ports-1)), 2*ports)
	send := func(n int) error {
		_, err := s.runContext(hookTCX, &skbContext{Ifindex: s.rack.near[1]}, natOut(n))
		return err
	}
	// search returns the time until which the last failed search counts, in nanoseconds; 0 if there
	// was none
	search := func() (until uint64, err error) {
		var cpus [][]byte
		if err := s.gen.coll.Maps[kernelMapMemory].Lookup(uint32(0), &cpus); err != nil {
			return 0, err
		}
		for _, memory := range cpus {
			dry := memory[len(memory)-512:] // WORK_PF_DRY, the last part of the work area
			for at := 8; at < len(dry); at += 16 {
				until = max(until, binary.NativeEndian.Uint64(dry[at:]))
			}
		}
		return until, nil
	}
	clock := func() uint64 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			panic(err)
		}
		return uint64(now.Nano())
	}
	// that time is separate for each CPU
	onOneCPU := func(f func() error) {
		t.Helper()
		err := s.rack.do(func() error {
			var all unix.CPUSet
			if err := errors.Join(unix.SchedGetaffinity(0, &all), stay()); err != nil {
				return err
			}
			return errors.Join(f(), unix.SchedSetaffinity(0, &all))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	onOneCPU(func() error {
		for n := range ports {
			if err := send(n); err != nil {
				return err
			}
		}
		until, err := search()
		if until > 0 {
			t.Errorf("a search in vain, where each finds a port")
		}
		return err
	})
	s.wantKeys("all ports", ports, ports)
	onOneCPU(func() error {
		if err := send(ports); err != nil {
			return err
		}
		for again, held := 0, 0; again < 3 || held < 20; {
			before, err := search()
			if err != nil {
				return err
			}
			for held >= 20 && clock() <= before {
				time.Sleep(time.Millisecond)
			}
			early := clock()
			if err := send(ports + 1); err != nil { // another source
				return err
			}
			late := clock()
			after, err := search()
			switch {
			case err != nil:
				return err
			case before == 0:
				return errors.New("there is no port, and nobody has noted a search in vain")
			case late < before:
				if held++; after != before {
					return fmt.Errorf("a search at %d, where one before it holds until %d", late, before)
				}
			case early > before:
				if again++; after == before {
					return fmt.Errorf("no search at %d, where one before it held until %d", early, before)
				}
			}
		}
		return nil
	})
	s.wantKeys("no port", ports, ports)
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
		t.Fatal(err)
	}
	s.at(benchNow + 10)
	onOneCPU(func() error {
		until, err := search()
		for clock() <= until {
			time.Sleep(time.Millisecond)
		}
		return errors.Join(err, send(ports))
	})
	s.wantKeys("a port is free", 1, 1)
}

// A client that reuses the port of a closed connection for a new one gets a new translation of its
// packet, with one state, and so does a client whose state is over.
func TestNATAgain(t *testing.T) {
	for _, ports := range []string{"", " static-port", " port 7"} {
		t.Run("nat-to"+ports, func(t *testing.T) {
			s := natBenchOf(t, "pass keep state (sloppy)\nmatch out inet nat-to 192.0.2.1"+ports+"\n")
			send := func(d pf.Direction, flags uint8, from, to netip.AddrPort) reference.Packet {
				t.Helper()
				o := s.tcx(int(d-pf.In), natFrame(&reference.Packet{
					Family: pf.Inet, Proto: reference.TCP, Direction: d, Flags: flags, Src: from.Addr(), SrcPort: from.Port(), Dst: to.Addr(), DstPort: to.Port(),
				}))
				if len(o.Drops) > 0 {
					t.Fatalf("%v %v > %v, flags %#x: %v", d, from, to, flags, o.Drops)
				}
				p, wrong := natRead(s.out)
				if wrong != "" {
					t.Fatalf("%v %v > %v: %s is wrong", d, from, to, wrong)
				}
				return p
			}
			client, server := netip.MustParseAddrPort("10.0.0.1:1234"), netip.MustParseAddrPort("1.1.1.1:80")
			for range 3 {
				p := send(pf.Out, 0x02, client, server)
				public := netip.AddrPortFrom(p.Src, p.SrcPort)
				if p.Src != netip.MustParseAddr("192.0.2.1") || p.Dst != server.Addr() || p.DstPort != server.Port() {
					t.Fatalf("the first packet became %v > %v:%d", public, p.Dst, p.DstPort)
				}
				s.wantKeys("one connection", 1, 1)
				for _, flags := range []uint8{0x12, 0x11, 0x10} {
					if p := send(pf.In, flags, server, public); p.Dst != client.Addr() || p.DstPort != client.Port() {
						t.Fatalf("the answer goes to %v:%d", p.Dst, p.DstPort)
					}
					send(pf.Out, flags&^0x02|0x10, client, server)
				}
			}
			// a state that is over, and has not been swept
			s.at(benchNow + 100000)
			if p := send(pf.Out, 0x02, client, server); p.Src != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("behind a state that is over, it became %v", p.Src)
			}
		})
	}
}

// Pools remember a source as long as a state uses it, and no longer.
func TestNATRemembers(t *testing.T) {
	send := func(s *bench, source string, port uint16, dst string) netip.AddrPort {
		t.Helper()
		o := s.tcx(1, natFrame(&reference.Packet{
			Family: pf.Inet, Proto: reference.UDP, Direction: pf.Out, SrcPort: port, DstPort: 53,
			Src: netip.MustParseAddr(source), Dst: netip.MustParseAddr(dst),
		}))
		if len(o.Drops) > 0 {
			t.Fatalf("%s:%d > %s: %v", source, port, dst, o.Drops)
		}
		p, wrong := natRead(s.out)
		if wrong != "" {
			t.Fatal(wrong, "is wrong")
		}
		return netip.AddrPortFrom(p.Src, p.SrcPort)
	}
	nodes := func(s *bench) int {
		t.Helper()
		n, err := countOf[kernelPfSourceKey, kernelPfSource](s.gen.coll.Maps[kernelMapPfSources])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, test := range []struct {
		name, words string
		nodes       int                            // with two sources of two connections each
		same        func(a, b netip.AddrPort) bool // compares what two connections of a source have in common
		sources     bool                           // whether two sources also have it in common
	}{
		{"sticky", "{ 192.0.2.1, 192.0.2.2, 192.0.2.3 } round-robin sticky-address", 2, func(a, b netip.AddrPort) bool { return a.Addr() == b.Addr() }, true},
		{"sticky in a network", "192.0.2.0/24 random sticky-address", 2, func(a, b netip.AddrPort) bool { return a.Addr() == b.Addr() }, false},
		{"least", "{ 192.0.2.1, 192.0.2.2 } least-states", 2, func(a, b netip.AddrPort) bool { return a.Addr() != b.Addr() }, false},
		{"endpoint", "192.0.2.1 endpoint-independent", 4, func(a, b netip.AddrPort) bool { return a == b }, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := natBenchOf(t, "pass\nmatch out inet proto udp nat-to "+test.words+"\n")
			a1, a2 := send(s, "10.0.0.1", 7, "1.1.1.1"), send(s, "10.0.0.1", 7, "1.1.1.2")
			b1, b2 := send(s, "10.0.0.2", 7, "1.1.1.1"), send(s, "10.0.0.2", 7, "1.1.1.2")
			if !test.same(a1, a2) || !test.same(b1, b2) || test.sources && test.same(a1, b1) {
				t.Errorf("10.0.0.1 became %v and %v, 10.0.0.2 %v and %v", a1, a2, b1, b2)
			}
			if n := nodes(s); n != test.nodes {
				t.Errorf("%d nodes, want %d", n, test.nodes)
			}
			if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
				t.Fatal(err)
			}
			s.wantKeys("flushed", 0, 0)
			if n := nodes(s); n != 0 {
				t.Errorf("%d nodes are left", n)
			}
		})
	}
	t.Run("limit", func(t *testing.T) {
		s := natBenchOf(t, "pass\nmatch out inet nat-to { 192.0.2.1, 192.0.2.2 } sticky-address\n")
		dropped := 0
		for n := range 120 { // natBench has 100 nodes
			if o := s.tcx(1, natOut(n)); len(o.Drops) > 0 {
				dropped++
			}
		}
		if n := nodes(s); n != 100 || dropped != 20 {
			t.Errorf("%d nodes, %d packets dropped", n, dropped)
		}
		s.wantKeys("the limit", 100, 100)
	})
}

// A once rule in an anchor that is called from two places applies once.
func TestPFOnceInAnchor(t *testing.T) {
	s := natBenchOf(t, "block\nanchor a {\n pass quick proto udp no state once\n}\nanchor a\n")
	passed := 0
	for n := range 4 {
		if o := s.tcx(1, natOut(n)); len(o.Drops) == 0 {
			passed++
		}
	}
	if passed != 1 {
		t.Errorf("%d packets passed by a rule with once", passed)
	}
}
