// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
)

// startStop is a generator's time in addition to the measured window.
const startStop = 250 * time.Millisecond

// pps sends frames of one size, as many as the fabric forwards.
var pps = &Kind{
	Name:  "pps",
	About: "frames a second, counted where they arrive",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w ppsParams
		p.IntVar(&w.cores, "cores", 1, "that frames are made on, each for a pair of ends of its own: flows that share nothing but the switch")
		p.IntVar(&w.connections, "connections", 1, "that the frames of all cores are of in turn: established ones of UDP, of different ports")
		p.BoolVar(&w.sameSource, "same-source", false, "the flows are from one address: one port with a queue for each core, as a network card has")
		w.declareSize(p)
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			if w.cores < 1 || w.cores > 64 {
				return nil, errors.New("cores must be 1 to 64")
			}
			if w.sameSource && w.cores < 2 {
				return nil, errors.New("same-source is for cores=2 and more")
			}
			if w.connections < 1 || w.connections > mostConnections {
				return nil, fmt.Errorf("connections must be 1 to %d", mostConnections)
			}
			about := w.what()
			spec := fabrics.Spec{Ends: 2 * w.cores, Frames: true}
			takes := w.length + startStop
			if w.connections > 1 {
				about += fmt.Sprintf(" of %d established connections in turn", w.connections)
				// Twice the necessary number. A packet filter expires connections
				// sooner when its table fills up, and the ends make some of their
				// own.
				spec.States = 2*w.connections + 1000
				takes += 2 * filling(w.connections)
			}
			many := fmt.Sprint(w.cores)
			if w.cores == 2 {
				many = "two"
			}
			switch {
			case w.sameSource:
				about = fmt.Sprintf("%s, %s cores, from one address on one port with %[2]s queues, to %[2]s receivers", about, many)
				spec.Ends, spec.Wire.Queues = w.cores+1, w.cores
			case w.cores > 1:
				about = fmt.Sprintf("%s, %s cores, from %[2]s addresses on %[2]s ports, to %[2]s receivers", about, many)
			default:
				about += ", one core"
			}
			return &Workload{
				About: about,
				Unit:  "Mpps",
				Takes: takes,
				Spec:  spec,
				Start: w.start,
			}, w.check()
		}
	},
}

type ppsParams struct {
	frameParams
	cores       int
	connections int
	sameSource  bool
}

// start attaches the counters.
func (w ppsParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if w.sameSource && n.Fabric.Pairs {
		return nil, &ends.Unavailable{Reason: "it has no addresses to send to from one port"}
	}
	cpus, err := cores(w.cores)
	if err != nil {
		return nil, err
	}
	var from, to []int
	var greet [][2]int
	for i := range w.cores {
		if w.sameSource {
			from, to = append(from, 0), append(to, i+1)
		} else {
			from, to = append(from, 2*i), append(to, 2*i+1)
		}
		greet = append(greet, [2]int{from[i], to[i]})
	}
	b, err := newBlast(ctx, n, w.frameParams, n.Fabric.Arrival, to)
	if err != nil {
		return nil, err
	}
	b.teach, b.greet = slices.Concat(from, to), greet
	send := func(from, to []int) []flow {
		var fs []flow
		for i := range w.cores {
			f := w.send(n, from[i], to[i], cpus[i])
			if w.connections > 1 {
				f.stream.Ports = uint32(w.connections / w.cores)
			}
			fs = append(fs, f)
		}
		return fs
	}
	b.flows = func() []flow { return send(from, to) }
	if w.connections > 1 {
		b.answer = send(to, from)
		for i := range b.answer {
			b.answer[i].stream.Answers = true
		}
	}
	return b, nil
}

// manyFlows sends frames whose addresses and ports change with each frame.
var manyFlows = &Kind{
	Name:  "many-flows",
	About: "frames of many flows in turn, one core: of different addresses, where the fabric has them, and UDP ports",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w manyFlowsParams
		p.IntVar(&w.flows, "flows", 10_000, "each of its own source and destination")
		w.declareSize(p)
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			if w.flows < 1 || w.flows > 1_000_000 {
				return nil, errors.New("flows must be 1 to 1000000")
			}
			return &Workload{
				About: fmt.Sprintf("%s, one core, of %d flows in turn", w.what(), w.flows),
				Unit:  "Mpps",
				Takes: w.length + startStop,
				// Room for both addresses of each flow.
				Spec:  fabrics.Spec{Ends: 2, Ageing: long, FDBMax: 2*w.flows + 1000, Frames: true},
				Start: w.start,
			}, w.check()
		}
	},
}

type manyFlowsParams struct {
	frameParams
	flows int
}

// start makes the switch learn the destinations. It learns the sources from the frames themselves.
func (w manyFlowsParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	b, f, err := w.pair(ctx, n)
	if err != nil {
		return nil, err
	}
	f.stream.Ports = uint32(w.flows)
	if learns(n) == nil {
		if err := w.fill(ctx, n, b.maker, 1, w.flows); err != nil {
			return nil, errors.Join(err, b.Close())
		}
		f.stream.Dst = probe.Vary{Base: numbered(0), Count: uint32(w.flows)}
		f.stream.Src = probe.Vary{Base: numbered(1 << 31), Count: uint32(w.flows)}
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
		p.IntVar(&w.apart, "apart", 0, "more ports, in another VLAN, that none goes to")
		w.declareSize(p)
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			if w.ports < 1 || w.ports > 512 {
				return nil, errors.New("ports must be 1 to 512")
			}
			if w.apart < 0 || w.apart > 512 {
				return nil, errors.New("apart must be 0 to 512")
			}
			about := fmt.Sprintf("%s, broadcast to %d ports", w.what(), w.ports)
			if w.apart > 0 {
				about += fmt.Sprintf(" of %d, the ports of one VLAN", w.ports+w.apart)
			}
			return &Workload{
				About: about + ", one core, copies delivered",
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  fabrics.Spec{Ends: w.ports + 1 + w.apart, Apart: w.apart, Together: true, Frames: true},
				Start: w.start,
			}, w.check()
		}
	},
}

type floodParams struct {
	frameParams
	ports int
	apart int
}

// start attaches the counters.
func (w floodParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
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
	b, err := newBlast(ctx, n, w.frameParams, n.Fabric.FloodArrival, receivers)
	if err != nil {
		return nil, err
	}
	b.copies = w.ports
	f := w.sendTo(n, 0, ends.Broadcast, ends.NoStation, cpus[0])
	if n.Fabric.FloodArrival == fabrics.AsBuffers {
		// Copies wait in the CPU's backlog until the batch is complete. By default, the
		// backlog holds 1000 copies, and drops the others.
		f.stream.Batch = uint32(max(1, 512/w.ports))
	}
	b.flows = func() []flow { return []flow{f} }
	return b, nil
}
