// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// A Station is a host as this host sees it: how its own routes, neighbours and the FDBs lead there now.
// What one of them does not say is left out, with all that follows from it.
type Station struct {
	Interface string           // by which the host sends to it
	Next      netip.Addr       // its address, or its gateway's
	Gateway   bool             // Next is a gateway's
	MAC       net.HardwareAddr // of Next
	At        []Berthed        // where the bridges have MAC
}

// A Berthed is a port of a bridge that a station is behind, by the bridge's FDB.
type Berthed struct {
	Bridge, Port string
	VLAN         uint16 // as of an Entry
}

// Behind looks for a host, to which packets of this host's own address go.
func (s *Switch) Behind(host, own netip.Addr) (at Station) {
	_ = s.Inside(func() error {
		l, next, err := nextHop(host, own)
		if err != nil || l == nil {
			return err
		}
		at.Interface, at.Next, at.Gateway = l.Attrs().Name, next, next != host.WithZone("")
		list, err := netlink.NeighList(l.Attrs().Index, 0)
		for _, n := range list {
			if n.IP.Equal(next.AsSlice()) {
				at.MAC = n.HardwareAddr
			}
		}
		return err
	})
	if len(at.MAC) == 0 {
		return at
	}
	names, _ := s.Names()
	for _, name := range names {
		entries, _ := s.FDB(name, Match{}) // a bridge of another version tells nothing
		for _, e := range entries {
			if bytes.Equal(e.MAC, at.MAC) {
				at.At = append(at.At, Berthed{name, e.Port, e.VLAN})
			}
		}
	}
	return at
}

// nextHop is the interface by which a host is reached, nil for none, and the address there of itself or
// of its gateway.
func nextHop(host, own netip.Addr) (l netlink.Link, next netip.Addr, err error) {
	next = host.WithZone("")
	if zone := host.Zone(); zone != "" { // it is of a link
		l, err = netlink.LinkByName(zone)
		return l, next, err
	}
	// a rule of the host's may go by the address
	routes, err := netlink.RouteGetWithOptions(host.AsSlice(), &netlink.RouteGetOptions{SrcAddr: own.AsSlice()})
	if err != nil {
		routes, err = netlink.RouteGet(host.AsSlice())
	}
	if err != nil || len(routes) == 0 {
		return nil, next, err
	}
	if gateway, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		next = gateway.Unmap()
	} else if via, ok := routes[0].Via.(*netlink.Via); ok {
		if gateway, ok := netip.AddrFromSlice(via.Addr); ok {
			next = gateway
		}
	}
	l, err = netlink.LinkByIndex(routes[0].LinkIndex)
	return l, next, err
}
