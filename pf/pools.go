// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"crypto/md5"
	"encoding/hex"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// redirect has the words behind nat-to and its kin, before the rule's family is known.
type redirect struct {
	word    string // its word: nat-to, or nat in an older file
	place   Place
	hosts   []host
	weights []uint16 // of hosts, 0 if none is given
	port    redirectPort
	pool    Pool // for the method of choice
	static  bool
	binat   bool
	// independent means endpoint-independent.
	independent bool
	family      Family    // of af-to
	to          *redirect // of af-to
	// keeps means that a network is only put in front of addresses, and no address is
	// chosen from it.
	keeps bool
	made  map[Family]Pool
}

// redirectPort has the words behind port in a redirect.
type redirectPort struct {
	pos       Pos // without a line there is no port
	low, high uint16
	kind      redirectPorts
}

type redirectPorts uint8

const (
	onePort   redirectPorts = iota
	portsTo                 // low:high
	portsOpen               // low:*
)

// place returns the place of a word of the current statement. It searches backwards from the
// lexer's position: files may have many such words.
func (p *parser) place(pos Pos) Place {
	l := p.lex
	start := l.start
	for range l.line - pos.Line {
		start = strings.LastIndexByte(l.text[:max(start-1, 0)], '\n') + 1
	}
	line, _, _ := strings.Cut(l.text[start:], "\n")
	return Place{pos, strings.TrimSuffix(line, "\r")}
}

// redirect reads the pool behind a word, with its port and options.
func (p *parser) redirect(word string, at Pos) *redirect {
	r := &redirect{word: word, place: p.place(at), binat: word == "binat-to" || word == "binat"}
	p.poolHosts(r)
	if pos := p.tok.pos; word != "route-to" && word != "reply-to" && word != "dup-to" && p.accept("port") {
		r.port = p.redirectPort(pos)
	}
	p.poolOptions(r)
	if r.static && (r.binat || !isNat(word)) {
		p.errorf(at, "the 'static-port' option is only valid with nat rules; %s cannot have it", word)
	}
	if r.independent && !isNat(word) {
		p.errorf(at, "the 'endpoint-independent' option is only valid with nat rules; %s cannot have it", word)
	}
	if r.static && r.port.pos.Line != 0 {
		p.errorf(r.port.pos, "the 'static-port' option can't be used when specifying a port range")
	}
	if r.static && r.independent { // the port stays, and so does the address of a source
		r.independent, r.pool.Sticky = false, true
	}
	return r
}

// isNat reports whether a word changes the source.
func isNat(word string) bool { return word == "nat-to" || word == "nat" }

// afTo reads the words behind af-to.
func (p *parser) afTo(at Pos) *redirect {
	var family Family
	switch {
	case p.accept("inet"):
		family = Inet
	case p.accept("inet6"):
		family = Inet6
	default:
		p.failf(p.tok.pos, "no target address family specified; af-to needs inet or inet6 behind it")
	}
	p.word("from")
	r := p.redirect("af-to", at)
	r.family = family
	r.keeps = family == Inet6
	if p.accept("to") {
		r.to = p.redirect("af-to", at)
		r.keeps, r.to.keeps = false, true
		if r.to.port.pos.Line != 0 && r.to.port.kind != onePort {
			p.errorf(r.to.port.pos, "af-to takes one destination port, and no range")
		}
	}
	return r
}

// poolHosts reads the addresses of a pool.
func (p *parser) poolHosts(r *redirect) {
	if !p.atOp("{") {
		p.poolHost(r)
		return
	}
	var alone Pos // place of a table or an interface
	n := 0
	p.list(func() {
		pos := p.tok.pos
		begin := len(r.hosts)
		p.poolHost(r)
		n++
		if len(r.hosts) > maxList {
			p.limitf(pos, bail{}, "a list may have %d items at most; use a table", maxList)
		}
		for i := range r.hosts[begin:] {
			if r.hosts[begin+i].Kind != Prefix {
				alone = pos
			}
		}
		if n > 1 && alone.Line != 0 {
			p.failf(alone, "only addresses can be listed for redirection pools; give a table or an interface alone")
		}
	})
}

// aPool is the text of errors for the forms of a pool.
const aPool = "an address, a table or a list of addresses"

// poolHost reads an address of a pool, or its table or interface.
func (p *parser) poolHost(r *redirect) {
	pos, begin := p.tok.pos, len(r.hosts)
	switch {
	case p.atOp("!"):
		p.failf(pos, "a pool has the addresses that are listed; `!` cannot be in it")
	case p.at("any"):
		p.failf(pos, "`any` is no pool; expected "+aPool)
	case p.isName() && strings.Contains(p.tok.text, "@"):
		p.failf(pos, "@if not permitted for %s; the address alone says where packets go", r.word)
	}
	if !p.isName() && p.tok.kind != tokNumber && !p.atOp("<") && !p.atOp("(") && !p.at("no-route") && !p.at("urpf-failed") && !p.at("route") {
		p.expected(aPool)
	}
	if r.isRoute() && p.atOp("(") && !p.closesBehindOne() {
		p.hopBy(r)
	} else {
		r.hosts = p.host(r.hosts)
	}
	if slices.ContainsFunc(r.hosts[begin:], func(h host) bool { return !h.linkLocal() }) {
		// A name may have link-local addresses, which are left out, as with (name).
		r.hosts = append(r.hosts[:begin], slices.DeleteFunc(r.hosts[begin:], func(h host) bool { return h.linkLocal() })...)
	}
	for i := range r.hosts[begin:] {
		switch h := &r.hosts[begin+i]; {
		case h.Kind == Range:
			p.failf(pos, "an address range is no pool; give a network, a list or a table")
		case h.Kind == NoRoute || h.Kind == URPFFailed:
			p.failf(pos, "`no-route` and `urpf-failed` are no pool; expected "+aPool)
		case h.Kind == AnyHost:
			panic(bail{}) // the error was recorded
		case h.zone != "" || h.linkLocal():
			p.failf(pos, "a link-local address cannot be in a pool")
		case h.Kind == Prefix && h.Bits == 0, h.Kind == Dynamic && h.Bits == 0:
			p.failf(pos, "a pool of all addresses is none; give a longer netmask")
		case h.Kind == Dynamic && r.isRoute() && !slices.Equal(h.Modes, []string{"peer"}):
			p.failf(pos, "route spec requires :peer with dynamic interface addresses")
		}
	}
	weight := uint16(0)
	if p.accept("weight") {
		pos := p.tok.pos
		if weight = uint16(p.number("a weight", maxWeight)); weight == 0 {
			p.failf(pos, noWeight)
		}
		if k := r.hosts[begin].Kind; k != Prefix {
			p.failf(pos, "weight is for addresses; addresses of a table have it in the table")
		}
	}
	for range r.hosts[begin:] {
		r.weights = append(r.weights, weight)
	}
}

// hopBy reads a next hop with its interface, in the form of FreeBSD, and of OpenBSD before
// 6.9.
func (p *parser) hopBy(r *redirect) {
	p.op("(")
	by := p.interfaceName("") // no note: the next hop is checked with it
	begin := len(r.hosts)
	r.hosts = p.host(r.hosts)
	p.op(")")
	for i := range r.hosts[begin:] {
		r.hosts[begin+i].by = by
	}
}

// linkLocal reports whether an address of a pool is an IPv6 address that is valid on one link
// only. IPv4's are mostly given on purpose, as next hops.
func (h *host) linkLocal() bool {
	return h.Kind == Prefix && h.Addr.Is6() && h.Addr.IsLinkLocalUnicast()
}

// closesBehindOne reports whether the next parenthesis closes behind one word.
func (p *parser) closesBehindOne() bool {
	lex := *p.lex
	p.lex.next()
	t := p.lex.next()
	*p.lex = lex
	return t.kind == tokOp && t.text == ")"
}

func (r *redirect) isRoute() bool { return slices.Contains(routeNames[:], r.word) }

// redirectPort reads a port, or lo:hi, or lo:*.
func (p *parser) redirectPort(pos Pos) redirectPort {
	if p.tok.kind != tokNumber && !p.isName() {
		p.expected("a port")
	}
	at := p.tok.pos
	lo, hi, isRange := strings.Cut(p.tok.text, ":")
	p.next()
	out := redirectPort{pos: pos, low: p.service(at, lo)}
	switch {
	case out.low == 0:
		p.failf(at, "port 0 cannot be used")
	case isRange && hi == "*":
		out.kind = portsOpen
	case isRange:
		out.kind, out.high = portsTo, p.service(at, hi)
		if out.high < out.low {
			p.failf(at, "invalid port range; its last port is below its first")
		}
		if out.high == out.low {
			out.kind, out.high = onePort, 0
		}
	}
	return out
}

// poolOptions reads the words behind a pool.
func (p *parser) poolOptions(r *redirect) {
	method := func(m PoolMethod) {
		if r.pool.Method != Single {
			p.errorf(p.tok.pos, "pool type cannot be redefined")
		}
		r.pool.Method = m
		p.next()
	}
	once := func(given *bool) {
		if *given {
			p.errorf(p.tok.pos, "%s cannot be redefined", p.tok.text)
		}
		*given = true
		p.next()
	}
	for {
		switch {
		case p.at("bitmask"):
			method(Bitmask)
		case p.at("random"):
			method(Random)
		case p.at("source-hash"):
			method(SourceHash)
			r.pool.Key = p.hashKey()
		case p.at("round-robin"):
			method(RoundRobin)
		case p.at("least-states"):
			method(LeastStates)
		case p.at("sticky-address"):
			once(&r.pool.Sticky)
		case p.at("static-port"):
			once(&r.static)
		case p.at("endpoint-independent"):
			once(&r.independent)
		case p.at("prefer-ipv6-nexthop"):
			p.errorf(p.tok.pos, "prefer-ipv6-nexthop: %s", outside["prefer-ipv6-nexthop"])
			p.next()
		default:
			return
		}
	}
}

// hashKey reads the key of source-hash, if there is one: 128 bits in hexadecimal digits, or a
// text. The key is the MD5 of a text.
func (p *parser) hashKey() (key [16]byte) {
	if !p.isName() {
		return key
	}
	pos, text := p.tok.pos, p.tok.text
	p.next()
	digits, isHex := strings.CutPrefix(text, "0x")
	if !isHex {
		return md5.Sum([]byte(text))
	}
	if len(digits) != 2*len(key) {
		p.failf(pos, "hex key must be 128 bits (32 hex digits) long")
	}
	if _, err := hex.Decode(key[:], []byte(digits)); err != nil {
		p.failf(pos, "invalid hex key")
	}
	if key == [16]byte{} {
		p.failf(pos, "the key is zero; leave it out to have one made up")
	}
	return key
}

// diversion has the words behind divert-to and its kin.
type diversion struct {
	place Place
	kind  DivertKind
	hosts []host
	port  uint16
}

func (p *parser) diversion(word string, at Pos) *diversion {
	d := &diversion{place: p.place(at), kind: DivertKind(slices.Index(divertNames[:], word))}
	if d.kind == DivertTo {
		pos := p.tok.pos
		if p.tok.kind != tokNumber && !p.isName() {
			p.expected("an address of this host")
		}
		d.hosts = p.address(nil)
		for i := range d.hosts {
			h := &d.hosts[i]
			h.pos = pos
			if h.Kind != Prefix || h.Bits != h.Addr.BitLen() {
				p.failf(pos, "could not parse divert address: expected one address")
			}
		}
	}
	if d.kind != DivertReply {
		p.word("port")
		pos := p.tok.pos
		port, isRange := p.portRange()
		if isRange || port.Lo == 0 {
			p.failf(pos, "invalid divert port; give one from 1 to 65535")
		}
		d.port = port.Lo
	}
	return d
}

// redirects returns the redirects of the rule.
func (s *spec) redirects() (list []*redirect) {
	for _, r := range []*redirect{s.rdr, s.nat, s.route} {
		if r != nil {
			list = append(list, r)
		}
	}
	return list
}

// checkForward checks the words for a packet's way against the rest of the rule.
func (p *parser) checkForward(s *spec) {
	r := &s.rule
	defer func(errs int) {
		if len(p.errs) > errs && r.Action != CallAnchor {
			panic(bail{}) // errors that follow from these would only confuse
		}
	}(len(p.errs))
	bad := func(o option, format string, args ...any) { p.errorf(s.at[o], format, args...) }
	keeps := r.Action == Pass && (s.at[optState].Line == 0 || r.State != NoState)
	if r.Action == CallAnchor {
		for _, o := range []option{optNat, optRdr, optRoute, optDivert} {
			if s.at[o].Line != 0 {
				bad(o, "the call of an anchor sends packets nowhere; say it in the rules of the anchor")
			}
		}
		return
	}
	for _, o := range []option{optNat, optRdr} {
		redirect := map[option]*redirect{optNat: s.nat, optRdr: s.rdr}[o]
		switch {
		case redirect == nil:
		case redirect.family != 0 && r.Action == Match:
			bad(o, "af-to is not supported on match rules")
		case redirect.family != 0 && s.route != nil:
			bad(o, "af-to cannot be used together with route-to, reply-to, dup-to")
		case r.Action != Match && !keeps:
			bad(o, "nat-to and rdr-to require keep state; %s", map[bool]string{true: "leave out no state", false: "a block rule keeps none"}[r.Action == Pass])
		case redirect.binat && r.Direction != Both:
			bad(o, "binat-to cannot be specified with a direction; it is for both")
		case redirect.family != 0 && r.Direction != In:
			bad(o, "af-to is for rules with in: the packet goes on in the other family")
		case !redirect.binat && r.Direction == Both:
			bad(o, "nat-to and rdr-to require a direction; give the rule in or out")
		}
	}
	if s.nat != nil && s.rdr != nil && (s.nat.binat || s.nat.family != 0) {
		bad(optRdr, "rdr-to cannot be used with %s, which changes the destination, too", s.nat.word)
	}
	if s.route != nil {
		switch kind := s.route.word; {
		case r.Action == Match || r.Action == Block:
			bad(optRoute, "route-to, reply-to and dup-to are not supported on %s rules", actionNames[r.Action])
		case !keeps:
			bad(optRoute, "route-to, reply-to and dup-to require keep state; leave out no state")
		case kind != "dup-to" && r.Direction == Both:
			bad(optRoute, "direction must be explicit with rules that specify routing; give the rule in or out")
		}
	}
	if d := s.divert; d != nil {
		switch {
		case r.Action == Match:
			bad(optDivert, "divert is not supported on match rules")
		case d.kind == DivertTo && r.Direction == Out:
			bad(optDivert, "divert-to used with outgoing rule")
		case d.kind == DivertReply && r.Direction == In:
			bad(optDivert, "divert-reply used with incoming rule")
		}
	}
}

// forwardFamily returns the family that a rule gets from its words for a packet's way, 0 for
// none. It reports false if these need both families.
func (p *parser) forwardFamily(s *spec, family Family) (Family, bool) {
	for _, r := range s.redirects() {
		switch {
		case r.family != 0 && family == r.family:
			p.errorf(r.place.Pos, "must indicate different address family with af-to; the rule is of %s", familyNames[family])
			return 0, false
		case family != 0:
		case r.family == Inet:
			family = Inet6
		case r.family == Inet6:
			family = Inet
		default:
			first := r.hosts[0].family()
			for i := range r.hosts {
				// On FreeBSD the rule gets the family of the first.
				if r.hosts[i].family() != first && s.old == nil {
					p.errorf(r.hosts[i].pos, "%s spec contains addresses with different address families; give the rule inet or inet6", r.spec())
					return 0, false
				}
			}
			family = first
		}
	}
	if d := s.divert; d != nil && d.kind == DivertTo && family == 0 {
		family = d.hosts[0].family()
	}
	return family, true
}

// spec returns the name of the words in pfctl's errors.
func (r *redirect) spec() string {
	if r.isRoute() {
		return "routing"
	}
	return "translation"
}

// forward fills in a rule's words for a packet's way. The rule's family is known.
func (p *parser) forward(s *spec, r *Rule) bool {
	if s.nat == nil && s.rdr == nil && s.route == nil && s.divert == nil {
		return true
	}
	errs := len(p.errs)
	if t := s.rdr; t != nil {
		r.Translations = append(r.Translations, p.translation(t, RdrTo, r))
	}
	if t := s.nat; t != nil && !t.binat {
		kind := NatTo
		if t.family != 0 {
			kind = AfTo
		}
		r.Translations = append(r.Translations, p.translation(t, kind, r))
	}
	if t := s.route; t != nil {
		kind := RouteKind(slices.Index(routeNames[:], t.word))
		r.Route = &Route{Place: t.place, Kind: kind, Pool: p.pool(t, r.Family)}
	}
	if d := s.divert; d != nil {
		r.Divert = &Divert{Place: d.place, Kind: d.kind, Port: d.port}
		for i := range d.hosts {
			if h := &d.hosts[i]; h.family() == r.Family && !r.Divert.Addr.IsValid() {
				r.Divert.Addr = h.Addr
			}
		}
		if d.kind == DivertTo && !r.Divert.Addr.IsValid() {
			p.errorf(d.hosts[0].pos, "divert-to address family mismatch; the rule is of %s", familyNames[r.Family])
		}
	}
	return len(p.errs) == errs
}

// translation returns a translation for a rule.
func (p *parser) translation(t *redirect, kind TranslationKind, r *Rule) Translation {
	out := Translation{Place: t.place, Kind: kind, Family: t.family, Static: t.static, EndpointIndependent: t.independent}
	family := r.Family
	if kind == AfTo {
		family = t.family
	}
	out.Pool = p.pool(t, family)
	if kind != RdrTo {
		if t.port.kind == portsOpen {
			p.errorf(t.port.pos, "%s chooses among ports; give the last one instead of `*`", t.word)
		}
		out.Ports = PoolPorts{t.port.low, t.port.high}
		switch {
		case t.static:
			out.Ports = PoolPorts{}
		case t.port.pos.Line == 0:
			out.Ports = PoolPorts{NatPortLow, NatPortHigh}
		case t.port.kind == onePort:
			out.Ports.High = out.Ports.Low
		}
	} else {
		p.rdrPorts(t, &out, r.To.Port)
	}
	if kind != AfTo {
		return out
	}
	prefix := out.Pool
	if t.to != nil {
		out.To, out.ToPort = p.pool(t.to, family), t.to.port.low
		prefix = out.To
	}
	network := len(prefix.Addrs) == 1 && !prefix.Addrs[0].IsSingleIP() && prefix.Method == Single
	switch h := r.To.Host; {
	case t.to != nil && (t.family == Inet || !network):
		return out
	case network && t.to != nil && prefix.Addrs[0].Bits() > 96: // the last bits of the old address stay
		return out
	case network && t.family == Inet6:
		out.Embed = uint8(prefix.Addrs[0].Bits())
	case t.family == Inet && h.Kind == Prefix && !r.To.Not && h.Bits >= 32 && h.Bits <= 96:
		out.Embed = uint8(h.Bits)
	default:
		out.Embed = 96
	}
	if !slices.Contains([]uint8{32, 40, 48, 56, 64, 96}, out.Embed) {
		p.errorf(t.place.Pos, "IPv4 addresses are embedded behind 32, 40, 48, 56, 64 or 96 bits, not behind %d", out.Embed)
	}
	return out
}

// rdrPorts fills in the ports of rdr-to. to is the rule's condition on the destination port.
func (p *parser) rdrPorts(t *redirect, out *Translation, to Port) {
	out.Ports = PoolPorts{t.port.low, t.port.high}
	switch {
	case t.port.kind == onePort:
		return
	case t.port.kind == portsOpen:
		size := uint32(0)
		switch to.Op {
		case PortEqual:
		case PortRange:
			size = uint32(to.Hi - to.Lo)
		default:
			p.errorf(t.port.pos, "`*` stands for as many ports as the rule is for; give the rule `to port` and a port or a range")
			return
		}
		last := uint32(t.port.low) + size
		if last > math.MaxUint16 {
			p.errorf(t.port.pos, "invalid port range; it ends at %d, and there are %d ports", last, math.MaxUint16)
			return
		}
		if size == 0 {
			return
		}
		out.Ports.High = uint16(last)
	}
	if to.Op != AnyPort {
		out.First = to.Lo
	}
}

// maxPools is the largest number of addresses in the pools of all rules.
const maxPools = 1 << 20

// pool returns the addresses of a pool that belong to a family, with the defaults for what
// the rule leaves open.
func (p *parser) pool(t *redirect, family Family) Pool {
	out, ok := t.made[family]
	if !ok {
		out = p.makePool(t, family)
		if t.made == nil {
			t.made = map[Family]Pool{}
		}
		t.made[family] = out
	}
	// The rules of a list share the addresses. Each of them prints the addresses.
	if p.spent.pools += len(out.Addrs); p.spent.pools > maxPools {
		p.limitf(t.place.Pos, enough{}, "the pools of all rules have more than %d addresses; use tables", maxPools)
	}
	return out
}

func (p *parser) makePool(t *redirect, family Family) Pool {
	out := t.pool
	several := false // more than one address is possible
	for i := range t.hosts {
		switch h := &t.hosts[i]; h.Kind {
		case InTable:
			out.Table, several = h.Name, true
			p.pools = append(p.pools, poolTable{p.set, h.Name, family, h.pos})
		case Dynamic:
			out.Interface, out.Modes, out.Bits = h.Name, h.Modes, max(h.Bits, 0)
			if family == Inet && out.Bits > 32 {
				out.Bits = 0 // as in a rule's addresses
			}
			several = !slices.Contains(h.Modes, "0") || GroupName(h.Name) == h.Name
		default:
			if f := h.family(); family == 0 || f == family {
				out.Addrs = append(out.Addrs, netip.PrefixFrom(h.Addr, h.Bits))
				out.Weights = append(out.Weights, max(t.weights[i], 1))
				out.By = append(out.By, h.by)
			}
		}
	}
	if !slices.ContainsFunc(out.Weights, func(w uint16) bool { return w != 1 }) {
		out.Weights = nil
	}
	if !slices.ContainsFunc(out.By, func(by string) bool { return by != "" }) {
		out.By = nil
	}
	switch n := len(out.Addrs); {
	case out.IsEmpty():
		p.errorf(t.hosts[0].pos, "af mismatch in %s spec; no address of the pool is of %s", t.spec(), familyNames[family])
	case n > 1 && out.Method == Bitmask:
		p.errorf(t.place.Pos, "pool type is not valid for multiple translation or routing addresses; give one network, or another type")
	case out.Table != "" && out.Method == Bitmask:
		p.errorf(t.place.Pos, "tables are not supported by pool type; give one network, or another type")
	case several && out.Method == Bitmask:
		p.errorf(t.place.Pos, "interface (%s) is not supported by pool type; give one address by :0, or another type", out.Interface)
	case n > 1, n == 1 && !out.Addrs[0].IsSingleIP():
		several = true
	}
	if t.keeps && len(out.Addrs) == 1 {
		several = false
	}
	if several && out.Method == Single {
		out.Method = RoundRobin
	}
	return out
}

// poolTable is a table that a pool of a ruleset names.
type poolTable struct {
	set    *Ruleset
	name   string
	family Family // 0: any family
	pos    Pos
}

// checkPools records errors for pools whose tables can have no address: they are defined
// without one, and without persist.
func (p *parser) checkPools(main *Ruleset) {
	definition := func(set *Ruleset, name string) *Table {
		for i := len(set.Tables) - 1; i >= 0; i-- {
			if t := &set.Tables[i]; t.Name == name {
				return t
			}
		}
		return nil
	}
	for _, u := range p.pools {
		t := definition(u.set, u.name)
		if t == nil {
			t = definition(main, u.name)
		}
		if t == nil || t.Persist && !t.Const {
			continue
		}
		any := false
		for _, e := range t.Entries {
			any = any || !e.Not && (u.family == 0 || e.Prefix.Addr().Is4() == (u.family == Inet))
		}
		if !any {
			what := "address"
			if u.family != 0 {
				what += " of " + familyNames[u.family]
			}
			p.errorf(u.pos, "table <%s> has no %s, and a pool needs one; if it is filled later, define it with persist", shorten(u.name), what)
		}
	}
}

// addBinat adds the two rules of binat-to: one that changes the source on the way out, and
// one that changes the destination on the way in.
func (p *parser) addBinat(s *spec, r Rule) bool {
	t := s.nat
	source := r.From.Host
	bad := func(pos Pos, format string, args ...any) bool {
		p.errorf(pos, format, args...)
		return false
	}
	aliased := func(h *Host) bool {
		return h.Kind == Dynamic && (!slices.Contains(h.Modes, "0") || GroupName(h.Name) == h.Name)
	}
	if len(t.hosts) > 1 {
		t.hosts = slices.DeleteFunc(slices.Clone(t.hosts), func(h host) bool { return r.Family != 0 && h.family() != r.Family })
		t.weights = make([]uint16, len(t.hosts))
	}
	switch {
	case len(t.hosts) != 1:
		return bad(t.place.Pos, "binat-to must redirect to a single address or network")
	case source.Kind == InTable:
		return bad(t.place.Pos, "invalid use of table <%s> as the source address of a binat-to rule", source.Name)
	case t.hosts[0].Kind == InTable:
		return bad(t.place.Pos, "tables cannot be used as the redirect address of a binat-to rule")
	case r.From.Not || source.Kind != Prefix && source.Kind != Dynamic:
		return bad(t.place.Pos, "binat-to requires a specified source and redirect address; give the rule `from` and an address")
	case aliased(&source), aliased(&t.hosts[0].Host):
		return bad(t.place.Pos, "dynamic interfaces must be used with :0 in a binat-to rule")
	case t.pool.Method != Single && t.pool.Method != Bitmask:
		return bad(t.place.Pos, "binat-to gives each address one other; %s cannot be used with it", t.pool.Method)
	case t.port.pos.Line != 0:
		return bad(t.port.pos, "binat-to leaves ports as they are; no port can be given")
	}
	width := func(h *Host) int { // number of bits behind the mask
		if h.Kind == Prefix {
			return h.Addr.BitLen() - h.Bits
		}
		if h.Bits < 0 {
			return 0
		}
		return map[Family]int{Inet: 32, Inet6: 128}[r.Family] - h.Bits
	}
	if width(&source) != width(&t.hosts[0].Host) {
		return bad(t.place.Pos, "source and redirect addresses must have a matching network mask in a binat-to rule")
	}
	method := func(h *Host) PoolMethod {
		if width(h) > 0 {
			return Bitmask // each address has its own counterpart
		}
		return Single
	}
	out, in := *t, *t
	out.made, in.made = nil, nil
	out.binat, out.static, out.pool.Method = false, true, method(&source)
	in.binat, in.pool.Method = false, out.pool.Method
	in.hosts = []host{{Host: source, pos: t.hosts[0].pos}}
	errs := len(p.errs)
	first, second := r, r
	first.Direction = Out
	first.Translations = append(slices.Clone(r.Translations), p.translation(&out, NatTo, &first))
	second.Direction = In
	second.From = Endpoint{Not: r.To.Not, Host: r.To.Host, Port: r.To.Port}
	second.To = Endpoint{Host: t.hosts[0].Host, Port: r.From.Port}
	second.Translations = append(slices.Clone(r.Translations), p.translation(&in, RdrTo, &second))
	return len(p.errs) == errs && p.append(s, first) && p.append(s, second)
}
