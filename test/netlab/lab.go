// SPDX-License-Identifier: BSD-2-Clause

// Package netlab is the basis of the switch's tests: network namespaces joined by veth cables, a
// program that is the switch, and frames that are sent and counted exactly.
//
// Frames are sent and received by packet sockets at the ends of the cables, in namespaces of their own.
// No timeout is needed to know that a frame did not arrive: see [Lab.Flush].
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

// patience is the time limit for events that have to happen. It is not a property of bascule. It ends a
// test that hangs, and is long enough for a machine that stalls for half a minute.
const patience = 3 * time.Minute

// window is the number of frames that are sent before the lab waits for the switch to finish them. A
// CPU queues a thousand packets, a veth in NAPI mode 256.
const window = 32

// A Lab is a switch's network namespace and the ends around it. When the test ends, everything that it
// made is removed. Nothing of the switch may be left then.
type Lab struct {
	t      testing.TB
	Switch *ends.Namespace // the namespace of the switch and its ports
	Ends   []*End
	cpu    int // the CPU where all frames are sent and queued
	number uint32
	marker uint32
	last   func(Frame) Frame // changes the last frame of Across; nil for no change
	fd     int               // packet socket in Switch
	binary string
	env    []string // environment of the program, in addition to the test's own

	namespaces []*ends.Namespace
	sockets    []*Socket
	expected   map[string]bool // devices that may stay in Switch
	cables     []string        // devices of Switch with the other side in another lab, or in this one
	abandoned  []Objects       // objects that may stay in the kernel
}

var namespaces atomic.Int64 // number of namespaces that this process has made

// NewNamespace makes a network namespace that is removed after the switch when the test ends.
func (l *Lab) NewNamespace() *ends.Namespace {
	l.t.Helper()
	ns, err := ends.NewNamespace(fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), namespaces.Add(1)))
	l.must(err)
	l.namespaces = append(l.namespaces, ns)
	return ns
}

// New makes a lab without ends. It skips the test if the process is not root.
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

// An End is a station: an interface at the far side of a cable. The near side of the cable, Port, is in
// the switch's namespace.
type End struct {
	Port      string // near side
	PortIndex int
	Namespace *ends.Namespace
	Ifname    string
	Ifindex   int
	MAC       MAC

	*Socket // at the far side
	lab     *Lab
	gone    bool   // the port's device has been moved
	before  device // the port's device before it became a port
	made    *made  // the card's settings before the lab took it; nil if it is not a card
	wire    *Wire  // nil for a veth
}

// NewEnds adds ends, each in a namespace of its own. Their ports are p1, p2, ...
func (l *Lab) NewEnds(n int) []*End {
	l.t.Helper()
	var made []*End
	for range n {
		made = append(made, l.NewEnd(l.NewNamespace()))
	}
	return made
}

// NewEnd adds an end whose far side is in the given namespace, which may be the switch's.
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

// plug makes the cable. The port gets the given index, or any if it is 0.
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
	// As it was made: an agent that waits for devices may have made it a port by now.
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

// Beside makes a lab for another switch of the same test. Its frames are sent and queued on the same
// CPU, so that a Flush of either lab is a Flush of both.
func (l *Lab) Beside() *Lab {
	l.t.Helper()
	other := New(l.t)
	other.cpu = l.cpu
	return other
}

// Cable joins two switches, or one with itself, by a veth: device near of the first, far of the second.
// Their indices differ. If they were equal, the kernel would report a lost link with a delay of up to a
// second (linkwatch_urgent_event of net/core/link_watch.c).
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

// SetUp sets one side of a veth up, whose other side exists and is up, and waits until both forward.
// The kernel drops their frames until it has processed the change of their carriers, which may take a
// while.
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

// PlugAgain makes a new cable with the same names. Its port has the given interface index.
func (e *End) PlugAgain(index int) {
	e.lab.t.Helper()
	e.plug(index)
}

// Leave marks the port's device as moved away: no markers can be sent through it.
func (e *End) Leave() { e.gone = true }

// Return undoes Leave.
func (e *End) Return() { e.gone = false }

// ReadyForXDP prepares the end for a port with XDP. It accepts frames that were sent by XDP (GRO on).
// It leaves no checksum or VLAN tag of its frames to the device, since XDP loses that information.
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

// FinishChecksums has the port's device complete the unfinished checksums of frames that leave through
// it. This cannot be undone.
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
		if strings.HasPrefix(feature, "tx-") { // other features depend on checksums
			e.before.features[feature] = on
		}
	}
}

// Capture makes the port's device promiscuous as tcpdump(8) does. stop ends that.
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
		// A process that another test starts at this moment has the socket, too, until it calls
		// execve(2).
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
		// Another test may use a card next. A device that has gone has no MTU.
		_ = e.lab.Switch.Netlink().LinkSetMTU(near, near.Attrs().MTU)
		_ = e.Namespace.Netlink().LinkSetMTU(far, far.Attrs().MTU)
	})
}

// Frames makes n frames of the smallest size, each with a number that is unique in the lab.
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

// Flush returns when every frame that was sent has arrived at its destination.
//
// Markers are sent from each port's device directly to the cable's end, not through the switch. No
// setting of the switch can stop them, and it learns nothing from them. All frames and markers are sent
// on one CPU, whose queues keep their order. So when a round of markers has arrived, every frame that
// was queued before has advanced by one step: end to port, port to end. There are at most four steps,
// with those that devices such as host ports add.
func (l *Lab) Flush() {
	l.t.Helper()
	for range 4 {
		l.mark()
	}
}

// mark sends a round of markers and waits for them.
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

// A Sender sends frames.
type Sender interface {
	fmt.Stringer
	send(frames ...Frame) error
}

func (e *End) String() string { return e.Port }

// Delivery has the frames that arrived at each end.
type Delivery map[*End][]Frame

// Deliver sends frames from an end and returns what arrived at each end. Frames that arrived earlier
// are discarded.
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

// Send sends frames from an end and returns when the switch has finished them.
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

// Reach sends frames from a sender. Each has to arrive once and unchanged at every end in to. No other
// frame may arrive at any end.
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

// compare returns an error that describes how the frames that arrived differ from the expected ones.
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

// Enter moves the calling thread into the switch's namespace for ever. The thread must be locked and
// never unlocked.
func (l *Lab) Enter() error {
	handle, err := netns.GetFromName(l.Switch.Name)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", l.Switch.Name, err)
	}
	defer handle.Close()
	return netns.Set(handle)
}

// For has the lab belong to another test until that test ends. Several tests in a row use one lab, and
// their parent, the first test, closes it.
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

// OnCPU runs fn on the CPU where the lab sends its frames. Frames that fn sends have arrived when Flush
// returns, as frames of the lab have.
func (l *Lab) OnCPU(fn func() error) error { return onCPU(l.cpu, fn) }
