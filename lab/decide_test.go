// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// TestPower simulates claims with a known ratio and realistic noise: from a normal distribution, or with one in ten
// rounds disturbed four times as much. A ratio at a distance of 10 % from its bound must be decided nine times in ten,
// and correctly. At the bound itself, at most one verdict in twenty may be for either side.
func TestPower(t *testing.T) {
	const runs = 600
	for _, c := range []struct {
		noise     float64
		disturbed bool
	}{{0.03, false}, {0.1, false}, {0.1, true}, {0.2, false}} {
		t.Run(fmt.Sprintf("noise %v, disturbed %v", c.noise, c.disturbed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(39, 5))
			claim := Claim{Claim: studies.Claim{AtLeast: 0.9}}
			pair := pairOf(claim.Claim)
			verdicts := func(ratio float64) (count map[string]int, rounds int) {
				count = map[string]int{}
				for range runs {
					var ratios []float64
					for !pair.decided(ratios) {
						noise := c.noise
						if c.disturbed && random.Float64() < 0.1 {
							noise *= 4
						}
						ratios = append(ratios, ratio*math.Exp(noise*random.NormFloat64()))
					}
					verdict, _ := claim.judge(report.Centre(ratios))
					count[verdict]++
					rounds += len(ratios)
				}
				return count, rounds / runs
			}
			above, rounds := verdicts(0.9 * 1.1)
			below, _ := verdicts(0.9 / 1.1)
			at, _ := verdicts(0.9)
			t.Logf("%d rounds; above %v, below %v, at the bound %v", rounds, above, below, at)
			if above[holds] < runs*9/10 || below[holdsNot] < runs*9/10 {
				t.Errorf("a tenth from the bound: above %v, below %v of %d", above, below, runs)
			}
			if wrong := above[holdsNot] + below[holds]; wrong > runs/100 {
				t.Errorf("%d of %d are wrong", wrong, 2*runs)
			}
			if at[holds]+at[holdsNot] > runs/20 {
				t.Errorf("at the bound: %v of %d", at, runs)
			}
		})
	}
}

// TestPairOf checks that the ratio in a range narrower than 10 % on each side must be known to half its width.
func TestPairOf(t *testing.T) {
	for _, c := range []struct {
		claim studies.Claim
		want  float64
	}{
		{studies.Claim{AtLeast: 0.9}, math.Log(1.1)},
		{studies.Claim{Larger: true}, math.Log(1.1)},
		{studies.Claim{AtLeast: 0.95, AtMost: 1.05}, math.Log(1.05/0.95) / 2},
		{studies.Claim{AtLeast: 0.5, AtMost: 2}, math.Log(1.1)},
	} {
		if got := pairOf(c.claim).Apart; math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%+v: %v, want %v", c.claim, got, c.want)
		}
	}
	if p := (Pair{Apart: apart}); !p.decided(slices.Repeat([]float64{1, 100}, mostDecidingRounds/2)) || p.decided([]float64{1, 2, 4, 8, 16, 32, 64, 128}) ||
		p.decided([]float64{1, 1, 1, 1, 1, 1, 1}) {
		t.Error("rounds end where there are too many, and not before there are enough")
	}
}

// TestDecide checks that only the cases of undecided claims get further rounds. A case without results ends them.
func TestDecide(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	made := func(name string, values func(round int) (float64, error)) Case {
		w := workloads.Must(brief)
		w.Name = name
		w.Start = func(context.Context, *fabrics.Net) (workloads.Session, error) {
			return &madeSession{values: values}, nil
		}
		return Case{Fabric: fabrics.Direct, Workload: w}
	}
	steady := func(int) (float64, error) { return 1, nil }
	// The first 20 rounds vary widely.
	restless := func(round int) (float64, error) {
		if round > 20 {
			return 1, nil
		}
		return math.Exp(math.Sin(1.7*float64(round)) / 2), nil
	}
	ends := func(round int) (float64, error) {
		if round > 10 {
			return 0, os.ErrClosed
		}
		return restless(round)
	}
	for _, c := range []struct {
		name string
		of   func(int) (float64, error)
		more [2]int // from, to
	}{
		{"steady", steady, [2]int{5, 5}}, // the lab looks after 8
		{"restless", restless, [2]int{10, 100}},
		{"ends", ends, [2]int{8, 12}},
	} {
		g := group(3, []Case{made("of", c.of), made("against", steady), made("other", restless)})
		g.Pairs = []Pair{{Of: "direct of", Against: "direct against", Apart: apart}}
		r, err := Run(t.Context(), fabrics.Site{}, Profile{Groups: []Group{g}}, NewProgress(nil))
		if err != nil {
			t.Fatal(err)
		}
		got := r.Groups[0]
		if got.More < c.more[0] || got.More > c.more[1] || len(got.Cases[1].Samples) < 3+min(got.More, 7) || len(got.Cases[2].Samples) != 3 {
			t.Errorf("%s: %d more rounds, want %v; %d and %d rounds of the pair, %d of the other case",
				c.name, got.More, c.more, len(got.Cases[0].Samples), len(got.Cases[1].Samples), len(got.Cases[2].Samples))
		}
	}
}

// madeSession returns given measurements.
type madeSession struct {
	values func(round int) (float64, error)
	round  int // 0 is the warm-up
}

func (m *madeSession) Run(context.Context, workloads.Meter) (report.Sample, error) {
	v, err := m.values(m.round)
	m.round++
	return report.Sample{Value: v, Seconds: 1}, err
}

func (m *madeSession) Close() error { return nil }

// TestRecorded checks that runs on two days do not contradict each other. If both have enough rounds, their verdicts
// are equal; if one has too few, the other may decide more. They were recorded on two machines with 6 and 8 rounds,
// before the lab chose the number of rounds.
func TestRecorded(t *testing.T) {
	p, err := Reproduce("all", false, false)
	if err != nil {
		t.Fatal(err)
	}
	var of [2][]report.Claim
	var ratios [2]map[string][]float64 // of the rounds, by claim
	for i, name := range []string{"old", "new"} {
		f, err := os.Open("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := report.ReadJSON(f)
		if err != nil {
			t.Fatal(err)
		}
		if of[i], err = claims(p.Claims, r.Groups, r.Machine); err != nil {
			t.Fatal(err)
		}
		ratios[i] = map[string][]float64{}
		for _, c := range p.Claims {
			if of, against, _, err := c.cases(r.Groups); err == nil {
				ratios[i][c.Claim.Claim] = report.Ratios(of, against, "")
			}
		}
	}
	tested, shown := 0, 0
	for i, c := range of[0] {
		other := of[1][i]
		if c.Here == nil || other.Here == nil {
			continue
		}
		tested++
		if c.Verdict != notShown {
			shown++
		}
		t.Logf("%s: %s %.3g %.3g, %s %.3g %.3g", c.Claim, c.Verdict, c.Here.Median, *c.Here.Interval, other.Verdict, other.Here.Median, *other.Here.Interval)
		if c.Verdict != other.Verdict && c.Verdict != notShown && other.Verdict != notShown {
			t.Errorf("%s: %s on one day, %s on the other", c.Claim, c.Verdict, other.Verdict)
		}
		if p := pairOf(p.Claims[i].Claim); p.decided(ratios[0][c.Claim]) && p.decided(ratios[1][c.Claim]) && c.Verdict != other.Verdict {
			t.Errorf("%s: enough rounds on both days, %s and %s", c.Claim, c.Verdict, other.Verdict)
		}
	}
	if tested < 11 || shown == 0 {
		t.Errorf("%d claims are tested by both runs, and %d decided", tested, shown)
	}
}
