// SPDX-License-Identifier: BSD-2-Clause

package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring sends the frames of a Stream through the ring of a packet socket, past the
// queueing discipline (PACKET_TX_RING and PACKET_QDISC_BYPASS, packet(7)). Every device
// accepts them. They are packet buffers, and each costs more than a frame of a
// Generator.
type Ring struct {
	stream  Stream
	fd      int
	memory  []byte
	slots   []slot
	shapes  []probeShape
	src     turn
	dst     turn
	shape   uint32
	ports   uint32
	fill    int // the slot to fill next
	out     int // the first slot that the kernel may not have taken yet
	filled  uint64
	dropped uint64 // frames dropped by a device without room
	sent    atomic.Uint64
	stopped atomic.Bool
}

// As for tpacket2_hdr of linux/if_packet.h: the frame follows the header.
const (
	slotSize  = 2048
	slotCount = 256
	headerLen = 32
	// statuses of a slot
	available   = 0
	sendRequest = 1
	wrongFormat = 4
)

// slot is one frame of the ring.
type slot struct {
	status *uint32
	length *uint32
	frame  []byte
}

// A turn varies one of the two addresses of frames.
type turn struct {
	Vary
	base [8]byte
	at   uint32
}

// next writes the next address, if it varies.
func (t *turn) next(mac []byte) {
	if t.Count == 0 {
		return
	}
	n := t.at
	if t.Random {
		n = rand.Uint32N(t.Count)
	} else if t.at++; t.at == t.Count {
		t.at = 0
	}
	var out [8]byte
	binary.BigEndian.PutUint64(out[:], binary.BigEndian.Uint64(t.base[:])+uint64(n))
	copy(mac[:6], out[2:])
}

func turnOf(v Vary) (t turn, err error) {
	if v.Count != 0 && len(v.Base) != 6 {
		return t, fmt.Errorf("%q is not an Ethernet address", v.Base)
	}
	t.Vary = v
	copy(t.base[2:], v.Base)
	return t, nil
}

// NewRing opens a ring on the stream's device, which is in the network
// namespace of the calling thread. Send may be called from any thread.
func NewRing(s Stream) (*Ring, error) {
	r := &Ring{stream: s, fd: -1}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("frame ring on device %d: %w", s.Ifindex, err), r.Close())
	}
	return r, nil
}

func (r *Ring) open() (err error) {
	s := r.stream
	if len(s.Frame) > slotSize-headerLen {
		return fmt.Errorf("a frame of %d bytes: at most %d fit", len(s.Frame), slotSize-headerLen)
	}
	if r.shapes, err = s.shapes(); err != nil {
		return err
	}
	if r.src, err = turnOf(s.Src); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if r.dst, err = turnOf(s.Dst); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	// With protocol 0 the socket receives nothing.
	if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	err = errors.Join(
		unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
		unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 4<<20),
		unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &unix.TpacketReq{
			Block_size: slotSize * slotCount, Block_nr: 1, Frame_size: slotSize, Frame_nr: slotCount,
		}),
	)
	if err != nil {
		return err
	}
	r.memory, err = unix.Mmap(r.fd, 0, slotSize*slotCount, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	for i := range slotCount {
		m := r.memory[i*slotSize:][:slotSize]
		copy(m[headerLen:], s.Frame)
		r.slots = append(r.slots, slot{
			status: (*uint32)(unsafe.Pointer(&m[0])),
			length: (*uint32)(unsafe.Pointer(&m[4])),
			frame:  m[headerLen:],
		})
	}
	return unix.Bind(r.fd, &unix.SockaddrLinklayer{Ifindex: s.Ifindex})
}

// Send makes n frames and returns when the device has received all, or quickly after
// Stop.
func (r *Ring) Send(n uint32) error {
	batch := int(r.stream.Batch)
	if batch == 0 {
		batch = Batch
	}
	begin := time.Now()
	until, first := r.filled+uint64(n), r.filled
	for r.filled < until && !r.stopped.Load() {
		burst := min(uint64(batch), until-r.filled)
		if r.stream.Rate != 0 {
			due := uint64(time.Since(begin).Seconds() * float64(r.stream.Rate))
			if due <= r.filled-first {
				// Shorter than a burst at any rate of interest.
				time.Sleep(20 * time.Microsecond)
				continue
			}
			burst = min(burst, due-(r.filled-first))
		}
		for range burst {
			if err := r.put(); err != nil {
				return r.failed(err)
			}
		}
		if err := r.flush(); err != nil {
			return r.failed(err)
		}
	}
	return nil
}

func (r *Ring) failed(err error) error {
	return fmt.Errorf("frame ring on device %d: %w", r.stream.Ifindex, err)
}

// put makes the next frame, in a free slot.
func (r *Ring) put() error {
	s := &r.slots[r.fill]
	for atomic.LoadUint32(s.status) != available {
		if r.stopped.Load() {
			return nil
		}
		if atomic.LoadUint32(s.status) == wrongFormat {
			return errors.New("the kernel does not take the frame")
		}
		// The slot's frame is still on its way to a receiver.
		if err := r.flush(); err != nil {
			return err
		}
	}
	size := len(r.stream.Frame)
	if len(r.shapes) > 0 {
		shape := r.shapes[r.shape]
		r.shape = (r.shape + 1) % uint32(len(r.shapes))
		size = int(shape.Len)
		binary.NativeEndian.PutUint16(s.frame[ipAt+2:], shape.IpLen)
		binary.NativeEndian.PutUint16(s.frame[checkAt:], shape.IpCheck)
		binary.NativeEndian.PutUint16(s.frame[udpAt+4:], shape.UdpLen)
	}
	if r.stream.Ports > 0 {
		from, to := s.frame[udpAt:], s.frame[udpAt+2:]
		if r.stream.Answers {
			from, to = to, from
		}
		binary.BigEndian.PutUint16(from, uint16(firstPort+r.ports%ports))
		binary.BigEndian.PutUint16(to, uint16(firstPort+r.ports/ports))
		r.ports = (r.ports + 1) % r.stream.Ports
	}
	if r.stream.Hosts > 0 {
		at := sourceAt
		if r.stream.HostsTo {
			at = destinationAt
		}
		binary.BigEndian.PutUint32(s.frame[at:], r.stream.firstHost()+rand.Uint32N(r.stream.Hosts))
		binary.BigEndian.PutUint16(s.frame[checkAt:], checksum(s.frame[ipAt:udpAt]))
	}
	r.dst.next(s.frame)
	r.src.next(s.frame[6:])
	*s.length = uint32(size)
	atomic.StoreUint32(s.status, sendRequest)
	r.fill = (r.fill + 1) % slotCount
	r.filled++
	return nil
}

// flush has the kernel send the frames that were put.
func (r *Ring) flush() error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(r.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		for r.sent.Load()-r.dropped < r.filled && atomic.LoadUint32(r.slots[r.out].status) != sendRequest {
			r.out = (r.out + 1) % slotCount
			r.sent.Add(1)
		}
		switch errno {
		case 0, unix.EAGAIN, unix.EINTR:
		case unix.ENOBUFS:
			// The device had no room. The kernel keeps the slot, and sends its frame
			// again.
			r.dropped++
			r.sent.Add(1)
		default:
			return errno
		}
		if r.sent.Load()-r.dropped == r.filled || r.stopped.Load() {
			return nil
		}
	}
}

// Stop makes a running Send return, and every later one do nothing.
func (r *Ring) Stop() error {
	r.stopped.Store(true)
	return nil
}

// Sent returns the number of frames handed to the device so far. The device may have
// had no room for some of them.
func (r *Ring) Sent() (uint64, error) { return r.sent.Load(), nil }

// Close ends the ring.
func (r *Ring) Close() error {
	var errs []error
	if r.memory != nil {
		errs = append(errs, unix.Munmap(r.memory))
		r.memory, r.slots = nil, nil
	}
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
		r.fd = -1
	}
	return errors.Join(errs...)
}
