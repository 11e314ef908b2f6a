// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
)

// The FDB shows what was parsed from a frame: its source, and its VLAN.
func TestFrameVLAN(t *testing.T) {
	tests := []struct {
		name string
		tags []tag
		vlan uint16
	}{
		{"untagged", nil, 0},
		{"tag", []tag{{tpid: typeVLAN, vid: 10}}, 10},
		{"tag with priority", []tag{{tpid: typeVLAN, vid: 10, prio: 7}}, 10},
		{"tag with drop eligible bit", []tag{{tpid: typeVLAN, vid: 10 | 1<<12}}, 10},
		{"first VLAN", []tag{{tpid: typeVLAN, vid: 1}}, 1},
		{"last VLAN", []tag{{tpid: typeVLAN, vid: 4094}}, 4094},
		{"reserved VLAN", []tag{{tpid: typeVLAN, vid: 4095}}, 4095},
		{"priority tag", []tag{{tpid: typeVLAN, vid: 0, prio: 5}}, 0},
		{"two tags", []tag{{tpid: typeVLAN, vid: 10}, {tpid: typeVLAN, vid: 20}}, 10},
		{"priority tag before a tag", []tag{{tpid: typeVLAN, vid: 0}, {tpid: typeVLAN, vid: 20}}, 0},
		{"service tag", []tag{{tpid: typeQinQ, vid: 10}}, 0},
		{"service tag before a tag", []tag{{tpid: typeQinQ, vid: 10}, {tpid: typeVLAN, vid: 20}}, 0},
		{"old service tag", []tag{{tpid: 0x9100, vid: 10}}, 0},
		{"tag type with its bytes swapped", []tag{{tpid: 0x0081, vid: 10}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, 3, allXDP)
			p := packet{dst: broadcast, src: station(1), tags: tt.tags}
			expect(t, "XDP", s.xdp(0, p.bytes()), passed)
			expect(t, "tcx", s.tcx(0, p.bytes()), sent(1, 2))
			at, ok := s.fdb()[address{station(1), tt.vlan}]
			if !ok || at.port != 0 {
				t.Fatalf("FDB %v, want the station in VLAN %d on port 0", s.fdb(), tt.vlan)
			}
			// an answer in the same VLAN finds it, by either hook
			answer := packet{dst: station(1), src: station(2), tags: tt.tags}
			expect(t, "answer by XDP", s.xdp(1, answer.bytes()), passed)
			expect(t, "answer", s.tcx(1, answer.bytes()), sent(0))
			expect(t, "next answer by XDP", s.xdp(1, answer.bytes()), sent(0))
			expect(t, "next answer", s.tcx(1, answer.bytes()), sent(0))
			// an answer in another VLAN does not
			other := packet{dst: station(1), src: station(2)}.tagged(77)
			expect(t, "in another VLAN", s.tcx(1, other.bytes()), sent(0, 2))
		})
	}
}

// The kernel's TEST_RUN takes no frame that is shorter than a header. A frame whose
// header is truncated is put to XDP in two buffers; the first one ends in the
// header.
func TestFrameTruncated(t *testing.T) {
	s := newBench(t, 3, allXDP)
	whole := packet{dst: broadcast, src: station(1), size: 200}.tagged(10)
	for size := etherHeader; size <= etherHeader+etherTag+1; size++ {
		what := fmt.Sprintf("tagged frame of %d bytes", size)
		p := whole
		p.size = size
		tcx, xdp := sent(1, 2), sent(1, 2)
		if size < etherHeader+etherTag {
			tcx, xdp = dropped("malformed"), passed
		}
		expect(t, what, s.tcx(0, p.bytes()), tcx)
		expect(t, what+" by XDP", s.xdp(0, p.bytes()), xdp)
	}
	for size := etherHeader; size <= smallest; size++ {
		p := packet{dst: broadcast, src: station(2), size: size}
		expect(t, fmt.Sprintf("frame of %d bytes", size), s.tcx(0, p.bytes()), sent(1, 2))
	}
	for first := range etherHeader + etherTag {
		ctx := &xdpContext{IngressIfindex: s.rack.near[0], DataEnd: uint32(first)}
		expect(t, fmt.Sprintf("tagged frame with %d bytes in its first part", first), s.put(hookXDP, ctx, whole.bytes()), passed)
	}
}

// A device that is not a port keeps its frames, also malformed ones.
func TestFrameTruncatedFromNoPort(t *testing.T) {
	s := newBench(t, 2)
	p := packet{dst: broadcast, src: station(1), size: 15}.tagged(10)
	expect(t, "malformed", s.put(hookTCX, &skbContext{Ifindex: s.rack.spare}, p.bytes()), passed)
}

func TestFrameFromNoPort(t *testing.T) {
	s := newBench(t, 2, allXDP)
	for name, ifindex := range map[string]uint32{"loopback": 1, "another device": s.rack.spare, "a far end": s.rack.far[0]} {
		expect(t, name, s.put(hookTCX, &skbContext{Ifindex: ifindex}, from(1)), passed)
		expect(t, name+" by XDP", s.put(hookXDP, &xdpContext{IngressIfindex: ifindex, DataEnd: smallest}, from(1)), passed)
	}
	if n := len(s.fdb()); n != 0 {
		t.Errorf("%d addresses learned of frames that came by no port", n)
	}
}

// Every bit of an address counts.
func TestFrameAddressBits(t *testing.T) {
	s := newBench(t, 3)
	home := station(1)
	s.learn(0, 1)
	for bit := range 48 {
		m := home
		m[bit/8] ^= 1 << (bit % 8)
		if m[0]&1 != 0 {
			continue // a group
		}
		p := packet{dst: m, src: station(2)}
		expect(t, fmt.Sprintf("to %x", m), s.tcx(1, p.bytes()), sent(0, 2))
	}
	expect(t, "to the station", s.tcx(1, unicast(1, 2)), sent(0))
}
