// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// A Key has the fields of a frame that rules compare. For a mask it has only the fields that some
// rules compare, and the others are zero. It has no padding, so that its memory can be the key of a
// hash map. MACs and IPs have their first byte lowest, as a little-endian machine loads them from
// the frame.
type Key struct {
	Src, Dst, SHA, THA uint64
	SPA, TPA           uint32
	Kind               uint32 // Kind... bits
	List               uint32 // List.Number
}

// The bits of Key.Kind. The bits from KindSrc on mark the fields to compare: without them a rule
// about the zero address would have the same key as a rule about any address.
const (
	KindARP uint32 = 1 << iota
	KindRARP
	KindRequest
	KindReply
	KindSrc
	KindDst
	KindSHA
	KindSPA
	KindTHA
	KindTPA
)

const (
	// KindPlain has the bits of every frame.
	KindPlain = KindSrc | KindDst
	// KindResolves has the additional bits of a valid ARP or RARP frame. Such a frame also has
	// one of KindARP and KindRARP, and one of KindRequest and KindReply.
	KindResolves = KindSHA | KindSPA | KindTHA | KindTPA
)

// A Mask selects the bits of a Key that the rules of some entries compare.
type Mask struct {
	Bits     Key
	First    uint32 // the lowest rule of its entries
	NeedsARP bool   // it compares fields that only valid ARP and RARP frames have
}

// MaxPlainMasks and MaxARPMasks limit the masks of a list without and with NeedsARP. Rules can
// compare sources and destinations, and with ARP also the operation and four addresses.
const (
	MaxPlainMasks = 1 << 2
	MaxARPMasks   = 1 << (2 + 1 + 4)
)

// A List is the rules of one port and direction, prepared for lookups instead of a linear search.
// The rule of a frame is
//
//	best := none
//	for each mask, in order:
//		if best < mask.First, stop
//		best = min(best, Entries[key of the frame & mask.Bits])
//
// where the key has the list's Number as List, and all other bits from [Frame.Key]. A key without
// an entry gives none.
type List struct {
	Port      string
	Direction Direction // In or Out
	Number    uint32    // from 1; Key.List of the entries
	Masks     []Mask    // by First
	Entries   map[Key]uint32
}

// Compile returns a list for every port and direction with rules. The rules in Masks and Entries
// are indices of rules. A rule that can never be the first match is in neither. Lists are numbered
// from 1 in the order of the result: by their first rule, In before Out.
func Compile(rules []Rule) []List {
	var lists []List
	type place struct {
		port string
		dir  Direction
	}
	at := map[place]int{}
	for n, r := range rules {
		key, bits := r.key()
		for _, dir := range []Direction{In, Out} {
			if r.Direction&dir == 0 {
				continue
			}
			here := place{r.Port, dir}
			i, ok := at[here]
			if !ok {
				i = len(lists)
				at[here] = i
				lists = append(lists, List{Port: r.Port, Direction: dir, Number: uint32(i + 1), Entries: map[Key]uint32{}})
			}
			lists[i].enter(key, bits, uint32(n))
		}
	}
	return lists
}

// enter adds a rule after the existing ones.
func (l *List) enter(key, bits Key, rule uint32) {
	key.List = l.Number
	for _, m := range l.Masks { // a mask with more fields than the rule has no such entry, because its Kind differs
		if _, earlier := l.Entries[key.and(m.Bits)]; earlier {
			return
		}
	}
	if !slices.ContainsFunc(l.Masks, func(m Mask) bool { return m.Bits == bits }) {
		l.Masks = append(l.Masks, Mask{Bits: bits, First: rule, NeedsARP: bits.Kind&^KindPlain != 0})
	}
	l.Entries[key] = rule
}

// key returns the fields that the rule compares, and a mask of their bits.
func (r Rule) key() (key, bits Key) {
	bits.List = ^uint32(0)
	kind := func(bit, mask uint32) {
		key.Kind |= bit
		bits.Kind |= mask
	}
	mac := func(m *MAC, k, b *uint64, bit uint32) {
		if m != nil {
			*k, *b = m.word(), MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}.word()
			kind(bit, bit)
		}
	}
	ip := func(a netip.Addr, k, b *uint32, bit uint32) {
		if a.IsValid() {
			*k, *b = ipWord(a), ^uint32(0)
			kind(bit, bit)
		}
	}
	mac(r.Src, &key.Src, &bits.Src, KindSrc)
	mac(r.Dst, &key.Dst, &bits.Dst, KindDst)
	// both bits count, so that rules about ARP and RARP share a mask
	switch r.ARP {
	case OnlyARP:
		kind(KindARP, KindARP|KindRARP)
	case OnlyRARP:
		kind(KindRARP, KindARP|KindRARP)
	default:
		return key, bits
	}
	switch r.Op {
	case Request:
		kind(KindRequest, KindRequest|KindReply)
	case Reply:
		kind(KindReply, KindRequest|KindReply)
	}
	mac(r.SHA, &key.SHA, &bits.SHA, KindSHA)
	ip(r.SPA, &key.SPA, &bits.SPA, KindSPA)
	mac(r.THA, &key.THA, &bits.THA, KindTHA)
	ip(r.TPA, &key.TPA, &bits.TPA, KindTPA)
	return key, bits
}

// Key returns the datapath's key of a frame, without a list.
func (f Frame) Key() Key {
	k := Key{Src: f.Src.word(), Dst: f.Dst.word(), Kind: KindPlain}
	a := f.ARP
	if !a.valid() {
		return k
	}
	var kind uint32
	switch [2]uint16{f.Type, a.Op} {
	case [2]uint16{typeARP, opRequest}:
		kind = KindARP | KindRequest
	case [2]uint16{typeARP, opReply}:
		kind = KindARP | KindReply
	case [2]uint16{typeRARP, opRevRequest}:
		kind = KindRARP | KindRequest
	case [2]uint16{typeRARP, opRevReply}:
		kind = KindRARP | KindReply
	default:
		return k
	}
	k.Kind |= kind | KindResolves
	k.SHA, k.THA = a.SHA.word(), a.THA.word()
	k.SPA, k.TPA = ipWord(a.SPA), ipWord(a.TPA)
	return k
}

func (k Key) and(bits Key) Key {
	return Key{
		Src: k.Src & bits.Src, Dst: k.Dst & bits.Dst, SHA: k.SHA & bits.SHA, THA: k.THA & bits.THA,
		SPA: k.SPA & bits.SPA, TPA: k.TPA & bits.TPA,
		Kind: k.Kind & bits.Kind, List: k.List & bits.List,
	}
}

func (m MAC) word() uint64 {
	var b [8]byte
	copy(b[:], m[:])
	return binary.LittleEndian.Uint64(b[:])
}

func ipWord(a netip.Addr) uint32 {
	b := a.As4()
	return binary.LittleEndian.Uint32(b[:])
}
