// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"bascule/lab/report"
	"bascule/lab/studies"
)

// Pair is two cases of a group whose ratio decides a claim.
type Pair struct {
	Of, Against string  // labels
	Apart       float64 // distance of the ratio's logarithm from its bound at which the claim should be decided
}

// apart is the distance of a ratio from its bound, as a logarithm, that is decided nine times in ten: 10 %.
var apart = math.Log(1.1)

// precision is the largest half width of the interval, as a fraction of Pair.Apart. For normally distributed values,
// half the interval is 2.11 standard errors (3.5 % in both tails). It excludes a bound at a distance of Apart nine
// times in ten if Apart is 2.11 + 1.28 standard errors, so it could be 2.11 / 3.39 = 0.62 of Apart. But the lab stops
// at the first interval that is narrow enough, and such an interval is usually too narrow: 0.55 compensates for that
// (TestPower).
const precision = 0.55

// lookRounds is the number of rounds between two looks at the interval. More frequent looks make it more likely that
// the rounds end at a random interval that is too narrow.
const lookRounds = 8

// mostDecidingRounds limits the rounds of a pair, and decidingTime the time that a group takes beyond its own rounds.
// decidingInside is the same in a virtual machine that counts instructions: a second of its clock takes ten seconds and
// more, and its rounds are short.
const (
	mostDecidingRounds = 200
	decidingTime       = 4 * time.Minute
	decidingInside     = 40 * time.Second
)

// pairOf returns the pair of a claim. The ratio in a range must be known to half the range's width, if that is less
// than 10 %.
func pairOf(c studies.Claim) Pair {
	p := Pair{Of: c.Of, Against: c.Against, Apart: apart}
	if c.AtLeast != 0 && c.AtMost != 0 {
		p.Apart = min(apart, math.Log(c.AtMost/c.AtLeast)/2)
	}
	return p
}

// decided reports whether the rounds give the ratio as precisely as the pair needs it. It depends on the interval's
// width, and not on its position. Otherwise the rounds would end as soon as all of them happen to be on one side.
func (p Pair) decided(ratios []float64) bool {
	switch n := len(ratios); {
	case n >= mostDecidingRounds:
		return true
	case n == 0 || n%lookRounds != 0:
		return false
	}
	in := report.Centre(ratios).Interval
	return in != nil && math.Log(in[1]/in[0])/2 <= precision*p.Apart
}

// undecided returns the labels of cases that need further rounds.
func (g Group) undecided(measured *report.Group) map[string]bool {
	out := map[string]bool{}
	for _, p := range g.Pairs {
		of, against := measured.Case(p.Of), measured.Case(p.Against)
		if of == nil || against == nil || len(of.Samples) == 0 || len(against.Samples) == 0 {
			continue
		}
		if !p.decided(report.Ratios(of, against, "")) {
			out[p.Of], out[p.Against] = true, true
		}
	}
	return out
}

// deciding limits the time that the group takes beyond its own rounds.
func (g Group) deciding() time.Duration {
	if g.Inside {
		return decidingInside
	}
	return decidingTime
}

// inTurn returns the cases in the order of a round: every second round has the reverse order. So a drift, such as of
// the machine's temperature or of other load, affects both sides of a ratio.
func inTurn(cases []*running, round int) []*running {
	if round == 0 || round%2 == 1 {
		return cases
	}
	back := slices.Clone(cases)
	slices.Reverse(back)
	return back
}

// pairs gives the groups of a study the pairs of its claims, without claims that cannot be tested where the group is
// measured.
func pairs(claims []Claim, groups []Group) {
	kernelOVS := haveKernelOVS()
	for _, c := range claims {
		if c.Cannot != "" || c.Cores > runtime.NumCPU() {
			continue
		}
		p := pairOf(c.Claim)
		for i, g := range groups {
			if strings.HasPrefix(g.Name, c.Study+"-") && g.has(p.Of) && g.has(p.Against) {
				if !slices.Contains(g.Pairs, p) && (!c.KernelOVS || g.Inside || kernelOVS) {
					groups[i].Pairs = append(g.Pairs, p)
				}
				break
			}
		}
	}
}

// has reports whether the group has a case with that label.
func (g Group) has(label string) bool {
	return slices.ContainsFunc(g.Cases, func(c Case) bool { return c.Label() == label })
}
