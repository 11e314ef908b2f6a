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

// Protocol is a control protocol: the datapath takes its frames for the process that
// runs the protocol.
type Protocol = datapath.ControlProtocol

// The control protocols.
const (
	ProtocolSTP = datapath.ControlSTP
)

// protocols has the words for the control protocols: a name, a setting of a bridge
// that switches it on, and what it calls a frame.
var protocols = map[Protocol]struct{ name, on, frame string }{
	ProtocolSTP: {"spanning tree", "--stp rstp", "a BPDU"},
}

// A ControlFrame is a frame of a control protocol that came in.
type ControlFrame = datapath.ControlFrame

// Control is a bridge's control protocols in the hands of who runs them: frames that
// come in for them, the ports, and what they decide about those. Any of its methods
// can be called at any time, but Read by one caller at a time.
type Control struct {
	s      *Switch
	bridge string
	were   []Protocol     // that were on when it was opened
	seed   uint64         // the bridge's, which one made anew does not have
	hold   *datapath.Hold // nil for none
	again  func() (*datapath.Hold, error)

	mu     sync.Mutex
	frames *datapath.ControlFrames
	closed bool
}

// A ControlPort is a port as control protocols see it. ID stays the port's as long as
// it is in the bridge and is never another's; datapath.Slot of it, 1 to 1023, is
// the port number of IEEE 802.1D.
type ControlPort struct {
	ID         uint32
	Name, Type string
	Index      int              // of the port's device, 0 of a patch port
	MAC        net.HardwareAddr // of the port's device; of a patch port the bridge's own
	Up         bool             // the device is up and has a carrier; of a patch port: the other end is there
	SpeedMbit  uint32           // 0 where nobody knows
	FullDuplex bool             // the device says so, or it is a patch port
	Peer       string           // of a patch port: BRIDGE/PORT, the other end
	State      STPState         // STPForwarding where there is no spanning tree
	Config     PortConfig
}

// controlLook is how often a waiting Read looks whether the bridge still has its
// control protocols, and whether their frames still come there. To look each second
// would be a third of the cost of an idle agent.
const controlLook = 5 * time.Second

// OpenControl takes a bridge's control protocols in hand, until Close or until the
// process ends. There is one holder at a time: it fails if there is another.
func (s *Switch) OpenControl(bridge string) (*Control, error) {
	c := &Control{s: s, bridge: bridge}
	what := "run control protocols of bridge " + bridge
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) (err error) {
		if err := c.letGo(); err != nil { // a try before has opened it
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

// does names the work of a method on the protocols, for errors.
func (c *Control) does(verb string) string {
	var names []string
	for _, p := range c.were {
		names = append(names, protocols[p].name)
	}
	return verb + " " + strings.Join(names, ", ") + " of bridge " + c.bridge
}

// holdControl tries a few times: a process that only looks whether somebody holds the
// bridge has it for a moment, too.
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

// Close gives the control protocols back; the ports keep their states. A Read that
// waits returns os.ErrClosed.
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

// Keep takes the control protocols in hand again if the folder is gone that says that
// they are in hand. It is cheap if the folder is there.
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

// with runs f with the bridge. It runs f again if the bridge is changed meanwhile.
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

// Ports returns the bridge's ports in the order in which they were added. It leaves out
// span ports, which take part in nothing. If all protocols were off meanwhile, a Read
// that waits notices at once.
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

// look fills in the facts of the port's device.
func (p *ControlPort) look(e *ethtool.Ethtool, l netlink.Link) {
	a := l.Attrs()
	p.Index, p.MAC = a.Index, a.HardwareAddr
	p.Up = a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0
	settings := linkSettings(e, a.Name)
	p.FullDuplex, p.SpeedMbit = settings.Duplex == DuplexFull, settings.SpeedMbit
}

// LinkSettings are what a device says of its link (ethtool(8)).
type LinkSettings struct {
	SpeedMbit uint32 // 0 where nobody knows
	Duplex    Duplex
}

// A Duplex says whether both ends of a link can send at a time.
type Duplex uint8

// The ways of a link.
const (
	DuplexUnknown Duplex = iota
	DuplexFull
	DuplexHalf
)

// LinkSettings returns what the devices of the namespace say of their links. A device that
// says nothing, or is gone, has the zero value.
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

// Read waits for a frame of a control protocol, and returns it. It does not return
// frames from before OpenControl. The error is ctx's if ctx ends, and os.ErrClosed
// after Close. Another error says that the bridge has no control protocol any more.
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
		stop := context.AfterFunc(ctx, func() { _ = frames.Wake() }) // fails if it is closed, which wakes too
		f, err := frames.Read(time.Now().Add(controlLook))
		stop()
		switch {
		case err == nil:
			f.Bytes = slices.Clone(f.Bytes)
			return f, nil
		case errors.Is(err, os.ErrClosed): // by Close, or because frames come elsewhere now
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return ControlFrame{}, err
		default:
			if err := c.with(c.hear); err != nil {
				return ControlFrame{}, err
			}
		}
	}
}

// hear has frames read where they come now. That is another buffer if all control
// protocols were switched off, and one was switched on again.
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

// Missed returns how many frames of a protocol found no room since OpenControl,
// because nobody read in time or a port had too many.
func (c *Control) Missed(p Protocol) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, os.ErrClosed
	}
	return c.frames.Missed(p)
}

// Doubt says beside the bridge whether what this process has left for the next one that
// runs the protocol is out of date. That stays so when the process ends, until Doubt
// takes it back or the bridge goes.
func (c *Control) Doubt(p Protocol, on bool) error {
	return c.beside("doubt what is kept of", func(b *datapath.Bridge) error { return b.DoubtControl(p, on) })
}

// Doubted reports what Doubt has said last.
func (c *Control) Doubted(p Protocol) (on bool, err error) {
	err = c.beside("run", func(b *datapath.Bridge) (err error) {
		on, err = b.ControlDoubted(p)
		return err
	})
	return on, err
}

// beside runs f with the bridge, also where its protocols have been switched off.
func (c *Control) beside(does string, f func(*datapath.Bridge) error) error {
	return c.s.each(c.does(does), c.bridge, func(_ string, b *datapath.Bridge) error {
		if b.Config.HashSeed != c.seed {
			return fs.ErrNotExist // another one of the name
		}
		return f(b)
	})
}
