// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"net/netip"
	"slices"
	"strings"

	"bascule/bridge"
)

// Plan returns the actions that change the running state, was, to want, given the devices of the
// namespace. They follow the order of the bridges in want; there are none if both states agree. Plan
// changes nothing. Work that has to wait for a missing device is in the warnings. If want has
// mistakes, the error is an [Errors] with the first mistakes of each file and a count of the others.
//
// Plan expects the pf rules of both states as [Read] returns them: in the switch's output format.
func Plan(was, want File, devices []bridge.Device) (actions []Action, warnings []string, err error) {
	p := newPlan(was, want, devices)
	if bad := p.want.bad.errors(); bad != nil {
		return nil, nil, bad
	}
	return p.actions, p.warnings, nil
}

// A plan has the actions, and the steps that execute them.
type plan struct {
	actions  []Action
	warnings []string
	was      *model
	want     *model
	devices  []bridge.Device            // that exist
	early    map[string]map[string]bool // by bridge, ports and mirrors that have to leave before others are added
	ahead    map[string][]netip.Prefix  // addresses that host interfaces get
	hostsGo  [][2]string                // host ports that leave, by bridge and name
	stages   [stageCount][]step
}

// A step is an atomic unit of execution.
type step func(*bridge.Switch, Options) (warnings []string, err error)

// The stages of the execution. If the process ends after any stage, a new plan can continue. A
// bridge gets its filter before its ports. Settings that admit frames are removed before settings
// that block frames.
const (
	makeBridges = iota
	forget      // addresses and bindings that have to leave
	clearTheWay // ports whose names or devices are needed for other ports
	cutCables
	loadPF
	patchCables   // before ports: as long as a new bridge has no ports, the cables have no effect
	editBridges   // all other changes to a single bridge, in one generation
	remember      // addresses and bindings that are added
	giveAddresses // to the interfaces of host ports
	openPF        // pf that is switched off
	followPF      // the rules for interfaces that have their addresses by then
	removeBridges // the ones that should not exist, which are empty by then
	stageCount
)

// newPlan makes a plan; if want has mistakes, the plan is empty.
func newPlan(was, want File, devices []bridge.Device) *plan {
	want, left := leave(was, want, devices)
	p := &plan{was: resolve(was, nil, nil), devices: devices, early: map[string]map[string]bool{}, ahead: ahead(want, devices)}
	p.want = resolve(want, p.was, devices)
	p.warnings = append(p.want.notes, left...)
	if p.want.bad.list != nil {
		return p
	}
	diffs := make([]*diff, len(p.want.bridges))
	for i, b := range p.want.bridges {
		diffs[i] = p.newDiff(b)
	}
	for _, d := range diffs {
		d.findEarly()
	}
	for _, d := range diffs {
		d.bridge()
		d.ports()
		d.private()
		d.rules()
		for _, s := range beforeMirrors {
			d.section(s)
		}
		d.mirrors()
		for _, s := range afterMirrors {
			d.section(s)
		}
		d.pf()
		d.finish()
		if d.want.Gone {
			d.remove()
		}
	}
	return p
}

// leave replaces bridges that should not exist by empty ones with the same settings until they are
// deleted. It leaves out bridges that do not exist, and bridges that stay because ports were plugged
// into them.
func leave(was, want File, devices []bridge.Device) (_ File, notes []string) {
	list := make([]Bridge, 0, len(want.Bridges))
	for _, b := range want.Bridges {
		if b.Gone {
			runs := bridgeNamed(was, b.Name)
			plugged := slices.ContainsFunc(devices, func(d bridge.Device) bool { return d.Bridge == b.Name && d.Owner != "" })
			if plugged {
				notes = append(notes, "bridge "+b.Name+" stays, since it has ports that were plugged; see 'bascule port show "+b.Name+"'")
			}
			if runs == nil || plugged {
				continue
			}
			b.Settings, b.Private = runs.Settings, runs.Private
		}
		list = append(list, b)
	}
	want.Bridges = list
	return want, notes
}

func (p *plan) step(stage int, s step) { p.stages[stage] = append(p.stages[stage], s) }

// findEarly finds the ports and mirrors that have to leave the bridge before others are added.
func (d *diff) findEarly() {
	early := func(bridge, name string) {
		if d.early[bridge] == nil {
			d.early[bridge] = map[string]bool{}
		}
		d.early[bridge][name] = true
	}
	leave := func(name string, needed bool) {
		d.gone[name] = true
		if needed {
			early(d.want.Name, name)
		}
	}
	for _, was := range d.was.ports {
		want := d.want.byName[was.name]
		switch {
		case want == nil:
			leave(was.name, d.neededElsewhere(was.name) || slices.ContainsFunc(d.want.mirrors, func(m *mirrorModel) bool { return m.Device == was.name }))
		case d.made(was, want):
			leave(was.name, true)
		}
	}
	for _, was := range d.was.mirrors {
		i := slices.IndexFunc(d.want.mirrors, func(m *mirrorModel) bool { return m.Device == was.Device })
		switch {
		case i < 0:
			leave(was.Device, d.want.byName[was.Device] != nil || d.neededElsewhere(was.Device))
		case !d.sameMirror(was, d.want.mirrors[i]) || !d.isPort(was.Device, bridge.TypeSpan) && d.plan.want.devices[was.Device] != nil:
			leave(was.Device, true)
		}
	}
}

// neededElsewhere reports whether another bridge of the file needs a device of the name.
func (d *diff) neededElsewhere(name string) bool {
	for _, b := range d.plan.want.bridges {
		if b == d.want {
			continue
		}
		if p := b.byName[name]; p != nil && p.kind != bridge.TypePatch {
			return true
		}
		if slices.ContainsFunc(b.mirrors, func(m *mirrorModel) bool { return m.Device == name }) {
			return true
		}
	}
	return false
}

// Cut returns the bridges that are not in a file but lose ends of patch cables because of it. was is
// the running state.
func Cut(was, want File) (bridges []string) {
	for _, b := range want.Bridges {
		runs := bridgeNamed(was, b.Name)
		if runs == nil {
			continue
		}
		for _, p := range runs.Ports {
			far, _, cable := strings.Cut(p.Options.Peer, "/")
			stays := slices.ContainsFunc(b.Ports, func(o Port) bool {
				a, _ := plainName(o.Name)
				b, _ := plainName(p.Name)
				return a == b && o.Options.Type == p.Options.Type && o.Options.Peer == p.Options.Peer
			})
			if cable && !stays && bridgeNamed(want, far) == nil && !slices.Contains(bridges, far) {
				bridges = append(bridges, far)
			}
		}
	}
	return bridges
}

// cutElsewhere reports whether this end of a cable disappears with the other end, in a bridge before
// this one.
func (d *diff) cutElsewhere(p *portModel) bool {
	far, port, _ := strings.Cut(p.peer, "/")
	for _, b := range d.plan.want.bridges {
		if b == d.want {
			return false
		}
		if b.Name != far {
			continue
		}
		was := d.plan.was.byName[far]
		if was == nil || was.byName[port] == nil {
			return false
		}
		want := b.byName[port]
		return want == nil || want.kind != bridge.TypePatch || want.peer != d.want.Name+"/"+p.name
	}
	return false
}

// patchedElsewhere reports whether the other end of a new cable is in a bridge
// before this one, which makes both ends.
func (d *diff) patchedElsewhere(p *portModel) bool {
	far, _, _ := strings.Cut(p.peer, "/")
	for _, b := range d.plan.want.bridges {
		if b == d.want {
			return false
		}
		if b.Name == far {
			return true
		}
	}
	return false
}

// finish makes steps of the changes that are applied together.
func (d *diff) finish() {
	name := d.want.Name
	var ports, mirrors []string
	for _, p := range d.was.ports {
		if d.early[name][p.name] && p.kind != bridge.TypePatch {
			ports = append(ports, p.name)
		}
	}
	for _, m := range d.was.mirrors {
		if d.early[name][m.Device] {
			mirrors = append(mirrors, m.Device)
		}
	}
	if len(ports)+len(mirrors) > 0 {
		d.step(clearTheWay, func(s *bridge.Switch, _ Options) ([]string, error) {
			return s.Edit(name, func(e *bridge.Edit) error {
				for _, m := range mirrors {
					if err := e.DelSpan(m); err != nil {
						return err
					}
				}
				for _, p := range ports {
					if err := e.DelPort(p); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	if edits := d.edits; len(edits) > 0 {
		d.step(editBridges, func(s *bridge.Switch, _ Options) ([]string, error) {
			notes, err := s.Edit(name, func(e *bridge.Edit) error {
				for _, f := range edits {
					if err := f(e); err != nil {
						return err
					}
				}
				return nil
			})
			return about("bridge "+name, notes), err
		})
	}
}
