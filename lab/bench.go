// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"cmp"
	_ "embed" // bench.yaml
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"bascule/lab/fabrics"
	"bascule/lab/workloads"
)

//go:embed bench.yaml
var benchFile []byte

//go:embed exact.yaml
var exactFile []byte

// bench is the content of bench.yaml and exact.yaml.
type bench struct {
	About     string `yaml:"about"`
	Durations map[string]struct {
		Full  string `yaml:"full"`
		Quick string `yaml:"quick"`
	} `yaml:"durations"`
	Groups []struct {
		Name   string `yaml:"name"` // "" for the first workload's,
		About  string `yaml:"about"`
		Rounds int    `yaml:"rounds"`
		Quick  int    `yaml:"quick"` // rounds of a quick run
		Cases  []struct {
			Fabrics   []string `yaml:"fabrics"`
			Workloads []string `yaml:"workloads"`
		} `yaml:"cases"`
		Targets []struct {
			Name    string  `yaml:"name"`
			Of      string  `yaml:"of"`
			Against string  `yaml:"against"` // "" for the value itself, in the workload's unit
			Less    string  `yaml:"less"`    // subtracted from both; "" for nothing
			OfLess  string  `yaml:"of-less"` // subtracted from the first instead
			Value   string  `yaml:"value"`
			Invert  bool    `yaml:"invert"`
			Lower   bool    `yaml:"lower"`
			Must    float64 `yaml:"must"` // 0 for a figure without a bound
			Aim     float64 `yaml:"aim"`
		} `yaml:"targets"`
	} `yaml:"groups"`
}

// Bench measures every figure that has a target. Quick takes fewer and shorter rounds: enough for a
// first look, but not for a claim.
func Bench(quick bool) Profile {
	p, err := readBench("bench", benchFile, quick)
	if err != nil {
		panic(err) // the file is embedded in this binary
	}
	return p
}

// Exact counts the instructions of a frame, in a virtual machine.
func Exact(quick bool) Profile {
	p, err := readBench("exact", exactFile, quick)
	if err != nil {
		panic(err) // the file is embedded in this binary
	}
	return p
}

func readBench(name string, text []byte, quick bool) (Profile, error) {
	var b bench
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&b); err != nil {
		return Profile{}, fmt.Errorf("%s.yaml: %w", name, err)
	}
	p := Profile{Name: name, About: b.About, Strict: true}
	for _, g := range b.Groups {
		rounds := g.Rounds
		if quick {
			rounds = g.Quick
		}
		var cases []Case
		for _, c := range g.Cases {
			for _, text := range c.Workloads {
				kind, _, _ := strings.Cut(text, ":")
				duration := b.Durations[kind].Full
				if quick {
					duration = b.Durations[kind].Quick
				}
				more, err := casesOf(text, duration, c.Fabrics, Setup{})
				if err != nil {
					return Profile{}, fmt.Errorf("%s.yaml: %w", name, err)
				}
				cases = append(cases, more...)
			}
		}
		if len(cases) == 0 {
			return Profile{}, fmt.Errorf("%s.yaml: group %q has no case", name, g.Name)
		}
		made := group(rounds, cases)
		if g.Name != "" {
			made.Name, made.About = g.Name, g.About
		}
		p.Groups = append(p.Groups, made)
		for _, t := range g.Targets {
			unit := "x"
			if t.Against == "" {
				unit = cases[0].Workload.Unit
			}
			p.Targets = append(p.Targets, Target{
				Name: t.Name, Group: made.Name, Of: t.Of, Against: t.Against, Value: t.Value,
				OfLess: cmp.Or(t.OfLess, t.Less), AgainstLess: t.Less,
				Invert: t.Invert, Unit: unit, Lower: t.Lower, Must: t.Must, Aim: t.Aim,
			})
		}
	}
	return p, nil
}

// casesOf makes a case for each fabric, with a workload that sends for a duration, "" for its
// default, in a setup.
func casesOf(workload, duration string, names []string, setup Setup) (cases []Case, err error) {
	if duration != "" {
		workload += ":duration=" + duration
	}
	w, err := workloads.Parse(workload)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, ok := fabrics.Find(name)
		if !ok {
			return nil, fmt.Errorf("there is no fabric %s", name)
		}
		cases = append(cases, Case{f, w, setup})
	}
	return cases, nil
}
