// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// programs are the programs that the bridge's ports have now.
func (s *shelf) programs(b *Bridge) (ids []ebpf.ProgramID) {
	s.t.Helper()
	for _, p := range Ports(&b.Config) {
		tcx, _ := s.attached(p.Ifindex)
		ids = append(ids, tcx...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// A change that needs no other programs loads none: two sets of them take turns.
func TestSpare(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 3)
	must := func(change func(c *Config, p []*Port)) []ebpf.ProgramID {
		t.Helper()
		if err := s.commit(b, change); err != nil {
			t.Fatal(err)
		}
		s.expectAttached(b)
		return s.programs(b)
	}
	first := s.programs(b)
	second := must(func(c *Config, p []*Port) { p[0].FdbMax = 7 })
	if slices.Equal(first, second) {
		t.Fatalf("programs %v have settings that no frame may see half of", first)
	}
	turns := [][]ebpf.ProgramID{first, second}
	for i, change := range []func(c *Config, p []*Port){
		func(c *Config, p []*Port) { p[0].FdbMax = 8 },
		func(c *Config, p []*Port) { c.Ageing = 17 },
		func(c *Config, p []*Port) {
			q := NewPort(c, "new")
			q.Ifindex, q.Flags = s.rack.near[3], p[0].Flags
		},
		func(c *Config, p []*Port) { *p[1] = Port{} },
	} {
		if got := must(change); !slices.Equal(got, turns[i%2]) {
			t.Fatalf("change %d: programs %v are on the ports, not %v", i, got, turns[i%2])
		}
	}
	if got := len(Ports(&s.open("br0").Config)); got != 3 {
		t.Errorf("%d ports are there, not 3", got)
	}
	// others are loaded for a feature, and nothing is kept of those before
	third := must(func(c *Config, p []*Port) { p[0].Flags |= PortHairpin })
	if slices.Contains(turns[0], third[0]) || slices.Contains(turns[1], third[0]) {
		t.Errorf("programs %v have no hairpin", third)
	}
	if _, err := os.Stat(b.pin(sparePin)); err == nil {
		t.Error("a spare without hairpin is kept")
	}
}

// What programs remember of the settings that they had does not count when it is
// their turn again.
func TestSpareForgets(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	epoch := func() uint32 {
		var c kernelClock
		if err := b.lookup(kernelMapClock, 0, &c); err != nil {
			t.Fatal(err)
		}
		return c.Epoch
	}
	for i := range 6 {
		before := epoch()
		if err := s.commit(b, func(c *Config, p []*Port) { p[0].FdbMax = uint32(i) + 1 }); err != nil {
			t.Fatal(err)
		}
		if i > 0 && epoch() == before {
			t.Fatalf("change %d: decisions of two changes ago would hold", i)
		}
	}
}

// A spare has VLANs and berths of its own, which are those of the change.
func TestSpareTables(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	commit := func(change func(c *Config), v *VLANs) {
		t.Helper()
		s.do(func() error {
			next := b.Config
			change(&next)
			return b.Commit(next, Tables{VLANs: v}, keepAll)
		})
	}
	vlans := func(n int) *VLANs {
		v := new(VLANs)
		v[n].Fid = uint16(n)
		return v
	}
	none := func(*Config) {}
	commit(func(c *Config) { c.Flags |= uint32(BridgeVLANs) }, vlans(10))
	for i, tt := range []struct {
		change func(*Config)
		vlans  *VLANs
		want   int
	}{{none, vlans(11), 11}, {none, vlans(12), 12}, {none, nil, 12}, {none, nil, 12}, {none, vlans(13), 13}, {none, vlans(14), 14}, {none, nil, 14}} {
		commit(tt.change, tt.vlans)
		got, err := b.VLANs()
		if err != nil {
			t.Fatal(err)
		}
		if *got != *vlans(tt.want) {
			t.Fatalf("change %d: the VLANs are not those of %d", i, tt.want)
		}
	}
	commit(func(c *Config) { NewBerth(c, "tap*"); NewBerth(c, "tap*") }, nil)
	for i := range 4 {
		if i == 2 {
			s.do(func() error { return b.Occupy(b.Ready()[0], s.rack.near[2], "tap0", 0, 0, keepsAll) })
			if again := s.open("br0"); len(again.devices) != 1 {
				t.Fatalf("%d devices are in berths", len(again.devices))
			}
		}
		b = s.open("br0")
		commit(func(c *Config) { c.Ageing = uint32(20 + i) }, nil)
		if again := s.open("br0"); len(again.devices) != 0 {
			t.Fatalf("change %d: %d devices are in berths that the change does not know", i, len(again.devices))
		}
	}
	s.expectAttached(b)
}
