// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// demoPlace enters a mount namespace with an empty /run, so that the leftovers of its demos are
// separate from others. The calling goroutine stays in it for the rest of the test.
func demoPlace(t *testing.T) (bascule string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	bascule = filepath.Join(t.TempDir(), "bascule")
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, bascule)
	}
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // and the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	return bascule
}

// demoLeft lists what demos have left.
func demoLeft(t *testing.T) (left []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/*", "/run/bascule/[0-9]*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// demoAt runs a demo and calls at with the number of each printed line.
func demoAt(t *testing.T, at func(n int, p *os.Process), bascule string, args ...string) (printed []string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bascule, append([]string{"demo"}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 1; lines.Scan(); n++ {
		printed = append(printed, lines.Text())
		if strings.Contains(lines.Text(), "until you press Enter") {
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
		}
		at(n, cmd.Process)
	}
	err = cmd.Wait()
	if strings.Count(said.String(), "\n") > 1 {
		t.Errorf("bascule demo said %q", said.String())
	}
	return printed, err
}

func goOn(int, *os.Process) {}

// TestDemo checks that a demo shows an answer and leaves nothing behind, and that its printed
// commands have the same effect.
func TestDemo(t *testing.T) {
	t.Parallel()
	bascule := demoPlace(t)
	printed, err := demoAt(t, goOn, bascule)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(printed, "\n")
	for _, want := range []string{"from 192.0.2.2: seq=3 ", "br0 red\n", "dynamic"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if left := demoLeft(t); len(left) > 0 {
		t.Errorf("a demo left %v", left)
	}

	for _, need := range []string{"bash", "ip", "ping"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s, which 'make test' installs", need)
		}
	}
	script, commands := "set -e\n", 0
	for _, line := range printed {
		if command, ok := strings.CutPrefix(line, "# "); ok {
			script += command + "\n"
			commands++
			if strings.Contains(command, "bridge del") {
				script += "! " + strings.Replace(command, "bridge del", "bridge show", 1) + "\n"
			}
		}
	}
	out, err := exec.CommandContext(t.Context(), "bash", "-c", script).CombinedOutput()
	if err != nil || commands < 18 || !strings.Contains(string(out), "3 received, 0% packet loss") {
		t.Errorf("%d commands of the demo: %v\n%s\nin:\n%s", commands, err, out, script)
	}
	if left := demoLeft(t); len(left) > 0 {
		t.Errorf("its commands left %v", left)
	}

	if printed, err = demoAt(t, goOn, bascule, "--keep"); err != nil || !strings.Contains(strings.Join(printed, "\n"), " monitor br0\n") {
		t.Errorf("--keep: %v\n%s", err, strings.Join(printed, "\n"))
	}
	if left := demoLeft(t); len(left) > 0 {
		t.Errorf("--keep left %v", left)
	}
}

// TestDemoEndsEarly checks that an interrupted demo removes the objects that it has made so far,
// and that the next demo removes the leftovers of a killed one.
func TestDemoEndsEarly(t *testing.T) {
	t.Parallel()
	bascule := demoPlace(t)
	for n := 1; n <= 40; n += 3 {
		stopped := false
		signal := []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP}[n/3%3]
		printed, err := demoAt(t, func(line int, p *os.Process) {
			if line == n {
				stopped = true
				_ = p.Signal(signal) // the process may have ended
			}
		}, bascule)
		if left := demoLeft(t); len(left) > 0 {
			t.Fatalf("%v after line %d, of which it printed %d more (%v), left %v", signal, n, len(printed)-n, err, left)
		}
		if !stopped {
			break
		}
	}
	for n := 4; n <= 40; n += 5 {
		if _, err := demoAt(t, func(line int, p *os.Process) {
			if line == n {
				_ = p.Kill()
			}
		}, bascule); err == nil {
			break // the demo had finished before
		}
	}
	// each demo removes leftovers of ended processes, and nothing else
	mine := "bsc-demo1-red" // process 1 lives
	if err := os.WriteFile("/run/netns/"+mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// a closed output pipe is a normal end
	out, err := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", `"$0" demo | head -1`, bascule).CombinedOutput()
	if err != nil || strings.Count(string(out), "\n") != 1 {
		t.Errorf("demo | head -1: %v, %q", err, out)
	}
	if left := demoLeft(t); len(left) != 1 || filepath.Base(left[0]) != mine {
		t.Errorf("after demos that were killed, and one whose reader had enough, there is %v, not %s alone", left, mine)
	}
}
