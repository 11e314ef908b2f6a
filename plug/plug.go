// SPDX-License-Identifier: BSD-2-Clause

// Package plug puts the interfaces of guests and containers on a switch by an id, and takes
// them off again. All front doors for that call it: the command, CNI, Podman, Docker and
// hooks of hypervisors.
//
// A plug is one step: the port, its VLANs, settings, bindings and rules of pf are there
// together, before the first frame, or nothing is. The id is kept with the port, by the same
// step. So there is no list beside the switch that could tell something else, whoever is
// killed.
package plug

import (
	"fmt"
	"net"
	"net/netip"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// A Plug says what a port is to be.
type Plug struct {
	Owner    bridge.Owner // its Anchor is filled in
	Bridge   string
	Device   string
	Host     bool // Device is an interface of the host's own, which is made with the port
	MTU      int  // as that of bridge.PortOptions
	Hook     string
	Force    bool               // as that of bridge.PortOptions
	Settings []bridge.Change    // of bridge.PortSettings; others have their defaults, and those of a host port stay
	VLANs    []bridge.VLANRange // nil for those of a new port; else the bridge filters VLANs
	Bindings []bridge.Binding   // all that the port has; nil leaves those of a host port
	Stations []net.HardwareAddr // static entries of the port's VLANs; nil to leave them as they are
	CopyTo   string             // a span port that gets copies of the port's frames, "" for none
	PF       *bridge.PFLoad     // Name, Text and Source of the rules that are the port's alone; nil for none
}

// Put makes a port what p says, whatever it was. If it is so already, nothing is changed. A
// port that had the id goes if it has another device, or is of another bridge. A port
// without an owner is taken over. The port of another id is refused. The warnings tell of
// things that work but may not be meant.
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
		if err := s.Try(what, p.Bridge, p.Owner.ID, plan); err != nil { // before it is taken off the other
			return nil, err
		}
		if !s.Rehearses() {
			// Between the bridges the device is no port, and what it receives would be the host's.
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

// plan plans that the port is as it is to be.
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
	case had != nil && had.ID != p.Owner.ID: // SetOwner refuses
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
	// an earlier build called the anchor by the device's name
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

// Remove takes the port with an id off its bridge. It is no error if there is none: it
// reports whether there was one. Even then it finishes what a command before did that was
// killed, which may have been at this port.
func Remove(s *bridge.Switch, id string) (found bool, notes []string, err error) {
	return remove(s, id, (*bridge.Edit).DelOwned)
}

// RemoveGone is Remove of a port whose device is gone. A port whose device is there stays: the id
// may have come again since the caller has looked.
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
		return false, notes, nil // the bridge went meanwhile, and the port with it
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

// VLANs returns the VLANs of a port whose frames without a tag are in one VLAN, and that is
// in others with their tags: nil for no VLAN at all, which are those of a new port.
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

// LinuxBridge says that there is a Linux bridge of the name, and none of the switch's.
type LinuxBridge struct{ Name string }

func (e *LinuxBridge) Error() string {
	return fmt.Sprintf("%s is a Linux bridge, whose containers would reach none of a bascule bridge beside it; stop them, delete it "+
		"with 'ip link del %s' and start them again, or give the bridge another name", e.Name, e.Name)
}

// CheckNew refuses the name of a bridge that is not there if a Linux bridge has it: somebody moves
// from that, and a bridge beside it would be empty.
func CheckNew(name string) error {
	if l, err := netlink.LinkByName(name); err == nil && l.Type() == "bridge" {
		return &LinuxBridge{name}
	}
	return nil
}

// EnsureBridge makes a bridge if it is not there, and returns it. One that it makes filters
// VLANs if that is asked for, and goes again with back if it has no port by then.
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

// CheckBridge refuses a bridge that is not there and cannot be made, or would lack the span port that the
// container's port asks for.
func CheckBridge(s *bridge.Switch, name, span string) error {
	if _, err := s.Quick(name); !bridge.Missing(err) {
		return err
	}
	if err := CheckNew(name); err != nil {
		return err
	}
	if span != "" {
		return fmt.Errorf("bridge %s is not there yet, and has no span port %s; make both by 'bascule bridge add %s' and "+
			"'bascule span add %s %s'", name, span, name, name, span)
	}
	return nil
}

// Bindings bind addresses to a MAC, and the IPv6 address that a station gives itself by it.
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
