// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"bascule/pf"
)

// Rules are on lines that end with semicolons. A packet is "in em0 tcp
// 10.0.0.1:1024 10.0.0.2:22 S", with its other fields behind; packets are in
// separate tests unless they depend on each other. A result is the output of
// describe: the action, the line of the rule and further effects.
var evaluations = []struct {
	name, rules, packet, want string
}{
	// the walk
	{"no rules pass", ``, tcp22, "pass -"},
	{"no rule matches", `block proto udp`, tcp22, "pass -"},
	{"one rule", `block`, tcp22, "block 1"},
	{"last match wins", `block; pass`, tcp22, "pass 2"},
	{"last match wins, the other way", `pass; block`, tcp22, "block 2"},
	{"what does not match does not count", `pass; block proto udp`, tcp22, "pass 1"},
	{"quick ends", `block quick; pass`, tcp22, "block 1"},
	{"quick that does not match ends nothing", `block quick proto udp; pass`, tcp22, "pass 2"},

	// conditions, in the order of pf's checks
	{"in", `block in`, tcp22, "block 1"},
	{"not in but out", `block out`, tcp22, "pass -"},
	{"out", `block out`, "out em0 tcp 10.0.0.1:1024 10.0.0.2:22 S", "block 1"},
	{"on the port", `block on em0`, tcp22, "block 1"},
	{"on another port", `block on em1`, tcp22, "pass -"},
	{"on a port with a longer name", `block on em`, "in ema tcp 10.0.0.1:1 10.0.0.2:2 S", "pass -"},
	{"on a group", `block on em`, tcp22, "block 1"},
	{"on any", `block on any`, tcp22, "block 1"},
	{"not on the port", `block on ! em0`, tcp22, "pass -"},
	{"not on another", `block on ! em1`, tcp22, "block 1"},
	{"not on the group", `block on ! em`, tcp22, "pass -"},
	{"inet", `block inet`, tcp22, "block 1"},
	{"inet6", `block inet6`, tcp22, "pass -"},
	{"inet6 of IPv6", `block inet6`, tcp22v6, "block 1"},
	{"proto", `block proto tcp`, tcp22, "block 1"},
	{"proto by number", `block proto 47`, "in em0 47 10.0.0.1 10.0.0.2", "block 1"},
	{"from a host", `block from 10.0.0.1`, tcp22, "block 1"},
	{"from another", `block from 10.0.0.2`, tcp22, "pass -"},
	{"from a network", `block from 10.0.0.0/24`, tcp22, "block 1"},
	{"not from a host", `block from ! 10.0.0.1`, tcp22, "pass -"},
	{"not from another", `block from ! 10.0.0.2`, tcp22, "block 1"},
	{"not from IPv4 is not IPv6", `block from ! 10.0.0.1`, tcp22v6, "pass -"},
	{"to a host of IPv6", `block to 2001:db8::2`, tcp22v6, "block 1"},
	{"a range, its first", `block from 10.0.0.1 - 10.0.0.5`, tcp22, "block 1"},
	{"a range, its last", `block to 10.0.0.0 - 10.0.0.2`, tcp22, "block 1"},
	{"outside a range", `block to 10.0.0.3 - 10.0.0.9`, tcp22, "pass -"},
	{"not a range", `block to ! 10.0.0.3 - 10.0.0.9`, tcp22, "block 1"},
	{"from and to", `block from 10.0.0.1 to 10.0.0.3`, tcp22, "pass -"},
	{"a port", `block proto tcp to port 22`, tcp22, "block 1"},
	{"another port", `block proto tcp to port 23`, tcp22, "pass -"},
	{"the port of the other side", `block proto tcp from port 22`, tcp22, "pass -"},
	{"!= a port", `block proto tcp to port != 22`, tcp22, "pass -"},
	{"< a port", `block proto tcp to port < 22`, tcp22, "pass -"},
	{"<= a port", `block proto tcp to port <= 22`, tcp22, "block 1"},
	{"> a port", `block proto tcp to port > 22`, tcp22, "pass -"},
	{">= a port", `block proto tcp to port >= 22`, tcp22, "block 1"},
	{"inside, not its ends", `block proto tcp to port 22 >< 30`, tcp22, "pass -"},
	{"inside", `block proto tcp to port 21 >< 23`, tcp22, "block 1"},
	{"outside, not its ends", `block proto tcp to port 22 <> 30`, tcp22, "pass -"},
	{"outside", `block proto tcp to port 23 <> 30`, tcp22, "block 1"},
	{"a range of ports and its end", `block proto tcp to port 20:22`, tcp22, "block 1"},
	{"both ports", `block proto udp from port 53 to port 53`, "in em0 udp 10.0.0.1:53 10.0.0.2:54", "pass -"},
	{"flags", `block proto tcp flags S/SA`, tcp22, "block 1"},
	{"flags that are not set", `block proto tcp flags S/SA`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 SA", "pass -"},
	{"flags that do not count", `block proto tcp flags S/SA`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 SEW", "block 1"},
	{"no flags at all", `block proto tcp flags /SFRA`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 P", "block 1"},
	{"pass is S/SA by default", `block; pass`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 A", "block 1"},
	{"pass of any flags", `block; pass flags any`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 A", "pass 2"},
	{"pass without state asks no flags", `block; pass no state`, "in em0 tcp 10.0.0.1:1 10.0.0.2:2 A", "pass 2"},
	{"flags do not concern UDP", `block; pass`, "in em0 udp 10.0.0.1:1 10.0.0.2:2", "pass 2"},
	{"icmp-type", `block inet proto icmp icmp-type echoreq`, "in em0 icmp 10.0.0.1 10.0.0.2 type=8", "block 1"},
	{"another icmp-type", `block inet proto icmp icmp-type echoreq`, "in em0 icmp 10.0.0.1 10.0.0.2 type=0", "pass -"},
	{"icmp code", `block inet proto icmp icmp-type unreach code needfrag`, "in em0 icmp 10.0.0.1 10.0.0.2 type=3 code=4", "block 1"},
	{"another icmp code", `block inet proto icmp icmp-type unreach code needfrag`, "in em0 icmp 10.0.0.1 10.0.0.2 type=3 code=1", "pass -"},
	{"icmp6-type", `block inet6 proto icmp6 icmp6-type neighbrsol`, "in em0 icmp6 fe80::1 fe80::2 type=135", "block 1"},
	{"no state of an answer", `block; pass inet proto icmp`, "in em0 icmp 10.0.0.1 10.0.0.2 type=0", "block 1"},
	{"no state needed of an answer", `block; pass inet proto icmp no state`, "in em0 icmp 10.0.0.1 10.0.0.2 type=0", "pass 2"},
	{"a sloppy state of an answer", `block; pass inet proto icmp keep state (sloppy)`, "in em0 icmp 10.0.0.1 10.0.0.2 type=0", "pass 2"},
	{"neighbour advertisements need no question", `block; pass inet6 proto icmp6`, "in em0 icmp6 fe80::1 fe80::2 type=136", "pass 2"},
	{"no state of an answer of IPv6", `block; pass inet6 proto icmp6`, "in em0 icmp6 fe80::1 fe80::2 type=129", "block 1"},
	{"129 is no answer in IPv4", `block; pass inet proto icmp`, "in em0 icmp 10.0.0.1 10.0.0.2 type=129", "pass 2"},
	{"tos", `block tos 0x10`, tcp22 + " tos=16", "block 1"},
	{"tos, all of it", `block tos 0x10`, tcp22 + " tos=18", "pass -"},
	{"probability, drawn 0.3", `block probability 40%`, tcp22 + " draw=0.3", "block 1"},
	{"probability, drawn 0.4", `block probability 40%`, tcp22 + " draw=0.4", "pass -"},
	{"received-on", `block out received-on em1`, "out em0 tcp 10.0.0.1:1 10.0.0.2:2 S from=em1", "block 1"},
	{"received-on another", `block out received-on em1`, "out em0 tcp 10.0.0.1:1 10.0.0.2:2 S from=em2", "pass -"},
	{"received-on a group", `block out received-on em`, "out em0 tcp 10.0.0.1:1 10.0.0.2:2 S from=em2", "block 1"},
	{"received-on any, the host's own", `block out received-on any`, "out em0 tcp 10.0.0.1:1 10.0.0.2:2 S", "pass -"},
	{"not received-on, the host's own", `block out !received-on em1`, "out em0 tcp 10.0.0.1:1 10.0.0.2:2 S", "block 1"},
	{"prio", `block prio 3`, tcp22 + " prio=3", "block 1"},
	{"prio 0 is a priority", `block prio 0`, tcp22 + " prio=3", "pass -"},

	// tables
	{"in a table", `table <t> { 10.0.0.0/8 }; block from <t>`, tcp22, "block 2"},
	{"not in a table", `table <t> { 10.0.0.0/8 }; block from ! <t>`, tcp22, "pass -"},
	{"an exception in a table", `table <t> { 10.0.0.0/8 !10.0.0.0/24 10.0.0.2 }; block from <t>`, tcp22, "pass -"},
	{"an exception of an exception", `table <t> { 10.0.0.0/8 !10.0.0.0/24 10.0.0.2 }; block to <t>`, tcp22, "block 2"},
	{"not an exception", `table <t> { 10.0.0.0/8 !10.0.0.1 }; block from ! <t>`, tcp22, "block 2"},
	{"a table as it is now", `table <now> { 192.0.2.1 }; block from <now>`, tcp22, "block 2"},
	{"an empty table", `table <t> persist; block from <t>`, tcp22, "pass -"},
	{"not in an empty table", `table <t> persist; block from ! <t>`, tcp22, "block 2"},
	{"the main table in an anchor", `table <t> { 10.0.0.0/8 }; anchor "a" {; block from <t>; }`, tcp22, "block 3"},
	{"the anchor's own table", `table <t> { 10.0.0.0/8 }; anchor "a" {; table <t> { 192.0.2.1 }; block from <t>; }`, tcp22, "pass -"},

	// addresses of ports
	{"dynamic", `block from (em0)`, "in em0 udp 10.0.0.254:1 10.0.0.2:2", "block 1"},
	{"dynamic, another", `block from (em0)`, tcp22, "pass -"},
	{"dynamic network", `block from (em0:network)`, tcp22, "block 1"},
	{"dynamic with a mask", `block from (em0)/24`, tcp22, "block 1"},
	{"routes to both, the right way", `block from no-route; block from urpf-failed; block to no-route`, tcp22, "pass -"},
	{"no route to the source", `block from no-route`, "in em0 udp 203.0.113.1:1 10.0.0.2:2", "block 1"},
	{"such a source comes no right way", `block from urpf-failed`, "in em0 udp 203.0.113.1:1 10.0.0.2:2", "block 1"},
	{"a source by another way", `block from no-route; block from urpf-failed`, "in em0 udp 198.51.100.1:1 10.0.0.2:2", "block 2"},
	{"not a source by another way", `block from ! urpf-failed`, "in em0 udp 198.51.100.1:1 10.0.0.2:2", "pass -"},
	{"a route, negated", `block from ! no-route`, tcp22, "block 1"},
	{"no route to the destination", `block to no-route`, "in em0 udp 10.0.0.1:1 203.0.113.1:2", "block 1"},
	{"a destination from nowhere", `block from no-route to 203.0.113.1`, "in em0 udp 10.0.0.1:1 203.0.113.1:2", "pass -"},

	// match, tags
	{"match applies where it is met", `match set prio 5; pass`, tcp22, "pass 2 match 1 prio 5"},
	{"a later match wins", `match set prio 5; match set prio (6, 7); pass`, tcp22, "pass 3 match 1,2 prio 6,7"},
	{"the rule that decides wins over match", `match set prio 5; pass set prio 2`, tcp22, "pass 2 match 1 prio 2"},
	{"a rule that does not decide sets nothing", `pass set prio 5; pass`, tcp22, "pass 2"},
	{"what match rules scrub adds up", `match scrub (no-df min-ttl 9); match scrub (max-mss 1440) set tos 4; pass scrub (random-id)`, tcp22,
		"pass 3 match 1,2 set (tos 0x04) scrub (no-df random-id min-ttl 9 max-mss 1440)"},
	{"of what is said twice the last holds", `match scrub (max-mss 1300 min-ttl 9) set tos 4; match scrub (max-mss 1400) set tos 0; pass scrub (min-ttl 5)`, tcp22,
		"pass 3 match 1,2 set (tos 0x00) scrub (min-ttl 5 max-mss 1400)"},
	{"a rule that does not decide scrubs nothing", `pass scrub (no-df); pass`, tcp22, "pass 2"},
	{"match decides nothing", `block; match`, tcp22, "block 1 match 2"},
	{"match quick ends", `match quick; block`, tcp22, "pass - match 1"},
	{"match after quick", `pass quick; match`, tcp22, "pass 1"},
	{"a tag sticks", `pass tag A; block tagged A`, tcp22, "block 2 tag A"},
	{"a tag is not yet", `block tagged A; pass tag A`, tcp22, "pass 2 tag A"},
	{"a tag of match", `match tag A; block tagged A`, tcp22, "block 2 match 1 tag A"},
	{"the last tag", `pass tag A; pass tag B; block tagged A`, tcp22, "pass 2 tag B"},
	{"the tag of a rule that does not decide", `block tag A; pass`, tcp22, "pass 2 tag A"},
	{"not tagged", `block ! tagged A`, tcp22, "block 1"},
	{"not tagged, but it is", `block ! tagged A`, tcp22 + " tag=A", "pass - tag A"},
	{"the tag of a MAC rule", `block tagged A`, tcp22 + " tag=A", "block 1 tag A"},

	// log
	{"log", `pass log`, tcp22, "pass 1 log 1"},
	{"log of a rule that does not decide", `block log; pass`, tcp22, "pass 2"},
	{"log of match", `match log; pass`, tcp22, "pass 2 match 1 log 1"},
	{"log of both", `match log; pass log`, tcp22, "pass 2 match 1 log 1,2"},
	{"log (matches)", `block; match log (matches); block; pass`, tcp22, "pass 4 match 2 log 2,3(2),4(2)"},

	// anchors
	{"an anchor decides", `block; anchor {; pass; }`, tcp22, "pass 3"},
	{"and is decided over", `anchor {; block; }; pass`, tcp22, "pass 4"},
	{"quick inside ends all", `anchor {; block quick; }; pass`, tcp22, "block 2"},
	{"an anchor for others", `anchor in proto udp {; block quick; }`, tcp22, "pass -"},
	{"an anchor in an anchor", `anchor {; anchor on em0 {; block; }; }`, tcp22, "block 3"},
	{"the rest of the outer anchor", `anchor {; anchor {; block; }; pass; }`, tcp22, "pass 5"},
	{"anchor quick stops", `anchor quick {; block; }; pass`, tcp22, "block 2"},
	{"anchor quick without a match", `anchor quick {; block proto udp; }; pass`, tcp22, "pass 4"},
	{"anchor quick with match only", `anchor quick {; match; }; block`, tcp22, "block 4 match 2"},
	{"anchor quick of an inner match", `anchor quick {; anchor {; block; }; }; pass`, tcp22, "block 3"},
	{"an inner anchor quick", `anchor {; anchor quick {; block; }; pass; }; pass`, tcp22, "block 3"},
	{"the tag of an anchor", `anchor tag A {; block tagged A; }`, tcp22, "block 2 tag A"},
	{"an anchor asks for a tag", `pass tag A; anchor tagged B {; block; }`, tcp22, "pass 1 tag A"},
	{"a loaded anchor", `pass; anchor "ftp"`, tcp22, "block ftp:1"},
	{"an anchor that is not loaded", `pass; anchor "none"`, tcp22, "pass 1"},
	{"a nested name", `pass; anchor "wild/b"`, tcp22, "block wild/b:1"},
	{"a wildcard, in the order of names", `anchor "wild/*"`, tcp22, "pass wild/c:1 tag A"},
	{"a wildcard does not try deeper ones", `anchor "deep/*"`, tcp22, "pass -"},
	{"a wildcard ends at quick", `anchor "stop/*"`, tcp22, "block stop/a:1"},
	{"a wildcard of all", `pass; anchor "*" proto tcp`, tcp22, "block ftp:1"},
	{"a name relative to its anchor", `anchor "wild" {; anchor "b"; }`, tcp22, "block wild/b:1"},
	{"an absolute name", `anchor "wild" {; anchor "/ftp"; }`, tcp22, "block ftp:1"},

	// once
	{"once", `block; pass once`, tcp22 + " | " + tcp22, "pass 2 | block 1"},
	{"once is used though it does not decide", `pass once; block proto tcp to port 1; pass proto udp`, "in em0 tcp 10.0.0.1:1 10.0.0.2:1 S | " + tcp22, "block 2 | pass -"},
	{"once that did not match is not used", `block; pass proto udp once`, tcp22 + " | in em0 udp 10.0.0.1:1 10.0.0.2:2", "block 1 | pass 2"},

	// fragments
	{"a later fragment is blocked for its ports", `pass no state; block proto tcp to port 22`, later, "block 2"},
	{"and for other ports", `pass no state; block proto tcp to port != 22`, later, "block 2"},
	{"it is not passed for its ports", `block; pass proto udp to port 53`, "in em0 udp 10.0.0.1 10.0.0.2 frag=later", "block 1"},
	{"it is matched for no ports", `match proto tcp to port 22 tag A; pass no state`, later, "pass 2"},
	{"flags ask for the header of TCP", `block; pass`, later, "block 1"},
	{"flags ask nothing of UDP", `block; pass`, "in em0 udp 10.0.0.1 10.0.0.2 frag=later", "pass 2"},
	{"block flags", `block flags S/SA`, later, "block 1"},
	{"block flags are nothing to UDP's", `block flags S/SA`, "in em0 udp 10.0.0.1 10.0.0.2 frag=later", "block 1"},
	{"block icmp-type", `block inet proto icmp icmp-type echoreq`, "in em0 icmp 10.0.0.1 10.0.0.2 frag=later", "block 1"},
	{"pass icmp-type", `block; pass inet proto icmp icmp-type echoreq`, "in em0 icmp 10.0.0.1 10.0.0.2 frag=later", "block 1"},
	{"block on ports of another host", `pass no state; block proto tcp from 10.0.0.9 to port 22`, later, "pass 1"},
	{"block on ports of another protocol", `pass no state; block proto udp to port 22`, later, "pass 1"},
	{"an anchor for ports blocks", `pass no state; anchor proto tcp to port 22 {; block; }`, later, "block 3"},
	{"an anchor for ports does not pass", `block; anchor proto tcp to port 22 {; pass no state; }`, later, "block 1"},
	{"an anchor for ports does not tag", `anchor proto tcp to port 22 tag A {; match tag B; }; pass no state`, later, "pass 4"},
	{"in it, another does not pass", `block; anchor proto tcp to port 22 {; anchor {; pass no state; }; }`, later, "block 1"},
	{"fragment", `block fragment`, later, "block 1"},
	{"fragment of a first one", `block fragment`, tcp22 + " frag=first", "block 1"},
	{"fragment of a whole packet", `block fragment`, tcp22, "pass -"},
	{"a first fragment has ports", `block; pass proto tcp to port 22`, tcp22 + " frag=first", "pass 2"},

	// IP options
	{"options", `pass`, tcp22 + " opts", "block 1 ip-option"},
	{"options that are allowed", `pass allow-opts`, tcp22 + " opts", "pass 1"},
	{"options that were allowed", `pass allow-opts; pass`, tcp22 + " opts", "block 2 ip-option"},
	{"options without a rule", ``, tcp22 + " opts", "block - ip-option"},
	{"options that are blocked anyway", `block`, tcp22 + " opts", "block 1"},
	{"the router alert of IGMP", `pass`, "in em0 2 10.0.0.1 224.0.0.22 ra", "pass 1"},
	{"another option of IGMP", `pass`, "in em0 2 10.0.0.1 224.0.0.22 ra opts", "block 1 ip-option"},
	{"the router alert of MLD", `pass`, "in em0 icmp6 fe80::1 ff02::16 type=143 ra", "pass 1"},
	{"the router alert of others", `pass`, "in em0 icmp6 fe80::1 fe80::2 type=128 ra", "block 1 ip-option"},
	{"the router alert of IPv4's other protocols", `pass`, "in em0 udp 10.0.0.1:1 10.0.0.2:2 ra", "block 1 ip-option"},
}

const (
	tcp22   = "in em0 tcp 10.0.0.1:1024 10.0.0.2:22 S"
	tcp22v6 = "in em0 tcp [2001:db8::1]:1024 [2001:db8::2]:22 S"
	later   = "in em0 tcp 10.0.0.1 10.0.0.2 frag=later"
)

// loaded are rulesets of anchors.
var loaded = map[string]string{
	"ftp":      `block proto tcp`,
	"wild/b":   `block`,
	"wild/a":   `pass tag A`,
	"wild/c":   `pass; block proto udp`,
	"deep/x/y": `block`,
	"stop/a":   `block quick`,
	"stop/b":   `pass`,
}

func TestEvaluate(t *testing.T) {
	for _, test := range evaluations {
		t.Run(test.name, func(t *testing.T) {
			e := Evaluator{
				Rules:     parse(t, "", test.rules),
				Anchors:   map[string]*pf.Ruleset{},
				Tables:    map[string][]pf.TableEntry{"now": {{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}},
				Addresses: addresses, Routes: routesOf,
			}
			for path, rules := range loaded {
				e.Anchors[path] = parse(t, path, rules)
			}
			var got []string
			for text := range strings.SplitSeq(test.packet, " | ") {
				p, draw := packet(t, text)
				e.Draw = func(*pf.Rule) float64 { return draw }
				got = append(got, describe(e.Evaluate(p)))
			}
			if got := strings.Join(got, " | "); got != test.want {
				t.Errorf("%q for %q: got %q, want %q", test.packet, test.rules, got, test.want)
			}
		})
	}
}

func parse(t *testing.T, name, rules string) *pf.Ruleset {
	t.Helper()
	rs, err := pf.Parse(name, []byte(strings.ReplaceAll(rules, ";", "\n")+"\n"), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// addresses returns the addresses of em0.
func addresses(name string, modes []string) []netip.Prefix {
	if name != "em0" {
		return nil
	}
	prefix := netip.MustParsePrefix("10.0.0.254/24")
	if len(modes) > 0 && modes[0] == "network" {
		return []netip.Prefix{prefix.Masked()}
	}
	return []netip.Prefix{netip.PrefixFrom(prefix.Addr(), 32)}
}

// routesOf returns the errors by the routes of em0's host, which has routes
// for all but a net, and one by another interface.
func routesOf(p *Packet) Routes {
	nowhere := netip.MustParsePrefix("203.0.113.0/24")
	r := Routes{SrcNoRoute: nowhere.Contains(p.Src), DstNoRoute: nowhere.Contains(p.Dst)}
	r.URPFFailed = r.SrcNoRoute || netip.MustParsePrefix("198.51.100.0/24").Contains(p.Src)
	return r
}

// packet parses a packet, and the number to draw for its rules.
func packet(t *testing.T, text string) (p *Packet, draw float64) {
	t.Helper()
	number := func(s string) uint8 {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			t.Fatal(err)
		}
		return uint8(n)
	}
	words := strings.Fields(text)
	p = &Packet{Direction: map[string]pf.Direction{"in": pf.In, "out": pf.Out}[words[0]], Port: port(words[1])}
	protocols := map[string]uint8{"icmp": ICMP, "tcp": TCP, "udp": UDP, "icmp6": ICMPv6}
	if p.Proto = protocols[words[2]]; p.Proto == 0 {
		p.Proto = number(words[2])
	}
	p.Src, p.SrcPort = address(t, words[3])
	p.Dst, p.DstPort = address(t, words[4])
	p.Family = pf.Inet
	if p.Src.Is6() {
		p.Family = pf.Inet6
	}
	for _, word := range words[5:] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "from":
			p.ReceivedOn = port(value)
		case "tag":
			p.Tag = value
		case "tos":
			p.TOS = number(value)
		case "prio":
			p.Prio = number(value)
		case "type":
			p.ICMPType = number(value)
		case "code":
			p.ICMPCode = number(value)
		case "frag":
			p.Fragment = map[string]Fragment{"first": FirstFragment, "later": LaterFragment}[value]
		case "ra":
			p.RouterAlert = true
		case "opts":
			p.Options = true
		case "draw":
			var err error
			if draw, err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatal(err)
			}
		default:
			for _, letter := range word {
				i := strings.IndexRune("FSRPAUEW", letter)
				if i < 0 {
					t.Fatalf("%q: what is %q?", text, word)
				}
				p.Flags |= 1 << i
			}
		}
	}
	return p, draw
}

// port returns a port with its group, which is its name without the number.
func port(name string) Port {
	p := Port{Name: name}
	if group := strings.TrimRight(name, "0123456789"); group != name {
		p.Groups = []string{group}
	}
	return p
}

func address(t *testing.T, s string) (netip.Addr, uint16) {
	t.Helper()
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr(), ap.Port()
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a, 0
}

func describe(r Result) string {
	at := func(r *pf.Rule) string {
		if r == nil {
			return "-"
		}
		return strings.TrimPrefix(fmt.Sprintf("%s:%d", r.Pos.File, r.Pos.Line), ":")
	}
	s := map[pf.Action]string{pf.Pass: "pass ", pf.Block: "block "}[r.Action] + at(r.Rule)
	if r.IPOption {
		s += " ip-option"
	}
	var matches, log []string
	for _, m := range r.Matches {
		matches = append(matches, at(m))
	}
	for _, l := range r.Log {
		entry := at(l.Rule)
		if l.By != l.Rule {
			entry += "(" + at(l.By) + ")"
		}
		log = append(log, entry)
	}
	if matches != nil {
		s += " match " + strings.Join(matches, ",")
	}
	if r.Tag != "" {
		s += " tag " + r.Tag
	}
	switch p := r.SetPrio; {
	case p[0] == 0:
	case p[0] == p[1]:
		s += fmt.Sprintf(" prio %d", p[0]-1)
	default:
		s += fmt.Sprintf(" prio %d,%d", p[0]-1, p[1]-1)
	}
	// as in the printed rule, behind its action
	s += strings.TrimPrefix((&pf.Rule{Action: pf.Match, Scrub: r.Scrub}).String(), "match all")
	if log != nil {
		s += " log " + strings.Join(log, ",")
	}
	return s
}

// The flags, by their letters, that OpenBSD's pf_normalize_tcp() drops,
// clears and leaves alone.
func TestNormalize(t *testing.T) {
	letters := func(s string) (flags uint8) {
		for _, c := range s {
			flags |= 1 << strings.IndexRune("FSRPAUEW", c)
		}
		return flags
	}
	for _, tt := range []struct {
		flags, left string
		dropped     bool
	}{
		{flags: "", dropped: true},
		{flags: "EW", dropped: true},
		{flags: "S", left: "S"},
		{flags: "SEW", left: "SEW"},
		{flags: "SA", left: "SA"},
		{flags: "SPA", left: "SPA"},
		{flags: "SF", left: "S"},
		{flags: "SFA", left: "SA"},
		{flags: "SR", dropped: true},
		{flags: "SRA", dropped: true},
		{flags: "SP", dropped: true},
		{flags: "SU", dropped: true},
		{flags: "SFP", dropped: true},
		{flags: "F", dropped: true},
		{flags: "P", dropped: true},
		{flags: "U", dropped: true},
		{flags: "FPU", dropped: true},
		{flags: "R", left: "R"},
		{flags: "RF", dropped: true},
		{flags: "RP", dropped: true},
		{flags: "RA", left: "RA"},
		{flags: "FRPAU", left: "FRPAU"},
		{flags: "A", left: "A"},
		{flags: "FA", left: "FA"},
		{flags: "PA", left: "PA"},
	} {
		p := Packet{Proto: TCP, Flags: letters(tt.flags)}
		if ok := p.Normalize(); ok == tt.dropped || ok && p.Flags != letters(tt.left) {
			t.Errorf("%q: %v, left %q; want dropped %v, left %q", tt.flags, ok, pf.TCPFlags{Set: p.Flags, Of: 255}, tt.dropped, tt.left)
		}
	}
	for _, p := range []Packet{
		{Proto: UDP}, {Proto: TCP, Fragment: LaterFragment},
	} {
		if !p.Normalize() {
			t.Errorf("%+v has no flags of TCP, and is dropped for them", p)
		}
	}
}
