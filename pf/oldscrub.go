// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"math"
	"net/netip"
	"reflect"
	"slices"
)

// Lines that begin with scrub are FreeBSD's, and were OpenBSD's before 4.6. They are tried
// before all others, and the first match is final. They become match rules in front of the
// others. Of match rules with the same word the last one wins, so their order is reversed if
// the meaning stays the same. Otherwise they get marks, as the rules of translation do.

// Marks of packets that no further scrub line applies to.
const (
	scrubbedIn  = "scrubbed-in"
	scrubbedOut = "scrubbed-out"
)

// oldScrub reads such a line. The next token is behind scrub.
func (p *parser) oldScrub(first token, kind token, no bool) {
	p.oldOrder(first, "scrub: normalization")
	s := p.begin(first.pos, Match)
	s.old, s.oldKind = &oldRule{place: p.place(kind.pos), no: no}, "scrub"
	p.direction(&s.rule.Direction)
	if p.at("log") {
		p.log(&s.rule)
	}
	p.conditions(s)
	fragments, at := "fragment reassemble", first.pos // the meaning of a line without options
	for !p.ends() {
		not := p.acceptOp("!")
		word, pos := p.tok.text, p.tok.pos
		switch {
		case p.at("tagged"):
			p.tagged(s, not)
		case not:
			p.expected("`tagged`")
		case p.oneOption(scrubOptions, s):
		case p.at("set-tos"):
			p.next()
			s.rule.Scrub.SetTOS, s.rule.Scrub.TOS = true, p.tos()
		case p.accept("reassemble"):
			p.word("tcp")
			s.rule.Scrub.ReassembleTCP = true
		case p.accept("fragment"):
			if fragments, at = "", pos; !p.accept("no") {
				fragments = word + " " + p.tok.text
				if p.accept("crop") || p.accept("drop-ovl") {
					break
				}
			}
			p.word("reassemble")
		case p.at("rtable"):
			p.errorf(pos, "rtable: %s", outside["rtable"])
			p.next()
			p.number("the number of a table", math.MaxUint8)
		default:
			p.expected("`no-df`, `random-id`, `min-ttl`, `max-mss`, `set-tos`, `reassemble tcp` or `fragment`")
		}
	}
	if no {
		s.rule.Scrub = Scrub{}
	} else if fragments != "" {
		p.set.Ignored = append(p.set.Ignored, Idle{Pos: at, Word: fragments,
			Why: notReassembled})
	}
	p.finish(s)
	p.expand(s)
}

// scrubbing returns the match rules for scrub lines.
func (p *parser) scrubbing(list []oldRule) (rules []Rule) {
	var lines []oldRule
	for i := range list {
		if list[i].Action == CallAnchor {
			rules = append(rules, list[i].Rule)
		} else {
			lines = append(lines, list[i])
		}
	}
	in, turnIn := p.reached(lines, In)
	out, turnOut := p.reached(lines, Out)
	for i := range lines {
		if !in[i] && !out[i] {
			p.set.Ignored = append(p.set.Ignored, Idle{Pos: lines[i].Pos, Word: "scrub", Why: "a line before has all of its packets, and the first holds"})
		}
	}
	if turnIn && turnOut {
		for i := range slices.Backward(lines) {
			r := lines[i].Rule
			if r.Scrub == (Scrub{}) || !in[i] && !out[i] {
				continue
			}
			if !in[i] || !out[i] {
				r.Direction = map[bool]Direction{true: In, false: Out}[in[i]]
			}
			rules = append(rules, r)
		}
		return rules
	}
	for _, d := range []struct {
		Direction
		reached []bool
	}{{In, in}, {Out, out}} {
		var each []oldRule
		for i := range lines {
			if d.reached[i] {
				o := lines[i]
				o.Direction = d.Direction
				each = append(each, o)
			}
		}
		needed := make([]bool, len(each))
		for i := range each {
			for j := range each[:i] {
				if overlap(&each[j], &each[i]) {
					needed[j] = true
					p.mark(&each[j], &each[i], scrubbedOut, scrubbedIn)
				}
			}
		}
		for i := range each {
			o := &each[i]
			if o.Scrub == (Scrub{}) && !needed[i] {
				continue
			}
			if needed[i] {
				o.Tag = map[Direction]string{In: scrubbedIn, Out: scrubbedOut}[d.Direction]
			}
			rules = append(rules, o.Rule)
		}
	}
	return rules
}

// reached returns which lines get packets of a direction that no earlier line gets. turn
// reports whether match rules in reverse order have the same meaning as the lines.
func (p *parser) reached(lines []oldRule, d Direction) (reached []bool, turn bool) {
	reached, turn = make([]bool, len(lines)), true
	for i := range lines {
		b := &lines[i]
		reached[i] = b.Direction == Both || b.Direction == d
		for j := range lines[:i] {
			a := &lines[j]
			if a.Direction != Both && a.Direction != d {
				continue
			}
			reached[i] = reached[i] && !covers(&a.Rule, &b.Rule)
		}
		for j := range lines[:i] {
			if reached[i] && reached[j] && overlap(&lines[j], b) && !lines[j].Scrub.has(b.Scrub) {
				turn = false
			}
		}
	}
	return reached, turn
}

// has reports whether s sets everything that other sets, perhaps to other values.
func (s Scrub) has(other Scrub) bool {
	return (s.NoDF || !other.NoDF) && (s.RandomID || !other.RandomID) && (s.MinTTL != 0 || other.MinTTL == 0) &&
		(s.MaxMSS != 0 || other.MaxMSS == 0) && (s.SetTOS || !other.SetTOS) && (s.ReassembleTCP || !other.ReassembleTCP)
}

// covers reports whether rule a matches all packets that rule b matches, directions aside.
func covers(a, b *Rule) bool {
	side := func(a, b Endpoint) bool {
		host := !a.Not && a.Host.Kind == AnyHost || a.Not == b.Not && reflect.DeepEqual(a.Host, b.Host) ||
			!a.Not && !b.Not && a.Host.Kind == Prefix && b.Host.Kind == Prefix && a.Host.Bits <= b.Host.Bits &&
				netip.PrefixFrom(a.Host.Addr, a.Host.Bits).Contains(b.Host.Addr)
		return host && (a.Port == Port{} || a.Port == b.Port)
	}
	return (a.Family == 0 || a.Family == b.Family) && (!a.HasProto || b.HasProto && a.Proto == b.Proto) &&
		(a.On == Interface{} || a.On == b.On) && side(a.From, b.From) && side(a.To, b.To) &&
		(a.Tagged == "" || a.Tagged == b.Tagged && a.NotTagged == b.NotTagged)
}
