// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The types of ports, and the hooks.
const (
	TypeNetdev = "netdev"
	TypeHost   = "host"

	HookAuto = "auto"
	HookTCX  = "tcx"
	HookXDP  = "xdp"
)

// AddPort adds a device to a bridge, or makes a host port. The warnings are
// things that work but may not be meant.
func (s *Switch) AddPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	what := "add port " + port + " to " + bridge
	if err := checkName("port", port); err != nil {
		return nil, err
	}
	o.Type, o.Hook = cmp.Or(o.Type, TypeNetdev), cmp.Or(o.Hook, HookAuto)
	if o.Type != TypeNetdev && o.Type != TypeHost {
		return nil, usagef("--type "+o.Type, "no such type; give netdev or host")
	}
	if err := checkHook(o.Hook); err != nil {
		return nil, err
	}
	config, err := configure(PortSettings, defaults(PortSettings), o.Changes)
	if err != nil {
		return nil, err
	}
	add := func(hook string) error {
		return s.change(what, bridge, func(c *change) error {
			device, err := newDevice(c, what, bridge, port, o.Type)
			if err != nil {
				return err
			}
			dropGone(c, port)
			p := datapath.NewPort(c.next, port)
			if p == nil {
				return refused(what, fmt.Sprintf("it has %d ports, and no bridge can have more", datapath.MaxPorts), "make another bridge")
			}
			config.store(p)
			switch o.Type {
			case TypeHost:
				setFlag(p, datapath.PortHost, true)
				c.before = func() error {
					l, err := addHost(bridge, port)
					if err != nil {
						return err
					}
					c.undo = func() { netlink.LinkDel(l) }
					p.Ifindex = uint32(l.Attrs().Index)
					if host, err := netlink.LinkByName(port); err == nil {
						p.HostIfindex = uint32(host.Attrs().Index)
					}
					setFlag(p, datapath.PortXDP, hook == HookXDP)
					return nil
				}
			default:
				setDevice(p, device, hook)
				c.before = func() error {
					notes, err := prepare(p, device)
					warnings = append(warnings, notes...)
					return err
				}
				c.undo = func() { giveBack(p, device) }
				warnings = append(warnings, mtuWarning(c.next, p, device)...)
			}
			c.after = func() error { return settle(c.bridge, datapath.PortAt(&c.bridge.Config, p.Id)) }
			return nil
		})
	}
	err = add(o.Hook)
	var refusal *datapath.PortError
	if o.Hook == HookAuto && errors.As(err, &refusal) && refusal.Hook == HookXDP {
		warnings = []string{port + ": " + refusal.Err.Error() + "; it forwards by tcx alone"}
		err = add(HookTCX)
	}
	return warnings, err
}

// dropGone drops a port of this name that has lost its device: the new one
// takes its place.
func dropGone(c *change, name string) {
	for _, p := range datapath.Ports(c.next) {
		if datapath.PortName(p) == name && !c.bridge.HasDevice(p) {
			*p = datapath.Port{}
		}
	}
}

// newDevice finds the device of a port to be added and checks that it can be
// one; nil for a host port, whose device is yet to be made.
func newDevice(c *change, what, bridge, port, typ string) (netlink.Link, error) {
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
	owner, err := ownerOf(c, l)
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
func ownerOf(c *change, l netlink.Link) (string, error) {
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
			if (p.Ifindex == index || p.HostIfindex == index) && b.HasDevice(p) {
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
	setFlag(p, datapath.PortPeer, peerOutside(l))
	setFlag(p, datapath.PortXDP, wantsXDP(hook, l))
	setFlag(p, datapath.PortWasPromisc, a.RawFlags&unix.IFF_PROMISC != 0)
}

// prepare switches off what a driver must not do to the port's frames, notes it
// in p, and says what was changed elsewhere or refused.
func prepare(p *datapath.Port, l netlink.Link) (notes []string, err error) {
	if l.Type() == "veth" && p.Flags&datapath.PortXDP != 0 {
		note, err := readyForXDP(p, l)
		if note != "" {
			notes = append(notes, note)
		}
		return notes, err
	}
	if l.Type() != physical {
		return nil, nil
	}
	off := func(feature string, had datapath.PortFlags, harm string) {
		was, err := switchOff(l.Attrs().Name, feature)
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s: the driver does not switch %s off (%v): %s", l.Attrs().Name, feature, err, harm))
			return
		}
		if was {
			setFlag(p, had, true)
		}
	}
	off(featureLRO, datapath.PortHadLRO, "merged frames may be too large for other ports")
	if p.Flags&datapath.PortXDP != 0 {
		off(featureRxVLAN, datapath.PortHadRxVLAN, "XDP does not see its VLAN tags; use --hook tcx for tagged frames")
	}
	return notes, nil
}

// giveBack undoes prepare.
func giveBack(p *datapath.Port, l netlink.Link) {
	for flag, feature := range map[datapath.PortFlags]string{datapath.PortHadLRO: featureLRO, datapath.PortHadRxVLAN: featureRxVLAN} {
		if p.Flags&flag != 0 {
			switchOn(l.Attrs().Name, feature)
			setFlag(p, flag, false)
		}
	}
	doneWithXDP(p, l)
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
		config, err := configure(PortSettings, loadPortConfig(p), o.Changes)
		if err != nil {
			return err
		}
		config.store(p)
		if o.Hook != "" {
			if l == nil {
				return refused(what, "its device is gone", fmt.Sprintf("delete it with 'bascule port del %s %s'", bridge, port))
			}
			setFlag(p, datapath.PortXDP, wantsXDP(o.Hook, l))
			c.before = func() error {
				if p.Flags&datapath.PortXDP == 0 {
					giveBack(p, l)
				}
				notes, err := prepare(p, l)
				warnings = append(warnings, notes...)
				return err
			}
		}
		c.after = func() error {
			if l != nil {
				if err := settle(c.bridge, datapath.PortAt(&c.bridge.Config, p.Id)); err != nil {
					return err
				}
			}
			if config.FDBMax == 0 {
				return nil
			}
			n, err := c.bridge.Flush(datapath.Match{Port: p.Id, Dynamic: true, Keep: config.FDBMax})
			if n > 0 {
				warnings = append(warnings, fmt.Sprintf("%s: %d learned addresses dropped to make room for %d at most; static ones stay", port, n, config.FDBMax))
			}
			return err
		}
		return nil
	})
	return warnings, err
}

// DelPort takes a port out of its bridge, and its addresses with it. A host
// port's interface goes, too.
func (s *Switch) DelPort(bridge, port string) error {
	what := "delete port " + port + " of " + bridge
	return s.change(what, bridge, func(c *change) error {
		p, _, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		leaving := *p
		*p = datapath.Port{} // a free slot
		c.before = func() error { return release(c.bridge, &leaving) }
		return nil
	})
}

// findPort finds a port by its device's name, or by the name that it was added
// by if that device is gone. The link is nil for a port that lost its device.
func findPort(c *change, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, failed(what, err)
	}
	ports := datapath.Ports(c.next)
	if err == nil {
		index := uint32(l.Attrs().Index)
		for _, p := range ports {
			if (p.Ifindex == index || p.HostIfindex == index) && c.bridge.HasDevice(p) {
				if p.HostIfindex == index {
					if l, err = netlink.LinkByIndex(int(p.Ifindex)); err != nil {
						return nil, nil, failed(what, err)
					}
				}
				return p, l, nil
			}
		}
	}
	for _, p := range ports {
		if datapath.PortName(p) == name && !c.bridge.HasDevice(p) {
			return p, nil, nil
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
		usage, err := b.Usage()
		if err != nil {
			return err
		}
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
			if p.Flags&datapath.PortXDP != 0 {
				port.Hook = HookXDP
			}
			if !b.HasDevice(p) {
				port.FDBCount = 0 // what is left of them ages
			}
			if l := shownDevice(b, p, devices); l != nil {
				a := l.Attrs()
				port.Index, port.Flags, port.MTU = a.Index, flagList(a.RawFlags), a.MTU
				port.State = "disabled"
				if a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0 {
					port.State = "forwarding"
				}
			}
			list = append(list, port)
		}
		return nil
	})
	return list, err
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
	if host := devices[int(p.HostIfindex)]; p.Flags&datapath.PortHost != 0 && host != nil {
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

// settle makes a port's device fit to be one: it takes frames for all, and its
// driver leaves them as they came. A host port's own address is made known.
func settle(b *datapath.Bridge, p *datapath.Port) error {
	if !b.HasDevice(p) {
		return nil
	}
	l, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil {
		return err
	}
	if l.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		if err := netlink.SetPromiscOn(l); err != nil {
			return fmt.Errorf("make %s promiscuous: %w", l.Attrs().Name, err)
		}
	}
	if p.Flags&datapath.PortHost == 0 {
		return nil
	}
	host, err := netlink.LinkByIndex(int(p.HostIfindex))
	if err != nil {
		return nil // moved to another namespace; its address is learned
	}
	return b.Put(datapath.Entry{MAC: [6]byte(host.Attrs().HardwareAddr), Port: p.Id, Static: true})
}

// release gives a port's device back as it was, or removes a host port's.
func release(b *datapath.Bridge, p *datapath.Port) error {
	if !b.HasDevice(p) {
		return nil
	}
	l, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil {
		return err
	}
	if p.Flags&datapath.PortHost != 0 {
		return netlink.LinkDel(l)
	}
	if p.Flags&datapath.PortWasPromisc == 0 {
		if err := netlink.SetPromiscOff(l); err != nil {
			return err
		}
	}
	left := *p
	giveBack(&left, l)
	return nil
}

// setXDPTargets notes which ports take frames that XDP redirects: a veth does
// while its other end has GRO on or an XDP program of its own.
func setXDPTargets(b *datapath.Bridge, c *datapath.Config) error {
	var family *netlink.GenlFamily
	for _, p := range datapath.Ports(c) {
		setFlag(p, datapath.PortXDPTx, false)
		there := datapath.PortAt(&b.Config, p.Id) == nil || b.HasDevice(p)
		if p.Flags&datapath.PortXDP == 0 || !there {
			continue
		}
		if family == nil {
			var err error
			if family, err = netlink.GenlFamilyGet("netdev"); err != nil {
				return fmt.Errorf("XDP features: %w", err)
			}
		}
		takes, err := xdpTarget(family, p.Ifindex)
		if err != nil {
			return err
		}
		setFlag(p, datapath.PortXDPTx, takes)
	}
	return nil
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
	}
}

func loadPortConfig(p *datapath.Port) PortConfig {
	c := PortConfig{Protected: Domains(p.Domains), FDBMax: p.FdbMax}
	for flag, field := range flagFields(&c) {
		*field = p.Flags&flag != 0
	}
	return c
}

func (c PortConfig) store(p *datapath.Port) {
	p.Domains, p.FdbMax = uint32(c.Protected), c.FDBMax
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
