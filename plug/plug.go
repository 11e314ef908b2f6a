// SPDX-License-Identifier: BSD-2-Clause

// Package plug connects interfaces of guests and containers to a switch under an id, and removes them. It is the base
// of all front ends: the command, CNI, Podman, Docker and hooks of hypervisors.
//
// A plug is one atomic step: the port, its VLANs, settings, bindings and pf rules take effect together before the first
// frame, or not at all. The same step stores the id with the port. So no separate list can disagree with the switch,
// even if a process is killed.
package plug

import (
	"fmt"
	"net"
	"net/netip"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// A Plug describes a port.
type Plug struct {
	Owner    bridge.Owner // Put sets its Anchor
	Bridge   string
	Device   string
	Host     bool // Device is an interface of the host, which is made with the port
	MTU      int  // as in bridge.PortOptions
	Hook     string
	Force    bool               // as in bridge.PortOptions
	Settings []bridge.Change    // of bridge.PortSettings; others: default, or a host port's own
	VLANs    []bridge.VLANRange // nil for the VLANs of a new port; otherwise the bridge must filter VLANs
	Bindings []bridge.Binding   // all bindings of the port; nil leaves a host port's bindings unchanged
	Stations []net.HardwareAddr // static entries in the port's VLANs; nil leaves them unchanged
	CopyTo   string             // a span port that receives copies of the port's frames, "" for none
	PF       *bridge.PFLoad     // Name, Text and Source of rules for this port only; nil for none
}

// Put brings a port into the state of p from any other state. Without a difference, nothing is changed. A port that had
// the id is removed if it has another device, or is in another bridge. Put takes over a port without an owner, and
// refuses a port with another id. The warnings list settings that work but may be unintended.
func Put(s *bridge.Switch, p Plug) (warnings []string, err error) {
	var rules bridge.PortAnchor
	if p.PF != nil {
		if rules, err = s.ParsePortPF(p.Owner.ID, p.Device, *p.PF); err != nil {
			return nil, err
		}
	}
	p.Owner.Anchor = rules.Path()
	if err := p.Owner.Check(); err != nil {
		return nil, err
	}
	on, err := s.BridgeOf(p.Owner.ID)
	if err != nil {
		return nil, err
	}
	what := "plug " + p.Owner.ID
	plan := func(e *bridge.Edit) error { return p.plan(e, rules) }
	if on != "" && on != p.Bridge {
		if err := s.Try(what, p.Bridge, p.Owner.ID, plan); err != nil { // before it leaves the other bridge
			return nil, err
		}
		if !s.Rehearses() {
			// Between the bridges the device is no port, and would pass received frames to the host.
			shut, err := s.Shut(p.Device)
			if err != nil {
				return nil, err
			}
			defer shut.Close()
		}
		if warnings, err = s.Edit(on, func(e *bridge.Edit) error {
			_, err := e.DelOwned(p.Owner.ID)
			return err
		}); err != nil || s.Rehearses() {
			return warnings, err
		}
	}
	more, err := s.EditFor(what, p.Bridge, plan)
	return append(warnings, more...), err
}

// plan adds the changes for the port to an edit.
func (p *Plug) plan(e *bridge.Edit, rules bridge.PortAnchor) error {
	kind := bridge.TypeNetdev
	if p.Host {
		kind = bridge.TypeHost
	}
	has, there, err := e.PortOf(p.Owner.ID)
	if err != nil {
		return err
	}
	if has != "" && (has != p.Device || !there) {
		if _, err := e.DelOwned(p.Owner.ID); err != nil {
			return err
		}
	}
	o := bridge.PortOptions{Hook: p.Hook, Changes: p.Settings, Force: p.Force, MTU: p.MTU}
	had, is, err := e.OwnerOf(p.Device)
	switch {
	case err != nil:
		return err
	case is == "":
		o.Type, o.Plugged = kind, true
		err = e.AddPort(p.Device, o)
	case had != nil && had.ID != p.Owner.ID: // SetOwner refuses it
	case is != kind:
		return fmt.Errorf("cannot plug %s: %s is a port of type %s; delete that port first with 'bascule port del %s %s'",
			p.Owner.ID, p.Device, is, p.Bridge, p.Device)
	default:
		err = e.ConfigurePort(p.Device, o)
	}
	if err != nil {
		return err
	}
	if err := e.SetOwner(p.Device, p.Owner); err != nil {
		return err
	}
	if p.VLANs != nil {
		err = e.SetVLANs(p.Device, p.VLANs)
	} else {
		err = e.UsualVLANs(p.Device)
	}
	if err != nil {
		return err
	}
	if !p.Host || p.Bindings != nil {
		if err := e.SetBindings(p.Device, p.Bindings); err != nil {
			return err
		}
	}
	if p.Stations != nil {
		if err := e.SetStations(p.Device, p.Stations); err != nil {
			return err
		}
	}
	if p.CopyTo != "" {
		if err := e.AddCopies(p.Device, p.CopyTo); err != nil {
			return err
		}
	}
	// an earlier build named the anchor after the device
	if had != nil && had.Anchor != "" && had.Anchor != rules.Path() {
		if err := e.DropPortPF(had.Anchor); err != nil {
			return err
		}
	}
	if p.PF != nil {
		return e.LoadPortPF(rules)
	}
	return nil
}

// Remove removes the port with an id from its bridge, and reports whether there was one. Even without one it finishes
// the work of a killed command, which may have been about this port.
func Remove(s *bridge.Switch, id string) (found bool, notes []string, err error) {
	return remove(s, id, (*bridge.Edit).DelOwned)
}

// RemoveGone is Remove for a port whose device is gone. It keeps a port whose device exists, since the id may be in use
// again since the caller's check.
func RemoveGone(s *bridge.Switch, id string) (found bool, notes []string, err error) {
	return remove(s, id, func(e *bridge.Edit, id string) (bool, error) {
		_, there, err := e.PortOf(id)
		if err != nil || there {
			return false, err
		}
		return e.DelOwned(id)
	})
}

func remove(s *bridge.Switch, id string, del func(*bridge.Edit, string) (bool, error)) (found bool, notes []string, err error) {
	on, err := s.BridgeOf(id)
	if err != nil {
		return false, nil, err
	}
	if on == "" {
		return false, nil, s.Mend()
	}
	notes, err = s.Edit(on, func(e *bridge.Edit) error {
		found, err = del(e, id)
		return err
	})
	if bridge.Missing(err) {
		return false, notes, nil // the bridge was deleted meanwhile, with the port
	}
	return found, notes, err
}

// Find returns the port with an id, nil for none.
func Find(s *bridge.Switch, id string) (*bridge.Port, error) {
	list, err := s.Owned()
	if err != nil {
		return nil, fmt.Errorf("cannot look for %s: %w", id, err)
	}
	for _, p := range list {
		if p.Owner.ID == id {
			return &p, nil
		}
	}
	return nil, nil
}

// VLANs returns the VLANs of a port: one for untagged frames, and others with tags. It returns nil if there are none,
// which means the VLANs of a new port.
func VLANs(untagged uint16, tagged []uint16) (list []bridge.VLANRange) {
	for _, id := range tagged {
		if id != untagged {
			list = append(list, bridge.VLANRange{First: id, Last: id})
		}
	}
	if untagged != 0 {
		list = append(list, bridge.VLANRange{First: untagged, Last: untagged, VLANOptions: bridge.VLANOptions{Untagged: true, PVID: true}})
	}
	return list
}

// LinuxBridge means that a Linux bridge has the name, and no bridge of the switch has it.
type LinuxBridge struct{ Name string }

func (e *LinuxBridge) Error() string {
	return fmt.Sprintf("%s is a Linux bridge; its containers could not reach containers of a bascule bridge; stop them, delete the Linux bridge "+
		"with 'ip link del %s' and start them again, or give the bridge another name", e.Name, e.Name)
}

// CheckNew refuses the name of a missing bridge if a Linux bridge has it: a user who migrates from it would get an
// empty bridge in addition.
func CheckNew(name string) error {
	if l, err := netlink.LinkByName(name); err == nil && l.Type() == "bridge" {
		return &LinuxBridge{name}
	}
	return nil
}

// EnsureBridge returns a bridge, which it makes if necessary. A new bridge filters VLANs if filters is true, and back
// deletes it if it has no ports by then.
func EnsureBridge(s *bridge.Switch, name string, filters bool, back *Undo) (info bridge.Info, err error) {
	if info, err = s.Quick(name); !bridge.Missing(err) {
		return info, err
	}
	if err := CheckNew(name); err != nil {
		return info, err
	}
	var changes []bridge.Change
	if filters {
		changes = append(changes, bridge.Change{Name: "vlan-filtering", Value: bridge.On})
	}
	if err = s.AddBridge(name, changes); err == nil {
		back.Add(func() { _, _ = s.DelEmptyBridge(name) })
	}
	info, again := s.Quick(name) // another request may have made it
	if again == nil {
		err = nil
	}
	return info, err
}

// CheckBridge refuses a missing bridge that cannot be made, or that would lack the span port for the container's port.
func CheckBridge(s *bridge.Switch, name, span string) error {
	if _, err := s.Quick(name); !bridge.Missing(err) {
		return err
	}
	if err := CheckNew(name); err != nil {
		return err
	}
	if span != "" {
		return fmt.Errorf("bridge %s does not exist yet, and neither does its span port %s; add both with 'bascule bridge add %s' and "+
			"'bascule span add %s %s'", name, span, name, name, span)
	}
	return nil
}

// Bindings returns bindings of addresses to a MAC, with the link-local IPv6 address that a station derives from it.
func Bindings(addresses []*net.IPNet, mac net.HardwareAddr) (list []bridge.Binding) {
	add := func(ip net.IP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			list = append(list, bridge.Binding{MAC: mac, Address: a.Unmap()})
		}
	}
	for _, a := range addresses {
		add(a.IP)
	}
	// RFC 4291, appendix A
	add(net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	return list
}
