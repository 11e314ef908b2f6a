// SPDX-License-Identifier: BSD-2-Clause

// Package spaces makes network namespaces that have names, as ip-netns(8) does, and
// removes those that processes left which were killed. The lab, the tests' laboratory
// and the tests of the datapath have it in common.
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

// Folder is where network namespaces have names.
const Folder = "/run/netns"

// New makes a network namespace of the name and puts the calling thread into it,
// which must be locked.
//
// A name is a mount. Whoever makes the first one makes the folder a shared mount of
// itself before, as ip-netns(8) does. Otherwise the next `ip netns add` does, and hides
// the mounts that are there: such a name is busy until the machine ends.
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
	if err = shared(); errors.Is(err, unix.EINVAL) { // it is no mount
		if err = unix.Mount(Folder, Folder, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = shared()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", Folder, err)
	}
	return nil
}

// lock waits until nobody else makes or removes names; ip(8) has the same lock.
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

// Is reports whether there is a network namespace of the name, and not only a file
// that one has left.
func Is(name string) bool {
	var of unix.Statfs_t
	return unix.Statfs(filepath.Join(Folder, name), &of) == nil && of.Type == unix.NSFS_MAGIC
}

// Remove takes the name from a network namespace, which ends if nobody is in it, or
// removes the file that a name has left. The error is fs.ErrNotExist where there is none.
func Remove(name string) error {
	if !Is(name) {
		return os.Remove(filepath.Join(Folder, name))
	}
	return netns.DeleteNamed(name)
}

// Name is the name of something that this process makes: the prefix, the process's
// number, a dash and what it is.
func Name(prefix, what string) string { return fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), what) }

// leftover reports whether a name is of something that a process made, by Name, that
// is gone.
func leftover(prefix, name string, alive func(pid int) bool) bool {
	m := regexp.MustCompile(`^` + regexp.QuoteMeta(prefix) + `([0-9]+)-.+$`).FindStringSubmatch(name)
	if m == nil {
		return false
	}
	pid, err := strconv.Atoi(m[1])
	return err == nil && pid > 0 && !alive(pid)
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// RemoveLeftovers removes the network namespaces that ended processes have left
// and whose names begin with the prefix. Before it removes a namespace it calls
// forget with the name, to remove the objects that the namespace has elsewhere.
// A nil forget removes nothing. A failure of forget does not keep the
// namespace. A process that begins at the same time waits.
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
		case errors.Is(err, fs.ErrNotExist): // another was faster
		case err != nil:
			errs = append(errs, fmt.Errorf("remove network namespace %s: %w", e.Name(), err))
		default:
			removed = append(removed, e.Name())
		}
	}
	return removed, errors.Join(errs...)
}

// RemoveDirs removes the folders that ended processes have left and whose names
// begin with the prefix, with all that is in them.
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
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(errs...)
}
