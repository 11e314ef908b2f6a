// SPDX-License-Identifier: BSD-2-Clause

package rstp

import "maps"

// A Status is the state of a bridge, for display.
type Status struct {
	Version      Version      `json:"version"`
	Bridge       BridgeID     `json:"bridge"`
	Root         BridgeID     `json:"root"`
	RootPort     uint16       `json:"root_port"` // 0 if the bridge is the root
	RootCost     uint32       `json:"root_cost"`
	Hello        int          `json:"hello"`         // seconds, as the root sets it
	MaxAge       int          `json:"max_age"`       // the same
	ForwardDelay int          `json:"forward_delay"` // the same
	Changes      uint64       `json:"topology_changes"`
	SinceChange  int          `json:"since_change"` // seconds since the last change of topology; -1: none
	Ports        []PortStatus `json:"ports"`        // by number
}

// A PortStatus is the state of a port, for display.
type PortStatus struct {
	Number           uint16         `json:"port"`
	ID               PortID         `json:"id"`
	Role             Role           `json:"role"`
	State            State          `json:"state"`
	Up               bool           `json:"up"`
	Cost             uint32         `json:"cost"`
	DesignatedRoot   BridgeID       `json:"designated_root"`
	DesignatedCost   uint32         `json:"designated_cost"`
	DesignatedBridge BridgeID       `json:"designated_bridge"`
	DesignatedPort   PortID         `json:"designated_port"`
	Edge             bool           `json:"edge"`           // operEdge
	PointToPoint     bool           `json:"point_to_point"` // operPointToPointMAC
	Version          Version        `json:"version"`        // version that is spoken with the neighbours
	Guarded          bool           `json:"bpdu_guard"`     // shut by BPDU guard
	RootInconsistent bool           `json:"root_inconsistent"`
	Disputed         bool           `json:"disputed"`
	Timers           map[string]int `json:"timers"` // running timers, in seconds, by their names in 17.17
	Counters         Counters       `json:"counters"`
}

// Counters count the messages that a port has sent and received.
type Counters struct {
	RxConfig    uint64            `json:"rx_config"`
	RxRST       uint64            `json:"rx_rst"`
	RxTCN       uint64            `json:"rx_tcn"`
	TxConfig    uint64            `json:"tx_config"`
	TxRST       uint64            `json:"tx_rst"`
	TxTCN       uint64            `json:"tx_tcn"`
	Filtered    uint64            `json:"filtered"`          // received, and ignored by BPDU filter
	Refused     map[Reason]uint64 `json:"refused,omitempty"` // by reason
	Transitions uint64            `json:"transitions"`       // to forwarding
}

// Status returns the state of the bridge.
func (b *Bridge) Status() Status {
	s := Status{
		Version:      b.Config.Version,
		Bridge:       b.bridgeID(),
		Root:         b.RootPriority.RootBridgeID,
		RootPort:     uint16(b.RootPortID & 0xfff),
		RootCost:     b.RootPriority.RootPathCost,
		Hello:        seconds(b.RootTimes.HelloTime),
		MaxAge:       seconds(b.RootTimes.MaxAge),
		ForwardDelay: seconds(b.RootTimes.ForwardDelay),
		Changes:      b.Changes,
		SinceChange:  b.SinceChange,
		Ports:        make([]PortStatus, 0, len(b.ports)),
	}
	for _, p := range b.ports {
		s.Ports = append(s.Ports, p.status())
	}
	return s
}

func (p *port) status() PortStatus {
	s := PortStatus{
		Number:           p.Number,
		ID:               p.PortID,
		Role:             p.Role,
		State:            p.PST,
		Up:               p.Up,
		Cost:             p.Config.Cost,
		DesignatedRoot:   p.PortPriority.RootBridgeID,
		DesignatedCost:   p.PortPriority.RootPathCost,
		DesignatedBridge: p.PortPriority.DesignatedBridgeID,
		DesignatedPort:   p.PortPriority.DesignatedPortID,
		Edge:             p.OperEdge,
		PointToPoint:     p.Config.PointToPoint,
		Guarded:          p.Guarded,
		RootInconsistent: p.rootInconsistent(),
		Disputed:         p.Disputed,
		Timers:           make(map[string]int),
		Counters:         p.Counters,
	}
	if p.SendRSTP {
		s.Version = RSTP
	}
	for _, t := range p.timers() {
		if *t.value > 0 {
			s.Timers[t.name] = *t.value
		}
	}
	s.Counters.Refused = maps.Clone(p.Counters.Refused)
	return s
}
