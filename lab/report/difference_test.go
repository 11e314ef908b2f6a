// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"testing"
)

// steps returns n values at a distance of one, beginning with first.
func steps(first float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = first + float64(i)
	}
	return out
}

// TestMannWhitney compares with values of SciPy 1.17.1, scipy.stats.mannwhitneyu, two-sided, with
// the method "exact" if both sides have up to 20 values and no ties, and otherwise "asymptotic".
// 2/20 and 2/70 were also counted by hand.
func TestMannWhitney(t *testing.T) {
	for _, test := range []struct {
		name string
		a, b []float64
		want float64
	}{
		{"3 below 3", []float64{1, 2, 3}, []float64{4, 5, 6}, 2.0 / 20},
		{"4 above 4", []float64{5, 8, 7, 6}, []float64{1, 2, 3, 4}, 2.0 / 70},
		{"5 and 4", []float64{19, 22, 16, 29, 24}, []float64{20, 11, 17, 12}, 0.1111111111111111},
		{"in the middle", []float64{3, 1, 5}, []float64{2, 4}, 1},
		{"7 and 7", []float64{9.09, 9.30, 9.18, 9.10, 9.45, 9.85, 9.19}, []float64{5.97, 6.64, 9.2, 9.5, 6.1, 6.2, 9.4}, 0.25932400932400934},
		{"20 and 20", steps(1, 20), steps(6.5, 20), 0.009483607191205003},
		{"25 and 21", steps(1, 25), steps(5.5, 21), 0.2514886301531659},
		{"ties", []float64{1, 2, 2, 3, 4}, []float64{2, 3, 4, 5, 5, 6}, 0.07794691458872482},
		{"all the same", []float64{1, 1, 1}, []float64{1, 1, 1}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := MannWhitney(test.a, test.b); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("p = %v, want %v", got, test.want)
			}
			if got := MannWhitney(test.b, test.a); math.Abs(got-test.want) > 1e-9 {
				t.Errorf("the other way round: p = %v, want %v", got, test.want)
			}
		})
	}
	if p := MannWhitney(nil, []float64{1}); !math.IsNaN(p) {
		t.Errorf("p of nothing = %v, want NaN", p)
	}
	if p := MannWhitney([]float64{1}, nil); !math.IsNaN(p) {
		t.Errorf("p against nothing = %v, want NaN", p)
	}
}

func TestCompared(t *testing.T) {
	low, high := []float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}
	for _, test := range []struct {
		name        string
		of, against []float64
		unit        string
		lower       bool
		want        string
	}{
		{"more of a rate", high, low, "Gbit/s", false, "faster"},
		{"less of a rate", low, high, "Mpps", false, "slower"},
		{"less time", low, high, "us", true, "faster"},
		{"more time", high, low, "ms", true, "slower"},
		{"less memory", low, high, "B", true, "better"},
		{"more memory", high, low, "B", true, "worse"},
		{"more connections", high, low, "connections", false, "better"},
		{"fewer connections", low, high, "connections", false, "worse"},
		{"a rate of losses", low, high, "lost/s", true, "better"},
		{"overlapping", []float64{1, 3, 5, 7}, []float64{2, 4, 6, 8}, "Mpps", false, NoDifference},
		{"3 rounds", low[:3], high[:3], "Mpps", false, TooFew},
		{"3 and 4 rounds", low[:3], high, "Mpps", false, TooFew},
		{"3 and 5 rounds", low[:3], append([]float64{9}, high...), "Mpps", false, "slower"},
		// Without overlap, but with ties, these would pass with the approximation.
		{"3 equal rounds", []float64{1, 1, 1}, []float64{2, 2, 2}, "Mpps", false, TooFew},
		{"nothing", nil, high, "Mpps", false, TooFew},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := Compared(&Case{Unit: test.unit, Lower: test.lower, Samples: samples(test.of...)},
				&Case{Unit: test.unit, Lower: test.lower, Samples: samples(test.against...)})
			if c.Word != test.want {
				t.Errorf("%q at p = %v, want %q", c.Word, c.P, test.want)
			}
		})
	}
	c := Compared(&Case{Samples: samples(2, 4, 6)}, &Case{Samples: samples(1, 2, 3)})
	if c.Ratio.N != 3 || c.Ratio.Median != 2 {
		t.Errorf("ratio %+v, want 2 in 3 rounds", c.Ratio)
	}
}

// TestComparedAtOdds checks that neither word is used if a heavy tail on one side makes ranks and
// medians contradict each other.
func TestComparedAtOdds(t *testing.T) {
	// All of b's lower half is below a, and its upper half just above a's few middle values: a
	// has the lower median, and the higher rank sum.
	a := append(steps(100, 26), steps(1000, 24)...)
	b := append(steps(0, 24), steps(200, 26)...)
	if u := rankSum(a, b); u <= 1250 || MannWhitney(a, b) >= significance || SpreadOf(a).Median >= SpreadOf(b).Median {
		t.Fatalf("the values of this test are not at odds: U %v, p %v", u, MannWhitney(a, b))
	}
	if got := word(a, b, MannWhitney(a, b), "Mpps", false); got != NoDifference {
		t.Errorf("%q, want %q", got, NoDifference)
	}
}
