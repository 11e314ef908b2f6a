// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hasDevice reports whether a port's device exists. A port that is being added has one.
func (c *draft) hasDevice(p *datapath.Port) bool {
	return datapath.PortAt(&c.bridge.Config, p.Id) == nil || c.bridge.HasDevice(p)
}

// settle prepares a port's device immediately before the change. Immediately after the change, it
// announces the address of a host port.
func (c *draft) settle(p *datapath.Port) {
	id := p.Id
	if slices.Contains(c.settles, id) {
		return
	}
	c.settles = append(c.settles, id)
	c.after = append(c.after, func() error {
		p := datapath.PortAt(&c.bridge.Config, id)
		if p == nil {
			return nil // it has been removed again
		}
		c.warn(waysWarning(c.bridge, p)...)
		return announce(c.bridge, p)
	})
}

// ready prepares the devices of the ports in settles.
func (c *draft) ready() error {
	for _, id := range c.settles {
		p := datapath.PortAt(c.next, id)
		if p == nil {
			continue // it has been removed again
		}
		was := datapath.PortAt(&c.bridge.Config, id)
		there := c.hasDevice
		if was == nil { // Intend has recorded it
			there = c.bridge.Intended
		}
		notes, err := makeReady(p, there)
		c.warn(notes...)
		if was == nil && p.Facts&datapath.PortPatch == 0 && !there(p) {
			return &datapath.PortError{Port: datapath.PortName(p), Hook: HookTCX, Err: unix.ENODEV}
		}
		if errors.Is(err, errNoWay) && was != nil && was.Notes&datapath.PortXDP != 0 {
			continue // the end was prepared earlier, for the port's present programs
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newDevice finds the device of a port to be added, and checks that it can be a port. It returns
// nil for a host port, whose device does not exist yet. typ may be TypeSpan. With force, the device
// may be in a stack of devices, where devices above a port get no frames.
func newDevice(c *draft, what, bridge, port, typ string, force bool) (netlink.Link, error) {
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
			owner, host, err := ownerOf(c, l, bridge)
			if err != nil {
				return nil, failed(what, err)
			}
			if host == port {
				return nil, endRefused(what, l, host, owner)
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
	case owner != "" && c.isSpan(l, owner, bridge):
		return nil, refused(what, "it is a span port of bridge "+owner, fmt.Sprintf("delete it there first with 'bascule span del %s %s'", owner, port))
	case owner == bridge && typ == TypeNetdev:
		return nil, refused(what, "it is a port of bridge "+owner+" already", fmt.Sprintf("change it with 'bascule port set %s %s'", owner, port))
	case owner != "":
		return nil, refused(what, "it is a port of bridge "+owner, fmt.Sprintf("delete it there first with 'bascule port del %s %s'", owner, port))
	}
	stranger, err := c.bridge.Store().Stranger(l.Attrs().Index)
	switch {
	case err != nil:
		return nil, failed(what, err)
	case stranger:
		return nil, refused(what, "it is a port of a bridge that is not in this "+datapath.Root, "give it up there first, or run bascule with the mounts of that bridge")
	}
	if isOwnEnd(l) && !c.joins { // the end of a bridge that can't be read
		return nil, refused(what, "it is an end of a host port", joinBridges)
	}
	for _, p := range datapath.Ports(&c.bridge.Config) {
		// Its former settings have not been restored yet.
		if int(p.Ifindex) == l.Attrs().Index && datapath.PortAt(c.next, p.Id) == nil && c.bridge.HasDevice(p) {
			return nil, refused(what, "it leaves the bridge in the same step", "let it leave first")
		}
	}
	if why, remedy := usable(l); why != "" {
		return nil, refused(what, why, remedy)
	}
	return l, c.checkStack(what, bridge, l, force || c.force)
}

// checkStack refuses a device that has others above it, or is above a port's device, because
// devices above a port receive nothing. With force it warns instead.
func (c *draft) checkStack(what, bridge string, l netlink.Link, force bool) error {
	around, err := c.around()
	if err != nil {
		return failed(what, err)
	}
	above := around.above(l)
	lower, owner := around.below(l, func(index int) string {
		l := around.devices[index]
		owner, _, err := ownerOf(c, l, bridge)
		if err != nil || owner == "" || isOwnEnd(l) && !isSwitchEnd(l) {
			return ""
		}
		if c.isSpan(l, owner, bridge) {
			return "a span port of " + owner
		}
		return "a port of " + owner
	})
	switch {
	case force:
		for _, other := range above {
			c.warn(aboveWarning(l, other))
		}
		if lower != nil {
			c.warn(belowWarning(l, lower, owner))
		}
	case len(above) > 0:
		return refused(what, aboveWords(above), insteadOf(above[0])+", or give --force")
	case lower != nil:
		return refused(what, belowWords(lower, owner), joinAbove+", or give --force")
	}
	return nil
}

// around returns the present state of the namespace, for the plan.
func (c *draft) around() (*around, error) {
	if c.world.around == nil {
		devices, err := links()
		if err != nil {
			return nil, err
		}
		c.world.around = &around{store: c.bridge.Store(), devices: devices, one: true}
	}
	return c.world.around, nil
}

// filterWarnings returns warnings about a device's filters, which see nothing once it is a port.
func (w *world) filterWarnings(l netlink.Link) (warnings []string) {
	if w.around == nil {
		w.around = &around{one: true}
	}
	for _, what := range w.around.filters(l) {
		warnings = append(warnings, filterWarning(l.Attrs().Name, what))
	}
	return warnings
}

// isSpan reports whether the device is a span port of the bridge owner. bridge is the name of c's
// bridge.
func (c *draft) isSpan(l netlink.Link, owner, bridge string) bool {
	index := uint32(l.Attrs().Index)
	if owner == bridge {
		return slices.ContainsFunc(datapath.Ports(c.next), func(p *datapath.Port) bool {
			return p.Ifindex == index && p.Facts&datapath.PortSpan != 0
		})
	}
	others, err := c.portsElsewhere(bridge)
	if err != nil {
		return false
	}
	for _, o := range others[index] {
		if o.name == owner {
			return o.port.Facts&datapath.PortSpan != 0
		}
	}
	return false
}

// ownerOf returns the bridge that has the device as a port, or "" if none has it. If the device is
// one of the two ends of a host port, host is the name of that port.
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
	others, err := c.portsElsewhere(bridge)
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

// endRefused refuses to make an end of a host port a port.
func endRefused(what string, l netlink.Link, host, owner string) error {
	why := fmt.Sprintf("it is host port %s of bridge %s", host, owner)
	if isSwitchEnd(l) {
		why = fmt.Sprintf("it is the switch's end of host port %s of bridge %s", host, owner)
	}
	return refused(what, why, joinBridges)
}

// joinBridges is the remedy for a host port that should join two bridges.
const joinBridges = "join bridges with a patch cable ('--type patch --peer'), or with a veth pair of your own"

// A world caches the surroundings of a change, so that the change reads them once for any number of
// ports.
type world struct {
	mtus   map[uint32]int         // of ports' devices by index, 0 for a device that is gone
	owners map[uint32][]otherPort // of other bridges, by the index of the device

	addresses map[int][]deviceAddress // by the index of the device
	around    *around                 // nil until needed
	lost      []*datapath.Bridge      // bridges that have ports without devices, nil until needed
}

// otherPort is a port of another bridge.
type otherPort struct {
	name   string // of the bridge
	bridge *datapath.Bridge
	port   *datapath.Port
}

// portsElsewhere returns the ports of other bridges, except for the one that will have left its
// bridge.
func (c *draft) portsElsewhere(bridge string) (map[uint32][]otherPort, error) {
	if c.world.owners != nil {
		return c.world.owners, nil
	}
	store := c.bridge.Store()
	names, err := store.Names()
	if err != nil {
		return nil, err
	}
	list := map[uint32][]otherPort{}
	names = slices.DeleteFunc(names, func(name string) bool { return name == bridge })
	err = eachOpen(store, names, func(name string, b *datapath.Bridge) error {
		var whose map[uint32]*Owner
		if c.leaves != "" {
			if whose, err = owners(b); err != nil {
				return err
			}
		}
		for _, p := range datapath.Ports(&b.Config) {
			if o := whose[p.Id]; o == nil || o.ID != c.leaves {
				list[p.Ifindex] = append(list[p.Ifindex], otherPort{name, b, p})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c.world.owners = list
	return list, nil
}

// setDevice assigns a device to p.
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
			c.warn(fmt.Sprintf("%s: it is a new port in place of port %s, which was gone: the settings, VLANs, rules, bindings and static addresses of that are not kept",
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

// formerly returns the port that a device was before it was moved to another network namespace,
// with the device's settings that the switch changed, and the bridge of that port, or nil if there
// is none.
func (w *world) formerly(b *datapath.Bridge, l netlink.Link) (p *datapath.Port, of *datapath.Bridge, err error) {
	if !datapath.Programmed(uint32(l.Attrs().Index)) {
		return nil, nil, nil
	}
	if p := portBack(b, l); p != nil {
		return p, b, nil
	}
	if l.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		return nil, nil, nil // the switch makes all ports promiscuous
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
			continue // it has another version's layout, or is being deleted
		}
		if slices.ContainsFunc(formerPorts(o), func(p *datapath.Port) bool { return p.Facts&datapath.PortPatch == 0 && !o.HasDevice(p) }) {
			list = append(list, o)
		}
	}
	return list, nil
}

// takeOver unties devices of a bridge's ports from other bridges. The devices were ports of those
// bridges before they were moved to another network namespace and back.
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

// formerPorts returns the ports of a bridge, and its berths whose device has gone.
func formerPorts(b *datapath.Bridge) []*datapath.Port {
	return append(datapath.Ports(&b.Config), b.Departed()...)
}

// portBack returns the port of a bridge that a device was before it was moved to another network
// namespace, or nil if there is none.
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

// cableWarning warns of a cable whose other end is a port of the same bridge. Frames flooded to one
// end enter by the other; only spanning tree ends such a loop.
func cableWarning(c *datapath.Config, bridge string, l netlink.Link) []string {
	a := l.Attrs()
	if l.Type() != "veth" || a.NetNsID >= 0 || datapath.BridgeFlags(c.Flags)&datapath.BridgeSTP != 0 {
		return nil
	}
	for _, p := range datapath.Ports(c) {
		if p.Ifindex == uint32(a.ParentIndex) && p.Facts&datapath.PortSpan == 0 {
			return []string{fmt.Sprintf("%s is the other end of %s, which is a port of %s too: floods may go round and round; "+
				"take one of the two out, or turn on spanning tree", a.Name, datapath.PortName(p), bridge)}
		}
	}
	return nil
}

// mtuWarning warns of ports that can't forward all frames that others accept.
func (w *world) mtuWarning(c *datapath.Config, p *datapath.Port, l netlink.Link) []string {
	told := w.mtuTold(c, p, l.Attrs().Name, l.Attrs().MTU)
	w.mtus[uint32(l.Attrs().Index)] = l.Attrs().MTU
	return told
}

// mtuTold does the same as mtuWarning for a port that will have an MTU.
func (w *world) mtuTold(c *datapath.Config, p *datapath.Port, name string, mtu int) (told []string) {
	if text := mtuWords(name, mtu, w.mtusOf(c, func(o *datapath.Port) bool { return o.Id != p.Id })); text != "" {
		told = append(told, text)
	}
	host := p.Notes&datapath.PortHost != 0 || p.Ifindex == 0 // a new one has no device yet
	if host && mtu < IPv6MTU {
		told = append(told, fmt.Sprintf("%s has MTU %d, and no IPv6: that takes %d", name, mtu, IPv6MTU))
	}
	return told
}

// mtuWords describes a port's MTU in relation to others; "" if all are the same.
func mtuWords(name string, mtu int, others []int) string {
	if len(others) == 0 {
		return ""
	}
	lo, hi := slices.Min(others), slices.Max(others)
	switch {
	case hi > mtu:
		return smallerWarning(name, mtu, hi)
	case lo < mtu:
		return fmt.Sprintf("%s has MTU %d, other ports down to %d: larger frames from %s to those will be dropped (reason mtu)", name, mtu, lo, name)
	}
	return ""
}

// mtusOf returns the MTUs of the devices of ports for which meant returns true.
func (w *world) mtusOf(c *datapath.Config, meant func(*datapath.Port) bool) (list []int) {
	if w.mtus == nil {
		w.mtus = map[uint32]int{}
	}
	var unknown []uint32
	ports := slices.DeleteFunc(datapath.Ports(c), func(p *datapath.Port) bool { return !meant(p) })
	for _, p := range ports {
		if _, ok := w.mtus[fitsIndex(p)]; !ok {
			unknown = append(unknown, fitsIndex(p))
		}
	}
	for i, mtu := range mtus(unknown) {
		w.mtus[unknown[i]] = mtu
	}
	for _, p := range ports {
		if mtu := w.mtus[fitsIndex(p)]; mtu != 0 {
			list = append(list, mtu)
		}
	}
	return list
}

// isDevice reports whether the network namespace has an interface with the name.
func isDevice(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}
