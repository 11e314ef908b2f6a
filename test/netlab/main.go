// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"bascule/lab/spaces"
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
	if err == nil { // and what it keeps of namespaces, which have gone with the test
		err = os.Setenv("BASCULE_STATE_DIR", filepath.Join(dir, "states"))
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

// Program is the path of the program under test.
func Program() string { return program }

// Build compiles the program under test, with flags for `go build`, to a file
// of the given name that is removed when the tests have run. It returns the
// file's path. Where there is no compiler, the environment variable BASCULE_BUILDS
// names a folder that has the file.
func Build(name string, flags ...string) (string, error) {
	if dir := os.Getenv("BASCULE_BUILDS"); dir != "" {
		path := filepath.Join(dir, name)
		_, err := os.Stat(path)
		return path, err
	}
	path := filepath.Join(builds, name)
	args := append([]string{"build", "-o", path}, flags...)
	out, err := exec.Command("go", append(args, "bascule/cmd/bascule")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build bascule/cmd/bascule: %w\n%s", err, out)
	}
	return path, nil
}

// removeLeftovers removes what processes made that are gone: folders, and network
// namespaces with the bridges that they have. Packages that begin at the same time do
// it one after the other.
func removeLeftovers() error {
	_, dirsErr := spaces.RemoveDirs(os.TempDir(), prefix)
	_, err := spaces.RemoveLeftovers(prefix, func(name string) error {
		if !spaces.Is(name) {
			return nil
		}
		return delBridges(program, name)
	})
	return errors.Join(dirsErr, err)
}
