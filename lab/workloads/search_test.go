// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"errors"
	"testing"
)

func TestSearch(t *testing.T) {
	const width = 0.02
	for _, c := range []struct {
		name             string
		top, guess, most float64 // most is the highest load that passes
		trials           int     // at most
	}{
		{"everything passes", 10, 10, 10, 2},
		{"the guess is right", 10, 7, 7, 5},
		{"the guess is a little low", 10, 7, 7.3, 8},
		{"the guess is a little high", 10, 7, 6.8, 8},
		{"the guess is far too low", 10, 0.1, 9, 16},
		{"the guess is far too high", 10, 9.9, 0.01, 20},
		{"the guess is above the top", 10, 11, 9.5, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			var passed []float64
			got, trials, err := search(c.top, c.guess, width, func(load float64) (bool, error) {
				if load <= 0 || load > c.top {
					t.Errorf("a trial of %v of %v", load, c.top)
				}
				if load == c.most || load < c.most {
					passed = append(passed, load)
					return true, nil
				}
				return false, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got > c.most || got < c.most/(1+width) {
				t.Errorf("%v, want %v or at most %v %% less", got, c.most, 100*width)
			}
			if trials > c.trials {
				t.Errorf("%d trials, want at most %d", trials, c.trials)
			}
			if n := len(passed); n < 2 || passed[n-1] != got {
				t.Errorf("%v was not tried again at the end: %v", got, passed)
			}
		})
	}
}

// TestSearchRepeats checks that a load that passes only once is not the result.
func TestSearchRepeats(t *testing.T) {
	lucky := true
	got, _, err := search(10, 5, 0.02, func(load float64) (bool, error) {
		if load == 5 && lucky {
			lucky = false
			return true, nil
		}
		return load < 4, nil
	})
	if err != nil || got >= 4 || got < 3.9 {
		t.Errorf("%v, error %v, want a little less than 4", got, err)
	}
}

func TestSearchEnds(t *testing.T) {
	if _, trials, err := search(10, 5, 0.02, func(float64) (bool, error) { return false, nil }); err == nil || trials != mostTrials {
		t.Errorf("%d trials of which none passed, error %v", trials, err)
	}
	broken := errors.New("broken")
	if _, _, err := search(10, 5, 0.02, func(load float64) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want the trial's", err)
	}
}
