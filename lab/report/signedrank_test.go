// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"cmp"
	"math"
	"slices"
	"testing"
)

// TestSignedRank compares with the tables of the signed-rank test (F. Wilcoxon and R. A. Wilcox, "Some Rapid
// Approximate Statistical Procedures", 1964): a critical value is the largest sum with a two-sided probability of at
// most 0.05. The probabilities are fractions of the 2^n sign combinations with such a sum, counted by hand.
func TestSignedRank(t *testing.T) {
	for n, want := range map[int]int{
		6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 11: 10, 12: 13, 13: 17, 14: 21, 15: 25, 16: 29, 18: 40, 20: 52, 25: 89, 30: 137, 50: 434,
	} {
		tail, largest := 0.0, -1
		for w, chance := range rankSums(n) {
			if tail += chance; 2*tail > 0.05 {
				break
			}
			largest = w
		}
		if largest != want {
			t.Errorf("%d values: sums up to %d are rare, want %d", n, largest, want)
		}
	}
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{1, 2, 3, 4, 5, 6}, 2.0 / 64},
		{[]float64{-1, -2, -3, -4, -5, -6}, 2.0 / 64},
		{[]float64{0, 1, 2, 3, 4, 5, 6}, 2.0 / 64},
		{[]float64{-1, 2, 3, 4, 5, 6}, 4.0 / 64},         // sums 0 and 1
		{[]float64{1, 2, -3, 4, 5, 6, 7, 8}, 10.0 / 256}, // sums 0 to 3: 1, 1, 1 and 2 ways
		{[]float64{-1, -2, -3, -4, 5, 6, 7, 8, 9, 10}, 86.0 / 1024},
		{[]float64{1, -1}, 1},
		{nil, 1},
	} {
		if got := signedRank(c.values); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: p = %v, want %v", c.values, got, c.want)
		}
	}
}

// TestCentre checks that the interval of a centre has the bounds that the test does not reject.
func TestCentre(t *testing.T) {
	ratios := []float64{0.91, 0.97, 0.99, 1.02, 1.04, 1.07, 1.08, 1.15, 1.31, 9.0}
	got := Centre(ratios)
	if got.Interval == nil || got.N != len(ratios) || got.Min != 0.91 || got.Max != 9 {
		t.Fatalf("%+v", got)
	}
	p := func(bound float64) float64 {
		var logs []float64
		for _, r := range ratios {
			logs = append(logs, math.Log(r/bound))
		}
		return signedRank(logs)
	}
	low, high := got.Interval[0], got.Interval[1]
	for bound, rejected := range map[float64]bool{low * 0.9999: true, low * 1.0001: false, high * 0.9999: false, high * 1.0001: true} {
		if (p(bound) <= doubt) != rejected {
			t.Errorf("a bound of %v has p = %v, and the interval is %v to %v", bound, p(bound), low, high)
		}
	}
	if got.Median < 1.02 || got.Median > 1.2 {
		t.Errorf("one ratio that is far away moves the middle to %v", got.Median)
	}
	if few := Centre(ratios[:5]); few.Interval != nil {
		t.Errorf("of 5 ratios: %v", *few.Interval)
	}
	if six := Centre(ratios[:6]); six.Interval == nil || *six.Interval != [2]float64{0.91, 1.07} {
		t.Errorf("of 6 ratios: %+v", six)
	}
	if none := Centre([]float64{0, 1, 1, 1, 1, 1, 1}); none.Interval != nil {
		t.Errorf("of ratios with a zero: %v", *none.Interval)
	}
	many := make([]float64, exactRanks+1)
	for i := range many {
		many[i] = 1 + float64(i%7)/10
	}
	if s := Centre(many); s.Interval == nil || s.Median != SpreadOf(many).Median {
		t.Errorf("of %d ratios: %+v", len(many), s)
	}
}

// signedRank is the two-sided signed-rank test: the probability that values from a distribution symmetric about 0 have
// ranks at least as unequal as these. Zeros are left out, and equal distances share their ranks; the probability is
// then rounded up.
func signedRank(values []float64) float64 {
	v := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return v == 0 })
	slices.SortFunc(v, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	n := len(v)
	above := 0.0
	for i := 0; i < n; {
		j := i
		for j < n && math.Abs(v[j]) == math.Abs(v[i]) {
			j++
		}
		for k := i; k < j; k++ {
			if v[k] > 0 {
				above += float64(i+1+j) / 2
			}
		}
		i = j
	}
	all := float64(n*(n+1)) / 2
	tail := 0.0
	chances := rankSums(n)
	for w := 0; w <= int(math.Ceil(min(above, all-above))); w++ {
		tail += chances[w]
	}
	return min(1, 2*tail)
}
