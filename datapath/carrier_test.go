// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// set brings a device up or down.
func (r *rack) set(t testing.TB, index uint32, up bool) {
	t.Helper()
	err := r.do(func() error {
		l, err := netlink.LinkByIndex(int(index))
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Frames to a port without a carrier leave by its backup at once, also if the decision
// is remembered; and by the port again when the carrier is back.
func TestBackup(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(r *rack, up bool) // the carrier of port 1
	}{
		{"carrier", func(r *rack, up bool) { r.set(t, r.far[1], up) }},
		{"device", func(r *rack, up bool) { r.set(t, r.near[1], up) }},
	} {
		for _, h := range []hook{hookTCX, hookXDP} {
			t.Run(tt.name+", "+h.String(), func(t *testing.T) {
				r := ownRack(t, 4)
				s := newBenchOn(t, r, 4, allXDP, func(_ *Config, p []*Port) { p[1].Backup = p[2].Id })
				put := s.tcx
				if h == hookXDP {
					put = s.xdp
				}
				to1, to2 := sent(1), sent(2)
				s.learn(1, 1)
				s.learn(0, 0)
				s.learn(2, 2)
				s.learn(3, 3)
				for range 3 {
					expect(t, "with a carrier", put(0, unicast(1, 0)), to1)
				}
				tt.lose(r, false)
				if h == hookXDP {
					// a decision is remembered for the other way, and XDP leaves the
					// frame to tcx
					expect(t, "remembered", put(0, unicast(1, 0)), passed)
					s.at(benchNow)
				}
				for range 3 {
					expect(t, "without a carrier", put(0, unicast(1, 0)), to2)
					expect(t, "from another port", put(3, unicast(1, 3)), to2)
				}
				expect(t, "from the backup", s.tcx(2, unicast(1, 2)), dropped("same-port"))
				expect(t, "to the backup's own", put(0, unicast(2, 0)), sent(2))
				expect(t, "to another port", put(0, unicast(3, 0)), sent(3))
				expect(t, "of an address that is not known", s.tcx(0, unicast(9, 0)), sent(1, 2, 3))
				tt.lose(r, true)
				for range 3 {
					expect(t, "with a carrier again", put(0, unicast(1, 0)), to1)
					expect(t, "from the backup, with a carrier again", put(2, unicast(1, 2)), to1)
				}
			})
		}
	}
}

// A backup has to pass the checks of every port by which a frame is about to leave.
func TestBackupIsAPort(t *testing.T) {
	r := ownRack(t, 4)
	r.set(t, r.far[1], false)
	backup := func(_ *Config, p []*Port) { p[1].Backup = p[2].Id }
	s := newBenchOn(t, r, 4, allXDP, backup, func(_ *Config, p []*Port) { p[0].Domains, p[2].Domains = 2, 2 })
	s.store(address{station(1), 0}, spot{port: 1, pin: fdbStatic})
	s.learn(0, 0)
	s.learn(3, 3)
	s.expectBoth("protected", 0, unicast(1, 0), dropped("protected"))
	s.expectBoth("from a port that is not", 3, unicast(1, 3), sent(2))

	// a backup that is gone does not count, and the frame's address counts as unknown
	s = newBenchOn(t, r, 4, allXDP, backup)
	s.store(address{station(1), 0}, spot{port: 1, pin: fdbStatic})
	s.learn(0, 0)
	for _, m := range deviceMaps() {
		if err := s.gen.coll.Maps[m].Delete(Slot(s.ids[2])); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "the backup is gone", s.tcx(0, unicast(1, 0)), sent(1, 3))
}
