// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A membership is a port's membership in VLANs, on a bench.
type membership struct {
	pvid     uint16
	untagged []uint16
	tagged   []uint16
}

// access is a port in one VLAN.
func access(vid uint16) membership { return membership{pvid: vid, untagged: []uint16{vid}} }

// trunk is a port that is a tagged member of VLANs.
func trunk(vids ...uint16) membership { return membership{tagged: vids} }

func addTo(set *PortSet, slot int) { set[slot/64] |= 1 << (slot % 64) }

// newVLANBench makes a bench that filters VLANs, with a port for each membership. The
// tags of frames may change.
func newVLANBench(t testing.TB, members []membership, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	v := new(VLANs)
	for vid := range v {
		v[vid].Fid = uint16(vid)
	}
	for i, m := range members {
		for _, vid := range m.untagged {
			addTo(&v[vid].Untagged, i+1)
		}
		for _, vid := range slices.Concat(m.untagged, m.tagged) {
			addTo(&v[vid].Member, i+1)
			addTo(&v[vid].Reach, i+1)
		}
	}
	filtering := func(c *Config, p []*Port) {
		c.Flags |= uint32(BridgeVLANs)
		c.VlanProto = typeVLAN
		for i, m := range members {
			p[i].Pvid = m.pvid
		}
	}
	s := newBenchWith(t, sharedRack(t), Tables{VLANs: v}, len(members), append([]func(*Config, []*Port){filtering}, change...)...)
	s.retags = true
	return s
}

// tagged is a minimum-size frame with tags.
func tagged(dst, src mac, tags ...tag) []byte { return packet{dst: dst, src: src, tags: tags}.bytes() }

func vid(n uint16) tag { return tag{tpid: typeVLAN, vid: n} }

// A port may accept only tagged frames, or only untagged ones.
func TestAdmit(t *testing.T) {
	native := membership{pvid: 10, untagged: []uint16{10}, tagged: []uint16{20}}
	s := newVLANBench(t, []membership{native, native, native, trunk(10, 20)}, allXDP, func(_ *Config, p []*Port) {
		p[1].Admit, p[2].Admit = AdmitTagged, AdmitUntagged
	})
	priority := tag{tpid: typeVLAN, prio: 5}
	for _, tt := range []struct {
		name     string
		tags     []tag
		tagged   bool
		received bool // by a port that admits all
	}{
		{"untagged", nil, false, true},
		{"with a priority", []tag{priority}, false, true},
		{"of its PVID", []tag{vid(10)}, true, true},
		{"of another VLAN", []tag{vid(20)}, true, true},
		{"of a VLAN that it is not in", []tag{vid(30)}, true, false},
	} {
		for port, admits := range []bool{true, tt.tagged, !tt.tagged} {
			want := dropped("vlan")
			if tt.received {
				want = sent(others(4, port)...)
			}
			if !admits {
				want = dropped("admit")
			}
			for range 2 {
				s.expectBoth(fmt.Sprintf("%s at port %d", tt.name, port), port, tagged(broadcast, station(port), tt.tags...), want)
			}
		}
	}
	// it also holds for remembered decisions
	s.expectBoth("from the trunk", 3, tagged(broadcast, station(3), vid(10)), sent(0, 1, 2))
	for range 3 {
		s.expectBoth("to the trunk, tagged", 1, tagged(station(3), station(1), vid(10)), sent(3))
		s.expectBoth("to the trunk, untagged", 1, tagged(station(3), station(1)), dropped("admit"))
	}
}

// others returns the numbers of the given number of ports, except one.
func others(ports, not int) (list []int) {
	for n := range ports {
		if n != not {
			list = append(list, n)
		}
	}
	return list
}

// The ports that a frame may come in by and go to, for every kind of member and tag.
func TestVLANIn(t *testing.T) {
	// an access port in 10, one in 20, a trunk of both, one with 10 as its native VLAN,
	// one without any, one with a PVID that it is not a member of
	s := newVLANBench(t, []membership{
		access(10), access(20), trunk(10, 20), {pvid: 10, untagged: []uint16{10}, tagged: []uint16{20}}, {}, {pvid: 30, tagged: []uint16{10}},
	}, allXDP)
	src := station(1)
	for _, tt := range []struct {
		name string
		port int
		tags []tag
		want outcome
	}{
		{"untagged at an access port", 0, nil, sent(2, 3, 5)},
		{"untagged at the other", 1, nil, sent(2, 3)},
		{"its own tag at an access port", 0, []tag{vid(10)}, sent(2, 3, 5)},
		{"another tag at an access port", 0, []tag{vid(20)}, dropped("vlan")},
		{"a priority at an access port", 0, []tag{{typeVLAN, 0, 5}}, sent(2, 3, 5)},
		{"untagged at a trunk", 2, nil, dropped("untagged")},
		{"a priority at a trunk", 2, []tag{{typeVLAN, 0, 5}}, dropped("untagged")},
		{"10 at a trunk", 2, []tag{vid(10)}, sent(0, 3, 5)},
		{"20 at a trunk", 2, []tag{{typeVLAN, 20, 7}}, sent(1, 3)},
		{"30 at a trunk", 2, []tag{vid(30)}, dropped("vlan")},
		{"4095 at a trunk", 2, []tag{vid(4095)}, dropped("vlan")},
		{"untagged at a trunk with a native VLAN", 3, nil, sent(0, 2, 5)},
		{"20 there", 3, []tag{vid(20)}, sent(1, 2)},
		{"untagged at a port without VLANs", 4, nil, dropped("untagged")},
		{"tagged at a port without VLANs", 4, []tag{vid(10)}, dropped("vlan")},
		{"untagged at a port that is not in its PVID", 5, nil, dropped("vlan")},
		{"two tags", 2, []tag{vid(10), vid(20)}, dropped("double-tag")},
		{"two tags at an access port", 0, []tag{vid(10), vid(10)}, dropped("double-tag")},
		{"a priority before a tag", 0, []tag{vid(0), vid(20)}, dropped("double-tag")},
		{"a service tag", 0, []tag{{tpid: typeQinQ, vid: 10}}, dropped("other-tag")},
		{"a service tag before a tag", 0, []tag{{tpid: typeQinQ, vid: 10}, vid(10)}, dropped("other-tag")},
		{"a tag of other times", 0, []tag{{tpid: 0x9100, vid: 10}}, sent(2, 3, 5)},
		{"a service tag behind the tag", 2, []tag{vid(10), {tpid: typeQinQ, vid: 10}}, dropped("double-tag")},
		{"a tag that ends early", 0, []tag{vid(10)}, dropped("malformed")},
	} {
		p := packet{dst: broadcast, src: src, tags: tt.tags}
		if tt.want.Drops != nil && tt.want.Drops[0] == "malformed" {
			p.size = 16
		}
		expect(t, tt.name, s.tcx(tt.port, p.bytes()), tt.want)
		expect(t, tt.name+", by XDP", s.xdp(tt.port, p.bytes()), passed)
	}
	for a := range s.fdb() {
		if a.vlan != 10 && a.vlan != 20 {
			t.Errorf("%s was learned of a frame that is in no VLAN of the port", a)
		}
	}
}

// XDP sends every frame to a known address with the tag that the outgoing port
// requires.
func TestVLANRetagXDP(t *testing.T) {
	members := []membership{
		access(10), access(10), trunk(10, 20), trunk(10, 20), {pvid: 20, untagged: []uint16{20}, tagged: []uint16{10}},
	}
	none := tag{}
	for _, tt := range []struct {
		from, to int
		has      tag
		wants    tag
	}{
		{0, 1, none, none},
		{0, 2, none, vid(10)},
		{2, 0, tag{typeVLAN, 10, 3}, none},
		{2, 3, tag{typeVLAN, 20, 3}, tag{typeVLAN, 20, 3}},
		{0, 1, tag{typeVLAN, 0, 6}, none},
		{0, 2, tag{typeVLAN, 0, 6}, tag{typeVLAN, 10, 6}},
		{0, 2, tag{typeVLAN, 1 << 12, 6}, tag{typeVLAN, 10 | 1<<12, 6}}, // drop eligible
		{4, 2, none, vid(20)},
		{2, 4, vid(20), none},
		{2, 4, tag{typeVLAN, 10, 1}, tag{typeVLAN, 10, 1}},
		{4, 0, vid(10), none},
	} {
		what := fmt.Sprintf("from port %d with %v to port %d", tt.from, tt.has, tt.to)
		s := newVLANBench(t, members, allXDP)
		frame := func(dst, src mac, tg tag) []byte {
			var tags []tag
			if tg != none {
				tags = []tag{tg}
			}
			b := packet{dst: dst, src: src, tags: tags, size: etherHeader + len(tags)*etherTag}.bytes()
			for i := range 80 { // the result must not depend on the frames before
				b = append(b, byte(i))
			}
			return b
		}
		s.tcx(tt.to, frame(broadcast, station(2), tt.wants))
		if got := s.tcx(tt.from, frame(broadcast, station(1), tt.has)); got.Verdict != redirect {
			t.Errorf("%s: the first frame: %s", what, got)
		}
		in, want := frame(station(2), station(1), tt.has), frame(station(2), station(1), tt.wants)
		for range 2 { // the second by a remembered decision
			got := s.xdp(tt.from, in)
			expect(t, what, got, sent(tt.to))
			if !bytes.Equal(s.out, want) {
				t.Errorf("%s: the frame left as\n% x, should be\n% x", what, head(s.out), head(want))
			}
		}
		expect(t, what+" by tcx", s.tcx(tt.from, in), sent(tt.to))
	}
}

// A decision applies only to the VLAN of the frame that it was made for.
func TestVLANDecisions(t *testing.T) {
	s := newVLANBench(t, []membership{trunk(10, 20), trunk(10), trunk(20), access(10)}, allXDP)
	// station 2 is behind port 1 in VLAN 10, behind port 2 in VLAN 20
	s.tcx(1, tagged(broadcast, station(2), vid(10)))
	s.tcx(2, tagged(broadcast, station(2), vid(20)))
	s.tcx(0, tagged(broadcast, station(1), vid(10)))
	s.tcx(0, tagged(broadcast, station(1), vid(20)))
	for range 3 {
		for n, port := range map[uint16]int{10: 1, 20: 2} {
			f := tagged(station(2), station(1), vid(n))
			expect(t, fmt.Sprintf("VLAN %d", n), s.tcx(0, f), sent(port))
			expect(t, fmt.Sprintf("VLAN %d by XDP", n), s.xdp(0, f), sent(port))
		}
		expect(t, "in none", s.tcx(0, tagged(station(2), station(1))), dropped("untagged"))
		expect(t, "in another", s.tcx(0, tagged(station(2), station(1), vid(30))), dropped("vlan"))
		expect(t, "in another by XDP", s.xdp(0, tagged(station(2), station(1), vid(30))), passed)
		expect(t, "with a second tag", s.tcx(0, tagged(station(2), station(1), vid(10), vid(20))), dropped("double-tag"))
	}
	// an address with a static entry at a port that is not in the VLAN
	s.store(address{station(9), 20}, spot{port: 3, pin: fdbStatic})
	expect(t, "to a port that is not in the VLAN", s.tcx(0, tagged(station(9), station(1), vid(20))), dropped("vlan-out"))
	expect(t, "to a port that is not in the VLAN, by XDP", s.xdp(0, tagged(station(9), station(1), vid(20))), passed)
}

// With QinQ a second tag is payload.
func TestVLANQinQ(t *testing.T) {
	s := newVLANBench(t, []membership{access(10), trunk(10), access(10)}, allXDP, func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeQinQ) })
	inner := []tag{vid(7), {tpid: typeQinQ, vid: 8}}
	for _, tg := range inner {
		s.learnFrame(t, 0, tagged(broadcast, station(1), vid(10), tg))
		s.learnFrame(t, 1, tagged(broadcast, station(2), vid(10), tg))
		for range 2 {
			in := tagged(station(2), station(1), vid(10), tg)
			expect(t, "two tags, access to trunk", s.xdp(0, in), sent(1))
			if !bytes.Equal(s.out, in) {
				t.Errorf("two tags became % x", head(s.out))
			}
			expect(t, "two tags, trunk to access", s.xdp(1, tagged(station(1), station(2), vid(10), tg)), sent(0))
			if want := tagged(station(1), station(2), tg); !bytes.Equal(s.out[:18], want[:18]) {
				t.Errorf("two tags became % x, should be % x", head(s.out), head(want))
			}
		}
	}
	// a frame with only a service tag belongs to the PVID, and keeps the tag
	s.learnFrame(t, 0, tagged(broadcast, station(1), inner[1]))
	expect(t, "a service tag to a trunk", s.xdp(0, tagged(station(2), station(1), inner[1])), sent(1))
	if want := tagged(station(2), station(1), vid(10), inner[1]); !bytes.Equal(s.out[:22], want[:22]) {
		t.Errorf("a service tag became % x", s.out[:22])
	}
	// the added tag makes a frame of maximum length too long for XDP
	long := packet{dst: station(2), src: station(1), tags: inner[1:], size: 1500 + etherHeader + etherTag}.bytes()
	expect(t, "a long one with a service tag to a trunk", s.xdp(0, long), passed)
}

// On a bridge that filters by service tags, customer tags are payload.
func TestVLANServiceTags(t *testing.T) {
	s := newVLANBench(t, []membership{access(10), trunk(10), access(20)}, allXDP, func(c *Config, _ []*Port) { c.VlanProto = typeQinQ })
	service := tag{tpid: typeQinQ, vid: 10}
	s.learnFrame(t, 0, tagged(broadcast, station(1), vid(20)))
	s.learnFrame(t, 1, tagged(broadcast, station(2), service, vid(20)))
	for a := range s.fdb() {
		if a.vlan != 10 {
			t.Errorf("%s is not in the service VLAN", a)
		}
	}
	expect(t, "a customer's tag", s.xdp(0, tagged(station(2), station(1), vid(20))), sent(1))
	if want := tagged(station(2), station(1), service, vid(20)); !bytes.Equal(s.out[:22], want[:22]) {
		t.Errorf("it became % x, should be % x", s.out[:22], want[:22])
	}
	expect(t, "back", s.xdp(1, tagged(station(1), station(2), service, vid(20))), sent(0))
	if want := tagged(station(1), station(2), vid(20)); !bytes.Equal(s.out[:18], want[:18]) {
		t.Errorf("it became % x, should be % x", head(s.out), head(want))
	}
	expect(t, "a customer's tag at a trunk", s.tcx(1, tagged(broadcast, station(2), vid(10))), dropped("untagged"))
	expect(t, "another service tag", s.tcx(1, tagged(broadcast, station(2), tag{tpid: typeQinQ, vid: 20})), dropped("vlan"))
}

// learnFrame makes the source of a frame known; the frame must be flooded.
func (s *bench) learnFrame(t testing.TB, port int, frame []byte) {
	t.Helper()
	if got := s.tcx(port, frame); got.Verdict != redirect {
		t.Fatalf("% x at port %d: %s", head(frame), port, got)
	}
}

// If private VLANs are configured, the table determines which ports a frame reaches.
// The frame's tag is its VLAN's, or the primary's if the port is a member only of that.
func TestVLANPrivate(t *testing.T) {
	const primary, isolated, community = 100, 101, 102
	// promiscuous, two isolated, community, trunk of the primary, trunk of all
	members := []membership{
		access(primary), access(isolated), access(isolated), access(community),
		trunk(primary), trunk(primary, isolated, community),
	}
	v := new(VLANs)
	set := func(set *PortSet, ports ...int) {
		for _, p := range ports {
			addTo(set, p+1)
		}
	}
	for vid, row := range map[int]struct{ member, reach, untagged []int }{
		primary:   {[]int{0, 4, 5}, []int{0, 1, 2, 3, 4, 5}, []int{0, 1, 2, 3}},
		isolated:  {[]int{1, 2, 5}, []int{0, 4, 5}, []int{0, 1, 2}},
		community: {[]int{3, 5}, []int{0, 3, 4, 5}, []int{0, 3}},
	} {
		set(&v[vid].Member, row.member...)
		set(&v[vid].Reach, row.reach...)
		set(&v[vid].Untagged, row.untagged...)
		v[vid].Fid = primary
	}
	s := newBenchWith(t, sharedRack(t), Tables{VLANs: v}, len(members), allXDP, func(c *Config, p []*Port) {
		c.Flags, c.VlanProto = uint32(BridgeVLANs), typeVLAN
		for i, m := range members {
			p[i].Pvid = m.pvid
		}
	})
	s.retags = true
	for port, want := range [][]int{{1, 2, 3, 4, 5}, {0, 4, 5}, {0, 4, 5}, {0, 4, 5}} {
		expect(t, fmt.Sprintf("broadcast from port %d", port), s.tcx(port, from(port)), sent(want...))
	}
	expect(t, "a community's broadcast at a trunk", s.tcx(5, tagged(broadcast, station(9), vid(community))), sent(0, 3, 4))
	s.learnFrame(t, 4, tagged(broadcast, station(4), vid(primary)))
	s.learnFrame(t, 5, tagged(broadcast, station(5), vid(isolated)))
	for a := range s.fdb() {
		if a.vlan != primary {
			t.Errorf("%s is not in the primary", a)
		}
	}
	for _, tt := range []struct {
		from, to int
		has      []tag
		want     outcome
		leaves   []tag
	}{
		{1, 0, nil, sent(0), nil},
		{1, 2, nil, dropped("vlan-out"), nil},
		{1, 3, nil, dropped("vlan-out"), nil},
		{3, 1, nil, dropped("vlan-out"), nil},
		{0, 1, nil, sent(1), nil},
		{0, 3, nil, sent(3), nil},
		{1, 4, nil, sent(4), []tag{vid(primary)}},
		{1, 5, nil, sent(5), []tag{vid(isolated)}},
		{3, 5, nil, sent(5), []tag{vid(community)}},
		{0, 5, nil, sent(5), []tag{vid(primary)}},
		{4, 1, []tag{vid(primary)}, sent(1), nil},
		{5, 0, []tag{vid(isolated)}, sent(0), nil},
		{5, 1, []tag{vid(isolated)}, dropped("vlan-out"), nil},
		{5, 3, []tag{vid(community)}, sent(3), nil},
		{5, 1, []tag{vid(primary)}, sent(1), nil},
	} {
		what := fmt.Sprintf("from port %d with %v to port %d", tt.from, tt.has, tt.to)
		for range 2 {
			in := tagged(station(tt.to), station(tt.from), tt.has...)
			expect(t, what, s.tcx(tt.from, in), tt.want)
			if tt.want.Verdict == drop {
				expect(t, what+" by XDP", s.xdp(tt.from, in), passed)
				continue
			}
			expect(t, what+" by XDP", s.xdp(tt.from, in), tt.want)
			n := etherHeader + len(tt.leaves)*etherTag
			if want := tagged(station(tt.to), station(tt.from), tt.leaves...); !bytes.Equal(s.out[:n], want[:n]) {
				t.Errorf("%s it left as % x, should be % x", what, head(s.out), head(want))
			}
		}
	}
}

// Frames are counted in their VLANs, by both hooks. Refused frames are counted in none.
func TestVLANStats(t *testing.T) {
	s := newVLANBench(t, []membership{access(10), trunk(10, 20), trunk(10, 20)}, allXDP, func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeVLANStats) })
	counters := func(vid int) (sum VLANStats) {
		var perCPU []VLANStats
		if err := s.gen.coll.Maps[kernelMapVlanStats].Lookup(uint32(vid), &perCPU); err != nil {
			t.Fatal(err)
		}
		for _, c := range perCPU {
			sum.RxFrames += c.RxFrames
			sum.RxBytes += c.RxBytes
			sum.TxFrames += c.TxFrames
			sum.TxBytes += c.TxBytes
		}
		return sum
	}
	const n = smallest
	s.tcx(0, from(1))                                        // to two
	s.tcx(1, tagged(broadcast, station(2), vid(10)))         // to two
	s.tcx(0, unicast(2, 1))                                  // to one
	s.xdp(0, unicast(2, 1))                                  // the same
	s.tcx(0, tagged(broadcast, station(1), vid(20)))         // refused
	s.tcx(1, tagged(broadcast, station(2), vid(20)))         // to one
	s.tcx(1, tagged(broadcast, station(2), vid(20), vid(1))) // refused
	if got, want := counters(10), (VLANStats{RxFrames: 4, RxBytes: 4 * n, TxFrames: 6, TxBytes: 6 * n}); got != want {
		t.Errorf("VLAN 10: %+v, want %+v", got, want)
	}
	if got, want := counters(20), (VLANStats{RxFrames: 1, RxBytes: n, TxFrames: 1, TxBytes: n}); got != want {
		t.Errorf("VLAN 20: %+v, want %+v", got, want)
	}
}

// A VLAN's ports are found in all slots.
func TestVLANManySlots(t *testing.T) {
	var members []membership
	for i := range sharedCables {
		members = append(members, access(uint16(10+i%2)))
	}
	s := newVLANBench(t, members)
	for in := range sharedCables {
		var want []int
		for out := range sharedCables {
			if out != in && out%2 == in%2 {
				want = append(want, out)
			}
		}
		expect(t, fmt.Sprintf("from port %d", in), s.tcx(in, from(in)), sent(want...))
	}
}

// Without filtering there is no table of VLANs.
func TestVLANSizes(t *testing.T) {
	s := newBench(t, 2)
	if n := s.gen.coll.Maps[kernelMapVlans].MaxEntries(); n != 1 {
		t.Errorf("a bridge without VLANs has a table of %d", n)
	}
	if n := s.gen.coll.Maps[kernelMapVlanStats].MaxEntries(); n != 1 {
		t.Errorf("a bridge without VLANs has %d counters of VLANs", n)
	}
}

// FuzzVLAN puts frames to a switch that filters VLANs: they stay in their VLAN, and
// only their outer tag changes.
func FuzzVLAN(f *testing.F) {
	seeds(f)
	for _, tags := range [][]tag{{{typeVLAN, 10, 5}}, {{typeVLAN, 0, 5}}, {vid(20)}, {vid(10), vid(20)}, {{tpid: typeQinQ, vid: 10}, vid(20)}} {
		for port := range uint8(fuzzPorts) {
			f.Add(port, uint16(200), tagged(station(2), station(int(port)), tags...))
			f.Add(port, uint16(200), tagged(broadcast, station(int(port)), tags...))
			f.Add(port, uint16(17), tagged(station(1), station(int(port)), tags...))
		}
	}
	members := []membership{access(10), {pvid: 10, untagged: []uint16{10}, tagged: []uint16{20}}, trunk(10, 20), access(20)}
	s := newVLANBench(f, members, allXDP, func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeQinQ) })
	f.Fuzz(func(t *testing.T, port uint8, first uint16, frame []byte) {
		port, frame = port%fuzzPorts, frame[:min(len(frame), fuzzMaxTCX)]
		s.t = t
		if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Pinned: 1}); err != nil {
			t.Fatal(err)
		}
		for n := range fuzzPorts {
			s.store(address{station(n), 10}, spot{port: n, used: benchNow})
			s.store(address{station(n), 20}, spot{port: n, used: benchNow})
		}
		s.at(benchNow)
		// before and after tcx has processed it, and by a remembered decision
		for _, h := range []hook{hookXDP, hookTCX, hookXDP, hookXDP, hookTCX} {
			s.checkVLAN(t, h, members, int(port), int(first), frame)
		}
	})
}

// checkVLAN runs one frame and checks that it stays in its VLAN.
func (s *bench) checkVLAN(t *testing.T, h hook, members []membership, port, first int, frame []byte) {
	t.Helper()
	var ctx any = &skbContext{Ifindex: s.rack.near[port]}
	if h == hookXDP {
		ctx = &xdpContext{IngressIfindex: s.rack.near[port], DataEnd: uint32(min(first, len(frame)))}
	}
	stats := s.allStats()
	var v verdict
	err := s.rack.do(func() (err error) {
		v, err = s.runContext(h, ctx, frame)
		return err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) {
		t.Skip("the kernel does not run a frame of this shape")
	}
	if err != nil {
		t.Fatal(err)
	}
	o, _, err := compare(stats, s.allStats(), uint64(len(frame)), 0)
	if err != nil {
		t.Fatal(err)
	}
	if v != redirect {
		if !bytes.Equal(s.out, frame) {
			t.Errorf("%s, and changed to % x", v, head(s.out))
		}
		return
	}
	id, tci, rest := members[port].pvid, uint16(0), frame
	if binary.BigEndian.Uint16(frame[12:]) == typeVLAN {
		tci = binary.BigEndian.Uint16(frame[14:])
		rest = slices.Concat(frame[:12], frame[16:])
		if tci&0xfff != 0 {
			id = tci & 0xfff
		}
	}
	for _, n := range append(o.Out, port) {
		if !slices.Contains(slices.Concat(members[n].untagged, members[n].tagged), id) {
			t.Errorf("%s: a frame of VLAN %d from port %d, and port %d is not in it", o, id, port, n)
		}
	}
	if h == hookTCX || t.Failed() {
		return // a tag may be in the metadata
	}
	want := rest
	if !slices.Contains(members[o.Out[0]].untagged, id) {
		want = slices.Concat(rest[:12], binary.BigEndian.AppendUint16([]byte{0x81, 0}, tci&0xf000|id), rest[12:])
	}
	if !bytes.Equal(s.out, want) {
		t.Errorf("%s: % x left as % x, should be % x", o, head(frame), head(s.out), head(want))
	}
}

// XDP removes the tag of the shortest tagged frame, and changes nothing else.
func TestShortFrameLosesTagByXDP(t *testing.T) {
	s := newVLANBench(t, []membership{trunk(10), access(10)}, allXDP)
	s.learnFrame(t, 0, tagged(station(9), station(0), vid(10)))
	s.learnFrame(t, 1, tagged(station(9), station(1)))
	for _, n := range []int{18, 20, 21, 22, 60} {
		frame := tagged(station(1), station(0), vid(10))[:n]
		expect(t, fmt.Sprintf("%d bytes", n), s.xdp(0, frame), sent(1))
		if want := slices.Concat(frame[:12], frame[16:]); !bytes.Equal(s.out, want) {
			t.Errorf("%d bytes: % x became % x, want % x", n, frame, s.out, want)
		}
	}
}
