// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"net"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func port(name string, s bridge.Stats) bridge.Port {
	return bridge.Port{Bridge: "br0", Name: name, Stats: s}
}

func TestPorts(t *testing.T) {
	before := bridge.Stats{
		RxFrames: 100, RxBytes: 6000, TxFrames: 50, TxBytes: 3000, Learned: 3,
		Drops: map[string]uint64{"mtu": 4, "same-port": 9},
	}
	changed := func(f func(*bridge.Stats)) bridge.Stats {
		s := before
		s.Drops = map[string]uint64{"mtu": 4, "same-port": 9}
		f(&s)
		return s
	}
	for _, c := range []struct {
		name    string
		now     bridge.Stats
		elapsed time.Duration
		want    Port
	}{
		{"nothing happened", before, time.Second, Port{Known: true, Drops: map[string]float64{}}},
		{"all rose", changed(func(s *bridge.Stats) {
			s.RxFrames, s.RxBytes, s.TxFrames, s.TxBytes = 300, 16000, 60, 3600
			s.Drops["mtu"], s.Drops["protected"] = 6, 1
		}), time.Second, Port{
			Known: true, RxFrames: 200, RxBits: 80000, TxFrames: 10, TxBits: 4800,
			Drops: map[string]float64{"mtu": 2, "protected": 1},
		}},
		{"in the time that passed", changed(func(s *bridge.Stats) { s.RxFrames, s.RxBytes = 200, 7000 }), 4 * time.Second,
			Port{Known: true, RxFrames: 25, RxBits: 2000, Drops: map[string]float64{}}},
		{"added again", bridge.Stats{RxFrames: 5, RxBytes: 300}, time.Second, Port{}},
		{"added again, and busier than before", bridge.Stats{RxFrames: 1000, RxBytes: 60000, TxFrames: 1000, TxBytes: 60000}, time.Second, Port{}},
		{"only a drop fell", changed(func(s *bridge.Stats) { s.RxFrames = 200; delete(s.Drops, "mtu") }), time.Second, Port{}},
		{"only what was learned fell", changed(func(s *bridge.Stats) { s.Learned = 0 }), time.Second, Port{}},
		{"no time passed", changed(func(s *bridge.Stats) { s.RxFrames = 200 }), 0, Port{}},
		{"the clock went back", changed(func(s *bridge.Stats) { s.RxFrames = 200 }), -time.Second, Port{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m Meter
			first, _, elapsed := m.Read(start, []bridge.Port{port("p1", before)}, nil)
			if elapsed != 0 || first[0].Known {
				t.Errorf("the first reading has rates: %+v over %v", first, elapsed)
			}
			got, _, elapsed := m.Read(start.Add(c.elapsed), []bridge.Port{port("p1", c.now)}, nil)
			if elapsed != c.elapsed {
				t.Errorf("over %v", elapsed)
			}
			c.want.Port = port("p1", c.now)
			if diff := cmp.Diff([]Port{c.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestComeAndGo: a port that was away for a reading begins anew, and so does
// one of the same name on another bridge.
func TestComeAndGo(t *testing.T) {
	var m Meter
	stats := func(n uint64) bridge.Stats { return bridge.Stats{RxFrames: n, RxBytes: 60 * n} }
	known := func(at int, ports ...bridge.Port) []bool {
		got, _, _ := m.Read(start.Add(time.Duration(at)*time.Second), ports, nil)
		list := []bool{}
		for _, p := range got {
			list = append(list, p.Known)
		}
		return list
	}
	p1 := port("p1", stats(10))
	other := bridge.Port{Bridge: "br1", Name: "p1", Stats: stats(20)}
	for i, c := range []struct {
		ports []bridge.Port
		want  []bool
	}{
		{[]bridge.Port{p1}, []bool{false}},
		{[]bridge.Port{p1, other}, []bool{true, false}},
		{[]bridge.Port{other}, []bool{true}},
		{[]bridge.Port{other, p1}, []bool{true, false}},
		{nil, []bool{}},
		{[]bridge.Port{p1}, []bool{false}},
	} {
		if diff := cmp.Diff(c.want, known(i, c.ports...)); diff != "" {
			t.Errorf("reading %d: %s", i, diff)
		}
	}
}

func TestDropped(t *testing.T) {
	if n := (Port{Drops: map[string]float64{"mtu": 2, "protected": 0.5}}).Dropped(); n != 2.5 {
		t.Error(n)
	}
}

func TestTalkers(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	talker := func(vlan uint16, port string, frames uint64) bridge.Talker {
		return bridge.Talker{MAC: mac, VLAN: vlan, Port: port, Frames: frames, Bytes: 100 * frames}
	}
	before := []bridge.Talker{talker(0, "p1", 10), talker(5, "p1", 20), talker(6, "p1", 30), talker(7, "p1", 40)}
	now := []bridge.Talker{
		talker(0, "p1", 30), // rose
		talker(5, "p2", 90), // moved
		talker(6, "p1", 1),  // forgotten and learned again
		talker(8, "p1", 1),  // new
	}
	var m Meter
	m.Read(start, nil, before)
	_, got, _ := m.Read(start.Add(2*time.Second), nil, now)
	want := []Talker{
		{Talker: now[0], Known: true, Frames: 10, Bits: 8000},
		{Talker: now[1]}, {Talker: now[2]}, {Talker: now[3]},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
