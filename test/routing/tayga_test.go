// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// Addresses on both sides of a translation, in both families.
var (
	client6 = netip.MustParseAddr("fd01::2")
	client4 = netip.MustParseAddr("10.0.2.64")
	server4 = netip.MustParseAddr("10.0.2.2")
	server6 = netip.MustParseAddr("2001:db8:64::a00:202")
	router4 = netip.MustParseAddr("10.0.2.9") // on the way to the server
	router6 = netip.MustParseAddr("2001:db8:64::a00:209")
	away6   = netip.MustParseAddr("fd01::9") // on the way to the client
)

// A front is a packet with its IP header.
type front struct {
	tos, ttl, proto byte
	id              uint32
	place           uint16 // offset in units of 8 bytes, and 1<<15 if more fragments follow
	fragment        bool
	df              bool
	more            []byte // options, or extension headers
	next            byte   // type of the first of these
	load            []byte
	src, dst        netip.Addr
}

// packet returns the whole packet.
func (f front) packet() []byte {
	if f.ttl == 0 {
		f.ttl = 64
	}
	if f.src.Is4() {
		b := make([]byte, 20, 20+len(f.more)+len(f.load))
		b[0], b[1], b[8], b[9] = byte(0x45+len(f.more)/4), f.tos, f.ttl, f.proto
		binary.BigEndian.PutUint16(b[2:], uint16(20+len(f.more)+len(f.load)))
		binary.BigEndian.PutUint16(b[4:], uint16(f.id))
		word := f.place&0x1fff | f.place>>15<<13
		if f.df {
			word |= dontFragment
		}
		binary.BigEndian.PutUint16(b[6:], word)
		copy(b[12:], f.src.AsSlice())
		copy(b[16:], f.dst.AsSlice())
		b = append(b, f.more...)
		binary.BigEndian.PutUint16(b[10:], checksum(b))
		return append(b, f.load...)
	}
	more := f.more
	next := f.proto
	if f.next != 0 || len(more) > 0 {
		next = f.next
	}
	if f.fragment {
		h := []byte{f.proto, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(h[2:], f.place<<3|f.place>>15)
		binary.BigEndian.PutUint32(h[4:], f.id)
		more = slices.Concat(more, h)
		if len(f.more) == 0 {
			next = unix.IPPROTO_FRAGMENT
		}
	}
	b := make([]byte, 40)
	binary.BigEndian.PutUint32(b, 6<<28|uint32(f.tos)<<20)
	binary.BigEndian.PutUint16(b[4:], uint16(len(more)+len(f.load)))
	b[6], b[7] = next, f.ttl
	copy(b[8:], f.src.AsSlice())
	copy(b[24:], f.dst.AsSlice())
	return slices.Concat(b, more, f.load)
}

// sums returns the sum of a packet's payload and its pseudo-header.
func (f front) sums(load []byte) uint16 {
	length := binary.BigEndian.AppendUint32(nil, uint32(len(load)))
	return sumOf(slices.Concat(f.src.AsSlice(), f.dst.AsSlice(), length, []byte{0, f.proto}, load))
}

// udp sets a datagram of size bytes as the payload.
func (f front) udp(from, to uint16, size int) front {
	f.proto = unix.IPPROTO_UDP
	f.load = make([]byte, 8+size)
	for i := range size {
		f.load[8+i] = byte(i)
	}
	binary.BigEndian.PutUint16(f.load, from)
	binary.BigEndian.PutUint16(f.load[2:], to)
	binary.BigEndian.PutUint16(f.load[4:], uint16(len(f.load)))
	binary.BigEndian.PutUint16(f.load[6:], ^f.sums(f.load))
	return f
}

// icmp sets a message as the payload: type, code, the next word, and the rest.
func (f front) icmp(kind, code byte, word uint32, load []byte) front {
	f.proto = unix.IPPROTO_ICMP
	if f.src.Is6() {
		f.proto = unix.IPPROTO_ICMPV6
	}
	f.load = append(binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, word), load...)
	sum := sumOf(f.load)
	if f.src.Is6() {
		sum = f.sums(f.load)
	}
	binary.BigEndian.PutUint16(f.load[2:], ^sum)
	return f
}

// piece returns a fragment with the payload from one offset to another.
func (f front) piece(id uint32, from, to int) front {
	f.fragment, f.id, f.place = true, id, uint16(from/8)
	if to < len(f.load) {
		f.place |= 1 << 15
	}
	f.load = f.load[from:to]
	return f
}

// A translated is a packet and its translation, or nil if there is none.
type translated struct {
	name   string
	packet front
	want   []byte
	known  bool // tayga has another result, as the comment says
}

func out6() front { return front{src: client6, dst: server6} }
func out4() front { return front{src: client4, dst: server4} }
func in4() front  { return front{src: server4, dst: client4} }
func in6() front  { return front{src: server6, dst: client6} }

// older returns the packet after one more hop.
func (f front) older() front {
	if f.ttl == 0 {
		f.ttl = 64
	}
	f.ttl--
	return f
}

const clientPort, serverPort = 5000, 7

// outward are packets from the client, inward packets to it.
func outward() []translated {
	big := out6().udp(clientPort, serverPort, 2000)
	big4 := out4().udp(clientPort, serverPort, 2000)
	with := func(f front, change func(f *front)) front { change(&f); return f }
	hop := []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}
	echo := out6().icmp(128, 0, 5000<<16|1, []byte("echo"))
	return []translated{
		{name: "plain", packet: out6().udp(clientPort, serverPort, 10), want: out4().udp(clientPort, serverPort, 10).older().packet()},
		{name: "traffic class", packet: with(out6().udp(clientPort, serverPort, 11), func(f *front) { f.tos = 0xb9 }),
			want: with(out4().udp(clientPort, serverPort, 11).older(), func(f *front) { f.tos = 0xb9 }).packet()},
		{name: "1280 bytes", packet: out6().udp(clientPort, serverPort, 1232), want: out4().udp(clientPort, serverPort, 1232).older().packet()},
		{name: "1281 bytes", packet: out6().udp(clientPort, serverPort, 1233),
			want: with(out4().udp(clientPort, serverPort, 1233).older(), func(f *front) { f.df = true }).packet()},
		{name: "first fragment", packet: big.piece(0x12345678, 0, 1200), want: big4.piece(0x5678, 0, 1200).older().packet()},
		{name: "last fragment", packet: big.piece(0x12345678, 1200, 2008), want: big4.piece(0x5678, 1200, 2008).older().packet()},
		{name: "all in one fragment", packet: out6().udp(clientPort, serverPort, 12).piece(0x9abc, 0, 20),
			want: out4().udp(clientPort, serverPort, 12).piece(0x9abc, 0, 20).older().packet()},
		{name: "hop-by-hop options", packet: with(out6().udp(clientPort, serverPort, 13), func(f *front) { f.more, f.next = hop, 0 }),
			want: out4().udp(clientPort, serverPort, 13).older().packet()},
		{name: "options in front of a fragment", packet: with(big.piece(0x5679, 0, 1200), func(f *front) {
			f.more, f.next = []byte{unix.IPPROTO_FRAGMENT, 0, 1, 4, 0, 0, 0, 0}, unix.IPPROTO_DSTOPTS
		}), want: big4.piece(0x5679, 0, 1200).older().packet()},
		// tayga does not move them, and treats them like the bytes behind an IPv4 header.
		{name: "options behind a fragment", known: true, packet: with(big.piece(0x567a, 0, 1200), func(f *front) {
			f.proto, f.load = unix.IPPROTO_DSTOPTS, slices.Concat(hop, f.load)
		})},
		{name: "routing header that is at its end", packet: with(out6().udp(clientPort, serverPort, 14), func(f *front) {
			f.more, f.next = []byte{unix.IPPROTO_UDP, 0, 4, 0, 0, 0, 0, 0}, unix.IPPROTO_ROUTING
		}), want: out4().udp(clientPort, serverPort, 14).older().packet()},
		{name: "routing header that is not", known: true, packet: with(out6().udp(clientPort, serverPort, 15), func(f *front) {
			f.more, f.next = []byte{unix.IPPROTO_UDP, 0, 4, 1, 0, 0, 0, 0}, unix.IPPROTO_ROUTING
		})},
		// It would lose its meaning.
		{name: "authentication header", known: true, packet: with(out6().udp(clientPort, serverPort, 16), func(f *front) {
			f.more, f.next = append([]byte{unix.IPPROTO_UDP, 4}, make([]byte, 22)...), unix.IPPROTO_AH
		})},
		{name: "echo", packet: echo, want: out4().icmp(8, 0, 5000<<16|1, []byte("echo")).older().packet()},
		{name: "echo in fragments", packet: with(echo, func(f *front) { *f = f.piece(0x5680, 0, 8) })},
		{name: "hop limit at its end", packet: with(out6().udp(clientPort, serverPort, 17), func(f *front) { f.ttl = 1 })},
		{name: "error: port unreachable", packet: out6().icmp(1, 4, 0, in6().udp(serverPort, clientPort, 20).packet()),
			want: out4().icmp(3, 3, 0, in4().udp(serverPort, clientPort, 20).packet()).older().packet()},
		// tayga uses an address of its own, as it has none for that router, and quotes less.
		{name: "error: too big", known: true, packet: front{src: away6, dst: server6}.icmp(2, 0, 1400, in6().udp(serverPort, clientPort, 1000).packet()),
			want: out4().icmp(3, 4, 1380, in4().udp(serverPort, clientPort, 1000).packet()).older().packet()},
	}
}

func inward() []translated {
	with := func(f front, change func(f *front)) front { change(&f); return f }
	big := in4().udp(serverPort, clientPort, 2000)
	big6 := in6().udp(serverPort, clientPort, 2000)
	none := func(f *front) { f.load = slices.Clone(f.load); clear(f.load[6:8]) }
	options := func(b ...byte) func(f *front) { return func(f *front) { f.more = b } }
	return []translated{
		{name: "plain", packet: in4().udp(serverPort, clientPort, 10), want: in6().udp(serverPort, clientPort, 10).older().packet()},
		{name: "DF and TOS", packet: with(in4().udp(serverPort, clientPort, 11), func(f *front) { f.df, f.tos = true, 0x46 }),
			want: with(in6().udp(serverPort, clientPort, 11).older(), func(f *front) { f.tos = 0x46 }).packet()},
		{name: "no checksum", packet: with(in4().udp(serverPort, clientPort, 12), none), known: true,
			want: in6().udp(serverPort, clientPort, 12).older().packet()},
		{name: "first fragment", packet: big.piece(0x5678, 0, 1200), want: big6.piece(0x5678, 0, 1200).older().packet()},
		{name: "last fragment", packet: big.piece(0x5678, 1200, 2008), want: big6.piece(0x5678, 1200, 2008).older().packet()},
		{name: "first fragment without a checksum", packet: with(big, none).piece(0x5679, 0, 1200)},
		{name: "options", packet: with(in4().udp(serverPort, clientPort, 13), options(1, 148, 4, 0, 0, 0, 0, 0)),
			want: in6().udp(serverPort, clientPort, 13).older().packet()},
		{name: "options of a fragment", packet: with(big.piece(0x567a, 0, 1200), options(1, 1, 1, 0)),
			want: big6.piece(0x567a, 0, 1200).older().packet()},
		{name: "source route", known: true, packet: with(in4().udp(serverPort, clientPort, 14), options(1, 131, 7, 4, 10, 0, 2, 2))},
		{name: "strict source route", known: true, packet: with(in4().udp(serverPort, clientPort, 14), options(137, 7, 4, 10, 0, 2, 2, 0))},
		{name: "option of no length", known: true, packet: with(in4().udp(serverPort, clientPort, 14), options(7, 0, 0, 0))},
		{name: "error: fragmentation needed", packet: front{src: router4, dst: client4}.icmp(3, 4, 1400, out4().udp(clientPort, serverPort, 100).packet()),
			want: front{src: router6, dst: client6}.icmp(2, 0, 1420, out6().udp(clientPort, serverPort, 100).packet()).older().packet()},
		{name: "error: fragmentation needed, little", packet: front{src: router4, dst: client4}.icmp(3, 4, 600, out4().udp(clientPort, serverPort, 100).packet()),
			want: front{src: router6, dst: client6}.icmp(2, 0, 1280, out6().udp(clientPort, serverPort, 100).packet()).older().packet()},
		// tayga quotes it as if it were no fragment.
		{name: "error: time exceeded about a fragment", known: true, packet: front{src: router4, dst: client4}.icmp(11, 0, 0, out4().udp(clientPort, serverPort, 100).piece(7, 0, 56).packet()),
			want: front{src: router6, dst: client6}.icmp(3, 0, 0, out6().udp(clientPort, serverPort, 100).piece(7, 0, 56).packet()).older().packet()},
	}
}

// plain returns an IP packet without the values that a translator chooses: the IPv4 identification,
// if it is no fragment, with the header's checksum; and the identifier of an echo, whose checksum is
// verified instead.
func plain(b []byte, quoted bool) string {
	b = slices.Clone(b)
	at := 40
	if b[0]>>4 == 4 {
		at = int(b[0]&15) * 4
		if !quoted && sumOf(b[:at]) != 0xffff {
			return fmt.Sprintf("wrong checksum of the header: % x", b)
		}
		if binary.BigEndian.Uint16(b[6:])&0x3fff == 0 {
			clear(b[4:6])
		}
		clear(b[10:12])
	}
	if quoted && b[0]>>4 == 4 {
		b[6] &^= 0x40 // DF: see where tayga's packets are compared
	}
	kind, proto := b[min(at, len(b)-1)], b[6]
	if b[0]>>4 == 4 {
		proto = b[9]
	}
	echo := proto == unix.IPPROTO_ICMP && (kind == 8 || kind == 0) || proto == unix.IPPROTO_ICMPV6 && (kind == 128 || kind == 129)
	if icmp := proto == unix.IPPROTO_ICMP || proto == unix.IPPROTO_ICMPV6; icmp && !quoted {
		f := front{proto: proto}
		sum := sumOf(b[at:])
		if b[0]>>4 == 6 {
			f.src, f.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
			sum = f.sums(b[at:])
		}
		if sum != 0xffff {
			return fmt.Sprintf("wrong checksum of ICMP: % x", b)
		}
		clear(b[at+2 : at+4])
		if echo {
			clear(b[at+4 : at+6])
		} else {
			rest := plain(b[at+8:], true)
			return hex.EncodeToString(b[:at+8]) + " " + rest
		}
	}
	return hex.EncodeToString(b)
}

// ethernet returns the packet on its way from a side's station to the host.
func (s *site) ethernet(side int, packet []byte) netlab.Frame {
	typ := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		typ = unix.ETH_P_IPV6
	}
	return netlab.Frame(slices.Concat(s.sides[side].mac[:], s.sides[side].end.MAC[:], binary.BigEndian.AppendUint16(nil, typ), packet))
}

// crosses returns the packet as it arrives at the other side's station, or nil.
func (s *site) crosses(side int, packet []byte) []byte {
	s.t.Helper()
	drops := func() (n uint64) {
		for _, p := range s.lab.Ports("br0") {
			for _, d := range p.Drops {
				n += d
			}
		}
		return n
	}
	before := drops()
	var got []byte
	take := func(frames []netlab.Frame) {
		for _, f := range frames {
			b := []byte(f)
			if typ := binary.BigEndian.Uint16(b[12:]); typ != unix.ETH_P_IP && typ != unix.ETH_P_IPV6 || b[14]>>4 == packet[0]>>4 || s.normal(b) == "" {
				continue
			}
			if got != nil {
				s.t.Errorf("a second packet: % x", b)
			}
			got = b[14:]
		}
	}
	take(s.lab.Deliver(s.sides[side].end, s.ethernet(side, packet))[s.sides[1-side].end])
	s.lab.Wait("a packet to arrive, or to be counted", func() bool {
		if got == nil && drops() == before {
			take(s.sides[1-side].end.Received())
			return got != nil
		}
		return true
	})
	return got
}

// A tayga is a tayga process in the host's network namespace, with the packets of its device.
type tayga struct {
	s  *site
	fd int
	to unix.SockaddrLinklayer
}

func (s *site) tayga(t *testing.T) *tayga {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "tayga.conf")
	s.must(os.WriteFile(file, []byte("tun-device nat64\nipv4-addr 192.168.255.1\nprefix 2001:db8:64::/96\ndata-dir "+dir+"\n"+
		"map 10.0.2.64 fd01::2\n"), 0o600))
	ns := s.lab.NewNamespace()
	_, err := ns.Output(context.Background(), ends.AnyCPU, "tayga", "-c", file, "--mktun")
	s.must(err)
	s.must(ns.Do(func() error { return sysctl(map[string]string{"ipv6/conf/nat64/disable_ipv6": "0"}) }))
	nl := ns.Netlink()
	link, err := nl.LinkByName("nat64")
	s.must(err)
	s.must(nl.LinkSetUp(link))
	daemon(t, ns, "tayga", "-d", "-c", file)
	y := &tayga{s: s, to: unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}}
	s.must(ns.Do(func() (err error) {
		if y.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(y.fd, &unix.SockaddrLinklayer{Ifindex: y.to.Ifindex, Protocol: htons(unix.ETH_P_ALL)})
	}))
	s.t.Cleanup(func() { unix.Close(y.fd) })
	s.lab.Wait("tayga to have its device", func() bool {
		link, err := nl.LinkByName("nat64")
		return err == nil && link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
	})
	return y
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// crosses returns the translated packet, or nil if none arrives within an ample time.
func (y *tayga) crosses(packet []byte) []byte {
	y.s.t.Helper()
	typ := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		typ = unix.ETH_P_IPV6
	}
	to := y.to
	to.Protocol = htons(typ)
	y.s.must(unix.Sendto(y.fd, packet, 0, &to))
	// A second packet, whose answer shows that the first one was processed.
	marker := out6().udp(clientPort, serverPort, 1).packet()
	to.Protocol = htons(unix.ETH_P_IPV6)
	y.s.must(unix.Sendto(y.fd, marker, 0, &to))
	deadline := time.Now().Add(patience)
	var got []byte
	buf := make([]byte, 65536)
	for time.Now().Before(deadline) {
		y.s.must(unix.SetsockoptTimeval(y.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
		n, from, err := unix.Recvfrom(y.fd, buf, 0)
		if err == syscall.EAGAIN {
			continue
		}
		y.s.must(err)
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		b := slices.Clone(buf[:n])
		if len(b) == 20+8+1 && b[0]>>4 == 4 && netip.AddrFrom4([4]byte(b[16:])) == server4 {
			return got
		}
		if b[0]>>4 != packet[0]>>4 && got == nil {
			got = b
		}
	}
	y.s.t.Fatal("tayga does not answer")
	return nil
}

// Packets in the other family are as RFC 7915 says, byte by byte, and as tayga, another translator,
// makes them.
func TestFamilyLikeTayga(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.load("pass allow-opts\npass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from 10.0.2.64 port 5000 allow-opts\n")
	y := s.tayga(t)
	for side, list := range [][]translated{outward(), inward()} {
		for _, c := range list {
			what := map[int]string{0: "to IPv4", 1: "to IPv6"}[side] + ", " + c.name
			packet := c.packet.packet()
			text := func(b []byte) string {
				if b == nil {
					return "nothing"
				}
				return plain(b, false)
			}
			theirs := y.crosses(packet)
			got, want, other := text(s.crosses(side, packet)), text(c.want), text(theirs)
			if got != want {
				t.Errorf("%s: % x becomes\n%s, want\n%s, and with tayga\n%s", what, packet, got, want, other)
			}
			if len(theirs) > 20 && len(c.want) > 20 && theirs[0]>>4 == 4 {
				// tayga sets DF where RFC 7915, 5.1, does not.
				theirs[6] = theirs[6]&^0x40 | c.want[6]&0x40
				binary.BigEndian.PutUint16(theirs[10:], 0)
				binary.BigEndian.PutUint16(theirs[10:], checksum(theirs[:20]))
				other = text(theirs)
			}
			if (other != want) != c.known {
				t.Errorf("%s: tayga makes of it\n%s, want\n%s; known %v", what, other, want, c.known)
			}
		}
	}
}

// A packet that cannot be forwarded in the other family is dropped, and its sender gets an error in
// its own family. An MTU in the error is the sender's family's. If the sender may fragment the
// packet, it is the MTU for a fragment.
func TestFamilyRefused(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.load("pass allow-opts\npass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from 10.0.2.64 allow-opts\n" +
			"pass in on gw1 inet to 10.3.9.9 af-to inet6 from fd02::64 to fd03::1 allow-opts\n")
		// Behind an MTU of 1440.
		far6, far4 := netip.MustParseAddr("2001:db8:64::a03:101"), netip.MustParseAddr("10.3.9.9")
		from6 := front{src: client6, dst: far6}
		from4 := front{src: netip.MustParseAddr("10.0.1.2"), dst: far4}
		with := func(f front, change func(f *front)) front { change(&f); return f }
		cut := func(f *front) { f.df = true }
		for i, c := range []struct {
			name   string
			packet front
			want   icmp   // zero: it arrives
			word   uint32 // the second word of the message
		}{
			{"1460 bytes of IPv6", from6.udp(9, 9, 1460-48), icmp{}, 0},
			{"1461 bytes of IPv6", from6.udp(9, 9, 1461-48), icmp{2, 0}, 1460},
			{"1420 bytes of IPv4", with(from4.udp(9, 9, 1420-28), cut), icmp{}, 0},
			{"1421 bytes of IPv4", with(from4.udp(9, 9, 1421-28), cut), icmp{3, 4}, 1420},
			{"1421 bytes of IPv4 that may be cut", from4.udp(9, 9, 1421-28), icmp{3, 4}, 1412},
			{"1412 bytes of a fragment", from4.udp(9, 9, 2000).piece(1, 0, 1392), icmp{}, 0},
			{"1420 bytes of a fragment", from4.udp(9, 9, 2000).piece(2, 0, 1400), icmp{3, 4}, 1412},
			{"hop limit of 1", with(from6.udp(9, 9, 1), func(f *front) { f.ttl = 1 }), icmp{3, 0}, 0},
			{"time to live of 1", with(from4.udp(9, 9, 1), func(f *front) { f.ttl = 1 }), icmp{11, 0}, 0},
			{"source route", with(from4.udp(9, 9, 1), func(f *front) { f.more = []byte{131, 7, 4, 10, 0, 2, 2, 0} }), icmp{3, 5}, 0},
			{"routing header", with(from6.udp(9, 9, 1), func(f *front) {
				f.more, f.next = []byte{unix.IPPROTO_UDP, 0, 4, 1, 0, 0, 0, 0}, unix.IPPROTO_ROUTING
			}), icmp{4, 0}, 43},
		} {
			got := s.lab.Deliver(s.sides[0].end, s.ethernet(0, c.packet.packet()))
			var errors, arrived int
			for _, f := range got[s.sides[0].end] {
				e, six := errorOf(f)
				if e == (icmp{}) || six != c.packet.src.Is6() {
					continue
				}
				errors++
				at := 14 + 20
				if six {
					at = 14 + 40
				}
				if word := binary.BigEndian.Uint32([]byte(f)[at+4:]); e != c.want || word != c.word {
					t.Errorf("%s: the sender hears %v with %d, want %v with %d", c.name, e, word, c.want, c.word)
				}
				if sum := icmpSum([]byte(f), six); sum != 0xffff {
					t.Errorf("%s: the error has a wrong checksum", c.name)
				}
			}
			for _, f := range got[s.sides[1].end] {
				if s.normal([]byte(f)) != "" {
					arrived++
				}
			}
			if lost := c.want != (icmp{}); arrived != 1 && !lost || arrived > 0 && lost || errors != 1 && lost || errors > 0 && !lost {
				t.Errorf("%d, %s: %d arrive, and the sender hears of %d", i, c.name, arrived, errors)
			}
		}
	})
}
