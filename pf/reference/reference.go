// SPDX-License-Identifier: BSD-2-Clause

// Package reference tries rules on a packet one by one, as pf_match_rule() of OpenBSD's pf does,
// without states. It is simple rather than fast: tests compare the compiler and the datapath with
// it.
package reference

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"bascule/pf"
)

// Evaluator has rules and their environment. It remembers which `once` rules were used.
type Evaluator struct {
	Rules *pf.Ruleset
	// Anchors are the rulesets of anchors without a body, by path: "ftp" or "ftp/1". A name in a
	// rule is relative to the rule's anchor, unless it begins with a slash. An anchor without a
	// name is called _N, where N is the index of its call. No anchor may call itself.
	Anchors map[string]*pf.Ruleset
	// Tables are the contents of tables by the path of their anchor and their name, "bad" or
	// "ftp/bad". A table that is missing here has the entries of its definition.
	Tables map[string][]pf.TableEntry
	// Addresses returns the addresses of a port in a rule. Nil: there are none.
	Addresses func(name string, modes []string) []netip.Prefix
	// Routes returns what is wrong with a packet's addresses by the host's routes, or bindings,
	// where it is judged. Nil: every address has a route, and none came the wrong way.
	Routes func(*Packet) Routes
	// Draw returns a number of 0 <= x < 1 for a rule with a probability, which matches if that
	// is above x. Nil: always 0.
	Draw func(*pf.Rule) float64
	// Exhausted reports whether a limiter in a rule has no room for a packet. The first argument
	// is "state" or "source". Nil: none is exhausted.
	Exhausted func(of string, l pf.Limiter, p *Packet) bool

	used map[*pf.Rule]bool
}

// Routes is what is wrong with the addresses of a packet.
type Routes struct {
	SrcNoRoute, DstNoRoute bool // there is no route to the address
	URPFFailed             bool // the route to the source leaves by another interface
}

// Loaded returns the rulesets that a ruleset loads into anchors, by path.
func Loaded(rs *pf.Ruleset) map[string]*pf.Ruleset {
	all := map[string]*pf.Ruleset{}
	var load func(rs *pf.Ruleset, at string)
	load = func(rs *pf.Ruleset, at string) {
		for _, l := range rs.Loads {
			called := path.Join(at, l.Name)
			all[called] = l.Ruleset
			load(l.Ruleset, called)
		}
		for i, r := range rs.Rules {
			if r.Anchor != nil && r.Anchor.Body != nil {
				load(r.Anchor.Body, pathOf(r.Anchor.Name, at, i))
			}
		}
	}
	load(rs, "")
	return all
}

// pathOf returns the path of an anchor. at is the path of the ruleset that calls it, and index the
// calling rule's.
func pathOf(name, at string, index int) string {
	if name == "" {
		name = fmt.Sprint("_", index)
	}
	if !strings.HasPrefix(name, "/") {
		name = path.Join("/", at, name)
	}
	return strings.TrimPrefix(path.Clean(name), "/")
}

// Result is the fate of a packet.
type Result struct {
	Action   pf.Action  // Pass or Block
	Rule     *pf.Rule   // the deciding rule; nil: no rule matched, and the packet passes
	Limited  bool       // it would pass by Rule, whose limiter is exhausted and blocks then
	IPOption bool       // it would pass, but has IP options, and Rule is nil or without allow-opts
	Matches  []*pf.Rule // match rules that applied, in their order
	Tag      string     // empty: none
	SetPrio  [2]uint8   // as in pf.Rule: from Rule, or from the last of Matches that sets it
	Scrub    pf.Scrub   // changes by Matches and Rule, later ones winning
	Log      []Logged
}

// Logged records that a packet is logged with a rule: because of that rule, or of an earlier match
// rule with `log (matches)`.
type Logged struct {
	Rule, By *pf.Rule
}

// Evaluate tries the rules on a packet.
func (e *Evaluator) Evaluate(p *Packet) Result {
	w := walk{Evaluator: e, Packet: p, tables: map[string][]pf.TableEntry{}}
	return w.evaluate()
}

func (w *walk) evaluate() Result {
	p := w.Packet
	w.tag = p.Tag
	w.ruleset(w.Rules, "", false)
	if w.failed {
		return Result{Action: pf.Block, Matches: w.matches, Tag: w.tag}
	}

	r := Result{Rule: w.rule, Matches: w.matches, Tag: w.tag, SetPrio: w.prio, Scrub: w.scrub, Log: w.log}
	if w.limited != nil {
		r.Action, r.Rule, r.Limited = pf.Block, w.limited, true
		return r
	}
	allowed := false
	if w.rule != nil {
		r.Action = w.rule.Action
		allowed = w.rule.AllowOpts
		if w.rule.SetPrio[0] != 0 {
			r.SetPrio = w.rule.SetPrio
		}
		r.Scrub = overlay(r.Scrub, w.rule.Scrub)
		if w.rule.Log != 0 {
			r.Log = append(r.Log, Logged{w.rule, w.rule})
		}
	}
	if r.Action == pf.Pass && !allowed && (p.Options || p.RouterAlert && !p.multicastListener()) {
		r.Action, r.IPOption = pf.Block, true
	}
	return r
}

// walk is one evaluation.
type walk struct {
	*Evaluator
	*Packet
	rule    *pf.Rule // the last match
	limited *pf.Rule // a rule that blocks since its limiter is exhausted
	matches []*pf.Rule
	tag     string
	prio    [2]uint8
	scrub   pf.Scrub
	log     []Logged
	tables  map[string][]pf.TableEntry // definitions so far

	at    string  // path of the ruleset of rule
	parts pf.Part // parts of the current ruleset to try; 0 means all
	// translate makes the translations of a match rule of the ruleset at a path; it may be nil.
	// It reports false if that is impossible: then no more rules are tried.
	translate func(w *walk, r *pf.Rule, at string) bool
	failed    bool
}

// ruleset tries the rules of the ruleset at a path. If it is not known whether the packet matches
// the anchor's conditions, only its block rules match. It reports whether a pass or block rule
// matched, and whether no more rules should be tried.
func (w *walk) ruleset(rs *pf.Ruleset, at string, unsure bool) (matched, stop bool) {
	for i := range rs.Tables {
		w.tables[path.Join(at, rs.Tables[i].Name)] = rs.Tables[i].Entries
	}
	parts := w.parts
	for i := range rs.Rules {
		r := &rs.Rules[i]
		if parts != 0 && parts&rs.Part(i) == 0 {
			continue
		}
		unsure := unsure
		switch w.matchesRule(r, at) {
		case no:
			continue
		case maybe:
			unsure = true
		}
		if unsure && (r.Action == pf.Pass || r.Action == pf.Match) {
			continue
		}
		switch w.exhausted(r) {
		case no:
		case maybe:
			continue
		case yes:
			w.limited = r
			return matched, true
		}
		if r.Tag != "" && !(unsure && r.Action == pf.CallAnchor) {
			w.tag = r.Tag
		}
		if r.Action == pf.CallAnchor {
			inside, end := w.anchor(rs, at, i, unsure)
			w.parts = parts
			matched = matched || inside
			if end || inside && r.Quick {
				return matched, true
			}
			continue
		}
		w.apply(r, at)
		matched = matched || r.Action != pf.Match
		if r.Quick || w.failed {
			return matched, true
		}
	}
	return matched, false
}

// apply applies the effects of a matching rule. Only the end shows whether the rule decides.
func (w *walk) apply(r *pf.Rule, at string) {
	if r.Once {
		if w.used == nil {
			w.used = map[*pf.Rule]bool{}
		}
		w.used[r] = true
	}
	if r.Action == pf.Match {
		w.matches = append(w.matches, r)
		if r.SetPrio[0] != 0 {
			w.prio = r.SetPrio
		}
		w.scrub = overlay(w.scrub, r.Scrub)
		if r.Log != 0 {
			w.log = append(w.log, Logged{r, r})
		}
		if w.translate != nil && !w.translate(w, r, at) {
			w.failed = true
			return
		}
	} else {
		w.rule, w.at = r, at
	}
	if r.Log&pf.LogMatches == 0 { // such a rule is logged anyway
		for _, m := range w.matches {
			if m.Log&pf.LogMatches != 0 {
				w.log = append(w.log, Logged{r, m})
			}
		}
	}
}

// overlay joins the effects of a rule with a later rule's (pf_rule_to_actions() of sys/net/pf.c).
func overlay(first, later pf.Scrub) pf.Scrub {
	first.NoDF = first.NoDF || later.NoDF
	first.RandomID = first.RandomID || later.RandomID
	first.ReassembleTCP = first.ReassembleTCP || later.ReassembleTCP
	if later.MinTTL != 0 {
		first.MinTTL = later.MinTTL
	}
	if later.MaxMSS != 0 {
		first.MaxMSS = later.MaxMSS
	}
	if later.SetTOS {
		first.SetTOS, first.TOS = true, later.TOS
	}
	return first
}

// Join returns the changes to a packet if rules on the way in and on the way out both make some: it
// is changed twice.
func Join(in, out pf.Scrub) pf.Scrub {
	both := overlay(in, out)
	both.MinTTL = max(in.MinTTL, out.MinTTL)
	if in.MaxMSS != 0 && out.MaxMSS != 0 {
		both.MaxMSS = min(in.MaxMSS, out.MaxMSS)
	}
	return both
}

// anchor tries the rules of an anchor, or of all anchors directly below it. It leaves out parts that
// earlier calls have tried.
func (w *walk) anchor(caller *pf.Ruleset, at string, index int, unsure bool) (matched, stop bool) {
	r := &caller.Rules[index]
	try := func(rs *pf.Ruleset, called string) (matched, stop bool) {
		if w.parts = r.Anchor.Only; w.parts == 0 {
			w.parts = pf.NATPart | pf.RDRPart | pf.ScrubPart | pf.FilterPart
		}
		for i := range index {
			if a := caller.Rules[i].Anchor; a != nil {
				if before := pathOf(a.Name, at, i); before == called || path.Base(before) == "*" && path.Dir(before) == path.Dir(called) {
					w.parts &^= a.Only
				}
			}
		}
		if w.parts == 0 {
			return false, false
		}
		return w.ruleset(rs, called, unsure)
	}
	called := pathOf(r.Anchor.Name, at, index)
	if r.Anchor.Body != nil {
		return try(r.Anchor.Body, called)
	}
	if path.Base(called) != "*" {
		if rs := w.Anchors[called]; rs != nil {
			return try(rs, called)
		}
		return false, false
	}
	var children []string
	for child := range w.Anchors {
		// an anchor without a name cannot be called by name
		if path.Dir(child) == path.Dir(called) && !strings.HasPrefix(path.Base(child), "_") {
			children = append(children, child)
		}
	}
	slices.Sort(children)
	for _, child := range children {
		inside, end := try(w.Anchors[child], child)
		matched = matched || inside
		if end {
			return matched, true
		}
	}
	return matched, false
}

// verdict is whether a packet matches a rule.
type verdict uint8

const (
	no verdict = iota
	yes
	maybe // for a fragment without the field of the condition
)

// matchesRule tries the conditions of a rule, in pf's order.
func (w *walk) matchesRule(r *pf.Rule, at string) verdict {
	if w.used[r] || foreign(r.User) || foreign(r.Group) ||
		r.On.Name != "" && !w.isOn(r.On, w.Port) ||
		r.Direction != pf.Both && r.Direction != w.Direction ||
		r.Family != 0 && r.Family != w.Family ||
		r.HasProto && r.Proto != w.Proto ||
		!w.isHost(r.From, w.Src, at) ||
		!w.isHost(r.To, w.Dst, at) ||
		!w.isRouted(r) {
		return no
	}
	transport := w.transport(r)
	if transport == no ||
		r.Fragment && w.Fragment == Whole ||
		r.HasTOS && r.TOS != w.TOS ||
		r.Probability != 0 && w.draw(r) >= r.Probability ||
		r.Tagged != "" && (r.Tagged == w.tag) == r.NotTagged ||
		r.ReceivedOn.Name != "" && !w.isOn(r.ReceivedOn, w.ReceivedOn) ||
		r.HasPrio && r.Prio != w.Prio {
		return no
	}
	return transport
}

// foreign reports whether a condition on the owner of a socket excludes packets without a socket,
// whose owner is `unknown`.
func foreign(o *pf.Owner) bool {
	if o == nil {
		return false
	}
	unknown := o.Lo == "unknown"
	return o.Op == pf.PortEqual && !unknown || o.Op == pf.PortNotEqual && unknown || o.Op > pf.PortNotEqual
}

// exhausted reports whether a limiter of a rule has no room for the packet: yes if the rule blocks
// it then, maybe if the rule does not match it then.
func (w *walk) exhausted(r *pf.Rule) verdict {
	if w.Exhausted == nil {
		return no
	}
	for _, l := range []struct {
		of string
		pf.Limiter
	}{{"state", r.StateLimiter}, {"source", r.SourceLimiter}} {
		if l.Limiter == (pf.Limiter{}) || !w.Exhausted(l.of, l.Limiter, w.Packet) {
			continue
		}
		if l.NoMatch {
			return maybe
		}
		return yes
	}
	return no
}

// transport tries the conditions of a rule on the header behind IP's.
func (w *walk) transport(r *pf.Rule) verdict {
	asksPorts := r.From.Port.Op != pf.AnyPort || r.To.Port.Op != pf.AnyPort
	asksFlags := r.Flags.Of != 0 && w.Proto == TCP
	if w.Fragment == LaterFragment {
		if asksPorts || asksFlags || r.HasICMP {
			return maybe
		}
		return yes
	}
	if asksFlags && w.Flags&r.Flags.Of != r.Flags.Set ||
		asksPorts && !(isPort(r.From.Port, w.SrcPort) && isPort(r.To.Port, w.DstPort)) ||
		r.HasICMP && r.ICMPType != w.ICMPType ||
		r.HasCode && r.ICMPCode != w.ICMPCode ||
		r.State != pf.NoState && !r.StateOpts.Sloppy && w.answer() {
		return no
	}
	return yes
}

func (w *walk) draw(r *pf.Rule) float64 {
	if w.Draw == nil {
		return 0
	}
	return w.Draw(r)
}

func (w *walk) isOn(i pf.Interface, port Port) bool {
	is := port.Name != "" && (i.Name == "any" || i.Name == port.Name || slices.Contains(port.Groups, i.Name))
	return is != i.Not
}

// isHost reports whether an endpoint matches an address. The address must have the family of the
// endpoint's, which is the rule's. See isRouted for routes.
func (w *walk) isHost(e pf.Endpoint, a netip.Addr, at string) bool {
	h := e.Host
	var is bool
	switch h.Kind {
	case pf.NoRoute, pf.URPFFailed:
		return true
	case pf.AnyHost:
		is = true
	case pf.Prefix:
		is = netip.PrefixFrom(h.Addr, h.Bits).Contains(a)
	case pf.Range:
		is = h.Addr.Compare(a) <= 0 && a.Compare(h.Last) <= 0
	case pf.InTable:
		is = contains(w.table(at, h.Name), a)
	case pf.Dynamic:
		if w.Addresses == nil {
			break
		}
		for _, prefix := range w.Addresses(h.Name, h.Modes) {
			if h.Bits >= 0 {
				prefix = netip.PrefixFrom(prefix.Addr(), min(h.Bits, prefix.Addr().BitLen()))
			}
			is = is || prefix.Contains(a)
		}
	}
	return is != e.Not
}

// isRouted reports whether a rule's conditions on routes hold.
func (w *walk) isRouted(r *pf.Rule) bool {
	kinds := []pf.HostKind{r.From.Host.Kind, r.To.Host.Kind}
	if !slices.Contains(kinds, pf.NoRoute) && !slices.Contains(kinds, pf.URPFFailed) {
		return true
	}
	var are Routes
	if w.Routes != nil {
		are = w.Routes(w.Packet)
	}
	holds := func(e pf.Endpoint, noRoute, failed bool) bool {
		switch e.Host.Kind {
		case pf.NoRoute:
			return noRoute != e.Not
		case pf.URPFFailed:
			return failed != e.Not
		}
		return true
	}
	return holds(r.From, are.SrcNoRoute, are.URPFFailed) && holds(r.To, are.DstNoRoute, false)
}

// table returns the contents of a table: the anchor's, or else the main ruleset's.
func (w *walk) table(at, name string) []pf.TableEntry {
	for _, p := range []string{path.Join(at, name), name} {
		if entries, ok := w.Tables[p]; ok {
			return entries
		}
		if entries, ok := w.tables[p]; ok {
			return entries
		}
	}
	return nil
}

// contains reports whether an address is in a table: the table's narrowest entry decides.
func contains(table []pf.TableEntry, a netip.Addr) bool {
	in, bits := false, -1
	for _, e := range table {
		if e.Prefix.Contains(a) && e.Prefix.Bits() > bits {
			in, bits = !e.Not, e.Prefix.Bits()
		}
	}
	return in
}

func isPort(p pf.Port, port uint16) bool {
	switch p.Op {
	case pf.PortEqual:
		return port == p.Lo
	case pf.PortNotEqual:
		return port != p.Lo
	case pf.PortLess:
		return port < p.Lo
	case pf.PortAtMost:
		return port <= p.Lo
	case pf.PortGreater:
		return port > p.Lo
	case pf.PortAtLeast:
		return port >= p.Lo
	case pf.PortInside:
		return p.Lo < port && port < p.Hi
	case pf.PortOutside:
		return port < p.Lo || port > p.Hi
	case pf.PortRange:
		return p.Lo <= port && port <= p.Hi
	}
	return true
}
