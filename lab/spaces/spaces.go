// SPDX-License-Identifier: BSD-2-Clause

// Package spaces makes named network namespaces, like ip-netns(8), and removes the ones that killed
// processes have left. The lab, the tests' laboratory and the tests of the datapath share it.
package spaces

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/locks"
)

// Folder contains the names of network namespaces.
const Folder = "/run/netns"

// New makes a network namespace with the name and moves the calling thread into it. The thread must
// be locked.
//
// A name is a mount. Before the first name is made, the folder must become a shared mount of
// itself, as with ip-netns(8). Otherwise the next `ip netns add` does that and hides the existing
// mounts: such a name is busy until the machine reboots.
func New(name string) (netns.NsHandle, error) {
	if err := share(); err != nil {
		return netns.None(), err
	}
	return netns.NewNamed(name)
}

// share makes the folder of names a shared mount of itself.
func share() error {
	if err := os.MkdirAll(Folder, 0o755); err != nil {
		return err
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	shared := func() error { return unix.Mount("", Folder, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err = shared(); errors.Is(err, unix.EINVAL) { // it is not a mount
		if err = unix.Mount(Folder, Folder, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = shared()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", Folder, err)
	}
	return nil
}

// lock waits until no other process makes or removes names; ip(8) uses the same lock.
func lock() (unlock func(), err error) {
	folder, err := os.Open(Folder)
	if err != nil {
		return nil, err
	}
	if err := locks.Wait(folder); err != nil {
		folder.Close()
		return nil, err
	}
	return func() { locks.Close(folder) }, nil
}

// Is reports whether there is a network namespace with the name, and not only the file of a former
// one.
func Is(name string) bool {
	var of unix.Statfs_t
	return unix.Statfs(filepath.Join(Folder, name), &of) == nil && of.Type == unix.NSFS_MAGIC
}

// Remove removes the name of a network namespace, which ends without processes in it, or the
// remaining file of a former one. The error is fs.ErrNotExist if there is none.
func Remove(name string) error {
	if !Is(name) {
		return os.Remove(filepath.Join(Folder, name))
	}
	return netns.DeleteNamed(name)
}

// Name returns the name of an object of this process: the prefix, the process's number, a dash and
// what.
func Name(prefix, what string) string { return fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), what) }

// leftover reports whether a name belongs to an object that Name named in a process that has ended.
func leftover(prefix, name string, alive func(pid int) bool) bool {
	m := regexp.MustCompile(`^` + regexp.QuoteMeta(prefix) + `([0-9]+)-.+$`).FindStringSubmatch(name)
	if m == nil {
		return false
	}
	pid, err := strconv.Atoi(m[1])
	return err == nil && pid > 0 && !alive(pid)
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// RemoveLeftovers removes the network namespaces of ended processes whose names begin with the
// prefix. Before it removes a namespace it calls forget with the name, to remove the namespace's
// objects elsewhere. forget may be nil. The namespace is removed even if forget fails. A second
// call at the same time waits.
func RemoveLeftovers(prefix string, forget func(name string) error) (removed []string, err error) {
	unlock, err := lock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(Folder)
	if err != nil {
		return nil, fmt.Errorf("leftovers of earlier runs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !leftover(prefix, e.Name(), alive) {
			continue
		}
		if forget != nil {
			errs = append(errs, forget(e.Name()))
		}
		switch err := Remove(e.Name()); {
		case errors.Is(err, fs.ErrNotExist): // another process was faster
		case err != nil:
			errs = append(errs, fmt.Errorf("remove network namespace %s: %w", e.Name(), err))
		default:
			removed = append(removed, e.Name())
		}
	}
	return removed, errors.Join(errs...)
}

// RemoveDirs removes the folders of ended processes whose names begin with the prefix, with their
// contents.
func RemoveDirs(in, prefix string) (removed []string, err error) {
	entries, err := os.ReadDir(in)
	if err != nil {
		return nil, fmt.Errorf("leftovers of earlier runs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !leftover(prefix, e.Name(), alive) {
			continue
		}
		dir := filepath.Join(in, e.Name())
		_ = unix.Unmount(dir, unix.MNT_DETACH) // a killed test may have mounted something there
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(errs...)
}
