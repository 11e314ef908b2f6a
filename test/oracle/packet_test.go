// SPDX-License-Identifier: BSD-2-Clause

package oracle

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bascule/test/netlab"
)

// The stations: the one at the first port sends, the one at the second is the oracle, and the
// addresses of the one at the third are bound there. The switch has no entry for the fourth one.
var (
	sender   = station{netlab.MAC{0x02, 0xee, 0, 0, 0, 1}, addr("10.0.0.1"), addr("fe80::1")}
	receiver = station{netlab.MAC{0x02, 0xee, 0, 0, 0, 2}, addr("10.0.0.2"), addr("fe80::2")}
	other    = station{netlab.MAC{0x02, 0xee, 0, 0, 0, 3}, addr("10.0.0.3"), addr("fe80::3")}
	nobody   = station{netlab.MAC{0x02, 0x57, 0, 0, 0, 66}, addr("10.0.0.66"), addr("fe80::66")}
	nothing  = station{netlab.MAC{}, addr("0.0.0.0"), addr("::")}
)

type station struct {
	mac netlab.MAC
	ip4 netip.Addr
	ip6 netip.Addr
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

const (
	portOpen    = 4000 // port on which the oracle listens
	portAlso    = 4001
	typeData    = 0x88b5 // IEEE 802 local experimental ethertype 1
	typePPPoE   = 0x8864
	typeMPLS    = 0x8847
	routerType  = 134
	dhcpReply   = 2
	dhcpRequest = 1
)

// A kind is a packet that a station may send to another, before it is wrapped or changed.
type kind struct {
	name string
	typ  int // EtherType; 0 for LLC
	make func(from, to station, tail []byte) []byte
	// group is the MAC address for packets to all, which the other stations may receive, too.
	group netlab.MAC
}

var broadcast, all6 = netlab.Broadcast, netlab.MAC{0x33, 0x33, 0, 0, 0, 1}

// kinds are the kinds by their names.
var kinds = func() map[string]kind {
	m := map[string]kind{}
	for _, k := range []kind{
		{"udp4", unix.ETH_P_IP, udp4(station4, 5000, portOpen), broadcast},
		{"udp4 also", unix.ETH_P_IP, udp4(station4, 5000, portAlso), broadcast},
		{"udp4 broadcast", unix.ETH_P_IP, udp4(group("255.255.255.255"), 5000, portOpen), broadcast},
		{"udp6", unix.ETH_P_IPV6, udp6(station6, 5000, portOpen), all6},
		{"udp6 also", unix.ETH_P_IPV6, udp6(station6, 5000, portAlso), all6},
		{"udp6 all", unix.ETH_P_IPV6, udp6(group("ff02::1"), 5000, portOpen), all6},
		{"tcp4", unix.ETH_P_IP, func(from, to station, tail []byte) []byte {
			return ip4(from.ip4, to.ip4, unix.IPPROTO_TCP, syn(from.ip4, to.ip4, tail))
		}, broadcast},
		{"tcp6", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return ip6(from.ip6, to.ip6, unix.IPPROTO_TCP, syn(from.ip6, to.ip6, tail))
		}, all6},
		{"icmp4", unix.ETH_P_IP, func(from, to station, tail []byte) []byte {
			m := slices.Concat([]byte{8, 0, 0, 0, 0, 1, 0, 1}, tail)
			binary.BigEndian.PutUint16(m[2:], sum(0, m))
			return ip4(from.ip4, to.ip4, unix.IPPROTO_ICMP, m)
		}, broadcast},
		{"icmp6", unix.ETH_P_IPV6, icmp6(station6, 128, 0, []byte{0, 1, 0, 1}), all6},
		{"error4", unix.ETH_P_IP, func(from, to station, tail []byte) []byte {
			quote := ip4(to.ip4, from.ip4, unix.IPPROTO_UDP, udp(to.ip4, from.ip4, portOpen, 5000, tail))
			m := slices.Concat([]byte{3, 3, 0, 0}, zeros(4), quote)
			binary.BigEndian.PutUint16(m[2:], sum(0, m))
			return ip4(from.ip4, to.ip4, unix.IPPROTO_ICMP, m)
		}, broadcast},
		{"error6", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			quote := ip6(to.ip6, from.ip6, unix.IPPROTO_UDP, udp(to.ip6, from.ip6, portOpen, 5000, tail))
			m := slices.Concat([]byte{1, 4, 0, 0}, zeros(4), quote)
			binary.BigEndian.PutUint16(m[2:], sum(pseudo(from.ip6, to.ip6, unix.IPPROTO_ICMPV6, len(m)), m))
			return ip6(from.ip6, to.ip6, unix.IPPROTO_ICMPV6, m)
		}, all6},
		{"dhcp4 server", unix.ETH_P_IP, dhcp4(group("255.255.255.255"), 67, 68, dhcpReply), broadcast},
		{"dhcp4 server, other port", unix.ETH_P_IP, dhcp4(station4, 1067, 68, dhcpReply), broadcast},
		{"dhcp4 discover", unix.ETH_P_IP, dhcp4(group("255.255.255.255"), 68, 67, dhcpRequest), broadcast},
		{"dhcp6 server", unix.ETH_P_IPV6, udp6(station6, 547, 546), all6},
		{"arp request", unix.ETH_P_ARP, arp(1, itself), broadcast},
		{"arp reply", unix.ETH_P_ARP, arp(2, itself), broadcast},
		{"gratuitous arp", unix.ETH_P_ARP, func(from, to station, tail []byte) []byte { return arp(1, fixed(from))(from, to, tail) }, broadcast},
		{"rarp", unix.ETH_P_RARP, arp(3, fixed(sender)), broadcast},
		{"ns", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return icmp6(station6, 135, 0, zeros(4), to.ip6.AsSlice(), []byte{1, 1}, from.mac[:])(from, to, nil)
		}, all6},
		{"na", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return icmp6(group("ff02::1"), 136, 0, []byte{0x20, 0, 0, 0}, from.ip6.AsSlice(), []byte{2, 1}, from.mac[:])(from, to, nil)
		}, all6},
		{"dad", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return icmp6(group("ff02::1"), 135, 0, zeros(4), from.ip6.AsSlice())(nothing, to, nil)
		}, all6},
		{"rs", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return icmp6(group("ff02::2"), 133, 0, zeros(4))(nothing, to, nil)
		}, all6},
		{"mld", unix.ETH_P_IPV6, func(from, to station, tail []byte) []byte {
			return icmp6(group("ff02::16"), 143, 0, []byte{0, 0, 0, 1, 4, 0, 0, 0}, addr("ff02::99").AsSlice())(nothing, to, nil)
		}, all6},
		{"ra", unix.ETH_P_IPV6, icmp6(group("ff02::1"), routerType, 0, []byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}), all6},
		{"redirect", unix.ETH_P_IPV6, icmp6(station6, 137, 0, zeros(4), sender.ip6.AsSlice(), addr("fd00::1").AsSlice()), all6},
		{"data", typeData, func(_, _ station, tail []byte) []byte { return slices.Concat(zeros(46), tail) }, broadcast},
		{"llc", 0, func(_, _ station, tail []byte) []byte {
			return slices.Concat(be16(3+36+len(tail)), []byte{0x42, 0x42, 3}, zeros(36), tail)
		}, broadcast},
	} {
		m[k.name] = k
	}
	return m
}()

func zeros(n int) []byte { return make([]byte, n) }
func be16(n int) []byte  { return binary.BigEndian.AppendUint16(nil, uint16(n)) }
func be32(n int) []byte  { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// sum adds b to a partial internet checksum (RFC 1071).
func sum(s uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// pseudo is the partial checksum of the IP pseudo-header.
func pseudo(from, to netip.Addr, proto, length int) uint32 {
	b := slices.Concat(from.AsSlice(), to.AsSlice(), be32(length), be32(proto))
	return uint32(^sum(0, b))
}

func ip4(from, to netip.Addr, proto byte, body []byte) []byte {
	h := slices.Concat([]byte{0x45, 0}, be16(20+len(body)), []byte{0, 7, 0, 0, 64, proto, 0, 0}, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], sum(0, h))
	return append(h, body...)
}

func ip6(from, to netip.Addr, next byte, body []byte) []byte {
	return slices.Concat([]byte{0x60, 0, 0, 0}, be16(len(body)), []byte{next, 255}, from.AsSlice(), to.AsSlice(), body)
}

func udp(from, to netip.Addr, sport, dport int, payload []byte) []byte {
	b := slices.Concat(be16(sport), be16(dport), be16(8+len(payload)), zeros(2), payload)
	s := sum(pseudo(from, to, unix.IPPROTO_UDP, len(b)), b)
	if s == 0 {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], s)
	return b
}

// An address returns the destination address of a packet to a station.
type address func(to station) netip.Addr

func station4(to station) netip.Addr { return to.ip4 }
func station6(to station) netip.Addr { return to.ip6 }

// group returns an address that several stations have.
func group(s string) address { return func(station) netip.Addr { return addr(s) } }

func udp4(at address, sport, dport int) func(from, to station, tail []byte) []byte {
	return func(from, to station, tail []byte) []byte {
		return ip4(from.ip4, at(to), unix.IPPROTO_UDP, udp(from.ip4, at(to), sport, dport, tail))
	}
}

func udp6(at address, sport, dport int) func(from, to station, tail []byte) []byte {
	return func(from, to station, tail []byte) []byte {
		return ip6(from.ip6, at(to), unix.IPPROTO_UDP, udp(from.ip6, at(to), sport, dport, tail))
	}
}

func dhcp4(at address, sport, dport int, op byte) func(from, to station, tail []byte) []byte {
	return func(from, to station, tail []byte) []byte {
		src := from.ip4
		if op == dhcpRequest {
			src = nothing.ip4
		}
		message := slices.Concat([]byte{op, 1, 6, 0}, zeros(32), tail)
		return ip4(src, at(to), unix.IPPROTO_UDP, udp(src, at(to), sport, dport, message))
	}
}

func syn(from, to netip.Addr, tail []byte) []byte {
	b := slices.Concat(be16(5000), be16(portOpen), be32(1), be32(0), []byte{0x50, 2, 0xff, 0xff, 0, 0, 0, 0}, tail)
	binary.BigEndian.PutUint16(b[16:], sum(pseudo(from, to, unix.IPPROTO_TCP, len(b)), b))
	return b
}

func icmp6(at address, typ, code byte, parts ...[]byte) func(from, to station, tail []byte) []byte {
	return func(from, to station, tail []byte) []byte {
		if typ != 128 {
			tail = nil
		}
		m := slices.Concat([]byte{typ, code, 0, 0}, slices.Concat(parts...), tail)
		binary.BigEndian.PutUint16(m[2:], sum(pseudo(from.ip6, at(to), unix.IPPROTO_ICMPV6, len(m)), m))
		return ip6(from.ip6, at(to), unix.IPPROTO_ICMPV6, m)
	}
}

// itself and fixed return the station that ARP is about.
func itself(to station) station { return to }

func fixed(s station) func(station) station { return func(station) station { return s } }

func arp(op int, of func(to station) station) func(from, to station, tail []byte) []byte {
	return func(from, to station, tail []byte) []byte {
		about := of(to)
		return slices.Concat(be16(1), be16(unix.ETH_P_IP), []byte{6, 4}, be16(op), from.mac[:], from.ip4.AsSlice(), about.mac[:], about.ip4.AsSlice())
	}
}

// A wrap is one header in front of a packet.
type wrap struct {
	name string
	typ  int // EtherType that announces it; 0 for LLC with SNAP
	vid  int
	oui  string
}

var (
	priority = wrap{"8100:0", 0x8100, 0, ""}
	service  = wrap{"88a8:0", 0x88a8, 0, ""}
	wraps    = []wrap{
		priority, service,
		{"8100:1", 0x8100, 1, ""}, {"8100:10", 0x8100, 10, ""}, {"8100:10 prio", 0x8100, 0xe00a, ""}, {"8100:0 prio", 0x8100, 0xe000, ""},
		{"88a8:1", 0x88a8, 1, ""}, {"88a8:10", 0x88a8, 10, ""},
		{"9100:0", 0x9100, 0, ""}, {"9200:0", 0x9200, 0, ""},
		{"snap", 0, 0, "\x00\x00\x00"}, {"bridge tunnel", 0, 0, "\x00\x00\xf8"}, {"snap of Apple", 0, 0, "\x08\x00\x07"},
		{"pppoe", typePPPoE, 0, ""}, {"mpls", typeMPLS, 0, ""},
	}
)

// around puts the wrap in front of a body with the given EtherType, and returns its own EtherType
// with the result.
func (w wrap) around(typ int, body []byte) (int, []byte) {
	switch {
	case w.typ == 0 && typ == 0:
		return 0, body // LLC is not wrapped into SNAP
	case w.typ == 0:
		return 0, slices.Concat(be16(8+len(body)), []byte("\xaa\xaa\x03"+w.oui), be16(typ), body)
	case w.typ == typePPPoE:
		protocol := map[int]int{unix.ETH_P_IP: 0x21, unix.ETH_P_IPV6: 0x57}[typ]
		return w.typ, slices.Concat([]byte{0x11, 0, 0, 1}, be16(2+len(body)), be16(protocol), body)
	case w.typ == typeMPLS:
		return w.typ, slices.Concat([]byte{0, 1, 1, 64}, body)
	}
	if typ == 0 { // a length instead of the type
		return w.typ, slices.Concat(be16(w.vid), body)
	}
	return w.typ, slices.Concat(be16(w.vid), be16(typ), body)
}

// A recipe describes a packet, or the fragments of one.
type recipe struct {
	kind     string
	from, to station
	src      netlab.MAC // source MAC address of the frame
	toAll    bool
	wraps    []wrap
	hardware byte   // hardware type of ARP
	options  int    // 32-bit words of IPv4 options
	headers  []byte // IPv6 extension headers
	pieces   int    // number of fragments, of at least eight bytes each
	piece    int    // size of each fragment but the last, in bytes
	reversed bool
	pad, cut int // bytes that are added or cut off at the end
	linear   int // bytes behind the Ethernet header in the kernel's first buffer
	disguise disguise
	fragment fragment
	size     int // approximate payload, in bytes
	claim    claim
	mark     int
}

// A fragment has the fields by which a whole packet claims to be a piece of another one.
type fragment struct {
	id     int
	offset int // in bytes; a multiple of eight if more
	more   bool
	says   bool // for IPv6: it has a fragment header, even if that says that the packet is whole
}

// A claim is the header that a tap's program attaches to the packet. It depends on the packet's
// disguise, too.
type claim struct {
	on  bool
	put netlab.Claim
	// The places of the upper header and of its checksum, relative to the place that the IP
	// header implies.
	start, offset int
	right         bool // the places are right
	quoted        bool // the places are right for a packet that an ICMP error quotes
}

// A disguise replaces two bytes of a packet, until its checksum is written there.
type disguise struct {
	at    int    // offset of the two bytes, 0 for none
	start int    // start of the bytes that the checksum covers
	other uint16 // difference to the original bytes
}

func (r recipe) String() string {
	var names []string
	for _, w := range r.wraps {
		names = append(names, w.name)
	}
	s := fmt.Sprintf("%s from %v", r.kind, r.src)
	if r.toAll {
		s += " to all"
	}
	s += fmt.Sprintf(", of %v and %v, behind %d [%s], linear %d", r.from.ip4, r.from.ip6, len(names), strings.Join(names, " "), r.linear)
	for _, more := range []struct {
		what string
		n    int
	}{{"options", r.options}, {"pieces", r.pieces}, {"padded", r.pad}, {"cut off", r.cut}, {"headers", len(r.headers)}} {
		if more.n > 0 {
			s += fmt.Sprintf(", %s %d", more.what, more.n)
		}
	}
	if d := r.disguise; d.at > 0 {
		s += fmt.Sprintf(", at %d %04x other until its checksum from %d is made", d.at, d.other, d.start)
	}
	if f := r.fragment; f.says {
		s += fmt.Sprintf(", fragment at %d of %d, more %v", f.offset, f.id, f.more)
	}
	if r.size > 0 {
		s += fmt.Sprintf(", carries %d", r.size)
	}
	if c := r.claim; c.on {
		s += fmt.Sprintf(", claims %+v, right %v, quoted %v, start %d, offset %d", c.put, c.right, c.quoted, c.start, c.offset)
	}
	if r.hardware > 1 {
		s += fmt.Sprintf(", hardware type %d", r.hardware)
	}
	return s
}

// GoString has rapid print recipes as text.
func (r recipe) GoString() string { return r.String() }

// magic precedes the number of a packet in its payload.
const magic = "bascule oracle "

// packets returns the packets of the recipe.
func (r recipe) packets() (list []netlab.Packet) {
	k := kinds[r.kind]
	tail := slices.Concat([]byte(magic), be32(r.mark))
	tail = slices.Repeat(tail, 1+r.size/len(tail))
	body := k.make(r.from, r.to, tail)
	for _, body := range r.split(k.typ, r.extend(k.typ, body)) {
		typ, length := k.typ, len(body)
		for i := len(r.wraps) - 1; i >= 0; i-- {
			typ, body = r.wraps[i].around(typ, body)
		}
		dst := r.to.mac
		if r.toAll {
			dst = k.group
		}
		frame := slices.Concat(dst[:], r.src[:])
		if typ != 0 {
			frame = append(frame, be16(typ)...)
		}
		at := len(frame) + len(body) - length
		frame = append(frame, body...)
		frame = append(frame, zeros(r.pad)...)
		frame = frame[:max(14, len(frame)-r.cut)]
		frame = frame[:min(len(frame), netlab.LargestPacket)]
		p := netlab.Packet{Frame: frame}
		if d := r.disguise; d.at > 0 && d.at+2 <= len(frame) && len(frame)+3 <= netlab.LargestPacket {
			other := binary.BigEndian.Uint16(frame[d.at:]) ^ d.other
			if unfinished, _, ok := netlab.Unfinished(frame, d.at, [2]byte(be16(int(other))), d.start); ok {
				p = unfinished
			}
		}
		p.Linear = min(14+r.linear, len(p.Frame))
		if r.claim.on {
			p.Claim = r.claim.of(p, at)
		}
		list = append(list, p)
	}
	if r.reversed {
		slices.Reverse(list)
	}
	return list
}

// of returns the claim for a packet whose IP header begins at offset at.
func (c claim) of(p netlab.Packet, at int) *netlab.Claim {
	put := c.put
	upper, sum := at+20, 16
	if at+7 <= len(p.Frame) && p.Frame[at]>>4 == 6 {
		upper = at + 40
	}
	if put.GSO == netlab.ClaimGSOUDP || put.GSO == netlab.ClaimGSOUDPL4 || c.quoted {
		sum = 6
	}
	put.Start, put.Offset = upper, sum
	if c.quoted {
		put.Start += 8 + upper - at
	}
	switch {
	case p.Sum.Start > 0:
		put.Flags |= netlab.ClaimNeedsCsum
		put.Start, put.Offset = p.Sum.Start, p.Sum.Offset
	case !c.right:
		put.Start, put.Offset = c.start, c.offset
	}
	put.Outer, put.Inner = put.Outer+upper, put.Inner+upper
	if put.Header == 0 {
		put.Header = p.Linear
	}
	return &put
}

// extend adds options to IPv4, adds headers to IPv6, and changes ARP.
func (r recipe) extend(typ int, body []byte) []byte {
	place := r.fragment.offset
	if r.fragment.more {
		place |= 1
	}
	switch {
	case typ == unix.ETH_P_IP && r.fragment.says:
		copy(body[4:], be16(r.fragment.id))
		copy(body[6:], be16(place>>3|place&1<<13))
		finish4(body)
	case typ == unix.ETH_P_IPV6 && r.fragment.says:
		h := slices.Concat([]byte{body[6], 0}, be16(place), be32(r.fragment.id))
		body = slices.Concat(body[:40], h, body[40:])
		body[6] = 44
		copy(body[4:], be16(len(body)-40))
	case typ == unix.ETH_P_ARP || typ == unix.ETH_P_RARP:
		body[1] = r.hardware
	case typ == unix.ETH_P_IP && r.options > 0:
		nops := slices.Repeat([]byte{1}, 4*r.options)
		body = slices.Concat(body[:20], nops, body[20:])
		body[0] = 0x45 + byte(r.options)
		binary.BigEndian.PutUint16(body[2:], uint16(len(body)))
		finish4(body)
	case typ == unix.ETH_P_IPV6 && len(r.headers) > 0:
		next, rest := body[6], body[40:]
		for i := len(r.headers) - 1; i >= 0; i-- {
			h := []byte{next, 0, 1, 4, 0, 0, 0, 0} // padding is its only option
			switch r.headers[i] {
			case 44: // a fragment header: the whole packet
				h = []byte{next, 0, 0, 0, 0, 0, 0, byte(r.mark)}
			case 43: // a routing header without segments left
				h = []byte{next, 0, 4, 0, 0, 0, 0, 0}
			}
			rest, next = append(h, rest...), r.headers[i]
		}
		body = append(body[:40:40], rest...)
		body[6] = next
		binary.BigEndian.PutUint16(body[4:], uint16(len(rest)))
	}
	return body
}

// finish4 fills in the checksum of an IPv4 header.
func finish4(body []byte) {
	h := body[:int(body[0]&15)*4]
	copy(h[10:], []byte{0, 0})
	binary.BigEndian.PutUint16(h[10:], sum(0, h))
}

// split splits an IP packet into fragments.
func (r recipe) split(typ int, body []byte) (list [][]byte) {
	if r.pieces < 2 || (typ != unix.ETH_P_IP && typ != unix.ETH_P_IPV6) {
		return [][]byte{body}
	}
	at, next := 40, byte(0)
	if typ == unix.ETH_P_IP {
		at = int(body[0]&15) * 4
	} else if next = body[6]; next == 0 { // each fragment has the hop-by-hop header
		at, next = at+8, body[40]
	}
	payload := body[at:]
	for n, offset := 0, 0; offset < len(payload); n++ {
		size := r.piece
		if n == r.pieces-1 || size > len(payload)-offset {
			size = len(payload) - offset
		}
		more := 0
		if offset+size < len(payload) {
			more = 1
		}
		p := slices.Clone(body[:at])
		if typ == unix.ETH_P_IP {
			binary.BigEndian.PutUint16(p[4:], uint16(r.mark))
			binary.BigEndian.PutUint16(p[6:], uint16(more<<13|offset/8))
			binary.BigEndian.PutUint16(p[2:], uint16(at+size))
			finish4(p)
		} else {
			if at == 40 {
				p[6] = 44
			} else {
				p[40] = 44
			}
			binary.BigEndian.PutUint16(p[4:], uint16(at-40+8+size))
			p = slices.Concat(p, []byte{next, 0}, be16(offset|more), be32(r.mark))
		}
		list = append(list, append(p, payload[offset:offset+size]...))
		offset += size
	}
	return list
}

func sampled[V any](t *rapid.T, what string, of ...V) V { return rapid.SampledFrom(of).Draw(t, what) }

// wrapped draws the headers in front of a packet. Often these are only priority tags, which
// stations skip at any number.
func wrapped(t *rapid.T) []wrap {
	depth := rapid.IntRange(0, 12).Draw(t, "depth")
	of := wraps[:1]
	switch sampled(t, "wraps", 0, 0, 0, 1, 1, 2) {
	case 1:
		of = wraps[:2]
	case 2:
		of = wraps
	}
	list := make([]wrap, depth)
	for i := range list {
		list[i] = of[0]
		if len(of) > 1 {
			list[i] = rapid.SampledFrom(of).Draw(t, "wrap")
		}
	}
	// where the bridge filters VLANs, the oracle gets the frame without it
	if sampled(t, "VLAN", false, false, false, true) {
		list = append([]wrap{sampled(t, "outer", wraps[2:8]...)}, list...)
	}
	return list
}

// claims draws a tap's header for a packet: in most cases a valid one.
func claims(t *rapid.T, tunnels bool) (c claim) {
	c.on = true
	c.put.Flags = sampled[byte](t, "flags", 0, 0, 1, 1, 1, 2, 4, rapid.Byte().Draw(t, "any flags"))
	c.put.GSO = sampled[byte](t, "type", 0, 1, 3, 3, 3, 4, 5, 5, 0x81, 0x83, rapid.Byte().Draw(t, "any type"))
	if tunnels && sampled(t, "tunnel", false, false, false, true) {
		c.put.GSO |= sampled[byte](t, "over", netlab.ClaimGSOTunnel4, netlab.ClaimGSOTunnel6)
		c.put.Outer = sampled(t, "outer", 0, 0, 8, rapid.IntRange(-20, 100).Draw(t, "any outer"))
		c.put.Inner = sampled(t, "inner", 8, 8, 16, 30, rapid.IntRange(-20, 100).Draw(t, "any inner"))
	}
	c.put.Size = sampled(t, "size", 8, 16, 100, 536, 536, 1480, rapid.IntRange(0, 64).Draw(t, "small"), rapid.IntRange(0, 1<<16-1).Draw(t, "any size"))
	c.put.Header = sampled(t, "header", 0, 0, 34, 42, 54, 74, rapid.IntRange(0, 200).Draw(t, "any header"))
	c.right = sampled(t, "right", true, true, true, false)
	c.quoted = sampled(t, "quoted", false, false, false, true)
	c.start, c.offset = rapid.IntRange(0, 120).Draw(t, "start"), sampled(t, "offset", 2, 6, 16, rapid.IntRange(0, 120).Draw(t, "any offset"))
	return c
}

// recipes draws a packet of one of the kinds to a station.
func recipes(of []string, froms []station, to station, by sending) *rapid.Generator[recipe] {
	return rapid.Custom(func(t *rapid.T) recipe {
		r := recipe{
			kind:  rapid.SampledFrom(of).Draw(t, "kind"),
			from:  rapid.SampledFrom(froms).Draw(t, "from"),
			to:    to,
			toAll: rapid.Bool().Draw(t, "to all"),
			wraps: wrapped(t),
			// This many bytes behind the Ethernet header; in most cases all.
			linear:   sampled(t, "linear", 1500, 1500, 1500, 0, 0, 2, 4, 8, 14, 20, 28, 40, 48, 60, 80),
			hardware: sampled[byte](t, "hardware", 1, 1, 1, 6),
			mark:     rapid.IntRange(1, 1<<30).Draw(t, "mark"),
		}
		r.src = r.from.mac
		// Few packets have more than one of these.
		if sampled(t, "more headers", false, false, false, true) {
			r.options = rapid.IntRange(1, 10).Draw(t, "options")
			r.headers = rapid.SliceOfN(rapid.SampledFrom([]byte{60, 43, 44}), 0, 10).Draw(t, "headers")
			if rapid.Bool().Draw(t, "hop by hop") {
				r.headers = append([]byte{0}, r.headers...)
			}
		}
		if sampled(t, "in pieces", false, false, false, false, true) {
			r.pieces = rapid.IntRange(2, 4).Draw(t, "pieces")
			r.piece = 8 * rapid.IntRange(1, 4).Draw(t, "piece")
			r.reversed = rapid.Bool().Draw(t, "reversed")
		}
		if sampled(t, "disguised", false, false, false, true) {
			r.disguise.at = rapid.IntRange(20, 100).Draw(t, "at")
			r.disguise.start = sampled(t, "start", 20, r.disguise.at, rapid.IntRange(20, r.disguise.at).Draw(t, "from"))
			// A small difference leads to another valid address or port.
			r.disguise.other = sampled(t, "other", 1, 2, 3, 0x43, rapid.Uint16Range(1, 1<<16-1).Draw(t, "differs"))
		}
		if by.claims && rapid.Bool().Draw(t, "claims") {
			r.claim = claims(t, by.tunnels)
			// the kernel hardly segments packets behind many tags
			if sampled(t, "bare", true, true, false) {
				r.wraps = nil
			}
			r.size = sampled(t, "carries", 0, 600, 1200, rapid.IntRange(0, 1400).Draw(t, "any length"))
			if sampled(t, "a fragment", false, true, true) {
				// Few IDs, so that the first piece of another packet has the same
				// one.
				r.fragment = fragment{id: rapid.IntRange(1, 3).Draw(t, "id"), more: rapid.Bool().Draw(t, "more"), says: true}
				r.pieces = 0
				r.fragment.offset = 8 * sampled(t, "at eighth", 0, 1, 1, 2, 3, rapid.IntRange(0, 200).Draw(t, "any eighth"))
			}
		}
		switch sampled(t, "twist", 0, 0, 0, 0, 0, 1, 2, 3) {
		case 1:
			r.cut = rapid.IntRange(1, 60).Draw(t, "cut off")
		case 2:
			r.pad = rapid.IntRange(1, 200).Draw(t, "padded")
		case 3:
			r.src = sampled(t, "source", sender.mac, other.mac, nobody.mac)
		}
		return r
	})
}
