// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
)

// startStop is what a generator needs besides the window that is measured.
const startStop = 250 * time.Millisecond

// pps sends frames of one size, as many as the fabric takes.
var pps = &Kind{
	Name:  "pps",
	About: "frames a second, made in the kernel and counted where they arrive",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w ppsParams
		p.IntVar(&w.cores, "cores", 1, "1, or 2 for two flows that share nothing but the switch")
		p.BoolVar(&w.sameSource, "same-source", false, "two flows from one address: one port with a queue for each core, as a network card has")
		p.DurationVar(&w.length, duration, time.Second, "of the window that is counted")
		return func() (*Workload, error) {
			if w.cores != 1 && w.cores != 2 {
				return nil, errors.New("cores must be 1 or 2")
			}
			if w.sameSource && w.cores != 2 {
				return nil, errors.New("same-source is for cores=2")
			}
			about := "64-byte frames, one core"
			spec := fabrics.Spec{Ends: 2 * w.cores, Frames: true}
			switch {
			case w.sameSource:
				about = "64-byte frames, two cores, from one address on one port with two queues, to two receivers"
				spec.Ends, spec.Wire.Queues = 3, 2
			case w.cores == 2:
				about = "64-byte frames, two cores, from two addresses on two ports, to two receivers"
			}
			return &Workload{
				About: about,
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  spec,
				Start: w.start,
			}, nil
		}
	},
}

type ppsParams struct {
	cores      int
	sameSource bool
	length     time.Duration
}

// start attaches the counters.
func (w ppsParams) start(_ context.Context, n *fabrics.Net) (Session, error) {
	if w.sameSource && n.Fabric.Pairs {
		return nil, &ends.Unavailable{Reason: "it has no addresses to send to from one port"}
	}
	cpus, err := cores(w.cores)
	if err != nil {
		return nil, err
	}
	from, to := []int{0, 2}[:w.cores], []int{1, 3}[:w.cores]
	if w.sameSource {
		from, to = []int{0, 0}, []int{1, 2}
	}
	b, err := newBlast(n, n.Fabric.Arrival, to)
	if err != nil {
		return nil, err
	}
	b.length = w.length
	b.teach = append(append([]int{}, from...), to...)
	b.flows = func() []flow {
		var fs []flow
		for i := range w.cores {
			fs = append(fs, send(n, from[i], to[i], cpus[i]))
		}
		return fs
	}
	return b, nil
}

// flood sends broadcasts and counts the copies that arrive.
var flood = &Kind{
	Name:  "flood",
	About: "broadcasts to many ports, copies delivered",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w floodParams
		p.IntVar(&w.ports, "ports", 64, "that each broadcast goes to")
		p.DurationVar(&w.length, duration, time.Second, "of the window that is counted")
		return func() (*Workload, error) {
			if w.ports < 1 || w.ports > 512 {
				return nil, errors.New("ports must be 1 to 512")
			}
			return &Workload{
				About: fmt.Sprintf("64-byte broadcasts to %d ports, one core, copies delivered", w.ports),
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  fabrics.Spec{Ends: w.ports + 1, Together: true, Frames: true},
				Start: w.start,
			}, nil
		}
	},
}

type floodParams struct {
	ports  int
	length time.Duration
}

// start attaches the counters.
func (w floodParams) start(_ context.Context, n *fabrics.Net) (Session, error) {
	if n.Fabric.Pairs || n.Fabric.Routed {
		return nil, &ends.Unavailable{Reason: "it floods nothing"}
	}
	cpus, err := cores(1)
	if err != nil {
		return nil, err
	}
	receivers := make([]int, w.ports)
	for i := range receivers {
		receivers[i] = i + 1
	}
	b, err := newBlast(n, n.Fabric.FloodArrival, receivers)
	if err != nil {
		return nil, err
	}
	b.length = w.length
	b.copies = w.ports
	f := sendTo(n, 0, ends.Broadcast, ends.Nobody, cpus[0])
	if n.Fabric.FloodArrival == fabrics.AsBuffers {
		// Copies wait in the CPU's backlog, which has room for 1000 by
		// default, until the batch is through. What is over is dropped.
		f.stream.Batch = uint32(max(1, 512/w.ports))
	}
	b.flows = func() []flow { return []flow{f} }
	return b, nil
}
