// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"bascule/datapath/probe"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// roomy is the size of a table that no rate measurement fills.
const roomy = 1_000_000

// mostSearch allows for a switch that learns a few thousand addresses per second.
const mostSearch = 15 * time.Minute

// learningRate is the highest rate of new addresses at which a switch learns all of them: RFC 2889,
// section 5.8.
var learningRate = &Kind{
	Name:  "learning-rate",
	About: "the most new addresses a second that are all learned (RFC 2889 address learning rate)",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w addressTrialParams
		p.IntVar(&w.count, "addresses", 100_000, "that come in a trial")
		w.declareGenerator(p)
		return func() (*Workload, error) {
			if w.count < 1000 || w.count > roomy/2 {
				return nil, fmt.Errorf("addresses must be 1000 to %d", roomy/2)
			}
			return &Workload{
				About: fmt.Sprintf("the most new addresses a second of which the switch learns all, by trials of %d", w.count),
				Unit:  "k/s",
				Takes: 4 * time.Second,
				Most:  mostSearch,
				Spec:  fabrics.Spec{Ends: 2, Ageing: long, FDBMax: roomy, Frames: true},
				Start: func(ctx context.Context, n *fabrics.Net) (Session, error) {
					s, err := w.start(ctx, n)
					if err != nil {
						return nil, err
					}
					return &learningRateSession{s}, nil
				},
			}, w.check()
		}
	},
}

// addressCapacity is the number of addresses that a switch can store by default: RFC 2889, section
// 5.7.
var addressCapacity = &Kind{
	Name:  "address-capacity",
	About: "the most addresses that are all learned and kept, with the fabric's default limit (RFC 2889 address caching capacity)",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w addressTrialParams
		p.IntVar(&w.count, "max", roomy, "try no more addresses: a switch that keeps so many is said to have room for them")
		w.declareGenerator(p)
		return func() (*Workload, error) {
			if w.count < 100 || w.count > 1<<24 {
				return nil, fmt.Errorf("max must be 100 to %d", 1<<24)
			}
			return &Workload{
				About: fmt.Sprintf("addresses that the switch learns and keeps as it is made, up to %d", w.count),
				Unit:  "addresses",
				Takes: 3 * time.Second,
				Most:  mostSearch,
				Spec:  fabrics.Spec{Ends: 2, Ageing: long, Frames: true},
				Start: func(ctx context.Context, n *fabrics.Net) (Session, error) {
					s, err := w.start(ctx, n)
					if err != nil {
						return nil, err
					}
					return &addressCapacitySession{s}, nil
				},
			}, w.check()
		}
	},
}

type addressTrialParams struct {
	frameParams
	count int
}

// start prepares the generator.
func (w addressTrialParams) start(ctx context.Context, n *fabrics.Net) (*addressTrials, error) {
	if err := learns(n); err != nil {
		return nil, err
	}
	if _, err := n.Known(ctx); err != nil {
		return nil, err
	}
	cpus, err := cores(1)
	if err != nil {
		return nil, err
	}
	// Without receivers: the destination of the frames is their own port.
	b, err := newBlast(ctx, n, w.frameParams, n.Fabric.Arrival, nil)
	if err != nil {
		return nil, err
	}
	b.teach = []int{0, 1}
	return &addressTrials{b, w.count, cpus[0], 0}, nil
}

// addressTrials are trials with addresses that are new to the switch.
type addressTrials struct {
	*blast
	count int
	cpu   int
	used  uint32 // number of addresses used so far
}

// Counter describes how the frames are made.
func (a *addressTrials) Counter() string {
	return "made by " + a.maker.String() + "; the addresses are those that the switch says it knows"
}

// flow returns a flow with new addresses.
func (a *addressTrials) flow(count int) flow {
	f := a.send(a.net, 1, 1, a.cpu)
	f.stream.Src = probe.Vary{Base: numbered(a.used), Count: uint32(count)}
	a.used += uint32(count)
	return f
}

// clean makes the switch forget everything except the ends, and returns the number of addresses
// that remain.
func (a *addressTrials) clean(ctx context.Context) (int, error) {
	if err := a.net.Flush(ctx); err != nil {
		return 0, err
	}
	if err := a.learn(); err != nil {
		return 0, err
	}
	return a.net.Known(ctx)
}

type learningRateSession struct{ *addressTrials }

// Run runs one search.
func (l *learningRateSession) Run(ctx context.Context, _ Meter) (s report.Sample, err error) {
	made, all, err := l.trial(ctx, 0)
	if err != nil {
		return s, err
	}
	top, first := made, true
	rate, trials, err := search(top, top/2, searchWidth, func(rate float64) (pass bool, err error) {
		if rate == top && first {
			first = false
			return all, nil
		}
		if rate == top {
			_, pass, err = l.trial(ctx, 0)
			return pass, err
		}
		made, pass, err := l.trial(ctx, rate)
		return pass && made >= reached*rate, err
	})
	if err != nil {
		return s, fmt.Errorf("fabric %s: %w", l.net.Fabric.Name, err)
	}
	s.Value = rate / 1e3
	s.More = map[string]float64{"most_kps": top / 1e3, "trials": float64(trials)}
	return s, nil
}

// trial sends new addresses at a rate, 0 for as fast as possible, and returns the achieved rate per
// second and whether the switch learned all of them.
func (l *learningRateSession) trial(ctx context.Context, rate float64) (made float64, all bool, err error) {
	before, err := l.clean(ctx)
	if err != nil {
		return 0, false, err
	}
	f := l.flow(l.count)
	f.stream.Rate = uint64(rate)
	r, err := l.blast.start([]flow{f})
	if err != nil {
		return 0, false, err
	}
	made, err = l.watch(ctx, r)
	if err := errors.Join(err, r.stop()); err != nil {
		return 0, false, err
	}
	if rate == 0 {
		l.rate = made
	}
	// A switch that learns asynchronously may need a moment more.
	want, last := before+l.count, -1
	for {
		known, err := l.net.Known(ctx)
		if err != nil || known >= want || known == last {
			return made, known >= want, err
		}
		last = known
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return made, false, err
		}
	}
}

// watch waits until every address was sent once, and returns the rate per second.
func (l *learningRateSession) watch(ctx context.Context, r *barrage) (float64, error) {
	var from reading
	for {
		v, err := l.read(r)
		switch {
		case err != nil:
			return 0, err
		case v.sent > 0 && from.sent == 0:
			from = v
		case v.sent >= uint64(l.count) && v.sent > from.sent:
			_, made := v.since(from)
			return made, nil
		}
		select {
		case err := <-r.failed:
			return 0, err
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

type addressCapacitySession struct{ *addressTrials }

// Run runs one search.
func (c *addressCapacitySession) Run(ctx context.Context, _ Meter) (s report.Sample, err error) {
	known, err := c.trial(ctx, c.count)
	if err != nil {
		return s, err
	}
	top := float64(c.count)
	all := known >= c.count
	// Given too many addresses, the switch probably stored as many as it can.
	kept, trials, err := search(top, float64(max(known, 1)), 0.01, func(load float64) (bool, error) {
		if load == top {
			return all, nil
		}
		known, err := c.trial(ctx, int(load))
		return known >= int(load), err
	})
	if err != nil {
		return s, fmt.Errorf("fabric %s: %w", c.net.Fabric.Name, err)
	}
	s.Value = float64(int(kept))
	s.More = map[string]float64{"trials": float64(trials)}
	return s, nil
}

// trial offers count addresses, including the ends' own, to a switch with an empty table. It
// returns how many of them the switch has learned.
func (c *addressCapacitySession) trial(ctx context.Context, count int) (int, error) {
	before, err := c.clean(ctx)
	if err != nil {
		return 0, err
	}
	return taught(ctx, c.net, c.maker, c.flow(count-before), count)
}
