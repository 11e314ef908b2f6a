// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bascule/pf"

	"pgregory.net/rapid"
)

// router returns a Router with rules, which end with semicolons.
func router(t interface{ Fatalf(string, ...any) }, rules string) *Router {
	rs, err := pf.Parse("pf.conf", []byte(strings.ReplaceAll(rules, "; ", "\n")+"\n"), pf.Source{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &Router{Evaluator: &Evaluator{Rules: rs, Addresses: func(name string, modes []string) []netip.Prefix {
		list := map[string][]string{"em0": {"192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128", "fe80::1/128"}}[name]
		if slices.Contains(modes, "0") && list != nil {
			list = []string{list[0], list[2]}
		}
		var out []netip.Prefix
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}}}
}

// routed parses a packet of a test: "out udp 10.0.0.1:5 1.1.1.1:53", "in icmp 10.0.0.1#7
// 1.1.1.1 8" with the ID and the type. It may quote another packet behind "about".
func routed(t interface{ Fatalf(string, ...any) }, text string) Packet {
	text, about, quotes := strings.Cut(text, " about ")
	f := strings.Fields(text)
	p := Packet{Direction: map[string]pf.Direction{"in": pf.In, "out": pf.Out}[f[0]], Family: pf.Inet, Port: Port{Name: "em0"}}
	var err error
	end := func(s string) (a netip.Addr, port uint16) {
		if i := strings.IndexByte(s, '#'); i >= 0 {
			n, _ := strconv.Atoi(s[i+1:])
			p.EchoID, s = uint16(n), s[:i]
		}
		if ap, e := netip.ParseAddrPort(s); e == nil {
			return ap.Addr(), ap.Port()
		}
		if a, err = netip.ParseAddr(s); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return a, 0
	}
	p.Src, p.SrcPort = end(f[2])
	p.Dst, p.DstPort = end(f[3])
	if p.Src.Is6() {
		p.Family = pf.Inet6
	}
	switch f[1] {
	case "tcp":
		p.Proto, p.Flags = TCP, pf.SYN
	case "udp":
		p.Proto = UDP
	case "gre":
		p.Proto = 47
	case "icmp":
		if p.Proto = ICMP; p.Family == pf.Inet6 {
			p.Proto = ICMPv6
		}
		n, _ := strconv.Atoi(f[4])
		p.ICMPType = uint8(n)
	default:
		t.Fatalf("%s: unknown protocol", text)
	}
	if quotes {
		q := routed(t, f[0]+" "+about)
		p.Quoted = &q
	}
	return p
}

// written returns the text of a packet.
func written(p *Packet) string {
	end := func(a netip.Addr, port uint16) string {
		if p.Proto == TCP || p.Proto == UDP {
			return netip.AddrPortFrom(a, port).String()
		}
		return a.String()
	}
	s := fmt.Sprint(map[uint8]string{TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMPv6: "icmp", 47: "gre"}[p.Proto], " ", end(p.Src, p.SrcPort))
	if p.EchoID != 0 {
		s += fmt.Sprint("#", p.EchoID)
	}
	s += " " + end(p.Dst, p.DstPort)
	if p.isICMP() {
		s += fmt.Sprint(" ", p.ICMPType)
	}
	if p.Quoted != nil {
		s += " about " + written(p.Quoted)
	}
	return s
}

// described returns the fate of a packet.
func described(j *Judgment) string {
	switch {
	case j.Translate:
		return "translate"
	case j.Action != pf.Pass:
		return "block"
	}
	return written(&j.Packet)
}

// Packets are judged one after the other. With a nil Roll the lowest ports are taken.
var translations = []struct {
	name, rules string
	packets     []string // packet => its fate
}{
	{"nat", "match out on em0 from 10/8 nat-to 192.0.2.1; pass", []string{
		"out tcp 10.0.0.1:5 1.1.1.1:80 => tcp 192.0.2.1:50001 1.1.1.1:80",
		"out tcp 10.0.0.1:5 1.1.1.1:80 => tcp 192.0.2.1:50001 1.1.1.1:80",
		"in tcp 1.1.1.1:80 192.0.2.1:50001 => tcp 1.1.1.1:80 10.0.0.1:5",
		"out tcp 10.0.0.2:5 1.1.1.1:80 => tcp 192.0.2.1:50002 1.1.1.1:80",
		"out tcp 10.0.0.2:5 1.1.1.2:80 => tcp 192.0.2.1:50001 1.1.1.2:80",
		"out tcp 11.0.0.1:5 1.1.1.1:80 => tcp 11.0.0.1:5 1.1.1.1:80",
		"out gre 10.0.0.1 1.1.1.1 => gre 192.0.2.1 1.1.1.1",
		"out gre 10.0.0.2 1.1.1.1 => translate",
		"in gre 1.1.1.1 192.0.2.1 => gre 1.1.1.1 10.0.0.1",
	}},
	{"echo", "match out from 10/8 nat-to 192.0.2.1 static-port; pass", []string{
		"out icmp 10.0.0.1#7 1.1.1.1 8 => icmp 192.0.2.1#1 1.1.1.1 8",
		"out icmp 10.0.0.2#7 1.1.1.1 8 => icmp 192.0.2.1#2 1.1.1.1 8",
		"in icmp 1.1.1.1#2 192.0.2.1 0 => icmp 1.1.1.1#7 10.0.0.2 0",
		"in icmp 1.1.1.1#1 192.0.2.1 0 => icmp 1.1.1.1#7 10.0.0.1 0",
	}},
	{"other questions keep what they have", "match out from 10/8 nat-to 192.0.2.1; pass", []string{
		"out icmp 10.0.0.1 1.1.1.1 13 => icmp 192.0.2.1 1.1.1.1 13",
		"out icmp 10.0.0.2 1.1.1.1 13 => translate",
		"in icmp 1.1.1.1 192.0.2.1 14 => icmp 1.1.1.1 10.0.0.1 14",
	}},
	{"static-port", "match out from 10/8 nat-to 192.0.2.1 static-port; pass", []string{
		"out udp 10.0.0.1:500 1.1.1.1:500 => udp 192.0.2.1:500 1.1.1.1:500",
		"out udp 10.0.0.2:500 1.1.1.1:500 => translate",
		"out udp 10.0.0.2:500 1.1.1.2:500 => udp 192.0.2.1:500 1.1.1.2:500",
	}},
	{"a pool runs dry", "match out from 10/8 nat-to 192.0.2.1 port 7:8; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:7 1.1.1.1:53",
		"out udp 10.0.0.2:5 1.1.1.1:53 => udp 192.0.2.1:8 1.1.1.1:53",
		"out udp 10.0.0.3:5 1.1.1.1:53 => translate",
		"out tcp 10.0.0.3:5 1.1.1.1:53 => tcp 192.0.2.1:7 1.1.1.1:53",
	}},
	{"the next address of a pool", "match out from 10/8 nat-to { 192.0.2.1, 192.0.2.2 weight 2 } port 7; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:7 1.1.1.1:53",
		"out udp 10.0.0.2:5 1.1.1.1:53 => udp 192.0.2.2:7 1.1.1.1:53",
		"out udp 10.0.0.3:5 1.1.1.1:53 => translate",
		"out udp 10.0.0.3:5 1.1.1.2:53 => udp 192.0.2.2:7 1.1.1.2:53",
	}},
	{"of source-hash there is no next", "match out from 10/8 nat-to { 192.0.2.1, 192.0.2.2 } port 7 source-hash; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:7 1.1.1.1:53",
		"out udp 10.0.0.1:6 1.1.1.1:53 => translate",
		"out udp 10.0.0.1:6 1.1.1.2:53 => udp 192.0.2.1:7 1.1.1.2:53",
	}},
	{"nor of one network by bitmask", "match out from 10/8 nat-to 192.0.2.0/24 port 7 bitmask; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:7 1.1.1.1:53",
		"out udp 10.0.0.1:6 1.1.1.1:53 => translate",
	}},
	{"rdr", "match in proto tcp to port 80:81 rdr-to 10.0.0.1 port 8080:8082; pass", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:80 => tcp 1.1.1.1:5 10.0.0.1:8080",
		"in tcp 1.1.1.1:5 192.0.2.1:81 => tcp 1.1.1.1:5 10.0.0.1:8081",
		"out tcp 10.0.0.1:8081 1.1.1.1:5 => tcp 192.0.2.1:81 1.1.1.1:5",
		"in tcp 1.1.1.1:5 192.0.2.1:82 => tcp 1.1.1.1:5 192.0.2.1:82",
		"in tcp 1.1.1.1:5 192.0.2.2:80 => translate", // answers would look like the first connection's
	}},
	{"ports come round", "match in proto tcp to port 80:90 rdr-to 10.0.0.1 port 8080:8082; pass", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:83 => tcp 1.1.1.1:5 10.0.0.1:8080",
		"in tcp 1.1.1.1:5 192.0.2.1:90 => tcp 1.1.1.1:5 10.0.0.1:8081",
	}},
	{"rdr keeps the port", "match in to 192.0.2.1 rdr-to 10.0.0.1; pass", []string{
		"in udp 1.1.1.1:5 192.0.2.1:53 => udp 1.1.1.1:5 10.0.0.1:53",
		"in icmp 1.1.1.1#7 192.0.2.1 8 => icmp 1.1.1.1#7 10.0.0.1 8",
		"out icmp 10.0.0.1#7 1.1.1.1 0 => icmp 192.0.2.1#7 1.1.1.1 0",
	}},
	{"match rules add up, and later rules see it", "match in to 192.0.2.1 rdr-to 10.0.0.1; match in to 10.0.0.1 nat-to 10.0.0.254 port 9; block; pass from 10.0.0.254 to 10.0.0.1", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:80 => tcp 10.0.0.254:9 10.0.0.1:80",
		"out tcp 10.0.0.1:80 10.0.0.254:9 => tcp 192.0.2.1:80 1.1.1.1:5",
		"in tcp 1.1.1.1:5 10.0.0.2:80 => block",
	}},
	{"both in one rule", "pass in to 192.0.2.1 rdr-to 10.0.0.1 nat-to 10.0.0.254 port 9", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:80 => tcp 10.0.0.254:9 10.0.0.1:80",
	}},
	{"that of pass comes at the end", "pass in to 192.0.2.1 rdr-to 10.0.0.1; block to 10.0.0.1; pass in proto udp to 192.0.2.1 rdr-to 10.0.0.2", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:80 => tcp 1.1.1.1:5 10.0.0.1:80",
		"in udp 1.1.1.1:5 192.0.2.1:80 => udp 1.1.1.1:5 10.0.0.2:80",
	}},
	{"nothing is sent untranslated", "match out from 10/8 nat-to 192.0.2.1; pass no state; match in rdr-to (em1)", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => translate",
		"out udp 11.0.0.1:5 1.1.1.1:53 => udp 11.0.0.1:5 1.1.1.1:53",
		"in udp 1.1.1.1:5 192.0.2.1:53 => translate", // em1 has no address
	}},
	{"without a rule that passes", "match out from 10/8 nat-to 192.0.2.1", []string{"out udp 10.0.0.1:5 1.1.1.1:53 => translate"}},
	{"interface", "match out on em0 nat-to (em0:0); pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:50001 1.1.1.1:53",
		"out udp [fd00::1]:5 [2001:db8:1::1]:53 => udp [2001:db8::1]:50001 [2001:db8:1::1]:53",
	}},
	{"round-robin", "match out nat-to (em0) static-port; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:5 1.1.1.1:53",
		"out udp 10.0.0.1:5 1.1.1.2:53 => udp 192.0.2.2:5 1.1.1.2:53",
		"out udp 10.0.0.1:5 1.1.1.3:53 => udp 192.0.2.1:5 1.1.1.3:53",
	}},
	{"sticky-address", "match out nat-to (em0) static-port sticky-address; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:5 1.1.1.1:53",
		"out udp 10.0.0.2:5 1.1.1.2:53 => udp 192.0.2.2:5 1.1.1.2:53",
		"out udp 10.0.0.1:5 1.1.1.3:53 => udp 192.0.2.1:5 1.1.1.3:53",
		"out udp 10.0.0.1:6 1.1.1.1:53 => udp 192.0.2.1:6 1.1.1.1:53",
	}},
	{"a table", "table <p> const { 192.0.2.0/30 !192.0.2.1 }; match out inet nat-to <p> static-port; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.0:5 1.1.1.1:53",
		"out udp 10.0.0.1:5 1.1.1.2:53 => udp 192.0.2.2:5 1.1.1.2:53",
		"out udp 10.0.0.1:5 1.1.1.3:53 => udp 192.0.2.3:5 1.1.1.3:53",
		"out udp 10.0.0.1:5 1.1.1.4:53 => udp 192.0.2.0:5 1.1.1.4:53",
	}},
	{"random goes past what a table leaves out", "table <p> const { 192.0.2.0/30 !192.0.2.0/31 }; match out inet nat-to <p> random static-port; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.2:5 1.1.1.1:53",
		"out udp 10.0.0.2:5 1.1.1.1:53 => udp 192.0.2.3:5 1.1.1.1:53",
		"out udp 10.0.0.3:5 1.1.1.1:53 => translate",
	}},
	{"least-states", "match out inet nat-to { 192.0.2.1 weight 3, 192.0.2.2 } least-states static-port; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:5 1.1.1.1:53",
		"out udp 10.0.0.1:5 1.1.1.2:53 => udp 192.0.2.2:5 1.1.1.2:53",
		"out udp 10.0.0.1:5 1.1.1.3:53 => udp 192.0.2.1:5 1.1.1.3:53",
		"out udp 10.0.0.1:5 1.1.1.4:53 => udp 192.0.2.1:5 1.1.1.4:53",
	}},
	{"binat", "pass; match from 10.0.5.0/24 binat-to 192.0.3.0/24", []string{
		"out udp 10.0.5.7:5 1.1.1.1:53 => udp 192.0.3.7:5 1.1.1.1:53",
		"in tcp 1.1.1.1:9 192.0.3.8:22 => tcp 1.1.1.1:9 10.0.5.8:22",
		"in udp 1.1.1.1:53 192.0.3.7:5 => udp 1.1.1.1:53 10.0.5.7:5",
	}},
	{"errors inside out", "match out from 10/8 nat-to 192.0.2.1; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:50001 1.1.1.1:53",
		"in icmp 7.7.7.7 192.0.2.1 11 about udp 192.0.2.1:50001 1.1.1.1:53 => icmp 7.7.7.7 10.0.0.1 11 about udp 10.0.0.1:5 1.1.1.1:53",
		"in icmp 1.1.1.1 192.0.2.1 3 about udp 192.0.2.1:50002 1.1.1.1:53 => icmp 1.1.1.1 192.0.2.1 3 about udp 192.0.2.1:50002 1.1.1.1:53",
		"out icmp 10.0.0.1 1.1.1.1 3 about udp 1.1.1.1:53 10.0.0.1:5 => icmp 192.0.2.1 1.1.1.1 3 about udp 1.1.1.1:53 192.0.2.1:50001",
		"out icmp 10.0.0.1#7 1.1.1.1 8 => icmp 192.0.2.1#1 1.1.1.1 8",
		"in icmp 7.7.7.7 192.0.2.1 11 about icmp 192.0.2.1#1 1.1.1.1 8 => icmp 7.7.7.7 10.0.0.1 11 about icmp 10.0.0.1#7 1.1.1.1 8",
	}},
	{"errors of rdr", "match in to 192.0.2.1 rdr-to 10.0.0.1 port 8080; pass", []string{
		"in tcp 1.1.1.1:5 192.0.2.1:80 => tcp 1.1.1.1:5 10.0.0.1:8080",
		"out icmp 10.0.0.1 1.1.1.1 3 about tcp 1.1.1.1:5 10.0.0.1:8080 => icmp 192.0.2.1 1.1.1.1 3 about tcp 1.1.1.1:5 192.0.2.1:80",
	}},
	{"endpoint-independent", "match out nat-to 192.0.2.1 port 7:9 endpoint-independent; pass", []string{
		"out udp 10.0.0.1:5 1.1.1.1:53 => udp 192.0.2.1:7 1.1.1.1:53",
		"out udp 10.0.0.1:5 1.1.1.2:53 => udp 192.0.2.1:7 1.1.1.2:53",
		"out udp 10.0.0.1:6 1.1.1.3:53 => udp 192.0.2.1:8 1.1.1.3:53",
		"out udp 10.0.0.2:5 1.1.1.4:53 => udp 192.0.2.1:9 1.1.1.4:53",
		"out udp 10.0.0.2:6 1.1.1.5:53 => translate",
		"out tcp 10.0.0.1:5 1.1.1.1:53 => tcp 192.0.2.1:7 1.1.1.1:53",
		"out tcp 10.0.0.2:5 1.1.1.2:53 => tcp 192.0.2.1:7 1.1.1.2:53",
	}},
	{"to IPv4", "pass in inet6 to 64:ff9b::/96 af-to inet from 192.0.2.1", []string{
		"in udp [fd00::1]:5 [64:ff9b::101:102]:53 => udp 192.0.2.1:50001 1.1.1.2:53",
		"in udp 1.1.1.2:53 192.0.2.1:50001 => udp [64:ff9b::101:102]:53 [fd00::1]:5",
		"in icmp fd00::1#7 64:ff9b::101:102 128 => icmp 192.0.2.1#1 1.1.1.2 8",
		"in icmp 1.1.1.2#1 192.0.2.1 0 => icmp 64:ff9b::101:102#7 fd00::1 129",
		"in icmp fd00::1 64:ff9b::101:102 139 => translate",
		"in udp [fd00::1]:5 [64:ff9b::a00:202]:53 => translate",
		"in udp [fd00::1]:5 [64:ff9b::ac1f:102]:53 => translate",
	}},
	{"to IPv4 behind fewer bits", "pass in inet6 to 2001:db8:100::/40 af-to inet from 192.0.2.1", []string{
		"in udp [fd00::1]:5 [2001:db8:1c0:2:21::]:53 => udp 192.0.2.1:50001 192.0.2.33:53", // RFC 6052, 2.4
	}},
	{"to IPv6", "pass in inet to 10/8 af-to inet6 from 2001:db8::1 to 2001:db8:122::/48", []string{
		"in udp 192.0.2.33:5 10.0.2.33:53 => udp [2001:db8::1]:50001 [2001:db8:122:a00:2:2100::]:53",
		"in udp [2001:db8:122:a00:2:2100::]:53 [2001:db8::1]:50001 => udp 10.0.2.33:53 192.0.2.33:5",
	}},
	{"to IPv6 with both", "pass in inet to 10/8 af-to inet6 from 2001:db8:122:344::/96", []string{
		"in udp 192.0.2.33:5 10.0.2.33:53 => udp [2001:db8:122:344::c000:221]:50001 [2001:db8:122:344::a00:221]:53",
	}},
	{"to one of IPv6", "pass in inet to 10.0.0.1 af-to inet6 from (em0:0) to 2001:db8::9 port 5353", []string{
		"in udp 192.0.2.33:5 10.0.0.1:53 => udp [2001:db8::1]:50001 [2001:db8::9]:5353",
	}},
}

func TestRouter(t *testing.T) {
	for _, test := range translations {
		t.Run(test.name, func(t *testing.T) {
			rt := router(t, test.rules)
			for _, step := range test.packets {
				packet, want, _ := strings.Cut(step, " => ")
				j := rt.Judge(routed(t, packet))
				if got := described(&j); got != want {
					t.Errorf("%s\ngot  %s\nwant %s", packet, got, want)
				}
			}
		})
	}
}

// drawn draws rules and packets, from few values, so that they match often.
type drawn struct{ *rapid.T }

func (d drawn) one(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(d.T, what)
}

// rules draws rules that translate, and rules that pass the rest.
func (d drawn) rules() string {
	var list []string
	for range rapid.IntRange(1, 4).Draw(d.T, "rules") {
		to := d.one("pool", "192.0.2.1", "192.0.2.0/30", "{ 192.0.2.1, 192.0.2.2 }", "{ 192.0.2.1 weight 2, 192.0.2.8/31 weight 1 }", "(em0)", "(em0:0)", "<pool>", "10.0.0.0/30")
		method := d.one("method", "", "", " random", " source-hash abc", " round-robin", " least-states")
		if to == "192.0.2.0/30" || to == "10.0.0.0/30" {
			method = d.one("method of a network", " bitmask", method)
		}
		method += d.one("sticky", "", "", " sticky-address")
		conditions := d.one("proto", "", " proto tcp", " proto udp", " proto icmp") + d.one("from", "", " from 10/8", " from 10.0.0.0/31") + d.one("to", "", "", " to 1.1.1.1", " to 192.0.2.0/24")
		switch d.one("kind", "nat", "nat", "rdr", "both", "binat", "pass") {
		case "nat":
			list = append(list, "match "+d.one("direction", "out", "out", "in")+" inet"+conditions+" nat-to "+to+d.one("ports", "", " port 7:9", " port 7")+method+d.one("independent", "", "", " endpoint-independent"))
		case "rdr":
			list = append(list, "match "+d.one("direction", "in", "in", "out")+" inet"+conditions+" rdr-to "+to+d.one("ports", "", " port 80", " port 80:81")+method)
		case "both":
			list = append(list, "match in inet"+conditions+" rdr-to "+to+" nat-to "+d.one("other pool", "10.9.9.9", "10.9.9.8/31")+" static-port")
		case "binat":
			list = append(list, "match from "+d.one("inside", "10.0.0.1 binat-to 192.0.2.9", "10.0.0.0/30 binat-to 192.0.2.16/30"))
		case "pass":
			list = append(list, "pass "+d.one("direction", "out", "in")+" inet"+conditions+" nat-to "+to+method)
		}
	}
	list = append([]string{"table <pool> const { 192.0.2.4/30 !192.0.2.5 }"}, list...)
	return strings.Join(append(list, d.one("last", "pass", "pass", "pass proto { tcp udp }", "pass no state")), "; ")
}

func (d drawn) packet() Packet {
	addrs := []string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "1.1.1.1", "1.1.1.2", "192.0.2.1", "192.0.2.9", "192.0.2.17"}
	src, dst := d.one("source", addrs...), d.one("destination", addrs...)
	port := func() string { return d.one("port", "7", "8", "80", "50001") }
	text := d.one("direction", "in", "out", "out") + " "
	switch proto := d.one("protocol", "tcp", "udp", "udp", "icmp", "gre"); proto {
	case "icmp":
		text += "icmp " + src + "#" + port() + " " + dst + " " + d.one("type", "8", "0")
	case "gre":
		text += "gre " + src + " " + dst
	default:
		text += proto + " " + src + ":" + port() + " " + dst + ":" + port()
	}
	return routed(d.T, text)
}

// answer returns the answer to a packet.
func answer(p Packet) Packet {
	p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
	p.Direction = pf.In + pf.Out - p.Direction
	if p.isICMP() {
		p.ICMPType = map[uint8]uint8{8: 0, 0: 8, 128: 129, 129: 128}[p.ICMPType]
	}
	return p
}

// The laws of translation, for any rules:
//   - all packets of a connection are translated the same way;
//   - answers are translated back, and so are errors about packets;
//   - no two states have the same key;
//   - a packet passes unchanged only if no rule translates it, and a packet that cannot
//     be translated does not pass.
func TestTranslationLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		rules := d.rules()
		rt := router(t, rules)
		rt.Roll = func(n uint64) uint64 { return rapid.Uint64Range(0, n-1).Draw(t, "roll") }
		for range rapid.IntRange(1, 25).Draw(t, "packets") {
			if states := rt.States(); len(states) > 0 && rapid.IntRange(0, 5).Draw(t, "end") == 0 {
				s := rapid.SampledFrom(states).Draw(t, "state that ends")
				rt.End(s)
				if other, _ := rt.find(s.Direction, s.Before); other != nil {
					t.Fatalf("a state that has ended is found: %v", s)
				}
			}
			p := d.packet()
			before := len(rt.states)
			j := rt.Judge(p)
			made := len(rt.states) > before
			if j.Translate && j.Action == pf.Pass {
				t.Fatalf("%s\n%s: cannot be translated, and passes", rules, written(&p))
			}
			if j.Action != pf.Pass {
				if made {
					t.Fatalf("%s\n%s: is dropped, and makes a state", rules, written(&p))
				}
				continue
			}
			if j.State == nil {
				if got := written(&j.Packet); got != written(&p) {
					t.Fatalf("%s\n%s: becomes %s without a state", rules, written(&p), got)
				}
				continue
			}
			again := rt.Judge(p)
			if got := described(&again); got != written(&j.Packet) || again.State != j.State {
				t.Fatalf("%s\n%s: becomes %s, and then %s", rules, written(&p), written(&j.Packet), got)
			}
			want := answer(p)
			back := rt.Judge(answer(j.Packet))
			if got := described(&back); got != written(&want) || back.State != j.State {
				t.Fatalf("%s\n%s: becomes %s, and the answer %s, want %s", rules, written(&p), written(&j.Packet), got, written(&want))
			}
			if p.Proto != 47 && (p.Proto != ICMP || p.ICMPType == 8) {
				quoted := j.Packet
				e := Packet{Direction: want.Direction, Port: p.Port, Family: pf.Inet, Proto: ICMP, ICMPType: 11, Src: netip.MustParseAddr("7.7.7.7"), Dst: j.Packet.Src, Quoted: &quoted}
				err := rt.Judge(e)
				if err.Action != pf.Pass || written(err.Packet.Quoted) != written(&p) || err.Packet.Dst != p.Src {
					t.Fatalf("%s\n%s: becomes %s, and an error about it %s", rules, written(&p), written(&j.Packet), described(&err))
				}
			}
			seen := map[look]*State{}
			for _, s := range rt.states {
				for _, l := range s.looks() {
					if seen[l] != nil {
						t.Fatalf("%s\ntwo states are found by %v", rules, l)
					}
					seen[l] = s
				}
			}
			if len(rt.found) != len(seen) {
				t.Fatalf("%s\n%d states are found by %d packets", rules, len(rt.states), len(rt.found))
			}
		}
	})
}

// A pool of some addresses and ports has room for as many connections to one place, with
// each method that tries the next address. Then it refuses, until a connection ends.
func TestPoolRunsDry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		bits := rapid.IntRange(0, 3).Draw(t, "bits")
		high := rapid.IntRange(7, 12).Draw(t, "high")
		room := (high - 7 + 1) << bits
		rt := router(t, fmt.Sprintf("match out inet nat-to 192.0.2.0/%d port 7:%d%s; pass", 32-bits, high, d.one("method", " random", " round-robin", " least-states")))
		rt.Roll = func(n uint64) uint64 { return rapid.Uint64Range(0, n-1).Draw(t, "roll") }
		packet := func(n int) Packet { return routed(t, fmt.Sprintf("out udp 10.0.0.%d:5 1.1.1.1:53", n)) }
		for n := range room {
			if j := rt.Judge(packet(n)); j.Action != pf.Pass {
				t.Fatalf("connection %d of %d is refused", n+1, room)
			}
		}
		if j := rt.Judge(packet(room)); !j.Translate || j.Action != pf.Block {
			t.Fatalf("connection %d, where %d have room: %s", room+1, room, described(&j))
		}
		if j := rt.Judge(routed(t, "out udp 10.0.0.99:5 1.1.1.2:53")); j.Action != pf.Pass {
			t.Fatal("another place is refused, too")
		}
		s := rt.States()[rapid.IntRange(0, room-1).Draw(t, "ends")]
		rt.End(s)
		j := rt.Judge(packet(room))
		if j.Action != pf.Pass || j.Packet.Src != s.After.Src || j.Packet.SrcPort != s.After.SrcPort {
			t.Fatalf("what has become free is not taken: %s", described(&j))
		}
	})
}

// Each method chooses as its name says.
func TestPoolMethods(t *testing.T) {
	const sources, places = 8, 12
	judge := func(rules string) (got [sources][places]netip.Addr) {
		rt := router(t, "match out inet nat-to 192.0.2.0/29 static-port "+rules+"; pass")
		n := uint64(0)
		rt.Roll = func(most uint64) uint64 { n += 5; return n % most }
		for p := range places {
			for s := range sources {
				j := rt.Judge(routed(t, fmt.Sprintf("out udp 10.0.0.%d:%d 1.1.1.%d:53", s, 1000+s, p)))
				if j.Action != pf.Pass {
					t.Fatalf("%s: %s", rules, described(&j))
				}
				got[s][p] = j.Packet.Src
			}
		}
		return got
	}
	all := func(got [sources][places]netip.Addr) map[netip.Addr]int {
		n := map[netip.Addr]int{}
		for _, list := range got {
			for _, a := range list {
				n[a]++
			}
		}
		return n
	}
	same := func(list [places]netip.Addr) bool { return len(slices.Compact(slices.Clone(list[:]))) == 1 }
	for s, list := range judge("bitmask") {
		if !same(list) || list[0] != netip.AddrFrom4([4]byte{192, 0, 2, byte(s)}) {
			t.Errorf("bitmask: source %d gets %v", s, list)
		}
	}
	hashed := judge("source-hash 0x00000000000000000000000000000001")
	for s, list := range hashed {
		if !same(list) {
			t.Errorf("source-hash: source %d gets %v", s, list)
		}
	}
	if other := judge("source-hash 0x00000000000000000000000000000002"); other == hashed {
		t.Error("source-hash: the key does not count")
	}
	for _, method := range []string{"round-robin", "least-states"} {
		for a, n := range all(judge(method)) {
			if n != sources*places/8 {
				t.Errorf("%s: %v is chosen %d times of %d", method, a, n, sources*places)
			}
		}
	}
	if got := all(judge("random")); len(got) != 8 {
		t.Errorf("random: %v", got)
	}
	for _, method := range []string{"random", "round-robin", "least-states"} {
		got := judge(method + " sticky-address")
		for s, list := range got {
			if !same(list) {
				t.Errorf("%s sticky-address: source %d gets %v", method, s, list)
			}
		}
	}
}

// Of FreeBSD's lines that translate, the first match is final, whatever the rules into
// which they are read. Here each line is tried alone.
func TestFirstLineHolds(t *testing.T) {
	translated := 0
	rapid.Check(t, func(t *rapid.T) {
		d := drawn{t}
		type line struct {
			kind, conditions, to string
			no                   bool
		}
		var lines []line
		text := ""
		for range rapid.IntRange(1, 5).Draw(t, "lines") {
			l := line{kind: d.one("kind", "nat", "rdr", "nat", "rdr", "binat"), no: d.one("no", "", "", "no") != ""}
			proto := d.one("proto", "", "", " proto tcp", " proto udp")
			port := ""
			if proto != "" {
				port = d.one("port", "", " port 80", " port 7:9")
			}
			l.conditions = d.one("on", "", " on em0", " on em1", " on em", " on ! em1") + " inet" + proto
			switch l.kind {
			case "binat":
				l.conditions += " from " + d.one("inside", "10.0.0.1", "10.0.0.2") + " to " + d.one("to", "any", "1.1.1.1", "! 1.1.1.1")
				l.to = d.one("outside", "192.0.2.1", "192.0.2.9")
			default:
				l.conditions += " from " + d.one("from", "any", "10.0.0.0/31", "10.0.0.1", "! 10.0.0.1", "192.0.2.0/24", "<pool>") + " to " +
					d.one("to", "any", "192.0.2.1", "192.0.2.0/24", "! 192.0.2.0/24", "1.1.1.1") + port
				l.to = d.one("address", "192.0.2.1", "10.0.0.1", "1.1.1.2", "{ 192.0.2.9, 10.0.0.2 }", "(em0)", "<pool>")
				if l.kind == "rdr" {
					l.to += d.one("new port", "", " port 80", " port 8")
				}
			}
			lines = append(lines, l)
			if l.no {
				text += "no " + l.kind + l.conditions + "; "
			} else {
				text += l.kind + d.one("pass", "", "", " pass") + l.conditions + " -> " + l.to + "; "
			}
		}
		const table = "table <pool> const { 192.0.2.16/30 10.0.0.1 }; "
		for range 8 {
			p := d.packet()
			if p.Port.Groups = []string{"em"}; p.isICMP() {
				continue // the rule of nat gives it a new ID
			}
			order := []string{"binat", "nat"}
			if p.Direction == pf.In {
				order = []string{"rdr", "binat"}
			}
			var holds *line
			for _, kind := range order {
				for i := range lines {
					l := &lines[i]
					if l.kind != kind || holds != nil {
						continue
					}
					probe := map[pf.Direction]string{pf.In: "rdr", pf.Out: "nat"}[p.Direction] + l.conditions + " -> 9.9.9.9"
					if l.kind == "binat" && !l.no {
						probe = "binat" + l.conditions + " -> " + l.to
					}
					if alone := router(t, table+probe+"; pass").Judge(p); alone.Translate || TupleOf(&alone.Packet) != TupleOf(&p) {
						holds = l
					}
				}
			}
			want := written(&p)
			if holds != nil && !holds.no {
				j := router(t, table+holds.kind+holds.conditions+" -> "+holds.to+"; pass").Judge(p)
				want = described(&j)
				translated++
			}
			j := router(t, table+text+"pass").Judge(p)
			if got := described(&j); got != want {
				t.Fatalf("%s\n%s on %s: becomes %s, want %s", strings.ReplaceAll(text, "; ", "\n"), written(&p), p.Port.Name, got, want)
			}
		}
	})
	if translated == 0 {
		t.Error("no packet was translated")
	}
}
