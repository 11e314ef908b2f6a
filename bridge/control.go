// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"bascule/datapath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Protocol is a control protocol. The datapath passes its frames to the process that runs the
// protocol.
type Protocol = datapath.ControlProtocol

// The control protocols.
const (
	ProtocolSTP = datapath.ControlSTP
)

// protocols has the words for each control protocol: its name, the setting of a bridge that enables
// it, and the name of its frames.
var protocols = map[Protocol]struct{ name, on, frame string }{
	ProtocolSTP: {"spanning tree", "--stp rstp", "a BPDU"},
}

// A ControlFrame is a received frame of a control protocol.
type ControlFrame = datapath.ControlFrame

// Control serves a process that runs control protocols of a bridge. It returns received frames and
// the ports, and sets the states of ports. Its methods can be called concurrently, except for Read.
type Control struct {
	s      *Switch
	bridge string
	were   []Protocol     // enabled when it was opened
	seed   uint64         // the bridge's hash seed: a deleted and added bridge has another
	hold   *datapath.Hold // nil for none
	again  func() (*datapath.Hold, error)

	mu     sync.Mutex
	frames *datapath.ControlFrames
	closed bool
}

// A ControlPort is a port for control protocols. ID is the port's as long as it is in the bridge,
// and is never reused. datapath.Slot of ID, 1 to 1023, is the port number of IEEE 802.1D.
type ControlPort struct {
	ID         uint32
	Name, Type string
	Index      int              // of the port's device, 0 for a patch port
	MAC        net.HardwareAddr // of the port's device; for a patch port, the bridge's own
	Up         bool             // the device is up and has a carrier; for a patch port: the other end exists
	SpeedMbit  uint32           // 0 if unknown
	FullDuplex bool             // according to the device; true for a patch port
	Peer       string           // of a patch port: the other end, as BRIDGE/PORT
	State      STPState         // STPForwarding if spanning tree is off
	Config     PortConfig
}

// controlLook is how often a waiting Read checks whether the bridge still has its control
// protocols, and whether their frames still come to the same buffer. A check each second would be a
// third of the cost of an idle agent.
const controlLook = 5 * time.Second

// OpenControl takes control of a bridge's control protocols, until Close or the end of the process.
// It fails if another process has it.
func (s *Switch) OpenControl(bridge string) (*Control, error) {
	c := &Control{s: s, bridge: bridge}
	what := "run control protocols of bridge " + bridge
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) (err error) {
		if err := c.letGo(); err != nil { // opened by an earlier try
			return err
		}
		if c.were = b.ControlProtocols(); len(c.were) == 0 {
			return refused(what, "it has none", "switch one on, as with 'bascule bridge set "+bridge+" --stp rstp'")
		}
		c.again = func() (*datapath.Hold, error) { return holdControl(b) }
		if c.hold, err = c.again(); err != nil {
			if errors.Is(err, datapath.ErrWatched) {
				return because(refused(c.does("run"), "another process does already", "end that first"), err)
			}
			return failed(c.does("run"), err)
		}
		c.seed = b.Config.HashSeed
		c.frames, err = b.OpenControlFrames()
		return failed(c.does("run"), err)
	})
	if err != nil {
		return nil, errors.Join(err, c.letGo())
	}
	return c, nil
}

// does describes a method's work on the protocols, for errors.
func (c *Control) does(verb string) string {
	var names []string
	for _, p := range c.were {
		names = append(names, protocols[p].name)
	}
	return verb + " " + strings.Join(names, ", ") + " of bridge " + c.bridge
}

// holdControl tries a few times: a process that only checks whether the lock is free holds it for a
// moment, too.
func holdControl(b *datapath.Bridge) (hold *datapath.Hold, err error) {
	for range 10 {
		hold, err = b.HoldFolder(datapath.WatchControl)
		if !errors.Is(err, datapath.ErrWatched) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return hold, err
}

func (c *Control) letGo() error {
	if c.hold == nil {
		return nil
	}
	c.hold.Release(false)
	c.hold = nil
	if c.frames == nil {
		return nil
	}
	err := c.frames.Close()
	c.frames = nil
	return err
}

// Close releases the control protocols; the ports keep their states. A waiting Read returns
// os.ErrClosed.
func (c *Control) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.hold.Release(false)
	return c.frames.Close()
}

// Keep takes the lock of the control protocols again if its folder has been removed. It is cheap if
// the folder is there.
func (c *Control) Keep() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !c.hold.Lost() {
		return nil
	}
	hold, err := c.again()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the bridge has gone
	}
	if err != nil {
		return failed(c.does("run"), err)
	}
	c.hold.Release(false)
	c.hold = hold
	return nil
}

func (c *Control) switchedOff(p Protocol) error {
	return refused(c.does("go on with"), "it has been switched off",
		"switch it on with 'bascule bridge set "+c.bridge+" "+protocols[p].on+"'")
}

// with calls f with the bridge, and again if the bridge is changed meanwhile.
func (c *Control) with(f func(*datapath.Bridge) error) error {
	return c.s.each(c.does("go on with"), c.bridge, func(_ string, b *datapath.Bridge) error {
		switch {
		case b.Config.HashSeed != c.seed:
			return refused(c.does("go on with"), "it was deleted and added again", "start again")
		case len(b.ControlProtocols()) == 0:
			return c.switchedOff(c.were[0])
		}
		return f(b)
	})
}

// Bridge returns the bridge whose control protocols these are.
func (c *Control) Bridge() (info Info, err error) {
	err = c.with(func(b *datapath.Bridge) error {
		info, err = describe(c.bridge, b)
		return err
	})
	return info, err
}

// Ports returns the bridge's ports in the order in which they were added, without span ports, which
// take no part in control protocols. If all protocols were off meanwhile, a waiting Read notices it
// at once.
func (c *Control) Ports() (list []ControlPort, err error) {
	err = c.with(func(b *datapath.Bridge) error {
		if err := c.hear(b); err != nil {
			return err
		}
		devices, err := links()
		if err != nil {
			return err
		}
		var cables *datapath.Cables
		if b.Patched() {
			if cables, err = b.Store().Cables(); err != nil {
				return err
			}
		}
		states, err := b.STPStates()
		if err != nil {
			return err
		}
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		list = list[:0]
		for _, p := range inOrder(&b.Config) {
			if p.Facts&datapath.PortSpan != 0 {
				continue
			}
			port := ControlPort{
				ID: p.Id, Name: portName(b, p, devices), Type: TypeNetdev,
				MAC:   net.HardwareAddr(slices.Clone(b.Config.Address[:])),
				State: STPState(states[datapath.Slot(p.Id)]), Config: loadPortConfig(p),
			}
			if p.Notes&datapath.PortHost != 0 {
				port.Type = TypeHost
			}
			if p.Facts&datapath.PortPatch != 0 {
				port.Type, port.FullDuplex = TypePatch, true
				if other, ok := cables.Other(p); ok {
					port.Peer, port.Up = other.Bridge+"/"+other.Port, true
				}
			} else if l := devices[int(p.Ifindex)]; l != nil && b.HasDevice(p) {
				port.look(e, l)
			}
			list = append(list, port)
		}
		return nil
	})
	return list, err
}

// look fills in the properties of the port's device.
func (p *ControlPort) look(e *ethtool.Ethtool, l netlink.Link) {
	a := l.Attrs()
	p.Index, p.MAC = a.Index, a.HardwareAddr
	p.Up = a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0
	settings := linkSettings(e, a.Name)
	p.FullDuplex, p.SpeedMbit = settings.Duplex == DuplexFull, settings.SpeedMbit
}

// LinkSettings are a device's properties of its link (ethtool(8)).
type LinkSettings struct {
	SpeedMbit uint32 // 0 if unknown
	Duplex    Duplex
}

// A Duplex is the duplex mode of a link: whether both ends can send at the same time.
type Duplex uint8

// The duplex modes.
const (
	DuplexUnknown Duplex = iota
	DuplexFull
	DuplexHalf
)

// LinkSettings returns the link settings of devices of the namespace. A device without such
// settings, or one that is gone, has the zero value.
func (s *Switch) LinkSettings(devices []string) (list []LinkSettings, err error) {
	list = make([]LinkSettings, len(devices))
	err = s.Inside(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("ask devices for their links: %w", err)
		}
		defer e.Close()
		for i, name := range devices {
			list[i] = linkSettings(e, name)
		}
		return nil
	})
	return list, err
}

func linkSettings(e *ethtool.Ethtool, device string) (l LinkSettings) {
	const (
		half, full   = 0, 1       // DUPLEX_HALF and DUPLEX_FULL of linux/ethtool.h
		speedUnknown = ^uint32(0) // SPEED_UNKNOWN
	)
	var settings ethtool.EthtoolCmd
	speed, err := e.CmdGet(&settings, device)
	if err != nil {
		return l // a device without such settings
	}
	switch settings.Duplex {
	case half:
		l.Duplex = DuplexHalf
	case full:
		l.Duplex = DuplexFull
	}
	if speed != speedUnknown {
		l.SpeedMbit = speed
	}
	return l
}

// Read waits for a frame of a control protocol, and returns it. It does not return frames from
// before OpenControl. The error is ctx's if ctx ends, and os.ErrClosed after Close. Another error
// means that the bridge has no control protocol any more.
func (c *Control) Read(ctx context.Context) (ControlFrame, error) {
	for {
		if err := ctx.Err(); err != nil {
			return ControlFrame{}, err
		}
		c.mu.Lock()
		frames, closed := c.frames, c.closed
		c.mu.Unlock()
		if closed {
			return ControlFrame{}, os.ErrClosed
		}
		stop := context.AfterFunc(ctx, func() { _ = frames.Wake() }) // fails if closed, which wakes Read, too
		f, err := frames.Read(time.Now().Add(controlLook))
		stop()
		switch {
		case err == nil:
			f.Bytes = slices.Clone(f.Bytes)
			return f, nil
		case errors.Is(err, os.ErrClosed): // by Close, or because frames come to another buffer now
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return ControlFrame{}, err
		default:
			if err := c.with(c.hear); err != nil {
				return ControlFrame{}, err
			}
		}
	}
}

// hear makes Read use the buffer that frames come to now. The buffer is another one after all
// control protocols were disabled, and one was enabled again.
func (c *Control) hear(b *datapath.Bridge) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return os.ErrClosed
	}
	same, err := c.frames.Of(b)
	if err != nil || same {
		return err
	}
	frames, err := b.OpenControlFrames()
	if err != nil {
		return err
	}
	err = c.frames.Close()
	c.frames = frames
	return err
}

// Missed returns how many frames of a protocol were lost since OpenControl, because they were not
// read in time or a port received too many.
func (c *Control) Missed(p Protocol) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, os.ErrClosed
	}
	return c.frames.Missed(p)
}

// Doubt records in a pin of the bridge whether the data that this process has left for the next one
// that runs the protocol is out of date. The record outlives the process. It stays until Doubt
// clears it or the bridge is deleted.
func (c *Control) Doubt(p Protocol, on bool) error {
	return c.beside("doubt what is kept of", func(b *datapath.Bridge) error { return b.DoubtControl(p, on) })
}

// Doubted returns what Doubt has recorded last.
func (c *Control) Doubted(p Protocol) (on bool, err error) {
	err = c.beside("run", func(b *datapath.Bridge) (err error) {
		on, err = b.ControlDoubted(p)
		return err
	})
	return on, err
}

// beside calls f with the bridge, even if its protocols have been disabled.
func (c *Control) beside(does string, f func(*datapath.Bridge) error) error {
	return c.s.each(c.does(does), c.bridge, func(_ string, b *datapath.Bridge) error {
		if b.Config.HashSeed != c.seed {
			return fs.ErrNotExist // another bridge with the same name
		}
		return f(b)
	})
}
