// SPDX-License-Identifier: BSD-2-Clause

package pftest

import (
	"net/netip"
	"slices"

	"bascule/pf"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// Packets draws packets for a ruleset and its loaded anchors. Most are drawn to
// match a rule, or to miss it by one condition. Their other values are values
// from the rules. The ports are from [Ports].
func Packets(rulesets ...*pf.Ruleset) *rapid.Generator[*reference.Packet] {
	m := mentions{
		addresses: map[pf.Family][]netip.Addr{
			pf.Inet:  {netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.0.0.1")},
			pf.Inet6: {netip.MustParseAddr("2001:db8:ffff::7"), netip.MustParseAddr("2001:db8::1")},
		},
		tables: map[string][]netip.Prefix{},
		tags:   []string{"", "", "none"},
	}
	for _, rs := range rulesets {
		m.ruleset(rs, nil)
	}
	return rapid.Custom(m.packet)
}

// mentions are the values in the conditions of rules.
type mentions struct {
	rules     [][]*pf.Rule // each with the calls of the anchors around it
	addresses map[pf.Family][]netip.Addr
	tables    map[string][]netip.Prefix
	tags      []string
}

func (m *mentions) ruleset(rs *pf.Ruleset, calls []*pf.Rule) {
	for _, table := range rs.Tables {
		for _, e := range table.Entries {
			m.tables[table.Name] = append(m.tables[table.Name], e.Prefix)
			m.ends(e.Prefix)
		}
	}
	for i := range rs.Rules {
		r := &rs.Rules[i]
		chain := append(slices.Clone(calls), r)
		m.rules = append(m.rules, chain)
		for _, h := range []pf.Host{r.From.Host, r.To.Host} {
			switch h.Kind {
			case pf.Prefix:
				m.ends(netip.PrefixFrom(h.Addr, h.Bits))
			case pf.Range:
				m.address(h.Addr.Prev(), h.Last.Next())
			}
		}
		if r.Tagged != "" {
			m.tags = append(m.tags, r.Tagged)
		}
		if r.Anchor != nil && r.Anchor.Body != nil {
			m.ruleset(r.Anchor.Body, chain)
		}
	}
}

// ends adds the first and the last address of a network and their neighbours.
func (m *mentions) ends(p netip.Prefix) {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	m.address(p.Addr(), p.Addr().Prev(), end, end.Next())
}

// address adds addresses; an address beyond the first or the last of all is
// invalid.
func (m *mentions) address(list ...netip.Addr) {
	for _, a := range list {
		if a.IsValid() {
			m.addresses[familyOf(a)] = append(m.addresses[familyOf(a)], a)
		}
	}
}

func familyOf(a netip.Addr) pf.Family {
	if a.Is4() {
		return pf.Inet
	}
	return pf.Inet6
}

func (m *mentions) packet(t *rapid.T) *reference.Packet {
	d := draw{T: t}
	// the rules to match, in the order in which they are tried
	var rules []*pf.Rule
	if len(m.rules) > 0 && d.often("near a rule") {
		rules = one(d, "rule", m.rules...)
	}
	p := &reference.Packet{
		Direction: one(d, "direction", pf.In, pf.Out),
		Port:      one(d, "port", Ports()...),
		Family:    one(d, "family", pf.Inet, pf.Inet, pf.Inet6),
		Proto:     one[uint8](d, "proto", reference.TCP, reference.TCP, reference.UDP, reference.ICMP, reference.IGMP, 47),
		Tag:       one(d, "tag", m.tags...),
	}
	for _, r := range rules {
		m.aimIP(d, r, p)
	}
	switch { // each version of ICMP belongs to one family
	case p.Proto == reference.ICMP && p.Family == pf.Inet6:
		p.Proto = reference.ICMPv6
	case p.Proto == reference.ICMPv6 && p.Family == pf.Inet:
		p.Proto = reference.ICMP
	}
	p.Src = one(d, "source", m.addresses[p.Family]...)
	p.Dst = one(d, "destination", m.addresses[p.Family]...)
	if p.Direction == pf.Out && d.often("not of the host") {
		p.ReceivedOn = one(d, "received-on", Ports()...)
	}
	if d.seldom("fragment") {
		p.Fragment = one(d, "which", reference.FirstFragment, reference.LaterFragment)
	}
	if d.seldom("options") {
		p.RouterAlert, p.Options = rapid.Bool().Draw(t, "router alert"), rapid.Bool().Draw(t, "other options")
	}
	switch p.Proto {
	case reference.TCP:
		p.Flags = one(d, "flags", pf.SYN, pf.SYN, pf.SYN|pf.ACK, pf.ACK, pf.RST)
		fallthrough
	case reference.UDP:
		p.SrcPort, p.DstPort = one(d, "source port", ports...), one(d, "destination port", ports...)
	case reference.ICMP:
		p.ICMPType, p.ICMPCode = one(d, "type", icmpTypes...), one(d, "code", icmpCodes...)
	case reference.ICMPv6:
		p.ICMPType, p.ICMPCode = one(d, "type", icmp6Types...), one(d, "code", icmpCodes...)
	}
	for _, r := range rules {
		m.aim(d, r, p)
	}
	if p.Direction == pf.In {
		p.ReceivedOn = p.Port
	}
	if p.Fragment == reference.LaterFragment {
		p.SrcPort, p.DstPort, p.Flags, p.ICMPType, p.ICMPCode = 0, 0, 0, 0, 0
	}
	return p
}

// aimIP gives the packet the family and the protocol of a rule, on which its
// other fields depend.
func (m *mentions) aimIP(d draw, r *pf.Rule, p *reference.Packet) {
	if r.Family != 0 && !d.seldom("other family") {
		p.Family = r.Family
	}
	if r.HasProto && !d.seldom("other proto") {
		p.Proto = r.Proto
	}
}

// aim gives the packet the other values of a rule, perhaps except one.
func (m *mentions) aim(d draw, r *pf.Rule, p *reference.Packet) {
	aims := []func(){
		func() {
			if r.Direction != pf.Both {
				p.Direction = r.Direction
			}
		},
		func() { p.Port = portOf(d, r.On, p.Port) },
		func() { p.ReceivedOn = portOf(d, r.ReceivedOn, p.ReceivedOn) },
		func() { p.Src = m.within(d, r.From, p.Src) },
		func() { p.Dst = m.within(d, r.To, p.Dst) },
		func() {
			if p.Proto == reference.TCP {
				p.Flags = p.Flags&^r.Flags.Of | r.Flags.Set
			}
		},
		func() {
			if r.HasICMP {
				p.ICMPType, p.ICMPCode = r.ICMPType, r.ICMPCode
			}
		},
		func() {
			if r.HasTOS {
				p.TOS = r.TOS
			}
		},
		func() {
			if r.HasPrio {
				p.Prio = r.Prio
			}
		},
		func() {
			if r.Fragment && p.Fragment == reference.Whole {
				p.Fragment = reference.LaterFragment
			}
		},
		func() {
			if r.Tagged != "" && !r.NotTagged {
				p.Tag = r.Tagged
			}
		},
		func() { p.SrcPort = portNumber(d, r.From.Port, p.SrcPort) },
		func() { p.DstPort = portNumber(d, r.To.Port, p.DstPort) },
	}
	missed := -1
	if d.seldom("missed") {
		missed = rapid.IntRange(0, len(aims)-1).Draw(d.T, "missed")
	}
	for i, aim := range aims {
		if i != missed {
			aim()
		}
	}
}

// portOf draws a port of a rule's interface. If that is any, or there is no
// such port, it returns otherwise.
func portOf(d draw, i pf.Interface, otherwise reference.Port) reference.Port {
	if i.Name == "" {
		return otherwise
	}
	matching := slices.DeleteFunc(Ports(), func(p reference.Port) bool {
		return (i.Name == "any" || i.Name == p.Name || slices.Contains(p.Groups, i.Name)) == i.Not
	})
	if len(matching) == 0 {
		return otherwise
	}
	return one(d, "port", matching...)
}

// within draws an address of a host, unless it is negated.
func (m *mentions) within(d draw, e pf.Endpoint, otherwise netip.Addr) netip.Addr {
	var networks []netip.Prefix
	switch h := e.Host; h.Kind {
	case pf.Prefix:
		networks = []netip.Prefix{netip.PrefixFrom(h.Addr, h.Bits)}
	case pf.Range:
		networks = []netip.Prefix{netip.PrefixFrom(one(d, "end", h.Addr, h.Last), h.Addr.BitLen())}
	case pf.InTable:
		networks = m.tables[h.Name]
	case pf.Dynamic:
		networks = Addresses(h.Name, h.Modes)
	}
	networks = slices.DeleteFunc(slices.Clone(networks), func(p netip.Prefix) bool {
		return p.Addr().Is4() != otherwise.Is4()
	})
	if e.Not || len(networks) == 0 {
		return otherwise
	}
	network := one(d, "within", networks...)
	if mentioned := slices.DeleteFunc(slices.Clone(m.addresses[familyOf(otherwise)]), func(a netip.Addr) bool {
		return !network.Contains(a)
	}); len(mentioned) > 0 {
		return one(d, "address", mentioned...)
	}
	return network.Addr()
}

// portNumber draws a number that satisfies a condition, preferably a first or
// last one.
func portNumber(d draw, p pf.Port, otherwise uint16) uint16 {
	switch p.Op {
	case pf.PortEqual:
		return p.Lo
	case pf.PortNotEqual, pf.PortInside, pf.PortGreater:
		return p.Lo + 1
	case pf.PortLess, pf.PortOutside:
		return p.Lo - 1
	case pf.PortAtMost, pf.PortAtLeast:
		return p.Lo
	case pf.PortRange:
		return one(d, "end of range", p.Lo, p.Hi)
	}
	return otherwise
}
