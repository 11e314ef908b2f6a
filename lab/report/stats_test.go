// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpreadOf(t *testing.T) {
	for _, test := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"one", []float64{3}, Spread{N: 1, Median: 3, Min: 3, Max: 3}},
		{"odd", []float64{5, 1, 3}, Spread{N: 3, Median: 3, Min: 1, Max: 5}},
		{"even", []float64{4, 1, 3, 2}, Spread{N: 4, Median: 2.5, Min: 1, Max: 4}},
		{"with an interval", []float64{6, 5, 4, 3, 2, 1}, Spread{N: 6, Median: 3.5, Min: 1, Max: 6, Interval: &[2]float64{1, 6}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, SpreadOf(test.values)); diff != "" {
				t.Errorf("SpreadOf(%v) (-want +got):\n%s", test.values, diff)
			}
		})
	}
	if s := SpreadOf(nil); s.N != 0 || !math.IsNaN(s.Median) {
		t.Errorf("SpreadOf(nil) = %v, want no median", s)
	}
	values := []float64{3, 1, 2}
	SpreadOf(values)
	if diff := cmp.Diff([]float64{3, 1, 2}, values); diff != "" {
		t.Errorf("SpreadOf changed its argument:\n%s", diff)
	}
}

// TestRank95 compares with the published tables of the sign test.
func TestRank95(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 0, 5: 0, 6: 1, 7: 1, 8: 1, 9: 2, 10: 2, 11: 2, 12: 3, 20: 6, 25: 8, 30: 10,
		// Computed with exact integers.
		1074: 505, 1075: 505, 1200: 566, 10000: 4902, 100000: 49690} {
		if got := rank95(n); got != want {
			t.Errorf("rank95(%d) = %d, want %d", n, got, want)
		}
	}
}

func samples(values ...float64) []Sample {
	var out []Sample
	for i, v := range values {
		out = append(out, Sample{Round: i + 1, Value: v, More: map[string]float64{"twice": 2 * v}})
	}
	return out
}

func TestRatios(t *testing.T) {
	of := &Case{Samples: samples(2, 6, 9)}
	against := &Case{Samples: samples(1, 2, 0, 7)}
	if diff := cmp.Diff([]float64{2, 3}, Ratios(of, against, "")); diff != "" {
		t.Errorf("a round without its like, or with 0, was not left out (-want +got):\n%s", diff)
	}
	against.Samples = against.Samples[1:]
	if diff := cmp.Diff([]float64{3}, Ratios(of, against, "")); diff != "" {
		t.Errorf("rounds were not matched by number (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{3}, Ratios(of, against, "twice")); diff != "" {
		t.Errorf("a value beside the main one (-want +got):\n%s", diff)
	}
	if got := Ratios(of, against, "nothing of that name"); got != nil {
		t.Errorf("ratios of what was not measured: %v", got)
	}
}

func TestVerdict(t *testing.T) {
	got := func(v float64) *Spread { return &Spread{N: 1, Median: v, Min: v, Max: v} }
	for _, test := range []struct {
		figure Figure
		want   string
	}{
		{Figure{Must: 1, Aim: 2}, "not measured"},
		{Figure{Must: 1, Aim: 2, Got: got(0.99)}, "below"},
		{Figure{Must: 1, Aim: 2, Got: got(1)}, "must"},
		{Figure{Must: 1, Aim: 2, Got: got(2)}, "aim"},
		{Figure{Must: 50, Aim: 10, Lower: true, Got: got(51)}, "below"},
		{Figure{Must: 50, Aim: 10, Lower: true, Got: got(50)}, "must"},
		{Figure{Must: 50, Aim: 10, Lower: true, Got: got(9)}, "aim"},
		{Figure{Got: got(9)}, "-"},
	} {
		if v := test.figure.Verdict(); v != test.want {
			t.Errorf("%+v: verdict %q, want %q", test.figure, v, test.want)
		}
	}
}

func TestMissing(t *testing.T) {
	r := Report{Figures: []Figure{{Name: "a"}, {Name: "b", Got: &Spread{}}, {Name: "a"}, {Name: "c"}}}
	if diff := cmp.Diff([]string{"a", "c"}, r.Missing()); diff != "" {
		t.Errorf("Missing (-want +got):\n%s", diff)
	}
}

// TestLess checks that values of the same round are subtracted, and that a round that one case
// lacks is left out.
func TestLess(t *testing.T) {
	of := &Case{Label: "of", Samples: []Sample{{Round: 1, Value: 10}, {Round: 2, Value: 20}, {Round: 4, Value: 40}}}
	less := &Case{Samples: []Sample{{Round: 2, Value: 5}, {Round: 1, Value: 1}, {Round: 3, Value: 7}}}
	if got := of.Less(less); got.Label != "of" || !slices.Equal(got.Values(), []float64{9, 15}) {
		t.Errorf("the difference is %+v", got)
	}
	if got := of.Less(nil); got != of || !slices.Equal(of.Values(), []float64{10, 20, 40}) {
		t.Errorf("without anything to subtract it is %+v", got)
	}
	if got := (*Case)(nil).Less(less); got != nil {
		t.Errorf("of nothing it is %+v", got)
	}
}
