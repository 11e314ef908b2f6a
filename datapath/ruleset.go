// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"bascule/pf"

	"github.com/cilium/ebpf"
)

// rulesetMap is a map with the facts about pf's ruleset that differ from one ruleset to the next.
// Programs read them while they run, so other rules need no other programs. In bpf/ they are
// constants like the others; the loader makes programs read them here (see pruner). The map has the
// form of struct pf_config. Each set of programs has its own, which no pin refers to.
const rulesetMap = ".data.ruleset"

// rulesetFields are these facts: their places in struct pf_config, and their sizes. The place of limiters is not one of
// them: a ruleset without limiters would have programs with their code.
var rulesetFields = func() (list [][2]uintptr) {
	var c kernelPfConfig
	return append(list,
		[2]uintptr{unsafe.Offsetof(c.Ruleset), unsafe.Sizeof(c.Ruleset)},
		[2]uintptr{unsafe.Offsetof(c.Rules), unsafe.Sizeof(c.Rules)},
		[2]uintptr{unsafe.Offsetof(c.Groups), unsafe.Sizeof(c.Groups)},
		[2]uintptr{unsafe.Offsetof(c.EtherRules), unsafe.Sizeof(c.EtherRules)})
}()

// compiledIn returns the part of a configuration that is compiled into programs.
func compiledIn(c *kernelConfig) kernelConfig {
	part := *c
	bytes := bytesOf(&part.Pf)
	for _, f := range rulesetFields {
		clear(bytes[f[0]:][:f[1]])
	}
	return part
}

// rulesetSpec is the specification of rulesetMap for a configuration.
func rulesetSpec(c *Config) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: rulesetMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(c.Pf)), MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: slices.Clone(bytesOf(&c.Pf))}},
	}
}

// moved returns the facts about the ruleset as fields that are not among the constants.
func (o *object) moved() (list []moved) {
	pf := int64(o.spec.Variables[kernelVarCfg].Offset) + int64(unsafe.Offsetof(kernelConfig{}.Pf))
	for _, f := range rulesetFields {
		list = append(list, moved{from: pf + int64(f[0]), size: int64(f[1]), in: rulesetMap, to: int64(f[0])})
	}
	return list
}

// largeRuleset is the number of words from which a ruleset is large. A set of programs with tables
// of its own for so many rules is not kept: it would double the memory for rules.
const largeRuleset = 4 << 20

// largeRules reports whether the bridge's ruleset or the next one is large, or there is none.
func (b *Bridge) largeRules(p *PF) bool {
	if !b.PFLoaded() || p.Program == nil || p.Program.Words() >= largeRuleset {
		return true
	}
	m, err := b.openTable(kernelMapPfWords)
	if err != nil {
		return true
	}
	defer m.Close()
	return m.MaxEntries() >= largeRuleset
}

// The room that tables of pf's rules have for more.
const (
	rulesRoom = 64
	wordsRoom = 4096
)

// roomFor returns the number of entries of a table for n entries of a ruleset. It leaves room for more,
// because loaded programs keep their tables.
func roomFor(n, more int) int { return n + n/4 + more }

// fits reports whether tables of rules, and their counters, are large enough for a ruleset.
func (p *PF) fits(maps map[string]*ebpf.Map) bool {
	for name, n := range map[string]int{
		kernelMapPfWords: p.Program.Words(), kernelMapPfNetworks: len(p.Program.Networks), kernelMapPfRules: len(p.Program.Rules),
		kernelMapPfEthers: len(p.Program.Ether), pfText: textPages(p.Text),
		kernelMapPfRuleStats: len(p.Program.Rules), kernelMapPfRuleUse: len(p.Program.Rules),
	} {
		if int(maps[name].MaxEntries()) < n {
			return false
		}
	}
	return true
}

// rewritePF gives the spare's own tables of pf the rules of the change or, if it brings none, the
// rules of b.
//
// The counters of rules belong to the rules. If these stay, both sets of programs must count in the
// same table. If others come, the two sets must have a table each: a frame in the former programs
// counts for a former rule. The spare fits only changes of one kind, therefore.
func (g *generation) rewritePF(b *Bridge, c *Config, t Tables) error {
	if !loadedPF(c) {
		return nil
	}
	m := &making{Config: c, tables: t, was: &b.Config}
	from := map[string]*ebpf.Map{} // tables of rules that b has for itself
	defer func() { closeAll(from) }()
	for _, table := range pinned(c) {
		if !table.pf() || table.life != lifeBridge {
			continue
		}
		there, err := b.openTable(table.name)
		if err != nil {
			return err
		}
		own := g.coll.Maps[table.name]
		same, err := sameMap(there, own)
		if err == nil && !same && table.ruleset && t.PF == nil {
			from[table.name] = there
			continue
		}
		anew := table.anew != nil && table.anew(m)
		other := false
		if err == nil && !anew {
			other, err = b.resize(table, there, table.count(m), t)
		}
		there.Close()
		if err != nil {
			return err
		}
		if anew == same || other {
			return errNoSpare
		}
	}
	if err := g.openOwn(kernelMapMemory, rulesetMap); err != nil {
		return err
	}
	if own := g.coll.Maps[rulesetMap]; own != nil {
		if err := putBytes(own, bytesOf(new(uint32)), bytesOf(&c.Pf)); err != nil {
			return fmt.Errorf("the ruleset: %w", err)
		}
	}
	switch {
	case t.PF != nil:
		if !t.PF.fits(g.coll.Maps) {
			return errNoSpare
		}
		if err := g.forgetRules(); err != nil {
			return err
		}
		if err := clearMap[kernelPfPrefix, kernelPfNetwork](g.coll.Maps[kernelMapPfNetworks]); err != nil {
			return err
		}
		if err := t.PF.store(g.coll.Maps); err != nil {
			return err
		}
		if !t.PF.Same {
			if err := g.countAnew(t.PF.Counts); err != nil {
				return err
			}
		}
		a, err := g.addresses(c)
		if err != nil {
			return err
		}
		return a.fillAll(t.PF.Fill)
	case len(from) > 0:
		if err := g.forgetRules(); err != nil {
			return err
		}
		return g.copyRules(from)
	}
	return nil
}

// sameMap reports whether two descriptors are of one map.
func sameMap(m, o *ebpf.Map) (bool, error) {
	mi, err := m.Info()
	if err != nil {
		return false, err
	}
	oi, err := o.Info()
	if err != nil {
		return false, err
	}
	mid, ok := mi.ID()
	oid, _ := oi.ID()
	return ok && mid == oid, nil
}

// copyRules gives the spare the rules of other tables.
func (g *generation) copyRules(from map[string]*ebpf.Map) error {
	for name, there := range from {
		if g.coll.Maps[name].MaxEntries() < there.MaxEntries() {
			return errNoSpare
		}
	}
	for name, there := range from {
		own := g.coll.Maps[name]
		var err error
		switch name {
		case kernelMapPfNetworks:
			if err = clearMap[kernelPfPrefix, kernelPfNetwork](own); err == nil {
				err = copyHash[kernelPfPrefix, kernelPfNetwork](own, there)
			}
		case kernelMapPfRules:
			var rules []kernelPfRule
			if rules, err = readArray[kernelPfRule](there); err == nil {
				err = writeArray(own, rules)
			}
		case kernelMapPfEthers:
			var rules []pf.CompiledEther
			if rules, err = readArray[pf.CompiledEther](there); err == nil {
				err = writeArray(own, rules)
			}
		default:
			err = copyArray(own, there)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", name, err)
		}
	}
	return nil
}

// forgetRules makes the spare forget which rules match packets, and which networks an address is in.
func (g *generation) forgetRules() error {
	const part = 1 // MEMORY_PF of bpf/maps.h
	m := g.coll.Maps[kernelMapMemory]
	if m == nil || m.MaxEntries() <= part { // it judges no packets
		return nil
	}
	key, zero := uint32(part), make([]byte, int(unsafe.Sizeof(kernelMemory{}))*ebpf.MustPossibleCPU())
	if err := putBytes(m, bytesOf(&key), zero); err != nil {
		return fmt.Errorf("forget rules: %w", err)
	}
	return nil
}

// countAnew makes the counters of the spare's rules begin.
func (g *generation) countAnew(counts []PFRuleStats) error {
	use := g.coll.Maps[kernelMapPfRuleUse]
	if err := writeArray(use, make([]kernelPfRuleUse, use.MaxEntries())); err != nil {
		return fmt.Errorf("write %s: %w", kernelMapPfRuleUse, err)
	}
	return beginCounts(g.coll.Maps[kernelMapPfRuleStats], counts)
}

// openOwn opens maps of the programs that have no pin, by their names. A map that no pinned program
// uses is not found.
func (g *generation) openOwn(names ...string) error {
	seen := map[ebpf.MapID]bool{}
	for _, p := range g.coll.Programs {
		info, err := p.Info()
		if err != nil {
			return err
		}
		ids, _ := info.MapIDs()
		for _, id := range ids {
			if seen[id] {
				continue
			}
			seen[id] = true
			m, err := ebpf.NewMapFromID(id)
			if errors.Is(err, os.ErrPermission) {
				return errNoSpare
			}
			if err != nil {
				return err
			}
			mi, err := m.Info()
			if err != nil {
				m.Close()
				return err
			}
			if slices.Contains(names, mi.Name) && g.coll.Maps[mi.Name] == nil {
				g.coll.Maps[mi.Name] = m
				continue
			}
			m.Close()
		}
	}
	return nil
}

// repinConfig pins a configuration in the spare's folder, instead of the configuration that the
// programs were loaded with. They differ in the facts about the ruleset.
func (b *Bridge) repinConfig(c *Config) error {
	m, err := createMap("config", ebpf.Array, unsafe.Sizeof(c.kernelConfig), 1)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Put(uint32(0), &c.kernelConfig); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if err := m.Freeze(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	path := b.pin(sparePin, configPin)
	if err := os.Remove(path); err != nil {
		return err
	}
	return m.Pin(path)
}
