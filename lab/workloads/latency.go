// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// latency is TCP requests and responses, one at a time, by sockperf.
var latency = &Kind{
	Name:  "latency",
	About: "requests and responses, one at a time, by sockperf: half the round trip",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w latencyParams
		p.DurationVar(&w.length, duration, 2*time.Second, "of a round, in whole seconds")
		return func() (*Workload, error) {
			if err := wholeSeconds(w.length); err != nil {
				return nil, err
			}
			return &Workload{
				About: "TCP, 64-byte requests and responses, one at a time, ends pinned: half the round trip",
				Unit:  "us",
				Lower: true,
				Needs: []ends.Program{sockperf},
				Takes: w.length + 150*time.Millisecond,
				Spec:  fabrics.Spec{Ends: 2},
				Start: w.start,
			}, nil
		}
	},
}

type latencyParams struct {
	length time.Duration
}

// sockperfPort is where sockperf listens.
const sockperfPort = 11111

// start starts the server.
func (w latencyParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	cpus, err := cores(2)
	if err != nil {
		return nil, err
	}
	s, err := n.Ends[1].At.Serve(ctx, cpus[0], ends.Listen{Proto: "tcp", Port: sockperfPort}, sockperf.Command, "server", "--tcp",
		"-i", n.Ends[1].Addr.Addr().String(), "-p", strconv.Itoa(sockperfPort))
	if err != nil {
		return nil, err
	}
	return &latencySession{w, n, s, cpus[1]}, nil
}

type latencySession struct {
	latencyParams
	net *fabrics.Net
	io.Closer
	cpu int
}

// Run is one test.
func (s *latencySession) Run(ctx context.Context) (report.Sample, error) {
	before, err := s.net.Crossed()
	if err != nil {
		return report.Sample{}, err
	}
	out, err := s.net.Ends[0].At.Output(ctx, s.cpu, sockperf.Command, "ping-pong", "--tcp",
		"-i", s.net.Ends[1].Addr.Addr().String(), "-p", strconv.Itoa(sockperfPort),
		"-t", strconv.Itoa(int(s.length.Seconds())), "-m", "64")
	if err != nil {
		return report.Sample{}, err
	}
	after, err := s.net.Crossed()
	if err != nil {
		return report.Sample{}, err
	}
	if after == before {
		return report.Sample{}, fmt.Errorf("fabric %s: answers came, but nothing crossed it", s.net.Fabric.Name)
	}
	return parseSockperf(string(out))
}

var (
	sockperfMean       = regexp.MustCompile(`Summary: Latency is ([0-9.]+) usec`)
	sockperfPercentile = regexp.MustCompile(`percentile ([0-9.]+) =\s+([0-9.]+)`)
)

// parseSockperf reads the mean and the percentiles, in microseconds, from what
// `sockperf ping-pong` prints.
func parseSockperf(text string) (s report.Sample, err error) {
	m := sockperfMean.FindStringSubmatch(text)
	if m == nil {
		return s, errors.New("output of sockperf: no mean latency in it")
	}
	if s.Value, err = strconv.ParseFloat(m[1], 64); err != nil || s.Value <= 0 {
		return s, fmt.Errorf("output of sockperf: a mean latency of %q", m[1])
	}
	s.More = map[string]float64{}
	for _, m := range sockperfPercentile.FindAllStringSubmatch(text, -1) {
		rank, err1 := strconv.ParseFloat(m[1], 64)
		v, err2 := strconv.ParseFloat(m[2], 64)
		if err := errors.Join(err1, err2); err != nil {
			return s, fmt.Errorf("output of sockperf: %w", err)
		}
		s.More[fmt.Sprintf("p%v_us", rank)] = v
	}
	if _, ok := s.More["p99_us"]; !ok {
		return s, errors.New("output of sockperf: no 99th percentile in it")
	}
	return s, nil
}
