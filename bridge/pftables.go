// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bascule/datapath"
	"bascule/pf"
)

// PFTables returns the tables of an anchor by name, "" for the main ruleset. For "*" or ANCHOR/* it
// also returns the tables of all anchors below.
func (s *Switch) PFTables(bridge, anchor string) (list []PFTable, err error) {
	path, below := strings.CutSuffix(anchor, "*")
	path = strings.Trim(path, "/")
	err = s.viewPF(bridge, func(v *pfView) error {
		all, err := v.tables()
		list = slices.DeleteFunc(all, func(t PFTable) bool {
			return t.Anchor != path && !(below && (path == "" || strings.HasPrefix(t.Anchor, path+"/")))
		})
		return err
	})
	return list, err
}

// tables returns the tables of all anchors, by name.
func (v *pfView) tables() ([]PFTable, error) {
	list := []PFTable{}
	if !v.loaded || len(v.Tables) == 0 {
		return list, nil
	}
	counts, err := v.b.TableCounts()
	if err != nil {
		return nil, err
	}
	for _, t := range v.Tables {
		if !t.Defined && counts[t.Number] == 0 {
			continue
		}
		table := PFTable{
			Anchor: t.Anchor, Name: t.Name, Const: t.Const, Persist: t.Persist, Counters: t.Counters,
			Addresses: counts[t.Number], Cleared: time.Unix(t.Cleared, 0),
		}
		if uses := v.uses[t]; uses != nil {
			table.Rules, table.InAnchors = uses.rules, uses.anchors
		}
		list = append(list, table)
	}
	slices.SortFunc(list, func(a, b PFTable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// PFTable returns the contents of a table, in ascending order.
func (s *Switch) PFTable(bridge, anchor, name string) (list []PFTableEntry, err error) {
	what := "show table " + name + " of " + bridge
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		list = []PFTableEntry{}
		t, err := findPFTable(b, what, anchor, name)
		if err != nil {
			return err
		}
		entries, err := b.TableEntries(t.Number)
		for _, e := range entries {
			list = append(list, PFTableEntry{e, time.Unix(t.Cleared, 0)})
		}
		return err
	})
	return list, err
}

// findPFTable returns an existing table.
func findPFTable(b *datapath.Bridge, what, anchor, name string) (*pfStoredTable, error) {
	d, err := readPF(b)
	if err != nil {
		return nil, failed(what, err)
	}
	if t := d.find(strings.Trim(anchor, "/"), name); t != nil {
		return t, nil
	}
	return nil, refused(what, "Table does not exist", "see 'bascule pfctl -s Tables'")
}

// ChangePFTable performs an action on entries of a table. Adding and replacing create a missing
// table. With check it only returns what it would do.
func (s *Switch) ChangePFTable(bridge, anchor, name string, action PFTableAction, entries []pf.TableEntry, check bool) (done PFTableChange, err error) {
	what := map[PFTableAction]string{AddPFEntries: "add to", DeletePFEntries: "delete from", ReplacePFEntries: "replace", TestPFEntries: "test"}[action] +
		" table " + name + " of " + bridge
	path := strings.Trim(anchor, "/")
	if err := checkAnchor(path); err != nil {
		return done, err
	}
	if name == "" || len(name) > 31 || strings.ContainsAny(name, " \t\n<>\"") {
		return done, usagef("table "+name, "not the name of a table; give 1 to 31 characters, without spaces, <, > and quotes")
	}
	makes := action == AddPFEntries || action == ReplacePFEntries
	// A refused request leaves no table behind: the action on a new table is planned before the
	// table is created.
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		t, err := plannedPFTable(b, what, path, name, makes)
		if err != nil {
			return err
		}
		done.Created = t == nil
		if check || action == TestPFEntries || done.Created {
			done, err = planEntries(b, what, t, action, entries)
		}
		return err
	})
	if err != nil || check || action == TestPFEntries {
		return done, err
	}
	created := done.Created
	if created {
		if err := s.createPFTable(what, bridge, path, name); err != nil {
			return PFTableChange{}, err
		}
	}
	err = s.writePFTable(what, bridge, path, name, func(b *datapath.Bridge, t *pfStoredTable) error {
		if done, err = planEntries(b, what, t, action, entries); err != nil {
			return err
		}
		done.Created = created
		return done.execute(b, t.Number, action)
	})
	if err == nil {
		err = s.renewPools(what, bridge)
	}
	if errors.Is(err, datapath.ErrTableFull) {
		return done, tableFull(what)
	}
	return done, err
}

func tableFull(what string) error {
	return refused(what, datapath.ErrTableFull.Error(), "set limit table-entries, or delete some")
}

// plannedPFTable returns the table of a -T command: the existing one, or nil if the command will
// create it.
func plannedPFTable(b *datapath.Bridge, what, path, name string, makes bool) (*pfStoredTable, error) {
	if !makes {
		return findPFTable(b, what, path, name)
	}
	d, err := readPF(b)
	if err != nil {
		return nil, failed(what, err)
	}
	if t := d.findDefined(path, name); t != nil {
		return t, nil
	}
	if _, err := d.definePFTable(what, path, name); err != nil {
		return nil, err
	}
	return nil, d.checkTables(what)
}

// createPFTable creates a persistent table.
func (s *Switch) createPFTable(what, bridge, path, name string) error {
	return s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
		_, err := d.definePFTable(what, path, name)
		return err
	})
}

// definePFTable returns a persistent table, and creates it if there is none.
func (d *pfConfig) definePFTable(what, path, name string) (*pfStoredTable, error) {
	t := d.find(path, name)
	if t == nil {
		var err error
		if t, err = d.newTable(path, name); err != nil {
			return nil, refused(what, err.Error(), "delete one that is not used")
		}
	}
	t.Defined, t.Persist = true, true
	return t, nil
}

func (d *pfConfig) findDefined(path, name string) *pfStoredTable {
	if d == nil {
		return nil
	}
	if t := d.find(path, name); t != nil && t.Defined {
		return t
	}
	return nil
}

// planEntries plans the action on each entry of a table. t is nil if the table does not exist yet.
func planEntries(b *datapath.Bridge, what string, t *pfStoredTable, action PFTableAction, entries []pf.TableEntry) (done PFTableChange, err error) {
	done = PFTableChange{Created: t == nil, Entries: entries, Marks: slices.Repeat([]byte{' '}, len(entries))}
	if t != nil && t.Const && action != TestPFEntries {
		return done, refused(what, "it is const", "load a file that lists its addresses")
	}
	if action == TestPFEntries {
		for i, e := range entries {
			match, _, err := b.TableTest(t.Number, e.Prefix.Addr())
			if err != nil {
				return done, failed(what, err)
			}
			if match {
				done.Matched++
				done.Marks[i] = 'M'
			}
		}
		return done, nil
	}
	switch {
	case action == ReplacePFEntries:
		err = done.markReplaced(b, t)
	case t == nil:
		done.mark(make([]datapath.Listing, len(entries)), action)
	default:
		var listed []datapath.Listing
		if listed, err = b.TableListings(t.Number, entries); err == nil {
			done.mark(listed, action)
		}
	}
	if err != nil {
		return done, failed(what, err)
	}
	count := func(letter byte) int { return bytes.Count(done.Marks, []byte{letter}) }
	done.Added, done.Deleted, done.Changed = count('A'), count('D'), count('C')
	if more := done.Added - done.Deleted; more > 0 {
		// The maps may have room for more than the limit allows.
		hold := more <= int(pf.DefaultLimits()[pf.LimitTableEntries])
		if b.PFLoaded() {
			if hold, err = b.TablesHold(more); err != nil {
				return done, failed(what, err)
			}
		}
		if !hold {
			return done, tableFull(what)
		}
	}
	return done, nil
}

// mark sets the letter of each entry for adding or deleting it. listed has the state of its address
// or network in the table.
func (done *PFTableChange) mark(listed []datapath.Listing, action PFTableAction) {
	seen := make(map[netip.Prefix]bool, len(done.Entries))
	for i, e := range done.Entries {
		as := datapath.Listed
		if e.Not {
			as = datapath.ListedNot
		}
		switch {
		case seen[e.Prefix]:
			done.Marks[i] = 'X'
		case action == AddPFEntries && listed[i] == datapath.NotListed:
			done.Marks[i] = 'A'
		case listed[i] == datapath.NotListed:
		case listed[i] != as:
			done.Marks[i] = 'Y'
		case action == DeletePFEntries:
			done.Marks[i] = 'D'
		}
		seen[e.Prefix] = true
	}
}

// markReplaced sets the letters for replacing the contents of a table by these entries. t is nil if
// the table does not exist yet. It appends the entries that the table will lose, in ascending
// order.
func (done *PFTableChange) markReplaced(b *datapath.Bridge, t *pfStoredTable) error {
	at := make(map[netip.Prefix]int, len(done.Entries))
	for i, e := range done.Entries {
		if _, seen := at[e.Prefix]; seen {
			done.Marks[i] = 'X'
			continue
		}
		at[e.Prefix] = i
		done.Marks[i] = 'A'
	}
	if t == nil {
		return nil
	}
	var goes []pf.TableEntry
	err := b.TableWalk(t.Number, func(had pf.TableEntry) {
		switch i, stays := at[had.Prefix]; {
		case !stays:
			goes = append(goes, had)
		case done.Entries[i].Not == had.Not:
			done.Marks[i] = ' '
		default:
			done.Marks[i] = 'C'
		}
	})
	datapath.SortEntries(goes)
	done.Entries = slices.Concat(done.Entries, goes)
	done.Marks = append(done.Marks, bytes.Repeat([]byte{'D'}, len(goes))...)
	return err
}

// execute performs the planned action on table n, and counts the changes.
func (done *PFTableChange) execute(b *datapath.Bridge, n int, action PFTableAction) (err error) {
	marked := func(mark byte) []pf.TableEntry {
		var list []pf.TableEntry
		for i, e := range done.Entries {
			if done.Marks[i] == mark {
				list = append(list, e)
			}
		}
		return list
	}
	switch action {
	case AddPFEntries:
		done.Added, err = b.TableAdd(n, marked('A'))
	case DeletePFEntries:
		done.Deleted, err = b.TableDelete(n, marked('D'))
	case ReplacePFEntries:
		done.Deleted, done.Added, err = b.TableReplace(n, marked('D'), marked('A'), marked('C'))
	}
	return err
}

// writePFTable calls f with a table while no one else writes.
func (s *Switch) writePFTable(what, bridge, anchor, name string, f func(*datapath.Bridge, *pfStoredTable) error) error {
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		t, err := findPFTable(b, what, anchor, name)
		if err != nil {
			return err
		}
		return failed(what, f(b, t))
	})
}

// renewPools recompiles the rules if a pool in them refers to a table that has changed. If the
// command is killed before, the next change of the bridge does it.
func (s *Switch) renewPools(what, bridge string) error {
	stale := false
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		stored, err := readStored(b)
		if err != nil {
			return failed(what, err)
		}
		same, err := (&pfConfig{pfStored: stored}).poolsHold(b)
		stale = !same
		return failed(what, err)
	})
	if err != nil || !stale {
		return err
	}
	return s.changePF(what, bridge, func(*draft, *pfConfig) error { return nil })
}

// FlushPFTable deletes all entries of a table, and returns their number. With check it only returns
// the number.
func (s *Switch) FlushPFTable(bridge, anchor, name string, check bool) (n int, err error) {
	what := "flush table " + name + " of " + bridge
	flush := func(b *datapath.Bridge, t *pfStoredTable) error {
		if t.Const {
			return refused(what, "it is const", "load a file that lists its addresses")
		}
		if check {
			counts, err := b.TableCounts()
			n = counts[t.Number]
			return err
		}
		n, err = b.TableFlush(t.Number)
		return err
	}
	if !check {
		if err = s.writePFTable(what, bridge, anchor, name, flush); err == nil {
			err = s.renewPools(what, bridge)
		}
		return n, err
	}
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		t, err := findPFTable(b, what, anchor, name)
		if err != nil {
			return err
		}
		return failed(what, flush(b, t))
	})
	return n, err
}

// KillPFTable deletes a table. A table that rules refer to remains, and is empty. With check it
// only checks whether the table exists.
func (s *Switch) KillPFTable(bridge, anchor, name string, check bool) (n int, err error) {
	err = s.changePFTable("delete table "+name+" of "+bridge, bridge, anchor, name, check, (*pfConfig).drop)
	if err == nil {
		n = 1
	}
	return n, err
}

// ZeroPFTable resets a table's counters and the age of its entries. With check it only checks
// whether the table exists.
func (s *Switch) ZeroPFTable(bridge, anchor, name string, check bool) error {
	return s.changePFTable("zero table "+name+" of "+bridge, bridge, anchor, name, check, func(_ *pfConfig, t *pfStoredTable) {
		t.Cleared = time.Now().Unix()
	})
}

// changePFTable changes the stored properties of an existing table.
func (s *Switch) changePFTable(what, bridge, anchor, name string, check bool, apply func(*pfConfig, *pfStoredTable)) error {
	find := func(d *pfConfig) (*pfStoredTable, error) {
		if t := d.findDefined(strings.Trim(anchor, "/"), name); t != nil {
			return t, nil
		}
		return nil, refused(what, "Table does not exist", "see 'bascule pfctl -s Tables'")
	}
	if check {
		return s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
			d, err := readPF(b)
			if err != nil {
				return failed(what, err)
			}
			_, err = find(d)
			return err
		})
	}
	return s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
		t, err := find(d)
		if err != nil {
			return err
		}
		apply(d, t)
		return nil
	})
}

// settleTables counts the rules that refer to tables, including rules of anchors that are not
// called. It creates tables that only rules refer to, and drops unused tables.
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
			d.uses[t].anchors = d.uses[t].anchors || path != t.Anchor
		}
	}
	for _, t := range slices.Clone(d.Tables) {
		if !t.Persist && d.uses[t] == nil {
			d.drop(t)
		}
	}
	return nil
}

// namedTables returns the names of tables in the rules of a ruleset, once for each use. It excludes
// rules between braces, which are other rulesets.
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
	for i := range set.SourceLimiters {
		if l := &set.SourceLimiters[i]; l.Table != "" {
			names = append(names, l.Table)
		}
	}
	for i := range set.Ether {
		host(set.Ether[i].L3From)
		host(set.Ether[i].L3To)
	}
	return names
}

// meant returns the table that a rule in an anchor refers to: the anchor's own or, if the anchor
// has none of that name, the main ruleset's, which is created if necessary.
func (d *pfConfig) meant(anchor, name string) (*pfStoredTable, error) {
	if t := d.find(anchor, name); t != nil {
		return t, nil
	}
	if t := d.find("", name); t != nil {
		return t, nil
	}
	return d.newTable("", name)
}

// find returns a table, or nil if there is none.
func (d *pfConfig) find(anchor, name string) *pfStoredTable {
	for _, t := range d.Tables {
		if t.Anchor == anchor && t.Name == name {
			return t
		}
	}
	return nil
}

// newTable creates a table with a number of its own.
func (d *pfConfig) newTable(anchor, name string) (*pfStoredTable, error) {
	t := &pfStoredTable{Anchor: anchor, Name: name, Cleared: time.Now().Unix()}
	if err := d.number(t); err != nil {
		return nil, err
	}
	d.Tables = append(d.Tables, t)
	return t, nil
}

// number gives a table a number that no other table has. If possible, no table had it before the
// change either.
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
			d.fill = append(d.fill, datapath.TableFill{Table: n}) // it had the entries of another table
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

// define sets a table's definition from a file.
func (d *pfConfig) define(anchor string, def *pf.Table) error {
	t := d.find(anchor, def.Name)
	var err error
	switch {
	case t == nil:
		t, err = d.newTable(anchor, def.Name)
	case def.Given:
		// The table gets another number, so that the present contents stay until the new
		// rules are loaded.
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
