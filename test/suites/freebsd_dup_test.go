// SPDX-License-Identifier: BSD-2-Clause

package suites

import "github.com/gopacket/gopacket/layers"

var _ = freeBSD.has("dup", cases{
	"dup_to": func(r *router) {
		a, b, c := r.stations[0], r.stations[1], r.stations[2]
		r.load("pass out on { em1 } dup-to (em2 " + c.v4.String() + ")")
		r.passes(ping(a, b.v4))
		copies := r.gets(c)
		if len(copies) != 2 {
			r.t.Fatalf("%d copies, should be one of the request and one of the answer", len(copies))
		}
		for n, from := range []*host{a, b} {
			if ip := layer[*layers.IPv4](r, copies[n]); ip.SrcIP.String() != from.v4.String() {
				r.t.Errorf("copy %d is %v", n, copies[n])
			}
		}
	},
})
