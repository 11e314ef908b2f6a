// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A Bridge is an open bridge: its configuration, and access to its tables.
type Bridge struct {
	Config Config

	store *Store
	dir   string // folder of the bridge
	gen   string // name of the current generation's folder

	vlans   *VLANs // see VLANs
	vlansOf string // the generation that has them; "" if they have not been read

	moored // devices that have come to berths since the configuration was made

	unhooked []*PortError // see Unhooked

	former  uint32   // the layout of the pinned objects, if it is not the present one
	lost    []string // settings of that layout that the present one does not have
	adopted string   // the generation that Adopt has made this bridge from
	killed  bool     // a command was killed before Adopt, and Mend has to finish its work
}

// Unhooked returns the ports whose drivers refused to replace their XDP program, and
// which have none since the last Commit. Their configuration still has XDP. Frames that
// the former program would have taken go by tcx. Frames that XDP sends to these ports
// may be lost, until a Commit of a configuration without XDP for them.
func (b *Bridge) Unhooked() []*PortError { return b.unhooked }

// Create makes a bridge without ports. The caller holds the lock.
func (s *Store) Create(name string, c Config) error {
	if err := CheckKernel(); err != nil {
		return err
	}
	b := &Bridge{store: s, dir: s.path(name)}
	if err := os.MkdirAll(filepath.Join(b.dir, "link"), 0o700); err != nil {
		return err
	}
	if err := b.Commit(&c, Tables{}, nil); err != nil { // no port can leave
		os.RemoveAll(b.dir)
		return err
	}
	return nil
}

// ErrLayout reports that this program can't read a bridge's tables.
var ErrLayout = errors.New("it was made by another version of bascule, with other tables")

// Open reads a bridge. Without the lock, the bridge may be gone the next moment. With
// ErrLayout it returns a bridge that allows nothing but Remove. If the error is a
// FormerError, Adopt may be able to take the bridge over.
func (s *Store) Open(name string) (*Bridge, error) {
	b := &Bridge{store: s, dir: s.path(name)}
	for range 10 {
		gen, err := os.Readlink(filepath.Join(b.dir, "current"))
		if err != nil {
			return nil, err
		}
		b.gen = gen
		if err = b.readConfig(); err == nil {
			err = b.moor()
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // a writer has just gone on to the next generation
		}
		if now, gone := os.Readlink(filepath.Join(b.dir, "current")); gone == nil && now != gen {
			continue // and may reuse the one that was read
		}
		return b, errors.Join(err, b.formerly())
	}
	return nil, fmt.Errorf("%s changes too fast to be read", name)
}

// Current reports whether the bridge still has the configuration that b read, and
// the same devices in its berths.
func (b *Bridge) Current() bool {
	gen, err := os.Readlink(b.pin("current"))
	return err == nil && gen == b.gen && b.mooredStill()
}

// Is reports whether two are the same bridge, in any generations.
func (b *Bridge) Is(o *Bridge) bool { return b.dir == o.dir }

// Store returns the store that the bridge is in.
func (b *Bridge) Store() *Store { return b.store }

func (b *Bridge) readConfig() error {
	b.former, b.lost, b.Config.Layout = 0, nil, 0
	config, err := readMap(b.pin(b.gen, configPin))
	if err != nil {
		return err
	}
	defer config.Close()
	settings, err := readMap(b.pin(b.gen, settingsPin))
	if err != nil {
		return err
	}
	defer settings.Close()
	if config.ValueSize() == uint32(unsafe.Sizeof(b.Config.kernelConfig)) {
		if err := config.Lookup(uint32(0), &b.Config.kernelConfig); err != nil {
			return err
		}
	}
	if b.Config.Layout != layout || settings.ValueSize() != uint32(unsafe.Sizeof(b.Config.kernelSettings)) {
		return b.readFormer(config, settings)
	}
	return settings.Lookup(uint32(0), &b.Config.kernelSettings)
}

func (b *Bridge) pin(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// openTable opens a map of the bridge, or of its configuration.
func (b *Bridge) openTable(name string) (*ebpf.Map, error) {
	if b.former != 0 && !recordOf(b.former).sameTable(recordOf(layout), name) {
		return nil, fmt.Errorf("table %s: %w", name, ErrLayout)
	}
	return openMap(b.pin(b.gen, name))
}

// Commit makes asked and t the bridge's configuration. It loads programs specialised for
// it, and attaches them to new ports. Under ports that stay it swaps the programs, each
// in one step. If a port's program can't be attached, everything is left as it was, and
// the error is a PortError. (Unhooked lists ports whose drivers take no other program.)
// An UnfinishedError reports that the change is made, but not all that follows from it;
// Mend does the rest. The caller holds the lock and is in the bridge's network
// namespace.
//
// The follower is called before the former generation is removed, so that Mend can call
// it again.
func (b *Bridge) Commit(asked *Config, t Tables, f Follower) (err error) {
	b.unhooked = nil
	next := *asked
	b.renew(&next)
	if err := b.settleRules(&next, &t); err != nil {
		return err
	}
	if err := b.settlePF(&next, &t); err != nil {
		return err
	}
	if err := b.settleFDB(&next); err != nil {
		return err
	}
	specialise(&next)
	settleWays(&next)
	next.FdbTurn = b.Config.FdbTurn
	if next.FdbBuckets != b.Config.FdbBuckets { // a new FDB, with counters apart from the former's
		next.FdbTurn ^= 1
	}
	if err := b.settleBindings(&next, &t); err != nil {
		return err
	}
	if err := findPlaces(&next); err != nil {
		return errors.Join(err, b.unplugFor(&next))
	}
	spares := b.spares(&next, t)
	hurry := b.store.hurry()
	if spares {
		hurry.begin() // the caller waits, and the rest of the change takes next to no time
		defer hurry.end()
	}
	g, err := b.reuse(&next, t)
	if errors.Is(err, errNoSpare) {
		g, err = b.load(&next, t)
	}
	if err != nil {
		return errors.Join(err, b.unplugFor(&next))
	}
	defer g.Close()

	evicted := map[uint32]bool{} // ports with a device whose slots get a new tenant
	for _, p := range Ports(&b.Config) {
		if next.Ports[Slot(p.Id)].Id != p.Id {
			evicted[p.Id] = b.HasDevice(p)
		}
	}
	var added []pinnedLink
	states, err := b.startStates(&next, g)
	if err == nil {
		added, err = b.attach(&next, g)
	}
	if err == nil {
		err = b.moveIn(&next, g)
	}
	if err == nil {
		err = g.look(&next)
	}
	if err == nil {
		err = b.pinGeneration(&next, g)
	}
	grown := b.gen != "" && next.FdbBuckets != b.Config.FdbBuckets
	if err == nil && grown {
		err = b.copyFDB(g)
	}
	if err == nil {
		err = b.makeCurrent(g.name)
	}
	if err != nil {
		for _, l := range added {
			if tied := PortAt(&next, l.port); l.hook == hookTCX && tied != nil && b.intends(tied) {
				l.rest() // until the port has given back its settings: see Relent
			} else {
				l.remove()
			}
		}
		g.moveOut(&next, &b.Config, func(p *Port) bool { return evicted[p.Id] })
		g.putStates(states)
		os.RemoveAll(b.pin(g.name))
		return errors.Join(err, b.forgetLearned(), b.unplugFor(&next))
	}
	old := *b
	b.Config, b.gen, b.moored, b.adopted, b.killed = next, g.name, newMoored(), "", false
	b.keepVLANs(t.VLANs, old.gen)
	if err := b.converge(g, lost(&old.Config, &b.Config)); err != nil {
		return &UnfinishedError{err}
	}
	if old.gen != "" {
		if err := b.follow(g, &old, f); err != nil {
			return &UnfinishedError{err}
		}
	}
	if lost(&old.Config, &b.Config) {
		if err := b.untie(); err != nil {
			return &UnfinishedError{err}
		}
	}
	g.moveOut(&old.Config, &b.Config, func(*Port) bool { return true })
	if t.PF != nil && t.PF.Free != 0 && b.PFLoaded() {
		a, err := g.addresses(&b.Config)
		if err == nil {
			_, err = a.clear(t.PF.Free)
		}
		if err != nil {
			return &UnfinishedError{err}
		}
	}
	_, others := os.Stat(old.pin(old.gen, build())) // another build's programs cannot be the spare
	if err := b.keepSpare(old.gen, spares && !g.apart && others == nil); err != nil {
		return &UnfinishedError{err}
	}
	if old.killed {
		return nil
	}
	if err := b.collect(); err != nil {
		return &UnfinishedError{err}
	}
	if patched(&old.Config) && (lost(&old.Config, &b.Config) || lostEndpoint(&old.Config, &b.Config)) {
		if err := b.store.unplug(); err != nil {
			return &UnfinishedError{err}
		}
	}
	return nil
}

// forgetLearned frees the addresses of ports whose addition has failed: the next change
// gives the ids of these ports to others.
func (b *Bridge) forgetLearned() error {
	if b.gen == "" {
		return nil
	}
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1})
	return err
}

// lost reports whether next lacks a port that c has.
func lost(c, next *Config) bool {
	return slices.ContainsFunc(tenants(c), func(p *Port) bool { return TenantAt(next, p.Id) == nil })
}

// An UnfinishedError reports that a change is made, but that not all follow-up work is
// done.
type UnfinishedError struct{ Err error }

func (e *UnfinishedError) Error() string { return e.Err.Error() }

func (e *UnfinishedError) Unwrap() error { return e.Err }

// A Follower does the work that follows a change, except the datapath's own part. If a
// command was killed, the Follower is called again, and does the rest.
type Follower interface {
	// Leave gives back the settings that a port took. It is called for each port that
	// the bridge no longer has, or has with another hook (now is then not nil), if the
	// port's device exists, in any network namespace. The device may move meanwhile; tie
	// leads to it. Some of the settings may be out of reach. Leave then returns a port
	// with only these. That port is kept, and Leave is called for it again.
	Leave(was, now *Port, tie Tie) (owed *Port, err error)

	// Follow corrects everything in b that no longer fits, now that was has become b.
	Follow(b, was *Bridge) error
}

// follow does the work that follows the change from was to b.
func (b *Bridge) follow(g *generation, was *Bridge, f Follower) error {
	if err := g.refillChanged(&b.Config, &was.Config); err != nil {
		return err
	}
	if err := was.leave(&b.Config, f); err != nil {
		return err
	}
	if b.Config.FdbBuckets != was.Config.FdbBuckets { // addresses that were learned meanwhile
		if err := was.copyFDB(g); err != nil {
			return err
		}
	}
	if was.PFLoaded() && b.PFLoaded() {
		if err := was.adoptLate(g, &b.Config); err != nil {
			return err
		}
		if err := was.growPF(g, &b.Config, true); err != nil {
			return err
		}
	}
	return f.Follow(b, was)
}

// leave has f give back the settings of those ports of b that are gone in the new
// configuration, that have left XDP, or whose notes of taken settings have become fewer.
// These ports have no XDP program any more: it would keep the features of a veth's other
// end.
func (b *Bridge) leave(now *Config, f Follower) error {
	for _, p := range append(Ports(&b.Config), b.Departed()...) {
		if p.Facts&PortPatch != 0 {
			continue
		}
		stays := PortAt(now, p.Id)
		if stays != nil && stays.Notes&PortXDP == p.Notes&PortXDP && p.Taken&^stays.Taken == 0 {
			continue
		}
		tie := b.tieOf(p)
		exists, here := tie.find()
		anew := func(n *Port) bool { return n.Ifindex == here }
		if !exists || here != 0 && !b.HasDevice(p) && slices.ContainsFunc(Ports(now), anew) {
			continue // or the device is a port again, and gives its settings back when it leaves
		}
		owed, err := f.Leave(p, stays, tie)
		if err == nil && owed != nil {
			err = b.store.owe(tie, owed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Mend finishes a Commit that was killed. The caller holds the lock and is in
// the bridge's network namespace.
func (b *Bridge) Mend(f Follower) error {
	g, err := b.openGeneration()
	if err != nil {
		return err
	}
	defer g.Close()
	// The spare may have other tables than b.
	if err := b.keepSpare("", false); err != nil {
		return err
	}
	if err := b.mendBerths(g, f); err != nil {
		return err
	}
	if err := b.converge(g, true); err != nil {
		return err
	}
	generations, adopted := b.generations(), ""
	for _, old := range generations {
		if was := slices.IndexFunc(generations, func(o *Bridge) bool {
			return o.former != 0 && old.former == 0 && o.gen != intention && o.nextGeneration() == old.gen
		}); was >= 0 {
			old.adopted = generations[was].gen
			adopted = old.adopted
		}
	}
	for _, old := range generations {
		next := old.nextGeneration()
		switch {
		case old.gen == b.gen: // its berths may have lost devices
			err = b.leave(&b.Config, f)
		case old.gen != intention && (next == b.gen || next == adopted):
			if err = b.follow(g, old, f); old.former != 0 && errors.Is(err, ErrLayout) {
				err = nil // its former tables cannot be read
			}
		default: // a generation that was not made current
			err = old.leave(&b.Config, f)
		}
		if err != nil {
			return err
		}
	}
	if err := b.untie(); err != nil {
		return err
	}
	if err := b.mendStates(); err != nil {
		return err
	}
	for slot := range b.Config.Ports {
		if PortAt(&b.Config, b.Config.Ports[slot].Id) == nil {
			g.forget(uint32(slot))
		}
	}
	if err := b.collect(); err != nil {
		return err
	}
	if err := errors.Join(b.collectBindings(), b.collectOwners()); err != nil {
		return err
	}
	return b.store.unplug()
}

// Dirty reports whether a command is at work between Begin and Done, or was killed
// between them.
func (b *Bridge) Dirty() bool {
	_, err := os.Stat(b.pin("dirty"))
	return err == nil
}

// generations returns the bridge once for each of its readable generations. There is one
// generation, unless a command is at work or was killed.
func (b *Bridge) generations() []*Bridge {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil
	}
	var list []*Bridge
	for _, e := range entries {
		old := &Bridge{store: b.store, dir: b.dir, gen: e.Name()}
		if strings.HasPrefix(e.Name(), "gen-") && old.readConfig() == nil {
			_ = old.moor() // a generation that was not pinned whole has had no device in a berth
			list = append(list, old)
		}
	}
	return list
}

// Remove deletes the bridge and all its objects in the kernel. The caller holds the
// lock.
func (b *Bridge) Remove(f Follower) error {
	if err := os.Remove(b.pin("current")); err != nil {
		return err
	}
	return b.sweep(f)
}

// sweep removes the remains of a bridge that does not exist any more, or not
// yet.
func (b *Bridge) sweep(f Follower) error {
	links, err := b.links()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	hurry := b.store.hurry()
	defer hurry.end()
	rests := false
	for _, l := range links {
		if l.hook != hookTCX {
			hurry.begin()
			err = l.remove()
		} else {
			rests, err = true, l.rest()
		}
		if err != nil {
			return err
		}
	}
	if rests {
		hurry.begin()
		_ = quiesce() // as converge does
	}
	for _, old := range b.generations() {
		if err := old.leave(&Config{}, f); err != nil {
			return err
		}
	}
	for _, l := range links {
		hurry.begin()
		if err := l.remove(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	return b.store.unplug()
}

// Begin notes that a command is about to change the bridge. If the command is killed,
// the next one finds the note. The caller holds the lock.
func (b *Bridge) Begin() error {
	err := os.Mkdir(b.pin("dirty"), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// work makes a change that may be killed on the way. The next command then does the
// rest, and also work that the change itself could not finish.
func (b *Bridge) work(f func() error) error {
	if b.Dirty() {
		return f() // f is part of a larger change
	}
	if err := b.Begin(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return b.Done()
}

// Done notes that the kernel follows the bridge's configuration.
func (b *Bridge) Done() error {
	err := os.Remove(b.pin("dirty"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
