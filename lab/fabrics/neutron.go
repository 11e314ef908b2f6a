// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
	"bascule/lab/report"
)

// Neutron has the seven ways to connect virtual machines from a well-known comparison for
// OpenStack's Neutron, and a copy of each one with several switches, with bascule instead of each
// switch. The published results, in Gbit/s of TCP from the host to a virtual machine and between
// two:
//
//	1  27.4  23.9    4  29.1  23.1    6  1.01  2.25
//	2  1.13  3.43    5  25.8  20.2    7  27.3  19.8
//	3  26.1  21.2
var Neutron = neutron(
	topology{name: "neutron-1-linux", about: "a Linux bridge", core: linuxBrand},
	topology{name: "neutron-2-ovs-linux-veth", about: "a Linux bridge for each end, joined by veth pairs to one of Open vSwitch",
		edge: linuxBrand, core: ovsBrand, join: byVeth},
	topology{name: "neutron-3-ovs-linux-internal", about: "a Linux bridge for each end, joined by internal ports to one of Open vSwitch",
		edge: linuxBrand, core: ovsBrand, join: byCorePort},
	topology{name: "neutron-4-ovs", about: "an Open vSwitch bridge", core: ovsBrand},
	topology{name: "neutron-5-linux-ovs-internal", about: "an Open vSwitch bridge for each end, joined by internal ports to a Linux bridge",
		edge: ovsBrand, core: linuxBrand, join: byEdgePort},
	topology{name: "neutron-6-hybrid-veth", about: "devstack's hybrid: a Linux bridge with a filter for each end, joined by veth pairs to one of Open vSwitch",
		edge: filteredBrand, core: ovsBrand, join: byVeth},
	topology{name: "neutron-7-hybrid-internal", about: "devstack's hybrid, joined by internal ports of Open vSwitch instead",
		edge: filteredBrand, core: ovsBrand, join: byCorePort},
	topology{name: "bascule-neutron-2-veth", about: "a bascule for each end, joined by veth pairs to another",
		edge: basculeBrand, core: basculeBrand, join: byVeth},
	topology{name: "bascule-neutron-2-patch", about: "a bascule for each end, joined by patch cables to another",
		edge: basculeBrand, core: basculeBrand, join: byPatch},
	topology{name: "bascule-neutron-3-host-port", about: "a bascule for each end, joined to another by host ports of that",
		edge: basculeBrand, core: basculeBrand, join: byCorePort},
	topology{name: "bascule-neutron-5-host-port", about: "a bascule for each end, joined to another by host ports of its own",
		edge: basculeBrand, core: basculeBrand, join: byEdgePort},
	topology{name: "bascule-neutron-6-veth", about: "a bascule with a filter for each end, joined by veth pairs to another",
		edge: filteredBasculeBrand, core: basculeBrand, join: byVeth},
	topology{name: "bascule-neutron-6-patch", about: "a bascule with a filter for each end, joined by patch cables to another",
		edge: filteredBasculeBrand, core: basculeBrand, join: byPatch},
	topology{name: "bascule-neutron-7-host-port", about: "a bascule with a filter for each end, joined to another by host ports of that",
		edge: filteredBasculeBrand, core: basculeBrand, join: byCorePort},
)

// brand is a kind of bridge in a topology.
type brand struct {
	kit   func(*Net) kit
	hops  []report.Hop // stations of a frame inside it
	port  []report.Hop // the host's own interface on it; empty if it is the bridge itself
	join  []report.Hop // the same interface as a connection to another bridge
	needs []ends.Program
	// files and modules are Fabric's Files and Modules.
	files, modules []string
	// peer means that it puts frames directly into the far end of a cable to another namespace,
	// past the near end.
	peer    bool
	missing string
}

var (
	linuxBrand = &brand{
		kit:  func(n *Net) kit { return &linuxKit{net: n} },
		hops: path("device Linux bridge"),

		modules: LinuxBridge.Modules,
	}
	filteredBrand = &brand{
		kit:   func(n *Net) kit { return &linuxKit{net: n, filtered: true} },
		hops:  path("device Linux bridge", "filter nftables"),
		needs: []ends.Program{nft},

		files: LinuxBridgeFiltered.Files, modules: LinuxBridgeFiltered.Modules,
	}
	ovsBrand = &brand{
		kit:   func(n *Net) kit { return &ovsKit{net: n} },
		hops:  path("bridge Open vSwitch"),
		port:  path("device OVS internal port"),
		join:  path("device OVS internal port"),
		needs: ovsPrograms,

		files: OVS.Files, modules: OVS.Modules,
	}
	basculeBrand = &brand{
		kit:  func(n *Net) kit { return &basculeKit{n, "tcx"} },
		hops: path("program bascule (tcx)"),
		port: path("device host port"),
		join: path("device host port", "device host port"), // a veth pair
		peer: true,
	}
	filteredBasculeBrand = &brand{
		kit:  func(n *Net) kit { return &pfKit{basculeKit: basculeKit{n, "tcx"}} },
		hops: path("program bascule (tcx)", "filter bascule pf"),
		port: basculeBrand.port,
		join: basculeBrand.join,
		peer: true,
	}
)

// join connects the bridge of an end to the one in the middle.
type join int

const (
	byVeth     join = iota // a veth pair, one side a port of each
	byCorePort             // a host interface on the middle bridge, as a port of the other
	byEdgePort             // a host interface on the end's bridge, as a port of the middle one
	byPatch                // a patch cable, if both are bascule bridges
)

// topology has its ends on one bridge, or each end on its own bridge, connected to one in the
// middle. The host's own interface is on the middle bridge.
type topology struct {
	name, about string
	edge        *brand // nil: all ends are on the core
	core        *brand
	join        join
}

func neutron(topologies ...topology) []*Fabric {
	var out []*Fabric
	for _, t := range topologies {
		f := &Fabric{
			Name:     t.name,
			About:    t.about,
			Path:     t.path(false),
			HostPath: t.path(true),
			Arrival:  AsBuffers,
			Needs:    slices.Clone(t.core.needs),
			Files:    slices.Clone(t.core.files),
			Modules:  slices.Clone(t.core.modules),
			Missing:  t.core.missing,
			build:    func(ctx context.Context, _ Site, n *Net) error { return t.build(ctx, n) },
		}
		if t.edge != nil {
			f.Needs = append(f.Needs, t.edge.needs...)
			f.Files = append(f.Files, t.edge.files...)
			f.Modules = append(f.Modules, t.edge.modules...)
			f.Missing = cmp.Or(f.Missing, t.edge.missing)
		}
		out = append(out, f)
	}
	return out
}

// path returns the stations of a frame from an end, or from the host, to an end.
func (t topology) path(host bool) []report.Hop {
	var join, edge []report.Hop
	last := t.core
	if t.edge != nil {
		last, edge = t.edge, t.edge.hops
		switch t.join {
		case byVeth:
			join = path("device veth", "device veth")
		case byCorePort:
			join = t.core.join
		case byEdgePort:
			join = t.edge.join
		}
	}
	in := slices.Concat(path("end", "device veth"), edge, join)
	if host {
		in = slices.Concat(path("host"), t.core.port)
	}
	out := slices.Concat(join, edge)
	if !last.peer {
		out = append(out, path("device veth")...)
	}
	return slices.Concat(in, t.core.hops, out, path("end"))
}

func (t topology) build(ctx context.Context, n *Net) error {
	core := t.core.kit(n)
	if t.edge == nil {
		return n.single(ctx, core)
	}
	edge := core
	if t.edge != t.core {
		edge = t.edge.kit(n)
	}
	if err := n.place(); err != nil {
		return err
	}
	if err := core.add(ctx, bridgeName); err != nil {
		return err
	}
	var edges []string
	// Only one bridge learns from a frame to its own port.
	n.known = func(ctx context.Context) (int, error) {
		most, err := core.known(ctx, bridgeName)
		for _, e := range edges {
			count, edgeErr := edge.known(ctx, e)
			most, err = max(most, count), errors.Join(err, edgeErr)
		}
		return most, err
	}
	n.flush = func(ctx context.Context) error {
		for _, e := range edges {
			if err := edge.flush(ctx, e); err != nil {
				return err
			}
		}
		return core.flush(ctx, bridgeName)
	}
	for i := range n.Spec.Ends {
		if i == 0 && n.Spec.Host {
			ifname, err := core.host(ctx, bridgeName, hostName)
			if err != nil {
				return err
			}
			if err := n.hostEnd(ifname); err != nil {
				return err
			}
			continue
		}
		bridge := fmt.Sprintf("br%d", i+1)
		if err := edge.add(ctx, bridge); err != nil {
			return err
		}
		edges = append(edges, bridge)
		if err := t.attach(ctx, n, core, edge, bridge, i); err != nil {
			return err
		}
		if err := n.cable(ctx, fmt.Sprintf("p%d", i+1)); err != nil {
			return err
		}
		if err := edge.plug(ctx, bridge, n.Ports[i].Ifname); err != nil {
			return err
		}
	}
	return nil
}

// attach connects the bridge of end i to the one in the middle.
func (t topology) attach(ctx context.Context, n *Net, core, edge kit, bridge string, i int) error {
	toEdge := fmt.Sprintf("j%d", i+1)
	toCore := toEdge
	var err error
	switch t.join {
	case byPatch:
		k, ok := core.(*basculeKit)
		if !ok {
			return fmt.Errorf("%s: only bascule bridges are joined by patch cables", t.name)
		}
		return k.patch(ctx, bridgeName, toCore, bridge, toEdge)
	case byVeth:
		toCore = fmt.Sprintf("k%d", i+1)
		err = n.Switch.Pair(toEdge, toCore, n.Spec.Wire)
	case byCorePort:
		toCore = ""
		toEdge, err = core.host(ctx, bridgeName, toEdge)
	case byEdgePort:
		toEdge = ""
		toCore, err = edge.host(ctx, bridge, toCore)
	}
	if err != nil {
		return err
	}
	for _, side := range []struct {
		kit            kit
		bridge, device string
	}{{edge, bridge, toEdge}, {core, bridgeName, toCore}} {
		if side.device == "" {
			continue
		}
		if err := n.ready(side.device); err != nil {
			return err
		}
		plug := side.kit.plug
		if k, ok := side.kit.(joiner); ok && t.join != byVeth {
			plug = k.join
		}
		if err := plug(ctx, side.bridge, side.device); err != nil {
			return err
		}
	}
	return nil
}

// ready sets a device of the switch's namespace up, with the MTU of the ends.
func (n *Net) ready(ifname string) error {
	l, err := n.Switch.Netlink().LinkByName(ifname)
	if err == nil {
		err = n.setMTU(l)
	}
	if err == nil {
		err = n.Switch.Netlink().LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("%s in %s: %w", ifname, n.Switch.Name, err)
	}
	return nil
}

// setMTU sets the MTU of the ends on a device of the switch's namespace, and on the other side of a
// veth, if that is in the namespace, too.
func (n *Net) setMTU(l netlink.Link) error {
	mtu := cmp.Or(n.Spec.Wire.MTU, ends.DefaultMTU)
	if err := n.Switch.Netlink().LinkSetMTU(l, mtu); err != nil {
		return fmt.Errorf("mtu %d: %w", mtu, err)
	}
	if a := l.Attrs(); l.Type() == "veth" && a.NetNsID < 0 {
		peer, err := n.Switch.Netlink().LinkByIndex(a.ParentIndex)
		if err == nil {
			err = n.Switch.Netlink().LinkSetMTU(peer, mtu)
		}
		if err != nil {
			return fmt.Errorf("mtu %d of its other side: %w", mtu, err)
		}
	}
	return nil
}
