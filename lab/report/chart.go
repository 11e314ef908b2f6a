// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is a column of rows with text and a drawing. Each row has its own drawing, so that its text
// is part of the page, which wraps and never cuts it, and so that the drawing fills the width.
type chart struct {
	Caption string
	Legend  []mark
	Rows    []chartRow
	Axis    template.HTML // below the rows; empty for none
}

// mark is a symbol in the drawings, with its meaning.
type mark struct {
	Sign template.HTML
	Text string
}

type chartRow struct {
	Class   string // of the fabric's colour
	Name    string
	Drawing template.HTML
	Value   string
}

// drawing builds an SVG. Horizontal positions are fractions of the width, vertical ones are pixels.
// Colours are classes of the page's style.
type drawing struct{ strings.Builder }

// newDrawing begins a drawing; title describes it in words.
func newDrawing(height int, title string) *drawing {
	d := &drawing{}
	d.add(`<svg role="img" width="100%%" height="%d"><title>%s</title>`, height, template.HTMLEscapeString(title))
	return d
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format, args...) }

func (d *drawing) html() template.HTML { return template.HTML(d.String() + "</svg>") }

// share formats a position or a width for SVG.
func share(v float64) string {
	return strconv.FormatFloat(100*min(max(v, 0), 1), 'f', 2, 64) + "%"
}

// colours and hatches are the numbers of colours and hatches in the page's style.
const colours, hatches = 8, 6

// palette assigns each fabric of a report a colour, and a hatch if there are more fabrics than
// colours.
type palette map[string]int

func newPalette(r *Report) palette {
	p := palette{}
	take := func(name string) {
		if _, ok := p[name]; !ok {
			p[name] = len(p)
		}
	}
	for _, f := range r.Fabrics {
		take(f.Name)
	}
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			take(c.Fabric)
		}
	}
	return p
}

// class returns the class of a fabric's colour.
func (p palette) class(fabric string) string { return fmt.Sprintf("f%d", p[fabric]%colours) }

// bar draws a bar from the left in a fabric's colour and hatch.
func (p palette) bar(d *drawing, fabric, width string, y, height int) {
	d.add(`<rect class="bar" y="%d" width="%s" height="%d"/>`, y, width, height)
	if h := p[fabric] / colours % hatches; h > 0 {
		d.add(`<rect fill="url(#hatch%d)" y="%d" width="%s" height="%d"/>`, h, y, width, height)
	}
}

// key returns a fabric's colour with its name.
func (p palette) key(fabric string) template.HTML {
	d := &drawing{}
	d.add(`<svg class="key %s" width="11" height="11" viewBox="0 0 11 11" aria-hidden="true">`, p.class(fabric))
	p.bar(d, fabric, "11", 0, 11)
	return d.html()
}

// scale is a linear axis from 0.
type scale struct {
	max   float64
	ticks []float64
}

// scaleTo returns a scale with round numbers that includes the greatest value.
func scaleTo(most float64) scale {
	// Below this, the ticks would not be numbers.
	if !(most > 1e-300) {
		most = 1
	}
	most = min(most, 1e300)
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, s := range []float64{0.2, 0.25, 0.5, 1, 2, 2.5, 5} {
		if most/(step*s) <= 5 {
			step *= s
			break
		}
	}
	out := scale{}
	for i := 0; out.max < most*(1-1e-9); i++ {
		out.max = float64(i+1) * step
	}
	for i := 0; float64(i)*step <= out.max*(1+1e-9); i++ {
		out.ticks = append(out.ticks, float64(i)*step)
	}
	return out
}

func (s scale) at(v float64) float64 { return v / s.max }

// grid draws the ticks through a row.
func grid(d *drawing, at []float64) {
	for _, x := range at {
		d.add(`<line class="grid" x1="%s" x2="%[1]s" y1="0" y2="100%%"/>`, share(x))
	}
}

// axis draws the values of the ticks. The outermost values stay within the drawing.
func axis(at []float64, texts []string) template.HTML {
	d := &drawing{}
	d.add(`<svg width="100%%" height="16" aria-hidden="true">`)
	for i, x := range at {
		anchor := "middle"
		switch {
		case x < 0.02:
			anchor = "start"
		case x > 0.98:
			anchor = "end"
		}
		d.add(`<text class="tick" x="%s" y="12" text-anchor="%s">%s</text>`, share(x), anchor, template.HTMLEscapeString(texts[i]))
	}
	return d.html()
}

func (s scale) places() (at []float64, texts []string) {
	for _, t := range s.ticks {
		at = append(at, s.at(t))
		texts = append(texts, strconv.FormatFloat(t, 'g', 6, 64))
	}
	return at, texts
}

// direction returns words for the better direction of values.
func direction(lower bool) string {
	if lower {
		return "less is better"
	}
	return "more is better"
}

// bars draws the median of each case, and the range of its rounds.
func bars(b *block, p palette) chart {
	most := 0.0
	for _, r := range b.Rows {
		if r.N > 0 {
			most = max(most, r.Max)
		}
	}
	s := scaleTo(most)
	at, texts := s.places()
	out := chart{
		Caption: fmt.Sprintf("%s: %s, %s.", b.Title(), b.Unit, direction(b.Rows[0].Lower)),
		Legend: []mark{
			{`<svg width="26" height="12" aria-hidden="true"><rect class="plain" width="26" y="1" height="10"/></svg>`, "median"},
			{`<svg width="26" height="12" aria-hidden="true"><path class="range" d="M1 6H25M1 2V10M25 2V10"/></svg>`, "least to most"},
			{`<svg width="26" height="12" aria-hidden="true"><path class="interval" d="M2 6H24"/></svg>`, "95 % interval of the median (from 6 rounds)"},
			{`<svg width="26" height="12" aria-hidden="true"><circle class="dot" cx="6" cy="6" r="2"/><circle class="dot" cx="13" cy="6" r="2"/><circle class="dot" cx="21" cy="6" r="2"/></svg>`, "the rounds"},
		},
		Axis: axis(at, texts),
	}
	for _, r := range b.Rows {
		if r.N == 0 {
			d := newDrawing(28, r.Fabric+": not measured")
			grid(d, at)
			out.Rows = append(out.Rows, chartRow{p.class(r.Fabric), r.Fabric, d.html(), "not measured"})
			continue
		}
		title := fmt.Sprintf("%s: median %s %s, least %s, most %s", r.Fabric, number(r.Median), r.Unit, number(r.Min), number(r.Max))
		if i := r.Interval; i != nil {
			title += fmt.Sprintf(", 95 %% interval %s to %s", number(i[0]), number(i[1]))
		}
		d := newDrawing(28, fmt.Sprintf("%s; rounds: %d", title, r.N))
		grid(d, at)
		p.bar(d, r.Fabric, share(s.at(r.Median)), 5, 14)
		lo, hi := share(s.at(r.Min)), share(s.at(r.Max))
		if i := r.Interval; i != nil {
			for _, class := range []string{"halo", "interval"} {
				d.add(`<line class="%s" x1="%s" x2="%s" y1="12" y2="12"/>`, class, share(s.at(i[0])), share(s.at(i[1])))
			}
		}
		d.add(`<line class="range" x1="%s" x2="%s" y1="12" y2="12"/>`, lo, hi)
		d.add(`<line class="range" x1="%s" x2="%[1]s" y1="8" y2="16"/><line class="range" x1="%s" x2="%[2]s" y1="8" y2="16"/>`, lo, hi)
		for _, v := range r.Values() {
			d.add(`<circle class="dot" cx="%s" cy="24" r="2"/>`, share(s.at(v)))
		}
		out.Rows = append(out.Rows, chartRow{p.class(r.Fabric), r.Fabric, d.html(), number(r.Median) + " " + r.Unit})
	}
	return out
}

// intervals draws the value over time within the rounds; ok is false if no case has it.
func intervals(b *block, p palette) (out chart, ok bool) {
	most := 0.0
	for _, r := range b.Rows {
		for _, s := range r.Samples {
			if len(s.Intervals) > 0 {
				most = max(most, slices.Max(s.Intervals))
			}
		}
	}
	if most <= 0 {
		return out, false
	}
	s := scaleTo(most)
	out.Caption = fmt.Sprintf("%s over time: each step is a part of a round, in %s; all rounds one after the other, from 0 at the bottom to %s at the top.",
		b.Title(), b.Unit, number(s.max))
	for _, r := range b.Rows {
		var all []float64
		for _, smp := range r.Samples {
			all = append(all, smp.Intervals...)
		}
		if len(all) == 0 {
			continue
		}
		least, greatest := number(slices.Min(all)), number(slices.Max(all))
		d := &drawing{}
		d.add(`<svg role="img" width="100%%" height="38" viewBox="0 0 1000 100" preserveAspectRatio="none"><title>%s</title>`,
			template.HTMLEscapeString(fmt.Sprintf("%s: parts of %d rounds, from %s to %s %s", r.Fabric, len(r.Samples), least, greatest, r.Unit)))
		d.add(`<path class="grid" d="M0 98H1000M0 50H1000M0 2H1000"/>`)
		round := 1000 / float64(len(r.Samples))
		for i, smp := range r.Samples {
			x := float64(i) * round
			if i > 0 {
				d.add(`<path class="grid" d="M%.1f 2V98"/>`, x)
			}
			// A small gap marks the end of a round.
			part := 0.94 * round / float64(max(1, len(smp.Intervals)))
			for k, v := range smp.Intervals {
				y := 98 - 96*min(max(s.at(v), 0), 1)
				if k == 0 {
					d.add(`<path class="line" d="M%.1f %.1f`, x+0.03*round, y)
				} else {
					d.add(`V%.1f`, y)
				}
				d.add(`H%.1f`, x+0.03*round+float64(k+1)*part)
			}
			if len(smp.Intervals) > 0 {
				d.add(`"/>`)
			}
		}
		out.Rows = append(out.Rows, chartRow{p.class(r.Fabric), r.Fabric, d.html(), least + " to " + greatest})
	}
	return out, true
}

// states are the kinds of work of a core, in drawing order.
var states = []struct {
	class, text string
	of          func(CPU) float64
}{
	{"user", "user: programs", func(c CPU) float64 { return c.User }},
	{"system", "system: the kernel for programs", func(c CPU) float64 { return c.System }},
	{"softirq", "softirq: the kernel for packets and timers", func(c CPU) float64 { return c.Softirq }},
	{"steal", "steal: the hypervisor for others", func(c CPU) float64 { return c.Steal }},
	{"idle", "idle", func(c CPU) float64 { return c.Idle }},
}

// stateRect draws a part of a bar; classes have a texture in addition to a colour.
func stateRect(d *drawing, class, x, width string, y, height int) {
	d.add(`<rect class="%s" x="%s" y="%d" width="%s" height="%d"/>`, class, x, y, width, height)
	if class == "softirq" || class == "steal" {
		d.add(`<rect fill="url(#%s)" x="%s" y="%d" width="%s" height="%d"/>`, class, x, y, width, height)
	}
}

// cores draws the work of the cores, core by core if the samples have it. of is the number of cores
// in the machine.
func cores(b *block, p palette, of int) chart {
	out := chart{Caption: fmt.Sprintf("%s: what the cores did, the mean of all rounds.", b.Title())}
	each := false
	for _, r := range b.Rows {
		if len(r.Samples) == 0 {
			continue
		}
		all, single := meanCPU(r.Samples)
		bars, width := single, 1.0
		if len(bars) == 0 {
			bars, width = []CPU{all}, float64(max(1, of))
		} else {
			each = true
		}
		height := min(max(96/len(bars), 3), 10)
		words := fmt.Sprintf("%s cores busy: user %s, system %s, softirq %s", hundredths(all.Busy()), hundredths(all.User), hundredths(all.System), hundredths(all.Softirq))
		if len(single) > 0 {
			words += "; busy core by core:"
			for _, c := range single {
				words += fmt.Sprintf(" %.0f %%", 100*c.Busy())
			}
		}
		d := newDrawing(len(bars)*height+8, r.Fabric+": "+words)
		for i, c := range bars {
			y, x := 4+i*height, 0.0
			for _, s := range states {
				if part := s.of(c) / width; part > 0.0005 {
					stateRect(d, s.class, share(x), share(min(part, 1-x)), y, height-1)
					x = min(1, x+part)
				}
			}
		}
		out.Rows = append(out.Rows, chartRow{p.class(r.Fabric), r.Fabric, d.html(), "mean " + hundredths(all.Busy()) + " busy"})
	}
	if each {
		out.Caption += " A bar is a core, the first one at the top."
	} else if of > 0 {
		out.Caption += fmt.Sprintf(" A bar is all %d cores together.", of)
	}
	for _, s := range states {
		d := &drawing{}
		d.add(`<svg width="26" height="12" aria-hidden="true">`)
		stateRect(d, s.class, "0", "26", 1, 10)
		out.Legend = append(out.Legend, mark{d.html(), s.text})
	}
	return out
}

// meanCPU returns the mean work of the machine and of each core in the samples. Means add up to
// whole cores, but medians do not.
func meanCPU(samples []Sample) (all CPU, single []CPU) {
	add := func(to *CPU, c CPU, part float64) {
		to.User += c.User / part
		to.System += c.System / part
		to.Softirq += c.Softirq / part
		to.Idle += c.Idle / part
		to.Steal += c.Steal / part
		to.Others += c.Others / part
	}
	told := 0.0
	for _, s := range samples {
		if len(s.Cores) > 0 {
			told++
		}
	}
	for _, s := range samples {
		add(&all, s.CPU, float64(len(samples)))
		for i, c := range s.Cores {
			if i == len(single) {
				single = append(single, CPU{})
			}
			add(&single[i], c, told)
		}
	}
	return all, single
}

// percentile is a name in Sample.More: "p99.9_us".
type percentile struct {
	name string
	rank float64
}

// percentiles returns the percentiles in the samples of the block, in order.
func percentiles(b *block) []percentile {
	var out []percentile
	for _, r := range b.Rows {
		for _, s := range r.Samples {
			for name := range s.More {
				text, ok := strings.CutSuffix(name, "_us")
				rank, err := strconv.ParseFloat(strings.TrimPrefix(text, "p"), 64)
				if ok && err == nil && strings.HasPrefix(text, "p") && !slices.Contains(out, percentile{name, rank}) {
					out = append(out, percentile{name, rank})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b percentile) int { return cmp.Compare(a.rank, b.rank) })
	return out
}

// of returns the median of the case's percentiles; NaN if it has none.
func (p percentile) of(c *Case) float64 {
	return quantity{of: func(s Sample) (float64, bool) { return s.Pick(p.name) }}.median(c)
}

func (p percentile) title() string { return fmt.Sprintf("p%v", p.rank) }

// shapes are the symbols of percentiles in the drawing, which differ not only in colour. Other
// percentiles are only in the table.
var shapes = []struct {
	rank float64
	path string
}{
	{50, "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z"},
	{90, "M-4 -4H4V4H-4Z"},
	{99, "M-5 4L0 -5L5 4Z"},
	{99.9, "M-5 0L0 -6L5 0L0 6Z"},
}

// latencies draws percentiles on a logarithmic axis; ok is false if the block has none.
func latencies(b *block, p palette) (out chart, ok bool) {
	type point struct {
		percentile
		path string
	}
	var points []point
	for _, pc := range percentiles(b) {
		for _, s := range shapes {
			if s.rank == pc.rank {
				points = append(points, point{pc, s.path})
			}
		}
	}
	least, most := math.Inf(1), 0.0
	for _, r := range b.Rows {
		for _, pt := range points {
			if v := pt.of(r.Case); v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		return out, false
	}
	from, to := math.Floor(math.Log10(least)), math.Ceil(math.Log10(most)+1e-9)
	place := func(v float64) float64 { return (math.Log10(v) - from) / (to - from) }
	var at []float64
	var texts []string
	for e := from; e <= to; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); m == 1 || to-from <= 2 && e < to {
				at, texts = append(at, place(v)), append(texts, strconv.FormatFloat(v, 'g', 6, 64))
			}
		}
	}
	out.Caption = fmt.Sprintf("%s: percentiles in µs, the median of the rounds, on a logarithmic axis, less is better.", b.Title())
	out.Axis = axis(at, texts)
	for _, pt := range points {
		out.Legend = append(out.Legend, mark{template.HTML(fmt.Sprintf(
			`<svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true"><path class="plain" d="%s"/></svg>`, pt.path)), pt.title()})
	}
	for _, r := range b.Rows {
		var words []string
		d := &drawing{}
		first, last := math.Inf(1), 0.0
		for _, pt := range points {
			if v := pt.of(r.Case); v > 0 {
				words = append(words, pt.title()+" "+number(v))
				first, last = min(first, v), max(last, v)
				d.add(`<svg x="%s" y="13" overflow="visible"><path class="bar" d="%s"/></svg>`, share(place(v)), pt.path)
			}
		}
		if len(words) == 0 {
			continue
		}
		whole := newDrawing(26, fmt.Sprintf("%s: %s µs", r.Fabric, strings.Join(words, ", ")))
		grid(whole, at)
		whole.add(`<line class="range" x1="%s" x2="%s" y1="13" y2="13"/>%s`, share(place(first)), share(place(last)), d.String())
		out.Rows = append(out.Rows, chartRow{p.class(r.Fabric), r.Fabric, whole.html(), words[0] + " µs"})
	}
	return out, true
}
