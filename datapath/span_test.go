// SPDX-License-Identifier: BSD-2-Clause

package datapath

import "testing"

// spanAt makes the port the n-th span port.
func spanAt(c *Config, p *Port, n int) {
	p.Facts |= PortSpan
	c.Spans[n] = uint16(Slot(p.Id))
}

// copied is an outcome with additional copies to ports.
func copied(o outcome, ports ...int) outcome {
	o.Out = append(o.Out[:len(o.Out):len(o.Out)], ports...)
	return o
}

// A span port gets every frame that comes in, once, whatever its outcome, and XDP takes
// none of them.
func TestSpanAll(t *testing.T) {
	s := newBench(t, 5, allXDP, func(c *Config, p []*Port) {
		spanAt(c, p[4], 0)
		c.SpanIn = 1
		p[2].Domains, p[3].Domains = 2, 2
	})
	learnt := packet{dst: station(3), src: station(2), size: 1000}
	expect(t, "broadcast", s.tcx(0, from(1)), sent(1, 2, 3, 4))
	expect(t, "unknown unicast", s.tcx(2, unicast(1, 3)), sent(0, 4))
	expect(t, "broadcast from an isolated port", s.tcx(2, from(3)), copied(sent(0, 1), 4))
	expect(t, "multicast", s.tcx(1, packet{dst: group(1), src: station(2)}.bytes()), sent(0, 2, 3, 4))
	for _, what := range []string{"unicast", "unicast that is remembered"} {
		expect(t, what, s.tcx(1, learnt.bytes()), copied(sent(2), 4))
	}
	expect(t, "double tag", s.tcx(1, learnt.tagged(5).tagged(6).bytes()), sent(0, 2, 3, 4))
	s.learn1(3, 4)
	tests := []struct {
		what   string
		port   int
		frame  []byte
		reason string
	}{
		{"protected", 2, unicast(4, 3), "protected"},
		{"to itself", 0, unicast(1, 1), "same-port"},
		{"from a group", 0, packet{dst: broadcast, src: group(1)}.bytes(), "bad-source"},
		{"from nobody", 0, packet{dst: broadcast}.bytes(), "bad-source"},
		{"reserved", 0, packet{dst: reserved(0), src: station(1)}.bytes(), "reserved"},
		{"cut off", 0, packet{dst: broadcast, src: station(1), size: 16}.tagged(5).bytes(), "malformed"},
	}
	for _, tt := range tests {
		for range 2 {
			expect(t, tt.what, s.tcx(tt.port, tt.frame), copied(dropped(tt.reason), 4))
			expect(t, tt.what+", by XDP", s.xdp(tt.port, tt.frame), passed)
		}
	}
	expect(t, "unicast by XDP", s.xdp(1, learnt.bytes()), passed)

	// no frame comes in by it or goes to it, and no address is learned there
	known := len(s.fdb())
	for _, frame := range [][]byte{from(9), unicast(1, 9), unicast(99, 9), packet{dst: reserved(0), src: station(9)}.bytes(), packet{dst: broadcast}.bytes()} {
		expect(t, "from the span port", s.tcx(4, frame), dropped("span"))
		expect(t, "from the span port by XDP", s.xdp(4, frame), passed)
	}
	if n := len(s.fdb()); n != known {
		t.Errorf("%d addresses known, %d before the frames from the span port", n, known)
	}
	s.gone(5)
	expect(t, "without the span port's device", s.tcx(1, learnt.bytes()), sent(2))
}

// A mirror of one port gets the frames that come in by it, that go out by it, or both,
// each time.
func TestSpanPort(t *testing.T) {
	const none, one = 0, 1
	tests := []struct {
		name    string
		in, out uint16
		own     bool // mirrors port 0; otherwise all ports
	}{
		{"in", one, none, true}, {"out", none, one, true}, {"both", one, one, true},
		{"all in", one, none, false}, {"all out", none, one, false}, {"all both", one, one, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, 4, allXDP, func(c *Config, p []*Port) {
				spanAt(c, p[3], 0)
				if tt.own {
					p[0].SpanIn, p[0].SpanOut = tt.in, tt.out
				} else {
					c.SpanIn, c.SpanOut = tt.in, tt.out
				}
			})
			for port := range 3 {
				s.tcx(port, from(port))
			}
			// number of copies that the span port gets of a frame from port in to ports
			// out
			copies := func(in int, out ...int) (list []int) {
				if tt.in == one && (in == 0 || !tt.own) {
					list = append(list, 3)
				}
				for _, p := range out {
					if tt.out == one && (p == 0 || !tt.own) {
						list = append(list, 3)
					}
				}
				return list
			}
			for in := range 3 {
				var reach []int
				for out := range 3 {
					if in == out {
						continue
					}
					reach = append(reach, out)
					for range 2 { // the second one by a remembered decision
						expect(t, "unicast", s.tcx(in, unicast(out, in)), copied(sent(out), copies(in, out)...))
					}
				}
				for _, dst := range []mac{broadcast, group(1), station(99)} {
					frame := packet{dst: dst, src: station(in)}.bytes()
					expect(t, "flood", s.tcx(in, frame), copied(sent(reach...), copies(in, reach...)...))
				}
				expect(t, "to itself", s.tcx(in, unicast(in, in)), copied(dropped("same-port"), copies(in)...))
			}
		})
	}
}

// A span port that mirrors a port, a VLAN and all ports gets a frame once. Other span
// ports get only the frames of what they mirror.
func TestSpanOnce(t *testing.T) {
	s := newBench(t, sharedCables, func(c *Config, p []*Port) {
		spanAt(c, p[3], 0)
		spanAt(c, p[4], 9)
		spanAt(c, p[5], 15)
		c.SpanIn, p[0].SpanIn = 1|1<<9, 1|1<<9|1<<15
	})
	s.tcx(0, from(1))
	s.tcx(1, from(2))
	for range 2 {
		expect(t, "all and a port", s.tcx(0, unicast(2, 1)), sent(1, 3, 4, 5))
		expect(t, "all", s.tcx(1, unicast(1, 2)), sent(0, 3, 4))
	}
}

// A mirror of a VLAN gets the frames that come in by the VLAN's ports, in the VLAN, and
// those that go out in it.
func TestSpanVLAN(t *testing.T) {
	for _, tt := range []struct {
		name          string
		in, out, port uint16 // port: port 0's mirror
		want          func(in, out int) []int
	}{
		{"in", 1, 0, 0, func(int, int) []int { return []int{4} }},
		{"out", 0, 1, 0, func(int, int) []int { return []int{4} }},
		{"both", 1, 1, 0, func(int, int) []int { return []int{4, 4} }},
		{"and a port", 1, 0, 1, func(int, int) []int { return []int{4} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vlans := new(VLANs)
			s := newBench(t, 5, func(c *Config, p []*Port) {
				c.Flags, c.VlanProto = uint32(BridgeVLANs), typeVLAN
				spanAt(c, p[4], 0)
				p[0].SpanIn = tt.port
				for i, vid := range []uint16{10, 10, 20, 20} {
					p[i].Pvid = vid
					slot := Slot(p[i].Id)
					row := &vlans[vid]
					row.Fid = vid
					for _, set := range []*PortSet{&row.Member, &row.Reach, &row.Untagged} {
						set[slot/64] |= 1 << (slot % 64)
					}
				}
				vlans[10].SpanIn, vlans[10].SpanOut = tt.in, tt.out
			})
			g, err := (&Bridge{store: &Store{}}).load(&s.cfg, Tables{VLANs: vlans})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(g.Close)
			s.gen = g
			if err := s.rack.do(s.moveIn); err != nil {
				t.Fatal(err)
			}
			s.at(benchNow)
			for port := range 4 {
				s.tcx(port, from(port))
			}
			for range 2 {
				expect(t, "in the VLAN", s.tcx(0, unicast(1, 0)), copied(sent(1), tt.want(0, 1)...))
				expect(t, "in the VLAN, back", s.tcx(1, unicast(0, 1)), copied(sent(0), tt.want(1, 0)...))
				expect(t, "in another", s.tcx(2, unicast(3, 2)), sent(3))
			}
			expect(t, "flood", s.tcx(0, from(0)), copied(sent(1), tt.want(0, 1)...))
			expect(t, "flood of another", s.tcx(2, from(2)), sent(3))
			// a frame that a port may not send in the VLAN does not belong to it
			other := packet{dst: broadcast, src: station(2)}.tagged(10).bytes()
			expect(t, "by a port that is not in it", s.tcx(2, other), dropped("vlan"))
		})
	}
}

// A copy that is too large for the span port is counted there; the frame itself is
// forwarded. A GSO packet is copied whole, if its segments fit.
func TestSpanMTU(t *testing.T) {
	r := ownRack(t, 3)
	r.setMTU(t, 2, 1000)
	s := newBenchOn(t, r, 3, func(c *Config, p []*Port) {
		spanAt(c, p[2], 0)
		c.SpanIn = 1
	})
	s.tcx(0, from(1))
	s.tcx(1, from(2))
	for _, tt := range []struct {
		what      string
		size      int
		gso       uint32
		tags      bool
		delivered bool
	}{
		{"fits", 1014, 0, false, true},
		{"too large", 1015, 0, false, false},
		{"fits with its tag", 1018, 0, true, true},
		{"segments fit", 3000, 500, false, true},
	} {
		p := packet{dst: station(2), src: station(1), size: tt.size}
		if tt.tags {
			p = p.tagged(5)
		}
		before := s.stats(2)
		err := s.rack.do(func() error {
			_, err := s.runContext(hookTCX, &skbContext{Ifindex: s.rack.near[0], GsoSize: tt.gso}, p.bytes())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		after := s.stats(2)
		frames, drops := after.TxFrames-before.TxFrames, after.Drops[kernelDropReasonDROP_MTU]-before.Drops[kernelDropReasonDROP_MTU]
		want := uint64(0)
		if tt.delivered {
			want = 1
			if octets := after.TxBytes - before.TxBytes; octets != uint64(tt.size) {
				t.Errorf("%s: %d bytes copied, want %d", tt.what, octets, tt.size)
			}
		}
		// an unknown VLAN floods, and the span port gets no part of the flood
		if frames != want || drops != 1-want {
			t.Errorf("%s: %d copies and %d too large, want %d and %d", tt.what, frames, drops, want, 1-want)
		}
	}
}
