// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
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
	for _, g := range r.Groups {
		if err := g.WriteText(w); err != nil {
			return err
		}
	}
	return r.WriteConclusion(w)
}

// WriteText writes the tables of the group.
func (g *Group) WriteText(w io.Writer) error {
	var b strings.Builder
	g.text(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteConclusion writes what stands below the groups in WriteText: figures,
// claims, the machine, and how to read it all.
func (r *Report) WriteConclusion(w io.Writer) error {
	var b strings.Builder
	if len(r.Figures) > 0 {
		figuresText(&b, r.Figures)
	}
	if len(r.Claims) > 0 {
		claimsText(&b, r.Claims)
	}
	r.Machine.text(&b)
	b.WriteString(legend)
	if r.compares() {
		b.WriteString(signs)
	}
	if !r.Complete {
		fmt.Fprintf(&b, "The run was ended early: what is above is what was measured until then.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// legend explains the tables.
const legend = "Every value is the median of its rounds, [least most] beside it; 95 % is the interval of\n" +
	"the median. Ratios are taken within each round, in which all peers had their turn. CPU is\n" +
	"cores busy in the whole machine, s/Gbit and s/Mframe its seconds for a gigabit of payload and\n" +
	"a million frames that arrived.\n"

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
// first case of the same workload. It stays within 120 columns for names of up
// to 24.
func (g *Group) text(b *strings.Builder) {
	fmt.Fprintf(b, "%s (%s)\n", g.About, g.rounds())
	blocks := g.blocks()
	title := func(bl *block) string {
		if len(blocks) > 1 {
			return bl.Title()
		}
		return join(", ", "fabric", bl.Setup)
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	columns := known(blocks, costs)
	for _, bl := range blocks {
		against := "-"
		if f := bl.First(); f != nil {
			against = "against " + f.Fabric
		}
		fmt.Fprintf(t, "  %s\t%s\t\t%s\t\ttest", title(bl), bl.Unit, against)
		for _, q := range columns {
			fmt.Fprintf(t, "\t%s", q.Name)
		}
		fmt.Fprintln(t)
		for _, r := range bl.Rows {
			if len(r.Samples) == 0 {
				// A row of fewer cells would end the columns of those above it.
				fmt.Fprintf(t, "  %s\tnot measured%s\n", r.Fabric, strings.Repeat("\t", 4+len(columns)))
				continue
			}
			ratio, limits := r.Ratio()
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s", r.Fabric, number(r.Median), r.limits(), ratio, limits, r.Sign())
			cells(t, r.Case, columns)
		}
	}
	t.Flush()
	// What the table has no room for.
	if columns = known(blocks, details); len(columns) > 0 {
		t = tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		for _, bl := range blocks {
			if bl.First() == nil {
				continue
			}
			name := "of which"
			if len(blocks) > 1 {
				name += ", " + bl.Title()
			}
			fmt.Fprintf(t, "  %s", name)
			for _, q := range columns {
				fmt.Fprintf(t, "\t%s", q.Name)
			}
			fmt.Fprintln(t)
			for _, r := range bl.Rows {
				if len(r.Samples) > 0 {
					fmt.Fprintf(t, "  %s", r.Fabric)
					cells(t, r.Case, columns)
				}
			}
		}
		t.Flush()
	}
	for _, l := range g.remarks() {
		fmt.Fprintf(b, "  %s\n", l)
	}
	b.WriteByte('\n')
}

// cells ends a line of a table with the medians of quantities.
func cells(w io.Writer, c *Case, columns []quantity) {
	for _, q := range columns {
		fmt.Fprintf(w, "\t%s", q.cell(c))
	}
	fmt.Fprintln(w)
}

func (g *Group) rounds() string {
	if g.Rounds == 1 {
		return "1 round"
	}
	return fmt.Sprintf("%d rounds", g.Rounds)
}

// noisy is how many cores' worth of foreign work makes a group no ground for a
// claim.
const noisy = 0.15

// Noisy tells whether others took so much of the machine that nothing should
// be claimed of the group.
func (g *Group) Noisy() bool {
	others, steal := g.noise()
	return others >= noisy || steal >= noisy
}

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
		fmt.Fprintf(t, "  %s\n", strings.Join(f.cells(), "\t"))
	}
	t.Flush()
	b.WriteByte('\n')
}

func (m Machine) text(b *strings.Builder) {
	fmt.Fprintf(b, "Machine: %s\n", m.facts())
	if said := pairs(m.Mitigations); said != "" {
		fmt.Fprintf(b, "Mitigations: %s\n", said)
	}
	if said := pairs(m.Versions); said != "" {
		fmt.Fprintf(b, "Versions: %s\n", said)
	}
}

// cells are a figure's row in a table.
func (f Figure) cells() []string {
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
	return []string{f.Name, of, against, asked(f.Must), asked(f.Aim), got, limits, interval, f.Verdict()}
}

// claimsText prints what was published beside what was measured, in columns
// that are wrapped.
func claimsText(b *strings.Builder, claims []Claim) {
	fmt.Fprintln(b, "Claims")
	widths := []int{20, 30, 18, 16, 16}
	wrapped(b, widths, "source", "claim", "published", "here", "verdict")
	for _, c := range claims {
		claim := c.Claim
		if c.Test != "" {
			claim += " [here: " + c.Test + "]"
		}
		wrapped(b, widths, c.Source, claim, c.PublishedText(), c.Measured(), c.Says())
		if c.Why != "" {
			wrapped(b, []int{widths[0], 86}, "", "why: "+c.Why)
		}
	}
	b.WriteByte('\n')
}

// wrapped prints one row of a table, each cell in lines of up to its column's
// width. A longer word gets a line of its own.
func wrapped(b *strings.Builder, widths []int, texts ...string) {
	columns := make([][]string, len(texts))
	height := 0
	for i, text := range texts {
		for word := range strings.FieldsSeq(text) {
			n := len(columns[i])
			if n > 0 && utf8.RuneCountInString(columns[i][n-1])+1+utf8.RuneCountInString(word) <= widths[i] {
				columns[i][n-1] += " " + word
			} else {
				columns[i] = append(columns[i], word)
			}
		}
		height = max(height, len(columns[i]))
	}
	for l := range height {
		line := ""
		for i, lines := range columns {
			cell := ""
			if l < len(lines) {
				cell = lines[l]
			}
			line += "  " + cell + strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
		}
		fmt.Fprintln(b, strings.TrimRight(line, " "))
	}
}
