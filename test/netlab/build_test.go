// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"os"
	"testing"
)

// TestBuildOnce: two tests that need the same build have one.
func TestBuildOnce(t *testing.T) {
	defer func(was string) { builds = was }(builds)
	builds = t.TempDir()
	built := func() os.FileInfo {
		t.Helper()
		path, err := Build("once", "-ldflags", "-X main.version=once")
		if err != nil {
			t.Fatal(err)
		}
		at, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	if a, b := built(), built(); !os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) {
		t.Errorf("the program was built again: %v, %v", a.ModTime(), b.ModTime())
	}
}
