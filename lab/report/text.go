// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// WriteJSON writes the report with every sample.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteText writes the report as text for people.
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

// WriteConclusion writes the part after the groups in WriteText: figures, claims, the machine, and
// the legend.
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
	if len(r.Figures) > 0 {
		b.WriteString(intervalNote)
	}
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
const legend = "Every value is the median of its rounds, followed by [least most]. A ratio is taken within\n" +
	"each round, in which all peers had their turn: the report has the median of these ratios,\n" +
	"followed by [least most]. CPU is cores busy in the whole machine, s/Gbit and s/Mframe its\n" +
	"seconds per gigabit of payload and per million frames that arrived.\n"

// intervalNote explains the column 95 %, which only figures have.
const intervalNote = "95 %: where the median lies with that confidence, from 6 rounds on.\n"

// huge is the value from which numbers have an exponent.
const huge = 1e15

// number formats a value with three significant digits, or with all digits before the decimal point
// unless it is huge.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= huge:
		return fmt.Sprintf("%.3g", v)
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

// hundredths formats a value with two decimals, unless it is huge.
func hundredths(v float64) string {
	if math.Abs(v) >= huge {
		return number(v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (s Spread) limits() string {
	return fmt.Sprintf("[%s %s]", number(s.Min), number(s.Max))
}

// nameWidth is the maximum width of a fabric's name, and of a block's title in the same column. The
// table of details has more room.
const (
	nameWidth   = 28
	detailWidth = 40
)

// text prints a table of the group: each case, and its comparison with the first case of the same
// workload. It stays within lineWidth for names of up to nameWidth.
func (g *Group) text(b *strings.Builder) {
	folded(b, "", fmt.Sprintf("%s (%s)", g.About, g.rounds()))
	blocks := g.blocks()
	var t sheet
	// A title that is too long for its column is printed above it.
	header := func(width int, title, short string, cells ...string) {
		if utf8.RuneCountInString(title) > width {
			t.add("  " + title)
			title = short
		}
		t.add(append([]string{"  " + title}, cells...)...)
	}
	columns := known(blocks, costs)
	for _, bl := range blocks {
		against := "-"
		if f := bl.First(); f != nil {
			against = "against " + f.Fabric
			if utf8.RuneCountInString(f.Fabric) > 20 {
				against = "against the first"
			}
		}
		title := bl.Title()
		if len(blocks) == 1 {
			title = join(", ", "fabric", bl.Setup)
		}
		header(nameWidth, title, "fabric", append([]string{bl.Unit, wider, against, wider, "test"}, names(columns)...)...)
		for _, r := range bl.Rows {
			if len(r.Samples) == 0 {
				t.add("  "+r.Fabric, "not measured")
				continue
			}
			ratio, limits := r.Ratio()
			cells := []string{"  " + r.Fabric, number(r.Median), r.limits(), ratio, limits, r.Sign()}
			t.add(append(cells, medians(r.Case, columns)...)...)
		}
	}
	t.write(b)
	// The table has no room for these columns.
	if columns = known(blocks, details); len(columns) > 0 {
		t = nil
		for _, bl := range blocks {
			if bl.First() == nil {
				continue
			}
			title := "of which"
			if len(blocks) > 1 {
				title += ", " + bl.Title()
			}
			header(detailWidth, title, "", names(columns)...)
			for _, r := range bl.Rows {
				if len(r.Samples) > 0 {
					t.add(append([]string{"  " + r.Fabric}, medians(r.Case, columns)...)...)
				}
			}
		}
		t.write(b)
	}
	for _, l := range g.remarks() {
		folded(b, "  ", l)
	}
	b.WriteByte('\n')
}

func (g *Group) rounds() string {
	said := fmt.Sprintf("%d rounds", g.Rounds)
	if g.Rounds == 1 {
		said = "1 round"
	}
	if g.More > 0 {
		said += fmt.Sprintf(", and up to %d more to decide claims", g.More)
	}
	return said
}

// noisy is the load of other programs, in cores, from which a group supports no claim.
const noisy = 0.15

// Noisy reports whether other programs used so much of the machine that the group supports no
// claim.
func (g *Group) Noisy() bool {
	others, steal := g.noise()
	return others >= noisy || steal >= noisy
}

// noise returns the load of other programs, and of other machines on the same hardware, in cores,
// averaged over the group's samples.
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

// oneLine returns the text as one printable line.
func oneLine(s string) string { return printable(strings.Join(strings.Fields(s), " ")) }

// printable returns the text with control characters escaped: a report may come from any source,
// and a terminal interprets them.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// figuresText prints the targets and measurements, below the name of each figure.
func figuresText(b *strings.Builder, figures []Figure) {
	fmt.Fprintln(b, "Figures")
	t := sheet{{"  figure, of", "against", "must", "aim", "measured", wider, "95 %", "reached"}}
	name := ""
	for _, f := range figures {
		if f.Name != name {
			name = f.Name
			t.add("  " + name)
		}
		cells := f.cells()[1:]
		cells[0] = "    " + cells[0]
		t.add(cells...)
	}
	t.write(b)
	b.WriteByte('\n')
}

func (m Machine) text(b *strings.Builder) {
	if !m.known() {
		return
	}
	folded(b, "", "Machine: "+m.facts())
	if said := pairs(m.Mitigations); said != "" {
		folded(b, "", "Mitigations: "+said)
	}
	if said := pairs(m.Versions); said != "" {
		folded(b, "", "Versions: "+said)
	}
}

// cells returns a figure's row in a table.
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
	// A common part of both is printed only once.
	of, ofWorkload, _ := strings.Cut(f.Of, " ")
	against, workload, _ := strings.Cut(f.Against, " ")
	if against != "" && workload != ofWorkload {
		against = workload
	}
	if f.OfLess != "" {
		less, _, _ := strings.Cut(f.OfLess, " ")
		of += " - " + less
	}
	if f.AgainstLess != "" {
		less, _, _ := strings.Cut(f.AgainstLess, " ")
		against += " - " + less
	}
	return []string{f.Name, of, against, asked(f.Must), asked(f.Aim), got, limits, interval, f.Verdict()}
}

// claimsText prints publications with the measurements, source by source.
func claimsText(b *strings.Builder, claims []Claim) {
	widths := []int{42, 35, 19, 16}
	for _, s := range bySource(claims) {
		folded(b, "", join(": ", "Claims", s.Source))
		wrapped(b, widths, "claim", "published", "here", "verdict")
		for _, c := range s.Claims {
			wrapped(b, widths, c.Claim, c.PublishedText(), c.Measured(), c.Says())
			if c.Test != "" {
				folded(b, "    ", "here: "+c.Test)
			}
			if c.Why != "" {
				folded(b, "    ", "why: "+c.Why)
			}
		}
		b.WriteByte('\n')
	}
}
