// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// pfMemory: tables have the sizes of the limits, when these rise and when they fall. A size
// that needs too much memory is refused, and nothing changes.
func pfMemory(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	type limits struct {
		States uint32
		Memory struct{ States uint64 }
	}
	now := func() (v limits) {
		t.Helper()
		r, err := l.Run("-j", "pfctl", "-s", "memory")
		must(t, err)
		must(t, json.Unmarshal([]byte(r.Stdout), &v))
		return v
	}
	const rules = "pass keep state\n"
	load := func(set string) limits {
		t.Helper()
		loadPF(t, l, set+rules)
		return now()
	}
	plain := load("")
	if plain.States != 100000 || plain.Memory.States < 5<<20 {
		t.Errorf("without limits: %+v", plain)
	}
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	l.Reach(ends[0], udps(20, B, A, ip1, ip2, [2]int{1, 2}), ends[1])
	if large := load("set limit states 300000\n"); large.Memory.States < 2*plain.Memory.States {
		t.Errorf("with 300000 states: %+v, without limits: %+v", large, plain)
	}
	small := load("set limit states 1000\n")
	if small.States != 1000 || small.Memory.States > plain.Memory.States/10 {
		t.Errorf("with 1000 states: %+v, without limits: %+v", small, plain)
	}
	if states := pfctl(t, l, "", "-ss"); strings.Count(states, "\n") != 1 {
		t.Errorf("the state did not stay: %q", states)
	}

	refused := func(text string, words ...string) {
		t.Helper()
		for _, flag := range []string{"-nf", "-f"} {
			if r := tryPfctl(t, l, text+rules, "-b", "br0", flag, "-"); r.CheckRefusal(words...) != nil || r.Exit != 1 {
				t.Errorf("%q: %s", text, r)
			}
		}
		if after := now(); after != small {
			t.Errorf("%q is refused, and now it is %+v, before %+v", text, after, small)
		}
	}
	const too = "4000000000" // states need 546 GiB
	refused("set limit states "+too+"\n", "set limit states "+too+" would take 546.4 GiB", "are free", "--force")
	refused("set limit src-nodes "+too+"\n", "set limit src-nodes "+too+" would take", "are free")
	refused("set limit frags "+too+"\n", "set limit frags "+too+" would take", "are free")
	refused("set limit table-entries "+too+"\n", "set limit table-entries "+too+" would take", "are free")
	if r := tryPfctl(t, l, "set limit states "+too+"\n"+rules, "-b", "br0", "--force", "-f", "-"); r.CheckRefusal("more than a table can have") != nil {
		t.Errorf("forced: %s", r)
	}

	// A file is refused before any change is made.
	file := filepath.Join(t.TempDir(), "a.yaml")
	must(t, os.WriteFile(file, []byte("bridges:\n  br1:\n  br2:\n    pf:\n      rules: |\n        set limit states "+too+"\n        pass\n"), 0o600))
	l.Refused([]string{"set limit states " + too, "are free"}, "apply", file)
	if r, err := l.Run("bridge", "show", "br1"); err != nil || r.Exit == 0 {
		t.Errorf("the file is refused, and a bridge is there: %s", r)
	}

	load("set limit states 300000\n")
	pfctl(t, l, "", "-F", "all")
	if after := now(); after.Memory.States > plain.Memory.States*5/4 {
		t.Errorf("after -F all: %+v, want %+v", after, plain)
	}
}

// pfDummy: -n checks the table, counts, and changes nothing.
func pfDummy(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	loadPF(t, l, "table <bad> persist { 10.0.0.9 }\ntable <fixed> const { 10.0.0.1 10.0.0.2 }\nset limit table-entries 10\nblock from <bad>\nblock from <fixed>\n")
	for _, test := range []struct {
		want string
		exit int
		args string
	}{
		{"3/3 addresses added (dummy).\n", 0, "-nt bad -T add 10.0.0.1 10.0.0.2 10.1.0.0/16"},
		{"A  10.0.0.1\n1/2 addresses added (dummy).\n", 0, "-nvt bad -T add 10.0.0.1 10.0.0.9"},
		{"D  10.0.0.9\n1/2 addresses deleted (dummy).\n", 0, "-nvt bad -T delete 10.0.0.1 10.0.0.9"},
		{"1 addresses added (dummy).\n1 addresses deleted (dummy).\n", 0, "-nt bad -T replace 10.0.0.1"},
		{"no changes (dummy).\n", 0, "-nt bad -T replace 10.0.0.9"},
		{"1/1 addresses match (dummy).\n", 0, "-nt bad -T test 10.0.0.9"},
		{"0/1 addresses match (dummy).\n", 2, "-nt bad -T test 10.0.0.1"},
		{"1 addresses deleted (dummy).\n", 0, "-nt bad -T flush"},
		{"1 table/stats cleared (dummy).\n", 0, "-nt bad -T zero"},
		{"1 table deleted (dummy).\n", 0, "-nt bad -T kill"},
		{"1 table created (dummy).\n2/2 addresses added (dummy).\n", 0, "-nt other -T add 10.0.0.1 10.0.0.2"},
	} {
		if r := tryPfctl(t, l, "", strings.Fields(test.args)...); r.Exit != test.exit || r.Stdout+r.Stderr != test.want {
			t.Errorf("%s: %s\nwant %q", test.args, r, test.want)
		}
	}
	refuse := func(words []string, args string) netlab.Result {
		t.Helper()
		return l.Refused(words, append([]string{"pfctl"}, strings.Fields(args)...)...)
	}
	refuse([]string{"Table does not exist"}, "-nt other -T delete 10.0.0.1")
	refuse([]string{"Table does not exist"}, "-nt other -T kill")
	refuse([]string{"const"}, "-nt fixed -T add 10.0.0.3")
	refuse([]string{"const"}, "-nt fixed -T flush")
	many := ""
	for i := range 10 {
		many += " 10.2.0." + string(rune('0'+i))
	}
	refuse([]string{"as many entries"}, "-nt bad -T add"+many)
	refuse([]string{"as many entries"}, "-t other -T add"+many) // nor is the table created
	wantPF(t, l, "bad\nfixed\n", "-s", "Tables")
	wantPF(t, l, "   10.0.0.9\n", "-t", "bad", "-T", "show")
}
