// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// listen listens at the station of a side.
func (s *site) listen(side int, network, address string) (l io.Closer) {
	s.t.Helper()
	s.must(s.sides[side].end.Namespace.Do(func() (err error) {
		if strings.HasPrefix(network, "tcp") {
			l, err = net.Listen(network, address)
		} else {
			l, err = net.ListenPacket(network, address)
		}
		return err
	}))
	s.t.Cleanup(func() { l.Close() })
	return l
}

// dial connects the station of a side with an address.
func (s *site) dial(side int, network, from, to string) (conn net.Conn, err error) {
	s.t.Helper()
	s.must(s.sides[side].end.Namespace.Do(func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		if network == "tcp" {
			d.Timeout = patience
			if from != "" {
				d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
			}
		} else if from != "" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))
		}
		conn, err = d.Dial(network, to)
		return nil
	}))
	if err == nil {
		s.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// echoTCP has the connection send some bytes to a listener and get them back. It returns the
// client's address as the server sees it.
func (s *site) echoTCP(l net.Listener, conn net.Conn, size int) netip.AddrPort {
	s.t.Helper()
	sent := bytes.Repeat([]byte("bascule "), size/8)
	done := make(chan error, 1)
	var peer netip.AddrPort
	go func() {
		in, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer in.Close()
		peer = in.RemoteAddr().(*net.TCPAddr).AddrPort()
		_, err = io.Copy(in, in)
		done <- err
	}()
	go func() {
		if _, err := conn.Write(sent); err != nil {
			s.t.Error(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	s.must(conn.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(conn)
	s.must(errors.Join(err, <-done))
	if !bytes.Equal(got, sent) {
		s.t.Errorf("%d bytes come back of %d, or others", len(got), len(sent))
	}
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
}

// echoUDP sends a datagram and gets it back: the client's address as the server sees it.
func (s *site) echoUDP(l net.PacketConn, conn net.Conn, size int) netip.AddrPort {
	s.t.Helper()
	sent, buf := bytes.Repeat([]byte{'u'}, size), make([]byte, 65536)
	var peer net.Addr
	s.lab.Wait("a datagram and its answer", func() bool {
		_, err := conn.Write(sent)
		s.must(err)
		s.must(l.SetReadDeadline(time.Now().Add(time.Second)))
		n, from, err := l.ReadFrom(buf)
		if err != nil {
			return false
		}
		peer = from
		if !bytes.Equal(buf[:n], sent) {
			s.t.Errorf("%d bytes arrive of %d, or others", n, len(sent))
		}
		_, err = l.WriteTo(buf[:n], from)
		s.must(err)
		s.must(conn.SetReadDeadline(time.Now().Add(time.Second)))
		n, err = conn.Read(buf)
		return err == nil && bytes.Equal(buf[:n], sent)
	})
	p := peer.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// ping has the station of a side ping an address, and says whether it is answered.
func (s *site) ping(side int, to string, more ...string) bool {
	s.t.Helper()
	args := append([]string{"-n", "-c", "1", "-W", "5", to}, more...)
	_, err := s.sides[side].end.Namespace.Output(context.Background(), ends.AnyCPU, "ping", args...)
	return err == nil
}

// states are the lines of pfctl -s states.
func (s *site) states() string { return s.pfctl("", "-s", "states") }

// Connections of real stations from behind a translated address, and to one: the other
// station sees the translation, and every byte arrives.
func TestNATStations(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		tcp4 := s.listen(1, "tcp", "10.0.2.2:7").(net.Listener)
		tcp6 := s.listen(1, "tcp", "[fd02::2]:7").(net.Listener)
		udp4 := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
		udp6 := s.listen(1, "udp", "[fd02::2]:7").(net.PacketConn)
		for _, c := range []struct {
			name, rules      string
			from             string // of the client
			four, six        string // what the client asks
			peer4, peer6     string // what the server sees, "" for the client's own
			low, high        uint16 // ports that the server may see, 0 for any
			host4, host6     string // to be pinged
			state4, notState string
		}{
			{
				name: "match nat-to", rules: "match out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1\npass",
				four: "10.0.2.2:7", six: "[fd02::2]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 50001, high: 65535, host4: "10.0.2.2", host6: "fd02::2",
				state4: "all tcp 10.0.2.1:",
			}, {
				name: "pass nat-to the interface", rules: "pass\npass out on gw2 from gw1:network nat-to (gw2:0) port 6000:6100",
				four: "10.0.2.2:7", six: "[fd02::2]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 6000, high: 6100, host4: "10.0.2.2", host6: "fd02::2",
				state4: "all udp 10.0.2.1:",
			}, {
				name: "rdr-to", rules: "pass\nmatch in on gw1 inet proto { tcp, udp } to 10.0.1.1 port 80 rdr-to 10.0.2.2 port 7\npass in on gw1 inet6 to fd01::1 rdr-to fd02::2 port 7\npass in on gw1 inet proto icmp to 10.0.1.9 rdr-to 10.0.2.2",
				four: "10.0.1.1:80", six: "[fd01::1]:80", host4: "10.0.1.9", host6: "fd01::1", state4: " -> 10.0.2.2:7 (10.0.1.1:80) ",
			}, {
				name: "both, without on", rules: "pass\nmatch in inet to 10.0.1.1 rdr-to 10.0.2.2\nmatch in inet6 to fd01::1 rdr-to fd02::2\nmatch out inet to 10.0.2.2 nat-to 10.0.2.1\nmatch out inet6 to fd02::2 nat-to fd02::1 static-port\n",
				four: "10.0.1.1:7", six: "[fd01::1]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 1024, high: 65535, host4: "10.0.1.1", host6: "fd01::1", state4: " -> 10.0.2.2:7 (10.0.1.1:7) ",
			},
		} {
			for _, on := range []bool{true, false} {
				s.route(on)
				s.ip("neigh replace 10.0.1.9 lladdr 02:00:00:00:00:99 dev gw1 nud permanent")
				what := fmt.Sprintf("%s, shortcut %v", c.name, on)
				s.load(c.rules + "\n")
				s.pfctl("", "-F", "states")
				check := func(peer netip.AddrPort, conn net.Conn, want string) {
					t.Helper()
					if want == "" {
						if peer.String() != conn.LocalAddr().String() {
							t.Errorf("%s: the server sees %v, want the client's %v", what, peer, conn.LocalAddr())
						}
						return
					}
					if peer.Addr().String() != want || peer.Port() < c.low || peer.Port() > c.high {
						t.Errorf("%s: the server sees %v, want %s and a port of %d:%d", what, peer, want, c.low, c.high)
					}
				}
				before := s.routed()
				for _, v := range []struct {
					to, peer string
					tcp      net.Listener
					udp      net.PacketConn
				}{{c.four, c.peer4, tcp4, udp4}, {c.six, c.peer6, tcp6, udp6}} {
					conn, err := s.dial(0, "tcp", "", v.to)
					s.must(err)
					check(s.echoTCP(v.tcp, conn, 1<<20), conn, v.peer)
					conn, err = s.dial(0, "udp", "", v.to)
					s.must(err)
					check(s.echoUDP(v.udp, conn, 100), conn, v.peer)
					check(s.echoUDP(v.udp, conn, 5000), conn, v.peer) // in fragments
				}
				if n := s.routed() - before; (n > 20) != on {
					t.Errorf("%s: the datapath has routed %d packets", what, n)
				}
				if c.host4 != "10.0.1.9" && !s.ping(0, c.host4) {
					t.Errorf("%s: no answer from %s\n%s", what, c.host4, s.pfctl("", "-vv", "-s", "states"))
				}
				if !s.ping(0, c.host6) {
					t.Errorf("%s: no answer from %s\n%s", what, c.host6, s.pfctl("", "-vv", "-s", "states"))
				}
				if text := s.states(); !strings.Contains(text, c.state4) {
					t.Errorf("%s: the states have no %q:\n%s", what, c.state4, text)
				}
			}
		}
		if d := s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-translate"] + s.lab.Port("br0", "gw2").Drops["pf-translate"]; d != 0 {
			t.Errorf("%d packets were not translated", d)
		}
	})
}

var _ = netlab.Broadcast
