// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// layoutRecords is the folder with the layouts of pinned objects, by their numbers: the
// present layout of config.go, and former ones.
const layoutRecords = "layouts"

// layoutFile is the record of a layout.
func layoutFile(number int) string { return filepath.Join(layoutRecords, fmt.Sprint(number, ".txt")) }

var recordLayout = flag.Bool("layout.record", false, "record the layout of what is pinned, if its number fits")

// howToRecord is the command that records a layout.
const howToRecord = "go test ./datapath -run 'TestLayout$' -layout.record"

// numberedEnums are the enums whose numbers are pinned, in members of other types.
var numberedEnums = []string{
	"capture_point", "control_protocol", "drop_reason", "event_kind", "rule_kind", "stp_choice", "stp_state", "vlan_admit",
	"pf_action", "pf_ask", "pf_counter", "pf_ether_flag", "pf_other_state", "pf_ports", "pf_return", "pf_rule_flag",
	"pf_state_flag", "pf_tcp_state", "pf_timeout",
}

// handedOver are the types that are passed through pinned rings, and to and from pinned
// programs.
var handedOver = []string{"captured", "control_frame", "pf_logged", "control", "pf_table_request"}

// counts are enumerators that are the number of constants. An array of such a length
// has its length recorded.
var counts = map[string]bool{
	"CONTROL_PROTOCOLS": true, "DROP_REASONS": true, "EVENT_KINDS": true, "FEATURE_END": true, "PF_COUNTERS": true, "PF_TIMEOUTS": true,
}

var ints = map[btf.IntEncoding]string{
	btf.Unsigned: "unsigned", btf.Signed: "signed", btf.Char: "char", btf.Bool: "bool",
}

// A layouter records types.
type layouter struct {
	lines []string
	seen  map[string]bool
}

func (l *layouter) line(format string, a ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, a...))
}

// of returns a short name of a type, and records its members.
func (l *layouter) of(t *testing.T, typ btf.Type) string {
	t.Helper()
	size, err := btf.Sizeof(typ)
	if err != nil {
		t.Fatalf("%v: %v", typ, err)
	}
	switch typ := btf.UnderlyingType(typ).(type) {
	case *btf.Int:
		return fmt.Sprintf("%s of %d", ints[typ.Encoding], size)
	case *btf.Array:
		return fmt.Sprintf("%d times %s", typ.Nelems, l.of(t, typ.Type))
	case *btf.Enum:
		l.enum(typ)
		return fmt.Sprintf("enum %s of %d", typ.Name, size)
	case *btf.Struct:
		return l.members(t, "struct "+typ.Name, size, typ.Members)
	case *btf.Union:
		return l.members(t, "union "+typ.Name, size, typ.Members)
	default:
		t.Fatalf("%T %v is in something that is pinned", typ, typ)
		return ""
	}
}

func (l *layouter) members(t *testing.T, name string, size int, list []btf.Member) string {
	if !l.seen[name] && name != "struct bpf_timer" { // which belongs to the kernel
		l.seen[name] = true
		for _, m := range list {
			what := l.of(t, m.Type)
			if m.BitfieldSize != 0 {
				t.Fatalf("%s has a bit field: %s", name, m.Name)
			}
			l.line("%s: %s at %d, %s", name, m.Name, m.Offset.Bytes(), what)
		}
	}
	return fmt.Sprintf("%s of %d", name, size)
}

func (l *layouter) enum(e *btf.Enum) {
	if l.seen["enum "+e.Name] {
		return
	}
	l.seen["enum "+e.Name] = true
	for _, v := range e.Values {
		if !counts[v.Name] {
			l.line("enum %s: %s is %#x", e.Name, v.Name, v.Value)
		}
	}
}

// pinnedLayout records the layout of all pinned objects.
func pinnedLayout(t *testing.T, spec *ebpf.CollectionSpec) []string {
	t.Helper()
	l := &layouter{seen: map[string]bool{}}
	for _, pin := range []string{configPin, settingsPin} { // each is a struct with its name
		var of *btf.Struct
		if err := spec.Types.TypeByName(pin, &of); err != nil {
			t.Fatal(err)
		}
		l.line("pinned %s: %s", pin, l.of(t, of))
	}
	for i := range inventory {
		table := &inventory[i]
		if table.life == lifePrograms {
			continue
		}
		m := spec.Maps[table.name]
		if table.own != nil {
			m = table.own()
		}
		key, value := fmt.Sprint("of ", m.KeySize), fmt.Sprint("of ", m.ValueSize)
		if m.Key != nil {
			key = l.of(t, m.Key)
		}
		if m.Value != nil {
			value = l.of(t, m.Value)
		}
		entries := "as many entries as it takes"
		if table.entries == nil {
			entries = fmt.Sprintf("%d entries", m.MaxEntries)
		}
		l.line("pinned %s: %v, flags %#x, key %s, value %s, %s", table.name, m.Type, m.Flags, key, value, entries)
	}
	for _, name := range handedOver {
		var what *btf.Struct
		if err := spec.Types.TypeByName(name, &what); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		l.of(t, what)
	}
	for _, name := range numberedEnums {
		var e *btf.Enum
		if err := spec.Types.TypeByName(name, &e); err != nil {
			t.Errorf("enum %s: %v", name, err)
			continue
		}
		l.enum(e)
	}
	slices.Sort(l.lines)
	return l.lines
}

// without returns the lines of a list that another does not have.
func without(list, other []string) (rest []string) {
	for _, line := range list {
		if !slices.Contains(other, line) {
			rest = append(rest, line)
		}
	}
	return rest
}

// differ lists lines that a list has and a record has not, and the reverse.
func differ(lines, record []string) (text string) {
	for _, line := range without(record, lines) {
		text += "\n- " + line
	}
	for _, line := range without(lines, record) {
		text += "\n+ " + line
	}
	return text
}

// judgeLayout returns what is wrong with a layout and its number, compared with a
// record; nothing if they may be recorded. changed reports whether they differ.
func judgeLayout(number int, lines []string, recorded int, record []string) (wrong string, changed bool) {
	gone, come := without(record, lines), without(lines, record)
	notEnum := func(line string) bool { return !strings.HasPrefix(line, "enum ") }
	added := len(gone) == 0 && !slices.ContainsFunc(come, notEnum)
	differences := differ(lines, record)
	switch {
	case number == recorded && len(gone)+len(come) == 0:
		return "", false
	case number == recorded && added:
		return "", true // constants that an older bridge does not have
	case number == recorded:
		return fmt.Sprintf("what is pinned has another layout, and layout (config.go) is still %d:%s\n"+
			"A bridge of before would be misread. Raise layout by one, then record it: %s",
			number, differences, howToRecord), true
	case number != recorded+1:
		return fmt.Sprintf("layout (config.go) is %d, and %d is recorded: raise it by one", number, recorded), true
	case added:
		return fmt.Sprintf("layout (config.go) is raised to %d, and what is pinned is as it was, "+
			"or has new constants alone:%s\nEvery bridge would have to be made anew for nothing: put layout back to %d",
			number, differences, recorded), true
	}
	return "", true
}

// readLayout reads the newest record.
func readLayout(t *testing.T) (number int, lines []string) {
	t.Helper()
	files, err := os.ReadDir(layoutRecords)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		n, err := strconv.Atoi(strings.TrimSuffix(f.Name(), ".txt"))
		if err != nil {
			t.Fatalf("%s has %s, which is no record", layoutRecords, f.Name())
		}
		number = max(number, n)
	}
	text, err := os.ReadFile(layoutFile(number))
	if err != nil {
		t.Fatal(err)
	}
	return number, strings.Split(strings.TrimSpace(string(text)), "\n")
}

// A change of the layout of pinned objects requires a new number, and a new number
// requires a change: an older bridge is not misread, and no bridge has to be made anew
// without need.
func TestLayout(t *testing.T) {
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	lines := pinnedLayout(t, spec)
	recorded, record := readLayout(t)
	wrong, changed := judgeLayout(layout, lines, recorded, record)
	switch {
	case wrong != "":
		t.Error(wrong)
	case changed && *recordLayout:
		if err := os.WriteFile(layoutFile(layout), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	case changed:
		t.Errorf("the layout of what is pinned, number %d, is not as %s has it:%s\nRecord it: %s",
			layout, layoutFile(recorded), differ(lines, record), howToRecord)
	}
}

// judgeLayout detects each kind of change.
func TestLayoutJudge(t *testing.T) {
	record := []string{"enum e: A is 0x1", "pinned t: value struct s of 8", "struct s: x at 0, unsigned of 8"}
	with := func(from, to string) []string {
		lines := slices.Clone(record)
		i := slices.Index(lines, from)
		if i < 0 {
			return append(lines, to)
		}
		lines[i] = to
		return lines
	}
	grown := with("pinned t: value struct s of 8", "pinned t: value struct s of 16")
	for _, tt := range []struct {
		name    string
		number  int
		lines   []string
		wrong   string
		changed bool
	}{
		{"nothing", 7, record, "", false},
		{"a new constant", 7, with("", "enum e: B is 0x2"), "", true},
		{"a constant of another value", 7, with("enum e: A is 0x1", "enum e: A is 0x2"), "Raise layout", true},
		{"a constant that is gone", 7, record[1:], "Raise layout", true},
		{"a size", 7, grown, "Raise layout", true},
		{"a new table", 7, with("", "pinned u: value struct s of 8"), "Raise layout", true},
		{"a table that is gone", 7, []string{record[0], record[2]}, "Raise layout", true},
		{"a size and the number", 8, grown, "", true},
		{"a new table and the number", 8, with("", "pinned u: value struct s of 8"), "", true},
		{"the number alone", 8, record, "put layout back to 7", true},
		{"the number for a new constant", 8, with("", "enum e: B is 0x2"), "put layout back to 7", true},
		{"two numbers", 9, grown, "by one", true},
		{"a number of before", 6, grown, "by one", true},
	} {
		wrong, changed := judgeLayout(tt.number, tt.lines, 7, record)
		if changed != tt.changed || (wrong == "") != (tt.wrong == "") || !strings.Contains(wrong, tt.wrong) {
			t.Errorf("%s: changed %v, %q; want %v, %q", tt.name, changed, wrong, tt.changed, tt.wrong)
		}
	}
}
