// SPDX-License-Identifier: BSD-2-Clause

// Package fabrics connects ends: each fabric is a path for frames between interfaces, in a separate file
// that builds and describes it.
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

// Arrival is the form in which frames reach the ends of a fabric. It determines the cheapest counter
// that sees every frame.
type Arrival int

const (
	// AsBuffers: a kernel bridge or a tcx program delivers the frames as socket buffers.
	AsBuffers Arrival = iota
	// AsXDP: an XDP program delivers the frames.
	AsXDP
)

func (a Arrival) String() string {
	if a == AsXDP {
		return "xdp"
	}
	return "tcx"
}

// Spec has the requirements for a fabric, from its workload and from the setup of the case.
type Spec struct {
	Ends     int           // at least 2
	Together bool          // all ends except the first are in one namespace
	Wire     ends.Wire     // of the cables
	Ageing   time.Duration // of learned addresses, 0 for the fabric's default
	FDBMax   int           // limit of learned addresses, 0 for the fabric's default
	States   int           // limit of a packet filter's connections, 0 for its default
	Routes   int           // a router's routes to the second end, in addition to its subnets, from Networks on
	Apart    int           // number of the last ends that are in a different VLAN
	// Frames means that the workload builds frames below IP itself, and counts them. It needs
	// interfaces in namespaces.
	Frames bool
	// OwnCore means that Net.OwnCore gives the router a separate core. Then every frame takes the
	// cable to its end. A router that knows the address of the end's device would pass frames to the
	// end's stack directly, which would use the router's core.
	OwnCore bool
	// Host makes the first end the host's own interface on the fabric.
	Host bool
	// Guests makes the ends virtual machines, except the host.
	Guests bool
}

// Site describes the machine on which fabrics are built.
type Site struct {
	// Bascule is the path of the bascule program.
	Bascule string
	// Guests are the virtual machines for ends; nil for none.
	Guests *guests.Pool
	// Cards means that the machine has the fabrics' network cards.
	Cards bool
	// Instructions returns the number of instructions that the machine has executed; nil if they are
	// not counted.
	Instructions func() uint64
	// Part is called with the number of measured frames before they are sent; its result is called
	// after they have arrived. A profile covers the time in between. Part is nil without a profile.
	Part func(frames uint64) (ended func())
}

// Fabric is one way to connect ends.
type Fabric struct {
	Name  string
	About string
	// Path lists the stations of a frame on its way between ends, including the ends; HostPath
	// starts at the host's own interface. A path is empty if the fabric does not have it.
	Path     []report.Hop
	HostPath []report.Hop
	// Arrival is the form in which unicast frames of an XDP sender reach an end.
	Arrival Arrival
	// FloodArrival is the same for broadcasts.
	FloodArrival Arrival
	// NeedsNAPI means that ends receive only if their devices poll: a veth polls if GRO is on, or if
	// it has an XDP program.
	NeedsNAPI bool
	// Pairs means that the fabric has no addresses: end 1 is connected to end 2, 3 to 4 and so on.
	Pairs bool
	// Routed means that the fabric forwards by IP address: each end is in a separate subnet, and no
	// broadcast crosses.
	Routed bool
	// FramesOnly means that the fabric carries frames that a workload builds, but no frames from the
	// ends' network stacks.
	FramesOnly bool
	// VLANs means that VLANs can separate ends.
	VLANs bool
	// Needs lists the programs that the fabric needs, and Files their files other than libraries.
	Needs []ends.Program
	Files []string
	// Modules lists the kernel modules that the fabric needs in addition to veth. The lab loads them
	// only in a machine that is made for the fabric.
	Modules []string
	// Wires connect the fabric's network cards, in a virtual machine that is made for it.
	Wires []CardWire
	// Missing names a part of bascule that must be built before the fabric; empty if there is none.
	Missing string

	build func(context.Context, Site, *Net) error
}

// path makes hops from "kind name" strings; a single word is an end.
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

// GuestPath returns a path with virtual machines as its ends. Each one is connected to a tap instead of
// a veth. Shortcuts past a veth do not exist for a tap.
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

// All lists every fabric in display order.
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

// Port is the device to which an end's cable is connected.
type Port struct {
	Namespace *ends.Namespace
	Ifname    string
	Ifindex   int
}

// Net is a fabric that was built, with its ends. Ends[i] is connected to Ports[i].
type Net struct {
	Fabric *Fabric
	Spec   Spec
	Switch *ends.Namespace // nil if the ends are connected without a switch
	Ends   []ends.End
	Ports  []Port

	// Notes are findings from the construction of the fabric, for the report.
	Notes []string

	site   Site
	serial int64
	second *Net // of the second host, if there is one
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
	last   []func(ctx context.Context) error // runs after everything else is built
	undo   []func() error
	leave  []func() error    // runs before undo: the switch releases the ends' devices while they still exist
	living []context.Context // of required processes: each ends with its process, and its cause is the reason
}

var serial atomic.Int64

// Build builds the fabric. If it fails, it leaves nothing behind. An ends.Unavailable means that this
// machine lacks a requirement.
func (f *Fabric) Build(ctx context.Context, site Site, spec Spec) (*Net, error) {
	if spec.Ends < 2 {
		return nil, fmt.Errorf("fabric %s: %d ends requested, at least 2 are needed", f.Name, spec.Ends)
	}
	switch {
	case f.Missing != "":
		return nil, &ends.Unavailable{Reason: f.Missing}
	case len(f.Wires) > 0 && !site.Cards:
		return nil, &ends.Unavailable{Reason: "it is made of network cards that only a virtual machine of the lab has: --in-vm"}
	case spec.Host && len(f.HostPath) == 0:
		return nil, &ends.Unavailable{Reason: "the host has no interface of its own on it"}
	case f.FramesOnly && !spec.Frames:
		return nil, &ends.Unavailable{Reason: "it carries no packets whose checksum is left to the driver, as the ends' stacks send them"}
	case spec.Apart > 0 && !f.VLANs:
		return nil, &ends.Unavailable{Reason: "it has no VLANs"}
	case spec.Routes > 0 && !f.Routed:
		return nil, &ends.Unavailable{Reason: "it has no routes"}
	case spec.OwnCore && !f.Routed && f != Direct:
		return nil, &ends.Unavailable{Reason: "it has no router to give a core"}
	case spec.OwnCore && spec.Host:
		return nil, &ends.Unavailable{Reason: "its first end is the router, which then has no core of its own"}
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

// Ended returns how a required part of the net has ended, such as a virtual machine or a daemon of its
// switch; nil while all of them run.
func (n *Net) Ended() error {
	for _, l := range n.living {
		if err := context.Cause(l); err != nil {
			return err
		}
	}
	return nil
}

// Watch returns a context that also ends when a required program or guest ends. The context's cause is
// then the error of Ended. Without Watch, a program could wait a long time for an answer from the net.
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

// FlushStates forgets every connection of the fabric's packet filter.
func (n *Net) FlushStates(ctx context.Context) error {
	if n.forget == nil {
		return nil
	}
	return n.forget(ctx)
}

// LoadRules loads the lab's policy with the given number of rules into a packet filter, with the command
// that users run.
func (n *Net) LoadRules(ctx context.Context, rules int) error {
	if n.load == nil {
		return &ends.Unavailable{Reason: "it has no rules to load"}
	}
	return n.load(ctx, rules)
}

// States returns the number of connections of the fabric's packet filter.
func (n *Net) States(ctx context.Context) (int, error) {
	if n.states == nil {
		return 0, &ends.Unavailable{Reason: "it does not report how many connections it tracks"}
	}
	return n.states(ctx)
}

// StateMemory returns the kernel memory of a packet filter's connection tables, in bytes.
func (n *Net) StateMemory() (uint64, error) {
	if n.holds == nil {
		return 0, &ends.Unavailable{Reason: "it does not report how much memory its connections take"}
	}
	return n.holds()
}

// Known returns the number of addresses that the switch has learned and not forgotten.
func (n *Net) Known(ctx context.Context) (int, error) {
	if n.known == nil {
		return 0, &ends.Unavailable{Reason: "it does not report how many addresses it has learned"}
	}
	return n.known(ctx)
}

// Memory returns the kernel memory of the switch's tables, in bytes.
func (n *Net) Memory() (uint64, error) {
	if n.memory == nil {
		return 0, &ends.Unavailable{Reason: "the kernel does not report how much memory its tables take"}
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

// DelPort removes a port from the switch.
func (n *Net) DelPort(ctx context.Context, device string) error {
	if n.shrink == nil {
		return &ends.Unavailable{Reason: "it has no ports to remove"}
	}
	return n.shrink(ctx, device)
}

// AcceptFrames makes the device connected to end i accept frames in XDP form, which a veth does if its
// GRO is on.
func (n *Net) AcceptFrames(i int) error {
	p := n.Ports[i]
	return p.Namespace.SetFeatures(p.Ifname, ends.Features{Segmentation: true, GRO: true})
}

// Poll makes the ends' devices poll while their GRO is off, with an XDP program that passes all frames
// to the stack.
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

// OwnCore moves the processing of all frames that arrive at the router's devices to one core, and at the
// ends' devices to another. The offloads of the devices have to be set before. On a cable without a
// router, the ends use their own core.
func (n *Net) OwnCore(router, others int) error {
	for i, e := range n.Ends {
		// If TCP reaches its limit of unsent bytes (small queues, tcp_limit_output_bytes of
		// ip-sysctl), it continues on the core that frees the sent packets, which is the
		// router's. A tenfold limit lets it send for ten milliseconds instead of one.
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

// NextHop returns the hardware address for packets from one end to another: the other end's own, or the
// router's.
func (n *Net) NextHop(from, to int) net.HardwareAddr {
	if mac := n.Ends[from].Gateway; mac != nil {
		return mac
	}
	return n.Ends[to].MAC
}

// Crossed returns the number of bytes that entered the fabric from one of its ends, from the counters of
// the fabric's own device.
func (n *Net) Crossed(from int) (uint64, error) {
	p, e := n.Ports[from], n.Ends[from]
	t, err := p.Namespace.Traffic(p.Ifname)
	// The end's own device may be the fabric's only device. A macvtap is equivalent: it sends what
	// its guest sends.
	if p.Namespace == e.Namespace && p.Ifindex == e.Ifindex || n.Fabric == Macvtap {
		return t.TxBytes, err
	}
	return t.RxBytes, err
}

// Program returns the path of the bascule program for the programs of end i, or an ends.Unavailable. In
// guests it is guests.ProgramPath.
func (n *Net) Program(i int) (string, error) {
	switch {
	case n.Ends[i].Namespace == nil:
		return guests.ProgramPath, nil
	case n.site.Bascule == "":
		return "", &ends.Unavailable{Reason: "the path of the bascule program is unknown"}
	}
	return n.site.Bascule, nil
}

// Instructions returns the machine's counter of instructions, or an ends.Unavailable.
func (n *Net) Instructions() (func() uint64, error) {
	if n.site.Instructions == nil {
		return nil, &ends.Unavailable{Reason: "instructions are counted in a virtual machine only: --in-vm"}
	}
	return n.site.Instructions, nil
}

// Part marks the beginning of a part of a profile with the given number of frames; ended marks their
// arrival.
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

// endNamespace makes the namespace of end i, from 0, or returns the shared one.
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
	// Before the port is added, since the switch may check the device.
	if n.Fabric.NeedsNAPI {
		if err := ns.SetFeatures(end.Ifname, ends.Features{Segmentation: true, GRO: true}); err != nil {
			return err
		}
	}
	return n.joined(end, near)
}

// guest makes the next end a virtual machine, and its device in the switch's namespace.
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

// hostEnd makes the next end from a device of the switch's namespace. If the device is one side of a
// veth, the end is connected to the other side.
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

// joined records an end and the device in the switch's namespace that it is connected to.
func (n *Net) joined(end ends.End, near string) error {
	l, err := n.Switch.Netlink().LinkByName(near)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", near, n.Switch.Name, err)
	}
	n.Ends = append(n.Ends, end)
	n.Ports = append(n.Ports, Port{n.Switch, near, l.Attrs().Index})
	return nil
}
