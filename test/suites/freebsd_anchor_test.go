// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"strings"
)

var _ = freeBSD.has("anchor", cases{
	// rules of an anchor name a table of the main ruleset
	"pr183198": func(r *router) {
		r.load("table <few> { 10.1.0.2, 10.1.0.3, 10.1.0.4 }\nblock in\nanchor part on em0 {\npass in from <few>\n}")
		r.shows([]string{"-s", "rules", "-a", "*"}, "pass in from <few>")
		if got := strings.Fields(r.pfctl("-t", "few", "-T", "show")); len(got) != 3 {
			r.t.Errorf("the table has %q", got)
		}
		r.passes(ping(r.stations[0], r.self.v4))
		r.blocked(ping(r.stations[1], r.stations[1].gw4))
	},
	"nested_anchor": func(r *router) {
		r.load("anchor outer {\nanchor inner {\npass on em0\n}\n}")
		r.prints("anchor \"outer\" all {\n  anchor \"inner\" all {\n    pass on em0 all flags S/SA\n  }\n}\n", "-s", "rules", "-a", "*")
	},
	"wildcard": func(r *router) {
		r.load("block\nanchor \"outer/*\"")
		r.blocked(ping(r.stations[0], r.self.v4))
		r.anchor("outer/inner", "pass")
		r.passes(ping(r.stations[0], r.self.v4))
	},
	"nested_label": func(r *router) {
		r.load("anchor outer {\npass in quick proto icmp label one\nanchor inner {\npass in proto tcp label two\n}\n}\npass quick from any to any label three")
		r.prints("one 0 0 0 0 0 0 0 0\ntwo 0 0 0 0 0 0 0 0\nthree 0 0 0 0 0 0 0 0\n", "-s", "labels", "-a*")
	},
})
