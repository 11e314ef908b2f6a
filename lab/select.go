// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"fmt"
	"slices"
	"time"

	"bascule/lab/fabrics"
	"bascule/lab/workloads"
)

// Workloads are those that can be asked for by name.
func Workloads() []workloads.Workload {
	const stream, window = 2 * time.Second, time.Second
	return []workloads.Workload{
		workloads.TCPStream{Streams: 1, Pin: true, Length: stream},
		workloads.TCPStream{Streams: 1, Offloads: true, Pin: true, Length: stream},
		workloads.TCPStream{Streams: 4, Offloads: true, Pin: true, Length: stream},
		workloads.UDP{Size: 64, Length: stream},
		workloads.Latency{Length: stream},
		workloads.Frames{Cores: 1, Length: window},
		workloads.Frames{Cores: 2, Length: window},
		workloads.Frames{Cores: 2, SameSource: true, Length: window},
		workloads.Learning{Length: window},
		workloads.Learning{Rate: 100_000, Length: window},
		workloads.Addresses{Count: 1_000, Length: window},
		workloads.Addresses{Count: 1_000_000, Length: window},
		workloads.Flood{Ports: 64, Length: window},
		workloads.Memory{Count: 1_000_000},
		workloads.PortAdd{Ports: 200},
	}
}

// ProfileNames are the profiles that Options.Profile may name.
var ProfileNames = []string{"demo", "bench"}

// WorkloadNames are the names of Workloads.
func WorkloadNames() []string {
	var names []string
	for _, w := range Workloads() {
		names = append(names, w.Name())
	}
	return names
}

// FabricNames are the names of all fabrics.
func FabricNames() []string {
	var names []string
	for _, f := range fabrics.All {
		names = append(names, f.Name)
	}
	return names
}

// UnknownError is a name that is none of those that are known.
type UnknownError struct {
	Kind  string // "fabric", "workload" or "profile"
	Name  string
	Known []string
}

func (e *UnknownError) Error() string { return fmt.Sprintf("unknown %s %q", e.Kind, e.Name) }

// Options say what to measure.
type Options struct {
	// Profile is one of ProfileNames. Empty: the demo, or, where fabrics or
	// workloads are named, all of those on all of those.
	Profile   string
	Fabrics   []string // only these, empty for all
	Workloads []string // only these, empty for all
	Rounds    int      // instead of the profile's own; 0 keeps them
	Quick     bool     // few and short rounds
}

// Select makes the profile that the options ask for. An unknown name gives an
// UnknownError.
func Select(o Options) (Profile, error) {
	for _, want := range o.Fabrics {
		if _, ok := fabrics.Find(want); !ok {
			return Profile{}, &UnknownError{"fabric", want, FabricNames()}
		}
	}
	for _, want := range o.Workloads {
		if names := WorkloadNames(); !slices.Contains(names, want) {
			return Profile{}, &UnknownError{"workload", want, names}
		}
	}
	var p Profile
	switch {
	case o.Profile == "bench":
		p = Bench(o.Quick)
	case o.Profile == "demo" || o.Profile == "" && len(o.Fabrics)+len(o.Workloads) == 0:
		p = Demo()
	case o.Profile == "":
		p = every(o.Quick)
	default:
		return Profile{}, &UnknownError{"profile", o.Profile, ProfileNames}
	}
	chosen := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	var groups []Group
	for _, g := range p.Groups {
		g.Cases = slices.DeleteFunc(slices.Clone(g.Cases), func(c Case) bool {
			return !chosen(o.Fabrics, c.Fabric.Name) || !chosen(o.Workloads, c.Workload.Name())
		})
		if o.Rounds > 0 {
			g.Rounds = o.Rounds
		}
		if len(g.Cases) > 0 {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return Profile{}, fmt.Errorf("profile %s has no such workload on such a fabric", p.Name)
	}
	// What was left out on purpose is not missed.
	labels := map[string]bool{}
	for _, g := range groups {
		for _, c := range g.Cases {
			labels[g.Name+"\x00"+c.Label()] = true
		}
	}
	p.Targets = slices.DeleteFunc(p.Targets, func(t Target) bool {
		return !labels[t.Group+"\x00"+t.Of] || t.Against != "" && !labels[t.Group+"\x00"+t.Against]
	})
	p.Groups = groups
	return p, nil
}

// every is each workload on each fabric that can carry it.
func every(quick bool) Profile {
	rounds := 5
	if quick {
		rounds = 3
	}
	p := Profile{Name: "chosen", About: "what was asked for"}
	for _, w := range Workloads() {
		p.Groups = append(p.Groups, group(rounds, across(fabrics.All, w)))
	}
	return p
}
