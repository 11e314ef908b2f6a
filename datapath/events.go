// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// EventKind is the kind of an event, mostly of an address.
type EventKind = kernelEventKind

// The kinds of events.
const (
	EventLearned       = kernelEventKindEVENT_LEARNED
	EventMoved         = kernelEventKindEVENT_MOVED
	EventAged          = kernelEventKindEVENT_AGED
	EventDeleted       = kernelEventKindEVENT_DELETED
	EventRefusedFull   = kernelEventKindEVENT_REFUSED_FULL   // there is no room to learn it
	EventRefusedPinned = kernelEventKindEVENT_REFUSED_PINNED // static or sticky elsewhere
	EventRefusedDamped = kernelEventKindEVENT_REFUSED_DAMPED // moved too often this second
	EventLoop          = kernelEventKindEVENT_LOOP           // the switch's own frame came back by the port
	EventBlocked       = kernelEventKindEVENT_BLOCKED        // the port is blocked for Count seconds
	EventLocked        = kernelEventKindEVENT_LOCKED         // seen on a locked port, where it is not authorized
	EventAdded         = kernelEventKindEVENT_ADDED          // made static or sticky; From is the port before
	EventEnd           = kernelEventKindEVENT_KINDS          // no event has this kind, or one above it
)

// An Event is an event that the datapath has reported.
type Event struct {
	Kind  EventKind
	MAC   [6]byte
	VLAN  uint16
	Port  uint32 // id
	From  uint32 // id of the port where the address was, 0 if none
	Count uint32 // how often since the last event like it; EventBlocked: for how many seconds
}

// A Log reads the datapath's events from the moment at which it was opened. There can
// be any number of readers; each gets all events.
type Log struct {
	shared *kernelShared
	next   uint64
	done   func()

	merged, mergedBefore uint64 // the number at the last Read, and when the log was opened
}

// OpenLog opens the bridge's events, from now on. It stays valid after changes of the
// bridge's configuration.
func (b *Bridge) OpenLog() (*Log, error) {
	m, err := b.openTable(kernelMapShared)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return openLog(m)
}

func openLog(m *ebpf.Map) (*Log, error) {
	mem, unmap, err := mapTable(m, unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	l := &Log{shared: (*kernelShared)(unsafe.Pointer(&mem[0])), done: unmap}
	l.next = atomic.LoadUint64(&l.shared.Clock.Events)
	l.merged = atomic.LoadUint64(&l.shared.Clock.Merged)
	l.mergedBefore = l.merged
	return l, nil
}

// Merged returns how many events were not reported by an event of their own, from when
// the log was opened to the last Read: claims on an address that repeat are reported
// once a second.
func (l *Log) Merged() uint64 { return l.merged - l.mergedBefore }

// Close ends the reading.
func (l *Log) Close() { l.done() }

// Read returns the events since the last call, and the number of events that were
// overwritten before they could be read.
func (l *Log) Read() (list []Event, missed uint64, err error) {
	events := atomic.LoadUint64(&l.shared.Clock.Events)
	l.merged = atomic.LoadUint64(&l.shared.Clock.Merged)
	cells := &l.shared.Events
	if behind := events - l.next; behind > uint64(len(cells)) {
		missed = behind - uint64(len(cells))
		l.next += missed
	}
	for ; l.next < events; l.next++ {
		cell := &cells[l.next%uint64(len(cells))]
		seq := atomic.LoadUint64(&cell.Seq)
		if seq == 0 || seq < l.next+1 {
			return list, missed, nil // still being written
		}
		e := *cell
		if atomic.LoadUint64(&cell.Seq) != l.next+1 {
			missed++
			continue
		}
		list = append(list, Event{
			Kind: e.Kind, MAC: macOf(e.Key), VLAN: uint16(e.Key >> macBits),
			Port: e.Port, From: e.From, Count: e.Count,
		})
	}
	return list, missed, nil
}
