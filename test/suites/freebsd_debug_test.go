// SPDX-License-Identifier: BSD-2-Clause

package suites

var _ = freeBSD.has("debug", cases{
	// Levels have OpenBSD's names: loud is debug, urgent is err.
	"basic": func(r *router) {
		r.pfctl("-x", "loud")
		r.shows([]string{"-s", "info"}, "Debug: debug")
	},
	"reset": func(r *router) {
		limit := func(n string) {
			r.t.Helper()
			r.shows([]string{"-s", "all"}, "states        hard limit "+n)
		}
		r.shows([]string{"-s", "all"}, "Debug: err")
		limit("  100000")
		r.load("set limit states 42")
		r.pfctl("-x", "loud")
		r.shows([]string{"-s", "all"}, "Debug: debug")
		limit("      42")
		r.pfctl("-F", "Reset")
		r.shows([]string{"-s", "all"}, "Debug: err")
		limit("  100000")
	},
})
