// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// byRoute returns the frames to the second station that arrive at the third, while the host's stack
// has a route through the third, in a table if one is given. pf passes all packets.
func (s *hopSite) byRoute(frames []netlab.Frame, table ...string) (got [][]netlab.Frame) {
	s.t.Helper()
	s.loadAnew("pass no state allow-opts\n")
	routes := map[bool]string{false: "10.0.2.2 via 10.0.3.2", true: "fd02::2 via fd03::2"}
	for _, six := range []bool{false, true} {
		is := func(f netlab.Frame) bool { return (f[12:14] == "\x86\xdd") == six }
		if !slices.ContainsFunc(frames, is) {
			continue
		}
		route := strings.Join(append([]string{routes[six]}, table...), " ")
		s.ip("route replace " + route)
		defer s.ip("route del " + route)
	}
	for _, f := range frames {
		got = append(got, s.gets(s.sides[0], f)[2])
	}
	return got
}

// ruled loads rules for both families, in which HOP stands for the third station.
func (s *hopSite) ruled(rules string) {
	s.t.Helper()
	var both []string
	for _, line := range strings.Split(strings.TrimSpace(rules), "\n") {
		if !strings.Contains(line, "HOP") {
			both = append(both, line)
			continue
		}
		for _, family := range [][2]string{{"inet", "10.0.3.2"}, {"inet6", "fd03::2"}} {
			both = append(both, strings.NewReplacer("FAMILY", family[0], "HOP", family[1]).Replace(line))
		}
	}
	s.loadAnew(strings.Join(both, "\n") + "\n")
}

// A packet that is too large for the path to its next hop is fragmented like by the host's own stack,
// if that is permitted. Otherwise its sender gets an error with the MTU.
func TestRouteToCut(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		from, to := s.sides[0], s.sides[1]
		udp := func(r recipe) netlab.Frame {
			r.src, r.dst, r.ttl, r.proto, r.tag = from.station4, to.station4, 64, unix.IPPROTO_UDP, -1
			if r.six {
				r.src, r.dst = from.station6, to.station6
			}
			return r.frame(s.site, 7)
		}
		tooBig := func(what string, f netlab.Frame, six bool, mtu uint32) {
			t.Helper()
			got := s.gets(from, f)
			at, icmp := 34, []byte{3, 4}
			if six {
				at, icmp = 54, []byte{2, 0}
			}
			if counts(got) != [3]int{1, 0, 0} || string(got[0][0][at:at+2]) != string(icmp) || binary.BigEndian.Uint32([]byte(got[0][0])[at+4:]) != mtu {
				t.Errorf("%s: there arrive %v, %q", what, counts(got), got)
			}
		}
		s.run("ip", "link", "set", "gw3", "mtu", "1300")
		s.ruled("pass allow-opts\npass in on gw1 FAMILY route-to HOP allow-opts")
		tooBig("IPv6", udp(recipe{six: true, size: 1400}), true, 1300)
		tooBig("IPv4 that may not be cut", udp(recipe{size: 1400, frag: 0x4000}), false, 1300)
		tooBig("options", udp(recipe{size: 1400, options: []byte{1, 1, 1, 0}}), false, 1300)
		narrow := func(mtu int) (frames []netlab.Frame) {
			s.run("ip", "link", "set", "gw3", "mtu", fmt.Sprint(mtu)) // it disables IPv6 there
			return []netlab.Frame{
				udp(recipe{size: 1480}), udp(recipe{size: mtu - 19}), udp(recipe{size: mtu - 20}), udp(recipe{size: 1100, pad: 50}),
				// A fragment, and the next fragment.
				udp(recipe{size: 1480, frag: 0x2000}), udp(recipe{size: 1201, frag: 1480 / 8, begin: []byte("more")}),
			}
		}
		mtus, want := []int{68, 576, 1000}, map[int][]netlab.Frame{}
		for _, mtu := range mtus {
			want[mtu] = slices.Concat(s.byRoute(narrow(mtu))...)
			if len(want[mtu]) < 8 {
				t.Fatalf("MTU %d: the stack makes %d fragments", mtu, len(want[mtu]))
			}
		}
		for _, rules := range []string{
			"pass allow-opts\npass in on gw1 inet route-to 10.0.3.2 allow-opts", "pass\npass out on gw2 inet route-to 10.0.3.2",
			"pass\npass in on gw1 inet dup-to 10.0.3.2", "pass\npass out on gw2 inet dup-to 10.0.3.2",
		} {
			s.load(rules + "\n")
			for _, mtu := range mtus {
				frames := narrow(mtu)
				s.pfctl("", "-F", "states")
				var got []netlab.Frame
				for i, f := range frames {
					all := s.gets(from, f)
					got = append(got, all[2]...)
					if copies := strings.Contains(rules, "dup-to"); len(all[0]) != 0 || len(all[1]) != map[bool]int{true: 1}[copies] {
						t.Errorf("MTU %d, %q: of packet %d there arrive %v", mtu, rules, i, counts(all))
					}
				}
				if !slices.Equal(got, want[mtu]) {
					t.Errorf("MTU %d, %q: there arrive %d fragments, the stack makes %d\n%x\n%x", mtu, rules, len(got), len(want[mtu]), got, want[mtu])
				}
			}
		}
		if n := s.dropped(); n != 3 {
			t.Errorf("%d packets are counted as pf-route, want the 3 that may not be cut", n)
		}
	})
}

// A packet with options is not routed if its header checksum is wrong, and is routed if it is right.
// The host's stack is the oracle.
func TestRouteToOptions(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		var frames []netlab.Frame
		var names []string
		for _, options := range [][]byte{nil, {1, 1, 1, 1}, {1, 1, 1, 0}, {148, 4, 0, 0}, slices.Repeat([]byte{1}, 40)} {
			for _, wrong := range []uint16{0, 1, 0x0100} {
				names = append(names, fmt.Sprintf("options %x, checksum %d too large", options, wrong))
				frames = append(frames, recipe{
					src: s.sides[0].station4, dst: s.sides[1].station4, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1, options: options, sum: wrong,
				}.frame(s.site, 1))
			}
		}
		want := s.byRoute(frames)
		for _, word := range []string{"route-to", "dup-to"} {
			s.loadAnew("pass allow-opts\npass in on gw1 inet " + word + " 10.0.3.2 allow-opts\n")
			for i, f := range frames {
				if (len(want[i]) > 0) != strings.Contains(names[i], "checksum 0 ") {
					t.Fatalf("%s: the stack makes %x of it", names[i], want[i])
				}
				if got := s.gets(s.sides[0], f)[2]; !slices.Equal(got, want[i]) {
					t.Errorf("%s, %s: there arrives %x, by a route %x", word, names[i], got, want[i])
				}
			}
		}
	})
}

// A packet from another bridge does not count as this bridge's, whatever its mark is: each is
// translated. A host's socket sends packets with all marks that refer to entries of a small state
// table, and to next hops of a few bridges with a few ports.
func TestRouteToMarks(t *testing.T) {
	onBridges(t, func(t *testing.T, s *site, _ *side) {
		s.pfctlOf("br1", "set limit states 16\npass\npass out on gw2 inet nat-to 10.0.2.9 static-port dup-to 10.0.3.2\n", "-f", "-")
		var conn *net.UDPConn
		s.must(s.lab.Switch.Do(func() (err error) {
			conn, err = net.DialUDP("udp", &net.UDPAddr{IP: net.IP{10, 0, 2, 1}, Port: 1000}, &net.UDPAddr{IP: net.IP{10, 0, 2, 2}, Port: 2000})
			return err
		}))
		defer conn.Close()
		raw, err := conn.SyscallConn()
		s.must(err)
		var marks []int
		for n := range 512 {
			marks = append(marks, 0xba5c0000|n)
		}
		for endpoint := range 4 {
			for slot := range 4 {
				marks = append(marks, 0xba400000|endpoint<<10|slot)
			}
		}
		seen, own := 0, map[string]bool{}
		for i, mark := range marks {
			s.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) }))
			s.must(err)
			_, err := fmt.Fprintf(conn, "a packet with the mark %#x", mark)
			s.must(err)
			if seen++; (i+1)%64 != 0 && i+1 != len(marks) {
				continue
			}
			s.lab.Wait("packets with marks", func() bool {
				for _, f := range s.sides[1].end.Received() {
					if typ := f[12:14]; typ != "\x08\x00" || f[23] != unix.IPPROTO_UDP {
						continue
					}
					seen--
					if f[26:30] != "\x0a\x00\x02\x09" {
						own[string(f[42:])] = true
					}
				}
				return seen == 0
			})
		}
		// The exception is the mark of the bridge's own port, for a packet that has passed
		// its state.
		if len(own) != 1 || own["a packet with the mark 0xba400802"] != true {
			t.Errorf("not translated are %v", own)
		}
	})
}

// station adds the third station's addresses to its stack, so that it answers by itself, and deletes
// the host's neighbour entries for it.
func (s *hopSite) station() {
	s.t.Helper()
	e := s.third.end
	s.must(e.Namespace.Do(func() error {
		return sysctl(map[string]string{"ipv6/conf/" + e.Ifname + "/disable_ipv6": "0", "ipv6/conf/" + e.Ifname + "/accept_dad": "0"})
	}))
	for _, args := range [][]string{
		{"link", "set", e.Ifname, "up"}, {"addr", "add", "10.0.3.2/24", "dev", e.Ifname}, {"addr", "add", "fd03::2/64", "dev", e.Ifname, "nodad"},
	} {
		_, err := e.Namespace.Output(context.Background(), ends.AnyCPU, "ip", args...)
		s.must(err)
	}
	s.forget()
}

// forget deletes the host's neighbour entries for the third station.
func (s *hopSite) forget() {
	s.t.Helper()
	s.run("ip", "neigh", "flush", "dev", "gw3", "nud", "all")
	s.run("ip", "-6", "neigh", "flush", "dev", "gw3", "nud", "all")
}

// The first packet to a next hop without a neighbour entry waits for the neighbour, as in the host's
// stack, and arrives. If the packet needs fragmentation, the next one arrives.
func TestRouteToNeighbour(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		s.station()
		var got []netlab.Frame
		waits := func(what string, f netlab.Frame, again bool, done func() bool) {
			t.Helper()
			s.forget()
			s.third.end.Received()
			got = nil
			s.lab.Send(s.sides[0].end, f)
			s.lab.Wait(what, func() bool {
				for _, f := range s.third.end.Received() {
					if typ := f[12:14]; typ == "\x08\x00" && f[23] == unix.IPPROTO_UDP || typ == "\x86\xdd" && f[20] == unix.IPPROTO_UDP {
						got = append(got, f)
					}
				}
				if again && !done() {
					s.lab.Send(s.sides[0].end, f)
				}
				return done()
			})
		}
		one := func() bool { return len(got) > 0 }
		for _, six := range []bool{false, true} {
			f := s.frame(flow{0, 1, six, [2]uint16{1000, 2000}, 0})
			s.load("pass no state\n")
			route := map[bool]string{false: "10.0.2.2 via 10.0.3.2", true: "fd02::2 via fd03::2"}[six]
			s.ip("route replace " + route)
			waits("a packet by a route", f, false, one)
			want := got
			s.ip("route del " + route)
			for _, rules := range []string{"pass\npass in on gw1 FAMILY route-to HOP", "pass\npass out on gw2 FAMILY route-to HOP", "pass\npass in on gw1 FAMILY dup-to HOP"} {
				s.ruled("pass quick inet6 proto icmp6\n" + rules)
				waits(rules, f, false, one)
				if len(got) != 1 || len(want) != 1 || got[0] != want[0] {
					t.Errorf("%q: there arrives %x, by a route %x", rules, got, want)
				}
			}
		}
		s.run("ip", "link", "set", "gw3", "mtu", "576")
		s.loadAnew("pass\npass in on gw1 inet route-to 10.0.3.2\n")
		f := recipe{src: s.sides[0].station4, dst: s.sides[1].station4, ttl: 64, proto: unix.IPPROTO_UDP, size: 1000, tag: -1}.frame(s.site, 3)
		place := func(i int) uint16 { return binary.BigEndian.Uint16([]byte(got[i])[14+6:]) }
		waits("a packet in fragments", f, true, func() bool {
			for i := range len(got) - 1 {
				if place(i) == 0x2000 && place(i+1) == 552/8 {
					return true
				}
			}
			return false
		})
	})
}

// A next hop is in the VRF of the host port, whatever other tables contain.
func TestRouteToVRF(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		s.vrf("blue", 100)
		s.vrf("red", 200)
		third := func(vrf string) {
			s.joins("gw3", vrf)
			s.ip("address replace fd03::1/64 dev gw3 nodad")
			for _, a := range []string{"10.0.3.2", "fd03::2"} {
				s.ip("neigh replace " + a + " lladdr " + s.third.end.MAC.String() + " dev gw3 nud permanent")
			}
		}
		for _, gateway := range []string{"gw1", "gw2"} {
			s.joins(gateway, "blue")
		}
		third("blue")
		// Outside of the VRF the address leads elsewhere.
		s.ip("route add blackhole 10.0.3.0/24", "route add blackhole fd03::/65")
		for _, six := range []bool{false, true} {
			f := flow{0, 1, six, [2]uint16{1000, 2000}, 0}
			want := s.byRoute([]netlab.Frame{s.frame(f)}, "table", "100")[0]
			if len(want) != 1 {
				t.Fatalf("IPv6 %v: by a route there arrives %q", six, want)
			}
			for _, c := range []struct {
				rules       string
				there, back [3]int
			}{
				{"pass\npass in on gw1 FAMILY route-to HOP", [3]int{0, 0, 1}, [3]int{1, 0, 0}},
				{"pass\npass out on gw2 FAMILY route-to HOP", [3]int{0, 0, 1}, [3]int{1, 0, 0}},
				{"pass\npass in on gw1 FAMILY reply-to HOP", [3]int{0, 1, 0}, [3]int{0, 0, 1}},
				{"pass\npass in on gw1 FAMILY dup-to HOP", [3]int{0, 1, 1}, [3]int{1, 0, 1}},
			} {
				s.ruled(c.rules)
				for range 2 {
					got := s.want(c.rules, f, c.there)
					if c.there[2] == 1 && !slices.Equal(got[2], want) {
						t.Errorf("%q: the packet is %x, by a route it is %x", c.rules, got[2], want)
					}
					s.want(c.rules+": an answer", f.back(), c.back)
				}
			}
		}
		third("red")
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		s.loadAnew("pass\npass in on gw1 inet route-to 10.0.3.2\n")
		before := s.dropped()
		if got := s.gets(s.sides[0], s.frame(f)); len(got[1]) != 0 || len(got[2]) != 0 || s.dropped() != before+1 {
			t.Errorf("with the next hop in another VRF there arrive %v", counts(got))
		}
	})
}

// Packets from a patch cable go to next hops, and packets that leave by a cable are copied. A next
// hop may be behind a cable.
func TestRouteToCable(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		near, to := s.sides[0], s.sides[1]
		far := s.lab.NewEnds(2)
		hook := strings.TrimPrefix(t.Name(), "TestRouteToCable/")
		for i, gateway := range []string{near.gateway, s.third.gateway} {
			bridge, cable, vlan := fmt.Sprintf("br%d", 8+i), fmt.Sprintf("down%d", i), fmt.Sprint(11+2*i)
			s.lab.AddBridge(bridge, hook, far[i:i+1])
			s.lab.Bascule("port", "add", bridge, "up", "--type", "patch", "--peer", "br0/"+cable)
			s.lab.Bascule("vlan", "add", "br0", cable, vlan, "--pvid", "--untagged")
			s.lab.Bascule("vlan", "del", "br0", cable, "1")
			s.lab.Bascule("fdb", "add", "br0", far[i].MAC.String(), cable, "--vlan", vlan)
			s.lab.Bascule("fdb", "add", bridge, far[i].MAC.String(), far[i].Port)
			s.ip(fmt.Sprintf("neigh replace 10.0.%d.9 lladdr %s dev %s nud permanent", 1+2*i, far[i].MAC, gateway))
		}
		station := netip.MustParseAddr("10.0.1.9")
		r := recipe{src: station, dst: to.station4, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}
		there := netlab.Frame(slices.Concat(near.mac[:], far[0].MAC[:], []byte(r.frame(s.site, 1))[12:]))
		r.src, r.dst, r.begin = r.dst, r.src, []byte(there)[36:38]
		r.begin = append(r.begin, there[34:36]...)
		back := netlab.Frame(slices.Concat(to.mac[:], to.end.MAC[:], []byte(r.frame(s.site, 2))[12:]))
		gets := func(at *netlab.End, f netlab.Frame) (got [4][]netlab.Frame) {
			all := s.lab.Deliver(at, f)
			for i, e := range []*netlab.End{far[0], to.end, s.third.end, far[1]} {
				got[i] = like(f, all[e])
			}
			return got
		}
		for _, c := range []struct {
			rules       string
			there, back [4]int
		}{
			{"pass in on gw1 inet route-to 10.0.3.2", [4]int{0, 0, 1, 0}, [4]int{1, 0, 0, 0}},
			{"pass in on gw1 inet route-to 10.0.3.9", [4]int{0, 0, 0, 1}, [4]int{1, 0, 0, 0}},
			{"pass out on gw2 inet route-to 10.0.3.9", [4]int{0, 0, 0, 1}, [4]int{1, 0, 0, 0}},
			{"pass in on gw1 inet reply-to 10.0.3.2", [4]int{0, 1, 0, 0}, [4]int{0, 0, 1, 0}},
			{"pass in on gw1 inet dup-to 10.0.3.2", [4]int{0, 1, 1, 0}, [4]int{1, 0, 1, 0}},
			{"pass in on gw1 inet dup-to 10.0.3.9", [4]int{0, 1, 0, 1}, [4]int{1, 0, 0, 1}},
			{"pass out on gw2 inet dup-to 10.0.3.2", [4]int{0, 1, 1, 0}, [4]int{1, 0, 1, 0}},
		} {
			s.loadAnew("pass\n" + c.rules + "\n")
			for n := range 3 {
				for _, way := range []struct {
					what string
					at   *netlab.End
					f    netlab.Frame
					want [4]int
				}{{"there", far[0], there, c.there}, {"back", to.end, back, c.back}} {
					got := gets(way.at, way.f)
					var packets []string
					for i := range got {
						if len(got[i]) != way.want[i] {
							t.Errorf("%q, %s, packet %d: station %d of the far one, the second, the third and the far next hop gets %d, want %d",
								c.rules, way.what, n, i, len(got[i]), way.want[i])
						}
						for _, f := range got[i] {
							packets = append(packets, string(f[14:]))
						}
					}
					if len(slices.Compact(packets)) != 1 {
						t.Errorf("%q, %s: the packet and its copy differ: %x", c.rules, way.what, packets)
					}
				}
			}
		}
	})
}

// Large packets go unsegmented to a next hop through another bridge, even if the path is narrow.
func TestRouteToOtherBridgeWhole(t *testing.T) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			s := newSiteIn(t, netlab.New(t), hook, "br1")
			s.stations()
			s.load("pass\npass in on gw1 inet route-to 10.0.2.2\npass in on gw1 inet6 proto tcp route-to fd02::2\n")
			s.pfctlOf("br1", "pass\npass out on gw2 inet proto tcp reply-to 10.0.1.2\n", "-f", "-")
			for _, to := range []netip.Addr{s.sides[1].station4, s.sides[1].station6} {
				largest := s.sides[1].end.Queue().Largest()
				if mtu := s.transfer(to, 4<<20); mtu != 1500 {
					t.Errorf("to %s the largest packet is %d bytes", to, mtu)
				}
				if size := largest(); hook == "tcx" && size <= 1514 {
					t.Errorf("to %s no packet is larger than %d bytes", to, size)
				}
			}
			s.ip("route replace 10.0.2.2/32 dev gw2 mtu lock 900")
			if mtu := s.transfer(s.sides[1].station4, 1<<20); mtu != 900 {
				t.Errorf("by a narrow way the largest packet is %d bytes, want 900", mtu)
			}
		})
	}
}

// A packet that another bridge has sent does not match a state here by the translated address of a
// connection of this bridge. The rules are evaluated, as for any such packet of a station.
func TestRouteToOtherBridgeTranslated(t *testing.T) {
	onBridges(t, func(t *testing.T, s *site, _ *side) {
		s.load("pass\npass out on gw3 route-to 10.0.2.2\n")
		s.pfctlOf("br1", "pass\npass in on gw2 from 10.9.9.9 route-to 10.0.2.2\nblock out on gw2 inet from 10.0.2.9\n"+
			"pass out on gw2 inet from 10.0.1.2 nat-to 10.0.2.9 static-port\n", "-f", "-")
		r := recipe{src: s.sides[0].station4, dst: netip.MustParseAddr("10.0.3.2"), ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}
		if got := s.deliver(s.sides[1].end, true, r.frame(s, 7))[0]; s.sourceIn([]byte(got)).String() != "10.0.2.9" {
			t.Fatalf("the packet arrives from %v", s.sourceIn([]byte(got)))
		}
		r.src = netip.MustParseAddr("10.0.2.9")
		if got := s.deliver(s.sides[1].end, false, r.frame(s, 7), r.frame(s, 7)); len(got) > 0 {
			t.Errorf("%d packets of a station pass that has the address itself", len(got))
		}
		r.src = s.sides[0].station4
		s.deliver(s.sides[1].end, true, r.frame(s, 7))
	})
}

// ICMP errors about a connection, and its fragments, go where its packets go: real sockets get the
// error of a closed port, and reassembled datagrams.
func TestRouteToErrors(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		open := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
		for _, rules := range []string{
			"pass no state", "pass\npass in on gw1 inet route-to 10.0.2.2", "pass\npass out on gw2 inet route-to 10.0.2.2",
			"pass\npass in on gw1 inet reply-to 10.0.1.2", "pass\npass out on gw2 inet reply-to 10.0.1.2", "pass\npass in on gw1 inet dup-to 10.0.2.2",
			"pass\npass out on gw2 inet nat-to 10.0.2.1 route-to 10.0.2.2", "pass\npass in on gw1 inet to 10.0.1.1 rdr-to 10.0.2.2 route-to 10.0.2.2",
		} {
			s.loadAnew(rules + "\n")
			to := "10.0.2.2"
			if strings.Contains(rules, "rdr-to") {
				to = "10.0.1.1"
			}
			conn, err := s.dial(0, "udp", "", to+":9")
			s.must(err)
			s.lab.Wait("an error about a closed port with "+rules, func() bool {
				_, err = conn.Write([]byte("anybody"))
				if err == nil {
					s.must(conn.SetReadDeadline(time.Now().Add(time.Second)))
					_, err = conn.Read(make([]byte, 10))
				}
				return err != nil && strings.Contains(err.Error(), "refused")
			})
			if strings.Contains(rules, "dup-to") {
				continue // the station gets each fragment twice, and may drop one
			}
			conn, err = s.dial(0, "udp", "", to+":7")
			s.must(err)
			s.echoUDP(open, conn, 100)
			s.echoUDP(open, conn, 5000)
		}
	})
}

// A flooded frame to a host port is not copied by dup-to, and arrives.
func TestDupToFlood(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		s.stations()
		s.ruled("pass\npass in on gw1 FAMILY dup-to HOP")
		to := netip.MustParseAddr("10.0.1.255")
		var l net.PacketConn
		s.must(s.lab.Switch.Do(func() (err error) {
			l, err = net.ListenPacket("udp4", "10.0.1.255:4000")
			return err
		}))
		defer l.Close()
		f := recipe{src: s.sides[0].station4, dst: to, to: 2, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}.frame(s.site, 1)
		got := s.gets(s.sides[0], f)
		s.must(l.SetReadDeadline(time.Now().Add(patience)))
		if _, _, err := l.ReadFrom(make([]byte, 100)); err != nil || counts(got) != [3]int{} || s.dropped() != 0 {
			t.Errorf("a flood to the host: %v; there arrive %v, and %d are dropped", err, counts(got), s.dropped())
		}
	})
}

// TestHopConformance has the named cases of next hops, each on both hooks.
func TestHopConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s *hopSite)
	}{
		{"next_hop_before_neighbour", nextHopBeforeNeighbour},
		{"dup_to_unknown", dupToUnknown},
	} {
		t.Run(c.name, func(t *testing.T) { onHops(t, c.run) })
	}
}

// A packet that goes to a next hop on its way out of the host needs no neighbour for the host's own
// route: a default gateway that does not answer does not block connections through another one. Other
// packets are the host's, whose stack sends an error.
func nextHopBeforeNeighbour(t *testing.T, s *hopSite) {
	s.sysctl("ipv4/neigh/gw2/retrans_time_ms", 20)
	s.sysctl("ipv6/neigh/gw2/retrans_time_ms", 20)
	s.ip("route add default via 10.0.2.254", "route add default via fd02::254")
	for _, six := range []bool{false, true} {
		near, far, hop, family := "10.0.1.2", "198.51.100.9", "10.0.3.2", "inet"
		if six {
			near, far, hop, family = "fd01::2", "2001:db8::9", "fd03::2", "inet6"
		}
		packet := func(from, to string, ports [2]uint16, side int) netlab.Frame {
			return recipe{
				six: six, src: netip.MustParseAddr(from), dst: netip.MustParseAddr(to), ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1,
				begin: []byte{byte(ports[0] >> 8), byte(ports[0]), byte(ports[1] >> 8), byte(ports[1])},
			}.frame(s.site, 1)
		}
		arrives := func(what string, from *side, f netlab.Frame, want [3]int) (got [3][]netlab.Frame) {
			t.Helper()
			got = s.gets(from, f)
			for i := range got {
				got[i] = like(f, got[i])
			}
			if counts(got) != want {
				t.Errorf("%s: there arrive %v, want %v; drops %v %v\n%s", what, counts(got), want,
					s.lab.Port("br0", from.end.Port).Drops, s.lab.Port("br0", "gw2").Drops, s.pfctl("", "-vv", "-s", "states"))
			}
			return got
		}
		there, back := [2]uint16{1000, 2000}, [2]uint16{2000, 1000}
		s.load("pass\n")
		s.ip("route replace " + far + " via " + hop)
		byRoute := arrives("by a route", s.sides[0], packet(near, far, there, 0), [3]int{0, 0, 1})[2]
		s.ip("route del " + far)
		nd := "pass quick inet6 proto icmp6\n"
		for _, rules := range []string{"pass out on gw2 " + family + " proto udp to port 2000 route-to " + hop, "match out on gw2 inet nat-to 10.9.9.9\npass out on gw2 " + family + " proto udp to port 2000 route-to " + hop} {
			if six && strings.Contains(rules, "nat-to") {
				rules = strings.Replace(rules, "inet nat-to 10.9.9.9", "inet6 nat-to fd77::9", 1)
			}
			s.loadAnew("pass\n" + nd + rules + "\n")
			for n := range 3 {
				got := arrives(fmt.Sprintf("%q, packet %d", rules, n), s.sides[0], packet(near, far, there, 0), [3]int{0, 0, 1})[2]
				if strings.Contains(rules, "nat-to") || len(got) != 1 {
					continue
				}
				if got[0] != byRoute[0] {
					t.Errorf("%q: the packet is\n%x, by a route it is\n%x", rules, got[0], byRoute[0])
				}
			}
		}
		rules := "pass in on gw3 " + family + " proto udp to port 1000 reply-to " + hop
		s.loadAnew("pass\n" + nd + rules + "\n")
		for n := range 3 {
			f := s.by(s.third, packet(far, near, back, 0))
			arrives(fmt.Sprintf("%q, packet %d", rules, n), s.third, f, [3]int{1, 0, 0})
			arrives(fmt.Sprintf("%q, answer %d", rules, n), s.sides[0], packet(near, far, there, 0), [3]int{0, 0, 1})
		}
		// The other packets are handled by the host, which reports the missing neighbour.
		s.load("pass\n" + nd + "match out on gw2 " + family + " nat-to " + map[bool]string{false: "10.9.9.9", true: "fd77::9"}[six] +
			"\npass out on gw2 " + family + " proto udp to port 7 route-to " + hop + "\nblock out on gw2 " + family + " proto udp to port 8\n")
		s.pfctl("", "-F", "states")
		f := packet(near, far, there, 0)
		s.lab.Send(s.sides[0].end, f)
		s.lab.Wait("an error of the host's", func() bool {
			for _, f := range s.sides[0].end.Received() {
				at, what, quote := 34, "\x03\x01", 14+20+8
				if six {
					at, what, quote = 54, "\x01\x03", 14+40+8
				}
				if len(f) > quote+20 && string(f[at:at+2]) == what && f[14+9] == unix.IPPROTO_ICMP || six && len(f) > quote+40 && string(f[at:at+2]) == what {
					if six && string(f[quote+8:quote+40]) == string(packet(near, far, there, 0)[14+8:14+40]) ||
						!six && string(f[quote+12:quote+20]) == string(packet(near, far, there, 0)[14+12:14+20]) {
						return true
					}
					t.Errorf("the host quotes %x", f[quote:])
					return true
				}
			}
			return false
		})
		before := s.lab.Port("br0", "gw2").Drops["pf"]
		arrives("a packet that a rule blocks", s.sides[0], packet(near, far, [2]uint16{1000, 8}, 0), [3]int{0, 0, 0})
		if n := s.lab.Port("br0", "gw2").Drops["pf"] - before; n != 1 {
			t.Errorf("%d packets are counted as pf, want 1", n)
		}
	}
}

// The sender of a translated packet that is too large for the path to its next hop gets an error with
// its own addresses: real sockets find the path MTU.
func TestRouteToNarrowTranslated(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		far := s.sides[1].end
		for _, args := range [][]string{{"addr", "add", "10.9.0.9/32", "dev", far.Ifname}, {"addr", "add", "fd09::9/128", "dev", far.Ifname, "nodad"}} {
			_, err := far.Namespace.Output(context.Background(), ends.AnyCPU, "ip", args...)
			s.must(err)
		}
		s.ip("route replace 10.0.2.2/32 dev gw2 mtu lock 900", "route replace fd02::2/128 dev gw2 mtu lock 1300")
		for _, rules := range []string{
			"match in on gw1 inet to 10.4.0.1 rdr-to 10.9.0.9\nmatch in on gw1 inet6 to fd04::1 rdr-to fd09::9\npass in on gw1 FAMILY proto { tcp, udp } route-to HOP",
			"match out on gw2 inet nat-to 10.0.2.1\nmatch out on gw2 inet6 nat-to fd02::1\npass out on gw2 FAMILY proto { tcp, udp } route-to HOP",
			"match in on gw1 inet to 10.4.0.1 rdr-to 10.9.0.9\nmatch in on gw1 inet6 to fd04::1 rdr-to fd09::9\n" +
				"match out on gw2 inet nat-to 10.0.2.1\nmatch out on gw2 inet6 nat-to fd02::1\npass out on gw2 FAMILY proto { tcp, udp } route-to HOP",
		} {
			text := "pass\npass quick inet6 proto icmp6\n"
			for _, line := range strings.Split(rules, "\n") {
				if strings.Contains(line, "HOP") {
					text += strings.NewReplacer("FAMILY", "inet", "HOP", "10.0.2.2").Replace(line) + "\n"
					line = strings.NewReplacer("FAMILY", "inet6", "HOP", "fd02::2").Replace(line)
				}
				text += line + "\n"
			}
			s.loadAnew(text)
			for i, want := range []int{900, 1300} {
				to := netip.MustParseAddr([]string{"10.9.0.9", "fd09::9"}[i])
				ask := to
				if strings.Contains(rules, "rdr-to") {
					ask = netip.MustParseAddr([]string{"10.4.0.1", "fd04::1"}[i])
				}
				// The first packet of another client is too large.
				clients := []string{"10.0.1.2", "fd01::2"}
				conn, err := s.dial(0, "udp", net.JoinHostPort(clients[i], fmt.Sprint(4000)), net.JoinHostPort(ask.String(), "9"))
				s.must(err)
				s.lab.Wait(fmt.Sprintf("%q: an error about the size of a datagram to %v", rules, ask), func() bool {
					_, err := conn.Write(make([]byte, 1400))
					if err != nil && !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ECONNREFUSED) {
						t.Fatal(err)
					}
					mtu := 0
					raw, err := conn.(*net.UDPConn).SyscallConn()
					s.must(err)
					s.must(raw.Control(func(fd uintptr) {
						level, option := unix.IPPROTO_IP, unix.IP_MTU
						if i == 1 {
							level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
						}
						mtu, err = unix.GetsockoptInt(int(fd), level, option)
					}))
					s.must(err)
					return mtu == want
				})
				conn.Close()
				clear := []string{"-4", "-6"}[i]
				_, err = s.sides[0].end.Namespace.Output(context.Background(), ends.AnyCPU, "ip", clear, "route", "flush", "cache")
				s.must(err)
				if mtu := s.transferAs(ask, to, 1<<20); mtu != want {
					t.Errorf("%q: to %s the largest packet is %d bytes, want %d", rules, ask, mtu, want)
				}
				_, err = s.sides[0].end.Namespace.Output(context.Background(), ends.AnyCPU, "ip", clear, "route", "flush", "cache")
				s.must(err)
			}
		}
	})
}

// A packet from the host to an address that the switch has not learned is flooded, also if a rule has
// a next hop for answers or copies: the state has the next hop.
func dupToUnknown(t *testing.T, s *hopSite) {
	unknown := netlab.MAC{2, 0x57, 0, 0, 0, 0x77}
	s.ip("neigh replace 10.0.2.9 lladdr " + unknown.String() + " dev gw2 nud permanent")
	f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
	there := []byte(s.frame(f))
	copy(there[30:], netip.MustParseAddr("10.0.2.9").AsSlice())
	sum := checksum(append(slices.Clone(there[14:24]), append([]byte{0, 0}, there[26:34]...)...))
	there[24], there[25] = byte(sum>>8), byte(sum)
	back := []byte(s.frame(f.back()))
	copy(back[6:], unknown[:])
	copy(back[26:], netip.MustParseAddr("10.0.2.9").AsSlice())
	sum = checksum(append(slices.Clone(back[14:24]), append([]byte{0, 0}, back[26:34]...)...))
	back[24], back[25] = byte(sum>>8), byte(sum)
	for _, c := range []struct {
		rules string
		there [3]int
		back  [3]int
	}{
		{"pass out on gw2 dup-to 10.0.3.2", [3]int{0, 1, 1}, [3]int{1, 0, 1}},
		{"pass out on gw2 reply-to 10.0.3.2", [3]int{0, 1, 0}, [3]int{0, 0, 1}},
		{"match out on gw2 inet nat-to 10.0.2.1\npass out on gw2 reply-to 10.0.3.2", [3]int{0, 1, 0}, [3]int{0, 0, 1}},
	} {
		s.loadAnew("pass\n" + c.rules + "\n")
		for n := range 2 {
			got := s.gets(s.sides[0], netlab.Frame(there))
			if counts(got) != c.there {
				t.Errorf("%q: of packet %d to an unknown address there arrive %v; drops %v", c.rules, n, counts(got), s.lab.Port("br0", "gw2").Drops)
			}
			if len(got[1]) > 0 {
				copy(back[30:34], got[1][0][26:30]) // to its source
				copy(back[36:38], got[1][0][34:36])
				sum = checksum(append(slices.Clone(back[14:24]), append([]byte{0, 0}, back[26:34]...)...))
				back[24], back[25] = byte(sum>>8), byte(sum)
				back[40], back[41] = 0, 0 // no UDP checksum
			}
		}
		for n := range 2 {
			if got := s.gets(s.sides[1], netlab.Frame(back)); counts(got) != c.back {
				t.Errorf("%q: of answer %d there arrive %v, want %v", c.rules, n, counts(got), c.back)
			}
			if got := s.gets(s.sides[0], netlab.Frame(there)); counts(got) != c.there {
				t.Errorf("%q: of packet %d to an address that is known now there arrive %v, want %v", c.rules, n, counts(got), c.there)
			}
		}
		s.lab.Bascule("fdb", "flush", "br0")
	}
}

// A packet of a real station that is blocked on its way out of the host is answered. The answer
// reaches the station through the host, even if the packet's checksum is unfinished.
func TestReturnByHost(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.load("pass\npass quick inet6 proto icmp6\nblock return out on gw2 proto udp to port 9\n")
		for _, to := range []string{"10.0.2.2:9", "[fd02::2]:9"} {
			conn, err := s.dial(0, "udp", "", to)
			s.must(err)
			s.lab.Wait("an error about a blocked port of "+to, func() bool {
				_, err = conn.Write([]byte("anybody"))
				if err == nil {
					s.must(conn.SetReadDeadline(time.Now().Add(time.Second)))
					_, err = conn.Read(make([]byte, 10))
				}
				return errors.Is(err, unix.ECONNREFUSED)
			})
		}
	})
}
