// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The targets put frames to the programs as BPF_PROG_TEST_RUN takes them: of at least
// 14 bytes, for tcx up to what fits into a page.
const (
	fuzzPorts  = 4
	fuzzMaxTCX = 3500
	fuzzMaxXDP = 60000
	fuzzFDBMax = 64
)

// seeds adds frames with all shapes of headers, good and bad.
func seeds(f *testing.F) {
	f.Helper()
	add := func(port uint8, frame []byte) { f.Add(port, uint16(len(frame)), frame) }
	for _, dst := range []mac{broadcast, group(1), station(0), station(1), station(9), reserved(0), reserved(14), {}} {
		for _, src := range []mac{station(0), station(1), station(7), group(1), broadcast, {}} {
			p := packet{dst: dst, src: src}
			add(0, p.bytes())
			add(1, p.tagged(10).bytes())
			add(2, p.tagged(0).bytes())
			add(3, p.tagged(4095).tagged(10).bytes())
		}
	}
	for _, typ := range socketTypes {
		add(0, packet{dst: reserved(3), src: station(1), typ: typ}.bytes())
		add(1, packet{dst: reserved(14), src: group(1), typ: typ}.tagged(10).bytes())
	}
	p := packet{dst: broadcast, src: station(3)}
	for size := etherHeader; size < etherHeader+etherTag+2; size++ {
		p.size = size
		add(0, p.bytes())
		add(0, p.tagged(10).bytes())
	}
	for _, size := range []int{82, 83, 1514, 1515, 1518, 3000, 9014, 60000} {
		p.size = size
		add(1, p.bytes())
		add(1, p.tagged(10).bytes())
	}
	f.Add(uint8(0), uint16(3), p.bytes())  // the first buffer ends in the header
	f.Add(uint8(0), uint16(20), p.bytes()) // the rest is in others
	f.Add(uint8(200), uint16(60), p.bytes())
	for _, op := range []uint16{1, 2, 3, 4} {
		for _, kind := range []uint16{typeARP, typeRARP} {
			add(0, resolve(1, 0, kind, op).bytes())
			add(1, resolve(0, 1, kind, op, 10).bytes())
			add(0, resolve(2, 0, kind, op, 10, 20).bytes())
		}
	}
	// an Ethernet, an IPv4 and a TCP header, given as a string
	f.Add(uint8(0), uint16(54), []byte("\x02\xda\x00\x00\x00\x01\x02\xda\x00\x00\x00\x00\x08\x00"+
		"\x45\x00\x00\x28\x00\x01\x40\x00\x40\x06\x00\x00\xc6\x12\x00\x01\xc6\x12\x00\x02"+
		"\x00\x14\x00\x50\x00\x00\x00\x01\x00\x00\x00\x00\x50\x02\x20\x00\x00\x00\x00\x00"))
}

// fuzzBench makes a switch with as many features on as possible.
func fuzzBench(f *testing.F, change ...func(c *Config, p []*Port)) *bench {
	f.Helper()
	all := func(c *Config, p []*Port) {
		allXDP(c, p)
		c.FdbMax, c.GroupFwdMask = fuzzFDBMax, 1<<14
		p[3].FdbMax = 10
	}
	return newBench(f, fuzzPorts, append([]func(c *Config, p []*Port){all}, change...)...)
}

// reset restores the FDB from before the last frame: a finding must depend on its own
// input only.
func (s *bench) reset(t *testing.T) {
	s.t = t
	_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Pinned: 1})
	if err != nil {
		t.Fatal(err)
	}
	for n := range fuzzPorts {
		s.store(address{station(n), 0}, spot{port: n, used: benchNow})
		s.store(address{station(n), 10}, spot{port: (n + 1) % fuzzPorts, used: benchNow - 1})
	}
	s.store(address{station(7), 0}, spot{port: 2, pin: fdbStatic})
	s.at(benchNow)
}

func features(_ *Config, p []*Port) {
	p[0].Flags |= PortHairpin
	p[1].Domains, p[2].Domains = 6, 2
	p[2].Flags &^= PortDiscover
	p[3].Flags &^= PortLearn
}

// ruledBench is the same with MAC rules that look as far into frames as possible.
func ruledBench(f *testing.F) *bench {
	s := fuzzBench(f)
	s.setRules(f, parseRules(f, `
		block in on p0 arp reply sha 02:da:00:00:00:00 spa 192.0.2.0 tha 02:da:00:00:00:01 tpa 192.0.2.1
		pass in on p0 src 02:da:00:00:00:00
		block on p1 rarp
		block out on p2 arp request tpa 192.0.2.2
		block on p3 dst ff:ff:ff:ff:ff:ff`))
	f.Cleanup(func() { s.gen.Close() })
	return s
}

// guards switches on all features that look into frames, except those that answer
// frames.
func guards(c *Config, p []*Port) {
	sourceGuard(c, p)
	dhcpGuard(c, p)
	raGuard(c, p)
	p[2].Flags |= PortTrusted
}

// guardSeeds adds frames of each kind that the guards look for.
func guardSeeds(f *testing.F) {
	f.Helper()
	a, b := station(0), station(1)
	ra := icmp6(icmpRA, make([]byte, 12), linkLayer(1, a))
	for _, frame := range [][]byte{
		ether(b, a, typeIP4, ip4("192.0.2.1", "192.0.2.2", protoUDP, 0, udp(67, 68, 2))),
		ether(broadcast, a, typeIP4, ip4("0.0.0.0", "255.255.255.255", protoUDP, 0, udp(68, 67, 1))),
		ether(broadcast, a, typeARP, arp(arpRequest, a, "192.0.2.1", none, "192.0.2.2")),
		ether(broadcast, a, typeARP, arp(arpReply, b, "192.0.2.2", none, "192.0.2.1")),
		ether(b, a, typeIP6, ip6("fe80::1", "fe80::2", protoUDP, udp(547, 546))),
		ether(group(1), a, typeIP6, ip6("fe80::1", "ff02::1", protoICMP6, ra)),
		ether(group(1), a, typeIP6, ip6("fe80::1", "ff02::1", protoHopByHop, extension(protoDestination, 0), extension(protoFragment, 1), fragment(protoICMP6, 0, true), ra)),
		ether(group(1), a, typeIP6, ip6("fe80::1", "ff02::1:ff00:2", protoICMP6, solicitation("fe80::2", linkLayer(1, a)))),
		ether(group(1), a, typeIP6, ip6("::", "ff02::1:ff00:2", protoICMP6, solicitation("fe80::1"))),
		ether(group(1), a, typeIP6, ip6("fe80::1", "ff02::1", protoICMP6, advertisement("fe80::1", linkLayer(2, a)))),
	} {
		for _, frame := range [][]byte{frame, retagged(frame, tag{tpid: typeVLAN, vid: 10}), snapped(frame), retagged(frame, tag{tpid: typeQinQ}, tag{tpid: typeVLAN})} {
			for port := range uint8(2) {
				f.Add(port, uint16(len(frame)), frame)
			}
		}
	}
}

// bindStations binds the addresses that the seeds use.
func (s *bench) bindStations() *bench {
	for _, vlan := range []uint16{0, 10} {
		s.bind(vlan, 0, station(0), "192.0.2.1", "fe80::1")
		s.bind(vlan, 1, station(1), "192.0.2.2", "fe80::2")
	}
	return s
}

// A reading is a frame as the switch should see it.
type reading struct {
	dst, src address
	ok       bool
}

func read(frame []byte) (r reading) {
	if len(frame) < etherHeader {
		return r
	}
	var vlan uint16
	if binary.BigEndian.Uint16(frame[12:]) == typeVLAN {
		if len(frame) < etherHeader+etherTag {
			return r
		}
		vlan = binary.BigEndian.Uint16(frame[14:]) & 0xfff
	}
	return reading{address{mac(frame), vlan}, address{mac(frame[6:]), vlan}, true}
}

// check runs one frame and checks that it had no effects but those a frame may have.
func (s *bench) check(t *testing.T, h hook, port uint8, first uint16, frame []byte) {
	number, ifindex := int(port), s.rack.spare
	if number < fuzzPorts {
		ifindex = s.rack.near[number]
	} else {
		number = -1
	}
	var ctx any = &skbContext{Ifindex: ifindex}
	pieces := false
	if h == hookXDP {
		end := len(frame)
		if int(first) < end {
			end, pieces = int(first), true
		}
		ctx = &xdpContext{IngressIfindex: ifindex, DataEnd: uint32(end)}
	}
	stats, table := s.allStats(), s.fdb()
	var v verdict
	err := s.rack.do(func() (err error) {
		v, err = s.runContext(h, ctx, frame)
		return err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) {
		t.Skip("the kernel does not run a frame of this shape")
	}
	if err != nil {
		t.Fatal(err)
	}
	o, in, err := compare(stats, s.allStats(), uint64(len(frame)), 0)
	if err != nil {
		t.Fatal(err)
	}
	o.Verdict = v
	if err := s.plausible(h, o, in, number, pieces, frame); err != nil {
		t.Errorf("%s from port %d: %v", o, number, err)
	}
	s.onlySource(t, h, number, o, read(frame), table)
}

// plausible returns the fault of an outcome, nil if there is none.
func (s *bench) plausible(h hook, o outcome, in, port int, pieces bool, frame []byte) error {
	r := read(frame)
	want := []string{}
	if port < 0 {
		if o.Verdict != pass || len(o.Out) > 0 || len(o.Drops) > 0 {
			return errors.New("not left alone, though it came by no port")
		}
		return nil
	}
	switch {
	case !r.ok:
		want = []string{"malformed"}
	case r.dst.mac[0] == 1 && r.dst.mac[1] == 0x80 && r.dst.mac[2] == 0xc2 && r.dst.mac[3] == 0 && r.dst.mac[4] == 0 &&
		r.dst.mac[5] < 16 && s.cfg.GroupFwdMask>>r.dst.mac[5]&1 == 0:
		want = []string{"reserved"}
	case r.src.mac[0]&1 != 0 || r.src.mac == mac{}:
		want = []string{"bad-source"}
	}
	switch {
	case o.Verdict == pass && h == hookXDP:
		if in >= 0 || len(o.Out) > 0 || len(o.Drops) > 0 {
			return errors.New("declined, and counted all the same")
		}
		return nil
	case h == hookXDP && (len(want) > 0 || pieces):
		return fmt.Errorf("want it declined: %q, in pieces: %v", want, pieces)
	case o.Verdict == pass && slices.Equal(want, []string{"reserved"}) && slices.Equal(o.Drops, want) && in == port+1 &&
		slices.Contains(socketTypes, etherType(frame)): // sockets of the host get it
		return nil
	case o.Verdict != drop && o.Verdict != redirect:
		return errors.New("no such verdict")
	case in != port+1:
		return fmt.Errorf("counted as received in slot %d", in)
	case len(want) > 0 && (o.Verdict != drop || !slices.Equal(o.Drops, want)):
		return fmt.Errorf("want %q", want)
	case o.Verdict == drop && (len(o.Out) > 0 || len(o.Drops) == 0):
		return errors.New("dropped, but sent or without a reason")
	case o.Verdict == redirect && len(o.Out) == 0:
		return errors.New("sent to nobody")
	}
	for i, out := range o.Out {
		switch hairpin := PortFlags(s.cfg.Ports[port+1].Flags)&PortHairpin != 0; {
		case i > 0 && o.Out[i-1] >= out:
			return errors.New("two copies to one port")
		case out == port && !hairpin:
			return errors.New("sent back")
		case out != port && s.cfg.Ports[out+1].Domains&s.cfg.Ports[port+1].Domains != 0:
			return errors.New("sent to a protected port")
		}
	}
	if len(o.Out) > 1 && r.dst.mac[0]&1 == 0 {
		if _, known := s.fdb()[r.dst]; known {
			return errors.New("flooded, though the address is known")
		}
	}
	return nil
}

// onlySource checks that the FDB differs by at most the frame's source.
func (s *bench) onlySource(t *testing.T, h hook, port int, o outcome, r reading, before map[address]spot) {
	t.Helper()
	after := s.fdb()
	for a, p := range before {
		if got := after[a]; got != p && (a != r.src || p.pin != 0) {
			t.Errorf("%s was %v and is %v, by a frame from %s", a, p, got, r.src)
		}
	}
	for a, p := range after {
		old, known := before[a]
		if known && old == p {
			continue
		}
		learns := port >= 0 && PortFlags(s.cfg.Ports[port+1].Flags)&PortLearn != 0
		if a != r.src || p != (spot{port: port, used: benchNow}) || h == hookXDP || !learns {
			t.Errorf("%s is %v, was %v, by a frame from %s on port %d", a, p, old, r.src, port)
		}
		if a.mac == (mac{}) || a.mac[0]&1 != 0 {
			t.Errorf("%s was learned", a)
		}
	}
}

// FuzzTCX puts frames to the tcx program, each twice: the second may meet the decision
// that was remembered for the first.
func FuzzTCX(f *testing.F) {
	seeds(f)
	guardSeeds(f)
	plain, full, ruled := fuzzBench(f), fuzzBench(f, features), ruledBench(f)
	guarded := fuzzBench(f, guards).bindStations()
	f.Fuzz(func(t *testing.T, port uint8, first uint16, frame []byte) {
		frame = frame[:min(len(frame), fuzzMaxTCX)]
		for _, s := range []*bench{plain, full, ruled, guarded} {
			s.reset(t)
			s.check(t, hookTCX, port, first, frame)
			s.check(t, hookTCX, port, first, frame)
		}
	})
}

// FuzzXDP puts frames to the XDP program, some of them in several buffers: before and
// after the tcx program has seen them.
func FuzzXDP(f *testing.F) {
	seeds(f)
	guardSeeds(f)
	plain, full, ruled := fuzzBench(f), fuzzBench(f, features), ruledBench(f)
	guarded := fuzzBench(f, guards).bindStations()
	f.Fuzz(func(t *testing.T, port uint8, first uint16, frame []byte) {
		frame = frame[:min(len(frame), fuzzMaxXDP)]
		for _, s := range []*bench{plain, full, ruled, guarded} {
			s.reset(t)
			s.check(t, hookXDP, port, first, frame)
			if len(frame) <= fuzzMaxTCX {
				s.check(t, hookTCX, port, first, frame)
			}
			s.check(t, hookXDP, port, first, frame)
		}
	})
}

// FuzzAnswer puts frames to a bridge that answers ARP and ND. Only frames that are
// answered may be changed, and the answer must be right: to the question's sender, by
// the port it came in by, from the station that is bound, with correct checksums.
func FuzzAnswer(f *testing.F) {
	seeds(f)
	guardSeeds(f)
	s := fuzzBench(f, guards, suppress).bindStations()
	f.Fuzz(func(t *testing.T, port uint8, _ uint16, frame []byte) {
		frame = frame[:min(len(frame), fuzzMaxTCX)]
		if port %= fuzzPorts; len(frame) < etherHeader {
			return
		}
		s.reset(t)
		before := s.allStats()
		run := ebpf.RunOptions{
			Data: frame, DataOut: make([]byte, len(frame)+258),
			Context: &skbContext{Ifindex: s.rack.near[port]},
		}
		err := s.rack.do(func() error {
			_, err := s.gen.program(hookTCX).Run(&run)
			return err
		})
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) {
			t.Skip("the kernel does not run a frame of this shape")
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(run.DataOut, frame) {
			return
		}
		after := s.allStats()
		for n := range fuzzPorts {
			want := uint64(0)
			if n == int(port) {
				want = 1
			}
			if got := after[n+1].TxFrames - before[n+1].TxFrames; got != want {
				t.Errorf("an answer to port %d: %d frames sent to port %d", port, got, n)
			}
		}
		if err := answerFits(frame, run.DataOut); err != nil {
			t.Errorf("%v: question\n% x, answer\n% x", err, frame, run.DataOut)
		}
	})
}

// answerFits returns the fault of an answer, nil if there is none.
func answerFits(question, answer []byte) error {
	at := etherHeader
	if binary.BigEndian.Uint16(question[12:]) == typeVLAN {
		at += etherTag
	}
	if len(answer) < at || !bytes.Equal(answer[12:at], question[12:at]) {
		return errors.New("its type or tag is another")
	}
	if mac(answer[6:]) != station(0) && mac(answer[6:]) != station(1) {
		return errors.New("it is from nobody who is bound")
	}
	asks, says := question[at:], answer[at:]
	switch binary.BigEndian.Uint16(answer[at-2:]) {
	case typeARP:
		switch {
		case len(answer) != len(question), mac(answer) != mac(question[6:]):
			return errors.New("it is not to who asked")
		case says[7] != arpReply, !bytes.Equal(says[8:14], answer[6:12]), !bytes.Equal(says[14:18], asks[24:28]):
			return errors.New("it does not say what was asked")
		case !bytes.Equal(says[18:28], asks[8:18]):
			return errors.New("it is about somebody else")
		}
	case typeIP6:
		switch {
		case len(says) != 40+32, says[40] != icmpNA, !bytes.Equal(says[48:64], asks[48:64]), !bytes.Equal(says[8:24], asks[48:64]):
			return errors.New("it does not say what was asked")
		case !bytes.Equal(says[66:72], answer[6:12]):
			return errors.New("it gives another MAC")
		case icmpSum(says) != 0:
			return errors.New("its checksum is wrong")
		}
	default:
		return errors.New("nobody asks so")
	}
	return nil
}
