// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"bytes"
	"fmt"
	"net"
	"slices"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// Check reports whether a port still is as [Put] made it, and returns it. Later additions, such as
// another binding, are not errors.
func Check(s *bridge.Switch, p Plug) (*bridge.Port, error) {
	port, err := Find(s, p.Owner.ID)
	switch {
	case err != nil:
		return nil, err
	case port == nil:
		return nil, fmt.Errorf("%s is not on bridge %s", p.Owner.ID, p.Bridge)
	case port.Bridge != p.Bridge:
		return nil, fmt.Errorf("%s is on bridge %s, not on %s", p.Owner.ID, port.Bridge, p.Bridge)
	case port.State == "gone":
		return nil, fmt.Errorf("the device of %s on bridge %s is gone", p.Owner.ID, p.Bridge)
	case port.Name != p.Device:
		return nil, fmt.Errorf("%s is port %s of bridge %s, not port %s", p.Owner.ID, port.Name, p.Bridge, p.Device)
	}
	for _, check := range []func(*bridge.Switch, *bridge.Port) error{p.checkSettings, p.checkVLANs, p.checkStations, p.checkCopies} {
		if err := check(s, port); err != nil {
			return nil, fmt.Errorf("port %s of bridge %s %w", port.Name, port.Bridge, err)
		}
	}
	if p.PF == nil {
		return port, nil
	}
	rules, err := s.ParsePortPF(p.Owner.ID, p.Device, *p.PF)
	if err != nil {
		return nil, err
	}
	return port, s.CheckPortPF(p.Bridge, rules)
}

// checkSettings reports whether the port has the settings of the plug, and defaults for all others.
func (p *Plug) checkSettings(_ *bridge.Switch, port *bridge.Port) error {
	want := bridge.PortDefaults(port.Type)
	if p.Host { // the plug does not define the others
		want = port.Config
	}
	for _, change := range p.Settings {
		for _, s := range bridge.PortSettings {
			if s.Name == change.Name {
				if err := s.Set(&want, change.Value); err != nil {
					return err
				}
			}
		}
	}
	for _, s := range bridge.PortSettings {
		if is, should := s.Format(port.Config), s.Format(want); is != should {
			return fmt.Errorf("has %s %s, not %s", s.Name, is, should)
		}
	}
	return nil
}

// checkVLANs reports whether the port is in exactly the VLANs of the plug.
func (p *Plug) checkVLANs(s *bridge.Switch, port *bridge.Port) error {
	info, err := s.Quick(p.Bridge)
	if err != nil || !info.Config.VLANFiltering {
		return err
	}
	want := map[uint16]bridge.VLANOptions{}
	for _, r := range p.VLANs {
		for id := int(r.First); id <= int(r.Last); id++ {
			want[uint16(id)] = r.VLANOptions
		}
	}
	if id := info.Config.DefaultPVID; p.VLANs == nil && id != 0 {
		want[id] = bridge.VLANOptions{PVID: true, Untagged: true}
	}
	list, err := s.VLANs(p.Bridge)
	if err != nil {
		return err
	}
	for _, l := range list {
		if l.Port != port.Name {
			continue
		}
		for _, r := range l.Ranges {
			for id := int(r.First); id <= int(r.Last); id++ {
				should, in := want[uint16(id)]
				switch delete(want, uint16(id)); {
				case !in:
					return fmt.Errorf("is in VLAN %d", id)
				case should != r.VLANOptions:
					return fmt.Errorf("is in VLAN %d%s, not%s", id, manner(r.VLANOptions), manner(should))
				}
			}
		}
	}
	for id := range want {
		return fmt.Errorf("is not in VLAN %d", id)
	}
	return nil
}

// manner describes a port's membership in a VLAN.
func manner(o bridge.VLANOptions) string {
	switch {
	case o.PVID && o.Untagged:
		return " without a tag"
	case o.PVID:
		return " with a tag on outgoing frames only"
	case o.Untagged:
		return " without a tag on outgoing frames only"
	}
	return " with a tag"
}

// checkStations reports whether the port has the bindings and the static entries of the plug.
func (p *Plug) checkStations(s *bridge.Switch, port *bridge.Port) error {
	bindings, err := s.Bindings(p.Bridge, port.Name)
	if err != nil {
		return err
	}
	for _, want := range p.Bindings {
		if !slices.ContainsFunc(bindings, func(b bridge.Binding) bool {
			return b.Address == want.Address && bytes.Equal(b.MAC, want.MAC)
		}) {
			return fmt.Errorf("does not have %s bound to %s", want.Address, want.MAC)
		}
	}
	if len(p.Stations) == 0 {
		return nil
	}
	entries, err := s.FDB(p.Bridge, bridge.Match{Port: port.Name, Static: true})
	if err != nil {
		return err
	}
	for _, want := range p.Stations {
		if !slices.ContainsFunc(entries, func(e bridge.Entry) bool { return bytes.Equal(e.MAC, want) }) {
			return fmt.Errorf("has no static entry of %s", want)
		}
	}
	return nil
}

// checkCopies reports whether the span port of the plug receives copies of the port's frames.
func (p *Plug) checkCopies(s *bridge.Switch, port *bridge.Port) error {
	if p.CopyTo == "" {
		return nil
	}
	spans, err := s.Spans(p.Bridge)
	if err != nil {
		return err
	}
	for _, span := range spans {
		if span.Port == p.CopyTo && (span.All || slices.Contains(span.Ports, port.Name)) {
			return nil
		}
	}
	return fmt.Errorf("has no copies of its frames sent to %s", p.CopyTo)
}

// Check reports whether the gateway's port still is as [Gateway.Ensure] made it.
func (g *Gateway) Check(s *bridge.Switch) (netlink.Link, error) {
	if _, err := Check(s, g.plug()); err != nil {
		return nil, fmt.Errorf("the gateway: %w", err)
	}
	mtu, err := g.fits(s)
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName(g.Name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", g.Name, err)
	case link.Attrs().Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("the gateway's interface %s is down", g.Name)
	case g.MTU != 0 && (link.Attrs().MTU > g.MTU || link.Attrs().MTU < mtu):
		return nil, fmt.Errorf("the gateway's interface %s has MTU %d, not %d", g.Name, link.Attrs().MTU, g.MTU)
	case g.Promisc && link.Attrs().Promisc == 0:
		return nil, fmt.Errorf("the gateway's interface %s is not promiscuous", g.Name)
	}
	there, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", g.Name, err)
	}
	for _, want := range g.Addresses {
		if !slices.ContainsFunc(there, func(a netlink.Addr) bool { return a.IPNet.String() == want.String() }) {
			return nil, fmt.Errorf("the gateway's interface %s does not have the address %s", g.Name, want)
		}
	}
	return link, nil
}
