// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"bascule/datapath"
)

// A Rehearsal has the results of changes that were only planned.
type Rehearsal struct {
	After map[string]*State      // changed bridges in their next state; nil for one that would be deleted
	Hosts map[string]PortOptions // the MAC and MTU that interfaces of host ports would get, by name
	Texts map[string]string      // the new descriptions of devices, by name
	More  []Effect               // effects that no State shows
}

// An Effect is a result of a change that no State shows.
type Effect struct {
	Removes bool
	Bridge  string
	Object  string // "3 learned addresses"
	Detail  string
}

// Rehearse returns the changes that do would make with this switch. Until do returns, changes are
// planned in the same way as real ones, and refused for the same reasons, but not made. do may
// change each bridge once.
func (s *Switch) Rehearse(do func() error) (*Rehearsal, error) {
	r := &Rehearsal{After: map[string]*State{}, Hosts: map[string]PortOptions{}, Texts: map[string]string{}}
	s.rehearsal = r
	err := do()
	s.rehearsal = nil
	if err != nil {
		return nil, err
	}
	return r, r.cut(s)
}

// Rehearses reports whether changes are only planned.
func (s *Switch) Rehearses() bool { return s.rehearsal != nil }

// rehearse records a bridge's next contents.
func (s *Switch) rehearse(name string, b *datapath.Bridge, change func(*contents)) error {
	v, err := viewOf(name, b)
	if err != nil {
		return err
	}
	all, err := contentsOf(b)
	if err != nil {
		return err
	}
	change(&all)
	after, err := v.state(all)
	s.rehearsal.After[name] = &after
	return err
}

// draft records the results of a planned change of a bridge.
func (r *Rehearsal) draft(name string, c *draft) error {
	after, err := c.state(name)
	if err != nil {
		return err
	}
	for id, o := range c.hosts {
		if p := datapath.PortAt(c.next, id); p != nil {
			r.Hosts[hostName(p)] = o
		}
	}
	maps.Copy(r.Texts, c.texts)
	r.More = append(r.More, c.more...)
	if c.reload {
		r.More = append(r.More, Effect{Bridge: name, Object: "programs", Detail: "loaded afresh"})
	}
	came, went, err := c.anchors()
	if err != nil {
		return err
	}
	for _, path := range went {
		r.More = append(r.More, Effect{Removes: true, Bridge: name, Object: "pf rules of anchor " + path})
	}
	for _, path := range came {
		r.More = append(r.More, Effect{Bridge: name, Object: "pf rules of anchor " + path, Detail: "loaded"})
	}
	r.After[name] = &after
	if c.far == nil {
		return nil
	}
	_, far, _ := strings.Cut(name, "/")
	for end := range c.peers {
		if b, _, _ := strings.Cut(end, "/"); b != name {
			far = b
		}
	}
	other, err := c.far.state(far)
	r.After[far] = &other
	for _, s := range []*State{&after, &other} {
		for i := range s.Ports {
			p := &s.Ports[i]
			if peer := c.peers[p.Bridge+"/"+p.Name]; peer != "" {
				p.Peer, p.State = peer, "forwarding"
			}
		}
	}
	return err
}

// anchors returns the anchors of plugs whose rules a change loads or removes.
func (c *draft) anchors() (came, went []string, err error) {
	if c.pf == nil || !c.bridge.PFLoaded() {
		if c.pf == nil {
			return nil, nil, nil
		}
		return slices.Sorted(maps.Keys(c.pf.Anchors)), nil, nil
	}
	was, err := readStored(c.bridge)
	if err != nil {
		return nil, nil, err
	}
	for path, text := range c.pf.Anchors {
		if was.Anchors[path] != text {
			came = append(came, path)
		}
	}
	for path := range was.Anchors {
		if _, stays := c.pf.Anchors[path]; !stays {
			went = append(went, path)
		}
	}
	slices.Sort(came)
	slices.Sort(went)
	return came, went, nil
}

// plansHost records the changes of a host port's interface.
func (c *draft) plansHost(id uint32, o PortOptions) {
	if c.hosts == nil {
		c.hosts = map[uint32]PortOptions{}
	}
	c.hosts[id] = o
}

// state returns the bridge's state after the change.
func (c *draft) state(name string) (State, error) {
	next := *c.bridge
	next.Config = *c.next
	for id := range c.hosts {
		if p := datapath.PortAt(&next.Config, id); p != nil { // it may be a new one
			p.Notes |= datapath.PortHost
		}
	}
	v, err := viewOf(name, &next)
	if err != nil {
		return State{}, err
	}
	owned, err := c.allOwners()
	if err != nil {
		return State{}, err
	}
	v.owners = owned
	all, err := contentsOf(c.bridge)
	if err != nil {
		return State{}, err
	}
	was := all.vlans
	if c.tables.VLANs != nil {
		all.vlans = c.tables.VLANs
	}
	if c.tables.Rules != nil {
		all.rules = c.tables.Rules
	}
	if c.tables.Bindings != nil {
		all.bindings = c.tables.Bindings
	}
	gone := func(id uint32) bool { return datapath.PortAt(c.next, id) == nil }
	all.rules = slices.DeleteFunc(slices.Clone(all.rules), func(r datapath.Rule) bool { return gone(r.Port) })
	all.bindings = slices.DeleteFunc(slices.Clone(all.bindings), func(e datapath.Binding) bool { return gone(e.Port) })
	// as followVLANs removes them
	filters := filters(&c.bridge.Config) && filters(c.next)
	before, after := addressSpaces(&c.bridge.Config, was), addressSpaces(c.next, all.vlans)
	all.entries = slices.DeleteFunc(slices.Clone(all.entries), func(e datapath.Entry) bool {
		left := filters && slices.Contains(before[e.Port], e.VLAN) && !slices.Contains(after[e.Port], e.VLAN)
		return gone(e.Port) || left
	})
	switch d := c.pf; {
	case d == nil:
	case d.removed:
		all.pf = nil
	default:
		text := &PFText{Enabled: d.enabled, Text: d.main.String(), Aside: slices.Sorted(maps.Keys(d.Anchors))}
		if all.pf != nil && !d.other {
			text.Text = all.pf.Text // with the entries of tables
		}
		all.pf = text
	}
	return v.state(all)
}

// learned records that learned addresses would be removed.
func (r *Rehearsal) learned(bridge string, entries []datapath.Entry) {
	n := 0
	for _, e := range entries {
		if !e.Static && !e.Sticky {
			n++
		}
	}
	if n > 0 {
		word := "learned addresses"
		if n == 1 {
			word = "learned address"
		}
		r.More = append(r.More, Effect{Removes: true, Bridge: bridge, Object: fmt.Sprint(n, " ", word)})
	}
}

// rehearseFlush records the entries that a flush would remove: dynamic entries, pinned ones, or
// both.
func (s *Switch) rehearseFlush(name string, b *datapath.Bridge, match datapath.Match, m Match) error {
	v, err := viewOf(name, b)
	if err != nil {
		return err
	}
	own, entries, err := v.ownEntries()
	if err != nil {
		return err
	}
	leave := slices.DeleteFunc(entries, func(e datapath.Entry) bool {
		pinned := e.Static || e.Sticky
		return match.Port != 0 && match.Port != e.Port || match.VLAN != nil && *match.VLAN != e.VLAN || own(e) ||
			pinned && m.Dynamic && !m.Static || !pinned && m.Static && !m.Dynamic
	})
	s.rehearsal.learned(name, leave)
	return s.rehearse(name, b, func(all *contents) {
		all.entries = slices.DeleteFunc(all.entries, func(e datapath.Entry) bool {
			return slices.ContainsFunc(leave, func(l datapath.Entry) bool { return l.MAC == e.MAC && l.VLAN == e.VLAN })
		})
	})
}

// cut removes the other ends of cables whose bridge or port would be deleted.
func (r *Rehearsal) cut(s *Switch) error {
	for _, name := range slices.Sorted(maps.Keys(r.After)) {
		before, err := s.Read(name)
		if Missing(err) {
			continue // it would be added
		}
		if err != nil {
			return err
		}
		for _, p := range before.Ports {
			far, port, ok := strings.Cut(p.Peer, "/")
			stays := r.After[name] != nil && slices.ContainsFunc(r.After[name].Ports, func(q Port) bool { return q.Name == p.Name && q.Type == TypePatch })
			if !ok || stays {
				continue
			}
			if r.After[far] == nil {
				if _, gone := r.After[far]; gone {
					continue
				}
				other, err := s.Read(far)
				if err != nil {
					return err
				}
				r.After[far] = &other
			}
			r.After[far].without(port)
		}
	}
	return nil
}

// without removes a port, and all references to it.
func (s *State) without(port string) {
	s.Ports = slices.DeleteFunc(s.Ports, func(p Port) bool { return p.Name == port })
	s.VLANs = slices.DeleteFunc(s.VLANs, func(v PortVLANs) bool { return v.Port == port })
	s.Bindings = slices.DeleteFunc(s.Bindings, func(b Binding) bool { return b.Port == port })
	s.Entries = slices.DeleteFunc(s.Entries, func(e Entry) bool { return e.Port == port })
	kept := s.Rules[:0:0]
	for _, r := range s.Rules {
		if cmp.Or(r.Port, port) != port {
			kept = append(kept, r)
		}
	}
	s.Rules = kept
	for i := range s.Spans {
		s.Spans[i].Ports = slices.DeleteFunc(s.Spans[i].Ports, func(p string) bool { return p == port })
	}
}
