// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// clients gives a station a network of further sources, 2001:db8:44::/64. Its stack does not track
// their connections.
func (r *router) clients() (client func(n int) netip.Addr) {
	r.t.Helper()
	r.route(r.self, "2001:db8:44::/64", r.stations[0].v6)
	return func(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:44::%x", n)) }
}

// opens has a source connect to a closed port of the station's stack, and completes the handshake
// with crafted packets. It reports whether the first packet passed.
func (r *router) opens(src netip.Addr, port layers.TCPPort) bool {
	r.t.Helper()
	from, to := r.stations[0], r.stations[1]
	peer := netip.MustParseAddr("2001:db8:45::9")
	r.gets(to)
	send := func(at *host, src, dst netip.Addr, t layers.TCP) []gopacket.Packet {
		r.t.Helper()
		t.Window = 1000
		r.sends(at, r.frame(at, ip6(src, dst, layers.IPProtocolTCP), &t))
		other := to
		if at == to {
			other = from
		}
		return r.gets(other)
	}
	if len(send(from, src, peer, layers.TCP{SrcPort: port, DstPort: 9, SYN: true, Seq: 100})) == 0 {
		return false
	}
	r.gets(from)
	if got := send(to, peer, src, layers.TCP{SrcPort: 9, DstPort: port, SYN: true, ACK: true, Seq: 500, Ack: 101}); len(got) != 1 {
		r.t.Errorf("the answer to port %d does not come back: %v", port, got)
	}
	send(from, src, peer, layers.TCP{SrcPort: port, DstPort: 9, ACK: true, Seq: 101, Ack: 501})
	return true
}

// handshakes prepares connections with crafted packets, to an address behind the station at em1.
func (r *router) handshakes() (client func(n int) netip.Addr) {
	r.t.Helper()
	r.route(r.self, "2001:db8:45::/64", r.stations[1].v6)
	return r.clients()
}

// nodes returns the lines of `pfctl -s Sources` that contain these words.
func (r *router) nodes(words ...string) (list []string) {
	r.t.Helper()
next:
	for line := range strings.Lines(r.pfctl("-s", "Sources")) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		list = append(list, strings.TrimSpace(line))
	}
	return list
}

const neighbours = "block\npass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv }\n"

// sourceNodes uses rules that limit sources, keep a source's address of a pool, or both.
func sourceNodes(rules string) func(*router) {
	return func(r *router) {
		client := r.clients()
		r.load(rules)
		want := map[string]int{}
		for n, kinds := range [][]string{{}, {"2001:db8:2::2"}, {"::"}, {"2001:db8:2::2", "::"}} {
			for _, translated := range []bool{false, true} {
				src := client(n + 1)
				if translated {
					src = client(0x10 + n + 1)
					kinds = append(kinds, "2001:db8:46::1")
				}
				r.sends(r.stations[0], r.frame(r.stations[0], ip6(src, netip.MustParseAddr("2001:db8:45::1"), layers.IPProtocolTCP),
					&layers.TCP{SrcPort: layers.TCPPort(4211 + n), DstPort: 9, SYN: true, Window: 1000}))
				got := r.nodes(src.String() + " -> ")
				if len(got) != len(kinds) {
					r.t.Errorf("%v has the nodes %q, should have those of %q", src, got, kinds)
				}
				for _, kind := range kinds {
					if list := r.nodes(src.String()+" -> "+kind+" ", "states 1, connections 0"); len(list) != 1 {
						r.t.Errorf("%v has no node of %s: %q", src, kind, got)
					}
				}
				want[src.String()] = len(kinds)
			}
		}
		if p := r.gets(r.stations[1]); len(p) < 8 {
			r.t.Errorf("%d packets have come", len(p))
		}
	}
}

var _ = freeBSD.has("src_track", cases{
	"source_track": func(r *router) {
		a := r.stations[0]
		r.load("pass in keep state (source-track)\npass out keep state (source-track)")
		r.passes(ping(a, r.self.v4))
		if got := r.nodes("10.1.0.2 -> 0.0.0.0 ( states 1,"); len(got) != 1 {
			r.t.Errorf("%q", r.nodes())
		}
		r.pfctl("-F", "Sources")
		if got := r.nodes("10.1.0.2"); len(got) != 0 {
			r.t.Errorf("%q", got)
		}
		if got := r.states("icmp", "10.1.0.2", "10.1.0.1:8"); len(got) != 1 {
			r.t.Errorf("the state has gone, too: %q", r.states())
		}
	},
	"kill": func(r *router) {
		a := r.stations[0]
		second := r.address(a, a.ifname, "10.1.0.3/24")
		r.load("pass in keep state (source-track)\npass out keep state (source-track)")
		r.passes(ping(a, r.self.v4).bound(a.v4, 0))
		r.passes(ping(a, r.self.v4).bound(second, 0))
		for _, of := range []string{"10.1.0.2", "10.1.0.3"} {
			if got := r.nodes(of + " -> 0.0.0.0 ( states 1,"); len(got) != 1 {
				r.t.Errorf("%s: %q", of, r.nodes())
			}
		}
		r.pfctl("-K", "10.1.0.2")
		if got := r.nodes(" -> 0.0.0.0 "); len(got) != 1 || !strings.HasPrefix(got[0], "10.1.0.3 -> 0.0.0.0 ( states 1,") {
			r.t.Errorf("%q", got)
		}
	},
	"max_src_conn_rule": func(r *router) {
		client := r.handshakes()
		r.load("table <bad> persist\n" + neighbours +
			"pass in on em0 inet6 proto tcp keep state (max-src-conn 3, source-track rule, overload <bad>)\npass out on em1 inet6 proto tcp")
		for port := range layers.TCPPort(4) {
			if !r.opens(client(1), 4201+port) {
				r.t.Errorf("the connection of port %d does not begin", 4201+port)
			}
		}
		r.opens(client(2), 4205)
		for _, is := range []struct {
			src  string
			want int // in and out
		}{{"::1[4201]", 2}, {"::1[4202]", 2}, {"::1[4203]", 2}, {"::1[4204]", 0}, {"::2[4205]", 2}} {
			if got := r.states("2001:db8:44"+is.src, "ESTABLISHED:ESTABLISHED"); len(got) != is.want {
				r.t.Errorf("%s has the states %q", is.src, got)
			}
		}
		r.prints("   2001:db8:44::1\n", "-t", "bad", "-T", "show")
	},
	"max_src_states_rule": func(r *router) {
		client := r.handshakes()
		r.load(neighbours +
			"pass in on em0 inet6 proto tcp from port 4210:4219 keep state (max-src-states 3, source-track rule) label a\n" +
			"pass in on em0 inet6 proto tcp from port 4220:4229 keep state (max-src-states 3, source-track rule) label b\npass out on em1")
		for _, c := range []struct {
			client int
			first  layers.TCPPort
		}{{1, 4211}, {1, 4221}, {2, 4224}} {
			for n := range layers.TCPPort(4) {
				if got := r.opens(client(c.client), c.first+n); got != (n < 3) {
					r.t.Errorf("client %d, port %d: %t", c.client, c.first+n, got)
				}
			}
		}
		if got := r.nodes("2001:db8:44::1 -> :: ( states 3, connections 3,"); len(got) != 2 {
			r.t.Errorf("%q", r.nodes())
		}
		if got := r.nodes("2001:db8:44::2 -> :: ( states 3, connections 3,"); len(got) != 1 {
			r.t.Errorf("%q", r.nodes())
		}
		if got := r.counter("max-src-states"); got != 3 {
			r.t.Errorf("max-src-states has counted %d", got)
		}
	},
	"max_src_states_global": func(r *router) {
		client := r.handshakes()
		r.load(neighbours +
			"pass in on em0 inet6 proto tcp from port 4210:4219 keep state (max-src-states 3, source-track global) label a\n" +
			"pass in on em0 inet6 proto tcp from port 4220:4229 keep state (max-src-states 3, source-track global) label b\npass out on em1")
		for n := range layers.TCPPort(4) {
			if got := r.opens(client(1), 4211+n); got != (n < 3) {
				r.t.Errorf("port %d: %t", 4211+n, got)
			}
		}
		if r.opens(client(1), 4221) {
			r.t.Error("another rule has let a fourth state be")
		}
		if got := r.nodes(); len(got) != 1 || !strings.HasPrefix(got[0], "2001:db8:44::1 -> :: ( states 3, connections 3,") {
			r.t.Errorf("%q", got)
		}
	},
	"sn_types_compat": sourceNodes(`table <hops> { 2001:db8:2::2 }
table <servers> { 2001:db8:46::1 }
rdr on em0 inet6 proto tcp from 2001:db8:44::10/124 to 2001:db8:45::1 -> <servers> port 4242 sticky-address
` + neighbours + sourceRules),
	"sn_types_pass": sourceNodes(`table <hops> { 2001:db8:2::2 }
table <servers> { 2001:db8:46::1 }
` + neighbours + `match in on em0 inet6 proto tcp from 2001:db8:44::10/124 to 2001:db8:45::1 rdr-to <servers> port 4242 sticky-address
` + sourceRules),
	"check_valid": func(r *router) {
		client := r.clients()
		r.load("set state-policy if-bound\ntable <hops> { 2001:db8:2::2 }\npass in on em0 route-to <hops> sticky-address proto tcp")
		begin := func(port layers.TCPPort, hop string, states int) {
			r.t.Helper()
			r.gets(r.stations[1])
			r.sends(r.stations[0], r.frame(r.stations[0], ip6(client(1), netip.MustParseAddr("2001:db8:45::1"), layers.IPProtocolTCP),
				&layers.TCP{SrcPort: port, DstPort: 9, SYN: true, Window: 1000}))
			if got := r.nodes(fmt.Sprintf("2001:db8:44::1 -> %s ( states %d,", hop, states)); len(got) != 1 {
				r.t.Errorf("the nodes are %q", r.nodes())
			}
		}
		r.address(r.stations[1], r.stations[1].ifname, "2001:db8:2::3/64")
		begin(4201, "2001:db8:2::2", 1)
		r.pfctl("-t", "hops", "-T", "replace", "2001:db8:2::3")
		begin(4202, "2001:db8:2::3", 2) // the node still counts the former state
		begin(4203, "2001:db8:2::3", 3)
	},
})

const sourceRules = `pass in quick on em0 inet6 proto tcp from port 4211 route-to <hops>
pass in quick on em0 inet6 proto tcp from port 4212 route-to <hops> sticky-address
pass in quick on em0 inet6 proto tcp from port 4213 keep state (max-src-states 3, source-track rule) route-to <hops>
pass in quick on em0 inet6 proto tcp from port 4214 keep state (max-src-states 3, source-track rule) route-to <hops> sticky-address
pass out quick on em1
`
