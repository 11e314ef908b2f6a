// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// A patchwork is a set of bridges that are joined only by patch cables, each with one
// device of the rack, or none if there are no more.
type patchwork struct {
	t     testing.TB
	rack  *rack
	store *Store
	bench []*bench
}

// newPatchwork makes several bridges with cables between pairs of them. The first port
// of a bridge is its device, the others are its ends of the cables in their order.
func newPatchwork(t testing.TB, bridges int, cables [][2]int, change func(bridge int, c *Config, p []*Port) Tables) *patchwork {
	t.Helper()
	w := &patchwork{t: t, rack: sharedRack(t)}
	var err error
	if opened := w.rack.do(func() error { w.store, err = OpenStore(); return err }); opened != nil {
		t.Fatal(opened)
	}
	w.store.Locked = underLock(t)
	if err := os.Mkdir(w.store.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(w.store.dir) })
	for i := range bridges {
		c := newSettings(0x5eed, 1000)
		device := NewPort(&c, "device")
		device.Flags, device.Ifindex = PortLearn|floods, w.rack.spare
		if i < len(w.rack.near) {
			device.Ifindex = w.rack.near[i]
		}
		for n, cable := range cables {
			for end, bridge := range cable {
				if bridge == i {
					p := NewPort(&c, fmt.Sprintf("patch%d", n))
					p.Flags = PortLearn | floods
					Plug(p, uint32(2*n+end+1), uint32(2*n+2-end))
				}
			}
		}
		var tables Tables
		if change != nil {
			tables = change(i, &c, Ports(&c))
		}
		specialise(&c)
		s := &bench{t: t, rack: w.rack, cfg: c}
		for _, p := range Ports(&c) {
			s.ids = append(s.ids, p.Id)
		}
		b := &Bridge{store: w.store}
		if s.gen, err = b.load(&c, tables); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.gen.Close)
		t.Cleanup(s.expectUnlocked)
		if err := w.rack.do(s.moveIn); err != nil {
			t.Fatal(err)
		}
		b.Config = c
		if err := b.plugIn(s.gen); err != nil {
			t.Fatal(err)
		}
		s.at(benchNow)
		w.bench = append(w.bench, s)
	}
	return w
}

// row returns the cables of several bridges in a row.
func row(bridges int) (cables [][2]int) {
	for i := range bridges - 1 {
		cables = append(cables, [2]int{i, i + 1})
	}
	return cables
}

// put puts a frame to the first bridge, as if it came in by a bridge's device. It
// returns the changes of all the bridges' counters, as "bridge/port rx", "bridge/port
// tx" and "bridge/port reason".
func (w *patchwork) put(bridge int, frame []byte) map[string]int {
	w.t.Helper()
	var before [][]Stats
	for _, s := range w.bench {
		before = append(before, s.allStats())
	}
	s := w.bench[bridge]
	err := w.rack.do(func() error {
		_, err := s.run(hookTCX, w.rack.near[bridge], frame)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	counts := map[string]int{}
	for i, s := range w.bench {
		for slot, now := range s.allStats() {
			was := before[i][slot]
			count := func(what string, n uint64) {
				if n != 0 {
					counts[fmt.Sprintf("%d/%d %s", i, slot-1, what)] += int(n)
				}
			}
			count("rx", now.RxFrames-was.RxFrames)
			count("tx", now.TxFrames-was.TxFrames)
			for reason, name := range Reasons() {
				count(name, now.Drops[reason]-was.Drops[reason])
			}
		}
	}
	return counts
}

func (w *patchwork) expect(what string, got map[string]int, want ...string) {
	w.t.Helper()
	wanted := map[string]int{}
	for _, c := range want {
		wanted[c]++
	}
	if !maps.Equal(got, wanted) {
		w.t.Errorf("%s: %v, want %v", what, got, wanted)
	}
}

// A row of bridges behaves like one: it floods, learns, and sends frames to known
// addresses along one path, every time.
func TestPatchRow(t *testing.T) {
	w := newPatchwork(t, 3, row(3), nil)
	// ports: 0/0 0/1 - 1/1 1/2 - 2/1 2/0
	w.expect("broadcast from the left", w.put(0, from(1)),
		"0/0 rx", "0/1 tx", "1/1 rx", "1/0 tx", "1/2 tx", "2/1 rx", "2/0 tx")
	w.expect("broadcast from the middle", w.put(1, from(2)),
		"1/0 rx", "1/1 tx", "0/1 rx", "0/0 tx", "1/2 tx", "2/1 rx", "2/0 tx")
	for range 3 {
		w.expect("from the right to the left", w.put(2, unicast(1, 3)),
			"2/0 rx", "2/1 tx", "1/2 rx", "1/1 tx", "0/1 rx", "0/0 tx")
		w.expect("from the left to the right", w.put(0, unicast(3, 1)),
			"0/0 rx", "0/1 tx", "1/1 rx", "1/2 tx", "2/1 rx", "2/0 tx")
		w.expect("from the left to the middle", w.put(0, unicast(2, 1)),
			"0/0 rx", "0/1 tx", "1/1 rx", "1/0 tx")
	}
	w.expect("to a neighbour", w.put(0, unicast(1, 4)), "0/0 rx", "0/0 same-port")
	// the frame is already on its way when a bridge finds that it belongs to the cable
	// that it came by
	w.expect("a wanderer", w.put(2, from(1)),
		"2/0 rx", "2/1 tx", "1/2 rx", "1/0 tx", "1/1 tx", "0/1 rx", "0/0 tx")
}

// A frame to a known address behind one cable is sent as a copy while others wait.
func TestPatchKnownWhileOthersWait(t *testing.T) {
	w := newPatchwork(t, 4, [][2]int{{0, 1}, {0, 2}, {0, 3}}, nil)
	// only one bridge has no entry of the address
	w.put(1, from(1))
	w.bench[0].at(benchNow + 300)
	w.bench[2].at(benchNow + 300)
	w.expect("unknown at the core and at bridge 2", w.put(3, unicast(9, 3)),
		"3/0 rx", "3/1 tx", "0/3 rx", "0/0 tx", "0/1 tx", "0/2 tx", "1/1 rx", "1/0 tx", "2/1 rx", "2/0 tx")
	w.bench[3].at(benchNow + 600)
	w.bench[0].at(benchNow + 600)
	for range 2 {
		w.expect("known at bridge 1 alone", w.put(2, unicast(1, 2)),
			"2/0 rx", "2/1 tx", "0/2 rx", "0/0 tx", "0/1 tx", "0/3 tx", "1/1 rx", "1/0 tx", "3/1 rx", "3/0 tx")
	}
}

// A loop of cables ends by itself: a frame passes each bridge once.
func TestPatchLoop(t *testing.T) {
	tests := []struct {
		name    string
		bridges int
		cables  [][2]int
		loops   int // copies that come back
	}{
		{"two cables between two bridges", 2, [][2]int{{0, 1}, {0, 1}}, 2},
		{"triangle", 3, [][2]int{{0, 1}, {1, 2}, {2, 0}}, 2},
		{"ring of five", 5, [][2]int{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 0}}, 2},
		{"all of four to all", 4, [][2]int{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newPatchwork(t, tt.bridges, tt.cables, nil)
			for from := range tt.bridges {
				counts := w.put(from, packet{dst: broadcast, src: station(1)}.bytes())
				loops := 0
				for what, n := range counts {
					var bridge, port int
					var kind string
					fmt.Sscanf(what, "%d/%d %s", &bridge, &port, &kind)
					switch {
					case kind == "patch-loop":
						loops += n
					case port == 0 && bridge == from && (kind != "rx" || n != 1), port == 0 && bridge != from && (kind != "tx" || n != 1):
						t.Errorf("from %d: %s %d", from, what, n)
					}
				}
				if loops != tt.loops {
					t.Errorf("from %d: %d copies came back, want %d: %v", from, loops, tt.loops, counts)
				}
			}
		})
	}
}

// Each bridge of a ring knows an address behind the next: a frame for it ends where it
// began, also after the bridges have remembered their decisions on such frames.
func TestPatchKnownInLoop(t *testing.T) {
	// no port learns: a source that moves with each frame would end remembered
	// decisions
	w := newPatchwork(t, 3, [][2]int{{0, 1}, {1, 2}, {2, 0}}, func(_ int, _ *Config, ports []*Port) Tables {
		for _, p := range ports {
			p.Flags = floods
		}
		return Tables{}
	})
	// ports: 0/1 - 1/1 1/2 - 2/1 2/2 - 0/2
	for bridge, next := range []int{1, 2, 2} {
		w.bench[bridge].store(address{station(9), 0}, spot{port: next, pin: fdbStatic})
	}
	for round := range 3 {
		for bridge, want := range [][]string{
			{"0/0 rx", "0/1 tx", "1/1 rx", "1/2 tx", "2/1 rx", "2/2 tx", "0/2 rx", "0/2 patch-loop"},
			{"1/0 rx", "1/2 tx", "2/1 rx", "2/2 tx", "0/2 rx", "0/1 tx", "1/1 rx", "1/1 patch-loop"},
			{"2/0 rx", "2/2 tx", "0/2 rx", "0/1 tx", "1/1 rx", "1/2 tx", "2/1 rx", "2/1 patch-loop"},
		} {
			w.expect(fmt.Sprintf("round %d from bridge %d", round, bridge), w.put(bridge, unicast(9, 1)), want...)
		}
	}
}

// The kernel limits the number of bridges; the copies that don't get further are
// counted.
func TestPatchTooLong(t *testing.T) {
	const bridges = 36
	w := newPatchwork(t, bridges, row(bridges), nil)
	counts := w.put(0, from(1))
	if counts["32/1 rx"] != 1 || counts["32/1 patch-loop"] != 1 || counts["33/1 rx"] != 0 || counts["31/2 tx"] != 1 {
		t.Errorf("flood along %d bridges: %v", bridges, counts)
	}
	// a star of the core and 32 others; there is no way to the rest
	var star [][2]int
	for i := 1; i < bridges; i++ {
		star = append(star, [2]int{0, i})
	}
	os.RemoveAll(w.store.dir)
	w = newPatchwork(t, bridges, star, nil)
	counts = w.put(0, from(1))
	reached := 0
	for i := 1; i < bridges; i++ {
		reached += counts[fmt.Sprintf("%d/1 rx", i)]
	}
	if reached != 32 || counts["0/0 patch-loop"] != 3 {
		t.Errorf("flood to %d bridges reached %d, %d counted as patch-loop", bridges-1, reached, counts["0/0 patch-loop"])
	}
}

// If an end has no other end, the frame is lost there, and the copies to other ends are
// not.
func TestPatchNoPeer(t *testing.T) {
	w := newPatchwork(t, 3, [][2]int{{0, 1}, {0, 2}}, nil)
	w.put(2, from(2))
	w.put(1, from(1))
	panel, err := w.store.panel()
	if err != nil {
		t.Fatal(err)
	}
	defer panel.Close()
	if err := panel.Delete(uint32(2)); err != nil { // bridge 1's end
		t.Fatal(err)
	}
	for range 2 {
		w.expect("to where nothing is", w.put(0, unicast(1, 9)), "0/0 rx", "0/1 tx", "0/0 no-peer")
	}
	w.expect("to the others", w.put(0, unicast(2, 9)), "0/0 rx", "0/2 tx", "2/1 rx", "2/0 tx")
	counts := w.put(0, from(9))
	if counts["2/0 tx"] != 1 || counts["1/1 rx"] != 0 || counts["2/1 no-peer"]+counts["0/0 no-peer"] != 1 {
		t.Errorf("broadcast: %v", counts)
	}
}

// Each cable gets the frame with the tags that its bridge has set, whatever bridges
// before it have changed in their copies.
func TestPatchTags(t *testing.T) {
	// bridge 0 floods VLAN 7 to bridges 1 (tagged), 2 (untagged), 3 (tagged); bridges 1
	// to 3 filter, too, and accept just that; 1 removes the tag for 4, which accepts
	// only frames without one
	cables := [][2]int{{0, 1}, {0, 2}, {0, 3}, {1, 4}, {3, 5}}
	vlan := func(v *VLANs, vid int, port *Port, untagged bool) {
		slot := Slot(port.Id)
		v[vid].Member[slot/64] |= 1 << (slot % 64)
		v[vid].Reach[slot/64] |= 1 << (slot % 64)
		if untagged {
			v[vid].Untagged[slot/64] |= 1 << (slot % 64)
			port.Pvid = uint16(vid)
		}
		v[vid].Fid = uint16(vid)
	}
	for _, others := range []uint16{typeVLAN, typeQinQ} {
		t.Run(fmt.Sprintf("%#x", others), func(t *testing.T) {
			w := newPatchwork(t, 6, cables, func(bridge int, c *Config, p []*Port) Tables {
				v := new(VLANs)
				c.Flags, c.VlanProto = uint32(BridgeVLANs|BridgeQinQ), typeVLAN
				vlan(v, 7, p[0], true)
				switch bridge {
				case 0:
					vlan(v, 7, p[1], false)
					vlan(v, 7, p[2], true)
					vlan(v, 7, p[3], false)
				case 1:
					vlan(v, 7, p[1], false)
					vlan(v, 7, p[2], true)
				case 2, 4:
					vlan(v, 7, p[1], true)
				case 3:
					vlan(v, 7, p[1], false)
					vlan(v, 7, p[2], false)
				case 5:
					if others != typeVLAN { // an additional tag
						c.VlanProto = others
						vlan(v, 9, p[0], false)
						vlan(v, 9, p[1], true)
						return Tables{VLANs: v}
					}
					vlan(v, 7, p[1], false)
				}
				return Tables{VLANs: v}
			})
			for range 2 {
				got := w.put(0, from(1))
				want := []string{"0/0 rx", "0/1 tx", "0/2 tx", "0/3 tx", "1/1 rx", "1/0 tx", "1/2 tx", "2/1 rx", "2/0 tx",
					"3/1 rx", "3/0 tx", "3/2 tx", "4/1 rx", "4/0 tx", "5/1 rx", "5/0 tx"}
				w.expect("broadcast in VLAN 7", got, want...)
			}
		})
	}
}

// XDP leaves frames to a cable to tcx.
func TestPatchXDP(t *testing.T) {
	w := newPatchwork(t, 2, row(2), func(_ int, _ *Config, p []*Port) Tables {
		onXDP(p[0])
		return Tables{}
	})
	w.put(1, from(2))
	for range 2 {
		expect(t, "to a patch port, by XDP", w.bench[0].xdp(0, unicast(2, 1)), passed)
		w.expect("and by tcx", w.put(0, unicast(2, 1)), "0/0 rx", "0/1 tx", "1/1 rx", "1/0 tx")
	}
	expect(t, "broadcast, by XDP", w.bench[0].xdp(0, from(1)), passed)
}

// Bridges with patch cables are also verified in a moment. If they filter VLANs they
// change tags in the middle of a flood, which takes more instructions.
func TestPatchBudget(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Config)
		budget uint32
	}{
		{"plain", func(*Config) {}, 7200},
		{"VLANs", func(c *Config) { c.Flags, c.VlanProto = uint32(BridgeVLANs|BridgeQinQ), typeVLAN }, 13500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newPatchwork(t, 1, [][2]int{{0, 1}}, func(_ int, c *Config, _ []*Port) Tables {
				tt.change(c)
				return Tables{}
			})
			for _, name := range []string{kernelProgBasculeTcx, kernelProgBasculePatch} {
				kept, verified := size(t, w.bench[0].gen.coll.Programs[name])
				t.Logf("%s: processed %d insns, budget %d; %d kept", name, verified, tt.budget, kept)
				if verified > tt.budget {
					t.Errorf("%s: the verifier processed %d insns, the budget is %d", name, verified, tt.budget)
				}
			}
		})
	}
}

// plugged returns the ends that have a program in the panel.
func plugged(t *testing.T, s *Store) (ends []uint32) {
	t.Helper()
	panel, err := s.panel()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer panel.Close()
	for n := range uint32(panelSize) {
		var id uint32
		if panel.Lookup(n, &id) == nil {
			ends = append(ends, n)
		}
	}
	return ends
}

// The panel has ends of cables only, and is removed with the last one; Mend removes an
// end that a killed command has left.
func TestPanel(t *testing.T) {
	s := newShelf(t, 0)
	expect := func(when string, want ...uint32) {
		t.Helper()
		if got := plugged(t, s.store); !slices.Equal(got, want) {
			t.Errorf("%s: ends %v in the panel, want %v", when, got, want)
		}
	}
	plug := func(bridge string, ends ...uint32) (b *Bridge) {
		s.do(func() (err error) {
			if b, err = s.store.Open(bridge); err != nil {
				return err
			}
			next := b.Config
			for _, p := range Ports(&next) {
				if !slices.Contains(ends, p.Endpoint) {
					*p = Port{}
				}
			}
			for _, n := range ends {
				if !slices.ContainsFunc(Ports(&next), func(p *Port) bool { return p.Endpoint == n }) {
					Plug(NewPort(&next, fmt.Sprintf("end%d", n)), n, n^1)
				}
			}
			return b.Commit(&next, Tables{}, keepAll)
		})
		return b
	}
	for _, name := range []string{"a", "b"} {
		s.do(func() error { return s.store.Create(name, newSettings(1, 10)) })
	}
	expect("without cables")
	plug("a", 2, 4, 6)
	b := plug("b", 3, 5)
	expect("with cables", 2, 3, 4, 5, 6)

	s.do(func() error {
		c, err := s.store.Cables()
		if err != nil {
			return err
		}
		for _, p := range Ports(&b.Config) {
			if other, ok := c.Other(p); !ok || other.Bridge != "a" || c.Half(p) {
				t.Errorf("end %d: other %v %v", p.Endpoint, other, ok)
			}
		}
		one, ok1 := c.Take()
		two, ok2 := c.Take()
		if one != 1 || two != 8 || !ok1 || !ok2 {
			t.Errorf("free ends %d and %d, %v and %v; 7 is wanted by 6", one, two, ok1, ok2)
		}
		if n := c.Joined("a"); n != 2 {
			t.Errorf("%d bridges are joined to a, want 2", n)
		}
		return nil
	})
	plug("a", 4, 6)
	expect("one less", 3, 4, 5, 6)
	s.do(func() error {
		panel, err := s.store.panel()
		if err != nil {
			return err
		}
		defer panel.Close()
		if err := panel.Delete(uint32(5)); err != nil {
			return err
		}
		b, err := s.store.Open("b")
		if err != nil {
			return err
		}
		return b.Mend(keepAll)
	})
	expect("after mending", 3, 4, 5, 6)
	s.do(func() error { return b.Remove(keepAll) })
	expect("without b", 4, 6)
	if names, err := s.store.Names(); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("bridges %v, error %v", names, err)
	}
	s.do(func() error { return s.store.Sweep(keepAll) })
	expect("after a sweep", 4, 6)
	plug("a")
	expect("without cables again")
	if _, err := os.Stat(s.store.dir + "/" + patchDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the panel: %v", err)
	}
}

// BenchmarkPatchHop measures the cost of an additional bridge for a frame of a
// conversation, in nanoseconds: the difference between a row of two bridges and one of
// six, each the best of many short runs, because other programs take time, too.
func BenchmarkPatchHop(b *testing.B) {
	const short, long = 2, 6
	w := newPatchwork(b, long, row(long), nil)
	w.put(0, from(1))
	for i := 1; i < long; i++ {
		w.put(i, from(10+i))
	}
	run := func(bridges int) (best time.Duration) {
		frame := unicast(10+bridges-1, 1)
		const frames = 2000
		for n := 0; n < b.N; n += frames {
			opts := ebpf.RunOptions{Data: frame, Context: &skbContext{Ifindex: w.rack.near[0]}, Repeat: frames}
			err := w.rack.do(func() error {
				start := time.Now()
				_, err := w.bench[0].gen.program(hookTCX).Run(&opts)
				if took := time.Since(start); best == 0 || took < best {
					best = took
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		return best / frames
	}
	two, six := run(short), run(long)
	b.ReportMetric(float64(six-two)/(long-short), "ns/hop")
	b.ReportMetric(float64(two), "ns/two-bridges")
	b.ReportMetric(0, "ns/op")
}
