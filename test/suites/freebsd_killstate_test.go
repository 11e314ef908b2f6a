// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"strings"

	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

// icmpState reports whether there is a state of a ping from the first station.
func (r *router) icmpState(of string) bool {
	r.t.Helper()
	return len(r.states("icmp", of)) > 0
}

// kept makes a state with a ping. The state survives rules that block everything, and all kills but
// the last one.
func (r *router) kept(rules string, c call, kills ...[]string) {
	r.t.Helper()
	r.load(rules)
	r.passes(c)
	of := c.from.v4.String()
	if c.to.Addr().Is6() {
		of = c.from.v6.String()
	}
	r.load("block all")
	if !r.icmpState(of) {
		r.t.Fatal("other rules have removed the state")
	}
	for n, kill := range kills {
		r.pfctl(kill...)
		if is, last := r.icmpState(of), n == len(kills)-1; is == last {
			r.t.Fatalf("after pfctl %q there is a state: %t", kill, is)
		}
	}
}

var _ = freeBSD.has("killstate", cases{
	"v4": func(r *router) {
		a := r.stations[0].v4.String()
		r.kept("block all\npass in proto icmp", ping(r.stations[0], r.self.v4),
			[]string{"-k", "10.1.0.3"}, []string{"-k", a, "-k", "10.1.0.3"}, []string{"-k", a})
	},
	"v6": func(r *router) {
		a := r.stations[0].v6.String()
		r.kept("block all\npass in proto icmp6", ping(r.stations[0], r.self.v6),
			[]string{"-k", "2001:db8:1::3"}, []string{"-k", a, "-k", "2001:db8:1::3"}, []string{"-k", a})
	},
	"label": func(r *router) {
		r.kept("block all\npass in proto tcp label one\npass in proto icmp label two", ping(r.stations[0], r.self.v4),
			[]string{"-k", "label", "-k", "one"}, []string{"-k", "label", "-k", "three"}, []string{"-k", "label", "-k", "two"})
	},
	"multilabel": func(r *router) {
		for _, label := range []string{"two", "one"} {
			r.kept("block all\npass in proto icmp label one label two", ping(r.stations[0], r.self.v4),
				[]string{"-k", "label", "-k", "three"}, []string{"-k", "label", "-k", label})
		}
	},
	"gateway": func(r *router) {
		a := r.stations[0].v4.String()
		r.kept("block all\npass in reply-to (em0 "+a+") proto icmp", ping(r.stations[0], r.self.v4),
			[]string{"-k", "gateway", "-k", r.self.v4.String()}, []string{"-k", "gateway", "-k", a})
	},
	"interface": func(r *router) {
		r.kept("block all\npass in proto icmp", ping(r.stations[0], r.self.v4),
			[]string{"-i", "em1", "-F", "states"}, []string{"-i", "em0", "-F", "states"})
	},
	"id": func(r *router) {
		r.load("block all\npass in proto tcp\npass in proto icmp")
		r.passes(ping(r.stations[0], r.self.v4))
		r.load("block all")
		_, id, ok := strings.Cut(r.pfctl("-vv", "-s", "states"), "id: ")
		if !ok {
			r.t.Fatal("the state has no id")
		}
		r.pfctl("-k", "id", "-k", "1")
		if !r.icmpState(r.stations[0].v4.String()) {
			r.t.Error("another id has removed the state")
		}
		r.pfctl("-k", "id", "-k", strings.Fields(id)[0])
		if r.icmpState(r.stations[0].v4.String()) {
			r.t.Error("its id has not removed the state")
		}
	},
})

var _ = freeBSD.has("get_state", cases{
	"many": func(r *router) {
		const many = 20000
		r.load("set timeout tcp.closed 60000\npass in proto icmp\npass in proto tcp")
		r.passes(ping(r.stations[0], r.self.v4))
		a := r.stations[0]
		syn := &layers.TCP{DstPort: 9, Seq: 1, SYN: true, Window: 1000}
		var frames []netlab.Frame
		for n := range many {
			syn.SrcPort = layers.TCPPort(1025 + n)
			frames = append(frames, r.frame(a, ip4(a.v4, r.self.v4, layers.IPProtocolTCP), syn))
		}
		r.sends(a, frames...)
		if got := len(r.states("tcp")); got != many {
			r.t.Errorf("%d states are shown, should be %d", got, many)
		}
	},
})
