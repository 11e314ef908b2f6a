// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
)

// The sum by which builds are told apart is that of the objects.
func TestObjectsSum(t *testing.T) {
	if sum := fmt.Sprintf("%x", sha256.Sum256(slices.Concat(_KernelBytes, _PlainBytes))); sum != objectsSum {
		t.Errorf("the sum of the objects is %s, and objectsSum is %s: run 'make generate'", sum, objectsSum)
	}
}
