// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
)

var _ = freeBSD.has("pass_block", cases{
	"enable_disable": func(r *router) {
		fails := func(arg string) {
			r.t.Helper()
			if result := r.try("", arg); result.Exit != 1 {
				r.t.Error(result)
			}
		}
		r.pfctl("-d")
		fails("-d")
		r.pfctl("-e")
		fails("-e")
	},
	"v4": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.passes(c)
		r.load("block in")
		r.blocked(c)
		r.load("block in\npass in proto icmp")
		r.passes(c)
	},
	"v6": func(r *router) {
		c := ping(r.stations[0], r.self.v6)
		r.passes(c)
		r.load("block in")
		r.blocked(c)
		r.load("block in\npass in proto icmp6")
		r.passes(c)
		r.pfctl("-F", "states")
		r.load("block in\npass in proto icmp")
		r.blocked(c)
	},
	"noalias": func(r *router) {
		global, local := ping(r.stations[0], r.self.v6), ping(r.stations[0], r.linkLocal("em0").WithZone(r.stations[0].ifname))
		r.passes(global)
		r.passes(local)
		r.pfctl("-F", "states")
		r.load("block out inet6 from (em0:0) to any")
		r.blocked(global)
		r.passes(local)
		r.pfctl("-F", "states")
		r.load("block out inet6 from (em0) to any")
		r.blocked(local)
	},
	"nested_inline": func(r *router) {
		r.load("block in\nanchor outer {\npass in quick proto tcp to port 37\nanchor inner {\npass in quick proto icmp\n}\n}")
		r.passes(ping(r.stations[0], r.self.v4))
		r.blocked(udp(r.stations[0], r.self.v4, 37, r.self))
	},
	"urpf": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		echo := func(from *host, src, dst netip.Addr) {
			r.t.Helper()
			r.sends(from, r.echo(from, src, dst, 7, "echo"))
		}
		answers := func(at *host, want int) {
			r.t.Helper()
			if got := r.gets(at); len(got) != want {
				r.t.Errorf("%d answers have come to the station behind %s, should be %d", len(got), at.port, want)
			}
		}
		// With the other station's source, which gets the answer.
		echo(a, b.v4, a.gw4)
		answers(b, 1)
		echo(b, a.v4, b.gw4)
		answers(a, 1)
		r.pfctl("-F", "states")
		r.load("block quick from urpf-failed")
		r.passes(ping(a, a.gw4))
		r.passes(ping(b, b.gw4))
		r.gets(a)
		r.gets(b)
		echo(a, b.v4, a.gw4)
		answers(b, 0)
		echo(b, a.v4, b.gw4)
		answers(a, 0)
	},
	"optimize_any": func(r *router) {
		r.load("block\npass in inet from { any, 10.1.0.3 }")
		r.passes(ping(r.stations[0], r.self.v4))
	},
})
