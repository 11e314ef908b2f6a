// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"strings"

	"bascule/bridge"
)

// An Op is what an action does to its object.
type Op string

// The operations, as plans are printed with them.
const (
	Add    Op = "+"
	Delete Op = "-"
	Change Op = "~"
)

// An Action is one thing that is done to reach a desired state.
type Action struct {
	Op     Op
	Bridge string
	Object string // "port p1 of br0"
	Detail string // what is new, or "isolated off -> on, ..."; "" if there is no more to say
}

// String returns the action as one line of a plan.
func (a Action) String() string {
	line := string(a.Op) + " " + a.Object
	if a.Detail != "" {
		line += ": " + a.Detail
	}
	return line
}

// transition prints a change of a value; "none" stands for what was not there.
func transition(name, before, after string, existed bool) string {
	if !existed {
		return name + " " + after
	}
	return name + " " + before + " -> " + after
}

// vlanWords returns VLANs as the keys of a port in a file have them.
func vlanWords(ranges []bridge.VLANRange) (pvid, untagged, tagged string) {
	pvid = "none"
	var without, with []uint16
	for _, r := range ranges {
		if r.PVID {
			pvid = fmt.Sprint(r.First)
		}
		for id := r.First; id <= r.Last; id++ {
			switch {
			case !r.Untagged:
				with = append(with, id)
			case !r.PVID:
				without = append(without, id)
			}
		}
	}
	return pvid, cmp.Or(bridge.FormatVLANs(without), "none"), cmp.Or(bridge.FormatVLANs(with), "none")
}

// vlanDetails prints what is different between VLANs.
func vlanDetails(was, want []bridge.VLANRange, existed bool) (details []string) {
	var before, after [3]string
	before[0], before[1], before[2] = vlanWords(was)
	after[0], after[1], after[2] = vlanWords(want)
	for i, name := range []string{"pvid", "untagged", "tagged"} {
		if before[i] != after[i] || !existed && len(want) == 0 && i == 0 {
			details = append(details, transition(name, before[i], after[i], existed))
		}
	}
	return details
}

// kindDetail says what a port that is deleted was, if that is not plain.
func (d *diff) kindDetail(p *portModel) string {
	switch p.kind {
	case bridge.TypeHost:
		return "type host"
	case bridge.TypePatch:
		return "type patch, peer " + cmp.Or(p.peer, "none")
	}
	return ""
}

func privateDetail(p bridge.PrivateVLANs) string {
	var words []string
	if len(p.Isolated) > 0 {
		words = append(words, "isolated "+bridge.FormatVLANs(p.Isolated))
	}
	if len(p.Community) > 0 {
		words = append(words, "community "+bridge.FormatVLANs(p.Community))
	}
	return strings.Join(words, ", ")
}

// where prints where an address is.
func where(port string, vlan uint16) string {
	s := "on " + port
	if vlan != 0 {
		s += fmt.Sprintf(", vlan %d", vlan)
	}
	return s
}

func mirrorDetail(m *mirrorModel) string {
	var words []string
	if len(m.Ports) > 0 {
		words = append(words, "ports "+strings.Join(m.Ports, ","))
	}
	if len(m.VLANs) > 0 {
		words = append(words, "vlans "+bridge.FormatVLANs(m.VLANs))
	}
	if words == nil {
		words = append(words, "all ports")
	}
	return strings.Join(append(words, "direction "+m.Direction), ", ")
}

func switchWord(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// about returns notes that say what they are about, since one apply is about
// many bridges.
func about(what string, notes []string) []string {
	list := make([]string, len(notes))
	for i, n := range notes {
		list[i] = what + ": " + n
	}
	return list
}
