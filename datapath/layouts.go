// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"cmp"
	"embed"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Pinned objects carry no types: a record of their layout has the types. There is one
// record for each layout that this program reads, former ones and the present one. A value
// of a former layout is read by the names of its members.
//
//go:embed layouts
var layoutFiles embed.FS

// A record is the layout of pinned objects: the lines about each "pinned TABLE", "struct
// NAME" and "enum NAME".
type record map[string][]string

// layoutRecordsByNumber are the records of all layouts.
var layoutRecordsByNumber = sync.OnceValues(func() (map[uint32]record, error) {
	files, err := layoutFiles.ReadDir("layouts")
	if err != nil {
		return nil, err
	}
	all := map[uint32]record{}
	for _, f := range files {
		number, err := strconv.ParseUint(strings.TrimSuffix(f.Name(), ".txt"), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s is no record of a layout", f.Name())
		}
		text, err := layoutFiles.ReadFile(path.Join("layouts", f.Name()))
		if err != nil {
			return nil, err
		}
		all[uint32(number)] = parseRecord(string(text))
	}
	return all, nil
})

func parseRecord(text string) record {
	r := record{}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		subject, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		r[subject] = append(r[subject], said)
	}
	return r
}

// recordOf returns the record of a layout, nil if this program does not read it.
func recordOf(number uint32) record {
	all, err := layoutRecordsByNumber()
	if err != nil {
		panic(err) // they are part of this binary
	}
	return all[number]
}

// pinned returns the record's line about a pin: how it is made, and its type.
func (r record) pinned(name string) string {
	if said := r["pinned "+name]; len(said) == 1 {
		return said[0]
	}
	return ""
}

// passes are the types of records that programs pass through a table whose entries have no
// type.
var passes = map[string]string{
	kernelMapCaptureRing: "struct captured", kernelMapControlFrames: "struct control_frame", kernelMapPfLogRing: "struct pf_logged",
}

// A shape is a record's description of a table.
type shape struct {
	how        string // its kind and its flags
	key, value string // their types
	entries    string
}

func (r record) shape(name string) (t shape) {
	said := r.pinned(name)
	t.how, said, _ = strings.Cut(said, ", key ")
	t.key, said, _ = strings.Cut(said, ", value ")
	t.value, t.entries, _ = strings.Cut(said, ", ")
	return t
}

// sameTable reports whether programs of both layouts can use a table side by side.
func (r record) sameTable(o record, name string) bool {
	was, is := r.shape(name), o.shape(name)
	return was.how != "" && was.how == is.how && was.entries == is.entries &&
		r.fits(o, was.key, is.key) && r.fits(o, was.value, is.value) && r.sameType(o, passes[name])
}

// sameType is the same for a type; "" means no type.
func (r record) sameType(o record, name string) bool {
	return name == "" || r.fits(o, name+" of 0", name+" of 0")
}

// renamed has the former names of members that have been renamed, by the struct and the
// present name.
var renamed = map[string]string{
	"struct shared.buckets": "storms", "struct port_buckets.storm": "full",
}

// needless are members of former layouts whose values followed from other members.
var needless = []string{"pf_member.bits"} // for an address that is listed by itself

// formerName returns the name of a member in a former layout.
func (r record) formerName(of, name string, had map[string]field) string {
	if was, ok := renamed[of+"."+name]; ok {
		if _, there := had[was]; there {
			return was
		}
	}
	return name
}

// fits reports whether a value of type as in the other layout can be used unchanged as one
// of type is. A struct may have new members in place of padding, which former programs
// leave 0. An enum may have more constants.
func (r record) fits(o record, is, as string) bool {
	n, elem, array := strings.Cut(is, " times ")
	m, other, arrays := strings.Cut(as, " times ")
	switch {
	case array || arrays:
		return n == m && r.fits(o, elem, other)
	case strings.HasPrefix(is, "struct ") && strings.HasPrefix(as, "struct "):
		return sizeOf(is) == sizeOf(as) && r.fitsMembers(o, typeName(is), typeName(as))
	case strings.HasPrefix(is, "enum ") && strings.HasPrefix(as, "enum "):
		return sizeOf(is) == sizeOf(as) && len(r.renumbered(o, typeName(is))) == 0
	case strings.HasPrefix(is, "union "):
		return is == as && slices.Equal(r[typeName(is)], o[typeName(as)])
	}
	return is == as
}

func (r record) fitsMembers(o record, is, as string) bool {
	had, has := r.members(is), o.members(as)
	size := 0
	for _, list := range []map[string]field{had, has} {
		for _, f := range list {
			size = max(size, f.at+sizeOf(f.what))
		}
	}
	used := make([]bool, size) // bytes that are used in the former layout
	for name, f := range had {
		if !pads(name) {
			for i := range sizeOf(f.what) {
				used[f.at+i] = true
			}
		}
	}
	met := 0
	for name, f := range has {
		old, there := had[r.formerName(as, name, had)]
		switch {
		case there && !pads(name):
			if old.at != f.at || !r.fits(o, old.what, f.what) {
				return false
			}
			met++
		case pads(name):
		case slices.Contains(used[f.at:][:sizeOf(f.what)], true):
			return false
		}
	}
	for name := range had {
		if pads(name) {
			met++
		}
	}
	return met == len(had)
}

// typeName returns the name of a struct, union or enum without its size.
func typeName(what string) string { return what[:strings.LastIndex(what, " of ")] }

// renumbered returns the constants of an enum whose numbers differ between two layouts.
func (r record) renumbered(o record, name string) (list []string) {
	was := map[string]string{}
	for _, said := range r[name] {
		constant, number, _ := strings.Cut(said, " is ")
		was[constant] = number
	}
	for _, said := range o[name] {
		constant, number, _ := strings.Cut(said, " is ")
		if n, had := was[constant]; had && n != number {
			list = append(list, constant)
		}
	}
	return list
}

// A field is a member of a struct.
type field struct {
	at   int
	what string // its type
}

func (r record) members(of string) map[string]field {
	list := map[string]field{}
	for _, said := range r[of] {
		name, rest, _ := strings.Cut(said, " at ")
		at, what, _ := strings.Cut(rest, ", ")
		n, err := strconv.Atoi(at)
		if err != nil {
			panic(fmt.Sprintf("%s: %s", of, said)) // the records are part of this binary
		}
		list[name] = field{n, what}
	}
	return list
}

// sizeOf returns the size of a type, with which its name ends, or of the element's type of
// an array.
func sizeOf(what string) int {
	if n, elem, ok := strings.Cut(what, " times "); ok {
		return numberIn(n) * sizeOf(elem)
	}
	return numberIn(what[strings.LastIndexByte(what, ' ')+1:])
}

func numberIn(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic("a record has the number " + text)
	}
	return n
}

// A rereading converts values of one layout to another.
type rereading struct {
	from, to record
	lost     map[string]bool // members that had a value and no longer exist
}

// pads reports whether a member is padding, by its name.
func pads(name string) bool {
	return slices.ContainsFunc([]string{"pad", "unused"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// value converts a value of a type to a type of the other layout.
func (r *rereading) value(to []byte, as string, from []byte, is string) error {
	n, elem, array := strings.Cut(is, " times ")
	m, other, arrays := strings.Cut(as, " times ")
	switch {
	case array != arrays:
		return fmt.Errorf("%s is %s now", is, as)
	case array:
		had, has := sizeOf(elem), sizeOf(other)
		for i := range min(numberIn(n), numberIn(m)) {
			if err := r.value(to[i*has:(i+1)*has], other, from[i*had:(i+1)*had], elem); err != nil {
				return err
			}
		}
		for i := numberIn(m); i < numberIn(n); i++ {
			if !zero(from[i*had : (i+1)*had]) {
				return fmt.Errorf("%s is %s now, and all were in use", is, as)
			}
		}
		return nil
	case strings.HasPrefix(is, "struct ") && strings.HasPrefix(as, "struct "):
		return r.members(to, typeName(as), from, typeName(is))
	case strings.HasPrefix(is, "struct ") || strings.HasPrefix(is, "union "):
		if !r.from.fits(r.to, is, as) {
			return fmt.Errorf("%s is %s now", is, as)
		}
		copy(to, from)
		return nil
	case strings.HasPrefix(is, "enum ") && len(r.from.renumbered(r.to, typeName(is))) > 0:
		return fmt.Errorf("%s has other numbers now", typeName(is))
	}
	return integer(to, from, strings.HasPrefix(is, "signed "))
}

func (r *rereading) members(to []byte, as string, from []byte, is string) error {
	had, has := r.from.members(is), r.to.members(as)
	read := map[string]bool{}
	for name, next := range has {
		name := r.from.formerName(as, name, had)
		old, there := had[name]
		if !there || pads(name) {
			continue
		}
		read[name] = true
		if err := r.value(to[next.at:][:sizeOf(next.what)], next.what, from[old.at:][:sizeOf(old.what)], old.what); err != nil {
			return fmt.Errorf("%s of %s: %w", name, is, err)
		}
	}
	for name, old := range had {
		member := strings.TrimPrefix(is, "struct ") + "." + name
		if !read[name] && !pads(name) && !slices.Contains(needless, member) && !zero(from[old.at:][:sizeOf(old.what)]) {
			r.lost[member] = true
		}
	}
	return nil
}

func zero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// integer converts an integer to another size, if it fits.
func integer(to, from []byte, signed bool) error {
	fill := byte(0)
	if signed && len(from) > 0 && from[len(from)-1]&0x80 != 0 {
		fill = 0xff
	}
	n := copy(to, from)
	for i := n; i < len(to); i++ {
		to[i] = fill
	}
	for _, b := range from[n:] {
		if b != fill {
			return fmt.Errorf("%x does not fit in %d bytes", from, len(to))
		}
	}
	return nil
}

// former returns the number of the layout of a configuration that is not of the present
// layout, by the configuration's size and the number in it. It is 0 if this program does
// not read it.
func former(config, settings []byte) (number uint32) {
	all, err := layoutRecordsByNumber()
	if err != nil {
		panic(err)
	}
	for n, r := range all {
		at := r.members("struct config")["layout"].at
		if len(config) == sizeOf(r.pinned(configPin)) && len(settings) == sizeOf(r.pinned(settingsPin)) &&
			binary.NativeEndian.Uint32(config[at:]) == n {
			number = cmp.Or(number, n)
		}
	}
	return number
}
