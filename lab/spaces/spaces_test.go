// SPDX-License-Identifier: BSD-2-Clause

package spaces

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLeftover(t *testing.T) {
	const prefix = "bsc-lab-"
	living := func(pid int) bool { return pid == 17 }
	for name, want := range map[string]bool{
		"bsc-lab-18-1-sw":                true,
		"bsc-lab-18-e1":                  true,
		"bsc-lab-17-1-sw":                false, // its lab is running
		"bsc-lab-0-1-sw":                 false, // of no process
		"bsc-lab--1-sw":                  false,
		"bsc-lab-18":                     false,
		"bsc-lab-18-":                    false,
		"bsc-lab-x-1-sw":                 false,
		"bsc-lab-99999999999999999999-a": false,
		"bsc-test-18-1-sw":               false,
		"my-bsc-lab-18-1-sw":             false,
		"":                               false,
	} {
		if got := leftover(prefix, name, living); got != want {
			t.Errorf("leftover(%q) = %v, want %v", name, got, want)
		}
	}
	if leftover(prefix, Name(prefix, "1-sw"), alive) {
		t.Error("a namespace of this process counts as left over")
	}
}

// gone returns the number of a process that has ended.
func gone(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestRemoveDirs checks that the folder of an ended process is removed with its contents, and that
// the folder of a running process stays.
func TestRemoveDirs(t *testing.T) {
	const prefix = "bsc-spaces-"
	in := t.TempDir()
	old, mine := filepath.Join(in, fmt.Sprintf("%s%d-1-x", prefix, gone(t))), filepath.Join(in, Name(prefix, "1-x"))
	for _, dir := range []string{old, mine} {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "log"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := unix.Mount("tmpfs", old, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(old, unix.MNT_DETACH) // if the test fails
	}
	removed, err := RemoveDirs(in, prefix)
	if err != nil || !slices.Equal(removed, []string{old}) {
		t.Errorf("removed %v (%v), which should be %s", removed, err, old)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", old, err)
	}
	if _, err := os.Stat(filepath.Join(mine, "log")); err != nil {
		t.Error(err)
	}
}

// machine runs f on a separate thread with its own empty /run, as on a machine that has just
// booted.
func machine(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces and mounts, which takes root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return err
			}
			if err := unix.Mount("run", "/run", "tmpfs", 0, ""); err != nil {
				return err
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// inside makes a network namespace and returns to the thread's former one.
func inside(name string) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	ns, err := New(name)
	if err != nil {
		return err
	}
	return errors.Join(ns.Close(), unix.Setns(int(home.Fd()), unix.CLONE_NEWNET))
}

// TestFirst checks that the first name on a machine exists, and can be removed, after ip-netns(8)
// has made the second one.
func TestFirst(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: needs ip(8); apt-get install iproute2")
	}
	machine(t, func() error {
		if err := inside("first"); err != nil {
			return err
		}
		run := func(args ...string) error {
			if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
			return nil
		}
		if err := run("netns", "add", "second"); err != nil {
			return err
		}
		if !Is("first") || !Is("second") {
			return errors.New("a namespace has gone")
		}
		if err := Remove("first"); err != nil {
			return fmt.Errorf("remove the first: %w", err)
		}
		if err := inside("third"); err != nil {
			return err
		}
		if err := errors.Join(run("netns", "del", "second"), run("netns", "del", "third")); err != nil {
			return err
		}
		left, err := os.ReadDir(Folder)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %v", left)
		}
		return err
	})
}

// TestRemoveLeftovers checks that the namespaces of ended processes are removed, including
// remaining files, and that forget is called before.
func TestRemoveLeftovers(t *testing.T) {
	const prefix = "bsc-spaces-"
	pid := gone(t)
	name := func(what string) string { return fmt.Sprintf("%s%d-%s", prefix, pid, what) }
	machine(t, func() error {
		if removed, err := RemoveLeftovers(prefix, nil); err != nil || len(removed) > 0 {
			return fmt.Errorf("without a folder it removes %v: %w", removed, err)
		}
		for _, n := range []string{name("space"), Name(prefix, "mine"), "another's"} {
			if err := inside(n); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(Folder, name("file")), nil, 0o444); err != nil {
			return err
		}
		var forgot []string
		failure := errors.New("a failure")
		removed, err := RemoveLeftovers(prefix, func(n string) error {
			forgot = append(forgot, n)
			if n == name("space") && !Is(n) {
				return errors.New("it is forgotten too late")
			}
			return failure
		})
		if want := []string{name("file"), name("space")}; !slices.Equal(removed, want) || !slices.Equal(forgot, want) {
			t.Errorf("removed %v, forgot %v; should be %v", removed, forgot, want)
		}
		if !errors.Is(err, failure) {
			t.Errorf("the error is %v", err)
		}
		if removed, err := RemoveLeftovers(prefix, nil); err != nil || len(removed) > 0 {
			t.Errorf("the second time it removes %v: %v", removed, err)
		}
		if !Is(Name(prefix, "mine")) || !Is("another's") {
			t.Error("what is not left over is removed")
		}
		return errors.Join(Remove(Name(prefix, "mine")), Remove("another's"))
	})
}
