// SPDX-License-Identifier: BSD-2-Clause

package instructions

import (
	"runtime"
	"testing"
)

// TestCheckElsewhere checks that a machine without counted instructions is detected.
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
