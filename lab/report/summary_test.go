// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"strings"
	"testing"
	"time"
)

// TestWriteSummary checks that a summary has the medians of each case, figure and claim, and only the
// extremes of the rounds.
func TestWriteSummary(t *testing.T) {
	rounds := func(values ...float64) (out []Sample) {
		for i, v := range values {
			out = append(out, Sample{Round: i + 1, Value: v, More: map[string]float64{"retransmits": 4321}})
		}
		return out
	}
	ratio := SpreadOf([]float64{1, 1.25, 1.5, 1.75, 2, 3})
	r := &Report{
		Profile: "reproduce a", Started: time.Date(2026, 11, 27, 7, 38, 34, 0, time.UTC), Seconds: 3318, Complete: true,
		Figures: []Figure{
			{Name: "TCP", Of: "a x", Against: "b x", Must: 0.85, Got: &ratio},
			{Name: "not there", Of: "c x"},
		},
		Claims: []Claim{
			{Source: "one", Claim: "a is faster", Ratio: 1.4142135, Here: &ratio, Verdict: "holds"},
			{Source: "two", Claim: "and there", Here: &ratio, Inside: "Linux, QEMU", Verdict: "not shown"},
			{Source: "two", Claim: "of another system", Verdict: "cannot be tested"},
		},
		Groups: []*Group{{Name: "a-1", About: "some traffic", Rounds: 3, Cases: []*Case{
			{Label: "a x", Fabric: "a", Workload: "x", Unit: "Gbit/s", Samples: rounds(11.468, 7.28, 12.9)},
			{Label: "b x", Fabric: "b", Workload: "x", Unit: "Gbit/s", Error: "it broke"},
			{Label: "b y host", Fabric: "b", Workload: "y", Setup: "host", Unit: "us", Samples: rounds(123456, 123457.4, 123458)},
		}}},
	}
	var b strings.Builder
	if err := r.WriteSummary(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Summary: reproduce a\n\n2026-11-27 07:38 UTC, 55m18s. ",
		"\n| TCP | a x | b x | 0.85 | 1.625 | 1.000 to 3.000 |\n",
		"\n| not there | c x |  |  | - |  |\n",
		"\n### one\n",
		"\n| a is faster | 1.414 | 1.625 | 1.000 to 3.000 | 6 | the clock | holds |\n",
		"\n| and there |  | 1.625 | 1.000 to 3.000 | 6 | instructions | not shown |\n",
		"\n| of another system |  |  |  |  |  | cannot be tested |\n",
		"\n## a-1: some traffic (3 rounds)\n\n| fabric | x: Gbit/s | y, host: us |\n|---|---:|---:|\n",
		"\n| a | 11.47 \\[7.28 12.9] |  |\n",
		"\n| b | - | 123457 \\[123456 123458] |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(b.String(), "4321") {
		t.Error("it has values of rounds")
	}
	if t.Failed() {
		t.Log(b.String())
	}
	r.Complete = false
	b.Reset()
	if err := r.WriteSummary(&b); err != nil || !strings.Contains(b.String(), "ended early") {
		t.Errorf("a run that was ended: error %v\n%s", err, b.String())
	}
}
