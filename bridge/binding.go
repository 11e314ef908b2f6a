// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"bascule/datapath"
)

// MaxBindings is the number of bindings that a bridge can have.
const MaxBindings = datapath.MaxBindings

// Binding ties an IP address of a VLAN to the station that has it, and to the
// port that the station is behind.
type Binding struct {
	Bridge  string
	Port    string
	MAC     net.HardwareAddr
	Address netip.Addr
	VLAN    uint16 // 1 to 4094; 0 stands for frames without a tag
}

// ParseAddress parses an IP address that can be bound. The error is a *[UsageError] if s is
// malformed, or if the address cannot belong to one station on a link: an unspecified, multicast,
// broadcast or loopback address, or an IPv4 address written as IPv6.
func ParseAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, usagef(s, "not an IP address; give one such as 192.0.2.1 or 2001:db8::1")
	}
	const remedy = "give the unicast address of one station"
	switch {
	case a.Zone() != "":
		return a, usagef(s, "the bridge and the VLAN say where it is; leave out %%%s", a.Zone())
	case a.Is4In6():
		return a, usagef(s, "an IPv4 address, which has no place in IPv6 packets; give %s", a.Unmap())
	case a.IsUnspecified():
		return a, usagef(s, "the unspecified address belongs to no station; %s", remedy)
	case a.IsMulticast():
		return a, usagef(s, "a multicast address belongs to a group; %s", remedy)
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, usagef(s, "the broadcast address belongs to every station; %s", remedy)
	case a.IsLoopback():
		return a, usagef(s, "a loopback address is never on a wire; %s", remedy)
	}
	return a, nil
}

// Bindings returns the bindings of a bridge's port, by VLAN and address. If port is "", it returns
// the bindings of the bridge; if bridge is "", too, it returns the bindings of all bridges.
func (s *Switch) Bindings(bridge, port string) (list []Binding, err error) {
	list = []Binding{}
	err = s.each(showWhat("the bindings", bridge), bridge, func(name string, b *datapath.Bridge) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		if err := v.find("show the bindings of "+name, port); err != nil {
			return err
		}
		bindings, err := v.bindings()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(e Binding) bool { return e.Bridge == name })
		for _, e := range bindings {
			if port == "" || e.Port == port {
				list = append(list, e)
			}
		}
		return nil
	})
	slices.SortFunc(list, func(a, b Binding) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.VLAN, b.VLAN), a.Address.Compare(b.Address))
	})
	return list, err
}

// bindings returns all bindings, in no order.
func (v *view) bindings() ([]Binding, error) {
	bindings, err := v.b.Bindings()
	return v.named(bindings), err
}

// named returns bindings with the names of their ports.
func (v *view) named(bindings []datapath.Binding) []Binding {
	list := []Binding{}
	for _, e := range bindings {
		list = append(list, Binding{Bridge: v.name, Port: v.names[e.Port], MAC: net.HardwareAddr(e.MAC[:]), Address: e.Address, VLAN: e.VLAN})
	}
	return list
}

// AddBinding binds an address. It refuses to move an address that is bound to another
// station or port.
func (s *Switch) AddBinding(e Binding) error {
	return s.replaceBindings(bindWhat(e.Bridge, e), e.Bridge, nil, []Binding{e})
}

// ReplaceBindings deletes bindings, as Bindings returns them, and adds others, as AddBinding does,
// in one change of the table. The bindings to delete may be gone already. An address in both lists
// moves, and stays bound all the time. All bindings belong to the given bridge; their own field is
// ignored.
func (s *Switch) ReplaceBindings(bridge string, del, add []Binding) error {
	return s.replaceBindings("change the bindings of "+bridge, bridge, del, add)
}

// bindWhat describes the making of a binding, for errors.
func bindWhat(bridge string, e Binding) string {
	return fmt.Sprintf("bind %s in %s", e.Address, bridge)
}

func (s *Switch) replaceBindings(what, bridge string, del, add []Binding) error {
	for _, e := range add {
		if e.VLAN > maxVLAN {
			return usagef(fmt.Sprintf("VLAN %d", e.VLAN), "out of range; give 1 to %d", maxVLAN)
		}
	}
	leave := make([]datapath.Binding, len(del))
	for i, e := range del {
		leave[i] = datapath.Binding{VLAN: e.VLAN, Address: e.Address}
	}
	err := s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		next, others, err := planBindings(b, what, bridge, leave, add)
		if err != nil {
			return err
		}
		if s.rehearsal != nil {
			return s.rehearse(bridge, b, func(all *contents) { all.bindings = append(slices.Collect(maps.Values(others)), next...) })
		}
		err = b.ReplaceBindings(leave, next)
		if errors.Is(err, datapath.ErrBindingsFull) {
			return refused(what, err.Error(), "delete some that are no longer needed")
		}
		return failed(what, err)
	})
	if !errors.Is(err, datapath.ErrBindingsSmall) {
		return err
	}
	return s.change(what, bridge, func(c *draft) error {
		next, others, err := planBindings(c.bridge, what, bridge, leave, add)
		if err != nil {
			return err
		}
		for _, e := range next {
			others[boundAt{e.VLAN, e.Address}] = e
		}
		if len(others) > datapath.MaxBindings {
			return refused(what, datapath.ErrBindingsFull.Error(), "delete some that are no longer needed")
		}
		c.tables.Bindings = slices.Collect(maps.Values(others))
		return nil
	})
}

// boundAt is the key of a binding: the address that it binds.
type boundAt struct {
	vlan    uint16
	address netip.Addr
}

// planBindings returns the bindings to add in the datapath's form, and the present ones without
// those in del. The error is the reason why a binding can't be made.
func planBindings(b *datapath.Bridge, what, bridge string, del []datapath.Binding, add []Binding) (next []datapath.Binding, others map[boundAt]datapath.Binding, err error) {
	there, err := b.Bindings()
	if err != nil {
		return nil, nil, failed(what, err)
	}
	others = map[boundAt]datapath.Binding{}
	for _, e := range there {
		others[boundAt{e.VLAN, e.Address}] = e
	}
	for _, e := range del {
		delete(others, boundAt{e.VLAN, e.Address})
	}
	devices, err := links()
	if err != nil {
		return nil, nil, failed(what, err)
	}
	find := placeFinder(b, bridge)
	held := maps.Clone(others)
	for _, e := range add {
		what := bindWhat(bridge, e)
		if e.VLAN == 0 && filters(&b.Config) {
			return nil, nil, refused(what, "the bridge filters VLANs, and every frame is in one", "give it with --vlan")
		}
		at, err := find(what, e.Port, e.VLAN)
		if err != nil {
			return nil, nil, err
		}
		binding := datapath.Binding{VLAN: at.vlan, Address: e.Address, MAC: [6]byte(e.MAC), Port: at.port.Id}
		k := boundAt{at.vlan, e.Address}
		if old, ok := held[k]; ok && old != binding {
			holder := portName(b, datapath.PortAt(&b.Config, old.Port), devices)
			e.VLAN = at.vlan
			return nil, nil, refused(what, fmt.Sprintf("it is bound to %s on %s", net.HardwareAddr(old.MAC[:]), holder),
				"delete that binding first with '"+deletion(bridge, e)+"'")
		}
		held[k] = binding
		next = append(next, binding)
	}
	return next, others, nil
}

// deletion returns the command that deletes a binding.
func deletion(bridge string, e Binding) string {
	command := fmt.Sprintf("bascule binding del %s %s", bridge, e.Address)
	if e.VLAN != 0 {
		command += fmt.Sprintf(" --vlan %d", e.VLAN)
	}
	return command
}

// DelBinding removes the binding of an address.
func (s *Switch) DelBinding(bridge string, a netip.Addr, vlan uint16) error {
	what := fmt.Sprintf("delete the binding of %s in %s", a, bridge)
	if vlan > maxVLAN {
		return usagef(fmt.Sprintf("VLAN %d", vlan), "out of range; give 1 to %d", maxVLAN)
	}
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		if vlan, err = addressVLAN(b, vlan); err != nil {
			return failed(what, err)
		}
		if s.rehearsal != nil {
			var there []datapath.Binding
			if there, err = b.Bindings(); err != nil {
				return failed(what, err)
			}
			is := func(e datapath.Binding) bool { return e.VLAN == vlan && e.Address == a }
			if slices.ContainsFunc(there, is) {
				return s.rehearse(bridge, b, func(all *contents) { all.bindings = slices.DeleteFunc(all.bindings, is) })
			}
			err = os.ErrNotExist
		} else {
			err = b.Unbind(vlan, a)
		}
		if errors.Is(err, os.ErrNotExist) {
			if err := boundElsewhere(b, what, bridge, a, vlan); err != nil {
				return err
			}
			why := "there is none"
			if vlan != 0 {
				why += fmt.Sprintf(" in VLAN %d", vlan)
			}
			return refused(what, why, "see 'bascule binding show "+bridge+"'")
		}
		return failed(what, err)
	})
}

// boundElsewhere refuses to delete the binding of an address that has none in this VLAN, but has
// one in another. The error names that VLAN. It returns nil if there is no other.
func boundElsewhere(b *datapath.Bridge, what, bridge string, a netip.Addr, vlan uint16) error {
	v, err := viewOf(bridge, b)
	if err != nil {
		return failed(what, err)
	}
	list, err := v.bindings()
	if err != nil {
		return failed(what, err)
	}
	slices.SortFunc(list, func(a, b Binding) int { return cmp.Compare(a.VLAN, b.VLAN) })
	inVLAN := func(id uint16) string {
		if id == 0 {
			return "without a VLAN"
		}
		return fmt.Sprintf("in VLAN %d", id)
	}
	for _, e := range list {
		if e.Address == a {
			return refused(what, "there is none "+inVLAN(vlan)+", but one "+inVLAN(e.VLAN), fmt.Sprintf("name that with --vlan %d", e.VLAN))
		}
	}
	return nil
}

// FlushBindings removes the bindings that match, and returns their number.
func (s *Switch) FlushBindings(bridge string, m Match) (n int, err error) {
	what := "flush the bindings of " + bridge
	err = s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		var id uint32
		if m.Port != "" {
			p, _, err := findRunning(b, what, bridge, m.Port)
			if err != nil {
				return err
			}
			id = p.Id
		}
		matches := func(e datapath.Binding) bool {
			return (id == 0 || e.Port == id) && (m.VLAN == nil || *m.VLAN == e.VLAN)
		}
		if s.rehearsal != nil {
			return s.rehearse(bridge, b, func(all *contents) { all.bindings = slices.DeleteFunc(all.bindings, matches) })
		}
		n, err = b.UnbindAll(matches)
		return failed(what, err)
	})
	return n, err
}
