// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// nat64Net is the IPv6 prefix for IPv4 addresses. The well-known prefix is not for private addresses.
const nat64Net = "2001:db8:64::/96"

// in6 returns an IPv4 address behind that prefix.
func in6(a netip.Addr) netip.Addr {
	b := netip.MustParsePrefix(nat64Net).Addr().As16()
	copy(b[12:], a.AsSlice())
	return netip.AddrFrom16(b)
}

// nat64Rules translate packets that come in by em0. pool follows af-to inet from.
func nat64Rules(pool string) string {
	return "block\npass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv }\n" +
		"pass in on em0 inet6 from any to " + nat64Net + " af-to inet from " + pool
}

func nat64(pool, policy string) string {
	return "set reassemble yes\nset state-policy " + policy + "\n" + nat64Rules(pool)
}

// nat64TCP opens a connection, for which there is one state.
func nat64TCP(policy string) func(*router) {
	return func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load(nat64("(em1)", policy))
		r.seenFrom(tcp(inside, in6(outside.v4), 1234, outside).reaches(outside.v4, 1234), outside.gw4, 0)
		if got := r.states("tcp"); len(got) != 1 || !strings.Contains(got[0], "10.1.1.2:1234") || !strings.Contains(got[0], "2001:db8:1::2[") {
			r.t.Errorf("states: %q", got)
		}
	}
}

// nat64Sources makes n calls, and returns the sources that the receiver sees.
func nat64Sources(r *router, n int) (list []string) {
	r.t.Helper()
	for range n {
		got := r.passes(udp(r.stations[0], in6(r.stations[1].v4), 1234, r.stations[1]).reaches(r.stations[1].v4, 1234))
		list = append(list, got.Addr().String())
	}
	slices.Sort(list)
	return list
}

// nat64Pool uses a pool of the router's own address and more addresses, which take turns.
func nat64Pool(rules string, more ...string) func(*router) {
	return func(r *router) {
		outside := r.stations[1]
		want := []string{outside.gw4.String()}
		if strings.Contains(rules, "/31") {
			want = nil
		}
		for _, a := range more {
			r.address(r.self, "em1", a+"/24")
			want = append(want, a)
		}
		r.load(rules)
		slices.Sort(want)
		if got := nat64Sources(r, len(want)); !slices.Equal(got, want) {
			r.t.Errorf("from %q, should be %q", got, want)
		}
	}
}

var _ = freeBSD.has("nat64", cases{
	"icmp_echo_in": func(r *router) {
		r.load(nat64("(em1)", "if-bound"))
		for range 6 { // from the second on there is a state, since a program's echoes have one identifier
			r.passes(ping(r.stations[0], in6(r.stations[1].v4)))
		}
	},
	"tcp_in_if_bound": nat64TCP("if-bound"),
	"tcp_in_floating": nat64TCP("floating"),
	"udp_in": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load(nat64("(em1)", "if-bound"))
		r.passes(ping(inside, in6(outside.v4)))
		r.seenFrom(udp(inside, in6(outside.v4), 1234, outside).reaches(outside.v4, 1234), outside.gw4, 0)
	},
	"sctp_in": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load(nat64("(em1)", "if-bound"))
		r.sends(inside, r.frame(inside, ip6(inside.v6, in6(outside.v4), layers.IPProtocolSCTP), sctpInit(4000, 1234)))
		p := r.one(r.gets(outside))
		ip, chunk := layer[*layers.IPv4](r, p), layer[*layers.SCTP](r, p)
		if ip.SrcIP.String() != outside.gw4.String() || chunk.SrcPort != 4000 || chunk.DstPort != 1234 {
			r.t.Errorf("%v", p)
		}
		r.gets(inside) // the error that there is no SCTP
		r.sends(outside, r.frame(outside, ip4(outside.v4, outside.gw4, layers.IPProtocolSCTP), sctpInit(1234, 4000)))
		p = r.one(r.gets(inside))
		if got := layer[*layers.IPv6](r, p); got.SrcIP.String() != in6(outside.v4).String() || got.DstIP.String() != inside.v6.String() {
			r.t.Errorf("%v", p)
		}
	},
	"tos": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load(nat64("(em1)", "if-bound"))
		for _, tos := range []int{4, 8, 16} {
			c := udp(inside, in6(outside.v4), 1234, outside).reaches(outside.v4, 1234)
			c.tos = tos
			r.gets(outside)
			r.passes(c)
			if got := layer[*layers.IPv4](r, r.gets(outside)[0]); int(got.TOS) != tos {
				r.t.Errorf("a traffic class of %d has become %d", tos, got.TOS)
			}
		}
	},
	"no_v4": func(r *router) {
		r.withoutAddress(r.stations[1])
		r.load(nat64Rules("(em1)"))
		r.dropped(ping(r.stations[0], in6(r.stations[1].v4)), "translate")
	},
	"range": nat64Pool(nat64("10.1.1.8/31 round-robin", "if-bound"), "10.1.1.8", "10.1.1.9"),
	"pool":  nat64Pool(nat64("{ 10.1.1.1, 10.1.1.8, 10.1.1.9 } round-robin", "if-bound"), "10.1.1.8", "10.1.1.9"),
	"table": func(r *router) {
		for _, method := range []string{"round-robin", "random"} {
			r.load("pass in on em0 inet6 from any to " + nat64Net + " af-to inet from <wan> " + method)
		}
		r.refuses("pass in on em0 inet6 from any to "+nat64Net+" af-to inet from <wan> bitmask", "tables are not supported by pool type")
	},
	"table_range":       nat64Pool("table <wan> { 10.1.1.8/31 }\n"+nat64Rules("<wan> round-robin"), "10.1.1.8", "10.1.1.9"),
	"table_round_robin": nat64Pool("table <wan> { 10.1.1.1, 10.1.1.8, 10.1.1.9 }\n"+nat64Rules("<wan> round-robin"), "10.1.1.8", "10.1.1.9"),
	"table_random": func(r *router) {
		r.address(r.self, "em1", "10.1.1.8/24")
		r.load("table <wan> { 10.1.1.1, 10.1.1.8 }\n" + nat64Rules("<wan> random"))
		for _, got := range nat64Sources(r, 6) {
			if got != "10.1.1.1" && got != "10.1.1.8" {
				r.t.Errorf("from %s", got)
			}
		}
	},
	"gateway6": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		behind := r.address(inside, "lo", "2001:db8:77::5/128")
		r.route(r.self, "2001:db8:77::/64", inside.v6)
		r.load(nat64("(em1)", "if-bound"))
		for range 6 {
			r.passes(ping(inside, in6(outside.v4)).bound(behind, 0))
		}
		r.seenFrom(udp(inside, in6(outside.v4), 1234, outside).bound(behind, 0).reaches(outside.v4, 1234), outside.gw4, 0)
	},
	"v6_gateway": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		far := r.address(outside, "lo", "203.0.113.7/32")
		r.ip(r.self, fmt.Sprintf("route add 203.0.113.0/24 via inet6 %s dev em1", outside.v6), "route del 203.0.113.0/24")
		r.passes(ping(r.self, far))
		r.load(nat64("(em1)", "if-bound"))
		for range 3 {
			r.passes(ping(inside, in6(outside.v4)))
			r.passes(ping(inside, in6(far)))
		}
	},
})

// sctpInit returns the first packet of an association.
func sctpInit(from, to uint16) gopacket.SerializableLayer {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)              // tag, and room for the checksum
	b = append(b, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 5, 0) // INIT
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32c(b))
	return gopacket.Payload(b)
}

// expires sends a packet whose time to live ends at the station behind the router. The station sends
// an error.
func expires(protocol layers.IPProtocol, packet ...gopacket.SerializableLayer) func(*router) {
	return func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		nat64Hop(r)
		ip := ip6(inside.v6, in6(netip.MustParseAddr("203.0.113.2")), protocol)
		ip.HopLimit = 2 // the router decrements it
		r.sends(inside, r.frame(inside, append([]gopacket.SerializableLayer{ip}, packet...)...))
		p := r.one(r.gets(inside))
		if got := layer[*layers.IPv6](r, p); got.SrcIP.String() != in6(outside.v4).String() {
			r.t.Errorf("the error is from %v, should be from %v", got.SrcIP, in6(outside.v4))
		}
		if got := layer[*layers.ICMPv6](r, p); got.TypeCode != layers.CreateICMPv6TypeCode(layers.ICMPv6TypeTimeExceeded, 0) {
			r.t.Errorf("%v", got.TypeCode)
		}
	}
}

// nat64Hop has the station behind the router forward.
func nat64Hop(r *router) {
	r.t.Helper()
	inside, outside := r.stations[0], r.stations[1]
	r.route(r.self, "203.0.113.0/24", outside.v4)
	r.sysctl(outside, "ipv4/ip_forward", "1")
	r.sysctl(outside, "ipv4/icmp_ratemask", "0")
	r.load("pass inet6 proto icmp6\npass in on em0 inet6 to " + nat64Net + " af-to inet from " + outside.gw4.String())
	r.passes(ping(inside, in6(outside.v4)))
	r.gets(inside)
}

var _ = freeBSD.has("nat64.py", cases{
	"TestNAT64.test_tcp_rst": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		nat64Hop(r)
		r.refused(tcp(inside, in6(outside.v4), 1222, nil), syscall.ECONNREFUSED)
		r.passes(tcp(inside, in6(outside.v4), 1234, outside).reaches(outside.v4, 1234))
	},
	"TestNAT64.test_udp_port_closed": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		nat64Hop(r)
		r.sends(inside, r.frame(inside, ip6(inside.v6, in6(outside.v4), layers.IPProtocolUDP), &layers.UDP{SrcPort: 4000, DstPort: 1222}, gopacket.Payload("any")))
		p := r.one(r.gets(inside))
		if got := layer[*layers.ICMPv6](r, p); got.TypeCode != layers.CreateICMPv6TypeCode(layers.ICMPv6TypeDestinationUnreachable, 4) {
			r.t.Errorf("%v", got.TypeCode)
		}
		// The quoted packet, behind four bytes.
		quoted := gopacket.NewPacket(layer[*layers.ICMPv6](r, p).Payload[4:], layers.LayerTypeIPv6, gopacket.Default)
		if got := layer[*layers.UDP](r, quoted); got.DstPort != 1222 || got.SrcPort != 4000 {
			r.t.Errorf("%v", quoted)
		}
	},
	"TestNAT64.test_address_unreachable": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		nat64Hop(r)
		r.ip(outside, "route add unreachable 203.0.113.0/24", "route del unreachable 203.0.113.0/24")
		r.sends(inside, r.frame(inside, ip6(inside.v6, in6(netip.MustParseAddr("203.0.113.2")), layers.IPProtocolUDP),
			&layers.UDP{SrcPort: 4000, DstPort: 1222}, gopacket.Payload("any")))
		p := r.one(r.gets(inside))
		if got := layer[*layers.ICMPv6](r, p); got.TypeCode != layers.CreateICMPv6TypeCode(layers.ICMPv6TypeDestinationUnreachable, 0) {
			r.t.Errorf("%v", got.TypeCode)
		}
		if got := layer[*layers.IPv6](r, p); got.HopLimit != 63 || got.SrcIP.String() != in6(outside.v4).String() {
			r.t.Errorf("a hop limit of %d from %v", got.HopLimit, got.SrcIP)
		}
	},
	"TestNAT64.test_udp_checksum": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		nat64Hop(r)
		r.gets(outside)
		r.sends(inside, r.frame(inside, ip6(inside.v6, in6(outside.v4), layers.IPProtocolUDP), &layers.UDP{SrcPort: 3333, DstPort: 4444}, gopacket.Payload("any")))
		asked := layer[*layers.UDP](r, r.one(r.gets(outside)))
		r.gets(inside) // the error of a closed port
		answer := r.frame(outside, ip4(outside.v4, outside.gw4, layers.IPProtocolUDP), &layers.UDP{SrcPort: 4444, DstPort: asked.SrcPort}, gopacket.Payload("any"))
		answer = answer[:14+20+6] + "\x00\x00" + answer[14+20+8:] // without a checksum
		r.sends(outside, answer)
		p := r.one(r.gets(inside))
		got := layer[*layers.UDP](r, p)
		ip := layer[*layers.IPv6](r, p)
		whole := r.frame(outside, ip6(netip.MustParseAddr(ip.SrcIP.String()), inside.v6, layers.IPProtocolUDP),
			&layers.UDP{SrcPort: 4444, DstPort: 3333}, gopacket.Payload("any"))
		if want := binary.BigEndian.Uint16([]byte(whole[14+40+6:])); got.Checksum != want || got.DstPort != 3333 {
			r.t.Errorf("the checksum is %#x, should be %#x: %v", got.Checksum, want, p)
		}
	},
	"TestNAT64.test_source_addr_tcp":  expires(layers.IPProtocolTCP, &layers.TCP{SrcPort: 1111, DstPort: 2222, SYN: true, Window: 1000}),
	"TestNAT64.test_source_addr_udp":  expires(layers.IPProtocolUDP, &layers.UDP{SrcPort: 1111, DstPort: 2222}, gopacket.Payload("any")),
	"TestNAT64.test_source_addr_sctp": expires(layers.IPProtocolSCTP, sctpInit(1111, 2222)),
	"TestNAT64.test_source_addr_icmp": expires(layers.IPProtocolICMPv6,
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}, gopacket.Payload("\x00\x07\x00\x01any")),
})

// tooBig sends an echo that is a few bytes larger than the path MTU. The router sends an error.
func tooBig(r *router, source netip.Addr, size int, fragment bool) {
	r.t.Helper()
	inside, outside := r.stations[0], r.stations[1]
	body := append([]byte("\x00\x07\x00\x01"), make([]byte, size)...)
	echo := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}
	r.gets(inside)
	f := r.frame(inside, ip6(source, outside.v6, layers.IPProtocolICMPv6), echo, gopacket.Payload(body))
	if fragment {
		whole := []byte(f[14+40:])
		ip := ip6(source, outside.v6, layers.IPProtocolIPv6Fragment)
		first := []byte{58, 0, 0, 1, 0, 0, 0, 9} // more fragments follow
		f = r.frame(inside, ip, gopacket.Payload(slices.Concat(first, whole[:1400])))
	}
	r.sends(inside, f)
	p := r.one(r.gets(inside))
	if got := layer[*layers.IPv6](r, p); got.SrcIP.String() != inside.gw6.String() || got.DstIP.String() != source.String() {
		r.t.Errorf("the error is from %v to %v", got.SrcIP, got.DstIP)
	}
	got := layer[*layers.ICMPv6](r, p)
	if got.TypeCode != layers.CreateICMPv6TypeCode(layers.ICMPv6TypePacketTooBig, 0) || binary.BigEndian.Uint32(got.Payload) != 1300 {
		r.t.Errorf("%v", p)
	}
	if q := got.Payload[4:]; !slices.Equal(q[8:24], source.AsSlice()) || !slices.Equal(q[24:40], outside.v6.AsSlice()) {
		r.t.Errorf("it quotes a packet from %x to %x", q[8:24], q[24:40])
	}
}

// npt has a station behind another prefix, on a path with an MTU of 1300.
func npt(r *router, source netip.Addr) {
	outside := r.stations[1]
	r.load("set reassemble yes\nbinat inet6 from 2001:db8:1::/64 to 2001:db8:2::/64 -> 2001:db8:42::/64\n" +
		"binat inet6 from 2001:db8:2::/64 to 2001:db8:42::/64 -> 2001:db8:1::/64\npass inet6 proto icmp6\n" +
		"pass in route-to (em1 2001:db8:2::2) inet6 from 2001:db8:1::3 to 2001:db8:2::/64")
	r.ip(r.self, "link set em1 mtu 1300", "link set em1 mtu 1500")
	small := func(size int) call {
		c := ping(r.stations[0], outside.v6).bound(source, 0)
		c.size = size
		return c
	}
	r.passes(small(128))
	r.passes(small(1300 - 48))
	tooBig(r, source, 1300-48+1, false)
	tooBig(r, source, 4000, true)
}

var _ = freeBSD.has("nat66.py", cases{
	"TestNAT66.test_npt_icmp": func(r *router) { npt(r, r.stations[0].v6) },
})

// crc32c returns the checksum of an SCTP packet, whose checksum field is zero.
func crc32c(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
