// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// STPState is a port's state in spanning tree.
type STPState = kernelStpState

// The states.
const (
	STPForwarding = kernelStpStateSTP_FORWARDING
	STPDiscarding = kernelStpStateSTP_DISCARDING
	STPLearning   = kernelStpStateSTP_LEARNING
)

// STPChoice is a setting of a port's link, for spanning tree.
type STPChoice = kernelStpChoice

// The choices.
const (
	STPAuto = kernelStpChoiceSTP_AUTO
	STPOn   = kernelStpChoiceSTP_ON
	STPOff  = kernelStpChoiceSTP_OFF
)

// stp reports whether a configuration runs spanning tree.
func stp(c *Config) bool { return BridgeFlags(c.Flags)&BridgeSTP != 0 }

// STP reports whether the bridge runs spanning tree. If so, its ports have states, and
// BPDUs are handed up.
func (b *Bridge) STP() bool { return stp(&b.Config) }

// stateWord is a port's state in the datapath's form.
func stateWord(p *Port, s STPState) uint64 { return uint64(p.Id)<<32 | uint64(s) }

// firstState returns the state of a new port: it is not known yet where its cable
// leads. A host port's cable leads to the host only.
func firstState(p *Port) STPState {
	if p.Notes&PortHost != 0 || p.Facts&PortSpan != 0 {
		return STPForwarding
	}
	return STPDiscarding
}

// startStates gives the new ports of c their first states, before a frame comes:
// without the blocks of former tenants of their slots, and with their first state of
// spanning tree. If spanning tree begins with c, present ports go on forwarding. It
// returns the former contents of the table, for putStates.
func (b *Bridge) startStates(c *Config, g *generation) (was map[uint32]kernelPortState, err error) {
	was = map[uint32]kernelPortState{}
	return was, g.shared(func(s *kernelShared) {
		for _, p := range tenants(c) {
			old := s.PortStates[Slot(p.Id)]
			var next kernelPortState
			switch {
			case TenantAt(&b.Config, p.Id) == nil || Vacant(p):
				next.Stp = stateWord(p, firstState(p))
			case stp(c) && !b.STP():
				next = old // its loop guard may block it
				next.Stp = stateWord(p, STPForwarding)
			default:
				continue
			}
			was[Slot(p.Id)] = old
			s.PortStates[Slot(p.Id)] = next
		}
	})
}

// putStates restores the former contents of the table of states.
func (g *generation) putStates(was map[uint32]kernelPortState) {
	_ = g.shared(func(s *kernelShared) { // it succeeded before
		for slot, state := range was {
			s.PortStates[slot] = state
		}
	})
}

// mendStates gives first states to the ports whose slots a killed command had begun to
// give to other ports.
func (b *Bridge) mendStates() error {
	return b.shared(func(s *kernelShared) {
		for _, p := range tenants(&b.Config) {
			if state := &s.PortStates[Slot(p.Id)]; uint32(state.Stp>>32) != p.Id {
				*state = kernelPortState{Stp: stateWord(p, firstState(p))}
			}
		}
	})
}

// STPStates returns the states of ports by slot; all forward if there is no spanning
// tree.
func (b *Bridge) STPStates() ([]STPState, error) {
	states := make([]STPState, len(b.Config.Ports))
	if !b.STP() {
		return states, nil
	}
	return states, b.shared(func(s *kernelShared) {
		for _, p := range Ports(&b.Config) {
			states[Slot(p.Id)] = STPState(uint32(s.PortStates[Slot(p.Id)].Stp))
		}
	})
}

// SetSTPState sets the state of a port. Every frame that comes after it returns obeys
// the state, as remembered decisions are dropped. The error is os.ErrNotExist if the
// port has left.
func (b *Bridge) SetSTPState(id uint32, s STPState) error {
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_STP, Port: id, Word: uint64(s)})
	if errors.Is(err, unix.ENOENT) {
		return os.ErrNotExist
	}
	return err
}
