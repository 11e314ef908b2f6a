// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"bascule/rule"

	"github.com/cilium/ebpf"
)

// A Rule is a MAC rule of a port.
type Rule struct {
	Port uint32    // id
	Rule rule.Rule // its own Port says nothing here: devices can be renamed
}

// MaxRules is the number of rules that a bridge can have. The datapath has 16
// bits for a rule's number.
const MaxRules = 16384

// RuleStats count the frames that a rule matched, and their bytes.
type RuleStats = kernelRuleStats

// Rules returns the bridge's rules in the order in which they are tried, but
// those of ports that have left.
func (b *Bridge) Rules() ([]Rule, error) {
	list, _, err := b.numberedRules()
	return list, err
}

// RuleOf returns the rule of a number, as [Traced] has it; false if it has gone.
func (b *Bridge) RuleOf(number uint16) (Rule, bool, error) {
	list, numbers, err := b.numberedRules()
	if i := slices.Index(numbers, uint32(number)); i >= 0 {
		return list[i], true, err
	}
	return Rule{}, false, err
}

// numberedRules returns the bridge's rules and the number of each.
func (b *Bridge) numberedRules() (list []Rule, numbers []uint32, err error) {
	m, err := b.openTable(kernelMapRules)
	if err != nil {
		return nil, nil, err
	}
	defer m.Close()
	all := make([]kernelRule, m.MaxEntries())
	indices := make([]uint32, len(all))
	if _, err := m.BatchLookup(new(ebpf.MapBatchCursor), indices, all, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil, fmt.Errorf("read the rules: %w", err)
	}
	for n := 1; n < len(all); n++ {
		p := PortAt(&b.Config, all[n].Port)
		if p == nil {
			continue
		}
		text, _, _ := bytes.Cut(all[n].Text[:], []byte{0})
		r, err := rule.ParseRule(strings.Fields(string(text)), anyPort)
		if err != nil {
			return nil, nil, fmt.Errorf("rule %d, %q: %w", n, text, err)
		}
		list, numbers = append(list, Rule{all[n].Port, r}), append(numbers, uint32(n))
	}
	return list, numbers, nil
}

// anyPort stands for the port where a rule is printed for the tables.
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
			return nil, err
		}
		for _, s := range perCPU {
			list[i].Frames += s.Frames
			list[i].Bytes += s.Bytes
		}
	}
	return list, nil
}

// tagNumber is the datapath's number of a tag; package pf makes the same of its
// name.
func tagNumber(name string) uint32 {
	if name == "" {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	return max(1, h.Sum32())
}

// settleRules makes next and t agree about rules: ports have the flags of
// those that t brings, and t leaves those of ports behind that next does not
// have.
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

// flagRules sets the flags of the ports of c that say which of them have rules.
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

// compiledRules are rules as the datapath's tables have them.
type compiledRules struct {
	rules   []kernelRule // by number; 0 is none's
	lists   []kernelRuleList
	masks   []kernelRuleMask // for ARP
	keys    []rule.Key
	numbers []uint32 // of keys
}

// compileRules makes tables of rules.
func compileRules(list []Rule) (*compiledRules, error) {
	if len(list) > MaxRules {
		return nil, fmt.Errorf("%d rules are more than %d", len(list), MaxRules)
	}
	c := &compiledRules{rules: make([]kernelRule, 1, len(list)+1)}
	plain := make([]rule.Rule, len(list))
	lists := uint32(1)
	for i, r := range list {
		lists = max(lists, 2*Slot(r.Port)+2)
		// lists are told apart by name, and here a port's is its id
		plain[i] = r.Rule
		plain[i].Port = strconv.FormatUint(uint64(r.Port), 10)
		k := kernelRule{Port: r.Port, Tag: tagNumber(r.Rule.Tag)}
		if r.Rule.Action == rule.Block {
			k.Blocks = 1
		}
		text := printed(r)
		if len(text) > len(k.Text) {
			return nil, fmt.Errorf("rule %q has more than %d bytes", text, len(k.Text))
		}
		copy(k.Text[:], text)
		c.rules = append(c.rules, k)
	}
	c.lists = make([]kernelRuleList, lists)
	for _, l := range rule.Compile(plain) {
		id, err := strconv.ParseUint(l.Port, 10, 32)
		if err != nil {
			return nil, err // it is one of ours
		}
		at := 2 * Slot(uint32(id)) // enum rule_direction
		if l.Direction == rule.Out {
			at++
		}
		k := &c.lists[at]
		k.Number, k.ArpAt = l.Number, uint32(len(c.masks))
		masks := 0
		for _, m := range l.Masks {
			// a field is compared whole or not at all, and the kind says which
			mask := kernelRuleMask{Kind: uint16(m.Bits.Kind), First: uint16(m.First) + 1}
			if m.NeedsARP {
				c.masks = append(c.masks, mask)
				continue
			}
			k.Plain[masks] = mask
			masks++
		}
		k.Arp = uint32(len(c.masks)) - k.ArpAt
		for key, n := range l.Entries {
			c.keys, c.numbers = append(c.keys, key), append(c.numbers, n+1)
		}
	}
	return c, nil
}

// store fills maps that no program runs with yet.
func (c *compiledRules) store(maps map[string]*ebpf.Map) error {
	err := errors.Join(
		writeArray(maps[kernelMapRules], c.rules),
		writeArray(maps[kernelMapRuleLists], c.lists),
		writeArray(maps[kernelMapRuleArpMasks], c.masks))
	if err != nil {
		return fmt.Errorf("store the rules: %w", err)
	}
	if len(c.keys) == 0 {
		return nil
	}
	if _, err := maps[kernelMapRuleNumbers].BatchUpdate(c.keys, c.numbers, nil); err != nil {
		return fmt.Errorf("store the rules' keys: %w", err)
	}
	return nil
}

// carryRuleStats gives the rules of list that the bridge has already their
// counters from there. Frames that are counted meanwhile are lost.
func (b *Bridge) carryRuleStats(list []Rule, g *generation) error {
	had, numbers, err := b.numberedRules()
	if err != nil {
		return err
	}
	from, err := b.openTable(kernelMapRuleCounters)
	if err != nil {
		return err
	}
	defer from.Close()
	type same struct {
		port uint32
		text string
	}
	of := func(r Rule) same { return same{r.Port, printed(r)} }
	at := map[same][]uint32{}
	for i, r := range had {
		at[of(r)] = append(at[of(r)], numbers[i])
	}
	for i, r := range list {
		k := of(r)
		if len(at[k]) == 0 {
			continue
		}
		var perCPU []RuleStats
		if err := from.Lookup(at[k][0], &perCPU); err != nil {
			return err
		}
		at[k] = at[k][1:]
		if err := g.coll.Maps[kernelMapRuleCounters].Put(uint32(i+1), perCPU); err != nil {
			return err
		}
	}
	return nil
}
