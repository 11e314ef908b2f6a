// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// traceBridge makes a bridge with VLANs, a span port that mirrors all frames, and many other
// features.
func traceBridge(t *testing.T) (*shelf, *Bridge) {
	s := newShelf(t, 5)
	b := s.create("br0", 5, allXDP)
	vlans := new(VLANs)
	for _, vid := range []int{1, 10} {
		v := &vlans[vid]
		v.Fid, v.SpanIn, v.SpanOut = uint16(vid), 1, 1
		v.Member[0], v.Reach[0], v.Untagged[0] = 0b1110, 0b1110, 0b0100
	}
	s.do(func() error {
		next := b.Config
		p := Ports(&next)
		next.Flags = uint32(BridgeVLANs | BridgeVLANStats | BridgeTalkers)
		next.VlanProto, next.DefaultPvid = typeVLAN, 1
		next.GroupFwdMask = 0xf
		for i := range p {
			p[i].Pvid, p[i].SpanIn, p[i].SpanOut = 1, 1, 1
		}
		p[4].Facts |= PortSpan
		next.Spans[0] = uint16(Slot(p[4].Id))
		p[0].Flags |= PortHairpin
		p[1].Flags |= PortBlockNonIP
		p[1].Storm[StormBroadcast].Rate = 1
		return b.Commit(&next, Tables{VLANs: vlans}, keepAll)
	})
	return s, b
}

// state has everything that a trace must not change: tables, and frames that have left by
// devices.
func (s *shelf) state(b *Bridge) string {
	s.t.Helper()
	var text []string
	for _, p := range Ports(&b.Config) {
		stats, err := b.PortStats(p)
		if err != nil {
			s.t.Fatal(err)
		}
		text = append(text, fmt.Sprint(stats))
	}
	c, err := b.clock()
	if err != nil {
		s.t.Fatal(err)
	}
	usage, err := b.Usage()
	if err != nil {
		s.t.Fatal(err)
	}
	entries := []string{}
	if err := b.entries(func(k, w uint64) { entries = append(entries, fmt.Sprintf("%x %x", k, w)) }); err != nil {
		s.t.Fatal(err)
	}
	talkers, err := b.Talkers()
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(entries)
	text = append(text, fmt.Sprint(c.Events, usage[:b.Config.Slots], entries, talkers))
	err = s.rack.do(func() error {
		for _, ifindex := range slices.Concat(s.rack.near, s.rack.far) {
			l, err := netlink.LinkByIndex(int(ifindex))
			if err != nil {
				return err
			}
			n := l.Attrs().Statistics
			text = append(text, fmt.Sprintf("%s: %d received, %d sent, %d dropped", l.Attrs().Name, n.RxPackets, n.TxPackets, n.TxDropped+n.RxDropped))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(text, "\n")
}

// A trace has no effect, for any frame and bridge.
func TestTraceWithoutEffect(t *testing.T) {
	s, b := traceBridge(t)
	before := s.state(b)
	actions := map[Action]int{}
	sizes := []int{0, etherHeader, 100, 1514, 1522}
	for i, dst := range []mac{broadcast, station(1), {3, 1}, {1, 0x80, 0xc2, 0, 0, 1}} {
		for j, tags := range [][]tag{nil, {{tpid: typeVLAN, vid: 10}}, {{tpid: typeVLAN, vid: 11}}, {{tpid: typeVLAN, vid: 10}, {tpid: typeVLAN, vid: 20}}} {
			in := (i + j) % 5
			p := packet{dst: dst, src: station(i + j), size: sizes[(i+2*j)%len(sizes)], tags: tags}
			var traced *Traced
			s.do(func() (err error) {
				traced, err = b.Trace(Ports(&b.Config)[in], p.bytes())
				return err
			})
			actions[traced.Action]++
			if after := s.state(b); after != before {
				t.Fatalf("port %d, %+v: before\n%s\nafter\n%s", in, p, before, after)
			}
		}
	}
	for _, a := range []Action{ActionDrop, ActionFlood} {
		if actions[a] == 0 {
			t.Errorf("no trace was of action %d", a)
		}
	}
}

// A trace's VLANs, tags and copies match the tables.
func TestTraceVLAN(t *testing.T) {
	s, b := traceBridge(t)
	p := Ports(&b.Config)
	trace := func(in int, f packet) *Traced {
		t.Helper()
		var traced *Traced
		s.do(func() (err error) {
			traced, err = b.Trace(p[in], f.bytes())
			return err
		})
		return traced
	}
	flood := packet{dst: mac{3, 1}, src: station(1)}
	got := trace(0, flood.tagged(10))
	var out []string
	for _, port := range got.Port[:got.Ports] {
		out = append(out, fmt.Sprintf("%d tag %#x spans %b %s", port.Slot, port.Tag, port.Spans, Reasons()[port.Reason]))
	}
	// slot 1 hairpins, 2 takes no tag and no such type, 3 is in the VLAN, the others are not
	want := []string{"1 tag 0x100a spans 1 ", "2 tag 0x0 spans 0 non-ip", "3 tag 0x100a spans 1 ",
		"4 tag 0x0 spans 0 vlan-out", "5 tag 0x0 spans 0 vlan-out"}
	if got.SpansIn != 1 || got.SpansOut != 0 || got.SpansSmall != 0 {
		t.Errorf("copies: %+v", got.kernelTraced)
	}
	if !slices.Equal(out, want) || got.Action != ActionFlood || got.Vid != 10 || got.Vlan != 10 {
		t.Errorf("traced: action %d, VLAN %d of %d, out %q; want a flood in VLAN 10 to %q", got.Action, got.Vid, got.Vlan, out, want)
	}
	if got := trace(3, flood.tagged(10)); got.Action != ActionDrop || Reasons()[got.Reason] != "vlan" {
		t.Errorf("from a port that is not in the VLAN: action %d, reason %d", got.Action, got.Reason)
	}
	if got := trace(4, flood); got.Action != ActionDrop || Reasons()[got.Reason] != "span" {
		t.Errorf("from a span port: action %d, reason %d", got.Action, got.Reason)
	}
}

func TestTraceTooLarge(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	of := func(size int) error {
		return s.try(func() error {
			_, err := b.Trace(Ports(&b.Config)[0], append(packet{dst: broadcast, src: station(1)}.bytes(), make([]byte, size)...)[:size])
			return err
		})
	}
	var large TrialSizeError
	if err := of(65535); !errors.As(err, &large) || large.Most < 3000 || large.Most > 65534 {
		t.Fatalf("65535 bytes: %v, of %+v", err, large)
	}
	t.Logf("the kernel takes %d bytes", large.Most)
	for _, size := range []int{etherHeader, large.Most} {
		if err := of(size); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for _, size := range []int{large.Most + 1, etherHeader - 1} {
		most := large.Most
		if size < etherHeader {
			most = etherHeader - 1
		}
		if err := of(size); err != (TrialSizeError{size, most}) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// A tale is a trial's report about a frame.
type tale struct {
	action  Action
	step    Step
	reason  string
	learned Learned
	from    int // number of the port that had the source, -1 for none
	found   Found
	behind  int // number of the port that has the destination, -1 for none
}

func taleOf(t *Traced) tale {
	return tale{t.Action, t.Step, Reasons()[t.Reason], t.Learned, int(t.LearnedFrom) - 1, t.Found, int(t.Behind) - 1}
}

// newTrial makes a bench with a trial's programs.
func newTrial(t testing.TB, ports int, change ...func(*Config, []*Port)) *bench {
	t.Helper()
	trial := func(c *Config, _ []*Port) { c.Pf.Features |= uint64(kernelFeatureFEATURE_TRACE) }
	s := newBench(t, ports, slices.Concat([]func(*Config, []*Port){trial}, change)...)
	s.retags = true // a trial puts tags into the metadata
	return s
}

// trial returns a trial's record of a frame. In this bench, addresses that it learns stay.
func (s *bench) trial(port int, frame []byte) *Traced {
	s.t.Helper()
	m := s.gen.coll.Maps[kernelMapMemory]
	cpus, err := ebpf.PossibleCPU()
	if err == nil {
		err = m.Put(m.MaxEntries()-1, make([]kernelMemory, cpus))
	}
	if err == nil {
		err = s.rack.do(func() error {
			_, err := s.run(hookTCX, s.rack.near[port], frame)
			return err
		})
	}
	traced := new(Traced)
	if err == nil {
		err = traced.read(m)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return traced
}

// A trial records the step by which a frame is dropped, the result of learning its source,
// and the FDB's entry for its destination.
func TestTraceTold(t *testing.T) {
	const nobody = -1
	locks := func(_ *Config, p []*Port) { p[0].Flags |= PortLocked | PortMAB }
	at := func(port int, pin uint32) func(*bench) { // station 5 is at this port
		return func(s *bench) { s.store(address{station(5), 0}, spot{port: port, pin: pin, used: benchNow}) }
	}
	lockedAt := func(port int, used uint32) func(*bench) {
		return func(s *bench) {
			_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: address{station(5), 0}.key(), Word: s.word(spot{port: port, used: used}) | fdbLocked})
			if err != nil {
				s.t.Fatal(err)
			}
		}
	}
	becomes := func(port int, state STPState) func(*bench) {
		return func(s *bench) {
			s.shares(func(shared *kernelShared) {
				for _, p := range Ports(&s.cfg) {
					shared.PortStates[Slot(p.Id)] = kernelPortState{Stp: stateWord(p, STPForwarding)}
				}
			})
			s.become(port, state)
		}
	}
	all := func(f ...func(*bench)) func(*bench) {
		return func(s *bench) {
			for _, f := range f {
				f(s)
			}
		}
	}
	gone := func(s *bench) { s.gone(3) }
	first := func(port, station int) func(*bench) {
		return func(s *bench) { s.trial(port, from(station)) }
	}
	large := packet{dst: station(5), src: station(1), size: 1515}.bytes()
	storms := func(kind int) (func(*Config, []*Port), func(*bench)) {
		return func(_ *Config, p []*Port) { storm{1, false}.set(p[0], kind) },
			func(s *bench) { s.setBucket(0, kind, kernelTime(t)+3600*stormSecond) }
	}
	stormB, stormyB := storms(StormBroadcast)
	stormU, stormyU := storms(StormUnknown)
	question := join(ether(broadcast, station(1), typeARP, arp(arpRequest, station(1), "192.0.2.1", none, "192.0.2.2")), make([]byte, 18))
	vlans := func(c *Config, _ []*Port) { c.Flags, c.VlanProto = uint32(BridgeVLANs), typeVLAN }
	bpdu := join([]byte{1, 0x80, 0xc2, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 3, 0x42, 0x42, 3}, make([]byte, 43))
	full := func(c *Config, _ []*Port) { c.FdbMax = 1 }
	portFull := func(_ *Config, p []*Port) { p[0].FdbMax = 1 }
	drops := func(step Step, reason string) tale {
		return tale{ActionDrop, step, reason, LearnNotAsked, nobody, FindNotAsked, nobody}
	}
	check := func(learned Learned, from int) tale { // at a locked port
		return tale{ActionDrop, StepCheck, "locked", learned, from, FindNotAsked, nobody}
	}
	flood := func(learned Learned, from int) tale {
		return tale{ActionFlood, StepFlood, "", learned, from, FindNotAsked, nobody}
	}
	for _, tt := range []struct {
		name   string
		change func(*Config, []*Port)
		before func(*bench)
		frame  []byte // comes in by port 0
		want   tale
	}{
		{"of no port", nil, func(s *bench) { s.gone(1) }, from(1), tale{ActionPass, StepPort, "", LearnNotAsked, nobody, FindNotAsked, nobody}},
		{"cut off", nil, nil, packet{dst: broadcast, src: station(1), size: 16}.tagged(5).bytes(), drops(StepFrame, "malformed")},
		{"a span port", func(c *Config, p []*Port) { spanAt(c, p[0], 0) }, nil, from(1), drops(StepCheck, "span")},
		{"bad source", nil, nil, packet{dst: broadcast}.bytes(), drops(StepCheck, "bad-source")},
		{"reserved", nil, nil, packet{dst: reserved(3), src: station(1)}.bytes(), drops(StepCheck, "reserved")},
		{"reserved, for sockets", nil, nil, packet{dst: reserved(3), src: station(1), typ: unix.ETH_P_PAE}.bytes(), drops(StepCheck, "reserved")},
		{"taken in", rapidTree, becomes(1, STPForwarding), bpdu, drops(StepCheck, "")},
		{"discarding", rapidTree, becomes(0, STPDiscarding), from(1), drops(StepCheck, "stp")},
		{"no VLAN", vlans, nil, from(1), drops(StepVLAN, "untagged")},
		{"another VLAN", vlans, nil, packet{dst: broadcast, src: station(1)}.tagged(10).bytes(), drops(StepVLAN, "vlan")},
		{"a storm of broadcasts", stormB, stormyB, from(1), drops(StepCheck, "storm-bcast")},
		{"not IP", func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP }, nil, from(1), drops(StepCheck, "non-ip")},

		{"locked", func(_ *Config, p []*Port) { p[0].Flags |= PortLocked }, nil, from(5), check(LearnNotAsked, nobody)},
		{"locked, new", locks, nil, from(5), check(LearnLocked, nobody)},
		{"locked, again", locks, lockedAt(0, benchNow-1), from(5), check(LearnLockedAgain, 0)},
		{"locked, again in this second", locks, first(0, 5), from(5), check(LearnLockedAgain, 0)},
		{"locked, long ago", locks, lockedAt(0, benchNow-300), from(5), check(LearnLocked, 0)},
		{"locked, elsewhere", locks, lockedAt(1, benchNow-1), from(5), check(LearnLockedAway, 1)},
		{"locked, known elsewhere", locks, at(1, 0), from(5), check(LearnLockedAway, 1)},
		{"locked, static elsewhere", locks, at(1, fdbStatic), from(5), check(LearnLockedAway, 1)},
		{"locked, no room", func(c *Config, p []*Port) { locks(c, p); full(c, p) }, first(1, 9), from(5), check(LearnLockedFull, nobody)},

		{"new", nil, nil, from(5), flood(LearnNew, nobody)},
		{"known", nil, at(0, 0), from(5), flood(LearnKnown, nobody)},
		{"known as static", nil, at(0, fdbStatic), from(5), flood(LearnKnown, nobody)},
		{"moved", nil, at(1, 0), from(5), flood(LearnMoved, 1)},
		{"new after it has aged", nil, func(s *bench) { s.store(address{station(5), 0}, spot{port: 1, used: benchNow - 300}) }, from(5), flood(LearnNew, 1)},
		{"static", nil, at(1, fdbStatic), from(5), flood(LearnStatic, 1)},
		{"sticky", nil, at(1, fdbSticky), from(5), flood(LearnSticky, 1)},
		{"moved too often", func(c *Config, _ []*Port) { c.MoveMax = 1 }, all(at(0, 0), first(1, 5)), from(5), flood(LearnDamped, 1)},
		{"no room", full, first(1, 9), from(5), flood(LearnFull, nobody)},
		{"no room of the port", portFull, first(0, 9), from(5), flood(LearnFull, nobody)},
		{"no room to move", portFull, all(first(0, 9), at(1, 0)), from(5), flood(LearnFull, 1)},
		{"does not learn", noLearning, nil, from(5), flood(LearnOff, nobody)},
		{"one too many", func(c *Config, p []*Port) { full(c, p); p[0].Flags |= PortLimitDrop }, first(1, 9), from(5),
			tale{ActionDrop, StepLearn, "limit", LearnFull, nobody, FindNotAsked, nobody}},
		{"only learns", rapidTree, becomes(0, STPLearning), from(5), tale{ActionDrop, StepLearn, "stp", LearnNew, nobody, FindNotAsked, nobody}},
		{"only learns, known", rapidTree, all(at(0, 0), becomes(0, STPLearning)), from(5), tale{ActionDrop, StepLearn, "stp", LearnKnown, 0, FindNotAsked, nobody}},
		{"only learns, and does not", func(c *Config, p []*Port) { rapidTree(c, p); noLearning(c, p) }, becomes(0, STPLearning), from(5),
			tale{ActionDrop, StepLearn, "stp", LearnOff, nobody, FindNotAsked, nobody}},
		{"answered", suppress, func(s *bench) { s.bind(0, 1, station(2), "192.0.2.2") }, question,
			tale{ActionAnswered, StepAnswer, "", LearnNew, nobody, FindNotAsked, nobody}},

		{"unknown", nil, nil, unicast(5, 1), tale{ActionFlood, StepFlood, "", LearnNew, nobody, FindNone, nobody}},
		{"dynamic", nil, at(1, 0), unicast(5, 1), tale{ActionSend, StepSend, "", LearnNew, nobody, FindDynamic, 1}},
		{"static there", nil, at(1, fdbStatic), unicast(5, 1), tale{ActionSend, StepSend, "", LearnNew, nobody, FindStatic, 1}},
		{"sticky there", nil, at(1, fdbSticky), unicast(5, 1), tale{ActionSend, StepSend, "", LearnNew, nobody, FindSticky, 1}},
		{"a locked entry", nil, lockedAt(1, benchNow), unicast(5, 1), tale{ActionFlood, StepFlood, "", LearnNew, nobody, FindLocked, 1}},
		{"behind a device that has gone", nil, all(at(2, fdbStatic), gone), unicast(5, 1), tale{ActionFlood, StepFlood, "", LearnNew, nobody, FindStatic, 2}},
		{"behind a port that is blocked", rapidTree, all(at(1, 0), becomes(1, STPDiscarding)), unicast(5, 1), tale{ActionFlood, StepFlood, "", LearnNew, nobody, FindDynamic, 1}},
		{"a storm of unknown unicast", stormU, stormyU, unicast(5, 1), tale{ActionDrop, StepLookUp, "storm-unknown", LearnNew, nobody, FindNone, nobody}},
		{"same port", nil, at(0, 0), unicast(5, 1), tale{ActionDrop, StepLookUp, "same-port", LearnNew, nobody, FindDynamic, 0}},
		{"protected", func(_ *Config, p []*Port) { p[0].Domains, p[1].Domains = 2, 2 }, at(1, 0), unicast(5, 1),
			tale{ActionDrop, StepCheckOut, "protected", LearnNew, nobody, FindDynamic, 1}},
		{"too large", nil, at(1, 0), large, tale{ActionDrop, StepCheckOut, "mtu", LearnNew, nobody, FindDynamic, 1}},
		{"nobody to flood to", func(_ *Config, p []*Port) {
			for _, p := range p {
				p.Flags &^= PortBcastFlood
			}
		}, nil, from(5), tale{ActionDrop, StepFlood, "no-member", LearnNew, nobody, FindNotAsked, nobody}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var change []func(*Config, []*Port)
			if tt.change != nil {
				change = append(change, tt.change)
			}
			s := newTrial(t, 3, change...)
			if tt.before != nil {
				tt.before(s)
				s.at(benchNow)
			}
			if got := taleOf(s.trial(0, tt.frame)); got != tt.want {
				t.Errorf("told %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The same for rules, which are the bridge's.
func TestTraceRules(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.run(b, 1, from(2))
	frame := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000)
	want := func(what string, step Step, reason string, found Found) {
		t.Helper()
		d, err := traceIn(s, b, 0, frame)
		if err != nil || d.Step != step || Reasons()[d.Reason] != reason || d.Found != found {
			t.Errorf("%s: told %+v, %v", what, taleOf(d), err)
		}
	}
	want("no rule", StepSend, "", FindDynamic)
	for _, tt := range []struct {
		rule   string
		step   Step
		reason string
		found  Found
		load   func(string)
	}{
		{"block in on p0\n", StepRulesIn, "rule", FindNotAsked, func(rules string) { s.commitRules(b, rules) }},
		{"block out on p1\n", StepRulesOut, "rule", FindDynamic, func(rules string) { s.commitRules(b, rules) }},
		{"block in on near0\n", StepPFIn, "pf", FindNotAsked, func(conf string) { s.commitRules(b, ""); s.loadPF(b, conf) }},
		{"block out on near1\n", StepPFOut, "pf", FindDynamic, func(conf string) { s.loadPF(b, conf) }},
		{"ether block in on near0\n", StepPFIn, "ether", FindNotAsked, func(conf string) { s.loadPF(b, conf) }},
		{"ether block out on near1\n", StepPFOut, "ether", FindDynamic, func(conf string) { s.loadPF(b, conf) }},
	} {
		tt.load(tt.rule)
		want(fmt.Sprintf("%q", tt.rule), tt.step, tt.reason, tt.found)
	}
}

// For a flood, a trial records the result at every port.
func TestTraceFlood(t *testing.T) {
	s := newTrial(t, sharedCables, rapidTree, func(c *Config, p []*Port) {
		p[1].Flags &^= PortBcastFlood
		p[0].Domains, p[2].Domains = 2, 2
		spanAt(c, p[5], 3)
		c.SpanIn, p[3].SpanOut = 1<<3, 1<<3
	})
	if sharedCables != 6 {
		t.Fatalf("%d ports, the test is for 6", sharedCables)
	}
	flooded := func(frame []byte) (list []string) {
		t.Helper()
		d := s.trial(0, frame)
		for _, p := range d.Port[:d.Ports] {
			text := fmt.Sprint(p.Slot - 1)
			if p.Spans != 0 {
				text += fmt.Sprintf(" spans %#x", p.Spans)
			}
			switch past := FloodPast(p.Reason); {
			case past >= PastEnd:
				t.Errorf("port %d: reason %d", p.Slot-1, p.Reason)
			case past >= PastLearning:
				text += fmt.Sprint(" past ", past-PastLearning)
			case past != 0:
				text += " " + Reasons()[past]
			}
			list = append(list, text)
		}
		in, small := uint16(1<<3), uint16(0)
		if len(frame) > 1514 {
			in, small = small, in
		}
		if d.SpansIn != in || d.SpansSmall != small || d.SpansOut != 0 {
			t.Errorf("copies as it came in %#x, as it left %#x; too small are %#x", d.SpansIn, d.SpansOut, d.SpansSmall)
		}
		return list
	}
	past := func(why FloodPast) string { return fmt.Sprint("past ", why-PastLearning) }
	states := func(state STPState) {
		s.shares(func(shared *kernelShared) {
			for i, p := range Ports(&s.cfg) {
				st := STPForwarding
				if i == 4 {
					st = state
				}
				shared.PortStates[Slot(p.Id)] = kernelPortState{Stp: stateWord(p, st)}
			}
		})
	}
	origin, flag := "0 "+past(PastOrigin), "1 "+past(PastFlag)
	for _, tt := range []struct {
		name   string
		before func()
		frame  []byte
		want   []string
	}{
		{"broadcast", func() { states(STPForwarding) }, from(1), []string{origin, flag, "2 protected", "3 spans 0x8", "4", "5 span"}},
		{"multicast", func() {}, packet{dst: group(1), src: station(1)}.bytes(), []string{origin, "1", "2 protected", "3 spans 0x8", "4", "5 span"}},
		{"too large", func() {}, packet{dst: group(1), src: station(1), size: 1515}.bytes(), []string{origin, "1 mtu", "2 protected", "3 mtu", "4 mtu", "5 span"}},
		{"discarding", func() { states(STPDiscarding) }, from(1), []string{origin, flag, "2 protected", "3 spans 0x8", "4 stp", "5 span"}},
		{"learning", func() { states(STPLearning) }, from(1), []string{origin, flag, "2 protected", "3 spans 0x8", "4 " + past(PastLearning), "5 span"}},
		{"blocked", func() {
			states(STPForwarding)
			s.shares(func(shared *kernelShared) { shared.PortStates[Slot(s.ids[4])].Until = benchNow + 10 })
		}, from(1), []string{origin, flag, "2 protected", "3 spans 0x8", "4 blocked", "5 span"}},
		{"gone", func() { s.gone(4); states(STPForwarding) }, from(1), []string{origin, flag, "2 protected", "3 " + past(PastDevice), "4", "5 span"}},
	} {
		tt.before()
		if got := flooded(tt.frame); !slices.Equal(got, tt.want) {
			t.Errorf("%s: told %q, want %q", tt.name, got, tt.want)
		}
	}
}

// With everything on, a trial, too, leaves room for more.
func TestTraceBudget(t *testing.T) {
	s := newShelf(t, 4)
	s.store.log = ebpf.LogLevelStats
	c := newConfig(s.rack, 4, everything, pfEverything, berth, withSpan)
	c.Features |= uint64(kernelFeatureFEATURE_TRACE)
	var g *generation
	s.do(func() (err error) {
		g, err = (&Bridge{store: s.store}).load(&c, Tables{})
		return err
	})
	defer g.Close()
	fits(t, "a trial", g.coll.Programs[kernelProgBasculeTcx], trialRoom)
}
