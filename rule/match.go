// SPDX-License-Identifier: BSD-2-Clause

package rule

import "net/netip"

// A Frame has the properties of a frame that rules compare.
type Frame struct {
	Port     string // that the frame crosses
	Src, Dst MAC
	Type     uint16     // EtherType
	ARP      *ARPFields // the bytes after the EtherType, if there are enough
}

// ARPFields are the fields of an ARP or RARP packet (RFC 826), read as IPv4 over Ethernet, without
// regard to its first four fields.
type ARPFields struct {
	Hardware, Protocol uint16
	HLen, PLen         uint8
	Op                 uint16
	SHA                MAC
	SPA                netip.Addr
	THA                MAC
	TPA                netip.Addr
}

// valid reports whether the frame has an ARP or RARP packet whose fields rules can compare. It
// ignores the hardware type: stations treat 6 (IEEE 802) like Ethernet.
func (a *ARPFields) valid() bool {
	return a != nil && a.Protocol == typeIPv4 && a.HLen == 6 && a.PLen == 4
}

// The numbers of ARP (RFC 826) and RARP (RFC 903).
const (
	typeIPv4, typeARP, typeRARP = 0x0800, 0x0806, 0x8035
	opRequest, opReply          = 1, 2 // of ARP; RARP has the next two
	opRevRequest, opRevReply    = 3, 4
)

// Match returns the index of the first rule for a frame's port and direction that matches it, or
// -1. It is the specification of the datapath, and therefore as simple as possible.
//
// The ARP rules follow OpenBSD's veb_rule_arp_match, with one difference: OpenBSD expects RARP
// under the EtherType of ARP, but here RARP has its own EtherType (RFC 903).
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
