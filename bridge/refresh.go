// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"slices"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// Refreshing follows a device that changed by itself. A change of the bridge
// looks at all of it anyway; this is for callers that hear of the devices.

// IsSwitchEnd reports whether a device is the switch's end of a host port, of
// whatever bridge.
func IsSwitchEnd(l netlink.Link) bool { return isSwitchEnd(l) }

// Refresh has a bridge follow the other ends of its veths that have moved to
// another namespace or got another address, and its host ports' ends. Where all
// is as the programs have it nothing is changed.
func (s *Switch) Refresh(bridge string) (changed bool, err error) {
	err = s.each("follow the devices of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		changed = slices.ContainsFunc(datapath.Ports(&b.Config), func(p *datapath.Port) bool {
			if !b.HasDevice(p) {
				return false
			}
			l, err := netlink.LinkByIndex(int(p.Ifindex))
			now := *p
			return err == nil && learnDevice(&now, l)
		})
		return nil
	})
	if err != nil || !changed {
		return false, err
	}
	_, err = s.one(setBridge(bridge, nil), nil) // a writer follows host ports before that
	return err == nil, err
}

// DelDevices removes the ports of devices by their indexes, whatever their names
// are by now: those whose devices are there, or those whose are gone. It returns
// how many there are.
func (e *Edit) DelDevices(indexes []int, there bool) (n int, err error) {
	what := "delete ports of " + e.bridge
	err = e.add(step{what, e.bridge, func(c *draft) error {
		for _, p := range datapath.Ports(c.next) {
			if p.Facts&(datapath.PortPatch|datapath.PortSpan) != 0 || !slices.Contains(indexes, int(p.Ifindex)) || c.hasDevice(p) != there {
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

// RefreshPF has the rules of a bridge follow the addresses of devices that they
// name in parentheses. Where those are as the rules were compiled with nothing
// is changed. States stay.
func (s *Switch) RefreshPF(bridge string) (changed bool, err error) {
	err = s.each("follow the addresses of pf of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		changed = false
		if !b.PFLoaded() {
			return nil
		}
		d, err := readPF(b)
		if err != nil || d.Dynamic == nil {
			return err
		}
		for key, was := range d.Dynamic {
			words := strings.Split(key, ":")
			// as the compiler has it: a device that is not there has none
			list, _ := pfAddresses(words[0], words[1:], nil)
			changed = changed || !slices.Equal(list, was)
		}
		return nil
	})
	if err != nil || !changed {
		return false, err
	}
	err = s.changePF("follow addresses in pf of "+bridge, bridge, func(_ *draft, d *pfConfig) error {
		if !d.loaded {
			return errNothing
		}
		return nil
	})
	if errors.Is(err, errNothing) {
		return false, nil
	}
	return err == nil, err
}
