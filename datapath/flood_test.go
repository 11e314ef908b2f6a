// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// A kind of flood, by the destinations of its frames.
var floodKinds = []struct {
	name string
	dst  mac
	flag PortFlags
}{
	{"broadcast", broadcast, PortBcastFlood},
	{"multicast", group(1), PortMcastFlood},
	{"IPv6 multicast", mac{0x33, 0x33, 0, 0, 0, 1}, PortMcastFlood},
	{"unknown unicast", station(999), PortDiscover},
}

// Every kind of flood reaches the ports whose flag is on, and no port twice.
func TestFloodFlags(t *testing.T) {
	for off := range PortFlags(1 << 3) {
		var flags PortFlags
		for bit, flag := range []PortFlags{PortDiscover, PortMcastFlood, PortBcastFlood} {
			if off>>bit&1 != 0 {
				flags |= flag
			}
		}
		t.Run(fmt.Sprintf("without %#x", uint32(flags)), func(t *testing.T) {
			s := newBench(t, 4, allXDP, func(_ *Config, p []*Port) { p[2].Flags &^= flags })
			s.learn(0, 1)
			s.learn(2, 2)
			for _, kind := range floodKinds {
				want := sent(1, 2, 3)
				if flags&kind.flag != 0 {
					want = sent(1, 3)
				}
				frame := packet{dst: kind.dst, src: station(1)}.bytes()
				wantXDP := want
				if flags != 0 {
					wantXDP = passed
				}
				expect(t, kind.name, s.tcx(0, frame), want)
				expect(t, kind.name+" by XDP", s.xdp(0, frame), wantXDP)
				// the flags apply to frames to the port, not from it
				frame = packet{dst: kind.dst, src: station(2)}.bytes()
				expect(t, kind.name+" from the port", s.tcx(2, frame), sent(0, 1, 3))
			}
			// frames to known addresses are not flooded
			expect(t, "unicast", s.tcx(0, unicast(2, 1)), sent(2))
		})
	}
}

func TestFloodNobody(t *testing.T) {
	alone := newBench(t, 1, allXDP)
	alone.learn1(0, 1)
	muted := newBench(t, 3, allXDP, func(_ *Config, p []*Port) {
		for _, p := range p[1:] {
			p.Flags &^= floods
		}
	})
	muted.learn1(0, 1)
	for _, kind := range floodKinds {
		frame := packet{dst: kind.dst, src: station(1)}.bytes()
		expect(t, kind.name+" on a bridge of one port", alone.tcx(0, frame), dropped("no-member"))
		expect(t, kind.name+" without flags", muted.tcx(0, frame), dropped("no-member"))
		// XDP leaves these frames to tcx, which counts them
		expect(t, kind.name+" on a bridge of one port, by XDP", alone.xdp(0, frame), passed)
		expect(t, kind.name+" without flags, by XDP", muted.xdp(0, frame), passed)
	}
}

// learn1 makes a station known by a frame that reaches no other port.
func (s *bench) learn1(port, n int) {
	s.t.Helper()
	s.tcx(port, from(n))
	if _, ok := s.fdb()[address{station(n), 0}]; !ok {
		s.t.Fatalf("station %d was not learned", n)
	}
}

// Every copy but the last, which only the kernel sends, leaves by its own device.
func TestFloodCopies(t *testing.T) {
	s := newBench(t, sharedCables)
	count := func() (copies, bytes []uint64) {
		err := s.rack.do(func() error {
			for _, ifindex := range s.rack.near {
				l, err := netlink.LinkByIndex(int(ifindex))
				if err != nil {
					return err
				}
				copies = append(copies, l.Attrs().Statistics.TxPackets)
				bytes = append(bytes, l.Attrs().Statistics.TxBytes)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return copies, bytes
	}
	for _, size := range []int{smallest, 82, 83, 1000, 1514} {
		for in := range sharedCables {
			var want []int
			for out := range sharedCables {
				if out != in {
					want = append(want, out)
				}
			}
			last := want[len(want)-1]
			copies, octets := count()
			frame := packet{dst: broadcast, src: station(in), size: size}.bytes()
			expect(t, fmt.Sprintf("from port %d", in), s.tcx(in, frame), sent(want...))
			copiesNow, octetsNow := count()
			for out := range sharedCables {
				n := uint64(1)
				if out == in || out == last {
					n = 0
				}
				if got := copiesNow[out] - copies[out]; got != n {
					t.Errorf("from port %d: %d copies on port %d, want %d", in, got, out, n)
				}
				if got := octetsNow[out] - octets[out]; got != n*uint64(size) {
					t.Errorf("from port %d: %d bytes on port %d, want %d", in, got, out, n*uint64(size))
				}
			}
		}
	}
}

// Free slots, and ports whose device is gone, get no copy and count none.
func TestFloodGaps(t *testing.T) {
	s := newBench(t, 5, allXDP, func(c *Config, p []*Port) { *p[1] = Port{} })
	// the ports are now 0, 2, 3 and 4, in slots 1, 3, 4 and 5
	s.learn(0, 1)
	expect(t, "gap", s.tcx(0, from(1)), sent(2, 3, 4))
	expect(t, "gap, by XDP", s.xdp(0, from(1)), sent(2, 3, 4))
	s.gone(4)
	expect(t, "gap and a gone device", s.tcx(0, from(1)), sent(2, 4))
	expect(t, "gap and a gone device, by XDP", s.xdp(0, from(1)), sent(2, 4))
}

// gone takes a slot's device away, as the kernel does when it is deleted.
func (s *bench) gone(slot uint32) {
	s.t.Helper()
	for _, m := range deviceMaps() {
		if err := s.gen.coll.Maps[m].Delete(slot); err != nil {
			s.t.Fatal(err)
		}
	}
}
