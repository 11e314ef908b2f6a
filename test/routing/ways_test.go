// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// A way is a place where packets leave the host. It returns the packets since the last call.
type way func() []string

// arrivals sends packets, and returns the packets that leave by each way, and that arrive at each station.
func (s *site) arrivals(frames []netlab.Frame, ways []way) (got []string) {
	s.t.Helper()
	for end, list := range s.lab.Deliver(s.sides[0].end, frames...) {
		for _, f := range list {
			b := outer(f)
			if b == nil {
				continue
			}
			if text := s.normal(b); text != "" {
				got = append(got, end.Port+" "+text)
			}
		}
	}
	for i, w := range ways {
		for _, packet := range w() {
			if packet[0]>>4 == 6 && packet[24] == 0xff {
				continue // the host resolves an address
			}
			got = append(got, fmt.Sprintf("way %d %s", i, hex.EncodeToString([]byte(packet))))
		}
	}
	slices.Sort(got)
	return got
}

// A trial has packets, and whether the shortcut routes some of them, after the host was prepared.
type trial struct {
	what   string
	ready  func()
	frames []netlab.Frame
	routed bool
}

// alike sends packets with and without the shortcut. The packets that leave by each way, and that arrive at each
// station, have to be the same. routed is true if the shortcut routes some.
func (s *site) alike(what string, routed bool, frames []netlab.Frame, ways ...way) {
	s.t.Helper()
	s.allAlike([]trial{{what, func() {}, frames, routed}}, ways...)
}

// allAlike runs many trials, and switches the shortcut on once, since the switch takes longer than everything else.
func (s *site) allAlike(trials []trial, ways ...way) {
	s.t.Helper()
	s.route(false)
	var wants [][]string
	for _, c := range trials {
		c.ready()
		s.arrivals(c.frames, ways) // these create neighbours that do not exist before
		wants = append(wants, s.arrivals(c.frames, ways))
	}
	s.route(true)
	for i, c := range trials {
		c.ready()
		before := s.routed()
		for range 3 { // the host gets one packet a second
			got := s.arrivals(c.frames, ways)
			if more, less := differences(got, wants[i]); more != nil || less != nil {
				s.t.Errorf("%s: the shortcut has\n  %s\nand lacks\n  %s", c.what, few(more), few(less))
				break
			}
		}
		if r := s.routed() > before; r != c.routed {
			s.t.Errorf("%s: routed by the datapath %v, want %v: %v", c.what, r, c.routed, s.lab.Port("br0", s.sides[0].gateway).Routed)
		}
	}
}

// few returns the first lines of many.
func few(lines []string) string {
	const most = 4
	if len(lines) > most {
		lines = append(slices.Clone(lines[:most]), fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n  ")
}

// outer returns a frame without the number and the checksum that the host assigns to a tunnel's packet. It returns nil
// for the host's group reports of IPv6 in the tunnel (RFC 3810).
func outer(f netlab.Frame) []byte {
	const header, inner = 14, 14 + 20 + 8 + 8 // of IPv4, UDP and VXLAN
	b := []byte(f)
	if len(b) > header+28 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && b[header+9] == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(b[header+22:]) == 4789 {
		if len(b) > inner+6 && b[inner] == 0x33 && b[inner+1] == 0x33 {
			return nil
		}
		clear(b[header+4 : header+6])
		clear(b[header+10 : header+12])
	}
	return b
}

// both returns a plain packet to an IPv4 address and one to an IPv6 address.
func (s *site) both(four, six string) (frames []netlab.Frame) {
	for n := range uint16(4) {
		for _, to := range []string{four, six} {
			a := netip.MustParseAddr(to)
			r := recipe{six: a.Is6(), dst: a, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
			r.src = netip.MustParseAddr(map[bool]string{false: "10.1.7.7", true: "fd11::77"}[a.Is6()])
			frames = append(frames, r.frame(s, n))
		}
	}
	return frames
}

// A packet leaves by the device of the host's route, of any kind, as without the shortcut.
func TestWaysOut(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		tun := s.lab.NewTun("tun0")
		e := s.lab.NewEnds(1)[0]
		s.ip(
			"link set tun0 addrgenmode none", "link set tun0 up", "route add 10.20.0.0/16 dev tun0", "route add fd20::/64 dev tun0",
			"address add 10.0.3.1/24 dev "+e.Port, "link set "+e.Port+" up",
			fmt.Sprintf("neigh add 10.0.3.2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			"link add vx0 type vxlan id 7 local 10.0.3.1 remote 10.0.3.2 dstport 4789", "link set vx0 up",
			"address add 10.0.4.1/24 dev vx0", "address add fd04:4::1/64 dev vx0 nodad",
			"neigh add 10.0.4.2 lladdr 02:57:00:00:00:44 dev vx0 nud permanent", "neigh add fd04:4::2 lladdr 02:57:00:00:00:44 dev vx0 nud permanent",
			"route add 10.21.0.0/16 via 10.0.4.2", "route add fd21::/64 via fd04:4::2",
			"link add mac0 link "+e.Port+" type macvlan mode private", "link set mac0 up",
			"address add 10.0.5.1/24 dev mac0", "address add fd05:5::1/64 dev mac0 nodad",
			fmt.Sprintf("neigh add 10.0.5.2 lladdr %s dev mac0 nud permanent", e.MAC), fmt.Sprintf("neigh add fd05:5::2 lladdr %s dev mac0 nud permanent", e.MAC),
			"route add 10.22.0.0/16 via 10.0.5.2", "route add fd22::/64 via fd05:5::2",
			"link add mac1 link gw2 type macvlan mode private", "link set mac1 up",
			"address add 10.0.6.1/24 dev mac1", "address add fd06:6::1/64 dev mac1 nodad",
			fmt.Sprintf("neigh add 10.0.6.2 lladdr %s dev mac1 nud permanent", s.sides[1].end.MAC),
			fmt.Sprintf("neigh add fd06:6::2 lladdr %s dev mac1 nud permanent", s.sides[1].end.MAC),
			"route add 10.23.0.0/16 via 10.0.6.2", "route add fd23::/64 via fd06:6::2",
			"route add 10.24.0.0/16 encap ip id 5 dst 10.0.3.2 via 10.0.4.2 dev vx0",
		)
		s.lab.Keep("vx0")
		for _, w := range []struct {
			what      string
			four, six string
			routed    bool
		}{
			{"tun", "10.20.1.1", "fd20::1", true},
			{"vxlan", "10.21.1.1", "fd21::1", true},
			{"macvlan", "10.22.1.1", "fd22::1", true},
			{"macvlan above the other gateway", "10.23.1.1", "fd23::1", true},
			{"a tunnel of the route's own", "10.24.1.1", "fd20::1", true},
		} {
			s.alike(w.what, w.routed, s.both(w.four, w.six), tun.Received)
		}
		for _, name := range []string{"vx0", "mac0", "mac1"} {
			s.ip("link del " + name)
		}
	})
}

// flows returns packets that a route with several next hops may distinguish: between one pair of stations, with
// different ports, and with all headers that may precede the ports.
func (s *site) flows(four, six string) (frames []netlab.Frame) {
	at4, at6 := netip.MustParseAddr(four), netip.MustParseAddr(six)
	from4, from6 := netip.MustParseAddr("10.1.7.7"), netip.MustParseAddr("fd11::77")
	options := []byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0} // padded
	fragment := []byte{unix.IPPROTO_UDP, 0, 0, 1, 0, 0, 0, 9}
	for n := range uint16(24) {
		for _, r := range []recipe{
			{proto: unix.IPPROTO_UDP}, {proto: unix.IPPROTO_UDP, tos: 8}, {proto: unix.IPPROTO_TCP}, {proto: unix.IPPROTO_SCTP}, {proto: unix.IPPROTO_DCCP},
			{proto: unix.IPPROTO_UDPLITE}, {proto: unix.IPPROTO_ESP}, {proto: unix.IPPROTO_AH}, {proto: unix.IPPROTO_ICMP, icmp: 8},
			{proto: unix.IPPROTO_UDP, frag: 0x2000}, {proto: unix.IPPROTO_UDP, frag: 0x00b9}, {proto: byte(100 + n)},
			{proto: unix.IPPROTO_IPIP, begin: inner(n)}, {proto: unix.IPPROTO_GRE, begin: append([]byte{0, 0, 8, 0}, inner(n)...)},
			{six: true, proto: unix.IPPROTO_UDP}, {six: true, proto: unix.IPPROTO_UDP, tos: 8}, {six: true, proto: unix.IPPROTO_TCP}, {six: true, proto: unix.IPPROTO_SCTP},
			{six: true, proto: unix.IPPROTO_ESP}, {six: true, proto: unix.IPPROTO_AH}, {six: true, proto: unix.IPPROTO_ICMPV6, icmp: 128},
			{six: true, proto: unix.IPPROTO_DSTOPTS, begin: append(options, ports(n)...)},
			{six: true, proto: unix.IPPROTO_FRAGMENT, begin: append(fragment, ports(n)...)},
			{six: true, proto: unix.IPPROTO_IPIP, begin: inner(n)},
		} {
			r.src, r.dst, r.ttl, r.size, r.tag = from4, at4, 64, 60, -1
			if r.six {
				r.src, r.dst = from6, at6
			}
			frames = append(frames, r.frame(s, n))
		}
	}
	return frames
}

func ports(n uint16) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(2000+n)<<16|4000)
}

// inner returns a packet within a tunnel.
func inner(n uint16) []byte {
	p := make([]byte, 20, 28)
	p[0], p[3], p[8], p[9] = 0x45, 28, 64, unix.IPPROTO_UDP
	copy(p[12:], []byte{172, 16, byte(n), 1, 172, 17, 0, byte(n)})
	binary.BigEndian.PutUint16(p[10:], checksum(p))
	return append(append(p, ports(n)...), 0, 8, 0, 0)
}

// If a route has several next hops, a packet uses the same next hop as in the host's stack.
func TestSeveralHops(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.ip(
			"nexthop add id 1 via 10.0.2.2 dev gw2", "nexthop add id 2 via 10.0.2.3 dev gw2", "nexthop add id 10 group 1/2,3",
			"nexthop add id 3 via fd02::2 dev gw2", "nexthop add id 4 via fd02::3 dev gw2", "nexthop add id 11 group 3,2/4",
			"nexthop add id 12 group 1/2 type resilient buckets 64", "nexthop add id 13 group 3/4 type resilient buckets 64",
			"route add 10.40.0.0/16 nhid 10", "route add fd40::/64 nhid 11", "route add 10.41.0.0/16 nhid 12", "route add fd41::/64 nhid 13",
		)
		for policy := range 4 {
			s.hash(policy)
			for _, to := range []struct{ what, four, six string }{
				{"a route", "10.5.1.1", "fd05::1"}, {"a group", "10.40.1.1", "fd40::1"}, {"a resilient group", "10.41.1.1", "fd41::1"},
			} {
				s.alike(fmt.Sprintf("%s, policy %d", to.what, policy), policy < 2, s.flows(to.four, to.six))
			}
		}
		if s.takesLast {
			s.takesLastHop()
		}
		if out := s.lab.Bascule("check"); strings.Contains(out, "next hops") != s.takesLast {
			t.Errorf("the kernel's look-up takes the last next hop: %v; check says\n%s", s.takesLast, out)
		}
	})
}

// takesLastHop: if the kernel's look-up has the bug, each packet still uses a next hop of its route: with the shortcut,
// the last one.
func (s *site) takesLastHop() {
	s.t.Helper()
	s.hash(0)
	s.ip("route add 10.42.0.0/16 nexthop " + hop2 + " nexthop " + hop3)
	var frames []netlab.Frame
	for n := range uint16(200) {
		r := recipe{src: netip.MustParseAddr("10.1.7.7"), dst: netip.AddrFrom4([4]byte{10, 42, 1, byte(n)})}
		r.ttl, r.size, r.tag, r.proto = 64, 60, -1, unix.IPPROTO_UDP
		frames = append(frames, r.frame(s, n))
	}
	s.arrivals(frames, nil)
	to := map[netlab.MAC]int{}
	for _, f := range s.lab.Deliver(s.sides[0].end, frames...)[s.sides[1].end] {
		if outer(f) != nil {
			to[f.Dst()]++
		}
	}
	if station := s.sides[1].end.MAC; to[otherHop]+to[station] != len(frames) || to[otherHop] < len(frames)-2 {
		s.t.Errorf("%d packets for several next hops went to %v; all but one or two are due at the last, %v",
			len(frames), to, otherHop)
	}
}

// Packets are too large for a route, or for its device, and smaller ones of the same connection are not.
func TestSizes(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		e := s.lab.NewEnds(1)[0]
		s.ip(
			"link set "+e.Port+" mtu 1480 up", "address add 10.0.3.1/24 dev "+e.Port, "address add fd03:3::1/64 nodad dev "+e.Port,
			fmt.Sprintf("neigh add 10.0.3.2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			fmt.Sprintf("neigh add fd03:3::2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			"route add 10.20.0.0/16 via 10.0.3.2", "route add fd20::/64 via fd03:3::2",
		)
		for _, to := range []struct {
			what, four, six string
			mtu             int
		}{
			{"a plain route", "10.9.1.1", "fd09::1", 1500},
			// An unlocked MTU of a route affects only the stack, see docs/design/routing.md.
			{"a route with an MTU that is locked", "10.3.1.1", "fd03::1", 1440}, {"a smaller device", "10.20.1.1", "fd20::1", 1480},
		} {
			var frames []netlab.Frame
			add := func(r recipe, number uint16) {
				f := r.frame(s, number)
				frames = append(frames, r.before(s, f, number), f)
			}
			for _, size := range []int{to.mtu - 1, to.mtu, to.mtu + 1, 1500} {
				if size > 1500 {
					continue
				}
				for _, frag := range []uint16{0, 0x4000} {
					add(recipe{dst: netip.MustParseAddr(to.four), ttl: 64, proto: unix.IPPROTO_UDP, frag: frag, size: size - 20, tag: -1}, uint16(size))
				}
				add(recipe{six: true, dst: netip.MustParseAddr(to.six), ttl: 64, proto: unix.IPPROTO_UDP, size: size - 40, tag: -1}, uint16(size))
			}
			s.alike(to.what, true, frames)
		}
	})
}

// The MTU of a port of the switch is below the MTU of the host's interface there. Larger packets are dropped and
// counted, also after a small packet of the same connection.
func TestSmallerPort(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.sides[1].end.SetMTU(1400)
		small := s.udp4(s.sides[1].station4, s.made)
		large := recipe{dst: s.sides[1].station4, src: netip.AddrFrom4([4]byte(addressesOf(small))), ttl: 64, proto: unix.IPPROTO_UDP, size: 1440, tag: -1}.frame(s, binary.BigEndian.Uint16([]byte(small)[18:]))
		dropped := func() (n uint64) {
			for _, port := range []string{s.sides[0].end.Port, s.sides[0].gateway, s.sides[1].gateway} {
				n += s.lab.Port("br0", port).Drops["mtu"]
			}
			return n
		}
		s.byDatapath("a small one", s.sides[1].end, func() netlab.Frame { return small })
		const times = 20
		before := dropped()
		for range times {
			if got := s.lab.Deliver(s.sides[0].end, small, small, large)[s.sides[1].end]; slices.Contains(got, large) {
				t.Fatal("a packet arrives that is too large for the port")
			}
		}
		s.lab.Wait("drops to be counted", func() bool { return dropped() >= before+times })
		if n := dropped() - before; n != times {
			t.Errorf("%d packets are counted as too large of %d", n, times)
		}
	})
}

// An IPv4 packet may have an IPv6 next hop (RFC 8950).
func TestHopOfOtherFamily(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		e := s.lab.NewEnds(1)[0]
		s.ip(
			"link set "+e.Port+" up", "address add fd03:3::1/64 nodad dev "+e.Port,
			fmt.Sprintf("neigh add fd03:3::2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			"route add 10.20.0.0/16 via inet6 fd03:3::2 dev "+e.Port,
		)
		for _, to := range []string{"10.2.1.1", "10.20.1.1"} {
			s.alike("to "+to, true, s.both(to, "fd09::1"))
		}
	})
}

// The datapath does not forward packets that the host's settings keep from being forwarded.
func TestSettings(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		four, six := s.both("10.9.1.1", "10.5.1.1"), s.both("fd09::1", "fd05::1")
		for _, c := range []struct {
			set, back string
			four, six bool
		}{
			{"ipv6/conf/all/forwarding=0 ipv6/conf/gw1/forwarding=1", "ipv6/conf/all/forwarding=1", true, false},
			{"ipv6/conf/gw1/forwarding=0", "ipv6/conf/gw1/forwarding=1", true, false},
			{"ipv6/conf/gw1/disable_ipv6=1", "ipv6/conf/gw1/disable_ipv6=0", true, false},
			{"ipv4/conf/gw1/forwarding=0", "ipv4/conf/gw1/forwarding=1", false, true},
			{"ipv4/conf/gw2/forwarding=0 ipv6/conf/gw2/forwarding=0", "ipv4/conf/gw2/forwarding=1 ipv6/conf/gw2/forwarding=1", true, true},
			{"ipv4/conf/gw2/rp_filter=1", "ipv4/conf/gw2/rp_filter=0", true, true},
			{"ipv4/conf/gw1/rp_filter=1", "ipv4/conf/gw1/rp_filter=0", true, true},
			{"ipv4/conf/all/rp_filter=2", "ipv4/conf/all/rp_filter=0", true, true},
		} {
			set := func(list string) {
				for _, one := range strings.Fields(list) {
					name, value, _ := strings.Cut(one, "=")
					s.sysctl(name, value)
				}
			}
			set(c.set)
			s.alike(c.set+", IPv4", c.four, four)
			s.alike(c.set+", IPv6", c.six, six)
			set(c.back)
			if strings.Contains(c.set, "disable_ipv6") { // the address was deleted
				s.ip("address replace fd01::1/64 dev gw1 nodad", "route replace fd11::/64 via fd01::2",
					fmt.Sprintf("neigh replace fd01::2 lladdr %s dev gw1 nud permanent", s.sides[0].end.MAC))
			}
		}
		s.alike("as before", true, slices.Concat(four, six))
	})
}

// The host receives packets to its interface's MAC, also after a change of it.
func TestAddressChanges(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		packets := s.both("10.9.1.1", "fd09::1")
		s.alike("at first", true, packets)
		s.ip("link set gw1 address 02:57:00:00:00:61")
		got := s.lab.Deliver(s.sides[0].end, packets...)[s.sides[1].end]
		for _, p := range packets {
			if same := like(p, got); len(same) > 0 {
				t.Errorf("a packet is forwarded that is to the address that the interface had: %v", same)
			}
		}
		s.alike("to the address that it had", false, packets)
		s.ip("link set gw1 address " + s.sides[0].mac.String())
		s.alike("with the first address again", true, packets)
	})
}

// udp returns a socket of the first station that sends datagrams to an address.
func (s *site) udp(to netip.Addr) *net.UDPConn {
	s.t.Helper()
	var conn net.Conn
	s.must(s.sides[0].end.Namespace.Do(func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(to.String(), "4000"))
		return err
	}))
	s.t.Cleanup(func() { conn.Close() })
	return conn.(*net.UDPConn)
}

// All datagrams of a socket use one next hop, also the few that the host gets. The host would choose by a number of the
// socket, which is unknown to the datapath.
func TestConnectionsKeepHop(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.hash(1)
		s.stations()
		in := s.lab.Port("br0", s.sides[0].gateway)
		var conns []*net.UDPConn
		for _, to := range []string{"10.5.1.1", "fd05::1"} {
			for range 16 {
				conns = append(conns, s.udp(netip.MustParseAddr(to)))
			}
		}
		hop := map[string]netlab.MAC{}
		rounds := 0
		// Each connection has had a datagram that was left to the host.
		s.lab.Wait("packets to be left to the host", func() bool {
			for i := range conns { // others are first in the next second
				_, err := conns[(i+rounds)%len(conns)].Write([]byte("a datagram"))
				s.must(err)
			}
			rounds++
			s.lab.Flush()
			for _, f := range s.sides[1].end.Received() {
				b := []byte(f)
				var from string
				switch {
				case b[12] == 8 && b[13] == 0 && b[23] == unix.IPPROTO_UDP:
					from = fmt.Sprint("IPv4 ", b[34:36])
				case b[12] == 0x86 && b[20] == unix.IPPROTO_UDP:
					from = fmt.Sprint("IPv6 ", b[54:56])
				default:
					continue
				}
				if was, ok := hop[from]; ok && was != f.Dst() {
					t.Fatalf("a connection's datagrams go to %v, and to %v", was, f.Dst())
				}
				hop[from] = f.Dst()
			}
			return s.lab.Port("br0", s.sides[0].gateway).Routed["fresh"] >= in.Routed["fresh"]+12
		})
		if len(hop) != len(conns) {
			t.Errorf("datagrams of %d connections have arrived, want %d", len(hop), len(conns))
		}
	})
}

// The host has to see a packet to each next hop again and again, or it does not probe the neighbour. This includes a
// next hop whose packet is never the first of a second, because others have more traffic.
func TestEveryHopIsSeen(t *testing.T) {
	const busy, calm = 128, 16
	s := newSite(t, "tcx")
	var commands []string
	var first, all []netlab.Frame
	for n := range uint16(busy + calm) {
		// Each packet of a pair has the words of the other in another order, and follows it directly.
		address := [16]byte{0xfd, 2, 11: byte(n % busy), 15: 200}
		if n >= busy {
			address[11], address[15] = address[15], address[11]
		}
		r := recipe{six: true, dst: netip.AddrFrom16(address), ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
		f := r.frame(s, n)
		if n < busy {
			first = append(first, f)
			s.hop(r.dst.String(), otherHop)
			continue
		}
		all = append(append(append(all, first...), first[n-busy]), f)
		commands = append(commands, fmt.Sprintf("neigh replace %s lladdr %s dev gw2 nud stale", r.dst, otherHop))
	}
	// After that they do not change, and neither do those that the host does not probe.
	s.sysctl("ipv6/neigh/gw2/delay_first_probe_time", 1000)
	s.sysctl("ipv6/neigh/gw2/gc_stale_time", 1000000)
	s.ip(commands...)
	s.lab.Wait("the host to look after each next hop", func() bool {
		s.lab.Deliver(s.sides[0].end, all...)
		list, err := s.lab.Switch.Netlink().NeighList(s.index(s.sides[1].gateway), 0)
		s.must(err)
		return !slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.State == netlink.NUD_STALE })
	})
}

// index returns the index of an interface of the host.
func (s *site) index(name string) int {
	s.t.Helper()
	link, err := s.lab.Switch.Netlink().LinkByName(name)
	s.must(err)
	return link.Attrs().Index
}

// A station whose MAC changes without an announcement is reached again.
func TestSilentChange(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		for _, family := range []string{"ipv4", "ipv6"} {
			s.sysctl(family+"/neigh/gw2/base_reachable_time_ms", 1000)
			s.sysctl(family+"/neigh/gw2/delay_first_probe_time", 1)
			s.sysctl(family+"/neigh/gw2/ucast_solicit", 1)
		}
		end := s.sides[1].end
		nl := end.Namespace.Netlink()
		station, err := nl.LinkByName(end.Ifname)
		s.must(err)
		for n, to := range []netip.Addr{s.sides[1].station4, s.sides[1].station6} {
			s.ip(fmt.Sprintf("neigh replace %s lladdr %s dev gw2 nud stale", to, station.Attrs().HardwareAddr))
			before := s.routed()
			// A station without a socket would answer with an error, and its request for the host's MAC
			// would reveal its own.
			s.must(end.Namespace.Do(func() error {
				conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 4000)))
				if err == nil {
					t.Cleanup(func() { conn.Close() })
				}
				return err
			}))
			conn := s.udp(to)
			awaits := func(what string) {
				s.lab.Wait(what, func() bool {
					_, err := conn.Write([]byte("are you there?"))
					s.must(err)
					s.lab.Flush()
					return slices.ContainsFunc(end.Received(), func(f netlab.Frame) bool {
						return f.Dst() == netlab.MAC(station.Attrs().HardwareAddr) && strings.Contains(string(f), "are you there?")
					}) && s.routed() > before
				})
			}
			awaits("packets to be routed")
			station.Attrs().HardwareAddr = net.HardwareAddr{2, 0x57, 0, 0, 1, byte(n)}
			s.must(nl.LinkSetHardwareAddr(station, station.Attrs().HardwareAddr))
			before = s.routed()
			awaits("packets to be routed to the new MAC")
		}
	})
}

// program attaches a few instructions to a device of the host: as the first at its ingress, or the last at its egress.
// The packet continues.
func (s *site) program(device string, at ebpf.AttachType, code ...asm.Instruction) {
	s.t.Helper()
	index := s.index(device)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: append(code, asm.Mov.Imm(asm.R0, -1), asm.Return()),
	})
	s.must(err)
	defer p.Close()
	s.must(s.lab.Switch.Do(func() error {
		options := link.TCXOptions{Interface: index, Program: p, Attach: at}
		if at == ebpf.AttachTCXIngress {
			options.Anchor = link.Head()
		}
		l, err := link.AttachTCX(options)
		if err == nil {
			s.t.Cleanup(func() { l.Close() })
		}
		return err
	}))
}

// Offsets in a program's struct __sk_buff (linux/bpf.h).
const (
	skbMark     = 8
	skbPriority = 32
)

// A mark from another program may choose the route of a packet. XDP runs before any such program.
func TestMark(t *testing.T) {
	s := newSite(t, "tcx")
	rule := netlink.NewRule()
	rule.Mark, rule.Table, rule.Family = 7, 77, netlink.FAMILY_V6
	s.must(s.lab.Switch.Netlink().RuleAdd(rule))
	s.ip("rule add fwmark 7 table 77", "route add 10.9.0.0/16 via 10.0.2.3 table 77", "route add fd09::/64 via fd02::3 table 77")
	packets := s.both("10.9.1.1", "fd09::1")
	s.alike("without a mark", true, packets)
	s.program(s.sides[0].end.Port, ebpf.AttachTCXIngress,
		asm.Mov.Imm(asm.R2, 7), asm.StoreMem(asm.R1, skbMark, asm.R2, asm.Word))
	s.alike("with a mark", false, packets)
}

// The host assigns forwarded packets a priority by their TOS, whatever the route's metric is.
func TestPriority(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 256})
		s.must(err)
		defer seen.Close()
		e := s.lab.NewEnds(1)[0]
		s.ip(
			"link set "+e.Port+" up", "address add 10.0.3.1/24 dev "+e.Port,
			fmt.Sprintf("neigh add 10.0.3.2 lladdr %s dev %s nud permanent", e.MAC, e.Port), "route add 10.20.0.0/16 via 10.0.3.2 metric 24",
		)
		// The priority of packets with a TOS, and a count, at its index in the map.
		s.program(e.Port, ebpf.AttachTCXEgress,
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.StoreImm(asm.RFP, -8, 0, asm.Word),
			asm.Mov.Imm(asm.R2, 15), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8), asm.Mov.Imm(asm.R4, 1),
			asm.FnSkbLoadBytes.Call(),
			asm.LoadMem(asm.R7, asm.R6, skbPriority, asm.Word), asm.Add.Imm(asm.R7, 1),
			asm.StoreMem(asm.RFP, -16, asm.R7, asm.Word),
			asm.LoadMapPtr(asm.R1, seen.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -16),
			asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		)
		var frames []netlab.Frame
		for tos := range 64 {
			frames = append(frames, recipe{dst: netip.MustParseAddr("10.20.1.1"), tos: byte(tos * 4), ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}.frame(s, uint16(tos)))
		}
		for _, update := range []int{1, 0} {
			s.sysctl("ipv4/ip_forward_update_priority", update)
			priorities := func() (list [256]uint32) {
				s.lab.Deliver(s.sides[0].end, frames...)
				for tos := range list {
					s.must(seen.Lookup(uint32(tos), &list[tos]))
				}
				return list
			}
			s.route(false)
			want := priorities()
			s.route(true)
			priorities()
			before := s.routed()
			if got := priorities(); got != want {
				t.Errorf("ip_forward_update_priority=%d: the priorities, and one, are\n%v, want\n%v", update, got, want)
			}
			if s.routed() == before {
				t.Error("nothing is routed by the datapath")
			}
		}
	})
}

// A connection whose packets are too large for a route learns the route's MTU, also with GSO packets.
func TestPathMTU(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.ip("route add 10.0.2.2/32 dev gw2 mtu lock 1300", "route add fd02::2/128 dev gw2 mtu lock 1300")
		for _, to := range []netip.Addr{s.sides[1].station4, s.sides[1].station6} {
			if mtu := s.transfer(to, 1<<20); mtu != 1300 {
				t.Errorf("the connection to %s has packets of up to %d bytes, want 1300", to, mtu)
			}
		}
	})
}

// A rule of `ip rule` chooses the route of the packets that it matches, as in the host.
func TestRules(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.ip("route add 10.9.0.0/16 via 10.0.2.3 table 77", "route add fd09::/64 via fd02::3 table 77")
		packets := s.flows("10.9.1.1", "fd09::1")
		for _, rule := range []string{ // protocols as numbers: the machine may lack /etc/protocols
			"iif gw1", "iif gw2", "ipproto 17", "ipproto 132 sport 1003-1010", "dport 4000", "ipproto 50", "tos 8", "not ipproto 6",
		} {
			for _, family := range []string{"-4", "-6"} {
				s.run("ip", append([]string{family, "rule", "add", "pref", "100"}, strings.Fields(rule+" table 77")...)...)
			}
			s.alike(rule, true, packets)
			for _, family := range []string{"-4", "-6"} {
				s.run("ip", family, "rule", "del", "pref", "100")
			}
		}
		for _, family := range []string{"-4", "-6"} {
			s.run("ip", family, "rule", "add", "pref", "100", "iif", "gw1", "blackhole")
		}
		s.alike("a rule that drops", false, s.both("10.9.1.1", "fd09::1"))
	})
}

// A rule refuses routes of its table that are too general, or that leave by a group of devices. Then the next rule
// applies.
func TestRulesThatRefuse(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.ip("route replace 10.9.0.0/16 via 10.0.2.2", "route replace fd09::/64 via fd02::2",
			"route add 10.9.0.0/16 via 10.0.2.3 table 77", "route add fd09::/64 via fd02::3 table 77",
			"link set dev gw2 group 7")
		packets := map[string][]netlab.Frame{"-4": s.both("10.9.1.1", "10.9.1.1"), "-6": s.both("fd09::1", "fd09::1")}
		for _, family := range []string{"-4", "-6"} {
			for _, refuses := range []string{
				"suppress_prefixlength 64", "suppress_ifgroup 7", "suppress_prefixlength 0",
			} {
				rule := []string{family, "rule", "add", "pref", "100", "table", "main"}
				s.run("ip", append(rule, strings.Fields(refuses)...)...)
				s.run("ip", family, "rule", "add", "pref", "200", "table", "77")
				// The kernel's look-up does not support such rules for IPv6.
				s.alike(refuses, family == "-4", packets[family])
				s.run("ip", family, "rule", "del", "pref", "100")
				s.run("ip", family, "rule", "del", "pref", "200")
			}
		}
		s.alike("without such rules", true, packets["-6"])
	})
}

// The check of a source evaluates the host's rules as if the answer came in by the output device.
func TestRulesOfSource(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		packets := s.both("10.9.1.1", "10.9.1.1")
		s.ip("route add 10.1.0.0/16 via 10.0.1.2 table 71", "route add 10.1.0.0/16 via 10.0.2.2 table 72",
			"route add blackhole 10.1.0.0/16 table 73", "route add local 10.1.0.0/16 dev lo table 74",
			"rule add pref 100 blackhole from 10.77.0.0/16")
		var trials []trial
		for _, c := range []struct {
			main, rule          string // the way back, and a change of it
			none, strict, loose bool   // the settings with which the datapath routes
		}{
			{"10.0.1.2", "iif gw1 to 10.1.0.0/16 table 72", true, true, true},
			{"10.0.1.2", "iif gw2 to 10.1.0.0/16 table 72", true, false, true},
			{"10.0.2.2", "iif gw2 to 10.1.0.0/16 table 71", true, true, true},
			{"10.0.2.2", "iif gw1 to 10.1.0.0/16 table 71", true, false, true},
			{"10.0.2.2", "sport 4000 to 10.1.0.0/16 table 71", true, true, true},
			{"10.0.2.2", "dport 4000 to 10.1.0.0/16 table 71", true, false, true},
			{"10.0.1.2", "ipproto 17 to 10.1.0.0/16 table 72", true, false, true},
			{"10.0.1.2", "iif gw2 to 10.1.0.0/16 table 73", false, false, false},
			{"10.0.1.2", "iif gw2 to 10.1.0.0/16 table 74", false, false, false},
		} {
			for filter, routed := range []bool{c.none, c.strict, c.loose} {
				trials = append(trials, trial{fmt.Sprintf("back by %s, %s, rp_filter %d", c.main, c.rule, filter), func() {
					s.ip("route replace 10.1.0.0/16 via "+c.main, "rule del pref 100", "rule add pref 100 "+c.rule)
					s.sysctl("ipv4/conf/gw1/rp_filter", filter)
				}, packets, routed})
			}
		}
		s.allAlike(trials)
		s.sysctl("ipv4/conf/gw1/rp_filter", 2)
		s.ip("rule del pref 100", "route replace 10.1.0.0/16 via 10.0.2.2", "address flush dev gw1 scope global")
		s.alike("a loose check at an interface without an address", false, packets)
	})
}

// vrf makes a VRF with a table, and the host's rule for it.
func (s *site) vrf(name string, table int) {
	s.t.Helper()
	_, err := s.lab.Switch.Output(context.Background(), ends.AnyCPU, "ip", "link", "add", name, "type", "vrf", "table", fmt.Sprint(table))
	if err != nil && strings.Contains(err.Error(), "Unknown device type") {
		s.t.Skip("the kernel has no VRFs: ", err)
	}
	s.must(err)
	s.lab.Keep(name)
	s.ip("link set " + name + " up")
}

// joins moves an interface of the host into a VRF. The kernel then deletes some of its addresses and neighbours, which
// joins adds again for an interface of a side. Other interfaces have neither.
func (s *site) joins(gateway, vrf string) {
	s.t.Helper()
	s.ip("link set " + gateway + " master " + vrf)
	for _, side := range s.sides {
		if side.gateway == gateway {
			s.ip(fmt.Sprintf("address replace %s dev %s nodad", side.ip6, gateway),
				fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", side.station4, side.end.MAC, gateway),
				fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", side.station6, side.end.MAC, gateway))
		}
	}
	s.lab.Bascule("bridge", "set", "br0") // without an agent, a command updates the addresses
}

// Packets that enter through an interface of a VRF are routed with the VRF's table, and left to the stack if that is
// not enough. A route that leads out of a VRF is like any other.
func TestVRF(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.vrf("blue", 100)
		s.ip("route add 10.20.0.0/16 dev blue", "route add fd20::/64 dev blue",
			"route add 10.20.0.0/16 via 10.0.2.2 dev gw2 onlink table 100", "route add fd20::/64 via fd02::2 dev gw2 onlink table 100",
			"route add 10.1.0.0/16 via 10.0.1.2 dev gw1 onlink table 100")
		s.alike("out by a VRF", true, append(s.both("10.20.1.1", "fd20::1"), s.both("10.9.1.1", "fd09::1")...))
		four, six := s.both("10.20.1.1", "10.20.1.1"), s.both("fd20::1", "fd20::1")
		s.joins("gw1", "blue")
		// The look-up for the check of an IPv4 source uses the output device, which is in no VRF.
		s.alike("from a VRF to none, IPv4", false, four)
		s.alike("from a VRF to none, IPv6", true, six)
		s.joins("gw2", "blue")
		s.hop("10.0.2.3", otherHop)
		s.hop("fd02::3", otherHop)
		e := s.lab.NewEnds(1)[0]
		s.ip("route replace 10.20.0.0/16 via 10.0.2.2 table 100", "route replace fd20::/64 via fd02::2 table 100",
			"route replace 10.1.0.0/16 via 10.0.1.2 table 100", "route add fd11::/64 via fd01::2 table 100",
			"route add fd05::/64 table 100 nexthop via fd02::2 nexthop via fd02::3",
			"route add blackhole 10.8.0.0/16 table 100", "route add blackhole fd08::/64 table 100",
			// The host may have a route that the VRF lacks.
			"link set "+e.Port+" up", "address add 10.0.3.1/24 dev "+e.Port, "address add fd03:3::1/64 nodad dev "+e.Port,
			fmt.Sprintf("neigh add 10.0.3.2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			fmt.Sprintf("neigh add fd03:3::2 lladdr %s dev %s nud permanent", e.MAC, e.Port),
			"route add 10.30.0.0/16 via 10.0.3.2", "route add fd30::/64 via fd03:3::2",
			// The host has an address of the VRF's network, which takes precedence.
			"route add local 10.20.77.0/24 dev "+e.Port, "route add local fd20::77/128 dev "+e.Port)
		s.ip(s.severalHops("10.5.0.0/16", "100", hop2, hop3)...)
		// The host answers none of these: their checksums are wrong.
		var echoes []netlab.Frame
		for n, to := range []string{"10.20.77.1", "fd20::77"} {
			a := netip.MustParseAddr(to)
			r := recipe{six: a.Is6(), dst: a, ttl: 64, proto: unix.IPPROTO_ICMP, icmp: 8, size: 40, tag: -1}
			if r.six {
				r.proto, r.icmp = unix.IPPROTO_ICMPV6, 128
			}
			echoes = append(echoes, r.frame(s, uint16(n)))
		}
		set := func(filter, forwarding int, back, rule string) func() {
			return func() {
				// The VRF's own settings have no effect: for IPv4, the stack uses the interface's.
				s.sysctl("ipv4/conf/gw1/rp_filter", filter)
				s.sysctl("ipv4/conf/blue/rp_filter", 1-filter)
				s.sysctl("ipv4/conf/gw1/forwarding", forwarding)
				s.sysctl("ipv4/conf/blue/forwarding", 1-forwarding)
				s.ip("route replace 10.1.0.0/16 via "+back+" table 100",
					"rule del pref 100", "rule add pref 100 "+rule)
				s.run("ip", "-6", "rule", "del", "pref", "100")
				s.run("ip", append([]string{"-6", "rule", "add", "pref", "100"}, strings.Fields(rule)...)...)
			}
		}
		s.run("ip", "-6", "rule", "add", "pref", "100", "table", "55")
		s.ip("rule add pref 100 table 55", "route add 10.20.0.0/16 via 10.0.3.2 table 56", "route add fd20::/64 via fd03:3::2 table 56")
		plain := set(0, 1, "10.0.1.2", "table 55")
		s.allAlike([]trial{
			{"within a VRF", plain, slices.Concat(four, six), true},
			{"several next hops", plain, s.flows("10.5.1.1", "fd05::1"), true},
			{"a black hole", plain, s.both("10.8.1.1", "fd08::1"), false},
			{"by a route of the host", plain, s.both("10.30.1.1", "fd30::1"), false},
			{"to the host itself", plain, echoes, false},
			{"a source that is checked", set(1, 1, "10.0.1.2", "table 55"), four, true},
			{"a source behind another interface of the VRF", set(1, 1, "10.0.2.2", "table 55"), four, false},
			{"the same without a check", set(0, 1, "10.0.2.2", "table 55"), four, true},
			{"where the interface does not forward", set(0, 0, "10.0.1.2", "table 55"), four, false},
			{"by a rule before the VRF's", set(0, 1, "10.0.1.2", "iif gw1 table 56"), four, false},
			{"IPv6, which comes in by the VRF", set(0, 1, "10.0.1.2", "iif gw1 table 56"), six, true},
			{"by a rule about the VRF", set(0, 1, "10.0.1.2", "iif blue table 56"), six, false},
		})
	})
}

// trips returns the number of the last trip of each CPU. Packets get from program to program through trips. A packet on
// the short path makes none.
func (s *site) trips() (numbers []uint64) {
	s.t.Helper()
	cookie, err := s.lab.Switch.Cookie()
	s.must(err)
	m, err := ebpf.LoadPinnedMap(fmt.Sprintf("/run/bascule/%d/%%patch/patch_trip", cookie), nil)
	s.must(err)
	defer m.Close()
	var cpus [][]byte
	s.must(m.Lookup(uint32(0), &cpus))
	for _, trip := range cpus {
		numbers = append(numbers, binary.NativeEndian.Uint64(trip))
	}
	return numbers
}

// sends sends packets to the second station. It returns the ones that arrive there, the number of packets that the
// datapath takes (see taken) and routes, and the number of trips.
func (s *site) sends(frames []netlab.Frame) (arrived []netlab.Frame, taken, routed int, made uint64) {
	s.t.Helper()
	out := s.sides[1].end
	took, before, numbers := s.taken(), s.routed(), s.trips()
	got := s.lab.Deliver(s.sides[0].end, frames...)[out]
	for _, f := range got {
		if slices.ContainsFunc(frames, func(sent netlab.Frame) bool { return like(sent, []netlab.Frame{f}) != nil }) {
			arrived = append(arrived, f)
		}
	}
	taken, routed = s.taken()-took, s.routed()-before
	for cpu, number := range s.trips() {
		// A CPU's first number is the time.
		if numbers[cpu] != 0 {
			made += number - numbers[cpu]
		}
	}
	return arrived, taken, routed, made
}

// The packets of a connection take the short path, except for the first ones. They are not forwarded when their output
// port no longer takes packets.
func TestInOneGo(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		out := s.sides[1]
		from4, from6 := s.sides[0].station4, s.sides[0].station6
		for _, r := range []recipe{
			{src: from4, dst: out.station4, proto: unix.IPPROTO_UDP},
			{src: from4, dst: out.station4, proto: unix.IPPROTO_TCP},
			{src: from4, dst: out.station4, proto: unix.IPPROTO_ICMP, icmp: 8},
			{six: true, src: from6, dst: out.station6, proto: unix.IPPROTO_UDP},
			{six: true, src: from6, dst: out.station6, proto: unix.IPPROTO_TCP},
			{six: true, src: from6, dst: out.station6, proto: unix.IPPROTO_ICMPV6, icmp: 128},
		} {
			r.ttl, r.size, r.tag = 64, plainLoad, -1
			what := fmt.Sprintf("protocol %d to %s", r.proto, r.dst)
			frames := slices.Repeat([]netlab.Frame{r.frame(s, 7)}, 100)
			s.lab.Wait(what+" to be routed in one go", func() bool {
				arrived, taken, routed, made := s.sends(frames)
				if len(arrived) > taken {
					t.Fatalf("%s: %d packets arrive, and %d are routed: %v", what, len(arrived), routed, s.lab.Port("br0", s.sides[0].gateway).Routed)
				}
				return routed > len(frames)/2 && made < uint64(routed)/2
			})
		}
		frame := s.udp4(out.station4, s.made)
		s.deliver(out.end, true, frame, frame)
		for _, port := range []string{out.gateway, out.end.Port} {
			s.lab.Bascule("port", "set", "br0", port, "--isolated")
		}
		if got := s.deliver(out.end, false, frame, frame); len(got) > 0 {
			t.Error("a packet leaves by a port that the host port must not talk to")
		}
	})
}

// Many connections have a packet each now and then. Their routes are looked up again, which is no trip, and changes of
// the host's configuration apply to each of them.
func TestRenewed(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		in, out := s.sides[0], s.sides[1]
		for _, six := range []bool{false, true} {
			r := recipe{six: six, src: in.station4, dst: out.station4, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}
			family := "ipv4"
			if six {
				r.src, r.dst, family = in.station6, out.station6, "ipv6"
			}
			var frames []netlab.Frame
			for n := range uint16(24) {
				frames = append(frames, r.frame(s, n))
			}
			renewed := func(after string) {
				s.lab.Wait(family+" to be routed without trips "+after, func() bool {
					_, _, routed, made := s.sends(frames)
					return routed > len(frames)/2 && made < uint64(routed)/2
				})
			}
			forward := func(on string) {
				s.must(s.lab.Switch.Do(func() error {
					return sysctl(map[string]string{"ipv4/conf/" + in.gateway + "/forwarding": on, "ipv6/conf/all/forwarding": on})
				}))
			}
			renewed("at first")
			for _, mac := range []string{"02:00:00:00:00:99", out.end.MAC.String()} {
				s.ip(fmt.Sprintf("neigh replace %v lladdr %s dev %s nud permanent", r.dst, mac, out.gateway))
				arrived, _, _, _ := s.sends(frames)
				for _, f := range arrived {
					if is := net.HardwareAddr(f[:6]).String(); is != mac {
						t.Errorf("a packet to %v arrives for %s, want %s", r.dst, is, mac)
					}
				}
			}
			renewed("to the station again")
			forward("0")
			if arrived, _, _, _ := s.sends(frames); len(arrived) > 0 {
				t.Errorf("%d packets to %v pass a host that does not forward", len(arrived), r.dst)
			}
			forward("1")
			renewed("by a host that forwards again")
		}
	})
}

// The host sees a packet to each next hop now and then, so that it checks the neighbour, also if the routes through one
// next hop are renewed only because of packets to another.
func TestRenewedNeighbour(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		in, out := s.sides[0], s.sides[1]
		other := netip.MustParseAddr("10.0.2.64")
		var frames []netlab.Frame
		for n := range uint16(8) {
			for _, to := range []netip.Addr{out.station4, other} {
				frames = append(frames, recipe{src: in.station4, dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}.frame(s, n))
			}
		}
		neighbour := func(state string) {
			s.ip(fmt.Sprintf("neigh replace %v lladdr %v dev %s nud %s", other, out.end.MAC, out.gateway, state))
		}
		neighbour("permanent")
		s.lab.Wait("packets to be routed", func() bool {
			_, _, routed, _ := s.sends(frames)
			return routed > len(frames)/2
		})
		neighbour("stale")
		s.lab.Wait("the host to ask for a stale neighbour", func() bool {
			s.sends(frames)
			text, err := s.lab.Switch.Output(context.Background(), ends.AnyCPU, "ip", "neigh", "show", other.String())
			s.must(err)
			return !strings.Contains(string(text), "STALE")
		})
	})
}
