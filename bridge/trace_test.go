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

// TestTraceWords wants words for all that a trial can write down.
func TestTraceWords(t *testing.T) {
	e := &explainer{b: new(datapath.Bridge), t: new(datapath.Traced), port: "p1"}
	seen := map[string]bool{}
	look := func(what string, number uint32, text string) {
		t.Helper()
		if text == "" || strings.Contains(text, "()") || seen[text] {
			t.Errorf("%s %d is told as %q, as nothing or as another is", what, number, text)
		}
		seen[text] = true
	}
	for l := datapath.LearnOff; l < datapath.LearnEnd; l++ {
		e.t.Learned = l
		if l < datapath.LearnLocked {
			look("learned", uint32(l), e.learned([6]byte{}))
		} else {
			look("learned", uint32(l), e.locked())
		}
	}
	for f := datapath.FindNone; f < datapath.FindEnd; f++ {
		e.t.Found, e.steps = f, nil
		e.lookUp([6]byte{})
		look("found", uint32(f), e.steps[0].Text)
	}
	e.t.Flood = uint32(datapath.PortDiscover)
	for past := datapath.FloodPast(1); past < datapath.PastEnd; past++ {
		if reasons := datapath.Reasons(); past == datapath.PastOrigin ||
			int(past) < len(reasons) && (reasons[past] == "span" || reasons[past] == "vlan-out") {
			continue // which goes without saying
		}
		look("past", uint32(past), e.past(past))
	}
}
