// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"bascule/clock"
	"bascule/pf"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// PF has the contents of a change to pf; Tables.PF gives it to Commit, which fills
// Config.Pf in. The flag BridgePF of Config.Flags defines whether pf judges frames.
// Without it, the tables and states are there, and frames pass without them.
type PF struct {
	// Program is compiled for the ports of the configuration that is committed. Its profiles begin
	// with those that PFProfiles returned. If it is nil, the bridge will have no pf at all, and no
	// state or table of addresses stays.
	Program *pf.Program

	// Same declares that the rules are the bridge's present ones, compiled for other ports,
	// addresses or tables. States then keep their rules, and rules their counters. It is ignored if
	// the number of rules differs.
	Same bool

	// Counts are the initial counters of the rules, by their numbers, where these do not begin with
	// zero. They do not include the counts of states. They are ignored if the rules are the same.
	Counts []PFRuleStats

	// Text is kept for the caller, who gets it back from PFText.
	Text []byte

	StatesMax    uint32 // set limit states
	FragmentsMax uint32 // set limit frags
	NodesMax     uint32 // set limit src-nodes
	TableEntries uint32 // set limit table-entries: addresses and networks of all tables together
	LogInterface uint32 // id of the port that `set loginterface` names, 0 for none

	// Fill has the tables whose contents are set before the first frame meets the new rules. A
	// table whose contents change at that moment should get a number that the bridge's rules do not
	// use yet.
	Fill []TableFill
	// Free is a bit mask of the tables that are no longer used. These tables are emptied when the
	// new rules are in place.
	Free uint64
}

// TableFill is the complete new contents of a table.
type TableFill struct {
	Table   int // its number, below pf.MaxTables
	Entries []pf.TableEntry
}

// errNoPF reports that the bridge has no pf.
var errNoPF = errors.New("it has no pf rules loaded")

// PFLoaded reports whether the bridge has pf's tables, whether pf is enabled or not.
func (b *Bridge) PFLoaded() bool { return loadedPF(&b.Config) }

// PFEnabled reports whether frames are judged by pf.
func (b *Bridge) PFEnabled() bool {
	return loadedPF(&b.Config) && BridgeFlags(b.Config.Flags)&BridgePF != 0
}

// loadedPF reports whether a configuration has pf's tables.
func loadedPF(c *Config) bool { return c.Pf.Buckets != 0 }

// holdsPF reports whether the programs of a configuration refer to pf's tables, or other programs
// do so on their behalf.
func holdsPF(c *Config) bool { return loadedPF(c) || kernelFeature(c.Features)&pfFeatures != 0 }

// pfPrefix begins the names of pf's maps, and of no others.
const pfPrefix = "pf_"

// pfText is a map with the caller's text. No program uses it.
const pfText = "pf_text"

// PFText returns PF.Text of the last change to pf, nil if the bridge has no pf.
func (b *Bridge) PFText() ([]byte, error) {
	if !b.PFLoaded() {
		return nil, nil
	}
	m, err := b.openTable(pfText)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	mem, unmap, err := mapTable(m, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	defer unmap()
	n := binary.NativeEndian.Uint64(mem)
	if n > uint64(len(mem)-textHeader) {
		return nil, fmt.Errorf("the text of %d bytes has only %d", n, len(mem)-textHeader)
	}
	return bytes.Clone(mem[textHeader:][:n]), nil
}

// textHeader is the number of bytes before the text, which contain its length.
const textHeader = 8

// PFProfiles returns the profiles that states may have: pf.Input.Profiles for the next program.
// There are none if the bridge has no pf.
func (b *Bridge) PFProfiles() ([]pf.Profile, error) {
	if !b.PFLoaded() {
		return nil, nil
	}
	m, err := b.openTable(kernelMapPfProfiles)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	list, err := readArray[kernelPfProfile](m)
	if err != nil {
		return nil, fmt.Errorf("read the profiles: %w", err)
	}
	n := len(list)
	for n > 0 && list[n-1] == (kernelPfProfile{}) {
		n--
	}
	if n > manyProfiles { // profiles behind the last used one are forgotten
		t, err := b.states(unix.PROT_READ)
		if err != nil {
			return nil, err
		}
		defer t.close()
		n = 0
		t.each(func(_ uint32, s *kernelPfState) bool {
			n = max(n, int(s.Key.Profile)+1)
			return true
		})
	}
	return recast[pf.Profile](list[:n]), nil
}

// manyProfiles is how many profiles are kept even if no state has them any more.
const manyProfiles = 128

// recast converts a list to a type with the same layout.
func recast[To, From any](list []From) []To {
	var to To
	var from From
	if unsafe.Sizeof(to) != unsafe.Sizeof(from) {
		panic(fmt.Sprintf("%T has %d bytes and %T %d", from, unsafe.Sizeof(from), to, unsafe.Sizeof(to)))
	}
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(list))), len(list))
}

// readArray returns all of an array.
func readArray[V any](m *ebpf.Map) ([]V, error) {
	values := make([]V, m.MaxEntries())
	_, err := m.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, len(values)), values, nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil // the end
	}
	return values, err
}

// writeArray writes the first entries of an array.
func writeArray[V any](m *ebpf.Map, values []V) error {
	if len(values) == 0 {
		return nil
	}
	indices := make([]uint32, len(values))
	for i := range indices {
		indices[i] = uint32(i)
	}
	_, err := m.BatchUpdate(indices, values, nil)
	return err
}

// mapTable maps an array to memory. The size of its entries is padded to a multiple of 8 bytes.
func mapTable(m *ebpf.Map, prot int) (mem []byte, unmap func(), err error) {
	mem, err = unix.Mmap(m.FD(), 0, int(m.MaxEntries())*((int(m.ValueSize())+7)&^7), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map a table: %w", err)
	}
	return mem, func() { _ = unix.Munmap(mem) }, nil
}

// settlePF makes next and t agree about pf: next gets the contents of t, or the bridge's present
// ones.
func (b *Bridge) settlePF(next *Config, t *Tables) error {
	if t.PF != nil && t.PF.Program == nil {
		next.Pf = Config{}.Pf
		next.Flags &^= uint32(BridgePF)
		return nil
	}
	c := (*kernelPfConfig)(&next.Pf)
	if t.PF != nil {
		own := *t.PF
		t.PF = &own
		if err := b.settleProgram(c, t.PF); err != nil {
			return err
		}
	}
	if (next.Flags^b.Config.Flags)&uint32(BridgePF) != 0 {
		c.Since = uint32(clock.Monotonic() / time.Second)
	}
	return nil
}

// NextRuleset returns the number that a ruleset gets when it is loaded. If its rules are the
// bridge's present ones, the number stays.
func (b *Bridge) NextRuleset(prog *pf.Program, same bool) uint16 {
	number := b.Config.Pf.Ruleset
	if same && b.PFLoaded() && int(b.Config.Pf.Rules) == len(prog.Rules) {
		return number
	}
	return max(number+1, 1) // 0 means no ruleset
}

// settleProgram sets the contents of p in c. The rules of p may differ from the bridge's.
func (b *Bridge) settleProgram(c *kernelPfConfig, p *PF) error {
	prog := p.Program
	if len(prog.Rules) > pf.MaxRules {
		return fmt.Errorf("%d rules are more than %d", len(prog.Rules), pf.MaxRules)
	}
	was := &b.Config.Pf
	*c = kernelPfConfig(*was) // the secret, and the sizes of tables
	if !b.PFLoaded() {
		for i := range c.Secret {
			c.Secret[i] = rand.Uint64() | 1
		}
	}
	p.Same = p.Same && b.PFLoaded() && int(was.Rules) == len(prog.Rules)
	c.Ruleset = b.NextRuleset(prog, p.Same)
	c.Rules, c.Groups, c.Dims = uint32(len(prog.Rules)), prog.Groups, prog.Dims
	c.EtherRules, c.Asks = uint32(len(prog.Ether)), uint16(prog.Asks)
	c.StatesMax = p.StatesMax
	states, err := b.statesAtMost(p.StatesMax)
	if err != nil {
		return err
	}
	c.NodesMax, c.TableEntries = p.NodesMax, p.TableEntries
	c.AdaptiveStart, c.AdaptiveEnd = prog.Timeouts[pf.AdaptiveStart], prog.Timeouts[pf.AdaptiveEnd]
	c.FragmentsMax, c.FragmentTime = p.FragmentsMax, prog.Timeouts[pf.Frag]
	c.LogInterface = p.LogInterface
	c.Limiters, c.Limited = 0, 0
	if len(prog.Limiters) > 0 {
		c.Limiters, c.Limited = uint32(prog.LimitersAt()), uint32(min(prog.Limited, math.MaxUint32))
	}
	c.Features = uint64(featuresOf(prog))
	var shared kernelPfShared
	if b.PFLoaded() {
		if shared, err = b.pfShared(); err != nil {
			return err
		}
	}
	if shared.States != 0 {
		// The present states still need the features that they use.
		c.Features |= was.Features & uint64(kernelFeatureFEATURE_PF_LOG|kernelFeatureFEATURE_PF_SOURCES|
			kernelFeatureFEATURE_PF_REWRITE|kernelFeatureFEATURE_PF_SCRUB|kernelFeatureFEATURE_PF_NAT|
			kernelFeatureFEATURE_PF_FAMILY|kernelFeatureFEATURE_PF_HOPS|kernelFeatureFEATURE_PF_REASSEMBLE|
			kernelFeatureFEATURE_PF_LIMITERS)
	}
	c.Buckets = bucketsFor(states, kernelFeature(c.Features))
	return nil
}

// bucketsFor returns the number of buckets of a table for so many states. Each state has a second
// key if rules translate, or set a next hop.
func bucketsFor(states uint32, features kernelFeature) uint32 {
	if features&kernelFeatureFEATURE_PF_NAT != 0 {
		states = uint32(min(2*uint64(states), math.MaxUint32))
	}
	return stateBuckets(states)
}

// pfShared returns the part of pf's data that all CPUs share.
func (b *Bridge) pfShared() (pf kernelPfShared, err error) {
	err = b.shared(func(s *kernelShared) { pf = s.Pf })
	return pf, err
}

// stateBuckets returns the number of buckets of a table for so many states. It may be nine tenths
// full: each state can choose from two buckets, so there is still room.
func stateBuckets(states uint32) uint32 {
	const least = 4
	return uint32(max(least, uint64(states)*10/9/stateWays+1))
}

// featuresOf returns the features that a program requires.
func featuresOf(p *pf.Program) kernelFeature {
	f := kernelFeatureFEATURE_PF
	if len(p.Rules) > 0 {
		f |= kernelFeatureFEATURE_PF_RULES
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.SrcTable != 0 || r.DstTable != 0 || r.Overload != 0 {
			f |= kernelFeatureFEATURE_PF_TABLES
		}
		if r.Flags&(pf.RuleLog|pf.RuleLogAll|pf.RuleLogMatches) != 0 {
			f |= kernelFeatureFEATURE_PF_LOG
		}
		if r.Flags&(pf.RuleTrackRule|pf.RuleTrackGlobal) != 0 {
			f |= kernelFeatureFEATURE_PF_SOURCES
		}
		if r.Flags&(pf.RuleModulate|pf.RuleSynproxy) != 0 {
			f |= kernelFeatureFEATURE_PF_REWRITE
		}
		if r.Scrub != (pf.CompiledScrub{}) {
			f |= kernelFeatureFEATURE_PF_SCRUB
		}
		if r.Scrub.Flags&pf.ScrubReassemble != 0 {
			f |= kernelFeatureFEATURE_PF_REASSEMBLE
		}
		if r.Flags&pf.RuleTranslates != 0 {
			f |= kernelFeatureFEATURE_PF_NAT
		}
		if r.Flags&(pf.RuleSrcNoRoute|pf.RuleDstNoRoute|pf.RuleSrcURPFFailed) != 0 {
			f |= kernelFeatureFEATURE_PF_FIB
		}
		if r.Flags&pf.RuleTranslatesFamily != 0 {
			f |= kernelFeatureFEATURE_PF_FAMILY
		}
		if r.Routes != 0 { // a state with a next hop has a second place, like a translated one
			f |= kernelFeatureFEATURE_PF_HOPS | kernelFeatureFEATURE_PF_NAT
		}
	}
	if p.Asks&pf.AskPools != 0 {
		f |= kernelFeatureFEATURE_PF_SOURCES
	}
	if len(p.Limiters) > 0 { // their counts are in the table of sources
		f |= kernelFeatureFEATURE_PF_LIMITERS | kernelFeatureFEATURE_PF_SOURCES
	}
	if p.Tables {
		f |= kernelFeatureFEATURE_PF_TABLES
	}
	if len(p.Ether) > 0 {
		f |= kernelFeatureFEATURE_ETHER
	}
	for i := range p.Ether {
		if p.Ether[i].Table != [2]uint8{} {
			f |= kernelFeatureFEATURE_PF_TABLES
		}
	}
	return f
}

const textPage = 4096

// textPages is the number of pages for a text.
func textPages(text []byte) int { return (len(text)+textHeader-1)/textPage + 1 }

// textSpec is the specification of the map for a text.
func textSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: pfText, Type: ebpf.Array, KeySize: 4, ValueSize: textPage, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	}
}

// store writes the ruleset to the maps of a generation that has not begun.
func (p *PF) store(maps map[string]*ebpf.Map) error {
	prog := p.Program
	if err := storeWords(maps[kernelMapPfWords], prog); err != nil {
		return fmt.Errorf("store the sets of rules: %w", err)
	}
	keys := make([]kernelPfPrefix, len(prog.Networks))
	values := make([]kernelPfNetwork, len(prog.Networks))
	for i, n := range prog.Networks {
		keys[i] = kernelPfPrefix{Bits: uint32(n.Bits), Address: n.Address}
		values[i] = kernelPfNetwork{Src: n.Src, Dst: n.Dst}
	}
	if len(keys) > 0 {
		if err := putMany(maps[kernelMapPfNetworks], keys, values); err != nil {
			return fmt.Errorf("store the rules by addresses: %w", err)
		}
	}
	profiles := make([]pf.Profile, pf.MaxProfiles) // no state has a profile behind the program's last one
	copy(profiles, prog.Profiles)
	err := errors.Join(
		writeArray(maps[kernelMapPfRules], recast[kernelPfRule](prog.Rules)),
		writeArray(maps[kernelMapPfProfiles], recast[kernelPfProfile](profiles)))
	if m := maps[kernelMapPfEthers]; m != nil {
		err = errors.Join(err, writeArray(m, prog.Ether))
	}
	if err != nil {
		return fmt.Errorf("store the rules: %w", err)
	}
	mem, unmap, err := mapTable(maps[pfText], unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer unmap()
	binary.NativeEndian.PutUint64(mem, uint64(len(p.Text)))
	copy(mem[textHeader:], p.Text)
	return nil
}

// storeWords writes a program's cells and sets.
func storeWords(m *ebpf.Map, prog *pf.Program) error {
	mem, unmap, err := mapTable(m, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer unmap()
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
	for i, set := range prog.Cells {
		words[i] = uint64(set)
	}
	for i, ports := range prog.Ports {
		copy(words[pf.PortsAt(i+1):], ports[:])
	}
	copy(words[prog.SetsAt():], prog.Sets)
	copy(words[prog.PoolsAt():], prog.Pools)
	copy(words[prog.LimitersAt():], prog.Limiters)
	return nil
}

// leaveOut removes the programs that are never called in the configuration.
func leaveOut(spec *ebpf.CollectionSpec, c *Config) {
	if !holdsPF(c) {
		delete(spec.Programs, kernelProgBasculeTable)
	}
	for _, p := range panelled {
		if kernelFeature(c.Features)&p.feature == 0 && p.apart {
			delete(spec.Programs, p.name)
		}
	}
	if !patched(c) {
		delete(spec.Programs, kernelProgBasculeFibPatch)
	}
	if kernelFeature(c.Features)&kernelFeatureFEATURE_PF_FIRST == 0 {
		delete(spec.Programs, kernelProgBasculeFirst)
	}
}

// panelled are the programs that others tail-call, in the order of enum pf_panel_program
// (bpf/family.h), with the feature for which they do. Programs marked apart exist for that feature
// only.
var panelled = []struct {
	name    string
	feature kernelFeature
	apart   bool
}{
	{kernelProgBasculeFamily, kernelFeatureFEATURE_PF_FAMILY, true},
	{kernelProgBasculeFib, kernelFeatureFEATURE_PF_FIB, true},
	{kernelProgBasculeFibPatch, kernelFeatureFEATURE_PF_FIB, true},
	{kernelProgBasculeTcx, kernelFeatureFEATURE_PF_FIB | kernelFeatureFEATURES_DUE, false},
	{kernelProgBasculePatch, kernelFeatureFEATURE_PF_FIB | kernelFeatureFEATURES_DUE, false},
	{kernelProgBasculeHop, kernelFeatureFEATURE_PF_HOPS, true},
	{kernelProgBasculeDue, kernelFeatureFEATURES_DUE, true},
}

// panelFeatures are the features for which programs tail-call others.
func panelFeatures() (f kernelFeature) {
	for _, p := range panelled {
		f |= p.feature
	}
	return f
}

// enterPanel enters the programs that others tail-call.
func enterPanel(coll *ebpf.Collection, c *Config) error {
	if first := coll.Programs[kernelProgBasculeFirst]; first != nil { // XDP_PANEL_FIRST of bpf/xdp.h
		if err := coll.Maps[kernelMapPfPanelXdp].Put(uint32(0), first); err != nil {
			return fmt.Errorf("enter %s: %w", kernelProgBasculeFirst, err)
		}
	}
	for i, p := range panelled {
		program := coll.Programs[p.name]
		if program == nil || kernelFeature(c.Features)&p.feature == 0 {
			continue
		}
		if err := coll.Maps[kernelMapPfPanel].Put(uint32(i), program); err != nil {
			return fmt.Errorf("enter %s: %w", p.name, err)
		}
	}
	return nil
}

// programFeatures returns the features of a program. States end by timeouts or requests, and tables
// of addresses change, even while pf is disabled. The programs that run behind the switch's own
// begin with a test for connections with reassemble tcp. Only programs of XDP judge first packets.
func programFeatures(name string, c *Config) uint64 {
	const first = uint64(kernelFeatureFEATURE_PF_FIRST)
	switch name {
	case kernelProgBasculeXdp, kernelProgBasculeFirst:
		return c.Features
	case kernelProgBasculeControl, kernelProgBasculeClock, kernelProgBasculeTable:
		if !loadedPF(c) {
			break
		}
		f := (c.Features | c.Pf.Features) &^ first
		if name != kernelProgBasculeTable {
			f |= uint64(kernelFeatureFEATURE_PF_SLEEPS)
		}
		return f
	case kernelProgBasculeDue, kernelProgBasculeHop, kernelProgBasculeFamily:
		if kernelFeature(c.Features)&kernelFeatureFEATURE_PF_REASSEMBLE != 0 {
			return c.Features&^first | uint64(kernelFeatureFEATURE_PF_STAMPS)
		}
	}
	return c.Features &^ first
}

// fillPF writes to pf's tables of g the contents that they need before a frame
// comes.
func (b *Bridge) fillPF(g *generation, c *Config, t Tables) error {
	if !loadedPF(c) {
		return nil
	}
	if b.PFLoaded() {
		if err := b.growPF(g, c, false); err != nil {
			return err
		}
	}
	a, err := g.addresses(c)
	if err != nil {
		return err
	}
	if !b.PFLoaded() {
		if err := a.init(); err != nil {
			return err
		}
		// Values from before pf, or of a former pf, must not stay.
		err := g.shared(func(s *kernelShared) { s.Pf, s.PfAnswers = kernelPfShared{}, 0 })
		if err != nil {
			return err
		}
		m := g.coll.Maps[kernelMapCounters]
		if err := errors.Join(zeroPFCounters(m), zeroCounters(m, kernelCounterCOUNTER_PF_LOG_MISSED)); err != nil {
			return err
		}
	}
	if !b.PFLoaded() || b.Config.Pf.LogInterface != c.Pf.LogInterface { // another port begins to count
		if err := zeroPortCounters(g.coll.Maps[kernelMapCounters]); err != nil {
			return err
		}
	}
	if t.PF == nil {
		return nil
	}
	if err := t.PF.store(g.coll.Maps); err != nil {
		return err
	}
	if !t.PF.Same && len(t.PF.Counts) > 0 {
		if err := beginCounts(g.coll.Maps[kernelMapPfRuleStats], t.PF.Counts); err != nil {
			return err
		}
	}
	return a.fillAll(t.PF.Fill)
}

// growPF copies the contents of tables of b to the tables of g that have another size. It is called
// before g begins. It is called again with late, for the changes until g has begun.
func (b *Bridge) growPF(g *generation, c *Config, late bool) error {
	tables := slices.DeleteFunc(pinned(&b.Config), func(t *table) bool { return t.grows == nil || t.grows.copy == nil })
	killed := late && g.owed == nil
	if !late || killed {
		g.owed = newTally(c)
	}
	for _, t := range tables {
		from, err := b.openTable(t.name)
		if err != nil {
			return err
		}
		to := g.coll.Maps[t.name]
		if from.MaxEntries() != to.MaxEntries() {
			if late && !g.owed.quiet {
				// A frame may still be in the old programs. If the kernel does not wait for it, it
				// may be counted once too often.
				_ = quiesce()
				g.owed.quiet = true
			}
			err = t.grows.copy(b, g, c, from, to, late)
		}
		from.Close()
		if err != nil {
			return fmt.Errorf("copy %s: %w", t.name, err)
		}
	}
	if !late || !g.owed.statesCopied && !g.owed.sourcesCopied {
		return nil
	}
	if killed {
		var err error
		if g.owed, err = g.missing(c); err != nil {
			return err
		}
	}
	return g.owed.settle(g, c)
}

// How pf's tables grow and shrink.
var (
	growStates = growth{
		copy: func(b *Bridge, g *generation, c *Config, _, _ *ebpf.Map, late bool) error {
			return b.copyStates(g, c, late)
		},
		less: anyLess,
	}
	growWithBuckets = growth{less: anyLess} // the states are copied with their marks
	growSources     = growth{
		copy: func(_ *Bridge, g *generation, _ *Config, from, to *ebpf.Map, late bool) error {
			return g.copySources(from, to, late)
		},
		less: func(b *Bridge, m *ebpf.Map, n uint32, p *PF) (bool, error) {
			return holds(n, b.Config.Pf.NodesMax, p.NodesMax, m, countOf[kernelPfSourceKey, kernelPfSource])
		},
	}
	growHosts = growth{
		copy: func(_ *Bridge, g *generation, c *Config, from, to *ebpf.Map, late bool) error {
			if late {
				return lateHosts(g, c, from)
			}
			return copyHash[kernelPfAddress, kernelPfHost](to, from)
		},
		less: func(b *Bridge, m *ebpf.Map, n uint32, p *PF) (bool, error) {
			return holds(n, b.Config.Pf.TableEntries, p.TableEntries, m, countOf[kernelPfAddress, kernelPfHost])
		},
	}
	growNets = growth{
		copy: func(_ *Bridge, _ *generation, _ *Config, from, to *ebpf.Map, late bool) error {
			if late {
				return nil // only user space changes networks
			}
			return copyHash[kernelPfPrefix, kernelPfMember](to, from)
		},
		// A trie takes memory only for its entries.
	}
	growFragments = growth{less: anyLess} // they expire in a moment anyway
)

func anyLess(*Bridge, *ebpf.Map, uint32, *PF) (bool, error) { return true, nil }

// copyHash copies the contents of a map.
func copyHash[K, V any](to, from *ebpf.Map) error {
	return eachOf(from, func(keys []K, values []V) error { return putMany(to, keys, values) })
}

// eachOf calls f with the contents of a map, some at a time.
func eachOf[K, V any](m *ebpf.Map, f func([]K, []V) error) error {
	some := min(4096, int(m.MaxEntries()))
	keys, values := make([]K, some), make([]V, some)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		end := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !end {
			return err
		}
		if n > 0 {
			if err := f(keys[:n], values[:n]); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

// pfFeatures are the features of pf.
const pfFeatures = kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_TABLES |
	kernelFeatureFEATURE_PF_LOG | kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_REWRITE |
	kernelFeatureFEATURE_PF_SCRUB | kernelFeatureFEATURE_PF_NAT | kernelFeatureFEATURE_PF_FAMILY |
	kernelFeatureFEATURE_PF_FIB | kernelFeatureFEATURE_PF_HOPS | kernelFeatureFEATURE_PF_REASSEMBLE | kernelFeatureFEATURE_PF_FIRST |
	kernelFeatureFEATURE_PF_LIMITERS | kernelFeatureFEATURE_ETHER

// pfFlushes is PF_FLUSHES of bpf/pf/source.h.
const pfFlushes = 1024
