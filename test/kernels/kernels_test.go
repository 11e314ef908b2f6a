// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/test/machines"
)

// A kernel replaces the former one of the same series and Debian.
func TestLine(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-50-cloud-amd64": "6.1", "6.12.95+deb12-cloud-amd64": "6.12+deb12", "6.12.90+deb12.1-cloud-amd64": "6.12+deb12",
		"6.12.117+deb13-cloud-amd64": "6.12+deb13", "7.3.4+deb13-cloud-amd64": "7.3+deb13",
	} {
		if got := line(release); got != want {
			t.Errorf("the line of %s is %s, want %s", release, got, want)
		}
	}
}

// Cases are chosen by a word or a pattern, and the list has each case once.
func TestChoose(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range append([]machines.Case{refusal}, cases...) {
		if seen[c.Test] {
			t.Errorf("case %s is twice there", c.Test)
		}
		seen[c.Test] = true
	}
}

// A column shows which run its results are from.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernels.md")
	if err := os.WriteFile(path, []byte("<!-- made by make test-kernels -->\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	results := map[string]machines.Result{cases[0].Test: machines.Passed}
	if err := note(path, "7.3.4+deb13-cloud-amd64", "v1", "10.0.2", results); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| | case | 7.3.4 |\n", "| bascule |  | v1 |\n", "| QEMU |  | 10.0.2 |\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}
