// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// iperfListen is the address of the iperf3 server.
var iperfListen = ends.Listen{Proto: "tcp", Port: 5201}

// iperf is a transfer with iperf3 from the first end to the second.
type iperf struct {
	length   time.Duration
	bytes    int           // MiB to send, 0 for a transfer with a duration
	interval time.Duration // between reported figures, 0 for none
	pin      bool          // each side on its own CPU; guests have their own
	ownCore  bool          // both sides on the CPU that the router does not use, instead of pin
	reverse  bool          // from the second end to the first
	args     []string      // additional arguments of the client
	sample   func(iperfReport) (report.Sample, error)
}

// start starts the server.
func (i iperf) start(ctx context.Context, n *fabrics.Net) (*iperfSession, error) {
	s := &iperfSession{iperf: i, net: n, cpu: ends.AnyCPU}
	var err error
	if i.ownCore {
		if s.router, s.cpu, err = ownCores(); err != nil {
			return nil, err
		}
		if err := n.OwnCore(s.router, s.cpu); err != nil {
			return nil, err
		}
	}
	if s.service, err = serve(ctx, n, s.cpu, iperfListen, iperf3.Command, "-s"); err != nil {
		return nil, err
	}
	return s, nil
}

// join makes a session with the server of another session, on a fabric that is prepared for both.
func (i iperf) join(started Session) Session {
	s := *started.(*iperfSession)
	s.iperf = i
	return &s
}

// iperfSession is an iperf3 server that waits for transfers.
type iperfSession struct {
	iperf
	net    *fabrics.Net
	cpu    int // of client and server
	router int // the router's own CPU
	*service
}

// RouterCore implements Apart.
func (s *iperfSession) RouterCore() (cpu int, own bool) {
	return s.router, s.ownCore && s.net.Fabric.Routed
}

// Run runs one transfer.
func (s *iperfSession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	return s.with(ctx, s.round)
}

func (s *iperfSession) round(ctx context.Context) (report.Sample, error) {
	for begin := time.Now(); ; {
		// After each client it closes and reopens its listening socket.
		if err := s.server.Listening(ctx); err != nil {
			return report.Sample{}, err
		}
		r, err := s.transfer(ctx)
		switch {
		case err == nil:
			return s.sample(r)
		case !r.busy() || time.Since(begin) > busyLimit:
			return report.Sample{}, err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return report.Sample{}, err
		}
	}
}

// busyLimit limits the time that a server may need to finish with the previous client. It detects a
// hang.
const busyLimit = time.Minute

// transfer runs a client and returns its report, which it also writes if it fails.
func (s *iperfSession) transfer(ctx context.Context) (r iperfReport, err error) {
	n := s.net
	until := []string{"-t", strconv.Itoa(int(s.length.Seconds()))}
	if s.bytes > 0 {
		until = []string{"-n", fmt.Sprintf("%dM", s.bytes)}
	}
	args := append([]string{"-c", n.Ends[1].Addr.Addr().String(), "-J", until[0], until[1],
		"-i", fmt.Sprintf("%.1f", s.interval.Seconds()), "--connect-timeout", "60000"}, s.args...)
	if s.pin && !s.ownCore && n.Ends[0].Namespace != nil && n.Ends[1].Namespace != nil {
		sender, receiver, err := sides(n)
		if err != nil {
			return r, err
		}
		args = append(args, "-A", fmt.Sprintf("%d,%d", sender, receiver))
	}
	from := 0
	if s.reverse {
		from = 1
		args = append(args, "-R")
	}
	err = crossing(n, from, func() (float64, error) {
		out, err := n.Ends[0].At.Output(ctx, s.cpu, iperf3.Command, args...)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		bad := json.Unmarshal(out, &r)
		switch {
		case bad == nil && r.Error != "":
			return 0, fmt.Errorf("iperf3: %s", r.Error)
		case err != nil:
			return 0, err
		case bad != nil:
			return 0, fmt.Errorf("output of iperf3: %w", bad)
		}
		return r.payload(), nil
	})
	return r, err
}

// iperfReport has the used fields of `iperf3 -J`.
type iperfReport struct {
	Error string `json:"error"`
	Start struct {
		Connected []struct{} `json:"connected"` // its streams
		Test      struct {
			Reverse int `json:"reverse"`
		} `json:"test_start"`
	} `json:"start"`
	// Intervals are measured at the client, which is not always the receiver.
	Intervals []struct {
		Sum struct {
			Seconds       float64 `json:"seconds"`
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum"`
	} `json:"intervals"`
	End struct {
		Sent struct {
			Retransmits float64 `json:"retransmits"`
		} `json:"sum_sent"`
		// Received is the server's result of a TCP transfer.
		Received struct {
			Bytes         float64 `json:"bytes"`
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		// Sum is the result of a UDP transfer: sent and lost datagrams.
		Sum struct {
			Bytes   float64 `json:"bytes"`
			Seconds float64 `json:"seconds"`
			Packets float64 `json:"packets"`
			Lost    float64 `json:"lost_packets"`
		} `json:"sum"`
		CPU struct {
			Host   float64 `json:"host_total"`
			Remote float64 `json:"remote_total"`
		} `json:"cpu_utilization_percent"`
		Congestion string `json:"sender_tcp_congestion"`
	} `json:"end"`
}

// busy reports whether the server had not finished with the previous client. It may be about to
// close the listening socket of that one. Then it resets connections that it has not accepted, and
// refuses new ones until it listens again. The client has no stream yet: it is connecting, sends
// its cookie, or waits for the first message.
func (r iperfReport) busy() bool {
	ended := slices.ContainsFunc([]string{"Connection refused", "Connection reset by peer", "Broken pipe"}, func(why string) bool {
		return strings.HasSuffix(r.Error, ": "+why)
	})
	return strings.Contains(r.Error, "server is busy") || ended && len(r.Start.Connected) == 0
}

// payload returns the number of bytes that reached the server.
func (r iperfReport) payload() float64 {
	if u := r.End.Sum; u.Packets > 0 {
		return u.Bytes * (u.Packets - u.Lost) / u.Packets
	}
	return r.End.Received.Bytes
}

func (r iperfReport) cpu() map[string]float64 {
	sender, receiver := r.End.CPU.Host, r.End.CPU.Remote
	if r.Start.Test.Reverse != 0 {
		sender, receiver = receiver, sender
	}
	return map[string]float64{"sender_cpu_percent": sender, "receiver_cpu_percent": receiver}
}

// tcp returns the sample of a TCP transfer.
func (r iperfReport) tcp() (s report.Sample, err error) {
	if r.End.Received.BitsPerSecond <= 0 {
		return s, errors.New("output of iperf3: nothing was received")
	}
	if c := r.End.Congestion; c != "" && c != ends.Congestion {
		return s, fmt.Errorf("iperf3 used %s instead of %s", c, ends.Congestion)
	}
	s.Value = r.End.Received.BitsPerSecond / 1e9
	s.More = r.cpu()
	s.More["retransmits"] = r.End.Sent.Retransmits
	s.Bytes = r.payload()
	for k, i := range r.Intervals {
		// The last one may be only a remainder.
		if k > 0 && k == len(r.Intervals)-1 && i.Sum.Seconds < r.Intervals[k-1].Sum.Seconds/2 {
			break
		}
		s.Intervals = append(s.Intervals, i.Sum.BitsPerSecond/1e9)
	}
	return s, nil
}

// udp returns the sample of a UDP transfer.
func (r iperfReport) udp() (s report.Sample, err error) {
	u := r.End.Sum
	if u.Seconds <= 0 || u.Packets <= u.Lost {
		return s, errors.New("output of iperf3: nothing was received")
	}
	s.Value = (u.Packets - u.Lost) / u.Seconds / 1e3
	s.More = r.cpu()
	s.More[report.Lost] = 100 * u.Lost / u.Packets
	s.Bytes, s.Frames = r.payload(), u.Packets-u.Lost
	return s, nil
}
