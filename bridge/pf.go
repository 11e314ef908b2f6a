// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pfStored is the part of a bridge's pf that is kept beside the tables of its
// programs: the rules as text, with files read and names of hosts resolved.
type pfStored struct {
	Stay    bool              `json:"stay_disabled,omitempty"` // pf was disabled by -d: loading does not enable it
	Debug   string            `json:"debug,omitempty"`         // the level that -x set
	Main    string            `json:"main"`
	Anchors map[string]string `json:"anchors,omitempty"` // the rulesets that were loaded into them, by path
	Tables  []*pfStoredTable  `json:"tables,omitempty"`
	// Ports has, by id, the names that the rules are compiled for: a port's own, and those
	// of its interface's groups behind it.
	Ports map[uint32]string `json:"ports"`
	// Dynamic has, for devices whose addresses may change, the addresses that the
	// rules are compiled with. The keys are name and modes, with colons between.
	Dynamic map[string][]netip.Prefix `json:"dynamic,omitempty"`
	// Pools has, by number, a sum of what is in each table that a pool of the rules names: the
	// rules are compiled with it.
	Pools map[int]uint64 `json:"pools,omitempty"`
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
	Cleared  int64  `json:"cleared"` // seconds since 1970
}

// pfConfig is the configuration of pf of a bridge.
type pfConfig struct {
	pfStored
	main    *pf.Ruleset            // Main, parsed
	anchors map[string]*pf.Ruleset // Anchors, parsed

	loaded  bool // the bridge has it
	enabled bool
	other   bool // other rules than the bridge has
	removed bool // there is to be no pf at all
	fill    []datapath.TableFill
	freed   uint64                     // numbers of tables that are not used any more
	uses    map[*pfStoredTable]*pfUses // of tables that rules refer to
	check   bool                       // it is not for a bridge
}

// pfUses are the rules that refer to a table.
type pfUses struct {
	rules   int
	anchors bool // some are in anchors
}

// pfParse reads the stored text. It has no names that have to be looked up.
func pfParse(text string) (*pf.Ruleset, error) {
	set, err := pf.Parse("pf", []byte(text), pf.Source{Kept: true})
	if err != nil {
		return nil, fmt.Errorf("read the rules that are loaded: %w", err)
	}
	return set, nil
}

// readPF returns pf of a bridge. If the bridge has none, it returns rules that pass
// all.
func readPF(b *datapath.Bridge) (*pfConfig, error) {
	text, err := b.PFText()
	if err != nil {
		return nil, err
	}
	return parsePF(b, text)
}

// parsePF is readPF with what pf was told.
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
		return stored, fmt.Errorf("read what pf was told: %w", err)
	}
	if stored.Anchors == nil {
		stored.Anchors = map[string]string{}
	}
	return stored, nil
}

// changePF makes a change to pf of a bridge alone.
func (s *Switch) changePF(what, bridge string, plan func(*draft, *pfConfig) error) error {
	return s.change(what, bridge, func(c *draft) error {
		d, err := readPF(c.bridge)
		if err != nil {
			return failed(what, err)
		}
		if err := plan(c, d); err != nil {
			return err
		}
		c.pf = d
		return nil
	})
}

// planPF has the bridge's rules compiled for the ports that the bridge will have. It
// leaves alone a bridge without pf, and rules whose ports stay.
func (c *draft) planPF(what string) error {
	d := c.pf
	if d == nil && !c.bridge.PFLoaded() {
		return nil
	}
	ports, err := pfPortsOf(c.bridge, c.next)
	if err != nil {
		return failed(what, err)
	}
	if d == nil {
		if d, err = readPF(c.bridge); err != nil {
			return failed(what, err)
		}
		same, err := d.poolsHold(c.bridge)
		if err != nil {
			return failed(what, err)
		}
		if same && maps.Equal(ports.said, d.Ports) {
			return nil
		}
	}
	d.Ports = ports.said
	c.next.Flags &^= uint32(datapath.BridgePF)
	if d.removed {
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
	limits := d.limits()
	if err := d.checkLimits(what, c.bridge); err != nil {
		return err
	}
	text, err := json.Marshal(&d.pfStored)
	if err != nil {
		return failed(what, err)
	}
	c.tables.PF = &datapath.PF{
		Program: program, Same: !d.other, Text: text,
		StatesMax: limits[pf.LimitStates], NodesMax: limits[pf.LimitSrcNodes], FragmentsMax: limits[pf.LimitFrags], TableEntries: limits[pf.LimitTableEntries],
		Fill: d.fill, Free: d.freed,
	}
	for id, name := range ports.names {
		if name == d.main.Options.LogInterface {
			c.tables.PF.LogInterface = id
		}
	}
	return nil
}

// checkLimits says whether the limits have room for all that rules name and list. If
// the bridge is nil, it has nothing yet.
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

// checkTables says whether the limit has room for the tables.
func (d *pfConfig) checkTables(what string) error {
	if n := min(d.limits()[pf.LimitTables], pf.MaxTables); uint32(len(d.Tables)) > n {
		return refused(what, fmt.Sprintf("there would be %d tables, and the limit is %d", len(d.Tables), n), "use fewer; no bridge can have more than 64")
	}
	return nil
}

// checkEntries says whether the limit has room for the new contents of tables. A limit
// that tables exceed already is for later additions.
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

// limits returns the limits that hold.
func (d *pfConfig) limits() [pf.LimitCount]uint32 {
	limits := pf.DefaultLimits()
	for i, l := range d.main.Options.Limits {
		if l.Given {
			limits[i] = l.Value
		}
	}
	return limits
}

// entriesOf returns what is in the table with a number, or will be. If the bridge is nil, it
// has nothing yet.
func (d *pfConfig) entriesOf(b *datapath.Bridge, number int) ([]pf.TableEntry, error) {
	for _, f := range d.fill {
		if f.Table != number {
			continue
		}
		// as the bridge will tell them
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

// sumOf is a sum of entries, by which a change of them is found.
func sumOf(entries []pf.TableEntry) uint64 {
	sum := fnv.New64a()
	for _, e := range entries {
		fmt.Fprintln(sum, e.Not, e.Prefix)
	}
	return sum.Sum64()
}

// poolsHold reports whether the tables that pools name are as the rules were compiled with.
func (d *pfConfig) poolsHold(b *datapath.Bridge) (bool, error) {
	for number, was := range d.Pools {
		entries, err := d.entriesOf(b, number)
		if err != nil || sumOf(entries) != was {
			return false, err
		}
	}
	return true, nil
}

// compile makes tables for the datapath of the rules, with numbers for the
// tables that they name. The bridge has the tables; it is nil if there is none.
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
			list, err := pfAddresses(name, modes, nil)
			d.Dynamic[strings.Join(append([]string{name}, modes...), ":")] = list
			return list, err
		},
	})
}

// notCompiled is the error for rules that cannot be compiled. Words that the datapath does
// not carry out are told with their places, as mistakes are.
func notCompiled(what string, err error) error {
	if list := pf.ErrorList(nil); errors.As(err, &list) {
		return list
	}
	return refused(what, err.Error(), "nothing was changed")
}

// settleTables counts the rules that name tables, including those of anchors that
// nobody calls. It makes the tables that are only named, and drops those that nobody
// needs.
func (d *pfConfig) settleTables() error {
	d.uses = map[*pfStoredTable]*pfUses{}
	all := d.rulesets()
	for _, path := range slices.Sorted(maps.Keys(all)) {
		for _, name := range namedTables(all[path]) {
			t, err := d.meant(path, name)
			if err != nil {
				return err
			}
			if d.uses[t] == nil {
				d.uses[t] = &pfUses{}
			}
			d.uses[t].rules++
			d.uses[t].anchors = d.uses[t].anchors || path != ""
		}
	}
	for _, t := range slices.Clone(d.Tables) {
		if !t.Persist && d.uses[t] == nil {
			d.drop(t)
		}
	}
	return nil
}

// namedTables returns the names of tables in the rules of a ruleset, each as often as
// it is there. Names between braces are those of other rulesets.
func namedTables(set *pf.Ruleset) (names []string) {
	host := func(h pf.Host) {
		if h.Kind == pf.InTable {
			names = append(names, h.Name)
		}
	}
	for i := range set.Rules {
		r := &set.Rules[i]
		host(r.From.Host)
		host(r.To.Host)
		if r.StateOpts.Overload != "" {
			names = append(names, r.StateOpts.Overload)
		}
		names = append(names, r.PoolTables()...)
	}
	for i := range set.Ether {
		host(set.Ether[i].L3From)
		host(set.Ether[i].L3To)
	}
	return names
}

// meant returns the table that a rule of an anchor names. It is the anchor's own or, if
// the anchor has none of the name, the main ruleset's, which is made if there is none.
func (d *pfConfig) meant(anchor, name string) (*pfStoredTable, error) {
	if t := d.find(anchor, name); t != nil {
		return t, nil
	}
	if t := d.find("", name); t != nil {
		return t, nil
	}
	return d.newTable("", name)
}

// find returns a table, nil if there is none.
func (d *pfConfig) find(anchor, name string) *pfStoredTable {
	for _, t := range d.Tables {
		if t.Anchor == anchor && t.Name == name {
			return t
		}
	}
	return nil
}

// newTable makes a table that has a number of its own.
func (d *pfConfig) newTable(anchor, name string) (*pfStoredTable, error) {
	t := &pfStoredTable{Anchor: anchor, Name: name, Cleared: time.Now().Unix()}
	if err := d.number(t); err != nil {
		return nil, err
	}
	d.Tables = append(d.Tables, t)
	return t, nil
}

// number gives a table a number that no other table has. If possible, it is one that no
// table had before the change.
func (d *pfConfig) number(t *pfStoredTable) error {
	used := d.freed
	for _, other := range d.Tables {
		if other != t {
			used |= 1 << other.Number
		}
	}
	for n := range pf.MaxTables {
		if used&(1<<n) == 0 {
			t.Number = n
			return nil
		}
	}
	for n := range pf.MaxTables {
		if d.freed&(1<<n) != 0 {
			d.freed &^= 1 << n
			t.Number = n
			d.fill = append(d.fill, datapath.TableFill{Table: n}) // the number had others
			return nil
		}
	}
	return fmt.Errorf("table <%s>: one table more than the %d that a bridge can have", t.Name, pf.MaxTables)
}

// drop removes a table.
func (d *pfConfig) drop(t *pfStoredTable) {
	d.Tables = slices.DeleteFunc(d.Tables, func(other *pfStoredTable) bool { return other == t })
	d.fill = slices.DeleteFunc(d.fill, func(f datapath.TableFill) bool { return f.Table == t.Number })
	d.freed |= 1 << t.Number
}

// define gives a table the definition of a file.
func (d *pfConfig) define(anchor string, def *pf.Table) error {
	t := d.find(anchor, def.Name)
	var err error
	switch {
	case t == nil:
		t, err = d.newTable(anchor, def.Name)
	case def.Given:
		// The table gets another number: the present contents stay until the
		// new rules are there.
		old := t.Number
		d.fill = slices.DeleteFunc(d.fill, func(f datapath.TableFill) bool { return f.Table == old })
		d.freed |= 1 << old
		err = d.number(t)
	}
	if err != nil {
		return err
	}
	t.Defined, t.Const, t.Persist, t.Counters = true, def.Const, def.Persist, def.Counters
	if def.Given {
		d.fill = slices.DeleteFunc(d.fill, func(f datapath.TableFill) bool { return f.Table == t.Number })
		d.fill = append(d.fill, datapath.TableFill{Table: t.Number, Entries: def.Entries})
		t.Cleared = time.Now().Unix()
	}
	return nil
}

// take makes a ruleset the one of the anchor at path, "" for the main one: its tables,
// the rulesets that it loads into anchors, and its rules.
func (d *pfConfig) take(path string, set *pf.Ruleset) error {
	if err := d.takeTables(path, set); err != nil {
		return err
	}
	if err := d.takeLoads(path, set); err != nil {
		return err
	}
	plain := bare(set)
	// A ruleset between braces takes the place of the one that was loaded there.
	eachBody(path, plain, func(path string, _ *pf.Ruleset) {
		delete(d.Anchors, path)
		delete(d.anchors, path)
	})
	if path != "" {
		plain.Options = pf.Options{}
	}
	text := plain.String()
	if _, err := pfParse(text); err != nil {
		return err // refused now: when the text is needed, it is too late
	}
	if path == "" {
		d.Main, d.main, d.Debug = text, plain, ""
	} else {
		d.Anchors[path], d.anchors[path] = text, plain
	}
	d.other = true
	return nil
}

// takeLoads takes the rulesets that a ruleset loads into anchors.
func (d *pfConfig) takeLoads(path string, set *pf.Ruleset) (err error) {
	for _, load := range set.Loads {
		if err := d.take(pf.AnchorPath(path, load.Name), load.Ruleset); err != nil {
			return err
		}
	}
	for i := range set.Rules {
		if r := &set.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			if err := d.takeLoads(pf.BodyPath(path, i, r), r.Anchor.Body); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeTables takes the tables of a ruleset and of the anchors between its braces.
// Tables that the ruleset had before, and does not define any more, go, unless they
// persist or rules name them.
func (d *pfConfig) takeTables(path string, set *pf.Ruleset) error {
	var err error
	define := func(at string, set *pf.Ruleset) {
		last := map[string]int{} // as in pf the last definition counts
		for i := range set.Tables {
			last[set.Tables[i].Name] = i
		}
		for i := range set.Tables {
			if t := &set.Tables[i]; err == nil && last[t.Name] == i {
				err = d.define(at, t)
			}
		}
	}
	define(path, set)
	eachBody(path, set, define)
	return err
}

// eachBody calls f for the anchors between braces of the ruleset at path.
func eachBody(path string, set *pf.Ruleset, f func(path string, body *pf.Ruleset)) {
	for i := range set.Rules {
		if r := &set.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			at := pf.BodyPath(path, i, r)
			f(at, r.Anchor.Body)
			eachBody(at, r.Anchor.Body, f)
		}
	}
}

// bare returns a ruleset without its tables and its loads, which are kept beside the
// ruleset.
func bare(set *pf.Ruleset) *pf.Ruleset {
	plain := *set
	plain.Tables, plain.Loads = nil, nil
	plain.Rules = slices.Clone(set.Rules)
	for i := range plain.Rules {
		if r := &plain.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			r.Anchor = &pf.Anchor{Name: r.Anchor.Name, Body: bare(r.Anchor.Body)}
		}
	}
	return &plain
}

// LoadPF loads a file into pf of a bridge: whole or not at all. It returns the ruleset
// that it read, and notes of what may not be meant. Mistakes in the text are in an
// error that is a [pf.ErrorList]. With o.Check it loads nothing, and the bridge may be
// "".
func (s *Switch) LoadPF(bridge string, o PFLoad) (set *pf.Ruleset, notes []string, err error) {
	what := o.what(bridge)
	if set, err = s.parsePF(what, o); err != nil {
		return nil, nil, err
	}
	if bridge != "" && !o.Later {
		list, err := s.unreached(set)
		if err != nil {
			return nil, nil, failed(what, err)
		}
		if len(list) > 0 {
			return nil, nil, list
		}
	}
	if err := s.undiverted(what, bridge, set); err != nil {
		return nil, nil, err
	}
	if o.Check {
		if err := s.checkPF(what, bridge, o, set); err != nil {
			return nil, nil, err
		}
		at, err := s.elsewhere(bridge, set)
		if err != nil {
			return nil, nil, failed(what, err)
		}
		return set, slices.Concat(redefined(set), idle(set), missing(set), at), nil
	}
	err = s.changePF(what, bridge, func(c *draft, d *pfConfig) error {
		if err := o.take(d, set); err != nil {
			return refused(what, err.Error(), "nothing was changed")
		}
		switch {
		case o.Enable != nil:
			d.enabled, d.Stay = *o.Enable, !*o.Enable
		case !o.TablesOnly && !d.Stay:
			d.enabled = true
		}
		return nil
	})
	if err != nil {
		return set, nil, err
	}
	at, err := s.elsewhere(bridge, set)
	if err != nil {
		return set, nil, failed(what, err)
	}
	return set, slices.Concat(redefined(set), idle(set), at), nil
}

// unreached returns the next hops that the host has no way to now.
func (s *Switch) unreached(set *pf.Ruleset) (list pf.ErrorList, err error) {
	err = s.Inside(func() error {
		list = set.Unreached(reached)
		return nil
	})
	return list, err
}

// reached reports whether the host sends packets to an address by some interface, whichever of
// its tables of routes says so. It does if nobody can tell.
func reached(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_UNICAST }) {
		return true
	}
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	// what a VRF has is in a table of its own
	routes, err = netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_MAIN {
			return false
		}
		return r.Dst == nil || r.Dst.Contains(a.AsSlice())
	})
}

// undiverted refuses rules that divert packets at ports of the bridge that are no host ports.
func (s *Switch) undiverted(what, bridge string, set *pf.Ruleset) error {
	if bridge == "" {
		return nil
	}
	var list pf.ErrorList
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		ports, err := pfPortsOf(b, &b.Config)
		list = set.Undiverted(ports.list)
		return err
	})
	switch {
	case errors.Is(err, errNoBridge):
		return nil
	case err != nil:
		return failed(what, err)
	case len(list) > 0:
		return list
	}
	return nil
}

// elsewhere tells of the rules of a file that never translate, by the ports that the bridge
// has now. Of no bridge there is nothing to tell.
func (s *Switch) elsewhere(bridge string, set *pf.Ruleset) (notes []string, err error) {
	if bridge == "" {
		return nil, nil
	}
	err = s.each("look at the ports of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		ports, err := pfPortsOf(b, &b.Config)
		notes = untranslated(set, ports.list)
		return err
	})
	if errors.Is(err, errNoBridge) {
		err = nil
	}
	return notes, err
}

// untranslated tells of the rules that never translate at the ports of a bridge.
func untranslated(set *pf.Ruleset, ports []pf.CompilePort) (notes []string) {
	list := set.Elsewhere(ports)
	for n, i := range list {
		if n == maxNotes {
			return append(notes, fmt.Sprintf("%d more rules never translate or route, since what they name is no host port", len(list)-n))
		}
		notes = append(notes, fmt.Sprintf("%v: %s never holds: %s, and what the rule matches is dropped; give a host port", i.Pos, i.Word, i.Why))
	}
	return notes
}

// missing tells of the words of a file that loading it refuses: the language has them,
// and the datapath does not carry them out.
func missing(set *pf.Ruleset) (notes []string) {
	for _, e := range set.Missing() {
		notes = append(notes, fmt.Sprintf("%v: %s; loading refuses it", e.Pos, e.Message))
	}
	return notes
}

// idle tells of the words of a file that have no effect.
func idle(set *pf.Ruleset) (notes []string) {
	for _, i := range set.Idle() {
		note := fmt.Sprintf("%v: %s has no effect: %s", i.Pos, i.Word, i.Why)
		if i.More > 0 {
			note += fmt.Sprintf(" (%d more)", i.More)
		}
		notes = append(notes, note)
	}
	return notes
}

// redefined tells of the tables that a file defines more than once.
func redefined(set *pf.Ruleset) (notes []string) {
	seen, more := map[*pf.Ruleset]bool{}, 0 // rules may share the rules between their braces
	var walk func(*pf.Ruleset)
	walk = func(set *pf.Ruleset) {
		if set == nil || seen[set] {
			return
		}
		seen[set] = true
		defined := map[string]pf.Pos{}
		for i := range set.Tables {
			t := &set.Tables[i]
			switch before, again := defined[t.Name]; {
			case again && len(notes) == maxNotes:
				more++
			case again:
				notes = append(notes, fmt.Sprintf("%v: table <%s> is defined again; what %v says of it does not count", t.Pos, t.Name, before))
			}
			defined[t.Name] = t.Pos
		}
		for i := range set.Rules {
			if a := set.Rules[i].Anchor; a != nil {
				walk(a.Body)
			}
		}
		for _, load := range set.Loads {
			walk(load.Ruleset)
		}
	}
	if walk(set); more > 0 {
		notes = append(notes, fmt.Sprintf("%d more tables are defined again", more))
	}
	return notes
}

// what names the work with a file, for errors.
func (o *PFLoad) what(bridge string) string {
	if bridge == "" {
		return "load " + o.Name + " into pf"
	}
	return "load " + o.Name + " into pf of " + bridge
}

// take gives pf the contents of a file.
func (o *PFLoad) take(d *pfConfig, set *pf.Ruleset) error {
	path := strings.Trim(o.Anchor, "/")
	if o.TablesOnly {
		return d.takeTables(path, set)
	}
	return d.take(path, set)
}

// parsePF reads a file. Names in it have the meaning that they have in the namespace.
func (s *Switch) parsePF(what string, o PFLoad) (set *pf.Ruleset, err error) {
	if err := checkAnchor(o.Anchor); err != nil {
		return nil, err
	}
	err = s.Inside(func() (err error) {
		hosts := o.Source.Lookup
		o.Source.Lookup = func(name string, modes []string) ([]netip.Prefix, error) { return pfAddresses(name, modes, hosts) }
		set, err = pf.Parse(o.Name, o.Text, o.Source)
		return err
	})
	if bad := pf.ErrorList(nil); err != nil && !errors.As(err, &bad) {
		return nil, failed(what, err)
	}
	if err != nil {
		return nil, err
	}
	for i, l := range set.Options.Limits {
		if l.Given && l.Value == 0 {
			return nil, refused(what, fmt.Sprintf("set limit %s 0 would allow %s, and does not mean without limit", pf.LimitName(i), zeroLimit[i]),
				"give 1 or more, or leave it out")
		}
	}
	return set, nil
}

// zeroLimit says what a limit of 0 would allow.
var zeroLimit = [pf.LimitCount]string{
	pf.LimitStates:       "no state at all",
	pf.LimitSrcNodes:     "no source to be tracked",
	pf.LimitFrags:        "the ports of no fragment to be remembered",
	pf.LimitTables:       "no table",
	pf.LimitTableEntries: "no address in a table",
	pf.LimitAnchors:      "no anchor",
}

// checkPF says whether a bridge could have the contents of a file. If the name is "",
// or there is no such bridge, the question is about any bridge.
func (s *Switch) checkPF(what, bridge string, o PFLoad, set *pf.Ruleset) error {
	d := &pfConfig{main: &pf.Ruleset{}, anchors: map[string]*pf.Ruleset{}, pfStored: pfStored{Anchors: map[string]string{}}, check: o.Check}
	var p *pf.Program
	err := s.Inside(func() error {
		if err := o.take(d, set); err != nil {
			return refused(what, err.Error(), "nothing was changed")
		}
		var err error
		if p, err = d.compile(nil, nil, nil); err != nil {
			return notCompiled(what, err)
		}
		if o.Anchor != "" || o.TablesOnly {
			return nil // the limits are those that hold now
		}
		return d.checkLimits(what, nil)
	})
	if err != nil {
		return err
	}
	was := datapath.Config{}
	if bridge != "" {
		err := s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
			was = b.Config
			return nil
		})
		if err != nil && !errors.Is(err, errNoBridge) {
			return err
		}
	}
	return s.checkMemory(what, pfDemands(&was, p, d.limits()))
}

// checkAnchor says whether rules can be loaded into an anchor of the name.
func checkAnchor(name string) error {
	switch {
	case strings.Contains(name, "*"):
		return usagef("anchor "+name, "it stands for several; name one")
	case strings.HasPrefix(strings.TrimLeft(name, "/"), "_") || strings.Contains(name, "/_"):
		return usagef("anchor "+name, "names that begin with _ are for anchors without a name; give another")
	case len(name) > 1023:
		return usagef("anchor "+name[:32]+"...", "its name is longer than 1023 bytes")
	case slices.Contains(strings.Split(strings.Trim(name, "/"), "/"), "") && strings.Trim(name, "/") != "":
		return usagef("anchor "+name, "it has an empty name in it")
	}
	return nil
}

// EnablePF switches pf of a bridge on, or off: then all frames pass.
func (s *Switch) EnablePF(bridge string, on bool) error {
	what := "disable pf of " + bridge
	if on {
		what = "enable pf of " + bridge
	}
	return s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
		switch {
		case on && d.enabled:
			return refused(what, "pf already enabled", "see 'bascule pfctl -b "+bridge+" -si'")
		case !on && !d.enabled:
			return refused(what, "pf not enabled", "see 'bascule pfctl -b "+bridge+" -si'")
		}
		d.enabled, d.Stay = on, !on
		return nil
	})
}

// SetPFDebug sets the level that -s info shows. Nothing else depends on it.
func (s *Switch) SetPFDebug(bridge, level string) error {
	return s.changePF("set the debug level of pf of "+bridge, bridge, func(_ *draft, d *pfConfig) error {
		d.Debug = level
		return nil
	})
}

// FlushPF flushes what pfctl(8) calls so: rules, ether, states, Sources, info, Tables
// or Reset. It returns how many there were, if that is counted. Rules and tables are
// those of an anchor, "" for the main ruleset. With * behind the anchor, those of all
// anchors below it are flushed, too.
func (s *Switch) FlushPF(bridge, anchor, which string) (n int, err error) {
	what := "flush " + which + " of pf of " + bridge
	path, all := strings.CutSuffix(anchor, "*")
	path = strings.Trim(path, "/")
	meant := func(at string) bool { return at == path || all && (path == "" || strings.HasPrefix(at, path+"/")) }
	if err := checkAnchor(path); err != nil {
		return 0, err
	}
	change := func(plan func(*pfConfig) error) error {
		err := s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
			if !d.loaded {
				return errNothing
			}
			was, err := json.Marshal(&d.pfStored)
			if err != nil {
				return failed(what, err)
			}
			if err := plan(d); err != nil || d.removed {
				return err
			}
			now, err := json.Marshal(&d.pfStored)
			if err == nil && bytes.Equal(was, now) {
				return errNothing // -F all asks for each of them, and a bridge seldom has all
			}
			return failed(what, err)
		})
		if errors.Is(err, errNothing) {
			return nil
		}
		return err
	}
	switch which {
	case "rules":
		err = change(func(d *pfConfig) error {
			if path != "" {
				err = d.emptyAnchor(what, path)
			} else { // options and ether rules stay
				err = d.replaceMain(func(set *pf.Ruleset) { set.Rules = nil })
			}
			if err == nil && all {
				d.emptyBelow(path)
			}
			return err
		})
	case "ether":
		err = change(func(d *pfConfig) error { return d.replaceMain(func(set *pf.Ruleset) { set.Ether = nil }) })
	case "Reset":
		err = change(func(d *pfConfig) error {
			d.Debug = ""
			// If pf is off and this was the last of it, its memory is
			// given back.
			d.removed = !d.enabled && len(d.main.Rules)+len(d.main.Ether)+len(d.Anchors)+len(d.Tables) == 0
			return d.replaceMain(func(set *pf.Ruleset) { set.Options = pf.Options{} })
		})
	case "Tables":
		err = change(func(d *pfConfig) error {
			for _, t := range slices.Clone(d.Tables) {
				if meant(t.Anchor) && t.Defined {
					d.drop(t)
					n++
				}
			}
			return nil
		})
	default:
		err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
			if !b.PFLoaded() {
				return nil
			}
			switch which {
			case "states":
				n, err = b.FlushStates()
			case "Sources":
				n, err = b.KillSources(func(*datapath.SourceNode) bool { return true })
			case "info":
				err = b.ZeroPFCounters()
			default:
				err = usagef("-F "+which, "no such modifier")
			}
			return err
		})
	}
	return n, err
}

// errNothing says that there is nothing to change.
var errNothing = errors.New("nothing to change")

// replaceMain gives pf another main ruleset.
func (d *pfConfig) replaceMain(edit func(*pf.Ruleset)) error {
	set := *d.main
	edit(&set)
	d.main, d.Main, d.other = &set, set.String(), true
	return nil
}

// emptyAnchor takes the rules out of an anchor.
func (d *pfConfig) emptyAnchor(what, path string) error {
	if _, ok := d.ruleset(path); !ok {
		if d.hasBelow(path) {
			return nil // it has none
		}
		return refused(what, "there is no anchor "+path, "see 'bascule pfctl -s Anchors -v'")
	}
	delete(d.Anchors, path)
	delete(d.anchors, path)
	if _, ok := d.ruleset(path); ok { // between braces in another
		d.Anchors[path], d.anchors[path] = "", &pf.Ruleset{}
	}
	d.other = true
	return nil
}

// emptyBelow takes the rules out of all anchors below a path, "" for the main ruleset.
func (d *pfConfig) emptyBelow(path string) {
	// In this order, the caller of an anchor is before the anchor.
	for _, at := range slices.Sorted(maps.Keys(d.rulesets())) {
		if at == path || path != "" && !strings.HasPrefix(at, path+"/") {
			continue
		}
		if _, ok := d.ruleset(at); ok { // else it was between braces that have gone
			_ = d.emptyAnchor("", at)
		}
	}
}

// rulesets returns all rulesets by path: the loaded ones and, where none was loaded,
// those between braces. Anchors that are only called are there, and empty.
func (d *pfConfig) rulesets() map[string]*pf.Ruleset {
	all := map[string]*pf.Ruleset{"": d.main}
	maps.Copy(all, d.anchors)
	for path, set := range maps.Clone(all) {
		d.below(path, set, all)
	}
	return all
}

func (d *pfConfig) below(path string, set *pf.Ruleset, all map[string]*pf.Ruleset) {
	for i := range set.Rules {
		r := &set.Rules[i]
		if r.Anchor == nil || strings.HasSuffix(r.Anchor.Name, "*") {
			continue
		}
		at := pf.BodyPath(path, i, r)
		if _, ok := all[at]; ok {
			continue
		}
		all[at] = &pf.Ruleset{}
		if r.Anchor.Body != nil {
			all[at] = r.Anchor.Body
			d.below(at, r.Anchor.Body, all)
		}
	}
}

// ruleset returns the ruleset at a path.
func (d *pfConfig) ruleset(path string) (*pf.Ruleset, bool) {
	set, ok := d.rulesets()[path]
	return set, ok
}
