// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNotify makes the changes of commands in a BPF file system of its own.
func TestNotify(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	if err := unix.Mount("test", root, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(root, 0)
	dir := filepath.Join(root, "7")
	store := &Store{dir: dir}
	n, err := store.Notify()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	do := func(steps ...error) {
		t.Helper()
		if err := errors.Join(steps...); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := n.file.SyscallConn()
	do(err)
	// The kernel has queued all events of a step when the step is done; a step may
	// cause several.
	queued := func() bool {
		t.Helper()
		poll := []unix.PollFd{{Events: unix.POLLIN}}
		var failed error
		do(raw.Control(func(fd uintptr) {
			poll[0].Fd = int32(fd)
			_, failed = unix.Poll(poll, 0)
		}))
		do(failed)
		return poll[0].Revents != 0
	}
	told := func() (yes bool) {
		t.Helper()
		for queued() {
			do(n.file.SetReadDeadline(time.Now().Add(10 * time.Millisecond)))
			err := n.Wait()
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				do(err)
				yes = true
			}
		}
		return yes
	}
	expect := func(what string) {
		t.Helper()
		if !told() {
			t.Fatalf("not told that %s", what)
		}
	}
	br := filepath.Join(dir, "br0")
	change := func() {
		t.Helper()
		do(os.Symlink("gen-1", filepath.Join(br, "next")), os.Rename(filepath.Join(br, "next"), filepath.Join(br, "current")))
	}
	do(os.Mkdir(dir, 0o700))
	expect("the namespace has a first bridge")
	do(os.MkdirAll(filepath.Join(br, "link"), 0o700))
	expect("a bridge comes")
	change()
	expect("it is there")
	change()
	expect("it has changed")
	do(os.Mkdir(filepath.Join(br, "dirty"), 0o700), os.Remove(filepath.Join(br, "dirty")))
	do(os.MkdirAll(filepath.Join(root, "8", "br0"), 0o700)) // another namespace's
	if told() {
		t.Error("told of a change that is none")
	}
	do(os.Remove(filepath.Join(br, "current")))
	expect("it is gone")
	do(os.RemoveAll(br), os.Remove(dir), os.Mkdir(dir, 0o700))
	expect("there is a first bridge again")
	do(os.MkdirAll(br, 0o700))
	expect("another of its name comes")
	change()
	expect("it is there")

	do(n.file.SetReadDeadline(time.Time{}))
	waited := make(chan error)
	go func() {
		waited <- n.Wait()
		waited <- n.Wait()
	}()
	change()
	do(<-waited)
	n.Close()
	if err := <-waited; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
