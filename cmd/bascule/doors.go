// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"path/filepath"

	"bascule/cni"
)

// doors are the names by which this program is something else than its command line: what
// others start with a protocol of their own. A link of the name makes the program that.
var doors = map[string]func() int{
	"bascule-cni": func() int { return cni.Main("bascule-cni " + buildVersion()) },
}

// door returns what the program is by the name that it was started with, nil for the command
// line.
func door(args []string) func() int {
	if len(args) == 0 {
		return nil
	}
	return doors[filepath.Base(args[0])]
}
