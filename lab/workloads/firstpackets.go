// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/fabrics"
)

// firstPackets sends frames that each begin a connection for a packet filter: every frame makes it
// evaluate its rules and create a state.
var firstPackets = &Kind{
	Name:  "first-packets",
	About: "64-byte frames a second, one core, each of a UDP flow of its own and from a random IP address",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w firstPacketsParams
		p.BoolVar(&w.same, "same-source", false, "all from the sender's own address, as a router that checks sources wants it")
		// Shorter than others, so that the states of a round fit: the kernel's own table
		// has 262 144 by default.
		w.declare(p, 200*time.Millisecond)
		return func() (*Workload, error) {
			from, states := "from a random IP address", 2_000_000
			if w.same {
				// as many connections as the kernel's own table has; behind a
				// router each one has a state for ingress, and one for egress
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

// flows is the number of UDP port pairs that the frames cycle through: more than the frames of a
// round.
const flows = 1 << 31

// The sources are spread over a quarter of all addresses, so that a lookup in a filter's large
// table rarely hits the CPU's caches.
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
