// SPDX-License-Identifier: BSD-2-Clause

// Package bridge is the model of a switch: bridges, their ports and their FDB,
// and the operations on them. It checks everything before it touches anything;
// the kernel's side is package datapath's.
package bridge

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Switch is the bridges of one network namespace.
type Switch struct {
	ns      *os.File // nil for the caller's
	locked  bool
	force   bool                   // limits may take what they like
	free    func() (uint64, error) // bytes of memory, nil to ask the kernel
	joining bool
}

// An Option says how a switch is used.
type Option func(*Switch)

// Locked has the programs of bridges that are made or changed take one lock
// round the FDB for every frame. It is for the lab, which measures the cost of
// a lock. A change without it makes the bridge an ordinary one again.
func Locked(s *Switch) { s.locked = true }

// Joining lets the host's end of a host port be a port of another bridge, which is
// refused otherwise: nothing keeps two bridges from holding each other's, and
// patch cables do better. It is for the lab, which measures such wirings.
func Joining(s *Switch) { s.joining = true }

// Open returns the switch of a network namespace, named as `ip -n` takes it or
// by a path; "" is the caller's own. Close it when done.
func Open(name string, options ...Option) (*Switch, error) {
	s := &Switch{}
	for _, o := range options {
		o(s)
	}
	if name == "" {
		return s, nil
	}
	ns, err := openNetns(name)
	if err != nil {
		return nil, err
	}
	s.ns = os.NewFile(uintptr(ns), name)
	return s, nil
}

// Close gives the namespace back. Requests that are under way are finished.
// Later ones are refused, and are never done in another namespace.
func (s *Switch) Close() error {
	if s.ns == nil {
		return nil
	}
	return s.ns.Close()
}

// read runs f, which changes nothing, with the bridges of the namespace.
func (s *Switch) read(f func(*datapath.Store) error) error {
	return s.Inside(func() error {
		if err := Usable(); err != nil {
			return err
		}
		store, err := datapath.OpenStore()
		if err != nil {
			return failed("use the switch", err)
		}
		store.Locked = s.locked
		defer store.Hold()()
		return f(store)
	})
}

// write runs f as the only writer in the namespace, after it has finished the
// work of writers that were killed.
func (s *Switch) write(f func(*datapath.Store) error) error {
	return s.read(func(store *datapath.Store) error {
		unlock, err := store.Lock()
		if err != nil {
			return failed("use the switch", err)
		}
		defer unlock()
		hosts, err := mend(store)
		if err != nil {
			return failed("mend what an earlier command was killed at", err)
		}
		if err := store.GiveBack(follower{}); err != nil {
			return failed("give back what ports took that have left", err)
		}
		catchUp(store, hosts)
		return f(store)
	})
}

// Mend finishes the work of commands that were killed in this namespace, as any change
// does first. Who plans from what there is needs it before.
func (s *Switch) Mend() error { return s.write(func(*datapath.Store) error { return nil }) }

// LockPlans waits until nobody else executes a plan made from the state of this
// namespace's bridges, and makes others that plan wait until unlock. Other
// changes go on.
func (s *Switch) LockPlans() (unlock func(), err error) {
	err = s.read(func(store *datapath.Store) error {
		unlock, err = store.LockPlans()
		return failed("use the switch", err)
	})
	return unlock, err
}

// newEnough is the first version of Linux that has all that the switch needs, for
// who is to boot another. It is advice: what a kernel has is asked, not its version.
const newEnough = "6.6"

// Usable says so where this machine, or this process, can have no switch.
func Usable() error {
	if err := allowed(); err != nil {
		return err
	}
	return failed("use the switch", datapath.CheckKernel())
}

// allowed tells if the process lacks a capability, before a system call says
// less.
func allowed() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_BPF, "CAP_BPF"}} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			// whoever may administer the system may load programs, too
			if c.bit == unix.CAP_BPF && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0 {
				continue
			}
			missing = append(missing, c.name)
		}
	}
	if missing != nil {
		return refused("use the switch", "no permission ("+strings.Join(missing, ", ")+")", "run as root")
	}
	// the capabilities that a user namespace has count for what is its own: BPF
	// is the machine's
	if in, err := os.Readlink("/proc/self/ns/user"); err == nil && in != firstUserNamespace {
		return refused("use the switch", "no permission: in a user namespace CAP_BPF, CAP_SYS_ADMIN and CAP_NET_ADMIN do not count for BPF programs",
			"run as root outside of it")
	}
	return nil
}

// firstUserNamespace is PROC_USER_INIT_INO of linux/proc_ns.h.
const firstUserNamespace = "user:[4026531837]"

// AddBridge makes a bridge without ports.
func (s *Switch) AddBridge(name string, changes []Change) error {
	what := "add bridge " + name
	if err := checkName("bridge", name); err != nil {
		return err
	}
	config, err := configure(BridgeSettings, Defaults(BridgeSettings), changes)
	if err != nil {
		return err
	}
	if err := config.check(what); err != nil {
		return err
	}
	if err := s.checkMemory(what, []demand{fdbDemand(0, config.FDBMax)}); err != nil {
		return err
	}
	return s.write(func(store *datapath.Store) error {
		if store.Exists(name) {
			return refused(what, "it exists", "change it with 'bascule bridge set "+name+"', or delete it first")
		}
		if err := sweepAbandoned(); err != nil {
			return err
		}
		var c datapath.Config
		config.store(&c)
		var seed [8]byte
		rand.Read(seed[:])
		c.HashSeed = binary.NativeEndian.Uint64(seed[:])
		rand.Read(c.Address[:])
		c.Address[0] = c.Address[0]&^1 | 2 // one station's, locally administered (IEEE 802 8.4)
		return failed(what, store.Create(name, c))
	})
}

// SetBridge changes a bridge's settings, and loads this binary's programs,
// which is all that it does without changes. It returns notes about the change.
func (s *Switch) SetBridge(name string, changes []Change) (notes []string, err error) {
	set := setBridge(name, changes)
	return s.one(step{set.what, name, func(c *draft) error {
		c.reload = true
		if err := set.plan(c); err != nil {
			return err
		}
		// not part of set: who edits says himself what there is to be
		warn := warnWithoutVLAN
		switch {
		case filters(&c.bridge.Config) == filters(c.next):
			return nil
		case filters(&c.bridge.Config):
			warn = warnOfPVID
		}
		notes, err := warn(c.bridge, name)
		c.warn(notes...)
		return err
	}}, nil)
}

// warnWithoutVLAN says what matches no frame once the bridge filters VLANs, since it
// is in none.
func warnWithoutVLAN(b *datapath.Bridge, name string) (notes []string, err error) {
	v, err := viewOf(name, b)
	if err != nil {
		return nil, err
	}
	own, entries, err := v.ownEntries()
	if err != nil {
		return nil, err
	}
	n := 0
	for _, e := range entries {
		if e.VLAN == 0 && (e.Static || e.Sticky) && !own(e) {
			n++
		}
	}
	if n > 0 {
		notes = append(notes, fmt.Sprintf("%s: static and sticky entries without a VLAN, which match no frame now: %d; "+
			"see 'bascule fdb show %s --static --vlan 0', add each again, and flush those with 'bascule fdb flush %s --static --vlan 0'", name, n, name, name))
	}
	bindings, err := b.Bindings()
	if err != nil {
		return nil, err
	}
	n = 0
	for _, e := range bindings {
		if e.VLAN == 0 {
			n++
		}
	}
	if n > 0 {
		notes = append(notes, fmt.Sprintf("%s: bindings without a VLAN, which match no frame now: %d; "+
			"see 'bascule binding show %s', add each again with --vlan, and flush those with 'bascule binding flush %s --vlan 0'", name, n, name, name))
	}
	return notes, nil
}

// warnOfPVID says what frames without a tag do not match any more once the bridge does
// not filter VLANs: they are in none then. What has a tag is in the VLAN that it was in.
func warnOfPVID(b *datapath.Bridge, name string) (notes []string, err error) {
	vlans, err := b.VLANs()
	if err != nil {
		return nil, err
	}
	native := map[uint16]bool{} // by where the FDB has their addresses
	for _, p := range datapath.Ports(&b.Config) {
		if p.Pvid == 0 {
			continue
		}
		native[p.Pvid] = true
		if vlans != nil && vlans[p.Pvid].Fid != 0 {
			native[vlans[p.Pvid].Fid] = true
		}
	}
	v, err := viewOf(name, b)
	if err != nil {
		return nil, err
	}
	own, entries, err := v.ownEntries()
	if err != nil {
		return nil, err
	}
	say := func(what string, in []uint16, show string) {
		if len(in) == 0 {
			return
		}
		n := len(in)
		slices.Sort(in)
		in = slices.Compact(in)
		word := "VLAN "
		if len(in) > 1 {
			word = "VLANs "
		}
		notes = append(notes, fmt.Sprintf("%s: %s in VLANs of frames that had no tag, which are in none now: %d in %s%s; see 'bascule %s', and add each again without --vlan",
			name, what, n, word, FormatVLANs(in), show))
	}
	var in []uint16
	for _, e := range entries {
		if native[e.VLAN] && (e.Static || e.Sticky) && !own(e) {
			in = append(in, e.VLAN)
		}
	}
	say("static and sticky entries", in, "fdb show "+name+" --static")
	bindings, err := b.Bindings()
	if err != nil {
		return nil, err
	}
	in = nil
	for _, e := range bindings {
		if native[e.VLAN] {
			in = append(in, e.VLAN)
		}
	}
	say("bindings", in, "binding show "+name)
	return notes, nil
}

// setBridge changes a bridge's settings, and looks again at the facts of its
// ports' devices that matter.
func setBridge(name string, changes []Change) step {
	what := "set bridge " + name
	return step{what, name, func(c *draft) error {
		config, err := configure(BridgeSettings, loadBridgeConfig(c.next), changes)
		if err != nil {
			return err
		}
		if err := config.check("set bridge " + name); err != nil {
			return err
		}
		config.store(c.next)
		for _, p := range datapath.Ports(c.next) {
			if !c.bridge.HasDevice(p) {
				continue
			}
			if l, err := netlink.LinkByIndex(int(p.Ifindex)); err == nil {
				learnDevice(p, l)
			}
			c.settle(p)
		}
		c.after = append(c.after, func() error {
			notes, err := dropSurplus(c.bridge, nil, name)
			c.warn(notes...)
			if slices.ContainsFunc(changes, func(ch Change) bool { return ch.Name == stpSetting }) {
				c.warn(warnNoAgent(c.bridge, "the ports that are there keep their states, and new ones wait")...)
			}
			return err
		})
		return nil
	}}
}

// DelBridge removes a bridge: its ports, its addresses, all of it. The warnings are
// about what ports took to which there is no way to give it back.
func (s *Switch) DelBridge(name string) (warnings []string, err error) {
	what := "delete bridge " + name
	f := follower{func(notes ...string) { warnings = append(warnings, notes...) }}
	err = s.write(func(store *datapath.Store) error {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) {
			if err := b.Remove(f); err != nil { // its ports' devices stay as they are
				return failed(what, err)
			}
			return failed(what, cutHalves(store))
		}
		if b, err = open(store, what, name); err != nil {
			return err
		}
		if err := cutAll(b, func() error { return b.Remove(f) }); err != nil {
			return unfinished(what, err)
		}
		return nil
	})
	return warnings, err
}

// DelBridges removes all bridges of the namespace, those too that another version
// of the program made, one after another, and returns which. One that cannot be
// removed keeps none of the others. The warnings are DelBridge's.
func (s *Switch) DelBridges() (removed, warnings []string, err error) {
	names, err := s.Names()
	if err != nil {
		return nil, nil, err
	}
	var all []error
	for _, name := range names {
		notes, err := s.DelBridge(name)
		warnings = append(warnings, notes...)
		switch {
		case errors.Is(err, errNoBridge): // somebody else was faster
		case err != nil:
			all = append(all, err)
		default:
			removed = append(removed, name)
		}
	}
	return removed, warnings, errors.Join(all...)
}

// Bridges returns all bridges by name.
func (s *Switch) Bridges() (list []Info, err error) {
	list = []Info{}
	err = s.each("", "", func(name string, b *datapath.Bridge) error {
		info, err := describe(name, b)
		list = append(slices.DeleteFunc(list, func(i Info) bool { return i.Name == name }), info)
		return err
	})
	return list, err
}

// Bridge returns one bridge.
func (s *Switch) Bridge(name string) (info Info, err error) {
	err = s.each("", name, func(name string, b *datapath.Bridge) error {
		info, err = describe(name, b)
		return err
	})
	return info, err
}

func describe(name string, b *datapath.Bridge) (Info, error) {
	usage, err := b.Usage()
	if err != nil {
		return Info{}, err
	}
	v, err := viewOf(name, b)
	if err != nil {
		return Info{}, err
	}
	info := v.info()
	info.FDBCount = usage[0]
	return info, nil
}

// info returns the facts of a bridge, except for its counts.
func (v *view) info() Info {
	info := Info{
		Name: v.name, Address: net.HardwareAddr(v.b.Config.Address[:]),
		Config: loadBridgeConfig(&v.b.Config), Ports: []string{},
		AgentRuns: v.b.STP() && v.b.Runs(datapath.WatchControl),
	}
	for _, p := range v.ports {
		info.Ports = append(info.Ports, v.names[p.Id])
	}
	return info
}

// each runs f with the bridge of the name, or with all bridges if it is "". f
// may read half of a bridge that is changed meanwhile: it is run again then,
// and keeps nothing of the last time.
func (s *Switch) each(asked, name string, f func(string, *datapath.Bridge) error) error {
	return s.read(func(store *datapath.Store) error {
		names := []string{name}
		if name == "" {
			var err error
			if names, err = store.Names(); err != nil {
				return err
			}
		}
		for _, n := range names {
			for tries := 0; ; tries++ {
				what := cmp.Or(asked, "show bridge "+n)
				b, err := open(store, what, n)
				if name == "" && err != nil && !store.Exists(n) {
					break // deleted at this moment
				}
				if err == nil {
					err = f(n, b)
				}
				if b != nil && !b.Current() && tries < 100 {
					continue
				}
				if err != nil {
					return failed(what, err)
				}
				break
			}
		}
		return nil
	})
}

// open opens a bridge; what names the purpose, for the error.
func open(store *datapath.Store, what, name string) (*datapath.Bridge, error) {
	b, err := store.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, because(refused(what, "there is no bridge "+name+" in this network namespace", "see 'bascule bridge show'"), errNoBridge)
	}
	if errors.Is(err, datapath.ErrLayout) {
		return nil, refused(what, err.Error(), "use that version, or delete it with 'bascule bridge del "+name+"' and make it anew")
	}
	if err != nil {
		return nil, failed(what, err)
	}
	return b, nil
}

// A draft is a bridge's next configuration and what surrounds it. Who plans it
// changes next and tables, and nothing else; the rest is done when the plan is
// whole.
type draft struct {
	bridge *datapath.Bridge
	next   *datapath.Config
	tables datapath.Tables
	pf     *pfConfig // what pf is told next, nil for what it was
	joins  bool      // as [Joining] has it
	reload bool      // make a new generation even if nothing is different

	late    []func() error     // ends the plan: what needs to know all that is planned
	before  []func() error     // right before the change is made
	settles []uint32           // ports whose devices are looked at then
	undo    []func() error     // undoes before, in reverse, where the change is refused
	after   []func() error     // right after
	others  []*datapath.Bridge // at the other ends of the patch cables that go with it

	warnings []string
	auto     []uint32 // ports that go without XDP if they must
	vlans    vlanPlan
	world    world

	widowed map[string][]uint32 // ports whose backup leaves, by its name

	berthVLANs map[uint32][]VLANRange // of new berths by id, where they are not those of a new port
}

// warn notes what the caller is to be told; the same of many ports is told once.
func (c *draft) warn(warnings ...string) {
	for _, w := range warnings {
		if !slices.Contains(c.warnings, w) {
			c.warnings = append(c.warnings, w)
		}
	}
}

// newDraft returns a draft to a bridge of which nothing is planned yet.
func newDraft(b *datapath.Bridge) *draft {
	next := b.Config
	return &draft{bridge: b, next: &next}
}

// change makes a change to a bridge: plan says which, and touches nothing.
func (s *Switch) change(what, name string, plan func(*draft) error) error {
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, name)
		if err != nil {
			return err
		}
		c := newDraft(b)
		c.joins = s.joining
		if err := c.planned(what, plan); err != nil {
			return err
		}
		if err := s.checkMemory(what, c.demands()); err != nil {
			return err
		}
		if err := c.make(what); err != nil {
			return err
		}
		return s.shrink(store, name)
	})
}

// planned plans a change whole.
func (c *draft) planned(what string, plan func(*draft) error) error {
	for _, do := range []func() error{
		func() error { return plan(c) },
		func() error { return inTurn(c.late) },
		func() error { return c.planTables(what) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// planTables plans what follows from the ports that there are to be.
func (c *draft) planTables(what string) error {
	if err := c.planVLANs(what); err != nil {
		return err
	}
	return c.planPF(what)
}

// eachOpen calls f with those bridges of the names that this build can read, and
// that are there.
func eachOpen(store *datapath.Store, names []string, f func(name string, b *datapath.Bridge) error) error {
	for _, name := range names {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f(name, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// make makes a change that has been planned, or only what comes after it where
// the bridge is as it is to be already.
func (c *draft) make(what string) error {
	different, err := c.different()
	if err != nil {
		return failed(what, err)
	}
	if !different {
		return failed(what, inTurn(append([]func() error{c.ready}, c.after...)))
	}
	if err := c.each((*datapath.Bridge).Begin); err != nil {
		return failed(what, err)
	}
	if err = inTurn(c.before); err == nil {
		err = c.commit()
	}
	if errors.As(err, new(*datapath.UnfinishedError)) {
		return unfinished(what, err)
	}
	if err != nil {
		slices.Reverse(c.undo)
		var left []string
		undo := errors.Join(c.bridge.Relent(follower{func(notes ...string) { left = append(left, notes...) }}), inTurn(c.undo))
		if undo != nil { // the next command tries again
			return failed(what, errors.Join(err, undo))
		}
		if err = errors.Join(err, c.each((*datapath.Bridge).Done)); left != nil {
			return because(refused(what, err.Error(), strings.Join(left, "; ")), err)
		}
		return failed(what, err)
	}
	if err := inTurn(c.after); err != nil {
		return unfinished(what, err)
	}
	return failed(what, c.each((*datapath.Bridge).Done))
}

// inTurn calls functions until one fails.
func inTurn(list []func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// different reports whether there is anything to make.
func (c *draft) different() (bool, error) {
	t := &c.tables
	if c.reload || len(c.before) > 0 || len(c.others) > 0 ||
		t.VLANs != nil || t.Filter != nil || t.Rules != nil || t.Bindings != nil || t.PF != nil || *c.next != c.bridge.Config {
		return true, nil
	}
	// what only looking at the ports' devices tells
	err := setXDPUse(c.bridge, c.next)
	return *c.next != c.bridge.Config, err
}

// commit makes the next configuration the bridge's, whose ports' devices are ready for
// its programs by then. A port whose driver refuses XDP, which nobody has insisted on,
// goes without.
func (c *draft) commit() error {
	for {
		err := inTurn([]func() error{
			func() error { return setXDPUse(c.bridge, c.next) },
			func() error { return c.bridge.Intend(c.next) },
			c.ready,
			func() error { return c.bridge.Commit(*c.next, c.tables, follower{c.warn}) },
		})
		var refusal *datapath.PortError
		if !errors.As(err, &refusal) || errors.As(err, new(*datapath.UnfinishedError)) || !c.withoutXDP(refusal) {
			return err
		}
		if err := c.bridge.Relent(follower{c.warn}); err != nil {
			return err
		}
	}
}

// withoutXDP takes XDP from a port that was refused it, if that may be.
func (c *draft) withoutXDP(refusal *datapath.PortError) bool {
	if refusal.Hook != HookXDP {
		return false
	}
	for _, id := range c.auto {
		p := datapath.PortAt(c.next, id)
		if p == nil || p.Notes&datapath.PortXDP == 0 || datapath.PortName(p) != refusal.Port {
			continue
		}
		setBits(&p.Notes, datapath.PortXDP, false)
		setBits(&p.Taken, givenBackWithXDP, false)
		c.warn(refusal.Port + ": " + refusal.Err.Error() + "; it forwards by tcx alone")
		return true
	}
	return false
}

// each calls f for the bridge that is changed, and for the others concerned.
func (c *draft) each(f func(*datapath.Bridge) error) error {
	err := f(c.bridge)
	for _, b := range c.others {
		err = errors.Join(err, f(b))
	}
	return err
}

// mend finishes the work of commands that were killed. It returns which bridges
// have host ports.
func mend(store *datapath.Store) (hosts []string, err error) {
	if err := store.Sweep(follower{}); err != nil {
		return nil, err
	}
	names, err := store.Names()
	if err != nil {
		return nil, err
	}
	dirty, strange := false, false
	used := map[int]bool{} // indexes of switch ends, whose ports may have had other names when they were made
	for _, name := range names {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) {
			strange = true
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read bridge %s: %w", name, err)
		}
		if b.Dirty() {
			dirty = true
			if err := mendBridge(b); err != nil {
				return nil, fmt.Errorf("cannot mend bridge %s: %w", name, err)
			}
		}
		ended, err := endStaleWatches(b)
		if err != nil {
			return nil, fmt.Errorf("cannot end a watch of bridge %s: %w", name, err)
		}
		dirty = dirty || ended
		for _, p := range datapath.Ports(&b.Config) {
			if p.Notes&datapath.PortHost != 0 {
				_, back := b.Away(p)
				used[int(p.Ifindex)], used[int(back)] = true, true
				if !slices.Contains(hosts, name) {
					hosts = append(hosts, name)
				}
			}
		}
	}
	if !dirty {
		return hosts, nil
	}
	if err := cutHalves(store); err != nil {
		return nil, fmt.Errorf("cannot mend: %w", err)
	}
	devices, err := links()
	if err != nil {
		return nil, err
	}
	for _, l := range devices {
		// any of them may be of a bridge that can't be read
		if isSwitchEnd(l) && !used[l.Attrs().Index] && !strange {
			if err := netlink.LinkDel(l); err != nil {
				return nil, fmt.Errorf("remove %s: %w", l.Attrs().Name, err)
			}
		}
	}
	return hosts, eachOpen(store, names, func(_ string, b *datapath.Bridge) error { return b.Done() })
}

func mendBridge(b *datapath.Bridge) error {
	if err := b.Mend(follower{}); err != nil {
		return err
	}
	if err := settleAll(b); err != nil {
		return err
	}
	if err := takeOver(b); err != nil {
		return err
	}
	for _, p := range append(datapath.Ports(&b.Config), nil) {
		if _, err := dropSurplus(b, p, ""); err != nil {
			return err
		}
	}
	return nil
}

// checkName says whether a bridge or a port can have the name: it follows the
// rules for interfaces (dev_valid_name() in the kernel's net/core/dev.c).
func checkName(kind, name string) error {
	object := fmt.Sprintf("%s name %q", kind, name)
	switch {
	case name == "":
		return usagef(object, "it is empty; give a name of 1 to %d bytes", maxName)
	case len(name) > maxName:
		return usagef(object, "it is too long; give 1 to %d bytes", maxName)
	case name == "." || name == ".." || strings.ContainsFunc(name, func(r rune) bool {
		return strings.ContainsRune("/:%", r) || r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.IsSpace(r)
	}):
		return usagef(object, "no interface can have it; leave out slashes, colons, percent signs, blanks and what can't be printed")
	}
	return nil
}

// unfinished says that a change is made, but that the work behind it is left to
// the next command.
func unfinished(what string, err error) error {
	return refused("finish to "+what, err.Error(), "the change is made, and the next command that changes something tries again")
}

// failed adds the action to an error that does not name it yet.
func failed(what string, err error) error {
	if err == nil || errors.As(err, new(*UsageError)) || errors.As(err, new(*refusal)) {
		return err
	}
	why, remedy := err.Error(), "nothing was changed"
	var port *datapath.PortError
	var missing *datapath.MissingError
	switch {
	case errors.As(err, &missing):
		why, remedy = missing.Error(), "boot Linux "+newEnough+" or newer, or a kernel that has it from there"
	case errors.As(err, &port) && port.Hook == HookXDP && errors.Is(err, unix.EBUSY):
		why, remedy = "another XDP program is on "+port.Port+" ("+port.Err.Error()+")", "take that off, or use --hook tcx"
	case errors.As(err, &port) && port.Hook == HookXDP:
		why, remedy = "XDP on "+port.Port+" is refused by its driver: "+port.Err.Error(), "use --hook tcx"
	case errors.Is(err, os.ErrPermission):
		remedy = "run as root"
	case errors.Is(err, unix.ENOMEM):
		remedy = "nothing was changed: give lower limits"
	}
	return because(refused(what, why, remedy), err)
}

// bridgeFlags ties the settings that are switches to their bits.
func bridgeFlags(c *BridgeConfig) map[datapath.BridgeFlags]*bool {
	return map[datapath.BridgeFlags]*bool{
		datapath.BridgeVLANs:     &c.VLANFiltering,
		datapath.BridgeQinQ:      &c.QinQ,
		datapath.BridgeVLANStats: &c.VLANStats,
		datapath.BridgeDHCPGuard: &c.DHCPGuard,
		datapath.BridgeRAGuard:   &c.RAGuard,
		datapath.BridgeSuppress:  &c.NeighSuppress,
	}
}

func loadBridgeConfig(c *datapath.Config) BridgeConfig {
	b := BridgeConfig{
		Ageing:       time.Duration(c.Ageing) * time.Second,
		FDBMax:       c.FdbMax,
		GroupFwdMask: c.GroupFwdMask,
		DefaultPVID:  c.DefaultPvid,
		VLANProtocol: c.VlanProto,
		MoveMax:      c.MoveMax,
	}
	b.loadSTP(c)
	for flag, field := range bridgeFlags(&b) {
		*field = datapath.BridgeFlags(c.Flags)&flag != 0
	}
	return b
}

func (b BridgeConfig) store(c *datapath.Config) {
	c.Ageing = uint32(b.Ageing / time.Second)
	c.FdbMax = b.FDBMax
	c.GroupFwdMask = b.GroupFwdMask
	c.DefaultPvid = b.DefaultPVID
	c.VlanProto = b.VLANProtocol
	c.MoveMax = b.MoveMax
	b.storeSTP(c)
	for flag, field := range bridgeFlags(&b) {
		c.Flags &^= uint32(flag)
		if *field {
			c.Flags |= uint32(flag)
		}
	}
}
