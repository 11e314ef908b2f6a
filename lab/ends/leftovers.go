// SPDX-License-Identifier: BSD-2-Clause

package ends

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
)

// Prefix begins the name of every namespace and every directory of the lab.
// The number of the process that made it follows.
const Prefix = "bsc-lab-"

// runDir is where the lab's directories are: a place that only root may write
// to, that forgets at a reboot, and whose name is short, as those of sockets
// must be.
const runDir = "/run"

// NameFor is the name of a namespace or a directory of this process.
func NameFor(what string) string {
	return fmt.Sprintf("%s%d-%s", Prefix, os.Getpid(), what)
}

var ours = regexp.MustCompile(`^` + Prefix + `([0-9]+)-.+$`)

// leftover tells whether a namespace of that name was made by a lab that is
// gone.
func leftover(name string, alive func(pid int) bool) bool {
	m := ours.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	pid, err := strconv.Atoi(m[1])
	return err == nil && pid > 0 && !alive(pid)
}

func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// MakeDir makes a directory for the sockets and files of programs and returns
// its path. The caller removes it; where the lab is killed before,
// RemoveLeftovers does.
func MakeDir(what string) (string, error) {
	dir := filepath.Join(runDir, NameFor(what))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// RemoveLeftovers removes the namespaces and the directories of labs that were
// killed. Before each namespace goes, forget is called with its name, to remove
// what is kept outside of it; a failure of forget does not keep the namespace.
func RemoveLeftovers(forget func(name string) error) (removed []string, err error) {
	spaces, spacesErr := removeNamespaces(forget)
	dirs, dirsErr := removeDirs(runDir)
	return append(spaces, dirs...), errors.Join(spacesErr, dirsErr)
}

func removeDirs(in string) (removed []string, err error) {
	entries, err := os.ReadDir(in)
	if err != nil {
		return nil, fmt.Errorf("leftovers of earlier runs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !leftover(e.Name(), alive) {
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

func removeNamespaces(forget func(name string) error) (removed []string, err error) {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("leftovers of earlier runs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !leftover(e.Name(), alive) {
			continue
		}
		forgotten := forget(e.Name())
		err := netns.DeleteNamed(e.Name())
		if errors.Is(err, syscall.EINVAL) { // it is no namespace any more
			err = os.Remove(filepath.Join("/run/netns", e.Name()))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // another lab was faster, and has forgotten it
		}
		errs = append(errs, forgotten)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove network namespace %s: %w", e.Name(), err))
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(errs...)
}
