// SPDX-License-Identifier: BSD-2-Clause

package sflow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func TestParse(t *testing.T) {
	o, err := Parse("[2001:db8::1]:6343,rate=7,drops=0,polling=0,agent=192.0.2.1,sub-agent=4294967295")
	if err != nil || o.Collector.String() != "[2001:db8::1]:6343" || o.Rate != 7 || o.Drops != 0 || o.Polling != 0 ||
		o.Agent.String() != "192.0.2.1" || o.SubAgent != 1<<32-1 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := Parse("127.0.0.1:1"); err != nil || o.Rate != 1000 || o.Drops != 100 || o.Polling != 30*time.Second || o.Agent.IsValid() {
		t.Errorf("without options: %+v, %v", o, err)
	}
	for _, text := range []string{
		"", "collector:6343", "192.0.2.1", "192.0.2.1:0", "192.0.2.1:65536", "0.0.0.0:6343", "192.0.2.1:6343,", "192.0.2.1:6343,rate",
		"192.0.2.1:6343,rate=0", "192.0.2.1:6343,rate=16777217", "192.0.2.1:6343,rate=-1", "192.0.2.1:6343,drops=129", "192.0.2.1:6343,polling=86401",
		"192.0.2.1:6343,agent=host", "192.0.2.1:6343,agent=fe80::1%eth0", "192.0.2.1:6343,rate=1,rate=1", "192.0.2.1:6343,header=64",
	} {
		if o, err := Parse(text); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %+v, %v; want an error of one line", text, o, err)
		}
	}
}

// Every reason has a code, and no other word has one.
func TestReasons(t *testing.T) {
	for _, r := range bridge.Reasons {
		if codes[r.Name] == 0 {
			t.Errorf("%s has no code of sFlow", r.Name)
		}
	}
	if len(codes) != len(bridge.Reasons) {
		t.Errorf("%d codes for %d reasons", len(codes), len(bridge.Reasons))
	}
}

// a fake bridge and its datagrams
type fake struct {
	next    []bridge.Sampled
	counts  map[uint32][2]uint64
	sent    [][]byte
	refuses int
	closed  bool
}

func (f *fake) Read() (d bridge.Sampled, err error) {
	if f.next == nil {
		return d, fs.ErrNotExist
	}
	if len(f.next) > 0 {
		d, f.next = f.next[0], f.next[1:]
	}
	return d, nil
}

func (f *fake) Counts(index uint32) (frames, drops uint64, err error) {
	return f.counts[index][0], f.counts[index][1], nil
}

func (f *fake) Close() error { f.closed = true; return nil }

func (f *fake) Write(b []byte) (int, error) {
	if f.refuses > 0 {
		f.refuses--
		return 0, syscall.ECONNREFUSED
	}
	f.sent = append(f.sent, bytes.Clone(b))
	return len(b), nil
}

// newFake exports a fake bridge, and logs to the buffer.
func newFake(t *testing.T, options string) (*fake, *exporter, *bytes.Buffer) {
	t.Helper()
	o, err := Parse("192.0.2.9:6343,agent=192.0.2.1," + options)
	if err != nil {
		t.Fatal(err)
	}
	f, log := &fake{counts: map[uint32][2]uint64{}}, &bytes.Buffer{}
	e := newExporter(o, f, slog.New(slog.NewTextHandler(log, nil)))
	e.sites[""] = map[string]*site{"br0": {bridge: "br0", sub: o.SubAgent, from: f}}
	return f, e, log
}

// decode parses a datagram with gopacket, which does not support discarded packets.
func decode(t *testing.T, b []byte) *layers.SFlowDatagram {
	t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeSFlow, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("% x: %v", b, e.Error())
	}
	return p.Layer(layers.LayerTypeSFlow).(*layers.SFlowDatagram)
}

func ether(kind uint16, size int) []byte {
	b := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}, make([]byte, size-12)...)
	binary.BigEndian.PutUint16(b[12:], kind)
	return b
}

// A foreign decoder finds the samples in datagrams.
func TestFlows(t *testing.T) {
	f, e, _ := newFake(t, "rate=8,polling=0,sub-agent=5")
	tagged := ether(0x8100, 61) // its end is padded
	tagged[14] = 3 << 5
	tagged[15] = 10
	f.next = []bridge.Sampled{{Flows: []bridge.SampledFrame{
		{In: 3, Out: 4, VLAN: 10, Length: 9000, Data: tagged},
		{In: 3, Flood: true, Length: 60, Data: ether(0x86dd, 60)},
		{In: 3, Reason: "vlan", Length: 14, Data: ether(0x0800, 14)},
		{In: 1 << 30, Length: 60, Data: ether(0x0806, 60)},
	}, Missed: 2}}
	f.counts[3], f.counts[1<<30] = [2]uint64{1<<32 + 70, 0}, [2]uint64{9, 0}
	e.turn(time.Now())
	if len(f.sent) != 1 {
		t.Fatalf("%d datagrams, want one", len(f.sent))
	}
	d := decode(t, f.sent[0])
	if d.DatagramVersion != 5 || d.AgentAddress.String() != "192.0.2.1" || d.SubAgentID != 5 || d.SequenceNumber != 1 || len(d.FlowSamples) != 4 {
		t.Fatalf("%+v", d)
	}
	type sample struct{ seq, in, rate, pool, drops, form, out uint32 }
	for i, want := range []sample{
		{1, 3, 8, 70, 2, 0, 4}, {2, 3, 8, 70, 2, 2, 0}, {3, 3, 8, 70, 2, 1, 265}, {1, 1 << 30, 8, 9, 0, 0, internal},
	} {
		s := d.FlowSamples[i]
		got := sample{s.SequenceNumber, uint32(s.SourceIDIndex), s.SamplingRate, s.SamplePool, s.Dropped, uint32(s.OutputInterfaceFormat), s.OutputInterface}
		if got != want || s.InputInterface != want.in {
			t.Errorf("sample %d: %+v, want %+v", i, got, want)
		}
		frame := s.Records[0].(layers.SFlowRawPacketFlowRecord)
		in := bridge.SampledFrame{}
		in = []bridge.SampledFrame{{Length: 9000, Data: tagged}, {Length: 60, Data: ether(0x86dd, 60)},
			{Length: 14, Data: ether(0x0800, 14)}, {Length: 60, Data: ether(0x0806, 60)}}[i]
		if int(frame.FrameLength) != in.Length+4 || frame.PayloadRemoved != 4 || int(frame.HeaderLength) != len(in.Data) {
			t.Errorf("sample %d: frame of %d bytes, %d of them gone, %d here", i, frame.FrameLength, frame.PayloadRemoved, frame.HeaderLength)
		}
	}
	vlan := d.FlowSamples[0].Records[1].(layers.SFlowExtendedSwitchFlowRecord)
	if vlan.IncomingVLAN != 10 || vlan.IncomingVLANPriority != 3 || vlan.OutgoingVLAN != 10 || vlan.OutgoingVLANPriority != 3 {
		t.Errorf("the VLAN is %+v", vlan)
	}
}

// However many samples there are, datagrams fit packets, and their sequence numbers are consecutive.
func TestDatagrams(t *testing.T) {
	f, e, _ := newFake(t, "polling=0,drops=0")
	var all bridge.Sampled
	for range 256 {
		all.Flows = append(all.Flows, bridge.SampledFrame{In: 1, VLAN: 2, Out: 2, Length: 1514, Data: ether(0x0800, 128)})
	}
	all.Drops = all.Flows[:1]
	f.next = []bridge.Sampled{all}
	e.turn(time.Now())
	samples := uint32(0)
	for i, b := range f.sent {
		d := decode(t, b)
		if len(b) > mostDatagram || d.SequenceNumber != uint32(i+1) {
			t.Errorf("datagram %d: %d bytes, number %d", i+1, len(b), d.SequenceNumber)
		}
		for _, s := range d.FlowSamples {
			if samples++; s.SequenceNumber != samples {
				t.Errorf("sample %d has number %d", samples, s.SequenceNumber)
			}
		}
	}
	if samples != 256 {
		t.Errorf("%d samples, want 256", samples)
	}
}

// Drops have their reason, and the number of drops that were not reported.
func TestDiscards(t *testing.T) {
	f, e, _ := newFake(t, "drops=2,polling=0")
	drop := bridge.SampledFrame{In: 3, Reason: "pf", Length: 60, Data: ether(0x0800, 60)}
	f.next = []bridge.Sampled{{Drops: []bridge.SampledFrame{drop, drop, drop}}, {Drops: []bridge.SampledFrame{drop}}, {Drops: []bridge.SampledFrame{drop}}}
	f.counts[3] = [2]uint64{100, 10}
	now := time.Now()
	e.turn(now)
	e.turn(now.Add(time.Millisecond))
	f.counts[3] = [2]uint64{100, 20}
	e.turn(now.Add(time.Second))
	if len(f.sent) != 2 {
		t.Fatalf("%d datagrams, want 2: of the first second, and of the next", len(f.sent))
	}
	words := func(b []byte) (list []uint32) {
		for ; len(b) >= 4; b = b[4:] {
			list = append(list, binary.BigEndian.Uint32(b))
		}
		return list
	}
	// version, address, sub-agent, number, uptime, samples
	first, last := words(f.sent[0]), words(f.sent[1])
	if first[6] != 2 || last[6] != 1 {
		t.Fatalf("%d and %d samples, want 2 and 1", first[6], last[6])
	}
	for _, tt := range []struct {
		words []uint32
		want  [8]uint32 // format, number, class, index, drops, input, output, reason
	}{
		{first[7:], [8]uint32{5, 1, 0, 3, 0, 3, 0, 258}}, {last[7:], [8]uint32{5, 3, 0, 3, 7, 3, 0, 258}},
	} {
		got := [8]uint32(append([]uint32{tt.words[0]}, tt.words[2:9]...))
		if got != tt.want {
			t.Errorf("discarded packet %v, want %v", got, tt.want)
		}
	}
}

// A collector that cannot be reached is logged once, and loses no datagrams that it could receive.
func TestRefused(t *testing.T) {
	f, e, log := newFake(t, "polling=0")
	for range 5 {
		f.next = []bridge.Sampled{{Flows: []bridge.SampledFrame{{In: 1, Out: 2, Length: 60, Data: ether(0x0800, 60)}}}}
		f.refuses = 1
		e.turn(time.Now())
	}
	if len(f.sent) != 5 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%d datagrams, want 5; logged %q, want one line", len(f.sent), log)
	}
	f.next = nil
	e.turn(time.Now())
	if !f.closed || len(e.sites[""]) > 0 {
		t.Error("a bridge that has gone is sampled on")
	}
}

// the switch of a fake agent
type fakeSwitch struct{ ports []bridge.Port }

func (f fakeSwitch) Names() ([]string, error)            { return []string{"br0"}, nil }
func (f fakeSwitch) Ports(string) ([]bridge.Port, error) { return f.ports, nil }
func (f fakeSwitch) Cookie() (uint64, error)             { return 1, nil }
func (f fakeSwitch) LinkSettings(devices []string) (list []bridge.LinkSettings, err error) {
	for _, name := range devices {
		list = append(list, map[string]bridge.LinkSettings{
			"p1": {SpeedMbit: 10000, Duplex: bridge.DuplexFull}, "p2": {SpeedMbit: 10, Duplex: bridge.DuplexHalf},
		}[name])
	}
	return list, nil
}
func (f fakeSwitch) Sample(string, bridge.SampleOptions) (*bridge.Sampler, error) {
	return nil, errors.New("somebody else does already")
}

// The first counters come within the period, and the next ones once in each.
func TestCounters(t *testing.T) {
	f, e, log := newFake(t, "polling=16")
	f.next = []bridge.Sampled{}
	e.readers[""] = fakeSwitch{[]bridge.Port{
		{Bridge: "br0", Name: "p1", Index: 7, State: "forwarding", Flags: []string{"UP", "PROMISC"}, Stats: bridge.Stats{
			RxFrames: 1<<32 + 5, RxBytes: 1 << 40, TxFrames: 6, TxBytes: 7, Drops: map[string]uint64{"vlan": 2, "pf": 3},
		}},
		{Bridge: "br0", Name: "p2", Index: 8, State: "disabled"},
		{Bridge: "br0", Name: "p5", Index: 11, State: "forwarding"},
		{Bridge: "br0", Name: "p6", Index: 12, State: "forwarding", Type: bridge.TypePatch},
		{Bridge: "br0", Name: "mon", Index: 9, Type: bridge.TypeSpan},
		{Bridge: "other", Name: "p3", Index: 10},
	}}
	begin := time.Now()
	told := map[uint32]int{}
	for i := range 33 {
		e.turn(begin.Add(time.Duration(i) * time.Second))
	}
	for _, b := range f.sent {
		for _, s := range decode(t, b).CounterSamples {
			index := uint32(s.SourceIDIndex)
			if told[index]++; s.SequenceNumber != uint32(told[index]) {
				t.Errorf("counters of %d have number %d, want %d", index, s.SequenceNumber, told[index])
			}
			c := s.Records[0].(layers.SFlowGenericInterfaceCounters)
			switch {
			case index == 7 && (c.IfIndex != 7 || c.IfStatus != 3 || c.IfInOctets != 1<<40 || c.IfInUcastPkts != 5 || c.IfInDiscards != 5 ||
				c.IfOutOctets != 7 || c.IfOutUcastPkts != 6 || c.IfInErrors != unknown):
				t.Errorf("%+v", c)
			case index == 8 && c.IfStatus != 0:
				t.Errorf("%+v", c)
			}
			type link struct {
				speed                  uint64
				direction, promiscuous uint32
			}
			want := map[uint32]link{7: {10e9, 1, 1}, 8: {10e6, 2, 2}, 11: {0, 0, 2}, 12: {0, 1, 1}}[index]
			if got := (link{c.IfSpeed, c.IfDirection, c.IfPromiscuousMode}); got != want {
				t.Errorf("the link of %d is %+v, want %+v", index, got, want)
			}
			if name := s.Records[1].(layers.SFlowPORTNAME); name.Str != "p"+string('1'+rune(index-7)) {
				t.Errorf("port %d has the name %q", index, name.Str)
			}
		}
	}
	if told[7] != 3 || told[8] != 2 || len(told) != 4 {
		t.Errorf("counters were told so often: %v", told)
	}
	if n := e.stats.Counters.Load(); n != uint64(told[7]+told[8]+told[11]+told[12]) || e.stats.Datagrams.Load() != uint64(len(f.sent)) {
		t.Errorf("%d counters and %d datagrams are said to be sent", n, e.stats.Datagrams.Load())
	}
	e.look(map[place]reader{"": e.readers[""]})
	if log.Len() > 0 {
		t.Errorf("logged %q", log)
	}
	// A bridge that another program samples is logged once.
	delete(e.sites[""], "br0")
	for range 3 {
		e.look(map[place]reader{"": e.readers[""]})
	}
	if strings.Count(log.String(), "somebody else") != 1 {
		t.Errorf("logged %q, want one line of who else samples", log)
	}
}
