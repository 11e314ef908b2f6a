// SPDX-License-Identifier: BSD-2-Clause

package model

import (
	"maps"
	"slices"

	"bascule/test/netlab"
)

// A model is a learning switch as simple as can be: what the real one must do.
// Ports are numbers. Nothing ages.
type model struct {
	ports map[int]settings
	fdb   map[address]place
	max   int // dynamic entries
	mask  int // reserved addresses that are forwarded
}

type settings struct {
	learn, discover, mcast, bcast, hairpin bool
	domains                                uint32
	max                                    int // dynamic entries, 0 for no limit
}

type address struct {
	mac  netlab.MAC
	vlan int
}

type place struct {
	port           int
	static, sticky bool
}

// forward takes a frame in and returns the ports that it leaves by.
func (m *model) forward(in int, dst netlab.MAC, src address) []int {
	p, ok := m.ports[in]
	reserved := dst[5] < 16 && netlab.MAC(append(slices.Clone(dst[:5]), 0)) == netlab.MAC{1, 0x80, 0xc2}
	if !ok || reserved && m.mask>>dst[5]&1 == 0 || src.mac[0]&1 == 1 || src.mac == (netlab.MAC{}) {
		return nil
	}
	if p.learn {
		m.learn(in, src)
	}
	known, ok := m.fdb[address{dst, src.vlan}]
	var out []int
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
		if takes && (n == in && p.hairpin || n != in && p.domains&o.domains == 0) {
			out = append(out, n)
		}
	}
	return out
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
