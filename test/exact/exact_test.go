// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/lab"
	"bascule/lab/guests"
	"bascule/lab/report"
)

// A cost that is one per cent higher fails; a lower or new one does not.
func TestJudge(t *testing.T) {
	before := golden{Costs: map[string]float64{"a": 500, "b": 1000}}
	for _, tt := range []struct {
		now  map[string]float64
		want string // text of the error
	}{
		{map[string]float64{"a": 500, "b": 1000}, ""},
		{map[string]float64{"a": 504.9, "b": 700, "c": 1}, ""},
		{map[string]float64{"a": 505.1, "b": 1000}, ": a; where"},
		{map[string]float64{"a": 600, "b": 2000}, ": a, b; where"},
		{map[string]float64{"a": 500}, ": b (it is no longer measured); where"},
	} {
		err := golden{Costs: tt.now}.judge(before)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.now, err, tt.want)
		}
	}
}

// The cable's cost of the same workload is subtracted.
func TestCosts(t *testing.T) {
	c := func(fabric, workload string, values ...float64) *report.Case {
		out := &report.Case{Label: fabric + " " + workload, Fabric: fabric, Workload: workload}
		for i, v := range values {
			out.Samples = append(out.Samples, report.Sample{Round: i + 1, Value: v})
		}
		return out
	}
	got := costs(&report.Group{Cases: []*report.Case{
		c("direct", "w", 100, 1, 109), c("bascule", "w", 150.04, 150.06, 900), c("direct", "v", 10), c("bascule", "v", 30), c("bascule", "u", 1),
	}})
	if want := map[string]float64{"bascule w": 50.1, "bascule v": 20}; !maps.Equal(got, want) {
		t.Errorf("the costs are %v, want %v", got, want)
	}
}

// Another version of QEMU may emulate another processor.
func TestSeries(t *testing.T) {
	for version, want := range map[string]string{"7.2.22": "7.2", "10.0.3": "10.0", "9": "9"} {
		if got := series(version); got != want {
			t.Errorf("the series of %s is %s, want %s", version, got, want)
		}
	}
}

// The record is read as it was written, and its cases are the profile's cases.
func TestGolden(t *testing.T) {
	r, err := read("golden.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := lab.Select(lab.Options{Profile: "exact", Groups: []string{group}, Counting: true})
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, c := range p.Groups[0].Cases {
		if c.Fabric.Name != cable {
			labels = append(labels, c.Label())
		}
	}
	if _, ok := r[guests.Newest().Release]; !ok {
		t.Errorf("nothing is recorded for %s", guests.Newest().Release)
	}
	for release, g := range r {
		if g.QEMU == "" || len(g.Costs) != len(labels) {
			t.Errorf("for %s is recorded %+v", release, g)
		}
		for _, label := range labels {
			if g.Costs[label] <= 0 {
				t.Errorf("for %s nothing is recorded of %s", release, label)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "golden.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("golden.json is not as it is written, error %v", err)
	}
}

// The cable's functions are subtracted, and small numbers are summed up in one line.
func TestOverCable(t *testing.T) {
	got := overCable([]string{"direct", "a", "b"}, []map[string]float64{
		{"common": 100, "once": 20},
		{"common": 150, "once": 21, "mine": 30},
		{"common": 140, "once": 5, "small": 3},
	})
	const want = `| function | a | b |
|---|---|---|
| ` + "`common`" + ` | 50 | 40 |
| ` + "`mine`" + ` | 30 | 0 |
| ` + "`once`" + ` | 1 | -15 |
| all others | 0 | 3 |
| together | 81 | 28 |
`
	if got != want {
		t.Errorf("the table is\n%swant\n%s", got, want)
	}
}
