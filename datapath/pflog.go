// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"bascule/clock"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// pfLogRing is the size of the buffer between the log's reader and the
// datapath, in bytes.
const pfLogRing = 256 << 10

// PFAction is the action of a rule of pf.
type PFAction = kernelPfAction

// The actions.
const (
	PFPass  = kernelPfActionPF_PASS
	PFBlock = kernelPfActionPF_BLOCK
	PFMatch = kernelPfActionPF_MATCH
)

// PFLogged is a packet of pf's log.
type PFLogged struct {
	Time    time.Duration // CLOCK_MONOTONIC
	Port    uint32        // id
	Rule    int           // number, -1 for no rule
	Ruleset uint16        // ruleset in which the rule has this number
	Action  PFAction
	Out     bool   // on its way out of the port
	Reason  uint8  // index in Reasons, 0 if a rule decided
	LogTo   int    // N of the interface pflogN
	Family  uint8  // 4 or 6
	Length  int    // bytes of the IP packet
	Data    []byte // its first bytes, good until the function returns
}

// PFLog calls f with each packet that pf logs, and first with unread packets that were
// logged since a moment of CLOCK_MONOTONIC. It returns nil when the context is done, or
// f's error. Only one reader is possible: two would take packets from each other. If
// there is another reader, the error is ErrWatched.
func (b *Bridge) PFLog(ctx context.Context, since time.Duration, f func(PFLogged) error) error {
	return b.readPFLog(since, func(r *pfLogReader) error { return r.read(ctx, f) })
}

// PFLogRest calls f with each unread packet that pf has logged since a moment of
// CLOCK_MONOTONIC, and does not wait for more. It fails as PFLog does.
func (b *Bridge) PFLogRest(since time.Duration, f func(PFLogged) error) error {
	return b.readPFLog(since, func(r *pfLogReader) error { return r.rest(clock.Monotonic(), f) })
}

func (b *Bridge) readPFLog(since time.Duration, read func(*pfLogReader) error) error {
	release, err := b.Hold(WatchPFLog)
	if err != nil {
		return err
	}
	defer release()
	m, err := b.openTable(kernelMapPfLogRing)
	if err != nil {
		return err
	}
	defer m.Close()
	r, err := openPFLog(m, since)
	if err != nil {
		return err
	}
	return read(r)
}

// A pfLogReader omits packets that were logged before since.
type pfLogReader struct {
	ring  *ringbuf.Reader
	since time.Duration // CLOCK_MONOTONIC

	record ringbuf.Record
}

func openPFLog(m *ebpf.Map, since time.Duration) (*pfLogReader, error) {
	ring, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("read pf's log: %w", err)
	}
	return &pfLogReader{ring: ring, since: since}, nil
}

// read reads until the context is done or f returns an error, and closes r.
func (r *pfLogReader) read(ctx context.Context, f func(PFLogged) error) error {
	defer r.ring.Close()
	defer context.AfterFunc(ctx, func() { r.ring.Close() })()
	for {
		l, err := r.next()
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		}
		if err := f(l); err != nil {
			return err
		}
	}
}

// rest reads unread packets that were logged until a moment, until there are no more or f returns an
// error, and closes r.
func (r *pfLogReader) rest(until time.Duration, f func(PFLogged) error) error {
	defer r.ring.Close()
	r.ring.SetDeadline(time.Now())
	for {
		l, err := r.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), err == nil && l.Time > until:
			return nil
		case err != nil:
			return err
		}
		if err := f(l); err != nil {
			return err
		}
	}
}

func (r *pfLogReader) next() (PFLogged, error) {
	for {
		if err := r.ring.ReadInto(&r.record); err != nil {
			return PFLogged{}, err
		}
		if l, err := pfLogged(r.record.RawSample); err != nil || l.Time >= r.since {
			return l, err
		}
	}
}

func pfLogged(raw []byte) (PFLogged, error) {
	var l kernelPfLogged
	if len(raw) < int(unsafe.Sizeof(l)) {
		return PFLogged{}, fmt.Errorf("a logged packet of %d bytes", len(raw))
	}
	if _, err := binary.Decode(raw, binary.NativeEndian, &l); err != nil {
		return PFLogged{}, err
	}
	return PFLogged{
		Time: time.Duration(l.Time), Port: l.Port, Rule: int(l.Rule) - 1, Ruleset: l.Ruleset,
		Action: PFAction(l.Action), Out: l.Direction != 0, Reason: l.Reason, LogTo: int(l.LogTo),
		Family: l.Family, Length: int(l.Len), Data: l.Data[:min(int(l.Kept), len(l.Data))],
	}, nil
}

// PFLogMissed returns how many packets have been lost since pf's log was switched on,
// because the reader was late.
func (b *Bridge) PFLogMissed() (uint64, error) {
	m, err := b.openTable(kernelMapCounters)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	return counterOf(m, kernelCounterCOUNTER_PF_LOG_MISSED)
}
