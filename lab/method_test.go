// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// TestRunCPU checks that a sample has the work of the cores, and that they did work.
func TestRunCPU(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	for try := 1; ; try++ {
		off := timesOff(t)
		if off == "" {
			return
		}
		if try == 3 {
			t.Fatalf("of each of %d samples, of the last:\n%s", try, off)
		}
		t.Logf("once more:\n%s", off)
	}
}

// timesOff takes a sample and returns what is wrong with its times. They are wrong if a virtual
// processor stalled and its clock does not show it.
func timesOff(t *testing.T) string {
	t.Helper()
	var off strings.Builder
	p := Profile{Groups: []Group{group(1, across([]*fabrics.Fabric{fabrics.Direct}, workloads.Must("pps:duration=1s")))}}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Groups[0].Cases[0]
	if c.Error != "" || len(c.Samples) != 1 {
		t.Fatalf("%d samples, error %q", len(c.Samples), c.Error)
	}
	s := c.Samples[0]
	if s.Seconds < 1 || s.CPU.Busy() < 0.1 || s.Switches <= 0 {
		t.Errorf("%.2f seconds, %.2f cores busy, %.0f context switches a second", s.Seconds, s.CPU.Busy(), s.Switches)
	}
	if len(s.Cores) != runtime.NumCPU() {
		t.Fatalf("%d cores of %d", len(s.Cores), runtime.NumCPU())
	}
	var sum report.CPU
	for i, k := range s.Cores {
		if all := allOf(t, k); math.Abs(all-1) > 0.2 {
			fmt.Fprintf(&off, "core %d spent %.2f of its time: %+v\n", i, all, k)
		}
		sum.User, sum.System, sum.Softirq, sum.Idle = sum.User+k.User, sum.System+k.System, sum.Softirq+k.Softirq, sum.Idle+k.Idle
	}
	cores := float64(len(s.Cores))
	if all := allOf(t, s.CPU); math.Abs(all-cores) > 0.2*cores {
		fmt.Fprintf(&off, "the machine's %v cores spent the time of %.2f: %+v\n", cores, all, s.CPU)
	}
	for name, d := range map[string]float64{
		"user": sum.User - s.CPU.User, "system": sum.System - s.CPU.System, "softirq": sum.Softirq - s.CPU.Softirq, "idle": sum.Idle - s.CPU.Idle,
	} {
		if math.Abs(d) > 0.1*cores {
			fmt.Fprintf(&off, "%s of the cores and of the machine differ by %.2f\n", name, d)
		}
	}
	return off.String()
}

// allOf adds up all parts of a sample's CPU time. No part may be negative.
func allOf(t *testing.T, c report.CPU) float64 {
	t.Helper()
	sum := 0.0
	for _, v := range []float64{c.User, c.System, c.Softirq, c.Idle, c.Steal} {
		if v < 0 {
			t.Errorf("a negative time: %+v", c)
		}
		sum += v
	}
	if c.Others < 0 {
		t.Errorf("others took %.2f", c.Others)
	}
	return sum
}

// tested returns the verdict on a claim about two cases whose ratio is 2, while other programs used
// the given number of cores in each sample.
func tested(t *testing.T, others report.CPU, claim studies.Claim) report.Claim {
	t.Helper()
	g := &report.Group{Name: "study-1"}
	for label, level := range map[string]float64{"a": 1, "b": 2} {
		c := &report.Case{Label: label}
		for i := range 8 {
			c.Samples = append(c.Samples, report.Sample{Round: i + 1, Value: level * (1 + float64(i)/1000), CPU: others})
		}
		g.Cases = append(g.Cases, c)
	}
	claim.Of, claim.Against = "b", "a"
	// More cores than any claim needs.
	got, err := claims([]Claim{{Study: "study", Claim: claim}}, []*report.Group{g}, report.Machine{Cores: 64})
	if err != nil || len(got) != 1 {
		t.Fatalf("%d claims, error %v", len(got), err)
	}
	return got[0]
}

// TestClaimsNoisy checks that there is no verdict in either direction while other programs use the
// machine.
func TestClaimsNoisy(t *testing.T) {
	for name, claim := range map[string]studies.Claim{
		"reached": {AtLeast: 1.5},
		"missed":  {AtMost: 1.5},
		"larger":  {Larger: true},
	} {
		for _, others := range []report.CPU{{User: 1, Others: 1}, {Steal: 1}} {
			if got := tested(t, others, claim); got.Verdict != notShown || !strings.Contains(got.Why, "others") || got.Here == nil {
				t.Errorf("%s, with %+v: %q (%q), measured %+v", name, others, got.Verdict, got.Why, got.Here)
			}
		}
		if got := tested(t, report.CPU{User: 1}, claim); got.Verdict == notShown {
			t.Errorf("%s, undisturbed: %q (%q)", name, got.Verdict, got.Why)
		}
	}
}

// TestClaimsKernelOVS checks that a claim about Open vSwitch's kernel datapath needs a kernel with
// it. The result of the other datapath is reported anyway.
func TestClaimsKernelOVS(t *testing.T) {
	if haveKernelOVS() {
		t.Skip("this kernel has a datapath for Open vSwitch")
	}
	for verdict, claim := range map[string]studies.Claim{
		holds:    {KernelOVS: true, AtLeast: 1.5},
		holdsNot: {KernelOVS: true, AtMost: 1.5},
		notShown: {KernelOVS: true, AtLeast: 2, AtMost: 2},
	} {
		quiet := report.CPU{}
		if verdict == notShown {
			quiet.Others = 1
		}
		got := tested(t, quiet, claim)
		if got.Verdict != cannot || !strings.Contains(got.Why, "user space") || !strings.Contains(got.Why, verdict) || got.Here == nil {
			t.Errorf("what in user space %s: %q (%q), measured %+v", verdict, got.Verdict, got.Why, got.Here)
		}
		claim.KernelOVS = false
		if got := tested(t, quiet, claim); got.Verdict != verdict {
			t.Errorf("of any datapath: %q (%q), want %q", got.Verdict, got.Why, verdict)
		}
	}
}
