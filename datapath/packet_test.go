// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"cmp"
	"encoding/binary"
	"testing"
)

type mac = [6]byte

var broadcast = mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// station returns the n-th of a set of made-up unicast addresses.
func station(n int) mac {
	return mac{0x02, 0xda, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// group returns the n-th of a set of made-up multicast addresses.
func group(n int) mac {
	m := station(n)
	m[0] |= 1
	return m
}

// reserved returns 01:80:C2:00:00:0n.
func reserved(n int) mac { return mac{0x01, 0x80, 0xc2, 0, 0, byte(n)} }

const (
	typeTest = 0x88b5 // IEEE 802 local experimental ethertype 1
	typeVLAN = 0x8100 // 802.1Q, customer tag
	typeQinQ = 0x88a8 // 802.1ad, service tag

	etherHeader = 14
	etherTag    = 4
	smallest    = 60 // frame, without its checksum
)

// A packet is a frame to be built. A size of zero means the smallest frame.
type packet struct {
	dst, src mac
	tags     []tag  // the outer one first
	size     int    // bytes, including header and tags; less truncates the frame
	typ      uint16 // EtherType; 0 is typeTest
}

type tag struct {
	tpid uint16
	vid  uint16
	prio uint16
}

// bytes returns the frame: its header, its tags, and a pattern.
func (p packet) bytes() []byte {
	b := make([]byte, 0, max(p.size, smallest))
	b = append(b, p.dst[:]...)
	b = append(b, p.src[:]...)
	for _, t := range p.tags {
		b = binary.BigEndian.AppendUint16(b, t.tpid)
		b = binary.BigEndian.AppendUint16(b, t.prio<<13|t.vid)
	}
	b = binary.BigEndian.AppendUint16(b, cmp.Or(p.typ, typeTest))
	for len(b) < cap(b) {
		b = append(b, byte(len(b)*7))
	}
	if p.size != 0 {
		b = b[:p.size]
	}
	return b
}

// tagged returns the packet with an 802.1Q tag inside its present tags.
func (p packet) tagged(vid uint16) packet {
	p.tags = append(p.tags[:len(p.tags):len(p.tags)], tag{tpid: typeVLAN, vid: vid})
	return p
}

// unicast is a minimum-size frame from one station to another.
func unicast(dst, src int) []byte { return packet{dst: station(dst), src: station(src)}.bytes() }

// from is a broadcast of a station.
func from(src int) []byte { return packet{dst: broadcast, src: station(src)}.bytes() }

func TestPacket(t *testing.T) {
	b := packet{dst: station(1), src: station(2), tags: []tag{{typeVLAN, 10, 5}}}.bytes()
	want := "\x02\xda\x00\x00\x00\x01\x02\xda\x00\x00\x00\x02\x81\x00\xa0\x0a\x88\xb5"
	if got := string(b[:18]); got != want {
		t.Errorf("header % x, want % x", got, want)
	}
	if len(b) != smallest {
		t.Errorf("%d bytes, want %d", len(b), smallest)
	}
	if n := len((packet{size: 1500}).bytes()); n != 1500 {
		t.Errorf("%d bytes, want 1500", n)
	}
	if n := len((packet{size: 14}).bytes()); n != 14 {
		t.Errorf("%d bytes, want 14", n)
	}
}
