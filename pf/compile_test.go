// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/pftest"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// compilePorts are pftest's ports, in slots that are not next to each other.
func compilePorts() ([]pf.CompilePort, map[string]uint16) {
	var ports []pf.CompilePort
	slots := map[string]uint16{}
	for i, p := range pftest.Ports() {
		slots[p.Name] = uint16(3*i + 1)
		ports = append(ports, pf.CompilePort{Slot: uint16(3*i + 1), Name: p.Name, Groups: p.Groups})
	}
	return ports, slots
}

// tables numbers tables as they are asked for.
type tables struct {
	entries map[string][]pf.TableEntry // by path
	numbers map[string]int
	list    [][]pf.TableEntry
}

func newTables(anchors map[string]*pf.Ruleset) *tables {
	t := &tables{entries: map[string][]pf.TableEntry{}, numbers: map[string]int{}}
	for at, rs := range anchors {
		for _, table := range rs.Tables {
			t.entries[path.Join(at, table.Name)] = table.Entries
		}
	}
	return t
}

func (t *tables) number(anchor, name string) (int, error) {
	at := path.Join(anchor, name)
	if _, ok := t.entries[at]; !ok {
		at = name
	}
	n, ok := t.numbers[at]
	if !ok {
		n = len(t.list)
		t.numbers[at] = n
		t.list = append(t.list, t.entries[at])
	}
	return n, nil
}

// bodies adds the rulesets between braces by their paths.
func bodies(to map[string]*pf.Ruleset, at string, rs *pf.Ruleset) {
	to[at] = rs
	for i := range rs.Rules {
		if a := rs.Rules[i].Anchor; a != nil && a.Body != nil {
			name := a.Name
			if name == "" {
				name = fmt.Sprint("_", i)
			}
			bodies(to, path.Join(at, name), a.Body)
		}
	}
}

func dynamicAddresses(name string, modes []string) []netip.Prefix {
	prefix, other := netip.MustParsePrefix("10.0.0.254/24"), netip.MustParsePrefix("2001:db8::fe/64")
	if name != "em0" {
		return nil
	}
	if slices.Contains(modes, "network") {
		return []netip.Prefix{prefix.Masked(), other.Masked()}
	}
	return []netip.Prefix{netip.PrefixFrom(prefix.Addr(), 32), netip.PrefixFrom(other.Addr(), 128)}
}

// TestCompileIsReference compares what programs find with what trying the
// rules one by one finds.
func TestCompileIsReference(t *testing.T) {
	rapid.Check(t, compileIsReference)
}

func FuzzCompile(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(compileIsReference))
}

func compileIsReference(t *rapid.T) {
	main := pftest.Rulesets().Draw(t, "main")
	all := map[string]*pf.Ruleset{}
	bodies(all, "", main)
	loaded := map[string]*pf.Ruleset{}
	for _, at := range []string{"ftp", "wild", "wild/a", "wild/b", "ftp/wild", "deep/in"} {
		if _, body := all[at]; !body && rapid.Bool().Draw(t, at) {
			rs := pftest.Rulesets().Draw(t, "anchor "+at)
			rs.Ether = nil
			loaded[at] = rs
			inside := map[string]*pf.Ruleset{}
			bodies(inside, at, rs)
			for path, rs := range inside {
				if all[path] != nil { // has two rulesets
					t.Skip()
				}
				all[path] = rs
			}
		}
	}
	for at := range loaded { // and no ruleset in the place of a body
		if all[at] != loaded[at] {
			t.Skip()
		}
	}

	tables := newTables(all)
	ports, slots := compilePorts()
	prog, err := pf.Compile(pf.Input{
		Main: main, Anchors: loaded, Ports: ports,
		Table: tables.number,
		Addresses: func(name string, modes []string) ([]netip.Prefix, error) {
			return dynamicAddresses(name, modes), nil
		},
	})
	if err != nil {
		if strings.Contains(err.Error(), "call each other") || strings.Contains(err.Error(), "calls of anchors") {
			t.Skip() // the reference has no bottom
		}
		t.Fatal(err)
	}
	var drawn float64
	draw := func(*pf.Rule) float64 { return drawn }
	w := walker{Program: prog, slots: slots, tables: tables.list, draw: draw}
	named := map[string]*pf.Ruleset{}
	for at, rs := range all {
		if !strings.HasPrefix(path.Base(at), "_") && at != "" {
			named[at] = rs
		}
	}
	e := reference.Evaluator{Rules: main, Anchors: named, Addresses: dynamicAddresses, Draw: draw, Tables: tables.entries}

	list := []*pf.Ruleset{main}
	for _, at := range slices.Sorted(maps.Keys(loaded)) {
		list = append(list, loaded[at])
	}
	for _, p := range rapid.SliceOfN(pftest.Packets(list...), 1, 20).Draw(t, "packets") {
		drawn = float64(rapid.IntRange(0, 99).Draw(t, "drawn")) / 100
		got := w.walk(p)
		if slices.ContainsFunc(main.Options.Skip, func(i pf.Interface) bool {
			return (i.Name == p.Port.Name || slices.Contains(p.Port.Groups, i.Name)) != i.Not
		}) {
			if got.rule != -1 || got.matches != nil {
				t.Fatalf("%+v: found %+v where pf is skipped", *p, got)
			}
			continue
		}
		want := e.Evaluate(p)
		var rule *pf.Rule
		if got.rule >= 0 {
			rule = prog.Source[got.rule].Rule
		}
		var matches []*pf.Rule
		for _, n := range got.matches {
			matches = append(matches, prog.Source[n].Rule)
		}
		if rule != want.Rule || !slices.Equal(matches, want.Matches) || got.tag != tag(want.Tag) {
			t.Fatalf("%+v:\nfound %v, matches %v, tag %#x\nwant  %v, matches %v, tag %q\nof\n%v", *p, rule, matches, got.tag, want.Rule, want.Matches, want.Tag, main)
		}
	}
}
