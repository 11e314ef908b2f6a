// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// WriteMarkdown writes the report as GitHub-flavoured Markdown.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Lab report: %s\n\n%s, %s.\n", plain(r.Profile), r.Started.Format(startedAs), r.took())
	if !r.Complete {
		b.WriteString("**The run was ended early: what is here is what was measured until then.**\n")
	}
	for _, g := range r.Groups {
		g.markdown(&b)
	}
	if len(r.Figures) > 0 {
		b.WriteString("\n## Figures\n\n")
		tableRow(&b, "figure", "of", "against", "must", "aim", "measured", "least, most", "95 %", "reached")
		tableRule(&b, 3, 5)
		b.WriteString("---|\n")
		for _, f := range r.Figures {
			tableRow(&b, f.cells()...)
		}
	}
	if len(r.Claims) > 0 {
		b.WriteString("\n## Claims\n")
		for _, s := range bySource(r.Claims) {
			fmt.Fprintf(&b, "\n### %s\n\n", plain(s.Source))
			tableRow(&b, "claim", "tested here", "published", "here", "verdict", "why")
			tableRule(&b, 6, 0)
			b.WriteString("\n")
			for _, c := range s.Claims {
				tableRow(&b, c.Claim, c.Test, c.PublishedText(), c.Measured(), c.Says(), c.Why)
			}
		}
	}
	if len(r.Fabrics) > 0 {
		b.WriteString("\n## Fabrics\n\n")
		tableRow(&b, "fabric", "devices and switches", "path of a frame", "from the host")
		b.WriteString("|---|---:|---|---|\n")
		for _, f := range r.Fabrics {
			tableRow(&b, f.Name, fmt.Sprint(Devices(f.Path)), hops(f.Path), hops(f.HostPath))
		}
	}
	if r.Machine.known() {
		fmt.Fprintf(&b, "\n## Machine\n\n%s\n", plain(r.Machine.facts()))
	}
	for _, facts := range []struct{ title, text string }{{"Mitigations", pairs(r.Machine.Mitigations)}, {"Versions", pairs(r.Machine.Versions)}} {
		if facts.text != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", facts.title, plain(facts.text))
		}
	}
	fmt.Fprintf(&b, "\n## Method\n\n%s", plainLines(legend))
	if len(r.Figures) > 0 {
		fmt.Fprintf(&b, "\n%s", plainLines(intervalNote))
	}
	if r.compares() {
		fmt.Fprintf(&b, "\n%s", plainLines(signs))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// took returns the duration of the run.
func (r *Report) took() string {
	if !(math.Abs(r.Seconds) < float64(math.MaxInt64/time.Second)) {
		return number(r.Seconds) + " s"
	}
	return (time.Duration(r.Seconds) * time.Second).String()
}

func (g *Group) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s (%s)\n", plain(g.Name), plain(g.About), g.rounds())
	blocks := g.blocks()
	result, detail := known(blocks, costs), known(blocks, details)
	for _, bl := range blocks {
		if len(blocks) > 1 || bl.Setup != "" {
			fmt.Fprintf(b, "\n### %s\n", plain(bl.Title()))
		}
		against := "-"
		if f := bl.First(); f != nil {
			against = "against " + f.Fabric
		}
		b.WriteByte('\n')
		header := []string{"fabric", bl.Unit, "least, most", against, "least, most", "test"}
		tableRow(b, append(append(header, names(result)...), names(detail)...)...)
		tableRule(b, 1, 4)
		b.WriteString("---|" + strings.Repeat("---:|", len(result)+len(detail)) + "\n")
		for _, r := range bl.Rows {
			if len(r.Samples) == 0 {
				tableRow(b, r.Fabric, "not measured")
				continue
			}
			ratio, limits := r.Ratio()
			cells := []string{r.Fabric, number(r.Median), r.limits(), ratio, limits, r.Sign()}
			tableRow(b, append(append(cells, medians(r.Case, result)...), medians(r.Case, detail)...)...)
		}
	}
	for i, l := range g.remarks() {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "- %s\n", plain(l))
	}
}

// tableRow writes one row of a table.
func tableRow(b *strings.Builder, cells ...string) {
	b.WriteByte('|')
	for _, c := range cells {
		fmt.Fprintf(b, " %s |", plain(c))
	}
	b.WriteByte('\n')
}

// tableRule begins the row below the header: columns of text, followed by columns of numbers.
func tableRule(b *strings.Builder, text, numbers int) {
	b.WriteString("|" + strings.Repeat("---|", text) + strings.Repeat("---:|", numbers))
}

// hops prints a path in one line.
func hops(path []Hop) string {
	var names []string
	for _, h := range path {
		names = append(names, h.Name)
	}
	return strings.Join(names, " → ")
}

var markup = strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "&", "&amp;", "[", `\[`, "~", `\~`, "#", `\#`)

// plain returns the text on one line, with markup escaped.
func plain(s string) string { return markup.Replace(oneLine(s)) }

// plainLines is plain with line breaks kept.
func plainLines(s string) string { return markup.Replace(s) }
