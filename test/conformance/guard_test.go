// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

var guardCases = []conformance{
	{name: "binding_private_vlan", hooks: tcx, run: bindingPrivateVLAN},
	{name: "bindings", hooks: tcx, run: bindings},
	{name: "source_guard", hooks: both, run: sourceGuard},
	{name: "source_guard_hosts", hooks: both, run: sourceGuardHosts},
	{name: "arp_suppression", hooks: both, run: arpSuppression},
	{name: "nd_suppression", hooks: both, run: ndSuppression},
	{name: "suppression_reach", hooks: both, run: suppressionReach},
	{name: "suppression_hosts", hooks: both, run: suppressionHosts},
	{name: "dhcp_guard", hooks: both, run: dhcpGuard},
	{name: "guard_segments", hooks: both, run: guardSegments},
	{name: "ra_guard", hooks: both, run: raGuard},
}

// EtherTypes and protocols of the frames below.
const (
	typeIPv4, typeIPv6, typeARP = 0x0800, 0x86dd, 0x0806
	protoUDP, protoICMPv6       = 17, 58
	hopByHop                    = 0

	arpRequest, arpReply = 1, 2
	routerAdvertisement  = 134
	solicit, advertise   = 135, 136
)

func be16(n int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(n)) }

func ip(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

// etherFrame is a frame of at least the smallest size.
func etherFrame(dst, src netlab.MAC, typ int, parts ...[]byte) netlab.Frame {
	b := slices.Concat(dst[:], src[:], be16(typ), slices.Concat(parts...))
	return netlab.Frame(append(b, make([]byte, max(0, 60-len(b)))...))
}

func arpFrame(dst, src netlab.MAC, op int, sha netlab.MAC, spa string, tha netlab.MAC, tpa string) netlab.Frame {
	return etherFrame(dst, src, typeARP, be16(1), be16(typeIPv4), []byte{6, 4}, be16(op), sha[:], ip(spa), tha[:], ip(tpa))
}

func udp4(dst, src netlab.MAC, from, to string, ports [2]int, payload ...byte) netlab.Frame {
	body := slices.Concat(be16(ports[0]), be16(ports[1]), be16(8+len(payload)), be16(0), payload)
	return etherFrame(dst, src, typeIPv4, []byte{0x45, 0}, be16(20+len(body)), make([]byte, 4), []byte{64, protoUDP, 0, 0}, ip(from), ip(to), body)
}

// discover is a DHCP client's request. In an honest one, src and client are the same.
func discover(src, client netlab.MAC) netlab.Frame {
	message := slices.Concat([]byte{1, 1, 6, 0}, make([]byte, 24), client[:], make([]byte, 202))
	return udp4(netlab.Broadcast, src, "0.0.0.0", "255.255.255.255", [2]int{68, 67}, message...)
}

func packet6(dst, src netlab.MAC, from, to string, next byte, parts ...[]byte) netlab.Frame {
	body := slices.Concat(parts...)
	return etherFrame(dst, src, typeIPv6, []byte{0x60, 0, 0, 0}, be16(len(body)), []byte{next, 255}, ip(from), ip(to), body)
}

// icmp6 returns a message with its checksum (RFC 8200 8.1).
func icmp6(from, to string, parts ...[]byte) []byte {
	message := slices.Concat(parts...)
	sum := uint32(len(message) + protoICMPv6)
	for b := slices.Concat(ip(from), ip(to), message); len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	return message
}

// nd returns a neighbour discovery message with one option.
func nd(dst, src netlab.MAC, from, to string, typ, flags byte, target string, option byte, mac netlab.MAC) netlab.Frame {
	m := icmp6(from, to, []byte{typ, 0, 0, 0, flags, 0, 0, 0}, ip(target), []byte{option, 1}, mac[:])
	return packet6(dst, src, from, to, protoICMPv6, m)
}

func bind(l *netlab.Lab, e *netlab.End, mac netlab.MAC, addresses ...string) {
	for _, a := range addresses {
		l.Bascule("binding", "add", "br0", e.Port, mac.String(), a)
	}
}

// binding is a line of `bascule -j binding show`.
type binding struct {
	Address string `json:"address"`
	MAC     string `json:"mac"`
	VLAN    int    `json:"vlan"`
	Ifname  string `json:"ifname"`
	Master  string `json:"master"`
}

func wantBindings(t *testing.T, l *netlab.Lab, args string, want ...string) {
	t.Helper()
	var list []binding
	l.JSON(&list, append([]string{"binding", "show"}, strings.Fields(args)...)...)
	var got []string
	for _, b := range list {
		got = append(got, fmt.Sprintf("%s vlan %d %s %s %s", b.Address, b.VLAN, b.MAC, b.Master, b.Ifname))
	}
	if !slices.Equal(got, want) {
		t.Errorf("bindings of %q are\n  %q\nshould be\n  %q", args, got, want)
	}
}

func bindings(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	p1, p2 := ends[0].Port, ends[1].Port
	l.Bascule("bridge", "add", "br1")
	wantBindings(t, l, "")
	bind(l, ends[0], A, "192.0.2.1", "fe80::1")
	bind(l, ends[0], A, "192.0.2.1") // once more
	l.Bascule("binding", "add", "br0", p2, B.String(), "192.0.2.1", "--vlan", "10")
	bind(l, ends[1], B, "192.0.2.2")
	one := fmt.Sprintf("192.0.2.1 vlan 0 %s br0 %s", A, p1)
	six := fmt.Sprintf("fe80::1 vlan 0 %s br0 %s", A, p1)
	two := fmt.Sprintf("192.0.2.2 vlan 0 %s br0 %s", B, p2)
	ten := fmt.Sprintf("192.0.2.1 vlan 10 %s br0 %s", B, p2)
	wantBindings(t, l, "", one, two, six, ten)
	wantBindings(t, l, "br0", one, two, six, ten)
	wantBindings(t, l, "br0 "+p2, two, ten)
	wantBindings(t, l, "br1")

	for _, c := range []struct {
		line string
		exit int
		says []string
	}{
		{"add br0 " + p2 + " " + A.String() + " 192.0.2.1", 1, []string{"192.0.2.1", A.String(), p1, "'bascule binding del br0 192.0.2.1'"}},
		{"add br0 " + p1 + " " + B.String() + " 192.0.2.1", 1, []string{"192.0.2.1", A.String(), p1}},
		{"add br0 " + p1 + " " + A.String() + " 192.0.2.1 --vlan 10", 1, []string{B.String(), p2, "'bascule binding del br0 192.0.2.1 --vlan 10'"}},
		{"add br0 nosuch " + A.String() + " 192.0.2.7", 1, []string{"br0", "nosuch"}},
		{"add nosuch " + p1 + " " + A.String() + " 192.0.2.7", 1, []string{"nosuch"}},
		{"add br1 " + p1 + " " + A.String() + " 192.0.2.7", 1, []string{"br1", p1}},
		{"add br0 " + p1 + " ff:ff:ff:ff:ff:ff 192.0.2.7", 2, []string{"broadcast"}},
		{"add br0 " + p1 + " " + A.String() + " 0.0.0.0", 2, []string{"0.0.0.0", "unspecified"}},
		{"add br0 " + p1 + " " + A.String() + " ::", 2, []string{"unspecified"}},
		{"add br0 " + p1 + " " + A.String() + " 224.0.0.1", 2, []string{"multicast"}},
		{"add br0 " + p1 + " " + A.String() + " ff02::1", 2, []string{"multicast"}},
		{"add br0 " + p1 + " " + A.String() + " 255.255.255.255", 2, []string{"broadcast"}},
		{"add br0 " + p1 + " " + A.String() + " 192.0.2.7 --vlan 4095", 2, []string{"4095", "4094"}},
		{"del br0 192.0.2.7", 1, []string{"192.0.2.7", "br0"}},
		{"del br0 192.0.2.2 --vlan 10", 1, []string{"VLAN 10"}},
		{"del br0 something", 2, []string{"something"}},
		{"show nosuch", 1, []string{"nosuch"}},
		{"show br0 nosuch", 1, []string{"br0", "nosuch"}},
		{"flush br0 --port nosuch", 1, []string{"br0", "nosuch"}},
	} {
		r, err := l.Run(append([]string{"binding"}, strings.Fields(c.line)...)...)
		must(t, err)
		if err := r.CheckRefusal(c.says...); err != nil {
			t.Error(err)
		}
		if r.Exit != c.exit {
			t.Errorf("%v: the exit status should be %d", r, c.exit)
		}
	}
	wantBindings(t, l, "", one, two, six, ten)

	// They stay when the bridge is changed, and are deleted only with their port.
	l.Bascule("bridge", "set", "br0", "--fdb-max", "100000")
	l.Bascule("port", "set", "br0", p1, "--source-guard")
	wantBindings(t, l, "", one, two, six, ten)
	l.Bascule("port", "del", "br0", p2)
	wantBindings(t, l, "", one, six)
	l.Bascule("port", "add", "br0", p2)
	wantBindings(t, l, "br0 "+p2)
	bind(l, ends[2], C, "192.0.2.2")

	l.Bascule("binding", "del", "br0", "192.0.2.1")
	if out := l.Bascule("binding", "flush", "br0", "--port", p1); out != "1 binding removed\n" {
		t.Errorf("flush says %q", out)
	}
	wantBindings(t, l, "", fmt.Sprintf("192.0.2.2 vlan 0 %s br0 %s", C, ends[2].Port))
	if out := l.Bascule("binding", "flush", "br0"); out != "1 binding removed\n" {
		t.Errorf("flush says %q", out)
	}
	wantBindings(t, l, "")

	// If VLANs are filtered, there is no frame without one.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Refused([]string{"192.0.2.1", "--vlan"}, "binding", "add", "br0", p1, A.String(), "192.0.2.1")
}

func sourceGuard(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	bind(l, a, A, "192.0.2.1", "fe80::1")
	l.Bascule("binding", "add", "br0", a.Port, A.String(), "192.0.2.10", "--vlan", "10")
	learn(l, a, A, C)
	learn(l, b, B)
	echo := [2]int{7, 7}
	good := udp4(B, A, "192.0.2.1", "192.0.2.2", echo)
	lies := []netlab.Frame{
		udp4(B, A, "192.0.2.2", "192.0.2.2", echo),
		udp4(B, C, "192.0.2.1", "192.0.2.2", echo),
		udp4(B, A, "192.0.2.1", "192.0.2.2", echo).Tagged(10, 0),
		udp4(B, A, "192.0.2.2", "192.0.2.2", echo).Tagged(20, 0).Tagged(10, 0),
		arpFrame(B, A, arpReply, A, "192.0.2.2", B, "192.0.2.2"),
		arpFrame(B, A, arpReply, C, "192.0.2.1", B, "192.0.2.2"),
		arpFrame(netlab.Broadcast, A, arpRequest, A, "192.0.2.9", netlab.MAC{}, "192.0.2.9"),
		packet6(B, A, "fe80::9", "fe80::2", protoUDP, make([]byte, 16)),
		nd(B, A, "fe80::1", "fe80::2", advertise, 0x60, "fe80::2", 2, A),
		nd(B, A, "fe80::1", "fe80::2", advertise, 0x60, "fe80::1", 2, C),
		discover(A, C),
	}
	l.Reach(a, lies[:1], b) // no guard yet
	l.Bascule("port", "set", "br0", a.Port, "--source-guard")
	l.Reach(a, lies)
	wantDrops(t, l, a, "spoofed", uint64(len(lies)))
	for range 3 { // Decisions on good frames are remembered, and bad ones still detected.
		l.Reach(a, []netlab.Frame{good}, b)
		l.Reach(a, lies)
	}
	wantDrops(t, l, a, "spoofed", uint64(4*len(lies)))
	l.Reach(a, []netlab.Frame{
		arpFrame(netlab.Broadcast, A, arpRequest, A, "192.0.2.1", netlab.MAC{}, "192.0.2.9"),
		arpFrame(netlab.Broadcast, A, arpRequest, A, "0.0.0.0", netlab.MAC{}, "192.0.2.9"),
		discover(A, A),
		udp4(netlab.Broadcast, A, "192.0.2.10", "192.0.2.255", echo).Tagged(10, 0),
		udp4(netlab.Broadcast, A, "192.0.2.10", "192.0.2.255", echo).Tagged(20, 0).Tagged(10, 0),
		nd(netlab.Group(1), A, "fe80::1", "ff02::1", solicit, 0, "fe80::2", 1, A),
	}, b, ends[2])
	l.Reach(a, l.Frames(20, B, A), b) // no IP
	wantDrops(t, l, a, "spoofed", uint64(4*len(lies)))

	// A change of bindings applies to the next frame.
	l.Bascule("binding", "del", "br0", "192.0.2.1")
	l.Reach(a, []netlab.Frame{good})
	bind(l, a, A, "192.0.2.1")
	l.Reach(a, []netlab.Frame{good}, b)
	// Other ports are not guarded.
	l.Reach(b, []netlab.Frame{udp4(A, B, "192.0.2.1", "192.0.2.1", echo)}, a)
	l.Bascule("port", "set", "br0", a.Port, "--source-guard=off")
	l.Reach(a, lies[:1], b)
}

// hostsOf gives two ends addresses, and binds all addresses of their stacks.
func hostsOf(l *netlab.Lab, ends []*netlab.End) (hosts []*netlab.Host) {
	for _, e := range ends {
		m := e.MAC
		local := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
		bind(l, e, m, local.String(), fmt.Sprintf("198.18.0.%d", m[5]), fmt.Sprintf("fdba::%x", m[5]))
		hosts = append(hosts, e.Host()) // its stack sends at once
	}
	return hosts
}

// Honest stations are not affected.
func sourceGuardHosts(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	for _, e := range ends {
		l.Bascule("port", "set", "br0", e.Port, "--source-guard")
	}
	h := hostsOf(l, ends[:2])
	must(t, h[0].Ping(h[1].IPv4))
	must(t, h[1].Ping(h[0].IPv6))
	must(t, netlab.Transfer(h[0], h[1], h[1].IPv4, 1<<20))
	must(t, netlab.Transfer(h[1], h[0], h[0].IPv6, 1<<20))
	for _, e := range ends {
		wantDrops(t, l, e, "spoofed", 0)
	}
}

// guardSegments: a station's stack leaves the segmentation of a packet into datagrams to the device.
// A message after the first one passes no more than a single one.
func guardSegments(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	h := hostsOf(l, ends)
	from := ends[0].MAC
	message := func(op byte, xid string, client netlab.MAC) []byte {
		return slices.Concat([]byte{op, 1, 6, 0}, []byte(xid), make([]byte, 20), client[:], make([]byte, 202))
	}
	for _, tt := range []struct {
		guard string
		on    []string
		port  int
		bad   []byte
	}{
		{"DHCP guard", []string{"bridge", "set", "br0", "--dhcp-guard"}, 68, message(2, "evil", from)},
		{"source guard", []string{"port", "set", "br0", ends[0].Port, "--source-guard"}, 67, message(1, "evil", A)},
	} {
		l.Bascule(tt.on...)
		var hears *net.UDPConn
		must(t, h[1].Namespace.Do(func() (err error) {
			hears, err = net.ListenUDP("udp4", &net.UDPAddr{Port: tt.port})
			return err
		}))
		good, last := message(1, "good", from), message(1, "last", from)
		must(t, h[0].Namespace.Do(func() error {
			c, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: h[1].IPv4.AsSlice(), Port: tt.port})
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write(tt.bad); err != nil {
				return err
			}
			raw, err := c.SyscallConn()
			if err != nil {
				return err
			}
			cut := func(size int) error {
				var err error
				return errors.Join(raw.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size)
				}), err)
			}
			if err := cut(len(good)); err != nil {
				return err
			}
			if _, err := c.Write(slices.Concat(good, tt.bad)); err != nil {
				return err
			}
			if err := cut(0); err != nil {
				return err
			}
			_, err = c.Write(last)
			return err
		}))
		must(t, hears.SetReadDeadline(time.Now().Add(time.Minute)))
		buf := make([]byte, 4096)
		for {
			n, err := hears.Read(buf)
			if err != nil {
				t.Fatalf("%s: %v", tt.guard, err)
			}
			xid := string(buf[4:8])
			if xid == "evil" || n != len(good) {
				t.Errorf("%s: the receiver took %d bytes, %q", tt.guard, n, xid)
			}
			if xid == "last" {
				break
			}
		}
		must(t, hears.Close())
	}
}

func arpSuppression(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--neigh-suppress")
	a, b, c := ends[0], ends[1], ends[2]
	bind(l, b, B, "192.0.2.2")
	l.Bascule("binding", "add", "br0", b.Port, C.String(), "192.0.2.2", "--vlan", "10")
	nobody := netlab.MAC{}
	ask := func(src netlab.MAC, spa, tpa string) netlab.Frame {
		return arpFrame(netlab.Broadcast, src, arpRequest, src, spa, nobody, tpa)
	}
	// Each answer returns to the station that has sent the request, and to no other.
	for _, q := range []struct{ question, answer netlab.Frame }{
		{ask(A, "192.0.2.1", "192.0.2.2"), arpFrame(A, B, arpReply, B, "192.0.2.2", A, "192.0.2.1")},
		{ask(A, "192.0.2.1", "192.0.2.2").Tagged(10, 3), arpFrame(A, C, arpReply, C, "192.0.2.2", A, "192.0.2.1").Tagged(10, 3)},
		{ask(A, "0.0.0.0", "192.0.2.2"), arpFrame(A, B, arpReply, B, "192.0.2.2", A, "0.0.0.0")},
		{ask(A, "192.0.2.2", "192.0.2.2"), arpFrame(A, B, arpReply, B, "192.0.2.2", A, "192.0.2.2")},
	} {
		got := l.Deliver(a, q.question)
		if !slices.Equal(got[a], []netlab.Frame{q.answer}) || len(got[b])+len(got[c]) > 0 {
			t.Errorf("%v: answers %x to %s, %v to others, should be %x", q.question, got[a], a.Port, append(got[b], got[c]...), q.answer)
		}
	}
	wantStats(t, l, a, 4, 4)
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(A, 10, a))
	// All other frames are forwarded as before.
	l.Reach(a, []netlab.Frame{
		ask(A, "192.0.2.1", "192.0.2.9"),
		ask(A, "192.0.2.1", "192.0.2.2").Tagged(20, 0),
		arpFrame(netlab.Broadcast, A, arpReply, A, "192.0.2.1", nobody, "192.0.2.2"),
		ask(B, "0.0.0.0", "192.0.2.2"), // an announcement of the station itself, elsewhere
	}, b, c)
	l.Reach(b, []netlab.Frame{ask(B, "192.0.2.2", "192.0.2.2"), ask(C, "192.0.2.3", "192.0.2.2")}, a, c)
	// only to that station
	l.Reach(a, []netlab.Frame{arpFrame(B, A, arpRequest, A, "192.0.2.1", nobody, "192.0.2.2")}, b)
	l.Bascule("bridge", "set", "br0", "--neigh-suppress=off")
	l.Reach(a, []netlab.Frame{ask(A, "192.0.2.1", "192.0.2.2")}, b, c)
}

func ndSuppression(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--neigh-suppress", "--ra-guard")
	a, b, c := ends[0], ends[1], ends[2]
	bind(l, b, B, "fe80::2")
	bind(l, c, C, "fe80::3")
	l.Bascule("port", "set", "br0", c.Port, "--trusted") // a router may be there
	group, everybody := netlab.MAC{0x33, 0x33, 0xff, 0, 0, 2}, netlab.MAC{0x33, 0x33, 0, 0, 0, 1}
	ask := func(src netlab.MAC, from, target string) netlab.Frame {
		return nd(group, src, from, "ff02::1:ff00:2", solicit, 0, target, 1, src)
	}
	dad := func(src netlab.MAC) netlab.Frame {
		m := icmp6("::", "ff02::1:ff00:2", []byte{solicit, 0, 0, 0, 0, 0, 0, 0}, ip("fe80::2"))
		return packet6(group, src, "::", "ff02::1:ff00:2", protoICMPv6, m)
	}
	for _, q := range []struct{ question, answer netlab.Frame }{
		{ask(A, "fe80::1", "fe80::2"), nd(A, B, "fe80::2", "fe80::1", advertise, 0x60, "fe80::2", 2, B)},
		{ask(A, "fe80::1", "fe80::3"), nd(A, C, "fe80::3", "fe80::1", advertise, 0xe0, "fe80::3", 2, C)},
		{dad(A), nd(everybody, B, "fe80::2", "ff02::1", advertise, 0x20, "fe80::2", 2, B)},
	} {
		got := l.Deliver(a, q.question)
		if !slices.Equal(got[a], []netlab.Frame{q.answer}) || len(got[b])+len(got[c]) > 0 {
			t.Errorf("%v: answers %x to %s, %v to others, should be %x", q.question, got[a], a.Port, append(got[b], got[c]...), q.answer)
		}
	}
	wantStats(t, l, a, 3, 3)
	l.Reach(a, []netlab.Frame{
		ask(A, "fe80::1", "fe80::9"),
		ask(A, "fe80::1", "fe80::2").Tagged(10, 0),
		dad(B),
	}, b, c)
	l.Reach(b, []netlab.Frame{dad(B), ask(D, "fe80::4", "fe80::2")}, a, c)
	l.Bascule("bridge", "set", "br0", "--neigh-suppress=off")
	l.Reach(a, []netlab.Frame{ask(A, "fe80::1", "fe80::2")}, b, c)
}

// suppressionReach: the switch does not answer for a station that neither the request nor the later
// frames would reach. The request is flooded then.
func suppressionReach(t *testing.T, hook string) {
	question := arpFrame(netlab.Broadcast, A, arpRequest, A, "192.0.2.1", netlab.MAC{}, "192.0.2.2")
	solicitation := nd(netlab.MAC{0x33, 0x33, 0xff, 0, 0, 2}, A, "fe80::1", "ff02::1:ff00:2", solicit, 0, "fe80::2", 1, A)
	// The first of three ports sends the request, the second has the station.
	begin := func(t *testing.T, vlan int, members []string, flags ...string) (l *netlab.Lab, ends []*netlab.End, answered func(when string, want bool)) {
		flags = append(flags, "--neigh-suppress")
		if members == nil {
			l, ends = setup(t, hook, 3, flags...)
		} else {
			l, ends = setupVLANs(t, hook, members, flags...)
		}
		answered = func(when string, want bool) {
			t.Helper()
			for _, q := range []netlab.Frame{question, solicitation} {
				if got := l.Deliver(ends[0], q); (len(got[ends[0]]) == 1) != want || (len(got[ends[2]]) == 0) != want {
					t.Errorf("%s: %v brings %d answers, and comes to %d others; answered should be %v", when, q, len(got[ends[0]]), len(got[ends[2]]), want)
				}
			}
		}
		for _, address := range []string{"192.0.2.2", "fe80::2"} {
			args := []string{"binding", "add", "br0", ends[1].Port, B.String(), address}
			if members != nil {
				args = append(args, "--vlan", fmt.Sprint(vlan))
			}
			l.Bascule(args...)
		}
		return l, ends, answered
	}
	t.Run("vlan", func(t *testing.T) {
		l, ends, answered := begin(t, 10, []string{"10", "20T10", "10"})
		answered("in the VLAN", true)
		l.Bascule("vlan", "del", "br0", ends[1].Port, "10")
		answered("out of the VLAN", false)
		l.Bascule("vlan", "add", "br0", ends[1].Port, "10")
		answered("in it again", true)
	})
	t.Run("pvid alone", func(t *testing.T) {
		l, ends, answered := begin(t, 10, []string{"10", "10", "10"})
		l.Bascule("vlan", "add", "br0", ends[1].Port, "20", "--untagged", "--pvid")
		l.Bascule("vlan", "del", "br0", ends[1].Port, "10")
		answered("with another PVID", false)
	})
	t.Run("private vlan", func(t *testing.T) {
		l, ends, answered := begin(t, 10, []string{"10", "10T20", "10"})
		l.Bascule("vlan", "private", "br0", "10", "--community", "20")
		l.Bascule("vlan", "add", "br0", ends[1].Port, "20", "--untagged", "--pvid")
		l.Bascule("vlan", "del", "br0", ends[1].Port, "10")
		answered("in a VLAN below", true)
		l.Bascule("vlan", "del", "br0", ends[1].Port, "20")
		answered("in none", false)
	})
	t.Run("filtering switched", func(t *testing.T) {
		l, ends, answered := begin(t, 10, []string{"10", "20T10", "10"})
		l.Bascule("vlan", "del", "br0", ends[1].Port, "10")
		l.Run("bridge", "set", "br0", "--vlan-filtering=off") // it warns about the bindings
		answered("without filtering", false)
		l.Bascule("bridge", "set", "br0", "--vlan-filtering")
		answered("with it again", false)
	})
	t.Run("discarding", func(t *testing.T) {
		l, ends, answered := begin(t, 0, nil)
		answered("without spanning tree", true)
		l.Run("bridge", "set", "br0", "--stp", "rstp") // it warns that no agent runs
		answered("forwarding", true)
		l.Run("port", "del", "br0", ends[1].Port)
		l.Run("port", "add", "br0", ends[1].Port, "--hook", hook)
		for _, address := range []string{"192.0.2.2", "fe80::2"} {
			l.Bascule("binding", "add", "br0", ends[1].Port, B.String(), address)
		}
		if p := l.Port("br0", ends[1].Port); p.State != "discarding" {
			t.Fatalf("the port is %s", p.State)
		}
		answered("discarding", false)
	})
	t.Run("carrier", func(t *testing.T) {
		l, ends, answered := begin(t, 0, nil)
		answered("with a carrier", true)
		// A station that the lab does not read from, unlike from ends that are up.
		nl := l.Switch.Netlink()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "near"
		must(t, nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}))
		l.Keep("near")
		l.Keep("far")
		l.Plug("near")
		l.Plug("far")
		l.Run("port", "add", "br0", "near", "--hook", "tcx")
		forwards := func() {
			t.Helper()
			l.Wait("the port to forward", func() bool { return l.Port("br0", "near").State == "forwarding" })
		}
		forwards()
		for _, address := range []string{"192.0.2.2", "fe80::2"} {
			l.Bascule("binding", "del", "br0", address)
			l.Bascule("binding", "add", "br0", "near", B.String(), address)
		}
		answered("of another port", true)
		l.Pull("far")
		l.Wait("the carrier to go", func() bool { return slices.Contains(l.Port("br0", "near").Flags, "NO-CARRIER") })
		answered("without a carrier", false)
		l.Bascule("port", "set", "br0", "near", "--backup", ends[1].Port)
		answered("with a backup", true)
		l.Bascule("port", "set", "br0", "near", "--backup", "none")
		answered("without a backup again", false)
		l.Plug("far")
		forwards()
		answered("with a carrier again", true)
		l.Pull("near")
		answered("down", false)
		l.Plug("near")
		forwards()
		answered("up again", true)
	})
}

// Real stations accept the answers, and need no answers from each other. The host's own port is one
// of them.
func suppressionHosts(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--neigh-suppress")
	c := ends[2]
	h := hostsOf(l, ends[:2])
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	host := l.NewHost(l.Switch, "host0", 9)
	l.Deliver(c) // frames from when the addresses were new
	must(t, h[0].Ping(h[1].IPv4))
	must(t, h[0].Ping(h[1].IPv6))
	must(t, host.Ping(h[0].IPv4))
	must(t, host.Ping(h[1].IPv6))
	l.Flush()
	for _, f := range c.Received() {
		arp := f[12:14] == netlab.Frame(be16(typeARP)) && f[20:22] == netlab.Frame(be16(arpRequest))
		bound := arp && (strings.HasSuffix(string(f[38:42]), string(h[0].IPv4.AsSlice())) || strings.HasSuffix(string(f[38:42]), string(h[1].IPv4.AsSlice())))
		asks := f[12:14] == netlab.Frame(be16(typeIPv6)) && len(f) >= 78 && f[54] == solicit
		bound = bound || asks && (string(f[62:78]) == string(h[0].IPv6.AsSlice()) || string(f[62:78]) == string(h[1].IPv6.AsSlice()))
		if bound {
			t.Errorf("a question for a bound address was flooded: % x", []byte(f))
		}
	}
}

func dhcpGuard(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--dhcp-guard")
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	offers := func(dst, src netlab.MAC) []netlab.Frame {
		offer := udp4(dst, src, "192.0.2.1", "255.255.255.255", [2]int{67, 68}, 2)
		return []netlab.Frame{
			offer, offer.Tagged(10, 0), offer.Tagged(20, 0).Tagged(10, 0),
			udp4(dst, src, "192.0.2.1", "192.0.2.2", [2]int{67, 67}, 2),
			packet6(dst, src, "fe80::1", "fe80::2", protoUDP, be16(547), be16(546), be16(9), be16(0), []byte{2}),
		}
	}
	requests := []netlab.Frame{
		udp4(netlab.Broadcast, A, "0.0.0.0", "255.255.255.255", [2]int{68, 67}, 1),
		udp4(netlab.Broadcast, A, "192.0.2.1", "192.0.2.2", [2]int{67, 67}, 1),
		packet6(netlab.Group(1), A, "fe80::1", "ff02::1:2", protoUDP, be16(546), be16(547), be16(9), be16(0), []byte{1}),
	}
	bad := offers(netlab.Broadcast, A)
	l.Reach(a, bad)
	wantDrops(t, l, a, "dhcp-guard", uint64(len(bad)))
	l.Reach(a, requests, b, c)
	for range 2 { // between frames of the same stations
		l.Reach(a, l.Frames(3, B, A), b)
		l.Reach(a, offers(B, A)[:1])
	}
	wantDrops(t, l, a, "dhcp-guard", uint64(len(bad)+2))
	l.Bascule("port", "set", "br0", a.Port, "--trusted")
	l.Reach(a, bad, b, c)
	l.Reach(a, offers(B, A)[:1], b)
	l.Bascule("port", "set", "br0", a.Port, "--trusted=off")
	l.Reach(a, bad)
	l.Bascule("bridge", "set", "br0", "--dhcp-guard=off")
	l.Reach(a, bad, b, c)
	l.Bascule("bridge", "set", "br0", "--dhcp-guard")
	guardOfHost(t, l, ends, "dhcp-guard", func(host netlab.MAC) []netlab.Frame { return offers(netlab.Broadcast, host) })
}

// guardOfHost applies a guard to frames of the host's own server, relay or router: a host port is
// trusted, unless it is set otherwise.
func guardOfHost(t *testing.T, l *netlab.Lab, ends []*netlab.End, reason string, frames func(host netlab.MAC) []netlab.Frame) {
	t.Helper()
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	nl, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(nl)
	host, own := l.Listen(l.Switch, "host0"), frames(netlab.MAC(nl.Attrs().HardwareAddr))
	l.Reach(host, own, ends...)
	if out := l.Bascule("export"); strings.Contains(out, "trusted") {
		t.Errorf("a new host port is exported as\n%s", out)
	}
	l.Bascule("port", "set", "br0", "host0", "--trusted=off")
	l.Reach(host, own)
	if n := l.Port("br0", "host0").Drops[reason]; n != uint64(len(own)) {
		t.Errorf("%d of %d frames of the host are counted as dropped", n, len(own))
	}
	saved := l.Bascule("export")
	if !strings.Contains(saved, "trusted: off") {
		t.Errorf("a host port that is not trusted is exported as\n%s", saved)
	}
	if out := l.Bascule("apply", writeFile(t, saved)); out != "" {
		t.Errorf("what is exported does %s", out)
	}
	for _, from := range []string{saved, strings.Replace(saved, "trusted: off", "trusted: on", 1)} {
		l.Bascule("port", "del", "br0", "host0")
		l.Bascule("apply", writeFile(t, from))
		if got := l.Port("br0", "host0").Trusted; got != (from != saved) {
			t.Errorf("trusted is %v by\n%s", got, from)
		}
	}
	l.Bascule("port", "set", "br0", "host0", "--trusted=off")
	l.Bascule("apply", writeFile(t, strings.Replace(saved, ", trusted: off", "", 1)))
	if !l.Port("br0", "host0").Trusted {
		t.Error("a file that says nothing leaves a host port untrusted")
	}
}

func raGuard(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--ra-guard")
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	advertisements := func(dst, src netlab.MAC) []netlab.Frame {
		ra := icmp6("fe80::1", "ff02::1", []byte{routerAdvertisement, 0, 0, 0}, make([]byte, 12))
		plain := packet6(dst, src, "fe80::1", "ff02::1", protoICMPv6, ra)
		return []netlab.Frame{
			plain, plain.Tagged(10, 0), plain.Tagged(0, 0).Tagged(0, 0),
			packet6(dst, src, "fe80::1", "ff02::1", hopByHop, []byte{protoICMPv6, 0, 1, 4, 0, 0, 0, 0}, ra),
			packet6(dst, src, "fe80::1", "ff02::1", 44, []byte{60, 0, 0, 1, 0, 0, 0, 1}, []byte{protoICMPv6, 200, 1, 4, 0, 0, 0, 0}),
		}
	}
	bad := advertisements(netlab.Group(1), A)
	l.Reach(a, bad)
	wantDrops(t, l, a, "ra-guard", uint64(len(bad)))
	l.Reach(a, []netlab.Frame{nd(netlab.Group(1), A, "fe80::1", "ff02::1", solicit, 0, "fe80::2", 1, A)}, b, c)
	for range 2 {
		l.Reach(a, l.Frames(3, B, A), b)
		l.Reach(a, advertisements(B, A))
	}
	wantDrops(t, l, a, "ra-guard", uint64(3*len(bad)))
	l.Bascule("port", "set", "br0", a.Port, "--trusted")
	l.Reach(a, bad, b, c)
	l.Bascule("bridge", "set", "br0", "--ra-guard=off")
	l.Bascule("port", "set", "br0", a.Port, "--trusted=off")
	l.Reach(a, bad, b, c)
	l.Bascule("bridge", "set", "br0", "--ra-guard")
	guardOfHost(t, l, ends, "ra-guard", func(host netlab.MAC) []netlab.Frame { return advertisements(netlab.Group(1), host) })
}

// bindingPrivateVLAN: a binding in a private VLAN applies in the VLAN of its addresses.
func bindingPrivateVLAN(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Bascule("vlan", "private", "br0", "50", "--isolated", "51")
	l.Bascule("vlan", "add", "br0", a.Port, "51", "--untagged", "--pvid")
	l.Bascule("vlan", "add", "br0", b.Port, "50", "--untagged", "--pvid")
	one, other := a.Host(), b.Host()
	for _, addr := range []string{one.IPv4.String(), one.IPv6.String()} {
		l.Bascule("binding", "add", "br0", a.Port, a.MAC.String(), addr, "--vlan", "51")
	}
	l.Bascule("port", "set", "br0", a.Port, "--source-guard")
	if err := one.Ping(other.IPv4); err != nil {
		t.Error(err)
	}
	l.Bascule("binding", "del", "br0", one.IPv4.String(), "--vlan", "51")
	l.Refused([]string{"is not in VLAN 60"}, "binding", "add", "br0", a.Port, a.MAC.String(), "192.0.2.77", "--vlan", "60")
}
