// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"os"
	"path/filepath"
	"strings"
)

var _ = freeBSD.has("anchor", cases{
	// Rules of an anchor refer to a table of the main ruleset.
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
	// Longer names; some of the rules are lines from FreeBSD.
	"pr279225": func(r *router) {
		r.load("nat-anchor \"long-nat/jail/*\" all\nrdr-anchor \"long-rdr/*\" all\nanchor \"long/jail/*\" all")
		r.shows([]string{"-s", "rules", "-a", "*"}, "nat-anchor \"long-nat/jail/*\" all {", "rdr-anchor \"long-rdr/*\" all {",
			"anchor \"long/jail/*\" all {")
	},
	"quick": func(r *router) {
		r.load("anchor quick {\npass\n}\nblock")
		r.passes(ping(r.stations[0], r.self.v4))
	},
	// A decision in a nested anchor does not end the effect of quick.
	"quick_nested": func(r *router) {
		r.load("anchor quick {\npass\nanchor {\nblock proto tcp\n}\n}\nblock")
		r.passes(ping(r.stations[0], r.self.v4))
	},
	"nat": func(r *router) {
		r.load("nat-anchor \"outer/*\"\npass")
		r.anchor("outer/one", "nat log on em0 inet from 10.1.0.0/24 to any port = 53 -> 10.1.0.1")
		r.anchor("outer/two", "rdr on em0 proto tcp to port echo -> 10.1.1.2 port echo")
		r.shows([]string{"-s", "nat", "-a", "*"}, "from 10.1.0.0/24 to any port = 53 nat-to 10.1.0.1", "rdr-to 10.1.1.2 port 7")
		r.shows([]string{"-s", "nat", "-a", "outer/one"}, "nat-to 10.1.0.1")
		r.shows([]string{"-s", "nat", "-a", "outer/two"}, "rdr-to 10.1.1.2 port 7")
	},
	"include": func(r *router) {
		path := filepath.Join(r.t.TempDir(), "more.conf")
		r.must(os.WriteFile(path, []byte("pass\n"), 0o644))
		r.load("block\nanchor outer {\ninclude \"" + path + "\"\n}")
		r.passes(ping(r.stations[0], r.self.v4))
	},
})
