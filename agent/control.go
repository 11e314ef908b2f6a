// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/bridge"
)

// protocols are the control protocols that the agent runs, in the order in which they get
// events.
var protocols = []*runner{&spanningTree}

// A runner is a control protocol that the agent runs.
type runner struct {
	name   string                         // "spanning tree"
	its    string                         // the same within a sentence: "the spanning tree"
	frames bridge.Protocol                // the protocol's own frames
	suffix string                         // of its snapshots' files
	on     func(bridge.BridgeConfig) bool // whether a bridge runs it
	begin  func(charge) (protocol, error) // continues from the snapshot, if there is one
}

// A protocol is one bridge's instance of a control protocol. The site passes it changes of the
// bridge and its ports, frames, and the time. It decides on actions, and carries them out by
// commit. All methods run in the agent's loop.
type protocol interface {
	// refresh passes the current state of the bridge and its ports. After an error the
	// protocol must begin anew.
	refresh(info bridge.Info, ports []bridge.ControlPort) error
	// receive takes a frame from a port. The port may have left, or be unknown yet.
	receive(port uint32, frame []byte)
	// linkDown reports that a port has lost its link. A port whose link has come back is
	// part of refresh, since its speed may have changed.
	linkDown(port uint32)
	// tick is called several times a second.
	tick(now time.Time)
	// commit carries out the decisions since the last commit. moved reports whether a port
	// of a device has begun or stopped forwarding. After an error the protocol must begin
	// anew.
	commit() (moved bool, err error)
	// status adds the protocol's state to the bridge's.
	status(*BridgeStatus)
	// end ends the protocol. With keep, it first carries out its decisions, so that the
	// next agent can continue.
	end(keep bool)
}

// A charge is a bridge that is handed to a protocol.
type charge struct {
	bridge control
	wire   wire
	info   bridge.Info
	ports  []bridge.ControlPort
	log    *slog.Logger
	path   string // of the snapshot
	now    time.Time
}

// control has the methods of a bridge that protocols need.
type control interface {
	SetState(id uint32, s bridge.STPState) error
	Flush(id uint32) error
	Missed(p bridge.Protocol) (uint64, error)
	Doubt(p bridge.Protocol, on bool) error
	Doubted(p bridge.Protocol) (bool, error)
}

// holder also has the methods that the site needs; *bridge.Control implements it.
type holder interface {
	control
	Bridge() (bridge.Info, error)
	Ports() ([]bridge.ControlPort, error)
	Read(ctx context.Context) (bridge.ControlFrame, error)
	Keep() error
	Close() error
}

// wire sends the frames of a protocol.
type wire interface {
	// Send sends a frame through the device.
	Send(index int, frame []byte) error
	// Cable passes a frame to a patch port, BRIDGE/PORT, of this namespace, once all
	// protocols have done their work.
	Cable(to string, frame []byte)
}

// A line is the wire of one protocol.
type line struct {
	*site
	of *runner
}

// Cable implements wire.
func (l line) Cable(to string, frame []byte) {
	l.cabled = append(l.cabled, handed{of: l.of, to: to, frame: frame})
}

// A handed frame waits for its delivery to a patch port of the namespace.
type handed struct {
	of    *runner
	to    string // BRIDGE/PORT
	frame []byte
}

// A controlled bridge is a bridge whose control protocols the agent runs.
type controlled struct {
	bridge   holder
	stop     context.CancelFunc // ends the reader
	identity string             // of the bridge: it differs from the identity of another bridge of the same name
	ports    []bridge.ControlPort
	runs     map[*runner]protocol
	kept     time.Time // time of the last check that the agent still has control of the bridge
	lost     bool      // it no longer has control
}

// running returns the protocols that run, in the order of the list.
func (c *controlled) running() (list []*runner) {
	if c == nil {
		return nil
	}
	for _, k := range protocols {
		if c.runs[k] != nil {
			list = append(list, k)
		}
	}
	return list
}

// serveControl brings the control protocols of a bridge up to date.
func (s *site) serveControl(name string, b *served) (failed error) {
	info, err := s.sw.Bridge(name)
	if err != nil {
		return err
	}
	var on []*runner
	for _, k := range protocols {
		if k.on(info.Config) {
			on = append(on, k)
		}
	}
	other := b.control != nil && b.control.identity != info.Identity()
	for _, k := range b.control.running() {
		if other || !slices.Contains(on, k) {
			b.control.end(k, false)
			s.forget(name, k, b.control.bridge)
			s.log.Info(k.its+" ends", "bridge", name)
		}
	}
	if other || len(on) == 0 {
		b.endControl(false)
	}
	if len(on) == 0 {
		return nil
	}
	if b.control == nil {
		if err := s.beginControl(name, b); err != nil {
			return fmt.Errorf("%s: %w", namesOf(on), err)
		}
	}
	defer b.rest()
	if info, err = b.control.look(); err != nil {
		if len(b.control.runs) == 0 {
			err = fmt.Errorf("%s: %w", namesOf(on), err)
		}
		return err
	}
	for _, k := range on {
		if b.control.runs[k] == nil {
			err = s.beginProtocol(name, b, k, info)
		} else if err = b.control.runs[k].refresh(info, slices.Clone(b.control.ports)); err != nil {
			err = s.broken(name, b, k, err)
		}
		if failed == nil {
			failed = err
		}
	}
	return failed
}

// look reads the current state of the bridge and its ports. If it cannot, it changes nothing.
func (c *controlled) look() (info bridge.Info, err error) {
	if info, err = c.bridge.Bridge(); err != nil {
		return info, err
	}
	ports, err := c.bridge.Ports()
	if err == nil {
		c.ports = ports
	}
	return info, err
}

// namesOf returns the names of control protocols.
func namesOf(list []*runner) string {
	var names []string
	for _, k := range list {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// beginControl takes control of a bridge's protocols, and passes their frames to the protocols
// that run.
func (s *site) beginControl(name string, b *served) error {
	if err := s.hear(); err != nil {
		return err
	}
	c, err := s.sw.OpenControl(name)
	if err != nil {
		return err
	}
	info, err := c.Bridge()
	if err != nil {
		c.Close()
		return err
	}
	ctx, stop := context.WithCancel(s.ctx)
	now := &controlled{bridge: c, stop: stop, identity: info.Identity(), runs: map[*runner]protocol{}, kept: time.Now()}
	b.control = now
	go func() {
		for {
			f, err := c.Read(ctx)
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				s.a.post(func() {
					if b.control == now {
						b.endControl(false)
						s.refresh() // it reports the bridge's new state
					}
				})
				return
			}
			s.a.post(func() {
				if b.control == now {
					now.receive(f)
				}
			})
		}
	}()
	return nil
}

// beginProtocol starts a protocol of a bridge.
func (s *site) beginProtocol(name string, b *served, k *runner, info bridge.Info) error {
	p, err := k.begin(charge{
		bridge: b.control.bridge, wire: line{s, k}, info: info, ports: slices.Clone(b.control.ports), log: s.log,
		path: s.snapshotPath(name, k), now: time.Now(),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	b.control.runs[k] = p
	s.log.Info(k.its+" is run", "bridge", name, "ports", len(b.control.ports))
	return nil
}

// receive passes a frame to its protocol.
func (c *controlled) receive(f bridge.ControlFrame) {
	for _, k := range c.running() {
		if k.frames == f.Protocol {
			c.runs[k].receive(f.Port, f.Bytes)
		}
	}
}

// linkChanged passes a change of a device's link to the protocols. It reports whether the
// bridge must be read again: the speed may change when a link comes up.
func (c *controlled) linkChanged(log *slog.Logger, index int, up bool) (look bool) {
	if c == nil {
		return false
	}
	for i := range c.ports {
		p := &c.ports[i]
		if p.Index != index || p.Type == bridge.TypePatch || p.Up == up {
			continue
		}
		if up {
			return true
		}
		p.Up = false
		for _, k := range c.running() {
			c.runs[k].linkDown(p.ID)
		}
		log.Info("a link is down", "port", p.Name)
		return false
	}
	return false
}

// knows reports whether a device is a port of a bridge with control protocols.
func (s *site) knows(index int) bool {
	for _, b := range s.bridges {
		if b.control != nil && slices.ContainsFunc(b.control.ports, func(p bridge.ControlPort) bool { return p.Index == index }) {
			return true
		}
	}
	return false
}

// tick passes the time to a bridge's protocols, and checks once a second that the agent still
// has control of them.
func (c *controlled) tick(log *slog.Logger, now time.Time) {
	if c == nil {
		return
	}
	if now.Sub(c.kept) >= time.Second {
		c.kept = now
		err := c.bridge.Keep()
		if err != nil && !c.lost {
			for _, k := range c.running() {
				log.Error(k.its+" cannot be marked as running", "error", err)
			}
		}
		c.lost = err != nil
	}
	for _, k := range c.running() {
		c.runs[k].tick(now)
	}
}

// commit carries out the decisions of a bridge's protocols.
func (s *site) commit(name string, b *served) {
	defer b.rest()
	for _, k := range b.control.running() {
		moved, err := b.control.runs[k].commit()
		if moved {
			s.devices.wake()
		}
		if err != nil {
			b.err = s.broken(name, b, k, err).Error()
		}
	}
}

// hand delivers a frame that was sent through a patch cable.
func (s *site) hand(h handed) {
	name, port, _ := strings.Cut(h.to, "/")
	b := s.bridges[name]
	if b == nil || b.control == nil || b.control.runs[h.of] == nil {
		return // a bridge without the protocol ignores the frame
	}
	for _, p := range b.control.ports {
		if p.Name == port && p.Type == bridge.TypePatch {
			b.control.runs[h.of].receive(p.ID, h.frame)
			return
		}
	}
}

// broken ends a protocol that cannot continue. The protocol soon begins anew, with no memory.
func (s *site) broken(name string, b *served, k *runner, err error) error {
	s.log.Error(k.its+" begins anew", "bridge", name, "error", err)
	b.control.end(k, false)
	s.forget(name, k, b.control.bridge)
	b.retry = time.Now().Add(retryPeriod)
	return err
}

// end ends a protocol.
func (c *controlled) end(k *runner, keep bool) {
	c.runs[k].end(keep)
	delete(c.runs, k)
}

// rest gives up control of a bridge that runs no protocol.
func (b *served) rest() {
	if b.control != nil && len(b.control.runs) == 0 {
		b.endControl(false)
	}
}

// endControl ends the control protocols of a bridge, and gives up control of it.
func (b *served) endControl(keep bool) {
	c := b.control
	if c == nil {
		return
	}
	for _, k := range c.running() {
		c.end(k, keep)
	}
	b.control = nil
	c.stop()
	c.bridge.Close()
}

func (s *site) snapshotPath(name string, k *runner) string {
	return snapshotPath(s.a.o.Dir, s.cookie, name, k)
}

// Snapshots are <cookie>-<bridge><suffix>; a bridge's name has no slash.
func snapshotPath(dir string, cookie uint64, name string, k *runner) string {
	return filepath.Join(dir, strconv.FormatUint(cookie, 10)+"-"+name+k.suffix)
}

// Forget removes the files of a deleted bridge from the agents' folder. cookie is the cookie
// of its network namespace. An agent that runs there does the same. At worst, an agent that
// has not noticed the deletion yet writes a file again, and removes it when it does.
func Forget(dir string, cookie uint64, bridge string) error {
	var all []error
	for _, k := range protocols {
		if err := os.Remove(snapshotPath(dir, cookie, bridge, k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// forget removes a protocol's snapshot of a bridge. If the file cannot be removed, the
// snapshot is marked as doubtful at the bridge. c is nil for a bridge that has gone, which
// needs no mark.
func (s *site) forget(name string, k *runner, c control) {
	err := os.Remove(s.snapshotPath(name, k))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if c != nil {
		if doubt := c.Doubt(k.frames, true); doubt != nil && !errors.Is(doubt, fs.ErrNotExist) {
			err = errors.Join(err, doubt)
		}
	}
	s.log.Warn("a snapshot cannot be removed", "bridge", name, "error", err)
}
