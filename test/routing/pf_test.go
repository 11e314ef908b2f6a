// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bascule/pf"
	"bascule/pf/reference"
	"bascule/test/netlab"
)

// pfctl runs pfctl, with a text on its standard input.
func (s *site) pfctl(stdin string, args ...string) string {
	s.t.Helper()
	return s.pfctlOf("br0", stdin, args...)
}

// pfctlOf runs pfctl for any bridge.
func (s *site) pfctlOf(bridge, stdin string, args ...string) string {
	s.t.Helper()
	r := s.try(bridge, stdin, args...)
	if r.Exit != 0 {
		s.t.Fatal(r)
	}
	return r.Stdout
}

// try runs pfctl, which may fail.
func (s *site) try(bridge, stdin string, args ...string) netlab.Result {
	s.t.Helper()
	cmd := s.lab.Command(append([]string{"pfctl", "-b", bridge}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	r, err := netlab.RunCommand(cmd)
	s.must(err)
	return r
}

// lasting keeps states for the duration of a test on a busy machine, even if the table is small.
const lasting = "set timeout { interval 600, adaptive.start 0, adaptive.end 0, tcp.first 86400, tcp.opening 86400, " +
	"tcp.closing 86400, tcp.finwait 86400, tcp.closed 86400, udp.first 86400, udp.single 86400, udp.multiple 86400, " +
	"icmp.first 86400, icmp.error 86400, other.first 86400, other.single 86400, other.multiple 86400 }\n"

// load loads rules, in which e1 and e2 are the ports of the stations.
func (s *site) load(rules string) {
	s.t.Helper()
	s.pfctl(s.named(rules), "-f", "-")
}

// loadAnew is load for packets that have no states yet: it also removes all states.
func (s *site) loadAnew(rules string) {
	s.t.Helper()
	s.pfctl(s.named(rules), "-F", "states", "-f", "-")
}

// named replaces e1 and e2 by the names of the stations' ports.
func (s *site) named(rules string) string {
	return strings.NewReplacer("e1", s.sides[0].end.Port, "e2", s.sides[1].end.Port).Replace(rules)
}

// Flags of TCP.
const (
	syn = 2
	ack = 16
)

// A flow is a series of packets between two stations of the site, by number: UDP, or TCP if it has flags.
type flow struct {
	from, to int
	six      bool
	ports    [2]uint16
	flags    byte
}

// back returns the flow in the other direction.
func (f flow) back() flow {
	f.from, f.to = f.to, f.from
	f.ports[0], f.ports[1] = f.ports[1], f.ports[0]
	return f
}

// frame returns a packet of the flow on its way to the host.
func (s *site) frame(f flow) netlab.Frame {
	from, far := s.sides[f.from], s.sides[f.to]
	r := recipe{six: f.six, src: from.station4, dst: far.station4, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
	header := 20
	if f.six {
		r.src, r.dst, header = from.station6, far.station6, 40
	}
	if f.flags != 0 {
		r.proto = unix.IPPROTO_TCP
	}
	b := []byte(to(from.mac, r.frame(s, 1)))
	copy(b[6:], from.end.MAC[:])
	load := b[14+header:]
	binary.BigEndian.PutUint16(load, f.ports[0])
	binary.BigEndian.PutUint16(load[2:], f.ports[1])
	if f.flags != 0 {
		clear(load[4:20])
		load[12], load[13] = 5<<4, f.flags
		if f.flags&ack != 0 {
			binary.BigEndian.PutUint32(load[8:], 1)
		}
		if f.flags&syn == 0 {
			binary.BigEndian.PutUint32(load[4:], 1)
		}
		binary.BigEndian.PutUint16(load[14:], 1000)
	}
	return netlab.Frame(b)
}

// passes reports whether a packet of the flow arrives.
func (s *site) passes(f flow) bool {
	s.t.Helper()
	return len(s.lab.Deliver(s.sides[f.from].end, s.frame(f))[s.sides[f.to].end]) > 0
}

// wantPasses sends a packet of the flow, and checks whether it arrives.
func (s *site) wantPasses(what string, f flow, want bool) {
	s.t.Helper()
	if got := s.passes(f); got != want {
		s.t.Errorf("%s: a packet of %+v arrives: %v, want %v; %v", what, f, got, want, s.lab.Port("br0", s.sides[f.from].end.Port).Drops)
	}
}

// bothWays runs a test on each hook, with the host's stack alone and with the shortcut.
func bothWays(t *testing.T, f func(t *testing.T, s *site)) {
	onHooks(t, func(t *testing.T, s *site) {
		for _, on := range []bool{false, true} {
			s.route(on)
			f(t, s)
		}
	})
}

// A host port is the host's interface: a packet that enters the host comes in there, and a packet that leaves the host
// goes out there. The rules have the same effect whether the host or the datapath routes.
func TestPFDirections(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		for _, c := range []struct {
			rule   string
			passes bool
		}{
			{"block in on e1", false}, {"block in on gw1", false}, {"block out on gw2", false}, {"block out on e2", false},
			{"block out on e1", true}, {"block out on gw1", true}, {"block in on gw2", true}, {"block in on e2", true},
			{"block on gw1", false}, {"block on gw2", false}, {"block in on ! e1", false}, {"block out on ! e2", false},
			{"block in received-on gw1", true}, {"block in on gw1 received-on e1", false},
			// Without a state, the port of entry and the tag are unknown on the way out.
			{"block out on gw2 received-on gw2", true}, {"block out on gw2 received-on gw1", true},
			{"block out on gw2 ! received-on gw1", false}, {"block out on e2 received-on gw2", false},
			{"match in on e1 tag x\nblock in on gw1 tagged x", false},
			{"match in on gw1 tag x\nblock out on gw2 tagged x", true},
			{"match out on gw2 tag x\nblock out on e2 tagged x", false},
		} {
			s.load("pass no state\n" + c.rule)
			for _, six := range []bool{false, true} {
				f := flow{0, 1, six, [2]uint16{1000, 2000}, 0}
				s.passes(f) // the host gets one packet a second: this way, each of them is tried
				s.wantPasses(c.rule, f, c.passes)
			}
		}
	})
}

// If a packet that the host routes has a state for its way in, rules for its way out can match its port of entry and
// its tag.
func TestPFAcross(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		for _, c := range []struct {
			rules  string
			passes bool
		}{
			{"pass\nmatch in on gw1 tag x\nblock out on gw2 tagged x", false},
			{"pass\nmatch in on gw1 tag x\nblock out on gw2 ! tagged x", true},
			{"pass\nmatch in on e1 tag x\nblock out on e2 tagged x", false},
			{"pass\nmatch in on e1 tag x\nmatch in on gw1 tag y\nblock out on gw2 tagged x", true},
			{"pass\nmatch in on e1 tag x\nmatch out on gw2 tag y\nblock out on e2 tagged x", true},
			{"pass no state\npass in on gw1 tag x\nblock out on e2 tagged x", false},
			{"pass no state\npass in on e1\nmatch in on gw1 tag x\nblock out on e2 tagged x", false},
			{"pass\nblock out on gw2 received-on gw1", false},
			{"pass\nblock out on gw2 received-on gw2", true},
			{"pass\nblock out on gw2 ! received-on gw1", true},
			{"pass\nblock out on gw2 received-on any", false},
			{"pass\nblock out on e2 received-on gw1", false},
			{"pass\nblock out on e2 received-on gw2", true},
			{"pass\nblock in received-on gw1", true},
			{"pass\nblock in on gw1 received-on e1", false},
			// Policy filtering.
			{"block\npass in on e1\npass in on gw1 tag lan\npass out tagged lan", true},
			{"block\npass in on e1\npass in on gw1 tag lan\npass out tagged wan", false},
			{"block\npass in on e1\npass in on gw1\npass out received-on gw1", true},
			{"block\npass in on e1\npass in on gw1\npass out received-on gw2", false},
		} {
			s.load(c.rules)
			both := []flow{{0, 1, false, [2]uint16{1000, 2000}, 0}, {0, 1, true, [2]uint16{1000, 2000}, 0}}
			for _, f := range both {
				s.pfctl("", "-F", "states")
				s.wantPasses(c.rules, f, c.passes)
			}
			s.pfctl("", "-F", "states")
			for _, f := range both {
				s.passes(f) // the host gets one packet a second: this way, each of them is tried
				s.wantPasses("twice: "+c.rules, f, c.passes)
				if c.passes {
					s.wantPasses("its answer: "+c.rules, f.back(), true)
				}
			}
			if !c.passes {
				continue
			}
			// The states for the way in keep the tag, which rules for the way out can match even after a
			// load.
			s.load(c.rules + "\nmatch from 10.99.0.1\n")
			s.forgetOut(len(both))
			for _, f := range both {
				s.wantPasses("its way out is judged again: "+c.rules, f, true)
			}
		}
	})
}

// forgetOut removes the states for the way out of the host. There are at least this many.
func (s *site) forgetOut(least int) {
	s.t.Helper()
	states, n := s.pfctl("", "-vv", "-s", "states"), 0
	for _, m := range regexp.MustCompile(`(?s) -> .*? id: ([0-9a-f]+)`).FindAllStringSubmatch(states, -1) {
		s.pfctl("", "-k", "id", "-k", m[1])
		n++
	}
	if n < least {
		s.t.Errorf("there are %d states of ways out:\n%s", n, states)
	}
}

// Tags and received-on from the way in apply to translated connections, and to rules that translate.
func TestPFAcrossTranslated(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.bothWays(func(bool) {
			for _, c := range []struct {
				rules, to string
				src, dst  string // as they arrive
			}{
				{"pass\nmatch in on gw1 inet proto udp to 10.9.1.1 rdr-to 10.0.2.2 tag x\nblock out on gw2 ! tagged x", "10.9.1.1:80", "10.0.1.2:1000", "10.0.2.2:80"},
				{"pass\npass in on gw1 tag x\nmatch out on gw2 inet tagged x nat-to 10.0.2.1 static-port", "10.0.2.2:80", "10.0.2.1:1000", "10.0.2.2:80"},
				{"pass\npass in on gw1 tag x\nmatch out on gw2 inet tagged y nat-to 10.0.2.1 static-port", "10.0.2.2:80", "10.0.1.2:1000", "10.0.2.2:80"},
				{"pass\nmatch out on gw2 inet received-on gw1 nat-to 10.0.2.1 static-port", "10.0.2.2:80", "10.0.2.1:1000", "10.0.2.2:80"},
				{"pass\nmatch out on gw2 inet received-on gw2 nat-to 10.0.2.1 static-port", "10.0.2.2:80", "10.0.1.2:1000", "10.0.2.2:80"},
				{"pass\nmatch in on gw1 inet from 10.0.1.2 nat-to 10.0.1.9 static-port tag x\nblock out on gw2 ! tagged x", "10.0.2.2:80", "10.0.1.9:1000", "10.0.2.2:80"},
				// FreeBSD's syntax.
				{"nat on gw2 inet tagged x -> 10.0.2.1 static-port\npass\npass in on gw1 tag x", "10.0.2.2:80", "10.0.2.1:1000", "10.0.2.2:80"},
				{"rdr on gw1 inet proto udp to 10.9.1.1 tag x -> 10.0.2.2\npass\nblock out on gw2 ! tagged x", "10.9.1.1:80", "10.0.1.2:1000", "10.0.2.2:80"},
			} {
				s.loadAnew(c.rules)
				for n := range 2 {
					src, dst := s.become(0, 1, netip.MustParseAddrPort("10.0.1.2:1000"), netip.MustParseAddrPort(c.to))
					if src.String() != c.src || dst.String() != c.dst {
						t.Errorf("%s: packet %d arrives from %v to %v, want %s to %s", c.rules, n, src, dst, c.src, c.dst)
					}
				}
			}
		})
	})
}

// Packets from the host itself have no port of entry.
func TestPFOwnNotReceived(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.bothWays(func(bool) {
			l := s.listen(1, "udp4", "10.0.2.2:7").(net.PacketConn)
			s.load("pass\nmatch out on gw2 inet proto udp received-on gw2 nat-to 10.0.2.9\nblock out on gw2 received-on any\n")
			var conn net.Conn
			s.must(s.lab.Switch.Do(func() (err error) {
				conn, err = net.Dial("udp4", "10.0.2.2:7")
				return err
			}))
			defer conn.Close()
			if peer := s.echoUDP(l, conn, 100); peer.String() != conn.LocalAddr().String() {
				t.Errorf("the station sees %v, and the host is %v", peer, conn.LocalAddr())
			}
			s.wantPasses("what the host routes", flow{0, 1, false, [2]uint16{1000, 2000}, 0}, false)
			l.Close()
		})
	})
}

// A connection through the host has a state for the way in, and one for the way out, whether the host or the datapath
// has routed its packets.
func TestPFStates(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		s.load("block\npass in on e1\npass in on gw1\npass out on gw2\npass out on e2\n")
		for _, f := range []flow{
			{0, 1, false, [2]uint16{1000, 2000}, 0}, {0, 1, true, [2]uint16{1000, 2000}, 0},
			{0, 1, false, [2]uint16{1001, 2000}, syn}, {0, 1, true, [2]uint16{1001, 2000}, syn},
		} {
			s.pfctl("", "-F", "states")
			back := f.back()
			if f.flags != 0 {
				back.flags = syn | ack
			}
			s.wantPasses("nobody has asked", back, false)
			s.wantPasses("the first", f, true)
			s.wantPasses("its answer", back, true)
			on := s.lab.Port("br0", "gw1").Routed["done"] > 0
			s.route(!on)
			if f.flags != 0 {
				f.flags = ack
			}
			s.wantPasses("the next one, on the other way through the host", f, true)
			s.route(on)
			if n := strings.Count(s.pfctl("", "-s", "states"), "\n"); n != 2 {
				t.Errorf("%+v: %d states, want 2:\n%s", f, n, s.pfctl("", "-vv", "-s", "states"))
			}
		}
	})
}

// third adds a host port in a VLAN of its own, with a station.
func (s *site) third(hook string) *side {
	s.t.Helper()
	l := s.lab
	third := &side{bridge: "br0", gateway: "gw3", vlan: "13", end: l.NewEnds(1)[0]}
	l.AddPort("br0", hook, third.end)
	l.Bascule("port", "add", "br0", third.gateway, "--type", "host", "--route")
	for _, port := range []string{third.end.Port, third.gateway} {
		l.Bascule("vlan", "add", "br0", port, third.vlan, "--pvid", "--untagged")
		l.Bascule("vlan", "del", "br0", port, "1")
	}
	nl := l.Switch.Netlink()
	link, err := nl.LinkByName(third.gateway)
	s.must(err)
	s.must(nl.LinkSetUp(link))
	s.awaitUp(link)
	third.mac = netlab.MAC(link.Attrs().HardwareAddr)
	s.address(link, "10.0.3.1/24")
	l.Bascule("fdb", "add", "br0", third.end.MAC.String(), third.end.Port, "--vlan", third.vlan)
	return third
}

// by returns a frame to the host from the station of another side.
func (s *site) by(other *side, f netlab.Frame) netlab.Frame {
	return netlab.Frame(slices.Concat(other.mac[:], other.end.MAC[:], []byte(f)[12:]))
}

// States belong to the host's routing, not to a VLAN: an answer that enters the host by another port is an answer,
// unless the state is bound to its ports.
func TestPFOtherWayBack(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		third := s.third(strings.TrimPrefix(t.Name(), "TestPFOtherWayBack/"))
		asked := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		answer := s.by(third, s.frame(asked.back()))
		for _, c := range []struct {
			keeps  string
			passes bool
		}{{"keep state", true}, {"keep state (if-bound)", false}} {
			for _, on := range []bool{false, true} {
				s.route(on)
				s.loadAnew(strings.ReplaceAll("block\npass in on e1 KEEP\npass in on gw1 KEEP\npass out on gw2 KEEP\npass out on e2 KEEP\n", "KEEP", c.keeps))
				arrives := func() bool { return len(s.lab.Deliver(third.end, answer)[s.sides[0].end]) > 0 }
				if arrives() {
					t.Errorf("%s: an answer arrives that nobody has asked for", c.keeps)
				}
				s.wantPasses(c.keeps, asked, true)
				if got := arrives(); got != c.passes {
					t.Errorf("%s, shortcut %v: an answer by another port arrives: %v, want %v\n%s", c.keeps, on, got, c.passes, s.pfctl("", "-vv", "-s", "states"))
				}
			}
		}
	})
}

// The same addresses behind a host port of another namespace are different ones.
func TestPFOtherHost(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		hook := strings.TrimPrefix(t.Name(), "TestPFOtherHost/")
		third := s.third(hook)
		asked := s.frame(flow{0, 1, false, [2]uint16{1000, 2000}, 0})
		dropped := func(e *netlab.End) uint64 { return s.lab.Port("br0", e.Port).Drops["pf"] }
		want := func(what string, blocked bool) {
			t.Helper()
			s.pfctl("", "-F", "states")
			s.load("block\npass in on e1\npass in on gw1\npass out on gw2\npass out on e2\n")
			s.wantPasses(what, flow{0, 1, false, [2]uint16{1000, 2000}, 0}, true)
			before := dropped(third.end)
			s.lab.Deliver(third.end, s.by(third, asked))
			if got := dropped(third.end) > before; got != blocked {
				t.Errorf("%s: a packet of the same connection at the other port is blocked: %v, want %v\n%s", what, got, blocked, s.pfctl("", "-vv", "-s", "states"))
			}
		}
		want("one host", false)
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName(third.gateway)
		s.must(err)
		away := s.lab.NewNamespace()
		handle, err := netns.GetFromName(away.Name)
		s.must(err)
		defer handle.Close()
		s.must(nl.LinkSetNsFd(in, int(handle)))
		s.lab.Bascule("port", "set", "br0", third.end.Port, "--learn") // a command updates the state
		want("in another namespace", true)
	})
}

// A VRF is a routing domain: a state is valid for all interfaces of its VRF, and for no other.
func TestPFStatesOfVRF(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		third := s.third(strings.TrimPrefix(t.Name(), "TestPFStatesOfVRF/"))
		s.vrf("blue", 100)
		s.vrf("red", 200)
		for _, gateway := range []string{"gw1", "gw2"} {
			s.joins(gateway, "blue")
		}
		asked := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		dropped := func() uint64 { return s.lab.Port("br0", third.end.Port).Drops["pf"] }
		for _, c := range []struct {
			vrf     string
			blocked bool
		}{{"blue", false}, {"red", true}} {
			s.joins(third.gateway, c.vrf)
			s.pfctl("", "-F", "states")
			s.load("block\npass in on e1\npass in on gw1\npass out on gw2\npass out on e2\n")
			s.wantPasses("within a VRF", asked, true)
			s.wantPasses("the answer", asked.back(), true)
			before := dropped()
			s.lab.Deliver(third.end, s.by(third, s.frame(asked)))
			if got := dropped() > before; got != c.blocked {
				t.Errorf("a packet of the same connection at a port in %s is blocked: %v, want %v\n%s", c.vrf, got, c.blocked, s.pfctl("", "-vv", "-s", "states"))
			}
		}
	})
}

// A state that was made before the switch had learned the path to the host is found after that. States of packets
// between stations do not match packets to the host.
func TestPFStatesOfVLAN(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		in := s.sides[0]
		above := s.macvlan(netlink.MACVLAN_MODE_PRIVATE)
		s.load("block\npass in on e1\npass in on gw1\npass out on gw2\npass out on e2\npass on gw1 inet proto icmp no state\n")
		asked := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		s.lab.Bascule("fdb", "del", "br0", vrrp.String(), "--vlan", in.vlan)
		flooded := to(vrrp, s.frame(asked))
		if got := like(flooded, s.lab.Deliver(in.end, flooded)[s.sides[1].end]); len(got) != 1 {
			t.Errorf("%d packets of a flood arrive, want 1", len(got))
		}
		s.lab.Bascule("fdb", "add", "br0", vrrp.String(), in.gateway, "--vlan", in.vlan)
		s.load("block\n") // the states remain
		for i := range 2 {
			if got := like(flooded, s.lab.Deliver(in.end, flooded)[s.sides[1].end]); len(got) != 0 {
				t.Errorf("packet %d leaves by a way that no rule has seen", i)
			}
		}
		s.load("block\npass in on gw1 no state\n")
		if got := like(flooded, s.lab.Deliver(in.end, flooded)[s.sides[1].end]); len(got) != 1 {
			t.Errorf("%d packets of a known connection arrive when the way is known, want 1", len(got))
		}
		s.load("block\n")
		s.wantPasses("the answer", asked.back(), true)
		s.must(s.lab.Switch.Netlink().LinkDel(above))

		s.pfctl("", "-F", "states")
		other := s.lab.NewEnds(1)[0]
		s.lab.AddPort("br0", strings.TrimPrefix(t.Name(), "TestPFStatesOfVLAN/"), other)
		s.lab.Bascule("vlan", "add", "br0", other.Port, in.vlan, "--pvid", "--untagged")
		s.lab.Bascule("fdb", "add", "br0", other.MAC.String(), other.Port, "--vlan", in.vlan)
		s.load("block\npass in on e1\npass out on " + other.Port + "\npass on gw2\npass on e2\n")
		direct := to(other.MAC, s.frame(asked))
		if got := like(direct, s.lab.Deliver(in.end, direct)[other]); len(got) != 1 {
			t.Errorf("%d packets arrive at a station of the same VLAN, want 1", len(got))
		}
		s.wantPasses("to the host, with the addresses of a connection between stations", asked, false)
	})
}

// Packets between a station and the host are evaluated for both directions of the host port, and one state is for both.
func TestPFOwn(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		ping := recipe{src: s.sides[0].station4, dst: s.sides[0].ip4.Addr(), ttl: 64, proto: unix.IPPROTO_ICMP, icmp: 8, size: 40, tag: -1}.frame(s, 1)
		b := []byte(ping)
		binary.BigEndian.PutUint16(b[14+20+2:], 0)
		binary.BigEndian.PutUint16(b[14+20+2:], checksum(b[14+20:]))
		for _, c := range []struct {
			rules   string
			answers int
			states  int
		}{
			{"block\npass in on e1\npass in on gw1", 1, 1},
			{"block\npass in on e1\npass out on gw1", 0, 0},
			{"pass no state\nblock out on gw1", 0, 0},
			{"pass no state\nblock in on gw1", 0, 0},
			{"pass no state\nblock in on gw2", 1, 0},
		} {
			s.pfctl("", "-F", "states")
			s.load(c.rules + "\n")
			got := 0
			for _, f := range s.lab.Deliver(s.sides[0].end, netlab.Frame(b))[s.sides[0].end] {
				if b := []byte(f); binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && b[14+9] == unix.IPPROTO_ICMP {
					got++
				}
			}
			states := strings.Count(s.pfctl("", "-s", "states"), "\n")
			if got != c.answers || states != c.states {
				t.Errorf("%q: %d answers and %d states, want %d and %d", c.rules, got, states, c.answers, c.states)
			}
		}
	})
}

// The counters of rules and of a port, the log and a trace name the host port as the rules do.
func TestPFTold(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		counts := func(rules, rule string) (in, out string) {
			t.Helper()
			text := s.pfctl("", "-s", "labels")
			for _, line := range strings.Split(text, "\n") {
				// label, evaluations, packets, bytes, packets and bytes in, the same out, states
				if words := strings.Fields(line); len(words) > 6 && words[0] == rule {
					return words[4], words[6]
				}
			}
			t.Fatalf("%q: no rule %s in\n%s", rules, rule, text)
			return "", ""
		}
		for _, keeps := range []string{"no state", "keep state"} {
			rules := strings.ReplaceAll("set loginterface gw2\nmatch in on gw1 label m KEEP\npass in on e1 inet proto udp KEEP label a\npass in on gw1 inet proto udp KEEP label b\npass out on gw2 inet proto udp KEEP label c\npass out on e2 inet proto udp KEEP label d\n", "KEEP", keeps)
			rules = strings.Replace(rules, "label m "+keeps, "label m", 1)
			s.loadAnew(rules)
			s.pfctl("", "-z")
			s.pfctl("", "-F", "info")
			for range 3 {
				s.wantPasses(keeps, f, true)
			}
			s.wantPasses(keeps, f.back(), true)
			if keeps == "keep state" {
				for rule, want := range map[string][2]string{"a": {"3", "1"}, "b": {"3", "1"}, "c": {"1", "3"}, "d": {"1", "3"}} {
					if in, out := counts(rules, rule); in != want[0] || out != want[1] {
						t.Errorf("%s: rule %s counts %s packets in and %s out, want %v", keeps, rule, in, out, want)
					}
				}
				s.pfctl("", "-F", "states") // the rules have it now
			}
			for rule, want := range map[string][2]string{"b": {"3", "0"}, "c": {"0", "3"}} {
				if keeps == "keep state" {
					want = map[string][2]string{"b": {"3", "1"}, "c": {"1", "3"}}[rule]
				}
				if in, out := counts(rules, rule); in != want[0] || out != want[1] {
					t.Errorf("%s: rule %s has %s packets in and %s out, want %v", keeps, rule, in, out, want)
				}
			}
			info := s.pfctl("", "-s", "info")
			// The host itself sends an IPv6 packet now and then.
			if text := strings.Join(strings.Fields(info), " "); !strings.Contains(text, "Bytes In 60 0 ") || !strings.Contains(text, "Bytes Out 180 ") {
				t.Errorf("%s: the counters of gw2 are\n%s", keeps, info)
			}
		}
		s.load("pass no state\nblock in on gw1 inet proto udp\nblock out on gw2 inet6 proto udp\n")
		steps, verdict := s.trace(s.frame(f))
		if text := strings.Join(steps, "\n  "); !strings.Contains(text, "pf in: rule 1 at gw1: block drop in on gw1") || verdict != "dropped: pf" {
			t.Errorf("a trace says %q, and\n  %s", verdict, text)
		}
		f.six = true
		steps, verdict = s.trace(s.frame(f))
		if text := strings.Join(steps, "\n  "); !strings.Contains(text, "pf out: rule 2 at gw2: block drop out on gw2") || verdict != "dropped: pf" {
			t.Errorf("a trace says %q, and\n  %s", verdict, text)
		}
	})
}

// The log has the interface and the direction of the rule.
func TestPFLog(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		s.load("pass no state\nmatch in log on gw1 proto udp to port 2000\nblock out log on gw2 inet proto udp to port 2000\npass in log on gw2 inet6 proto udp no state\n")
		var out netlab.Output
		reader := s.lab.Command("pflog", "-b", "br0")
		reader.Stdout = &out
		s.must(reader.Start())
		defer reader.Wait()
		defer reader.Process.Kill()
		f := flow{0, 1, false, [2]uint16{1000, 2000}, 0}
		s.lab.Wait("the log", func() bool {
			s.passes(f)
			s.passes(flow{0, 1, true, [2]uint16{1000, 2001}, 0})
			return strings.Contains(out.String(), "rule 2/")
		})
		text := out.String()
		for _, want := range []string{"rule 1/(match) match in on gw1: ", "rule 2/(match) block out on gw2: "} {
			if !strings.Contains(text, want) {
				t.Errorf("the log lacks %q:\n%s", want, text)
			}
		}
		if strings.Contains(text, "rule 3/") || strings.Contains(text, "out on gw1") || strings.Contains(text, "in on gw2") {
			t.Errorf("the log has another direction:\n%s", text)
		}
	})
}

// rulesets draws rules about the site's ports.
func rulesets() *rapid.Generator[string] {
	word := func(t *rapid.T, of int, words ...string) string {
		if text := usually(of, "", rapid.SampledFrom(words)).Draw(t, "word"); text != "" {
			return " " + text
		}
		return ""
	}
	rule := rapid.Custom(func(t *rapid.T) string {
		action := usually(1, "pass", rapid.SampledFrom([]string{"block", "block return-rst", "match", "pass"})).Draw(t, "action")
		text := action + word(t, 1, "in", "out") + word(t, 5, "quick") +
			word(t, 1, "on e1", "on gw1", "on gw2", "on e2", "on gw", "on ! gw1", "on ! e2", "on any")
		if strings.HasPrefix(action, "block return") {
			return text + " proto tcp" // other answers are limited to a few a second
		}
		text += word(t, 2, "inet", "inet6", "inet proto udp", "inet6 proto udp", "proto udp", "proto tcp", "inet proto icmp", "inet6 proto icmp6", "proto gre")
		if strings.Contains(text, "udp") {
			text += word(t, 2, "to port 4000", "from any port 1000:1200", "from any port 1100:1300 to port > 4000")
		}
		if strings.HasPrefix(text, "match") {
			text = strings.Replace(text, " quick", "", 1)
		}
		if strings.HasPrefix(text, "pass") {
			text += word(t, 2, "no state", "keep state (if-bound)", "keep state (sloppy)")
		}
		return text + word(t, 5, "received-on e1", "received-on gw2", "! received-on gw1") + word(t, 4, "tag a", "tag b") + word(t, 6, "tagged a", "! tagged b")
	})
	return rapid.Custom(func(t *rapid.T) string {
		first := rapid.SampledFrom([]string{"pass no state", "block", "pass"}).Draw(t, "first")
		return strings.Join(append([]string{first}, rapid.SliceOfN(rule, 0, 12).Draw(t, "rules")...), "\n") + "\n"
	})
}

// through evaluates the rules one by one, without the datapath, for a packet that the host routes from the first
// station to the second. known is false if the result depends on more than the rules.
func (s *site) through(rules *pf.Ruleset, r recipe, f netlab.Frame) (passes, known bool) {
	b := []byte(f)[14:]
	p := reference.Packet{Proto: r.proto, TOS: r.tos, Family: pf.Inet}
	header := 20
	if r.six {
		header, p.Family = 40, pf.Inet6
		p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	} else {
		p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	}
	plain := recipe{six: r.six, dst: r.dst, ttl: 64, tos: r.tos, proto: r.proto, icmp: r.icmp, size: r.size, pad: r.pad, tag: -1}
	if fmt.Sprint(r) != fmt.Sprint(plain) || r.size < 8 || r.size > 1400 || p.Dst != s.sides[1].station4 && p.Dst != s.sides[1].station6 {
		return false, false
	}
	switch r.proto {
	case unix.IPPROTO_UDP:
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
		if int(binary.BigEndian.Uint16(b[header+4:])) != r.size {
			return false, false
		}
	case unix.IPPROTO_GRE:
	default:
		return false, false
	}
	e := reference.Evaluator{Rules: rules}
	named := func(port string) reference.Port {
		return reference.Port{Name: port, Groups: []string{pf.GroupName(port)}}
	}
	kept := false // a rule that keeps state has passed the packet
	at := func(d pf.Direction, port string, from reference.Port) bool {
		p.Direction, p.Port, p.ReceivedOn = d, named(port), from
		got := e.Evaluate(&p)
		p.Tag = got.Tag
		kept = kept || got.Rule != nil && got.Rule.State != pf.NoState
		return got.Action == pf.Pass
	}
	in, out := s.sides[0], s.sides[1]
	if !at(pf.In, in.end.Port, named(in.end.Port)) || !at(pf.In, in.gateway, named(in.end.Port)) {
		return false, true
	}
	if kept { // the state has the tag of the way in
		return at(pf.Out, out.gateway, named(in.gateway)) && at(pf.Out, out.end.Port, named(in.gateway)), true
	}
	p.Tag = ""
	return at(pf.Out, out.gateway, reference.Port{}) && at(pf.Out, out.end.Port, named(out.gateway)), true
}

// pf passes the same packets with and without the shortcut, byte by byte, and the result agrees with the rules for the
// way into the host and out of it. The first two rulesets are always the same, and pass all and nothing: both results
// occur with any seed.
func TestPFLikeStack(t *testing.T) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, hook)
			routed, seen, judged, passed := 0, 0, 0, 0
			lists := rapid.SliceOfN(rapid.SliceOfN(recipes(), 1, 40), 20, 40)
			compare := func(t rapid.TB, text string, list []recipe) {
				rules, err := pf.Parse("rules", []byte(text), pf.Source{})
				if err != nil {
					t.Fatalf("%v in\n%s", err, text)
				}
				s.pfctl(text, "-f", "-")
				frames := make([]netlab.Frame, len(list))
				for i, r := range list {
					frames[i] = r.frame(s, uint16(i))
				}
				seen += len(frames)
				var got, want [2][]string
				arrived := map[string]bool{}
				s.bothWays(func(on bool) {
					s.pfctl("", "-F", "states")
					before := s.routed()
					all := s.lab.Deliver(s.sides[0].end, frames...)
					routed += s.routed() - before
					if !on {
						want = s.normals(all)
						return
					}
					got = s.normals(all)
					for _, f := range all[s.sides[1].end] {
						arrived[string(addressesOf(f))] = true
					}
				})
				for i := range got {
					if more, less := differences(got[i], want[i]); more != nil || less != nil {
						t.Fatalf("at station %d the shortcut has\n  %s\nand lacks\n  %s\nwith\n%s", i+1, strings.Join(more, "\n  "), strings.Join(less, "\n  "), text)
					}
				}
				for i, r := range list {
					passes, known := s.through(rules, r, frames[i])
					if !known {
						continue
					}
					judged++
					if passes {
						passed++
					}
					if arrived[string(addressesOf(frames[i]))] != passes {
						t.Fatalf("%+v arrives: %v, the rules say %v\n%x\n%s", r, !passes, passes, []byte(frames[i]), text)
					}
				}
			}
			compare(t, "pass no state\n", slices.Concat(lists.Example(1)...))
			compare(t, "block\n", slices.Concat(lists.Example(2)...))
			rapid.Check(t, func(t *rapid.T) {
				compare(t, s.named(rulesets().Draw(t, "rules")), slices.Concat(lists.Draw(t, "packets")...))
			})
			t.Logf("%d packets, %d of them routed by the datapath, %d judged by the reference, which passes %d", seen, routed, judged, passed)
			if routed == 0 || passed == 0 || passed == judged {
				t.Error("no two answers were compared")
			}
		})
	}
}

// addressesOf returns the addresses in a packet's header. The source is unique.
func addressesOf(f netlab.Frame) []byte {
	b := []byte(f)
	if binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IPV6 {
		return b[14+8 : 14+40]
	}
	return b[14+12 : 14+20]
}

// A flooded packet that pf drops is counted once for each port, and in no other counter, also if it comes from a patch
// cable.
func TestPFFloodCounts(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		near, far := s.sides[0], s.lab.NewEnds(1)[0]
		s.lab.AddBridge("br9", strings.TrimPrefix(t.Name(), "TestPFFloodCounts/"), []*netlab.End{far})
		s.lab.Bascule("port", "add", "br9", "up", "--type", "patch", "--peer", "br0/down")
		s.lab.Bascule("vlan", "add", "br0", "down", near.vlan, "--pvid", "--untagged")
		s.lab.Bascule("vlan", "del", "br0", "down", "1")
		drops := func() (n map[string]uint64) {
			n = map[string]uint64{}
			for _, at := range [][2]string{{"br0", near.end.Port}, {"br0", "gw1"}, {"br0", "down"}, {"br9", far.Port}, {"br9", "up"}} {
				for reason, count := range s.lab.Port(at[0], at[1]).Drops {
					n[at[1]+" "+reason] += count
				}
			}
			return n
		}
		s.pfctlOf("br9", "pass no state\nblock out on "+far.Port+" proto udp\n", "-f", "-")
		for _, c := range []struct {
			rules string
			from  *netlab.End
			want  map[string]uint64
		}{
			{"pass no state", near.end, map[string]uint64{"up pf": 1}},
			{"pass no state\nblock in on gw1 proto udp", near.end, map[string]uint64{near.end.Port + " pf": 1, "up pf": 1}},
			{"pass no state\nblock in on gw1 proto udp\nblock out on down proto udp", near.end, map[string]uint64{near.end.Port + " pf": 2}},
			{"pass no state\nblock in on gw1 proto udp", far, map[string]uint64{"down pf": 1}},
			{"pass no state\nblock in on gw1 proto udp\nblock out on e1 proto udp", far, map[string]uint64{"down pf": 2}},
			{"pass no state\nblock in on down proto udp", far, map[string]uint64{"down pf": 1}},
			{"pass no state\npass in on gw1 route-to 10.0.2.2", near.end, map[string]uint64{near.end.Port + " pf-route": 1, "up pf": 1}},
		} {
			s.load(c.rules + "\n")
			for _, six := range []bool{false, true} {
				r := recipe{six: six, dst: netip.AddrFrom4([4]byte{255, 255, 255, 255}), to: 2, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
				if six {
					if strings.Contains(c.rules, "route-to") {
						continue
					}
					r.dst = netip.MustParseAddr("ff02::1")
				}
				b := []byte(r.frame(s, 1))
				copy(b[6:], c.from.MAC[:])
				before := drops()
				s.lab.Deliver(c.from, netlab.Frame(b))
				after := drops()
				for what, n := range after {
					if got := n - before[what]; got != c.want[what] {
						t.Errorf("%q, from %s, IPv6 %v: %d dropped as %s, want %d", c.rules, c.from, six, got, what, c.want[what])
					}
				}
			}
		}
	})
}

// The reserved bit of the IPv4 header (RFC 791, 3.1) is 0 when a packet leaves, also among a connection's other
// packets.
func TestPFReservedBit(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		r := recipe{src: s.sides[0].station4, dst: s.sides[1].station4, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}
		for _, rules := range []string{"pass\n", "pass\nmatch out on gw2 inet nat-to 10.0.2.9 static-port\n"} {
			s.loadAnew(rules)
			var frames []netlab.Frame
			for n := range 80 {
				r.frag = dontFragment
				if n%4 == 3 {
					r.frag |= 0x8000
				}
				frames = append(frames, r.frame(s, 7))
			}
			for i, f := range s.deliver(s.sides[1].end, true, frames...) {
				if f[14+6]&0x80 != 0 {
					t.Errorf("%q: packet %d arrives with the bit", rules, i)
				}
			}
		}
	})
}
