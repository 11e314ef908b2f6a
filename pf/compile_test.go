// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
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

	"pgregory.net/rapid"
)

// compilePorts are pftest's ports, in slots that are not next to each other.
func compilePorts() ([]pf.CompilePort, map[string]uint16) {
	var ports []pf.CompilePort
	slots := map[string]uint16{}
	for i, p := range pftest.Ports() {
		slots[p.Name] = uint16(3*i + 1)
		ports = append(ports, pf.CompilePort{Slot: uint16(3*i + 1), Name: p.Name, Groups: p.Groups})
	}
	return ports, slots
}

// tables numbers tables as they are asked for.
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
		return nil
	}
	if slices.Contains(modes, "network") {
		return []netip.Prefix{prefix.Masked(), other.Masked()}
	}
	return []netip.Prefix{netip.PrefixFrom(prefix.Addr(), 32), netip.PrefixFrom(other.Addr(), 128)}
}

// TestCompileIsReference compares what programs find with what trying the
// rules one by one finds.
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
	for _, at := range []string{"ftp", "wild", "wild/a", "wild/b", "ftp/wild", "deep/in"} {
		if _, body := all[at]; !body && rapid.Bool().Draw(t, at) {
			rs := pftest.Rulesets().Draw(t, "anchor "+at)
			rs.Ether = nil
			loaded[at] = rs
			inside := map[string]*pf.Ruleset{}
			bodies(inside, at, rs)
			for path, rs := range inside {
				if all[path] != nil { // has two rulesets
					t.Skip()
				}
				all[path] = rs
			}
		}
	}
	for at := range loaded { // and no ruleset in the place of a body
		if all[at] != loaded[at] {
			t.Skip()
		}
	}

	c, err := compile(main, loaded)
	if err != nil {
		if strings.Contains(err.Error(), "call each other") || strings.Contains(err.Error(), "calls of anchors") {
			t.Skip() // the reference has no bottom
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

// compiled is a ruleset for both: a program to walk, and the reference.
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
	maps.DeleteFunc(all, func(at string, _ *pf.Ruleset) bool { // what cannot be called
		return at == "" || strings.HasPrefix(path.Base(at), "_")
	})
	var c compiled
	draw := func(*pf.Rule) float64 { return c.drawn }
	c.walker = walker{Program: prog, slots: slots, tables: tables.list, draw: draw}
	c.Evaluator = reference.Evaluator{Rules: main, Anchors: all, Addresses: dynamicAddresses, Draw: draw, Tables: tables.entries}
	return &c, nil
}

// compare returns how the two differ about a packet, "" if they do not.
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

// TestCompileCases compares the two where chance seldom leads.
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
			for _, p := range packets() {
				if diff := c.compare(p); diff != "" {
					t.Fatal(diff)
				}
			}
		})
	}
}

// packets are packets of all kinds that rules tell apart.
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
