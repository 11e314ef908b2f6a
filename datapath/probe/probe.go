// SPDX-License-Identifier: BSD-2-Clause

// Package probe has the instruments of the lab: a generator of frames, counters
// for frames that arrive, and the shortest possible XDP forwarder.
//
// Interface indexes are looked up in the network namespace of the calling
// thread, so callers enter that namespace first and stay on its thread.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Batch is the number of frames that the kernel makes before it lets them be forwarded,
// unless a Stream sets another. A veth's ring holds 256 frames and softirq takes 64 of
// them at a time, so 64 overruns no ring.
const Batch = 64

// Vary defines how an address differs from frame to frame. The zero value keeps the
// frame's address.
type Vary struct {
	Base   net.HardwareAddr // the first address
	Count  uint32           // number of addresses, from Base on
	Random bool             // at random instead of one after the other
}

func (v Vary) value() (probeVary, error) {
	if v.Count == 0 {
		return probeVary{}, nil
	}
	if len(v.Base) != 6 {
		return probeVary{}, fmt.Errorf("%q is not an Ethernet address", v.Base)
	}
	out := probeVary{Count: v.Count}
	for _, b := range v.Base {
		out.Base = out.Base<<8 | uint64(b)
	}
	if v.Random {
		out.Random = 1
	}
	return out, nil
}

// Stream is the traffic of a Generator.
type Stream struct {
	Ifindex int    // the device to send from
	Frame   []byte // from the destination address on, without the checksum
	Dst     Vary
	Src     Vary
	// Sizes are the lengths of successive frames, in turn, each at most Frame's; without
	// them frames keep their length. Ports is the number of pairs of UDP ports that
	// frames have in turn, 0 for the frame's own, and Answers exchanges the two. Hosts is
	// the number of IPv4 source addresses, chosen at random from Host on, 0 for the
	// frame's own; with HostsTo these are destination addresses. All of these need a UDP
	// datagram in IPv4 without options and without a UDP checksum.
	Sizes   []int
	Ports   uint32
	Answers bool
	Host    netip.Addr
	Hosts   uint32
	HostsTo bool
	Rate    uint64 // frames a second, 0 for as many as possible
	Batch   uint32 // frames made before they are forwarded, up to 256; 0 for Batch
	// Afresh rewrites the fields of every frame that a router changes: the hardware
	// addresses, and all headers of a UDP datagram. The kernel reuses the pages of the
	// frames when they come back.
	Afresh bool
}

// afresh returns the frame's IPv4 and UDP headers, and 1; or nothing, and 0, if they are
// kept.
func (s *Stream) afresh() (headers probeHeaders, afresh uint32, err error) {
	if !s.Afresh {
		return headers, 0, nil
	}
	if !isDatagram(s.Frame) {
		return headers, 0, errors.New("only a UDP datagram in IPv4 without options has headers to write afresh")
	}
	if s.Dst.Count == 0 {
		s.Dst = Vary{Base: s.Frame[:6], Count: 1}
	}
	if s.Src.Count == 0 {
		s.Src = Vary{Base: s.Frame[6:12], Count: 1}
	}
	for i := range headers.Words {
		headers.Words[i] = binary.NativeEndian.Uint32(s.Frame[ipAt+4*i:])
	}
	return headers, 1, nil
}

// Offsets in a UDP datagram over IPv4 over Ethernet.
const (
	ipAt          = 14
	checkAt       = ipAt + 10
	sourceAt      = ipAt + 12
	destinationAt = ipAt + 16
	udpAt         = ipAt + 20
	datagramAt    = udpAt + 8
)

// The pairs of UDP ports of Stream.Ports, as in probe.bpf.c: the source port changes
// first.
const (
	firstPort = 1024
	ports     = 50_000
	maxPairs  = ports * (65536 - firstPort)
)

// isDatagram reports whether a frame is a UDP datagram in IPv4 without options.
func isDatagram(f []byte) bool {
	return len(f) >= datagramAt && f[12] == 0x08 && f[13] == 0 && f[ipAt] == 0x45 && f[ipAt+9] == unix.IPPROTO_UDP
}

// shapes returns the headers for each of the stream's sizes.
func (s Stream) shapes() ([]probeShape, error) {
	if len(s.Sizes) == 0 && s.Ports == 0 && s.Hosts == 0 {
		return nil, nil
	}
	f := s.Frame
	if !isDatagram(f) {
		return nil, errors.New("the frame is no UDP datagram in IPv4 without options")
	}
	if s.Ports > maxPairs {
		return nil, fmt.Errorf("%d pairs of ports: there are %d", s.Ports, maxPairs)
	}
	if s.Hosts > 0 && !s.Host.Is4() {
		return nil, fmt.Errorf("addresses from %v on: give one of IPv4", s.Host)
	}
	if last := uint64(s.firstHost()) + uint64(s.Hosts); s.Hosts > 0 && last > 1<<32 {
		return nil, fmt.Errorf("%d addresses from %v on: there are not so many", s.Hosts, s.Host)
	}
	out := make([]probeShape, len(s.Sizes))
	for i, size := range s.Sizes {
		if size < datagramAt || size > len(f) {
			return nil, fmt.Errorf("a frame of %d bytes: give %d to %d", size, datagramAt, len(f))
		}
		head := slices.Clone(f[ipAt:udpAt])
		binary.BigEndian.PutUint16(head[2:], uint16(size-ipAt))
		out[i] = probeShape{
			Len:     uint32(size),
			IpLen:   networkOrder(uint16(size - ipAt)),
			IpCheck: networkOrder(checksum(head)),
			UdpLen:  networkOrder(uint16(size - udpAt)),
		}
	}
	return out, nil
}

// firstHost is Host as a number, 0 if the addresses do not vary.
func (s Stream) firstHost() uint32 {
	if s.Hosts == 0 {
		return 0
	}
	return binary.BigEndian.Uint32(s.Host.AsSlice())
}

// checksum returns the checksum of an IPv4 header without options (RFC 1071), ignoring
// the present one.
func checksum(head []byte) uint16 {
	var sum uint32
	for i := 0; i < len(head); i += 2 {
		if i != checkAt-ipAt {
			sum += uint32(binary.BigEndian.Uint16(head[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// networkOrder returns a number whose bytes in memory are big-endian.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Generator sends frames by a device with BPF_PROG_TEST_RUN. A device such as a veth
// accepts them only if its peer has GRO on or an XDP program.
type Generator struct {
	stream  Stream
	objects struct {
		Program   *ebpf.Program  `ebpf:"generate"`
		Generated *ebpf.Map      `ebpf:"generated"`
		Stop      *ebpf.Variable `ebpf:"stop"`
	}
	stopped atomic.Bool
}

// NewGenerator loads a generator that is specialised for s.
func NewGenerator(s Stream) (*Generator, error) {
	headers, afresh, err := s.afresh()
	if err != nil {
		return nil, fmt.Errorf("frame generator: %w", err)
	}
	dst, err := s.Dst.value()
	if err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	src, err := s.Src.value()
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	shapes, err := s.shapes()
	if err != nil {
		return nil, fmt.Errorf("frame generator: %w", err)
	}
	var shaped [16]probeShape
	if len(shapes) > len(shaped) {
		return nil, fmt.Errorf("frame generator: %d sizes, at most %d can be", len(shapes), len(shaped))
	}
	copy(shaped[:], shapes)
	var answers, hostsTo uint32
	if s.Answers {
		answers = 1
	}
	if s.HostsTo {
		hostsTo = 1
	}
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("frame generator: %w", err)
	}
	err = errors.Join(
		spec.Variables["shapes"].Set(shaped),
		spec.Variables["shape_count"].Set(uint32(len(shapes))),
		spec.Variables["port_pairs"].Set(s.Ports),
		spec.Variables["answers"].Set(answers),
		spec.Variables["hosts"].Set(s.Hosts),
		spec.Variables["first_host"].Set(s.firstHost()),
		spec.Variables["hosts_to"].Set(hostsTo),
		spec.Variables["vary_dst"].Set(dst),
		spec.Variables["vary_src"].Set(src),
		spec.Variables["headers"].Set(headers),
		spec.Variables["afresh"].Set(afresh),
		spec.Variables["rate"].Set(s.Rate),
	)
	if err != nil {
		return nil, fmt.Errorf("frame generator: %w", err)
	}
	g := &Generator{stream: s}
	if err := spec.LoadAndAssign(&g.objects, nil); err != nil {
		return nil, fmt.Errorf("frame generator: %w", err)
	}
	return g, nil
}

// Send makes n frames and returns when all are sent, or quickly after Stop.
// The calling thread must be in the device's network namespace; the frames are
// made, and over veth also forwarded, on the CPU that it runs on.
func (g *Generator) Send(n uint32) error {
	if g.stopped.Load() || n == 0 {
		return nil
	}
	// struct xdp_md: the kernel requires the extent of the packet, and takes the sending
	// device from it.
	ctx := struct {
		Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
	}{
		DataEnd:        uint32(len(g.stream.Frame)),
		IngressIfindex: uint32(g.stream.Ifindex),
	}
	batch := g.stream.Batch
	if batch == 0 {
		batch = Batch
	}
	_, err := g.objects.Program.Run(&ebpf.RunOptions{
		Data:      g.stream.Frame,
		Context:   ctx,
		Repeat:    n,
		Flags:     unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		BatchSize: batch,
	})
	if err != nil {
		return fmt.Errorf("frame generator on device %d: %w", g.stream.Ifindex, err)
	}
	return nil
}

// Stop makes a running Send return without sending more frames, and every later one do
// nothing.
func (g *Generator) Stop() error {
	g.stopped.Store(true)
	return g.objects.Stop.Set(uint32(1))
}

// Sent returns the number of frames handed to the device so far. The device may have had
// no room for some of them.
func (g *Generator) Sent() (uint64, error) {
	var per []probeGenerated
	if err := g.objects.Generated.Lookup(uint32(0), &per); err != nil {
		return 0, fmt.Errorf("frame generator: %w", err)
	}
	var sum uint64
	for _, c := range per {
		sum += c.Sent
	}
	return sum, nil
}

// Close unloads the generator.
func (g *Generator) Close() error {
	return errors.Join(g.objects.Program.Close(), g.objects.Generated.Close())
}

// Counter counts and drops the frames that reach some devices.
type Counter struct {
	program *ebpf.Program
	counted *ebpf.Map
	links   []link.Link
}

// CountXDP counts in the driver, where frames arrive that an XDP program has redirected.
// Frames that arrive as packet buffers are counted, too, but a veth copies each of these,
// so CountTCX is better for them.
func CountXDP(ifindex ...int) (*Counter, error) {
	c, err := countXDP("count_xdp", ifindex)
	if errors.Is(err, unix.ERANGE) {
		// The device's MTU requires several buffers.
		return countXDP("count_xdp_frags", ifindex)
	}
	return c, err
}

func countXDP(program string, ifindex []int) (*Counter, error) {
	c, err := newCounter(program)
	if err != nil {
		return nil, err
	}
	for _, i := range ifindex {
		l, err := link.AttachXDP(link.XDPOptions{Program: c.program, Interface: i, Flags: link.XDPDriverMode})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("frame counter on device %d: %w", i, err), c.Close())
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

// CountTCX counts packet buffers at tcx ingress, above the driver. It counts packets of
// bpf_redirect_peer, which an XDP program does not see.
func CountTCX(ifindex ...int) (*Counter, error) {
	c, err := newCounter("count_tcx")
	if err != nil {
		return nil, err
	}
	for _, i := range ifindex {
		l, err := link.AttachTCX(link.TCXOptions{Program: c.program, Interface: i, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("frame counter on device %d: %w", i, err), c.Close())
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

func newCounter(name string) (*Counter, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("frame counter: %w", err)
	}
	coll, err := ebpf.NewCollection(&ebpf.CollectionSpec{
		Maps:      map[string]*ebpf.MapSpec{"counted": spec.Maps["counted"]},
		Programs:  map[string]*ebpf.ProgramSpec{name: spec.Programs[name]},
		Types:     spec.Types,
		ByteOrder: spec.ByteOrder,
	})
	if err != nil {
		return nil, fmt.Errorf("frame counter: %w", err)
	}
	defer coll.Close()
	return &Counter{program: coll.DetachProgram(name), counted: coll.DetachMap("counted")}, nil
}

// Count is the result of a Counter, on all its devices.
type Count struct {
	Frames uint64
	Bytes  uint64 // from the destination address on, without the checksum
}

// Read returns the present count.
func (c *Counter) Read() (Count, error) {
	var per []probeCounted
	if err := c.counted.Lookup(uint32(0), &per); err != nil {
		return Count{}, fmt.Errorf("frame counter: %w", err)
	}
	var sum Count
	for _, v := range per {
		sum.Frames += v.Frames
		sum.Bytes += v.Bytes
	}
	return sum, nil
}

// Close detaches the counter and unloads it.
func (c *Counter) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, c.program.Close(), c.counted.Close())...)
}

// Redirect is a bare XDP forwarder: every frame that enters one device leaves by another,
// without a look at it. It is the upper bound for an XDP switch.
type Redirect struct {
	objects struct {
		Program *ebpf.Program `ebpf:"redirect"`
		WayOut  *ebpf.Map     `ebpf:"way_out"`
	}
	link link.Link
}

// NewRedirect sends every frame that enters device in out of device out. Both
// must be in the network namespace of the calling thread.
func NewRedirect(in, out int) (*Redirect, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	r := &Redirect{}
	if err := spec.LoadAndAssign(&r.objects, nil); err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	if err := r.objects.WayOut.Put(uint32(0), uint32(out)); err != nil {
		return nil, errors.Join(fmt.Errorf("redirect to device %d: %w", out, err), r.Close())
	}
	r.link, err = link.AttachXDP(link.XDPOptions{Program: r.objects.Program, Interface: in, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redirect from device %d: %w", in, err), r.Close())
	}
	return r, nil
}

// Close takes the forwarder off its device and unloads it.
func (r *Redirect) Close() error {
	var errs []error
	if r.link != nil {
		errs = append(errs, r.link.Close())
	}
	return errors.Join(append(errs, r.objects.Program.Close(), r.objects.WayOut.Close())...)
}

// RedirectTCX is a bare tcx forwarder: every frame that enters one device leaves by
// another, without a look at it. It is the upper bound for a tcx switch.
type RedirectTCX struct {
	program *ebpf.Program
	link    link.Link
}

// NewRedirectTCX sends every frame that enters device in out of device out. With toPeer
// it hands the frames directly to the other end of out, a veth whose other end is in
// another network namespace. Both devices must be in the network namespace of the calling
// thread.
func NewRedirectTCX(in, out int, toPeer bool) (*RedirectTCX, error) {
	spec, err := loadProbe()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	var peer uint32
	if toPeer {
		peer = 1
	}
	err = errors.Join(spec.Variables["leave_by"].Set(uint32(out)), spec.Variables["to_peer"].Set(peer))
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	var objects struct {
		Program *ebpf.Program `ebpf:"redirect_tcx"`
	}
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	r := &RedirectTCX{program: objects.Program}
	r.link, err = link.AttachTCX(link.TCXOptions{Program: r.program, Interface: in, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redirect from device %d: %w", in, err), r.Close())
	}
	return r, nil
}

// Close takes the forwarder off its device and unloads it.
func (r *RedirectTCX) Close() error {
	var err error
	if r.link != nil {
		err = r.link.Close()
	}
	return errors.Join(err, r.program.Close())
}

// Pass is an XDP program that passes all frames of a device on to the stack. With it, a
// veth accepts frames from XDP, with or without GRO.
type Pass struct {
	program *ebpf.Program
	link    link.Link
}

// NewPass attaches a Pass to a device of the calling thread's network namespace.
func NewPass(ifindex int) (*Pass, error) {
	const xdpPass = 2 // XDP_PASS of linux/bpf.h
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "pass",
		Type:         ebpf.XDP,
		Flags:        unix.BPF_F_XDP_HAS_FRAGS, // for any MTU
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("pass: %w", err)
	}
	p := &Pass{program: program}
	p.link, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pass on device %d: %w", ifindex, err), program.Close())
	}
	return p, nil
}

// Close takes the program off the device and unloads it.
func (p *Pass) Close() error {
	return errors.Join(p.link.Close(), p.program.Close())
}
