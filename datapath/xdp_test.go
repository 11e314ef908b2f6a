// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
)

// XDP forwards frames that it can decide on without learning, and leaves the rest to
// tcx. In every case the two agree on the ports that a frame goes to.
func TestXDPDeclines(t *testing.T) {
	s := newBench(t, 4, allXDP, func(_ *Config, p []*Port) {
		offXDP(p[2])             // a port that takes no frames of XDP
		p[3].Facts &^= PortXDPTx // its far end is not ready for frames of XDP
	})
	s.learn(0, 0)
	s.learn(1, 1)
	s.learn(2, 2)
	s.learn(3, 3)
	tests := []struct {
		name     string
		dst, src mac
		xdp, tcx outcome
	}{
		{"known unicast", station(1), station(0), sent(1), sent(1)},
		{"unknown source", station(1), station(50), passed, sent(1)},
		{"unknown source and destination", station(51), station(52), passed, sent(1, 2, 3)},
		{"unknown destination", station(53), station(0), passed, sent(1, 2, 3)},
		{"broadcast", broadcast, station(0), passed, sent(1, 2, 3)},
		{"multicast", group(1), station(0), passed, sent(1, 2, 3)},
		{"to a port without XDP", station(2), station(0), passed, sent(2)},
		{"to a port that takes no XDP frames", station(3), station(0), passed, sent(3)},
		{"to its own port", station(0), station(0), passed, dropped("same-port")},
		{"reserved", reserved(0), station(0), passed, dropped("reserved")},
		{"bad source", station(1), group(0), passed, dropped("bad-source")},
		{"source on another port", station(1), station(2), passed, sent(1)}, // moves the address
	}
	for _, tt := range tests {
		frame := packet{dst: tt.dst, src: tt.src}.bytes()
		expect(t, tt.name, s.xdp(0, frame), tt.xdp)
		expect(t, tt.name+", tcx", s.tcx(0, frame), tt.tcx)
	}
}

// XDP never writes the FDB: it learns, moves, refreshes and refuses no address.
func TestXDPDoesNotLearn(t *testing.T) {
	s := newBench(t, 3, allXDP, func(c *Config, _ []*Port) { c.FdbMax = 3 })
	s.learn(0, 0)
	s.learn(1, 1)
	s.store(address{station(5), 0}, spot{port: 1, pin: fdbStatic})
	before := s.fdb()
	s.at(benchNow + 7)
	for port := range 3 {
		for _, src := range []int{0, 1, 2, 3, 4, 5} {
			for _, dst := range []mac{broadcast, group(1), station(0), station(1), station(7)} {
				s.xdp(port, packet{dst: dst, src: station(src)}.bytes())
			}
		}
	}
	s.expectFDB(before)
	for port := range 3 {
		got := s.stats(port)
		if got.Moves != 0 || got.Refused != 0 || got.Learned > 1 {
			t.Errorf("port %d: %d learned, %d moves, %d refused", port, got.Learned, got.Moves, got.Refused)
		}
	}
}

// The first frame of a station in a second is left to tcx, which refreshes the address;
// then XDP takes over until the second is over.
func TestXDPRefresh(t *testing.T) {
	s := newBench(t, 3, allXDP)
	s.learn(1, 1)
	s.learn(0, 0)
	for second := range uint32(3) {
		s.at(benchNow + 1 + second)
		expect(t, "first frame of a second, by XDP", s.xdp(0, unicast(1, 0)), passed)
		expect(t, "first frame of a second", s.tcx(0, unicast(1, 0)), sent(1))
		for range 3 {
			expect(t, "next frame, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
		}
		if got := s.fdb()[address{station(0), 0}].used; got != benchNow+1+second {
			t.Errorf("refreshed at %d, want %d", got, benchNow+1+second)
		}
	}
	// pinned addresses need no refreshing
	s.store(address{station(0), 0}, spot{port: 0, pin: fdbStatic})
	s.store(address{station(1), 0}, spot{port: 1, pin: fdbSticky})
	s.at(benchNow + 100)
	expect(t, "between pinned addresses, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
}

// A port that has lost its device gets no frames, and frames from its old index belong
// to no port.
func TestGoneDevice(t *testing.T) {
	s := newBench(t, 4, allXDP)
	s.learn(0, 0)
	s.learn(1, 1)
	expect(t, "before", s.tcx(0, unicast(1, 0)), sent(1))
	expect(t, "before, by XDP", s.xdp(0, unicast(1, 0)), sent(1))
	s.gone(2)
	// remembered decisions from before must not be followed
	expect(t, "remembered decision, by XDP", s.xdp(0, unicast(1, 0)), passed)
	expect(t, "remembered decision", s.tcx(0, unicast(1, 0)), sent(2, 3))
	s.at(benchNow)
	expect(t, "new decision", s.tcx(0, unicast(1, 0)), sent(2, 3))
	expect(t, "new decision, by XDP", s.xdp(0, unicast(1, 0)), sent(2, 3))
	// a new device with the same index
	got := s.run1(hookTCX, s.rack.near[1], from(9))
	if got != pass {
		t.Errorf("from the index of a gone device: %s, want it left alone", got)
	}
	if got := s.run1(hookXDP, s.rack.near[1], from(9)); got != pass {
		t.Errorf("from the index of a gone device, by XDP: %s, want pass", got)
	}
	if _, ok := s.fdb()[address{station(9), 0}]; ok {
		t.Error("learned from the index of a gone device")
	}
}

// run1 puts one frame to a program and returns only the verdict.
func (s *bench) run1(h hook, ifindex uint32, frame []byte) (v verdict) {
	s.t.Helper()
	err := s.rack.do(func() (err error) {
		v, err = s.run(h, ifindex, frame)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// A frame in several buffers is left to tcx: XDP's helpers use only the first buffer
// when they check the MTU (bpf_xdp_check_mtu()) and when they copy (xdpf_clone()).
func TestXDPFragments(t *testing.T) {
	s := newBench(t, 3, allXDP)
	s.learn(0, 0)
	s.learn(1, 1)
	for _, tt := range []struct{ size, first int }{
		{200, 18}, {200, 199}, {1514, 1000}, {1515, 1000}, {2000, 1514}, {9000, 100}, {60000, 1514},
	} {
		ctx := func() *xdpContext {
			return &xdpContext{IngressIfindex: s.rack.near[0], DataEnd: uint32(tt.first)}
		}
		what := fmt.Sprintf("%d bytes, %d in the first buffer", tt.size, tt.first)
		known := packet{dst: station(1), src: station(0), size: tt.size}.bytes()
		s.at(benchNow)
		expect(t, "unicast of "+what, s.put(hookXDP, ctx(), known), passed)
		flood := packet{dst: broadcast, src: station(0), size: tt.size}.bytes()
		expect(t, "broadcast of "+what, s.put(hookXDP, ctx(), flood), passed)
		// and by a remembered decision
		expect(t, "small unicast", s.tcx(0, unicast(1, 0)), sent(1))
		expect(t, "second unicast of "+what, s.put(hookXDP, ctx(), known), passed)
	}
}
