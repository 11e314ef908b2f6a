// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"testing"
	"time"
)

// TestQuick adds up the time of a quick run of all studies. On two idle cores the limit is five minutes: a fabric takes
// half a second, and a round takes a tenth of a second more than it sends. TCP reaches 3 Gbit/s on the slowest fabric;
// Takes assumes 1.
func TestQuick(t *testing.T) {
	p, err := Reproduce("all", true, false)
	if err != nil {
		t.Fatal(err)
	}
	const building, around = 500 * time.Millisecond, 100 * time.Millisecond
	var takes time.Duration
	built, rounds, cases := 0, 0, 0
	for _, g := range p.Groups {
		if g.cards() {
			continue // it is left out
		}
		builds := 0
		for i, c := range g.Cases {
			cases++
			again := false
			for _, o := range g.Cases[:i] {
				again = again || c.shares(o)
			}
			if !again {
				builds++
			}
			rounds += g.Rounds + 1
			sends := c.Workload.Takes
			if c.Workload.Shares != "" {
				sends = quickMebibytes * 8 * time.Second / 3000
			}
			takes += time.Duration(g.Rounds+1) * (sends + around)
		}
		if want := map[string]int{"router-1": 13, "router-3": 7, "router-4": 13, "router-5": 13}[g.Name]; want != 0 && builds != want {
			t.Errorf("%s builds %d routers, want %d", g.Name, builds, want)
		}
		if len(g.Pairs) > 0 {
			t.Errorf("%s has further rounds for its claims", g.Name)
		}
		built += builds
	}
	takes += time.Duration(built) * building
	t.Logf("%d cases, %d fabrics, %d rounds, %v", cases, built, rounds, takes.Round(time.Second))
	if built > 125 || rounds > 800 {
		t.Errorf("it builds %d fabrics and has %d rounds", built, rounds)
	}
	if takes > 5*time.Minute {
		t.Errorf("it takes %v", takes)
	}
}
