// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// snapshotFormat is raised when an old snapshot would be misread.
const snapshotFormat = 1

type snapshot struct {
	Format int
	Bridge state
	Ports  []*port
}

// Snapshot is the complete state of the bridge and its ports, as JSON, for
// Restore by another process.
func (b *Bridge) Snapshot() []byte {
	text, err := json.Marshal(snapshot{snapshotFormat, b.state, b.ports})
	if err != nil {
		panic(fmt.Sprintf("rstp: a snapshot that is no JSON: %v", err)) // it has numbers and names alone
	}
	for _, p := range b.ports {
		p.saved = p.lasting()
	}
	return text
}

// Unsaved says whether Restore would lack something that the ports have come to
// know since the last Snapshot. It is false as long as a tree at rest is told
// again what it knows; timers that follow hellos may be a hello time old.
// Counters and the time since a change, which are only shown, do not count. Nor
// do settings and the set of ports, which the caller knows.
func (b *Bridge) Unsaved() bool {
	return slices.ContainsFunc(b.ports, func(p *port) bool { return p.saved != p.lasting() })
}

// lasting returns the port's variables without those that change every second
// in a tree at rest.
func (p *port) lasting() variables {
	v := p.variables
	v.HelloWhen, v.TxCount = 0, 0
	v.Message, v.MsgPriority, v.MsgTimes, v.RcvdInfo = bpdu{}, vector{}, times{}, 0
	v.PortTimes = v.PortTimes.older()                        // some bridges give the age new fractions each time
	if v.RcvdInfoWhile >= seconds(2*v.PortTimes.HelloTime) { // no hello is missing yet
		v.RcvdInfoWhile = seconds(3 * v.PortTimes.HelloTime)
	}
	if !v.Proposing || v.Forward { // nothing waits for it
		v.EdgeDelayWhile = 0
	}
	return v
}

// Restore goes on where a snapshot was taken, paused ago, with settings and
// ports as they are now. Nothing is output for ports that have not changed.
//
// Timers that end what was to be told or remembered for some time run on.
// Timers that let something happen after a silence (fdWhile, edgeDelayWhile,
// mdelayWhile, rrWhile, rbWhile, loopWhile) do not: nobody was listening.
// Received information holds for one more hello time at least, since neighbours
// may have told it again meanwhile.
//
// Ports that are no longer there are dropped, and new ones begin as by AddPort.
// If a port is in another state than the snapshot says, it is set to the
// snapshot's: events after the snapshot count as messages that got lost.
//
// A snapshot that cannot be read is an error, and so are wrong settings. The
// caller then begins with New.
func Restore(text []byte, paused time.Duration, c Config, ports []Port, out Output) (*Bridge, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, p := range ports {
		if err := p.Config.check(p.Number); err != nil {
			return nil, err
		}
	}
	var s snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("spanning tree: snapshot: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("spanning tree: snapshot: %w", err)
	}

	b := &Bridge{state: s.Bridge, out: out}
	b.ports = slices.DeleteFunc(s.Ports, func(p *port) bool {
		return !slices.ContainsFunc(ports, func(now Port) bool { return now.Number == p.Number && !now.New })
	})
	gone := len(b.ports) < len(s.Ports)
	for _, p := range b.ports {
		p.bridge = b
		p.pause(int(min(max(paused, 0)/time.Second, maxTimer)))
		if gone {
			p.reselect()
		}
	}
	b.setConfig(c)
	for _, now := range ports {
		p, err := b.find(now.Number)
		if err != nil {
			b.addPort(now.Number, now.Config, now.Up)
			continue
		}
		if now.State != p.PST {
			out.SetState(p.Number, p.PST)
		}
		if now.State > p.PST {
			p.flush()
		}
		p.setConfig(now.Config)
		p.setLink(now.Up)
	}
	b.settle()
	return b, nil
}

// pause takes time off the timers that run while nobody listens.
func (p *port) pause(elapsed int) {
	less := func(t *int) { *t = max(*t-elapsed, 0) }
	less(&p.HelloWhen)
	less(&p.TcWhile)
	less(&p.TxCount)
	if p.RcvdInfoWhile > 0 {
		p.RcvdInfoWhile = max(p.RcvdInfoWhile-elapsed, min(p.RcvdInfoWhile, seconds(p.PortTimes.HelloTime)+1))
	}
	if p.GuardWhile > 0 {
		p.GuardWhile = max(p.GuardWhile-elapsed, 1)
	}
}

// maxTimer is more than any timer of a port can have, except the guard's.
const maxTimer = 1 << 30

// check refuses a state that no Snapshot has written.
func (s *snapshot) check() error {
	if s.Format != snapshotFormat {
		return fmt.Errorf("format %d instead of %d", s.Format, snapshotFormat)
	}
	if err := s.Bridge.Config.check(); err != nil {
		return err
	}
	var last uint16
	for _, p := range s.Ports {
		if p == nil || p.Number <= last {
			return fmt.Errorf("ports are not in order after %d", last)
		}
		last = p.Number
		if err := p.Config.check(p.Number); err != nil {
			return err
		}
		if p.PPM >= ppmStates || p.BDM >= bdmStates || p.PIM >= pimStates || p.PRT >= prtStates || p.TCM >= tcmStates || p.InfoIs > infoReceived {
			return fmt.Errorf("port %d: a machine in no state", p.Number)
		}
		for _, t := range append(p.timers(), timer{"", &p.TxCount}, timer{"", &p.GuardWhile}) {
			if *t.value < 0 || *t.value > maxTimer {
				return fmt.Errorf("port %d: timer of %d s", p.Number, *t.value)
			}
		}
	}
	return nil
}
