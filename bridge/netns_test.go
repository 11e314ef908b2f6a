// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A file in the folder of names may be of any kind.
func TestNetnsAt(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/null", "/proc/self/ns/mnt"} {
		if ns, err := NetnsAt(path); !errors.Is(err, errNoNetns) {
			t.Errorf("%s: %v, %v", path, ns, err)
		}
	}
	ns, err := NetnsAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
}

// threadNetns returns the thread's namespace even if other threads of the process have another one,
// also without privileges.
func TestThreadNetns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes a network namespace, which takes root")
	}
	same := func() error {
		want, err := os.Stat("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		ns, err := threadNetns()
		if err != nil {
			return err
		}
		got := os.NewFile(uintptr(ns), "namespace")
		defer got.Close()
		flags, err := unix.FcntlInt(got.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			return fmt.Errorf("it stays open in programs that are started: flags %#x, %v", flags, err)
		}
		if is, err := got.Stat(); err != nil || !os.SameFile(is, want) {
			return fmt.Errorf("it is another network namespace, or none: %v", err)
		}
		return nil
	}
	done := make(chan error)
	var look func()
	look = func() {
		runtime.LockOSThread()              // for good: the thread ends with its namespace
		if unix.Gettid() == unix.Getpid() { // this thread's namespace is the process's
			go look()
			return
		}
		err := same()
		if err == nil {
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		if err == nil {
			err = same()
		}
		if err == nil {
			var none [2]unix.CapUserData
			err = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		}
		if err == nil {
			err = same()
		}
		done <- err
	}
	go look()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A closed switch does nothing, and in particular nothing in the caller's namespace.
func TestClosed(t *testing.T) {
	s, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err = s.Inside(func() error {
		t.Error("it acts in some namespace")
		return nil
	})
	if want := "cannot use network namespace /proc/self/ns/net: the switch is closed; open it again"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
