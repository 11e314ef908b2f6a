// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// iperfListen is where iperf3 listens.
var iperfListen = ends.Listen{Proto: "tcp", Port: 5201}

// iperf runs a client of iperf3 and returns its report, which it also writes
// when it fails.
func iperf(ctx context.Context, n *fabrics.Net, pin bool, length time.Duration, args ...string) (r iperfReport, err error) {
	args = append([]string{"-c", n.Ends[1].Addr.Addr().String(), "-J", "-t", strconv.Itoa(int(length.Seconds()))}, args...)
	// Virtual machines have one CPU each.
	if pin && !n.Spec.Guests {
		cpus, err := cores(2)
		if err != nil {
			return r, err
		}
		args = append(args, "-A", fmt.Sprintf("%d,%d", cpus[1], cpus[0]))
	}
	before, err := n.Crossed()
	if err != nil {
		return r, err
	}
	out, err := n.Ends[0].At.Output(ctx, ends.AnyCPU, iperf3.Command, args...)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	bad := json.Unmarshal(out, &r)
	switch {
	case bad == nil && r.Error != "":
		return r, fmt.Errorf("iperf3: %s", r.Error)
	case err != nil:
		return r, err
	case bad != nil:
		return r, fmt.Errorf("output of iperf3: %w", bad)
	}
	after, err := n.Crossed()
	if err != nil {
		return r, err
	}
	if got := r.payload(); float64(after-before) < got {
		return r, fmt.Errorf("fabric %s: %.0f bytes arrived, but only %d crossed it", n.Fabric.Name, got, after-before)
	}
	return r, nil
}

// iperfReport is the part of `iperf3 -J` that is used.
type iperfReport struct {
	Error string `json:"error"`
	End   struct {
		Sent struct {
			Retransmits float64 `json:"retransmits"`
		} `json:"sum_sent"`
		// Received is what the server got of a TCP transfer.
		Received struct {
			Bytes         float64 `json:"bytes"`
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		// Sum is of a UDP transfer: what was sent, and lost on the way.
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

// payload is how many bytes reached the server.
func (r iperfReport) payload() float64 {
	if u := r.End.Sum; u.Packets > 0 {
		return u.Bytes * (u.Packets - u.Lost) / u.Packets
	}
	return r.End.Received.Bytes
}

func (r iperfReport) cpu() map[string]float64 {
	return map[string]float64{
		"sender_cpu_percent":   r.End.CPU.Host,
		"receiver_cpu_percent": r.End.CPU.Remote,
	}
}

// tcp is the sample of a TCP transfer.
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
	return s, nil
}

// udp is the sample of a UDP transfer.
func (r iperfReport) udp() (s report.Sample, err error) {
	u := r.End.Sum
	if u.Seconds <= 0 || u.Packets <= u.Lost {
		return s, errors.New("output of iperf3: nothing was received")
	}
	s.Value = (u.Packets - u.Lost) / u.Seconds / 1e3
	s.More = r.cpu()
	s.More[report.Lost] = 100 * u.Lost / u.Packets
	return s, nil
}
