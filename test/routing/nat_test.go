// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// listen listens at the station of a side.
func (s *site) listen(side int, network, address string) (l io.Closer) {
	s.t.Helper()
	// The address is not free at once after a listener was closed.
	s.lab.Wait(address+" to be free", func() bool {
		err := s.sides[side].end.Namespace.Do(func() (err error) {
			if strings.HasPrefix(network, "tcp") {
				l, err = net.Listen(network, address)
			} else {
				l, err = net.ListenPacket(network, address)
			}
			return err
		})
		if errors.Is(err, unix.EADDRINUSE) {
			return false
		}
		s.must(err)
		return true
	})
	s.t.Cleanup(func() { l.Close() })
	return l
}

// dial connects the station of a side to an address.
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

// echoTCP sends bytes over the connection to a listener and back. It returns the client's address as the server sees
// it.
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

// echoUDP sends a datagram to a listener and back. It returns the client's address as the server sees it.
func (s *site) echoUDP(l net.PacketConn, conn net.Conn, size int) netip.AddrPort {
	s.t.Helper()
	sent, buf := bytes.Repeat([]byte{'u'}, size), make([]byte, 65536)
	var peer net.Addr
	s.lab.Wait("a datagram and its answer", func() bool {
		_, err := conn.Write(sent)
		if errors.Is(err, unix.EMSGSIZE) { // the socket has learned the path MTU: it fragments the next one
			return false
		}
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

// ping pings an address from the station of a side, and reports whether it answered.
func (s *site) ping(side int, to string, more ...string) bool {
	s.t.Helper()
	args := append([]string{"-n", "-c", "1", "-w", "60", to}, more...)
	_, err := s.sides[side].end.Namespace.Output(context.Background(), ends.AnyCPU, "ping", args...)
	return err == nil
}

// states returns the output of pfctl -s states.
func (s *site) states() string { return s.pfctl("", "-s", "states") }

// Connections of real stations from behind a translated address, and to one: the other station sees the translated
// address, and every byte arrives.
func TestNATStations(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		tcp4 := s.listen(1, "tcp", "10.0.2.2:7").(net.Listener)
		tcp6 := s.listen(1, "tcp", "[fd02::2]:7").(net.Listener)
		udp4 := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
		udp6 := s.listen(1, "udp", "[fd02::2]:7").(net.PacketConn)
		for _, c := range []struct {
			name, rules      string
			from             string // source of the client
			four, six        string // destination of the client
			peer4, peer6     string // the client's address as the server sees it, "" for its own
			low, high        uint16 // range of ports that the server may see, 0 for any
			host4, host6     string // targets of pings
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
			}, {
				name: "FreeBSD's lines", rules: "nat on gw2 inet from 10.0.1.0/24 to any -> (gw2)\nnat on gw2 inet6 from fd01::/64 to any -> fd02::1\nrdr pass on gw1 inet proto { tcp, udp } to 10.0.1.1 port 80 -> 10.0.2.2 port 7\npass",
				four: "10.0.1.1:80", six: "[fd02::2]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 50001, high: 65535, host4: "10.0.2.2", host6: "fd02::2", state4: " -> 10.0.2.2:7 (10.0.1.1:80) ",
			}, {
				name: "FreeBSD's lines alone", rules: "nat on gw2 inet from 10.0.1.0/24 to any -> (gw2)\nnat on gw2 inet6 from fd01::/64 to any -> fd02::1\n" +
					"rdr on gw1 inet proto { tcp, udp } to 10.0.1.1 port 80 -> 10.0.2.2 port 7",
				four: "10.0.1.1:80", six: "[fd02::2]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 50001, high: 65535, host4: "10.0.2.2", host6: "fd02::2", state4: " -> 10.0.2.2:7 (10.0.1.1:80) ",
			}, {
				name: "binat-to", rules: "pass\nmatch on gw2 inet from 10.0.1.2 to any binat-to 10.0.2.1\nmatch on gw2 inet6 from fd01::2 binat-to fd02::1",
				four: "10.0.2.2:7", six: "[fd02::2]:7", peer4: "10.0.2.1", peer6: "fd02::1", low: 1024, high: 65535, host4: "10.0.2.2", host6: "fd02::2", state4: "all tcp 10.0.2.1:",
			},
		} {
			for _, on := range []bool{true, false} {
				if !on && (c.name == "binat-to" || strings.HasPrefix(c.name, "FreeBSD's lines")) {
					continue // another form of the former rule
				}
				s.route(on)
				s.ip("neigh replace 10.0.1.9 lladdr 02:00:00:00:00:99 dev gw1 nud permanent")
				what := fmt.Sprintf("%s, shortcut %v", c.name, on)
				s.loadAnew(c.rules + "\n")
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
				// -M finds the state of the way into the host by the state of the way out.
				s.pfctl("", "-M", "-i", "gw2", "-F", "states")
				if text := s.states(); strings.Contains(text, "tcp") || strings.Contains(text, "udp") {
					t.Errorf("%s: -M leaves states:\n%s", what, text)
				}
			}
		}
		if d := s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-translate"] + s.lab.Port("br0", "gw2").Drops["pf-translate"]; d != 0 {
			t.Errorf("%d packets were not translated", d)
		}
	})
}

// errorsOf sends a packet whose time to live ends on the way, or without a receiver, and returns the source of the
// error.
func (s *site) errorsOf(side int, to string, ttl int) string {
	s.t.Helper()
	out, _ := s.sides[side].end.Namespace.Output(context.Background(), ends.AnyCPU, "ping", "-n", "-c", "1", "-W", "5", "-t", fmt.Sprint(ttl), to)
	return string(out)
}

// An ICMP error about a translated packet reaches the packet's sender and quotes the original packet: a socket gets the
// error of a closed port, and ping reports that the time to live has ended.
func TestNATErrors(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.load("pass\nmatch out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1\n" +
			"match in on gw1 inet to 10.0.1.9 rdr-to 10.0.2.2\nmatch in on gw1 inet6 to fd01::9 rdr-to fd02::2\n")
		for _, on := range []bool{true, false} {
			s.route(on)
			for _, to := range []string{"10.0.2.2", "fd02::2", "10.0.1.9", "fd01::9"} {
				// The station of the first side resolves the other address to its gateway, too.
				if strings.HasSuffix(to, "9") {
					s.neighbour(0, to)
				}
				conn, err := s.dial(0, "udp", "", net.JoinHostPort(to, "9"))
				s.must(err)
				s.lab.Wait("an error about a closed port at "+to, func() bool {
					_, err = conn.Write([]byte("anybody"))
					if err == nil {
						s.must(conn.SetReadDeadline(time.Now().Add(time.Second)))
						_, err = conn.Read(make([]byte, 10))
					}
					return err != nil && strings.Contains(err.Error(), "refused")
				})
				// The host answers for its own hop, which precedes the outbound translation.
				if text := s.errorsOf(0, to, 1); !strings.Contains(text, "exceeded") {
					t.Errorf("to %s with a TTL of 1: %s", to, text)
				}
			}
		}
	})
}

// upper returns the checksum in the transport header of a packet, and the right value: for TCP and UDP with the
// pseudo-header, for ICMP without.
func upper(packet []byte) (has, want uint16) {
	header, proto, pseudo := 20, packet[9], []byte{}
	if packet[0]>>4 == 6 {
		header, proto = 40, packet[6]
		pseudo = append(pseudo, packet[8:40]...)
	} else {
		header = int(packet[0]&15) * 4
		pseudo = append(pseudo, packet[12:20]...)
	}
	load := slices.Clone(packet[header:])
	at := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[proto]
	has = binary.BigEndian.Uint16(load[at:])
	clear(load[at : at+2])
	if proto == unix.IPPROTO_ICMP {
		pseudo = nil
	} else {
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(load)))
		pseudo = append(pseudo, 0, 0, 0, proto)
	}
	return has, checksum(append(pseudo, append(load, make([]byte, len(load)%2)...)...))
}

// The quote in an ICMP error about a translated packet equals the sent packet byte by byte, except for the time to
// live, with its checksum (RFC 5508, REQ-4 and REQ-5). If the quote ends before the checksum, or has none, none is
// added. An error that quotes a header with a wrong checksum is dropped (REQ-3).
func TestNATQuotes(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		near, far := s.sides[0], s.sides[1]
		for _, c := range []struct {
			rules string
			to4   string // the sender's destination, "" for the station itself
			to6   string
		}{
			{"pass\nmatch out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1\n", "", ""},
			{"pass\nmatch in on gw1 inet to 10.0.1.9 rdr-to 10.0.2.2\nmatch in on gw1 inet6 to fd01::9 rdr-to fd02::2\n", "10.0.1.9", "fd01::9"},
			{"pass\nmatch in on gw1 inet proto { tcp udp } to 10.0.1.9 port 4000 rdr-to 10.0.2.2 port 7\nmatch in on gw1 inet6 proto { tcp udp } to fd01::9 port 4000 rdr-to fd02::2 port 7\n" +
				"match out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1 port 7000:7100\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1 port 7000:7100\n", "10.0.1.9", "fd01::9"},
			{"pass\nmatch modulate state\n", "", ""},
		} {
			s.loadAnew(strings.Replace(c.rules, "match modulate state", "pass in on gw1 inet proto tcp modulate state\npass in on gw1 inet6 proto tcp modulate state", 1))
			for _, six := range []bool{false, true} {
				src, dst, header := near.station4, far.station4, 20
				if six {
					src, dst, header = near.station6, far.station6, 40
				}
				if ask := map[bool]string{false: c.to4, true: c.to6}[six]; ask != "" {
					dst = netip.MustParseAddr(ask)
				}
				for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP} {
					if proto == unix.IPPROTO_ICMP && strings.Contains(c.rules, "proto { tcp udp }") {
						continue
					}
					r := recipe{six: six, src: src, dst: dst, ttl: 64, proto: proto, size: 40, tag: -1, icmp: 8}
					if six && proto == unix.IPPROTO_ICMP {
						r.proto, r.icmp = unix.IPPROTO_ICMPV6, 128
					}
					for kind, quoted := range map[string]int{"whole": header + 40, "8 bytes": header + 8, "without a checksum": header + 40, "a wrong header": header + 40} {
						if kind == "without a checksum" && (six || proto != unix.IPPROTO_UDP) || kind == "a wrong header" && six {
							continue
						}
						what := fmt.Sprintf("%q, IPv6 %v, protocol %d, %s", c.rules, six, r.proto, kind)
						s.made++
						f := []byte(r.frame(s, s.made))
						sent := f[14:]
						load := sent[header:]
						if proto == unix.IPPROTO_TCP {
							binary.BigEndian.PutUint32(load[4:], 1000)
							binary.BigEndian.PutUint32(load[8:], 0)
							load[12], load[13] = 5<<4, syn
							clear(load[18:20]) // no urgent data
						}
						at := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2}[proto]
						clear(load[at : at+2])
						if kind != "without a checksum" {
							_, sum := upper(sent)
							binary.BigEndian.PutUint16(load[at:], sum)
						}
						got := slices.DeleteFunc(s.lab.Deliver(near.end, netlab.Frame(f))[far.end], func(f netlab.Frame) bool {
							return f[12:14] != netlab.Frame(map[bool]string{false: "\x08\x00", true: "\x86\xdd"}[six]) || f[14+map[bool]int{false: 9, true: 6}[six]] != r.proto
						})
						if len(got) != 1 {
							t.Fatalf("%s: there arrives %q", what, got)
						}
						arrived := []byte(got[0])[14:]
						if has, want := upper(arrived); has != want && kind != "without a checksum" {
							t.Fatalf("%s: a packet arrives with the checksum %x, want %x", what, has, want)
						}
						quote := slices.Clone(arrived[:quoted])
						if kind == "a wrong header" {
							quote[10] ^= 1
						}
						back := s.errorAbout(six, quote)
						var hears []netlab.Frame
						for _, f := range s.lab.Deliver(far.end, back)[near.end] {
							if b := []byte(f)[14:]; len(b) > header+8 && (six && b[6] == unix.IPPROTO_ICMPV6 && b[header] == 1 || !six && f[12:14] == "\x08\x00" && b[9] == unix.IPPROTO_ICMP && b[header] == 3) {
								hears = append(hears, f)
							}
						}
						if kind == "a wrong header" && !strings.Contains(c.rules, "modulate") {
							if len(hears) != 0 {
								t.Errorf("%s: the sender hears %x", what, hears)
							}
							continue
						}
						if len(hears) != 1 {
							t.Errorf("%s: the sender hears of it %d times", what, len(hears))
							continue
						}
						b := []byte(hears[0])[14:]
						if has, want := upper(b); has != want {
							t.Errorf("%s: the error has the checksum %x, want %x", what, has, want)
						}
						// The time to live was decremented before the packet was quoted.
						want := slices.Clone(sent[:quoted])
						if six {
							want[7]--
						} else {
							want[8]--
							clear(want[10:12])
							binary.BigEndian.PutUint16(want[10:], checksum(want[:20]))
						}
						if kind == "a wrong header" {
							want[10] ^= 1
						}
						if !bytes.Equal(b[header+8:], want) {
							t.Errorf("%s: the error quotes\n%x, sent was\n%x", what, b[header+8:], want)
						}
					}
				}
			}
		}
	})
}

// errorAbout returns the second station's error about a received packet to a closed port.
func (s *site) errorAbout(six bool, quote []byte) netlab.Frame {
	far := s.sides[1]
	r := recipe{six: six, src: far.station4, ttl: 64, proto: unix.IPPROTO_ICMP, size: 8 + len(quote), tag: -1}
	header, icmp := 20, []byte{3, 3}
	if six {
		r.src, r.dst, r.proto = far.station6, netip.AddrFrom16([16]byte(quote[8:])), unix.IPPROTO_ICMPV6
		header, icmp = 40, []byte{1, 4}
	} else {
		r.dst = netip.AddrFrom4([4]byte(quote[12:]))
	}
	r.begin = append(append(icmp, 0, 0, 0, 0, 0, 0), quote...)
	b := []byte(r.frame(s, 1))
	copy(b, far.mac[:])
	copy(b[6:], far.end.MAC[:])
	_, sum := upper(b[14:])
	binary.BigEndian.PutUint16(b[14+header+2:], sum)
	return netlab.Frame(b)
}

// neighbour adds an address of its gateway to the neighbour table of a side's station.
func (s *site) neighbour(side int, address string) {
	s.t.Helper()
	e := s.sides[side].end
	_, err := e.Namespace.Output(context.Background(), ends.AnyCPU, "ip", "neigh", "replace", address, "lladdr", s.sides[side].mac.String(), "dev", e.Ifname, "nud", "permanent")
	s.must(err)
}

// A trace shows the translated packet, and the host's route for it. States, rules and JSON show the translation, too.
func TestNATTold(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		s.load("pass\nanchor a {\nmatch in on gw1 inet proto udp to 10.0.2.2 rdr-to 10.0.2.3 port 2001\n}\n")
		want := "pf: translates it: it goes on from 10.0.1.2:1000 to 10.0.2.3:2001"
		for _, known := range []bool{false, true} {
			steps, _ := s.trace(s.frame(f))
			text := strings.Join(steps, "\n  ")
			if !strings.Contains(text, want) || !strings.Contains(text, otherHop.String()) {
				t.Errorf("a trace, of a known connection %v, says\n  %s", known, text)
			}
			// A state names the rule that has passed the first packet, not a match rule.
			if by := "pf in: rule 0 of anchor a at gw1: match in on gw1 inet proto udp "; strings.Contains(text, by) == known {
				t.Errorf("of a known connection %v the match rule should be named where it is asked:\n  %s", known, text)
			}
			s.wantPasses("rdr-to another station", f, true)
		}
		if text := s.states(); !strings.Contains(text, "all udp 10.0.1.2:1000 -> 10.0.2.3:2001 (10.0.2.2:2000) ") {
			t.Errorf("the states are\n%s", text)
		}
		var states []struct{ Translated *struct{ Src, Dst string } }
		s.lab.JSON(&states, "pfctl", "-b", "br0", "-s", "states")
		n := 0
		for _, st := range states {
			if st.Translated != nil && st.Translated.Src == "10.0.1.2" && st.Translated.Dst == "10.0.2.3" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d translated states as JSON, want 1", n)
		}
		if text := s.pfctl("", "-s", "nat"); text != "match in on gw1 inet proto udp from any to 10.0.2.2 rdr-to 10.0.2.3 port 2001\n" {
			t.Errorf("the rules that translate are\n%s", text)
		}
	})
}

// discovery returns a neighbour discovery message (RFC 4861), from the host to a station or the other way round.
func (s *site) discovery(out bool, to string, typ, hops byte) netlab.Frame {
	side := s.sides[1]
	src, dst, from := side.mac, side.end.MAC, side.ip6.Addr()
	if !out {
		src, dst, from = side.end.MAC, side.mac, side.station6
	}
	at := netip.MustParseAddr(to)
	if at.IsMulticast() {
		last := at.As16()
		dst = netlab.MAC(append([]byte{0x33, 0x33}, last[12:]...))
	}
	message := make([]byte, 24)
	message[0] = typ
	copy(message[8:], at.AsSlice())
	pseudo := slices.Concat(from.AsSlice(), at.AsSlice(), []byte{0, 0, 0, byte(len(message)), 0, 0, 0, unix.IPPROTO_ICMPV6}, message)
	sum := uint32(0)
	for ; len(pseudo) > 0; pseudo = pseudo[2:] {
		sum += uint32(binary.BigEndian.Uint16(pseudo))
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum>>16+sum))
	return netlab.Frame(slices.Concat(dst[:], src[:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, hops},
		from.AsSlice(), at.AsSlice(), message))
}

// Rules that translate, or have a next hop, do not affect neighbour discovery on its own link: it passes unchanged. A
// packet whose hop limit shows that it was routed is no such message, and must not bypass a translation.
func TestNATDiscovery(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		host, station := s.lab.Listen(s.lab.Switch, "gw2"), s.sides[1].end
		l := s.listen(1, "tcp", "[fd02::2]:7").(net.Listener)
		for _, c := range []struct {
			rule string
			out  bool
		}{
			{"match out on gw2 nat-to (gw2)", true},
			{"match out on gw2 inet6 nat-to fd02::9", true},
			{"pass out on gw2 inet6 nat-to fd02::9", true},
			{"match out on gw2 inet6 rdr-to fd01::2", true},
			{"pass out on gw2 inet6 proto icmp6 route-to fd01::2", true},
			{"match in on gw2 proto icmp6 rdr-to fd01::2", false},
			{"match in on gw2 inet6 nat-to fd02::9", false},
			{"pass in on gw2 inet6 proto icmp6 to fd02::/96 af-to inet from 10.0.1.1", false},
			{"pass in on gw2 inet6 proto icmp6 af-to inet from 10.0.1.1 to 10.0.1.2", false},
			{"pass in on gw2 inet6 proto icmp6 route-to fd01::2", false},
			{"pass in on gw2 inet6 proto icmp6 reply-to fd01::2", false},
		} {
			s.loadAnew("pass\n" + c.rule)
			for typ := byte(133); typ <= 137; typ++ {
				for _, to := range []string{"ff02::1", "ff02::2", map[bool]string{true: "fd02::2", false: "fd02::1"}[c.out]} {
					for _, hops := range []byte{255, 64} {
						// Its address does not change, or only answers are redirected, or it is
						// not routed.
						same := strings.Contains(c.rule, "(gw2)") || strings.Contains(c.rule, "reply-to") || strings.HasPrefix(to, "ff")
						if same && hops < 255 {
							continue
						}
						s.pfctl("", "-F", "states")
						f := s.discovery(c.out, to, typ, hops)
						other := func(got netlab.Frame) bool { return got != f }
						got := 0
						if c.out {
							station.Received()
							s.lab.Send(host, f)
							got = len(slices.DeleteFunc(station.Received(), other))
						} else {
							host.Received()
							s.lab.Send(station, f)
							got = len(slices.DeleteFunc(host.Received(), other))
						}
						if want := map[bool]int{true: 1}[hops == 255]; got != want {
							t.Errorf("%s: %d of type %d to %s with a hop limit of %d come, want %d", c.rule, got, typ, to, hops, want)
						}
					}
				}
			}
		}
		// The host resolves its station's address, and the other way round.
		s.loadAnew("pass\nmatch out on gw2 nat-to (gw2)\nmatch in on gw2 proto icmp6 rdr-to fd01::2\n")
		s.ip("neigh del fd02::2 dev gw2")
		var conn net.Conn
		s.must(s.lab.Switch.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", "[fd02::2]:7", patience)
			return err
		}))
		defer conn.Close()
		s.echoTCP(l, conn, 1<<10)
	})
}

// A packet that a rule translates and passes without a state would have no way back. It is dropped as pf-translate.
func TestNATWithoutState(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		dropped := func() (n uint64) {
			for _, port := range []string{s.sides[0].end.Port, "gw1", "gw2"} {
				n += s.lab.Port("br0", port).Drops["pf-translate"]
			}
			return n
		}
		echo := func() netlab.Frame { // an unsolicited answer
			return recipe{src: s.sides[0].station4, dst: s.sides[1].station4, ttl: 64, proto: unix.IPPROTO_ICMP, size: 40, tag: -1}.frame(s, 0)
		}
		for _, c := range []struct {
			rules  string
			passes bool
		}{
			{"pass no state\nmatch out on gw2 inet nat-to 10.0.2.1", false},
			{"match out on gw2 inet nat-to 10.0.2.1", false},
			{"match in on gw1 inet rdr-to 10.0.2.3", false},
			{"pass\nmatch out on gw2 inet from 10.9.0.0/16 nat-to 10.0.2.1", true},
			{"pass\nmatch out on gw2 inet nat-to 10.0.2.1", true},
			{"pass\nmatch out on gw2 inet nat-to (e1)", false},            // a port without an address
			{"pass\nmatch in on e1 inet nat-to 10.0.2.1", false},          // not an address of the host
			{"pass\nmatch in inet to 10.0.2.2 rdr-to 169.254.1.1", false}, // not routable
		} {
			s.pfctl("", "-F", "states")
			s.load(c.rules + "\n")
			before := dropped()
			s.wantPasses(c.rules, f, c.passes)
			s.wantPasses(c.rules+", again", f, c.passes)
			want := uint64(0)
			if !c.passes {
				want = 2
			}
			if n := dropped() - before; n != want {
				t.Errorf("%s: %d packets were not translated, want %d", c.rules, n, want)
			}
		}
		s.load("pass\nmatch out on gw2 inet nat-to 10.0.2.1\n")
		before := dropped()
		if got := s.lab.Deliver(s.sides[0].end, echo())[s.sides[1].end]; len(got) > 0 {
			t.Errorf("an answer without a question arrives as %x", []byte(got[0]))
		}
		if n := dropped() - before; n != 1 {
			t.Errorf("%d answers without a question were not translated, want 1", n)
		}
	})
}

// Connections survive a reload of the rules, rules without the translation, and another limit, which moves their states
// to another table.
func TestNATReload(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		l := s.listen(1, "tcp", "10.0.2.2:7").(net.Listener)
		const rules = "pass\nmatch out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1\n"
		s.load(rules)
		conn, err := s.dial(0, "tcp", "", "10.0.2.2:7")
		s.must(err)
		in, err := l.Accept()
		s.must(err)
		defer in.Close()
		talk := func(what string) {
			t.Helper()
			for _, c := range [][2]net.Conn{{conn, in}, {in, conn}} {
				buf := make([]byte, 5)
				_, err := c[0].Write([]byte("hello"))
				s.must(err)
				s.must(c[1].SetReadDeadline(time.Now().Add(patience)))
				if _, err := io.ReadFull(c[1], buf); err != nil {
					t.Fatalf("%s: %v\n%s", what, err, s.states())
				}
			}
		}
		talk("at first")
		for i, next := range []string{rules, "set limit states 5000\n" + rules, "set limit states 200000\n" + rules, "pass\n", "block\n", rules, "set limit states 3000\n" + rules} {
			s.load(next)
			talk(fmt.Sprintf("after reload %d", i))
		}
		s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn")
		talk("after a change of a port")
		if n := strings.Count(s.states(), "(10.0.1.2:"); n != 1 {
			t.Errorf("%d translated states:\n%s", n, s.states())
		}
		s.pfctl("", "-F", "states")
		if n := strings.Count(s.states(), "(10.0.1.2:"); n != 0 {
			t.Errorf("%d translated states are left:\n%s", n, s.states())
		}
	})
}

// sourceOf returns the source of a flow's packet as it arrives, "" if it does not arrive.
func (s *site) sourceOf(f flow) string {
	s.t.Helper()
	for _, got := range s.lab.Deliver(s.sides[f.from].end, s.frame(f))[s.sides[f.to].end] {
		return netip.AddrFrom4([4]byte([]byte(got)[14+12:])).String()
	}
	return ""
}

// A table is a pool. Changes of the table affect the next connection, and known ones continue.
func TestNATTable(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.load("table <p> persist { 10.0.2.10, 10.0.2.11 }\npass\nmatch out on gw2 inet proto udp nat-to <p>\n")
		port := uint16(2000)
		want := func(what string, sources ...string) {
			t.Helper()
			seen := map[string]int{}
			for range max(1, 2*len(sources)) {
				port++
				seen[s.sourceOf(flow{0, 1, false, [2]uint16{port, 53}, 0})]++
			}
			for _, a := range sources {
				if seen[a] != 2 {
					t.Errorf("%s: %d connections are from %s, want 2 in turn: %v", what, seen[a], a, seen)
				}
			}
			if len(sources) == 0 && seen[""] != 1 {
				t.Errorf("%s: a connection goes on from an empty pool: %v", what, seen)
			}
		}
		old := flow{0, 1, false, [2]uint16{1999, 53}, 0}
		first := s.sourceOf(old)
		for _, on := range []bool{true, false} {
			s.route(on)
			want("at first", "10.0.2.10", "10.0.2.11")
			s.pfctl("", "-t", "p", "-T", "add", "10.0.2.12/31", "!10.0.2.13")
			want("with one more", "10.0.2.10", "10.0.2.11", "10.0.2.12")
			s.pfctl("", "-t", "p", "-T", "replace", "10.0.2.20")
			want("replaced", "10.0.2.20")
			s.pfctl("", "-t", "p", "-T", "flush")
			before := s.lab.Port("br0", "gw2").Drops["pf-translate"]
			want("empty")
			if n := s.lab.Port("br0", "gw2").Drops["pf-translate"] - before; n != 1 {
				t.Errorf("%d packets are counted as not translated, want 1", n)
			}
			if now := s.sourceOf(old); now != first {
				t.Errorf("a known connection is from %q now, was from %q", now, first)
			}
			s.pfctl("", "-t", "p", "-T", "add", "10.0.2.10", "10.0.2.11")
			// The change of the port compiles the rules again, with the present contents of the table.
			s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn")
		}
	})
}

// A tunnelled packet may have a complete UDP checksum around an unfinished one, as the host's own tunnels send it. Both
// are right when the packet leaves.
func TestNATAroundChecksum(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.load("match out on gw2 inet from 10.0.1.0/24 nat-to 10.0.2.1\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::1\npass\n")
	send := s.sides[0].end.VnetSocket()
	for _, six := range []bool{false, true} {
		b, start, made := s.tunnelled(six)
		udp := start - 8
		for _, on := range []bool{true, false} {
			s.route(on)
			var got netlab.Frame
			s.lab.Wait("the tunnel's packet", func() bool {
				s.must(send(netlab.Frame(b), start, 0))
				s.lab.Flush()
				for _, f := range s.sides[1].end.Received() {
					if len(f) == len(b) && string(f[start+2:]) == string(b[start+2:]) {
						got = f
					}
				}
				return got != ""
			})
			arrived := []byte(got)
			binary.BigEndian.PutUint16(arrived[start:], made)
			if bytes.Equal(arrived[udp:udp+2], b[udp:udp+2]) {
				t.Errorf("shortcut %v: % x is not translated", on, arrived)
			}
			if sum := aroundSum(arrived, six); sum != 0xffff {
				t.Errorf("shortcut %v: % x has a wrong checksum of UDP: all adds up to %#04x", on, arrived, sum)
			}
		}
	}
}

// tunnelled returns a tunnel's UDP packet whose own checksum is complete, while an inner one is unfinished. The
// unfinished checksum is at the start of the payload, at start, and will be made.
func (s *site) tunnelled(six bool) (b []byte, start int, made uint16) {
	b = []byte(s.frame(flow{to: 1, six: six, ports: [2]uint16{4001, 4002}}))
	udp := 14 + 20
	if six {
		udp = 14 + 40
	}
	start = udp + 8
	clear(b[start : start+2])
	made = ^sumOf(b[start:])
	binary.BigEndian.PutUint16(b[start:], made)
	clear(b[udp+6 : udp+8])
	binary.BigEndian.PutUint16(b[udp+6:], ^aroundSum(b, six))
	clear(b[start : start+2])
	return b, start, made
}

// aroundSum returns the sum of the UDP datagram in a frame without options, with its pseudo-header.
func aroundSum(frame []byte, six bool) uint16 {
	udp, addresses := 14+20, frame[14+12:14+20]
	if six {
		udp, addresses = 14+40, frame[14+8:14+40]
	}
	length := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_UDP}, uint16(len(frame)-udp))
	return sumOf(slices.Concat(addresses, length, frame[udp:]))
}

// An ICMP error about a packet whose payload has an unfinished checksum has a right checksum itself, whether the kernel
// has completed the other one by then or not.
func TestAnswerAroundChecksum(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.load("block return in on gw1 proto udp\n")
	send := s.sides[0].end.VnetSocket()
	for _, six := range []bool{false, true} {
		b, start, _ := s.tunnelled(six)
		var got netlab.Frame
		s.lab.Wait("an error about the tunnel's packet", func() bool {
			s.must(send(netlab.Frame(b), start, 0))
			s.lab.Flush()
			for _, f := range s.sides[0].end.Received() {
				if e, is6 := errorOf(f); e != (icmp{}) && is6 == six {
					got = f
				}
			}
			return got != ""
		})
		arrived := []byte(got)
		start += 20 + 8 // the headers in front of the quoted packet
		if six {
			start += 20
		}
		for _, made := range []bool{false, true} {
			if made {
				binary.BigEndian.PutUint16(arrived[start:], ^sumOf(arrived[start:]))
			}
			if sum := icmpSum(arrived, six); sum != 0xffff {
				t.Errorf("IPv6 %v, made %v: % x has a wrong checksum of ICMP: all adds up to %#04x", six, made, arrived, sum)
			}
		}
	}
}

// icmpSum returns the sum of the ICMP message in a frame without options, with its pseudo-header.
func icmpSum(frame []byte, six bool) uint16 {
	if !six {
		return sumOf(frame[14+20:])
	}
	length := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_ICMPV6}, uint16(len(frame)-14-40))
	return sumOf(slices.Concat(frame[14+8:14+40], length, frame[14+40:]))
}

// sumOf returns the sum of RFC 1071, without the complement.
func sumOf(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
