// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// hopSite is a site with a third side, whose station is the next hop of rules: 10.0.3.2 and
// fd03::2.
type hopSite struct {
	*site
	third *side
}

func newHopSite(t *testing.T, hook string) *hopSite {
	s := newSite(t, hook)
	h := &hopSite{s, s.third(hook)}
	nl := s.lab.Switch.Netlink()
	link, err := nl.LinkByName("gw3")
	s.must(err)
	s.address(link, "fd03::1/64")
	for _, a := range []string{"10.0.3.2", "fd03::2"} {
		s.ip("neigh replace " + a + " lladdr " + h.third.end.MAC.String() + " dev gw3 nud permanent")
	}
	return h
}

// onHops runs a test on each hook.
func onHops(t *testing.T, f func(t *testing.T, s *hopSite)) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			f(t, newHopSite(t, hook))
		})
	}
}

// gets sends a frame from the station of a side, and returns the IP packets that arrive at the
// stations of the three sides.
func (s *hopSite) gets(from *side, f netlab.Frame) (got [3][]netlab.Frame) {
	s.t.Helper()
	arrived := s.lab.Deliver(from.end, f)
	s.lab.Flush() // a next hop that is chosen on the way out needs one step more than the lab expects
	for i, side := range []*side{s.sides[0], s.sides[1], s.third} {
		for _, f := range append(arrived[side.end], side.end.Received()...) {
			// The host itself sends reports of its IPv6 groups.
			if typ := string(f[12:14]); typ == "\x08\x00" || typ == "\x86\xdd" && f[:2] != "\x33\x33" {
				got[i] = append(got[i], f)
			}
		}
	}
	return got
}

// counts returns the number of frames at each side.
func counts(got [3][]netlab.Frame) (n [3]int) {
	for i := range got {
		n[i] = len(got[i])
	}
	return n
}

// want sends a packet of a flow, and expects n packets at the stations of the three sides.
func (s *hopSite) want(what string, f flow, n [3]int) (got [3][]netlab.Frame) {
	s.t.Helper()
	got = s.gets(s.sides[f.from], s.frame(f))
	if counts(got) != n {
		s.t.Errorf("%s: packets of %+v arrive: %v, want %v; drops %v %v\n%s", what, f, counts(got), n,
			s.lab.Port("br0", s.sides[f.from].end.Port).Drops, s.lab.Port("br0", s.sides[f.to].gateway).Drops, s.pfctl("", "-vv", "-s", "states"))
	}
	return got
}

// dropped returns the number of packets without a path to their next hop, by the counters of the
// ports and of pf.
func (s *hopSite) dropped() (n uint64) {
	s.t.Helper()
	for _, port := range s.lab.Ports("br0") {
		n += port.Drops["pf-route"]
	}
	s.wantCounter("no-route", n)
	return n
}

// A packet with route-to arrives at its next hop with the same bytes as with the host's route, and
// nowhere else. Its answers use the host's routes.
func TestRouteTo(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		for _, six := range []bool{false, true} {
			hop, dst := "10.0.3.2", s.sides[1].station4.String()
			if six {
				hop, dst = "fd03::2", s.sides[1].station6.String()
			}
			f := flow{0, 1, six, [2]uint16{1000, 2000}, 0}
			// As the host itself would send it there.
			s.loadAnew("pass no state\n")
			s.ip("route replace " + dst + " via " + hop)
			byRoute := s.want("by a route", f, [3]int{0, 0, 1})
			s.ip("route del " + dst)
			s.want("as ever", f, [3]int{0, 1, 0})
			routes := func(rules string) {
				t.Helper()
				s.pfctl("", "-F", "states")
				for i := range 3 { // the first one makes a state, and the others use it
					got := s.want(fmt.Sprintf("%q, packet %d", rules, i), f, [3]int{0, 0, 1})
					if len(got[2]) == 1 && len(byRoute[2]) == 1 && got[2][0] != byRoute[2][0] {
						t.Errorf("%q: the packet is\n%x, by a route it is\n%x", rules, got[2][0], byRoute[2][0])
					}
				}
				s.want(rules+": an answer", f.back(), [3]int{1, 0, 0})
				if text := s.pfctl("", "-vv", "-s", "states"); !strings.Contains(text, " route-to "+hop+"\n") {
					t.Errorf("%q: the states have no next hop:\n%s", rules, text)
				}
				s.pfctl("", "-k", "gateway", "-k", dst) // it is no next hop
				if text := s.pfctl("", "-vv", "-s", "states"); !strings.Contains(text, " route-to "+hop+"\n") {
					t.Errorf("%q: -k gateway kills what has another next hop:\n%s", rules, text)
				}
				s.pfctl("", "-k", "gateway", "-k", hop)
				if text := s.pfctl("", "-vv", "-s", "states"); strings.Contains(text, " route-to ") {
					t.Errorf("%q: -k gateway leaves states:\n%s", rules, text)
				}
			}
			for _, rules := range []string{
				"pass\npass in on gw1 route-to HOP\n",
				"pass\npass in on gw1 route-to { HOP }\n",
				"table <hops> { HOP }\npass\npass in on gw1 FAMILY route-to <hops> random\n",
				"pass\npass in route-to HOP\n", // names no port: applies to host ports
				"block out on gw2\npass\npass in on gw1 route-to HOP\npass out on gw3\n",
				"pass\npass out on gw2 route-to HOP\n",
				// OpenBSD does not evaluate the rules there, either.
				"pass\nblock out on gw3\npass out on gw2 route-to HOP\n",
			} {
				rules = strings.NewReplacer("HOP", hop, "FAMILY", map[bool]string{false: "inet", true: "inet6"}[six]).Replace(rules)
				s.load(rules)
				routes(rules)
				if six { // the stack handles other packets of IPv6 then
					refuses := []string{"pref", "100", "table", "main", "suppress_prefixlength", "0"}
					s.run("ip", append([]string{"-6", "rule", "add"}, refuses...)...)
					routes("a rule that refuses, " + rules)
					s.run("ip", append([]string{"-6", "rule", "del"}, refuses...)...)
				}
			}
		}
		if n := s.dropped(); n != 0 {
			t.Errorf("%d packets were dropped for their next hop", n)
		}
	})
}

// A packet with route-to whose next hop is not reachable is dropped and counted. Its sender gets an
// error.
func TestRouteToNowhere(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		for _, c := range []struct {
			rules, route string
			answers      int
		}{
			{"pass\npass in on gw1 route-to 10.0.77.1\n", "route replace unreachable 10.0.77.0/24", 1},
			{"pass\npass out on gw2 route-to 10.0.77.1\n", "route replace unreachable 10.0.77.0/24", 1},
			{"pass\npass in on gw1 route-to 10.0.77.1\n", "route replace blackhole 10.0.77.0/24", 1},
			{"table <none> persist\npass\npass in on gw1 inet route-to <none> random\n", "", 0},
			{"pass\npass in on e1 route-to 10.0.3.2\n", "", 0}, // names no host port
		} {
			s.ip("route replace 10.0.77.0/24 via 10.0.3.2") // otherwise the load refuses the rules
			s.load(c.rules)
			s.ip("route del 10.0.77.0/24")
			if c.route != "" {
				s.ip(c.route)
			}
			s.pfctl("", "-F", "states")
			for range 2 {
				before := s.dropped()
				got := s.want(c.rules, f, [3]int{c.answers, 0, 0})
				if n := s.dropped() - before; n != 1 {
					t.Errorf("%q: %d packets are counted as pf-route", c.rules, n)
				}
				if len(got[0]) == 1 && (got[0][0][14+9] != unix.IPPROTO_ICMP || got[0][0][34] != 3 || got[0][0][35] != 1) {
					t.Errorf("%q: the answer is %x", c.rules, got[0][0])
				}
			}
		}
		// A packet whose time to live ends is answered, too.
		s.load("pass\npass in on gw1 route-to 10.0.3.2\n")
		old := []byte(s.frame(f))
		old[14+8] = 1
		sum := checksum(append(slices.Clone(old[14:24]), append([]byte{0, 0}, old[26:34]...)...))
		old[24], old[25] = byte(sum>>8), byte(sum)
		got := s.gets(s.sides[0], netlab.Frame(old))
		if counts(got) != [3]int{1, 0, 0} || got[0][0][34] != 11 {
			t.Errorf("a packet at the end of its time to live: %v", counts(got))
		}
	})
}

// A packet that no router forwards does not go to a next hop, and is not copied: from or to an
// address of the host, or with an error in its header. The host's stack is the oracle.
func TestRouteToMartians(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		spoil := func(six bool, at int, address string) netlab.Frame {
			b := []byte(s.frame(flow{0, 1, six, [2]uint16{1000, 2000}, 0}))
			copy(b[14+at:], netip.MustParseAddr(address).AsSlice())
			if !six {
				sum := checksum(append(slices.Clone(b[14:24]), append([]byte{0, 0}, b[26:34]...)...))
				b[24], b[25] = byte(sum>>8), byte(sum)
			}
			return netlab.Frame(b)
		}
		frames := map[string]netlab.Frame{}
		for _, address := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
			six, src, dst := false, 12, 16
			if strings.Contains(address, ":") {
				six, src, dst = true, 8, 24
			}
			frames["from "+address] = spoil(six, src, address)
			frames["to "+address] = spoil(six, dst, address)
		}
		wrong := []byte(s.frame(flow{0, 1, false, [2]uint16{1000, 2000}, 0}))
		wrong[24] ^= 1
		frames["a wrong checksum"] = netlab.Frame(wrong)
		for _, rules := range []string{
			"pass no state\n",
			"pass\npass in on gw1 inet route-to 10.0.3.2\npass in on gw1 inet6 route-to fd03::2\n",
			"pass\npass in on gw1 inet dup-to 10.0.3.2\npass in on gw1 inet6 dup-to fd03::2\n",
		} {
			s.loadAnew(rules)
			for what, f := range frames {
				before := s.dropped()
				got := s.gets(s.sides[0], f)
				for _, f := range slices.Concat(got[1], got[2]) {
					// There are copies of the host's answers.
					if proto := f[14+9]; proto == unix.IPPROTO_UDP || f[12] == 0x86 && f[14+6] == unix.IPPROTO_UDP {
						t.Errorf("%q, %s: there arrives %x", rules, what, string(f))
					}
				}
				if n := s.dropped() - before; strings.Contains(rules, "route-to") != (n == 1) {
					t.Errorf("%q, %s: %d packets are counted as pf-route", rules, what, n)
				}
			}
		}
	})
}

// Large packets go to a next hop unsegmented if their segments fit its route, whose MTU may be below
// the MTU of its device. Otherwise the sender gets an error and sends smaller packets.
func TestRouteToNarrow(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		s.stations()
		s.load("pass\npass in on gw1 inet route-to 10.0.2.2\npass in on gw1 inet6 proto tcp route-to fd02::2\n")
		s.ip("route replace 10.0.2.2/32 dev gw2 mtu lock 900", "route replace fd02::2/128 dev gw2 mtu lock 1300")
		for i, want := range []int{900, 1300} {
			to := []netip.Addr{s.sides[1].station4, s.sides[1].station6}[i]
			if mtu := s.transfer(to, 1<<20); mtu != want {
				t.Errorf("to %s the largest packet is %d bytes, want %d", to, mtu, want)
			}
		}
	})
}

// The answers of a connection go to the next hop of reply-to, with rules in both directions.
func TestReplyTo(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		for _, six := range []bool{false, true} {
			hop := map[bool]string{false: "10.0.3.2", true: "fd03::2"}[six]
			f := flow{0, 1, six, [2]uint16{1000, 2000}, syn}
			for _, rules := range []string{
				"pass\npass in on gw1 reply-to HOP\n",
				"pass\npass out on gw2 reply-to HOP\n",
			} {
				rules = strings.ReplaceAll(rules, "HOP", hop)
				s.loadAnew(rules)
				s.want(rules, f, [3]int{0, 1, 0})
				back := f.back()
				back.flags = syn | ack
				s.want(rules+": an answer", back, [3]int{0, 0, 1})
				f := f
				f.flags = ack
				s.want(rules+": the next packet", f, [3]int{0, 1, 0})
				if text := s.pfctl("", "-vv", "-s", "states"); !strings.Contains(text, " reply-to "+hop+"\n") {
					t.Errorf("%q: the states have no next hop:\n%s", rules, text)
				}
			}
		}
	})
}

// A copy of each packet of a connection goes to the next hop of dup-to. The packet itself takes its
// normal path.
func TestDupTo(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		for _, rules := range []string{
			"pass\npass in on gw1 dup-to 10.0.3.2\n",
			"pass\npass out on gw2 dup-to 10.0.3.2\n",
		} {
			s.loadAnew(rules)
			for range 3 {
				s.want(rules, f, [3]int{0, 1, 1})
				s.want(rules+": an answer", f.back(), [3]int{1, 0, 1})
			}
		}
		s.ip("route replace 10.0.77.0/24 via 10.0.3.2")
		s.load("pass\npass in on gw1 dup-to 10.0.77.1\n")
		s.ip("route replace unreachable 10.0.77.0/24")
		s.pfctl("", "-F", "states")
		s.want("a copy that cannot go", f, [3]int{0, 1, 0})
	})
}

// A packet is translated before it goes to a next hop. A state keeps its next hop, whatever the pool
// returns next, even if the state is copied to a larger table.
func TestRouteToPools(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		for _, c := range []struct {
			rules    string
			at       int    // offset of the new address in the packet
			is, from string // the new address
		}{
			{"pass in on gw1 inet proto udp rdr-to 10.0.9.9 route-to 10.0.3.2", 30, "\x0a\x00\x09\x09", "in"},
			{"pass out on gw2 inet proto udp nat-to 10.0.3.1 route-to 10.0.3.2", 26, "\x0a\x00\x03\x01", "out"},
		} {
			s.loadAnew("pass\n" + c.rules + "\n")
			for range 2 {
				got := s.want(c.rules, f, [3]int{0, 0, 1})
				if len(got[2]) == 1 && string(got[2][0][c.at:c.at+4]) != c.is {
					t.Errorf("%q: the packet is %x", c.rules, got[2][0])
				}
			}
		}
		// 10.0.3.3 has no station.
		for _, pool := range []string{
			"{ 10.0.3.2, 10.0.3.3 } round-robin", "{ 10.0.3.2, 10.0.3.3 } round-robin sticky-address", "{ 10.0.3.2, 10.0.3.3 } least-states",
			"{ 10.0.3.2, 10.0.3.3 } random", "{ 10.0.3.2, 10.0.3.3 } source-hash",
		} {
			s.loadAnew("pass\npass in on gw1 inet route-to " + pool + "\n")
			s.pfctl("", "-F", "Sources")
			hops := map[string]int{}
			for i := range 8 {
				f.ports[0] = uint16(3000 + i)
				s.gets(s.sides[0], s.frame(f))
			}
			for _, word := range strings.Fields(s.pfctl("", "-vv", "-s", "states")) {
				if word == "10.0.3.2" || word == "10.0.3.3" {
					hops[word]++
				}
			}
			sticks := strings.Contains(pool, "sticky") || strings.Contains(pool, "source-hash")
			even := strings.Contains(pool, "least") || pool == "{ 10.0.3.2, 10.0.3.3 } round-robin"
			if n := hops["10.0.3.2"]; n+hops["10.0.3.3"] != 8 || sticks != (n == 0 || n == 8) && !strings.Contains(pool, "random") || even && n != 4 {
				t.Errorf("%s: next hops of 8 connections: %v", pool, hops)
			}
			if text := s.pfctl("", "-s", "Sources"); strings.Contains(pool, "sticky") != strings.Contains(text, "10.0.1.2 -> 10.0.3.") {
				t.Errorf("%s: sources are\n%s", pool, text)
			}
		}
		s.loadAnew("pass\npass in on gw1 route-to 10.0.3.2\n")
		s.want("before", f, [3]int{0, 0, 1})
		s.load("set limit states 300000\npass\n")
		s.want("in a larger table", f, [3]int{0, 0, 1})
		s.pfctl("", "-F", "states")
		s.want("without a state", f, [3]int{0, 1, 0})
	})
}

// onBridges runs a test on both hooks, at a site whose second side is in a bridge of its own, with a
// third station that is in the host's neighbour table.
func onBridges(t *testing.T, f func(t *testing.T, s *site, third *side)) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			s := newSiteIn(t, netlab.New(t), hook, "br1")
			third := s.third(hook)
			s.ip("neigh replace 10.0.3.2 lladdr " + third.end.MAC.String() + " dev gw3 nud permanent")
			f(t, s, third)
		})
	}
}

// Another bridge, whose host port sends a packet, has its own rules and states. It tracks and
// translates each packet, even if its rule has a next hop. The next hop is then ignored.
func TestRouteToOtherBridge(t *testing.T) {
	onBridges(t, func(t *testing.T, s *site, third *side) {
		s.load("pass\npass out on gw3 route-to 10.0.2.2\n")
		for _, word := range []string{"reply-to", "route-to", "dup-to"} {
			rules := "pass\npass out on gw2 inet nat-to 10.0.2.1 " + word + " 10.0.3.2\n"
			s.pfctlOf("br1", rules, "-f", "-")
			s.pfctlOf("br1", "", "-F", "states")
			f := []byte(s.frame(flow{0, 1, false, [2]uint16{1000, 2000}, 0}))
			copy(f[30:], netip.MustParseAddr("10.0.3.2").AsSlice())
			sum := checksum(append(slices.Clone(f[14:24]), append([]byte{0, 0}, f[26:34]...)...))
			f[24], f[25] = byte(sum>>8), byte(sum)
			for i := range 3 {
				arrived := s.lab.Deliver(s.sides[0].end, netlab.Frame(f))
				if got := arrived[s.sides[1].end]; len(got) != 1 || string(got[0][26:30]) != "\x0a\x00\x02\x01" {
					t.Errorf("%q: packet %d arrives as %q", rules, i, got)
				}
				if got := arrived[third.end]; len(got) != 0 {
					t.Errorf("%q: packet %d went further: %q", rules, i, got)
				}
			}
			if text := s.pfctlOf("br1", "", "-vv", "-s", "states"); !strings.Contains(text, " 3:0 pkts") {
				t.Errorf("%q: the other bridge has not counted 3 packets:\n%s", rules, text)
			}
		}
	})
}

// A trace names the next hop and the path to it.
func TestRouteToTold(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		for _, rules := range []string{"pass\npass in on gw1 route-to 10.0.3.2\n", "pass\npass out on gw2 route-to 10.0.3.2\n"} {
			s.loadAnew(rules)
			for _, known := range []bool{false, true} {
				steps, verdict := s.trace(s.frame(f))
				text := strings.Join(steps, "\n  ")
				for _, want := range []string{"the next hop is 10.0.3.2, by route-to", " by gw3 "} {
					if !strings.Contains(text, want) {
						t.Errorf("%q: a trace, of a known connection %v, has no %q; it says %s\n  %s", rules, known, want, verdict, text)
					}
				}
				s.want(rules, f, [3]int{0, 0, 1})
			}
		}
		s.loadAnew("pass\npass in on e1 route-to 10.0.3.2\n")
		if _, verdict := s.trace(s.frame(f)); verdict != "dropped: pf-route" {
			t.Errorf("a trace of a packet without a way says %s", verdict)
		}
	})
}
