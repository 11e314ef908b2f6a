// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bascule/bridge"
)

// An Op is what an action does to its object.
type Op string

// The operations, in the words of a printed plan.
const (
	Add    Op = "+"
	Delete Op = "-"
	Change Op = "~"
)

// An Action is one step towards a desired state.
type Action struct {
	Op     Op
	Bridge string
	Object string // "port p1 of br0"
	Detail string // the new values, or "isolated off -> on, ..."; "" without details
}

// String returns the action as one line of a plan.
func (a Action) String() string {
	line := string(a.Op) + " " + a.Object
	if a.Detail != "" {
		line += ": " + a.Detail
	}
	return line
}

// shortAction limits the letters of an action in a summary.
const shortAction = 60

// Summary returns the short form of a plan: its first action, and the number of the others.
func Summary(actions []Action) string {
	if len(actions) == 0 {
		return ""
	}
	text := []rune(actions[0].String())
	if len(text) > shortAction {
		text = append(text[:shortAction-3], []rune("...")...)
	}
	if more := len(actions) - 1; more > 0 {
		return fmt.Sprintf("%s, and %d more", string(text), more)
	}
	return string(text)
}

// RemovedPorts returns the names of the ports that actions remove.
func RemovedPorts(actions []Action) (names []string) {
	for _, a := range actions {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(a.Object, " of "+a.Bridge), "port "); ok && a.Op == Delete {
			names = append(names, name)
		}
	}
	return names
}

// transition prints a changed value; "none" stands for a former value that did not exist.
func transition(name, before, after string, existed bool) string {
	if !existed {
		return name + " " + after
	}
	return name + " " + before + " -> " + after
}

// vlanWords returns VLANs as values for the keys of a port in a file.
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

// vlanDetails prints the differences between VLANs.
func vlanDetails(was, want []bridge.VLANRange, existed bool) (details []string) {
	var before, after [3]string
	before[0], before[1], before[2] = vlanWords(was)
	after[0], after[1], after[2] = vlanWords(want)
	for i, name := range []string{"pvid", "untagged", "tagged"} {
		if before[i] != after[i] || !existed && len(want) == 0 && i == 0 {
			text := transition(name, before[i], after[i], existed)
			if existed && i > 0 && before[i] != "none" && after[i] != "none" {
				text += " (" + listDiff(before[i], after[i]) + ")"
			}
			details = append(details, text)
		}
	}
	return details
}

// listDiff returns the VLANs that only one of two lists contains: -40 +41-43.
func listDiff(before, after string) string {
	was, _ := bridge.ParseVLANs(before) // the lists come from this package
	want, _ := bridge.ParseVLANs(after)
	without := func(list, other []uint16) []uint16 {
		return slices.DeleteFunc(slices.Clone(list), func(id uint16) bool { return slices.Contains(other, id) })
	}
	var words []string
	if gone := without(was, want); len(gone) > 0 {
		words = append(words, "-"+bridge.FormatVLANs(gone))
	}
	if come := without(want, was); len(come) > 0 {
		words = append(words, "+"+bridge.FormatVLANs(come))
	}
	return strings.Join(words, " ")
}

// A changedLine is a line that only one of two texts contains.
type changedLine struct {
	op   Op
	text string
}

// mostCompared limits the pairs of lines that are compared in a search for equal ones.
const mostCompared = 1 << 22

// lineDiff returns the lines that only one of two texts contains, in their order: as few as
// possible. For very long texts it returns all lines between the first difference and the last.
func lineDiff(before, after string) (list []changedLine) {
	was, want := ruleLines(before), ruleLines(after)
	for _, line := range want { // a table without addresses in the file keeps its present ones
		if i := slices.IndexFunc(was, func(l string) bool { return strings.HasPrefix(l, line+" {") }); i >= 0 && strings.HasPrefix(line, "table ") {
			was[i] = line
		}
	}
	for len(was) > 0 && len(want) > 0 && was[0] == want[0] {
		was, want = was[1:], want[1:]
	}
	for len(was) > 0 && len(want) > 0 && was[len(was)-1] == want[len(want)-1] {
		was, want = was[:len(was)-1], want[:len(want)-1]
	}
	var same [][]int32 // how many lines can stay, counted from i and from j on
	if len(was)*len(want) <= mostCompared {
		same = make([][]int32, len(was)+1)
		for i := range same {
			same[i] = make([]int32, len(want)+1)
		}
		for i := len(was) - 1; i >= 0; i-- {
			for j := len(want) - 1; j >= 0; j-- {
				if same[i][j] = max(same[i+1][j], same[i][j+1]); was[i] == want[j] {
					same[i][j] = same[i+1][j+1] + 1
				}
			}
		}
	}
	for i, j := 0, 0; i < len(was) || j < len(want); {
		switch {
		case same != nil && i < len(was) && j < len(want) && was[i] == want[j]:
			i, j = i+1, j+1
		case i < len(was) && (j == len(want) || same == nil || same[i+1][j] >= same[i][j+1]):
			list = append(list, changedLine{Delete, was[i]})
			i++
		default:
			list = append(list, changedLine{Add, want[j]})
			j++
		}
	}
	return list
}

// ruleLines returns the lines of rules, without surrounding spaces and without comments.
func ruleLines(text string) (list []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			list = append(list, line)
		}
	}
	return list
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

// where prints the place of an address.
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

// about adds the subject to notes, since one apply handles many bridges.
func about(what string, notes []string) []string {
	list := make([]string, len(notes))
	for i, n := range notes {
		list[i] = what + ": " + n
	}
	return list
}
