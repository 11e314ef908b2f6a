// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// enum pf_look, and PF_NOT_IP
const (
	lookNotIP  = 1
	lookState  = 2
	lookJudge  = 3
	lookRefuse = 4
	lookSlow   = 6
	readNotIP  = 0xff
)

// enum pf_packet_flag
const (
	pfFragment = 1 << iota
	pfLater
	pfUnknown
	pfOptions
	pfError
	pfNoState
	pfND
)

// filtered turns on pf with all of its features.
func filtered(c *Config, _ []*Port) {
	c.Flags |= uint32(BridgePF)
	c.Pf.Features = uint64(pfFeatures)
	c.Pf.Rules, c.Pf.Groups, c.Pf.Buckets = 1, 1, 1
	c.Pf.Secret = [5]uint64{1, 3, 5, 7, 9}
	c.Pf.FragmentsMax, c.Pf.FragmentTime = 64, 60
}

// A probe runs one function of the datapath by itself, with a bench's tables.
type probe struct {
	s    *bench
	prog *ebpf.Program
	out  []byte // the last frame as the function left it
	// of look: the functions for a packet that is not plain
	read, again *probe
}

// look makes a probe that parses packets as pf_find does.
func (s *bench) look(beside tag, vlan, slots, now int32) *probe {
	s.t.Helper()
	p := s.probe("pf_look_skb", beside, vlan, slots, now)
	p.read, p.again = s.probe("pf_read_slow", beside, now), s.probe("pf_look_slow", beside, slots, now)
	return p
}

// probe makes a program that calls the function with the frame and the arguments, with a
// tag in the packet's metadata unless that is the zero tag.
func (s *bench) probe(function string, beside tag, args ...int32) *probe {
	s.t.Helper()
	object, err := specOf(_KernelBytes)
	if err != nil {
		s.t.Fatal(err)
	}
	spec := object.spec
	if err := s.cfg.setIn(spec); err != nil {
		s.t.Fatal(err)
	}
	prog := spec.Programs[kernelProgBasculeTcx]
	prog.Instructions = s.only(object, function, beside, args)
	fit(spec, &making{Config: &s.cfg})
	spec.Programs = map[string]*ebpf.ProgramSpec{"probe": prog}
	opts := ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{}}
	for name, m := range s.gen.coll.Maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
		opts.MapReplacements[name] = m
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		s.t.Fatalf("%s by itself: %+v", function, err)
	}
	s.t.Cleanup(coll.Close)
	return &probe{s: s, prog: coll.Programs["probe"]}
}

// only returns a program that calls the function, with all functions that it calls.
func (s *bench) only(o *object, function string, beside tag, args []int32) asm.Instructions {
	s.t.Helper()
	bodies, err := o.linker(&s.cfg).functions(function, s.cfg.Features)
	if err != nil {
		s.t.Fatal(err)
	}
	program, err := o.function(kernelProgBasculeTcx)
	if err != nil {
		s.t.Fatal(err)
	}
	stub := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	if beside != (tag{}) {
		stub = append(stub,
			asm.Mov.Imm(asm.R2, int32(beside.tpid>>8|beside.tpid<<8)),
			asm.Mov.Imm(asm.R3, int32(beside.prio<<13|beside.vid)),
			asm.FnSkbVlanPush.Call(),
			asm.Mov.Reg(asm.R1, asm.R6),
		)
	}
	to := asm.R1
	about := btf.FuncMetadata(&bodies[0][0])
	if _, ok := about.Type.(*btf.FuncProto).Params[0].Type.(*btf.Pointer); ok {
		to++ // it takes the frame
	}
	for i, arg := range args {
		stub = append(stub, asm.Mov.Imm(to+asm.Register(i), arg))
	}
	stub = append(stub, asm.Call.Label(function), asm.Return())
	stub[0] = stub[0].WithMetadata(program[0].Metadata)
	return append(stub, slices.Concat(bodies...)...)
}

// call runs the probe on a frame.
func (p *probe) call(frame []byte) uint32 {
	p.s.t.Helper()
	return p.callContext(&skbContext{Ifindex: p.s.rack.near[0]}, frame)
}

func (p *probe) callContext(ctx *skbContext, frame []byte) (code uint32) {
	p.s.t.Helper()
	err := p.s.rack.do(func() (err error) {
		run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+258), Context: ctx}
		code, err = p.prog.Run(&run)
		p.out = run.DataOut
		return err
	})
	if err != nil {
		p.s.t.Fatalf("% x: %v", head(frame), err)
	}
	if p.read == nil || code != lookSlow {
		return code
	}
	switch reason := p.read.callContext(ctx, frame); reason {
	case 0:
		return p.again.callContext(ctx, frame)
	case readNotIP:
		return lookNotIP
	default:
		return lookRefuse | reason<<8
	}
}

// cpu returns the CPU on which the bench's frames run.
func (s *bench) cpu() (cpu int) {
	s.t.Helper()
	if err := s.rack.do(func() error {
		var set unix.CPUSet
		err := unix.SchedGetaffinity(0, &set)
		for !set.IsSet(cpu) && err == nil {
			cpu++
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	return cpu
}

// packet returns what pf has parsed of the last packet.
func (s *bench) packet() kernelPfPacket {
	s.t.Helper()
	return s.packets(nil)[s.cpu()]
}

// packets returns what pf has parsed of the last packet on each CPU. It changes that
// unless change is nil.
func (s *bench) packets(change func(*kernelPfPacket)) (list []kernelPfPacket) {
	s.t.Helper()
	const part = 3 // WORK_PF_PACKET
	m := s.gen.coll.Maps[kernelMapMemory]
	var all []kernelMemory
	if err := m.Lookup(uint32(0), &all); err != nil {
		s.t.Fatal(err)
	}
	for i := range all {
		p := (*kernelPfPacket)(unsafe.Pointer(&all[i].Work[part]))
		if change != nil {
			change(p)
		}
		list = append(list, *p)
	}
	if change == nil {
		return list
	}
	if err := m.Put(uint32(0), all); err != nil {
		s.t.Fatal(err)
	}
	return list
}

// setPacket changes what pf has parsed.
func (s *bench) setPacket(change func(*kernelPfPacket)) {
	s.t.Helper()
	cpu, n := s.cpu(), -1
	s.packets(func(p *kernelPfPacket) {
		if n++; n == cpu {
			change(p)
		}
	})
}

var (
	alice4, bob4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	alice6, bob6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	none6        = netip.IPv6Unspecified()
)

// wire serialises layers, with correct lengths and checksums.
func wire(t testing.TB, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(buf.Bytes())
}

// framed is a frame of a packet, behind tags.
func framed(ip []byte, tags ...tag) []byte {
	b := packet{dst: station(1), src: station(2), tags: tags}.bytes()[:etherHeader+etherTag*len(tags)]
	typ := uint16(0x0800)
	if ip[0]>>4 == 6 {
		typ = 0x86dd
	}
	binary.BigEndian.PutUint16(b[len(b)-2:], typ)
	return append(b, ip...)
}

func ip4Header(proto layers.IPProtocol, options ...layers.IPv4Option) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, TOS: 0x10, Protocol: proto, SrcIP: alice4.AsSlice(), DstIP: bob4.AsSlice(), Options: options}
}

func ip6Header(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: 0x10, NextHeader: next, SrcIP: alice6.AsSlice(), DstIP: bob6.AsSlice()}
}

// someBytes is a payload of n bytes.
func someBytes(n int) gopacket.Payload { return bytes.Repeat([]byte{0x5a}, n) }

// These are headers of upper layers, with their checksum for an IP header.
func tcpHeader(ip gopacket.NetworkLayer, flags uint8, seq, ack uint32) *layers.TCP {
	h := &layers.TCP{
		SrcPort: 1234, DstPort: 80, Seq: seq, Ack: ack, Window: 5000,
		FIN: flags&1 != 0, SYN: flags&2 != 0, RST: flags&4 != 0, PSH: flags&8 != 0, ACK: flags&16 != 0,
	}
	_ = h.SetNetworkLayerForChecksum(ip)
	return h
}

func udpHeader(ip gopacket.NetworkLayer) *layers.UDP {
	h := &layers.UDP{SrcPort: 1234, DstPort: 53}
	_ = h.SetNetworkLayerForChecksum(ip)
	return h
}

func icmp6Header(ip gopacket.NetworkLayer, typ, code uint8) *layers.ICMPv6 {
	h := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(typ, code)}
	_ = h.SetNetworkLayerForChecksum(ip)
	return h
}

func icmp4Header(typ, code uint8, id uint16) *layers.ICMPv4 {
	return &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: id, Seq: 1}
}

// extensionHeader is an IPv6 extension header with the given bytes.
func extensionHeader(b ...byte) gopacket.Payload { return b }

const (
	nextHopByHop = layers.IPProtocol(0)
	nextRouting  = layers.IPProtocol(43)
	nextFragment = layers.IPProtocol(44)
	nextAH       = layers.IPProtocol(51)
	nextICMP6    = layers.IPProtocol(58)
	nextDstOpts  = layers.IPProtocol(60)
)

// words returns an address in the form of keys.
func words(a netip.Addr) (w [4]uint32) {
	b := a.As16()
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}

func swap16(n uint16) uint16 { return n>>8 | n<<8 }

// A pfReading is the expected result of parsing a packet.
type pfReading struct {
	src, dst     netip.Addr // of its key
	sport, dport uint16     // in network byte order; the identifier for ICMP
	kind         uint16     // of ICMP queries
	proto        uint8
	flags        uint8
	icmp         uint16
	tcpFlags     uint8
	payload      uint32
	quoted       *pfReading
	quotedSeq    uint32
}

func key16(src, dst netip.Addr, r pfReading) (k pfKey) {
	a, b := src.As16(), dst.As16()
	swapped := bytes.Compare(keyOrder(a), keyOrder(b)) > 0
	own := r.proto == 6 || r.proto == 17
	if a == b && own {
		swapped = swap16(r.sport) > swap16(r.dport)
	}
	k.address = [2][4]uint32{words(src), words(dst)}
	k.port = [2]uint16{swap16(r.sport), swap16(r.dport)}
	if !own {
		k.port[1] = r.kind
	}
	if swapped {
		k.address[0], k.address[1] = k.address[1], k.address[0]
		k.side = 1
		if own {
			k.port[0], k.port[1] = k.port[1], k.port[0]
		}
	}
	k.proto = r.proto
	return k
}

// keyOrder returns an address in the order in which keys are compared: as four numbers in
// the machine's byte order, the last one first.
func keyOrder(a [16]byte) []byte {
	slices.Reverse(a[:])
	return a[:]
}

type pfKey struct {
	address [2][4]uint32
	port    [2]uint16
	proto   uint8
	side    uint8
}

// expectReading compares what pf has parsed.
func expectReading(t *testing.T, what string, got kernelPfPacket, want pfReading) {
	t.Helper()
	k := pfKey{got.Key.Address, got.Key.Port, got.Key.Proto, got.Side}
	if w := key16(want.src, want.dst, want); k != w {
		t.Errorf("%s: key %x, want %x", what, k, w)
	}
	if got.Flags != want.flags {
		t.Errorf("%s: flags %#x, want %#x", what, got.Flags, want.flags)
	}
	if got.Proto != want.proto || got.Tos != 0x10 {
		t.Errorf("%s: protocol %d TOS %#x, want %d and 0x10", what, got.Proto, got.Tos, want.proto)
	}
	if (want.proto == 1 || want.proto == 58) && got.Icmp != want.icmp {
		t.Errorf("%s: ICMP %#x, want %#x", what, got.Icmp, want.icmp)
	}
	if want.proto == 6 && (got.TcpFlags != want.tcpFlags || want.flags&pfLater == 0 && got.Payload != want.payload) {
		t.Errorf("%s: TCP flags %#x, %d bytes, want %#x and %d", what, got.TcpFlags, got.Payload, want.tcpFlags, want.payload)
	}
	if q := want.quoted; q != nil {
		k := pfKey{got.Quoted.Address, got.Quoted.Port, got.Quoted.Proto, got.QuotedSide}
		if w := key16(q.src, q.dst, *q); k != w {
			t.Errorf("%s: quoted key %x, want %x", what, k, w)
		}
		if q.proto == 6 && got.QuotedSeq != want.quotedSeq {
			t.Errorf("%s: quoted sequence number %d, want %d", what, got.QuotedSeq, want.quotedSeq)
		}
	}
}

// A readCase is a packet that pf parses.
type readCase struct {
	name string
	ip   []byte
	want pfReading
	whom uint32 // the reason for refusing it, if it is refused
}

func both4(proto uint8, r pfReading) pfReading { r.src, r.dst, r.proto = alice4, bob4, proto; return r }
func both6(proto uint8, r pfReading) pfReading { r.src, r.dst, r.proto = alice6, bob6, proto; return r }

// unreachable4 is bob's ICMP error about a packet.
func unreachable4(t testing.TB, typ uint8, quoted []byte) []byte {
	ip := ip4Header(layers.IPProtocolICMPv4)
	ip.SrcIP, ip.DstIP = bob4.AsSlice(), alice4.AsSlice()
	return wire(t, ip, icmp4Header(typ, 1, 0), gopacket.Payload(quoted))
}

func unreachable6(t testing.TB, typ uint8, quoted []byte) []byte {
	ip := ip6Header(nextICMP6)
	ip.SrcIP, ip.DstIP = bob6.AsSlice(), alice6.AsSlice()
	return wire(t, ip, icmp6Header(ip, typ, 1), append(gopacket.Payload{0, 0, 0, 0}, quoted...))
}

// nd is a neighbour solicitation (135) or advertisement for a target.
func nd(t testing.TB, typ uint8, src, dst, target netip.Addr) []byte {
	ip := ip6Header(nextICMP6)
	ip.HopLimit, ip.SrcIP, ip.DstIP = 255, src.AsSlice(), dst.AsSlice()
	b := make([]byte, 4)
	return wire(t, ip, icmp6Header(ip, typ, 0), append(gopacket.Payload(b), target.AsSlice()...))
}

const (
	reasonShort     = uint32(kernelDropReasonDROP_PF_SHORT)
	reasonFragment  = uint32(kernelDropReasonDROP_PF_FRAGMENT)
	reasonOptions   = uint32(kernelDropReasonDROP_PF_OPTIONS)
	reasonNormalize = uint32(kernelDropReasonDROP_PF_NORMALIZE)
)

func readCases(t testing.TB) []readCase {
	syn := both4(6, pfReading{sport: 1234, dport: 80, tcpFlags: 2, payload: 10})
	syn6 := both6(6, pfReading{sport: 1234, dport: 80, tcpFlags: 2, payload: 10})
	dns, dns6 := both4(17, pfReading{sport: 1234, dport: 53}), both6(17, pfReading{sport: 1234, dport: 53})
	echo := both4(1, pfReading{sport: 77, kind: 8, icmp: 8 << 8})
	with := func(r pfReading, flags uint8) pfReading { r.flags |= flags; return r }
	h4, h6 := ip4Header(layers.IPProtocolTCP), ip6Header(layers.IPProtocolTCP)
	tcp4 := wire(t, h4, tcpHeader(h4, 2, 1000, 0), someBytes(10))
	tcp6 := wire(t, h6, tcpHeader(h6, 2, 1000, 0), someBytes(10))
	u4, u6 := ip4Header(layers.IPProtocolUDP), ip6Header(layers.IPProtocolUDP)
	udp4, udp6 := wire(t, u4, udpHeader(u4), someBytes(10)), wire(t, u6, udpHeader(u6), someBytes(10))
	echo4 := wire(t, ip4Header(layers.IPProtocolICMPv4), icmp4Header(8, 0, 77), someBytes(10))

	// an IPv6 packet with extension headers before TCP or another
	chain := func(first layers.IPProtocol, upper []byte, ext ...gopacket.Payload) []byte {
		list := []gopacket.SerializableLayer{ip6Header(first)}
		for _, e := range ext {
			list = append(list, e)
		}
		return wire(t, append(list, gopacket.Payload(upper))...)
	}
	up := tcp6[40:]
	hbh := extensionHeader(6, 0, 1, 4, 0, 0, 0, 0)
	dst := extensionHeader(6, 0, 1, 4, 0, 0, 0, 0)
	router := extensionHeader(58, 0, 5, 2, 0, 0, 1, 0)
	long := func(next, words byte) gopacket.Payload {
		b := make([]byte, (int(words)+1)*8)
		b[0], b[1], b[2], b[3] = next, words, 1, byte(len(b)-4)
		return b
	}
	// headers are n headers of one kind, the last one before TCP
	headers := func(n int, kind byte, make func(next byte) gopacket.Payload) (list []gopacket.Payload) {
		for range n - 1 {
			list = append(list, make(kind))
		}
		return append(list, make(6))
	}
	option := func(next byte) gopacket.Payload { return extensionHeader(next, 0, 1, 4, 0, 0, 0, 0) }
	mld := icmp6Header(ip6Header(nextICMP6), 143, 0)
	mldBody := wire(t, ip6Header(nextICMP6), mld, someBytes(12))[40:]
	igmp := []byte{0x16, 0, 0, 0, 224, 1, 2, 3}
	alert := layers.IPv4Option{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}
	nop := layers.IPv4Option{OptionType: 1, OptionLength: 1}
	record := layers.IPv4Option{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}
	opt4 := ip4Header(layers.IPProtocolTCP, record)
	ah := func(next byte) gopacket.Payload { return append(extensionHeader(next, 4), make([]byte, 22)...) }
	auth := func(n int) []byte {
		var b gopacket.Payload
		for _, h := range headers(n, 51, ah) {
			b = append(b, h...)
		}
		return wire(t, ip4Header(51), b, gopacket.Payload(tcp4[20:]))
	}
	bare := both4(0, pfReading{})
	proto := func(r pfReading, p uint8) pfReading { r.proto = p; return r }
	err4 := func(typ uint8, q pfReading, seq uint32) pfReading {
		return pfReading{src: bob4, dst: alice4, proto: 1, icmp: uint16(typ)<<8 | 1, flags: pfError | pfNoState, quoted: &q, quotedSeq: seq}
	}
	err6 := func(typ uint8, q pfReading, seq uint32) pfReading {
		return pfReading{src: bob6, dst: alice6, proto: 58, icmp: uint16(typ)<<8 | 1, flags: pfError | pfNoState, quoted: &q, quotedSeq: seq}
	}
	plain := func(r pfReading, icmp uint16) pfReading { r.icmp, r.flags = icmp, pfNoState; return r }
	neighbour := func(src, dst, from, to netip.Addr, typ uint16) pfReading {
		return pfReading{src: src, dst: dst, proto: 58, kind: 135, icmp: typ << 8, flags: pfND, quoted: &pfReading{src: from, dst: to, proto: 58}}
	}
	solicited, all := netip.MustParseAddr("ff02::1:ff00:2"), netip.MustParseAddr("ff02::1")
	cut := func(b []byte, n int) []byte { return b[:n] }
	other := slices.Clone(tcp4)
	other[12] = 11 // another sender's
	fragmented := slices.Clone(tcp4)
	fragmented[7] = 5
	atomic := chain(nextFragment, up, extensionHeader(6, 0, 0, 0, 1, 2, 3, 4))
	return []readCase{
		{"TCP", tcp4, syn, 0},
		{"TCP over IPv6", tcp6, syn6, 0},
		{"UDP", udp4, dns, 0},
		{"UDP over IPv6", udp6, dns6, 0},
		{"echo", echo4, echo, 0},
		{"record route", wire(t, opt4, tcpHeader(opt4, 2, 1000, 0), someBytes(10)), with(syn, pfOptions), 0},
		{"router alert of IGMP", wire(t, ip4Header(2, alert), gopacket.Payload(igmp)), proto(bare, 2), 0},
		{"router alert of TCP", wire(t, ip4Header(6, alert), tcpHeader(h4, 2, 1000, 0), someBytes(10)), with(syn, pfOptions), 0},
		{"IGMP with more options", wire(t, ip4Header(2, alert, nop), gopacket.Payload(igmp)), with(proto(bare, 2), pfOptions), 0},
		{"GRE", wire(t, ip4Header(47), someBytes(20)), proto(bare, 47), 0},
		{"ESP over IPv6", wire(t, ip6Header(50), someBytes(20)), both6(50, pfReading{}), 0},
		{"nothing", wire(t, ip6Header(59)), both6(59, pfReading{}), 0},
		{"ICMPv6 over IPv4", wire(t, ip4Header(58), someBytes(20)), pfReading{}, reasonNormalize},
		{"ICMP over IPv6", wire(t, ip6Header(1), someBytes(20)), pfReading{}, reasonNormalize},
		{"AH", wire(t, ip4Header(51), ah(6), gopacket.Payload(tcp4[20:])), syn, 0},
		{"AH over IPv6", chain(nextAH, up, ah(6)), syn6, 0},
		{"hop by hop", chain(nextHopByHop, up, hbh), with(syn6, pfOptions), 0},
		{"routing", chain(nextRouting, up, extensionHeader(6, 0, 4, 0, 0, 0, 0, 0)), with(syn6, pfOptions), 0},
		{"routing type 0", chain(nextRouting, up, extensionHeader(6, 0, 0, 0, 0, 0, 0, 0)), syn6, reasonOptions},
		{"destination options", chain(nextDstOpts, up, dst), with(syn6, pfOptions), 0},
		{"long options", chain(nextDstOpts, up, long(6, 5)), with(syn6, pfOptions), 0},
		{"two headers", chain(nextHopByHop, up, extensionHeader(60, 0, 1, 4, 0, 0, 0, 0), dst), with(syn6, pfOptions), 0},
		{"hop by hop, not first", chain(nextDstOpts, up, extensionHeader(0, 0, 1, 4, 0, 0, 0, 0), hbh), syn6, reasonOptions},
		{"nineteen headers", chain(nextDstOpts, up, headers(19, 60, option)...), with(syn6, pfOptions), 0},
		{"twenty headers", chain(nextDstOpts, up, headers(20, 60, option)...), syn6, reasonOptions},
		{"nine AH", auth(9), syn, 0},
		{"nineteen AH", auth(19), syn, 0},
		{"twenty AH", auth(20), syn, reasonOptions},
		{"nineteen AH over IPv6", chain(nextAH, up, headers(19, 51, ah)...), syn6, 0},
		{"twenty AH over IPv6", chain(nextAH, up, headers(20, 51, ah)...), syn6, reasonOptions},
		{"MLD", chain(nextHopByHop, mldBody, router), plain(both6(58, pfReading{}), 143<<8), 0},
		{"MLD, padding first", chain(nextHopByHop, mldBody, extensionHeader(58, 0, 1, 0, 5, 2, 0, 0)), plain(both6(58, pfReading{}), 143<<8), 0},
		{"router alert of TCP over IPv6", chain(nextHopByHop, up, extensionHeader(6, 0, 5, 2, 0, 0, 1, 0)), with(syn6, pfOptions), 0},
		{"MLD with another option", chain(nextHopByHop, mldBody, extensionHeader(58, 0, 1, 4, 0, 0, 0, 0)), with(plain(both6(58, pfReading{}), 143<<8), pfOptions), 0},
		{"all in one fragment", atomic, syn6, 0},
		{"two fragment headers", chain(nextFragment, up, extensionHeader(44, 0, 0, 0, 1, 2, 3, 4), extensionHeader(6, 0, 0, 0, 1, 2, 3, 4)), syn6, reasonFragment},
		{"unreachable, TCP", unreachable4(t, 3, tcp4), err4(3, syn, 1000), 0},
		{"unreachable, 8 bytes", unreachable4(t, 3, cut(tcp4, 28)), err4(3, syn, 1000), 0},
		{"unreachable, 7 bytes", unreachable4(t, 3, cut(tcp4, 27)), pfReading{}, reasonShort},
		{"unreachable, no packet", unreachable4(t, 3, cut(tcp4, 19)), pfReading{}, reasonShort},
		{"unreachable, nothing", unreachable4(t, 3, nil), pfReading{}, reasonShort},
		{"unreachable, another version", unreachable4(t, 3, tcp6), pfReading{}, reasonShort},
		{"source quench, UDP", unreachable4(t, 4, udp4), err4(4, dns, 0), 0},
		{"time exceeded, echo", unreachable4(t, 11, echo4), err4(11, echo, 0), 0},
		{"parameter problem, options", unreachable4(t, 12, wire(t, opt4, tcpHeader(opt4, 2, 1000, 0))), err4(12, syn, 1000), 0},
		{"unreachable, GRE", unreachable4(t, 3, wire(t, ip4Header(47), someBytes(20))), err4(3, proto(bare, 47), 0), 0},
		{"unreachable, a later fragment", unreachable4(t, 3, fragmented), pfReading{}, reasonFragment},
		{"unreachable, not for the sender", unreachable4(t, 3, other), pfReading{src: bob4, dst: alice4, proto: 1, icmp: 3<<8 | 1, flags: pfNoState}, 0},
		{"unreachable, an error", unreachable4(t, 3, unreachableFrom(t)), pfReading{src: bob4, dst: alice4, proto: 1, icmp: 3<<8 | 1, flags: pfNoState}, 0},
		{"ICMPv6 unreachable", unreachable6(t, 1, tcp6), err6(1, syn6, 1000), 0},
		{"too big", unreachable6(t, 2, udp6), err6(2, dns6, 0), 0},
		{"time exceeded over IPv6", unreachable6(t, 3, chain(nextHopByHop, up, hbh)), err6(3, syn6, 1000), 0},
		{"parameter problem, routing type 0", unreachable6(t, 4, chain(nextRouting, up, extensionHeader(6, 0, 0, 0, 0, 0, 0, 0))), pfReading{}, reasonOptions},
		{"too big, cut", unreachable6(t, 2, udp6[:47]), pfReading{}, reasonShort},
		{"redirect, TCP", unreachable4(t, 5, tcp4), err4(5, syn, 1000), 0},
		{"redirect, UDP", unreachable4(t, 5, udp4), err4(5, dns, 0), 0},
		{"redirect, a later fragment", unreachable4(t, 5, fragmented), pfReading{}, reasonFragment},
		{"redirect, 7 bytes", unreachable4(t, 5, cut(tcp4, 27)), pfReading{}, reasonShort},
		{"redirect, not for the sender", wire(t, ip4Header(1), icmp4Header(5, 1, 0), gopacket.Payload(tcp4)), plain(both4(1, pfReading{}), 5<<8|1), 0},
		{"router solicitation", wire(t, ip6Header(58), icmp6Header(ip6Header(58), 133, 0), someBytes(4)), plain(both6(58, pfReading{}), 133<<8), 0},
		{"router advertisement", wire(t, ip6Header(58), icmp6Header(ip6Header(58), 134, 0), someBytes(12)), plain(both6(58, pfReading{}), 134<<8), 0},
		{"solicitation", nd(t, 135, alice6, solicited, bob6), neighbour(alice6, bob6, alice6, solicited, 135), 0},
		{"advertisement", nd(t, 136, bob6, alice6, bob6), neighbour(bob6, alice6, bob6, alice6, 136), 0},
		{"advertisement of another", nd(t, 136, none6, alice6, bob6), neighbour(bob6, alice6, none6, alice6, 136), 0},
		{"is it taken?", nd(t, 135, none6, solicited, bob6), neighbour(none6, bob6, none6, solicited, 135), 0},
		{"it is taken", nd(t, 136, bob6, all, bob6), neighbour(bob6, none6, bob6, all, 136), 0},
		{"solicitation, cut", nd(t, 135, alice6, solicited, bob6)[:40], pfReading{}, reasonShort},
		{"IPv4 of version 5", append([]byte{0x55}, tcp4[1:]...), pfReading{}, reasonShort},
		{"short header", append([]byte{0x44}, tcp4[1:]...), pfReading{}, reasonShort},
	}
}

// unreachableFrom is alice's error about a packet of bob's.
func unreachableFrom(t testing.TB) []byte {
	ip := ip4Header(layers.IPProtocolUDP)
	ip.SrcIP, ip.DstIP = bob4.AsSlice(), alice4.AsSlice()
	return wire(t, ip4Header(layers.IPProtocolICMPv4), icmp4Header(3, 1, 0), gopacket.Payload(wire(t, ip, udpHeader(ip))))
}

// Packets of every kind are parsed correctly: without a tag, with tags in the packet, and
// with one in its metadata.
func TestPFReads(t *testing.T) {
	s := newBench(t, 2, filtered)
	bare := s.look(tag{}, 0, 1, benchNow)
	beside := s.look(tag{typeVLAN, 10, 3}, 10, 1, benchNow)
	ways := []struct {
		name  string
		probe *probe
		tags  []tag
		vlan  uint16
	}{
		{"", bare, nil, 0},
		{" behind a tag", bare, []tag{{typeVLAN, 10, 0}}, 0},
		{" behind two tags", bare, []tag{{typeQinQ, 10, 0}, {typeVLAN, 11, 0}}, 0},
		{" behind three tags", bare, []tag{{typeQinQ, 10, 0}, {typeVLAN, 11, 0}, {typeVLAN, 12, 0}}, 0},
		{" beside a tag", beside, nil, 10},
		{" behind a tag and beside one", beside, []tag{{typeVLAN, 11, 0}}, 10},
	}
	for _, tt := range readCases(t) {
		for _, w := range ways {
			what := tt.name + w.name
			got := w.probe.call(framed(tt.ip, w.tags...))
			if tt.whom != 0 {
				if got != lookRefuse|tt.whom<<8 {
					t.Errorf("%s: %#x, want it refused for %d", what, got, tt.whom)
				}
				continue
			}
			if got != lookJudge {
				t.Errorf("%s: %#x, want it judged", what, got)
				continue
			}
			p := s.packet()
			expectReading(t, what, p, tt.want)
			if p.Key.Vlan != w.vlan || p.Length != uint32(len(tt.ip)) || p.L3 != uint32(etherHeader+etherTag*len(w.tags)) {
				t.Errorf("%s: VLAN %d, %d bytes at %d", what, p.Key.Vlan, p.Length, p.L3)
			}
		}
	}
}

// A frame that is truncated anywhere is refused, or it is not IP.
func TestPFReadsCut(t *testing.T) {
	s := newBench(t, 2, filtered)
	look := s.look(tag{}, 0, 1, benchNow)
	for _, tt := range readCases(t) {
		for _, tags := range [][]tag{nil, {{typeVLAN, 10, 0}}} {
			frame := framed(tt.ip, tags...)
			first := etherHeader + 1
			if tags == nil { // the kernel makes no packet shorter than its header
				first = min(etherHeader+map[byte]int{4: 20, 5: 20, 6: 40}[tt.ip[0]>>4], len(frame))
			}
			for n := first; n < len(frame); n++ {
				got := look.call(frame[:n])
				if got&0xff != lookRefuse && !(got == lookNotIP && n < etherHeader+etherTag*len(tags)) {
					t.Errorf("%s, %d of %d bytes: %#x, want it refused", tt.name, n, len(frame), got)
				}
			}
			// and so is a frame whose packet's length is less than its headers need
			if tt.whom != 0 {
				continue
			}
			for n := range len(tt.ip) {
				lie := slices.Clone(frame)
				ip := lie[len(frame)-len(tt.ip):]
				if ip[0]>>4 == 4 {
					binary.BigEndian.PutUint16(ip[2:], uint16(n))
				} else if n >= 40 {
					binary.BigEndian.PutUint16(ip[4:], uint16(n-40))
				}
				got := look.call(lie)
				if n < 20 && ip[0]>>4 == 4 && got != lookRefuse|reasonShort<<8 {
					t.Errorf("%s that says it has %d bytes: %#x, want it refused", tt.name, n, got)
				}
				if got == lookJudge && ip[0]>>4 == 4 && s.packet().L4 > s.packet().L3+uint32(n) {
					t.Errorf("%s that says it has %d bytes: read beyond them", tt.name, n)
				}
			}
		}
	}
}

// Both parsers read plain packets the same way.
func TestPFReadersAgree(t *testing.T) {
	s := newBench(t, 2, filtered)
	plain := s.look(tag{}, 0, 1, benchNow)
	slow := s.probe("pf_read_slow", tag{}, benchNow)
	r := rand.New(rand.NewPCG(1, 2))
	cases := readCases(t)[:5]
	for range 2000 {
		frame := framed(slices.Clone(cases[r.IntN(len(cases))].ip))
		for range r.IntN(4) { // any byte that does not change the kind of packet
			at := etherHeader + 12 + r.IntN(len(frame)-etherHeader-12)
			if frame[14]>>4 == 6 {
				at = max(at, etherHeader+8)
			}
			frame[at] = byte(r.Uint32())
		}
		got := plain.call(frame)
		first := s.packet()
		reason := slow.call(frame)
		second := s.packet()
		if got == lookRefuse|reason<<8 && reason != 0 {
			continue
		}
		if got != lookJudge || reason != 0 {
			t.Fatalf("% x: %#x, read byte by byte %#x", frame, got, reason)
		}
		if first.Proto != 6 {
			first.TcpFlags = second.TcpFlags
		}
		if first.Proto != 1 && first.Proto != 58 {
			first.Icmp = second.Icmp
		}
		if first != second {
			t.Fatalf("% x:\n%+v, read byte by byte\n%+v", frame, first, second)
		}
	}
}

// The kernel's own large packets have no length field.
func TestPFReadsGSO(t *testing.T) {
	s := newBench(t, 2, filtered)
	look := s.look(tag{}, 0, 1, benchNow)
	for _, tt := range readCases(t)[:2] {
		frame := framed(slices.Clone(tt.ip))
		if frame[14]>>4 == 4 {
			frame[16], frame[17] = 0, 0
		} else {
			frame[18], frame[19] = 0, 0
		}
		gso := &skbContext{Ifindex: s.rack.near[0], GsoSize: 5, GsoSegs: 2}
		if got := look.callContext(gso, frame); got != lookJudge {
			t.Errorf("%s, GSO without a length: %#x, want it judged", tt.name, got)
		} else {
			expectReading(t, tt.name, s.packet(), tt.want)
		}
		if got := look.call(frame); got != lookRefuse|reasonShort<<8 {
			t.Errorf("%s without a length: %#x, want it refused", tt.name, got)
		}
	}
	// Linux before 7.0 adds the jumbogram option to IPv6
	h := ip6Header(nextHopByHop)
	seg := wire(t, ip6Header(layers.IPProtocolTCP), tcpHeader(ip6Header(6), 2, 1000, 0), someBytes(10))[40:]
	frame := framed(wire(t, h, extensionHeader(6, 0, 0xc2, 4, 0, 1, 0, 0), gopacket.Payload(seg)))
	frame[18], frame[19] = 0, 0
	gso := &skbContext{Ifindex: s.rack.near[0], GsoSize: 5, GsoSegs: 2}
	if got := look.callContext(gso, frame); got != lookJudge {
		t.Errorf("jumbo GSO: %#x, want it judged", got)
	}
	expectReading(t, "jumbo GSO", s.packet(), both6(6, pfReading{sport: 1234, dport: 80, tcpFlags: 2, payload: 10}))
}

// cutIP4 splits a packet into fragments at multiples of 8 bytes of its data.
func cutIP4(ip []byte, id uint16, at ...int) (list [][]byte) {
	at = append(append([]int{0}, at...), len(ip)-20)
	for i, from := range at[:len(at)-1] {
		f := append(slices.Clone(ip[:20]), ip[20+from:20+at[i+1]]...)
		off := uint16(from / 8)
		if i < len(at)-2 {
			off |= 0x2000
		}
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		binary.BigEndian.PutUint16(f[4:], id)
		binary.BigEndian.PutUint16(f[6:], off)
		list = append(list, f)
	}
	return list
}

// cutIP6 does the same for the data behind an IPv6 header.
func cutIP6(ip []byte, id uint32, at ...int) (list [][]byte) {
	at = append(append([]int{0}, at...), len(ip)-40)
	for i, from := range at[:len(at)-1] {
		f := append(slices.Clone(ip[:40]), ip[6], 0)
		off := uint16(from)
		if i < len(at)-2 {
			off |= 1
		}
		f = binary.BigEndian.AppendUint16(f, off)
		f = binary.BigEndian.AppendUint32(f, id)
		f = append(f, ip[40+from:40+at[i+1]]...)
		f[6] = 44
		binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		list = append(list, f)
	}
	return list
}

// Later fragments get the ports of the first one, if that came before, as long as they are
// remembered.
func TestPFFragments(t *testing.T) {
	cases := readCases(t)
	for _, tt := range []struct {
		readCase
		size int
	}{{cases[0], 24}, {cases[1], 24}, {cases[2], 8}, {cases[3], 8}, {cases[4], 16}} {
		for _, vlan := range []int32{0, 10} {
			s := newBench(t, 2, filtered)
			look := s.look(tag{}, vlan, 1, benchNow)
			parts := func(id int) [][]byte {
				if tt.ip[0]>>4 == 6 {
					return cutIP6(tt.ip, uint32(id), tt.size)
				}
				return cutIP4(tt.ip, uint16(id), tt.size)
			}
			want := tt.want
			want.flags = pfFragment
			want.payload = 4
			read := func(what string, look *probe, ip []byte, want pfReading) {
				t.Helper()
				if got := look.call(framed(ip)); got != lookJudge {
					t.Errorf("%s, %s: %#x, want it judged", tt.name, what, got)
				}
				expectReading(t, tt.name+", "+what, s.packet(), want)
			}
			later, unknown := want, want
			later.flags |= pfLater | pfNoState
			unknown.flags = later.flags | pfUnknown
			unknown.sport, unknown.dport, unknown.kind, unknown.icmp, unknown.tcpFlags = 0, 0, 0, 0, 0
			read("the later before the first", look, parts(7)[1], unknown)
			read("the first", look, parts(7)[0], want)
			read("the later", look, parts(7)[1], later)
			read("the later again", look, parts(7)[1], later)
			read("the later of another", look, parts(8)[1], unknown)
			elsewhere := s.look(tag{}, vlan+1, 1, benchNow)
			read("the later in another VLAN", elsewhere, parts(7)[1], unknown)
			read("within the time", s.look(tag{}, vlan, 1, benchNow+59), parts(7)[1], later)
			read("after it", s.look(tag{}, vlan, 1, benchNow+60), parts(7)[1], unknown)
		}
	}
}

// Fragments that no packet can be split into are dropped.
func TestPFBadFragments(t *testing.T) {
	s := newBench(t, 2, filtered)
	look := s.look(tag{}, 0, 1, benchNow)
	cases := readCases(t)
	tcp4, tcp6, udp4, echo4 := cases[0].ip, cases[1].ip, cases[2].ip, cases[4].ip
	solicitation := nd(t, 135, alice6, bob6, bob6)
	longer6 := wire(t, ip6Header(17), udpHeader(ip6Header(17)), someBytes(40))
	off4 := func(ip []byte, off uint16) []byte {
		ip = slices.Clone(ip)
		binary.BigEndian.PutUint16(ip[6:], off)
		return ip
	}
	off6 := func(ip []byte, off uint16) []byte {
		ip = slices.Clone(ip)
		binary.BigEndian.PutUint16(ip[42:], off)
		return ip
	}
	longer := func(ip []byte, n int) []byte {
		ip = append(slices.Clone(ip), make([]byte, n)...)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		return ip
	}
	tests := []struct {
		name string
		ip   []byte
	}{
		{"TCP's first 8 bytes", cutIP4(tcp4, 1, 8)[0]},
		{"TCP's first 16 bytes", cutIP4(tcp4, 1, 16)[0]},
		{"TCP's first 16 bytes over IPv6", cutIP6(tcp6, 1, 16)[0]},
		{"TCP from its byte 8 on", cutIP4(tcp4, 1, 8)[1]},
		{"TCP from its byte 16 on", cutIP4(tcp4, 1, 16)[1]},
		{"TCP from its byte 8 on over IPv6", cutIP6(tcp6, 1, 8)[1]},
		{"not a multiple of 8", off4(longer(udp4, 1), 0x2000)},
		{"later, not a multiple of 8", off4(longer(udp4, 1), 0x2001)},
		{"beyond the largest packet", off4(udp4, 0x1fff)},
		{"empty", off4(longer(udp4[:20], 0), 0x0005)},
		{"a solicitation's first", cutIP6(solicitation, 1, 24)[0]},
		{"a solicitation all in one", off6(cutIP6(solicitation, 1)[0], 0)},
		{"beyond the largest over IPv6", off6(cutIP6(longer6, 1, 24)[1], 0xfff8)},
		{"an error without what it quotes", off4(longer(wire(t, ip4Header(1), icmp4Header(3, 1, 0)), 16), 0x2000)},
	}
	for _, tt := range tests {
		if got := look.call(framed(tt.ip)); got != lookRefuse|reasonFragment<<8 {
			t.Errorf("%s: %#x, want it refused as a fragment", tt.name, got)
		}
	}
	if got := look.call(framed(cutIP4(echo4, 1, 8)[0])); got != lookJudge {
		t.Errorf("an echo's first 8 bytes: %#x, want it judged", got)
	}
	// in a protocol with a longer header, this fragment would begin within the header
	if got := look.call(framed(cutIP4(udp4, 1, 8)[1])); got != lookJudge {
		t.Errorf("UDP from its byte 8 on: %#x, want it judged", got)
	}
}

// An error matches its connection if the quoted packet may have been sent by its sender.
func TestPFQuotedFits(t *testing.T) {
	const known = 0x80
	type state struct {
		flags       uint16
		lo, hi      uint32
		window      uint16 // of the other side
		scale, mine uint8
		diff        uint32
	}
	usual := state{lo: 5000, hi: 9000, window: 100, scale: known | 3, mine: known | 2}
	change := func(f func(*state)) state { s := usual; f(&s); return s }
	tests := []struct {
		name string
		state
		seq  uint32
		fits uint32
	}{
		{"the last", usual, 5000, 1},
		{"the first of the window", usual, 5000 - 800, 1},
		{"before it", usual, 5000 - 801, 0},
		{"the last that may be sent", usual, 9000, 1},
		{"behind it", usual, 9001, 0},
		{"no scale", change(func(s *state) { s.scale = known }), 5000 - 101, 0},
		{"no SYN seen", change(func(s *state) { s.scale, s.mine = 0, 0 }), 1<<32 + 5000 - 100<<14, 1},
		{"far before it", change(func(s *state) { s.scale, s.mine = 0, 0 }), 1<<32 + 5000 - 100<<14 - 1, 0},
		{"around zero", change(func(s *state) { s.lo, s.hi = 100, 200 }), ^uint32(0), 1},
		{"sloppy", change(func(s *state) { s.flags = uint16(kernelPfStateFlagPF_STATE_SLOPPY) }), 1 << 31, 1},
		{"rewritten", change(func(s *state) { s.flags, s.diff = uint16(kernelPfStateFlagPF_STATE_REWRITE), 1<<20 }), 1<<20 + 5000, 1},
		{"rewritten, and not so quoted", change(func(s *state) { s.flags, s.diff = uint16(kernelPfStateFlagPF_STATE_REWRITE), 1<<20 }), 5000, 0},
	}
	s := newBench(t, 2, filtered)
	look := s.look(tag{}, 0, 1, benchNow)
	fits := s.probe("pf_quoted_fits", tag{}, 0)
	for _, tt := range tests {
		h := ip4Header(layers.IPProtocolTCP)
		look.call(framed(unreachable4(t, 3, wire(t, h, tcpHeader(h, 16, tt.seq, 1)))))
		side := s.packet().QuotedSide
		var st kernelPfState
		st.Flags = tt.flags
		st.Peer[side].Lo, st.Peer[side].Hi, st.Peer[side].Scale = tt.lo, tt.hi, tt.mine
		st.Peer[1-side].MaxWin, st.Peer[1-side].Scale = tt.window, tt.scale
		st.Diff[side] = tt.diff
		if err := s.gen.coll.Maps[kernelMapPfStates].Put(uint32(0), st); err != nil {
			t.Fatal(err)
		}
		if got := fits.call(framed(wire(t, h, tcpHeader(h, 16, 0, 0)))); got != tt.fits {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.fits)
		}
	}
}

// The state of a known connection lets an error about it pass.
func TestPFErrorFindsState(t *testing.T) {
	s := newBench(t, 2, filtered)
	look := s.look(tag{}, 0, 1, benchNow)
	for _, tt := range readCases(t) {
		if tt.want.flags&pfError == 0 || tt.whom != 0 {
			continue
		}
		look.call(framed(tt.ip))
		p := s.packet()
		st := kernelPfState{Used: benchNow}
		st.Key.Address, st.Key.Port, st.Key.Proto = p.Quoted.Address, p.Quoted.Port, p.Quoted.Proto
		s.putState(st)
		if got := look.call(framed(tt.ip)); got != lookState {
			t.Errorf("%s: %#x, want the state found", tt.name, got)
		}
		s.dropStates()
	}
}

// putState puts a state into the bench's only bucket.
func (s *bench) putState(st kernelPfState) {
	s.t.Helper()
	k := st.Key
	w := [5]uint64{}
	for i := range 4 {
		w[i] = uint64(k.Address[i/2][i%2*2]) | uint64(k.Address[i/2][i%2*2+1])<<32
	}
	w[4] = uint64(k.Port[0]) | uint64(k.Port[1])<<16 | uint64(k.Vlan)<<32 | uint64(k.Proto)<<48
	var hash uint64
	for i := range w {
		hash += w[i] * s.cfg.Pf.Secret[i]
	}
	b := kernelPfBucket{}
	b.Mark[0] = uint32(hash>>24) | 0x80000000
	if err := s.gen.coll.Maps[kernelMapPfStates].Put(uint32(0), st); err != nil {
		s.t.Fatal(err)
	}
	if err := s.gen.coll.Maps[kernelMapPfBuckets].Put(uint32(0), b); err != nil {
		s.t.Fatal(err)
	}
}

func (s *bench) dropStates() {
	s.t.Helper()
	if err := s.gen.coll.Maps[kernelMapPfBuckets].Put(uint32(0), kernelPfBucket{}); err != nil {
		s.t.Fatal(err)
	}
}
