// SPDX-License-Identifier: BSD-2-Clause

// Package fabrics joins ends: each fabric is a way to get a frame from one
// interface to another, in a file of its own that builds and describes it.
//
// To add a fabric: write a file with a Fabric value and put it into All.
package fabrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"bascule/datapath/probe"
	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/lab/report"
)

// Arrival says in which form frames reach the ends of a fabric, and so which
// counter sees every one of them at the least cost.
type Arrival int

const (
	// AsBuffers are the frames that a kernel bridge or a tcx program delivers.
	AsBuffers Arrival = iota
	// AsXDP are the frames that an XDP program delivers.
	AsXDP
)

func (a Arrival) String() string {
	if a == AsXDP {
		return "xdp"
	}
	return "tcx"
}

// Spec has the demands on a fabric: those of the workload that runs on it, and
// of the setup of the case.
type Spec struct {
	Ends     int           // how many, from 2
	Together bool          // all ends but the first live in one namespace
	Wire     ends.Wire     // of the cables
	Ageing   time.Duration // of learned addresses, 0 for the fabric's default
	FDBMax   int           // the most addresses to learn, 0 for the fabric's default
	States   int           // the most connections that a packet filter keeps, 0 for its default
	Routes   int           // that a router has to the second end, beside its subnets, from Networks on
	Apart    int           // of the ends, the last so many are in another VLAN than the rest
	// Frames says that the workload makes frames itself, below IP, and counts
	// them: it needs interfaces of namespaces.
	Frames bool
	// OwnCore says that the router gets a core of its own, by Net.OwnCore. Then every frame
	// takes the cable to its end. A router that knows the address of the end's device would
	// hand it to the end's stack itself, and the end's work would be done on its core.
	OwnCore bool
	// Host makes the host's own interface on the fabric the first end.
	Host bool
	// Guests makes the ends virtual machines (all but the host).
	Guests bool
}

// Site is where fabrics are built.
type Site struct {
	// Bascule is the path of the bascule program.
	Bascule string
	// Guests are the virtual machines for ends that are some; nil for none.
	Guests *guests.Pool
	// Cards says that the machine has the network cards of the fabrics.
	Cards bool
	// Instructions is how many instructions the machine has executed; nil where
	// nobody counts them.
	Instructions func() uint64
	// Part is told that frames are sent that count, so many of them, and ended that
	// they have arrived: a profile is of what is done in between. It is nil where
	// nobody makes one.
	Part func(frames uint64) (ended func())
}

// Fabric is one way to join ends.
type Fabric struct {
	Name  string
	About string
	// Path has the stations of a frame on its way from one end to another, the ends
	// included, and HostPath those from the host's own interface to an end: empty
	// if the fabric has none.
	Path     []report.Hop
	HostPath []report.Hop
	// Arrival is how unicast frames of an XDP sender reach an end.
	Arrival Arrival
	// FloodArrival is the same for broadcasts.
	FloodArrival Arrival
	// NeedsNAPI says that ends receive nothing unless their devices poll: a veth does while
	// its GRO is on, or while it has an XDP program.
	NeedsNAPI bool
	// Pairs says that the fabric has no addresses: end 1 is joined to end 2,
	// 3 to 4 and so on.
	Pairs bool
	// Routed says that the fabric forwards by IP address: each end is in a
	// subnet of its own, and no broadcast crosses.
	Routed bool
	// FramesOnly says that the fabric carries frames that a workload makes, but not
	// those of the ends' own stacks.
	FramesOnly bool
	// VLANs says that ends can be kept apart by VLANs.
	VLANs bool
	// Needs are the programs that it is made with, and Files what these need beside
	// their libraries.
	Needs []ends.Program
	Files []string
	// Modules are the kernel modules that it takes, beside veth: a machine that is
	// made for it loads them, and the lab loads none elsewhere.
	Modules []string
	// Wires join network cards that it is made of, in a virtual machine that is made for it.
	Wires []CardWire
	// Missing says what of bascule must be built before it can be made; empty
	// for what can.
	Missing string

	build func(context.Context, Site, *Net) error
}

// path makes hops of "kind name" strings; a string of one word is an end.
func path(hops ...string) []report.Hop {
	out := make([]report.Hop, len(hops))
	for i, h := range hops {
		kind, name, ok := strings.Cut(h, " ")
		if !ok {
			kind, name = "end", h
		}
		out[i] = report.Hop{Name: name, Kind: kind}
	}
	return out
}

// GuestPath is a path with virtual machines as its ends. Each is plugged into a
// tap, where a namespace has a veth; what gets past a veth does not get past a
// tap.
func GuestPath(path []report.Hop) []report.Hop {
	isTap := func(h report.Hop) bool { return h.Name == "tap" || h.Name == "macvtap" }
	tap := report.Hop{Name: "tap", Kind: "device"}
	var out []report.Hop
	for i, h := range path {
		switch {
		case h.Name == "end" && i > 0 && !isTap(out[len(out)-1]):
			out = append(out, tap)
		case h.Name == "veth" && (i > 0 && path[i-1].Name == "end" || i+1 < len(path) && path[i+1].Name == "end"):
			h = tap
		}
		out = append(out, h)
	}
	return out
}

// All is every fabric, in the order in which they are shown.
var All = slices.Concat([]*Fabric{
	Direct,
	LinuxBridge, LinuxBridgeFiltered, LinuxBridgeConntrack, OVS, OVSConntrack, OVSAFXDP,
	Bascule, BasculeXDP, BasculeChainVeth, BasculeChainPatch, BasculeChain2, BasculeChain7, LinuxChain7, BasculePF, BasculeXDPPF,
	BasculeLocked, BasculeLockedXDP,
	Macvlan, Macvtap,
	Router, RouterNft, RouterNAT, RouterFlowtable, RouterCards,
	BasculeRouter, BasculeRouterXDP, BasculeRouterPF, BasculeRouterXDPPF, BasculeRouterStateless, BasculeRouterXDPStateless,
	BasculeRouterNAT, BasculeRouterXDPNAT,
	XDPBare, TCXBare, TCXBarePeer, Mirred,
}, featured, sized, Neutron, TwoHosts)

// Find returns the fabric of that name.
func Find(name string) (*Fabric, bool) {
	i := slices.IndexFunc(All, func(f *Fabric) bool { return f.Name == name })
	if i < 0 {
		return nil, false
	}
	return All[i], true
}

// Port is the device that the cable of an end is plugged into.
type Port struct {
	Namespace *ends.Namespace
	Ifname    string
	Ifindex   int
}

// Net is a fabric that was built, with its ends. Ends[i] is plugged into
// Ports[i].
type Net struct {
	Fabric *Fabric
	Spec   Spec
	Switch *ends.Namespace // nil where the ends are joined without one
	Ends   []ends.End
	Ports  []Port

	// Notes are findings from when the fabric was built, for the report.
	Notes []string

	site   Site
	serial int64
	second *Net // of the second host, where there is one
	flush  func(context.Context) error
	forget func(context.Context) error
	load   func(ctx context.Context, rules int) error
	states func(context.Context) (int, error)
	extend func(ctx context.Context, port string) error
	shrink func(ctx context.Context, port string) error
	known  func(context.Context) (int, error)
	memory func() (uint64, error)
	holds  func() (uint64, error)
	drops  func(context.Context) (map[string]uint64, error)
	last   []func(ctx context.Context) error // what is done when all else is built
	undo   []func() error
	leave  []func() error    // comes before undo: the switch gives back what it took of its ends while they live
	living []context.Context // of what the net needs: each ends with it, and its cause tells how
}

var serial atomic.Int64

// Build builds the fabric. When it fails it leaves nothing behind. An
// ends.Unavailable tells that it cannot be built on this machine as it is.
func (f *Fabric) Build(ctx context.Context, site Site, spec Spec) (*Net, error) {
	if spec.Ends < 2 {
		return nil, fmt.Errorf("fabric %s: %d ends asked for, at least 2 are needed", f.Name, spec.Ends)
	}
	switch {
	case f.Missing != "":
		return nil, &ends.Unavailable{Reason: f.Missing}
	case len(f.Wires) > 0 && !site.Cards:
		return nil, &ends.Unavailable{Reason: "it is made of network cards that only a virtual machine of the lab has: --in-vm"}
	case spec.Host && len(f.HostPath) == 0:
		return nil, &ends.Unavailable{Reason: "the host has no interface of its own on it"}
	case f.FramesOnly && !spec.Frames:
		return nil, &ends.Unavailable{Reason: "it carries no packets whose checksum is left to the driver, as those of the ends' stacks are"}
	case spec.Apart > 0 && !f.VLANs:
		return nil, &ends.Unavailable{Reason: "it has no VLANs"}
	case spec.Routes > 0 && !f.Routed:
		return nil, &ends.Unavailable{Reason: "it has no routes"}
	case spec.OwnCore && !f.Routed && f != Direct:
		return nil, &ends.Unavailable{Reason: "it has no router to give a core"}
	case spec.OwnCore && spec.Host:
		return nil, &ends.Unavailable{Reason: "its first end is the router, which has no core of its own then"}
	case spec.Guests && spec.Frames:
		return nil, &ends.Unavailable{Reason: "frames are made in namespaces, not in virtual machines"}
	case spec.Guests && site.Guests == nil:
		return nil, &ends.Unavailable{Reason: "there are no virtual machines here"}
	}
	if err := ends.Installed(f.Needs...); err != nil {
		return nil, err
	}
	if spec.Guests {
		if err := site.Guests.Ready(ctx, spec.Ends); err != nil {
			return nil, err
		}
	}
	n := &Net{Fabric: f, Spec: spec, site: site, serial: serial.Add(1)}
	err := f.build(ctx, site, n)
	for _, step := range n.last {
		if err == nil {
			err = step(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fabric %s: %w", f.Name, err), n.Close())
	}
	return n, nil
}

// Close removes the fabric and its ends.
func (n *Net) Close() error {
	var errs []error
	for _, steps := range []*[]func() error{&n.leave, &n.undo} {
		for _, step := range slices.Backward(*steps) {
			errs = append(errs, step())
		}
		*steps = nil
	}
	return errors.Join(errs...)
}

// Ended tells how something ended that the net cannot do without, a virtual
// machine or a daemon of its switch; nil while all of it lives.
func (n *Net) Ended() error {
	for _, l := range n.living {
		if err := context.Cause(l); err != nil {
			return err
		}
	}
	return nil
}

// Watch returns a context that also ends when a program or a guest ends that
// the net cannot do without. The context's cause is then the error of Ended.
// Without Watch, a program that waits for an answer from the net would wait for
// long.
func (n *Net) Watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var stop []func() bool
	for _, l := range n.living {
		stop = append(stop, context.AfterFunc(l, func() { cancel(context.Cause(l)) }))
	}
	return ctx, func() {
		for _, s := range stop {
			s()
		}
		cancel(nil)
	}
}

// Flush forgets every learned address.
func (n *Net) Flush(ctx context.Context) error {
	if n.flush == nil {
		return nil
	}
	return n.flush(ctx)
}

// FlushStates forgets every connection that a packet filter of the fabric knows.
func (n *Net) FlushStates(ctx context.Context) error {
	if n.forget == nil {
		return nil
	}
	return n.forget(ctx)
}

// LoadRules gives a packet filter the lab's policy with so many rules, by the
// command that people use.
func (n *Net) LoadRules(ctx context.Context, rules int) error {
	if n.load == nil {
		return &ends.Unavailable{Reason: "it has no rules to load"}
	}
	return n.load(ctx, rules)
}

// States is how many connections a packet filter of the fabric knows.
func (n *Net) States(ctx context.Context) (int, error) {
	if n.states == nil {
		return 0, &ends.Unavailable{Reason: "it does not tell how many connections it knows"}
	}
	return n.states(ctx)
}

// StateMemory is how many bytes of kernel memory a packet filter's tables of
// connections take.
func (n *Net) StateMemory() (uint64, error) {
	if n.holds == nil {
		return 0, &ends.Unavailable{Reason: "it does not tell how much memory its connections take"}
	}
	return n.holds()
}

// Known is how many addresses the switch has learned and not forgotten.
func (n *Net) Known(ctx context.Context) (int, error) {
	if n.known == nil {
		return 0, &ends.Unavailable{Reason: "it does not tell how many addresses it has learned"}
	}
	return n.known(ctx)
}

// Memory is how many bytes of kernel memory the switch's tables take.
func (n *Net) Memory() (uint64, error) {
	if n.memory == nil {
		return 0, &ends.Unavailable{Reason: "the kernel does not tell how much memory its tables take"}
	}
	return n.memory()
}

// AddPort makes a device of the switch's namespace a port of the switch.
func (n *Net) AddPort(ctx context.Context, device string) error {
	if n.extend == nil {
		return &ends.Unavailable{Reason: "it has no ports to add"}
	}
	return n.extend(ctx, device)
}

// DelPort takes a port away from the switch.
func (n *Net) DelPort(ctx context.Context, device string) error {
	if n.shrink == nil {
		return &ends.Unavailable{Reason: "it has no ports to take away"}
	}
	return n.shrink(ctx, device)
}

// AcceptFrames makes the device that end i is plugged into take frames that
// are sent in XDP form, which a veth does when its GRO is on.
func (n *Net) AcceptFrames(i int) error {
	p := n.Ports[i]
	return p.Namespace.SetFeatures(p.Ifname, ends.Features{Segmentation: true, GRO: true})
}

// Poll has the ends' devices poll while their GRO is off, by an XDP program that passes
// all frames on to the stack.
func (n *Net) Poll() error {
	const about = "with offloads off, its ends have an XDP program that passes everything: without one they receive nothing"
	for _, e := range n.Ends {
		if e.Namespace == nil {
			return &ends.Unavailable{Reason: "it delivers nothing to virtual machines whose offloads are off"}
		}
		err := e.Namespace.Do(func() error {
			p, err := probe.NewPass(e.Ifindex)
			if err == nil {
				n.undo = append(n.undo, p.Close)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	n.Notes = append(n.Notes, about)
	return nil
}

// OwnCore has all that comes to the router's devices processed on one core, and all that
// comes to the ends' devices on another. The offloads of the devices have to be set before.
// A cable without a router has its ends on the core that is theirs.
func (n *Net) OwnCore(router, others int) error {
	for i, e := range n.Ends {
		// Where TCP has sent more than the kernel lets it (small queues, tcp_limit_output_bytes
		// of ip-sysctl), it goes on where what it has sent is freed, which is the router's core.
		// It may send ten times as much: not for a millisecond, but for ten.
		err := e.Namespace.Do(func() error {
			return errors.Join(
				ends.Sysctl("net.ipv4.tcp_limit_output_bytes", fmt.Sprint(1<<30)),
				ends.Sysctl("net.ipv4.tcp_pacing_ss_ratio", "1000"),
				ends.Sysctl("net.ipv4.tcp_pacing_ca_ratio", "1000"))
		})
		if err != nil {
			return err
		}
		if err := e.Namespace.ReceiveOn(e.Ifname, others); err != nil {
			return err
		}
		if !n.Fabric.Routed {
			continue
		}
		if err := n.Ports[i].Namespace.ReceiveOn(n.Ports[i].Ifname, router); err != nil {
			return err
		}
	}
	return nil
}

// NextHop is the hardware address that an end sends to when it means another:
// that end's own, or the router's.
func (n *Net) NextHop(from, to int) net.HardwareAddr {
	if mac := n.Ends[from].Gateway; mac != nil {
		return mac
	}
	return n.Ends[to].MAC
}

// Crossed is how many bytes entered the fabric from one of its ends, by the
// counters of the fabric's own device.
func (n *Net) Crossed(from int) (uint64, error) {
	p, e := n.Ports[from], n.Ends[from]
	t, err := p.Namespace.Traffic(p.Ifname)
	// The end's own device may be all that the fabric has. A macvtap is as good
	// as that: it sends what its guest does.
	if p.Namespace == e.Namespace && p.Ifindex == e.Ifindex || n.Fabric == Macvtap {
		return t.TxBytes, err
	}
	return t.RxBytes, err
}

// Program is the path of the bascule program where the programs of end i run,
// or an ends.Unavailable. Guests have it as guests.ProgramPath.
func (n *Net) Program(i int) (string, error) {
	switch {
	case n.Ends[i].Namespace == nil:
		return guests.ProgramPath, nil
	case n.site.Bascule == "":
		return "", &ends.Unavailable{Reason: "the path of the bascule program is not known"}
	}
	return n.site.Bascule, nil
}

// Instructions returns what counts the instructions of the machine, or an
// ends.Unavailable.
func (n *Net) Instructions() (func() uint64, error) {
	if n.site.Instructions == nil {
		return nil, &ends.Unavailable{Reason: "instructions are counted in a virtual machine only: --in-vm"}
	}
	return n.site.Instructions, nil
}

// Part tells who makes a profile that so many frames are sent now which count, and by
// ended that they have arrived.
func (n *Net) Part(frames uint64) (ended func()) {
	if n.site.Part == nil {
		return func() {}
	}
	return n.site.Part(frames)
}

// namespace makes a namespace that Close removes.
func (n *Net) namespace(what string) (*ends.Namespace, error) {
	ns, err := ends.NewNamespace(ends.NameFor(fmt.Sprintf("%d-%s", n.serial, what)))
	if err != nil {
		return nil, err
	}
	n.undo = append(n.undo, ns.Close)
	return ns, nil
}

// endNamespace makes the namespace of end i, from 0, or finds it where the
// ends share one.
func (n *Net) endNamespace(i int) (*ends.Namespace, error) {
	if n.Spec.Together && i > 1 {
		return n.Ends[1].Namespace, nil
	}
	return n.namespace(fmt.Sprintf("e%d", i+1))
}

// place makes the switch's namespace.
func (n *Net) place() (err error) {
	n.Switch, err = n.namespace("sw")
	return err
}

// cable makes the next end, with a cable to a device of the switch's
// namespace.
func (n *Net) cable(ctx context.Context, near string) error {
	i := len(n.Ends)
	if n.Spec.Guests {
		return n.guest(ctx, guests.Device{Name: near})
	}
	ns, err := n.endNamespace(i)
	if err != nil {
		return err
	}
	end, err := ends.Cable(n.Switch, near, ns, fmt.Sprintf("e%d", i+1), i+1, n.Spec.Wire)
	if err != nil {
		return err
	}
	// Before the switch gets the port, which may look whether it can.
	if n.Fabric.NeedsNAPI {
		if err := ns.SetFeatures(end.Ifname, ends.Features{Segmentation: true, GRO: true}); err != nil {
			return err
		}
	}
	return n.joined(end, near)
}

// guest makes the next end a virtual machine, and the device of the switch's
// namespace that it is plugged into.
func (n *Net) guest(ctx context.Context, near guests.Device) error {
	i := len(n.Ends)
	g := n.site.Guests.Guest(i)
	plain := n.Fabric.Arrival == AsXDP
	const about = "virtual machines without checksum and segmentation offload, which XDP cannot pass on"
	if plain && !slices.Contains(n.Notes, about) {
		n.Notes = append(n.Notes, about)
	}
	end, takeOut, err := g.Plug(ctx, n.Switch, near, i+1, n.Spec.Wire, plain)
	if err != nil {
		return err
	}
	n.undo = append(n.undo, takeOut)
	n.living = append(n.living, g.Ended())
	return n.joined(end, near.Name)
}

// hostEnd makes the next end of a device of the switch's own namespace. Where
// that is one side of a veth, it is plugged into the other.
func (n *Net) hostEnd(ifname string) error {
	link := n.Switch.Netlink()
	l, err := link.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", ifname, n.Switch.Name, err)
	}
	near := l
	if l.Type() == "veth" {
		if near, err = link.LinkByIndex(l.Attrs().ParentIndex); err != nil {
			return fmt.Errorf("other side of %s in %s: %w", ifname, n.Switch.Name, err)
		}
	}
	if err := n.setMTU(l); err != nil {
		return fmt.Errorf("%s in %s: %w", ifname, n.Switch.Name, err)
	}
	_, addr := ends.Number(len(n.Ends) + 1)
	end, err := n.Switch.Adopt(ifname, addr)
	if err != nil {
		return err
	}
	return n.joined(end, near.Attrs().Name)
}

// joined notes an end and the device of the switch's namespace that it is
// plugged into.
func (n *Net) joined(end ends.End, near string) error {
	l, err := n.Switch.Netlink().LinkByName(near)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", near, n.Switch.Name, err)
	}
	n.Ends = append(n.Ends, end)
	n.Ports = append(n.Ports, Port{n.Switch, near, l.Attrs().Index})
	return nil
}
