// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// An Owner identifies a guest or container whose interface is a port of the switch. Any command may
// change a port without an owner.
type Owner struct {
	ID        string `json:"id"`                  // of the port in its network namespace, at most MaxOwnerID bytes
	By        string `json:"by"`                  // the front end that plugged it: "plug", "cni", ...
	Network   string `json:"network,omitempty"`   // in the front end's terms
	Container string `json:"container,omitempty"` // or guest
	Interface string `json:"interface,omitempty"` // in the container
	Anchor    string `json:"anchor,omitempty"`    // of pf, with the port's own rules
}

// MaxOwnerID is the maximum length of an owner's ID in bytes.
const MaxOwnerID = 255

// check checks whether the switch can store an owner, and returns its text.
func (o Owner) check() (text string, err error) {
	object := fmt.Sprintf("id %.40q", o.ID)
	switch {
	case o.ID == "":
		return "", usagef("id", "it is empty; give one")
	case len(o.ID) > MaxOwnerID:
		return "", usagef(object, "it has %d bytes; give at most %d", len(o.ID), MaxOwnerID)
	case strings.ContainsFunc(o.ID, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", usagef(object, "it may have only letters, digits and punctuation of ASCII, without spaces")
	}
	line, err := json.Marshal(o)
	if err == nil && len(line) > datapath.MaxOwner {
		err = usagef(object, "the words about a port's owner may have %d bytes, not %d; give shorter names", datapath.MaxOwner, len(line))
	}
	return string(line), err
}

// Check checks whether the switch can store an owner. The error is a *[UsageError].
func (o Owner) Check() error {
	_, err := o.check()
	return err
}

// owners returns the owners of a bridge's ports, by the ports' ids.
func owners(b *datapath.Bridge) (map[uint32]*Owner, error) {
	rows, err := b.Owners()
	if err != nil {
		return nil, err
	}
	list := make(map[uint32]*Owner, len(rows))
	for id, text := range rows {
		o := new(Owner)
		if err := json.Unmarshal([]byte(text), o); err != nil {
			return nil, fmt.Errorf("read the owner of port %s: %w", datapath.PortName(datapath.PortAt(&b.Config, id)), err)
		}
		list[id] = o
	}
	return list, nil
}

// BridgeOf returns the bridge that has a port with an ID, or "" if none has. It is much quicker
// than Owned.
func (s *Switch) BridgeOf(id string) (bridge string, err error) {
	err = s.each("look for "+id, "", func(name string, b *datapath.Bridge) error {
		if bridge == name {
			bridge = ""
		}
		all, err := owners(b)
		for _, o := range all {
			if o.ID == id {
				bridge = name
			}
		}
		return err
	})
	return bridge, err
}

// Quick returns the properties of a bridge that do not need a look at its ports, without the ports'
// names and the counters.
func (s *Switch) Quick(name string) (info Info, err error) {
	err = s.each("", name, func(name string, b *datapath.Bridge) error {
		info = Info{
			Name: name, Address: net.HardwareAddr(b.Config.Address[:]), Born: b.Config.HashSeed, Config: loadBridgeConfig(&b.Config),
			Ports: make([]string, len(datapath.Ports(&b.Config))), AgentRuns: b.STP() && b.Runs(datapath.WatchControl),
		}
		return nil
	})
	return info, err
}

// Owned returns the ports of all bridges that have an owner, without their counters.
func (s *Switch) Owned() (list []Port, err error) {
	err = s.each("", "", func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(p Port) bool { return p.Bridge == name })
		all, err := owners(b)
		if err != nil || len(all) == 0 {
			return err
		}
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		for _, p := range v.ports {
			if all[p.Id] == nil {
				continue
			}
			list = append(list, v.port(p, nil)) // cables have no owners
		}
		return nil
	})
	return list, err
}

// ownedBy returns the port of the next configuration with an ID, or nil if there is none.
func (c *draft) ownedBy(id string) (*datapath.Port, error) {
	all, err := c.allOwners()
	if err != nil {
		return nil, err
	}
	for _, p := range datapath.Ports(c.next) {
		if o := all[p.Id]; o != nil && o.ID == id {
			return p, nil
		}
	}
	return nil, nil
}

// allOwners returns the owners as planned so far.
func (c *draft) allOwners() (map[uint32]*Owner, error) {
	if c.owners == nil {
		all, err := owners(c.bridge)
		if err != nil {
			return nil, err
		}
		c.owners = all
	}
	return c.owners, nil
}

// PortOf returns the port of the bridge that has an ID. name is "" if there is none, and there
// reports whether its device exists.
func (e *Edit) PortOf(id string) (name string, there bool, err error) {
	p, err := e.draft.ownedBy(id)
	if err != nil || p == nil {
		return "", false, failed("look for "+id, err)
	}
	devices, err := links()
	if err != nil {
		return "", false, failed("look for "+id, err)
	}
	return portName(e.draft.bridge, p, devices), e.draft.hasDevice(p) && devices[int(p.Ifindex)] != nil, nil
}

// OwnerOf returns the owner of a port, nil if it has none, and the port's type, or "" if the bridge
// has no port of the name or its device is gone.
func (e *Edit) OwnerOf(port string) (o *Owner, kind string, err error) {
	what := "look at port " + port + " of " + e.bridge
	p, _, err := findPort(e.draft, what, e.bridge, port)
	if Refused(err) || err == nil && !e.draft.hasDevice(p) && p.Facts&datapath.PortPatch == 0 {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	all, err := e.draft.allOwners()
	if err != nil {
		return nil, "", failed(what, err)
	}
	switch {
	case p.Facts&datapath.PortPatch != 0:
		kind = TypePatch
	case p.Facts&datapath.PortSpan != 0:
		kind = TypeSpan
	case p.Notes&datapath.PortHost != 0:
		kind = TypeHost
	default:
		kind = TypeNetdev
	}
	return all[p.Id], kind, nil
}

// DelOwned removes the port with an ID from the bridge, with its own part of pf. found reports
// whether there was one. The port's device may have another name by now, or be gone.
func (e *Edit) DelOwned(id string) (found bool, err error) {
	what := "delete the port of " + id + " of " + e.bridge
	err = e.add(step{what, e.bridge, func(c *draft) error {
		p, err := c.ownedBy(id)
		if err != nil || p == nil {
			return failed(what, err)
		}
		found = true
		return c.removePort(what, p)
	}}, nil)
	return found, err
}

// SetOwner sets the owner of a port. An ID belongs to one port in the network namespace.
func (e *Edit) SetOwner(port string, o Owner) error {
	what := "make port " + port + " of " + e.bridge + " the port of " + o.ID
	text, err := o.check()
	return e.add(step{what, e.bridge, func(c *draft) error {
		p, _, err := findPort(c, what, e.bridge, port)
		if err != nil {
			return err
		}
		all, err := c.allOwners()
		if err != nil {
			return failed(what, err)
		}
		was := all[p.Id]
		if was != nil && was.ID != o.ID {
			return refused(what, "it is the port of "+was.ID+", by "+was.By, "remove that with 'bascule unplug "+was.ID+"'")
		}
		if has, err := c.ownedBy(o.ID); err != nil || has != nil && has != p {
			if err == nil {
				err = refused(what, "port "+datapath.PortName(has)+" of "+e.bridge+" has this id", "remove that with 'bascule unplug "+o.ID+"'")
			}
			return failed(what, err)
		}
		if err := c.notElsewhere(what, o.ID); err != nil {
			return err
		}
		before := ""
		if was != nil {
			line, err := json.Marshal(was)
			if err != nil {
				return failed(what, err)
			}
			before = string(line)
		}
		all[p.Id] = &o
		if before == text {
			return nil
		}
		id := p.Id
		if was == nil && datapath.PortAt(&c.bridge.Config, id) != nil { // a new port has an effect of its own
			c.more = append(c.more, Effect{Bridge: e.bridge, Object: "port " + port, Detail: "plugged as " + o.ID})
		}
		c.before = append(c.before, func() error {
			if datapath.PortAt(c.next, id) == nil {
				return nil // it has been removed again
			}
			c.undo = append(c.undo, func() error { return c.bridge.SetOwner(id, before) })
			return c.bridge.SetOwner(id, text)
		})
		return nil
	}}, err)
}

// notElsewhere refuses an ID that a port of another bridge has.
func (c *draft) notElsewhere(what, id string) error {
	if id == c.leaves {
		return nil
	}
	store := c.bridge.Store()
	names, err := store.Names()
	if err != nil {
		return failed(what, err)
	}
	return failed(what, eachOpen(store, names, func(name string, b *datapath.Bridge) error {
		if b.Is(c.bridge) {
			return nil
		}
		all, err := owners(b)
		if err != nil {
			return err
		}
		for _, o := range all {
			if o.ID == id {
				return refused(what, "a port of "+name+" has this id", "remove that with 'bascule unplug "+id+"'")
			}
		}
		return nil
	}))
}

// ConfigurePort gives a port exactly these settings; others get their defaults. A host port keeps
// its other settings, because it is the host's own.
func (e *Edit) ConfigurePort(port string, o PortOptions) error {
	what := "set port " + port + " of " + e.bridge
	_, err := configure(PortSettings, PortConfig{}, o.Changes)
	return e.add(step{what, e.bridge, func(c *draft) error {
		p, _, err := findPort(c, what, e.bridge, port)
		if err != nil {
			return err
		}
		devices, err := links()
		if err != nil {
			return failed(what, err)
		}
		was := loadPortConfig(p)
		if backup := datapath.PortAt(c.next, p.Backup); backup != nil {
			was.Backup = portName(c.bridge, backup, devices)
		}
		made := PortDefaults(TypeNetdev)
		if p.Notes&datapath.PortHost != 0 {
			made = was
		}
		want, err := configure(PortSettings, made, o.Changes)
		if err != nil {
			return err
		}
		only := PortOptions{Hook: o.Hook}
		if l := devices[int(p.Ifindex)]; l == nil || o.MTU != mtuOf(p, l, devices) {
			only.MTU = o.MTU
		}
		for _, s := range PortSettings {
			if value := s.Format(want); value != s.Format(was) {
				only.Changes = append(only.Changes, Change{s.Name, value})
			}
		}
		if only.Hook == "" && only.MTU == 0 && len(only.Changes) == 0 {
			return nil
		}
		st, err := setPort(e.bridge, port, only)
		if err != nil {
			return err
		}
		return st.plan(c)
	}}, err)
}

// UsualVLANs puts a port into exactly the VLANs of a new port, if the bridge filters.
func (e *Edit) UsualVLANs(port string) error {
	if !filters(e.draft.next) {
		return e.err
	}
	return e.SetVLANs(port, newPortVLANs(e.draft.next))
}

// SetBindings makes the bindings of a port exactly these. The VLAN of each has the meaning of
// [Switch.AddBinding]; on a bridge that filters VLANs, 0 is the VLAN of frames without a tag. A new
// port has its bindings before its first frame.
func (e *Edit) SetBindings(port string, list []Binding) error {
	what := "set the bindings of port " + port + " of " + e.bridge
	var wrong error
	for _, b := range list {
		if b.VLAN > maxVLAN {
			wrong = usagef(fmt.Sprintf("VLAN %d", b.VLAN), "out of range; give 1 to %d", maxVLAN)
		}
	}
	return e.add(step{what, e.bridge, func(c *draft) error {
		p, _, err := findPort(c, what, e.bridge, port)
		if err != nil {
			return err
		}
		id := p.Id
		if len(list) == 0 && datapath.PortAt(&c.bridge.Config, id) == nil {
			return nil // a new port has none
		}
		c.late = append(c.late, func() error {
			if p := datapath.PortAt(c.next, id); p != nil {
				return c.planBindingsOf(what, e.bridge, p, list)
			}
			return nil // it has been removed again
		})
		return nil
	}}, wrong)
}

// planBindingsOf plans exactly these bindings for a port.
func (c *draft) planBindingsOf(what, bridge string, p *datapath.Port, list []Binding) error {
	there, err := c.bridge.Bindings()
	if err != nil {
		return failed(what, err)
	}
	held := map[boundAt]datapath.Binding{}
	for _, e := range there {
		if datapath.PortAt(c.next, e.Port) != nil { // otherwise it leaves with its port
			held[boundAt{e.VLAN, e.Address}] = e
		}
	}
	want := map[boundAt]datapath.Binding{}
	for _, e := range list {
		vlan, err := c.spaceOf(what, bridge, p, e.VLAN)
		if err != nil {
			return err
		}
		at := boundAt{vlan, e.Address}
		if old, ok := held[at]; ok && old.Port != p.Id {
			e.VLAN = vlan
			return refused(what, fmt.Sprintf("%s is bound to %s on %s", e.Address, net.HardwareAddr(old.MAC[:]), datapath.PortName(datapath.PortAt(c.next, old.Port))),
				"delete that binding first with '"+deletion(bridge, e)+"'")
		}
		want[at] = datapath.Binding{VLAN: vlan, Address: e.Address, MAC: [6]byte(e.MAC), Port: p.Id}
	}
	var del, add []datapath.Binding
	for at, e := range held {
		if _, stays := want[at]; e.Port == p.Id && !stays {
			del = append(del, e)
		}
	}
	for at, e := range want {
		if held[at] != e {
			add = append(add, e)
		}
	}
	if len(del)+len(add) == 0 {
		return nil
	}
	large, err := c.bridge.LargeBindings()
	if err != nil {
		return failed(what, err)
	}
	if !large {
		for _, e := range del {
			delete(held, boundAt{e.VLAN, e.Address})
		}
		maps.Copy(held, want)
		for _, e := range c.tables.Bindings { // of another port in this change
			if at := (boundAt{e.VLAN, e.Address}); e.Port != p.Id {
				held[at] = e
			}
		}
		c.tables.Bindings = slices.Collect(maps.Values(held))
		return nil
	}
	was := slices.DeleteFunc(slices.Clone(there), func(e datapath.Binding) bool {
		_, touched := want[boundAt{e.VLAN, e.Address}]
		return e.Port != p.Id && !touched
	})
	put := func() error {
		err := c.bridge.ReplaceBindings(del, add)
		if errors.Is(err, datapath.ErrBindingsFull) {
			return refused(what, err.Error(), "delete some that are no longer needed")
		}
		return err
	}
	if datapath.PortAt(&c.bridge.Config, p.Id) != nil {
		c.after = append(c.after, put)
		return nil
	}
	c.before = append(c.before, func() error {
		c.undo = append(c.undo, func() error { return c.bridge.ReplaceBindings(add, was) })
		return put()
	})
	return nil
}

// spaceOf returns the VLAN in which the FDB has the addresses of a port of the next configuration
// that are in VLAN vid. If vid is 0, this is the VLAN of frames without a tag.
func (c *draft) spaceOf(what, bridge string, p *datapath.Port, vid uint16) (uint16, error) {
	if !filters(c.next) {
		return vid, nil
	}
	v, err := c.planJoins()
	if err != nil {
		return 0, failed(what, err)
	}
	if vid == 0 {
		vid = p.Pvid
	}
	switch {
	case vid == 0:
		return 0, refused(what, "the port has no PVID", "name one with --vlan")
	case !inSet(&v[vid].Member, datapath.Slot(p.Id)):
		return 0, refused(what, fmt.Sprintf("the port is not in VLAN %d", vid), "bind addresses in VLANs that it is in")
	case isSecondary(&v[vid]):
		return v[vid].Fid, nil
	}
	return vid, nil
}

// SetStations makes the static entries of a port exactly these addresses, in all of its VLANs. A
// locked port accepts frames from these only.
func (e *Edit) SetStations(port string, macs []net.HardwareAddr) error {
	what := "set the stations of port " + port + " of " + e.bridge
	return e.add(step{what, e.bridge, func(c *draft) error {
		p, _, err := findPort(c, what, e.bridge, port)
		if err != nil {
			return err
		}
		id := p.Id
		c.after = append(c.after, func() error {
			if datapath.PortAt(&c.bridge.Config, id) == nil {
				return nil // it has been removed again
			}
			return putStations(c.bridge, id, macs)
		})
		return nil
	}}, nil)
}

// putStations makes the static entries of a port exactly these.
func putStations(b *datapath.Bridge, id uint32, macs []net.HardwareAddr) error {
	spaces, err := currentSpaces(b)
	if err != nil {
		return err
	}
	entries, err := b.FDB()
	if err != nil {
		return err
	}
	want := map[datapath.Entry]bool{}
	for _, vlan := range spaces[id] {
		for _, mac := range macs {
			want[datapath.Entry{MAC: [6]byte(mac), VLAN: vlan, Port: id, Static: true}] = true
		}
	}
	for _, e := range entries {
		e := datapath.Entry{MAC: e.MAC, VLAN: e.VLAN, Port: e.Port, Static: e.Static}
		if e.Port != id || !e.Static || want[e] {
			continue
		}
		if err := b.Delete(e.MAC, e.VLAN); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	for e := range want {
		if err := b.Put(e); err != nil {
			return err
		}
	}
	return nil
}

// AddCopies makes a span port copy a port's frames in both directions. It has no effect on a span
// port that already copies the frames of all ports.
func (e *Edit) AddCopies(port, span string) error {
	what := "copy frames of port " + port + " of " + e.bridge + " to " + span
	return e.add(step{what, e.bridge, func(c *draft) error {
		p, _, err := findPort(c, what, e.bridge, port)
		if err != nil {
			return err
		}
		to, _, err := findPort(c, what, e.bridge, span)
		if err != nil {
			return err
		}
		n := slices.Index(c.next.Spans[:], uint16(datapath.Slot(to.Id)))
		if to.Facts&datapath.PortSpan == 0 || n < 0 {
			return refused(what, span+" is not a span port", "make it one with 'bascule span add "+e.bridge+" "+span+"'")
		}
		if all := (spanMarks{&c.next.SpanIn, &c.next.SpanOut}); !all.has(n) {
			spanMarks{&p.SpanIn, &p.SpanOut}.set(n, true, true)
		}
		return nil
	}}, nil)
}

// Shut keeps the frames that a device receives from the host's stack while the device moves from
// one bridge to another, until the result is closed. It has no effect if the device does not exist.
func (s *Switch) Shut(device string) (shut io.Closer, err error) {
	shut = io.NopCloser(nil)
	err = s.Inside(func() error {
		l, err := netlink.LinkByName(device)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err == nil {
			var on io.Closer
			if on, err = datapath.Shut(l.Attrs().Index); err == nil {
				shut = on
			}
		}
		return failed("keep the host from what "+device+" receives", err)
	})
	return shut, err
}
