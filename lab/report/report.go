// SPDX-License-Identifier: BSD-2-Clause

// Package report holds the results of the lab, and prints them.
package report

import (
	"encoding/json"
	"strings"
	"time"
)

// Sample is one round of one case.
type Sample struct {
	Round int     `json:"round"` // from 1
	Value float64 `json:"value"` // in the unit of the case
	// More has further values, by name; the name carries the unit.
	More map[string]float64 `json:"more,omitempty"`
	// Intervals are the values of equal parts of the round, in the unit of the
	// case, where the workload tells them.
	Intervals []float64 `json:"intervals,omitempty"`
	// Bytes is the payload and Frames the frames that reached the receivers
	// while CPU was counted; 0 where the workload does not tell.
	Bytes  float64 `json:"bytes,omitempty"`
	Frames float64 `json:"frames,omitempty"`
	// Seconds is how long CPU was counted.
	Seconds float64 `json:"seconds"`
	CPU     CPU     `json:"cpu"`             // of all cores together
	Cores   []CPU   `json:"cores,omitempty"` // core by core
	// Switches is how many context switches a second the machine made.
	Switches float64 `json:"context_switches,omitempty"`
	// Drops is how many frames were lost where: a device and direction, or
	// "softnet" for the cores' backlogs.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Cycles and Instructions are of all cores, where the machine has counters.
	Cycles       uint64 `json:"cycles,omitempty"`
	Instructions uint64 `json:"instructions,omitempty"`
}

// Lost is the name in Sample.More of the share of sent data that did not
// arrive, in percent.
const Lost = "lost_percent"

// RouterCore is the name in Sample.More of how busy the kernel was on the router's core, in
// percent, where the router had one of its own.
const RouterCore = "router_core_percent"

// CPU is how many cores' worth of time the machine spent during a sample.
type CPU struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	Softirq float64 `json:"softirq"`
	Idle    float64 `json:"idle"`
	// Steal is the time that the hypervisor kept for others.
	Steal float64 `json:"steal"`
	// Others is the time of programs that are not the lab's, part of User and
	// System.
	Others float64 `json:"others"`
}

// Busy is all that is not idle.
func (c CPU) Busy() float64 { return c.User + c.System + c.Softirq }

// Case is one workload on one fabric, with its samples.
type Case struct {
	// Label is the fabric, the workload and the setup, and unique in its group.
	Label    string `json:"label"`
	Fabric   string `json:"fabric"`
	Workload string `json:"workload"`
	// Setup has the differences from ends in namespaces with an MTU of 1500: "host"
	// if the host itself is the first end, "mtu=9000", "vm"; with spaces between
	// them.
	Setup string `json:"setup,omitempty"`
	Unit  string `json:"unit"`
	Lower bool   `json:"lower_is_better,omitempty"`
	// Counter is what was done with the frames, to be read after the word
	// "frames": "made by BPF_PROG_TEST_RUN live frames, counted by tcx at the
	// receiver". Older reports have only the program that counted, "tcx" or
	// "xdp".
	Counter string   `json:"counter,omitempty"`
	Notes   []string `json:"notes,omitempty"`   // what the fabric found out when it was built
	Skipped string   `json:"skipped,omitempty"` // why it was not tried
	Error   string   `json:"error,omitempty"`   // the last one
	Failed  int      `json:"failed,omitempty"`  // rounds that gave no sample
	Samples []Sample `json:"samples"`
}

// MarshalJSON has an empty list of samples where there are none.
func (c Case) MarshalJSON() ([]byte, error) {
	type fields Case // without this method
	if c.Samples == nil {
		c.Samples = []Sample{}
	}
	return json.Marshal(fields(c))
}

// Hop is something that a frame passes on its way through a fabric.
type Hop struct {
	Name string `json:"name"`
	// Kind is "end", "device" (a network device), "bridge" (a switch that has
	// no device of its own in the frame's way), "program" or "filter".
	Kind string `json:"kind"`
}

// Fabric describes a fabric that a report has cases of.
type Fabric struct {
	Name  string `json:"name"`
	About string `json:"about"`
	// Path is what a frame passes from one end to another, and HostPath from
	// the host's own interface to an end; empty where it has none.
	Path     []Hop `json:"path"`
	HostPath []Hop `json:"host_path,omitempty"`
}

// Devices counts the network devices and switches on a path, without the ends.
func Devices(path []Hop) int {
	n := 0
	for _, h := range path {
		if h.Kind == "device" || h.Kind == "bridge" {
			n++
		}
	}
	return n
}

// Drawing is a path in one line.
func Drawing(path []Hop) string {
	names := make([]string, len(path))
	for i, h := range path {
		names[i] = h.Name
	}
	return strings.Join(names, " - ")
}

// Claim is something that was published, and what this machine says to it.
type Claim struct {
	Source    string `json:"source"`
	Claim     string `json:"claim"`
	Published string `json:"published"` // the figures, with their units
	// Ratio is the published figure as a ratio; 0 where it is none.
	Ratio float64 `json:"published_ratio,omitempty"`
	// Test says in words what is compared here, and where.
	Test string `json:"test"`
	// Inside is Machine.Counted of the virtual machine that it was measured in; empty
	// where that is the machine of the report.
	Inside string  `json:"measured_inside,omitempty"`
	Here   *Spread `json:"here,omitempty"` // nil when it was not measured
	// Counted is the same ratio of instruction costs, from a virtual machine that counts them,
	// and CountedVerdict what it says to the claim; nil and "" where it was not counted.
	Counted        *Spread `json:"counted,omitempty"`
	CountedVerdict string  `json:"counted_verdict,omitempty"`
	// Verdict is "holds", "does not hold", "not shown" (the difference is within
	// the noise) or "cannot be tested".
	Verdict string `json:"verdict"`
	Why     string `json:"why,omitempty"`
}

// Group is cases that ran interleaved: one round of each, then the next round.
type Group struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	Rounds int    `json:"rounds"`
	// More is how many further rounds the cases of undecided claims had, at most.
	More  int     `json:"more_rounds,omitempty"`
	Cases []*Case `json:"cases"`
	// Seconds is how long the group took, all included.
	Seconds float64 `json:"seconds"`
	// Machine is what it was measured on; nil for the machine of the report.
	Machine *Machine `json:"machine,omitempty"`
}

// Report is a whole run.
type Report struct {
	Profile  string    `json:"profile"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Complete bool      `json:"complete"`
	Machine  Machine   `json:"machine"`
	Fabrics  []Fabric  `json:"fabrics,omitempty"` // that the groups have cases of
	Groups   []*Group  `json:"groups"`
	// Counted are cases of the groups that were measured on this machine, once more in virtual
	// machines that count instructions.
	Counted []*Group `json:"counted,omitempty"`
	Figures []Figure `json:"figures,omitempty"`
	Claims  []Claim  `json:"claims,omitempty"`
}
