// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
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

// The neighbours of the reserved addresses are groups like others.
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
