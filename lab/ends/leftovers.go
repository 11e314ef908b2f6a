// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"errors"
	"os"
	"path/filepath"

	"bascule/lab/spaces"
)

// Prefix begins the name of every namespace and every directory of the lab.
// The number of the process that made it follows.
const Prefix = "bsc-lab-"

// runDir is where the lab's directories are. Only root may write there, a
// reboot empties it, and its name is short, because the names of sockets must
// be.
const runDir = "/run"

// NameFor is the name of a namespace or a directory of this process.
func NameFor(what string) string { return spaces.Name(Prefix, what) }

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
// the objects outside of it that belong to it; a failure of forget does not
// keep the namespace.
func RemoveLeftovers(forget func(name string) error) (removed []string, err error) {
	named, namedErr := spaces.RemoveLeftovers(Prefix, forget)
	dirs, dirsErr := spaces.RemoveDirs(runDir, Prefix)
	return append(named, dirs...), errors.Join(namedErr, dirsErr)
}
