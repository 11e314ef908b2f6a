// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"bascule/lab/fabrics"
)

// TestIperfListensAgain checks that every round has its figure, although iperf3 does not listen for
// a moment after each client. Here that moment lasts half a second, either without a listening
// socket or without the next server.
func TestIperfListensAgain(t *testing.T) {
	w := Must("tcp-stream:mebibytes=1")
	n := built(t, fabrics.Site{}, w)
	real, err := exec.LookPath(iperf3.Command)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	slow := fmt.Sprintf(`#!/bin/sh
[ "$1" = -s ] || exec %s "$@"
while :; do
	setpriv --pdeathsig KILL %[1]s "$@" -1
	sleep 0.5
done
`, real)
	if err := os.WriteFile(filepath.Join(dir, iperf3.Command), []byte(slow), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s, err := w.Start(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if sample, err := s.Run(t.Context(), nil); err != nil || sample.Value <= 0 {
			t.Errorf("round %d: %v Gbit/s, error %v", round, sample.Value, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
