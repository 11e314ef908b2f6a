// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/test/program"
)

// TestCountedClaims checks that the 11 claims that this machine tests have instructions in addition to time, unless
// they state a reason.
func TestCountedClaims(t *testing.T) {
	p, err := reproduce("all", false, false, func(s studies.Study, g Group) bool { return takesInside(s, g, false) })
	if err != nil {
		t.Fatal(err)
	}
	byWork, byClock := 0, 0
	for _, g := range p.Groups {
		if g.Inside {
			continue
		}
		again := claimed(p.Claims, g)
		for _, c := range p.Claims {
			switch {
			case c.Cannot != "" || c.Cores > 2 || !strings.HasPrefix(g.Name, c.Study+"-") || !g.has(c.Of) || !g.has(c.Against):
			case again.has(c.Of) && again.has(c.Against):
				byWork++
			case c.OnlyClock != "":
				byClock++
			default:
				t.Errorf("%s: no instructions, and no reason why", c.Claim.Claim)
			}
		}
		if len(again.Cases) == 0 {
			continue
		}
		o := Options{Study: "all", Groups: []string{g.Name}, Counting: true, Claimed: true}
		there, err := Select(o)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := labels(there.Groups), labels([]Group{again}); got != want {
			t.Errorf("%s: the machine measures\n%s\nand is asked for\n%s", g.Name, got, want)
		}
	}
	if byWork != 9 || byClock != 2 {
		t.Errorf("%d claims are decided by instructions as well, and %d by the clock alone; want 9 and 2", byWork, byClock)
	}
}

// TestCount checks that instructions have their own verdict, which does not change the verdict on time.
func TestCount(t *testing.T) {
	group := func(name string, of float64) *report.Group {
		g := &report.Group{Name: name, Cases: []*report.Case{{Label: "a"}, {Label: "b"}}}
		for round := range 8 {
			for i, v := range []float64{of * (1 + float64(round)/1000), 1} {
				g.Cases[i].Samples = append(g.Cases[i].Samples, report.Sample{Round: round + 1, Value: v})
			}
		}
		return g
	}
	list := []Claim{
		{Study: "x", Claim: studies.Claim{Of: "a", Against: "b", AtLeast: 0.9}},
		{Study: "x", Claim: studies.Claim{Of: "a", Against: "b", AtLeast: 0.9, OnlyClock: "it waits"}},
		{Study: "y", Claim: studies.Claim{Of: "a", Against: "b", AtLeast: 0.9}},
	}
	out, err := claims(list, []*report.Group{group("x-1", 1), group("y-1", 1)}, report.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	addCounted(out, list, []*report.Group{group("x-1", 0.5)})
	if c := out[0]; c.Verdict != holds || c.CountedVerdict != holdsNot || c.Counted == nil || c.Says() != "holds; by instructions: does not hold" ||
		!strings.Contains(c.Measured(), "; by instructions 0.50") {
		t.Errorf("%+v: %s, %s", c, c.Says(), c.Measured())
	}
	if c := out[1]; c.Counted != nil || c.Says() != holds || !strings.Contains(c.Why, "by the clock alone: it waits") {
		t.Errorf("by the clock alone: %+v", c)
	}
	if c := out[2]; c.Counted != nil || c.Says() != holds {
		t.Errorf("a group that was not counted: %+v", c)
	}
}

// TestRunCounted checks that a claim of a study that this machine tests is also measured in a virtual machine.
func TestRunCounted(t *testing.T) {
	if testing.Short() {
		t.Skip("measures a study in a virtual machine, for minutes: 'make test-all'")
	}
	t.Parallel() // like TestRunInside; no other test that leaves namespaces may run in parallel
	needRoot(t)
	nothingLeft(t)
	var missing *ends.Unavailable
	k, err := Pinned(t.Context(), "", NewProgress(nil))
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := ReproduceInside("veb", true)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Counts() {
		t.Fatal("no group of the study counts")
	}
	var told bytes.Buffer
	r, err := RunReproduced(t.Context(), fabrics.Site{Bascule: program.Path(t)}, "veb", true, p, k, NewProgress(&told))
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v, after\n%s", err, &told)
	}
	if len(r.Groups) != 1 || r.Groups[0].Machine != nil || len(r.Counted) != 1 || r.Counted[0].Machine == nil {
		t.Fatalf("%d groups here, %d there, after\n%s", len(r.Groups), len(r.Counted), &told)
	}
	for _, c := range r.Counted[0].Cases {
		if len(c.Samples) != quickRounds || c.Error != "" {
			t.Errorf("%s: %d samples, error %q, left out: %q", c.Label, len(c.Samples), c.Error, c.Skipped)
		}
	}
	for _, c := range r.Claims {
		if c.Here == nil || c.Counted == nil || c.CountedVerdict == "" || c.Inside != "" {
			t.Errorf("%s: here %v, counted %v %q", c.Claim, c.Here, c.Counted, c.CountedVerdict)
		}
		t.Logf("%s: %s", c.Claim, c.Measured())
	}
}
