// SPDX-License-Identifier: BSD-2-Clause

// Package agent tests the agent, which runs beside a switch, with real devices and machines.
// The tests need root and skip without it.
package agent

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"bascule/test/browser"
	"bascule/test/netlab"
)

func TestMain(m *testing.M) {
	// Tests of spanning tree wait for timers most of the time, and need little of a
	// processor.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := netlab.Main(m)
	browser.Close()
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
