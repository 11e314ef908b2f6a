// SPDX-License-Identifier: BSD-2-Clause

package bridge

import "testing"

// A device that becomes a port during a Look is not known yet. Its change must not be missed,
// because the Look may have read the device before.
func TestConcernsWhileLooking(t *testing.T) {
	d := Devices{known: map[int]bool{7: true}}
	if !d.Concerns(7) || d.Concerns(8) {
		t.Error("the device of a port is what it concerns, and no other")
	}
	d.begin()
	if !d.Concerns(8) {
		t.Error("a change is missed while a Look is under way")
	}
	d.end()
	if d.Concerns(8) {
		t.Error("each device concerns it after a Look")
	}
}
