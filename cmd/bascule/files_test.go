// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/bridge"

	"golang.org/x/sys/unix"
)

// TestNamedPipes checks that no command blocks on a pipe without a writer or reader, for every
// argument that can be a file.
func TestNamedPipes(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	include := write("include", fmt.Sprintf("include %q\n", pipe))
	table := write("table", fmt.Sprintf("table <bad> file %q\npass\n", pipe))
	anchor := write("anchor", fmt.Sprintf("anchor a\nload anchor a from %q\n", pipe))
	for _, args := range []string{
		"apply " + pipe,
		"apply --dry-run " + pipe,
		"pfctl -f " + pipe,
		"pfctl -nf " + pipe,
		"pfctl -nf " + include,
		"pfctl -nf " + table,
		"pfctl -nf " + anchor,
		"pfctl -t bad -T add -f " + pipe,
		"rule load br0 " + pipe,
		"trace br0 --in p1 --pcap " + pipe,
		"capture br0 -w " + pipe,
		"pflog -b br0 -w " + pipe,
		"lab report " + pipe,
	} {
		var stdout, stderr strings.Builder
		done := make(chan int, 1)
		go func() {
			f := &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
			done <- runWith(f, &stdout, &stderr, strings.Fields(args)...)
		}()
		select {
		case status := <-done:
			if status != exitRefused || !strings.Contains(stderr.String(), "pipe") {
				t.Errorf("%s: exit status %d, %q", args, status, stderr.String())
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: hangs", args)
		}
	}
}
