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

// names are the other program names, which other programs use to start this one with a protocol of
// their own. A link with the name selects the function, which returns the exit status.
var names = map[string]func() int{
	"bascule-cni":           func() int { return cni.Main("bascule-cni " + buildVersion()) },
	"bascule-netavark":      func() int { return netavark.Main(buildVersion(), os.Args[1:], os.Stdin, os.Stdout) },
	"bascule-bridge-helper": bridgeHelper,
	"bascule-libvirt-hook":  libvirtHook,
}

// bridgeHelper is QEMU's bridge helper for users without permission to create taps. If it runs
// untrusted, it starts again without its environment.
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

// libvirtHook is libvirt's hook for guests: its arguments are NAME OPERATION STEP EXTRA, and
// standard input has the XML.
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

// named returns the function for the name that the program was started with, nil for the command
// line.
func named(args []string) func() int {
	if !guest.Trusted() { // started with other rights than the caller's, under any name
		return bridgeHelper
	}
	if len(args) == 0 {
		return nil
	}
	return names[filepath.Base(args[0])]
}
