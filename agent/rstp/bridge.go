// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A Bridge is the protocol's state for one bridge: its settings, the variables
// of 17.18, and its ports.
type Bridge struct {
	state
	out    Output
	ports  []*port // by number
	events []Event // to report when the machines are at rest
}

// state is the bridge's own part of a snapshot.
type state struct {
	Config       Config
	RootPortID   PortID // 0 if the bridge is the root
	RootPriority vector
	RootTimes    times

	// The topology changes, as 14.8.1.1.3 counts them.
	Changes     uint64
	Changing    bool // a tcWhile timer runs
	SinceChange int  // seconds since the last tcWhile ended, -1 if none ever ran

	ToldRoot BridgeID // the last values that were reported
	ToldPort PortID
}

// New returns a bridge without ports. It fails with a *ConfigError.
func New(c Config, out Output) (*Bridge, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	b := &Bridge{out: out}
	b.Config = c
	b.SinceChange = -1
	b.updtRolesTree()
	b.ToldRoot = b.bridgeID()
	return b, nil
}

func (b *Bridge) bridgeID() BridgeID { return NewBridgeID(b.Config.Priority, b.Config.MAC) } // 17.18.2
func (b *Bridge) rstpVersion() bool  { return b.Config.Version >= RSTP }                     // 17.20.11

func (b *Bridge) bridgeTimes() times { // 17.18.4
	of := func(d time.Duration) uint16 { return uint16(d/time.Second) * second }
	return times{MaxAge: of(b.Config.MaxAge), HelloTime: of(b.Config.Hello), ForwardDelay: of(b.Config.ForwardDelay)}
}

func (b *Bridge) txHoldCount() int { return cmp.Or(b.Config.TxHoldCount, 6) } // 17.13.12

// SetConfig changes the settings, or fails with a *ConfigError. Another Version
// restarts the protocol, with every port discarding (17.13.4). After other
// changes the tree is computed again from the bridge's information, and
// disturbed no more than necessary.
func (b *Bridge) SetConfig(c Config) error {
	if err := c.check(); err != nil {
		return err
	}
	b.setConfig(c)
	b.settle()
	return nil
}

func (b *Bridge) setConfig(c Config) {
	was := b.Config
	b.Config = c
	for _, p := range b.ports {
		switch {
		case c.Version != was.Version:
			p.restart()
		case b.bridgeID() != NewBridgeID(was.Priority, was.MAC), b.bridgeTimes() != (&Bridge{state: state{Config: was}}).bridgeTimes():
			p.reselect()
		}
		if c.TxHoldCount != was.TxHoldCount {
			p.TxCount = 0
		}
	}
	if len(b.ports) == 0 {
		b.updtRolesTree()
	}
}

// restart restarts the port's machines.
func (p *port) restart() {
	if p.PST != Discarding {
		p.bridge.out.SetState(p.Number, Discarding)
		p.flush()
	}
	p.begin()
}

// reselect requests a new selection of the roles.
func (p *port) reselect() {
	p.Selected = false
	p.Reselect = true
}

// find returns a port.
func (b *Bridge) find(n uint16) (*port, error) {
	i, ok := slices.BinarySearchFunc(b.ports, n, func(p *port, n uint16) int { return cmp.Compare(p.Number, n) })
	if !ok {
		return nil, fmt.Errorf("spanning tree: no port %d", n)
	}
	return b.ports[i], nil
}

// AddPort adds a port, which discards and has no link. It fails with a
// *ConfigError.
func (b *Bridge) AddPort(n uint16, c PortConfig) error {
	if err := c.check(n); err != nil {
		return err
	}
	if _, err := b.find(n); err == nil {
		return &ConfigError{Port: n, Text: "is there already"}
	}
	b.addPort(n, c, false)
	b.settle()
	return nil
}

func (b *Bridge) addPort(n uint16, c PortConfig, up bool) {
	p := &port{bridge: b, Number: n, Config: c, variables: variables{Up: up}}
	i, _ := slices.BinarySearchFunc(b.ports, n, func(p *port, n uint16) int { return cmp.Compare(p.Number, n) })
	b.ports = slices.Insert(b.ports, i, p)
	b.out.SetState(n, Discarding)
	p.flush()
	p.begin()
}

// SetPort changes the settings of a port. It fails with a *ConfigError, or if
// there is no such port.
func (b *Bridge) SetPort(n uint16, c PortConfig) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	if err := c.check(n); err != nil {
		return err
	}
	p.setConfig(c)
	b.settle()
	return nil
}

func (p *port) setConfig(c PortConfig) {
	was := p.Config
	p.Config = c
	p.PortID = NewPortID(c.Priority, p.Number)
	if c.Cost != was.Cost || c.Priority != was.Priority || c.RootGuard != was.RootGuard {
		p.reselect()
	}
	if !c.PointToPoint && was.PointToPoint {
		p.Agreed = false
	}
	if c.Edge != was.Edge {
		switch {
		case c.Edge == EdgeOff:
			p.OperEdge = false
		case c.Edge == EdgeOn && (!p.Heard || p.EdgeDelayWhile == 0 && p.InfoIs == infoMine):
			p.bdmEdge() // as at the start (17.25): no bridge was heard, or none for a while
		}
	}
	if c.BPDUFilter && !was.BPDUFilter {
		p.RcvdInfoWhile = 0 // nothing more will be received
	}
	if !c.BPDUGuard && p.Guarded {
		p.open()
	}
}

// RemovePort removes a port. The Output may have removed the port already:
// nothing is output for it. It fails if there is no such port.
func (b *Bridge) RemovePort(n uint16) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	b.ports = slices.DeleteFunc(b.ports, func(q *port) bool { return q == p })
	for _, q := range b.ports {
		q.reselect()
	}
	if len(b.ports) == 0 {
		b.updtRolesTree()
	}
	b.settle()
	return nil
}

// SetLink sets whether the port has a link. Repeated calls have no further
// effect. Loss of the link ends the port's shutdown by BPDU guard. It fails if
// there is no such port.
func (b *Bridge) SetLink(n uint16, up bool) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	p.setLink(up)
	b.settle()
	return nil
}

func (p *port) setLink(up bool) {
	p.Up = up
	if !up && p.Guarded {
		p.open()
	}
	p.enable()
}

// open ends the port's shutdown by BPDU guard.
func (p *port) open() {
	p.Guarded = false
	p.GuardWhile = 0
	p.enable()
	p.bridge.report(GuardCleared, p.Number, "")
}

// ClearGuard opens a port that BPDU guard has shut. It fails if there is no
// such port.
func (b *Bridge) ClearGuard(n uint16) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	if p.Guarded {
		p.open()
	}
	b.settle()
	return nil
}

// Migrate checks whether all neighbours of the port speak RSTP now (mcheck,
// 17.19.13). It fails if there is no such port.
func (b *Bridge) Migrate(n uint16) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	p.Mcheck = b.rstpVersion()
	b.settle()
	return nil
}

// Receive takes a frame that was received on the port. A frame that is not a
// valid BPDU is counted, and returned as a *Refusal. It has only these effects:
// BPDU guard shuts the port if a bridge has sent the frame, and ignore may act
// on it. Receive also fails if there is no such port.
func (b *Bridge) Receive(n uint16, frame []byte) error {
	p, err := b.find(n)
	if err != nil {
		return err
	}
	if p.Config.BPDUFilter {
		p.Counters.Filtered++
		return nil
	}
	m, err := decode(frame)
	own := vector{DesignatedBridgeID: b.bridgeID(), DesignatedPortID: p.PortID}
	if err == nil && m.Type != tcnBPDU && m.Priority.sameSource(own) {
		err = refuse(OwnBPDU, "port %d sent it itself", n)
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		if p.Counters.Refused == nil {
			p.Counters.Refused = make(map[Reason]uint64)
		}
		p.Counters.Refused[refusal.Reason]++
	} else {
		switch m.Type {
		case configBPDU:
			p.Counters.RxConfig++
		case rstBPDU:
			p.Counters.RxRST++
		case tcnBPDU:
			p.Counters.RxTCN++
		}
	}
	switch {
	case !p.PortEnabled, refusal != nil && !refusal.ofBridge():
	case p.Config.BPDUGuard:
		p.Guarded = true
		p.GuardWhile = int(b.Config.GuardTimeout / time.Second)
		p.enable()
		what := m.Priority.DesignatedBridgeID.String()
		if refusal != nil {
			what = refusal.Text
		}
		b.report(GuardTripped, n, what)
	case refusal != nil:
		p.Heard = true
		p.ignore(m, refusal.Reason)
	default:
		p.Heard = true
		p.RcvdBPDU = true
		p.Message = m
	}
	b.settle()
	return err
}

// ignore takes a refused BPDU. Two kinds of these have an effect nevertheless:
//
// A BPDU that is too old comes from a bridge that no longer has the information
// that it sent before. By 17.21.23 it is recorded, to age at once. Here the
// port's information from that bridge expires, so that the port does not spread
// information that is about to expire. If the port has none from that bridge,
// both ports are designated, in a network too wide for max age.
//
// The port's own BPDU comes back from no neighbour (9.3.4 a). But the port is
// not an edge either: frames circulate behind it, and come back. A designated
// port discards as long as that lasts, even if a neighbour agrees.
func (p *port) ignore(m bpdu, why Reason) {
	switch {
	case why == OwnBPDU:
		p.OperEdge = false
		p.EdgeDelayWhile = migrateTime
		p.Agreed = false
		p.LoopWhile = 3 * p.helloTime() // as long as received information is valid
	case why != TooOld:
	case p.InfoIs == infoReceived && m.Priority.sameSource(p.PortPriority):
		p.RcvdInfoWhile = 0
	case p.InfoIs == infoMine:
		p.Message = m
		p.recordDispute()
	}
}

// Tick advances the timers by one second.
func (b *Bridge) Tick() {
	for _, p := range b.ports {
		p.portTimers()
		if p.GuardWhile > 0 {
			if p.GuardWhile--; p.GuardWhile == 0 {
				p.open()
			}
		}
	}
	if b.SinceChange >= 0 && !b.Changing {
		b.SinceChange++
	}
	b.settle()
}

// rounds is the largest number of rounds in which the machines of every port
// run until they are at rest. A port needs about ten rounds for all effects of
// a message. More are needed only if ports wait for each other.
const rounds = 1000

// settle runs the machines until all are at rest, then reports events.
func (b *Bridge) settle() {
	left := rounds
	for b.step() {
		if left--; left == 0 {
			b.report(Stuck, 0, fmt.Sprintf("not at rest after %d rounds", rounds))
			break
		}
	}
	b.account()
	events := b.events
	b.events = nil
	for _, e := range events {
		b.out.Report(e)
	}
}

// step lets every machine make at most one transition, and reports whether any
// did. Messages are sent last, when all else is at rest.
func (b *Bridge) step() bool {
	moved := false
	for _, p := range b.ports {
		for _, machine := range []func(*port) bool{
			(*port).portReceive, (*port).portProtocolMigration, (*port).bridgeDetection, (*port).portInformation,
		} {
			moved = machine(p) || moved
		}
	}
	moved = b.portRoleSelection() || moved
	for _, p := range b.ports {
		for _, machine := range []func(*port) bool{
			(*port).portRoleTransitions, (*port).portStateTransition, (*port).topologyChange,
		} {
			moved = machine(p) || moved
		}
	}
	if moved {
		return true
	}
	for _, p := range b.ports {
		moved = p.portTransmit() || moved
	}
	return moved
}

func (b *Bridge) report(kind EventKind, port uint16, text string) {
	b.events = append(b.events, Event{kind, port, text})
}

// account counts and reports the differences from the state before.
func (b *Bridge) account() {
	changing := false
	for _, p := range b.ports {
		changing = changing || p.TcWhile != 0
		if p.Role != p.Told.Role {
			p.Told.Role = p.Role
			b.report(RoleChanged, p.Number, p.Role.String())
		}
		if is := p.rootInconsistent(); is != p.Told.RootInconsistent {
			p.Told.RootInconsistent = is
			if is {
				b.report(RootGuardBegan, p.Number, p.PortPriority.RootBridgeID.String())
			} else {
				b.report(RootGuardEnded, p.Number, "")
			}
		}
	}
	if changing {
		b.SinceChange = 0
		if !b.Changing {
			b.Changes++
		}
	}
	b.Changing = changing
	if b.RootPriority.RootBridgeID != b.ToldRoot || b.RootPortID != b.ToldPort {
		b.ToldRoot, b.ToldPort = b.RootPriority.RootBridgeID, b.RootPortID
		b.report(RootChanged, uint16(b.RootPortID&0xfff), b.ToldRoot.String())
	}
}
