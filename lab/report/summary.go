// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// WriteSummary writes the medians of the report as Markdown, without samples: a row for each fabric, and
// a column for each workload of the group. Medians have four digits, so that figures with three can be
// compared with them.
func (r *Report) WriteSummary(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Summary: %s\n\n%s, %s. Medians, with the least and the most of their rounds.\n", plain(r.Profile), r.Started.Format(startedAs), r.took())
	if !r.Complete {
		b.WriteString("**The run was ended early: what is here is what was measured until then.**\n")
	}
	if r.Machine.known() {
		fmt.Fprintf(&b, "%s\n", plain(r.Machine.facts()))
	}
	if len(r.Figures) > 0 {
		b.WriteString("\n## Figures\n\n")
		tableRow(&b, "figure", "of", "against", "target", "measured", "95 %")
		tableRule(&b, 3, 3)
		b.WriteByte('\n')
		for _, f := range r.Figures {
			target, got, interval := "", "-", ""
			if f.Must != 0 {
				target = fmt.Sprint(f.Must)
			}
			if f.Got != nil {
				got, interval = fine(f.Got.Median), f.Got.interval()
			}
			tableRow(&b, f.Name, f.Of, f.Against, target, got, interval)
		}
	}
	if len(r.Claims) > 0 {
		b.WriteString("\n## Claims\n")
		for _, s := range bySource(r.Claims) {
			fmt.Fprintf(&b, "\n### %s\n\n", plain(s.Source))
			tableRow(&b, "claim", "published", "here", "95 %", "rounds", "by", "verdict")
			tableRule(&b, 1, 4)
			b.WriteString("---|---|\n")
			for _, c := range s.Claims {
				published, here, interval, rounds, by := "", "", "", "", ""
				if c.Ratio != 0 {
					published = fine(c.Ratio)
				}
				if c.Here != nil {
					here, interval, rounds, by = fine(c.Here.Median), c.Here.interval(), fmt.Sprint(c.Here.N), "the clock"
				}
				if c.Here != nil && c.Inside != "" {
					by = "instructions"
				}
				tableRow(&b, c.Claim, published, here, interval, rounds, by, c.verdict())
				if c.Counted != nil {
					tableRow(&b, "the same", "", fine(c.Counted.Median), c.Counted.interval(), fmt.Sprint(c.Counted.N), "instructions", c.CountedVerdict)
				}
			}
		}
	}
	for _, g := range r.Groups {
		g.summary(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// startedAs is the format of the start time of a run.
const startedAs = "2006-01-02 15:04 MST"

// summary writes the medians of a group.
func (g *Group) summary(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s: %s (%s)\n\n", plain(g.Name), plain(g.About), g.rounds())
	blocks := g.blocks()
	header := []string{"fabric"}
	var rows []string
	for _, bl := range blocks {
		header = append(header, bl.Title()+": "+bl.Unit)
		for _, r := range bl.Rows {
			if !slices.Contains(rows, r.Fabric) {
				rows = append(rows, r.Fabric)
			}
		}
	}
	tableRow(b, header...)
	tableRule(b, 1, len(blocks))
	b.WriteByte('\n')
	for _, name := range rows {
		cells := []string{name}
		for _, bl := range blocks {
			cell := ""
			if i := slices.IndexFunc(bl.Rows, func(r row) bool { return r.Fabric == name }); i >= 0 {
				cell = "-"
				if s := bl.Rows[i].Spread; !math.IsNaN(s.Median) {
					cell = fine(s.Median) + " " + s.limits()
				}
			}
			cells = append(cells, cell)
		}
		tableRow(b, cells...)
	}
	if text := g.warning(); text != "" {
		fmt.Fprintf(b, "\n%s\n", plain(text))
	}
}

// interval formats the interval of the median; it is empty for too few rounds.
func (s Spread) interval() string {
	if s.Interval == nil {
		return ""
	}
	return fine(s.Interval[0]) + " to " + fine(s.Interval[1])
}

// fine prints a value with one digit more than number.
func fine(v float64) string {
	if a := math.Abs(v); a >= 1000 && a < huge {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%#.4g", v)
}
