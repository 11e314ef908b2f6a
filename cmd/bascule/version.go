// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"bascule/answer"
	"bascule/datapath"

	"github.com/spf13/cobra"
)

// Set by the Makefile with -ldflags "-X main.version=...". Otherwise they come from the build
// information of the Go command.
var (
	version string
	commit  string // the full hash
	date    string // of the commit, RFC 3339
)

func newVersion(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version and build information",
		Long: `Print the version, the commit that the program was built from and its date, the
version of Go, and the layout number of the data that bridges keep in the
kernel. A program takes over bridges of some former layouts, and cannot read
others. A commit or date that the build did not know is -.`,
		Example: `  bascule version
  bascule -j version`,
		RunE: func(*cobra.Command, []string) error { return p.printVersion(buildInfo()) },
	}
}

func (p *program) printVersion(v answer.Version) error {
	if p.json {
		return p.printJSON(v)
	}
	printFacts(p.out, "bascule "+v.Version, []fact{
		{"commit", v.Commit},
		{"date", v.Date},
		{"go", v.Go},
		{"platform", v.Platform},
		{"layout", fmt.Sprint(v.Layout)},
	})
	return nil
}

// buildInfo returns the build's version.
func buildInfo() answer.Version {
	v := answer.Version{
		Version: version, Commit: commit, Date: date,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Layout: datapath.Layout,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	setting := func(into *string, key string) {
		for _, s := range info.Settings {
			if s.Key == key && *into == "" {
				*into = s.Value
			}
		}
	}
	setting(&v.Commit, "vcs.revision")
	setting(&v.Date, "vcs.time")
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	return v
}

// buildVersion returns only the version.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
