// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
)

// Hooks are the hooks that a test or case runs by: both, or with -short one of them. A name has always
// the same one, and the names are divided about evenly. So 'make test' runs each case once, and the
// code of each hook, and 'make test-all' runs each case by both.
func Hooks(name string) []string {
	hooks := []string{"tcx", "xdp"}
	if !testing.Short() {
		return hooks
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	i := h.Sum32() >> 16 & 1 // the low bits are those of the last letter
	return hooks[i : i+1]
}

// Tenth is n, or with -short a tenth of it, and one at least: how often a test tries by chance.
func Tenth(n int) int {
	if !testing.Short() {
		return n
	}
	return max(n/10, 1)
}

// Some are the cases that a differential test, or another system's suite, runs: all of them, or with -short a tenth,
// one at least and others each time.
func Some[Case any](all []Case) []Case {
	n := Tenth(len(all))
	if n >= len(all) {
		return all
	}
	some := slices.Clone(all)
	rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some[:n]
}

// Minutes skips a test with -short: it takes minutes.
func Minutes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes minutes: 'make test-all'")
	}
}
