// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"bascule/bridge"

	"golang.org/x/sys/unix"
)

// This file finds paths of frames between ports of bridges that are joined by cables. The same code
// checks the bridges as they are and as they would be. It covers ports, cables, VLANs, protected
// domains, and static and sticky entries. It does not cover rules, pf, locked ports and the spanning
// tree.

// A network has the bridges of a namespace by name.
type network map[string]*bridgeModel

// A place is a port of a bridge.
type place struct{ bridge, port string }

// A tag is a frame's tag between bridges: its EtherType and VLAN, 0 for none.
type tag struct{ protocol, vlan uint16 }

// A hop is a bridge on a frame's path.
type hop struct {
	at  place // the ingress port
	out string
}

// A way is the path of a frame from one port to another, as a list of bridges.
type way struct {
	hops []hop
	tag  tag    // with which it leaves the last bridge
	fid  uint16 // the VLAN of the last bridge's FDB lookup
}

// networks returns the bridges of the running state, and the bridges as they would be.
func (p *plan) networks(running *model) (before, after network) {
	before, after = network{}, network{}
	for _, b := range running.bridges {
		before[b.Name], after[b.Name] = b, b
	}
	with := func(b *bridgeModel) *bridgeModel {
		c := *b
		c.byName = maps.Clone(b.byName)
		after[b.Name] = &c
		return &c
	}
	for _, b := range p.want.bridges {
		b, was := with(b), before[b.Name]
		for name, d := range p.want.devices { // plugged ports are in no file
			if was != nil && d.Owner != "" && was.byName[name] != nil && b.byName[name] == nil {
				b.byName[name] = was.byName[name]
			}
		}
		for name, port := range b.byName {
			d := p.want.devices[name]
			if port.kind != bridge.TypeHost || d == nil || d.Host != b.Name {
				continue
			}
			port := *port
			port.mac = macThen(&port, d)
			b.byName[name] = &port
		}
	}
	for _, b := range p.want.bridges {
		for _, port := range b.ports {
			far, end, _ := strings.Cut(port.peer, "/")
			if port.kind != bridge.TypePatch || p.want.byName[far] != nil || after[far] == nil || after[far].byName[end] != nil {
				continue
			}
			other := with(after[far]) // a new cable also makes its other end
			other.byName[end] = &portModel{name: end, kind: bridge.TypePatch, peer: b.Name + "/" + port.name,
				config: bridge.PortDefaults(bridge.TypePatch), vlans: defaultVLANs(other.config), up: true}
		}
	}
	return before, after
}

// port returns a port that can receive and send frames, or the reason why it cannot.
func (n network) port(at place) (p *portModel, why string) {
	if b := n[at.bridge]; b != nil {
		p = b.byName[at.port]
	}
	switch {
	case p == nil || p.waits:
		return nil, wouldGo
	case p.kind != bridge.TypePatch && !p.up:
		return nil, wouldBeDown
	}
	return p, ""
}

// Reasons why a port, or the path between two, fails.
const (
	wouldGo     = "gone"
	wouldBeDown = "down"
	noSuchVLAN  = "VLAN"
)

// otherEnd returns the port at the other end of a cable.
func (n network) otherEnd(at place) (far place, ok bool) {
	p, _ := n.port(at)
	if p == nil || p.kind != bridge.TypePatch {
		return far, false
	}
	far.bridge, far.port, _ = strings.Cut(p.peer, "/")
	end, _ := n.port(far)
	return far, end != nil && end.peer == at.bridge+"/"+at.port
}

// cross passes a frame with a destination address from the ingress port, with a tag, to another port. It
// returns the tag of the outgoing frame and the VLAN of the FDB lookup, or the reason why the frame does
// not get there.
func (n network) cross(h hop, with tag, to net.HardwareAddr) (leaves tag, fid uint16, why string) {
	in, why := n.port(h.at)
	if why != "" {
		return leaves, 0, why
	}
	out, why := n.port(place{h.at.bridge, h.out})
	if why != "" {
		return leaves, 0, why
	}
	b, vid := n[h.at.bridge], with.vlan
	switch tagged := with != (tag{}); {
	case !b.config.VLANFiltering && with.protocol != unix.ETH_P_8021Q:
		vid = 0 // such a bridge reads no other tags (frame_label of bpf/frame.h)
	case b.config.VLANFiltering:
		switch {
		case tagged && in.config.Admit == bridge.AdmitUntagged, !tagged && in.config.Admit == bridge.AdmitTagged:
			return leaves, 0, fmt.Sprintf("port %s would admit only %s frames", in.name, in.config.Admit)
		case tagged && with.protocol != b.config.VLANProtocol:
			return leaves, 0, noSuchVLAN
		case !tagged:
			vid = in.pvid()
		}
		if vid == 0 || !in.inVLAN(vid) {
			return leaves, 0, noSuchVLAN
		}
	}
	fid = b.fid(vid)
	for _, listed := range b.listed[&bridge.EntryFiling] {
		if e := listed.it.(*bridge.Entry); e.VLAN == fid && e.Port != h.out && bytes.Equal(e.MAC, to) {
			return leaves, fid, fmt.Sprintf("an FDB entry would send frames for %s to port %s", to, e.Port)
		}
	}
	for name, o := range b.byName { // a host port's own address is a static entry, too
		if name != h.out && o.kind == bridge.TypeHost && !o.waits && len(to) > 0 && bytes.Equal(o.mac, to) && b.knows(o, fid) {
			return leaves, fid, fmt.Sprintf("frames for %s would go to host port %s, which would have that address", to, name)
		}
	}
	if in.config.Protected&out.config.Protected != 0 {
		return leaves, fid, fmt.Sprintf("ports %s and %s would share a protected domain", in.name, h.out)
	}
	if !b.config.VLANFiltering {
		return with, fid, ""
	}
	vid, ok := b.leaves(out, vid)
	if !ok {
		return leaves, fid, noSuchVLAN
	}
	if vid != 0 {
		leaves = tag{b.config.VLANProtocol, vid}
	}
	return leaves, fid, ""
}

// knows reports whether the FDB of a VLAN has the address of a host port. It mirrors addressSpaces() of package bridge.
func (b *bridgeModel) knows(p *portModel, fid uint16) bool {
	if !b.config.VLANFiltering {
		return fid == 0
	}
	if p.inVLAN(fid) {
		return true
	}
	for id, primary := range b.fids {
		if primary == fid && p.inVLAN(id) {
			return true
		}
	}
	return false
}

// leaves returns the VLAN of the tag, 0 for none, with which a port sends a frame of a VLAN. ok is false
// if the port does not send it. It mirrors derive() of package bridge.
func (b *bridgeModel) leaves(out *portModel, vid uint16) (_ uint16, ok bool) {
	for _, r := range out.vlans {
		if below := b.private[b.fid(vid)]; r.First <= vid && vid <= r.Last && !slices.Contains(below.Isolated, vid) {
			return tagOf(r, vid), true
		}
	}
	if fid := b.fid(vid); fid != vid { // upstream, to the primary VLAN
		for _, r := range out.vlans {
			if r.First <= fid && fid <= r.Last {
				if out.inVLAN(vid) { // a trunk has the private VLAN, too, and its frames keep their tag
					return tagOf(rangeOf(out, vid), vid), true
				}
				return tagOf(r, fid), true
			}
		}
		return 0, false
	}
	id, bare := vid, false
	for _, below := range slices.Concat(b.private[vid].Isolated, b.private[vid].Community) {
		if out.inVLAN(below) {
			ok, bare = true, bare || rangeOf(out, below).Untagged
		}
	}
	if bare {
		id = 0
	}
	return id, ok
}

func rangeOf(p *portModel, id uint16) (r bridge.VLANRange) {
	for _, r := range p.vlans {
		if r.First <= id && id <= r.Last {
			return r
		}
	}
	return r
}

func tagOf(r bridge.VLANRange, id uint16) uint16 {
	if r.Untagged {
		return 0
	}
	return id
}

// ways returns the paths of a frame with a destination address from one port, with a tag on ingress, to
// another port.
func (n network) ways(from place, with tag, to place, address net.HardwareAddr) (list []way) {
	type state struct {
		place
		tag
	}
	seen := map[state]bool{}
	var follow func(at place, with tag, before []hop)
	follow = func(at place, with tag, before []hop) {
		if seen[state{at, with}] || n[at.bridge] == nil {
			return
		}
		seen[state{at, with}] = true
		for _, name := range sortedNames(n[at.bridge].byName) {
			h, out := hop{at, name}, place{at.bridge, name}
			far, cable := n.otherEnd(out)
			if name == at.port || out != to && !cable {
				continue
			}
			leaves, fid, why := n.cross(h, with, address)
			if why != "" {
				continue
			}
			hops := append(slices.Clone(before), h)
			if out == to {
				list = append(list, way{hops, leaves, fid})
			} else {
				follow(far, leaves, hops)
			}
		}
	}
	follow(from, with, nil)
	return list
}

// A round is a pair of paths: from the host to a station, and back.
type round struct{ there, back way }

// rounds returns the paths from a host port to the port of a station, and back.
func (n network) rounds(home, edge place, host, station net.HardwareAddr) (list []round) {
	for _, there := range n.ways(home, tag{}, edge, station) {
		for _, back := range n.ways(edge, there.tag, home, host) {
			if back.tag == (tag{}) {
				list = append(list, round{there, back})
			}
		}
	}
	return list
}

// broken returns the first place where a former path is broken, and the reason; "" if it still works.
func (n network) broken(w way, with tag, address net.HardwareAddr) (at place, why string) {
	for i, h := range w.hops {
		out := place{h.at.bridge, h.out}
		for _, end := range []place{h.at, out} {
			if _, why := n.port(end); why != "" {
				return end, why
			}
		}
		if with, _, why = n.cross(h, with, address); why != "" {
			return out, why
		}
		if far, _ := n.otherEnd(out); i+1 < len(w.hops) && far != w.hops[i+1].at {
			return out, wouldGo
		}
	}
	if with != w.tag {
		return w.hops[len(w.hops)-1].at, noSuchVLAN
	}
	return at, ""
}

// joined returns the bridges that frames can reach from one bridge, sorted by name.
func (n network) joined(from string) []string {
	seen := map[string]bool{}
	var follow func(name string)
	follow = func(name string) {
		if b := n[name]; b != nil && !seen[name] {
			seen[name] = true
			for port := range b.byName {
				if far, ok := n.otherEnd(place{name, port}); ok {
					follow(far.bridge)
				}
			}
		}
	}
	follow(from)
	return sortedNames(seen)
}
