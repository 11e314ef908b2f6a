// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/pattern"

	"github.com/agext/levenshtein"
)

// Changes that would cut the host off are errors of the file unless the user confirms them. This check runs only if the
// file has no other error.

// refuseLockouts looks for names that may be misspelt.
func (p *plan) refuseLockouts() {
	for _, b := range p.want.bridges {
		p.refuseMisspelt(b)
	}
}

// leaves reports whether a running port is not in its bridge's desired state any more.
func (p *plan) leaves(was *bridgeModel, name string) bool {
	b := p.want.byName[was.Name]
	return b != nil && b.byName[name] == nil
}

// insist is the hint how to do it anyway.
const insist = "; if that is intended, give --yes"

// refuseMisspelt refuses a port without a device if a port with a similar name and a carrier leaves.
func (p *plan) refuseMisspelt(b *bridgeModel) {
	was := p.was.byName[b.Name]
	if was == nil {
		return
	}
	for _, waits := range b.ports {
		if !waits.waits {
			continue
		}
		for _, goes := range was.ports {
			d := p.want.devices[goes.name]
			if goes.kind == bridge.TypeNetdev && d != nil && d.Link && p.leaves(was, goes.name) && similar(waits.name, goes.name) {
				p.want.fail(waits.at, "port %s of %s: there is no such device, and port %s, which has a carrier, would be removed; write %s%s",
					waits.name, b.Name, goes.name, goes.name, insist)
			}
		}
	}
	for _, pattern := range b.patterns {
		if slices.ContainsFunc(b.ports, func(o *portModel) bool { return o.pattern == pattern.Name }) {
			continue
		}
		for _, goes := range was.ports {
			d := p.want.devices[goes.name]
			if goes.kind == bridge.TypeNetdev && d != nil && d.Link && p.leaves(was, goes.name) && similar(unpatterned().ReplaceAllString(pattern.Name, "?"), goes.name) {
				p.want.fail(pattern.At, "pattern %s of %s: no device matches it, and port %s, which has a carrier, would be removed; write %s%s",
					pattern.Name, b.Name, goes.name, goes.name, insist)
			}
		}
	}
}

// unpatterned matches the parts of a pattern that stand for letters of a name.
var unpatterned = pattern.New(`\[[^]]*\]|\*`)

// predictable matches the beginning of an interface name that depends on a card's location
// (systemd.net-naming-scheme(7)).
var predictable = pattern.New(`^(en|wl|ww)(o|s|x|p|P|b|c|a|v|i|d)[0-9a-f]`)

// similar reports whether one name may be a misspelt form of the other, or the same card under another location: on a
// new machine or with a new kernel.
func similar(a, b string) bool {
	if predictable().MatchString(a) && predictable().MatchString(b) && a[:2] == b[:2] {
		return true
	}
	return levenshtein.Distance(a, b, nil) <= min(2, max(1, len(b)/2))
}

// A locator finds the station that receives packets from one of the host's addresses; see [bridge.Switch.Behind].
type locator func(host, own netip.Addr) bridge.Station

// refuseSession refuses to cut off a session, which needs the host's address, the route to the client, and a path for
// frames between them. running is the state of all bridges, with plugged ports.
func (p *plan) refuseSession(session Session, running *model, find locator) {
	zone := session.Server.Zone() // of a link-local address, the interface
	is := func(a netip.Prefix) bool { return a.Addr() == session.Server }
	given := slices.ContainsFunc(p.want.bridges, func(b *bridgeModel) bool {
		return slices.ContainsFunc(b.ports, func(port *portModel) bool { return slices.ContainsFunc(port.addresses, is) })
	})
	before, after := p.networks(running)
	for _, d := range p.devices {
		if zone != d.Name && !slices.ContainsFunc(addressesOf(d), is) {
			continue
		}
		if d.Host == "" {
			for _, b := range p.want.bridges {
				if port := b.byName[d.Name]; port != nil && port.kind == bridge.TypeNetdev && d.Bridge != b.Name && !given {
					p.want.fail(port.at, "port %s of %s: this ssh session uses its address %s, which is cut off; move the address to a host port%s",
						d.Name, b.Name, session.Server, insist)
				}
			}
			continue
		}
		home := place{d.Host, d.Name}
		switch want := after.host(home); {
		case given:
		case want == nil:
			p.refuse(place{bridge: d.Host}, "this ssh session uses the address %s of port %s, which would be removed", session.Server, d.Name)
			return
		case session.Server.Is6() && smallMTU(want, d):
			p.refuse(home, "this ssh session uses its address %s, which would be lost: IPv6 needs an MTU of %d", session.Server, bridge.IPv6MTU)
			return
		case zone == "" && !slices.ContainsFunc(addressesThen(want, d), is):
			p.refuse(home, "this ssh session uses its address %s, which would be removed", session.Server)
			return
		}
		if want := after.host(home); want != nil && !want.up {
			p.refuse(home, "this ssh session uses its address %s, and the port would be down", session.Server)
			return
		}
		p.refuseWay(find(session.Client, session.Server), before, after)
	}
}

// refuse refuses what the plan changes at a bridge or at one of its ports.
func (p *plan) refuse(at place, format string, args ...any) {
	var where Position
	what := "bridge " + at.bridge
	if len(p.want.bridges) > 0 {
		where = p.want.bridges[0].At
	}
	if b := p.want.byName[at.bridge]; b != nil {
		where = b.At
		if port := b.byName[at.port]; port != nil {
			where = port.at
		}
	}
	if at.port != "" {
		what = "port " + at.port + " of " + at.bridge
	}
	p.want.fail(where, "%s: %s%s", what, fmt.Sprintf(format, args...), insist)
}

// refuseWay refuses to remove the route to a station, or the path of frames in either direction.
func (p *plan) refuseWay(station bridge.Station, before, after network) {
	i := slices.IndexFunc(p.devices, func(d bridge.Device) bool { return d.Name == station.Interface })
	if i >= 0 && p.devices[i].Host == "" {
		return // it is not an interface of the switch, or of a device above one
	}
	if i < 0 {
		p.unknownWay(before, after, before)
		return
	}
	d := p.devices[i]
	home := place{d.Host, d.Name}
	then, mac, ok := p.route(home, d, station, after)
	if !ok {
		return
	}
	joined := before.joined(home.bridge)
	edges := slices.DeleteFunc(slices.Clone(station.At), func(at bridge.Berthed) bool {
		port, _ := before.port(place{at.Bridge, at.Port})
		return !slices.Contains(joined, at.Bridge) || port == nil || port.kind == bridge.TypePatch
	})
	known := len(edges) > 0
	if !known { // a table was flushed, as after a change of VLAN filtering: any port is possible
		edges = p.carriers(before, joined)
	}
	var first *bridge.Berthed // that the session may use, as far as that can be checked
	var ways round
	var all []string // ports that the session may use
	for _, at := range edges {
		edge := place{at.Bridge, at.Port}
		for _, r := range before.rounds(home, edge, d.MAC, station.MAC) {
			if known && r.there.fid != at.VLAN {
				continue
			}
			if slices.ContainsFunc(after.rounds(then, edge, mac, station.MAC), func(o round) bool { return o.there.tag == r.there.tag }) {
				if !known {
					p.unknownWay(before, after, only(before, joined))
				}
				return
			}
			if first == nil {
				first, ways = &at, r
			}
			if !slices.Contains(all, at.Port) {
				all = append(all, at.Port)
			}
		}
	}
	judged := first != nil
	switch {
	case !judged && !known:
		p.unknownWay(before, after, only(before, joined))
		return
	case !judged: // by a mechanism that is not checked here
		first = &edges[0]
	}
	edge := place{first.Bridge, first.Port}
	comes, it := "comes through port "+edge.port, "comes through it"
	if !known {
		comes, it = "may come only through port "+strings.Join(all, " or "), "may come only through it"
	}
	switch _, why := after.port(edge); {
	case why == wouldGo:
		p.refuse(place{bridge: edge.bridge}, "this ssh session %s, which would be removed", comes)
		return
	case why == wouldBeDown:
		p.refuse(edge, "this ssh session %s, and it would be down", it)
		return
	case !judged:
		return
	}
	if then != home {
		p.refuse(place{bridge: then.bridge}, "this ssh session %s of %s, from which no frame would reach port %s", comes, edge.bridge, then.port)
		return
	}
	at, why := after.broken(ways.there, tag{}, station.MAC)
	if why == "" {
		at, why = after.broken(ways.back, ways.there.tag, mac)
	}
	switch why {
	case wouldGo:
		p.refuse(place{bridge: at.bridge}, "this ssh session comes through port %s, which would be removed", at.port)
	case noSuchVLAN, "":
		p.refuse(place{bridge: home.bridge}, "this ssh session %s, and would no longer have a VLAN to port %s", comes, home.port)
	default:
		p.refuse(place{bridge: at.bridge}, "this ssh session %s, and %s", comes, why)
	}
}

// carriers returns the bridge ports by which a station may be reached: the ports with a carrier.
func (p *plan) carriers(of network, names []string) (list []bridge.Berthed) {
	for _, name := range names {
		for _, port := range sortedNames(of[name].byName) {
			if d := p.want.devices[port]; of[name].byName[port].kind == bridge.TypeNetdev && d != nil && d.Link {
				list = append(list, bridge.Berthed{Bridge: name, Port: port})
			}
		}
	}
	return list
}

// only returns the part of a network with the named bridges.
func only(n network, names []string) network {
	some := network{}
	for _, name := range names {
		some[name] = n[name]
	}
	return some
}

// route returns the host port that would reach a station, and the port's address. ok is false if there would be none,
// which is refused.
func (p *plan) route(home place, d bridge.Device, station bridge.Station, after network) (then place, mac net.HardwareAddr, ok bool) {
	holds := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(a netip.Prefix) bool {
			// an interface keeps routes with gateways as long as it has an address of their family
			return a.Contains(station.Next) || station.Gateway && a.Addr().Is4() == station.Next.Is4()
		})
	}
	macOf := func(want *portModel, d *bridge.Device) net.HardwareAddr {
		switch {
		case want.mac != nil:
			return want.mac
		case d != nil && want.ownMAC && d.OwnMAC != nil:
			return d.OwnMAC
		case d != nil:
			return d.MAC
		}
		return nil // the interface will get an address
	}
	want := after.host(home)
	linked := station.Next.IsLinkLocalUnicast() || !holds(addressesOf(d))
	if want != nil && want.up && (linked || holds(addressesThen(want, d))) && !(station.Next.Is6() && smallMTU(want, d)) {
		return home, macOf(want, &d), true
	}
	for _, name := range sortedNames(after) {
		for _, port := range sortedNames(after[name].byName) {
			other := place{name, port}
			want := after.host(other)
			if station.Gateway || other == home || want == nil || !want.up {
				continue
			}
			it, list := p.want.devices[port], want.addresses
			if it != nil && it.Host == name {
				list = addressesThen(want, *it)
			}
			if holds(list) {
				return other, macOf(want, it), true
			}
		}
	}
	if station.Gateway {
		p.refuse(home, "this ssh session uses the gateway %s, and the route to it would be removed", station.Next)
	} else {
		p.refuse(home, "this ssh session is routed through it to %s, and that route would be removed", station.Next)
	}
	return then, nil, false
}

// host returns a host port, or nil if there is none.
func (n network) host(at place) *portModel {
	if b := n[at.bridge]; b != nil && b.byName[at.port] != nil && b.byName[at.port].kind == bridge.TypeHost {
		return b.byName[at.port]
	}
	return nil
}

// addressesOf returns the addresses of a device.
func addressesOf(d bridge.Device) (list []netip.Prefix) {
	for _, text := range d.Addresses {
		if a, err := netip.ParsePrefix(text); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// addressesThen returns the addresses that an existing host interface would have.
func addressesThen(want *portModel, d bridge.Device) []netip.Prefix {
	list := addressesOf(d)
	if want.addresses != nil { // leases stay
		list = slices.DeleteFunc(list, func(a netip.Prefix) bool { return slices.Contains(d.Kept, a) })
		list = append(list, want.addresses...)
	}
	if smallMTU(want, d) {
		list = slices.DeleteFunc(list, isIPv6)
	}
	return list
}

// smallMTU reports whether the MTU of a host interface would be too small for IPv6 (1280 bytes, RFC 8200 section 5).
func smallMTU(want *portModel, d bridge.Device) bool {
	mtu := cmp.Or(want.mtu, d.MTU)
	return mtu != 0 && mtu < bridge.IPv6MTU
}

// unknownWay warns if ports that the session may use and that have a carrier leave or are set down.
func (p *plan) unknownWay(before, after, of network) {
	for _, name := range sortedNames(of) {
		b := before[name]
		for _, goes := range b.ports {
			d := p.want.devices[goes.name]
			if _, why := after.port(place{name, goes.name}); goes.kind != bridge.TypeNetdev || d == nil || !d.Link || why == "" {
				continue
			}
			p.warnings = append(p.warnings, "bridge "+name+": this ssh session may come through port "+goes.name+
				", which is removed or set down: no neighbour or learned address shows which port it uses")
		}
	}
}
