// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"
)

// handedUp returns the control frames that the bench has handed up so far.
func (s *bench) handedUp() (list []ControlFrame) {
	s.t.Helper()
	ring, err := ringbuf.NewReader(s.gen.coll.Maps[kernelMapControlFrames])
	if err != nil {
		s.t.Fatal(err)
	}
	defer ring.Close()
	r := &ControlFrames{ring: ring}
	for {
		f, err := r.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return list
		}
		if err != nil {
			s.t.Fatal(err)
		}
		f.Bytes = bytes.Clone(f.Bytes)
		list = append(list, f)
	}
}

// Every control protocol has a row that defines when its frames are taken.
func TestControlProtocols(t *testing.T) {
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("control_protocol", &enum); err != nil {
		t.Fatal(err)
	}
	rows := map[ControlProtocol]int{}
	for _, p := range controlProtocols {
		rows[p.protocol]++
	}
	want := map[ControlProtocol]int{}
	for _, v := range enum.Values {
		if v.Name != "CONTROL_PROTOCOLS" {
			want[ControlProtocol(v.Value)] = 1
		}
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows of protocols (-want +got):\n%s", diff)
	}
}

// Port settings that block need no protocol: the ring exists only if the bridge runs
// one.
func TestControlFeature(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(c *Config, p []*Port)
		want   kernelFeature
		ring   uint32
	}{
		{"spanning tree", rapidTree, kernelFeatureFEATURE_CONTROL | kernelFeatureFEATURE_BLOCKING, controlRing},
		{"loop guard", func(_ *Config, p []*Port) { p[0].Flags |= PortLoopGuard }, kernelFeatureFEATURE_BLOCKING, uint32(os.Getpagesize())},
	} {
		s := newBench(t, 2, tt.change)
		got := kernelFeature(s.cfg.Features) & (kernelFeatureFEATURE_CONTROL | kernelFeatureFEATURE_BLOCKING)
		ring := s.gen.coll.Maps[kernelMapControlFrames].MaxEntries()
		if got != tt.want || ring != tt.ring {
			t.Errorf("%s: features %#x and a ring of %d, want %#x and %d", tt.name, got, ring, tt.want, tt.ring)
		}
	}
}

// A record is read as far as its data goes, and a tag from the packet's metadata is
// inserted in its place.
func TestControlFrame(t *testing.T) {
	const head = int(unsafe.Offsetof(kernelControlFrame{}.Data))
	plain := packet{dst: reserved(0), src: station(1), size: 100}
	record := func(length int, tagged bool, f []byte) []byte {
		raw := make([]byte, head, head+256)
		binary.NativeEndian.PutUint32(raw, 1<<10|3)
		binary.NativeEndian.PutUint32(raw[4:], uint32(ControlSTP))
		binary.NativeEndian.PutUint32(raw[8:], uint32(length))
		if tagged {
			binary.BigEndian.PutUint16(raw[12:], typeQinQ) // as in the frame
			binary.NativeEndian.PutUint16(raw[14:], 5<<13|10)
		}
		return append(raw, f...)
	}
	inPlace := slices.Concat(plain.bytes()[:12], []byte{0x88, 0xa8, 0xa0, 10}, plain.bytes()[12:])
	for _, tt := range []struct {
		name string
		raw  []byte
		want ControlFrame
		err  bool
	}{
		{"whole", record(100, false, append(plain.bytes(), 1, 2, 3)), ControlFrame{Length: 100, Bytes: plain.bytes()}, false},
		{"longer than the record", record(9000, false, plain.bytes()), ControlFrame{Length: 9000, Bytes: plain.bytes()}, false},
		{"with a tag", record(100, true, plain.bytes()), ControlFrame{Length: 104, Bytes: inPlace}, false},
		{"nothing", record(0, false, nil), ControlFrame{Bytes: []byte{}}, false},
		{"no record", make([]byte, head-1), ControlFrame{}, true},
	} {
		got, err := controlFrame(tt.raw)
		if !tt.err {
			tt.want.Port, tt.want.Protocol = 1<<10|3, ControlSTP
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.err {
			t.Errorf("%s: %v (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

// Long frames take as much more of a port's share as of the ring.
func TestControlShare(t *testing.T) {
	for _, tt := range []struct{ size, want int }{{256, 64}, {257, 10}, {1600, 10}} {
		s := newTree(t, 2)
		f := packet{dst: reserved(0), src: station(1), size: tt.size}.bytes()
		for range 100 {
			s.tcx(0, f)
		}
		if got := len(s.handedUp()); got != tt.want {
			t.Errorf("of frames of %d bytes %d were handed up in a second, want %d", tt.size, got, tt.want)
		}
		// the rest has room for short ones
		if left := 64 - tt.want*(1+5*min(tt.size/257, 1)); left > 0 {
			for range 100 {
				s.tcx(0, packet{dst: reserved(0), src: station(1)}.bytes())
			}
			if got := len(s.handedUp()); got != left {
				t.Errorf("beside frames of %d bytes %d short ones were handed up, want %d", tt.size, got, left)
			}
		}
		r := &ControlFrames{shared: s.gen.coll.Maps[kernelMapShared]}
		if _, err := r.Missed(99); err == nil {
			t.Error("there is a protocol 99")
		}
	}
}

// A reader of protocols gets the frames that come after it was opened, across changes.
// After all protocols were off, it is another buffer.
func TestOpenControlFrames(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2, rapidTree)
	hand := func() {
		t.Helper()
		s.do(func() error {
			g, err := b.openGeneration()
			if err != nil {
				return err
			}
			defer g.Close()
			f := packet{dst: reserved(0), src: station(1)}.bytes()
			bench := &bench{t: t, gen: g}
			_, err = bench.run(hookTCX, Ports(&b.Config)[0].Ifindex, f)
			return err
		})
	}
	hand() // before there is a reader
	r, err := b.OpenControlFrames()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Read(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what came before is read: %v", err)
	}
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing = 7 }); err != nil {
		t.Fatal(err)
	}
	hand()
	f, err := r.Read(time.Now().Add(time.Minute))
	if err != nil || f.Protocol != ControlSTP || f.Port != Ports(&b.Config)[0].Id || len(f.Bytes) != smallest {
		t.Errorf("%+v, %v", f, err)
	}
	if err := r.Wake(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(time.Now().Add(time.Minute)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read that was woken: %v", err)
	}
	if same, err := r.Of(b); err != nil || !same {
		t.Errorf("the bridge's own: %v, %v", same, err)
	}
	for _, f := range []func(*Config, []*Port){func(c *Config, _ []*Port) { c.Flags = 0 }, rapidTree} {
		if err := s.commit(b, f); err != nil {
			t.Fatal(err)
		}
	}
	if same, err := r.Of(b); err != nil || same {
		t.Errorf("after spanning tree was off it is the same: %v, %v", same, err)
	}
}
