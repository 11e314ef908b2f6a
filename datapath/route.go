// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

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

// gatewaysAt returns the interfaces of the host at a routed host port. macvlans reports that
// macvlans are among them that take no frames to other addresses than their own. A macvtap hands
// its frames to a guest: they are not for the host.
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

// The keys of the table of gateways: GATEWAY_MAC and GATEWAY_COUNTS of bpf/types.h. The index of
// an interface is a key, too.
const (
	gatewayEndpoint = 48
	gatewayCounts   = 1 << 63
)

// gatewaysSize is the number of entries of the table: a few for each port.
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

// routes reports whether p is a routed host port that has an endpoint.
func routes(p *Port) bool { return p.Flags&PortRoute != 0 && p.Endpoint != 0 }

// openGateways enters the bridge's routed host ports, and their counters, into the table of
// gateways, where routing bridges look them up.
func (b *Bridge) openGateways() error {
	if kernelFeature(b.Config.Features)&kernelFeatureFEATURE_ROUTE == 0 {
		return nil
	}
	ends, err := b.store.openShared(kernelMapHostEnds)
	if err != nil {
		return err
	}
	defer ends.Close()
	_, err = b.followGateways(ends)
	return err
}

// GatewaysMoved reports whether the host's interfaces at the bridge's routed host ports differ
// from those in the table: macvlans come and go without a command. A change of the bridge updates
// the table.
func (b *Bridge) GatewaysMoved() bool {
	if kernelFeature(b.Config.Features)&kernelFeatureFEATURE_ROUTE == 0 {
		return false
	}
	moved, err := b.followGateways(nil)
	return err == nil && moved
}

// followGateways makes the table match the host's interfaces, and ends hold them. Without ends it
// only reports whether an update is necessary.
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
	takers := map[uint32][]uint64{} // by the interface that takes the frames
	if err := eachGateway(m, func(key uint64, g *kernelGateway) {
		was[key] = *g
		if key>>gatewayEndpoint != 0 && key < gatewayCounts {
			takers[g.Ifindex] = append(takers[g.Ifindex], key)
		}
	}); err != nil {
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
				// an interface with this index at another port has gone, and must not come back
				// as this one
				others := slices.DeleteFunc(takers[at.ifindex], func(key uint64) bool {
					return was[key].Endpoint == p.Endpoint
				})
				if err := dropGateways(m, others); err != nil {
					return changed, err
				}
				err := put(ends, at.ifindex, at.ifindex)
				if errors.Is(err, unix.EINVAL) { // it has just gone
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

// closeGateways removes ports from the table that no longer route. When it returns, no packet is
// sent to them: CPUs remember routes for a tick of the kernel's clock.
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
	}); err != nil || len(gone) == 0 {
		return err
	}
	if err := dropGateways(m, gone); err != nil {
		return err
	}
	return waitTick()
}

// waitTick waits until the kernel's clock (jiffies) has advanced by at least a tick. The coarse
// clock is set after it: the first change that is seen may belong to an earlier tick.
func waitTick() error {
	var last, now, tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &last); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	for changes := 0; changes < 2; {
		time.Sleep(time.Duration(tick.Nano()))
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
			return fmt.Errorf("clock: %w", err)
		}
		if now != last {
			changes, last = changes+1, now
		}
	}
	return nil
}

// GatewayAt returns the routed host port at which the host has an interface, by the interface's
// index: its bridge and its endpoint. The bridge is "" if there is none.
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

// Routed returns, for each of Routes, the number of frames for a routed host port with these
// counters; nil if the port does not route.
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
