// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// numbered returns the n-th of the addresses that stand for many stations.
func numbered(n uint32) net.HardwareAddr {
	mac := net.HardwareAddr{0x02, 0xfd, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(mac[2:], n)
	return mac
}

// long is an ageing time that exceeds any measurement.
const long = time.Hour

// learning sends small frames from one port to another on one core, while the switch learns new
// addresses at a third port from another core.
var learning = &Kind{
	Name:  "learning",
	About: "64-byte frames, one core, while another learns new addresses",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w learningParams
		p.IntVar(&w.rate, "rate", 100_000, "new addresses a second, 0 for none")
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			about := w.what() + ", one core, while no new address comes"
			switch {
			case w.rate < 0 || w.rate > mostLearned || float64(w.rate)*w.length.Seconds() > mostLearned:
				return nil, fmt.Errorf("rate must be 0 or more, and at most %d addresses in all of duration", mostLearned)
			case w.rate > 0:
				about = fmt.Sprintf("%s, one core, while another learns %d new addresses a second", w.what(), w.rate)
			}
			return &Workload{
				About: about,
				Unit:  "Mpps",
				Takes: w.length + startStop,
				// Room for the addresses learned in one round.
				Spec:  fabrics.Spec{Ends: 3, Ageing: long, FDBMax: roomy, Frames: true},
				Start: w.start,
			}, w.check()
		}
	},
}

// mostLearned leaves room for addresses learned before and after the window.
const mostLearned = roomy / 2

type learningParams struct {
	frameParams
	rate int
}

// start attaches the counters.
func (w learningParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if err := learns(n); err != nil {
		return nil, err
	}
	if w.rate > 0 {
		if _, err := n.Known(ctx); err != nil {
			return nil, err
		}
	}
	cpus, err := cores(2)
	if err != nil {
		return nil, err
	}
	b, err := newBlast(ctx, n, w.frameParams, n.Fabric.Arrival, []int{1})
	if err != nil {
		return nil, err
	}
	b.teach = []int{0, 1, 2}
	var used atomic.Uint32
	b.flows = func() []flow {
		fs := []flow{w.send(n, 0, 1, cpus[0])}
		if w.rate > 0 {
			// To their own port, so that the switch only learns from them. Every window
			// has new addresses.
			f := w.send(n, 2, 2, cpus[1])
			const room = 1 << 22
			f.stream.Src = probe.Vary{Base: numbered(used.Add(room)), Count: room}
			f.stream.Rate = uint64(w.rate)
			f.aside = true
			fs = append(fs, f)
		}
		return fs
	}
	return &learningSession{w, b}, nil
}

// learns refuses a fabric without a table of addresses.
func learns(n *fabrics.Net) error {
	if n.Fabric.Pairs || n.Fabric.Routed {
		return &ends.Unavailable{Reason: "it learns no addresses"}
	}
	return nil
}

type learningSession struct {
	learningParams
	*blast
}

// Run runs one round, on a switch that has forgotten earlier rounds.
func (l *learningSession) Run(ctx context.Context, m Meter) (report.Sample, error) {
	for begin := time.Now(); ; {
		s, err := l.round(ctx, m)
		// On a busy machine, the flow of new addresses may be too slow.
		if late := new(lateError); !errors.As(err, &late) || time.Since(begin) > patience {
			return s, err
		}
	}
}

// lateError is a flow that was slower than required.
type lateError struct {
	rate   float64 // new addresses per second
	wanted int
}

func (e *lateError) Error() string {
	return fmt.Sprintf("only %.0f new addresses a second came, of %d", e.rate, e.wanted)
}

func (l *learningSession) round(ctx context.Context, m Meter) (report.Sample, error) {
	if err := l.net.Flush(ctx); err != nil {
		return report.Sample{}, err
	}
	s, err := l.blast.Run(ctx, m)
	if err != nil || l.learningParams.rate == 0 {
		return s, err
	}
	s.Frames, s.Bytes = 0, 0
	known, err := l.net.Known(ctx)
	if err != nil {
		return s, err
	}
	if rate := s.More[asideRate]; rate < 0.9*float64(l.learningParams.rate) {
		return s, &lateError{rate, l.learningParams.rate}
	}
	if came := s.More[asideSent]; float64(known) < 0.95*came {
		return s, fmt.Errorf("fabric %s knows %d addresses after a round, of at least %.0f that came", l.net.Fabric.Name, known, came)
	}
	s.More["learned"] = float64(known)
	return s, nil
}

// addresses sends small frames on one core to random destinations out of many addresses.
var addresses = &Kind{
	Name:  "addresses",
	About: "64-byte frames, one core, to random addresses of many",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w addressesParams
		p.IntVar(&w.count, "count", 1_000_000, "addresses behind the receiving port")
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			if w.count < 1 || w.count > mostAddresses {
				return nil, fmt.Errorf("count must be 1 to %d", mostAddresses)
			}
			return &Workload{
				About: fmt.Sprintf("%s, one core, to random ones of %d addresses", w.what(), w.count),
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  fabrics.Spec{Ends: 2, Ageing: long, FDBMax: w.count + 1000, Frames: true},
				Start: w.start,
			}, w.check()
		}
	},
}

type addressesParams struct {
	frameParams
	count int
}

// start makes the switch learn the addresses.
func (w addressesParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if err := learns(n); err != nil {
		return nil, err
	}
	b, f, err := w.pair(ctx, n)
	if err != nil {
		return nil, err
	}
	if err := w.fill(ctx, n, b.maker, 1, w.count); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	f.stream.Dst = probe.Vary{Base: numbered(0), Count: uint32(w.count), Random: true}
	return b, nil
}

// fill makes the switch learn count addresses behind an end, through frames to the end's own
// address. The switch learns that address first, so it forwards none of them.
func (f *frameParams) fill(ctx context.Context, n *fabrics.Net, m maker, end, count int) error {
	cpus, err := cores(1)
	if err != nil {
		return err
	}
	e := n.Ends[end]
	if err := e.Send(ends.Frame(smallest, e, ends.Broadcast, ends.NoStation)); err != nil {
		return err
	}
	from := f.send(n, end, end, cpus[0])
	from.stream.Src = probe.Vary{Base: numbered(0), Count: uint32(count)}
	known, err := taught(ctx, n, m, from, count)
	if err == nil && known < count {
		err = fmt.Errorf("fabric %s: it was taught %d addresses and knows %d", n.Fabric.Name, count, known)
	}
	return err
}

// taught sends a frame from every source address of a flow, until the switch has learned want
// addresses. It returns how many the switch has learned.
func taught(ctx context.Context, n *fabrics.Net, m maker, f flow, want int) (known int, err error) {
	for {
		before := known
		if err := sendCount(n, m, f, f.stream.Src.Count); err != nil {
			return known, err
		}
		// A frame may find a full ring, so a pass may miss some.
		if known, err = n.Known(ctx); err != nil || known >= want || known <= before {
			return known, err
		}
	}
}

// memory is the cost of an address in the switch's full tables.
var memory = &Kind{
	Name:  "fdb-memory",
	About: "kernel memory of all the switch's tables, per address",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		count := p.Int("count", 1_000_000, "addresses in the table")
		return func() (*Workload, error) {
			if *count < 1 || *count > mostAddresses {
				return nil, fmt.Errorf("count must be 1 to %d", mostAddresses)
			}
			return &Workload{
				About: fmt.Sprintf("kernel memory of all the switch's tables, per address, with %d addresses", *count),
				Unit:  "B",
				Lower: true,
				Takes: 50 * time.Millisecond,
				// A table that the addresses fill.
				Spec: fabrics.Spec{Ends: 2, Ageing: long, FDBMax: *count + 8, Frames: true},
				Start: func(ctx context.Context, n *fabrics.Net) (Session, error) {
					if _, err := n.Memory(); err != nil {
						return nil, err
					}
					small := frameParams{generator: "auto", size: strconv.Itoa(smallest)}
					m, err := small.maker(ctx, n, 1)
					if err != nil {
						return nil, err
					}
					if err := small.fill(ctx, n, m, 1, *count); err != nil {
						return nil, err
					}
					return memorySession{n}, nil
				},
			}, nil
		}
	},
}

type memorySession struct{ net *fabrics.Net }

// Run reads the kernel's memory accounting.
func (m memorySession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	bytes, err := m.net.Memory()
	if err != nil {
		return report.Sample{}, err
	}
	known, err := m.net.Known(ctx)
	if err != nil {
		return report.Sample{}, err
	}
	return report.Sample{
		Value: float64(bytes) / float64(known),
		More:  map[string]float64{"bytes": float64(bytes), "addresses": float64(known)},
	}, nil
}

// Close has nothing to do.
func (m memorySession) Close() error { return nil }
