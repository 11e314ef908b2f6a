// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"bascule/pf"
	"bascule/rule"

	"github.com/cilium/ebpf"
)

// A Rule is a MAC rule of a port.
type Rule struct {
	Port uint32    // id
	Rule rule.Rule // its own Port is unused: devices can be renamed
}

// MaxRules is the number of rules that a bridge can have. The datapath has 16
// bits for a rule's number.
const MaxRules = 16384

// RuleStats count the frames that a rule matched, and their bytes.
type RuleStats = kernelRuleStats

// Rules returns the bridge's rules in the order in which they are evaluated, without
// rules of ports that have left.
func (b *Bridge) Rules() ([]Rule, error) {
	list, _, err := b.numberedRules()
	return list, err
}

// RuleOf returns the rule with a number from [Traced]; false if the rule has gone.
func (b *Bridge) RuleOf(number uint16) (Rule, bool, error) {
	list, numbers, err := b.numberedRules()
	if i := slices.Index(numbers, uint32(number)); i >= 0 {
		return list[i], true, err
	}
	return Rule{}, false, err
}

// numberedRules returns the bridge's rules with their numbers.
func (b *Bridge) numberedRules() (list []Rule, numbers []uint32, err error) {
	all, err := b.ruleTable()
	if err != nil {
		return nil, nil, err
	}
	for n := range all {
		if all[n].Turn != 0 && PortAt(&b.Config, all[n].Port) != nil {
			numbers = append(numbers, uint32(n))
		}
	}
	slices.SortFunc(numbers, func(n, o uint32) int { return cmp.Compare(all[n].Turn, all[o].Turn) })
	for _, n := range numbers {
		text, _, _ := bytes.Cut(all[n].Text[:], []byte{0})
		r, err := rule.ParseRule(strings.Fields(string(text)), anyPort)
		if err != nil {
			return nil, nil, fmt.Errorf("rule %d, %q: %w", n, text, err)
		}
		list = append(list, Rule{all[n].Port, r})
	}
	return list, numbers, nil
}

// ruleTable returns the bridge's rules by number, in the datapath's form.
func (b *Bridge) ruleTable() ([]kernelRule, error) {
	m, err := b.openTable(kernelMapRules)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return readArray[kernelRule](m)
}

// anyPort stands for the port in the text of a rule in the tables.
const anyPort = "PORT"

func printed(r Rule) string {
	r.Rule.Port = anyPort
	return r.Rule.String()
}

// RuleStats returns the counters of the bridge's rules, summed over the CPUs,
// in the order of Rules.
func (b *Bridge) RuleStats() ([]RuleStats, error) {
	_, numbers, err := b.numberedRules()
	if err != nil {
		return nil, err
	}
	m, err := b.openTable(kernelMapRuleCounters)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	list := make([]RuleStats, len(numbers))
	for i, n := range numbers {
		var perCPU []RuleStats
		if err := m.Lookup(n, &perCPU); err != nil {
			return nil, fmt.Errorf("counters of rule %d: %w", n, err)
		}
		for _, s := range perCPU {
			list[i].Frames += s.Frames
			list[i].Bytes += s.Bytes
		}
	}
	return list, nil
}

// settleRules makes next and t agree about rules. Ports get the flags of the rules that
// t brings. Rules of ports that next does not have are removed from t.
func (b *Bridge) settleRules(next *Config, t *Tables) error {
	if t.Rules == nil {
		left := false
		for _, p := range Ports(&b.Config) {
			left = left || p.Flags&(PortRulesIn|PortRulesOut) != 0 && PortAt(next, p.Id) == nil
		}
		if !left {
			return nil
		}
		list, err := b.Rules()
		if err != nil {
			return err
		}
		t.Rules = []Rule{}
		for _, r := range list {
			if PortAt(next, r.Port) != nil {
				t.Rules = append(t.Rules, r)
			}
		}
	}
	flagRules(next, t.Rules)
	return nil
}

// flagRules sets the flags that mark ports of c with rules.
func flagRules(c *Config, list []Rule) {
	for _, p := range Ports(c) {
		p.Flags &^= PortRulesIn | PortRulesOut
	}
	for _, r := range list {
		p := PortAt(c, r.Port)
		if r.Rule.Direction&rule.In != 0 {
			p.Flags |= PortRulesIn
		}
		if r.Rule.Direction&rule.Out != 0 {
			p.Flags |= PortRulesOut
		}
	}
}

// compiledRules are rules in the form of the datapath's tables.
type compiledRules struct {
	rules   []kernelRule     // by number; entry 0 is no rule, and its text identifies this set of rules
	lists   []kernelRuleList // followed by the masks for ARP
	keys    []rule.Key
	numbers []uint32 // for each key: turn and number

	added []uint32 // numbers of new rules, whose counters are zero
}

// ruleNumbers is the size of the range of rule numbers: a change can exchange all rules
// of a bridge for others.
const ruleNumbers = 2 * MaxRules

// ruleRoom returns the number of entries of a table for n rules. It leaves room for
// some more, because loaded programs keep their tables.
func ruleRoom(n int) uint32 {
	const least, most = 256, ruleNumbers + 1
	room := uint32(least)
	for int(room) < n {
		room *= 2
	}
	return min(room, most)
}

// compileRules makes tables of rules. Rules that are in had keep their numbers. No
// other rule gets a number that had uses.
func compileRules(list []Rule, had []kernelRule) (*compiledRules, error) {
	if len(list) > MaxRules {
		return nil, fmt.Errorf("%d rules are more than %d", len(list), MaxRules)
	}
	type same struct {
		port uint32
		text [len(kernelRule{}.Text)]uint8
	}
	numbers := map[same][]uint32{}
	for n, k := range had {
		if k.Turn != 0 {
			of := same{k.Port, k.Text}
			numbers[of] = append(numbers[of], uint32(n))
		}
	}
	for _, of := range numbers { // among equal rules, the first one keeps the counters
		slices.SortFunc(of, func(n, o uint32) int { return cmp.Compare(had[n].Turn, had[o].Turn) })
	}
	free := uint32(0)
	taken := func(n uint32) bool { return int(n) < len(had) && had[n].Turn != 0 }

	c := &compiledRules{rules: make([]kernelRule, 1, len(list)+1)}
	copy(c.rules[0].Text[:], fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()))
	plain := make([]rule.Rule, len(list))
	at := make([]uint32, len(list)) // the numbers of the rules
	for i, r := range list {
		// lists are distinguished by the name of the port, and here that is its id
		plain[i] = r.Rule
		plain[i].Port = strconv.FormatUint(uint64(r.Port), 10)
		k := kernelRule{Port: r.Port, Turn: uint16(i + 1), Tag: pf.TagNumber(r.Rule.Tag)}
		if r.Rule.Action == rule.Block {
			k.Blocks = 1
		}
		text := printed(r)
		if len(text) > len(k.Text) {
			return nil, fmt.Errorf("rule %q has more than %d bytes", text, len(k.Text))
		}
		copy(k.Text[:], text)
		if of := (same{k.Port, k.Text}); len(numbers[of]) > 0 {
			at[i], numbers[of] = numbers[of][0], numbers[of][1:]
		} else {
			for free++; taken(free); free++ {
			}
			at[i] = free
			c.added = append(c.added, free)
		}
		if n := int(at[i]) + 1; n > len(c.rules) {
			c.rules = append(c.rules, make([]kernelRule, n-len(c.rules))...)
		}
		c.rules[at[i]] = k
	}
	if len(list) > 0 { // a port without rules has an empty list
		c.lists = make([]kernelRuleList, ruleLists)
	}
	for _, l := range rule.Compile(plain) {
		id, err := strconv.ParseUint(l.Port, 10, 32)
		if err != nil {
			return nil, err // cannot happen: the name is made above
		}
		list := 2 * Slot(uint32(id)) // enum rule_direction
		if l.Direction == rule.Out {
			list++
		}
		k := &c.lists[list]
		k.Number, k.ArpAt = l.Number, uint32(len(c.lists))
		var arp []kernelRuleMask
		masks := 0
		for _, m := range l.Masks {
			// a field is compared whole or not at all, and the kind defines which
			// fields are compared
			mask := kernelRuleMask{Kind: uint16(m.Bits.Kind), First: uint16(m.First) + 1}
			if m.NeedsARP {
				arp = append(arp, mask)
				continue
			}
			k.Plain[masks] = mask
			masks++
		}
		k.Arp = uint32(len(arp))
		for _, mask := range arp {
			c.lists = append(c.lists, kernelRuleList{Plain: [len(k.Plain)]kernelRuleMask{mask}})
		}
		for key, n := range l.Entries {
			c.keys, c.numbers = append(c.keys, key), append(c.numbers, (n+1)<<ruleTurn|at[n])
		}
	}
	return c, nil
}

const (
	ruleTurn  = 16 // bits of RULE_TURN
	ruleLists = 2 * len(Config{}.Ports)
)

// bringRules returns the tables of rules of the next generation, whose configuration is
// c. They are made from list or, if that is nil, are the tables of b. The result is nil
// if there are no rules.
func (b *Bridge) bringRules(c *Config, list []Rule) (*compiledRules, error) {
	ruled := b.gen != "" && kernelFeature(b.Config.Features)&kernelFeatureFEATURE_RULES != 0
	if list == nil {
		if !ruled || kernelFeature(c.Features)&kernelFeatureFEATURE_RULES == 0 {
			return nil, nil
		}
		return b.readRules()
	}
	var had []kernelRule
	if ruled {
		var err error
		if had, err = b.ruleTable(); err != nil {
			return nil, err
		}
	}
	return compileRules(list, had)
}

// readRules returns the tables of rules of b.
func (b *Bridge) readRules() (*compiledRules, error) {
	c := &compiledRules{}
	var err error
	if c.rules, err = b.ruleTable(); err != nil {
		return nil, err
	}
	for name, read := range map[string]func(*ebpf.Map) error{
		kernelMapRuleLists: func(m *ebpf.Map) (err error) {
			c.lists, err = readArray[kernelRuleList](m)
			return err
		},
		kernelMapRuleNumbers: func(m *ebpf.Map) error {
			return eachOf(m, func(keys []rule.Key, numbers []uint32) error {
				c.keys, c.numbers = append(c.keys, keys...), append(c.numbers, numbers...)
				return nil
			})
		},
	} {
		m, err := b.openTable(name)
		if err == nil {
			err = read(m)
			m.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return c, nil
}

// store fills tables that no frame meets yet.
func (c *compiledRules) store(maps map[string]*ebpf.Map) error {
	err := errors.Join(
		writeArray(maps[kernelMapRules], c.rules),
		writeArray(maps[kernelMapRuleLists], c.lists))
	if err != nil {
		return fmt.Errorf("store the rules: %w", err)
	}
	if len(c.keys) > 0 {
		if err := putMany(maps[kernelMapRuleNumbers], c.keys, c.numbers); err != nil {
			return fmt.Errorf("store the rules' keys: %w", err)
		}
	}
	zero := make([]RuleStats, ebpf.MustPossibleCPU())
	for _, n := range c.added {
		if err := put(maps[kernelMapRuleCounters], n, zero); err != nil {
			return fmt.Errorf("counters of rule %d: %w", n, err)
		}
	}
	return nil
}

// rewriteRules gives the spare these rules or, if list is nil, the rules of b. It
// rewrites the tables only if their rules differ: the text of rule 0 identifies them.
func (g *generation) rewriteRules(b *Bridge, c *Config, list []Rule) error {
	own := g.coll.Maps[kernelMapRules]
	if list == nil {
		if kernelFeature(c.Features)&kernelFeatureFEATURE_RULES == 0 {
			return nil
		}
		var theirs, ours kernelRule
		if err := errors.Join(b.lookup(kernelMapRules, 0, &theirs), own.Lookup(uint32(0), &ours)); err != nil {
			return err
		}
		if theirs == ours {
			return nil
		}
	}
	next, err := b.bringRules(c, list)
	if err != nil {
		return err
	}
	fits := func(table string, n int) bool { return n <= int(g.coll.Maps[table].MaxEntries()) }
	if !fits(kernelMapRules, len(next.rules)) || !fits(kernelMapRuleLists, len(next.lists)) ||
		!fits(kernelMapRuleNumbers, len(next.keys)) {
		return errNoSpare
	}
	// Tables that a killed command leaves have no such text.
	if err := own.Put(uint32(0), kernelRule{}); err != nil {
		return err
	}
	if err := clearMap[rule.Key, uint32](g.coll.Maps[kernelMapRuleNumbers]); err != nil {
		return err
	}
	name := next.rules[0]
	next.rules[0] = kernelRule{}
	next.rules = append(next.rules, make([]kernelRule, int(own.MaxEntries())-len(next.rules))...)
	if err := next.store(g.coll.Maps); err != nil {
		return err
	}
	return own.Put(uint32(0), name)
}
