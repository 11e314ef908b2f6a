// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// These functions make a bridge follow a device that has changed on its own. Every change of a
// bridge does that anyway. They are for callers that receive the kernel's messages about devices.

// IsSwitchEnd reports whether a device is the switch's end of a host port of any bridge.
func IsSwitchEnd(l netlink.Link) bool { return isSwitchEnd(l) }

// Refresh updates a bridge if its host ports' ends, or the other ends of its veths, have moved to
// another namespace or got another address. Otherwise it changes nothing.
func (s *Switch) Refresh(bridge string) (changed bool, err error) {
	err = s.each("follow the devices of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		changed = slices.ContainsFunc(datapath.Ports(&b.Config), func(p *datapath.Port) bool {
			if !b.HasDevice(p) {
				return false
			}
			l, err := netlink.LinkByIndex(int(p.Ifindex))
			now := *p
			return err == nil && learnDevice(&now, l)
		}) || b.GatewaysMoved()
		return nil
	})
	if err != nil || !changed {
		return false, err
	}
	_, err = s.one(setBridge(bridge, nil), nil) // a writer updates host ports first
	return err == nil, err
}

// DelDevices removes the ports of devices by their indexes, whatever their present names. With
// there, it removes the ports whose devices exist, and otherwise those whose devices are gone. It
// returns their number.
func (e *Edit) DelDevices(indexes []int, there bool) (n int, err error) {
	what := "delete ports of " + e.bridge
	err = e.add(step{what, e.bridge, func(c *draft) error {
		owned, err := c.allOwners()
		if err != nil {
			return failed(what, err)
		}
		for _, p := range datapath.Ports(c.next) {
			if owned[p.Id] != nil || p.Facts&(datapath.PortPatch|datapath.PortSpan) != 0 || !slices.Contains(indexes, int(p.Ifindex)) || c.hasDevice(p) != there {
				continue
			}
			if err := c.removePort(what, p); err != nil {
				return err
			}
			n++
		}
		return nil
	}}, nil)
	return n, err
}

// RefreshPF recompiles a bridge's rules if they refer to ports that have another name or group now,
// or to devices in parentheses that have other addresses. Otherwise it changes nothing. States
// stay.
func (s *Switch) RefreshPF(bridge string) (changed bool, err error) {
	err = s.each(followPF(bridge), bridge, func(_ string, b *datapath.Bridge) error {
		changed, err = pfStale(b)
		return err
	})
	if err != nil || !changed {
		return false, err
	}
	// a writer updates the rules first, and drops errors
	err = s.change(followPF(bridge), bridge, func(*draft) error { return nil })
	return err == nil, err
}
