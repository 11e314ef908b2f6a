// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bascule/lab/report"
	"bascule/lab/workloads"
)

func TestSelectUnknown(t *testing.T) {
	for _, o := range []Options{
		{Fabrics: []string{"direkt"}},
		{Workloads: []string{"direct"}}, {Workloads: []string{"pps:coers=2"}},
		{Profile: "banch"}, {Profile: "bench", Groups: []string{"chains"}},
	} {
		var unknown *workloads.UnknownError
		if _, err := Select(o); !errors.As(err, &unknown) {
			t.Errorf("Select(%+v): error %v, want an UnknownError", o, err)
		} else if len(unknown.Known) == 0 {
			t.Errorf("Select(%+v) tells no known %s", o, unknown.What)
		}
	}
	for _, o := range []Options{
		{Fabrics: []string{"direct", "ovs", "direct"}},
		{Workloads: []string{"pps", "pps:duration=20ms"}},
	} {
		if _, err := Select(o); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("Select(%+v): error %v, want one that says twice", o, err)
		}
	}
	if _, err := Select(Options{Profile: "demo", Workloads: []string{"pps"}}); err == nil {
		t.Error("a profile of which nothing is left was made")
	}
}

func TestSelect(t *testing.T) {
	p, err := Select(Options{Fabrics: []string{"direct", "linux-bridge"}, Workloads: []string{"pps"}, Rounds: 9})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range p.Groups {
		for _, c := range g.Cases {
			got = append(got, c.Label())
		}
		if g.Rounds != 9 {
			t.Errorf("group %s has %d rounds, want 9", g.Name, g.Rounds)
		}
	}
	if diff := cmp.Diff([]string{"direct pps", "linux-bridge pps"}, got); diff != "" {
		t.Errorf("cases (-want +got):\n%s", diff)
	}
	if p, err := Select(Options{}); err != nil || p.Name != "demo" {
		t.Errorf("without options: profile %q, error %v, want the demo", p.Name, err)
	}
}

// TestSelectGroups checks that a profile's group has its own figures, and no others.
func TestSelectGroups(t *testing.T) {
	p, err := Select(Options{Profile: "bench", Groups: []string{"rules", "members"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"rules", "members"}, p.GroupNames()); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	for _, target := range p.Targets {
		if !slices.Contains(p.GroupNames(), target.Group) {
			t.Errorf("figure %q is of group %s", target.Name, target.Group)
		}
	}
	if len(p.Targets) == 0 {
		t.Error("no figure is left")
	}
}

// TestBenchTargets checks that every figure of the bench, and of the exact costs, uses cases of its
// group.
func TestBenchTargets(t *testing.T) {
	for _, o := range []Options{
		{Profile: "bench"}, {Profile: "bench", Quick: true},
		{Profile: "exact", Counting: true}, {Profile: "exact", Counting: true, Quick: true},
	} {
		p := Bench(o.Quick)
		if o.Counting {
			p = Exact(o.Quick)
		}
		groups := map[string][]string{}
		for _, g := range p.Groups {
			if _, ok := groups[g.Name]; ok {
				t.Errorf("two groups are called %s", g.Name)
			}
			for _, c := range g.Cases {
				if slices.Contains(groups[g.Name], c.Label()) {
					t.Errorf("group %s has %s twice", g.Name, c.Label())
				}
				groups[g.Name] = append(groups[g.Name], c.Label())
				if c.Workload.Exact != o.Counting {
					t.Errorf("group %s of profile %s has %s", g.Name, o.Profile, c.Label())
				}
			}
		}
		for _, target := range p.Targets {
			for _, label := range []string{target.Of, target.Against, target.OfLess, target.AgainstLess} {
				if label != "" && !slices.Contains(groups[target.Group], label) {
					t.Errorf("figure %q: group %q does not measure %q", target.Name, target.Group, label)
				}
			}
		}
		if diff := cmp.Diff(p.Targets, must(t, o).Targets); diff != "" {
			t.Errorf("Select loses figures (-want +got):\n%s", diff)
		}
	}
	if got := must(t, Options{Profile: "bench", Fabrics: []string{"bascule"}}).Targets; len(got) == 0 || len(got) >= len(Bench(false).Targets) {
		t.Errorf("of one fabric %d figures are left", len(got))
	}
}

func must(t *testing.T, o Options) Profile {
	t.Helper()
	p, err := Select(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNamesAreUnique(t *testing.T) {
	var kinds []string
	for _, k := range workloads.Kinds {
		kinds = append(kinds, k.Name)
	}
	for kind, names := range map[string][]string{"fabrics": FabricNames(), "workloads": kinds} {
		slices.Sort(names)
		if len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("%s share a name: %v", kind, names)
		}
	}
}

func TestFigures(t *testing.T) {
	of := func(label string, values ...float64) *report.Case {
		c := &report.Case{Label: label}
		for i, v := range values {
			c.Samples = append(c.Samples, report.Sample{Round: i + 1, Value: v})
		}
		return c
	}
	groups := []*report.Group{{Name: "g", Cases: []*report.Case{of("a", 1, 2, 3), of("b", 2, 4, 6), {Label: "c", Error: "broken"}}}}
	for _, test := range []struct {
		target Target
		median float64
		why    string
	}{
		{Target{Group: "g", Of: "b", Against: "a"}, 2, ""},
		{Target{Group: "g", Of: "b", Against: "a", Invert: true}, 0.5, ""},
		{Target{Group: "g", Of: "b"}, 4, ""},
		{Target{Group: "g", Of: "c", Against: "a"}, 0, "broken"},
		{Target{Group: "g", Of: "a", Against: "c"}, 0, "broken"},
		{Target{Group: "g", Of: "d"}, 0, "left out"},
		{Target{Group: "h", Of: "a"}, 0, "left out"},
	} {
		f := figures([]Target{test.target}, groups)[0]
		if f.Why != test.why {
			t.Errorf("%+v: why %q, want %q", test.target, f.Why, test.why)
		}
		switch {
		case f.Got == nil && test.median != 0:
			t.Errorf("%+v: not measured, want %v", test.target, test.median)
		case f.Got != nil && f.Got.Median != test.median:
			t.Errorf("%+v: %v, want %v", test.target, f.Got.Median, test.median)
		}
	}
}

func TestParseStat(t *testing.T) {
	before, err := parseStat("cpu  100 10 50 1000 5 1 20 3 0 0\ncpu0 40 0 20 500 0 0 20 0 0 0\ncpu1 60 10 30 500 5 1 0 3 0 0\nctxt 77\n")
	if err != nil {
		t.Fatal(err)
	}
	want := ticks{
		all:      coreTicks{user: 110, system: 50, softirq: 21, idle: 1005, steal: 3},
		cores:    []coreTicks{{user: 40, system: 20, softirq: 20, idle: 500}, {user: 70, system: 30, softirq: 1, idle: 505, steal: 3}},
		switches: 77,
	}
	if diff := cmp.Diff(want, before, cmp.AllowUnexported(ticks{}, coreTicks{})); diff != "" {
		t.Errorf("parsed (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "intr 1 2 3", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 8\ncpu0 1 2 3\n", "cpu a b c d e f g h"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) gave no error", bad)
		}
	}
}

func TestField(t *testing.T) {
	const text = "processor\t: 0\nmodel name\t: Some CPU @ 2: 3 GHz\nmodel name\t: Other\n"
	if got := field(text, "model name"); got != "Some CPU @ 2: 3 GHz" {
		t.Errorf("field = %q", got)
	}
	if got := field(text, "flags"); got != "" {
		t.Errorf("field that is not there = %q", got)
	}
}

// TestOthersTime checks that the time of the lab's own programs does not count as other programs'
// time, and that the time of a program that the lab did not start does, including its time in the
// kernel.
func TestOthersTime(t *testing.T) {
	busy := "while :; do read x < /proc/stat; done"
	for _, test := range []struct {
		name   string
		script string
		others bool
	}{
		{"own", busy + " & echo $!; wait", false},
		// Its parent ends, and another process adopts it.
		{"of another", "sh -c '" + busy + "' >/dev/null & echo $!", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", test.script)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(out, &pid); err != nil {
				t.Fatal(err)
			}
			defer func() {
				syscall.Kill(pid, syscall.SIGKILL)
				cmd.Wait()
			}()
			if test.others {
				cmd.Wait()
			}
			before := othersTime() // first: it includes the program's time from now on
			begin := processTime(pid)
			for range 1000 {
				if processTime(pid)-begin >= 30 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			ours := slices.Contains(children(os.Getpid()), pid)
			if ours == test.others {
				t.Errorf("the program counts as the lab's: %v", ours)
			}
			if took := othersTime() - before; test.others && took < 30 {
				t.Errorf("others took %v ticks while one of them took 30", took)
			}
		})
	}
}

// TestBenchFileRefused has mistakes that must be refused in bench.yaml, with their position in the
// error.
func TestBenchFileRefused(t *testing.T) {
	for text, want := range map[string]string{
		"groups: [{cases: [{fabrics: [direct], workloads: [none-such]}]}]": `unknown workload "none-such"`,
		"groups: [{cases: [{fabrics: [none-such], workloads: [udp]}]}]":    "there is no fabric none-such",
		"groups: [{name: empty}]": `group "empty" has no case`,
		"other: 1":                "unknown field",
	} {
		if _, err := readBench("bench", []byte(text), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	b, err := readBench("bench", []byte("durations: {udp: {full: 7s, quick: 5s}}\ngroups: [{rounds: 4, quick: 2, cases: [{fabrics: [direct], workloads: [udp]}]}]"), true)
	if err != nil || len(b.Groups) != 1 || b.Groups[0].Rounds != 2 || b.Groups[0].Cases[0].Workload.Takes != workloads.Must("udp:duration=5s").Takes {
		t.Errorf("a quick run is %+v, %v", b, err)
	}
}
