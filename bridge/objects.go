// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"bascule/object"
)

// Tables are the tables of bridges as descriptions of objects need them; *[Switch] has them.
type Tables interface {
	Bindings(bridge, port string) ([]Binding, error)
	AddBinding(b Binding) error
	DelBinding(bridge string, a netip.Addr, vlan uint16) error
	FlushBindings(bridge string, m Match) (n int, err error)
}

// An Object describes a kind of object that bridges have. Commands and the API derive all that they have for it.
type Object struct {
	Word, Words          string // "binding", "bindings"; Word begins the commands, and the paths of the API
	Short, Long, Example string // help of the command
	Type, About          string // of an answer in the API's document: its name, and what it is

	Fields           object.Fields // of the type that List returns pointers to
	Columns, Answers object.Fields // in the order of tables, and of answers

	List  func(t Tables, bridge, port string) ([]any, error) // an empty name stands for all
	Show  object.Verb
	Verbs []Verb

	Filing
}

// A Filing describes objects of a bridge in files, exports and plans. All functions take pointers to the objects.
type Filing struct {
	Section, SectionHelp string        // the key of their list in a bridge, and its description in the schema
	Definition           string        // of one in the schema
	One                  string        // as messages about files call one: "a binding"
	Filed                object.Fields // the keys of one, in the order in which they are written
	Key                  object.Field  // with the VLAN it distinguishes an object from the others of its bridge

	Title  string // begins the name in plans, before Key: "binding"
	What   string // format of the name in messages about files, of Key and bridge: "binding of %s in %s"
	Only   string // why there is only one of a key
	Delete string // the words of the command that deletes one, before bridge and key

	Most  int    // of a bridge; 0 if something else sets a limit
	Fewer string // the remedy for more

	NamesVLAN   bool // a bridge that filters needs the VLAN; otherwise it is the port's PVID by default
	NeedsDevice bool // a port whose device is gone keeps none
	Sorted      bool // plans are in the order of Compare, otherwise in the order of files

	New     func() any
	Copy    func(any) any
	Settle  func(it any, bridge string)                          // sets the values that follow from others
	Place   func(it any) (port *string, vlan *uint16)            // pointers into the object
	Compare func(a, b any) int                                   // the order of exports
	Runs    func(*State) []any                                   // the running ones, in no order
	Replace func(s *Switch, bridge string, del, add []any) error // in one change
}

// typed adds the functions that follow from the type of the objects.
func typed[T any](f Filing, runs func(*State) []T, replace func(s *Switch, bridge string, del, add []T) error) Filing {
	values := func(list []any) []T {
		all := make([]T, len(list))
		for i, it := range list {
			all[i] = *it.(*T)
		}
		return all
	}
	f.New = func() any { return new(T) }
	f.Copy = func(it any) any {
		other := *it.(*T)
		return &other
	}
	f.Runs = func(s *State) []any {
		list, _ := pointers(runs(s), nil)
		return list
	}
	f.Replace = func(s *Switch, bridge string, del, add []any) error {
		return replace(s, bridge, values(del), values(add))
	}
	return f
}

// A Verb is something that can be done to objects.
type Verb struct {
	object.Verb
	Counts bool // Do returns the number of objects, which is the answer
	Do     func(t Tables, given any) (n int, err error)
}

// Objects are the kinds of objects that are described once.
var Objects = []*Object{BindingObject}

// pointers returns pointers to the items of a list.
func pointers[T any](list []T, err error) ([]any, error) {
	all := make([]any, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all, err
}

// done returns the result of work on a single object.
func done(err error) (int, error) { return 1, err }

// The kinds of values.
var (
	bridgeKind = nameKind("BRIDGE", object.Bridges)
	portKind   = nameKind("PORT", object.Ports)

	macKind = object.Kind[net.HardwareAddr]{
		Form:  object.Form{Word: "MAC", From: object.Stations, Longest: 32, Quoted: true, Filed: "mac"},
		Parse: ParseMAC, Format: net.HardwareAddr.String,
	}
	addressKind = object.Kind[netip.Addr]{
		Form:  object.Form{Word: "ADDRESS", Longest: 64, Quoted: true, Alone: true},
		Parse: ParseAddress, Format: netip.Addr.String,
	}
	boundKind = from(addressKind, object.Present)

	vlanKind = object.Kind[uint16]{
		Form:  object.Form{Word: "VLAN", From: object.VLANs, Number: true, Least: 1, Most: maxVLAN, Filed: "vlan"},
		Parse: ParseVLAN,
		Format: func(id uint16) string {
			if id == 0 {
				return ""
			}
			return strconv.Itoa(int(id))
		},
	}
	// untaggedKind is for requests in which 0 stands for frames without a tag.
	untaggedKind = object.Kind[uint16]{
		Form:   object.Form{Word: "VLAN", From: object.VLANs, Number: true, Most: maxVLAN},
		Parse:  ParseVLANOrNone,
		Format: vlanKind.Format,
	}
	// anyVLANKind is for requests about all VLANs, or one of them, or frames without a tag.
	anyVLANKind = object.Kind[*uint16]{
		Form: untaggedKind.Form,
		Parse: func(s string) (*uint16, error) {
			id, err := ParseVLANOrNone(s)
			return &id, err
		},
		Format: func(id *uint16) string {
			if id == nil {
				return ""
			}
			return strconv.Itoa(int(*id))
		},
	}
)

// switchKind is a switch that is off by default.
var switchKind = object.Kind[bool]{
	Form:  object.Form{Word: OnOff, Switch: true, Filed: "switch"},
	Parse: parseOnOff,
	Format: func(on bool) string {
		if on {
			return On
		}
		return ""
	},
}

// nameKind returns the kind of names of bridges, or of ports. Whether there is one of that name is for the work to say.
func nameKind(word string, source object.Source) object.Kind[string] {
	same := func(s string) string { return s }
	return object.Kind[string]{
		Form:   object.Form{Word: word, From: source, Shortest: 1, Longest: 64, Filed: "name"},
		Parse:  func(s string) (string, error) { return s, nil },
		Format: same,
	}
}

// only returns a kind of names that restrict a request: an empty one would mean no restriction.
func only(k object.Kind[string]) object.Kind[string] {
	k.Parse = func(s string) (string, error) {
		if s == "" {
			return "", fmt.Errorf("%s is empty", k.Word)
		}
		return s, nil
	}
	return k
}

// from returns a kind whose values completion finds elsewhere.
func from[V any](k object.Kind[V], source object.Source) object.Kind[V] {
	k.From = source
	return k
}

// ParseVLAN parses one VLAN. The error says why s is none, and what to give.
func ParseVLAN(s string) (uint16, error) {
	id, err := strconv.ParseUint(s, 10, 16)
	if err == nil && id >= 1 && id <= maxVLAN {
		return uint16(id), nil
	}
	if list, err := ParseVLANs(s); err == nil && len(list) > 1 {
		return 0, errors.New("more than one VLAN; give one")
	}
	return 0, fmt.Errorf("not a VLAN; give a number 1 to %d", maxVLAN)
}

// ParseVLANOrNone parses one VLAN, or 0 for none, as ParseVLAN does.
func ParseVLANOrNone(s string) (uint16, error) {
	id, err := strconv.ParseUint(s, 10, 16)
	if err != nil || id > maxVLAN {
		return 0, fmt.Errorf("not a VLAN; give a number 0 to %d", maxVLAN)
	}
	return uint16(id), nil
}
