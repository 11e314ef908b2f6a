// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"os"
	"time"

	"bascule/datapath"
)

// STPState is a port's state in spanning tree. A Control sets it, and the datapath obeys it.
type STPState uint32

// The states of a port (IEEE 802.1D-2004 7.4).
const (
	STPForwarding STPState = STPState(datapath.STPForwarding)
	STPDiscarding STPState = STPState(datapath.STPDiscarding) // no frames in or out, no learning
	STPLearning   STPState = STPState(datapath.STPLearning)   // no frames in or out, learns addresses
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

// withSTP does the same as with for a bridge with spanning tree.
func (c *Control) withSTP(f func(*datapath.Bridge) error) error {
	return c.with(func(b *datapath.Bridge) error {
		if !b.STP() {
			return c.switchedOff(ProtocolSTP)
		}
		return f(b)
	})
}

// SetState sets a port's state. When it returns, the state applies to all frames. The error is
// os.ErrNotExist if the port has been removed.
func (c *Control) SetState(id uint32, s STPState) error {
	return c.withSTP(func(b *datapath.Bridge) error {
		err := b.SetSTPState(id, datapath.STPState(s))
		return gone(err, fmt.Sprintf("make port %d of bridge %s %s", datapath.Slot(id), c.bridge, s))
	})
}

// Flush removes the learned addresses of a port; static and sticky addresses stay. The error is
// os.ErrNotExist if the port has been removed.
func (c *Control) Flush(id uint32) error {
	return c.withSTP(func(b *datapath.Bridge) error {
		err := os.ErrNotExist
		if datapath.PortAt(&b.Config, id) != nil {
			_, err = b.Flush(datapath.Match{Port: id, Dynamic: true})
		}
		return gone(err, fmt.Sprintf("flush port %d of bridge %s", datapath.Slot(id), c.bridge))
	})
}

// gone returns an error for an object that does not exist any more.
func gone(err error, what string) error {
	if errors.Is(err, os.ErrNotExist) {
		return because(refused(what, "the port has left the bridge", "see 'bascule port show'"), err)
	}
	return failed(what, err)
}

// stpWaits is the consequence for a new port if no process runs spanning tree.
func stpWaits(port string) string {
	return "port " + port + " neither receives nor sends frames until one does"
}

// warnNoAgent returns a warning if no process runs spanning tree. meaning is the consequence for
// the bridge, or for a new port.
func warnNoAgent(b *datapath.Bridge, meaning string) []string {
	switch {
	case !b.STP() || b.Runs(datapath.WatchControl):
		return nil
	case b.Held(datapath.WatchControl):
		return []string{"the agent that runs the spanning tree is stopped: " + meaning + "; resume it with 'kill -CONT'"}
	}
	return []string{"no agent runs the spanning tree: " + meaning + "; start 'bascule agent', unless it is about to take over"}
}

// stpChoices maps the words for a port's cable to the datapath's values.
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

// guardFields connects the guards of spanning tree with their bits.
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

// Waited describes the process that another one waits for, which is 0 if unknown.
func Waited(process int) string {
	switch {
	case process == 0:
		return "another process"
	case Stopped(process):
		return fmt.Sprintf("process %d, which is stopped (SIGCONT lets it go on)", process)
	}
	return fmt.Sprintf("process %d", process)
}

// Stopped reports whether a process is stopped, by SIGSTOP or a debugger.
func Stopped(pid int) bool { return datapath.Stopped(pid) }
