// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"net/netip"

	"bascule/pf"
)

// ErrTableFull says that the bridge's tables of addresses have as many entries
// as `set limit table-entries` allows.
var ErrTableFull = errors.New("its tables have as many entries as set limit table-entries allows")

// TableAdd adds entries to table n, and returns how many it did not have. One
// that it has already stays as it is, negated or not, as in pfctl -T add. The
// error is ErrTableFull where there is no room; some may have been added then.
// The caller holds the lock, as for all that changes tables.
func (b *Bridge) TableAdd(n int, entries []pf.TableEntry) (added int, err error) {
	return 0, errNoPF
}

// TableDelete removes entries from table n, and returns how many it had. An
// entry must be negated as it is in the table.
func (b *Bridge) TableDelete(n int, entries []pf.TableEntry) (deleted int, err error) {
	return 0, errNoPF
}

// TableReplace makes table n have these entries and no others. An entry that is
// negated otherwise than it was counts as changed.
func (b *Bridge) TableReplace(n int, entries []pf.TableEntry) (added, deleted, changed int, err error) {
	return 0, 0, 0, errNoPF
}

// TableFlush empties table n, and returns how many entries it had.
func (b *Bridge) TableFlush(n int) (deleted int, err error) { return 0, errNoPF }

// TableEntries returns what is in table n, in ascending order, a network before
// what is in it.
func (b *Bridge) TableEntries(n int) ([]pf.TableEntry, error) { return nil, errNoPF }

// TableCounts returns how many entries each table has, by its number.
func (b *Bridge) TableCounts() (counts [pf.MaxTables]int, err error) { return counts, errNoPF }

// TableTest reports whether table n matches an address, and by which of its
// entries that is decided; nil if by none.
func (b *Bridge) TableTest(n int, a netip.Addr) (match bool, by *pf.TableEntry, err error) {
	return false, nil, errNoPF
}
