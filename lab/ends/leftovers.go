// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"errors"
	"os"
	"path/filepath"

	"bascule/lab/spaces"
)

// Prefix begins the name of every namespace and every directory of the lab.
// The number of its process follows.
const Prefix = "bsc-lab-"

// runDir contains the lab's directories. Only root can write there, a reboot empties it, and its
// name is short, because socket paths must be short.
const runDir = "/run"

// NameFor returns the name of a namespace or a directory of this process.
func NameFor(what string) string { return spaces.Name(Prefix, what) }

// MakeDir makes a directory for programs' sockets and files and returns its path. The caller
// removes it; RemoveLeftovers removes it if the lab is killed.
func MakeDir(what string) (string, error) {
	dir := filepath.Join(runDir, NameFor(what))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// RemoveLeftovers removes the namespaces and the directories of killed labs. Before it removes a
// namespace, it calls forget with the name, to remove related objects outside the namespace. The
// namespace is removed even if forget fails.
func RemoveLeftovers(forget func(name string) error) (removed []string, err error) {
	named, namedErr := spaces.RemoveLeftovers(Prefix, forget)
	dirs, dirsErr := spaces.RemoveDirs(runDir, Prefix)
	return append(named, dirs...), errors.Join(namedErr, dirsErr)
}
