// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rapidTree makes a bridge run spanning tree.
func rapidTree(c *Config, _ []*Port) { c.Flags |= uint32(BridgeSTP | BridgeRSTP) }

// newTree makes a bench with spanning tree whose ports forward.
func newTree(t testing.TB, ports int, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	s := newBench(t, ports, slices.Concat([]func(*Config, []*Port){allXDP, rapidTree}, change)...)
	s.shares(func(shared *kernelShared) {
		for _, p := range Ports(&s.cfg) {
			shared.PortStates[Slot(p.Id)] = kernelPortState{Stp: stateWord(p, STPForwarding)}
		}
	})
	return s
}

// become sets the state of a port.
func (s *bench) become(port int, state STPState) {
	s.t.Helper()
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STP, Port: s.ids[port], Word: uint64(state)}); err != nil {
		s.t.Fatalf("port %d, state %d: %v", port, state, err)
	}
}

// bpdus returns the BPDUs that the bench has handed up so far.
func (s *bench) bpdus() (ports []int, frames [][]byte) {
	s.t.Helper()
	for _, f := range s.handedUp() {
		if f.Protocol != ControlSTP {
			s.t.Errorf("a frame of protocol %d", f.Protocol)
		}
		ports, frames = append(ports, slices.Index(s.ids, f.Port)), append(frames, f.Bytes)
	}
	return ports, frames
}

// A port that does not forward takes and gets no frames of any kind; a port in the
// learning state learns addresses.
func TestSTPStates(t *testing.T) {
	tests := []struct {
		state  STPState
		takes  bool
		learns bool
	}{
		{STPForwarding, true, true},
		{STPDiscarding, false, false},
		{STPLearning, false, true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("state %d", tt.state), func(t *testing.T) {
			s := newTree(t, 4)
			s.learn(0, 10)
			s.learn(1, 1)
			s.become(0, tt.state)
			// frames that come in by the port
			toAll, toKnown := dropped("stp"), dropped("stp")
			if tt.takes {
				toAll, toKnown = sent(1, 2, 3), sent(1)
			}
			for range 2 {
				s.expectBoth("a broadcast in", 0, from(11), toAll)
				s.expectBoth("multicast in", 0, packet{dst: group(1), src: station(11)}.bytes(), toAll)
				s.expectBoth("unknown unicast in", 0, unicast(99, 11), toAll)
				s.expectBoth("known unicast in", 0, unicast(1, 11), toKnown)
			}
			if _, known := s.fdb()[address{station(11), 0}]; known != tt.learns {
				t.Errorf("the port has learned: %v, should: %v", known, tt.learns)
			}
			// and frames to the port
			toAll, toKnown = sent(2, 3), sent(2, 3)
			if tt.takes {
				toAll, toKnown = sent(0, 2, 3), sent(0)
			}
			for range 2 {
				s.expectBoth("a broadcast out", 1, from(1), toAll)
				s.expectBoth("multicast out", 1, packet{dst: group(1), src: station(1)}.bytes(), toAll)
				s.expectBoth("unknown unicast out", 1, unicast(99, 1), toAll)
				s.expectBoth("known unicast out", 1, unicast(10, 1), toKnown)
			}
			// frames between other ports go on
			s.learn(2, 2)
			for range 2 {
				s.expectBoth("between others", 2, unicast(1, 2), sent(1))
			}
		})
	}
}

// Remembered decisions end when the state of either port changes.
func TestSTPEndsDecisions(t *testing.T) {
	tests := []struct {
		name string
		port int
		want outcome
	}{
		{"in", 0, dropped("stp")},
		{"out", 1, sent(2)}, // there may be another way
	}
	for _, tt := range tests {
		for _, state := range []STPState{STPDiscarding, STPLearning} {
			for _, h := range []hook{hookTCX, hookXDP} {
				t.Run(fmt.Sprintf("%s, state %d, %s", tt.name, state, h), func(t *testing.T) {
					s := newTree(t, 3)
					s.learn(0, 0)
					s.learn(1, 1)
					put, want := s.tcx, tt.want
					if h == hookXDP {
						put, want = s.xdp, passed
					}
					for range 3 {
						expect(t, "before", put(0, unicast(1, 0)), sent(1))
					}
					s.become(tt.port, state)
					expect(t, "after", put(0, unicast(1, 0)), want)
					s.become(tt.port, STPForwarding)
					for range 2 {
						expect(t, "again", put(0, unicast(1, 0)), sent(1))
					}
				})
			}
		}
	}
}

// A port in the learning state checks its frames first: addresses of frames that must
// not come in are not learned.
func TestSTPLearnsWhatMayComeIn(t *testing.T) {
	s := newTree(t, 2, func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP })
	s.become(0, STPLearning)
	s.expectBoth("not IP", 0, from(1), dropped("non-ip"))
	s = newTree(t, 2, func(_ *Config, p []*Port) { p[0].Flags &^= PortLearn })
	s.become(0, STPLearning)
	s.expectBoth("without learning", 0, from(1), dropped("stp"))
	if n := len(s.fdb()); n != 0 {
		t.Errorf("%d addresses were learned", n)
	}
}

// BPDUs are handed up with any settings of the port and any tags, and go nowhere else.
func TestBPDU(t *testing.T) {
	changes := map[string]func(c *Config, p []*Port){
		"plain":      func(*Config, []*Port) {},
		"group mask": func(c *Config, _ []*Port) { c.GroupFwdMask = 0xffff },
		"VLANs":      func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeVLANs); c.VlanProto = typeVLAN },
		"guarded": func(c *Config, p []*Port) {
			lock(p[0])
			p[0].Flags |= PortBlockNonIP | PortRulesIn
			storm{1, false}.set(p[0], StormMulticast)
			sourceGuard(c, p)
		},
		"looked at": watched(100, BridgeTalkers),
	}
	for name, change := range changes {
		for _, state := range []STPState{STPForwarding, STPDiscarding, STPLearning} {
			t.Run(fmt.Sprintf("%s, state %d", name, state), func(t *testing.T) {
				s := newTree(t, 3, change)
				s.become(0, state)
				for _, size := range []int{etherHeader, smallest, 256, 257, 1514, 1536, 1600} {
					f := packet{dst: reserved(0), src: station(1), size: size}.bytes()
					what := fmt.Sprintf("%d bytes", size)
					expect(t, what+" by XDP", s.xdp(0, f), passed)
					expect(t, what, s.tcx(0, f), outcome{Verdict: drop})
					ports, frames := s.bpdus()
					if len(frames) != 1 || ports[0] != 0 || !bytes.Equal(frames[0], f[:min(size, 1536)]) {
						t.Errorf("%s: from ports %v came % x", what, ports, frames)
					}
				}
				if n := len(s.fdb()); n != 0 {
					t.Errorf("%d addresses were learned", n)
				}
			})
		}
	}
}

// Frames that only look like BPDUs are treated as frames to a reserved address.
func TestNoBPDU(t *testing.T) {
	tests := []struct {
		name  string
		frame packet
	}{
		{"another reserved address", packet{dst: reserved(1), src: station(1)}},
		{"tagged", packet{dst: reserved(0), src: station(1)}.tagged(10)},
		{"service tag", packet{dst: reserved(0), src: station(1), tags: []tag{{tpid: typeQinQ, vid: 10}}}},
		{"from a group", packet{dst: reserved(0), src: group(1)}},
		{"from nobody", packet{dst: reserved(0)}},
	}
	for _, tt := range tests {
		s := newTree(t, 3)
		expect(t, tt.name, s.tcx(0, tt.frame.bytes()), dropped("reserved"))
		expect(t, tt.name+" by XDP", s.xdp(0, tt.frame.bytes()), passed)
		if ports, _ := s.bpdus(); ports != nil {
			t.Errorf("%s: handed over", tt.name)
		}
	}
	for _, change := range []func(*Config, []*Port){
		allXDP,
		func(c *Config, p []*Port) { allXDP(c, p); p[0].Flags |= PortLoopGuard },
	} {
		s := newBench(t, 3, change)
		expect(t, "without spanning tree", s.tcx(0, packet{dst: reserved(0), src: station(1)}.bytes()), dropped("reserved"))
		if ports, _ := s.bpdus(); ports != nil {
			t.Error("handed over without spanning tree")
		}
	}
}

// A captured BPDU is captured as received.
func TestBPDUCaptured(t *testing.T) {
	s := newTree(t, 2, watched(100, BridgeCapture))
	expect(t, "BPDU", s.tcx(0, packet{dst: reserved(0), src: station(1)}.bytes()), outcome{Verdict: drop})
	if where, _ := s.captured(); !slices.Equal(where, []string{"in 0"}) {
		t.Errorf("captured %q", where)
	}
}

// Without a reader, BPDUs are counted as missed when the buffer is full. So are BPDUs
// of a port above its share, which leaves room for other ports.
func TestBPDUMissed(t *testing.T) {
	const share = 64 // CONTROL_SHARE
	tests := []struct {
		name  string
		from  []int // one round of ports
		times int
		want  map[int]int // handed up; nil: as many as the buffer holds
	}{
		{"a few", []int{0, 1}, 10, map[int]int{0: 10, 1: 10}},
		{"no end of them", []int{0}, 10 * share, map[int]int{0: share}},
		{"others beside", []int{0, 0, 0, 0, 0, 0, 0, 0, 1}, share, map[int]int{0: share, 1: share}},
		{"from all ports", []int{0, 1, 2, 3, 4, 5}, 2 * share, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newTree(t, 6)
			all := 0
			for range tt.times {
				for _, port := range tt.from {
					expect(t, "BPDU", s.tcx(port, packet{dst: reserved(0), src: station(1)}.bytes()), outcome{Verdict: drop})
					all++
				}
			}
			r := &ControlFrames{shared: s.gen.coll.Maps[kernelMapShared]}
			missed, err := r.Missed(ControlSTP)
			if err != nil {
				t.Fatal(err)
			}
			ports, _ := s.bpdus()
			if uint64(len(ports))+missed != uint64(all) {
				t.Errorf("of %d BPDUs %d were handed over and %d counted", all, len(ports), missed)
			}
			if tt.want == nil && (len(ports) < 200 || len(ports) > 5*share) {
				t.Errorf("%d BPDUs were handed over", len(ports))
			}
			got := map[int]int{}
			for _, port := range ports {
				got[port]++
			}
			if tt.want != nil && !maps.Equal(got, tt.want) {
				t.Errorf("handed over by port: %v, want %v", got, tt.want)
			}
			expect(t, "a flood", s.tcx(0, from(1)), sent(1, 2, 3, 4, 5)) // the count is no state of a port

			// and in the next second
			s.at(benchNow + 1)
			expect(t, "BPDU", s.tcx(0, packet{dst: reserved(0), src: station(1)}.bytes()), outcome{Verdict: drop})
			if ports, _ := s.bpdus(); !slices.Equal(ports, []int{0}) {
				t.Errorf("a second later there are BPDUs from %v, want one of port 0", ports)
			}
		})
	}
}

// graceful waits until every program that runs on any CPU has ended: for a grace period
// of RCU (membarrier(2)).
func graceful(t *testing.T) {
	t.Helper()
	if _, _, err := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); err != 0 {
		t.Fatalf("membarrier: %v", err)
	}
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h

// A state is obeyed as soon as it is set, whatever CPUs remember and do at the time,
// also while the bridge's configuration changes.
func TestSTPStateUnderLoad(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3, rapidTree)
	ports := Ports(&b.Config)
	if err := b.Put(Entry{MAC: station(1), Port: ports[1].Id, Static: true}); err != nil {
		t.Fatal(err)
	}
	defer s.send(0, unicast(1, 0), from(0), unicast(7, 0))()
	count := func() (sent [3]uint64) {
		t.Helper()
		for i, p := range ports {
			stats, err := b.PortStats(p)
			if err != nil {
				t.Fatal(err)
			}
			sent[i] = stats.TxFrames
		}
		return sent
	}
	become := func(port int, state STPState) {
		t.Helper()
		if err := b.SetSTPState(ports[port].Id, state); err != nil {
			t.Fatal(err)
		}
		graceful(t) // frames on their way have left
	}
	for port := range ports {
		become(port, STPForwarding)
	}
	for round := range 30 {
		if round%10 == 9 {
			if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing++ }); err != nil {
				t.Fatal(err)
			}
			ports = Ports(&b.Config)
		}
		state := []STPState{STPDiscarding, STPLearning}[round%2]
		for port := range 2 { // the port that takes the frames, and the one that gets them
			become(port, state)
			before := count()
			time.Sleep(5 * time.Millisecond)
			after := count()
			if after[1] != before[1] || port == 0 && after != before {
				t.Fatalf("round %d, port %d in state %d: sent %v, and then %v", round, port, state, before, after)
			}
			become(port, STPForwarding)
			for tries := 0; count()[1] == after[1]; tries++ {
				if tries == 10000 {
					t.Fatalf("round %d: nothing is sent any more", round)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// A state is set only for the port that was meant, not for the next one in its slot.
func TestSetSTPState(t *testing.T) {
	s := newTree(t, 2)
	tests := []struct {
		name  string
		port  uint32
		state uint64
		want  error
	}{
		{"of nobody", 0, uint64(STPDiscarding), unix.ENOENT},
		{"of a port that has left", s.ids[0] + 1<<slotBits, uint64(STPDiscarding), unix.ENOENT},
		{"of a slot that is free", s.ids[1] + 5, uint64(STPDiscarding), unix.ENOENT},
		{"no state", s.ids[0], 3, unix.EINVAL},
	}
	for _, tt := range tests {
		_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STP, Port: tt.port, Word: tt.state})
		if err != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	expect(t, "after all that", s.tcx(0, from(1)), sent(1))
	s = newBench(t, 2)
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STP, Port: s.ids[0], Word: uint64(STPDiscarding)}); err != unix.EINVAL {
		t.Errorf("without spanning tree: %v, want %v", err, unix.EINVAL)
	}
}

// The first states of ports, and the changes that states outlive.
func TestSTPStateLasts(t *testing.T) {
	s := newShelf(t, 5)
	b := s.create("br0", 2)
	want := func(what string, states ...STPState) {
		t.Helper()
		got, err := b.STPStates()
		if err != nil {
			t.Fatal(err)
		}
		if got = got[1 : 1+len(states)]; !slices.Equal(got, states) {
			t.Errorf("%s: states %v, want %v", what, got, states)
		}
	}
	change := func(f func(c *Config, p []*Port)) {
		t.Helper()
		if err := s.commit(b, f); err != nil {
			t.Fatal(err)
		}
	}
	add := func(c *Config, device int, notes PortNotes) {
		p := NewPort(c, "new")
		p.Ifindex, p.Flags, p.Notes = s.rack.near[device], PortLearn|floods, notes
	}
	become := func(port int, state STPState) {
		t.Helper()
		if err := b.SetSTPState(Ports(&b.Config)[port].Id, state); err != nil {
			t.Fatal(err)
		}
	}
	want("without spanning tree", STPForwarding, STPForwarding)
	change(rapidTree)
	want("switched on", STPForwarding, STPForwarding)
	become(0, STPLearning)
	change(func(c *Config, _ []*Port) { add(c, 2, 0); add(c, 3, PortHost) })
	want("ports added", STPLearning, STPForwarding, STPDiscarding, STPForwarding)

	if err := b.Unblock(Ports(&b.Config)[0]); err != nil {
		t.Fatal(err)
	}
	want("the loop guard unblocked", STPLearning, STPForwarding, STPDiscarding, STPForwarding)

	// a change that fails leaves the states as they were, also for a slot that it would
	// have given away
	become(0, STPForwarding)
	err := s.commit(b, func(c *Config, p []*Port) {
		*p[0] = Port{}
		add(c, 4, 0)
		Ports(c)[0].Ifindex = 1 << 30 // no such device
	})
	if err == nil {
		t.Fatal("a port without a device was added")
	}
	want("a change has failed", STPForwarding, STPForwarding, STPDiscarding, STPForwarding)

	old := Ports(&b.Config)[0].Id
	change(func(c *Config, p []*Port) { *p[0] = Port{}; add(c, 4, 0) })
	want("a new tenant", STPDiscarding, STPForwarding, STPDiscarding, STPForwarding)
	if err := b.SetSTPState(old, STPForwarding); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state of a port that has left: %v", err)
	}
	become(0, STPLearning)

	// a killed command had already given the slot away
	if err := b.shared(func(s *kernelShared) { s.PortStates[1] = kernelPortState{Stp: uint64(old) << 32} }); err != nil {
		t.Fatal(err)
	}
	s.do(func() error { return b.Mend(keepAll) })
	want("mended", STPDiscarding, STPForwarding, STPDiscarding, STPForwarding)

	change(func(c *Config, _ []*Port) { c.Flags &^= uint32(BridgeSTP | BridgeRSTP) })
	want("switched off", STPForwarding, STPForwarding, STPForwarding, STPForwarding)
	change(rapidTree)
	want("switched on again", STPForwarding, STPForwarding, STPForwarding, STPForwarding)
}

// There is one holder at a time; finding out who it is does not affect it.
func TestHoldControl(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1, rapidTree)
	if b.Held(WatchControl) {
		t.Error("held by nobody")
	}
	release, err := b.Hold(WatchControl)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Hold(WatchControl); !errors.Is(err, ErrWatched) {
		t.Errorf("held twice: %v", err)
	}
	if !b.Held(WatchControl) {
		t.Error("not held")
	}
	release()
	if b.Held(WatchControl) {
		t.Error("still held")
	}
}
