// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"net/netip"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/pattern"

	"github.com/agext/levenshtein"
)

// Mistakes that cut the host off are errors of the file, unless somebody insists. Everything else
// of the file is right then.

// refuseLockouts finds them. behind is [bridge.Switch.Behind].
func (p *plan) refuseLockouts(session Session, behind func(bridge string, host netip.Addr) string) {
	for _, b := range p.want.bridges {
		p.refuseMisspelt(b)
	}
	if session.Server.IsValid() {
		p.refuseSession(session, behind)
	}
}

// leaves reports whether a port that runs is not to be one of its bridge any more.
func (p *plan) leaves(was *bridgeModel, name string) bool {
	b := p.want.byName[was.Name]
	return b != nil && b.byName[name] == nil
}

// insist says how to do it all the same.
const insist = "; if that is meant, give --yes"

// refuseMisspelt refuses a port that waits for its device where one with a similar name goes that
// has a carrier.
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
				p.want.fail(waits.at, "port %s of %s: there is no such device, and port %s, which has a carrier, would go; write %s%s",
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
				p.want.fail(pattern.At, "pattern %s of %s: no device matches it, and port %s, which has a carrier, would go; write %s%s",
					pattern.Name, b.Name, goes.name, goes.name, insist)
			}
		}
	}
}

// unpatterned is what of a pattern stands for a letter of a name.
var unpatterned = pattern.New(`\[[^]]*\]|\*`)

// predictable is the beginning of a name that a card has by where it is (systemd.net-naming-scheme(7)).
var predictable = pattern.New(`^(en|wl|ww)(o|s|x|p|P|b|c|a|v|i|d)[0-9a-f]`)

// similar reports whether one name may be the other, misspelt, or the other's card where it is
// another one: the card of a new machine, or of a new kernel.
func similar(a, b string) bool {
	if predictable().MatchString(a) && predictable().MatchString(b) && a[:2] == b[:2] {
		return true
	}
	return levenshtein.Distance(a, b, nil) <= min(2, max(1, len(b)/2))
}

// refuseSession refuses to take away the address or the port by which the caller works.
func (p *plan) refuseSession(session Session, behind func(bridge string, host netip.Addr) string) {
	zone := session.Server.Zone() // of an address of the link, the interface
	has := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(a netip.Prefix) bool { return a.Addr() == session.Server })
	}
	given := slices.ContainsFunc(p.want.bridges, func(b *bridgeModel) bool {
		return slices.ContainsFunc(b.ports, func(port *portModel) bool { return has(port.addresses) })
	})
	for _, name := range sortedNames(p.want.devices) {
		d := p.want.devices[name]
		there := slices.ContainsFunc(d.Addresses, func(a string) bool { return strings.HasPrefix(a, session.Server.String()+"/") }) || zone == name
		if !there || given || d.Host != "" {
			continue
		}
		for _, b := range p.want.bridges {
			if port := b.byName[name]; port != nil && port.kind == bridge.TypeNetdev && d.Bridge != b.Name {
				p.want.fail(port.at, "port %s of %s: this ssh session is by its address %s, which is cut off; give the address to a host port%s",
					name, b.Name, session.Server, insist)
			}
		}
	}
	for _, was := range p.was.bridges {
		b := p.want.byName[was.Name]
		if b == nil {
			continue
		}
		for _, host := range was.ports {
			if host.kind != bridge.TypeHost || !has(host.addresses) && zone != host.name {
				continue
			}
			want := b.byName[host.name]
			switch {
			case want == nil && !given:
				p.want.fail(b.At, "bridge %s: this ssh session is by the address %s of port %s, which would go%s", b.Name, session.Server, host.name, insist)
			case want != nil && want.addresses != nil && !given && zone == "":
				p.want.fail(want.at, "port %s of %s: this ssh session is by its address %s, which would go%s", host.name, b.Name, session.Server, insist)
			case want != nil && !want.up:
				p.want.fail(want.at, "port %s of %s: this ssh session is by its address %s, and the port would be down%s", host.name, b.Name, session.Server, insist)
			}
			way := behind(b.Name, session.Client)
			if way == "" {
				p.sessionUnknown(was, b)
			}
			switch by := b.byName[way]; {
			case way == "":
			case p.leaves(was, way):
				p.want.fail(b.At, "bridge %s: this ssh session comes by port %s, which would go%s", b.Name, way, insist)
			case by != nil && by.kind != bridge.TypePatch && !by.up:
				p.want.fail(by.at, "port %s of %s: this ssh session comes by it, and it would be down%s", way, b.Name, insist)
			case want != nil:
				before, carried := lane(was, way, host.name)
				if after, carries := lane(b, way, host.name); carried && (!carries || before != after) {
					p.want.fail(b.At, "bridge %s: this ssh session comes by port %s, and would have no VLAN to port %s any more%s", b.Name, way, host.name, insist)
				}
			}
		}
	}
}

// lane returns the tag, 0 for none, with which frames of the interface of a host port leave by another
// port, and come in by it. ok is false if they do not.
func lane(b *bridgeModel, way, host string) (tag uint16, ok bool) {
	if !b.config.VLANFiltering || len(b.private) > 0 { // of private VLANs nothing is said
		return 0, true
	}
	to, from := b.byName[way], b.byName[host]
	if to == nil || from == nil || from.pvid() == 0 {
		return 0, false
	}
	id := from.pvid()
	untagged := func(p *portModel) (untagged, member bool) {
		for _, r := range p.vlans {
			if r.First <= id && id <= r.Last {
				return r.Untagged, true
			}
		}
		return false, false
	}
	if back, _ := untagged(from); !back {
		return 0, false
	}
	bare, member := untagged(to)
	switch {
	case !member, bare && to.pvid() != id:
		return 0, false
	case bare:
		return 0, true
	}
	return id, true
}

// sessionUnknown warns where a port with a carrier goes, or is set down, by which the session may come.
func (p *plan) sessionUnknown(was, b *bridgeModel) {
	for _, goes := range was.ports {
		d, stays := p.want.devices[goes.name], b.byName[goes.name]
		if goes.kind != bridge.TypeNetdev || d == nil || !d.Link || stays != nil && stays.up {
			continue
		}
		p.warnings = append(p.warnings, "bridge "+b.Name+": this ssh session may come by port "+goes.name+
			", which goes or is set down: no neighbour or learned address tells by which port it comes")
	}
}
