// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"encoding/binary"
	"fmt"
)

// MAC is an Ethernet address.
type MAC [6]byte

// Broadcast is the address of every station.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Station returns the n-th address of a set of made-up stations: locally administered, unicast,
// and different from all ends' addresses.
func Station(n int) MAC {
	return MAC{0x02, 0x57, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// Group returns the n-th of a set of made-up multicast addresses.
func Group(n int) MAC {
	return MAC{0x03, 0x57, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

const (
	typeData   = 0x88b5 // IEEE 802 local experimental ethertype 1, of the tests' frames
	typeMarker = 0x88b6 // local experimental ethertype 2, of the lab's own markers
	typeVLAN   = 0x8100
	typeQinQ   = 0x88a8 // EtherType of a service tag

	headerLen = 14
	tagLen    = 4
	minLen    = 60 // bytes of the smallest Ethernet frame, without its checksum
)

// Frame is an Ethernet frame without its checksum. It includes a tag that the kernel stores
// outside the packet.
type Frame string

// NewFrame makes a frame of size bytes that contains a number. Smaller sizes than the smallest
// frame's are padded to it.
func NewFrame(dst, src MAC, number uint32, size int) Frame {
	return newFrame(dst, src, typeData, number, size)
}

func newFrame(dst, src MAC, ethertype uint16, number uint32, size int) Frame {
	b := make([]byte, max(size, minLen))
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], ethertype)
	binary.BigEndian.PutUint32(b[headerLen:], number)
	for i := headerLen + 4; i < len(b); i++ {
		b[i] = byte(i) ^ byte(number)
	}
	return Frame(b)
}

// Tagged returns the frame with an 802.1Q tag in front of its EtherType: a VLAN, 0 to 4095, and
// a priority, 0 to 7.
func (f Frame) Tagged(vlan uint16, priority uint8) Frame {
	return f.withTag(typeVLAN, uint16(priority)<<13|vlan)
}

// ServiceTagged returns the frame with an 802.1ad service tag in front of its EtherType.
func (f Frame) ServiceTagged(vlan uint16) Frame { return f.withTag(typeQinQ, vlan) }

func (f Frame) withTag(tpid, tci uint16) Frame {
	tag := make([]byte, 0, tagLen)
	tag = binary.BigEndian.AppendUint16(tag, tpid)
	tag = binary.BigEndian.AppendUint16(tag, tci)
	return f[:12] + Frame(tag) + f[12:]
}

// Dst is the destination address.
func (f Frame) Dst() MAC { return MAC([]byte(f[:6])) }

// Src is the source address.
func (f Frame) Src() MAC { return MAC([]byte(f[6:12])) }

func (f Frame) ethertype() uint16 { return f.uint16(12) }

func (f Frame) uint16(at int) uint16 { return uint16(f[at])<<8 | uint16(f[at+1]) }

func (f Frame) uint32(at int) uint32 {
	return uint32(f.uint16(at))<<16 | uint32(f.uint16(at+2))
}

func (f Frame) String() string {
	if len(f) < headerLen {
		return fmt.Sprintf("runt of %d bytes", len(f))
	}
	s := fmt.Sprintf("%s > %s", f.Src(), f.Dst())
	rest := f
	if f.ethertype() == typeVLAN && len(f) >= headerLen+tagLen {
		s += fmt.Sprintf(" vlan %d prio %d", f.uint16(14)&0xfff, f.uint16(14)>>13)
		rest = f[tagLen:]
	}
	if rest.ethertype() == typeData && len(rest) >= minLen {
		return fmt.Sprintf("%s #%d, %d bytes", s, rest.uint32(headerLen), len(f))
	}
	return fmt.Sprintf("%s type %#04x, %d bytes", s, rest.ethertype(), len(f))
}
