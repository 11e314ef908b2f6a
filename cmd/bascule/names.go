// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"path/filepath"

	"bascule/cni"
)

// names are those by which this program is something else than its command line: what others
// start with a protocol of their own. A link of the name makes the program that. The function
// returns the exit status.
var names = map[string]func() int{
	"bascule-cni": func() int { return cni.Main("bascule-cni " + buildVersion()) },
}

// named returns what the program is by the name that it was started with, nil for the command
// line.
func named(args []string) func() int {
	if len(args) == 0 {
		return nil
	}
	return names[filepath.Base(args[0])]
}
