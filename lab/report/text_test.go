// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func example() *Report {
	cpu := CPU{User: 0.25, System: 0.5, Softirq: 0.75, Idle: 0.5}
	with := func(s []Sample) []Sample {
		for i := range s {
			s[i].CPU = cpu
		}
		return s
	}
	return &Report{
		Profile: "test",
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine: Machine{Kernel: "6.18", CPU: "Some CPU", Cores: 2, MemoryMiB: 1024, Congestion: "cubic", Load: 0.5,
			Mitigations: map[string]string{"b": "two", "a": "one"}, Versions: map[string]string{"iperf3": "3.12"}},
		Groups: []*Group{{
			Name: "tcp", About: "TCP", Rounds: 3,
			Cases: []*Case{
				{Label: "direct tcp", Fabric: "direct", Workload: "tcp", Unit: "Gbit/s", Samples: with(samples(10, 8, 12))},
				{Label: "bascule tcp", Fabric: "bascule", Workload: "tcp", Unit: "Gbit/s", Counter: "tcx", Samples: with(samples(9, 8, 9))},
				{Label: "other tcp", Fabric: "other", Workload: "tcp", Unit: "Gbit/s", Error: "it is\nnot there"},
			},
		}},
		Figures: []Figure{
			{Name: "TCP", Of: "bascule tcp", Against: "direct tcp", Unit: "x", Must: 0.8, Aim: 0.95, Got: &Spread{N: 3, Median: 0.9, Min: 0.75, Max: 1}},
			{Name: "two against one", Of: "bascule two", Against: "bascule one", Unit: "x", Must: 1.9, Aim: 2},
			{Name: "memory", Of: "bascule memory", Unit: "B", Lower: true, Must: 128, Aim: 96, Got: &Spread{N: 1, Median: 100, Min: 100, Max: 100}},
		},
	}
}

func TestWriteText(t *testing.T) {
	var b strings.Builder
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `TCP (3 rounds)
  fabric   Gbit/s               against direct                CPU   user  system  softirq
  direct   10.0    [8.00 12.0]  1.00                          1.50  0.25  0.50    0.75
  bascule  9.00    [8.00 9.00]  0.900           [0.750 1.00]  1.50  0.25  0.50    0.75
  other    not measured
  counted by tcx at the receiver: bascule
  other: it is not there

Figures
  figure           of       against  must  aim   measured                95 %  reached
  TCP              bascule  direct   0.8   0.95  0.900     [0.750 1.00]        must
  two against one  bascule  one      1.9   2     -                             not measured
  memory           bascule           128   96    100 B     [100 100]           must

Machine: Some CPU, 2 cores, 1024 MiB, Linux 6.18; load before: 0.50; congestion control: cubic
Mitigations: a: one; b: two
Versions: iperf3: 3.12
Every value is the median of its rounds, [least most] beside it; 95 % is the interval of
the median. Ratios are taken within each round, in which all peers had their turn. CPU is
cores busy in the whole machine.
The run was ended early: what is above is what was measured until then.
`
	got := b.String()
	// The width of a column that ends in spaces is no matter.
	trim := func(s string) string {
		lines := strings.Split(s, "\n")
		for i, l := range lines {
			lines[i] = strings.TrimRight(l, " ")
		}
		return strings.Join(lines, "\n")
	}
	if diff := cmp.Diff(trim(want), trim(got)); diff != "" {
		t.Errorf("the text (-want +got):\n%s", diff)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 0.0123: "0.0123", 0.5: "0.500", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234", -2: "-2.00"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	r := example()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back); diff != "" {
		t.Errorf("what was read back (-want +got):\n%s", diff)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWriteToFullDisk(t *testing.T) {
	if example().WriteText(full{}) == nil || example().WriteJSON(full{}) == nil {
		t.Error("a report that was not written gave no error")
	}
}
