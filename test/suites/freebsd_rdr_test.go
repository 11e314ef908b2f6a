// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"syscall"

	"github.com/gopacket/gopacket/layers"
)

var _ = freeBSD.has("rdr", cases{
	"tcp_v6": func(r *router) {
		inside, outside := r.stations[0], r.stations[1]
		r.load("rdr on em0 proto tcp from any to any port 1080 -> 2001:db8:2::2 port 8000")
		r.passes(ping(inside, outside.v6))
		r.passes(tcp(inside, outside.v6, 8000, outside))
		r.passes(tcp(inside, inside.gw6, 1080, outside).reaches(outside.v6, 8000))
		r.gets(outside)
		r.sends(inside, r.frame(inside, ip6(inside.v6, inside.gw6, layers.IPProtocolTCP), &layers.TCP{SrcPort: 4000, DstPort: 1080, SYN: true, Window: 1000}))
		p := r.gets(outside)[0]
		if got := layer[*layers.TCP](r, p); got.DstPort != 8000 {
			r.t.Errorf("%v", p)
		}
		r.checksums(p)
	},
})

var _ = freeBSD.has("return.py", cases{
	"TestReturn.test_tcp": func(r *router) {
		r.load("nat on em0 inet from 10.1.0.0/24 to any -> (em0)\nblock return\npass inet proto icmp icmp-type echoreq")
		r.passes(ping(r.stations[0], r.stations[1].v4))
		r.refused(tcp(r.stations[0], r.stations[1].v4, 1234, r.stations[1]), syscall.ECONNREFUSED)
	},
})
