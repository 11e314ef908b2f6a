// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/config"
)

// A place is the port that the file has for a device.
type place struct {
	bridge  string
	port    *config.Port
	pattern bool // the port's name is a pattern
}

// same reports whether two places are the same, possibly in two versions of a
// file.
func (p *place) same(o *place) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.bridge == o.bridge && p.port.Name == o.port.Name
}

// places are the places of a file.
type places struct {
	named    map[string]*place // nil if the name is a mirror's or of a port of another type
	patterns []*place          // in the order of the file
	more     map[string]bool   // names of devices for which the file has more than the port
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
				all.more[word] = true // words that are not names of devices do no harm
			}
		}
	}
	return all
}

// up reports whether the devices of a place are up.
func (p *place) up() bool { return p.port.Up == nil || *p.port.Up }

// describes reports whether the file has another description than the device
// has.
func (p *place) describes(d device) bool {
	return p.port.Description != nil && *p.port.Description != d.alias
}

// backup returns the backup port of a place's ports, "" for none.
func (p *place) backup() string {
	for _, c := range p.port.Options.Changes {
		if c.Name == "backup" && c.Value != "none" {
			return c.Value
		}
	}
	return ""
}

// says reports whether the file has more about a device than its port.
func (a places) says(name string) bool {
	if a.more[name] {
		return true
	}
	p := a.of(name)
	return p != nil && p.backup() != ""
}

// of returns the place for a device's name, nil for none.
func (a places) of(name string) *place {
	if p, ok := a.named[name]; ok {
		return p
	}
	for _, p := range a.patterns {
		// a malformed pattern matches nothing: it was reported when
		// the file was read
		if ok, err := path.Match(p.port.Name, name); ok && err == nil {
			return p
		}
	}
	return nil
}

// rival returns a place in another bridge whose pattern matches the device,
// too, nil for none. An apply of the file refuses the device for that.
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

// berths returns the berths that a bridge should have ready, count for each
// pattern. A berth has its pattern instead of a device's name. If a pattern is
// too long for that, the bridge would refuse all berths.
func (a places) berths(name string, count int) (list []bridge.Berth) {
	for _, p := range a.patterns {
		if p.bridge == name && count > 0 && len(p.port.Name) < unix.IFNAMSIZ {
			list = append(list, bridge.Berth{Pattern: p.port.Name, Options: p.port.Options, VLANs: p.port.VLANs, Count: count})
		}
	}
	return list
}
