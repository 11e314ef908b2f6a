// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// berth adds a berth with the settings of a new port.
func berth(c *Config, _ []*Port) { NewBerth(c, "near*").Flags |= PortLearn | floods }

// keepsAll readies a device, and has nothing to do.
func keepsAll() error { return nil }

// occupy brings a device of the rack to the bridge's first berth that is ready.
func (s *shelf) occupy(b *Bridge, ifindex uint32, name string) *Port {
	s.t.Helper()
	p := b.Ready()[0]
	s.do(func() error { return b.Occupy(p, ifindex, name, PortWasPromisc, 0, keepsAll, keepAll) })
	return p
}

// frame puts a frame to the bridge's program as if it came in by a device, and returns
// its outcome with the counters.
func (s *shelf) frame(b *Bridge, ifindex uint32, frame []byte) outcome {
	s.t.Helper()
	all := func() []Stats {
		list := make([]Stats, b.Config.Slots)
		for slot := range list {
			var err error
			if list[slot], err = b.PortStats(&Port{Id: uint32(slot)}); err != nil {
				s.t.Fatal(err)
			}
		}
		return list
	}
	before := all()
	var code uint32
	s.do(func() error {
		p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, tcxPin), nil)
		if err != nil {
			return err
		}
		defer p.Close()
		code, err = p.Run(&ebpf.RunOptions{
			Data: frame, DataOut: make([]byte, len(frame)+258), Context: skbContext{Ifindex: ifindex, IngressIfindex: ifindex},
		})
		return err
	})
	o, in, err := compare(before, all(), uint64(len(frame)), uint64(len(frame)))
	if err != nil {
		s.t.Fatal(err)
	}
	o.Verdict = hookTCX.verdict(code)
	if o.Verdict == pass && in >= 0 {
		s.t.Errorf("a frame that is none of the bridge's was counted in slot %d", in)
	}
	return o
}

func (s *shelf) expect(b *Bridge, what string, ifindex uint32, frame []byte, want outcome) {
	s.t.Helper()
	if got := s.frame(b, ifindex, frame); got.String() != want.String() {
		s.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (s *shelf) device(b *Bridge, slot uint32) (ifindex uint32) {
	s.t.Helper()
	for _, table := range deviceMaps() {
		var at uint32
		if err := b.lookup(table, slot, &at); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			s.t.Fatal(err)
		}
		if ifindex != 0 && at != ifindex {
			s.t.Errorf("slot %d has device %d in one device map, %d in the other", slot, ifindex, at)
		}
		ifindex = at
	}
	return ifindex
}

// A berth takes part in nothing until a device comes. Then it is a port at once, and
// the next change makes it one like any other, with all its settings.
func TestBerth(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 2, berth, berth)
	near := s.rack.near
	if n := len(Ports(&b.Config)); n != 2 || len(Berths(&b.Config)) != 2 || len(b.Ready()) != 2 {
		t.Fatalf("%d ports, %d berths, %d ready", n, len(Berths(&b.Config)), len(b.Ready()))
	}
	s.expectAttached(b)
	s.expect(b, "a flood past vacant berths", near[0], from(1), sent(1))
	s.expect(b, "a frame of no port", near[2], from(2), passed)

	reader := s.open("br0")
	gen, id := b.gen, b.Ready()[0].Id
	p := s.occupy(b, near[2], "near2")
	if p.Id != id || PortName(p) != "near2" || p.Ifindex != near[2] || p.Taken&PortWasPromisc == 0 {
		t.Errorf("the port is %+v", *p)
	}
	if reader.Current() || !b.Current() {
		t.Error("a reader does not see that a device came, or the writer sees another")
	}
	for _, b := range []*Bridge{b, s.open("br0")} {
		if b.gen != gen || len(Ports(&b.Config)) != 3 || len(b.Ready()) != 1 {
			t.Errorf("generation %s, was %s; %d ports, %d ready", b.gen, gen, len(Ports(&b.Config)), len(b.Ready()))
		}
		s.expectAttached(b)
	}
	s.expect(b, "a flood to a berth", near[0], from(1), sent(1, 2))
	s.expect(b, "a flood from a berth", near[2], from(2), sent(0, 1))
	s.expect(b, "unicast to a berth", near[0], unicast(2, 1), sent(2))
	s.expect(b, "the same, remembered", near[0], unicast(2, 1), sent(2))
	s.expect(b, "unicast from a berth", near[2], unicast(1, 2), sent(0))
	s.expect(b, "the same, remembered", near[2], unicast(1, 2), sent(0))
	s.expect(b, "too large for a berth", near[0], packet{dst: station(2), src: station(1), size: 1515}.bytes(), dropped("mtu"))
	s.expect(b, "a flood too large", near[0], packet{dst: broadcast, src: station(1), size: 1515}.bytes(), dropped("mtu", "mtu"))
	s.expect(b, "a frame of no port", near[3], from(3), passed)
	s.do(func() error {
		traced, err := b.Trace(p, unicast(1, 2))
		if err == nil && (traced.Action != ActionSend || traced.In != Slot(p.Id) || traced.Out != 1) {
			t.Errorf("traced %+v", traced.kernelTraced)
		}
		return err
	})
	where := func(b *Bridge, station mac) uint32 {
		t.Helper()
		list, err := b.FDB()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.MAC == station {
				return e.Port
			}
		}
		return 0
	}
	if at := where(b, station(2)); at != id {
		t.Errorf("the address is on port %#x, want %#x", at, id)
	}
	if again := b.Ready()[0]; b.Occupy(again, near[2], "near2", 0, 0, keepsAll, keepAll) == nil || !Vacant(again) || len(b.Ready()) != 1 {
		t.Error("a device that is a port has occupied another berth, or used it up")
	}

	stats, err := b.PortStats(p)
	if err != nil || stats.RxFrames == 0 {
		t.Fatalf("counters %+v, %v", stats, err)
	}
	if err := s.commit(s.open("br0"), func(c *Config, _ []*Port) { c.Ageing = 77 }); err != nil {
		t.Fatal(err)
	}
	b = s.open("br0")
	p = PortAt(&b.Config, id)
	if p == nil || p.Notes&PortBerth != 0 || p.Ifindex != near[2] || p.Taken&PortWasPromisc == 0 || PortName(p) != "near2" {
		t.Fatalf("after a change the port is %+v", p)
	}
	if now, err := b.PortStats(p); err != nil || now != stats {
		t.Errorf("counters %+v, %v; want %+v", now, err, stats)
	}
	if lookUp(&b.Config, near[2]) != Slot(id) || where(b, station(2)) != id || len(b.Ready()) != 1 {
		t.Error("the port is not found, its address has gone, or the other berth is used up")
	}
	s.expectAttached(b)
	expectTree(t, b, linkNames(b)...)
	s.expect(b, "a flood to what was a berth", near[0], from(1), sent(1, 2))
	s.expect(b, "a frame from there", near[2], unicast(1, 2), sent(0))

	if err := s.commit(b, func(c *Config, p []*Port) { *Berths(c)[0] = Port{} }); err != nil {
		t.Fatal(err)
	}
	if hasBerths(&b.Config) {
		t.Error("the bridge has berths")
	}
	b = s.open("br0")
	s.occupiedLeaves(b)
}

// occupiedLeaves checks that a port that leaves while it is in a berth gives back its
// settings.
func (s *shelf) occupiedLeaves(b *Bridge) {
	s.t.Helper()
	if err := s.commit(b, berth); err != nil {
		s.t.Fatal(err)
	}
	p := *s.occupy(b, s.rack.near[3], "near3")
	var left leavers
	s.do(func() error {
		next := b.Config
		*PortAt(&next, p.Id) = Port{}
		return b.Commit(&next, Tables{}, &left)
	})
	if !slices.Equal(left, leavers{p.Id}) || s.device(b, Slot(p.Id)) != 0 {
		s.t.Errorf("ports %#x gave back what they took, want %#x; device %d is left", left, p.Id, s.device(b, Slot(p.Id)))
	}
	s.expectAttached(b)
}

type leavers []uint32

func (l *leavers) Leave(was, _ *Port, _ Tie) (*Port, error) { *l = append(*l, was.Id); return nil, nil }

func (*leavers) Follow(*Bridge, *Bridge) error { return nil }

// A port in a berth gives back its settings also if the command that removed it from
// the bridge was killed.
func TestBerthLeaves(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2, berth)
	id := s.occupy(b, s.rack.near[2], "near2").Id
	s.do(func() error {
		next := b.Config
		*PortAt(&next, id) = Port{}
		specialise(&next)
		g, err := b.load(&next, Tables{})
		if err != nil {
			return err
		}
		defer g.Close()
		return errors.Join(b.Begin(), b.moveIn(&next, g), b.pinGeneration(&next, g), b.makeCurrent(g.name),
			(&Bridge{store: b.store, dir: b.dir, gen: g.name, Config: next}).converge(g, true))
	})
	b = s.open("br0")
	var left leavers
	s.do(func() error { return b.Mend(&left) })
	s.do(b.Done)
	if !slices.Equal(left, leavers{id}) {
		t.Errorf("ports %#x gave back what they took, want %#x", left, id)
	}
	s.expectAttached(b)
	expectTree(t, b, linkNames(b)...)

	b = s.create("br1", 0, berth)
	s.do(func() error { return s.open("br0").Remove(keepAll) })
	id = s.occupy(b, s.rack.near[2], "near2").Id
	left = nil
	s.do(func() error { return b.Remove(&left) })
	if !slices.Equal(left, leavers{id}) {
		t.Errorf("ports %#x of a bridge that was removed gave back what they took, want %#x", left, id)
	}
}

// A berth whose device has gone is vacant; its id is not used again.
func TestBerthLosesDevice(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2, berth)
	plug := func(index uint32) uint32 {
		t.Helper()
		near, _, err := s.rack.cable(9, int(index))
		if err != nil {
			t.Fatal(err)
		}
		return near
	}
	unplug := func(index uint32) {
		t.Helper()
		s.do(func() error {
			l, err := netlink.LinkByIndex(int(index))
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
	}
	index := plug(0)
	id := s.occupy(b, index, "near9").Id
	s.expect(b, "learn", index, from(9), sent(0, 1))
	unplug(index)
	b = s.open("br0")
	if len(Ports(&b.Config)) != 2 || len(Berths(&b.Config)) != 1 || len(b.Ready()) != 0 {
		t.Errorf("%d ports, %d berths, %d ready, want 2, 1, 0", len(Ports(&b.Config)), len(Berths(&b.Config)), len(b.Ready()))
	}
	if list, err := b.FDB(); err != nil || len(list) != 0 {
		t.Errorf("FDB %v, %v", list, err)
	}
	s.expect(b, "a flood past it", s.rack.near[0], from(1), sent(1))
	s.expect(b, "unicast there", s.rack.near[0], unicast(9, 1), sent(1)) // a flood

	// another device with the same index
	if plug(index) != index {
		t.Fatal("another index")
	}
	s.expect(b, "a frame of no port", index, from(8), passed)
	s.do(b.Begin)
	s.do(func() error { return b.Mend(keepAll) })
	s.do(b.Done)
	expectTree(t, b, linkNames(b)...)
	if err := s.commit(b, func(*Config, []*Port) {}); err != nil {
		t.Fatal(err)
	}
	ready := b.Ready()
	if len(ready) != 1 || ready[0].Id == id || Slot(ready[0].Id) != Slot(id) || PortName(ready[0]) != "near*" || ready[0].Notes != PortBerth || ready[0].Flags != PortLearn|floods {
		t.Fatalf("ready after a change: %v", ready)
	}
	if stats, err := b.PortStats(ready[0]); err != nil || stats != (Stats{}) {
		t.Errorf("counters %+v, %v", stats, err)
	}
	s.occupy(b, index, "near9")
	s.expect(b, "from the new device", index, from(8), sent(0, 1))
	if list, err := b.FDB(); err != nil || len(list) != 2 {
		t.Errorf("FDB %v, %v; want no address of the former device", list, err)
	}

	// before the next change, a device with the same index cannot occupy the berth
	if err := s.commit(b, func(c *Config, _ []*Port) { berth(c, nil); berth(c, nil) }); err != nil {
		t.Fatal(err)
	}
	unplug(index)
	index = plug(0)
	s.occupy(b, index, "near9")
	unplug(index)
	if plug(index) != index {
		t.Fatal("another index")
	}
	b = s.open("br0")
	p := b.Ready()[0]
	if err := s.try(func() error { return b.Occupy(p, index, "near9", 0, 0, keepsAll, keepAll) }); !errors.Is(err, ErrNotBerthed) || len(b.Ready()) != 1 {
		t.Errorf("error %v, %d berths are ready", err, len(b.Ready()))
	}
	if err := s.try(func() error { return b.Occupy(p, 1<<30, "nobody", 0, 0, keepsAll, keepAll) }); err == nil || !Vacant(p) {
		t.Errorf("no error of a device that is not there, port %+v", *p)
	}
}

// A berth gets another id if the command that brought it a device was killed.
func TestBerthMend(t *testing.T) {
	put := func(table string, key, value any) func(*shelf, *Bridge, *Port) error {
		return func(s *shelf, b *Bridge, p *Port) error {
			m, err := b.openTable(table)
			if err != nil {
				return err
			}
			defer m.Close()
			if key == nil {
				return m.Put(s.rack.near[2], kernelBerth{Id: p.Id})
			}
			return m.Put(Slot(p.Id), s.rack.near[2])
		}
	}
	record := put(kernelMapBerths, nil, nil)
	device := func(s *shelf, b *Bridge, p *Port) error {
		return errors.Join(put(kernelMapTcxDevices, 0, 0)(s, b, p), put(kernelMapXdpDevices, 0, 0)(s, b, p))
	}
	pin := func(s *shelf, b *Bridge, p *Port) error {
		g, err := b.openGeneration()
		if err != nil {
			return err
		}
		defer g.Close()
		return attachOne(b.link(p.Id, hookTCX), g.program(hookTCX), int(s.rack.near[2]))
	}
	for i, tt := range []struct {
		name  string
		steps []func(*shelf, *Bridge, *Port) error
		port  bool

		left bool // the device may have been readied, and is no port
	}{
		{"record", []func(*shelf, *Bridge, *Port) error{record}, false, false},
		{"half of the device maps", []func(*shelf, *Bridge, *Port) error{record, put(kernelMapTcxDevices, 0, 0)}, false, true},
		{"device maps", []func(*shelf, *Bridge, *Port) error{record, device}, false, true},
		{"pin alone", []func(*shelf, *Bridge, *Port) error{record, pin}, false, true},
		{"all", []func(*shelf, *Bridge, *Port) error{record, device, pin}, true, false},
		{"devices alone", []func(*shelf, *Bridge, *Port) error{device}, false, false},
	} {
		t.Run(fmt.Sprint(i, " ", tt.name), func(t *testing.T) {
			s := newShelf(t, 3)
			b := s.create("br0", 2, berth)
			id := b.Ready()[0].Id
			s.do(b.Begin)
			for _, step := range tt.steps {
				s.do(func() error { return step(s, b, b.Ready()[0]) })
			}
			b = s.open("br0")
			var left leavers
			s.do(func() error { return b.Mend(&left) })
			s.do(b.Done)
			var want leavers
			if tt.left {
				want = leavers{id}
			}
			if !slices.Equal(left, want) {
				t.Errorf("ports %#x gave back what they took, want %#x", left, want)
			}
			for _, b := range []*Bridge{b, s.open("br0")} {
				if got := len(Ports(&b.Config)) == 3; got != tt.port {
					t.Errorf("there are %d ports", len(Ports(&b.Config)))
				}
			}
			s.expectAttached(b)
			expectTree(t, b, linkNames(b)...)
			if got := s.device(b, Slot(id)) != 0; got != tt.port {
				t.Errorf("device %d is in the berth's slot", s.device(b, Slot(id)))
			}
			if err := s.commit(b, func(*Config, []*Port) {}); err != nil {
				t.Fatal(err)
			}
			same := TenantAt(&b.Config, id) != nil
			if list := b.Ready(); !tt.port && (len(list) != 1 || PortName(list[0]) != "near*" || list[0].Notes != PortBerth || list[0].Flags != PortLearn|floods) {
				t.Errorf("ready after a change: %v", list)
			}
			if want := tt.port || tt.name == "devices alone"; same != want {
				t.Errorf("the berth has its id after a change: %v, want %v", same, want)
			}
			s.expectAttached(b)
			expectTree(t, b, linkNames(b)...)
			s.do(func() error { return b.Remove(keepAll) })
			if tcx, _ := s.attached(s.rack.near[2]); len(tcx) > 0 {
				t.Errorf("programs %v are left", tcx)
			}
		})
	}
}

// XDP leaves frames to a berth, and floods, to tcx, and forwards the rest.
func TestBerthXDP(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2, berth, allXDP)
	near := s.rack.near
	s.occupy(b, near[2], "near2")
	for n, ifindex := range near {
		s.frame(b, ifindex, from(n))
	}
	for _, tt := range []struct {
		name  string
		frame []byte
		want  verdict
	}{
		{"to a port with XDP", unicast(1, 0), redirect},
		{"to a berth", unicast(2, 0), pass},
		{"to a berth again", unicast(2, 0), pass},
		{"large, to a berth", packet{dst: station(2), src: station(0), size: 1514}.bytes(), pass},
		{"flood", from(0), pass},
	} {
		var got uint32
		s.do(func() error {
			p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, xdpPin), nil)
			if err != nil {
				return err
			}
			defer p.Close()
			got, err = p.Run(&ebpf.RunOptions{Data: tt.frame, Context: &xdpContext{IngressIfindex: near[0], DataEnd: uint32(len(tt.frame))}})
			return err
		})
		if v := hookXDP.verdict(got); v != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, v, tt.want)
		}
	}
	s.expect(b, "what XDP left", near[0], unicast(2, 0), sent(2))
}

// A change that gives a berth's slot away and fails gives the slot back to the berth.
func TestBerthCommitFails(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 2, berth, berth)
	s.occupy(b, s.rack.near[2], "near2")
	err := s.commit(b, func(c *Config, p []*Port) {
		*p[2] = Port{}
		*Berths(c)[0] = Port{}
		for _, ifindex := range []uint32{s.rack.near[3], 1 << 30} {
			p := NewPort(c, "p")
			p.Ifindex, p.Flags = ifindex, PortLearn|floods
		}
	})
	if err == nil {
		t.Fatal("no error of a port without a device")
	}
	s.expectAttached(b)
	for _, b := range []*Bridge{b, s.open("br0")} {
		if len(Ports(&b.Config)) != 3 || len(b.Ready()) != 1 || s.device(b, Slot(b.Ready()[0].Id)) != 0 {
			t.Errorf("%d ports, %d berths ready", len(Ports(&b.Config)), len(b.Ready()))
		}
	}
	s.expect(b, "a flood", s.rack.near[0], from(1), sent(1, 2))
	s.expect(b, "a flood from the berth", s.rack.near[2], from(2), sent(0, 1))
}

// Ports go before berths, and berths are no reason to flood by XDP.
func TestBerthConfig(t *testing.T) {
	var c Config
	for range MaxPorts - 1 {
		p := NewPort(&c, "p")
		p.Ifindex, p.Flags = Slot(p.Id), PortLearn|floods
		onXDP(p)
	}
	specialise(&c)
	if kernelFeature(c.Features) != kernelFeatureFEATURE_XDP_FLOOD {
		t.Errorf("features %#x without berths", c.Features)
	}
	b := NewBerth(&c, "a")
	b.Flags |= PortLearn | floods
	specialise(&c)
	if kernelFeature(c.Features) != kernelFeatureFEATURE_BERTHS || c.Slots != uint32(len(c.Ports)) || lookUp(&c, 0) != 0 {
		t.Errorf("features %#x, slots %d with a berth", c.Features, c.Slots)
	}
	if NewBerth(&c, "b") != nil {
		t.Error("a berth more than there are slots")
	}
	id := b.Id
	p := NewPort(&c, "p")
	if p == nil || Slot(p.Id) != Slot(id) || p.Id == id || p.Flags != 0 || PortName(p) != "p" || len(Ports(&c)) != MaxPorts {
		t.Errorf("a port in the berth's place: %+v", p)
	}
	if NewPort(&c, "p") != nil {
		t.Error("a port more than there are slots")
	}
}
