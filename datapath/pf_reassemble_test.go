// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

const reassemble = "pass proto tcp scrub (reassemble tcp)\n"

var nop = option(layers.TCPOptionKindNop)

// stamps is the TCP option with two timestamps.
func stamps(value, echo uint32) layers.TCPOption {
	return option(layers.TCPOptionKindTimestamps, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, value), echo)...)
}

// stampsOf returns the timestamps of a frame, also behind the end of the options.
func stampsOf(t *testing.T, frame []byte) (value, echo uint32) {
	t.Helper()
	tcp := tcpOf(t, frame)
	for o := tcp.Contents[20:]; len(o) >= 10; o = o[1:] {
		if o[0] == 8 && o[1] == 10 {
			return binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:])
		}
	}
	t.Fatalf("no timestamps in % x", frame)
	return 0, 0
}

// A tracked is a call whose timestamps get offsets.
type tracked struct {
	call
	t      *testing.T
	offset [2]uint32
	before []layers.TCPOption // in front of the timestamps
	after  []layers.TCPOption
}

// segment is a segment of a side, with the timestamps that it sends.
func (w *tracked) segment(side int, tcp layers.TCP, value, echo uint32) *layers.TCP {
	tcp.Options = slices.Concat(w.before, []layers.TCPOption{stamps(value, echo)}, w.after)
	return w.tcp(side, tcp)
}

// passes sends a segment of a side, with a TTL of 64. It has to arrive, with the connection's
// offsets, and with nothing else changed.
func (w *tracked) passes(side int, tcp layers.TCP, value, echo uint32, data ...byte) {
	w.t.Helper()
	sent := echo
	if echo != 0 {
		sent += w.offset[1-side] // the other side's timestamps have become this
	}
	out := w.send(side, w.sends(side, changed{ttl: 64}, w.segment(side, tcp, value, sent), gopacket.Payload(data)), []int{1 - side})
	got, gotEcho := stampsOf(w.t, out)
	if tcp.SYN {
		w.offset[side] = got - value
	}
	if got != value+w.offset[side] || gotEcho != echo {
		w.t.Errorf("timestamps %d, %d have become %d, %d; want %d, %d", value, sent, got, gotEcho, value+w.offset[side], echo)
	}
	sameFrame(w.t, "segment", out, w.sends(side, changed{ttl: 64}, w.segment(side, tcp, got, gotEcho), gopacket.Payload(data)))
}

// refused sends a segment that is dropped because of its timestamps, which are as in passes.
func (w *tracked) refused(side int, tcp layers.TCP, value, echo uint32, data ...byte) {
	w.t.Helper()
	frame := w.sends(side, changed{ttl: 64}, w.segment(side, tcp, value, echo+w.offset[1-side]), gopacket.Payload(data))
	w.send(side, frame, nil, "pf-timestamp")
}

// open makes the connection, with sequence numbers from 99 and 199 on, and timestamps from 1000 and
// 5000 on.
func (w *tracked) open() {
	w.t.Helper()
	w.passes(0, layers.TCP{Seq: 99, SYN: true}, 1000, 0)
	w.passes(1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 5000, 1000)
	w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1001, 5000)
}

// All timestamps of a side get the same offset, as values and as echoes, wherever they are among
// the options.
func TestReassembleTimestamps(t *testing.T) {
	end := layers.TCPOption{OptionType: layers.TCPOptionKindEndList, OptionLength: 1}
	for name, places := range map[string][2][]layers.TCPOption{
		"as most hosts":    {{nop, nop}, nil},
		"first":            {nil, {nop, nop}},
		"behind a byte":    {{nop}, {nop}},
		"behind an option": {{option(layers.TCPOptionKindSACKPermitted)}, nil},
		"behind the end":   {{end, end}, nil},
		"among many":       {{mss(1400), option(layers.TCPOptionKindWindowScale, 7), nop}, {option(layers.TCPOptionKindSACKPermitted)}},
	} {
		t.Run(name, func(t *testing.T) {
			eachCall(t, reassemble, func(t *testing.T, c call) {
				w := &tracked{call: c, t: t, before: places[0], after: places[1]}
				w.open()
				if w.offset[0] == 0 || w.offset[1] == 0 || w.offset[0] == w.offset[1] {
					t.Errorf("offsets %v are not by chance", w.offset)
				}
				for i := range uint32(3) { // their decision is remembered
					w.passes(0, layers.TCP{Seq: 100 + i, Ack: 200 + i, ACK: true}, 1010+i, 5000+i, 1)
					w.passes(1, layers.TCP{Seq: 200 + i, Ack: 101 + i, ACK: true}, 5001+i, 1010+i, 2)
				}
				if got := c.s.xdp(0, w.sends(0, changed{ttl: 64}, w.segment(0, layers.TCP{Seq: 103, Ack: 203, ACK: true}, 1020, w.offset[1]+5003))); got.Verdict != pass {
					t.Errorf("XDP: %s", got)
				}
				w.passes(0, layers.TCP{Seq: 103, Ack: 203, ACK: true}, 1020, 5003)
			})
		})
	}
	// each connection has its own offsets
	s := newRulesBench(t, reassemble)
	seen := map[uint32]bool{}
	for i := range 4 {
		w := &tracked{call: call{s: s, source: layers.TCPPort(4000 + i)}, t: t, before: []layers.TCPOption{nop, nop}}
		w.open()
		seen[w.offset[0]], seen[w.offset[1]] = true, true
	}
	if len(seen) != 8 {
		t.Errorf("8 sides have the offsets %v", seen)
	}
}

// An option that is too short is not a timestamp. A packet with two timestamps is dropped, if its
// side has timestamps.
func TestReassembleOptions(t *testing.T) {
	eachCall(t, reassemble, func(t *testing.T, c call) {
		w := &tracked{call: c, t: t, before: []layers.TCPOption{nop, nop}}
		short := layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 8, OptionData: []byte{1, 2, 3, 4, 5, 6}}
		for name, options := range map[string][]layers.TCPOption{
			"none":       nil,
			"too short":  {short},
			"at the end": {nop, nop, nop, nop, nop, nop, nop, nop, nop, nop, nop, nop, short},
		} {
			c.source++
			frame := c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: options}))
			sameFrame(t, name, c.send(0, frame, []int{1}), frame)
			// then the other side's timestamps are not checked
			both := c.sends(1, changed{ttl: 64}, c.tcp(1, layers.TCP{Seq: 199, Ack: 100, ACK: true, RST: true, Options: []layers.TCPOption{stamps(1, 2), stamps(3, 4)}}))
			sameFrame(t, name+", two of the other side", c.send(1, both, []int{0}), both)
		}
		// behind an option that is longer than the header, and one with the length 0
		for length, found := range map[byte]bool{60: false, 255: false, 0: true, 1: true} {
			c.source++
			frame := c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{option(77), stamps(1, 0)}}))
			frame[c.upper()+21] = length
			if value := binary.BigEndian.Uint32(c.send(0, frame, []int{1})[c.upper()+24:]); (value != 1) != found {
				t.Errorf("behind an option of %d bytes: timestamp 1 has become %d", length, value)
			}
		}
		c.source++
		twice := []layers.TCPOption{stamps(1000, 0), stamps(1000, 0)}
		c.send(0, c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: twice})), nil, "pf-timestamp")
		w.source = c.source
		w.open() // the dropped packet has left nothing
		c.send(0, c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 100, Ack: 200, ACK: true, Options: twice})), nil, "pf-timestamp")
		w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1002, 5000)
	})
}

// The TTL of each packet becomes the highest that its side has sent.
func TestReassembleTTL(t *testing.T) {
	eachCall(t, reassemble, func(t *testing.T, c call) {
		for i, tt := range []struct {
			side     int
			tcp      layers.TCP
			ttl, out uint8
		}{
			{0, layers.TCP{Seq: 99, SYN: true}, 60, 60},
			{0, layers.TCP{Seq: 99, SYN: true}, 9, 60},
			{1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 7, 7},
			{0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1, 60},
			{0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 255, 255},
			{0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 61, 255},
			{1, layers.TCP{Seq: 200, Ack: 100, ACK: true}, 6, 7},
			{1, layers.TCP{Seq: 200, Ack: 100, ACK: true}, 8, 8},
			{1, layers.TCP{Seq: 200, Ack: 100, ACK: true}, 7, 8},
		} {
			frame := c.sends(tt.side, changed{ttl: tt.ttl, tos: 3}, c.tcp(tt.side, tt.tcp))
			if got := c.s.xdp(tt.side, frame); got.Verdict != pass {
				t.Errorf("%d by XDP: %s", i, got)
			}
			out := c.send(tt.side, frame, []int{1 - tt.side})
			sameFrame(t, "packet", out, c.sends(tt.side, changed{ttl: tt.out, tos: 3}, c.tcp(tt.side, tt.tcp)))
		}
	})
}

// A packet whose timestamps its side cannot have sent is dropped, and changes nothing.
func TestReassemblePAWS(t *testing.T) {
	eachCall(t, reassemble, func(t *testing.T, c call) {
		w := &tracked{call: c, t: t, before: []layers.TCPOption{nop, nop}}
		w.open()
		w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1100, 5000, 1)
		w.passes(1, layers.TCP{Seq: 200, Ack: 101, ACK: true}, 5100, 1100, 1)
		w.passes(0, layers.TCP{Seq: 101, Ack: 201, ACK: true}, 1200, 5100)
		before := (&pfBench{bench: c.s}).only()
		data := layers.TCP{Seq: 101, Ack: 201, ACK: true}
		w.refused(0, data, 1099, 5100, 1)         // before the value that the other side has echoed
		w.refused(0, data, 1200+60*1100, 5100, 1) // a minute from now
		w.refused(0, data, 1<<31+1000, 5100, 1)   // half way round
		w.refused(0, data, 1201, 5101, 1)         // echoes a timestamp that was not sent
		w.refused(0, data, 1201, 4999, 1)         // echoes a timestamp from before the connection
		w.refused(1, layers.TCP{Seq: 201, Ack: 101, ACK: true}, 5101, 1201, 1)
		w.refused(1, layers.TCP{Seq: 201, Ack: 101, FIN: true, ACK: true}, 4000, 1200)
		// without timestamps, if the side's data has them
		c.send(0, c.sends(0, changed{ttl: 64}, c.tcp(0, data), gopacket.Payload("x")), nil, "pf-timestamp")
		if after := (&pfBench{bench: c.s}).only(); after != before {
			t.Errorf("the state was\n%+v and is\n%+v", before, after)
		}
		// an acknowledgement may have none, and so may a reset
		bare := c.sends(0, changed{ttl: 64}, c.tcp(0, data))
		sameFrame(t, "bare", c.send(0, bare, []int{1}), bare)
		w.passes(0, data, 1100, 5000, 1) // as late as allowed
		fin := data
		fin.FIN = true
		w.refused(0, fin, 1099, 5100)
		// an acknowledgement that was overtaken by another, a moment ago or long ago
		w.passes(0, data, 1099, 5100)
		w.passes(0, data, 1, 5100)
		w.refused(0, data, 1<<32-1, 5100)
		w.refused(0, data, 1099, 5100, 1)        // the acknowledgements have left nothing
		w.passes(0, data, 1200+29*1100, 5100, 1) // as early as allowed
		reset := c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 102, RST: true}))
		sameFrame(t, "reset", c.send(0, reset, []int{1}), reset)
	})
}

// A place of a former state keeps nothing of that state.
func TestReassembleAgain(t *testing.T) {
	c := call{s: newRulesBench(t, reassemble), source: 4000}
	w := &tracked{call: c, t: t, before: []layers.TCPOption{nop, nop}}
	for i := range uint32(3) {
		was := w.offset
		w.open()
		if w.offset[0] == was[0] || w.offset[1] == was[1] {
			t.Errorf("offsets %v again", was)
		}
		w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 9000, 5000)
		if _, err := c.s.request(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH}); err != nil {
			t.Fatal(err)
		}
		c.s.at(c.s.clock().Now + 2 + i)
	}
}

// For connections that were met in the middle, and those without timestamps, only the TTL is kept.
func TestReassembleMiddle(t *testing.T) {
	eachCall(t, "pass proto tcp flags any scrub (reassemble tcp)\n", func(t *testing.T, c call) {
		for _, value := range []uint32{5000, 4000, 9_000_000} {
			tcp := c.tcp(0, layers.TCP{Seq: 100, Ack: 200, ACK: true, Options: []layers.TCPOption{nop, nop, stamps(value, 77)}})
			frame := c.sends(0, changed{ttl: 64}, tcp, gopacket.Payload("x"))
			sameFrame(t, "data", c.send(0, frame, []int{1}), frame)
		}
		low := c.sends(0, changed{ttl: 3}, c.tcp(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}))
		sameFrame(t, "TTL", c.send(0, low, []int{1}), c.sends(0, changed{ttl: 64}, c.tcp(0, layers.TCP{Seq: 100, Ack: 200, ACK: true})))
	})
}

// Packets stay as they are if they have no TCP state, or a sloppy one.
func TestReassembleOthers(t *testing.T) {
	syn := layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{nop, nop, stamps(1000, 0)}}
	for _, rules := range []string{"pass scrub (reassemble tcp) no state", "pass scrub (reassemble tcp) keep state (sloppy)"} {
		c := call{s: newRulesBench(t, rules+"\n"), source: 4000}
		for _, ttl := range []uint8{64, 5} {
			frame := c.sends(0, changed{ttl: ttl}, c.tcp(0, syn))
			sameFrame(t, rules, c.send(0, frame, []int{1}), frame)
		}
	}
	c := call{s: newRulesBench(t, "pass scrub (reassemble tcp)\n"), source: 4000}
	for _, ttl := range []uint8{64, 5} {
		frame := c.sends(0, changed{ttl: ttl}, &layers.UDP{SrcPort: 7, DstPort: 9})
		sameFrame(t, "UDP", c.send(0, frame, []int{1}), frame)
		if got := c.s.xdp(0, frame); got.Verdict == pass {
			t.Errorf("XDP leaves UDP to tcx: %s", got)
		}
	}
}

// It works together with all other changes of packets.
func TestReassembleWithAll(t *testing.T) {
	eachCall(t, "match scrub (no-df, min-ttl 100, max-mss 1000, reassemble tcp) set tos 0x28\npass proto tcp modulate state\n", func(t *testing.T, c call) {
		was, is := changed{ttl: 64, tos: 0xb9}, changed{ttl: 100, tos: 0x29, noDF: true}
		options := func(n uint16, value, echo uint32) []layers.TCPOption {
			return []layers.TCPOption{mss(n), nop, stamps(value, echo), nop}
		}
		first := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: options(1460, 1000, 0)})
		out := c.send(0, c.sends(0, was, first), []int{1})
		value, _ := stampsOf(t, out)
		seq := tcpOf(t, out).Seq
		first.Seq, first.Options = seq, options(1000, value, 0)
		sameFrame(t, "SYN", out, c.sends(0, is, first))
		if seq == 99 || value == 1000 {
			t.Errorf("number %d, timestamp %d: one of them is as it was", seq, value)
		}
		answer := c.tcp(1, layers.TCP{Seq: 199, Ack: seq + 1, SYN: true, ACK: true, Options: options(1460, 5000, value)})
		out = c.send(1, c.sends(1, was, answer), []int{0})
		other, echo := stampsOf(t, out)
		answer.Seq, answer.Ack, answer.Options = tcpOf(t, out).Seq, 100, options(1000, other, 1000)
		sameFrame(t, "SYN+ACK", out, c.sends(1, is, answer))
		if echo != 1000 || other == 5000 {
			t.Errorf("timestamps %d, %d", other, echo)
		}
	})
}

// Each copy of a flood gets the same changes, also if the connection is known.
func TestReassembleFlood(t *testing.T) {
	s := newRulesBench(t, reassemble)
	w := &tracked{call: call{s: s, source: 4000}, t: t, before: []layers.TCPOption{nop, nop}}
	syn := layers.TCP{Seq: 99, SYN: true}
	if err := s.remove(address{mac: station(2)}); err != nil {
		t.Fatal(err)
	}
	out := w.send(0, w.sends(0, changed{ttl: 64}, w.segment(0, syn, 1000, 0)), []int{1, 2})
	value, _ := stampsOf(t, out)
	w.offset[0] = value - 1000
	if w.offset[0] == 0 {
		t.Error("the timestamp is as it was")
	}
	out = w.send(0, w.sends(0, changed{ttl: 3}, w.segment(0, syn, 1001, 0)), []int{1, 2})
	sameFrame(t, "again", out, w.sends(0, changed{ttl: 64}, w.segment(0, syn, 1001+w.offset[0], 0)))
	s.learn(1, 2)
	w.passes(1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 5000, 1000)
	w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1001, 5000)
	if err := s.remove(address{mac: station(2)}); err != nil {
		t.Fatal(err)
	}
	old := w.segment(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 900, 5000+w.offset[1])
	w.send(0, w.sends(0, changed{ttl: 64}, old, gopacket.Payload("x")), nil, "pf-timestamp")
}

// A bridge that reloads its rules, with a larger table of states, keeps the offsets.
func TestReassembleReload(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, reassemble)
	frame := func(side int, tcp layers.TCP, value, echo uint32) []byte {
		w := &tracked{call: call{s: &bench{t: t}, source: 4000}, t: t, before: []layers.TCPOption{nop, nop}}
		return w.sends(side, changed{ttl: 64}, w.segment(side, tcp, value, echo))
	}
	kept := func() (list []kernelPfReassembly) {
		t.Helper()
		table, err := b.states(unix.PROT_READ)
		if err != nil {
			t.Fatal(err)
		}
		defer table.close()
		table.each(func(place uint32, _ *kernelPfState) bool {
			list = append(list, table.kept(place))
			return true
		})
		return list
	}
	s.run(b, 0, frame(0, layers.TCP{Seq: 99, SYN: true}, 1000, 0))
	first := kept()
	if len(first) != 1 || first[0].Side[0].Value != 1000 && first[0].Side[1].Value != 1000 {
		t.Fatalf("%+v is kept, want one SYN", first)
	}
	for _, load := range []struct {
		name, rules string
		states      uint32
	}{
		{"again", reassemble, 1000}, {"other rules", "pass\n", 1000}, {"more states", "pass\n", 100_000}, {"fewer", reassemble, 500},
	} {
		s.loadPF(b, load.rules, func(_ *Config, p *PF) { p.StatesMax = load.states })
		if now := kept(); len(now) != 1 || now[0] != first[0] {
			t.Errorf("%s: %+v is kept, want %+v", load.name, now, first)
		}
	}
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Flags &^= uint32(BridgePF) }); err != nil {
		t.Fatal(err)
	}
	if now := kept(); len(now) != 1 || now[0] != first[0] {
		t.Errorf("disabled: %+v is kept, want %+v", now, first)
	}
	if _, err := b.FlushStates(); err != nil {
		t.Fatal(err)
	}
	s.loadPF(b, "pass\n")
	m, err := b.openTable(kernelMapPfStamps)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if n := m.MaxEntries(); n != 1 {
		t.Errorf("%d entries without a rule and states, want 1", n)
	}
}

// Fragments get the TTL of their side. A later fragment does not set it: its sequence numbers are
// not checked, so its sender may be anyone.
func TestReassembleFragments(t *testing.T) {
	c := call{s: newRulesBench(t, reassemble), source: 4000}
	w := &tracked{call: c, t: t, before: []layers.TCPOption{nop, nop}}
	fragment := func(side int, ttl uint8, offset uint16, more bool, upper ...gopacket.SerializableLayer) []byte {
		ip := c.ip(side, layers.IPProtocolTCP).(*layers.IPv4)
		ip.TTL, ip.Id, ip.FragOffset, ip.Flags = ttl, 77, offset, 0
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		macs := []mac{station(1), station(2)}
		return c.frame(macs[side], macs[1-side], ip, upper...)
	}
	eight := gopacket.Payload("eight by")
	w.passes(0, layers.TCP{Seq: 99, SYN: true}, 1000, 0)
	strange := c.tcp(1, layers.TCP{Seq: 1 << 30, Ack: 1 << 30, RST: true, ACK: true, Options: []layers.TCPOption{nop, nop, nop, nop}})
	c.send(1, fragment(1, 9, 0, true, strange, eight), nil, "pf-state")
	late := fragment(1, 9, 4, false, eight)
	sameFrame(t, "a later fragment", c.send(1, late, []int{0}), late)
	w.passes(1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 5000, 1000)
	if w.offset[1] == 0 {
		t.Error("the timestamp is as it was")
	}
	w.passes(0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1001, 5000)
	sameFrame(t, "a later fragment of a side that has begun", c.send(1, late, []int{0}), fragment(1, 64, 4, false, eight))
}

// After a table is copied while packets come, timestamps are not compared before both sides have
// sent new ones. The offsets of connections that have begun meanwhile stay.
func TestReassembleLate(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, reassemble)
	send := func(source uint16, side int, tcp layers.TCP, value, echo uint32) {
		t.Helper()
		w := &tracked{call: call{s: &bench{t: t}, source: layers.TCPPort(source)}, t: t, before: []layers.TCPOption{nop, nop}}
		s.run(b, side, w.sends(side, changed{ttl: 64}, w.segment(side, tcp, value, echo)))
	}
	of := func(table *stateTable, source uint16) (r kernelPfReassembly, packets uint64) {
		t.Helper()
		table.each(func(place uint32, st *kernelPfState) bool {
			if slices.Contains(st.Key.Port[:], fromNetwork(source)) {
				r, packets = table.kept(place), st.sent(0)+st.sent(1)
			}
			return true
		})
		return r, packets
	}
	from, err := b.states(unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	defer from.close()
	offset := func(source uint16, value uint32) uint32 { // offset of the side whose last timestamp is value
		t.Helper()
		r, _ := of(from, source)
		for _, side := range r.Side {
			if side.Of != 0 && side.Value == value {
				return side.Offset
			}
		}
		t.Fatalf("%+v is kept, want a side that has sent %d", r, value)
		return 0
	}
	send(4000, 0, layers.TCP{Seq: 99, SYN: true}, 1000, 0)
	send(4001, 0, layers.TCP{Seq: 99, SYN: true}, 1000, 0)
	send(4000, 1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 5000, 1000+offset(4000, 1000))
	send(4000, 0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1001, 5000+offset(4000, 5000))
	if r, _ := of(from, 4000); r.Side[0].Flags&r.Side[1].Flags&stampsChecked == 0 {
		t.Fatalf("%+v is kept: the timestamps are not compared", r)
	}
	next := b.Config
	next.Pf.Buckets *= 2
	g, err := b.load(&next, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	maps := g.coll.Maps
	to, err := mapStates(maps[kernelMapPfBuckets], maps[kernelMapPfStates], maps[kernelMapPfStamps], &next, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		t.Fatal(err)
	}
	defer to.close()
	same := func(name string, source uint16, packets uint64) {
		t.Helper()
		want, _ := of(from, source)
		for i := range want.Side {
			want.Side[i].Flags &^= stampsChecked
		}
		if r, n := of(to, source); r != want || n != packets {
			t.Errorf("%s, port %d: %+v is kept, and %d packets, want %+v and %d", name, source, r, n, want, packets)
		}
	}
	same("at once", 4000, 3)
	same("at once", 4001, 1)
	send(4001, 1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true}, 6000, 1000+offset(4001, 1000))
	send(4000, 0, layers.TCP{Seq: 100, Ack: 200, ACK: true}, 1002, 5000+offset(4000, 5000))
	to.each(func(place uint32, st *kernelPfState) bool { // packets of 4001 meet the new table already
		if slices.Contains(st.Key.Port[:], fromNetwork(4001)) {
			to.states[place].Packets[0] += 9
			to.states[place].Packets[1] += 9
		}
		return true
	})
	if err := b.copyStates(g, &next, true); err != nil {
		t.Fatal(err)
	}
	same("late", 4000, 4)
	same("late", 4001, 19)
}
