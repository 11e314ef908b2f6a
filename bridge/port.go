// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The types of ports, and the hooks.
const (
	TypeNetdev = "netdev"
	TypeHost   = "host"
	TypeSpan   = "span" // see AddSpan
	TypePatch  = "patch"

	HookAuto = "auto"
	HookTCX  = datapath.HookTCX
	HookXDP  = datapath.HookXDP
)

// Types are what AddPort makes, and Hooks what it can be told of where the program
// sits, the default first.
var (
	Types = []string{TypeNetdev, TypeHost, TypePatch}
	Hooks = []string{HookAuto, HookTCX, HookXDP}
)

// OneOf names the words in a sentence: "auto, tcx or xdp".
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// AddPort adds a device to a bridge, or makes a host port, or a patch cable: a
// port of this bridge and its other end, o.Peer. The warnings are things that
// work but may not be meant.
func (s *Switch) AddPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	return s.AddPorts(bridge, []string{port}, o)
}

// AddPorts is AddPort for several ports with the same options, in one change: all of
// them are added, or none. A cable is made by itself.
func (s *Switch) AddPorts(bridge string, ports []string, o PortOptions) (warnings []string, err error) {
	if o.Type == TypePatch {
		if len(ports) > 1 {
			return nil, usagef("--type patch", "a cable has one end here; make each by itself")
		}
		return s.addPatch(bridge, ports[0], o)
	}
	all := step{"add ports " + strings.Join(ports, ", ") + " to " + bridge, bridge, func(*draft) error { return nil }}
	for i, port := range ports {
		st, err := addPort(bridge, port, o)
		if err != nil {
			return nil, err
		}
		if slices.Contains(ports[:i], port) {
			return nil, refused(st.what, "it is named twice", "name each port once")
		}
		before := all.plan
		all.plan = func(c *draft) error {
			if err := before(c); err != nil {
				return err
			}
			gone := slices.ContainsFunc(datapath.Ports(c.next), func(p *datapath.Port) bool { return !c.hasDevice(p) && datapath.PortName(p) == port })
			if gone {
				c.warn(port + ": the port of this name was gone, and is a new one now: what was told of it (settings, VLANs, rules, bindings, static addresses) is not kept")
			}
			return st.plan(c)
		}
		if len(ports) == 1 {
			all.what = st.what
		}
	}
	return s.one(all, nil)
}

// newPortConfig checks what AddPort is asked for, and returns the settings of
// the new port; what is for errors.
func newPortConfig(what, port string, o *PortOptions) (config PortConfig, err error) {
	if err := checkName("port", port); err != nil {
		return config, err
	}
	o.Type, o.Hook = cmp.Or(o.Type, TypeNetdev), cmp.Or(o.Hook, HookAuto)
	if !slices.Contains(Types, o.Type) {
		return config, usagef("--type "+o.Type, "no such type; give %s", OneOf(Types))
	}
	if o.Peer != "" && o.Type != TypePatch {
		return config, usagef("--peer "+o.Peer, "only patch ports have one; give --type patch, too")
	}
	if err := checkHook(o.Hook); err != nil {
		return config, err
	}
	if config, err = configure(PortSettings, Defaults(PortSettings), o.Changes); err != nil {
		return config, err
	}
	if o.Type == TypePatch && config.Backup != "" {
		return config, noCarrier(what)
	}
	return config, config.check(what)
}

func noCarrier(what string) error {
	return refused(what, "a patch port has no carrier to lose, and no backup", "leave --backup out")
}

// addPort adds a port that is no patch port.
func addPort(bridge, port string, o PortOptions) (step, error) {
	what := "add port " + port + " to " + bridge
	config, err := newPortConfig(what, port, &o)
	if err != nil {
		return step{}, err
	}
	if o.Type == TypePatch {
		return step{}, usagef("--type patch", "a cable is a change to two bridges; make it by itself")
	}
	return step{what, bridge, func(c *draft) error {
		device, err := newDevice(c, what, bridge, port, o.Type)
		if err != nil {
			return err
		}
		if err := c.makeWay(what, port); err != nil {
			return err
		}
		p, err := c.newPort(what, port)
		if err != nil {
			return err
		}
		config.store(p)
		c.planBackup(what, bridge, p, config.Backup)
		c.settle(p)
		if o.Type != TypeHost {
			c.after = append(c.after, func() error {
				c.warn(warnNoAgent(c.bridge, stpWaits)...)
				return nil
			})
		}
		if o.Hook == HookAuto {
			c.auto = append(c.auto, p.Id)
		}
		if o.Type == TypeNetdev {
			c.warn(c.world.mtuWarning(c.next, p, device)...)
			c.warn(c.world.addressWarning(bridge, hostPortOf(c.next), device)...)
			return c.setDevice(what, p, device, o.Hook)
		}
		id := p.Id
		c.before = append(c.before, func() error {
			p := datapath.PortAt(c.next, id)
			if p == nil {
				return nil // it has left again
			}
			device, err := addHost(bridge, port)
			if err != nil {
				return err
			}
			c.undo = append(c.undo, func() error {
				err := netlink.LinkDel(device)
				if errors.Is(err, unix.ENODEV) {
					return nil // the port was on its way, and has given it back
				}
				return err
			})
			if err := setHost(p, device); err != nil {
				return err
			}
			return c.setDevice(what, p, device, o.Hook)
		})
		return nil
	}}, nil
}

// makeWay removes the port whose place a new one of the same name takes: it has
// lost its device.
func (c *draft) makeWay(what, name string) error {
	for _, p := range datapath.Ports(c.next) {
		if datapath.PortName(p) != name || c.hasDevice(p) {
			continue
		}
		if err := c.removePort(what, p); err != nil {
			return err
		}
	}
	return nil
}

// holderOf returns the port of next, which comes after the bridge's configuration,
// that is known by a name, nil for none. One that was added by the name, and whose
// device was renamed since, holds the name no longer: it gets that of its device,
// lest it comes back to the other when the device goes.
func holderOf(b *datapath.Bridge, next *datapath.Config, name string) (*datapath.Port, error) {
	var devices map[int]netlink.Link
	for _, p := range datapath.Ports(next) {
		if datapath.PortName(p) != name {
			continue
		}
		if datapath.PortAt(&b.Config, p.Id) == nil || p.Ifindex == 0 {
			return p, nil // it is being added, or has no device
		}
		if devices == nil {
			var err error
			if devices, err = links(); err != nil {
				return nil, err
			}
		}
		now := portName(b, p, devices)
		if now == name {
			return p, nil
		}
		datapath.Rename(p, now)
	}
	return nil, nil
}

// newPort gives a new port a slot.
func (c *draft) newPort(what, name string) (*datapath.Port, error) {
	if _, err := holderOf(c.bridge, c.next, name); err != nil {
		return nil, failed(what, err)
	}
	p := datapath.NewPortBeside(c.next, &c.bridge.Config, name)
	if p == nil {
		return nil, refused(what, fmt.Sprintf("it has %d ports, and no bridge can have more", datapath.MaxPorts), "make another bridge")
	}
	for _, id := range c.widowed[name] {
		if of := datapath.PortAt(c.next, id); of != nil && of.Backup == 0 {
			of.Backup = p.Id
		}
	}
	return p, nil
}

// planBackup makes the port of a name p's backup, when all that is planned is
// known: it may be added later in the same change.
func (c *draft) planBackup(what, bridge string, p *datapath.Port, name string) {
	id := p.Id
	if name == "" {
		p.Backup = 0
		return
	}
	c.late = append(c.late, func() error {
		p := datapath.PortAt(c.next, id)
		if p == nil {
			return nil // it has left again
		}
		backup, _, err := findPort(c, what, bridge, name)
		switch {
		case err != nil:
			return err
		case backup.Id == p.Id:
			return refused(what, "a port cannot stand in for itself", "give another port, or --backup none")
		case backup.Facts&datapath.PortSpan != 0:
			return refused(what, name+" is a span port, which takes copies alone", "give another port, or --backup none")
		case p.Facts&datapath.PortPatch != 0:
			return noCarrier(what)
		}
		p.Backup = backup.Id
		return nil
	})
}

// widow takes a port that leaves away from those that it stands in for; one that
// is added under its name in the same change takes its place.
func (c *draft) widow(p *datapath.Port) {
	for _, of := range datapath.Ports(c.next) {
		if of.Backup != p.Id {
			continue
		}
		of.Backup = 0
		if c.widowed == nil {
			c.widowed = map[string][]uint32{}
		}
		name := datapath.PortName(p)
		c.widowed[name] = append(c.widowed[name], of.Id)
	}
}

// hasDevice reports whether a port's device is there; that of a port that is
// being added is.
func (c *draft) hasDevice(p *datapath.Port) bool {
	return datapath.PortAt(&c.bridge.Config, p.Id) == nil || c.bridge.HasDevice(p)
}

// settle has a port's device readied right before the change is made, and the address
// of a host port made known right after.
func (c *draft) settle(p *datapath.Port) {
	id := p.Id
	if slices.Contains(c.settles, id) {
		return
	}
	c.settles = append(c.settles, id)
	c.after = append(c.after, func() error {
		p := datapath.PortAt(&c.bridge.Config, id)
		if p == nil {
			return nil // it has left again
		}
		return announce(c.bridge, p)
	})
}

// ready readies the devices of the ports that are to be settled.
func (c *draft) ready() error {
	for _, id := range c.settles {
		p := datapath.PortAt(c.next, id)
		if p == nil {
			continue // it has left again
		}
		was := datapath.PortAt(&c.bridge.Config, id)
		there := c.hasDevice
		if was == nil { // Intend has been told of it
			there = c.bridge.Intended
		}
		notes, err := makeReady(p, there)
		c.warn(notes...)
		if was == nil && p.Facts&datapath.PortPatch == 0 && !there(p) {
			return fmt.Errorf("device %s: %w", datapath.PortName(p), unix.ENODEV)
		}
		if errors.Is(err, errNoWay) && was != nil && was.Notes&datapath.PortXDP != 0 {
			continue // the end was readied before the port's programs
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newDevice finds the device of a port to be added and checks that it can be
// one; nil for a host port, whose device is yet to be made.
func newDevice(c *draft, what, bridge, port, typ string) (netlink.Link, error) {
	for _, p := range datapath.Ports(c.next) {
		if p.Facts&datapath.PortPatch != 0 && datapath.PortName(p) == port {
			return nil, refused(what, "a patch port of this name is in the bridge", "delete that port first, or give the device another name")
		}
	}
	l, err := netlink.LinkByName(port)
	missing := errors.As(err, new(netlink.LinkNotFoundError))
	if err != nil && !missing {
		return nil, failed(what, err)
	}
	if typ == TypeHost {
		if !missing {
			for _, p := range datapath.Ports(c.next) {
				if isHostEnd(l, p) && c.hasDevice(p) {
					return nil, refused(what, port+" is a port of "+bridge+" already", "change it with 'bascule port set "+bridge+" "+port+"'")
				}
			}
			return nil, refused(what, "an interface of this name exists", "give the host port another name")
		}
		holder, err := holderOf(c.bridge, c.next, port)
		switch {
		case err != nil:
			return nil, failed(what, err)
		case holder != nil && c.hasDevice(holder):
			return nil, refused(what, "a port of this name is in the bridge", "delete that port first")
		}
		return nil, nil
	}
	if missing {
		return nil, refused(what, "there is no such interface in this network namespace", "see 'ip link', or name the namespace with -n")
	}
	owner, host, err := ownerOf(c, l, bridge)
	if err != nil {
		return nil, failed(what, err)
	}
	switch {
	case host != "" && c.joins && owner != bridge && !isSwitchEnd(l):
	case host != "":
		return nil, endRefused(what, l, host, owner)
	case owner != "":
		return nil, refused(what, "it is a port of bridge "+owner, fmt.Sprintf("delete it there first with 'bascule port del %s %s'", owner, port))
	}
	if isOwnEnd(l) && !c.joins { // of a bridge that can't be read
		return nil, refused(what, "it is an end of a host port", joinBridges)
	}
	for _, p := range datapath.Ports(&c.bridge.Config) {
		// what it took is not given back yet
		if int(p.Ifindex) == l.Attrs().Index && datapath.PortAt(c.next, p.Id) == nil && c.bridge.HasDevice(p) {
			return nil, refused(what, "it leaves the bridge in the same step", "let it leave first")
		}
	}
	if why, remedy := usable(l); why != "" {
		return nil, refused(what, why, remedy)
	}
	return l, nil
}

// ownerOf returns the bridge of ours that has the device as a port, "" if none,
// and, where the device is one of the two ends of a host port, the name of that.
func ownerOf(c *draft, l netlink.Link, bridge string) (owner, host string, err error) {
	own, far := uint32(l.Attrs().Index), uint32(0)
	if l.Type() == "veth" && hostHere(l) {
		far = uint32(l.Attrs().ParentIndex)
	}
	is := func(p *datapath.Port) bool { return p.Ifindex == own || isHostEnd(l, p) }
	found := func(bridge string, p *datapath.Port) (string, string, error) {
		if p.Notes&datapath.PortHost == 0 {
			return bridge, "", nil
		}
		return bridge, hostName(p), nil
	}
	for _, p := range datapath.Ports(c.next) {
		if is(p) && c.hasDevice(p) {
			return found(bridge, p)
		}
	}
	others, err := c.world.others(c.bridge.Store(), bridge)
	if err != nil {
		return "", "", err
	}
	for _, o := range slices.Concat(others[own], others[far]) {
		if is(o.port) && o.bridge.HasDevice(o.port) {
			return found(o.name, o.port)
		}
	}
	return "", "", nil
}

// endRefused refuses one of the two ends of a host port as a port.
func endRefused(what string, l netlink.Link, host, owner string) error {
	why := fmt.Sprintf("it is host port %s of bridge %s", host, owner)
	if isSwitchEnd(l) {
		why = fmt.Sprintf("it is the switch's end of host port %s of bridge %s", host, owner)
	}
	return refused(what, why, joinBridges)
}

// joinBridges is the remedy where a host port was to join two bridges.
const joinBridges = "join bridges by a patch cable ('--type patch --peer'), or by a veth pair of your own"

// A world has the facts of all that is not the change's own, so that a change
// looks once however many ports it is about.
type world struct {
	mtus   map[uint32]int         // of ports' devices by index, 0 of one that is gone
	owners map[uint32][]otherPort // of other bridges, by the index of the device

	addresses map[int][]string   // by the index of the device
	lost      []*datapath.Bridge // that have ports without devices, nil until they are looked for
}

// otherPort is a port of another bridge.
type otherPort struct {
	name   string // of the bridge
	bridge *datapath.Bridge
	port   *datapath.Port
}

func (w *world) others(store *datapath.Store, bridge string) (map[uint32][]otherPort, error) {
	if w.owners != nil {
		return w.owners, nil
	}
	names, err := store.Names()
	if err != nil {
		return nil, err
	}
	owners := map[uint32][]otherPort{}
	names = slices.DeleteFunc(names, func(name string) bool { return name == bridge })
	err = eachOpen(store, names, func(name string, b *datapath.Bridge) error {
		for _, p := range datapath.Ports(&b.Config) {
			owners[p.Ifindex] = append(owners[p.Ifindex], otherPort{name, b, p})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.owners = owners
	return owners, nil
}

// setDevice makes p the port of a device.
func (c *draft) setDevice(what string, p *datapath.Port, l netlink.Link, hook string) error {
	a := l.Attrs()
	p.Ifindex = uint32(a.Index)
	p.Peer = peerOutside(l)
	setBits(&p.Notes, datapath.PortXDP, wantsXDP(hook, l))
	setBits(&p.Taken, datapath.PortWasPromisc, a.RawFlags&unix.IFF_PROMISC != 0)
	was, of, err := c.world.formerly(c.bridge, l)
	if err != nil {
		return failed(what, err)
	}
	if was != nil {
		setBits(&p.Taken, datapath.PortWasPromisc, was.Taken&datapath.PortWasPromisc != 0)
		setBits(&p.Taken, was.Taken&givenBack, true)
		c.before = append(c.before, func() error { return of.DropXDP(was) })
	}
	if of == c.bridge {
		if former := datapath.PortAt(c.next, was.Id); former != nil { // it had another name
			c.warn(fmt.Sprintf("%s: it was port %s, which was gone, and is a new one now: what was told of that (settings, VLANs, rules, bindings, static addresses) is not kept",
				a.Name, datapath.PortName(former)))
			if err := c.removePort(what, former); err != nil {
				return err
			}
		}
	} else if of != nil {
		c.after = append(c.after, func() error { return takeOver(c.bridge) })
	}
	notes, err := inspect(p, l)
	c.warn(notes...)
	return failed(what, err)
}

// formerly returns the port that a device was before it was moved to another network
// namespace, with what the switch took of it, and of which bridge: nil for none.
func (w *world) formerly(b *datapath.Bridge, l netlink.Link) (p *datapath.Port, of *datapath.Bridge, err error) {
	if p := portBack(b, l); p != nil {
		return p, b, nil
	}
	if l.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		return nil, nil, nil // which all ports are
	}
	if w.lost == nil {
		if w.lost, err = bereft(b); err != nil {
			return nil, nil, err
		}
	}
	for _, o := range w.lost {
		if p := portBack(o, l); p != nil {
			return p, o, nil
		}
	}
	return nil, nil, nil
}

// bereft returns the other bridges of the namespace that have ports without devices.
func bereft(b *datapath.Bridge) ([]*datapath.Bridge, error) {
	names, err := b.Store().Names()
	if err != nil {
		return nil, err
	}
	list := []*datapath.Bridge{}
	for _, name := range names {
		o, err := b.Store().Open(name)
		if err != nil || o.Is(b) {
			continue // it is another version's, or goes at this moment
		}
		if slices.ContainsFunc(formerPorts(o), func(p *datapath.Port) bool { return p.Facts&datapath.PortPatch == 0 && !o.HasDevice(p) }) {
			list = append(list, o)
		}
	}
	return list, nil
}

// takeOver ends what ties devices of a bridge's ports to other bridges, whose they
// were before they were moved to another network namespace and back.
func takeOver(b *datapath.Bridge) error {
	lost, err := bereft(b)
	if err != nil {
		return err
	}
	for _, o := range lost {
		for _, p := range formerPorts(o) {
			if p.Facts&datapath.PortPatch != 0 || o.HasDevice(p) {
				continue
			}
			_, back := o.Away(p)
			if back == 0 || !slices.ContainsFunc(datapath.Ports(&b.Config), func(own *datapath.Port) bool { return own.Ifindex == back && b.HasDevice(own) }) {
				continue
			}
			if err := o.Forsake(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// formerPorts returns the ports of a bridge, and the berths from which a device has
// gone.
func formerPorts(b *datapath.Bridge) []*datapath.Port {
	return append(datapath.Ports(&b.Config), b.Departed()...)
}

// portBack returns the port of a bridge that a device was before it was moved to
// another network namespace, nil for none.
func portBack(b *datapath.Bridge, l netlink.Link) *datapath.Port {
	for _, p := range formerPorts(b) {
		if p.Facts&datapath.PortPatch != 0 || b.HasDevice(p) {
			continue
		}
		if _, back := b.Away(p); int(back) == l.Attrs().Index {
			return p
		}
	}
	return nil
}

func checkHook(hook string) error {
	if slices.Contains(Hooks, hook) {
		return nil
	}
	return usagef("--hook "+hook, "no such hook; give %s", OneOf(Hooks))
}

// mtuWarning tells of ports that can't pass on all that others take.
func (w *world) mtuWarning(c *datapath.Config, p *datapath.Port, l netlink.Link) []string {
	list := w.mtusOf(c, func(o *datapath.Port) bool { return o.Id != p.Id })
	mtu := l.Attrs().MTU
	w.mtus[uint32(l.Attrs().Index)] = mtu
	name := l.Attrs().Name
	if len(list) == 0 {
		return nil
	}
	lo, hi := slices.Min(list), slices.Max(list)
	switch {
	case hi > mtu:
		return []string{fmt.Sprintf("%s has MTU %d, other ports up to %d: larger frames to %s will be dropped (reason mtu)", name, mtu, hi, name)}
	case lo < mtu:
		return []string{fmt.Sprintf("%s has MTU %d, other ports down to %d: larger frames from %s to those will be dropped (reason mtu)", name, mtu, lo, name)}
	}
	return nil
}

// mtusOf returns the MTUs of the devices of those ports that are meant.
func (w *world) mtusOf(c *datapath.Config, meant func(*datapath.Port) bool) (list []int) {
	if w.mtus == nil {
		w.mtus = map[uint32]int{}
	}
	var unknown []uint32
	ports := slices.DeleteFunc(datapath.Ports(c), func(p *datapath.Port) bool { return !meant(p) })
	for _, p := range ports {
		if _, ok := w.mtus[p.Ifindex]; !ok {
			unknown = append(unknown, p.Ifindex)
		}
	}
	for i, mtu := range mtus(unknown) {
		w.mtus[unknown[i]] = mtu
	}
	for _, p := range ports {
		if mtu := w.mtus[p.Ifindex]; mtu != 0 {
			list = append(list, mtu)
		}
	}
	return list
}

// SetPort changes a port's settings or its hook.
func (s *Switch) SetPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	return s.one(setPort(bridge, port, o))
}

func setPort(bridge, port string, o PortOptions) (step, error) {
	what := "set port " + port + " of " + bridge
	if o.Hook != "" {
		if err := checkHook(o.Hook); err != nil {
			return step{}, err
		}
	}
	return step{what, bridge, func(c *draft) error {
		p, l, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		if p.Facts&datapath.PortSpan != 0 {
			return refused(what, "it is a span port, which has no settings", fmt.Sprintf("delete it with 'bascule span del %s %s' and add it anew", bridge, port))
		}
		config, err := configure(PortSettings, loadPortConfig(p), o.Changes)
		if err != nil {
			return err
		}
		if err := config.check(what); err != nil {
			return err
		}
		noted := p.Flags&datapath.PortMAB != 0
		config.store(p)
		if slices.ContainsFunc(o.Changes, func(ch Change) bool { return ch.Name == backupSetting }) {
			c.planBackup(what, bridge, p, config.Backup)
		}
		if p.Facts&datapath.PortPatch != 0 && o.Hook != "" {
			return refused(what, "a patch port has no hook", "leave --hook out")
		}
		if l == nil && o.Hook != "" {
			return refused(what, "its device is gone", fmt.Sprintf("delete it with 'bascule port del %s %s'", bridge, port))
		}
		if l != nil {
			learnDevice(p, l)
		}
		if o.Hook != "" {
			setBits(&p.Notes, datapath.PortXDP, wantsXDP(o.Hook, l))
			if p.Notes&datapath.PortXDP == 0 {
				setBits(&p.Taken, givenBackWithXDP, false)
			}
			notes, err := inspect(p, l)
			c.warn(notes...)
			if err != nil {
				return failed(what, err)
			}
		}
		c.settle(p)
		id := p.Id
		c.after = append(c.after, func() error {
			p := datapath.PortAt(&c.bridge.Config, id)
			if p == nil {
				return nil // it has left again
			}
			// also where it is as it was
			if slices.ContainsFunc(o.Changes, func(ch Change) bool { return ch.Name == loopGuard }) {
				if err := c.bridge.Unblock(p); err != nil {
					return err
				}
			}
			if noted && p.Flags&datapath.PortMAB == 0 {
				if err := dropLocked(c.bridge, p); err != nil {
					return err
				}
			}
			notes, err := dropSurplus(c.bridge, p, port)
			c.warn(notes...)
			return err
		})
		return nil
	}}, nil
}

// DelPort takes a port out of its bridge, and its addresses with it. A host
// port's interface goes, too, and the other end of a patch cable.
func (s *Switch) DelPort(bridge, port string) (notes []string, err error) {
	del := delPort(bridge, port)
	return s.one(step{del.what, bridge, func(c *draft) error {
		p, _, err := findPort(c, del.what, bridge, port)
		if err != nil {
			return err
		}
		backs := func(of *datapath.Port) bool { return of.Backup == p.Id }
		if !slices.ContainsFunc(datapath.Ports(&c.bridge.Config), backs) {
			return del.plan(c)
		}
		v, err := viewOf(bridge, c.bridge)
		if err != nil {
			return failed(del.what, err)
		}
		// not part of del: who edits may give another backup
		for _, of := range v.ports {
			if backs(of) {
				c.warn("port " + v.names[of.Id] + " has no backup any more: that was " + port)
			}
		}
		return del.plan(c)
	}}, nil)
}

func delPort(bridge, port string) step {
	what := "delete port " + port + " of " + bridge
	return step{what, bridge, func(c *draft) error {
		p, _, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		if p.Facts&datapath.PortPatch != 0 {
			if err := c.cut(p); err != nil {
				return failed(what, err)
			}
		}
		return c.removePort(what, p)
	}}
}

// findPort finds a port by its device's name, or by the name that it was added
// by where that device is gone, or is a host port's in another namespace, or
// where it has none. The link is the port's device, nil if there is none.
func findPort(c *draft, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	return findPortIn(c.next, c.hasDevice, what, bridge, name)
}

// findRunning is findPort for who changes nothing.
func findRunning(b *datapath.Bridge, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	return findPortIn(&b.Config, b.HasDevice, what, bridge, name)
}

func findPortIn(c *datapath.Config, hasDevice func(*datapath.Port) bool, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, failed(what, err)
	}
	ports := datapath.Ports(c)
	if err == nil {
		for _, p := range ports {
			own, host := int(p.Ifindex) == l.Attrs().Index, isHostEnd(l, p)
			if !own && !host || !hasDevice(p) {
				continue
			}
			if own {
				return p, l, nil
			}
			device, err := netlink.LinkByIndex(int(p.Ifindex))
			return p, device, err
		}
	}
	for _, p := range ports {
		if datapath.PortName(p) != name {
			continue
		}
		if p.Ifindex == 0 || !hasDevice(p) { // a host port that is being added has none yet
			return p, nil, nil
		}
		if p.Notes&datapath.PortHost == 0 {
			continue
		}
		if device, err := netlink.LinkByIndex(int(p.Ifindex)); err != nil || !hostHere(device) {
			return p, device, err
		}
	}
	return nil, nil, refused(what, name+" is no port of this bridge", portRemedy(what, bridge, name))
}

// showWhat is what errors say of something of a bridge that is shown, "" for that of
// all bridges: the bridge says for itself then.
func showWhat(what, bridge string) string {
	if bridge == "" {
		return ""
	}
	return "show " + what + " of " + bridge
}

// Ports returns the ports of a bridge in the order in which they were added, or
// those of all bridges where the name is "".
func (s *Switch) Ports(bridge string) (list []Port, err error) {
	list = []Port{}
	err = s.each(showWhat("the ports", bridge), bridge, func(name string, b *datapath.Bridge) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		cables, err := v.cables()
		if err != nil {
			return err
		}
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p Port) bool { return p.Bridge == name })
		for _, p := range v.ports {
			port, err := v.port(p, cables)
			if err != nil {
				return err
			}
			stats, err := b.PortStats(p)
			if err != nil {
				return err
			}
			port.Stats = loadStats(&stats)
			if v.there(p) { // of others, what is left ages
				port.FDBCount = usage[datapath.Slot(p.Id)]
			}
			list = append(list, port)
		}
		return nil
	})
	return list, err
}

// port returns the facts of a port, except for its counters.
func (v *view) port(p *datapath.Port, cables *datapath.Cables) (Port, error) {
	state := STPState(v.states[datapath.Slot(p.Id)]).String()
	port := Port{
		Bridge: v.name, Name: v.names[p.Id], Type: TypeNetdev, Hook: HookTCX,
		Index: int(p.Ifindex), Flags: []string{}, State: "gone", Config: loadPortConfig(p),
	}
	port.Config.Backup = v.names[p.Backup]
	if p.Notes&datapath.PortHost != 0 {
		port.Type = TypeHost
	}
	if p.Facts&datapath.PortSpan != 0 {
		port.Type, port.Config = TypeSpan, PortConfig{FDBFull: FullFlood, Admit: AdmitAll, STPEdge: Auto, STPPointToPoint: Auto}
	}
	if p.Notes&datapath.PortXDP != 0 {
		port.Hook = HookXDP
	}
	if p.Facts&datapath.PortPatch != 0 {
		port.Type, port.Hook, port.Index, port.State = TypePatch, "", 0, "no-peer"
		if other, ok := cables.Other(p); ok {
			port.Peer, port.State = other.Bridge+"/"+other.Port, state
		} else if !cables.Half(p) {
			port.State = state // to a bridge of another version
		}
	}
	l := v.links[p.Id]
	if l == nil {
		return port, nil
	}
	a := l.Attrs()
	port.Index, port.Flags, port.MTU, port.TakenBy = a.Index, flagList(a.RawFlags), a.MTU, v.taken[p.Id]
	if port.State = "disabled"; v.mute[p.Id] {
		port.NoCarrier = NoCarrierEnded
		if v.b.Store().DevicesHeld() {
			port.NoCarrier = NoCarrierAgent
		}
	}
	if a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0 {
		blocked, err := v.b.Blocked(p)
		if err != nil {
			return port, err
		}
		if port.State = state; blocked {
			port.State = "blocked"
		}
	}
	return port, nil
}

// inOrder returns the ports in the order in which they were added.
func inOrder(c *datapath.Config) []*datapath.Port {
	ports := datapath.Ports(c)
	slices.SortFunc(ports, func(a, b *datapath.Port) int {
		return cmp.Compare(datapath.Incarnation(a.Id), datapath.Incarnation(b.Id))
	})
	return ports
}

// shownDevice returns the device that stands for a port: the host's end of a
// host port, the port's own otherwise; nil if it is gone.
func shownDevice(b *datapath.Bridge, p *datapath.Port, devices map[int]netlink.Link) netlink.Link {
	l := devices[int(p.Ifindex)]
	if l == nil || !b.HasDevice(p) {
		return nil
	}
	if p.Notes&datapath.PortHost != 0 && hostHere(l) {
		if host := devices[l.Attrs().ParentIndex]; host != nil {
			return host
		}
	}
	return l
}

// portName returns the name of the port's device, or the one that it was added
// by if it is gone.
func portName(b *datapath.Bridge, p *datapath.Port, devices map[int]netlink.Link) string {
	return nameBy(shownDevice(b, p, devices), p)
}

// nameBy returns the name of a port that the device l stands for, nil if it is
// gone.
func nameBy(l netlink.Link, p *datapath.Port) string {
	if l == nil || p.Notes&datapath.PortHost != 0 && l.Attrs().Index == int(p.Ifindex) {
		return datapath.PortName(p)
	}
	return l.Attrs().Name
}

// setBits sets bits of a word, or clears them.
func setBits[W ~uint32](word *W, bits W, on bool) {
	*word &^= bits
	if on {
		*word |= bits
	}
}

// flagFields ties the settings that are switches to their bits.
func flagFields(c *PortConfig) map[datapath.PortFlags]*bool {
	return map[datapath.PortFlags]*bool{
		datapath.PortLearn:      &c.Learn,
		datapath.PortDiscover:   &c.Discover,
		datapath.PortMcastFlood: &c.MulticastFlood,
		datapath.PortBcastFlood: &c.BroadcastFlood,
		datapath.PortHairpin:    &c.Hairpin,
		datapath.PortLocked:     &c.Locked,
		datapath.PortMAB:        &c.MAB,
		datapath.PortBlockNonIP: &c.BlockNonIP,
		datapath.PortSrcGuard:   &c.SourceGuard,
		datapath.PortTrusted:    &c.Trusted,
		datapath.PortLoopGuard:  &c.LoopGuard.On,
	}
}

// check says whether the settings go together; what names their port in errors.
func (c PortConfig) check(what string) error {
	if c.Locked && c.Learn {
		return refused(what, "a locked port takes frames of known addresses alone, and a port that learns makes every address known",
			"switch learning off with --learn=off, or unlock it with --locked=off")
	}
	if c.MAB && !c.Locked {
		return refused(what, "mab is about addresses that a locked port does not let in, and the port would not be locked",
			"lock it with --locked=on, or switch mab off with --mab=off")
	}
	return nil
}

// admits ties the words for frame types to those of the datapath.
var admits = map[string]uint16{AdmitAll: datapath.AdmitAll, AdmitTagged: datapath.AdmitTagged, AdmitUntagged: datapath.AdmitUntagged}

// loadPortConfig returns a port's settings, but for its backup: that has a name
// among the ports of its bridge alone.
func loadPortConfig(p *datapath.Port) PortConfig {
	c := PortConfig{Protected: Domains(p.Domains), FDBMax: p.FdbMax, FDBFull: FullFlood, Admit: AdmitAll}
	for word, admit := range admits {
		if p.Admit == admit {
			c.Admit = word
		}
	}
	if p.Flags&datapath.PortLimitDrop != 0 {
		c.FDBFull = FullDrop
	}
	c.LoopGuard.Block = time.Duration(p.BlockTime) * time.Second
	for i, s := range p.Storm {
		c.Storm[i] = StormLimit{Rate: s.Rate, Kilobits: s.Kilobits != 0}
	}
	c.loadSTP(p)
	for flag, field := range flagFields(&c) {
		*field = p.Flags&flag != 0
	}
	return c
}

// store gives a port the settings, but for its backup; see planBackup.
func (c PortConfig) store(p *datapath.Port) {
	p.Domains, p.FdbMax, p.Admit = uint32(c.Protected), c.FDBMax, admits[c.Admit]
	setBits(&p.Flags, datapath.PortLimitDrop, c.FDBFull == FullDrop)
	p.BlockTime = uint32(c.LoopGuard.Block / time.Second)
	for i, l := range c.Storm {
		p.Storm[i].Rate, p.Storm[i].Kilobits = l.Rate, 0
		if l.Kilobits {
			p.Storm[i].Kilobits = 1
		}
	}
	c.storeSTP(p)
	for flag, field := range flagFields(&c) {
		setBits(&p.Flags, flag, *field)
	}
}

func loadStats(s *datapath.Stats) Stats {
	stats := Stats{
		RxFrames: s.RxFrames, RxBytes: s.RxBytes, TxFrames: s.TxFrames, TxBytes: s.TxBytes,
		Learned: s.Learned, Moves: s.Moves, Refused: s.Refused, Drops: map[string]uint64{},
	}
	for i, reason := range datapath.Reasons() {
		if s.Drops[i] != 0 {
			stats.Drops[reason] = s.Drops[i]
		}
	}
	return stats
}

// MaxPorts is how many ports a bridge can have, span ports among them.
const MaxPorts = datapath.MaxPorts

// MaxSpans is how many span ports a bridge can have.
const MaxSpans = datapath.MaxSpans

// portRemedy says what to do about a device that is no port of a bridge. Nobody
// makes it a port to delete or show something of it.
func portRemedy(what, bridge, name string) string {
	verb, _, _ := strings.Cut(what, " ")
	if verb == "delete" || verb == "show" || verb == "flush" || !isDevice(name) {
		return "see 'bascule port show " + bridge + "'"
	}
	return "see 'bascule port show " + bridge + "', or add it with 'bascule port add " + bridge + " " + name + "'"
}

// isDevice reports whether the network namespace has an interface of the name.
func isDevice(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}
