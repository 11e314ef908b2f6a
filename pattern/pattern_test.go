// SPDX-License-Identifier: BSD-2-Clause

package pattern

import "testing"

func TestNew(t *testing.T) {
	digits := New(`[0-9]+`)
	if a, b := digits(), digits(); a != b || a.FindString("a12b") != "12" {
		t.Errorf("%p and %p, which finds %q", a, b, a.FindString("a12b"))
	}
	bad := New(`(`) // it is not compiled yet
	defer func() {
		if recover() == nil {
			t.Error("a text that is no pattern was taken")
		}
	}()
	bad()
}
