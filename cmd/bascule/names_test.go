// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"strings"
	"testing"
)

// TestNamesAreInstalled checks that the links for other programs are installed.
func TestNamesAreInstalled(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, stage, _ := strings.Cut(string(makefile), "\nstage:")
	stage, _, _ = strings.Cut(stage, "\n\n")
	for name := range names {
		if !strings.Contains(stage, name) {
			t.Errorf("'make install' makes no link %s", name)
		}
	}
}
