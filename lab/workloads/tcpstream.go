// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// tcpStream is a bulk transfer by iperf3, from the first end to the second.
var tcpStream = &Kind{
	Name:  "tcp-stream",
	About: "bulk TCP by iperf3",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w tcpStreamParams
		p.IntVar(&w.streams, "streams", 1, "connections at once")
		p.BoolVar(&w.offloads, "offloads", false, "the ends hand over packets of up to 64 KiB and join what they get; without it each packet crosses alone, as from a network card")
		p.DurationVar(&w.length, duration, 2*time.Second, "of a round, in whole seconds")
		return func() (*Workload, error) {
			if w.streams < 1 {
				return nil, errors.New("streams must be 1 or more")
			}
			if err := wholeSeconds(w.length); err != nil {
				return nil, err
			}
			streams := "1 stream"
			if w.streams != 1 {
				streams = fmt.Sprintf("%d streams", w.streams)
			}
			about := "TCP, " + streams + ", offloads off at the ends (tso, gso, gro: each packet alone)"
			if w.offloads {
				about = "TCP, " + streams + ", offloads on at the ends (64 KiB packets)"
			}
			return &Workload{
				About: about,
				Unit:  "Gbit/s",
				Needs: []ends.Program{iperf3},
				Takes: w.length + 150*time.Millisecond,
				Spec:  fabrics.Spec{Ends: 2},
				Start: w.start,
			}, nil
		}
	},
}

type tcpStreamParams struct {
	streams  int
	offloads bool
	length   time.Duration
}

// start sets the offloads and starts the server.
func (w tcpStreamParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if !w.offloads && n.Fabric.NeedsGRO {
		return nil, &ends.Unavailable{Reason: "it delivers nothing to ends whose offloads are off"}
	}
	for _, e := range n.Ends {
		f := ends.Features{Segmentation: w.offloads, GRO: w.offloads && n.Fabric.NeedsGRO}
		if err := e.At.SetFeatures(e.Ifname, f); err != nil {
			return nil, err
		}
	}
	s, err := n.Ends[1].At.Serve(ctx, ends.AnyCPU, iperfListen, iperf3.Command, "-s")
	if err != nil {
		return nil, err
	}
	return &tcpStreamSession{w, n, s}, nil
}

type tcpStreamSession struct {
	tcpStreamParams
	net *fabrics.Net
	io.Closer
}

// Run is one transfer.
func (s *tcpStreamSession) Run(ctx context.Context) (report.Sample, error) {
	r, err := iperf(ctx, s.net, true, s.length, "-C", ends.Congestion, "-P", strconv.Itoa(s.streams))
	if err != nil {
		return report.Sample{}, err
	}
	return r.tcp()
}

// wholeSeconds refuses a length that programs which count seconds cannot have.
func wholeSeconds(d time.Duration) error {
	if d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("duration=%v: give whole seconds", d)
	}
	return nil
}
