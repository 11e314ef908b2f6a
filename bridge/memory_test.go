// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/datapath"
	"bascule/pf"
)

// TestFreeMemory reads the memory that is available to the machine and in control groups of both
// versions, where either may leave less.
func TestFreeMemory(t *testing.T) {
	const mib = 1 << 20
	meminfo := map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"}
	for _, test := range []struct {
		name  string
		files map[string]string
		want  uint64
	}{
		{"no groups", nil, 4096 * mib},
		{"no limit", map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1000\n",
		}, 4096 * mib},
		{"a limit", map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/memory.current": "536870912\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 268435456\n",
		}, 768 * mib},
		{"a limit above", map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "5\n",
			"sys/fs/cgroup/a/memory.max": "104857600\n", "sys/fs/cgroup/a/memory.current": "209715200\n",
		}, 0},
		{"version 1", map[string]string{
			"proc/self/cgroup": "5:cpu,memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2097152\n",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1048576\n",
		}, mib},
	} {
		root := t.TempDir()
		for _, files := range []map[string]string{meminfo, test.files} {
			for name, text := range files {
				name = filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, err := freeMemory(root); got != test.want || err != nil {
			t.Errorf("%s: %d bytes, %v, want %d", test.name, got, err, test.want)
		}
	}
	if n, err := freeMemory("/"); n == 0 || err != nil {
		t.Errorf("here: %d bytes, %v", n, err)
	}
}

// TestCheckMemory refuses limits that would take more than a quarter of the free memory, but
// neither present limits nor defaults.
func TestCheckMemory(t *testing.T) {
	const gib = 1 << 30
	limits := func(change func(l *[pf.LimitCount]uint32)) [pf.LimitCount]uint32 {
		l := pf.DefaultLimits()
		change(&l)
		return l
	}
	states := func(n uint32) [pf.LimitCount]uint32 {
		return limits(func(l *[pf.LimitCount]uint32) { l[pf.LimitStates] = n })
	}
	var plain, large datapath.Config
	large.Pf.StatesMax = 100000000
	reassembles := pf.Program{Rules: []pf.CompiledRule{{Scrub: pf.CompiledScrub{Flags: pf.ScrubReassemble}}}}
	translates := pf.Program{Rules: []pf.CompiledRule{{Flags: pf.RuleTranslates}}}
	for _, test := range []struct {
		name  string
		free  uint64
		force bool
		list  []demand
		want  string // part of the error, "" for none
	}{
		{"default", 1 << 20, false, pfDemands(&plain, &pf.Program{}, pf.DefaultLimits()), ""},
		{"much", 23 * gib, false, pfDemands(&plain, &pf.Program{}, states(100000000)), "set limit states 100000000 would take 13.7 GiB of memory, and 23.0 GiB are free"},
		{"as it is", 23 * gib, false, pfDemands(&large, &pf.Program{}, states(100000000)), ""},
		{"less than it is", 23 * gib, false, pfDemands(&large, &pf.Program{}, states(90000000)), ""},
		{"forced", 23 * gib, true, pfDemands(&plain, &pf.Program{}, states(100000000)), ""},
		{"much memory", 64 * gib, false, pfDemands(&plain, &pf.Program{}, states(100000000)), ""},
		{"all that there are", 23 * gib, false, pfDemands(&plain, &pf.Program{}, states(4000000000)), "set limit states 4000000000 would take 546.4 GiB"},
		{"more than a table has", 64 * gib, true, pfDemands(&plain, &pf.Program{}, states(4000000000)), "is more than a table can have; give 2147483648 at most"},
		{"reassembled", 23 * gib, false, pfDemands(&plain, &reassembles, states(37000000)), "set limit states 37000000 would take 7.5 GiB"},
		{"not reassembled", 23 * gib, false, pfDemands(&plain, &pf.Program{}, states(37000000)), ""},
		{"translated", 23 * gib, false, pfDemands(&plain, &translates, states(37000000)), "set limit states 37000000 would take 10.1 GiB"},
		{"reassembled from now on", 23 * gib, false, pfDemands(&large, &reassembles, states(100000000)), "set limit states 100000000 "},
		{"sources", gib, false, pfDemands(&plain, &pf.Program{}, limits(func(l *[pf.LimitCount]uint32) { l[pf.LimitSrcNodes] = 10000000 })), "set limit src-nodes 10000000 "},
		{"fragments", gib, false, pfDemands(&plain, &pf.Program{}, limits(func(l *[pf.LimitCount]uint32) { l[pf.LimitFrags] = 10000000 })), "set limit frags 10000000 "},
		{"addresses", gib, false, pfDemands(&plain, &pf.Program{}, limits(func(l *[pf.LimitCount]uint32) { l[pf.LimitTableEntries] = 10000000 })), "set limit table-entries 10000000 "},
		{"together", gib, false, pfDemands(&plain, &pf.Program{}, limits(func(l *[pf.LimitCount]uint32) {
			l[pf.LimitStates], l[pf.LimitFrags] = 1000000, 1500000
		})), " with the other limits"},
		{"FDB", 512 << 20, false, []demand{fdbDemand(65536, 4<<20)}, "fdb-max 4194304 would take 192.0 MiB of memory, and 512.0 MiB are free"},
	} {
		s := &Switch{force: test.force, free: func() (uint64, error) { return test.free, nil }}
		err := s.checkMemory("set it", test.list)
		s.force = false
		if test.force {
			defer s.Restoring()()
		}
		if restored := s.checkMemory("set it", test.list); fmt.Sprint(restored) != fmt.Sprint(err) {
			t.Errorf("%s: what was there is %v, and with force %v", test.name, restored, err)
		}
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !Refused(err) || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// TestZeroLimits: the error for a limit of 0 says what it would allow, and points at the 0.
func TestZeroLimits(t *testing.T) {
	s := &Switch{}
	for i := range pf.LimitCount {
		line := "set limit { " + i.String() + " 0 }"
		at := strings.Index(line, "0")
		_, _, err := s.LoadPF("", PFLoad{Name: "pf.conf", Text: []byte("pass\n" + line + "\n"), Check: true})
		begin := fmt.Sprintf("pf.conf:2:%d: set limit %s 0 would allow ", at+1, i)
		end := "\n    " + line + "\n    " + strings.Repeat(" ", at) + "^"
		if err == nil || !strings.HasPrefix(err.Error(), begin) || !strings.HasSuffix(err.Error(), end) {
			t.Errorf("%s: %v", i, err)
		}
	}
}

// TestLimitsChecked: a mere check of a file, as apply makes it first, finds what exceeds the file's
// own limits.
func TestLimitsChecked(t *testing.T) {
	s := &Switch{}
	for _, test := range []struct{ text, want string }{
		{"set limit tables 1\ntable <a> { 10.0.0.1 }\ntable <b> { 10.0.0.1 }\npass from <a> to <b>\n", "there would be 2 tables, and the limit is 1; "},
		{"set limit table-entries 1\ntable <a> { 10.0.0.1 10.0.0.2 }\npass from <a>\n", "there would be 2 addresses in tables, and the limit is 1; "},
		{"set limit anchors 1\nanchor a {\nanchor b {\npass\n}\n}\n", "there would be 2 anchors, and the limit is 1; "},
		{"set limit anchors 1\nanchor {\nanchor b {\npass\n}\n}\nanchor {\npass\n}\n", ""},
		{"set limit { tables 64, anchors 65534 }\npass\n", ""},
		{"set limit tables 65\npass\n", "pf.conf:1:18: 65 is too large for a limit of tables; give at most 64"},
		{"set limit { states 5, tables 1000 }\npass\n", "pf.conf:1:30: 1000 is too large for a limit of tables; give at most 64"},
		{"set limit anchors 65535\npass\n", "pf.conf:1:19: 65535 is too large for a limit of anchors; give at most 65534"},
		{"set timeout interval 536870912\npass\n", "pf.conf:1:22: 536870912 is too large for a number of seconds; give at most 536870911"},
	} {
		_, _, err := s.LoadPF("", PFLoad{Name: "pf.conf", Text: []byte(test.text), Check: true})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.text, err, test.want)
		}
	}
}

// TestMissingChecked: features that the datapath lacks can be checked and printed, with notes.
// Loading such a file fails before anything changes.
func TestMissingChecked(t *testing.T) {
	s := &Switch{}
	text := []byte("table <t> { 192.0.2.1 }\npass in on em0 divert-packet port 8\nanchor a {\n\tpass in divert-packet port 9\n}\n")
	set, notes, err := s.LoadPF("", PFLoad{Name: "pf.conf", Text: text, Check: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := set.String(); !strings.Contains(got, "divert-packet port 8\n") || !strings.Contains(got, "divert-packet port 9\n") {
		t.Errorf("it is printed as\n%s", got)
	}
	if len(notes) != 2 || !strings.HasPrefix(notes[0], "pf.conf:2:16: divert-packet: ") || !strings.HasPrefix(notes[1], "pf.conf:4:10: divert-packet: ") {
		t.Errorf("notes: %q", notes)
	}
	var list pf.ErrorList
	if _, _, err = s.ComparePF("", PFLoad{Name: "pf.conf", Text: text}); !errors.As(err, &list) || len(list) != 2 || list[1].Line != "\tpass in divert-packet port 9" {
		t.Errorf("compared: %v", err)
	}
}
