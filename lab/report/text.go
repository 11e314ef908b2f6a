// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the report with every sample.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, g := range r.Groups {
		g.text(&b)
	}
	if len(r.Figures) > 0 {
		figuresText(&b, r.Figures)
	}
	r.Machine.text(&b)
	fmt.Fprintf(&b, "Every value is the median of its rounds, [least most] beside it; 95 %% is the interval of\n"+
		"the median. Ratios are taken within each round, in which all peers had their turn. CPU is\n"+
		"cores busy in the whole machine.\n")
	if !r.Complete {
		fmt.Fprintf(&b, "The run was ended early: what is above is what was measured until then.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// number prints a value with three significant digits, or all before the
// point.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1 || a == 0:
		return fmt.Sprintf("%.2f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func (s Spread) limits() string {
	return fmt.Sprintf("[%s %s]", number(s.Min), number(s.Max))
}

// text prints a table of the group: each case, and how it compares with the
// first case of the same workload.
func (g *Group) text(b *strings.Builder) {
	rounds := fmt.Sprintf("%d rounds", g.Rounds)
	if g.Rounds == 1 {
		rounds = "1 round"
	}
	fmt.Fprintf(b, "%s (%s)\n", g.About, rounds)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	first := map[string]*Case{}
	for _, c := range g.Cases {
		if first[c.Workload] == nil && len(c.Samples) > 0 {
			first[c.Workload] = c
		}
	}
	several := len(first) > 1
	for i, c := range g.Cases {
		if i == 0 || c.Workload != g.Cases[i-1].Workload {
			against := "-"
			if f := first[c.Workload]; f != nil {
				against = "against " + f.Fabric
			}
			name := "fabric"
			if several {
				name = c.Workload
			}
			fmt.Fprintf(t, "  %s\t%s\t\t%s\t\tCPU\tuser\tsystem\tsoftirq\n", name, c.Unit, against)
		}
		if len(c.Samples) == 0 {
			fmt.Fprintf(t, "  %s\tnot measured\n", c.Fabric)
			continue
		}
		s := SpreadOf(c.Values())
		ratio, limits := "1.00", ""
		if f := first[c.Workload]; f != c {
			r := SpreadOf(Ratios(c, f, ""))
			ratio, limits = number(r.Median), r.limits()
		}
		cpu := func(of func(CPU) float64) string {
			var v []float64
			for _, s := range c.Samples {
				v = append(v, of(s.CPU))
			}
			return fmt.Sprintf("%.2f", SpreadOf(v).Median)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Fabric, number(s.Median), s.limits(), ratio, limits,
			cpu(CPU.Busy), cpu(func(c CPU) float64 { return c.User }),
			cpu(func(c CPU) float64 { return c.System }), cpu(func(c CPU) float64 { return c.Softirq }))
	}
	t.Flush()
	counters := map[string][]string{}
	for _, c := range g.Cases {
		if c.Counter != "" && !slices.Contains(counters[c.Counter], c.Fabric) {
			counters[c.Counter] = append(counters[c.Counter], c.Fabric)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(counters)) {
		fmt.Fprintf(b, "  counted by %s at the receiver: %s\n", at, strings.Join(counters[at], ", "))
	}
	for _, c := range g.Cases {
		var lost []float64
		for _, s := range c.Samples {
			if v, ok := s.Pick(Lost); ok {
				lost = append(lost, v)
			}
		}
		// Less is the raggedness of the counters at both ends of a window.
		if l := SpreadOf(lost); l.Median >= 0.5 {
			fmt.Fprintf(b, "  lost on the way, %s: %s %% %s\n", c.Label, number(l.Median), l.limits())
		}
	}
	if o, st := g.noise(); o >= noisy || st >= noisy {
		fmt.Fprintf(b, "  NOISY: other programs took %.2f cores and the hypervisor %.2f meanwhile: good for no claim\n", o, st)
	}
	told := map[string]bool{}
	for _, c := range g.Cases {
		why := c.Fabric + ": " + oneLine(c.Error)
		if len(c.Samples) > 0 {
			why = fmt.Sprintf("%s: %d rounds gave nothing: %s", c.Label, c.Failed, oneLine(c.Error))
		}
		if c.Error != "" && !told[why] {
			fmt.Fprintf(b, "  %s\n", why)
		}
		told[why] = true
	}
	b.WriteByte('\n')
}

// noisy is how many cores' worth of foreign work makes a group no ground for a
// claim.
const noisy = 0.15

// noise is how many cores others took, on average over the group's samples:
// other programs, and other machines on the same hardware.
func (g *Group) noise() (others, steal float64) {
	n := 0.0
	for _, c := range g.Cases {
		for _, s := range c.Samples {
			others += s.CPU.Others
			steal += s.CPU.Steal
			n++
		}
	}
	if n == 0 {
		return 0, 0
	}
	return others / n, steal / n
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// figuresText prints what is asked of the project and what was measured.
func figuresText(b *strings.Builder, figures []Figure) {
	fmt.Fprintln(b, "Figures")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  figure\tof\tagainst\tmust\taim\tmeasured\t\t95 %%\treached\n")
	for _, f := range figures {
		got, limits, interval := "-", "", ""
		if f.Got != nil {
			got, limits = number(f.Got.Median), f.Got.limits()
			if i := f.Got.Interval; i != nil {
				interval = number(i[0]) + " to " + number(i[1])
			}
		}
		if f.Got != nil && f.Unit != "x" {
			got += " " + f.Unit
		}
		asked := func(v float64) string {
			if v == 0 {
				return "-"
			}
			return fmt.Sprintf("%g", v)
		}
		// One of the two is the same in both: it need not be said twice.
		of, ofWorkload, _ := strings.Cut(f.Of, " ")
		against, workload, _ := strings.Cut(f.Against, " ")
		if against != "" && workload != ofWorkload {
			against = workload
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, of, against, asked(f.Must), asked(f.Aim), got, limits, interval, f.Verdict())
	}
	t.Flush()
	b.WriteByte('\n')
}

func (m Machine) text(b *strings.Builder) {
	virtual := ""
	if m.Hypervisor != "" {
		virtual = ", a virtual machine"
	}
	fmt.Fprintf(b, "Machine: %s, %d cores, %d MiB, Linux %s%s; load before: %.2f; congestion control: %s\n",
		m.CPU, m.Cores, m.MemoryMiB, m.Kernel, virtual, m.Load, m.Congestion)
	var said []string
	for _, k := range slices.Sorted(maps.Keys(m.Mitigations)) {
		said = append(said, k+": "+m.Mitigations[k])
	}
	if len(said) > 0 {
		fmt.Fprintf(b, "Mitigations: %s\n", strings.Join(said, "; "))
	}
	said = nil
	for _, k := range slices.Sorted(maps.Keys(m.Versions)) {
		said = append(said, k+": "+m.Versions[k])
	}
	if len(said) > 0 {
		fmt.Fprintf(b, "Versions: %s\n", strings.Join(said, "; "))
	}
}
