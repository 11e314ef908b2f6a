// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// formerLayouts are the numbers of the layouts that bridges are taken over from.
func formerLayouts(t *testing.T) (list []uint32) {
	t.Helper()
	all, err := layoutRecordsByNumber()
	if err != nil {
		t.Fatal(err)
	}
	for n := range all {
		if n != layout {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// givenUp are members of former layouts that a bridge loses when it is taken over, which the
// command reports.
var givenUp []string

// A bridge of any former layout that has a record can be taken over. At least the last three
// layouts have one. After a change that keeps the former and the new programs from using a
// table side by side, the code has to define how the table is taken over.
func TestFormerLayouts(t *testing.T) {
	list := formerLayouts(t)
	if want := []uint32{layout - 3, layout - 2, layout - 1}; len(list) < 3 || !slices.Equal(list[len(list)-3:], want) {
		t.Errorf("there are records of the layouts %v, want those of %v", list, want)
	}
	is := recordOf(layout)
	for _, n := range list {
		was := recordOf(n)
		b := &Bridge{former: n}
		b.Config.Features = uint64(kernelFeatureFEATURE_PATCH)
		b.Config.Pf.Buckets = 1
		if err := b.adoptable(); err != nil {
			t.Errorf("layout %d: %v", n, err)
		}
		for _, name := range numberedEnums {
			if list := was.renumbered(is, "enum "+name); len(list) > 0 {
				t.Errorf("layout %d: %v of enum %s have other numbers now", n, list, name)
			}
		}
		r := &rereading{from: was, to: is, lost: map[string]bool{}}
		for subject := range was {
			name, ok := strings.CutPrefix(subject, "pinned ")
			if !ok || was.sameTable(is, name) {
				continue
			}
			had, has := was.shape(name), is.shape(name)
			if name == configPin || name == settingsPin {
				had.value, has.value = was.pinned(name), is.pinned(name)
			} else if is.pinned(name) == "" {
				continue // it is removed
			}
			if had.key != has.key {
				t.Errorf("layout %d: the keys of %s are %s, and were %s", n, name, has.key, had.key)
			}
			full := bytes.Repeat([]byte{0x41}, sizeOf(had.value)) // lost values are reported
			if err := r.value(make([]byte, sizeOf(has.value)), has.value, full, had.value); err != nil {
				t.Errorf("layout %d: %s: %v", n, name, err)
			}
		}
		for name := range r.lost {
			if !slices.Contains(givenUp, name) {
				t.Errorf("layout %d: nothing reads %s", n, name)
			}
		}
	}
}

// A value of another layout is read by the names of its members, wherever they are and of
// any size. Members that had a value and have no place in the present layout are reported.
func TestReadFormer(t *testing.T) {
	was := parseRecord(strings.TrimSpace(`
enum mode: MODE_A is 0x0
enum mode: MODE_B is 0x1
pinned t: Hash, flags 0x0, key unsigned of 4, value struct old of 24, 8 entries
struct inner: a at 0, unsigned of 2
struct inner: pad at 2, unsigned of 2
struct old: gone at 0, unsigned of 4
struct old: in at 4, 2 times struct inner of 4
struct old: mode at 12, enum mode of 4
struct old: low at 16, signed of 2
struct old: pad2 at 18, unsigned of 2
struct old: wide at 20, unsigned of 4`))
	is := parseRecord(strings.TrimSpace(`
enum mode: MODE_A is 0x0
enum mode: MODE_B is 0x1
enum mode: MODE_C is 0x2
struct fresh: a at 2, unsigned of 2
struct fresh: more at 0, unsigned of 2
struct old: in at 8, 3 times struct fresh of 4
struct old: low at 0, signed of 4
struct old: mode at 4, enum mode of 4
struct old: wide at 20, unsigned of 2`))
	from := []byte{
		0, 0, 0, 0, // gone
		1, 2, 9, 9, 3, 4, 9, 9, // in
		1, 0, 0, 0, // mode
		0xfe, 0xff, 7, 7, // low
		5, 6, 0, 0, // wide
	}
	read := func(from []byte) ([]byte, map[string]bool, error) {
		r := &rereading{from: was, to: is, lost: map[string]bool{}}
		to := make([]byte, 22)
		err := r.value(to, "struct old of 22", from, "struct old of 24")
		return to, r.lost, err
	}
	to, lost, err := read(from)
	want := []byte{0xfe, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0, 5, 6}
	if err != nil || !bytes.Equal(to, want) || len(lost) > 0 {
		t.Errorf("%v, lost %v, error %v; want %v", to, lost, err, want)
	}
	from[0] = 1
	if _, lost, err := read(from); err != nil || !lost["old.gone"] || len(lost) != 1 {
		t.Errorf("lost %v, error %v; want old.gone", lost, err)
	}
	from[22] = 1
	if _, _, err := read(from); err == nil || !strings.Contains(err.Error(), "wide of struct old") {
		t.Errorf("error %v, want one that says that wide does not fit", err)
	}
	is["enum mode"][1] = "MODE_B is 0x3"
	from[22] = 0
	if _, _, err := read(from); err == nil || !strings.Contains(err.Error(), "other numbers") {
		t.Errorf("error %v, want one that says that the enum has other numbers", err)
	}
}

// Programs of two layouts use a table side by side only if all that the former ones write
// has the same meaning for the new ones, and the reverse.
func TestSideBySide(t *testing.T) {
	const table = "pinned t: Array, flags 0x0, key unsigned of 4, value struct s of 16, 8 entries\n"
	was := parseRecord(table + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 4\nstruct s: pad at 8, 2 times unsigned of 4")
	renamed["struct s.c"] = "b"
	defer delete(renamed, "struct s.c")
	for _, tt := range []struct {
		name string
		is   string
		same bool
	}{
		{"the same", table + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 4\nstruct s: pad at 8, unsigned of 8", true},
		{"a member in the padding", table + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 4\nstruct s: n at 8, unsigned of 8", true},
		{"another name", table + "struct s: a at 0, unsigned of 4\nstruct s: c at 4, unsigned of 4\nstruct s: n at 8, unsigned of 8", true},
		{"a name that is not known", table + "struct s: a at 0, unsigned of 4\nstruct s: d at 4, unsigned of 4", false},
		{"a member that is gone", table + "struct s: a at 0, unsigned of 4\nstruct s: pad at 4, unsigned of 4", false},
		{"a member elsewhere", table + "struct s: b at 0, unsigned of 4\nstruct s: a at 4, unsigned of 4", false},
		{"a member of another size", table + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 8", false},
		{"another size", strings.Replace(table, "of 16", "of 24", 1) + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 4", false},
		{"other flags", strings.Replace(table, "0x0", "0x1", 1) + "struct s: a at 0, unsigned of 4\nstruct s: b at 4, unsigned of 4", false},
		{"no table", "struct s: a at 0, unsigned of 4", false},
	} {
		if same := was.sameTable(parseRecord(tt.is), "t"); same != tt.same {
			t.Errorf("%s: %v", tt.name, same)
		}
	}
}

// A former version's note is read about a port that has left while its device was out of
// reach: only the note allows giving back the port's settings.
func TestOwedByFormer(t *testing.T) {
	for _, n := range append(formerLayouts(t), layout) {
		r := recordOf(n)
		port := make([]byte, sizeOf(r.port()))
		fields := r.members(typeName(r.port()))
		binary.NativeEndian.PutUint32(port[fields["id"].at:], 0x80401)
		binary.NativeEndian.PutUint32(port[fields["taken"].at:], uint32(PortWasPromisc|PortHadLRO))
		copy(port[fields["name"].at:], "eth7")
		raw := append(binary.NativeEndian.AppendUint32(nil, n), 0, 0, 0, 0)
		raw = append(raw, port...)
		s := newShelf(t, 0)
		b := s.create("br0", 0)
		dir := b.pin("owed")
		s.do(func() error {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return pinNew(filepath.Join(dir, owedPort), ebpf.Array, uintptr(len(raw)), map[uint32][]byte{0: raw})
		})
		record, err := readOwed(dir)
		p := &record.Port
		if err != nil || p.Id != 0x80401 || PortName(p) != "eth7" || PortTaken(p.Taken) != PortWasPromisc|PortHadLRO {
			t.Errorf("layout %d: port %#x %q took %v, error %v", n, p.Id, PortName(p), p.Taken, err)
		}
	}
}
