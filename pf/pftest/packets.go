// SPDX-License-Identifier: BSD-2-Clause

package pftest

import (
	"net/netip"

	"bascule/pf"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// Packets draws packets for a ruleset and those of its loaded anchors: most of
// what a packet has is what their rules ask about, or beside it. The ports are
// of [Ports].
func Packets(rulesets ...*pf.Ruleset) *rapid.Generator[*reference.Packet] {
	m := mentions{
		addresses: map[pf.Family][]netip.Addr{
			pf.Inet:  {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.0.0.1")},
			pf.Inet6: {netip.MustParseAddr("2001:db8:ffff::7"), netip.MustParseAddr("2001:db8::1")},
		},
		protocols: []uint8{reference.TCP, reference.TCP, reference.UDP, reference.ICMP, reference.ICMPv6, reference.IGMP},
		ports:     []uint16{22, 40000},
		flags:     []uint8{pf.SYN, pf.SYN, pf.SYN | pf.ACK, pf.ACK, pf.RST},
		types:     []uint8{0, 8, 128, 129, 135, 136, 143},
		codes:     []uint8{0},
		tos:       []uint8{0},
		prios:     []uint8{0},
		tags:      []string{"", "", "none"},
	}
	for _, rs := range rulesets {
		m.ruleset(rs)
	}
	return rapid.Custom(m.packet)
}

// mentions are what rules ask about.
type mentions struct {
	addresses                                  map[pf.Family][]netip.Addr
	ports                                      []uint16
	protocols, flags, types, codes, tos, prios []uint8
	tags                                       []string
}

func (m *mentions) ruleset(rs *pf.Ruleset) {
	for _, table := range rs.Tables {
		for _, e := range table.Entries {
			m.prefix(e.Prefix)
		}
	}
	for i := range rs.Rules {
		m.rule(&rs.Rules[i])
		if a := rs.Rules[i].Anchor; a != nil && a.Body != nil {
			m.ruleset(a.Body)
		}
	}
}

func (m *mentions) rule(r *pf.Rule) {
	for _, e := range []pf.Endpoint{r.From, r.To} {
		switch e.Host.Kind {
		case pf.Prefix:
			m.prefix(netip.PrefixFrom(e.Host.Addr, e.Host.Bits))
		case pf.Range:
			m.address(e.Host.Addr, e.Host.Addr.Prev(), e.Host.Last, e.Host.Last.Next())
		}
		if e.Port.Op != pf.AnyPort {
			m.ports = append(m.ports, e.Port.Lo-1, e.Port.Lo, e.Port.Lo+1, e.Port.Hi-1, e.Port.Hi, e.Port.Hi+1)
		}
	}
	if r.HasProto {
		m.protocols = append(m.protocols, r.Proto)
	}
	if r.Flags.Of != 0 {
		m.flags = append(m.flags, r.Flags.Set, r.Flags.Set|^r.Flags.Of, r.Flags.Of)
	}
	if r.HasICMP {
		m.types = append(m.types, r.ICMPType)
		m.codes = append(m.codes, r.ICMPCode)
	}
	if r.HasTOS {
		m.tos = append(m.tos, r.TOS)
	}
	if r.HasPrio {
		m.prios = append(m.prios, r.Prio)
	}
	if r.Tagged != "" {
		m.tags = append(m.tags, r.Tagged)
	}
}

// prefix adds the ends of a network and what is beside them.
func (m *mentions) prefix(p netip.Prefix) {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	m.address(p.Addr(), p.Addr().Prev(), end, end.Next())
}

// address adds addresses; those beyond the first and the last of all are none.
func (m *mentions) address(list ...netip.Addr) {
	for _, a := range list {
		switch {
		case a.Is4():
			m.addresses[pf.Inet] = append(m.addresses[pf.Inet], a)
		case a.Is6():
			m.addresses[pf.Inet6] = append(m.addresses[pf.Inet6], a)
		}
	}
}

func (m *mentions) packet(t *rapid.T) *reference.Packet {
	d := draw{T: t}
	p := &reference.Packet{
		Direction: one(d, "direction", pf.In, pf.Out),
		Port:      one(d, "port", Ports()...),
		Prio:      one(d, "prio", m.prios...),
		Family:    one(d, "family", pf.Inet, pf.Inet, pf.Inet6),
		Proto:     one(d, "proto", m.protocols...),
		TOS:       one(d, "tos", m.tos...),
		Tag:       one(d, "tag", m.tags...),
	}
	switch {
	case p.Direction == pf.In:
		p.ReceivedOn = p.Port
	case d.often("not of the host"):
		p.ReceivedOn = one(d, "received-on", Ports()...)
	}
	p.Src = one(d, "source", m.addresses[p.Family]...)
	p.Dst = one(d, "destination", m.addresses[p.Family]...)
	if d.seldom("fragment") {
		p.Fragment = one(d, "which", reference.FirstFragment, reference.LaterFragment)
	}
	if d.seldom("options") {
		p.RouterAlert, p.Options = rapid.Bool().Draw(t, "router alert"), rapid.Bool().Draw(t, "other options")
	}
	if p.Fragment == reference.LaterFragment {
		return p
	}
	switch p.Proto {
	case reference.TCP:
		p.Flags = one(d, "flags", m.flags...)
		fallthrough
	case reference.UDP:
		p.SrcPort, p.DstPort = one(d, "source port", m.ports...), one(d, "destination port", m.ports...)
	case reference.ICMP, reference.ICMPv6:
		p.ICMPType, p.ICMPCode = one(d, "type", m.types...), one(d, "code", m.codes...)
	}
	return p
}
