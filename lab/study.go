// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// Limits of a quick run of a study: quickRounds is the number of rounds, quickMebibytes the size of a round, and
// quickInside the maximum size in a virtual machine.
const (
	quickRounds    = 2
	quickMebibytes = 32
	quickInside    = 4
)

// Reproduce returns the profile that repeats published comparisons: one of studies.Names, or all of them.
//
// With guests, the ends are virtual machines if the workload can run in them.
func Reproduce(name string, quick, guests bool) (Profile, error) {
	return reproduce(name, quick, guests, func(studies.Study, Group) bool { return false })
}

// ReproduceInside returns the same profile with Inside set for groups whose claims only a virtual machine can test:
// claims about Open vSwitch's kernel datapath, if this kernel has none, and about network cards.
func ReproduceInside(name string, quick bool) (Profile, error) {
	kernelOVS := haveKernelOVS()
	return reproduce(name, quick, false, func(s studies.Study, g Group) bool { return takesInside(s, g, kernelOVS) })
}

// takesInside reports whether a group has claims that need a virtual machine; kernelOVS means that this kernel has Open
// vSwitch's datapath.
func takesInside(s studies.Study, g Group, kernelOVS bool) bool {
	labels := map[string]bool{}
	for _, c := range g.Cases {
		labels[c.Label()] = true
	}
	return g.cards() || slices.ContainsFunc(s.Claims, func(c studies.Claim) bool {
		return c.KernelOVS && !kernelOVS && labels[c.Of] && labels[c.Against]
	})
}

// reproduce returns the profile, with Inside set for the groups that inside selects.
func reproduce(name string, quick, guests bool, inside func(studies.Study, Group) bool) (Profile, error) {
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
			group, err := studied(s, i, g, quick, guests, false)
			if err == nil && inside(s, group) {
				group, err = studied(s, i, g, quick, guests, true)
			}
			if err != nil {
				return Profile{}, fmt.Errorf("study %s: %w", s.Name, err)
			}
			p.Groups = append(p.Groups, group)
		}
		for _, c := range s.Claims {
			if guests {
				// As in Setup.String.
				c.Of, c.Against = c.Of+" vm", c.Against+" vm"
			}
			p.Claims = append(p.Claims, Claim{Study: s.Name, Source: s.Title, Guests: guests, Claim: c})
		}
	}
	if !quick {
		pairs(p.Claims, p.Groups)
	}
	if len(titles) == 0 {
		return Profile{}, &workloads.UnknownError{What: "study", Name: name, Known: known}
	}
	p.About = strings.Join(titles, "; ")
	return p, nil
}

// studied makes the group from a study's group number i.
func studied(s studies.Study, i int, g studies.Group, quick, guests, inside bool) (Group, error) {
	out := Group{Name: fmt.Sprintf("%s-%d", s.Name, i+1), About: s.Title + ": " + g.About, Rounds: g.Rounds, Inside: inside}
	duration, mebibytes := g.Duration, g.Mebibytes
	if inside {
		duration, mebibytes = g.Inside.Duration, g.Inside.Mebibytes
	}
	switch {
	case quick && inside:
		out.Rounds, mebibytes = quickRounds, min(mebibytes, quickInside)
	case quick && guests:
		out.Rounds, duration, mebibytes = quickRounds, g.Quick, quickInside
	case guests:
		mebibytes = 0 // virtual machines without acceleration would need a minute
	case quick:
		out.Rounds, duration, mebibytes = quickRounds, g.Quick, quickMebibytes
	}
	setups := g.Setups
	if len(setups) == 0 {
		setups = []studies.Setup{{}}
	}
	for _, text := range g.Workloads {
		length := duration
		if mebibytes > 0 {
			text, length = workloads.Brief(text, mebibytes, duration), ""
		}
		for _, setup := range setups {
			cases, err := casesOf(text, length, g.Fabrics, Setup{Host: setup.Host, MTU: setup.MTU, Guests: guests})
			if err != nil {
				return out, err
			}
			out.Cases = append(out.Cases, cases...)
		}
	}
	return out, nil
}

// Claim is a published claim that a profile tests.
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

// claims decides the claims, each one for the machine of its group; here is the machine of groups without another one.
func claims(list []Claim, groups []*report.Group, here report.Machine) ([]report.Claim, error) {
	if len(list) == 0 {
		return nil, nil
	}
	rows, err := studies.Rows()
	if err != nil {
		return nil, err
	}
	several := slices.ContainsFunc(groups, func(g *report.Group) bool { return g.Machine != nil })
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
		of, against, group, err := c.cases(groups)
		machine, place := here, "here"
		switch {
		case group == nil || !several:
		case group.Machine != nil:
			machine, place = *group.Machine, "there"
			r.Inside = machine.Counted()
			r.Test += "; measured in a virtual machine (" + r.Inside + "), as a ratio of instruction costs"
		default:
			r.Test += "; measured on this machine"
		}
		if err == nil {
			measured := report.Centre(report.Ratios(of, against, ""))
			r.Here = &measured
			r.Verdict, r.Why = c.judge(measured)
			if group.Noisy() {
				r.Verdict, r.Why = notShown, "others took too much of the machine meanwhile"
			}
		} else {
			r.Verdict, r.Why = cannot, err.Error()
		}
		switch {
		case c.Cannot != "":
			r.Verdict, r.Why = cannot, c.Cannot
		case c.Cores > machine.Cores && err == nil:
			r.Verdict, r.Why = cannot, fmt.Sprintf("it takes %d cores, and %s are %d", c.Cores, place, machine.Cores)
		case c.KernelOVS && !machine.KernelOVS && err == nil:
			r.Why = fmt.Sprintf("Open vSwitch runs in user space %s, as this kernel has no datapath for it; of that it is %s", place, r.Verdict)
			if r.Verdict != notShown {
				r.Why = fmt.Sprintf("Open vSwitch runs in user space %s, as this kernel has no datapath for it; of that the claim %s", place, r.Verdict)
			}
			r.Verdict = cannot
		}
		out = append(out, r)
	}
	return out, nil
}

// workOf reports whether a claim is about work in a group, so that instructions decide it as well as time.
func (c Claim) workOf(g Group) bool {
	return c.Cannot == "" && c.OnlyClock == "" && !c.KernelOVS && !c.Guests && strings.HasPrefix(g.Name, c.Study+"-") && g.has(c.Of) && g.has(c.Against)
}

// claimed returns the group with only the cases of claims about work.
func claimed(claims []Claim, g Group) Group {
	var labels []string
	for _, c := range claims {
		if c.workOf(g) {
			labels = append(labels, c.Of, c.Against)
		}
	}
	g.Cases = slices.DeleteFunc(slices.Clone(g.Cases), func(c Case) bool { return !slices.Contains(labels, c.Label()) })
	return g
}

// Counts reports whether virtual machines decide claims of the profile by instructions, in addition to claims of groups
// that are measured there anyway.
func (p Profile) Counts() bool {
	return slices.ContainsFunc(p.Groups, func(g Group) bool { return !g.Inside && len(claimed(p.Claims, g).Cases) > 0 })
}

// addCounted adds the verdicts of the groups in virtual machines to claims that were measured on this machine.
func addCounted(out []report.Claim, list []Claim, groups []*report.Group) {
	for i, c := range list {
		if out[i].Here == nil || out[i].Inside != "" {
			continue
		}
		if c.OnlyClock != "" {
			out[i].Why = strings.TrimPrefix(out[i].Why+"; by the clock alone: "+c.OnlyClock, "; ")
			continue
		}
		of, against, _, err := c.cases(groups)
		if err != nil {
			continue
		}
		measured := report.Centre(report.Ratios(of, against, ""))
		out[i].Counted = &measured
		out[i].CountedVerdict, _ = c.judge(measured)
	}
}

// haveKernelOVS reports whether the kernel has a datapath for Open vSwitch.
func haveKernelOVS() bool {
	_, err := netlink.GenlFamilyGet("ovs_datapath")
	return err == nil
}

// cases returns the compared cases and their group; the error is the reason why there is no comparison.
func (c Claim) cases(groups []*report.Group) (of, against *report.Case, in *report.Group, err error) {
	if c.Cannot != "" {
		return nil, nil, nil, errors.New(c.Cannot)
	}
	for _, g := range groups {
		if !strings.HasPrefix(g.Name, c.Study+"-") {
			continue
		}
		if of, against = g.Case(c.Of), g.Case(c.Against); of != nil && against != nil {
			in = g
			break
		}
	}
	if in == nil {
		return nil, nil, nil, errors.New("it was left out")
	}
	for _, k := range []*report.Case{of, against} {
		switch {
		case k.Skipped != "":
			return nil, nil, in, errors.New(k.Skipped)
		case len(k.Samples) == 0 && k.Error != "":
			return nil, nil, in, fmt.Errorf("%s: %s", k.Label, k.Error)
		case len(k.Samples) == 0:
			return nil, nil, in, errors.New("it was not measured")
		}
	}
	if len(report.Ratios(of, against, "")) == 0 {
		return nil, nil, in, errors.New("no round has both figures")
	}
	return of, against, in, nil
}

// judge decides whether the claim holds. A bound is met if the whole interval of the ratio is on the right side, and
// missed if all of it is on the other side; fewer than 6 rounds have no interval. The bound of a claim with Larger is
// 1.
func (c Claim) judge(here report.Spread) (verdict, why string) {
	if c.Larger {
		switch in := here.Interval; {
		case in == nil || in[0] <= 1 && in[1] >= 1:
			return notShown, "the two are too near to each other for so few rounds"
		case in[0] > 1:
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
