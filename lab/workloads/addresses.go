// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// numbered is the n-th of the addresses that stand for many stations.
func numbered(n uint32) net.HardwareAddr {
	mac := net.HardwareAddr{0x02, 0xfd, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(mac[2:], n)
	return mac
}

// long is an ageing time in which nothing ages while it is measured.
const long = time.Hour

// Learning is small frames from one port to another on one core, while a third
// port teaches the switch new addresses from another core.
type Learning struct {
	Rate   int // new addresses a second, 0 for a quiet third port
	Length time.Duration
}

// Name is learning-RATE.
func (w Learning) Name() string { return fmt.Sprintf("learning-%d", w.Rate) }

// About is one line for people.
func (w Learning) About() string {
	if w.Rate == 0 {
		return "64-byte frames, one core, while no new address comes"
	}
	return fmt.Sprintf("64-byte frames, one core, while another learns %d new addresses a second", w.Rate)
}

// Unit is Mpps: millions of frames that arrive a second.
func (w Learning) Unit() string { return "Mpps" }

// Lower is false.
func (w Learning) Lower() bool { return false }

// Needs nothing.
func (w Learning) Needs() []string { return nil }

// Takes is the length of the window and some for start and stop.
func (w Learning) Takes() time.Duration { return w.Length + 250*time.Millisecond }

// Spec asks for three ends and room for what is learned in one round.
func (w Learning) Spec() fabrics.Spec {
	return fabrics.Spec{Ends: 3, Ageing: long, FDBMax: 1_000_000}
}

// Start attaches the counters.
func (w Learning) Start(_ context.Context, n *fabrics.Net) (Session, error) {
	if n.Fabric.Pairs {
		return nil, fmt.Errorf("fabric %s learns no addresses", n.Fabric.Name)
	}
	cpus, err := cores(2)
	if err != nil {
		return nil, err
	}
	b, err := newBlast(n, n.Fabric.Arrival, []int{1})
	if err != nil {
		return nil, err
	}
	b.length = w.Length
	b.teach = []int{0, 1, 2}
	var used atomic.Uint32
	b.flows = func() []flow {
		fs := []flow{send(n, 0, n.Ends[1].MAC, cpus[0])}
		if w.Rate > 0 {
			// To its own port, so that nothing but learning is done with
			// them. Every window has new addresses.
			f := send(n, 2, n.Ends[2].MAC, cpus[1])
			const room = 1 << 22
			f.stream.Src = probe.Vary{Base: numbered(used.Add(room)), Count: room}
			f.stream.Rate = uint64(w.Rate)
			f.aside = true
			fs = append(fs, f)
		}
		return fs
	}
	return &learning{w, b}, nil
}

type learning struct {
	Learning
	*blast
}

// Run is one round, on a switch that has forgotten the rounds before.
func (l *learning) Run(ctx context.Context) (report.Sample, error) {
	if err := l.net.Flush(ctx); err != nil {
		return report.Sample{}, err
	}
	s, err := l.blast.Run(ctx)
	if err != nil || l.Rate == 0 {
		return s, err
	}
	known, err := l.net.Known(ctx)
	if err != nil {
		return s, err
	}
	if want := float64(l.Rate) * l.length.Seconds(); float64(known) < 0.95*want {
		return s, fmt.Errorf("fabric %s knows %d addresses after a round, of at least %.0f that came", l.net.Fabric.Name, known, want)
	}
	s.More["learned"] = float64(known)
	return s, nil
}

// Addresses is small frames on one core to random addresses of many.
type Addresses struct {
	Count  int // addresses behind the receiving port
	Length time.Duration
}

// Name is addresses-COUNT.
func (w Addresses) Name() string { return fmt.Sprintf("addresses-%d", w.Count) }

// About is one line for people.
func (w Addresses) About() string {
	return fmt.Sprintf("64-byte frames, one core, to random ones of %d addresses", w.Count)
}

// Unit is Mpps: millions of frames that arrive a second.
func (w Addresses) Unit() string { return "Mpps" }

// Lower is false.
func (w Addresses) Lower() bool { return false }

// Needs nothing.
func (w Addresses) Needs() []string { return nil }

// Takes is the length of the window and some for start and stop.
func (w Addresses) Takes() time.Duration { return w.Length + 250*time.Millisecond }

// Spec asks for two ends and room for the addresses.
func (w Addresses) Spec() fabrics.Spec {
	return fabrics.Spec{Ends: 2, Ageing: long, FDBMax: w.Count + 1000}
}

// Start teaches the switch the addresses.
func (w Addresses) Start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if n.Fabric.Pairs {
		return nil, fmt.Errorf("fabric %s learns no addresses", n.Fabric.Name)
	}
	cpus, err := cores(1)
	if err != nil {
		return nil, err
	}
	b, err := newBlast(n, n.Fabric.Arrival, []int{1})
	if err != nil {
		return nil, err
	}
	b.length = w.Length
	b.teach = []int{0, 1}
	if err := errors.Join(b.learn(), fill(ctx, n, 1, w.Count)); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.flows = func() []flow {
		f := send(n, 0, n.Ends[1].MAC, cpus[0])
		f.stream.Dst = probe.Vary{Base: numbered(0), Count: uint32(w.Count), Random: true}
		return []flow{f}
	}
	return b, nil
}

// fill teaches the switch count addresses behind an end, by frames from them
// to the end's own address: the switch learns them and sends them nowhere.
func fill(ctx context.Context, n *fabrics.Net, end, count int) error {
	f := send(n, end, n.Ends[end].MAC, 0)
	f.stream.Src = probe.Vary{Base: numbered(0), Count: uint32(count)}
	g, err := probe.NewGenerator(f.stream)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := n.AcceptFrames(end); err != nil {
		return err
	}
	var known int
	// A frame may find a full ring, so one pass may miss a few.
	for range 5 {
		if err := n.Ends[end].Namespace.Do(func() error { return g.Send(uint32(count)) }); err != nil {
			return err
		}
		if known, err = n.Known(ctx); err != nil {
			return err
		}
		if known >= count {
			return nil
		}
	}
	return fmt.Errorf("fabric %s: it was taught %d addresses and knows %d", n.Fabric.Name, count, known)
}

// Memory is what an address costs in the switch's tables, when they are full.
type Memory struct {
	Count int // of addresses
}

// Name is fdb-memory.
func (w Memory) Name() string { return "fdb-memory" }

// About is one line for people.
func (w Memory) About() string {
	return fmt.Sprintf("kernel memory of all the switch's tables, per address, with %d addresses", w.Count)
}

// Unit is bytes per address.
func (w Memory) Unit() string { return "B" }

// Lower is true.
func (w Memory) Lower() bool { return true }

// Needs nothing.
func (w Memory) Needs() []string { return nil }

// Takes is short.
func (w Memory) Takes() time.Duration { return 50 * time.Millisecond }

// Spec asks for a table that the addresses fill.
func (w Memory) Spec() fabrics.Spec {
	return fabrics.Spec{Ends: 2, Ageing: long, FDBMax: w.Count + 8}
}

// Start fills the table.
func (w Memory) Start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if _, err := n.Memory(); err != nil {
		return nil, err
	}
	e := n.Ends[1]
	if err := e.Send(ends.Frame(smallest, e, ends.Broadcast)); err != nil {
		return nil, err
	}
	if err := fill(ctx, n, 1, w.Count); err != nil {
		return nil, err
	}
	return memory{n}, nil
}

type memory struct{ net *fabrics.Net }

// Run reads the kernel's account.
func (m memory) Run(ctx context.Context) (report.Sample, error) {
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
func (m memory) Close() error { return nil }
