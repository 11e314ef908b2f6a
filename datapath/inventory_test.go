// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// Every map of the datapath has a row in the inventory, and every row has a map. The
// parts of a row are consistent.
func TestInventory(t *testing.T) {
	specs := map[string]*ebpf.CollectionSpec{}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"kernel": loadKernel, "plain": loadPlain, "locked": loadLocked, "trial": loadTrial} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		specs[name] = spec
	}
	rows := map[string]int{}
	for i := range inventory {
		table := &inventory[i]
		rows[table.name]++
		var m *ebpf.MapSpec
		for object, spec := range specs {
			m = spec.Maps[table.name]
			if (m == nil) != (table.own != nil) {
				t.Errorf("%s is in object %s: %v, and user space's own: %v", table.name, object, m != nil, table.own != nil)
			}
		}
		if table.own != nil {
			m = table.own()
		}
		if m == nil {
			continue
		}
		kept := table.life == lifeBridge || table.life == lifeGeneration
		for what, wrong := range map[string]bool{
			"has no reason to be new and empty in a trial":     (table.trial == trialNew) != (table.why != ""),
			"is to be copied, and is no array":                 table.trial == trialCopy && m.Type != ebpf.Array,
			"is the bridge's in a trial, and is not pinned":    table.trial != trialNew && !kept && table.life != lifeNamespace,
			"is user space's own, and is not pinned":           table.own != nil && !kept,
			"is made anew by changes, and is so in any case":   table.anew != nil && table.life != lifeBridge,
			"grows, and is made anew in any case":              table.grows != nil && table.life != lifeBridge,
			"grows, and has no number of entries":              table.grows != nil && table.entries == nil,
			"tells what it takes, and is not pinned":           table.takes != nil && !kept,
			"is small without its features, and has none":      table.idle != idleSame && table.features == 0,
			"is a ring that is to have one entry":              (m.Type == ebpf.RingBuf) && table.idle == idleEntry,
			"is to have a page, and is no ring":                (m.Type != ebpf.RingBuf) && table.idle == idlePage,
			"has ports' devices, and is no map of devices":     table.devices != (m.Type == ebpf.DevMap),
			"has types, and the kernel takes none for devices": m.Type == ebpf.DevMap && (m.Key != nil || m.Value != nil),
			"has a type of its keys or its values alone":       (m.Key == nil) != (m.Value == nil),
			"has features of pf, and no name of pf's or so":    !table.pf() && table.features&pfFeatures == table.features && table.features != 0,
			"has a name of pf's, and features that are not so": table.pf() && table.features&^pfFeatures != 0,
		} {
			if wrong {
				t.Errorf("table %s %s", table.name, what)
			}
		}
	}
	for object, spec := range specs {
		for name := range spec.Maps {
			if strings.HasPrefix(name, ".") {
				continue // constants, and the lab's variables
			}
			if rows[name] == 0 {
				t.Errorf("map %s of object %s has no row in the inventory", name, object)
			}
		}
	}
	for name, n := range rows {
		if n != 1 {
			t.Errorf("%s has %d rows in the inventory", name, n)
		}
	}
}

// allFeatures are the features that are tested for frames, except the feature of
// trials, with which no frame is sent.
const allFeatures = (kernelFeatureFEATURE_END - 1) &^ kernelFeatureFEATURE_TRACE

// metByFrames returns the tables that the program of a bridge with these features
// refers to after the kernel has removed the features that are off.
func metByFrames(t *testing.T, features kernelFeature) map[string]bool {
	t.Helper()
	c := newConfig(sharedRack(t), 4, func(c *Config, p []*Port) {
		watched(uint32(MaxSnaplen), BridgeCapture)(c, p)
		c.Flags |= uint32(BridgeVLANs | BridgeVLANStats | BridgeSTP | BridgePF)
		c.MoveMax = 5
		Plug(NewPort(c, "patch"), 1, 2)
		c.Pf.Rules, c.Pf.Groups, c.Pf.Dims, c.Pf.Asks, c.Pf.Buckets = 10000, 3, 1<<8-1, 1<<7-1, 1
		c.Pf.LogInterface = p[0].Id
	})
	c.Features = uint64(features)
	object, err := specOf(_KernelBytes)
	if err != nil {
		t.Fatal(err)
	}
	spec := object.spec
	if err := findPlaces(&c); err != nil {
		t.Fatal(err)
	}
	if err := c.setIn(spec); err != nil {
		t.Fatal(err)
	}
	programs := map[string]*ebpf.ProgramSpec{kernelProgBasculeTcx: spec.Programs[kernelProgBasculeTcx]}
	if features&kernelFeatureFEATURE_PF_FIB != 0 { // the other program ends in it
		programs[kernelProgBasculeFib] = spec.Programs[kernelProgBasculeFib]
	}
	spec.Programs = programs
	for _, p := range programs {
		if err := object.linker(&c).make(p, c.Features); err != nil {
			t.Fatal(err)
		}
	}
	for i := range inventory {
		if m := spec.Maps[inventory[i].name]; m != nil {
			inventory[i].fit(m, &making{Config: &c})
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	names := map[ebpf.MapID]string{}
	for name, m := range coll.Maps {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, ok := info.ID()
		if !ok {
			t.Fatal("the kernel does not say the ids of maps")
		}
		names[id] = name
	}
	met := map[string]bool{}
	for _, program := range coll.Programs {
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		instructions, err := info.Instructions()
		if err != nil {
			t.Fatal(err)
		}
		for _, ins := range instructions {
			if ins.IsLoadFromMap() {
				met[names[ebpf.MapID(uint32(ins.Constant))]] = true
			}
		}
	}
	return met
}

// While the features of a table are off no frame meets the table, and while one is on
// frames do, as the program that the kernel keeps shows.
func TestInventoryFeatures(t *testing.T) {
	all, none := metByFrames(t, allFeatures), metByFrames(t, 0)
	byFeatures := map[kernelFeature][]*table{}
	for i := range inventory {
		table := &inventory[i]
		byXDP := table.name == kernelMapXdpDevices || table.name == kernelMapPfPanelXdp
		if table.why == whyUser || byXDP {
			if all[table.name] {
				t.Errorf("a frame meets %s", table.name)
			}
			continue
		}
		if table.features != kernelFeatureFEATURE_TRACE && !all[table.name] {
			t.Errorf("no frame meets %s, whatever is on", table.name)
		}
		if none[table.name] != (table.features == 0) {
			t.Errorf("a frame of a plain bridge meets %s: %v; its features are %#x", table.name, none[table.name], table.features)
		}
		if table.features != 0 {
			byFeatures[table.features] = append(byFeatures[table.features], table)
		}
	}
	for features, list := range byFeatures {
		without := metByFrames(t, allFeatures&^features)
		for _, table := range list {
			if without[table.name] {
				t.Errorf("a frame meets %s while features %#x are off", table.name, features)
			}
		}
		if bits.OnesCount64(uint64(features)) == 1 && features != kernelFeatureFEATURE_TRACE {
			continue // this feature and no other uses the table
		}
		for f := kernelFeature(1); f < kernelFeatureFEATURE_END; f <<= 1 {
			if features&f == 0 {
				continue
			}
			with := metByFrames(t, allFeatures&^features|f)
			for _, table := range list {
				if !with[table.name] {
					t.Errorf("no frame meets %s while feature %#x is on alone of its %#x", table.name, f, features)
				}
			}
		}
	}
}

// Tables that outlive a change do, and tables that a change brings are made anew.
func TestInventoryLife(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "block in proto udp to port 53\n")
	ids := func() map[string]ebpf.MapID {
		t.Helper()
		list := map[string]ebpf.MapID{}
		for _, table := range pinned(&b.Config) {
			m, err := b.openTable(table.name)
			if err != nil {
				t.Fatal(err)
			}
			info, err := m.Info()
			m.Close()
			if err != nil {
				t.Fatal(err)
			}
			list[table.name], _ = info.ID()
		}
		return list
	}
	for _, tt := range []struct {
		name   string
		change func(c *Config)
		bring  Tables
		anew   []string
	}{
		{name: "nothing"},
		{name: "nothing again"}, // with the spare, which has tables of its own
		{name: "VLANs", bring: Tables{VLANs: new(VLANs)}},
		{name: "bindings", bring: Tables{Bindings: []Binding{}}, anew: []string{kernelMapBindings}},
		{name: "MAC rules", bring: Tables{Rules: []Rule{}}},
		{name: "a larger FDB", change: func(c *Config) { c.FdbMax *= 4 }, anew: []string{kernelMapFdb}},
		{name: "counters of VLANs", change: func(c *Config) { c.Flags |= uint32(BridgeVLANs | BridgeVLANStats) }, anew: []string{kernelMapVlanStats}},
		{name: "pf off", change: func(c *Config) { c.Flags &^= uint32(BridgePF) }},
	} {
		before := ids()
		s.do(func() error {
			next := b.Config
			if tt.change != nil {
				tt.change(&next)
			}
			return b.Commit(&next, tt.bring, keepAll)
		})
		var anew []string
		for name, id := range ids() {
			if before[name] != id {
				anew = append(anew, name)
			}
		}
		// each generation has its own of these
		want := append(slices.Clone(tt.anew), kernelMapBerths, kernelMapVlans, kernelMapRules, kernelMapRuleLists,
			kernelMapRuleNumbers, kernelMapPfPanel, kernelMapPfPanelXdp)
		slices.Sort(anew)
		slices.Sort(want)
		if !slices.Equal(anew, want) {
			t.Errorf("%s: made anew are %q, want %q", tt.name, anew, want)
		}
	}
}
