// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"structs"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// xdpContext is the kernel's struct xdp_md (linux/bpf.h).
type xdpContext struct {
	_              structs.HostLayout
	Data           uint32
	DataEnd        uint32
	DataMeta       uint32
	IngressIfindex uint32
	RxQueueIndex   uint32
	EgressIfindex  uint32
}

// A bench is a switch that is attached to no device: frames are put to its programs by
// BPF_PROG_TEST_RUN, as if they came from the near ends of a rack. The copies of a flood,
// except the last, really leave; all other decisions have no effect. Its clock stands
// still.
type bench struct {
	t    testing.TB
	rack *rack
	cfg  Config
	gen  *generation
	ids  []uint32 // ids of the ports, by their numbers

	retags bool   // programs may give frames another tag
	out    []byte // the last frame after its program
}

const (
	benchNow = 1000 // seconds; the initial time of a bench's clock

	floods = PortDiscover | PortMcastFlood | PortBcastFlood
)

// newBench makes a bench with the given number of ports, and with the defaults of the
// command line, before change is applied.
func newBench(t testing.TB, ports int, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	return newBenchOn(t, sharedRack(t), ports, change...)
}

func newBenchOn(t testing.TB, r *rack, ports int, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	return newBenchWith(t, r, Tables{}, ports, change...)
}

func newBenchWith(t testing.TB, r *rack, tables Tables, ports int, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	s := &bench{t: t, rack: r, cfg: newConfig(r, ports, change...)}
	for _, p := range Ports(&s.cfg) {
		s.ids = append(s.ids, p.Id)
	}
	b := &Bridge{store: &Store{Locked: underLock(t)}}
	if BridgeFlags(s.cfg.Flags)&BridgeCapture != 0 {
		tables.Filter = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}} // all
	}
	tables.Bindings = []Binding{} // room for the bindings of a test
	err := b.settlePF(&s.cfg, &tables)
	if err != nil {
		t.Fatal(err)
	}
	specialise(&s.cfg)
	s.cfg.Features |= s.cfg.Pf.Features & uint64(kernelFeatureFEATURE_TRACE) // which no setting requires
	openWays(&s.cfg)
	if s.gen, err = b.load(&s.cfg, tables); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.gen.Close)
	t.Cleanup(s.expectUnlocked)
	if err := r.do(s.moveIn); err != nil {
		t.Fatal(err)
	}
	s.at(benchNow)
	return s
}

// moveIn gives ports that stand for near ends their devices.
func (s *bench) moveIn() error {
	for _, p := range Ports(&s.cfg) {
		if !slices.Contains(s.rack.near, p.Ifindex) {
			continue
		}
		for _, m := range deviceMaps() {
			if err := s.gen.coll.Maps[m].Put(Slot(p.Id), p.Ifindex); err != nil {
				return err
			}
		}
	}
	return nil
}

// newSettings is a configuration with addresses that age after 300 s.
func newSettings(seed uint64, most uint32) Config {
	return Config{kernelConfig{HashSeed: seed}, kernelSettings{Ageing: 300, FdbMax: most}}
}

// newConfig configures a bridge with the first ports of a rack.
func newConfig(r *rack, ports int, change ...func(c *Config, p []*Port)) Config {
	c := newSettings(0x5eed, 1000)
	for i := range ports {
		p := NewPort(&c, fmt.Sprintf("near%d", i))
		p.Ifindex = r.near[i]
		p.Flags = PortLearn | floods
	}
	for _, f := range change {
		f(&c, Ports(&c))
	}
	specialise(&c)
	return c
}

// allXDP puts the XDP program on every port.
func allXDP(_ *Config, ports []*Port) {
	for _, p := range ports {
		onXDP(p)
	}
}

// onXDP puts the XDP program on a port, which also receives frames by XDP.
func onXDP(p *Port) {
	p.Notes |= PortXDP | PortXDPRx
	p.Facts |= PortXDPTx
}

// offXDP takes the program off.
func offXDP(p *Port) {
	p.Notes &^= PortXDP | PortXDPRx
	p.Facts &^= PortXDPTx
}

// at sets the clock, and thus ends earlier decisions.
func (s *bench) at(now uint32) {
	s.t.Helper()
	s.shares(func(shared *kernelShared) {
		shared.Clock.Now = now
		shared.Clock.Epoch++
	})
}

// shares calls f with the data that all CPUs share.
func (s *bench) shares(f func(*kernelShared)) {
	s.t.Helper()
	if err := s.gen.shared(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *bench) clock() (c kernelClock) {
	s.t.Helper()
	s.shares(func(shared *kernelShared) { c = shared.Clock })
	return c
}

// A verdict is the result of a program.
type verdict string

const (
	drop     verdict = "drop"
	redirect verdict = "redirect"
	pass     verdict = "pass"
)

func (h hook) verdict(code uint32) verdict {
	switch {
	case h != hookXDP && code == actShot, h == hookXDP && code == xdpDrop:
		return drop
	case h == hookTCX && code == actRedirect:
		return redirect
	case h == hookXDP && code == xdpPass, h != hookXDP && int32(code) == actUnspec:
		return pass
	case h == hookXDP && code == xdpRedirect:
		return redirect
	}
	return verdict(fmt.Sprintf("%s %d", h, int32(code)))
}

// The kernel's codes (linux/pkt_cls.h, enum xdp_action of linux/bpf.h).
const (
	actShot     = 2
	actUnspec   = -1 // the next program, or the stack
	actRedirect = 7
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// run puts a frame to a program as if it came in by a device. The program must not change
// the frame's bytes, unless s.retags.
func (s *bench) run(h hook, ifindex uint32, frame []byte) (v verdict, err error) {
	var ctx any = &skbContext{Ifindex: ifindex}
	if h == hookXDP {
		ctx = &xdpContext{IngressIfindex: ifindex, DataEnd: uint32(len(frame))}
	}
	return s.runContext(h, ctx, frame)
}

func (s *bench) runContext(h hook, ctx any, frame []byte) (v verdict, err error) {
	out := make([]byte, len(frame)+258) // the most bytes by which the kernel may extend a frame
	run := ebpf.RunOptions{Data: frame, DataOut: out, Context: ctx}
	code, err := s.gen.program(h).Run(&run)
	if err != nil {
		return "", err
	}
	s.out = run.DataOut
	if !s.retags && !bytes.Equal(run.DataOut, frame) {
		return "", fmt.Errorf("the frame was changed from\n% x to\n% x", frame, run.DataOut)
	}
	return h.verdict(code), nil
}

// An outcome is the effect of a frame on the switch.
type outcome struct {
	Verdict verdict
	Out     []int    // numbers of the ports that it was sent to
	Drops   []string // the reasons that were counted
}

func (o outcome) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s%s %s", o.Verdict, numbers(o.Out), strings.Join(o.Drops, "+")))
}

func numbers(list []int) (s string) {
	for _, n := range list {
		s += fmt.Sprintf(" %d", n)
	}
	return s
}

func sent(ports ...int) outcome         { return outcome{Verdict: redirect, Out: ports} }
func dropped(reasons ...string) outcome { return outcome{Verdict: drop, Drops: reasons} }

var passed = outcome{Verdict: pass}

// tcx puts a frame to the tcx program, as if it came in by the port.
func (s *bench) tcx(port int, frame []byte) outcome {
	s.t.Helper()
	return s.put(hookTCX, &skbContext{Ifindex: s.rack.near[port]}, frame)
}

// xdp puts a frame to the XDP program, as if it came in by the port.
func (s *bench) xdp(port int, frame []byte) outcome {
	s.t.Helper()
	return s.put(hookXDP, &xdpContext{IngressIfindex: s.rack.near[port], DataEnd: uint32(len(frame))}, frame)
}

// put puts a frame to a program and checks every counter. The frame must be counted once
// as received, unless the program passed it on, and every counter of bytes must match its
// counter of frames.
func (s *bench) put(h hook, ctx any, frame []byte) outcome {
	s.t.Helper()
	before := s.allStats()
	var v verdict
	err := s.rack.do(func() (err error) {
		v, err = s.runContext(h, ctx, frame)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.expectUnlocked()
	o, in, err := compare(before, s.allStats(), uint64(len(frame)), uint64(len(s.out)))
	if err != nil {
		s.t.Fatalf("%s of % x: %v", v, head(frame), err)
	}
	o.Verdict = v
	want := s.slotOf(h, ctx)
	switch {
	// sockets of the host receive it
	case h == hookTCX && v == pass && slices.Equal(o.Drops, []string{"reserved"}) && in == want:
	case v == pass && (in >= 0 || len(o.Out) > 0 || len(o.Drops) > 0):
		s.t.Errorf("%s of % x was counted, and the other program counts it again", o, head(frame))
	case v != pass && in != want:
		s.t.Errorf("%s of % x was counted as received in slot %d, want %d", o, head(frame), in, want)
	}
	return o
}

func head(frame []byte) []byte { return frame[:min(len(frame), 18)] }

// slotOf returns the slot in which a frame must be counted as received.
func (s *bench) slotOf(h hook, ctx any) int {
	var ifindex uint32
	switch ctx := ctx.(type) {
	case *skbContext:
		ifindex = ctx.Ifindex
	case *xdpContext:
		ifindex = ctx.IngressIfindex
	}
	for _, p := range Ports(&s.cfg) {
		if p.Ifindex == ifindex {
			return int(Slot(p.Id))
		}
	}
	return 0
}

// compare returns the outcome of one frame of the given length, and the slot in which it
// was counted as received, -1 for none. An answer to it may have another length.
func compare(before, after []Stats, bytes, answer uint64) (o outcome, in int, err error) {
	in = -1
	for slot := range after {
		a, b := &before[slot], &after[slot]
		switch n := b.RxFrames - a.RxFrames; {
		case n > 1 || n == 1 && in >= 0:
			return o, in, errors.New("counted more than once as received")
		case b.RxBytes-a.RxBytes != n*bytes:
			return o, in, fmt.Errorf("%d bytes counted as received, want %d", b.RxBytes-a.RxBytes, n*bytes)
		case n == 1:
			in = slot
		}
		n := b.TxFrames - a.TxFrames
		if sent := b.TxBytes - a.TxBytes; sent != n*bytes && (n != 1 || slot != in || sent != answer) {
			return o, in, fmt.Errorf("%d bytes counted as sent, want %d", b.TxBytes-a.TxBytes, n*bytes)
		}
		for range n {
			o.Out = append(o.Out, slot-1)
		}
	}
	for slot := range after {
		for reason := range after[slot].Drops {
			n := after[slot].Drops[reason] - before[slot].Drops[reason]
			if n > 0 && slot != in {
				return o, in, fmt.Errorf("drop counted in slot %d, frame in slot %d", slot, in)
			}
			for range n {
				o.Drops = append(o.Drops, Reasons()[reason])
			}
		}
	}
	return o, in, nil
}

// allStats returns the counters by slot, summed over the CPUs.
func (s *bench) allStats() []Stats {
	s.t.Helper()
	all := make([]Stats, s.cfg.Slots)
	for slot := range all {
		var perCPU []Stats
		if err := s.gen.coll.Maps[kernelMapStats].Lookup(uint32(slot), &perCPU); err != nil {
			s.t.Fatal(err)
		}
		all[slot] = total(perCPU)
	}
	return all
}

func total(perCPU []Stats) (sum Stats) {
	for _, s := range perCPU {
		for i, n := range fields(&s) {
			fields(&sum)[i] += n
		}
	}
	return sum
}

// fields returns the counters, which all have the same size.
func fields(s *Stats) []uint64 {
	return unsafe.Slice(&s.RxFrames, unsafe.Sizeof(*s)/unsafe.Sizeof(s.RxFrames))
}

// stats returns the counters of a port.
func (s *bench) stats(port int) Stats { return s.allStats()[port+1] }

// expect fails the test unless the outcome of a frame is the expected one.
func expect(t testing.TB, what string, got, want outcome) {
	t.Helper()
	if !slices.Equal(got.Out, want.Out) || !slices.Equal(got.Drops, want.Drops) || got.Verdict != want.Verdict {
		t.Errorf("%s: %s; want %s", what, got, want)
	}
}

// An address is a key of the FDB.
type address struct {
	mac  mac
	vlan uint16
}

func (a address) String() string { return fmt.Sprintf("%x/%d", a.mac, a.vlan) }

func (a address) key() uint64 { return key(a.mac, a.vlan) }

// A spot is the FDB's entry of an address.
type spot struct {
	port int    // number
	pin  uint32 // fdbStatic, fdbSticky
	used uint32 // seconds
}

// fdb returns the whole FDB, also invalid entries. It fails the test if an address is in
// it twice, an entry is half made, or the counts are wrong.
func (s *bench) fdb() map[address]spot {
	s.t.Helper()
	return sound(s.t, func() (map[address]spot, []string) {
		s.t.Helper()
		table := map[address]spot{}
		counts := make([]uint32, s.cfg.Slots)
		var faults []string
		fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
		err := scan(s.gen.coll.Maps[kernelMapFdb], func(k, w uint64) {
			if k == fdbClaimed {
				fault("an entry is claimed and was never filled")
				return
			}
			a := address{macOf(k), uint16(k >> macBits)}
			id := uint32(w) &^ fdbPinned
			port := slices.Index(s.ids, id)
			if port < 0 {
				fault("%s is on port %#x, which does not exist", a, id)
			}
			if _, twice := table[a]; twice {
				fault("%s is in the FDB twice", a)
			}
			table[a] = spot{port, uint32(w) & fdbPinned, uint32(w >> 32)}
			if w&fdbPinned == 0 {
				counts[0]++
				counts[Slot(id)]++
			}
		})
		if err != nil {
			s.t.Fatal(err)
		}
		for slot, want := range counts {
			if got := s.usage(slot); got != want {
				fault("slot %d has %d dynamic entries, counted %d", slot, want, int32(got))
			}
		}
		return table, faults
	})
}

// sound repeats a read until it finds no fault. The switch's timer may be at work: it
// frees an entry and then changes the count, and both cannot be read at once. A fault that
// stays fails the test.
func sound[T any](t testing.TB, read func() (T, []string)) T {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		v, faults := read()
		if len(faults) == 0 {
			return v
		}
		if time.Now().After(end) {
			for _, f := range faults {
				t.Error(f)
			}
			return v
		}
	}
}

// usage returns the switch's count of dynamic entries in a slot.
func (s *bench) usage(slot int) (n uint32) {
	s.t.Helper()
	s.shares(func(shared *kernelShared) { n = shared.Usage[s.cfg.FdbTurn&1][slot] })
	return n
}

// scan calls f with every entry in use.
func scan(m *ebpf.Map, f func(key, word uint64)) error {
	size := int(m.MaxEntries() * m.ValueSize())
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	for _, e := range unsafe.Slice((*kernelFdbEntry)(unsafe.Pointer(&mem[0])), size/int(unsafe.Sizeof(kernelFdbEntry{}))) {
		if e.Key != 0 {
			f(e.Key, e.Word)
		}
	}
	return nil
}

// request calls the control program.
func (s *bench) request(r kernelControl) (int, error) { return s.gen.control(r) }

// word returns the second word of an entry.
func (s *bench) word(p spot) uint64 {
	return uint64(p.used)<<32 | uint64(p.pin) | uint64(s.ids[p.port])
}

// store adds an entry, as `fdb add` does.
func (s *bench) store(a address, p spot) {
	s.t.Helper()
	_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: a.key(), Word: s.word(p)})
	if err != nil {
		s.t.Fatalf("store %s: %v", a, err)
	}
}

func (s *bench) remove(a address) error {
	_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_DELETE, Key: a.key()})
	return err
}

// learn makes stations known, each by a broadcast of its own.
func (s *bench) learn(port int, stations ...int) {
	s.t.Helper()
	for _, n := range stations {
		if got := s.tcx(port, from(n)); got.Verdict != redirect {
			s.t.Fatalf("broadcast of station %d: %s", n, got)
		}
	}
}

// openWays opens the direct paths to devices, as the timer does if nothing prevents it.
func openWays(c *Config) {
	for _, p := range Ports(c) {
		p.Straight = p.Peer
		p.Ways = WaySeen | PortWays(p.Facts)&waysXDP
	}
	settleWays(c)
}
