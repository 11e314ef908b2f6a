// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"sync/atomic"
	"unsafe"

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
	EventRefusedFull   = kernelEventKindEVENT_REFUSED_FULL   // no room to learn it
	EventRefusedPinned = kernelEventKindEVENT_REFUSED_PINNED // static or sticky elsewhere
	EventRefusedDamped = kernelEventKindEVENT_REFUSED_DAMPED // moved too often this second
	EventLoop          = kernelEventKindEVENT_LOOP           // the switch's own frame came back by the port
	EventBlocked       = kernelEventKindEVENT_BLOCKED        // the port is blocked for Count seconds
	EventLocked        = kernelEventKindEVENT_LOCKED         // heard on a locked port, and let in by nobody
	EventAdded         = kernelEventKindEVENT_ADDED          // made static or sticky; From is the port before
	EventEnd           = kernelEventKindEVENT_KINDS          // no event has this kind, or one above it
)

// An Event is something that the datapath noted.
type Event struct {
	Kind  EventKind
	MAC   [6]byte
	VLAN  uint16
	Port  uint32 // id
	From  uint32 // id of the port where the address was, 0 if none
	Count uint32 // how often since the last event like it; EventBlocked: for how many seconds
}

// A Log reads the datapath's events from when it was opened. Any number of
// readers can have one; none takes anything from another.
type Log struct {
	mem   []byte
	clock func() (kernelClock, error)
	next  uint64
	done  func()

	merged, mergedBefore uint64 // at the last Read, and when it was opened
}

// OpenLog opens the bridge's events, from now on. It lasts beyond changes of
// the bridge's configuration.
func (b *Bridge) OpenLog() (*Log, error) {
	events, err := b.openTable(kernelMapEvents)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	clock, err := b.openTable(kernelMapClock)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(events.FD(), 0, int(events.MaxEntries()*events.ValueSize()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		clock.Close()
		return nil, fmt.Errorf("map the events: %w", err)
	}
	l := &Log{mem: mem, done: func() { clock.Close() }}
	l.clock = func() (c kernelClock, err error) {
		err = clock.Lookup(uint32(0), &c)
		return c, err
	}
	now, err := l.clock()
	if err != nil {
		l.Close()
		return nil, err
	}
	l.next = now.Events
	l.merged, l.mergedBefore = now.Merged, now.Merged
	return l, nil
}

// Merged counts the events, by the last Read since the log was opened, that no
// event of their own told of: claims on an address that repeat are told once a
// second.
func (l *Log) Merged() uint64 { return l.merged - l.mergedBefore }

// Close ends the reading.
func (l *Log) Close() {
	unix.Munmap(l.mem)
	l.done()
}

// Read returns the events since the last call, and how many events were
// overwritten before they could be read.
func (l *Log) Read() (list []Event, missed uint64, err error) {
	now, err := l.clock()
	if err != nil {
		return nil, 0, err
	}
	l.merged = now.Merged
	cells := unsafe.Slice((*kernelEvent)(unsafe.Pointer(&l.mem[0])), len(l.mem)/int(unsafe.Sizeof(kernelEvent{})))
	if behind := now.Events - l.next; behind > uint64(len(cells)) {
		missed = behind - uint64(len(cells))
		l.next += missed
	}
	for ; l.next < now.Events; l.next++ {
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
