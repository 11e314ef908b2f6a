// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/fabrics"
)

// routes sends small packets to random networks, each one with a route in the router.
var routes = &Kind{
	Name:  "routes",
	About: "64-byte packets, one core, to random addresses of many routed networks",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w routesParams
		p.IntVar(&w.count, "count", 100_000, "routes, to a network of 256 addresses each, all behind the receiver")
		w.declare(p, time.Second)
		return func() (*Workload, error) {
			if w.count < 1 || w.count > fabrics.MostRoutes {
				return nil, fmt.Errorf("count must be 1 to %d", fabrics.MostRoutes)
			}
			return &Workload{
				About: fmt.Sprintf("%s, one core, to random addresses of %d routed networks", w.what(), w.count),
				Unit:  "Mpps",
				Takes: w.length + startStop,
				Spec:  fabrics.Spec{Ends: 2, Frames: true, Routes: w.count},
				Start: w.start,
			}, w.check()
		}
	},
}

type routesParams struct {
	frameParams
	count int
}

// start attaches the counters.
func (w routesParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	b, f, err := w.pair(ctx, n)
	if err != nil {
		return nil, err
	}
	f.stream.Host, f.stream.Hosts, f.stream.HostsTo = fabrics.Networks.Addr(), uint32(w.count)<<8, true
	return b, nil
}
