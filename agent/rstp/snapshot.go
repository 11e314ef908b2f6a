// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// snapshotFormat increases when this version would misread an old snapshot.
const snapshotFormat = 1

type snapshot struct {
	Format int
	Bridge state
	Ports  []*port
}

// Snapshot returns the complete state of the bridge and its ports, as JSON, for
// Restore by another process.
func (b *Bridge) Snapshot() []byte {
	text, err := json.Marshal(snapshot{snapshotFormat, b.state, b.ports})
	if err != nil {
		panic(fmt.Sprintf("rstp: a snapshot that is no JSON: %v", err)) // it has only numbers and names
	}
	for _, p := range b.ports {
		p.saved = p.lasting()
	}
	return text
}

// Unsaved reports whether the ports have information that the last Snapshot,
// and so a Restore, lacks. It is false as long as the messages in a tree at
// rest repeat; timers that follow hellos may be a hello time old. Counters and
// the time since a change do not count, since they are only shown. Settings and
// the set of ports do not count either, since the caller has them.
func (b *Bridge) Unsaved() bool {
	return slices.ContainsFunc(b.ports, func(p *port) bool { return p.saved != p.lasting() })
}

// lasting returns the port's variables without those that change every second
// in a tree at rest.
func (p *port) lasting() variables {
	v := p.variables
	v.HelloWhen, v.TxCount = 0, 0
	v.Message, v.MsgPriority, v.MsgTimes, v.RcvdInfo = bpdu{}, vector{}, times{}, 0
	v.PortTimes = v.PortTimes.older()                        // some bridges change its fraction each time
	if v.RcvdInfoWhile >= seconds(2*v.PortTimes.HelloTime) { // no hello is missing yet
		v.RcvdInfoWhile = seconds(3 * v.PortTimes.HelloTime)
	}
	if !v.Proposing || v.Forward { // nothing waits for it
		v.EdgeDelayWhile = 0
	}
	return v
}

// Restore continues from a snapshot that was taken before a pause, with current
// settings and ports. Nothing is output for ports that have not changed.
//
// Timers that limit how long something is sent or remembered run on during the
// pause. Timers that start an action after a silence (fdWhile, edgeDelayWhile,
// mdelayWhile, rrWhile, rbWhile, loopWhile) do not: the silence was not
// observed. Received information stays valid for one more hello time at least,
// since neighbours may have repeated it meanwhile.
//
// Ports that no longer exist are dropped, and new ones begin as by AddPort. If
// a port is in another state than the snapshot has, it is set to the
// snapshot's: later events count as lost messages.
//
// An unreadable snapshot is an error, and so are invalid settings. The caller
// then begins with New.
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

// pause subtracts elapsed seconds from the timers that run on during a pause.
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

// maxTimer is more than the value of any timer of a port, except the guard's.
const maxTimer = 1 << 30

// check refuses a state that Snapshot cannot have written.
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
