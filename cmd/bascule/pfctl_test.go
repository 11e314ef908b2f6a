// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
)

// TestBadPF checks that all errors in a file are reported, and that pfctl's final line follows if
// the file should have been loaded.
func TestBadPF(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pf.conf")
	if err := os.WriteFile(name, []byte("pass\nblok in all\npass in proto tcp to port 70000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		flags string
		last  string
	}{
		{"-f", "pfctl: Syntax error in config file: pf rules not loaded\n"},
		{"-nf", ""},
	} {
		var stdout, stderr strings.Builder
		f := &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
		if status := runWith(f, &stdout, &stderr, "pfctl", test.flags, name); status != exitRefused || stdout.Len() > 0 {
			t.Errorf("%s: exit status %d, stdout %q", test.flags, status, stdout.String())
		}
		got := strings.ReplaceAll(stderr.String(), name, "FILE")
		errors, ok := strings.CutSuffix(got, test.last)
		if !ok || !strings.HasPrefix(errors, "FILE:2:1: ") || !strings.Contains(errors, "\n    blok in all\n    ^\nFILE:3:") || strings.Count(errors, "\n") != 6 {
			t.Errorf("%s: %s", test.flags, got)
		}
	}
}

// TestTooMuchPF checks that a valid file above a limit is not reported as a syntax error.
func TestTooMuchPF(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pf.conf")
	list := "{ " + strings.Repeat("10.0.0.1 ", 500) + "}"
	if err := os.WriteFile(name, []byte("pass from "+list+" to "+list+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	f := &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
	status := runWith(f, &stdout, &stderr, "pfctl", "-f", name)
	lines := strings.Split(stderr.String(), "\n")
	if status != exitRefused || stdout.Len() > 0 || len(lines) != 5 || lines[3] != "pfctl: too much in config file: pf rules not loaded" {
		t.Errorf("exit status %d, stdout %q, stderr:\n%s", status, stdout.String(), stderr.String())
	}
}

// TestPFTestStatus checks pfctl's exit status, without a message, if some addresses do not match.
func TestPFTestStatus(t *testing.T) {
	f := &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
	var stdout, stderr strings.Builder
	runWith(f, &stdout, &stderr, "pfctl", "-qt", "bad", "-T", "add", "10.0.0.1")
	status := runWith(f, &stdout, &stderr, "pfctl", "-t", "bad", "-vvT", "test", "10.0.0.1", "10.0.0.2")
	if status != 2 {
		t.Errorf("exit status %d", status)
	}
	if diff := cmp.Diff("1/2 addresses match.\n", stderr.String()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("M  10.0.0.1\n   10.0.0.2\n", stdout.String()); diff != "" {
		t.Error(diff)
	}
}
