// SPDX-License-Identifier: BSD-2-Clause

package suites

// Nested anchors, whose rules decide about a ping.
var _ = openBSD.has("pf_policy", cases{
	"check-probe-host": func(r *router) { r.passes(probe(r)) },

	"run-pass-absolute": policy(true, `anchor "one" {
	anchor "../two"
	block proto { icmp icmp6 }
}
anchor "two" {
	pass quick proto { icmp icmp6 }
}
block proto { icmp icmp6 }`),
	"run-pass-relative": policy(true, `anchor "one" {
	anchor "../two" all
	block proto icmp
}
anchor "two" {
	pass quick proto icmp
}
block proto icmp`),
	"run-pass-quick": policy(true, `anchor "one" {
	pass quick proto icmp
}
anchor "two" {
	block proto icmp
}`),
	"run-block-list": policy(false, `anchor "one" {
	pass proto icmp
}
anchor "two" {
	block proto icmp
}`),
	"run-block-nesting": policy(false, `anchor "one" {
	anchor "in" {
		pass proto icmp
	}
	block proto icmp
}`),
	"run-block-simple": policy(false, `anchor "one" {
	pass proto icmp
}
block proto icmp`),

	"run-once-once": once(`pass quick proto icmp once
block proto icmp`),
	"run-once-nesting-once": once(`anchor "one" {
	anchor "in" {
		pass proto icmp
		anchor "deep" {
			pass quick proto icmp once
		}
	}
	block proto icmp
}`),
})

func probe(r *router) call { return ping(r.stations[0], r.stations[1].v4) }

// policy loads rules into an anchor that pass the ping or not.
func policy(passes bool, rules string) func(r *router) {
	return func(r *router) {
		r.load(`anchor "regress"`)
		r.passes(probe(r))
		r.pfctl("-F", "states")
		r.anchor("regress", rules)
		if passes {
			r.passes(probe(r))
		} else {
			r.blocked(probe(r))
		}
	}
}

// once loads rules that pass one ping.
func once(rules string) func(r *router) {
	return func(r *router) {
		r.load(`anchor "regress" in on em0`)
		r.anchor("regress", rules)
		r.passes(probe(r))
		r.blocked(probe(r))
	}
}
