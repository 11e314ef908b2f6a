// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"syscall"

	"github.com/vishvananda/netns"
)

// Prefix begins the name of every namespace of the lab. The number of the
// process that made it follows.
const Prefix = "bsc-lab-"

// NameFor is the name of a namespace of this process.
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

// RemoveLeftovers removes the namespaces of labs that were killed. Before each
// goes, forget is called with its name, to remove what is kept outside of it;
// a failure of forget does not keep the namespace.
func RemoveLeftovers(forget func(name string) error) (removed []string, err error) {
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
		errs = append(errs, forget(e.Name()))
		if err := netns.DeleteNamed(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("remove network namespace %s: %w", e.Name(), err))
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, errors.Join(errs...)
}
