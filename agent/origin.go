// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"

	"bascule/bridge"
)

// errDeleted is the reason why the agent ends when its own network namespace has been deleted.
var errDeleted = errors.New("the network namespace has been deleted")

// An origin is a name of the agent's own network namespace: a mount, as `ip netns` and container runtimes make one.
//
// Deleting the namespace removes the name. The namespace itself, its devices and its bridges remain as long as a
// process has it open, and the agent has.
type origin struct {
	path  string // of the name, "" if there is none
	stood string // identity of the namespace
}

// originOf finds a name of a namespace. netns is the name in the agent's options.
func originOf(netns string) origin {
	o := origin{path: bridge.NetnsPath(netns), stood: stands(netns)}
	// the link in a process's folder goes with the process, not with the namespace
	if strings.HasPrefix(o.path, "/proc/") {
		o.path = o.other()
	}
	return o
}

// other returns a current name of the namespace, "" if there is none.
func (o *origin) other() string {
	paths, err := filepath.Glob(bridge.NetnsPath("*"))
	if err != nil {
		return ""
	}
	for _, path := range paths {
		if stands(path) == o.stood {
			return path
		}
	}
	return ""
}

// deleted reports whether the namespace had a name, and has none any more.
func (o *origin) deleted(log *slog.Logger) bool {
	if o.path == "" || stands(o.path) == o.stood {
		return false
	}
	other := o.other()
	if other == "" {
		return true
	}
	log.Info("the agent's network namespace has a new name", "before", o.path, "now", other)
	o.path = other
	return false
}
