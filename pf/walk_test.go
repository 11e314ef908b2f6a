// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
	"net/netip"

	"bascule/pf"
	"bascule/pf/reference"
)

// walker looks packets up in a program as the datapath does.
type walker struct {
	*pf.Program
	slots  map[string]uint16
	tables [][]pf.TableEntry
	draw   func(*pf.Rule) float64
	used   map[*pf.Rule]bool // of rules with `once`
}

// found is the result of a walk: numbers of rules, -1 for none.
type found struct {
	rule    int
	matches []int
	tag     uint32
}

func (w *walker) walk(p *reference.Packet) found {
	out := found{rule: -1, tag: tag(p.Tag)}
	sets, skip := w.sets(p)
	if skip {
		return out
	}
	end := len(w.Rules)
	for n := 0; n < end; n++ {
		if !w.has(sets, n) {
			continue
		}
		r := &w.Rules[n]
		if !w.holds(r, n, p, out.tag) {
			if r.Action == uint32(pf.CallAnchor) {
				n = int(r.End) - 1
			}
			continue
		}
		if r.Action == uint32(pf.CallAnchor) {
			continue
		}
		if r.Tag != 0 {
			out.tag = r.Tag
		}
		if r.Flags&pf.RuleOnce != 0 {
			if w.used == nil {
				w.used = map[*pf.Rule]bool{}
			}
			w.used[w.Source[n].Rule] = true
		}
		if r.Action == uint32(pf.Match) {
			if w.Source[n].Rule.Action == pf.Match { // it is not the tag of a call
				out.matches = append(out.matches, n)
			}
		} else {
			out.rule = n
		}
		end = min(end, int(r.End))
	}
	return out
}

// sets returns the sets of rules of the packet's fields.
func (w *walker) sets(p *reference.Packet) (out []uint32, skip bool) {
	later := p.Fragment == reference.LaterFragment
	cell := func(dim int, cell int) {
		if w.Dims&(1<<dim) != 0 {
			out = append(out, w.Cells[cell])
		}
	}
	port := pf.CellPort + 2*int(w.slots[p.Port.Name])
	proto := pf.CellProto + int(p.Proto)
	tos := pf.CellTOS + int(p.TOS)
	if p.Direction == pf.Out {
		port++
	}
	if w.Cells[port] == pf.Skip {
		return nil, true
	}
	if p.Family == pf.Inet6 {
		proto += 256
	}
	if p.Fragment != reference.Whole {
		tos += 256
	}
	sport, dport, flags := pf.CellSportOther, pf.CellDportOther, pf.CellFlagsOther
	switch {
	case later:
		sport, dport = pf.CellSportUnknown, pf.CellDportUnknown
		if p.Proto == reference.TCP {
			flags = pf.CellFlagsUnknown
		}
	case p.Proto == reference.TCP || p.Proto == reference.UDP:
		sport, dport = pf.CellSport+int(p.SrcPort), pf.CellDport+int(p.DstPort)
		if p.Proto == reference.TCP {
			flags = pf.CellFlags + int(p.Flags)
		}
	case p.Proto == reference.ICMP && p.Family == pf.Inet:
		dport = pf.CellICMP4 + int(p.ICMPType)<<8 + int(p.ICMPCode)
	case p.Proto == reference.ICMPv6 && p.Family == pf.Inet6:
		dport = pf.CellICMP6 + int(p.ICMPType)<<8 + int(p.ICMPCode)
	}
	cell(pf.DimPort, port)
	cell(pf.DimProto, proto)
	cell(pf.DimSport, sport)
	cell(pf.DimDport, dport)
	cell(pf.DimFlags, flags)
	cell(pf.DimTOS, tos)
	if w.Dims&(1<<pf.DimSrc) != 0 {
		out = append(out, w.network(p.Src).Src)
	}
	if w.Dims&(1<<pf.DimDst) != 0 {
		out = append(out, w.network(p.Dst).Dst)
	}
	return out, false
}

// network returns the longest network that contains an address.
func (w *walker) network(a netip.Addr) *pf.Network {
	key := a.As16()
	best := &w.Networks[0]
	for i := range w.Networks {
		if n := &w.Networks[i]; n.Bits >= best.Bits && common(key, n.Address) >= int(n.Bits) {
			best = n
		}
	}
	return best
}

func common(a, b [16]byte) int {
	for i := range 2 {
		x := binary.BigEndian.Uint64(a[8*i:]) ^ binary.BigEndian.Uint64(b[8*i:])
		if x != 0 {
			return 64*i + bits.LeadingZeros64(x)
		}
	}
	return 128
}

// has reports whether a rule is in all sets.
func (w *walker) has(sets []uint32, rule int) bool {
	group, word, bit := rule/pf.GroupRules, rule%pf.GroupRules/64, rule%64
	base := w.SetsAt()
	for _, set := range sets {
		words, at := w.Sets[int(set)-base+2*group], w.Sets[int(set)-base+2*group+1]
		if words>>word&1 == 0 {
			return false
		}
		if w.Sets[int(at)-base+bits.OnesCount64(words&(1<<word-1))]>>bit&1 == 0 {
			return false
		}
	}
	return true
}

// holds tries the conditions that no field covers.
func (w *walker) holds(r *pf.CompiledRule, n int, p *reference.Packet, tagged uint32) bool {
	source := w.Source[n].Rule
	not := func(flag uint32) bool { return r.Flags&flag != 0 }
	in := func(table uint8, a netip.Addr, none, negated uint32) bool {
		switch {
		case r.Flags&none != 0: // every address has a route
			return not(negated)
		case table == 0:
			return true
		default:
			return listed(w.tables[table-1], a) != not(negated)
		}
	}
	slot := w.slots[p.ReceivedOn.Name]
	return !w.used[source] &&
		(r.Probability == 0 || w.draw(source)*(1<<32) < float64(r.Probability)) &&
		(r.Tagged == 0 || (r.Tagged == tagged) != not(pf.RuleNotTagged)) &&
		(r.Received == 0 || (w.Ports[r.Received-1][slot/64]>>(slot%64)&1 != 0) != not(pf.RuleNotReceived)) &&
		(r.Priority == 0 || r.Priority == p.Prio+1) &&
		in(r.SrcTable, p.Src, pf.RuleSrcNoRoute|pf.RuleSrcURPFFailed, pf.RuleNotSrcTable) &&
		in(r.DstTable, p.Dst, pf.RuleDstNoRoute, pf.RuleNotDstTable)
}

func listed(table []pf.TableEntry, a netip.Addr) bool {
	in, longest := false, -1
	for _, e := range table {
		if e.Prefix.Contains(a) && e.Prefix.Bits() > longest {
			in, longest = !e.Not, e.Prefix.Bits()
		}
	}
	return in
}

// tag returns the number of a tag, by FNV-1a.
func tag(name string) uint32 {
	if name == "" {
		return 0
	}
	h := fnv.New32a()
	fmt.Fprint(h, name)
	return h.Sum32()
}
