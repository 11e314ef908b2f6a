// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"bascule/datapath"
	"bascule/rule"
)

// A PortRule is a MAC rule of a port.
type PortRule struct {
	Bridge string
	Number int       // among the rules of its port, from 1, in the order of evaluation
	Rule   rule.Rule // its Port is the port's present name
	Frames uint64    // frames that matched the rule, whatever happened to them
	Bytes  uint64    // of these frames
}

// MaxRules is the number of rules that a bridge can have.
const MaxRules = datapath.MaxRules

// maxRuleFile is the maximum size of a file of rules in bytes, four times the size of MaxRules of
// the longest rules.
const maxRuleFile = MaxRules * 1024

// ParseRule parses a port's rule from the words of a command line. The error is a *[UsageError].
func ParseRule(words []string, port string) (rule.Rule, error) {
	r, err := rule.ParseRule(words, port)
	if err != nil {
		return r, usagef("rule", "%w", err)
	}
	return r, nil
}

// Rules returns the rules of a port, in the order of evaluation. If port is "", it returns the
// rules of the bridge; if bridge is "", it returns the rules of all bridges, by bridge.
func (s *Switch) Rules(bridge, port string) (list []PortRule, err error) {
	list = []PortRule{}
	err = s.each(showWhat("the rules", bridge), bridge, func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(r PortRule) bool { return r.Bridge == name })
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		if err := v.find("show the rules of "+name, port); err != nil {
			return err
		}
		rules, err := b.Rules()
		if err != nil {
			return err
		}
		stats, err := b.RuleStats()
		if err != nil {
			return err
		}
		count := map[uint32]int{}
		for i, r := range rules {
			count[r.Port]++
			r.Rule.Port = v.names[r.Port]
			if port == "" || port == r.Rule.Port {
				list = append(list, PortRule{name, count[r.Port], r.Rule, stats[i].Frames, stats[i].Bytes})
			}
		}
		return nil
	})
	return list, err
}

// AddRule appends a rule to the present ones. The notes are about things that may not be intended.
func (s *Switch) AddRule(bridge string, r rule.Rule) (notes []string, err error) {
	what := "add a rule to port " + r.Port + " of " + bridge
	return s.one(changeRules(what, bridge, func(c *draft, list []datapath.Rule) ([]datapath.Rule, error) {
		p, _, err := findMember(c, what, bridge, r.Port)
		if err != nil {
			return nil, err
		}
		c.warn(neverNotes([]rule.Rule{r})...)
		return append(list, datapath.Rule{Port: p.Id, Rule: r}), nil
	}), nil)
}

// DelRule removes the first rule that is equal to r.
func (s *Switch) DelRule(bridge string, r rule.Rule) error {
	what := "delete a rule of port " + r.Port + " of " + bridge
	_, err := s.one(changeRules(what, bridge, func(c *draft, list []datapath.Rule) ([]datapath.Rule, error) {
		p, _, err := findPort(c, what, bridge, r.Port)
		if err != nil {
			return nil, err
		}
		for i, have := range list {
			have.Rule.Port = r.Port
			if have.Port == p.Id && have.Rule.String() == r.String() {
				return slices.Delete(list, i, i+1), nil
			}
		}
		return nil, refused(what, fmt.Sprintf("it has no rule %q", r), fmt.Sprintf("see 'bascule rule show %s %s'", bridge, r.Port))
	}), nil)
	return err
}

// FlushRules removes the rules of a port, or of a bridge if port is "", and returns their number.
func (s *Switch) FlushRules(bridge, port string) (n int, err error) {
	what := "flush the rules of " + bridge
	_, err = s.one(changeRules(what, bridge, func(c *draft, list []datapath.Rule) ([]datapath.Rule, error) {
		kept, err := without(c, list, what, bridge, port)
		n = len(list) - len(kept)
		return kept, err
	}), nil)
	return n, err
}

// LoadRules replaces all rules of a bridge, or of one port, by the rules of a file. It loads all or
// none. Mistakes in the text are returned as [rule.Errors]. The notes are about things that may not
// be intended.
func (s *Switch) LoadRules(bridge, port, name string, file io.Reader) (notes []string, err error) {
	return s.one(loadRules(bridge, port, name, file))
}

func loadRules(bridge, port, name string, file io.Reader) (step, error) {
	what := "load rules of " + bridge
	text, err := io.ReadAll(io.LimitReader(file, maxRuleFile+1))
	if err != nil {
		return step{}, refused(what, err.Error(), "give a file that can be read")
	}
	if len(text) > maxRuleFile {
		return step{}, refused(what, fmt.Sprintf("%s has more than %d bytes", name, maxRuleFile), "give a file of rules")
	}
	rules, err := rule.ParseFile(name, bytes.NewReader(text), port)
	if err != nil {
		return step{}, badRules(what, err)
	}
	return changeRules(what, bridge, func(c *draft, list []datapath.Rule) ([]datapath.Rule, error) {
		next, err := without(c, list, what, bridge, port)
		if err != nil {
			return nil, err
		}
		ids, missing := map[string]uint32{}, map[string]bool{}
		for _, r := range rules {
			if ids[r.Port] == 0 && !missing[r.Port] {
				p, _, err := findMember(c, what, bridge, r.Port)
				if err != nil {
					missing[r.Port] = true
					continue
				}
				ids[r.Port] = p.Id
			}
			next = append(next, datapath.Rule{Port: ids[r.Port], Rule: r})
		}
		if len(missing) > 0 {
			return nil, badRules(what, missingPorts(name, string(text), rules, missing, bridge))
		}
		c.warn(neverNotes(rules)...)
		if n := len(list) - len(next); len(rules) == 0 && n > 0 {
			rules := "rules"
			if n == 1 {
				rules = "rule"
			}
			c.warn(fmt.Sprintf("%s has no rule: %d %s removed", name, n, rules))
		}
		return next, nil
	}), nil
}

// badRules is the refusal of a file: one line, with the whole list as its cause.
func badRules(what string, err error) error {
	return because(refused(what, err.Error(), "nothing was changed"), err)
}

// maxNotes is the maximum number of notes about rules that no frame can match.
const maxNotes = 3

func neverNotes(rules []rule.Rule) (notes []string) {
	more := 0
	for _, r := range rules {
		why := r.Never()
		switch {
		case why == "":
		case len(notes) == maxNotes:
			more++
		default:
			notes = append(notes, fmt.Sprintf("rule %q matches nothing: %s", r, why))
		}
	}
	if more > 0 {
		notes = append(notes, fmt.Sprintf("%d more rules match nothing", more))
	}
	return notes
}

// changeRules changes a bridge's rules.
func changeRules(what, bridge string, plan func(*draft, []datapath.Rule) ([]datapath.Rule, error)) step {
	return step{what, bridge, func(c *draft) error {
		were, err := c.rules()
		if err != nil {
			return failed(what, err)
		}
		list, err := plan(c, slices.Clone(were))
		if err != nil {
			return err
		}
		if len(list) > MaxRules {
			return refused(what, fmt.Sprintf("it would have %d rules, and no bridge can have more than %d", len(list), MaxRules), "flush some, or give rules that match more")
		}
		if !slices.EqualFunc(were, list, sameRule) {
			c.tables.Rules = append([]datapath.Rule{}, list...) // not nil, even without rules
		}
		return nil
	}}
}

// rules returns the bridge's rules as planned so far.
func (c *draft) rules() ([]datapath.Rule, error) {
	if c.tables.Rules != nil {
		return c.tables.Rules, nil
	}
	list, err := c.bridge.Rules()
	return slices.DeleteFunc(list, func(r datapath.Rule) bool { return datapath.PortAt(c.next, r.Port) == nil }), err
}

// sameRule reports whether two rules are the same, regardless of the names of their ports.
func sameRule(a, b datapath.Rule) bool {
	a.Rule.Port, b.Rule.Port = "", ""
	return a.Port == b.Port && a.Rule.String() == b.Rule.String()
}

// without returns the rules of a list without the port's. If port is "", it returns none.
func without(c *draft, list []datapath.Rule, what, bridge, port string) ([]datapath.Rule, error) {
	if port == "" {
		return nil, nil
	}
	p, _, err := findPort(c, what, bridge, port)
	if err != nil {
		return nil, err
	}
	var kept []datapath.Rule
	for _, r := range list {
		if r.Port != p.Id {
			kept = append(kept, r)
		}
	}
	return kept, nil
}

// maxMissing is the maximum number of lines with missing ports in an error, the same as for other
// errors of rule.ParseFile.
const maxMissing = 10

// missingPorts returns an error for each rule of a text whose port is missing. rules are the parsed
// text: one for each line that is neither blank nor a comment.
func missingPorts(name, text string, rules []rule.Rule, missing map[string]bool, bridge string) error {
	var list rule.Errors
	n := 0
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if first := strings.Trim(line, " \t\r"); first == "" || first[0] == '#' {
			continue
		}
		port := rules[n].Port
		n++
		if missing[port] && len(list) < maxMissing {
			list = append(list, rule.Error{
				File: name, Line: i + 1, Column: portColumn(line, port), Text: line,
				Msg: port + ": no port of bridge " + bridge + "; see 'bascule port show " + bridge + "'",
			})
		}
	}
	if list == nil {
		return errors.New("a rule's port is missing") // the rules do not belong to that text
	}
	return list
}

// portColumn returns the column of a rule's port: the first word after "on".
func portColumn(line, port string) int {
	at, on := 0, false
	for _, word := range strings.Fields(line) {
		at += strings.Index(line[at:], word)
		if on && word == port {
			return utf8.RuneCountInString(line[:at]) + 1
		}
		on = word == "on"
		at += len(word)
	}
	return 1
}
