// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// A piece is a fragment: a number of bytes of a datagram, from an offset on. Its first bytes may be
// changed.
type piece struct {
	at, length int
	more       bool
	other      int // number of bytes that differ from the datagram's
}

// pieces returns fragments of an echo request with size bytes behind the IP header. Each datagram
// has an identification of its own, so fragments of former ones do not matter.
func (r *router) pieces(from *host, dst netip.Addr, size int, list ...piece) (frames []netlab.Frame) {
	r.t.Helper()
	whole := r.frame(from, ip4(from.v4, dst, layers.IPProtocolICMPv4), echo4(11), gopacket.Payload(slices.Repeat([]byte("abcdefgh"), size/8-1)))[34:]
	r.datagrams++
	for _, p := range list {
		ip := ip4(from.v4, dst, layers.IPProtocolICMPv4)
		ip.Id, ip.FragOffset = r.datagrams, uint16(p.at/8)
		if p.more {
			ip.Flags = layers.IPv4MoreFragments
		}
		data := append(slices.Repeat([]byte{'X'}, p.other), whole[p.at+p.other:p.at+p.length]...)
		frames = append(frames, r.frame(from, ip, gopacket.Payload(data)))
	}
	return frames
}

// row returns consecutive pieces of one size from an offset to an end.
func row(from, to, size int) (list []piece) {
	for at := from; at < to; at += size {
		list = append(list, piece{at, size, true, 0})
	}
	return list
}

// overlimit sends a datagram whose fragments overlap such that it cannot be reassembled.
func (r *router) overlimit(rules string) {
	r.t.Helper()
	a := r.stations[0]
	r.load(rules)
	r.passes(ping(a, r.self.v4))
	r.gets(a)
	const size, edge = 64, 4096
	list := slices.Concat(row(0, edge-size, size), row(edge, 2*edge-size, size),
		[]piece{{2*edge - size, size, false, 0}, {edge - 8, 16, true, 8}, {edge - size, size, true, 0}})
	r.sends(a, r.pieces(a, r.self.v4, 2*edge, list...)...)
	if got := r.gets(a); len(got) != 0 {
		r.t.Errorf("the echo is answered: %v", got)
	}
}

// large sends echoes of many sizes to the router and to a station behind it.
func (r *router) large(rules string) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	r.load(rules)
	for _, to := range []netip.Addr{r.self.v6, r.linkLocal("em0").WithZone(a.ifname), b.v6} {
		for _, size := range []int{0, 4500, 65000} {
			c := ping(a, to)
			c.size = size
			r.passes(c)
		}
	}
	// Fragments in which an AH header precedes the fragment header, and is longer than the
	// following data.
	long := make([]byte, 808) // 202 words; the header counts 2 less
	long[0], long[1] = unix.IPPROTO_AH, 200
	short := []byte{unix.IPPROTO_FRAGMENT, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}
	fragment := func(at uint16, more byte) []byte {
		return binary.BigEndian.AppendUint32(append(binary.BigEndian.AppendUint16([]byte{unix.IPPROTO_UDP, 0}, at<<3)[:3], byte(at<<3)|more), 99)
	}
	r.sends(a, r.frame(a, ip6(a.v6, b.v6, layers.IPProtocolIPv6Fragment), gopacket.Payload(append(fragment(0, 1), "AAAAAAAA"...))),
		r.frame(a, ip6(a.v6, b.v6, layers.IPProtocolAH), gopacket.Payload(slices.Concat(long, short, fragment(1, 0), []byte("BBBBBBBB")))))
	r.passes(ping(a, b.v6))
}

// linkLocal returns the link-local address of one of the router's interfaces.
func (r *router) linkLocal(ifname string) netip.Addr {
	r.t.Helper()
	addresses, err := r.Switch.Netlink().AddrList(r.link(r.self, ifname), unix.AF_INET6)
	r.must(err)
	for _, a := range addresses {
		if link, ok := netip.AddrFromSlice(a.IP); ok && link.IsLinkLocalUnicast() {
			return link
		}
	}
	r.t.Fatalf("%s has no address of its link", ifname)
	return netip.Addr{}
}

// larger sends a packet from a link to another one with a larger MTU.
func (r *router) larger(rules string) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	r.mtu(b, 9000)
	r.load(rules)
	for _, to := range []netip.Addr{a.gw4, b.gw4, b.v4} {
		r.passes(ping(a, to))
	}
	c := ping(a, b.v4)
	c.size = 8000
	r.passes(c)
}

const discovers = "\nblock in\npass in inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv }\npass in inet6 proto icmp6 icmp6-type { echoreq, echorep }"

var _ = freeBSD.has("fragmentation_pass", cases{
	"v6":        func(r *router) { r.large("set reassemble yes\npass keep state" + discovers) },
	"mtu_diff":  func(r *router) { r.larger("set reassemble yes\npass keep state") },
	"overlimit": func(r *router) { r.overlimit("set reassemble yes\npass keep state") },
	// DF is cleared, and the packet is fragmented.
	"no_df": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.mtu(a, 9000)
		r.load("scrub all fragment reassemble no-df\nblock\npass inet proto icmp all icmp-type echoreq")
		ip := ip4(a.v4, b.v4, layers.IPProtocolICMPv4)
		ip.Flags = layers.IPv4DontFragment
		r.gets(a)
		r.sends(a, r.frame(a, ip, echo4(9), gopacket.Payload(make([]byte, 2000))))
		for _, p := range r.gets(a) {
			if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok && l.TypeCode.Type() == layers.ICMPv4TypeDestinationUnreachable {
				r.t.Errorf("the sender hears %v", p)
			}
		}
		if got := len(r.gets(b)); got != 2 {
			r.t.Errorf("%d fragments have come", got)
		}
		c := ping(a, b.v4)
		c.size = 2000
		r.passes(c)
	},
	// An IPsec policy for other packets.
	"reassemble_slowpath": func(r *router) {
		r.ip(r.self, "xfrm policy add src 203.0.113.1/32 dst 203.0.113.2/32 dir out tmpl proto esp mode transport",
			"xfrm policy flush")
		r.load("scrub in on em0 fragment no reassemble\nscrub on em1 fragment reassemble\npass")
		c := ping(r.stations[0], r.stations[1].v4)
		r.passes(c)
		c.size = 2000
		r.passes(c)
	},
})

var _ = freeBSD.has("fragmentation_compat", cases{
	"mtu_diff":  func(r *router) { r.larger("scrub all fragment reassemble") },
	"overlimit": func(r *router) { r.overlimit("scrub all fragment reassemble") },
})

// onlyFragments passes only fragments.
func (r *router) onlyFragments(head string) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	r.load(head + "pass out\nblock in\npass in inet proto icmp fragment")
	if n := r.requests(a, b, a.v4, b.v4); n != 0 {
		r.t.Errorf("%d whole packets have come", n)
	}
	r.sends(a, r.pieces(a, b.v4, 2000, piece{0, 1000, true, 0}, piece{1000, 1000, false, 0})...)
	if got := r.gets(b); len(got) != 2 {
		r.t.Errorf("%d fragments have come: %v", len(got), got)
	}
}

var _ = freeBSD.has("fragmentation_no_reassembly", cases{
	"match_fragment_v4":  func(r *router) { r.onlyFragments("") },
	"compat_override_v4": func(r *router) { r.onlyFragments("set reassemble yes\nno scrub\n") },
})

var _ = freeBSD.has("frag4.py", cases{
	// A later fragment of an unknown packet.
	"TestFrag4_NoReassemble.test_udp_frag": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.load("set reassemble no\nnat on em1 from 10.1.0.0/24 to any -> (em1)\npass out")
		r.passes(ping(a, b.v4))
		r.gets(a)
		r.gets(b)
		ip := ip4(a.v4, b.v4, layers.IPProtocolUDP)
		ip.FragOffset = 123
		r.sends(a, r.frame(a, ip, &layers.UDP{SrcPort: 54321, DstPort: 12345}))
		if got := append(r.gets(a), r.gets(b)...); len(got) != 0 {
			r.t.Errorf("there comes %v", got)
		}
	},
})

var _ = freeBSD.has("frag6.py", cases{
	// Two fragment headers that both say that the packet is whole.
	"TestFrag6.test_dup_frag_hdr": func(r *router) {
		a := r.stations[0]
		r.load("scrub fragment reassemble\npass\nblock in inet6 proto icmp6 icmp6-type echoreq")
		request := r.echo(a, a.v6, r.self.v6, 7, "echo")[54:]
		twice := []byte{unix.IPPROTO_FRAGMENT, 0, 0, 0, 0, 0, 0, 5, unix.IPPROTO_ICMPV6, 0, 0, 0, 0, 0, 0, 5}
		r.gets(a)
		r.sends(a, r.frame(a, ip6(a.v6, r.self.v6, layers.IPProtocolIPv6Fragment), gopacket.Payload(append(twice, request...))))
		if got := r.gets(a); len(got) != 0 {
			r.t.Errorf("there comes %v", got)
		}
	},
	// Fragments that together are longer than a packet may be.
	"TestFrag6.test_overlong": func(r *router) {
		a := r.stations[0]
		r.load("scrub fragment reassemble min-ttl 10\npass\nblock in inet6 proto icmp6 icmp6-type echoreq")
		var frames []netlab.Frame
		for at := 0; at <= 0xffff; at += 1200 {
			more := true
			size := 1200
			if at+size > 0xffff {
				more, size = false, 65530-at
			}
			frames = append(frames, r.piece6(a, r.self.v6, unix.IPPROTO_ICMPV6, at, more, make([]byte, size)))
		}
		r.gets(a)
		r.sends(a, frames...)
		if got := r.gets(a); len(got) != 0 {
			r.t.Errorf("there comes %v", got)
		}
		r.passes(udp(a, r.self.v6, 9, r.self))
	},
	// A hop-by-hop header precedes all other headers, or the packet is dropped.
	"TestFrag6HopHyHop.test_hop_by_hop": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.load("scrub fragment reassemble min-ttl 10\npass allow-opts")
		request := r.echo(a, a.v6, b.v6, 7, "0123456789")[54:]
		options := []byte{unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0}
		comes := func(want int, f netlab.Frame) {
			r.t.Helper()
			r.gets(b)
			r.sends(a, f)
			if got := r.gets(b); len(got) != want {
				r.t.Errorf("%d packets come, should be %d", len(got), want)
			}
		}
		comes(1, r.frame(a, ip6(a.v6, b.v6, layers.IPProtocolIPv6HopByHop), gopacket.Payload(append(options, request...))))
		comes(0, r.piece6(a, b.v6, unix.IPPROTO_HOPOPTS, 0, false, append(options, request...)))
		comes(1, r.echo(a, a.v6, b.v6, 8, "0123456789"))
	},
	// Fragments that are larger than the MTU to a rule's next hop.
	"TestFrag6_RouteTo.test_too_big": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.mtu(b, 1300)
		r.load("scrub fragment reassemble\npass in route-to (em1 " + b.v6.String() + ") from " + a.v6.String() + " to 2001:db8:666::1")
		far := netip.MustParseAddr("2001:db8:666::1")
		request := []byte(r.echo(a, a.v6, far, 7, string(make([]byte, 2700)))[54:])
		r.gets(a)
		r.sends(a, r.piece6(a, far, unix.IPPROTO_ICMPV6, 0, true, request[:1320]),
			r.piece6(a, far, unix.IPPROTO_ICMPV6, 1320, true, request[1320:2640]),
			r.piece6(a, far, unix.IPPROTO_ICMPV6, 2640, false, request[2640:]))
		heard := 0
		for _, p := range r.gets(a) {
			l := layer[*layers.ICMPv6](r, p)
			if l.TypeCode.Type() != layers.ICMPv6TypePacketTooBig {
				continue
			}
			heard++
			if mtu := binary.BigEndian.Uint32(l.Payload); mtu != 1300 {
				r.t.Errorf("the MTU is said to be %d", mtu)
			}
			quoted := gopacket.NewPacket(l.Payload[4:], layers.LayerTypeIPv6, gopacket.Default).NetworkLayer().NetworkFlow()
			if quoted.Src().String() != a.v6.String() || quoted.Dst().String() != far.String() {
				r.t.Errorf("the error quotes a packet %v", quoted)
			}
		}
		if heard == 0 {
			r.t.Error("the sender hears nothing")
		}
	},
})

// piece6 returns an IPv6 fragment. A first fragment gets a new identification, which the following
// fragments share.
func (r *router) piece6(from *host, dst netip.Addr, next byte, at int, more bool, data []byte) netlab.Frame {
	r.t.Helper()
	if at == 0 {
		r.datagrams++
	}
	flags := uint16(at)
	if more {
		flags |= 1
	}
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{next, 0}, flags), uint32(r.datagrams))
	return r.frame(from, ip6(from.v6, dst, layers.IPProtocolIPv6Fragment), gopacket.Payload(append(header, data...)))
}
