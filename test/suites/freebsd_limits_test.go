// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"strings"

	"github.com/gopacket/gopacket/layers"
)

// limiter returns the columns of a limiter in pfctl's output, by their headings.
func (r *router) limiter(what, id string) map[string]string {
	r.t.Helper()
	var heads []string
	for line := range strings.Lines(r.pfctl("-s", what)) {
		f := strings.Fields(line)
		switch {
		case heads == nil:
			heads = f
		case len(f) == len(heads) && f[0] == id:
			columns := map[string]string{}
			for n, head := range heads {
				columns[head] = f[n]
			}
			return columns
		}
	}
	r.t.Fatalf("there is no limiter %s among %s", id, what)
	return nil
}

var _ = freeBSD.has("limits", cases{
	"basic": func(r *router) {
		r.load("set limit states 200\nset limit frags 100\nset limit src-nodes 50\nset limit table-entries 25")
		for _, want := range []string{"states        hard limit      200", "frags         hard limit      100",
			"src-nodes     hard limit       50", "table-entries hard limit       25"} {
			r.shows([]string{"-s", "memory"}, want)
		}
	},
	"anchors": func(r *router) {
		const two = "pass\nanchor one {\npass in\n}\nanchor two {\npass out\n}"
		r.load("set limit anchors 1")
		r.refuses("set limit anchors 1\n"+two, "anchors")
		r.load("set limit anchors 2\n" + two)
	},
})

var _ = freeBSD.has("loginterface", cases{
	"basic": func(r *router) {
		const head = "Interface Stats for"
		none := func() {
			r.t.Helper()
			if got := r.pfctl("-s", "info"); strings.Contains(got, head) {
				r.t.Error(got)
			}
		}
		none()
		r.load("set loginterface em0\npass")
		r.shows([]string{"-s", "info"}, head+" em0")
		r.passes(ping(r.stations[0], r.self.v4))
		r.shows([]string{"-s", "info"}, head+" em0", "Passed                               1                0")
		r.load("set loginterface em0\nblock")
		r.pfctl("-F", "states")
		r.blocked(ping(r.stations[0], r.self.v4))
		r.blocked(ping(r.stations[0], r.self.v6))
		r.shows([]string{"-s", "info"}, "Blocked                              1                1")
		r.load("pass")
		none()
	},
})

var _ = freeBSD.has("macro", cases{
	// $nr is the final number of the rule.
	"nr": func(r *router) {
		r.load("pass quick on lo from lo:network to lo:network\nblock quick all label \"number:$nr\"")
		for line := range strings.Lines(r.pfctl("-vv", "-s", "rules")) {
			if _, label, ok := strings.Cut(line, "\"number:"); ok {
				if number := strings.Fields(line)[0]; number != "@"+strings.TrimRight(label, "\"\n") {
					r.t.Errorf("the rule %s has the label %s", number, label)
				}
				return
			}
		}
		r.t.Error("no rule has the label")
	},
})

var _ = freeBSD.has("max_states", cases{
	"max_states": func(r *router) {
		a, b := r.stations[0], r.stations[1]
		r.load("block\npass inet6 proto icmp6 icmp6-type { neighbrsol, neighbradv }\n" +
			"pass in on em0 inet6 proto tcp keep state (max 3)\npass out on em1 inet6 proto tcp keep state")
		for n := range 4 {
			r.sends(a, r.frame(a, ip6(a.v6, b.v6, layers.IPProtocolTCP),
				&layers.TCP{SrcPort: layers.TCPPort(4201 + n), DstPort: 9, Seq: 1, SYN: true, Window: 1000}))
			want := 1
			if n == 3 {
				want = 0
			}
			if got := r.gets(b); len(got) != want {
				r.t.Errorf("of connection %d there come %d packets, should be %d", n+1, len(got), want)
			}
		}
	},
})

// modulated opens a connection through a rule with modulate state.
func (r *router) modulated(six bool) {
	r.t.Helper()
	a, b := r.stations[0], r.stations[1]
	syn := &layers.TCP{SrcPort: 4201, DstPort: 9, Seq: 42, SYN: true, Window: 1000}
	f := r.frame(a, ip4(a.v4, b.v4, layers.IPProtocolTCP), syn)
	if six {
		f = r.frame(a, ip6(a.v6, b.v6, layers.IPProtocolTCP), syn)
	}
	r.load("pass in on em0 modulate state")
	r.sends(a, f)
	if got := layer[*layers.TCP](r, r.one(r.gets(b))); got.Seq == 42 {
		r.t.Error("the number is that of the sender")
	}
}

var _ = freeBSD.has("modulate", cases{
	"modulate_v4": func(r *router) { r.modulated(false) },
	"modulate_v6": func(r *router) { r.modulated(true) },
})
