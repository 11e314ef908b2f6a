// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// TestConformance has the named cases of routing, each on both hooks, with the host's stack
// alone and with the shortcut.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"ttl", told("10.9.1.1", "fd09::1", 1, 40, 0, fate{four: icmp{11, 0}, six: icmp{3, 0}})},
		{"too_big", told("10.3.1.1", "fd03::1", 64, 1450, dontFragment, fate{four: icmp{3, 4}, six: icmp{2, 0}})},
		{"blackhole", told("10.8.0.1", "fd08::1", 64, 40, 0, fate{})},
		{"unreachable", told("10.7.0.1", "fd07::1", 64, 40, 0, fate{four: icmp{3, 1}, six: icmp{1, 0}})},
		{"prohibit", told("10.6.0.1", "fd06::1", 64, 40, 0, fate{four: icmp{3, 13}, six: icmp{1, 1}})},
		{"martian", martian},
		{"no_neighbour", noNeighbour},
	} {
		t.Run(c.name, c.run)
	}
}

// dontFragment is the flag of IPv4 (RFC 791, 3.1).
const dontFragment = 0x4000

// An icmp is the type and code of an error, 0 and 0 for none.
type icmp struct{ kind, code byte }

// A fate is the error that the sender of an unroutable packet gets, in each family.
type fate struct{ four, six icmp }

// errorOf returns the type and code of an ICMP error from the host.
func errorOf(f netlab.Frame) (e icmp, six bool) {
	const header, four, ipv6 = 14, 20, 40
	b := []byte(f)
	switch {
	case len(b) > header+four+1 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && b[header+9] == unix.IPPROTO_ICMP:
		return icmp{b[header+four], b[header+four+1]}, false
	case len(b) > header+ipv6+1 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IPV6 && b[header+6] == unix.IPPROTO_ICMPV6 && b[header+ipv6] < 128:
		return icmp{b[header+ipv6], b[header+ipv6+1]}, true
	}
	return icmp{}, false
}

// The test sends a packet of each family to a place where the host does not
// route it. No station receives it, and its sender gets the error, once.
func told(four, six string, ttl byte, size int, flags uint16, want fate) func(t *testing.T) {
	return func(t *testing.T) {
		bothWays(t, func(t *testing.T, s *site) {
			for _, c := range []struct {
				to   string
				want icmp
			}{{four, want.four}, {six, want.six}} {
				to := netip.MustParseAddr(c.to)
				r := recipe{six: to.Is6(), dst: to, ttl: ttl, frag: flags, proto: unix.IPPROTO_UDP, size: size, tag: -1}
				s.refuses(r, c.want)
			}
		})
	}
}

// refuses sends a packet that no station may receive.
func (s *site) refuses(r recipe, want icmp) {
	s.t.Helper()
	before := s.routed()
	got := s.lab.Deliver(s.sides[0].end, r.frame(s, 1))
	for _, f := range got[s.sides[1].end] {
		if s.normal([]byte(f)) != "" {
			s.t.Errorf("to %v: the other station gets %x", r.dst, []byte(f))
		}
	}
	var errors []icmp
	for _, f := range got[s.sides[0].end] {
		if e, six := errorOf(f); e != (icmp{}) && six == r.six {
			errors = append(errors, e)
		}
	}
	if want == (icmp{}) && len(errors) > 0 || want != (icmp{}) && (len(errors) != 1 || errors[0] != want) {
		s.t.Errorf("to %v: the sender hears %v, want %v", r.dst, errors, want)
	}
	if n := s.routed() - before; n != 0 {
		s.t.Errorf("to %v: the datapath has routed it", r.dst)
	}
}

// martian: packets from and to addresses that are not valid on a wire are dropped (RFC 1812,
// 5.3.7; RFC 4291, 2.5).
func martian(t *testing.T) {
	bothWays(t, func(t *testing.T, s *site) {
		for _, c := range []struct{ from, to string }{
			{"127.0.0.1", "10.9.1.1"}, {"10.0.1.2", "127.0.0.1"}, {"224.0.0.5", "10.9.1.1"}, {"255.255.255.255", "10.9.1.1"}, {"10.0.1.2", "0.0.0.9"},
			{"::1", "fd09::1"}, {"ff02::1", "fd09::1"}, {"fe80::9", "fd09::1"}, {"fd01::2", "::1"},
		} {
			to := netip.MustParseAddr(c.to)
			r := recipe{six: to.Is6(), src: netip.MustParseAddr(c.from), dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}
			before := s.routed()
			for _, f := range s.lab.Deliver(s.sides[0].end, r.frame(s, 1))[s.sides[1].end] {
				if s.normal([]byte(f)) != "" {
					t.Errorf("from %s to %s: the other station gets %x", c.from, c.to, []byte(f))
				}
			}
			if s.routed() != before {
				t.Errorf("from %s to %s: the datapath has routed it", c.from, c.to)
			}
		}
	})
}

// noNeighbour: for a packet to a station whose MAC is unknown, the host resolves the address,
// and the packet arrives. The datapath routes the packets after it.
func noNeighbour(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		for _, on := range []bool{false, true} {
			s.route(on)
			s.ip("neigh del 10.0.2.2 dev gw2", "neigh del fd02::2 dev gw2")
			before := s.routed()
			for _, to := range []string{"10.0.2.2", "fd02::2"} {
				if !s.ping(0, to) {
					t.Errorf("shortcut %v: no answer from %s", on, to)
				}
				// The datapath leaves one packet a second to the host.
				_, _ = s.sides[0].end.Namespace.Output(context.Background(), ends.AnyCPU, "ping", "-n", "-c", "5", "-i", "0.01", "-W", "5", to)
			}
			if n := s.routed() - before; (n > 4) != on {
				t.Errorf("shortcut %v: the datapath has routed %d packets", on, n)
			}
		}
	})
}
