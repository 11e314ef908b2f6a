// SPDX-License-Identifier: BSD-2-Clause

package rule

import "net/netip"

// A Frame is what rules look at.
type Frame struct {
	Port     string // that the frame crosses
	Src, Dst MAC
	Type     uint16     // EtherType
	ARP      *ARPFields // what follows the EtherType, if it is long enough
}

// ARPFields are the fields of an ARP or RARP packet (RFC 826), taken for one
// of IPv4 over Ethernet whatever its first four fields say.
type ARPFields struct {
	Hardware, Protocol uint16
	HLen, PLen         uint8
	Op                 uint16
	SHA                MAC
	SPA                netip.Addr
	THA                MAC
	TPA                netip.Addr
}

// valid reports whether a packet of ARP or RARP was found, and is one that
// rules can look into. The hardware type is not asked: stations take that of
// IEEE 802, 6, for Ethernet's.
func (a *ARPFields) valid() bool {
	return a != nil && a.Protocol == typeIPv4 && a.HLen == 6 && a.PLen == 4
}

// The numbers of ARP (RFC 826) and RARP (RFC 903).
const (
	typeIPv4, typeARP, typeRARP = 0x0800, 0x0806, 0x8035
	opRequest, opReply          = 1, 2 // of ARP; those of RARP follow
	opRevRequest, opRevReply    = 3, 4
)

// Match returns the index of the first rule for the port and the direction of
// a frame that matches it, or -1. It is what the datapath has to agree with,
// and therefore as plain as can be.
//
// The rules for ARP are those of OpenBSD's veb_rule_arp_match, with one
// difference: OpenBSD expects RARP under the EtherType of ARP, here it has
// its own (RFC 903).
func Match(rules []Rule, dir Direction, f Frame) int {
	for i, r := range rules {
		if r.Port == f.Port && r.Direction&dir != 0 && matches(r, f) {
			return i
		}
	}
	return -1
}

func matches(r Rule, f Frame) bool {
	if r.Src != nil && *r.Src != f.Src || r.Dst != nil && *r.Dst != f.Dst {
		return false
	}
	if r.ARP == 0 {
		return true
	}
	a := f.ARP
	if !a.valid() {
		return false
	}
	kind, request, reply := uint16(typeARP), uint16(opRequest), uint16(opReply)
	if r.ARP == OnlyRARP {
		kind, request, reply = typeRARP, opRevRequest, opRevReply
	}
	return f.Type == kind &&
		(a.Op == request && r.Op != Reply || a.Op == reply && r.Op != Request) &&
		(r.SHA == nil || *r.SHA == a.SHA) && (!r.SPA.IsValid() || r.SPA == a.SPA) &&
		(r.THA == nil || *r.THA == a.THA) && (!r.TPA.IsValid() || r.TPA == a.TPA)
}
