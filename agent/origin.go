// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"

	"bascule/bridge"
)

// errDeleted says that the agent's own network namespace has been deleted.
var errDeleted = errors.New("the network namespace has been deleted")

// An origin is a name of the agent's own network namespace: a mount, as `ip netns` and container runtimes make one.
//
// Who deletes the namespace takes the name away. The namespace itself, its devices and its bridges stay for as long as
// a process has it open, and the agent has.
type origin struct {
	path  string // of the name, "" where there is none
	stood string // what the name stands for
}

// originOf finds a name of a namespace, which is named as the agent's options have it.
func originOf(netns string) origin {
	o := origin{path: bridge.NetnsPath(netns), stood: stands(netns)}
	// a process's own link goes with the process, and says nothing of the namespace
	if strings.HasPrefix(o.path, "/proc/") {
		o.path = o.other()
	}
	return o
}

// other is a name that the namespace has by now, "" for none.
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
