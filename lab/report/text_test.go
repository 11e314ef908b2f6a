// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func example() *Report {
	cpu := CPU{User: 0.25, System: 0.5, Softirq: 0.75, Idle: 0.5}
	with := func(s []Sample) []Sample {
		for i := range s {
			s[i].CPU, s[i].Seconds = cpu, 1
		}
		return s
	}
	return &Report{
		Profile: "test",
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Machine: Machine{Kernel: "6.18", CPU: "Some CPU", Cores: 2, MemoryMiB: 1024, Congestion: "cubic", Load: 0.5,
			Mitigations: map[string]string{"b": "two", "a": "one"}, Versions: map[string]string{"iperf3": "3.12"}},
		Groups: []*Group{{
			Name: "tcp", About: "TCP", Rounds: 3,
			Cases: []*Case{
				{Label: "direct tcp", Fabric: "direct", Workload: "tcp", Unit: "Gbit/s", Samples: with(samples(10, 8, 12))},
				{Label: "bascule tcp", Fabric: "bascule", Workload: "tcp", Unit: "Gbit/s", Counter: "tcx", Samples: with(samples(9, 8, 9))},
				{Label: "other tcp", Fabric: "other", Workload: "tcp", Unit: "Gbit/s", Error: "it is\nnot there"},
			},
		}},
		Figures: []Figure{
			{Name: "TCP", Of: "bascule tcp", Against: "direct tcp", Unit: "x", Must: 0.8, Aim: 0.95, Got: &Spread{N: 3, Median: 0.9, Min: 0.75, Max: 1}},
			{Name: "two against one", Of: "bascule two", Against: "bascule one", Unit: "x", Must: 1.9, Aim: 2},
			{Name: "memory", Of: "bascule memory", Unit: "B", Lower: true, Must: 128, Aim: 96, Got: &Spread{N: 1, Median: 100, Min: 100, Max: 100}},
		},
	}
}

func TestWriteText(t *testing.T) {
	var b strings.Builder
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	want := `TCP (3 rounds)
  fabric   Gbit/s             against direct       test     CPU
  direct   10.0  [8.00 12.0]  1.00                          1.50
  bascule  9.00  [8.00 9.00]  0.900  [0.750 1.00]  too few  1.50
  other    not measured
  of which  user  system  softirq
  direct    0.25  0.50    0.75
  bascule   0.25  0.50    0.75
  frames counted by tcx at the receiver: bascule
  other: it is not there

Figures
  figure, of  against  must  aim   measured             95 %  reached
  TCP
    bascule   direct   0.8   0.95  0.900  [0.750 1.00]        must
  two against one
    bascule   one      1.9   2     -                          not measured
  memory
    bascule            128   96    100 B  [100 100]           must

Machine: Some CPU, 2 cores, 1024 MiB, Linux 6.18; load before: 0.50; congestion control: cubic
Mitigations: a: one; b: two
Versions: iperf3: 3.12
Every value is the median of its rounds, followed by [least most]. A ratio is taken within
each round, in which all peers had their turn: the report has the median of these ratios,
followed by [least most]. CPU is cores busy in the whole machine, s/Gbit and s/Mframe its
seconds per gigabit of payload and per million frames that arrived.
95 %: where the median lies with that confidence, from 6 rounds on.
faster or slower, better or worse: by the Mann-Whitney U test of the rounds of both, two-sided, p < 0.05,
each comparison on its own (of 20 between equals, expect one false difference); ~: no difference shown;
too few: so few rounds cannot show a difference; noisy: other programs took too much of the machine.
The run was ended early: what is above is what was measured until then.
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("the text (-want +got):\n%s", diff)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 0.0123: "0.0123", 0.5: "0.500", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234", -2: "-2.00"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	r := example()
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what was read back (-want +got):\n%s", diff)
	}
	// A skipped case has a list of samples, too.
	b.Reset()
	skipped := &Report{Groups: []*Group{{Cases: []*Case{{Skipped: "it is not here"}}}}}
	if err := skipped.WriteJSON(&b); err != nil || !strings.Contains(b.String(), `"samples": []`) {
		t.Errorf("a skipped case, error %v:\n%s", err, b.String())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWriteToFullDisk(t *testing.T) {
	if example().WriteText(full{}) == nil || example().WriteJSON(full{}) == nil {
		t.Error("a report that was not written gave no error")
	}
}

func TestWriteTextOfEverything(t *testing.T) {
	var b strings.Builder
	if err := realistic(len(manyFabrics), 7, 4).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	row := regexp.MustCompile(`(?m)^  \S+ +[0-9.]+ +(\[|[0-9.]+ )`)
	if rows := len(row.FindAllString(text, -1)); rows < 400 {
		t.Errorf("%d lines look like rows of a table, want two for each case", rows)
	}
	for _, want := range []string{
		"fabric, host mtu=9000",
		"s/Gbit  s/Mframe", "switches/s  cycles/frame  instr/frame",
		"\n  skipped, ovs-userspace, veth-chain-4: this kernel has no openvswitch module",
		"  note, bascule-xdp, ipvlan-l2, ",
		"  ovs-netdev-afxdp: ip link add: operation not supported by this kernel",
		"dropped in all rounds, direct pps: ", " at veth1 rx (0.333 % of the frames that arrived)",
		"does not hold", "cannot be tested", "not shown", "why: the difference is within the noise",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not in the text: %q", want)
		}
	}
	if strings.Contains(text, "softnet") {
		t.Error("a few drops among millions of frames are told")
	}
}

// TestTextWidth checks that no line is wider than a terminal, even with long names.
func TestTextWidth(t *testing.T) {
	r := realistic(len(manyFabrics), 7, 4)
	for i, g := range r.Groups {
		g.About += strings.Repeat(", and something else that is to be known of it", 3)
		for _, c := range g.Cases {
			c.Fabric += strings.Repeat("-", nameWidth-len(c.Fabric))
			c.Counter = "made by BPF_PROG_TEST_RUN live frames, counted by tcx at the receiver"
			if i == 3 {
				c.Workload += ":cores=2:addresses=100000:generator=ring"
			}
			for k := range c.Samples {
				c.Samples[k].Frames, c.Samples[k].Bytes = max(c.Samples[k].Frames, 2), max(c.Samples[k].Bytes, 20)
			}
		}
	}
	// Ratios of five characters, and limits of seven.
	for k := range r.Groups[0].Cases[1].Samples {
		r.Groups[0].Cases[1].Samples[k].Value = 0.012345 * float64(k+1)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > lineWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	for _, want := range []string{"against the first", "\n  pps:size=512:cores=2:addresses=100000:generator=ring\n  fabric  ", "s/Mframe"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("not in the text: %q", want)
		}
	}
}

// TestClaimsText checks that claims are printed below their sources.
func TestClaimsText(t *testing.T) {
	here := &Spread{N: 2, Median: 0.79, Min: 0.685, Max: 0.894}
	var b strings.Builder
	claimsText(&b, []Claim{
		{Source: "One", Claim: "veb forwards at the rate of a cable", Published: "909 against 919 Mbit/s", Ratio: 0.989, Test: "bascule against a cable",
			Here: here, Verdict: "does not hold", Why: "at least 0.95"},
		{Source: "Two", Claim: "it takes two", Published: "3.7 Mpps", Verdict: "cannot be tested", Why: strings.Repeat("here is one ", 10)},
		{Source: "One", Claim: "with pf, veb forwards half as much again as bridge(4)", Published: "645", Here: here, Verdict: "holds"},
	})
	want := `Claims: One
  claim                                       published                            here                 verdict
  veb forwards at the rate of a cable         909 against 919 Mbit/s; ratio 0.989  0.790 [0.685 0.894]  does not hold
    here: bascule against a cable
    why: at least 0.95
  with pf, veb forwards half as much again    645                                  0.790 [0.685 0.894]  holds
  as bridge(4)

Claims: Two
  claim                                       published                            here                 verdict
  it takes two                                3.7 Mpps                             -                    cannot be tested
    why: here is one here is one here is one here is one here is one here is one here is one here is one here is one
      here is one

`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("the text (-want +got):\n%s", diff)
	}
}

func TestRemarks(t *testing.T) {
	g := &Group{Cases: []*Case{
		{Fabric: "a", Notes: []string{"everywhere"}, Counter: "tcx"},
		{Fabric: "a", Setup: "host", Notes: []string{"everywhere", "from the host"}, Counter: "tcx"},
		{Fabric: "b", Notes: []string{"everywhere"}, Counter: "made by a ring, counted by xdp at the receiver"},
		{Fabric: "b", Setup: "host", Skipped: "why not", Counter: "made by a ring, counted by xdp at the receiver"},
		{Fabric: "c", Skipped: "why not"},
	}}
	want := []string{
		"frames made by a ring, counted by xdp at the receiver: b",
		"frames counted by tcx at the receiver: a",
		"note, a, b: everywhere",
		"note, a host: from the host",
		"skipped, b host, c: why not",
	}
	if diff := cmp.Diff(want, g.remarks()); diff != "" {
		t.Errorf("the remarks (-want +got):\n%s", diff)
	}
}

// TestClaimSays checks that a claim without a measurement has no verdict.
func TestClaimSays(t *testing.T) {
	here := &Spread{N: 1}
	for _, test := range []struct {
		claim Claim
		want  string
	}{
		{Claim{Verdict: "holds", Here: here}, "holds"},
		{Claim{Verdict: "not shown", Here: here}, "not shown"},
		{Claim{Verdict: "cannot be tested"}, "cannot be tested"},
		{Claim{Verdict: "holds"}, "not measured"},
		{Claim{Verdict: "does not hold"}, "not measured"},
	} {
		if got := test.claim.Says(); got != test.want {
			t.Errorf("%+v says %q, want %q", test.claim, got, test.want)
		}
	}
}

// TestWordsNeedTheTest checks that a report has words for differences only if the test was made.
func TestWordsNeedTheTest(t *testing.T) {
	r := realistic(1, 7, 2)
	r.Claims = nil
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"faster", "slower", "better", "worse"} {
		if strings.Contains(b.String(), word) {
			t.Errorf("%q in a report that compares nothing", word)
		}
	}
}

// TestSaysNothingOfNothing checks that a run without measurements prints no machine, and that a
// report without figures has no column of intervals.
func TestSaysNothingOfNothing(t *testing.T) {
	r := &Report{Profile: "test", Groups: example().Groups}
	for name, write := range map[string]func(*Report, io.Writer) error{
		"text": (*Report).WriteText, "markdown": (*Report).WriteMarkdown, "html": (*Report).WriteHTML,
	} {
		var b strings.Builder
		if err := write(r, &b); err != nil {
			t.Fatal(err)
		}
		words := []string{" 0 cores", " 0 MiB", "<h2>Machine", "## Machine"}
		if name != "html" { // which has the column
			words = append(words, "95 %")
		}
		for _, word := range words {
			if strings.Contains(b.String(), word) {
				t.Errorf("%s has %q", name, word)
			}
		}
	}
}

func TestDropped(t *testing.T) {
	drops := map[string]uint64{"a rx": 5, "b rx": 4000, "c tx": 3, "softnet": 20}
	known := &Case{Samples: []Sample{{Frames: 1000, Drops: drops}, {Frames: 9000}}}
	if diff := cmp.Diff([]place{{"b rx", 4000, 40}, {"softnet", 20, 0.2}}, known.dropped()); diff != "" {
		t.Errorf("places with few drops are told, or others not (-want +got):\n%s", diff)
	}
	unknown := &Case{Samples: []Sample{{Drops: drops}, {Drops: drops}}}
	var got []string
	for _, p := range unknown.dropped() {
		got = append(got, fmt.Sprint(p.Name, " ", p.Frames))
	}
	if diff := cmp.Diff([]string{"b rx 8000", "softnet 40", "a rx 10"}, got); diff != "" {
		t.Errorf("without the number of frames (-want +got):\n%s", diff)
	}
}

func TestCosts(t *testing.T) {
	c := &Case{Samples: []Sample{{Seconds: 2, CPU: CPU{User: 0.5, Softirq: 1}, Bytes: 1e9, Frames: 5e5, Switches: 7, Cycles: 1e9, Instructions: 2e9,
		More: map[string]float64{RouterCore: 40}}}}
	want := map[string]string{"CPU": "1.50", "s/Gbit": "0.375", "router %": "40.0", "router s/Gbit": "0.100", "s/Mframe": "6.00", "user": "0.50", "system": "0.00", "softirq": "1.00",
		"switches/s": "7.00", "cycles/frame": "2000", "instr/frame": "4000"}
	for _, q := range slices.Concat(costs, details) {
		if got := q.cell(c); got != want[q.Name] {
			t.Errorf("%s: %s, want %s", q.Name, got, want[q.Name])
		}
	}
	if remarks := (&Group{Cases: []*Case{c}}).remarks(); len(remarks) != 1 || !strings.HasPrefix(remarks[0], "router %: ") {
		t.Errorf("the columns are not explained, or more is: %q", remarks)
	}
	c.Samples[0].Seconds, c.Samples[0].Frames, c.Samples[0].More = 0, 0, nil
	for _, q := range slices.Concat(costs[1:], details[4:]) {
		if got := q.cell(c); got != "-" {
			t.Errorf("%s of what is not known: %s", q.Name, got)
		}
	}
}
