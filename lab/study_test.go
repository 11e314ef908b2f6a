// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"math"
	"strings"
	"testing"

	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// Every claim is of cases that its study measures, and of figures that were
// published; every figure of the table is used or stands beside one that is.
func TestStudies(t *testing.T) {
	rows, err := studies.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, guests := range []bool{false, true} {
		p, err := Reproduce("all", guests, guests)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Claims {
			for _, id := range []string{c.Published.Of, c.Published.Against} {
				if _, ok := rows[id]; !ok && id != "" {
					t.Errorf("%s: %q: no figure is called %s", c.Study, c.Claim.Claim, id)
				}
			}
			if c.Cannot != "" {
				continue
			}
			if c.AtLeast == 0 && c.AtMost == 0 && !c.Larger {
				t.Errorf("%s: %q asks for nothing", c.Study, c.Claim.Claim)
			}
			found := false
			for _, g := range p.Groups {
				labels := map[string]bool{}
				for _, k := range g.Cases {
					labels[k.Label()] = true
				}
				found = found || strings.HasPrefix(g.Name, c.Study+"-") && labels[c.Of] && labels[c.Against]
			}
			if !found {
				t.Errorf("%s: %q: no group has both %q and %q", c.Study, c.Claim.Claim, c.Of, c.Against)
			}
		}
	}
	for _, name := range studies.Names() {
		if p, err := Reproduce(name, true, false); err != nil || len(p.Claims) == 0 {
			t.Errorf("study %s: %d claims, error %v", name, len(p.Claims), err)
		}
	}
	var unknown *workloads.UnknownError
	if _, err := Reproduce("vebb", false, false); !errors.As(err, &unknown) {
		t.Errorf("a study that does not exist: error %v", err)
	}
}

// A ratio that a study published follows from the study's figures.
func TestPublishedText(t *testing.T) {
	rows, err := studies.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		published studies.Published
		text      string
		ratio     float64
	}{
		{studies.Published{Of: "veb-veb", Against: "veb-cable"}, "909 against 919 Mbit/s", 909.0 / 919},
		{studies.Published{Of: "if-bridge-mutex"}, "3.7 Mpps", 0},
		{studies.Published{Of: "kvm-transactions", Figure: "-7 %", Ratio: 0.93}, "-7 %", 0.93},
	} {
		if text, ratio := c.published.Text(rows); text != c.text || math.Abs(ratio-c.ratio) > 1e-9 {
			t.Errorf("%+v: %q, %v; want %q, %v", c.published, text, ratio, c.text, c.ratio)
		}
	}
}

func TestClaims(t *testing.T) {
	measured := func(label string, values ...float64) *report.Case {
		c := &report.Case{Label: label}
		for i, v := range values {
			c.Samples = append(c.Samples, report.Sample{Round: i + 1, Value: v})
		}
		return c
	}
	groups := []*report.Group{
		{Name: "other-1", Cases: []*report.Case{measured("a", 9, 9, 9, 9, 9, 9), measured("b", 1, 1, 1, 1, 1, 1)}},
		{Name: "study-1", Cases: []*report.Case{
			measured("a", 1.00, 1.01, 1.02, 0.99, 0.98, 1.03),
			measured("b", 2.00, 2.01, 2.02, 1.99, 1.98, 2.03),
			measured("few", 3, 3, 3, 3, 3),
			{Label: "skipped", Skipped: "it is not installed"},
			{Label: "failed", Error: "it broke"},
		}},
	}
	for name, c := range map[string]struct {
		claim   studies.Claim
		verdict string
		why     string
	}{
		"reached":       {studies.Claim{Of: "b", Against: "a", AtLeast: 1.9}, holds, "at least 1.9"},
		"missed":        {studies.Claim{Of: "a", Against: "b", AtLeast: 0.9}, holdsNot, "at least 0.9"},
		"below":         {studies.Claim{Of: "a", Against: "b", AtMost: 0.6}, holds, "at most 0.6"},
		"within":        {studies.Claim{Of: "b", Against: "a", AtLeast: 1.5, AtMost: 2.5}, holds, "1.5 to 2.5"},
		"on both sides": {studies.Claim{Of: "b", Against: "a", AtLeast: 2.0}, notShown, "both sides"},
		"few rounds":    {studies.Claim{Of: "few", Against: "a", AtLeast: 1}, notShown, "5 rounds are too few"},
		"larger":        {studies.Claim{Of: "b", Against: "a", Larger: true}, holds, ""},
		"smaller":       {studies.Claim{Of: "a", Against: "b", Larger: true}, holdsNot, "other way round"},
		"alike":         {studies.Claim{Of: "a", Against: "a", Larger: true}, notShown, "too near"},
		"skipped":       {studies.Claim{Of: "skipped", Against: "a", AtLeast: 1}, cannot, "not installed"},
		"failed":        {studies.Claim{Of: "a", Against: "failed", AtLeast: 1}, cannot, "it broke"},
		"left out":      {studies.Claim{Of: "a", Against: "nothing", AtLeast: 1}, cannot, "left out"},
		"few cores":     {studies.Claim{Of: "b", Against: "a", AtLeast: 1, Cores: 8}, cannot, "8 cores"},
		"never":         {studies.Claim{Cannot: "it takes two machines", AtLeast: 1}, cannot, "two machines"},
	} {
		got, err := claims([]Claim{{Study: "study", Claim: c.claim}}, groups, 2)
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Verdict != c.verdict || !strings.Contains(got[0].Why, c.why) {
			t.Errorf("%s: %q (%q), want %q (%q)", name, got[0].Verdict, got[0].Why, c.verdict, c.why)
		}
	}
}
