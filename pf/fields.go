// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"slices"
)

// A field is a field of packets whose values are numbered, unlike addresses. Its values
// are the values of its cells.
type field struct {
	dim  int
	cell int // cell of its first value
	size uint32
	// of returns a rule's condition on the field; the zero ask means none.
	of func(r *Rule) ask
	// take returns the values that satisfy an ask. With may it also takes fragments
	// that lack the field.
	take func(c *compiler, a ask, may bool) spans
}

// An ask is the condition of a rule on a field. The meaning of a and b depends on the
// field.
type ask struct {
	name  string
	not   bool
	keeps bool // the rule keeps state, so it does not take ICMP's answers
	kind  uint8
	a, b  uint16
}

var fields = []field{
	{DimPort, CellPort, 2 * MaxPorts, askPort, (*compiler).takePort},
	{DimProto, CellProto, 512, askProto, (*compiler).takeProto},
	{DimSport, CellSport, 65536 + 2, askSport, (*compiler).takeSport},
	{DimDport, CellDport, 3*65536 + 2, askDport, (*compiler).takeDport},
	{DimFlags, CellFlags, 256 + 2, askFlags, (*compiler).takeFlags},
	{DimTOS, CellTOS, 512, askTOS, (*compiler).takeTOS},
}

func askPort(r *Rule) ask {
	return ask{name: r.On.Name, not: r.On.Not, kind: uint8(r.Direction)}
}

// takePort numbers the values in another order than the cells: all values for the way
// in precede all values for the way out. So rules for one direction have few spans.
func (c *compiler) takePort(a ask, _ bool) spans {
	ports := spans{{0, MaxPorts}}
	if a.name != "" {
		ports = nil
		for _, p := range c.in.Ports { // in rising order
			if p.Is(a.name) != a.not {
				ports = ports.add(uint32(p.Slot), uint32(p.Slot)+1)
			}
		}
	}
	var out spans
	if Direction(a.kind) != Out {
		out = append(out, ports...)
	}
	if Direction(a.kind) != In {
		for _, s := range ports {
			out = out.add(s.lo+MaxPorts, s.hi+MaxPorts)
		}
	}
	return out
}

// Is reports whether name is the port's name, or the name of a group of the port.
func (p CompilePort) Is(name string) bool {
	return name == "any" || name == p.Name || slices.Contains(p.Groups, name) || name != "" && name == GroupName(p.Name)
}

const (
	askFamily = 1 << iota
	askProtocol
)

func askProto(r *Rule) ask {
	var a ask
	if r.Family != 0 {
		a.kind, a.a = askFamily, uint16(r.Family)
	}
	if r.HasProto {
		a.kind |= askProtocol
		a.b = uint16(r.Proto)
	}
	return a
}

func (c *compiler) takeProto(a ask, _ bool) spans {
	var out spans
	for i, family := range []Family{Inet, Inet6} {
		base := uint32(i * 256)
		switch {
		case a.kind&askFamily != 0 && Family(a.a) != family:
		case a.kind&askProtocol != 0:
			// in pf each of the two belongs to its own family only
			if a.b == protoICMP && family == Inet6 || a.b == protoICMPv6 && family == Inet {
				continue
			}
			out = out.add(base+uint32(a.b), base+uint32(a.b)+1)
		default:
			out = out.add(base, base+256)
		}
	}
	return out
}

func (p Port) ask() ask {
	return ask{kind: uint8(p.Op), a: p.Lo, b: p.Hi}
}

func askSport(r *Rule) ask { return r.From.Port.ask() }

func (c *compiler) takeSport(a ask, may bool) spans {
	out := a.ports()
	if may {
		out = out.add(CellSportUnknown-CellSport, CellSportUnknown-CellSport+1)
	}
	return out
}

// askICMP is a further kind, beside the kinds of ports.
const askICMP = 0x80

func askDport(r *Rule) ask {
	a := r.To.Port.ask()
	if r.HasICMP {
		a = ask{kind: askICMP, a: uint16(r.ICMPType) << 8, b: uint16(r.ICMPType)<<8 | 0xff}
		if r.HasCode {
			a.a |= uint16(r.ICMPCode)
			a.b = a.a
		}
		a.not = r.To.Port.Op != AnyPort // no packet has both
	}
	a.keeps = r.State != NoState && !r.StateOpts.Sloppy
	return a
}

// The types of ICMP answers: of echo, router solicitation, timestamp, information,
// mask, where-are-you and registration; and of ICMPv6: of echo, who-are-you and mtrace.
var (
	icmp4Answers = []uint32{0, 9, 14, 16, 18, 34, 36}
	icmp6Answers = []uint32{129, 140, 200}
)

// notAnswers are all values but ICMP's answers. As in pf, a rule that keeps state
// leaves answers to the state of the question.
var notAnswers = func() spans {
	var out spans
	at := uint32(0)
	for _, icmp := range []struct {
		base  uint32
		types []uint32
	}{{CellICMP4 - CellDport, icmp4Answers}, {CellICMP6 - CellDport, icmp6Answers}} {
		for _, t := range icmp.types {
			out = out.add(at, icmp.base+t<<8)
			at = icmp.base + (t+1)<<8
		}
	}
	return out.add(at, CellDportUnknown-CellDport+1)
}()

func (c *compiler) takeDport(a ask, may bool) spans {
	const end = CellDportUnknown - CellDport
	var out spans
	switch {
	case a.kind == uint8(AnyPort):
		out = out.add(0, end+1)
	case a.kind != askICMP:
		out = a.ports()
	case !a.not:
		for _, base := range []uint32{CellICMP4 - CellDport, CellICMP6 - CellDport} {
			out = out.add(base+uint32(a.a), base+uint32(a.b)+1)
		}
	}
	if may && a.kind != uint8(AnyPort) {
		out = out.add(end, end+1)
	}
	if a.keeps {
		out = out.and(notAnswers)
	}
	return out
}

// ports returns the ports that a comparison accepts.
func (a ask) ports() spans {
	lo, hi := uint32(a.a), uint32(a.b)
	var out spans
	switch PortOp(a.kind) {
	case PortEqual:
		out = out.add(lo, lo+1)
	case PortNotEqual:
		out = out.add(0, lo).add(lo+1, 65536)
	case PortLess:
		out = out.add(0, lo)
	case PortAtMost:
		out = out.add(0, lo+1)
	case PortGreater:
		out = out.add(lo+1, 65536)
	case PortAtLeast:
		out = out.add(lo, 65536)
	case PortInside:
		out = out.add(lo+1, hi)
	case PortOutside:
		if lo > hi { // all ports are less, or greater
			return out.add(0, 65536)
		}
		out = out.add(0, lo).add(hi+1, 65536)
	case PortRange:
		out = out.add(lo, hi+1)
	}
	return out
}

func askFlags(r *Rule) ask {
	if r.Flags.Of == 0 {
		return ask{}
	}
	return ask{kind: 1, a: uint16(r.Flags.Set), b: uint16(r.Flags.Of)}
}

func (c *compiler) takeFlags(a ask, may bool) spans {
	var out spans
	for v := range uint32(256) {
		if uint16(v)&a.b == a.a {
			out = out.add(v, v+1)
		}
	}
	out = out.add(CellFlagsOther-CellFlags, CellFlagsOther-CellFlags+1)
	if may {
		out = out.add(CellFlagsUnknown-CellFlags, CellFlagsUnknown-CellFlags+1)
	}
	return out
}

const (
	askValue = 1 << iota
	askFragment
)

func askTOS(r *Rule) ask {
	var a ask
	if r.HasTOS {
		a.kind, a.a = askValue, uint16(r.TOS)
	}
	if r.Fragment {
		a.kind |= askFragment
	}
	return a
}

func (c *compiler) takeTOS(a ask, _ bool) spans {
	var out spans
	for _, base := range []uint32{0, 256} {
		switch {
		case base == 0 && a.kind&askFragment != 0:
		case a.kind&askValue != 0:
			out = out.add(base+uint32(a.a), base+uint32(a.a)+1)
		default:
			out = out.add(base, base+256)
		}
	}
	return out
}

// spans are values of a field: ranges in rising order that do not touch.
type spans []span

type span struct{ lo, hi uint32 } // hi is the first value behind the range

// add appends a range, which may be empty.
func (s spans) add(lo, hi uint32) spans {
	switch {
	case lo >= hi:
		return s
	case len(s) > 0 && s[len(s)-1].hi == lo:
		s[len(s)-1].hi = hi
		return s
	default:
		return append(s, span{lo, hi})
	}
}

// and returns the values that are in both.
func (s spans) and(o spans) spans {
	var out spans
	for len(s) > 0 && len(o) > 0 {
		out = out.add(max(s[0].lo, o[0].lo), min(s[0].hi, o[0].hi))
		if s[0].hi < o[0].hi {
			s = s[1:]
		} else {
			o = o[1:]
		}
	}
	return out
}

// A demand has the conditions on a field of an entry, and of the calls around it.
type demand struct {
	ask
	calls *scope // innermost scope whose call has a condition; nil for none
	may   bool
}

// field fills in the cells of a field, if a rule has a condition on it, or if the
// program needs it for another reason.
func (c *compiler) field(f *field) error {
	var (
		values = map[demand]spans{}
		rules  = map[demand][]uint32{}
	)
	var take func(d demand) spans
	take = func(d demand) spans {
		out, ok := values[d]
		if ok {
			return out
		}
		out = spans{{0, f.size}}
		if d.ask != (ask{}) {
			out = f.take(c, d.ask, d.may)
		}
		if d.calls != nil {
			outer := demand{f.of(d.calls.call), f.asking(d.calls.around), d.may}
			out = out.and(take(outer))
		}
		values[d] = out
		return out
	}
	for i := range c.entries {
		e := &c.entries[i]
		// A fragment must not slip past a rule that would block or translate it.
		d := demand{e.ask(f), f.asking(e.scope), e.action == Block || e.action == CallAnchor || !e.tags() && len(e.Translations) > 0}
		if d.ask == (ask{}) && d.calls == nil {
			d.may = false
		}
		rules[d] = append(rules[d], uint32(i))
	}
	if _, all := rules[demand{}]; (!all || len(rules) > 1) && len(rules) > 0 {
		c.out.Dims |= 1 << f.dim
	}
	if c.out.Dims&(1<<f.dim) == 0 {
		return nil
	}

	type change struct {
		at    uint32
		rules []uint32
	}
	var changes []change
	for d, list := range rules {
		for _, s := range take(d) {
			changes = append(changes, change{s.lo, list}, change{s.hi, list})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	set := newVector(&c.sets, c.out.Groups)
	at := uint32(0)
	for at < f.size {
		for len(changes) > 0 && changes[0].at == at {
			for _, rule := range changes[0].rules {
				set.flip(rule)
			}
			changes = changes[1:]
		}
		next := f.size
		if len(changes) > 0 {
			next = changes[0].at
		}
		place, err := set.index()
		if err != nil {
			return err
		}
		for ; at < next; at++ {
			c.out.Cells[f.cellOf(at)] = place
		}
	}
	return nil
}

// asking returns the innermost scope whose call has a condition on the field.
func (f *field) asking(s *scope) *scope {
	for s.call != nil && f.of(s.call) == (ask{}) {
		s = s.around
	}
	if s.call == nil {
		return nil
	}
	return s
}

func (f *field) cellOf(value uint32) uint32 {
	if f.dim == DimPort {
		return CellPort + value%MaxPorts*2 + value/MaxPorts
	}
	return uint32(f.cell) + value
}
