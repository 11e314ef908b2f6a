// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/pftest"
	"bascule/pf/reference"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The kernel finds the same rules as trying them one by one does: a million cases by
// `make fuzz`.
func TestPFIsReference(t *testing.T) {
	needRoot(t)
	rapid.Check(t, func(r *rapid.T) { pfIsReference(t, r) })
}

// pfPackets are tried on each ruleset.
var pfPackets = flag.Int("pf.packets", 100, "packets that are tried on each ruleset of TestPFIsReference")

func pfIsReference(tb testing.TB, t *rapid.T) {
	rs := pftest.Rulesets().Draw(t, "ruleset")
	steady(rs)
	anchors := reference.Loaded(rs)
	all := map[string]*pf.Ruleset{}
	bodies(all, "", rs)
	for at, loaded := range anchors {
		loaded.Ether = nil
		inside := map[string]*pf.Ruleset{}
		bodies(inside, at, loaded)
		for path, rs := range inside {
			if all[path] != nil {
				t.Skip("an anchor has two rulesets")
			}
			all[path] = rs
		}
	}
	s, program := newRulesetBench(tb, t, rs, anchors, all)
	defer s.gen.Close()
	s.retags = true // by modulate state, and when the switch answers
	evaluator := &reference.Evaluator{Rules: rs, Anchors: all, Addresses: pfAddresses}
	if len(rs.StateLimiters) > 0 {
		// the limiters called little, with the id 1, are exhausted
		evaluator.Exhausted = func(_ string, l pf.Limiter, _ *reference.Packet) bool { return l.Name == "little" || l.ID == 1 }
		sources := s.gen.coll.Maps[kernelMapPfSources]
		for k, n := range map[kernelPfSourceKey]kernelPfLimited{
			limiterKey(1, false): {States: rs.StateLimiters[0].Limit},
			limiterKey(1, true):  {Sources: rs.SourceLimiters[0].Entries},
		} {
			if err := sources.Put(&k, &n); err != nil {
				t.Fatal(err)
			}
		}
	}

	packets := pftest.Packets(append(values(anchors), rs)...)
	for id := range *pfPackets {
		p := packets.Draw(t, "packet")
		p.Tag = ""
		from := p.Port
		if p.Direction == pf.Out {
			from = p.ReceivedOn
		}
		to := p.Port
		if p.Direction == pf.In || from.Name == to.Name {
			to = pftest.Ports()[(portIndex(from.Name)+1)%len(pftest.Ports())]
		}
		if portIndex(from.Name) < 0 || portIndex(to.Name) < 0 || !plainProto(p.Proto) {
			continue
		}
		frame := pfFrame(p, portIndex(from.Name), portIndex(to.Name), id)

		got, sent := s.judged(portIndex(from.Name), frame)
		if got.Blocked == "pf-fragment" {
			continue // not a fragment of a proper packet: neither the rules nor the reference are evaluated
		}
		for side, n := range got.Rules {
			if n != 0 { // an anchor that is called twice has its rules twice
				got.Rules[side] = number(program, program.Source[n-1].Rule)
			}
		}
		want := pfJudged{}
		p.Direction, p.Port, p.ReceivedOn = pf.In, from, from
		switch {
		case !p.Normalize():
			if !skipped(rs, from) || !skipped(rs, to) {
				want.Blocked = "pf-normalize"
			}
		case !skipped(rs, from):
			want.judge(0, evaluator.Evaluate(p), program)
		}
		if want.Blocked == "" && !want.limited && !skipped(rs, to) && !want.answered(p, program) {
			next := *p
			next.Direction, next.Port, next.Tag = pf.Out, to, want.tag
			want.judge(1, evaluator.Evaluate(&next), program)
		}
		if got.Blocked == "" && sent && !want.answered(p, program) {
			changed := reference.Join(want.scrub[0], want.scrub[1])
			if diff := cmp.Diff(ipOf(frame).scrubbed(changed), ipOf(s.out).known(changed)); diff != "" {
				t.Fatalf("%+v\nfrom %s to %s, frame % x, sent % x\n(-reference +kernel):\n%s\n%s", *p, from.Name, to.Name, frame, s.out, diff, rs)
			}
		}
		if want.limited && sent {
			t.Fatalf("%+v\nfrom %s to %s is sent, and a limiter of its rule is exhausted\n%s", *p, from.Name, to.Name, rs)
		}
		want.tag, want.scrub, want.limited = "", [2]pf.Scrub{}, false
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(pfJudged{})); diff != "" {
			t.Fatalf("%+v\nfrom %s to %s, frame % x\n(-reference +kernel):\n%s\n%s", *p, from.Name, to.Name, frame, diff, rs)
		}
	}
}

// pfJudged is the rules' decision on a packet on its way in and out.
type pfJudged struct {
	Rules   [2]int // numbers + 1, 0 for none
	Blocked string // the reason of the drop
	limited bool   // by a limiter: the drop has the reason of other limits
	tag     string // on the way between
	scrub   [2]pf.Scrub
}

// pfHeader has the fields that scrub and set tos may change in a packet.
type pfHeader struct {
	TTL, TOS uint8
	Place    uint16 // fragment offset and flags
	ID       uint16
	MSS      uint16
	Sum      uint16 // sum of IPv4's header, including its checksum
}

// ipOf parses a frame of pfFrame.
func ipOf(frame []byte) (h pfHeader) {
	if binary.BigEndian.Uint16(frame[12:]) == typeVLAN {
		frame = frame[etherTag:]
	}
	ip := frame[etherHeader:]
	next, upper := ip[6], 40
	if ip[0]>>4 == 4 {
		upper = int(ip[0]&15) * 4
		h = pfHeader{TTL: ip[8], TOS: ip[1], Place: binary.BigEndian.Uint16(ip[6:]), ID: binary.BigEndian.Uint16(ip[4:]), Sum: internetSum(ip[:upper])}
		next = ip[9]
	} else {
		h = pfHeader{TTL: ip[7], TOS: ip[0]<<4 | ip[1]>>4}
		for next == 0 || next == 44 || next == 60 {
			if next == 44 {
				h.Place = binary.BigEndian.Uint16(ip[upper+2:]) &^ 7
			}
			next, upper = ip[upper], upper+8
		}
	}
	if next == reference.TCP && h.Place&0x1fff == 0 && ip[upper+12]>>4 == 6 {
		h.MSS = binary.BigEndian.Uint16(ip[upper+22:])
	}
	return h
}

func internetSum(b []byte) (sum uint16) {
	for i := 0; i < len(b); i += 2 {
		n := uint32(sum) + uint32(binary.BigEndian.Uint16(b[i:]))
		sum = uint16(n + n>>16)
	}
	return sum
}

// scrubbed returns the header after scrub (pf_scrub() of sys/net/pf_norm.c).
func (h pfHeader) scrubbed(s pf.Scrub) pfHeader {
	h.TTL = max(h.TTL, s.MinTTL)
	if s.SetTOS {
		h.TOS = s.TOS | h.TOS&3
	}
	if s.NoDF && h.Sum != 0 {
		h.Place &^= 0x4000
	}
	if s.MaxMSS != 0 && h.MSS != 0 {
		h.MSS = min(h.MSS, s.MaxMSS)
	}
	return h.known(s)
}

// known returns the header without its random parts.
func (h pfHeader) known(s pf.Scrub) pfHeader {
	if s.RandomID && h.Sum != 0 && h.Place&^0x4000 == 0 {
		h.ID = 0
	}
	return h
}

// answered reports whether the switch makes the packet's handshake: the rules on the
// way out are then evaluated for its own SYN, which is later.
func (j *pfJudged) answered(p *reference.Packet, program *pf.Program) bool {
	const tcp, syn, ack = 6, 0x02, 0x10
	return j.Rules[0] != 0 && program.Rules[j.Rules[0]-1].Flags&pf.RuleSynproxy != 0 &&
		p.Proto == tcp && p.Fragment == reference.Whole && p.Flags&(syn|ack) == syn
}

func (j *pfJudged) judge(side int, r reference.Result, program *pf.Program) {
	j.tag, j.scrub[side] = r.Tag, r.Scrub
	if r.Rule != nil {
		j.Rules[side] = number(program, r.Rule)
	}
	switch {
	case r.Limited:
		j.limited = true
	case r.IPOption:
		j.Blocked = "pf-options"
	case r.Action == pf.Block:
		j.Blocked = "pf"
	}
}

// number returns the first number of a rule, with 1 added; 0 if it has none.
func number(program *pf.Program, r *pf.Rule) int {
	return slices.IndexFunc(program.Source, func(ref pf.RuleRef) bool { return ref.Rule == r }) + 1
}

// bodies adds the ruleset at a path and the rulesets between its braces.
func bodies(to map[string]*pf.Ruleset, at string, rs *pf.Ruleset) {
	to[at] = rs
	for i, r := range rs.Rules {
		if r.Anchor == nil || r.Anchor.Body == nil {
			continue
		}
		name := r.Anchor.Name
		if name == "" {
			name = fmt.Sprint("_", i)
		}
		bodies(to, path.Join(at, name), r.Anchor.Body)
	}
}

func values(m map[string]*pf.Ruleset) []*pf.Ruleset {
	var all []*pf.Ruleset
	for _, rs := range m {
		all = append(all, rs)
	}
	return all
}

// steady removes randomness from rules, and limits that the frames of a test would
// reach.
func steady(rs *pf.Ruleset) {
	rs.Ether = nil
	for i := range rs.Rules {
		r := &rs.Rules[i]
		r.Probability = 0
		if r.Anchor != nil && r.Anchor.Body != nil {
			steady(r.Anchor.Body)
		}
	}
	for _, l := range rs.Loads {
		steady(l.Ruleset)
	}
}

func portIndex(name string) int {
	return slices.IndexFunc(pftest.Ports(), func(p reference.Port) bool { return p.Name == name })
}

func skipped(rs *pf.Ruleset, port reference.Port) bool {
	return slices.ContainsFunc(rs.Options.Skip, func(i pf.Interface) bool {
		return (i.Name == port.Name || i.Name == "any" || slices.Contains(port.Groups, i.Name)) != i.Not
	})
}

func pfAddresses(name string, modes []string) []netip.Prefix {
	if name != "em0" {
		return nil
	}
	if slices.Contains(modes, "network") {
		return []netip.Prefix{netip.MustParsePrefix("10.0.0.254/24"), netip.MustParsePrefix("2001:db8::fe/64")}
	}
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.254/32"), netip.MustParsePrefix("2001:db8::fe/128")}
}

// plainProto reports whether the number stands for a protocol, not for an extension
// header of IPv6.
func plainProto(n uint8) bool { return !slices.Contains([]uint8{0, 43, 44, 51, 59, 60}, n) }

// newRulesetBench loads a ruleset into a bridge with pftest's ports.
func newRulesetBench(tb testing.TB, t *rapid.T, rs *pf.Ruleset, anchors, all map[string]*pf.Ruleset) (*bench, *pf.Program) {
	var fill []TableFill
	numbers := map[string]int{}
	entries := map[string][]pf.TableEntry{}
	for at, rs := range all {
		for _, table := range rs.Tables {
			entries[path.Join(at, table.Name)] = table.Entries
		}
	}
	input := pf.Input{
		Main: rs, Anchors: anchors,
		Table: func(anchor, name string) (int, error) {
			at := path.Join(anchor, name)
			if _, ok := entries[at]; !ok {
				at = name
			}
			if _, ok := numbers[at]; !ok {
				numbers[at] = len(numbers)
				fill = append(fill, TableFill{Table: numbers[at], Entries: entries[at]})
			}
			return numbers[at], nil
		},
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) { return pfAddresses(name, modes), nil },
	}
	ports := pftest.Ports()
	for i, p := range ports {
		input.Ports = append(input.Ports, pf.CompilePort{Slot: uint16(i + 1), Name: p.Name, Groups: p.Groups})
	}
	program, err := pf.Compile(input)
	if err != nil {
		if !strings.Contains(err.Error(), "call each other") && !strings.Contains(err.Error(), "calls of anchors") {
			t.Fatal(err)
		}
		t.Skip("an anchor calls itself: the reference has no bottom")
	}
	if len(program.Rules) == 0 {
		t.Skip("without rules pf is not in the way")
	}
	s := newBenchWith(tb, sharedRack(tb), Tables{PF: &PF{Program: program, StatesMax: 100, NodesMax: 100, TableEntries: 1000, Fill: fill}}, len(ports),
		func(c *Config, _ []*Port) { c.Flags |= uint32(BridgePF) })
	for i := range ports {
		s.learn(i, i)
	}
	return s, program
}

// judged puts a frame into the switch at a port and returns pf's decision, and whether
// the frame was sent.
func (s *bench) judged(port int, frame []byte) (pfJudged, bool) {
	s.t.Helper()
	if err := s.rack.do(func() error {
		_, err := s.gen.control(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH})
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	// no packet belongs to an earlier one: no fragment before it is remembered
	fragments := s.gen.coll.Maps[kernelMapPfFragments]
	if err := eachOf(fragments, func(keys []kernelPfFragmentKey, _ []kernelPfFragment) error {
		_, err := fragments.BatchDelete(keys, nil)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.packets(func(p *kernelPfPacket) { *p = kernelPfPacket{} })
	o := s.tcx(port, frame)
	perCPU := s.packets(nil)
	var j pfJudged
	for _, p := range perCPU {
		if p.Family != 0 {
			j.Rules = [2]int{int(p.Rule[0]), int(p.Rule[1])}
		}
	}
	for _, reason := range o.Drops {
		switch reason {
		case "no-member", "pf-limit", "pf-synproxy": // later, and not by rules
		default:
			j.Blocked = reason
		}
	}
	return j, len(o.Out) > 0
}

// pfFrame makes the frame of a packet, from the station at port from to the station at
// port to. The id makes each fragment belong to a packet of its own.
func pfFrame(p *reference.Packet, from, to, id int) []byte {
	dst, src := station(to), station(from)
	f := append(dst[:], src[:]...)
	if p.Prio != 0 {
		f = binary.BigEndian.AppendUint16(f, typeVLAN)
		f = binary.BigEndian.AppendUint16(f, uint16(p.Prio)<<13)
	}
	transport := pfTransport(p)
	if p.Family == pf.Inet {
		f = append(f, 0x08, 0x00)
		var options []byte
		if p.RouterAlert {
			options = append(options, 148, 4, 0, 0)
		}
		if p.Options {
			options = append(options, 7, 7, 4, 0, 0, 0, 0, 0)
		}
		fragment := uint16(id&1) << 14 // DF or not
		switch p.Fragment {
		case reference.FirstFragment:
			fragment = 0x2000
		case reference.LaterFragment:
			fragment = 100
		}
		h := make([]byte, 20, 40)
		h[0] = 0x40 | byte(5+len(options)/4)
		h[1] = p.TOS
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(options)+len(transport)))
		binary.BigEndian.PutUint16(h[4:], uint16(id))
		binary.BigEndian.PutUint16(h[6:], fragment)
		h[8], h[9] = 64, p.Proto
		copy(h[12:], p.Src.AsSlice())
		copy(h[16:], p.Dst.AsSlice())
		h = append(h, options...)
		binary.BigEndian.PutUint16(h[10:], ^internetSum(h))
		f = append(append(f, h...), transport...)
	} else {
		f = append(f, 0x86, 0xdd)
		next := p.Proto
		var extensions []byte
		if p.Fragment != reference.Whole {
			h := []byte{next, 0, 0, 1, 0, 0, byte(id >> 8), byte(id)}
			if p.Fragment == reference.LaterFragment {
				h[2], h[3] = 1, 0
			}
			extensions, next = append(h, extensions...), 44
		}
		if p.Options {
			extensions, next = append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, extensions...), 60
		}
		if p.RouterAlert {
			extensions, next = append([]byte{next, 0, 5, 2, 0, 0, 1, 0}, extensions...), 0
		}
		h := make([]byte, 40)
		h[0], h[1] = 0x60|p.TOS>>4, p.TOS<<4
		binary.BigEndian.PutUint16(h[4:], uint16(len(extensions)+len(transport)))
		h[6], h[7] = next, 64
		copy(h[8:], p.Src.AsSlice())
		copy(h[24:], p.Dst.AsSlice())
		f = append(append(append(f, h...), extensions...), transport...)
	}
	for len(f) < smallest {
		f = append(f, 0)
	}
	return f
}

// pfTransport makes the bytes behind the IP header; a later fragment has any bytes.
func pfTransport(p *reference.Packet) []byte {
	b := make([]byte, 64)
	switch {
	case p.Fragment == reference.LaterFragment:
	case p.Proto == reference.TCP:
		binary.BigEndian.PutUint16(b, p.SrcPort)
		binary.BigEndian.PutUint16(b[2:], p.DstPort)
		b[12], b[13] = 6<<4, p.Flags
		copy(b[20:], []byte{2, 4, 1460 >> 8, 1460 & 0xff})
	case p.Proto == reference.UDP:
		binary.BigEndian.PutUint16(b, p.SrcPort)
		binary.BigEndian.PutUint16(b[2:], p.DstPort)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	case p.Proto == reference.ICMP && p.Family == pf.Inet || p.Proto == reference.ICMPv6 && p.Family == pf.Inet6:
		b[0], b[1] = p.ICMPType, p.ICMPCode
		// the packet that an error quotes: one that this switch has never seen
		if p.Family == pf.Inet {
			b[8], b[11], b[17] = 0x45, 28, 17
			copy(b[20:], []byte{203, 0, 113, 1, 203, 0, 113, 2})
		} else {
			b[8], b[13], b[14] = 0x60, 8, 17
			b[16], b[32] = 0x20, 0x20
		}
	}
	return b
}
