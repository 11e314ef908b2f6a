// SPDX-License-Identifier: BSD-2-Clause

// Package program has the program under test.
package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Path returns the program that the environment variable BASCULE names, so that many
// packages' tests take the same, or builds one from this source for the test.
func Path(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("BASCULE"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "bascule")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "bascule/cmd/bascule").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}
