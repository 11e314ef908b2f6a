// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bascule/datapath"
	"bascule/pf"
)

// pfStored is the part of a bridge's pf that is kept beside the tables of its programs: the rules
// as text, with files included and host names resolved.
type pfStored struct {
	Stay    bool              `json:"stay_disabled,omitempty"` // pf was disabled by -d: loading does not enable it
	Debug   string            `json:"debug,omitempty"`         // the level set by -x
	Main    string            `json:"main"`
	Anchors map[string]string `json:"anchors,omitempty"` // the rulesets loaded into them, by path
	Tables  []*pfStoredTable  `json:"tables,omitempty"`
	// Ports has, by id, the names that the rules are compiled for: a port's own, followed by
	// the groups of its interface. A space at the end means that pf does not filter the port.
	Ports map[uint32]string `json:"ports"`
	// Dynamic has the addresses that the rules are compiled with, for devices whose addresses
	// may change. The keys are name and modes, separated by colons.
	Dynamic map[string][]netip.Prefix `json:"dynamic,omitempty"`
	// Uncalled are the anchors of plugs whose rules are not evaluated, because a change was
	// forced.
	Uncalled []string `json:"uncalled,omitempty"`
	// Pools has, by number, a checksum of the contents of each table that a pool in the rules
	// refers to. The rules are compiled with these contents.
	Pools map[int]uint64 `json:"pools,omitempty"`
	// Labels has the labels of the rules in all rulesets that states refer to.
	Labels []pfLabels `json:"labels,omitempty"`
}

// pfLabels has the labels of the rules in rulesets whose labels are the same.
type pfLabels struct {
	Rulesets []uint16         `json:"rulesets"` // their numbers in the datapath
	Rules    map[int][]string `json:"rules"`    // by the number of the rule there
}

// keepLabels stores the labels of the rules in a ruleset with a new number, and removes the labels
// of rulesets that no state refers to.
func (d *pfConfig) keepLabels(b *datapath.Bridge, number uint16, p *pf.Program) error {
	noted := func(l pfLabels) bool { return slices.Contains(l.Rulesets, number) }
	if !d.other && slices.ContainsFunc(d.Labels, noted) {
		return nil
	}
	now := map[int][]string{}
	for i, ref := range p.Source {
		if labels := ref.Rule.AllLabels(); labels != nil {
			now[i] = labels
		}
	}
	var used map[uint16]bool
	if len(d.Labels) > 0 {
		var err error
		if used, err = b.StateRulesets(); err != nil {
			return err
		}
	}
	kept := d.Labels
	d.Labels = nil
	for _, l := range kept {
		l.Rulesets = slices.DeleteFunc(slices.Clone(l.Rulesets), func(n uint16) bool { return n == number || !used[n] })
		if len(now) > 0 && maps.EqualFunc(l.Rules, now, slices.Equal) {
			l.Rulesets, now = append(l.Rulesets, number), nil
		}
		if len(l.Rulesets) > 0 {
			d.Labels = append(d.Labels, l)
		}
	}
	if len(now) > 0 {
		d.Labels = append(d.Labels, pfLabels{[]uint16{number}, now})
	}
	return nil
}

// keepCounts returns the initial counters of a program's rules for `set keepcounters`: the
// counters of the rule with the same text in the same anchor. If several rules have the same text,
// the n-th gets the counters of the n-th. Packets between this look and the load are not counted.
func (d *pfConfig) keepCounts(b *datapath.Bridge, p *pf.Program) ([]datapath.PFRuleStats, error) {
	if !d.other || !d.main.Options.KeepCounters || !b.PFLoaded() {
		return nil, nil
	}
	before, err := newPFView(b)
	if err != nil {
		return nil, err
	}
	traffic, err := b.PFTraffic()
	if err != nil {
		return nil, err
	}
	type place struct{ anchor, rule string }
	of := func(ref pf.RuleRef) place { return place{ref.Anchor, ref.Rule.String()} }
	had := map[place][]datapath.PFRuleStats{}
	for i, ref := range before.rules[:min(len(before.rules), len(traffic.Rules))] {
		had[of(ref)] = append(had[of(ref)], traffic.Rules[i])
	}
	counts := make([]datapath.PFRuleStats, len(p.Source))
	for i, ref := range p.Source {
		if at := of(ref); len(had[at]) > 0 {
			counts[i], had[at] = had[at][0], had[at][1:]
		}
	}
	return counts, nil
}

// pfStoredTable is a table; its entries are in the datapath.
type pfStoredTable struct {
	Anchor   string `json:"anchor,omitempty"`
	Name     string `json:"name"`
	Number   int    `json:"number"`
	Defined  bool   `json:"defined,omitempty"` // by a file or -T; other tables are only named by rules
	Const    bool   `json:"const,omitempty"`
	Persist  bool   `json:"persist,omitempty"`
	Counters bool   `json:"counters,omitempty"`
	Cleared  int64  `json:"cleared"` // Unix time in seconds
}

// pfConfig is a bridge's configuration of pf.
type pfConfig struct {
	pfStored
	main    *pf.Ruleset            // Main, parsed
	anchors map[string]*pf.Ruleset // Anchors, parsed

	loaded  bool // the bridge has it
	enabled bool
	other   bool // the rules differ from the bridge's
	removed bool // pf will be removed
	fill    []datapath.TableFill
	freed   uint64                     // numbers of tables that are no longer used, as bits
	uses    map[*pfStoredTable]*pfUses // of tables that rules refer to
	check   bool                       // only a check, without a bridge
	alone   bool                       // only pf changes
	forced  bool                       // rules of plugs may remain without a call
	came    map[string]string          // the rules of plugs before the change, by their anchor
}

// pfUses counts the rules that refer to a table.
type pfUses struct {
	rules   int
	anchors bool // some are in anchors
}

// pfParse parses the stored text, which has no names to look up.
func pfParse(text string) (*pf.Ruleset, error) {
	set, err := pf.Parse("pf", []byte(text), pf.Source{Kept: true})
	if err != nil {
		return nil, fmt.Errorf("read the rules that are loaded: %w", err)
	}
	return set, nil
}

// readPF returns a bridge's pf. If the bridge has none, the rules pass everything.
func readPF(b *datapath.Bridge) (*pfConfig, error) {
	text, err := b.PFText()
	if err != nil {
		return nil, err
	}
	return parsePF(b, text)
}

// parsePF does the same as readPF, with the stored text.
func parsePF(b *datapath.Bridge, text []byte) (*pfConfig, error) {
	d := &pfConfig{main: &pf.Ruleset{}, anchors: map[string]*pf.Ruleset{}}
	if !b.PFLoaded() {
		d.Anchors = map[string]string{}
		return d, nil
	}
	d.loaded, d.enabled = true, b.PFEnabled()
	var err error
	if d.pfStored, err = parseStored(text); err != nil {
		return nil, err
	}
	if d.main, err = pfParse(d.Main); err != nil {
		return nil, err
	}
	for path, text := range d.Anchors {
		if d.anchors[path], err = pfParse(text); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// readStored returns the stored part of a bridge's pf.
func readStored(b *datapath.Bridge) (stored pfStored, err error) {
	text, err := b.PFText()
	if err != nil {
		return stored, err
	}
	return parseStored(text)
}

func parseStored(text []byte) (stored pfStored, err error) {
	if err := json.Unmarshal(text, &stored); err != nil {
		return stored, fmt.Errorf("read the former settings of pf: %w", err)
	}
	if stored.Anchors == nil {
		stored.Anchors = map[string]string{}
	}
	return stored, nil
}

// changePF changes only pf of a bridge.
func (s *Switch) changePF(what, bridge string, plan func(*draft, *pfConfig) error) error {
	return s.change(what, bridge, func(c *draft) error {
		d, err := readPF(c.bridge)
		if err != nil {
			return failed(what, err)
		}
		d.alone, d.forced, d.came = true, s.force, map[string]string{}
		for path, text := range d.Anchors {
			if strings.HasPrefix(path, PlugAnchor+"/") {
				d.came[path] = text
			}
		}
		tables := d.plugTables()
		if err := plan(c, d); err != nil {
			return err
		}
		for _, t := range tables {
			if d.findDefined(t.Anchor, t.Name) == nil && !d.forced {
				return refused(what, "table "+t.Name+" would go, which rules of a plugged port name", "define it in the rules of the bridge, or add --force")
			}
		}
		c.pf = d
		return nil
	})
}

// planPF compiles the bridge's rules for the ports that the bridge will have. It does nothing for a
// bridge without pf, or if the rules' ports and addresses stay the same.
func (c *draft) planPF(what string) error {
	d := c.pf
	if d == nil && !c.bridge.PFLoaded() {
		return nil
	}
	given := d != nil
	var err error
	if !given {
		if d, err = readPF(c.bridge); err != nil {
			return failed(what, err)
		}
	}
	devices, err := links()
	if err != nil {
		return failed(what, err)
	}
	owned, err := c.allOwners()
	if err != nil {
		return failed(what, err)
	}
	ports, err := pfPortsFor(devices, c.bridge, c.next, owned, d.saysEgress())
	if err != nil {
		return failed(what, err)
	}
	if !given && !c.recompile {
		same, err := d.poolsHold(c.bridge)
		if err != nil {
			return failed(what, err)
		}
		if same && maps.Equal(ports.said, d.Ports) && !d.moved() {
			return nil
		}
	}
	d.Ports = ports.said
	c.next.Flags &^= uint32(datapath.BridgePF)
	if d.removed {
		if err := c.checkPlugs(what, d, nil); err != nil {
			return err
		}
		c.tables.PF = &datapath.PF{}
		return nil
	}
	if d.enabled {
		c.next.Flags |= uint32(datapath.BridgePF)
	}
	profiles, err := c.bridge.PFProfiles()
	if err != nil {
		return failed(what, err)
	}
	program, err := d.compile(c.bridge, ports.list, profiles)
	if err != nil {
		return notCompiled(what, err)
	}
	if err := c.checkPlugs(what, d, program); err != nil {
		return err
	}
	limits := d.limits()
	if err := d.checkLimits(what, c.bridge); err != nil {
		return err
	}
	if err := d.keepLabels(c.bridge, c.bridge.NextRuleset(program, !d.other), program); err != nil {
		return failed(what, err)
	}
	counts, err := d.keepCounts(c.bridge, program)
	if err != nil {
		return failed(what, err)
	}
	text, err := json.Marshal(&d.pfStored)
	if err != nil {
		return failed(what, err)
	}
	c.tables.PF = &datapath.PF{
		Program: program, Same: !d.other, Counts: counts, Text: text,
		StatesMax: limits[pf.LimitStates], NodesMax: limits[pf.LimitSrcNodes], FragmentsMax: limits[pf.LimitFrags], TableEntries: limits[pf.LimitTableEntries],
		Fill: d.fill, Free: d.freed,
	}
	c.tables.PF.LogInterface = ports.logged(d.main.Options.LogInterface)
	return nil
}

// checkLimits checks the limits of tables, anchors and table entries. If b is nil, all tables are
// empty.
func (d *pfConfig) checkLimits(what string, b *datapath.Bridge) error {
	if err := d.checkTables(what); err != nil {
		return err
	}
	limits, anchors := d.limits(), 0
	for path := range d.rulesets() {
		if path != "" && !strings.HasPrefix(path, "_") && !strings.Contains(path, "/_") {
			anchors++
		}
	}
	if n := limits[pf.LimitAnchors]; uint32(anchors) > n {
		return refused(what, fmt.Sprintf("there would be %d anchors, and the limit is %d", anchors, n), "use fewer, or set limit anchors")
	}
	if err := d.checkEntries(b, limits[pf.LimitTableEntries]); err != nil {
		return refused(what, err.Error(), "set limit table-entries, or list fewer")
	}
	return nil
}

// checkTables checks the limit of tables.
func (d *pfConfig) checkTables(what string) error {
	if n := min(d.limits()[pf.LimitTables], pf.MaxTables); uint32(len(d.Tables)) > n {
		return refused(what, fmt.Sprintf("there would be %d tables, and the limit is %d", len(d.Tables), n), "use fewer; no bridge can have more than 64")
	}
	return nil
}

// checkEntries checks the limit of entries for the new contents of tables. If tables exceed the
// limit already, it only applies to later additions.
func (d *pfConfig) checkEntries(b *datapath.Bridge, limit uint32) error {
	more, filled := 0, uint64(0)
	for _, f := range d.fill {
		more += len(f.Entries)
		filled |= 1 << f.Table
	}
	if more == 0 {
		return nil
	}
	if b != nil && b.PFLoaded() {
		counts, err := b.TableCounts()
		if err != nil {
			return err
		}
		for _, t := range d.Tables {
			if filled&(1<<t.Number) == 0 {
				more += counts[t.Number]
			}
		}
	}
	if more > int(limit) {
		return fmt.Errorf("there would be %d addresses in tables, and the limit is %d", more, limit)
	}
	return nil
}

// limits returns the present limits.
func (d *pfConfig) limits() [pf.LimitCount]uint32 {
	limits := pf.DefaultLimits()
	for i, l := range d.main.Options.Limits {
		if l.Given {
			limits[i] = l.Value
		}
	}
	return limits
}

// entriesOf returns the entries that the table with a number has or will have. If b is nil, tables
// are empty.
func (d *pfConfig) entriesOf(b *datapath.Bridge, number int) ([]pf.TableEntry, error) {
	for _, f := range d.fill {
		if f.Table != number {
			continue
		}
		// in the order in which the bridge will list them
		list := slices.Clone(f.Entries)
		slices.SortStableFunc(list, func(a, b pf.TableEntry) int {
			return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
		})
		return slices.CompactFunc(list, func(a, b pf.TableEntry) bool { return a.Prefix == b.Prefix }), nil
	}
	if b == nil || !b.PFLoaded() {
		return nil, nil
	}
	return b.TableEntries(number)
}

// sumOf returns a checksum of entries, which changes with them.
func sumOf(entries []pf.TableEntry) uint64 {
	sum := fnv.New64a()
	for _, e := range entries {
		fmt.Fprintln(sum, e.Not, e.Prefix)
	}
	return sum.Sum64()
}

// poolsHold reports whether the tables of pools have the contents that the rules were compiled
// with.
func (d *pfConfig) poolsHold(b *datapath.Bridge) (bool, error) {
	for number, was := range d.Pools {
		entries, err := d.entriesOf(b, number)
		if err != nil || sumOf(entries) != was {
			return false, err
		}
	}
	return true, nil
}

// compile makes the datapath's tables of the rules, with numbers for the tables that they refer to.
// b has these tables; it is nil if there is no bridge.
func (d *pfConfig) compile(b *datapath.Bridge, ports []pf.CompilePort, profiles []pf.Profile) (*pf.Program, error) {
	if err := d.settleTables(); err != nil {
		return nil, err
	}
	d.Dynamic, d.Pools = map[string][]netip.Prefix{}, nil
	return pf.Compile(pf.Input{
		Main: d.main, Anchors: d.anchors, Ports: ports, Profiles: profiles, Check: d.check,
		Table: func(anchor, name string) (int, error) {
			t, err := d.meant(anchor, name)
			if err != nil {
				return 0, err
			}
			return t.Number, nil
		},
		Entries: func(number int) ([]pf.TableEntry, error) {
			entries, err := d.entriesOf(b, number)
			if d.Pools == nil {
				d.Pools = map[int]uint64{}
			}
			d.Pools[number] = sumOf(entries)
			return entries, err
		},
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) {
			list, err := pfAddresses(name, modes, nil, nil)
			d.Dynamic[strings.Join(append([]string{name}, modes...), ":")] = list
			return list, err
		},
	})
}

// notCompiled returns the error for rules that cannot be compiled. For words that the datapath does
// not implement, it has their places, as for mistakes.
func notCompiled(what string, err error) error {
	if list := pf.ErrorList(nil); errors.As(err, &list) {
		return list
	}
	return refused(what, err.Error(), "nothing was changed")
}

// ErrPFEnabled means that pf is already enabled.
var ErrPFEnabled = errors.New("pf already enabled")

// EnablePF enables or disables pf of a bridge. While it is disabled, all frames pass.
func (s *Switch) EnablePF(bridge string, on bool) error {
	what := "disable pf of " + bridge
	if on {
		what = "enable pf of " + bridge
	}
	return s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
		switch {
		case on && d.enabled:
			return because(refused(what, ErrPFEnabled.Error(), "see 'bascule pfctl -b "+bridge+" -si'"), ErrPFEnabled)
		case !on && !d.enabled:
			return refused(what, "pf not enabled", "see 'bascule pfctl -b "+bridge+" -si'")
		}
		d.enabled, d.Stay = on, !on
		return nil
	})
}

// SetPFDebug sets the level that -s info shows. It has no other effect.
func (s *Switch) SetPFDebug(bridge, level string) error {
	return s.changePF("set the debug level of pf of "+bridge, bridge, func(_ *draft, d *pfConfig) error {
		d.Debug = level
		return nil
	})
}
