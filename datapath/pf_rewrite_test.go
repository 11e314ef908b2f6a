// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/pf"
)

// A call is a TCP connection between the stations 1, on port 0 of a bench, and
// 2, on port 1.
type call struct {
	s      *bench
	v6     bool
	vlan   uint16 // tag of its frames, 0 for none
	source layers.TCPPort
}

// newRulesBench makes a bench with the given rules of pf.conf(5).
func newRulesBench(t *testing.T, rules string, change ...func(c *Config, p []*Port)) *bench {
	t.Helper()
	set, err := pf.Parse("rules", []byte(rules), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	in := pf.Input{Main: set}
	for i := range 3 {
		in.Ports = append(in.Ports, pf.CompilePort{Slot: uint16(i + 1), Name: fmt.Sprintf("p%d", i)})
	}
	prog, err := pf.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	tables := Tables{PF: &PF{Program: prog, StatesMax: 1000, NodesMax: 10}}
	s := newBenchWith(t, sharedRack(t), tables, 3, append(change, allXDP, func(c *Config, _ []*Port) {
		c.Flags |= uint32(BridgePF)
		if err := (&Bridge{}).settlePF(c, &tables); err != nil {
			t.Fatal(err)
		}
	})...)
	s.retags = true
	s.learn(0, 1)
	s.learn(1, 2)
	return s
}

// from makes a frame of one of the two stations.
func (c call) from(side int, tcp layers.TCP, data ...byte) []byte {
	c.s.t.Helper()
	macs := []mac{station(1), station(2)}
	ports := []layers.TCPPort{c.source, 80}
	tcp.SrcPort, tcp.DstPort = ports[side], ports[1-side]
	return c.frame(macs[side], macs[1-side], c.ip(side, layers.IPProtocolTCP), &tcp, gopacket.Payload(data))
}

func (c call) address(side int) []byte {
	if c.v6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", side+1)).AsSlice()
	}
	return []byte{192, 0, 2, byte(side + 1)}
}

func (c call) ip(side int, proto layers.IPProtocol) gopacket.NetworkLayer {
	if c.v6 {
		return &layers.IPv6{Version: 6, NextHeader: proto, HopLimit: 64, SrcIP: c.address(side), DstIP: c.address(1 - side)}
	}
	return &layers.IPv4{
		Version: 4, TTL: 64, Protocol: proto, Flags: layers.IPv4DontFragment, SrcIP: c.address(side), DstIP: c.address(1 - side),
	}
}

// frame joins the headers, and sets the checksums.
func (c call) frame(src, dst mac, ip gopacket.NetworkLayer, upper ...gopacket.SerializableLayer) []byte {
	c.s.t.Helper()
	for _, l := range upper {
		if l, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := l.SetNetworkLayerForChecksum(ip); err != nil {
				c.s.t.Fatal(err)
			}
		}
	}
	eth := &layers.Ethernet{SrcMAC: src[:], DstMAC: dst[:], EthernetType: layers.EthernetTypeIPv4}
	if c.v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
	}
	all := []gopacket.SerializableLayer{eth}
	if c.vlan != 0 {
		all = append(all, &layers.Dot1Q{VLANIdentifier: c.vlan, Type: eth.EthernetType})
		eth.EthernetType = layers.EthernetTypeDot1Q
	}
	all = append(append(all, ip.(gopacket.SerializableLayer)), upper...)
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		c.s.t.Fatal(err)
	}
	return b.Bytes()
}

// send puts a frame to the tcx program at the port of the side that sends it. The
// program must send it to the ports in out or count the drops. send returns the changed
// frame.
func (c call) send(side int, frame []byte, out []int, drops ...string) []byte {
	c.s.t.Helper()
	before := c.s.allStats()
	err := c.s.rack.do(func() error {
		_, err := c.s.runContext(hookTCX, &skbContext{Ifindex: c.s.rack.near[side]}, frame)
		return err
	})
	if err != nil {
		c.s.t.Fatal(err)
	}
	var gotOut []int
	var gotDrops []string
	for slot, after := range c.s.allStats() {
		for range after.TxFrames - before[slot].TxFrames {
			gotOut = append(gotOut, slot-1)
		}
		for reason, n := range after.Drops {
			for range n - before[slot].Drops[reason] {
				gotDrops = append(gotDrops, Reasons()[reason])
			}
		}
	}
	if !slices.Equal(gotOut, out) || !slices.Equal(gotDrops, drops) {
		c.s.t.Fatalf("sent to %v, dropped %v; want %v, %v", gotOut, gotDrops, out, drops)
	}
	return slices.Clone(c.s.out)
}

// tcpOf returns the TCP header of a frame.
func tcpOf(t *testing.T, frame []byte) *layers.TCP {
	t.Helper()
	l := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).Layer(layers.LayerTypeTCP)
	if l == nil {
		t.Fatalf("no TCP in % x", frame)
	}
	return l.(*layers.TCP)
}

func sameFrame(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n% x, want\n% x", what, got, want)
	}
}

// sameSegment compares a frame that the switch has made, which the device will pad.
func sameSegment(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) < smallest {
		got = append(slices.Clone(got), make([]byte, smallest-len(got))...)
	}
	sameFrame(t, what, got, want)
}

// eachCall runs a test with connections of all kinds.
func eachCall(t *testing.T, rules string, run func(t *testing.T, c call)) {
	for _, v6 := range []bool{false, true} {
		for _, vlan := range []uint16{0, 7} {
			t.Run(fmt.Sprintf("IPv6 %v, VLAN %d", v6, vlan), func(t *testing.T) {
				s := newRulesBench(t, rules)
				if vlan != 0 {
					s.tcx(0, packet{dst: broadcast, src: station(1)}.tagged(vlan).bytes())
					s.tcx(1, packet{dst: broadcast, src: station(2)}.tagged(vlan).bytes())
				}
				run(t, call{s: s, v6: v6, vlan: vlan, source: 4000})
			})
		}
	}
}

func option(kind layers.TCPOptionKind, data ...byte) layers.TCPOption {
	n := uint8(len(data) + 2)
	if kind == layers.TCPOptionKindNop {
		n = 1
	}
	return layers.TCPOption{OptionType: kind, OptionLength: n, OptionData: data}
}

// sack is an option whose blocks begin and end at the given numbers.
func sack(numbers ...uint32) layers.TCPOption {
	var data []byte
	for _, n := range numbers {
		data = binary.BigEndian.AppendUint32(data, n)
	}
	return option(layers.TCPOptionKindSACK, data...)
}

// Each side uses its own sequence numbers, and the other side gets shifted ones.
func TestModulate(t *testing.T) {
	mine, theirs := uint32(0xffffff00), uint32(0x01020304) // so that the numbers overrun
	eachCall(t, "pass proto tcp modulate state", func(t *testing.T, c call) {
		syn := layers.TCP{Seq: mine, SYN: true, Window: 60000}
		moved := syn
		out := c.send(0, c.from(0, syn), []int{1})
		moved.Seq = tcpOf(t, out).Seq
		if moved.Seq == syn.Seq {
			t.Error("the number of a SYN is as it was")
		}
		sameFrame(t, "SYN", out, c.from(0, moved))
		sameFrame(t, "SYN again", c.send(0, c.from(0, syn), []int{1}), out)
		first := moved.Seq - syn.Seq

		answer := layers.TCP{Seq: theirs, Ack: mine + first + 1, SYN: true, ACK: true, Window: 60000}
		out = c.send(1, c.from(1, answer), []int{0})
		second := tcpOf(t, out).Seq - theirs
		if second == 0 || second == first {
			t.Errorf("the number of a SYN+ACK is moved by %#x, that of a SYN by %#x", second, first)
		}
		answer.Seq, answer.Ack = theirs+second, mine+1
		sameFrame(t, "SYN+ACK", out, c.from(1, answer))

		times := option(layers.TCPOptionKindTimestamps, 1, 2, 3, 4, 5, 6, 7, 8)
		nop := option(layers.TCPOptionKindNop)
		for name, options := range map[string]func(diff uint32) []layers.TCPOption{
			"no options": func(uint32) []layers.TCPOption { return nil },
			"times":      func(uint32) []layers.TCPOption { return []layers.TCPOption{nop, nop, times} },
			"a block":    func(d uint32) []layers.TCPOption { return []layers.TCPOption{nop, nop, sack(d+100, d+200)} },
			"three blocks and times": func(d uint32) []layers.TCPOption {
				return []layers.TCPOption{nop, nop, times, nop, nop, sack(d+100, d+200, d+0x10000, d+0x20000, d-1, d)}
			},
			"four blocks at an odd place": func(d uint32) []layers.TCPOption {
				return []layers.TCPOption{nop, sack(d+1, d+2, d+0xffff, d+0x10000, d+300, d+400, d-2, d-1)}
			},
			"times at an odd place": func(d uint32) []layers.TCPOption {
				return []layers.TCPOption{nop, times, sack(d+7, d+8)}
			},
		} {
			data := layers.TCP{Seq: mine + 1, Ack: theirs + second + 1, ACK: true, PSH: true, Window: 60000}
			data.Options = options(theirs + second)
			out := c.send(0, c.from(0, data, 1, 2, 3), []int{1})
			data.Seq, data.Ack, data.Options = mine+first+1, theirs+1, options(theirs)
			sameFrame(t, name, out, c.from(0, data, 1, 2, 3))
		}
		ack := layers.TCP{Seq: theirs + 1, Ack: mine + first + 4, ACK: true, Window: 60000}
		ack.Options = []layers.TCPOption{nop, nop, sack(mine+first+5, mine+first+6)}
		out = c.send(1, c.from(1, ack), []int{0})
		ack.Seq, ack.Ack = theirs+second+1, mine+4
		ack.Options = []layers.TCPOption{nop, nop, sack(mine+5, mine+6)}
		sameFrame(t, "acknowledgement", out, c.from(1, ack))

		// other packets do not match the connection by these numbers
		ack.Seq = theirs + second + 1
		c.send(1, c.from(1, layers.TCP{Seq: theirs + 1, Ack: mine + 4, ACK: true, Window: 60000}), nil, "pf-state")
		if got := c.s.xdp(0, c.from(0, syn)); got.Verdict != pass {
			t.Errorf("XDP: %s", got)
		}

		// an error quotes the modulated packet, and is translated back for its sender
		data := layers.TCP{Seq: mine + first + 1, Ack: theirs + 1, ACK: true, Window: 60000}
		got := c.send(1, c.errorAbout(c.from(0, data, 1, 2, 3)), []int{0})
		quoted := data
		quoted.Seq = mine + 1
		sameFrame(t, "error", got, c.errorAbout(c.from(0, quoted, 1, 2, 3)))
	})
}

// upper is where TCP begins in a frame.
func (c call) upper() int {
	at := etherHeader + 20
	if c.v6 {
		at += 20
	}
	if c.vlan != 0 {
		at += etherTag
	}
	return at
}

// errorAbout is an error of station 2 about a packet that is too large for it.
func (c call) errorAbout(frame []byte) []byte {
	at := etherHeader
	if c.vlan != 0 {
		at += etherTag
	}
	quoted := frame[at:]
	if c.v6 {
		return c.frame(station(2), station(1), c.ip(1, layers.IPProtocolICMPv6),
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypePacketTooBig, 0)},
			gopacket.Payload(append([]byte{0, 0, 5, 0}, quoted...)))
	}
	return c.frame(station(2), station(1), c.ip(1, layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: 1280}, gopacket.Payload(quoted))
}

// The switch makes the handshake with the client, and then with the server.
func TestSynproxy(t *testing.T) {
	const proxy = "pf-synproxy"
	mine, theirs := uint32(0xfffffffe), uint32(0x01020304)
	eachCall(t, "pass in on p0 proto tcp synproxy state", func(t *testing.T, c call) {
		mss := func(n uint16) []layers.TCPOption {
			return []layers.TCPOption{option(layers.TCPOptionKindMSS, byte(n>>8), byte(n))}
		}
		syn := layers.TCP{Seq: mine, SYN: true, Window: 60000, Options: mss(1400)}
		syn.Options = append(syn.Options, option(layers.TCPOptionKindNop), option(layers.TCPOptionKindWindowScale, 7))
		out := c.send(0, c.from(0, syn, 1, 2, 3), []int{0}, proxy)
		isn := tcpOf(t, out).Seq
		sameSegment(t, "SYN+ACK", out, c.from(1, layers.TCP{Seq: isn, Ack: mine + 1, SYN: true, ACK: true, Options: mss(1400)}))
		sameFrame(t, "SYN+ACK again", c.send(0, c.from(0, syn), []int{0}, proxy), out)

		// no other packet goes anywhere before the handshake is complete
		other := syn
		other.Seq++
		c.send(0, c.from(0, other), nil, proxy)
		ack := layers.TCP{Seq: mine + 1, Ack: isn + 1, ACK: true, Window: 50000}
		for name, wrong := range map[string]layers.TCP{
			"another number":          {Seq: mine + 2, Ack: isn + 1, ACK: true},
			"another acknowledgement": {Seq: mine + 1, Ack: isn, ACK: true},
			"a reset":                 {Seq: mine + 1, Ack: isn + 1, ACK: true, RST: true},
			"a reset alone":           {Seq: mine + 1, RST: true},
		} {
			t.Log(name)
			c.send(0, c.from(0, wrong), nil, proxy)
		}
		c.send(1, c.from(1, layers.TCP{Seq: theirs, Ack: mine + 1, SYN: true, ACK: true}), nil, proxy)

		out = c.send(0, c.from(0, ack, 1, 2, 3), []int{1})
		call := tcpOf(t, out)
		sameSegment(t, "SYN of the switch", out, c.from(0, layers.TCP{Seq: call.Seq, SYN: true, Options: mss(1400)}))
		probe := ack
		probe.Seq--
		sameFrame(t, "the same for a probe of the window", c.send(0, c.from(0, probe), []int{1}), out)
		c.send(1, c.from(1, layers.TCP{Seq: theirs, Ack: call.Seq, SYN: true, ACK: true}), nil, proxy)
		c.send(1, c.from(1, layers.TCP{Ack: call.Seq + 1, RST: true, ACK: true}), nil, proxy)

		// the acknowledgement goes back as a copy
		answer := layers.TCP{Seq: theirs, Ack: call.Seq + 1, SYN: true, ACK: true, Window: 40000}
		out = c.send(1, c.from(1, answer), []int{0, 1})
		sameSegment(t, "room for data", out, c.from(1, layers.TCP{Seq: isn + 1, Ack: mine + 1, ACK: true, Window: 40000}))

		ack.Window = 50000
		out = c.send(0, c.from(0, ack, 1, 2, 3), []int{1})
		moved := ack
		moved.Seq, moved.Ack = call.Seq+1, theirs+1
		sameFrame(t, "data", out, c.from(0, moved, 1, 2, 3))
		data := layers.TCP{Seq: theirs + 1, Ack: call.Seq + 4, ACK: true, Window: 40000}
		out = c.send(1, c.from(1, data, 4, 5), []int{0})
		data.Seq, data.Ack = isn+1, mine+4
		sameFrame(t, "data back", out, c.from(1, data, 4, 5))
	})
}

// A SYN reaches no station before its sender has completed a handshake, wherever the
// other side is; and its MSS is at most Ethernet's.
func TestSynproxyFlood(t *testing.T) {
	s := newRulesBench(t, "pass in on p0 proto tcp synproxy state")
	c := call{s: s}
	for n, want := range map[uint16]uint16{0: 536, 9000: 1460, 1: 64, 1000: 1000} {
		c.source = layers.TCPPort(n + 1)
		syn := layers.TCP{Seq: 1, SYN: true, Window: 1000}
		if n != 0 {
			syn.Options = []layers.TCPOption{option(layers.TCPOptionKindMSS, byte(n>>8), byte(n))}
		}
		frame := c.from(0, syn)
		unknown := station(99)
		copy(frame, unknown[:])
		out := tcpOf(t, c.send(0, frame, []int{0}, "pf-synproxy"))
		if got := binary.BigEndian.Uint16(out.Options[0].OptionData); got != want {
			t.Errorf("a MSS of %d is answered by %d, want %d", n, got, want)
		}
		group := broadcast
		copy(frame, group[:])
		c.send(0, frame, nil, "pf-synproxy")
	}
	if fdb := s.fdb(); len(fdb) != 2 {
		t.Errorf("%v were learned", fdb)
	}
}

// The rules on the way out are evaluated for the switch's SYN, with the tag that the
// first packet got.
func TestSynproxyOut(t *testing.T) {
	for _, tt := range []struct {
		name, rules string
		drops       []string
	}{
		{"passed by the tag", "block out on p1\npass in on p0 proto tcp tag known synproxy state\npass out on p1 tagged known", nil},
		{"another tag", "block out on p1\npass in on p0 proto tcp tag other synproxy state\npass out on p1 tagged known", []string{"pf"}},
		{"blocked", "pass in on p0 proto tcp synproxy state\nblock out on p1", []string{"pf"}},
		// as in pf, the switch makes handshakes on the way in
		{"only on the way out", "pass out on p1 proto tcp synproxy state", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := call{s: newRulesBench(t, tt.rules), source: 4000}
			syn := c.from(0, layers.TCP{Seq: 100, SYN: true, Window: 1000})
			if tt.name == "only on the way out" {
				if out := tcpOf(t, c.send(0, syn, []int{1})); out.Seq == 100 {
					t.Error("its numbers are not modulated")
				}
				return
			}
			isn := tcpOf(t, c.send(0, syn, []int{0}, "pf-synproxy")).Seq
			var out []int
			if tt.drops == nil {
				out = []int{1}
			}
			for range 2 {
				c.send(0, c.from(0, layers.TCP{Seq: 101, Ack: isn + 1, ACK: true, Window: 1000}), out, tt.drops...)
			}
		})
	}
}
