// SPDX-License-Identifier: BSD-2-Clause

package cni

import (
	"context"
	"fmt"
	"net"
	"slices"

	"bascule/bridge"
	"bascule/plug"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// check reports whether the container is still connected to the switch in the state that ADD returned.
func check(r request) error {
	space, err := r.space()
	if err != nil {
		return err
	}
	defer space.Close()
	if r.RawPrevResult == nil {
		return wrong("prevResult is missing; give the result of ADD")
	}
	if err := version.ParsePrevResult(&r.PluginConf); err != nil {
		return wrong("prevResult: %v", err)
	}
	result, err := types100.NewResultFromResult(r.PrevResult)
	if err != nil {
		return wrong("prevResult: %v", err)
	}
	if port, err := plug.Find(r.s, r.id()); err != nil {
		return err
	} else if port == nil {
		return fmt.Errorf("%s is not on bridge %s", r.id(), r.Bridge)
	}
	inner, err := space.LinkByName(r.IfName)
	if err != nil {
		return fmt.Errorf("look for %s in the container: %w", r.IfName, err)
	}
	if err := r.checkSwitch(inner, result); err != nil {
		return err
	}
	if err := checkAddresses(space, inner, result); err != nil {
		return err
	}
	if r.IPAM.Type == "" {
		return nil
	}
	return r.ofIPAM(invoke.DelegateCheck(context.Background(), r.IPAM.Type, r.StdinData, nil))
}

// checkSwitch reports whether the switch still has the objects that ADD made for the container and for the network,
// with the MACs of ADD's result.
func (r *request) checkSwitch(inner netlink.Link, result *types100.Result) error {
	info, err := r.s.Quick(r.Bridge)
	if err != nil {
		return err
	}
	owner, err := r.owner()
	if err != nil {
		return err
	}
	device, mac := plug.DeviceName(owner.ID), inner.Attrs().HardwareAddr
	port, err := plug.Check(r.s, r.plug(owner, device, mac, info, result))
	if err != nil {
		return err
	}
	if inner.Type() != "veth" || inner.Attrs().ParentIndex != port.Index {
		return fmt.Errorf("%s of the container is not the other end of port %s of bridge %s", r.IfName, port.Name, port.Bridge)
	}
	if err := r.checkInterfaces(port, inner, result); err != nil {
		return err
	}
	bridges := []string{info.Address.String()}
	if gateway := r.gatewayOf(result); gateway != nil {
		link, err := gateway.Check(r.s)
		if err != nil {
			return err
		}
		if r.VLAN == 0 {
			bridges = nil
		}
		bridges = append(bridges, link.Attrs().HardwareAddr.String())
		if err := sameMAC(result, gateway.Name, "", link.Attrs().HardwareAddr.String()); r.VLAN != 0 && err != nil {
			return err
		}
	}
	if l, err := netlink.LinkByName(r.Bridge); err == nil { // another network may have a gateway with this name
		bridges = append(bridges, l.Attrs().HardwareAddr.String())
	}
	for _, of := range []struct {
		name, sandbox string
		macs          []string
	}{
		{r.Bridge, "", bridges}, {device, "", []string{port.MAC.String()}}, {r.IfName, r.Netns, []string{mac.String()}},
	} {
		if err := sameMAC(result, of.name, of.sandbox, of.macs...); err != nil {
			return err
		}
	}
	if r.IPMasq {
		return plug.CheckMasquerade(r.s, By, addressesOf(result))
	}
	return nil
}

// checkInterfaces reports whether both ends of the container's cable are up, with the MTU from ADD.
func (r *request) checkInterfaces(port *bridge.Port, inner netlink.Link, result *types100.Result) error {
	mtu := r.MTU
	for _, i := range result.Interfaces { // since CNI 1.1
		if mtu == 0 && i.Sandbox != "" && i.Name == r.IfName {
			mtu = i.Mtu
		}
	}
	switch is := inner.Attrs().MTU; {
	case !slices.Contains(port.Flags, "UP"):
		return fmt.Errorf("port %s of bridge %s is down", port.Name, port.Bridge)
	case inner.Attrs().Flags&net.FlagUp == 0 && !r.DisableInterface:
		return fmt.Errorf("%s of the container is down", r.IfName)
	case mtu != 0 && port.MTU != mtu:
		return fmt.Errorf("port %s of bridge %s has MTU %d, not %d", port.Name, port.Bridge, port.MTU, mtu)
	case mtu != 0 && is != mtu:
		return fmt.Errorf("%s of the container has MTU %d, not %d", r.IfName, is, mtu)
	}
	return nil
}

// sameMAC reports whether an interface in the result has one of the MACs.
func sameMAC(result *types100.Result, name, sandbox string, macs ...string) error {
	for _, i := range result.Interfaces {
		if i.Name == name && i.Sandbox == sandbox && i.Mac != "" && !slices.Contains(macs, i.Mac) {
			return fmt.Errorf("%s has the MAC %s, not %s", name, macs[0], i.Mac)
		}
	}
	return nil
}

// checkAddresses reports whether the container still has its addresses and routes.
func checkAddresses(space *plug.Space, inner netlink.Link, result *types100.Result) error {
	addresses, err := space.AddrList(inner, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of the container: %w", err)
	}
	for _, ip := range result.IPs {
		if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IPNet.String() == ip.Address.String() }) {
			return fmt.Errorf("%s of the container does not have the address %s", inner.Attrs().Name, ip.Address.String())
		}
	}
	// from all tables; a multipath route is not listed under any of its interfaces
	routes, err := space.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list the routes of the container: %w", err)
	}
	for _, want := range result.Routes {
		gateway, table := want.GW, unix.RT_TABLE_MAIN
		if want.Table != nil {
			table = *want.Table
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			if r.Dst == nil || r.Table != table || r.Dst.String() != want.Dst.String() {
				return false
			}
			return slices.ContainsFunc(append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: r.LinkIndex, Gw: r.Gw}), func(way *netlink.NexthopInfo) bool {
				return way.LinkIndex == inner.Attrs().Index && (gateway == nil || way.Gw.Equal(gateway))
			})
		}) {
			way := ""
			if gateway != nil {
				way = " by " + gateway.String()
			}
			return fmt.Errorf("the container has no route to %s%s", want.Dst.String(), way)
		}
	}
	return nil
}
