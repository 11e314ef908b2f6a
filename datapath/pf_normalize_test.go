// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/pf"
	"bascule/pf/reference"
)

// fixed returns the frame with a byte of its TCP header changed, and its checksum
// adjusted (RFC 1624, equation 3).
func (c call) fixed(frame []byte, at int, value byte) []byte {
	frame = slices.Clone(frame)
	upper := c.upper()
	word, check := upper+at&^1, upper+16
	was := binary.BigEndian.Uint16(frame[word:])
	frame[upper+at] = value
	is := binary.BigEndian.Uint16(frame[word:])
	sum := uint32(^binary.BigEndian.Uint16(frame[check:])) + uint32(^was) + uint32(is)
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[check:], ^uint16(sum))
	return frame
}

// Offsets in a TCP header.
const (
	tcpOffset = 12 // with the reserved bits
	tcpFlags  = 13
	tcpUrgent = 18
)

// Flags that no connection has make no state, and meaningless fields are cleared in
// packets that pass, as on OpenBSD.
func TestPFNormalizeFlags(t *testing.T) {
	eachCall(t, "pass proto tcp flags any", func(t *testing.T, c call) {
		dropped := uint64(0)
		for flags := range 256 {
			c.source++ // a new connection
			frame := c.fixed(c.from(0, layers.TCP{Seq: 7, Ack: 9, Window: 1000}), tcpFlags, byte(flags))
			packet := reference.Packet{Proto: reference.TCP, Flags: byte(flags)}
			ok := packet.Normalize()
			left := packet.Flags
			name := fmt.Sprintf("flags %s", pf.TCPFlags{Set: uint8(flags), Of: 255})
			if !ok || left != byte(flags) {
				if got := c.s.xdp(0, frame); got.Verdict != pass {
					t.Errorf("%s, XDP: %s", name, got)
				}
			}
			states := len((&pfBench{bench: c.s}).states())
			if !ok {
				dropped++
				c.send(0, frame, nil, "pf-normalize")
			} else {
				sameFrame(t, name, c.send(0, frame, []int{1}), c.fixed(frame, tcpFlags, left))
			}
			if got := len((&pfBench{bench: c.s}).states()) - states; ok != (got == 1) {
				t.Errorf("%s: %d states made", name, got)
			}
		}
		if got := (&pfBench{bench: c.s}).count(kernelPfCounterPF_COUNT_NORMALIZE); got != dropped {
			t.Errorf("normalize counts %d, dropped were %d", got, dropped)
		}
	})
}

// The same for known connections.
func TestPFNormalizeKnown(t *testing.T) {
	eachCall(t, "pass proto tcp", func(t *testing.T, c call) {
		c.send(0, c.from(0, layers.TCP{Seq: 99, SYN: true, Window: 60000}), []int{1})
		c.send(1, c.from(1, layers.TCP{Seq: 199, Ack: 100, SYN: true, ACK: true, Window: 60000}), []int{0})
		data := layers.TCP{Seq: 100, Ack: 200, ACK: true, Window: 60000}
		plain := c.from(0, data, 1, 2, 3)
		c.send(0, plain, []int{1})
		was := (&pfBench{bench: c.s}).only()
		for _, flags := range []byte{0, pf.FIN, pf.PSH, pf.URG, pf.SYN | pf.RST, pf.SYN | pf.RST | pf.ACK, pf.SYN | pf.FIN | pf.RST} {
			c.send(0, c.fixed(plain, tcpFlags, flags), nil, "pf-normalize")
		}
		if got := (&pfBench{bench: c.s}).only(); got != was {
			t.Errorf("the state was changed from %v to %v", was, got)
		}
		for name, odd := range map[string][]byte{
			"reserved bits":          c.fixed(plain, tcpOffset, plain[c.upper()+tcpOffset]|0x0f),
			"one reserved bit":       c.fixed(plain, tcpOffset, plain[c.upper()+tcpOffset]|0x02),
			"urgent pointer, no URG": c.fixed(c.fixed(plain, tcpUrgent, 0x12), tcpUrgent+1, 0x34),
			"both":                   c.fixed(c.fixed(plain, tcpUrgent+1, 1), tcpOffset, plain[c.upper()+tcpOffset]|0x08),
		} {
			if got := c.s.xdp(0, odd); got.Verdict != pass {
				t.Errorf("%s, XDP: %s", name, got)
			}
			sameFrame(t, name, c.send(0, odd, []int{1}), plain)
		}
		urgent := c.fixed(c.fixed(plain, tcpUrgent, 0x12), tcpFlags, pf.ACK|pf.URG)
		sameFrame(t, "urgent pointer", c.send(0, urgent, []int{1}), urgent)
		if got := c.s.xdp(0, urgent); got.Verdict != redirect {
			t.Errorf("urgent, XDP: %s", got)
		}
	})
}

// The reserved flag of IPv4 is cleared, and the header's checksum adjusted.
func TestPFNormalizeIP(t *testing.T) {
	c := call{s: newRulesBench(t, "pass"), source: 4000}
	for name, ip := range map[string]*layers.IPv4{
		"whole":    {Flags: layers.IPv4DontFragment},
		"fragment": {Flags: layers.IPv4MoreFragments},
	} {
		ip.Version, ip.TTL, ip.Protocol = 4, 64, layers.IPProtocolUDP
		ip.SrcIP, ip.DstIP = c.address(0), c.address(1)
		udp := &layers.UDP{SrcPort: 7, DstPort: 9}
		want := c.frame(station(1), station(2), ip, udp, gopacket.Payload("eight by"))
		ip.Flags |= layers.IPv4EvilBit
		odd := c.frame(station(1), station(2), ip, udp, gopacket.Payload("eight by"))
		if got := c.s.xdp(0, odd); got.Verdict != pass {
			t.Errorf("%s, XDP: %s", name, got)
		}
		sameFrame(t, name, c.send(0, odd, []int{1}), want)
	}
}

// pf ignores ports that `set skip` names: no packet between two of them is dropped.
func TestPFSkipsStrange(t *testing.T) {
	c := call{s: newRulesBench(t, "set skip on { p0 p1 }\nblock\n"), source: 4000}
	strange := c.from(0, layers.TCP{Seq: 7})
	sameFrame(t, "between two", c.send(0, strange, []int{1}), strange)
	short := c.from(0, layers.TCP{Seq: 7, ACK: true})
	short[c.upper()+tcpOffset] = 0x40 // a header of 16 bytes
	sameFrame(t, "short", c.send(0, short, []int{1}), short)
	flood := slices.Clone(strange)
	copy(flood, broadcast[:])
	c.send(0, flood, []int{1}, "pf-normalize")

	c = call{s: newRulesBench(t, "set skip on p0\npass\n"), source: 4000}
	c.send(0, strange, nil, "pf-normalize")
	c.send(1, c.from(1, layers.TCP{Seq: 7}), nil, "pf-normalize")
	if n := (&pfBench{bench: c.s}).count(kernelPfCounterPF_COUNT_NORMALIZE); n != 2 {
		t.Errorf("normalize counts %d, want 2", n)
	}
}
