// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// publishedCharts maps the headings of the charts in docs/lab/published.md to the report's group and workload.
// README.md has one of these charts.
var publishedCharts = map[string]struct{ group, workload string }{
	"64-byte frames a second, one core":                                   {"if-bridge-1", "pps"},
	"64-byte frames a second, two cores":                                  {"if-bridge-1", "pps:cores=2"},
	"TCP, one stream, packets of 1500 bytes":                              {"veb-1", "tcp-stream"},
	"Neutron's wirings between two ends: TCP, one stream, 64 KiB packets": {"neutron-1", "tcp-stream:offloads"},
}

// publishedFabrics maps names in these charts to fabrics. The group neutron-1 has its own name for the Linux bridge.
var publishedFabrics = map[string][]string{
	"cable":                            {"direct"},
	"bascule":                          {"bascule"},
	"bascule, tcx":                     {"bascule"},
	"bascule, XDP":                     {"bascule-xdp"},
	"bascule with pf":                  {"bascule+pf"},
	"Linux bridge":                     {"linux-bridge", "neutron-1-linux"},
	"Linux bridge with nftables":       {"linux-bridge+nft"},
	"three bascules, by host ports":    {"bascule-neutron-3-host-port"},
	"three bascules, by patch cables":  {"bascule-neutron-2-patch"},
	"three bascules, joined by veth":   {"bascule-neutron-2-veth"},
	"Linux bridges and OVS, by ports":  {"neutron-3-ovs-linux-internal"},
	"devstack's hybrid, by ports":      {"neutron-7-hybrid-internal"},
	"Open vSwitch, in the kernel":      {"neutron-4-ovs"},
	"Linux bridges and OVS, by veth":   {"neutron-2-ovs-linux-veth"},
	"devstack's hybrid, by veth":       {"neutron-6-hybrid-veth"},
	"OVS and a Linux bridge, by ports": {"neutron-5-linux-ovs-internal"},
}

// TestPublishedFigures checks that docs/lab/published.md and README.md have the figures of docs/lab/report.md, and that
// the lengths of bars match the figures.
func TestPublishedFigures(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	published, readme := read("docs/lab/published.md"), read("README.md")
	run := readSummary(t, "docs/lab/report.md")
	if day := run.started.Format("2 January 2006"); !strings.Contains(published, "These are figures of "+day) {
		t.Errorf("docs/lab/published.md should say that its figures are of %s", day)
	}

	heading := regexp.MustCompile(`(?m)^    (\S.*\S)  +(?:millions|Gbit/s)\n((?:      .*\n)+)`)
	bar := regexp.MustCompile(`(?m)^      (\S.*?) +(#+) +([0-9.]+)$`)
	charts, first := heading.FindAllStringSubmatch(published, -1), heading.FindAllStringSubmatch(readme, -1)
	if len(charts) != len(publishedCharts) || len(first) != 1 {
		t.Errorf("docs/lab/published.md has %d charts, and README.md %d; this test knows %d, and 1", len(charts), len(first), len(publishedCharts))
	}
	for _, p := range append(charts, first...) {
		of, known := publishedCharts[p[1]]
		if !known {
			t.Errorf("this test does not know the chart %q", p[1])
			continue
		}
		bars := bar.FindAllStringSubmatch(p[2], -1)
		if lines := strings.Count(p[2], "\n"); len(bars) != lines {
			t.Errorf("%s: %d lines, but %d bars", p[1], lines, len(bars))
		}
		var longest, most float64
		for _, b := range bars {
			value, err := strconv.ParseFloat(b[3], 64)
			if err != nil {
				t.Fatal(err)
			}
			longest, most = max(longest, float64(len(b[2]))), max(most, value)
		}
		for _, b := range bars {
			value, _ := strconv.ParseFloat(b[3], 64)
			_, places, _ := strings.Cut(b[3], ".")
			if !slices.ContainsFunc(publishedFabrics[b[1]], func(fabric string) bool {
				median, measured := run.medians[of.group+" "+fabric+" "+of.workload]
				return measured && strconv.FormatFloat(median, 'f', len(places), 64) == b[3]
			}) {
				t.Errorf("%s: the report does not have %s for %s", p[1], b[3], b[1])
			}
			if want := value / most * longest; math.Abs(want-float64(len(b[2]))) > 1 {
				t.Errorf("%s: the bar of %s has %d characters, and should have %.0f", p[1], b[1], len(b[2]), want)
			}
		}
	}

	row := regexp.MustCompile(`\| ([0-9.]+) \[([0-9.]+) ([0-9.]+)\] \| ([a-z ]+) \|\n`)
	rows := row.FindAllStringSubmatch(published, -1)
	if len(rows) < 10 {
		t.Errorf("docs/lab/published.md has %d claims that this test understands", len(rows))
	}
	for _, r := range rows {
		if !slices.ContainsFunc(run.rows, func(row []string) bool {
			return len(row) == 7 && row[6] == r[4] && agree(row[2], r[1]) && agree(row[3], r[2]+" to "+r[3])
		}) {
			t.Errorf("the summary has no claim with %s", strings.TrimSpace(r[0]))
		}
	}
}

// TestPerformanceFigures checks that tables of docs/performance.md match the summary of their run in figures and date,
// if there is a summary.
func TestPerformanceFigures(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for heading, of := range map[string]struct {
		summary string
		day     string
	}{
		"## Times and rates":        {"docs/lab/bench.md", "2 January 2006"},
		"## Instructions per frame": {"docs/lab/exact.md", "2 January"},
	} {
		run := readSummary(t, of.summary)
		if day := run.started.Format(of.day); !strings.Contains(strings.Join(strings.Fields(page), " "), day) {
			t.Errorf("docs/performance.md should say that the figures of %s are of %s", of.summary, day)
		}
		_, section, found := strings.Cut(page, heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		rows := 0
		for _, cells := range tableRows(section) {
			if len(cells) < 5 || cells[0] == "figure" {
				continue
			}
			rows++
			got, _, _ := strings.Cut(cells[4], " ")
			fabric, _, _ := strings.Cut(cells[1], ",")
			known := slices.ContainsFunc(run.rows, func(row []string) bool {
				return len(row) == 6 && strings.HasPrefix(row[1], fabric) && agree(row[4], got) &&
					(len(cells) < 6 || cells[5] == "" || agree(row[5], cells[5]))
			})
			if !known {
				t.Errorf("%s has no figure with %q", of.summary, strings.Join(cells, " | "))
			}
		}
		if !found || rows < 10 {
			t.Errorf("%s: %d figures that this test understands", heading, rows)
		}
	}
}

// TestSummaries checks that the repository has the summaries of the lab's runs, and no samples.
func TestSummaries(t *testing.T) {
	for _, name := range []string{"bench", "exact", "report"} {
		if lines := readSummary(t, "docs/lab/"+name+".md").lines; lines > 300 {
			t.Errorf("docs/lab/%s.md has %d lines, more than 300", name, lines)
		}
	}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		switch filepath.Ext(path) {
		case ".html":
			t.Errorf("%s is a page that a run makes", path)
		case ".json":
			if _, bad := readReport(path); bad == nil {
				t.Errorf("%s is a report with every sample", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// labSummary is the output of bascule lab report --summary.
type labSummary struct {
	started time.Time
	took    time.Duration
	medians map[string]float64 // by group, fabric and workload
	rows    [][]string         // of the tables with figures and claims
	lines   int
}

// readSummary parses the output of bascule lab report --summary.
func readSummary(t *testing.T, path string) labSummary {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	begun := regexp.MustCompile(`(?m)^([0-9-]+ [0-9:]+ UTC), (\w+)\. Medians`).FindStringSubmatch(string(text))
	if begun == nil {
		t.Fatalf("%s does not say when it was measured", path)
	}
	s := labSummary{medians: map[string]float64{}, lines: strings.Count(string(text), "\n")}
	var bad [2]error
	s.started, bad[0] = time.Parse("2006-01-02 15:04 MST", begun[1])
	s.took, bad[1] = time.ParseDuration(begun[2])
	if err := errors.Join(bad[:]...); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, _, _ := strings.Cut(section, "\n")
		group, _, measured := strings.Cut(heading, ": ")
		rows := tableRows(section)
		if !measured {
			s.rows = append(s.rows, rows...)
			continue
		}
		for _, row := range rows[1:] {
			for i, cell := range row[1:] {
				workload, _, _ := strings.Cut(rows[0][i+1], ": ")
				median, _, _ := strings.Cut(cell, " ")
				if v, err := strconv.ParseFloat(median, 64); err == nil {
					s.medians[group+" "+row[0]+" "+strings.ReplaceAll(workload, ",", "")] = v
				}
			}
		}
	}
	return s
}

// tableRows returns the cells of a Markdown text's tables, row by row, without the lines below headings.
func tableRows(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// agree reports whether figures of a summary, with four digits, round to the figures of a page, with fewer digits. A
// range has " to " between its figures.
func agree(summary, page string) bool {
	have, said := strings.Split(summary, " to "), strings.Split(page, " to ")
	if len(have) != len(said) {
		return false
	}
	for i := range have {
		h, err1 := strconv.ParseFloat(have[i], 64)
		p, err2 := strconv.ParseFloat(said[i], 64)
		if err1 != nil || err2 != nil || math.Abs(h-p) > (lastDigit(have[i])+lastDigit(said[i]))*0.501 {
			return false
		}
	}
	return true
}

// lastDigit returns the value of one unit in a figure's last digit.
func lastDigit(figure string) float64 {
	_, places, _ := strings.Cut(figure, ".")
	return math.Pow10(-len(places))
}
