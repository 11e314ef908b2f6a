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
	"bascule/lab/report"
)

// portAdd measures the command that adds a port to a bridge with many ports.
var portAdd = &Kind{
	Name:  "port-add",
	About: "the time of the command that adds a port to a bridge with many",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		ports := p.Int("ports", 200, "that the bridge has before")
		return func() (*Workload, error) {
			if *ports < 1 || *ports > 1000 {
				return nil, errors.New("ports must be 1 to 1000")
			}
			return &Workload{
				About: fmt.Sprintf("the command that adds a port to a bridge with %d ports, from its start to its end", *ports),
				Unit:  "ms",
				Lower: true,
				// The command for the Linux bridge.
				Needs: []ends.Program{{Command: "ip", Package: "iproute2"}},
				Takes: 100 * time.Millisecond,
				Spec:  fabrics.Spec{Ends: *ports + 1, Together: true},
				Start: func(_ context.Context, n *fabrics.Net) (Session, error) {
					return portAddSession{n}, nil
				},
			}, nil
		}
	},
}

type portAddSession struct{ net *fabrics.Net }

// Run removes the last port and measures the time to add it again.
func (p portAddSession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	last := p.net.Ports[len(p.net.Ports)-1].Ifname
	if err := p.net.DelPort(ctx, last); err != nil {
		return report.Sample{}, err
	}
	begin := time.Now()
	if err := p.net.AddPort(ctx, last); err != nil {
		return report.Sample{}, err
	}
	return report.Sample{Value: float64(time.Since(begin).Nanoseconds()) / 1e6}, nil
}

// Close has nothing to do.
func (p portAddSession) Close() error { return nil }
