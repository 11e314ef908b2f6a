// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// divertSite is a site whose host accepts diverted packets as its own.
type divertSite struct {
	*site
	six bool
}

func onDiverts(t *testing.T, f func(t *testing.T, s divertSite)) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{"ipv6/conf/lo/disable_ipv6": "0"}) }))
		s.run("ip", "link", "set", "lo", "up")
		s.run("ip", "rule", "add", "fwmark", "0xba5cd1", "lookup", "100")
		s.run("ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
		s.run("ip", "-6", "rule", "add", "fwmark", "0xba5cd1", "lookup", "100")
		s.run("ip", "-6", "route", "add", "local", "default", "dev", "lo", "table", "100")
		for _, six := range []bool{false, true} {
			f(t, divertSite{s, six})
		}
	})
}

// of returns the text for the site's family.
func (s divertSite) of(four, six string) string {
	if s.six {
		return six
	}
	return four
}

// tcp listens at the host with a transparent socket.
func (s divertSite) tcp(address string) (l net.Listener) {
	s.t.Helper()
	s.must(s.lab.Switch.Do(func() (err error) {
		l, err = (&net.ListenConfig{Control: netlab.Transparent}).Listen(context.Background(), "tcp", address)
		return err
	}))
	s.t.Cleanup(func() { l.Close() })
	return l
}

func (s divertSite) udp(address string) (l *net.UDPConn) {
	s.t.Helper()
	s.must(s.lab.Switch.Do(func() error {
		c, err := (&net.ListenConfig{Control: netlab.Transparent}).ListenPacket(context.Background(), "udp", address)
		if err == nil {
			l = c.(*net.UDPConn)
		}
		return err
	}))
	s.t.Cleanup(func() { l.Close() })
	return l
}

// dialFrom connects a transparent socket of the host, with a given source address.
func (s divertSite) dialFrom(network, from, to string) (conn net.Conn) {
	s.t.Helper()
	d := net.Dialer{Timeout: patience, Control: netlab.Transparent}
	if network == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
	} else {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))
	}
	s.must(s.lab.Switch.Do(func() (err error) {
		conn, err = d.Dial(network, to)
		return err
	}))
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// undiverted returns the number of packets that had no socket, by the counters of the ports and
// of pf.
func (s divertSite) undiverted() (n uint64) {
	s.t.Helper()
	for _, p := range s.lab.Ports("br0") {
		n += p.Drops["pf-divert"]
	}
	s.wantCounter("divert", n)
	return n
}

// wantCounter checks a counter of pfctl -s info.
func (s *site) wantCounter(name string, want uint64) {
	s.t.Helper()
	text := s.pfctl("", "-s", "info")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			if f[1] != fmt.Sprint(want) {
				s.t.Errorf("pfctl -s info counts %s %s, the ports count %d", f[1], name, want)
			}
			return
		}
	}
	s.t.Errorf("pfctl -s info has no %s:\n%s", name, text)
}

// originally reads a datagram, and returns its source and its original destination.
func (s divertSite) originally(l *net.UDPConn) (text string, from, to netip.AddrPort) {
	s.t.Helper()
	buf, more := make([]byte, 100), make([]byte, 200)
	s.must(l.SetReadDeadline(time.Now().Add(patience)))
	n, size, _, from, err := l.ReadMsgUDPAddrPort(buf, more)
	s.must(err)
	to, err = netlab.OriginalDst(more[:size])
	s.must(err)
	return string(buf[:n]), from, to
}

// A client's connection to another station ends at a transparent socket of the host, which sees
// the client's address and the original destination. When no rule diverts any more, the
// connection reaches its destination.
func TestDivertTo(t *testing.T) {
	onDiverts(t, func(t *testing.T, s divertSite) {
		to, listener, family := s.of("10.0.2.2:80", "[fd02::2]:80"), s.of("127.0.0.1:8021", "[::1]:8021"), s.of("inet", "inet6")
		socket := s.of("127.0.0.1", "::1")
		theirs := s.listen(1, "tcp", to).(net.Listener)
		theirs4 := s.listen(1, "udp", to).(net.PacketConn)
		tcp, udp := s.tcp(listener), s.udp(listener)
		rules := "pass\npass in on gw1 " + family + " proto { tcp udp } to port 80 divert-to " + socket + " port 8021\n"
		s.loadAnew(rules)

		conn, err := s.dial(0, "tcp", "", to)
		s.must(err)
		var asked string
		if peer := s.echoTCP(hears{tcp, &asked}, conn, 100000); peer.String() != conn.LocalAddr().String() || asked != to {
			t.Errorf("TCP of %v to %s: the socket sees %v to %s", conn.LocalAddr(), to, peer, asked)
		}
		if text := s.pfctl("", "-vv", "-s", "states"); !strings.Contains(text, " divert-to "+socket+" port 8021\n") {
			t.Errorf("the states do not say it:\n%s", text)
		}
		if text := s.pfctl("", "-s", "rules"); !strings.Contains(text, " divert-to "+socket+" port 8021\n") {
			t.Errorf("the rules do not say it:\n%s", text)
		}

		conn, err = s.dial(0, "udp", "", to)
		s.must(err)
		ask := func(c net.Conn, text string) {
			t.Helper()
			_, err := c.Write([]byte(text))
			s.must(err)
		}
		hear := func(c net.Conn, want string) {
			t.Helper()
			buf := make([]byte, 100)
			s.must(c.SetReadDeadline(time.Now().Add(patience)))
			n, err := c.Read(buf)
			s.must(err)
			if string(buf[:n]) != want {
				t.Errorf("%q arrives, want %q", buf[:n], want)
			}
		}
		ask(conn, "first")
		text, from, dst := s.originally(udp)
		if text != "first" || from.String() != conn.LocalAddr().String() || dst.String() != to {
			t.Errorf("UDP of %v to %s: the socket sees %q of %v to %v", conn.LocalAddr(), to, text, from, dst)
		}
		// The following packets are for the socket that was connected since then.
		own := s.dialFrom("udp", to, conn.LocalAddr().String())
		ask(own, "answer")
		hear(conn, "answer")
		ask(conn, "second")
		hear(own, "second")

		f := flow{0, 1, s.six, [2]uint16{1000, 80}, 0}
		if _, verdict := s.trace(s.frame(f)); verdict != "forwarded" {
			t.Errorf("a trace says %s", verdict)
		}
		// The host does not forward packets that have a socket.
		s.run("ip", s.of("-4", "-6"), "rule", "del", "fwmark", "0xba5cd1")
		s.wantPasses("without the host's rule", f, false)
		s.run("ip", s.of("-4", "-6"), "rule", "add", "fwmark", "0xba5cd1", "lookup", "100")
		// Without a listener no socket receives it.
		for _, flags := range []byte{0, syn} {
			f.flags = flags
			if flags == 0 {
				s.must(udp.Close())
			} else {
				s.must(tcp.Close())
			}
			steps, verdict := s.trace(s.frame(f))
			if verdict != "dropped: pf-divert" || !strings.Contains(strings.Join(steps, "\n"), "a socket of the host gets it, by divert-to "+socket+" port 8021") {
				t.Errorf("a trace without a listener says %s\n  %s", verdict, strings.Join(steps, "\n  "))
			}
			for range 2 {
				before := s.undiverted()
				s.wantPasses("without a listener", f, false)
				if s.undiverted() == before {
					t.Error("a packet without a listener is not counted")
				}
			}
		}

		tcp, udp = s.tcp(listener), s.udp(listener)
		s.loadAnew("pass\n")
		conn, err = s.dial(0, "tcp", "", to)
		s.must(err)
		s.echoTCP(theirs, conn, 1000)
		conn, err = s.dial(0, "udp", "", to)
		s.must(err)
		s.echoUDP(theirs4, conn, 100)
		// Packets for the sockets would have arrived by now.
		s.must(tcp.(*net.TCPListener).SetDeadline(time.Now().Add(time.Millisecond)))
		if _, err := tcp.Accept(); err == nil {
			t.Error("a connection arrives at the socket without a rule")
		}
		s.must(udp.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if _, _, err := udp.ReadFrom(make([]byte, 100)); err == nil {
			t.Error("a datagram arrives at the socket without a rule")
		}
		tcp.Close()
		udp.Close()
		theirs.Close()
		theirs4.Close()
	})
}

// hears records the destination of a connection.
type hears struct {
	net.Listener
	asked *string
}

func (h hears) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	if err == nil {
		*h.asked = c.LocalAddr().String()
	}
	return c, err
}

// The answers to a host's socket with the client's address reach that socket.
func TestDivertReply(t *testing.T) {
	onDiverts(t, func(t *testing.T, s divertSite) {
		to, client := s.of("10.0.2.2:80", "[fd02::2]:80"), s.of("10.0.1.2:4000", "[fd01::2]:4000")
		tcp := s.listen(1, "tcp", to).(net.Listener)
		udp := s.listen(1, "udp", to).(net.PacketConn)
		for _, rules := range []string{"pass\npass out on gw2 divert-reply\n", "pass\npass divert-reply\n"} {
			s.loadAnew(rules)
			if peer := s.echoTCP(tcp, s.dialFrom("tcp", client, to), 100000); peer.String() != client {
				t.Errorf("%q: the server sees %v, want %s", rules, peer, client)
			}
			if text := s.pfctl("", "-vv", "-s", "states"); !strings.Contains(text, " divert-reply\n") {
				t.Errorf("the states do not say it:\n%s", text)
			}
			own := s.dialFrom("udp", client, to)
			if peer := s.echoUDP(udp, own, 100); peer.String() != client {
				t.Errorf("%q: the server sees %v, want %s", rules, peer, client)
			}
			own.Close()
			client = strings.Replace(client, "4000", "4001", 1) // the former one is still in TIME_WAIT
		}
		// An answer without a socket.
		before := s.undiverted()
		own := s.dialFrom("udp", client, to)
		_, err := own.Write([]byte("who"))
		s.must(err)
		s.must(udp.SetReadDeadline(time.Now().Add(patience)))
		buf := make([]byte, 100)
		_, from, err := udp.ReadFrom(buf)
		s.must(err)
		s.must(own.Close())
		_, err = udp.WriteTo([]byte("nobody"), from)
		s.must(err)
		s.lab.Wait("the answer to be dropped", func() bool { return s.undiverted() > before })
		tcp.Close()
		udp.Close()
	})
}

// Impossible rules are refused with their place, and nothing is changed.
func TestDivertRefused(t *testing.T) {
	s := newSite(t, "tcx")
	s.load("pass\n")
	for _, c := range []struct{ rule, want string }{
		{"pass in on e1 divert-to 127.0.0.1 port 8021", "%d: divert-to: e1 is no host port, and the host has no sockets elsewhere; give a host port"},
		{"pass out on e1 divert-reply", "%d: divert-reply: e1 is no host port, and the host has no sockets elsewhere; give a host port"},
		{"pass out on gw1 divert-to 127.0.0.1 port 8021", "%d: divert-to used with outgoing rule"},
		{"pass in on gw1 inet6 divert-to 127.0.0.1 port 8021", "%d: divert-to address family mismatch; the rule is of inet6"},
		{"pass in on gw1 divert-to 127.0.0.1 port 0", "%d: invalid divert port; give one from 1 to 65535"},
		{"pass in on gw1 divert-to 127.0.0.1 port 8021 no state", "%d: divert-to: a rule that keeps no state diverts nothing; leave out no state"},
		{"pass in on gw1 divert-to 127.0.0.1 port 8021 route-to 10.0.2.2", "%d: divert-to: the packets cannot go to a next hop as well; leave out route-to"},
	} {
		rule, want := s.named(c.rule), s.named(strings.TrimPrefix(c.want, "%d: "))
		r := s.try("br0", rule+"\n", "-f", "-")
		lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
		if r.Exit == 0 || !strings.HasPrefix(lines[0], "stdin:1:") || !strings.Contains(r.Stderr, want) || !strings.Contains(r.Stderr, "\n    "+rule+"\n") ||
			!strings.Contains(lines[len(lines)-1], "^") && !strings.Contains(r.Stderr, " ^") {
			t.Errorf("%q: %v\nwant %s", rule, fmt.Sprint(r), want)
		}
		if text := s.pfctl("", "-s", "rules"); text != "pass all flags S/SA\n" {
			t.Errorf("%q has changed the rules to %q", rule, text)
		}
	}
}

// A socket sees a packet after NAT, and its client gets the answers from the address that it has
// used.
func TestDivertNAT(t *testing.T) {
	onDiverts(t, func(t *testing.T, s divertSite) {
		family, socket := s.of("inet", "inet6"), s.of("127.0.0.1", "::1")
		asks, becomes := s.of("10.0.1.1:80", "[fd01::1]:80"), s.of("10.0.2.2:8080", "[fd02::2]:8080")
		tcp, udp := s.tcp(s.of("127.0.0.1:8021", "[::1]:8021")), s.udp(s.of("127.0.0.1:8021", "[::1]:8021"))
		s.load("pass\npass in on gw1 " + family + " proto { tcp udp } to " + s.of("10.0.1.1", "fd01::1") + " port 80 rdr-to " + s.of("10.0.2.2", "fd02::2") +
			" port 8080 divert-to " + socket + " port 8021\n")
		s.pfctl("", "-F", "states")
		conn, err := s.dial(0, "tcp", "", asks)
		s.must(err)
		var asked string
		if peer := s.echoTCP(hears{tcp, &asked}, conn, 100000); peer.String() != conn.LocalAddr().String() || asked != becomes {
			t.Errorf("rdr-to, TCP of %v to %s: the socket sees %v to %s", conn.LocalAddr(), asks, peer, asked)
		}
		conn, err = s.dial(0, "udp", "", asks)
		s.must(err)
		_, err = conn.Write([]byte("first"))
		s.must(err)
		if text, from, dst := s.originally(udp); text != "first" || from.String() != conn.LocalAddr().String() || dst.String() != becomes {
			t.Errorf("rdr-to, UDP of %v to %s: the socket sees %q of %v to %v", conn.LocalAddr(), asks, text, from, dst)
		}
		own := s.dialFrom("udp", becomes, conn.LocalAddr().String())
		_, err = own.Write([]byte("answer"))
		s.must(err)
		buf := make([]byte, 100)
		s.must(conn.SetReadDeadline(time.Now().Add(patience)))
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "answer" {
			t.Errorf("rdr-to: the client hears %q, %v", buf[:n], err)
		}
		tcp.Close()
		udp.Close()

		to, client := s.of("10.0.2.2:80", "[fd02::2]:80"), s.of("10.0.1.2:4000", "[fd01::2]:4000")
		theirs := s.listen(1, "tcp", to).(net.Listener)
		theirUDP := s.listen(1, "udp", to).(net.PacketConn)
		s.loadAnew("pass\npass out on gw2 " + family + " nat-to " + s.of("10.0.2.1", "fd02::1") + " divert-reply\n")
		gateway := netip.MustParseAddr(s.of("10.0.2.1", "fd02::1"))
		if peer := s.echoTCP(theirs, s.dialFrom("tcp", client, to), 100000); peer.Addr() != gateway {
			t.Errorf("nat-to with divert-reply: the server sees %v", peer)
		}
		sender := s.dialFrom("udp", client, to)
		if peer := s.echoUDP(theirUDP, sender, 100); peer.Addr() != gateway {
			t.Errorf("nat-to with divert-reply: the server sees %v of UDP", peer)
		}
		sender.Close()
		theirs.Close()
		theirUDP.Close()
	})
}

// Fragments do not reach a socket, and neither does any packet if the host port does not route.
// Both are dropped.
func TestDivertNothing(t *testing.T) {
	onDiverts(t, func(t *testing.T, s divertSite) {
		udp := s.udp(s.of("127.0.0.1:8021", "[::1]:8021"))
		s.loadAnew("pass\npass in on gw1 " + s.of("inet", "inet6") + " proto udp to port 80 divert-to " + s.of("127.0.0.1", "::1") + " port 8021\n")
		conn, err := s.dial(0, "udp", "", s.of("10.0.2.2:80", "[fd02::2]:80"))
		s.must(err)
		nothing := func(what string, size int) {
			t.Helper()
			before := s.undiverted()
			arrived := s.sides[1].end.Received
			arrived()
			_, err = conn.Write(make([]byte, size))
			s.must(err)
			s.lab.Wait(what+" to be dropped", func() bool { return s.undiverted() > before })
			s.lab.Flush()
			for _, f := range arrived() {
				if proto := f[map[bool]int{false: 23, true: 20}[s.six]]; proto == unix.IPPROTO_UDP || s.six && proto == unix.IPPROTO_FRAGMENT {
					t.Errorf("%s arrives at the other station: %x", what, f)
				}
			}
			s.must(udp.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if n, _, err := udp.ReadFrom(make([]byte, 9000)); err == nil {
				t.Errorf("%s arrives at the socket, %d bytes", what, n)
			}
		}
		nothing("a datagram in fragments", 5000)
		_, err = conn.Write([]byte("whole"))
		s.must(err)
		if text, _, _ := s.originally(udp); text != "whole" {
			t.Errorf("the socket gets %q", text)
		}
		s.route(false)
		nothing("a datagram where no port routes", 5)
		s.route(true)
		udp.Close()
	})
}

// Packets to the address of a macvlan above the host's interface are diverted there.
func TestDivertMacvlan(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		d := divertSite{s, false}
		s.stations()
		s.run("ip", "link", "set", "lo", "up")
		s.run("ip", "rule", "add", "fwmark", "0xba5cd1", "lookup", "100")
		s.run("ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
		s.macvlan(netlink.MACVLAN_MODE_PRIVATE)
		near := s.sides[0].end
		_, err := near.Namespace.Output(context.Background(), ends.AnyCPU, "ip", "neigh", "replace", "10.0.1.1", "lladdr", vrrp.String(), "dev", near.Ifname, "nud", "permanent")
		s.must(err)
		tcp, udp := d.tcp("127.0.0.1:8021"), d.udp("127.0.0.1:8021")
		s.load("pass\npass in on gw1 inet proto { tcp udp } to port 80 divert-to 127.0.0.1 port 8021\n")
		conn, err := s.dial(0, "tcp", "", "10.0.2.2:80")
		s.must(err)
		var asked string
		if peer := s.echoTCP(hears{tcp, &asked}, conn, 100000); peer.String() != conn.LocalAddr().String() || asked != "10.0.2.2:80" {
			t.Errorf("the socket sees %v to %s", peer, asked)
		}
		conn, err = s.dial(0, "udp", "", "10.0.2.2:80")
		s.must(err)
		_, err = conn.Write([]byte("first"))
		s.must(err)
		if text, from, to := d.originally(udp); text != "first" || from.String() != conn.LocalAddr().String() || to.String() != "10.0.2.2:80" {
			t.Errorf("the socket sees %q of %v to %v", text, from, to)
		}
	})
}
