// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
	"strings"
)

// Words of a Comparison that show no difference.
const (
	NoDifference = "no difference shown"
	TooFew       = "too few rounds"
	TooNoisy     = "too noisy" // see Group.Noisy
)

// significance is the error probability that a word about a difference may have.
const significance = 0.05

// Comparison is the result of a case compared with another.
type Comparison struct {
	Ratio Spread  // of the common rounds
	P     float64 // from MannWhitney; NaN if a side has no samples
	// Word is "faster" or "slower", or "better" or "worse" for a unit that is neither a time
	// nor a rate, if P is below 0.05. Otherwise it is NoDifference, or TooFew if so few rounds
	// cannot give such a P.
	Word string
}

// Compared compares a case with another one of the same unit, and tests whether the rounds show a
// difference.
func Compared(of, against *Case) Comparison {
	a, b := of.Values(), against.Values()
	p := MannWhitney(a, b)
	return Comparison{Ratio: SpreadOf(Ratios(of, against, "")), P: p, Word: word(a, b, p, of.Unit, of.Lower)}
}

// word returns the outcome of the test of a against b.
func word(a, b []float64, p float64, unit string, lower bool) string {
	if smallestP(len(a), len(b)) >= significance {
		return TooFew
	}
	// If ranks and medians contradict each other, there is no word in either direction.
	u, half := rankSum(a, b), float64(len(a)*len(b))/2
	ma, mb := SpreadOf(a).Median, SpreadOf(b).Median
	more, less := u > half && ma >= mb, u < half && ma <= mb
	if p >= significance || !more && !less {
		return NoDifference
	}
	good, bad := "better", "worse"
	if lower && isTime(unit) || !lower && isRate(unit) {
		good, bad = "faster", "slower"
	}
	if more == lower {
		return bad
	}
	return good
}

func isTime(unit string) bool {
	return slices.Contains([]string{"ns", "us", "µs", "ms", "s"}, unit)
}

func isRate(unit string) bool {
	return strings.HasSuffix(unit, "/s") || strings.HasSuffix(unit, "pps")
}

// smallestP returns the smallest P of the exact test for m and n values: the P of two sides without
// overlap.
func smallestP(m, n int) float64 {
	ways := 1.0 // to choose m of m+n
	for i := 1; i <= m; i++ {
		ways *= float64(n+i) / float64(i)
	}
	return min(1, 2/ways)
}

// exactUpTo is the maximum number of values on a side for the exact distribution.
const exactUpTo = 20

// MannWhitney is the two-sided Mann-Whitney U test: the probability that two sets of values drawn
// from one distribution of any form differ in rank at least as much as these (H. B. Mann and D. R.
// Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger than the
// Other", 1947). It is exact for up to 20 values on each side without ties; otherwise it is the
// normal approximation with corrections for ties and continuity. It is NaN if a side is empty.
func MannWhitney(a, b []float64) (p float64) {
	m, n := len(a), len(b)
	if m == 0 || n == 0 {
		return math.NaN()
	}
	u := rankSum(a, b)
	u = min(u, float64(m*n)-u)
	ties := tied(a, b)
	if len(ties) == 0 && m <= exactUpTo && n <= exactUpTo {
		return min(1, 2*exactTail(m, n, int(u)))
	}
	all := float64(m + n)
	variance := all + 1
	for _, t := range ties {
		variance -= (t*t*t - t) / (all * (all - 1))
	}
	variance *= float64(m*n) / 12
	if variance <= 0 { // all values are equal
		return 1
	}
	z := max(0, float64(m*n)/2-u-0.5) / math.Sqrt(variance)
	return math.Erfc(z / math.Sqrt2)
}

// rankSum returns U of a: the number of pairs in which the value of a is greater; equal values
// count half.
func rankSum(a, b []float64) float64 {
	u := 0.0
	for _, x := range a {
		for _, y := range b {
			switch {
			case x > y:
				u++
			case x == y:
				u += 0.5
			}
		}
	}
	return u
}

// tied returns the count of each value that occurs more than once.
func tied(a, b []float64) []float64 {
	all := slices.Sorted(slices.Values(slices.Concat(a, b)))
	var out []float64
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j] == all[i] {
			j++
		}
		if j-i > 1 {
			out = append(out, float64(j-i))
		}
		i = j
	}
	return out
}

// exactTail returns the probability that U is at most u, if all orders of the m and n values are
// equally likely. It counts the orders for each U by recursion over the side with the greatest
// value.
func exactTail(m, n, u int) float64 {
	// row[j][k] is the probability of U = k for i values against j.
	row := make([][]float64, n+1)
	for j := range row {
		row[j] = []float64{1}
	}
	for i := 1; i <= m; i++ {
		next := make([][]float64, n+1)
		next[0] = []float64{1}
		for j := 1; j <= n; j++ {
			next[j] = make([]float64, i*j+1)
			ofA := float64(i) / float64(i+j)
			for k, chance := range row[j] { // the greatest value is of a, and above all j
				next[j][k+j] += ofA * chance
			}
			for k, chance := range next[j-1] {
				next[j][k] += (1 - ofA) * chance
			}
		}
		row = next
	}
	tail := 0.0
	for k := 0; k <= u; k++ {
		tail += row[n][k]
	}
	return tail
}
