// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// carried are the words for a packet's way that the datapath carries out. Compile refuses a rule
// with another such word. Each word has its own entry, since each needs other parts of the
// datapath.
var carried = map[string]bool{
	"nat-to":               true,
	"rdr-to":               true,
	"af-to":                true,
	"bitmask":              true,
	"random":               true,
	"source-hash":          true,
	"round-robin":          true,
	"least-states":         true,
	"sticky-address":       true,
	"static-port":          true,
	"endpoint-independent": true,
	"weight":               true,
	"table":                true, // as a pool
	"route-to":             true,
	"reply-to":             true,
	"dup-to":               true,
	"divert-to":            true,
	"divert-reply":         true,
	"divert-packet":        false,
}

// Why words are never carried out.
const notDiverted = "is read, but not carried out: Linux has no divert(4) sockets; leave it out, or have nft(8) of a host queue packets"

// never are words that are never carried out.
var never = map[string]string{"divert-packet": notDiverted}

const notCarried = "is read, but not carried out yet; leave it out, or have nft(8) of a host do it"

// Missing returns an error for each word of a ruleset, its anchors and what it loads that the
// datapath does not carry out, 20 at most.
func (r *Ruleset) Missing() ErrorList {
	var list ErrorList
	seen := map[*Ruleset]bool{} // lists in the call of an anchor make several calls that share a body
	r.missing(&list, seen)
	list.order()
	return list
}

func (r *Ruleset) missing(list *ErrorList, seen map[*Ruleset]bool) {
	if r == nil || seen[r] {
		return
	}
	seen[r] = true
	for i := range r.SourceLimiters {
		l := &r.SourceLimiters[i]
		if l.Table != "" && (l.InetMask != 32 || l.Inet6Mask != 128) {
			*list = append(*list, Error{Pos: l.Pos, Line: l.Line, Message: "table: " + singleSources, Missing: true})
		}
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		rule.eachWord(func(word string, at Place) {
			why := ""
			if !carried[word] {
				why = cmp.Or(never[word], notCarried)
			} else if rule.Divert != nil && at == rule.Divert.Place {
				why = rule.notDiverted()
			}
			if why == "" || len(*list) == maxErrors {
				return
			}
			// One error for a place is enough. Lists make several rules of one.
			if !slices.ContainsFunc(*list, func(e Error) bool { return e.Pos == at.Pos }) {
				*list = append(*list, Error{Pos: at.Pos, Line: at.Line, Message: word + ": " + why, Missing: true})
			}
		})
		if rule.Anchor != nil {
			rule.Anchor.Body.missing(list, seen)
		}
	}
	for i := range r.Loads {
		r.Loads[i].Ruleset.missing(list, seen)
	}
}

// notDiverted returns why the rule's packets cannot be diverted, "" if they can. A state has one
// place for the packets of a connection.
func (r *Rule) notDiverted() string {
	switch {
	case r.Action == Pass && r.State == NoState:
		return "a rule that keeps no state diverts nothing; leave out no state"
	case r.Route != nil:
		return "the packets cannot go to a next hop as well; leave out " + r.Route.Kind.String()
	case slices.ContainsFunc(r.Translations, func(t Translation) bool { return t.Kind == AfTo }):
		return "the packets cannot go on in the other family as well; leave out af-to"
	}
	return ""
}

// eachWord calls f for each word of the rule that the datapath may not carry out, with the
// place of the word that it belongs to.
func (r *Rule) eachWord(f func(word string, at Place)) {
	when := func(given bool, word string, at Place) {
		if given {
			f(word, at)
		}
	}
	pool := func(p *Pool, at Place) {
		when(p.Method != Single, p.Method.String(), at)
		when(p.Sticky, "sticky-address", at)
		when(p.Weights != nil, "weight", at)
		when(p.Table != "", "table", at)
	}
	for i := range r.Translations {
		t := &r.Translations[i]
		f(t.Kind.String(), t.Place)
		pool(&t.Pool, t.Place)
		pool(&t.To, t.Place)
		when(t.Static, "static-port", t.Place)
		when(t.EndpointIndependent, "endpoint-independent", t.Place)
	}
	if r.Route != nil {
		f(r.Route.Kind.String(), r.Route.Place)
		pool(&r.Route.Pool, r.Route.Place)
	}
	if r.Divert != nil {
		f(r.Divert.Kind.String(), r.Divert.Place)
	}
}

// PoolTables returns the names of the tables that the rule's pools name.
func (r *Rule) PoolTables() (names []string) {
	add := func(p *Pool) {
		if p.Table != "" {
			names = append(names, p.Table)
		}
	}
	for i := range r.Translations {
		add(&r.Translations[i].Pool)
		add(&r.Translations[i].To)
	}
	if r.Route != nil {
		add(&r.Route.Pool)
	}
	return names
}

// singleSources is why the table of a limiter whose sources are networks is refused.
const singleSources = "holds for sources that are single addresses: commands alone change the networks of a table"

// missing returns an error for each word of the rulesets that the datapath does not carry out.
func (c *compiler) missing() ErrorList {
	var list ErrorList
	seen := map[*Ruleset]bool{}
	c.in.Main.missing(&list, seen)
	for _, path := range slices.Sorted(maps.Keys(c.in.Anchors)) {
		c.in.Anchors[path].missing(&list, seen)
	}
	return list
}

// translations fills in the translations of a rule of the program. Pools of interfaces get the
// current addresses.
func (c *compiler) translations(at int, e *entry) error {
	if c.out.Translations == nil {
		c.out.Translations = make([][]Translation, len(c.entries))
	}
	list := slices.Clone(e.Translations)
	for i := range list {
		family := cmp.Or(list[i].Family, e.Family)
		for _, p := range []*Pool{&list[i].Pool, &list[i].To} {
			if err := c.pool(p, family, e.anchor.path); err != nil {
				return err
			}
		}
	}
	c.out.Translations[at] = list
	if slices.ContainsFunc(list, func(t Translation) bool { return t.Kind == RdrTo && t.Pool.mayLoop() }) {
		c.out.Asks |= AskLoopback
	}
	if !c.in.Check {
		c.translates(&c.out.Rules[at], e, list)
	}
	return nil
}

// mayLoop reports whether the pool has addresses of the host's loopback, or can get some without a
// load. As long as it has none, the host's setting that admits such packets is unchanged.
func (p *Pool) mayLoop() bool {
	return p.Table != "" || p.Interface != "" || slices.ContainsFunc(p.Addrs, loops)
}

// loops reports whether a network has addresses of the host's loopback.
func loops(p netip.Prefix) bool {
	return p.Overlaps(netip.MustParsePrefix("127.0.0.0/8")) || p.Contains(netip.IPv6Loopback())
}

// translates appends the translations of a rule to the program, as struct pf_translation of
// bpf/pf/types.h: one for each family of the rule.
func (c *compiler) translates(r *CompiledRule, e *entry, list []Translation) {
	r.Flags |= RuleTranslates
	if e.On.Name != "" && !e.On.Not {
		r.Flags |= RuleTranslatesOn
	}
	r.Translation = uint32(len(c.out.Pools))
	for i := range list {
		t := &list[i]
		if t.Kind == AfTo {
			r.Flags |= RuleTranslatesFamily
			r.Translations += 2
			c.out.Pools = append(append(c.out.Pools, t.destination(e.Family)...), t.source(e.Family)...)
			continue
		}
		for _, family := range []Family{Inet, Inet6} {
			if e.Family != 0 && e.Family != family {
				continue
			}
			r.Translations++
			if t.Pool.Sticky || t.Pool.Method == LeastStates || t.EndpointIndependent {
				c.out.Asks |= AskPools
			}
			c.out.Pools = append(c.out.Pools, t.words(family)...)
		}
	}
}

// route fills in the next hops of a rule of the program, as translations does.
func (c *compiler) route(at int, e *entry) error {
	if c.out.Routes == nil {
		c.out.Routes = make([]*Route, len(c.entries))
	}
	r := *e.Route
	if err := c.pool(&r.Pool, e.Family, e.anchor.path); err != nil {
		return err
	}
	c.out.Routes[at] = &r
	if c.in.Check {
		return nil
	}
	out := &c.out.Rules[at]
	if e.On.Name != "" && !e.On.Not {
		out.Flags |= RuleRoutesOn
	}
	out.Route = uint32(len(c.out.Pools))
	if r.Pool.Sticky || r.Pool.Method == LeastStates {
		c.out.Asks |= AskPools
	}
	t := Translation{Kind: routeTo + TranslationKind(r.Kind), Pool: r.Pool}
	for _, family := range []Family{Inet, Inet6} {
		if e.Family == 0 || e.Family == family {
			out.Routes++
			c.out.Pools = append(c.out.Pools, t.words(family)...)
		}
	}
	return nil
}

// divert fills in the socket of a rule of the program, as route does next hops.
func (c *compiler) divert(at int, e *entry) {
	if c.in.Check || e.action != Pass {
		return
	}
	out := &c.out.Rules[at]
	if e.On.Name != "" && !e.On.Not {
		out.Flags |= RuleRoutesOn
	}
	out.Route = uint32(len(c.out.Pools))
	t := Translation{Kind: divertTo + TranslationKind(e.Divert.Kind), Ports: PoolPorts{Low: e.Divert.Port}}
	for _, family := range []Family{Inet, Inet6} {
		if e.Family != 0 && e.Family != family {
			continue
		}
		addr := e.Divert.Addr
		if e.Divert.Kind != DivertTo { // the packets have the address
			addr = netip.IPv4Unspecified()
			if family == Inet6 {
				addr = netip.IPv6Unspecified()
			}
		}
		t.Pool.Addrs = []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}
		out.Routes++
		c.out.Pools = append(c.out.Pools, t.words(family)...)
	}
}

// placePools fills in the places of translations, next hops and sockets of rules among all words.
func (c *compiler) placePools() {
	for i := range c.out.Rules {
		if r := &c.out.Rules[i]; r.Translations != 0 {
			r.Translation += uint32(c.out.PoolsAt())
		}
		if r := &c.out.Rules[i]; r.Routes != 0 {
			r.Route += uint32(c.out.PoolsAt())
		}
	}
}

// The flags of a translation in the datapath (enum pf_translation_flag).
const (
	translationStatic = 1 << iota
	translationKeyless
	translationSticky
	translationEndpoint
	translationEmbed
	translationExtract
	translationMix
)

// afToDst is PF_AF_TO_DST of enum pf_translation_kind (bpf/pf/types.h).
const afToDst = AfTo + 1

// routeTo is PF_ROUTE_TO there; the values of the other kinds of routes follow it.
const routeTo = afToDst + 1

// divertTo is PF_DIVERT_TO there; PF_DIVERT_REPLY follows it.
const divertTo = routeTo + TranslationKind(DupTo) + 1

// destination returns the new destination of an AfTo for packets of a family, in the datapath's
// form: the first of its two translations.
func (t *Translation) destination(family Family) []uint64 {
	to := Translation{Kind: afToDst, Pool: t.To, Ports: PoolPorts{Low: t.ToPort}}
	network := t.To.Method == Single && len(t.To.Addrs) == 1 && !t.To.Addrs[0].IsSingleIP()
	flags := uint64(0)
	switch {
	case t.To.IsEmpty() && t.Family == Inet:
		flags = translationExtract
	case t.To.IsEmpty():
		flags = translationEmbed
		if len(t.Pool.Addrs) > 0 { // one address, too, is the prefix to put in front
			to.Pool.Addrs = []netip.Prefix{netip.PrefixFrom(t.Pool.Addrs[0].Addr(), int(t.Embed)).Masked()}
		}
	case network && t.Embed != 0:
		flags = translationEmbed
	case network:
		flags = translationMix
	}
	return to.wordsOf(t.Family, family, flags, t.Embed)
}

// source returns the new source in the same form.
func (t *Translation) source(family Family) []uint64 {
	flags := uint64(0)
	if t.To.IsEmpty() && t.Family == Inet6 && len(t.Pool.Addrs) > 0 && !t.Pool.Addrs[0].IsSingleIP() {
		flags = translationEmbed
	}
	return t.wordsOf(t.Family, family, flags, t.Embed)
}

// words returns a translation of packets of a family and its pool, in the datapath's form.
func (t *Translation) words(family Family) []uint64 { return t.wordsOf(family, family, 0, 0) }

// wordsOf returns the same for packets of one family and a pool of another. embed is the number of
// bits behind which addresses are embedded.
func (t *Translation) wordsOf(family, packets Family, flags uint64, embed uint8) []uint64 {
	version, networks := uint64(4), []uint64(nil)
	if packets == Inet6 {
		version = 6
	}
	length := uint64(0)
	for _, w := range t.Pool.weighted() {
		p, weight := w.Prefix, w.weight
		if p.Addr().Is4() != (family == Inet) {
			continue
		}
		s := subnetOf(p.Addr(), p.Bits())
		b := s.bytes()
		networks = append(networks, binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:]), length, uint64(s.bits)|weight<<32)
		length += weight << min(128-int(s.bits), 32)
	}
	if t.Static {
		flags |= translationStatic
	}
	if t.Pool.Key == [16]byte{} {
		flags |= translationKeyless
	}
	if t.Pool.Sticky {
		flags |= translationSticky
	}
	if t.EndpointIndependent {
		flags |= translationEndpoint
	}
	first := []uint64{
		uint64(t.Kind) | uint64(t.Pool.Method)<<8 | version<<16 | flags<<24 | uint64(len(networks)/4)<<32,
		length,
		uint64(t.Ports.Low) | uint64(t.Ports.High)<<16 | uint64(t.First)<<32 | uint64(embed)<<48,
		binary.LittleEndian.Uint64(t.Pool.Key[:8]), binary.LittleEndian.Uint64(t.Pool.Key[8:]), 0,
	}
	return append(first, networks...)
}

// weighted is a network of a pool, with its weight.
type weighted struct {
	netip.Prefix
	weight uint64
}

// weighted returns the networks of a pool. With sticky-address the datapath searches for an
// address's network, so they are sorted then, like a table's networks.
func (p *Pool) weighted() []weighted {
	list := make([]weighted, len(p.Addrs))
	for i, a := range p.Addrs {
		list[i] = weighted{a, 1}
		if p.Weights != nil {
			list[i].weight = uint64(p.Weights[i])
		}
	}
	if p.Sticky {
		slices.SortStableFunc(list, func(a, b weighted) int { return a.Addr().Compare(b.Addr()) })
	}
	return list
}

func (c *compiler) pool(p *Pool, family Family, anchor string) error {
	if p.Interface != "" {
		p.Addrs = nil
		for _, a := range c.resolve(Host{Name: p.Interface, Modes: p.Modes}) {
			addr := a.Addr().WithZone("")
			if addr.IsLinkLocalUnicast() && addr.Is6() || family != 0 && addr.Is4() != (family == Inet) {
				continue
			}
			bits := a.Bits()
			if p.Bits != 0 {
				bits = min(p.Bits, addr.BitLen())
			}
			p.Addrs = append(p.Addrs, netip.PrefixFrom(addr, bits).Masked())
		}
	}
	if p.Table == "" {
		return nil
	}
	n, err := c.table(anchor, Host{Kind: InTable, Name: p.Table})
	if err != nil {
		return err
	}
	if c.out.PoolTables == nil {
		c.out.PoolTables = map[TableRef]int{}
	}
	c.out.PoolTables[TableRef{anchor, p.Table}] = int(n) - 1
	if c.in.Entries == nil {
		return nil
	}
	entries, err := c.in.Entries(int(n) - 1)
	if err != nil {
		return fmt.Errorf("table <%s>: %w", p.Table, err)
	}
	p.Addrs = tablePool(entries)
	return nil
}

// tablePool returns the addresses of a table as networks that do not overlap. Of the entries that
// contain an address, the longest decides whether the table has it.
func tablePool(entries []TableEntry) (pool []netip.Prefix) {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b TableEntry) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), a.Prefix.Bits()-b.Prefix.Bits())
	})
	for i, e := range entries {
		inside := i + 1
		for inside < len(entries) && e.Prefix.Overlaps(entries[inside].Prefix) {
			inside++
		}
		if !e.Not {
			pool = without(pool, e.Prefix, entries[i+1:inside])
		}
	}
	return pool
}

// without appends a network to a pool, except some entries. These lie inside the network and are
// sorted.
func without(pool []netip.Prefix, n netip.Prefix, entries []TableEntry) []netip.Prefix {
	if len(entries) == 0 {
		return append(pool, n)
	}
	if entries[0].Prefix.Bits() <= n.Bits() {
		return pool
	}
	low := netip.PrefixFrom(n.Addr(), n.Bits()+1)
	b := n.Addr().AsSlice()
	b[n.Bits()/8] |= 0x80 >> (n.Bits() % 8)
	middle, _ := netip.AddrFromSlice(b)
	at := slices.IndexFunc(entries, func(e TableEntry) bool { return !low.Contains(e.Prefix.Addr()) })
	if at < 0 {
		at = len(entries)
	}
	pool = without(pool, low, entries[:at])
	return without(pool, netip.PrefixFrom(middle, n.Bits()+1), entries[at:])
}
