// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/fabrics"
)

// firstPackets is frames that each begin a connection, as a packet filter sees
// it: for every one its rules are asked, and a state is made.
var firstPackets = &Kind{
	Name:  "first-packets",
	About: "64-byte frames a second, one core, each of a UDP flow of its own and from a random IP address",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w firstPacketsParams
		p.BoolVar(&w.same, "same-source", false, "all from the sender's own address, as a router that checks sources wants it")
		// Shorter than others, so that the states of a round have room: in the
		// kernel's own table for 262 144, unless the host is told otherwise.
		w.declare(p, 200*time.Millisecond)
		return func() (*Workload, error) {
			from, states := "from a random IP address", 2_000_000
			if w.same {
				// as many connections as in the kernel's own table; past a router
				// each has a state on its way in, and one on its way out
				from, states = "from one IP address", 2*262_144
			}
			return &Workload{
				About: w.what() + ", one core, each of a flow of its own and " + from,
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  fabrics.Spec{Ends: 2, Frames: true, States: states},
				Start: w.start,
			}, w.check()
		}
	},
}

type firstPacketsParams struct {
	frameParams
	same bool
}

// flows is how many pairs of UDP ports the frames have in turn: more than are
// sent in a round.
const flows = 1 << 31

// The frames are from anywhere in a quarter of all addresses, so that a filter
// that looks for them in a large table finds little of it in the CPU's caches.
var anywhere = netip.AddrFrom4([4]byte{128})

const sources = 1 << 30

// start attaches the counters.
func (w firstPacketsParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	cpus, err := cores(1)
	if err != nil {
		return nil, err
	}
	b, err := newBlast(ctx, n, w.frameParams, n.Fabric.Arrival, []int{1})
	if err != nil {
		return nil, err
	}
	b.teach, b.fresh = []int{0, 1}, true
	f := w.send(n, 0, 1, cpus[0])
	f.stream.Ports = flows
	if !w.same {
		f.stream.Host, f.stream.Hosts = anywhere, sources
	}
	b.flows = func() []flow { return []flow{f} }
	return b, nil
}
