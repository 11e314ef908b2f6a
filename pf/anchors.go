// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxDepth is the greatest depth of calls of anchors, as in pf.
const maxDepth = 64

// A scope is a ruleset where it is called: the main ruleset, or an anchor's ruleset under the
// conditions of the call.
type scope struct {
	*Ruleset
	path    string
	number  uint16   // of the path in Program.Anchors
	options *Options // to which its rules refer
	call    *Rule    // rule that calls it; nil for the main ruleset
	around  *scope
	depth   int
	src     marks // conditions of the calls on addresses
	dst     marks
	parts   Part            // the parts of its rules that are tried; 0 means all
	claimed map[string]Part // the parts of the anchors at these paths that it has called separately
}

// An entry is a rule with a number. A call has up to two entries. One jumps, if the call has
// conditions that no field covers. The other gives the call's tag.
type entry struct {
	*Rule
	*scope        // scope whose conditions apply to the entry as well
	action Action // Match for a call that gives a tag
	anchor *scope // the anchor of the rule
	index  int    // in the anchor's Rules
	end    uint32 // 0: not known yet
}

// ask returns the entry's own condition on a field.
func (e *entry) ask(f *field) ask {
	if e.tags() {
		return ask{} // the scope has the conditions of the call
	}
	return f.of(e.Rule)
}

// tags reports whether the entry only gives its packets the tag of a call.
func (e *entry) tags() bool { return e.Action == CallAnchor && e.action == Match }

// flatten appends the rules of a scope to the entries. Rules of the anchors that it
// calls are appended where they are called.
func (c *compiler) flatten(s *scope) error {
	if s.depth > 0 && len(s.Ether) > 0 {
		return fmt.Errorf("anchor %q: ether rules are for the main ruleset", s.path)
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		if r.Never() || s.parts != 0 && s.parts&s.Part(i) == 0 {
			continue
		}
		var err error
		if r.Action == CallAnchor {
			err = c.callAnchor(s, i)
		} else {
			err = c.enter(entry{Rule: r, scope: s, action: r.Action, anchor: s, index: i})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *compiler) enter(e entry) error {
	if len(c.entries) == MaxRules {
		return fmt.Errorf("%v: one rule more than the limit of %d; the rules of an anchor count wherever it is called", e.Pos, MaxRules)
	}
	if e.Quick && e.Action != CallAnchor {
		e.end = uint32(len(c.entries)) + 1
	}
	c.entries = append(c.entries, e)
	return nil
}

// callAnchor appends the rules that the rule at an index of a scope calls.
func (c *compiler) callAnchor(s *scope, index int) error {
	r := &s.Rules[index]
	src, dst := c.addresses(r)
	call := scope{
		Ruleset: &Ruleset{}, path: s.path, number: s.number, options: s.options,
		call: r, around: s, depth: s.depth + 1,
		src: s.src.and(src), dst: s.dst.and(dst),
	}
	if call.depth > maxDepth {
		return fmt.Errorf("%v: anchor %q: anchors call each other more than %d deep", r.Pos, r.Anchor.Name, maxDepth)
	}
	start, jumps := len(c.entries), r.dynamic()
	if jumps {
		if err := c.enter(entry{Rule: r, scope: s, action: CallAnchor, anchor: s, index: index}); err != nil {
			return err
		}
	}
	if r.Tag != "" {
		if err := c.enter(entry{Rule: r, scope: &call, action: Match, anchor: s, index: index}); err != nil {
			return err
		}
	}
	for _, rs := range c.called(s, index) {
		// Anchors without rules, but with calls, could otherwise be called for ever.
		if c.calls++; c.calls > MaxRules {
			return fmt.Errorf("%v: anchor %q: more than %d calls of anchors", r.Pos, r.Anchor.Name, MaxRules)
		}
		inner := call
		inner.Ruleset, inner.path = rs.Ruleset, rs.path
		if inner.parts = s.partsOf(r.Anchor, rs.path); inner.parts == 0 {
			continue
		}
		if rs.loaded {
			inner.options = &rs.Options
		}
		var err error
		if inner.number, err = c.anchorNumber(rs.path); err != nil {
			return err
		}
		if inner.parts&FilterPart != 0 && c.whole(&inner) && !slices.Contains(c.out.Whole, rs.path) {
			c.out.Whole = append(c.out.Whole, rs.path)
		}
		if err := c.flatten(&inner); err != nil {
			return err
		}
	}
	end := uint32(len(c.entries))
	if jumps {
		if len(c.entries) == start+1 { // it would jump over nothing
			c.entries = c.entries[:start]
			return nil
		}
		c.entries[start].end = end
	}
	if r.Quick {
		for i := start; i < len(c.entries); i++ {
			if e := &c.entries[i]; e.end == 0 && e.action != Match {
				e.end = end
			}
		}
	}
	return nil
}

// whole reports whether the calls of a scope, one around the other, accept all packets. A call may
// be for some ports only, if these include all ports whose name or group is the scope's path, and
// there are any.
func (c *compiler) whole(s *scope) bool {
	for at := s; at.call != nil; at = at.around {
		r := *at.call
		on := r.On
		r.On = Interface{}
		if r.dynamic() || r.Direction != 0 || r.HasICMP || r.HasTOS || r.Fragment || r.User != nil || r.Group != nil || r.Flags != (TCPFlags{}) || !covers(&r, &Rule{}) {
			return false
		}
		if on == (Interface{}) {
			continue
		}
		owned := false
		for _, p := range c.in.Ports {
			if p.Is(s.path) {
				if owned = true; p.Is(on.Name) == on.Not {
					return false
				}
			}
		}
		if !owned {
			return false
		}
	}
	return true
}

// partsOf returns the parts of the anchor at a path that a call tries. It leaves out parts that
// FreeBSD's nat-anchor and its kin have tried.
func (s *scope) partsOf(a *Anchor, path string) Part {
	parts := allParts
	if a.Only != 0 {
		parts = a.Only
	}
	parts &^= s.claimed[path]
	if a.Only != 0 {
		if s.claimed == nil {
			s.claimed = map[string]Part{}
		}
		s.claimed[path] |= a.Only
	}
	return parts
}

// Part returns the part of the ruleset that the rule at an index is in.
func (r *Ruleset) Part(index int) (part Part) {
	rule := &r.Rules[index]
	kinds := func(list []Translation) (part Part) {
		for i := range list {
			part |= map[TranslationKind]Part{NatTo: NATPart, RdrTo: RDRPart, AfTo: FilterPart}[list[i].Kind]
		}
		return part
	}
	switch {
	case rule.Action == CallAnchor && rule.Anchor.Only != 0:
		return rule.Anchor.Only
	case rule.Action == CallAnchor:
		return FilterPart
	case len(rule.Translations) > 0:
		return kinds(rule.Translations)
	case rule.Action == Match && (rule.Tag == natDone || rule.Tag == rdrDone):
		return map[string]Part{natDone: NATPart, rdrDone: RDRPart}[rule.Tag]
	case rule.Action == Match && (rule.Scrub != Scrub{} || rule.Tag == scrubbedIn || rule.Tag == scrubbedOut):
		return ScrubPart
	}
	// the pass rule of a line that translates
	if next := index + 1; rule.Action == Pass && !rule.Quick && next < len(r.Rules) && r.Rules[next].Action == Match {
		if n := &r.Rules[next]; len(n.Translations) > 0 && n.Direction == rule.Direction && covers(rule, n) && covers(n, rule) {
			return kinds(n.Translations)
		}
	}
	return FilterPart
}

// A callee is a ruleset that can be called, and its path.
type callee struct {
	*Ruleset
	path   string
	loaded bool // by itself: its rules refer to its own options
}

// called returns the rulesets that the rule at an index of a scope calls.
func (c *compiler) called(s *scope, index int) []callee {
	a := s.Rules[index].Anchor
	if a.Name == "" {
		return []callee{{Ruleset: a.Body, path: unnamed(s.path, index)}}
	}
	path := anchorPath(s.path, a.Name)
	if parent, ok := strings.CutSuffix(path, "*"); ok && (parent == "" || strings.HasSuffix(parent, "/")) {
		return c.children[strings.TrimSuffix(parent, "/")]
	}
	if rs, ok := c.anchors[path]; ok {
		return []callee{rs}
	}
	return nil
}

// unnamed returns the path of the anchor without a name that the rule at an
// index of a ruleset calls.
func unnamed(path string, index int) string { return join(path, "_"+strconv.Itoa(index)) }

// collect records the rulesets that can be called by name: loaded ones, and ones between braces
// that no loaded one replaces.
func (c *compiler) collect() error {
	for path, rs := range c.in.Anchors {
		c.anchors[path] = callee{rs, path, true}
	}
	if err := c.bodies("", c.in.Main); err != nil {
		return err
	}
	for path, rs := range c.in.Anchors {
		if err := c.bodies(path, rs); err != nil {
			return err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(c.anchors)) {
		parent := path[:max(0, strings.LastIndexByte(path, '/'))]
		c.children[parent] = append(c.children[parent], c.anchors[path])
	}
	return nil
}

// bodies records the anchors between braces of a ruleset.
func (c *compiler) bodies(path string, rs *Ruleset) error {
	for i := range rs.Rules {
		r := &rs.Rules[i]
		if r.Action != CallAnchor || r.Anchor.Body == nil {
			continue
		}
		at := unnamed(path, i)
		if r.Anchor.Name != "" {
			at = anchorPath(path, r.Anchor.Name)
			if _, loaded := c.in.Anchors[at]; loaded {
				continue
			}
			if _, twice := c.anchors[at]; twice {
				return fmt.Errorf("%v: anchor %q: has rules between braces already; give one of the two another name", r.Pos, at)
			}
			c.anchors[at] = callee{Ruleset: r.Anchor.Body, path: at}
		}
		if err := c.bodies(at, r.Anchor.Body); err != nil {
			return err
		}
	}
	return nil
}

// anchorPath returns the path of an anchor that a ruleset names. It is below the
// ruleset's own path, unless the name begins with a slash or ../.
func anchorPath(path, name string) string {
	if strings.HasPrefix(name, "/") {
		return strings.Trim(name, "/")
	}
	for strings.HasPrefix(name, "../") {
		name = name[3:]
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
	}
	return join(path, strings.Trim(name, "/"))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "/" + name
}

// anchorNumber returns the index of a path among the program's paths.
func (c *compiler) anchorNumber(path string) (uint16, error) {
	n, ok := c.numbers[path]
	if !ok {
		if len(c.out.Anchors) > MaxRules {
			return 0, fmt.Errorf("anchor %q: one more than the %d that there may be", path, MaxRules)
		}
		n = uint16(len(c.out.Anchors))
		c.numbers[path] = n
		c.out.Anchors = append(c.out.Anchors, path)
	}
	return n, nil
}

// dynamic reports whether a call has conditions that no field covers, and that are tried for each
// packet.
func (r *Rule) dynamic() bool {
	asked := func(h Host) bool {
		return h.Kind == InTable || h.Kind == NoRoute || h.Kind == URPFFailed
	}
	return r.ReceivedOn.Name != "" || r.HasPrio || r.Tagged != "" || r.Probability > 0 && r.Probability < 1 ||
		asked(r.From.Host) || asked(r.To.Host)
}
