// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"bascule/pattern"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

// page has the values for the template.
type page struct {
	*Report
	Style      template.CSS
	Date       string
	Took       string
	Summary    []fact
	Groups     []section
	Sizes      []table
	Figures    *table
	Sources    []claimed
	Drawings   []fabricDrawing
	Missing    *table
	Facts      []fact
	Quantities []quantity
	Legend     string
	Signs      string // empty if nothing is compared
}

type fact struct{ Name, Text string }

// section is a group.
type section struct {
	ID, Name, Rounds, Took string
	Title, About           string // About is empty if it only repeats the title
	Warning                string
	Parts                  []part
	Remarks                []string // without the warning
}

// claimed has the claims of one source.
type claimed struct {
	source
	ID string
}

// part is a block of a group.
type part struct {
	Title  string // empty if the group has one block
	Charts []titledChart
	Result table
}

// titledChart is a chart with its table.
type titledChart struct {
	chart
	Table *table
}

type table struct {
	Caption string
	Head    []cell
	Rows    []tableLine
}

type tableLine struct {
	Key   template.HTML
	Name  string
	Cells []cell
}

type cell struct {
	Text    string
	Words   bool          // text instead of a number
	Drawing template.HTML // below the text
}

// words makes cells with text.
func words(texts ...string) []cell {
	var out []cell
	for _, t := range texts {
		out = append(out, cell{Text: t, Words: true})
	}
	return out
}

func numbers(texts ...string) []cell {
	var out []cell
	for _, t := range texts {
		out = append(out, cell{Text: t})
	}
	return out
}

type fabricDrawing struct {
	Class, Name, About string
	Key                template.HTML
	Paths              []pathDrawing
}

type pathDrawing struct {
	Title string
	Hops  []Hop
}

// WriteHTML writes the report as one self-contained page: without scripts, and without network
// access.
func (r *Report) WriteHTML(w io.Writer) error {
	p := newPalette(r)
	pg := &page{
		Report: r, Style: template.CSS(pageStyle), Date: r.Started.Format("2 January 2006, 15:04 MST"), Took: r.took(),
		Legend: legend, Quantities: slices.Concat(costs, details), Facts: r.Machine.table(), Summary: r.summary(),
	}
	if r.compares() {
		pg.Signs = signs
	}
	ids := anchors{}
	for _, m := range fixedIDs().FindAllStringSubmatch(pageText, -1) {
		ids[m[1]] = true
	}
	titles := r.titles()
	for i, g := range r.Groups {
		s := g.section(ids.of(g.Name), p, r.Machine.Cores)
		s.Title = titles[i]
		if s.Title == g.About {
			s.About = ""
		}
		pg.Groups = append(pg.Groups, s)
	}
	pg.Sizes = sizes(r, p)
	if len(r.Figures) > 0 {
		t := &table{Caption: "The targets, and the measured medians with their limits.",
			Head: append(append(words("figure", "of", "against"), numbers("must", "aim", "measured", "least, most", "95 %")...), words("reached")...)}
		for _, f := range r.Figures {
			c := f.cells()
			reached := f.Verdict()
			if f.Why != "" {
				reached += ": " + oneLine(f.Why)
			}
			t.Rows = append(t.Rows, tableLine{Name: c[0], Cells: append(append(words(c[1:3]...), numbers(c[3:8]...)...), words(reached)...)})
		}
		pg.Figures = t
	}
	for i, c := range bySource(r.Claims) {
		pg.Sources = append(pg.Sources, claimed{c, ids.of(fmt.Sprintf("claims-%d", i+1))})
	}
	for _, f := range r.Fabrics {
		d := fabricDrawing{Class: p.class(f.Name), Name: f.Name, About: f.About, Key: p.key(f.Name)}
		for _, path := range []struct {
			title string
			hops  []Hop
		}{{"End to end", f.Path}, {"From the host", f.HostPath}} {
			if len(path.hops) > 0 {
				d.Paths = append(d.Paths, pathDrawing{path.title + ": " + count(Devices(path.hops), "device or switch", "devices and switches"), path.hops})
			}
		}
		pg.Drawings = append(pg.Drawings, d)
	}
	pg.Missing = r.missing(p)
	return pageTemplate().Execute(w, pg)
}

// fixedIDs matches the elements with a fixed id in the page.
var fixedIDs = pattern.New(` id="([^"{]+)"`)

// anchors are the ids in use.
type anchors map[string]bool

// of returns an unused id, and marks it as used.
func (a anchors) of(name string) string {
	base := strings.Map(func(c rune) rune {
		if c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("-_.", c) {
			return '-'
		}
		return c
	}, name)
	out := base
	for n := 2; out == "" || a[out]; n++ {
		out = fmt.Sprintf("%s-%d", base, n)
	}
	a[out] = true
	return out
}

// longTitle is the length from which a title is shortened.
const longTitle = 60

// titles returns the titles of the groups' sections: the subject without details, if the subject is
// long and still unique.
func (r *Report) titles() []string {
	out := make([]string, len(r.Groups))
	many := map[string]int{}
	for i, g := range r.Groups {
		out[i] = cmp.Or(g.About, g.Name)
		if utf8.RuneCountInString(out[i]) > longTitle {
			out[i] = aside().Split(out[i], 2)[0]
		}
		many[out[i]]++
	}
	for i, g := range r.Groups {
		if many[out[i]] > 1 {
			out[i] = cmp.Or(g.About, g.Name)
		}
	}
	return out
}

// aside matches the place where details begin: a colon or a parenthesis.
var aside = pattern.New(`: | \(`)

// Class returns a verdict's class in the page's style: "holds", "fails", "open", or "none" without
// a verdict.
func (c Claim) Class() string {
	switch c.verdict() {
	case "holds":
		return "holds"
	case "does not hold":
		return "fails"
	case "not shown":
		return "open"
	}
	return "none"
}

// count formats a number of objects in words.
func count(n int, one, many string) string {
	switch n {
	case 0:
		return "no " + one
	case 1:
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// phrases count the figures or claims with a verdict; good verdicts come first.
var phrases = []struct{ verdict, one, many string }{
	{"aim", "reaches the aim", "reach the aim"},
	{"must", "reaches what it must", "reach what they must"},
	{"below", "is below what it must reach", "are below what they must reach"},
	{"holds", "holds", "hold"},
	{"does not hold", "does not hold", "do not hold"},
	{"not shown", "is not shown", "are not shown"},
	{"cannot be tested", "cannot be tested here", "cannot be tested here"},
	{"not measured", "was not measured", "were not measured"},
}

// summary returns the facts that come before the details.
func (r *Report) summary() []fact {
	measured, skipped, failed, rounds := 0, 0, 0, 0
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			rounds += len(c.Samples)
			switch {
			case len(c.Samples) > 0:
				measured++
			case c.Skipped != "":
				skipped++
			default:
				failed++
			}
		}
	}
	var out []fact
	if r.Machine.known() {
		out = append(out, fact{"Machine", r.Machine.facts()})
	}
	out = append(out, fact{"Measured", fmt.Sprintf("%s in %s, %s in all", count(measured, "case", "cases"), count(len(r.Groups), "group", "groups"), count(rounds, "round", "rounds"))})
	if skipped+failed > 0 {
		out = append(out, fact{"Not measured", fmt.Sprintf("%d skipped, %d failed", skipped, failed)})
	}
	tally := func(name string, verdicts []string) {
		n := map[string]int{}
		for _, v := range verdicts {
			n[v]++
		}
		var said []string
		for _, p := range phrases {
			switch n[p.verdict] {
			case 0:
			case 1:
				said = append(said, "1 "+p.one)
			default:
				said = append(said, fmt.Sprintf("%d %s", n[p.verdict], p.many))
			}
			delete(n, p.verdict)
		}
		for _, v := range slices.Sorted(maps.Keys(n)) {
			said = append(said, fmt.Sprintf("%d: %s", n[v], v))
		}
		if len(said) > 0 {
			out = append(out, fact{name, strings.Join(said, ", ")})
		}
	}
	var figures, claims, noise []string
	for _, f := range r.Figures {
		if v := f.Verdict(); v != "-" {
			figures = append(figures, v)
		}
	}
	for _, c := range r.Claims {
		claims = append(claims, c.verdict())
	}
	tally("Figures", figures)
	tally("Claims", claims)
	for _, g := range r.Groups {
		if g.warning() != "" {
			noise = append(noise, g.Name)
		}
	}
	if len(noise) > 0 {
		out = append(out, fact{"NOISY", "supports no claim: " + strings.Join(noise, ", ")})
	}
	return out
}

func (g *Group) section(id string, p palette, machineCores int) section {
	s := section{ID: id, Name: g.Name, About: g.About, Rounds: g.rounds(), Took: fmt.Sprintf("%.0f\u00a0s", g.Seconds), Warning: g.warning()}
	s.Remarks = slices.DeleteFunc(g.remarks(), func(r string) bool { return r == s.Warning })
	blocks := g.blocks()
	for _, b := range blocks {
		pt := part{Result: results(b, p)}
		if len(blocks) > 1 || b.Setup != "" {
			pt.Title = b.Title()
		}
		pt.Charts = append(pt.Charts, titledChart{chart: bars(b, p)})
		if c, ok := latencies(b, p); ok {
			t := latencyTable(b, p)
			pt.Charts = append(pt.Charts, titledChart{c, &t})
		}
		if c, ok := intervals(b, p); ok {
			pt.Charts = append(pt.Charts, titledChart{chart: c})
		}
		if b.First() != nil {
			t := costTable(b, p)
			pt.Charts = append(pt.Charts, titledChart{cores(b, p, machineCores), &t})
		}
		s.Parts = append(s.Parts, pt)
	}
	return s
}

func results(b *block, p palette) table {
	against := "ratio"
	if f := b.First(); f != nil {
		against = "against " + f.Fabric
	}
	t := table{Caption: "Results, and the test of each against the first.",
		Head: append(append(words("fabric"), numbers(b.Unit, "least, most", "95 %", against, "least, most", "p")...), words("test")...)}
	for _, r := range b.Rows {
		line := tableLine{Key: p.key(r.Fabric), Name: r.Fabric}
		if r.N == 0 {
			line.Cells = words("not measured", "", "", "", "", "", "")
		} else {
			interval, chance := "", ""
			if i := r.Interval; i != nil {
				interval = number(i[0]) + " to " + number(i[1])
			}
			if r.Against != nil {
				chance = number(r.Against.P)
				if r.Against.P < 0.001 {
					chance = "< 0.001"
				}
			}
			ratio, limits := r.Ratio()
			line.Cells = append(numbers(number(r.Median), r.limits(), interval, ratio, limits, chance), words(r.Sign())...)
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

func costTable(b *block, p palette) table {
	columns := known([]*block{b}, slices.Concat(costs, details))
	t := table{Head: words("fabric")}
	for _, q := range columns {
		t.Head = append(t.Head, cell{Text: q.Name})
	}
	t.Caption = "The costs, as medians of the rounds; Method explains the columns."
	for _, r := range b.Rows {
		if r.N == 0 {
			continue
		}
		line := tableLine{Key: p.key(r.Fabric), Name: r.Fabric}
		for _, q := range columns {
			line.Cells = append(line.Cells, cell{Text: q.cell(r.Case)})
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

func latencyTable(b *block, p palette) table {
	t := table{Caption: "Percentiles in µs, the medians of the rounds.", Head: words("fabric")}
	all := percentiles(b)
	for _, pc := range all {
		t.Head = append(t.Head, cell{Text: pc.title()})
	}
	for _, r := range b.Rows {
		if r.N == 0 {
			continue
		}
		line := tableLine{Key: p.key(r.Fabric), Name: r.Fabric}
		for _, pc := range all {
			line.Cells = append(line.Cells, cell{Text: number(pc.of(r.Case))})
		}
		t.Rows = append(t.Rows, line)
	}
	return t
}

// frameSize returns the size of a workload's frames; ok is false for workloads without frames. kind
// is the rest of its name.
func frameSize(workload string) (size, kind string, ok bool) {
	name, options, _ := strings.Cut(workload, ":")
	if name != "pps" {
		return "", "", false
	}
	size = "64"
	var rest []string
	for o := range strings.SplitSeq(options, ",") {
		if s, ok := strings.CutPrefix(o, "size="); ok {
			size = s
		} else if o != "" {
			rest = append(rest, o)
		}
	}
	return size, strings.Join(rest, ", "), true
}

// sizes returns a table for each kind of frames with several sizes: a bar for each fabric and size.
func sizes(r *Report, p palette) []table {
	type series struct {
		title, unit string
		fabrics     []string
		sizes       []string
		of          map[[2]string]Spread // by fabric and size
	}
	var all []*series
	for _, g := range r.Groups {
		for _, b := range g.blocks() {
			size, kind, ok := frameSize(b.Workload)
			if !ok {
				continue
			}
			title := join(", ", "Frames", kind, b.Setup)
			i := slices.IndexFunc(all, func(s *series) bool { return s.title == title })
			if i < 0 {
				i = len(all)
				all = append(all, &series{title: title, unit: b.Unit, of: map[[2]string]Spread{}})
			}
			s := all[i]
			for _, row := range b.Rows {
				at := [2]string{row.Fabric, size}
				if _, known := s.of[at]; row.N == 0 || known {
					continue
				}
				s.of[at] = row.Spread
				if !slices.Contains(s.fabrics, row.Fabric) {
					s.fabrics = append(s.fabrics, row.Fabric)
				}
				if !slices.Contains(s.sizes, size) {
					s.sizes = append(s.sizes, size)
				}
			}
		}
	}
	var out []table
	for _, s := range all {
		if len(s.sizes) < 2 {
			continue
		}
		// Mixes of sizes come last.
		slices.SortStableFunc(s.sizes, func(a, b string) int {
			order := func(s string) float64 {
				if v, err := strconv.ParseFloat(s, 64); err == nil {
					return v
				}
				return math.Inf(1)
			}
			return int(min(max(order(a)-order(b), -1), 1))
		})
		most := 0.0
		for _, v := range s.of {
			most = max(most, v.Median)
		}
		t := table{Head: words("fabric"),
			Caption: fmt.Sprintf("%s: %s by size in bytes, the medians of the rounds. All bars have one scale, from 0 to %s.", s.title, s.unit, number(most))}
		for _, size := range s.sizes {
			t.Head = append(t.Head, cell{Text: size, Words: true})
		}
		for _, f := range s.fabrics {
			line := tableLine{Key: p.key(f), Name: f}
			for _, size := range s.sizes {
				v, ok := s.of[[2]string{f, size}]
				if !ok {
					line.Cells = append(line.Cells, words("-")...)
					continue
				}
				d := &drawing{}
				d.add(`<svg class="%s" role="img" width="100%%" height="9"><title>%s</title>`, p.class(f),
					template.HTMLEscapeString(fmt.Sprintf("%s, %s bytes: %s %s", f, size, number(v.Median), s.unit)))
				width := 0.0
				if most > 0 {
					width = v.Median / most
				}
				p.bar(d, f, share(width), 0, 9)
				line.Cells = append(line.Cells, cell{Text: number(v.Median), Words: true, Drawing: d.html()})
			}
			t.Rows = append(t.Rows, line)
		}
		out = append(out, t)
	}
	return out
}

// missing lists the cases without results, by fabric and reason; nil if there are none.
func (r *Report) missing(p palette) *table {
	t := &table{Caption: "Cases without a result.", Head: words("fabric", "what", "why", "cases")}
	seen := map[[3]string]int{}
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			if len(c.Samples) > 0 {
				continue
			}
			how, why := "skipped", c.Skipped
			if why == "" {
				how, why = "failed", c.Error
			}
			if why == "" {
				why = "the run was ended before"
				how = "not begun"
			}
			name := join(" ", c.Workload, c.Setup)
			at := [3]string{c.Fabric, how, oneLine(why)}
			i, ok := seen[at]
			if !ok {
				i = len(t.Rows)
				seen[at] = i
				t.Rows = append(t.Rows, tableLine{Key: p.key(c.Fabric), Name: c.Fabric, Cells: words(how, at[2], "")})
			}
			list := &t.Rows[i].Cells[2]
			list.Text = join(", ", list.Text, name)
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}
