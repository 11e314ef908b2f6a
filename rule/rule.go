// SPDX-License-Identifier: BSD-2-Clause

// Package rule is the language of MAC rules, which decide which frames can cross a port. It is the
// language of OpenBSD's ifconfig(8) for the bridges veb(4) and bridge(4):
//
//	block|pass [in|out] on PORT [src MAC] [dst MAC] [tag NAME]
//	    [arp|rarp [request|reply] [sha MAC] [spa IP] [tha MAC] [tpa IP]]
//
// The first rule that matches a frame decides. A frame without a match passes.
package rule

import (
	"net"
	"net/netip"
	"strings"
)

// An Action decides about the frames that a rule matches.
type Action uint8

// The actions. A rule has one of them.
const (
	Block Action = iota + 1
	Pass
)

func (a Action) String() string {
	switch a {
	case Block:
		return "block"
	case Pass:
		return "pass"
	}
	return "?"
}

// Direction is a set of directions of frames at a port.
type Direction uint8

// The directions, from the switch's point of view. A rule has one of them, or both.
const (
	In  Direction = 1 << iota // into the switch
	Out                       // out of the switch
)

func (d Direction) String() string {
	switch d {
	case In:
		return "in"
	case Out:
		return "out"
	case In | Out:
		return "in/out"
	}
	return "?"
}

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// ARP restricts a rule to one of the two address resolution protocols.
type ARP uint8

// The protocols; the zero value matches all frames.
const (
	OnlyARP  ARP = iota + 1 // RFC 826, EtherType 0x0806, operations 1 and 2
	OnlyRARP                // RFC 903, EtherType 0x8035, operations 3 and 4
)

// Op restricts a rule to operations of ARP or RARP.
type Op uint8

// The operations; the zero value matches these two, and no other.
const (
	Request Op = iota + 1
	Reply
)

// A Rule blocks or passes the frames that it matches. Rules with the same text are equal.
type Rule struct {
	Action    Action
	Direction Direction
	Port      string
	Src, Dst  *MAC   // of the frame; nil matches any
	Tag       string // for the IP filter, "" for none; at most MaxTag bytes
	ARP       ARP

	// The following fields apply to ARP and RARP only; otherwise they are zero.
	Op       Op
	SHA, THA *MAC       // the sender's and target's hardware address; nil matches any
	SPA, TPA netip.Addr // the sender's and target's protocol address, IPv4; the zero Addr matches any
}

// MaxTag is the length of the longest tag, in bytes. With the zero byte after
// it, it is OpenBSD's PF_TAG_NAME_SIZE.
const MaxTag = 63

// portWord returns a port's name as a word of a rule. A name that would begin a comment, or that
// has double quotes around it already, is put in double quotes.
func portWord(name string) string {
	if strings.HasPrefix(name, "#") || strings.HasPrefix(name, `"`) {
		return `"` + name + `"`
	}
	return name
}

// String returns the rule in ParseRule's format, with the words in the order of ifconfig(8)'s
// synopsis.
func (r Rule) String() string {
	words := []string{r.Action.String()}
	if r.Direction != In|Out {
		words = append(words, r.Direction.String())
	}
	words = append(words, "on", portWord(r.Port))
	mac := func(name string, m *MAC) {
		if m != nil {
			words = append(words, name, m.String())
		}
	}
	ip := func(name string, a netip.Addr) {
		if a.IsValid() {
			words = append(words, name, a.String())
		}
	}
	mac("src", r.Src)
	mac("dst", r.Dst)
	if r.Tag != "" {
		words = append(words, "tag", r.Tag)
	}
	switch r.ARP {
	case OnlyARP:
		words = append(words, "arp")
	case OnlyRARP:
		words = append(words, "rarp")
	}
	switch r.Op {
	case Request:
		words = append(words, "request")
	case Reply:
		words = append(words, "reply")
	}
	mac("sha", r.SHA)
	ip("spa", r.SPA)
	mac("tha", r.THA)
	ip("tpa", r.TPA)
	return strings.Join(words, " ")
}

// Never returns the reason why no frame can match the rule, or "" if one can. Such a rule is not an
// error: OpenBSD accepts it, too.
func (r Rule) Never() string {
	switch {
	case r.Src == nil:
		return ""
	case *r.Src == MAC{}:
		return "no frame comes from the zero address"
	case r.Src[0]&1 != 0:
		return "no frame comes from a group address"
	}
	return ""
}
