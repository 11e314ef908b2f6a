// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBadRules checks that one line about a bad file is followed by all of its bad lines.
func TestBadRules(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules")
	const text = "# comment\npass on p1\nblok in on p1\nblock on p1 src 02:00\n"
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	status := runWith(&fakeSwitch{}, &stdout, &stderr, "rule", "load", "br0", name)
	if status != exitRefused || stdout.Len() > 0 {
		t.Errorf("exit status %d, stdout %q", status, stdout.String())
	}
	want := "bascule: cannot load rules of br0: 2 lines are wrong; nothing was changed\n" +
		"FILE:3:1: blok: not expected here; give block or pass\n    blok in on p1\n    ^\n" +
		"FILE:4:17: 02:00: not a MAC address for src; give six bytes such as 02:00:00:00:00:01\n    block on p1 src 02:00\n                    ^\n"
	if diff := cmp.Diff(want, strings.ReplaceAll(stderr.String(), name, "FILE")); diff != "" {
		t.Error(diff)
	}
}
