// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
)

// doubt is the chance of error of the interval of Centre. The lab goes on until the interval is narrow enough, which
// makes it err a little more often than that: with 3.5 %, it errs in less than 5 % of the runs (TestPower of lab).
const doubt = 0.035

// exactRanks is for how many values the distribution of the signed ranks is computed. Beyond, the interval is that of
// SpreadOf: so many averages of two would not fit into memory.
const exactRanks = 500

// rankSums are the chances of each sum of the ranks 1 to n, each of which is in the sum or not, with chance 1/2: the
// distribution of the signed-rank test (F. Wilcoxon, "Individual Comparisons by Ranking Methods", 1945).
func rankSums(n int) []float64 {
	chances := make([]float64, n*(n+1)/2+1)
	chances[0] = 1
	for rank := 1; rank <= n; rank++ {
		for w := rank * (rank + 1) / 2; w >= 0; w-- {
			with := 0.0
			if w >= rank {
				with = chances[w-rank]
			}
			chances[w] = (chances[w] + with) / 2
		}
	}
	return chances
}

// Centre is the spread of ratios by their ranks: the middle is the median of the geometric means of any two of them, a
// ratio with itself included (J. L. Hodges and E. L. Lehmann, "Estimates of Location Based on Rank Tests", 1963), and
// the interval has the bounds that the signed-rank test of the logarithms does not reject (J. W. Tukey, 1949). Some
// ratios that are far from all others move neither by much: no ratio has to be left out. Fewer than 6 ratios have no
// interval, and neither have those that are not all above 0.
func Centre(ratios []float64) Spread {
	s := SpreadOf(ratios)
	n := len(ratios)
	if n == 0 || n > exactRanks {
		return s
	}
	s.Interval = nil
	if s.Min <= 0 {
		return s
	}
	means := make([]float64, 0, n*(n+1)/2)
	for i := range ratios {
		for j := i; j < n; j++ {
			means = append(means, math.Sqrt(ratios[i])*math.Sqrt(ratios[j]))
		}
	}
	s.Median = SpreadOf(means).Median
	slices.Sort(means)
	tail, k := 0.0, 0
	for _, chance := range rankSums(n) {
		if tail += chance; tail > doubt/2 {
			break
		}
		k++
	}
	if k > 0 {
		s.Interval = &[2]float64{means[k-1], means[len(means)-k]}
	}
	return s
}
