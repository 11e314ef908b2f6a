// SPDX-License-Identifier: BSD-2-Clause

// Package guest connects the interfaces of virtual machines to a switch: as libvirt's hook, and as
// the helper that QEMU runs for users without permission to make taps.
package guest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/plug"
)

// Namespace is the XML namespace of this program's elements in a domain's metadata.
const Namespace = "urn:bascule:guest:1"

// maxDomain is the size limit of a domain's XML in bytes.
const maxDomain = 4 << 20

// A domain is a guest in libvirt's format (libvirt.org/formatdomain.html).
type domain struct {
	Name       string      `xml:"name"`
	UUID       string      `xml:"uuid"`
	Interfaces []netdev    `xml:"devices>interface"`
	Metadata   *metadataOf `xml:"metadata"`
}

type metadataOf struct {
	Guests []guestOf `xml:"urn:bascule:guest:1 guest"`
	Others []other   `xml:",any"`
}

type guestOf struct {
	Interfaces []wanted `xml:"urn:bascule:guest:1 interface"`
	strict
}

// strict collects unknown attributes and elements, which may be misspelt.
type strict struct {
	Attributes []xml.Attr `xml:",any,attr"`
	Elements   []other    `xml:",any"`
}

// An other is an element without a field.
type other struct{ XMLName xml.Name }

// check refuses unknown words in an element.
func (s strict) check(in string) error {
	for _, a := range s.Attributes {
		if a.Name.Space != "xmlns" && a.Name != (xml.Name{Local: "xmlns"}) {
			return fmt.Errorf("<%s> has no attribute %.40q; see guests.md for those that it has", in, a.Name.Local)
		}
	}
	for _, e := range s.Elements {
		return fmt.Errorf("<%s> takes no <%.40s> of namespace %.40q; see guests.md for what it takes", in, e.XMLName.Local, e.XMLName.Space)
	}
	return nil
}

// check refuses elements of this program that have an unknown name or a misspelt namespace.
func (m metadataOf) check() error {
	for _, o := range m.Others {
		if strings.HasPrefix(o.XMLName.Space, "urn:bascule") {
			return fmt.Errorf("the metadata has <%.40s> of namespace %.40q; give <guest> of %q", o.XMLName.Local, o.XMLName.Space, Namespace)
		}
	}
	for _, g := range m.Guests {
		if err := g.check("guest"); err != nil {
			return err
		}
	}
	return nil
}

type netdev struct {
	Type string `xml:"type,attr"`
	MAC  struct {
		Address string `xml:"address,attr"`
	} `xml:"mac"`
	Target struct {
		Dev string `xml:"dev,attr"`
	} `xml:"target"`
	Bandwidth struct {
		Inbound  *flow `xml:"inbound"`  // to the guest
		Outbound *flow `xml:"outbound"` // from it
	} `xml:"bandwidth"`
}

// A flow is one of libvirt's limits, in kilobytes a second with a burst in KiB. libvirt passes these
// to tc(8) as kbps, of 1000 bytes, and kb.
type flow struct {
	Average uint64 `xml:"average,attr"`
	Peak    uint64 `xml:"peak,attr"`
	Burst   uint64 `xml:"burst,attr"`
	Floor   uint64 `xml:"floor,attr"`
}

// limits returns the port settings for an interface's limits, unless the settings in the metadata
// already include them. The notes list limits without effect.
func (n netdev) limits(told []bridge.Change) (list []bridge.Change, notes []string, err error) {
	for _, way := range []struct {
		setting, word string
		limit         *flow
	}{{bridge.RateOut, "inbound", n.Bandwidth.Inbound}, {bridge.RateIn, "outbound", n.Bandwidth.Outbound}} {
		if way.limit == nil || slices.ContainsFunc(told, func(c bridge.Change) bool { return c.Name == way.setting }) {
			continue
		}
		const most = 1 << 50 // does not overflow in any unit
		if way.limit.Average > most || way.limit.Burst > most {
			return nil, nil, fmt.Errorf("<%s> is above the highest limit", way.word)
		}
		value, err := plug.Rate(way.limit.Average*8000, way.limit.Burst*8192)
		if err != nil {
			return nil, nil, fmt.Errorf("<%s>: %w", way.word, err)
		}
		list = append(list, bridge.Change{Name: way.setting, Value: value})
		for _, other := range []struct {
			word  string
			value uint64
		}{{"peak", way.limit.Peak}, {"floor", way.limit.Floor}} {
			if other.value != 0 {
				notes = append(notes, fmt.Sprintf("%s: %s of <%s> has no effect on the switch, whose limit is the average with the burst", n.Target.Dev, other.word, way.word))
			}
		}
	}
	return list, notes, nil
}

// wanted is the metadata about one of a domain's interfaces.
type wanted struct {
	MAC      string    `xml:"mac,attr"`
	Bridge   string    `xml:"bridge,attr"`
	VLAN     string    `xml:"vlan,attr"`
	Tagged   string    `xml:"tagged,attr"`
	Settings []setting `xml:"urn:bascule:guest:1 set"`
	Bindings []bound   `xml:"urn:bascule:guest:1 binding"`
	PF       []rules   `xml:"urn:bascule:guest:1 pf"`
	strict
}

type rules struct {
	Text string `xml:",chardata"`
	strict
}

type setting struct {
	Name  string `xml:"name,attr"`
	Value string `xml:",chardata"`
	strict
}

type bound struct {
	MAC     string `xml:"mac,attr"`
	Address string `xml:"address,attr"`
	strict
}

// By identifies the hook in a port's owner.
const By = "libvirt"

// Hook is libvirt's hook for guests (libvirt.org/hooks.html). It gets the guest's name, the
// operation, the step, and the domain's XML. It plugs the guest's interfaces into their bridges
// before the guest starts and when libvirt restarts, and removes them after the guest has ended.
// After any error no interface is plugged, and the error prevents the guest's start. Hook ignores
// all other operations.
func Hook(s *bridge.Switch, operation, step string, from io.Reader) (warnings []string, err error) {
	switch operation + " " + step {
	case "start begin", "reconnect begin":
		d, list, notes, err := plugs(from)
		if err != nil {
			return nil, err
		}
		warnings = notes
		for i, p := range list {
			more, err := plug.Put(s, p)
			warnings = append(warnings, more...)
			if err == nil {
				continue
			}
			if operation == "reconnect" { // a running guest keeps its interfaces
				warnings = append(warnings, fmt.Sprintf("guest %.64s: %v", d.Name, err))
				continue
			}
			for _, before := range list[:i] {
				if _, _, failed := plug.Remove(s, before.Owner.ID); failed != nil {
					err = errors.Join(err, failed)
				}
			}
			return warnings, fmt.Errorf("guest %s: %w", d.Name, err)
		}
		return warnings, nil
	case "release end":
		d, err := read(from)
		if err != nil {
			return nil, err
		}
		list, err := s.Owned()
		if err != nil {
			return nil, err
		}
		for _, p := range list {
			if p.Owner.By == By && p.Owner.Container == d.UUID {
				_, notes, failed := plug.Remove(s, p.Owner.ID)
				warnings, err = append(warnings, notes...), errors.Join(err, failed)
			}
		}
		return warnings, err
	}
	return nil, nil
}

// once reads XML, and refuses an element with a duplicate attribute. Package xml would use the last
// one.
type once struct{ *xml.Decoder }

func (o once) Token() (xml.Token, error) {
	t, err := o.Decoder.RawToken()
	if e, is := t.(xml.StartElement); is {
		has := map[xml.Name]bool{}
		for _, a := range e.Attr {
			if has[a.Name] {
				return nil, fmt.Errorf("attribute %.40s of <%.40s> occurs twice; remove one", a.Name.Local, e.Name.Local)
			}
			has[a.Name] = true
		}
	}
	return t, err
}

func read(from io.Reader) (d domain, err error) {
	r := io.LimitReader(from, maxDomain+1)
	decoder := xml.NewTokenDecoder(once{xml.NewDecoder(r)})
	if err := decoder.Decode(&d); err != nil {
		return d, fmt.Errorf("cannot read the guest's description: %w", err)
	}
	if d.UUID == "" || strings.ContainsFunc(d.UUID, func(r rune) bool { return r <= ' ' || r > '~' }) || len(d.UUID) > 64 {
		return d, errors.New("cannot read the guest's description: it has no uuid")
	}
	return d, nil
}

// plugs returns the ports for a guest.
func plugs(from io.Reader) (d domain, list []plug.Plug, notes []string, err error) {
	if d, err = read(from); err != nil || d.Metadata == nil {
		return d, nil, nil, err
	}
	if err := d.Metadata.check(); err != nil {
		return d, nil, nil, fmt.Errorf("guest %.64s: %w", d.Name, err)
	}
	taken := map[string]bool{}
	for _, g := range d.Metadata.Guests {
		for _, w := range g.Interfaces {
			p, more, err := w.plug(d)
			if err != nil {
				return d, nil, nil, fmt.Errorf("guest %.64s: interface %.32q: %w", d.Name, w.MAC, err)
			}
			if taken[p.Device] {
				return d, nil, nil, fmt.Errorf("guest %.64s: interface %.32q: the metadata has it twice", d.Name, w.MAC)
			}
			taken[p.Device] = true
			list, notes = append(list, p), append(notes, more...)
		}
	}
	return d, list, notes, nil
}

// plug returns the port for an interface. The notes list settings without effect.
func (w wanted) plug(d domain) (p plug.Plug, notes []string, err error) {
	if err := w.check("interface"); err != nil {
		return p, nil, err
	}
	mac, err := bridge.ParseMAC(w.MAC)
	if err != nil {
		return p, nil, err
	}
	p = plug.Plug{Bridge: w.Bridge, Owner: bridge.Owner{
		ID: By + "/" + d.UUID + "/" + mac.String(), By: By, Container: d.UUID, Network: w.Bridge,
	}}
	var of netdev
	for _, n := range d.Interfaces {
		if !strings.EqualFold(n.MAC.Address, mac.String()) {
			continue
		}
		switch {
		case n.Type != "ethernet":
			return p, nil, fmt.Errorf("it is of type %q; give <interface type='ethernet'>, whose tap libvirt adds to no other bridge", n.Type)
		case n.Target.Dev == "":
			return p, nil, errors.New("its tap has no name; give one with <target dev='guest0'/>")
		}
		p.Device, of = n.Target.Dev, n
	}
	switch {
	case p.Device == "":
		return p, nil, errors.New("the guest has no interface with this address")
	case w.Bridge == "":
		return p, nil, errors.New("the bridge is missing; give bridge='br0'")
	}
	var id uint16
	if w.VLAN != "" {
		n, err := strconv.ParseUint(w.VLAN, 10, 16)
		if err != nil || n < 1 || n > 4094 {
			return p, nil, fmt.Errorf("vlan %q is not a VLAN; give 1 to 4094", w.VLAN)
		}
		id = uint16(n)
	}
	var tagged []uint16
	if w.Tagged != "" {
		if tagged, err = bridge.ParseVLANs(w.Tagged); err != nil {
			return p, nil, err
		}
	}
	p.VLANs = plug.VLANs(id, tagged)
	for _, s := range w.Settings {
		if err := s.check("set"); err != nil {
			return p, nil, err
		}
		if slices.ContainsFunc(p.Settings, func(c bridge.Change) bool { return c.Name == s.Name }) {
			return p, nil, fmt.Errorf("%s occurs twice; remove one", s.Name)
		}
		if err := bridge.CheckPortSetting(s.Name, strings.TrimSpace(s.Value)); err != nil {
			return p, nil, err
		}
		p.Settings = append(p.Settings, bridge.Change{Name: s.Name, Value: strings.TrimSpace(s.Value)})
	}
	for _, b := range w.Bindings {
		if err := b.check("binding"); err != nil {
			return p, nil, err
		}
		address, err := bridge.ParseAddress(b.Address)
		if err != nil {
			return p, nil, err
		}
		station := mac
		if b.MAC != "" {
			if station, err = bridge.ParseMAC(b.MAC); err != nil {
				return p, nil, err
			}
		}
		p.Bindings = append(p.Bindings, bridge.Binding{MAC: station, Address: address, VLAN: id})
	}
	if len(w.PF) > 1 {
		return p, nil, errors.New("<pf> occurs twice; give all rules in one")
	}
	for _, r := range w.PF {
		if err := r.check("pf"); err != nil {
			return p, nil, err
		}
		// text in a guest's description must not read files or resolve hosts
		p.PF = &bridge.PFLoad{Name: "pf of " + p.Device, Text: []byte(r.Text + "\n")}
	}
	limits, notes, err := of.limits(p.Settings)
	if err != nil {
		return p, nil, err
	}
	p.Settings = append(p.Settings, limits...)
	return p, notes, nil
}
