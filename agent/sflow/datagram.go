// SPDX-License-Identifier: BSD-2-Clause

package sflow

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"bascule/bridge"
)

// The formats in datagrams (sFlow version 5, sflow.org/sflow_version_5.txt, and "sFlow
// Dropped Packet Notification Structures"). All have enterprise 0.
const (
	version = 5

	formatFlow     = 3 // expanded flow sample
	formatCounters = 4 // expanded counters sample
	formatDiscard  = 5 // discarded packet

	recordHeader   = 1    // raw packet header
	recordSwitch   = 1001 // extended switch data
	recordGeneric  = 1    // of counters: generic interface counters
	recordPortName = 1005 // of counters: name of the port

	headerEthernet = 1 // protocol of a raw packet header
	interfaceType  = 6 // ethernetCsmacd, of generic interface counters
	frameCheck     = 4 // bytes of an Ethernet frame that hosts do not receive
	unknown        = 1<<32 - 1
	internal       = 0x3fffffff // as an output: the switch itself

	// formats of an output interface
	outputOne       = 0
	outputDiscarded = 1
	outputMany      = 2
)

// mostDatagram is the largest size of a datagram, in bytes: it fits into an IPv6 packet of
// 1500 bytes, even through a tunnel or two.
const mostDatagram = 1400

// A buffer is growing XDR data (RFC 4506).
type buffer []byte

func (b *buffer) u32(list ...uint32) {
	for _, v := range list {
		*b = binary.BigEndian.AppendUint32(*b, v)
	}
}

func (b *buffer) u64(v uint64) { *b = binary.BigEndian.AppendUint64(*b, v) }

// opaque appends bytes with their length, padded to a multiple of four.
func (b *buffer) opaque(data []byte) {
	b.u32(uint32(len(data)))
	*b = append(*b, data...)
	*b = append(*b, make([]byte, -len(data)&3)...)
}

// block appends the output of f, with its format and length.
func (b *buffer) block(format uint32, f func(*buffer)) {
	b.u32(format, 0)
	start := len(*b)
	f(b)
	binary.BigEndian.PutUint32((*b)[start-4:], uint32(len(*b)-start))
}

// head appends the beginning of a datagram. The number of its samples is filled in later.
func (b *buffer) head(agent netip.Addr, sub, seq, uptime uint32) {
	b.u32(version)
	if agent.Is4() {
		b.u32(1)
	} else {
		b.u32(2)
	}
	*b = append(*b, agent.AsSlice()...)
	b.u32(sub, seq, uptime)
}

// frame appends the records of a sampled frame.
func (b *buffer) frame(f bridge.SampledFrame) {
	records := uint32(1)
	if f.VLAN != 0 {
		records++
	}
	b.u32(records)
	b.block(recordHeader, func(b *buffer) {
		b.u32(headerEthernet, uint32(f.Length)+frameCheck, frameCheck)
		b.opaque(f.Data)
	})
	if f.VLAN == 0 {
		return
	}
	priority := uint32(0)
	if len(f.Data) >= 16 {
		if kind := binary.BigEndian.Uint16(f.Data[12:]); kind == 0x8100 || kind == 0x88a8 {
			priority = uint32(f.Data[14] >> 5)
		}
	}
	b.block(recordSwitch, func(b *buffer) {
		if f.Reason != "" {
			b.u32(uint32(f.VLAN), priority, unknown, unknown)
			return
		}
		b.u32(uint32(f.VLAN), priority, uint32(f.VLAN), priority) // bridges forward within a VLAN
	})
}

// output returns a frame's output interface, as format and value.
func output(f bridge.SampledFrame) (form, value uint32) {
	switch {
	case f.Reason != "":
		return outputDiscarded, reasonCode(f.Reason)
	case f.Flood:
		return outputMany, 0 // to several ports, whose number is not known
	case f.Out != 0:
		return outputOne, f.Out
	}
	return outputOne, internal
}

// flow appends a sample of a frame.
func (b *buffer) flow(f bridge.SampledFrame, seq, rate, pool, drops uint32) {
	b.block(formatFlow, func(b *buffer) {
		form, value := output(f)
		b.u32(seq, 0, f.In, rate, pool, drops, outputOne, f.In, form, value)
		b.frame(f)
	})
}

// discard appends a dropped frame.
func (b *buffer) discard(f bridge.SampledFrame, seq, drops uint32) {
	b.block(formatDiscard, func(b *buffer) {
		b.u32(seq, 0, f.In, drops, f.In, 0, reasonCode(f.Reason))
		b.frame(f)
	})
}

// The values of ifDirection and of ifPromiscuousMode, which is a TruthValue of RFC 2579.
const (
	directionUnknown = 0
	directionFull    = 1
	directionHalf    = 2

	yes = 1
	no  = 2
)

// counters appends the counters of a port. Counters that the switch does not have are
// unknown.
func (b *buffer) counters(p bridge.Port, link bridge.LinkSettings, index, seq uint32) {
	direction, promiscuous := uint32(directionUnknown), uint32(no)
	switch {
	case link.Duplex == bridge.DuplexFull || p.Type == bridge.TypePatch:
		direction = directionFull
	case link.Duplex == bridge.DuplexHalf:
		direction = directionHalf
	}
	if p.Type == bridge.TypePatch || slices.Contains(p.Flags, "PROMISC") {
		promiscuous = yes
	}
	var status uint32
	if slices.Contains(p.Flags, "UP") {
		status |= 1
	}
	if p.State != "disabled" && p.State != "gone" && p.State != "no-peer" {
		status |= 2
	}
	if p.Type == bridge.TypePatch {
		status |= 1
	}
	var dropped uint64
	for _, n := range p.Stats.Drops {
		dropped += n
	}
	b.block(formatCounters, func(b *buffer) {
		b.u32(seq, 0, index, 2)
		b.block(recordGeneric, func(b *buffer) {
			b.u32(index, interfaceType)
			b.u64(uint64(link.SpeedMbit) * 1e6)
			b.u32(direction, status)
			b.u64(p.Stats.RxBytes)
			b.u32(uint32(p.Stats.RxFrames), unknown, unknown, uint32(dropped), unknown, unknown)
			b.u64(p.Stats.TxBytes)
			b.u32(uint32(p.Stats.TxFrames), unknown, unknown, unknown, unknown)
			b.u32(promiscuous)
		})
		b.block(recordPortName, func(b *buffer) { b.opaque([]byte(p.Name)) })
	})
}
