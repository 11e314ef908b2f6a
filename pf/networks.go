// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// subnet is an IPv6 network, or an IPv4 network in ::ffff:0:0/96. Bits behind its
// length are zero.
type subnet struct {
	hi, lo uint64
	bits   uint8
}

var (
	everything = subnet{}
	allIPv4    = subnet{0, 0xffff << 32, 96}
)

func subnetOf(addr netip.Addr, length int) subnet {
	b := addr.As16()
	if addr.Is4() {
		length += 96
	}
	p := subnet{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), uint8(length)}
	hi, lo := netmask(p.bits)
	p.hi &= hi
	p.lo &= lo
	return p
}

func netmask(length uint8) (hi, lo uint64) {
	if length <= 64 {
		return ^(^uint64(0) >> length), 0
	}
	return ^uint64(0), ^(^uint64(0) >> (length - 64))
}

func (p subnet) contains(q subnet) bool {
	hi, lo := netmask(p.bits)
	return p.bits <= q.bits && q.hi&hi == p.hi && q.lo&lo == p.lo
}

func (p subnet) bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], p.hi)
	binary.BigEndian.PutUint64(b[8:], p.lo)
	return b
}

// compare orders networks. A network precedes the networks in it, and these precede all
// later networks.
func (p subnet) compare(q subnet) int {
	return cmp.Or(cmp.Compare(p.hi, q.hi), cmp.Compare(p.lo, q.lo), cmp.Compare(p.bits, q.bits))
}

// A mark records whether the addresses of a network belong to a set. Networks in it may
// have marks of their own.
type mark struct {
	subnet
	in bool
}

// marks are a set of addresses, in the order of subnet.compare. The first mark is for
// all addresses. Nil is the set of all addresses.
type marks []mark

// marksOf returns the set of the addresses of the networks, or with not the set of all
// others.
func marksOf(networks []subnet, not bool) marks {
	slices.SortFunc(networks, subnet.compare)
	m := marks{{everything, not}}
	for _, p := range networks {
		last := m[len(m)-1]
		switch {
		case p == everything:
			m[0].in = !not
		case last.in != not && last.contains(p): // an earlier network contains it
		default:
			m = append(m, mark{p, !not})
		}
	}
	if len(m) == 1 && m[0].in {
		return nil
	}
	return m
}

// and returns the addresses that are in both sets.
func (m marks) and(o marks) marks {
	if m == nil {
		return o
	}
	if o == nil {
		return m
	}
	type enclosing struct {
		subnet
		m, o bool
		in   bool // as in the result
	}
	var out marks
	var stack []enclosing
	for len(m) > 0 || len(o) > 0 {
		var e enclosing
		if len(o) == 0 || len(m) > 0 && m[0].compare(o[0].subnet) <= 0 {
			e.subnet = m[0].subnet
		} else {
			e.subnet = o[0].subnet
		}
		for len(stack) > 0 && !stack[len(stack)-1].contains(e.subnet) {
			stack = stack[:len(stack)-1]
		}
		if len(stack) > 0 {
			top := stack[len(stack)-1]
			e.m, e.o, e.in = top.m, top.o, top.in
		}
		if len(m) > 0 && m[0].subnet == e.subnet {
			e.m = m[0].in
			m = m[1:]
		}
		if len(o) > 0 && o[0].subnet == e.subnet {
			e.o = o[0].in
			o = o[1:]
		}
		if in := e.m && e.o; len(out) == 0 || in != e.in {
			e.in = in
			out = append(out, mark{e.subnet, in})
		}
		stack = append(stack, e)
	}
	return out
}

// rangeSubnets returns the networks that make up the addresses from first to
// last.
func rangeSubnets(first, last netip.Addr) []subnet {
	a, z := subnetOf(first, first.BitLen()), subnetOf(last, last.BitLen())
	if first.Is4() != last.Is4() || a.compare(z) > 0 {
		return nil
	}
	var out []subnet
	for {
		// The next network is the largest that begins with a and does not
		// extend beyond z.
		p := a
		for p.bits > 0 {
			next := subnet{p.hi, p.lo, p.bits - 1}
			hi, lo := netmask(next.bits)
			if next.hi&^hi != 0 || next.lo&^lo != 0 {
				break
			}
			if next.hi|^hi > z.hi || next.hi|^hi == z.hi && next.lo|^lo > z.lo {
				break
			}
			p = next
		}
		hi, lo := netmask(p.bits)
		endHi, endLo := p.hi|^hi, p.lo|^lo
		out = append(out, p)
		if endHi == z.hi && endLo == z.lo {
			return out
		}
		var carry uint64
		a.lo, carry = bits.Add64(endLo, 1, 0)
		a.hi = endHi + carry
		a.bits = 128
	}
}

// reach has the sources or the destinations of the rules.
type reach struct {
	rules []marks // the addresses that each rule takes
	marks int     // number of marks in all of them
	used  bool    // at least one rule does not take all
	set   *vector
}

// reaches returns the addresses that the entries take.
func (c *compiler) reaches() (src, dst *reach, err error) {
	src, dst = &reach{rules: make([]marks, len(c.entries))}, &reach{rules: make([]marks, len(c.entries))}
	for i := range c.entries {
		e := &c.entries[i]
		var from, to marks
		if !e.tags() {
			from, to = c.addresses(e.Rule)
		}
		src.take(i, e.scope.src.and(from))
		dst.take(i, e.scope.dst.and(to))
		// Most marks are for networks that no other rule has.
		if (src.marks+dst.marks)*networkBytes > maxProgram {
			return nil, nil, errMemory
		}
	}
	if src.used {
		c.out.Dims |= 1 << DimSrc
	}
	if dst.used {
		c.out.Dims |= 1 << DimDst
	}
	return src, dst, nil
}

func (s *reach) take(rule int, m marks) {
	s.rules[rule] = m
	s.marks += len(m)
	s.used = s.used || m != nil
}

// networkBytes is the size of a network in the kernel's trie, and in a Program.
const networkBytes = 160

// A change is a rule whose mark at a network differs from its mark at the surrounding
// network.
type change struct {
	subnet
	rule uint32
	dst  bool
}

// networks fills in the networks of a program.
func (c *compiler) networks() error {
	src, dst, err := c.reaches()
	if err != nil {
		return err
	}
	var changes []change
	for i, s := range []*reach{src, dst} {
		if !s.used {
			continue
		}
		s.set = newVector(&c.sets, c.out.Groups)
		for rule, m := range s.rules {
			if m == nil || m[0].in {
				s.set.flip(uint32(rule))
			}
			for j := 1; j < len(m); j++ {
				changes = append(changes, change{m[j].subnet, uint32(rule), i == 1})
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return a.compare(b.subnet) })
	// IPv4's own network is always there, so addresses of the two families never
	// share a network
	type enclosing struct {
		subnet
		changes []change
	}
	flip := func(changes []change) {
		for _, ch := range changes {
			if ch.dst {
				dst.set.flip(ch.rule)
			} else {
				src.set.flip(ch.rule)
			}
		}
	}
	enter := func(p subnet) error {
		n := Network{Address: p.bytes(), Bits: p.bits}
		var err error
		if src.used {
			if n.Src, err = src.set.index(); err != nil {
				return err
			}
		}
		if dst.used {
			if n.Dst, err = dst.set.index(); err != nil {
				return err
			}
		}
		c.out.Networks = append(c.out.Networks, n)
		c.sets.other += networkBytes
		return nil
	}
	if err := enter(everything); err != nil {
		return err
	}
	var stack []enclosing
	ipv4 := false
	for len(changes) > 0 || !ipv4 {
		next := allIPv4
		if len(changes) > 0 && (ipv4 || changes[0].compare(allIPv4) <= 0) {
			next = changes[0].subnet
		}
		ipv4 = ipv4 || next == allIPv4
		n := 0
		for n < len(changes) && changes[n].subnet == next {
			n++
		}
		for len(stack) > 0 && !stack[len(stack)-1].contains(next) {
			flip(stack[len(stack)-1].changes)
			stack = stack[:len(stack)-1]
		}
		flip(changes[:n])
		if err := enter(next); err != nil {
			return err
		}
		stack = append(stack, enclosing{next, changes[:n]})
		changes = changes[n:]
	}
	return nil
}
