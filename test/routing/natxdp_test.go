// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/safchain/ethtool"

	"bascule/test/netlab"
)

// A call is a connection of a station of the first side with a station of the second, through a
// translation, as each of them sees it.
type call struct {
	proto           layers.IPProtocol
	from, to        netip.AddrPort // as the first station sees them
	client, server  netip.AddrPort // as the second station sees them
	length          int            // bytes of the payload
	fill            int            // bytes behind the packet in its frame
	noSum, wrongSum bool
}

// talk returns a packet of the call, in one of its directions. A TCP packet is the first of its
// sender, or acknowledges the other's packets.
func (c call) talk(s *site, back, first, acks bool) netlab.Frame {
	src, dst, from := c.from, c.to, s.sides[0]
	if back {
		src, dst, from = c.server, c.client, s.sides[1]
	}
	ether := &layers.Ethernet{SrcMAC: from.end.MAC[:], DstMAC: from.mac[:], EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.SerializableLayer
	var sum gopacket.NetworkLayer
	if src.Addr().Is4() {
		four := &layers.IPv4{Version: 4, TTL: 64, TOS: 0x20, Id: 7, Protocol: c.proto, SrcIP: net.IP(src.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
		ip, sum = four, four
	} else {
		ether.EthernetType = layers.EthernetTypeIPv6
		six := &layers.IPv6{Version: 6, HopLimit: 64, FlowLabel: 0x12345, NextHeader: c.proto, SrcIP: net.IP(src.Addr().AsSlice()), DstIP: net.IP(dst.Addr().AsSlice())}
		ip, sum = six, six
	}
	list := []gopacket.SerializableLayer{ether, ip}
	at := 0 // offset of the checksum behind the IP header
	switch c.proto {
	case layers.IPProtocolTCP:
		l := &layers.TCP{SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Window: 30000, SYN: first, ACK: acks, Seq: 1000}
		if !first {
			l.Seq = 1001
		}
		if acks {
			l.Ack = 1001
		}
		s.must(l.SetNetworkLayerForChecksum(sum))
		list, at = append(list, l), 16
	case layers.IPProtocolUDP:
		l := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		s.must(l.SetNetworkLayerForChecksum(sum))
		list, at = append(list, l), 6
	case layers.IPProtocolICMPv4:
		kind := uint8(layers.ICMPv4TypeEchoRequest)
		if back {
			kind = layers.ICMPv4TypeEchoReply
		}
		list, at = append(list, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: c.from.Port(), Seq: 1}), 2
	case layers.IPProtocolICMPv6:
		kind := uint8(layers.ICMPv6TypeEchoRequest)
		if back {
			kind = layers.ICMPv6TypeEchoReply
		}
		l := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
		s.must(l.SetNetworkLayerForChecksum(sum))
		list, at = append(list, l, &layers.ICMPv6Echo{Identifier: c.from.Port(), SeqNumber: 1}), 2
	}
	if !first || c.proto != layers.IPProtocolTCP {
		list = append(list, gopacket.Payload(strings.Repeat("x", c.length)))
	}
	buf := gopacket.NewSerializeBuffer()
	s.must(gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...))
	b := append(buf.Bytes(), make([]byte, c.fill)...)
	header := 14 + 20
	if src.Addr().Is6() {
		header = 14 + 40
	}
	switch {
	case c.noSum:
		b[header+at], b[header+at+1] = 0, 0
	case c.wrongSum:
		b[header+at] ^= 0x55
	}
	return netlab.Frame(b)
}

// redirected returns the number of frames from the stations' ports that XDP has redirected.
func (s *site) redirected() uint64 { return s.xdp("redirect") }

// xdp returns the number of frames with an action of XDP, as veth counts it: drops, redirect.
func (s *site) xdp(what string) (n uint64) {
	s.t.Helper()
	s.must(s.lab.Switch.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		for _, side := range s.sides {
			stats, err := e.Stats(side.end.Port)
			if err != nil {
				return err
			}
			for name, value := range stats {
				if strings.HasSuffix(name, "xdp_"+what) {
					n += value
				}
			}
		}
		return nil
	}))
	return n
}

// XDP routes the packets of known connections past pf, and translates them, with the same bytes as
// tcx and the host's stack. It leaves other packets to them unchanged.
func TestNATByXDP(t *testing.T) { callsLikeStack(t, "xdp") }

// The same with tcx, which takes a short path for remembered decisions.
func TestNATByTCX(t *testing.T) { callsLikeStack(t, "tcx") }

// counted matches the packet counters of states.
var counted = regexp.MustCompile(`\d+:\d+ pkts, \d+:\d+ bytes`)

// callsLikeStack compares the packets that arrive, and the counters of their states, with and
// without the shortcut.
func callsLikeStack(t *testing.T, hook string) {
	s := newSite(t, hook)
	s.load(lasting + "pass\n" +
		"match out on gw2 inet from 10.0.1.2 nat-to 10.0.2.1 static-port\nmatch out on gw2 inet6 from fd01::2 nat-to fd02::1 static-port\n" +
		"match in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080\n" +
		"match in on gw1 inet6 proto { tcp, udp } to fd09::1 port 80 rdr-to fd02::2 port 8080\n" +
		"match in on gw1 inet proto icmp to 10.9.1.1 rdr-to 10.0.2.2\nmatch in on gw1 inet6 proto icmp6 to fd09::1 rdr-to fd02::2\n")
	at := netip.MustParseAddrPort
	var calls []call
	for _, p := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		for _, c := range []call{
			{from: at("10.0.1.2:1000"), to: at("10.0.2.2:7"), client: at("10.0.2.1:1000"), server: at("10.0.2.2:7")},
			{from: at("10.0.1.2:1001"), to: at("10.9.1.1:80"), client: at("10.0.2.1:1001"), server: at("10.0.2.2:8080")},
			{from: at("10.1.7.7:1000"), to: at("10.9.1.1:80"), client: at("10.1.7.7:1000"), server: at("10.0.2.2:8080")},
			{from: at("10.1.7.8:1000"), to: at("10.0.2.2:7"), client: at("10.1.7.8:1000"), server: at("10.0.2.2:7")},
			{from: at("[fd01::2]:1000"), to: at("[fd02::2]:7"), client: at("[fd02::1]:1000"), server: at("[fd02::2]:7")},
			{from: at("[fd01::2]:1001"), to: at("[fd09::1]:80"), client: at("[fd02::1]:1001"), server: at("[fd02::2]:8080")},
			{from: at("[fd11::7]:1000"), to: at("[fd09::1]:80"), client: at("[fd11::7]:1000"), server: at("[fd02::2]:8080")},
		} {
			for n, odd := range []call{{length: 20}, {length: 3, fill: 7}, {length: 1400, wrongSum: true}, {length: 11, noSum: p == layers.IPProtocolUDP}} {
				odd.proto, odd.from, odd.to, odd.client, odd.server = p, c.from, c.to, c.client, c.server
				odd.from = netip.AddrPortFrom(c.from.Addr(), c.from.Port()+uint16(10*n))
				odd.client = netip.AddrPortFrom(c.client.Addr(), c.client.Port()+uint16(10*n))
				calls = append(calls, odd)
			}
		}
	}
	for n := range uint16(3) {
		calls = append(calls,
			call{proto: layers.IPProtocolICMPv4, from: netip.AddrPortFrom(netip.MustParseAddr("10.1.9.9"), n), to: at("10.9.1.1:0"), client: at("10.1.9.9:0"), server: at("10.0.2.2:0"), length: 33, wrongSum: n == 1},
			call{proto: layers.IPProtocolICMPv6, from: netip.AddrPortFrom(netip.MustParseAddr("fd11::9"), n), to: at("[fd09::1]:0"), client: at("[fd11::9]:0"), server: at("[fd02::2]:0"), length: 33, wrongSum: n == 1})
	}
	const again = 6 // a CPU learns from the first ones how such packets are routed
	var got, want [2][]string
	var states [2][]string // with the shortcut, and without it
	s.bothWays(func(on bool) {
		s.pfctl("", "-F", "states")
		var all [2][]string
		send := func(side int, frames []netlab.Frame) {
			for i, texts := range s.normals(s.lab.Deliver(s.sides[side].end, frames...)) {
				all[i] = append(all[i], texts...)
			}
		}
		var first, second, there, back []netlab.Frame
		for _, c := range calls {
			first = append(first, c.talk(s, false, true, false))
			second = append(second, c.talk(s, true, true, true))
			for range again {
				there = append(there, c.talk(s, false, false, true))
				back = append(back, c.talk(s, true, false, true))
			}
		}
		send(0, first)
		send(1, second)
		before, taken, fresh := s.redirected(), s.taken(), s.counted("fresh")
		send(0, there)
		send(1, back)
		byXDP, taken, fresh := int(s.redirected()-before), s.taken()-taken, s.counted("fresh")-fresh
		n := 2 * again * len(calls)
		if hook == "xdp" && on && byXDP+fresh < n-2*8 || !on && byXDP != 0 || on && taken < n-2*8 {
			t.Errorf("shortcut %v: of %d packets XDP has sent %d, and the datapath took %d", on, n, byXDP, taken)
		}
		told := counted.FindAllString(s.pfctl("", "-v", "-s", "states"), -1)
		slices.Sort(told)
		if on {
			got, states[0] = all, told
		} else {
			want, states[1] = all, told
		}
	})
	if !slices.Equal(states[0], states[1]) {
		more, less := differences(states[0], states[1])
		t.Errorf("of %d states with the shortcut, and %d without, those with it say\n  %s\nand not\n  %s", len(states[0]), len(states[1]), few(more), few(less))
	}
	if len(states[1]) != 2*len(calls) {
		t.Errorf("%d states tell of their packets, want %d", len(states[1]), 2*len(calls))
	}
	for i := range got {
		all := fmt.Sprint(len(calls)*(1+again), " packets")
		if more, less := differences(slices.Sorted(slices.Values(got[i])), slices.Sorted(slices.Values(want[i]))); more != nil || less != nil {
			t.Errorf("of %s at station %d XDP has\n  %s\nand lacks\n  %s", all, i+1, few(more), few(less))
		}
		if n := len(want[i]); n != len(calls)*(1+again) {
			t.Errorf("%d packets arrive at station %d, want %s", n, i+1, all)
		}
	}
}

// Packets of known connections with unfinished checksums are translated as well, also if a CPU
// remembers their route. Their checksums are right when they are completed.
func TestNATUnfinishedChecksum(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.load("match out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1 static-port\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1 static-port\n" +
		"match in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080\npass\n")
	at := netip.MustParseAddrPort
	send := s.sides[0].end.VnetSocket()
	for _, c := range []call{
		{from: at("10.0.1.2:1000"), to: at("10.0.2.2:7"), client: at("10.0.2.1:1000"), server: at("10.0.2.2:7")},
		{from: at("10.0.1.2:1001"), to: at("10.9.1.1:80"), client: at("10.0.2.1:1001"), server: at("10.0.2.2:8080")},
		{from: at("[fd01::2]:1000"), to: at("[fd02::2]:7"), client: at("[fd02::1]:1000"), server: at("[fd02::2]:7")},
	} {
		for _, c.proto = range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
			c.length = 33
			s.lab.Deliver(s.sides[0].end, c.talk(s, false, true, false))
			s.lab.Deliver(s.sides[1].end, c.talk(s, true, true, true))
			packet := []byte(c.talk(s, false, false, true))
			l4, sum := 14+20, 6
			if c.from.Addr().Is6() {
				l4 = 14 + 40
			}
			if c.proto == layers.IPProtocolTCP {
				sum = 16
			}
			binary.BigEndian.PutUint16(packet[l4+sum:], sumOf(pseudoOf(packet, l4, c.proto)))
			const times = 8
			before := s.taken()
			for range times {
				s.must(send(netlab.Frame(packet), l4, sum))
			}
			s.lab.Flush()
			arrived := 0
			for _, f := range s.sides[1].end.Received() {
				b := []byte(f)
				if len(b) != len(packet) {
					continue
				}
				arrived++
				pseudo := pseudoOf(b, l4, c.proto)
				if s.sourceIn(b) != c.client.Addr() {
					t.Errorf("%v of %v arrives from %v", c.proto, c.from, s.sourceIn(b))
				}
				if made, unmade := sumOf(slices.Concat(pseudo, b[l4:])) == 0xffff, binary.BigEndian.Uint16(b[l4+sum:]) == sumOf(pseudo); !made && !unmade {
					t.Errorf("%v of %v arrives with a wrong checksum: % x", c.proto, c.from, b)
				}
			}
			if taken := s.taken() - before; arrived != times || taken != times {
				t.Errorf("%d packets of %v of %v arrive of %d, and the datapath took %d", arrived, c.proto, c.from, times, taken)
			}
		}
	}
}

// pseudoOf returns the pseudo-header for the upper header at l4 in a frame without options (RFC 768,
// RFC 8200 8.1).
func pseudoOf(frame []byte, l4 int, proto layers.IPProtocol) []byte {
	addresses := frame[14+12 : 14+20]
	if l4 == 14+40 {
		addresses = frame[14+8 : 14+40]
	}
	return slices.Concat(addresses, binary.BigEndian.AppendUint16([]byte{0, byte(proto)}, uint16(len(frame)-l4)))
}

// sourceIn returns the source address of the packet in a frame.
func (s *site) sourceIn(frame []byte) netip.Addr {
	if frame[12] == 0x08 {
		return netip.AddrFrom4([4]byte(frame[14+12:]))
	}
	return netip.AddrFrom16([16]byte(frame[14+8:]))
}
