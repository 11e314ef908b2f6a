// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Translation changes the addresses of a connection: of its first packet by a rule, of the other
// packets by their state, and back in the answers.
type Translation struct {
	Place Place // of its word
	Kind  TranslationKind
	// Family is the family of the connection after an AfTo, which is not the rule's; 0 for the
	// other kinds.
	Family Family
	Pool   Pool // for NatTo and AfTo the new source, for RdrTo the new destination
	// To has the new destination of an AfTo. If it is one network with the Method Single, the
	// old destination is put behind its bits: towards IPv6 the whole destination if Embed is
	// not 0, as in RFC 6052; otherwise, and always towards IPv4, its last bits. If To is
	// empty, the direction decides. Towards IPv4, the destination is extracted from the old
	// one, from behind Embed bits (RFC 6052). Towards IPv6, both addresses are put behind
	// Embed bits of Pool's first address, but the source becomes that address itself if Pool
	// has no network.
	To     Pool
	ToPort uint16 // AfTo with To: the new destination port, 0 if it stays
	Embed  uint8  // 32, 40, 48, 56, 64 or 96 if an address is embedded, else 0
	Static bool   // NatTo: the source port stays: static-port
	// EndpointIndependent gives all UDP connections from one address and port the same new
	// address and port, whatever their destinations (NatTo).
	EndpointIndependent bool
	// Ports are the new ports of TCP and UDP. For NatTo and AfTo they are the range of the new
	// source port, 50001:65535 by default; both are 0 with Static. For RdrTo both are 0 if the
	// port stays. If High is 0, the port becomes Low. Otherwise the port First becomes Low,
	// and the next ports follow; behind High comes Low again.
	Ports PoolPorts
	First uint16
}

// TranslationKind is what a Translation changes.
type TranslationKind uint8

// The kinds of translations. There is no kind for binat-to: it is read as two rules, one
// with NatTo and one with RdrTo.
const (
	NatTo TranslationKind = iota // the source
	RdrTo                        // the destination
	AfTo                         // both, to the other family
)

// PoolPorts is a range of ports, with both ends.
type PoolPorts struct{ Low, High uint16 }

// The ports that nat-to chooses from, unless a rule says otherwise (PF_NAT_PROXY_PORT_LOW
// and HIGH of sbin/pfctl/pfctl_parser.h).
const (
	NatPortLow  = 50001
	NatPortHigh = 65535
)

// A Pool has the addresses from which a translation or a route chooses. They are in Addrs or in a
// table, or are the addresses of an interface.
type Pool struct {
	Addrs   []netip.Prefix // masked, of the rule's family; in a Program also the current addresses of Interface
	Weights []uint16       // of Addrs; nil if none is given
	By      []string       // the interfaces that the file names with Addrs as next hops; not printed
	Table   string         // its name
	// Interface is the name of an interface in parentheses. The pool has its current
	// addresses, with Modes as in Host. Bits is their mask if one is given, else 0. Link-local
	// addresses are not in the pool.
	Interface string
	Modes     []string
	Bits      int
	Method    PoolMethod
	Key       [16]byte // of SourceHash; all zero if the rule has none, and a random one is needed
	Sticky    bool     // sticky-address: a source that has an address gets the same one again
}

// PoolMethod is how an address of a pool is chosen.
type PoolMethod uint8

// The methods.
const (
	Single      PoolMethod = iota // the only address
	Bitmask                       // the network of the pool, and the rest of the old address
	Random                        // any address
	SourceHash                    // by a hash of the source and Key
	RoundRobin                    // one after the other
	LeastStates                   // the address that has the fewest states for its weight
)

// A Route is the way of the packets of a rule's connections.
type Route struct {
	Place Place
	Kind  RouteKind
	Pool  Pool // next hops
}

// RouteKind is which packets a Route is for.
type RouteKind uint8

// The kinds of routes.
const (
	RouteTo RouteKind = iota // packets in the direction of the rule
	ReplyTo                  // the answers
	DupTo                    // copies of packets in the direction of the rule
)

// A Divert passes packets to a socket of the host.
type Divert struct {
	Place Place
	Kind  DivertKind
	Addr  netip.Addr // DivertTo
	Port  uint16     // DivertTo, DivertPacket
}

// DivertKind is which socket gets the packets of a Divert.
type DivertKind uint8

// The kinds of diverts.
const (
	DivertTo     DivertKind = iota // the socket bound to Addr and Port
	DivertReply                    // the socket that has sent the first packet
	DivertPacket                   // a divert(4) socket of Port
)

// Place is the place of a word, with its line for errors.
type Place struct {
	Pos
	Line string
}

var (
	translationNames = [...]string{NatTo: "nat-to", RdrTo: "rdr-to", AfTo: "af-to"}
	routeNames       = [...]string{RouteTo: "route-to", ReplyTo: "reply-to", DupTo: "dup-to"}
	divertNames      = [...]string{DivertTo: "divert-to", DivertReply: "divert-reply", DivertPacket: "divert-packet"}
	methodNames      = [...]string{Bitmask: "bitmask", Random: "random", SourceHash: "source-hash", RoundRobin: "round-robin",
		LeastStates: "least-states"}
)

// String returns the word for the kind.
func (k TranslationKind) String() string { return translationNames[k] }

// String returns the word for the kind.
func (k RouteKind) String() string { return routeNames[k] }

// String returns the word for the kind.
func (k DivertKind) String() string { return divertNames[k] }

// String returns the word for the method, "" for Single.
func (m PoolMethod) String() string { return methodNames[m] }

// IsEmpty reports whether the rule gives no pool.
func (p *Pool) IsEmpty() bool { return len(p.Addrs) == 0 && p.Table == "" && p.Interface == "" }

// String returns the translation as in a rule.
func (t *Translation) String() string {
	w := words{t.Kind.String()}
	if t.Kind == AfTo {
		w.add(familyNames[t.Family], "from")
	}
	w.add(t.Pool.addresses())
	switch p := t.Ports; {
	case p == PoolPorts{} || t.Kind != RdrTo && p == PoolPorts{NatPortLow, NatPortHigh}:
	case p.High == 0 || p.Low == p.High:
		w.add("port", strconv.Itoa(int(p.Low)))
	default:
		w.add("port", fmt.Sprintf("%d:%d", p.Low, p.High))
	}
	t.Pool.options(&w)
	w.when(t.Static, "static-port")
	w.when(t.EndpointIndependent, "endpoint-independent")
	if !t.To.IsEmpty() {
		w.add("to", t.To.addresses())
		if t.ToPort != 0 {
			w.add("port", strconv.Itoa(int(t.ToPort)))
		}
		t.To.options(&w)
	}
	return w.String()
}

// String returns the route as in a rule.
func (r *Route) String() string {
	w := words{r.Kind.String(), r.Pool.addresses()}
	r.Pool.options(&w)
	return w.String()
}

// String returns the divert as in a rule.
func (d *Divert) String() string {
	w := words{d.Kind.String()}
	if d.Kind == DivertTo {
		w.add(d.Addr.String())
	}
	if d.Kind != DivertReply {
		w.add("port", strconv.Itoa(int(d.Port)))
	}
	return w.String()
}

// addresses returns the text of the addresses.
func (p *Pool) addresses() string {
	switch {
	case p.Table != "":
		return "<" + word(p.Table) + ">"
	case p.Interface != "":
		h := Host{Kind: Dynamic, Name: p.Interface, Modes: p.Modes, Bits: -1}
		if p.Bits != 0 {
			h.Bits = p.Bits
		}
		return h.String()
	}
	list := make([]string, len(p.Addrs))
	for i, a := range p.Addrs {
		list[i] = Host{Kind: Prefix, Addr: a.Addr(), Bits: a.Bits()}.String()
		if p.Weights != nil {
			list[i] += fmt.Sprint(" weight ", p.Weights[i])
		}
	}
	if len(list) == 1 {
		return list[0]
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

// options adds the words for how an address is chosen.
func (p *Pool) options(w *words) {
	w.add(p.Method.String())
	if p.Key != [16]byte{} {
		w.add("0x" + hex.EncodeToString(p.Key[:]))
	}
	w.when(p.Sticky, "sticky-address")
}

// forward returns the rule's words for a packet's way, in pfctl's order.
func (r *Rule) forward() (list []string) {
	if r.Divert != nil {
		list = append(list, r.Divert.String())
	}
	for i := range r.Translations {
		list = append(list, r.Translations[i].String())
	}
	if r.Route != nil {
		list = append(list, r.Route.String())
	}
	return list
}

// placeless returns a copy of the rule without places.
func (r Rule) placeless() Rule {
	r.Pos = Pos{}
	r.Translations = slices.Clone(r.Translations)
	for i := range r.Translations {
		r.Translations[i].Place = Place{}
	}
	if r.Route != nil {
		r.Route = &Route{Kind: r.Route.Kind, Pool: r.Route.Pool}
	}
	if r.Divert != nil {
		r.Divert = &Divert{Kind: r.Divert.Kind, Addr: r.Divert.Addr, Port: r.Divert.Port}
	}
	return r
}
