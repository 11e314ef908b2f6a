// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"
	"net/netip"

	"bascule/lab/ends"
)

// Router forwards by IP address: each end is in a subnet of its own.
var Router = &Fabric{
	Name:     "router",
	About:    "Linux as a router, each end in a subnet of its own",
	Path:     path("end", "device veth", "bridge Linux router", "device veth", "end"),
	HostPath: path("host", "end"),
	Arrival:  AsBuffers,
	Routed:   true,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.route(ctx)
	},
}

// RouterNft is the same with a firewall that knows connections.
var RouterNft = &Fabric{
	Name:     "router+nft",
	About:    "Linux as a router, with a stateful nftables chain for what is forwarded",
	Path:     path("end", "device veth", "bridge Linux router", "filter nftables", "device veth", "end"),
	HostPath: path("host", "filter nftables", "end"),
	Arrival:  AsBuffers,
	Routed:   true,
	Needs:    []ends.Program{nft},
	build: func(ctx context.Context, _ Site, n *Net) error {
		if err := n.route(ctx); err != nil {
			return err
		}
		if err := n.filter(ctx, "forward"); err != nil {
			return err
		}
		return n.filterHost(ctx)
	},
}

// subnet is the n-th of the subnets, from 1: the end's address in it and the
// router's. Both addresses are in the lab's network, 198.18.0.0/15.
func subnet(n int) (end, router netip.Prefix) {
	at := func(host byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(n>>8), byte(n), host}), 24)
	}
	return at(1), at(254)
}

// subnets is how many there are; the last ones would be Nobody's.
const subnets = 510

// route joins the ends by IP forwarding in the switch's namespace. Neighbours
// are fixed, so that frames that are made pass from the first on.
func (n *Net) route(ctx context.Context) error {
	if n.Spec.Ends > subnets {
		return fmt.Errorf("it has %d subnets; %d ends were asked for", subnets, n.Spec.Ends)
	}
	if n.Spec.Together {
		return &ends.Unavailable{Reason: "its ends have a subnet each and cannot share a namespace"}
	}
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "its ends are namespaces only: guests have no address in a subnet of their own"}
	}
	if err := n.place(); err != nil {
		return err
	}
	if err := n.Switch.Do(func() error { return ends.Sysctl("net.ipv4.ip_forward", "1") }); err != nil {
		return err
	}
	first := 0
	if n.Spec.Host {
		// The router is the first end. The cable to the second end
		// takes its place, and the router has the cable's other side.
		first = 1
		n.Ends, n.Ports = make([]ends.End, 1), make([]Port, 1)
	}
	for i := first; i < n.Spec.Ends; i++ {
		if err := n.cable(ctx, fmt.Sprintf("p%d", i+1)); err != nil {
			return err
		}
		port := n.Ports[i]
		near, err := n.Switch.Netlink().LinkByIndex(port.Ifindex)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", port.Ifname, n.Switch.Name, err)
		}
		mac := near.Attrs().HardwareAddr
		addr, gateway := subnet(i + 1)
		if err := n.Switch.Subnet(port.Ifname, gateway); err != nil {
			return err
		}
		if err := n.Ends[i].Behind(addr, gateway.Addr(), mac); err != nil {
			return err
		}
		if err := n.Switch.Neighbour(port.Ifname, addr.Addr(), n.Ends[i].MAC); err != nil {
			return err
		}
		if n.Spec.Host && i == 1 {
			e := n.Ends[1]
			n.Ends[0] = ends.End{At: n.Switch, Namespace: n.Switch, Ifname: port.Ifname, Ifindex: port.Ifindex, MAC: mac, Addr: gateway}
			n.Ports[0] = Port{e.Namespace, e.Ifname, e.Ifindex}
		}
	}
	return nil
}
