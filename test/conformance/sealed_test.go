// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// The delivered frame is the frame that filters have examined.
var sealedCases = []conformance{
	{name: "unfinished_checksum", hooks: both, run: unfinishedChecksum},
	{name: "unfinished_header", hooks: tcx, run: unfinishedHeader},
	{name: "unfinished_tunnel", hooks: tcx, run: unfinishedTunnel},
	{name: "shared_pages", hooks: both, run: sharedPages},
	{name: "cut_anew", hooks: tcx, run: cutAnew},
	{name: "cut_ports", hooks: tcx, run: cutPorts},
}

type sealHolder struct {
	holder
	innocent netlab.Frame // of the same length; if it is empty, only the changing bytes differ
}

// sealHolders are filters for frames with bytes that change at any place, and frames that pass: the
// frame looks like these until its bytes change.
var sealHolders = []sealHolder{
	{pfHolder("pf port", ipPackets, "pass\nblock drop in proto udp to port 4000\n"), ""},
	{pfHolder("pf port, SNAP", []netlab.Frame{inSNAP(anIPv4, "\x00\x00\x00").Tagged(0, 0).Tagged(0, 0)}, "pass\nblock drop in proto udp to port 4000\n"), ""},
	{pfHolder("pf port and no other", ipPackets, "block drop\npass proto udp to port 80\n"),
		udp4(B, A, "10.0.0.66", "10.0.0.2", [2]int{5000, 80}, 1, 2, 3, 4)},
	{pfHolder("pf address", ipPackets, "pass\nblock drop in from { 10.0.0.66 fe80::66 }\n"), ""},
	{pfHolder("pf address out", ipPackets, "pass\nblock drop out from { 10.0.0.66 fe80::66 }\n"), ""},
	{pfHolder("ether", packetsIn(2), "ether block in proto { 0x0800 0x86dd 0x0806 }\n"), ""},
	{pfHolder("ether l3", ipPackets, "ether block in l3 from 10.0.0.66\nether block in l3 from fe80::66\n"), ""},
	{holder{name: "rule arp", holds: []netlab.Frame{anARP, anARP.Tagged(0, 0).Tagged(0, 0)}, on: bascule("rule add br0 p1 block in arp spa 10.0.0.66"), off: bascule("rule flush br0")}, ""},
	{holder{name: "rule arp out", holds: []netlab.Frame{anARP}, on: bascule("rule add br0 p2 block out arp reply"), off: bascule("rule flush br0")}, ""},
	{holder{name: "source guard", holds: packets, on: func(t *testing.T, l *netlab.Lab) {
		bind := []string{"binding", "add", "br0", "p1", A.String()}
		if l.Bridge("br0").VLANFiltering {
			bind = append(bind, "--vlan", "1")
		}
		l.Bascule(append(bind, "10.0.0.65")...)
		l.Bascule(append(bind, "fe80::65")...)
		l.Bascule("port", "set", "br0", "p1", "--source-guard")
	}, off: func(t *testing.T, l *netlab.Lab) {
		l.Bascule("port", "set", "br0", "p1", "--source-guard=off")
		l.Bascule("binding", "flush", "br0")
	}}, ""},
	{holder{name: "DHCP guard", holds: []netlab.Frame{anOffer}, on: bascule("bridge set br0 --dhcp-guard"), off: bascule("bridge set br0 --dhcp-guard=off")}, ""},
	{holder{name: "RA guard", holds: []netlab.Frame{anAdvert}, on: bascule("bridge set br0 --ra-guard"), off: bascule("bridge set br0 --ra-guard=off")}, ""},
	{holder{name: "non-IP", holds: []netlab.Frame{noPacket.Tagged(0, 0).Tagged(0, 0)}, on: bascule("port set br0 p1 --block-non-ip"), off: bascule("port set br0 p1 --block-non-ip=off")},
		etherFrame(B, A, typeIPv4).Tagged(0, 0).Tagged(0, 0)},
}

// packetsIn returns the packets behind a number of priority tags.
func packetsIn(tags int) (list []netlab.Frame) {
	for _, f := range packets {
		for range tags {
			f = f.Tagged(0, 0)
		}
		list = append(list, f)
	}
	return list
}

// disguises returns values for the two bytes at a place until the checksum is written there.
func disguises(f, innocent netlab.Frame, at int) [][2]byte {
	list := [][2]byte{{^f[at], ^f[at+1]}, {f[at], f[at+1] ^ 3}}
	if len(innocent) == len(f) {
		list = append(list, [2]byte{innocent[at], innocent[at+1]})
	}
	return list
}

// untagged returns the frame without its priority tags. A bridge with VLANs removes one of them.
func untagged(f netlab.Frame) netlab.Frame {
	for strings.HasPrefix(string(f[12:]), "\x81\x00\x00\x00") {
		f = f[:12] + f[16:]
	}
	return f
}

// A trick is a packet with an unfinished checksum, and the frame that results.
type trick struct {
	packet  netlab.Packet
	becomes netlab.Frame
	said    string
}

// tricksOf returns the tricks that result in one of some frames.
func tricksOf(frames []netlab.Frame, innocent netlab.Frame) (list []trick) {
	for _, f := range frames {
		for at := 20; at+2 <= len(f); at += 2 {
			for _, start := range []int{20, at} {
				for _, other := range disguises(f, innocent, at) {
					p, becomes, ok := netlab.Unfinished([]byte(f), at, other, start)
					if ok {
						list = append(list, trick{p, untagged(netlab.Frame(becomes)), fmt.Sprintf("%x from %d at %d", other, start, at)})
					}
				}
			}
		}
	}
	return list
}

// unfinishedChecksum: the sender of an unfinished checksum chooses its place, and the kernel writes it
// there after all filters. This must not produce a frame that a filter would have held back.
func unfinishedChecksum(t *testing.T, hook string) {
	bridges := [][]string{nil, {"--vlan-filtering", "--qinq"}}
	if hook == "xdp" { // the sender's device completes the checksum
		bridges = bridges[:1]
	}
	for _, flags := range bridges {
		t.Run(strings.Join(append([]string{"bridge"}, flags...), " "), func(t *testing.T) {
			l, ends := setup(t, hook, 2, flags...)
			a, b := ends[0], ends[1]
			b.FinishChecksums()
			learn(l, a, A)
			learn(l, b, B)
			l.Flush()
			ring := a.NewRing()
			var list []holder
			for _, h := range sealHolders {
				list = append(list, h.holder)
			}
			eachHolder(t, l, list, func(h holder, on bool) {
				i := slices.IndexFunc(sealHolders, func(s sealHolder) bool { return s.name == h.name })
				tricks := tricksOf(h.holds, sealHolders[i].innocent)
				var all []netlab.Packet
				for _, trick := range tricks {
					all = append(all, trick.packet)
				}
				got := map[netlab.Frame]bool{}
				ring.Send(all, func() {
					for _, f := range b.Received() {
						got[untagged(f)] = true
					}
				})
				// The frames that have become the intended ones.
				passed := slices.DeleteFunc(slices.Clone(tricks), func(trick trick) bool { return !got[trick.becomes] })
				if !on && len(passed) < len(tricks)/2 {
					t.Errorf("%s: without it %d of %d frames become what they are to", h.name, len(passed), len(tricks))
				}
				if on && len(passed) > 0 {
					t.Errorf("%s: %d of %d frames pass, such as %x (%s)", h.name, len(passed), len(tricks), passed[0].packet.Frame, passed[0].said)
				}
			})
		})
	}
}

// sharedPages: with splice(2), a sender keeps the frame in its own memory, and can change it on its
// way. The bytes that a filter has examined do not change.
func sharedPages(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	must(t, from.Ping(to.IPv4))
	queue := b.Queue()
	// arrives returns the kind of the DHCP message that arrives, while a request is changed into an
	// answer on its way.
	arrives := func() byte {
		queue.Received()
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
		must(t, err)
		defer unix.Munmap(page)
		message := page[:300]
		message[0], message[1], message[2] = 1, 1, 6 // a request, on Ethernet
		copy(message[28:], a.MAC[:])
		must(t, a.Namespace.Do(func() error { return splice(message, from.IPv4, to.IPv4) }))
		l.Flush()
		message[0] = 2
		for _, f := range queue.Received() {
			if len(f) > 42 && f[23] == protoUDP && f[36:38] == "\x00\x44" {
				return f[42]
			}
		}
		return 0
	}
	if got := arrives(); hook == "tcx" && got != 2 {
		t.Errorf("without a filter: message %d arrives, not what it has become", got)
	}
	l.Bascule("bridge", "set", "br0", "--dhcp-guard")
	if got := arrives(); got != 1 {
		t.Errorf("message %d arrives: the guard has seen a request", got)
	}
}

// splice sends bytes to the port of DHCP clients, without copying them.
func splice(b []byte, from, to netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: 1067, Addr: from.As4()}),
		unix.Connect(fd, &unix.SockaddrInet4{Port: 68, Addr: to.As4()}),
	); err != nil {
		return err
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	if _, err := unix.Vmsplice(pipe[1], []unix.Iovec{v}, 0); err != nil {
		return fmt.Errorf("vmsplice: %w", err)
	}
	if _, err := unix.Splice(pipe[0], nil, fd, nil, len(b), 0); err != nil {
		return fmt.Errorf("splice: %w", err)
	}
	return nil
}

// unfinishedTunnel: the inner checksums of a tunnel are unfinished, too, at places where no filter
// looks. The packet passes unchanged with all filters enabled.
func unfinishedTunnel(t *testing.T, hook string) {
	for _, outer := range []string{"198.19.0.", "fd19::"} {
		t.Run("over "+outer, func(t *testing.T) {
			l, ends := setup(t, hook, 2)
			hosts := make([]*netlab.Host, 2)
			for i, e := range ends {
				here, there := netip.MustParseAddr(fmt.Sprint(outer, i+1)), netip.MustParseAddr(fmt.Sprint(outer, 2-i))
				hosts[i] = l.NewTunnel(e, "vx0", here, there)
				l.Bascule("binding", "add", "br0", e.Port, e.MAC.String(), here.String())
				l.Bascule("port", "set", "br0", e.Port, "--source-guard", "--block-non-ip")
				l.Bascule("rule", "add", "br0", e.Port, "block", "in", "arp", "spa", "192.0.2.1")
			}
			l.Bascule("bridge", "set", "br0", "--dhcp-guard", "--ra-guard")
			loadPF(t, l, "block drop\npass proto udp to port 4789 no state\nether block in proto 0x88b5\n")
			must(t, netlab.Transfer(hosts[0], hosts[1], hosts[1].IPv4, 4<<20))
			must(t, netlab.Transfer(hosts[1], hosts[0], hosts[0].IPv6, 4<<20))
			for _, p := range l.Ports("br0") {
				if n := p.Drops["checksum"]; n > 0 {
					t.Errorf("%s: %d frames dropped as checksum", p.Ifname, n)
				}
			}
		})
	}
}

// large returns a TCP or UDP frame from A with a payload, and with the IP header's fields for
// fragments: offset and flags of IPv4, or a fragment header of IPv6.
func large(to netlab.MAC, proto byte, dport, carries, fragment int, six bool) netlab.Frame {
	upper := slices.Concat(be16(5000), be16(dport), be16(8+carries), be16(0))
	if proto == unix.IPPROTO_TCP {
		upper = slices.Concat(be16(5000), be16(dport), make([]byte, 8), []byte{0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0})
	}
	upper = append(upper, make([]byte, carries)...)
	if six && fragment >= 0 {
		return packet6(to, A, "fdba::50", "fdba::2", 44, []byte{proto, 0}, be16(fragment), []byte{0, 0, 0, 7}, upper)
	}
	if six {
		return packet6(to, A, "fdba::50", "fdba::2", proto, upper)
	}
	f := []byte(etherFrame(to, A, typeIPv4, []byte{0x45, 0}, be16(20+len(upper)), []byte{0, 7}, be16(max(fragment, 0)),
		[]byte{64, proto, 0, 0}, ip("198.18.0.50"), ip("198.18.0.2"), upper))
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = ^(sum&0xffff + sum>>16)
	f[24], f[25] = byte(sum>>8), byte(sum)
	return netlab.Frame(f)
}

// cuts returns the frame as a GSO packet of a kind, with segments of size bytes.
func cuts(f netlab.Frame, kind byte, size int) netlab.Packet {
	c := &netlab.Claim{GSO: kind, Size: size}
	if kind != netlab.ClaimGSOUDP {
		*c = netlab.Claim{Flags: netlab.ClaimNeedsCsum, GSO: kind, Size: size, Start: 34, Offset: 16}
		if kind == netlab.ClaimGSOUDPL4 {
			c.Offset = 6
		}
		if f[12] == 0x86 {
			c.Start = 54
			if f[20] == 44 {
				c.Start = 62
			}
		}
	}
	return netlab.Packet{Frame: []byte(f), Linear: len(f), Claim: c}
}

// wrongLength returns an IPv4 packet whose header has a shorter length than the packet.
func wrongLength(f netlab.Frame) netlab.Frame {
	b := []byte(f)
	b[17] -= 100
	b[25] += 100
	return netlab.Frame(b)
}

// cutAnew: the kernel segments a GSO packet after all filters, and assigns its own numbers and offsets
// to the segments. So no filter has examined the result if the packet itself is a fragment, or has a
// wrong length. All filters drop such a packet, and count it as gso. They pass other packets.
func cutAnew(t *testing.T, hook string) {
	const ufo, uso, tso4, tso6 = netlab.ClaimGSOUDP, netlab.ClaimGSOUDPL4, netlab.ClaimGSOTCPv4, netlab.ClaimGSOTCPv6
	const later, first, first6, later6 = 1, 0x2000, 1, 8
	l, ends := setup(t, hook, 2)
	b := ends[1]
	b.FinishChecksums()
	tap := l.NewTap("tap0", true)
	l.Bascule("port", "add", "br0", "tap0")
	learn(l, b, B) // not an address of the end: frames to it leave unsegmented
	l.Flush()
	send := func(p netlab.Packet) int { // send returns the number of frames that arrive.
		t.Helper()
		n := 0
		if tap.Packets([]netlab.Packet{p}, func() { n += len(b.Received()) }) > 0 {
			t.Fatal("the kernel refuses the packet")
		}
		return n
	}
	bad := map[string]netlab.Packet{
		"later, UFO":             cuts(large(B, protoUDP, 53, 1200, later, false), ufo, 536),
		"first, UFO":             cuts(large(B, protoUDP, 53, 1200, first, false), ufo, 536),
		"later, behind tags":     cuts(large(B, protoUDP, 53, 1200, later, false).Tagged(0, 0).Tagged(0, 0), ufo, 536),
		"first, USO":             cuts(large(B, protoUDP, 53, 1200, first, false), uso, 536),
		"later, TSO":             cuts(large(B, unix.IPPROTO_TCP, 80, 1200, later, false), tso4, 536),
		"first, TSO":             cuts(large(B, unix.IPPROTO_TCP, 80, 1200, first, false), tso4, 536),
		"short, TSO":             cuts(wrongLength(large(B, unix.IPPROTO_TCP, 80, 1200, 0, false)), tso4, 536),
		"short, UFO":             cuts(wrongLength(large(B, protoUDP, 53, 1200, 0, false)), ufo, 536),
		"less than UDP's header": cuts(large(B, protoUDP, 53, 200, 0, false), ufo, 4),
		"IPv6, first":            cuts(large(B, unix.IPPROTO_TCP, 80, 1200, first6, true), tso6, 536),
		"IPv6, later":            cuts(large(B, unix.IPPROTO_TCP, 80, 1200, later6, true), tso6, 536),
		"IPv6, only fragment":    cuts(large(B, unix.IPPROTO_TCP, 80, 1200, 0, true), tso6, 536),
		"IPv6, UFO":              cuts(large(B, protoUDP, 53, 1200, first6, true), ufo, 536),
	}
	good := map[string]netlab.Packet{
		"UFO":       cuts(large(B, protoUDP, 53, 1200, 0, false), ufo, 536),
		"USO":       cuts(large(B, protoUDP, 53, 1200, 0, false), uso, 536),
		"TSO":       cuts(large(B, unix.IPPROTO_TCP, 80, 1200, 0, false), tso4, 536),
		"DF, TSO":   cuts(large(B, unix.IPPROTO_TCP, 80, 1200, 0x4000, false), tso4, 536),
		"IPv6, UFO": cuts(large(B, protoUDP, 53, 1200, -1, true), ufo, 536),
		"IPv6, USO": cuts(large(B, protoUDP, 53, 1200, -1, true), uso, 536),
		"IPv6, TSO": cuts(large(B, unix.IPPROTO_TCP, 80, 1200, -1, true), tso6, 536),
	}
	count := func() uint64 { return l.Port("br0", "tap0").Drops["gso"] }
	pf := func(rules string) func(*testing.T, *netlab.Lab) {
		return func(t *testing.T, l *netlab.Lab) { loadPF(t, l, rules) }
	}
	bound := func(t *testing.T, l *netlab.Lab) {
		for _, a := range []string{"198.18.0.50", "fdba::50"} {
			l.Bascule("binding", "add", "br0", "tap0", A.String(), a)
		}
		l.Bascule("port", "set", "br0", "tap0", "--source-guard")
	}
	pfOff := func(t *testing.T, l *netlab.Lab) { pfctl(t, l, "", "-d"); pfctl(t, l, "", "-Fa") }
	for _, f := range []holder{
		{name: "pf", on: pf("pass no state\n"), off: pfOff},
		{name: "pf with states", on: pf("pass\n"), off: pfOff},
		{name: "ether", on: pf("ether block in proto 0x88b5\n"), off: pfOff},
		{name: "rule", on: bascule("rule add br0 tap0 block in arp"), off: bascule("rule flush br0")},
		{name: "source guard", on: bound, off: bascule("port set br0 tap0 --source-guard=off")},
		{name: "DHCP guard", on: bascule("bridge set br0 --dhcp-guard"), off: bascule("bridge set br0 --dhcp-guard=off")},
		{name: "RA guard", on: bascule("bridge set br0 --ra-guard"), off: bascule("bridge set br0 --ra-guard=off")},
		{name: "non-IP", on: bascule("port set br0 tap0 --block-non-ip"), off: bascule("port set br0 tap0 --block-non-ip=off")},
	} {
		t.Run(f.name, func(t *testing.T) {
			before := count()
			if send(bad["later, UFO"]) != 3 || count() != before {
				t.Error("without the filter it is not cut")
			}
			f.on(t, l)
			for range 2 { // with a new decision, and with a remembered one
				for name, p := range good {
					if n := send(p); n < 3 {
						t.Errorf("%s: %d frames arrive", name, n)
					}
				}
				for name, p := range bad {
					before := count()
					if n, now := send(p), count(); n != 0 || now != before+1 {
						t.Errorf("%s: %d frames arrive, %d are counted", name, n, now-before)
					}
				}
			}
			f.off(t, l)
		})
	}
	text := l.Bascule("trace", "br0", "--in", "tap0", fmt.Sprintf("%x", string(bad["later, UFO"].Frame)))
	if strings.Contains(text, "gso") {
		t.Errorf("a trial is no GSO packet:\n%s", text)
	}
}

// cutPorts: a blocked packet does not reach the receiver's socket as a fragment of a permitted one,
// which the kernel segments again.
func cutPorts(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	b := ends[1]
	host := b.Host()
	tap := l.NewTap("tap0", true)
	l.Bascule("port", "add", "br0", "tap0")
	var fd int
	must(t, host.Namespace.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 67})
	}))
	defer unix.Close(fd)
	buf := make([]byte, 2048)
	// seen returns the size of the datagram that port 67 has received, 0 for none.
	seen := func(packets ...netlab.Packet) (n int) {
		t.Helper()
		tap.Packets(packets, func() {
			if got, _, err := unix.Recvfrom(fd, buf, 0); err == nil {
				n = got
			}
		})
		b.Received()
		return n
	}
	plain := func(f netlab.Frame) netlab.Packet { return netlab.Packet{Frame: []byte(f), Linear: len(f)} }
	// To another station, so that the receiver does not wait for the rest of it.
	seed := plain(large(B, protoUDP, 53, 16, 0x2000, false))
	trick := func(fragment int) netlab.Packet {
		return cuts(large(netlab.Broadcast, protoUDP, 67, 1200, fragment, false), netlab.ClaimGSOUDP, 536)
	}
	if n := seen(trick(1)); n != 1200 {
		t.Errorf("without a filter the socket gets %d bytes", n)
	}
	for _, rules := range []string{
		"block\npass proto udp to port 53\n",
		"block\nblock in quick fragment\npass proto udp to port 53\n",
		"block\npass proto udp to port 53 no state\n",
		"pass no state\nblock proto udp to port 67\n",
	} {
		loadPF(t, l, rules)
		for _, fragment := range []int{1, 0x2000, 0x2001} {
			if n := seen(seed, trick(fragment)); n != 0 {
				t.Errorf("%q: as a fragment %04x the socket gets %d bytes", rules, fragment, n)
			}
		}
		wantArrives := plain(large(netlab.Broadcast, protoUDP, 53, 16, 0, false))
		arrived := 0
		tap.Packets([]netlab.Packet{wantArrives}, func() { arrived += len(b.Received()) })
		if arrived != 1 {
			t.Errorf("%q: %d frames to port 53 arrive", rules, arrived)
		}
	}
	pfctl(t, l, "", "-d")
	l.Bascule("bridge", "set", "br0", "--dhcp-guard")
	if n := seen(trick(1)); n != 0 {
		t.Errorf("past the DHCP guard the socket gets %d bytes", n)
	}
}
