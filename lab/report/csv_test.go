// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"encoding/csv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriteCSV(t *testing.T) {
	r := &Report{Groups: []*Group{{Name: "g", Cases: []*Case{
		{Label: `a "quoted" w`, Fabric: `a, "quoted"`, Workload: "w", Setup: "host", Unit: "us", Lower: true, Counter: "tcx", Samples: []Sample{
			{Round: 2, Value: 1.25, More: map[string]float64{"p99_us": 0}, Intervals: []float64{1, 0.5}, Bytes: 1e12, Frames: 3, Seconds: 2,
				CPU: CPU{User: 1, System: 2, Softirq: 3, Idle: 4, Steal: 5, Others: 6}, Cores: []CPU{{User: 1}, {Softirq: 0.5}},
				Switches: 7, Drops: map[string]uint64{"b rx": 1, "a tx": 2}, Cycles: 8, Instructions: 9},
			{Round: 3, Value: 0, More: map[string]float64{"lost_percent": 1}},
		}},
		{Label: "b w", Skipped: "not here"},
	}}}}
	var b bytes.Buffer
	if err := r.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	got, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"group", "label", "fabric", "workload", "setup", "unit", "lower_is_better", "counter", "round", "value", "seconds", "bytes", "frames",
			"cpu_user", "cpu_system", "cpu_softirq", "cpu_idle", "cpu_steal", "cpu_others", "context_switches", "cycles", "instructions",
			"drops", "cores_busy", "intervals", "more:lost_percent", "more:p99_us"},
		{"g", `a "quoted" w`, `a, "quoted"`, "w", "host", "us", "true", "tcx", "2", "1.25", "2", "1000000000000", "3",
			"1", "2", "3", "4", "5", "6", "7", "8", "9", "a tx=2;b rx=1", "1 0.5", "1 0.5", "", "0"},
		{"g", `a "quoted" w`, `a, "quoted"`, "w", "host", "us", "true", "tcx", "3", "0", "", "", "",
			"0", "0", "0", "0", "0", "0", "", "", "", "", "", "", "1", ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rows (-want +got):\n%s", diff)
	}
}
