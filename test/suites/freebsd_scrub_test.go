// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"encoding/binary"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// forwarded sends one packet, which the router must forward to the station behind em1, and returns the
// packet that arrives.
func (r *router) forwarded(six bool, tos, ttl uint8, protocol layers.IPProtocol, packet ...gopacket.SerializableLayer) gopacket.Packet {
	r.t.Helper()
	from, to := r.stations[0], r.stations[1]
	r.gets(to)
	h := gopacket.SerializableLayer(&layers.IPv4{Version: 4, IHL: 5, TTL: ttl, TOS: tos, Protocol: protocol, SrcIP: from.v4.AsSlice(), DstIP: to.v4.AsSlice()})
	if six {
		h = &layers.IPv6{Version: 6, HopLimit: ttl, TrafficClass: tos, NextHeader: protocol, SrcIP: from.v6.AsSlice(), DstIP: to.v6.AsSlice()}
	}
	r.sends(from, r.frame(from, append([]gopacket.SerializableLayer{h}, packet...)...))
	list := r.gets(to)
	if len(list) == 0 {
		r.t.Fatal("nothing has come")
	}
	return list[0] // then the answer of the station's stack is sent back
}

// class returns the type of service, or traffic class, of a packet, and its time to live.
func class(p gopacket.Packet) (tos, ttl uint8) {
	switch l := p.NetworkLayer().(type) {
	case *layers.IPv4:
		return l.TOS, l.TTL
	case *layers.IPv6:
		return l.TrafficClass, l.HopLimit
	}
	return 0, 0
}

// synWith returns the SYN to a closed port, with an MSS of 1400. Unaligned, the option follows an
// option of one byte.
func synWith(port uint16, unaligned bool) *layers.TCP {
	mss := layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{1400 >> 8, 1400 & 255}}
	t := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: 9, SYN: true, Window: 1000, Options: []layers.TCPOption{mss}}
	if unaligned {
		t.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindNop}, mss}
	}
	return t
}

func maxMSS(six bool, rules string) func(*router) {
	return func(r *router) {
		r.load(rules)
		for n, unaligned := range []bool{false, true} {
			p := r.forwarded(six, 0, 64, layers.IPProtocolTCP, synWith(uint16(4000+n), unaligned))
			got := uint16(0)
			for _, o := range layer[*layers.TCP](r, p).Options {
				if o.OptionType == layers.TCPOptionKindMSS {
					got = binary.BigEndian.Uint16(o.OptionData)
				}
			}
			if got != 1300 {
				r.t.Errorf("unaligned %t: the MSS is %d", unaligned, got)
			}
			r.checksums(p)
		}
	}
}

// checksums verifies the TCP checksum.
func (r *router) checksums(p gopacket.Packet) {
	r.t.Helper()
	t := *layer[*layers.TCP](r, p)
	var src, dst netip.Addr
	switch l := p.NetworkLayer().(type) {
	case *layers.IPv4:
		src, dst = netip.MustParseAddr(l.SrcIP.String()), netip.MustParseAddr(l.DstIP.String())
	case *layers.IPv6:
		src, dst = netip.MustParseAddr(l.SrcIP.String()), netip.MustParseAddr(l.DstIP.String())
	}
	h := gopacket.SerializableLayer(ip4(src, dst, layers.IPProtocolTCP))
	if src.Is6() {
		h = ip6(src, dst, layers.IPProtocolTCP)
	}
	again := gopacket.NewPacket([]byte(r.frame(r.stations[0], h, &t, gopacket.Payload(t.Payload))), layers.LayerTypeEthernet, gopacket.Default)
	if want := layer[*layers.TCP](r, again).Checksum; want != layer[*layers.TCP](r, p).Checksum {
		r.t.Errorf("the checksum is %#x, should be %#x: %v", layer[*layers.TCP](r, p).Checksum, want, p)
	}
}

// becomes sends TCP packets with a type of service and a time to live, which the rules change.
func becomes(six bool, rules string, tos, ttl, wantTOS, wantTTL uint8) func(*router) {
	return func(r *router) {
		r.load(rules)
		p := r.forwarded(six, tos, ttl, layers.IPProtocolTCP, synWith(4000, false))
		if gotTOS, gotTTL := class(p); gotTOS != wantTOS || gotTTL != wantTTL {
			r.t.Errorf("the type of service is %d, should be %d; the time to live %d, should be %d", gotTOS, wantTOS, gotTTL, wantTTL)
		}
	}
}

// scrubs returns cases with rules that change packets.
func scrubs(mss, tos, ttl, no4, no6 string, sentTOS uint8) cases {
	c := cases{
		"max_mss_v4": maxMSS(false, mss),
		"max_mss_v6": maxMSS(true, mss),
		"set_tos_v4": becomes(false, tos, sentTOS, 64, 0x42, 63),
		"set_tos_v6": becomes(true, tos, sentTOS, 64, 0x42, 63),
		"min_ttl_v4": becomes(false, ttl, 0, 40, 0, 49),
		"min_ttl_v6": becomes(true, ttl, 0, 40, 0, 49),
	}
	if no4 != "" {
		c["no_scrub_v4"] = becomes(false, no4, 0, 64, 0, 63)
		c["no_scrub_v6"] = becomes(true, no6, 0, 64, 0, 63)
	}
	return c
}

const noScrub = "no scrub on em0 to "

var (
	_ = freeBSD.has("scrub", scrubs("scrub on em0 max-mss 1300", "scrub on em0 set-tos 0x42", "scrub on em0 min-ttl 50",
		noScrub+"10.1.1.2\nscrub on em0 set-tos 0x42", noScrub+"2001:db8:2::2\nscrub on em0 set-tos 0x42", 0))
	_ = freeBSD.has("scrub_compat", scrubs("scrub on em0 max-mss 1300\npass", "scrub on em0 set-tos 0x42\npass", "scrub on em0 min-ttl 50\npass",
		noScrub+"10.1.1.2\nscrub on em0 set-tos 0x42\npass", noScrub+"2001:db8:2::2\nscrub on em0 set-tos 0x42\npass", 0))
	_ = freeBSD.has("scrub_pass", scrubs("pass on em0 scrub (max-mss 1300)", "pass on em0 set (tos 0x42)", "pass on em0 scrub (min-ttl 50)", "", "", 66))
)

// echoTOS sends an echo request with a type of service, and returns the type of service behind the
// router. The number keeps it out of former states.
func echoTOS(r *router, rules string, tos uint8, number int) uint8 {
	r.t.Helper()
	r.load(rules)
	got, _ := class(r.forwarded(false, tos, 64, layers.IPProtocolICMPv4,
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: uint16(number), Seq: 1}, gopacket.Payload("echo")))
	return got
}

var _ = freeBSD.has("set_tos", cases{
	"v4": func(r *router) {
		for n, c := range []struct {
			rules      string
			sent, want uint8
		}{
			{"scrub out proto icmp", 0, 0},
			{"scrub out proto icmp set-tos 42", 0, 42},
			{"scrub out proto tcp set-tos 42", 0, 0},
			{"scrub out proto tcp set-tos 13\nscrub out proto icmp set-tos 14", 0, 14},
			{"scrub out proto tcp set-tos 13\nscrub out proto icmp set-tos 14", 42, 14},
			{"scrub out proto tcp set-tos 13", 42, 42},
		} {
			if got := echoTOS(r, c.rules, c.sent, n); got != c.want {
				r.t.Errorf("%q makes %d of %d, should be %d", c.rules, got, c.sent, c.want)
			}
		}
	},
})

func tosMatch(six bool) func(*router) {
	return func(r *router) {
		r.load("pass\nblock in tos va")
		c := udp(r.stations[0], r.self.v4, 1234, r.self)
		if six {
			c = udp(r.stations[0], r.self.v6, 1234, r.self)
		}
		r.passes(c)
		c.tos = 0xb0
		r.blocked(c)
	}
}

var _ = freeBSD.has("tos", cases{"v4": tosMatch(false), "v6": tosMatch(true)})
