// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bascule/pf"
	"bascule/pf/reference"
	"bascule/test/netlab"
)

// hopRules draws rules about the host ports of a site with three sides. Some have next hops.
// There are no rules about the stations' ports: pf runs only at the host ports.
func hopRules(s *hopSite) *rapid.Generator[string] {
	skip := fmt.Sprintf("set skip on { %s %s %s }\ntable <none> persist\n", s.sides[0].end.Port, s.sides[1].end.Port, s.third.end.Port)
	return rapid.Custom(func(t *rapid.T) string {
		one := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
		text := skip + one("first", "pass", "pass", "pass no state", "block") + "\n"
		for range rapid.IntRange(1, 6).Draw(t, "rules") {
			family := one("family", "inet", "inet", "inet6")
			port := one("port", "gw1", "gw1", "gw2", "gw3")
			conditions := " on " + port + " " + family + one("proto", "", " proto udp to port 2000", " proto udp to port 2001")
			direction := " " + one("direction", "in", "out")
			switch kind := one("kind", "route-to", "route-to", "reply-to", "dup-to", "pass", "block"); kind {
			case "pass", "block":
				text += kind + direction + conditions + "\n"
			default:
				pool := one("pool", "10.0.1.2", "10.0.2.2", "10.0.3.2", "10.0.3.2", "{ 10.0.2.2, 10.0.3.2 } round-robin", "{ 10.0.3.2, 10.0.2.2 } round-robin sticky-address", "<none> round-robin")
				if family == "inet6" {
					pool = strings.NewReplacer("10.0.1.", "fd01::", "10.0.2.", "fd02::", "10.0.3.", "fd03::").Replace(pool)
				}
				text += "pass" + direction + conditions + " " + kind + " " + pool + "\n"
			}
		}
		return text
	})
}

// hopPacket is a packet of a connection between two of three stations, by number.
type hopPacket struct {
	six      bool
	from, to int
	ports    [2]uint16
}

func (p hopPacket) back() hopPacket {
	return hopPacket{p.six, p.to, p.from, [2]uint16{p.ports[1], p.ports[0]}}
}

func hopPackets() *rapid.Generator[hopPacket] {
	return rapid.Custom(func(t *rapid.T) hopPacket {
		p := hopPacket{six: rapid.IntRange(0, 2).Draw(t, "IPv4") == 0, from: rapid.IntRange(0, 2).Draw(t, "from")}
		p.to = (p.from + rapid.IntRange(1, 2).Draw(t, "to")) % 3
		p.ports = [2]uint16{1000, rapid.SampledFrom([]uint16{2000, 2001}).Draw(t, "port")}
		if rapid.Bool().Draw(t, "answer") {
			return p.back()
		}
		return p
	})
}

// Packets of connections between three stations, in both directions and in any order, leave the
// host as in the reference: to next hops, and with copies. A packet that enters the switch again
// on its way is evaluated once. The first rulesets are always the same.
func TestHopsLikeReference(t *testing.T) {
	onHops(t, func(t *testing.T, s *hopSite) {
		sides := []*side{s.sides[0], s.sides[1], s.third}
		address := func(n int, six bool) netip.Addr {
			if six {
				return netip.MustParseAddr(fmt.Sprintf("fd0%d::2", n+1))
			}
			return netip.MustParseAddr(fmt.Sprintf("10.0.%d.2", n+1))
		}
		named := func(n int) reference.Port {
			return reference.Port{Name: sides[n].gateway, Groups: []string{pf.GroupName(sides[n].gateway)}}
		}
		via := func(a netip.Addr) reference.Port {
			for n := range sides {
				if a == address(n, a.Is6()) {
					return named(n)
				}
			}
			return reference.Port{}
		}
		// Packets that the host's stack handles may arrive after the lab's markers.
		arrive := func(from *netlab.End, f netlab.Frame, want [3]int) (got [3]int) {
			s.lab.Send(from, f)
			for range 5 {
				s.lab.Flush()
				for n, side := range sides {
					got[n] += len(like(f, side.end.Received()))
				}
				if got == want {
					break
				}
			}
			return got
		}
		seen, passed, moved := 0, 0, 0
		compare := func(t rapid.TB, text string, packets []hopPacket) {
			rules, err := pf.Parse("rules", []byte(text), pf.Source{})
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			s.pfctl(text, "-f", "-")
			s.pfctl("", "-F", "states")
			s.pfctl("", "-F", "Sources")
			rt := &reference.Router{Evaluator: &reference.Evaluator{Rules: rules}}
			var story []string
			for _, one := range packets {
				from, ports := sides[one.from], one.ports
				r := recipe{
					six: one.six, src: address(one.from, one.six), dst: address(one.to, one.six), ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1,
					begin: []byte{byte(ports[0] >> 8), byte(ports[0]), byte(ports[1] >> 8), byte(ports[1])},
				}
				f := netlab.Frame(slices.Concat(from.mac[:], from.end.MAC[:], []byte(r.frame(s.site, 1))[12:]))
				p := reference.Packet{
					Family: pf.Inet, Src: r.src, Dst: r.dst, Proto: reference.UDP, SrcPort: ports[0], DstPort: ports[1],
					Port: named(one.from), ReceivedOn: named(one.from),
				}
				if one.six {
					p.Family = pf.Inet6
				}
				var want [3]int
				for _, l := range rt.Forward(p, via) {
					n := slices.IndexFunc(sides, func(s *side) bool { return s.gateway == l.Port.Name })
					want[n]++
					passed++
					if l.Copy || n != one.to {
						moved++
					}
				}
				got := arrive(from.end, f, want)
				seen++
				story = append(story, fmt.Sprintf("%v to %v, ports %v: arrives %v", r.src, r.dst, ports, got))
				if got != want {
					t.Fatalf("the last packet is to arrive %v\n%s\n%s%s", want, strings.Join(story, "\n"), text, s.pfctl("", "-vv", "-s", "states"))
				}
			}
		}
		var all []hopPacket
		for _, six := range []bool{false, true} {
			for n := range 3 {
				p := hopPacket{six, n, (n + 1) % 3, [2]uint16{1000, 2000}}
				all = append(all, p, p, p.back(), p, p.back())
			}
		}
		skip := fmt.Sprintf("set skip on { %s %s %s }\n", sides[0].end.Port, sides[1].end.Port, sides[2].end.Port)
		for _, rules := range []string{
			"pass\npass in on gw1 WORD 10.0.3.2\npass in on gw1 WORD fd03::2", "pass\npass out on gw2 WORD 10.0.3.2\npass out on gw2 WORD fd03::2",
			"pass\nblock in on gw3\npass in on gw1 inet route-to 10.0.3.2\npass out on gw3 inet WORD 10.0.1.2",
		} {
			for _, word := range []string{"route-to", "reply-to", "dup-to"} {
				compare(t, skip+strings.ReplaceAll(rules, "WORD", word)+"\n", all)
			}
		}
		if moved < 40 || passed == seen {
			t.Errorf("of %d packets %d were compared that went where the host's routes do not lead", seen, moved)
		}
		lists := rapid.SliceOfN(hopPackets(), 30, 40)
		rapid.Check(t, func(t *rapid.T) { compare(t, hopRules(s).Draw(t, "rules"), lists.Draw(t, "packets")) })
		t.Logf("%d packets are %d behind the host, %d of these where the host's routes do not lead", seen, passed, moved)
	})
}
