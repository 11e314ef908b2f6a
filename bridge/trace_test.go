// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"
	"testing"

	"bascule/datapath"
)

// Every reason for which the datapath drops frames can be told.
func TestTraceWords(t *testing.T) {
	reasons := datapath.Reasons()[1:] // the first is none
	for _, r := range reasons {
		if words[r] == "" {
			t.Errorf("trace has no words for the reason %q", r)
		}
	}
	for r := range words {
		if !slices.Contains(reasons, r) {
			t.Errorf("trace has words for %q, which is no reason", r)
		}
	}
}
