// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Names of the pinned objects in a generation's folder.
const (
	configPin   = "config"
	settingsPin = "settings"
	tcxPin      = "tcx"
	xdpPin      = "xdp"
	outPin      = "out"
	patchPin    = "patch"
	controlPin  = "control"
	tablePin    = "table"
	clockPin    = "clock"
)

// The maps of the object that have its variables: the configuration for which programs are
// specialised, and their settings.
const (
	configMap   = ".rodata"
	settingsMap = ".data.settings"
)

// mapPins are the pins of these maps, progPins the pins of the programs.
var (
	mapPins  = map[string]string{configPin: configMap, settingsPin: settingsMap}
	progPins = map[string]string{
		tcxPin: kernelProgBasculeTcx, xdpPin: kernelProgBasculeXdp, outPin: kernelProgBasculeOut, patchPin: kernelProgBasculePatch,
		controlPin: kernelProgBasculeControl, tablePin: kernelProgBasculeTable, clockPin: kernelProgBasculeClock,
	}
)

// A generation is a configuration in the kernel: its programs and the tables
// that they use.
type generation struct {
	name  string
	coll  *ebpf.Collection
	spare bool // it uses the spare's programs, which are still pinned in the spare's folder
	stale bool // the spare's pinned configuration is another ruleset's
	apart bool // a table that outlives a change has another size than the bridge's

	// Corrections of counters that the copying of pf's tables makes necessary, until the
	// generation has begun; nil if none was copied, or by another command.
	owed *tally
}

func (g *generation) Close() { g.coll.Close() }

func (g *generation) program(h hook) *ebpf.Program {
	switch h {
	case hookXDP:
		return g.coll.Programs[kernelProgBasculeXdp]
	case hookOut:
		return g.coll.Programs[kernelProgBasculeOut]
	}
	return g.coll.Programs[kernelProgBasculeTcx]
}

// programs returns the object that generations of the configuration, or trials, are made of.
func (s *Store) programs(c *Config) (*object, error) {
	switch {
	case kernelFeature(c.Features)&kernelFeatureFEATURE_TRACE != 0:
		return specOf(_TrialBytes)
	case s.Locked:
		return specOf(_LockedBytes)
	case kernelFeature(c.Features)&kernelFeatureFEATURES_APART == 0 && !loadedPF(c):
		return specOf(_PlainBytes)
	}
	return specOf(_KernelBytes)
}

// Tables are the parts of a configuration that have maps of their own, in addition to Config.
// A part that is nil stays as it was.
type Tables struct {
	VLANs    *VLANs
	Filter   []unix.SockFilter // a capture's filter, in classic BPF
	Rules    []Rule            // []Rule{} for no rules
	Bindings []Binding         // all bindings; the table gets room for MaxBindings
	PF       *PF
}

// fill writes into the tables of g the contents that they must have before a frame
// comes.
func (t Tables) fill(g *generation) error {
	if t.VLANs != nil {
		if err := t.VLANs.store(g.coll.Maps[kernelMapVlans]); err != nil {
			return err
		}
	}
	for _, binding := range t.Bindings {
		if err := binding.store(g.coll.Maps[kernelMapBindings]); err != nil {
			return err
		}
	}
	if t.Filter == nil {
		return nil
	}
	if err := zeroCounters(g.coll.Maps[kernelMapCounters], kernelCounterCOUNTER_CAPTURE_MISSED); err != nil {
		return err
	}
	return storeFilter(g.coll.Maps[kernelMapCaptureFilter], t.Filter)
}

// setIn writes the configuration into the specification that programs are loaded from.
func (c *Config) setIn(spec *ebpf.CollectionSpec) error {
	if holdsPF(c) {
		spec.Maps[rulesetMap] = rulesetSpec(c)
	}
	return errors.Join(spec.Variables[kernelVarCfg].Set(&c.kernelConfig), spec.Variables[kernelVarSet].Set(&c.kernelSettings))
}

// load makes the next generation, which shares the bridge's tables if it has some.
func (b *Bridge) load(c *Config, t Tables) (*generation, error) {
	object, err := b.store.programs(c)
	if err != nil {
		return nil, err
	}
	spec := object.spec
	if err := findPlaces(c); err != nil {
		return nil, err
	}
	if err := c.setIn(spec); err != nil {
		return nil, err
	}
	if !anyXDP(c) {
		delete(spec.Programs, kernelProgBasculeXdp)
	}
	if !limited(c) {
		delete(spec.Programs, kernelProgBasculeOut)
	}
	if !patched(c) {
		delete(spec.Programs, kernelProgBasculePatch)
	}
	leaveOut(spec, c)
	if !ported(c) {
		leaveOutFrames(spec)
	}
	linker := object.linker(c)
	for name, p := range spec.Programs {
		if err := linker.make(p, programFeatures(name, c)); err != nil {
			return nil, err
		}
	}
	if kernelFeature(c.Features)&kernelFeatureFEATURE_CAPTURE != 0 {
		filter := t.Filter
		if filter == nil {
			if filter, err = b.filter(); err != nil {
				return nil, err
			}
		}
		for _, name := range []string{kernelProgBasculeTcx, kernelProgBasculeOut, kernelProgBasculePatch, kernelProgBasculeFamily, kernelProgBasculeFib, kernelProgBasculeFibPatch, kernelProgBasculeHop, kernelProgBasculeDue} {
			if spec.Programs[name] == nil {
				continue
			}
			if err := setFilter(spec.Programs[name], filter, len(kernelCaptureBytes{}.At)); err != nil {
				return nil, err
			}
			prune(spec.Programs[name], nil)
		}
	}
	m := &making{Config: c, tables: t}
	if b.gen != "" {
		m.was = &b.Config
	}
	if m.rules, err = b.bringRules(c, t.Rules); err != nil {
		return nil, err
	}
	if t.VLANs == nil && b.gen != "" { // each generation has its own
		if t.VLANs, err = b.VLANs(); err != nil {
			return nil, err
		}
		m.tables = t
	}
	fit(spec, m)
	opts := ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{}, Programs: ebpf.ProgramOptions{LogLevel: b.store.log},
	}
	if patched(c) {
		shared, err := b.store.openPatch(spec)
		if err != nil {
			return nil, err
		}
		defer closeAll(shared)
		maps.Copy(opts.MapReplacements, shared)
	}
	apart := false
	for _, table := range pinned(c) {
		if !table.outlives(b, m) {
			continue
		}
		there, err := b.openTable(table.name)
		if err != nil {
			return nil, err
		}
		defer there.Close()
		other, err := b.resize(table, there, spec.Maps[table.name].MaxEntries, t)
		if err != nil {
			return nil, err
		}
		if other {
			apart = true
			continue
		}
		spec.Maps[table.name].MaxEntries = there.MaxEntries() // it keeps its size
		opts.MapReplacements[table.name] = there
	}
	coll, err := load(spec, opts, c)
	if err != nil {
		return nil, err
	}
	g := &generation{name: b.nextGeneration(), coll: coll, apart: apart}
	err = enterPanel(coll, c)
	if err == nil && withFDB(m) {
		err = g.shared(func(s *kernelShared) { clear(s.Usage[c.FdbTurn&1][:]) })
	}
	if err == nil {
		err = t.fill(g)
	}
	if err == nil && m.rules != nil {
		// A frame may be in a program right now, with a rule whose number is about to be used
		// again.
		if len(m.rules.added) > 0 && b.gen != "" {
			quiesce() // if the kernel cannot wait: the frame is through by now, as loads take longer
		}
		err = m.rules.store(g.coll.Maps)
	}
	if err == nil {
		err = b.fillPF(g, c, t)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// featureQuestion is FEATURE_QUESTION of bpf/types.h.
const featureQuestion = 0xba5c01e0feed5eed

// answer sets in a program which features are on, wherever the program tests one. A test loads
// featureQuestion and then features into one register. Both loads become a load of 1 or of 0.
// answer also makes the calls of the kernel's functions whose numbers c has (see castCall),
// and locates tables.
func answer(p *ebpf.ProgramSpec, features uint64, c *Config) {
	locate(p)
	calls := map[uint64]uint32{kernelSkbCall: c.Skb.Cast, kernelReadCall: c.Route.Cast}
	nop := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja)}
	for i := 0; i < len(p.Instructions); i++ {
		ins := &p.Instructions[i]
		// A tail call has a cost even if it is never reached: the kernel counts such calls.
		if ins.IsBuiltinCall() && ins.Constant == int64(asm.FnTailCall) &&
			features&uint64(kernelFeatureFEATURE_PATCH|kernelFeatureFEATURE_PF_FIRST|panelFeatures()) == 0 {
			*ins = asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
		}
		if cast, ok := calls[uint64(ins.Constant)]; ok && ins.IsConstantLoad(asm.DWord) {
			*ins = castCall(*ins, cast)
			p.Instructions = slices.Insert(p.Instructions, i+1, nop) // keeps the distance of jumps over it
			continue
		}
		if ins.IsConstantLoad(asm.DWord) && uint64(ins.Constant) == featureQuestion {
			of := &p.Instructions[i+1]
			yes := int64(0)
			if uint64(of.Constant)&features != 0 {
				yes = 1
			}
			ins.Constant, of.Constant = yes, yes
		}
	}
}

// locate makes a program refer to a table with a single entry by the entry's address, wherever
// the program names the table: see shared_get() in bpf/maps.h.
func locate(p *ebpf.ProgramSpec) {
	for i := range p.Instructions {
		if ins := &p.Instructions[i]; ins.IsLoadFromMap() && ins.Reference() == kernelMapShared {
			ins.Src = asm.PseudoMapValue
		}
	}
}

// nextGeneration names the generation after the current one. The first one has a random
// number: a bridge that is made anew must not look like its predecessor.
func (b *Bridge) nextGeneration() string {
	if n, err := strconv.ParseUint(strings.TrimPrefix(b.gen, "gen-"), 10, 64); err == nil {
		return "gen-" + strconv.FormatUint(n+1, 10)
	}
	return "gen-" + strconv.FormatUint(uint64(rand.Uint32()), 10)
}

// ported reports whether a configuration has a port or a berth.
func ported(c *Config) bool { return len(tenants(c)) > 0 }

// leaveOutFrames removes the programs for frames: without a port no frame comes.
func leaveOutFrames(spec *ebpf.CollectionSpec) {
	for name := range spec.Programs {
		if name != kernelProgBasculeControl && name != kernelProgBasculeTable && name != kernelProgBasculeClock {
			delete(spec.Programs, name)
		}
	}
}

func anyXDP(c *Config) bool {
	for _, p := range Ports(c) {
		if p.Notes&PortXDPRx != 0 {
			return true
		}
	}
	return false
}

// moveIn enters new ports in their slots: their devices, and counters that are reset to zero.
func (b *Bridge) moveIn(c *Config, g *generation) error {
	for _, p := range tenants(c) {
		if TenantAt(&b.Config, p.Id) != nil {
			continue
		}
		if err := g.place(p); err != nil {
			return err
		}
		if b.intends(p) && !b.intended().HasDevice(p) { // another device has its index by now
			return goneError(p)
		}
		zero := make([]Stats, ebpf.MustPossibleCPU())
		if err := g.coll.Maps[kernelMapStats].Put(Slot(p.Id), zero); err != nil {
			return err
		}
		if err := g.shared(func(s *kernelShared) { s.Usage[c.FdbTurn&1][Slot(p.Id)] = 0 }); err != nil {
			return err
		}
		if err := g.refill(p); err != nil {
			return err
		}
	}
	return nil
}

// limited reports whether a port has a limit for all frames that come in by it, or that leave:
// then there is a program for frames that leave.
func limited(c *Config) bool { return kernelFeature(c.Features)&kernelFeatureFEATURE_RATE != 0 }

// refill makes a port's buckets full.
func (g *generation) refill(p *Port) error {
	return g.shared(func(s *kernelShared) { s.Buckets[Slot(p.Id)] = kernelPortBuckets{} })
}

// refillChanged fills the buckets of ports whose limits differ from was. A debt under a low
// limit must not delay frames under a high one.
func (g *generation) refillChanged(c, was *Config) error {
	for _, p := range Ports(c) {
		if old := PortAt(was, p.Id); old == nil || old.Storm == p.Storm && old.Limit == p.Limit {
			continue
		}
		if err := g.refill(p); err != nil {
			return err
		}
	}
	return nil
}

// moveOut removes the devices of ports of c from their slots, unless stay has the port. If
// stay has another port in such a slot, and that port's device is there, the slot gets it.
func (g *generation) moveOut(c, stay *Config, there func(*Port) bool) {
	for _, p := range tenants(c) {
		slot := Slot(p.Id)
		if TenantAt(stay, p.Id) != nil {
			continue
		}
		if tenant := PortAt(stay, stay.Ports[slot].Id); tenant == nil || !there(tenant) || g.place(tenant) != nil {
			g.forget(slot)
		}
	}
}

// place enters a port's device in its slot.
func (g *generation) place(p *Port) error {
	if p.Facts&PortPatch != 0 || Vacant(p) {
		g.forget(Slot(p.Id))
		return nil
	}
	for _, m := range deviceMaps() {
		if err := g.coll.Maps[m].Put(Slot(p.Id), p.Ifindex); err != nil {
			if errors.Is(err, unix.EINVAL) { // a device map's error for an unused index
				return goneError(p)
			}
			return &PortError{PortName(p), HookTCX, err}
		}
	}
	return nil
}

// forget removes a slot's device; the kernel has done so if the device is gone.
func (g *generation) forget(slot uint32) {
	for _, m := range deviceMaps() {
		_ = g.coll.Maps[m].Delete(slot)
	}
}

// pinGeneration pins all of g, whose configuration is c, in a folder of its own.
func (b *Bridge) pinGeneration(c *Config, g *generation) error {
	dir := b.pin(g.name)
	if err := os.RemoveAll(dir); err != nil { // remains of a killed command
		return err
	}
	if g.spare { // the spare has pinned these
		if g.stale {
			if err := b.repinConfig(c); err != nil {
				return err
			}
		}
		return os.Rename(b.pin(sparePin), dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	pins := map[string]interface{ Pin(string) error }{}
	for pin, name := range mapPins {
		pins[pin] = g.coll.Maps[name]
	}
	for pin, name := range progPins {
		if p := g.coll.Programs[name]; p != nil {
			pins[pin] = p
		}
	}
	for _, t := range pinned(c) {
		pins[t.name] = pinOnce{g.coll.Maps[t.name]}
	}
	for name, p := range pins {
		if err := p.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	if b.store.Locked {
		return nil // from the lab's other object
	}
	return os.Mkdir(filepath.Join(dir, build()), 0o700)
}

// pinOnce pins a map, even if it is already pinned elsewhere.
type pinOnce struct{ m *ebpf.Map }

func (p pinOnce) Pin(path string) error {
	m, err := p.m.Clone()
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Pin(path)
}

// makeCurrent makes a generation the current one. The change takes effect at this moment.
func (b *Bridge) makeCurrent(gen string) error {
	next := b.pin("next")
	os.Remove(next)
	if err := os.Symlink(gen, next); err != nil {
		return err
	}
	if err := os.Rename(next, b.pin("current")); err != nil {
		os.Remove(next)
		return err
	}
	return nil
}

// openGeneration opens the current generation from its pins.
func (b *Bridge) openGeneration() (*generation, error) { return b.openPins(b.gen) }

// openPins opens the objects that are pinned in one of the bridge's folders: programs,
// variables and tables.
func (b *Bridge) openPins(dir string) (*generation, error) {
	g := &generation{name: dir, coll: &ebpf.Collection{Programs: map[string]*ebpf.Program{}, Maps: map[string]*ebpf.Map{}}}
	fails := func(err error) (*generation, error) {
		g.Close()
		return nil, err
	}
	for pin, name := range progPins {
		p, err := openProgram(b.pin(dir, pin))
		needed := pin == controlPin || pin == clockPin || pin == tcxPin && ported(&b.Config)
		if errors.Is(err, fs.ErrNotExist) && !needed {
			continue
		}
		if err != nil {
			return fails(err)
		}
		g.coll.Programs[name] = p
	}
	open := maps.Clone(mapPins)
	for _, t := range pinned(&b.Config) {
		open[t.name] = t.name
	}
	for pin, name := range open {
		m, err := openMap(b.pin(dir, pin))
		if err != nil {
			return fails(err)
		}
		g.coll.Maps[name] = m
	}
	return g, nil
}

// start arms the bridge's timer. The kernel makes a timer without waiting for a lock (since
// Linux 6.18), so it may fail for lack of memory while others allocate memory.
func (g *generation) start() error {
	return whileShort(func() error { return g.clock(kernelClockOpCLOCK_START) })
}

// converge makes the kernel follow the current generation. It attaches the generation's
// programs to its ports, and the idle program to ports that leave (until untie). If ports have
// left, it removes their addresses.
func (b *Bridge) converge(g *generation, left bool) error {
	if err := g.start(); err != nil {
		return err
	}
	if err := b.plugIn(g); err != nil {
		return err
	}
	links, err := b.links()
	if err != nil {
		return err
	}
	hurry := b.store.hurry()
	defer hurry.end()
	rests := false
	for _, l := range links {
		p := PortAt(&b.Config, l.port)
		if l.hook != hookTCX && (p == nil || !slices.Contains(hooks(p), l.hook)) {
			hurry.begin()
			if err := l.remove(); err != nil {
				return err
			}
			continue
		}
		if p == nil {
			if err := l.rest(); err != nil {
				return err
			}
			rests = true
			continue
		}
		err := l.update(g.program(l.hook))
		if err != nil && l.hook == hookXDP {
			// The driver checks again whether it can do XDP: the MTU may have been raised. The
			// former program must not stay.
			hurry.begin()
			if wrong := l.remove(); wrong != nil {
				return wrong
			}
			b.unhooked = append(b.unhooked, &PortError{PortName(p), l.hook.String(), driverWords(g.program(l.hook), int(p.Ifindex), err)})
			continue
		}
		if err != nil {
			return &PortError{PortName(p), l.hook.String(), err}
		}
	}
	if rests {
		hurry.begin()
		_ = quiesce() // their settings are restored after their last frame, if the kernel can wait for it
	}
	if !left {
		return nil
	}
	if _, err = g.control(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1}); err != nil {
		return err
	}
	return errors.Join(b.collectBindings(), b.collectOwners())
}

// collect removes the folders of all generations but the current one, and the remains of a
// command that was killed in makeCurrent.
func (b *Bridge) collect() error {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case e.Name() == "next":
			err = os.Remove(b.pin(e.Name()))
		case strings.HasPrefix(e.Name(), "gen-") && e.Name() != b.gen:
			err = b.drop(e.Name())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop removes a generation's folder. A half-removed folder must not be taken for a
// generation.
func (b *Bridge) drop(gen string) error {
	if held := b.store.open[b.dir]; held != nil && held.gen == gen { // another generation may get that name
		held.Close()
		delete(b.store.open, b.dir)
	}
	err := os.Remove(b.pin(gen, configPin))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(b.pin(gen))
}
