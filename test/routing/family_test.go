// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// crossing is a rule with af-to, and the two ends of a connection that uses it.
type crossing struct {
	name, rules string
	own         bool   // the new source is an address of the host, whose stack would not accept it
	to          string // the client's destination
	listen      string // address of the server
	peer        string // the client's address as the server sees it, "" for any of the pool
	state       string
}

var crossings = []crossing{
	{
		name: "NAT64 from the host's address", rules: "pass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from (gw2)", own: true,
		to: "2001:db8:64::a00:202", listen: "10.0.2.2", peer: "10.0.2.1", state: " -> 10.0.2.2:7 (2001:db8:64::a00:202[7]) ",
	}, {
		name: "NAT64 from a pool", rules: "pass in inet6 to 2001:db8:64::/48 af-to inet from 10.0.2.64/30 port 4000:4999 round-robin",
		to: "2001:db8:64:a00:2:200::", listen: "10.0.2.2",
	}, {
		name: "NAT64 to one server", rules: "pass in on gw1 inet6 to fd01::1 af-to inet from 10.0.2.64 to 10.0.2.2",
		to: "fd01::1", listen: "10.0.2.2", peer: "10.0.2.64",
	}, {
		name: "NAT46 to one server", rules: "pass in on gw1 inet to 10.0.9.9 af-to inet6 from fd02::1 to fd02::2", own: true,
		to: "10.0.9.9", listen: "fd02::2", peer: "fd02::1",
	}, {
		name: "NAT46 to a net, whose last bits stay", rules: "pass in on gw1 inet to 10.0.9.0/24 af-to inet6 from fd02::1 to fd02::/120", own: true,
		to: "10.0.9.2", listen: "fd02::2", peer: "fd02::1",
	},
}

// at returns the address with a port.
func at(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }

// afTo: a host translates between stations of different families. Every byte arrives, and the server
// sees the rule's address.
func afTo(t *testing.T, s *site) {
	s.stations()
	for i := range 4 {
		s.neighbour(1, fmt.Sprintf("10.0.2.%d", 64+i))
	}
	for _, c := range crossings {
		tcp := s.listen(1, "tcp", at(c.listen, 7))
		udp := s.listen(1, "udp", at(c.listen, 7))
		for _, on := range []bool{true, false} {
			if c.own && !on {
				continue
			}
			s.route(on)
			what := fmt.Sprintf("%s, shortcut %v", c.name, on)
			s.loadAnew("pass\n" + c.rules + "\n")
			before := s.routed()
			check := func(peer netip.AddrPort) {
				t.Helper()
				if c.peer != "" && peer.Addr().String() != c.peer || peer.Port() < 4000 {
					t.Errorf("%s: the server sees %v, want %s", what, peer, c.peer)
				}
			}
			conn, err := s.dial(0, "tcp", "", at(c.to, 7))
			if err != nil {
				t.Fatalf("%s: %v\n%s", what, err, s.states())
			}
			check(s.echoTCP(tcp.(net.Listener), conn, 1<<20))
			// XDP has no large packets.
			if n := s.routed() - before; on && strings.HasSuffix(t.Name(), "tcx") && n > 1<<20/1400 {
				t.Errorf("%s: twice 1 MiB have taken %d packets: they have been split", what, n)
			}
			conn, err = s.dial(0, "udp", "", at(c.to, 7))
			s.must(err)
			for _, size := range []int{1, 100, 1400, 4000} { // the last one in fragments
				check(s.echoUDP(udp.(net.PacketConn), conn, size))
			}
			for _, size := range []string{"0", "56", "1001"} {
				if !s.ping(0, c.to, "-s", size) {
					t.Errorf("%s: no answer to a ping of %s bytes\n%s", what, size, s.states())
				}
			}
			if n := s.routed() - before; (n > 20) != on {
				t.Errorf("%s: the datapath has routed %d packets", what, n)
			}
			if text := s.states(); !strings.Contains(text, c.state) {
				t.Errorf("%s: the states have no %q:\n%s", what, c.state, text)
			}
		}
		tcp.Close()
		udp.Close()
	}
}

// Private addresses behind the well-known prefix are not translated (RFC 6052, 3.1), unless they are
// the rule's destination.
func TestFamilyWellKnown(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		server := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
		conn, err := s.dial(0, "udp", "", "[64:ff9b::a00:202]:7")
		s.must(err)
		s.load("pass\npass in on gw1 inet6 to 64:ff9b::/96 af-to inet from (gw2)\n")
		dropped := func() uint64 { return s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-translate"] }
		before := dropped()
		s.lab.Wait("a packet for a private address to be dropped", func() bool {
			_, err := conn.Write([]byte("private"))
			s.must(err)
			return dropped() > before
		})
		s.load("pass\npass in on gw1 inet6 to 64:ff9b::a00:200/120 af-to inet from (gw2) to 10.0.2.0/24\n")
		if peer := s.echoUDP(server, conn, 100); peer.Addr().String() != "10.0.2.1" {
			t.Errorf("the server sees %v", peer)
		}
	})
}

// An ICMP error about a packet that was translated to the other family reaches the packet's sender,
// in the sender's family, and quotes the original packet.
func TestFamilyErrors(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.load("pass\npass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from (gw2)\n" +
			"pass in on gw1 inet to 10.0.9.9 af-to inet6 from fd02::1 to fd02::2\n")
		for _, to := range []string{"2001:db8:64::a00:202", "10.0.9.9"} {
			conn, err := s.dial(0, "udp", "", at(to, 9))
			s.must(err)
			s.lab.Wait("an error about a closed port at "+to, func() bool {
				_, err = conn.Write([]byte("anybody"))
				if err == nil {
					s.must(conn.SetReadDeadline(time.Now().Add(time.Second)))
					_, err = conn.Read(make([]byte, 10))
				}
				return err != nil && strings.Contains(err.Error(), "refused")
			})
			s.lab.Wait("an answer for the hop that translates to "+to, func() bool {
				out, _ := s.sides[0].end.Namespace.Output(context.Background(), ends.AnyCPU, "ping", "-n", "-c", "1", "-W", "5", "-t", "1", to)
				return strings.Contains(string(out), "exceeded")
			})
		}
	})
}

// A trace shows the translated packet, and follows it to its output.
func TestFamilyTold(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.load("pass\npass in on gw1 inet6 proto udp to fd02::2 af-to inet from 10.0.2.1 to 10.0.2.3\n")
		f := flow{0, 1, true, [2]uint16{1000, 2000}, 0}
		for _, known := range []bool{false, true} {
			steps, verdict := s.trace(s.frame(f))
			text := strings.Join(steps, "\n  ")
			for _, want := range []string{"translates it: it goes on from 10.0.2.1:", " to 10.0.2.3:2000", otherHop.String()} {
				if !strings.Contains(text, want) {
					t.Errorf("a trace, of a known connection %v, has no %q; it says %s\n  %s", known, want, verdict, text)
				}
			}
			s.lab.Send(s.sides[0].end, s.frame(f))
			s.lab.Wait("a state", func() bool { return strings.Contains(s.states(), "10.0.2.1:") })
		}
	})
}

// A complete UDP checksum stays right around an unfinished one in the payload. If the IPv4 packet has
// none, it is computed around the unfinished one.
func TestFamilyAroundChecksum(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.load("pass\npass in on gw1 inet6 to fd02::2 af-to inet from 10.0.2.1 to 10.0.2.2\n" +
		"pass in on gw1 inet to 10.0.2.2 af-to inet6 from fd02::1 to fd02::2\n")
	send := s.sides[0].end.VnetSocket()
	for _, c := range []struct{ six, none bool }{{}, {six: true}, {none: true}} {
		b, start, made := s.tunnelled(c.six)
		if c.none {
			clear(b[start-2 : start])
		}
		is := 14 + 40 + 8 // start of the payload after the translation
		if c.six {
			is = 14 + 20 + 8
		}
		var got netlab.Frame
		s.lab.Wait("the tunnel's packet", func() bool {
			s.must(send(netlab.Frame(b), start, 0))
			s.lab.Flush()
			for _, f := range s.sides[1].end.Received() {
				if len(f) == is+len(b)-start && string(f[is+2:]) == string(b[start+2:]) {
					got = f
				}
			}
			return got != ""
		})
		arrived := []byte(got)
		binary.BigEndian.PutUint16(arrived[is:], made)
		if sum := aroundSum(arrived, !c.six); sum != 0xffff {
			t.Errorf("from IPv6 %v, no checksum %v: % x has a wrong checksum of UDP: all adds up to %#04x", c.six, c.none, arrived, sum)
		}
	}
}

// The datapath translates a large packet for segmentation offload. The receiver gets every datagram
// with its original bytes.
func TestFamilySegments(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.stations()
	s.load("pass\npass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from (gw2)\n" +
		"pass in on gw1 inet to 10.0.9.9 af-to inet6 from fd02::1 to fd02::2\n")
	for _, c := range []struct {
		to, listen    string
		largest, much int // sizes of datagrams that fit, and that do not fit
	}{{"2001:db8:64::a00:202", "10.0.2.2", 1452, 0}, {"10.0.9.9", "fd02::2", 1452, 1453}} {
		server := s.listen(1, "udp", at(c.listen, 7)).(net.PacketConn)
		conn, err := s.dial(0, "udp", "", at(c.to, 7))
		s.must(err)
		raw, err := conn.(*net.UDPConn).SyscallConn()
		s.must(err)
		segment := func(size int) {
			t.Helper()
			s.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) }))
			s.must(err)
		}
		s.echoUDP(server, conn, 10)
		for _, size := range []int{100, c.largest} {
			segment(size)
			sent := make([]byte, 20*size+7)
			for i := range sent {
				sent[i] = byte(i / size * 3)
			}
			before := s.taken()
			_, err := conn.Write(sent)
			s.must(err)
			buf := make([]byte, 65536)
			for rest := sent; len(rest) > 0; {
				s.must(server.SetReadDeadline(time.Now().Add(patience)))
				n, _, err := server.ReadFrom(buf)
				s.must(err)
				if want := rest[:min(size, len(rest))]; string(buf[:n]) != string(want) {
					t.Fatalf("to %s: a datagram of %d bytes arrives, want %d with their bytes", c.to, n, len(want))
				}
				rest = rest[min(size, len(rest)):]
			}
			if n := s.taken() - before; n != 1 {
				t.Errorf("to %s: 21 datagrams of %d bytes have been %d packets, want 1", c.to, size, n)
			}
		}
		if c.much == 0 {
			continue
		}
		segment(c.much)
		s.lab.Wait("the sender to hear that datagrams are too large", func() bool {
			_, err := conn.Write(make([]byte, 3*c.much))
			return err != nil
		})
	}
}

// With af-to, no packet bypasses the rules, uses an unroutable address, enters another client's
// connection, or leaves untranslated. Ports of a pool become free again.
func TestFamilyHostile(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		rule := "pass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from 10.0.2.64 port 4000:4002\n"
		block := "block on gw1\nblock on gw2\n"
		s.load(block + rule)
		pool := netip.MustParseAddr("10.0.2.64")
		wants := func(what string, side int, f front, want bool) {
			t.Helper()
			if got := s.crosses(side, f.packet()); (got != nil) != want {
				t.Errorf("%s: becomes % x, want anything: %v\n%s", what, got, want, s.states())
			}
		}
		// As seen from outside: the pool has chosen one of three ports.
		answers := func(what string, change func(f *front), want bool) {
			t.Helper()
			var got int
			for port := range uint16(3) {
				f := front{src: server4, dst: pool}
				change(&f)
				if s.crosses(1, f.udp(serverPort, 4000+port, 30).packet()) != nil {
					got++
				}
			}
			if (got == 1) != want || got > 1 {
				t.Errorf("%s: %d packets arrive, want any: %v", what, got, want)
			}
		}
		answers("nobody has asked", func(*front) {}, false)
		wants("a later fragment alone", 0, out6().udp(clientPort, serverPort, 2000).piece(77, 1200, 2008), false)
		for _, a := range []string{"127.0.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "169.254.1.1"} {
			to := embedded(netip.MustParseAddr(a))
			wants("to "+to.String(), 0, front{src: client6, dst: to}.udp(clientPort, serverPort, 10), false)
		}
		for _, a := range []string{"::1", "::", "ff02::1", "fe80::9", "::ffff:10.0.0.1"} {
			wants("from "+a, 0, front{src: netip.MustParseAddr(a), dst: server6}.udp(clientPort, serverPort, 10), false)
		}
		wants("a connection", 0, out6().udp(clientPort, serverPort, 10), true)
		answers("the answer", func(*front) {}, true)
		answers("from somebody else", func(f *front) { f.src = netip.MustParseAddr("10.0.2.3") }, false)
		wants("an answer in the client's family", 0, in6().udp(serverPort, clientPort, 10), false)
		for _, a := range []string{"10.0.2.9", "127.0.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.5", "255.255.255.255", "169.254.1.1"} {
			got := 0
			for port := range uint16(3) {
				about := front{src: pool, dst: server4}.udp(4000+port, serverPort, 10).packet()
				if s.crosses(1, front{src: netip.MustParseAddr(a), dst: pool}.icmp(3, 3, 0, about).packet()) != nil {
					got++
				}
			}
			if want := a == "10.0.2.9"; (got == 1) != want {
				t.Errorf("%d errors from %s arrive, want one: %v", got, a, want)
			}
		}
		about := in6().udp(serverPort, clientPort, 10).packet()
		for _, a := range []string{"fd01::9", "::1", "::", "ff02::1", "fe80::9", "::ffff:10.0.0.1"} {
			wants("an error from "+a, 0, front{src: netip.MustParseAddr(a), dst: server6}.icmp(1, 4, 0, about), a == "fd01::9")
		}
		for i := range uint16(2) {
			wants("the rest of the pool", 0, out6().udp(clientPort+1+i, serverPort, 10), true)
		}
		wants("nothing is left of the pool", 0, out6().udp(clientPort+3, serverPort, 10), false)
		s.pfctl("", "-F", "states")
		s.lab.Wait("the pool to have ports again", func() bool {
			return s.crosses(0, out6().udp(clientPort+4, serverPort, 10).packet()) != nil
		})
		wants("a connection before a reload", 0, out6().udp(clientPort, serverPort, 10), true)
		// Whether the connection outlives its rule or not, its packets never leave
		// untranslated.
		s.load("pass\n")
		number := 0
		for side, f := range []front{out6(), {src: server4, dst: pool}} {
			for port := range uint16(3) {
				from, to := uint16(clientPort), uint16(serverPort)
				if side == 1 {
					from, to = serverPort, 4000+port
				}
				number++
				packet := f.udp(from, to, 40+number).packet()
				for _, got := range s.lab.Deliver(s.sides[side].end, s.ethernet(side, packet))[s.sides[1-side].end] {
					if b := []byte(got); len(b) > 34 && b[14]>>4 == packet[0]>>4 && strings.HasSuffix(string(b), string(packet[len(packet)-40:])) {
						t.Errorf("after a reload a packet of the connection goes as it came: % x", b)
					}
				}
			}
		}
	})
}

// embedded returns an IPv4 address behind the prefix of these tests.
func embedded(four netip.Addr) netip.Addr {
	b := netip.MustParseAddr("2001:db8:64::").As16()
	copy(b[12:], four.AsSlice())
	return netip.AddrFrom16(b)
}

// Packets of a VRF use their own translated connections. A packet from another VRF that looks like an
// answer does not reach the client.
func TestFamilyOfVRF(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		third := s.third(strings.TrimPrefix(t.Name(), "TestFamilyOfVRF/"))
		s.vrf("blue", 100)
		s.vrf("red", 200)
		for _, gateway := range []string{"gw1", "gw2"} {
			s.joins(gateway, "blue")
		}
		for _, c := range []struct {
			vrf     string
			arrives bool
		}{{"blue", true}, {"red", false}} {
			s.joins(third.gateway, c.vrf)
			s.pfctl("", "-F", "states")
			s.load("block on gw1\nblock on gw2\nblock on gw3\npass in on gw1 inet6 to 2001:db8:64::/96 af-to inet from 10.0.2.64 port 4000\n")
			if s.crosses(0, out6().udp(clientPort, serverPort, 10).packet()) == nil {
				t.Fatalf("in a VRF nothing arrives\n%s", s.states())
			}
			answer := front{src: server4, dst: netip.MustParseAddr("10.0.2.64")}.udp(serverPort, 4000, 30).packet()
			if s.crosses(1, answer) == nil {
				t.Errorf("in a VRF no answer arrives\n%s", s.states())
			}
			arrives := false
			for _, f := range s.lab.Deliver(third.end, s.by(third, s.ethernet(1, answer)))[s.sides[0].end] {
				arrives = arrives || s.normal([]byte(f)) != ""
			}
			if arrives != c.arrives {
				t.Errorf("an answer from VRF %s arrives: %v, want %v\n%s", c.vrf, arrives, c.arrives, s.states())
			}
		}
	})
}
