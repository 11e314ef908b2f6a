// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A command is killed as it enters the call with that number, and not before.
func TestRunKilled(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("has a kernel ask before system calls, which takes root")
	}
	for n := range 5 {
		dir := t.TempDir()
		made := func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		}
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("rm", names...) // it calls unlinkat(2)
		cmd.Dir = dir
		r, err := RunKilled(cmd, "unlinkat", n+1)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: -1, false: 0}[n < len(names)]; r.Exit != want {
			t.Errorf("number %d: exit %d, not %d", n+1, r.Exit, want)
		}
		for i, name := range names {
			if left := made(name); left != (i >= n) {
				t.Errorf("number %d: file %d is left: %v", n+1, i+1, left)
			}
		}
	}
	if _, err := RunKilled(exec.Command("/nowhere"), "unlinkat", 1); err == nil {
		t.Error("a program that is not there ran")
	}
	if _, err := RunKilled(exec.Command("rm"), "nothing", 1); err == nil {
		t.Error("a call that there is not was waited for")
	}
}

// A command's calls are counted in all its threads. They can be made to fail, and to wait.
func TestRunWatched(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("has a kernel ask before system calls, which takes root")
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	// Four processes with one call each.
	command := func() *exec.Cmd {
		return exec.Command("sh", "-c", `for f in a b c d; do mkdir "$0/$f" || exit 3; done; rmdir "$0"/*`, dir)
	}
	mkdir := "mkdir"
	if callNumbers[mkdir] == 0 {
		mkdir = "mkdirat"
	}
	r, count, err := RunCounted(command(), mkdir, "rmdir", "unlinkat")
	if err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	if count[mkdir] != 4 || count["rmdir"]+count["unlinkat"] != 4 {
		t.Errorf("it counts %v, want 4 and 4", count)
	}
	r, err = RunFailing(command(), mkdir, 3, unix.EDQUOT)
	if err != nil || r.Exit != 3 || !strings.Contains(r.Stderr, "quota") {
		t.Errorf("with a third call that fails: %v, %v", r, err)
	}
	for name, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if err := os.Remove(path(name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	done := false
	r, reached, err := RunPaused(command(), mkdir, 2, func() {
		done = true
		_, first := os.Stat(path("a"))
		_, second := os.Stat(path("b"))
		if first != nil || second == nil {
			t.Errorf("before the second call: %v, %v", first, second)
		}
	})
	if err != nil || r.Exit != 0 || !reached || !done {
		t.Errorf("paused: %v, %v, reached %v, done %v", r, err, reached, done)
	}
	if _, reached, err = RunPaused(command(), mkdir, 5, func() { t.Error("it came to a call that it does not make") }); err != nil || reached {
		t.Errorf("a fifth call: reached %v, %v", reached, err)
	}
}
