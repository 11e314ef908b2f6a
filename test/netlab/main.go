// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/lab/spaces"
)

// prefix begins the names of everything that the tests make. The ID of the process follows.
const prefix = "bsc-t"

// Main sets these before any test runs: the path of the program under test, and a folder for
// other builds of it.
var program, builds string

// building has other tests wait that need the same build.
var building sync.Mutex

// The main goroutine stays on the process's first thread, which never ends. Otherwise another
// goroutine could enter a namespace on that thread, and the namespace would not end either.
func init() { runtime.LockOSThread() }

// Main runs the tests of a package. It first removes the remains of killed runs, and builds the
// program under test or uses the one that the environment variable BASCULE names.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // all tests skip
	}
	if signal.Ignored(unix.SIGHUP) {
		// nohup(1) ignores it, and so would each program that the tests start. These get the
		// default for a signal that is caught.
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	if err == nil {
		defer os.RemoveAll(dir)
		builds = dir
		// The tests run the program as other users, too.
		err = os.Chmod(dir, 0o755)
	}
	if err == nil { // and the state of namespaces, which have been deleted with the test
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

// Build compiles the program under test, with flags for `go build`, to a file with the given
// name, which is removed after the tests. It returns the file's path. Several tests may need one
// name with the same flags: the program is built once. Another build needs other -tags: with -trimpath
// Go's build information, by which a build knows itself, has no -ldflags. If there is no compiler, the
// environment variable BASCULE_BUILDS names a folder that has the file.
func Build(name string, flags ...string) (string, error) {
	if dir := os.Getenv("BASCULE_BUILDS"); dir != "" {
		path := filepath.Join(dir, name)
		_, err := os.Stat(path)
		return path, err
	}
	building.Lock()
	defer building.Unlock()
	path := filepath.Join(builds, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	args := append([]string{"build", "-o", path}, flags...)
	out, err := exec.Command("go", append(args, "bascule/cmd/bascule")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build bascule/cmd/bascule: %w\n%s", err, out)
	}
	return path, nil
}

// removeLeftovers removes the remains of ended processes: folders, and network namespaces with
// their bridges. Packages that begin at the same time do this one after the other.
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
