// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

// asks sends a request for the router's Ethernet address from a station, and returns the number of
// answers.
func (r *router) asks(from *host) (answers int) {
	r.t.Helper()
	r.gets(from)
	r.sends(from, r.ether(from.MAC, netlab.Broadcast, &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4,
		HwAddressSize: 6, ProtAddressSize: 4, Operation: layers.ARPRequest, SourceHwAddress: from.MAC[:], DstHwAddress: make([]byte, 6),
		SourceProtAddress: from.v4.AsSlice(), DstProtAddress: from.gw4.AsSlice()}))
	for _, p := range r.getsAll(from) {
		if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok && arp.Operation == layers.ARPReply {
			answers++
		}
	}
	return answers
}

// asked has the router look for a neighbour that does not exist, and returns the number of requests that
// reach a station.
func (r *router) asked(at *host, who netip.Addr) (questions int) {
	r.t.Helper()
	r.gets(at)
	r.make(udp(r.self, who, 9, nil), func(outcome) bool { return false }, false)
	for _, p := range r.getsAll(at) {
		if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok && arp.Operation == layers.ARPRequest {
			questions++
		}
	}
	return questions
}

var _ = freeBSD.has("ether", cases{
	"mac": func(r *router) {
		a := r.stations[0]
		mac, prefix := a.MAC.String(), fmt.Sprintf("%02x:%02x:%02x", a.MAC[0], a.MAC[1], a.MAC[2])
		c := ping(a, r.self.v4)
		for _, rule := range []string{
			"from " + mac, "to " + mac, "to { " + mac + ", 00:01:02:0:04:05 }", "on em0 from " + mac,
			"out on em0 to { ! 00:01:02:03:04:05 }", "out on em0 to { ! 00:01:02:03:00:00/32 }",
			"out on em0 to { " + prefix + ":00:00:00/24 }", "out on em0 to { " + prefix + ":00:00:00&ff:ff:ff:00:00:00 }",
		} {
			r.load("ether block " + rule)
			r.blocked(c)
		}
		r.pfctl("-F", "ethernet")
		r.passes(c)
		for _, rule := range []string{
			"to 00:01:02:03:04:05", "on em1 from " + mac, "in on em0 from ! " + mac, "out on em0 to ! " + mac, "out on em0 to { ! " + mac + " }",
		} {
			r.load("ether block " + rule)
			r.passes(c)
		}
		r.load("ether block from " + mac)
		r.pfctl("-d")
		r.passes(c)
		r.pfctl("-e")
		r.blocked(c)
	},
	"proto": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.load("ether block proto 0x0810")
		r.passes(c)
		r.load("ether block proto 0x0800")
		r.blocked(c)
		if n := r.asks(r.stations[0]); n != 1 {
			r.t.Errorf("%d answers of ARP", n)
		}
		r.load("ether block proto 0x0806")
		r.passes(c)
		if n := r.asks(r.stations[0]); n != 0 {
			r.t.Errorf("%d answers of ARP", n)
		}
	},
	"direction": func(r *router) {
		a := r.stations[0]
		both := func(rule string, answers, questions int, who string) {
			r.t.Helper()
			r.load(rule)
			if n := r.asks(a); n != answers {
				r.t.Errorf("%s: %d answers, should be %d", rule, n, answers)
			}
			if n := r.asked(a, netip.MustParseAddr(who)); n != questions {
				r.t.Errorf("%s: %d questions, should be %d", rule, n, questions)
			}
		}
		both("ether pass", 1, 1, "10.1.0.71")
		both("ether block in proto 0x0806", 0, 1, "10.1.0.72")
		both("ether block out proto 0x0806", 0, 0, "10.1.0.73")
	},
	// A station that may not pass is redirected to the router.
	"captive": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.sysctl(r.self, "ipv4/conf/em0/route_localnet", "1")
		head, rest := "ether pass quick proto 0x0806\n", "ether pass tag captive\nrdr on em0 proto tcp to port 7 tagged captive -> 127.0.0.1 port 7"
		r.load(head + rest)
		r.passes(ping(a, b.v4))
		here := tcp(a, b.v4, 7, r.self)
		here.seen = netip.MustParseAddrPort("127.0.0.1:7")
		r.passes(here)
		r.load(head + "ether pass quick from " + a.MAC.String() + "\n" + rest)
		r.pfctl("-F", "states")
		r.passes(tcp(a, b.v4, 7, b))
	},
	"ip": func(r *router) {
		a := r.stations[0]
		other := r.address(a, a.ifname, "10.1.0.3/24")
		one, two := ping(a, r.self.v4), ping(a, r.self.v4)
		one.src, two.src = netip.AddrPortFrom(a.v4, 0), netip.AddrPortFrom(other, 0)
		r.load("ether pass\nether block in l3 from " + a.v4.String())
		r.blocked(one)
		r.passes(two)
		r.load("ether pass\nether block out l3 to 10.1.0.3")
		r.blocked(two)
		r.load("table <few> { 10.1.0.3 }\nether pass\nether block out l3 to <few>")
		r.blocked(two)
		r.passes(one)
	},
	"tag": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.load("ether pass in tag one\nblock in tagged one")
		r.blocked(c)
		r.load("ether pass in tag two\nblock in tagged one")
		r.passes(c)
	},
	// Frames that end at any place behind the Ethernet header.
	"short_pkt": func(r *router) {
		a := r.stations[0]
		r.load("ether pass in\nether pass out\nether pass in l3 from " + a.v4.String())
		r.passes(ping(a, r.self.v4))
		whole := r.echo(a, a.v4, r.self.v4, 7, strings.Repeat("x", 22))
		for n := 14; n <= len(whole); n++ {
			r.gets(a)
			r.sends(a, whole[:n])
			want := 0
			if n == len(whole) {
				want = 1
			}
			if got := r.gets(a); len(got) != want {
				r.t.Errorf("%d answers to the first %d bytes of a request", len(got), n)
			}
		}
	},
})
