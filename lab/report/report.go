// SPDX-License-Identifier: BSD-2-Clause

// Package report holds what the lab measured, and prints it.
package report

import "time"

// Sample is one round of one case.
type Sample struct {
	Round int     `json:"round"` // from 1
	Value float64 `json:"value"` // in the unit of the case
	// More is what else was seen, by name; the name carries the unit.
	More map[string]float64 `json:"more,omitempty"`
	CPU  CPU                `json:"cpu"`
}

// Lost is the name in Sample.More of how much of what was sent did not arrive,
// in percent.
const Lost = "lost_percent"

// CPU is how many cores' worth of time the machine spent during a sample.
type CPU struct {
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	Softirq float64 `json:"softirq"`
	Idle    float64 `json:"idle"`
	// Steal is what the hypervisor kept for others.
	Steal float64 `json:"steal"`
	// Others is the part of User that was not the lab's.
	Others float64 `json:"others"`
}

// Busy is all that is not idle.
func (c CPU) Busy() float64 { return c.User + c.System + c.Softirq }

// Case is one workload on one fabric, with its samples.
type Case struct {
	Label    string   `json:"label"`
	Fabric   string   `json:"fabric"`
	Workload string   `json:"workload"`
	Unit     string   `json:"unit"`
	Lower    bool     `json:"lower_is_better,omitempty"`
	Counter  string   `json:"counter,omitempty"`
	Error    string   `json:"error,omitempty"`  // the last one
	Failed   int      `json:"failed,omitempty"` // rounds that gave no sample
	Samples  []Sample `json:"samples"`
}

// Group is cases that ran interleaved: one round of each, then the next round.
type Group struct {
	Name   string  `json:"name"`
	About  string  `json:"about"`
	Rounds int     `json:"rounds"`
	Cases  []*Case `json:"cases"`
	// Seconds is how long the group took, all included.
	Seconds float64 `json:"seconds"`
}

// Report is a whole run.
type Report struct {
	Profile  string    `json:"profile"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Complete bool      `json:"complete"`
	Machine  Machine   `json:"machine"`
	Groups   []*Group  `json:"groups"`
	Figures  []Figure  `json:"figures,omitempty"`
}
