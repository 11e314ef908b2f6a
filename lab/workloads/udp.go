// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// UDP is datagrams by iperf3, as many as the sender can make, from the first
// end to the second. The sender's system calls are a large part of each
// datagram's cost, so the fabrics are closer together here than they are.
type UDP struct {
	Size   int           // of the payload, in bytes, from 16
	Length time.Duration // whole seconds
}

// Name is udp-SIZE.
func (w UDP) Name() string { return fmt.Sprintf("udp-%d", w.Size) }

// About is one line for people.
func (w UDP) About() string { return fmt.Sprintf("UDP, %d-byte datagrams, ends pinned", w.Size) }

// Unit is thousands of datagrams a second that the receiver got.
func (w UDP) Unit() string { return "k/s" }

// Lower is false.
func (w UDP) Lower() bool { return false }

// Needs iperf3.
func (w UDP) Needs() []string { return []string{"iperf3"} }

// Takes is the length of the transfer and some for the connection.
func (w UDP) Takes() time.Duration { return w.Length + 150*time.Millisecond }

// Spec asks for two ends.
func (w UDP) Spec() fabrics.Spec { return fabrics.Spec{Ends: 2} }

// Start starts the server.
func (w UDP) Start(ctx context.Context, n *fabrics.Net) (Session, error) {
	s, err := serve(ctx, n.Ends[1], ends.AnyCPU, iperfPort, "iperf3", "-s")
	if err != nil {
		return nil, err
	}
	return &udp{w, n, s}, nil
}

type udp struct {
	UDP
	net *fabrics.Net
	*server
}

// Run is one transfer.
func (s *udp) Run(ctx context.Context) (report.Sample, error) {
	r, err := iperf(ctx, s.net, true, s.Length, "-u", "-b", "0", "-l", strconv.Itoa(s.Size))
	if err != nil {
		return report.Sample{}, err
	}
	return r.udp()
}
