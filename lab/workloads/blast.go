// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// smallest is the smallest frame of Ethernet, in bytes with its checksum.
const smallest = 64

// flow is one generator: frames from one end, made on one CPU.
type flow struct {
	from   int // index of the end that sends
	cpu    int
	stream probe.Stream
	// aside marks traffic that disturbs and is not what is measured: it is
	// paced, and sent in short runs that may have gaps.
	aside bool
}

// send makes a flow of small frames from one end to another.
func send(n *fabrics.Net, from, to, cpu int) flow {
	return sendTo(n, from, n.NextHop(from, to), n.Ends[to].Addr.Addr(), cpu)
}

// sendTo makes a flow of small frames from one end to a hardware address and
// an IP address.
func sendTo(n *fabrics.Net, from int, to net.HardwareAddr, dst netip.Addr, cpu int) flow {
	return flow{from: from, cpu: cpu, stream: probe.Stream{
		Ifindex: n.Ends[from].Ifindex,
		Frame:   ends.Frame(smallest, n.Ends[from], to, dst),
		Afresh:  n.Fabric.Routed,
	}}
}

// blast is a session that sends flows of small frames as fast as they go and
// counts what arrives.
type blast struct {
	net      *fabrics.Net
	arrival  fabrics.Arrival
	counters []*probe.Counter
	teach    []int // the ends whose addresses the switch must know
	flows    func() []flow
	length   time.Duration
	copies   int     // that a frame should arrive in, 0 for one
	rate     float64 // frames a second of the fastest flow so far
}

// newBlast attaches a counter to the receivers: the one that sees the frames of
// this kind of fabric at the least cost.
func newBlast(n *fabrics.Net, arrival fabrics.Arrival, receivers []int) (*blast, error) {
	b := &blast{net: n, arrival: arrival}
	devices := map[*ends.Namespace][]int{}
	for _, i := range receivers {
		e := n.Ends[i]
		devices[e.Namespace] = append(devices[e.Namespace], e.Ifindex)
	}
	for ns, ifindex := range devices {
		err := ns.Do(func() error {
			attach := probe.CountTCX
			if arrival == fabrics.AsXDP {
				attach = probe.CountXDP
			}
			c, err := attach(ifindex...)
			if err == nil {
				b.counters = append(b.counters, c)
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	for i := range n.Ports {
		if err := n.AcceptFrames(i); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	// The first end always sends.
	if form, err := n.Sends(0); err != nil {
		return nil, errors.Join(err, b.Close())
	} else if form != fabrics.AsXDP {
		return nil, errors.Join(b.Close(), &ends.Unavailable{Reason: fmt.Sprintf("frames cannot be made on %s: its driver takes none in XDP form", n.Ends[0].Ifname)})
	}
	return b, nil
}

// Counter is how the frames are made and counted.
func (b *blast) Counter() string {
	return "made by BPF_PROG_TEST_RUN live frames, counted by " + b.arrival.String() + " at the receiver"
}

func (b *blast) Close() error {
	var errs []error
	for _, c := range b.counters {
		errs = append(errs, c.Close())
	}
	b.counters = nil
	return errors.Join(errs...)
}

func (b *blast) arrived() (uint64, error) {
	var sum uint64
	for _, c := range b.counters {
		n, err := c.Frames()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// learn lets the switch see the addresses that it must know.
func (b *blast) learn() error {
	for _, i := range b.teach {
		e := b.net.Ends[i]
		if err := e.Send(ends.Frame(smallest, e, ends.Broadcast, ends.Nobody)); err != nil {
			return err
		}
	}
	return nil
}

// Run is one round: millions of frames arrived a second.
func (b *blast) Run(ctx context.Context) (report.Sample, error) {
	if err := b.learn(); err != nil {
		return report.Sample{}, err
	}
	// The size of a run follows from the speed of the one before. Where it
	// was too small, the generator began anew within the window, which costs
	// it some 15 ms: measure again.
	for try := 1; ; try++ {
		s, gap, err := b.window(ctx)
		if err != nil || !gap || try == 4 {
			return s, err
		}
	}
}

// window measures once. A gap is a generator that had to begin anew.
//
// The generators run for longer than the window, so that their start and their
// end are outside of it.
func (b *blast) window(ctx context.Context) (s report.Sample, gap bool, err error) {
	flows := b.flows()
	gens := make([]*probe.Generator, len(flows))
	for i, f := range flows {
		if gens[i], err = probe.NewGenerator(f.stream); err != nil {
			return s, false, err
		}
		defer gens[i].Close()
	}
	var begun atomic.Int64 // how often a measured flow began
	var stopped atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, len(flows))
	size := max(uint32(1.5*b.rate*(b.length+200*time.Millisecond).Seconds()), 200_000)
	for i, f := range flows {
		wg.Go(func() {
			err := b.net.Ends[f.from].Namespace.Do(func() error {
				if err := ends.PinThread(f.cpu); err != nil {
					return err
				}
				for !stopped.Load() {
					size := size
					if f.aside {
						size = 2_000_000
					} else {
						begun.Add(1)
					}
					if err := gens[i].Send(size); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				failed <- err
			}
		})
	}
	stop := func() error {
		stopped.Store(true)
		var errs []error
		for _, g := range gens {
			errs = append(errs, g.Stop())
		}
		wg.Wait()
		select {
		case err := <-failed:
			errs = append(errs, err)
		default:
		}
		return errors.Join(errs...)
	}
	sent := func() (uint64, error) {
		var sum uint64
		for i, g := range gens {
			if flows[i].aside {
				continue
			}
			n, err := g.Sent()
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}

	type reading struct {
		at            time.Time
		arrived, sent uint64
	}
	read := func() (r reading, err error) {
		r.at = time.Now()
		if r.arrived, err = b.arrived(); err == nil {
			r.sent, err = sent()
		}
		return r, err
	}
	measure := func() (from, to reading, err error) {
		if err = b.flowing(ctx, gens, failed); err != nil {
			return from, to, err
		}
		if from, err = read(); err != nil {
			return from, to, err
		}
		if err = pause(ctx, b.length); err != nil {
			return from, to, err
		}
		to, err = read()
		return from, to, err
	}
	from, to, err := measure()
	times := begun.Load()
	if err := errors.Join(err, stop()); err != nil {
		return s, false, err
	}
	seconds := to.at.Sub(from.at).Seconds()
	arrived := float64(to.arrived-from.arrived) / seconds
	made := float64(to.sent-from.sent) / seconds
	if arrived == 0 {
		return s, false, fmt.Errorf("fabric %s: none of %.0f frames a second arrived", b.net.Fabric.Name, made)
	}
	measured := 0
	for _, f := range flows {
		if !f.aside {
			measured++
		}
	}
	b.rate = made / float64(measured)
	s.Value = arrived / 1e6
	s.More = map[string]float64{"sent_mpps": made / 1e6}
	if want := made * float64(max(b.copies, 1)); want > 0 {
		s.More[report.Lost] = max(0, 100*(1-arrived/want))
	}
	return s, times > int64(measured), nil
}

// flowing waits until every generator has sent something and the receivers
// have got something.
func (b *blast) flowing(ctx context.Context, gens []*probe.Generator, failed chan error) error {
	begin, err := b.arrived()
	if err != nil {
		return err
	}
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := b.arrived()
		if err != nil {
			return err
		}
		all := n > begin
		for _, g := range gens {
			sent, err := g.Sent()
			if err != nil {
				return err
			}
			all = all && sent > 0
		}
		if all {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-deadline:
			return fmt.Errorf("fabric %s: no frame arrived within 5 s", b.net.Fabric.Name)
		}
	}
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cores returns the CPUs that generators run on: the last one first, because
// the first one has most of the machine's interrupts.
func cores(n int) ([]int, error) {
	have := runtime.NumCPU()
	if have < n {
		return nil, fmt.Errorf("%d CPUs are needed, the machine has %d", n, have)
	}
	out := make([]int, n)
	for i := range out {
		out[i] = have - 1 - i
	}
	return out, nil
}
