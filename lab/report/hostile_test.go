// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// hostile returns a report whose texts and values are meant to harm its readers.
func hostile() *Report {
	const text = "x\x1b]0;title\a\x1b[2J\r\b\x7f\u009b31m\u202ey"
	const value = 1.7e308
	most := Spread{N: 6, Median: value, Min: -value, Max: value, Interval: &[2]float64{-value, value}}
	cpu := CPU{User: value, System: value, Softirq: value, Idle: value, Steal: value, Others: value}
	pairs := map[string]string{text: text}
	path := []Hop{{Name: text, Kind: text}}
	r := &Report{
		Profile: text, Seconds: value,
		Machine: Machine{Kernel: text, CPU: text, Hypervisor: text, Congestion: text, Guests: text, Load: value, Mitigations: pairs, Versions: pairs},
		Fabrics: []Fabric{{Name: text, About: text, Path: path, HostPath: path}},
		Figures: []Figure{{Name: text, Of: text, Against: text, Unit: text, Must: value, Aim: value, Got: &most, Why: text}},
		Claims:  []Claim{{Source: text, Claim: text, Published: text, Ratio: value, Test: text, Here: &most, Verdict: text, Why: text}},
	}
	g := &Group{Name: text, About: text}
	for _, fabric := range []string{"first", text, "second"} {
		c := &Case{Label: fabric + text, Fabric: fabric, Workload: text, Setup: text, Unit: text, Counter: text, Notes: []string{text}, Error: text, Failed: 1}
		for round := range 6 {
			c.Samples = append(c.Samples, Sample{
				Round: round + 1, Value: value, More: map[string]float64{text: value, Lost: value, "p99_us": value}, Intervals: []float64{value, 5e-324},
				Bytes: value, Frames: 1, Seconds: value, CPU: cpu, Cores: []CPU{cpu}, Switches: value, Drops: map[string]uint64{text: 1 << 63},
			})
		}
		g.Cases = append(g.Cases, c)
	}
	g.Cases = append(g.Cases, &Case{Label: text, Fabric: text, Workload: "other", Skipped: text})
	small := &Group{Name: "small", Cases: []*Case{{Label: "a w", Fabric: "a", Workload: "w", Samples: samples(5e-324, 5e-324)}}}
	r.Groups = []*Group{g, small}
	return r
}

// TestHostile checks that a report's texts have no control characters for a terminal, and that no
// value fills the screen.
func TestHostile(t *testing.T) {
	var b bytes.Buffer
	if err := hostile().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	r, err := ReadJSON(&b)
	if err != nil {
		t.Fatal(err)
	}
	all := forms(r)
	delete(all, "JSON") // it has the report unchanged
	all["comparison"] = Compare(r, r).WriteText
	all["comparison with another"] = Compare(example(), r).WriteText
	all["comparison with it"] = Compare(r, example()).WriteText
	long := regexp.MustCompile(`[0-9]{25}`)
	for name, write := range all {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text := b.String()
		if found := long.FindString(text); found != "" {
			t.Errorf("%s has a value of %s...", name, found)
		}
		// A browser does not interpret these characters.
		if name == "HTML" {
			continue
		}
		if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
			t.Errorf("%s has %q in it", name, text[at:min(at+10, len(text))])
		}
		if !strings.Contains(text, `\x1b`) {
			t.Errorf("%s does not show what was in the texts:\n%s", name, text)
		}
	}
}
