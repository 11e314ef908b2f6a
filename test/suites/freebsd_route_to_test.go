// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// groupTo sends a packet to a multicast or broadcast address, which a next hop must not move out of
// its network. A packet from the router itself is not affected.
func groupTo(to string, six, own bool) func(*router) {
	return func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("block all\npass out keep state\npass in on em0 inet proto icmp\npass in on em0 inet6 proto icmp6\n" +
			"pass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv, routersol, routeradv }\n" +
			"block out quick on em1 inet from any to (em1:broadcast) received-on any\n" +
			"block out quick on em1 inet from any to { 255.255.255.255, 224.0.0.0/4 } received-on any\n" +
			"block out quick on em1 inet6 from any to ff00::/8 received-on any\n" +
			"pass in on em0 route-to (em1 10.1.1.2) inet proto udp from any to any\n" +
			"pass in on em0 route-to (em1 2001:db8:2::2) inet6 proto udp from any to any")
		r.passes(ping(inside, inside.gw4))
		got := func() (n int) {
			for _, p := range r.gets(outside) {
				if l, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP); ok && l.DstPort == 5000 {
					n++
				}
			}
			return n
		}
		got()
		dst := netip.MustParseAddr(to)
		if !own {
			h := gopacket.SerializableLayer(ip4(inside.v4, dst, layers.IPProtocolUDP))
			if six {
				h = ip6(inside.v6, dst, layers.IPProtocolUDP)
			}
			r.sends(inside, r.ether(inside.MAC, groupMAC(dst, inside), h, &layers.UDP{SrcPort: 4000, DstPort: 5000}, gopacket.Payload("any")))
			if n := got(); n != 0 {
				r.t.Errorf("%d packets have come", n)
			}
			return
		}
		r.must(r.Switch.Do(func() error {
			family := unix.AF_INET
			if six {
				family = unix.AF_INET6
			}
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
				return err
			}
			if err := unix.BindToDevice(fd, "em1"); err != nil {
				return err
			}
			return r.OnCPU(func() error { return unix.Sendto(fd, []byte("any"), 0, sockaddr(netip.AddrPortFrom(dst, 5000))) })
		}))
		r.settle()
		if n := got(); n != 1 {
			r.t.Errorf("%d packets have come", n)
		}
	}
}

// groupMAC returns the destination MAC for a multicast or broadcast address. For other addresses it
// is the router's MAC.
func groupMAC(dst netip.Addr, from *host) (mac [6]byte) {
	switch a := dst.As16(); {
	case dst == netip.MustParseAddr("255.255.255.255"):
		return [6]byte{255, 255, 255, 255, 255, 255}
	case dst.Is4() && dst.IsMulticast():
		return [6]byte{1, 0, 0x5e, a[13] & 127, a[14], a[15]}
	case dst.IsMulticast():
		return [6]byte{0x33, 0x33, a[12], a[13], a[14], a[15]}
	}
	return from.gwMAC
}

var _ = freeBSD.has("route_to", cases{
	"multiwan": func(r *router) {
		one, two := r.stations[0], r.stations[1]
		behind := netip.MustParseAddr("203.0.113.1")
		r.sysctl(r.self, "ipv4/conf/em0/route_localnet", "1")
		r.sysctl(r.self, "ipv4/conf/em1/route_localnet", "1")
		r.route(r.self, "203.0.113.0/24", one.v4)
		r.load("nat on em0 inet from 127.0.0.0/8 to any -> (em0)\nnat on em1 inet from 127.0.0.0/8 to any -> (em1)\n" +
			"rdr on em0 inet proto tcp from any to 10.1.0.1 port 1007 -> 127.0.0.1 port 1007\n" +
			"rdr on em1 inet proto tcp from any to 10.1.1.1 port 1007 -> 127.0.0.1 port 1007\nblock in\nblock out\n" +
			"pass in quick on em0 reply-to (em0 10.1.0.2) inet proto tcp from any to 127.0.0.1 port 1007\n" +
			"pass in quick on em1 reply-to (em1 10.1.1.2) inet proto tcp from any to 127.0.0.1 port 1007")
		loopback := netip.MustParseAddr("127.0.0.1")
		r.passes(tcp(one, one.gw4, 1007, r.self).reaches(loopback, 1007))
		r.passes(tcp(two, two.gw4, 1007, r.self).reaches(loopback, 1007))
		// the client is behind both, and the router's route uses one of them
		for _, wan := range []*host{one, two} {
			r.ip(wan, "addr add 203.0.113.1/32 dev lo", "addr del 203.0.113.1/32 dev lo")
			r.passes(tcp(wan, wan.gw4, 1007, r.self).bound(behind, 0).reaches(loopback, 1007))
		}
	},
	"multiwanlocal": func(r *router) {
		one, two := r.stations[0], r.stations[1]
		behind := r.address(two, "lo", "203.0.113.1/32")
		r.route(r.self, "203.0.113.0/24", one.v4)
		r.load("set skip on lo\nblock in\nblock out\n" +
			"pass out quick route-to (em1 10.1.1.2) inet proto tcp from 10.1.1.1 to any port 1007\npass out on em0 inet proto tcp from any to any port 1007")
		r.passes(tcp(r.self, one.v4, 1007, one))
		r.passes(tcp(r.self, behind, 1007, two).bound(two.gw4, 0))
	},
	"icmp_nat": func(r *router) {
		inside, outside, third := r.stations[0], r.stations[1], r.stations[2]
		r.ip(r.self, "link set em2 mtu 600", "link set em2 mtu 1500")
		r.load("nat on em1 inet from 10.1.0.0/24 to any -> (em1)\nnat on em2 inet from 10.1.0.0/24 to any -> (em2)\n" +
			"pass out route-to (em2 " + third.v4.String() + ") proto icmp icmp-type echoreq")
		h := ip4(inside.v4, outside.v4, layers.IPProtocolICMPv4)
		h.Flags = layers.IPv4DontFragment
		r.gets(inside)
		echo := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 7, Seq: 1}
		r.sends(inside, r.frame(inside, h, echo, gopacket.Payload(make([]byte, 1000))))
		p := r.one(r.gets(inside))
		got := layer[*layers.ICMPv4](r, p)
		if got.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || got.Seq != 600 { // the message has the MTU
			r.t.Errorf("%v", p)
		}
		quoted := gopacket.NewPacket(got.Payload, layers.LayerTypeIPv4, gopacket.Default)
		if ip := layer[*layers.IPv4](r, quoted); ip.SrcIP.String() != inside.v4.String() || ip.DstIP.String() != outside.v4.String() {
			r.t.Errorf("it quotes a packet from %v to %v", ip.SrcIP, ip.DstIP)
		}
	},
	"sticky": func(r *router) {
		r.load("pass in quick log on inner0 route-to (outer0 <hops>) sticky-address from any to <dst> keep state")
		r.shows([]string{"-qvvsr"}, "route-to <hops> round-robin sticky-address")
	},
	"ttl": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("pass out\npass in on em0 route-to (em1 10.1.1.2)")
		r.passes(ping(inside, outside.v4))
		r.gets(inside)
		r.gets(outside)
		h := ip4(inside.v4, outside.v4, layers.IPProtocolUDP)
		h.TTL = 1
		r.sends(inside, r.frame(inside, h, &layers.UDP{SrcPort: 4000, DstPort: 5000}, gopacket.Payload("any")))
		if got := r.gets(outside); len(got) != 0 {
			r.t.Errorf("%v", got)
		}
		if got := layer[*layers.ICMPv4](r, r.one(r.gets(inside))); got.TypeCode != layers.CreateICMPv4TypeCode(11, 0) {
			r.t.Errorf("%v", got.TypeCode)
		}
	},
	"empty_pool": func(r *router) {
		r.load(neighbours + "pass in on em0 route-to (em1 <nobody>) inet6 from any to 2001:db8:2::2\npass out on em1")
		r.dropped(ping(r.stations[0], r.stations[1].v6), "no-route")
	},
	"random_prefix": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("set state-policy if-bound\npass in on em0 route-to (em1 2001:db8:2::8/127) random inet6 proto tcp keep state")
		r.address(outside, outside.ifname, "2001:db8:2::8/64")
		r.address(outside, outside.ifname, "2001:db8:2::9/64")
		hops := map[string]bool{}
		for port := layers.TCPPort(4000); len(hops) < 2 && port < 4100; port++ {
			r.sends(inside, r.frame(inside, ip6(inside.v6, netip.MustParseAddr("2001:db8:45::1"), layers.IPProtocolTCP),
				&layers.TCP{SrcPort: port, DstPort: 9, SYN: true, Window: 1000}))
			for line := range strings.Lines(r.pfctl("-vvss")) {
				if _, hop, ok := strings.Cut(strings.TrimSpace(line), "route-to "); ok {
					hops[strings.Fields(hop)[0]] = true
				}
			}
		}
		if len(hops) != 2 {
			r.t.Errorf("of 100 connections the next hops are %v", hops)
		}
	},
	"bcast_directed_forwarded": groupTo("10.1.1.255", false, false),
	"bcast_directed_local":     groupTo("10.1.1.255", false, true),
	"bcast_limited_forwarded":  groupTo("255.255.255.255", false, false),
	"bcast_limited_local":      groupTo("255.255.255.255", false, true),
	"mcast_v4_forwarded":       groupTo("224.0.0.1", false, false),
	"mcast_v4_local":           groupTo("224.0.0.1", false, true),
	"mcast_v6_forwarded":       groupTo("ff0e::1", true, false),
	"mcast_v6_local":           groupTo("ff0e::1", true, true),
})
