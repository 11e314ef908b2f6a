// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// bpduRing is the size of the buffer of BPDUs, in bytes: more than 200.
const bpduRing = 64 << 10

// STPState is a port's state in spanning tree.
type STPState = kernelStpState

// The states.
const (
	STPForwarding = kernelStpStateSTP_FORWARDING
	STPDiscarding = kernelStpStateSTP_DISCARDING
	STPLearning   = kernelStpStateSTP_LEARNING
)

// STPChoice is a setting of spanning tree about a port's cable.
type STPChoice = kernelStpChoice

// The choices.
const (
	STPAuto = kernelStpChoiceSTP_AUTO
	STPOn   = kernelStpChoiceSTP_ON
	STPOff  = kernelStpChoiceSTP_OFF
)

// stp reports whether a configuration has spanning tree.
func stp(c *Config) bool { return BridgeFlags(c.Flags)&BridgeSTP != 0 }

// STP reports whether the bridge has spanning tree: its ports have states then,
// and BPDUs are handed over.
func (b *Bridge) STP() bool { return stp(&b.Config) }

// stateWord is a state of the port as the datapath has it.
func stateWord(p *Port, s STPState) uint64 { return uint64(p.Id)<<32 | uint64(s) }

// firstState is that of a new port: nobody knows yet where its cable leads. A host
// port's leads to the host alone.
func firstState(p *Port) STPState {
	if p.Notes&PortHost != 0 || p.Facts&PortSpan != 0 {
		return STPForwarding
	}
	return STPDiscarding
}

// startStates lets the new ports of c begin, before a frame comes: without the
// blocks of former tenants of their slots, and in their first state of spanning
// tree. Where that begins, ports that are there go on forwarding. It returns
// the former contents of the table, for putStates.
func (b *Bridge) startStates(c *Config, g *generation) (was map[uint32]kernelPortState, err error) {
	m := g.coll.Maps[kernelMapPortStates]
	was = map[uint32]kernelPortState{}
	for _, p := range tenants(c) {
		var old kernelPortState
		if err := m.Lookup(Slot(p.Id), &old); err != nil {
			return was, err
		}
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
		if err := m.Put(Slot(p.Id), next); err != nil {
			return was, err
		}
	}
	return was, nil
}

// putStates puts back the former contents of the table of states.
func (g *generation) putStates(was map[uint32]kernelPortState) {
	for slot, state := range was {
		_ = g.coll.Maps[kernelMapPortStates].Put(slot, state) // as it was put before
	}
}

// mendStates gives first states to ports in whose slots a command that was
// killed had already begun to put others.
func (b *Bridge) mendStates() error {
	m, err := b.openTable(kernelMapPortStates)
	if err != nil {
		return err
	}
	defer m.Close()
	for _, p := range tenants(&b.Config) {
		var state kernelPortState
		if err := m.Lookup(Slot(p.Id), &state); err != nil {
			return err
		}
		if uint32(state.Stp>>32) == p.Id {
			continue
		}
		if err := m.Put(Slot(p.Id), kernelPortState{Stp: stateWord(p, firstState(p))}); err != nil {
			return err
		}
	}
	return nil
}

// STPStates returns the states of ports by slot; all forward where there is no
// spanning tree.
func (b *Bridge) STPStates() ([]STPState, error) {
	states := make([]STPState, len(b.Config.Ports))
	if !b.STP() {
		return states, nil
	}
	m, err := b.openTable(kernelMapPortStates)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	for _, p := range Ports(&b.Config) {
		var state kernelPortState
		if err := m.Lookup(Slot(p.Id), &state); err != nil {
			return nil, err
		}
		states[Slot(p.Id)] = STPState(uint32(state.Stp))
	}
	return states, nil
}

// SetSTPState gives a port a state. Every frame that comes after it returns
// obeys the state; remembered decisions are forgotten. The error is
// os.ErrNotExist if the port has left.
func (b *Bridge) SetSTPState(id uint32, s STPState) error {
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_STP, Port: id, Word: uint64(s)})
	if errors.Is(err, unix.ENOENT) {
		return os.ErrNotExist
	}
	return err
}

// BPDUs reads the BPDUs that come in at a bridge. One reader only: two would take
// frames from each other.
type BPDUs struct {
	ring   *ringbuf.Reader
	id     ebpf.MapID
	states *ebpf.Map
	before uint64 // missed before it was opened
	record ringbuf.Record
}

// OpenBPDUs opens the BPDUs that come in from now on. It lasts beyond changes of
// the bridge's configuration, as long as it has spanning tree.
func (b *Bridge) OpenBPDUs() (*BPDUs, error) {
	m, err := b.openTable(kernelMapControlFrames)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	id, err := mapID(m)
	if err != nil {
		return nil, err
	}
	states, err := b.openTable(kernelMapPortStates)
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(m)
	if err != nil {
		states.Close()
		return nil, fmt.Errorf("read BPDUs: %w", err)
	}
	r := &BPDUs{ring: ring, id: id, states: states}
	// what came while nobody read is old news
	for range bpduRing / int(unsafe.Sizeof(kernelBpdu{})) {
		if _, _, err := r.Read(time.Now()); err != nil {
			break
		}
	}
	if r.before, err = r.sum(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("the kernel gives maps no numbers")
	}
	return id, nil
}

// Of reports whether b hands its BPDUs to r: it does until spanning tree is
// switched off.
func (r *BPDUs) Of(b *Bridge) (bool, error) {
	m, err := b.openTable(kernelMapControlFrames)
	if err != nil {
		return false, err
	}
	defer m.Close()
	id, err := mapID(m)
	return id == r.id, err
}

// Close ends the reading; Read returns os.ErrClosed.
func (r *BPDUs) Close() error { return errors.Join(r.ring.Close(), r.states.Close()) }

// Wake ends a Read that waits, or the next, as if its deadline had passed.
func (r *BPDUs) Wake() error { return r.ring.Flush() }

// Read returns the id of a port and the frame that came in by it, at most 256
// bytes, waiting for one until the deadline; then the error is
// os.ErrDeadlineExceeded. The frame is good until the next call.
func (r *BPDUs) Read(deadline time.Time) (port uint32, frame []byte, err error) {
	r.ring.SetDeadline(deadline)
	err = r.ring.ReadInto(&r.record)
	if errors.Is(err, ringbuf.ErrFlushed) {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		return 0, nil, err
	}
	const head = int(unsafe.Offsetof(kernelBpdu{}.Data))
	raw := r.record.RawSample
	if len(raw) < head {
		return 0, nil, fmt.Errorf("a BPDU of %d bytes", len(raw))
	}
	port = binary.NativeEndian.Uint32(raw)
	length := min(uint64(binary.NativeEndian.Uint32(raw[4:])), uint64(len(raw)-head), uint64(len(kernelBpdu{}.Data)))
	return port, raw[head : head+int(length)], nil
}

// Missed returns how many BPDUs found no room since r was opened, because
// nobody read in time.
func (r *BPDUs) Missed() (uint64, error) {
	sum, err := r.sum()
	return sum - r.before, err
}

func (r *BPDUs) sum() (n uint64, err error) {
	var all kernelPortState
	err = r.states.Lookup(uint32(0), &all)
	return all.Stp, err
}
