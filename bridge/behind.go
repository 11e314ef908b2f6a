// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Behind returns the port of a bridge that leads to a host with an address, as the host's own
// routes, neighbours and the FDB have it now; "" if one of these does not say it.
func (s *Switch) Behind(bridge string, host netip.Addr) string {
	var mac net.HardwareAddr
	err := s.Inside(func() error {
		index, next, err := nextHop(host)
		if err != nil || index == 0 {
			return err
		}
		list, err := netlink.NeighList(index, 0)
		for _, n := range list {
			if n.IP.Equal(next) {
				mac = n.HardwareAddr
			}
		}
		return err
	})
	if err != nil || len(mac) == 0 {
		return ""
	}
	entries, err := s.FDB(bridge, Match{})
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if e.MAC.String() == mac.String() {
			return e.Port
		}
	}
	return ""
}

// nextHop is the interface by which a host is reached, 0 for none, and the address there of itself or
// of its gateway.
func nextHop(host netip.Addr) (index int, next net.IP, err error) {
	if zone := host.Zone(); zone != "" { // it is of a link
		l, err := netlink.LinkByName(zone)
		if err != nil {
			return 0, nil, err
		}
		return l.Attrs().Index, host.AsSlice(), nil
	}
	routes, err := netlink.RouteGet(host.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, nil, err
	}
	if next = routes[0].Gw; next == nil {
		next = host.AsSlice()
	}
	return routes[0].LinkIndex, next, nil
}
