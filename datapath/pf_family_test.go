// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// familyWords draws a rule with af-to, which chooses only the port at random, and addresses
// of the rule's family that match it.
func familyWords(t *rapid.T) (rules string, family pf.Family, to []string) {
	one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	ports := one("ports", "", " port 7", " port 100:102")
	if rapid.Bool().Draw(t, "to IPv6") {
		rule := one("rule", "to 10.9/16 af-to inet6 from 2001:db8::1%s to 2001:db8:64::/96", "to 10.9/16 af-to inet6 from 2001:db8:64::/96%s",
			"to 10.9/16 af-to inet6 from 2001:db8:122::/48%s", "af-to inet6 from 2001:db8::1%s to 2001:db8::9 port 53",
			"af-to inet6 from 2001:db8::1%s to 2001:db8:a::/40", "af-to inet6 from 2001:db8::1%s to 2001:db8::/32",
			"af-to inet6 from 2001:db8::1%s to 2001:db8:1:2::/64", "af-to inet6 from 2001:db8::1%s to 2001:db8:1:200::/56", "af-to inet6 from (em0)%s",
			"af-to inet6 from 2001:db8::1%s to { fd01::1, fd01::2 } round-robin")
		return fmt.Sprintf("pass in inet "+rule+"\n", ports), pf.Inet, []string{"10.9.0.1", "10.9.0.2", "127.0.0.1", "0.0.0.1", "240.0.0.1", "169.254.0.1"}
	}
	bits := one("bits", "96", "64", "56", "48", "40", "32")
	prefix := map[string]string{"96": "2001:db8:64::", "64": "2001:db8:64:a::", "56": "2001:db8:64:a00::", "48": "2001:db8:64::", "40": "2001:db8:6400::", "32": "2001:db8::"}[bits]
	rule := one("rule", "af-to inet from 192.0.2.1%s", "af-to inet from 192.0.2.1%s to 198.51.100.1", "af-to inet from 192.0.2.0/24%s bitmask",
		"af-to inet from 192.0.2.1%s to 198.51.100.0/24", "af-to inet from { 192.0.2.8, 192.0.2.9 }%s round-robin", "af-to inet from 127.0.0.1%s")
	all := netip.MustParsePrefix(prefix + "/" + bits)
	for _, a := range []string{"10.9.0.1", "8.8.8.8", "127.0.0.1", "0.1.2.3", "224.0.0.1", "255.255.255.255", "241.0.0.1"} {
		to = append(to, embedded(all, netip.MustParseAddr(a)).String())
	}
	return fmt.Sprintf("pass in inet6 to "+all.String()+" "+rule+"\n", ports), pf.Inet6, append(to, "fd09::9")
}

// embedded returns an IPv4 address behind a prefix (RFC 6052, 2.2).
func embedded(p netip.Prefix, a netip.Addr) netip.Addr {
	out, four := p.Addr().As16(), a.As4()
	at := p.Bits() / 8
	for _, b := range four {
		if at == 8 {
			at++
		}
		out[at] = b
		at++
	}
	return netip.AddrFrom16(out)
}

// The datapath translates packets to the other family as the reference does: addresses,
// ports, ICMP messages, checksums, and drops. The reference gets the port that the datapath
// has chosen.
func TestFamilyIsReference(t *testing.T) {
	needRoot(t)
	translated, refused, errors := 0, 0, 0
	rapid.Check(t, func(r *rapid.T) {
		one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(r, what) }
		rule, family, to := familyWords(r)
		text := "set skip on st0\nblock\n" + rule
		rs, err := pf.Parse("pf.conf", []byte(text), pf.Source{})
		if err != nil {
			r.Fatalf("%v\n%s", err, text)
		}
		s := natBench(t, rs)
		defer s.gen.Close()
		rt := &reference.Router{Evaluator: &reference.Evaluator{Rules: rs, Addresses: natInterface}}
		var sent reference.Packet
		rt.Roll = func(n uint64) uint64 {
			low := map[uint64]uint64{15535: 50001, 65535: 1, 3: 100}[n]
			if low == 1 {
				return (uint64(sent.EchoID) - low) % n
			}
			return (uint64(sent.SrcPort) - low) % n
		}
		from := []string{"10.0.0.1", "10.0.0.2", "127.0.0.2"}
		if family == pf.Inet6 {
			from = []string{"fd00::1", "fd00::2", "::1", "::ffff:10.0.0.1"}
		}
		host := reference.Port{Name: "em0", Groups: []string{"em"}}
		var last *reference.Packet // the last packet into the host, after translation
		for range rapid.IntRange(1, 30).Draw(r, "packets") {
			p := &reference.Packet{Family: family, Proto: reference.UDP, Direction: pf.In, Port: host,
				Src: netip.MustParseAddr(one("source", from...)), Dst: netip.MustParseAddr(one("destination", to...))}
			port := func() uint16 { return rapid.SampledFrom([]uint16{7, 8, 80, 50001}).Draw(r, "port") }
			switch one("protocol", "udp", "tcp", "icmp", "icmp", "gre") {
			case "tcp":
				p.Proto, p.Flags = reference.TCP, 2
				p.SrcPort, p.DstPort = port(), port()
			case "udp":
				p.SrcPort, p.DstPort = port(), port()
			case "gre":
				p.Proto = 47
			default:
				p.EchoID, p.Proto, p.ICMPType = port(), reference.ICMP, 8
				if family == pf.Inet6 {
					p.Proto, p.ICMPType = reference.ICMPv6, 128
				}
			}
			if last != nil && last.Proto != reference.TCP { // TCP's answers need sequence numbers
				switch rapid.IntRange(0, 3).Draw(r, "next") {
				case 0: // the answer, which comes in to the host
					q := *last
					p = &q
					p.Src, p.Dst, p.SrcPort, p.DstPort, p.Direction, p.Port = p.Dst, p.Src, p.DstPort, p.SrcPort, pf.In, host
					p.ICMPType = map[uint8]uint8{8: 0, 0: 8, 128: 129, 129: 128}[p.ICMPType]
				case 1: // an error about it
					q := *last
					q.Direction, q.Port = pf.In, host
					p = &reference.Packet{Direction: pf.In, Port: host, Family: q.Family, Proto: reference.ICMP, ICMPType: rapid.SampledFrom([]uint8{3, 11}).Draw(r, "type"),
						Src: q.Dst, Dst: q.Src, Quoted: &q}
					if p.ICMPType == 3 {
						p.ICMPCode = uint8(rapid.IntRange(0, 15).Draw(r, "code"))
					}
					if q.Family == pf.Inet6 {
						p.Proto, p.ICMPType = reference.ICMPv6, 3
						p.ICMPCode = 0
					}
					if rapid.Bool().Draw(r, "from elsewhere") {
						p.Src = netip.MustParseAddr(map[pf.Family]string{pf.Inet: "7.7.7.7", pf.Inet6: "fd07::7"}[q.Family])
					}
				}
			}
			o := s.tcx(0, natFrame(p))
			got, wrong := natRead(s.out)
			sent = got
			j := rt.Judge(*p)
			what := func(p *reference.Packet) string {
				text := fmt.Sprintf("%d: %v:%d > %v:%d #%d", p.Proto, p.Src, p.SrcPort, p.Dst, p.DstPort, p.EchoID)
				if p.Proto == reference.ICMP || p.Proto == reference.ICMPv6 {
					text += fmt.Sprintf(" type %d code %d", p.ICMPType, p.ICMPCode)
				}
				if q := p.Quoted; q != nil {
					text += fmt.Sprintf(" about %d: %v:%d > %v:%d #%d", q.Proto, q.Src, q.SrcPort, q.Dst, q.DstPort, q.EchoID)
				}
				return text
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
				is = strings.Join(o.Drops, " ")
				if j.State != nil && j.State.Rule != nil && is == "pf-translate" && clashes(rt, j.State) {
					rt.End(j.State)
					continue
				}
			} else if wrong != "" {
				r.Fatalf("%s\n%s becomes %s: %s is wrong\n% x", text, what(p), is, wrong, s.out)
			}
			if is != want {
				r.Fatalf("%s\n%s becomes %s, want %s\n% x", text, what(p), is, want, s.out)
			}
			if len(o.Drops) == 0 {
				translated++
				if p.Quoted != nil {
					errors++
				} else {
					last = &got
					last.Flags = p.Flags
				}
			}
		}
	})
	t.Logf("%d packets translated, %d of them errors, %d could not be", translated, errors, refused)
	if translated == 0 || refused == 0 || errors == 0 {
		t.Error("not everything was compared")
	}
}
