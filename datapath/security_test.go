// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"testing"
	"time"
)

// expectBoth puts a frame to both programs: XDP has to do the same as tcx, or to leave
// the frame to tcx.
func (s *bench) expectBoth(what string, port int, frame []byte, want outcome) {
	s.t.Helper()
	got := s.xdp(port, frame)
	if got.Verdict != pass {
		expect(s.t, what+", by XDP", got, want)
	}
	expect(s.t, what, s.tcx(port, frame), want)
}

// lock locks a port.
func lock(p *Port) {
	p.Flags |= PortLocked
	p.Flags &^= PortLearn
}

// A locked port accepts frames from addresses that the FDB has there, and from no
// others.
func TestLockedPort(t *testing.T) {
	tests := []struct {
		name  string
		entry *spot // of the source, if there is one
		vlan  uint16
		taken bool
	}{
		{"unknown", nil, 0, false},
		{"static", &spot{port: 0, pin: fdbStatic}, 0, true},
		{"sticky", &spot{port: 0, pin: fdbSticky}, 0, true},
		{"dynamic", &spot{port: 0, used: benchNow - 299}, 0, true},
		{"aged", &spot{port: 0, used: benchNow - 300}, 0, false},
		{"static elsewhere", &spot{port: 1, pin: fdbStatic}, 0, false},
		{"dynamic elsewhere", &spot{port: 1, used: benchNow}, 0, false},
		{"static in a VLAN", &spot{port: 0, pin: fdbStatic}, 7, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { lock(p[0]) })
			s.learn(1, 1)
			if tt.entry != nil {
				s.store(address{station(0), tt.vlan}, *tt.entry)
			}
			toKnown, toAll := dropped("locked"), dropped("locked")
			if tt.taken {
				toKnown, toAll = sent(1), sent(1, 2)
			}
			for range 2 {
				s.expectBoth("to a known address", 0, unicast(1, 0), toKnown)
				s.expectBoth("to an unknown address", 0, unicast(9, 0), toAll)
				s.expectBoth("broadcast", 0, from(0), toAll)
			}
			in := packet{dst: broadcast, src: station(0)}.tagged(tt.vlan)
			if tt.vlan != 0 {
				s.expectBoth("in the VLAN", 0, in.bytes(), sent(1, 2))
			}
			// frames to the port are not affected
			s.expectBoth("to the locked port", 1, unicast(9, 1), sent(0, 2))
		})
	}
}

// A locked port with MAB makes locked entries of addresses that are not authorized
// there: they are reported once, authorize nothing, displace no entry, and age.
func TestLockedEntries(t *testing.T) {
	const ageing = 300
	s := newBench(t, 4, allXDP, func(c *Config, p []*Port) {
		lock(p[0])
		p[0].Flags |= PortMAB
		p[0].FdbMax = 2
		lock(p[3])
	})
	a := func(n int) address { return address{station(n), 0} }
	locked := func(port int, used uint32) spot { return spot{port: port, used: used | fdbLocked>>32} }
	l := s.log()
	s.learn(1, 1)
	s.expectEvents(l, Event{Kind: EventLearned, MAC: station(1), Port: s.ids[1], Count: 1})

	for range 3 {
		s.expectBoth("a stranger's frame", 0, unicast(1, 5), dropped("locked"))
	}
	s.expectFDB(map[address]spot{a(1): {port: 1, used: benchNow}, a(5): locked(0, benchNow)})
	s.expectEvents(l, Event{Kind: EventLocked, MAC: station(5), Port: s.ids[0], Count: 1})
	for range 2 {
		s.expectBoth("to the stranger", 1, unicast(5, 1), sent(0, 2, 3))
	}
	s.expectBoth("a stranger's frame to a port without MAB", 3, unicast(1, 6), dropped("locked"))

	// the entry is refreshed, and takes room like any other
	s.at(benchNow + ageing - 1)
	s.expectBoth("later", 0, from(5), dropped("locked"))
	s.expectBoth("another", 0, from(7), dropped("locked"))
	s.expectBoth("one more than fdb-max", 0, from(8), dropped("locked"))
	s.expectEvents(l, Event{Kind: EventLocked, MAC: station(7), Port: s.ids[0], Count: 1}, Event{Kind: EventRefusedFull, Port: s.ids[0], Count: 1})
	s.expectFDB(map[address]spot{
		a(1): {port: 1, used: benchNow}, a(5): locked(0, benchNow+ageing-1), a(7): locked(0, benchNow+ageing-1),
	})

	// an address that is known at another port stays there
	s.expectBoth("another port's station", 0, from(1), dropped("locked"))
	s.expectBoth("to the port that it is on", 2, unicast(1, 2), sent(1))
	s.expectEvents(l, Event{Kind: EventLearned, MAC: station(2), Port: s.ids[2], Count: 1})
	// at a port where it is authorized it is an address like any other
	s.learn(2, 5)
	s.expectBoth("to where it is let in", 1, unicast(5, 1), sent(2))
	s.expectEvents(l, Event{Kind: EventLearned, MAC: station(5), Port: s.ids[2], Count: 1})
	// a static entry authorizes it, too
	s.store(a(7), spot{port: 0, pin: fdbStatic})
	s.expectBoth("let in", 0, unicast(5, 7), sent(2))
	s.expectBoth("to who is let in", 2, unicast(7, 5), sent(0))
	s.expectFDB(map[address]spot{
		a(1): {port: 1, used: benchNow + ageing - 1}, a(2): {port: 2, used: benchNow + ageing - 1},
		a(5): {port: 2, used: benchNow + ageing - 1}, a(7): {port: 0, pin: fdbStatic},
	})
	// an address that has aged elsewhere gets a locked entry
	s.at(benchNow + 3*ageing)
	s.expectBoth("aged elsewhere", 0, from(1), dropped("locked"))
	s.expectEvents(l, Event{Kind: EventLocked, MAC: station(1), Port: s.ids[0], Count: 1})
	if got := s.fdb()[a(1)]; got != locked(0, benchNow+3*ageing) {
		t.Errorf("what has aged elsewhere is %+v, want a locked entry", got)
	}
}

// Locked entries are swept when they have aged, and not before.
func TestLockedEntriesAge(t *testing.T) {
	s := newBench(t, 2, func(c *Config, p []*Port) {
		c.Ageing = 2
		lock(p[0])
		p[0].Flags |= PortMAB
	})
	if err := s.gen.start(); err != nil {
		t.Fatal(err)
	}
	l := s.log()
	expect(t, "a stranger's frame", s.tcx(0, from(5)), dropped("locked"))
	heard := s.fdb()[address{station(5), 0}].used &^ (fdbLocked >> 32)
	until(t, "the entry ages", func() bool { return len(s.fdb()) == 0 })
	if now := s.clock().Now; now < heard+2 {
		t.Errorf("an entry of second %d is gone in second %d", heard, now)
	}
	s.expectEvents(l, Event{Kind: EventLocked, MAC: station(5), Port: s.ids[0], Count: 1},
		Event{Kind: EventAged, MAC: station(5), Port: s.ids[0], Count: 1})
}

// Locking a port also affects conversations that are going on.
func TestLockedPortEndsDecisions(t *testing.T) {
	tests := []struct {
		name   string
		pin    uint32
		change func(s *bench)
	}{
		{"deleted", fdbStatic, func(s *bench) {
			if err := s.remove(address{station(0), 0}); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"flushed", 0, func(s *bench) {
			if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Port: s.ids[0]}); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"aged", 0, func(s *bench) { s.at(benchNow + 300); s.learn(1, 1) }},
		{"moved", 0, func(s *bench) { s.learn(2, 0) }},
		{"static elsewhere", fdbStatic, func(s *bench) { s.store(address{station(0), 0}, spot{port: 2, pin: fdbStatic}) }},
	}
	for _, tt := range tests {
		for _, h := range []hook{hookTCX, hookXDP} {
			t.Run(tt.name+", "+h.String(), func(t *testing.T) {
				s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { lock(p[0]) })
				s.learn(1, 1)
				s.store(address{station(0), 0}, spot{port: 0, pin: tt.pin, used: benchNow})
				for range 3 {
					expect(t, "before", s.tcx(0, unicast(1, 0)), sent(1))
					expect(t, "before, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
				}
				tt.change(s)
				if h == hookXDP {
					expect(t, "after, by XDP", s.xdp(0, unicast(1, 0)), passed)
					return
				}
				expect(t, "after", s.tcx(0, unicast(1, 0)), dropped("locked"))
			})
		}
	}
}

// If there is no room for an address, its frames are dropped if the port has that
// setting; frames of known addresses go on, also when their age is updated.
func TestFullDrop(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Config, p []*Port)
	}{
		{"of the port", func(_ *Config, p []*Port) { p[0].FdbMax = 2 }},
		{"of the bridge", func(c *Config, _ []*Port) { c.FdbMax = 4 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, 3, allXDP, tt.change, func(_ *Config, p []*Port) { p[0].Flags |= PortLimitDrop })
			s.learn(1, 11, 12)
			s.learn(0, 1, 2)
			for i := range 3 {
				s.expectBoth("above the limit", 0, unicast(11, 50), dropped("limit"))
				s.expectBoth("above the limit, to all", 0, from(51), dropped("limit"))
				s.expectBoth("within", 0, unicast(11, 1), sent(1))
				s.expectBoth("within, to all", 0, from(2), sent(1, 2))
				s.at(benchNow + uint32(i) + 1)
			}
			if n := s.stats(0).Refused; n != 6 {
				t.Errorf("%d refused, want 6", n)
			}
			// there is no room for an address that moves to the port either; the other
			// ports flood
			s.expectBoth("to a port that floods", 1, from(60), sent(0, 2))
			if tt.name == "of the port" {
				s.expectBoth("one that moves", 0, from(11), dropped("limit"))
			} else {
				s.expectBoth("one that moves", 0, from(11), sent(1, 2))
			}
			// and when there is room again it is used
			if err := s.remove(address{station(2), 0}); err != nil {
				t.Fatal(err)
			}
			s.expectBoth("after one has gone", 0, from(52), sent(1, 2))
		})
	}
}

// An address that is pinned elsewhere is not affected by a lack of room.
func TestFullDropPinned(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) { p[0].FdbMax, p[0].Flags = 1, p[0].Flags|PortLimitDrop })
	s.learn(0, 1)
	s.store(address{station(5), 0}, spot{port: 1, pin: fdbStatic})
	s.store(address{station(6), 0}, spot{port: 0, pin: fdbStatic})
	expect(t, "pinned elsewhere", s.tcx(0, from(5)), sent(1, 2))
	expect(t, "pinned here", s.tcx(0, from(6)), sent(1, 2))
}

// typed is a frame of an EtherType, behind tags.
func typed(p packet, typ uint16) []byte {
	b := p.bytes()
	binary.BigEndian.PutUint16(b[12+4*len(p.tags):], typ)
	return b
}

// A port that blocks non-IP frames blocks them in and out, behind up to two tags.
func TestBlockNonIP(t *testing.T) {
	types := []struct {
		name string
		typ  uint16
		ip   bool
	}{
		{"IPv4", 0x0800, true},
		{"IPv6", 0x86dd, true},
		{"ARP", 0x0806, true},
		{"RARP", 0x8035, true},
		{"test", typeTest, false},
		{"LLC", 60, false}, // a length: 802.3
		{"PPPoE", 0x8863, false},
		{"LLDP", 0x88cc, false},
		{"zero", 0, false},
	}
	tags := map[string][]tag{
		"": nil, "tagged ": {{typeVLAN, 10, 0}}, "priority ": {{typeVLAN, 0, 5}},
		"double ": {{typeQinQ, 20, 0}, {typeVLAN, 10, 0}}, "twice ": {{typeVLAN, 10, 0}, {typeVLAN, 11, 0}},
	}
	s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP })
	for name, tags := range tags {
		p := packet{src: station(0), tags: tags}
		q := packet{src: station(1), tags: tags}
		p.dst, q.dst = broadcast, broadcast
		expect(t, name+"learn", s.tcx(0, typed(p, 0x0806)), sent(1, 2))
		expect(t, name+"learn", s.tcx(1, typed(q, 0x0806)), sent(0, 2))
		for _, tt := range types {
			in, out, flood, around := sent(1), sent(0), sent(1, 2), outcome{redirect, []int{0, 2}, nil}
			if !tt.ip {
				in, out, flood = dropped("non-ip"), dropped("non-ip"), dropped("non-ip")
				around = outcome{redirect, []int{2}, []string{"non-ip"}}
			}
			for range 2 {
				p.dst, q.dst = station(1), station(0)
				s.expectBoth(name+tt.name+" in", 0, typed(p, tt.typ), in)
				s.expectBoth(name+tt.name+" out", 1, typed(q, tt.typ), out)
				p.dst, q.dst = broadcast, broadcast
				s.expectBoth(name+tt.name+" in, to all", 0, typed(p, tt.typ), flood)
				s.expectBoth(name+tt.name+" out, to all", 1, typed(q, tt.typ), around)
			}
		}
	}
}

// An address moves at most this often in a second; its frames go on.
func TestMoveMax(t *testing.T) {
	for _, most := range []uint32{1, 2, 7} {
		s := newBench(t, 3, allXDP, func(c *Config, _ []*Port) { c.MoveMax = most })
		s.learn(0, 1)
		s.learn(2, 9)
		l := s.log()
		flap := func(times int) {
			for i := range times {
				s.learn(1-i%2, 1)
			}
		}
		moves := func() uint64 { return s.stats(0).Moves + s.stats(1).Moves }
		flap(20)
		if got := moves(); got != uint64(most) {
			t.Errorf("limit %d: %d moves", most, got)
		}
		// frames to the port where it is are delivered
		at := int(most % 2)
		if got := s.fdb()[address{station(1), 0}].port; got != at {
			t.Errorf("limit %d: the address is on port %d, want %d", most, got, at)
		}
		s.expectBoth("to the address", 2, unicast(1, 9), sent(at))
		s.expectBoth("from the address, elsewhere", 1-at, unicast(9, 1), sent(2))
		refused := s.stats(0).Refused + s.stats(1).Refused
		var told []EventKind
		list, _, err := l.Read()
		for _, e := range list {
			told = append(told, e.Kind)
		}
		if err != nil || len(told) != 2 || told[0] != EventMoved || told[1] != EventRefusedDamped {
			t.Errorf("limit %d: told of %v (%v), want a move and a refusal", most, told, err)
		}

		// another address has moves of its own
		s.learn(0, 2)
		s.learn(1, 2)
		if got := s.fdb()[address{station(2), 0}].port; got != 1 {
			t.Error("another address was not moved")
		}
		// and so does the next second, whose event has the number of refusals of the
		// last one
		s.at(benchNow + 1)
		before := moves()
		flap(20)
		if got := moves() - before; got != uint64(most) {
			t.Errorf("limit %d: %d moves in the next second", most, got)
		}
		list, _, err = l.Read()
		found := false
		for _, e := range list {
			if e.Kind == EventRefusedDamped {
				found = uint64(e.Count) == refused && e.MAC == station(1)
			}
		}
		if err != nil || !found {
			t.Errorf("limit %d: events of the next second %+v (%v), want %d refused", most, list, err, refused)
		}
	}
}

// It is no move if an address ages and appears elsewhere. Requests to move an address
// have no limit.
func TestMoveMaxOfAged(t *testing.T) {
	s := newBench(t, 3, func(c *Config, _ []*Port) { c.MoveMax = 1 })
	s.learn(0, 1)
	s.learn(1, 1)
	s.at(benchNow + 300)
	s.learn(2, 1)
	s.learn(0, 1)
	if got := s.fdb()[address{station(1), 0}].port; got != 0 {
		t.Errorf("the address is on port %d, want 0", got)
	}
	s.store(address{station(1), 0}, spot{port: 1, pin: fdbStatic})
	if got := s.fdb()[address{station(1), 0}].port; got != 1 {
		t.Errorf("the address is on port %d, want 1", got)
	}
}

const hostStation = 77

// guarded is a bridge whose port 1 has a loop guard and whose port 2 is the host's; a
// block time above 0 makes the guard block.
func guarded(t *testing.T, block uint32) *bench {
	s := newBench(t, 4, allXDP, func(_ *Config, p []*Port) {
		p[1].Flags, p[1].BlockTime = p[1].Flags|PortLoopGuard, block
		p[2].Notes, p[2].Host = p[2].Notes|PortHost, MACWord(station(hostStation))
	})
	s.store(address{station(hostStation), 0}, spot{port: 2, pin: fdbStatic})
	return s
}

// A frame from a host port's own address is the switch's own frame, by whichever other
// port it comes in.
func TestLoopGuardHost(t *testing.T) {
	s := guarded(t, 0)
	s.learn(0, 1)
	l := s.log()
	for range 3 {
		s.expectBoth("own, to one", 1, unicast(1, hostStation), dropped("loop"))
		s.expectBoth("own, to all", 1, from(hostStation), dropped("loop"))
		s.expectBoth("from the host", 2, unicast(1, hostStation), sent(0))
		s.expectBoth("at a port without a guard", 3, unicast(1, hostStation), sent(0))
	}
	list, _, err := l.Read()
	var loops []Event
	for _, e := range list {
		if e.Kind != EventRefusedPinned {
			loops = append(loops, e)
		}
	}
	want := Event{Kind: EventLoop, MAC: station(hostStation), Port: s.ids[1], From: s.ids[2], Count: 1}
	if err != nil || len(loops) != 1 || loops[0] != want {
		t.Errorf("told of %+v (%v), want %+v", loops, err, want)
	}
	s.at(benchNow + 1)
	s.tcx(1, from(hostStation))
	want.Count = 6
	s.expectEvents(l, want)
}

// A station that moves is not a loop; one that moves back and forth is, unless its last
// frame before each move was long ago.
func TestLoopGuardStations(t *testing.T) {
	tests := []struct {
		name  string
		moves func(s *bench) // ends with a frame of station 1 at the guard
		loop  bool
	}{
		{"to and fro", func(s *bench) {
			for range 5 {
				s.tcx(0, from(1))
				s.tcx(1, from(1))
			}
		}, true},
		{"round in one way", func(s *bench) {
			for range 5 {
				s.tcx(0, from(1))
				s.tcx(1, from(1))
			}
			s.tcx(3, from(1))
			expect(s.t, "first", s.tcx(1, unicast(50, 1)), sent(0, 2, 3)) // moves the address here
			expect(s.t, "round again", s.tcx(1, from(1)), dropped("loop"))
			expect(s.t, "another address", s.tcx(1, from(2)), sent(0, 2, 3))
			s.at(benchNow + 2)
			expect(s.t, "later", s.tcx(1, from(1)), sent(0, 2, 3))
		}, true},
		{"not so often", func(s *bench) {
			for range 4 {
				s.tcx(0, from(1))
				s.tcx(1, from(1))
			}
		}, false},
		{"not so often in a second", func(s *bench) {
			for n := range 10 {
				s.at(benchNow + uint32(n/4))
				s.tcx(0, from(1))
				s.tcx(1, from(1))
			}
		}, false},
		{"an address that stays, by a port that does not learn", func(s *bench) {
			s.tcx(0, from(1))
			for range 5 {
				s.tcx(3, from(1))
				s.tcx(1, from(1))
			}
		}, true},
		{"announces itself", func(s *bench) { // like a virtual machine that has migrated
			s.tcx(0, from(1))
			for range 20 {
				s.tcx(1, from(1))
			}
		}, false},
		{"many at once", func(s *bench) { // like stations behind a cable that has been moved
			for n := range 500 {
				s.tcx(0, from(1000+n))
			}
			for n := range 500 {
				s.tcx(1, from(1000+n))
			}
			s.tcx(0, from(1))
			s.tcx(1, from(1))
		}, false},
		{"unicast", func(s *bench) {
			for range 20 {
				s.tcx(0, from(1))
				s.tcx(1, unicast(50, 1))
			}
		}, false},
		{"heard long ago", func(s *bench) {
			for n := range uint32(20) {
				s.tcx(0, from(1))
				s.at(benchNow + 2*n)
				s.tcx(1, from(1))
			}
		}, false},
		{"static", func(s *bench) {
			s.store(address{station(1), 0}, spot{port: 0, pin: fdbStatic})
			for range 20 {
				s.tcx(1, from(1))
			}
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := guarded(t, 0)
			tt.moves(s)
			drops := s.stats(1).Drops
			if got := drops[kernelDropReasonDROP_LOOP]; (got > 0) != tt.loop {
				t.Errorf("%d frames are said to have come back, a loop: %v", got, tt.loop)
			}
		})
	}
}

// With a block time the guard blocks its port: no frames come in or go out by it, also
// of present conversations. The block ends by itself after that time.
func TestLoopGuardBlocks(t *testing.T) {
	const block = 30
	s := guarded(t, block)
	s.learn(0, 1)
	s.learn(1, 2)
	for range 2 {
		s.expectBoth("in", 1, unicast(1, 2), sent(0))
		s.expectBoth("out", 0, unicast(2, 1), sent(1))
	}
	l := s.log()
	s.tcx(1, unicast(1, hostStation))
	s.expectEvents(l,
		Event{Kind: EventLoop, MAC: station(hostStation), Port: s.ids[1], From: s.ids[2], Count: 1},
		Event{Kind: EventBlocked, Port: s.ids[1], Count: block})
	for _, now := range []uint32{0, 1, block - 1} {
		if now > 0 {
			s.at(benchNow + now)
		}
		s.learn(0, 1)
		for range 2 {
			s.expectBoth("in, blocked", 1, unicast(1, 2), dropped("blocked"))
			s.expectBoth("to all, blocked", 1, from(3), dropped("blocked"))
			s.expectBoth("the loop, blocked", 1, from(hostStation), dropped("blocked"))
			s.expectBoth("out, blocked", 0, unicast(2, 1), sent(2, 3))
			s.expectBoth("flood, blocked", 0, from(1), sent(2, 3))
			s.expectBoth("another port", 3, unicast(1, 9), sent(0))
		}
	}
	// stations behind the port can become known at another port meanwhile
	s.learn(3, 2)
	s.expectBoth("another way", 0, unicast(2, 1), sent(3))
	s.at(benchNow + block)
	s.learn(0, 1)
	s.expectBoth("flood, after", 0, from(1), sent(1, 2, 3))
	s.expectBoth("in, after", 1, unicast(1, 2), sent(0))
	s.expectBoth("out, after", 0, unicast(2, 1), sent(1))
}

// Only one end of a loop is blocked, because that is enough: of two cables to another
// switch, one stays in use. The next loop blocks another end.
func TestLoopGuardBlocksOne(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) {
		for i := range 2 {
			p[i].Flags, p[i].BlockTime = p[i].Flags|PortLoopGuard, 30
		}
	})
	round := func(stations ...int) {
		for range 10 {
			for _, n := range stations {
				s.tcx(0, from(n))
				s.tcx(1, from(n))
			}
		}
	}
	blocked := func(port int) uint64 { return s.stats(port).Drops[kernelDropReasonDROP_BLOCKED] }
	round(1, 2, 3)
	s.at(benchNow + 1)
	round(1, 2, 3, 4)
	if blocked(1) == 0 || blocked(0) != 0 {
		t.Errorf("the ports dropped %d and %d frames as blocked, should be none and some", blocked(0), blocked(1))
	}
	for i := range 10 {
		s.at(benchNow + 2)
		s.tcx(2, from(5))
		if got := s.tcx(0, from(5)); (got.Verdict == redirect) != (i < 4) {
			t.Errorf("return %d by the other port: %s", i+1, got)
		}
	}
	if blocked(0) == 0 {
		t.Error("the second loop was not cut")
	}
}

// A block outlives a change of the configuration, but not its port, and not a new
// setting of the guard.
func TestLoopGuardStays(t *testing.T) {
	s := newShelf(t, 3)
	guard := func(_ *Config, p []*Port) { p[0].Flags, p[0].BlockTime = p[0].Flags|PortLoopGuard, 30 }
	b := s.create("br0", 2, guard)
	blocked := func() bool {
		t.Helper()
		all, err := b.Blocked()
		if err != nil {
			t.Fatal(err)
		}
		return all[Ports(&b.Config)[0].Id]
	}
	block := func(d time.Duration) {
		t.Helper()
		if err := b.shared(func(s *kernelShared) {
			s.PortStates[Slot(Ports(&b.Config)[0].Id)] = kernelPortState{Until: s.Clock.Now + uint32(d/time.Second)}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if blocked() {
		t.Error("a new port is blocked")
	}
	block(time.Hour)
	if err := s.commit(b, func(c *Config, p []*Port) { c.FdbMax, p[1].Flags = 5000, p[1].Flags|PortHairpin }); err != nil {
		t.Fatal(err)
	}
	if !blocked() {
		t.Error("a change has unblocked the port")
	}
	if err := b.Unblock(Ports(&b.Config)[0]); err != nil {
		t.Fatal(err)
	}
	if blocked() {
		t.Error("the port is still blocked")
	}
	block(time.Hour)
	if err := s.commit(b, func(c *Config, p []*Port) {
		ifindex, flags := p[0].Ifindex, p[0].Flags
		*p[0] = Port{}
		tenant := NewPort(c, "near0")
		tenant.Ifindex, tenant.Flags, tenant.BlockTime = ifindex, flags, 30
	}); err != nil {
		t.Fatal(err)
	}
	if blocked() {
		t.Error("a port is blocked for what the former tenant of its slot did")
	}
}
