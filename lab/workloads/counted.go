// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// Workloads whose figure is in instructions. A round is a number of frames, not a duration, and the
// machine has no other load. All frames have to arrive.
var (
	oneByOne = &Kind{
		Name:  "one-by-one",
		About: "instructions of a frame from a packet socket to the receiver's counter, where instructions are counted",
		open: func(p *pflag.FlagSet) func() (*Workload, error) {
			w := countedParams{frameParams: frameParams{generator: "auto"}}
			p.IntVar(&w.frames, "frames", 20_000, "of a round")
			w.declareSize(p)
			p.IntVar(&w.gso, "gso", 0, "bytes of TCP payload of a frame that is handed over in one piece, to be cut into segments of 1448 later; 0 for frames as size says")
			p.BoolVar(&w.fresh, "fresh", false, "each frame begins a connection, of UDP, that a packet filter has not seen")
			p.BoolVar(&w.behind, "behind", false, "they go to a station behind the receiver, as behind a bridge there, not to the receiver's own address")
			p.IntVar(&w.addresses, "addresses", 0, "random destinations of the frames, one after the other; 0 for the receiver's own")
			return w.finish("one by one")
		},
	}
	inBatches = &Kind{
		Name:  "in-batches",
		About: "instructions of a frame that the kernel makes, many at once, to the receiver's counter, where instructions are counted",
		open: func(p *pflag.FlagSet) func() (*Workload, error) {
			w := countedParams{frameParams: frameParams{generator: "bpf"}}
			p.IntVar(&w.frames, "frames", 100_000, "of a round")
			w.declareSize(p)
			p.BoolVar(&w.fresh, "fresh", false, "each frame begins a connection, of UDP, that a packet filter has not seen")
			return w.finish("in batches")
		},
	}
	copies = &Kind{
		Name:  "copies",
		About: "instructions of a copy of a broadcast from a packet socket, to the receivers' counters, where instructions are counted",
		open: func(p *pflag.FlagSet) func() (*Workload, error) {
			w := countedParams{frameParams: frameParams{generator: "auto"}}
			p.IntVar(&w.frames, "frames", 500, "of a round")
			p.IntVar(&w.ports, "ports", 64, "that each goes to")
			w.declareSize(p)
			return w.finish("broadcast one by one")
		},
	}
)

type countedParams struct {
	frameParams
	frames    int
	gso       int
	fresh     bool
	behind    bool
	addresses int
	ports     int // 0 for one receiver
}

// mostFrames limits the frames of a round.
const mostFrames = 10_000_000

func (w *countedParams) finish(how string) func() (*Workload, error) {
	return func() (*Workload, error) {
		w.length = time.Second // rounds have no duration
		if err := w.check(); err != nil {
			return nil, err
		}
		switch {
		case w.frames < parts || w.frames > mostFrames:
			return nil, fmt.Errorf("frames must be %d to %d", parts, mostFrames)
		case w.size == "imix":
			return nil, errors.New("size must be 64 to 1518")
		case w.gso != 0 && (w.gso < 1449 || w.gso > 65000):
			return nil, errors.New("gso must be 1449 to 65000, or 0")
		case w.addresses < 0 || w.addresses > mostAddresses:
			return nil, fmt.Errorf("addresses must be 0 to %d", mostAddresses)
		case w.ports < 0 || w.ports > 512:
			return nil, errors.New("ports must be 1 to 512")
		case w.gso != 0 && w.fresh, w.addresses != 0 && (w.gso != 0 || w.fresh || w.behind):
			return nil, errors.New("gso and fresh are one or the other, and addresses is alone")
		}
		about := w.what() + ", " + how
		spec := fabrics.Spec{Ends: 2, Frames: true}
		switch {
		case w.gso != 0:
			about = fmt.Sprintf("frames of %d bytes of TCP payload in one piece (GSO), %s", w.gso, how)
		case w.fresh:
			about += ", each of a flow of its own"
			spec.States = 4*w.frames + 1000
		case w.addresses != 0:
			about += fmt.Sprintf(", to %d random addresses", w.addresses)
			spec.Ageing, spec.FDBMax = long, w.addresses+1000
		case w.ports != 0:
			about += fmt.Sprintf(" to %d ports", w.ports)
			spec.Ends, spec.Together = w.ports+1, true
		}
		if w.behind {
			about += ", to a station behind the receiver"
		}
		return &Workload{
			About: about + "; instructions from sender to receiver",
			Unit:  "instr/frame",
			Lower: true,
			Takes: time.Second,
			Spec:  spec,
			Exact: true,
			Start: w.start,
		}, nil
	}
}

// countedSession is a workload in counted instructions.
type countedSession struct {
	*blast
	want   countedParams
	now    func() uint64
	socket int // socket for sending; -1 for none
	frame  []byte
	each   func(i int) // prepares frame number i
	flow   flow        // for frames in batches
	random uint64
	deaf   *probe.Counter // at the sender, whose stack would answer received frames
}

func (w countedParams) start(ctx context.Context, n *fabrics.Net) (_ Session, err error) {
	s := &countedSession{want: w, socket: -1, random: 1}
	if s.now, err = n.Instructions(); err != nil {
		return nil, err
	}
	if w.ports > 0 && (n.Fabric.Pairs || n.Fabric.Routed) {
		return nil, &ends.Unavailable{Reason: "it floods nothing"}
	}
	if w.behind && n.Fabric.Routed {
		return nil, &ends.Unavailable{Reason: "it forwards by IP address"}
	}
	s.blast = &blast{frameParams: w.frameParams, net: n}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// ready attaches the counters and opens the senders.
func (s *countedSession) ready(ctx context.Context) error {
	n := s.net
	receivers := []int{1}
	for i := 2; i <= s.want.ports; i++ {
		receivers = append(receivers, i)
	}
	// The sender's answers, and its neighbor solicitations for them, would be additional
	// frames.
	err := n.Ends[0].Namespace.Do(func() (err error) {
		s.deaf, err = probe.CountTCX(n.Ends[0].Ifindex)
		return err
	})
	if err != nil {
		return err
	}
	s.teach = []int{0, 1}
	if !s.want.fresh && s.want.ports == 0 {
		s.greet = [][2]int{{0, 1}}
	}
	if s.generator == "bpf" {
		for i := range n.Ports {
			if err := n.AcceptFrames(i); err != nil {
				return err
			}
		}
		s.maker = bpfFrames
		s.flow = s.send(n, 0, 1, 0)
		if s.want.fresh {
			s.flow.stream.Ports = flows
		}
		return s.count(n.Fabric.Arrival, receivers)
	}
	if err := s.count(fabrics.AsBuffers, receivers); err != nil {
		return err
	}
	if err := s.make(); err != nil {
		return err
	}
	if s.want.addresses > 0 && !n.Fabric.Pairs {
		if err := learns(n); err != nil {
			return err
		}
		m, err := s.frameParams.maker(ctx, n, 1)
		if err != nil {
			return err
		}
		if err := s.fill(ctx, n, m, 1, s.want.addresses); err != nil {
			return err
		}
		// The ports were prepared for frames made by the kernel.
		for _, p := range n.Ports {
			if err := p.Namespace.SetFeatures(p.Ifname, ends.Features{Segmentation: true}); err != nil {
				return err
			}
		}
	}
	return n.Ends[0].Namespace.Do(func() (err error) {
		// With protocol 0 it receives nothing.
		if s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if s.want.gso > 0 {
			if err := unix.SetsockoptInt(s.socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
				return err
			}
		}
		return unix.Bind(s.socket, &unix.SockaddrLinklayer{Ifindex: n.Ends[0].Ifindex})
	})
}

// make makes the first frame, and the function that changes it into the next one.
func (s *countedSession) make() error {
	n := s.net
	to, addr := n.NextHop(0, 1), n.Ends[1].Addr.Addr()
	switch {
	case s.want.ports > 0:
		to, addr = ends.Broadcast, ends.NoStation
	case s.want.behind:
		to = numbered(0)
	}
	s.each = func(int) {}
	var size int
	if _, err := fmt.Sscan(s.size, &size); err != nil {
		return err // it was checked before
	}
	if s.want.gso > 0 {
		s.frame = ends.LargeFrame(s.want.gso, n.Ends[0], to, addr)
		return nil
	}
	s.frame = ends.Frame(size, n.Ends[0], to, addr)
	const portsAt, firstPort, ports = 14 + 20, 1024, 50_000
	switch {
	case s.want.fresh:
		s.each = func(i int) {
			binary.BigEndian.PutUint16(s.frame[portsAt:], uint16(firstPort+i%ports))
			binary.BigEndian.PutUint16(s.frame[portsAt+2:], uint16(firstPort+i/ports))
		}
	case s.want.addresses > 0:
		copy(s.frame, numbered(0))
		s.each = func(int) {
			// Knuth's generator: the same addresses in each run.
			s.random = s.random*6364136223846793005 + 1442695040888963407
			binary.BigEndian.PutUint32(s.frame[2:], uint32(s.random>>32*uint64(s.want.addresses)>>32))
		}
	}
	return nil
}

// Counter implements Counting.
func (s *countedSession) Counter() string {
	if s.generator == "bpf" {
		return s.blast.Counter()
	}
	return "sent by a packet socket, counted by tcx at the receiver"
}

// Run runs one round.
func (s *countedSession) Run(ctx context.Context, _ Meter) (report.Sample, error) {
	n := s.net
	if s.want.fresh {
		if err := n.FlushStates(ctx); err != nil {
			return report.Sample{}, err
		}
	}
	if err := s.learn(); err != nil {
		return report.Sample{}, err
	}
	if s.want.behind {
		e := n.Ends[1]
		e.MAC = numbered(0)
		if err := e.Send(ends.Frame(smallest, e, ends.Broadcast, ends.NoStation)); err != nil {
			return report.Sample{}, err
		}
	}
	send := s.one
	if s.generator == "bpf" {
		g, err := s.maker.generator(n, s.flow)
		if err != nil {
			return report.Sample{}, err
		}
		defer g.Close()
		send = func(from, to int) error { return g.Send(uint32(to - from)) }
	}
	if err := s.settled(ctx); err != nil {
		return report.Sample{}, err
	}
	// No garbage collection during the measurement.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var costs []float64 // per frame, for each part
	var arrived uint64
	err := n.Ends[0].Namespace.Do(func() error {
		for i := range parts {
			from, to := i*s.want.frames/parts, (i+1)*s.want.frames/parts
			cost, came, err := s.part(send, from, to)
			if err != nil {
				return err
			}
			arrived += came
			costs = append(costs, cost)
		}
		return nil
	})
	if err != nil {
		return report.Sample{}, err
	}
	want := float64(s.want.frames * max(s.want.ports, 1))
	return report.Sample{
		Value:     report.SpreadOf(costs).Median,
		Intervals: costs,
		More:      map[string]float64{report.Lost: 100 * (1 - float64(arrived)/want)},
	}, nil
}

// parts is the number of parts in a round. The figure is the median over the parts: occasional
// other work of the machine, such as a fabric's daemon that maintains its tables, affects only few
// of them.
const parts = 5

// part sends frames and waits for them. It returns the cost per frame, and the number of arrived
// frames.
func (s *countedSession) part(send func(from, to int) error, from, to int) (cost float64, came uint64, err error) {
	name, want := s.net.Fabric.Name, uint64((to-from)*max(s.want.ports, 1))
	count, err := s.arrived()
	if err != nil {
		return 0, 0, err
	}
	defer s.net.Part(want)()
	before, begin := count.Frames, s.now()
	if err := send(from, to); err != nil {
		return 0, 0, err
	}
	spent := s.now() - begin // until the last frame arrived
	for first := true; ; first = false {
		if count, err = s.arrived(); err != nil {
			return 0, 0, err
		}
		at := s.now() - begin
		if now := count.Frames - before; now > came {
			came = now
			if !first {
				spent = at
			}
		}
		if came >= want || at-spent > lateAfter {
			break
		}
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	switch lost := 100 * (1 - float64(came)/float64(want)); {
	case came > want:
		return 0, 0, fmt.Errorf("fabric %s: %d frames arrived, and %d were sent", name, came, want)
	case lost > s.mayLose():
		return 0, 0, fmt.Errorf("fabric %s: %d of %d frames arrived", name, came, want)
	}
	return float64(spent) / float64(came), came, nil
}

// lateAfter is the number of instructions after which a frame counts as lost: a second of such a
// machine's time. A frame takes about ten thousand.
const lateAfter = 1_000_000_000

// mayLose returns the tolerated loss in percent: none for frames that are sent one by one. If the
// kernel has deferred the ring's consumer to a thread, it continues to make frames, and a few find
// the ring full.
func (s *countedSession) mayLose() float64 {
	if s.generator == "bpf" {
		return 0.1
	}
	return 0
}

// settled waits until no frame arrives for a moment, so that the frames that the switch learned
// from are not counted.
func (s *countedSession) settled(ctx context.Context) error {
	count, err := s.arrived()
	for quiet := 0; err == nil && quiet < 3; {
		if err = pause(ctx, 20*time.Millisecond); err != nil {
			break
		}
		before := count.Frames
		if count, err = s.arrived(); count.Frames == before {
			quiet++
		} else {
			quiet = 0
		}
	}
	return err
}

// one sends the frames one by one. It bypasses Go's scheduler for the system calls, which do not
// block.
func (s *countedSession) one(from, to int) error {
	for i := from; i < to; i++ {
		s.each(i)
		_, _, no := unix.RawSyscall(unix.SYS_WRITE, uintptr(s.socket), uintptr(unsafe.Pointer(&s.frame[0])), uintptr(len(s.frame)))
		if no != 0 {
			return fmt.Errorf("frame %d of %d: %w", i+1, s.want.frames, no)
		}
	}
	return nil
}

// Close implements Session.
func (s *countedSession) Close() error {
	err := s.blast.Close()
	if s.deaf != nil {
		err = errors.Join(err, s.deaf.Close())
		s.deaf = nil
	}
	if s.socket >= 0 {
		err = errors.Join(err, unix.Close(s.socket))
		s.socket = -1
	}
	return err
}
