// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"net/netip"
	"slices"

	"bascule/pf"
)

// Packet has the fields of an IPv4 or IPv6 packet that rules have conditions on.
type Packet struct {
	Direction  pf.Direction // In or Out
	Port       Port         // where it comes in or goes out
	ReceivedOn Port         // where it came in; zero if the host sends it
	Prio       uint8        // of its VLAN tag
	Family     pf.Family    // Inet or Inet6
	Src, Dst   netip.Addr
	Proto      uint8 // IP protocol number; of IPv6, behind the extension headers
	TOS        uint8 // IPv6: the traffic class
	Fragment   Fragment
	// all but the tag is zero if the packet does not have the field
	SrcPort, DstPort   uint16
	Flags              uint8 // of TCP
	ICMPType, ICMPCode uint8
	RouterAlert        bool   // has the option router alert
	Options            bool   // has other IPv4 options, IPv6 options, or a routing header
	Tag                string // given by a MAC rule
	EchoID             uint16 // of ICMP's echo request and reply
	// Quoted is the beginning of the packet that an ICMP error is about: its addresses,
	// protocol and ports, or ICMP type and ID. Only a [Router] uses it.
	Quoted *Packet
}

// Port is a port of the bridge and its groups.
type Port struct {
	Name   string
	Groups []string
}

// Fragment is the part of a packet that this is.
type Fragment uint8

// The kinds of fragments. A LaterFragment has no ports, flags or ICMP type.
const (
	Whole Fragment = iota
	FirstFragment
	LaterFragment
)

// The protocols whose packets have further fields.
const (
	ICMP   = 1
	IGMP   = 2
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
)

// Normalize changes a packet as pf does before its rules are tried (pf_normalize_tcp() of
// sys/net/pf_norm.c): it removes FIN from a SYN. It reports false for flags that no
// connection has together; such packets are dropped.
func (p *Packet) Normalize() bool {
	if p.Proto != TCP || p.Fragment == LaterFragment {
		return true
	}
	if p.Flags&pf.SYN != 0 {
		p.Flags &^= pf.FIN
		if p.Flags&pf.RST != 0 {
			return false
		}
	} else if p.Flags&(pf.ACK|pf.RST) == 0 {
		return false
	}
	return p.Flags&pf.ACK != 0 || p.Flags&(pf.FIN|pf.PSH|pf.URG) == 0
}

// multicastListener reports whether the packet belongs to IGMP or MLD, whose packets have
// the router alert (RFC 2236, RFC 3810) and are never fragmented.
func (p *Packet) multicastListener() bool {
	if p.Fragment == LaterFragment {
		return false
	}
	if p.Family == pf.Inet {
		return p.Proto == IGMP
	}
	return p.Proto == ICMPv6 && slices.Contains([]uint8{130, 131, 132, 143}, p.ICMPType)
}

// answer reports whether the packet, which must not be a LaterFragment, is ICMP's answer to
// a question: a rule that keeps state leaves it to the state of the question.
func (p *Packet) answer() bool {
	switch {
	case p.Family == pf.Inet && p.Proto == ICMP:
		// to echo, router solicitation, timestamp, information, mask, where-are-you and registration
		return slices.Contains([]uint8{0, 9, 14, 16, 18, 34, 36}, p.ICMPType)
	case p.Family == pf.Inet6 && p.Proto == ICMPv6:
		// to echo, who-are-you and mtrace
		return slices.Contains([]uint8{129, 140, 200}, p.ICMPType)
	}
	return false
}
