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

// TCPStream is a bulk transfer by iperf3, from the first end to the second.
type TCPStream struct {
	Streams int
	// Offloads: the ends hand over packets of up to 64 KiB and join what they
	// get. Off, each packet of 1500 bytes crosses alone, as from a network
	// card.
	Offloads bool
	// Pin keeps the sender on the first CPU and the receiver on the second.
	Pin    bool
	Length time.Duration // whole seconds
}

// Name is tcp-stream-N, with -offloads where they are on.
func (w TCPStream) Name() string {
	name := fmt.Sprintf("tcp-stream-%d", w.Streams)
	if w.Offloads {
		name += "-offloads"
	}
	return name
}

// About is one line for people.
func (w TCPStream) About() string {
	streams := "1 stream"
	if w.Streams != 1 {
		streams = fmt.Sprintf("%d streams", w.Streams)
	}
	if w.Offloads {
		return "TCP, " + streams + ", offloads on at the ends (64 KiB packets)"
	}
	return "TCP, " + streams + ", offloads off at the ends (tso, gso, gro: 1500-byte packets)"
}

// Unit is Gbit/s of payload that the receiver got.
func (w TCPStream) Unit() string { return "Gbit/s" }

// Lower is false.
func (w TCPStream) Lower() bool { return false }

// Needs iperf3.
func (w TCPStream) Needs() []string { return []string{"iperf3"} }

// Takes is the length of the transfer and some for the connection.
func (w TCPStream) Takes() time.Duration { return w.Length + 150*time.Millisecond }

// Spec asks for two ends.
func (w TCPStream) Spec() fabrics.Spec { return fabrics.Spec{Ends: 2} }

// Start sets the offloads and starts the server.
func (w TCPStream) Start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if !w.Offloads && n.Fabric.NeedsGRO {
		return nil, fmt.Errorf("fabric %s delivers nothing to ends whose offloads are off", n.Fabric.Name)
	}
	for _, e := range n.Ends {
		f := ends.Features{Segmentation: w.Offloads, GRO: w.Offloads && n.Fabric.NeedsGRO}
		if err := e.Namespace.SetFeatures(e.Ifname, f); err != nil {
			return nil, err
		}
	}
	s, err := serve(ctx, n.Ends[1], ends.AnyCPU, iperfPort, "iperf3", "-s")
	if err != nil {
		return nil, err
	}
	return &tcpStream{w, n, s}, nil
}

type tcpStream struct {
	TCPStream
	net *fabrics.Net
	*server
}

// Run is one transfer.
func (s *tcpStream) Run(ctx context.Context) (report.Sample, error) {
	r, err := iperf(ctx, s.net, s.Pin, s.Length, "-C", ends.Congestion, "-P", strconv.Itoa(s.Streams))
	if err != nil {
		return report.Sample{}, err
	}
	return r.tcp()
}
