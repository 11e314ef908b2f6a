// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bascule/lab/fabrics"
	"bascule/lab/studies"
	"bascule/lab/workloads"
)

// ProfileNames are the valid names for Options.Profile.
var ProfileNames = []string{"demo", "bench", "exact"}

// FabricNames returns the names of all fabrics.
func FabricNames() []string {
	var names []string
	for _, f := range fabrics.All {
		names = append(names, f.Name)
	}
	return names
}

// Options select measurements.
type Options struct {
	// Profile is one of ProfileNames. If it is empty and fabrics or workloads are named, all of
	// these workloads run on all of these fabrics; otherwise it means the demo, or exact if
	// instructions are counted. Fabrics of network cards have to be named.
	Profile   string
	Groups    []string // only these of the profile, empty for all
	Fabrics   []string // only these, empty for all
	Workloads []string // only these, empty for all
	Setup     Setup    // for all cases
	Rounds    int      // instead of the profile's own; 0 keeps them
	Quick     bool     // few and short rounds
	// Study makes a virtual machine measure Groups of ReproduceInside; empty for a profile.
	Study string
	// Claimed keeps only the cases of claims that instructions also decide.
	Claimed bool
	// Counting means that the machine counts instructions, as in RunInside.
	Counting bool
	// Functions makes the virtual machine send the data for Functions.
	Functions bool
}

// Select returns the profile for the options. An unknown name gives a workloads.UnknownError.
func Select(o Options) (Profile, error) {
	chosen := fabrics.All
	if len(o.Fabrics) > 0 {
		chosen = nil
	}
	for _, want := range o.Fabrics {
		f, ok := fabrics.Find(want)
		if !ok {
			return Profile{}, &workloads.UnknownError{What: "fabric", Name: want, Known: FabricNames()}
		}
		if slices.Contains(chosen, f) {
			return Profile{}, fmt.Errorf("fabric %s occurs twice", want)
		}
		chosen = append(chosen, f)
	}
	var sent []*workloads.Workload
	for _, want := range o.Workloads {
		w, err := workloads.Parse(want)
		if err != nil {
			return Profile{}, err
		}
		if slices.ContainsFunc(sent, func(s *workloads.Workload) bool { return s.Name == w.Name }) {
			return Profile{}, fmt.Errorf("workload %s occurs twice", w.Name)
		}
		sent = append(sent, w)
	}
	var p Profile
	switch {
	case o.Study != "":
		var err error
		// Other groups do not define the length of their rounds there.
		p, err = reproduce(o.Study, o.Quick, false, func(_ studies.Study, g Group) bool {
			return slices.Contains(o.Groups, g.Name)
		})
		if err != nil {
			return Profile{}, err
		}
		if o.Claimed {
			for i, g := range p.Groups {
				p.Groups[i] = claimed(p.Claims, g)
			}
		}
		// The caller also has the groups of its own machine, and decides the claims.
		p.Claims = nil
	case o.Profile == "bench":
		p = Bench(o.Quick)
	case o.Profile == "exact" && !o.Counting:
		return Profile{}, errors.New("profile exact is of instructions, which are counted in a virtual machine: give --in-vm")
	case o.Profile == "exact" || o.Profile == "" && o.Counting && len(o.Fabrics)+len(o.Workloads) == 0:
		p = Exact(o.Quick)
	case o.Profile == "demo" || o.Profile == "" && len(o.Fabrics)+len(o.Workloads) == 0:
		p = Demo()
	case o.Profile == "":
		if len(o.Fabrics) == 0 {
			// They would require another machine for all others in their group.
			chosen = slices.DeleteFunc(slices.Clone(chosen), func(f *fabrics.Fabric) bool { return len(f.Wires) > 0 })
		}
		p = every(chosen, sent, o.Quick, o.Counting)
	default:
		return Profile{}, &workloads.UnknownError{What: "profile", Name: o.Profile, Known: ProfileNames}
	}
	// A kind without parameters selects all workloads of that kind in the profile.
	wanted := func(w *workloads.Workload) bool {
		if len(o.Workloads) == 0 || o.Profile == "" {
			return true
		}
		kind, _, _ := strings.Cut(w.Name, ":")
		return slices.Contains(o.Workloads, kind) ||
			slices.ContainsFunc(sent, func(s *workloads.Workload) bool { return s.Name == w.Name })
	}
	for _, want := range o.Groups {
		if !slices.ContainsFunc(p.Groups, func(g Group) bool { return g.Name == want }) {
			return Profile{}, &workloads.UnknownError{What: "group", Name: want, Known: p.GroupNames()}
		}
	}
	var groups []Group
	for _, g := range p.Groups {
		if len(o.Groups) > 0 && !slices.Contains(o.Groups, g.Name) {
			continue
		}
		g.Cases = slices.DeleteFunc(slices.Clone(g.Cases), func(c Case) bool {
			return !slices.Contains(chosen, c.Fabric) || !wanted(c.Workload)
		})
		for i := range g.Cases {
			g.Cases[i].Setup = g.Cases[i].Setup.or(o.Setup)
		}
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
	p.Groups = groups
	// Cases that were left out on purpose are not missing.
	p.Targets = slices.DeleteFunc(p.Targets, func(t Target) bool { return !t.within(groups) })
	return p, nil
}

// GroupNames returns the names of the profile's groups.
func (p Profile) GroupNames() []string {
	var names []string
	for _, g := range p.Groups {
		names = append(names, g.Name)
	}
	return names
}

// or fills unset fields of the setup.
func (s Setup) or(other Setup) Setup {
	s.Host = s.Host || other.Host
	s.Guests = s.Guests || other.Guests
	if s.MTU == 0 {
		s.MTU = other.MTU
	}
	return s
}

// within reports whether the groups have the cases of the target.
func (t Target) within(groups []Group) bool {
	labels := map[string]bool{"": true}
	for _, g := range groups {
		if g.Name != t.Group {
			continue
		}
		for _, c := range g.Cases {
			labels[c.Label()] = true
		}
	}
	return labels[t.Of] && labels[t.Against] && labels[t.OfLess] && labels[t.AgainstLess]
}

// every returns each workload on each fabric; without workloads, one of every kind with short
// rounds, either all in instructions or none.
func every(fs []*fabrics.Fabric, ws []*workloads.Workload, quick, counting bool) Profile {
	rounds := 5
	if quick {
		rounds = 3
	}
	if len(ws) == 0 {
		for _, k := range workloads.Kinds {
			if w := workloads.Must(k.Name); w.Takes < 10*time.Second && w.Exact == counting {
				ws = append(ws, w)
			}
		}
	}
	p := Profile{Name: "chosen", About: "what was asked for"}
	for _, w := range ws {
		p.Groups = append(p.Groups, group(rounds, across(fs, w)))
	}
	return p
}
