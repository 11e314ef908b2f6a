// SPDX-License-Identifier: BSD-2-Clause

// Package studies holds published comparisons of bridges: their figures, their
// claims, and which cases of the lab put each claim to the test. All of it is
// data: a file for each study, and one table of what they published.
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
	Name   string  `yaml:"-"` // of its file
	Title  string  `yaml:"title"`
	About  string  `yaml:"about"` // what was measured there
	Groups []Group `yaml:"groups"`
	Claims []Claim `yaml:"claims"`
}

// Group is cases that are measured interleaved: each workload on each fabric
// in each setup.
type Group struct {
	About     string   `yaml:"about"`
	Fabrics   []string `yaml:"fabrics"`
	Workloads []string `yaml:"workloads"`
	Setups    []Setup  `yaml:"setups"` // none is one: ends in namespaces
	Duration  string   `yaml:"duration"`
	// Mebibytes is how much a round of workloads that count payload has instead: their
	// durations are whole seconds, and many short rounds tell more than few long ones.
	Mebibytes int    `yaml:"mebibytes"`
	Quick     string `yaml:"quick"` // the duration of a quick run, of workloads that do not count payload
	Rounds    int    `yaml:"rounds"`
	Inside    Inside `yaml:"inside"`
}

// Inside is how much a round has in a virtual machine whose instructions are counted. A
// second of such a machine takes ten and more, and needs not be as long: nothing else
// runs meanwhile.
type Inside struct {
	Mebibytes int    `yaml:"mebibytes"` // of workloads that count payload
	Duration  string `yaml:"duration"`  // of others
}

// Setup is what differs from two ends with an MTU of 1500.
type Setup struct {
	Host bool `yaml:"host"` // the host is the first end
	MTU  int  `yaml:"mtu"`  // in bytes
}

// Claim is something that a study says of what it measured.
type Claim struct {
	Claim     string    `yaml:"claim"`
	Published Published `yaml:"published"`
	// Test says in words what is compared here.
	Test string `yaml:"test"`
	// Of and Against are labels of cases: the fabric, the workload and the
	// setup. Both are of the same group.
	Of      string `yaml:"of"`
	Against string `yaml:"against"`
	// AtLeast and AtMost are what the ratio of Of to Against must be for the
	// claim to hold; 0 leaves that side open.
	AtLeast float64 `yaml:"at_least"`
	AtMost  float64 `yaml:"at_most"`
	// Larger: the claim is no more than that Of is larger than Against.
	Larger bool `yaml:"larger"`
	// Cores is how many cores the claim takes, 0 for any number.
	Cores int `yaml:"cores"`
	// KernelOVS: the claim is of Open vSwitch's datapath in the kernel.
	KernelOVS bool `yaml:"kernel_ovs"`
	// OnlyClock says why instructions do not decide the claim; empty where they do, too.
	OnlyClock string `yaml:"only_clock"`
	// Cannot says why it cannot be tested by any lab of one Linux machine.
	Cannot string `yaml:"cannot"`
}

// Published names the figures of a claim by their rows in the table.
type Published struct {
	Of      string `yaml:"of"`
	Against string `yaml:"against"`
	// Figure and Ratio are given where the study says them in words instead.
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

// names is every study, in the order in which they are shown.
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

// Names are the names of all studies.
func Names() []string { return slices.Clone(names) }

// Rows returns the published figures by their names.
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
			return nil, fmt.Errorf("published.csv: %s is there twice", r.ID)
		}
		out[r.ID] = r
	}
	return out, nil
}

// Text is what was published, and Ratio the same as a ratio, 0 where it is
// none.
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
