// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// patchDir is the folder of the objects that the bridges of a namespace share for their
// patch cables. No bridge's folder can have this name: see escape.
const patchDir = "%patch"

// panelSize is the number of entries of the panel; the ends of patch cables are
// numbered from 1.
const panelSize = 4096

// patchIfindex marks a patch port's Ifindex, which has the port's endpoint in its lower
// bits instead of a device's index (PATCH_IFINDEX).
const patchIfindex = 1 << 31

// Plug makes p one end of a patch cable. endpoint is the number of that end in the
// namespace, peer the number of the other end.
func Plug(p *Port, endpoint, peer uint32) {
	p.Facts |= PortPatch
	p.Ifindex = patchIfindex | endpoint
	p.Endpoint, p.PeerEndpoint = endpoint, peer
}

// There reports whether frames can go to a port: its device is there, or it
// needs none.
func (b *Bridge) There(p *Port) bool { return p.Facts&PortPatch != 0 || b.HasDevice(p) }

// Patched reports whether the bridge has patch ports.
func (b *Bridge) Patched() bool { return patched(&b.Config) }

// patched reports whether a configuration has patch ports.
func patched(c *Config) bool { return kernelFeature(c.Features)&kernelFeatureFEATURE_PATCH != 0 }

// lostEndpoint reports whether a port that stays has given up its endpoint.
func lostEndpoint(was, now *Config) bool {
	for _, p := range Ports(was) {
		if p.Endpoint == 0 {
			continue
		}
		if stays := PortAt(now, p.Id); stays != nil && stays.Endpoint != p.Endpoint {
			return true
		}
	}
	return false
}

// openPatch opens the objects that the bridges share for patch cables, for a new
// generation. If they are not there yet, it pins them. They are pinned at one place only: a
// panel loses its programs when the last reference to it from user space ends.
func (s *Store) openPatch(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	dir := filepath.Join(s.dir, patchDir)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	maps := map[string]*ebpf.Map{}
	for _, t := range tablesThat(func(t *table) bool { return t.life == lifeNamespace }) {
		name := t.name
		m, err := openMap(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			if m, err = ebpf.NewMap(spec.Maps[name]); err == nil {
				err = m.Pin(filepath.Join(dir, name))
			}
		}
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		maps[name] = m
	}
	return maps, nil
}

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}

// plugIn puts the generation's program behind the bridge's ends of patch cables, each in
// one step: a frame reaches either the former program or this one.
func (b *Bridge) plugIn(g *generation) error {
	if !patched(&b.Config) {
		return nil
	}
	panel, err := b.store.panel()
	if err != nil {
		return err
	}
	defer panel.Close()
	for _, p := range Ports(&b.Config) {
		if p.Endpoint == 0 {
			continue
		}
		if err := panel.Put(p.Endpoint, g.coll.Programs[kernelProgBasculePatch]); err != nil {
			return fmt.Errorf("patch port %s: %w", PortName(p), err)
		}
	}
	return b.openGateways()
}

func (s *Store) panel() (*ebpf.Map, error) { return s.openShared(kernelMapPatchPanel) }

// openShared opens a table that the bridges of a namespace share.
func (s *Store) openShared(name string) (*ebpf.Map, error) {
	return openMap(filepath.Join(s.dir, patchDir, name))
}

// unplug removes programs from the panel that are no longer behind a port. With the last
// patch cable it removes the panel. The ends of a bridge that can't be read stay.
func (s *Store) unplug() error {
	panel, err := s.panel()
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(filepath.Join(s.dir, patchDir))
	}
	if err != nil {
		return err
	}
	defer panel.Close()
	c, err := s.Cables()
	if err != nil || c.unread {
		return err
	}
	if len(c.ends) == 0 {
		return os.RemoveAll(filepath.Join(s.dir, patchDir))
	}
	if err := s.closeGateways(c); err != nil {
		return err
	}
	for n := range uint32(panelSize) {
		if _, ok := c.ends[n]; ok {
			continue
		}
		if err := panel.Delete(n); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end %d of a patch cable: %w", n, err)
		}
	}
	return nil
}

// unplugFor undoes the loading of next, which has not become the bridge's
// configuration.
func (b *Bridge) unplugFor(next *Config) error {
	if !patched(next) {
		return nil
	}
	return b.store.unplug()
}

// A CableEnd is a patch port.
type CableEnd struct {
	Bridge string
	Port   string // the name with which it was added
	peer   uint32
	routes bool // it is a routed host port, and has no other end
}

// Cables are the patch cables of a namespace.
type Cables struct {
	ends   map[uint32]CableEnd // by endpoint
	taken  map[uint32]bool     // endpoints that are used or reserved
	unread bool                // there may be more, of bridges that can't be read
}

// Cables reads the patch cables of the store's bridges.
func (s *Store) Cables() (*Cables, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	c := &Cables{ends: map[uint32]CableEnd{}, taken: map[uint32]bool{}}
	for _, name := range names {
		b, err := s.Open(name)
		if errors.Is(err, ErrLayout) {
			c.unread = true
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted at this moment
		}
		if err != nil {
			return nil, err
		}
		for _, p := range Ports(&b.Config) {
			if p.Endpoint != 0 {
				c.ends[p.Endpoint] = CableEnd{name, PortName(p), p.PeerEndpoint, routes(p)}
				c.taken[p.Endpoint], c.taken[p.PeerEndpoint] = true, true
			}
		}
	}
	if c.unread {
		if err := c.takePlugged(s); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// takePlugged marks the endpoints that are in the panel as taken.
func (c *Cables) takePlugged(s *Store) error {
	panel, err := s.panel()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer panel.Close()
	for n := range uint32(panelSize) {
		var program uint32
		if panel.Lookup(n, &program) == nil {
			c.taken[n] = true
		}
	}
	return nil
}

// Other returns the other end of p's cable; false if it is not there.
func (c *Cables) Other(p *Port) (CableEnd, bool) {
	other, ok := c.ends[p.PeerEndpoint]
	return other, ok && p.Facts&PortPatch != 0 && other.peer == p.Endpoint
}

// Half reports whether p is an end of a patch cable without another end.
func (c *Cables) Half(p *Port) bool {
	if p.Facts&PortPatch == 0 {
		return false
	}
	_, whole := c.Other(p)
	// The other end may belong to a bridge that can't be read.
	return !whole && !(c.unread && c.taken[p.PeerEndpoint] && c.ends[p.PeerEndpoint] == CableEnd{})
}

// Reserve reserves the endpoints of a configuration that is not the bridge's yet.
func (c *Cables) Reserve(next *Config) {
	for _, p := range Ports(next) {
		c.taken[p.Endpoint] = true
	}
}

// Take returns a free endpoint, and reserves it; false if there is none.
func (c *Cables) Take() (endpoint uint32, ok bool) {
	for n := uint32(1); n < panelSize; n++ {
		if !c.taken[n] {
			c.taken[n] = true
			return n, true
		}
	}
	return 0, false
}

// Joined returns how many bridges cables join to one, including that one.
func (c *Cables) Joined(bridge string) int {
	seen := map[string]bool{bridge: true}
	for next := []string{bridge}; len(next) > 0; next = next[1:] {
		for _, end := range c.ends {
			if other := c.ends[end.peer]; end.Bridge == next[0] && other.Bridge != "" && !seen[other.Bridge] {
				seen[other.Bridge] = true
				next = append(next, other.Bridge)
			}
		}
	}
	return len(seen)
}
