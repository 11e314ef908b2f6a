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
	"bascule/lab/report"
)

// pfLoad is the time of the command that loads many rules.
var pfLoad = &Kind{
	Name:  "pf-load",
	About: "the time of the command that gives a packet filter many rules",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		rules := p.Int("rules", 10_000, "to load")
		return func() (*Workload, error) {
			if *rules < 10 || *rules > 50_000 {
				return nil, errors.New("rules must be 10 to 50000")
			}
			return &Workload{
				About: fmt.Sprintf("the command that gives a packet filter %d rules, from its start to its end", *rules),
				Unit:  "s",
				Lower: true,
				Takes: time.Second,
				Spec:  fabrics.Spec{Ends: 2},
				Start: func(_ context.Context, n *fabrics.Net) (Session, error) {
					return pfLoadSession{n, *rules}, nil
				},
			}, nil
		}
	},
}

type pfLoadSession struct {
	net   *fabrics.Net
	rules int
}

// Run takes the many rules away and times their return.
func (p pfLoadSession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	if err := p.net.LoadRules(ctx, 0); err != nil {
		return report.Sample{}, err
	}
	begin := time.Now()
	if err := p.net.LoadRules(ctx, p.rules); err != nil {
		return report.Sample{}, err
	}
	return report.Sample{Value: time.Since(begin).Seconds()}, nil
}

// Close has nothing to do.
func (p pfLoadSession) Close() error { return nil }

// mostConnections is how many connections a packet filter may be filled with:
// some hundred bytes of memory each.
const mostConnections = 4_000_000

// pfMemory is what a connection costs in a packet filter's tables, when they are
// full.
var pfMemory = &Kind{
	Name:  "pf-memory",
	About: "kernel memory of a packet filter's tables of connections, per connection",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		count := p.Int("count", 1_000_000, "connections in the tables, as many as they may hold")
		return func() (*Workload, error) {
			if *count < 1 || *count > mostConnections {
				return nil, fmt.Errorf("count must be 1 to %d", mostConnections)
			}
			return &Workload{
				About: fmt.Sprintf("kernel memory of a packet filter's tables of connections, per connection, with %d", *count),
				Unit:  "B",
				Lower: true,
				Takes: filling(*count),
				Spec:  fabrics.Spec{Ends: 2, Frames: true, States: *count},
				Start: func(ctx context.Context, n *fabrics.Net) (Session, error) {
					if _, err := n.StateMemory(); err != nil {
						return nil, err
					}
					small := frameParams{generator: "auto", size: strconv.Itoa(smallest)}
					m, err := small.maker(ctx, n, 0)
					return pfMemorySession{small, n, m, *count}, err
				},
			}, nil
		}
	},
}

// filling is about how long it takes to make so many connections.
func filling(count int) time.Duration { return time.Duration(count) * 5 * time.Microsecond }

type pfMemorySession struct {
	frameParams
	net   *fabrics.Net
	maker maker
	count int
}

// Run fills the tables, for what was there before may be over by now, and reads
// the kernel's account. A few connections may find no room: the ends make some of
// their own.
func (p pfMemorySession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	cpus, err := cores(1)
	if err != nil {
		return report.Sample{}, err
	}
	b := blast{net: p.net, teach: []int{0, 1}}
	if err := b.learn(); err != nil {
		return report.Sample{}, err
	}
	f := p.send(p.net, 0, 1, cpus[0])
	f.stream.Ports = uint32(p.count)
	states, err := connected(ctx, p.net, p.maker, p.count, f)
	if err != nil {
		return report.Sample{}, err
	}
	if float64(states) < 0.95*float64(p.count) {
		return report.Sample{}, fmt.Errorf("fabric %s: %d connections were begun and it knows %d", p.net.Fabric.Name, p.count, states)
	}
	bytes, err := p.net.StateMemory()
	if err != nil {
		return report.Sample{}, err
	}
	return report.Sample{
		Value: float64(bytes) / float64(states),
		More:  map[string]float64{"bytes": float64(bytes), "connections": float64(states)},
	}, nil
}

// Close has nothing to do.
func (p pfMemorySession) Close() error { return nil }

// connected sends a frame of each connection of some flows, one flow after the
// other. The packet filter should then know want connections. connected returns
// how many it knows.
func connected(ctx context.Context, n *fabrics.Net, m maker, want int, flows ...flow) (states int, err error) {
	for idle := 0; ; {
		before := states
		for _, f := range flows {
			if err := sendCount(n, m, f, f.stream.Ports); err != nil {
				return states, err
			}
		}
		// A frame may find a full ring, so one pass may miss some; on a busy
		// machine, the next one the same.
		if states, err = n.States(ctx); err != nil || states >= want {
			return states, err
		}
		if idle++; states > before {
			idle = 0
		}
		if idle == 4 {
			return states, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return states, err
		}
	}
}

// connect sends a frame each way of every connection of the flows, and finds out
// whether a packet filter knows them all then, where one tells.
func (b *blast) connect(ctx context.Context, flows, answers []flow) error {
	want := 0
	for _, f := range flows {
		want += int(f.stream.Ports)
	}
	var both []flow
	for i := range flows {
		both = append(both, flows[i], answers[i])
	}
	states, err := connected(ctx, b.net, b.maker, want, both...)
	if none := new(ends.Unavailable); errors.As(err, &none) {
		return nil
	}
	if err == nil && states < want {
		err = fmt.Errorf("fabric %s: %d connections were made and it knows %d", b.net.Fabric.Name, want, states)
	}
	return err
}
