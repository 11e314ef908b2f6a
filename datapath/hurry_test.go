// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestHurry: the kernel's switch is on during each hurry, and off after the last one,
// even if one was killed.
func TestHurry(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "switch")
	set := func(value string) {
		if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set("0\n")
	want := func(when, value string) {
		t.Helper()
		if got, _ := os.ReadFile(file); strings.TrimSpace(string(got)) != value {
			t.Fatalf("%s the switch is %q, want %s", when, got, value)
		}
	}
	begin := func() *hurry {
		h := &hurry{dir: filepath.Join(dir, hurryDir), file: file}
		h.begin()
		return h
	}

	short := &hurry{dir: filepath.Join(dir, hurryDir), file: file}
	short.end()
	want("where nobody waits", "0")

	a, b := begin(), begin()
	want("in a hurry", hurryMark)
	a.end()
	want("when one of two is done", hurryMark)
	b.end()
	want("when both are", "0")

	killed := begin()
	killed.lock.Close() // the kernel does this at its end
	want("after a kill", hurryMark)
	short.calm()
	want("when the next writer has come", "0")

	killed = begin()
	killed.lock.Close()
	begin().end()
	want("after a kill and a hurry", "0")

	// the folder is gone with its file system, such as a container's
	killed = begin()
	killed.lock.Close()
	if err := os.Remove(killed.dir); err != nil {
		t.Fatal(err)
	}
	short.calm()
	want("when the next writer has come, which finds no folder", "0")
	killed = begin()
	killed.lock.Close()
	if err := os.Remove(killed.dir); err != nil {
		t.Fatal(err)
	}
	begin().end()
	want("after a kill whose folder went, and a hurry", "0")
	if _, err := os.Stat(killed.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder is left: %v", err)
	}

	if err := os.Mkdir(short.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	set("1\n")
	short.calm()
	want("after a kill of an earlier version", "0")

	set("1\n")
	begin().end()
	want("where somebody has it on always", "1")
}

// Hurries begin, end and are killed at the same time. The switch is on during each of
// them, and off in the end.
func TestHurryTogether(t *testing.T) {
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "switch"), filepath.Join(dir, hurryDir)
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hurried atomic.Int64
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for n := range 2000 {
				h := &hurry{dir: folder, file: file}
				h.calm() // as every writer does first
				h.begin()
				if h.lock == nil {
					continue
				}
				hurried.Add(1)
				if got, _ := os.ReadFile(file); !strings.HasPrefix(string(got), hurryMark) {
					t.Errorf("in a hurry the switch is %q", got)
				}
				if (n+worker)%7 == 0 {
					h.lock.Close() // killed
					continue
				}
				h.end()
			}
		})
	}
	wg.Wait()
	(&hurry{dir: folder, file: file}).calm()
	if got, _ := os.ReadFile(file); !strings.HasPrefix(string(got), "0") {
		t.Errorf("in the end the switch is %q", got)
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	if hurried.Load() == 0 {
		t.Error("nobody was in a hurry")
	}
}

// A process that can't write to the switch, for example in a container, leaves no trace
// that another process would take for a hurry's.
func TestHurryReadOnly(t *testing.T) {
	const file = "/sys/kernel/oops_count" // it is read-only
	dir := t.TempDir()
	h := &hurry{dir: filepath.Join(dir, hurryDir), file: file}
	h.begin()
	h.end()
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 || h.lock != nil {
		t.Errorf("left: %v, %v, %v", list, err, h.lock)
	}
}
