// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"bascule/pf"

	"github.com/google/go-cmp/cmp"
)

// pfFiles are files that rules in tests include.
var pfFiles = map[string]string{
	"night": "table <home> { 10.9.0.0/16 }\npass in from <home>\nblock in from <bad>\n",
	"list":  "10.7.0.1\n10.7.0.2\n",
}

// loadPF parses a file and loads it into an anchor, as LoadPF does.
func loadPF(t *testing.T, d *pfConfig, path, text string) {
	t.Helper()
	set, err := pf.Parse("test", []byte(text), pf.Source{Open: func(name string) ([]byte, error) { return []byte(pfFiles[name]), nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.take(path, set); err != nil {
		t.Fatal(err)
	}
	if _, err := d.compile(nil, []pf.CompilePort{{Slot: 1, Name: "p1"}, {Slot: 2, Name: "p2"}}, nil); err != nil {
		t.Fatal(err)
	}
}

func noPF() *pfConfig {
	return &pfConfig{main: &pf.Ruleset{}, anchors: map[string]*pf.Ruleset{}, pfStored: pfStored{Anchors: map[string]string{}}}
}

// tables describes the tables: with a plus if a file defines them, with a P if they persist, and
// with their new contents.
func (d *pfConfig) tables() []string {
	var list []string
	for _, t := range d.Tables {
		s := t.Name
		if t.Anchor != "" {
			s = t.Anchor + "/" + s
		}
		if t.Defined {
			s += "+"
		}
		if t.Persist {
			s += "P"
		}
		for _, f := range d.fill {
			if f.Table == t.Number {
				s += fmt.Sprint(f.Entries)
			}
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// TestPFTables checks the tables of pf after files were loaded one after the other, and that no two
// tables have the same number.
func TestPFTables(t *testing.T) {
	type file struct{ anchor, text string }
	for _, test := range []struct {
		name  string
		files []file
		want  []string
	}{
		{"persist", []file{{"", "table <a> persist\ntable <b> { 10.0.0.1 }\npass\n"}}, []string{"a+P"}},
		{"used", []file{{"", "table <a> { 10.0.0.1 !10.0.0.2 }\npass from <a>\n"}}, []string{"a+[10.0.0.1 !10.0.0.2]"}},
		{"file", []file{{"", `table <a> file "list"` + "\npass from <a>\n"}}, []string{"a+[10.7.0.1 10.7.0.2]"}},
		{"named alone", []file{{"", "pass from <a>\n"}}, []string{"a"}},
		{"overload", []file{{"", "pass keep state (max-src-conn 3, overload <bad>)\n"}}, []string{"bad"}},
		{"not any more", []file{{"", "table <a> { 10.0.0.1 }\npass from <a>\n"}, {"", "pass\n"}}, nil},
		{"defined twice", []file{{"", "table <a> { 10.0.0.1 }\ntable <a> { 10.0.0.2 }\npass from <a>\n"}}, []string{"a+[10.0.0.2]"}},
		{"defined twice, the last without contents", []file{{"", "table <a> { 10.0.0.1 }\ntable <a> persist\n"}}, []string{"a+P"}},
		{"persists", []file{{"", "table <a> persist\n"}, {"", "pass\n"}}, []string{"a+P"}},
		{"other contents", []file{{"", "table <a> persist { 10.0.0.1 }\n"}, {"", "table <a> persist { 10.0.0.2 }\n"}}, []string{"a+P[10.0.0.2]"}},
		{"in an anchor", []file{{"", "table <a> persist\n"}, {"x", "table <a> { 10.0.0.3 }\npass from <a>\n"}, {"", "anchor x\n"}}, []string{"a+P", "x/a+[10.0.0.3]"}},
		{"the main one's", []file{{"", "table <a> persist\nanchor x\n"}, {"x", "pass from <a>\n"}}, []string{"a+P"}},
		{"between braces", []file{{"", "anchor x {\n table <a> { 10.0.0.1 }\n pass from <a>\n}\n"}}, []string{"x/a+[10.0.0.1]"}},
		{"load anchor", []file{{"", "table <bad> persist\nanchor night\n" + `load anchor night from "night"` + "\n"}}, []string{"bad+P", "night/home+[10.9.0.0/16]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := noPF()
			for _, f := range test.files {
				loadPF(t, d, f.anchor, f.text)
			}
			if diff := cmp.Diff(test.want, d.tables()); diff != "" {
				t.Error(diff)
			}
			numbers := map[int]bool{}
			for _, table := range d.Tables {
				if numbers[table.Number] {
					t.Errorf("number %d twice", table.Number)
				}
				numbers[table.Number] = true
				if d.freed&(1<<table.Number) != 0 {
					t.Errorf("number %d of %s is said to be free", table.Number, table.Name)
				}
			}
		})
	}
}

// TestPFRedefined checks for a note about each table that is defined twice in one place, and no
// other note.
func TestPFRedefined(t *testing.T) {
	const text = `
		table <a> { 10.0.0.1 }
		table <a> persist
		table <b>
		table <a>
		anchor x on { p1 p2 } {
			table <a>
			table <b>
			table <b>
		}
		load anchor y from "twice"`
	set, err := pf.Parse("pf.conf", []byte(text), pf.Source{Open: func(string) ([]byte, error) {
		return []byte(strings.Repeat("table <c>\n", 4)), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"pf.conf:3:3: table <a> is defined again; its definition at pf.conf:2:3 has no effect",
		"pf.conf:5:3: table <a> is defined again; its definition at pf.conf:3:3 has no effect",
		"pf.conf:9:4: table <b> is defined again; its definition at pf.conf:8:4 has no effect",
		"3 more tables are defined again",
	}
	if diff := cmp.Diff(want, redefined(set)); diff != "" {
		t.Error(diff)
	}
}

// TestPFIdle checks for notes about words that are accepted and have no effect.
func TestPFIdle(t *testing.T) {
	text := `
		table <a> persist counters
		match out on { p1 p2 } set prio (3, 6)
		match set prio 5
		pass set prio 5 scrub (no-df) set tos 0x10 allow-opts
		block log (all, user)
		pass keep state (pflow)
		anchor x on { p1 p2 } set (prio 3, tos 4) scrub (max-mss 1400) allow-opts {
			match set prio 1
			pass keep state (pflow, no-sync)
		}
		anchor y scrub (no-df)
		load anchor y from "idle"`
	set, err := pf.Parse("pf.conf", []byte(text), pf.Source{Open: func(string) ([]byte, error) {
		return []byte("set state-defaults pflow\npass log (user)\n"), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"pf.conf:2:3: counters has no effect: the addresses of a table are not counted one by one",
		"pf.conf:3:3: set prio has no effect: a match rule sets no priority; say it in the rule that passes (2 more)",
		"pf.conf:6:3: log (user) has no effect: a switch does not know whose a packet is (1 more)",
		"pf.conf:7:3: pflow has no effect: flows are not exported (2 more)",
		"pf.conf:8:3: set prio has no effect: the call of an anchor changes no packets; say it in the rules of the anchor",
		"pf.conf:8:3: set tos has no effect: the call of an anchor changes no packets; say it in the rules of the anchor",
		"pf.conf:8:3: scrub has no effect: the call of an anchor changes no packets; say it in the rules of the anchor (1 more)",
		"pf.conf:8:3: allow-opts has no effect: the call of an anchor passes nothing; say it in the rules of the anchor",
	}
	if diff := cmp.Diff(want, idle(set)); diff != "" {
		t.Error(diff)
	}
}

// TestPFElsewhere checks for notes about rules whose ports do not translate, and no other notes.
func TestPFElsewhere(t *testing.T) {
	text := `
		match out on p1 inet from 10.0.0.0/8 nat-to 10.0.0.1
		match in on { p1 gw1 } inet to 10.0.0.1 rdr-to 10.0.0.2
		match out on gw1 inet nat-to 10.0.0.1
		match out on gw inet nat-to 10.0.0.1
		match out on mixed inet nat-to 10.0.0.1
		match out on p9 inet nat-to 10.0.0.1
		match out on ! p1 inet nat-to 10.0.0.1
		match out inet nat-to 10.0.0.1
		anchor a {
			pass out on uplinks inet to any nat-to 10.0.0.1
			match on p2 inet from 10.0.0.1 binat-to 10.0.0.2
		}
		load anchor b from "old"`
	set, err := pf.Parse("pf.conf", []byte(text), pf.Source{Open: func(string) ([]byte, error) {
		return []byte("nat on p1 inet from any to any -> 10.0.0.1\n"), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ports := []pf.CompilePort{
		{Name: "p1", Groups: []string{"uplinks", "mixed"}}, {Name: "p2", Groups: []string{"uplinks"}}, {Name: "gw1", Groups: []string{"mixed"}, Host: true},
	}
	want := []string{
		"pf.conf:2:40: nat-to never holds: p1 is no host port, and what the rule matches is dropped; give a host port",
		"pf.conf:3:43: rdr-to never holds: p1 is no host port, and what the rule matches is dropped; give a host port",
		"pf.conf:11:36: nat-to never holds: no port of uplinks is a host port, and what the rule matches is dropped; give a host port",
		"2 more rules never translate or route, since what they name is no host port",
	}
	if diff := cmp.Diff(want, untranslated(set, ports)); diff != "" {
		t.Error(diff)
	}
	if list := untranslated(set, nil); len(list) != 0 {
		t.Errorf("without ports: %q", list)
	}
}

// TestPFUnseen checks for a note about each word that has no effect at the present ports.
func TestPFUnseen(t *testing.T) {
	ports := []pf.CompilePort{{Name: "p1"}, {Name: "p2"}, {Name: "gw1", Host: true}, {Name: "gw2", Host: true}, {Name: "q1", Skip: true}}
	tests := []struct {
		text string
		want []string
	}{
		{"block on q1\npass on q\nblock in on q1\nblock on { q1 p1 }", []string{
			"1:1: on q1 has no effect: pf does not judge it, as the bridge's pf-ports says (2 more)",
			"2:1: on q has no effect: pf does not judge it, as the bridge's pf-ports says"}},
		{"anchor a {\nmatch out on gw1 received-on p1\n}\npass out on gw received-on p", []string{
			"2:1: received-on p1 has no effect: what leaves the host has come to it by one of its own ports; name that",
			"4:1: received-on p has no effect: what leaves the host has come to it by one of its own ports; name that"}},
		{"pass in on gw1 tag x no state\nblock out tagged x", []string{
			"1:1: tag x has no effect: where the host sends the packet on, as no state keeps it; leave out no state"}},
		{"block on { p1 gw1 }\npass on ! q1\npass on missing\nmatch out on gw1 received-on gw2\nmatch out on gw1 ! received-on p1\nmatch out on p1 received-on p2\nmatch in on gw1 received-on p1\nmatch out received-on p1", nil},
		{"pass in on gw1 tag x no state\nmatch in on gw1 tag x\npass in on gw1 tag x", nil},
		{"pass in on gw1 tag x\npass out tagged x", nil},
		{"pass in on gw1 proto tcp synproxy state\npass in proto tcp synproxy state\npass in on p1 proto tcp synproxy state", []string{
			"1:1: synproxy state has no effect: at a host port it is modulate state: the host answers itself"}},
	}
	for _, tt := range tests {
		set, err := pf.Parse("pf.conf", []byte(tt.text+"\n"), pf.Source{})
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		got := notedIdle(set.Unseen(ports))
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "pf.conf:")
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q: %s", tt.text, diff)
		}
	}
	set, err := pf.Parse("pf.conf", []byte("pass tag x no state\nblock tagged x\n"), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Unseen(ports[:2]); got != nil {
		t.Errorf("without a host port: %v", got)
	}
}

// TestPFJudged checks for a note about the ports at which a rule blocks everything by default.
func TestPFJudged(t *testing.T) {
	port := func(name string, host, skip bool) pf.CompilePort {
		return pf.CompilePort{Name: name, Host: host, Skip: skip}
	}
	all := []pf.CompilePort{port("p1", false, false), port("p2", false, false), port("gw1", true, false)}
	host := []pf.CompilePort{port("p1", false, true), port("p2", false, true), port("gw1", true, false)}
	station := []pf.CompilePort{port("p1", false, false), port("p2", false, false), port("gw1", true, true)}
	var many []pf.CompilePort
	for i := range 10 {
		many = append(many, port(fmt.Sprint("p", i), false, false))
	}
	const router = "if the file is a router's: bascule bridge set br0 --pf-ports host"
	tests := []struct {
		text  string
		ports []pf.CompilePort
		want  string // "" for no note
	}{
		{"block", all, "1:1: block holds at the host's ports, gw1, and the stations' ports, p1, p2, which then cannot reach each other; " + router},
		{"block", slices.Concat(many, all[2:]), "1:1: block holds at the host's ports, gw1, and the stations' ports, p0, p1, p2, p3, p4, p5, p6, p7 and 2 more, which then cannot reach each other; " + router},
		{"block", host, "1:1: block holds only at the host's ports, gw1, not between stations"},
		{"block", station, "1:1: block holds only at the stations' ports, p1, p2, not at the host's"},
		{"block", host[:2], "1:1: block holds at no port of br0: its setting pf-ports leaves all of them out"},
		{"block", all[:2], ""},
		{"block", all[2:], ""},
		{"block", nil, ""},
		// as users write it
		{"match in all\nblock return log all\npass out\npass in on gw1 proto tcp\n", host, "2:1: block holds only at the host's ports, gw1, not between stations"},
		{"block in log quick\npass", host, "1:1: block holds only at the host's ports, gw1, not between stations"},
		{"block on any", host, "1:1: block holds only at the host's ports, gw1, not between stations"},
		// another rule passes the rest
		{"block return\npass", all, ""},
		{"pass quick\nblock", all, ""},
		{"block\npass in\npass out", all, ""},
		{"block\npass in\npass out on gw1", all, "1:1: block holds at the host's ports, gw1, and the stations' ports, p1, p2, which then cannot reach each other; " + router},
		{"block inet\nblock on gw1\nblock from 10.0.0.1\nblock proto udp to port 1:65535\nblock tagged A\nblock proto tcp\nblock probability 50%\nblock fragment", all, ""},
	}
	for _, tt := range tests {
		set, err := pf.Parse("pf.conf", []byte(tt.text+"\n"), pf.Source{})
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		got := strings.Join(judged(set, "br0", tt.ports), "\n")
		if want := tt.want; want != "" && got != "pf.conf:"+want || want == "" && got != "" {
			t.Errorf("%q: %q, want %q", tt.text, got, want)
		}
	}
}

// TestPFTableNumbers: a table with new contents gets a number that the former rules do not use;
// other tables keep their numbers.
func TestPFTableNumbers(t *testing.T) {
	d := noPF()
	loadPF(t, d, "", "table <given> persist { 10.0.0.1 }\ntable <kept> persist\npass from <kept>\n")
	given, kept := d.find("", "given").Number, d.find("", "kept").Number
	d.fill, d.freed = nil, 0 // loaded
	loadPF(t, d, "", "table <given> persist { 10.0.0.2 }\ntable <kept> persist\npass from <kept>\n")
	if n := d.find("", "given").Number; n == given || d.freed != 1<<given {
		t.Errorf("given: %d after %d, free %b", n, given, d.freed)
	}
	if n := d.find("", "kept").Number; n != kept || len(d.fill) != 1 {
		t.Errorf("kept: %d after %d, filled %v", n, kept, d.fill)
	}
	// if all numbers are used, a table is filled in place
	text := ""
	for i := range pf.MaxTables {
		text += fmt.Sprintf("table <t%d> persist { 10.0.0.1 }\n", i)
	}
	d = noPF()
	loadPF(t, d, "", text)
	d.fill, d.freed = nil, 0
	loadPF(t, d, "", text)
	if d.freed != 0 || len(d.Tables) != pf.MaxTables {
		t.Errorf("free %b of %d tables", d.freed, len(d.Tables))
	}
	for _, table := range d.Tables {
		n := 0
		for _, f := range d.fill {
			if f.Table == table.Number {
				n++
			}
		}
		if n != 1 {
			t.Errorf("table %s is filled %d times", table.Name, n)
		}
	}
}

// TestPFAnchors: rules loaded into an anchor stay when other anchors are loaded, and rules between
// braces replace them.
func TestPFAnchors(t *testing.T) {
	paths := func(d *pfConfig) string {
		var list []string
		for _, path := range slices.Sorted(maps.Keys(d.rulesets())) {
			list = append(list, fmt.Sprintf("%s:%d", path, len(d.rulesets()[path].Rules)))
		}
		return strings.Join(list, " ")
	}
	d := noPF()
	for _, step := range []struct{ anchor, text, want string }{
		{"", "anchor x\npass\n", ":2 x:0"},
		{"x", "block\nblock\n", ":2 x:2"},
		{"", "anchor x\n", ":1 x:2"},
		{"x/y", "block\n", ":1 x:2 x/y:1"},
		{"", "anchor x {\n pass\n anchor y\n}\n", ":1 x:2 x/y:1"},
		{"x", "block\nblock\nblock\n", ":1 x:3 x/y:1"},
		{"", "anchor {\n pass\n}\n" + `load anchor night from "night"` + "\n", ":1 _0:1 night:2 x:3 x/y:1"},
	} {
		loadPF(t, d, step.anchor, step.text)
		if got := paths(d); got != step.want {
			t.Errorf("after %q into %q: %s, want %s", step.text, step.anchor, got, step.want)
		}
	}
	if err := d.emptyAnchor("test", "x"); err != nil || paths(d) != ":1 _0:1 night:2 x/y:1" {
		t.Errorf("flushed: %s, %v", paths(d), err)
	}
	if err := d.emptyAnchor("test", "nowhere"); err == nil {
		t.Error("an anchor that is not there was flushed")
	}
	if strings.Contains(d.Main, "load") || strings.Contains(d.Anchors["night"], "table") {
		t.Errorf("kept as text: %q, %q", d.Main, d.Anchors)
	}
}

// TestPFBelow: anchors exist if they have anchors or tables below them, even without rules of their
// own.
func TestPFBelow(t *testing.T) {
	d := noPF()
	loadPF(t, d, "", "anchor \"d/*\"\nanchor {\npass\n}\n")
	loadPF(t, d, "d/x", "pass\n")
	loadPF(t, d, "d/y/z", "table <in> persist\npass\n")
	loadPF(t, d, "t/u", "table <in> persist\n")
	delete(d.anchors, "t/u")
	rules := PFRules{Anchors: d.rulesets()}
	for path, want := range map[string][]string{"": {"d"}, "d": {"x", "y"}, "d/y": {"z"}, "d/x": nil, "t": nil, "e": nil} {
		if diff := cmp.Diff(want, rules.Below(path)); diff != "" {
			t.Errorf("below %q (-want +got)\n%s", path, diff)
		}
	}
	for path, want := range map[string]bool{"d": true, "d/y": true, "d/x": false, "t": true, "t/u": true, "e": false, "t/v": false} {
		if got := d.hasBelow(path); got != want {
			t.Errorf("there is something below %s: %v, want %v", path, got, want)
		}
	}
}

func TestPFEmptyBelow(t *testing.T) {
	for path, want := range map[string][]string{
		"":  {""}, // as after emptying the main ruleset
		"a": {"", "a", "c", "d/x", "d/y/z"},
		"d": {"", "a", "a/b", "c"},
	} {
		d := noPF()
		loadPF(t, d, "", "anchor \"a\" {\npass\nanchor \"b\" {\nblock\n}\n}\nanchor \"c\"\nanchor \"d/*\"\n")
		loadPF(t, d, "d/x", "pass\n")
		loadPF(t, d, "d/y/z", "pass\n")
		loadPF(t, d, "a/b", "pass\n")
		if path == "" {
			if err := d.replaceMain(func(set *pf.Ruleset) { set.Rules = nil }); err != nil {
				t.Fatal(err)
			}
		} else if err := d.emptyAnchor("", path); path == "a" && err != nil {
			t.Fatal(err)
		}
		d.emptyBelow(path)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(d.rulesets()))); diff != "" {
			t.Errorf("with what is below %q emptied (-want +got)\n%s", path, diff)
		}
	}
}

func TestCheckAnchor(t *testing.T) {
	for _, name := range []string{"*", "a/*", "_1", "a/_1", "a//b", strings.Repeat("x", 1024)} {
		if checkAnchor(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"", "a", "a/b", "/a/", "authpf/smith(1234)"} {
		if err := checkAnchor(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
