// SPDX-License-Identifier: BSD-2-Clause

// Package lab measures bridges on this machine: it builds fabrics, sends
// workloads over them, with all peers interleaved in every round, and reports the results.
package lab

import (
	"fmt"
	"slices"
	"strings"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/workloads"
)

// Case is one workload on one fabric.
type Case struct {
	Fabric   *fabrics.Fabric
	Workload *workloads.Workload
	Setup    Setup
}

// Setup has the differences from the default: ends in namespaces with an MTU of 1500. It is the
// same for all workloads.
type Setup struct {
	Host   bool `yaml:"host"`   // the first end is the host itself
	MTU    int  `yaml:"mtu"`    // of the ends and everything between them, 0 for 1500
	Guests bool `yaml:"guests"` // the ends are virtual machines
}

// String returns the differences, separated by spaces: "host mtu=9000 vm"; "" if there are none.
func (s Setup) String() string {
	var out []string
	if s.Host {
		out = append(out, "host")
	}
	if s.MTU != 0 && s.MTU != ends.DefaultMTU {
		out = append(out, fmt.Sprintf("mtu=%d", s.MTU))
	}
	if s.Guests {
		out = append(out, "vm")
	}
	return strings.Join(out, " ")
}

// Label is the name of the case in its group.
func (c Case) Label() string {
	return strings.TrimSpace(c.Fabric.Name + " " + c.Workload.Name + " " + c.Setup.String())
}

// spec returns the requirements of the case for its fabric.
func (c Case) spec() fabrics.Spec {
	s := c.Workload.Spec
	s.Host, s.Guests = c.Setup.Host, c.Setup.Guests
	if c.Setup.MTU != 0 {
		s.Wire.MTU = c.Setup.MTU
	}
	return s
}

// Group is a list of cases that are measured interleaved: one round of each, then the next round.
type Group struct {
	Name   string
	About  string
	Rounds int
	Cases  []Case
	// Pairs decide claims: their cases get further rounds until the claims are decided. Empty
	// for quick runs.
	Pairs []Pair
	// Inside means that the group is measured in a virtual machine with counted instructions,
	// because this machine lacks something.
	Inside bool
}

// cards reports whether the group needs the network cards of a virtual machine.
func (g Group) cards() bool {
	return slices.ContainsFunc(g.Cases, func(c Case) bool { return len(c.Fabric.Wires) > 0 })
}

// Target is a goal for a figure of a group: the median of a case's values, or of its ratios to
// another case in the same rounds.
type Target struct {
	Name    string
	Group   string
	Of      string // label of a case
	Against string // label of another case, "" for the value itself
	// OfLess and AgainstLess are labels of cases whose values are subtracted first, round by
	// round; "" for none.
	OfLess, AgainstLess string
	Value               string // the name of an additional value, "" for the main one
	Invert              bool   // the ratio is Against to Of: cost instead of speed
	Unit                string // "x" for a ratio
	Lower               bool   // less is better
	Must                float64
	Aim                 float64
}

// Profile is a set of measurements.
type Profile struct {
	Name    string
	About   string
	Groups  []Group
	Targets []Target
	Claims  []Claim
	// Strict makes the run fail if a case cannot be measured.
	Strict bool
}

// across makes a case for each workload on each fabric, workload by workload.
func across(fs []*fabrics.Fabric, ws ...*workloads.Workload) []Case {
	var out []Case
	for _, w := range ws {
		for _, f := range fs {
			out = append(out, Case{Fabric: f, Workload: w})
		}
	}
	return out
}

// group makes a group of cases, with the name and text of the first workload.
func group(rounds int, cases []Case) Group {
	w := cases[0].Workload
	return Group{Name: w.Name, About: w.About, Rounds: rounds, Cases: cases}
}

// Demo shows real TCP traffic over a cable, a Linux bridge and a bascule bridge, in less than a
// minute.
func Demo() Profile {
	peers := []*fabrics.Fabric{fabrics.Direct, fabrics.LinuxBridge, fabrics.Bascule}
	return Profile{
		Name:  "demo",
		About: "TCP over a cable, a Linux bridge and a bascule",
		Groups: []Group{
			group(4, across(peers, workloads.Must("tcp-stream:duration=1s"))),
			group(4, across(peers, workloads.Must("tcp-stream:offloads:duration=1s"))),
		},
	}
}
