// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// setMTU changes the MTU of a port's device.
func (r *rack) setMTU(t testing.TB, port, mtu int) {
	t.Helper()
	err := r.do(func() error {
		l, err := netlink.LinkByIndex(int(r.near[port]))
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, mtu)
	})
	if err != nil {
		t.Fatalf("MTU %d of port %d: %v", mtu, port, err)
	}
}

func TestMTU(t *testing.T) {
	const small, large = 1400, 2000
	r := ownRack(t, 4)
	r.setMTU(t, 1, small)
	r.setMTU(t, 2, large)
	s := newBenchOn(t, r, 4, allXDP)
	r.setMTU(t, 3, 68)
	s.learn(0, 0)
	s.learn(1, 1)
	s.learn(2, 2)
	s.learn(3, 3)
	for _, tt := range []struct {
		size   int
		to     int
		fits   bool
		always bool // also to the smallest MTU
	}{
		{size: 60, to: 1, fits: true, always: true},
		{size: 68 + etherHeader, to: 1, fits: true, always: true},
		{size: 68 + etherHeader + 1, to: 1, fits: true},
		{size: small + etherHeader, to: 1, fits: true},
		{size: small + etherHeader + 1, to: 1},
		{size: 1500 + etherHeader, to: 1},
		{size: 1500 + etherHeader, to: 2, fits: true},
		{size: large + etherHeader, to: 2, fits: true},
		{size: large + etherHeader + 1, to: 2},
		{size: 3000, to: 2},
	} {
		frame := packet{dst: station(tt.to), src: station(0), size: tt.size}.bytes()
		want, wantXDP := dropped("mtu"), passed
		if tt.fits {
			want, wantXDP = sent(tt.to), sent(tt.to)
		}
		what := fmt.Sprintf("%d bytes to port %d", tt.size, tt.to)
		s.at(benchNow) // ends remembered decisions
		s.tcx(1, from(1))
		s.tcx(2, from(2))
		s.tcx(3, from(3))
		// the first frame is decided anew, and the next one from memory
		for range 2 {
			expect(t, what, s.tcx(0, frame), want)
			expect(t, what+" by XDP", s.xdp(0, frame), wantXDP)
		}
		// a decision for a smaller frame does not apply to a larger one
		expect(t, "a small frame", s.tcx(0, unicast(tt.to, 0)), sent(tt.to))
		expect(t, what+" after a small one", s.tcx(0, frame), want)
		expect(t, what+" after a small one, by XDP", s.xdp(0, frame), wantXDP)

		want, wantXDP = dropped("mtu"), passed
		if tt.always {
			want, wantXDP = sent(3), sent(3)
		}
		frame = packet{dst: station(3), src: station(0), size: tt.size}.bytes()
		expect(t, fmt.Sprintf("%d bytes to the smallest MTU", tt.size), s.tcx(0, frame), want)
		expect(t, fmt.Sprintf("%d bytes to the smallest MTU, by XDP", tt.size), s.xdp(0, frame), wantXDP)
	}
}

// A flood reaches the ports whose MTU it fits.
func TestMTUFlood(t *testing.T) {
	r := ownRack(t, 4)
	r.setMTU(t, 1, 1000)
	r.setMTU(t, 2, 68)
	s := newBenchOn(t, r, 4, allXDP)
	s.learn(0, 1)
	for _, tt := range []struct {
		size      int
		want, xdp outcome
	}{
		{68 + etherHeader, sent(1, 2, 3), sent(1, 2, 3)},
		{68 + etherHeader + 1, outcome{redirect, []int{1, 3}, []string{"mtu"}}, passed},
		{1000 + etherHeader, outcome{redirect, []int{1, 3}, []string{"mtu"}}, passed},
		{1000 + etherHeader + 1, outcome{redirect, []int{3}, []string{"mtu", "mtu"}}, passed},
		{1500 + etherHeader, outcome{redirect, []int{3}, []string{"mtu", "mtu"}}, passed},
	} {
		frame := packet{dst: broadcast, src: station(1), size: tt.size}.bytes()
		expect(t, fmt.Sprintf("%d bytes", tt.size), s.tcx(0, frame), tt.want)
		expect(t, fmt.Sprintf("%d bytes by XDP", tt.size), s.xdp(0, frame), tt.xdp)
	}
	frame := packet{dst: broadcast, src: station(1), size: 1500 + etherHeader + 1}.bytes()
	if got := s.tcx(0, frame); got.Verdict != drop || len(got.Out) > 0 {
		t.Errorf("too large for all: %s", got)
	}
}

// The device's present MTU applies to every frame, also with a remembered decision.
func TestMTUChanges(t *testing.T) {
	r := ownRack(t, 2)
	s := newBenchOn(t, r, 2, allXDP)
	s.learn(0, 0)
	s.learn(1, 1)
	frame := packet{dst: station(1), src: station(0), size: 1514}.bytes()
	expect(t, "before", s.tcx(0, frame), sent(1))
	r.setMTU(t, 1, 1400)
	s.at(benchNow)
	s.learn(1, 1)
	expect(t, "smaller", s.tcx(0, frame), dropped("mtu"))
	expect(t, "smaller, by XDP", s.xdp(0, frame), passed)
	r.setMTU(t, 1, 1500)
	expect(t, "larger again, at once", s.tcx(0, frame), sent(1))
	r.setMTU(t, 1, 3000)
	big := packet{dst: station(1), src: station(0), size: 3014}.bytes()
	expect(t, "larger than the decision knows", s.tcx(0, big), sent(1))
	expect(t, "larger than the decision knows, by XDP", s.xdp(0, big), sent(1))
}

// A tag in the frame is allowed in addition to the MTU.
func TestMTUTag(t *testing.T) {
	s := newBench(t, 2, allXDP)
	sender, receiver := packet{dst: broadcast, src: station(0)}.tagged(10), packet{dst: broadcast, src: station(1)}.tagged(10)
	s.tcx(0, sender.bytes())
	s.tcx(1, receiver.bytes())
	for size, want := range map[int]outcome{1500 + etherHeader + 4: sent(1), 1500 + etherHeader + 5: dropped("mtu")} {
		frame := packet{dst: station(1), src: station(0), size: size}.tagged(10).bytes()
		for range 2 {
			expect(t, fmt.Sprintf("%d bytes with a tag", size), s.tcx(0, frame), want)
		}
	}
}

// A feature that looks at tags without filtering VLANs allows a tag of any kind in
// addition to the MTU.
func TestMTUOfServiceTag(t *testing.T) {
	for name, change := range map[string]func(*Config, []*Port){
		"plain":  func(*Config, []*Port) {},
		"non-IP": func(_ *Config, p []*Port) { p[2].Flags |= PortBlockNonIP },
	} {
		s := newBench(t, 3, change)
		s.learn(0, 0)
		s.learn(1, 1)
		frame := packet{dst: station(1), src: station(0), size: 1514 + 4, tags: []tag{{tpid: typeQinQ, vid: 5}}}.bytes()
		expect(t, name, s.tcx(0, frame), sent(1))
	}
}
