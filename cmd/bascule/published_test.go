// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bascule/lab/report"
)

// publishedCharts are the charts of docs/lab/published.md by their headings: which group of the report
// they are of, and which workload. README.md has one of them.
var publishedCharts = map[string]struct{ group, workload string }{
	"64-byte frames a second, one core":                                   {"if-bridge-1", "pps"},
	"64-byte frames a second, two cores":                                  {"if-bridge-1", "pps:cores=2"},
	"TCP, one stream, packets of 1500 bytes":                              {"veb-1", "tcp-stream"},
	"Neutron's wirings between two ends: TCP, one stream, 64 KiB packets": {"neutron-1", "tcp-stream:offloads"},
}

// publishedFabrics are the fabrics by their names in these charts. The group neutron-1 has
// a name of its own for the Linux bridge.
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

// TestPublishedFigures wants docs/lab/published.md and README.md to have the figures of
// docs/lab/report.json, and their bars to be as long as these say.
func TestPublishedFigures(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	published, readme := read("docs/lab/published.md"), read("README.md")
	file, err := os.Open("../../docs/lab/report.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	run, err := report.ReadJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	if day := run.Started.Format("2 January 2006"); !strings.Contains(published, "These are figures of "+day) {
		t.Errorf("docs/lab/published.md should say that its figures are of %s", day)
	}
	medians := map[string]float64{} // by group, fabric and workload
	for _, group := range run.Groups {
		for _, c := range group.Cases {
			medians[group.Name+" "+c.Label] = report.SpreadOf(c.Values()).Median
		}
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
				median, measured := medians[of.group+" "+fabric+" "+of.workload]
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
	short := func(v float64) string { return fmt.Sprintf("%#.3g", v) }
	for _, r := range rows {
		if !slices.ContainsFunc(run.Claims, func(c report.Claim) bool {
			return c.Verdict == r[4] && c.Here != nil && c.Here.Interval != nil && short(c.Here.Median) == r[1] &&
				short(c.Here.Interval[0]) == r[2] && short(c.Here.Interval[1]) == r[3]
		}) {
			t.Errorf("the report has no claim with %s", strings.TrimSpace(r[0]))
		}
	}
}
