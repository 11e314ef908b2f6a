// SPDX-License-Identifier: BSD-2-Clause

// Package netlab is what the tests of the switch stand on: network namespaces
// joined by veth cables, a program that is the switch, and frames that are sent
// and counted exactly.
//
// Frames are sent and received by packet sockets at the ends of the cables, in
// namespaces of their own. That something did not arrive is known without
// waiting to be sure: see [Lab.Flush].
package netlab

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// patience is how long the lab waits for what is sure to happen.
const patience = 20 * time.Second

// window is how many frames are sent before the lab waits for the switch to be
// done with them: a CPU queues a thousand packets, a veth in NAPI mode 256.
const window = 32

// A Lab is a switch's network namespace and the ends around it. What it made
// is removed when the test ends, and then nothing of the switch may be left.
type Lab struct {
	t      testing.TB
	Switch *ends.Namespace // where the switch and its ports are
	Ends   []*End
	cpu    int // where all frames are sent and queued
	number uint32
	marker uint32
	fd     int // packet socket in Switch
	binary string

	namespaces []*ends.Namespace
	expected   map[string]bool // devices that may stay in Switch
}

var namespaces atomic.Int64 // made by this process

// NewNamespace makes a network namespace that is removed when the test ends,
// after the switch.
func (l *Lab) NewNamespace() *ends.Namespace {
	l.t.Helper()
	ns, err := ends.NewNamespace(fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), namespaces.Add(1)))
	l.must(err)
	l.namespaces = append(l.namespaces, ns)
	return ns
}

// New makes a lab without ends. It skips the test when the process is not root.
func New(t testing.TB) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	l := &Lab{t: t, binary: program, fd: -1, expected: map[string]bool{"lo": true}}
	t.Cleanup(l.close)
	l.Switch = l.NewNamespace()
	l.cpu = int(namespaces.Load()) % runtime.NumCPU()
	l.must(l.Switch.Do(func() (err error) {
		l.fd, err = sendSocket()
		return err
	}))
	return l
}

func (l *Lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// An End is a station: an interface at the far side of a cable, whose near
// side, Port, is in the switch's namespace.
type End struct {
	Port      string // near side
	PortIndex int
	Namespace *ends.Namespace
	Ifname    string
	Ifindex   int
	MAC       MAC

	lab    *Lab
	fd     int
	buf    []byte
	inbox  []Frame
	gone   bool
	before device // the port's device as the switch found it
}

// NewEnds adds ends, each in a namespace of its own: p1, p2, ... are their ports.
func (l *Lab) NewEnds(n int) []*End {
	l.t.Helper()
	var made []*End
	for range n {
		made = append(made, l.NewEnd(l.NewNamespace()))
	}
	return made
}

// NewEnd adds an end whose far side is in the given namespace, which may be
// the switch's own.
func (l *Lab) NewEnd(ns *ends.Namespace) *End {
	l.t.Helper()
	n := len(l.Ends) + 1
	e := &End{
		Port: fmt.Sprintf("p%d", n), Namespace: ns, Ifname: fmt.Sprintf("e%d", n),
		MAC: MAC{0x02, 0xee, 0, 0, byte(n >> 8), byte(n)},
		lab: l, fd: -1, buf: make([]byte, largestFrame),
	}
	l.Ends = append(l.Ends, e)
	e.plug(0)
	return e
}

// plug makes the cable, with the given index for the port, 0 for any.
func (e *End) plug(index int) {
	l := e.lab
	l.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = e.Port, index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: e.Ifname, PeerHardwareAddr: e.MAC[:], PeerMTU: 1500}
	if e.Namespace != l.Switch {
		handle, err := netns.GetFromName(e.Namespace.Name)
		l.must(err)
		defer handle.Close()
		veth.PeerNamespace = netlink.NsFd(int(handle))
	}
	nl := l.Switch.Netlink()
	if err := nl.LinkAdd(veth); err != nil {
		l.t.Fatalf("veth %s: %v", e.Port, err)
	}
	l.expected[e.Port] = true
	if e.Namespace == l.Switch {
		l.expected[e.Ifname] = true
	}
	near, err := nl.LinkByName(e.Port)
	l.must(err)
	far, err := e.Namespace.Netlink().LinkByName(e.Ifname)
	l.must(err)
	l.must(nl.LinkSetUp(near))
	l.must(e.Namespace.Netlink().LinkSetUp(far))
	e.PortIndex, e.Ifindex = near.Attrs().Index, far.Attrs().Index
	l.waitUp(e)
	e.open()
	e.before = l.device(e.Port)
	e.gone = false
}

func (l *Lab) waitUp(e *End) {
	l.t.Helper()
	l.Wait("the cable of "+e.Port+" to be up", func() bool {
		near, err := l.Switch.Netlink().LinkByName(e.Port)
		return err == nil && near.Attrs().OperState == netlink.OperUp
	})
}

func (e *End) open() {
	l := e.lab
	l.t.Helper()
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
	l.must(e.Namespace.Do(func() (err error) {
		e.fd, err = packetSocket(e.Ifindex)
		return err
	}))
}

// Unplug deletes the cable.
func (e *End) Unplug() {
	e.lab.t.Helper()
	near, err := e.lab.Switch.Netlink().LinkByIndex(e.PortIndex)
	e.lab.must(err)
	e.lab.must(e.lab.Switch.Netlink().LinkDel(near))
	e.gone = true
}

// PlugAgain makes a new cable of the same names, whose port has the given
// interface index.
func (e *End) PlugAgain(index int) {
	e.lab.t.Helper()
	e.plug(index)
}

// SetOffloads switches segmentation offload (TSO, GSO) and receive offload
// (GRO) of the end. With GRO on the end takes frames that were sent by XDP.
func (e *End) SetOffloads(segmentation, gro bool) {
	e.lab.t.Helper()
	e.lab.must(e.Namespace.SetFeatures(e.Ifname, ends.Features{Segmentation: segmentation, GRO: gro}))
}

// SetMTU sets the MTU of both sides of the cable.
func (e *End) SetMTU(mtu int) {
	e.lab.t.Helper()
	near, err := e.lab.Switch.Netlink().LinkByName(e.Port)
	e.lab.must(err)
	far, err := e.Namespace.Netlink().LinkByName(e.Ifname)
	e.lab.must(err)
	e.lab.must(e.lab.Switch.Netlink().LinkSetMTU(near, mtu))
	e.lab.must(e.Namespace.Netlink().LinkSetMTU(far, mtu))
}

// Frames makes n frames of the smallest size, each with a number that no other
// frame of the lab has.
func (l *Lab) Frames(n int, dst, src MAC) []Frame {
	frames := make([]Frame, n)
	for i := range frames {
		l.number++
		frames[i] = NewFrame(dst, src, l.number, minLen)
	}
	return frames
}

// Frame makes one frame of the given size in bytes.
func (l *Lab) Frame(dst, src MAC, size int) Frame {
	l.number++
	return NewFrame(dst, src, l.number, size)
}

// send puts frames on the wire, one by one.
func (e *End) send(frames ...Frame) error {
	return onCPU(e.lab.cpu, func() error {
		for _, f := range frames {
			err := unix.Sendto(e.fd, []byte(f), 0, &unix.SockaddrLinklayer{Ifindex: e.Ifindex})
			if err != nil {
				return fmt.Errorf("send %v from %s: %w", f, e.Ifname, err)
			}
		}
		return nil
	})
}

// drain takes what has arrived.
func (e *End) drain() error {
	for {
		f, ok, err := receive(e.fd, e.buf)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Ifname, err)
		}
		if !ok {
			return nil
		}
		e.inbox = append(e.inbox, f)
	}
}

// Received takes the frames that have arrived so far.
func (e *End) Received() []Frame {
	e.lab.t.Helper()
	e.lab.must(e.drain())
	e.checkOverflow()
	got := e.inbox
	e.inbox = nil
	return got
}

func (e *End) checkOverflow() {
	e.lab.t.Helper()
	lost, err := overflowed(e.fd)
	e.lab.must(err)
	if lost > 0 {
		e.lab.t.Fatalf("%s: the test's own socket overflowed by %d frames", e.Ifname, lost)
	}
}

// awaitMarker takes what arrives until the marker has.
func (e *End) awaitMarker(marker uint32, deadline time.Time) error {
	for {
		f, ok, err := receive(e.fd, e.buf)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", e.Ifname, err)
		case !ok:
			if err := await(e.fd, deadline); err != nil {
				return fmt.Errorf("%s: the marker did not arrive: %w", e.Ifname, err)
			}
		case len(f) >= minLen && f.ethertype() == typeMarker:
			if f.uint32(headerLen) == marker {
				return nil
			}
		default:
			e.inbox = append(e.inbox, f)
		}
	}
}

// Flush returns when every frame that was sent has arrived where it was going.
//
// Markers go straight from each port's device to the cable's end, not through
// the switch: nothing that the switch is told can stop them, and it learns
// nothing from them. All frames and markers are sent on one CPU, whose queues
// keep their order. So when a round of markers has arrived, every frame that
// was queued before has gone one step further: end to port, port to end, and
// with the steps that devices such as host ports add no more than four.
func (l *Lab) Flush() {
	l.t.Helper()
	for range 4 {
		l.mark()
	}
}

// mark makes one round of markers.
func (l *Lab) mark() {
	l.t.Helper()
	l.marker++
	deadline := time.Now().Add(patience)
	l.must(onCPU(l.cpu, func() error {
		for _, e := range l.Ends {
			if e.gone {
				continue
			}
			f := newFrame(Broadcast, MAC{0x02, 0xbb, 0, 0, 0, 1}, typeMarker, l.marker, minLen)
			err := unix.Sendto(l.fd, []byte(f), 0, &unix.SockaddrLinklayer{Ifindex: e.PortIndex})
			if err != nil {
				return fmt.Errorf("send a marker to %s: %w", e.Port, err)
			}
		}
		return nil
	}))
	for _, e := range l.Ends {
		if !e.gone {
			l.must(e.awaitMarker(l.marker, deadline))
		}
	}
}

// Delivery is what arrived at each end.
type Delivery map[*End][]Frame

// Deliver sends frames from an end and returns what arrived, and where. What
// arrived before is thrown away.
func (l *Lab) Deliver(from *End, frames ...Frame) Delivery {
	l.t.Helper()
	l.discard()
	l.Send(from, frames...)
	got := Delivery{}
	for _, e := range l.Ends {
		if !e.gone {
			got[e] = e.Received()
		}
	}
	return got
}

// Send sends frames from an end and returns when the switch is done with them.
func (l *Lab) Send(from *End, frames ...Frame) {
	l.t.Helper()
	step := max(1, min(window, 800/len(l.Ends)))
	for len(frames) > 0 {
		n := min(step, len(frames))
		l.must(from.send(frames[:n]...))
		frames = frames[n:]
		if len(frames) > 0 {
			// as many rounds as there are steps between two ends
			l.mark()
			l.mark()
		}
	}
	l.Flush()
}

func (l *Lab) discard() {
	l.t.Helper()
	for _, e := range l.Ends {
		if !e.gone {
			l.must(e.drain())
			e.inbox = nil
		}
	}
}

// Reach sends frames from an end; each must arrive once and unchanged at
// every one of the ends in to, and nothing else anywhere.
func (l *Lab) Reach(from *End, frames []Frame, to ...*End) {
	l.t.Helper()
	if err := l.reach(from, frames, to); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Lab) reach(from *End, frames []Frame, to []*End) error {
	l.t.Helper()
	got := l.Deliver(from, frames...)
	var errs []error
	for _, e := range l.Ends {
		var want []Frame
		for _, w := range to {
			if w == e {
				want = frames
			}
		}
		if err := compare(got[e], want); err != nil {
			errs = append(errs, fmt.Errorf("from %s to %s: %w", from.Port, e.Port, err))
		}
	}
	return errors.Join(errs...)
}

// compare says how the frames that arrived differ from those that should have.
func compare(got, want []Frame) error {
	count := map[Frame]int{}
	for _, f := range want {
		count[f]--
	}
	for _, f := range got {
		count[f]++
	}
	var missing, extra int
	var firstMissing, firstExtra Frame
	for _, f := range want {
		if count[f] < 0 {
			if missing++; missing == 1 {
				firstMissing = f
			}
		}
	}
	for _, f := range got {
		if count[f] > 0 {
			if extra++; extra == 1 {
				firstExtra = f
			}
		}
	}
	switch {
	case missing > 0 && extra > 0:
		return fmt.Errorf("%d of %d frames missing, first %v; %d not expected, first %v", missing, len(want), firstMissing, extra, firstExtra)
	case missing > 0:
		return fmt.Errorf("%d of %d frames missing, first %v", missing, len(want), firstMissing)
	case extra > 0:
		return fmt.Errorf("%d frames not expected (%d were), first %v", extra, len(want), firstExtra)
	}
	return nil
}

// Wait polls a condition until it holds.
func (l *Lab) Wait(what string, holds func() bool) {
	l.t.Helper()
	l.WaitUntil(time.Now().Add(patience), what, holds)
}

// WaitUntil polls a condition, which must hold before the deadline.
func (l *Lab) WaitUntil(deadline time.Time, what string, holds func() bool) {
	l.t.Helper()
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(pause)
	}
}
