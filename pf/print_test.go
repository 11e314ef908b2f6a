// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"net/netip"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/pftest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// For comparing rulesets: where they were read does not count.
var equal = cmp.Options{
	cmpopts.IgnoreTypes(pf.Pos{}, pf.Place{}, []pf.PortName(nil)),
	cmpopts.IgnoreFields(pf.Ruleset{}, "Ignored"),
	cmpopts.EquateEmpty(),
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
}

// Printed rulesets parse to the same ruleset and are printed the same again.
func TestPrintedParses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := pftest.Translating().Draw(t, "ruleset")
		text := want.String()
		got, err := pf.Parse("pf.conf", []byte(text), pf.Source{Open: pftest.Open(want)})
		if err != nil {
			t.Fatalf("%v\nin:\n%s", err, text)
		}
		if diff := cmp.Diff(want, got, equal); diff != "" {
			t.Fatalf("(-drawn +parsed):\n%s\nof:\n%s", diff, text)
		}
		if again := got.String(); again != text {
			t.Fatalf("(-first +second):\n%s", cmp.Diff(text, again))
		}
	})
}

// A rule alone is printed as in its ruleset.
func TestRulePrintedAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := pftest.Translating().Draw(t, "ruleset")
		rs.Options.StateDefaults = nil // only the ruleset has these
		text := rs.String()
		for i := range rs.Rules {
			if s := rs.Rules[i].String(); !strings.Contains(text, s+"\n") {
				t.Fatalf("%q is not in:\n%s", s, text)
			}
		}
	})
}

// The text on the right is what OpenBSD's pfctl -nvf prints, ether aside.
var printed = []struct{ in, want string }{
	{`pass`, `pass all flags S/SA`},
	{`pass all`, `pass all flags S/SA`},
	{`block`, `block drop all`},
	{`match`, `match all`},
	{`pass keep state`, `pass all flags S/SA`},
	{`pass flags any`, `pass all flags any`},
	{`pass no state`, `pass all no state`},
	{`pass proto udp`, `pass proto udp all`},
	{`pass fragment`, `pass all fragment`},
	{`pass flags /SFRA`, `pass all flags /FSRA`},
	{`pass proto tcp flags FSRPAUEW/FSRPAUEW`, `pass proto tcp all flags FSRPAUEW/FSRPAUEW`},
	{`block return in log quick on em0 inet proto tcp from <bad> to any port ssh`,
		`block return in log quick on em0 inet proto tcp from <bad> to any port = 22`},
	{`pass in on em0 inet proto udp from any to 10.0.0.1 port 1000:2000`,
		`pass in on em0 inet proto udp from any to 10.0.0.1 port 1000:2000`},
	{`pass proto tcp modulate state (max 9, max-src-conn 3, max-src-conn-rate 15/5, overload <bad> flush global)`,
		`pass proto tcp all flags S/SA modulate state (max 9, source-track rule, max-src-conn 3, max-src-conn-rate 15/5, overload <bad> flush global, src.track 5)`},
	{`pass proto tcp synproxy state (if-bound, tcp.first 5, no-sync)`,
		`pass proto tcp all flags S/SA synproxy state (no-sync, if-bound, tcp.first 5)`},
	{`pass keep state (sloppy, pflow, source-track, max-src-states 4)`,
		`pass all flags S/SA keep state (source-track global, max-src-states 4, sloppy, pflow)`},
	{`pass keep state (max-src-nodes 4 max-src-states 5)`,
		`pass all flags S/SA keep state (source-track rule, max-src-states 5, max-src-nodes 4)`},
	{`pass keep state (source-track, max-src-nodes 1000)`,
		`pass all flags S/SA keep state (source-track rule, max-src-nodes 1000)`},
	{`pass keep state (max-src-conn 4, source-track)`,
		`pass all flags S/SA keep state (source-track rule, max-src-conn 4)`},
	{`pass keep state (source-track, max-src-conn-rate 4/5)`,
		`pass all flags S/SA keep state (source-track rule, max-src-conn-rate 4/5, src.track 5)`},
	{`pass keep state (source-track)`, `pass all flags S/SA keep state (source-track global)`},
	{"set state-defaults source-track, max-src-nodes 5\npass",
		"set state-defaults source-track rule, max-src-nodes 5\npass all flags S/SA keep state (source-track rule, max-src-nodes 5)"},
	{`pass inet proto icmp icmp-type 8 code 0`, `pass inet proto icmp all icmp-type echoreq code 0`},
	{`pass inet proto icmp icmp-type 3 code 4`, `pass inet proto icmp all icmp-type unreach code needfrag`},
	{`pass inet6 proto icmp6 icmp6-type neighbradv`, `pass inet6 proto ipv6-icmp all icmp6-type neighbradv`},
	{`pass inet6 proto icmp6 icmp6-type 99`, `pass inet6 proto ipv6-icmp all icmp6-type 99`},
	{`pass proto 99`, `pass proto 99 all`},
	{`pass proto gre`, `pass proto gre all`},
	{`match tos lowdelay`, `match all tos 0x10`},
	{`match prio 0 set prio 5`, `match all prio 0 set (prio 5)`},
	{`match set prio (5, 6)`, `match all set (prio(5, 6))`},
	{`match set tos 16`, `match all set (tos 0x10)`},
	{`match set (tos 0, prio (5, 6))`, `match all set (prio(5, 6), tos 0x00)`},
	{`match in scrub (max-mss 1440 min-ttl 64, random-id no-df)`, `match in all scrub (no-df random-id min-ttl 64 max-mss 1440)`},
	{`pass proto tcp fragment allow-opts scrub (no-df) label "a"`, `pass proto tcp all fragment scrub (no-df) allow-opts label "a"`},
	{`match scrub (max-mss 0)`, `match all`},
	{`block probability 50%`, `block drop all probability 50%`},
	{`block probability 0.29`, `block drop all probability 29%`},
	{`block probability 0.07%`, `block drop all probability 0.07%`},
	{`block return-rst inet proto tcp`, `block return-rst inet proto tcp all`},
	{`block return-rst(ttl 5) proto tcp`, `block return-rst(ttl 5) proto tcp all`},
	{`block return-icmp`, `block return-icmp(port-unr, port-unr) all`},
	{`block return-icmp inet`, `block return-icmp(port-unr) inet all`},
	{`block return-icmp(host-unr, admin-unr)`, `block return-icmp(host-unr, admin-unr) all`},
	{`block return-icmp6(admin-unr) inet6`, `block return-icmp6(admin-unr) inet6 all`},
	{`block log (all, matches, to pflog3)`, `block drop log (all, matches, to pflog3) all`},
	{`pass on ! em0`, `pass on ! em0 all flags S/SA`},
	{`pass on any`, `pass on any all flags S/SA`},
	{`pass on "quick"`, `pass on "quick" all flags S/SA`},
	{`pass out received-on em1`, `pass out all received-on em1 flags S/SA`},
	{`pass out !received-on em1`, `pass out all !received-on em1 flags S/SA`},
	{`block from ! 10/8 to ! <t>`, `block drop inet from ! 10.0.0.0/8 to ! <t>`},
	{`block from 10.0.0.5/24`, `block drop inet from 10.0.0.0/24 to any`},
	{`block from 10.0.0.1 - 10.0.0.5`, `block drop inet from 10.0.0.1 - 10.0.0.5 to any`},
	{`block to (em0:network:0)/24`, `block drop from any to (em0:network:0)/24`},
	{`block from (self) to (self:0)`, `block drop from (self) to (self:0)`},
	{`block tag "flags"`, `block drop all tag "flags"`},
	{`block tag self tagged self`, `block drop all tag self tagged self`},
	{`block inet6 to (em0)`, `block drop inet6 from any to (em0)`},
	{`block from 2001:DB8:0:0::1`, `block drop inet6 from 2001:db8::1 to any`},
	{`block from urpf-failed`, `block drop from urpf-failed to any`},
	{`block proto udp to port != domain`, `block drop proto udp from any to any port != 53`},
	{`block proto tcp from port 1024 >< 2048 to port 22 <> 23`, `block drop proto tcp from any port 1024 >< 2048 to any port 22 <> 23`},
	{`block proto tcp to port <= 1024`, `block drop proto tcp from any to any port <= 1024`},
	{`pass allow-opts once tag A label "x"`, `pass all flags S/SA allow-opts label "x" once tag A`},
	{`pass !tagged "in"`, `pass all flags S/SA ! tagged "in"`},
	{`pass label 'a "b"'`, `pass all flags S/SA label "a \"b\""`},
	{`table <x> persist { 10.0.0.0/8, !10.1.1.1 }`, `table <x> persist { 10.0.0.0/8 !10.1.1.1 }`},
	{`table <x> counters persist const`, `table <x> const persist counters`},
	{`table <x> {}`, `table <x> { }`},
	{`table <x> { 10.0.0.1 weight 5, !10.0.0.0/8 weight 65535 { 10.0.0.2 weight 1 } 10.0.0.3 }`,
		`table <x> { 10.0.0.1 !10.0.0.0/8 10.0.0.2 10.0.0.3 }`},
	{"table <x> { 10.0.0.1 }\ntable <x> persist\ntable <y>", "table <x> { 10.0.0.1 }\ntable <x> persist\ntable <y>"},
	{`anchor "a/*" in on em0 proto tcp to port 80`, `anchor "a/*" in on em0 proto tcp from any to any port = 80`},
	{"anchor a quick {\npass\nanchor {\nblock\n}\n}", "anchor \"a\" quick all {\n  pass all flags S/SA\n  anchor all {\n    block drop all\n  }\n}"},
	{`set skip on lo0`, `set skip on { lo0 }`},
	{`set block-policy return`, `set block-policy return`},
	{`set timeout { tcp.first 5, frag 10 }`, "set timeout tcp.first 5\nset timeout frag 10"},
	{`set optimization aggressive`, `set optimization aggressive`},
	{"set optimization aggressive\nset timeout tcp.first 7", "set optimization aggressive\nset timeout tcp.first 7"},
	{`set limit states 5`, `set limit states 5`},
	{`set hostid 1`, `set hostid 0x00000001`},
	{`set fingerprints "/etc/pf.os"`, `set fingerprints "/etc/pf.os"`},
	{`set state-defaults pflow`, `set state-defaults pflow`},
	{"set state-defaults pflow\npass keep state\npass", "set state-defaults pflow\npass all flags S/SA keep state\npass all flags S/SA keep state (pflow)"},
	{"set state-policy if-bound\npass", "set state-policy if-bound\npass all flags S/SA keep state (if-bound)"},
	{`ether block in quick on em0 proto 0x0806 from 02:00:00:00:00:01 to ! 02:ab:00:00:00:00/24`,
		`ether block in quick on em0 proto 0x0806 from 02:00:00:00:00:01 to ! 02:ab:00:00:00:00/24`},
	{`ether pass proto 0x0800 from 02:00:00:00:00:01&ff:00:00:00:00:ff l3 from 10.0.0.1 tag A`,
		`ether pass proto 0x0800 from 02:00:00:00:00:01&ff:00:00:00:00:ff l3 from 10.0.0.1 to any tag A`},
	{`ether block`, `ether block`},
	{`ether block label A ridentifier 7 tag X label "$nr" !tagged Y`,
		`ether block label "A" label "0" ridentifier 7 tag X ! tagged Y`},
	{`ether block ridentifier 0`, `ether block`},

	{`match out on em0 inet from 10/8 nat-to (em0)`, `match out on em0 inet from 10.0.0.0/8 to any nat-to (em0) round-robin`},
	{`match out on em0 inet from 10/8 nat-to (em0:0)`, `match out on em0 inet from 10.0.0.0/8 to any nat-to (em0:0)`},
	{`match out nat-to (egress:0)`, `match out all nat-to (egress:0) round-robin`}, // a group may have several
	{`match out nat-to (em0)/28 random`, `match out all nat-to (em0)/28 random`},
	{`match out proto { udp, tcp } nat-to 10.0.0.8 static-port`,
		"match out inet proto udp all nat-to 10.0.0.8 static-port\nmatch out inet proto tcp all nat-to 10.0.0.8 static-port"},
	{`match out nat-to 10.0.0.8 port 50001:65535`, `match out inet all nat-to 10.0.0.8`},
	{`match out nat-to 10.0.0.8 port 1024:65535`, `match out inet all nat-to 10.0.0.8 port 1024:65535`},
	{`match out nat-to 10.0.0.8 port http`, `match out inet all nat-to 10.0.0.8 port 80`},
	{`match out nat-to 10.0.0.8 port 80:80`, `match out inet all nat-to 10.0.0.8 port 80`},
	{`match out nat-to { 10.0.0.8, 10.0.1.0/24 }`, `match out inet all nat-to { 10.0.0.8, 10.0.1.0/24 } round-robin`},
	{`match out nat-to { 10.0.0.8 }`, `match out inet all nat-to 10.0.0.8`},
	{`match out nat-to { <t> }`, `match out all nat-to <t> round-robin`},
	{`match out nat-to 10.0.0.8 round-robin`, `match out inet all nat-to 10.0.0.8 round-robin`},
	{`match out nat-to 10.0.0.8/29 bitmask`, `match out inet all nat-to 10.0.0.8/29 bitmask`},
	// as in pf.conf(5); pfctl prints no method
	{`match out nat-to 10.0.0.9/29`, `match out inet all nat-to 10.0.0.8/29 round-robin`},
	{`match out nat-to <x> source-hash "a key" sticky-address`,
		`match out all nat-to <x> source-hash 0xaf0711eb7dab2d53c1a580c4705d7cb7 sticky-address`},
	{`match out nat-to <x> sticky-address source-hash 0x0123456789ABCDEF0123456789ABCDEF`,
		`match out all nat-to <x> source-hash 0x0123456789abcdef0123456789abcdef sticky-address`},
	{`match out nat-to <x> source-hash label y`, `match out all label "y" nat-to <x> source-hash`},
	{`match out nat-to { 10.0.0.1 weight 2, 10.0.0.2 } least-states`,
		`match out inet all nat-to { 10.0.0.1 weight 2, 10.0.0.2 weight 1 } least-states`},
	{`match out inet from { 10.0.0.1, 10.0.0.2 } nat-to { 192.0.2.1, 2001:db8::1 }`,
		"match out inet from 10.0.0.1 to any nat-to 192.0.2.1\nmatch out inet from 10.0.0.2 to any nat-to 192.0.2.1"},
	{`match out from { 10.0.0.1, 2001:db8::2 } nat-to 192.0.2.1`, `match out inet from 10.0.0.1 to any nat-to 192.0.2.1`},
	{`match out nat-to (em0) endpoint-independent`, `match out all nat-to (em0) round-robin endpoint-independent`},
	{`pass in on em0 proto tcp to port 80 rdr-to 10.0.0.1 port 8080`,
		`pass in on em0 inet proto tcp from any to any port = 80 flags S/SA rdr-to 10.0.0.1 port 8080`},
	{`match in proto tcp to port 80:90 rdr-to 10.0.0.1 port 8000:*`,
		`match in inet proto tcp from any to any port 80:90 rdr-to 10.0.0.1 port 8000:8010`},
	{`match in proto tcp to port 80 rdr-to 10.0.0.1 port 8000:*`,
		`match in inet proto tcp from any to any port = 80 rdr-to 10.0.0.1 port 8000`},
	{`match in rdr-to 10.0.0.1 nat-to 10.0.0.2 tag a`, `match in inet all tag a rdr-to 10.0.0.1 nat-to 10.0.0.2`},
	{`match on lo0 from 192.168.1.8 to ! 172.17/16 binat-to 10.0.0.8`,
		"match out on lo0 inet from 192.168.1.8 to ! 172.17.0.0/16 nat-to 10.0.0.8 static-port\n" +
			"match in on lo0 inet from ! 172.17.0.0/16 to 10.0.0.8 rdr-to 192.168.1.8"},
	{`match proto tcp from 192.168.2.0/28 port 5 to 10.1.1.1 port 6 binat-to 10.0.4.0/28`,
		"match out inet proto tcp from 192.168.2.0/28 port = 5 to 10.1.1.1 port = 6 nat-to 10.0.4.0/28 bitmask static-port\n" +
			"match in inet proto tcp from 10.1.1.1 port = 6 to 10.0.4.0/28 port = 5 rdr-to 192.168.2.0/28 bitmask"},
	{`pass from (lo0:0) to 1.1.1.1 binat-to (lo1:0)`,
		"pass out inet from (lo0:0) to 1.1.1.1 flags S/SA nat-to (lo1:0) static-port\n" +
			"pass in inet from 1.1.1.1 to (lo1:0) flags S/SA rdr-to (lo0:0)"},
	{`pass in to 64:ff9b::/96 af-to inet from (em0:0)`, `pass in inet6 from any to 64:ff9b::/96 flags S/SA af-to inet from (em0:0)`},
	{`pass in af-to inet6 from 2001:db8::/96`, `pass in inet all flags S/SA af-to inet6 from 2001:db8::/96`},
	{`pass in af-to inet from 10.0.0.1 port 9:10 sticky-address to { 10.0.0.2, 10.0.0.3 } port 80 random`,
		`pass in inet6 all flags S/SA af-to inet from 10.0.0.1 port 9:10 sticky-address to { 10.0.0.2, 10.0.0.3 } port 80 random`},
	{`pass in inet af-to inet6 from 2001:db8::1 to 2001:db8::/96`, `pass in inet all flags S/SA af-to inet6 from 2001:db8::1 to 2001:db8::/96`},
	{`pass in inet af-to inet6 from 2001:db8::1 to 2001:db8::/120`, `pass in inet all flags S/SA af-to inet6 from 2001:db8::1 to 2001:db8::/120`},
	{`pass in inet6 af-to inet from 10.0.0.1 to 10.1.0.0/24`, `pass in inet6 all flags S/SA af-to inet from 10.0.0.1 to 10.1.0.0/24`},
	{`pass in inet6 af-to inet from 10.0.0.0/24 to <t>`, `pass in inet6 all flags S/SA af-to inet from 10.0.0.0/24 round-robin to <t> round-robin`},
	{`pass in route-to 192.0.2.1`, `pass in inet all flags S/SA route-to 192.0.2.1`},
	{`pass out reply-to { 2001:db8::1, 2001:db8::2 } random`, `pass out inet6 all flags S/SA reply-to { 2001:db8::1, 2001:db8::2 } random`},
	{`pass dup-to (em0:peer)`, `pass all flags S/SA dup-to (em0:peer) round-robin`},
	{`pass in proto tcp to port 80 divert-to ::1 port 8021`, `pass in inet6 proto tcp from any to any port = 80 flags S/SA divert-to ::1 port 8021`},
	{`pass out divert-reply`, `pass out all flags S/SA divert-reply`},
	{`pass divert-packet port 700 tag a`, `pass all flags S/SA tag a divert-packet port 700`},

	{`nat on em0 from 10/8 to any -> (em0)`, "pass out on em0 inet from 10.0.0.0/8 to any flags any\nmatch out on em0 inet from 10.0.0.0/8 to any nat-to (em0) round-robin"},
	{`nat on em0 from 10/8 to any -> 192.0.2.1 port 1024:65535 sticky-address`,
		"pass out on em0 inet from 10.0.0.0/8 to any flags any\nmatch out on em0 inet from 10.0.0.0/8 to any nat-to 192.0.2.1 port 1024:65535 sticky-address"},
	{`rdr on em0 proto tcp from any to 192.0.2.1 port 80 -> 10.0.0.1 port 8080`,
		"pass in on em0 inet proto tcp from any to 192.0.2.1 port = 80 flags any\nmatch in on em0 inet proto tcp from any to 192.0.2.1 port = 80 rdr-to 10.0.0.1 port 8080"},
	{`rdr pass log on em0 proto tcp to port 2000:2010 -> 10.0.0.1 port 80:*`,
		`pass in log quick on em0 inet proto tcp from any to any port 2000:2010 flags any rdr-to 10.0.0.1 port 80:90`},
	{`binat on em0 from 10.0.0.1 to any -> 192.0.2.1`,
		"pass out on em0 inet from 10.0.0.1 to any flags any\nmatch out on em0 inet from 10.0.0.1 to any nat-to 192.0.2.1 static-port\npass in on em0 inet from any to 192.0.2.1 flags any\nmatch in on em0 inet from any to 192.0.2.1 rdr-to 10.0.0.1"},
	// The order is the order in which FreeBSD tries them.
	{"nat on em0 from 10/8 -> 192.0.2.1\nbinat on em0 from 10.0.0.1 to 1.1.1.1 -> 192.0.2.2\nrdr on em0 to 192.0.2.3 -> 10.0.0.3\npass",
		"pass in on em0 inet from any to 192.0.2.3 flags any\nmatch in on em0 inet from any to 192.0.2.3 rdr-to 10.0.0.3\n" +
			"pass out on em0 inet from 10.0.0.1 to 1.1.1.1 flags any\nmatch out on em0 inet from 10.0.0.1 to 1.1.1.1 nat-to 192.0.2.2 static-port\n" +
			"pass in on em0 inet from 1.1.1.1 to 192.0.2.2 flags any\nmatch in on em0 inet from 1.1.1.1 to 192.0.2.2 rdr-to 10.0.0.1\n" +
			"pass out on em0 inet from 10.0.0.0/8 to any flags any\nmatch out on em0 inet from 10.0.0.0/8 to any nat-to 192.0.2.1\n" +
			"pass all flags S/SA"},
	// The first match is final: a translated packet is not translated
	// again.
	{"nat on em0 from 10/8 -> 192.0.2.1\nnat on em0 -> 192.0.2.2",
		"pass out on em0 inet from 10.0.0.0/8 to any flags any\nmatch out on em0 inet from 10.0.0.0/8 to any tag nat-done nat-to 192.0.2.1\npass out on em0 inet all flags any ! tagged nat-done\nmatch out on em0 inet all ! tagged nat-done nat-to 192.0.2.2"},
	{"no nat on em0 from 10/8 to 10/8\nnat on em0 from 10/8 -> 192.0.2.1\nno rdr on em1\nrdr on em0 to 192.0.2.1 -> 10.0.0.1",
		"pass in on em0 inet from any to 192.0.2.1 flags any\nmatch in on em0 inet from any to 192.0.2.1 rdr-to 10.0.0.1\n" +
			"match out on em0 inet from 10.0.0.0/8 to 10.0.0.0/8 tag nat-done\n" +
			"pass out on em0 inet from 10.0.0.0/8 to any flags any ! tagged nat-done\nmatch out on em0 inet from 10.0.0.0/8 to any ! tagged nat-done nat-to 192.0.2.1"},
	{"rdr on em0 proto tcp to port 80 -> 10.0.0.1\nrdr on em0 proto tcp to port 22 -> 10.0.0.2",
		"pass in on em0 inet proto tcp from any to any port = 80 flags any\nmatch in on em0 inet proto tcp from any to any port = 80 rdr-to 10.0.0.1\npass in on em0 inet proto tcp from any to any port = 22 flags any\nmatch in on em0 inet proto tcp from any to any port = 22 rdr-to 10.0.0.2"},
	{"rdr on em0 proto tcp to port 80 -> 10.0.0.1 port 22\nrdr on em0 proto tcp to port 22 -> 10.0.0.2",
		"pass in on em0 inet proto tcp from any to any port = 80 flags any\nmatch in on em0 inet proto tcp from any to any port = 80 tag rdr-done rdr-to 10.0.0.1 port 22\n" +
			"pass in on em0 inet proto tcp from any to any port = 22 flags any ! tagged rdr-done\nmatch in on em0 inet proto tcp from any to any port = 22 ! tagged rdr-done rdr-to 10.0.0.2"},
	{"nat pass on em0 -> 192.0.2.1\nnat on em0 -> 192.0.2.2\nno binat",
		"match out all tag nat-done\n" +
			"pass out quick on em0 inet all flags any ! tagged nat-done nat-to 192.0.2.1\n" +
			"pass out on em0 inet all flags any ! tagged nat-done\nmatch out on em0 inet all ! tagged nat-done nat-to 192.0.2.2"},
	{"anchor {\nnat on em0 -> 192.0.2.1\n}\nblock label \"$nr\"", "anchor all {\n  pass out on em0 inet all flags any\n  match out on em0 inet all nat-to 192.0.2.1\n}\nblock drop all label \"1\""},
	{"nat on em0 tag a tagged b -> 192.0.2.1", "pass out on em0 inet all flags any tagged b\nmatch out on em0 inet all tag a tagged b nat-to 192.0.2.1"},
}

func TestPrinted(t *testing.T) {
	for _, test := range printed {
		t.Run(test.in, func(t *testing.T) {
			rs, err := pf.Parse("pf.conf", []byte(test.in+"\n"), pf.Source{})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSuffix(rs.String(), "\n"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// The name of a table's file is printed instead of its contents, behind the
// entries of the list.
func TestTableOfFilePrinted(t *testing.T) {
	open := func(string) ([]byte, error) { return []byte("10.0.0.1\n!10.0.0.2 # no\n"), nil }
	rs, err := pf.Parse("pf.conf", []byte("table <x> file \"/etc/bad\" { 192.0.2.0/24 }\n"), pf.Source{Open: open})
	if err != nil {
		t.Fatal(err)
	}
	want := `table <x> { 192.0.2.0/24 } file "/etc/bad"`
	if got := rs.Tables[0].String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if n := len(rs.Tables[0].Entries); n != 3 {
		t.Errorf("the table has %d entries, want 3", n)
	}
}
