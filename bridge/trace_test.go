// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"os"
	"slices"
	"strings"
	"testing"

	"bascule/datapath"
	"bascule/pf"
)

// TestReasons checks that the table of trace and help, and the one in docs/design/frame.md, have every reason for
// which the datapath drops frames.
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
	page, err := os.ReadFile("../docs/design/frame.md")
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
		t.Errorf("docs/design/frame.md has\n%q and not\n%q", rows, names)
	}
}

// TestFramesWay checks that the drawing in docs/design.md has every reason for a drop once, and the checks in the
// order of bpf/pipeline.h.
func TestFramesWay(t *testing.T) {
	page, err := os.ReadFile("../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, drawing, _ := strings.Cut(string(page), "\n## A frame's way\n")
	drawing, _, _ = strings.Cut(drawing, "\n## ")
	var checks, reasons []string
	for line := range strings.Lines(drawing) {
		if !strings.HasPrefix(line, "    ") || len(line) < 25 {
			continue
		}
		check, dropped := strings.TrimSpace(line[24:min(49, len(line))]), ""
		if len(line) > 49 {
			dropped = line[49:]
		}
		if check != "" {
			checks = append(checks, check)
		}
		for reason := range strings.SplitSeq(dropped, ",") {
			if reason = strings.TrimSpace(reason); reason != "" && reason != "as above" {
				reasons = append(reasons, reason)
			}
		}
	}
	var want []string
	for _, r := range Reasons {
		want = append(want, r.Name)
	}
	slices.Sort(reasons)
	slices.Sort(want)
	if !slices.Equal(reasons, want) {
		t.Errorf("the drawing of docs/design.md has the reasons\n%q and not\n%q", reasons, want)
	}

	source, err := os.ReadFile("../bpf/pipeline.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		function string
		checks   [][2]string // a check in the drawing, and its name in the function
	}{
		{"decide_in", [][2]string{
			{"copies for span ports", "span_in("}, {"reserved address", "DROP_RESERVED"},
			{"source address", "DROP_BAD_SOURCE"}, {"loop guard's block", "ask_in("}, // the rest of arrival
		}},
		{"come_in", [][2]string{
			{"loop guard's block", "port_blocked("}, {"VLAN", "vlan_in("}, {"loop guard", "DROP_LOOP"}, {"lock", "DROP_LOCKED"},
			{"stable bytes", "unfinished_judge("}, {"source, DHCP, RA guard", "ask_guard("}, {"non-IP", "front_blocks_non_ip("},
			{"storm limit", "storm_exceeded("}, {"MAC rules in", "rule_blocks("}, {"ether rules in", "pf_ether("},
			{"spanning tree", "DROP_STP"}, {"pf in", "pf_in("},
		}},
		{"decide_out", [][2]string{
			{"learn the source", "fdb_learn("}, {"look up the destination", "fdb_find("}, {"storm limit", "storm_exceeded("},
			{"port of arrival", "DROP_SAME_PORT"}, {"protected domain", "ask_out("}, // and go_out
		}},
		{"go_out", [][2]string{
			{"protected domain", "DROP_PROTECTED"}, {"VLAN", "DROP_VLAN_OUT"}, {"non-IP", "front_blocks_non_ip("},
			{"MAC rules out", "rule_blocks("}, {"ether rules out", "pf_ether("}, {"pf out", "pf_out("},
		}},
	} {
		_, body, _ := strings.Cut(string(source), " "+part.function+"(const struct hook *h")
		body, _, _ = strings.Cut(body, "\n}\n")
		rest := checks
		if part.function == "decide_out" || part.function == "go_out" {
			rest = checks[max(0, slices.Index(checks, "pf in")):]
		}
		if part.function == "go_out" {
			rest = rest[max(0, slices.Index(rest, "port of arrival")):]
		}
		for _, c := range part.checks {
			drawn := slices.Index(rest, c[0])
			_, after, found := strings.Cut(body, c[1])
			if drawn < 0 || !found {
				t.Errorf("docs/design.md, %s: %q or %q is not there, or out of order", part.function, c[0], c[1])
				continue
			}
			rest, body = rest[drawn+1:], after
		}
	}
}

// TestTraceWords checks that everything in a trial's record has a text.
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
			continue // it needs no text
		}
		look("past", uint32(past), e.past(0, past))
	}
}

// TestTraceAnswers checks that trace reports pf's answers to packets dropped by `block return`.
func TestTraceAnswers(t *testing.T) {
	drop := slices.Index(datapath.Reasons(), "pf")
	for _, tt := range []struct {
		rule    pf.Rule
		step    datapath.Step
		in, out uint16
		want    string
	}{
		{pf.Rule{Action: pf.Block, Return: pf.ReturnDrop}, datapath.StepPFIn, 1, 0, ""},
		{pf.Rule{Action: pf.Block, Return: pf.ReturnRST}, datapath.StepPFIn, 1, 0, "answers by p1: TCP by RST"},
		{pf.Rule{Action: pf.Block, Return: pf.ReturnICMP}, datapath.StepPFIn, 1, 0, "answers by p1: by ICMP"},
		{pf.Rule{Action: pf.Block, Return: pf.ReturnAll}, datapath.StepPFIn, 1, 0, "answers by p1: TCP by RST, the rest by ICMP"},
		{pf.Rule{Action: pf.Block, Return: pf.ReturnAll}, datapath.StepPFOut, 0, 1, "answers by p1: TCP by RST, the rest by ICMP"},
		{pf.Rule{Action: pf.Block, Return: pf.ReturnAll}, datapath.StepFlood, 0, 1, ""},
		{pf.Rule{Action: pf.Pass, Return: pf.ReturnAll}, datapath.StepPFIn, 1, 0, ""},
	} {
		e := &explainer{b: new(datapath.Bridge), t: new(datapath.Traced), in: new(datapath.Port), port: "p1"}
		e.pf = &pfView{rules: []pf.RuleRef{{Rule: &tt.rule}}}
		e.t.Action, e.t.Reason, e.t.Step, e.t.PfIn, e.t.PfOut = datapath.ActionDrop, uint32(drop), tt.step, tt.in, tt.out
		got := e.decided("", "")
		text := ""
		for _, s := range got.Steps {
			if s.Name == "answer" {
				text = s.Text
			}
		}
		if got.Verdict != "dropped: pf" || (tt.want == "") != (text == "") || !strings.Contains(text, tt.want) {
			t.Errorf("%v at step %d: verdict %q, answer %q, want %q", &tt.rule, tt.step, got.Verdict, text, tt.want)
		}
	}
}

// TestTraceTooShort checks that trace reports short tagged frames, which the kernel drops before tcx.
func TestTraceTooShort(t *testing.T) {
	frame := func(typ string, size int) []byte {
		return append([]byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02"+typ), make([]byte, size-14)...)
	}
	for _, tt := range []struct {
		frame []byte
		xdp   bool
		want  string
	}{
		{frame("\x81\x00", 18), false, "not the switch's"},
		{frame("\x88\xa8", 19), false, "not the switch's"},
		{frame("\x81\x00", 19), true, "flooded"},
		{frame("\x81\x00", 20), false, "flooded"},
		{frame("\x91\x00", 19), false, "flooded"},
		{frame("\x88\xb5", 14), false, "flooded"},
	} {
		e := &explainer{b: new(datapath.Bridge), t: new(datapath.Traced), in: new(datapath.Port), port: "p1", frame: tt.frame}
		setBits(&e.in.Notes, datapath.PortXDP, tt.xdp)
		e.t.Action, e.t.Step = datapath.ActionFlood, datapath.StepFlood
		if got := e.decided("", ""); got.Verdict != tt.want {
			t.Errorf("%d bytes, XDP %v: %s, want %s", len(tt.frame), tt.xdp, got.Verdict, tt.want)
		}
	}
}
