// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
	"time"
)

// The kinds of floods that can be limited, in the order of Port.Storm.
var stormKinds = []struct {
	name   string
	dst    mac
	reason string
}{
	StormBroadcast: {"broadcast", broadcast, "storm-bcast"},
	StormMulticast: {"multicast", group(1), "storm-mcast"},
	StormUnknown:   {"unknown unicast", station(999), "storm-unknown"},
}

// A storm is one limit.
type storm struct {
	rate     uint32
	kilobits bool
}

func (l storm) String() string { return fmt.Sprintf("%d, kilobits %t", l.rate, l.kilobits) }

// set gives a port the limit.
func (l storm) set(p *Port, kind int) {
	p.Storm[kind].Rate, p.Storm[kind].Kilobits = l.rate, 0
	if l.kilobits {
		p.Storm[kind].Kilobits = 1
	}
}

const (
	stormSecond = 256 * uint64(time.Second) // BUCKET_SECOND
	stormFew    = 8                         // STORM_FEW
)

// kernelTime is the clock of the buckets.
func kernelTime(t testing.TB) uint64 {
	t.Helper()
	return uint64(clockNow(t)) * 256
}

func (s *bench) bucket(port, kind int) uint64 {
	s.t.Helper()
	var full uint64
	s.shares(func(shared *kernelShared) { full = shared.Buckets[Slot(s.ids[port])].Storm[kind] })
	return full
}

func (s *bench) setBucket(port, kind int, full uint64) {
	s.t.Helper()
	var b kernelPortBuckets
	b.Storm[kind] = full
	s.shares(func(shared *kernelShared) { shared.Buckets[Slot(s.ids[port])] = b })
}

// Each limit applies to its port and its kind of flood only.
func TestStormLimits(t *testing.T) {
	for limited, kind := range stormKinds {
		t.Run(kind.name, func(t *testing.T) {
			s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { storm{1, false}.set(p[0], limited) })
			s.learn1(0, 1)
			s.learn1(1, 2)
			never := kernelTime(t) + 3600*stormSecond // the bucket is empty until then
			s.setBucket(0, limited, never)
			for i, k := range stormKinds {
				frame := packet{dst: k.dst, src: station(1)}.bytes()
				want := sent(1, 2)
				if i == limited {
					want = dropped(k.reason)
				}
				expect(t, k.name, s.tcx(0, frame), want)
				expect(t, k.name+" by XDP", s.xdp(0, frame), passed)
				frame = packet{dst: k.dst, src: station(2)}.bytes()
				expect(t, k.name+" from a port without limits", s.tcx(1, frame), sent(0, 2))
			}
			expect(t, "known unicast", s.tcx(0, unicast(2, 1)), sent(1))
			expect(t, "known unicast by XDP", s.xdp(0, unicast(2, 1)), sent(1))
			if got := s.bucket(0, limited); got != never {
				t.Errorf("what was dropped took something: full at %d, want %d", got, never)
			}

			// no address is learned from dropped broadcast and multicast frames
			frame := packet{dst: kind.dst, src: station(3)}.bytes()
			expect(t, "from a new station", s.tcx(0, frame), dropped(kind.reason))
			if _, learned := s.fdb()[address{station(3), 0}]; learned != (limited == StormUnknown) {
				t.Errorf("the source of a dropped frame was learned: %t", learned)
			}
			s.setBucket(0, limited, 0)
			expect(t, "from a full bucket", s.tcx(0, frame), sent(1, 2))
		})
	}
}

// The cost of a frame is exact, and is added to the cost of others.
func TestStormCost(t *testing.T) {
	tests := []struct {
		limit         storm
		size          int
		gsoSize, segs uint32
		want          uint64 // cost in the bucket's time
	}{
		{limit: storm{1, false}, size: 60, want: stormSecond},
		{limit: storm{1, false}, size: 1514, want: stormSecond},
		{limit: storm{1000, false}, size: 60, want: stormSecond / 1000},
		{limit: storm{3, false}, size: 60, want: stormSecond / 3},
		{limit: storm{200_000_000, false}, size: 60, want: 5 * 256},
		{limit: storm{1<<32 - 1, false}, size: 60, want: 59}, // 0.2328 ns
		// GSO packets count as many frames as they have segments
		{limit: storm{1000, false}, size: 1500, gsoSize: 100, segs: 15, want: 15 * stormSecond / 1000},
		{limit: storm{1000, false}, size: 1554, gsoSize: 100, want: 16 * stormSecond / 1000},
		// and as many bits as they have, with one header
		{limit: storm{8, true}, size: 1500, gsoSize: 100, segs: 15, want: 15 * stormSecond / 10},
		{limit: storm{1, true}, size: 125, want: stormSecond},
		{limit: storm{8, true}, size: 1000, want: stormSecond},
		{limit: storm{10_000, true}, size: 1250, want: stormSecond / 1000},
		{limit: storm{100_000_000, true}, size: 1250, want: 100 * 256},
		// more than the bucket can hold
		{limit: storm{1, true}, size: 1500, gsoSize: 50, segs: 30, want: 12 * stormSecond},
	}
	for _, tt := range tests {
		s := newBench(t, 2, func(_ *Config, p []*Port) { tt.limit.set(p[0], StormBroadcast) })
		frame := packet{dst: broadcast, src: station(1), size: tt.size}.bytes()
		ctx := skbContext{Ifindex: s.rack.near[0], GsoSize: tt.gsoSize, GsoSegs: tt.segs}
		what := fmt.Sprintf("%v, %d bytes, segments of %d: %d", tt.limit, tt.size, tt.gsoSize, tt.segs)

		before := kernelTime(t)
		expect(t, what, s.put(hookTCX, &ctx, frame), sent(1))
		if took := s.bucket(0, StormBroadcast) - tt.want; took < before || took > kernelTime(t) {
			t.Errorf("%s: an idle bucket is full at %d less %d, want the time between %d and now", what, took, tt.want, before)
		}

		// a bucket that is neither full nor empty during the test; if there is no such
		// state, the cost from a full one is enough
		if burst := uint64(stormFew) * stormSecond / uint64(tt.limit.rate); !tt.limit.kilobits && tt.limit.rate < 10 {
			var left uint64
			for again := true; again; again = kernelTime(t) > left { // otherwise it may have been full
				left = kernelTime(t) + burst/2 + stormSecond
				s.setBucket(0, StormBroadcast, left)
				expect(t, what+", again", s.put(hookTCX, &ctx, frame), sent(1))
			}
			if got := s.bucket(0, StormBroadcast) - left; got != tt.want {
				t.Errorf("%s: took %d, want %d", what, got, tt.want)
			}
		}
	}
}

// A bucket that was full long ago is full, even if the time has overrun since.
func TestStormIdle(t *testing.T) {
	s := newBench(t, 2, func(_ *Config, p []*Port) { storm{1, false}.set(p[0], StormBroadcast) })
	frame := from(1)
	for _, ago := range []uint64{1, stormSecond, 1000 * stormSecond, 1 << 54, 1 << 62, 1 << 63, 1<<64 - 1<<59} {
		before := kernelTime(t)
		s.setBucket(0, StormBroadcast, before-ago)
		expect(t, fmt.Sprintf("idle for %d", ago), s.tcx(0, frame), sent(1))
		if at := s.bucket(0, StormBroadcast) - stormSecond; at < before || at > kernelTime(t) {
			t.Errorf("idle for %d: full at %d, want a second after a time between %d and now", ago, at, before)
		}
	}
}

// A packet with more segments than a limit allows for hours has its full cost, too.
func TestStormManySegments(t *testing.T) {
	s := newBench(t, 2, func(_ *Config, p []*Port) { storm{1, false}.set(p[0], StormBroadcast) })
	ctx := skbContext{Ifindex: s.rack.near[0], GsoSize: 1, GsoSegs: 60000}
	frame := packet{dst: broadcast, src: station(1), size: 1400}.bytes()
	expect(t, "the first", s.put(hookTCX, &ctx, frame), sent(1))
	for range 3 {
		expect(t, "one more", s.put(hookTCX, &ctx, frame), dropped("storm-bcast"))
	}
}

// Several CPUs together get the contents of the bucket, and what the limit adds
// meanwhile.
func TestStormTogether(t *testing.T) {
	const threads, each = 4, 20000
	for _, limit := range []storm{{5000, false}, {2400, true}} { // the same for frames of 60 bytes
		s := newBench(t, 2, func(_ *Config, p []*Port) { limit.set(p[0], StormBroadcast) })
		start := time.Now()
		err := s.rack.together(threads, func(int) error {
			for range each {
				if _, err := s.run(hookTCX, s.rack.near[0], from(1)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start).Seconds()
		burst := 500.0
		if limit.kilobits {
			burst = max(burst, stormFew*1514/60)
		}
		stats := s.stats(0)
		took = took + 0.001
		most := uint64(burst+5000*took) + threads
		if n := s.stats(1).TxFrames; n < uint64(burst) || n > most || n == threads*each {
			t.Errorf("%v: %d of %d frames in %.2f s, want %v to %d", limit, n, threads*each, took, burst, most)
		} else if dropped := stats.Drops[kernelDropReasonDROP_STORM_BCAST]; n+dropped != threads*each || stats.RxFrames != threads*each {
			t.Errorf("%v: %d frames in, %d out, %d dropped, want all of %d", limit, stats.RxFrames, n, dropped, threads*each)
		}
	}
}

// New ports have full buckets, whatever port had the slot before, and so have changed
// limits. Other changes leave buckets as they are.
func TestStormRefill(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2, func(_ *Config, p []*Port) { storm{100, false}.set(p[0], StormBroadcast) })
	const slot = 1
	full := func() (f [3]uint64) {
		s.do(func() error { return b.shared(func(s *kernelShared) { f = s.Buckets[slot].Storm }) })
		return f
	}
	taken := [3]uint64{7, 8, 9}
	take := func() {
		s.do(func() error { return b.shared(func(s *kernelShared) { s.Buckets[slot].Storm = taken }) })
	}
	changes := []struct {
		name   string
		change func(c *Config, p []*Port)
		want   [3]uint64
	}{
		{"another setting", func(c *Config, p []*Port) { c.Ageing, p[0].FdbMax = 7, 7 }, taken},
		{"a limit of another port", func(_ *Config, p []*Port) { storm{5, true}.set(p[1], StormUnknown) }, taken},
		{"another rate", func(_ *Config, p []*Port) { storm{200, false}.set(p[0], StormBroadcast) }, [3]uint64{}},
		{"another unit", func(_ *Config, p []*Port) { storm{200, true}.set(p[0], StormBroadcast) }, [3]uint64{}},
		{"a limit more", func(_ *Config, p []*Port) { storm{1, false}.set(p[0], StormMulticast) }, [3]uint64{}},
		{"a new port in the slot", func(c *Config, p []*Port) {
			storms := p[0].Storm
			*p[0] = Port{}
			next := NewPort(c, "next")
			next.Ifindex, next.Flags, next.Storm = s.rack.near[2], PortLearn|floods, storms
			if Slot(next.Id) != slot {
				t.Fatalf("the new port has slot %d, want %d", Slot(next.Id), slot)
			}
		}, [3]uint64{}},
	}
	for _, tt := range changes {
		take()
		if err := s.commit(b, tt.change); err != nil {
			t.Fatal(err)
		}
		if got := full(); got != tt.want {
			t.Errorf("%s: full at %v, want %v", tt.name, got, tt.want)
		}
	}
}
