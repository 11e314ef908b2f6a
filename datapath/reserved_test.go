// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// 01:80:C2:00:00:0X is not forwarded unless bit X of the mask is set.
func TestReserved(t *testing.T) {
	masks := []uint16{0, 0xffff, 0x5555}
	for bit := range 16 {
		masks = append(masks, 1<<bit)
	}
	for _, mask := range masks {
		t.Run(fmt.Sprintf("mask %#04x", mask), func(t *testing.T) {
			s := newBench(t, 3, allXDP, func(c *Config, _ []*Port) { c.GroupFwdMask = mask })
			for x := range 16 {
				p := packet{dst: reserved(x), src: station(1)}
				want := dropped("reserved")
				if mask>>x&1 != 0 {
					want = sent(1, 2)
				}
				expect(t, fmt.Sprintf("address %X", x), s.tcx(0, p.bytes()), want)
				expect(t, fmt.Sprintf("address %X with a tag", x), s.tcx(0, p.tagged(10).bytes()), want)
				if want.Verdict == drop {
					expect(t, fmt.Sprintf("address %X by XDP", x), s.xdp(0, p.bytes()), passed)
				}
			}
			if _, learned := s.fdb()[address{station(1), 0}]; learned != (mask != 0) {
				t.Errorf("the source was learned: %v, of frames that were forwarded: %v", learned, mask != 0)
			}
		})
	}
}

// socketTypes are the types of frames to reserved addresses that sockets of the host receive.
var socketTypes = []uint16{unix.ETH_P_PAE, unix.ETH_P_LLDP, unix.ETH_P_SLOW, unix.ETH_P_1588}

// Sockets of the host receive a frame that is not forwarded if it is of a type that no stack
// takes, has no VLAN and comes from a station. All such frames are counted.
func TestReservedToSockets(t *testing.T) {
	s := newBench(t, 3, allXDP)
	toSockets := outcome{Verdict: pass, Drops: []string{"reserved"}}
	for typ := range 1 << 16 {
		p := packet{dst: reserved(3), src: station(1), typ: uint16(typ)}
		want := dropped("reserved")
		switch {
		case slices.Contains(socketTypes, p.typ):
			want = toSockets
			expect(t, fmt.Sprintf("%#x by XDP", typ), s.xdp(0, p.bytes()), passed)
			expect(t, fmt.Sprintf("%#x of VLAN 10", typ), s.tcx(0, p.tagged(10).bytes()), dropped("reserved"))
			expect(t, fmt.Sprintf("%#x of VLAN 10 by a service tag", typ), s.tcx(0, packet{dst: p.dst, src: p.src, typ: p.typ, tags: []tag{{tpid: typeQinQ, vid: 10}}}.bytes()), dropped("reserved"))
			expect(t, fmt.Sprintf("%#x with two tags", typ), s.tcx(0, p.tagged(0).tagged(10).bytes()), dropped("reserved"))
			p.src = group(1)
			expect(t, fmt.Sprintf("%#x from a group", typ), s.tcx(0, p.bytes()), dropped("reserved"))
			p.src = station(1)
		// the payload is no such packet: cases of test/conformance have them
		case slices.Contains([]int{unix.ETH_P_IP, unix.ETH_P_IPV6, typeVLAN, typeQinQ}, typ):
			continue
		case typ > 0x600 && typ%251 != 0: // some of the many others
			continue
		}
		expect(t, fmt.Sprintf("%#x", typ), s.tcx(0, p.bytes()), want)
	}
}

// The addresses next to the reserved ones are treated like other groups.
func TestReservedNeighbours(t *testing.T) {
	s := newBench(t, 3)
	for _, m := range []mac{
		{0x01, 0x80, 0xc2, 0, 0, 0x10}, // the bridge management group (802.1Q table 8-1)
		{0x01, 0x80, 0xc2, 0, 0, 0xf0},
		{0x01, 0x80, 0xc2, 0, 1, 0x00},
		{0x01, 0x80, 0xc2, 1, 0, 0x00},
		{0x01, 0x80, 0xc3, 0, 0, 0x00},
		{0x01, 0x81, 0xc2, 0, 0, 0x00},
		{0x03, 0x80, 0xc2, 0, 0, 0x00},
		{0x01, 0x00, 0x5e, 0, 0, 0x01},
		{0x33, 0x33, 0, 0, 0, 0x01},
	} {
		p := packet{dst: m, src: station(1)}
		expect(t, fmt.Sprintf("to %x", m), s.tcx(0, p.bytes()), sent(1, 2))
	}
	p := packet{dst: mac{0x00, 0x80, 0xc2, 0, 0, 0}, src: station(1)}
	expect(t, "to the same without the group bit", s.tcx(0, p.bytes()), sent(1, 2))
}
