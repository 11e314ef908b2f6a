// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTidyEnded: files of network namespaces that have ended are removed, and no
// other files.
func TestTidyEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const none = 1<<63 + 4711 // the cookie of no namespace
	own, err := cookieOf("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kept := []string{fmt.Sprintf("%d-br0.stp", own), fmt.Sprintf("%d.lock", own), "notes.txt"}
	for _, name := range append([]string{
		fmt.Sprintf("%d-br0.stp", uint64(none)), fmt.Sprintf("%d-br-1.stp", uint64(none)), fmt.Sprintf("%d.sock", uint64(none)),
		fmt.Sprintf("%d.lock", uint64(none)), fmt.Sprintf("%d-br0.stp.next", uint64(none)),
	}, kept...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &agent{o: Options{Dir: dir}, log: slog.New(slog.DiscardHandler)}
	a.tidyEnded()
	left := map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left[e.Name()] = true
	}
	want := map[string]bool{}
	for _, name := range kept {
		want[name] = true
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
