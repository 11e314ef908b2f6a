// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"fmt"
	"math"
)

// mostTrials is the number of trials after which a search fails.
const mostTrials = 40

// search finds the highest load between 0 and top that passes a trial twice, with a precision of
// width (0.02 for 2 %). It begins with the top and continues with guess. From there it goes up or
// down in steps that double until it has a load that passes and a higher one that does not, and
// then bisects the range, on a logarithmic scale. So a good guess makes it short, as in MLRsearch
// (draft-ietf-bmwg-mlrsearch).
func search(top, guess, width float64, trial func(load float64) (bool, error)) (load float64, trials int, err error) {
	try := func(load float64) (bool, error) {
		trials++
		return trial(load)
	}
	pass, err := try(top)
	if pass && err == nil {
		pass, err = try(top)
	}
	if pass || err != nil {
		return top, trials, err
	}
	low, high, step := 0.0, top, 1+width
	load = min(guess, top/step)
	for trials < mostTrials {
		again := low > 0 && high/low <= 1+width
		if again {
			load = low
		}
		pass, err := try(load)
		switch {
		case err != nil:
			return 0, trials, err
		case again && pass:
			return low, trials, nil
		case again:
			low, high, step = 0, low, 1+width
		case pass:
			low = load
		default:
			high = load
		}
		step = min(step*step, 4)
		switch {
		case low == 0:
			load = high / step
		case high/low > 1+width:
			load = min(low*step, math.Sqrt(low*high))
		}
	}
	return 0, trials, fmt.Errorf("nothing passed twice in %d trials, down to %.3g of the most", trials, high/top)
}
