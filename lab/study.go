// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// quickRounds is how many rounds a quick run of a study has.
const quickRounds = 2

// Reproduce is the profile that repeats published comparisons: one of
// studies.Names, or all of them.
//
// With guests the ends are virtual machines, where the workload can run in
// them.
func Reproduce(name string, quick, guests bool) (Profile, error) {
	all, err := studies.All()
	if err != nil {
		return Profile{}, err
	}
	p := Profile{Name: "reproduce " + name}
	known := []string{"all"}
	var titles []string
	for _, s := range all {
		known = append(known, s.Name)
		if name != "all" && name != s.Name {
			continue
		}
		titles = append(titles, s.Title)
		for i, g := range s.Groups {
			group, err := studied(s, i, g, quick, guests)
			if err != nil {
				return Profile{}, fmt.Errorf("study %s: %w", s.Name, err)
			}
			p.Groups = append(p.Groups, group)
		}
		for _, c := range s.Claims {
			if guests {
				// As Setup.String has it.
				c.Of, c.Against = c.Of+" vm", c.Against+" vm"
			}
			p.Claims = append(p.Claims, Claim{Study: s.Name, Source: s.Title, Guests: guests, Claim: c})
		}
	}
	if len(titles) == 0 {
		return Profile{}, &workloads.UnknownError{What: "study", Name: name, Known: known}
	}
	p.About = strings.Join(titles, "; ")
	return p, nil
}

// studied makes the group of a study's number i.
func studied(s studies.Study, i int, g studies.Group, quick, guests bool) (Group, error) {
	out := Group{Name: fmt.Sprintf("%s-%d", s.Name, i+1), About: s.Title + ": " + g.About, Rounds: g.Rounds}
	duration := g.Duration
	if quick {
		out.Rounds, duration = quickRounds, g.Quick
	}
	setups := g.Setups
	if len(setups) == 0 {
		setups = []studies.Setup{{}}
	}
	for _, text := range g.Workloads {
		for _, setup := range setups {
			cases, err := casesOf(text, duration, g.Fabrics, Setup{Host: setup.Host, MTU: setup.MTU, Guests: guests})
			if err != nil {
				return out, err
			}
			out.Cases = append(out.Cases, cases...)
		}
	}
	return out, nil
}

// Claim is a published claim that a profile puts to the test.
type Claim struct {
	Study  string // its groups are STUDY-1, STUDY-2 ...
	Source string
	Guests bool // the ends are virtual machines
	studies.Claim
}

// verdicts of report.Claim.
const (
	holds    = "holds"
	holdsNot = "does not hold"
	notShown = "not shown"
	cannot   = "cannot be tested"
)

// claims puts the claims to the test, on a machine of so many cores.
func claims(list []Claim, groups []*report.Group, cores int) ([]report.Claim, error) {
	if len(list) == 0 {
		return nil, nil
	}
	rows, err := studies.Rows()
	if err != nil {
		return nil, err
	}
	kernelOVS := haveKernelOVS()
	var out []report.Claim
	for _, c := range list {
		r := report.Claim{Source: c.Source, Claim: c.Claim.Claim, Test: c.Test}
		switch {
		case c.Test != "" && c.Guests:
			r.Test += "; the ends are virtual machines"
		case c.Test != "":
			r.Test += "; the ends are network namespaces"
		}
		r.Published, r.Ratio = c.Published.Text(rows)
		of, against, noisy, err := c.cases(groups)
		if err == nil {
			here := report.SpreadOf(report.Ratios(of, against, ""))
			r.Here = &here
			r.Verdict, r.Why = c.judge(of, against, here)
			if noisy {
				r.Verdict, r.Why = notShown, "others took too much of the machine meanwhile"
			}
		} else {
			r.Verdict, r.Why = cannot, err.Error()
		}
		switch {
		case c.Cannot != "":
			r.Verdict, r.Why = cannot, c.Cannot
		case c.Cores > cores && err == nil:
			r.Verdict, r.Why = cannot, fmt.Sprintf("it takes %d cores, and here are %d", c.Cores, cores)
		case c.KernelOVS && !kernelOVS && err == nil:
			r.Why = fmt.Sprintf("Open vSwitch runs in user space here, as this kernel has no datapath for it; of that it is %s", r.Verdict)
			if r.Verdict != notShown {
				r.Why = fmt.Sprintf("Open vSwitch runs in user space here, as this kernel has no datapath for it; of that the claim %s", r.Verdict)
			}
			r.Verdict = cannot
		}
		out = append(out, r)
	}
	return out, nil
}

// haveKernelOVS tells whether the kernel has a datapath for Open vSwitch.
func haveKernelOVS() bool {
	_, err := netlink.GenlFamilyGet("ovs_datapath")
	return err == nil
}

// cases finds what is compared, and whether its group is noisy; the error says
// why there is no comparison.
func (c Claim) cases(groups []*report.Group) (of, against *report.Case, noisy bool, err error) {
	if c.Cannot != "" {
		return nil, nil, false, errors.New(c.Cannot)
	}
	for _, g := range groups {
		if !strings.HasPrefix(g.Name, c.Study+"-") {
			continue
		}
		of, against, noisy = g.Case(c.Of), g.Case(c.Against), g.Noisy()
		if of != nil && against != nil {
			break
		}
	}
	if of == nil || against == nil {
		return nil, nil, false, errors.New("it was left out")
	}
	for _, k := range []*report.Case{of, against} {
		switch {
		case k.Skipped != "":
			return nil, nil, false, errors.New(k.Skipped)
		case len(k.Samples) == 0 && k.Error != "":
			return nil, nil, false, fmt.Errorf("%s: %s", k.Label, k.Error)
		case len(k.Samples) == 0:
			return nil, nil, false, errors.New("it was not measured")
		}
	}
	if len(report.Ratios(of, against, "")) == 0 {
		return nil, nil, false, errors.New("no round has both figures")
	}
	return of, against, noisy, nil
}

// judge says whether the claim holds. A threshold is reached when the whole
// interval of the ratio lies on its right side, and missed when all of it lies
// on the other; fewer than 6 rounds have no interval. A claim that one side is
// larger takes a test of difference.
func (c Claim) judge(of, against *report.Case, here report.Spread) (verdict, why string) {
	if c.Larger {
		switch p := report.MannWhitney(of.Values(), against.Values()); {
		case !(p < 0.05):
			return notShown, "the two are too near to each other for so few rounds"
		case here.Median > 1:
			return holds, ""
		}
		return holdsNot, "it is the other way round"
	}
	above := func(v, bar float64) bool { return bar == 0 || v >= bar }
	below := func(v, bar float64) bool { return bar == 0 || v <= bar }
	asked := fmt.Sprintf("at least %g", c.AtLeast)
	switch {
	case c.AtLeast != 0 && c.AtMost != 0:
		asked = fmt.Sprintf("%g to %g", c.AtLeast, c.AtMost)
	case c.AtMost != 0:
		asked = fmt.Sprintf("at most %g", c.AtMost)
	}
	if here.Interval == nil {
		return notShown, fmt.Sprintf("asked: %s; %d rounds are too few", asked, here.N)
	}
	low, high := here.Interval[0], here.Interval[1]
	switch {
	case above(low, c.AtLeast) && below(high, c.AtMost):
		return holds, "asked: " + asked
	case !above(high, c.AtLeast) || !below(low, c.AtMost):
		return holdsNot, "asked: " + asked
	}
	return notShown, "asked: " + asked + "; the rounds fall on both sides"
}
