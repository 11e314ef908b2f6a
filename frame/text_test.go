// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/frames.golden anew")

func TestString(t *testing.T) {
	var text strings.Builder
	for _, f := range seenFrames(t) {
		text.WriteString(f.String() + "\n")
	}
	const golden = "testdata/frames.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("differs from %s (go test -update writes it): %s", golden, diff)
	}
}

// Every frame gives one line that is safe for a terminal.
func TestStringHostile(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, f := range seenFrames(t) {
		whole := f.Data
		for n := range 400 {
			f.Data = slices.Clone(whole)
			if n < len(whole) {
				f.Data = f.Data[:n]
			}
			for range n % 4 {
				if len(f.Data) > 12 { // addresses do not matter
					f.Data[12+rng.IntN(len(f.Data)-12)] = byte(rng.Uint32())
				}
			}
			line := f.String()
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("% x: %q", f.Data, line)
			}
		}
	}
}
