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

// A Translation changes the addresses of a connection: of its first packet where a rule
// says so, of the other packets by their state, and back in the answers.
type Translation struct {
	Place Place // of its word
	Kind  TranslationKind
	// Family is that of the connection behind an AfTo, the other one than the rule's;
	// 0 for the other kinds.
	Family Family
	Pool   Pool // of NatTo and AfTo the new source, of RdrTo the new destination
	// To has the new destination of an AfTo. If it is one network, and its Method is
	// Single, the old destination is put behind its bits: to IPv6 the whole, as RFC 6052
	// has it, if Embed is not 0, and else, as to IPv4, the last bits. If it is empty, going to
	// IPv4 the destination is taken out of the old one, from behind Embed bits (RFC 6052);
	// going to IPv6, both addresses are put behind Embed bits of Pool's first address, but the
	// source is that address if Pool has no network.
	To     Pool
	ToPort uint16 // AfTo with To: the new destination port, 0 if it stays
	Embed  uint8  // 32, 40, 48, 56, 64 or 96 where an address is embedded, else 0
	Static bool   // NatTo: the source port stays: static-port
	// EndpointIndependent gives all connections of UDP from one address and port the
	// same new address and port, wherever they go (NatTo).
	EndpointIndependent bool
	// Ports are the new ports of TCP and UDP. For NatTo and AfTo they are those to choose
	// the source port from, 50001:65535 if the rule does not say; both are 0 with Static.
	// For RdrTo both are 0 if the port stays. If High is 0, the port becomes Low.
	// Otherwise the port First becomes Low, and those behind it follow; behind High comes
	// Low again.
	Ports PoolPorts
	First uint16
}

// TranslationKind says what a Translation changes.
type TranslationKind uint8

// The kinds of translations. There is no kind for binat-to: it is read as two rules, one
// with NatTo and one with RdrTo.
const (
	NatTo TranslationKind = iota // the source
	RdrTo                        // the destination
	AfTo                         // both, to the other family
)

// PoolPorts has two ports, and means them and those between them.
type PoolPorts struct{ Low, High uint16 }

// The ports that nat-to chooses from, unless a rule says otherwise (PF_NAT_PROXY_PORT_LOW
// and HIGH of sbin/pfctl/pfctl_parser.h).
const (
	NatPortLow  = 50001
	NatPortHigh = 65535
)

// A Pool has the addresses that a translation or a route chooses from. They are in Addrs,
// or in a table, or those of an interface.
type Pool struct {
	Addrs   []netip.Prefix // masked, of the rule's family; in a Program also those that Interface has at the moment
	Weights []uint16       // of Addrs; nil if none is given
	By      []string       // of Addrs as next hops: the interfaces that the file names with them; it is not printed
	Table   string         // its name
	// Interface is the name of an interface in parentheses, whose addresses are
	// those that it has when they are needed, with Modes as in Host. Bits is their mask
	// if one is given, else 0. Link-local addresses are not in the pool.
	Interface string
	Modes     []string
	Bits      int
	Method    PoolMethod
	Key       [16]byte // of SourceHash; all zero if the rule has none, and one is to be made up
	Sticky    bool     // sticky-address: a source gets the address again that it has
}

// PoolMethod says how an address of a pool is chosen.
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

// A Route says where the packets of a rule's connections go.
type Route struct {
	Place Place
	Kind  RouteKind
	Pool  Pool // next hops
}

// RouteKind says which packets a Route is about.
type RouteKind uint8

// The kinds of routes.
const (
	RouteTo RouteKind = iota // those in the direction of the rule
	ReplyTo                  // the answers
	DupTo                    // copies of those in the direction of the rule
)

// A Divert gives packets to a socket of the host.
type Divert struct {
	Place Place
	Kind  DivertKind
	Addr  netip.Addr // DivertTo
	Port  uint16     // DivertTo, DivertPacket
}

// DivertKind says which socket gets the packets of a Divert.
type DivertKind uint8

// The kinds of diverts.
const (
	DivertTo     DivertKind = iota // the one bound to Addr and Port
	DivertReply                    // the one that has sent the first packet
	DivertPacket                   // a divert(4) socket of Port
)

// Place is where a word is, with its line for errors.
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

// String returns the word of the kind.
func (k TranslationKind) String() string { return translationNames[k] }

// String returns the word of the kind.
func (k RouteKind) String() string { return routeNames[k] }

// String returns the word of the kind.
func (k DivertKind) String() string { return divertNames[k] }

// String returns the word of the method, "" for Single.
func (m PoolMethod) String() string { return methodNames[m] }

// IsEmpty reports whether nothing is said of the pool.
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

// addresses is the text of the addresses.
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

// options adds the words that say how an address is chosen.
func (p *Pool) options(w *words) {
	w.add(p.Method.String())
	if p.Key != [16]byte{} {
		w.add("0x" + hex.EncodeToString(p.Key[:]))
	}
	w.when(p.Sticky, "sticky-address")
}

// forward returns what the rule says of where packets go, in the order of pfctl.
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

// placeless returns a copy of the rule whose own places are none.
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
