// SPDX-License-Identifier: BSD-2-Clause

// Package studies has published comparisons of bridges: their figures, their claims, and the cases
// of the lab that test each claim. All of it is data: a file for each study, and one table of the
// published figures.
package studies

import (
	"bytes"
	"embed"
	"encoding/csv"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"
)

// Study is a published comparison.
type Study struct {
	Name   string  `yaml:"-"` // from the file name
	Title  string  `yaml:"title"`
	About  string  `yaml:"about"` // the subject of the comparison
	Groups []Group `yaml:"groups"`
	Claims []Claim `yaml:"claims"`
}

// Group is a list of cases that are measured interleaved: each workload on each fabric in each
// setup.
type Group struct {
	About     string   `yaml:"about"`
	Fabrics   []string `yaml:"fabrics"`
	Workloads []string `yaml:"workloads"`
	Setups    []Setup  `yaml:"setups"` // empty for the default: ends in namespaces
	Duration  string   `yaml:"duration"`
	// Mebibytes is the size of a round instead, for workloads that count payload: their
	// durations are whole seconds, and many short rounds are more precise than few long ones.
	Mebibytes int    `yaml:"mebibytes"`
	Quick     string `yaml:"quick"` // the duration in a quick run, for workloads that do not count payload
	Rounds    int    `yaml:"rounds"`
	Inside    Inside `yaml:"inside"`
}

// Inside is the size of a round in a virtual machine with counted instructions. A second of such a
// machine takes ten seconds and more, but rounds can be shorter, because there is no other load.
type Inside struct {
	Mebibytes int    `yaml:"mebibytes"` // for workloads that count payload
	Duration  string `yaml:"duration"`  // for others
}

// Setup has the differences from the default: two ends with an MTU of 1500.
type Setup struct {
	Host bool `yaml:"host"` // the first end is the host
	MTU  int  `yaml:"mtu"`  // in bytes
}

// Claim is a statement of a study about its measurements.
type Claim struct {
	Claim     string    `yaml:"claim"`
	Published Published `yaml:"published"`
	// Test describes the comparison here.
	Test string `yaml:"test"`
	// Of and Against are labels of cases in the same group: the fabric, the workload and the
	// setup.
	Of      string `yaml:"of"`
	Against string `yaml:"against"`
	// AtLeast and AtMost bound the ratio of Of to Against if the claim holds; 0 means no bound.
	AtLeast float64 `yaml:"at_least"`
	AtMost  float64 `yaml:"at_most"`
	// Larger means that the claim states no bound, but Of must be larger than Against.
	Larger bool `yaml:"larger"`
	// Cores is the number of cores that the claim needs, 0 for any.
	Cores int `yaml:"cores"`
	// KernelOVS means that the claim is about Open vSwitch's datapath in the kernel.
	KernelOVS bool `yaml:"kernel_ovs"`
	// OnlyClock is the reason why instructions do not decide the claim; empty if they do.
	OnlyClock string `yaml:"only_clock"`
	// Cannot is the reason why no lab on one Linux machine can test the claim.
	Cannot string `yaml:"cannot"`
}

// Published names the figures of a claim by their rows in the table.
type Published struct {
	Of      string `yaml:"of"`
	Against string `yaml:"against"`
	// Figure and Ratio are set if the study has only words.
	Figure string  `yaml:"figure"`
	Ratio  float64 `yaml:"ratio"`
}

// Row is one published figure.
type Row struct {
	ID, Source, Year, Fabric, Filter, Workload, Direction string
	Value                                                 float64
	Unit, Note                                            string
}

//go:embed *.yaml published.csv
var files embed.FS

// names lists every study in display order.
var names = []string{"veb", "if-bridge", "router", "neutron", "kvm"}

// All returns every study.
func All() ([]Study, error) {
	var out []Study
	for _, name := range names {
		text, err := fs.ReadFile(files, name+".yaml")
		if err != nil {
			return nil, err
		}
		s := Study{Name: name}
		if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&s); err != nil {
			return nil, fmt.Errorf("study %s: %w", name, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// Names returns the names of all studies.
func Names() []string { return slices.Clone(names) }

// Rows returns the published figures by name.
func Rows() (map[string]Row, error) {
	f, err := files.Open("published.csv")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("published.csv: %w", err)
	}
	out := map[string]Row{}
	for _, l := range lines[1:] {
		r := Row{ID: l[0], Source: l[1], Year: l[2], Fabric: l[3], Filter: l[4], Workload: l[5], Direction: l[6], Unit: l[8], Note: l[9]}
		if r.Value, err = strconv.ParseFloat(l[7], 64); err != nil {
			return nil, fmt.Errorf("published.csv: %s: %w", r.ID, err)
		}
		if _, ok := out[r.ID]; ok {
			return nil, fmt.Errorf("published.csv: %s occurs twice", r.ID)
		}
		out[r.ID] = r
	}
	return out, nil
}

// Text returns the published statement, and its ratio, or 0 if it is not a ratio.
func (p Published) Text(rows map[string]Row) (text string, ratio float64) {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	of := rows[p.Of]
	switch {
	case p.Figure != "":
		return p.Figure, p.Ratio
	case p.Against == "":
		return number(of.Value) + " " + of.Unit, 0
	}
	against := rows[p.Against]
	return fmt.Sprintf("%s against %s %s", number(of.Value), number(against.Value), of.Unit), of.Value / against.Value
}
