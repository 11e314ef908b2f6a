// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A rate is a limit of all frames that come in by a port, or of all that leave.
type rate struct {
	storm
	burst uint32
}

func (l rate) set(p *Port, way int) {
	p.Limit[way].Rate, p.Limit[way].Kilobits, p.Limit[way].Burst = l.rate, 0, l.burst
	if l.kilobits {
		p.Limit[way].Kilobits = 1
	}
}

func (s *bench) rateBucket(port, way int) (full uint64) {
	s.t.Helper()
	s.shares(func(shared *kernelShared) { full = shared.Buckets[Slot(s.ids[port])].Rate[way] })
	return full
}

func (s *bench) setRateBucket(port, way int, full uint64) {
	s.t.Helper()
	s.shares(func(shared *kernelShared) { shared.Buckets[Slot(s.ids[port])].Rate[way] = full })
}

// leave puts a frame to the program for frames that leave by a port, on its way from another
// device.
func (s *bench) leave(port int, from uint32, ctx skbContext, frame []byte) verdict {
	s.t.Helper()
	var v verdict
	ctx.Ifindex, ctx.IngressIfindex = s.rack.near[port], from
	err := s.rack.do(func() (err error) {
		v, err = s.runContext(hookOut, &ctx, frame)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// A limit of incoming frames applies to all frames of its port, and to no other port's. It is
// checked before anything else, so that no address is learned from dropped frames.
func TestRateIn(t *testing.T) {
	bridges := map[string]func(c *Config, p []*Port){
		"plain":                   func(*Config, []*Port) {},
		"with more":               func(_ *Config, p []*Port) { p[0].Domains, p[1].Domains = 2, 2 },
		"of what leaves, as well": func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[2], LimitOut) },
	}
	for name, change := range bridges {
		t.Run(name, func(t *testing.T) {
			s := newBench(t, 3, allXDP, change, func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[0], LimitIn) })
			s.learn(0, 1)
			s.learn(2, 3)
			known, flood := unicast(3, 1), from(1)
			expect(t, "known unicast", s.tcx(0, known), sent(2)) // and remembered
			never := kernelTime(t) + 3600*stormSecond
			s.setRateBucket(0, LimitIn, never)
			for what, frame := range map[string][]byte{
				"known unicast": known, "a flood": flood, "unknown unicast": unicast(9, 1), "a new station": unicast(3, 7),
			} {
				expect(t, what, s.tcx(0, frame), dropped("rate"))
				expect(t, what+", by XDP", s.xdp(0, frame), dropped("rate"))
			}
			if _, learned := s.fdb()[address{station(7), 0}]; learned {
				t.Error("the source of a dropped frame was learned")
			}
			reserved := packet{dst: mac{1, 0x80, 0xc2, 0, 0, 0}, src: station(1)}.bytes()
			expect(t, "a frame to a reserved address", s.tcx(0, reserved), dropped("reserved"))
			expect(t, "the same by XDP", s.xdp(0, reserved), passed)
			if got := s.rateBucket(0, LimitIn); got != never {
				t.Errorf("what was dropped took something: full at %d, want %d", got, never)
			}
			expect(t, "from a port without a limit", s.tcx(2, unicast(1, 3)), sent(0))
			s.setRateBucket(0, LimitIn, 0)
			expect(t, "from a full bucket", s.tcx(0, known), sent(2))
			expect(t, "what it has taken before", s.tcx(0, known), sent(2))
		})
	}
	// forwarded frames are limited
	s := newBench(t, 2, func(c *Config, p []*Port) {
		c.GroupFwdMask = 1
		rate{storm{1, false}, 0}.set(p[0], LimitIn)
	})
	s.setRateBucket(0, LimitIn, kernelTime(t)+3600*stormSecond)
	expect(t, "a reserved address that is forwarded", s.tcx(0, packet{dst: mac{1, 0x80, 0xc2, 0, 0, 0}, src: station(1)}.bytes()), dropped("rate"))
}

// Frames that XDP leaves to tcx use up the limit only in tcx.
func TestRateTakesOnce(t *testing.T) {
	s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[0], LimitIn) })
	s.learn(0, 1)
	s.learn(1, 2)
	s.setRateBucket(0, LimitIn, 0)
	expect(t, "a flood by XDP", s.xdp(0, from(1)), passed)
	if got := s.rateBucket(0, LimitIn); got != 0 {
		t.Errorf("a frame that XDP passed took something: full at %d", got)
	}
	before := kernelTime(t)
	expect(t, "known unicast by XDP", s.xdp(0, unicast(2, 1)), sent(1))
	if got := s.rateBucket(0, LimitIn); got < before+stormSecond {
		t.Errorf("a frame that XDP sent took nothing: full at %d, sent at %d", got, before)
	}
	expect(t, "to a port with a limit of what leaves", newBench(t, 2, allXDP, func(_ *Config, p []*Port) {
		rate{storm{1, false}, 0}.set(p[1], LimitOut)
	}).learned2().xdp(0, unicast(2, 1)), passed)
}

// learned2 makes station 1 known at port 0 and station 2 at port 1.
func (s *bench) learned2() *bench {
	s.learn(0, 1)
	s.learn(1, 2)
	return s
}

// tcpFrame is a TCP packet with a header of 32 bytes, and data bytes of data.
func tcpFrame(six bool, data int) []byte {
	b := packet{dst: station(2), src: station(1), size: 14}.bytes()
	if six {
		b[12], b[13] = 0x86, 0xdd
		ip := make([]byte, 40)
		ip[0], ip[4], ip[5], ip[6], ip[7] = 0x60, byte((32+data)>>8), byte(32+data), 6, 64
		b = append(b, ip...)
	} else {
		b[12], b[13] = 8, 0
		ip := make([]byte, 20)
		ip[0], ip[2], ip[3], ip[8], ip[9] = 0x45, byte((52+data)>>8), byte(52+data), 64, 6
		b = append(b, ip...)
	}
	header := make([]byte, 32)
	header[12] = 8 << 4
	return append(append(b, header...), make([]byte, data)...)
}

// A limit in bits counts the frames on the wire: each segment of a GSO packet, with its
// headers. A limit in frames counts the segments.
func TestRateCost(t *testing.T) {
	tests := []struct {
		name  string
		limit storm
		frame []byte
		ctx   skbContext
		want  uint64
	}{
		{"a frame", storm{8, true}, packet{dst: station(2), src: station(1), size: 1000}.bytes(), skbContext{}, stormSecond},
		{"one of many", storm{1000, false}, unicast(2, 1), skbContext{}, stormSecond / 1000},
		{"ten segments of IPv4", storm{8, true}, tcpFrame(false, 1000), skbContext{GsoSize: 100, GsoSegs: 10}, stormSecond * (1066 + 9*66) / 1000},
		{"ten segments of IPv6", storm{8, true}, tcpFrame(true, 1000), skbContext{GsoSize: 100, GsoSegs: 10}, stormSecond * (1086 + 9*86) / 1000},
		{"in frames", storm{10, false}, tcpFrame(false, 1000), skbContext{GsoSize: 100, GsoSegs: 10}, stormSecond},
		{"not counted by the sender", storm{10, false}, tcpFrame(false, 1000), skbContext{GsoSize: 100}, stormSecond * 11 / 10},
	}
	for _, tt := range tests {
		s := newBench(t, 2, func(_ *Config, p []*Port) {
			rate{tt.limit, 0}.set(p[0], LimitIn)
			rate{tt.limit, 0}.set(p[1], LimitOut)
		}).learned2()
		near := func(what string, way, port int, before uint64) {
			t.Helper()
			if took := s.rateBucket(port, way) - tt.want; took < before || took > kernelTime(t) {
				t.Errorf("%s, %s: full at %d more than now, want %d", tt.name, what, s.rateBucket(port, way)-before, tt.want)
			}
		}
		s.setRateBucket(0, LimitIn, 0)
		before := kernelTime(t)
		ctx := tt.ctx
		ctx.Ifindex = s.rack.near[0]
		expect(t, tt.name, s.put(hookTCX, &ctx, tt.frame), sent(1))
		near("in", LimitIn, 0, before)
		before = kernelTime(t)
		if v := s.leave(1, s.rack.near[0], tt.ctx, tt.frame); v != pass {
			t.Errorf("%s: %s on its way out", tt.name, v)
		}
		near("out", LimitOut, 1, before)
	}
}

// A bucket holds the frames of a quarter of a second, and at least a GSO packet, or its
// configured size.
func TestRateBurst(t *testing.T) {
	const quarter = stormSecond / 4
	tests := []struct {
		limit rate
		want  uint64
	}{
		{rate{storm{8000, true}, 0}, quarter},
		{rate{storm{4_000_000_000, true}, 0}, quarter},
		{rate{storm{8, true}, 0}, 65536 * stormSecond / 1000},
		{rate{storm{8, true}, 1514}, 1514 * stormSecond / 1000},
		{rate{storm{8000, true}, 64000}, stormSecond * 64 / 1000},
		{rate{storm{1000, false}, 0}, quarter},
		{rate{storm{64, false}, 0}, stormSecond},
		{rate{storm{1000, false}, 10}, stormSecond / 100},
		{rate{storm{1<<32 - 1, true}, 1<<32 - 1}, (1<<32 - 1) * (stormSecond / 125) / (1<<32 - 1)},
	}
	for _, tt := range tests {
		s := newBench(t, 2, func(_ *Config, p []*Port) { tt.limit.set(p[0], LimitIn) }).learned2()
		const hour = 3600 * stormSecond // the clock goes on while the test runs
		for _, of := range []struct {
			left uint64
			want outcome
		}{{tt.want + hour, dropped("rate")}, {0, sent(1)}} {
			s.setRateBucket(0, LimitIn, kernelTime(t)+of.left)
			expect(t, fmt.Sprintf("%+v with %d left", tt.limit, of.left), s.tcx(0, unicast(2, 1)), of.want)
		}
		if tt.want < 2*quarter { // too short: the test may take half of it
			continue
		}
		s.setRateBucket(0, LimitIn, kernelTime(t)+tt.want/2)
		expect(t, fmt.Sprintf("%+v half empty", tt.limit), s.tcx(0, unicast(2, 1)), sent(1))
	}
}

// Frames that are dropped on their way out are counted as dropped at the port that they would
// have left by, and not as sent. Frames that the host itself sends are not limited.
func TestRateOut(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[1], LimitOut) }).learned2()
	frame := unicast(2, 1)
	expect(t, "on its way", s.tcx(0, frame), sent(1))
	before := s.stats(1)
	s.setRateBucket(1, LimitOut, kernelTime(t)+3600*stormSecond)
	for _, tt := range []struct {
		what string
		port int
		from uint32
		want verdict
	}{
		{"from another port", 1, s.rack.near[0], drop},
		{"from the host itself", 1, 0, pass},
		{"by a port without a limit", 2, s.rack.near[0], pass},
	} {
		if v := s.leave(tt.port, tt.from, skbContext{}, frame); v != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, v, tt.want)
		}
	}
	after := s.stats(1)
	if after.TxFrames != before.TxFrames-1 || after.TxBytes != before.TxBytes-uint64(len(frame)) ||
		after.Drops[kernelDropReasonDROP_RATE] != before.Drops[kernelDropReasonDROP_RATE]+1 {
		t.Errorf("counted %+v, then %+v", before, after)
	}
	if v := s.leave(1, s.rack.near[0], skbContext{}, frame); v != drop || s.stats(1).TxFrames != 0 {
		t.Errorf("a frame that nobody has counted: %s, %d sent", v, s.stats(1).TxFrames)
	}
	s.setRateBucket(1, LimitOut, 0)
	if v := s.leave(1, s.rack.near[0], skbContext{}, frame); v != pass {
		t.Errorf("%s from a full bucket", v)
	}
}

// leaving returns the programs at a device's egress.
func (s *shelf) leaving(ifindex uint32) (list []ebpf.ProgramID) {
	s.t.Helper()
	s.do(func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex), Attach: ebpf.AttachTCXEgress})
		for _, p := range result.Programs {
			list = append(list, p.ID)
		}
		return err
	})
	return list
}

// A port's device has the program for outgoing frames exactly as long as the port has a limit
// for these, with any other changes.
func TestRateProgram(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 2, berth)
	near := s.rack.near
	expect := func(what string, ports ...int) {
		t.Helper()
		for i, ifindex := range near {
			var want []ebpf.ProgramID
			if slices.Contains(ports, i) {
				want = append(want, programID(t, b, outPin))
			}
			if got := s.leaving(ifindex); !slices.Equal(got, want) {
				t.Errorf("%s: near%d has programs %v, want %v", what, i, got, want)
			}
		}
		s.expectAttached(b)
	}
	set := func(port int, l rate) func(*Config, []*Port) {
		return func(_ *Config, p []*Port) { l.set(p[port], LimitOut) }
	}
	change := func(f func(*Config, []*Port)) {
		t.Helper()
		if err := s.commit(b, f); err != nil {
			t.Fatal(err)
		}
		b = s.open("br0")
	}
	expect("at first")
	change(set(1, rate{storm{8000, true}, 0}))
	expect("with a limit", 1)
	change(func(c *Config, _ []*Port) { c.Ageing = 77 })
	expect("after another change", 1)
	change(func(c *Config, _ []*Port) { c.Ageing = 78 })
	expect("with the spare", 1)
	change(set(0, rate{storm{8000, true}, 0}))
	change(set(1, rate{}))
	expect("at the other port", 0)
	// the limit was set while the device was elsewhere
	if err := b.link(Ports(&b.Config)[0].Id, hookOut).remove(); err != nil {
		t.Fatal(err)
	}
	expect("taken off")
	s.do(func() error { return b.Replace(Ports(&b.Config)[0]) })
	expect("of a device that is back", 0)
	change(func(_ *Config, p []*Port) { rate{storm{8000, true}, 0}.set(p[0], LimitIn) })
	expect("both ways", 0)
	change(set(0, rate{}))
	expect("one way")
	change(func(c *Config, _ []*Port) { rate{storm{8000, true}, 0}.set(Berths(c)[0], LimitOut) })
	expect("of a vacant berth")
	s.occupy(b, near[2], "near2")
	expect("of a berth", 2)
	change(func(c *Config, _ []*Port) { c.Ageing = 79 })
	expect("of what was a berth", 2)
	change(func(_ *Config, p []*Port) { *p[2] = Port{} })
	expect("of a port that has left")
	change(set(0, rate{storm{8000, true}, 0}))
	s.do(func() error { return b.Remove(keepAll) })
	for i, ifindex := range near {
		if got := s.leaving(ifindex); len(got) > 0 {
			t.Errorf("after the bridge: near%d has programs %v", i, got)
		}
	}
}

// The buckets of changed limits are full, so that the debt of a low limit does not delay frames
// under a high one.
func TestRateRefill(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2, func(_ *Config, p []*Port) { rate{storm{1, true}, 0}.set(p[0], LimitIn) })
	full := func(set *uint64) (f uint64) {
		s.do(func() error {
			return b.shared(func(s *kernelShared) {
				if set != nil {
					s.Buckets[1].Rate[LimitIn] = *set
				}
				f = s.Buckets[1].Rate[LimitIn]
			})
		})
		return f
	}
	debt := uint64(77)
	full(&debt)
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing = 77 }); err != nil {
		t.Fatal(err)
	}
	b = s.open("br0")
	if got := full(nil); got != debt {
		t.Errorf("another setting: full at %d, want %d", got, debt)
	}
	if err := s.commit(b, func(_ *Config, p []*Port) { rate{storm{1000, true}, 0}.set(p[0], LimitIn) }); err != nil {
		t.Fatal(err)
	}
	b = s.open("br0")
	if got := full(nil); got != 0 {
		t.Errorf("another rate: full at %d", got)
	}
}
