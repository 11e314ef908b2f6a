// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"strings"

	"bascule/datapath"
)

// maxJoined is the number of bridges that a frame can pass by patch cables, including copies of a
// flood: the kernel allows 33 tail calls (PATCH_HOPS).
const maxJoined = 33

// addPatch makes both ends of a patch cable. The settings apply to this bridge's end; the other end
// has the defaults.
func (s *Switch) addPatch(bridge, port string, o PortOptions) (warnings []string, err error) {
	what := "add port " + port + " to " + bridge
	config, err := newPortConfig(what, port, &o)
	if err != nil {
		return nil, err
	}
	if o.Hook != HookAuto {
		return nil, usagef("--hook "+o.Hook, "a patch port has no hook; leave it out")
	}
	if o.Peer == "" {
		return nil, usagef("--type patch", "the cable needs another end; give --peer BRIDGE/PORT, too")
	}
	peerBridge, peerPort, ok := strings.Cut(o.Peer, "/")
	if !ok || peerBridge == "" || peerPort == "" || strings.Contains(peerPort, "/") {
		return nil, usagef("--peer "+o.Peer, "not the other end of a patch cable; give BRIDGE/PORT")
	}
	if err := checkName("bridge", peerBridge); err != nil {
		return nil, err
	}
	if err := checkName("port", peerPort); err != nil {
		return nil, err
	}
	if peerBridge == bridge {
		return nil, refused(what, "a patch to itself would be a loop", "give another bridge with --peer")
	}
	other, err := configure(PortSettings, Defaults(PortSettings), nil)
	if err != nil {
		return nil, err
	}
	return s.one(inVLANs(step{what, bridge, func(c *draft) error {
		store := c.bridge.Store()
		peer, err := open(store, what, peerBridge)
		if err != nil {
			return err
		}
		cables, err := store.Cables()
		if err != nil {
			return failed(what, err)
		}
		here, ok1 := cables.Take()
		there, ok2 := cables.Take()
		if !ok1 || !ok2 {
			return refused(what, "the network namespace has no number left for a patch cable", "delete one that is not used")
		}
		far := newDraft(peer)
		if err := newPatch(what, bridge, port, c.bridge, c.next, config, here, there); err != nil {
			return err
		}
		if err := newPatch(what, peerBridge, peerPort, peer, far.next, other, there, here); err != nil {
			return err
		}
		if err := far.planTables(what); err != nil {
			return err
		}
		c.others = []*datapath.Bridge{peer}
		c.far, c.peers = far, map[string]string{bridge + "/" + port: o.Peer, o.Peer: bridge + "/" + port}
		c.before = append(c.before, func() error { return peer.Commit(far.next, far.tables, follower{}) })
		c.undo = append(c.undo, func() error { return cutHalves(store) })
		c.after = append(c.after, func() error {
			c.warn(warnNoAgent(c.bridge, stpWaits(port))...)
			c.warn(warnNoAgent(peer, stpWaits(peerPort))...)
			cables, err := store.Cables()
			if err != nil {
				return err
			}
			if n := cables.Joined(bridge); n > maxJoined {
				c.warn(fmt.Sprintf("%s: %d bridges are joined by patch cables, and a flood reaches %d of them", bridge, n, maxJoined))
			}
			return nil
		})
		return nil
	}}, port, o.VLANs))
}

// newPatch adds one end of a patch cable to a bridge's next configuration.
func newPatch(what, bridge, port string, b *datapath.Bridge, next *datapath.Config, config PortConfig, here, there uint32) error {
	devices, err := links()
	if err != nil {
		return failed(what, err)
	}
	holder, err := holderOf(b, next, port)
	if err != nil {
		return failed(what, err)
	}
	for _, p := range datapath.Ports(next) {
		if p == holder || portName(b, p, devices) == port {
			return refused(what, fmt.Sprintf("bridge %s has a port %s", bridge, port), "give the patch port another name, or delete that port first")
		}
	}
	p := datapath.NewPort(next, port)
	if p == nil {
		return refused(what, fmt.Sprintf("%s has %d ports, and no bridge can have more", bridge, datapath.MaxPorts), "make another bridge")
	}
	config.store(p)
	datapath.Plug(p, here, there)
	return nil
}

// cut plans to remove the other end of p's cable from its bridge after the change.
func (c *draft) cut(p *datapath.Port) error {
	store := c.bridge.Store()
	others, err := otherEnds(store, p)
	if err != nil {
		return err
	}
	c.others = append(c.others, others...)
	c.after = append(c.after, func() error { return cutHalves(store) })
	return nil
}

// otherEnds opens the bridges that the patch ports lead to.
func otherEnds(store *datapath.Store, ports ...*datapath.Port) (others []*datapath.Bridge, err error) {
	cables, err := store.Cables()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range ports {
		other, ok := cables.Other(p)
		if !ok || seen[other.Bridge] {
			continue
		}
		seen[other.Bridge] = true
		b, err := store.Open(other.Bridge)
		if err != nil {
			return nil, err
		}
		others = append(others, b)
	}
	return others, nil
}

// cutAll removes a bridge by calling remove, and the other ends of its patch cables.
func cutAll(b *datapath.Bridge, remove func() error) error {
	store := b.Store()
	others, err := otherEnds(store, datapath.Ports(&b.Config)...)
	if err != nil {
		return err
	}
	for _, o := range others {
		if err := o.Begin(); err != nil {
			return err
		}
	}
	if err := remove(); err != nil {
		return err
	}
	if len(others) > 0 {
		if err := cutHalves(store); err != nil {
			return err
		}
	}
	for _, o := range others {
		if err := o.Done(); err != nil {
			return err
		}
	}
	return nil
}

// cutHalves removes patch ports without another end. Both ends of a cable are added or removed by
// one command, so half a cable is the work of a command that was killed or has not finished yet.
func cutHalves(store *datapath.Store) error {
	cables, err := store.Cables()
	if err != nil {
		return err
	}
	names, err := store.Names()
	if err != nil {
		return err
	}
	return eachOpen(store, names, func(name string, b *datapath.Bridge) error {
		c := newDraft(b)
		what, half := "remove the patch cable at bridge "+name, false
		for _, p := range datapath.Ports(c.next) {
			if !cables.Half(p) {
				continue
			}
			half = true
			if err := c.removePort(what, p); err != nil {
				return err
			}
		}
		if !half {
			return nil
		}
		if err := c.planTables(what); err != nil {
			return err
		}
		if err := b.Commit(c.next, c.tables, follower{}); err != nil {
			return fmt.Errorf("the patch cable at bridge %s: %w", name, err)
		}
		return nil
	})
}
