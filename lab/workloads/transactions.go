// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/traffic"
)

// Requests and responses over TCP, with the lab's own client and server.
var (
	crr = transactions("crr", "connections a second: connect, a request and its response, close, as netperf's TCP_CRR",
		transactionParams{fresh: true, request: 1, response: 1, connections: 1})
	uperf = transactions("uperf", "requests and responses on many connections that stay, as uperf's profiles",
		transactionParams{request: 64, response: 64, connections: 16})
)

// transactions returns a kind with its defaults.
func transactions(name, about string, defaults transactionParams) *Kind {
	return &Kind{
		Name:  name,
		About: about,
		open: func(p *pflag.FlagSet) func() (*Workload, error) {
			w := defaults
			p.IntVar(&w.request, "request", w.request, "bytes of a request, to 65536")
			p.IntVar(&w.response, "response", w.response, "bytes of a response, to 65536")
			p.IntVar(&w.connections, "connections", w.connections, "at once, to 256; each has one transaction after the other")
			p.BoolVar(&w.pin, "pin", true, "each side on a CPU of its own; false lets the scheduler place them")
			p.DurationVar(&w.length, duration, 2*time.Second, "of a round")
			return func() (*Workload, error) {
				const largest = 65536
				switch {
				case w.request < 1 || w.request > largest || w.response < 1 || w.response > largest:
					return nil, fmt.Errorf("request and response must be 1 to %d", largest)
				case w.connections < 1 || w.connections > 256:
					return nil, errors.New("connections must be 1 to 256")
				case w.length < 10*time.Millisecond || w.length > longest:
					return nil, fmt.Errorf("duration must be 10ms or more, and %v at most", longest)
				}
				return &Workload{
					About: w.about(),
					Unit:  "1/s",
					Takes: w.length + 100*time.Millisecond,
					Spec:  fabrics.Spec{Ends: 2},
					Start: w.start,
				}, nil
			}
		},
	}
}

type transactionParams struct {
	fresh       bool // a connection for each transaction
	request     int
	response    int
	connections int
	pin         bool
	length      time.Duration
}

func (w transactionParams) about() string {
	about := fmt.Sprintf("TCP, %d-byte requests, %d-byte responses, %d at a time", w.request, w.response, w.connections)
	if w.fresh {
		about += ", each on a new connection"
	}
	if w.pin {
		return about + ", ends pinned"
	}
	return about + ", not pinned"
}

// transactionsPort is the port of the server.
const transactionsPort = 5301

// start starts the server.
func (w transactionParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	s := &transactionSession{transactionParams: w, net: n, cpu: ends.AnyCPU}
	cpu := ends.AnyCPU
	if w.pin {
		var err error
		if s.cpu, cpu, err = sides(n); err != nil {
			return nil, err
		}
	}
	program, err := n.Program(1)
	if err != nil {
		return nil, err
	}
	s.server = netip.AddrPortFrom(n.Ends[1].Addr.Addr(), transactionsPort).String()
	s.service, err = serve(ctx, n, cpu, ends.Listen{Proto: "tcp", Port: transactionsPort}, program, "lab", "traffic", "serve", s.server)
	if err != nil {
		return nil, err
	}
	return s, nil
}

type transactionSession struct {
	transactionParams
	net    *fabrics.Net
	cpu    int
	server string // its address
	*service
}

// Run runs one test.
func (s *transactionSession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	return s.with(ctx, s.round)
}

func (s *transactionSession) round(ctx context.Context) (sample report.Sample, err error) {
	program, err := s.net.Program(0)
	if err != nil {
		return sample, err
	}
	err = crossing(s.net, 0, func() (float64, error) {
		out, err := s.net.Ends[0].At.Output(ctx, s.cpu, program, "lab", "traffic", "run", s.server,
			"--request", strconv.Itoa(s.request), "--response", strconv.Itoa(s.response),
			"--connections", strconv.Itoa(s.connections), "--new="+strconv.FormatBool(s.fresh),
			"--duration", s.length.String(), "--interval", (s.length / intervals).String())
		if err == nil {
			sample, err = s.sample(out)
		}
		return sample.Bytes * float64(s.request) / float64(s.request+s.response), err
	})
	return sample, err
}

// sample parses the output of the client.
func (w transactionParams) sample(out []byte) (s report.Sample, err error) {
	var r traffic.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return s, fmt.Errorf("output of the client: %w", err)
	}
	if r.Transactions == 0 || r.Seconds <= 0 {
		return s, errors.New("output of the client: no transactions")
	}
	s.Value = float64(r.Transactions) / r.Seconds
	s.Intervals = r.Intervals
	s.Bytes = float64(r.Transactions) * float64(w.request+w.response)
	s.More = map[string]float64{"mean_us": r.Mean, "p50_us": r.P50, "p90_us": r.P90, "p99_us": r.P99, "p99.9_us": r.P999}
	return s, nil
}
