// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/vishvananda/netlink"
)

var (
	counted    = regexp.MustCompile(`Evaluations: [1-9]\d* +Packets: [1-9]\d* +Bytes: [1-9]\d* `)
	notCounted = regexp.MustCompile(`Evaluations: 0 +Packets: 0 +Bytes: 0 `)
)

// counts compares pfctl's output about rules with a pattern.
func (r *router) counts(want *regexp.Regexp, args ...string) {
	r.t.Helper()
	if got := r.pfctl(args...); !want.MatchString(got) {
		r.t.Errorf("pfctl %q prints\n%s", args, got)
	}
}

var _ = freeBSD.has("rules_counter", cases{
	"get_clear": func(r *router) {
		r.load("pass proto icmp all")
		for range 3 {
			r.passes(ping(r.stations[0], r.self.v4))
		}
		r.counts(counted, "-s", "rules", "-v")
		r.counts(counted, "-s", "rules", "-v", "-z")
		r.counts(notCounted, "-s", "rules", "-v")
	},
	"keepcounters": func(r *router) {
		const rule = "pass proto icmp all" // stacks do not send this by themselves
		r.loadsCounted(rule, notCounted)
		r.loadsCounted(rule, notCounted)
		r.loadsCounted("set keepcounters\n"+rule, counted)
		r.loadsCounted("set keepcounters\npass inet proto icmp from 10.1.0.2", notCounted)
		r.loadsCounted("pass inet proto icmp from 10.1.0.2", notCounted)
	},
})

// loadsCounted loads rules, whose counters must match the pattern then, and has them count.
func (r *router) loadsCounted(rules string, want *regexp.Regexp) {
	r.t.Helper()
	r.load(rules)
	r.counts(want, "-s", "rules", "-v")
	r.pfctl("-F", "states") // so that the rules are evaluated
	r.passes(ping(r.stations[0], r.self.v4))
	r.counts(counted, "-s", "rules", "-v")
}

var _ = freeBSD.has("status", cases{
	"basic": func(r *router) {
		r.load("pass")
		const calls = 20
		for range calls {
			r.passes(ping(r.stations[0], r.self.v4))
		}
		if got := r.counter("searches"); got < calls {
			r.t.Errorf("%d searches", got)
		}
		r.pfctl("-F", "info")
		if got := r.counter("searches"); got >= calls { // stacks may have sent packets by themselves
			r.t.Errorf("%d searches", got)
		}
	},
})

var _ = freeBSD.has("set_skip", cases{
	"set_skip_group": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.load("block in proto icmp")
		r.blocked(c)
		r.load("set skip on em\nblock in proto icmp")
		r.passes(c)
	},
	"set_skip_group_lo": func(r *router) {
		c := udp(r.self, r.self.v4, 1234, r.self) // to itself
		for range 2 {
			if notes := r.load("set skip on lo\nblock on lo0"); strings.Contains(notes, "skip") {
				r.t.Error(notes)
			}
			r.passes(c)
		}
	},
	"set_skip_dynamic": func(r *router) {
		a := r.stations[2]
		r.load("set skip on late\nblock on ! lo")
		r.Bascule("port", "add", "br0", "late0", "--type", "host")
		r.Bascule("vlan", "add", "br0", "late0", "12", "--untagged", "--pvid")
		r.t.Cleanup(func() { r.Bascule("port", "del", "br0", "late0") })
		own := r.address(r.self, "late0", "10.1.9.1/24")
		r.up(r.self, "late0")
		r.address(a, a.ifname, "10.1.9.2/24")
		r.must(r.Switch.Neighbour("late0", netip.MustParseAddr("10.1.9.2"), a.MAC[:]))
		r.Wait("late0 to be up, and its other end", func() bool {
			near := r.link(r.self, "late0")
			far, err := r.Switch.Netlink().LinkByIndex(near.Attrs().ParentIndex)
			return err == nil && near.Attrs().OperState == netlink.OperUp && far.Attrs().OperState == netlink.OperUp
		})
		r.must(a.ns.Neighbour(a.ifname, own, r.link(r.self, "late0").Attrs().HardwareAddr))
		r.passes(ping(a, own))
		r.blocked(ping(a, a.gw4))
	},
	"pr255852": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.passes(c)
		r.load("set skip on { lo0, em }\nblock")
		r.shows([]string{"-vsI"}, "em0 (skip)")
		r.passes(c)
		r.load("set skip on { lo0 }\nblock")
		if got := r.pfctl("-vsI"); strings.Contains(got, "em0 (skip)") {
			r.t.Error(got)
		}
		r.blocked(c)
	},
})
