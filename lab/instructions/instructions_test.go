// SPDX-License-Identifier: BSD-2-Clause

package instructions

import (
	"runtime"
	"testing"
)

// A machine whose instructions nobody counts is found out.
func TestCheckElsewhere(t *testing.T) {
	if err := Check(); err == nil {
		t.Error("the counter of this machine is said to count instructions")
	}
	if runtime.GOARCH != "amd64" {
		return
	}
	if a, b := Count(), Count(); a == 0 || b <= a {
		t.Errorf("the counter does not go on: %d, then %d", a, b)
	}
}
