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
	station := find(session.Client, session.Server)
	if p.refuseClient(session, station, after) || p.refuseSmall(session, after) || p.refuseSource(station, after) {
		return
	}
	taker, by := p.taker(session, station, after)
	if taker.port != "" && (station.Gateway || !p.atHost(station)) {
		// A client at the switch may be reached by the taker, too. Another one is reached only if its device
		// becomes a port of the taker's bridge.
		port := after[taker.bridge].byName[station.Interface]
		if port == nil || port.kind != bridge.TypeNetdev {
			p.refuseTaker(taker, by, session, station)
			return
		}
	}
	if p.refuseTaken(session, station, taker, after) || !given && p.refuseAbove(session, station, taker, after) {
		return
	}
	for _, d := range p.devices {
		if zone != d.Name && !slices.ContainsFunc(addressesOf(d), is) {
			continue
		}
		if d.Host == "" {
			if what, at, ok := p.taken(d); ok && !given {
				p.want.fail(at, "%s: this ssh session uses its address %s, which is cut off; move the address to a host port%s", what, session.Server, insist)
				return
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
		p.refuseWay(session, station, taker, by, before, after)
	}
}

// taken returns the port or span port that a device of the host becomes.
func (p *plan) taken(d bridge.Device) (what string, at Position, ok bool) {
	for _, b := range p.want.bridges {
		if d.Bridge == b.Name {
			continue
		}
		if port := b.byName[d.Name]; port != nil && port.kind == bridge.TypeNetdev {
			return "port " + d.Name + " of " + b.Name, port.at, true
		}
		for _, m := range b.mirrors {
			if m.Device == d.Name && !m.waits {
				return "span port " + d.Name + " of " + b.Name, m.At, true
			}
		}
	}
	return "", at, false
}

// refuseTaken refuses that the device that leads to the client becomes a port or a span port, if the session's address
// is at another device, and no host port would reach the client.
func (p *plan) refuseTaken(session Session, station bridge.Station, taker place, after network) (refused bool) {
	i := slices.IndexFunc(p.devices, func(d bridge.Device) bool { return d.Name == station.Interface })
	if i < 0 || p.devices[i].Host != "" || taker.port != "" || session.Server.Zone() == station.Interface {
		return false
	}
	d := p.devices[i]
	what, at, ok := p.taken(d)
	if !ok || slices.ContainsFunc(addressesOf(d), func(a netip.Prefix) bool { return a.Addr() == session.Server }) {
		return false
	}
	reached := after.hosts(func(at place, want *portModel) bool {
		return want.up && slices.ContainsFunc(p.addressesAt(at, want), func(a netip.Prefix) bool { return a.Contains(station.Next) })
	})
	if !reached {
		p.want.fail(at, "%s: this ssh session is routed through it to %s, which is cut off; move its addresses to a host port%s", what, session.Client, insist)
	}
	return !reached
}

// refuseAbove refuses to remove a host port, or to set it down, if the session uses a device above it, or its master.
func (p *plan) refuseAbove(session Session, station bridge.Station, taker place, after network) (refused bool) {
	for _, d := range p.devices {
		has := session.Server.Zone() == d.Name || slices.ContainsFunc(addressesOf(d), func(a netip.Prefix) bool { return a.Addr() == session.Server })
		if !has && (d.Name != station.Interface || taker.port != "") {
			continue
		}
		for _, h := range p.devices {
			if h.Master != d.Name && !slices.Contains(h.Above, d.Name) {
				continue
			}
			home := place{h.Host, h.Name}
			switch want := after.host(home); {
			case want == nil && h.Master == d.Name:
				p.refuse(place{bridge: h.Host}, "this ssh session uses %s, which would lose port %s", d.Name, h.Name)
			case want == nil:
				p.refuse(place{bridge: h.Host}, "this ssh session uses %s, which would be removed with port %s", d.Name, h.Name)
			case !want.up:
				p.refuse(home, "this ssh session uses %s, and the port below it would be down", d.Name)
			default:
				continue
			}
			return true
		}
	}
	return false
}

// refuseSource refuses to remove the source address that the route to the client prescribes. The kernel removes the
// route with that address.
func (p *plan) refuseSource(station bridge.Station, after network) (refused bool) {
	is := func(a netip.Prefix) bool { return a.Addr() == station.Source }
	for _, d := range p.devices {
		if !station.Source.IsValid() || !slices.ContainsFunc(addressesOf(d), is) {
			continue
		}
		if d.Host == "" || after.hosts(func(at place, want *portModel) bool { return slices.ContainsFunc(p.addressesAt(at, want), is) }) {
			return false
		}
		p.refuse(place{d.Host, d.Name}, "this ssh session is routed with the source address %s, which would be removed, and the route with it", station.Source)
		return true
	}
	return false
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
func (p *plan) refuseWay(session Session, station bridge.Station, taker place, by netip.Prefix, before, after network) {
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
	then, mac, ok := p.route(home, d, station, after, taker)
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
	if then == taker {
		p.refuseTaker(taker, by, session, station)
		return
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
// which is refused. taker is the port that would take the present route, if there is one.
func (p *plan) route(home place, d bridge.Device, station bridge.Station, after network, taker place) (then place, mac net.HardwareAddr, ok bool) {
	holds := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(a netip.Prefix) bool {
			// an interface keeps routes with gateways as long as it has an address of their family
			return a.Contains(station.Next) || station.Gateway && a.Addr().Is4() == station.Next.Is4()
		})
	}
	if taker.port != "" {
		return taker, macThen(after.host(taker), p.want.devices[taker.port]), true
	}
	want := after.host(home)
	linked := station.Next.IsLinkLocalUnicast() || !holds(addressesOf(d))
	if want != nil && want.up && (linked || holds(addressesThen(want, d))) && !(station.Next.Is6() && smallMTU(want, d)) {
		return home, macThen(want, &d), true
	}
	for _, name := range sortedNames(after) {
		for _, port := range sortedNames(after[name].byName) {
			other := place{name, port}
			want := after.host(other)
			if station.Gateway || other == home || want == nil || !want.up {
				continue
			}
			if holds(p.addressesAt(other, want)) {
				return other, macThen(want, p.want.devices[port]), true
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

// addressesAt returns the addresses that a host port would have.
func (p *plan) addressesAt(at place, want *portModel) []netip.Prefix {
	if d := p.want.devices[at.port]; d != nil && d.Host == at.bridge {
		return addressesThen(want, *d)
	}
	return want.addresses
}

// macThen returns the MAC address that a host interface would have, nil for a new one that gets its address by itself.
func macThen(want *portModel, d *bridge.Device) net.HardwareAddr {
	switch {
	case want.mac != nil:
		return want.mac
	case d != nil && want.ownMAC && d.OwnMAC != nil:
		return d.OwnMAC
	case d != nil:
		return d.MAC
	}
	return nil
}

// hosts calls a function with the host ports of a network, by bridge and name, until it returns true.
func (n network) hosts(f func(at place, want *portModel) (done bool)) bool {
	for _, name := range sortedNames(n) {
		for _, port := range sortedNames(n[name].byName) {
			at := place{name, port}
			if want := n.host(at); want != nil && !want.waits && f(at, want) {
				return true
			}
		}
	}
	return false
}

// refuseClient refuses the address of the client, or of the gateway to it, at a host port: the host would answer
// itself.
func (p *plan) refuseClient(session Session, station bridge.Station, after network) (refused bool) {
	whose := []struct {
		address netip.Addr
		words   string
	}{{session.Client, "the client"}, {station.Next, "the gateway"}}
	if !station.Gateway {
		whose = whose[:1]
	}
	for _, who := range whose {
		zone, address := who.address.Zone(), who.address.WithZone("")
		is := func(a netip.Prefix) bool { return a.Addr() == address }
		if slices.ContainsFunc(p.devices, func(d bridge.Device) bool { return slices.ContainsFunc(addressesOf(d), is) }) {
			continue // the session begins at this host
		}
		refused := after.hosts(func(at place, want *portModel) bool {
			if zone != "" && zone != at.port || !slices.ContainsFunc(p.addressesAt(at, want), is) {
				return false
			}
			p.refuse(at, "its address %s is the address of %s of this ssh session", address, who.words)
			return true
		})
		if refused {
			return true
		}
	}
	return false
}

// sessionMTU is the size of packets that each host with IPv4 takes (RFC 791 section 3.1). A link takes larger packets
// of the client only if the client hears of its MTU, and the packets of an ssh session are larger than the least MTU.
const sessionMTU = 576

// refuseSmall refuses an MTU that is too small for a session by IPv4. IPv6 loses its addresses first.
func (p *plan) refuseSmall(session Session, after network) (refused bool) {
	return session.Server.Is4() && after.hosts(func(at place, want *portModel) bool {
		has := slices.ContainsFunc(p.addressesAt(at, want), func(a netip.Prefix) bool { return a.Addr() == session.Server })
		d := p.want.devices[at.port]
		if !has || want.mtu == 0 || want.mtu >= sessionMTU || d != nil && d.Host == at.bridge && d.MTU <= want.mtu {
			return false
		}
		p.refuse(at, "this ssh session uses its address %s, and an MTU of %d is too small for it: give %d or more",
			session.Server, want.mtu, sessionMTU)
		return true
	})
}

// taker returns the host port, and its address, by which the host would reach the client in place of the present
// route: the address is new, and the route to its network has a longer prefix or the same and a smaller metric.
func (p *plan) taker(session Session, station bridge.Station, after network) (taker place, by netip.Prefix) {
	bits, metric := station.Bits, station.Metric
	after.hosts(func(at place, want *portModel) bool {
		d := p.want.devices[at.port]
		if station.Interface == "" || at.port == station.Interface || !want.up {
			return false
		}
		for _, a := range p.addressesAt(at, want) {
			if !a.Contains(session.Client) || d != nil && d.Host == at.bridge && d.Up && slices.Contains(addressesOf(*d), a) {
				continue
			}
			own := connectedMetric(a)
			if a.Bits() > bits || a.Bits() == bits && own < metric {
				taker, by, bits, metric = at, a, a.Bits(), own
			}
		}
		return false
	})
	return taker, by
}

// atHost reports whether packets to a station leave by a host port.
func (p *plan) atHost(station bridge.Station) bool {
	return slices.ContainsFunc(p.devices, func(d bridge.Device) bool { return d.Name == station.Interface && d.Host != "" })
}

// connectedMetric returns the metric that the kernel gives to the route to an interface's own network: 0, or
// IP6_RT_PRIO_ADDRCONF of net/ip6_route.h.
func connectedMetric(a netip.Prefix) int {
	if isIPv6(a) {
		return 256
	}
	return 0
}

// refuseTaker refuses an address that takes the route to the client.
func (p *plan) refuseTaker(taker place, by netip.Prefix, session Session, station bridge.Station) {
	p.refuse(taker, "this ssh session is routed through %s, and the port's address %s would take the route to %s", station.Interface, by, session.Client)
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
