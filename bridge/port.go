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
					c.undo = func() { netlink.LinkDel(device) }
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
			if (p.Ifindex == index || isHostEnd(l, p)) && b.HasDevice(p) {
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

// inspect notes in p what settle is going to change at the port's device, or at
// the other end of a veth, and says so. It changes nothing.
func inspect(p *datapath.Port, l netlink.Link) (notes []string, err error) {
	xdp := p.Flags&datapath.PortXDP != 0
	switch {
	case l.Type() == "veth" && xdp:
		return inspectEnd(p, l)
	case l.Type() == physical:
		features, err := featuresOf(l)
		if err != nil {
			return nil, err
		}
		if features[featureLRO] {
			setFlag(p, datapath.PortHadLRO, true)
		}
		if features[featureRxVLAN] && xdp {
			setFlag(p, datapath.PortHadRxVLAN, true)
		}
	}
	return nil, nil
}

// giveBack undoes what settle did to the port's frames. Where now is not nil the
// port stays, without XDP.
func giveBack(was, now *datapath.Port, l netlink.Link) {
	if was.Flags&datapath.PortHadLRO != 0 && now == nil {
		switchOn(l, featureLRO)
	}
	if was.Flags&datapath.PortHadRxVLAN != 0 {
		switchOn(l, featureRxVLAN)
	}
	restoreEnd(was, l)
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
	if err != nil {
		return nil, err
	}
	return warnings, nil
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
		*p = datapath.Port{} // a free slot; leave does the rest
		return nil
	})
}

// findPort finds a port by its device's name, or by the name that it was added
// by where that device is gone, or is a host port's in another namespace. The
// link is the port's device, nil if that is gone.
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

// setHost notes the host's end of a host port.
func setHost(p *datapath.Port, name string) error {
	host, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("its interface: %w", err)
	}
	setFlag(p, datapath.PortHost, true)
	p.HostIfindex = uint32(host.Attrs().Index)
	p.Host = datapath.MACWord([6]byte(host.Attrs().HardwareAddr))
	return nil
}

// isHostEnd reports whether a device of this namespace is the host's end of p,
// and not another that has got the same index.
func isHostEnd(l netlink.Link, p *datapath.Port) bool {
	a := l.Attrs()
	return p.Flags&datapath.PortHost != 0 && a.Index == int(p.HostIfindex) &&
		l.Type() == "veth" && a.ParentIndex == int(p.Ifindex) && a.NetNsID < 0
}

// hostEnd returns the host's end of p, nil if it is not in this namespace.
func hostEnd(p *datapath.Port) netlink.Link {
	l, err := netlink.LinkByIndex(int(p.HostIfindex))
	if err != nil || !isHostEnd(l, p) {
		return nil
	}
	return l
}

// hostAddress returns the address of p's host end, 0 if it has none here.
func hostAddress(p *datapath.Port) uint64 {
	if l := hostEnd(p); l != nil && len(l.Attrs().HardwareAddr) == 6 {
		return datapath.MACWord([6]byte(l.Attrs().HardwareAddr))
	}
	return 0
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

// settleAll settles every port of the bridge.
func settleAll(b *datapath.Bridge) error {
	for _, p := range datapath.Ports(&b.Config) {
		if _, err := settle(b, p); err != nil {
			return err
		}
	}
	return nil
}

// settle makes a port's device fit to be one: it takes frames for all, and its
// driver leaves them as they came. A host port's own address is made known.
// The notes are what the driver refuses.
func settle(b *datapath.Bridge, p *datapath.Port) (notes []string, err error) {
	if !b.HasDevice(p) {
		return nil, nil
	}
	l, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil {
		return nil, err
	}
	name := l.Attrs().Name
	if l.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		if err := netlink.SetPromiscOn(l); err != nil {
			return nil, fmt.Errorf("make %s promiscuous: %w", name, err)
		}
	}
	off := func(had datapath.PortFlags, feature, harm string) {
		if p.Flags&had == 0 {
			return
		}
		if err := switchOff(l, feature); err != nil {
			notes = append(notes, fmt.Sprintf("%s: the driver does not switch %s off (%v): %s", name, feature, err, harm))
		}
	}
	off(datapath.PortHadLRO, featureLRO, "merged frames may be too large for other ports")
	off(datapath.PortHadRxVLAN, featureRxVLAN, "XDP does not see its VLAN tags; use --hook tcx for tagged frames")
	if l.Type() == "veth" && p.Flags&datapath.PortXDP != 0 {
		if err := prepareEnd(l); err != nil {
			return notes, err
		}
	}
	if p.Host != 0 {
		err = b.Put(datapath.Entry{MAC: datapath.WordMAC(p.Host), Port: p.Id, Static: true})
	}
	return notes, err
}

// givenBackWithXDP are the flags of what a port takes for XDP alone.
const givenBackWithXDP = datapath.PortHadRxVLAN | datapath.PortEndHadCsum | datapath.PortEndNoGRO

// leave gives back what a port took: all of it where it has left the bridge, or
// what it took for XDP where it does without now. A host port's device goes.
func leave(b *datapath.Bridge, was, now *datapath.Port) error {
	l, err := netlink.LinkByIndex(int(was.Ifindex))
	if err != nil {
		return nil // it has gone at this moment
	}
	if now != nil {
		if was.Flags&datapath.PortXDP != 0 {
			giveBack(was, now, l)
		}
		return nil
	}
	if was.Flags&datapath.PortHost != 0 {
		return netlink.LinkDel(l)
	}
	giveBack(was, nil, l)
	if was.Flags&datapath.PortWasPromisc == 0 {
		return netlink.SetPromiscOff(l)
	}
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
		// a veth whose other end has GRO off gets it from settle
		setFlag(p, datapath.PortXDPTx, takes || p.Flags&datapath.PortEndNoGRO != 0)
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
