// SPDX-License-Identifier: BSD-2-Clause

package machines

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A test that did not run, or skipped a part, has not Passed.
func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		e    ended
		want Result
	}{
		{ended{Name: "TestA", Output: "=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n"}, Passed},
		{ended{Name: "TestA/b", Output: "--- PASS: TestA (0.00s)\n    --- PASS: TestA/b (0.00s)\nPASS\n"}, Passed},
		{ended{Name: "TestA", Output: "testing: warning: no tests to run\nPASS\n"}, No},
		{ended{Name: "TestA", Output: "--- PASS: TestAB (0.00s)\nPASS\n"}, No},
		{ended{Name: "TestA", Output: "--- PASS: TestA (0.00s)\n    --- SKIP: TestA/b (0.00s)\nPASS\n"}, No},
		{ended{Name: "TestA", Status: 1, Output: "--- PASS: TestA (0.00s)\nFAIL\n"}, No},
		{ended{Name: "TestA", Status: 139, Output: ""}, No},
	} {
		if got := judge(tt.e); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.e, got, tt.want)
		}
	}
}

// A guest's reports are printed as they arrive, a line for each case.
func TestListen(t *testing.T) {
	var b bytes.Buffer
	results, err := listen(&b, "Linux 6.12", strings.NewReader(`{"Name":"TestA","Status":0,"Seconds":1.5,"Output":"--- PASS: TestA (1.50s)\n"}
{"Name":"TestB","Status":1,"Seconds":2,"Output":"b_test.go:1: bad\n--- FAIL: TestB (2s)\n"}
`))
	want := "ok   Linux 6.12: TestA (1.5s)\nFAIL Linux 6.12: TestB (2.0s)\n  status 1\n  b_test.go:1: bad\n  --- FAIL: TestB (2s)\n"
	if err != nil || b.String() != want || results["TestA"] != Passed || results["TestB"] != No {
		t.Errorf("it prints\n%swant\n%s%v, %v", b.String(), want, results, err)
	}
	if _, err := listen(&b, "Linux 6.12", strings.NewReader(`{"Failed":"mount /sys: no"}`)); err == nil || err.Error() != "mount /sys: no" {
		t.Errorf("of a guest that cannot begin: %v", err)
	}
	if _, err := listen(&b, "Linux 6.12", strings.NewReader(`{"Name":"Te`)); err == nil {
		t.Error("what ends in the middle is whole")
	}
}

// A kernel's own error messages are found. A message about a stalled CPU is not an error.
func TestComplaint(t *testing.T) {
	for text, want := range map[string]bool{
		"[    1.1] mtrr: your CPUs\n[  2.913628] Oops: double fault: 0000 [#1]\r\n": true,
		"[  210.000001] WARNING: CPU: 1 PID: 5 at kernel/bpf/verifier.c:1\n":        true,
		"[  264.851040] watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\n":        false,
		"[  158.000001] Out of memory: Killed process 7 (bascule) total-vm:1kB\n":   true,
		"[   11.284904] hrtimer: interrupt took 18538784 ns\n":                      false,
	} {
		if got := complaint.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// A machine that ends early fails its cases. After an error of the emulation, another machine runs the remaining ones
// instead.
func TestMachineEndsEarly(t *testing.T) {
	run := Run{Name: "Linux 6.12", Cases: []Case{{Test: "TestA"}, {Test: "TestB"}, {Test: "TestC"}}}
	const (
		stale  = "[ 1.0] hello\r\n[ 1.1] Oops: int3: 0000 [#1] SMP\r\n[ 1.2] Kernel panic - not syncing\r\n"
		broken = "[ 1.1] Oops: 0000 [#1] SMP\n[ 1.2] Oops: int3: 0000\n"
	)
	for _, tt := range []struct {
		name     string
		consoles []string // consoles of the machines; each machine completes one case
		ends     string   // results by case
		want     string   // text of the error
	}{
		{"none", []string{"", "", ""}, "A", "2 cases early"},
		{"of int3", []string{stale, stale, ""}, "ABC", ""},
		{"of int3, and then not", []string{stale, stale, stale}, "ABC", `the kernel says "[ 1.1] Oops: int3`},
		{"of int3, and then of another cause", []string{stale, broken}, "AB", "1 cases early: [ 1.1] Oops: 0000"},
		{"of int3 after another cause", []string{broken}, "A", "2 cases early: [ 1.1] Oops: 0000"},
	} {
		var b bytes.Buffer
		n := 0
		results, err := run.all(&b, func(left []Case) (map[string]Result, error) {
			n++
			return map[string]Result{left[0].Test: Passed}, judgeConsole(tt.consoles[n-1], len(left)-1)
		})
		ends := ""
		for _, c := range run.Cases {
			if results[c.Test] == Passed {
				ends += strings.TrimPrefix(c.Test, "Test")
			}
		}
		said := fmt.Sprint(err)
		if ends != tt.ends || !strings.Contains(said, tt.want) || (err == nil) != (tt.want == "") {
			t.Errorf("%s: %s passed, %v; want %s, %s", tt.name, ends, err, tt.ends, tt.want)
		}
		if again := strings.Count(b.String(), "; it is booted again, for "); again != n-1 {
			t.Errorf("%s: %d machines, and it prints\n%s", tt.name, n, b.String())
		}
	}
}

// The table keeps the results that runs of other machines wrote, and is read as it is written. A run replaces the
// former results of its machine; cases that it did not reach are empty. A run without results changes nothing.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	p := Page{
		Path: path, By: "make it", Compare: cmp.Compare[string],
		Cases: []Case{{About: "one thing", Test: "TestOne"}, {About: "another", Test: "TestTwo/part"}, {About: "as it was on"}},
	}
	page := "# Page\n\n<!-- made by make it -->\n<!-- end -->\n\nThe end.\n"
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, u := range []struct {
		column  string
		results map[string]Result
	}{
		{"b 1", map[string]Result{"TestOne": Passed}},
		{"b 2", map[string]Result{"TestOne": Passed, "TestTwo/part": No, "as it was on": "7.3.4"}},
		{"a 1", map[string]Result{"TestOne": "xdp"}},
		{"b 2", map[string]Result{"TestTwo/part": Passed}},
		{"a 2", nil},
		{"c 1", map[string]Result{"TestOne": No}},
	} {
		if err := p.Update(u.column, u.results, func(other string) bool { return other[0] == u.column[0] }); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `# Page

<!-- made by make it -->

| | case | a 1 | b 2 | c 1 |
|---|---|---|---|---|
| one thing | ` + "`TestOne`" + ` | xdp |  | no |
| another | ` + "`TestTwo/part`" + ` |  | yes |  |
| as it was on |  |  |  |  |

<!-- end -->

The end.
`
	if string(text) != want {
		t.Errorf("the page is\n%s\nwant\n%s", text, want)
	}
	if err := os.WriteFile(path, []byte("no table\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Update("a 1", map[string]Result{"TestOne": Passed}, func(string) bool { return false }); err == nil {
		t.Error("a page without a place for the table is taken")
	}
}

// Cases are chosen by a word or by their names.
func TestChoose(t *testing.T) {
	cases := []Case{{Test: "TestA/one", Short: true}, {Test: "TestA/two"}, {Test: "TestB"}}
	for words, want := range map[string]int{"all": 3, "short": 1, "TestA": 2, "nosuch": -1, "(": -1} {
		list, err := Choose(cases, words)
		if n := len(list); err == nil && n != want || err != nil && want != -1 {
			t.Errorf("%q chooses %d cases, error %v, want %d", words, n, err, want)
		}
	}
	if got := exactly("TestConformance/patch"); got != "^TestConformance$/^patch$" {
		t.Errorf("the pattern is %s", got)
	}
}

// A failure or an untested machine fails the whole run, and the error names it.
func TestTally(t *testing.T) {
	cases := []Case{{Test: "TestA"}, {Test: "TestB"}}
	var b bytes.Buffer
	var fine Tally
	fine.Add("one", cases, map[string]Result{"TestA": Passed, "TestB": Passed}, nil)
	if err := fine.End(&b, false); err != nil || b.String() != "2 passed, 0 failed\n" {
		t.Errorf("it prints %q, error %v", b.String(), err)
	}
	fine.Untested(&b, "two", errors.New("no kernel"))
	if err := fine.End(&b, true); err != nil {
		t.Errorf("where that is allowed: %v", err)
	}
	if err := fine.End(&b, false); err == nil || err.Error() != "not tested: two" {
		t.Errorf("of what was not tested: %v", err)
	}
	var bad Tally
	bad.Add("one", cases, map[string]Result{"TestA": No}, errors.New("the machine ended"))
	if err := bad.End(&b, true); err == nil || err.Error() != "these failed:\n  one: the machine ended\n  one: TestA\n  one: TestB" {
		t.Errorf("of what failed: %v", err)
	}
}
