// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/lab/report"
)

// TestFullDisk checks that a failed write leaves the old file and nothing else, and that the other
// files are written.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=12k"); err != nil {
		t.Skipf("needs root, to mount a small disk: %v", err)
	}
	defer unix.Unmount(dir, 0)
	page := filepath.Join(dir, "report.html")
	if err := os.WriteFile(page, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := outputFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = writeReports(&report.Report{Profile: "test"}, files)
	if err == nil || !strings.Contains(err.Error(), "as report.html") || !strings.Contains(err.Error(), ": no space left on device;") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	if text, err := os.ReadFile(page); err != nil || string(text) != "old" {
		t.Errorf("the page that was there is %d bytes, error %v", len(text), err)
	}
	if r, err := readReport(filepath.Join(dir, "report.json")); err != nil || r.Profile != "test" {
		t.Errorf("the JSON: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v was left, error %v", left, err)
	}
}

func TestOutputFiles(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]int{"r.json": 1, "r.html": 1, "r.md": 1, "r.csv": 1, "r.txt": 1, "folder": 4, "f.d/": 4} {
		files, err := outputFiles(dir + "/" + name)
		if err != nil || len(files) != want {
			t.Errorf("-o %s: %v, error %v", name, files, err)
		}
	}
	for _, bad := range []string{"r.HTML", "r.pdf"} {
		if _, err := outputFiles(dir + "/" + bad); err == nil || !strings.Contains(err.Error(), "no form has the ending") {
			t.Errorf("-o %s: error %v", bad, err)
		}
	}
	for _, missing := range []string{"no/r.json", "no/folder", "no/such/folder/"} {
		want := "there is no folder " + filepath.Dir(filepath.Clean(dir+"/"+missing)) + "; make it first"
		if _, err := outputFiles(dir + "/" + missing); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-o %s: error %v, want %s", missing, err, want)
		}
		if _, err := os.Stat(dir + "/no"); err == nil {
			t.Errorf("-o %s: a folder was made", missing)
		}
	}
	if _, err := outputFiles("/proc/folder"); err == nil || !strings.Contains(err.Error(), "give another -o") {
		t.Errorf("-o of a folder that cannot be: error %v", err)
	}
}
