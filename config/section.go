// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/object"
)

// A section is a list in a bridge of a file, of objects that package bridge describes. From the description come the
// keys of files, their checks, the schema, export and the plan.
type section struct {
	*bridge.Filing
	items func(*Bridge) []item
	add   func(b *Bridge, at Position, it any, idle bool)
	keep  func(b *Bridge, keeps func(item) bool)
}

// An item is an object of a section.
type item struct {
	at   Position
	it   any  // a pointer to the object of package bridge
	idle bool // as in Binding
}

// The sections, in the order of files and plans. Mirrors are between them.
var (
	beforeMirrors = []section{sectionOf(&bridge.BindingObject.Filing,
		func(b *Bridge) *[]Binding { return &b.Bindings },
		func(e *Binding) item { return item{e.At, &e.Binding, e.Idle} },
		func(i item) Binding { return Binding{i.at, *i.it.(*bridge.Binding), i.idle} },
	)}
	afterMirrors = []section{sectionOf(&bridge.EntryFiling,
		func(b *Bridge) *[]Entry { return &b.Entries },
		func(e *Entry) item { return item{e.At, &e.Entry, e.Idle} },
		func(i item) Entry { return Entry{i.at, *i.it.(*bridge.Entry), i.idle} },
	)}
	sections = slices.Concat(beforeMirrors, afterMirrors)
)

// sectionOf returns the section of a list; open and pack convert its items.
func sectionOf[E any](f *bridge.Filing, list func(*Bridge) *[]E, open func(*E) item, pack func(item) E) section {
	return section{
		Filing: f,
		items: func(b *Bridge) []item {
			all := *list(b)
			items := make([]item, len(all))
			for i := range all {
				items[i] = open(&all[i])
			}
			return items
		},
		add: func(b *Bridge, at Position, it any, idle bool) { *list(b) = append(*list(b), pack(item{at, it, idle})) },
		keep: func(b *Bridge, keeps func(item) bool) {
			*list(b) = slices.DeleteFunc(slices.Clone(*list(b)), func(e E) bool { return !keeps(open(&e)) })
		},
	}
}

// sections returns the keys of a bridge with the objects of sections.
func (y *yamlFile) sections(list []section, b *Bridge) (fields []field) {
	for _, s := range list {
		fields = append(fields, field{name: s.Section, read: func(n node) {
			y.items(n, s.Section, func(n node) { s.add(b, n.at, y.item(s, n, b.Name), false) })
		}})
	}
	return fields
}

// item reads an object of a section.
func (y *yamlFile) item(s section, n node, of string) any {
	it := s.New()
	var fields []field
	var needed []string
	for _, f := range s.Filed {
		fields = append(fields, field{name: f.Name, read: func(n node) {
			text, ok := y.text(n, f.Name)
			if !ok {
				return
			}
			given := text
			if f.Switch {
				given, _ = onOff(text)
			}
			if err := f.Set(it, given); err != nil {
				y.add(n.at, "%s %s", f.Name, reason(text, err))
			}
		}})
		if f.Needed {
			needed = append(needed, f.Name)
		}
	}
	y.object(n, s.One, fields)
	y.needs(n, s.One, needed...)
	s.Settle(it, of)
	return it
}

// section writes the objects of a section.
func (y *yamlWriter) section(s section, b *Bridge) {
	items := s.items(b)
	if len(items) > 0 {
		y.line(2, s.Section+":")
	}
	for _, i := range items {
		var pairs []pair
		for _, f := range s.Filed {
			text := f.Text(i.it)
			switch {
			case text == "" && !f.Needed:
				continue
			case f.Quoted:
				text = quoted(text)
			case !f.Number && !f.Switch:
				text = scalarText(text)
			}
			pairs = append(pairs, pair{f.Name, text})
		}
		y.line(3, "- "+flow(pairs))
	}
}

// schema returns the schema of a section, and of an object in it.
func (s section) schema() (list, one jsonObject) {
	properties := jsonObject{}
	var needed []string
	for _, f := range s.Filed {
		switch {
		case f.Switch:
			properties[f.Name] = described(ref("switch"), f.Filing)
		case f.Filed == "":
			properties[f.Name] = jsonObject{"type": "string", "description": f.Filing}
		default:
			properties[f.Name] = ref(f.Filed)
		}
		if f.Needed {
			needed = append(needed, f.Name)
		}
	}
	return jsonObject{"type": "array", "items": ref(s.Definition), "description": s.SectionHelp}, closed([]string{"object"}, properties, needed...)
}

// A placed object has the VLAN of the FDB: for private VLANs the primary one. The file names it by a VLAN of its port.
type placed struct {
	it    any
	named uint16
}

// readSection checks the objects of a section.
func (m *model) readSection(b *bridgeModel, s section) {
	seen := map[sectionKey]Position{}
	var list []placed
	for _, i := range s.items(b.Bridge) {
		it := s.Copy(i.it)
		s.Settle(it, b.Name)
		port, vlan := s.Place(it)
		if i.idle {
			list = append(list, placed{it, *vlan})
			continue
		}
		what := fmt.Sprintf(s.What, s.Key.Text(it), b.Name)
		p, ok := m.port(b, *port)
		if !ok {
			m.fail(i.at, "%s: %s is not a port of the bridge; name one that is", what, *port)
			continue
		}
		if !m.checkFields(i.at, what, s.Filed, it) || p == nil {
			continue
		}
		named := *vlan
		if *vlan, ok = m.addressVLAN(b, p, i.at, what, *vlan, s.NamesVLAN); !ok {
			continue
		}
		k := keyOf(s, it)
		if first, ok := seen[k]; ok {
			m.fail(i.at, "%s already exists, at line %d; %s: remove one", what, first.Line, s.Only)
			continue
		}
		seen[k] = i.at
		if !p.waits && !(s.NeedsDevice && p.lost) {
			list = append(list, placed{it, named})
		}
	}
	if s.Sorted {
		slices.SortStableFunc(list, func(a, b placed) int { return s.Compare(a.it, b.it) })
	}
	b.listed[s.Filing] = list
}

// checkFields refuses values that no object can have, which a file's parser has refused already.
func (m *model) checkFields(at Position, what string, fields object.Fields, it any) bool {
	for _, f := range fields {
		if !f.Needed {
			continue
		}
		if err := f.Set(it, f.Text(it)); err != nil {
			m.fail(at, "%s: %v", what, why(err))
			return false
		}
	}
	return true
}

// A sectionKey is the key of an object in its section.
type sectionKey struct {
	vlan uint16
	text string
}

func keyOf(s section, it any) sectionKey {
	_, vlan := s.Place(it)
	return sectionKey{*vlan, s.Key.Text(it)}
}

// title is the name of an object in plans.
func (s section) title(it any) string { return s.Title + " " + s.Key.Text(it) }

// detail describes an object in plans.
func (s section) detail(it any) string {
	port, vlan := s.Place(it)
	text := where(*port, *vlan)
	for _, f := range s.Filed {
		switch {
		case f.Name == s.Key.Name || f.Name == "port" || f.Name == "vlan":
		case !f.Switch:
			text = f.Text(it) + " " + text
		case f.Text(it) != "":
			text += ", " + f.Name
		}
	}
	return text
}

// section adds the actions that turn the running objects of a section into the wanted ones.
func (d *diff) section(s section) {
	was, want := map[sectionKey]any{}, map[sectionKey]bool{}
	wanted := d.want.listed[s.Filing]
	for _, next := range wanted {
		want[keyOf(s, next.it)] = true
	}
	var del, add [stageCount][]any
	come := func(next placed) {
		it := s.Copy(next.it)
		_, vlan := s.Place(it)
		*vlan = next.named
		add[remember] = append(add[remember], it)
	}
	for _, old := range d.was.listed[s.Filing] {
		port, _ := s.Place(old.it)
		if d.gone[*port] {
			if d.leaves(*port) {
				d.act(Delete, s.title(old.it), s.detail(old.it))
			}
			continue
		}
		k := keyOf(s, old.it)
		was[k] = old.it
		if !want[k] {
			d.act(Delete, s.title(old.it), s.detail(old.it))
			del[forget] = append(del[forget], old.it)
		}
	}
	for _, next := range wanted {
		old, ok := was[keyOf(s, next.it)]
		switch {
		case !ok:
			d.act(Add, s.title(next.it), s.detail(next.it))
			come(next)
		case s.detail(old) != s.detail(next.it):
			d.act(Change, s.title(next.it), s.detail(old)+" -> "+s.detail(next.it))
			del[remember] = append(del[remember], old)
			come(next)
		}
	}
	name := d.want.Name
	for stage := range stageCount {
		if len(del[stage])+len(add[stage]) > 0 {
			// in one call, since each separate change would create a new generation of the bridge
			d.step(stage, func(sw *bridge.Switch, _ Options) ([]string, error) {
				return nil, s.Replace(sw, name, del[stage], add[stage])
			})
		}
	}
}

// section reads the running objects of a section.
func (r *reader) section(s section) {
	list := s.Runs(&r.State)
	slices.SortFunc(list, s.Compare)
	for _, it := range list {
		port, vlan := s.Place(it)
		if r.out[*port] {
			continue
		}
		var ok bool
		if *vlan, ok = r.vlanOf(*port, *vlan); !ok {
			r.leftOut(s.title(it), *port, *vlan, strings.Join([]string{s.Delete, r.file.Name, s.Key.Text(it)}, " "))
		}
		s.add(&r.file, Position{}, it, !ok)
	}
}

// checkSections refuses more objects than a bridge can have.
func (m *model) checkSections(b *Bridge, few func(what, remedy string, n, most int, at func(int) Position)) {
	for _, s := range sections {
		if items := s.items(b); s.Most > 0 {
			few(s.Section, cmp.Or(s.Fewer, "leave some out"), len(items), s.Most, func(i int) Position { return items[i].at })
		}
	}
}
