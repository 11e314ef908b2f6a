// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"hash/fnv"
	"math/big"
	"net/netip"
	"slices"

	"bascule/pf"
)

// A Router is pf on a router: rules translate, and states remember their results for connections
// (pf_test() of sys/net/pf.c and pf_get_transaddr() of pf_lb.c). It handles whole packets only:
// fragments must be reassembled before. States end when [Router.End] is called. It ignores the
// sequence numbers and timeouts of TCP, and the ports to which a state is bound.
type Router struct {
	*Evaluator
	// Roll returns a number below n, which is not 0. Nil: always 0.
	Roll func(n uint64) uint64
	// Hash returns source-hash's value for an address. Nil: FNV-1a of the key and the
	// address.
	Hash func(key [16]byte, a netip.Addr) uint64

	found  map[look]*State
	states []*State
	next   map[use]uint64 // for round-robin and least-states: the next index
}

// State is a connection that rules have passed.
type State struct {
	Direction     pf.Direction // of its first packet through the port where the rules were tried
	Before, After Tuple        // of its first packet, before and after the translation
	Rule          *pf.Rule
	Hop           netip.Addr // the next hop that the rule has chosen, zero for none
	chosen        []choice
	mapped        bool // all states of its source share its new source (endpoint-independent)
}

// choice is an address from a pool for a state.
type choice struct {
	use    use
	source netip.Addr // the source that it was chosen for
	addr   netip.Addr
	sticky bool
	least  bool // chosen by least-states
}

// use is a pool of a rule.
type use struct {
	rule *pf.Rule
	n    int // index in Translations, twice; plus one for the To of af-to; -1 for next hops
}

// Tuple has the common fields of a connection's packets in one direction. Ports are TCP's and
// UDP's. An ICMP echo has its ID in place of the asking side's port. Kind is the ICMP type of
// the question; for echoes it is IPv4's.
type Tuple struct {
	Family           pf.Family
	Proto, Kind      uint8
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
}

// look is the key of a state.
type look struct {
	direction pf.Direction
	tuple     Tuple
}

// Judgment is the fate of a routed packet.
type Judgment struct {
	Result           // from the rules, or from the rule of an existing state
	Packet    Packet // as it leaves, if it passes
	State     *State // its state, nil for none
	Translate bool   // it is dropped because it cannot be translated
	// its way, if not by the host's routes
	Hop    netip.Addr // to this next hop (route-to, reply-to)
	Copy   netip.Addr // a copy goes to this next hop (dup-to)
	Divert *pf.Divert // to this socket of the host
	NoHop  bool       // it is dropped because its rule has no next hop for it
}

// The kinds of ICMP that answer others.
var questions = map[pf.Family]map[uint8]uint8{
	pf.Inet:  {0: 8, 9: 10, 14: 13, 16: 15, 18: 17, 34: 33, 36: 35},
	pf.Inet6: {129: 128, 140: 139, 200: 201},
}

const (
	echoRequest, echoReply   = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// TupleOf returns the tuple of a packet.
func TupleOf(p *Packet) Tuple {
	t := Tuple{Family: p.Family, Proto: p.Proto, Src: p.Src, Dst: p.Dst}
	switch {
	case p.Proto == TCP || p.Proto == UDP:
		t.SrcPort, t.DstPort = p.SrcPort, p.DstPort
	case p.isICMP():
		answers := false
		t.Kind = p.ICMPType
		if q, ok := questions[p.Family][p.ICMPType]; ok {
			t.Kind, answers = q, true
		}
		if t.Kind == echoRequest6 && p.Family == pf.Inet6 || t.Kind == echoRequest && p.Family == pf.Inet {
			t.Kind = echoRequest
			if answers {
				t.DstPort = p.EchoID
			} else {
				t.SrcPort = p.EchoID
			}
		}
	}
	return t
}

func (p *Packet) isICMP() bool {
	return p.Family == pf.Inet && p.Proto == ICMP || p.Family == pf.Inet6 && p.Proto == ICMPv6
}

// isEcho reports whether the tuple is of ICMP's echoes.
func (t Tuple) isEcho() bool {
	return t.Kind == echoRequest && (t.Family == pf.Inet && t.Proto == ICMP || t.Family == pf.Inet6 && t.Proto == ICMPv6)
}

// Reverse returns the tuple of the answers.
func (t Tuple) Reverse() Tuple {
	t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	return t
}

// give sets the packet's fields to the tuple's.
func (t Tuple) give(p *Packet) {
	if p.Family != t.Family {
		if p.isICMP() {
			p.ICMPType = map[pf.Family]map[uint8]uint8{
				pf.Inet6: {echoRequest: echoRequest6, echoReply: echoReply6},
				pf.Inet:  {echoRequest6: echoRequest, echoReply6: echoReply},
			}[t.Family][p.ICMPType]
		}
		p.Family, p.Proto = t.Family, t.Proto
	}
	p.Src, p.Dst = t.Src, t.Dst
	switch {
	case p.Proto == TCP || p.Proto == UDP:
		p.SrcPort, p.DstPort = t.SrcPort, t.DstPort
	case t.isEcho():
		p.EchoID = t.SrcPort | t.DstPort // one is 0
	}
}

// looks returns the keys of the state: of packets in either direction.
func (s *State) looks() [2]look {
	back := pf.In + pf.Out - s.Direction
	if s.Before.Family != s.After.Family {
		back = pf.In // af-to judges answers on their way in
	}
	return [2]look{{s.Direction, s.Before}, {back, s.After.Reverse()}}
}

// States returns the states, the oldest first.
func (rt *Router) States() []*State { return slices.Clone(rt.states) }

// End ends a state. Its addresses and ports of pools are free again.
func (rt *Router) End(s *State) {
	for _, l := range s.looks() {
		delete(rt.found, l)
	}
	rt.states = slices.DeleteFunc(rt.states, func(other *State) bool { return other == s })
}

// find returns the state of packets with a tuple, and the tuple after the translation.
func (rt *Router) find(d pf.Direction, t Tuple) (*State, Tuple) {
	s := rt.found[look{d, t}]
	if s == nil {
		return nil, t
	}
	if s.is(d, t) {
		return s, s.After
	}
	return s, s.Before.Reverse()
}

// is reports whether packets of a tuple go the way of the state's first packet.
func (s *State) is(d pf.Direction, t Tuple) bool { return t == s.Before && d == s.Direction }

// Judge judges a packet at the port and in the direction that it has.
func (rt *Router) Judge(p Packet) Judgment {
	if p.Quoted != nil {
		if j, ok := rt.judgeError(p); ok {
			return j
		}
	}
	if s, after := rt.find(p.Direction, TupleOf(&p)); s != nil {
		forward := s.is(p.Direction, TupleOf(&p))
		after.give(&p)
		j := Judgment{Result: Result{Action: pf.Pass, Rule: s.Rule}, Packet: p, State: s}
		j.route(forward)
		return j
	}
	return rt.judgeNew(p)
}

// judgeError judges an ICMP error about a packet of a state. The error takes the way of an
// answer. The translation is reversed for the quoted packet: it becomes the packet as its sender
// sent it. The error's new source is that packet's destination.
func (rt *Router) judgeError(p Packet) (Judgment, bool) {
	quoted := *p.Quoted
	s, after := rt.find(p.Direction, TupleOf(&quoted).Reverse())
	if s == nil {
		return Judgment{}, false
	}
	was := quoted
	forward := s.is(p.Direction, TupleOf(&quoted).Reverse())
	after.Reverse().give(&quoted)
	if after.Family != was.Family {
		result := Result{Action: pf.Pass, Rule: s.Rule}
		typ, code, ok := across(p.Family, p.ICMPType, p.ICMPCode)
		if !ok {
			result.Action = pf.Block
			return Judgment{Result: result, State: s, Translate: true}, true
		}
		p.Src = errorSource(p.Src, was.Dst, quoted.Dst)
		p.Family, p.Proto, p.ICMPType, p.ICMPCode = after.Family, ICMP, typ, code
		if after.Family == pf.Inet6 {
			p.Proto = ICMPv6
		}
		p.Dst, p.Quoted = quoted.Src, &quoted
		return Judgment{Result: result, Packet: p, State: s}, true
	}
	if quoted.Src != was.Src || quoted.SrcPort != was.SrcPort {
		p.Dst = quoted.Src
	}
	if quoted.Dst != was.Dst || quoted.DstPort != was.DstPort {
		p.Src = quoted.Dst
	}
	p.Quoted = &quoted
	j := Judgment{Result: Result{Action: pf.Pass, Rule: s.Rule}, Packet: p, State: s}
	j.route(forward)
	return j, true
}

// errorSource returns the source of an error in the other family. If the quoted packet's
// destination has an embedded address, it is the address behind the same 96 bits; otherwise it
// is that destination.
func errorSource(from, was, is netip.Addr) netip.Addr {
	six, four := is, was
	if is.Is4() {
		six, four = was, is
	}
	if extract(six, 96) != four {
		return is
	}
	if from.Is4() {
		return embed(six, 96, from)
	}
	if embed(six, 96, netip.IPv4Unspecified()) != embed(from, 96, netip.IPv4Unspecified()) {
		return is
	}
	return extract(from, 96)
}

// across returns the type and code of an ICMP error in the other family, and false if it has
// none there (RFC 7915, 4.2 and 5.2). A parameter problem is about the first byte.
func across(family pf.Family, typ, code uint8) (uint8, uint8, bool) {
	type kind [2]uint8
	to6 := map[kind]kind{{3, 2}: {4, 1}, {3, 3}: {1, 4}, {3, 4}: {2, 0}, {12, 0}: {4, 0}, {12, 2}: {4, 0}}
	for _, unreachable := range []uint8{0, 1, 5, 6, 7, 8, 11, 12} {
		to6[kind{3, unreachable}] = kind{1, 0}
	}
	for _, forbidden := range []uint8{9, 10, 13, 15} {
		to6[kind{3, forbidden}] = kind{1, 1}
	}
	to4 := map[kind]kind{{1, 0}: {3, 1}, {1, 1}: {3, 10}, {1, 2}: {3, 1}, {1, 3}: {3, 1}, {1, 4}: {3, 3}, {2, 0}: {3, 4}, {4, 0}: {12, 0}, {4, 1}: {3, 2}}
	for ended := range uint8(2) {
		to6[kind{11, ended}], to4[kind{3, ended}] = kind{3, ended}, kind{11, ended}
	}
	to := to6
	if family == pf.Inet6 {
		to = to4
	}
	k, ok := to[kind{typ, code}]
	return k[0], k[1], ok
}

// judgeNew tries the rules.
func (rt *Router) judgeNew(p Packet) Judgment {
	s := &State{Direction: p.Direction, Before: TupleOf(&p)}
	s.After = s.Before
	walked := p
	w := walk{Evaluator: rt.Evaluator, Packet: &walked, tables: map[string][]pf.TableEntry{}}
	w.translate = func(w *walk, r *pf.Rule, at string) bool {
		if !rt.translate(w, s, r, at) {
			return false
		}
		s.After.give(&walked)
		return true
	}
	result := w.evaluate()
	switch {
	case w.failed:
		return Judgment{Result: result, Translate: true}
	case result.Action != pf.Pass:
		return Judgment{Result: result}
	case result.Rule != nil && !rt.translate(&w, s, result.Rule, w.at):
		result.Action = pf.Block
		return Judgment{Result: result, Translate: true}
	}
	out := Judgment{Result: result, Packet: p}
	if result.Rule == nil || result.Rule.State == pf.NoState {
		// The answers could not be translated back. OpenBSD sends the packet unchanged.
		if s.After != s.Before {
			out.Action, out.Translate = pf.Block, true
		}
		return out
	}
	for _, l := range s.looks() {
		if rt.found[l] != nil { // for example, of a protocol without ports
			out.Action, out.Translate = pf.Block, true
			return out
		}
	}
	if !rt.hop(&w, s, result.Rule) {
		out.Action, out.NoHop = pf.Block, true
		return out
	}
	if rt.found == nil {
		rt.found = map[look]*State{}
	}
	for _, l := range s.looks() {
		rt.found[l] = s
	}
	s.Rule = result.Rule
	rt.states = append(rt.states, s)
	s.After.give(&out.Packet)
	out.State = s
	out.route(true)
	return out
}

// translate makes the translations of a rule for a new state.
func (rt *Router) translate(w *walk, s *State, r *pf.Rule, at string) bool {
	for i := range r.Translations {
		t := &r.Translations[i]
		ok := false
		switch u := (use{r, 2 * i}); t.Kind {
		case pf.NatTo:
			ok = rt.nat(w, s, t, u, at, s.After)
		case pf.RdrTo:
			ok = rt.rdr(w, s, t, u, at)
		case pf.AfTo:
			ok = rt.af(w, s, t, u, at)
		}
		if !ok {
			return false
		}
	}
	return true
}

// rdr gives the state's packets a new destination.
func (rt *Router) rdr(w *walk, s *State, t *pf.Translation, u use, at string) bool {
	p := rt.open(w, &t.Pool, s.After.Family, at)
	a, ok := rt.pick(p, s, u, s.After.Src, s.After.Dst)
	if !ok {
		return false
	}
	s.After.Dst = a
	if s.After.Proto == TCP || s.After.Proto == UDP {
		s.After.DstPort = newPort(t, s.After.DstPort)
	}
	return true
}

// newPort returns the destination port that rdr-to gives.
func newPort(t *pf.Translation, port uint16) uint16 {
	switch {
	case t.Ports.Low == 0:
		return port
	case t.Ports.High == 0:
		return t.Ports.Low
	}
	return t.Ports.Low + uint16(uint32(port-t.First)%(uint32(t.Ports.High-t.Ports.Low)+1))
}

// nat gives the packets of a tuple a new source, so that answers differ from all other
// connections'.
func (rt *Router) nat(w *walk, s *State, t *pf.Translation, u use, at string, tuple Tuple) bool {
	p := rt.open(w, &t.Pool, tuple.Family, at)
	if t.EndpointIndependent && tuple.Proto == UDP {
		for _, other := range rt.states {
			if other.mapped && other.Before.Family == s.Before.Family && other.Before.Src == s.Before.Src && other.Before.SrcPort == s.Before.SrcPort {
				s.mapped = true
				s.chosen = append(s.chosen, choice{u, s.Before.Src, other.After.Src, p.sticky && p.method != pf.Single, p.method == pf.LeastStates})
				return rt.fits(s, t, tuple, other.After.Src, other.After.SrcPort)
			}
		}
		s.mapped = true
	}
	for range min(p.length(), 1<<16) {
		a, ok := rt.pick(p, s, u, tuple.Src, tuple.Src)
		if !ok {
			return false
		}
		if rt.port(s, t, tuple, a) {
			return true
		}
		s.chosen = slices.DeleteFunc(s.chosen, func(c choice) bool { return c.use == u })
		switch p.method {
		case pf.Single, pf.Bitmask, pf.SourceHash:
			return false // the next try would be the same
		case pf.Random, pf.LeastStates:
			rt.next[u] = p.index(a) + 1
		}
		p.method, p.sticky = pf.RoundRobin, false
	}
	return false
}

// port finds a port that is free with a source.
func (rt *Router) port(s *State, t *pf.Translation, tuple Tuple, a netip.Addr) bool {
	low, high := t.Ports.Low, t.Ports.High
	switch {
	case tuple.isEcho():
		low, high = 1, 65535
	case tuple.Proto != TCP && tuple.Proto != UDP, t.Static:
		return rt.fits(s, t, tuple, a, tuple.SrcPort)
	}
	cut := int(low) + int(rt.roll(uint64(high-low)+1))
	for port := cut; port <= int(high); port++ {
		if rt.fits(s, t, tuple, a, uint16(port)) {
			return true
		}
	}
	for port := cut - 1; port >= int(low); port-- {
		if rt.fits(s, t, tuple, a, uint16(port)) {
			return true
		}
	}
	return false
}

// fits gives a source to the tuple, and the tuple to the state, unless the answers of another
// state have the same tuple.
func (rt *Router) fits(s *State, t *pf.Translation, tuple Tuple, a netip.Addr, port uint16) bool {
	made := *s
	tuple.Src, tuple.SrcPort = a, port
	made.After = tuple
	if rt.found[made.looks()[1]] != nil {
		return false
	}
	if t.EndpointIndependent && tuple.Proto == UDP {
		for _, other := range rt.states {
			if other.mapped && other.After.Src == a && other.After.SrcPort == port &&
				(other.Before.Src != s.Before.Src || other.Before.SrcPort != s.Before.SrcPort) {
				return false
			}
		}
	}
	s.After = tuple
	return true
}

// af moves the state's packets to the other family.
func (rt *Router) af(w *walk, s *State, t *pf.Translation, u use, at string) bool {
	tuple := s.After
	tuple.Family = t.Family
	switch {
	case tuple.Proto == ICMP:
		tuple.Proto = ICMPv6
	case tuple.Proto == ICMPv6:
		tuple.Proto = ICMP
	}
	if (tuple.Proto == ICMP || tuple.Proto == ICMPv6) && (tuple.Kind != echoRequest || tuple.DstPort != 0) {
		// other questions have no counterpart in the other family (RFC 7915), and an
		// answer needs a state
		return false
	}
	if !isRouted(tuple.Src) || !isRouted(tuple.Dst) {
		return false
	}
	pool := rt.open(w, &t.Pool, t.Family, at)
	if len(pool.networks) == 0 {
		return false
	}
	prefix := pool.networks[0]
	switch {
	case t.To.IsEmpty() && t.Family == pf.Inet:
		tuple.Dst = extract(s.After.Dst, int(t.Embed))
		if misplaced(s.After.Dst, tuple.Dst) {
			return false
		}
	case t.To.IsEmpty():
		tuple.Dst = embed(prefix.Addr(), int(t.Embed), s.After.Dst)
		if misplaced(tuple.Dst, s.After.Dst) {
			return false
		}
	default:
		to := rt.open(w, &t.To, t.Family, at)
		if t.ToPort != 0 && (tuple.Proto == TCP || tuple.Proto == UDP) {
			tuple.DstPort = t.ToPort
		}
		if n := to.networks; t.To.Method == pf.Single && len(n) == 1 && !n[0].IsSingleIP() {
			switch {
			case t.Embed != 0:
				tuple.Dst = embed(n[0].Addr(), int(t.Embed), s.After.Dst)
				if misplaced(tuple.Dst, s.After.Dst) {
					return false
				}
			case t.Family == pf.Inet6:
				tuple.Dst = mix(n[0], embed(netip.IPv6Unspecified(), 96, s.After.Dst))
			default:
				tuple.Dst = mix(n[0], extract(s.After.Dst, 96))
			}
			break
		}
		a, ok := rt.pick(to, s, use{u.rule, u.n + 1}, s.After.Src, s.After.Dst)
		if !ok {
			return false
		}
		tuple.Dst = a
	}
	found := false
	if t.To.IsEmpty() && t.Family == pf.Inet6 && !prefix.IsSingleIP() {
		src := embed(prefix.Addr(), int(t.Embed), s.After.Src)
		found = !misplaced(src, s.After.Src) && rt.port(s, t, tuple, src)
	} else {
		tuple.Src = s.After.Src // the source for the pool's choice
		found = rt.nat(w, s, t, u, at, tuple)
	}
	return found && isRouted(s.After.Src) && isRouted(s.After.Dst)
}

// misplaced reports whether an IPv6 address has an IPv4 address behind the well-known prefix
// that is not global, and must not be there (RFC 6052, 3.1).
func misplaced(six, four netip.Addr) bool {
	return netip.MustParsePrefix("64:ff9b::/96").Contains(six) && slices.ContainsFunc([]string{
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15",
		"192.0.0.0/24", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24",
	}, func(p string) bool { return netip.MustParsePrefix(p).Contains(four) })
}

// isRouted reports whether an address belongs to a station, so that packets are routed from it
// and to it (RFC 1122, 3.2.1.3; RFC 4291, 2.5). A host forwards no packets from or to other
// addresses.
func isRouted(a netip.Addr) bool {
	if a.Is4() {
		first := a.As4()[0]
		return first != 0 && first != 127 && first < 224 && !a.IsLinkLocalUnicast()
	}
	return !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.IsUnspecified() && !a.IsLoopback() && !a.Is4In6()
}

// places returns the positions of the embedded IPv4 address's bytes in an IPv6 address, by the
// length of the prefix (RFC 6052, 2.2).
func places(bits int) (at [4]int) {
	for i, n := 0, bits/8; i < 4; n++ {
		if n == 8 { // this byte is zero
			continue
		}
		at[i] = n
		i++
	}
	return at
}

// embed returns the IPv6 address with an IPv4 address behind this many bits of a prefix.
func embed(prefix netip.Addr, bits int, a netip.Addr) netip.Addr {
	out, four := prefix.As16(), a.As4()
	for n := bits / 8; n < 16; n++ {
		out[n] = 0
	}
	for i, n := range places(bits) {
		out[n] = four[i]
	}
	return netip.AddrFrom16(out)
}

// extract returns the IPv4 address behind this many bits of an IPv6 address.
func extract(a netip.Addr, bits int) netip.Addr {
	six := a.As16()
	var out [4]byte
	for i, n := range places(bits) {
		out[i] = six[n]
	}
	return netip.AddrFrom4(out)
}

// opened is a pool with its current addresses.
type opened struct {
	networks []netip.Prefix
	weights  []uint64
	not      []netip.Prefix // excluded entries of a table
	method   pf.PoolMethod
	key      [16]byte
	sticky   bool
}

// open returns the current addresses of a family in a pool.
func (rt *Router) open(w *walk, p *pf.Pool, family pf.Family, at string) *opened {
	o := &opened{method: p.Method, key: p.Key, sticky: p.Sticky}
	add := func(n netip.Prefix, weight uint64) {
		if n.Addr().Is4() != (family == pf.Inet) {
			return
		}
		at := len(o.networks)
		for p.Sticky && at > 0 && n.Addr().Less(o.networks[at-1].Addr()) { // sorted, as in a table
			at--
		}
		o.networks, o.weights = slices.Insert(o.networks, at, n), slices.Insert(o.weights, at, weight)
	}
	for i, n := range p.Addrs {
		weight := uint64(1)
		if p.Weights != nil {
			weight = uint64(p.Weights[i])
		}
		add(n, weight)
	}
	if p.Table != "" {
		for _, e := range w.table(at, p.Table) {
			if e.Not {
				o.not = append(o.not, e.Prefix)
			} else {
				add(e.Prefix, 1)
			}
		}
	}
	if p.Interface != "" && rt.Addresses != nil {
		for _, n := range rt.Addresses(p.Interface, p.Modes) {
			if n.Addr().Is6() && n.Addr().IsLinkLocalUnicast() {
				continue
			}
			if p.Bits != 0 {
				n = netip.PrefixFrom(n.Addr(), min(p.Bits, n.Addr().BitLen()))
			}
			add(n.Masked(), 1)
		}
	}
	return o
}

// size returns the number of addresses in the network, at most 2^32.
func size(n netip.Prefix) uint64 { return 1 << min(n.Addr().BitLen()-n.Bits(), 32) }

// length returns the number of addresses in the pool, each counted by its weight.
func (o *opened) length() (n uint64) {
	for i, net := range o.networks {
		n += size(net) * o.weights[i]
	}
	return n
}

// addr returns an address of the pool by its index, which must be below length.
func (o *opened) addr(at uint64) netip.Addr {
	for i, n := range o.networks {
		if all := size(n) * o.weights[i]; at >= all {
			at -= all
			continue
		}
		return plus(n.Addr(), at/o.weights[i])
	}
	return netip.Addr{}
}

// index returns the last index of an address in the pool.
func (o *opened) index(a netip.Addr) uint64 {
	begin := uint64(0)
	for i, n := range o.networks {
		if n.Contains(a) {
			d := new(big.Int).Sub(number(a), number(n.Addr())).Uint64()
			return begin + (d+1)*o.weights[i] - 1
		}
		begin += size(n) * o.weights[i]
	}
	return 0
}

func number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }

// plus returns the address that is n behind another.
func plus(a netip.Addr, n uint64) netip.Addr {
	b := make([]byte, a.BitLen()/8)
	new(big.Int).Add(number(a), new(big.Int).SetUint64(n)).FillBytes(b)
	out, _ := netip.AddrFromSlice(b)
	return out
}

func (rt *Router) roll(n uint64) uint64 {
	if rt.Roll == nil {
		return 0
	}
	return rt.Roll(n)
}

func (rt *Router) hash(key [16]byte, a netip.Addr) uint64 {
	if rt.Hash != nil {
		return rt.Hash(key, a)
	}
	h := fnv.New64a()
	h.Write(key[:])
	h.Write(a.AsSlice())
	return h.Sum64()
}

// pick takes an address from a pool for a state. source is the source of its packets, and old
// the address to replace.
func (rt *Router) pick(o *opened, s *State, u use, source, old netip.Addr) (netip.Addr, bool) {
	length := o.length()
	if length == 0 {
		return netip.Addr{}, false
	}
	if rt.next == nil {
		rt.next = map[use]uint64{}
	}
	take := func(a netip.Addr) (netip.Addr, bool) {
		s.chosen = append(s.chosen, choice{u, s.Before.Src, a, o.sticky, o.method == pf.LeastStates})
		return a, true
	}
	if o.sticky && o.method != pf.Single {
		for _, other := range rt.states {
			for _, c := range other.chosen {
				if c.use == u && c.sticky && c.source == s.Before.Src && o.has(c.addr) {
					return take(c.addr)
				}
			}
		}
	}
	for range length { // skips addresses that a table excludes
		var at uint64
		switch o.method {
		case pf.Single:
			return take(o.networks[0].Addr())
		case pf.Bitmask:
			return take(mix(o.networks[0], old))
		case pf.Random:
			at = rt.roll(length)
		case pf.SourceHash:
			at = rt.hash(o.key, source) % length
		case pf.RoundRobin:
			at = rt.next[u] % length
			rt.next[u] = at + 1
		case pf.LeastStates:
			at = rt.least(o, u)
			rt.next[u] = at + 1
		}
		a := o.addr(at)
		if o.has(a) {
			return take(a)
		}
		if o.method == pf.SourceHash || o.method == pf.Random { // the next choice continues behind it
			o.method, rt.next[u] = pf.RoundRobin, at+1
		}
	}
	return netip.Addr{}, false
}

// has reports whether an address is in the pool.
func (o *opened) has(a netip.Addr) bool {
	bits, in := -1, false
	for _, n := range o.networks {
		if n.Contains(a) && n.Bits() > bits {
			bits, in = n.Bits(), true
		}
	}
	for _, n := range o.not {
		if n.Contains(a) && n.Bits() > bits {
			bits, in = n.Bits(), false
		}
	}
	return in
}

// least returns the index of the address that has the fewest states for its weight. Of equal
// ones it returns the next in turn.
func (rt *Router) least(o *opened, u use) uint64 {
	has := map[netip.Addr]uint64{}
	for _, s := range rt.states {
		for _, c := range s.chosen {
			if c.least { // of any pool
				has[c.addr]++
			}
		}
	}
	length := o.length()
	best, load := uint64(0), ^uint64(0)
	for n := range min(length, 1<<16) {
		at := (rt.next[u] + n) % length
		a := o.addr(at)
		weight := uint64(1)
		for i, network := range o.networks {
			if network.Contains(a) {
				weight = o.weights[i]
				break
			}
		}
		if mine := has[a] << 16 / weight; mine < load {
			best, load = at, mine
		}
	}
	return best
}

// mix returns an address with the bits of a network, and its other bits from another address.
// From the other family it takes the last bits, with zeros in front of an IPv4 address.
func mix(n netip.Prefix, a netip.Addr) netip.Addr {
	out, host := n.Addr().AsSlice(), append(make([]byte, 12), a.AsSlice()...)
	host = host[len(host)-len(out):]
	for i := range out {
		mask := byte(0xff << (8 - min(max(n.Bits()-8*i, 0), 8)))
		out[i] = out[i]&mask | host[i]&^mask
	}
	b, _ := netip.AddrFromSlice(out)
	return b
}
