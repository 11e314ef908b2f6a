// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Change is a case that is in both reports.
type Change struct {
	Group string `json:"group"`
	Label string `json:"label"`
	Unit  string `json:"unit"`
	Lower bool   `json:"lower_is_better,omitempty"`
	Old   Spread `json:"old"`
	New   Spread `json:"new"`
	// Ratio is the ratio of the medians, new to old: rounds of two runs cannot be paired. It is
	// 0 if the old median is 0, or too small to divide by.
	Ratio float64 `json:"ratio,omitempty"`
	P     float64 `json:"p"`
	Word  string  `json:"word"` // as in Comparison
}

// Changes are the differences between two runs.
type Changes struct {
	// Warnings are other differences, which may cause a change.
	Warnings []string `json:"warnings,omitempty"`
	Changes  []Change `json:"changes"`
	// OnlyOld and OnlyNew are the cases, as "group: label", that only one of the reports has
	// measured.
	OnlyOld []string `json:"only_old,omitempty"`
	OnlyNew []string `json:"only_new,omitempty"`
}

// Compare compares the cases of a report with the cases of an older one that have the same group
// and label.
func Compare(old, new *Report) *Changes {
	out := &Changes{Warnings: warnings(old, new), Changes: []Change{}}
	for _, g := range new.Groups {
		for _, n := range g.Cases {
			name := g.Name + ": " + n.Label
			before, o := old.measured(g.Name, n.Label)
			switch {
			case len(n.Samples) == 0:
				continue
			case o == nil:
				out.OnlyNew = append(out.OnlyNew, name)
				continue
			case o.Unit != n.Unit || o.Lower != n.Lower:
				out.Warnings = append(out.Warnings, fmt.Sprintf("%s is not compared: it was in %s and is in %s", name, o.Unit, n.Unit))
				continue
			}
			c := Change{Group: g.Name, Label: n.Label, Unit: n.Unit, Lower: n.Lower, Old: SpreadOf(o.Values()), New: SpreadOf(n.Values())}
			if ratio := c.New.Median / c.Old.Median; c.Old.Median != 0 && !math.IsInf(ratio, 0) {
				c.Ratio = ratio
			}
			c.P = MannWhitney(n.Values(), o.Values())
			c.Word = word(n.Values(), o.Values(), c.P, c.Unit, c.Lower)
			if (before.Noisy() || g.Noisy()) && c.Word != TooFew {
				c.Word = TooNoisy
			}
			out.Changes = append(out.Changes, c)
		}
	}
	for _, g := range old.Groups {
		for _, o := range g.Cases {
			if len(o.Samples) == 0 {
				continue
			}
			if _, n := new.measured(g.Name, o.Label); n == nil {
				out.OnlyOld = append(out.OnlyOld, g.Name+": "+o.Label)
			}
		}
	}
	return out
}

// measured returns a case with samples, and its group.
func (r *Report) measured(group, label string) (*Group, *Case) {
	for _, g := range r.Groups {
		if g.Name == group {
			if c := g.Case(label); c != nil && len(c.Samples) > 0 {
				return g, c
			}
		}
	}
	return nil, nil
}

// warnings returns facts that make two runs less comparable.
func warnings(old, new *Report) []string {
	var out []string
	differ := func(what string, a, b any) {
		if a != b {
			out = append(out, fmt.Sprintf("the %s differs: %v, now %v", what, a, b))
		}
	}
	o, n := old.Machine, new.Machine
	differ("CPU", o.CPU, n.CPU)
	differ("number of cores", o.Cores, n.Cores)
	differ("memory in MiB", o.MemoryMiB, n.MemoryMiB)
	differ("kernel", o.Kernel, n.Kernel)
	differ("congestion control", o.Congestion, n.Congestion)
	differ("set of mitigations", pairs(o.Mitigations), pairs(n.Mitigations))
	if o.Guests != "" && n.Guests != "" {
		differ("hypervisor of the guests", o.Guests, n.Guests)
	}
	versions := map[string]bool{}
	for _, of := range []map[string]string{o.Versions, n.Versions} {
		for name := range of {
			versions[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		differ("version of "+name, cmp.Or(o.Versions[name], "not known"), cmp.Or(n.Versions[name], "not known"))
	}
	for _, g := range new.Groups {
		if i := slices.IndexFunc(old.Groups, func(o *Group) bool { return o.Name == g.Name }); i >= 0 {
			differ("number of rounds of group "+g.Name, old.Groups[i].Rounds, g.Rounds)
		}
	}
	for _, r := range []struct {
		which string
		of    *Report
	}{{"old", old}, {"new", new}} {
		if !r.of.Complete {
			out = append(out, fmt.Sprintf("the %s report is not complete: its run was ended early", r.which))
		}
		for _, g := range r.of.Groups {
			if g.warning() != "" {
				out = append(out, fmt.Sprintf("group %s of the %s report is NOISY", g.Name, r.which))
			}
		}
	}
	return out
}

// WriteText writes the changes for people.
func (c *Changes) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, text := range c.Warnings {
		fmt.Fprintf(&b, "WARNING: %s\n", printable(text))
	}
	var t sheet
	group := ""
	for _, ch := range c.Changes {
		if ch.Group != group {
			t.add(ch.Group, "unit", "old", wider, "new", wider, "ratio", "p", "test")
			group = ch.Group
		}
		ratio := "-"
		if ch.Ratio != 0 {
			ratio = number(ch.Ratio)
		}
		t.add("  "+ch.Label, ch.Unit, number(ch.Old.Median), ch.Old.limits(), number(ch.New.Median), ch.New.limits(), ratio, number(ch.P), sign(ch.Word))
	}
	t.write(&b)
	if len(c.Changes) == 0 {
		b.WriteString("No case was measured in both reports.\n")
	}
	for _, side := range []struct {
		title string
		names []string
	}{{"Only in the old report", c.OnlyOld}, {"Only in the new report", c.OnlyNew}} {
		if len(side.names) > 0 {
			fmt.Fprintf(&b, "%s:\n", side.title)
			for _, name := range side.names {
				fmt.Fprintf(&b, "  %s\n", printable(name))
			}
		}
	}
	if len(c.Changes) > 0 {
		b.WriteString("Every value is the median of its rounds, followed by [least most]; the ratio compares the medians, new to\n" +
			"old. The two runs were not interleaved, so a difference between them does not show its cause.\n" + signs)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
