// SPDX-License-Identifier: BSD-2-Clause

// Package bridge is the model of a switch: bridges, their ports and their FDB, and the operations
// on them. It checks a request completely before it changes anything; package datapath is the
// interface to the kernel.
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
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Switch is the set of bridges of one network namespace.
type Switch struct {
	ns       *os.File // nil for the caller's
	locked   bool
	force    bool                   // limits may take any memory
	free     func() (uint64, error) // bytes of memory, nil to read the kernel's value
	restores bool                   // see Restoring
	joining  bool
	waits    func(process int) // called for a long wait for another process, may be nil
	tell     func(bridge, note string)
	changes  func() (after func()) // called before the first change, may be nil
	outside  outside

	rehearsal *Rehearsal // changes are only planned; nil to make them

	seenLock sync.Mutex
	seen     map[string]*pfSeen // by bridge, for Counted
}

// An Option changes the use of a switch.
type Option func(*Switch)

// Locked makes the programs of new and changed bridges take one lock around the FDB for every
// frame. It is for the lab, which measures the cost of a lock. A change without it makes the bridge
// an ordinary one again.
func Locked(s *Switch) { s.locked = true }

// Joining permits the host's end of a host port as a port of another bridge. It is refused
// otherwise, because two bridges could contain each other's ends, and patch cables are better.
// Joining is for the lab, which measures such configurations.
func Joining(s *Switch) { s.joining = true }

// Waiting sets a function that is called if a change waits for another one for seconds. process
// makes that other change; it is 0 if unknown. The call is on another goroutine.
func Waiting(f func(process int)) Option { return func(s *Switch) { s.waits = f } }

// Open returns the switch of a network namespace, by its name in `ip -n` or by a path; "" is the
// caller's own. Close it when done.
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

// Close releases the namespace. Pending requests are completed. Later ones are refused, and never
// run in another namespace.
func (s *Switch) Close() error {
	if s.ns == nil {
		return nil
	}
	return s.ns.Close()
}

// read calls f, which changes nothing, with the bridges of the namespace.
func (s *Switch) read(f func(*datapath.Store) error) error {
	return s.Inside(func() error {
		if err := Usable(); err != nil {
			return err
		}
		store, err := datapath.OpenStore()
		if err != nil {
			return failed("use the switch", err)
		}
		store.Locked, store.Waits = s.locked, s.waits
		defer store.Hold()()
		return f(store)
	})
}

// Changing sets a function that is called before the next change, nil for none. Other processes wait for it. They do
// not wait for the function that it returns, which is called after the change unless it is nil.
func (s *Switch) Changing(f func() (after func())) { s.changes = f }

// An outside makes calls when a switch has no lock: a call that prints may wait for a reader, and other processes must
// not wait for that.
type outside struct {
	mu    sync.Mutex
	locks int // that the switch has
	calls []func()
}

// locked is called with a lock's function to release it, and returns the function to use instead.
func (o *outside) locked(unlock func()) func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.locks++
	return func() {
		unlock()
		o.mu.Lock()
		o.locks--
		var calls []func()
		if o.locks == 0 {
			calls, o.calls = o.calls, nil
		}
		o.mu.Unlock()
		for _, f := range calls {
			f()
		}
	}
}

// call calls f once the switch has no lock.
func (o *outside) call(f func()) {
	o.mu.Lock()
	held := o.locks > 0
	if held {
		o.calls = append(o.calls, f)
	}
	o.mu.Unlock()
	if !held {
		f()
	}
}

// write calls f as the only writer in the namespace. It first completes the work of writers that
// were killed.
func (s *Switch) write(f func(*datapath.Store) error) error {
	return s.read(func(store *datapath.Store) error {
		unlock, err := store.Lock()
		if err != nil {
			return failed("use the switch", err)
		}
		defer s.outside.locked(unlock)()
		if s.rehearsal != nil { // no mending: a killed command's remains stay
			return f(store)
		}
		if before := s.changes; before != nil {
			s.changes = nil
			if after := before(); after != nil {
				s.outside.call(after)
			}
		}
		hosts, ruled, err := s.mend(store)
		if err != nil {
			return failed("complete what a killed command has left", err)
		}
		if err := store.GiveBack(follower{}); err != nil {
			return failed("give back what ports took that have left", err)
		}
		catchUp(store, hosts, ruled)
		return f(store)
	})
}

// Mend completes the work of commands that were killed in this namespace, as each change does
// first. Callers that plan from the present state need it before they read.
func (s *Switch) Mend() error { return s.write(func(*datapath.Store) error { return nil }) }

// LockPlans waits until no other process executes a plan made from the state of this namespace's
// bridges. Until unlock, others that plan wait. It does not block other changes.
func (s *Switch) LockPlans() (unlock func(), err error) {
	err = s.read(func(store *datapath.Store) error {
		unlock, err = store.LockPlans()
		return failed("use the switch", err)
	})
	if err != nil {
		return nil, err
	}
	return s.outside.locked(unlock), nil
}

// newEnough is the first version of Linux with everything that the switch needs, for the advice to
// boot another kernel. The switch itself tests for features, not for versions.
const newEnough = "6.6"

// Usable returns an error if this machine, or this process, cannot use a switch.
func Usable() error {
	if err := allowed(); err != nil {
		return err
	}
	// The kernel describes maps and programs there.
	if _, err := os.Stat("/proc/self/fdinfo"); err != nil {
		return refused("use the switch", "there is no /proc ("+err.Error()+")", "mount it: 'mount -t proc proc /proc'")
	}
	return failed("use the switch", datapath.CheckKernel())
}

// allowed returns an error if the process lacks a capability. System calls would have less clear
// errors.
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
			// A process with CAP_SYS_ADMIN may also load programs.
			if c.bit == unix.CAP_BPF && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0 {
				continue
			}
			missing = append(missing, c.name)
		}
	}
	if missing != nil {
		return refused("use the switch", "no permission ("+strings.Join(missing, ", ")+")", "run as root")
	}
	// Capabilities in a user namespace apply to its own objects, and BPF belongs to the
	// machine.
	if in, err := os.Readlink("/proc/self/ns/user"); err == nil && in != firstUserNamespace {
		return refused("use the switch", "no permission: in a user namespace CAP_BPF, CAP_SYS_ADMIN and CAP_NET_ADMIN do not count for BPF programs",
			"run as root outside of it")
	}
	return nil
}

// firstUserNamespace is PROC_USER_INIT_INO of linux/proc_ns.h.
const firstUserNamespace = "user:[4026531837]"

// AddBridge adds a bridge without ports.
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
		if s.rehearsal != nil {
			s.rehearsal.After[name] = &State{Bridge: Info{Name: name, Config: config}, Private: map[uint16]PrivateVLANs{}}
			return nil
		}
		if err := sweepAbandoned(); err != nil {
			return err
		}
		var c datapath.Config
		config.store(&c)
		var seed [8]byte
		rand.Read(seed[:])
		c.HashSeed = binary.NativeEndian.Uint64(seed[:])
		if err := giveAddress(store, &c, name); err != nil {
			return failed(what, err)
		}
		return failed(what, store.Create(name, c))
	})
}

// SetBridge changes a bridge's settings, and loads this binary's programs. Without changes it only
// loads the programs. The notes are about the change.
func (s *Switch) SetBridge(name string, changes []Change) (notes []string, err error) {
	set := setBridge(name, changes)
	return s.one(step{set.what, name, func(c *draft) error {
		c.reload = true
		if err := set.plan(c); err != nil {
			return err
		}
		// This is not part of setBridge, because an Edit defines the entries itself.
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

// warnWithoutVLAN returns notes about entries and bindings that match no frame once the bridge
// filters VLANs, because they are in no VLAN.
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

// warnOfPVID returns notes about entries and bindings that no longer match frames without a tag
// once the bridge stops filtering VLANs: such frames are in no VLAN then. A frame with a tag stays
// in its VLAN.
func warnOfPVID(b *datapath.Bridge, name string) (notes []string, err error) {
	vlans, err := b.VLANs()
	if err != nil {
		return nil, err
	}
	native := map[uint16]bool{} // by the VLAN of their addresses in the FDB
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

// setBridge changes a bridge's settings, and reads the relevant properties of its ports' devices
// again.
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
		given := c.next.Flags & uint32(datapath.BridgeMAC)
		config.store(c.next)
		if given&^c.next.Flags != 0 {
			if err := giveAddress(c.bridge.Store(), c.next, name); err != nil {
				return failed(what, err)
			}
		}
		if err := c.warnBlocked(name); err != nil {
			return failed("set bridge "+name, err)
		}
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
				c.warn(warnNoAgent(c.bridge, "existing ports keep their states, and new ones wait")...)
			}
			return err
		})
		return nil
	}}
}

// DelBridge removes a bridge completely, with its ports and addresses. The warnings are about
// changes at ports' devices, or at their other ends, that cannot be undone because these cannot be
// reached.
func (s *Switch) DelBridge(name string) (warnings []string, err error) {
	return s.delBridge(name, false)
}

// DelEmptyBridge does the same as DelBridge for a bridge without ports. A bridge that has a port by
// now stays, without an error, and so does a bridge of another version.
func (s *Switch) DelEmptyBridge(name string) (warnings []string, err error) {
	return s.delBridge(name, true)
}

func (s *Switch) delBridge(name string, empty bool) (warnings []string, err error) {
	what := "delete bridge " + name
	f := follower{func(notes ...string) { warnings = append(warnings, notes...) }}
	err = s.write(func(store *datapath.Store) error {
		b, err := store.Open(name)
		if empty && (errors.Is(err, datapath.ErrLayout) || err == nil && len(datapath.Ports(&b.Config)) > 0) {
			return nil
		}
		if s.rehearsal != nil && (err == nil || errors.Is(err, datapath.ErrLayout)) {
			s.rehearsal.After[name] = nil
			return nil
		}
		if errors.Is(err, datapath.ErrLayout) {
			if err := b.Remove(f); err != nil { // the devices of its ports stay unchanged
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

// DelBridges removes all bridges of the namespace, one after another, and returns their names. It
// also removes bridges of other versions of the program. If one cannot be removed, it continues
// with the others. The warnings are the same as DelBridge's.
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
		case errors.Is(err, errNoBridge): // another process was faster
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

// Bridge returns the bridge with a name.
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

// info returns the properties of a bridge, except for its counters.
func (v *view) info() Info {
	info := Info{
		Name: v.name, Address: net.HardwareAddr(v.b.Config.Address[:]), Born: v.b.Config.HashSeed,
		Config: loadBridgeConfig(&v.b.Config), Ports: []string{},
		AgentRuns: v.b.STP() && v.b.Runs(datapath.WatchControl),
	}
	for _, p := range v.ports {
		info.Ports = append(info.Ports, v.names[p.Id])
	}
	return info
}

// each calls f with the bridge of the name, or with all bridges if the name is "". f may see an
// inconsistent bridge if it is changed meanwhile. each then calls f again, and f must discard its
// former results.
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
					break // it has been deleted meanwhile
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

// open opens a bridge. what describes the purpose, for errors.
func open(store *datapath.Store, what, name string) (*datapath.Bridge, error) {
	b, err := store.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, because(refused(what, "there is no bridge "+name+" in this network namespace", "see 'bascule bridge show'"), errNoBridge)
	}
	if errors.Is(err, datapath.ErrLayout) {
		return nil, notRead(store, what, name, err)
	}
	if err != nil {
		return nil, failed(what, err)
	}
	return b, nil
}

// checkName checks whether a bridge or a port can have a name: it follows the rules for interfaces
// (dev_valid_name() in the kernel's net/core/dev.c). In addition, a name must be printable and
// unambiguous on a terminal, and contain no %, which the kernel would replace by a number. It must
// not look like an option of a command, nor be one of the two names under which the kernel has the
// settings of all interfaces and of new ones.
func checkName(kind, name string) error {
	object := fmt.Sprintf("%s name %q", kind, name)
	switch {
	case name == "":
		return usagef(object, "it is empty; give a name of 1 to %d bytes", maxName)
	case len(name) > maxName:
		return usagef(object, "it is too long; give 1 to %d bytes", maxName)
	case name[0] == '-':
		return usagef(object, "commands take it for an option; give one that does not begin with a dash")
	case name == "all" || name == "default": // net/ipv4/devinet.c
		return usagef(object, "the kernel reserves it; give another")
	case name == "lo" && kind == "bridge":
		return usagef(object, "it is the host's loopback interface; give another")
	case name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r"):
		return usagef(object, "no interface can have it; leave out slashes, colons and spaces, and give more than dots")
	case strings.ContainsFunc(name, func(r rune) bool {
		return r == '%' || r == utf8.RuneError || !unicode.IsGraphic(r) || unicode.IsSpace(r)
	}):
		return usagef(object, "bascule takes no such name, though an interface can have it; leave out percent signs and characters that cannot be printed")
	}
	return nil
}

// unfinished is the error for a change that is made, while the next command has to do the work
// after it.
func unfinished(what string, err error) error {
	return refused("finish to "+what, err.Error(), "the change is made, and the next command that changes something tries again")
}

// failed adds the action to an error that does not include it yet.
func failed(what string, err error) error {
	if err == nil || errors.As(err, new(*UsageError)) || errors.As(err, new(*refusal)) {
		return err
	}
	why, remedy := err.Error(), "nothing was changed"
	var port *datapath.PortError
	var missing *datapath.MissingError
	switch {
	case errors.As(err, &missing):
		why, remedy = missing.Error(), "boot Linux "+newEnough+" or newer, or a kernel with a backport of it"
	case errors.As(err, &port) && errors.Is(err, unix.ENODEV):
		why, remedy = "the device of port "+port.Port+" has gone meanwhile", "nothing was changed: try again"
	case errors.As(err, &port) && port.Hook == HookXDP && errors.Is(err, unix.EBUSY):
		why, remedy = "another XDP program is on "+port.Port+" ("+port.Err.Error()+")", "remove that, or use --hook tcx"
	case errors.As(err, &port) && port.Hook == HookXDP:
		why, remedy = "XDP on "+port.Port+" is refused by its driver: "+port.Err.Error(), "use --hook tcx"
	case errors.Is(err, os.ErrPermission):
		remedy = "run as root"
	case errors.Is(err, unix.ENOMEM):
		remedy = "nothing was changed: give lower limits"
	}
	return because(refused(what, why, remedy), err)
}

// bridgeFlags connects on/off settings with their bits.
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
	for word, number := range pfPortsNumbers {
		if number == c.PfPorts {
			b.PFPorts = word
		}
	}
	if datapath.BridgeFlags(c.Flags)&datapath.BridgeMAC != 0 {
		b.MAC = c.Address
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
	c.PfPorts = pfPortsNumbers[b.PFPorts]
	c.Flags &^= uint32(datapath.BridgeMAC)
	if b.MAC != [6]byte{} {
		c.Address = b.MAC
		c.Flags |= uint32(datapath.BridgeMAC)
	}
	b.storeSTP(c)
	for flag, field := range bridgeFlags(&b) {
		c.Flags &^= uint32(flag)
		if *field {
			c.Flags |= uint32(flag)
		}
	}
}
