// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A gateway is an interface of the host at a routed host port: the host's end, or a macvlan
// above it.
type gateway struct {
	ifindex uint32
	mac     uint64
}

// gatewaysAt returns the interfaces of the host at a routed host port. macvlans says that
// macvlans are among them, none of which takes frames that are not to its own address. A
// macvtap hands its frames to a guest: they are not for the host.
func gatewaysAt(p *Port, links []netlink.Link) (list []gateway, macvlans bool) {
	for _, l := range links {
		a := l.Attrs()
		if len(a.HardwareAddr) != 6 {
			continue
		}
		at := gateway{uint32(a.Index), MACWord([6]byte(a.HardwareAddr))}
		if at.ifindex == p.HostIfindex {
			list = append(list, at)
		}
		if uint32(a.ParentIndex) != p.HostIfindex || a.NetNsID >= 0 || l.Type() != "macvlan" && l.Type() != "macvtap" {
			continue
		}
		v, ok := l.(*netlink.Macvlan)
		switch {
		case !ok:
			macvlans = true
		case v.Mode == netlink.MACVLAN_MODE_PASSTHRU || v.Mode == netlink.MACVLAN_MODE_SOURCE:
			return nil, false
		default:
			list, macvlans = append(list, at), true
		}
	}
	return list, macvlans
}

// The keys of the table of gateways: GATEWAY_MAC and GATEWAY_COUNTS of bpf/types.h. An index
// of an interface is a key, too.
const (
	gatewayEndpoint = 48
	gatewayCounts   = 1 << 63
)

// gatewaysSize is the number of entries of the table: some for each port.
const gatewaysSize = 4 * panelSize

// gateways opens the table of the namespace's routed host ports.
func (s *Store) gateways() (*ebpf.Map, error) { return s.openShared(kernelMapGateways) }

// eachGateway calls f for each entry of the table. f may note keys, but not change the table.
func eachGateway(m *ebpf.Map, f func(key uint64, g *kernelGateway)) error {
	var key uint64
	var perCPU []kernelGateway
	all := m.Iterate()
	for all.Next(&key, &perCPU) {
		f(key, &perCPU[0])
	}
	return all.Err()
}

func dropGateways(m *ebpf.Map, keys []uint64) error {
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("routed host ports: %w", err)
		}
	}
	return nil
}

// routes reports whether p is a routed host port that has its number.
func routes(p *Port) bool { return p.Flags&PortRoute != 0 && p.Endpoint != 0 }

// openGateways has the bridge's routed host ports known to those that route to them, and
// their counters there.
func (b *Bridge) openGateways(g *generation) error {
	if kernelFeature(b.Config.Features)&kernelFeatureFEATURE_ROUTE == 0 {
		return nil
	}
	_, err := b.followGateways(g.coll.Maps[kernelMapHostEnds])
	return err
}

// GatewaysMoved reports whether the host has other interfaces at the bridge's routed host
// ports than those that are known: macvlans come and go by themselves. A change of the
// bridge follows them.
func (b *Bridge) GatewaysMoved() bool {
	if kernelFeature(b.Config.Features)&kernelFeatureFEATURE_ROUTE == 0 {
		return false
	}
	moved, err := b.followGateways(nil)
	return err == nil && moved
}

// followGateways has the table know the host's interfaces, and ends hold them. Without ends
// it only reports whether there is something to do.
func (b *Bridge) followGateways(ends *ebpf.Map) (changed bool, err error) {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return false, fmt.Errorf("list the host's interfaces: %w", err)
	}
	m, err := b.store.gateways()
	if err != nil {
		return false, err
	}
	defer m.Close()
	was := map[uint64]kernelGateway{}
	if err := eachGateway(m, func(key uint64, g *kernelGateway) { was[key] = *g }); err != nil {
		return false, err
	}
	own := map[uint32]bool{} // endpoints
	cpus := ebpf.MustPossibleCPU()
	keep := func(p *Port, key uint64, g kernelGateway) error {
		old, there := was[key]
		delete(was, key)
		if there && old == g {
			return nil
		}
		changed = true
		if ends == nil {
			return nil
		}
		perCPU := make([]kernelGateway, cpus)
		for i := range perCPU {
			perCPU[i] = g
		}
		if err := put(m, key, perCPU); err != nil {
			return fmt.Errorf("routed port %s: %w", PortName(p), err)
		}
		return nil
	}
	for _, p := range Ports(&b.Config) {
		if !routes(p) {
			continue
		}
		own[p.Endpoint] = true
		counts := gatewayCounts | uint64(p.Endpoint)
		if _, there := was[counts]; !there {
			if err := keep(p, counts, kernelGateway{Endpoint: p.Endpoint}); err != nil {
				return changed, err
			}
		}
		delete(was, counts)
		list, macvlans := gatewaysAt(p, links)
		for _, at := range list {
			if ends != nil {
				err := put(ends, at.ifindex, at.ifindex)
				if errors.Is(err, unix.EINVAL) { // it has gone at this moment
					continue
				}
				if err != nil {
					return changed, fmt.Errorf("routed port %s: %w", PortName(p), err)
				}
			}
			g := kernelGateway{Mac: at.mac, Endpoint: p.Endpoint}
			if macvlans {
				g.Macvlans = 1
			}
			in, out := g, g
			in.Ifindex, out.Ifindex = at.ifindex, p.Ifindex
			if err := keep(p, uint64(p.Endpoint)<<gatewayEndpoint|at.mac, in); err != nil {
				return changed, err
			}
			if err := keep(p, uint64(at.ifindex), out); err != nil {
				return changed, err
			}
		}
	}
	var gone []uint64
	for key, g := range was {
		if own[g.Endpoint] {
			gone = append(gone, key)
		}
	}
	if ends == nil {
		return changed || len(gone) > 0, nil
	}
	return changed || len(gone) > 0, dropGateways(m, gone)
}

// closeGateways takes ports out of the table of routed ones that are none any more.
func (s *Store) closeGateways(c *Cables) error {
	m, err := s.gateways()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	var gone []uint64
	if err := eachGateway(m, func(key uint64, g *kernelGateway) {
		if !c.ends[g.Endpoint].routes {
			gone = append(gone, key)
		}
	}); err != nil {
		return err
	}
	return dropGateways(m, gone)
}

// GatewayAt returns the routed host port that has an interface of the host, by the
// interface's index: its bridge and its endpoint. The bridge is "" if there is none.
func (s *Store) GatewayAt(ifindex uint32) (bridge string, endpoint uint32, err error) {
	m, err := s.gateways()
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	defer m.Close()
	var perCPU []kernelGateway
	err = m.Lookup(uint64(ifindex), &perCPU)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	cables, err := s.Cables()
	if err != nil {
		return "", 0, err
	}
	return cables.ends[perCPU[0].Endpoint].Bridge, perCPU[0].Endpoint, nil
}

// Routed returns how many frames for a routed host port with these counters had each of
// Routes, nil where the port does not route.
func (b *Bridge) Routed(p *Port, stats *Stats) ([]uint64, error) {
	if !routes(p) {
		return nil, nil
	}
	m, err := b.store.gateways()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var perCPU []kernelGateway
	if err := m.Lookup(gatewayCounts|uint64(p.Endpoint), &perCPU); err != nil {
		return nil, fmt.Errorf("counters of routed port %s: %w", PortName(p), err)
	}
	sum := make([]uint64, kernelRouteROUTES)
	sum[kernelRouteROUTE_DONE] = stats.Routed
	for _, g := range perCPU {
		for i := range sum {
			sum[i] += g.Frames[i]
		}
	}
	return sum, nil
}
