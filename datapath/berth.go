// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A berth is a port whose device is yet to come: it has a slot, an id and settings, and
// the programs contain them. Its name is the pattern of the device names that it is
// for. A device that occupies it is a port at once, without a new generation; the next
// generation has it as a port like any other.
//
// Two records define which device occupies a berth, in this order: a record in the
// table of berths, which each generation has for itself, and the device map, from which
// the kernel removes a deleted device. The link to the program comes after them: if it
// is missing, the command that brought the device was killed. Once a berth has a
// record, no other device may take it. If its device has gone, the next generation
// gives the berth a new id.

// Vacant reports whether p is a berth without a device.
func Vacant(p *Port) bool { return p.Notes&PortBerth != 0 && p.Ifindex == 0 }

// Berths returns the vacant berths of c by slot.
func Berths(c *Config) []*Port {
	return slices.DeleteFunc(tenants(c), func(p *Port) bool { return !Vacant(p) })
}

// NewBerth gives a free slot of c to a berth and returns it, nil if there is
// none.
func NewBerth(c *Config, pattern string) *Port {
	p := newTenant(c, c, pattern)
	if p != nil {
		p.Notes |= PortBerth
	}
	return p
}

// hasBerths reports whether programs have to look up devices in c's berths.
func hasBerths(c *Config) bool {
	return kernelFeature(c.Features)&kernelFeatureFEATURE_BERTHS != 0
}

// moored holds the devices that have come to the berths of a configuration.
type moored struct {
	devices map[uint32]uint32 // indexes of those that are there, by port id
	used    map[uint32]bool   // ids of berths that have or had a device
	left    []Port            // berths whose devices have gone, with those devices
}

func newMoored() moored { return moored{map[uint32]uint32{}, map[uint32]bool{}, nil} }

// moor fills in the devices that have come to the berths of a configuration that was
// just read.
func (b *Bridge) moor() error {
	b.moored = newMoored()
	if !hasBerths(&b.Config) {
		return nil
	}
	m, records, err := b.readBerths()
	if err != nil {
		return err
	}
	for i := range m.left {
		if p := TenantAt(&b.Config, m.left[i].Id); p != nil {
			was := &m.left[i]
			was.Flags, was.Facts, was.StpGuards = p.Flags, p.Facts, p.StpGuards
			was.Notes, was.Taken = p.Notes&^PortBerth, was.Taken|p.Taken
		}
	}
	b.moored = m
	for id, ifindex := range m.devices {
		if p := TenantAt(&b.Config, id); p != nil {
			p.occupy(ifindex, records[id])
		}
	}
	return nil
}

// occupy makes p the port of a device.
func (p *Port) occupy(ifindex uint32, r kernelBerth) {
	p.Ifindex, p.Peer, p.Name = ifindex, r.Peer, r.Name
	p.Taken |= r.Taken
}

// readBerths reads which devices occupy berths now, and the records by port id.
func (b *Bridge) readBerths() (m moored, records map[uint32]kernelBerth, err error) {
	m = newMoored()
	records = map[uint32]kernelBerth{}
	berths, err := b.openTable(kernelMapBerths)
	if err != nil {
		return m, nil, err
	}
	defer berths.Close()
	devices, err := b.openTable(kernelMapTcxDevices)
	if err != nil {
		return m, nil, err
	}
	defer devices.Close()
	var ifindex, there uint32
	var r kernelBerth
	all := berths.Iterate()
	for all.Next(&ifindex, &r) {
		m.used[r.Id] = true
		if devices.Lookup(Slot(r.Id), &there) == nil && there == ifindex {
			m.devices[r.Id], records[r.Id] = ifindex, r
		} else {
			left := Port{Id: r.Id}
			left.occupy(ifindex, r)
			m.left = append(m.left, left)
		}
	}
	return m, records, all.Err()
}

// mooredStill reports whether the berths have the devices that b has read.
func (b *Bridge) mooredStill() bool {
	if !hasBerths(&b.Config) {
		return true
	}
	now, _, err := b.readBerths()
	return err == nil && maps.Equal(now.devices, b.devices)
}

// mendBerths removes devices that were left without a program, and gives them back
// their settings.
func (b *Bridge) mendBerths(g *generation, f Follower) error {
	for id := range b.devices {
		_, err := os.Lstat(b.link(id, hookTCX).path)
		if errors.Is(err, fs.ErrNotExist) {
			p := TenantAt(&b.Config, id)
			here := func() uint32 {
				if b.HasDevice(p) {
					return p.Ifindex
				}
				return 0
			}
			if _, err := f.Leave(p, nil, Tie{index: here}); err != nil {
				return err
			}
			g.forget(Slot(id))
		} else if err != nil {
			return err
		}
	}
	if err := b.readConfig(); err != nil {
		return err
	}
	return b.moor()
}

// renew gives new ids to the berths of next whose devices have gone. The next device
// must not get the addresses and counters of the old ids.
func (b *Bridge) renew(next *Config) {
	for _, p := range Berths(next) {
		if b.used[p.Id] {
			p.Id = newID(next, Slot(p.Id))
		}
	}
}

// Departed returns the berths whose devices have gone, as the ports that they were.
func (b *Bridge) Departed() (list []*Port) {
	for i := range b.left {
		list = append(list, &b.left[i])
	}
	return list
}

// Ready returns, by slot, the vacant berths that a device can occupy: those that have
// had no device.
func (b *Bridge) Ready() []*Port {
	return slices.DeleteFunc(Berths(&b.Config), func(p *Port) bool { return b.used[p.Id] })
}

// ErrNotBerthed reports that a device cannot occupy a berth.
var ErrNotBerthed = errors.New("the device is gone, has a program, or the index of one that a berth had")

// Occupy makes a device the port p, which is one of Ready. name is the device's name,
// taken the settings to be restored when the device leaves, and peer is as in
// Port.Peer. Once the device has the program, ready makes the device fit to be a port.
// If the command is killed before the link is pinned, Mend gives back what ready has
// taken. If Occupy fails, f gives it back, wherever the device is by then. The berth
// then has no device, and is of no use until the next Commit. The caller holds the
// lock, is in the bridge's network namespace, and has called Begin.
func (b *Bridge) Occupy(p *Port, ifindex uint32, name string, taken PortTaken, peer uint64, ready func() error, f Follower) (err error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex), Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return ErrNotBerthed
	}
	if err != nil {
		return fmt.Errorf("programs on device %d: %w", ifindex, err)
	}
	if len(on.Programs) > 0 {
		return ErrNotBerthed
	}
	g := &generation{coll: &ebpf.Collection{Maps: map[string]*ebpf.Map{}}}
	defer g.Close()
	for _, table := range append([]string{kernelMapBerths}, deviceMaps()...) {
		if g.coll.Maps[table], err = b.openTable(table); err != nil {
			return err
		}
	}
	program, err := openProgram(b.pin(b.gen, tcxPin))
	if err != nil {
		return err
	}
	defer program.Close()

	r := kernelBerth{Id: p.Id, Taken: taken, Peer: peer, Name: nameField(name)}
	err = g.coll.Maps[kernelMapBerths].Update(ifindex, r, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return ErrNotBerthed
	}
	if err != nil {
		return err
	}
	b.used[p.Id] = true
	was := *p
	p.occupy(ifindex, r)
	// The device is in the tables before it has its program: the program's first frame
	// may come before the kernel has confirmed that the program is attached.
	err = g.place(p)
	var open link.Link
	if err == nil {
		// The process that made the device waits for the lock in order to set the
		// device up.
		hurry := b.store.hurry()
		hurry.begin()
		open, err = attachOpen(hookTCX, program, int(ifindex))
		hurry.end()
	}
	if err == nil {
		defer open.Close()
		// From now on the link leads to the device wherever the device goes. The link
		// ends with the command, if that is killed.
		if err = ready(); err == nil && !b.HasDevice(p) {
			err = unix.ENODEV
		}
		if err == nil {
			err = b.attachOut(p)
		}
		if err == nil {
			err = open.Pin(b.link(p.Id, hookTCX).path)
		}
		if err != nil {
			_ = b.link(p.Id, hookOut).remove() // if this fails, the next command does it
			tie := Tie{open: open}
			owed, undo := f.Leave(p, nil, tie)
			if undo == nil && owed != nil {
				undo = b.store.owe(tie, owed)
			}
			if undo != nil {
				return errors.Join(err, undo)
			}
		}
	}
	if err != nil {
		g.forget(Slot(p.Id))
		*p = was
		return &PortError{name, hookTCX.String(), err}
	}
	b.devices[p.Id] = ifindex
	return nil
}
