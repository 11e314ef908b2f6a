// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// TestRunInside checks that a lab in a virtual machine measures instructions, that its clock counts
// them correctly (instructions.Check), and that two rounds of a case agree.
func TestRunInside(t *testing.T) {
	t.Parallel() // a machine has one CPU
	k, err := Pinned(t.Context(), "", NewProgress(nil))
	var missing *ends.Unavailable
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	site := fabrics.Site{Bascule: program.Path(t)}
	var told bytes.Buffer
	o := Options{
		Fabrics: []string{"direct", "linux-bridge", "bascule"}, Workloads: []string{"one-by-one:frames=2000"}, Rounds: 3, Counting: true,
	}
	r, err := RunInside(t.Context(), site, o, k, NewProgress(&told))
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v, after\n%s", err, &told)
	}
	if !r.Complete || len(r.Groups) != 1 || !strings.HasPrefix(r.Machine.Counting, "QEMU ") || !strings.HasPrefix(r.Machine.Kernel, k.Release) {
		t.Errorf("the report is %+v", r)
	}
	medians := map[string]float64{}
	for _, c := range r.Groups[0].Cases {
		s := report.SpreadOf(c.Values())
		if c.Error != "" || c.Skipped != "" || s.N != 3 {
			t.Fatalf("%s: %d samples, error %q, left out: %q", c.Label, s.N, c.Error, c.Skipped)
		}
		// On a machine that measures time, rounds vary more.
		if spread := (s.Max - s.Min) / s.Median; spread > 0.01 {
			t.Errorf("%s: the rounds differ by %.1f %%: %v", c.Label, 100*spread, c.Values())
		}
		medians[c.Fabric] = s.Median
	}
	if medians["direct"] < 500 || medians["linux-bridge"] < medians["direct"] || medians["bascule"] < medians["direct"] {
		t.Errorf("the medians are %v", medians)
	}
	for _, want := range []string{"starting a virtual machine", "building bascule", "round 3 of 3"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("of %q is nothing told in\n%s", want, &told)
		}
	}
}

// TestRunReproduced checks that a study's groups for another machine are measured in one, and that
// the report says so for these groups and their claims, and not for the rest.
func TestRunReproduced(t *testing.T) {
	if testing.Short() {
		t.Skip("measures a study in a virtual machine, for minutes: 'make test-all'")
	}
	t.Parallel() // like TestRunInside; no other test that leaves namespaces may run in parallel
	needRoot(t)
	nothingLeft(t)
	var missing *ends.Unavailable
	k, err := Pinned(t.Context(), "", NewProgress(nil))
	if err == nil {
		_, err = k.WithDrivers(t.Context())
	}
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := ReproduceInside("router", true)
	if err != nil {
		t.Fatal(err)
	}
	p.Groups = slices.DeleteFunc(p.Groups, func(g Group) bool { return !g.Inside })
	var told bytes.Buffer
	r, err := RunReproduced(t.Context(), fabrics.Site{Bascule: program.Path(t)}, "router", true, p, k, NewProgress(&told))
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%v, after\n%s", err, &told)
	}
	if !r.Complete || r.Machine.Counting != "" || len(r.Groups) != 1 || r.Groups[0].Name != "router-2" {
		t.Fatalf("the report is %+v", r)
	}
	g := r.Groups[0]
	if g.Machine == nil || !strings.HasPrefix(g.Machine.Counting, "QEMU ") || g.Machine.Cores != 1 {
		t.Errorf("the group's machine is %+v", g.Machine)
	}
	for _, c := range g.Cases {
		if len(c.Samples) != quickRounds || c.Error != "" {
			t.Errorf("%s: %d samples, error %q, left out: %q", c.Label, len(c.Samples), c.Error, c.Skipped)
		}
	}
	inside := 0
	for _, c := range r.Claims {
		if c.Inside == "" {
			continue
		}
		inside++
		if c.Here == nil || c.Verdict == cannot || !strings.Contains(c.Test, "rtl8139") || !strings.Contains(c.Test, "in a virtual machine") {
			t.Errorf("%s: %+v", c.Claim, c)
		}
	}
	if inside != 3 {
		t.Errorf("%d claims were tested inside, want the 3 of two cards", inside)
	}
}

// TestHear checks that messages of a lab inside are printed like local ones.
func TestHear(t *testing.T) {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	p := relayed(func(told told) {
		if err := enc.Encode(inner{told: told}); err != nil {
			t.Error(err)
		}
	})
	p.say("plain: building direct")
	p.note("it is\nodd")
	p.did(time.Second)
	if err := enc.Encode(inner{Report: &report.Report{Profile: "exact"}}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	progress := NewProgress(&out)
	progress.total = 4 * time.Second
	r, err := hear(&line, progress)
	if err != nil || r == nil || r.Profile != "exact" {
		t.Errorf("the report is %+v, error %v", r, err)
	}
	if got, want := out.String(), "lab:   0% plain: building direct\nlab: it is odd\n"; got != want || progress.done != time.Second {
		t.Errorf("it prints\n%s want\n%s and %v is done", got, want, progress.done)
	}
	if _, err := hear(strings.NewReader(`{"failed":"no memory"}`), progress); err == nil || err.Error() != "the lab inside: no memory" {
		t.Errorf("of one that failed: %v", err)
	}
	if _, err := hear(strings.NewReader(`{"say":`), progress); err == nil {
		t.Error("what ends in the middle is whole")
	}
	if r, err := hear(strings.NewReader(`{"say":"x"}`), progress); err != nil || r != nil {
		t.Errorf("of one that ended early: %+v, error %v", r, err)
	}
}

// TestInsideMachine checks that a machine has everything that its group needs, and nothing else.
func TestInsideMachine(t *testing.T) {
	o := Options{Fabrics: []string{"linux-bridge+nft", "ovs"}, Workloads: []string{"one-by-one"}, Counting: true}
	p, err := Select(o)
	if err != nil {
		t.Fatal(err)
	}
	site := fabrics.Site{Bascule: "/sbin/bascule"}
	m, err := insideMachine(site, o, p.Groups[0], guests.Kernel{})
	if err != nil {
		t.Fatal(err)
	}
	if !m.Counting || m.CPUs != 1 || m.Init != site.Bascule || m.Links[insideSelf] != "/init" {
		t.Errorf("the machine is %+v", m)
	}
	for _, module := range []string{"bridge", "br_netfilter", "nft_ct", "openvswitch"} {
		if !slices.Contains(m.Optional, module) {
			t.Errorf("it has no module %s", module)
		}
	}
	for _, name := range []string{"ip", "nft", "ovs-vswitchd"} {
		if !slices.Contains(m.Programs, name) {
			t.Errorf("it has no program %s", name)
		}
	}
	for _, file := range fabrics.OVS.Files {
		if _, err := os.Stat(file); (err == nil) != (m.Files[file] == file) {
			t.Errorf("%s is there: %v, and the files are %v", file, err == nil, slices.Collect(maps.Keys(m.Files)))
		}
	}
	var again Options
	if err := json.Unmarshal([]byte(m.Texts[insideJob]), &again); err != nil || !slices.Equal(again.Fabrics, o.Fabrics) || !again.Counting {
		t.Errorf("its job is %s, error %v", m.Texts[insideJob], err)
	}
	cards, err := Select(Options{Study: "kvm", Groups: []string{"kvm-3"}, Counting: true})
	if err != nil {
		t.Fatal(err)
	}
	// A wire for each of the 6 cases, which exist at the same time.
	if m, err := insideMachine(site, o, cards.Groups[0], guests.Kernel{}); err != nil || m.Board != "q35" || len(m.Devices) != 6*2*4 ||
		!slices.Contains(m.Modules, "e1000e") || !slices.Contains(m.Optional, "openvswitch") {
		t.Errorf("two hosts are %+v, error %v", m, err)
	}
	if m.Board != "" || len(m.Devices) != 0 {
		t.Errorf("without cards the board is %q with %q", m.Board, m.Devices)
	}
	plain, err := Select(Options{Fabrics: []string{"linux-bridge"}, Workloads: []string{"one-by-one"}, Counting: true})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := insideMachine(site, o, plain.Groups[0], guests.Kernel{}); err != nil || slices.Contains(m.Optional, "br_netfilter") {
		t.Errorf("a plain bridge has %v, error %v", m.Optional, err)
	}
}

// TestSelectCounting checks that figures are instructions exactly where instructions are counted.
func TestSelectCounting(t *testing.T) {
	if p, err := Select(Options{Counting: true}); err != nil || p.Name != "exact" {
		t.Errorf("without options: profile %q, error %v, want exact", p.Name, err)
	}
	if _, err := Select(Options{Profile: "exact"}); err == nil || !strings.Contains(err.Error(), "--in-vm") {
		t.Errorf("on this machine: error %v", err)
	}
	for counting := range map[bool]bool{false: true, true: true} {
		p := must(t, Options{Fabrics: []string{"direct"}, Counting: counting})
		for _, g := range p.Groups {
			if g.Cases[0].Workload.Exact != counting {
				t.Errorf("counting %v: %s", counting, g.Name)
			}
		}
	}
	for _, c := range must(t, Options{Workloads: []string{"one-by-one"}, Counting: true}).Groups[0].Cases {
		if len(c.Fabric.Wires) > 0 {
			t.Errorf("%s is there without a name, and gives all others another machine", c.Label())
		}
	}
	w := workloads.Must("one-by-one")
	p := Profile{Groups: []Group{group(1, across([]*fabrics.Fabric{fabrics.Direct}, w))}}
	if os.Geteuid() != 0 {
		return
	}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil || !strings.Contains(r.Groups[0].Cases[0].Skipped, "--in-vm") {
		t.Errorf("where nobody counts: %+v, error %v", r.Groups[0].Cases[0], err)
	}
}

// TestTargetLess checks a target for the cost above a common base.
func TestTargetLess(t *testing.T) {
	of := func(label string, values ...float64) *report.Case {
		c := &report.Case{Label: label}
		for i, v := range values {
			c.Samples = append(c.Samples, report.Sample{Round: i + 1, Value: v})
		}
		return c
	}
	groups := []*report.Group{{Name: "g", Cases: []*report.Case{of("a", 14, 16), of("b", 20, 30), of("cable", 10, 10), of("c", 13, 12)}}}
	for _, tt := range []struct {
		target Target
		want   []float64
	}{
		{Target{Of: "a", Against: "b", OfLess: "cable", AgainstLess: "cable"}, []float64{0.4, 0.3}},
		{Target{Of: "a", Against: "b", OfLess: "c", AgainstLess: "cable"}, []float64{0.1, 0.2}},
		{Target{Of: "a", OfLess: "cable"}, []float64{4, 6}},
		{Target{Of: "a", Against: "b", OfLess: "none", AgainstLess: "cable"}, nil},
	} {
		tt.target.Group = "g"
		got, why := tt.target.values(groups)
		if !slices.EqualFunc(got, tt.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }) || (why != "") != (tt.want == nil) {
			t.Errorf("%+v: %v (%s), want %v", tt.target, got, why, tt.want)
		}
	}
}

// TestPinned checks that a kernel without tcx and an unknown kernel are refused.
func TestPinned(t *testing.T) {
	var unavailable *ends.Unavailable
	if _, err := Pinned(t.Context(), "6.1", NewProgress(nil)); !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "no tcx") {
		t.Errorf("Linux 6.1: error %v", err)
	}
	if _, err := Pinned(t.Context(), "5.4", NewProgress(nil)); err == nil || errors.As(err, &unavailable) || !strings.Contains(err.Error(), Kernels()[0]) {
		t.Errorf("Linux 5.4: error %v", err)
	}
	for _, version := range Kernels() {
		if pins, err := guests.FindPins(version); err != nil || len(pins) != 1 {
			t.Errorf("%s stands for %v, error %v", version, pins, err)
		}
	}
}
