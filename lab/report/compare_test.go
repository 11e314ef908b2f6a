// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	with := func(label, unit string, lower bool, values ...float64) *Case {
		return &Case{Label: label, Fabric: label, Workload: "w", Unit: unit, Lower: lower, Samples: samples(values...)}
	}
	old := &Report{
		Complete: true,
		Machine:  Machine{Kernel: "6.1", CPU: "A", Cores: 2, Versions: map[string]string{"iperf3": "3.12", "nft": "1.0"}},
		Groups: []*Group{
			{Name: "tcp", Rounds: 4, Cases: []*Case{with("a", "Gbit/s", false, 1, 2, 3, 4), with("b", "Gbit/s", false, 1, 2, 3, 4), with("gone", "Gbit/s", false, 1),
				with("unit", "k/s", false, 1), with("failed", "Gbit/s", false, 1)}},
			{Name: "latency", Cases: []*Case{with("a", "us", true, 10, 20, 30, 40)}},
		},
	}
	now := &Report{
		Machine: Machine{Kernel: "6.18", CPU: "A", Cores: 4, Versions: map[string]string{"iperf3": "3.18", "ovs": "3.1", "nft": "1.0"}},
		Groups: []*Group{
			{Name: "tcp", Rounds: 5, Cases: []*Case{with("a", "Gbit/s", false, 5, 6, 7, 8), with("b", "Gbit/s", false, 2, 3), with("new", "Gbit/s", false, 1),
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
WARNING: the version of iperf3 differs: 3.12, now 3.18
WARNING: the version of ovs differs: not known, now 3.1
WARNING: the number of rounds of group tcp differs: 4, now 5
WARNING: the new report is not complete: its run was ended early
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
Every value is the median of its rounds, followed by [least most]; the ratio compares the medians, new to
old. The two runs were not interleaved, so a difference between them does not show its cause.
` + signs
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("the text (-want +got):\n%s", diff)
	}
	if c := Compare(old, old); c.Warnings != nil || c.OnlyOld != nil || c.OnlyNew != nil || len(c.Changes) != 6 {
		t.Errorf("a report against itself: %+v", c)
	}
	b.Reset()
	if err := Compare(old, &Report{Complete: true, Machine: old.Machine}).WriteText(&b); err != nil || !strings.HasPrefix(b.String(), "No case was measured in both") {
		t.Errorf("against an empty report: error %v, %s", err, b.String())
	}
	if Compare(old, now).WriteText(full{}) == nil {
		t.Error("a comparison that was not written gave no error")
	}
}

// TestCompareNoisy checks that no case is called faster if other programs used the machine in one
// of the runs.
func TestCompareNoisy(t *testing.T) {
	with := func(others float64, values ...float64) *Report {
		c := &Case{Label: "a w", Unit: "Gbit/s", Samples: samples(values...)}
		for i := range c.Samples {
			c.Samples[i].CPU.Others = others
		}
		return &Report{Complete: true, Groups: []*Group{{Name: "g", Cases: []*Case{c}}}}
	}
	for _, test := range []struct {
		name     string
		old, new *Report
		want     string
	}{
		{"neither", with(0, 1, 2, 3, 4), with(0, 5, 6, 7, 8), "faster"},
		{"the old one", with(0.5, 1, 2, 3, 4), with(0, 5, 6, 7, 8), TooNoisy},
		{"the new one", with(0, 1, 2, 3, 4), with(0.5, 5, 6, 7, 8), TooNoisy},
		{"the new one, of two rounds", with(0, 1, 2, 3, 4), with(0.5, 5, 6), TooFew},
	} {
		c := Compare(test.old, test.new)
		if got := c.Changes[0].Word; got != test.want {
			t.Errorf("%s is noisy: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestCompareOverflow checks that an infinite ratio is left out: JSON has no infinity.
func TestCompareOverflow(t *testing.T) {
	with := func(values ...float64) *Report {
		return &Report{Groups: []*Group{{Name: "g", Cases: []*Case{{Label: "a w", Fabric: "a", Samples: samples(values...)}}}}}
	}
	for _, test := range []struct{ old, new *Report }{
		{with(5e-324), with(1e308)},
		{with(1e308, 1e308), with(1.7e308, 1.7e308)},
		{with(1e308, 1e308), with(0, 5e-324)},
	} {
		c := Compare(test.old, test.new)
		if _, err := json.Marshal(c); err != nil {
			t.Errorf("%+v: %v", c.Changes[0], err)
		}
	}
	if c := Compare(with(5e-324), with(1e308)).Changes[0]; c.Ratio != 0 {
		t.Errorf("a ratio of %v", c.Ratio)
	}
	if got := Ratios(with(1e308).Groups[0].Cases[0], with(5e-324).Groups[0].Cases[0], ""); got != nil {
		t.Errorf("ratios %v", got)
	}
}
