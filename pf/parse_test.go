// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"
)

// files and addresses are used by the files of tests.
var files = map[string]string{
	"/etc/mail/nospamd":   "# comment\n192.0.2.1\n!192.0.2.0/28 weight 3 192.0.2.2 ; more\n2001:db8::/32\nlocalhost\n",
	"/etc/bad":            "192.0.2.1\n192.0.2.300\n  nowhere.example\n192.0.2.0/33\n",
	"/etc/weights":        "192.0.2.1 weight\n5 weight 0 weight x 192.0.2.2 weight 65536\nweight",
	"/etc/masks":          "em0/64\nem0:network/28\n",
	"/etc/pf/spam.conf":   "table <spammers> persist\nset block-policy return\nblock from <spammers>\n",
	"/etc/pf/nat.conf":    "no nat to 10/8\n nat -> 192.0.2.1\n",
	"/etc/pf/local.conf":  "pass from 192.0.2.99\n",
	"/etc/pf/macro.conf":  "inner = em1\n",
	"/etc/pf/wrong.conf":  "pass in\n\tpass form any\n",
	"/etc/pf/loop.conf":   "include \"/etc/pf/loop.conf\"\n",
	"/etc/pf/reload.conf": "load anchor a from \"/etc/pf/reload.conf\"\n",
}

var addresses = map[string]string{
	"em0":         "192.0.2.1/32 2001:db8::1/128",
	"em0:network": "192.0.2.0/24 2001:db8::/64",
	"em0:0":       "192.0.2.1/32",
	"lo0":         "127.0.0.1/32 ::1/128",
	"lo0:network": "127.0.0.0/8 ::1/128",
	"lo9":         "127.0.0.1/32 fe80::1/128 198.51.100.9/32",
	"lo9:network": "127.0.0.0/8 198.51.100.9/32",
	"em8":         "2001:db8:8::1/128 fe80::8/128 198.51.100.8/32",
	"ll0":         "fe80::9/128",
	"em9":         "",
	"192.0.2.7:0": "192.0.2.7/32",
	"self":        "127.0.0.1/32 192.0.2.1/32",
	"localhost":   "127.0.0.1/32 ::1/128",
	"example.org": "203.0.113.7/32",
}

var source = Source{
	Open: func(name string) ([]byte, error) {
		text, ok := files[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return []byte(text), nil
	},
	Lookup: func(name string, modes []string) ([]netip.Prefix, error) {
		list, ok := addresses[strings.Join(append([]string{name}, modes...), ":")]
		if !ok {
			return nil, errors.New("no such name")
		}
		var prefixes []netip.Prefix
		for _, s := range strings.Fields(list) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		return prefixes, nil
	},
	Macros: map[string]string{"given": "em7"},
}

// For comparing rulesets: places do not count, nor the difference of nil and
// empty lists.
var placeless = cmp.Options{
	cmpopts.IgnoreTypes(Pos{}, Place{}, []PortName(nil)), cmpopts.IgnoreFields(Ruleset{}, "Ignored"),
	cmpopts.IgnoreFields(Pool{}, "By"), cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func parse(t *testing.T, text string) *Ruleset {
	t.Helper()
	set, err := Parse("pf.conf", []byte(text), source)
	if err != nil {
		t.Fatalf("%s\nis refused:\n%v", text, err)
	}
	return set
}

// stateful is the meaning of `pass` alone.
var stateful = Rule{Action: Pass, State: KeepState, Flags: TCPFlags{SYN, SYN | ACK}}

// with returns a changed copy of a rule.
func with(r Rule, change func(*Rule)) Rule {
	change(&r)
	return r
}

func prefix(s string) Host {
	p := netip.MustParsePrefix(s)
	return Host{Kind: Prefix, Addr: p.Addr(), Bits: p.Bits()}
}

func TestParseRule(t *testing.T) {
	drop := Rule{Action: Block, Return: ReturnDrop}
	tcp := with(stateful, func(r *Rule) { r.HasProto, r.Proto = true, 6 })
	udp := Rule{Action: Pass, State: KeepState, HasProto: true, Proto: 17}
	ping := Rule{Action: Pass, State: KeepState, Family: Inet, HasProto: true, Proto: 1, HasICMP: true, ICMPType: 8}
	tests := []struct {
		text string
		want Rule
	}{
		{"pass", stateful},
		{"pass all", stateful},
		{"pass from any to any", stateful},
		{"block", drop},
		{"match", Rule{Action: Match}},
		{"pass no state", Rule{Action: Pass}},
		{"pass in", with(stateful, func(r *Rule) { r.Direction = In })},
		{"pass out quick", with(stateful, func(r *Rule) { r.Direction, r.Quick = Out, true })},
		{"pass log quick", with(stateful, func(r *Rule) { r.Log, r.Quick = Logged, true })},
		{"pass quick log", with(stateful, func(r *Rule) { r.Log, r.Quick = Logged, true })},
		{"pass log (all, matches, user, to pflog3)", with(stateful, func(r *Rule) {
			r.Log, r.LogTo = Logged|LogAll|LogMatches|LogUser, "pflog3"
		})},
		{"pass log (to pflog0)", with(stateful, func(r *Rule) { r.Log = Logged })},
		{"pass on em0", with(stateful, func(r *Rule) { r.On.Name = "em0" })},
		{"pass on ! em0", with(stateful, func(r *Rule) { r.On = Interface{"em0", true} })},
		{"pass on any", with(stateful, func(r *Rule) { r.On.Name = "any" })},
		{"pass inet6", with(stateful, func(r *Rule) { r.Family = Inet6 })},
		{"pass proto tcp", tcp},
		{"pass proto 6", tcp},
		{"pass proto udp", udp},
		{"pass proto UDP", udp},
		{"pass proto skip no state", Rule{Action: Pass, HasProto: true, Proto: 57}},

		{"block drop", drop},
		{"block return", Rule{Action: Block, Return: ReturnAll}},
		{"block return-rst proto tcp", Rule{Action: Block, Return: ReturnRST, HasProto: true, Proto: 6}},
		{"block return-rst (ttl 5) proto tcp", Rule{Action: Block, Return: ReturnRST, ReturnTTL: 5, HasProto: true, Proto: 6}},
		{"block return-icmp", Rule{Action: Block, Return: ReturnICMP}},
		{"block return-icmp (port-unr)", Rule{Action: Block, Return: ReturnICMP}},
		{"block return-icmp (host-unr, admin-unr)", Rule{
			Action: Block, Return: ReturnICMP, ReturnICMP4: ICMPCode{3, 1}, ReturnICMP6: ICMPCode{1, 1},
		}},
		{"block return-icmp6 (3)", Rule{Action: Block, Return: ReturnICMP, ReturnICMP6: ICMPCode{1, 3}}},

		{"pass from 192.0.2.1", with(stateful, func(r *Rule) { r.Family, r.From.Host = Inet, prefix("192.0.2.1/32") })},
		{"pass from 192.0.2.1/24", with(stateful, func(r *Rule) { r.Family, r.From.Host = Inet, prefix("192.0.2.0/24") })},
		{"pass from 10/8", with(stateful, func(r *Rule) { r.Family, r.From.Host = Inet, prefix("10.0.0.0/8") })},
		{"pass from 172.16/12", with(stateful, func(r *Rule) { r.Family, r.From.Host = Inet, prefix("172.16.0.0/12") })},
		{"pass from 0/0", with(stateful, func(r *Rule) { r.Family, r.From.Host = Inet, prefix("0.0.0.0/0") })},
		{"pass to ::1", with(stateful, func(r *Rule) { r.Family, r.To.Host = Inet6, prefix("::1/128") })},
		{"pass to ! 2001:db8::1/32", with(stateful, func(r *Rule) {
			r.Family, r.To.Not, r.To.Host = Inet6, true, prefix("2001:db8::/32")
		})},
		{"pass to fe80::1%em1", with(stateful, func(r *Rule) {
			r.Family, r.On.Name, r.To.Host = Inet6, "em1", prefix("fe80::1/128")
		})},
		{"pass from 192.0.2.1 - 192.0.2.9", with(stateful, func(r *Rule) {
			r.Family = Inet
			r.From.Host = Host{Kind: Range, Addr: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.9")}
		})},
		{"pass from <bad> to !<good>", with(stateful, func(r *Rule) {
			r.From.Host = Host{Kind: InTable, Name: "bad"}
			r.To = Endpoint{Not: true, Host: Host{Kind: InTable, Name: "good"}}
		})},
		{"pass from (em0)", with(stateful, func(r *Rule) { r.From.Host = Host{Kind: Dynamic, Name: "em0", Bits: -1} })},
		{"pass from (em0:0:network)/24", with(stateful, func(r *Rule) {
			r.From.Host = Host{Kind: Dynamic, Name: "em0", Modes: []string{"network", "0"}, Bits: 24}
		})},
		{"pass from no-route", with(stateful, func(r *Rule) { r.From.Host.Kind = NoRoute })},
		{"pass from urpf-failed", with(stateful, func(r *Rule) { r.From.Host.Kind = URPFFailed })},

		{"pass proto tcp from any port 22", with(tcp, func(r *Rule) { r.From.Port = Port{Op: PortEqual, Lo: 22} })},
		{"pass proto tcp to port = ssh", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortEqual, Lo: 22} })},
		{"pass proto tcp to port 0x16", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortEqual, Lo: 22} })},
		{"pass proto tcp to port pptp", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortEqual, Lo: 1723} })},
		{"pass proto tcp to port != 22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortNotEqual, Lo: 22} })},
		{"pass proto tcp to port <22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortLess, Lo: 22} })},
		{"pass proto tcp to port <=22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortAtMost, Lo: 22} })},
		{"pass proto tcp to port > 22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortGreater, Lo: 22} })},
		{"pass proto tcp to port >= 22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortAtLeast, Lo: 22} })},
		{"pass proto tcp to port 20 >< 22", with(tcp, func(r *Rule) { r.To.Port = Port{PortInside, 20, 22} })},
		{"pass proto tcp to port 20<>22", with(tcp, func(r *Rule) { r.To.Port = Port{PortOutside, 20, 22} })},
		{"pass proto tcp to port ftp-data:ssh", with(tcp, func(r *Rule) { r.To.Port = Port{PortRange, 20, 22} })},
		{"pass proto tcp to port 22:22", with(tcp, func(r *Rule) { r.To.Port = Port{Op: PortEqual, Lo: 22} })},

		{"pass flags any", Rule{Action: Pass, State: KeepState}},
		{"pass flags S/SAFRUPEW", with(stateful, func(r *Rule) { r.Flags.Of = 0xff })},
		{"pass proto tcp flags /SF", with(tcp, func(r *Rule) { r.Flags = TCPFlags{0, SYN | FIN} })},
		{"pass no state flags S/SA", Rule{Action: Pass, Flags: TCPFlags{SYN, SYN | ACK}}},
		{"pass fragment", Rule{Action: Pass, State: KeepState, Fragment: true}},
		{"pass inet proto icmp icmp-type echoreq", ping},
		{"pass inet proto icmp icmp-type 8", ping},
		{"pass inet proto icmp icmp-type unreach code needfrag", with(ping, func(r *Rule) {
			r.ICMPType, r.HasCode, r.ICMPCode = 3, true, 4
		})},
		{"pass inet6 proto icmp6 icmp6-type listqry code 0", with(ping, func(r *Rule) {
			r.Family, r.Proto, r.ICMPType, r.HasCode = Inet6, 58, 130, true
		})},
		{"pass tos lowdelay", with(stateful, func(r *Rule) { r.HasTOS, r.TOS = true, 0x10 })},
		{"pass tos EF", with(stateful, func(r *Rule) { r.HasTOS, r.TOS = true, 0xb8 })},
		{"pass tos 0x12", with(stateful, func(r *Rule) { r.HasTOS, r.TOS = true, 0x12 })},
		{"pass tos 0", with(stateful, func(r *Rule) { r.HasTOS = true })},
		{"pass prio 0", with(stateful, func(r *Rule) { r.HasPrio = true })},
		{"pass set prio 3", with(stateful, func(r *Rule) { r.SetPrio = [2]uint8{4, 4} })},
		{"pass set (prio (0, 7))", with(stateful, func(r *Rule) { r.SetPrio = [2]uint8{1, 8} })},
		{"pass set tos 0x12", with(stateful, func(r *Rule) { r.Scrub = Scrub{SetTOS: true, TOS: 0x12} })},
		{"pass set tos 0", with(stateful, func(r *Rule) { r.Scrub.SetTOS = true })},
		{"pass set (tos lowdelay, prio 3)", with(stateful, func(r *Rule) {
			r.Scrub, r.SetPrio = Scrub{SetTOS: true, TOS: 0x10}, [2]uint8{4, 4}
		})},
		{"pass scrub (no-df)", with(stateful, func(r *Rule) { r.Scrub.NoDF = true })},
		{"pass scrub (max-mss 1440, min-ttl 5 random-id no-df)", with(stateful, func(r *Rule) {
			r.Scrub = Scrub{NoDF: true, RandomID: true, MinTTL: 5, MaxMSS: 1440}
		})},
		{"pass scrub (max-mss 0 min-ttl 255)", with(stateful, func(r *Rule) { r.Scrub.MinTTL = 255 })},
		{"pass scrub (reassemble tcp, no-df)", with(stateful, func(r *Rule) { r.Scrub.NoDF, r.Scrub.ReassembleTCP = true, true })},
		{"match scrub (max-mss 65535)", Rule{Action: Match, Scrub: Scrub{MaxMSS: 65535}}},
		{"pass allow-opts once", with(stateful, func(r *Rule) { r.AllowOpts, r.Once = true, true })},
		{"pass tag a tagged b", with(stateful, func(r *Rule) { r.Tag, r.Tagged = "a", "b" })},
		{"pass ! tagged b", with(stateful, func(r *Rule) { r.Tagged, r.NotTagged = "b", true })},
		{"pass !received-on em0", with(stateful, func(r *Rule) { r.ReceivedOn = Interface{"em0", true} })},
		{"pass label 'a b'", with(stateful, func(r *Rule) { r.Label = "a b" })},
		{"pass probability 25%", with(stateful, func(r *Rule) { r.Probability = 0.25 })},
		{"pass probability 0.5", with(stateful, func(r *Rule) { r.Probability = 0.5 })},
		{"pass probability 1", with(stateful, func(r *Rule) { r.Probability = 1 })},

		{"pass keep state", stateful},
		{"pass modulate state", with(stateful, func(r *Rule) { r.State = ModulateState })},
		{"pass proto udp modulate state", udp},
		{"pass proto tcp synproxy state", with(tcp, func(r *Rule) { r.State = SynproxyState })},
		{"pass proto udp synproxy state", udp},
		{"pass keep state (if-bound, sloppy, no-sync pflow, tcp.closing 5)", with(stateful, func(r *Rule) {
			r.StateOpts.Policy, r.StateOpts.Sloppy, r.StateOpts.NoSync, r.StateOpts.Pflow = IfBound, true, true, true
			r.StateOpts.Timeouts[TCPClosing] = Timeout{true, 5}
		})},
		{"pass keep state (max 100)", with(stateful, func(r *Rule) {
			r.StateOpts.Max = 100
			r.StateOpts.Timeouts[AdaptiveStart], r.StateOpts.Timeouts[AdaptiveEnd] = Timeout{true, 60}, Timeout{true, 120}
		})},
		{"pass keep state (max 100 adaptive.start 0)", with(stateful, func(r *Rule) {
			r.StateOpts.Max, r.StateOpts.Timeouts[AdaptiveStart].Given = 100, true
		})},
		{"pass keep state (max-src-states 3)", with(stateful, func(r *Rule) {
			r.StateOpts.SourceTrack, r.StateOpts.MaxSrcStates = SourceTrackGlobal, 3
		})},
		{"pass keep state (max-src-nodes 3)", with(stateful, func(r *Rule) {
			r.StateOpts.SourceTrack, r.StateOpts.MaxSrcNodes = SourceTrackRule, 3
		})},
		{"pass keep state (max-src-conn-rate 100/10, overload <bad> flush global)", with(stateful, func(r *Rule) {
			o := &r.StateOpts
			o.SourceTrack, o.MaxSrcConnRate, o.MaxSrcConnSecs = SourceTrackRule, 100, 10
			o.Overload, o.OverloadFlush, o.OverloadGlobal = "bad", true, true
			o.Timeouts[SrcTrack] = Timeout{true, 10}
		})},

		{"anchor foo", Rule{Action: CallAnchor, Anchor: &Anchor{Name: "foo"}}},
		{"anchor \"foo/*\" in quick on em0 proto tcp to port 25 tagged x", Rule{
			Action: CallAnchor, Direction: In, Quick: true, On: Interface{Name: "em0"}, HasProto: true, Proto: 6,
			To: Endpoint{Port: Port{Op: PortEqual, Lo: 25}}, Tagged: "x", Anchor: &Anchor{Name: "foo/*"},
		}},
	}
	for _, test := range tests {
		set := parse(t, test.text)
		if diff := cmp.Diff([]Rule{test.want}, set.Rules, placeless); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.text, diff)
		}
	}
}

// Lists, macros and other short forms, with their expansions.
func TestExpand(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"lists", "pass in on { em0, em1 } proto { tcp udp } from { 192.0.2.1 192.0.2.2 } to port { 22, 80 }", `
			pass in on em0 inet proto tcp from 192.0.2.1 to port 22
			pass in on em0 inet proto tcp from 192.0.2.1 to port 80
			pass in on em0 inet proto tcp from 192.0.2.2 to port 22
			pass in on em0 inet proto tcp from 192.0.2.2 to port 80
			pass in on em0 inet proto udp from 192.0.2.1 to port 22
			pass in on em0 inet proto udp from 192.0.2.1 to port 80
			pass in on em0 inet proto udp from 192.0.2.2 to port 22
			pass in on em0 inet proto udp from 192.0.2.2 to port 80
			pass in on em1 inet proto tcp from 192.0.2.1 to port 22
			pass in on em1 inet proto tcp from 192.0.2.1 to port 80
			pass in on em1 inet proto tcp from 192.0.2.2 to port 22
			pass in on em1 inet proto tcp from 192.0.2.2 to port 80
			pass in on em1 inet proto udp from 192.0.2.1 to port 22
			pass in on em1 inet proto udp from 192.0.2.1 to port 80
			pass in on em1 inet proto udp from 192.0.2.2 to port 22
			pass in on em1 inet proto udp from 192.0.2.2 to port 80`},
		{"lists in lists and lines", "a = \"{ 192.0.2.1\n 192.0.2.2 }\"\npass from { !10/8,\n $a { <t> } }", `
			pass from ! 10.0.0.0/8
			pass from 192.0.2.1
			pass from 192.0.2.2
			pass from <t>`},
		{"any in a list", "pass from { 192.0.2.1 any }", "pass"},
		{"nat-to a name with a link-local address", "match out inet6 nat-to em8\nmatch in inet6 rdr-to em8 port 80", `
			match out inet6 nat-to 2001:db8:8::1
			match in inet6 rdr-to 2001:db8:8::1 port 80`},
		{"binat-to a name with a link-local address", "match inet6 from 2001:db8::7 binat-to em8",
			"match inet6 from 2001:db8::7 binat-to 2001:db8:8::1"},
		{"nat-to a name", "match out inet nat-to em0\nmatch out inet6 nat-to em0", `
			match out inet nat-to 192.0.2.1
			match out inet6 nat-to 2001:db8::1`},
		{"nat of FreeBSD to a name of both families", "nat on em1 -> em0\nnat on em1 inet6 -> em0", `
			pass out on em1 inet flags any
			match out on em1 inet nat-to 192.0.2.1
			pass out on em1 inet6 flags any
			match out on em1 inet6 nat-to 2001:db8::1`},
		{"nat of FreeBSD with a port alone", "nat on em1 inet from any to any port 500 -> 192.0.2.1 static-port", `
			pass out on em1 inet proto tcp to port 500 flags any
			match out on em1 inet proto tcp to port 500 nat-to 192.0.2.1 static-port
			pass out on em1 inet proto udp to port 500
			match out on em1 inet proto udp to port 500 nat-to 192.0.2.1 static-port`},
		{"a port that stays for all", "match out nat-to 192.0.2.0/28 static-port endpoint-independent",
			"match out nat-to 192.0.2.0/28 static-port sticky-address"},
		{"next hops of FreeBSD", "pass in on em0 route-to { (em1 192.0.2.9), (em2 198.51.100.9) } round-robin inet from 10/8 to any keep state",
			"pass in on em0 inet from 10/8 route-to { 192.0.2.9, 198.51.100.9 } round-robin"},
		{"labels", "pass label a ridentifier 7 label '$if' label 'c d'", "pass label a label 'any' label 'c d' ridentifier 7"},
		{"owners", "pass out proto { tcp udp } user { root, >= 1000, 5 >< 9 } group != wheel", `
			pass out proto tcp user = root group != wheel
			pass out proto tcp user >= 1000 group != wheel
			pass out proto tcp user 5 >< 9 group != wheel
			pass out proto udp user = root group != wheel
			pass out proto udp user >= 1000 group != wheel
			pass out proto udp user 5 >< 9 group != wheel`},
		{"a backslash before a blank", "pass from { 192.0.2.1, \\ \n 192.0.2.2 } \\# web", "pass from { 192.0.2.1 192.0.2.2 }"},
		{"a file with its lines in any order", "set require-order no\npass in\nscrub in no-df\nnat on em1 -> 192.0.2.1", `
			match in scrub (no-df)
			pass out on em1 inet flags any
			match out on em1 inet nat-to 192.0.2.1
			pass in`},
		{"scrub", "scrub in on em0 all fragment reassemble\nscrub out on em0 no-df random-id min-ttl 64 max-mss 1440 set-tos lowdelay reassemble tcp", `
			match out on em0 scrub (no-df random-id min-ttl 64 max-mss 1440 reassemble tcp) set tos lowdelay`},
		{"the first scrub holds", "scrub on em0 max-mss 1400 no-df\nscrub max-mss 1440", `
			match scrub (max-mss 1440)
			match on em0 scrub (max-mss 1400 no-df)`},
		{"a scrub that is not reached", "scrub in all\nscrub on em0 max-mss 1440", "match out on em0 scrub (max-mss 1440)"},
		{"scrubs with marks", "no scrub in from 10/8\nscrub max-mss 1440", `
			match in from 10/8 tag scrubbed-in
			match in ! tagged scrubbed-in scrub (max-mss 1440)
			match out scrub (max-mss 1440)`},
		{"anchors of FreeBSD", "nat-anchor 'a/*'\nrdr-anchor \"b\" on em0 proto tcp to port 80\nscrub-anchor c\nbinat-anchor d\nnat on em0 -> 192.0.2.1\nanchor 'a/*'", `
			scrub-anchor c
			rdr-anchor "b" on em0 proto tcp to port 80
			binat-anchor d
			nat-anchor "a/*"
			pass out on em0 inet flags any
			match out on em0 inet nat-to 192.0.2.1
			anchor "a/*"`},
		{"queues that are ignored", "set ignore queue\naltq on em0 priq bandwidth 10Mb queue { a, b }\nqueue a on em0 bandwidth 5M {\n b, c }\n" +
			"dummynet in proto tcp pipe 1\npass queue (a, b) tag x\nmatch set (queue a, prio 5) label y\npass dnpipe 1 tag z", `
			pass tag x
			match set prio 5 label y
			pass tag z`},
		{"divert-to a name", "pass in inet6 divert-to localhost port 80", "pass in inet6 divert-to ::1 port 80"},
		{"families", "pass from { 192.0.2.1 2001:db8::1 } to { 192.0.2.9 2001:db8::9 <t> }", `
			pass from 192.0.2.1 to 192.0.2.9
			pass inet from 192.0.2.1 to <t>
			pass from 2001:db8::1 to 2001:db8::9
			pass inet6 from 2001:db8::1 to <t>`},
		{"a family", "pass inet from { 192.0.2.1 2001:db8::1 }", "pass from 192.0.2.1"},
		{"a link-local address", "pass on { em0 em1 } from fe80::1%em1", "pass on em1 from fe80::1"},
		{"protocols", "pass proto { tcp udp } synproxy state", "pass proto tcp synproxy state\npass proto udp"},
		{"flags of protocols", "pass proto { tcp udp } flags S/S", "pass proto tcp flags S/S\npass proto udp"},
		{"icmp", "pass inet proto icmp icmp-type { echoreq, unreach code 4 }", `
			pass inet proto icmp icmp-type 8
			pass inet proto icmp icmp-type 3 code needfrag`},

		{"names", "pass from { self em0:0 example.org/24 }", `
			pass from 127.0.0.1
			pass from 192.0.2.1
			pass from 192.0.2.1
			pass from 203.0.113.0/24`},
		{"a mask of a name", "pass from em0/64 to { self/24 em0/48 }", `
			pass from 192.0.2.1 to 127.0.0.0/24
			pass from 192.0.2.1 to 192.0.2.0/24
			pass from 192.0.2.1 to 192.0.2.1
			pass from 2001:db8::/64 to 2001:db8::/48`},
		{"a mask of the address of now", "pass from { 192.0.2.1 2001:db8::1 } to (em0:network)/40", `
			pass inet from 192.0.2.1 to (em0:network)
			pass inet6 from 2001:db8::1 to (em0:network)/40`},
		{"a mask that changes nothing", "pass inet from (em0)/64 to (em1)/32\npass inet6 from (em0)/128\npass from (em0)/128 to (em1)/64", `
			pass inet from (em0) to (em1)
			pass inet6 from (em0)
			pass from (em0) to (em1)/64`},
		{"the first address of a name", "pass from 192.0.2.7:0", "pass from 192.0.2.7"},
		{"a name not", "pass from ! em0:network", "pass from ! 192.0.2.0/24\npass from ! 2001:db8::/64"},

		{"macros", "if = em0\nnet = $if:network\nports = \"{ 22 80 }\"\npass on $if inet proto tcp from $if:network to port $ports", `
			pass on em0 proto tcp from 192.0.2.0/24 to port 22
			pass on em0 proto tcp from 192.0.2.0/24 to port 80`},
		{"macros of macros", "a = 192.0.2.1\nb = 80\nc = \"proto tcp from {\" $a \"192.0.2.2 } to port\" $b\npass $c", `
			pass proto tcp from 192.0.2.1 to port 80
			pass proto tcp from 192.0.2.2 to port 80`},
		{"a macro that changes", "a = em0\npass on $a\na = em1\npass on $a", "pass on em0\npass on em1"},
		{"a macro of -D", "given = em0\npass on $given", "pass on em7"},
		{"a macro of an included file", "include '/etc/pf/macro.conf'\npass on $inner", "pass on em1"},
		{"numbers in macros", "p = 080\npass proto tcp to port $p", "pass proto tcp to port 80"},

		{"continued lines", "pass in \\\n on \\\n\tem0 # a comment \\\n that goes on\nblock", "pass in on em0\nblock"},
		{"a continued word", "pa\\\nss", "pass"},
		{"carriage returns", "pass in\r\npass \\\r\n out\r\n", "pass in\npass out"},
		{"no last newline", "pass\nblock", "pass\nblock\n"},
		{"a quoted keyword", "pass on \"quick\" tag 'pa\\'ss'", "pass on \"quick\" tag \"pa'ss\""},

		{"labels", "pass on em0 proto tcp from 192.0.2.1 port >1023 to { ! 10/8 <t> (em0) } port { 22 80:90 } " +
			"label '$if $srcaddr $dstaddr $srcport $dstport $proto $nr' tag '$proto$nr' tagged '$dstport'", `
			pass on em0 proto tcp from 192.0.2.1 port >1023 to ! 10/8 port 22 tag tcp0 tagged '22' label "em0 192.0.2.1 ! 10.0.0.0/8 >1023 22 tcp 0"
			pass on em0 proto tcp from 192.0.2.1 port >1023 to ! 10/8 port 80:90 tag tcp1 tagged '80:90' label "em0 192.0.2.1 ! 10.0.0.0/8 >1023 80:90 tcp 1"
			pass on em0 inet proto tcp from 192.0.2.1 port >1023 to <t> port 22 tag tcp2 tagged '22' label "em0 192.0.2.1 <t> >1023 22 tcp 2"
			pass on em0 inet proto tcp from 192.0.2.1 port >1023 to <t> port 80:90 tag tcp3 tagged '80:90' label "em0 192.0.2.1 <t> >1023 80:90 tcp 3"
			pass on em0 inet proto tcp from 192.0.2.1 port >1023 to (em0) port 22 tag tcp4 tagged '22' label "em0 192.0.2.1 (em0) >1023 22 tcp 4"
			pass on em0 inet proto tcp from 192.0.2.1 port >1023 to (em0) port 80:90 tag tcp5 tagged '80:90' label "em0 192.0.2.1 (em0) >1023 80:90 tcp 5"`},
		{"labels of any", "pass label '$if $srcaddr $srcport $proto'", "pass label 'any any  ip'"},

		{"antispoof", "antispoof for em0", `
			block drop in on ! em0 inet from 192.0.2.0/24
			block drop in on ! em0 inet6 from 2001:db8::/64
			block drop in inet from 192.0.2.1
			block drop in inet6 from 2001:db8::1`},
		{"antispoof log", "antispoof log (all) quick for { lo0, em0 } inet label 'spoof $if'", `
			block drop in log (all) quick on ! lo0 inet from 127.0.0.0/8 label 'spoof lo0'
			block drop in log (all) quick on ! em0 inet from 192.0.2.0/24 label 'spoof em0'
			block drop in log (all) quick inet from 192.0.2.1 label 'spoof any'`},
		{"antispoof of a loopback with other addresses", "antispoof for lo9", `
			block drop in on ! lo9 inet from 127.0.0.0/8
			block drop in on ! lo9 inet from 198.51.100.9`},
		{"antispoof dynamic", "antispoof for { (em0) (lo0) } inet6", `
			block drop in on ! em0 inet6 from (em0:network)
			block drop in inet6 from (em0)
			block drop in on ! lo0 inet6 from (lo0:network)`},
		{"antispoof without addresses", "antispoof for (em0)\nantispoof for (em1)", `
			block drop in on ! em0 from (em0:network)
			block drop in from (em0)
			block drop in on ! em1 from (em1:network)
			block drop in from (em1)`},

		{"anchors", "anchor on { em0 em1 } {\n pass\n\n include '/etc/pf/local.conf'\n}", `
			anchor on em0 {
				pass
				pass from 192.0.2.99
			}
			anchor on em1 { pass
				pass from 192.0.2.99
			}`},
		{"an anchor printed twice", "anchor a on { em0 em1 } {\n pass label '$nr'\n}", `
			anchor a on em0 {
				pass label '0'
			}
			anchor a on em1 {
				pass label '0'
			}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, want := parse(t, test.text), parse(t, test.want)
			if diff := cmp.Diff(want.Rules, got.Rules, placeless); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", test.text, diff)
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	set := parse(t, `
		set skip on { lo, em1 }
		set skip on lo
		set block-policy return
		set state-policy floating
		set timeout tcp.first 1
		set optimization aggressive
		set timeout { tcp.opening 7, interval 20
			adaptive.start 5 }
		set limit states 1000
		set limit { tables 3 }
		set loginterface em0
		set ruleset-optimization none
		set debug debug
		set reassemble yes no-df
		set hostid 0x10
		set fingerprints "/etc/pf.os"
		set state-defaults no-sync, max 20`)
	want := Options{
		Skip: []Interface{{Name: "lo"}, {Name: "em1"}}, BlockPolicy: ReturnAll, StatePolicy: Floating,
		StateDefaults: &StateOptions{NoSync: true, Max: 20}, Optimization: "aggressive", RulesetOpt: "none",
		LogInterface: "em0", Debug: "debug", Reassemble: "yes no-df", HostID: "0x00000010", Fingerprints: "/etc/pf.os",
		Order: []string{"skip", "block-policy", "state-policy", "optimization", "timeout", "limit", "loginterface",
			"ruleset-optimization", "debug", "reassemble", "hostid", "fingerprints", "state-defaults"},
	}
	for name, value := range map[TimeoutName]uint32{
		TCPFirst: 30, TCPOpening: 7, TCPEstablished: 18000, TCPClosing: 60, TCPFinwait: 30, TCPClosed: 30, TCPTsdiff: 10,
		Interval: 20, AdaptiveStart: 5,
	} {
		want.Timeouts[name] = Timeout{true, value}
	}
	want.Limits[LimitStates], want.Limits[LimitTables] = Limit{true, 1000}, Limit{true, 3}
	if diff := cmp.Diff(want, set.Options, placeless); diff != "" {
		t.Errorf("options: (-want +got)\n%s", diff)
	}
	if set := parse(t, "set skip on em0\nset skip on none"); len(set.Options.Skip) > 0 {
		t.Errorf("none of skip leaves %v", set.Options.Skip)
	}
}

// `set` applies to the rules behind it.
func TestDefaults(t *testing.T) {
	set := parse(t, `
		block
		pass
		set block-policy return
		set state-policy if-bound
		set state-defaults max 5, pflow
		block
		pass
		pass keep state (floating)
		anchor a {
			pass
		}
		block drop
		set state-policy if-bound`)
	drop, back := Rule{Action: Block, Return: ReturnDrop}, Rule{Action: Block, Return: ReturnAll}
	before := with(stateful, func(r *Rule) { r.StateOpts.Policy = Floating })
	after := with(stateful, func(r *Rule) { r.StateOpts = StateOptions{Max: 5, Pflow: true, Policy: IfBound} })
	want := []Rule{drop, before, back, after, before,
		{Action: CallAnchor, Anchor: &Anchor{Name: "a", Body: &Ruleset{Rules: []Rule{after}}}}, drop}
	if diff := cmp.Diff(want, set.Rules, placeless); diff != "" {
		t.Errorf("rules: (-want +got)\n%s", diff)
	}
}

func TestParseTable(t *testing.T) {
	set := parse(t, `
		table <a>
		table <b> persist const counters { }
		table <c> { 192.0.2.1, !192.0.2.0/24
			10/8 { 2001:db8::1 em0:0 } } file "/etc/mail/nospamd"
		anchor x {
			table <a> persist
		}`)
	entries := func(list, fromFile string) (entries []TableEntry) {
		for i, s := range strings.Fields(list + fromFile) {
			text, not := strings.CutPrefix(s, "!")
			entries = append(entries, TableEntry{not, netip.MustParsePrefix(text), i >= len(strings.Fields(list))})
		}
		return entries
	}
	want := []Table{
		{Name: "a"},
		{Name: "b", Persist: true, Const: true, Counters: true, Given: true},
		{Name: "c", Given: true, Files: []string{"/etc/mail/nospamd"}, Entries: entries(
			"192.0.2.1/32 !192.0.2.0/24 10.0.0.0/8 2001:db8::1/128 192.0.2.1/32",
			" 192.0.2.1/32 !192.0.2.0/28 192.0.2.2/32 2001:db8::/32 127.0.0.1/32 ::1/128")},
	}
	if diff := cmp.Diff(want, set.Tables, placeless); diff != "" {
		t.Errorf("tables: (-want +got)\n%s", diff)
	}
	want = []Table{{Name: "a", Persist: true}}
	if diff := cmp.Diff(want, set.Rules[0].Anchor.Body.Tables, placeless); diff != "" {
		t.Errorf("tables of the anchor: (-want +got)\n%s", diff)
	}
}

// FreeBSD's pfctl accepts bytes of one digit.
func TestParseShortMAC(t *testing.T) {
	set := parse(t, "ether block from 2:0:a:B:0:1/40 to { 0:1:2:3:4:5 ! ff:ff:ff:ff:ff:ff }")
	var got []string
	for i := range set.Ether {
		got = append(got, set.Ether[i].String())
	}
	want := []string{"ether block from 02:00:0a:0b:00:00/40 to 00:01:02:03:04:05", "ether block from 02:00:0a:0b:00:00/40 to ! ff:ff:ff:ff:ff:ff"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := Parse("pf.conf", []byte("ether block from 002:0:0:0:0:1\n"), source); err == nil {
		t.Error("three digits are taken")
	}
}

func TestParseEther(t *testing.T) {
	mac := func(last byte) EtherHost {
		return EtherHost{MAC: [6]byte{2, 0, 0, 0, 0, last}, Mask: [6]byte{255, 255, 255, 255, 255, 255}}
	}
	set := parse(t, `
		ether block
		ether pass in quick on ! em0 proto { 0x0800 2054 } from 02:00:00:00:00:01 tag a
		ether pass out from any to { !02:00:00:00:00:01, 02:00:00:00:10:ff/36 } ! tagged b label "n $nr"
		ether block from 02:11:00:00:00:00 & ff:00:00:00:00:ff l3 from { 10/8 ::1 } to { ! <t> 192.0.2.1 }
		ether block to 02:11:00:00:00:00&ff:00:00:00:00:ff l3 all`)
	masked := EtherHost{MAC: [6]byte{2}, Mask: [6]byte{255, 0, 0, 0, 0, 255}}
	net := Host{Kind: InTable, Name: "t"}
	want := []EtherRule{
		{Action: Block},
		{Direction: In, Quick: true, On: Interface{"em0", true}, HasProto: true, Proto: 0x800, From: mac(1), Tag: "a"},
		{Direction: In, Quick: true, On: Interface{"em0", true}, HasProto: true, Proto: 0x806, From: mac(1), Tag: "a"},
		{Direction: Out, To: EtherHost{Not: true, MAC: mac(1).MAC, Mask: mac(1).Mask}, Tagged: "b", NotTagged: true, Labels: []string{"n 3"}},
		{Direction: Out, To: EtherHost{MAC: [6]byte{2, 0, 0, 0, 0x10}, Mask: [6]byte{255, 255, 255, 255, 0xf0}},
			Tagged: "b", NotTagged: true, Labels: []string{"n 4"}},
		{Action: Block, From: masked, L3From: prefix("10.0.0.0/8"), L3To: net, L3ToNot: true},
		{Action: Block, From: masked, L3From: prefix("10.0.0.0/8"), L3To: prefix("192.0.2.1/32")},
		{Action: Block, From: masked, L3From: prefix("::1/128"), L3To: net, L3ToNot: true},
		{Action: Block, To: masked},
	}
	if diff := cmp.Diff(want, set.Ether, placeless); diff != "" {
		t.Errorf("ether rules: (-want +got)\n%s", diff)
	}
}

func TestLoadAnchor(t *testing.T) {
	set := parse(t, "set block-policy drop\nx = 1\nload anchor \"a/b\" from \"/etc/pf/spam.conf\"\nblock")
	want := &Ruleset{
		Options: Options{BlockPolicy: ReturnDrop, Order: []string{"block-policy"}},
		Rules:   []Rule{{Action: Block, Return: ReturnDrop}},
		Loads: []AnchorLoad{{Name: "a/b", File: "/etc/pf/spam.conf", Ruleset: &Ruleset{
			Options: Options{BlockPolicy: ReturnAll, Order: []string{"block-policy"}},
			Tables:  []Table{{Name: "spammers", Persist: true}},
			Rules:   []Rule{{Action: Block, Return: ReturnAll, From: Endpoint{Host: Host{Kind: InTable, Name: "spammers"}}}},
		}}},
	}
	if diff := cmp.Diff(want, set, placeless); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Whole realistic files, with their totals.
func TestParseFiles(t *testing.T) {
	tests := []struct {
		file                        string
		rules, tables, ether, loads int
		last                        string // its last rule, expanded
	}{
		{"openbsd.conf", 3, 0, 0, 0, "block return in on ! lo0 proto tcp to port 6000:6010"},
		{"server.conf", 30, 4, 0, 0, "pass in proto tcp from <spamd-white> to port 25 tos 0x10 probability 0.5 keep state (no-sync)"},
		{"bridge.conf", 14, 2, 7, 1, "pass from 192.0.2.99 keep state (if-bound)"},
	}
	for _, test := range tests {
		text, err := os.ReadFile(filepath.Join("testdata/files", test.file))
		if err != nil {
			t.Fatal(err)
		}
		set := parse(t, string(text))
		got := fmt.Sprint(len(set.Rules), len(set.Tables), len(set.Ether), len(set.Loads))
		if want := fmt.Sprint(test.rules, test.tables, test.ether, test.loads); got != want {
			t.Errorf("%s has %s rules, tables, ether rules and loads, want %s", test.file, got, want)
		}
		if diff := cmp.Diff(parse(t, test.last).Rules, set.Rules[len(set.Rules)-1:], placeless); diff != "" {
			t.Errorf("the last rule of %s: (-want +got)\n%s", test.file, diff)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/errors.txtar anew")

// Each .conf file of the archive is refused with the errors in the file behind
// it.
func TestErrors(t *testing.T) {
	const golden = "testdata/errors.txtar"
	archive, err := txtar.ParseFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	made := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if strings.HasSuffix(f.Name, ".err") {
			want[f.Name] = string(f.Data)
			continue
		}
		set, err := Parse("pf.conf", f.Data, source)
		if err == nil || set != nil {
			t.Errorf("%s is not refused", f.Name)
			continue
		}
		if _, ok := err.(ErrorList); !ok {
			t.Errorf("%s: the error is a %T", f.Name, err)
		}
		made.Files = append(made.Files, f, txtar.File{Name: strings.TrimSuffix(f.Name, ".conf") + ".err", Data: []byte(err.Error() + "\n")})
	}
	if *update {
		if err := os.WriteFile(golden, txtar.Format(made), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range made.Files {
		if text, ok := want[f.Name]; ok || strings.HasSuffix(f.Name, ".err") {
			if diff := cmp.Diff(text, string(f.Data)); diff != "" {
				t.Errorf("%s differs (go test -update writes it): (-want +got)\n%s", f.Name, diff)
			}
		}
	}
}

// Small texts that would expand to much are refused.
func TestBounds(t *testing.T) {
	double := "a = " + strings.Repeat("x", 100) + "\n"
	for range 30 {
		double += "b = $a $a\na = $b\n"
	}
	list := "{ " + strings.Repeat("1.1.1.1 ", 1000) + "}"
	tests := []struct{ name, text, want string }{
		{"a macro that doubles", double, "the value of a macro may have 65536 bytes at most"},
		{"lists", "pass from " + list + " to " + list, "lists expand to more than 65534 rules"},
		{"many lists", strings.Repeat("pass from "+list+"\n", 201), "lists expand to more than 65534 rules"},
		{"rules", strings.Repeat("pass\n", maxRules+1), ": there are more than 65534 rules; use tables"},
		{"binat", strings.Repeat("match from 10.0.0.1 binat-to 10.0.0.2\n", maxRules/2+1), "than 65534 rules; use tables"},
		{"nat", strings.Repeat("nat -> 10.0.0.2\n", maxOld+1), "nat, rdr and binat stand for more than 4096 rules"},
		{"pools", "match out inet proto { " + strings.Repeat("1 ", 10) + "} from " + list + " nat-to " + list, "pools of all rules have more than 1048576 addresses"},
		{"lists in lists", "pass from " + strings.Repeat("{", 1000) + "1.1.1.1" + strings.Repeat("}", 1000), "lists may be in each other 16 deep"},
		{"anchors in anchors", strings.Repeat("anchor {\n", 1000), "anchors may be in each other 63 deep"},
		{"macros", "a = \"" + strings.Repeat(" ", 60000) + "\"\n" + strings.Repeat("pass $a\n", 2000), "macros and files expand to more than"},
	}
	for _, test := range tests {
		_, err := Parse("pf.conf", []byte(test.text), source)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: the error is %.300v, want %s", test.name, err, test.want)
		}
	}
	if n := len(errorsOf(strings.Repeat("pass form any\n", 100))); n != maxErrors {
		t.Errorf("%d errors are reported, want %d", n, maxErrors)
	}
}

// A file that exceeds a limit has another error than a file with a mistake.
func TestLimits(t *testing.T) {
	list := "{ " + strings.Repeat("1.1.1.1 ", 1000) + "}"
	macros := "a = \"" + strings.Repeat(" ", 60000) + "\"\n" + strings.Repeat("pass $a\n", 2000)
	for text, want := range map[string]bool{
		"pass from " + list + " to " + list:                                true,
		strings.Repeat("anchor {\n", 1000):                                 true,
		"pass from " + strings.Repeat("{", 100) + strings.Repeat("}", 100): true,
		"include '/etc/pf/loop.conf'":                                      true,
		"load anchor a from '/etc/pf/reload.conf'":                         true,
		macros:                   true,
		macros + "pass form any": true, // the rest is not read
		"pass form any\npass from " + list + " to " + list: false,
		"pass form any": false,
		"pass label '" + strings.Repeat("x", 1000) + "'": false,
	} {
		if got := errorsOf(text); got.OnlyLimits() != want {
			t.Errorf("%.60q...: %v, want %v:\n%.300v", text, !want, want, got)
		}
	}
}

// A resolver repeats the name; a long name is cut.
func TestLongHost(t *testing.T) {
	name := strings.Repeat("long-", 100) + "name.example"
	lookup := func(name string, _ []string) ([]netip.Prefix, error) {
		return nil, errors.New("lookup " + name + ": no such host")
	}
	_, err := Parse("pf.conf", []byte("pass from "+name), Source{Lookup: lookup})
	cut := name[:64] + "..."
	want := "pf.conf:1:11: could not parse host specification `" + cut + "`: lookup " + cut + ": no such host\n"
	if got := fmt.Sprintln(err); !strings.HasPrefix(got, want) {
		t.Errorf("the error is\n%s\nwant\n%s", got, want)
	}
}

func errorsOf(text string) ErrorList {
	_, err := Parse("pf.conf", []byte(text), source)
	list, _ := err.(ErrorList)
	return list
}

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "10/8": "10.0.0.0/8", "172.16.1/12": "172.16.0.0/12", "0/0": "0.0.0.0/0",
		"2001:db8::1": "2001:db8::1/128", "2001:db8::1/32": "2001:db8::/32", "fe80::1%em0": "fe80::1/128",
		"": "", "10": "", "10.1": "", "10/33": "", "10/": "", "/8": "", "1.2.3.4.5/8": "", "256/8": "", "host": "", "10/-1": "",
	} {
		got, err := ParsePrefix(text)
		if want == "" && err == nil || want != "" && (err != nil || got.String() != want) {
			t.Errorf("%q is %v, %v; want %s", text, got, err, want)
		}
	}
}

// Of a long line the part around the place is shown, with the caret below it.
func TestLongLine(t *testing.T) {
	for _, before := range []int{0, 5, 119, 120, 121, 500} {
		for _, after := range []int{0, 5, 119, 120, 121, 500} {
			line := strings.Repeat("ä", before) + "?" + strings.Repeat("ö", after)
			rows := strings.Split(Error{Pos: Pos{"f", 1, 2*before + 1}, Line: line, Message: "m"}.Error(), "\n")
			shown, caret := []rune(rows[1]), utf8.RuneCountInString(rows[2])-1
			if len(rows) != 3 || len(rows[1]) > 260 || shown[caret] != '?' || !strings.HasSuffix(rows[2], " ^") || strings.ContainsRune(rows[1], utf8.RuneError) {
				t.Errorf("%d before, %d after:\n%s", before, after, strings.Join(rows, "\n"))
			}
		}
	}
}

// The caret is below the place even after tabs and characters of several bytes.
func TestCaret(t *testing.T) {
	list := errorsOf("\tpass label \"ää\"\tform any\n")
	want := "pf.conf:1:20: expected an option of the rule, found `form`\n" +
		"    \tpass label \"ää\"\tform any\n" +
		"    \t               \t^"
	if got := list.Error(); got != want {
		t.Errorf("the error is\n%s\nwant\n%s", got, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/files/*", "testdata/errors.txtar"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
			for part := range bytes.SplitSeq(text, []byte("\n\n")) {
				f.Add(part)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := Parse("pf.conf", text, source)
		if err == nil {
			if set == nil {
				t.Fatal("neither rules nor an error")
			}
			printed := set.String()
			again, err := Parse("again", []byte(printed), source)
			if err != nil {
				t.Fatalf("what is printed is refused: %v\n%s", err, printed)
			}
			if twice := again.String(); twice != printed {
				t.Fatalf("printed anew: (-first +second)\n%s", cmp.Diff(printed, twice))
			}
			return
		}
		list, ok := err.(ErrorList)
		if !ok || len(list) == 0 || len(list) > maxErrors || set != nil {
			t.Fatalf("the error is %T of %d with rules %v", err, len(list), set != nil)
		}
		for _, e := range list {
			if e.Pos.Line < 1 || e.Pos.Column < 1 || e.Pos.Column > len(e.Line)+1 || e.Message == "" || strings.Contains(e.Line, "\n") {
				t.Errorf("no place or message: %+v", e)
			}
		}
	})
}

// BenchmarkParse reads a file of 10 000 rules.
func BenchmarkParse(b *testing.B) {
	var text bytes.Buffer
	text.WriteString("ext_if = \"em0\"\nblock log all\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "pass in quick on $ext_if inet proto tcp from 10.%d.%d.0/24 to 192.0.2.%d port %d "+
			"keep state (max 100) label \"rule-$nr\"\n", i/256, i%256, i%250, i+1)
	}
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("pf.conf", text.Bytes(), source); err != nil {
			b.Fatal(err)
		}
	}
}

// TestSmallText: a short text that would expand to much is refused before it is
// expanded.
func TestSmallText(t *testing.T) {
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
	}
	long := "a = \"" + strings.Join(all, " ") + "\"\n"
	uses := "{ " + strings.Repeat("$a ", 2000) + "}\n"
	hosts := "{ " + strings.Join(all[:60], " ") + " }"
	for _, test := range []struct{ name, text, want string }{
		{"macros in a table", long + "table <t> " + uses, "macros and files expand to more than"},
		{"macros in a rule", long + "pass from " + uses, "macros and files expand to more than"},
		{"lists", "pass on { a b c d e f g h i j k l m n o p q r s } from " + hosts + " to " + hosts + "\n", "lists expand to more than 65534 rules"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse("pf.conf", []byte(test.text), Source{})
			runtime.ReadMemStats(&after)
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
				t.Errorf("%d bytes took %d MiB", len(test.text), took)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%.200s, want %s", err, test.want)
			}
		})
	}
}
