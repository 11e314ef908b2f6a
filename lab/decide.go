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
	Apart       float64 // how far the ratio's logarithm is from its bound where the claim is to be decided
}

// apart is how far from its bound, as a logarithm, a ratio is decided nine times in ten: a tenth.
var apart = math.Log(1.1)

// precision is the part of Pair.Apart that half of the interval may be wide. For values of a normal distribution, half
// of it is 2.11 standard errors (3.5 % in both tails), and it misses a bound that is Apart away nine times in ten where
// Apart is 2.11 + 1.28 of them: it may be 2.11 / 3.39 = 0.62 of Apart. The lab ends at the first interval that is
// narrow enough, which is more often than not one that is too narrow: 0.55 makes up for it (TestPower).
const precision = 0.55

// lookRounds is after how many rounds each the lab looks at the interval. The more often it looks, the more often
// chance ends the rounds where the interval is too narrow.
const lookRounds = 8

// mostDecidingRounds is how many rounds a pair has at most, and decidingTime how long a group goes on beyond its own
// rounds. decidingInside is the same in a virtual machine that counts instructions: a second of its clock takes ten and
// more, and its rounds are short.
const (
	mostDecidingRounds = 200
	decidingTime       = 4 * time.Minute
	decidingInside     = 40 * time.Second
)

// pairOf is the pair of a claim. A range has to be known to half of its width, where that is less than a tenth.
func pairOf(c studies.Claim) Pair {
	p := Pair{Of: c.Of, Against: c.Against, Apart: apart}
	if c.AtLeast != 0 && c.AtMost != 0 {
		p.Apart = min(apart, math.Log(c.AtMost/c.AtLeast)/2)
	}
	return p
}

// decided tells whether rounds give the ratio as exactly as the pair needs it. It goes by how wide the interval is, and
// not by where it is: so that the rounds do not end as soon as chance has them all on one side.
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

// undecided are the labels of cases that need further rounds.
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

// deciding is how long the group may go on beyond its own rounds.
func (g Group) deciding() time.Duration {
	if g.Inside {
		return decidingInside
	}
	return decidingTime
}

// inTurn are the cases in the order of a round: every second round goes back the way that the one before came. So what
// grows from case to case, the machine's temperature or the work of others, weighs on both sides of a ratio.
func inTurn(cases []*running, round int) []*running {
	if round == 0 || round%2 == 1 {
		return cases
	}
	back := slices.Clone(cases)
	slices.Reverse(back)
	return back
}

// pairs gives the groups of a study the pairs of its claims, without those that cannot be tested where the group is
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

// has tells whether the group has a case of that label.
func (g Group) has(label string) bool {
	return slices.ContainsFunc(g.Cases, func(c Case) bool { return c.Label() == label })
}
