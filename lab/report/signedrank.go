// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
)

// doubt is the error probability of the interval of Centre. The lab continues until the interval is narrow enough,
// which increases the error a little: with 3.5 %, less than 5 % of the runs are wrong (TestPower of lab).
const doubt = 0.035

// exactRanks limits the number of values for which the distribution of the signed ranks is computed. Above it, the
// interval is the one of SpreadOf: the averages of all pairs would not fit into memory.
const exactRanks = 500

// rankSums returns the probability of each sum of the ranks 1 to n, if each rank is included with probability 1/2: the
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

// Centre returns the spread of ratios by their ranks: the middle is the median of the geometric means of all pairs,
// including a ratio with itself (J. L. Hodges and E. L. Lehmann, "Estimates of Location Based on Rank Tests", 1963),
// and the interval has the bounds that the signed-rank test of the logarithms does not reject (J. W. Tukey, 1949). Some
// outliers move neither by much, so no ratio has to be left out. There is no interval for fewer than 6 ratios, or if a
// ratio is not above 0.
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
