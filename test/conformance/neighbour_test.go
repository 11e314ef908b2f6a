// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// How the host's own programs receive frames between neighbours, which no bridge forwards.
var neighbourCases = []conformance{
	{name: "reserved_to_sockets", hooks: both, run: reservedToSockets},
	{name: "reserved_not_to_stack", hooks: both, run: reservedNotToStack},
}

// neighbourTypes are the types of frames that sockets of the host receive.
var neighbourTypes = map[string]uint16{
	"802.1X and MACsec's key agreement": unix.ETH_P_PAE, "LLDP": unix.ETH_P_LLDP, "slow protocols": unix.ETH_P_SLOW, "PTP": unix.ETH_P_1588,
}

func reservedMAC(x int) netlab.MAC { return netlab.MAC{0x01, 0x80, 0xc2, 0, 0, byte(x)} }

// reservedToSockets: a socket for one protocol at a port's device receives the frames to reserved addresses that are
// not forwarded, each once, and the port counts them.
func reservedToSockets(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a := ends[0]
	counted := uint64(0)
	for what, typ := range neighbourTypes {
		s := l.QueueOf(l.Switch, a.Port, typ)
		gets := func(how string, want bool, frames ...netlab.Frame) {
			t.Helper()
			s.Received()
			l.Reach(a, frames)
			counted += uint64(len(frames))
			if got := s.Received(); want && !slices.Equal(got, frames) || !want && len(got) > 0 {
				t.Errorf("%s, %s: a socket of its type gets %v of %v", what, how, got, frames)
			}
			wantDrops(t, l, a, "reserved", counted)
		}
		frames := func(src netlab.MAC) (list []netlab.Frame) {
			for x := range 16 {
				list = append(list, etherFrame(reservedMAC(x), src, int(typ), []byte{3, 1, 0, byte(x)}))
			}
			return list
		}
		tagged := func(vlan uint16) (list []netlab.Frame) {
			for _, f := range frames(A) {
				list = append(list, f.Tagged(vlan, 0))
			}
			return list
		}
		serviceTagged := func(vlan uint16) (list []netlab.Frame) { // A tag of 802.1ad, which has another type.
			for _, f := range tagged(vlan) {
				list = append(list, f[:12]+"\x88\xa8"+f[14:])
			}
			return list
		}
		set := func(bridge, port []string) {
			t.Helper()
			l.Bascule(append([]string{"bridge", "set", "br0"}, bridge...)...)
			l.Bascule(append([]string{"port", "set", "br0", a.Port}, port...)...)
		}
		gets("a plain port", true, frames(A)...)
		gets("with the tag of a VLAN", false, tagged(10)...)
		gets("with a service tag", false, serviceTagged(10)...)
		l.Bascule("bridge", "set", "br0", "--vlan-protocol", "802.1ad")
		gets("with a service tag, as the bridge has them", false, serviceTagged(10)...)
		gets("with a customer's tag", false, tagged(10)...)
		l.Bascule("bridge", "set", "br0", "--vlan-protocol", "802.1Q")
		gets("from a group", false, frames(netlab.Group(1))...)
		s.Received()
		l.Reach(a, tagged(0))
		counted += 16
		if got := s.Received(); !slices.Equal(got, frames(A)) { // the kernel removes the tag
			t.Errorf("%s with a tag of priority: a socket of its type gets %v", what, got)
		}
		set([]string{"--vlan-filtering", "--dhcp-guard"}, []string{"--locked", "--learn=off", "--block-non-ip"})
		gets("a locked port of a VLAN that takes IP alone", true, frames(A)...)
		gets("the same, with the tag of a VLAN", false, tagged(1)...)
		gets("the same, with a service tag", false, serviceTagged(10)...)
		set([]string{"--vlan-filtering=off", "--dhcp-guard=off", "--group-fwd-mask", "0x0008"}, []string{"--locked=off", "--learn", "--block-non-ip=off"})
		l.Reach(a, frames(A)[3:4], ends[1])
		if got := s.Received(); len(got) > 0 {
			t.Errorf("%s: what is forwarded gets to a socket, too: %v", what, got)
		}
		set([]string{"--group-fwd-mask", "0"}, []string{"--loop-guard", "report"})
		gets("a port with a loop guard", true, frames(A)...)
		set(nil, []string{"--loop-guard=off"})
	}
	for f, want := range map[netlab.Frame]bool{
		etherFrame(reservedMAC(3), A, unix.ETH_P_PAE): true, etherFrame(reservedMAC(3), A, unix.ETH_P_PAE).Tagged(10, 0): false,
		l.Frame(reservedMAC(3), A, 60): false,
	} {
		var list []traceResult
		l.JSON(&list, "trace", "br0", "--in", a.Port, hex.EncodeToString([]byte(f)))
		if r := list[0]; r.Verdict != "dropped: reserved" || r.says("listen at p1") != want {
			t.Errorf("trace of %v, which sockets get: %v, says\n%v", f, want, r)
		}
	}
	// No agent reads BPDUs here, and sockets get none.
	s := l.QueueOf(l.Switch, a.Port, unix.ETH_P_802_2)
	bpdu := etherFrame(reservedMAC(0), A, 38, []byte{0x42, 0x42, 3})
	l.Reach(a, []netlab.Frame{bpdu})
	if got := s.Received(); len(got) > 0 {
		t.Errorf("sockets get BPDUs: %v", got)
	}
}

// stackGot returns the number of packets that the stack of the switch's namespace has received.
func stackGot(t *testing.T, l *netlab.Lab) (n int) {
	t.Helper()
	err := l.Switch.Do(func() error {
		four, err := os.ReadFile("/proc/thread-self/net/snmp")
		six, err6 := os.ReadFile("/proc/thread-self/net/snmp6")
		if err := errors.Join(err, err6); err != nil {
			return err
		}
		var in, v6 int
		lines := strings.Split(string(four), "\n")
		if _, err := fmt.Sscanf(lines[1], "Ip: %d %d %d", new(int), new(int), &in); err != nil {
			return err
		}
		_, err = fmt.Sscanf(string(six), "Ip6InReceives %d", &v6)
		n = in + v6
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reservedNotToStack: no frame to a reserved address reaches the host's stack, with any content and any headers,
// although a port's device has addresses.
func reservedNotToStack(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	a := ends[0]
	h := l.NewHost(l.Switch, a.Port, 1)
	nl, err := l.Switch.Netlink().LinkByName(a.Port)
	if err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "v10", nl.Attrs().Index
	err = l.Switch.Netlink().LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 10})
	vlans := !errors.Is(err, unix.EOPNOTSUPP)
	if err != nil && vlans {
		t.Fatal(err)
	}
	peer := "198.18.0.77"
	var socket *net.UDPConn
	if err := l.Switch.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", &net.UDPAddr{Port: 7777})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	to := func(addr netip.Addr) func(netlab.MAC) netlab.Frame {
		return func(dst netlab.MAC) netlab.Frame {
			return udp4(dst, A, peer, addr.String(), [2]int{9, 7777}, 1)
		}
	}
	packets := map[string]func(dst netlab.MAC) netlab.Frame{
		"UDP":  to(h.IPv4),
		"IPv6": func(dst netlab.MAC) netlab.Frame { return packet6(dst, A, "fdba::77", h.IPv6.String(), 59) },
		"ARP": func(dst netlab.MAC) netlab.Frame {
			return arpFrame(dst, A, arpRequest, A, peer, netlab.MAC{}, h.IPv4.String())
		},
		"a tag of priority":    func(dst netlab.MAC) netlab.Frame { return to(h.IPv4)(dst).Tagged(0, 3) },
		"two tags of priority": func(dst netlab.MAC) netlab.Frame { return to(h.IPv4)(dst).Tagged(0, 0).Tagged(0, 0) },
	}
	if vlans { // not every kernel has VLAN devices
		l.Keep("v10")
		v10 := l.NewHost(l.Switch, "v10", 9)
		packets["a tag of a VLAN"] = func(dst netlab.MAC) netlab.Frame { return to(v10.IPv4)(dst).Tagged(10, 0) }
	}
	// got reports whether the stack accepts a packet: it counts each of ten, or answers each. The counter includes
	// IPv6 group reports and solicitations that stations send by themselves.
	got := func(f netlab.Frame) bool {
		t.Helper()
		const times = 10 // more than they send
		had := stackGot(t, l)
		answers := len(l.Deliver(a, slices.Repeat([]netlab.Frame{f}, times)...)[a])
		return stackGot(t, l)-had >= times || answers >= times
	}
	for what, packet := range packets {
		if !got(packet(reservedMAC(3))) {
			t.Errorf("%s: without the switch the stack does not take it either", what)
		}
	}
	l.AddBridge("br0", hook, ends[1:])
	// It warns that the device's addresses no longer reach the host. This test is about that.
	add := []string{"port", "add", "br0", a.Port, "--hook", hook}
	if vlans {
		add = append(add, "--force") // there is a device above it
	}
	if r, err := l.Run(add...); err != nil || r.Exit != 0 || !strings.Contains(r.Stderr, "no longer reaches") {
		t.Fatal(r, err)
	}
	for what, packet := range packets {
		for x := range 16 {
			if got(packet(reservedMAC(x))) {
				t.Errorf("%s to reserved address %d gets to the stack", what, x)
			}
		}
		for _, typ := range neighbourTypes { // with a type for sockets, it is no packet
			f := packet(reservedMAC(3))
			if got(f[:12] + netlab.Frame(be16(int(typ))) + f[12:]) {
				t.Errorf("%s behind type %#x gets to the stack", what, typ)
			}
		}
	}
}
