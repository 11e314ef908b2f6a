// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"

	"bascule/lab/ends"
	"bascule/lab/guests"
)

// Macvlan is the kernel's device for ends that need only a hardware address of their own on a
// shared device.
var Macvlan = &Fabric{
	Name:     "macvlan",
	About:    "macvlan devices in bridge mode on one parent",
	Path:     path("end", "device macvlan", "device parent", "device macvlan", "end"),
	HostPath: path("host", "device macvlan", "device parent", "device macvlan", "end"),
	Arrival:  AsBuffers,
	Modules:  []string{"macvlan"},
	build:    buildMacvlan,
}

// parentName is the device below the macvlans, and wireName its other side.
const (
	parentName = "parent"
	wireName   = "wire"
)

// parent makes the device below the macvlans: one side of a veth, because not every kernel has
// dummy devices. Macvlans have a carrier while their parent has one, so the other side is up, and
// receives the frames without a recipient here.
func (n *Net) parent() error {
	if err := n.place(); err != nil {
		return err
	}
	if err := n.Switch.Pair(parentName, wireName, n.Spec.Wire); err != nil {
		return err
	}
	// Linux answers ARP for an address on every device that receives the request. The host's
	// address is on a macvlan, and only that one may answer.
	for _, name := range []string{parentName, wireName} {
		l, err := n.Switch.Netlink().LinkByName(name)
		if err == nil {
			err = n.Switch.Netlink().LinkSetARPOff(l)
		}
		if err != nil {
			return fmt.Errorf("%s in %s without ARP: %w", name, n.Switch.Name, err)
		}
	}
	return nil
}

func buildMacvlan(_ context.Context, _ Site, n *Net) error {
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "its ends are namespaces only; macvtap has virtual machines"}
	}
	if err := n.parent(); err != nil {
		return err
	}
	for i := range n.Spec.Ends {
		ns := n.Switch
		if i > 0 || !n.Spec.Host {
			var err error
			if ns, err = n.endNamespace(i); err != nil {
				return err
			}
		}
		if err := n.macvlan(ns); err != nil {
			return err
		}
	}
	return nil
}

// macvlan makes the next end a macvlan in a namespace. The host uses one, too: a parent cannot
// communicate with its macvlans.
func (n *Net) macvlan(ns *ends.Namespace) error {
	i := len(n.Ends)
	end, err := ends.Macvlan(n.Switch, parentName, ns, fmt.Sprintf("e%d", i+1), i+1, n.Spec.Wire)
	if err != nil {
		return err
	}
	n.Ends = append(n.Ends, end)
	n.Ports = append(n.Ports, Port{ns, end.Ifname, end.Ifindex})
	return nil
}

// Macvtap is macvlan for virtual machines: a character device instead of the end's interface.
var Macvtap = &Fabric{
	Name:     "macvtap",
	About:    "macvtap devices in bridge mode on one parent, for virtual machines",
	Path:     path("end", "device macvtap", "device parent", "device macvtap", "end"),
	HostPath: path("host", "device macvlan", "device parent", "device macvtap", "end"),
	Arrival:  AsBuffers,
	build:    buildMacvtap,
}

func buildMacvtap(ctx context.Context, _ Site, n *Net) error {
	if !n.Spec.Guests {
		return &ends.Unavailable{Reason: "its ends are virtual machines only: --ends vm"}
	}
	if err := n.parent(); err != nil {
		return err
	}
	for i := range n.Spec.Ends {
		var err error
		if i == 0 && n.Spec.Host {
			err = n.macvlan(n.Switch)
		} else {
			err = n.guest(ctx, guests.Device{Name: fmt.Sprintf("p%d", i+1), Parent: parentName})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
