// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// needRoot skips a test that needs root to make network namespaces.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
}

// nothingLeft fails the test if namespaces of this process remain at its end.
func nothingLeft(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, name := range ownNamespaces(t) {
			t.Errorf("network namespace %s was left", name)
		}
	})
}

// ownNamespaces returns the named namespaces of this process.
func ownNamespaces(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ends.NameFor("")) {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestRun sends over the fabrics that do not need bascule. The workloads check that the traffic
// crosses them, with the counters of the fabric's own device.
func TestRun(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	peers := []*fabrics.Fabric{fabrics.Direct, fabrics.LinuxBridge}
	frames := workloads.Must("pps:duration=50ms")
	p := Profile{Name: "test", Groups: []Group{
		group(1, across(peers, workloads.Must("tcp-stream:mebibytes=24"))),
		group(2, across(append(peers, fabrics.XDPBare), frames)),
	}, Targets: []Target{{Name: "frames", Group: frames.Name, Of: "linux-bridge pps", Against: "direct pps", Unit: "x"}}}
	var shown strings.Builder
	progress := NewProgress(nil)
	progress.ShowGroups(&shown)
	r, err := Run(t.Context(), fabrics.Site{}, p, progress)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Groups {
		if !strings.Contains(shown.String(), g.About) {
			t.Errorf("the table of %s was not shown:\n%s", g.Name, shown.String())
		}
		for _, c := range g.Cases {
			if c.Error != "" {
				t.Errorf("%s: %s", c.Label, c.Error)
			} else if len(c.Samples) != g.Rounds {
				t.Errorf("%s: %d samples of %d rounds", c.Label, len(c.Samples), g.Rounds)
			}
			for _, s := range c.Samples {
				if s.Value <= 0 {
					t.Errorf("%s, round %d: %v %s", c.Label, s.Round, s.Value, c.Unit)
				}
			}
		}
	}
	if f := r.Figures[0]; f.Got == nil || f.Got.N != 2 {
		t.Errorf("figure of frames: %+v", f)
	}
	if !r.Complete {
		t.Error("the run does not say that it was complete")
	}
}

// TestRunEnded checks that an interrupted run keeps its results and removes its objects.
func TestRunEnded(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	ctx, cancel := context.WithCancel(t.Context())
	// It ends the run in its second round, the first one that counts.
	w := changed(brief, func(s workloads.Session) workloads.Session { return &endedSession{s, cancel, 0} })
	p := Profile{Groups: []Group{group(3, []Case{
		{Fabric: fabrics.LinuxBridge, Workload: workloads.Must(brief)},
		{Fabric: fabrics.Direct, Workload: w},
	})}}
	r, err := Run(ctx, fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	if r.Complete {
		t.Error("a run that was ended says that it was complete")
	}
	cases := r.Groups[0].Cases
	if n := len(cases[0].Samples); n != 1 {
		t.Errorf("%d samples were kept of the one round", n)
	}
	if e := cases[1].Error; e != "" {
		t.Errorf("the end of the run counts as an error: %s", e)
	}
}

// brief sends frames for a short time.
const brief = "pps:duration=20ms"

// changed returns a workload with its sessions wrapped.
func changed(name string, session func(workloads.Session) workloads.Session) *workloads.Workload {
	w := workloads.Must(name)
	start := w.Start
	w.Start = func(ctx context.Context, n *fabrics.Net) (workloads.Session, error) {
		s, err := start(ctx, n)
		if err != nil {
			return nil, err
		}
		return session(s), nil
	}
	return w
}

type endedSession struct {
	workloads.Session
	cancel context.CancelFunc
	rounds int
}

func (e *endedSession) Run(ctx context.Context, m workloads.Meter) (s report.Sample, err error) {
	if e.rounds++; e.rounds == 2 {
		e.cancel()
	}
	return e.Session.Run(ctx, m)
}

// TestLeftoversAreRemoved checks that a namespace of a dead lab is removed by the next one.
func TestLeftoversAreRemoved(t *testing.T) {
	needRoot(t)
	// A process that has ended, and whose number is not reused.
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s%d-1-e1", ends.Prefix, gone.Process.Pid)
	var ns *ends.Namespace
	var removed []string
	// the lab of another test may be faster, but not each time
	for tries := 0; tries < 5 && !slices.Contains(removed, name); tries++ {
		var err error
		if ns, err = ends.NewNamespace(name); err != nil {
			t.Fatal(err)
		}
		if removed, err = (fabrics.Site{}).RemoveLeftovers(); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(strings.Join(removed, " "), name) {
		t.Errorf("removed %v, not %s", removed, name)
	}
	if _, err := os.Stat("/run/netns/" + name); err == nil {
		t.Errorf("%s is still there", name)
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRunSwitches runs the lab's own traffic, in small amounts, over everything with ports and
// addresses, with the real bascule program.
func TestRunSwitches(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	bascule := program.Path(t)
	switches := []*fabrics.Fabric{
		fabrics.LinuxBridge, fabrics.Bascule, fabrics.BasculeXDP, fabrics.BasculeLocked, fabrics.BasculeLockedXDP,
	}
	p := Profile{Name: "test"}
	const short = ":duration=20ms"
	var ofTime []bool // by group
	for _, w := range []string{
		"pps" + short,
		"pps:cores=2" + short,
		"pps:cores=2:same-source" + short,
		"learning:rate=1000:duration=200ms",
		"addresses:count=2000" + short,
		"flood:ports=4" + short,
		"port-add:ports=3",
	} {
		for _, f := range switches {
			p.Groups = append(p.Groups, group(1, []Case{{Fabric: f, Workload: workloads.Must(w)}}))
			ofTime = append(ofTime, strings.Contains(w, "duration="))
		}
	}
	for _, f := range switches[1:] {
		p.Groups = append(p.Groups, group(1, []Case{{Fabric: f, Workload: workloads.Must("fdb-memory:count=2000")}}))
		ofTime = append(ofTime, false)
	}
	for _, c := range runAll(t, fabrics.Site{Bascule: bascule}, p, func(i int) bool { return ofTime[i] }) {
		if c.Error != "" || len(c.Samples) != 1 {
			t.Errorf("%s: %d samples, error %q", c.Label, len(c.Samples), c.Error)
		}
	}
}

// TestRunFailures checks that a failed round is left out, and that three in a row end the case.
func TestRunFailures(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	fails := func(rounds ...int) *workloads.Workload {
		w := workloads.Must(brief)
		w.Start = func(context.Context, *fabrics.Net) (workloads.Session, error) {
			return &failingSession{fails: rounds}, nil
		}
		return w
	}
	p := Profile{Groups: []Group{group(5, []Case{
		{Fabric: fabrics.Direct, Workload: fails(1, 3)},
		{Fabric: fabrics.Direct, Workload: fails(1, 2, 3)},
	})}}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ samples, failed int }{{3, 2}, {0, 3}} {
		c := r.Groups[0].Cases[i]
		if len(c.Samples) != want.samples || c.Failed != want.failed || c.Error == "" {
			t.Errorf("case %d: %d samples, %d failed, error %q; want %+v", i, len(c.Samples), c.Failed, c.Error, want)
		}
	}
}

// failingSession measures nothing, and fails in some rounds; round 0 is the warm-up.
type failingSession struct {
	fails []int
	round int
}

func (f *failingSession) Run(context.Context, workloads.Meter) (report.Sample, error) {
	f.round++
	if slices.Contains(f.fails, f.round-1) {
		return report.Sample{}, errors.New("as it was told")
	}
	return report.Sample{Value: 1}, nil
}

func (f *failingSession) Close() error { return nil }

// TestRunWithoutBascule checks that a failure is reported, and that the rest continues.
func TestRunWithoutBascule(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	w := workloads.Must(brief)
	p := Profile{Groups: []Group{group(1, across([]*fabrics.Fabric{fabrics.Bascule, fabrics.Direct}, w))}}
	r, err := Run(t.Context(), fabrics.Site{Bascule: "/nonexistent/bascule"}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	cases := r.Groups[0].Cases
	if cases[0].Error == "" || len(cases[0].Samples) != 0 {
		t.Errorf("a fabric that cannot be built: error %q, %d samples", cases[0].Error, len(cases[0].Samples))
	}
	if cases[1].Error != "" || len(cases[1].Samples) != 1 {
		t.Errorf("the other fabric: error %q, %d samples", cases[1].Error, len(cases[1].Samples))
	}
}
