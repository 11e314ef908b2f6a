// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// The directions of the frames that a span port copies.
const (
	DirectionIn   = "in"   // as they enter, before any decision about them
	DirectionOut  = "out"  // as they leave
	DirectionBoth = "both" // both, once each
)

// findMember does the same as findPort, and refuses span ports, which do not take part in the
// caller's matter.
func findMember(c *draft, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	p, l, err := findPort(c, what, bridge, name)
	return p, l, memberOrError(p, what, bridge, name, err)
}

func memberOrError(p *datapath.Port, what, bridge, name string, err error) error {
	if err == nil && p.Facts&datapath.PortSpan != 0 {
		err = refused(what, name+" is a span port, which only listens", "give another port; see 'bascule port show "+bridge+"'")
	}
	return err
}

// Span is a span port and its sources.
type Span struct {
	Bridge    string
	Port      string
	Direction string
	State     string   // as in a Port
	All       bool     // the frames of every port
	Ports     []string // the frames of these ports, in the order in which they were added; never nil
	VLANs     []uint16 // the frames of these VLANs, in ascending order; never nil
}

// SpanOptions are the arguments of AddSpan. Without ports and VLANs the sources are all ports.
type SpanOptions struct {
	Ports     []string
	VLANs     []uint16
	Direction string // "" is DirectionIn
	Force     bool   // as in PortOptions
}

// AddSpan makes a device a span port of a bridge. The warnings are about things that work but may
// not be intended.
func (s *Switch) AddSpan(bridge, device string, o SpanOptions) (warnings []string, err error) {
	return s.one(addSpan(bridge, device, o))
}

func addSpan(bridge, device string, o SpanOptions) (step, error) {
	what := "add span port " + device + " to " + bridge
	if err := checkName("port", device); err != nil {
		return step{}, err
	}
	switch o.Direction {
	case "", DirectionIn, DirectionOut, DirectionBoth:
	default:
		return step{}, usagef("--direction "+o.Direction, "no such direction; give in, out or both")
	}
	in, out := o.Direction != DirectionOut, o.Direction == DirectionOut || o.Direction == DirectionBoth
	return step{what, bridge, func(c *draft) error {
		l, err := newDevice(c, what, bridge, device, TypeSpan, o.Force)
		if err != nil {
			return err
		}
		if err := c.makeWay(what, device, false); err != nil {
			return err
		}
		n := slices.Index(c.next.Spans[:], 0)
		if n < 0 {
			return refused(what, fmt.Sprintf("it has %d span ports, and no bridge can have more", len(c.next.Spans)), "delete one first; see 'bascule span show "+bridge+"'")
		}
		marks, err := c.spanSources(what, bridge, o)
		if err != nil {
			return err
		}
		p, err := c.newPort(what, device)
		if err != nil {
			return err
		}
		// It has the settings of a new port, so that no feature is enabled because of it.
		Defaults(PortSettings).store(p)
		setBits(&p.Facts, datapath.PortSpan, true)
		c.next.Spans[n] = uint16(datapath.Slot(p.Id))
		for _, m := range append(marks, spanMarks{&p.SpanIn, &p.SpanOut}) {
			m.set(n, in, out)
		}
		c.warn(c.world.spanWarning(c.next, l)...)
		c.warn(c.world.addressWarning(bridge, hostPortOf(c.next), l)...)
		c.warn(c.world.filterWarnings(l)...)
		c.settle(p)
		return c.setDevice(what, p, l, HookTCX)
	}}, nil
}

// spanMarks are two sets of span ports, by direction, for a port, a VLAN, or the bridge. In a span
// port's own marks, its own bits store its directions, and have no effect on frames.
type spanMarks struct{ in, out *uint16 }

func (m spanMarks) set(n int, in, out bool) {
	m.clear(n)
	if in {
		*m.in |= 1 << n
	}
	if out {
		*m.out |= 1 << n
	}
}

func (m spanMarks) clear(n int) {
	*m.in &^= 1 << n
	*m.out &^= 1 << n
}

func (m spanMarks) has(n int) bool { return (*m.in|*m.out)>>n&1 != 0 }

// spanSources returns the marks that a span port needs for the requested frames. It modifies only
// the requested VLANs.
func (c *draft) spanSources(what, bridge string, o SpanOptions) (marks []spanMarks, err error) {
	for _, name := range o.Ports {
		p, _, err := findPort(c, what, bridge, name)
		if err != nil {
			return nil, err
		}
		if p.Facts&datapath.PortSpan != 0 {
			return nil, refused(what, name+" is a span port itself, and copies are not copied", "name another port; see 'bascule port show "+bridge+"'")
		}
		marks = append(marks, spanMarks{&p.SpanIn, &p.SpanOut})
	}
	if len(o.VLANs) > 0 {
		if !filters(c.next) {
			return nil, refused(what, "the bridge does not filter VLANs, so no frame is in one", "leave --vlan out, or switch filtering on with 'bascule bridge set "+bridge+" --vlan-filtering'")
		}
		v, err := c.planJoins()
		if err != nil {
			return nil, failed(what, err)
		}
		for _, vid := range o.VLANs {
			if v == nil || v[vid].Member == (datapath.PortSet{}) {
				return nil, refused(what, fmt.Sprintf("no port is in VLAN %d", vid), "see 'bascule vlan show "+bridge+"'")
			}
			marks = append(marks, spanMarks{&v[vid].SpanIn, &v[vid].SpanOut})
		}
	}
	if len(marks) == 0 {
		marks = []spanMarks{{&c.next.SpanIn, &c.next.SpanOut}}
	}
	return marks, nil
}

// spanWarning warns of a span port that can't send all frames that other ports accept.
func (w *world) spanWarning(c *datapath.Config, l netlink.Link) []string {
	list := w.mtusOf(c, func(p *datapath.Port) bool { return p.Facts&datapath.PortSpan == 0 })
	if len(list) == 0 || slices.Max(list) <= l.Attrs().MTU {
		return nil
	}
	return []string{copyWarning(l.Attrs().Name, l.Attrs().MTU, slices.Max(list))}
}

// DelSpan removes a span port from its bridge.
func (s *Switch) DelSpan(bridge, device string) error {
	_, err := s.one(delSpan(bridge, device), nil)
	return err
}

func delSpan(bridge, device string) step {
	what := "delete span port " + device + " of " + bridge
	return step{what, bridge, func(c *draft) error {
		p, _, err := findPort(c, what, bridge, device)
		if err != nil {
			return err
		}
		if p.Facts&datapath.PortSpan == 0 {
			return refused(what, "it is a port that forwards, not a span port", "see 'bascule span show "+bridge+"'")
		}
		return c.removePort(what, p)
	}}
}

// removePort frees the slot of a port, and removes the rules of pf that came with its plug; leave
// does the rest. For a span port, it ends the copies, and frees the port's number for another.
func (c *draft) removePort(what string, p *datapath.Port) error {
	if err := c.dropPlugRules(what, p.Id); err != nil {
		return err
	}
	n := slices.Index(c.next.Spans[:], uint16(datapath.Slot(p.Id)))
	if c.tables.Rules != nil {
		c.tables.Rules = slices.DeleteFunc(c.tables.Rules, func(r datapath.Rule) bool { return r.Port == p.Id })
	}
	c.widow(p)
	*p = datapath.Port{}
	if n < 0 {
		return nil
	}
	c.next.Spans[n] = 0
	spanMarks{&c.next.SpanIn, &c.next.SpanOut}.clear(n)
	for _, p := range datapath.Ports(c.next) {
		spanMarks{&p.SpanIn, &p.SpanOut}.clear(n)
	}
	v, err := c.soFar()
	if err != nil {
		return failed(what, err)
	}
	if v == nil {
		return nil
	}
	for vid := range v {
		spanMarks{&v[vid].SpanIn, &v[vid].SpanOut}.clear(n)
	}
	return nil
}

// Spans returns the span ports of a bridge in the order in which they were added. If bridge is "",
// it returns the span ports of all bridges.
func (s *Switch) Spans(bridge string) (list []Span, err error) {
	list = []Span{}
	err = s.each(showWhat("the span ports", bridge), bridge, func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(s Span) bool { return s.Bridge == name })
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		vlans, err := b.VLANs()
		if err != nil {
			return err
		}
		spans, err := v.spans(vlans)
		list = append(list, spans...)
		return err
	})
	return list, err
}

// spans returns all span ports.
func (v *view) spans(vlans *datapath.VLANs) ([]Span, error) {
	list := []Span{}
	for _, p := range v.ports {
		n := slices.Index(v.b.Config.Spans[:], uint16(datapath.Slot(p.Id)))
		if n < 0 {
			continue
		}
		span := describeSpan(&v.b.Config, vlans, n, p)
		port := v.port(p, nil) // a span port is no cable's end
		span.Bridge, span.Port, span.State = v.name, port.Name, port.State
		for _, source := range v.ports {
			if source != p && (spanMarks{&source.SpanIn, &source.SpanOut}).has(n) {
				span.Ports = append(span.Ports, v.names[source.Id])
			}
		}
		list = append(list, span)
	}
	return list, nil
}

// describeSpan returns the sources of the n-th span port, p, without names.
func describeSpan(c *datapath.Config, vlans *datapath.VLANs, n int, p *datapath.Port) Span {
	in, out := p.SpanIn>>n&1 != 0, p.SpanOut>>n&1 != 0
	span := Span{Direction: DirectionIn, Ports: []string{}, VLANs: []uint16{}}
	switch {
	case in && out:
		span.Direction = DirectionBoth
	case out:
		span.Direction = DirectionOut
	}
	span.All = spanMarks{&c.SpanIn, &c.SpanOut}.has(n)
	if vlans == nil {
		return span
	}
	for vid := range vlans {
		if (spanMarks{&vlans[vid].SpanIn, &vlans[vid].SpanOut}).has(n) {
			span.VLANs = append(span.VLANs, uint16(vid))
		}
	}
	return span
}
