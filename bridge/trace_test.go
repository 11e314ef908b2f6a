// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"os"
	"slices"
	"strings"
	"testing"

	"bascule/datapath"
)

// TestReasons wants every reason for which the datapath drops frames in the table
// that trace and help have, and in that of docs/design.md.
func TestReasons(t *testing.T) {
	var names []string
	for _, r := range Reasons {
		names = append(names, r.Name)
		if r.Text == "" {
			t.Errorf("%s has no words", r.Name)
		}
	}
	if want := datapath.Reasons()[1:]; !slices.Equal(names, want) { // the first is none
		t.Errorf("the reasons are\n%q and not\n%q", names, want)
	}
	page, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| reason | meaning |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows []string
	for line := range strings.Lines(table) {
		reasons := strings.SplitN(line, "|", 3)[1]
		for name := range strings.SplitSeq(reasons, ",") {
			rows = append(rows, strings.Trim(name, " `"))
		}
	}
	slices.Sort(names)
	slices.Sort(rows)
	if !slices.Equal(rows, names) {
		t.Errorf("docs/design.md has\n%q and not\n%q", rows, names)
	}
}
