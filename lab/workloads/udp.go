// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/pattern"
)

// iperfRate matches a rate in bits per second in iperf3's format.
var iperfRate = pattern.New(`^[0-9]+(\.[0-9]+)?[kKmMgG]?$`)

// udp sends datagrams with iperf3 from the first end to the second, as fast as the sender can. The
// sender's system calls are a large part of the cost of a datagram, so the differences between
// fabrics appear smaller here than they are.
var udp = &Kind{
	Name:  "udp",
	About: "UDP datagrams by iperf3",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w udpParams
		p.IntVar(&w.size, "size", 64, "of the payload, in bytes, from 16")
		p.StringVar(&w.rate, "rate", "0", "payload bits a second, as 800M or 2G, 0 for as many as possible")
		p.DurationVar(&w.length, duration, 2*time.Second, "of a round, in whole seconds")
		return func() (*Workload, error) {
			// iperf3's header in each datagram.
			if w.size < 16 || w.size > 65507 {
				return nil, errors.New("size must be 16 to 65507")
			}
			about := fmt.Sprintf("UDP, %d-byte datagrams, ends pinned", w.size)
			switch {
			case !iperfRate().MatchString(w.rate):
				return nil, fmt.Errorf("rate=%q: give bits a second, as 800M or 2G", w.rate)
			case w.rate != "0":
				about += ", " + w.rate + "bit/s offered"
			}
			if err := wholeSeconds(w.length); err != nil {
				return nil, err
			}
			return &Workload{
				About: about,
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
	rate   string
	length time.Duration
}

// start starts the server.
func (w udpParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	return iperf{
		length: w.length,
		pin:    true,
		args:   []string{"-u", "-b", w.rate, "-l", strconv.Itoa(w.size)},
		sample: iperfReport.udp,
	}.start(ctx, n)
}
