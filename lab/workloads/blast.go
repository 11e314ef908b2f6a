// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// smallest is the minimum size of an Ethernet frame, in bytes with its checksum.
const smallest = 64

// headers is the size of the headers in a frame of ends.Frame: Ethernet, IPv4 and UDP.
const headers = 14 + 20 + 8

// imix is the simple Internet mix: IP packets of 40, 576 and 1500 bytes, 7:4:1.
// The sizes are frame sizes, with the checksum. The smallest packets are padded to the minimum
// frame size.
var imix = []int{64, 594, 64, 594, 64, 64, 594, 64, 64, 594, 64, 1518}

// frameParams are the common parameters of workloads that make frames themselves.
type frameParams struct {
	generator string
	size      string
	length    time.Duration
}

// declare declares the common parameters. Workloads that do not declare a size send the smallest
// frames.
func (f *frameParams) declare(p *pflag.FlagSet, length time.Duration) {
	f.declareGenerator(p)
	p.DurationVar(&f.length, duration, length, "of the window that is counted")
}

func (f *frameParams) declareGenerator(p *pflag.FlagSet) {
	f.size, f.length = strconv.Itoa(smallest), time.Second
	p.StringVar(&f.generator, "generator", "auto", "bpf, made in the kernel; ring, of a packet socket; or auto, bpf where the fabric takes it")
}

func (f *frameParams) declareSize(p *pflag.FlagSet) {
	p.StringVar(&f.size, "size", strconv.Itoa(smallest), "of frames with the checksum, 64 to 1518 bytes, or imix (64, 594 and 1518, 7:4:1)")
}

func (f *frameParams) check() error {
	if !slices.Contains([]string{"auto", "bpf", "ring"}, f.generator) {
		return errors.New("generator must be auto, bpf or ring")
	}
	if f.length <= 0 || f.length > longest {
		return fmt.Errorf("duration must be more than 0, and %v at most", longest)
	}
	if n, err := strconv.Atoi(f.size); f.size != "imix" && (err != nil || n < smallest || n > 1518) {
		return errors.New("size must be 64 to 1518, or imix")
	}
	return nil
}

// what describes the frames.
func (f *frameParams) what() string {
	what := f.size + "-byte frames"
	if f.size == "imix" {
		what = "IMIX frames (64, 594 and 1518 bytes, 7:4:1)"
	}
	if f.generator == "ring" {
		what += " of a packet socket"
	}
	return what
}

// flow is one generator: frames from one end, made on one CPU.
type flow struct {
	from   int // index of the end that sends
	cpu    int
	stream probe.Stream
	// aside marks disturbing traffic, which is not measured.
	aside bool
}

// send makes a flow from one end to another.
func (f *frameParams) send(n *fabrics.Net, from, to, cpu int) flow {
	return f.sendTo(n, from, n.NextHop(from, to), n.Ends[to].Addr.Addr(), cpu)
}

// sendTo makes a flow from one end to a hardware address and an IP address.
func (f *frameParams) sendTo(n *fabrics.Net, from int, to net.HardwareAddr, dst netip.Addr, cpu int) flow {
	sizes := imix
	if f.size != "imix" {
		// It was checked before.
		size, _ := strconv.Atoi(f.size)
		sizes = []int{size}
	}
	s := probe.Stream{
		Ifindex: n.Ends[from].Ifindex,
		Frame:   ends.Frame(slices.Max(sizes), n.Ends[from], to, dst),
		Afresh:  n.Fabric.Routed,
	}
	if len(sizes) > 1 {
		for _, size := range sizes {
			s.Sizes = append(s.Sizes, size-4)
		}
	}
	return flow{from: from, cpu: cpu, stream: s}
}

// generator makes frames.
type generator interface {
	Send(n uint32) error
	Stop() error
	Sent() (uint64, error)
	Close() error
}

// maker is a method to make frames.
type maker int

const (
	bpfFrames maker = iota
	ringFrames
)

func (m maker) String() string {
	if m == ringFrames {
		return "the ring of a packet socket"
	}
	return "BPF_PROG_TEST_RUN live frames"
}

// maker determines how frames can be made at an end: in the kernel, if devices accept frames in
// that form and the fabric sees them, otherwise in a ring.
func (f *frameParams) maker(ctx context.Context, n *fabrics.Net, end int) (maker, error) {
	if f.generator == "ring" {
		return ringFrames, nil
	}
	err := f.try(ctx, n, end)
	switch {
	case err == nil:
		return bpfFrames, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case f.generator == "bpf":
		return 0, &ends.Unavailable{Reason: "it takes no frames that the kernel makes: " + err.Error()}
	}
	return ringFrames, nil
}

// try sends some frames made by the kernel.
func (f *frameParams) try(ctx context.Context, n *fabrics.Net, end int) error {
	for i := range n.Ports {
		if err := n.AcceptFrames(i); err != nil {
			return err
		}
	}
	before, err := n.Crossed(end)
	if err != nil {
		return err
	}
	// To itself, so that they are not forwarded.
	if err := sendCount(n, bpfFrames, f.sendTo(n, end, n.Ends[end].MAC, ends.NoStation, 0), probe.Batch); err != nil {
		return err
	}
	for range 50 {
		if after, err := n.Crossed(end); err != nil || after > before {
			return err
		}
		if err := pause(ctx, 4*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("none arrived")
}

// generator prepares a flow.
func (m maker) generator(n *fabrics.Net, f flow) (g generator, err error) {
	err = n.Ends[f.from].Namespace.Do(func() error {
		if m == ringFrames {
			g, err = probe.NewRing(f.stream)
		} else {
			g, err = probe.NewGenerator(f.stream)
		}
		return err
	})
	return g, err
}

// sendCount sends count frames of a flow.
func sendCount(n *fabrics.Net, m maker, f flow, count uint32) error {
	g, err := m.generator(n, f)
	if err != nil {
		return err
	}
	err = n.Ends[f.from].Namespace.Do(func() error {
		if err := ends.PinThread(f.cpu); err != nil {
			return err
		}
		return g.Send(count)
	})
	return errors.Join(err, g.Close())
}

// blast is a session that sends flows as fast as possible and counts arriving frames.
type blast struct {
	frameParams
	net      *fabrics.Net
	arrivals []fabrics.Arrival // forms with counters
	maker    maker
	counters []*probe.Counter
	teach    []int    // ends whose addresses the switch must have learned
	greet    [][2]int // pairs of ends that exchange frames first, for a packet filter
	answer   []flow   // the other direction of flows with many connections, which a packet filter must have seen
	fresh    bool     // a packet filter must not have seen any of the frames
	flows    func() []flow
	copies   int     // expected copies of a frame, 0 for one
	rate     float64 // frames per second of the fastest flow so far
}

// newBlast determines how frames can be made and attaches the cheapest counter for this kind of
// fabric to the receivers.
func newBlast(ctx context.Context, n *fabrics.Net, p frameParams, arrival fabrics.Arrival, receivers []int) (*blast, error) {
	m, err := p.maker(ctx, n, 0)
	if err != nil {
		return nil, err
	}
	if m == ringFrames && n.Switch == nil {
		// Frames do not change their form between the ends.
		arrival = fabrics.AsBuffers
	}
	b := &blast{frameParams: p, net: n, maker: m}
	if err := b.count(arrival, receivers); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// count attaches a counter of frames that arrive in a form. An XDP switch leaves some frames to the
// stack: the first of a flow, or one per second, which refreshes the age of its source. These are
// counted as buffers. Each frame is counted once, because the counter in XDP consumes the frames
// that it counts.
func (b *blast) count(arrival fabrics.Arrival, receivers []int) error {
	b.arrivals = append(b.arrivals, arrival)
	devices := map[*ends.Namespace][]int{}
	for _, i := range receivers {
		e := b.net.Ends[i]
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
			return err
		}
	}
	if arrival == fabrics.AsXDP {
		return b.count(fabrics.AsBuffers, receivers)
	}
	return nil
}

// Counter describes how the frames are made and counted.
func (b *blast) Counter() string {
	by := make([]string, len(b.arrivals))
	for i, a := range b.arrivals {
		by[i] = a.String()
	}
	return "made by " + b.maker.String() + ", counted by " + strings.Join(by, " and ") + " at the receiver"
}

// pair prepares a flow from the first end to the second, made on one core. Changes to the returned
// flow take effect.
func (f *frameParams) pair(ctx context.Context, n *fabrics.Net) (*blast, *flow, error) {
	cpus, err := cores(1)
	if err != nil {
		return nil, nil, err
	}
	b, err := newBlast(ctx, n, *f, n.Fabric.Arrival, []int{1})
	if err != nil {
		return nil, nil, err
	}
	b.teach = []int{0, 1}
	made := f.send(n, 0, 1, cpus[0])
	b.flows = func() []flow { return []flow{made} }
	return b, &made, nil
}

// Close removes the counters.
func (b *blast) Close() error {
	var errs []error
	for _, c := range b.counters {
		errs = append(errs, c.Close())
	}
	b.counters = nil
	return errors.Join(errs...)
}

func (b *blast) arrived() (probe.Count, error) {
	var sum probe.Count
	for _, c := range b.counters {
		n, err := c.Read()
		if err != nil {
			return sum, err
		}
		sum.Frames += n.Frames
		sum.Bytes += n.Bytes
	}
	return sum, nil
}

// learn lets the switch learn the required addresses, and lets a packet filter see both directions
// of connections that should be established.
func (b *blast) learn() error {
	for _, i := range b.teach {
		e := b.net.Ends[i]
		if err := e.Send(ends.Frame(smallest, e, ends.Broadcast, ends.NoStation)); err != nil {
			return err
		}
	}
	for _, pair := range b.greet {
		for _, way := range [][2]int{pair, {pair[1], pair[0]}} {
			from, to := b.net.Ends[way[0]], b.net.Ends[way[1]]
			if err := from.Send(ends.Frame(smallest, from, b.net.NextHop(way[0], way[1]), to.Addr.Addr())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run runs one round: the value is in millions of arrived frames per second.
func (b *blast) Run(ctx context.Context, m Meter) (report.Sample, error) {
	if err := b.learn(); err != nil {
		return report.Sample{}, err
	}
	if b.answer != nil {
		if err := b.connect(ctx, b.flows(), b.answer); err != nil {
			return report.Sample{}, err
		}
	}
	// The size of a run comes from the speed of the previous one. If it was too small, the
	// generator restarted within the window, which costs about 15 ms: measure again.
	for try, begin := 1, time.Now(); ; try++ {
		if b.fresh {
			if err := b.net.FlushStates(ctx); err != nil {
				return report.Sample{}, err
			}
		}
		s, gap, err := b.window(ctx, m)
		again := err == nil && gap && try < 4
		if idle := idleError(""); errors.As(err, &idle) {
			again = time.Since(begin) < patience
		}
		if !again {
			return s, err
		}
	}
}

// patience limits the repetition of inconclusive windows: a busy machine may leave the senders no
// time in many short windows in a row.
const patience = 30 * time.Second

// barrage is a set of running generators.
type barrage struct {
	flows   []flow
	gens    []generator
	begun   atomic.Int64 // starts of measured flows
	stopped atomic.Bool
	wg      sync.WaitGroup
	failed  chan error
}

// start starts a generator for each flow. They run until stop.
func (b *blast) start(flows []flow) (*barrage, error) {
	r := &barrage{flows: flows, failed: make(chan error, len(flows))}
	for _, f := range flows {
		g, err := b.maker.generator(b.net, f)
		if err != nil {
			return nil, errors.Join(err, r.stop())
		}
		r.gens = append(r.gens, g)
	}
	for i, f := range flows {
		seconds := 1.5 * (b.length + 200*time.Millisecond).Seconds()
		size := uint32(min(max(b.rate*seconds, 200_000), 1<<31))
		if f.stream.Rate != 0 {
			// This includes runs that send nothing because it is too early, which take
			// more than a microsecond each.
			size = uint32(min((float64(f.stream.Rate)+1e6)*seconds, 1<<31))
		}
		r.wg.Go(func() {
			err := b.net.Ends[f.from].Namespace.Do(func() error {
				if err := ends.PinThread(f.cpu); err != nil {
					return err
				}
				for !r.stopped.Load() {
					if !f.aside {
						r.begun.Add(1)
					}
					if err := r.gens[i].Send(size); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				r.failed <- err
			}
		})
	}
	return r, nil
}

// halt stops the generators and waits until they have ended.
func (r *barrage) halt() error {
	r.stopped.Store(true)
	var errs []error
	for _, g := range r.gens {
		errs = append(errs, g.Stop())
	}
	r.wg.Wait()
	select {
	case err := <-r.failed:
		errs = append(errs, err)
	default:
	}
	return errors.Join(errs...)
}

// stop stops the generators and removes them.
func (r *barrage) stop() error {
	err := r.halt()
	for _, g := range r.gens {
		err = errors.Join(err, g.Close())
	}
	return err
}

// sent returns the number of frames made by the measured flows, or by the disturbing ones.
func (r *barrage) sent(aside bool) (uint64, error) {
	var sum uint64
	for i, g := range r.gens {
		if r.flows[i].aside != aside {
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

// measured returns the number of flows that are not disturbances.
func (r *barrage) measured() int {
	n := 0
	for _, f := range r.flows {
		if !f.aside {
			n++
		}
	}
	return n
}

// reading has the counters at one moment.
type reading struct {
	at            time.Time
	arrived, sent uint64
	bytes         uint64 // arrived bytes
	aside         uint64 // frames from the disturbing flows
}

// Names in Sample.More of the frames from disturbing flows: in the window, and until its end.
const (
	asideRate = "aside_per_second"
	asideSent = "aside_sent"
)

func (b *blast) read(r *barrage) (v reading, err error) {
	v.at = time.Now()
	c, err := b.arrived()
	if err != nil {
		return v, err
	}
	v.arrived, v.bytes = c.Frames, c.Bytes
	if v.sent, err = r.sent(false); err != nil {
		return v, err
	}
	v.aside, err = r.sent(true)
	return v, err
}

// since returns the frames per second that arrived and were made between two readings.
func (v reading) since(from reading) (arrived, made float64) {
	seconds := v.at.Sub(from.at).Seconds()
	return float64(v.arrived-from.arrived) / seconds, float64(v.sent-from.sent) / seconds
}

// intervals is the number of parts of a window.
const intervals = 10

// idleError is a window in which no frame was made, or none has arrived yet. On a busy machine this
// does not indicate a fault of the fabric: the generators or the receivers had no CPU time.
type idleError string

func (e idleError) Error() string { return string(e) }

// window measures once. gap means that a generator had to restart.
//
// The generators run longer than the window, so that their start and end are outside it.
func (b *blast) window(ctx context.Context, m Meter) (s report.Sample, gap bool, err error) {
	r, err := b.start(b.flows())
	if err != nil {
		return s, false, err
	}
	var readings []reading
	measure := func() error {
		if err := b.flowing(ctx, r); err != nil {
			return err
		}
		m.Begin()
		begin := time.Now()
		for i := range intervals + 1 {
			if err := pause(ctx, time.Until(begin.Add(b.length*time.Duration(i)/intervals))); err != nil {
				return err
			}
			v, err := b.read(r)
			if err != nil {
				return err
			}
			readings = append(readings, v)
		}
		m.End()
		return nil
	}
	err = measure()
	times := r.begun.Load()
	if err := errors.Join(err, r.stop()); err != nil {
		return s, false, err
	}
	arrived, made := readings[intervals].since(readings[0])
	if made == 0 {
		return s, false, idleError("no frame was made in the time that was measured")
	}
	if arrived == 0 {
		return s, false, idleError(fmt.Sprintf("fabric %s: none of %.0f frames a second arrived",
			b.net.Fabric.Name, made))
	}
	for i := range intervals {
		part, _ := readings[i+1].since(readings[i])
		s.Intervals = append(s.Intervals, part/1e6)
	}
	b.rate = made / float64(r.measured())
	s.Value = arrived / 1e6
	s.More = map[string]float64{"sent_mpps": made / 1e6}
	first, last := readings[0], readings[intervals]
	s.Frames = float64(last.arrived - first.arrived)
	s.Bytes = float64(last.bytes-first.bytes) - headers*s.Frames
	if last.aside > 0 {
		s.More[asideRate] = float64(last.aside-first.aside) / last.at.Sub(first.at).Seconds()
		s.More[asideSent] = float64(last.aside)
	}
	if want := made * float64(max(b.copies, 1)); want > 0 {
		s.More[report.Lost] = max(0, 100*(1-arrived/want))
	}
	return s, times > int64(r.measured()), nil
}

// flowing waits until every generator has sent frames and the receivers have received some.
func (b *blast) flowing(ctx context.Context, r *barrage) error {
	begin, err := b.arrived()
	if err != nil {
		return err
	}
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := b.arrived()
		if err != nil {
			return err
		}
		all := n.Frames > begin.Frames
		for _, g := range r.gens {
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
		case err := <-r.failed:
			return err
		case <-deadline:
			return fmt.Errorf("fabric %s: no frame arrived within %v", b.net.Fabric.Name, patience)
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

// sides returns the CPUs of a sender and of a receiver. A machine that counts instructions has only
// one CPU for both.
func sides(n *fabrics.Net) (sender, receiver int, err error) {
	if _, err := n.Instructions(); err == nil {
		return 0, 0, nil
	}
	cpus, err := cores(2)
	if err != nil {
		return 0, 0, err
	}
	return cpus[1], cpus[0], nil
}

// ownCores returns the CPU of a router with a separate one, and the CPU of all ends' programs.
func ownCores() (router, programs int, err error) {
	cpus, err := cores(2)
	if err != nil {
		return 0, 0, &ends.Unavailable{Reason: "one core: the router has none of its own"}
	}
	return cpus[0], cpus[1], nil
}

// cores returns the CPUs for generators: the last one first, because the first one handles most of
// the machine's interrupts.
func cores(n int) ([]int, error) {
	have := runtime.NumCPU()
	if have < n {
		return nil, &ends.Unavailable{Reason: fmt.Sprintf("%d CPUs are needed, the machine has %d", n, have)}
	}
	out := make([]int, n)
	for i := range out {
		out[i] = have - 1 - i
	}
	return out, nil
}
