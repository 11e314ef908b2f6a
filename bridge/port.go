// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
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
	HookTCX  = "tcx"
	HookXDP  = "xdp"
)

// AddPort adds a device to a bridge, or makes a host port, or a patch cable: a
// port of this bridge and its other end, o.Peer. The warnings are things that
// work but may not be meant.
func (s *Switch) AddPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	what := "add port " + port + " to " + bridge
	if err := checkName("port", port); err != nil {
		return nil, err
	}
	o.Type, o.Hook = cmp.Or(o.Type, TypeNetdev), cmp.Or(o.Hook, HookAuto)
	if o.Type != TypeNetdev && o.Type != TypeHost && o.Type != TypePatch {
		return nil, usagef("--type "+o.Type, "no such type; give netdev, host or patch")
	}
	if o.Peer != "" && o.Type != TypePatch {
		return nil, usagef("--peer "+o.Peer, "only patch ports have one; give --type patch, too")
	}
	if err := checkHook(o.Hook); err != nil {
		return nil, err
	}
	config, err := configure(PortSettings, defaults(PortSettings), o.Changes)
	if err != nil {
		return nil, err
	}
	if err := config.check(what); err != nil {
		return nil, err
	}
	if o.Type == TypePatch {
		return s.addPatch(what, bridge, port, o, config)
	}
	add := func(hook string) error {
		warnings = nil
		return s.change(what, bridge, func(c *change) error {
			device, err := newDevice(c, what, bridge, port, o.Type)
			if err != nil {
				return err
			}
			for _, p := range datapath.Ports(c.next) {
				if datapath.PortName(p) == port && !c.bridge.HasDevice(p) {
					return errGone
				}
			}
			p := datapath.NewPort(c.next, port)
			if p == nil {
				return refused(what, fmt.Sprintf("it has %d ports, and no bridge can have more", datapath.MaxPorts), "make another bridge")
			}
			config.store(p)
			c.before = func() error {
				if o.Type == TypeHost {
					if device, err = addHost(bridge, port); err != nil {
						return err
					}
					c.undo = func() error { return netlink.LinkDel(device) }
					if err := setHost(p, port); err != nil {
						return err
					}
				} else {
					warnings = append(warnings, mtuWarning(c.next, p, device)...)
				}
				setDevice(p, device, hook)
				notes, err := inspect(p, device)
				warnings = append(warnings, notes...)
				return err
			}
			c.after = func() error {
				notes, err := settle(c.bridge, datapath.PortAt(&c.bridge.Config, p.Id))
				warnings = append(warnings, notes...)
				return err
			}
			return nil
		})
	}
	err = add(o.Hook)
	if errors.Is(err, errGone) {
		// the new device takes the place of one of the same name that is gone
		if err := s.DelPort(bridge, port); err != nil {
			return nil, err
		}
		err = add(o.Hook)
	}
	var refusal *datapath.PortError
	if o.Hook == HookAuto && errors.As(err, &refusal) && refusal.Hook == HookXDP {
		note := port + ": " + refusal.Err.Error() + "; it forwards by tcx alone"
		err = add(HookTCX)
		warnings = append(warnings, note)
	}
	if err != nil {
		return nil, err
	}
	return warnings, nil
}

// errGone says that a port of the name is there without its device.
var errGone = errors.New("a port of this name has lost its device")

// newDevice finds the device of a port to be added and checks that it can be
// one; nil for a host port, whose device is yet to be made.
func newDevice(c *change, what, bridge, port, typ string) (netlink.Link, error) {
	for _, p := range datapath.Ports(c.next) {
		if p.Flags&datapath.PortPatch != 0 && datapath.PortName(p) == port {
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
			return nil, refused(what, "an interface of this name exists", "give the host port another name")
		}
		for _, p := range datapath.Ports(c.next) {
			if datapath.PortName(p) == port && c.bridge.HasDevice(p) {
				return nil, refused(what, "a port of this name is in the bridge", "delete that port first")
			}
		}
		return nil, nil
	}
	if missing {
		return nil, refused(what, "there is no such interface in this network namespace", "see 'ip link', or name the namespace with -n")
	}
	owner, err := ownerOf(c, l, bridge)
	if err != nil {
		return nil, failed(what, err)
	}
	if owner != "" {
		return nil, refused(what, "it is a port of bridge "+owner, fmt.Sprintf("delete it there first with 'bascule port del %s %s'", owner, port))
	}
	if why, remedy := usable(l); why != "" {
		return nil, refused(what, why, remedy)
	}
	return l, nil
}

// ownerOf returns the bridge of ours that has the device as a port, "" if none.
// The host's end of a host port belongs to its bridge as far as that is
// concerned, which it would close to a loop; with others it can join it.
func ownerOf(c *change, l netlink.Link, bridge string) (string, error) {
	store := c.bridge.Store()
	names, err := store.Names()
	if err != nil {
		return "", err
	}
	index := uint32(l.Attrs().Index)
	for _, name := range names {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) {
			continue
		}
		if err != nil {
			return "", err
		}
		for _, p := range datapath.Ports(&b.Config) {
			if (p.Ifindex == index || name == bridge && isHostEnd(l, p)) && b.HasDevice(p) {
				return name, nil
			}
		}
	}
	return "", nil
}

// setDevice makes p the port of a device.
func setDevice(p *datapath.Port, l netlink.Link, hook string) {
	a := l.Attrs()
	p.Ifindex = uint32(a.Index)
	p.Peer = peerOutside(l)
	setFlag(p, datapath.PortXDP, wantsXDP(hook, l))
	setFlag(p, datapath.PortWasPromisc, a.RawFlags&unix.IFF_PROMISC != 0)
}

// wantsXDP decides what auto means. XDP makes a veth's peer give up its large
// packets and copies what a tap sends; so only hardware gets it unasked.
func wantsXDP(hook string, l netlink.Link) bool {
	return hook == HookXDP || hook == HookAuto && l.Type() == physical
}

func checkHook(hook string) error {
	switch hook {
	case HookAuto, HookTCX, HookXDP:
		return nil
	}
	return usagef("--hook "+hook, "no such hook; give auto, tcx or xdp")
}

// mtuWarning tells of ports that can't pass on all that others take.
func mtuWarning(c *datapath.Config, p *datapath.Port, l netlink.Link) []string {
	var others []uint32
	for _, o := range datapath.Ports(c) {
		if o.Id != p.Id {
			others = append(others, o.Ifindex)
		}
	}
	mtu := l.Attrs().MTU
	name := l.Attrs().Name
	list := mtus(others)
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

// SetPort changes a port's settings or its hook.
func (s *Switch) SetPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	what := "set port " + port + " of " + bridge
	if o.Hook != "" {
		if err := checkHook(o.Hook); err != nil {
			return nil, err
		}
	}
	err = s.change(what, bridge, func(c *change) error {
		p, l, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		if p.Flags&datapath.PortSpan != 0 {
			return refused(what, "it is a span port, which has no settings", fmt.Sprintf("delete it with 'bascule span del %s %s' and add it anew", bridge, port))
		}
		config, err := configure(PortSettings, loadPortConfig(p), o.Changes)
		if err != nil {
			return err
		}
		if err := config.check(what); err != nil {
			return err
		}
		config.store(p)
		if p.Flags&datapath.PortPatch != 0 && o.Hook != "" {
			return refused(what, "a patch port has no hook", "leave --hook out")
		}
		if l == nil && o.Hook != "" {
			return refused(what, "its device is gone", fmt.Sprintf("delete it with 'bascule port del %s %s'", bridge, port))
		}
		if l != nil {
			p.Peer, p.Host = peerOutside(l), hostAddress(p)
		}
		if o.Hook != "" {
			setFlag(p, datapath.PortXDP, wantsXDP(o.Hook, l))
			c.before = func() error {
				setFlag(p, givenBackWithXDP, p.Flags&givenBackWithXDP != 0 && p.Flags&datapath.PortXDP != 0)
				notes, err := inspect(p, l)
				warnings = append(warnings, notes...)
				return err
			}
		}
		c.after = func() error {
			notes, err := settle(c.bridge, datapath.PortAt(&c.bridge.Config, p.Id))
			warnings = append(warnings, notes...)
			if err != nil {
				return err
			}
			// also where it is as it was
			if slices.ContainsFunc(o.Changes, func(ch Change) bool { return ch.Name == loopGuard }) {
				if err := c.bridge.Unblock(p); err != nil {
					return err
				}
			}
			notes, err = dropSurplus(c.bridge, p, port)
			warnings = append(warnings, notes...)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return warnings, nil
}

// DelPort takes a port out of its bridge, and its addresses with it. A host
// port's interface goes, too, and the other end of a patch cable.
func (s *Switch) DelPort(bridge, port string) error {
	what := "delete port " + port + " of " + bridge
	return s.change(what, bridge, func(c *change) error {
		p, _, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		if p.Flags&datapath.PortPatch != 0 {
			if err := c.cut(p); err != nil {
				return failed(what, err)
			}
		}
		return c.removePort(what, p)
	})
}

// findPort finds a port by its device's name, or by the name that it was added
// by where that device is gone, or is a host port's in another namespace, or
// where it has none. The link is the port's device, nil if there is none.
func findPort(c *change, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, failed(what, err)
	}
	ports := datapath.Ports(c.next)
	if err == nil {
		for _, p := range ports {
			if !c.bridge.HasDevice(p) {
				continue
			}
			if int(p.Ifindex) == l.Attrs().Index {
				return p, l, nil
			}
			if isHostEnd(l, p) {
				device, err := netlink.LinkByIndex(int(p.Ifindex))
				return p, device, err
			}
		}
	}
	for _, p := range ports {
		if datapath.PortName(p) != name {
			continue
		}
		if !c.bridge.HasDevice(p) {
			return p, nil, nil
		}
		if p.Flags&datapath.PortHost != 0 && hostEnd(p) == nil {
			device, err := netlink.LinkByIndex(int(p.Ifindex))
			return p, device, err
		}
	}
	return nil, nil, refused(what, name+" is no port of this bridge", "see 'bascule port show "+bridge+"'")
}

// Ports returns the ports of a bridge in the order in which they were added, or
// those of all bridges where the name is "".
func (s *Switch) Ports(bridge string) (list []Port, err error) {
	list = []Port{}
	err = s.each(bridge, func(name string, b *datapath.Bridge) error {
		devices, err := links()
		if err != nil {
			return err
		}
		var cables *datapath.Cables
		if b.Patched() {
			if cables, err = b.Store().Cables(); err != nil {
				return err
			}
		}
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p Port) bool { return p.Bridge == name })
		for _, p := range inOrder(&b.Config) {
			stats, err := b.PortStats(p)
			if err != nil {
				return err
			}
			port := Port{
				Bridge: name, Name: portName(b, p, devices), Type: TypeNetdev, Hook: HookTCX,
				Index: int(p.Ifindex), Flags: []string{}, State: "gone",
				Config: loadPortConfig(p), FDBCount: usage[datapath.Slot(p.Id)], Stats: loadStats(&stats),
			}
			if p.Flags&datapath.PortHost != 0 {
				port.Type = TypeHost
			}
			if p.Flags&datapath.PortSpan != 0 {
				port.Type, port.Config = TypeSpan, PortConfig{FDBFull: FullFlood}
			}
			if p.Flags&datapath.PortXDP != 0 {
				port.Hook = HookXDP
			}
			if !b.There(p) {
				port.FDBCount = 0 // what is left of them ages
			}
			if p.Flags&datapath.PortPatch != 0 {
				port.Type, port.Hook, port.Index, port.State = TypePatch, "", 0, "no-peer"
				if other, ok := cables.Other(p); ok {
					port.Peer, port.State = other.Bridge+"/"+other.Port, "forwarding"
				} else if !cables.Half(p) {
					port.State = "forwarding" // to a bridge of another version
				}
			}
			if l := shownDevice(b, p, devices); l != nil {
				a := l.Attrs()
				port.Index, port.Flags, port.MTU = a.Index, flagList(a.RawFlags), a.MTU
				port.State = "disabled"
				if a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0 {
					blocked, err := b.Blocked(p)
					if err != nil {
						return err
					}
					if port.State = "forwarding"; blocked {
						port.State = "blocked"
					}
				}
			}
			list = append(list, port)
		}
		return nil
	})
	return list, err
}

// portNames returns the names of a bridge's ports by id; the one that is asked
// for must be among them, "" asks for none.
func portNames(b *datapath.Bridge, what, bridge, port string) (map[uint32]string, error) {
	devices, err := links()
	if err != nil {
		return nil, err
	}
	names, known := map[uint32]string{}, port == ""
	for _, p := range datapath.Ports(&b.Config) {
		names[p.Id] = portName(b, p, devices)
		known = known || names[p.Id] == port
	}
	if !known {
		return nil, refused(what, port+" is no port of this bridge", "see 'bascule port show "+bridge+"'")
	}
	return names, nil
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
	if host := devices[int(p.HostIfindex)]; host != nil && isHostEnd(host, p) {
		return host
	}
	return l
}

// portName returns the name of the port's device, or the one that it was added
// by if it is gone.
func portName(b *datapath.Bridge, p *datapath.Port, devices map[int]netlink.Link) string {
	l := shownDevice(b, p, devices)
	if l == nil || p.Flags&datapath.PortHost != 0 && l.Attrs().Index == int(p.Ifindex) {
		return datapath.PortName(p)
	}
	return l.Attrs().Name
}

func setFlag(p *datapath.Port, flag datapath.PortFlags, on bool) {
	p.Flags &^= flag
	if on {
		p.Flags |= flag
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
		datapath.PortBlockNonIP: &c.BlockNonIP,
		datapath.PortSrcGuard:   &c.SourceGuard,
		datapath.PortTrusted:    &c.Trusted,
		datapath.PortLoopGuard:  &c.LoopGuard.On,
	}
}

// check says whether the settings go together; what is what they are for.
func (c PortConfig) check(what string) error {
	if c.Locked && c.Learn {
		return refused(what, "a locked port takes frames of known addresses alone, and a port that learns makes every address known",
			"switch learning off with --learn=off, or unlock it with --locked=off")
	}
	return nil
}

func loadPortConfig(p *datapath.Port) PortConfig {
	c := PortConfig{Protected: Domains(p.Domains), FDBMax: p.FdbMax, FDBFull: FullFlood}
	if p.Flags&datapath.PortLimitDrop != 0 {
		c.FDBFull = FullDrop
	}
	c.LoopGuard.Block = time.Duration(p.BlockTime) * time.Second
	for i, s := range p.Storm {
		c.Storm[i] = StormLimit{Rate: s.Rate, Kilobits: s.Kilobits != 0}
	}
	for flag, field := range flagFields(&c) {
		*field = p.Flags&flag != 0
	}
	return c
}

func (c PortConfig) store(p *datapath.Port) {
	p.Domains, p.FdbMax = uint32(c.Protected), c.FDBMax
	setFlag(p, datapath.PortLimitDrop, c.FDBFull == FullDrop)
	p.BlockTime = uint32(c.LoopGuard.Block / time.Second)
	for i, l := range c.Storm {
		p.Storm[i].Rate, p.Storm[i].Kilobits = l.Rate, 0
		if l.Kilobits {
			p.Storm[i].Kilobits = 1
		}
	}
	for flag, field := range flagFields(&c) {
		setFlag(p, flag, *field)
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
