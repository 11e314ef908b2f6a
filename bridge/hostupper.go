// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A HostUpper is a device above the interface of a host port, such as a VLAN device. The kernel removes it with that
// interface.
type HostUpper struct {
	Name  string           `json:"name"`
	Kind  string           `json:"kind"` // of ip-link(8)
	Lower string           `json:"lower"`
	MAC   net.HardwareAddr `json:"mac,omitempty"` // nil if it is the lower device's
	MTU   int              `json:"mtu"`
	Up    bool             `json:"up"`
	Text  string           `json:"text,omitempty"` // its alias

	Mode     uint16            `json:"mode,omitempty"` // of a macvlan
	VLAN     int               `json:"vlan,omitempty"` // of a VLAN device
	Protocol uint16            `json:"protocol,omitempty"`
	Ingress  map[uint32]uint32 `json:"ingress,omitempty"`
	Egress   map[uint32]uint32 `json:"egress,omitempty"`
}

// uppersOf returns the devices above interfaces, in the order in which they can be made. The interfaces are given by
// their indexes.
func uppersOf(devices map[int]netlink.Link, lower []int) (list []HostUpper) {
	for len(lower) > 0 {
		var next []int
		for index, l := range devices {
			if !slices.Contains(lower, LowerOf(l)) {
				continue
			}
			below, a := devices[LowerOf(l)].Attrs(), l.Attrs()
			u := HostUpper{Name: a.Name, Kind: l.Type(), Lower: below.Name, MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0, Text: a.Alias}
			if !bytes.Equal(a.HardwareAddr, below.HardwareAddr) {
				u.MAC = a.HardwareAddr
			}
			switch l := l.(type) {
			case *netlink.Macvlan:
				u.Mode = uint16(l.Mode)
			case *netlink.Vlan:
				u.VLAN, u.Protocol, u.Ingress, u.Egress = l.VlanId, uint16(l.VlanProtocol), l.IngressQosMap, l.EgressQosMap
			}
			list, next = append(list, u), append(next, index)
		}
		lower = next
	}
	return list
}

// makeAgain makes the device again. ok is false for kinds that only the host's programs can make.
func (u HostUpper) makeAgain(lower netlink.Link) (ok bool, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr, attrs.MTU = u.Name, lower.Attrs().Index, u.MAC, u.MTU
	var l netlink.Link
	switch u.Kind {
	case "macvlan":
		l = &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MacvlanMode(u.Mode)}
	case "vlan":
		l = &netlink.Vlan{LinkAttrs: attrs, VlanId: u.VLAN, VlanProtocol: netlink.VlanProtocol(u.Protocol), IngressQosMap: u.Ingress, EgressQosMap: u.Egress}
	default:
		return false, nil
	}
	if err := netlink.LinkAdd(l); err != nil {
		return true, err
	}
	if u.Text != "" {
		_ = netlink.LinkSetAlias(l, u.Text) // for people only
	}
	if !u.Up {
		return true, nil
	}
	made, err := netlink.LinkByName(u.Name)
	if err == nil {
		err = bringUp(made)
	}
	return true, err
}

// restoreUppers makes missing devices above host ports' interfaces again, and puts interfaces back below their masters.
// left names what it cannot restore, and the notes have the reasons.
func (n HostNet) restoreUppers() (left, notes []string, err error) {
	devices, err := links()
	if err != nil {
		return nil, nil, err
	}
	byName := map[string]netlink.Link{}
	for _, l := range devices {
		byName[l.Attrs().Name] = l
	}
	for _, u := range n.Uppers {
		lower := byName[u.Lower]
		if byName[u.Name] != nil {
			continue
		}
		what, why := u.Kind+" "+u.Name+" above "+u.Lower, "make it again with ip(8)"
		ok, err := false, error(nil)
		if lower != nil {
			ok, err = u.makeAgain(lower)
		}
		if err != nil {
			why = err.Error()
		}
		if !ok || err != nil {
			left, notes = append(left, what), append(notes, fmt.Sprintf("%s is left out: the kernel has removed it with %s; %s", what, u.Lower, why))
			continue
		}
		if l, err := netlink.LinkByName(u.Name); err == nil {
			byName[u.Name] = l
		}
	}
	for name, was := range n.Masters {
		l, master := byName[name], byName[was]
		if l == nil || l.Attrs().MasterIndex != 0 {
			continue
		}
		why := "there is no such device now"
		if master != nil {
			err := netlink.LinkSetMasterByIndex(l, master.Attrs().Index)
			if err == nil {
				continue
			}
			why = err.Error()
		}
		what := "master " + was + " of " + name
		left, notes = append(left, what), append(notes, fmt.Sprintf("%s is left out: %s", what, why))
	}
	return left, notes, nil
}
