// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"bascule/rule"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// portName returns the name of a port in the rules of these tests, by its number.
func portName(port int) string { return fmt.Sprint("p", port) }

// portOf returns the number of the port that a rule names.
func portOf(t fataler, r rule.Rule) (port int) {
	if _, err := fmt.Sscanf(r.Port, "p%d", &port); err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	return port
}

// A fataler is a test, or a check of rapid.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func parseRules(t fataler, text string) []rule.Rule {
	t.Helper()
	list, err := rule.ParseFile("test", strings.NewReader(text), "")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// setRules loads the bench's programs anew, with rules that replace its present ones.
// It must be the last change of a bench.
func (s *bench) setRules(t fataler, list []rule.Rule) {
	t.Helper()
	tables := Tables{Rules: []Rule{}}
	for _, r := range list {
		tables.Rules = append(tables.Rules, Rule{s.ids[portOf(t, r)], r})
	}
	flagRules(&s.cfg, tables.Rules)
	specialise(&s.cfg)
	b := &Bridge{store: &Store{Locked: underLock(s.t)}}
	gen, err := b.load(&s.cfg, tables)
	if err != nil {
		t.Fatal(err)
	}
	s.gen.Close()
	s.gen = gen
	if err := s.rack.do(s.moveIn); err != nil {
		t.Fatal(err)
	}
	s.at(benchNow)
}

// newRuleBench makes a bench with rules. Stations 0, 1 and 2 are static on the ports of
// their numbers, without a tag and in VLAN 10.
func newRuleBench(t testing.TB, list []rule.Rule) *bench {
	t.Helper()
	s := newBench(t, 4, allXDP, noLearning)
	s.setRules(t, list)
	t.Cleanup(func() { s.gen.Close() })
	s.know()
	return s
}

// noLearning makes XDP decide the first frame of a station, too.
func noLearning(_ *Config, ports []*Port) {
	for _, p := range ports {
		p.Flags &^= PortLearn
	}
}

func (s *bench) know() {
	for n := range 3 {
		for _, vlan := range []uint16{0, 10} {
			s.store(address{station(n), vlan}, spot{port: n, pin: fdbStatic})
		}
	}
	s.at(benchNow)
}

// hits returns the number of frames that each rule has matched, by index.
func (s *bench) hits(t fataler) []RuleStats {
	t.Helper()
	rules, err := readArray[kernelRule](s.gen.coll.Maps[kernelMapRules])
	if err != nil {
		t.Fatal(err)
	}
	m := s.gen.coll.Maps[kernelMapRuleCounters]
	// rules that are made at once have numbers without a gap
	list := make([]RuleStats, slices.IndexFunc(append(rules[1:], kernelRule{}), func(r kernelRule) bool { return r.Turn == 0 }))
	for i := range list {
		var perCPU []RuleStats
		if err := m.Lookup(uint32(i+1), &perCPU); err != nil {
			t.Fatal(err)
		}
		for _, c := range perCPU {
			list[i].Frames += c.Frames
			list[i].Bytes += c.Bytes
		}
	}
	return list
}

// An arpPacket is an ARP or RARP frame to be built.
type arpPacket struct {
	dst, src mac
	vlans    []uint16
	f        rule.ARPFields
	kind     uint16 // EtherType
	cut      int    // bytes that are missing at the end
}

const (
	typeRARP = 0x8035
)

func (p arpPacket) bytes() []byte {
	var b []byte
	b = append(append(b, p.dst[:]...), p.src[:]...)
	for _, vlan := range p.vlans {
		b = binary.BigEndian.AppendUint16(b, typeVLAN)
		b = binary.BigEndian.AppendUint16(b, vlan)
	}
	b = binary.BigEndian.AppendUint16(b, p.kind)
	b = binary.BigEndian.AppendUint16(b, p.f.Hardware)
	b = binary.BigEndian.AppendUint16(b, p.f.Protocol)
	b = append(b, p.f.HLen, p.f.PLen)
	b = binary.BigEndian.AppendUint16(b, p.f.Op)
	spa, tpa := p.f.SPA.As4(), p.f.TPA.As4()
	b = append(append(b, p.f.SHA[:]...), spa[:]...)
	b = append(append(b, p.f.THA[:]...), tpa[:]...)
	return b[:len(b)-p.cut]
}

// resolve is a request or reply from station src about station dst.
func resolve(dst, src int, kind, op uint16, tags ...uint16) arpPacket {
	return arpPacket{
		dst: station(dst), src: station(src), vlans: tags, kind: kind,
		f: rule.ARPFields{
			Hardware: 1, Protocol: 0x0800, HLen: 6, PLen: 4, Op: op,
			SHA: station(src), SPA: stationIP(src), THA: station(dst), TPA: stationIP(dst),
		},
	}
}

func stationIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

func TestRules(t *testing.T) {
	const a, b = "02:da:00:00:00:00", "02:da:00:00:00:01" // stations 0 and 1
	frame, blocked := unicast(1, 0), dropped("rule")
	request := resolve(1, 0, typeARP, 1)
	tests := []struct {
		name  string
		rules string
		frame []byte
		want  outcome
		hits  []uint64 // of the rules, by index
	}{
		{"in", "block in on p0", frame, blocked, []uint64{1}},
		{"in of another port", "block in on p1", frame, sent(1), []uint64{0}},
		{"out", "block out on p1", frame, blocked, []uint64{1}},
		{"out of another port", "block out on p0\nblock out on p2", frame, sent(1), []uint64{0, 0}},
		{"both ways", "pass on p0\npass on p1", frame, sent(1), []uint64{1, 1}},
		{"in comes before out", "block out on p1\nblock in on p0", frame, blocked, []uint64{0, 1}},
		{"source", "block in on p0 src " + a, frame, blocked, []uint64{1}},
		{"another source", "block in on p0 src " + b, frame, sent(1), []uint64{0}},
		{"destination", "block in on p0 dst " + b, frame, blocked, []uint64{1}},
		{"both addresses", "block in on p0 src " + a + " dst " + b, frame, blocked, []uint64{1}},
		{"addresses swapped", "block in on p0 src " + b + " dst " + a, frame, sent(1), []uint64{0}},
		{"first match passes", "pass in on p0 src " + a + "\nblock in on p0", frame, sent(1), []uint64{1, 0}},
		{"first match blocks", "block in on p0 dst " + b + "\npass in on p0 src " + a, frame, blocked, []uint64{1, 0}},
		{"a later mask has the first rule", "block in on p0 src " + b + "\npass in on p0 dst " + b + "\nblock in on p0 src " + a, frame, sent(1), []uint64{0, 1, 0}},
		{"all four masks", "block in on p0 src " + b + " dst " + b + "\nblock in on p0 src " + b + "\nblock in on p0 dst " + a + "\npass in on p0", frame, sent(1), []uint64{0, 0, 0, 1}},
		{"broadcast", "block out on p2", from(0), outcome{redirect, []int{1, 3}, []string{"rule"}}, []uint64{1}},
		{"broadcast to every port", "pass out on p1\npass out on p2", from(0), sent(1, 2, 3), []uint64{1, 1}},
		{"broadcast to no port", "block out on p1\nblock out on p2\nblock out on p3", from(0), dropped("rule", "rule", "rule"), []uint64{1, 1, 1}},
		{"tagged", "block in on p0 src " + a, packet{dst: station(1), src: station(0)}.tagged(10).bytes(), blocked, []uint64{1}},
		{"no ARP", "block in on p0 arp\nblock in on p0 rarp", frame, sent(1), []uint64{0, 0}},
		{"ARP", "block in on p0 arp", request.bytes(), blocked, []uint64{1}},
		{"ARP request", "block in on p0 arp reply\nblock in on p0 arp request", request.bytes(), blocked, []uint64{0, 1}},
		{"ARP going out", "block out on p1 arp spa 192.0.2.0", request.bytes(), blocked, []uint64{1}},
		{"ARP is a frame, too", "block in on p0 arp reply\nblock in on p0 src " + a, request.bytes(), blocked, []uint64{0, 1}},
		{"a plain rule before one for ARP", "pass in on p0 dst " + b + "\nblock in on p0 arp", request.bytes(), sent(1), []uint64{1, 0}},
		{"tpa", "block in on p0 arp tpa 192.0.2.7\nblock in on p0 arp tpa 192.0.2.1", request.bytes(), blocked, []uint64{0, 1}},
		{"all of ARP", "block in on p0 src " + a + " dst " + b + " arp request sha " + a + " spa 192.0.2.0 tha " + b + " tpa 192.0.2.1", request.bytes(), blocked, []uint64{1}},
		{"ARP behind a tag", "block in on p0 arp tpa 192.0.2.1", resolve(1, 0, typeARP, 1, 10).bytes(), blocked, []uint64{1}},
		{"ARP behind two tags", "block in on p0 arp tpa 192.0.2.1", resolve(1, 0, typeARP, 1, 10, 20).bytes(), blocked, []uint64{1}},
		{"RARP", "block in on p0 arp\nblock in on p0 rarp request", resolve(1, 0, typeRARP, 3).bytes(), blocked, []uint64{0, 1}},
		{"RARP reply", "block in on p0 rarp request\nblock in on p0 rarp reply", resolve(1, 0, typeRARP, 4).bytes(), blocked, []uint64{0, 1}},
		{"RARP's operation in ARP", "block in on p0 arp\nblock in on p0 rarp", resolve(1, 0, typeARP, 3).bytes(), sent(1), []uint64{0, 0}},
		{"ARP of IEEE 802", "block in on p0 arp spa 192.0.2.0", func() []byte { p := request; p.f.Hardware = 6; return p.bytes() }(), blocked, []uint64{1}},
		{"ARP cut off", "block in on p0 arp", func() []byte { p := request; p.cut = 1; return p.bytes() }(), sent(1), []uint64{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newRuleBench(t, parseRules(t, tt.rules))
			wantXDP := passed
			if tt.want.Verdict == redirect && len(tt.want.Out) == 1 {
				wantXDP = tt.want
			}
			check := func(times uint64) {
				t.Helper()
				for i, n := range s.hits(t) {
					if want := tt.hits[i] * times; n.Frames != want || n.Bytes != want*uint64(len(tt.frame)) {
						t.Errorf("rule %d has matched %d frames of %d bytes, want %d of %d each", i, n.Frames, n.Bytes, want, len(tt.frame))
					}
				}
			}
			seen := uint64(0)
			for range 2 { // the second meets the remembered decision on the first
				expect(t, "XDP", s.xdp(0, tt.frame), wantXDP)
				if wantXDP.Verdict == redirect {
					seen++
				}
				check(seen)
			}
			for range 2 {
				expect(t, "tcx", s.tcx(0, tt.frame), tt.want)
				seen++
				check(seen)
			}
		})
	}
}

// The remembered decision on a frame does not apply to another frame if rules examine
// its payload.
func TestRulesRemembered(t *testing.T) {
	s := newRuleBench(t, parseRules(t, "block in on p0 arp tpa 192.0.2.7"))
	good, bad := resolve(1, 0, typeARP, 1), resolve(1, 0, typeARP, 1)
	bad.f.TPA = stationIP(7)
	for range 2 {
		expect(t, "another frame", s.tcx(0, unicast(1, 0)), sent(1))
		expect(t, "ARP that passes", s.tcx(0, good.bytes()), sent(1))
		expect(t, "ARP that does not", s.tcx(0, bad.bytes()), dropped("rule"))
		expect(t, "ARP that passes, by XDP", s.xdp(0, good.bytes()), sent(1))
		expect(t, "ARP that does not, by XDP", s.xdp(0, bad.bytes()), passed)
	}
}

// A rule does not match a frame that is dropped before the rule is evaluated, whatever
// is remembered about frames between the same stations.
func TestRulesNotAsked(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("carrier lost %v", lost), func(t *testing.T) {
			r := ownRack(t, 4)
			s := newBenchOn(t, r, 4, noLearning, sourceGuard, func(_ *Config, p []*Port) { p[1].Backup = p[2].Id })
			s.setRules(t, parseRules(t, "pass in on p0\npass out on p1"))
			t.Cleanup(func() { s.gen.Close() })
			s.know()
			s.bind(0, 0, station(0), "192.0.2.1")
			packet := func(src string) []byte {
				return ether(station(1), station(0), typeIP4, ip4(src, "192.0.2.2", protoUDP, 0, udp(7, 7)))
			}
			count := func(what string, in, out uint64) {
				t.Helper()
				if h := s.hits(t); h[0].Frames != in || h[1].Frames != out {
					t.Errorf("%s: the rules have matched %d frames in, %d out, want %d and %d", what, h[0].Frames, h[1].Frames, in, out)
				}
			}
			expect(t, "a lie, anew", s.tcx(0, packet("192.0.2.3")), dropped("spoofed"))
			count("a lie, anew", 0, 0)
			expect(t, "the truth", s.tcx(0, packet("192.0.2.1")), sent(1))
			count("the truth", 1, 1)
			if lost {
				r.set(t, r.far[1], false)
			}
			expect(t, "a lie, remembered", s.tcx(0, packet("192.0.2.3")), dropped("spoofed"))
			count("a lie, remembered", 1, 1)
		})
	}
}

// A frame that its connection's state refuses has matched a rule on the way in, and has
// not reached the rules on the way out.
func TestRulesNotAskedPF(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	s.setRules(t, parseRules(t, "pass in on p0\npass out on p1"))
	t.Cleanup(func() { s.gen.Close() })
	s.set(kernelMapPfRules, uint32(0), keep())
	s.timeouts(testTimeouts)
	for port := range 3 {
		s.store(address{mac: station(port + 1)}, spot{port: port, pin: fdbStatic})
	}
	s.play(handshake(1000, 2000))
	var before []RuleStats
	count := func(what string, in, out uint64) {
		t.Helper()
		h := s.hits(t)
		if h[0].Frames-before[0].Frames != in || h[1].Frames-before[1].Frames != out {
			t.Errorf("%s: the rules have matched %d frames in, %d out, want %d and %d",
				what, h[0].Frames-before[0].Frames, h[1].Frames-before[1].Frames, in, out)
		}
		before = h
	}
	before = s.hits(t)
	above := []step{{web(ack, 1000+0x40000000, 2000, 10), "pf-state", [2]uint8{established, established}}}
	within := []step{{web(ack, 1000, 2000, 10), "", [2]uint8{established, established}}}
	s.later(1)
	s.play(above)
	count("above the window, anew", 1, 0)
	s.play(within)
	count("within it, anew", 1, 1)
	s.play(within)
	count("within it, remembered", 1, 1)
	s.play(above)
	count("above it, remembered", 1, 0)
}

// Few addresses, so that rules often match frames.
var (
	someMACs = []mac{station(0), station(1), station(2), {}}
	someIPs  = []netip.Addr{stationIP(0), stationIP(1), netip.IPv4Unspecified()}
)

// someRules are lists of rules of the ports 0 to 2.
func someRules() *rapid.Generator[[]rule.Rule] {
	return rapid.Custom(func(t *rapid.T) []rule.Rule {
		macOrAny := func(name string) *rule.MAC {
			if rapid.Bool().Draw(t, "any "+name) {
				return nil
			}
			m := rule.MAC(rapid.SampledFrom(someMACs).Draw(t, name))
			return &m
		}
		ipOrAny := func(name string) netip.Addr {
			if rapid.Bool().Draw(t, "any "+name) {
				return netip.Addr{}
			}
			return rapid.SampledFrom(someIPs).Draw(t, name)
		}
		one := rapid.Custom(func(*rapid.T) rule.Rule {
			r := rule.Rule{
				Action:    rapid.SampledFrom([]rule.Action{rule.Block, rule.Pass}).Draw(t, "action"),
				Direction: rapid.SampledFrom([]rule.Direction{rule.In, rule.Out, rule.In | rule.Out}).Draw(t, "direction"),
				Port:      portName(rapid.IntRange(0, 2).Draw(t, "port")),
				Src:       macOrAny("src"), Dst: macOrAny("dst"),
				Tag: rapid.SampledFrom([]string{"", "", "tagged"}).Draw(t, "tag"),
				ARP: rapid.SampledFrom([]rule.ARP{0, rule.OnlyARP, rule.OnlyARP, rule.OnlyRARP}).Draw(t, "arp"),
			}
			if r.ARP != 0 {
				r.Op = rule.Op(rapid.IntRange(0, 2).Draw(t, "operation"))
				r.SHA, r.SPA, r.THA, r.TPA = macOrAny("sha"), ipOrAny("spa"), macOrAny("tha"), ipOrAny("tpa")
			}
			return r
		})
		list := make([]rule.Rule, rapid.IntRange(1, 30).Draw(t, "rules"))
		for i := range list {
			list[i] = one.Draw(t, "rule")
		}
		return list
	})
}

// someFrames are frames of station 0, of ARP or not, to a station or to all.
func someFrames() *rapid.Generator[arpPacket] {
	return rapid.Custom(func(t *rapid.T) arpPacket {
		m, ip := rapid.SampledFrom(someMACs), rapid.SampledFrom(someIPs)
		p := arpPacket{
			dst:   rapid.SampledFrom([]mac{station(1), station(1), station(2), broadcast}).Draw(t, "dst"),
			src:   rapid.SampledFrom([]mac{station(0), station(0), station(9)}).Draw(t, "src"),
			kind:  rapid.SampledFrom([]uint16{typeARP, typeARP, typeRARP, typeTest}).Draw(t, "type"),
			vlans: rapid.SampledFrom([][]uint16{nil, nil, {10}, {10, 20}}).Draw(t, "tags"),
			f: rule.ARPFields{
				Hardware: 1, Protocol: 0x0800, HLen: 6, PLen: 4, Op: rapid.Uint16Range(0, 5).Draw(t, "operation"),
				SHA: m.Draw(t, "sha"), SPA: ip.Draw(t, "spa"), THA: m.Draw(t, "tha"), TPA: ip.Draw(t, "tpa"),
			},
		}
		switch rapid.IntRange(0, 20).Draw(t, "odd packet") {
		case 0:
			p.cut = rapid.IntRange(1, 28).Draw(t, "cut")
		case 1:
			p.f.Hardware = 6
		case 2:
			p.f.Protocol = 0x86dd
		case 3:
			p.f.HLen = 8
		case 4:
			p.f.PLen = 16
		case 5:
			p.f.Op |= 0x0100
		}
		return p
	})
}

// crossing returns the input of Match for a packet at a port.
func (p arpPacket) crossing(port int) rule.Frame {
	f := rule.Frame{Port: portName(port), Src: p.src, Dst: p.dst, Type: p.kind}
	if p.cut == 0 {
		f.ARP = &p.f
	}
	return f
}

// judge returns the expected outcome of a packet that comes in by port 0, and the rules
// that it matches.
func judge(list []rule.Rule, p arpPacket) (o outcome, matched []int) {
	blocks := func(dir rule.Direction, port int) bool {
		n := rule.Match(list, dir, p.crossing(port))
		if n < 0 {
			return false
		}
		matched = append(matched, n)
		return list[n].Action == rule.Block
	}
	if blocks(rule.In, 0) {
		return dropped("rule"), matched
	}
	o = sent()
	to := []int{1, 2, 3}
	for n := range 3 {
		if p.dst == station(n) {
			to = []int{n}
		}
	}
	for _, port := range to {
		if blocks(rule.Out, port) {
			o.Drops = append(o.Drops, "rule")
		} else {
			o.Out = append(o.Out, port)
		}
	}
	if o.Out == nil {
		o.Verdict = drop
	}
	return o, matched
}

// The datapath is compared with the model: random rules, and random frames that are put
// to both hooks.
func TestRulesAgree(t *testing.T) {
	s := newRuleBench(t, nil)
	rapid.Check(t, func(rt *rapid.T) {
		list := someRules().Draw(rt, "rules")
		s.setRules(rt, list)
		s.know()
		for _, p := range rapid.SliceOfN(someFrames(), 10, 10).Draw(rt, "frames") {
			want, matched := judge(list, p)
			for _, h := range []hook{hookXDP, hookTCX, hookTCX, hookXDP} {
				before := s.hits(rt)
				var got outcome
				if h == hookXDP {
					got = s.xdp(0, p.bytes())
				} else {
					got = s.tcx(0, p.bytes())
				}
				want, matched := want, matched
				if h == hookXDP && (want.Verdict == drop || len(want.Out) > 1 || p.dst == broadcast) {
					want, matched = passed, nil
				}
				var counted []int
				for i, n := range s.hits(rt) {
					for range n.Frames - before[i].Frames {
						counted = append(counted, i)
					}
				}
				slices.Sort(matched)
				if !slices.Equal(got.Out, want.Out) || !slices.Equal(got.Drops, want.Drops) || got.Verdict != want.Verdict ||
					!slices.Equal(counted, matched) {
					rt.Fatalf("%+v: %s by %s, counted by rules %d; want %s, %d of\n%s", p, got, h, counted, want, matched, list)
				}
			}
		}
	})
}

// manyRules are rules for frames that come in by port 0 from other stations than the
// bench's; the last rule blocks all other frames.
func manyRules(t testing.TB, n int) []rule.Rule {
	var text strings.Builder
	for i := range n - 1 {
		m := station(1000 + i)
		fmt.Fprintf(&text, "pass in on p0 src %s\n", rule.MAC(m))
	}
	text.WriteString("block in on p0\n")
	return parseRules(t, text.String())
}

// allMasks are rules of every possible form: 4 plain masks, 128 for ARP. Frames of the
// benchmarks match only the last one, which blocks.
func allMasks(t testing.TB) []rule.Rule {
	var text strings.Builder
	form := func(n, arp int, op string) {
		word := func(bit int, word, value string) {
			if n>>bit&1 != 0 {
				fmt.Fprintf(&text, " %s %s", word, value)
			}
		}
		mac, ip := fmt.Sprintf("02:00:00:00:%02x:%02x", arp, n), fmt.Sprintf("10.0.%d.%d", arp, n)
		text.WriteString("pass in on p0")
		word(0, "src", mac)
		word(1, "dst", mac)
		if arp != 0 {
			text.WriteString(" arp" + op)
			word(2, "sha", mac)
			word(3, "spa", ip)
			word(4, "tha", mac)
			word(5, "tpa", ip)
		}
		text.WriteString("\n")
	}
	for n := 1<<6 - 1; n >= 0; n-- {
		form(n, 1, " reply")
		if n != 0 {
			form(n, 2, "")
		}
	}
	for n := 1<<2 - 1; n > 0; n-- {
		form(n, 0, "")
	}
	text.WriteString("block in on p0\n")
	return parseRules(t, text.String())
}

// benchmarkRules puts frames of many stations, which the last rule blocks. Blocked
// frames are not remembered, so every frame is looked up.
func benchmarkRules(b *testing.B, list []rule.Rule, frame func(n int) []byte) {
	s := newRuleBench(b, list)
	const stations = 1000
	frames := make([][]byte, stations)
	for i := range frames {
		frames[i] = frame(100000 + i)
	}
	each := uint32(max(b.N/stations, 1))
	b.ResetTimer()
	for i := range min(b.N, stations) {
		opts := ebpf.RunOptions{Data: frames[i], Context: &skbContext{Ifindex: s.rack.near[0]}, Repeat: each}
		if code, err := s.gen.program(hookTCX).Run(&opts); err != nil || hookTCX.verdict(code) != drop {
			b.Fatalf("%v %d", err, code)
		}
	}
}

func plainFrame(n int) []byte { return unicast(1, n) }

func arpFrame(n int) []byte {
	p := resolve(1, n, typeARP, 1)
	p.f.SPA = netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	return p.bytes()
}

func BenchmarkRules0(b *testing.B) { // the cost of dropping a frame, without rules
	s := newBench(b, 2)
	opts := ebpf.RunOptions{Data: packet{dst: reserved(0), src: station(1)}.bytes(), Context: &skbContext{Ifindex: s.rack.near[0]}, Repeat: uint32(b.N)}
	b.ResetTimer()
	if _, err := s.gen.program(hookTCX).Run(&opts); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkRules10(b *testing.B)   { benchmarkRules(b, manyRules(b, 10), plainFrame) }
func BenchmarkRules1000(b *testing.B) { benchmarkRules(b, manyRules(b, 1000), plainFrame) }

func BenchmarkRulesMost(b *testing.B) { benchmarkRules(b, manyRules(b, MaxRules), plainFrame) }

// The largest number of masks: the worst case, for a frame that is not ARP and for one
// that is.
func BenchmarkRulesAllMasks(b *testing.B)    { benchmarkRules(b, allMasks(b), plainFrame) }
func BenchmarkRulesAllMasksARP(b *testing.B) { benchmarkRules(b, allMasks(b), arpFrame) }

// The rules of the worst case have all masks.
func TestRulesAllMasks(t *testing.T) {
	list := []Rule{}
	for _, r := range allMasks(t) {
		list = append(list, Rule{1, r})
	}
	c, err := compileRules(list, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := c.lists[2]
	if int(l.Arp) != len(c.lists)-int(l.ArpAt) || l.Arp < rule.MaxARPMasks-1 || l.Plain[rule.MaxPlainMasks-1].First == 0 {
		t.Errorf("%d masks for ARP, plain ones %v", l.Arp, l.Plain)
	}
	s := newRuleBench(t, allMasks(t))
	expect(t, "a frame", s.tcx(0, unicast(1, 0)), dropped("rule"))
	expect(t, "ARP", s.tcx(0, resolve(1, 0, typeARP, 1).bytes()), dropped("rule"))
}

// A key is the same in the datapath and in package rule.
func TestRuleKey(t *testing.T) {
	if have, want := unsafe.Sizeof(kernelRuleKey{}), unsafe.Sizeof(rule.Key{}); have != want {
		t.Errorf("a key has %d bytes, want %d", have, want)
	}
	if n := len(kernelRuleList{}.Plain); n != rule.MaxPlainMasks {
		t.Errorf("room for %d plain masks, want %d", n, rule.MaxPlainMasks)
	}
	longest := "block out on PORT src 02:00:00:00:00:01 dst 02:00:00:00:00:01 tag " + strings.Repeat("t", rule.MaxTag) +
		" rarp request sha 02:00:00:00:00:01 spa 255.255.255.255 tha 02:00:00:00:00:01 tpa 255.255.255.255"
	if _, err := compileRules([]Rule{{1, parseRules(t, longest)[0]}}, nil); err != nil {
		t.Error(err)
	}
	if _, err := compileRules(make([]Rule, MaxRules+1), nil); err == nil {
		t.Error("more rules than there can be")
	}
}

// commitRules replaces a bridge's rules.
func (s *shelf) commitRules(b *Bridge, text string) {
	s.t.Helper()
	list := []Rule{}
	ports := Ports(&b.Config)
	for _, r := range parseRules(s.t, text) {
		list = append(list, Rule{ports[portOf(s.t, r)].Id, r})
	}
	s.do(func() error { return b.Commit(&b.Config, Tables{Rules: list}, keepAll) })
}

// ruled returns a bridge's rules, with the number of frames that each has matched.
func (s *shelf) ruled(b *Bridge) (list []string) {
	s.t.Helper()
	rules, err := b.Rules()
	if err != nil {
		s.t.Fatal(err)
	}
	stats, err := b.RuleStats()
	if err != nil {
		s.t.Fatal(err)
	}
	for i, r := range rules {
		r.Rule.Port = PortName(PortAt(&b.Config, r.Port))
		list = append(list, fmt.Sprintf("%s: %d", r.Rule, stats[i].Frames))
	}
	return list
}

// hit counts frames for a rule as the datapath does.
func (s *shelf) hit(b *Bridge, number uint32, frames uint64) {
	s.t.Helper()
	m, err := b.openTable(kernelMapRuleCounters)
	if err != nil {
		s.t.Fatal(err)
	}
	defer m.Close()
	perCPU := make([]RuleStats, ebpf.MustPossibleCPU())
	perCPU[0].Frames = frames
	if err := m.Put(number, perCPU); err != nil {
		s.t.Fatal(err)
	}
}

// Rules stay the same until they are changed, and counters stay with their rules; both
// go with their port.
func TestRulesKept(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	want := func(what string, flags []PortFlags, rules ...string) {
		t.Helper()
		b = s.open("br0")
		if diff := gocmp.Diff(rules, s.ruled(b)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		for i, p := range Ports(&b.Config) {
			if got := p.Flags & (PortRulesIn | PortRulesOut); got != flags[i] {
				t.Errorf("%s: port %d has flags %#x, want %#x", what, i, got, flags[i])
			}
		}
		if on, any := kernelFeature(b.Config.Features)&kernelFeatureFEATURE_RULES != 0, len(rules) > 0; on != any {
			t.Errorf("%s: the feature is on: %v", what, on)
		}
	}
	want("at first", []PortFlags{0, 0, 0})
	s.commitRules(b, "block in on p0 arp spa 192.0.2.1\npass on p1\nblock out on p2 tag x\npass on p1")
	flags := []PortFlags{PortRulesIn, PortRulesIn | PortRulesOut, PortRulesOut}
	want("given", flags, "block in on near0 arp spa 192.0.2.1: 0", "pass on near1: 0", "block out on near2 tag x: 0", "pass on near1: 0")
	for n := range uint32(4) {
		s.hit(b, n+1, uint64(n+1))
	}
	if err := s.commit(b, func(_ *Config, p []*Port) { p[0].Flags |= PortHairpin }); err != nil {
		t.Fatal(err)
	}
	want("another change", flags, "block in on near0 arp spa 192.0.2.1: 1", "pass on near1: 2", "block out on near2 tag x: 3", "pass on near1: 4")
	s.commitRules(b, "block out on p2\npass on p1\npass on p1\npass on p1\nblock in on p0 arp spa 192.0.2.1")
	want("other rules", flags, "block out on near2: 0", "pass on near1: 2", "pass on near1: 4", "pass on near1: 0", "block in on near0 arp spa 192.0.2.1: 1")
	// another port in the slot of one that has left
	if err := s.commit(b, func(c *Config, p []*Port) { *p[1] = Port{} }); err != nil {
		t.Fatal(err)
	}
	flags = []PortFlags{PortRulesIn, PortRulesOut}
	want("a port has left", flags, "block out on near2: 0", "block in on near0 arp spa 192.0.2.1: 1")
	if err := s.commit(b, func(c *Config, _ []*Port) {
		p := NewPort(c, "near1")
		p.Ifindex, p.Flags = s.rack.near[1], PortLearn|floods
	}); err != nil {
		t.Fatal(err)
	}
	want("another has come", slices.Insert(flags, 1, 0), "block out on near2: 0", "block in on near0 arp spa 192.0.2.1: 1")
	s.commitRules(b, "")
	want("none", []PortFlags{0, 0, 0})
}
