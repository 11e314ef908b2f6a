// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
)

// prefix begins the names of all that the tests make; the number of the
// process that made it follows.
const prefix = "bsc-t"

// What Main sets before any test runs: the path of the program under test, and
// a folder for other builds of it.
var program, builds string

// Main runs the tests of a package: it removes what killed runs left behind
// and builds the program under test, or takes the one that the environment
// variable BASCULE names.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every test skips
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	if err == nil {
		defer os.RemoveAll(dir)
		builds = dir
		// the tests run the program as other users, too
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		program = os.Getenv("BASCULE")
		if program == "" {
			program, err = Build("bascule")
		}
	}
	if err == nil {
		err = removeLeftovers()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Build compiles the program under test, with flags for `go build`, to a file
// of the given name that is removed when the tests have run. It returns the
// file's path.
func Build(name string, flags ...string) (string, error) {
	path := filepath.Join(builds, name)
	args := append([]string{"build", "-o", path}, flags...)
	out, err := exec.Command("go", append(args, "bascule/cmd/bascule")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build bascule/cmd/bascule: %w\n%s", err, out)
	}
	return path, nil
}

var made = regexp.MustCompile(`^` + prefix + `([0-9]+)-`)

// leftover reports whether the name is of something that a process made that
// is gone.
func leftover(name string) bool {
	m := made.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	pid, err := strconv.Atoi(m[1])
	return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func removeLeftovers() error {
	var errs []error
	if dirs, err := os.ReadDir(os.TempDir()); err == nil {
		for _, d := range dirs {
			if leftover(d.Name()) {
				errs = append(errs, os.RemoveAll(filepath.Join(os.TempDir(), d.Name())))
			}
		}
	}
	spaces, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, ns := range spaces {
		if !leftover(ns.Name()) {
			continue
		}
		errs = append(errs, delBridges(program, ns.Name()), netns.DeleteNamed(ns.Name()))
	}
	return errors.Join(errs...)
}
