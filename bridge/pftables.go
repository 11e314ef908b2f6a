// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"bascule/datapath"
	"bascule/pf"
)

// PFTables returns the tables of an anchor, "" for those of the main ruleset,
// by name.
func (s *Switch) PFTables(bridge, anchor string) (list []PFTable, err error) {
	path := strings.Trim(anchor, "/")
	err = s.viewPF(bridge, func(v *pfView) error {
		list = []PFTable{}
		if !v.loaded {
			return nil
		}
		counts, err := v.b.TableCounts()
		if err != nil {
			return err
		}
		for _, t := range v.Tables {
			if t.Anchor != path || !t.Defined && counts[t.Number] == 0 {
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
		return nil
	})
	return list, err
}

// PFTable returns what is in a table, in ascending order.
func (s *Switch) PFTable(bridge, anchor, name string) (list []PFTableEntry, err error) {
	what := "show table " + name + " of " + bridge
	err = s.each(bridge, func(_ string, b *datapath.Bridge) error {
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

// findPFTable returns a table that is there.
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

// ChangePFTable does something to entries of a table, which adding and replacing
// make if it is not there.
func (s *Switch) ChangePFTable(bridge, anchor, name string, action PFTableAction, entries []pf.TableEntry) (done PFTableChange, err error) {
	what := map[PFTableAction]string{AddPFEntries: "add to", DeletePFEntries: "delete from", ReplacePFEntries: "replace", TestPFEntries: "test"}[action] +
		" table " + name + " of " + bridge
	path := strings.Trim(anchor, "/")
	if err := checkAnchor(path); err != nil {
		return done, err
	}
	if name == "" || len(name) > 31 || strings.ContainsAny(name, " \t\n<>\"") {
		return done, usagef("table "+name, "no table can have the name; give 1 to 31 letters, digits and such")
	}
	if action == AddPFEntries || action == ReplacePFEntries {
		if done.Created, err = s.createPFTable(what, bridge, path, name); err != nil {
			return done, err
		}
	}
	use := s.writePFTable
	if action == TestPFEntries {
		use = s.readPFTable
	}
	err = use(what, bridge, path, name, func(b *datapath.Bridge, t *pfStoredTable) error {
		if t.Const && action != TestPFEntries {
			return refused(what, "it is const", "load a file that says what is in it")
		}
		return changeEntries(b, t.Number, action, entries, &done)
	})
	if errors.Is(err, datapath.ErrTableFull) {
		return done, refused(what, datapath.ErrTableFull.Error(), "set limit table-entries, or delete some")
	}
	return done, err
}

// createPFTable makes a table that persists, if it is not there.
func (s *Switch) createPFTable(what, bridge, path, name string) (created bool, err error) {
	err = s.each(bridge, func(_ string, b *datapath.Bridge) error {
		d, err := readPF(b)
		t := d.findDefined(path, name)
		created = t == nil
		return err
	})
	if err != nil || !created {
		return false, err
	}
	return true, s.changePF(what, bridge, func(_ *change, d *pfConfig) error {
		t := d.find(path, name)
		if t == nil {
			var err error
			if t, err = d.newTable(path, name); err != nil {
				return refused(what, err.Error(), "delete one that is not used")
			}
		}
		t.Defined, t.Persist = true, true
		return nil
	})
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

// changeEntries does something to entries of table n, and marks what was done to each.
func changeEntries(b *datapath.Bridge, n int, action PFTableAction, entries []pf.TableEntry, done *PFTableChange) (err error) {
	done.Entries, done.Marks = entries, slices.Repeat([]byte{' '}, len(entries))
	if action == TestPFEntries {
		for i, e := range entries {
			match, _, err := b.TableTest(n, e.Prefix.Addr())
			if err != nil {
				return err
			}
			if match {
				done.Matched++
				done.Marks[i] = 'M'
			}
		}
		return nil
	}
	had, err := b.TableEntries(n)
	if err != nil {
		return err
	}
	type place = string // of an entry whether it is negated or not
	at := func(e pf.TableEntry) place { return e.Prefix.String() }
	before, seen := map[place]pf.TableEntry{}, map[place]bool{}
	for _, e := range had {
		before[at(e)] = e
	}
	for i, e := range entries {
		old, there := before[at(e)]
		switch {
		case seen[at(e)]:
			done.Marks[i] = 'X'
		case action == AddPFEntries && !there:
			done.Marks[i] = 'A'
		case action == AddPFEntries && old.Not != e.Not, action == DeletePFEntries && there && old.Not != e.Not:
			done.Marks[i] = 'Y'
		case action == DeletePFEntries && there:
			done.Marks[i] = 'D'
		case action == ReplacePFEntries && !there:
			done.Marks[i] = 'A'
		case action == ReplacePFEntries && old.Not != e.Not:
			done.Marks[i] = 'C'
		}
		seen[at(e)] = true
	}
	if action == ReplacePFEntries {
		for _, e := range had {
			if !seen[at(e)] {
				done.Entries, done.Marks = append(done.Entries, e), append(done.Marks, 'D')
			}
		}
	}
	if more := bytes.Count(done.Marks, []byte{'A'}) - bytes.Count(done.Marks, []byte{'D'}); more > 0 {
		// the maps may have more room: they never become smaller
		if counts, err := b.TableCounts(); err != nil {
			return err
		} else if sum(counts[:])+more > int(b.Config.Pf.TableEntries) {
			return datapath.ErrTableFull
		}
	}
	switch action {
	case AddPFEntries:
		done.Added, err = b.TableAdd(n, entries)
	case DeletePFEntries:
		done.Deleted, err = b.TableDelete(n, entries)
	case ReplacePFEntries:
		done.Added, done.Deleted, done.Changed, err = b.TableReplace(n, entries)
	}
	return err
}

func sum(list []int) (n int) {
	for _, i := range list {
		n += i
	}
	return n
}

// readPFTable runs f with a table that stays as it is.
func (s *Switch) readPFTable(what, bridge, anchor, name string, f func(*datapath.Bridge, *pfStoredTable) error) error {
	return s.each(bridge, func(_ string, b *datapath.Bridge) error {
		t, err := findPFTable(b, what, anchor, name)
		if err != nil {
			return err
		}
		return f(b, t)
	})
}

// writePFTable runs f with a table as the only writer.
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

// FlushPFTable deletes all that is in a table, and returns how much that was.
func (s *Switch) FlushPFTable(bridge, anchor, name string) (n int, err error) {
	what := "flush table " + name + " of " + bridge
	err = s.writePFTable(what, bridge, anchor, name, func(b *datapath.Bridge, t *pfStoredTable) error {
		if t.Const {
			return refused(what, "it is const", "load a file that says what is in it")
		}
		n, err = b.TableFlush(t.Number)
		return err
	})
	return n, err
}

// KillPFTable deletes a table. One that rules name is there still, empty.
func (s *Switch) KillPFTable(bridge, anchor, name string) (n int, err error) {
	what := "delete table " + name + " of " + bridge
	err = s.changePF(what, bridge, func(_ *change, d *pfConfig) error {
		t := d.findDefined(strings.Trim(anchor, "/"), name)
		if t == nil {
			return refused(what, "Table does not exist", "see 'bascule pfctl -s Tables'")
		}
		d.drop(t)
		return nil
	})
	if err == nil {
		n = 1
	}
	return n, err
}

// ZeroPFTable has a table's counters, and the age of what is in it, begin anew.
func (s *Switch) ZeroPFTable(bridge, anchor, name string) error {
	what := "zero table " + name + " of " + bridge
	return s.changePF(what, bridge, func(_ *change, d *pfConfig) error {
		t := d.findDefined(strings.Trim(anchor, "/"), name)
		if t == nil {
			return refused(what, "Table does not exist", "see 'bascule pfctl -s Tables'")
		}
		t.Cleared = time.Now().Unix()
		return nil
	})
}
