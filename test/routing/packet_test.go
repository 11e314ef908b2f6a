// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bascule/test/netlab"
)

// A recipe describes a packet that is sent to the host. Its zero value is the simplest packet.
type recipe struct {
	six      bool
	src, dst netip.Addr // without src, an address that no other packet has
	to       int        // destination MAC: 0 the gateway's, 1 the other gateway's, 2 broadcast
	ttl      byte
	tos      byte
	proto    byte
	icmp     byte // type
	frag     uint16
	options  []byte
	size     int // bytes of the payload
	length   int // added to the length in the header
	pad      int // bytes behind the packet
	sum      uint16
	tag      int    // -1 for none, or a VLAN
	begin    []byte // the beginning of the payload
}

func (r recipe) String() string {
	type plain recipe
	return fmt.Sprintf("%+v", plain(r))
}

func addresses(list ...string) *rapid.Generator[netip.Addr] {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return rapid.SampledFrom(all)
}

// usually draws the plain value in most cases, so that most packets differ from a plain one in
// few properties.
func usually[V any](of int, plain V, other *rapid.Generator[V]) *rapid.Generator[V] {
	return rapid.Custom(func(t *rapid.T) V {
		if rapid.IntRange(0, of).Draw(t, "odd") > 0 {
			return plain
		}
		return other.Draw(t, "other")
	})
}

var (
	from4 = addresses("10.0.1.2", "10.0.1.77", "10.0.2.9", "10.0.2.2", "10.0.1.1", "10.0.2.1", "10.9.1.1", "127.0.0.1", "0.0.0.0", "0.1.2.3",
		"224.0.0.5", "240.0.0.1", "255.255.255.255", "10.0.1.255", "10.0.1.0", "203.0.113.9", "10.8.0.1", "10.7.0.1")
	to4 = addresses("10.9.1.1", "10.9.255.255", "10.5.1.1", "10.5.1.2", "10.5.1.3", "10.3.1.1", "10.2.1.1", "10.0.1.2", "10.0.1.1", "10.0.2.1", "10.0.2.255", "10.0.2.0", "10.8.0.1", "10.7.0.1",
		"10.6.0.1", "127.0.0.1", "0.0.0.0", "0.0.0.9", "224.0.0.5", "240.0.0.1", "255.255.255.255", "203.0.113.5")
	from6 = addresses("fd01::2", "fd01::77", "fd02::9", "fd02::2", "fd01::1", "fd02::1", "fd09::1", "fe80::9", "::1", "::", "ff02::1", "::ffff:1.2.3.4",
		"2001:db8::9", "fd08::1", "64:ff9b::1", "2002:a00:1::1", "::1.2.3.4")
	to6 = addresses("fd09::1", "fd09::", "fd05::1", "fd05::2", "fd05::3", "fd03::1", "fd01::1", "fd02::1", "fd02::", "fd08::1", "fd07::1", "fd06::1", "fe80::9", "::1", "::",
		"ff02::1", "ff05::2", "2001:db8::5", "::ffff:10.0.2.2", "64:ff9b::a00:202")
	odd4 = [][]byte{
		{1, 1, 1, 1}, {0, 0, 0, 0}, {7, 7, 4, 0, 0, 0, 0, 0}, {148, 4, 0, 0},
		{68, 8, 9, 0, 0, 0, 0, 0}, // full: otherwise the host would write the time into it
		{131, 7, 4, 10, 0, 2, 2, 0}, {137, 7, 4, 10, 0, 2, 2, 0}, {7, 40, 4, 0}, {130, 3, 0, 0}, {9, 0, 0, 0},
	}
)

// recipes draws packets.
func recipes() *rapid.Generator[recipe] {
	return rapid.Custom(func(t *rapid.T) recipe {
		r := recipe{six: rapid.Bool().Draw(t, "IPv6"), tag: -1}
		from, to, dst := from4, to4, "10.0.2.2"
		protocols := []byte{unix.IPPROTO_TCP, unix.IPPROTO_ICMP, 47, 50, 132, 41, 4, 0, 255}
		if r.six {
			from, to, dst = from6, to6, "fd02::2"
			protocols = []byte{unix.IPPROTO_TCP, unix.IPPROTO_ICMPV6, 0, 60, 43, 44, 59, 41, 50, 51, 135, 132, 255}
		}
		r.src = usually(4, netip.Addr{}, from).Draw(t, "from")
		r.dst = usually(2, netip.MustParseAddr(dst), to).Draw(t, "to")
		r.to = usually(12, 0, rapid.IntRange(0, 2)).Draw(t, "MAC")
		r.ttl = usually(3, 64, rapid.SampledFrom([]byte{0, 1, 2, 3, 255})).Draw(t, "TTL")
		r.tos = usually(3, 0, rapid.Byte()).Draw(t, "TOS")
		r.proto = usually(1, unix.IPPROTO_UDP, rapid.SampledFrom(protocols)).Draw(t, "protocol")
		r.icmp = usually(1, byte(8), rapid.SampledFrom([]byte{0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 17, 128, 129, 130, 133, 134, 135, 136, 137, 143, 200})).Draw(t, "ICMP")
		r.frag = usually(4, 0, rapid.SampledFrom([]uint16{0x4000, 0x2000, 0x2001, 0x00b9, 0x6000, 0x8000, 0x1fff, 0xc000})).Draw(t, "fragment")
		r.options = usually(9, nil, rapid.SampledFrom(odd4)).Draw(t, "options")
		r.size = usually(3, 40, rapid.SampledFrom([]int{0, 1, 4, 7, 8, 18, 25, 26, 27, 1372, 1380, 1400, 1452, 1460, 1472, 1480})).Draw(t, "size")
		r.length = usually(9, 0, rapid.SampledFrom([]int{-60, -21, -20, -8, -1, 1, 8, 2000, 65000})).Draw(t, "length")
		r.pad = usually(6, 0, rapid.SampledFrom([]int{1, 2, 6, 18, 300})).Draw(t, "padding")
		r.sum = usually(9, 0, rapid.SampledFrom([]uint16{1, 0x0100, 0xffff})).Draw(t, "checksum")
		r.tag = usually(9, -1, rapid.SampledFrom([]int{0, 11, 12, 1})).Draw(t, "tag")
		return r
	})
}

// frame makes the packet. number distinguishes it from others.
func (r recipe) frame(s *site, number uint16) netlab.Frame {
	s.made++
	if !r.src.IsValid() && r.six {
		r.src = netip.AddrFrom16([16]byte{0xfd, 0x11, 14: byte(s.made >> 8), 15: byte(s.made)})
	} else if !r.src.IsValid() {
		r.src = netip.AddrFrom4([4]byte{10, 1, byte(s.made >> 8), byte(s.made)})
	}
	load := make([]byte, r.size)
	for i := range load {
		load[i] = byte(i) ^ byte(number)
	}
	if len(load) >= 8 {
		binary.BigEndian.PutUint16(load[0:], 1000+number) // ports, or type and code
		binary.BigEndian.PutUint16(load[2:], 4000)
		binary.BigEndian.PutUint16(load[4:], uint16(len(load)))
		binary.BigEndian.PutUint16(load[6:], 0)
		if r.proto == unix.IPPROTO_ICMP || r.proto == unix.IPPROTO_ICMPV6 {
			load[0], load[1] = r.icmp, 0
		}
	}
	copy(load, r.begin)
	var packet []byte
	typ := uint16(unix.ETH_P_IP)
	if r.six {
		typ = unix.ETH_P_IPV6
		packet = make([]byte, 40, 40+len(load))
		binary.BigEndian.PutUint32(packet, 6<<28|uint32(r.tos)<<20|uint32(number))
		binary.BigEndian.PutUint16(packet[4:], uint16(len(load)+r.length))
		packet[6], packet[7] = r.proto, r.ttl
		copy(packet[8:], r.src.AsSlice())
		copy(packet[24:], r.dst.AsSlice())
	} else {
		packet = make([]byte, 20, 60+len(load))
		packet = append(packet, r.options...)
		packet[0], packet[1] = byte(0x40|len(packet)/4), r.tos
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)+len(load)+r.length))
		binary.BigEndian.PutUint16(packet[4:], number)
		binary.BigEndian.PutUint16(packet[6:], r.frag)
		packet[8], packet[9] = r.ttl, r.proto
		copy(packet[12:], r.src.AsSlice())
		copy(packet[16:], r.dst.AsSlice())
		binary.BigEndian.PutUint16(packet[10:], checksum(packet)+r.sum)
	}
	packet = append(packet, load...)
	packet = packet[:min(len(packet), 1500)]
	packet = append(packet, make([]byte, min(r.pad, 1500-len(packet)))...)
	dst := []netlab.MAC{s.sides[0].mac, s.sides[1].mac, netlab.Broadcast}[r.to]
	src := s.sides[0].end.MAC
	frame := netlab.Frame(slices.Concat(dst[:], src[:], binary.BigEndian.AppendUint16(nil, typ), packet))
	if r.tag >= 0 {
		frame = frame.Tagged(uint16(r.tag), 3)
	}
	return frame
}

// before returns a small, plain packet of the same connection as the recipe's frame. It is sent
// before that frame, and the datapath then remembers the connection's route.
func (r recipe) before(s *site, f netlab.Frame, number uint16) netlab.Frame {
	at := 14
	if r.tag >= 0 {
		at += 4
	}
	p := recipe{six: r.six, dst: r.dst, ttl: 64, tos: r.tos, proto: r.proto, icmp: r.icmp, size: plainLoad, tag: -1}
	if r.six {
		p.src = netip.AddrFrom16([16]byte([]byte(f[at+8:])))
	} else {
		p.src = netip.AddrFrom4([4]byte([]byte(f[at+12:])))
	}
	return p.frame(s, number)
}

// checksum returns the checksum of an IPv4 header (RFC 791).
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
