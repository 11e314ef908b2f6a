// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

const (
	returnRST  = uint8(kernelPfReturnPF_RETURN_RST)
	returnICMP = uint8(kernelPfReturnPF_RETURN_ICMP)
	returnBoth = uint8(kernelPfReturnPF_RETURN_BOTH)
)

// sum16 is the one's complement sum of the Internet checksum (RFC 1071).
func sum16(b []byte) uint16 {
	var sum uint32
	for i, c := range b {
		sum += uint32(c) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// pseudo is a packet's pseudo-header.
func pseudo(ip []byte) []byte {
	if ip[0]>>4 == 4 {
		return append(slices.Clone(ip[12:20]), 0, ip[9], byte((len(ip)-20)>>8), byte(len(ip)-20))
	}
	return append(slices.Clone(ip[8:40]), 0, 0, byte((len(ip)-40)>>8), byte(len(ip)-40), 0, 0, 0, ip[6])
}

// rightSums reports whether all checksums of an answer are right.
func rightSums(ip []byte) bool {
	if ip[0]>>4 == 6 {
		return sum16(append(pseudo(ip), ip[40:]...)) == 0xffff
	}
	if ip[9] == 6 {
		return sum16(ip[:20]) == 0xffff && sum16(append(pseudo(ip), ip[20:]...)) == 0xffff
	}
	return sum16(ip[:20]) == 0xffff && sum16(ip[20:]) == 0xffff
}

// finish completes a partial checksum, as the kernel does.
func finish(frame []byte, start, offset int) {
	binary.BigEndian.PutUint16(frame[start+offset:], ^sum16(frame[start:]))
}

type answerBench struct {
	*bench
	look, answer *probe
	change       func(*kernelPfPacket) // change of what pf has read of the packet
}

func newAnswerBench(t *testing.T) answerBench {
	s := newBenchRules(t, []kernelPfRule{{Action: PFBlock, Ttl: 33, Icmp4: [2]uint8{3, 13}, Icmp6: [2]uint8{1, 1}}, {Action: PFBlock, Icmp4: [2]uint8{3, 3}, Icmp6: [2]uint8{1, 4}}})
	return answerBench{s, s.look(tag{}, 0, 1, benchNow), s.probe("pf_answer", tag{}), func(*kernelPfPacket) {}}
}

// ask has a rule that blocks a frame answer it; it returns nil if there is no answer.
func (s answerBench) ask(frame []byte, how uint8, rule uint32, gso uint32) []byte {
	s.t.Helper()
	ctx := func() *skbContext { return &skbContext{Ifindex: s.rack.near[0], GsoSize: gso, GsoSegs: gso} }
	s.look.callContext(ctx(), frame)
	s.setPacket(func(p *kernelPfPacket) {
		p.Answer, p.Rule[0] = how, rule+1
		s.change(p)
	})
	n := s.answer.callContext(ctx(), frame)
	if n == 0 {
		return nil
	}
	if int(n) != len(s.answer.out) {
		s.t.Fatalf("an answer of %d bytes, it says %d", len(s.answer.out), n)
	}
	return s.answer.out
}

// refill lets ICMP be answered again.
func (s answerBench) refill() {
	s.shares(func(shared *kernelShared) { shared.PfAnswers = 0 })
}

// unfinished leaves the checksum to hardware.
func unfinished(ip []byte, start, offset int) []byte {
	ip = slices.Clone(ip)
	binary.BigEndian.PutUint16(ip[start+offset:], sum16(pseudo(ip)))
	return ip
}

func TestPFAnswerRST(t *testing.T) {
	s := newAnswerBench(t)
	tests := []struct {
		name     string
		flags    uint8
		payload  int
		seq, ack uint32 // of the answer
	}{
		{"SYN", 2, 0, 0, 1001},
		{"SYN with data", 2, 10, 0, 1011},
		{"ACK", 16, 0, 777, 1000},
		{"data", 24, 100, 777, 1100},
		{"FIN", 17, 3, 777, 1004},
		{"nothing", 0, 5, 0, 1005},
	}
	for _, tt := range tests {
		for _, six := range []bool{false, true} {
			for _, tags := range [][]tag{nil, {{typeVLAN, 10, 2}}, {{typeQinQ, 9, 0}, {typeVLAN, 10, 2}}} {
				for _, partial := range []bool{false, true} {
					for _, gso := range []uint32{0, 2} {
						what := fmt.Sprintf("%s, IPv6 %v, %d tags, unfinished %v, GSO %d", tt.name, six, len(tags), partial, gso)
						var ip []byte
						header := 20
						if six {
							h := ip6Header(6)
							ip, header = wire(t, h, tcpHeader(h, tt.flags, 1000, 777), someBytes(tt.payload)), 40
						} else {
							h := ip4Header(6)
							ip = wire(t, h, tcpHeader(h, tt.flags, 1000, 777), someBytes(tt.payload))
						}
						if partial {
							ip = unfinished(ip, header, 16)
						}
						frame := framed(ip, tags...)
						got := s.ask(frame, []uint8{returnRST, returnBoth}[gso/2], 0, gso)
						if got == nil {
							t.Errorf("%s: no answer", what)
							continue
						}
						s.expectFrom(t, what, frame, got, len(tags))
						answer := got[etherHeader+etherTag*len(tags):]
						for range 2 { // and after the kernel has finished the checksum
							if !rightSums(answer) {
								t.Errorf("%s: wrong checksums: % x", what, answer)
							}
							if partial {
								finish(answer, header, 16)
							}
						}
						p := decode(t, answer)
						h := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
						if !h.RST || !h.ACK || h.SYN || h.FIN || h.Seq != tt.seq || h.Ack != tt.ack || h.SrcPort != 80 || h.DstPort != 1234 || len(h.Payload) > 0 {
							t.Errorf("%s: answered with %+v", what, h)
						}
						if !partial && h.Window != 0 {
							t.Errorf("%s: window %d", what, h.Window)
						}
						if ttl := answer[8]; !six && ttl != 33 || six && answer[7] != 33 {
							t.Errorf("%s: TTL %d, want the rule's", what, ttl)
						}
					}
				}
			}
		}
	}
}

// An answer comes from the address that the packet was sent to, even if its key has been
// translated: if the rules block the packet behind a translation, its sender must not see that.
func TestPFAnswerAsked(t *testing.T) {
	s := newAnswerBench(t)
	for _, six := range []bool{false, true} {
		ip := wire(t, ip4Header(6), tcpHeader(ip4Header(6), 2, 1000, 0))
		if six {
			ip = wire(t, ip6Header(6), tcpHeader(ip6Header(6), 2, 1000, 0))
		}
		for _, how := range []uint8{returnRST, returnICMP} {
			s.refill()
			frame := framed(ip)
			s.change = func(p *kernelPfPacket) { p.Key.Address = [2][4]uint32{{2: 0xffff0000, 3: 1}, {2: 0xffff0000, 3: 2}} }
			got := s.ask(frame, how, 0, 0)
			if got == nil {
				t.Fatalf("IPv6 %v, %d: no answer", six, how)
			}
			s.expectFrom(t, fmt.Sprintf("IPv6 %v, %d", six, how), frame, got, 0)
			if !rightSums(got[etherHeader:]) {
				t.Errorf("wrong checksums: % x", got)
			}
		}
	}
}

// expectFrom checks that an answer goes back to the sender of the frame.
func (s answerBench) expectFrom(t *testing.T, what string, frame, got []byte, tags int) {
	t.Helper()
	l3 := etherHeader + etherTag*tags
	if !bytes.Equal(got[:6], frame[6:12]) || !bytes.Equal(got[6:12], frame[:6]) || !bytes.Equal(got[12:l3], frame[12:l3]) {
		t.Errorf("%s: the frame's header is % x", what, got[:l3])
	}
	src, dst, n := 12, 16, 4
	if frame[l3]>>4 == 6 {
		src, dst, n = 8, 24, 16
	}
	if !bytes.Equal(got[l3+src:l3+src+n], frame[l3+dst:l3+dst+n]) || !bytes.Equal(got[l3+dst:l3+dst+n], frame[l3+src:l3+src+n]) {
		t.Errorf("%s: the addresses are in % x", what, got[l3:])
	}
}

func decode(t *testing.T, ip []byte) gopacket.Packet {
	t.Helper()
	first := gopacket.Decoder(layers.LayerTypeIPv4)
	if ip[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	return gopacket.NewPacket(ip, first, gopacket.Default)
}

func TestPFAnswerICMP(t *testing.T) {
	s := newAnswerBench(t)
	type unit struct {
		name          string
		ip            []byte
		start, offset int // of the checksum
	}
	var units []unit
	for _, n := range []int{0, 1, 3, 10, 63, 64, 500, 520, 521, 1000, 1203, 1204, 1300} {
		h4, h6 := ip4Header(17), ip6Header(17)
		units = append(units, unit{"UDP", wire(t, h4, udpHeader(h4), someBytes(n)), 20, 6}, unit{"UDP over IPv6", wire(t, h6, udpHeader(h6), someBytes(n)), 40, 6})
		h4, h6 = ip4Header(6), ip6Header(6)
		units = append(units, unit{"TCP", wire(t, h4, tcpHeader(h4, 2, 1, 0), someBytes(n)), 20, 16}, unit{"TCP over IPv6", wire(t, h6, tcpHeader(h6, 2, 1, 0), someBytes(n)), 40, 16})
	}
	for _, u := range units {
		for _, tags := range [][]tag{nil, {{typeVLAN, 10, 2}}, {{typeQinQ, 9, 0}, {typeVLAN, 10, 2}, {typeVLAN, 11, 0}}} {
			for _, partial := range []bool{false, true} {
				what := fmt.Sprintf("%s, %d bytes, %d tags, unfinished %v", u.name, len(u.ip), len(tags), partial)
				ip := u.ip
				if partial {
					ip = unfinished(ip, u.start, u.offset)
				}
				s.refill()
				frame := framed(ip, tags...)
				got := s.ask(append(slices.Clone(frame), 1, 2, 3), returnICMP, 1, 0) // padding
				if got == nil {
					t.Errorf("%s: no answer", what)
					continue
				}
				s.expectFrom(t, what, frame, got, len(tags))
				answer := got[etherHeader+etherTag*len(tags):]
				head, most, typ, code := 28, 576, byte(3), byte(3)
				if ip[0]>>4 == 6 {
					head, most, typ, code = 48, 1280, 1, 4
				}
				if want := min(head+len(ip), most); len(answer) != want {
					t.Errorf("%s: %d bytes, want %d", what, len(answer), want)
				}
				if answer[head-8] != typ || answer[head-7] != code || !bytes.Equal(answer[head-4:head], make([]byte, 4)) {
					t.Errorf("%s: answered % x", what, answer[head-8:head])
				}
				quote, asked := slices.Clone(answer[head:]), slices.Clone(ip[:len(answer)-head])
				if partial {
					binary.BigEndian.PutUint16(quote[u.start+u.offset:], 0)
					binary.BigEndian.PutUint16(asked[u.start+u.offset:], 0)
				}
				if !bytes.Equal(quote, asked) {
					t.Errorf("%s: quoted % x, want % x", what, quote, asked)
				}
				for range 2 {
					if !rightSums(answer) {
						t.Errorf("%s: wrong checksums: % x", what, answer)
					}
					if partial {
						finish(answer, head+u.start, u.offset)
					}
				}
			}
		}
	}
}

// Packets that may not be answered are not.
func TestPFNoAnswer(t *testing.T) {
	s := newAnswerBench(t)
	h4, h6 := ip4Header(17), ip6Header(17)
	udp4, udp6 := wire(t, h4, udpHeader(h4), someBytes(30)), wire(t, h6, udpHeader(h6), someBytes(30))
	tcp4 := wire(t, ip4Header(6), tcpHeader(ip4Header(6), 2, 1, 0))
	rst := wire(t, ip4Header(6), tcpHeader(ip4Header(6), 4, 1, 0))
	with := func(ip []byte, at int, b ...byte) []byte { ip = slices.Clone(ip); copy(ip[at:], b); return ip }
	none := make([]byte, 16)
	tests := []struct {
		name string
		ip   []byte
		how  uint8
		yes  bool
	}{
		{"UDP", udp4, returnICMP, true},
		{"UDP, both", udp4, returnBoth, true},
		{"UDP over IPv6", udp6, returnICMP, true},
		{"nothing asked", udp4, 0, false},
		{"UDP and a rule that resets", udp4, returnRST, false},
		{"RST", rst, returnBoth, false},
		{"TCP", tcp4, returnBoth, true},
		{"to a group", with(udp4, 16, 224, 1, 2, 3), returnICMP, false},
		{"to all", with(udp4, 16, 255, 255, 255, 255), returnICMP, false},
		{"TCP to a group", with(tcp4, 16, 224, 1, 2, 3), returnBoth, false},
		{"from a group", with(udp4, 12, 239, 1, 2, 3), returnICMP, false},
		{"from nobody", with(udp4, 12, 0, 0, 0, 0), returnICMP, false},
		{"to a group over IPv6", with(udp6, 24, 0xff, 2), returnICMP, false},
		{"from nobody over IPv6", with(udp6, 8, none...), returnICMP, false},
		{"an error", unreachable4(t, 3, udp4), returnICMP, false},
		{"an error over IPv6", unreachable6(t, 1, udp6), returnICMP, false},
		{"a redirect", wire(t, ip4Header(1), icmp4Header(5, 1, 0), gopacket.Payload(udp4)), returnICMP, false},
		{"an echo", wire(t, ip4Header(1), icmp4Header(8, 0, 1), someBytes(4)), returnICMP, true},
		{"a first fragment", cutIP4(udp4, 1, 16)[0], returnICMP, true},
		{"a later fragment", cutIP4(udp4, 1, 16)[1], returnICMP, false},
		{"GRE", wire(t, ip4Header(47), someBytes(8)), returnBoth, true},
	}
	for _, tt := range tests {
		s.refill()
		if got := s.ask(framed(tt.ip), tt.how, 1, 0); got != nil != tt.yes {
			t.Errorf("%s: answered with % x", tt.name, got)
		}
		toAll := framed(tt.ip)
		copy(toAll, broadcast[:])
		if got := s.ask(toAll, tt.how, 1, 0); got != nil {
			t.Errorf("%s, to all stations: answered with % x", tt.name, got)
		}
	}
}

// ICMP answers are limited; RST is not.
func TestPFAnswerLimit(t *testing.T) {
	s := newAnswerBench(t)
	full := uint64(1) << 62 // far in the future
	s.shares(func(shared *kernelShared) { shared.PfAnswers = full })
	h := ip4Header(17)
	if got := s.ask(framed(wire(t, h, udpHeader(h))), returnICMP, 1, 0); got != nil {
		t.Errorf("answered % x with an empty bucket", got)
	}
	if got := s.ask(framed(wire(t, ip4Header(6), tcpHeader(ip4Header(6), 2, 1, 0))), returnRST, 1, 0); got == nil {
		t.Error("no RST with an empty bucket")
	}
	s.refill()
	s.ask(framed(wire(t, h, udpHeader(h))), returnICMP, 1, 0)
	s.shares(func(shared *kernelShared) {
		if shared.PfAnswers == 0 {
			t.Error("the bucket is as full as before")
		}
	})
}
