// SPDX-License-Identifier: BSD-2-Clause

package cni

import (
	"fmt"
	"net"

	"bascule/bridge"
	"bascule/plug"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// masquerade has the container's networks leave the host with the address of the interface
// by which the host's default route leads. pf translates at host ports, so that interface has
// to be one. There is one rule for each network. It stays when containers leave, as the
// gateway does.
func (r *request) masquerade(result *types100.Result) error {
	for _, ip := range result.IPs {
		network := net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}
		on, out, err := r.uplink(network.IP.To4() != nil)
		if err != nil {
			return err
		}
		family := "inet6"
		if network.IP.To4() != nil {
			family = "inet"
		}
		rule := fmt.Sprintf("match out on %s %s from %s to ! %s nat-to (%s)\n", out, family, network.String(), network.String(), out)
		notes, err := plug.Share(r.s, on, plug.DeviceName(By+"-masquerade/"+network.String()), &bridge.PFLoad{Name: "ipMasq", Text: []byte(rule)})
		r.say(notes)
		if err != nil {
			return err
		}
	}
	return nil
}

// uplink returns the bridge and the host port by which the default route of a family leads.
func (r *request) uplink(ip4 bool) (on, port string, err error) {
	family, word := netlink.FAMILY_V6, "IPv6"
	if ip4 {
		family, word = netlink.FAMILY_V4, "IPv4"
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return "", "", fmt.Errorf("list the host's routes: %w", err)
	}
	index := 0
	for _, route := range routes {
		ones := 0
		if route.Dst != nil {
			ones, _ = route.Dst.Mask.Size()
		}
		if ones == 0 && route.LinkIndex != 0 {
			index = route.LinkIndex
			break
		}
	}
	if index == 0 {
		return "", "", wrong("ipMasq: the host has no default route of %s, whose interface's address the container could get", word)
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", "", fmt.Errorf("look for the interface of the host's default route: %w", err)
	}
	name := link.Attrs().Name
	devices, err := r.s.Devices()
	if err != nil {
		return "", "", err
	}
	for _, d := range devices {
		if d.Name == name && d.Host != "" {
			return d.Host, name, nil
		}
	}
	return "", "", unsupported("ipMasq", true, "the host's default route leads by "+name+", and pf translates at host ports of bridges alone; "+
		"make the card a port of a bridge and give its address to a host port, or leave ipMasq out and let the host's nftables masquerade")
}
