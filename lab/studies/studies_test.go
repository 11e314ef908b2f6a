// SPDX-License-Identifier: BSD-2-Clause

package studies

import (
	"regexp"
	"testing"
)

// inWords has the ratios of claims that were published without figures.
var inWords = map[string]float64{
	"with the mutex the rate is the same however many cores forward": 1,
	"without it the rate grows with the cores":                       2, // two cores against one
}

// rounded has the claims whose words are much less precise than their figures: a veth was 23, 27
// and 9 times slower.
var rounded = map[string]bool{
	"a veth between two bridges is ten times slower than an internal port, from the host": true,
	"in devstack's hybrid too, a veth is ten times slower from the host":                  true,
	"in devstack's hybrid too, a veth is much slower between virtual machines":            true,
}

var (
	saysLess  = regexp.MustCompile(`slower|less than half|the same`)
	saysAlike = regexp.MustCompile(`alike|as fast as|within`)
)

// TestBars checks that a test passes on the machine of its study, and fails far from its figures:
// the bounds must match the publication.
func TestBars(t *testing.T) {
	// near limits the distance of a bound from the published ratio, as a factor, and wide is
	// the limit for the claims in rounded.
	const near, wide = 1.25, 3
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for _, s := range all {
		for _, c := range s.Claims {
			if c.Cannot != "" {
				continue
			}
			tested++
			_, ratio := c.Published.Text(rows)
			if ratio == 0 {
				ratio = inWords[c.Claim]
			}
			room := near
			if rounded[c.Claim] {
				room = wide
			}
			bars := c.AtLeast != 0 || c.AtMost != 0
			switch {
			case ratio == 0:
				t.Errorf("%s: %q has no ratio", s.Name, c.Claim)
			case c.Larger == bars:
				t.Errorf("%s: %q asks for a larger one: %v, and for a ratio: %v", s.Name, c.Claim, c.Larger, bars)
			case c.Larger && ratio <= 1:
				t.Errorf("%s: %q, but the ratio was %.3f", s.Name, c.Claim, ratio)
			case c.AtLeast != 0 && ratio < c.AtLeast, c.AtMost != 0 && ratio > c.AtMost:
				t.Errorf("%s: %q asks for %g to %g, and the ratio was %.3f", s.Name, c.Claim, c.AtLeast, c.AtMost, ratio)
			case c.AtLeast != 0 && c.AtLeast*room < ratio, c.AtMost > ratio*room:
				t.Errorf("%s: %q asks for %g to %g, which is far from the ratio of %.3f", s.Name, c.Claim, c.AtLeast, c.AtMost, ratio)
			case saysAlike.MatchString(c.Claim) && (c.AtLeast == 0 || c.AtMost == 0):
				t.Errorf("%s: %q asks for %g to %g, which leaves a side open", s.Name, c.Claim, c.AtLeast, c.AtMost)
			case bars && (c.AtLeast == 0) && !saysLess.MatchString(c.Claim), bars && c.AtMost == 0 && saysLess.MatchString(c.Claim):
				t.Errorf("%s: %q asks for %g to %g, the wrong side", s.Name, c.Claim, c.AtLeast, c.AtMost)
			}
		}
	}
	if tested == 0 {
		t.Error("no claim is tested")
	}
}
