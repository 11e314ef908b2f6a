// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// inner returns the packet that an ICMP error quotes: a frame without its Ethernet header.
func inner(f netlab.Frame) gopacket.Payload { return gopacket.Payload(f[14:]) }

// error4 returns an ICMP error about a packet.
func (r *router) error4(from *host, src, dst netip.Addr, code uint8, about netlab.Frame) netlab.Frame {
	r.t.Helper()
	return r.frame(from, ip4(src, dst, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, code)}, inner(about))
}

var _ = freeBSD.has("icmp", cases{
	// An error that quotes a packet of no connection does not pass through a state with the same
	// ports.
	"cve_2019_5598": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.load("block all\npass in proto udp to 10.1.1.2 port 53\npass out proto udp to 10.1.1.2 port 53")
		u := &layers.UDP{SrcPort: 1234, DstPort: 53}
		r.sends(a, r.frame(a, ip4(a.v4, b.v4, layers.IPProtocolUDP), u))
		r.one(r.gets(b))
		quoted := r.frame(a, ip4(netip.MustParseAddr("10.9.9.1"), netip.MustParseAddr("10.8.8.1"), layers.IPProtocolUDP), u)
		r.sends(a, r.error4(a, a.v4, b.v4, 3, quoted))
		if got := r.gets(b); len(got) != 0 {
			r.t.Errorf("the error has come: %v", got)
		}
	},
	"ttl_exceeded": func(r *router) { r.exceeded(false) },
})

// exceeded has a router behind the translation send an error because the time to live has ended. It
// reaches the packet's sender and quotes the original packet.
func (r *router) exceeded(six bool) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	far, net, family, from := netip.MustParseAddr("10.9.9.1"), "10.9.9.0/24", "inet", a.v4
	if six {
		far, net, family, from = netip.MustParseAddr("2001:db8:99::1"), "2001:db8:99::/64", "inet6", a.v6
	}
	by := b.v4
	if six {
		by = b.v6
	}
	for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv4/icmp_ratemask": "0",
		"ipv6/conf/all/forwarding": "1", "ipv6/icmp/ratelimit": "0"} {
		r.sysctl(b, name, value)
	}
	r.route(r.self, net, by)
	r.load("nat on em1 " + family + " from (em0:network) -> (em1:0)\nblock\npass " + family + " proto udp\n" +
		"pass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv, echoreq }\npass inet proto icmp icmp-type echoreq")
	r.passes(ping(a, by))
	udp := &layers.UDP{SrcPort: 4201, DstPort: 33434}
	four, four2 := ip4(from, far, layers.IPProtocolUDP), ip4(from, far, layers.IPProtocolICMPv4)
	four.TTL, four2.TTL = 2, 2
	hop, hop2 := ip6(from, far, layers.IPProtocolUDP), ip6(from, far, layers.IPProtocolICMPv6)
	hop.HopLimit, hop2.HopLimit = 2, 2
	probes := [][]gopacket.SerializableLayer{{four, udp, gopacket.Payload("probe")}, {four2, echo4(9), gopacket.Payload("probe")}}
	if six {
		probes = [][]gopacket.SerializableLayer{{hop, udp, gopacket.Payload("probe")},
			{hop2, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)},
				&layers.ICMPv6Echo{Identifier: 9, SeqNumber: 1}, gopacket.Payload("probe")}}
	}
	for _, probe := range probes {
		r.gets(a)
		r.gets(b)
		r.sends(a, r.frame(a, probe...))
		if src := r.one(r.gets(b)).NetworkLayer().NetworkFlow().Src().String(); src != b.gw4.String() && src != b.gw6.String() {
			r.t.Errorf("the packet is not translated: it comes from %s", src)
		}
		p := r.one(r.gets(a))
		if src := p.NetworkLayer().NetworkFlow().Src().String(); src != by.String() {
			r.t.Errorf("the answer is from %s", src)
		}
		var quoted gopacket.Packet
		if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok && l.TypeCode.Type() == layers.ICMPv6TypeTimeExceeded {
			quoted = gopacket.NewPacket(l.Payload[4:], layers.LayerTypeIPv6, gopacket.Default)
		} else if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok && l.TypeCode.Type() == layers.ICMPv4TypeTimeExceeded {
			quoted = gopacket.NewPacket(l.Payload, layers.LayerTypeIPv4, gopacket.Default)
		} else {
			r.t.Fatalf("the answer is %v", p)
		}
		if src := quoted.NetworkLayer().NetworkFlow().Src().String(); src != from.String() {
			r.t.Errorf("the answer quotes a packet from %s", src)
		}
	}
}

var _ = freeBSD.has("icmp.py", cases{
	"TestICMP.test_inner_match": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		other := r.address(b, b.ifname, "10.1.1.3/24")
		r.load("set reassemble yes\nset state-policy if-bound\nblock\npass inet proto icmp icmp-type echoreq")
		r.passes(ping(a, other))
		r.gets(b)
		r.sends(a, r.echo(a, a.v4, b.v4, 7, "echo"))
		r.one(r.gets(b))
		answer := r.frame(a, ip4(b.v4, a.v4, layers.IPProtocolICMPv4), &layers.ICMPv4{Id: 7, Seq: 1}, gopacket.Payload("echo"))
		r.sends(a, r.error4(a, a.v4, other, 1, answer)) // to another host than the one that has answered
		if got := r.gets(b); len(got) != 0 {
			r.t.Errorf("the error has come: %v", got)
		}
		r.sends(a, r.error4(a, a.v4, b.v4, 1, answer))
		r.one(r.gets(b))
	},
	"TestICMP.test_fragmentation_needed": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.mtu(b, 1492)
		r.load("set reassemble yes\nset state-policy if-bound\nblock\npass inet proto icmp icmp-type echoreq")
		for _, size := range []int{128, 1464, 1468} {
			r.gets(a)
			request := ip4(a.v4, b.v4, layers.IPProtocolICMPv4)
			request.Flags = layers.IPv4DontFragment
			r.sends(a, r.frame(a, request, echo4(9), gopacket.Payload(make([]byte, size))))
			p := r.one(r.gets(a))
			from, icmp := layer[*layers.IPv4](r, p).SrcIP.String(), layer[*layers.ICMPv4](r, p)
			if size <= 1464 {
				if from != b.v4.String() || icmp.TypeCode.Type() != layers.ICMPv4TypeEchoReply {
					r.t.Errorf("to %d bytes comes %v", size, p)
				}
				continue
			}
			if from != a.gw4.String() || icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || icmp.Seq != 1492 {
				r.t.Errorf("to %d bytes comes %v", size, p)
			}
		}
	},
	// The options in an error's quote have no end.
	"TestICMP.test_truncated_opts": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.load("set reassemble yes\nset state-policy if-bound\nblock\npass inet proto icmp icmp-type echoreq")
		quoted := slices.Concat([]byte{0x4e, 0, 3, 0xe8, 0, 1, 0, 0, 64, 0, 0, 0}, b.v4.AsSlice(), a.v4.AsSlice(), []byte{130, 100, 0, 0})
		r.sends(a, r.frame(a, ip4(a.v4, b.v4, layers.IPProtocolICMPv4),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, gopacket.Payload(quoted)))
		if got := r.gets(b); len(got) != 0 {
			r.t.Errorf("the error has come: %v", got)
		}
		r.passes(ping(a, b.v4))
	},
	// Two clients use the same identifier, as Windows does.
	"TestICMP_NAT.test_id_conflict": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		other := r.address(a, a.ifname, "10.1.0.3/24")
		r.load("set reassemble yes\nset state-policy if-bound\nnat on em1 inet from 10.1.0.0/24 to any -> (em1)\nblock\n" +
			"pass inet proto icmp icmp-type echoreq")
		ids := map[uint16]bool{}
		for _, src := range []netip.Addr{a.v4, other} {
			r.gets(a)
			r.gets(b)
			r.sends(a, r.echo(a, src, b.v4, 42, "0123456789abcdef"))
			request := r.one(r.gets(b))
			if from := layer[*layers.IPv4](r, request).SrcIP.String(); from != b.gw4.String() {
				r.t.Errorf("the request is not translated: it comes from %s", from)
			}
			ids[layer[*layers.ICMPv4](r, request).Id] = true
			p := r.one(r.gets(a))
			if ip, icmp := layer[*layers.IPv4](r, p), layer[*layers.ICMPv4](r, p); ip.DstIP.String() != src.String() ||
				icmp.Id != 42 || icmp.TypeCode.Type() != layers.ICMPv4TypeEchoReply {
				r.t.Errorf("to the request of %v comes %v", src, p)
			}
		}
		if len(ids) != 2 {
			r.t.Errorf("the requests have the identifiers %v", ids)
		}
	},
})

// mtu sets the MTU of a station's link and of the router's interface, at both ends of each, until
// the case ends.
func (r *router) mtu(at *host, mtu int) {
	r.t.Helper()
	at.SetMTU(mtu)
	nl, port := r.Switch.Netlink(), r.link(r.self, at.port)
	peer, err := nl.LinkByIndex(port.Attrs().ParentIndex)
	r.must(err)
	for _, l := range []netlink.Link{port, peer} {
		r.must(nl.LinkSetMTU(l, mtu))
		r.t.Cleanup(func() { r.must(nl.LinkSetMTU(l, l.Attrs().MTU)) })
	}
}

// solicitation returns a request for the Ethernet address of the router's interface.
func (r *router) solicitation(from *host) netlab.Frame {
	r.t.Helper()
	target := from.gw6.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: target[13], 14: target[14], 15: target[15]})
	ip := ip6(from.v6, group, layers.IPProtocolICMPv6)
	ip.HopLimit = 255
	mac := netlab.MAC{0x33, 0x33, 0xff, target[13], target[14], target[15]}
	return r.ether(from.MAC, mac, ip, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborSolicitation, 0)},
		&layers.ICMPv6NeighborSolicitation{TargetAddress: target[:],
			Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptSourceAddress, Data: from.MAC[:]}}})
}

// advertised counts the answers to solicitations that have arrived at a station.
func (r *router) advertised(at *host) (n int) {
	r.t.Helper()
	for _, p := range r.getsAll(at) {
		if p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement) != nil {
			n++
		}
	}
	return n
}

var _ = freeBSD.has("icmp6", cases{
	// An echo request with the identifier 0 is no neighbour discovery.
	"zero_id": func(r *router) {
		a := r.stations[0]
		r.load("set block-policy drop\nantispoof quick for em0\nblock all\npass out\n" +
			"pass in quick inet6 proto ipv6-icmp icmp6-type 135\npass in quick inet6 proto ipv6-icmp icmp6-type 136\n" +
			"pass out quick inet6 proto ipv6 from self to any")
		r.blocked(ping(a, r.self.v6))
		r.sends(a, r.solicitation(a))
		if n := r.advertised(a); n != 1 {
			r.t.Errorf("%d answers of neighbour discovery", n)
		}
		r.sends(a, r.echo(a, a.v6, r.self.v6, 0, "echo"))
		if got := r.gets(a); len(got) != 0 {
			r.t.Errorf("the echo is answered: %v", got)
		}
	},
	"ttl_exceeded": func(r *router) { r.exceeded(true) },
	// Repeated neighbour discovery.
	"repeat": func(r *router) {
		a := r.stations[0]
		r.load("block all\npass quick inet6 proto ipv6-icmp all icmp6-type neighbrsol keep state (if-bound) ridentifier 107")
		for n := range 4 {
			r.getsAll(a)
			r.sends(a, r.solicitation(a))
			if got := r.advertised(a); got != 1 {
				r.t.Errorf("question %d has %d answers", n+1, got)
			}
		}
	},
})

// authenticated returns an echo request behind a number of AH headers.
func (r *router) authenticated(from *host, src, dst netip.Addr, headers int) netlab.Frame {
	r.t.Helper()
	last, echo := byte(unix.IPPROTO_ICMP), []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	if src.Is6() {
		last, echo[0] = unix.IPPROTO_ICMPV6, 128
	}
	var b []byte
	for n := range headers {
		next := byte(unix.IPPROTO_AH)
		if n == headers-1 {
			next = last
		}
		b = append(b, next, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)
	}
	b = append(b, echo...)
	if src.Is4() {
		return r.frame(from, ip4(src, dst, layers.IPProtocolAH), gopacket.Payload(b))
	}
	return r.frame(from, ip6(src, dst, layers.IPProtocolAH), gopacket.Payload(b))
}

// headers sends packets with nineteen headers, which pass, and with twenty, which do not.
func (r *router) headers(six bool) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	src, dst := a.v4, b.v4
	if six {
		src, dst = a.v6, b.v6
	}
	r.load("pass")
	r.passes(ping(a, dst))
	r.gets(b)
	for _, n := range []int{19, 20} {
		r.sends(a, r.authenticated(a, src, dst, n))
		arrived := 0
		for _, p := range r.gets(b) {
			if p.NetworkLayer().NetworkFlow().Src().String() == src.String() {
				arrived++
			}
		}
		if arrived != 20-n {
			r.t.Errorf("with %d headers, %d packets arrive", n, arrived)
		}
	}
}

var _ = freeBSD.has("header.py", cases{
	"TestHeader.test_too_many":  func(r *router) { r.headers(false) },
	"TestHeader6.test_too_many": func(r *router) { r.headers(true) },
})
