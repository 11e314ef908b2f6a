// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// Types are the types of ports that AddPort makes, and Hooks the values of the hook setting. The
// default comes first.
var (
	Types = []string{TypeNetdev, TypeHost, TypePatch}
	Hooks = []string{HookAuto, HookTCX, HookXDP}
)

// OneOf joins words as in a sentence: "auto, tcx or xdp".
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// AddPort adds a device to a bridge, or makes a host port or a patch cable. A patch cable is a port
// of this bridge and its other end, o.Peer. The warnings are about things that work but may not be
// intended.
func (s *Switch) AddPort(bridge, port string, o PortOptions) (warnings []string, err error) {
	return s.AddPorts(bridge, []string{port}, o)
}

// AddPorts does the same as AddPort for several ports with the same options, in one change: all of
// them are added, or none. A patch cable needs a change of its own.
func (s *Switch) AddPorts(bridge string, ports []string, o PortOptions) (warnings []string, err error) {
	if o.Type == TypePatch {
		if len(ports) > 1 {
			return nil, usagef("--type patch", "a cable has only one end here; add each cable separately")
		}
		return s.addPatch(bridge, ports[0], o)
	}
	if len(ports) > 1 && o.MAC != nil {
		return nil, usagef("--mac "+o.MAC.String(), "two interfaces would have it; add each port separately")
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
			gone := slices.ContainsFunc(datapath.Ports(c.next), func(p *datapath.Port) bool { return datapath.PortName(p) == port && !c.hasDevice(p) })
			if gone {
				c.warn(port + ": a new port replaces the one of this name, which was gone: its settings, VLANs, rules, bindings and static addresses are not kept")
			}
			return st.plan(c)
		}
		if len(ports) == 1 {
			all.what = st.what
		}
	}
	return s.one(all, nil)
}

// newPortConfig checks the arguments of AddPort, and returns the settings of the new port. what is
// for errors.
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
	if config, err = configure(PortSettings, PortDefaults(o.Type), o.Changes); err != nil {
		return config, err
	}
	if o.Description != nil {
		if err := CheckDescription(*o.Description); err != nil {
			return config, err
		}
		if o.Type == TypePatch {
			return config, refused(what, "a patch port has no device that has a description", "leave --description out")
		}
	}
	if o.Type == TypePatch && config.Backup != "" {
		return config, noCarrier(what)
	}
	if o.Type == TypePatch && config.limits() {
		return config, noRate(what)
	}
	if o.Type != TypeHost && config.Route {
		return config, onlyHosts(what)
	}
	if err := o.checkHost(what, o.Type == TypeHost); err != nil {
		return config, err
	}
	return config, config.check(what)
}

// checkHost refuses options for a host port's interface if the port is no host port.
func (o *PortOptions) checkHost(what string, host bool) error {
	switch {
	case !host && (o.MAC != nil || o.OwnMAC):
		return refused(what, "only a host port has an interface that the switch gives an address",
			"leave --mac out, and set the device with 'ip link set PORT address MAC'")
	case !host && o.MTU != 0:
		return refused(what, "only a host port has an interface that the switch gives an MTU",
			"leave --mtu out, and set the device with 'ip link set PORT mtu N'")
	case o.MTU != 0 && (o.MTU < MinMTU || o.MTU > MaxMTU):
		return usagef(fmt.Sprintf("--mtu %d", o.MTU), "out of range; give %d to %d", MinMTU, MaxMTU)
	}
	return nil
}

func noCarrier(what string) error {
	return refused(what, "a patch port has no carrier to lose, and no backup", "leave --backup out")
}

func noRate(what string) error {
	return refused(what, "a patch port has no device, at which "+RateIn+" and "+RateOut+" are measured",
		"limit the ports whose frames go by the cable, or join the bridges with a veth pair of your own")
}

// addPort adds a port that is not a patch port.
func addPort(bridge, port string, o PortOptions) (step, error) {
	what := "add port " + port + " to " + bridge
	config, err := newPortConfig(what, port, &o)
	if err != nil {
		return step{}, err
	}
	if o.Type == TypePatch {
		return step{}, usagef("--type patch", "a cable changes two bridges; add it separately")
	}
	return inVLANs(step{what, bridge, func(c *draft) error {
		device, err := newDevice(c, what, bridge, port, o.Type, o.Force)
		if err != nil {
			return err
		}
		if err := c.makeWay(what, port, o.Plugged); err != nil {
			return err
		}
		p, err := c.newPort(what, port)
		if err != nil {
			return err
		}
		config.store(p)
		c.planBackup(what, bridge, p, config.Backup)
		if err := c.planRoute(what, p, o.Type == TypeHost); err != nil {
			return err
		}
		c.settle(p)
		if o.Type != TypeHost {
			c.after = append(c.after, func() error {
				c.warn(warnNoAgent(c.bridge, stpWaits(port))...)
				return nil
			})
		}
		if o.Hook == HookAuto {
			c.auto = append(c.auto, p.Id)
		}
		if o.Type == TypeNetdev {
			c.warn(c.world.mtuWarning(c.next, p, device)...)
			c.warn(c.world.addressWarning(bridge, hostPortOf(c.next), device)...)
			c.warn(c.world.filterWarnings(device)...)
			c.warn(cableWarning(c.next, bridge, device)...)
			if o.Description != nil {
				c.describe(device, *o.Description)
			}
			c.planUp(device, o.Up)
			return c.setDevice(what, p, device, o.Hook)
		}
		id := p.Id
		c.plansHost(id, PortOptions{MAC: o.MAC, MTU: o.MTU})
		if o.Description != nil {
			c.describes(port, *o.Description)
		}
		if o.MTU != 0 {
			c.late = append(c.late, func() error {
				if p := datapath.PortAt(c.next, id); p != nil {
					c.warn(c.world.mtuTold(c.next, p, port, o.MTU)...)
				}
				return nil
			})
		}
		c.before = append(c.before, func() error {
			p := datapath.PortAt(c.next, id)
			if p == nil {
				return nil // it has been removed again
			}
			mtu := cmp.Or(o.MTU, c.world.smallestMTU(c.next))
			device, err := addHost(c.bridge.Store(), bridge, port, o.MAC, mtu)
			if err != nil {
				return err
			}
			c.undo = append(c.undo, func() error {
				err := netlink.LinkDel(device)
				if errors.Is(err, unix.ENODEV) {
					return nil // the port has been removed, with its device
				}
				return err
			})
			if err := setHost(p, device); err != nil {
				return err
			}
			if o.Description != nil { // with the device, it is undone if the change is refused
				if err := netlink.LinkSetAlias(otherEnd(device), *o.Description); err != nil {
					return fmt.Errorf("describe %s: %w", port, err)
				}
			}
			return c.setDevice(what, p, device, o.Hook)
		})
		return nil
	}}, port, o.VLANs)
}

// planUp plans to set the device of a port up or down. A device is set up after it becomes a port,
// so that all of its frames reach the switch. Some devices can't be set up: a VLAN device above one
// that is down, or a radio that is switched off. They become ports nevertheless.
func (c *draft) planUp(l netlink.Link, want *bool) {
	was, name := l.Attrs().RawFlags&unix.IFF_UP != 0, l.Attrs().Name
	switch {
	case want == nil || *want == was:
	case *want:
		c.after = append(c.after, func() error {
			if err := netlink.LinkSetUp(l); err != nil {
				c.warn(fmt.Sprintf("%s is not set up: %v", name, err))
			}
			return nil
		})
	default:
		c.before = append(c.before, func() error {
			c.undo = append(c.undo, func() error { return netlink.LinkSetUp(l) })
			if err := netlink.LinkSetDown(l); err != nil {
				return fmt.Errorf("set %s down: %w", name, err)
			}
			return nil
		})
	}
}

// makeWay removes a port whose device is gone, so that a new one of the same name can replace it.
// Only another plug can replace a plugged port: what came with the plug, such as rules of pf, would
// be lost.
func (c *draft) makeWay(what, name string, plugged bool) error {
	for _, p := range datapath.Ports(c.next) {
		if datapath.PortName(p) != name || c.hasDevice(p) {
			continue
		}
		owned, err := c.allOwners()
		if err != nil {
			return failed(what, err)
		}
		if o := owned[p.Id]; o != nil && !plugged {
			return refused(what, "it is plugged with the id "+o.ID, "plug it again, or remove it with 'bascule unplug "+o.ID+"'")
		}
		if err := c.removePort(what, p); err != nil {
			return err
		}
	}
	return nil
}

// holderOf returns the port of next with a name, or nil if there is none. next is derived from the
// bridge's configuration. A port whose device was renamed no longer has its first name: holderOf
// gives it the name of its device, so that it does not regain the old one when the device goes.
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

// newPort gives a slot to a new port.
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

// planBackup makes the port with a name the backup of p. It does so when the plan is complete
// otherwise, because the backup may be added later in the same change.
func (c *draft) planBackup(what, bridge string, p *datapath.Port, name string) {
	id := p.Id
	if name == "" {
		p.Backup = 0
		return
	}
	c.late = append(c.late, func() error {
		p := datapath.PortAt(c.next, id)
		if p == nil {
			return nil // it has been removed again
		}
		backup, _, err := findPort(c, what, bridge, name)
		switch {
		case err != nil:
			return err
		case backup.Id == p.Id:
			return refused(what, "a port cannot be its own backup", "give another port, or --backup none")
		case backup.Facts&datapath.PortSpan != 0:
			return refused(what, name+" is a span port, which only gets copies", "give another port, or --backup none")
		case p.Facts&datapath.PortPatch != 0:
			return noCarrier(what)
		}
		p.Backup = backup.Id
		return nil
	})
}

// widow removes a leaving port as the backup of others. If a port with its name is added in the
// same change, that port becomes their backup.
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

// SetPorts changes the settings or hooks of ports, of all of them in one change.
func (s *Switch) SetPorts(bridge string, ports []string, o PortOptions) (warnings []string, err error) {
	if len(ports) > 1 && o.MAC != nil {
		return nil, usagef("--mac "+o.MAC.String(), "two interfaces would have it; set each port separately")
	}
	var each []step
	for i, port := range ports {
		st, err := setPort(bridge, port, o)
		if err != nil {
			return nil, err
		}
		if slices.Contains(ports[:i], port) {
			return nil, refused(st.what, "it is named twice", "name each port once")
		}
		each = append(each, st)
	}
	if len(each) == 1 {
		return s.one(each[0], nil)
	}
	return s.one(step{"set ports " + strings.Join(ports, ", ") + " of " + bridge, bridge, func(c *draft) error {
		for _, st := range each {
			if err := st.plan(c); err != nil {
				return err
			}
		}
		return nil
	}}, nil)
}

func setPort(bridge, port string, o PortOptions) (step, error) {
	what := "set port " + port + " of " + bridge
	if o.Description != nil {
		if err := CheckDescription(*o.Description); err != nil {
			return step{}, err
		}
	}
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
			return refused(what, "it is a span port, which has no settings", fmt.Sprintf("delete it with 'bascule span del %s %s' and add it again", bridge, port))
		}
		config, err := configure(PortSettings, loadPortConfig(p), o.Changes)
		if err != nil {
			return err
		}
		if err := config.check(what); err != nil {
			return err
		}
		if err := o.checkHost(what, p.Notes&datapath.PortHost != 0); err != nil {
			return err
		}
		if p.Facts&datapath.PortPatch != 0 && config.limits() {
			return noRate(what)
		}
		noted := p.Flags&datapath.PortMAB != 0
		config.store(p)
		if o.MAC != nil || o.OwnMAC || o.MTU != 0 {
			if err := c.planHost(what, bridge, p, o); err != nil {
				return err
			}
		}
		if err := c.planDescription(what, p, l, o.Description); err != nil {
			return err
		}
		if l != nil {
			c.planUp(l, o.Up)
		}
		if slices.ContainsFunc(o.Changes, func(ch Change) bool { return ch.Name == backupSetting }) {
			c.planBackup(what, bridge, p, config.Backup)
		}
		if err := c.planRoute(what, p, p.Notes&datapath.PortHost != 0); err != nil {
			return err
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
				return nil // it has been removed again
			}
			// even if the setting stays the same
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

// DelPort removes a port from its bridge, with its addresses. It also deletes a host port's
// interface, and the other end of a patch cable.
func (s *Switch) DelPort(bridge, port string) (notes []string, err error) {
	return s.DelPorts(bridge, []string{port})
}

// DelPorts does the same as DelPort for several ports, in one change: all of them leave, or none.
func (s *Switch) DelPorts(bridge string, ports []string) (notes []string, err error) {
	all := step{"delete ports " + strings.Join(ports, ", ") + " of " + bridge, bridge, func(c *draft) error {
		for _, port := range ports {
			if err := delPort(bridge, port).plan(c); err != nil {
				return err
			}
		}
		return c.tellWidows(bridge)
	}}
	for i, port := range ports {
		what := delPort(bridge, port).what
		if slices.Contains(ports[:i], port) {
			return nil, refused(what, "it is named twice", "name each port once")
		}
		if len(ports) == 1 {
			all.what = what
		}
	}
	return s.one(all, nil)
}

// tellWidows warns of ports that stay while their backup leaves. It is not part of delPort, because
// an Edit may set another backup.
func (c *draft) tellWidows(bridge string) error {
	was := datapath.Ports(&c.bridge.Config)
	if !slices.ContainsFunc(was, func(p *datapath.Port) bool { return p.Backup != 0 }) {
		return nil
	}
	v, err := viewOf(bridge, c.bridge)
	if err != nil {
		return failed("look for the backups of ports", err)
	}
	stays := func(id uint32) bool {
		return slices.ContainsFunc(datapath.Ports(c.next), func(p *datapath.Port) bool { return p.Id == id })
	}
	for _, of := range was {
		if of.Backup != 0 && stays(of.Id) && !stays(of.Backup) {
			c.warn("port " + v.names[of.Id] + " has no backup any more: that was " + v.names[of.Backup])
		}
	}
	return nil
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

// findPort finds a port by its device's name. It uses the name under which the port was added if
// its device is gone, if it has no device, or if it is a host port whose end is in another
// namespace. The link is the port's device, or nil if there is none.
func findPort(c *draft, what, bridge, name string) (*datapath.Port, netlink.Link, error) {
	return findPortIn(c.next, c.hasDevice, what, bridge, name)
}

// findRunning does the same as findPort for a caller that changes nothing.
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
		if p.Ifindex == 0 || p.Facts&datapath.PortPatch != 0 || !hasDevice(p) { // a new host port has none yet
			return p, nil, nil
		}
		if p.Notes&datapath.PortHost == 0 {
			continue
		}
		if device, err := netlink.LinkByIndex(int(p.Ifindex)); err != nil || !hostHere(device) {
			return p, device, err
		}
	}
	return nil, nil, refused(what, name+" is not a port of this bridge", portRemedy(what, bridge, name))
}

// showWhat describes the display of something of a bridge, for errors. If bridge is "", it is for
// all bridges, whose own errors name them.
func showWhat(what, bridge string) string {
	if bridge == "" {
		return ""
	}
	return "show " + what + " of " + bridge
}

// MaxPorts is the maximum number of ports of a bridge, including span ports.
const MaxPorts = datapath.MaxPorts

// MaxSpans is the maximum number of span ports of a bridge.
const MaxSpans = datapath.MaxSpans

// portRemedy returns the remedy for a device that is not a port of a bridge. For a request to
// delete, flush or show something, it does not suggest adding the device.
func portRemedy(what, bridge, name string) string {
	verb, _, _ := strings.Cut(what, " ")
	if verb == "delete" || verb == "show" || verb == "flush" || !isDevice(name) {
		return "see 'bascule port show " + bridge + "'"
	}
	return "see 'bascule port show " + bridge + "', or add it with 'bascule port add " + bridge + " " + name + "'"
}
