// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
)

// objectsSum, by which builds are distinguished, is the sum of the objects.
func TestObjectsSum(t *testing.T) {
	if sum := fmt.Sprintf("%x", sha256.Sum256(slices.Concat(_KernelBytes, _PlainBytes))); sum != objectsSum {
		t.Errorf("the sum of the objects is %s, and objectsSum is %s: run 'make generate'", sum, objectsSum)
	}
}
