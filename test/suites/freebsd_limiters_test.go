// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"time"
)

// A limiter with the ID of a former one continues its counts, so each case has an ID of its own.
var _ = freeBSD.has("limiters", cases{
	"state_basic": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.passes(c)
		r.pfctl("-F", "states")
		r.load("set timeout icmp.error 120\nstate limiter \"few\" id 1 limit 1\nblock in proto icmp\n" +
			"pass in proto icmp state limiter \"few\" (no-match)")
		r.passes(c)
		r.blocked(c)
		if got := r.limiter("LimiterStates", "1")["HARDLIM"]; got != "1" {
			r.t.Errorf("the limit has been met %s times, should be once", got)
		}
		r.pfctl("-F", "states")
		r.passes(c)
	},
	"state_rate": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		r.load("set timeout icmp.error 120\nstate limiter \"few\" id 2 limit 1000 rate 1/2\nblock in proto icmp\n" +
			"pass in proto icmp state limiter \"few\" (no-match)")
		r.passes(c)
		r.blocked(c)
		if got := r.limiter("LimiterStates", "2")["RATELIM"]; got != "1" {
			r.t.Errorf("the rate has been met %s times, should be once", got)
		}
		r.passesAgain(c)
	},
	"state_block": func(r *router) {
		c := ping(r.stations[0], r.self.v4)
		head := "set timeout icmp.error 120\nstate limiter \"few\" id 3 limit 1000 rate 1/60\npass\npass in proto icmp state limiter \"few\" "
		r.load(head + "(block)")
		r.passes(c)
		r.blocked(c)
		r.load(head + "(no-match)")
		r.passes(c)
		r.passes(c)
	},
})

// passesAgain repeats a call until it passes.
func (r *router) passesAgain(c call) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if r.make(c, func(o outcome) bool { return o.answered }, false).answered {
			return
		}
	}
	r.t.Errorf("%v never passes", c)
}
