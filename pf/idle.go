// SPDX-License-Identifier: BSD-2-Clause

package pf

import "slices"

// An Idle is a word of a ruleset that is taken and has no effect. It does no harm to
// packets, but somebody may count on it.
type Idle struct {
	Pos  Pos    // of the rule or the table
	Word string // such as "pflow"
	Why  string // what is the case instead
	More int    // further rules and tables that have the word
}

// Idle returns the words of a ruleset, its anchors and what it loads that have no effect:
// each once, in the order in which they are met.
func (r *Ruleset) Idle() []Idle {
	var list []Idle
	last := map[string]Pos{} // lists make several rules of one
	note := func(pos Pos, word, why string) {
		at := slices.IndexFunc(list, func(i Idle) bool { return i.Word == word && i.Why == why })
		switch {
		case at < 0:
			list = append(list, Idle{Pos: pos, Word: word, Why: why})
		case last[word+why] != pos:
			list[at].More++
		}
		last[word+why] = pos
	}
	seen := map[*Ruleset]bool{}
	var walk func(*Ruleset)
	walk = func(set *Ruleset) {
		if set == nil || seen[set] {
			return
		}
		seen[set] = true
		for i := range set.Tables {
			if t := &set.Tables[i]; t.Counters {
				note(t.Pos, "counters", "the addresses of a table are not counted one by one")
			}
		}
		for i := range set.Rules {
			rule := &set.Rules[i]
			rule.idle(func(word, why string) { note(rule.Pos, word, why) })
			if rule.Anchor != nil {
				walk(rule.Anchor.Body)
			}
		}
		for i := range set.Loads {
			walk(set.Loads[i].Ruleset)
		}
	}
	walk(r)
	return list
}

// idle calls f for each word of the rule that has no effect.
func (r *Rule) idle(f func(word, why string)) {
	when := func(given bool, word, why string) {
		if given {
			f(word, why)
		}
	}
	when(r.Action == Match && r.SetPrio[0] != 0, "set prio", "a match rule sets no priority; say it in the rule that passes")
	when(r.Log&LogUser != 0, "log (user)", "a switch does not know whose a packet is")
	when(r.StateOpts.Pflow, "pflow", "flows are not exported")
	if r.Action == CallAnchor {
		const call = "the call of an anchor changes no packets; say it in the rules of the anchor"
		scrub := r.Scrub
		scrub.SetTOS, scrub.TOS = false, 0
		when(r.SetPrio[0] != 0, "set prio", call)
		when(r.Scrub.SetTOS, "set tos", call)
		when(scrub != Scrub{}, "scrub", call)
		when(r.AllowOpts, "allow-opts", "the call of an anchor passes nothing; say it in the rules of the anchor")
	}
}
