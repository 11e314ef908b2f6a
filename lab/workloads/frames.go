// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"fmt"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
)

// Frames sends the smallest frames, as many as the fabric takes.
type Frames struct {
	// Cores is 1, or 2 for two flows that share nothing but the switch.
	Cores int
	// SameSource lets the two flows come from one address: one port with a
	// queue for each core, as a machine's network card has. Otherwise they
	// come from two ports.
	SameSource bool
	Length     time.Duration
}

// Name is pps, pps-2cores or pps-2cores-1source.
func (w Frames) Name() string {
	switch {
	case w.SameSource:
		return "pps-2cores-1source"
	case w.Cores == 2:
		return "pps-2cores"
	}
	return "pps"
}

// About is one line for people.
func (w Frames) About() string {
	switch {
	case w.SameSource:
		return "64-byte frames, two cores, from one address on one port with two queues, to two receivers"
	case w.Cores == 2:
		return "64-byte frames, two cores, from two addresses on two ports, to two receivers"
	}
	return "64-byte frames, one core"
}

// Unit is Mpps: millions of frames that arrive a second.
func (w Frames) Unit() string { return "Mpps" }

// Lower is false.
func (w Frames) Lower() bool { return false }

// Needs nothing: the generator is the lab's own.
func (w Frames) Needs() []string { return nil }

// Takes is the length of the window and some for start and stop.
func (w Frames) Takes() time.Duration { return w.Length + 250*time.Millisecond }

// Spec asks for a pair of ends per core, or for one sender with a queue per
// core.
func (w Frames) Spec() fabrics.Spec {
	if w.SameSource {
		return fabrics.Spec{Ends: 3, Queues: 2}
	}
	return fabrics.Spec{Ends: 2 * w.Cores}
}

// Start attaches the counters.
func (w Frames) Start(_ context.Context, n *fabrics.Net) (Session, error) {
	if w.SameSource && n.Fabric.Pairs {
		return nil, fmt.Errorf("fabric %s has no addresses to send to from one port", n.Fabric.Name)
	}
	cpus, err := cores(w.Cores)
	if err != nil {
		return nil, err
	}
	from, to := []int{0, 2}[:w.Cores], []int{1, 3}[:w.Cores]
	if w.SameSource {
		from, to = []int{0, 0}, []int{1, 2}
	}
	b, err := newBlast(n, n.Fabric.Arrival, to)
	if err != nil {
		return nil, err
	}
	b.length = w.Length
	b.teach = append(append([]int{}, from...), to...)
	b.flows = func() []flow {
		var fs []flow
		for i := range w.Cores {
			fs = append(fs, send(n, from[i], n.Ends[to[i]].MAC, cpus[i]))
		}
		return fs
	}
	return b, nil
}

// Flood sends broadcasts and counts the copies that arrive.
type Flood struct {
	Ports  int // that each broadcast goes to
	Length time.Duration
}

// Name is flood-N.
func (w Flood) Name() string { return fmt.Sprintf("flood-%d", w.Ports) }

// About is one line for people.
func (w Flood) About() string {
	return fmt.Sprintf("64-byte broadcasts to %d ports, one core, copies delivered", w.Ports)
}

// Unit is Mpps: millions of copies that arrive a second.
func (w Flood) Unit() string { return "Mpps" }

// Lower is false.
func (w Flood) Lower() bool { return false }

// Needs nothing.
func (w Flood) Needs() []string { return nil }

// Takes is the length of the window and some for start and stop.
func (w Flood) Takes() time.Duration { return w.Length + 250*time.Millisecond }

// Spec asks for one sender and the receivers.
func (w Flood) Spec() fabrics.Spec { return fabrics.Spec{Ends: w.Ports + 1, Together: true} }

// Start attaches the counters.
func (w Flood) Start(_ context.Context, n *fabrics.Net) (Session, error) {
	cpus, err := cores(1)
	if err != nil {
		return nil, err
	}
	receivers := make([]int, w.Ports)
	for i := range receivers {
		receivers[i] = i + 1
	}
	b, err := newBlast(n, n.Fabric.FloodArrival, receivers)
	if err != nil {
		return nil, err
	}
	b.length = w.Length
	b.copies = w.Ports
	f := send(n, 0, ends.Broadcast, cpus[0])
	if n.Fabric.FloodArrival == fabrics.AsBuffers {
		// Copies wait in the CPU's backlog, which has room for 1000 by
		// default, until the batch is through. What is over is dropped.
		f.stream.Batch = uint32(max(1, 512/w.Ports))
	}
	b.flows = func() []flow { return []flow{f} }
	return b, nil
}
