// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// says runs pfctl and compares its standard error.
func (r *router) says(want string, args ...string) {
	r.t.Helper()
	result := r.try("", args...)
	if got := result.Stderr + result.Stdout; result.Exit != 0 || got != want {
		r.t.Errorf("pfctl %q says %q and exits with %d, should say %q", args, got, result.Exit, want)
	}
}

// list writes a file of addresses, and returns its path.
func (r *router) list(addresses ...string) string {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "list")
	r.must(os.WriteFile(path, []byte(strings.Join(addresses, "\n")+"\n"), 0o644))
	return path
}

var _ = freeBSD.has("table", cases{
	"pr251414": func(r *router) {
		r.load("pass all\ntable <own> { self }\npass in log to <own>")
		r.load("pass all\ntable <own> counters { self }\npass in log to <own>")
		for range 3 {
			r.passes(ping(r.stations[0], r.self.v4))
		}
		r.shows([]string{"-t", "own", "-T", "show", "-vv"}, "10.1.0.1", "Cleared:")
	},
	"automatic": func(r *router) {
		var rules strings.Builder
		rules.WriteString("block in\n")
		for n := 2; n < 10; n++ {
			fmt.Fprintf(&rules, "pass in proto icmp from 10.1.0.%d\n", n)
		}
		r.load(rules.String())
		r.passes(ping(r.stations[0], r.self.v4))
		r.blocked(ping(r.stations[1], r.self.v4))
	},
	"network": func(r *router) {
		r.load("table <near> const { em:network }\nblock in\npass in from <near>")
		r.passes(ping(r.stations[0], r.self.v4))
		r.passes(ping(r.stations[1], r.stations[1].gw4))
	},
	"anchor": func(r *router) {
		a := r.stations[0]
		r.anchor("apart", "table <bad> persist\nblock in quick from <bad> to any")
		r.load("pass\nanchor apart")
		r.passes(ping(a, r.self.v4))
		r.pfctl("-t", "bad", "-T", "add", a.v4.String()) // another table of this name
		r.t.Cleanup(func() { r.pfctl("-q", "-t", "bad", "-T", "kill") })
		r.pfctl("-F", "states")
		r.passes(ping(a, r.self.v4))
		r.pfctl("-a", "apart", "-t", "bad", "-T", "add", a.v4.String())
		r.pfctl("-F", "states")
		r.blocked(ping(a, r.self.v4))
	},
	"flush": func(r *router) {
		r.says("1 table created.\n1/1 addresses added.\n", "-t", "few", "-T", "add", "192.0.2.4")
		r.t.Cleanup(func() { r.pfctl("-q", "-t", "few", "-T", "kill") })
		r.prints("   192.0.2.4\n", "-t", "few", "-T", "show")
		r.says("1 addresses deleted.\n", "-t", "few", "-T", "flush")
		r.prints("", "-t", "few", "-T", "show")
	},
	"large": func(r *router) {
		var all []string
		for i := 1; i < 256; i++ {
			for j := 1; j < 256; j++ {
				all = append(all, fmt.Sprintf("198.18.%d.%d", i, j))
			}
		}
		r.load("table <many>\npass in from <many>\npass")
		r.says("65025/65025 addresses added.\n", "-t", "many", "-T", "add", "-f", r.list(all...))
		if got := strings.Count(r.pfctl("-t", "many", "-T", "show"), "\n"); got != len(all) {
			r.t.Errorf("%d addresses", got)
		}
		r.says("0/65025 addresses added.\n", "-t", "many", "-T", "add", "-f", r.list(all...))
		all = append(all, "192.0.2.42")
		r.says("1/65026 addresses added.\n", "-t", "many", "-T", "add", "-f", r.list(all...))
		r.says("1/1 addresses deleted.\n", "-t", "many", "-T", "delete", "192.0.2.42")
		r.says("0/1 addresses deleted.\n", "-t", "many", "-T", "delete", "192.0.2.42")
	},
	"in_anchor": func(r *router) {
		r.load("block all\nanchor \"inner\" {\ntable <good> counters { 10.1.0.2 }\npass in from <good>\n}")
		r.passes(ping(r.stations[0], r.self.v4))
		r.blocked(ping(r.stations[1], r.stations[1].gw4))
		r.shows([]string{"-s", "rules", "-a", "*", "-vv"}, "<good:1>")
		r.shows([]string{"-s", "Tables", "-a", "*", "-vv"}, "good@inner")
	},
	"show_recursive": func(r *router) {
		r.anchor("apart", "table <bad> persist\nblock in quick from <bad> to any")
		r.load("table <good> counters { 10.1.0.2 }\npass in from <good>\nanchor apart")
		r.prints("-pa-r--\tbad@apart\n--a-r-C\tgood\n", "-v", "-a", "*", "-s", "Tables")
		r.prints("bad@apart\ngood\n", "-a", "*", "-s", "Tables")
		r.prints("bad\n", "-a", "apart", "-s", "Tables")
	},
	"replace": func(r *router) {
		a := r.stations[0]
		r.load("table <good> { 10.1.0.2 }\nblock all\npass in from <good> to any\npass out from any to <good>")
		r.passes(ping(a, r.self.v4))
		r.says("1 addresses added.\n1 addresses deleted.\n", "-t", "good", "-T", "replace", "192.0.2.3")
		r.prints("   192.0.2.3\n", "-t", "good", "-T", "show")
		r.pfctl("-F", "states")
		r.blocked(ping(a, r.self.v4))
		r.says("1 addresses changed.\n", "-t", "good", "-T", "replace", "!192.0.2.3")
		var many []string
		for i := range 500 {
			many = append(many, fmt.Sprintf("198.18.%d.%d", i/250, i%250))
		}
		r.says("500 addresses added.\n1 addresses deleted.\n", "-t", "good", "-T", "replace", "-f", r.list(many...))
		if got := r.pfctl("-t", "good", "-T", "show"); strings.Contains(got, "192.0.2.3") {
			r.t.Error(got)
		}
		r.says("no changes.\n", "-t", "good", "-T", "replace", "-f", r.list(many...))
	},
	"load": func(r *router) {
		r.with("table <private> persist { 172.16/12 }\nblock\npass in from <private>\n", "-T", "load", "-f", "-")
		r.t.Cleanup(func() { r.pfctl("-q", "-t", "private", "-T", "kill") })
		r.passes(ping(r.stations[0], r.self.v4))
		r.prints("", "-s", "rules")
		r.prints("   172.16.0.0/12\n", "-T", "show", "-t", "private")
	},
})
