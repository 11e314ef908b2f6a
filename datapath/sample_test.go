// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// sampling samples one frame out of rate, and at most drops dropped frames a second.
func sampling(rate, drops uint32) func(*Config, []*Port) {
	return func(c *Config, p []*Port) {
		allXDP(c, p)
		c.Flags |= uint32(BridgeSample)
		c.SampleRate, c.SampleDrops = rate, drops
	}
}

// samples opens the samples of a bench, from now on.
func (s *bench) samples() *Samples {
	s.t.Helper()
	mem, unmap, err := mapTable(s.gen.coll.Maps[kernelMapShared], unix.PROT_READ)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(unmap)
	log := &Samples{shared: (*kernelShared)(unsafe.Pointer(&mem[0])), done: unmap}
	for kind := range log.next {
		log.next[kind] = log.shared.Samples[kind].Next
	}
	return log
}

// These are the samples of a kind since the last call, as "1>2", "1>all", "1>self" and
// "1>vlan" with the number of a port, and a reason.
func (s *bench) told(log *Samples, kind SampleKind) (words []string, list []Sample) {
	list, _ = log.Read(kind)
	for _, f := range list {
		to := "self"
		switch {
		case f.Reason != 0:
			to = Reasons()[f.Reason]
		case f.Flood:
			to = "all"
		case f.Out != 0:
			for i, id := range s.ids {
				if Slot(id) == f.Out {
					to = fmt.Sprint(i)
				}
			}
		}
		from := -1
		for i, id := range s.ids {
			if id == f.Port {
				from = i
			}
		}
		words = append(words, fmt.Sprintf("%d>%s", from, to))
	}
	return words, list
}

// Each frame that comes in is sampled once, whatever its destination, as it came; each drop
// is reported.
func TestSamplePoints(t *testing.T) {
	s := newBench(t, 4, sampling(1, 100), func(_ *Config, p []*Port) { p[0].Domains, p[1].Domains = 2, 2 })
	s.learn(3, 3)
	log := s.samples()
	whole := packet{dst: broadcast, src: station(1), size: 200}.tagged(10)
	cut := whole
	cut.size = etherHeader + 1
	for _, tt := range []struct {
		name        string
		frame       []byte
		flow, drops string
	}{
		{"flood past a protected port", from(1), "0>all", ""},
		{"known", unicast(3, 1), "0>3", ""},
		{"remembered", unicast(3, 1), "0>3", ""},
		{"to itself", unicast(1, 1), "0>same-port", "0>same-port"},
		{"malformed", cut.bytes(), "0>malformed", "0>malformed"},
		{"with a tag", whole.bytes(), "0>all", ""},
		{"too large for all", packet{dst: broadcast, src: station(1), size: 1600}.bytes(), "0>all", "0>mtu 0>mtu"},
		{"a header alone", packet{dst: station(3), src: station(1), size: etherHeader}.bytes(), "0>3", ""},
		{"large", packet{dst: station(3), src: station(1), size: 3000}.bytes(), "0>mtu", "0>mtu"},
	} {
		s.tcx(0, tt.frame)
		flows, list := s.told(log, SampleFlow)
		if got := strings.Join(flows, " "); got != tt.flow {
			t.Errorf("%s: sampled %q, want %q", tt.name, got, tt.flow)
		}
		drops, more := s.told(log, SampleDrop)
		if got := strings.Join(drops, " "); got != tt.drops {
			t.Errorf("%s: drops %q, want %q", tt.name, got, tt.drops)
		}
		for _, f := range append(list, more...) {
			if want := tt.frame[:min(len(tt.frame), MaxSample)]; string(f.Data) != string(want) || f.Length != len(tt.frame) {
				t.Errorf("%s: % x of %d bytes, want % x of %d", tt.name, f.Data, f.Length, want, len(tt.frame))
			}
			if f.VLAN != 0 && !(tt.name == "with a tag" && f.VLAN == 10) {
				t.Errorf("%s: in VLAN %d", tt.name, f.VLAN)
			}
		}
	}
}

// XDP samples the frames that it sends, and leaves floods to tcx: a frame is sampled once.
func TestSampleXDP(t *testing.T) {
	for _, size := range []int{etherHeader, 60, 127, 128, 129, 1514} {
		s := newBench(t, 3, sampling(1, 100))
		s.learn(1, 2)
		log := s.samples()
		f := packet{dst: station(2), src: station(1), size: size}.bytes()
		s.tcx(0, f) // tcx learns
		s.told(log, SampleFlow)
		expect(t, "by XDP", s.xdp(0, f), s.tcx(0, f))
		words, list := s.told(log, SampleFlow)
		if got := strings.Join(words, " "); got != "0>1 0>1" {
			t.Fatalf("%d bytes: sampled %q, want one by each", size, got)
		}
		for i, got := range list {
			if want := f[:min(size, MaxSample)]; string(got.Data) != string(want) || got.Length != size {
				t.Errorf("%d bytes, sample %d: % x of %d", size, i, got.Data, got.Length)
			}
		}
		s.xdp(0, from(1))
		if words, _ := s.told(log, SampleFlow); len(words) > 0 {
			t.Errorf("sampled %v of a frame that XDP leaves to tcx", words)
		}
	}
}

// XDP adds or removes a tag: the sample has the frame as it came in.
func TestSampleTags(t *testing.T) {
	for _, tt := range []struct{ in, out uint16 }{{10, 0}, {0, 10}, {10, 10}, {0, 0}} {
		ends := []membership{access(10), access(10)}
		for i, tag := range []uint16{tt.in, tt.out} {
			if tag != 0 {
				ends[i] = trunk(10)
			}
		}
		s := newVLANBench(t, ends, sampling(1, 100))
		p := packet{dst: station(2), src: station(1), size: 200}
		if tt.in != 0 {
			p = p.tagged(10)
		}
		f := p.bytes()
		back := packet{dst: station(1), src: station(2), size: 60}
		if tt.out != 0 {
			back = back.tagged(10)
		}
		s.tcx(1, back.bytes())
		s.tcx(0, f)
		log := s.samples()
		s.xdp(0, f)
		words, list := s.told(log, SampleFlow)
		if strings.Join(words, " ") != "0>1" || string(list[0].Data) != string(f[:MaxSample]) || list[0].VLAN != 10 {
			t.Errorf("%+v: sampled %v %+v, want % x", tt, words, list, f[:MaxSample])
		}
	}
}

// One frame out of rate is sampled, at random: over many frames, the number matches the
// rate.
func TestSampleRate(t *testing.T) {
	s := newBench(t, 2, sampling(8, 0))
	s.learn(1, 2)
	log := s.samples()
	const frames = 4000
	var sum uint64
	f := unicast(2, 1)
	for range frames / 100 {
		for range 100 {
			s.tcx(0, f)
		}
		list, missed := log.Read(SampleFlow)
		sum += uint64(len(list)) + missed
	}
	// the gaps are uniformly distributed from 1 to 15: for 500 of them, the deviation of
	// the sum is 97
	if sum < frames/8-100 || sum > frames/8+100 {
		t.Errorf("%d of %d frames were sampled, want about %d", sum, frames, frames/8)
	}
}

// The datapath does not wait for a reader, which gets the number of missed samples. Only a
// limited number of drops is reported each second.
func TestSampleBounds(t *testing.T) {
	s := newBench(t, 2, sampling(1, 5))
	s.learn(0, 1)
	log := s.samples()
	for range SampleLog + 10 {
		expect(t, "sampled", s.tcx(0, unicast(1, 1)), dropped("same-port"))
	}
	list, missed := log.Read(SampleFlow)
	if len(list) != SampleLog || missed != 10 {
		t.Errorf("%d samples and %d missed, want %d and 10", len(list), missed, SampleLog)
	}
	// the test may continue on another CPU, which has a limit of its own
	cpus := ebpf.MustPossibleCPU()
	if drops, missed := log.Read(SampleDrop); len(drops) < 5 || len(drops) > 5*cpus || missed != 0 {
		t.Errorf("%d drops told and %d missed in a second, want 5 of each of at most %d CPUs", len(drops), missed, cpus)
	}
	s.at(benchNow + 1)
	s.tcx(0, unicast(1, 1))
	if drops, _ := log.Read(SampleDrop); len(drops) != 1 {
		t.Errorf("%d drops told in the next second, want 1", len(drops))
	}
}
