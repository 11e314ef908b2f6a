// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// controlRing is the size of the buffer of control frames, in bytes: it has room for
// more than 200 frames as short as BPDUs.
const controlRing = 64 << 10

// ControlProtocol is a protocol whose frames a bridge takes, for the process that runs
// it.
type ControlProtocol = kernelControlProtocol

// The control protocols.
const (
	ControlSTP = kernelControlProtocolPROTOCOL_STP
	ControlEnd = kernelControlProtocolCONTROL_PROTOCOLS // no protocol has this number, or one above it
)

// controlProtocols has every control protocol, in one row each.
var controlProtocols = []struct {
	protocol ControlProtocol
	on       func(*Config) bool // reports whether a bridge takes its frames
}{
	{ControlSTP, stp},
}

// ControlProtocols returns the protocols whose frames the bridge takes.
func (b *Bridge) ControlProtocols() []ControlProtocol { return protocolsOf(&b.Config) }

func protocolsOf(c *Config) (list []ControlProtocol) {
	for _, p := range controlProtocols {
		if p.on(c) {
			list = append(list, p.protocol)
		}
	}
	return list
}

// control reports whether a bridge takes frames of any control protocol.
func control(c *Config) bool { return len(protocolsOf(c)) > 0 }

// A ControlFrame is a frame of a control protocol that came in.
type ControlFrame struct {
	Protocol ControlProtocol
	Port     uint32 // id
	Length   int    // bytes that the frame had; Bytes may lack the last of them
	Bytes    []byte // from its Ethernet header on, with its tags
}

// ControlFrames reads the frames of control protocols that come in at a bridge. There
// can be one reader only: two would take frames from each other.
type ControlFrames struct {
	ring   *ringbuf.Reader
	id     ebpf.MapID
	shared *ebpf.Map
	before kernelClock // the clock when the reader was opened
	record ringbuf.Record
}

// OpenControlFrames opens the control frames that come in from now on. The reader stays
// valid after changes of the bridge's configuration, as long as the bridge takes such
// frames.
func (b *Bridge) OpenControlFrames() (*ControlFrames, error) {
	m, err := b.openTable(kernelMapControlFrames)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	id, err := mapID(m)
	if err != nil {
		return nil, err
	}
	shared, err := b.openTable(kernelMapShared)
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(m)
	if err != nil {
		shared.Close()
		return nil, fmt.Errorf("read control frames: %w", err)
	}
	r := &ControlFrames{ring: ring, id: id, shared: shared}
	// Frames that came before there was a reader are out of date.
	for range controlRing / int(unsafe.Offsetof(kernelControlFrame{}.Data)) {
		if _, err := r.Read(time.Now()); err != nil {
			break
		}
	}
	if err := withShared(shared, func(s *kernelShared) { r.before = s.Clock }); err != nil {
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

// Of reports whether b hands its control frames to r. It does so until the last control
// protocol is switched off.
func (r *ControlFrames) Of(b *Bridge) (bool, error) {
	m, err := b.openTable(kernelMapControlFrames)
	if err != nil {
		return false, err
	}
	defer m.Close()
	id, err := mapID(m)
	return id == r.id, err
}

// Close ends the reading; Read returns os.ErrClosed.
func (r *ControlFrames) Close() error { return errors.Join(r.ring.Close(), r.shared.Close()) }

// Wake ends a Read that waits, or the next, as if its deadline had passed.
func (r *ControlFrames) Wake() error { return r.ring.Flush() }

// Read returns the next frame, waiting for one until the deadline; then the error
// is os.ErrDeadlineExceeded. The frame is good until the next call.
func (r *ControlFrames) Read(deadline time.Time) (ControlFrame, error) {
	r.ring.SetDeadline(deadline)
	err := r.ring.ReadInto(&r.record)
	if errors.Is(err, ringbuf.ErrFlushed) {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		return ControlFrame{}, err
	}
	return controlFrame(r.record.RawSample)
}

// controlFrame reads a struct control_frame. The record may contain only a part of the
// data.
func controlFrame(raw []byte) (ControlFrame, error) {
	var f kernelControlFrame
	const head = int(unsafe.Offsetof(f.Data))
	if len(raw) < head {
		return ControlFrame{}, fmt.Errorf("a control frame of %d bytes", len(raw))
	}
	word := func(at uintptr) uint32 { return binary.NativeEndian.Uint32(raw[at:]) }
	half := func(at uintptr) uint16 { return binary.NativeEndian.Uint16(raw[at:]) }
	c := ControlFrame{
		Port: word(unsafe.Offsetof(f.Port)), Protocol: ControlProtocol(word(unsafe.Offsetof(f.Protocol))),
		Length: int(word(unsafe.Offsetof(f.Len))),
	}
	c.Bytes = raw[head : head+min(c.Length, len(raw)-head)]
	if kind := half(unsafe.Offsetof(f.TagType)); kind != 0 && len(c.Bytes) >= macPair {
		tag := binary.NativeEndian.AppendUint16(nil, kind)
		tag = binary.BigEndian.AppendUint16(tag, half(unsafe.Offsetof(f.Tag)))
		c.Bytes = slices.Concat(c.Bytes[:macPair], tag, c.Bytes[macPair:])
		c.Length += len(tag)
	}
	return c, nil
}

// doubtPin is a folder that marks the state that a process has left for the next one
// that runs a protocol, by the protocol's number, as out of date. The folder takes no
// room on any disk.
func (b *Bridge) doubtPin(p ControlProtocol) string { return b.pin(fmt.Sprintf("doubt-%d", p)) }

// DoubtControl notes, for the next process that runs the protocol, that the state that
// this one has left is out of date, or with false that it is current again.
func (b *Bridge) DoubtControl(p ControlProtocol, on bool) error {
	if on {
		if err := os.Mkdir(b.doubtPin(p), 0o700); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	if err := os.Remove(b.doubtPin(p)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ControlDoubted reports the last value that was given to DoubtControl.
func (b *Bridge) ControlDoubted(p ControlProtocol) (bool, error) {
	_, err := os.Stat(b.doubtPin(p))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// macPair is how many bytes of a frame come before its tag.
const macPair = 12

// Missed returns how many frames of a protocol found no room since r was opened, because
// the reader was late or a port had too many.
func (r *ControlFrames) Missed(p ControlProtocol) (uint64, error) {
	var now kernelClock
	if err := withShared(r.shared, func(s *kernelShared) { now = s.Clock }); err != nil {
		return 0, err
	}
	if int(p) >= len(now.Missed) {
		return 0, fmt.Errorf("no control protocol has number %d", p)
	}
	return now.Missed[p] - r.before.Missed[p], nil
}
