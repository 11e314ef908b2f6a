// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

func sourceGuard(_ *Config, p []*Port) { p[0].Flags |= PortSrcGuard }

func dhcpGuard(c *Config, _ []*Port) { c.Flags |= uint32(BridgeDHCPGuard) }

func raGuard(c *Config, _ []*Port) { c.Flags |= uint32(BridgeRAGuard) }

func suppress(c *Config, _ []*Port) { c.Flags |= uint32(BridgeSuppress) }

// The types and protocols of the frames below.
const (
	typeIP4, typeIP6, typeARP = 0x0800, 0x86dd, 0x0806

	protoHopByHop, protoUDP, protoRouting, protoFragment = 0, 17, 43, 44
	protoESP, protoAuth, protoICMP6, protoDestination    = 50, 51, 58, 60

	icmpMLD2, icmpRS, icmpRA, icmpNS, icmpNA, icmpRedirect = 143, 133, 134, 135, 136, 137

	arpRequest, arpReply = 1, 2
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

// ether is a frame of a type, without padding.
func ether(dst, src mac, typ int, payload ...[]byte) []byte {
	return join(dst[:], src[:], be16(typ), join(payload...))
}

// retagged returns a frame with tags inserted, the outer one first.
func retagged(frame []byte, tags ...tag) []byte {
	b := slices.Clone(frame[:12])
	for _, t := range tags {
		b = join(b, be16(int(t.tpid)), be16(int(t.prio<<13|t.vid)))
	}
	return join(b, frame[12:])
}

// cut truncates the packet in a frame after n bytes. It gets a priority tag:
// BPF_PROG_TEST_RUN refuses packets without their header if it recognizes their type.
func cut(frame []byte, n int) []byte {
	return retagged(frame[:etherHeader+n], tag{tpid: typeVLAN})
}

// snapped returns a frame whose type is behind LLC and SNAP (RFC 1042).
func snapped(frame []byte) []byte {
	return join(frame[:12], be16(len(frame)-14+8), []byte{0xaa, 0xaa, 3, 0, 0, 0}, frame[12:])
}

// ip4 is an IPv4 packet; fragment is its field of flags and offset.
func ip4(src, dst string, proto byte, fragment int, payload ...[]byte) []byte {
	body := join(payload...)
	h := join([]byte{0x45, 0}, be16(20+len(body)), be16(1), be16(fragment), []byte{64, proto, 0, 0})
	return join(h, addr(src).AsSlice(), addr(dst).AsSlice(), body)
}

func ip6(src, dst string, next byte, payload ...[]byte) []byte {
	body := join(payload...)
	return join([]byte{0x60, 0, 0, 0}, be16(len(body)), []byte{next, 255}, addr(src).AsSlice(), addr(dst).AsSlice(), body)
}

// extension is a header that has n units of eight bytes after the first.
func extension(next byte, n int) []byte {
	return join([]byte{next, byte(n)}, make([]byte, 6+8*n))
}

// fragment is a fragment header: an offset in eight bytes, and whether more
// fragments follow.
func fragment(next byte, offset int, more bool) []byte {
	field := offset << 3
	if more {
		field |= 1
	}
	return join([]byte{next, 0}, be16(field), make([]byte, 4))
}

func udp(src, dst int, payload ...byte) []byte {
	return join(be16(src), be16(dst), be16(8+len(payload)), be16(0), payload)
}

// linkLayer is an option of ND (RFC 4861 4.6.1).
func linkLayer(typ byte, m mac) []byte { return join([]byte{typ, 1}, m[:]) }

// icmp6 is a message with the bytes rest between its checksum and its options or target.
func icmp6(typ byte, rest ...[]byte) []byte { return join([]byte{typ, 0, 0, 0}, join(rest...)) }

func solicitation(target string, options ...[]byte) []byte {
	return icmp6(icmpNS, make([]byte, 4), addr(target).AsSlice(), join(options...))
}

func advertisement(target string, options ...[]byte) []byte {
	return icmp6(icmpNA, make([]byte, 4), addr(target).AsSlice(), join(options...))
}

func arp(op int, sha mac, spa string, tha mac, tpa string) []byte {
	return join(be16(1), be16(typeIP4), []byte{6, 4}, be16(op), sha[:], addr(spa).AsSlice(), tha[:], addr(tpa).AsSlice())
}

// bootp is a message of a DHCP client, for a station.
func bootp(chaddr mac) []byte {
	return join([]byte{1, 1, 6, 0}, make([]byte, 24), chaddr[:], make([]byte, 10))
}

// priorityTags are n tags without a VLAN.
func priorityTags(n int) []tag {
	return slices.Repeat([]tag{{tpid: typeVLAN}}, n)
}

// bind binds addresses of a VLAN to a station at a port.
func (s *bench) bind(vlan uint16, port int, m mac, addresses ...string) {
	s.t.Helper()
	for _, a := range addresses {
		binding := Binding{VLAN: vlan, Address: addr(a), MAC: m, Port: s.ids[port]}
		if err := binding.store(s.gen.coll.Maps[kernelMapBindings]); err != nil {
			s.t.Fatal(err)
		}
	}
}

// sift puts a frame to a port of a bench by both ways of deciding on it: anew, and by the decision
// that was remembered for prime, a frame with the same addresses; and by XDP. It must be forwarded,
// or dropped for a reason.
func (s *bench) sift(port int, name string, frame, prime []byte, reason string) {
	s.t.Helper()
	look := func(how string) {
		s.t.Helper()
		got := s.tcx(port, frame)
		want := outcome{Verdict: redirect, Out: got.Out}
		if reason != "" {
			want = dropped(reason)
		}
		expect(s.t, name+how, got, want)
		if got := s.xdp(port, frame); got.Verdict == redirect && reason != "" || len(got.Drops) > 0 {
			s.t.Errorf("%s%s by XDP: %s, want it left to tcx", name, how, got)
		}
	}
	s.at(benchNow)
	look("")
	s.at(benchNow)
	if prime != nil {
		if got := s.tcx(port, prime); got.Verdict != redirect {
			s.t.Fatalf("%s: a frame to be remembered: %s", name, got)
		}
		look(", remembered")
	}
}

var none = mac{}

func TestSourceGuard(t *testing.T) {
	a, b, c := station(1), station(2), station(3)
	s := newBench(t, 3, allXDP, sourceGuard)
	s.bind(0, 0, a, "192.0.2.1", "2001:db8::1", "fe80::1")
	s.bind(10, 0, a, "192.0.2.10")
	s.bind(0, 1, b, "192.0.2.2", "2001:db8::2", "fe80::2")
	s.bind(0, 1, a, "192.0.2.3", "fe80::3") // the same station, elsewhere
	s.learn(0, 1)
	s.learn(1, 2)

	v4 := func(src string) []byte { return ether(b, a, typeIP4, ip4(src, "192.0.2.2", protoUDP, 0, udp(7, 7))) }
	v6 := func(src string, next byte, payload ...[]byte) []byte {
		return ether(b, a, typeIP6, ip6(src, "fe80::2", next, payload...))
	}
	nd := func(src string, message []byte) []byte { return v6(src, protoICMP6, message) }
	ask := func(op int, sha mac, spa string) []byte {
		return ether(b, a, typeARP, arp(op, sha, spa, none, "192.0.2.2"))
	}
	ours, theirs := linkLayer(1, a), linkLayer(1, c)
	targetOurs, targetTheirs := linkLayer(2, a), linkLayer(2, c)
	discover := func(dst string, sport, dport, fragment int) []byte {
		return ether(broadcast, a, typeIP4, ip4("0.0.0.0", dst, protoUDP, fragment, udp(sport, dport, bootp(a)...)))
	}
	request := func(chaddr mac) []byte {
		return ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0, udp(68, 67, bootp(chaddr)...)))
	}
	rarp := func(op int, sha mac, spa string) []byte {
		frame := ask(op, sha, spa)
		frame[12], frame[13] = 0x80, 0x35
		return frame
	}
	foreignClient := bootp(a)
	foreignClient[1] = 6
	tag10 := tag{tpid: typeVLAN, vid: 10}
	chain := func(n int) []byte {
		var headers []byte
		for range n - 1 {
			headers = join(headers, extension(protoDestination, 0))
		}
		return v6("fe80::1", protoDestination, headers, extension(protoUDP, 0), udp(7, 7))
	}
	badVersion, shortHeader := v4("192.0.2.1"), v4("192.0.2.1")
	badVersion[14], shortHeader[14] = 0x65, 0x44
	wideARP := ask(arpRequest, a, "192.0.2.1")
	wideARP[18] = 8

	lengthless := v6("fe80::1", protoHopByHop, extension(protoICMP6, 0), solicitation("fe80::2", theirs))
	clear(lengthless[18:20])

	endless := v4("192.0.2.1")
	for range 9 {
		endless = snapped(endless)
	}

	const spoofed, malformed, tooDeep = "spoofed", "malformed", "too-deep"
	for _, tt := range []struct {
		name   string
		frame  []byte
		reason string
	}{
		{"IPv4", v4("192.0.2.1"), ""},
		{"IPv4 of nobody", v4("192.0.2.9"), spoofed},
		{"IPv4 of another", v4("192.0.2.2"), spoofed},
		{"IPv4 of another port", v4("192.0.2.3"), spoofed},
		{"IPv4 of another VLAN", v4("192.0.2.10"), spoofed},
		{"IPv4 from another station", ether(b, c, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0)), spoofed},
		{"IPv4, first fragment", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0x2000, udp(7, 7))), ""},
		{"IPv4, later fragment", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 9, udp(7, 7))), ""},
		{"IPv4 of nobody, later fragment", ether(b, a, typeIP4, ip4("192.0.2.9", "192.0.2.2", protoUDP, 9)), spoofed},
		{"IPv4, cut off", cut(v4("192.0.2.1"), 19), malformed},
		{"IPv4 without a header", cut(v4("192.0.2.1"), 0), malformed},
		{"IPv4 of version 6", badVersion, malformed},
		{"IPv4 with a short header", shortHeader, malformed},
		{"IPv4 from 0.0.0.0", v4("0.0.0.0"), spoofed},
		{"DHCP discover", discover("255.255.255.255", 68, 67, 0), ""},
		{"DHCP discover to one station", discover("192.0.2.2", 68, 67, 0), spoofed},
		{"DHCP discover from another port", discover("255.255.255.255", 67, 67, 0), spoofed},
		{"no DHCP, from 0.0.0.0", discover("255.255.255.255", 68, 53, 0), spoofed},
		{"fragment from 0.0.0.0", discover("255.255.255.255", 68, 67, 0x2000), spoofed},
		{"DHCP discover, cut off", discover("255.255.255.255", 68, 67, 0)[:14+20+3], spoofed},
		{"DHCP discover, cut off in its MAC", discover("255.255.255.255", 68, 67, 0)[:14+20+8+33], spoofed},
		{"DHCP request", request(a), ""},
		{"DHCP request for another", request(c), spoofed},
		{"DHCP request whose sender is padding", join(ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0x2000, udp(68, 67))), bootp(a)), spoofed},
		{"DHCP request of another kind of station", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0, udp(68, 67, foreignClient...))), spoofed},
		{"first fragment of a DHCP request that ends in its MAC", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0x2000, udp(68, 67, bootp(a)[:39]...))), spoofed},
		{"first fragment of a DHCP request with its MAC", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0x2000, udp(68, 67, bootp(a)[:40]...))), ""},
		{"first fragment of a DHCP request", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0x2000, udp(68, 67))), spoofed},

		{"tagged", retagged(v4("192.0.2.10"), tag10), ""},
		{"tagged, of another VLAN", retagged(v4("192.0.2.1"), tag10), spoofed},
		{"priority tag", retagged(v4("192.0.2.1"), tag{tpid: typeVLAN, prio: 3}), ""},
		{"priority tag, of another", retagged(v4("192.0.2.2"), tag{tpid: typeVLAN, prio: 3}), spoofed},
		{"two tags", retagged(v4("192.0.2.10"), tag10, tag{tpid: typeVLAN, vid: 20}), ""},
		{"two tags, of another", retagged(v4("192.0.2.2"), tag10, tag{tpid: typeVLAN, vid: 20}), spoofed},
		{"service tag", retagged(v4("192.0.2.1"), tag{tpid: typeQinQ, vid: 5}, tag10), ""},
		{"service tag, of another", retagged(v4("192.0.2.2"), tag{tpid: typeQinQ, vid: 5}, tag10), spoofed},
		{"three tags", retagged(v4("192.0.2.10"), tag10, tag10, tag10), ""},
		{"three tags, of another", retagged(v4("192.0.2.1"), tag10, tag10, tag10), spoofed},
		{"eight tags", retagged(v4("192.0.2.1"), priorityTags(8)...), ""},
		{"eight tags, of another", retagged(v4("192.0.2.2"), priorityTags(8)...), spoofed},
		{"nine tags", retagged(v4("192.0.2.1"), priorityTags(9)...), tooDeep},
		{"nine tags, and nothing", retagged(v4("192.0.2.1"), priorityTags(9)...)[:14+36], tooDeep},
		{"twenty tags", retagged(v4("192.0.2.1"), priorityTags(20)...), tooDeep},
		{"an old tag, of another", retagged(v4("192.0.2.2"), tag{tpid: 0x9100, vid: 5}), spoofed},
		{"cut off in its second tag", retagged(v4("192.0.2.10"), tag10, tag10)[:20], malformed},
		{"SNAP", snapped(v4("192.0.2.1")), ""},
		{"SNAP, of another", snapped(v4("192.0.2.2")), spoofed},
		{"SNAP behind a tag, of another", retagged(snapped(v4("192.0.2.1")), tag10), spoofed},
		{"SNAP of 802.1H, of another", ether(b, a, 40, []byte{0xaa, 0xaa, 3, 0, 0, 0xf8}, v4("192.0.2.2")[12:]), spoofed},
		{"SNAP of a maker", ether(b, a, 40, []byte{0xaa, 0xaa, 3, 0, 0, 0x0c}, v4("192.0.2.2")[12:]), ""},
		{"SNAP in SNAP", snapped(snapped(v4("192.0.2.1"))), ""},
		{"SNAP without end", endless, tooDeep},
		{"LLC", ether(b, a, 3, []byte{0x42, 0x42, 3}), ""},
		{"another type", ether(b, a, typeTest, ip4("192.0.2.9", "192.0.2.2", protoUDP, 0)), ""},

		{"ARP request", ask(arpRequest, a, "192.0.2.1"), ""},
		{"ARP request of another", ask(arpRequest, a, "192.0.2.2"), spoofed},
		{"ARP request with another MAC", ask(arpRequest, c, "192.0.2.1"), spoofed},
		{"ARP probe", ask(arpRequest, a, "0.0.0.0"), ""},
		{"ARP probe with another MAC", ask(arpRequest, c, "0.0.0.0"), spoofed},
		{"ARP announcement", ether(broadcast, a, typeARP, arp(arpRequest, a, "192.0.2.1", none, "192.0.2.1")), ""},
		{"ARP announcement of another", ether(broadcast, a, typeARP, arp(arpRequest, a, "192.0.2.2", none, "192.0.2.2")), spoofed},
		{"ARP reply", ask(arpReply, a, "192.0.2.1"), ""},
		{"ARP reply of another", ask(arpReply, a, "192.0.2.2"), spoofed},
		{"ARP reply with another MAC", ask(arpReply, c, "192.0.2.1"), spoofed},
		{"ARP reply of 0.0.0.0", ask(arpReply, a, "0.0.0.0"), spoofed},
		{"ARP, cut off", ask(arpReply, a, "192.0.2.1")[:14+27], malformed},
		{"ARP of wider addresses", wideARP, malformed},
		{"RARP request", rarp(3, a, "0.0.0.0"), ""},
		{"RARP request with another MAC", rarp(3, c, "0.0.0.0"), spoofed},
		{"RARP request of another's address", rarp(3, a, "192.0.2.2"), spoofed},
		{"RARP reply of 0.0.0.0", rarp(4, a, "0.0.0.0"), spoofed},
		{"RARP reply", rarp(4, a, "192.0.2.1"), ""},
		{"ARP behind two tags, of another", retagged(ask(arpReply, a, "192.0.2.2"), tag10, tag10), spoofed},

		{"IPv6", v6("2001:db8::1", protoUDP, udp(7, 7)), ""},
		{"IPv6, link-local", v6("fe80::1", protoUDP, udp(7, 7)), ""},
		{"IPv6 of another", v6("2001:db8::2", protoUDP, udp(7, 7)), spoofed},
		{"IPv6 of another port", v6("fe80::3", protoUDP, udp(7, 7)), spoofed},
		{"advertisement of an address of another port", nd("fe80::1", advertisement("fe80::3", targetOurs)), spoofed},
		{"IPv6 of nobody", v6("fe80::9", protoUDP, udp(7, 7)), spoofed},
		{"IPv6 of an IPv4 address that is bound", v6("::ffff:192.0.2.1", protoUDP, udp(7, 7)), spoofed},
		{"IPv6 with the bytes of an IPv4 address that is bound", v6("::192.0.2.1", protoUDP, udp(7, 7)), spoofed},
		{"IPv6, cut off", cut(v6("fe80::1", protoUDP), 39), malformed},
		{"IPv6 of version 4", ether(b, a, typeIP6, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0, make([]byte, 40))), malformed},
		{"IPv6 from ::", v6("::", protoUDP, udp(546, 547)), spoofed},
		{"IPv6 behind a tag", retagged(v6("fe80::1", protoUDP, udp(7, 7)), tag10), spoofed},
		{"echo", nd("fe80::1", icmp6(128, make([]byte, 4))), ""},
		{"echo from ::", nd("::", icmp6(128, make([]byte, 4))), spoofed},
		{"DHCPv6", v6("fe80::1", protoUDP, udp(546, 547)), ""},
		{"ESP", v6("fe80::1", protoESP, make([]byte, 16)), ""},

		{"solicitation", nd("fe80::1", solicitation("fe80::2", ours)), ""},
		{"solicitation without options", nd("fe80::1", solicitation("fe80::2")), ""},
		{"solicitation of another", nd("fe80::2", solicitation("fe80::3", ours)), spoofed},
		{"solicitation with another MAC", nd("fe80::1", solicitation("fe80::2", theirs)), spoofed},
		{"solicitation with another MAC behind an option", nd("fe80::1", solicitation("fe80::2", []byte{14, 1, 1, 2, 3, 4, 5, 6}, theirs)), spoofed},
		{"solicitation with an endless option", nd("fe80::1", solicitation("fe80::2", make([]byte, 8))), spoofed},
		{"solicitation with half an option", nd("fe80::1", solicitation("fe80::2", ours[:4])), spoofed},
		{"DAD", nd("::", solicitation("fe80::1")), ""},
		{"DAD for another's address", nd("::", solicitation("fe80::2")), spoofed},
		{"DAD with a MAC", nd("::", solicitation("fe80::1", ours)), spoofed},
		{"advertisement", nd("fe80::1", advertisement("2001:db8::1", targetOurs)), ""},
		{"advertisement of another's address", nd("fe80::1", advertisement("2001:db8::2", targetOurs)), spoofed},
		{"advertisement with another MAC", nd("fe80::1", advertisement("2001:db8::1", targetTheirs)), spoofed},
		{"advertisement from ::", nd("::", advertisement("2001:db8::1")), spoofed},
		{"advertisement, cut off", nd("fe80::1", advertisement("2001:db8::1")[:20]), spoofed},
		{"router solicitation", nd("fe80::1", icmp6(icmpRS, make([]byte, 4), ours)), ""},
		{"router solicitation with another MAC", nd("fe80::1", icmp6(icmpRS, make([]byte, 4), theirs)), spoofed},
		{"router solicitation from ::", nd("::", icmp6(icmpRS, make([]byte, 4))), ""},
		{"router solicitation from :: with a MAC", nd("::", icmp6(icmpRS, make([]byte, 4), ours)), spoofed},
		{"router advertisement", nd("fe80::1", icmp6(icmpRA, make([]byte, 12), ours)), ""},
		{"router advertisement with another MAC", nd("fe80::1", icmp6(icmpRA, make([]byte, 12), theirs)), spoofed},
		{"router advertisement from ::", nd("::", icmp6(icmpRA, make([]byte, 12))), spoofed},
		{"padding that looks like an option", join(nd("fe80::1", solicitation("fe80::2")), theirs), ""},
		{"listener report from ::", v6("::", protoHopByHop, extension(protoICMP6, 0), icmp6(icmpMLD2, make([]byte, 4))), ""},

		{"solicitation with another MAC behind a header", v6("fe80::1", protoDestination, extension(protoICMP6, 1), solicitation("fe80::2", theirs)), spoofed},
		{"solicitation with another MAC, of length 0", lengthless, spoofed},
		{"solicitation in a fragment", v6("fe80::1", protoFragment, fragment(protoICMP6, 0, true), solicitation("fe80::2", ours)), spoofed},
		{"echo in a fragment", v6("fe80::1", protoFragment, fragment(protoICMP6, 0, true), icmp6(128, make([]byte, 4))), ""},
		{"later fragment", v6("fe80::1", protoFragment, fragment(protoICMP6, 1, false), make([]byte, 8)), ""},
		{"later fragment of another", v6("fe80::2", protoFragment, fragment(protoICMP6, 1, false), make([]byte, 8)), spoofed},
		{"first fragment without what it carries", v6("fe80::1", protoFragment, fragment(protoICMP6, 0, true)), spoofed},
		{"first fragment that ends in a header", v6("fe80::1", protoFragment, fragment(protoDestination, 0, true), extension(protoICMP6, 3)[:8]), spoofed},
		{"header before TCP that reaches beyond the packet", v6("fe80::1", protoDestination, extension(6, 3)[:8]), spoofed},
		{"authenticated", v6("fe80::1", protoAuth, []byte{protoUDP, 4}, make([]byte, 22), udp(7, 7)), ""},
		{"nineteen headers", chain(19), ""},
		{"twenty headers", chain(20), spoofed},
	} {
		prime := unicast(2, 1)
		if bytes.Equal(tt.frame[6:12], c[:]) {
			prime = unicast(2, 3)
		}
		s.sift(0, tt.name, tt.frame, prime, tt.reason)
	}

	// a port without guard may send anything
	expect(t, "from a port without guard", s.tcx(1, ether(a, b, typeIP4, ip4("192.0.2.9", "192.0.2.1", protoUDP, 0))), sent(0))
	// a removed binding no longer counts, although it was found before
	frame := v4("192.0.2.1")
	s.sift(0, "bound", frame, frame, "")
	if err := s.gen.coll.Maps[kernelMapBindings].Delete(bindingKey(0, addr("192.0.2.1"))); err != nil {
		t.Fatal(err)
	}
	expect(t, "unbound", s.tcx(0, frame), dropped(spoofed))
	// nor does a binding of the slot's former tenant
	s.ids[0] += 1 << slotBits
	s.bind(0, 0, a, "192.0.2.1")
	expect(t, "bound to a port that has left", s.tcx(0, frame), dropped(spoofed))
}

// All frames that a guard has to stop, from a guarded port and from a trusted one. A station that
// is bound at other ports only sends nothing from a guarded port, and is not learned there.
func TestBoundElsewhere(t *testing.T) {
	mine, theirs, unbound, both := station(1), station(2), station(3), station(4)
	s := newBench(t, 3, allXDP, sourceGuard)
	s.bind(0, 0, mine, "192.0.2.1")
	s.bind(0, 1, theirs, "192.0.2.2", "fe80::2")
	s.bind(0, 0, both, "192.0.2.4")
	s.bind(0, 1, both, "192.0.2.5")

	messages := map[string]func(src mac) []byte{
		"DHCP": func(src mac) []byte {
			return ether(broadcast, src, typeIP4, ip4("0.0.0.0", "255.255.255.255", protoUDP, 0, udp(68, 67, bootp(src)...)))
		},
		"ARP probe": func(src mac) []byte {
			return ether(broadcast, src, typeARP, arp(arpRequest, src, "0.0.0.0", none, "192.0.2.9"))
		},
		"RARP": func(src mac) []byte { return ether(broadcast, src, 0x8035, arp(3, src, "0.0.0.0", src, "0.0.0.0")) },
		"router solicitation": func(src mac) []byte {
			return ether(mac{0x33, 0x33, 0, 0, 0, 2}, src, typeIP6, ip6("::", "ff02::2", protoICMP6, icmp6(icmpRS, make([]byte, 4))))
		},
		"listener report": func(src mac) []byte {
			return ether(mac{0x33, 0x33, 0, 0, 0, 0x16}, src, typeIP6,
				ip6("::", "ff02::16", protoHopByHop, extension(protoICMP6, 0), icmp6(icmpMLD2, make([]byte, 4))))
		},
		"LLC":          func(src mac) []byte { return ether(station(2), src, 3, []byte{0x42, 0x42, 3}) },
		"another type": func(src mac) []byte { return ether(station(2), src, typeTest, make([]byte, 46)) },
		"MPLS":         func(src mac) []byte { return ether(station(2), src, 0x8847, make([]byte, 46)) },
	}
	for name, message := range messages {
		for _, tt := range []struct {
			who    string
			src    mac
			reason string
		}{{"its own", mine, ""}, {"bound elsewhere", theirs, "spoofed"}, {"bound nowhere", unbound, ""}, {"bound here and there", both, ""}} {
			s.at(benchNow)
			frame := message(tt.src)
			got := s.tcx(0, frame)
			if tt.reason != "" {
				expect(t, name+", "+tt.who, got, dropped(tt.reason))
			} else if len(got.Drops) > 0 {
				t.Errorf("%s, %s: dropped: %v", name, tt.who, got.Drops)
			}
			if got := s.xdp(0, frame); tt.reason != "" && got.Verdict == redirect {
				t.Errorf("%s, %s: forwarded by XDP", name, tt.who)
			}
		}
		if e, learned := s.fdb()[address{theirs, 0}]; learned {
			t.Errorf("%s: a station that is bound elsewhere was learned: %+v", name, e)
		}
	}
	// another VLAN has bindings of its own
	got := s.tcx(0, retagged(messages["DHCP"](theirs), tag{tpid: typeVLAN, vid: 7}))
	if len(got.Drops) > 0 {
		t.Errorf("bound in another VLAN: dropped: %v", got.Drops)
	}
}

func TestServerGuards(t *testing.T) {
	a, b := station(1), station(2)
	v4 := func(fragment int, payload ...[]byte) []byte {
		return ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, fragment, payload...))
	}
	v6 := func(next byte, payload ...[]byte) []byte {
		return ether(b, a, typeIP6, ip6("fe80::1", "fe80::2", next, payload...))
	}
	ra, redirected := icmp6(icmpRA, make([]byte, 12)), icmp6(icmpRedirect, make([]byte, 36))
	withOptions := v4(0, make([]byte, 4), udp(67, 68, 2))
	withOptions[14] = 0x46
	tags := []tag{{tpid: typeVLAN}, {tpid: typeVLAN}, {tpid: typeVLAN}}
	const server, router = "dhcp-guard", "ra-guard"
	tests := []struct {
		name   string
		frame  []byte
		reason string // "" if both pass it
	}{
		{"DHCP offer", v4(0, udp(67, 68, 2)), server},
		{"DHCP offer behind options", withOptions, server},
		{"DHCP offer from another port", v4(0, udp(1067, 68, 2)), server},
		{"what is none to a client's port", v4(0, udp(1067, 68, 1)), ""},
		{"DHCP from a server that calls itself a client", v4(0, udp(67, 68, 1)), server},
		{"reply to a relay", v4(0, udp(67, 67, 2)), server},
		{"request from a relay", v4(0, udp(67, 67, 1)), ""},
		{"request", v4(0, udp(68, 67, 1)), ""},
		{"other UDP", v4(0, udp(53, 53, 2)), ""},
		{"DHCP offer, first fragment", v4(0x2000, udp(67, 68, 2)), server},
		{"fragment that does not say what it is", v4(0x2000, udp(1067, 68)), server},
		{"fragment that its padding speaks for", join(v4(0x2000, udp(1067, 68)), []byte{1, 1, 6, 0}), server},
		{"fragment without ports", v4(0x2000), server},
		// if more fragments follow, stations use only whole words of eight bytes: the next fragment
		// may replace the rest
		{"fragment that says what it is in a word that is not whole", v4(0x2000, udp(1067, 68, 1, 1, 6, 0, 0, 0, 0)), server},
		{"fragment of whole words", v4(0x2000, udp(1067, 68, 1, 1, 6, 0, 0, 0, 0, 0)), ""},
		{"last fragment of words that are not whole", v4(0, udp(1067, 68, 1, 1, 6, 0, 0, 0, 0)), ""},
		{"fragment whose ports are padding", join(v4(0x2000), udp(53, 53)), server},
		{"later fragment", v4(1, udp(67, 68, 2)), ""},
		{"DHCP offer by TCP", ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", 6, 0, udp(67, 68, 2))), ""},
		{"DHCP offer behind two tags", retagged(v4(0, udp(67, 68, 2)), tags[:2]...), server},
		{"DHCP offer by SNAP", snapped(v4(0, udp(67, 68, 2))), server},

		{"DHCPv6 to a client", v6(protoUDP, udp(547, 546)), server},
		{"DHCPv6 to a client from another port", v6(protoUDP, udp(1547, 546)), server},
		{"DHCPv6 to a relay", v6(protoUDP, udp(547, 547)), server},
		{"DHCPv6 behind a header", v6(protoDestination, extension(protoUDP, 0), udp(547, 546)), server},
		{"DHCPv6, first fragment", v6(protoFragment, fragment(protoUDP, 0, true), udp(547, 546)), server},
		{"DHCPv6 request", v6(protoUDP, udp(546, 547)), ""},

		{"router advertisement", v6(protoICMP6, ra), router},
		{"redirect", v6(protoICMP6, redirected), router},
		{"router advertisement behind hop-by-hop", v6(protoHopByHop, extension(protoICMP6, 0), ra), router},
		{"router advertisement behind two headers", v6(protoHopByHop, extension(protoDestination, 2), extension(protoICMP6, 0), ra), router},
		{"router advertisement behind routing", v6(protoRouting, extension(protoICMP6, 0), ra), router},
		{"router advertisement, authenticated", v6(protoAuth, []byte{protoICMP6, 1}, make([]byte, 10), ra), router},
		{"router advertisement, first fragment", v6(protoFragment, fragment(protoICMP6, 0, true), ra), router},
		{"router advertisement, the only fragment", v6(protoFragment, fragment(protoICMP6, 0, false), ra), router},
		{"later fragment of IPv6", v6(protoFragment, fragment(protoICMP6, 3, true), ra), ""},
		{"router advertisement behind a tag", retagged(v6(protoICMP6, ra), tags[0]), router},
		{"router advertisement behind two tags", retagged(v6(protoICMP6, ra), tags[:2]...), router},
		{"router advertisement by SNAP", snapped(v6(protoICMP6, ra)), router},
		{"router advertisement by SNAP behind a tag", retagged(snapped(v6(protoICMP6, ra)), tags[0]), router},
		{"other ICMPv6", v6(protoICMP6, solicitation("fe80::2")), ""},
		{"no next header", v6(59), ""},
		{"ESP", v6(protoESP, make([]byte, 8)), ""},
		{"ARP", ether(b, a, typeARP, arp(arpRequest, a, "192.0.2.1", none, "192.0.2.2")), ""},
		{"advertisement behind eight tags", retagged(v6(protoICMP6, ra), priorityTags(8)...), router},
	}
	// these cannot be classified: every guard drops them
	untold := [][]byte{
		v6(protoICMP6),
		v6(protoFragment, fragment(protoICMP6, 0, true)),
		v6(protoFragment, fragment(protoDestination, 0, true), extension(protoICMP6, 2)[:8]),
		v6(protoHopByHop),
		join(v6(protoFragment, fragment(protoDestination, 0, true), extension(protoUDP, 0)), udp(53, 53)),
		join(v6(protoFragment, fragment(protoDestination, 0, true), extension(protoICMP6, 0)), solicitation("fe80::2")),
		join(v6(protoFragment, fragment(protoDestination, 0, true)), extension(protoESP, 0)),
	}
	guards := map[string]*bench{
		server: newBench(t, 3, allXDP, dhcpGuard, func(_ *Config, p []*Port) { p[1].Flags |= PortTrusted }),
		router: newBench(t, 3, allXDP, raGuard, func(_ *Config, p []*Port) { p[1].Flags |= PortTrusted }),
	}
	for guard, s := range guards {
		s.learn(0, 1)
		s.learn(2, 2)
		for _, tt := range tests {
			reason := ""
			if tt.reason == guard {
				reason = guard
			}
			s.sift(0, tt.name+", "+guard, tt.frame, unicast(2, 1), reason)
			if got := s.tcx(1, tt.frame); got.Verdict != redirect {
				t.Errorf("%s, from a trusted port with %s: %s", tt.name, guard, got)
			}
			s.learn(0, 1)
		}
		for i, frame := range untold {
			s.sift(0, fmt.Sprintf("untold frame %d, %s", i, guard), frame, unicast(2, 1), guard)
		}
		s.sift(0, "too deep, "+guard, retagged(v6(protoICMP6, ra), priorityTags(9)...), unicast(2, 1), "too-deep")
		// a program with a raw socket may ignore the version
		reason := "malformed"
		other, short, short6 := v6(protoICMP6, ra), v4(0, udp(67, 68, 2)), cut(v6(protoICMP6, ra), 39)
		other[14] = 0x70
		short[14] = 0x44
		s.sift(0, "IP version 7, "+guard, other, unicast(2, 1), reason)
		s.sift(0, "a short IPv6 header, "+guard, short6, unicast(2, 1), reason)
		if guard == router {
			reason = "" // it is not about IPv4
		}
		s.sift(0, "a short IPv4 header, "+guard, short, unicast(2, 1), reason)
		s.sift(0, "IPv4, cut off, "+guard, cut(v4(0), 10), unicast(2, 1), reason)
	}
}

// answered puts a frame to a port and returns the switch's answer; nil if the outcome is another
// one, which must be want.
func (s *bench) answered(name string, port int, frame []byte, want outcome) []byte {
	s.t.Helper()
	before := s.allStats()
	run := ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+258),
		Context: &skbContext{Ifindex: s.rack.near[port]},
	}
	var code uint32
	err := s.rack.do(func() (err error) {
		code, err = s.gen.program(hookTCX).Run(&run)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	after := s.allStats()
	in := &after[port+1]
	if in.RxFrames-before[port+1].RxFrames != 1 || in.RxBytes-before[port+1].RxBytes != uint64(len(frame)) {
		s.t.Errorf("%s: counted %d frames of %d bytes", name, in.RxFrames-before[port+1].RxFrames, in.RxBytes-before[port+1].RxBytes)
	}
	var o outcome
	o.Verdict = hookTCX.verdict(code)
	for slot := range after {
		n := after[slot].TxFrames - before[slot].TxFrames
		for range n {
			o.Out = append(o.Out, slot-1)
		}
		if bytes := after[slot].TxBytes - before[slot].TxBytes; bytes != n*uint64(len(run.DataOut)) {
			s.t.Errorf("%s: port %d counts %d bytes sent, the frame has %d", name, slot-1, bytes, len(run.DataOut))
		}
		for i := range after[slot].Drops {
			for range after[slot].Drops[i] - before[slot].Drops[i] {
				o.Drops = append(o.Drops, Reasons()[i])
			}
		}
	}
	expect(s.t, name, o, want)
	if !slices.Equal(o.Out, []int{port}) {
		if !bytes.Equal(run.DataOut, frame) {
			s.t.Errorf("%s: the frame was changed to % x", name, run.DataOut)
		}
		return nil
	}
	return run.DataOut
}

func TestSuppressARP(t *testing.T) {
	a, b, c := station(1), station(2), station(3)
	s := newBench(t, 4, allXDP, suppress, func(_ *Config, p []*Port) { p[2].Domains, p[1].Domains = 2, 2 })
	s.bind(0, 1, b, "192.0.2.2")
	s.bind(10, 1, c, "192.0.2.2")
	s.bind(0, 0, a, "192.0.2.1")
	// the answer overwrites the question; the bytes behind it stay
	ask := func(dst, sha mac, spa, tpa string) []byte {
		return join(ether(dst, sha, typeARP, arp(arpRequest, sha, spa, none, tpa)), make([]byte, 18))
	}
	answer := func(to, from mac, spa, tpa string) []byte {
		return join(ether(to, from, typeARP, arp(arpReply, from, spa, to, tpa)), make([]byte, 18))
	}
	tag10, tag5 := tag{tpid: typeVLAN, vid: 10, prio: 5}, tag{tpid: typeVLAN, vid: 5}
	odd := ask(broadcast, a, "192.0.2.1", "192.0.2.2")
	odd[20+1] = 3 // an operation of RARP
	for _, tt := range []struct {
		name  string
		port  int
		frame []byte
		want  []byte // nil: flooded
	}{
		{"question", 0, ask(broadcast, a, "192.0.2.1", "192.0.2.2"), answer(a, b, "192.0.2.2", "192.0.2.1")},
		// the decision on the last frame must not be remembered for these
		{"a length instead of a type", 0, ether(broadcast, a, 0, arp(arpRequest, a, "192.0.2.1", none, "192.0.2.2")), nil},
		{"question to a group", 0, ask(group(1), a, "192.0.2.1", "192.0.2.2"), answer(a, b, "192.0.2.2", "192.0.2.1")},
		{"question for nobody", 0, ask(broadcast, a, "192.0.2.1", "192.0.2.9"), nil},
		{"tagged", 0, retagged(ask(broadcast, a, "192.0.2.1", "192.0.2.2"), tag10), retagged(answer(a, c, "192.0.2.2", "192.0.2.1"), tag10)},
		{"in another VLAN", 0, retagged(ask(broadcast, a, "192.0.2.1", "192.0.2.2"), tag5), nil},
		{"behind two tags", 0, retagged(ask(broadcast, a, "192.0.2.1", "192.0.2.2"), tag10, tag5), nil},
		{"behind a service tag", 0, retagged(ask(broadcast, a, "192.0.2.1", "192.0.2.2"), tag{tpid: typeQinQ, vid: 10}), nil},
		{"by SNAP", 0, snapped(ask(broadcast, a, "192.0.2.1", "192.0.2.2")), nil},
		{"from the same port", 1, ask(broadcast, c, "192.0.2.1", "192.0.2.2"), nil},
		{"from the station itself elsewhere", 0, ask(broadcast, b, "192.0.2.1", "192.0.2.2"), nil},
		{"probe", 0, ask(broadcast, a, "0.0.0.0", "192.0.2.2"), answer(a, b, "192.0.2.2", "0.0.0.0")},
		{"the station's own probe", 1, ask(broadcast, b, "0.0.0.0", "192.0.2.2"), nil},
		{"the station's own probe elsewhere", 0, ask(broadcast, b, "0.0.0.0", "192.0.2.2"), nil},
		{"announcement of another's address", 0, ask(broadcast, a, "192.0.2.2", "192.0.2.2"), answer(a, b, "192.0.2.2", "192.0.2.2")},
		{"the station's own announcement", 1, ask(broadcast, b, "192.0.2.2", "192.0.2.2"), nil},
		{"the station's own question, sent by another", 0, ether(broadcast, a, typeARP, arp(arpRequest, b, "0.0.0.0", none, "192.0.2.2")), nil},
		{"another operation", 0, odd, nil},
		{"a reply", 0, ether(broadcast, a, typeARP, arp(arpReply, a, "192.0.2.1", none, "192.0.2.2")), nil},
		{"cut off", 0, ask(broadcast, a, "192.0.2.1", "192.0.2.2")[:14+27], nil},
	} {
		want := sent(tt.port)
		if tt.want == nil {
			want = sent(slices.DeleteFunc([]int{0, 1, 2, 3}, func(n int) bool { return n == tt.port || tt.port == 1 && n == 2 })...)
		}
		if got := s.answered(tt.name, tt.port, tt.frame, want); !bytes.Equal(got, tt.want) {
			t.Errorf("%s: answer\n% x, want\n% x", tt.name, got, tt.want)
		}
		if got := s.xdp(tt.port, tt.frame); got.Verdict != pass {
			t.Errorf("%s by XDP: %s", tt.name, got)
		}
	}
	// the asking station is learned
	if _, ok := s.fdb()[address{a, 0}]; !ok {
		t.Error("the station that asked was not learned")
	}
	// if the question could not go there, there is no answer
	expect(t, "from a protected port", s.tcx(2, ask(broadcast, c, "192.0.2.3", "192.0.2.2")), sent(0, 3))
	// a station answers a question that is sent to itself only
	s.learn(1, 2)
	s.learn(0, 1)
	for range 2 {
		expect(t, "unicast", s.tcx(0, ask(b, a, "192.0.2.1", "192.0.2.2")), sent(1))
		expect(t, "unicast by XDP", s.xdp(0, ask(b, a, "192.0.2.1", "192.0.2.2")), sent(1))
	}
	// there is no answer for a port whose device has gone, or that has left
	question := ask(broadcast, a, "192.0.2.1", "192.0.2.2")
	s.gen.forget(2)
	expect(t, "without the station's device", s.tcx(0, question), sent(2, 3))
	if err := s.rack.do(s.moveIn); err != nil {
		t.Fatal(err)
	}
	s.answered("with it again", 0, question, sent(0))
	s.ids[1] += 1 << slotBits
	s.bind(0, 1, b, "192.0.2.2")
	expect(t, "of a port that has left", s.tcx(0, question), sent(1, 2, 3))
}

// icmpSum is the checksum of an ICMPv6 message in an IPv6 packet, 0 if the message's own checksum
// is right (RFC 8200 8.1).
func icmpSum(packet []byte) uint16 {
	message := packet[40:]
	data := join(packet[8:40], be16(0), be16(len(message)), be16(0), be16(protoICMP6), message)
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func TestSuppressND(t *testing.T) {
	a, b := station(1), station(2)
	solicited := mac{0x33, 0x33, 0xff, 0, 0, 2}
	const group = "ff02::1:ff00:2"
	s := newBench(t, 3, allXDP, suppress)
	guarded := newBench(t, 3, allXDP, suppress, raGuard, func(_ *Config, p []*Port) { p[1].Flags |= PortTrusted })
	for _, s := range []*bench{s, guarded} {
		s.bind(0, 1, b, "fe80::2")
		s.bind(10, 1, b, "fe80::2")
		s.bind(0, 2, b, "2001:db8::2")
	}
	ask := func(src string, src2 mac, target string, options ...[]byte) []byte {
		return ether(solicited, src2, typeIP6, ip6(src, group, protoICMP6, solicitation(target, options...)))
	}
	const flagRouter, flagSolicited, flagOverride = 0x80, 0x40, 0x20
	answer := func(to mac, dst, target string, flags byte) []byte {
		m := advertisement(target, linkLayer(2, b))
		m[4] = flags
		p := ip6(target, dst, protoICMP6, m)
		binary.BigEndian.PutUint16(p[42:], icmpSum(p))
		return ether(to, b, typeIP6, p)
	}
	plain := ask("fe80::1", a, "fe80::2", linkLayer(1, a))
	dad, everybody := ask("::", a, "fe80::2"), mac{0x33, 0x33, 0, 0, 0, 1}
	nonce := ask("fe80::1", a, "fe80::2", linkLayer(1, a), []byte{14, 1, 1, 2, 3, 4, 5, 6})
	labelled := ask("fe80::1", a, "fe80::2", linkLayer(1, a))
	copy(labelled[14:], []byte{0x6f, 0xab, 0xcd, 0xef})
	hop, code := slices.Clone(plain), slices.Clone(plain)
	hop[14+7], code[14+41] = 64, 1
	short := ether(solicited, a, typeIP6, ip6("fe80::1", group, protoICMP6, solicitation("fe80::2")[:20], nil), make([]byte, 8))
	extended := ether(solicited, a, typeIP6, ip6("fe80::1", group, protoDestination, extension(protoICMP6, 0), solicitation("fe80::2")))
	tag10, tag5 := tag{tpid: typeVLAN, vid: 10, prio: 5}, tag{tpid: typeVLAN, vid: 5}
	const so = flagSolicited | flagOverride
	for _, tt := range []struct {
		name  string
		s     *bench
		port  int
		frame []byte
		want  []byte // nil: flooded
	}{
		{"question", s, 0, plain, answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"question with a nonce", s, 0, nonce, answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"question without options", s, 0, ask("fe80::1", a, "fe80::2"), answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"question with a class and a label", s, 0, labelled, answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"padded question", s, 0, join(plain, make([]byte, 100)), answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"tagged", s, 0, retagged(plain, tag10), retagged(answer(a, "fe80::1", "fe80::2", flagRouter|so), tag10)},
		{"DAD", s, 0, dad, answer(everybody, "ff02::1", "fe80::2", flagRouter|flagOverride)},
		{"the station's own DAD", s, 1, ask("::", b, "fe80::2"), nil},
		{"the station's own DAD elsewhere", s, 0, ask("::", b, "fe80::2"), nil},
		{"from the same port", s, 1, plain, nil},
		{"for nobody", s, 0, ask("fe80::1", a, "fe80::9"), nil},
		{"in another VLAN", s, 0, retagged(plain, tag5), nil},
		{"behind two tags", s, 0, retagged(plain, tag10, tag5), nil},
		{"by SNAP", s, 0, snapped(plain), nil},
		{"routed", s, 0, hop, nil},
		{"of another code", s, 0, code, nil},
		{"too short", s, 0, short, nil},
		{"cut off", s, 0, plain[:14+40+20], nil},
		{"behind a header", s, 0, extended, nil},
		{"an advertisement", s, 0, ether(solicited, a, typeIP6, ip6("fe80::1", group, protoICMP6, advertisement("fe80::2"))), nil},
		{"where routers are on trusted ports, of such", guarded, 0, plain, answer(a, "fe80::1", "fe80::2", flagRouter|so)},
		{"of another port", guarded, 0, ask("fe80::1", a, "2001:db8::2"), answer(a, "fe80::1", "2001:db8::2", so)},
	} {
		want := sent(tt.port)
		if tt.want == nil {
			want = sent(slices.DeleteFunc([]int{0, 1, 2}, func(n int) bool { return n == tt.port })...)
		}
		got := tt.s.answered(tt.name, tt.port, tt.frame, want)
		if !bytes.Equal(got, tt.want) {
			t.Errorf("%s: answer\n% x, want\n% x", tt.name, got, tt.want)
		}
		if got := tt.s.xdp(tt.port, tt.frame); got.Verdict != pass {
			t.Errorf("%s by XDP: %s", tt.name, got)
		}
	}
}

// The methods for bindings, which commands use.
func TestBindings(t *testing.T) {
	shelf := newShelf(t, 3)
	b := shelf.create("br0", 2)
	mac1 := station(1)
	var ports []Port
	for _, p := range Ports(&b.Config) {
		ports = append(ports, *p)
	}
	list := func() (s []string) {
		t.Helper()
		all, err := b.Bindings()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			s = append(s, fmt.Sprintf("%s vlan %d on %s", e.Address, e.VLAN, PortName(PortAt(&b.Config, e.Port))))
			if e.MAC != mac1 {
				t.Errorf("%s has MAC %x", e.Address, e.MAC)
			}
		}
		slices.Sort(s)
		return s
	}
	wantList := func(want ...string) {
		t.Helper()
		if got := list(); !slices.Equal(got, want) {
			t.Errorf("bindings %q, want %q", got, want)
		}
	}
	room := func(want uint32) {
		t.Helper()
		m, err := b.openTable(kernelMapBindings)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if got := m.MaxEntries() / bindingEntries; got != want {
			t.Errorf("room for %d bindings, want %d", got, want)
		}
	}
	wantList()
	room(1)
	for i, a := range []string{"192.0.2.1", "2001:db8::1", "::192.0.2.1", "192.0.2.1"} {
		binding := Binding{VLAN: uint16(i / 3 * 10), Address: addr(a), MAC: mac1, Port: ports[i%2].Id}
		err := b.Bind(binding)
		if i == 1 { // this makes the table large, and keeps its bindings
			if !errors.Is(err, ErrBindingsSmall) {
				t.Errorf("a second binding in a table for one: %v", err)
			}
			all, lerr := b.Bindings()
			if lerr != nil {
				t.Fatal(lerr)
			}
			err = shelf.try(func() error { return b.Commit(&b.Config, Tables{Bindings: append(all, binding)}, keepAll) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	room(MaxBindings)
	wantList("192.0.2.1 vlan 0 on near0", "192.0.2.1 vlan 10 on near1", "2001:db8::1 vlan 0 on near1", "::c000:201 vlan 0 on near0")
	if err := b.Unbind(5, addr("192.0.2.1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unbind what is not bound: %v", err)
	}
	if err := b.Unbind(0, addr("::192.0.2.1")); err != nil {
		t.Error(err)
	}
	// they outlive a generation, but not their port
	if err := shelf.commit(b, func(*Config, []*Port) {}); err != nil {
		t.Fatal(err)
	}
	wantList("192.0.2.1 vlan 0 on near0", "192.0.2.1 vlan 10 on near1", "2001:db8::1 vlan 0 on near1")
	if err := shelf.commit(b, func(_ *Config, p []*Port) { *p[1] = Port{} }); err != nil {
		t.Fatal(err)
	}
	wantList("192.0.2.1 vlan 0 on near0")
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if left, err := readBindings(m); err != nil || len(left.bindings) != 1 || len(left.stations) != 2 {
		t.Errorf("%+v is left in the table, want one binding and its station (%v)", left, err)
	}
	room(MaxBindings)
	if n, err := b.UnbindAll(func(e Binding) bool { return e.VLAN == 0 }); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	wantList()

	// full
	for n := range MaxBindings {
		k := bindingKey(1, netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
		if err := m.Put(k, kernelBinding{Mac: 2, Port: ports[0].Id}); err != nil {
			t.Fatalf("binding %d: %v", n, err)
		}
	}
	if err := b.Bind(Binding{Address: addr("192.0.2.1"), MAC: mac1, Port: ports[0].Id}); !errors.Is(err, ErrBindingsFull) {
		t.Errorf("one more than there is room for: %v", err)
	}
	// bindings of ports that have left make room
	if err := m.Put(bindingKey(1, addr("10.0.0.0")), kernelBinding{Mac: 2, Port: ports[1].Id}); err != nil {
		t.Fatal(err)
	}
	if err := b.Bind(Binding{Address: addr("192.0.2.1"), MAC: mac1, Port: ports[0].Id}); err != nil {
		t.Errorf("with one that is nobody's: %v", err)
	}
}

// Many bindings are replaced at once, even all of a full table, each by another station.
func TestReplaceBindings(t *testing.T) {
	shelf := newShelf(t, 3)
	b := shelf.create("br0", 2)
	var ids []uint32
	for _, p := range Ports(&b.Config) {
		ids = append(ids, p.Id)
	}
	bind := func(n, station int, port uint32) Binding {
		return Binding{Address: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), Port: port,
			MAC: [6]byte{2, 0, byte(station >> 24), byte(station >> 16), byte(station >> 8), byte(station)}}
	}
	want := func(n int, of func(int) Binding) {
		t.Helper()
		m, err := b.openTable(kernelMapBindings)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		got, err := readBindings(m)
		if err != nil {
			t.Fatal(err)
		}
		stations := map[kernelBindingKey]bool{}
		for i := range n {
			e := of(i)
			if got.bindings[e.address()] != e {
				t.Fatalf("%s is bound to %+v, want %+v", e.Address, got.bindings[e.address()], e)
			}
			for _, k := range e.stationKeys() {
				stations[k] = true
			}
		}
		if len(got.bindings) != n {
			t.Errorf("%d bindings, want %d", len(got.bindings), n)
		}
		for k := range stations {
			if s := got.stations[k]; s == nil || !s.there {
				t.Fatalf("station %+v is not there", k)
			}
		}
		if len(got.stations) != len(stations) {
			t.Errorf("%d stations, want %d", len(got.stations), len(stations))
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// a table for one binding has no room for two stations at a time
	first := bind(0, 0, ids[0])
	must(b.ReplaceBindings(nil, []Binding{first}))
	if err := b.ReplaceBindings(nil, []Binding{bind(0, 1, ids[1])}); !errors.Is(err, ErrBindingsSmall) {
		t.Errorf("another station in a table for one: %v", err)
	}
	want(1, func(int) Binding { return first })
	must(b.ReplaceBindings([]Binding{first}, []Binding{first}))
	want(1, func(int) Binding { return first })
	must(shelf.try(func() error { return b.Commit(&b.Config, Tables{Bindings: []Binding{first}}, keepAll) }))

	list := func(n int, of func(int) Binding) (l []Binding) {
		for i := range n {
			l = append(l, of(i))
		}
		return l
	}
	here := func(n int) Binding { return bind(n, n, ids[0]) }
	there := func(n int) Binding { return bind(n, MaxBindings+n, ids[1]) }
	must(b.ReplaceBindings(nil, list(MaxBindings, here)))
	want(MaxBindings, here)
	if err := b.ReplaceBindings(nil, []Binding{bind(MaxBindings, 0, ids[0])}); !errors.Is(err, ErrBindingsFull) {
		t.Errorf("one more than there is room for: %v", err)
	}
	want(MaxBindings, here)
	must(b.ReplaceBindings(nil, list(MaxBindings, there)))
	want(MaxBindings, there)
	// some go, some come, and some are removed and made again
	must(b.ReplaceBindings(append(list(MaxBindings, there)[10:], bind(MaxBindings+7, 0, 0)), list(12, here)))
	want(12, here)
}

// With a feature that uses bindings, their table has its full size, so that a binding needs no new
// programs. Former bindings stay.
func TestBindingsRoom(t *testing.T) {
	for name, ask := range map[string]func(c *Config, p []*Port){
		"source guard": func(_ *Config, p []*Port) { p[0].Flags |= PortSrcGuard },
		"suppression":  func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeSuppress) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, 2)
			b := s.create("br0", 2)
			ports := Ports(&b.Config)
			bind := func(n byte) error {
				return s.try(func() error {
					return b.Bind(Binding{Address: netip.AddrFrom4([4]byte{192, 0, 2, n}), MAC: station(int(n)), Port: ports[n%2].Id})
				})
			}
			if err := bind(1); err != nil {
				t.Fatal(err)
			}
			if err := s.commit(b, ask); err != nil {
				t.Fatal(err)
			}
			for n := byte(2); n < 9; n++ {
				if err := bind(n); err != nil {
					t.Fatalf("binding %d: %v", n, err)
				}
				if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing = uint32(100 + n) }); err != nil {
					t.Fatal(err)
				}
			}
			if list, err := b.Bindings(); err != nil || len(list) != 8 {
				t.Errorf("%d bindings of 8, %v", len(list), err)
			}
		})
	}
}
