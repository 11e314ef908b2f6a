// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"net"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// NoUplink says that the host has no host port by which packets of a family leave it, whose
// address containers could get.
type NoUplink struct {
	Family    string // IPv4 or IPv6
	Interface string // by which the host's default route leads, "" for no route
}

func (e *NoUplink) Error() string {
	if e.Interface == "" {
		return "the host has no default route of " + e.Family + ", whose interface's address the container could get"
	}
	return "the host's default route leads by " + e.Interface + ", and pf translates at host ports of bridges alone; " +
		"make the card a port of a bridge and give its address to a host port, or leave this out and let the host's nftables masquerade"
}

// Masquerade has the networks of addresses leave the host with the address of the interface
// by which the host's default route leads. pf translates at host ports, so that interface has
// to be one; otherwise the error is a *[NoUplink]. There is one rule for each network. It stays
// when containers leave, as the gateway does. by is the front door, which may be told in the
// rule's name.
func Masquerade(s *bridge.Switch, by string, addresses []*net.IPNet) (warnings []string, err error) {
	err = eachMasqueraded(s, by, addresses, func(on string, a bridge.PortAnchor) error {
		more, err := s.Edit(on, func(e *bridge.Edit) error { return e.LoadPortPF(a) })
		warnings = append(warnings, more...)
		return err
	})
	return warnings, err
}

// CheckMasquerade says whether the rules of [Masquerade] are there.
func CheckMasquerade(s *bridge.Switch, by string, addresses []*net.IPNet) error {
	return eachMasqueraded(s, by, addresses, s.CheckPortPF)
}

// eachMasqueraded calls f with the rules for each network of addresses, and the bridge that they
// are for.
func eachMasqueraded(s *bridge.Switch, by string, addresses []*net.IPNet, f func(on string, rules bridge.PortAnchor) error) error {
	for _, a := range addresses {
		network := net.IPNet{IP: a.IP.Mask(a.Mask), Mask: a.Mask}
		on, out, err := uplink(s, network.IP.To4() != nil)
		if err != nil {
			return err
		}
		family := "inet6"
		if network.IP.To4() != nil {
			family = "inet"
		}
		rule := fmt.Sprintf("match out on %s %s from %s to ! %s nat-to (%s)\n", out, family, network.String(), network.String(), out)
		rules, err := s.ParseSharedPF(DeviceName(by+"-masquerade/"+network.String()), bridge.PFLoad{Name: "masquerade", Text: []byte(rule)})
		if err == nil {
			err = f(on, rules)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// uplink returns the bridge and the host port by which the default route of a family leads.
func uplink(s *bridge.Switch, ip4 bool) (on, port string, err error) {
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
		return "", "", &NoUplink{Family: word}
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", "", fmt.Errorf("look for the interface of the host's default route: %w", err)
	}
	name := link.Attrs().Name
	devices, err := s.Devices()
	if err != nil {
		return "", "", err
	}
	for _, d := range devices {
		if d.Name == name && d.Host != "" {
			return d.Host, name, nil
		}
	}
	return "", "", &NoUplink{word, name}
}
