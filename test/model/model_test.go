// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"maps"
	"slices"

	"bascule/test/netlab"
)

// A model is the simplest possible learning switch. The real one must do the same. Ports are
// numbers, and entries do not age.
type model struct {
	ports map[int]settings
	fdb   map[address]place
	max   int // limit of dynamic entries
	mask  int // reserved addresses that are forwarded

	filtering bool
	filtered  bool        // VLAN filtering was enabled at least once: ports have VLANs
	below     map[int]int // private VLANs, with their primary
}

type settings struct {
	learn, discover, mcast, bcast, hairpin bool
	domains                                uint32
	max                                    int // limit of dynamic entries, 0 for none

	pvid int
	in   map[int]bool // VLANs; true if their frames leave untagged
}

// isolated is the only private VLAN that is isolated, if it is private. The others are
// communities.
const isolated = 20

// A leaving is a frame's output.
type leaving struct {
	port int
	vlan int // VLAN of its tag, 0 for none, -1 for unchanged
}

type address struct {
	mac  netlab.MAC
	vlan int
}

type place struct {
	port           int
	static, sticky bool
}

// forward receives a frame, and returns how it leaves. src has the VLAN of the frame's tag.
func (m *model) forward(in int, dst netlab.MAC, src address) []leaving {
	p, ok := m.ports[in]
	reserved := dst[5] < 16 && netlab.MAC(append(slices.Clone(dst[:5]), 0)) == netlab.MAC{1, 0x80, 0xc2}
	if !ok || reserved && m.mask>>dst[5]&1 == 0 || src.mac[0]&1 == 1 || src.mac == (netlab.MAC{}) {
		return nil
	}
	vlan := src.vlan
	if m.filtering {
		if vlan == 0 {
			vlan = p.pvid
		}
		if _, member := p.in[vlan]; !member {
			return nil
		}
		src.vlan = m.addresses(vlan)
	}
	if p.learn {
		m.learn(in, src)
	}
	known, ok := m.fdb[address{dst, src.vlan}]
	var out []leaving
	for _, n := range slices.Sorted(maps.Keys(m.ports)) {
		o := m.ports[n]
		takes := o.discover
		switch {
		case dst == netlab.Broadcast:
			takes = o.bcast
		case dst[0]&1 == 1:
			takes = o.mcast
		case ok:
			takes = n == known.port
		}
		tag, reaches := m.leave(o, vlan)
		if takes && reaches && (n == in && p.hairpin || n != in && p.domains&o.domains == 0) {
			out = append(out, leaving{n, tag})
		}
	}
	return out
}

// addresses returns the VLAN whose addresses a VLAN shares, if the bridge filters.
func (m *model) addresses(vlan int) int {
	if primary := m.below[vlan]; primary != 0 && m.filtering {
		return primary
	}
	return vlan
}

// leave reports whether frames of a VLAN leave through a port, and with which tag.
func (m *model) leave(o settings, vlan int) (tag int, reaches bool) {
	if !m.filtering {
		return -1, true
	}
	with := func(untagged bool, vlan int) (int, bool) {
		if untagged {
			return 0, true
		}
		return vlan, true
	}
	untagged, member := o.in[vlan]
	primary := m.below[vlan]
	if primary == 0 {
		if member {
			return with(untagged, vlan)
		}
		any, bare := false, false
		for v := range m.below {
			untagged, member := o.in[v]
			any, bare = any || member, bare || untagged
		}
		if vlan == aPrimary && any {
			return with(bare, vlan)
		}
		return 0, false
	}
	primaryBare, promiscuous := o.in[primary]
	switch {
	case member && (promiscuous || vlan != isolated):
		return with(untagged, vlan)
	case promiscuous:
		return with(primaryBare, primary)
	}
	return 0, false
}

// aPrimary is the only VLAN that may be the primary of private VLANs.
const aPrimary = 10

// join puts a new port into the default VLAN.
func (s *settings) join() {
	s.pvid, s.in = 1, map[int]bool{1: true}
}

// valid reports whether each port that has a private VLAN tagged also has its primary.
func (m *model) valid() bool {
	for _, p := range m.ports {
		for vlan, untagged := range p.in {
			_, promiscuous := p.in[aPrimary]
			if m.below[vlan] != 0 && !untagged && !promiscuous {
				return false
			}
		}
	}
	return true
}

// spaces returns the VLANs whose addresses a port uses.
func (m *model) spaces(port int) map[int]bool {
	s := map[int]bool{}
	for vlan := range m.ports[port].in {
		s[m.addresses(vlan)] = true
	}
	return s
}

// changeVLANs makes a change if it is valid. It then deletes the addresses that their ports no
// longer use. It reports whether the change was made.
func (m *model) changeVLANs(f func()) bool {
	was, ports, below := map[int]map[int]bool{}, maps.Clone(m.ports), maps.Clone(m.below)
	for n, p := range m.ports {
		was[n] = m.spaces(n)
		p.in = maps.Clone(p.in)
		m.ports[n] = p
	}
	f()
	if !m.valid() {
		m.ports, m.below = ports, below
		return false
	}
	for n := range m.ports {
		for vlan := range was[n] {
			if !m.spaces(n)[vlan] {
				for _, a := range m.match(n, vlan, true, true) {
					delete(m.fdb, a)
				}
			}
		}
	}
	return true
}

func (m *model) learn(in int, src address) {
	e, ok := m.fdb[src]
	switch most := m.ports[in].max; {
	case ok && (e.static || e.sticky || e.port == in):
	case !ok && len(m.dynamic(0)) >= m.max:
	case most > 0 && len(m.dynamic(in)) >= most:
	default:
		m.fdb[src] = place{port: in}
	}
}

// dynamic returns the learned addresses of a port, 0 for all.
func (m *model) dynamic(port int) []address { return m.match(port, -1, true, false) }

// match returns the addresses of a port, 0 for any, in a VLAN, -1 for any, that
// were learned or are static or sticky.
func (m *model) match(port, vlan int, learned, pinned bool) (list []address) {
	for a, e := range m.fdb {
		kind := learned
		if e.static || e.sticky {
			kind = pinned
		}
		if kind && (port == 0 || e.port == port) && (vlan < 0 || a.vlan == vlan) {
			list = append(list, a)
		}
	}
	return list
}
