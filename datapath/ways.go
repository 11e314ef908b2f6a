// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"io/fs"
)

// PortWays are what the bridge's timer has found at a port's device: see bpf/device.h.
type PortWays = kernelPortWay

// What there may be at a port's device.
const (
	WaySeen      = kernelPortWayWAY_SEEN      // the timer has looked at it
	WayLost      = kernelPortWayWAY_LOST      // it is down, or has no carrier
	WayQueue     = kernelPortWayWAY_QUEUE     // somebody has given it a queueing discipline
	WayTC        = kernelPortWayWAY_TC        // it has programs of tcx for what leaves it, or clsact
	WayNetfilter = kernelPortWayWAY_NETFILTER // rules of netfilter are for what leaves it
	WayEndXDP    = kernelPortWayWAY_END_XDP   // a veth's other end has a program of XDP

	WayXDP = kernelPortWayWAY_XDP_TX // open: XDP redirects frames to it

	waysXDP = kernelPortWayWAY_XDP_TX | kernelPortWayWAY_XDP_FLOOD
)

// settleWays closes those short ways that the configuration does not have any more, and has frames
// reach a port that is new. The timer opens the ways that there are.
func settleWays(c *Config) {
	for _, p := range tenants(c) {
		straight, xdp := p.Peer, PortWays(p.Facts)
		if p.Limit[LimitOut].Rate != 0 { // its program is at the device, and the short ways go past it
			straight, xdp = 0, 0
		}
		if p.Straight != straight {
			p.Straight = 0
		}
		p.Ways &^= waysXDP &^ xdp
		if p.Ways&WayLost == 0 {
			p.Reached = p.Id
		}
	}
}

// look has a generation that is yet to begin look at its ports' devices, and notes in its
// configuration what there is.
func (g *generation) look(c *Config) error {
	if err := g.clock(kernelClockOpCLOCK_LOOK); err != nil {
		return err
	}
	return g.coll.Maps[settingsMap].Lookup(uint32(0), &c.kernelSettings)
}

// Look has the bridge look at its ports' devices at once, as its timer does a few times a
// second. It returns what there is at them, by the ports' ids. Without [Bridge.Sees] that is
// nothing.
func (b *Bridge) Look() (map[uint32]PortWays, error) {
	p, err := openProgram(b.pin(b.gen, clockPin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has the programs of a former version, which look at nothing
	}
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := runClock(p, kernelClockOpCLOCK_LOOK); err != nil {
		return nil, err
	}
	m, err := readMap(b.pin(b.gen, settingsPin))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	now := Config{}
	if err := m.Lookup(uint32(0), &now.kernelSettings); err != nil {
		return nil, err
	}
	ways := map[uint32]PortWays{}
	for _, p := range Ports(&now) {
		ways[p.Id] = p.Ways
	}
	return ways, nil
}

// Sees reports whether the bridge's timer knows where the kernel has what there is at a device.
func (b *Bridge) Sees() bool { return b.Config.Device.Qdisc != 0 && b.Config.DeviceState != 0 }
