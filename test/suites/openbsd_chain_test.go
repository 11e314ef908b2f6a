// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// A chain is the network of OpenBSD's pf_forward and pf_fragment: the station src behind em0, the router pf, and behind
// its em1 another router rt, with the station eco behind a link of a smaller MTU. It remains for the following cases.
//
//	src 10.1.0.2 - 10.1.0.1 pf 10.1.1.1 - 10.1.1.2 rt 10.2.2.1 - 10.2.2.2 eco
type chain struct {
	*router
	src, rt, eco *host
	six          bool
	made         uint16 // number of packets so far; each has a number of its own
}

// farMTU is the MTU of the link between rt and eco.
const farMTU = 1300

// chains has the chain of each router.
var chains struct {
	sync.Mutex
	of map[*router]*chain
}

// chainOf returns the chain behind a router, which is made for the first case.
func chainOf(r *router, six bool) *chain {
	r.t.Helper()
	chains.Lock()
	defer chains.Unlock()
	c := chains.of[r]
	if c == nil {
		c = newChain(r)
		if chains.of == nil {
			chains.of = map[*router]*chain{}
		}
		chains.of[r] = c
	}
	return &chain{router: r, src: c.src, rt: c.rt, eco: c.eco, six: six}
}

// places are addresses by their names, of both families. For RDR, AF, RTT and RPT, only rules determine the real
// address or the path.
var places = map[string][2]string{
	"SRC_OUT": {"10.1.0.2", "2001:db8:1::2"},
	"PF_IN":   {"10.1.0.1", "2001:db8:1::1"},
	"PF_OUT":  {"10.1.1.1", "2001:db8:2::1"},
	"RT_IN":   {"10.1.1.2", "2001:db8:2::2"},
	"RT_OUT":  {"10.2.2.1", "2001:db8:12::1"},
	"ECO_IN":  {"10.2.2.34", "2001:db8:12::22"},
	"ECO_OUT": {"10.2.3.2", "2001:db8:13::2"},
	"RDR_IN":  {"10.2.4.9", "2001:db8:14::9"},
	"RDR_OUT": {"10.2.5.9", "2001:db8:15::9"},
	"AF_IN":   {"10.2.6.34", "2001:db8:16::22"}, // the last byte equals ECO_IN's of the other family
	"RTT_IN":  {"10.2.7.2", "2001:db8:17::2"},
	"RTT_OUT": {"10.2.8.2", "2001:db8:18::2"},
	"RPT_IN":  {"10.2.10.2", "2001:db8:1a::2"},
	"RPT_OUT": {"10.2.11.2", "2001:db8:1b::2"},
}

// at returns the address of a place.
func (c *chain) at(place string) netip.Addr { return addressOf(place, c.six) }

func addressOf(place string, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(places[place][1])
	}
	return netip.MustParseAddr(places[place][0])
}

// nets returns the networks of a place, of both families.
func nets(place string) (list []netip.Prefix) {
	for _, six := range []bool{false, true} {
		a := addressOf(place, six)
		list = append(list, netip.PrefixFrom(a, netBits(a)).Masked())
	}
	return list
}

func newChain(r *router) *chain {
	r.t.Helper()
	ns := r.NewNamespace()
	c := &chain{router: r, src: r.stations[0], rt: r.stations[1], eco: &host{ns: ns, ifname: "eco0"}}
	r.must(c.rt.ns.Do(func() error {
		return errors.Join(sysctl("ipv4/ip_forward", "1"), sysctl("ipv6/conf/all/forwarding", "1"),
			sysctl("ipv4/conf/all/send_redirects", "0"), sysctl("ipv4/conf/default/send_redirects", "0"))
	}))
	for _, h := range []*host{c.rt, c.eco} {
		r.must(h.ns.Do(func() error { // no rate limit for errors
			return errors.Join(sysctl("ipv4/icmp_ratemask", "0"), sysctl("ipv6/icmp/ratelimit", "0"),
				sysctl("ipv6/conf/default/accept_dad", "0"), sysctl("ipv6/conf/default/disable_ipv6", "0"),
				sysctl("ipv6/conf/lo/disable_ipv6", "0"))
		}))
	}
	far, err := ends.Cable(c.rt.ns, "far0", ns, c.eco.ifname, 1, ends.Wire{MTU: farMTU})
	r.must(err)
	for _, h := range []*host{c.rt, c.eco} {
		r.up(h, "lo")
	}
	for _, six := range []bool{false, true} {
		on := func(h *host, ifname, place string) {
			a := addressOf(place, six)
			r.addAddress(h, ifname, netip.PrefixFrom(a, netBits(a)))
		}
		on(c.rt, "far0", "RT_OUT")
		on(c.eco, c.eco.ifname, "ECO_IN")
		near := r.link(c.rt, "far0").Attrs().HardwareAddr
		r.must(c.rt.ns.Neighbour("far0", addressOf("ECO_IN", six), far.MAC))
		r.must(c.eco.ns.Neighbour(c.eco.ifname, addressOf("RT_OUT", six), near))
		for _, place := range []string{"ECO_OUT", "RTT_IN", "RTT_OUT"} {
			on(c.eco, "lo", place)
		}
		for _, place := range []string{"RPT_IN", "RPT_OUT"} {
			on(c.src, "lo", place)
		}
		to := func(h *host, place string, by netip.Addr) {
			route := &netlink.Route{Dst: ipNet(nets(place)[b2i(six)])}
			if by.IsValid() {
				route.Gw = by.AsSlice()
			} else {
				route.Type = unix.RTN_UNREACHABLE
			}
			r.must(h.ns.Netlink().RouteReplace(route))
		}
		all := netip.PrefixFrom(addressOf("RT_OUT", six), 0).Masked()
		r.must(ns.Netlink().RouteAdd(&netlink.Route{Dst: ipNet(all), Gw: addressOf("RT_OUT", six).AsSlice()}))
		for _, place := range []string{"ECO_OUT", "RTT_IN", "RTT_OUT"} {
			to(c.rt, place, addressOf("ECO_IN", six))
		}
		for _, place := range []string{"RT_OUT", "ECO_OUT"} {
			to(r.self, place, addressOf("RT_IN", six))
		}
		// Only rules determine the path to these. A packet on its way out needs a route, so here is a wrong
		// one. On OpenBSD a reject route is enough: it leads to lo0, where the rules are evaluated.
		wrong := []netip.Addr{r.stations[2].v4, r.stations[2].v6}[b2i(six)]
		for _, place := range []string{"RTT_OUT", "RPT_IN", "RPT_OUT"} {
			to(r.self, place, wrong)
		}
		to(r.self, "RTT_IN", netip.Addr{})
	}
	return c
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// echo returns an echo request of the family, with a payload.
func (c *chain) echo(src, dst netip.Addr, hops uint8, id uint16, payload int) netlab.Frame {
	c.t.Helper()
	load := make([]byte, payload)
	for i := range load {
		load[i] = byte(i)
	}
	return c.frame(c.src, c.ip(src, dst, hops, icmpOf(c.six)), c.echoLayer(id, load))
}

// ip returns a header that forbids fragmentation.
func (c *chain) ip(src, dst netip.Addr, hops uint8, protocol layers.IPProtocol) gopacket.SerializableLayer {
	if c.six {
		h := ip6(src, dst, protocol)
		h.HopLimit = hops
		return h
	}
	h := ip4(src, dst, protocol)
	h.TTL, h.Flags = hops, layers.IPv4DontFragment
	return h
}

func icmpOf(six bool) layers.IPProtocol {
	if six {
		return layers.IPProtocolICMPv6
	}
	return layers.IPProtocolICMPv4
}

// echoLayer returns an echo request with its payload.
func (c *chain) echoLayer(id uint16, load []byte) gopacket.SerializableLayer {
	if c.six {
		body := append([]byte{byte(id >> 8), byte(id), 0, 1}, load...)
		return &together{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}, body}
	}
	return &together{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: id, Seq: 1}, load}
}

// together is a layer and its payload.
type together struct {
	gopacket.SerializableLayer
	load []byte
}

func (l *together) SerializeTo(b gopacket.SerializeBuffer, o gopacket.SerializeOptions) error {
	if err := gopacket.Payload(l.load).SerializeTo(b, o); err != nil {
		return err
	}
	return l.SerializableLayer.SerializeTo(b, o)
}

func (l *together) SetNetworkLayerForChecksum(n gopacket.NetworkLayer) error {
	if s, ok := l.SerializableLayer.(interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}); ok {
		return s.SetNetworkLayerForChecksum(n)
	}
	return nil
}

// An answer is a station's response to one of its packets.
type answer struct {
	from  netip.Addr
	echo  bool // an echo reply; otherwise an error
	kind  uint8
	code  uint8
	mtu   int    // of an error about a packet that is too large
	id    uint16 // of an echo reply
	quote []byte // of an error: the packet that it is about; of an echo reply: the payload
}

// readAnswer parses an echo reply or an error. ok is false for other packets.
func readAnswer(p gopacket.Packet) (a answer, ok bool) {
	switch n := p.NetworkLayer().(type) {
	case *layers.IPv4:
		m, is := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		if !is {
			return a, false
		}
		a.from, _ = netip.AddrFromSlice(n.SrcIP)
		a.kind, a.code = m.TypeCode.Type(), m.TypeCode.Code()
		a.echo = a.kind == layers.ICMPv4TypeEchoReply
		a.mtu, a.id, a.quote = int(m.Seq), m.Id, m.Payload
	case *layers.IPv6:
		m, is := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
		if !is || len(m.Payload) < 4 {
			return a, false
		}
		a.from, _ = netip.AddrFromSlice(n.SrcIP)
		a.kind, a.code = m.TypeCode.Type(), m.TypeCode.Code()
		a.echo = a.kind == layers.ICMPv6TypeEchoReply
		a.mtu, a.quote = int(m.Payload[2])<<8|int(m.Payload[3]), m.Payload[4:]
		a.id = uint16(m.Payload[0])<<8 | uint16(m.Payload[1])
	default:
		return a, false
	}
	return a, true
}

// asks sends a packet from src, and returns the only answer to it.
func (c *chain) asks(f netlab.Frame) (a answer) {
	c.t.Helper()
	c.gets(c.src)
	c.sends(c.src, f)
	var list []answer
	flow := gopacket.NewPacket([]byte(f), layers.LayerTypeEthernet, gopacket.Default).NetworkLayer().NetworkFlow()
	c.WaitUntil(time.Now().Add(patience), fmt.Sprintf("an answer to %v", flow), func() bool {
		for _, p := range c.gets(c.src) {
			if a, ok := readAnswer(p); ok {
				list = append(list, a)
			}
		}
		return len(list) > 0
	})
	if len(list) != 1 {
		c.t.Fatalf("%d answers have come, should be one: %+v", len(list), list)
	}
	return list[0]
}

// quotes checks that an error quotes a packet as src has sent it, with its original addresses and length.
func (c *chain) quotes(a answer, sent netlab.Frame) {
	c.t.Helper()
	packet := []byte(sent)[14:]
	fields := [][2]int{{2, 4}, {12, 20}} // of IPv4: the length, the addresses
	if c.six {
		fields = [][2]int{{4, 6}, {8, 40}}
	}
	for _, f := range fields {
		if len(a.quote) < f[1] || string(a.quote[f[0]:f[1]]) != string(packet[f[0]:f[1]]) {
			c.t.Fatalf("an error quotes %x, should be about %x", a.quote, packet[:60])
		}
	}
}
