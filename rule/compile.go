// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// A Key is the fields of a frame that rules compare, or those of them that
// some rules compare, the others zero. It has no padding, so that it can be
// the key of a hash map as it is in memory. MACs and IPs have their first
// byte lowest, as a little-endian machine loads them from the frame.
type Key struct {
	Src, Dst, SHA, THA uint64
	SPA, TPA           uint32
	Kind               uint32 // bits of Kind...
	List               uint32 // List.Number
}

// The bits of Key.Kind. Those from KindSrc on say which fields there are to
// compare: without them the key of a rule about the zero address would be
// that of a rule about any.
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
	// KindPlain are the bits that every frame has.
	KindPlain = KindSrc | KindDst
	// KindResolves are the bits that a valid frame of ARP or RARP has besides,
	// next to one of KindARP and KindRARP and one of KindRequest and KindReply.
	KindResolves = KindSHA | KindSPA | KindTHA | KindTPA
)

// A Mask chooses bits of a Key: those that the rules of some entries compare.
type Mask struct {
	Bits     Key
	First    uint32 // the lowest rule of its entries
	NeedsARP bool   // only valid frames of ARP and RARP have what it compares
}

// MaxPlainMasks and MaxARPMasks are how many masks a list has at most without
// and with NeedsARP: what may be compared is the sources and destinations,
// and with ARP also the operation and four addresses.
const (
	MaxPlainMasks = 1 << 2
	MaxARPMasks   = 1 << (2 + 1 + 4)
)

// A List is the rules of one port and direction, made ready for being looked
// up instead of walked. The rule of a frame is
//
//	best := none
//	for each mask, in order:
//		if best < mask.First, stop
//		best = min(best, Entries[key of the frame & mask.Bits])
//
// where the key's List is the Number, all other bits are those of
// [Frame.Key], and what Entries does not have is none.
type List struct {
	Port      string
	Direction Direction // In or Out
	Number    uint32    // from 1; Key.List of the entries
	Masks     []Mask    // by First
	Entries   map[Key]uint32
}

// Compile returns the list of every port and direction that has rules. The
// rules in Masks and Entries are indices of rules. A rule that an earlier one
// forestalls, whatever the frame, is in neither. Lists are numbered from 1 in
// the order of what is returned: by their first rule, In before Out.
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

// enter adds a rule after all those that are there.
func (l *List) enter(key, bits Key, rule uint32) {
	key.List = l.Number
	for _, m := range l.Masks { // one that compares what the rule does not has no such entry, by its Kind
		if _, earlier := l.Entries[key.and(m.Bits)]; earlier {
			return
		}
	}
	if !slices.ContainsFunc(l.Masks, func(m Mask) bool { return m.Bits == bits }) {
		l.Masks = append(l.Masks, Mask{Bits: bits, First: rule, NeedsARP: bits.Kind&^KindPlain != 0})
	}
	l.Entries[key] = rule
}

// key returns what the rule compares, and the bits of it that count.
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

// Key returns the key that the datapath makes of a frame, without a list.
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
