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

// shortAction is how many letters of an action a summary has at most.
const shortAction = 60

// Summary says in short what a plan does: its first action, and how many there are besides.
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
			text := transition(name, before[i], after[i], existed)
			if existed && i > 0 && before[i] != "none" && after[i] != "none" {
				text += " (" + listDiff(before[i], after[i]) + ")"
			}
			details = append(details, text)
		}
	}
	return details
}

// listDiff says which VLANs are in one of two lists alone: -40 +41-43.
func listDiff(before, after string) string {
	was, _ := bridge.ParseVLANs(before) // the lists are our own
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

// A changedLine is a line of one of two texts.
type changedLine struct {
	op   Op
	text string
}

// mostCompared is for how many pairs of lines it is searched which are the same.
const mostCompared = 1 << 22

// lineDiff returns the lines that are in one of two texts alone, in their order: as few as can be,
// but of very long texts all between the first and the last that are different.
func lineDiff(before, after string) (list []changedLine) {
	was, want := ruleLines(before), ruleLines(after)
	for _, line := range want { // a table that is given no addresses keeps what it has
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
	var same [][]int32 // of the lines from i and from j on, how many can stay
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

// ruleLines are the lines of rules, without blanks around them, and without comments.
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
