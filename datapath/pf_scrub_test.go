// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The fields of an IP header that scrub and set tos change.
type changed struct {
	ttl, tos uint8
	noDF     bool
	id       uint16
}

// sends makes a frame of one of the two stations whose IP header has the given fields.
func (c call) sends(side int, h changed, upper ...gopacket.SerializableLayer) []byte {
	c.s.t.Helper()
	macs := []mac{station(1), station(2)}
	proto := layers.IPProtocolTCP
	switch upper[0].(type) {
	case *layers.UDP:
		proto = layers.IPProtocolUDP
	case *layers.ICMPv4:
		proto = layers.IPProtocolICMPv4
	case *layers.ICMPv6:
		proto = layers.IPProtocolICMPv6
	}
	ip := c.ip(side, proto)
	switch ip := ip.(type) {
	case *layers.IPv4:
		ip.TTL, ip.TOS, ip.Id = h.ttl, h.tos, h.id
		if h.noDF {
			ip.Flags = 0
		}
	case *layers.IPv6:
		ip.HopLimit, ip.TrafficClass, ip.FlowLabel = h.ttl, h.tos, 0x12345
	}
	return c.frame(macs[side], macs[1-side], ip, upper...)
}

// tcp makes a TCP header of one of the two stations.
func (c call) tcp(side int, tcp layers.TCP) *layers.TCP {
	ports := []layers.TCPPort{c.source, 80}
	tcp.SrcPort, tcp.DstPort, tcp.Window = ports[side], ports[1-side], 60000
	return &tcp
}

func mss(n uint16) layers.TCPOption {
	return option(layers.TCPOptionKindMSS, binary.BigEndian.AppendUint16(nil, n)...)
}

// Options of a SYN, with the MSS at different offsets.
func mssOptions(n uint16) map[string][]layers.TCPOption {
	nop, scale := option(layers.TCPOptionKindNop), option(layers.TCPOptionKindWindowScale, 7)
	return map[string][]layers.TCPOption{
		"first":                {mss(n)},
		"behind a byte":        {nop, mss(n), nop, nop, nop},
		"behind three":         {scale, mss(n), nop},
		"behind two, and last": {option(layers.TCPOptionKindSACKPermitted), scale, nop, nop, nop, mss(n)},
	}
}

// All packets of a connection are changed, in both directions, with their checksums.
func TestScrub(t *testing.T) {
	const rules = "match scrub (max-mss 1000, min-ttl 100, no-df) set tos 0x28\npass proto tcp\n"
	eachCall(t, rules, func(t *testing.T, c call) {
		was, is := changed{ttl: 64, tos: 0xb9}, changed{ttl: 100, tos: 0x29, noDF: true} // the ECN bits stay
		for name, options := range mssOptions(1460) {
			c.source++
			first := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: options})
			frame := c.sends(0, was, first)
			if got := c.s.xdp(0, frame); got.Verdict != pass {
				t.Errorf("XDP: %s", got)
			}
			out := c.send(0, frame, []int{1})
			first.Options = mssOptions(1000)[name]
			sameFrame(t, "SYN, MSS "+name, out, c.sends(0, is, first))

			answer := c.tcp(1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true, Options: options})
			out = c.send(1, c.sends(1, was, answer), []int{0})
			answer.Options = mssOptions(1000)[name]
			sameFrame(t, "SYN+ACK, MSS "+name, out, c.sends(1, is, answer))

			times := option(layers.TCPOptionKindTimestamps, 1, 2, 3, 4, 5, 6, 7, 8)
			nop := option(layers.TCPOptionKindNop)
			data := c.tcp(0, layers.TCP{Seq: 100, Ack: 200, ACK: true, Options: []layers.TCPOption{nop, nop, times}})
			frame = c.sends(0, was, data, gopacket.Payload("some data"))
			if got := c.s.xdp(0, frame); got.Verdict != pass {
				t.Errorf("XDP: %s", got)
			}
			sameFrame(t, "data", c.send(0, frame, []int{1}), c.sends(0, is, data, gopacket.Payload("some data")))
			far := is
			far.ttl = 200
			sameFrame(t, "of a larger TTL", c.send(0, c.sends(0, changed{ttl: 200, tos: 1}, data), []int{1}), c.sends(0, far, data))
		}
		c.source++
		small := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(536)}})
		sameFrame(t, "a smaller MSS", c.send(0, c.sends(0, was, small), []int{1}), c.sends(0, is, small))

		// wrong checksums stay wrong
		c.source++
		wrong := c.sends(0, was, c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(1460)}}))
		wrong[c.upper()+17]++
		want := c.sends(0, is, c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(1000)}}))
		want[c.upper()+17]++
		sameFrame(t, "a wrong checksum", c.send(0, wrong, []int{1}), want)
	})
}

// A state's counters are right next to the values that it keeps for scrub. These values are
// the rules' at the time when the state was made.
func TestScrubState(t *testing.T) {
	c := call{s: newRulesBench(t, "pass proto udp scrub (max-mss 65535 min-ttl 255 no-df random-id) set tos 255"), source: 4000}
	udp := &layers.UDP{SrcPort: 7, DstPort: 9}
	for range 5 {
		c.send(0, c.sends(0, changed{ttl: 64}, udp), []int{1})
	}
	udp.SrcPort, udp.DstPort = 9, 7
	c.send(1, c.sends(1, changed{ttl: 64}, udp), []int{0})
	s := (&pfBench{bench: c.s}).only()
	if s.sent(0) != 5 || s.sent(1) != 1 {
		t.Errorf("%d and %d packets, want 5 and 1", s.sent(0), s.sent(1))
	}
}

// A fragment keeps its id, and loses DF like other packets.
func TestScrubRandomID(t *testing.T) {
	c := call{s: newRulesBench(t, "pass scrub (random-id) no state"), source: 4000}
	udp := &layers.UDP{SrcPort: 7, DstPort: 9}
	ids := map[uint16]bool{}
	for range 8 {
		frame := c.sends(0, changed{ttl: 64, id: 77}, udp)
		out := c.send(0, frame, []int{1})
		id := binary.BigEndian.Uint16(out[etherHeader+4:])
		ids[id] = true
		sameFrame(t, "random-id", out, c.sends(0, changed{ttl: 64, id: id}, udp))
	}
	if len(ids) < 7 {
		t.Errorf("ids %v are not by chance", ids)
	}
	ip := c.ip(0, layers.IPProtocolUDP).(*layers.IPv4)
	ip.Flags, ip.Id = layers.IPv4MoreFragments, 77
	frame := c.frame(station(1), station(2), ip, udp, gopacket.Payload("eight by"))
	sameFrame(t, "fragment", c.send(0, frame, []int{1}), frame)
}

// The words of several rules add up: of the match rules and the deciding rule the last one
// wins, and of the ways in and out the stricter one.
func TestScrubAddsUp(t *testing.T) {
	for name, tt := range map[string]struct {
		rules    string
		ttl, tos uint8
		mss      uint16
	}{
		"none":                   {"pass", 64, 0, 1460},
		"the last":               {"match scrub (min-ttl 100 max-mss 500) set tos 4; match scrub (min-ttl 90); pass scrub (max-mss 600) set tos 8", 90, 8, 600},
		"out is smaller":         {"match in scrub (min-ttl 100 max-mss 600); match out scrub (min-ttl 90 max-mss 500); pass", 100, 0, 500},
		"in is smaller":          {"match in scrub (min-ttl 90 max-mss 500); match out scrub (min-ttl 100 max-mss 600); pass", 100, 0, 500},
		"tos of the way out":     {"match in set tos 4; match out set tos 8; pass", 64, 8, 1460},
		"tos of the way in":      {"match in set tos 4; pass", 64, 4, 1460},
		"without a state":        {"match scrub (min-ttl 90) set tos 4; pass no state scrub (max-mss 500)", 90, 4, 500},
		"no rule passes":         {"match out scrub (max-mss 500)", 64, 0, 500},
		"what does not decide":   {"pass scrub (max-mss 500); pass", 64, 0, 1460},
		"sloppy, and modulated":  {"match scrub (max-mss 500); pass keep state (sloppy)", 64, 0, 500},
		"one rule for both ways": {"pass quick scrub (min-ttl 90 max-mss 500)", 90, 0, 500},
	} {
		c := call{s: newRulesBench(t, rulesOf(tt.rules)), source: 4000}
		first := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(1460)}})
		out := c.send(0, c.sends(0, changed{ttl: 64}, first), []int{1})
		first.Options = []layers.TCPOption{mss(tt.mss)}
		sameFrame(t, name, out, c.sends(0, changed{ttl: tt.ttl, tos: tt.tos}, first))
	}
}

// rulesOf puts rules that are separated by semicolons on lines of their own.
func rulesOf(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == ';' {
			b[i] = '\n'
		}
	}
	return string(append(b, '\n'))
}

// A flood is changed once, by the rules of its first port.
func TestScrubFlood(t *testing.T) {
	c := call{s: newRulesBench(t, "pass scrub (min-ttl 100)"), source: 4000}
	udp := &layers.UDP{SrcPort: 7, DstPort: 9}
	ip := c.ip(0, layers.IPProtocolUDP).(*layers.IPv4)
	frame := c.frame(station(1), mac(broadcast), ip, udp)
	out := c.send(0, frame, []int{1, 2})
	ip.TTL = 100
	sameFrame(t, "flood", out, c.frame(station(1), mac(broadcast), ip, udp))
}

// Sequence numbers and headers are changed together, also in errors about changed packets.
func TestScrubModulate(t *testing.T) {
	eachCall(t, "pass proto tcp modulate state scrub (max-mss 1000, min-ttl 100)", func(t *testing.T, c call) {
		first := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(1460)}})
		out := c.send(0, c.sends(0, changed{ttl: 64}, first), []int{1})
		first.Options, first.Seq = []layers.TCPOption{mss(1000)}, tcpOf(t, out).Seq
		sameFrame(t, "SYN", out, c.sends(0, changed{ttl: 100}, first))

		e := c.errorAbout(out)
		at := c.upper() - 20 // where the TTL is, 64 in both
		if c.v6 {
			at = c.upper() - 40
		}
		got := c.send(1, e, []int{0})
		ttl := got[at+8]
		if c.v6 {
			ttl = got[at+7]
		}
		if ttl != 100 {
			t.Errorf("an error's TTL is %d, want 100", ttl)
		}
	})
}

// With a handshake that the switch makes, the client gets and sends no larger segments
// either.
func TestScrubSynproxy(t *testing.T) {
	eachCall(t, "pass in on p0 proto tcp synproxy state scrub (max-mss 1000)", func(t *testing.T, c call) {
		first := c.tcp(0, layers.TCP{Seq: 99, SYN: true, Options: []layers.TCPOption{mss(1460)}})
		out := tcpOf(t, c.send(0, c.sends(0, changed{ttl: 64}, first), []int{0}, "pf-synproxy"))
		if len(out.Options) == 0 || binary.BigEndian.Uint16(out.Options[0].OptionData) != 1000 {
			t.Errorf("the answer has %v, want an MSS of 1000", out.Options)
		}
	})
}
