// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"structs"
	"unsafe"

	"bascule/pf"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// headerBytes is the size of an Ethernet header, the least that the kernel takes for a trial.
const headerBytes = 14

// trialBuckets is the number of a trial's buckets of states.
const trialBuckets = 64

// A TrialSizeError reports that the kernel takes no frame of Size bytes for a trial, and at most
// Most bytes. The frame must fit into a page, together with the kernel's own data there, whose size
// differs between machines.
type TrialSizeError struct{ Size, Most int }

func (e TrialSizeError) Error() string {
	return fmt.Sprintf("the kernel takes no frame of %d bytes for a trial", e.Size)
}

// A TrialShortError reports that the frame is too short for a trial: the kernel requires this many
// bytes, because of the frame's EtherType.
type TrialShortError int

func (e TrialShortError) Error() string {
	return fmt.Sprintf("the kernel takes no IP packet without its header for a trial: the frame has less than %d bytes", int(e))
}

// Action is the fate of a frame.
type Action = uint32

// The actions of a Traced frame.
const (
	ActionPass     Action = 0 // the frame is not the bridge's
	ActionDrop     Action = 1 // without a reason: a control protocol takes it
	ActionSend     Action = 2
	ActionFlood    Action = 3
	ActionAnswered Action = 5
)

// Step is a step of the decision on a frame. The constants are in the order of the steps.
type Step = kernelStep

// The steps that may end a decision.
const (
	StepPort     = kernelStepSTEP_PORT // the frame comes in by no port
	StepFrame    = kernelStepSTEP_FRAME
	StepCheck    = kernelStepSTEP_CHECK // the frame does not come in, for a reason of no other step
	StepVLAN     = kernelStepSTEP_VLAN
	StepRulesIn  = kernelStepSTEP_RULES_IN
	StepPFIn     = kernelStepSTEP_PF_IN
	StepLearn    = kernelStepSTEP_LEARN // from this step on, the frame has come in
	StepAnswer   = kernelStepSTEP_ANSWER
	StepLookUp   = kernelStepSTEP_LOOK_UP
	StepFlood    = kernelStepSTEP_FLOOD
	StepCheckOut = kernelStepSTEP_CHECK_OUT // the frame does not go out, for a reason of no other step
	StepRulesOut = kernelStepSTEP_RULES_OUT
	StepPFOut    = kernelStepSTEP_PF_OUT
	StepSend     = kernelStepSTEP_SEND
)

// Learned is the result of learning a frame's source.
type Learned = kernelLearned

// The results of learning. The results from LearnLocked on are for a locked port, where the source
// is not authorized.
const (
	LearnNotAsked    = kernelLearnedLEARN_NOT_ASKED
	LearnOff         = kernelLearnedLEARN_OFF // the port does not learn
	LearnKnown       = kernelLearnedLEARN_KNOWN
	LearnNew         = kernelLearnedLEARN_NEW
	LearnMoved       = kernelLearnedLEARN_MOVED
	LearnStatic      = kernelLearnedLEARN_STATIC // not moved: static elsewhere
	LearnSticky      = kernelLearnedLEARN_STICKY // not moved: sticky elsewhere
	LearnDamped      = kernelLearnedLEARN_DAMPED // not moved: moved too often this second
	LearnFull        = kernelLearnedLEARN_FULL   // no room; if another port had it, no room at the new port
	LearnLocked      = kernelLearnedLEARN_LOCKED
	LearnLockedAgain = kernelLearnedLEARN_LOCKED_AGAIN
	LearnLockedAway  = kernelLearnedLEARN_LOCKED_AWAY // another port has it
	LearnLockedFull  = kernelLearnedLEARN_LOCKED_FULL
	LearnEnd         = kernelLearnedLEARN_RESULTS // all results are below
)

// Found is the result of looking up a frame's destination.
type Found = kernelFound

// The results of looking up.
const (
	FindNotAsked = kernelFoundFIND_NOT_ASKED
	FindNone     = kernelFoundFIND_NONE
	FindDynamic  = kernelFoundFIND_DYNAMIC
	FindStatic   = kernelFoundFIND_STATIC
	FindSticky   = kernelFoundFIND_STICKY
	FindLocked   = kernelFoundFIND_LOCKED // a locked entry, to which no frame is sent
	FindEnd      = kernelFoundFIND_RESULTS
)

// FloodPast is the reason why a flood leaves out a port: an index in Reasons, or one of the
// constants below.
type FloodPast = kernelFloodPast

// Reasons why a flood leaves out a port without a dropped frame.
const (
	PastLearning = kernelFloodPastPAST_LEARNING // the port is in spanning tree's learning state
	PastOrigin   = kernelFloodPastPAST_ORIGIN   // the frame came in by it
	PastFlag     = kernelFloodPastPAST_FLAG     // it takes no floods of this kind
	PastDevice   = kernelFloodPastPAST_DEVICE   // its device has gone
	PastCarrier  = kernelFloodPastPAST_CARRIER  // it is down, or has no carrier
	PastEnd      = kernelFloodPastPAST_END
)

// Traced is the datapath's record of the decision on a frame: struct traced of bpf/types.h.
type Traced struct{ kernelTraced }

// ToSockets reports whether sockets of the host receive a frame to a reserved address, which is not
// forwarded and counts as dropped.
func (t *Traced) ToSockets() bool {
	return t.Action == ActionDrop && kernelDropReason(t.Reason) == kernelDropReasonDROP_RESERVED && t.Word != 0
}

// Translated returns the source and destination to which pf has translated the packet, if NatProto
// is not 0. For an echo, the source's port is the identifier.
func (t *Traced) Translated() (from, to netip.AddrPort) {
	src, dst := kernelPfAddress{Word: t.NatSrc}, kernelPfAddress{Word: t.NatDst}
	return netip.AddrPortFrom(src.addr().Unmap(), fromNetwork(t.NatSport)), netip.AddrPortFrom(dst.addr().Unmap(), fromNetwork(t.NatDport))
}

// Hop returns the next hop that a rule of pf sets for the packet, or for a copy of it, and the word
// of the rule that sets it; false if there is none.
func (t *Traced) Hop() (hop netip.Addr, kind pf.RouteKind, ok bool) {
	if t.HopKind == 0 || t.Diverted() != nil {
		return hop, kind, false
	}
	a := kernelPfAddress{Word: t.kernelTraced.Hop}
	return a.addr().Unmap(), hopKind(t.HopKind), true
}

// Matches returns the numbers, plus 1, of pf's match rules that translate the packet on its way in,
// or out.
func (t *Traced) Matches(out bool) []uint16 {
	list := t.PfMatch[0][:]
	if out {
		list = t.PfMatch[1][:]
	}
	if end := slices.Index(list, 0); end >= 0 {
		list = list[:end]
	}
	return list
}

// Diverted returns the host's socket to which a rule of pf diverts the packet, nil for none.
func (t *Traced) Diverted() *pf.Divert {
	return diverted(t.HopKind, kernelPfAddress{Word: t.kernelTraced.Hop}, uint16(t.HopPort))
}

// Trace has a program like the bridge's own decide on a frame that comes in by a port, and record
// its steps. The program works on copies of all tables that it writes to: no address is learned,
// and no frame is counted or sent.
func (b *Bridge) Trace(p *Port, frame []byte) (*Traced, error) {
	c := b.Config
	// Watches of other frames do not affect this one.
	c.Features &^= uint64(kernelFeatureFEATURE_CAPTURE | kernelFeatureFEATURE_TALKERS | kernelFeatureFEATURE_SAMPLE | kernelFeatureFEATURE_VLAN_STATS)
	c.Features |= uint64(kernelFeatureFEATURE_TRACE)
	object, err := b.store.programs(&c)
	if err != nil {
		return nil, err
	}
	spec := object.spec
	c.Pf.Buckets = 0 // as if there were no pf
	if b.PFEnabled() {
		c.Pf.Buckets = trialBuckets
	}
	if err := c.setIn(spec); err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if name != kernelProgBasculeTcx && name != kernelProgBasculeFamily && name != kernelProgBasculeFib &&
			name != kernelProgBasculeHop && name != kernelProgBasculeDue {
			delete(spec.Programs, name)
		}
	}
	leaveOut(spec, &c)
	linker := object.linker(&c)
	for _, p := range spec.Programs {
		if err := linker.make(p, c.Features); err != nil {
			return nil, err
		}
	}
	fit(spec, &making{Config: &c})
	opts := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for _, table := range tablesThat(func(t *table) bool { return t.trial == trialShared && spec.Maps[t.name] != nil }) {
		open := b.openTable
		if table.life == lifeNamespace {
			open = b.store.openShared
		}
		if table.life == lifeNamespace && !patched(&c) {
			continue // it was never made
		}
		m, err := open(table.name)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		spec.Maps[table.name].MaxEntries = m.MaxEntries()
		opts.MapReplacements[table.name] = m
	}
	for _, table := range tablesThat(func(t *table) bool { return t.trial == trialCopy && spec.Maps[t.name] != nil }) {
		m, err := b.openTable(table.name)
		if err != nil {
			return nil, err
		}
		spec.Maps[table.name].MaxEntries = m.MaxEntries() // programs may have been loaded for more rules
		m.Close()
	}
	coll, err := load(spec, opts, &c)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	if err := enterPanel(coll, &c); err != nil {
		return nil, err
	}
	if err := b.copyState(coll); err != nil {
		return nil, err
	}
	if b.PFEnabled() {
		if err := b.copyAbout(coll, &c, frame); err != nil {
			return nil, err
		}
	}

	context := skbContext{Ifindex: p.Ifindex, IngressIfindex: p.Ifindex}
	if _, err := coll.Programs[kernelProgBasculeTcx].Run(&ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+258), Context: context,
	}); err != nil {
		if errors.Is(err, unix.EINVAL) {
			// the header for the EtherType must be complete
			headers := map[uint16]int{unix.ETH_P_IP: 34, unix.ETH_P_IPV6: 54}
			if least := headers[etherType(frame)]; len(frame) < least {
				return nil, TrialShortError(least)
			}
			return nil, TrialSizeError{len(frame), largest(coll.Programs[kernelProgBasculeTcx], context, len(frame))}
		}
		return nil, err
	}
	t := new(Traced)
	if err := t.read(coll.Maps[kernelMapMemory]); err != nil {
		return nil, err
	}
	return t, nil
}

// largest finds the most bytes that the kernel takes for a trial of the program. A frame of the
// given size is too large.
func largest(p *ebpf.Program, context skbContext, size int) int {
	return headerBytes - 1 + sort.Search(max(size-headerBytes, 0), func(i int) bool {
		_, err := p.Run(&ebpf.RunOptions{Data: make([]byte, headerBytes+i), Context: context})
		return err != nil
	})
}

// read reads the record that the trial has left in the memory of its CPU.
func (t *Traced) read(m *ebpf.Map) error {
	var perCPU []kernelMemory
	if err := m.Lookup(m.MaxEntries()-1, &perCPU); err != nil {
		return err
	}
	for i := range perCPU {
		if traced := (*kernelTraced)(unsafe.Pointer(&perCPU[i])); *traced != (kernelTraced{}) {
			t.kernelTraced = *traced
		}
	}
	return nil
}

// etherType returns the type in a frame's header, 0 if it has none.
func etherType(frame []byte) uint16 {
	if len(frame) < headerBytes {
		return 0
	}
	return binary.BigEndian.Uint16(frame[12:])
}

// copyState copies the present contents of the bridge's tables to a collection's.
func (b *Bridge) copyState(coll *ebpf.Collection) error {
	for _, table := range tablesThat(func(t *table) bool { return t.trial == trialCopy && coll.Maps[t.name] != nil }) {
		from, err := b.openTable(table.name)
		if err != nil {
			return err
		}
		err = copyArray(coll.Maps[table.name], from)
		from.Close()
		if err != nil {
			return fmt.Errorf("copy %s: %w", table.name, err)
		}
	}
	return nil
}

// copyAbout gives a trial with the configuration c the states and sources whose addresses are
// anywhere in the frame: the frame's own addresses, or the addresses of a packet that it quotes. It
// copies all limiters, whose sources may be networks.
func (b *Bridge) copyAbout(coll *ebpf.Collection, c *Config, frame []byte) error {
	has := func(words [4]uint32) bool {
		k := kernelPfAddress{Word: words}
		return bytes.Contains(frame, k.addr().AsSlice())
	}
	from, err := b.states(unix.PROT_READ)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := mapStates(coll.Maps[kernelMapPfBuckets], coll.Maps[kernelMapPfStates], coll.Maps[kernelMapPfStamps], c, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer to.close()
	about := func(s *kernelPfState) bool { return has(s.Key.Address[0]) && has(s.Key.Address[1]) }
	from.each(func(place uint32, s *kernelPfState) bool {
		key, ok := from.stackKey(place, s)
		if about(s) || ok && about(&key) {
			to.put(s, &key, from.kept(place))
		}
		return true
	})
	sources, err := b.openTable(kernelMapPfSources)
	if err != nil {
		return err
	}
	defer sources.Close()
	return eachOf(sources, func(keys []kernelPfSourceKey, values []kernelPfSource) error {
		for i := range keys {
			if !has(keys[i].Address) && !keys[i].ofLimiter() {
				continue
			}
			if err := put(coll.Maps[kernelMapPfSources], keys[i], values[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// copyArray copies an array to another of the same size; a large one should be mappable.
func copyArray(to, from *ebpf.Map) error {
	if from.Flags()&unix.BPF_F_MMAPABLE == 0 {
		for i := range from.MaxEntries() {
			value, err := from.LookupBytes(i)
			if err == nil {
				err = to.Put(i, value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
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
