// SPDX-License-Identifier: BSD-2-Clause

package suites

import "strings"

// spentOnce has a rule that passes the first packet of one connection, and no more.
func spentOnce(rules string) func(*router) {
	return func(r *router) {
		a := r.stations[0]
		r.load(rules)
		if got := r.pfctl("-s", "rules", "-a", "*", "-vv"); strings.Contains(got, "expired") {
			r.t.Error(got)
		}
		r.passes(ping(a, r.self.v4))
		r.shows([]string{"-s", "rules", "-a", "*", "-vv"}, "pass in inet from 10.1.0.2 to any flags S/SA once # expired\n")
		r.blocked(ping(a, r.self.v4))
		r.pfctl("-F", "states")
		r.blocked(ping(a, r.self.v4))
	}
}

var _ = freeBSD.has("once", cases{
	"basic":  spentOnce("block\npass in from 10.1.0.2 once"),
	"anchor": spentOnce("block\nanchor \"apart\" {\npass in from 10.1.0.2 once\n}"),
})
