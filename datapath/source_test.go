// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
)

// A frame whose source is not a station's address is dropped, whatever its destination.
func TestBadSource(t *testing.T) {
	s := newBench(t, 3, allXDP)
	s.learn(1, 1)
	for _, src := range []mac{
		{},
		broadcast,
		group(1),
		reserved(0),
		{0x01},
		{0x33, 0x33, 0, 0, 0, 1},
	} {
		for _, dst := range []mac{broadcast, group(2), station(1), station(9), {}} {
			what := fmt.Sprintf("%x to %x", src, dst)
			p := packet{dst: dst, src: src}
			expect(t, what, s.tcx(0, p.bytes()), dropped("bad-source"))
			expect(t, what+" with a tag", s.tcx(0, p.tagged(10).bytes()), dropped("bad-source"))
			expect(t, what+" by XDP", s.xdp(0, p.bytes()), passed)
		}
	}
	if n := len(s.fdb()); n != 1 {
		t.Errorf("%d addresses, want the 1 that is a station's", n)
	}
}

// The smallest and the largest address of a station are good.
func TestGoodSource(t *testing.T) {
	for _, src := range []mac{{0, 0, 0, 0, 0, 1}, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}, {0x02}} {
		s := newBench(t, 2)
		expect(t, fmt.Sprintf("from %x", src), s.tcx(0, packet{dst: broadcast, src: src}.bytes()), sent(1))
		if _, ok := s.fdb()[address{src, 0}]; !ok {
			t.Errorf("%x was not learned", src)
		}
	}
}

// No station has the zero address, so a frame to it is unknown unicast, also after
// entries have been freed, whose key is zero, too.
func TestZeroDestination(t *testing.T) {
	s := newBench(t, 3, allXDP)
	zero := packet{dst: mac{}, src: station(1)}
	s.learn(0, 1)
	expect(t, "empty FDB", s.tcx(0, zero.bytes()), sent(1, 2))
	// first with entries all over the table, which never age, and then without entries
	for n := range 2000 {
		s.store(address{station(n), 0}, spot{port: 1, pin: fdbStatic})
	}
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Pinned: 1}); err != nil {
		t.Fatal(err)
	}
	expect(t, "freed entries", s.tcx(0, zero.bytes()), sent(1, 2))
	expect(t, "freed entries, by XDP", s.xdp(0, zero.bytes()), sent(1, 2))
	expect(t, "with a tag", s.tcx(0, zero.tagged(10).bytes()), sent(1, 2))
}
