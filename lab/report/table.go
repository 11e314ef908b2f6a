// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// block is a part of a group whose cases can be compared: one workload with one setup. All formats
// of the report print a group block by block.
type block struct {
	Workload, Setup, Unit string
	Rows                  []row
}

// row is a case of a block with samples, or with an attempt.
type row struct {
	*Case
	Spread
	// Against is nil for the reference case: the first one with samples.
	Against *Comparison
}

// First returns the reference case; nil if no case has samples.
func (b *block) First() *Case {
	for _, r := range b.Rows {
		if len(r.Samples) > 0 {
			return r.Case
		}
	}
	return nil
}

// Title is the workload, with the setup unless it is the default.
func (b *block) Title() string { return join(", ", b.Workload, b.Setup) }

// have reports whether a case of the block has q.
func (b *block) have(q quantity) bool {
	return slices.ContainsFunc(b.Rows, func(r row) bool { return !math.IsNaN(q.median(r.Case)) })
}

// join joins the parts that are not empty.
func join(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// blocks returns the blocks of a group, in the order of their first cases. Skipped cases are in no
// block.
func (g *Group) blocks() []*block {
	var out []*block
	for _, c := range g.Cases {
		if c.Skipped != "" && len(c.Samples) == 0 {
			continue
		}
		i := slices.IndexFunc(out, func(b *block) bool { return b.Workload == c.Workload && b.Setup == c.Setup })
		if i < 0 {
			i = len(out)
			out = append(out, &block{Workload: c.Workload, Setup: c.Setup, Unit: c.Unit})
		}
		r := row{Case: c, Spread: SpreadOf(c.Values())}
		if first := out[i].First(); first != nil && len(c.Samples) > 0 {
			against := Compared(c, first)
			if g.Noisy() && against.Word != TooFew {
				against.Word = TooNoisy
			}
			r.Against = &against
		}
		out[i].Rows = append(out[i].Rows, r)
	}
	return out
}

// Ratio formats the ratio and its limits; the reference case has 1.
func (r row) Ratio() (median, limits string) {
	if r.Against == nil {
		return "1.00", ""
	}
	if r.Against.Ratio.N == 0 {
		return "-", ""
	}
	return number(r.Against.Ratio.Median), r.Against.Ratio.limits()
}

// Sign returns the word of the comparison for a table.
func (r row) Sign() string {
	if r.Against == nil {
		return ""
	}
	return sign(r.Against.Word)
}

// sign returns a word for a table: "~" if no difference was shown, and "too few" for too few
// rounds.
func sign(word string) string {
	switch word {
	case NoDifference:
		return "~"
	case TooFew:
		return "too few"
	case TooNoisy:
		return "noisy"
	}
	return word
}

// signs explains the output of sign.
const signs = "faster or slower, better or worse: by the Mann-Whitney U test of the rounds of both, two-sided, p < 0.05,\n" +
	"each comparison on its own (of 20 between equals, expect one false difference); ~: no difference shown;\n" +
	"too few: so few rounds cannot show a difference; noisy: other programs took too much of the machine.\n"

// compares reports whether the report has a comparison.
func (r *Report) compares() bool {
	for _, g := range r.Groups {
		for _, b := range g.blocks() {
			if slices.ContainsFunc(b.Rows, func(r row) bool { return r.Against != nil }) {
				return true
			}
		}
	}
	return false
}

// quantity is an additional quantity of a sample.
type quantity struct {
	Name  string
	About string
	of    func(Sample) (float64, bool)
}

// median returns the median over the case's samples; NaN if they lack the quantity.
func (q quantity) median(c *Case) float64 {
	var values []float64
	for _, s := range c.Samples {
		if v, ok := q.of(s); ok {
			values = append(values, v)
		}
	}
	return SpreadOf(values).Median
}

// per returns a over b; ok is false unless both were measured.
func per(a, b float64) (float64, bool) { return a / b, a > 0 && b > 0 }

// costs are the resources for a result, printed next to it; details are the other quantities.
var (
	costs = append([]quantity{
		{"CPU", "cores busy in the whole machine", func(s Sample) (float64, bool) { return s.CPU.Busy(), s.Seconds > 0 }},
		{"s/Gbit", "CPU seconds of the whole machine per gigabit of payload", func(s Sample) (float64, bool) {
			return per(s.CPU.Busy()*s.Seconds, s.Bytes*8/1e9)
		}},
		{"s/Mframe", "CPU seconds of the whole machine per million frames that arrived", func(s Sample) (float64, bool) {
			return per(s.CPU.Busy()*s.Seconds, s.Frames/1e6)
		}},
	}, routerCost...)
	// routerCost is for routers with a separate core.
	routerCost = []quantity{
		{"router %", "how busy the kernel was on the router's own core", func(s Sample) (float64, bool) { return s.Pick(RouterCore) }},
		{"router s/Gbit", "the kernel's seconds on the router's own core per gigabit of payload", func(s Sample) (float64, bool) {
			busy, ok := s.Pick(RouterCore)
			if !ok {
				return 0, false
			}
			return per(busy/100*s.Seconds, s.Bytes*8/1e9)
		}},
	}
	details = []quantity{
		{"user", "cores busy in programs", func(s Sample) (float64, bool) { return s.CPU.User, s.Seconds > 0 }},
		{"system", "cores busy in the kernel for programs", func(s Sample) (float64, bool) { return s.CPU.System, s.Seconds > 0 }},
		{"softirq", "cores busy in the kernel for interrupts", func(s Sample) (float64, bool) { return s.CPU.Softirq, s.Seconds > 0 }},
		{"switches/s", "context switches a second in the whole machine", func(s Sample) (float64, bool) { return per(s.Switches, 1) }},
		{"cycles/frame", "cycles of all cores per frame that arrived", func(s Sample) (float64, bool) { return per(float64(s.Cycles), s.Frames) }},
		{"instr/frame", "instructions of all cores per frame that arrived", func(s Sample) (float64, bool) {
			return per(float64(s.Instructions), s.Frames)
		}},
	}
)

// known returns the quantities that a case of the blocks has.
func known(blocks []*block, from []quantity) []quantity {
	var out []quantity
	for _, q := range from {
		if slices.ContainsFunc(blocks, func(b *block) bool { return b.have(q) }) {
			out = append(out, q)
		}
	}
	return out
}

// names returns the names of the quantities, and medians the formatted medians of a case.
func names(of []quantity) []string {
	var out []string
	for _, q := range of {
		out = append(out, q.Name)
	}
	return out
}

func medians(c *Case, of []quantity) []string {
	var out []string
	for _, q := range of {
		out = append(out, q.cell(c))
	}
	return out
}

// place is a place where frames of a case were lost.
type place struct {
	Name    string
	Frames  uint64  // in all rounds
	Percent float64 // of the frames that arrived; NaN if their number is unknown
}

// dropShare is the minimum percentage of the frames for which drops are reported, if the number of
// frames is known.
const dropShare = 0.1

// dropped returns the places where the case lost most frames, at most three: with more than
// dropShare of the frames, or any if the number of frames is unknown.
func (c *Case) dropped() []place {
	sum, frames := map[string]uint64{}, 0.0
	for _, s := range c.Samples {
		frames += s.Frames
		for at, n := range s.Drops {
			sum[at] += n
		}
	}
	var out []place
	for at, n := range sum {
		p := place{at, n, math.NaN()}
		if frames > 0 {
			p.Percent = 100 * float64(n) / frames
		}
		if n > 0 && (frames == 0 || p.Percent > dropShare) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b place) int {
		return cmp.Or(cmp.Compare(b.Frames, a.Frames), strings.Compare(a.Name, b.Name))
	})
	return out[:min(3, len(out))]
}

// remarks returns further information about a group, one line each.
func (g *Group) remarks() []string {
	var out []string
	if m := g.Machine; m != nil {
		out = append(out, fmt.Sprintf("measured in a virtual machine of %d core (%s), where an instruction takes a nanosecond: "+
			"ratios compare instruction costs, of sending, forwarding and receiving together", m.Cores, m.Counted()))
	}
	if slices.ContainsFunc(g.Cases, func(c *Case) bool { return !math.IsNaN(routerCost[0].median(c)) }) {
		out = append(out, fmt.Sprintf("%s: %s; %s: %s", routerCost[0].Name, routerCost[0].About, routerCost[1].Name, routerCost[1].About))
	}
	counters := map[string][]string{}
	for _, c := range g.Cases {
		if c.Counter != "" && !slices.Contains(counters[c.Counter], c.Fabric) {
			counters[c.Counter] = append(counters[c.Counter], c.Fabric)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(counters)) {
		how := at
		// Older reports have only the program that counted.
		if !strings.Contains(at, " ") {
			how = "counted by " + at + " at the receiver"
		}
		out = append(out, fmt.Sprintf("frames %s: %s", how, strings.Join(counters[at], ", ")))
	}
	for _, c := range g.Cases {
		var lost []float64
		for _, s := range c.Samples {
			if v, ok := s.Pick(Lost); ok {
				lost = append(lost, v)
			}
		}
		// Smaller losses come from counters that are read at slightly different times.
		if l := SpreadOf(lost); l.Median >= 0.5 {
			out = append(out, fmt.Sprintf("lost on the way, %s: %s %% %s", c.Label, number(l.Median), l.limits()))
		}
	}
	for _, c := range g.Cases {
		var at []string
		for _, p := range c.dropped() {
			text := fmt.Sprintf("%d at %s", p.Frames, p.Name)
			if !math.IsNaN(p.Percent) {
				text += fmt.Sprintf(" (%s %% of the frames that arrived)", number(p.Percent))
			}
			at = append(at, text)
		}
		if len(at) > 0 {
			out = append(out, fmt.Sprintf("dropped in all rounds, %s: %s", c.Label, strings.Join(at, ", ")))
		}
	}
	for _, l := range g.fabricsBy(func(c *Case) []string { return c.Notes }) {
		out = append(out, "note, "+l)
	}
	if text := g.warning(); text != "" {
		out = append(out, text)
	}
	for _, c := range g.Cases {
		if c.Error == "" {
			continue
		}
		why := c.Fabric + ": " + oneLine(c.Error)
		if len(c.Samples) > 0 {
			rounds := fmt.Sprintf("%d rounds", c.Failed)
			if c.Failed == 1 {
				rounds = "1 round"
			}
			why = fmt.Sprintf("%s: %s had no result: %s", c.Label, rounds, oneLine(c.Error))
		}
		if !slices.Contains(out, why) {
			out = append(out, why)
		}
	}
	for _, l := range g.fabricsBy(func(c *Case) []string {
		if c.Skipped == "" {
			return nil
		}
		return []string{c.Skipped}
	}) {
		out = append(out, "skipped, "+l)
	}
	return out
}

// warning describes the disturbance of the group; empty if there was none.
func (g *Group) warning() string {
	others, steal := g.noise()
	if !g.Noisy() {
		return ""
	}
	return fmt.Sprintf("NOISY: other programs took %s cores and the hypervisor %s meanwhile: this supports no claim", hundredths(others), hundredths(steal))
}

// fabricsBy returns a line for each text in the cases, preceded by the fabrics with that text. It
// includes the setup of a fabric if the text is not in all of its setups.
func (g *Group) fabricsBy(texts func(*Case) []string) []string {
	var order []string
	who := map[string][]*Case{}
	for _, c := range g.Cases {
		for _, t := range texts(c) {
			t = oneLine(t)
			if who[t] == nil {
				order = append(order, t)
			}
			who[t] = append(who[t], c)
		}
	}
	for i, t := range order {
		setups := map[string]bool{}
		for _, c := range who[t] {
			setups[c.Fabric+" "+c.Setup] = true
		}
		var said []string
		for _, c := range who[t] {
			name := c.Fabric
			if slices.ContainsFunc(g.Cases, func(o *Case) bool { return o.Fabric == c.Fabric && !setups[o.Fabric+" "+o.Setup] }) {
				name = join(" ", c.Fabric, c.Setup)
			}
			if !slices.Contains(said, name) {
				said = append(said, name)
			}
		}
		order[i] = strings.Join(said, ", ") + ": " + t
	}
	return order
}

// source has the claims of one publication.
type source struct {
	Source string
	Claims []Claim
}

// bySource groups the claims by publication, in the order of their first claims.
func bySource(claims []Claim) []source {
	var out []source
	for _, c := range claims {
		i := slices.IndexFunc(out, func(s source) bool { return s.Source == c.Source })
		if i < 0 {
			i = len(out)
			out = append(out, source{Source: c.Source})
		}
		out[i].Claims = append(out[i].Claims, c)
	}
	return out
}

// Says returns the verdict, with the one in instructions if they were also counted.
func (c Claim) Says() string { return join("; by instructions: ", c.verdict(), c.CountedVerdict) }

// verdict returns the verdict, unless it depends on a missing measurement.
func (c Claim) verdict() string {
	if c.Here == nil && c.Verdict != "cannot be tested" {
		return "not measured"
	}
	return c.Verdict
}

// Measured formats the local measurement: the median, its limits, and the rounds.
func (c Claim) Measured() string {
	if c.Here == nil {
		return "-"
	}
	said := fmt.Sprintf("%s %s", number(c.Here.Median), c.Here.limits())
	if c.Counted != nil {
		said += fmt.Sprintf("; by instructions %s %s", number(c.Counted.Median), c.Counted.limits())
	}
	return said
}

// PublishedText returns the published statement, with its ratio.
func (c Claim) PublishedText() string {
	if c.Ratio == 0 {
		return c.Published
	}
	return join("; ", c.Published, "ratio "+number(c.Ratio))
}

// cell formats the median.
func (q quantity) cell(c *Case) string {
	v := q.median(c)
	if math.IsNaN(v) {
		return "-"
	}
	if slices.Contains([]string{"CPU", "user", "system", "softirq"}, q.Name) {
		return hundredths(v)
	}
	return number(v)
}
