// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// The directions of the frames that a span port gets copies of.
const (
	DirectionIn   = "in"   // as they come in, before anything is decided about them
	DirectionOut  = "out"  // as they go out
	DirectionBoth = "both" // once each
)

// findMember is findPort for what span ports do not take part in.
func findMember(c *change, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	p, l, err := findPort(c, what, bridge, name)
	if err == nil && p.Flags&datapath.PortSpan != 0 {
		err = refused(what, name+" is a span port, which only listens", "give another port; see 'bascule port show "+bridge+"'")
	}
	return p, l, err
}

// Span is a span port and what it gets copies of.
type Span struct {
	Bridge    string
	Port      string
	Direction string
	All       bool     // every port's frames
	Ports     []string // these ports' frames, in the order of their addition; never nil
	VLANs     []uint16 // the frames of these VLANs, rising; never nil
}

// SpanOptions is what AddSpan is asked for. Without ports and VLANs it is every
// port's frames.
type SpanOptions struct {
	Ports     []string
	VLANs     []uint16
	Direction string // "" is DirectionIn
}

// AddSpan makes a device a span port of a bridge. The warnings are things that
// work but may not be meant.
func (s *Switch) AddSpan(bridge, device string, o SpanOptions) (warnings []string, err error) {
	what := "add span port " + device + " to " + bridge
	if err := checkName("port", device); err != nil {
		return nil, err
	}
	switch o.Direction {
	case "", DirectionIn, DirectionOut, DirectionBoth:
	default:
		return nil, usagef("--direction "+o.Direction, "no such direction; give in, out or both")
	}
	in, out := o.Direction != DirectionOut, o.Direction == DirectionOut || o.Direction == DirectionBoth
	add := func() error {
		return s.change(what, bridge, func(c *change) error {
			l, err := newDevice(c, what, bridge, device, TypeNetdev)
			if err != nil {
				return err
			}
			for _, p := range datapath.Ports(c.next) {
				if datapath.PortName(p) == device && !c.bridge.HasDevice(p) {
					return errGone
				}
			}
			n := slices.Index(c.next.Spans[:], 0)
			if n < 0 {
				return refused(what, fmt.Sprintf("it has %d span ports, and no bridge can have more", len(c.next.Spans)), "delete one first; see 'bascule span show "+bridge+"'")
			}
			marks, err := c.spanSources(what, bridge, o)
			if err != nil {
				return err
			}
			p := datapath.NewPort(c.next, device)
			if p == nil {
				return refused(what, fmt.Sprintf("it has %d ports, and no bridge can have more", datapath.MaxPorts), "make another bridge")
			}
			// as any new port, so that the switch pays for no setting of it
			defaults(PortSettings).store(p)
			setFlag(p, datapath.PortSpan, true)
			c.next.Spans[n] = uint16(datapath.Slot(p.Id))
			for _, m := range append(marks, spanMarks{&p.SpanIn, &p.SpanOut}) {
				m.set(n, in, out)
			}
			c.before = func() error {
				warnings = spanWarning(c.next, l)
				setDevice(p, l, HookTCX)
				notes, err := inspect(p, l)
				warnings = append(warnings, notes...)
				return err
			}
			c.after = func() error {
				notes, err := settle(c.bridge, datapath.PortAt(&c.bridge.Config, p.Id))
				warnings = append(warnings, notes...)
				return err
			}
			return nil
		})
	}
	err = add()
	if errors.Is(err, errGone) {
		// the new device takes the place of one of the same name that is gone
		if err := s.DelPort(bridge, device); err != nil {
			return nil, err
		}
		err = add()
	}
	if err != nil {
		return nil, err
	}
	return warnings, nil
}

// spanMarks are two sets of span ports, by direction, of a port, a VLAN, or the
// bridge. A span port's own say what its directions are: they concern no frame.
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

// spanSources finds where a span port is to be marked so that it gets what is
// asked for. Only VLANs that are asked for are touched.
func (c *change) spanSources(what, bridge string, o SpanOptions) (marks []spanMarks, err error) {
	for _, name := range o.Ports {
		p, _, err := findPort(c, what, bridge, name)
		if err != nil {
			return nil, err
		}
		if p.Flags&datapath.PortSpan != 0 {
			return nil, refused(what, name+" is a span port itself, and copies are not copied", "name another port; see 'bascule port show "+bridge+"'")
		}
		marks = append(marks, spanMarks{&p.SpanIn, &p.SpanOut})
	}
	if len(o.VLANs) > 0 {
		if !filters(c.next) {
			return nil, refused(what, "VLAN filtering is off, and no frame is in a VLAN", "switch it on with 'bascule bridge set "+bridge+" --vlan-filtering'")
		}
		v, err := c.vlans()
		if err != nil {
			return nil, failed(what, err)
		}
		for _, vid := range o.VLANs {
			if v == nil || v[vid].Member == (datapath.PortSet{}) {
				return nil, refused(what, fmt.Sprintf("no port is in VLAN %d", vid), "see 'bascule vlan show "+bridge+"'")
			}
			marks = append(marks, spanMarks{&v[vid].SpanIn, &v[vid].SpanOut})
		}
		c.tables.VLANs = v
	}
	if len(marks) == 0 {
		marks = []spanMarks{{&c.next.SpanIn, &c.next.SpanOut}}
	}
	return marks, nil
}

// spanWarning tells of a span port that can't have all that others take.
func spanWarning(c *datapath.Config, l netlink.Link) []string {
	var others []uint32
	for _, p := range datapath.Ports(c) {
		if p.Flags&datapath.PortSpan == 0 {
			others = append(others, p.Ifindex)
		}
	}
	list := mtus(others)
	if len(list) == 0 || slices.Max(list) <= l.Attrs().MTU {
		return nil
	}
	return []string{fmt.Sprintf("%s has MTU %d, other ports up to %d: of larger frames it gets no copy (counted there, reason mtu)", l.Attrs().Name, l.Attrs().MTU, slices.Max(list))}
}

// DelSpan takes a span port out of its bridge.
func (s *Switch) DelSpan(bridge, device string) error {
	what := "delete span port " + device + " of " + bridge
	return s.change(what, bridge, func(c *change) error {
		p, _, err := findPort(c, what, bridge, device)
		if err != nil {
			return err
		}
		if p.Flags&datapath.PortSpan == 0 {
			return refused(what, "it is a port that forwards, not a span port", "see 'bascule span show "+bridge+"'")
		}
		return c.removePort(what, p)
	})
}

// removePort frees the slot of a port; leave does the rest. What was copied to
// it is not any more, and its number is free for another span port.
func (c *change) removePort(what string, p *datapath.Port) error {
	n := slices.Index(c.next.Spans[:], uint16(datapath.Slot(p.Id)))
	*p = datapath.Port{}
	if n < 0 {
		return nil
	}
	c.next.Spans[n] = 0
	spanMarks{&c.next.SpanIn, &c.next.SpanOut}.clear(n)
	for _, p := range datapath.Ports(c.next) {
		spanMarks{&p.SpanIn, &p.SpanOut}.clear(n)
	}
	v, err := c.vlans()
	if err != nil {
		return failed(what, err)
	}
	if v == nil {
		return nil
	}
	for vid := range v {
		if m := (spanMarks{&v[vid].SpanIn, &v[vid].SpanOut}); m.has(n) {
			m.clear(n)
			c.tables.VLANs = v
		}
	}
	return nil
}

// Spans returns the span ports of a bridge in the order in which they were
// added, or those of all bridges where the name is "".
func (s *Switch) Spans(bridge string) (list []Span, err error) {
	list = []Span{}
	err = s.each(bridge, func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(s Span) bool { return s.Bridge == name })
		devices, err := links()
		if err != nil {
			return err
		}
		ports := inOrder(&b.Config)
		var vlans *datapath.VLANs
		for _, p := range ports {
			n := slices.Index(b.Config.Spans[:], uint16(datapath.Slot(p.Id)))
			if n < 0 {
				continue
			}
			if vlans == nil {
				if vlans, err = b.VLANs(); err != nil {
					return err
				}
			}
			span := describeSpan(&b.Config, vlans, n, p)
			span.Bridge, span.Port = name, portName(b, p, devices)
			for _, source := range ports {
				if source != p && (spanMarks{&source.SpanIn, &source.SpanOut}).has(n) {
					span.Ports = append(span.Ports, portName(b, source, devices))
				}
			}
			list = append(list, span)
		}
		return nil
	})
	return list, err
}

// describeSpan says what the n-th span port, p, gets, without names.
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
