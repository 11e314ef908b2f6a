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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// patience is how long the lab waits for what is sure to happen: no claim of
// bascule's, but a bound for a test that hangs, also on a machine that stands still
// for half a minute.
const patience = 3 * time.Minute

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
	last   func(Frame) Frame // of Across, nil for none of its own
	fd     int               // packet socket in Switch
	binary string
	env    []string // of the program, besides the test's own

	namespaces []*ends.Namespace
	sockets    []*Socket
	expected   map[string]bool // devices that may stay in Switch
	cables     []string        // devices of Switch that lead to another lab, or back to this one
	abandoned  []Objects       // what may stay in the kernel
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

	*Socket // at the far side
	lab     *Lab
	gone    bool   // the port's device is not where it was
	before  device // the port's device as the switch found it
	made    *made  // the same as the lab found it, if it is a card
	wire    *Wire  // nil of a veth
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
		lab: l,
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
	e.Socket = l.Listen(e.Namespace, e.Ifname)
	e.before = l.device(e.Port)
	// as it was made: who waits for devices may have made it a port by now
	e.before.promiscuous, e.before.allmulti = 0, 0
	e.gone = false
}

func (l *Lab) waitUp(e *End) {
	l.t.Helper()
	l.Wait("the cable of "+e.Port+" to be up", func() bool {
		near, err := l.Switch.Netlink().LinkByName(e.Port)
		return err == nil && near.Attrs().OperState == netlink.OperUp
	})
}

// Beside makes a lab for another switch of the same test. Its frames are sent
// and queued on the same CPU, so that a Flush of either is one of both.
func (l *Lab) Beside() *Lab {
	l.t.Helper()
	other := New(l.t)
	other.cpu = l.cpu
	return other
}

// Cable joins two switches, or one with itself, by a veth: device near of the
// first, far of the second. Their indices differ: where they are the same the
// kernel tells of a lost link when it has time, up to a second later
// (linkwatch_urgent_event of net/core/link_watch.c).
func (l *Lab) Cable(near string, to *Lab, far string) {
	l.t.Helper()
	handle, err := netns.GetFromName(to.Switch.Name)
	l.must(err)
	defer handle.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = near, 1000+len(l.expected)
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: far, PeerNamespace: netlink.NsFd(int(handle))}
	if err := l.Switch.Netlink().LinkAdd(veth); err != nil {
		l.t.Fatalf("veth %s: %v", near, err)
	}
	l.Keep(near)
	to.Keep(far)
	l.cables, to.cables = append(l.cables, near), append(to.cables, far)
	to.Plug(far)
	l.Plug(near)
	for lab, name := range map[*Lab]string{l: near, to: far} {
		lab.Wait(name+" to be up", func() bool {
			link, err := lab.Switch.Netlink().LinkByName(name)
			return err == nil && link.Attrs().OperState == netlink.OperUp
		})
	}
}

// Pull sets a device of the switch's namespace down: the cable's other side
// loses its link, too.
func (l *Lab) Pull(ifname string) { l.setDevice(ifname, (*netlink.Handle).LinkSetDown) }

// Plug sets a device of the switch's namespace up.
func (l *Lab) Plug(ifname string) { l.setDevice(ifname, (*netlink.Handle).LinkSetUp) }

func (l *Lab) setDevice(ifname string, set func(*netlink.Handle, netlink.Link) error) {
	l.t.Helper()
	link, err := l.Switch.Netlink().LinkByName(ifname)
	l.must(err)
	l.must(set(l.Switch.Netlink(), link))
}

// SetUp sets one side of a veth of the switch's namespace up, whose other side
// is there and up, and waits until both forward: the kernel drops what they
// send until it has dealt with their carriers, which may take it a while.
func (l *Lab) SetUp(side netlink.Link) {
	l.t.Helper()
	nl := l.Switch.Netlink()
	l.must(nl.LinkSetUp(side))
	for _, index := range []int{side.Attrs().Index, side.Attrs().ParentIndex} {
		l.Wait(fmt.Sprintf("device %d to be up", index), func() bool {
			link, err := nl.LinkByIndex(index)
			return err == nil && link.Attrs().OperState == netlink.OperUp
		})
	}
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

// Leave tells the lab that the port's device has been moved away: no markers
// can be sent through it.
func (e *End) Leave() { e.gone = true }

// Return undoes Leave.
func (e *End) Return() { e.gone = false }

// ReadyForXDP makes the end one that can talk through XDP: it takes frames that
// were sent by XDP (GRO on), and sends none whose checksum or VLAN tag is left
// to the device, since XDP forgets what is missing.
func (e *End) ReadyForXDP() {
	e.lab.t.Helper()
	e.SetOffloads(true, true)
	e.lab.must(e.Namespace.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(e.Ifname, map[string]bool{
			"tx-checksum-ip-generic": false, "tx-checksum-sctp": false,
			"tx-vlan-hw-insert": false, "tx-vlan-stag-hw-insert": false,
		})
	}))
}

// SetOffloads switches segmentation offload (TSO, GSO) and receive offload
// (GRO) of the end.
func (e *End) SetOffloads(segmentation, gro bool) {
	e.lab.t.Helper()
	e.lab.must(e.Namespace.SetFeatures(e.Ifname, ends.Features{Segmentation: segmentation, GRO: gro}))
}

// FinishChecksums has the port's device make the checksums that are yet to be made
// of the frames that leave by it. So it stays.
func (e *End) FinishChecksums() {
	e.lab.t.Helper()
	e.lab.must(e.lab.Switch.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(e.Port, map[string]bool{"tx-checksum-ip-generic": false, "tx-checksum-sctp": false})
	}))
	for feature, on := range e.lab.features(e.lab.Switch, e.Port) {
		if strings.HasPrefix(feature, "tx-") { // others are off without checksums
			e.before.features[feature] = on
		}
	}
}

// Capture makes the port's device promiscuous as tcpdump(8) does, until the
// function that it returns is called.
func (e *End) Capture() (stop func()) {
	e.lab.t.Helper()
	var fd int
	e.lab.must(e.lab.Switch.Do(func() (err error) {
		if fd, err = sendSocket(); err != nil {
			return err
		}
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(e.PortIndex), Type: unix.PACKET_MR_PROMISC})
	}))
	return func() {
		e.lab.t.Helper()
		with := e.lab.device(e.Port).promiscuous
		unix.Close(fd)
		// A program that another test starts at this moment has the socket, too, until it runs.
		e.lab.Wait("the capture to end", func() bool { return e.lab.device(e.Port).promiscuous < with })
	}
}

// SetMTU sets the MTU of both sides of the cable until the test ends.
func (e *End) SetMTU(mtu int) {
	e.lab.t.Helper()
	near, err := e.lab.Switch.Netlink().LinkByName(e.Port)
	e.lab.must(err)
	far, err := e.Namespace.Netlink().LinkByName(e.Ifname)
	e.lab.must(err)
	e.lab.must(e.lab.Switch.Netlink().LinkSetMTU(near, mtu))
	e.lab.must(e.Namespace.Netlink().LinkSetMTU(far, mtu))
	e.lab.t.Cleanup(func() {
		// A card is there for the next test. What has gone meanwhile has no MTU.
		_ = e.lab.Switch.Netlink().LinkSetMTU(near, near.Attrs().MTU)
		_ = e.Namespace.Netlink().LinkSetMTU(far, far.Attrs().MTU)
	})
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
			err := sendFrame(l.fd, f, e.PortIndex)
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

// A Sender is what frames can be sent from.
type Sender interface {
	fmt.Stringer
	send(frames ...Frame) error
}

func (e *End) String() string { return e.Port }

// Delivery is what arrived at each end.
type Delivery map[*End][]Frame

// Deliver sends frames from an end and returns what arrived, and where. What
// arrived before is thrown away.
func (l *Lab) Deliver(from Sender, frames ...Frame) Delivery {
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
func (l *Lab) Send(from Sender, frames ...Frame) {
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
			l.must(e.discard())
		}
	}
}

// Reach sends frames from a sender; each must arrive once and unchanged at
// every one of the ends in to, and nothing else anywhere.
func (l *Lab) Reach(from Sender, frames []Frame, to ...*End) {
	l.t.Helper()
	if err := l.reach(from, frames, to); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Lab) reach(from Sender, frames []Frame, to []*End) error {
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
			errs = append(errs, fmt.Errorf("from %v to %s: %w", from, e.Port, err))
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

// Enter moves the calling thread into the switch's namespace for good. The
// thread must be locked and never unlocked.
func (l *Lab) Enter() error {
	handle, err := netns.GetFromName(l.Switch.Name)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", l.Switch.Name, err)
	}
	defer handle.Close()
	return netns.Set(handle)
}

// For has the lab be of another test until that ends: several tests in a row use one lab, which
// the first of them, their parent, closes.
func (l *Lab) For(t testing.TB) {
	was := l.t
	use := func(t testing.TB) {
		l.t = t
		for _, s := range l.sockets {
			s.t = t
		}
	}
	use(t)
	t.Cleanup(func() { use(was) })
}

// OnCPU runs fn on the CPU where the lab sends its frames: what fn sends is gone its way when
// Flush returns, as frames of the lab are.
func (l *Lab) OnCPU(fn func() error) error { return onCPU(l.cpu, fn) }
