// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Devices change on their own. A host port's interface gets another address, the other ports lose
// their links, another device takes a port, or a device comes back from another network namespace.
// The agent listens to the kernel's messages about devices, and follows at once. A command that
// changes the switch follows the addresses.

// catchUp makes bridges follow the addresses of their host ports' interfaces, and the rules of pf
// the names and addresses that they refer to. If the agent that took the carriers of these
// interfaces is gone, catchUp gives the carriers back. The caller's work does not depend on it: if
// it fails, the next caller tries again.
func catchUp(store *datapath.Store, hosts, ruled []string) {
	_ = eachOpen(store, hosts, func(name string, b *datapath.Bridge) error {
		if hostsMoved(b) {
			set, c := setBridge(name, nil), newDraft(b)
			c.reload = true // interfaces above the host's end are not in the configuration
			if c.planned(set.what, set.plan) == nil {
				_ = c.make(set.what)
			}
		}
		return nil
	})
	_ = eachOpen(store, ruled, func(name string, b *datapath.Bridge) error {
		if stale, err := pfStale(b); err == nil && stale {
			c := newDraft(b)
			if c.planned(followPF(name), func(*draft) error { return nil }) == nil {
				_ = c.make(followPF(name))
			}
		}
		return nil
	})
	if !store.DevicesHeld() {
		giveCarriers(store, hosts)
	}
}

// followPF describes the reload of rules that follow names and addresses, for errors.
func followPF(bridge string) string { return "follow names and addresses in pf of " + bridge }

// giveCarriers sets the switch's ends of host ports up.
func giveCarriers(store *datapath.Store, bridges []string) {
	_ = eachOpen(store, bridges, func(_ string, b *datapath.Bridge) error {
		for _, p := range datapath.Ports(&b.Config) {
			if p.Notes&datapath.PortHost == 0 || !b.HasDevice(p) {
				continue
			}
			if l, err := netlink.LinkByIndex(int(p.Ifindex)); err == nil && l.Attrs().RawFlags&unix.IFF_UP == 0 {
				_ = netlink.LinkSetUp(l) // it fails only for a device that is being removed
			}
		}
		return nil
	})
}

// GiveCarriers gives the interfaces of host ports of these bridges their carriers, as if no agent followed the devices.
// An agent that works takes a carrier again at once if no other port leads anywhere; a stopped one cannot.
func (s *Switch) GiveCarriers(bridges []string) error {
	return s.read(func(store *datapath.Store) error {
		giveCarriers(store, bridges)
		return nil
	})
}

// Devices follows the devices of a namespace's bridges. One process at a time has a Devices. While
// there is one, a host port's interface has a carrier as long as another port has one; see
// docs/design/ports.md.
type Devices struct {
	s    *Switch
	hold *datapath.Hold

	mu      sync.Mutex
	known   map[int]bool // devices seen by the last Look
	looking bool         // a Look is running, which may have read a device before its change
	away    bool         // a port's device is in another network namespace, and may come back
	masters map[portKey]string
	mtus    map[portKey]int // of ports' devices
	spoken  map[portKey][]netip.Prefix
	lost    map[portKey]bool // ports that had no carrier at the last Look
}

// A Deed is a change of a port, or a reaction of Devices to one.
type Deed struct {
	Bridge, Port string
	Kind         string
	Other        string // DeedTaken: the device that it belongs to, "Linux bridge br0"
	Why          string // DeedNone: the reason in words; DeedMTU: the consequence
	Lossy        bool   // DeedMTU: frames that some ports take are too large for others
	Count        int    // DeedForgot: number of addresses; the switch may have forgotten others before
}

// The kinds of deeds.
const (
	DeedAddress  = "address"  // the FDB has a new address of a host port's interface
	DeedCarrier  = "carrier"  // a host port's interface has a carrier again
	DeedNone     = "none"     // the interface has no carrier, since no other port leads anywhere; see Why
	DeedTaken    = "taken"    // another device has made the port its own
	DeedReleased = "released" // the port is no longer another device's
	DeedMTU      = "mtu"      // the device has another MTU
	DeedForgot   = "forgot"   // the port has lost its carrier, and addresses behind it are forgotten
	DeedBack     = "back"     // the device has come back from another namespace, and is the port that it was
)

// FollowDevices begins to follow the namespace's devices, until Close or the end of the process. It
// fails if another process follows them.
func (s *Switch) FollowDevices() (*Devices, error) {
	d := &Devices{s: s, masters: map[portKey]string{}, mtus: map[portKey]int{}, lost: map[portKey]bool{}}
	if err := d.take(); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Devices) take() error {
	return d.s.read(func(store *datapath.Store) error {
		hold, err := store.HoldDevices()
		if errors.Is(err, datapath.ErrWatched) {
			return because(refused("follow the devices", "another process does already", "end that first"), err)
		}
		if err != nil {
			return failed("follow the devices", err)
		}
		if d.hold != nil {
			d.hold.Release(false)
		}
		d.hold = hold
		return nil
	})
}

// ErrUnmounted means that the file system in which the bridges were pinned is gone, and the bridges
// with it.
var ErrUnmounted = errors.New(datapath.Root + ", the file system of the bridges, has been unmounted")

// Keep takes the lock of the devices again if its folder has been removed. It is cheap if the
// folder is there. The error is datapath.ErrWatched if another process was faster.
func (d *Devices) Keep() error {
	switch {
	case !d.hold.Lost():
		return nil
	case d.hold.Unmounted():
		return ErrUnmounted
	}
	return d.take()
}

// DevicesHolder returns the process that follows the devices of the network namespace with a
// cookie: its agent. process is 0 if the process cannot be found.
func DevicesHolder(cookie uint64) (process int, there bool) {
	store, err := datapath.StoreOf(cookie)
	if err != nil || !store.DevicesHeld() {
		return 0, false
	}
	return store.DevicesHolder(), true
}

// Close gives the carriers back, because no process follows the devices any more.
func (d *Devices) Close() error {
	return d.s.read(func(store *datapath.Store) error {
		d.hold.Release(true)
		names, err := store.Names()
		giveCarriers(store, names)
		return err
	})
}

// Concerns reports whether a change of the device with an index requires a Look.
func (d *Devices) Concerns(index int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.looking || d.known == nil || d.known[index] || d.away
}

// Look makes the bridges follow their devices, and returns what it did. It does not take back ports
// of bridges for which kept returns true: the caller handles these. Look must not be called
// concurrently.
func (d *Devices) Look(kept func(bridge string) bool) (did []Deed, err error) {
	d.begin()
	defer d.end()
	seen := sighting{
		known: map[int]bool{}, masters: map[portKey]string{}, before: d.masters, mtus: map[portKey]int{}, had: d.mtus,
		spoken: map[portKey][]netip.Prefix{}, said: d.spoken, lost: map[portKey]bool{}, lostBefore: d.lost,
		first: d.known == nil,
	}
	err = d.s.read(func(store *datapath.Store) error {
		var err error
		if seen.devices, err = links(); err != nil {
			return err
		}
		names, err := store.Names()
		if err != nil {
			return err
		}
		for _, name := range names {
			b, err := store.Open(name)
			if err != nil {
				continue // the bridge is being deleted, or has another version's layout
			}
			if err := seen.look(name, b); err != nil && b.Current() {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the devices of bridges: %w", err)
	}
	d.mu.Lock()
	d.known, d.away, d.masters, d.mtus = seen.known, seen.away, seen.masters, seen.mtus
	d.spoken, d.lost = seen.spoken, seen.lost
	d.mu.Unlock()
	did = seen.did
	for _, name := range seen.moved {
		changed, wrong := d.s.Refresh(name)
		if changed {
			did = append(did, Deed{Bridge: name, Kind: DeedAddress})
		}
		err = cmp.Or(err, wrong)
	}
	for _, name := range seen.back {
		if kept(name) {
			continue
		}
		ports, wrong := d.s.takeBack(name)
		for _, port := range ports {
			did = append(did, Deed{Bridge: name, Port: port, Kind: DeedBack})
		}
		err = cmp.Or(err, wrong)
	}
	return did, err
}

// begin marks the start of a Look. Until its end each change of a device requires another Look,
// because the device may be a port that this one is the first to see.
func (d *Devices) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looking = true
}

func (d *Devices) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looking = false
}

// A portKey identifies a port among all bridges: an ID is unique in one bridge only.
type portKey struct {
	bridge string
	id     uint32
}

// A sighting has the observations of a Look.
type sighting struct {
	devices map[int]netlink.Link
	before  map[portKey]string // the devices that ports belonged to at the last Look

	known      map[int]bool
	masters    map[portKey]string
	lost       map[portKey]bool // ports without a carrier, now and at the last Look
	lostBefore map[portKey]bool
	mtus       map[portKey]int // of ports' devices, now and at the last Look
	had        map[portKey]int
	all        map[int][]deviceAddress    // of devices by index; nil until needed
	spoken     map[portKey][]netip.Prefix // addresses of host ports' interfaces, now and at the last Look
	said       map[portKey][]netip.Prefix
	first      bool     // the first Look: there is nothing to compare with
	moved      []string // bridges with a host port that has another address
	away       bool     // a port's device is in another network namespace
	back       []string // bridges with a port whose device was away and has come back
	did        []Deed
}

// look examines the devices of a bridge's ports.
func (s *sighting) look(name string, b *datapath.Bridge) error {
	var hosts []*datapath.Port
	look := false
	for _, p := range datapath.Ports(&b.Config) {
		if p.Facts&datapath.PortPatch != 0 {
			continue
		}
		l := s.devices[int(p.Ifindex)]
		if l == nil || !b.HasDevice(p) {
			away, back := b.Away(p)
			s.away = s.away || away
			if back != 0 && !slices.Contains(s.back, name) {
				s.back = append(s.back, name)
			}
			continue
		}
		s.known[l.Attrs().Index] = true
		if p.Notes&datapath.PortHost != 0 {
			if hostMoved(b, p) && !slices.Contains(s.moved, name) {
				s.moved = append(s.moved, name)
			}
			if hostHere(l) {
				s.known[l.Attrs().ParentIndex] = true
				s.addresses(portKey{name, p.Id}, s.devices[l.Attrs().ParentIndex])
			}
			hosts = append(hosts, p)
		}
		s.master(name, p, l)
		s.mtu(name, b, p, l)
		look = s.carrier(name, b, p, l) || look
	}
	if look {
		if err := s.forget(name, b); err != nil {
			return err
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	if b.GatewaysMoved() && !slices.Contains(s.moved, name) {
		s.moved = append(s.moved, name)
	}
	carriers, err := newCarriers(b, s.devices)
	if err != nil {
		return err
	}
	for _, p := range hosts {
		l := s.devices[int(p.Ifindex)]
		why := carriers.none(p)
		want := !hostHere(l) || why == "" // the carrier of a station's interface is not ours to take
		if want == (l.Attrs().RawFlags&unix.IFF_UP != 0) {
			continue
		}
		set, kind := netlink.LinkSetDown, DeedNone
		if want {
			set, kind, why = netlink.LinkSetUp, DeedCarrier, ""
		}
		if err := set(l); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("host port %s of %s: %w", portName(b, p, s.devices), name, err)
		}
		s.did = append(s.did, Deed{Bridge: name, Port: portName(b, p, s.devices), Kind: kind, Why: why})
	}
	return nil
}

// carrier notes whether a port's device is down or without a carrier, and reports whether that has
// changed.
func (s *sighting) carrier(name string, b *datapath.Bridge, p *datapath.Port, l netlink.Link) bool {
	const running = unix.IFF_UP | unix.IFF_RUNNING
	lost := l.Attrs().RawFlags&running != running
	s.lost[portKey{name, p.Id}] = lost
	return lost != s.lostBefore[portKey{name, p.Id}] || b.Sees() && lost != (p.Ways&datapath.WayLost != 0)
}

// forget removes the addresses learned behind ports that have lost their carrier from a bridge's
// FDB, as the Linux bridge does. Addresses behind a port with a backup stay, because the backup
// takes their frames.
func (s *sighting) forget(name string, b *datapath.Bridge) error {
	if _, err := b.Look(); err != nil {
		return err
	}
	for _, p := range datapath.Ports(&b.Config) {
		key := portKey{name, p.Id}
		was, known := s.lostBefore[key]
		if !s.lost[key] || was || p.Backup != 0 {
			continue
		}
		n, err := b.Flush(datapath.Match{Port: p.Id, Dynamic: true})
		if err != nil {
			return err
		}
		if known && p.Notes&datapath.PortHost == 0 { // host ports have deeds of their own
			s.did = append(s.did, Deed{Bridge: name, Port: portName(b, p, s.devices), Kind: DeedForgot, Count: n})
		}
	}
	return nil
}

// master notes the master of a port's device.
func (s *sighting) master(bridge string, p *datapath.Port, l netlink.Link) {
	key := portKey{bridge, p.Id}
	was, now := s.before[key], masterOf(l, s.devices)
	if now != "" {
		s.masters[key] = now
	}
	deed := Deed{Bridge: bridge, Port: nameBy(l, p), Kind: DeedTaken, Other: now}
	if now == "" {
		deed.Kind, deed.Other = DeedReleased, was
	}
	if now != was {
		s.did = append(s.did, deed)
	}
}

// mtu notes the MTU of a port's device.
func (s *sighting) mtu(bridge string, b *datapath.Bridge, p *datapath.Port, l netlink.Link) {
	key := portKey{bridge, p.Id}
	was, now := s.had[key], mtuOf(p, l, s.devices)
	s.mtus[key] = now
	if was != 0 && now != 0 && was != now {
		port := portName(b, p, s.devices)
		why, lossy := mtuChange(b, p, port, now, s.devices)
		s.did = append(s.did, Deed{Bridge: bridge, Port: port, Kind: DeedMTU, Why: why, Lossy: lossy})
	}
}

// addresses announces new addresses of a host port's interface to its neighbours, and all its
// addresses when it has got a carrier.
func (s *sighting) addresses(key portKey, host netlink.Link) {
	if host == nil || host.Attrs().RawFlags&unix.IFF_RUNNING == 0 {
		return
	}
	if s.all == nil {
		s.all = addresses()
	}
	var come []netip.Prefix
	for _, a := range s.all[host.Attrs().Index] {
		s.spoken[key] = append(s.spoken[key], a.prefix)
		if !s.first && !slices.Contains(s.said[key], a.prefix) {
			come = append(come, a.prefix)
		}
	}
	TellNeighbours(host, come)
}

// masterOf returns the master of a device, such as "Linux bridge br0", or "" if it has none.
func masterOf(l netlink.Link, devices map[int]netlink.Link) string {
	if l == nil || l.Attrs().MasterIndex == 0 {
		return ""
	}
	index := l.Attrs().MasterIndex
	if m := devices[index]; m != nil {
		return kindAndName(m)
	}
	return fmt.Sprintf("device %d", index)
}

// carriers decides which host ports of a bridge have a carrier.
type carriers struct {
	b     *datapath.Bridge
	vlans *datapath.VLANs  // nil if the bridge does not filter
	ports []*datapath.Port // ports that have a carrier
	live  []*datapath.Port // the ones that spanning tree lets forward
}

func newCarriers(b *datapath.Bridge, devices map[int]netlink.Link) (c carriers, err error) {
	c.b = b
	if filters(&b.Config) {
		if c.vlans, err = b.VLANs(); err != nil {
			return c, err
		}
	}
	states, err := b.STPStates()
	if err != nil {
		return c, err
	}
	var cables *datapath.Cables
	if b.Patched() {
		if cables, err = b.Store().Cables(); err != nil {
			return c, err
		}
	}
	for _, p := range datapath.Ports(&b.Config) {
		live := false
		switch l := devices[int(p.Ifindex)]; {
		case p.Facts&datapath.PortSpan != 0:
		case p.Facts&datapath.PortPatch != 0:
			live = !cables.Half(p)
		case l == nil || !b.HasDevice(p):
		case p.Notes&datapath.PortHost != 0 && hostHere(l): // the host's own end
		default:
			live = l.Attrs().RawFlags&unix.IFF_UP != 0 && l.Attrs().RawFlags&unix.IFF_RUNNING != 0
		}
		if !live {
			continue
		}
		c.ports = append(c.ports, p)
		if STPState(states[datapath.Slot(p.Id)]) == STPForwarding {
			c.live = append(c.live, p)
		}
	}
	return c, nil
}

// none returns the reason why a host port has no carrier, or "" if it has one. It has one if frames
// reach it from a port with a carrier.
func (c carriers) none(host *datapath.Port) string {
	switch {
	case c.reaches(host, c.live):
		return ""
	case len(c.ports) == 0:
		return "no other port has one"
	case !c.reaches(host, c.ports):
		return "no port that has one is in a VLAN with it"
	case c.vlans == nil:
		return "spanning tree lets no port that has one forward"
	}
	return "spanning tree lets no port that has one, and is in a VLAN with it, forward"
}

// reaches reports whether frames of a host port reach one of the ports.
func (c carriers) reaches(host *datapath.Port, ports []*datapath.Port) bool {
	return slices.ContainsFunc(ports, func(p *datapath.Port) bool {
		if c.vlans == nil {
			return true
		}
		for vid := 1; vid <= maxVLAN; vid++ {
			row := &c.vlans[vid]
			if inSet(&row.Member, datapath.Slot(host.Id)) && inSet(&row.Reach, datapath.Slot(p.Id)) {
				return true
			}
		}
		return false
	})
}

// takeBack makes devices that have come back from another network namespace the ports that they
// were before. It returns the names of the ports.
func (s *Switch) takeBack(name string) (ports []string, err error) {
	what := "take back ports of " + name
	err = s.change(what, name, func(c *draft) error {
		for _, p := range datapath.Ports(c.next) {
			if p.Facts&datapath.PortPatch != 0 {
				continue
			}
			if c.hasDevice(p) {
				continue
			}
			_, index := c.bridge.Away(p)
			if index == 0 {
				continue
			}
			l, err := netlink.LinkByIndex(int(index))
			if err != nil {
				continue // it has left again
			}
			p.Ifindex = index
			learnDevice(p, l)
			c.reload = true
			c.before = append(c.before, func() error {
				// The device may have changed in the meantime.
				notes, err := makeReady(p, func(*datapath.Port) bool { return true })
				c.warn(notes...)
				if err != nil {
					return err
				}
				return c.bridge.Replace(p)
			})
			c.settle(p)
			ports = append(ports, nameBy(l, p))
		}
		return nil
	})
	if errors.Is(err, errNoBridge) {
		return nil, nil
	}
	return ports, err
}
