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
		routes, err := netlink.RouteGet(host.AsSlice())
		if err != nil || len(routes) == 0 {
			return err
		}
		next := routes[0].Gw
		if next == nil {
			next = host.AsSlice()
		}
		list, err := netlink.NeighList(routes[0].LinkIndex, 0)
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
