// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// TestStudies checks that every claim uses cases of its study and published figures, and that every
// figure of the table is used or is next to a used one.
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

// TestPublishedText checks that a published ratio follows from the study's figures.
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
		got, err := claims([]Claim{{Study: "study", Claim: c.claim}}, groups, report.Machine{Cores: 2})
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Verdict != c.verdict || !strings.Contains(got[0].Why, c.why) {
			t.Errorf("%s: %q (%q), want %q (%q)", name, got[0].Verdict, got[0].Why, c.verdict, c.why)
		}
	}
}

// TestClaimsInside checks that a claim is decided for the machine of its group, and names it.
func TestClaimsInside(t *testing.T) {
	group := func(name string, m *report.Machine, failed string) *report.Group {
		of, against := &report.Case{Label: "a", Error: failed}, &report.Case{Label: "b"}
		for round := range 6 {
			if failed == "" {
				of.Samples = append(of.Samples, report.Sample{Round: round + 1, Value: 2})
			}
			against.Samples = append(against.Samples, report.Sample{Round: round + 1, Value: 1})
		}
		return &report.Group{Name: name, Machine: m, Cases: []*report.Case{of, against}}
	}
	inside := &report.Machine{Kernel: "7.3.4+deb13 x86_64", Cores: 1, Counting: "QEMU 7.2.22", KernelOVS: true}
	without := &report.Machine{Kernel: "7.3.4+deb13 x86_64", Cores: 1, Counting: "QEMU 7.2.22"}
	groups := []*report.Group{
		group("here-1", nil, ""), group("there-1", inside, ""), group("plain-1", without, ""), group("broken-1", inside, "it hung"),
	}
	claim := func(study string, set func(*studies.Claim)) Claim {
		c := Claim{Study: study, Claim: studies.Claim{Test: "a against b", Of: "a", Against: "b", AtLeast: 1.5, KernelOVS: true}}
		if set != nil {
			set(&c.Claim)
		}
		return c
	}
	const there = "Linux 7.3.4+deb13, QEMU 7.2.22"
	for name, c := range map[string]struct {
		claim        Claim
		verdict, why string
		test, inside string
	}{
		"in user space here":  {claim("here", nil), cannot, "runs in user space here", "on this machine", ""},
		"in the kernel there": {claim("there", nil), holds, "at least 1.5", "in a virtual machine (" + there + "), as a ratio of instruction costs", there},
		"in user space there": {claim("plain", nil), cannot, "runs in user space there", "in a virtual machine", there},
		"failed there":        {claim("broken", nil), cannot, "it hung", "in a virtual machine", there},
		"too few cores there": {claim("there", func(c *studies.Claim) { c.Cores = 2 }), cannot, "it takes 2 cores, and there are 1", "in a virtual machine", there},
		"cores here":          {claim("here", func(c *studies.Claim) { c.Cores, c.KernelOVS = 2, false }), holds, "at least 1.5", "on this machine", ""},
		"of nothing measured": {claim("nowhere", nil), cannot, "left out", "network namespaces", ""},
		"never":               {claim("there", func(c *studies.Claim) { c.Cannot, c.Test = "another system", "" }), cannot, "another system", "", ""},
	} {
		got, err := claims([]Claim{c.claim}, groups, report.Machine{Cores: 2})
		if err != nil {
			t.Fatal(err)
		}
		if g := got[0]; g.Verdict != c.verdict || !strings.Contains(g.Why, c.why) || !strings.Contains(g.Test, c.test) || g.Inside != c.inside {
			t.Errorf("%s: %q (%q), tested by %q in %q; want %q (%q), by %q in %q",
				name, g.Verdict, g.Why, g.Test, g.Inside, c.verdict, c.why, c.test, c.inside)
		}
	}
	// With a single machine, the claim does not name it.
	got, err := claims([]Claim{claim("here", nil)}, groups[:1], report.Machine{Cores: 2, KernelOVS: true})
	if err != nil || got[0].Verdict != holds || strings.Contains(got[0].Test, "measured") {
		t.Errorf("of one machine: %+v, error %v", got, err)
	}
}

// TestStudyInside checks that a virtual machine measures the requested group, for each study and for all
// together.
func TestStudyInside(t *testing.T) {
	all, err := studies.All()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"all"}
	for _, s := range all {
		names = append(names, s.Name)
	}
	for _, name := range names {
		for _, quick := range []bool{false, true} {
			p, err := reproduce(name, quick, false, func(s studies.Study, g Group) bool {
				return takesInside(s, g, false)
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range p.Groups {
				if !g.Inside {
					continue
				}
				there, err := Select(Options{Study: name, Groups: []string{g.Name}, Quick: quick, Counting: true})
				if err != nil {
					t.Errorf("%s, %s: %v", name, g.Name, err)
					continue
				}
				if got, want := labels(there.Groups), labels([]Group{g}); got != want {
					t.Errorf("%s, %s: the machine measures\n%s\nand is asked for\n%s", name, g.Name, got, want)
				}
			}
		}
	}
}

func labels(groups []Group) string {
	var list []string
	for _, g := range groups {
		for _, c := range g.Cases {
			list = append(list, g.Name+" "+c.Label())
		}
	}
	return strings.Join(list, "\n")
}

// TestTakesInside checks that exactly the groups whose claims need it are measured inside.
func TestTakesInside(t *testing.T) {
	all, err := studies.All()
	if err != nil {
		t.Fatal(err)
	}
	for kernelOVS, want := range map[bool]string{false: "router-2 neutron-1 kvm-1 kvm-2 kvm-3", true: "router-2 kvm-3"} {
		p, err := reproduce("all", false, false, func(s studies.Study, g Group) bool { return takesInside(s, g, kernelOVS) })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range p.Groups {
			if g.Inside {
				got = append(got, g.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("where the kernel has a datapath of Open vSwitch is %v: inside are %q, want %s", kernelOVS, got, want)
		}
	}
	// The claims that no lab on a Linux machine with few cores can test.
	never := 0
	for _, s := range all {
		for _, c := range s.Claims {
			if c.Cannot != "" || c.Cores > 2 {
				never++
			}
		}
	}
	if never > 8 {
		t.Errorf("%d claims cannot be tested, with a virtual machine or without", never)
	}
	// The machine builds the same groups from the study's name, with short rounds.
	p, err := Select(Options{Study: "kvm", Groups: []string{"kvm-3"}, Counting: true})
	if err != nil || len(p.Groups) != 1 || len(p.Claims) != 0 || len(p.Groups[0].Cases) != 6 || p.Groups[0].Cases[0].Workload.Takes > time.Second {
		t.Errorf("a group of a study: %+v, error %v", p, err)
	}
}
