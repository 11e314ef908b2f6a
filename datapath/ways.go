// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"io/fs"
)

// PortWays are the findings of the bridge's timer at a port's device: see bpf/device.h.
type PortWays = kernelPortWay

// The possible findings at a port's device.
const (
	WaySeen      = kernelPortWayWAY_SEEN      // the timer has checked it
	WayLost      = kernelPortWayWAY_LOST      // it is down, or has no carrier
	WayQueue     = kernelPortWayWAY_QUEUE     // it was given a queueing discipline
	WayTC        = kernelPortWayWAY_TC        // it has tcx programs for outgoing frames, or clsact
	WayNetfilter = kernelPortWayWAY_NETFILTER // it has netfilter rules for outgoing frames
	WayEndXDP    = kernelPortWayWAY_END_XDP   // a veth's other end has an XDP program

	WayXDP = kernelPortWayWAY_XDP_TX // open: XDP redirects frames to it

	waysXDP = kernelPortWayWAY_XDP_TX | kernelPortWayWAY_XDP_FLOOD
)

// settleWays closes those direct paths that the configuration no longer allows, and makes a new
// port reachable. The timer opens the paths that are possible.
func settleWays(c *Config) {
	for _, p := range tenants(c) {
		straight, xdp := p.Peer, PortWays(p.Facts)
		if p.Limit[LimitOut].Rate != 0 { // its program is at the device, and the direct paths bypass it
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

// look makes a generation that has not begun yet check its ports' devices, and notes the findings
// in its configuration.
func (g *generation) look(c *Config) error {
	if err := g.clock(kernelClockOpCLOCK_LOOK); err != nil {
		return err
	}
	return g.coll.Maps[settingsMap].Lookup(uint32(0), &c.kernelSettings)
}

// Look makes the bridge check its ports' devices at once, as its timer does a few times a second.
// It returns the findings, by the ports' ids. There are none if [Bridge.Sees] is false.
func (b *Bridge) Look() (map[uint32]PortWays, error) {
	p, err := openProgram(b.pin(b.gen, clockPin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has the programs of a former version, which check nothing
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

// Sees reports whether the bridge has the kernel's offsets for checking devices.
func (b *Bridge) Sees() bool { return b.Config.Device.Qdisc != 0 && b.Config.DeviceState != 0 }
