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
	"sync"
	"time"

	"bascule/datapath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// STPState is a port's state in spanning tree. An STP sets it and the datapath
// obeys it.
type STPState uint32

// The states of a port (IEEE 802.1D-2004 7.4).
const (
	STPForwarding STPState = STPState(datapath.STPForwarding)
	STPDiscarding STPState = STPState(datapath.STPDiscarding) // takes no frames, gets none, learns nothing
	STPLearning   STPState = STPState(datapath.STPLearning)   // the same, but learns addresses
)

// String returns the state as `bascule port show` prints it.
func (s STPState) String() string {
	switch s {
	case STPForwarding:
		return "forwarding"
	case STPDiscarding:
		return "discarding"
	case STPLearning:
		return "learning"
	}
	return fmt.Sprintf("state %d", uint32(s))
}

// STP is a bridge's spanning tree in the hands of who runs it: BPDUs that come
// in, and the states of the ports. Any of its methods can be called at any time,
// but Read by one caller at a time.
type STP struct {
	s      *Switch
	bridge string
	seed   uint64         // the bridge's, which one made anew does not have
	hold   *datapath.Hold // nil for none
	again  func() (*datapath.Hold, error)

	mu     sync.Mutex
	frames *datapath.BPDUs
	closed bool
}

// An STPPort is a port as spanning tree sees it. ID stays the port's as long as
// it is in the bridge and is never another's; datapath.Slot of it, 1 to 1023, is
// the port number of IEEE 802.1D.
type STPPort struct {
	ID         uint32
	Name, Type string
	Index      int              // of the port's device, 0 of a patch port
	MAC        net.HardwareAddr // of the port's device; of a patch port the bridge's own
	Up         bool             // the device is up and has a carrier; of a patch port: the other end is there
	SpeedMbit  uint32           // 0 where nobody knows
	FullDuplex bool             // the device says so, or it is a patch port
	Peer       string           // of a patch port: BRIDGE/PORT, the other end
	State      STPState
	Config     PortConfig
}

// stpLook is how often a Read that waits looks whether the bridge still has its
// spanning tree, and its BPDUs still come there. To look each second would be a
// third of the cost of an idle agent.
const stpLook = 5 * time.Second

// OpenSTP takes a bridge's spanning tree in hand, until Close or the process's
// end. One holder at a time: the error says so where there is another.
func (s *Switch) OpenSTP(bridge string) (*STP, error) {
	what := "run spanning tree of bridge " + bridge
	t := &STP{s: s, bridge: bridge}
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) (err error) {
		if err := t.letGo(); err != nil { // of the last time
			return err
		}
		if !b.STP() {
			return refused(what, "it is off", "switch it on with 'bascule bridge set "+bridge+" --stp rstp'")
		}
		t.again = func() (*datapath.Hold, error) { return holdSTP(b) }
		if t.hold, err = t.again(); err != nil {
			if errors.Is(err, datapath.ErrWatched) {
				return because(refused(what, "another process does already", "end that first"), err)
			}
			return err
		}
		t.seed = b.Config.HashSeed
		t.frames, err = b.OpenBPDUs()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, t.letGo())
	}
	return t, nil
}

// holdSTP tries a few times: who only looks whether somebody holds it is there
// for a moment, too.
func holdSTP(b *datapath.Bridge) (hold *datapath.Hold, err error) {
	for range 10 {
		hold, err = b.HoldFolder(datapath.WatchSTP)
		if !errors.Is(err, datapath.ErrWatched) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return hold, err
}

func (t *STP) letGo() error {
	if t.hold == nil {
		return nil
	}
	t.hold.Release(false)
	t.hold = nil
	if t.frames == nil {
		return nil
	}
	err := t.frames.Close()
	t.frames = nil
	return err
}

// Close gives the spanning tree back; the ports keep their states. A Read that
// waits returns os.ErrClosed.
func (t *STP) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.hold.Release(false)
	return t.frames.Close()
}

// Keep takes the spanning tree in hand again where what says that it is has been
// taken away. It is cheap where nothing has.
func (t *STP) Keep() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !t.hold.Lost() {
		return nil
	}
	hold, err := t.again()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the bridge has gone
	}
	if err != nil {
		return failed("run spanning tree of bridge "+t.bridge, err)
	}
	t.hold.Release(false)
	t.hold = hold
	return nil
}

// with runs f with the bridge, perhaps more than once if it is changed meanwhile.
func (t *STP) with(f func(*datapath.Bridge) error) error {
	what := "go on with spanning tree of bridge " + t.bridge
	return t.s.each(what, t.bridge, func(_ string, b *datapath.Bridge) error {
		switch {
		case b.Config.HashSeed != t.seed:
			return refused(what, "it has been made anew", "begin again")
		case !b.STP():
			return refused(what, "it has been switched off", "switch it on with 'bascule bridge set "+t.bridge+" --stp rstp'")
		}
		return f(b)
	})
}

// Bridge returns the bridge that the spanning tree is of.
func (t *STP) Bridge() (info Info, err error) {
	err = t.with(func(b *datapath.Bridge) error {
		info, err = describe(t.bridge, b)
		return err
	})
	return info, err
}

// Ports returns the bridge's ports in the order in which they were added,
// without span ports, which are no part of the tree. A Read that waits notices
// at once if spanning tree was switched off and on again.
func (t *STP) Ports() (list []STPPort, err error) {
	err = t.with(func(b *datapath.Bridge) error {
		if err := t.hear(b); err != nil {
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
			port := STPPort{
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
func (p *STPPort) look(e *ethtool.Ethtool, l netlink.Link) {
	const (
		fullDuplex   = 1          // DUPLEX_FULL of linux/ethtool.h
		speedUnknown = ^uint32(0) // SPEED_UNKNOWN
	)
	a := l.Attrs()
	p.Index, p.MAC = a.Index, a.HardwareAddr
	p.Up = a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0
	var settings ethtool.EthtoolCmd
	speed, err := e.CmdGet(&settings, a.Name)
	if err != nil {
		return // a device without such settings
	}
	p.FullDuplex = settings.Duplex == fullDuplex
	if speed != speedUnknown {
		p.SpeedMbit = speed
	}
}

// SetState gives a port a state, which is obeyed when it returns. The error is
// os.ErrNotExist where the port has left.
func (t *STP) SetState(id uint32, s STPState) error {
	return t.with(func(b *datapath.Bridge) error {
		err := b.SetSTPState(id, datapath.STPState(s))
		return gone(err, fmt.Sprintf("make port %d of bridge %s %s", datapath.Slot(id), t.bridge, s))
	})
}

// Flush forgets the addresses that were learned on a port; static and sticky
// addresses stay. The error is os.ErrNotExist if the port has left.
func (t *STP) Flush(id uint32) error {
	return t.with(func(b *datapath.Bridge) error {
		err := os.ErrNotExist
		if datapath.PortAt(&b.Config, id) != nil {
			_, err = b.Flush(datapath.Match{Port: id, Dynamic: true})
		}
		return gone(err, fmt.Sprintf("flush port %d of bridge %s", datapath.Slot(id), t.bridge))
	})
}

// gone says so where a port is not there any more.
func gone(err error, what string) error {
	if errors.Is(err, os.ErrNotExist) {
		return because(refused(what, "the port has left the bridge", "see 'bascule port show'"), err)
	}
	return failed(what, err)
}

// Read waits for a BPDU and returns the port that it came in by and the frame,
// at most 256 bytes from its Ethernet header on. It does not return BPDUs from
// before OpenSTP. The error is ctx's when ctx ends, os.ErrClosed after Close,
// and says so when the bridge has no spanning tree any more.
func (t *STP) Read(ctx context.Context) (id uint32, frame []byte, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, nil, err
		}
		t.mu.Lock()
		frames, closed := t.frames, t.closed
		t.mu.Unlock()
		if closed {
			return 0, nil, os.ErrClosed
		}
		stop := context.AfterFunc(ctx, func() { _ = frames.Wake() }) // fails if it is closed, which wakes too
		id, frame, err := frames.Read(time.Now().Add(stpLook))
		stop()
		switch {
		case err == nil:
			return id, slices.Clone(frame), nil
		case errors.Is(err, os.ErrClosed): // by Close, or because BPDUs come elsewhere now
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, nil, err
		default:
			if err := t.with(t.hear); err != nil {
				return 0, nil, err
			}
		}
	}
}

// hear has BPDUs read where they come now: that is another buffer when spanning
// tree was switched off and on again.
func (t *STP) hear(b *datapath.Bridge) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return os.ErrClosed
	}
	same, err := t.frames.Of(b)
	if err != nil || same {
		return err
	}
	frames, err := b.OpenBPDUs()
	if err != nil {
		return err
	}
	err = t.frames.Close()
	t.frames = frames
	return err
}

// Missed returns how many BPDUs found no room since OpenSTP, because nobody read
// in time.
func (t *STP) Missed() (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, os.ErrClosed
	}
	return t.frames.Missed()
}

// stpWaits is the consequence for a new port if nobody runs spanning tree.
const stpWaits = "the port neither takes nor gets frames until one does"

// warnNoAgent says what it means for a bridge, or for a new port, if nobody
// runs the spanning tree.
func warnNoAgent(b *datapath.Bridge, meaning string) []string {
	switch {
	case !b.STP() || b.Runs(datapath.WatchSTP):
		return nil
	case b.Held(datapath.WatchSTP):
		return []string{"the agent that runs the spanning tree is stopped: " + meaning + "; have it go on with 'kill -CONT'"}
	}
	return []string{"no agent runs the spanning tree: " + meaning + "; start 'bascule agent', unless one is there, which takes it up in a moment"}
}

// stpChoices ties the words for a port's cable to those of the datapath.
var stpChoices = map[string]datapath.STPChoice{Auto: datapath.STPAuto, On: datapath.STPOn, Off: datapath.STPOff}

func choiceOf(c datapath.STPChoice) string {
	for word, choice := range stpChoices {
		if choice == c {
			return word
		}
	}
	return Auto
}

func (c *PortConfig) loadSTP(p *datapath.Port) {
	c.STPCost, c.STPPriority = p.StpCost, uint8(p.StpPriority)
	c.STPEdge, c.STPPointToPoint = choiceOf(p.StpEdge), choiceOf(p.StpP2p)
	for guard, field := range guardFields(c) {
		*field = p.StpGuards&guard != 0
	}
}

func (c PortConfig) storeSTP(p *datapath.Port) {
	p.StpCost, p.StpPriority = c.STPCost, uint32(c.STPPriority)
	p.StpEdge, p.StpP2p = stpChoices[c.STPEdge], stpChoices[c.STPPointToPoint]
	for guard, field := range guardFields(&c) {
		setBits(&p.StpGuards, guard, *field)
	}
}

// guardFields ties the guards of spanning tree to their bits.
func guardFields(c *PortConfig) map[datapath.STPGuards]*bool {
	return map[datapath.STPGuards]*bool{
		datapath.STPBPDUGuard:  &c.BPDUGuard,
		datapath.STPBPDUFilter: &c.BPDUFilter,
		datapath.STPRootGuard:  &c.RootGuard,
	}
}

func (b *BridgeConfig) loadSTP(c *datapath.Config) {
	flags := datapath.BridgeFlags(c.Flags)
	switch {
	case flags&datapath.BridgeSTP == 0:
		b.STP = STPOff
	case flags&datapath.BridgeRSTP == 0:
		b.STP = STPClassic
	default:
		b.STP = STPRapid
	}
	b.STPPriority = c.StpPriority
	b.STPHello = time.Duration(c.StpHello) * time.Second
	b.STPMaxAge = time.Duration(c.StpMaxAge) * time.Second
	b.STPForwardDelay = time.Duration(c.StpForwardDelay) * time.Second
}

func (b BridgeConfig) storeSTP(c *datapath.Config) {
	c.Flags &^= uint32(datapath.BridgeSTP | datapath.BridgeRSTP)
	if b.STP != STPOff {
		c.Flags |= uint32(datapath.BridgeSTP)
	}
	if b.STP == STPRapid {
		c.Flags |= uint32(datapath.BridgeRSTP)
	}
	c.StpPriority = b.STPPriority
	c.StpHello = uint8(b.STPHello / time.Second)
	c.StpMaxAge = uint8(b.STPMaxAge / time.Second)
	c.StpForwardDelay = uint8(b.STPForwardDelay / time.Second)
}

// Stopped reports whether a process is stopped, by SIGSTOP or a debugger.
func Stopped(pid int) bool { return datapath.Stopped(pid) }
