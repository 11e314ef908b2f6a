// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ports returns the ports of a bridge in the order in which they were added. If bridge is "", it
// returns the ports of all bridges.
func (s *Switch) Ports(bridge string) (list []Port, err error) {
	list = []Port{}
	err = s.each(showWhat("the ports", bridge), bridge, func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(p Port) bool { return p.Bridge == name })
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		ports, err := v.counted(usage)
		list = append(list, ports...)
		return err
	})
	return list, err
}

// counted returns the ports with their counters. usage is the result of Usage.
func (v *view) counted(usage []uint32) (list []Port, err error) {
	cables, err := v.cables()
	if err != nil {
		return nil, err
	}
	stats, err := v.b.AllPortStats()
	if err != nil {
		return nil, err
	}
	list = make([]Port, 0, len(v.ports))
	for _, p := range v.ports {
		port, slot := v.port(p, cables), datapath.Slot(p.Id)
		routed, err := v.b.Routed(p, &stats[slot])
		if err != nil {
			return nil, err
		}
		port.Stats = loadStats(&stats[slot], routed)
		if v.there(p) { // the entries of other ports only age
			port.FDBCount = usage[slot]
		}
		list = append(list, port)
	}
	return list, nil
}

// port returns the properties of a port, except for its counters.
func (v *view) port(p *datapath.Port, cables *datapath.Cables) Port {
	state := STPState(v.states[datapath.Slot(p.Id)]).String()
	port := Port{
		Bridge: v.name, Name: v.names[p.Id], Type: TypeNetdev, Hook: HookTCX,
		Index: int(p.Ifindex), Flags: []string{}, State: "gone", Config: loadPortConfig(p),
	}
	port.Config.Backup, port.Owner = v.names[p.Backup], v.owners[p.Id]
	if p.Notes&datapath.PortHost != 0 {
		port.Type = TypeHost
	}
	if p.Facts&datapath.PortSpan != 0 {
		port.Type, port.Config = TypeSpan, PortConfig{FDBFull: FullFlood, Admit: AdmitAll, STPEdge: Auto, STPPointToPoint: Auto}
	}
	if p.Notes&datapath.PortXDP != 0 {
		port.Hook = HookXDP
	}
	if p.Facts&datapath.PortPatch != 0 {
		port.Type, port.Hook, port.Index, port.State = TypePatch, "", 0, "no-peer"
		if other, ok := cables.Other(p); ok {
			port.Peer, port.State = other.Bridge+"/"+other.Port, state
		} else if !cables.Half(p) {
			port.State = state // the other bridge has another version's layout
		}
	}
	l := v.links[p.Id]
	if l == nil {
		return port
	}
	a := l.Attrs()
	port.Index, port.Flags, port.MTU, port.TakenBy = a.Index, flagList(a.RawFlags), a.MTU, v.taken[p.Id]
	port.Link, port.Description, port.Findings = v.far[p.Id], a.Alias, v.findings(port.Name)
	port.MAC = a.HardwareAddr
	port.Way, port.Egress = wayOf(p)
	if port.State = "disabled"; v.mute[p.Id] {
		port.NoCarrier = NoCarrierEnded
		if v.b.Store().DevicesHeld() {
			port.NoCarrier = NoCarrierAgent
		}
	}
	if a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0 {
		if port.State = state; v.blocked[p.Id] {
			port.State = "blocked"
		}
	}
	return port
}

// inOrder returns the ports in the order in which they were added.
func inOrder(c *datapath.Config) []*datapath.Port {
	ports := datapath.Ports(c)
	slices.SortFunc(ports, func(a, b *datapath.Port) int {
		return cmp.Compare(datapath.Incarnation(a.Id), datapath.Incarnation(b.Id))
	})
	return ports
}

// shownDevice returns the device that is shown for a port: the host's end of a host port, and the
// own device of any other port, or nil if it is gone.
func shownDevice(b *datapath.Bridge, p *datapath.Port, devices map[int]netlink.Link) netlink.Link {
	l := devices[int(p.Ifindex)]
	if l == nil || !b.HasDevice(p) {
		return nil
	}
	if p.Notes&datapath.PortHost != 0 && hostHere(l) {
		if host := devices[l.Attrs().ParentIndex]; host != nil {
			return host
		}
	}
	return l
}

// portName returns the name of the port's device or, if the device is gone, the name under which
// the port was added.
func portName(b *datapath.Bridge, p *datapath.Port, devices map[int]netlink.Link) string {
	return nameBy(shownDevice(b, p, devices), p)
}

// nameBy returns the name of a port whose shown device is l, which is nil if the device is gone.
func nameBy(l netlink.Link, p *datapath.Port) string {
	if l == nil || p.Notes&datapath.PortHost != 0 && l.Attrs().Index == int(p.Ifindex) {
		return datapath.PortName(p)
	}
	return l.Attrs().Name
}

func loadStats(s *datapath.Stats, routed []uint64) Stats {
	stats := Stats{
		RxFrames: s.RxFrames, RxBytes: s.RxBytes, TxFrames: s.TxFrames, TxBytes: s.TxBytes,
		Learned: s.Learned, Moves: s.Moves, Refused: s.Refused, Drops: map[string]uint64{},
	}
	for i, reason := range datapath.Reasons() {
		if s.Drops[i] != 0 {
			stats.Drops[reason] = s.Drops[i]
		}
	}
	if routed != nil {
		stats.Routed = map[string]uint64{}
	}
	for i, n := range routed {
		if n != 0 {
			stats.Routed[datapath.Routes()[i]] = n
		}
	}
	return stats
}
