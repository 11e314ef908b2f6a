// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// Router forwards by IP address: each end is in a separate subnet.
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

// RouterNft is the same with a stateful firewall.
var RouterNft = &Fabric{
	Name:     "router+nft",
	About:    "Linux as a router, with a stateful nftables chain for what is forwarded",
	Path:     path("end", "device veth", "bridge Linux router", "filter nftables", "device veth", "end"),
	HostPath: path("host", "filter nftables", "end"),
	Arrival:  AsBuffers,
	Routed:   true,
	Needs:    []ends.Program{nft},
	Files:    nftFiles,
	Modules:  nftModules,
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

// RouterNAT is the same with translation: all ends except the first see the router's address as the
// sender.
var RouterNAT = &Fabric{
	Name:     "router+nat",
	About:    "Linux as a router, with a stateful nftables chain for what is forwarded, and masquerading to all ends but the first",
	Path:     path("end", "device veth", "bridge Linux router", "filter nftables", "filter masquerade", "device veth", "end"),
	HostPath: RouterNft.HostPath,
	Arrival:  AsBuffers,
	Routed:   true,
	Needs:    []ends.Program{nft},
	Files:    nftFiles,
	Modules:  append([]string{"nft_masq", "nft_chain_nat"}, nftModules...),
	build: func(ctx context.Context, site Site, n *Net) error {
		if err := RouterNft.build(ctx, site, n); err != nil {
			return err
		}
		return n.masquerade(ctx)
	},
}

// RouterFlowtable is RouterNft with a flowtable: packets of a connection bypass the chain, directly
// from the ingress to the egress device.
var RouterFlowtable = &Fabric{
	Name:     "router+nft-flowtable",
	About:    "Linux as a router, with a stateful nftables chain, and a flowtable for what is established",
	Path:     path("end", "device veth", "filter nftables flowtable", "device veth", "end"),
	HostPath: RouterNft.HostPath,
	Arrival:  AsBuffers,
	Routed:   true,
	Needs:    []ends.Program{nft},
	Files:    nftFiles,
	Modules:  append([]string{"nf_flow_table", "nf_flow_table_inet", "nft_flow_offload"}, nftModules...),
	build: func(ctx context.Context, _ Site, n *Net) error {
		if err := n.route(ctx); err != nil {
			return err
		}
		if err := n.filterFlows(ctx); err != nil {
			return err
		}
		return n.filterHost(ctx)
	},
}

// BasculeRouter routes by IP address in its datapath, like Router. Each end is in a separate VLAN,
// whose gateway is a routed host port. BasculeRouterXDP routes in XDP.
var (
	BasculeRouter = &Fabric{
		Name:     "bascule-router",
		About:    "a bascule bridge that routes between its VLANs at tcx, each end in a VLAN and a subnet of its own",
		Path:     path("end", "device veth", "program bascule (tcx, routes)", "end"),
		HostPath: Bascule.HostPath,
		Arrival:  AsBuffers,
		Routed:   true,
		build: func(ctx context.Context, _ Site, n *Net) error {
			return n.routeBy(ctx, &routerKit{switched: &basculeKit{n, "tcx"}, basculeKit: basculeKit{n, "tcx"}})
		},
	}
	BasculeRouterXDP = &Fabric{
		Name:      "bascule-router-xdp",
		About:     "a bascule bridge that routes between its VLANs in XDP, each end in a VLAN and a subnet of its own; GRO or an XDP program at the ends",
		Path:      path("end", "device veth", "program bascule (XDP, routes)", "device veth", "end"),
		HostPath:  BasculeXDP.HostPath,
		Arrival:   AsXDP,
		Routed:    true,
		NeedsNAPI: true,
		build: func(ctx context.Context, _ Site, n *Net) error {
			return n.routeBy(ctx, &routerKit{switched: &basculeKit{n, "xdp"}, basculeKit: basculeKit{n, "xdp"}})
		},
	}
)

// The same with a packet filter, which checks routed packets at the host ports, and not at the
// ends' ports, like RouterNft in the forward path. Without states, the policy covers only addresses
// and protocols.
var (
	BasculeRouterPF           = routerPF(BasculeRouter, "tcx", "+pf", "stateful rules of its packet filter", filterSize{at: gateways})
	BasculeRouterXDPPF        = routerPF(BasculeRouterXDP, "xdp", "+pf", "stateful rules of its packet filter", filterSize{at: gateways})
	BasculeRouterStateless    = routerPF(BasculeRouter, "tcx", "+pf-stateless", "rules of its packet filter that keep no state", filterSize{at: gateways, stateless: true})
	BasculeRouterXDPStateless = routerPF(BasculeRouterXDP, "xdp", "+pf-stateless", "rules of its packet filter that keep no state", filterSize{at: gateways, stateless: true})
	BasculeRouterNAT          = routerNAT(BasculeRouter, "tcx")
	BasculeRouterXDPNAT       = routerNAT(BasculeRouterXDP, "xdp")
)

// routerNAT is a bascule router with a stateful packet filter. It translates the source of packets
// to any end except the first to the router's address, like RouterNAT.
func routerNAT(plain *Fabric, hook string) *Fabric {
	f := routerPF(plain, hook, "+nat", "stateful rules of its packet filter, and `nat-to` to all ends but the first", filterSize{at: gateways, nat: true})
	for i, h := range f.Path {
		if h.Name == "bascule pf" {
			f.Path[i].Name = "bascule pf, nat-to"
		}
	}
	return f
}

// routerPF is a bascule router with a packet filter.
func routerPF(plain *Fabric, hook, name, about string, size filterSize) *Fabric {
	f := *plain
	f.Name += name
	f.About = strings.Replace(f.About, "a bascule bridge", "a bascule bridge with "+about, 1)
	f.Path, f.HostPath = filteredPath(plain.Path), filteredPath(plain.HostPath)
	f.build = func(ctx context.Context, _ Site, n *Net) error {
		k, size := basculeKit{n, hook}, size
		size.ends = n.Spec.Ends
		return n.routeBy(ctx, &routerKit{switched: &pfKit{basculeKit: k, size: size}, basculeKit: k})
	}
	return &f
}

// A gateway is a router's part of a subnet: its device there, for the device that the end's cable
// is connected to.
type gateway interface {
	// begin prepares a router.
	begin(ctx context.Context) error
	// of returns the name of the device for end i, from 0.
	of(ctx context.Context, i int) (device string, err error)
}

// plainRouter routes between the cables themselves.
type plainRouter struct{ net *Net }

func (r plainRouter) begin(context.Context) error { return nil }

func (r plainRouter) of(_ context.Context, i int) (string, error) { return r.net.Ports[i].Ifname, nil }

// gateways is the group of the routed host ports, which are gw1, gw2 and so on, and endPorts
// is the group of the ends' ports.
const (
	gateways = "gw"
	endPorts = "p"
)

// routerKit is a bascule bridge from another kit, with a VLAN and a routed host port for each end.
type routerKit struct {
	switched kit
	basculeKit
}

func (k *routerKit) begin(ctx context.Context) error {
	if err := k.switched.add(ctx, bridgeName); err != nil {
		return err
	}
	return k.run(ctx, "bridge", "set", bridgeName, "--vlan-filtering")
}

func (k *routerKit) of(ctx context.Context, i int) (string, error) {
	port, device, vlan := k.net.Ports[i].Ifname, fmt.Sprintf("%s%d", gateways, i+1), fmt.Sprint(i+2)
	if err := k.plug(ctx, bridgeName, port); err != nil {
		return "", err
	}
	if err := k.run(ctx, "port", "add", bridgeName, device, "--type", "host", "--route"); err != nil {
		return "", err
	}
	for _, name := range []string{port, device} {
		if err := k.run(ctx, "vlan", "add", bridgeName, name, vlan, "--pvid", "--untagged"); err != nil {
			return "", err
		}
		if err := k.run(ctx, "vlan", "del", bridgeName, name, "1"); err != nil {
			return "", err
		}
	}
	if err := k.net.ready(device); err != nil {
		return "", err
	}
	// the state after the end's first packet; the router does not send ARP requests for the end
	// either
	return device, k.run(ctx, "fdb", "add", bridgeName, k.net.Ends[i].MAC.String(), port, "--vlan", vlan)
}

// subnet returns the n-th subnet, from 1: the end's address and the router's. Both addresses are in
// the lab's network, 198.18.0.0/15.
func subnet(n int) (end, router netip.Prefix) {
	at := func(host byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(n>>8), byte(n), host}), 24)
	}
	return at(1), at(254)
}

// subnets is the number of subnets; one more would include 198.19.255.254, which no station has.
const subnets = 510

// route connects the ends by IP forwarding in the switch's namespace. Neighbors are static, so that
// built frames pass from the first one on.
func (n *Net) route(ctx context.Context) error { return n.routeBy(ctx, plainRouter{n}) }

// routeBy is route with the router's own devices.
func (n *Net) routeBy(ctx context.Context, r gateway) error {
	if n.Spec.Ends > subnets {
		return fmt.Errorf("it has %d subnets; %d ends were requested", subnets, n.Spec.Ends)
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
	if err := r.begin(ctx); err != nil {
		return err
	}
	first := 0
	if n.Spec.Host {
		// The first end is the router. The cable to the second end replaces it, and the
		// router has the cable's other side.
		first = 1
		n.Ends, n.Ports = make([]ends.End, 1), make([]Port, 1)
	}
	cable := n.cable
	if len(n.Fabric.Wires) > 0 {
		cable = n.cardCable
	}
	for i := first; i < n.Spec.Ends; i++ {
		if err := cable(ctx, fmt.Sprintf("p%d", i+1)); err != nil {
			return err
		}
		device, err := n.apart(i, func() (string, error) { return r.of(ctx, i) })
		if err != nil {
			return err
		}
		near, err := n.Switch.Netlink().LinkByName(device)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", device, n.Switch.Name, err)
		}
		mac := near.Attrs().HardwareAddr
		addr, gateway := subnet(i + 1)
		if err := n.Switch.Subnet(device, gateway); err != nil {
			return err
		}
		if err := n.Ends[i].Behind(addr, gateway.Addr(), mac); err != nil {
			return err
		}
		if err := n.Switch.Neighbour(device, addr.Addr(), n.Ends[i].MAC); err != nil {
			return err
		}
		if n.Spec.Host && i == 1 {
			e := n.Ends[1]
			n.Ends[0] = ends.End{At: n.Switch, Namespace: n.Switch, Ifname: device, Ifindex: near.Attrs().Index, MAC: mac, Addr: gateway}
			n.Ports[0] = Port{e.Namespace, e.Ifname, e.Ifindex}
		}
	}
	if err := n.together(first); err != nil {
		return err
	}
	return n.addRoutes()
}

// apart connects the cable of end i to a router, which makes its own device for it. If the router
// has a separate core, together sets the end's address after all ends are connected: so the router
// treats the end as a station behind the device.
func (n *Net) apart(i int, plug func() (device string, err error)) (device string, err error) {
	if !n.Spec.OwnCore {
		return plug()
	}
	e := n.Ends[i]
	meanwhile := slices.Clone(e.MAC)
	meanwhile[2] ^= 0xff
	if err := e.Namespace.SetMAC(e.Ifname, meanwhile); err != nil {
		return "", err
	}
	return plug()
}

// together sets the addresses of the ends from apart.
func (n *Net) together(first int) error {
	if !n.Spec.OwnCore {
		return nil
	}
	for _, e := range n.Ends[first:] {
		if err := e.Namespace.SetMAC(e.Ifname, e.MAC); err != nil {
			return err
		}
	}
	return nil
}

// Networks are the destinations of Spec.Routes, from its first network of 256 addresses on.
var Networks = netip.MustParsePrefix("128.0.0.0/2")

// MostRoutes limits Spec.Routes.
const MostRoutes = 1 << 20

// addRoutes adds the routes of Spec.Routes to the router.
func (n *Net) addRoutes() error {
	if n.Spec.Routes == 0 {
		return nil
	}
	nl := n.Switch.Netlink()
	_, near := subnet(2)
	to, err := nl.RouteGet(n.Ends[1].Addr.Addr().AsSlice())
	if err != nil || len(to) == 0 {
		return fmt.Errorf("the way to %v from %v: %w", n.Ends[1].Addr, near, err)
	}
	first := binary.BigEndian.Uint32(Networks.Addr().AsSlice())
	for i := range n.Spec.Routes {
		network := make(net.IP, 4)
		binary.BigEndian.PutUint32(network, first+uint32(i)<<8)
		route := netlink.Route{LinkIndex: to[0].LinkIndex, Dst: &net.IPNet{IP: network, Mask: net.CIDRMask(24, 32)}, Gw: n.Ends[1].Addr.Addr().AsSlice()}
		if err := nl.RouteAdd(&route); err != nil {
			return fmt.Errorf("route to %v: %w", route.Dst, err)
		}
	}
	return nil
}
