// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Station is a host as this host finds it now, by its routes, its neighbours and the FDBs. If one of these has no
// answer, the fields that depend on it are empty.
type Station struct {
	Interface string           // interface that packets to it leave by
	Next      netip.Addr       // its address, or its gateway's
	Gateway   bool             // Next is a gateway's
	Bits      int              // prefix length of the route that leads there
	Metric    int              // of that route
	Source    netip.Addr       // that the route prescribes; the kernel removes the route with this address
	MAC       net.HardwareAddr // of Next
	At        []Berthed        // where the bridges have MAC
}

// A Berthed is a port of a bridge that a station is behind, according to the bridge's FDB.
type Berthed struct {
	Bridge, Port string
	VLAN         uint16 // as of an Entry
}

// Behind returns the way to a host, for packets from an address of this host's own.
func (s *Switch) Behind(host, own netip.Addr) (at Station) {
	_ = s.Inside(func() error {
		l, next, err := nextHop(host, own)
		if err != nil || l == nil {
			return err
		}
		at.Interface, at.Next, at.Gateway = l.Attrs().Name, next, next != host.WithZone("")
		at.Bits, at.Metric, at.Source = routeTo(host, own)
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
		entries, _ := s.FDB(name, Match{}) // a bridge of another version has no entries to read
		for _, e := range entries {
			if bytes.Equal(e.MAC, at.MAC) {
				at.At = append(at.At, Berthed{name, e.Port, e.VLAN})
			}
		}
	}
	return at
}

// A KnownMAC is a MAC address to which packets for an IP address may go at a bridge.
type KnownMAC struct {
	MAC net.HardwareAddr
	Of  string // its owner, for people: "192.0.2.2, bound to p2"
}

// Known returns the MAC addresses for an IP address in a bridge's bindings, its host ports and the neighbours there.
// If there are none, and the address is in no network of a host port, it returns the MAC addresses of the host ports
// with IP addresses: one of them may be the sender's gateway.
func (s *Switch) Known(bridge string, addr netip.Addr) (list []KnownMAC, err error) {
	bindings, err := s.Bindings(bridge, "")
	if err != nil {
		return nil, err
	}
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		if b.Address == addr {
			list = append(list, KnownMAC{b.MAC, addr.String() + ", bound to " + b.Port})
		}
	}
	var gateways []KnownMAC
	near := false
	for _, d := range devices {
		if d.Host != bridge {
			continue
		}
		of := ", host port " + d.Name
		for _, text := range d.Addresses {
			switch own, err := netip.ParsePrefix(text); {
			case err != nil:
			case own.Addr() == addr:
				list = append(list, KnownMAC{d.MAC, addr.String() + of})
			case own.Contains(addr):
				near = true
			}
		}
		if len(d.Addresses) > 0 {
			gateways = append(gateways, KnownMAC{d.MAC, "as a gateway" + of})
		}
		mac, err := s.neighbour(d.Name, addr)
		if err != nil {
			return nil, err
		}
		if mac != nil {
			list = append(list, KnownMAC{mac, addr.String() + ", neighbour at " + d.Name})
		}
	}
	if len(list) == 0 && !near {
		list = gateways
	}
	return list, nil
}

// neighbour returns the MAC address of an interface's neighbour, or nil if it is unknown.
func (s *Switch) neighbour(device string, addr netip.Addr) (mac net.HardwareAddr, err error) {
	err = s.Inside(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return nil // it is in another namespace, or has gone
		}
		all, err := netlink.NeighList(l.Attrs().Index, 0)
		for _, n := range all {
			if n.IP.Equal(addr.AsSlice()) && len(n.HardwareAddr) > 0 {
				mac = n.HardwareAddr
			}
		}
		return err
	})
	return mac, err
}

// routeTo returns the prefix length and the metric of the route that leads to a host, 0 if they are unknown. source is
// the address without which the kernel removes the route. The kernel replaces its own routes to networks.
func routeTo(host, own netip.Addr) (bits, metric int, source netip.Addr) {
	o := &netlink.RouteGetOptions{FIBMatch: true, SrcAddr: own.AsSlice()}
	routes, err := netlink.RouteGetWithOptions(host.AsSlice(), o)
	if err != nil {
		o.SrcAddr = nil
		routes, err = netlink.RouteGetWithOptions(host.AsSlice(), o)
	}
	if err != nil || len(routes) == 0 {
		return 0, 0, source
	}
	if to := routes[0].Dst; to != nil {
		bits, _ = to.Mask.Size()
	}
	if r := routes[0]; host.Is4() && r.Protocol != unix.RTPROT_KERNEL { // routes of IPv6 stay
		source, _ = netip.AddrFromSlice(r.Src.To4())
	}
	return bits, routes[0].Priority, source
}

// nextHop returns the interface that leads to a host, nil if none does, and the address of the host or its gateway
// there.
func nextHop(host, own netip.Addr) (l netlink.Link, next netip.Addr, err error) {
	next = host.WithZone("")
	if zone := host.Zone(); zone != "" { // a link-local address
		l, err = netlink.LinkByName(zone)
		return l, next, err
	}
	// a rule of the host's may match the source address
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
