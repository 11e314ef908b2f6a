// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"cmp"
	"net"

	"bascule/object"
)

// EntryFiling describes static and sticky entries of FDBs in files, exports and plans.
var EntryFiling = typed(Filing{
	Section: "fdb", SectionHelp: "static and sticky addresses", Definition: "entry", One: "an entry",
	Filed: entryFields, Key: entryFields.Named("mac")[0],
	Title: "address", What: "address %s of %s", Only: "an address is behind only one port", Delete: "fdb del",
	NeedsDevice: true, Sorted: true,
	Settle: func(it any, _ string) {
		e := it.(*Entry)
		e.Static, e.Updated = !e.Sticky, 0
	},
	Place: func(it any) (*string, *uint16) { return &it.(*Entry).Port, &it.(*Entry).VLAN },
	Compare: func(a, b any) int {
		e, f := a.(*Entry), b.(*Entry)
		return cmp.Or(cmp.Compare(e.VLAN, f.VLAN), bytes.Compare(e.MAC, f.MAC))
	},
}, func(s *State) []Entry { return s.Entries }, (*Switch).ReplaceEntries)

var entryFields = object.Fields{
	object.Of(object.Field{Name: "mac", Needed: true}, macKind, func(e *Entry) *net.HardwareAddr { return &e.MAC }),
	object.Of(object.Field{Name: "port", Needed: true}, portKind, func(e *Entry) *string { return &e.Port }),
	object.Of(object.Field{Name: "vlan"}, vlanKind, func(e *Entry) *uint16 { return &e.VLAN }),
	object.Of(object.Field{Name: "sticky", Filing: "sticky instead of static"}, switchKind, func(e *Entry) *bool { return &e.Sticky }),
}
