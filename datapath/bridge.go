// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Names of what is pinned in a generation's folder.
const (
	configPin  = "config"
	tcxPin     = "tcx"
	xdpPin     = "xdp"
	controlPin = "control"
)

// tables are the maps that outlive a generation.
var tables = []string{
	kernelMapFdb, kernelMapUsage, kernelMapClock, kernelMapTimer,
	kernelMapStats, kernelMapEvents, kernelMapTold, kernelMapTcxDevices, kernelMapXdpDevices,
}

// deviceMaps hold the ports' devices, one map for each hook.
var deviceMaps = []string{kernelMapTcxDevices, kernelMapXdpDevices}

// A Bridge is an open bridge: its configuration, and ways to its tables.
type Bridge struct {
	Config Config

	store *Store
	dir   string // of the bridge
	gen   string // name of the current generation's folder
}

// Create makes a bridge without ports. The caller holds the lock.
func (s *Store) Create(name string, c Config) error {
	if err := CheckKernel(); err != nil {
		return err
	}
	b := &Bridge{store: s, dir: s.path(name)}
	if err := os.MkdirAll(filepath.Join(b.dir, "link"), 0o700); err != nil {
		return err
	}
	if err := b.Commit(c, nil); err != nil { // no port can leave
		os.RemoveAll(b.dir)
		return err
	}
	return nil
}

// ErrLayout says that a bridge has tables that this program can't read.
var ErrLayout = errors.New("it was made by another version of bascule, with other tables")

// Open reads a bridge. Without the lock it may be gone at the next look. With
// ErrLayout it returns a bridge that can do nothing but Remove.
func (s *Store) Open(name string) (*Bridge, error) {
	b := &Bridge{store: s, dir: s.path(name)}
	for range 10 {
		gen, err := os.Readlink(filepath.Join(b.dir, "current"))
		if err != nil {
			return nil, err
		}
		b.gen = gen
		err = b.readConfig()
		if errors.Is(err, fs.ErrNotExist) {
			continue // a writer has just gone on to the next generation
		}
		return b, err
	}
	return nil, fmt.Errorf("%s changes too fast to be read", name)
}

// Current reports whether the bridge still has the configuration that b read.
func (b *Bridge) Current() bool {
	gen, err := os.Readlink(b.pin("current"))
	return err == nil && gen == b.gen
}

// Store returns the store that the bridge is in.
func (b *Bridge) Store() *Store { return b.store }

func (b *Bridge) readConfig() error {
	m, err := ebpf.LoadPinnedMap(b.pin(b.gen, configPin), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer m.Close()
	if m.ValueSize() == uint32(unsafe.Sizeof(b.Config)) {
		if err := m.Lookup(uint32(0), &b.Config); err != nil {
			return err
		}
	}
	if b.Config.Layout != layout {
		return ErrLayout
	}
	return nil
}

func (b *Bridge) pin(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// openTable opens one of the bridge's maps or of its configuration's.
func (b *Bridge) openTable(name string) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(b.pin(b.gen, name), nil)
}

// Commit makes next the bridge's configuration: it loads programs specialised
// for it, attaches them to new ports, and swaps them under the ports that stay,
// each in one step. A port whose program can't be attached leaves everything
// as it was; the error is then a PortError. An UnfinishedError says that the
// change is made but not all of it done, which Mend does. The caller holds the
// lock and is in the bridge's network namespace.
//
// leave is called for each port whose device is there and that the bridge
// no longer has, or has with another hook (now is then not nil): it gives back
// what the port took. It may be called again by Mend.
func (b *Bridge) Commit(next Config, leave Leave) (err error) {
	specialise(&next)
	g, err := b.load(&next)
	if err != nil {
		return err
	}
	defer g.Close()

	evicted := map[uint32]bool{} // ports with a device whose slots get a new tenant
	for _, p := range Ports(&b.Config) {
		if next.Ports[Slot(p.Id)].Id != p.Id {
			evicted[p.Id] = b.HasDevice(p)
		}
	}
	added, err := b.attach(&next, g)
	if err == nil {
		err = b.moveIn(&next, g)
	}
	if err == nil {
		err = b.pinGeneration(g)
	}
	grown := b.gen != "" && next.FdbBuckets != b.Config.FdbBuckets
	if err == nil && grown {
		err = b.copyFDB(g)
	}
	if err != nil {
		for _, l := range added {
			l.remove()
		}
		g.moveOut(&next, &b.Config, func(p *Port) bool { return evicted[p.Id] })
		os.RemoveAll(b.pin(g.name))
		return err
	}
	if err := b.makeCurrent(g.name); err != nil {
		return err
	}
	old := *b
	b.Config, b.gen = next, g.name
	if err := b.converge(g); err != nil {
		return &UnfinishedError{err}
	}
	if err := old.leave(&b.Config, leave); err != nil {
		return &UnfinishedError{err}
	}
	g.moveOut(&old.Config, &b.Config, func(*Port) bool { return true })
	if grown { // what was learned while we were at it
		if err := old.copyFDB(g); err != nil {
			return &UnfinishedError{err}
		}
	}
	if err := b.collect(); err != nil {
		return &UnfinishedError{err}
	}
	return nil
}

// An UnfinishedError says that a change is made, but not all that follows from
// it is done.
type UnfinishedError struct{ Err error }

func (e *UnfinishedError) Error() string { return e.Err.Error() }
func (e *UnfinishedError) Unwrap() error { return e.Err }

// Leave gives back what a port took from the machine.
type Leave func(b *Bridge, was, now *Port) error

// leave calls f for the ports of b that have left with the configuration now.
func (b *Bridge) leave(now *Config, f Leave) error {
	for _, p := range Ports(&b.Config) {
		stays := PortAt(now, p.Id)
		if stays != nil && stays.Flags&PortXDP == p.Flags&PortXDP || !b.HasDevice(p) {
			continue
		}
		if err := f(b, p, stays); err != nil {
			return err
		}
	}
	return nil
}

// Mend finishes what a Commit that was killed had begun. The caller holds the
// lock and is in the bridge's network namespace.
func (b *Bridge) Mend(leave Leave) error {
	g, err := b.openGeneration()
	if err != nil {
		return err
	}
	defer g.Close()
	if err := b.converge(g); err != nil {
		return err
	}
	for _, old := range b.generations() {
		if old.gen != b.gen {
			if err := old.leave(&b.Config, leave); err != nil {
				return err
			}
		}
	}
	for slot := range b.Config.Ports {
		if b.Config.Ports[slot].Id == 0 {
			g.forget(uint32(slot))
		}
	}
	return b.collect()
}

// Dirty reports whether a command is at work between Begin and Done, or was
// killed there.
func (b *Bridge) Dirty() bool {
	_, err := os.Stat(b.pin("dirty"))
	return err == nil
}

// generations returns the bridge as each of its generations has it that can be
// read: one, but for a command that is at work or was killed.
func (b *Bridge) generations() []*Bridge {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil
	}
	var list []*Bridge
	for _, e := range entries {
		old := &Bridge{store: b.store, dir: b.dir, gen: e.Name()}
		if strings.HasPrefix(e.Name(), "gen-") && old.readConfig() == nil {
			list = append(list, old)
		}
	}
	return list
}

// Remove deletes the bridge and everything of it in the kernel. The caller
// holds the lock.
func (b *Bridge) Remove(leave Leave) error {
	if err := os.Remove(b.pin("current")); err != nil {
		return err
	}
	return b.sweep(leave)
}

// sweep removes what there is of a bridge that does not exist any more, or not
// yet.
func (b *Bridge) sweep(leave Leave) error {
	links, err := b.links()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, l := range links {
		if err := l.remove(); err != nil {
			return err
		}
	}
	for _, old := range b.generations() {
		if err := old.leave(&Config{}, leave); err != nil {
			return err
		}
	}
	return os.RemoveAll(b.dir)
}

// Begin says that a command is about to change the bridge, so that the next one
// knows if this one is killed. The caller holds the lock.
func (b *Bridge) Begin() error {
	err := os.Mkdir(b.pin("dirty"), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Done says that the bridge is as its configuration says.
func (b *Bridge) Done() error {
	err := os.Remove(b.pin("dirty"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// A generation is a configuration in the kernel: its programs and the tables
// that they use.
type generation struct {
	name string
	coll *ebpf.Collection
}

func (g *generation) Close() { g.coll.Close() }

func (g *generation) program(h hook) *ebpf.Program {
	if h == hookXDP {
		return g.coll.Programs[kernelProgBasculeXdp]
	}
	return g.coll.Programs[kernelProgBasculeTcx]
}

// load makes the next generation, with the bridge's tables where it has some.
func (b *Bridge) load(c *Config) (*generation, error) {
	spec, err := loadKernel()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[kernelVarCfg].Set(c); err != nil {
		return nil, err
	}
	spec.Maps[kernelMapFdb].MaxEntries = c.FdbBuckets + fdbWindow
	if !anyXDP(c) {
		delete(spec.Programs, kernelProgBasculeXdp)
	}
	var opts ebpf.CollectionOptions
	opts.MapReplacements = map[string]*ebpf.Map{}
	if b.gen != "" {
		for _, name := range tables {
			// an FDB that grows is a new one, and so is the count of its entries
			if c.FdbBuckets != b.Config.FdbBuckets && (name == kernelMapFdb || name == kernelMapUsage) {
				continue
			}
			m, err := b.openTable(name)
			if err != nil {
				return nil, err
			}
			defer m.Close()
			opts.MapReplacements[name] = m
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		return nil, explain(err)
	}
	return &generation{name: b.nextGeneration(), coll: coll}, nil
}

// nextGeneration names the generation after the current. The first has a
// number by chance: a bridge that is made anew must not look like the last.
func (b *Bridge) nextGeneration() string {
	if n, err := strconv.ParseUint(strings.TrimPrefix(b.gen, "gen-"), 10, 64); err == nil {
		return "gen-" + strconv.FormatUint(n+1, 10)
	}
	return "gen-" + strconv.FormatUint(uint64(rand.Uint32()), 10)
}

func anyXDP(c *Config) bool {
	for _, p := range Ports(c) {
		if p.Flags&PortXDP != 0 {
			return true
		}
	}
	return false
}

// moveIn gives the slots of new ports to them: their devices, and counters
// without what former tenants left.
func (b *Bridge) moveIn(c *Config, g *generation) error {
	for _, p := range Ports(c) {
		if PortAt(&b.Config, p.Id) != nil {
			continue
		}
		if err := g.place(p); err != nil {
			return err
		}
		zero := make([]Stats, ebpf.MustPossibleCPU())
		if err := g.coll.Maps[kernelMapStats].Put(Slot(p.Id), zero); err != nil {
			return err
		}
		if err := g.coll.Maps[kernelMapUsage].Put(Slot(p.Id), uint32(0)); err != nil {
			return err
		}
	}
	return nil
}

// moveOut gives up the devices of the ports of c that stay does not have, for
// those that stay has in their slots, if those have a device.
func (g *generation) moveOut(c, stay *Config, there func(*Port) bool) {
	for _, p := range Ports(c) {
		slot := Slot(p.Id)
		if PortAt(stay, p.Id) != nil {
			continue
		}
		if tenant := PortAt(stay, stay.Ports[slot].Id); tenant == nil || !there(tenant) || g.place(tenant) != nil {
			g.forget(slot)
		}
	}
}

// place enters a port's device in its slot.
func (g *generation) place(p *Port) error {
	for _, m := range deviceMaps {
		if err := g.coll.Maps[m].Put(Slot(p.Id), p.Ifindex); err != nil {
			return fmt.Errorf("device %d: %w", p.Ifindex, err)
		}
	}
	return nil
}

// forget takes a slot's device out; the kernel has done so if it is gone.
func (g *generation) forget(slot uint32) {
	for _, m := range deviceMaps {
		_ = g.coll.Maps[m].Delete(slot)
	}
}

// pinGeneration pins all of g in a folder of its own.
func (b *Bridge) pinGeneration(g *generation) error {
	dir := b.pin(g.name)
	if err := os.RemoveAll(dir); err != nil { // what a killed command left
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	pins := map[string]interface{ Pin(string) error }{
		configPin:  g.coll.Maps[".rodata"],
		tcxPin:     g.coll.Programs[kernelProgBasculeTcx],
		controlPin: g.coll.Programs[kernelProgBasculeControl],
	}
	if p := g.coll.Programs[kernelProgBasculeXdp]; p != nil {
		pins[xdpPin] = p
	}
	for _, name := range tables {
		pins[name] = pinOnce{g.coll.Maps[name]}
	}
	for name, p := range pins {
		if err := p.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return nil
}

// pinOnce pins a map wherever else it is pinned already.
type pinOnce struct{ m *ebpf.Map }

func (p pinOnce) Pin(path string) error {
	m, err := p.m.Clone()
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Pin(path)
}

// makeCurrent is the moment at which a change is made.
func (b *Bridge) makeCurrent(gen string) error {
	next := b.pin("next")
	os.Remove(next)
	if err := os.Symlink(gen, next); err != nil {
		return err
	}
	return os.Rename(next, b.pin("current"))
}

// openGeneration opens the current generation from its pins.
func (b *Bridge) openGeneration() (*generation, error) {
	g := &generation{name: b.gen, coll: &ebpf.Collection{Programs: map[string]*ebpf.Program{}, Maps: map[string]*ebpf.Map{}}}
	for pin, name := range map[string]string{tcxPin: kernelProgBasculeTcx, xdpPin: kernelProgBasculeXdp, controlPin: kernelProgBasculeControl} {
		p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, pin), nil)
		if errors.Is(err, fs.ErrNotExist) && pin == xdpPin {
			continue
		}
		if err != nil {
			g.Close()
			return nil, err
		}
		g.coll.Programs[name] = p
	}
	for _, name := range deviceMaps {
		m, err := b.openTable(name)
		if err != nil {
			g.Close()
			return nil, err
		}
		g.coll.Maps[name] = m
	}
	return g, nil
}

// converge makes the kernel what the current generation says: its programs on
// its ports, nothing on others, no addresses of ports that are gone.
func (b *Bridge) converge(g *generation) error {
	if _, err := g.control(kernelControl{Op: kernelControlOpCONTROL_START}); err != nil {
		return err
	}
	left := false
	links, err := b.links()
	if err != nil {
		return err
	}
	for _, l := range links {
		p := PortAt(&b.Config, l.port)
		if p == nil || l.hook == hookXDP && p.Flags&PortXDP == 0 {
			if err := l.remove(); err != nil {
				return err
			}
			left = left || p == nil
			continue
		}
		if err := l.update(g.program(l.hook)); err != nil {
			return &PortError{PortName(p), l.hook.String(), err}
		}
	}
	if !left {
		return nil
	}
	_, err = g.control(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1})
	return err
}

// collect removes the folders of all generations but the current, and what a
// command that was killed at makeCurrent left.
func (b *Bridge) collect() error {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		old := strings.HasPrefix(e.Name(), "gen-") && e.Name() != b.gen
		if old || e.Name() == "next" {
			if err := os.RemoveAll(b.pin(e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Memory returns the bytes of kernel memory that the addresses of the bridge
// take, whether in use or not.
func (b *Bridge) Memory() (uint64, error) {
	m, err := b.openTable(kernelMapFdb)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	bytes, _ := info.Memlock()
	return bytes, nil
}

var errNoPrograms = errors.New("the kernel refuses to load BPF programs")

// explain turns what the kernel says of a load into what a user can act on.
func explain(err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return fmt.Errorf("the kernel's verifier refuses the switch program: %-3v", verifier)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", errNoPrograms, err)
	}
	return err
}

// MinKernel is the first kernel with what the datapath needs (tcx).
var MinKernel = [2]int{6, 6}

// CheckKernel returns an error that says so where the kernel is too old.
func CheckKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	release := unix.ByteSliceToString(u.Release[:])
	if !newEnough(release) {
		return fmt.Errorf("kernel %s is too old: the tcx hook needs Linux %d.%d or newer", release, MinKernel[0], MinKernel[1])
	}
	return nil
}

func newEnough(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return true // a kernel that counts in another way; let it try
	}
	return major > MinKernel[0] || major == MinKernel[0] && minor >= MinKernel[1]
}
