// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// A Packet is a frame, with the number of its bytes in the kernel's first buffer: some drivers
// put the headers into one buffer, and the rest into pages. A program on a tcx hook can access
// only the first buffer without a helper.
type Packet struct {
	Frame  []byte
	Linear int // at least headerLen
	// Sum is the place of an unfinished checksum, if its Start is not 0. It covers the
	// bytes from Start to the end, and is written Offset bytes behind Start.
	Sum struct{ Start, Offset int }
	// Claim is the header that the sender attaches to the packet instead, right or wrong.
	Claim *Claim
}

// A Claim is a header of virtio (1.2, 5.1.6, with the fields of 1.4 for tunnels), which a tap's
// program puts in front of a packet.
type Claim struct {
	Flags, GSO                  byte
	Header, Size, Start, Offset int
	Outer, Inner                int // the places of a tunnel's UDP header and of the packet in it
}

// Bits of Claim.Flags and values of Claim.GSO (linux/virtio_net.h).
const (
	ClaimNeedsCsum = 1

	ClaimGSOTCPv4, ClaimGSOUDP, ClaimGSOTCPv6, ClaimGSOUDPL4 = 1, 3, 4, 5
	ClaimGSOTunnel4, ClaimGSOTunnel6, ClaimGSOECN            = 0x20, 0x40, 0x80
)

// pieces returns the largest number of packets that the kernel makes of it.
func (p Packet) pieces() int {
	if p.Claim == nil || p.Claim.GSO == 0 || p.Claim.Size == 0 {
		return 1
	}
	return len(p.Frame)/p.Claim.Size + 1
}

// vnet returns the header in front of the packet, of size bytes.
func (p Packet) vnet(size int) []byte {
	c := p.Claim
	if c == nil {
		c = &Claim{Header: p.Linear}
		if p.Sum.Start > 0 {
			c.Flags, c.Start, c.Offset = ClaimNeedsCsum, p.Sum.Start, p.Sum.Offset
		}
	}
	v := append(make([]byte, 0, vnetTunnelHeader), c.Flags, c.GSO)
	for _, field := range []int{c.Header, c.Size, c.Start, c.Offset, 0, 0, 0, 0, 0, c.Outer, c.Inner} {
		v = binary.NativeEndian.AppendUint16(v, uint16(field))
	}
	return v[:size]
}

// Unfinished returns the packet from which a device with checksum offload makes the frame. The
// packet has the bytes other at offset at, which the checksum of the bytes from start on
// replaces. Two bytes at the end of the frame are chosen so that this is right. ok is false if
// no such packet exists: a checksum is not 0.
func Unfinished(frame []byte, at int, other [2]byte, start int) (p Packet, becomes []byte, ok bool) {
	if start%2 != len(frame)%2 {
		frame = append(slices.Clone(frame), 0)
	}
	frame = append(slices.Clone(frame), 0, 0)
	want := [2]byte(frame[at:])
	tail := len(frame) - 2
	p = Packet{Frame: slices.Clone(frame), Linear: len(frame)}
	copy(p.Frame[at:], other[:])
	p.Sum.Start, p.Sum.Offset = start, at-start
	sum := uint32(^binary.BigEndian.Uint16(want[:])) + uint32(checksum(0, p.Frame[start:]))
	binary.BigEndian.PutUint16(p.Frame[tail:], uint16(sum>>16+sum&0xffff))
	copy(frame[tail:], p.Frame[tail:])
	return p, frame, want != [2]byte{} && at < tail-1
}

// A Ring sends packets from an end, many with one system call. Their pages belong to the ring:
// see Send.
type Ring struct {
	end   *End
	fd    int
	slots []byte
	next  int // the next slot that the kernel reads
}

// The ring: a slot has room for the largest packet, and is a page.
const (
	ringSlot   = 2048
	ringSlots  = 64 // fewer than a veth in NAPI mode queues
	ringBlocks = ringSlots * ringSlot / ringBlock
	ringBlock  = 1 << 16
	// The data follows tpacket2_hdr: a virtio_net_hdr and the frame.
	ringData = 32
)

// Offsets in struct tpacket2_hdr, and a state (linux/if_packet.h).
const (
	ringStatus, ringLength = 0, 4

	ringSend = 1 // TP_STATUS_SEND_REQUEST
)

// LargestPacket is the size of the largest frame that a Ring sends.
const LargestPacket = ringSlot - ringData - vnetHeader

// NewRing makes a ring at the end of a cable.
func (e *End) NewRing() *Ring {
	e.lab.t.Helper()
	r := &Ring{end: e, fd: -1}
	e.lab.t.Cleanup(r.close)
	e.lab.must(e.Namespace.Do(func() (err error) {
		if r.fd, err = sendSocket(); err != nil {
			return err
		}
		request := unix.TpacketReq{Block_size: ringBlock, Block_nr: ringBlocks, Frame_size: ringSlot, Frame_nr: ringSlots}
		err = errors.Join(
			unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
			unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &request),
			// no protocol: it does not receive
			unix.Bind(r.fd, &unix.SockaddrLinklayer{Ifindex: e.Ifindex}),
			unix.SetNonblock(r.fd, false),
		)
		if err == nil {
			r.slots, err = unix.Mmap(r.fd, 0, ringSlots*ringSlot, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			return fmt.Errorf("ring of %s: %w", e.Ifname, err)
		}
		return nil
	}))
	return r
}

func (r *Ring) close() {
	if r.slots != nil {
		unix.Munmap(r.slots)
	}
	if r.fd >= 0 {
		unix.Close(r.fd)
	}
}

// Send sends packets and returns when the switch has finished them. After each round of slots
// it waits until the packets have arrived, and calls took, which must read them from the
// sockets. The kernel marks a slot as free when the packet has left the end, but the packet
// still uses the pages of the slot.
func (r *Ring) Send(packets []Packet, took func()) {
	l := r.end.lab
	l.t.Helper()
	for len(packets) > 0 {
		n := min(ringSlots, len(packets))
		l.must(onCPU(l.cpu, func() error { return r.send(packets[:n]) }))
		packets = packets[n:]
		// as many rounds as there are steps between two ends
		l.mark()
		l.mark()
		took()
	}
}

func (r *Ring) send(packets []Packet) error {
	for _, p := range packets {
		slot := r.slots[r.next*ringSlot : (r.next+1)*ringSlot]
		r.next = (r.next + 1) % ringSlots
		if len(p.Frame) > LargestPacket || p.Linear < headerLen || p.Linear > len(p.Frame) {
			return fmt.Errorf("no packet for a ring: %d bytes, %d linear", len(p.Frame), p.Linear)
		}
		copy(slot[ringData:], p.vnet(vnetHeader))
		copy(slot[ringData+vnetHeader:], p.Frame)
		binary.NativeEndian.PutUint32(slot[ringLength:], uint32(vnetHeader+len(p.Frame)))
		binary.NativeEndian.PutUint32(slot[ringStatus:], ringSend)
	}
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(r.fd), 0, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("send %d packets from %s: %w", len(packets), r.end.Ifname, errno)
	}
	return nil
}
