// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"structs"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// readTables are the tables that programs only read, or that say what is where
// now: what is decided on a frame with these is what the bridge decides.
var readTables = []string{kernelMapTcxDevices, kernelMapXdpDevices, kernelMapVlans}

// Action is what becomes of a frame.
type Action = uint32

// The actions of a Traced frame.
const (
	ActionPass     Action = 0 // it is none of the bridge's
	ActionDrop     Action = 1
	ActionSend     Action = 2
	ActionFlood    Action = 3
	ActionAnswered Action = 5
)

// Traced is what the datapath decided on a frame, in its own terms.
type Traced struct {
	kernelTraced
	Stats Stats // what it would have counted on the port of entry
}

// Trace has the bridge's own program decide on a frame that comes in by a port,
// on copies of all that it writes to: nothing is learned, counted or sent.
func (b *Bridge) Trace(p *Port, frame []byte) (*Traced, error) {
	spec, err := b.store.programs()
	if err != nil {
		return nil, err
	}
	c := b.Config
	// whether somebody looks at other frames is nothing to this one
	c.Features &^= uint32(kernelFeatureFEATURE_CAPTURE | kernelFeatureFEATURE_TALKERS | kernelFeatureFEATURE_VLAN_STATS)
	c.Features |= uint32(kernelFeatureFEATURE_TRACE)
	if err := spec.Variables[kernelVarCfg].Set(&c); err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != kernelProgBasculeTcx {
			delete(spec.Programs, name)
		}
	}
	answer(spec.Programs[kernelProgBasculeTcx], c.Features)
	for name, n := range sizes(&c) {
		spec.Maps[name].MaxEntries = n
	}
	opts := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for _, name := range readTables {
		m, err := b.openTable(name)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		opts.MapReplacements[name] = m
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		return nil, explain(err)
	}
	defer coll.Close()
	if err := b.copyState(coll); err != nil {
		return nil, err
	}

	context := skbContext{Ifindex: p.Ifindex, IngressIfindex: p.Ifindex}
	if _, err := coll.Programs[kernelProgBasculeTcx].Run(&ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+258), Context: context,
	}); err != nil {
		if errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("the kernel takes no such frame for a trial: %w", err)
		}
		return nil, err
	}
	t := new(Traced)
	if err := coll.Maps[kernelMapTrace].Lookup(uint32(0), &t.kernelTraced); err != nil {
		return nil, err
	}
	var perCPU []Stats
	if err := coll.Maps[kernelMapStats].Lookup(Slot(p.Id), &perCPU); err != nil {
		return nil, err
	}
	for _, s := range perCPU {
		t.Stats.Learned += s.Learned
		t.Stats.Moves += s.Moves
		t.Stats.Refused += s.Refused
		for i, n := range s.Drops {
			t.Stats.Drops[i] += n
		}
	}
	return t, nil
}

// copyState gives a collection's tables what the bridge's own have now.
func (b *Bridge) copyState(coll *ebpf.Collection) error {
	var now kernelClock
	if err := b.lookup(kernelMapClock, 0, &now); err != nil {
		return err
	}
	if err := coll.Maps[kernelMapClock].Put(uint32(0), now); err != nil {
		return err
	}
	usage, err := b.Usage()
	if err != nil {
		return err
	}
	for slot, n := range usage[:b.Config.Slots] {
		if err := coll.Maps[kernelMapUsage].Put(uint32(slot), n); err != nil {
			return err
		}
	}
	from, err := b.openTable(kernelMapFdb)
	if err != nil {
		return err
	}
	defer from.Close()
	return copyMap(coll.Maps[kernelMapFdb], from)
}

// copyMap copies an array that can be mapped to another of the same size.
func copyMap(to, from *ebpf.Map) error {
	size := int(from.MaxEntries() * from.ValueSize())
	source, err := unix.Mmap(from.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a table: %w", err)
	}
	defer unix.Munmap(source)
	target, err := unix.Mmap(to.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a table: %w", err)
	}
	defer unix.Munmap(target)
	copy(target, source)
	return nil
}

// skbContext is the kernel's struct __sk_buff (linux/bpf.h), for trials.
type skbContext struct {
	_              structs.HostLayout
	Len            uint32
	PktType        uint32
	Mark           uint32
	QueueMapping   uint32
	Protocol       uint32
	VlanPresent    uint32
	VlanTci        uint32
	VlanProto      uint32
	Priority       uint32
	IngressIfindex uint32
	Ifindex        uint32
	TcIndex        uint32
	Cb             [5]uint32
	Hash           uint32
	TcClassid      uint32
	Data           uint32
	DataEnd        uint32
	NapiID         uint32
	Socket         [13]uint32
	DataMeta       uint32
	FlowKeys       uint64
	Tstamp         uint64
	WireLen        uint32
	GsoSegs        uint32
	Sk             uint64
	GsoSize        uint32
	TstampType     uint32
	Hwtstamp       uint64
}
