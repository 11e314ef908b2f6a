// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"net"
	"slices"

	"bascule/bridge"
	"bascule/pf"

	"github.com/vishvananda/netlink"
)

// NoUplink means that packets of a family do not leave through a host port, whose address containers could use.
type NoUplink struct {
	Family    string // IPv4 or IPv6
	Interface string // the interface of the default route, "" for no route
}

func (e *NoUplink) Error() string {
	if e.Interface == "" {
		return "the host has no default route for " + e.Family + ", so there is no interface whose address the container could get"
	}
	return "the host's default route leads through " + e.Interface + ", but pf translates only at host ports of bridges; " +
		"make the card a port of a bridge and move its address to a host port, or leave this out and let the host's nftables masquerade"
}

// Masquerade makes the networks of addresses leave the host with the address of the default route's interface. pf
// translates at host ports, so that interface must be one; otherwise the error is a *[NoUplink]. There is one rule for
// each network. It stays when containers leave, like the gateway. by identifies the front end, and may be part of the
// rule's name.
func Masquerade(s *bridge.Switch, by string, addresses []*net.IPNet) (warnings []string, err error) {
	err = eachMasqueraded(s, by, addresses, func(on string, m masquerade) error {
		rules, err := m.rules(s)
		if err != nil {
			return err
		}
		more, err := s.Edit(on, func(e *bridge.Edit) error { return e.LoadPortPF(rules) })
		warnings = append(warnings, more...)
		return err
	})
	return warnings, err
}

// judgeMasquerade returns the error with which [Masquerade] would refuse, and changes nothing.
func judgeMasquerade(s *bridge.Switch, by string, addresses []*net.IPNet) error {
	err := eachMasqueraded(s, by, addresses, func(on string, m masquerade) error {
		rules, err := m.rules(s)
		if err != nil {
			return err
		}
		return s.Try("change bridge "+on, on, "", func(e *bridge.Edit) error { return e.LoadPortPF(rules) })
	})
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	return nil
}

// CheckMasquerade reports whether the rules of [Masquerade] exist. It also accepts their form for other rules of the
// bridge, which may have been loaded since.
func CheckMasquerade(s *bridge.Switch, by string, addresses []*net.IPNet) error {
	return eachMasqueraded(s, by, addresses, func(on string, m masquerade) error {
		rules, err := m.rules(s)
		if err == nil {
			err = s.CheckPortPF(on, rules)
		}
		if err == nil {
			return nil
		}
		m.state = !m.state
		other, bad := m.rules(s)
		if bad == nil && s.CheckPortPF(on, other) == nil {
			return nil
		}
		return err
	})
}

// A masquerade is the rule for a network.
type masquerade struct {
	by, out string
	network net.IPNet
	state   bool // the rule itself creates the state for the translation, since no other rule of the bridge does
}

func (m *masquerade) rules(s *bridge.Switch) (bridge.PortAnchor, error) {
	verb, family := "match", "inet6"
	if m.state {
		verb = "pass"
	}
	if m.network.IP.To4() != nil {
		family = "inet"
	}
	network := m.network.String()
	rule := fmt.Sprintf("%s out on %s %s from %s to ! %s nat-to (%s)\n", verb, m.out, family, network, network, m.out)
	return s.ParseSharedPF(DeviceName(m.by+"-masquerade/"+network), bridge.PFLoad{Name: "masquerade", Text: []byte(rule)})
}

// eachMasqueraded calls f with the rule for each network of addresses, and with its bridge.
func eachMasqueraded(s *bridge.Switch, by string, addresses []*net.IPNet, f func(on string, m masquerade) error) error {
	for _, a := range addresses {
		m := masquerade{by: by, network: net.IPNet{IP: a.IP.Mask(a.Mask), Mask: a.Mask}}
		on, out, err := uplink(s, m.network.IP.To4() != nil)
		if err != nil {
			return err
		}
		main, err := s.PFRules(on, "")
		if err != nil {
			return err
		}
		// Without pass or block rules, packets pass by default, which creates no state.
		m.out, m.state = out, !slices.ContainsFunc(main.Set.Rules, func(r pf.Rule) bool { return r.Action == pf.Pass || r.Action == pf.Block })
		if err := f(on, m); err != nil {
			return err
		}
	}
	return nil
}

// uplink returns the bridge and the host port of a family's default route.
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
