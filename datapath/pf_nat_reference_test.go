// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// natInterface returns the addresses of the host's interface, for rules.
func natInterface(string, []string) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128")}
}

// natBench is a bridge with a station at port 0 and the host at port 1, em0, with rules that
// translate.
func natBench(tb testing.TB, rs *pf.Ruleset) *bench { return natBenchFor(tb, rs, 200) }

// natBenchFor is a natBench with the given limit of states.
func natBenchFor(tb testing.TB, rs *pf.Ruleset, states uint32) *bench {
	program, err := pf.Compile(pf.Input{
		Main: rs, Ports: []pf.CompilePort{{Slot: 1, Name: "st0"}, {Slot: 2, Name: "em0"}},
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) { return natInterface(name, modes), nil },
		Table:     func(string, string) (int, error) { return 0, nil },
		Entries: func(int) (entries []pf.TableEntry, err error) {
			for _, t := range rs.Tables {
				entries = append(entries, t.Entries...)
			}
			return entries, nil
		},
	})
	if err != nil {
		tb.Fatalf("%v\n%s", err, rs)
	}
	s := newBenchWith(tb, sharedRack(tb), Tables{PF: &PF{Program: program, StatesMax: states, NodesMax: 100, TableEntries: 100}}, 2,
		func(c *Config, p []*Port) {
			c.Flags |= uint32(BridgePF)
			p[1].Notes |= PortHost
			p[1].Facts |= portToHost
		})
	s.retags = true
	s.learn(0, 0)
	s.learn(1, 1)
	return s
}

// pools are the addresses that natWords chooses pools from.
var pools = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("2001:db8::/126")}

// natWords draws rules that translate as TestTranslationLaws of pf/reference does, with the words
// that the datapath supports.
func natWords(t *rapid.T) string {
	one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	text := "set skip on st0\ntable <p> { 192.0.2.1, 192.0.2.8/31, 192.0.2.12/30, !192.0.2.13, 2001:db8::1, 2001:db8::4/127 }\n"
	for range rapid.IntRange(1, 4).Draw(t, "rules") {
		family, address := " inet", "192.0.2.1"
		from, to := one("from", "", " from 10/8", " from 10.0.0.0/31"), one("to", "", "", " to 1.1.1.1", " to 192.0.2.0/24")
		pool := one("pool", address, "192.0.2.0/30", "{ 192.0.2.2, 192.0.2.1 }", "(em0)", "10.0.0.0/30", "{ 192.0.2.1 weight 2, 192.0.2.8/31 weight 1, 192.0.2.12/30 weight 3 }", "<p>")
		if one("family", "4", "4", "6") == "6" {
			family, address = " inet6", "2001:db8::1"
			from, to = one("from6", "", " from fd00::/64", " from fd00::/127"), one("to6", "", " to fd01::1")
			pool = one("pool6", address, "2001:db8::/126", "{ 2001:db8::2, 2001:db8::1 }", "(em0)", "<p>")
		}
		proto := one("proto", "", "", " proto udp", " proto gre")
		method := one("method", "", "", " random", " source-hash abc", " source-hash", " round-robin", " least-states", " round-robin sticky-address", " least-states sticky-address")
		if strings.Contains(pool, "weight") || pool == "<p>" {
			// these do not depend on chance
			method = one("method of several", " round-robin", " least-states", " round-robin sticky-address", " least-states sticky-address")
		}
		if pool == "192.0.2.0/30" || pool == "10.0.0.0/30" || pool == "2001:db8::/126" {
			method = one("method of a network", " bitmask", method)
		}
		conditions := family + proto + from + to
		ports := ""
		switch one("kind", "nat", "nat", "rdr", "both", "binat", "pass") {
		case "nat":
			text += "match " + one("direction", "out", "out", "in") + conditions + " nat-to " + pool + one("ports", "", " port 7:9", " port 7") + method + one("endpoint", "", " endpoint-independent") + "\n"
		case "rdr":
			if proto == " proto udp" {
				ports = one("rdr ports", "", " port 80", " port 80:81")
			}
			if strings.HasPrefix(method, " random") || strings.HasPrefix(method, " source-hash") {
				method = ""
			}
			text += "match " + one("direction", "in", "in", "out") + conditions + " rdr-to " + pool + ports + method + "\n"
		case "both":
			text += "match in" + conditions + " rdr-to " + address + " nat-to " + pool + " static-port\n"
		case "binat":
			if family == " inet" {
				text += "match from " + one("inside", "10.0.0.1 binat-to 192.0.2.9", "10.0.0.0/30 binat-to 192.0.2.16/30") + "\n"
			}
		case "pass":
			text += "pass " + one("direction", "out", "in") + conditions + " nat-to " + pool + method + "\n"
		}
	}
	return text + one("last", "pass", "pass", "pass proto udp", "pass no state") + "\n"
}

// natPacket draws a packet that matches such rules.
func natPacket(t *rapid.T) *reference.Packet {
	one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	p := &reference.Packet{Family: pf.Inet, Proto: reference.UDP, Direction: pf.Out, Port: reference.Port{Name: "em0", Groups: []string{"em"}}}
	addrs := []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "1.1.1.1", "1.1.1.2", "192.0.2.1", "192.0.2.9", "192.0.2.17"}
	if one("packet's family", "4", "4", "6") == "6" {
		p.Family, addrs = pf.Inet6, []string{"fd00::", "fd00::1", "fd00::2", "fd01::1", "fd01::2", "2001:db8::1", "2001:db8::2"}
	}
	if one("packet's direction", "in", "out", "out") == "in" {
		p.Direction = pf.In
	}
	// a host does not send to itself by an interface
	from := rapid.IntRange(0, len(addrs)-1).Draw(t, "source")
	to := (from + rapid.IntRange(1, len(addrs)-1).Draw(t, "destination")) % len(addrs)
	p.Src, p.Dst = netip.MustParseAddr(addrs[from]), netip.MustParseAddr(addrs[to])
	port := func() uint16 { return rapid.SampledFrom([]uint16{7, 8, 80, 50001}).Draw(t, "port") }
	switch one("protocol", "udp", "udp", "icmp", "gre") {
	case "udp":
		p.SrcPort, p.DstPort = port(), port()
	case "icmp":
		// A state passes echo requests and replies either way. So no host here sends requests with
		// an identifier of requests that it receives.
		p.EchoID, p.Proto, p.ICMPType = port(), reference.ICMP, 8
		if p.Family == pf.Inet6 {
			p.Proto, p.ICMPType = reference.ICMPv6, 128
		}
	default:
		p.Proto = 47
	}
	return p
}

// natFrame makes the frame of a packet at the host's interface, with right checksums.
func natFrame(p *reference.Packet) []byte {
	dst, src := station(1), station(0)
	if p.Direction == pf.Out {
		dst, src = src, dst
	}
	f := append(dst[:], src[:]...)
	typ := []byte{0x08, 0x00}
	if p.Family == pf.Inet6 {
		typ = []byte{0x86, 0xdd}
	}
	return append(append(f, typ...), natPacketBytes(p, 0)...)
}

func natPacketBytes(p *reference.Packet, depth int) []byte {
	load := make([]byte, 24)
	check := -1
	binary.BigEndian.PutUint16(load, p.SrcPort)
	binary.BigEndian.PutUint16(load[2:], p.DstPort)
	copy(load[8:], "a load of words.")
	switch p.Proto {
	case reference.UDP:
		binary.BigEndian.PutUint16(load[4:], uint16(len(load)))
		check = 6
	case reference.TCP:
		clear(load[4:20])
		load[12], load[13] = 5<<4, p.Flags
		check = 16
	case reference.ICMP, reference.ICMPv6:
		load[0], load[1] = p.ICMPType, p.ICMPCode
		binary.BigEndian.PutUint16(load[2:], 0)
		binary.BigEndian.PutUint16(load[4:], p.EchoID)
		binary.BigEndian.PutUint16(load[6:], 1)
		check = 2
		if p.Quoted != nil {
			clear(load[4:8])
			load = append(load[:8], natPacketBytes(p.Quoted, depth+1)...)
		}
	}
	pseudo := append(p.Src.AsSlice(), p.Dst.AsSlice()...)
	pseudo = append(pseudo, 0, p.Proto, byte(len(load)>>8), byte(len(load)))
	if p.Proto == reference.ICMP {
		pseudo = nil
	}
	if check >= 0 {
		clear(load[check : check+2])
		binary.BigEndian.PutUint16(load[check:], ^internetSum(slices.Concat(pseudo, load)))
	}
	if p.Family == pf.Inet {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, p.Proto
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(load)))
		copy(h[12:], p.Src.AsSlice())
		copy(h[16:], p.Dst.AsSlice())
		binary.BigEndian.PutUint16(h[10:], ^internetSum(h))
		return append(h, load...)
	}
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, p.Proto, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(load)))
	copy(h[8:], p.Src.AsSlice())
	copy(h[24:], p.Dst.AsSlice())
	return append(h, load...)
}

// natRead parses a frame of natFrame's form, and returns what is wrong with its checksums.
func natRead(f []byte) (p reference.Packet, wrong string) { return natReadPacket(f[14:], 0) }

func natReadPacket(b []byte, depth int) (p reference.Packet, wrong string) {
	header := 20
	if b[0]>>4 == 4 {
		p.Family, p.Proto = pf.Inet, b[9]
		p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		if internetSum(b[:20]) != 0xffff {
			wrong = "IPv4's checksum"
		}
	} else {
		header, p.Family, p.Proto = 40, pf.Inet6, b[6]
		p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	}
	load := b[header:]
	pseudo := append(p.Src.AsSlice(), p.Dst.AsSlice()...)
	pseudo = append(pseudo, 0, p.Proto, byte(len(load)>>8), byte(len(load)))
	switch p.Proto {
	case reference.UDP, reference.TCP:
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(load), binary.BigEndian.Uint16(load[2:])
	case reference.ICMP, reference.ICMPv6:
		p.ICMPType, p.ICMPCode = load[0], load[1]
		if p.Proto == reference.ICMP {
			pseudo = nil
		}
		if p.ICMPType == 11 || p.ICMPType == 5 || p.ICMPType == 3 || depth == 0 && p.Proto == reference.ICMPv6 && p.ICMPType < 128 {
			q, bad := natReadPacket(load[8:], depth+1)
			p.Quoted = &q
			if bad != "" {
				wrong = "quoted: " + bad
			}
		} else {
			p.EchoID = binary.BigEndian.Uint16(load[4:])
		}
	default:
		return p, wrong
	}
	if wrong == "" && internetSum(slices.Concat(pseudo, load)) != 0xffff {
		wrong = fmt.Sprintf("the checksum of protocol %d", p.Proto)
	}
	return p, wrong
}

// clashes reports whether another state has a key of this one, even for packets in the other
// direction. In the reference that is no clash, but a key of the datapath is for both directions.
func clashes(rt *reference.Router, s *reference.State) bool {
	has := func(o *reference.State, t reference.Tuple) bool {
		return t == o.Before || t == o.After || t == o.Before.Reverse() || t == o.After.Reverse()
	}
	return slices.ContainsFunc(rt.States(), func(o *reference.State) bool { return o != s && (has(o, s.Before) || has(o, s.After)) })
}

// The datapath translates as the reference does, for all rules: the translated packets, and the
// drops of packets that cannot be translated. The reference gets the datapath's random choices.
//
// The rules and packets are the same each time unless a seed is given: the reference cannot get all
// random choices.
func TestNATIsReference(t *testing.T) {
	needRoot(t)
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == "0" {
		if err := flag.Set("rapid.seed", "5"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set("rapid.seed", "0") }()
	}
	translated, refused, errors := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		text := natWords(r)
		rs, err := pf.Parse("pf.conf", []byte(text), pf.Source{})
		if err != nil {
			r.Fatalf("%v\n%s", err, text)
		}
		s := natBench(t, rs)
		defer s.gen.Close()
		rt := &reference.Router{Evaluator: &reference.Evaluator{Rules: rs, Addresses: natInterface}}
		var sent reference.Packet
		place := func(n uint64) uint64 { // index of the address that the datapath has chosen in a pool
			a := sent.Src // rdr-to chooses nothing at random here
			// in lists and among the interface's addresses, the even one is the first
			return uint64(a.AsSlice()[a.BitLen()/8-1]) % n
		}
		rt.Roll = func(n uint64) uint64 {
			port := uint64(sent.SrcPort)
			switch n {
			case 15535:
				return (port - 50001) % n
			case 65535:
				return (uint64(sent.EchoID) - 1) % n
			case 3:
				return (port - 7) % n
			}
			return place(n)
		}
		rt.Hash = func([16]byte, netip.Addr) uint64 { return place(4 * 3 * 5) }
		var last *reference.Packet
		var trail []string
		for range rapid.IntRange(1, 60).Draw(r, "packets") {
			p := natPacket(r)
			if last != nil {
				switch rapid.IntRange(0, 5).Draw(r, "next") {
				case 0: // the answer
					q := *last
					p = &q
					p.Src, p.Dst, p.SrcPort, p.DstPort, p.Direction = p.Dst, p.Src, p.DstPort, p.SrcPort, pf.In+pf.Out-p.Direction
					p.ICMPType = map[uint8]uint8{8: 0, 0: 8, 128: 129, 129: 128}[p.ICMPType]
				case 1: // an error about it
					q := *last
					p = &reference.Packet{Direction: pf.In + pf.Out - q.Direction, Port: q.Port, Family: q.Family, Proto: reference.ICMP, ICMPType: rapid.SampledFrom([]uint8{11, 5}).Draw(r, "error"), Src: q.Dst, Dst: q.Src, Quoted: &q}
					if q.Family == pf.Inet6 {
						p.Proto, p.ICMPType = reference.ICMPv6, 3
					}
					if rapid.Bool().Draw(r, "from elsewhere") {
						p.Src = netip.MustParseAddr(map[pf.Family]string{pf.Inet: "7.7.7.7", pf.Inet6: "fd07::7"}[q.Family])
					}
				}
			}
			frame := natFrame(p)
			o := s.tcx(int(p.Direction-pf.In), frame)
			got, wrong := natRead(s.out)
			got.Direction, got.Port = p.Direction, p.Port
			if p.Quoted != nil && got.Quoted != nil {
				got.Quoted.Direction, got.Quoted.Port = p.Quoted.Direction, p.Quoted.Port
			}
			sent = got
			known := len(rt.States())
			j := rt.Judge(*p)
			known -= len(rt.States()) // 0 if no state is new
			what := func(p *reference.Packet) string {
				text := fmt.Sprintf("%d: %v:%d > %v:%d #%d", p.Proto, p.Src, p.SrcPort, p.Dst, p.DstPort, p.EchoID)
				if q := p.Quoted; q != nil {
					text += fmt.Sprintf(" about %d: %v:%d > %v:%d #%d", q.Proto, q.Src, q.SrcPort, q.Dst, q.DstPort, q.EchoID)
				}
				return text
			}
			if j.State != nil && j.State.After.Src == j.State.After.Dst {
				is := j.State.After
				if is.Proto != reference.TCP && is.Proto != reference.UDP || is.SrcPort == is.DstPort {
					// A connection of an address to itself: answers would have the same key as
					// questions.
					rt.End(j.State)
					j.Translate = true
				} else if slices.Contains(o.Drops, "pf-translate") {
					// the datapath may have chosen the port that the packet is sent to
					rt.End(j.State)
					continue
				}
			}
			if p.Quoted != nil && j.State != nil && j.State.Before.Kind == p.ICMPType {
				// An error about an unknown connection gets no state here.
				rt.End(j.State)
				if passes := len(o.Drops) == 0; passes != (j.State.Before == j.State.After) {
					r.Fatalf("%s\n%+v passes: %v, and is translated: %v", text, *p, passes, j.State.Before != j.State.After)
				}
				continue
			}
			trail = append(trail, fmt.Sprintf("%v %s: %v, the reference has %s", p.Direction, what(p), o.Drops, what(&j.Packet)))
			if known == 0 && j.State != nil && slices.Contains(o.Drops, "pf-translate") {
				r.Fatalf("%s\n%s\nis of a known connection", text, strings.Join(trail, "\n"))
			}
			if j.Action == pf.Pass && j.State == nil && slices.Contains(o.Drops, "pf-translate") {
				// a dropped packet does not show the port, which may have been translated
				continue
			}
			if j.State != nil && slices.Contains(o.Drops, "pf-translate") && clashes(rt, j.State) {
				rt.End(j.State)
				continue
			}
			if chance := strings.Contains(text, "source-hash") || strings.Contains(text, "random"); chance && j.State != nil && slices.Contains(o.Drops, "pf-translate") &&
				(strings.Contains(text, "source-hash") || slices.ContainsFunc(pools, func(pool netip.Prefix) bool { return pool.Contains(p.Dst) || pool.Contains(j.Packet.Dst) })) {
				// the datapath may have chosen an address that is used, or the packet's own
				// destination
				rt.End(j.State)
				continue
			}
			want := what(&j.Packet)
			switch {
			case j.Translate:
				want = "pf-translate"
				refused++
			case j.Action != pf.Pass:
				want = "pf"
			}
			is := what(&got)
			if len(o.Drops) > 0 {
				is = o.Drops[0]
			} else if wrong != "" {
				r.Fatalf("%s\n%s becomes %s: %s is wrong\n% x", text, what(p), is, wrong, s.out)
			}
			if want == "pf" && p.Quoted != nil && is == "pf-state" {
				want = is
			}
			trail = append(trail, fmt.Sprintf("%v %s becomes %s", p.Direction, what(p), is))
			if is != want && j.State != nil && len(o.Drops) == 0 && clashes(rt, j.State) {
				// the datapath chooses another address or port; round-robin differs from here on
				return
			}
			if is != want {
				r.Fatalf("%s\n%s\n%v %s becomes %s, want %s", text, strings.Join(trail, "\n"), p.Direction, what(p), is, want)
			}
			if len(o.Drops) == 0 {
				if is != what(p) {
					translated++
					if p.Quoted != nil {
						errors++
					}
				}
				if p.Quoted == nil {
					l := got
					l.ICMPType = p.ICMPType
					last = &l
				}
			}
		}
	})
	t.Logf("%d packets translated, %d of them errors, %d could not be", translated, errors, refused)
	if translated == 0 || refused == 0 || errors == 0 {
		t.Error("not everything was compared")
	}
}
