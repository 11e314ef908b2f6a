// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/pattern"
)

// latency sends requests and waits for responses, one at a time, with sockperf.
var latency = &Kind{
	Name:  "latency",
	About: "requests and responses, one at a time, by sockperf: half the round trip",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w latencyParams
		p.BoolVar(&w.udp, "udp", false, "datagrams instead of a TCP connection")
		p.IntVar(&w.size, "size", 64, "of request and response, in bytes, from 14")
		p.StringVar(&w.load, "load", "none", "between the same ends meanwhile: none; tcp, a stream as fast as it goes; or udp, 1470-byte datagrams at 1 Gbit/s")
		p.DurationVar(&w.length, duration, 2*time.Second, "of a round, in whole seconds")
		return func() (*Workload, error) {
			if err := wholeSeconds(w.length); err != nil {
				return nil, err
			}
			// Limits of sockperf; the upper one is UDP's.
			if w.size < 14 || w.size > 65507 {
				return nil, errors.New("size must be 14 to 65507")
			}
			if _, ok := loads[w.load]; !ok && w.load != "none" {
				return nil, errors.New("load must be none, tcp or udp")
			}
			proto := "TCP"
			if w.udp {
				proto = "UDP"
			}
			about := fmt.Sprintf("%s, %d-byte requests and responses, one at a time, ends pinned: half the round trip", proto, w.size)
			takes := w.length + 150*time.Millisecond
			needs := []ends.Program{sockperf}
			if w.load != "none" {
				about += "; beside a load of " + strings.ToUpper(w.load)
				takes += loadMore
				needs = append(needs, iperf3)
			}
			return &Workload{
				About: about,
				Unit:  "us",
				Lower: true,
				Needs: needs,
				Takes: takes,
				Spec:  fabrics.Spec{Ends: 2},
				Start: w.start,
			}, nil
		}
	},
}

type latencyParams struct {
	udp    bool
	size   int
	load   string
	length time.Duration
}

// loads are the possible background loads: arguments of iperf3. It is not pinned, because the
// measured programs use the CPUs.
var loads = map[string]iperf{
	"tcp": {args: []string{"-C", ends.Congestion}, sample: iperfReport.tcp},
	"udp": {args: []string{"-u", "-b", "1G", "-l", "1470"}, sample: iperfReport.udp},
}

// loadMore is how much longer the load lasts than the measurement, so that it covers all requests.
const loadMore = time.Second

// sockperfPort is the port of the sockperf server.
const sockperfPort = 11111

// start starts the servers.
func (w latencyParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	cpus, err := cores(2)
	if err != nil {
		return nil, err
	}
	l := &latencySession{latencyParams: w, net: n, cpu: cpus[1]}
	l.address = []string{"-i", n.Ends[1].Addr.Addr().String(), "-p", strconv.Itoa(sockperfPort)}
	on := ends.Listen{Proto: "udp", Port: sockperfPort}
	if !w.udp {
		on.Proto = "tcp"
		l.address = append(l.address, "--tcp")
	}
	// A restarted server finds connections of the previous one.
	l.service, err = serve(ctx, n, cpus[0], on, sockperf.Command, append([]string{"server", "--uc-reuseaddr"}, l.address...)...)
	if err != nil {
		return nil, err
	}
	if load, ok := loads[w.load]; ok {
		load.length = w.length + loadMore
		if l.load, err = load.start(ctx, n); err != nil {
			return nil, errors.Join(err, l.service.Close())
		}
	}
	return l, nil
}

type latencySession struct {
	latencyParams
	net     *fabrics.Net
	cpu     int
	address []string      // of the server, as sockperf arguments
	load    *iperfSession // nil for none
	*service
}

// Close ends the servers.
func (l *latencySession) Close() error {
	err := l.service.Close()
	if l.load != nil {
		err = errors.Join(err, l.load.Close())
	}
	return err
}

// Run runs one test, in parallel with the load.
func (l *latencySession) Run(ctx context.Context, m Meter) (report.Sample, error) {
	return l.with(ctx, func(ctx context.Context) (s report.Sample, err error) {
		// The check covers the test and the load together: both must cross.
		err = crossing(l.net, 0, func() (float64, error) {
			if l.load == nil {
				s, err = l.test(ctx)
			} else {
				s, err = l.loaded(ctx, m)
			}
			return s.Bytes + s.More[requests]*float64(l.size), err
		})
		return s, err
	})
}

// requests is the name in Sample.More of the number of answered requests.
const requests = "requests"

// loaded runs one test in parallel with the load.
func (l *latencySession) loaded(ctx context.Context, m Meter) (report.Sample, error) {
	type result struct {
		sample report.Sample
		err    error
	}
	loaded := make(chan result, 1)
	begin, err := l.net.Crossed(0)
	if err != nil {
		return report.Sample{}, err
	}
	loading, over := context.WithCancel(ctx)
	go func() {
		defer over()
		s, err := l.load.Run(ctx, m)
		loaded <- result{s, err}
	}()
	// More bytes than the connection setup.
	err = crosses(loading, l.net, begin+1<<20)
	var s report.Sample
	if err == nil {
		s, err = l.test(ctx)
	}
	load := <-loaded
	// If the load fails, the test also fails as a consequence.
	if err := cmp.Or(load.err, err); err != nil {
		return s, err
	}
	s.Bytes = load.sample.Bytes
	s.More["load_gbps"] = load.sample.Bytes * 8 / l.load.length.Seconds() / 1e9
	return s, nil
}

// crosses waits until the given number of bytes have entered from the first end.
func crosses(ctx context.Context, n *fabrics.Net, bytes uint64) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		got, err := n.Crossed(0)
		if err != nil || got >= bytes {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("fabric %s: the load did not begin within 30 s", n.Fabric.Name)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// test runs the client.
func (l *latencySession) test(ctx context.Context) (report.Sample, error) {
	args := append([]string{"ping-pong", "-t", strconv.Itoa(int(l.length.Seconds())), "-m", strconv.Itoa(l.size)}, l.address...)
	out, err := l.net.Ends[0].At.Output(ctx, l.cpu, sockperf.Command, args...)
	if err != nil {
		return report.Sample{}, err
	}
	return parseSockperf(string(out))
}

var (
	sockperfMean       = pattern.New(`Summary: Latency is ([0-9.]+) usec`)
	sockperfReceived   = pattern.New(`Total Run\].* ReceivedMessages=([0-9]+)`)
	sockperfPercentile = pattern.New(`percentile ([0-9.]+) =\s+([0-9.]+)`)
)

// parseSockperf parses the mean and the percentiles, in microseconds, from the output of `sockperf
// ping-pong`.
func parseSockperf(text string) (s report.Sample, err error) {
	m := sockperfMean().FindStringSubmatch(text)
	if m == nil {
		return s, errors.New("output of sockperf: no mean latency in it")
	}
	if s.Value, err = strconv.ParseFloat(m[1], 64); err != nil || s.Value <= 0 {
		return s, fmt.Errorf("output of sockperf: a mean latency of %q", m[1])
	}
	received := sockperfReceived().FindStringSubmatch(text)
	if received == nil {
		return s, errors.New("output of sockperf: no number of messages in it")
	}
	answered, err := strconv.ParseFloat(received[1], 64)
	if err != nil {
		return s, fmt.Errorf("output of sockperf: %w", err)
	}
	s.More = map[string]float64{requests: answered}
	for _, m := range sockperfPercentile().FindAllStringSubmatch(text, -1) {
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
