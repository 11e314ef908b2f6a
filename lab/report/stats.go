// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"math"
	"slices"
)

// Spread is the middle and the ends of some values.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Interval is where the median lies with 95 % confidence, whatever the
	// distribution of the values. Fewer than 6 values do not tell.
	Interval *[2]float64 `json:"interval_95,omitempty"`
}

// SpreadOf is the spread of the values; all of it is NaN where there are none.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	v := slices.Sorted(slices.Values(values))
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = v[len(v)/2-1]/2 + mid/2 // their sum may be too large
	}
	s := Spread{N: len(v), Median: mid, Min: v[0], Max: v[len(v)-1]}
	if k := rank95(len(v)); k > 0 {
		s.Interval = &[2]float64{v[k-1], v[len(v)-k]}
	}
	return s
}

// rank95 is how far from each end, counted from 1, the values are between
// which the median of a population lies with at least 95 % confidence when n
// were drawn: the number of values below the median follows the binomial
// distribution with p = 1/2 (the sign test). It is 0 where no rank will do.
func rank95(n int) int {
	below := 0.0 // the chance that fewer than k values are below the median
	// As a logarithm, because 2^-n is too small for a number from n = 1075.
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

// Values are the values of a case's samples, in order.
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

// Ratios divides the values of two cases round by round. Rounds that one of
// them lacks are left out, and so are rounds where the second is 0 or too small
// to divide by. More names a value beside the main one; "" is the main one.
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

// Less is the case with the values of another subtracted round by round; rounds that
// the other lacks are left out. It is the case itself where there is no other.
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

// Case finds a case of the group by its label.
func (g *Group) Case(label string) *Case {
	for _, c := range g.Cases {
		if c.Label == label {
			return c
		}
	}
	return nil
}

// Figure is one number that the project is held to, and what was measured.
type Figure struct {
	Name    string `json:"name"`
	Of      string `json:"of"`
	Against string `json:"against,omitempty"`
	// OfLess and AgainstLess are cases whose values were subtracted from those of the
	// other two.
	OfLess      string  `json:"of_less,omitempty"`
	AgainstLess string  `json:"against_less,omitempty"`
	Unit        string  `json:"unit"` // "x" for a ratio
	Lower       bool    `json:"lower_is_better,omitempty"`
	Must        float64 `json:"must,omitempty"`
	Aim         float64 `json:"aim,omitempty"`
	Got         *Spread `json:"got,omitempty"` // nil when it was not measured
	Why         string  `json:"why,omitempty"` // it was not measured
}

// Verdict is "aim", "must" or "below", or "not measured", or "-" where nothing
// is asked. It goes by the median.
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

// Missing names the figures that were not measured, each once.
func (r *Report) Missing() []string {
	var out []string
	for _, f := range r.Figures {
		if f.Got == nil && !slices.Contains(out, f.Name) {
			out = append(out, f.Name)
		}
	}
	return out
}

// Failed are the labels of the cases that were tried and gave nothing; measured
// is how many gave something.
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
