// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// programOf returns a child process that runs a program; 0 if there is none.
func programOf(name string) int {
	for _, pid := range children(os.Getpid()) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && strings.TrimSpace(string(text)) == name {
			return pid
		}
	}
	return 0
}

// deadly returns a workload that kills a process of a program once it is ready.
func deadly(t *testing.T, text, program string) *workloads.Workload {
	w := workloads.Must(text)
	start := w.Start
	w.Start = func(ctx context.Context, n *fabrics.Net) (workloads.Session, error) {
		s, err := start(ctx, n)
		pid := programOf(program)
		return &killingSession{s, n, t, 0, func() int { return pid }}, err
	}
	return w
}

// TestRunKilled checks that a dead server costs a round, which reports it, and that the next round has a new one. A
// dead part of the fabric ends the case at once.
func TestRunKilled(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	site := fabrics.Site{Bascule: program.Path(t)}
	for _, test := range []struct {
		fabric            *fabrics.Fabric
		workload, program string
		samples           int // out of three rounds
	}{
		{fabrics.LinuxBridge, "tcp-stream:mebibytes=64", "iperf3", 2},
		{fabrics.LinuxBridge, "latency:duration=1s", "sockperf", 2},
		{fabrics.LinuxBridge, "latency:load=tcp:duration=1s", "iperf3", 2},
		{fabrics.LinuxBridge, "uperf:duration=200ms", "bascule", 2},
		{fabrics.OVS, "tcp-stream:mebibytes=64", "ovs-vswitchd", 1},
	} {
		t.Run(test.fabric.Name+" "+test.workload, func(t *testing.T) {
			needs := slices.Concat(workloads.Must(test.workload).Needs, test.fabric.Needs)
			if err := ends.Installed(needs...); err != nil {
				t.Skip(err)
			}
			var told bytes.Buffer
			var c *report.Case
			for begin := time.Now(); ; {
				w := deadly(t, test.workload, test.program)
				told.Reset()
				p := Profile{Groups: []Group{group(3, []Case{{Fabric: test.fabric, Workload: w}})}}
				r, err := Run(t.Context(), site, p, NewProgress(&told))
				if err != nil {
					t.Fatal(err)
				}
				c = r.Groups[0].Cases[0]
				// a busy machine may stall for a whole round of a second
				if !strings.Contains(test.workload, "duration=") || c.Failed == 1 || time.Since(begin) > patient {
					break
				}
				t.Logf("once more, %d failed rounds:\n%s", c.Failed, &told)
			}
			if len(c.Samples) != test.samples || c.Failed != 1 {
				t.Errorf("%d samples and %d failed rounds, want %d and 1:\n%s",
					len(c.Samples), c.Failed, test.samples, &told)
			}
			if !strings.HasPrefix(c.Error, test.program) || !strings.HasSuffix(c.Error, " has ended: signal: killed") {
				t.Errorf("of the program that was killed the report says %q", c.Error)
			}
			if n := strings.Count(told.String(), "has ended"); n != 1 {
				t.Errorf("its end was told %d times:\n%s", n, &told)
			}
		})
	}
}

// TestRunLate checks that a round without end is abandoned.
func TestRunLate(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	w := changed(brief, func(s workloads.Session) workloads.Session { return endlessSession{s} })
	w.Most = 50 * time.Millisecond
	p := Profile{Groups: []Group{group(1, []Case{{Fabric: fabrics.Direct, Workload: w}})}}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Groups[0].Cases[0]
	if want := "it did not end in time: a round was given 50ms"; c.Error != want || c.Failed != 2 {
		t.Errorf("%d failed rounds, error %q, want 2 and %q", c.Failed, c.Error, want)
	}
}

type endlessSession struct{ workloads.Session }

func (endlessSession) Run(ctx context.Context, _ workloads.Meter) (report.Sample, error) {
	<-ctx.Done()
	return report.Sample{}, ctx.Err()
}

// TestRunMeter checks that the lab's own frames are counted while the meter runs.
func TestRunMeter(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	var read readings
	w := changed(brief, func(s workloads.Session) workloads.Session { return meteredSession{s, &read} })
	p := Profile{Groups: []Group{group(1, []Case{{Fabric: fabrics.Direct, Workload: w}})}}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Groups[0].Cases[0]
	if c.Error != "" || len(c.Samples) != 1 {
		t.Fatalf("%d samples, error %q", len(c.Samples), c.Error)
	}
	// Two rounds. One of them may have been repeated.
	if n := len(read); n < 4 || n%2 != 0 || read[n-2] != "begin" || read[n-1] != "end" {
		t.Errorf("the meter was used so: %q", read)
	}
	if s := c.Samples[0]; s.Seconds <= 0 {
		t.Errorf("nothing was counted: %+v", s)
	}
}

type meteredSession struct {
	workloads.Session
	read *readings
}

func (s meteredSession) Run(ctx context.Context, m workloads.Meter) (report.Sample, error) {
	return s.Session.Run(ctx, tellingMeter{m, s.read})
}

// readings records the calls of a meter.
type readings []string

type tellingMeter struct {
	workloads.Meter
	told *readings
}

func (m tellingMeter) Begin() {
	*m.told = append(*m.told, "begin")
	m.Meter.Begin()
}

func (m tellingMeter) End() {
	*m.told = append(*m.told, "end")
	m.Meter.End()
}

// TestShared checks that streams that differ only in their clients' arguments take turns on one fabric with one server.
func TestShared(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	var cases []Case
	for _, w := range []string{"netperf-stream", "iperf-3streams:reverse", "netperf-stream:offloads", "netperf-stream:offloads:reverse"} {
		cases = append(cases, across([]*fabrics.Fabric{fabrics.LinuxBridge}, workloads.Must(w+":mebibytes=4"))...)
	}
	var told strings.Builder
	r, err := Run(t.Context(), fabrics.Site{}, Profile{Groups: []Group{group(2, cases)}}, NewProgress(&told))
	if err != nil {
		t.Fatal(err)
	}
	if built := strings.Count(told.String(), "building linux-bridge"); built != 2 {
		t.Errorf("%d fabrics were built, one with offloads and one without are enough", built)
	}
	for _, c := range r.Groups[0].Cases {
		if len(c.Samples) != 2 || c.Error != "" {
			t.Errorf("%s: %d samples, error %q", c.Label, len(c.Samples), c.Error)
		}
	}
}
