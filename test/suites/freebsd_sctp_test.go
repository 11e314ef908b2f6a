// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// sctpNAT has the addresses of an association translated in both directions.
func sctpNAT(six bool) func(*router) {
	return func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("nat on em1 from { 10.1.0.0/24, 2001:db8:1::/64 } -> (em1)\npass")
		header := func(src, dst netip.Addr) gopacket.SerializableLayer {
			if src.Is6() {
				return ip6(src, dst, layers.IPProtocolSCTP)
			}
			return ip4(src, dst, layers.IPProtocolSCTP)
		}
		here, there, own := inside.v4, outside.v4, outside.gw4
		if six {
			here, there, own = inside.v6, outside.v6, outside.gw6
		}
		addresses := func(p gopacket.Packet, src, dst netip.Addr) {
			r.t.Helper()
			if got := p.NetworkLayer().NetworkFlow(); got.Src().String() != src.String() || got.Dst().String() != dst.String() {
				r.t.Errorf("from %v to %v, should be from %v to %v", got.Src(), got.Dst(), src, dst)
			}
			if l := layer[*layers.SCTP](r, p); l.Checksum == 0 {
				r.t.Errorf("%v", p)
			}
		}
		r.gets(outside)
		r.sends(inside, r.frame(inside, header(here, there), sctpInit(4000, 1234)))
		addresses(r.one(r.gets(outside)), own, there)
		r.gets(inside) // the error that the station has no SCTP
		r.sends(outside, r.frame(outside, header(there, own), sctpInit(1234, 4000)))
		addresses(r.gets(inside)[0], there, here)
	}
}

var _ = freeBSD.has("sctp", cases{
	"nat_v4": sctpNAT(false),
	"nat_v6": sctpNAT(true),
	"related_icmp": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("block proto icmp\npass proto sctp")
		r.blocked(ping(inside, outside.v4))
		r.gets(inside)
		r.gets(outside)
		// The station has no SCTP, and sends an ICMP error.
		r.sends(inside, r.frame(inside, ip4(inside.v4, outside.v4, layers.IPProtocolSCTP), sctpInit(4000, 1234)))
		if got := layer[*layers.ICMPv4](r, r.one(r.gets(inside))); got.TypeCode != layers.CreateICMPv4TypeCode(3, 2) {
			r.t.Errorf("%v", got.TypeCode)
		}
	},
})
