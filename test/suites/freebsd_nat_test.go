// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// bound returns the call with a source address and port.
func (c call) bound(a netip.Addr, port uint16) call {
	c.src = netip.AddrPortFrom(a, port)
	return c
}

// reaches returns the call with the address and port at which a translated call arrives.
func (c call) reaches(a netip.Addr, port uint16) call {
	c.seen = netip.AddrPortFrom(a, port)
	return c
}

// seenFrom makes a call, which must be answered, and whose receiver must see this source. Port 0
// matches any.
func (r *router) seenFrom(c call, a netip.Addr, port uint16) {
	r.t.Helper()
	got := r.passes(c)
	if got.Addr() != a || port != 0 && got.Port() != port {
		r.t.Errorf("%v comes from %v, should be from %v port %d", c, got, a, port)
	}
}

// endpointIndependent compares the translations of one UDP port of a station for two destinations,
// without the keyword endpoint-independent and with it.
func endpointIndependent(r *router, without, with string, port uint16) {
	inside, outside := r.stations[0], r.stations[1]
	second := r.address(outside, outside.ifname, "10.1.1.3/24")
	sources := func(port uint16) (one, two netip.AddrPort) {
		r.t.Helper()
		one = r.passes(udp(inside, outside.v4, 1234, outside).bound(inside.v4, port))
		two = r.passes(udp(inside, second, 1234, outside).bound(inside.v4, port))
		return one, two
	}
	r.load(without)
	differ := false
	for port := range uint16(4) { // two random ports may be equal
		one, two := sources(4240 + port)
		differ = differ || one != two
		if one.Addr() != outside.gw4 || two.Addr() != outside.gw4 {
			r.t.Errorf("not translated: %v and %v", one, two)
		}
	}
	if !differ {
		r.t.Errorf("each of four ports has got one port for both destinations")
	}
	r.pfctl("-F", "states")
	r.load(with)
	one, two := sources(4242)
	if one != two || one.Addr() != outside.gw4 || port != 0 && one.Port() != port {
		r.t.Errorf("the sources are %v and %v, should be one of %v", one, two, outside.gw4)
	}
}

// withoutAddress removes the IPv4 address of one of the router's interfaces, until the case ends.
func (r *router) withoutAddress(s *host) {
	r.t.Helper()
	r.ip(r.self, fmt.Sprintf("addr del %s/24 dev %s", s.gw4, s.port), fmt.Sprintf("addr add %s/24 dev %s", s.gw4, s.port))
	r.ip(r.self, fmt.Sprintf("route add 10.1.%d.0/24 dev %s", s.v4.As4()[2], s.port), fmt.Sprintf("route del 10.1.%d.0/24 dev %s", s.v4.As4()[2], s.port))
}

// dropped makes a call that pf must drop and count.
func (r *router) dropped(c call, counter string) {
	r.t.Helper()
	before := r.counter(counter)
	r.blocked(c)
	if r.counter(counter) == before {
		r.t.Errorf("%s has not counted %v", counter, c)
	}
}

func emptyTable(method string) func(*router) {
	return func(r *router) {
		rule := "nat on em1 inet from 10.1.0.0/24 -> <none> " + method + "\npass"
		r.refuses("table <none>\n"+rule, "has no address", "persist")
		r.load("table <none> persist\n" + rule)
		r.passes(ping(r.self, r.stations[1].v4))
		r.passes(ping(r.stations[0], r.self.v4))
		r.dropped(ping(r.stations[0], r.stations[1].v4), "translate")
		r.passes(ping(r.stations[0], r.self.v4))
	}
}

func noAddress(method string) func(*router) {
	return func(r *router) {
		r.withoutAddress(r.stations[1])
		r.load("nat on em1 inet from 10.1.0.0/24 -> (em1) " + method + "\npass")
		r.dropped(ping(r.stations[0], r.stations[1].v4), "translate")
		r.passes(ping(r.stations[0], r.self.v4))
	}
}

// binat maps a station to the router's address, in both directions.
func binat(r *router, rules string) {
	inside, outside := r.stations[0], r.stations[1]
	r.load(strings.ReplaceAll(rules, "STATION", inside.v4.String()))
	r.seenFrom(tcp(inside, outside.v4, 2009, outside).bound(inside.v4, 4201), outside.gw4, 4201)
	if got := r.states("10.1.1.1:4201 (10.1.0.2:4201) -> 10.1.1.2:2009"); len(got) != 1 || !strings.HasPrefix(got[0], "em1 ") {
		r.t.Errorf("states: %q", r.states())
	}
	r.seenFrom(tcp(outside, outside.gw4, 2010, inside).bound(outside.v4, 4202).reaches(inside.v4, 2010), outside.v4, 4202)
	if got := r.states("10.1.1.2:4202 -> 10.1.0.2:2010 (10.1.1.1:2010)"); len(got) != 1 || !strings.HasPrefix(got[0], "em1 ") {
		r.t.Errorf("states: %q", r.states())
	}
}

const tagged = `
pass in on em0 inet proto tcp ! tagged mark
pass out on em1 inet proto tcp tagged mark
pass in on em1 inet proto tcp tagged mark
pass out on em0 inet proto tcp tagged mark`

var _ = freeBSD.has("nat", cases{
	"exhaust": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("nat pass on em1 inet from 10.1.0.0/24 to any -> (em1) port 30000:30001 sticky-address")
		r.passes(ping(inside, outside.v4))
		one, two := r.passes(tcp(inside, outside.v4, 1007, outside)), r.passes(tcp(inside, outside.v4, 1007, outside))
		if one.Port()+two.Port() != 60001 || one.Addr() != outside.gw4 || two.Addr() != outside.gw4 {
			r.t.Errorf("the sources are %v and %v", one, two)
		}
		r.dropped(tcp(inside, outside.v4, 1007, outside), "translate")
		r.shows([]string{"-s", "all"}, "10.1.1.1:30000", "10.1.1.1:30001")
	},
	"nested_anchor": func(r *router) {
		r.load(`nat-anchor "outer"`)
		r.anchor("outer", `nat-anchor "inner"`)
		r.anchor("outer/inner", "nat on em1 from any to any -> (em1)")
		r.prints("nat-anchor \"outer\" all {\n  nat-anchor \"inner\" all {\n    pass out on em1 all flags any\n"+
			"    match out on em1 all nat-to (em1) round-robin\n  }\n}\n", "-s", "rules", "-a", "*")
		r.seenFrom(udp(r.stations[0], r.stations[1].v4, 1234, r.stations[1]), r.stations[1].gw4, 0)
	},
	"endpoint_independent_compat": func(r *router) {
		endpointIndependent(r, "nat on em1 inet from ! (em1) to any -> (em1)",
			"nat on em1 inet from ! (em1) to any -> (em1) endpoint-independent", 0)
	},
	"endpoint_independent_exhaust": func(r *router) {
		endpointIndependent(r, "nat on em1 inet from ! (em1) to any -> (em1)",
			"nat on em1 inet from ! (em1) to any -> (em1) port 3000:3001 sticky-address endpoint-independent", 0)
		inside, outside := r.stations[0], r.stations[1]
		r.passes(udp(inside, outside.v4, 1234, outside).bound(inside.v4, 4300))
		r.dropped(udp(inside, outside.v4, 1234, outside).bound(inside.v4, 4301), "translate")
		r.passes(udp(inside, outside.v4, 1234, outside).bound(inside.v4, 4300))
	},
	"endpoint_independent_static_port": func(r *router) {
		endpointIndependent(r, "nat on em1 inet from ! (em1) to any -> (em1)",
			"nat on em1 inet from ! (em1) to any -> (em1) static-port sticky-address endpoint-independent", 4242)
	},
	"endpoint_independent_pass": func(r *router) {
		endpointIndependent(r, "pass out on em1 inet from ! (em1) to any nat-to (em1)",
			"pass out on em1 inet from ! (em1) to any nat-to (em1) endpoint-independent", 0)
	},
	"nat6_nolinklocal": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("nat pass on em1 inet6 from 2001:db8:1::/64 to any -> (em1)\npass")
		r.passes(ping(inside, inside.gw6))
		for range 11 { // so many that each of two addresses would be used
			r.passes(ping(inside, outside.v6))
			r.seenFrom(udp(inside, outside.v6, 1234, outside), outside.gw6, 0)
		}
	},
	"empty_table_source_hash": emptyTable("source-hash"),
	"empty_table_random":      emptyTable("random"),
	"no_addrs_source_hash":    noAddress("source-hash"),
	"no_addrs_random":         noAddress("random"),
	"nat_pass_in": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.route(r.self, "203.0.113.0/24", inside.v4)
		r.load("block\npass in on em0 inet proto tcp nat-to 203.0.113.9\npass out on em1 inet proto tcp")
		r.seenFrom(tcp(inside, outside.v4, 2009, outside), netip.MustParseAddr("203.0.113.9"), 0)
	},
	"nat_pass_out": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("block\npass in on em0 inet proto tcp\npass out on em1 inet proto tcp nat-to em1")
		r.seenFrom(tcp(inside, outside.v4, 2009, outside), outside.gw4, 0)
	},
	"nat_match": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("block\npass in on em0 inet proto tcp\nmatch out on em1 inet proto tcp nat-to em1\npass out on em1 inet proto tcp from em1")
		r.seenFrom(tcp(inside, outside.v4, 2009, outside), outside.gw4, 0)
	},
	"binat_compat": func(r *router) {
		binat(r, "set state-policy if-bound\nbinat on em1 inet proto tcp from STATION to any tag mark -> em1\nblock"+tagged)
	},
	"binat_match": func(r *router) {
		binat(r, "set state-policy if-bound\nblock\nmatch on em1 inet proto tcp from STATION to any tag mark binat-to em1"+tagged)
	},
	"empty_pool": func(r *router) {
		r.load("block\npass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv }\npass in on em0\n" +
			"pass out on em1 inet6 from any to 2001:db8:2::2 nat-to <nobody>")
		r.dropped(ping(r.stations[0], r.stations[1].v6), "translate")
	},
})

var _ = freeBSD.has("nat44.py", cases{
	"TestNAT44.test_nat_igmp": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("set reassemble yes\nnat on em1 inet from 10.1.0.0/24 -> (em1)\npass")
		r.passes(ping(inside, outside.v4))
		for range 2 { // the second one has a state
			r.getsAll(outside)
			r.sends(inside, r.frame(inside, ip4(inside.v4, outside.v4, layers.IPProtocolIGMP), gopacket.Payload{0x11, 1, 0xee, 0xfe, 0, 0, 0, 0}))
			var got []string
			for _, p := range r.getsAll(outside) {
				if l, ok := p.NetworkLayer().(*layers.IPv4); ok && l.Protocol == layers.IPProtocolIGMP {
					got = append(got, l.SrcIP.String())
				}
			}
			if len(got) != 1 || got[0] != outside.gw4.String() {
				r.t.Errorf("from %q", got)
			}
		}
		r.passes(ping(inside, outside.v4))
	},
})
