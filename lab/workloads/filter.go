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

// pfLoad measures the command that loads many rules.
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

// Run removes the many rules and measures the time to load them again.
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

// mostConnections limits the connections in a packet filter: each one takes some hundred bytes of
// memory.
const mostConnections = 4_000_000

// pfMemory is the cost of a connection in a packet filter's full tables.
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

// filling returns the approximate time to make count connections.
func filling(count int) time.Duration { return time.Duration(count) * 5 * time.Microsecond }

type pfMemorySession struct {
	frameParams
	net   *fabrics.Net
	maker maker
	count int
}

// Run fills the tables, since earlier connections may have expired, and reads the kernel's memory
// accounting. A few connections may find no room, since the ends make some of their own.
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

// connected sends a frame of each connection in some flows, one flow after the other, until the
// packet filter has want connections. It returns the number of its connections.
func connected(ctx context.Context, n *fabrics.Net, m maker, want int, flows ...flow) (states int, err error) {
	for idle := 0; ; {
		before := states
		for _, f := range flows {
			if err := sendCount(n, m, f, f.stream.Ports); err != nil {
				return states, err
			}
		}
		// A frame may find a full ring, so a pass may miss some; on a busy machine, several
		// passes may miss the same ones.
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

// connect sends a frame in each direction of every connection in the flows, and checks that the
// packet filter has all of them, if it reports their number.
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
