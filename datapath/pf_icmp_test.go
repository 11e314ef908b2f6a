// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"
)

// An ICMP query lets its replies pass, and nothing else: neither queries of the destination
// with the same identifier, nor replies of the source.
func TestPFICMPDirection(t *testing.T) {
	type message struct {
		name   string
		packet reference.Packet
		passes bool
	}
	for _, family := range []pf.Family{pf.Inet, pf.Inet6} {
		proto, ask, answer, unreachable := uint8(reference.ICMP), uint8(8), uint8(0), uint8(3)
		ask2, answer2 := uint8(13), uint8(14)
		ours, theirs := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.9")
		public := netip.MustParseAddr("198.51.100.1")
		if family == pf.Inet6 {
			proto, ask, answer, unreachable = reference.ICMPv6, 128, 129, 1
			ask2, answer2 = ask, answer
			ours, theirs = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:9::9")
			public = netip.MustParseAddr("2001:db8:5::1")
		}
		for _, low := range []bool{false, true} { // the address determines the side of a key
			if low {
				ours, theirs = theirs, ours
			}
			for _, nat := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%v/nat %v", family, ours, nat), func(t *testing.T) {
					rules, outside := "block\n", ours
					if nat {
						rules += fmt.Sprintf("match out from %v nat-to %v\n", ours, public)
						outside = public
					}
					s := natBenchOf(t, rules+"pass out proto { icmp icmp6 }\n")
					id := uint16(7)
					send := func(m message) {
						t.Helper()
						p := m.packet
						p.Family, p.Proto, p.EchoID = family, proto, id
						port := 0
						if p.Direction == pf.Out {
							port = 1
						}
						o := s.tcx(port, natFrame(&p))
						if (len(o.Drops) == 0) != m.passes {
							t.Errorf("%s: %v", m.name, o.Drops)
						}
						if m.passes && p.Direction == pf.Out {
							if sent, wrong := natRead(s.out); wrong != "" {
								t.Error(wrong, "is wrong")
							} else if sent.Quoted == nil {
								id = sent.EchoID
							}
						}
					}
					out := func(typ uint8) reference.Packet {
						return reference.Packet{Direction: pf.Out, ICMPType: typ, Src: ours, Dst: theirs}
					}
					in := func(typ uint8) reference.Packet {
						return reference.Packet{Direction: pf.In, ICMPType: typ, Src: theirs, Dst: outside}
					}
					for _, kind := range [][2]uint8{{ask, answer}, {ask2, answer2}} {
						id = 7
						send(message{"a question", out(kind[0]), true})
						send(message{"its answer", in(kind[1]), true})
						send(message{"a question of theirs", in(kind[0]), false})
						about := func(typ uint8, from, to netip.Addr) reference.Packet {
							p := in(unreachable)
							p.Quoted = &reference.Packet{
								Family: family, Proto: proto, ICMPType: typ, EchoID: id, Src: from, Dst: to,
							}
							return p
						}
						send(message{"an error about the question", about(kind[0], outside, theirs), true})
						send(message{"an error about an answer not given", about(kind[1], outside, theirs), false})
					}
				})
			}
		}
	}
}
