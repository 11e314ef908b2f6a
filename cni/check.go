// SPDX-License-Identifier: BSD-2-Clause

package cni

import (
	"context"
	"fmt"
	"slices"

	"bascule/bridge"
	"bascule/plug"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
)

// check says whether the container is still on the switch as ADD has answered.
func check(r request) error {
	space, err := r.space()
	if err != nil {
		return err
	}
	defer space.Close()
	if r.RawPrevResult == nil {
		return wrong("prevResult is missing; give the answer of ADD")
	}
	if err := version.ParsePrevResult(&r.PluginConf); err != nil {
		return wrong("prevResult: %v", err)
	}
	result, err := types100.NewResultFromResult(r.PrevResult)
	if err != nil {
		return wrong("prevResult: %v", err)
	}
	port, err := plug.Find(r.s, r.id())
	switch {
	case err != nil:
		return err
	case port == nil:
		return fmt.Errorf("%s is not on bridge %s", r.id(), r.Bridge)
	case port.Bridge != r.Bridge:
		return fmt.Errorf("%s is on bridge %s, and not on %s", r.id(), port.Bridge, r.Bridge)
	case port.State == "gone":
		return fmt.Errorf("the device of %s on bridge %s is gone", r.id(), r.Bridge)
	}
	inner, err := space.LinkByName(r.IfName)
	if err != nil {
		return fmt.Errorf("look for %s in the container: %w", r.IfName, err)
	}
	if inner.Type() != "veth" || inner.Attrs().ParentIndex != port.Index {
		return fmt.Errorf("%s of the container is not the other end of port %s of bridge %s", r.IfName, port.Name, port.Bridge)
	}
	for _, i := range result.Interfaces {
		if i.Name == r.IfName && i.Sandbox == r.Netns && i.Mac != "" && i.Mac != inner.Attrs().HardwareAddr.String() {
			return fmt.Errorf("%s of the container has the MAC %s, and not %s", r.IfName, inner.Attrs().HardwareAddr, i.Mac)
		}
	}
	if err := r.checkPort(*port); err != nil {
		return err
	}
	if err := checkAddresses(space, inner, result); err != nil {
		return err
	}
	if r.IPAM.Type == "" {
		return nil
	}
	return invoke.DelegateCheck(context.Background(), r.IPAM.Type, r.StdinData, nil)
}

// checkPort says whether the port has the settings of the network.
func (r *request) checkPort(port bridge.Port) error {
	want := bridge.Defaults(bridge.PortSettings)
	for _, change := range r.settings() {
		for _, s := range bridge.PortSettings {
			if s.Name == change.Name {
				if err := s.Set(&want, change.Value); err != nil {
					return err
				}
			}
		}
	}
	for _, s := range bridge.PortSettings {
		if is, should := s.Format(port.Config), s.Format(want); is != should {
			return fmt.Errorf("port %s of bridge %s has %s %s, and not %s", port.Name, port.Bridge, s.Name, is, should)
		}
	}
	return nil
}

// checkAddresses says whether the container has the addresses and the routes that it got.
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
	routes, err := space.RouteList(inner, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the routes of the container: %w", err)
	}
	for _, want := range result.Routes {
		if want.Table != nil && *want.Table != 254 { // RouteList is of the main table
			continue
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool {
			if r.Dst == nil {
				ones, _ := want.Dst.Mask.Size()
				return ones == 0
			}
			return r.Dst.String() == want.Dst.String()
		}) {
			return fmt.Errorf("the container has no route to %s", want.Dst.String())
		}
	}
	return nil
}
