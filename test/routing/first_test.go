// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

// A firstCase has rules for the first packets of connections, and how XDP treats these packets.
type firstCase struct {
	name, rules string
	byXDP       bool // XDP sends them
	lost        bool // some do not arrive
	random      bool // their ports are random
	dropped     int  // least number of packets that XDP drops
}

var firstCases = []firstCase{
	{name: "pass", rules: "pass", byXDP: true},
	{name: "without a state", rules: "pass no state", byXDP: true},
	{name: "with a state on the way out alone", rules: "pass no state\npass on gw2", byXDP: true},
	{name: "translated", rules: "match out on gw2 inet from 10.0.1.2 nat-to 10.0.2.1 static-port\n" +
		"match out on gw2 inet6 from fd01::2 nat-to fd02::1 static-port\npass", byXDP: true},
	{name: "translated by the rule that passes", rules: "pass\npass out on gw2 inet proto { tcp udp } nat-to 10.0.2.1 static-port", byXDP: true},
	{name: "redirected", rules: "match in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080\n" +
		"match in on gw1 inet6 proto { tcp, udp } to fd09::1 port 80 rdr-to fd02::2 port 8080\npass", byXDP: true},
	{name: "both", rules: "match in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080\n" +
		"match out on gw2 inet proto { tcp udp } nat-to 10.0.2.1 static-port\npass", byXDP: true},
	{name: "translated as they come in", rules: "match in on gw1 inet from 10.0.1.2 nat-to 10.0.1.9 static-port\n" +
		"match in on gw1 inet6 from fd01::2 nat-to fd01::9 static-port\npass", byXDP: true},
	{name: "both as they come in", rules: "pass\npass in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080 nat-to 10.0.1.9", byXDP: true, random: true},
	{name: "any port as they come in", rules: "match in on gw1 inet from 10.0.1.2 nat-to 10.0.1.9\npass", byXDP: true, random: true},
	{name: "both ways as they come in", rules: "match on gw1 inet from 10.0.1.2 binat-to 10.0.1.9\npass", byXDP: true},
	{name: "any port", rules: "match out on gw2 inet nat-to 10.0.2.1\npass", byXDP: true, random: true},
	{name: "tags", rules: "pass\nmatch in on gw1 tag x\nblock out on gw2 ! tagged x\nmatch in on e1 tag y\nblock in on gw1 ! tagged x", byXDP: true},
	{name: "tags without a state", rules: "pass no state\nmatch in on gw1 tag x\nblock out on gw2 tagged x", byXDP: true},
	{name: "blocked by a tag", rules: "pass\nmatch in on gw1 proto { tcp udp } tag x\nblock out on gw2 tagged x", lost: true},
	{name: "received", rules: "pass\nblock out on gw2 ! received-on gw1\nblock in received-on gw1\nblock out on e2 received-on gw2", byXDP: true},
	{name: "translated by a tag", rules: "match in on gw1 inet proto { tcp, udp } to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080 tag x\n" +
		"match out on gw2 inet proto { tcp udp } tagged x nat-to 10.0.2.1 static-port\npass", byXDP: true},
	{name: "translated by where it came from", rules: "match out on gw2 inet proto { tcp udp } received-on gw1 nat-to 10.0.2.1 static-port\npass", byXDP: true},
	{name: "tables and networks", rules: "table <t> { 10.0.1.0/24, fd01::/64, 10.1.0.0/16, fd11::/64 }\nblock\npass from <t>\npass in on gw2", byXDP: true},
	{name: "skipped ports", rules: "set skip on { e1 e2 }\nblock\npass on { gw1 gw2 }", byXDP: true},
	{name: "a log that does not count", rules: "block log\npass", byXDP: true},
	{name: "logged", rules: "pass\npass log on gw1"},
	{name: "logged on the way out", rules: "pass\nmatch out log on gw2"},
	{name: "scrubbed", rules: "pass\nmatch in on gw1 scrub (max-mss 1000, min-ttl 100)"},
	{name: "set tos", rules: "pass\nmatch out on gw2 set tos 0x20"},
	{name: "modulated", rules: "pass\npass in on gw1 proto tcp modulate state\npass in on gw1 proto { udp icmp icmp6 } set prio 3", random: true},
	{name: "by chance", rules: "block\npass probability 99.9999999%"},
	{name: "blocked where it comes in", rules: "pass\nblock in on e1 proto { tcp udp } to port 80", lost: true, dropped: 20},
	{name: "blocked and told", rules: "pass\nblock return in on e1 proto { tcp udp } to port 80", lost: true},
	{name: "blocked and logged", rules: "pass\nblock in log on e1 proto { tcp udp } to port 80", lost: true},
	{name: "blocked behind a match", rules: "match in on e1 inet proto udp to 10.9.1.1 rdr-to 10.0.2.2\npass\nblock in on e1 proto { tcp udp } to port 80", lost: true, dropped: 10},
	{name: "blocked on its way in", rules: "pass\nblock in on gw1", lost: true},
	{name: "blocked on its way out", rules: "pass\nblock out on gw2", lost: true},
	{name: "blocked on the last port", rules: "match in on gw1 inet proto udp to 10.9.1.1 rdr-to 10.0.2.2\npass\nblock out on e2", lost: true},
	{name: "in turns", rules: "pass\nmatch out on gw2 inet proto { tcp udp } nat-to { 10.0.2.1 10.0.2.7 } round-robin static-port\n" +
		"match out on gw2 inet6 proto { tcp udp } nat-to { fd02::1 fd02::7 } round-robin static-port\npass log on gw1 proto { icmp icmp6 }"},
	{name: "few states of a rule", rules: "pass\npass in on gw1 keep state (max 7)", lost: true},
	{name: "few states", rules: "set limit states 17\npass", lost: true},
	{name: "few states of a source", rules: "pass\npass in on gw1 keep state (max-src-states 3)", lost: true},
	{name: "a pool run dry", rules: "match out on gw2 inet proto { tcp udp } nat-to 10.0.2.1 port 5000:5001\npass", lost: true, random: true},
	{name: "source-track", rules: "pass\npass in on gw1 keep state (source-track rule)", byXDP: true},
	{name: "sloppy, bound", rules: "pass keep state (sloppy, if-bound)", byXDP: true},
}

// firstCalls are unknown connections. Their answers have the first station's addresses, as if they were
// not translated.
func firstCalls() (calls []call) {
	defer func() {
		for i := range calls {
			calls[i].client, calls[i].server = calls[i].from, calls[i].to
		}
	}()
	at := netip.MustParseAddrPort
	for _, p := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		for i, c := range []call{
			{from: at("10.0.1.2:1000"), to: at("10.0.2.2:7")}, {from: at("10.1.7.7:1000"), to: at("10.0.2.2:80")},
			{from: at("[fd01::2]:1000"), to: at("[fd02::2]:7")}, {from: at("[fd11::7]:1000"), to: at("[fd02::2]:80")},
			{from: at("10.0.1.2:1001"), to: at("10.9.1.1:80")}, {from: at("[fd01::2]:1001"), to: at("[fd09::1]:80")},
		} {
			for n, odd := range []call{{length: 20}, {length: 3, fill: 7}, {length: 1400, wrongSum: true}} {
				odd.proto, odd.to = p, c.to
				odd.from = netip.AddrPortFrom(c.from.Addr(), c.from.Port()+uint16(10*n+100*i))
				calls = append(calls, odd)
			}
		}
	}
	return append(calls, call{proto: layers.IPProtocolICMPv4, from: at("10.1.9.9:5"), to: at("10.0.2.2:0"), length: 33},
		call{proto: layers.IPProtocolICMPv6, from: at("[fd11::9]:5"), to: at("[fd02::2]:0"), length: 33})
}

// untimed matches the parts of pfctl's output that differ from time to time.
var untimed = regexp.MustCompile(`(?m)\s*[0-9.]+/s|age [0-9:]+|expires in [0-9:]+|Status:.*|id: [0-9a-f]+|creatorid: [0-9a-f]+`)

// The output of pfctl without these parts.
func (s *site) told(args ...string) []string {
	lines := strings.Split(untimed.ReplaceAllString(s.pfctl("", args...), ""), "\n")
	if slices.Contains(args, "states") { // they have no order
		lines = strings.Split(strings.ReplaceAll(strings.Join(lines, "\n"), "\n ", " "), "\n")
		slices.Sort(lines)
	}
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ") // there are no rates in the first second
	}
	return lines
}

// XDP routes first packets of connections past pf by itself. The packets that arrive, the states, and the
// counters of rules, pf and ports are the same as with tcx and with the host's stack. For rule options
// that XDP does not support, the packets go to tcx.
func TestFirstByXDP(t *testing.T) {
	t.Parallel()
	s := newSite(t, "xdp")
	calls := firstCalls()
	type outcome struct {
		arrived, after              [2][]string // first packets; later ones
		states, rules, info, drops  []string
		byXDP, fresh, number, taken int
		dropped, numberAfter        int
	}
	outcomes := map[string][2]outcome{}
	cases := netlab.Some(firstCases)
	s.bothWays(func(on bool) {
		for _, c := range cases {
			s.loadAnew(lasting + "set loginterface gw1\n" + c.rules + "\n")
			s.pfctl("", "-F", "Sources")
			s.pfctl("", "-F", "info")
			var frames []netlab.Frame
			for _, call := range calls {
				frames = append(frames, call.talk(s, false, true, false))
			}
			// After the first packets, a CPU remembers the bridge's decision on such frames.
			var o outcome
			o.byXDP, o.fresh, o.taken, o.dropped = -int(s.redirected()), -s.counted("fresh"), -s.taken(), -int(s.xdp("drops"))
			before := s.dropped()
			o.arrived = s.normals(s.lab.Deliver(s.sides[0].end, frames...))
			o.byXDP, o.fresh, o.taken = o.byXDP+int(s.redirected()), o.fresh+s.counted("fresh"), o.taken+s.taken()
			o.dropped += int(s.xdp("drops"))
			o.drops = subtract(s.dropped(), before)
			o.number = len(o.arrived[1])
			// The same packets again, answers to their source addresses, and the packets once
			// more.
			var back []netlab.Frame
			for _, call := range calls {
				if a := call.to.Addr(); slices.Contains([]netip.Addr{s.sides[1].station4, s.sides[1].station6}, a) {
					back = append(back, call.talk(s, true, true, true))
				}
			}
			for i, list := range [][]netlab.Frame{frames, back, frames} {
				for side, got := range s.normals(s.lab.Deliver(s.sides[i%2].end, list...)) {
					o.after[side] = append(o.after[side], got...)
				}
			}
			o.numberAfter = len(o.after[0]) + len(o.after[1])
			o.states, o.rules, o.info = s.told("-v", "-s", "states"), s.told("-v", "-s", "rules"), s.told("-s", "info")
			both := outcomes[c.name]
			if on {
				both[0] = o
			} else {
				both[1] = o
			}
			outcomes[c.name] = both
		}
	})
	for _, c := range cases {
		with, without := outcomes[c.name][0], outcomes[c.name][1]
		if c.random {
			if len(with.states) != len(without.states) {
				t.Errorf("%s: %d lines of states by XDP, and %d by the stack", c.name, len(with.states), len(without.states))
			}
			with.arrived, without.arrived, with.after, without.after = [2][]string{}, [2][]string{}, [2][]string{}, [2][]string{}
			with.states, without.states = with.states[:0], without.states[:0]
		}
		for _, o := range []struct {
			what          string
			with, without []string
		}{
			{"arrive", slices.Concat(with.arrived[:]...), slices.Concat(without.arrived[:]...)},
			{"arrive then", slices.Concat(with.after[:]...), slices.Concat(without.after[:]...)},
			{"states", with.states, without.states},
			{"rules", with.rules, without.rules}, {"counters", with.info, without.info}, {"drops", with.drops, without.drops},
		} {
			if !slices.Equal(o.with, o.without) {
				slices.Sort(o.with)
				slices.Sort(o.without)
				more, less := differences(o.with, o.without)
				t.Errorf("%s: %s: XDP has\n  %s\nand lacks\n  %s", c.name, o.what, few(more), few(less))
			}
		}
		n := len(calls)
		if with.number != without.number || c.lost == (without.number == n) {
			t.Errorf("%s: %d packets of %d arrive by XDP, and %d by the stack", c.name, with.number, n, without.number)
		}
		if with.numberAfter != without.numberAfter {
			t.Errorf("%s: then %d packets arrive by XDP, and %d by the stack", c.name, with.numberAfter, without.numberAfter)
		}
		const missed = 8 // the host gets one a second for each next hop
		if c.byXDP && with.byXDP+with.fresh < n-missed || !c.byXDP && !c.lost && with.byXDP != 0 {
			t.Errorf("%s: XDP has sent %d of %d packets, and left %d to look after their next hop", c.name, with.byXDP, n, with.fresh)
		}
		if with.dropped < c.dropped || c.dropped == 0 && !c.lost && with.dropped > 0 {
			t.Errorf("%s: XDP drops %d packets, want %d", c.name, with.dropped, c.dropped)
		}
		if without.byXDP != 0 {
			t.Errorf("%s: XDP has sent %d packets without the shortcut", c.name, without.byXDP)
		}
	}
}

// dropped returns the number of packets that the ports have dropped, by reason.
func (s *site) dropped() map[string]uint64 {
	all := map[string]uint64{}
	for _, side := range s.sides {
		for _, port := range []string{side.end.Port, side.gateway} {
			for reason, n := range s.lab.Port(side.bridge, port).Drops {
				all[port+" "+reason] += n
			}
		}
	}
	return all
}

// subtract returns the increases of counters.
func subtract(now, before map[string]uint64) (list []string) {
	for what, n := range now {
		if n != before[what] {
			list = append(list, fmt.Sprint(what, " ", n-before[what]))
		}
	}
	slices.Sort(list)
	return list
}

// If two CPUs create the two states of one connection at the same moment, there is one of each. A
// connection is not affected by a reload of the rules at that moment: every packet arrives, with the
// former and the new rules.
func TestFirstAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, "xdp")
	rules := "set limit states 100000\npass\nmatch out on gw2 inet from 10.7.0.0/16 nat-to 10.0.2.1\n"
	s.load(rules)
	const each, rounds = 200, 6
	talk := func(side, n int) netlab.Frame {
		f := flow{from: side, to: 1 - side, ports: [2]uint16{10_000, 20_000}}
		b := []byte(s.frame(f))
		port := uint16(n)
		// The same connection from both ends.
		if side == 0 {
			binary.BigEndian.PutUint16(b[34:], 10_000+port)
		} else {
			binary.BigEndian.PutUint16(b[36:], 10_000+port)
			binary.BigEndian.PutUint16(b[34:], 20_000)
		}
		if side == 0 {
			binary.BigEndian.PutUint16(b[36:], 20_000)
		}
		return netlab.Frame(b)
	}
	for round := range rounds {
		var there, back []netlab.Frame
		for n := range each {
			there = append(there, talk(0, round*each+n))
			back = append(back, talk(1, round*each+n))
		}
		reload := s.lab.Command("pfctl", "-b", "br0", "-f", "-")
		reload.Stdin = strings.NewReader(s.named(rules + strings.Repeat("match in on gw1\n", round%2)))
		if round > 1 {
			s.must(reload.Start())
		}
		done := make(chan bool)
		go func() {
			s.sides[1].end.Send(back...)
			close(done)
		}()
		s.sides[0].end.Send(there...)
		<-done
		if round > 1 {
			if round%2 == 1 {
				s.must(reload.Process.Kill())
			}
			_ = reload.Wait() // it was killed, or has loaded the rules
		}
		for i, side := range s.sides {
			got := map[string]bool{}
			s.lab.Wait(fmt.Sprintf("%d packets of round %d to arrive at station %d", each, round, i+1), func() bool {
				for _, f := range side.end.Received() {
					if len(f) > 38 && f[23] == 17 {
						got[string(f[34:38])] = true
					}
				}
				return len(got) >= each
			})
		}
	}
	if n := strings.Count(s.pfctl("", "-s", "states"), "\n"); n != 2*each*rounds {
		t.Errorf("%d connections have %d states, want %d", each*rounds, n, 2*each*rounds)
	}
}
