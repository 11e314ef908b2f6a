// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// watched switches a bench's watches on: frames of at most snaplen bytes are captured
// at all points, and sources are counted.
func watched(snaplen uint32, flags ...BridgeFlags) func(c *Config, p []*Port) {
	return func(c *Config, p []*Port) {
		allXDP(c, p)
		for _, f := range flags {
			c.Flags |= uint32(f)
		}
		c.Snaplen, c.CaptureRing = snaplen, 1<<20
		c.CapturePoints = 1<<CaptureIn | 1<<CaptureOut | 1<<CaptureDrop
	}
}

// captured returns what a bench has captured so far, as "in 0", "out 1" and
// "malformed 0" with the port's number, and the frames.
func (s *bench) captured() (where []string, list []Captured) {
	s.t.Helper()
	ring, err := ringbuf.NewReader(s.gen.coll.Maps[kernelMapCaptureRing])
	if err != nil {
		s.t.Fatal(err)
	}
	defer ring.Close()
	frames := &Frames{ring: ring, missed: s.gen.coll.Maps[kernelMapCounters]}
	for {
		f, err := frames.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return where, list
		}
		if err != nil {
			s.t.Fatal(err)
		}
		f.Data = slices.Clone(f.Data)
		what := map[CapturePoint]string{CaptureIn: "in", CaptureOut: "out", CaptureDrop: Reasons()[f.Reason]}[f.Point]
		where = append(where, what+" "+numbers([]int{slices.Index(s.ids, f.Port)})[1:])
		list = append(list, f)
	}
}

// A frame is captured once at each point at which it is counted. Ports that a flood leaves out
// have no captured copy.
func TestCapturePoints(t *testing.T) {
	s := newBench(t, 4, watched(uint32(MaxSnaplen), BridgeCapture), func(_ *Config, p []*Port) {
		p[0].Domains, p[1].Domains = 2, 2
	})
	s.learn(3, 3)
	s.captured()
	whole := packet{dst: broadcast, src: station(1), size: 200}.tagged(10)
	cut := whole
	cut.size = etherHeader + 1
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"flood past a protected port", from(1), "in 0, out 2, out 3"},
		{"known", unicast(3, 1), "in 0, out 3"},
		{"remembered", unicast(3, 1), "in 0, out 3"},
		{"to itself", unicast(1, 1), "same-port 0"},
		{"malformed", cut.bytes(), "malformed 0"},
		{"with a tag", whole.bytes(), "in 0, out 2, out 3"},
		{"too large for all", packet{dst: broadcast, src: station(1), size: 1600}.bytes(), "mtu 0, mtu 0"},
		{"a header alone", packet{dst: station(3), src: station(1), size: etherHeader}.bytes(), "in 0, out 3"},
	} {
		s.tcx(0, tt.frame)
		where, list := s.captured()
		if got := strings.Join(where, ", "); got != tt.want {
			t.Errorf("%s: captured %s, want %s", tt.name, got, tt.want)
		}
		for i, f := range list {
			if string(f.Data) != string(tt.frame) || f.Length != len(tt.frame) {
				t.Errorf("%s, %s: % x of %d bytes, want % x", tt.name, where[i], f.Data, f.Length, tt.frame)
			}
			if vlan := uint16(0); f.VLAN != vlan && !(tt.name == "with a tag" && f.VLAN == 10) {
				t.Errorf("%s, %s: in VLAN %d", tt.name, where[i], f.VLAN)
			}
		}
	}
	// XDP leaves these frames to tcx
	expect(t, "by XDP", s.xdp(0, unicast(3, 1)), passed)
}

// Ports and points select the frames.
func TestCaptureChoice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(c *Config, p []*Port)
		want   string
	}{
		{"drops", func(c *Config, _ []*Port) { c.CapturePoints = 1 << CaptureDrop }, "same-port 0"},
		{"at the way out", func(c *Config, p []*Port) {
			c.CapturePoints |= 1 << CapturePorts
			p[1].Flags |= PortCapture
		}, "out 1"},
		{"at the way in", func(c *Config, p []*Port) {
			c.CapturePoints |= 1 << CapturePorts
			p[0].Flags |= PortCapture
		}, "in 0, same-port 0"},
		{"elsewhere", func(c *Config, p []*Port) {
			c.CapturePoints |= 1 << CapturePorts
			p[2].Flags |= PortCapture
		}, ""},
	} {
		s := newBench(t, 3, watched(64, BridgeCapture), tt.change)
		s.learn(1, 2)
		s.captured()
		s.tcx(0, unicast(2, 1))
		s.tcx(0, unicast(1, 1))
		if where, _ := s.captured(); strings.Join(where, ", ") != tt.want {
			t.Errorf("%s: captured %q, want %q", tt.name, where, tt.want)
		}
	}
}

// The captured part of a frame has the configured length, for every length of the
// frame.
func TestCaptureSnaplen(t *testing.T) {
	for _, snaplen := range []int{18, 19, 60, 1000, MaxSnaplen} {
		s := newBench(t, 2, watched(uint32(snaplen), BridgeCapture))
		for _, size := range []int{14, 15, 18, 19, 59, 60, 61, 999, 1000, 1001, 1514} {
			f := packet{dst: broadcast, src: station(1), size: size}.bytes()
			s.tcx(0, f)
			where, list := s.captured()
			if got := strings.Join(where, ", "); got != "in 0, out 1" {
				t.Fatalf("%d bytes of %d: captured %s", snaplen, size, got)
			}
			for _, c := range list {
				if c.Length != size || string(c.Data) != string(f[:min(size, snaplen)]) {
					t.Errorf("%d bytes of %d: got %d of %d", snaplen, size, len(c.Data), c.Length)
				}
			}
		}
	}
}

// Frames that find no room in the buffer are counted.
func TestCaptureMissed(t *testing.T) {
	s := newBench(t, 2, watched(uint32(MaxSnaplen), BridgeCapture), func(c *Config, _ []*Port) { c.CaptureRing = uint32(os.Getpagesize()) })
	s.learn(1, 2)
	s.captured()
	const n, size = 100, 1000
	for range n {
		s.tcx(0, packet{dst: station(2), src: station(1), size: size}.bytes())
	}
	frames := &Frames{missed: s.gen.coll.Maps[kernelMapCounters]}
	missed, err := frames.Missed()
	if err != nil {
		t.Fatal(err)
	}
	where, _ := s.captured()
	if len(where) < 1 || int(missed)+len(where) != 2*n {
		t.Errorf("%d frames captured and %d missed, want %d together", len(where), missed, 2*n)
	}
	if missed, err = frames.Missed(); err != nil || missed != 0 {
		t.Errorf("%d frames missed since then, %v", missed, err)
	}
}

// Sources are counted by VLAN, whatever the outcome of their frames.
func TestTalkers(t *testing.T) {
	s := newBench(t, 3, watched(64, BridgeTalkers))
	s.learn(1, 2)
	for range 10 {
		s.tcx(0, unicast(2, 1))
		s.xdp(0, unicast(2, 1))
	}
	s.tcx(0, unicast(1, 1))
	s.tcx(0, packet{dst: broadcast, src: station(1)}.tagged(10).bytes())
	expect(t, "a flood by XDP", s.xdp(0, from(1)), passed) // otherwise it would not be counted
	want := map[address][2]uint64{
		{station(1), 0}:  {21, 21 * smallest},
		{station(1), 10}: {1, uint64(len(packet{dst: broadcast, src: station(1)}.tagged(10).bytes()))},
		{station(2), 0}:  {1, smallest},
	}
	got := map[address][2]uint64{}
	var key uint64
	var perCPU []kernelTalker
	for entries := s.gen.coll.Maps[kernelMapTalkers].Iterate(); entries.Next(&key, &perCPU); {
		k := talkerOf(key, perCPU)
		got[address{k.MAC, k.VLAN}] = [2]uint64{k.Frames, k.Bytes}
		if k.MAC == station(1) && k.Port != s.ids[0] || k.MAC == station(2) && k.Port != s.ids[1] {
			t.Errorf("%x was heard on port %#x", k.MAC, k.Port)
		}
	}
	for a, n := range want {
		if got[a] != n {
			t.Errorf("%s: %d frames and bytes, want %d", a, got[a], n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// An address that several CPUs have counted is at the port of its last frame.
func TestTalkerOf(t *testing.T) {
	const early, late = 1<<32 - 5, 3 // the clock starts again between them
	got := talkerOf(key(station(1), 7), []kernelTalker{
		{}, {Frames: 100, Bytes: 6000, Port: 1, Heard: early}, {Frames: 2, Bytes: 120, Port: 2, Heard: late}, {}, {Frames: 3, Bytes: 180, Port: 1, Heard: early},
	})
	if want := (Talker{MAC: station(1), VLAN: 7, Port: 2, Frames: 105, Bytes: 6300}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Only bridges with a watch have its instructions; their programs are verified in a
// moment, too.
func TestWatchCosts(t *testing.T) {
	plain := newBench(t, 4, watched(0))
	for name, flag := range map[string]BridgeFlags{"capture": BridgeCapture, "talkers": BridgeTalkers} {
		s := newBench(t, 4, watched(uint32(MaxSnaplen), flag))
		for h, budget := range map[hook]uint32{hookTCX: verifiedTCX, hookXDP: verifiedXDP} {
			before, _ := size(t, plain.gen.program(h))
			kept, verified := size(t, s.gen.program(h))
			t.Logf("%s: %s %+d instructions, %d verified", name, h, kept-before, verified)
			if h == hookTCX && kept <= before {
				t.Errorf("%s: %s has %d instructions, %d without", name, h, kept, before)
			}
			if verified > budget {
				t.Errorf("%s, %s: the verifier processed %d insns, the budget is %d", name, h, verified, budget)
			}
		}
	}
}

// A watch is held by the process that watches, and ends with it.
func TestWatchHold(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	hold := func(w Watch) func() {
		t.Helper()
		release, err := b.Hold(w)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	held := func(w Watch, want bool) {
		t.Helper()
		if got := b.Held(w); got != want {
			t.Errorf("%s is held: %v, want %v", w, got, want)
		}
	}
	held(WatchCapture, false)
	one := hold(WatchCapture)
	held(WatchCapture, true)
	held(WatchTalkers, false)
	if _, err := b.Hold(WatchCapture); !errors.Is(err, ErrWatched) {
		t.Errorf("a second capture: %v", err)
	}
	one()
	held(WatchCapture, false)
	one = hold(WatchTalkers)
	two := hold(WatchTalkers)
	one()
	held(WatchTalkers, true)
	two()
	held(WatchTalkers, false)
}

// A process that holds a watch finds that it runs, for this bridge only and until it
// ends.
func TestWatchRuns(t *testing.T) {
	s := newShelf(t, 2)
	a, b := s.create("br0", 1), s.create("br1", 1)
	runs := func(what string, wantA, wantB bool) {
		t.Helper()
		for _, x := range []struct {
			b    *Bridge
			want bool
		}{{a, wantA}, {b, wantB}} {
			if got := x.b.Runs(WatchControl); got != x.want || holdHere(x.b.pin(string(WatchControl))) != x.want {
				t.Errorf("%s: the watch of %s runs: %v, want %v", what, x.b.dir, got, x.want)
			}
		}
	}
	runs("nobody", false, false)
	one, err := a.Hold(WatchControl)
	if err != nil {
		t.Fatal(err)
	}
	runs("one", true, false)
	two, err := b.Hold(WatchControl)
	if err != nil {
		t.Fatal(err)
	}
	runs("both", true, true)
	one()
	runs("the other", false, true)
	two()
	runs("nobody again", false, false)
}

// A filter is kept for the programs of later generations.
func TestWatchFilter(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, Jf: 0, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 31},
	}
	s.do(func() error {
		next := b.Config
		watched(64, BridgeCapture)(&next, nil)
		return b.Commit(&next, Tables{Filter: filter}, keepAll)
	})
	check := func() {
		t.Helper()
		got, err := b.filter()
		if err != nil || !slices.Equal(got, filter) {
			t.Errorf("the filter is %v, %v; want %v", got, err, filter)
		}
	}
	check()
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing = 77 }); err != nil {
		t.Fatal(err)
	}
	check()
	err := s.try(func() error {
		return b.Commit(&b.Config, Tables{Filter: make([]unix.SockFilter, maxFilter+1)}, keepAll)
	})
	if err == nil {
		t.Error("a filter that is too long is taken")
	}
	check()
}
