// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// Refreshing follows a device that changed by itself. A change of the bridge looks at
// all of it anyway. These functions are for callers that hear of the devices.

// IsSwitchEnd reports whether a device is the switch's end of a host port, of
// whatever bridge.
func IsSwitchEnd(l netlink.Link) bool { return isSwitchEnd(l) }

// Refresh has a bridge follow its host ports' ends, and the other ends of its veths,
// that have moved to another namespace or got another address. If everything is as the
// programs have it, nothing is changed.
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
	_, err = s.one(setBridge(bridge, nil), nil) // a writer follows host ports before that
	return err == nil, err
}

// DelDevices removes the ports of devices by their indexes, whatever their names are by
// now. With there it removes the ports whose devices are there, or else those whose
// devices are gone. It returns how many they are.
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

// RefreshPF has the rules of a bridge follow what they name: ports, which may have got
// another name or group, and the addresses of devices in parentheses. If those are what
// the rules were compiled with, nothing is changed. States stay.
func (s *Switch) RefreshPF(bridge string) (changed bool, err error) {
	err = s.each(followPF(bridge), bridge, func(_ string, b *datapath.Bridge) error {
		changed, err = pfStale(b)
		return err
	})
	if err != nil || !changed {
		return false, err
	}
	// a writer follows them before that, and says nothing of errors
	err = s.change(followPF(bridge), bridge, func(*draft) error { return nil })
	return err == nil, err
}
