// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// prefix begins the names of all that the tests make; the number of the
// process that made it follows.
const prefix = "bsc-t"

// What Main sets before any test runs: the path of the program under test, and
// a folder for other builds of it.
var program, builds string

// The main goroutine stays on the process's first thread, which never ends: were it
// the one to enter a namespace, the namespace would not end either.
func init() { runtime.LockOSThread() }

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

// namespaceFolder is where namespaces have names.
const namespaceFolder = "/run/netns"

// removeLeftovers removes what processes made that are gone. Packages that begin
// at the same time do it one after the other.
func removeLeftovers() error {
	var errs []error
	if folder, err := os.Open(namespaceFolder); err == nil {
		defer folder.Close() // which ends the lock; ip(8) has the same one for a moment
		for {
			if err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", namespaceFolder, err)
		}
	}
	if dirs, err := os.ReadDir(os.TempDir()); err == nil {
		for _, d := range dirs {
			if leftover(d.Name()) {
				errs = append(errs, os.RemoveAll(filepath.Join(os.TempDir(), d.Name())))
			}
		}
	}
	spaces, err := os.ReadDir(namespaceFolder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, ns := range spaces {
		if leftover(ns.Name()) {
			errs = append(errs, removeNamespace(ns.Name()))
		}
	}
	return errors.Join(errs...)
}

// removeNamespace removes a network namespace, with the bridges that it has, or
// the file that a name has left for which no namespace is there any more.
func removeNamespace(name string) error {
	path := filepath.Join(namespaceFolder, name)
	var of unix.Statfs_t
	err := unix.Statfs(path, &of)
	remove := os.Remove
	if err == nil && of.Type == unix.NSFS_MAGIC {
		err = delBridges(program, name)
		remove = func(string) error { return netns.DeleteNamed(name) }
	}
	if err == nil {
		err = remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove what is left of network namespace %s: %w", name, err)
	}
	return nil
}
