// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/config"
)

// A place is where the file puts a device.
type place struct {
	bridge  string
	port    *config.Port
	pattern bool // the port's name is one
}

// same reports whether two places are one, be it in two versions of a file.
func (p *place) same(o *place) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.bridge == o.bridge && p.port.Name == o.port.Name
}

// places are those of a file.
type places struct {
	named    map[string]*place // nil where the name is another kind of port's, or a mirror's
	patterns []*place          // in the order of the file
	more     map[string]bool   // names of devices of which the file says more than which port they are
	mirrors  map[string]bool
}

func newPlaces(f config.File) places {
	all := places{named: map[string]*place{}, more: map[string]bool{}, mirrors: map[string]bool{}}
	for i := range f.Bridges {
		b := &f.Bridges[i]
		for j := range b.Ports {
			p := &b.Ports[j]
			at := &place{bridge: b.Name, port: p}
			name, ok := p.Device()
			if backup := at.backup(); backup != "" {
				all.more[backup] = true
			}
			switch {
			case !ok:
				at.pattern = true
				all.patterns = append(all.patterns, at)
			case p.Options.Type == "" || p.Options.Type == bridge.TypeNetdev:
				all.named[name] = at
			default:
				all.named[name] = nil
			}
		}
		for _, m := range b.Mirrors {
			all.named[m.Device], all.mirrors[m.Device] = nil, true
			for _, port := range m.Ports {
				all.more[port] = true
			}
		}
		for _, e := range b.Bindings {
			all.more[e.Port] = true
		}
		for _, e := range b.Entries {
			all.more[e.Port] = true
		}
		for _, r := range b.Rules {
			for _, word := range strings.Fields(r.Text) {
				all.more[word] = true // those that are no names are no device's either
			}
		}
	}
	return all
}

// up reports whether the devices of a place are up.
func (p *place) up() bool { return p.port.Up == nil || *p.port.Up }

// describes reports whether the file has another description of a device of a place.
func (p *place) describes(d device) bool {
	return p.port.Description != nil && *p.port.Description != d.alias
}

// backup is the port that stands in for the ports of a place, "" for none.
func (p *place) backup() string {
	for _, c := range p.port.Options.Changes {
		if c.Name == "backup" && c.Value != "none" {
			return c.Value
		}
	}
	return ""
}

// says reports whether the file says more of a device than which port it is.
func (a places) says(name string) bool {
	if a.more[name] {
		return true
	}
	p := a.of(name)
	return p != nil && p.backup() != ""
}

// of returns the place of a device's name, nil for none.
func (a places) of(name string) *place {
	if p, ok := a.named[name]; ok {
		return p
	}
	for _, p := range a.patterns {
		// a pattern that is malformed matches nothing: whoever read the file said so
		if ok, err := path.Match(p.port.Name, name); ok && err == nil {
			return p
		}
	}
	return nil
}

// rival returns a place in another bridge whose pattern a device matches, too,
// nil for none. Whoever applies the file refuses the device for that.
func (a places) rival(name string, at *place) *place {
	if !at.pattern {
		return nil
	}
	for _, p := range a.patterns {
		if ok, err := path.Match(p.port.Name, name); ok && err == nil && p.bridge != at.bridge {
			return p
		}
	}
	return nil
}

// berths returns the berths that a bridge is to have ready, so many for each
// pattern. A berth has its pattern where a port has its device's name. If a
// pattern is too long for that, the bridge would refuse all berths.
func (a places) berths(name string, count int) (list []bridge.Berth) {
	for _, p := range a.patterns {
		if p.bridge == name && count > 0 && len(p.port.Name) < unix.IFNAMSIZ {
			list = append(list, bridge.Berth{Pattern: p.port.Name, Options: p.port.Options, VLANs: p.port.VLANs, Count: count})
		}
	}
	return list
}
