// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"slices"
	"strings"
	"testing"
)

// TestFindPins checks that a word matches the beginning of a release up to the end of a number.
func TestFindPins(t *testing.T) {
	for words, want := range map[string]int{
		"": len(Pins), "6.1": 1, "6.12": 2, "6.12.95 7.3": 2, "6.12 6.12.95": -1, "5.4": -1, "6.1 6.1": -1,
	} {
		list, err := FindPins(strings.Fields(words)...)
		if n := len(list); err == nil && n != want || err != nil && want != -1 {
			t.Errorf("%q chooses %d kernels, error %v, want %d", words, n, err, want)
		}
	}
}

// TestPinsSorted checks that the list is sorted from the oldest kernel to the newest.
func TestPinsSorted(t *testing.T) {
	if !slices.IsSortedFunc(Pins, func(a, b Pin) int { return CompareReleases(a.Release, b.Release) }) {
		t.Errorf("not in order: %v", Pins)
	}
	if got := Newest().WithDrivers().Release; !strings.HasSuffix(got, "+deb13-amd64") {
		t.Errorf("with all drivers the newest is %s", got)
	}
	if Newest().WithoutTCX {
		t.Errorf("the newest, %s, has no tcx", Newest().Release)
	}
}
