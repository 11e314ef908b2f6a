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

// udp is datagrams by iperf3, as many as the sender can make, from the first
// end to the second. The sender's system calls are a large part of each
// datagram's cost, so the fabrics are closer together here than they are.
var udp = &Kind{
	Name:  "udp",
	About: "UDP datagrams by iperf3",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w udpParams
		p.IntVar(&w.size, "size", 64, "of the payload, in bytes, from 16")
		p.DurationVar(&w.length, duration, 2*time.Second, "of a round, in whole seconds")
		return func() (*Workload, error) {
			// The header that iperf3 puts into each datagram.
			if w.size < 16 {
				return nil, errors.New("size must be 16 or more")
			}
			if err := wholeSeconds(w.length); err != nil {
				return nil, err
			}
			return &Workload{
				About: fmt.Sprintf("UDP, %d-byte datagrams, ends pinned", w.size),
				Unit:  "k/s",
				Needs: []ends.Program{iperf3},
				Takes: w.length + 150*time.Millisecond,
				Spec:  fabrics.Spec{Ends: 2},
				Start: w.start,
			}, nil
		}
	},
}

type udpParams struct {
	size   int
	length time.Duration
}

// start starts the server.
func (w udpParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	s, err := n.Ends[1].At.Serve(ctx, ends.AnyCPU, iperfListen, iperf3.Command, "-s")
	if err != nil {
		return nil, err
	}
	return &udpSession{w, n, s}, nil
}

type udpSession struct {
	udpParams
	net *fabrics.Net
	io.Closer
}

// Run is one transfer.
func (s *udpSession) Run(ctx context.Context) (report.Sample, error) {
	r, err := iperf(ctx, s.net, true, s.length, "-u", "-b", "0", "-l", strconv.Itoa(s.size))
	if err != nil {
		return report.Sample{}, err
	}
	return r.udp()
}
