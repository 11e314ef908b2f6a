// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"bascule/agent/rstp"
	"bascule/bridge"
	"bascule/clock"
	"bascule/datapath"
)

// spanningTree is the spanning tree, as one of the agent's protocols.
var spanningTree = runner{
	name: "spanning tree", its: "the spanning tree", frames: bridge.ProtocolSTP, suffix: ".stp",
	on:    func(c bridge.BridgeConfig) bool { return c.STP != bridge.STPOff },
	begin: func(c charge) (protocol, error) { return newTree(c) },
}

// A tree is one bridge's instance of the spanning tree. It passes changes of the bridge's ports,
// and received frames, to the protocol, and carries out the protocol's decisions.
type tree struct {
	bridge control
	wire   wire
	log    *slog.Logger

	name  string
	born  string // of the bridge: it differs from the identity of another bridge of the same name
	proto *rstp.Bridge
	ports map[uint16]*bridge.ControlPort // by number

	keeper  keeper
	moved   bool                  // a port's state has changed since it was last read
	changed bool                  // since the last snapshot, in what the next agent needs
	opening map[uint16]rstp.State // ports that the protocol has opened since the last commit
	sending []outgoing            // and frames that it has sent
	last    map[uint16][]byte     // the last BPDU that each port has sent
	broken  error                 // why the tree must begin anew
	told    map[string]bool       // messages that were logged once
	second  time.Time             // the time up to which the protocol has ticked
}

// An outgoing BPDU waits for the commit.
type outgoing struct {
	port  uint16
	frame []byte
}

// number returns a port's number in the protocol: 802.1D has numbers from 1 to 4095, and a bridge
// has slots from 1 to 1023.
func number(id uint32) uint16 { return uint16(datapath.Slot(id)) }

// newTree starts a tree. It continues from the snapshot at the charge's path, if there is one.
func newTree(c charge) (*tree, error) {
	info, list := c.info, c.ports
	t := &tree{
		bridge: c.bridge, wire: c.wire, log: c.log.With("bridge", info.Name), name: info.Name, born: info.Identity(),
		ports: map[uint16]*bridge.ControlPort{}, told: map[string]bool{}, second: c.now,
		changed: true, opening: map[uint16]rstp.State{}, last: map[uint16][]byte{},
	}
	t.keeper = keeper{path: c.path, doubt: func(on bool) error { return c.bridge.Doubt(bridge.ProtocolSTP, on) }}
	var kept *snapshot
	var err error
	if t.keeper.doubted, err = c.bridge.Doubted(bridge.ProtocolSTP); err != nil {
		return nil, err
	}
	if t.keeper.doubted {
		t.log.Warn("spanning tree starts again: its snapshot is out of date, since the former agent could not write it")
	} else if kept, err = readSnapshot(c.path, clock.Boot()); err != nil {
		t.log.Warn("spanning tree starts again: its snapshot cannot be read", "error", err)
	}
	if kept != nil && kept.of.Bridge == info.Identity() {
		err := t.takeOver(info, list, kept)
		if err == nil {
			return t, t.agree()
		}
		t.log.Warn("spanning tree starts again: its snapshot cannot be used", "error", err)
	}
	// The protocol has not set the current states of the ports, so it begins with closed
	// ones. No loop can lead through a host.
	for i := range list {
		p := &list[i]
		if p.Type != bridge.TypeHost && p.State != bridge.STPDiscarding {
			if err := t.bridge.SetState(p.ID, bridge.STPDiscarding); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("port %s: %w", p.Name, err)
			}
			p.State = bridge.STPDiscarding
		}
	}
	if t.proto, err = rstp.New(treeConfig(info), t); err != nil {
		return nil, err
	}
	return t, t.meet(list)
}

// takeOver continues where another agent ended. By the snapshot, the protocol decides which ports
// forward.
func (t *tree) takeOver(info bridge.Info, list []bridge.ControlPort, kept *snapshot) (err error) {
	var ports []rstp.Port
	for i := range list {
		p := &list[i]
		n := number(p.ID)
		t.ports[n] = p
		ports = append(ports, rstp.Port{
			Number: n, Config: portConfig(p), Up: p.Up, State: protoState(p.State), New: !slices.Contains(kept.of.Ports, p.ID),
		})
	}
	if t.proto, err = rstp.Restore(kept.state, kept.paused, treeConfig(info), ports, t); err != nil {
		clear(t.ports)
		return err
	}
	t.log.Info("the spanning tree is taken over", "paused", kept.paused.Round(time.Millisecond))
	return nil
}

// identity returns the identity of the bridge, for a snapshot.
func (t *tree) identity() identity {
	of := identity{Bridge: t.born}
	for _, p := range t.ports {
		of.Ports = append(of.Ports, p.ID)
	}
	return of
}

// refresh implements protocol.
func (t *tree) refresh(info bridge.Info, list []bridge.ControlPort) error {
	err := t.proto.SetConfig(treeConfig(info))
	if err == nil {
		err = t.meet(list)
	}
	if t.broken == nil {
		t.broken = err
	}
	return t.broken
}

// meet makes the protocol's ports the ports of the list.
func (t *tree) meet(list []bridge.ControlPort) error {
	there := map[uint16]*bridge.ControlPort{}
	for i := range list {
		there[number(list[i].ID)] = &list[i]
	}
	for _, n := range slices.Sorted(maps.Keys(t.ports)) {
		if now := there[n]; now == nil || now.ID != t.ports[n].ID { // perhaps another port has taken its place
			// another port of the name has its own errors
			name := " " + t.ports[n].Name
			maps.DeleteFunc(t.told, func(what string, _ bool) bool { return strings.HasSuffix(what, name) })
			delete(t.ports, n)
			delete(t.opening, n)
			delete(t.last, n)
			t.sending = slices.DeleteFunc(t.sending, func(o outgoing) bool { return o.port == n })
			t.changed = true
			if err := t.proto.RemovePort(n); err != nil {
				return err
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(there)) {
		p, was := there[n], t.ports[n]
		t.ports[n] = p
		c := portConfig(p)
		switch {
		case was == nil:
			t.changed = true
			if err := t.proto.AddPort(n, c); err != nil {
				return fmt.Errorf("port %s: %w", p.Name, err)
			}
		case !equalConfig(portConfig(was), c):
			t.changed = true
			if err := t.proto.SetPort(n, c); err != nil {
				return fmt.Errorf("port %s: %w", p.Name, err)
			}
		}
		if was == nil || was.Up != p.Up {
			if err := t.proto.SetLink(n, p.Up); err != nil {
				return fmt.Errorf("port %s: %w", p.Name, err)
			}
		}
	}
	return t.agree()
}

// agree sets the datapath's states of ports to the protocol's, where they differ. The protocol
// has not set the state of a new port.
func (t *tree) agree() error {
	want := map[uint16]rstp.State{}
	for _, p := range t.proto.Status().Ports {
		want[p.Number] = p.State
	}
	for _, n := range slices.Sorted(maps.Keys(t.ports)) {
		if s, known := want[n]; known && t.ports[n].State != bridgeState(s) {
			t.SetState(n, s)
		}
	}
	return t.broken
}

// commit implements protocol. It opens the ports and sends the messages on which the protocol has
// decided since the last commit, once the snapshot has the decisions behind them. So whenever an
// agent is killed, the next one knows of all open ports, and of all that was promised to
// neighbours. Only the last messages are missing. Ports that must close are already closed by
// then.
//
// If a port could not be closed, commit opens no more ports and sends no more promises. The same
// applies as long as the next agent would read an outdated snapshot. A BPDU equal to the last one
// promises nothing new.
func (t *tree) commit() (moved bool, err error) {
	for _, o := range t.sending {
		t.changed = t.changed || !bytes.Equal(t.last[o.port], o.frame)
		t.last[o.port] = o.frame
	}
	if t.broken == nil {
		t.save(time.Now())
	}
	if t.broken == nil && t.keeper.stale {
		t.sending = slices.DeleteFunc(slices.Clone(t.sending), func(o outgoing) bool { return !bytes.Equal(t.last[o.port], o.frame) })
		moved, t.moved = t.moved, false
		return moved, nil
	}
	for _, n := range slices.Sorted(maps.Keys(t.opening)) {
		if t.broken == nil {
			t.put(n, t.opening[n])
		}
	}
	for _, o := range t.sending {
		if t.broken == nil {
			t.send(o)
		}
	}
	clear(t.opening)
	t.sending = nil
	moved, t.moved = t.moved, false
	return moved, t.broken
}

// end implements protocol.
func (t *tree) end(keep bool) {
	if keep {
		_, _ = t.commit() // after an error only the next agent could begin anew
	}
}

// put sets the state of a port in the datapath.
func (t *tree) put(n uint16, s rstp.State) {
	p := t.ports[n]
	if p == nil {
		return
	}
	err := t.bridge.SetState(p.ID, bridgeState(s))
	if err == nil {
		p.State, t.moved = bridgeState(s), true
		t.log.Debug("a port changes", "port", p.Name, "state", s.String())
		return
	}
	if errors.Is(err, os.ErrNotExist) {
		return // the port has left; an event of that is about to come
	}
	t.broken = fmt.Errorf("port %s: %w", p.Name, err)
}

// save stores the tree's state for the next agent, and once a second the time until which this
// agent ran.
func (t *tree) save(now time.Time) {
	did, unsaved, err := t.keeper.keep(now, t.changed, func() snapshot {
		return snapshot{of: t.identity(), state: t.proto.Snapshot()}
	})
	if !did {
		return
	}
	t.changed = unsaved
	if err == nil {
		delete(t.told, "save")
	} else {
		what := "the snapshot of spanning tree cannot be saved; spanning tree starts again with the next agent"
		if t.keeper.stale {
			what = "the spanning tree's snapshot cannot be saved, and no port is opened until it can"
		}
		t.once("save", slog.LevelError, what, "error", err)
	}
}

// linkDown implements protocol.
func (t *tree) linkDown(id uint32) {
	n := number(id)
	p := t.ports[n]
	if p == nil || p.ID != id || !p.Up {
		return
	}
	p.Up = false
	t.changed = true
	if err := t.proto.SetLink(n, false); err != nil {
		t.broken = err
	}
}

// receive implements protocol.
func (t *tree) receive(id uint32, frame []byte) {
	n := number(id)
	p := t.ports[n]
	if p == nil || p.ID != id {
		return // the port has left, or is not known yet and will be refreshed
	}
	err := t.proto.Receive(n, frame)
	if refusal := new(rstp.Refusal); errors.As(err, &refusal) {
		t.once("refused "+string(refusal.Reason)+" "+p.Name, slog.LevelWarn,
			"a BPDU is refused; more like it are counted", "port", p.Name, "reason", string(refusal.Reason), "found", refusal.Text)
		return
	}
	if err != nil {
		t.broken = err
	}
}

// tick implements protocol. It passes the time to the spanning tree. It renews the snapshot if
// the time, or BPDUs, have changed the tree's state without any action. It does not make up for
// seconds in which the process did not run: neighbours' messages from that time still wait to be
// read, and a silence of three seconds would make a port an edge.
func (t *tree) tick(now time.Time) {
	late := now.Sub(t.second)
	if late < time.Second {
		return
	}
	t.second = t.second.Add(time.Second)
	if late >= 2*time.Second {
		t.second = now
	}
	t.proto.Tick()
	t.changed = t.changed || t.proto.Unsaved()
}

// once logs a message that must not repeat.
func (t *tree) once(key string, l slog.Level, msg string, args ...any) {
	if !t.told[key] {
		t.told[key] = true
		t.log.Log(context.Background(), l, msg, args...)
	}
}

// Send implements rstp.Output.
func (t *tree) Send(n uint16, frame []byte) { t.sending = append(t.sending, outgoing{n, frame}) }

func (t *tree) send(o outgoing) {
	p := t.ports[o.port]
	switch {
	case p == nil:
	case p.Type == bridge.TypePatch:
		t.wire.Cable(p.Peer, o.frame)
	default:
		if err := t.wire.Send(p.Index, o.frame); err != nil {
			t.once("send "+p.Name, slog.LevelWarn, "a BPDU cannot be sent", "port", p.Name, "error", err)
		} else {
			delete(t.told, "send "+p.Name)
		}
	}
}

// SetState implements rstp.Output. It closes a port at once; commit opens a port.
func (t *tree) SetState(n uint16, s rstp.State) {
	p := t.ports[n]
	if p == nil {
		return
	}
	t.changed = true
	if s > protoState(p.State) {
		t.opening[n] = s
		return
	}
	delete(t.opening, n)
	t.put(n, s)
}

// Flush implements rstp.Output. It flushes before the commit: if the agent is killed between the
// two, the next one opens and flushes again.
func (t *tree) Flush(n uint16) {
	if p := t.ports[n]; p != nil {
		if err := t.bridge.Flush(p.ID); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.once("flush "+p.Name, slog.LevelWarn, "addresses cannot be flushed", "port", p.Name, "error", err)
		}
	}
}

// Report implements rstp.Output.
func (t *tree) Report(e rstp.Event) {
	t.changed = true
	var args []any
	if p := t.ports[e.Port]; p != nil {
		args = append(args, "port", p.Name)
	}
	if e.Text != "" {
		args = append(args, "detail", e.Text)
	}
	level := slog.LevelInfo
	switch e.Kind {
	case rstp.GuardTripped, rstp.RootGuardBegan:
		level = slog.LevelWarn
	case rstp.Stuck:
		level = slog.LevelError
	case rstp.RoleChanged:
		level = slog.LevelDebug
	}
	t.log.Log(context.Background(), level, "spanning tree: "+e.Kind.String(), args...)
}

// status implements protocol.
func (t *tree) status(s *BridgeStatus) {
	st := &TreeStatus{Status: t.proto.Status(), Ports: []TreePort{}}
	for _, p := range st.Status.Ports {
		line := TreePort{PortStatus: p}
		if t.ports[p.Number] != nil {
			line.Name = t.ports[p.Number].Name
		}
		st.Ports = append(st.Ports, line)
	}
	if t.keeper.lacks != nil {
		st.Unsaved = t.keeper.lacks.Error()
	}
	st.Missed, _ = t.bridge.Missed(bridge.ProtocolSTP) // fails if the bridge has just gone
	s.Tree = st
}

// treeConfig returns the protocol's settings from a bridge's.
func treeConfig(info bridge.Info) rstp.Config {
	c := rstp.DefaultConfig(info.Address)
	c.Priority = info.Config.STPPriority
	c.Hello, c.MaxAge, c.ForwardDelay = info.Config.STPHello, info.Config.STPMaxAge, info.Config.STPForwardDelay
	if info.Config.STP == "stp" {
		c.Version = rstp.STP
	}
	return c
}

// portConfig returns the protocol's settings from a port's.
func portConfig(p *bridge.ControlPort) rstp.PortConfig {
	c := rstp.DefaultPort(p.SpeedMbit)
	c.MAC = p.MAC
	c.Priority = p.Config.STPPriority
	if p.Config.STPCost != 0 {
		c.Cost = p.Config.STPCost
	}
	switch {
	case p.Config.STPEdge == "on":
		c.Edge = rstp.EdgeOn
	case p.Config.STPEdge == "off":
		c.Edge = rstp.EdgeOff
	case p.Type == bridge.TypeHost:
		c.Edge = rstp.EdgeOn // a station is behind it, until a BPDU shows otherwise
	}
	switch p.Config.STPPointToPoint {
	case "on":
		c.PointToPoint = true
	case "off":
		c.PointToPoint = false
	default:
		c.PointToPoint = p.FullDuplex || p.Type == bridge.TypePatch
	}
	c.BPDUGuard, c.BPDUFilter, c.RootGuard = p.Config.BPDUGuard, p.Config.BPDUFilter, p.Config.RootGuard
	return c
}

func equalConfig(a, b rstp.PortConfig) bool {
	return reflect.DeepEqual(a, b)
}

func bridgeState(s rstp.State) bridge.STPState {
	switch s {
	case rstp.Forwarding:
		return bridge.STPForwarding
	case rstp.Learning:
		return bridge.STPLearning
	}
	return bridge.STPDiscarding
}

func protoState(s bridge.STPState) rstp.State {
	switch s {
	case bridge.STPForwarding:
		return rstp.Forwarding
	case bridge.STPLearning:
		return rstp.Learning
	}
	return rstp.Discarding
}
