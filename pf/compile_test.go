// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"bytes"
	"fmt"
	"maps"
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

// compilePorts returns pftest's ports, in slots with gaps between them.
func compilePorts() ([]pf.CompilePort, map[string]uint16) {
	var ports []pf.CompilePort
	slots := map[string]uint16{}
	for i, p := range pftest.Ports() {
		slots[p.Name] = uint16(3*i + 1)
		ports = append(ports, pf.CompilePort{Slot: uint16(3*i + 1), Name: p.Name, Groups: p.Groups})
	}
	return ports, slots
}

// tables assigns numbers to tables at their first use.
type tables struct {
	entries map[string][]pf.TableEntry // by path
	numbers map[string]int
	list    [][]pf.TableEntry
}

func newTables(anchors map[string]*pf.Ruleset) *tables {
	t := &tables{entries: map[string][]pf.TableEntry{}, numbers: map[string]int{}}
	for at, rs := range anchors {
		for _, table := range rs.Tables {
			t.entries[path.Join(at, table.Name)] = table.Entries
		}
	}
	return t
}

func (t *tables) number(anchor, name string) (int, error) {
	at := path.Join(anchor, name)
	if _, ok := t.entries[at]; !ok {
		at = name
	}
	n, ok := t.numbers[at]
	if !ok {
		n = len(t.list)
		t.numbers[at] = n
		t.list = append(t.list, t.entries[at])
	}
	return n, nil
}

// bodies adds the rulesets between braces by their paths.
func bodies(to map[string]*pf.Ruleset, at string, rs *pf.Ruleset) {
	to[at] = rs
	for i := range rs.Rules {
		if a := rs.Rules[i].Anchor; a != nil && a.Body != nil {
			name := a.Name
			if name == "" {
				name = fmt.Sprint("_", i)
			}
			bodies(to, path.Join(at, name), a.Body)
		}
	}
}

func dynamicAddresses(name string, modes []string) []netip.Prefix {
	prefix, other := netip.MustParsePrefix("10.0.0.254/24"), netip.MustParsePrefix("2001:db8::fe/64")
	if name != "em0" {
		if len(modes) > 0 { // nested networks, and one twice
			return []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/24"),
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/24")}
		}
		return nil
	}
	if slices.Contains(modes, "network") {
		return []netip.Prefix{prefix, other}
	}
	return []netip.Prefix{netip.PrefixFrom(prefix.Addr(), 32), netip.PrefixFrom(other.Addr(), 128)}
}

// TestCompileIsReference compares the results of compiled programs with the
// results of trying the rules one by one.
func TestCompileIsReference(t *testing.T) {
	rapid.Check(t, compileIsReference)
}

func FuzzCompile(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(compileIsReference))
}

func compileIsReference(t *rapid.T) {
	main := pftest.Rulesets().Draw(t, "main")
	all := map[string]*pf.Ruleset{}
	bodies(all, "", main)
	loaded := map[string]*pf.Ruleset{}
	load := func(at string, rs *pf.Ruleset) {
		rs.Ether = nil
		loaded[at] = rs
		inside := map[string]*pf.Ruleset{}
		bodies(inside, at, rs)
		for path, rs := range inside {
			if all[path] != nil { // the path has two rulesets
				t.Skip()
			}
			all[path] = rs
		}
	}
	for at, rs := range reference.Loaded(main) {
		load(at, rs)
	}
	for _, at := range []string{"ftp", "wild", "wild/a", "wild/b", "ftp/wild", "deep/in"} {
		if all[at] == nil && rapid.Bool().Draw(t, at) {
			load(at, pftest.Anchors(main).Draw(t, "anchor "+at))
		}
	}
	for at := range loaded { // and no ruleset that replaces a body
		if all[at] != loaded[at] {
			t.Skip()
		}
	}

	c, err := compile(main, loaded)
	if err != nil {
		if strings.Contains(err.Error(), "call each other") || strings.Contains(err.Error(), "calls of anchors") {
			t.Skip() // the reference would recurse for ever
		}
		t.Fatal(err)
	}
	list := []*pf.Ruleset{main}
	for _, at := range slices.Sorted(maps.Keys(loaded)) {
		list = append(list, loaded[at])
	}
	for _, p := range rapid.SliceOfN(pftest.Packets(list...), 1, 20).Draw(t, "packets") {
		c.drawn = float64(rapid.IntRange(0, 99).Draw(t, "drawn")) / 100
		if diff := c.compare(p); diff != "" {
			t.Fatal(diff)
		}
	}
}

// compiled is a ruleset in both forms: a program to walk, and the reference.
type compiled struct {
	walker
	reference.Evaluator
	drawn float64
}

func compile(main *pf.Ruleset, loaded map[string]*pf.Ruleset) (*compiled, error) {
	all := map[string]*pf.Ruleset{}
	bodies(all, "", main)
	for at, rs := range loaded {
		bodies(all, at, rs)
	}
	tables := newTables(all)
	ports, slots := compilePorts()
	prog, err := pf.Compile(pf.Input{
		Main: main, Anchors: loaded, Ports: ports,
		Table: tables.number,
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) {
			return dynamicAddresses(name, modes), nil
		},
	})
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(at string, _ *pf.Ruleset) bool { // anchors that cannot be called
		return at == "" || strings.HasPrefix(path.Base(at), "_")
	})
	var c compiled
	draw := func(*pf.Rule) float64 { return c.drawn }
	c.walker = walker{Program: prog, slots: slots, tables: tables.list, draw: draw}
	c.Evaluator = reference.Evaluator{Rules: main, Anchors: all, Addresses: dynamicAddresses, Draw: draw, Tables: tables.entries}
	return &c, nil
}

// compare returns the difference of the two results for a packet, "" for
// none.
func (c *compiled) compare(p *reference.Packet) string {
	main := c.Evaluator.Rules
	got := c.walk(p)
	if slices.ContainsFunc(main.Options.Skip, func(i pf.Interface) bool {
		return (i.Name == p.Port.Name || slices.Contains(p.Port.Groups, i.Name)) != i.Not
	}) {
		if got.rule != -1 || got.matches != nil {
			return fmt.Sprintf("%+v: found %+v where pf is skipped", *p, got)
		}
		return ""
	}
	want := c.Evaluate(p)
	var rule *pf.Rule
	if got.rule >= 0 {
		rule = c.Source[got.rule].Rule
	}
	var matches []*pf.Rule
	for _, n := range got.matches {
		matches = append(matches, c.Source[n].Rule)
	}
	if rule == want.Rule && slices.Equal(matches, want.Matches) && got.tag == tag(want.Tag) {
		return ""
	}
	return fmt.Sprintf("%+v:\nfound %v, matches %v, tag %#x\nwant  %v, matches %v, tag %q\nof\n%v",
		*p, rule, matches, got.tag, want.Rule, want.Matches, want.Tag, main)
}

// TestCompileCases compares the two in cases that random rules seldom reach.
func TestCompileCases(t *testing.T) {
	for _, rules := range []string{
		"",
		"block",
		"set skip on vm",
		"set skip on em0\nblock in",
		// fragments and what surrounds them
		"pass no state\nanchor proto tcp to port 22 {\nblock\n}",
		"block\nanchor proto tcp to port 22 {\npass no state\n}",
		"block\nanchor proto tcp flags S/SA {\nanchor {\npass no state\nblock proto tcp to port 23\n}\n}",
		"anchor proto tcp to port 22 tag A {\nmatch tag B\n}\npass no state",
		"pass tag B\nanchor proto tcp to port 22 tagged A {\nblock\n}",
		"block fragment\nmatch tos 0x10",
		"block fragment tos 0x10",
		// comparisons of ports
		"block proto tcp to port 21 >< 23",
		"block proto tcp to port 21 <> 23",
		"block proto tcp to port 22:53",
		"block proto { tcp udp } to port != 22",
		"block proto udp from port > 22 to port <= 22",
		"block proto udp from port < 22 to port >= 53",
		// ICMP
		"pass",
		"pass keep state (sloppy)",
		"pass inet proto icmp icmp-type { 0 8 code 1 }\nblock inet6 proto icmp6 icmp6-type { 129 200 }",
		"block inet proto icmp icmp-type unreach code 3",
		// addresses
		"block to 2001:db8::1",
		"block from ! 10.0.0.1",
		"block inet from 0.0.0.0/0\nmatch inet6 to ::/0",
		"block inet from ! 0.0.0.0/0\nmatch inet6 to ! ::/0",
		"block from 10.0.0.0 - 10.0.0.2\nmatch from ! 9.255.255.255 - 192.0.2.0",
		"block from { 10.0.0.0/8 ! 10.0.0.0/24 10.0.0.1 }",
		"block from (em0)\nmatch to ! (em0:network)\nmatch from (em1)\nmatch from ! (em1)",
		"block from (em1:network)\nmatch to ! (em1:network)",
		"anchor out received-on em0 {\nblock\n}\nanchor received-on em prio 3 {\nmatch\n}",
		"anchor from 10.0.0.0/8 {\nblock from ! 10.0.0.1\nmatch from 192.0.2.1\n}",
		"anchor from ! 10.0.0.0/24 {\nanchor from ! 192.0.2.0/24 {\nmatch\n}\n}",
		"block from no-route\nmatch to ! no-route\nmatch from urpf-failed\nmatch from ! urpf-failed",
		"table <t> { 10.0.0.0/8 !10.0.0.1 }\nmatch from <t>\nmatch from ! <t>\nanchor to <t> {\nblock\n}\nanchor to ! <t> {\nblock proto tcp\n}",
		// ports of the bridge
		"block on em\nmatch in on ! em0\nmatch out on any\nmatch received-on em0",
		"anchor in on em {\nblock on em0\nmatch out on em0\n}",
		// the order
		"anchor quick {\nmatch\n}\nblock",
		"anchor quick {\nblock\n}\npass",
		"anchor quick {\nanchor {\nblock proto tcp\n}\nmatch\n}\npass",
		"anchor quick {\nanchor quick {\nblock\n}\npass\n}\nmatch",
		"anchor {\nblock quick proto tcp\nmatch quick proto udp\n}\npass",
		"anchor tag A {\nmatch\n}\nblock tagged A",
		"match tag A\nanchor tagged A tag B {\nmatch tagged B\n}\nblock ! tagged B",
		"block once\npass",
		"anchor \"a\" {\nblock\n}\npass\nanchor \"/a\"",
		"anchor \"a\" {\nanchor \"c\" {\nblock proto tcp\n}\nanchor \"b\" {\nmatch\n}\n}\npass\nanchor \"a/*\" quick\nmatch",
	} {
		t.Run(rules, func(t *testing.T) {
			main, err := pf.Parse("pf.conf", []byte(rules+"\n"), pf.Source{})
			if err != nil {
				t.Fatal(err)
			}
			c, err := compile(main, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkProgram(t, c.Program)
			for _, p := range packets() {
				if diff := c.compare(p); diff != "" {
					t.Fatal(diff)
				}
			}
		})
	}
}

// checkProgram finds errors that no walk would notice.
func checkProgram(t *testing.T, p *pf.Program) {
	t.Helper()
	for i, n := range p.Networks {
		if i > 0 && bytes.Compare(append(p.Networks[i-1].Address[:], p.Networks[i-1].Bits), append(n.Address[:], n.Bits)) >= 0 {
			t.Errorf("network %v/%d is behind %v/%d", n.Address, n.Bits, p.Networks[i-1].Address, p.Networks[i-1].Bits)
		}
	}
	for i, r := range p.Rules {
		if int(r.End) <= i || int(r.End) > len(p.Rules) {
			t.Errorf("rule %d of %d ends before %d", i, len(p.Rules), r.End)
		}
	}
	for cell, set := range p.Cells {
		if at := int(set) - p.SetsAt(); set != pf.Skip && (at < 0 || at+2*int(p.Groups) > len(p.Sets)) {
			t.Fatalf("cell %d is at %d of %d", cell, at, len(p.Sets))
		}
	}
	if len(p.Source) != len(p.Rules) || len(p.Cells) != pf.Cells {
		t.Errorf("%d sources of %d rules, %d cells", len(p.Source), len(p.Rules), len(p.Cells))
	}
}

// TestCompileHandMade compiles rulesets that the parser does not return.
func TestCompileHandMade(t *testing.T) {
	v4 := pf.Host{Kind: pf.Prefix, Addr: netip.MustParseAddr("10.0.0.1"), Bits: 32}
	v6 := pf.Host{Kind: pf.Range, Addr: netip.MustParseAddr("2001:db8::"), Last: netip.MustParseAddr("2001:db8::1")}
	for _, rule := range []pf.Rule{
		{Family: pf.Inet, From: pf.Endpoint{Host: v4}, To: pf.Endpoint{Host: v6}},
		{Family: pf.Inet, From: pf.Endpoint{Host: pf.Host{Kind: pf.Prefix, Addr: netip.IPv4Unspecified()}}},
		{Family: pf.Inet6, To: pf.Endpoint{Not: true, Host: pf.Host{Kind: pf.Prefix, Addr: netip.IPv6Unspecified()}}},
		{From: pf.Endpoint{Not: true}},
		{To: pf.Endpoint{Host: pf.Host{Kind: pf.URPFFailed}}},
		{To: pf.Endpoint{Not: true, Host: pf.Host{Kind: pf.URPFFailed}}},
		{ReceivedOn: pf.Interface{Name: "em", Not: true}},
		{On: pf.Interface{Name: "any", Not: true}},
	} {
		rule.Action = pf.Block
		c, err := compile(&pf.Ruleset{Rules: []pf.Rule{rule}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkProgram(t, c.Program)
		for _, p := range packets() {
			if diff := c.compare(p); diff != "" {
				t.Fatal(diff)
			}
		}
	}
}

// TestCompileMany compiles more rules than fit into one group.
func TestCompileMany(t *testing.T) {
	const n = 3 * pf.GroupRules
	rs := manyRules(n, true)
	for i := 1; i < n; i += 2 {
		rs.Rules[i].Action = pf.Match // so that the result shows which of them were found
	}
	c, err := compile(rs, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkProgram(t, c.Program)
	if c.Groups != 3 {
		t.Errorf("%d groups, want 3", c.Groups)
	}
	for i := 0; i < n; i += 500 {
		for _, port := range []uint16{rs.Rules[i].To.Port.Lo, 1} {
			p := &reference.Packet{Direction: pf.In, Port: pftest.Ports()[0], Family: pf.Inet, Proto: reference.TCP,
				Src: rs.Rules[i].From.Host.Addr, Dst: netip.MustParseAddr("192.0.2.1"), DstPort: port, Flags: pf.SYN}
			if diff := c.compare(p); diff != "" {
				t.Fatal(diff)
			}
		}
	}
}

// TestCompileFields checks what the datapath gets of rules apart from their
// conditions.
func TestCompileFields(t *testing.T) {
	type fields struct {
		rule    string
		want    pf.CompiledRule // without what all rules have: End, ICMP4, ICMP6, Profile
		profile pf.Profile
	}
	defaults := pf.Profile{Timeout: pf.DefaultTimeouts()}
	timeouts := func(prio [2]uint8, set map[pf.TimeoutName]uint32) pf.Profile {
		p := defaults
		p.Priority = prio
		for name, value := range set {
			p.Timeout[name] = value
		}
		return p
	}
	const (
		keep  = pf.RuleKeep
		block = uint32(pf.Block)
	)
	for _, test := range []fields{
		{"pass no state", pf.CompiledRule{}, defaults},
		{"pass", pf.CompiledRule{Flags: keep}, defaults},
		{"match tag A", pf.CompiledRule{Action: uint32(pf.Match), Tag: 0xc40bf6cc}, defaults}, // FNV-1a of A
		{"block ! tagged A", pf.CompiledRule{Action: block, Tagged: 0xc40bf6cc, Flags: pf.RuleNotTagged}, defaults},
		{"block log (all, matches, to pflog7)", pf.CompiledRule{Action: block, Flags: pf.RuleLog | pf.RuleLogAll | pf.RuleLogMatches, LogTo: 7}, defaults},
		{"block drop", pf.CompiledRule{Action: block}, defaults},
		{"set block-policy return\nblock", pf.CompiledRule{Action: block, Answer: pf.AnswerBoth, ICMP4: [2]uint8{3, 3}, ICMP6: [2]uint8{1, 4}}, defaults},
		{"block return-rst (ttl 9) proto tcp", pf.CompiledRule{Action: block, Answer: pf.AnswerRST, TTL: 9, ICMP4: [2]uint8{3, 3}, ICMP6: [2]uint8{1, 4}}, defaults},
		{"block return-icmp (net-unr, admin-unr)", pf.CompiledRule{Action: block, Answer: pf.AnswerICMP, ICMP4: [2]uint8{3, 0}, ICMP6: [2]uint8{1, 1}}, defaults},
		{"pass probability 25%", pf.CompiledRule{Flags: keep, Probability: 1 << 30}, defaults},
		{"pass prio 0 allow-opts once", pf.CompiledRule{Flags: keep | pf.RuleAllowOpts | pf.RuleOnce, Priority: 1}, defaults},
		{"pass received-on em", pf.CompiledRule{Flags: keep, Received: 1}, defaults},
		{"pass set prio (2, 5)", pf.CompiledRule{Flags: keep}, timeouts([2]uint8{3, 6}, nil)},
		{"pass scrub (no-df random-id min-ttl 5 max-mss 1440) set tos 0x10", pf.CompiledRule{Flags: keep,
			Scrub: pf.CompiledScrub{MaxMSS: 1440, MinTTL: 5, TOS: 0x10, Flags: pf.ScrubNoDF | pf.ScrubRandomID | pf.ScrubSetTOS}}, defaults},
		{"pass scrub (reassemble tcp)", pf.CompiledRule{Flags: keep, Scrub: pf.CompiledScrub{Flags: pf.ScrubReassemble}}, defaults},
		{"pass set tos 0", pf.CompiledRule{Flags: keep, Scrub: pf.CompiledScrub{Flags: pf.ScrubSetTOS}}, defaults},
		{"pass keep state (max 5, tcp.established 7)", pf.CompiledRule{Flags: keep, Max: 5}, timeouts([2]uint8{}, map[pf.TimeoutName]uint32{pf.TCPEstablished: 7})},
		{"pass proto tcp modulate state (if-bound)", pf.CompiledRule{Flags: keep | pf.RuleModulate | pf.RuleIfBound}, defaults},
		{"set state-policy if-bound\npass proto tcp synproxy state", pf.CompiledRule{Flags: keep | pf.RuleSynproxy | pf.RuleIfBound}, defaults},
		{"set state-policy if-bound\npass keep state (floating, sloppy)", pf.CompiledRule{Flags: keep | pf.RuleSloppy}, defaults},
		{"table <t> persist\npass keep state (max-src-nodes 2, max-src-states 3, max-src-conn 4, max-src-conn-rate 5/6, overload <t> flush global)",
			pf.CompiledRule{Flags: keep | pf.RuleTrackRule | pf.RuleFlush | pf.RuleFlushGlobal, MaxSrcNodes: 2, MaxSrcStates: 3, MaxSrcConn: 4, MaxSrcRate: 5, MaxSrcSecs: 6, Overload: 1},
			timeouts([2]uint8{}, map[pf.TimeoutName]uint32{pf.SrcTrack: 6})},
		{"pass keep state (source-track global)", pf.CompiledRule{Flags: keep | pf.RuleTrackGlobal}, defaults},
		{"table <t> persist\ntable <u> persist\npass from <t> to ! <u>", pf.CompiledRule{Flags: keep | pf.RuleNotDstTable, SrcTable: 1, DstTable: 2}, defaults},
		{"pass from urpf-failed to ! no-route", pf.CompiledRule{Flags: keep | pf.RuleSrcURPFFailed | pf.RuleDstNoRoute | pf.RuleNotDstTable}, defaults},
		{"set timeout udp.first 8\nset optimization aggressive\npass", pf.CompiledRule{Flags: keep}, timeouts([2]uint8{}, map[pf.TimeoutName]uint32{
			pf.TCPFirst: 30, pf.TCPOpening: 5, pf.TCPEstablished: 18000, pf.TCPClosing: 60, pf.TCPFinwait: 30, pf.TCPClosed: 30, pf.TCPTsdiff: 10, pf.UDPFirst: 8})},
		{"set limit states 1000\npass", pf.CompiledRule{Flags: keep}, timeouts([2]uint8{}, map[pf.TimeoutName]uint32{pf.AdaptiveStart: 600, pf.AdaptiveEnd: 1200})},
	} {
		t.Run(test.rule, func(t *testing.T) {
			main, err := pf.Parse("pf.conf", []byte(test.rule+"\n"), pf.Source{})
			if err != nil {
				t.Fatal(err)
			}
			c, err := compile(main, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Program.Rules) != 1 {
				t.Fatalf("%d rules, want 1", len(c.Program.Rules))
			}
			got := c.Program.Rules[0]
			test.want.End = 1
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if got := c.Profiles[got.Profile]; got != test.profile {
				t.Errorf("profile %+v\nwant    %+v", got, test.profile)
			}
		})
	}
}

// TestCompileAnchors checks the numbers and ends of rules in anchors.
func TestCompileAnchors(t *testing.T) {
	main, err := pf.Parse("pf.conf", []byte(`set block-policy return
pass
anchor "a" quick tagged X {
	block
	anchor "b"
	match
}
anchor "none" tagged Y
anchor { block quick }
`), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := pf.Parse("b", []byte("pass\nblock\n"), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compile(main, map[string]*pf.Ruleset{"a/b": loaded})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, r := range c.Program.Rules {
		got = append(got, fmt.Sprintf("%d: %v %q@%d answer %d end %d", i, pf.Action(r.Action), c.Program.Anchors[r.Anchor], r.Nr, r.Answer, r.End))
	}
	want := []string{
		`0: 0 ""@0 answer 0 end 7`,
		`1: 3 ""@1 answer 0 end 6`, // an anchor: it jumps over its rules
		`2: 1 "a"@0 answer 3 end 6`,
		`3: 0 "a/b"@0 answer 0 end 6`,
		`4: 1 "a/b"@1 answer 0 end 6`, // the anchor's own file has no block-policy
		`5: 2 "a"@2 answer 0 end 7`,
		`6: 1 "_3"@0 answer 3 end 7`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if source := c.Source[4]; source.Anchor != "a/b" || source.Index != 1 || source.Rule != &loaded.Rules[1] {
		t.Errorf("rule 4 is of %+v", source)
	}
}

// TestCompileEther checks rules for frames.
func TestCompileEther(t *testing.T) {
	main, err := pf.Parse("pf.conf", []byte(`ether block in quick on ! em0 proto 0x0806 from 02:00:00:00:00:01 to ! ff:ff:ff:00:00:00/24 tag A
ether pass out on em proto 0x0800 l3 from 10.0.0.0/8 to any
ether pass on em0 tagged A
`), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compile(main, nil)
	if err != nil {
		t.Fatal(err)
	}
	mapped := [16]byte{10: 0xff, 11: 0xff, 12: 10}
	want := []pf.CompiledEther{
		{Src: 0x010000000002, SrcMask: 1<<48 - 1, Dst: 0xffffff, DstMask: 0xffffff, Action: uint32(pf.Block),
			Flags: pf.EtherIn | pf.EtherQuick | pf.EtherNotDst, Type: 0x0608, Tag: 0xc40bf6cc, Ports: 1},
		{Flags: pf.EtherOut, Type: 0x0008, Ports: 2, L3: [2]pf.EtherPrefix{{Bits: 104, Address: mapped}}},
		{Flags: pf.EtherIn | pf.EtherOut, Tagged: 0xc40bf6cc, Ports: 3},
	}
	if diff := cmp.Diff(want, c.Ether); diff != "" {
		t.Error(diff)
	}
	// em0 is in slot 1, em1 in slot 4, and the other ports are in slots
	// behind
	var all uint64
	for _, p := range pftest.Ports() {
		all |= 1 << c.slots[p.Name]
	}
	sets := []uint64{all &^ (1 << 1), 1<<1 | 1<<4, 1 << 1}
	for i, set := range sets {
		if got := c.Program.Ports[i][0]; got != set {
			t.Errorf("set %d of ports is %#x, want %#x", i, got, set)
		}
	}
	if want := uint32(pf.AskTag | pf.AskEtherL3); c.Asks != want {
		t.Errorf("asks for %#x, want %#x", c.Asks, want)
	}
}

// TestCompileSkip: at ports that pf skips, neither rules nor ether rules are
// tried.
func TestCompileSkip(t *testing.T) {
	main, err := pf.Parse("pf.conf", []byte("ether block\nether block on ! em0\nether block on em\nblock\n"), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	ports := []pf.CompilePort{{Slot: 1, Name: "em0"}, {Slot: 2, Name: "em1", Skip: true}, {Slot: 3, Name: "gw0", Host: true}}
	c, err := pf.Compile(pf.Input{Main: main, Ports: ports})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		for _, cell := range c.Cells[pf.CellPort+2*int(p.Slot):][:2] {
			if (cell == pf.Skip) != p.Skip {
				t.Errorf("%s: the cell is %#x", p.Name, cell)
			}
		}
	}
	for i, want := range []uint64{1<<1 | 1<<3, 1 << 3, 1 << 1} {
		if r := c.Ether[i]; r.Ports == 0 || c.Ports[r.Ports-1][0] != want {
			t.Errorf("ether rule %d is for the set %d of %x, want %#x", i, r.Ports, c.Ports, want)
		}
	}
}

// TestCompileTags: tags that a state could not distinguish are refused.
func TestCompileTags(t *testing.T) {
	seen := map[uint32]string{}
	var same [2]string
	for i := 0; same[0] == ""; i++ {
		name := fmt.Sprintf("t%d", i)
		n := pf.TagNumber(name)
		if n&pf.TagMask == 0 {
			t.Fatalf("the number of %s is %#x", name, n)
		}
		if other, ok := seen[n&pf.TagMask]; ok {
			same = [2]string{other, name}
		}
		seen[n&pf.TagMask] = name
	}
	for _, text := range []string{
		"pass tag %s\nblock tagged %s\n", "match tag %s\npass tag %s\n", "pass tag %s\nether block tagged %s\n",
		"ether pass tag %s\nether block tagged %s\n", "anchor tag %s {\nblock tagged %s\n}\n",
	} {
		set, err := pf.Parse("pf.conf", fmt.Appendf(nil, text, same[0], same[1]), pf.Source{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = compile(set, nil); err == nil || !strings.Contains(err.Error(), "are the same to the datapath") ||
			!strings.Contains(err.Error(), same[0]) || !strings.Contains(err.Error(), same[1]) {
			t.Errorf("%q: %v", text, err)
		}
		if set, err = pf.Parse("pf.conf", fmt.Appendf(nil, text, same[0], same[0]), pf.Source{}); err == nil {
			_, err = compile(set, nil)
		}
		if err != nil {
			t.Errorf("%q of one tag: %v", text, err)
		}
	}
}

// TestCompileRefuses: rulesets beyond the limits are refused.
func TestCompileRefuses(t *testing.T) {
	call := func(name string, body *pf.Ruleset) pf.Rule {
		return pf.Rule{Action: pf.CallAnchor, Anchor: &pf.Anchor{Name: name, Body: body}}
	}
	profiles := &pf.Ruleset{}
	for i := range pf.MaxProfiles + 1 {
		r := pf.Rule{State: pf.KeepState}
		r.StateOpts.Timeouts[pf.TCPFirst] = pf.Timeout{Given: true, Value: uint32(i)}
		profiles.Rules = append(profiles.Rules, r)
	}
	memory := &pf.Ruleset{} // ranges that take the largest number of networks
	for i := range 30000 {
		first := netip.MustParseAddr("2001:db8::1").As16()
		last := netip.MustParseAddr("fdff:ffff:ffff:ffff:ffff:ffff:ffff:fffe").As16()
		first[14], first[15], last[14], last[15] = byte(i>>8), byte(i)|1, 0xff-byte(i>>8), 0xfe-byte(i)
		memory.Rules = append(memory.Rules, pf.Rule{From: pf.Endpoint{Host: pf.Host{
			Kind: pf.Range, Addr: netip.AddrFrom16(first), Last: netip.AddrFrom16(last)}}})
	}
	tables := &pf.Ruleset{}
	for i := range pf.MaxTables + 1 {
		tables.Rules = append(tables.Rules, pf.Rule{From: pf.Endpoint{Host: pf.Host{Kind: pf.InTable, Name: fmt.Sprint("t", i)}}})
	}
	for _, test := range []struct {
		name    string
		main    *pf.Ruleset
		anchors map[string]*pf.Ruleset
		want    string
	}{
		{"rules", manyRules(pf.MaxRules+1, false), nil, "one rule more than the limit of 65534"},
		{"an anchor that calls itself", &pf.Ruleset{Rules: []pf.Rule{call("a", nil)}},
			map[string]*pf.Ruleset{"a": {Rules: []pf.Rule{call("/a", nil)}}}, "call each other more than 64 deep"},
		{"anchors that call two of their kind", &pf.Ruleset{Rules: []pf.Rule{call("a", nil)}},
			map[string]*pf.Ruleset{"a": {Rules: []pf.Rule{call("/a", nil), call("/a", nil)}}}, "call each other more than 64 deep"},
		{"bodies of one name", &pf.Ruleset{Rules: []pf.Rule{call("a", &pf.Ruleset{}), call("a", &pf.Ruleset{})}}, nil, "has rules between braces already"},
		{"profiles", profiles, nil, "one combination more than the 256"},
		{"tables", tables, nil, "has the number 64, and there may be 64 tables"},
		{"ether rules in an anchor", &pf.Ruleset{Rules: []pf.Rule{call("a", nil)}}, map[string]*pf.Ruleset{"a": {Ether: []pf.EtherRule{{}}}}, "ether rules are for the main ruleset"},
		{"memory", memory, nil, "more than 512 MiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := compile(test.main, test.anchors)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// packets returns packets of all kinds that rules distinguish.
func packets() []*reference.Packet {
	var headers []reference.Packet
	for _, port := range []uint16{21, 22, 23, 53} {
		for _, other := range []uint16{21, 23} {
			headers = append(headers,
				reference.Packet{Proto: reference.TCP, SrcPort: other, DstPort: port, Flags: pf.SYN},
				reference.Packet{Proto: reference.TCP, SrcPort: other, DstPort: port, Flags: pf.ACK, Fragment: reference.FirstFragment},
				reference.Packet{Proto: reference.UDP, SrcPort: other, DstPort: port, TOS: 0x10},
			)
		}
	}
	for _, kind := range []uint8{0, 3, 8, 9, 128, 129, 140, 200} {
		for _, code := range []uint8{0, 1, 3} {
			headers = append(headers,
				reference.Packet{Proto: reference.ICMP, ICMPType: kind, ICMPCode: code},
				reference.Packet{Proto: reference.ICMPv6, ICMPType: kind, ICMPCode: code},
			)
		}
	}
	for _, proto := range []uint8{reference.ICMP, reference.TCP, reference.UDP, 47, reference.ICMPv6} {
		headers = append(headers,
			reference.Packet{Proto: proto, Fragment: reference.LaterFragment},
			reference.Packet{Proto: proto, Fragment: reference.LaterFragment, TOS: 0x10, Tag: "A"})
	}
	headers = append(headers, reference.Packet{Proto: 47}, reference.Packet{Proto: 47, TOS: 0x10, Tag: "A"})

	addresses := map[pf.Family][]netip.Addr{
		pf.Inet:  {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.254"), netip.MustParseAddr("192.0.2.1")},
		pf.Inet6: {netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::fe"), netip.MustParseAddr("fe80::1")},
	}
	var out []*reference.Packet
	for family, list := range addresses {
		for _, src := range list {
			for _, dst := range list {
				for _, port := range pftest.Ports()[:3] {
					for _, p := range headers {
						p.Family, p.Src, p.Dst, p.Port = family, src, dst, port
						in, out1, host := p, p, p
						in.Direction, in.ReceivedOn = pf.In, port
						out1.Direction, out1.ReceivedOn = pf.Out, pftest.Ports()[1]
						host.Direction = pf.Out
						out = append(out, &in, &out1, &host)
					}
				}
			}
		}
	}
	return out
}
