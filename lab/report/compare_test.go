// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	with := func(label, unit string, lower bool, values ...float64) *Case {
		return &Case{Label: label, Fabric: label, Workload: "w", Unit: unit, Lower: lower, Samples: samples(values...)}
	}
	old := &Report{
		Machine: Machine{Kernel: "6.1", CPU: "A", Cores: 2},
		Groups: []*Group{
			{Name: "tcp", Cases: []*Case{with("a", "Gbit/s", false, 1, 2, 3, 4), with("b", "Gbit/s", false, 1, 2, 3, 4), with("gone", "Gbit/s", false, 1),
				with("unit", "k/s", false, 1), with("failed", "Gbit/s", false, 1)}},
			{Name: "latency", Cases: []*Case{with("a", "us", true, 10, 20, 30, 40)}},
		},
	}
	now := &Report{
		Machine: Machine{Kernel: "6.18", CPU: "A", Cores: 4},
		Groups: []*Group{
			{Name: "tcp", Cases: []*Case{with("a", "Gbit/s", false, 5, 6, 7, 8), with("b", "Gbit/s", false, 2, 3), with("new", "Gbit/s", false, 1),
				with("unit", "Mpps", false, 1), with("failed", "Gbit/s", false)}},
			{Name: "latency", Cases: []*Case{with("a", "us", true, 50, 60, 70, 80)}},
		},
	}
	var b strings.Builder
	if err := Compare(old, now).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `WARNING: the number of cores differs: 2, now 4
WARNING: the kernel differs: 6.1, now 6.18
WARNING: tcp: unit is not compared: it was in k/s and is in Mpps
tcp      unit    old                new                ratio  p       test
  a      Gbit/s  2.50  [1.00 4.00]  6.50  [5.00 8.00]  2.60   0.0286  faster
  b      Gbit/s  2.50  [1.00 4.00]  2.50  [2.00 3.00]  1.00   1.00    too few
latency  unit    old                new                ratio  p       test
  a      us      25.0  [10.0 40.0]  65.0  [50.0 80.0]  2.60   0.0286  slower
Only in the old report:
  tcp: gone
  tcp: failed
Only in the new report:
  tcp: new
Every value is the median of its rounds, [least most] beside it; the ratio is of the medians, new to
old. The two runs did not take turns: that they differ does not say why.
` + signs
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("the text (-want +got):\n%s", diff)
	}
	if c := Compare(old, old); c.Warnings != nil || c.OnlyOld != nil || c.OnlyNew != nil || len(c.Changes) != 6 {
		t.Errorf("a report against itself: %+v", c)
	}
	b.Reset()
	if err := Compare(old, &Report{Machine: old.Machine}).WriteText(&b); err != nil || !strings.HasPrefix(b.String(), "No case was measured in both") {
		t.Errorf("against an empty report: error %v, %s", err, b.String())
	}
	if Compare(old, now).WriteText(full{}) == nil {
		t.Error("a comparison that was not written gave no error")
	}
}
