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

// A Berth describes prepared places for ports. A device that occupies one is a port at once,
// because the berth's programs are already loaded.
type Berth struct {
	Pattern string      // of the devices' names; a plain word to the bridge, of at most 15 bytes
	Options PortOptions // berths do not exist for Hook xdp, nor with a backup
	VLANs   []VLANRange // nil for the VLANs of a new port; if set, the bridge filters VLANs
	Count   int         // how many such ports the bridge is ready for at a time
}

// berthKind has the properties that berths of one kind share.
type berthKind struct {
	config PortConfig
	vlans  []VLANRange // nil if the bridge does not filter
}

func (k berthKind) equal(other berthKind) bool {
	return k.config == other.config && slices.Equal(k.vlans, other.vlans)
}

// berthKindOf returns the kind of a vacant berth.
func berthKindOf(c *datapath.Config, v *datapath.VLANs, p *datapath.Port) berthKind {
	k := berthKind{config: loadPortConfig(p)}
	if filters(c) && v != nil {
		k.vlans = ranges(v, p)
	}
	return k
}

// newPortVLANs returns the VLANs that a new port is in, or nil if the bridge does not filter.
func newPortVLANs(c *datapath.Config) []VLANRange {
	if !filters(c) {
		return nil
	}
	if c.DefaultPvid == 0 {
		return []VLANRange{}
	}
	return []VLANRange{{c.DefaultPvid, c.DefaultPvid, VLANOptions{Untagged: true, PVID: true}}}
}

// SetBerths makes the vacant berths of a bridge exactly these, as far as there is room for so many
// ports. Ports have precedence: a port that finds no other place takes a berth's. Like every change
// of the bridge, SetBerths also vacates berths whose device has gone. It changes nothing if the
// berths are the same.
func (s *Switch) SetBerths(bridge string, list []Berth) error {
	_, err := s.one(setBerths(bridge, list))
	return err
}

// SetBerths makes the vacant berths of the bridge exactly these. See [Switch.SetBerths].
func (e *Edit) SetBerths(list []Berth) error { return e.add(setBerths(e.bridge, list)) }

// setBerths returns the plan of that change.
func setBerths(bridge string, list []Berth) (step, error) {
	what := "set the berths of " + bridge
	configs, backed := make([]PortConfig, len(list)), make([]bool, len(list))
	list = slices.Clone(list)
	for i, b := range list {
		object := fmt.Sprintf("berth %q", b.Pattern)
		switch {
		case b.Pattern == "" || len(b.Pattern) > maxName:
			return step{}, usagef(object, "a pattern has 1 to %d bytes; give a shorter one", maxName)
		case b.Options.Type != "" && b.Options.Type != TypeNetdev:
			return step{}, usagef(object, "berths are for devices, not for ports of type %s; leave the type out", b.Options.Type)
		case b.Options.Peer != "":
			return step{}, usagef(object, "only patch ports have a peer; leave it out")
		case slices.ContainsFunc(list[:i], func(o Berth) bool { return o.Pattern == b.Pattern }):
			return step{}, usagef(object, "it occurs twice; give each pattern once")
		}
		if err := checkHook(cmp.Or(b.Options.Hook, HookAuto)); err != nil {
			return step{}, err
		}
		config, err := configure(PortSettings, Defaults(PortSettings), b.Options.Changes)
		if err != nil {
			return step{}, err
		}
		if err := config.check(what); err != nil {
			return step{}, err
		}
		if list[i].VLANs, err = sortRanges(object, b.VLANs); err != nil {
			return step{}, err
		}
		backed[i] = config.Backup != "" // the backup is another port's id, which may change
		var p datapath.Port             // the berth as it will be read
		config.store(&p)
		configs[i] = loadPortConfig(&p)
	}
	return step{what, bridge, func(c *draft) error {
		v, err := c.soFar()
		if err != nil {
			return failed(what, err)
		}
		ready := map[uint32]bool{}
		for _, p := range c.bridge.Ready() {
			ready[p.Id] = true
		}
		vacant := datapath.Berths(c.next)
		type missing struct {
			berth  Berth
			config PortConfig
		}
		var more []missing
		for i, b := range list {
			if b.Options.Hook == HookXDP || backed[i] {
				continue
			}
			kind := berthKind{configs[i], newPortVLANs(c.next)}
			if b.VLANs != nil {
				if !filters(c.next) {
					return noFiltering(what, bridge)
				}
				kind.vlans = b.VLANs
			}
			for range b.Count {
				keep := slices.IndexFunc(vacant, func(p *datapath.Port) bool {
					return ready[p.Id] && datapath.PortName(p) == b.Pattern && berthKindOf(c.next, v, p).equal(kind)
				})
				if keep < 0 {
					more = append(more, missing{b, configs[i]})
					continue
				}
				vacant = slices.Delete(vacant, keep, keep+1)
			}
		}
		for _, p := range vacant {
			*p = datapath.Port{}
		}
		c.berthVLANs = map[uint32][]VLANRange{}
		for _, m := range more {
			p := datapath.NewBerth(c.next, m.berth.Pattern)
			if p == nil {
				break // the bridge is full; ports that come will get the error
			}
			m.config.store(p)
			if m.berth.VLANs != nil {
				c.berthVLANs[p.Id] = m.berth.VLANs
			}
		}
		return nil
	}}, nil
}

// joinBerth puts a new berth into the VLANs that SetBerths has for it.
func (c *draft) joinBerth(v *datapath.VLANs, p *datapath.Port) {
	if list, told := c.berthVLANs[p.Id]; told {
		joinRanges(v, p, list)
	}
}

// Berths returns the berths of a bridge that devices can occupy, in the form that SetBerths
// accepts.
func (s *Switch) Berths(bridge string) (list []Berth, err error) {
	err = s.each(showWhat("the berths", bridge), bridge, func(_ string, b *datapath.Bridge) error {
		list = nil
		ready := b.Ready()
		if len(ready) == 0 {
			return nil
		}
		var v *datapath.VLANs
		if filters(&b.Config) {
			if v, err = b.VLANs(); err != nil {
				return err
			}
		}
		for _, p := range ready {
			kind := berthKindOf(&b.Config, v, p)
			if same := slices.IndexFunc(list, func(b Berth) bool { return b.Pattern == datapath.PortName(p) }); same >= 0 {
				list[same].Count++ // each pattern has one kind
				continue
			}
			berth := Berth{Pattern: datapath.PortName(p), Count: 1}
			for _, setting := range PortSettings {
				if value := setting.Format(kind.config); value != setting.Format(Defaults(PortSettings)) {
					berth.Options.Changes = append(berth.Options.Changes, Change{setting.Name, value})
				}
			}
			if !slices.Equal(kind.vlans, newPortVLANs(&b.Config)) {
				berth.VLANs = kind.vlans
			}
			list = append(list, berth)
		}
		return nil
	})
	return list, err
}

// Occupy makes a device a port of a bridge, in a berth of the pattern. If no berth is vacant, or
// the device does not fit a berth, ok is false and nothing changes. A device does not fit if it
// needs XDP, if it is a port already or cannot be one, or if rules of pf depend on the names of
// ports. AddPort then adds the device, or returns the reason why not. Occupy does not look for
// devices above this one, because that takes a list of all devices, which the caller has. The
// warnings are the same as AddPort's. Any process may call Occupy: it is one writer of many.
func (s *Switch) Occupy(bridge, pattern, device string) (ok bool, warnings []string, err error) {
	what := "add port " + device + " to " + bridge + " in a berth"
	if err := checkName("port", device); err != nil {
		return false, nil, err
	}
	err = s.read(func(store *datapath.Store) error {
		unlock, err := store.Lock()
		if err != nil {
			return failed("use the switch", err)
		}
		defer s.outside.locked(unlock)()
		// After a killed command, AddPort has to mend the bridges first.
		if dirty, err := store.Dirty(); err != nil || dirty {
			return failed(what, err)
		}
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		ready := slices.DeleteFunc(b.Ready(), func(p *datapath.Port) bool { return datapath.PortName(p) != pattern })
		if len(ready) == 0 || b.PFLoaded() {
			return nil
		}
		l, err := netlink.LinkByName(device)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil {
			return failed(what, err)
		}
		world := new(world)
		if !fitsBerth(b, l, world) {
			return nil
		}
		if err := b.Begin(); err != nil {
			return failed(what, err)
		}
		p := ready[0]
		var taken datapath.PortTaken
		if l.Attrs().RawFlags&unix.IFF_PROMISC != 0 {
			taken = datapath.PortWasPromisc
		}
		var notes []string
		err = b.Occupy(p, uint32(l.Attrs().Index), device, taken, peerOutside(l), func() (err error) {
			notes, err = makeReady(p, b.HasDevice)
			return err
		}, follower{})
		if err != nil {
			if errors.Is(err, datapath.ErrNotBerthed) || errors.As(err, new(*datapath.PortError)) {
				err = nil
			}
			return failed(what, errors.Join(err, b.Done()))
		}
		ok = true
		warnings = slices.Concat(world.mtuWarning(&b.Config, p, l), world.addressWarning(bridge, hostPortOf(&b.Config), l),
			cableWarning(&b.Config, bridge, l), world.filterWarnings(l), warnNoAgent(b, stpWaits(device)))
		warnings = append(warnings, notes...)
		return failed(what, b.Done())
	})
	return ok, warnings, err
}

// fitsBerth reports whether a device can be a port as soon as it has the berth's program.
func fitsBerth(b *datapath.Bridge, l netlink.Link, world *world) bool {
	if why, _ := usable(l); why != "" || l.Type() == physical || isOwnEnd(l) {
		return false
	}
	// AddPort handles the settings that were taken from the device then.
	if was, _, err := world.formerly(b, l); was != nil || err != nil {
		return false
	}
	for _, p := range datapath.Ports(&b.Config) {
		// The device may replace one that has gone.
		if p.Ifindex == uint32(l.Attrs().Index) || datapath.PortName(p) == l.Attrs().Name {
			return false
		}
	}
	return true
}
