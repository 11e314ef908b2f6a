// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// throughput is the highest rate at which at most a given fraction of the frames is lost. Without
// loss it is the throughput of RFC 2544, section 26.1; otherwise it is a partial drop rate as in
// MLRsearch.
var throughput = &Kind{
	Name:  "throughput-search",
	About: "the highest rate without loss (RFC 2544 throughput, with trials far shorter than its 60 s)",
	open: func(p *pflag.FlagSet) func() (*Workload, error) {
		var w throughputParams
		p.Float64Var(&w.loss, "loss", 0, "that is allowed, in percent")
		w.declareSize(p)
		w.declareGenerator(p)
		p.DurationVar(&w.length, duration, 250*time.Millisecond, "of a trial")
		return func() (*Workload, error) {
			if w.loss < 0 || w.loss >= 100 {
				return nil, errors.New("loss must be 0 or more and less than 100")
			}
			loss := "without loss"
			if w.loss > 0 {
				loss = fmt.Sprintf("with at most %v %% lost", w.loss)
			}
			return &Workload{
				About: fmt.Sprintf("%s, one core, the highest rate %s, by trials of %v (RFC 2544 has 60 s)", w.what(), loss, w.length),
				Unit:  "Mpps",
				// The typical number of trials in a search.
				Takes: 10 * (w.length + 100*time.Millisecond),
				Spec:  fabrics.Spec{Ends: 2, Frames: true},
				Start: w.start,
			}, w.check()
		}
	},
}

type throughputParams struct {
	frameParams
	loss float64
}

// start attaches the counters.
func (w throughputParams) start(ctx context.Context, n *fabrics.Net) (Session, error) {
	b, _, err := w.pair(ctx, n)
	if err != nil {
		return nil, err
	}
	return &throughputSession{b, w.loss}, nil
}

type throughputSession struct {
	*blast
	loss float64 // in percent
}

// reached is the fraction of the offered rate that a generator has to reach for a valid trial.
const reached = 0.98

// searchWidth is the precision of a search.
const searchWidth = 0.02

// Run runs one search.
//
// It has no Frames and no Bytes: most of the CPU time belongs to generators that wait for their
// next frame, and does not show the cost of a frame.
func (t *throughputSession) Run(ctx context.Context, _ Meter) (s report.Sample, err error) {
	if err := t.learn(); err != nil {
		return s, err
	}
	first, err := t.trial(ctx, 0)
	if err != nil {
		return s, err
	}
	top := first.made
	guess := top * (1 - first.lost/100)
	var lost float64 // in the last trial that passed
	rate, trials, err := search(top, guess, searchWidth, func(rate float64) (bool, error) {
		r := first
		switch {
		case rate < top:
			r, err = t.trial(ctx, rate)
		case first.sent > 0:
			// The first trial was at the top rate.
			first = outcome{}
		default:
			// At the top, the generator is not paced.
			r, err = t.trial(ctx, 0)
		}
		pass := r.lost <= t.loss && (rate == top || r.made >= reached*rate)
		if pass {
			lost = r.lost
		}
		return pass, err
	})
	if err != nil {
		return s, fmt.Errorf("fabric %s: %w", t.net.Fabric.Name, err)
	}
	s.Value = rate / 1e6
	s.More = map[string]float64{report.Lost: lost, "most_mpps": top / 1e6, "trials": float64(trials)}
	return s, nil
}

// outcome is the result of a trial.
type outcome struct {
	made float64 // frames per second
	sent uint64
	lost float64 // percent
}

// trial sends at a rate, 0 for as fast as possible, and counts every frame from the first to the
// last.
func (b *blast) trial(ctx context.Context, rate float64) (o outcome, err error) {
	flows := b.flows()
	for i := range flows {
		flows[i].stream.Rate = uint64(rate / float64(len(flows)))
	}
	before, err := b.arrived()
	if err != nil {
		return o, err
	}
	r, err := b.start(flows)
	if err != nil {
		return o, err
	}
	measure := func() (made float64, err error) {
		if err := b.flowing(ctx, r); err != nil {
			return 0, err
		}
		from, err := b.read(r)
		if err != nil {
			return 0, err
		}
		if err := pause(ctx, b.length); err != nil {
			return 0, err
		}
		to, err := b.read(r)
		_, made = to.since(from)
		return made, err
	}
	o.made, err = measure()
	err = errors.Join(err, r.halt())
	if err == nil {
		o.sent, err = r.sent(false)
	}
	if err := errors.Join(err, r.stop()); err != nil {
		return o, err
	}
	if rate == 0 {
		b.rate = o.made / float64(len(flows))
	}
	arrived, err := b.settled(ctx)
	o.lost = max(0, 100*(1-float64(arrived-before.Frames)/float64(o.sent)))
	return o, err
}

// settled waits until no more frames arrive, for at most 200 ms, and returns how many have arrived.
func (b *blast) settled(ctx context.Context) (uint64, error) {
	var last uint64
	for range 40 {
		c, err := b.arrived()
		if err != nil || c.Frames == last {
			return last, err
		}
		last = c.Frames
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return last, err
		}
	}
	return last, nil
}
