// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// Latency is TCP requests and responses, one at a time, by sockperf.
type Latency struct {
	Length time.Duration // whole seconds, from 1
}

// sockperfPort is where sockperf listens.
const sockperfPort = 11111

// Name is latency-tcp.
func (w Latency) Name() string { return "latency-tcp" }

// About is one line for people.
func (w Latency) About() string {
	return "TCP, 64-byte requests and responses, one at a time, ends pinned: half the round trip"
}

// Unit is microseconds, half of the mean round trip.
func (w Latency) Unit() string { return "us" }

// Lower is true.
func (w Latency) Lower() bool { return true }

// Needs sockperf.
func (w Latency) Needs() []string { return []string{"sockperf"} }

// Takes is the length of the test and some for the start.
func (w Latency) Takes() time.Duration { return w.Length + 150*time.Millisecond }

// Spec asks for two ends.
func (w Latency) Spec() fabrics.Spec { return fabrics.Spec{Ends: 2} }

// Start starts the server.
func (w Latency) Start(ctx context.Context, n *fabrics.Net) (Session, error) {
	cpus, err := cores(2)
	if err != nil {
		return nil, err
	}
	s, err := serve(ctx, n.Ends[1], cpus[0], sockperfPort, "sockperf", "server", "--tcp",
		"-i", n.Ends[1].Addr.Addr().String(), "-p", strconv.Itoa(sockperfPort))
	if err != nil {
		return nil, err
	}
	return &latency{w, n, s, cpus[1]}, nil
}

type latency struct {
	Latency
	net *fabrics.Net
	*server
	cpu int
}

// Run is one test.
func (s *latency) Run(ctx context.Context) (report.Sample, error) {
	before, err := s.net.Crossed()
	if err != nil {
		return report.Sample{}, err
	}
	out, err := s.net.Ends[0].Namespace.Output(ctx, s.cpu, "sockperf", "ping-pong", "--tcp",
		"-i", s.net.Ends[1].Addr.Addr().String(), "-p", strconv.Itoa(sockperfPort),
		"-t", strconv.Itoa(int(s.Length.Seconds())), "-m", "64")
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
