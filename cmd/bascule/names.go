// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"bascule/bridge"
	"bascule/cni"
	"bascule/guest"
	"bascule/history"
	"bascule/netavark"
	"bascule/pf"
)

// names are those by which this program is something else than its command line: what others
// start with a protocol of their own. A link of the name makes the program that. The function
// returns the exit status.
var names = map[string]func() int{
	"bascule-cni":           func() int { return cni.Main("bascule-cni " + buildVersion()) },
	"bascule-netavark":      func() int { return netavark.Main(buildVersion(), os.Args[1:], os.Stdin, os.Stdout) },
	"bascule-bridge-helper": bridgeHelper,
	"bascule-libvirt-hook":  libvirtHook,
}

// bridgeHelper is the helper that QEMU runs for users who may not make taps. One that is not
// trusted begins again without its environment.
func bridgeHelper() int {
	trusted := guest.Trusted()
	if !trusted {
		if err := guest.Clean(); err != nil {
			fmt.Fprintln(os.Stderr, "bascule-bridge-helper:", err)
			return exitRefused
		}
	}
	return guest.Helper(os.Args[1:], guest.ACL, trusted, os.Stderr)
}

// libvirtHook is libvirt's hook for guests: NAME OPERATION STEP EXTRA, and XML.
func libvirtHook() int {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "bascule-libvirt-hook: libvirt runs this, as /etc/libvirt/hooks/qemu.d/bascule")
		return exitUsage
	}
	s, err := bridge.Open("")
	if err == nil {
		var warnings, more []string
		if _, warnings, err = history.Arrive(s, ""); err == nil {
			more, err = guest.Hook(s, os.Args[2], os.Args[3], os.Stdin)
			warnings = append(warnings, more...)
		}
		for _, w := range warnings {
			fmt.Fprintln(os.Stderr, "bascule-libvirt-hook: warning:", printable(w))
		}
		s.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bascule-libvirt-hook:", printable(strings.ReplaceAll(pf.Brief(err), "\n", "; ")))
		return exitRefused
	}
	return exitDone
}

// named returns what the program is by the name that it was started with, nil for the command
// line.
func named(args []string) func() int {
	if !guest.Trusted() { // of another user's file, whatever name it was started by
		return bridgeHelper
	}
	if len(args) == 0 {
		return nil
	}
	return names[filepath.Base(args[0])]
}
