// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"math"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
)

// A table is a map of the datapath. Its row in the inventory says how the table is loaded,
// pinned, opened, made larger, and traced. A map that bpf/ does not define belongs to user
// space.
type table struct {
	name string // name of the map and its pin; pf's tables, and no others, begin with pfPrefix
	life life

	// features are the features that use the table. If all of them are off, no frame meets the
	// table. 0 means always. A bridge without pf has no table of pf.
	features kernelFeature

	// entries returns the number of entries with which the table is made; 0, or nil, means the
	// number in bpf/.
	entries func(*making) uint32
	idle    idle // its size while its features are off

	// anew reports whether a change makes the table of the next generation anew, rather than use
	// the present one; nil means never. If the configuration requires another number of entries,
	// the table is made anew in any case, unless grows handles its contents.
	anew  func(*making) bool
	grows *growth

	trial trial
	// why is the reason why a table can be new and empty in a trial.
	why string

	devices bool                         // it has the ports' devices, for one of the hooks
	ruleset bool                         // it has pf's rules: each set of programs may have its own
	own     func() *ebpf.MapSpec         // the specification of a map of user space
	takes   func(takes *PFTakes) *uint64 // the field of PFTakes that includes a pinned table's memory
}

// life is the lifetime of a table.
type life int

const (
	// lifePrograms is the lifetime of the programs. Only they refer to the table.
	lifePrograms life = iota
	// lifeGeneration is the lifetime of the generation in whose folder the table is pinned.
	lifeGeneration
	// lifeBridge is the lifetime of the bridge. The table is pinned in each generation's folder.
	lifeBridge
	// lifeNamespace lasts as long as there are patch cables or routed host ports. Bridges share
	// the table.
	lifeNamespace
)

// idle is the size of a table while its features are off. No program names the table then, but
// commands can open it.
type idle int

const (
	idleSame  idle = iota // as when they are on
	idleEntry             // one entry
	idlePage              // one page, for a ring
)

// trial is the replacement for a table in a trial of [Bridge.Trace].
type trial int

const (
	// trialNew is a new and empty table. This is right for tables that programs only write.
	trialNew trial = iota
	// trialShared is the bridge's own table, which programs only read.
	trialShared
	// trialCopy is a copy of the table: a decision depends on the table, and
	// programs write to it.
	trialCopy
	// trialAbout is a new table with only those entries that may concern the frame, for tables
	// that may be large: see [Bridge.copyAbout].
	trialAbout
)

// A making has the sources of tables: a configuration, its companions, and the
// former tables.
type making struct {
	*Config
	tables Tables
	rules  *compiledRules // of tables.Rules; nil without rules
	was    *Config        // nil for the first configuration of a bridge
}

// program returns the program of pf that the change brings, nil if it brings none.
func (m *making) program() *PF {
	if m.tables.PF == nil || m.tables.PF.Program == nil {
		return nil
	}
	return m.tables.PF
}

// A growth defines how the contents of a table are handled that is made anew with another number
// of entries.
type growth struct {
	// copy copies the contents of a table of b to the table of g, whose configuration is c. It
	// is called before g begins. It is called again with late, for the changes until g has
	// begun. If it is nil, the contents are given up, or copied with another table.
	copy func(b *Bridge, g *generation, c *Config, from, to *ebpf.Map, late bool) error
	// less reports whether a change of pf makes the table smaller, if the change requires n
	// entries, which are fewer than before; nil means never.
	less func(b *Bridge, m *ebpf.Map, n uint32, p *PF) (bool, error)
}

// on reports whether a configuration uses the table.
func (t *table) on(c *Config) bool {
	return t.features == 0 || kernelFeature(c.Features)&t.features != 0
}

// pf reports whether the table is one of pf's.
func (t *table) pf() bool { return strings.HasPrefix(t.name, pfPrefix) }

// count returns the number of entries with which the table is made, 0 for the number in bpf/.
func (t *table) count(m *making) uint32 {
	switch {
	case t.on(m.Config) || t.idle == idleSame:
	case t.idle == idlePage:
		return uint32(os.Getpagesize())
	default:
		return 1
	}
	if t.entries == nil {
		return 0
	}
	return t.entries(m)
}

// fit gives a map the size that m requires.
func (t *table) fit(spec *ebpf.MapSpec, m *making) {
	if n := t.count(m); n != 0 {
		spec.MaxEntries = n
	}
}

// fit gives the maps of spec the sizes that m requires. It removes pf's maps for a bridge
// without pf.
func fit(spec *ebpf.CollectionSpec, m *making) {
	for i := range inventory {
		t := &inventory[i]
		if t.pf() && !holdsPF(m.Config) {
			delete(spec.Maps, t.name)
			continue
		}
		if t.own != nil {
			spec.Maps[t.name] = t.own()
		}
		t.fit(spec.Maps[t.name], m)
	}
	// The kernel does not need the types, which would be loaded once for each map. The exception
	// is the timer, which the kernel finds by its type.
	for name, table := range spec.Maps {
		if name != kernelMapTimer {
			table.Key, table.Value = nil, nil
		}
	}
}

// pinned returns the tables that are pinned in a generation of the configuration.
func pinned(c *Config) []*table {
	return tablesThat(func(t *table) bool {
		return t.life != lifePrograms && t.life != lifeNamespace && (!t.pf() || loadedPF(c))
	})
}

// outlives reports whether the next generation goes on using b's table.
func (t *table) outlives(b *Bridge, m *making) bool {
	switch {
	case t.life != lifeBridge || b.gen == "" || t.pf() && !b.PFLoaded():
		return false
	case t.anew != nil && t.anew(m):
		return false
	}
	return t.grows != nil || t.count(&making{Config: m.Config}) == t.count(&making{Config: &b.Config})
}

// tablesThat returns the tables for which is reports true.
func tablesThat(is func(*table) bool) (list []*table) {
	for i := range inventory {
		if is(&inventory[i]) {
			list = append(list, &inventory[i])
		}
	}
	return list
}

// deviceMaps are the names of the maps with the ports' devices, one for each hook.
var deviceMaps = sync.OnceValue(func() (names []string) {
	for _, t := range tablesThat(func(t *table) bool { return t.devices }) {
		names = append(names, t.name)
	}
	return names
})

// fixed returns an entries function for a fixed number.
func fixed(n uint32) func(*making) uint32 { return func(*making) uint32 { return n } }

// counted returns an entries function for a field of the configuration, which may be 0.
func counted(field func(*Config) uint32) func(*making) uint32 {
	return func(m *making) uint32 { return max(field(m.Config), 1) }
}

// ruled returns an entries function for the MAC rules, with room for more.
func ruled(count func(*compiledRules) int) func(*making) uint32 {
	return func(m *making) uint32 {
		if m.rules == nil || kernelFeature(m.Features)&kernelFeatureFEATURE_RULES == 0 {
			return 0
		}
		return ruleRoom(count(m.rules))
	}
}

// compiled returns an entries function for a change of pf's rules.
func compiled(count func(*PF) int) func(*making) uint32 {
	return func(m *making) uint32 {
		if p := m.program(); p != nil {
			return uint32(max(count(p), 1))
		}
		return 0
	}
}

// rulesEntries is the number of entries of a table for pf's rules.
func rulesEntries(m *making) uint32 { return uint32(roomFor(int(m.Pf.Rules), rulesRoom)) }

// brought returns an entries function for contents that a change may bring.
func brought(by func(*making) bool, n uint32) func(*making) uint32 {
	return func(m *making) uint32 {
		if !by(m) {
			return 0
		}
		return n
	}
}

// listEntries is the number of entries for the lists of rules, and for the masks behind them.
func listEntries(m *making) uint32 {
	masks := 0
	if m.rules != nil {
		masks = max(len(m.rules.lists)-ruleLists, 0)
	}
	return uint32(ruleLists) + ruleRoom(masks)
}

// gatewayEntries has the first cable make the table large, also for bridges that route.
func gatewayEntries(m *making) uint32 {
	if patched(m.Config) {
		return gatewaysSize
	}
	return 1
}

// routePart is the number of ways of routed packets in a part of a CPU's memory: ROUTE_PART.
const routePart = 256

// routeParts returns how many such parts each of cpus CPUs has: a power of two, at most 16. A
// part has some 32 KiB, so all CPUs together have 8 MiB, not counting those behind the 256th.
func routeParts(cpus int) uint32 {
	n := uint32(16)
	for n > 1 && cpus > 256/int(n) {
		n /= 2
	}
	return n
}

// memoryParts returns how many parts of enum memory_part (bpf/maps.h) are needed. The last part
// belongs to a trial, a capture, or flows.
func memoryParts(m *making) uint32 {
	on := func(f kernelFeature) bool { return kernelFeature(m.Features)&f != 0 }
	pf, routes, watch := on(kernelFeatureFEATURE_PF), on(kernelFeatureFEATURE_ROUTE), on(kernelFeatureFEATURE_CAPTURE|kernelFeatureFEATURE_TRACE)
	n := uint32(1)
	for _, asked := range []bool{pf, on(kernelFeatureFEATURE_PF_HOPS), watch || pf && routes} {
		if asked {
			n++
		}
	}
	if routes {
		n += (m.Ways + 1) / routePart
	}
	return n
}

// The changes that make tables anew.
func withFDB(m *making) bool      { return m.was == nil || m.FdbBuckets != m.was.FdbBuckets }
func withVLANs(m *making) bool    { return m.tables.VLANs != nil }
func withBindings(m *making) bool { return m.tables.Bindings != nil }
func withCapture(m *making) bool  { return m.tables.Filter != nil } // it must not have an earlier capture's frames
func withPF(m *making) bool       { return m.tables.PF != nil }
func withOtherPF(m *making) bool  { return m.tables.PF != nil && !m.tables.PF.Same }

// The fields of PFTakes for the memory of pf's tables.
func takeStates(t *PFTakes) *uint64    { return &t.States }
func takeSources(t *PFTakes) *uint64   { return &t.Sources }
func takeFragments(t *PFTakes) *uint64 { return &t.Fragments }
func takeAddresses(t *PFTakes) *uint64 { return &t.Addresses }
func takeRules(t *PFTakes) *uint64     { return &t.Rules }

// Reasons why a table can be new and empty in a trial.
const (
	whyWritten = "programs only write to it"
	whySecond  = "of this second: a new generation begins without, too"
	whyCables  = "a trial does not go on by cables"
	whyUser    = "no program of a frame looks into it"
	whyNothing = "a trial answers nothing, logs nothing and hands nothing on"
	whyPacket  = "a trial is about one packet"
)

// cabled are the features with which frames go from bridge to bridge by tail calls.
const cabled = kernelFeatureFEATURE_PATCH | kernelFeatureFEATURE_ROUTE

// inventory has every table, in one row each. bpf/ defines their types.
var inventory = []table{
	// the FDB
	{name: kernelMapFdb, life: lifeBridge, trial: trialCopy,
		entries: func(m *making) uint32 { return m.FdbBuckets + fdbWindow }},
	{name: kernelMapMoves, why: whySecond, features: kernelFeatureFEATURE_MOVE_MAX, idle: idleEntry,
		entries: func(m *making) uint32 { return (m.FdbBuckets + fdbWindow) * fdbWays }},
	{name: kernelMapShared, life: lifeBridge, trial: trialCopy},
	{name: kernelMapTimer, life: lifeBridge, why: whyUser},
	{name: kernelMapMemory, why: "a memory, a place to work in and the result", entries: memoryParts},

	// ports
	{name: kernelMapTcxDevices, life: lifeBridge, trial: trialShared, devices: true},
	{name: kernelMapXdpDevices, life: lifeBridge, trial: trialShared, devices: true},
	{name: kernelMapBerths, life: lifeGeneration, trial: trialShared, features: kernelFeatureFEATURE_BERTHS,
		idle: idleEntry, entries: fixed(uint32(MaxPorts))},
	{name: kernelMapStats, life: lifeBridge, why: whyWritten},
	{name: kernelMapCounters, life: lifeBridge, why: whyWritten, // zeroed when captures and pf begin
		features: cabled | kernelFeatureFEATURE_CAPTURE | kernelFeatureFEATURE_SAMPLE | kernelFeatureFEATURE_PF},
	{name: ownersMap, life: lifeBridge, why: whyUser, own: ownersSpec},
	{name: kernelMapControlFrames, life: lifeBridge, why: whyNothing, features: kernelFeatureFEATURE_CONTROL,
		idle: idlePage, entries: fixed(controlRing)},

	// VLANs, bindings, MAC rules
	{name: kernelMapVlans, life: lifeGeneration, trial: trialShared, features: kernelFeatureFEATURE_VLANS,
		entries: brought(withVLANs, uint32(len(VLANs{})))},
	{name: kernelMapVlanStats, life: lifeBridge, why: whyWritten, features: kernelFeatureFEATURE_VLAN_STATS,
		idle: idleEntry, entries: fixed(uint32(len(VLANs{})))},
	{name: kernelMapBindings, life: lifeBridge, trial: trialShared, anew: withBindings,
		features: kernelFeatureFEATURE_SOURCE_GUARD | kernelFeatureFEATURE_SUPPRESS | kernelFeatureFEATURE_PF_FIB,
		entries:  brought(withBindings, largeBindings)}, // no-route and urpf-failed use them
	{name: kernelMapRules, life: lifeGeneration, trial: trialShared,
		features: kernelFeatureFEATURE_RULES | kernelFeatureFEATURE_PF,
		entries:  ruled(func(r *compiledRules) int { return len(r.rules) })}, // pf reads a rule's mark
	{name: kernelMapRuleLists, life: lifeGeneration, trial: trialShared, features: kernelFeatureFEATURE_RULES,
		idle: idleEntry, entries: listEntries},
	{name: kernelMapRuleNumbers, life: lifeGeneration, trial: trialShared, features: kernelFeatureFEATURE_RULES,
		entries: ruled(func(r *compiledRules) int { return len(r.keys) })},
	{name: kernelMapRuleCounters, life: lifeBridge, why: whyWritten, features: kernelFeatureFEATURE_RULES,
		idle: idleEntry, entries: fixed(uint32(ruleNumbers))},

	// patch cables
	{name: kernelMapPatchPanel, life: lifeNamespace, why: whyCables, features: cabled,
		idle: idleEntry, entries: fixed(panelSize)},
	{name: kernelMapPatchTrip, life: lifeNamespace, why: whyCables, features: cabled},
	{name: kernelMapGateways, life: lifeNamespace, trial: trialShared, features: kernelFeatureFEATURE_ROUTE,
		entries: gatewayEntries},
	{name: kernelMapHostEnds, life: lifeNamespace, trial: trialShared, features: kernelFeatureFEATURE_ROUTE,
		entries: gatewayEntries},

	// for commands that watch
	{name: kernelMapCaptureRing, life: lifeBridge, why: whyWritten, features: kernelFeatureFEATURE_CAPTURE,
		idle: idlePage, anew: withCapture, entries: func(m *making) uint32 { return m.CaptureRing }},
	{name: kernelMapCaptureFilter, life: lifeBridge, why: whyUser, features: kernelFeatureFEATURE_CAPTURE,
		idle: idleEntry, anew: withCapture, entries: fixed(maxFilter + 1)},
	{name: kernelMapTalkers, life: lifeBridge, why: whyWritten, features: kernelFeatureFEATURE_TALKERS,
		idle: idleEntry, entries: fixed(maxTalkers)},

	// pf: the ruleset
	{name: kernelMapPfWords, life: lifeBridge, trial: trialShared, anew: withPF, ruleset: true, takes: takeRules,
		features: kernelFeatureFEATURE_PF | kernelFeatureFEATURE_ETHER,
		entries:  compiled(func(p *PF) int { return roomFor(p.Program.Words(), wordsRoom) })},
	{name: kernelMapPfNetworks, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_PF_RULES,
		anew: withPF, ruleset: true, takes: takeRules,
		entries: compiled(func(p *PF) int { return roomFor(len(p.Program.Networks), rulesRoom) })},
	{name: kernelMapPfRules, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_PF, anew: withPF,
		ruleset: true, takes: takeRules, entries: rulesEntries},
	{name: kernelMapPfEthers, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_ETHER,
		anew: withPF, ruleset: true, takes: takeRules, entries: counted(func(c *Config) uint32 { return c.Pf.EtherRules })},
	{name: pfText, life: lifeBridge, why: whyUser, anew: withPF, ruleset: true, takes: takeRules, own: textSpec,
		entries: compiled(func(p *PF) int { return roomFor(textPages(p.Text), 1) })},
	{name: kernelMapPfRuleStats, life: lifeBridge, why: whyWritten, features: kernelFeatureFEATURE_PF,
		anew: withOtherPF, takes: takeRules, entries: rulesEntries},
	{name: kernelMapPfRuleUse, life: lifeBridge, trial: trialCopy, features: kernelFeatureFEATURE_PF,
		anew: withOtherPF, takes: takeRules, entries: rulesEntries},

	// pf: tables whose size depends on limits
	{name: kernelMapPfBuckets, life: lifeBridge, trial: trialAbout, features: kernelFeatureFEATURE_PF,
		takes: takeStates, grows: &growStates, entries: counted(func(c *Config) uint32 { return c.Pf.Buckets })},
	{name: kernelMapPfStates, life: lifeBridge, trial: trialAbout, features: kernelFeatureFEATURE_PF,
		takes: takeStates, grows: &growWithBuckets,
		entries: func(m *making) uint32 { return max(m.Pf.Buckets, 1) * stateWays }},
	{name: kernelMapPfStamps, life: lifeBridge, trial: trialAbout, features: kernelFeatureFEATURE_PF_REASSEMBLE,
		takes: takeStates, grows: &growWithBuckets,
		entries: func(m *making) uint32 { // also while pf is disabled: its states stay
			if kernelFeature(m.Pf.Features)&kernelFeatureFEATURE_PF_REASSEMBLE == 0 {
				return 1
			}
			return max(m.Pf.Buckets, 1) * stateWays
		}},
	{name: kernelMapPfSources, life: lifeBridge, trial: trialAbout,
		features: kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_LIMITERS,
		takes:    takeSources, grows: &growSources, entries: counted(func(c *Config) uint32 {
			n := uint64(c.Pf.NodesMax)
			if kernelPfAsk(c.Pf.Asks)&kernelPfAskPF_ASK_POOLS != 0 {
				n += 2 * uint64(c.Pf.StatesMax) // a mapping has two ends
			}
			n += uint64(c.Pf.Limited)
			return uint32(min(n, math.MaxUint32))
		})},
	{name: kernelMapPfHosts, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_PF_TABLES,
		takes: takeAddresses, grows: &growHosts,
		entries: counted(func(c *Config) uint32 { return c.Pf.TableEntries })},
	{name: kernelMapPfNets, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_PF_TABLES,
		takes: takeAddresses, grows: &growNets,
		entries: func(m *making) uint32 { return max(m.Pf.TableEntries, 1) + extraNets }},
	{name: kernelMapPfFragments, life: lifeBridge, why: whyPacket, features: kernelFeatureFEATURE_PF,
		takes: takeFragments, grows: &growFragments,
		entries: counted(func(c *Config) uint32 { return c.Pf.FragmentsMax })},

	// pf: tables of fixed size
	{name: kernelMapPfProfiles, life: lifeBridge, trial: trialShared, features: kernelFeatureFEATURE_PF},
	{name: kernelMapPfPanel, life: lifeGeneration, why: "it has programs of its own",
		features: panelFeatures(), entries: fixed(uint32(len(panelled)))},
	{name: kernelMapPfPanelXdp, life: lifeGeneration, why: "it has programs of its own",
		features: kernelFeatureFEATURE_PF_FIRST, entries: fixed(1)},
	{name: kernelMapPfTableBatch, life: lifeBridge, why: whyUser},
	{name: kernelMapPfLogRing, life: lifeBridge, why: whyNothing, features: kernelFeatureFEATURE_PF_LOG,
		entries: fixed(pfLogRing)}, // also if no rule logs: its reader never has to reopen the ring

	// pf: tables that only its programs use
	{name: kernelMapPfFlushes, why: whyWritten, features: kernelFeatureFEATURE_PF_SOURCES, idle: idleEntry,
		entries: fixed(pfFlushes)},
}
