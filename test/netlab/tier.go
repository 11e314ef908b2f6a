// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
)

// Hooks returns the hooks for a test or case: both, or with -short one of them. A name always has the same hook, and
// about half of the names have each. So 'make test' runs each case once, and the code of each hook, and 'make test-all'
// runs each case on both.
func Hooks(name string) []string {
	hooks := []string{"tcx", "xdp"}
	if !testing.Short() {
		return hooks
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	i := h.Sum32() >> 16 & 1 // The low bits would depend on the last letter only.
	return hooks[i : i+1]
}

// Tenth returns n, or with -short a tenth of it, but at least one. It is the number of random tries of a test.
func Tenth(n int) int {
	if !testing.Short() {
		return n
	}
	return max(n/10, 1)
}

// Some returns the cases that a differential test, or another system's suite, runs: all of them, or with -short a
// random tenth, at least one.
func Some[Case any](all []Case) []Case {
	n := Tenth(len(all))
	if n >= len(all) {
		return all
	}
	some := slices.Clone(all)
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some[:n]
}

// Place reports whether a test tries one of the places where a command may fail or be killed: each of them, or with
// -short a random third.
func Place() bool { return !testing.Short() || rand.IntN(3) == 0 }

// Third returns n, or with -short a third of it. It is the number of places where a test kills a command.
func Third(n int) int {
	if !testing.Short() {
		return n
	}
	return max(n/3, 1)
}

// Minutes skips a test that takes minutes if -short is set.
func Minutes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes minutes: 'make test-all'")
	}
}
