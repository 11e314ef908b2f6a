// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// sources4 are possible source addresses, one or more of each kind.
var sources4 = []string{
	"10.0.1.2", "10.0.1.77", "10.1.3.4", // behind the first side
	"10.0.2.2", "10.9.1.1", "10.5.1.1", "10.3.1.1", // behind the second
	"10.8.0.1", "10.7.0.1", "10.6.0.1", // blackhole, unreachable, prohibit
	"172.16.0.1", "203.0.113.9", "192.0.2.1", // none
	"10.0.1.1", "10.0.2.1", "10.0.1.255", "10.0.1.0", // the host's own, broadcasts
	"0.0.0.0", "127.0.0.1", "127.9.9.9", "224.0.0.5", "239.1.1.1", "255.255.255.255", // martians
	"10.4.0.1", "10.4.0.2", "10.4.0.3", "10.4.7.8", // behind both
}

// twoWays adds a route with next hops on both sides.
func (s *site) twoWays() {
	s.ip(s.severalHops("10.4.0.0/16", "main", "via 10.0.1.2 dev gw1", hop2)...)
	s.ip("route replace fd04::/64 nexthop via fd01::2 nexthop via fd02::2")
}

// claims returns packets from the first station to the second, one from each address.
func (s *site) claims(six bool, sources []netip.Addr) (frames []netlab.Frame) {
	dst := s.sides[1].station4
	if six {
		dst = s.sides[1].station6
	}
	for i, a := range sources {
		r := recipe{six: six, src: a, dst: dst, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
		frames = append(frames, r.frame(s, uint16(i)))
	}
	return frames
}

// blocked returns the number of packets from the first station's port that pf has dropped.
func (s *site) blocked() uint64 { return s.lab.Port("br0", s.sides[0].end.Port).Drops["pf"] }

// The host's own check of sources is the oracle: urpf-failed matches the packets that rp_filter
// drops, and no others.
func TestPFReversePath(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		s.twoWays()
		draw := rand.New(rand.NewPCG(1, 2))
		var sources []netip.Addr
		for _, a := range sources4 {
			sources = append(sources, netip.MustParseAddr(a))
		}
		for range 100 { // of all networks, with and without a route
			nets := [...]byte{0, 1, 3, 4, 5, 6, 7, 8, 9, 77}
			b := [4]byte{10, nets[draw.IntN(len(nets))], byte(1 + draw.IntN(3)), byte(draw.Uint32())}
			if draw.IntN(8) == 0 {
				b = [4]byte{byte(draw.Uint32()), byte(draw.Uint32()), byte(draw.Uint32()), byte(draw.Uint32())}
			}
			if b[0] != 0 && b[0] < 240 { // see docs/pf.md
				sources = append(sources, netip.AddrFrom4(b))
			}
		}
		for _, way := range []string{"without a default route", "with a default route"} {
			if way == "with a default route" {
				s.ip("route add default via 10.0.1.2")
			}
			s.load("pass no state")
			s.sysctl("ipv4/conf/gw1/rp_filter", 1)
			var passes, fails []netip.Addr
			arrived := map[netip.Addr]bool{}
			for _, f := range s.lab.Deliver(s.sides[0].end, s.claims(false, sources)...)[s.sides[1].end] {
				arrived[netip.AddrFrom4([4]byte([]byte(addressesOf(f))))] = true
			}
			for _, a := range sources {
				if arrived[a] {
					passes = append(passes, a)
				} else {
					fails = append(fails, a)
				}
			}
			s.sysctl("ipv4/conf/gw1/rp_filter", 0)
			if len(passes) == 0 || len(fails) == 0 {
				t.Fatalf("%s: the host takes %v and drops %v", way, passes, fails)
			}
			s.load("pass no state\nblock in on gw1 from urpf-failed")
			s.want(way, false, passes, false)
			s.want(way, false, fails, true)
			s.load("block\npass in on e1\npass on gw2 no state\npass out on e2 no state\npass in on gw1 from ! urpf-failed no state")
			s.want(way+", negated", false, passes, false)
			s.want(way+", negated", false, fails, true)
			s.load("pass no state\nblock in on e1 from urpf-failed\nblock in on e1 from no-route")
			s.want(way+", at the station's port", false, passes, false)
			s.want(way+", at the station's port", false, fails, false)
		}
		s.ip("route del default via 10.0.1.2")
	})
}

// want sends packets from addresses, and checks that pf blocks all of them, or none.
func (s *site) want(what string, six bool, sources []netip.Addr, blocks bool) {
	s.t.Helper()
	s.wantBlocked(what, s.claims(six, sources), blocks, func(i int) netip.Addr { return sources[i] })
}

func (s *site) wantBlocked(what string, frames []netlab.Frame, blocks bool, of func(int) netip.Addr) {
	s.t.Helper()
	count := func(frames ...netlab.Frame) uint64 {
		before := s.blocked()
		s.lab.Deliver(s.sides[0].end, frames...)
		return s.blocked() - before
	}
	n := uint64(0)
	if blocks {
		n = uint64(len(frames))
	}
	if got := count(frames...); got == n {
		return
	}
	for i, f := range frames {
		if got := count(f) > 0; got != blocks {
			s.t.Errorf("%s: pf blocks a packet of %s: %v, want %v", what, of(i), got, blocks)
		}
	}
}

// `ip route get` is the oracle for whether an address has a route. For IPv6, which has no
// rp_filter, it is also the oracle for the interface.
func TestPFNoRoute(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		s.twoWays()
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName("gw1")
		s.must(err)
		for _, c := range []struct {
			six  bool
			list []string
		}{
			{false, []string{
				"10.0.1.2", "10.1.3.4", "10.0.2.2", "10.9.1.1", "10.5.1.1", "10.8.0.1", "10.7.0.1", "10.6.0.1", "172.16.0.1",
				"203.0.113.9", "10.0.1.1", "10.0.2.1", "10.4.0.1", "10.4.0.2",
			}},
			{true, []string{
				"fd01::2", "fd11::7", "fd02::2", "fd09::1", "fd05::1", "fd03::1", "fd08::1", "fd07::1", "fd06::1", "2001:db8::1",
				"fd01::1", "fd02::1", "fd04::1", "fd04::2", "fd04::3", "fd04::4",
			}},
		} {
			var routed, none, here, elsewhere []netip.Addr
			for _, text := range c.list {
				a := netip.MustParseAddr(text)
				got, err := nl.RouteGet(a.AsSlice())
				if err != nil || got[0].Type == unix.RTN_UNREACHABLE || got[0].Type == unix.RTN_BLACKHOLE || got[0].Type == unix.RTN_PROHIBIT {
					none = append(none, a)
				} else {
					routed = append(routed, a)
				}
				both := netip.MustParsePrefix("fd04::/64").Contains(a)
				if err == nil && got[0].Type == unix.RTN_UNICAST && (got[0].LinkIndex == in.Attrs().Index || both) {
					here = append(here, a)
				} else {
					elsewhere = append(elsewhere, a)
				}
			}
			if len(routed) == 0 || len(none) == 0 || len(here) == 0 {
				t.Fatalf("routes to %v, by gw1 %v, none to %v", routed, here, none)
			}
			to := func(dst []netip.Addr) (frames []netlab.Frame) {
				for i, a := range dst {
					r := recipe{six: c.six, dst: a, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
					frames = append(frames, r.frame(s, uint16(i)))
				}
				return frames
			}
			s.load("pass no state\nblock in on gw1 from no-route")
			s.want("from no-route", c.six, routed, false)
			s.want("from no-route", c.six, none, true)
			s.load("pass no state\nblock in on gw1 to no-route")
			s.wantBlocked("to no-route", to(routed), false, func(i int) netip.Addr { return routed[i] })
			s.wantBlocked("to no-route", to(none), true, func(i int) netip.Addr { return none[i] })
			if c.six {
				s.load("pass no state\nblock in on gw1 from urpf-failed")
				s.want("from urpf-failed", true, here, false)
				s.want("from urpf-failed", true, elsewhere, true)
				odd := func(list ...string) (all []netip.Addr) {
					for _, a := range list {
						all = append(all, netip.MustParseAddr(a))
					}
					return all
				}
				s.want("odd sources", true, odd("::", "::1", "ff02::1"), true)
				s.want("sources of the link", true, odd("fe80::9"), false)
			}
		}
	})
}

// The routes of another host do not matter: no packet that enters that host is known to have a
// route.
func TestPFRoutesOfOtherHost(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName("gw1")
		s.must(err)
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "other"}}
		s.must(nl.LinkAdd(bridge))
		defer nl.LinkDel(bridge)
		s.must(nl.LinkSetMaster(in, bridge))
		s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn") // a command updates the state
		s.load("pass no state\nblock in on gw1 from urpf-failed")
		s.want("at another host", false, []netip.Addr{s.sides[0].station4}, true)
		s.load("pass no state\nblock in on gw1 to no-route")
		s.want("at another host", false, []netip.Addr{s.sides[0].station4}, true)
	})
}

// matched returns the number of packets that the rule with a label has matched.
func (s *site) matched(label string) (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.pfctl("", "-s", "labels")) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == label {
			got, err := strconv.Atoi(words[2])
			s.must(err)
			n += got
		}
	}
	return n
}

// A flood to the host is evaluated by the host's routes, and so are packets from a patch cable.
func TestPFRoutesOfFloods(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		const asks = "pass no state\nmatch in on gw1 from no-route label lost\nmatch in on gw1 from urpf-failed label failed\n"
		sources := []netip.Addr{s.sides[0].station4, netip.MustParseAddr("10.9.1.1"), netip.MustParseAddr("203.0.113.9"), netip.IPv4Unspecified()}
		want := func(what string, at *netlab.End, dst netlab.MAC, to netip.Addr, lost, failed int) {
			t.Helper()
			s.load(asks)
			for i, a := range sources {
				r := recipe{src: a, dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
				b := []byte(r.frame(s, uint16(i)))
				copy(b, dst[:])
				copy(b[6:], at.MAC[:])
				s.lab.Deliver(at, netlab.Frame(b))
			}
			if l, f := s.matched("lost"), s.matched("failed"); l != lost || f != failed {
				t.Errorf("%s: %d sources have no route, want %d; %d fail, want %d", what, l, lost, f, failed)
			}
		}
		near := s.sides[0].end
		all := netip.AddrFrom4([4]byte{255, 255, 255, 255})
		want("a packet", near, s.sides[0].mac, s.sides[1].station4, 2, 3)
		want("a flood to all", near, netlab.Broadcast, all, 2, 2)
		want("a flood of an unknown address", near, netlab.MAC{2, 0x57, 0, 0, 9, 9}, s.sides[1].station4, 2, 3)

		far := s.lab.NewEnds(1)
		s.lab.AddBridge("br9", strings.TrimPrefix(t.Name(), "TestPFRoutesOfFloods/"), far)
		s.lab.Bascule("port", "add", "br9", "up", "--type", "patch", "--peer", "br0/down")
		s.lab.Bascule("vlan", "add", "br0", "down", s.sides[0].vlan, "--pvid", "--untagged")
		s.lab.Bascule("vlan", "del", "br0", "down", "1")
		want("by a cable", far[0], s.sides[0].mac, s.sides[1].station4, 2, 3)
		want("a flood by a cable", far[0], netlab.Broadcast, all, 2, 2)
	})
}

// A trial has the same results.
func TestPFRoutesTold(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.load("pass no state\nblock in on gw1 from urpf-failed")
		sources := []netip.Addr{s.sides[0].station4, netip.MustParseAddr("10.9.1.1")}
		for i, f := range s.claims(false, sources) {
			steps, verdict := s.trace(f)
			if blocked := strings.Contains(verdict, "pf"); blocked != (i == 1) {
				t.Errorf("a packet from %s: %q, %q", sources[i], steps, verdict)
			}
		}
	})
}
