// SPDX-License-Identifier: BSD-2-Clause

package suites

var _ = freeBSD.has("match", cases{
	// The former decision is kept.
	"quick": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.load("pass\nmatch in quick proto icmp\nblock")
		r.passes(c)
		r.pfctl("-F", "states")
		r.load("block\nmatch in quick proto icmp\npass")
		r.blocked(c)
	},
	"double_match": func(r *router) {
		r.load("nat on em1 from 10.1.0.0/24 to any -> (em1)\nblock all\nanchor \"rules\" all {\nanchor \"one\" all {\n" +
			"match in tag fine\n}\nanchor \"two\" all {\nmatch tag fine\n}\n}\npass quick tagged fine")
		r.passes(ping(r.stations[0], r.stations[1].v4))
	},
})
