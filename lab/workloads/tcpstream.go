// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
)

// Bulk transfers by iperf3, from the first end to the second. They differ in
// their defaults.
var (
	tcpStream = stream("tcp-stream", "bulk TCP by iperf3", 1, 2*time.Second)
	// netperf's TCP_STREAM is mostly run with a minute and one connection.
	netperfStream = stream("netperf-stream", "bulk TCP by iperf3 as netperf's TCP_STREAM is published: a minute, 1 stream", 1, time.Minute)
	iperf3Streams = stream("iperf-3streams", "bulk TCP by iperf3 as routers are compared: a minute, 3 streams", 3, time.Minute)
)

// stream is a kind of bulk transfer.
func stream(name, about string, streams int, length time.Duration) *Kind {
	return &Kind{
		Name:  name,
		About: about,
		open: func(p *pflag.FlagSet) func() (*Workload, error) {
			var w tcpStreamParams
			p.IntVar(&w.streams, "streams", streams, "connections at once")
			p.BoolVar(&w.offloads, "offloads", false, "the ends hand over packets of up to 64 KiB and join what they get; without it each packet crosses alone, as from a network card")
			p.BoolVar(&w.reverse, "reverse", false, "the second end sends to the first")
			p.IntVar(&w.mss, "mss", 0, "most payload of a packet, in bytes, 0 for what the MTU allows")
			p.BoolVar(&w.pin, "pin", true, "each side on a CPU of its own; false lets the scheduler place them")
			p.BoolVar(&w.ownCore, "own-core", false, "the router has the last core for itself, and the ends share another; without it a router does its work on the core of whoever sends")
			p.StringVar(&w.rate, "rate", "0", "most payload bits a second of each connection, as 800M or 2G, 0 for as many as possible")
			p.DurationVar(&w.length, duration, length, "of a round, in whole seconds")
			p.IntVar(&w.bytes, amount, 0, "of payload that a round sends instead, in MiB, 0 for as many as there is time for")
			return func() (*Workload, error) {
				if w.streams < 1 || w.streams > 128 {
					return nil, errors.New("streams must be 1 to 128")
				}
				// The range of TCP_MAXSEG, tcp(7).
				if w.mss != 0 && (w.mss < 88 || w.mss > 32767) {
					return nil, errors.New("mss must be 88 to 32767, or 0")
				}
				if w.ownCore && !w.pin {
					return nil, errors.New("own-core says where the ends run: leave pin out")
				}
				if !iperfRate().MatchString(w.rate) {
					return nil, fmt.Errorf("rate=%q: give bits a second, as 800M or 2G", w.rate)
				}
				if err := wholeSeconds(w.length); err != nil {
					return nil, err
				}
				if w.bytes < 0 || w.bytes > mostMiB {
					return nil, fmt.Errorf("%s must be 0 to %d", amount, mostMiB)
				}
				sends := w.length
				if w.bytes > 0 {
					// at 1 Gbit/s
					sends = time.Duration(w.bytes) * 8 * time.Millisecond
				}
				return &Workload{
					About: w.about(),
					Unit:  "Gbit/s",
					Needs: []ends.Program{iperf3},
					Takes: sends + 150*time.Millisecond,
					Spec:  fabrics.Spec{Ends: 2, OwnCore: w.ownCore},
					Start: w.start,
					// All other parameters belong to the client.
					Shares: fmt.Sprintf("iperf3 offloads=%v own-core=%v", w.offloads, w.ownCore),
					Join:   w.iperf().join,
				}, nil
			}
		},
	}
}

type tcpStreamParams struct {
	streams  int
	offloads bool
	reverse  bool
	mss      int
	pin      bool
	ownCore  bool
	rate     string
	length   time.Duration
	bytes    int // MiB, 0 for a transfer of length
}

func (w tcpStreamParams) about() string {
	about := []string{"TCP", "1 stream"}
	if w.streams != 1 {
		about[1] = fmt.Sprintf("%d streams", w.streams)
	}
	if w.reverse {
		about = append(about, "from the second end to the first")
	}
	if w.mss != 0 {
		about = append(about, fmt.Sprintf("segments of %d bytes", w.mss))
	}
	if w.rate != "0" {
		about = append(about, w.rate+"bit/s at most")
	}
	if w.ownCore {
		about = append(about, "the router on a core of its own")
	}
	if !w.pin {
		about = append(about, "not pinned")
	}
	if w.offloads {
		about = append(about, "offloads on at the ends (64 KiB packets)")
	} else {
		about = append(about, "offloads off at the ends (tso, gso, gro: each packet alone)")
	}
	return strings.Join(about, ", ")
}

// start sets the offloads and starts the server.
func (w tcpStreamParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	if !w.offloads && n.Fabric.NeedsNAPI {
		if err := n.Poll(); err != nil {
			return nil, err
		}
	}
	for _, e := range n.Ends {
		f := ends.Features{Segmentation: w.offloads, GRO: w.offloads && n.Fabric.NeedsNAPI}
		if err := e.At.SetFeatures(e.Ifname, f); err != nil {
			return nil, err
		}
	}
	return w.iperf().start(ctx, n)
}

// iperf returns the client of a round.
func (w tcpStreamParams) iperf() iperf {
	args := []string{"-C", ends.Congestion, "-P", strconv.Itoa(w.streams), "-b", w.rate}
	if w.mss != 0 {
		args = append(args, "-M", strconv.Itoa(w.mss))
	}
	return iperf{
		length: w.length,
		bytes:  w.bytes,
		// At least ten figures in a round; iperf3 reports every 0.1 to 60 s.
		interval: min(max(w.length/10, 100*time.Millisecond), time.Second),
		pin:      w.pin,
		ownCore:  w.ownCore,
		reverse:  w.reverse,
		args:     args,
		sample:   iperfReport.tcp,
	}
}

// mostMiB limits the size of a round.
const mostMiB = 1 << 20

// wholeSeconds refuses a length that is invalid for programs that count seconds.
func wholeSeconds(d time.Duration) error {
	if d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("duration=%v: give whole seconds", d)
	}
	if d > longest {
		return fmt.Errorf("duration must be %v at most", longest)
	}
	return nil
}
