// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
)

// Spread is the middle and the extremes of some values.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Interval contains the median with 95 % confidence for any distribution of the values. It
	// needs at least 6 values.
	Interval *[2]float64 `json:"interval_95,omitempty"`
}

// SpreadOf returns the spread of the values; everything is NaN without values.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = v[len(v)/2-1]/2 + mid/2 // their sum may overflow
	}
	s := Spread{N: len(v), Median: mid, Min: v[0], Max: v[len(v)-1]}
	if k := rank95(len(v)); k > 0 {
		s.Interval = &[2]float64{v[k-1], v[len(v)-k]}
	}
	return s
}

// rank95 returns the rank, from 1 at each end, of the values that enclose the median of a
// population with at least 95 % confidence, for a sample of n: the number of values below the
// median has the binomial distribution with p = 1/2 (the sign test). It is 0 if there is no such
// rank.
func rank95(n int) int {
	below := 0.0 // the probability that fewer than k values are below the median
	// As a logarithm, because 2^-n underflows from n = 1075 on.
	chance := -float64(n) * math.Ln2
	k := 0
	for ; k < n; k++ {
		below += math.Exp(chance)
		if below > 0.025 {
			break
		}
		chance += math.Log(float64(n-k)) - math.Log(float64(k+1))
	}
	return k
}

// Values returns the values of a case's samples, in order.
func (c *Case) Values() []float64 {
	out := make([]float64, len(c.Samples))
	for i, s := range c.Samples {
		out[i] = s.Value
	}
	return out
}

// Pick returns a value of a sample by name; "" is the sample's own value.
func (s Sample) Pick(name string) (float64, bool) {
	if name == "" {
		return s.Value, true
	}
	v, ok := s.More[name]
	return v, ok
}

// Ratios divides the values of two cases round by round. It skips rounds that one of them lacks,
// and rounds in which the second value is 0 or too small to divide by. more names an additional
// value; "" is the main one.
func Ratios(of, against *Case, more string) []float64 {
	other := map[int]Sample{}
	for _, s := range against.Samples {
		other[s.Round] = s
	}
	var out []float64
	for _, s := range of.Samples {
		o, ok := other[s.Round]
		if !ok {
			continue
		}
		a, okA := s.Pick(more)
		b, okB := o.Pick(more)
		if ratio := a / b; okA && okB && b != 0 && !math.IsInf(ratio, 0) {
			out = append(out, ratio)
		}
	}
	return out
}

// Less returns the case with the values of another one subtracted round by round; rounds that the
// other one lacks are left out. Without another case it returns the case itself.
func (c *Case) Less(other *Case) *Case {
	if c == nil || other == nil {
		return c
	}
	values := map[int]float64{}
	for _, s := range other.Samples {
		values[s.Round] = s.Value
	}
	out := *c
	out.Samples = nil
	for _, s := range c.Samples {
		if v, ok := values[s.Round]; ok {
			out.Samples = append(out.Samples, Sample{Round: s.Round, Value: s.Value - v})
		}
	}
	return &out
}

// Case returns the case of the group with a label.
func (g *Group) Case(label string) *Case {
	for _, c := range g.Cases {
		if c.Label == label {
			return c
		}
	}
	return nil
}

// Figure is a number with a target, and its measurement.
type Figure struct {
	Name    string `json:"name"`
	Of      string `json:"of"`
	Against string `json:"against,omitempty"`
	// OfLess and AgainstLess are cases whose values were subtracted from the other two.
	OfLess      string  `json:"of_less,omitempty"`
	AgainstLess string  `json:"against_less,omitempty"`
	Unit        string  `json:"unit"` // "x" for a ratio
	Lower       bool    `json:"lower_is_better,omitempty"`
	Must        float64 `json:"must,omitempty"`
	Aim         float64 `json:"aim,omitempty"`
	Got         *Spread `json:"got,omitempty"` // nil when it was not measured
	Why         string  `json:"why,omitempty"` // the reason if it was not measured
}

// Verdict returns "aim", "must" or "below", or "not measured", or "-" without a target. It depends
// on the median.
func (f Figure) Verdict() string {
	reached := func(bar float64) bool {
		if f.Lower {
			return f.Got.Median <= bar
		}
		return f.Got.Median >= bar
	}
	switch {
	case f.Got == nil:
		return "not measured"
	case f.Must == 0 && f.Aim == 0:
		return "-"
	case f.Aim != 0 && reached(f.Aim):
		return "aim"
	case reached(f.Must):
		return "must"
	}
	return "below"
}

// Missing names the figures without a measurement, each one once.
func (r *Report) Missing() []string {
	var out []string
	for _, f := range r.Figures {
		if f.Got == nil && !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// Failed returns the labels of cases that were tried without a result; measured is the number of
// cases with results.
func (r *Report) Failed() (labels []string, measured int) {
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			switch {
			case len(c.Samples) > 0:
				measured++
			case c.Error != "":
				labels = append(labels, c.Label)
			}
		}
	}
	return labels, measured
}
