// SPDX-License-Identifier: BSD-2-Clause

// Package report has the results of the lab, and prints them.
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
	// More has additional values by name; the name includes the unit.
	More map[string]float64 `json:"more,omitempty"`
	// Intervals are the values in equal parts of the round, in the unit of the case, if the
	// workload measures them.
	Intervals []float64 `json:"intervals,omitempty"`
	// Bytes is the payload and Frames the number of frames that reached the receivers while CPU
	// was measured; 0 if the workload does not count them.
	Bytes  float64 `json:"bytes,omitempty"`
	Frames float64 `json:"frames,omitempty"`
	// Seconds is the time over which CPU was measured.
	Seconds float64 `json:"seconds"`
	CPU     CPU     `json:"cpu"`             // of all cores together
	Cores   []CPU   `json:"cores,omitempty"` // core by core
	// Switches is the machine's number of context switches per second.
	Switches float64 `json:"context_switches,omitempty"`
	// Drops is the number of lost frames by place: a device with a direction, or "softnet" for
	// the cores' backlogs.
	Drops map[string]uint64 `json:"drops,omitempty"`
	// Cycles and Instructions are totals of all cores, if the machine has counters.
	Cycles       uint64 `json:"cycles,omitempty"`
	Instructions uint64 `json:"instructions,omitempty"`
}

// Lost is the name in Sample.More of the fraction of sent data that did not arrive, in percent.
const Lost = "lost_percent"

// RouterCore is the name in Sample.More of the kernel's use of the router's core, in percent, if
// the router had a separate one.
const RouterCore = "router_core_percent"

// CPU is the CPU time of the machine during a sample, in cores.
type CPU struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	Softirq float64 `json:"softirq"`
	Idle    float64 `json:"idle"`
	// Steal is the time that the hypervisor gave to other machines.
	Steal float64 `json:"steal"`
	// Others is the time of programs outside the lab, part of User and System.
	Others float64 `json:"others"`
}

// Busy is the time that is not idle.
func (c CPU) Busy() float64 { return c.User + c.System + c.Softirq }

// Case is one workload on one fabric, with its samples.
type Case struct {
	// Label consists of the fabric, the workload and the setup, and is unique in its group.
	Label    string `json:"label"`
	Fabric   string `json:"fabric"`
	Workload string `json:"workload"`
	// Setup has the differences from the default, ends in namespaces with an MTU of 1500,
	// separated by spaces: "host" if the first end is the host itself, "mtu=9000", "vm".
	Setup string `json:"setup,omitempty"`
	Unit  string `json:"unit"`
	Lower bool   `json:"lower_is_better,omitempty"`
	// Counter describes how frames were made and counted, and follows the word "frames": "made
	// by BPF_PROG_TEST_RUN live frames, counted by tcx at the receiver". Older reports have
	// only the program that counted, "tcx" or "xdp".
	Counter string   `json:"counter,omitempty"`
	Notes   []string `json:"notes,omitempty"`   // findings from the construction of the fabric
	Skipped string   `json:"skipped,omitempty"` // the reason for skipping it
	Error   string   `json:"error,omitempty"`   // the last one
	Failed  int      `json:"failed,omitempty"`  // rounds without a sample
	Samples []Sample `json:"samples"`
}

// MarshalJSON writes an empty list if there are no samples.
func (c Case) MarshalJSON() ([]byte, error) {
	type fields Case // without this method
	if c.Samples == nil {
		c.Samples = []Sample{}
	}
	return json.Marshal(fields(c))
}

// Hop is a station of a frame on its way through a fabric.
type Hop struct {
	Name string `json:"name"`
	// Kind is "end", "device" (a network device), "bridge" (a switch without a device in the
	// frame's path), "program" or "filter".
	Kind string `json:"kind"`
}

// Fabric describes a fabric in a report.
type Fabric struct {
	Name  string `json:"name"`
	About string `json:"about"`
	// Path has a frame's stations from one end to another, and HostPath from the host's own
	// interface to an end; empty if the path does not exist.
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

// Drawing returns a path on one line.
func Drawing(path []Hop) string {
	names := make([]string, len(path))
	for i, h := range path {
		names[i] = h.Name
	}
	return strings.Join(names, " - ")
}

// Claim is a published statement, with this machine's verdict.
type Claim struct {
	Source    string `json:"source"`
	Claim     string `json:"claim"`
	Published string `json:"published"` // the figures, with their units
	// Ratio is the published figure as a ratio; 0 if it is not a ratio.
	Ratio float64 `json:"published_ratio,omitempty"`
	// Test describes the comparison here, and its place.
	Test string `json:"test"`
	// Inside is Machine.Counted of the virtual machine of the measurement; empty for the
	// machine of the report.
	Inside string  `json:"measured_inside,omitempty"`
	Here   *Spread `json:"here,omitempty"` // nil when it was not measured
	// Counted is the same ratio in instructions, from a virtual machine that counts them, and
	// CountedVerdict is its verdict; nil and "" if it was not counted.
	Counted        *Spread `json:"counted,omitempty"`
	CountedVerdict string  `json:"counted_verdict,omitempty"`
	// Verdict is "holds", "does not hold", "not shown" (the difference is within
	// the noise) or "cannot be tested".
	Verdict string `json:"verdict"`
	Why     string `json:"why,omitempty"`
}

// Group is a list of cases that ran interleaved: one round of each, then the next round.
type Group struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	Rounds int    `json:"rounds"`
	// More is the maximum number of further rounds in the cases of undecided claims.
	More  int     `json:"more_rounds,omitempty"`
	Cases []*Case `json:"cases"`
	// Seconds is the total time of the group.
	Seconds float64 `json:"seconds"`
	// Machine is the machine of the measurement; nil for the machine of the report.
	Machine *Machine `json:"machine,omitempty"`
}

// Report is a whole run.
type Report struct {
	Profile  string    `json:"profile"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Complete bool      `json:"complete"`
	Machine  Machine   `json:"machine"`
	Fabrics  []Fabric  `json:"fabrics,omitempty"` // of the groups' cases
	Groups   []*Group  `json:"groups"`
	// Counted has cases of groups from this machine that were measured again in virtual
	// machines that count instructions.
	Counted []*Group `json:"counted,omitempty"`
	Figures []Figure `json:"figures,omitempty"`
	Claims  []Claim  `json:"claims,omitempty"`
}
