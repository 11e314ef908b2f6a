// SPDX-License-Identifier: BSD-2-Clause

package suites

import "net/netip"

// requests returns the number of echo requests from one station that reach the other. The answers do not
// matter.
func (r *router) requests(from, at *host, src, dst netip.Addr) int {
	r.t.Helper()
	r.gets(at)
	r.sends(from, r.echo(from, src, dst, 7, "echo"))
	return len(r.gets(at))
}

// forwards sends requests through the router, and checks how many pass.
func (r *router) forwards(rules string, six bool, want int) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	r.pfctl("-q", "-F", "all")
	r.load(rules)
	src, dst := a.v4, b.v4
	if six {
		src, dst = a.v6, b.v6
	}
	if got := r.requests(a, b, src, dst); got != want {
		r.t.Errorf("%d requests have come, should be %d, by\n%s", got, want, rules)
	}
}

var _ = freeBSD.has("forward", cases{
	"v4": func(r *router) {
		r.forwards("", false, 1)
		r.forwards("block in", false, 0)
		r.forwards("block out", false, 0)
		r.forwards("block in\npass in proto icmp", false, 1)
	},
	"v6": func(r *router) {
		r.forwards("", true, 1)
		r.forwards("block in inet6 proto icmp6 icmp6-type echoreq", true, 0)
		r.forwards("block out inet6 proto icmp6 icmp6-type echoreq", true, 0)
		r.forwards("block out\npass out inet6 proto icmp6", true, 1)
		r.forwards("block out inet6 proto icmp6 icmp6-type echoreq\npass in proto icmp", true, 0)
	},
})
