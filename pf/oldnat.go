// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"net/netip"
	"strings"
)

// Lines that begin with nat, rdr or binat are FreeBSD's, and were OpenBSD's before 4.7.
// They are tried before all filter rules, and of the lines for one direction the first
// match is final. They become match rules in front of the others. All matching match rules
// apply. So if a packet could match two lines, the earlier one's rule gives it a mark, and
// the later one's leaves out packets with the mark.
//
// There, a translated packet has a state even if no filter rule matches it. So a pass rule
// with the same conditions stands in front of each.

// oldKinds are the kinds of these rules, in the order in which they are tried: rdr and
// binat on the way in, binat and nat on the way out.
var oldKinds = []string{"rdr", "binat", "nat"}

// Marks of packets that no further rule of the kind applies to.
const (
	natDone = "nat-done"
	rdrDone = "rdr-done"
)

// maxOld is the largest number of these rules in a ruleset: each is compared with each.
const maxOld = 4096

// oldRule is a rule from such a line.
type oldRule struct {
	Rule
	place Place
	no    bool // no translation
	pass  bool // its packets skip the filter rules
}

// oldRules are the rules of a ruleset, by kind, that are not in the ruleset yet.
type oldRules map[string][]oldRule

// chained is a rule with a mark that its line does not have.
type chained struct {
	place  Place // of the line
	before Pos   // of an earlier line, which applies if it matches
}

// oldNAT reads such a rule. The next token is behind the word of its kind.
func (p *parser) oldNAT(first token, kind token, no bool) {
	p.oldOrder(first, kind.text+": translation")
	s := p.begin(first.pos, Match)
	r := &s.rule
	s.old = &oldRule{place: p.place(kind.pos), no: no}
	r.Direction = map[string]Direction{"nat": Out, "rdr": In, "binat": Both}[kind.text]
	if pos := p.tok.pos; p.accept("pass") {
		if no {
			p.errorf(pos, "\"pass\" not valid with \"no\"")
		}
		// The rule has a state of its own: it has no condition on flags, and no
		// options.
		r.Action, r.Quick, r.State, s.old.pass = Pass, true, KeepState, true
		s.at[optState], s.at[optFlags] = pos, pos
	}
	if p.at("log") {
		p.log(r)
	}
	p.conditions(s)
	for !p.ends() && !p.atOp("->") {
		not := p.acceptOp("!")
		switch {
		case p.at("tagged"):
			p.tagged(s, not)
		case !not && p.at("tag"):
			p.oneOption(ruleOptions, s)
		case !not && p.at("rtable"):
			p.errorf(p.tok.pos, "rtable: %s", outside["rtable"])
			p.next()
			p.number("the number of a table", 255)
		default:
			p.expected("`->`, `tag` or `tagged`")
		}
	}
	arrow := p.tok.pos
	switch to := p.acceptOp("->"); {
	case no && to:
		p.failf(arrow, "translation rule with 'no' does not need '->'")
	case !no && !to:
		p.failf(arrow, "translation rule requires '-> address'")
	}
	if kind.text == "rdr" {
		s.at[optRdr] = kind.pos
	} else {
		s.at[optNat] = kind.pos
	}
	if !no {
		redirect := p.redirect(kind.text, kind.pos)
		if kind.text == "rdr" {
			s.rdr = redirect
		} else {
			s.nat = redirect
		}
	}
	if p.tok.kind == tokWord && p.tok.text == "map-e-portset" {
		p.failf(p.tok.pos, "map-e-portset: needs sets of ports; give `port` and a range")
	}
	if len(s.protos) == 0 && s.at[optPort].Line != 0 && kind.text != "rdr" {
		s.protos = append(s.protos, protoTCP, protoUDP) // FreeBSD compares ports of protocols with ports
	}
	s.oldKind = kind.text
	p.finish(s)
	p.expand(s)
}

// addOld keeps a rule until all rules of its kind are known.
func (p *parser) addOld(s *spec, r Rule) bool {
	if p.old[p.set] == nil {
		p.old[p.set] = oldRules{}
	}
	n := 0
	for _, list := range p.old[p.set] {
		n += len(list)
	}
	if n >= maxOld {
		p.limitf(s.old.place.Pos, enough{}, "nat, rdr and binat stand for more than %d rules; write match rules with nat-to and rdr-to", maxOld)
	}
	o := *s.old
	o.Rule = r
	if s.oldKind == "scrub" || r.Action == CallAnchor {
		p.old[p.set][s.oldKind] = append(p.old[p.set][s.oldKind], o)
		return true
	}
	for _, d := range map[bool][]Direction{true: {Out, In}, false: {r.Direction}}[r.Direction == Both] { // no binat
		o.Direction = d
		p.old[p.set][s.oldKind] = append(p.old[p.set][s.oldKind], o)
	}
	return true
}

// flushOld puts the kept rules of the current ruleset among its rules.
func (p *parser) flushOld() {
	kept := p.old[p.set]
	if kept == nil {
		return
	}
	delete(p.old, p.set)
	rules := p.scrubbing(kept["scrub"])
	var list []oldRule
	for _, kind := range oldKinds {
		list = append(list, kept[kind]...)
	}
	needed := make([]bool, len(list)) // its packets need a mark
	for i := range list {
		for j := range list[:i] {
			a, b := &list[j], &list[i]
			if a.pass || a.Action == CallAnchor || b.Action == CallAnchor || !overlap(a, b) {
				continue
			}
			needed[j] = true
			p.mark(a, b, natDone, rdrDone)
		}
	}
	for i := range list {
		o := &list[i]
		if o.no && !needed[i] {
			continue
		}
		if o.Action == Match && !o.no {
			pass := o.Rule
			pass.Action, pass.State, pass.Flags, pass.Translations = Pass, KeepState, TCPFlags{}, nil
			pass.Tag, pass.Log, pass.LogTo, pass.StateOpts = "", 0, "", StateOptions{Policy: p.statePolicy}
			rules = append(rules, pass)
		}
		if needed[i] {
			o.Tag = natDone
			if o.Direction == In {
				o.Tag = rdrDone
			}
		}
		rules = append(rules, o.Rule)
	}
	p.set.Rules = append(rules, p.set.Rules...)
}

// mark makes a rule leave out the packets that an earlier rule has marked.
func (p *parser) mark(a, b *oldRule, out, in string) {
	if p.marked == nil {
		p.marked = &chained{b.place, a.place.Pos}
	}
	b.Tagged, b.NotTagged = out, true
	if b.Direction == In {
		b.Tagged = in
	}
}

// oldOrder refuses a line behind filter rules, unless the file allows any order.
func (p *parser) oldOrder(first token, what string) {
	if len(p.set.Rules) > 0 && !p.anyOrder {
		p.failf(first.pos, "%s comes before filtering, and a rule that filters stands above; move the line before it", what)
	}
}

// printed reports whether there are rules, and all of them may come from lines of older
// files: then the file is printed output.
func (p *parser) printed() bool {
	for i := range p.set.Rules {
		if p.set.Part(i) == FilterPart {
			return false
		}
	}
	return len(p.set.Rules) > 0 && !p.anyOrder
}

// oldAnchor reads the call of a part of an anchor.
func (p *parser) oldAnchor(first token) {
	s := p.begin(first.pos, CallAnchor)
	s.oldKind, _, _ = strings.Cut(first.text, "-")
	if p.printed() { // it is in its place among the rules of its kind
		s.old = nil
	} else {
		p.oldOrder(first, first.text+": its part of an anchor")
		s.old = &oldRule{place: p.place(first.pos)}
	}
	part := map[string]Part{"nat": NATPart, "rdr": RDRPart, "binat": NATPart | RDRPart, "scrub": ScrubPart}[s.oldKind]
	s.rule.Direction = map[Part]Direction{NATPart: Out, RDRPart: In}[part]
	s.rule.Anchor = &Anchor{Name: p.anchorName(), Only: part}
	p.conditions(s)
	if p.at("rtable") {
		p.outside("rtable")
	}
	p.finish(s)
	p.expand(s)
}

// checkMarks refuses a file whose own tags would conflict with marks of packets.
func (p *parser) checkMarks() {
	if p.marked == nil || p.tags.Line == 0 {
		return
	}
	at := p.marked.place // perhaps in a file that is loaded into an anchor
	p.errs = append(p.errs, Error{Pos: at.Pos, Line: at.Line, Message: fmt.Sprintf("%v may take packets of this line, of which it "+
		"holds alone; to say so takes tags, and %v has some of its own; write match rules with nat-to, rdr-to or scrub", p.marked.before, p.tags)})
}

// overlap reports whether a packet may match a rule and, after its translation, a later
// rule.
func overlap(a, b *oldRule) bool {
	if a.Direction != Both && b.Direction != Both && a.Direction != b.Direction ||
		a.Family != 0 && b.Family != 0 && a.Family != b.Family ||
		a.HasProto && b.HasProto && a.Proto != b.Proto ||
		!sameDevice(a.On, b.On) {
		return false
	}
	from, to := []Endpoint{a.From}, []Endpoint{a.To}
	for _, t := range a.Translations {
		var list []Endpoint // the addresses and ports after the translation
		for _, addr := range t.Pool.Addrs {
			list = append(list, Endpoint{Host: Host{Kind: Prefix, Addr: addr.Addr(), Bits: addr.Bits()}})
		}
		if list == nil {
			list = []Endpoint{{}}
		}
		if t.Kind == NatTo {
			from = list
			continue
		}
		for i := range list {
			switch list[i].Port = a.To.Port; {
			case t.Ports.High != 0:
				list[i].Port = Port{PortRange, t.Ports.Low, t.Ports.High}
			case t.Ports.Low != 0:
				list[i].Port = Port{Op: PortEqual, Lo: t.Ports.Low}
			}
		}
		to = list
	}
	return meet(from, b.From) && meet(to, b.To)
}

// sameDevice reports whether one port may satisfy two conditions on ports.
func sameDevice(a, b Interface) bool {
	numbered := func(i Interface) bool { return !i.Not && GroupName(i.Name) != i.Name }
	return a.Name == b.Name && a.Not == b.Not || !numbered(a) || !numbered(b)
}

// meet reports whether one packet may satisfy an endpoint of a list and another endpoint.
func meet(list []Endpoint, b Endpoint) bool {
	for _, a := range list {
		if hostsMeet(a, b) && portsMeet(a.Port, b.Port) {
			return true
		}
	}
	return false
}

func hostsMeet(a, b Endpoint) bool {
	if a.Host.Kind != Prefix || b.Host.Kind != Prefix {
		return true
	}
	one, other := netip.PrefixFrom(a.Host.Addr, a.Host.Bits), netip.PrefixFrom(b.Host.Addr, b.Host.Bits)
	within := func(in, out netip.Prefix) bool { return out.Bits() <= in.Bits() && out.Contains(in.Addr()) }
	switch {
	case !a.Not && !b.Not:
		return one.Overlaps(other)
	case !a.Not:
		return !within(one, other)
	case !b.Not:
		return !within(other, one)
	}
	return true
}

func portsMeet(a, b Port) bool {
	known := func(p Port) (lo, hi uint16, ok bool) {
		switch p.Op {
		case PortEqual:
			return p.Lo, p.Lo, true
		case PortRange:
			return p.Lo, p.Hi, true
		}
		return 0, 0, false
	}
	aLo, aHi, ok := known(a)
	bLo, bHi, too := known(b)
	return !ok || !too || aLo <= bHi && bLo <= aHi
}
