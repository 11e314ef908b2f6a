// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A segment is an IPv4 packet from one host, 10.0.x.x, to another.
type segment struct {
	from, to     int // hosts
	sport, dport uint16
	proto        uint8 // 0 is TCP
	flags        uint8
	seq, ack     uint32
	win          uint16
	payload      int
	options      []byte
}

const (
	fin = 1 << iota
	syn
	rst
	_
	ack
)

// scale returns the TCP options of a SYN with a window scale.
func scale(n byte) []byte { return []byte{1, 3, 3, n} }

// bytes returns the segment in a frame between the hosts' stations. Checksums are zero: they are
// not verified.
func (s segment) bytes() []byte {
	var l4 []byte
	switch s.proto {
	case 0, unix.IPPROTO_TCP:
		s.proto = unix.IPPROTO_TCP
		l4 = binary.BigEndian.AppendUint16(l4, s.sport)
		l4 = binary.BigEndian.AppendUint16(l4, s.dport)
		l4 = binary.BigEndian.AppendUint32(l4, s.seq)
		l4 = binary.BigEndian.AppendUint32(l4, s.ack)
		l4 = append(l4, byte(5+len(s.options)/4)<<4, s.flags)
		l4 = binary.BigEndian.AppendUint16(l4, s.win)
		l4 = append(append(l4, 0, 0, 0, 0), s.options...)
	case unix.IPPROTO_UDP:
		l4 = binary.BigEndian.AppendUint16(l4, s.sport)
		l4 = binary.BigEndian.AppendUint16(l4, s.dport)
		l4 = append(l4, 0, byte(8+s.payload), 0, 0)
	case unix.IPPROTO_ICMP: // flags is the type, and the ports are the identifier
		l4 = append(l4, s.flags, 0, 0, 0)
		l4 = binary.BigEndian.AppendUint16(l4, s.sport)
		l4 = append(l4, 0, 1)
	}
	l4 = append(l4, make([]byte, s.payload)...)
	b := append([]byte{}, macBytes(station(s.to))...)
	b = append(b, macBytes(station(s.from))...)
	b = append(b, 8, 0, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(l4)))
	b = append(b, 0, 0, 0, 0, 64, s.proto, 0, 0)
	b = append(b, 10, 0, byte(s.from>>8), byte(s.from), 10, 0, byte(s.to>>8), byte(s.to))
	b = append(b, l4...)
	for len(b) < smallest {
		b = append(b, 0)
	}
	return b
}

// length returns the length of the IP packet.
func (s segment) length() uint64 { return uint64(binary.BigEndian.Uint16(s.bytes()[16:])) }

func macBytes(m mac) []byte { return m[:] }

// back returns a segment in the other direction.
func (s segment) back() segment {
	s.from, s.to, s.sport, s.dport = s.to, s.from, s.dport, s.sport
	return s
}

// The timeouts of the tests, by enum pf_timeout.
var testTimeouts = [20]uint32{120, 30, 86400, 900, 45, 90, 30, 60, 31, 62, 20, 10, 63, 32, 64, 60, 10, 0, 0, 0}

// A pfBench is a bench with pf, whose rules match every packet; host 1 is at its
// port 0, host 2 at port 1, and host 3 at port 2.
type pfBench struct {
	*bench
	viaXDP bool // frames are put to XDP first
}

// keep is a rule that passes and keeps state.
func keep(change ...func(r *kernelPfRule)) kernelPfRule {
	r := kernelPfRule{Action: kernelPfActionPF_PASS, Flags: kernelPfRuleFlagPF_KEEP, End: 1}
	for _, f := range change {
		f(&r)
	}
	return r
}

func newPFBench(t testing.TB, rules []kernelPfRule, change ...func(c *Config)) *pfBench {
	t.Helper()
	s := &pfBench{bench: newBench(t, 3, allXDP, func(c *Config, _ []*Port) {
		c.Flags |= uint32(BridgePF)
		c.Pf.Features = uint64(kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES |
			kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_TABLES)
		c.Pf.Rules, c.Pf.Groups = uint32(len(rules)), 1
		c.Pf.Asks = uint16(kernelPfAskPF_ASK_TAG)
		c.Pf.Buckets, c.Pf.StatesMax, c.Pf.NodesMax = 64, 1000, 100
		c.Pf.Ruleset = 7
		c.Pf.Secret = [5]uint64{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93, 0xa0761d6478bd642f}
		for _, f := range change {
			f(c)
		}
	})}
	for i, r := range rules {
		r.First = uint32(i)
		s.set(kernelMapPfRules, uint32(i), r)
	}
	s.timeouts(testTimeouts)
	for port := range 3 {
		s.store(address{mac: station(port + 1)}, spot{port: port, pin: fdbStatic})
	}
	return s
}

func (s *pfBench) set(table string, key, value any) {
	s.t.Helper()
	if err := s.gen.coll.Maps[table].Put(key, value); err != nil {
		s.t.Fatalf("%s: %v", table, err)
	}
}

func (s *pfBench) timeouts(all [20]uint32) {
	s.t.Helper()
	s.set(kernelMapPfProfiles, uint32(0), kernelPfProfile{Timeout: all})
}

// later advances the bench's clock.
func (s *pfBench) later(seconds uint32) {
	s.t.Helper()
	s.at(s.clock().Now + seconds)
}

// send gives the switch a segment at its host's port.
func (s *pfBench) send(p segment) outcome {
	s.t.Helper()
	port := (p.from - 1) % 3
	if s.viaXDP {
		if o := s.xdp(port, p.bytes()); o.Verdict != pass {
			return o
		}
	}
	return s.tcx(port, p.bytes())
}

// sent is the outcome of a segment that passes.
func (p segment) sent() outcome { return sent((p.to - 1) % 3) }

// states returns all states, expired or not, by their places.
func (s *pfBench) states() map[uint32]kernelPfState {
	s.t.Helper()
	all := map[uint32]kernelPfState{}
	view(s, kernelMapPfBuckets, func(buckets []kernelPfBucket) {
		view(s, kernelMapPfStates, func(states []kernelPfState) {
			for home, b := range buckets {
				for i, mark := range b.Mark {
					if mark == 1 {
						s.t.Errorf("place %d is claimed and was never filled", home*stateWays+i)
					}
					if mark&(1<<31) != 0 {
						place := uint32(home*stateWays + i)
						all[place] = states[place]
					}
				}
			}
		})
	})
	return all
}

// view maps a table to memory while f reads it.
func view[T any](s *pfBench, table string, f func([]T)) {
	s.t.Helper()
	m := s.gen.coll.Maps[table]
	size := int(m.MaxEntries() * m.ValueSize())
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		s.t.Fatal(err)
	}
	defer unix.Munmap(mem)
	f(unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), m.MaxEntries()))
}

// only returns the only state.
func (s *pfBench) only() kernelPfState {
	s.t.Helper()
	all := s.states()
	for _, state := range all {
		if len(all) == 1 {
			return state
		}
	}
	s.t.Fatalf("%d states, want 1", len(all))
	return kernelPfState{}
}

// sides returns the TCP states of the initiator and of the other side.
func sides(s kernelPfState) [2]uint8 {
	first := 0
	if s.Flags&uint16(kernelPfStateFlagPF_STATE_SECOND) != 0 {
		first = 1
	}
	return [2]uint8{s.Peer[first].State, s.Peer[1-first].State}
}

func (s *pfBench) count(c kernelPfCounter) uint64 {
	s.t.Helper()
	sum, err := counterOf(s.gen.coll.Maps[kernelMapCounters], kernelCounterCOUNTER_PF+kernelCounter(c))
	if err != nil {
		s.t.Fatal(err)
	}
	return sum
}

func (s *pfBench) ruleStats(number uint32) (sum kernelPfRuleStats) {
	s.t.Helper()
	var perCPU []kernelPfRuleStats
	if err := s.gen.coll.Maps[kernelMapPfRuleStats].Lookup(number, &perCPU); err != nil {
		s.t.Fatal(err)
	}
	for _, n := range perCPU {
		sum.States += n.States
		for i := range 2 {
			sum.Packets[i] += n.Packets[i]
			sum.Bytes[i] += n.Bytes[i]
		}
	}
	return sum
}

func get[T any](s *pfBench, table string, key any) (v T) {
	s.t.Helper()
	if err := s.gen.coll.Maps[table].Lookup(key, &v); err != nil {
		s.t.Fatalf("%s: %v", table, err)
	}
	return v
}

func (s *pfBench) shared() (pf kernelPfShared) {
	s.shares(func(shared *kernelShared) { pf = shared.Pf })
	return pf
}

func (s *pfBench) use(number uint32) kernelPfRuleUse {
	return get[kernelPfRuleUse](s, kernelMapPfRuleUse, number)
}

func (s *bench) sources() map[kernelPfSourceKey]kernelPfSource {
	all := map[kernelPfSourceKey]kernelPfSource{}
	var key kernelPfSourceKey
	var value kernelPfSource
	for it := s.gen.coll.Maps[kernelMapPfSources].Iterate(); it.Next(&key, &value); {
		all[key] = value
	}
	return all
}

// check fails the test unless the counters match the present states.
func (s *pfBench) check() {
	s.t.Helper()
	sound(s.t, func() (any, []string) {
		s.t.Helper()
		var faults []string
		fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
		all := s.states()
		if n := s.shared().States; int(n) != len(all) {
			fault("%d states are counted, there are %d", int32(n), len(all))
		}
		keys := map[any]uint32{}
		uses := make([]uint32, s.cfg.Pf.Rules)
		for place, state := range all {
			key := state.Key
			key.Profile = 0
			if other, twice := keys[key]; twice {
				fault("places %d and %d have the same key", other, place)
			}
			keys[key] = place
			for i, rule := range []uint16{state.RuleIn, state.RuleOut} {
				if rule != 0 && state.Ruleset == s.cfg.Pf.Ruleset && (i == 0 || rule != state.RuleIn) {
					uses[rule-1]++
				}
			}
		}
		for number, want := range uses {
			if get[kernelPfRule](s, kernelMapPfRules, uint32(number)).Flags&kernelPfRuleFlagPF_KEEP == 0 {
				want = 0
			}
			if got := s.use(uint32(number)).States; got != want {
				fault("rule %d has %d states, counted %d", number, want, int32(got))
			}
		}
		sources := s.sources()
		if n := s.shared().Nodes; int(n) != len(sources) {
			fault("%d sources are counted, there are %d", int32(n), len(sources))
		}
		if made, gone := s.count(kernelPfCounterPF_COUNT_INSERTS), s.count(kernelPfCounterPF_COUNT_REMOVALS); made-gone != uint64(len(all)) {
			fault("%d states made, %d removed, %d left", made, gone, len(all))
		}
		return nil, faults
	})
	wantCounted(s.t, s.gen, &s.cfg)
}

// A step is a segment and its expected effect.
type step struct {
	segment
	drop  string // the reason for the drop, "" if it passes
	after [2]uint8
}

// Names for the tables below.
const (
	closed      = uint8(kernelPfTcpStatePF_CLOSED)
	synSent     = uint8(kernelPfTcpStatePF_SYN_SENT)
	established = uint8(kernelPfTcpStatePF_ESTABLISHED)
	closing     = uint8(kernelPfTcpStatePF_CLOSING)
	finWait2    = uint8(kernelPfTcpStatePF_FIN_WAIT_2)
	timeWait    = uint8(kernelPfTcpStatePF_TIME_WAIT)
)

// web is a segment of host 1 in a connection to host 2.
func web(flags uint8, seq, ack uint32, payload int) segment {
	return segment{from: 1, to: 2, sport: 40000, dport: 80, flags: flags, seq: seq, ack: ack, win: 1000, payload: payload}
}

// answered is a segment of host 2 in that connection.
func answered(flags uint8, seq, ack uint32, payload int) segment {
	p := web(flags, seq, ack, payload).back()
	return p
}

func (p segment) with(f func(p *segment)) segment { f(&p); return p }

// handshake opens the connection: host 1's next number is a, host 2's is b.
func handshake(a, b uint32) []step {
	return []step{
		{web(syn, a-1, 0, 0), "", [2]uint8{synSent, closed}},
		{answered(syn|ack, b-1, a, 0), "", [2]uint8{established, synSent}},
		{web(ack, a, b, 0), "", [2]uint8{established, established}},
	}
}

func TestPFTCP(t *testing.T) {
	var a, b uint32 = 0xfffff000, 0x7ffffff0 // numbers that overrun, and change their sign
	ee := [2]uint8{established, established}
	scaled := func(n, m []byte) []step {
		return []step{
			{web(syn, a-1, 0, 0).with(func(p *segment) { p.options = n }), "", [2]uint8{synSent, closed}},
			{answered(syn|ack, b-1, a, 0).with(func(p *segment) { p.options = m }), "", [2]uint8{established, synSent}},
			{web(ack, a, b, 0), "", ee},
		}
	}
	wide := func(win uint16) func(p *segment) { return func(p *segment) { p.win = win } }
	tests := []struct {
		name  string
		begin []step
		steps []step
	}{
		{"data both ways", handshake(a, b), []step{
			{web(ack, a, b, 1000), "", ee},
			{answered(ack, b, a+1000, 1000), "", ee},
			{web(ack, a+1000, b+1000, 1000), "", ee},
			{answered(ack, b+1000, a+2000, 0), "", ee},
			{web(ack, a+2000, b+1000, 1000), "", ee},
			{answered(ack, b+1000, a+3000, 0), "", ee},
			{web(ack, a+3000, b+1000, 1000), "", ee}, // the numbers overrun
			{answered(ack, b+1000, a+4000, 0), "", ee},
			{web(ack, a+4000, b+1000, 1000), "", ee},
		}},
		{"sent again", handshake(a, b), []step{
			{web(ack, a, b, 1000), "", ee},
			{web(ack, a, b, 1000), "", ee},
		}},
		{"keep-alive", handshake(a, b), []step{
			{web(ack, a, b, 100), "", ee},
			{answered(ack, b, a+100, 0), "", ee},
			{web(ack, a+99, b, 0), "", ee},
			{web(ack, a+99, b, 1), "", ee},
		}},
		{"without data the number does not matter", handshake(a, b), []step{
			{web(ack, a+0x40000000, b, 0), "", ee},
			{web(ack, a, b, 1000), "", ee},
		}},
		{"above the window", handshake(a, b), []step{
			{web(ack, a, b, 1001), "pf-state", ee},
			{web(ack, a+1, b, 1000), "pf-state", ee},
			{web(ack, a+0x40000000, b, 10), "pf-state", ee},
			{web(ack, a, b, 1000), "", ee},
		}},
		{"below the window", handshake(a, b), []step{
			{web(ack, a, b, 1000), "", ee},
			{answered(ack, b, a+1000, 0), "", ee},
			{web(ack, a-1001, b, 10), "pf-state", ee},
			{web(ack, a-0x40000000, b, 10), "pf-state", ee},
		}},
		{"acknowledges too much", handshake(a, b), []step{
			{web(ack, a, b+0xffff+1500, 10), "", ee},
			{web(ack, a, b+0xffff+1501, 10), "pf-state", ee},
			{web(ack, a, b-0xffff-1501, 10), "pf-state", ee},
		}},
		{"scaled windows", scaled(scale(7), scale(2)), []step{
			{web(ack, a, b, 0).with(wide(1000)), "", ee},
			{answered(ack, b, a, 1400), "", ee},
			{answered(ack, b+1000*128-1000, a, 1000), "", ee}, // 128000 bytes are free at host 1
			{answered(ack, b+1000*128, a, 1), "pf-state", ee},
			{web(ack, a+3000, b, 1000), "", ee}, // 4000 are free at host 2
			{web(ack, a+4000, b, 1), "pf-state", ee},
		}},
		{"one scales alone", scaled(scale(7), nil), []step{
			{answered(ack, b, a, 1400), "pf-state", ee},
			{answered(ack, b, a, 1000), "", ee},
			{web(ack, a, b, 1001), "pf-state", ee},
		}},
		{"the scale is limited", scaled(scale(200), scale(14)), []step{
			{answered(ack, b+1000<<14-1000, a, 1000), "", ee},
			{answered(ack, b+1000<<14, a, 1), "pf-state", ee},
		}},
		{"options before the scale", scaled([]byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7},
			[]byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 2, 0, 0}), []step{
			{web(ack, a, b, 0).with(wide(1000)), "", ee},
			{answered(ack, b+100000, a, 1000), "", ee},
		}},
		{"options cut off", scaled(scale(7), []byte{8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 3, 3}), []step{
			{answered(ack, b, a, 1400), "pf-state", ee},
		}},
		{"options that are none", scaled([]byte{3, 0, 3, 7}, scale(2)), []step{
			{answered(ack, b, a, 1400), "pf-state", ee},
		}},
		{"closed in order", handshake(a, b), []step{
			{web(fin|ack, a, b, 0), "", [2]uint8{closing, established}},
			{answered(ack, b, a+1, 0), "", [2]uint8{finWait2, established}},
			{answered(ack, b, a+1, 900), "", [2]uint8{finWait2, established}}, // half closed
			{web(ack, a+1, b+900, 0), "", [2]uint8{finWait2, established}},
			{answered(fin|ack, b+900, a+1, 0), "", [2]uint8{finWait2, closing}},
			{web(ack, a+1, b+901, 0), "", [2]uint8{finWait2, finWait2}},
			{answered(fin|ack, b+900, a+1, 0), "", [2]uint8{finWait2, finWait2}}, // again
		}},
		{"closed from both sides at once", handshake(a, b), []step{
			{web(fin|ack, a, b, 0), "", [2]uint8{closing, established}},
			{answered(fin|ack, b, a, 0), "", [2]uint8{finWait2, closing}},
			{web(ack, a+1, b+1, 0), "", [2]uint8{finWait2, finWait2}},
		}},
		{"reset", handshake(a, b), []step{{web(rst, a, 0, 0), "", [2]uint8{timeWait, timeWait}}}},
		{"reset with acknowledgement", handshake(a, b), []step{
			{answered(rst|ack, b, a, 0), "", [2]uint8{timeWait, timeWait}},
		}},
		{"reset out of the window", handshake(a, b), []step{
			{web(rst, a+2, 0, 0), "pf-state", ee},
			{web(rst, a-3, 0, 0), "pf-state", ee},
			{web(rst|ack, a+5000, b, 0), "pf-state", ee},
			{web(rst|ack, a-900, 0, 0), "pf-state", ee}, // it acknowledges nothing
			{web(rst|ack, a-900, b, 0), "", [2]uint8{timeWait, timeWait}},
		}},
		{"reset behind a FIN", handshake(a, b), []step{
			{web(fin|ack, a, b, 100), "", [2]uint8{closing, established}},
			{web(rst, a+103, 0, 0), "pf-state", [2]uint8{closing, established}},
			{web(rst, a+102, 0, 0), "", [2]uint8{timeWait, timeWait}},
		}},
		{"SYN sent again", nil, []step{
			{web(syn, a-1, 0, 0), "", [2]uint8{synSent, closed}},
			{web(syn, a-1, 0, 0), "", [2]uint8{synSent, closed}},
			{answered(syn|ack, b-1, a, 0), "", [2]uint8{established, synSent}},
			{answered(syn|ack, b-1, a, 0), "", [2]uint8{established, synSent}},
			{web(ack, a, b, 0), "", ee},
		}},
		{"refused", nil, []step{
			{web(syn, a-1, 0, 0), "", [2]uint8{synSent, closed}},
			{answered(rst|ack, 0, a, 0), "", [2]uint8{timeWait, timeWait}},
		}},
		{"both call", nil, []step{
			{web(syn, a-1, 0, 0), "", [2]uint8{synSent, closed}},
			{answered(syn, b-1, 0, 0), "", [2]uint8{synSent, synSent}},
			{web(syn|ack, a-1, b, 0), "", [2]uint8{synSent, established}},
			{answered(syn|ack, b-1, a, 0), "", ee},
		}},
		{"met in the middle", nil, []step{
			{web(ack, a, b, 100), "", [2]uint8{synSent, closed}},
			{answered(ack, b, a+100, 500), "", [2]uint8{established, synSent}},
			{web(ack, a+100, b+500, 100), "", ee},
			{answered(ack, b+500, a+200, 0), "", ee},
		}},
	}
	for _, viaXDP := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, XDP %v", tt.name, viaXDP), func(t *testing.T) {
				s := newPFBench(t, []kernelPfRule{keep()})
				s.viaXDP = viaXDP
				s.play(tt.begin)
				s.play(tt.steps)
				s.check()
			})
		}
	}
}

// A host that still has the former connection is sent a reset, as from the client, and the new
// connection can begin.
func TestPFOldConnection(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	s.play([]step{{web(syn, 999, 0, 0), "", [2]uint8{synSent, closed}}})
	s.retags = true // by the answer
	got := s.send(answered(ack, 5000, 0x30000000, 0))
	if !slices.Equal(got.Drops, []string{"pf-state"}) || got.Verdict != redirect {
		t.Errorf("%s; want it dropped as pf-state, and answered", got)
	}
	const tcp = etherHeader + 20
	if seq, flags := binary.BigEndian.Uint32(s.out[tcp+4:]), s.out[tcp+13]; seq != 0x30000000 || flags&^ack != rst {
		t.Errorf("answered with flags %#x, number %d; want a reset, 0x30000000", flags, seq)
	}
	s.retags = false
	s.play([]step{
		{answered(syn|ack, 8999, 1000, 0), "", [2]uint8{established, synSent}},
		{web(ack, 1000, 9000, 0), "", [2]uint8{established, established}},
	})
}

// The switch answers a SYN within a connection in the other side's name, by an acknowledgement of
// the connection's present number. So a client that has lost the connection resets it, and can
// begin another one.
func TestPFChallenge(t *testing.T) {
	const a, b = 1000, 9000
	ee := [2]uint8{established, established}
	data := []step{
		{web(ack, a, b, 10), "", ee},
		{answered(ack, b, a+10, 20), "", ee},
	}
	for _, tt := range []struct {
		name    string
		begin   []step
		flags   kernelPfRuleFlag
		seq     uint32 // of the SYN
		ack, to uint32 // numbers of the answer
	}{
		{"far away", data, 0, a + 0x20000000, b + 20, a + 10},
		{"in the window", data, 0, a + 11, b + 20, a + 10},
		{"sent again", data, 0, a - 1, b + 20, a + 10},
		{"before data", nil, 0, a + 0x20000000, b, a - 1}, // as on OpenBSD: a SYN alone is not counted yet
		{"sloppy", data, kernelPfRuleFlagPF_SLOPPY, a + 11, 0, a - 1},
		{"half closed", append(slices.Clone(data), step{web(fin|ack, a+10, b+20, 0), "", [2]uint8{closing, established}},
			step{answered(ack, b+20, a+11, 0), "", [2]uint8{finWait2, established}}), 0, a + 0x20000000, b + 20, a + 11},
	} {
		for _, viaXDP := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, XDP %v", tt.name, viaXDP), func(t *testing.T) {
				s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Flags |= tt.flags })})
				s.viaXDP = viaXDP
				s.play(append(handshake(a, b), tt.begin...))
				before := s.only()
				s.retags = true // by the answer
				call := web(syn, tt.seq, 0, 0)
				got := s.send(call)
				if !slices.Equal(got.Drops, []string{"pf-state"}) || got.Verdict != redirect {
					t.Fatalf("%s; want it dropped as pf-state, and answered", got)
				}
				if after := s.only(); after != before {
					t.Errorf("the state was\n%+v and is\n%+v", before, after)
				}
				answer := s.out[etherHeader : etherHeader+40]
				tcp := answer[20:]
				window := before.Peer[1].MaxWin // 1 if it was not advertised
				if seq, acked, flags, win := binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:]), tcp[13], binary.BigEndian.Uint16(tcp[14:]); seq != tt.ack || acked != tt.to || flags != ack || win != window {
					t.Errorf("answered with flags %#x, number %d, acknowledging %d, window %d; want an ACK, %d, %d, %d", flags, seq, acked, win, tt.ack, tt.to, window)
				}
				if !rightSums(answer) {
					t.Errorf("wrong checksums: % x", answer)
				}
				s.retags = false
				s.play([]step{{web(rst, tt.to, 0, 0), "", [2]uint8{timeWait, timeWait}}})
				expect(t, "SYN", s.send(call), call.sent())
				if got := sides(s.only()); got != [2]uint8{synSent, closed} {
					t.Errorf("states %d", got)
				}
			})
		}
	}
}

// play sends segments, and checks their outcomes and the only state.
func (s *pfBench) play(steps []step) {
	s.t.Helper()
	for i, p := range steps {
		before := s.states()
		want := p.sent()
		if p.drop != "" {
			want = dropped(p.drop)
		}
		expect(s.t, fmt.Sprintf("segment %d", i), s.send(p.segment), want)
		state := s.only()
		if got := sides(state); got != p.after {
			s.t.Errorf("segment %d: states %d, want %d", i, got, p.after)
		}
		packets := state.Packets[0] + state.Packets[1]
		for _, was := range before {
			packets -= was.Packets[0] + was.Packets[1]
		}
		if packets != 1 && p.drop == "" || packets != 0 && p.drop != "" {
			s.t.Errorf("segment %d: %d packets counted", i, packets)
		}
	}
}

// After a connection has closed, the next one may have the same ports.
func TestPFReopen(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	s.play(handshake(5000, 9000))
	s.play([]step{
		{web(fin|ack, 5000, 9000, 0), "", [2]uint8{closing, established}},
		{answered(fin|ack, 9000, 5001, 0), "", [2]uint8{finWait2, closing}},
		{web(ack, 5001, 9001, 0), "", [2]uint8{finWait2, finWait2}},
	})
	p := web(syn, 0x50000000, 0, 0)
	expect(t, "SYN", s.send(p), p.sent())
	if got := sides(s.only()); got != [2]uint8{synSent, closed} {
		t.Errorf("states %d", got)
	}
	s.check()
	if n := s.count(kernelPfCounterPF_COUNT_REMOVALS); n != 1 {
		t.Errorf("%d states removed, want 1", n)
	}
}

// Packets after the end of a connection pass near its windows, but do not keep it.
func TestPFBehindTheEnd(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	s.play(handshake(5000, 9000))
	both := [2]uint8{timeWait, timeWait}
	s.play([]step{{web(rst, 5000, 0, 0), "", both}})
	s.later(10)
	s.play([]step{{web(ack, 5000, 9000, 10), "", both}})
	s.later(10)
	s.play([]step{
		{web(ack, 25000, 9000, 10), "", both},
		{web(ack, 5000+0xffff+0xffff, 9000, 10), "pf-state", both},
	})
	if used := s.only().Used; used != benchNow+10 {
		t.Errorf("used in second %d, want %d", used, benchNow+10)
	}
}

func TestPFSloppy(t *testing.T) {
	sloppy := keep(func(r *kernelPfRule) { r.Flags |= kernelPfRuleFlagPF_SLOPPY })
	ee := [2]uint8{established, established}
	for name, steps := range map[string][]step{
		"both sides": append(handshake(5000, 9000),
			step{web(ack, 0x70000000, 1, 100), "", ee},
			step{web(fin|ack, 1, 1, 0), "", [2]uint8{closing, closing}}, // as in pf
			step{answered(fin|ack, 2, 2, 0), "", [2]uint8{finWait2, closing}},
			step{web(ack, 3, 3, 0), "", [2]uint8{finWait2, finWait2}}),
		"one side": {
			{web(syn, 1, 0, 0), "", [2]uint8{synSent, closed}},
			{web(ack, 2, 1, 0), "", ee},
			{web(fin|ack, 2, 1, 0), "", [2]uint8{closing, closing}},
		},
		"reset": append(handshake(5000, 9000),
			step{web(rst, 77, 0, 0), "", [2]uint8{timeWait, timeWait}}),
	} {
		t.Run(name, func(t *testing.T) {
			s := newPFBench(t, []kernelPfRule{sloppy})
			s.play(steps)
		})
	}
}

// datagram is a datagram from host 1 to host 2.
func datagram(proto uint8) segment {
	p := segment{from: 1, to: 2, sport: 1000, dport: 53, proto: proto, payload: 20}
	if proto == unix.IPPROTO_ICMP {
		p.flags = 8
	}
	return p
}

// reply answers a datagram.
func (p segment) reply() segment {
	r := p.back()
	if p.proto == unix.IPPROTO_ICMP {
		r.flags, r.sport = 0, p.sport
	}
	return r
}

func TestPFOtherStates(t *testing.T) {
	for proto, want := range map[uint8][3][2]uint8{
		unix.IPPROTO_UDP:  {{1, 0}, {2, 1}, {2, 2}},
		unix.IPPROTO_ICMP: {},
	} {
		for _, viaXDP := range []bool{false, true} {
			s := newPFBench(t, []kernelPfRule{keep()})
			s.viaXDP = viaXDP
			p := datagram(proto)
			for i, p := range []segment{p, p.reply(), p} {
				expect(t, "datagram", s.send(p), p.sent())
				if got := sides(s.only()); got != want[i] {
					t.Errorf("protocol %d, packet %d: states %d, want %d", proto, i, got, want[i])
				}
			}
			state := s.only()
			if got := state.Packets; got != [2]uint64{2, 1} {
				t.Errorf("protocol %d: %d packets", proto, got)
			}
			if n := p.length(); state.Bytes != [2]uint64{2 * n, n} {
				t.Errorf("protocol %d: %d bytes, packets of %d", proto, state.Bytes, n)
			}
			s.check()
		}
	}
}

// A state has expired when its timeout has passed, for all look-ups, and then rules decide.
func TestPFTimeouts(t *testing.T) {
	udp, icmp := datagram(unix.IPPROTO_UDP), datagram(unix.IPPROTO_ICMP)
	open := func() (all []segment) {
		for _, p := range handshake(5000, 9000) {
			all = append(all, p.segment)
		}
		return all
	}
	then := func(more ...segment) []segment { return append(open(), more...) }
	for _, tt := range []struct {
		name    string
		packets []segment
		phase   kernelPfTimeout
	}{
		{"TCP first", open()[:1], kernelPfTimeoutPF_TCP_FIRST},
		{"TCP opening", open()[:2], kernelPfTimeoutPF_TCP_OPENING},
		{"TCP opening, SYN again", []segment{open()[0], open()[0]}, kernelPfTimeoutPF_TCP_OPENING},
		{"TCP established", open(), kernelPfTimeoutPF_TCP_ESTABLISHED},
		{"TCP closing", then(web(fin|ack, 5000, 9000, 0)), kernelPfTimeoutPF_TCP_CLOSING},
		{"TCP closing, acknowledged", then(web(fin|ack, 5000, 9000, 0), answered(ack, 9000, 5001, 0)), kernelPfTimeoutPF_TCP_CLOSING},
		{"TCP fin-wait", then(web(fin|ack, 5000, 9000, 0), answered(fin|ack, 9000, 5001, 0)), kernelPfTimeoutPF_TCP_FINWAIT},
		{"TCP closed", then(web(fin|ack, 5000, 9000, 0), answered(fin|ack, 9000, 5001, 0), web(ack, 5001, 9001, 0)), kernelPfTimeoutPF_TCP_CLOSED},
		{"TCP reset", then(web(rst, 5000, 0, 0)), kernelPfTimeoutPF_TCP_CLOSED},
		{"UDP first", []segment{udp}, kernelPfTimeoutPF_UDP_FIRST},
		{"UDP single", []segment{udp, udp}, kernelPfTimeoutPF_UDP_SINGLE},
		{"UDP one answer", []segment{udp, udp.reply()}, kernelPfTimeoutPF_UDP_SINGLE},
		{"UDP multiple", []segment{udp, udp.reply(), udp}, kernelPfTimeoutPF_UDP_MULTIPLE},
		{"ICMP first", []segment{icmp}, kernelPfTimeoutPF_ICMP_FIRST},
		{"ICMP answered", []segment{icmp, icmp.reply()}, kernelPfTimeoutPF_ICMP_ERROR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, at := range []struct {
				after uint32
				over  bool
			}{{testTimeouts[tt.phase] - 1, false}, {testTimeouts[tt.phase], true}} {
				s := newPFBench(t, []kernelPfRule{keep()})
				for _, p := range tt.packets {
					expect(t, "packet", s.send(p), p.sent())
				}
				s.later(at.after)
				made := s.count(kernelPfCounterPF_COUNT_INSERTS)
				// a packet that begins no connection, and could belong to this one
				p := tt.packets[len(tt.packets)-1]
				s.send(p)
				if again := s.count(kernelPfCounterPF_COUNT_INSERTS) > made; again != at.over {
					t.Errorf("after %d seconds a new state is made: %v, want %v", at.after, again, at.over)
				}
				s.check()
			}
		})
	}
}

// With many states, timeouts become shorter.
func TestPFAdaptive(t *testing.T) {
	const established = 100
	for _, tt := range []struct {
		name       string
		start, end uint32 // adaptive timeouts of the bridge
		own        [2]uint32
		states     int
		want       uint32
	}{
		{"few", 10, 20, [2]uint32{}, 10, 100},
		{"half", 10, 20, [2]uint32{}, 15, 50},
		{"nearly all", 10, 20, [2]uint32{}, 19, 10},
		{"too many", 10, 20, [2]uint32{}, 20, 2}, // states that were used a moment ago stay
		{"off", 0, 0, [2]uint32{}, 20, 100},
		{"the bridge's in the rule", 10, 20, [2]uint32{10, 20}, 15, 50},
		{"the rule's own", 10, 20, [2]uint32{0, 40}, 20, 2},
		{"the rule's own, half", 1000, 2000, [2]uint32{10, 20}, 15, 50},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) {
				c.Pf.AdaptiveStart, c.Pf.AdaptiveEnd = tt.start, tt.end
			})
			times := testTimeouts
			times[kernelPfTimeoutPF_UDP_FIRST] = established
			times[kernelPfTimeoutPF_ADAPTIVE_START], times[kernelPfTimeoutPF_ADAPTIVE_END] = tt.own[0], tt.own[1]
			s.timeouts(times)
			p := datagram(unix.IPPROTO_UDP)
			for i := range tt.states {
				p.sport = uint16(i + 1)
				expect(t, "datagram", s.send(p), p.sent())
			}
			made := s.count(kernelPfCounterPF_COUNT_INSERTS)
			s.later(tt.want - 1)
			p.sport = 1
			s.send(p) // may match the state
			if n := s.count(kernelPfCounterPF_COUNT_INSERTS); n != made {
				t.Errorf("over after %d seconds", tt.want-1)
			}
			s.later(1)
			p.sport = 2
			s.send(p)
			if n := s.count(kernelPfCounterPF_COUNT_INSERTS); n != made+1 {
				t.Errorf("not over after %d seconds", tt.want)
			}
		})
	}
}

func TestPFLimits(t *testing.T) {
	t.Run("states", func(t *testing.T) {
		s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) { c.Pf.StatesMax = 5 })
		s.expectLimit(5, func(i int, p *segment) { p.sport = uint16(i + 1) })
		if n := s.count(kernelPfCounterPF_COUNT_MEMORY); n == 0 {
			t.Error("not counted")
		}
	})
	t.Run("max", func(t *testing.T) {
		s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Max = 3 })})
		s.expectLimit(3, func(i int, p *segment) { p.sport = uint16(i + 1) })
		if n := s.count(kernelPfCounterPF_COUNT_STATE_LIMIT); n == 0 {
			t.Error("not counted")
		}
	})
	track := func(change func(r *kernelPfRule)) []kernelPfRule {
		return []kernelPfRule{keep(func(r *kernelPfRule) { r.Flags |= kernelPfRuleFlagPF_TRACK_RULE }, change)}
	}
	t.Run("max-src-states", func(t *testing.T) {
		s := newPFBench(t, track(func(r *kernelPfRule) { r.MaxSrcStates = 4 }))
		s.expectLimit(4, func(i int, p *segment) { p.sport = uint16(i + 1) })
		if n := s.count(kernelPfCounterPF_COUNT_MAX_SRC_STATES); n == 0 {
			t.Error("not counted")
		}
		other := datagram(unix.IPPROTO_UDP).back() // another source has its own
		expect(t, "another source", s.send(other.with(func(p *segment) { p.sport = 99 })), other.sent())
		s.check()
	})
	t.Run("max-src-nodes", func(t *testing.T) {
		s := newPFBench(t, track(func(r *kernelPfRule) { r.MaxSrcNodes = 2 }))
		s.expectLimit(2, func(i int, p *segment) { *p = fromHost(i, *p) })
		if n := s.count(kernelPfCounterPF_COUNT_MAX_SRC_NODES); n == 0 {
			t.Error("not counted")
		}
	})
	t.Run("src-nodes", func(t *testing.T) {
		s := newPFBench(t, track(func(r *kernelPfRule) {}), func(c *Config) { c.Pf.NodesMax = 3 })
		s.expectLimit(3, func(i int, p *segment) { *p = fromHost(i, *p) })
	})
	t.Run("global", func(t *testing.T) {
		s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) {
			r.Flags |= kernelPfRuleFlagPF_TRACK_GLOBAL
			r.MaxSrcStates = 2
		})})
		s.expectLimit(2, func(i int, p *segment) { p.sport = uint16(i + 1) })
		for key := range s.sources() {
			if key.Rule != 0 {
				t.Errorf("the source is rule %d's", key.Rule)
			}
		}
	})
}

// The place of a removed state rests, and is not free yet. Connections are spread over free places:
// a table finds one for each, even if half of its places rest.
func TestPFRestIsNoRoom(t *testing.T) {
	const places = 64 * stateWays
	s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) { c.Pf.StatesMax = places })
	begin := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			p := datagram(unix.IPPROTO_UDP)
			p.sport = uint16(i + 1)
			expect(t, fmt.Sprintf("connection %d", i), s.send(p), p.sent())
		}
		s.check()
	}
	begin(0, places*45/100)
	s.later(200)
	s.sweepAll()
	if n := len(s.states()); n != 0 {
		t.Fatalf("%d states are there still", n)
	}
	begin(places*45/100, places*85/100) // at once
}

// fromHost returns the packet with another host's address, from the same station.
func fromHost(i int, p segment) segment {
	p.from += 3 * (i + 1)
	return p
}

// expectLimit expects that exactly limit states can be made, and as many again when those have
// expired.
func (s *pfBench) expectLimit(limit int, change func(i int, p *segment)) {
	s.t.Helper()
	for round := range 2 {
		for i := range limit + 2 {
			p := datagram(unix.IPPROTO_UDP)
			change(i, &p)
			s.learn((p.from-1)%3, p.from)
			want := p.sent()
			if i >= limit {
				want = dropped("pf-limit")
			}
			expect(s.t, fmt.Sprintf("round %d, packet %d", round, i), s.send(p), want)
		}
		s.check()
		s.later(200)
		s.sweepAll()
		s.check()
		if n := len(s.states()); n != 0 {
			s.t.Errorf("%d states left", n)
		}
		if n := len(s.sources()); n != 0 {
			s.t.Errorf("%d sources left", n)
		}
		s.later(2)
	}
}

// sweepAll sweeps all places by hand: a bench's timer does not run.
func (s *pfBench) sweepAll() {
	s.t.Helper()
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_SWEEP}); err != nil {
		s.t.Fatal(err)
	}
}

// handshakeOf opens a TCP connection from a port, and returns the outcome of its last segment,
// which has these flags, too.
func (s *pfBench) handshakeOf(sport uint16, flags ...uint8) outcome {
	s.t.Helper()
	var o outcome
	for i, p := range handshake(5000, 9000) {
		q := p.segment
		for _, f := range flags {
			if i == 2 {
				q.flags |= f
			}
		}
		if q.from == 1 {
			q.sport = sport
		} else {
			q.dport = sport
		}
		o = s.send(q)
	}
	return o
}

func TestPFOverload(t *testing.T) {
	const table = 5
	host1 := [4]uint32{0, 0, 0xffff0000, binary.LittleEndian.Uint32([]byte{10, 0, 0, 1})}
	for _, tt := range []struct {
		name   string
		change func(r *kernelPfRule)
		left   int     // former states that are left after the flush
		flags  []uint8 // of the last segment of the handshake
	}{
		{"max-src-conn", func(r *kernelPfRule) { r.MaxSrcConn = 3 }, 3, nil},
		{"max-src-conn, FIN", func(r *kernelPfRule) { r.MaxSrcConn = 3 }, 3, []uint8{fin}},
		{"max-src-conn, FIN, sloppy", func(r *kernelPfRule) {
			r.MaxSrcConn, r.Flags = 3, r.Flags|kernelPfRuleFlagPF_SLOPPY
		}, 3, []uint8{fin}},
		{"max-src-conn-rate", func(r *kernelPfRule) { r.MaxSrcRate, r.MaxSrcSecs = 3, 10 }, 3, nil},
		{"flush", func(r *kernelPfRule) { r.MaxSrcConn, r.Flags = 3, r.Flags|kernelPfRuleFlagPF_FLUSH }, 0, nil},
		{"flush global", func(r *kernelPfRule) {
			r.MaxSrcConn, r.Flags = 3, r.Flags|kernelPfRuleFlagPF_FLUSH_GLOBAL
		}, 0, nil},
	} {
		for _, viaXDP := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, XDP %v", tt.name, viaXDP), func(t *testing.T) {
				s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) {
					r.Flags |= kernelPfRuleFlagPF_TRACK_RULE
					r.Overload = table + 1
				}, tt.change)})
				s.viaXDP = viaXDP
				s.set(kernelMapPfNets, kernelPfPrefix{Bits: 96 + 8, Address: [16]byte{10: 0xff, 11: 0xff, 12: 10}}, kernelPfMember{Match: 1 << 9, Here: 1 << 9})
				for i := range 3 {
					expect(t, "connection", s.handshakeOf(uint16(i+1), tt.flags...), sent(1))
				}
				if err := s.gen.coll.Maps[kernelMapPfHosts].Lookup(host1, &kernelPfHost{}); !errors.Is(err, ebpf.ErrKeyNotExist) {
					t.Errorf("the source is in the table already: %v", err)
				}
				expect(t, "one too many", s.handshakeOf(4, tt.flags...), dropped("pf-limit"))
				if n := len(s.states()); n != 3 {
					t.Errorf("%d states, want 3", n)
				}
				if got := get[kernelPfHost](s, kernelMapPfHosts, host1); got.Here != 1<<table || got.Match != 1<<table|1<<9 || got.Nets != 1<<9 {
					t.Errorf("the source is in tables %#x, listed in %#x, by networks in %#x", got.Match, got.Here, got.Nets)
				}
				s.later(1)
				after := datagram(unix.IPPROTO_UDP) // the earlier request does not apply to it
				expect(t, "later", s.send(after), after.sent())
				s.sweepAll()
				if n := len(s.states()); n != tt.left+1 {
					t.Errorf("%d states left, want %d", n, tt.left+1)
				}
				s.check()
				if err := s.flushPF(tt.left + 1); err != nil {
					t.Error(err)
				}
				s.check()
				if n := s.sources(); len(n) != 0 {
					t.Errorf("sources left: %v", n)
				}
			})
		}
	}
}

// flushPF removes all states, and checks their number.
func (s *pfBench) flushPF(want int) error {
	n, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH})
	if err == nil && n != want {
		err = fmt.Errorf("%d states removed, want %d", n, want)
	}
	return err
}

// A connection that has gone no longer counts.
func TestPFConnectionsGo(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) {
		r.Flags |= kernelPfRuleFlagPF_TRACK_RULE
		r.MaxSrcConn = 2
	})})
	for i, want := range []outcome{sent(1), sent(1), dropped("pf-limit")} {
		expect(t, fmt.Sprintf("connection %d", i), s.handshakeOf(uint16(i+1)), want)
	}
	for place, state := range s.states() {
		if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_KILL, Place: place, State: state}); err != nil {
			t.Fatal(err)
		}
		break
	}
	for _, n := range s.sources() {
		if n.States != 1 || n.Connections != 1 {
			t.Errorf("%d states and %d connections, want 1 of each", n.States, n.Connections)
		}
	}
	expect(t, "the next", s.handshakeOf(4), sent(1))
	expect(t, "one too many", s.handshakeOf(5), dropped("pf-limit"))
	s.check()
}

// The states of a source are removed soon, however slow the sweep is.
func TestPFFlushSoon(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) {
		r.Flags |= kernelPfRuleFlagPF_TRACK_RULE | kernelPfRuleFlagPF_FLUSH_GLOBAL
		r.Overload, r.MaxSrcConn = 1, 3
	})}, func(c *Config) { c.Pf.Buckets = 1024 })
	times := testTimeouts
	times[kernelPfTimeoutPF_INTERVAL] = 100000
	s.timeouts(times)
	if err := s.gen.start(); err != nil {
		t.Fatal(err)
	}
	other := datagram(unix.IPPROTO_UDP).back() // has the source's address, but did not begin the connection
	s.send(other)
	for i := range 4 {
		s.handshakeOf(uint16(i + 1))
	}
	until(t, "the source's states are removed", func() bool { return len(s.states()) == 1 })
	s.check()
	if state := s.only(); state.Key.Proto != unix.IPPROTO_UDP {
		t.Errorf("left is one of protocol %d", state.Key.Proto)
	}
	until(t, "the request is forgotten", func() bool {
		return s.shared().Flush == 0 && !s.gen.coll.Maps[kernelMapPfFlushes].Iterate().Next(new(kernelPfSourceKey), new(uint32))
	})
}

// XDP passes packets of connections, and changes nothing else.
func TestPFXDP(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	expect(t, "SYN", s.xdp(0, web(syn, 4999, 0, 0).bytes()), passed)
	s.play(handshake(5000, 9000)[:1])
	expect(t, "SYN and ACK", s.xdp(1, answered(syn|ack, 8999, 5000, 0).bytes()), passed)
	s.play(handshake(5000, 9000)[1:])
	p := web(ack, 5000, 9000, 100)
	expect(t, "data", s.xdp(0, p.bytes()), p.sent())
	p = answered(ack, 9000, 5100, 100)
	expect(t, "data back", s.xdp(1, p.bytes()), p.sent())
	was := s.only()
	expect(t, "above the window", s.xdp(0, web(ack, 7000, 9000, 100).bytes()), passed)
	expect(t, "another connection", s.xdp(0, web(ack, 1, 1, 1).with(func(p *segment) { p.sport = 1 }).bytes()), passed)
	if got := s.only(); got != was {
		t.Errorf("the state was changed from %v to %v", was, got)
	}
	if n := s.count(kernelPfCounterPF_COUNT_STATE_MISMATCH); n != 0 {
		t.Errorf("%d mismatches counted by XDP", n)
	}
}

// A source is remembered as long as its timeout, even without states.
func TestPFSourceTimeout(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Flags |= kernelPfRuleFlagPF_TRACK_RULE })})
	times := testTimeouts
	times[kernelPfTimeoutPF_SRC_TRACK] = 50
	s.timeouts(times)
	s.send(datagram(unix.IPPROTO_UDP))
	if err := s.flushPF(1); err != nil {
		t.Fatal(err)
	}
	s.later(49)
	s.sweepAll()
	if n := len(s.sources()); n != 1 {
		t.Errorf("%d sources, want 1", n)
	}
	s.later(1)
	s.sweepAll()
	if n := len(s.sources()); n != 0 {
		t.Errorf("%d sources, want none", n)
	}
	s.check()
}

// The times at which the rules on both ways get the numbers of a state.
func TestPFRulesOfState(t *testing.T) {
	const tag = 77
	in := func(r *kernelPfRule) { r.Tag, r.Tagged, r.Flags = tag, tag, r.Flags|kernelPfRuleFlagPF_NOT_TAGGED }
	out := func(r *kernelPfRule) { r.Tagged, r.End = tag, 2 }
	none := func(r *kernelPfRule) { r.Flags &^= kernelPfRuleFlagPF_KEEP }
	for _, tt := range []struct {
		name   string
		rules  []kernelPfRule
		states [2]uint64
		flags  kernelPfStateFlag
	}{
		{"both keep", []kernelPfRule{keep(in), keep(out)}, [2]uint64{1, 1}, 0},
		{"in keeps", []kernelPfRule{keep(in), keep(out, none)}, [2]uint64{1, 0}, 0},
		{"out keeps", []kernelPfRule{keep(in, none), keep(out)}, [2]uint64{0, 1}, kernelPfStateFlagPF_STATE_OUT},
		{"options of out", []kernelPfRule{keep(in), keep(out, func(r *kernelPfRule) {
			r.Flags |= kernelPfRuleFlagPF_SLOPPY | kernelPfRuleFlagPF_IF_BOUND | kernelPfRuleFlagPF_ALLOW_OPTS
		})}, [2]uint64{1, 1}, kernelPfStateFlagPF_STATE_SLOPPY | kernelPfStateFlagPF_STATE_IF_BOUND | kernelPfStateFlagPF_STATE_OPTIONS},
		{"none keeps", []kernelPfRule{keep(in, none), keep(out, none)}, [2]uint64{0, 0}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newPFBench(t, tt.rules)
			p := datagram(unix.IPPROTO_UDP)
			for _, p := range []segment{p, p, p.reply()} {
				expect(t, "packet", s.send(p), p.sent())
			}
			if tt.states == [2]uint64{} {
				if n := len(s.states()); n != 0 {
					t.Errorf("%d states", n)
				}
				for number := range tt.states {
					if got := s.ruleStats(uint32(number)); got.Packets[number] != 3 || got.Packets[1-number] != 0 {
						t.Errorf("rule %d has passed %d packets", number, got.Packets)
					}
				}
				return
			}
			state := s.only()
			if got := kernelPfStateFlag(state.Flags); got != tt.flags || state.RuleIn != 1 || state.RuleOut != 2 {
				t.Errorf("flags %#x, rules %d and %d; want %#x, 1 and 2", got, state.RuleIn, state.RuleOut, tt.flags)
			}
			if state.In != s.ids[0] || state.Out != s.ids[1] {
				t.Errorf("from port %#x to %#x", state.In, state.Out)
			}
			s.check()
			if err := s.flushPF(1); err != nil {
				t.Error(err)
			}
			s.check()
			for number, want := range tt.states {
				got := s.ruleStats(uint32(number))
				if got.States != want {
					t.Errorf("rule %d made %d states, want %d", number, got.States, want)
				}
				packets, n := [2]uint64{2, 1}, p.length()
				if number == 1 {
					packets = [2]uint64{1, 2}
				}
				if got.Packets != packets || got.Bytes != [2]uint64{packets[0] * n, packets[1] * n} {
					t.Errorf("rule %d has passed %d packets of %d bytes, want %d of %d each", number, got.Packets, got.Bytes, packets, n)
				}
			}
		})
	}
}

func TestPFKillAndStore(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	s.play(handshake(5000, 9000))
	var place uint32
	state := s.only()
	for place = range s.states() {
	}
	other := state
	other.Key.Port[0]++
	kill := func(place uint32, state kernelPfState) error {
		_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_KILL, Place: place, State: state})
		return err
	}
	if err := kill(place, other); !errors.Is(err, unix.ENOENT) {
		t.Errorf("kill of another key: %v", err)
	}
	if err := kill(1<<30, state); !errors.Is(err, unix.EINVAL) {
		t.Errorf("kill of no place: %v", err)
	}
	store := func(state kernelPfState) error {
		_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_STORE, State: state})
		return err
	}
	if err := store(state); !errors.Is(err, unix.EEXIST) {
		t.Errorf("store of what is there: %v", err)
	}
	if err := kill(place, state); err != nil {
		t.Error(err)
	}
	if err := kill(place, state); !errors.Is(err, unix.ENOENT) {
		t.Errorf("kill of what has gone: %v", err)
	}
	s.check()
	if err := store(state); err != nil {
		t.Error(err)
	}
	if got := s.only(); got != state {
		t.Errorf("stored %v, found %v", state, got)
	}
	if n := s.shared().States; n != 1 {
		t.Errorf("%d states counted", n)
	}
	p := web(ack, 5000, 9000, 100)
	expect(t, "after the state was stored", s.send(p), p.sent())
}

// States can be added with any ruleset, each with its share of its source.
func TestPFStoreTracked(t *testing.T) {
	for name, ruleset := range map[string]uint16{"of these rules": 7, "of rules that are no more": 3} {
		t.Run(name, func(t *testing.T) {
			s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Max = 2 })})
			const old = 900 // seconds; earlier than the bench's clock
			for i := range 3 {
				state := kernelPfState{
					Created: uint32(old - i), Used: benchNow, RuleIn: 1, Ruleset: ruleset, Packets: [2]uint64{5, 6},
					Flags: uint16(kernelPfStateFlagPF_STATE_TRACK_RULE | kernelPfStateFlagPF_STATE_CONNECTED),
				}
				if ruleset != 7 {
					state.RuleIn = 200 // beyond the last rule
				}
				state.Key.Proto, state.Key.Port = unix.IPPROTO_TCP, [2]uint16{uint16(i), 1}
				_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_STORE, State: state})
				if refused := ruleset == 7 && i == 2; (err != nil) != refused {
					t.Errorf("state %d: %v", i, err)
				}
			}
			want := uint32(len(s.states()))
			for key, n := range s.sources() {
				if n.States != want || n.Connections != want || key.Ruleset != ruleset {
					t.Errorf("source %v has %d states and %d connections, want %d", key, n.States, n.Connections, want)
				}
			}
			if n := s.shared().States; n != want {
				t.Errorf("%d states counted, want %d", n, want)
			}
			if err := s.flushPF(int(want)); err != nil {
				t.Error(err)
			}
			if n := s.sources(); len(n) != 0 {
				t.Errorf("sources left: %v", n)
			}
			if n := s.shared(); n.States != 0 || n.Nodes != 0 || s.use(0).States != 0 || s.use(0).Nodes != 0 {
				t.Errorf("left: %+v", n)
			}
			if got := s.ruleStats(0).Packets; (got == [2]uint64{10, 12}) != (ruleset == 7) {
				t.Errorf("the rule has %d packets", got)
			}
		})
	}
}

// A place can be used again two seconds after its state has gone.
func TestPFPlacesRest(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) { c.Pf.Buckets = 1 })
	p := datagram(unix.IPPROTO_UDP)
	fill := func(from, n int) (made int) {
		for i := range n {
			p.sport = uint16(from + i)
			if o := s.send(p); o.Verdict == redirect {
				made++
			} else {
				expect(t, "without a place", o, dropped("pf-limit"))
			}
		}
		return made
	}
	if n := fill(100, 20); n != stateWays {
		t.Errorf("%d states in %d places", n, stateWays)
	}
	s.check()
	if err := s.flushPF(stateWays); err != nil {
		t.Fatal(err)
	}
	s.later(1)
	if n := fill(200, 1); n != 0 {
		t.Error("a place was used again after a second")
	}
	s.later(1)
	if n := fill(300, 20); n != stateWays {
		t.Errorf("%d states in %d places", n, stateWays)
	}
	// expired states make room at once
	s.later(60)
	if n := fill(400, 20); n != stateWays {
		t.Errorf("%d states in the places of those that are over", n)
	}
	s.check()
}

// The sweep removes expired states, and only these, with no process at work.
func TestPFSweep(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	p := datagram(unix.IPPROTO_UDP)
	// The clock will be the time since boot, which may be shorter than the bench's: so the states'
	// times are relative to that clock.
	s.at(uint32(clockNow(t)/time.Second) - 2*testTimeouts[kernelPfTimeoutPF_UDP_FIRST])
	for i := range 300 {
		p.sport = uint16(i + 1)
		s.send(p)
	}
	times := testTimeouts
	times[kernelPfTimeoutPF_INTERVAL] = 1
	s.timeouts(times)
	s.begin(handshake(5000, 9000))
	if err := s.gen.start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the states are swept", func() bool {
		s.send(web(ack, 5000, 9000, 0)) // may open it anew, if it has expired
		return len(s.states()) == 1
	})
}

// begin sends segments without checking their outcomes.
func (s *pfBench) begin(steps []step) {
	for _, p := range steps {
		s.send(p.segment)
	}
}

// together runs f on two CPUs, with the number of each.
func (s *pfBench) together(f func(cpu int) error) {
	s.t.Helper()
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		s.t.Fatal(err)
	}
	var wg sync.WaitGroup
	for n := range 2 {
		jobs := s.rack.worker()
		wg.Add(1)
		jobs <- func() {
			defer wg.Done()
			var one unix.CPUSet
			one.Set(n % may.Count())
			_ = unix.SchedSetaffinity(0, &one)
			if err := f(n); err != nil {
				s.t.Error(err)
			}
		}
		defer close(jobs)
	}
	wg.Wait()
}

// Two CPUs make states of the same connections at the same moment: one state of each stays, and the
// counts are exact.
func TestPFSameKeysTogether(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Flags |= kernelPfRuleFlagPF_TRACK_RULE })}, func(c *Config) {
		c.Pf.Buckets, c.Pf.StatesMax = 1024, 16000
	})
	const keys = 3000
	s.together(func(cpu int) error {
		for i := range keys {
			p := datagram(unix.IPPROTO_UDP)
			p.sport = uint16(i + 1)
			if cpu == 1 { // the answer can be the first packet just as well
				p = p.reply()
			}
			if _, err := s.run(hookTCX, s.rack.near[p.from-1], p.bytes()); err != nil {
				return err
			}
		}
		return nil
	})
	s.check()
	if n := len(s.states()); n != keys {
		t.Errorf("%d states of %d connections", n, keys)
	}
}

// Two CPUs keep making states of the same connection, while all states are removed and their places
// are soon used again.
func TestPFOneKeyTogether(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()})
	p := datagram(unix.IPPROTO_UDP)
	frames := [][]byte{p.bytes(), p.reply().bytes()}
	done := make(chan struct{})
	var cleaner sync.WaitGroup
	cleaner.Add(1)
	go func() {
		defer cleaner.Done()
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
				t.Error(err)
			}
			if err := s.gen.shared(func(shared *kernelShared) {
				shared.Clock = kernelClock{Now: shared.Clock.Now + 2, Epoch: shared.Clock.Epoch + 1}
			}); err != nil {
				t.Error(err)
			}
		}
	}()
	const want = 100
	s.together(func(cpu int) error {
		for end := time.Now().Add(20 * time.Second); s.count(kernelPfCounterPF_COUNT_INSERTS) < want && time.Now().Before(end); {
			_, err := s.gen.program(hookTCX).Run(&ebpf.RunOptions{
				Data: frames[cpu], Context: &skbContext{Ifindex: s.rack.near[cpu]}, Repeat: 200,
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	close(done)
	cleaner.Wait()
	s.check()
	if n := s.count(kernelPfCounterPF_COUNT_INSERTS); n < want {
		t.Errorf("%d states were made, want %d", n, want)
	}
}

// A trial does not change a connection, and makes no state.
func TestPFStateTrial(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep()}, func(c *Config) {
		c.Pf.Features |= uint64(kernelFeatureFEATURE_TRACE)
	})
	put := func(p segment) {
		t.Helper()
		s.run1(hookTCX, s.rack.near[p.from-1], p.bytes())
	}
	put(datagram(unix.IPPROTO_UDP))
	put(web(syn, 1, 0, 0))
	if n := len(s.states()); n != 0 {
		t.Errorf("%d states of a trial", n)
	}
	// with states of real connections
	real := newPFBench(t, []kernelPfRule{keep()})
	real.play(handshake(5000, 9000))
	state := real.only()
	if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_STORE, State: state}); err != nil {
		t.Fatal(err)
	}
	s.later(1)
	put(web(ack, 5000, 9000, 100))
	put(web(ack, 0x70000000, 9000, 100))
	put(web(rst, 5000, 0, 0))
	if got := s.only(); got != state {
		t.Errorf("the state was changed from %v to %v", state, got)
	}
}

// After many states were made and removed on two CPUs, nothing is left of them.
func TestPFNoLeak(t *testing.T) {
	s := newPFBench(t, []kernelPfRule{keep(func(r *kernelPfRule) { r.Flags |= kernelPfRuleFlagPF_TRACK_RULE })}, func(c *Config) {
		c.Pf.Buckets, c.Pf.StatesMax = 1024, 16000
	})
	const rounds, each = 10, 5000
	for round := range rounds {
		s.together(func(cpu int) error {
			for i := range each {
				p := datagram(unix.IPPROTO_UDP)
				p.sport, p.dport = uint16(i+1), uint16(round*2+cpu+1)
				if cpu == 1 && i%100 == 0 {
					if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
						return err
					}
				}
				if _, err := s.run(hookTCX, s.rack.near[0], p.bytes()); err != nil {
					return err
				}
			}
			return nil
		})
		s.check()
		s.later(100)
		s.sweepAll()
		if n := len(s.states()); n != 0 {
			t.Errorf("round %d: %d states left", round, n)
		}
		s.later(2)
	}
	s.check()
	if n := len(s.sources()); n != 0 {
		t.Errorf("%d sources left", n)
	}
	made, stats := s.count(kernelPfCounterPF_COUNT_INSERTS), s.ruleStats(0)
	if made != rounds*each*2 || stats.States != made || stats.Packets != [2]uint64{made, made} {
		t.Errorf("%d states made, want %d; the rule has %d, and %d packets", made, rounds*each*2, stats.States, stats.Packets)
	}
}

// BenchmarkPFEstablished measures the cost of a packet of a known connection in the tcx program, in
// nanoseconds, as the best of many short runs.
func BenchmarkPFEstablished(b *testing.B) {
	s := newPFBench(b, []kernelPfRule{keep()}, func(c *Config) {
		c.Pf.Features = uint64(kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES)
	})
	s.begin(handshake(5000, 9000))
	p := web(ack, 5000, 9000, 1000)
	kept, _ := size(b, s.gen.program(hookTCX))
	for name, data := range map[string][]byte{"no IP": unicast(2, 1), "data": p.bytes(), "ack": web(ack, 5000, 9000, 0).bytes()} {
		b.Run(name, func(b *testing.B) {
			const frames = 5000
			opts := ebpf.RunOptions{Data: slices.Clone(data), Context: &skbContext{Ifindex: s.rack.near[0]}, Repeat: frames}
			best := time.Duration(1 << 62)
			for n := 0; n < b.N; n += frames {
				err := s.rack.do(func() error {
					start := time.Now()
					_, err := s.gen.program(hookTCX).Run(&opts)
					best = min(best, time.Since(start))
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(best)/frames, "ns/frame")
			b.ReportMetric(float64(kept), "insns")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// Packets get the priority that the rule of their connection sets: the second of two if they are
// pure acknowledgements. XDP leaves them to tcx.
func TestPFSetPriority(t *testing.T) {
	stateless := kernelPfRule{Action: kernelPfActionPF_PASS, End: 1, Profile: 1}
	for name, rule := range map[string]kernelPfRule{"state": keep(func(r *kernelPfRule) { r.Profile = 1 }), "no state": stateless} {
		t.Run(name, func(t *testing.T) {
			s := newPFBench(t, []kernelPfRule{rule}, func(c *Config) { c.Pf.Asks |= uint16(kernelPfAskPF_ASK_PRIORITY) })
			s.set(kernelMapPfProfiles, uint32(1), kernelPfProfile{Timeout: testTimeouts, Priority: [2]uint8{3, 8}})
			open := segment{from: 1, to: 2, sport: 1000, dport: 80, flags: syn, seq: 1, win: 1000}
			answer := open.back()
			answer.flags, answer.seq, answer.ack = syn|ack, 100, 2
			done := open
			done.flags, done.seq, done.ack = ack, 2, 101
			data := done
			data.payload = 10
			for i, step := range []struct {
				segment
				priority uint32
			}{{open, 2}, {answer, 7}, {done, 7}, {data, 2}, {data, 2}} {
				port := step.from - 1
				expect(t, fmt.Sprint("XDP, ", i), s.xdp(port, step.bytes()), passed)
				ctx, out := skbContext{Ifindex: s.rack.near[port]}, skbContext{}
				if err := s.rack.do(func() error {
					frame := step.bytes()
					_, err := s.gen.program(hookTCX).Run(&ebpf.RunOptions{
						Data: frame, DataOut: make([]byte, len(frame)+258), Context: &ctx, ContextOut: &out,
					})
					return err
				}); err != nil {
					t.Fatal(err)
				}
				if out.Priority != step.priority {
					t.Errorf("packet %d has the priority %d, should have %d", i, out.Priority, step.priority)
				}
			}
		})
	}
}
