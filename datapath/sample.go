// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A SampleKind is the kind of a sample: a frame that comes in, or one that is dropped.
type SampleKind = kernelSampleKind

// The kinds of samples.
const (
	SampleFlow  = kernelSampleKindSAMPLE_FLOW
	SampleDrop  = kernelSampleKindSAMPLE_DROP
	SampleKinds = kernelSampleKindSAMPLE_KINDS
)

// SampleLog is the most samples of a kind that wait for a reader.
const SampleLog = len(kernelSampleLog{}.Cell)

// sampleFlood stands for a flood instead of the slot that a frame leaves by
// (SAMPLE_FLOOD).
const sampleFlood = 0xffff

// A Sample is a frame that was sampled, as it came in.
type Sample struct {
	Port   uint32 // id of the port that it came in by
	Out    uint32 // slot that it leaves by, 0 for none
	Flood  bool   // it leaves by several ports
	Reason uint8  // for a drop, an index in Reasons; 0 if it goes to no port because it is for the switch
	VLAN   uint16 // 0 for none
	Length int    // bytes of the frame
	Data   []byte // its first bytes, with its tags; at most MaxSample
}

// MaxSample is the most bytes of a frame that a sample has.
const MaxSample = len(kernelSample{}.Frame)

// Samples reads the samples of a bridge from the moment at which it was opened. As with a
// Log of events, the datapath does not wait for it.
type Samples struct {
	shared *kernelShared
	next   [SampleKinds]uint64
	done   func()
}

// OpenSamples opens the bridge's samples. The reader stays valid after changes of the
// bridge's configuration.
func (b *Bridge) OpenSamples() (*Samples, error) {
	m, err := b.openTable(kernelMapShared)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	mem, unmap, err := mapTable(m, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	s := &Samples{shared: (*kernelShared)(unsafe.Pointer(&mem[0])), done: unmap}
	for kind := range s.next {
		s.next[kind] = atomic.LoadUint64(&s.shared.Samples[kind].Next)
	}
	return s, nil
}

// Close ends the reading.
func (s *Samples) Close() { s.done() }

// Read returns the samples of a kind since the last call, and the number of samples that
// were overwritten before they could be read.
func (s *Samples) Read(kind SampleKind) (list []Sample, missed uint64) {
	log, next := &s.shared.Samples[kind], &s.next[kind]
	all := atomic.LoadUint64(&log.Next)
	if behind := all - *next; behind > uint64(SampleLog) {
		missed = behind - uint64(SampleLog)
		*next += missed
	}
	for ; *next < all; *next++ {
		cell := &log.Cell[*next%uint64(SampleLog)]
		seq := atomic.LoadUint64(&cell.Seq)
		if seq == 0 || seq < *next+1 {
			return list, missed // still being written
		}
		c := *cell
		if atomic.LoadUint64(&cell.Seq) != *next+1 {
			missed++
			continue
		}
		sample := Sample{Port: c.Port, Out: uint32(c.Out), Reason: c.Reason, VLAN: c.Vlan, Length: int(c.Len)}
		if c.Out == sampleFlood {
			sample.Out, sample.Flood = 0, true
		}
		sample.Data = slices.Clone(c.Frame[:min(int(c.Kept), len(c.Frame))])
		list = append(list, sample)
	}
	return list, missed
}
