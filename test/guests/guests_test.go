// SPDX-License-Identifier: BSD-2-Clause

// Package guests tests virtual machines on the switch, with the real program and with the real programs that start
// machines.
package guests

import (
	"os"
	"testing"

	"bascule/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
