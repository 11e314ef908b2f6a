// SPDX-License-Identifier: BSD-2-Clause

// Package pftest draws rulesets and packets for property tests.
package pftest

import (
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strings"

	"bascule/pf"
	"bascule/pf/reference"

	"pgregory.net/rapid"
)

// Rulesets draws rulesets as the parser returns them: they satisfy pfctl's rules of consistency,
// and values with a default are filled in. All positions are zero. They have few names, addresses
// and ports, so that rules overlap.
func Rulesets() *rapid.Generator[*pf.Ruleset] { return rulesets(false, nil) }

// Anchors draws rulesets as Rulesets does, for anchors of a main ruleset, which has the limiters.
func Anchors(main *pf.Ruleset) *rapid.Generator[*pf.Ruleset] { return rulesets(false, main) }

// Translating draws rulesets as Rulesets does. Their rules also have nat-to, route-to, divert-to
// and their kin.
func Translating() *rapid.Generator[*pf.Ruleset] { return rulesets(true, nil) }

func rulesets(translating bool, main *pf.Ruleset) *rapid.Generator[*pf.Ruleset] {
	return rapid.Custom(func(t *rapid.T) *pf.Ruleset {
		d := draw{T: t, files: new(int), translating: translating}
		rs := &pf.Ruleset{Options: d.options()}
		if rs.Options.StatePolicy == pf.IfBound {
			d.policy = pf.IfBound
		}
		switch {
		case main != nil:
			d.limited = len(main.StateLimiters) > 0
		case d.seldom("limiters"):
			d.limited = true
			d.limiters(rs)
		}
		d.body(rs, 2)
		if d.seldom("load") {
			load := pf.AnchorLoad{Name: one(d, "load", anchors...), File: "/etc/anchor", Ruleset: &pf.Ruleset{}}
			d.policy = pf.DefaultPolicy // the options do not apply to it
			d.body(load.Ruleset, 0)     // without anchors, since it might call itself
			rs.Loads = append(rs.Loads, load)
		}
		rs.Ether = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pf.EtherRule { return draw{T: t}.ether() }), 0, 4).Draw(t, "ether")
		return rs
	})
}

// Open returns the function of a [pf.Source] for the files that a ruleset names: files of tables,
// and files that are loaded into anchors.
func Open(rs *pf.Ruleset) func(name string) ([]byte, error) {
	files := map[string]string{}
	var collect func(*pf.Ruleset)
	collect = func(rs *pf.Ruleset) {
		for _, table := range rs.Tables {
			var text strings.Builder
			for _, e := range table.Entries {
				if e.FromFile {
					fmt.Fprintln(&text, e)
				}
			}
			for i, name := range table.Files {
				if files[name] = ""; i == 0 {
					files[name] = text.String()
				}
			}
		}
		for _, r := range rs.Rules {
			if r.Anchor != nil && r.Anchor.Body != nil {
				collect(r.Anchor.Body)
			}
		}
		for _, load := range rs.Loads {
			files[load.File] = load.Ruleset.String()
			collect(load.Ruleset)
		}
	}
	collect(rs)
	return func(name string) ([]byte, error) {
		text, ok := files[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return []byte(text), nil
	}
}

// Ports are the ports where packets arrive and leave. Rules name them and their groups.
func Ports() []reference.Port {
	return []reference.Port{
		{Name: "em0", Groups: []string{"em", "uplink"}},
		{Name: "em1", Groups: []string{"em"}},
		{Name: "vm-1.100", Groups: []string{"vm"}},
		{Name: "vm2", Groups: []string{"vm"}},
		{Name: "1st"},   // begins with a digit
		{Name: "quick"}, // a keyword
	}
}

// Addresses returns the addresses of a port in rules, as for [reference.Evaluator].
func Addresses(name string, modes []string) []netip.Prefix {
	all := map[string][]netip.Prefix{
		"em0": prefixes("10.0.0.2/24", "10.0.0.3/24", "2001:db8::2/64", "fe80::1/64"),
		"em1": prefixes("192.0.2.1/24"),
	}[name]
	var list []netip.Prefix
	for _, p := range all {
		first := !slices.ContainsFunc(list, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() })
		switch {
		case slices.Contains(modes, "0") && !first, slices.Contains(modes, "peer"):
		case slices.Contains(modes, "network") && p.Addr().IsLinkLocalUnicast():
		case slices.Contains(modes, "network"):
			list = append(list, p)
		case slices.Contains(modes, "broadcast") && p.Addr().Is4():
			a := p.Addr().As4()
			a[3] = 255
			list = append(list, netip.PrefixFrom(netip.AddrFrom4(a), 32))
		case !slices.Contains(modes, "broadcast"):
			list = append(list, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	return list
}

// Names and numbers in rules.
var (
	tables     = []string{"bad", "good", "in", "two words"}
	tags       = []string{"A", "B", "pass", "flags", "self", "two words", "7", `"quoted"`, "it's", "é"}
	labels     = []string{"a", "all of it", `said "no"`, "# no comment", "{ } , =", "'"}
	anchors    = []string{"ftp", "wild", "two words", "in"}
	ports      = []uint16{0, 22, 53, 80, 1024, 65535}
	protocols  = []uint8{reference.ICMP, reference.IGMP, reference.TCP, reference.UDP, 47, reference.ICMPv6, 200}
	icmpTypes  = []uint8{0, 3, 8, 9, 11, 42}
	icmp6Types = []uint8{1, 3, 128, 129, 130, 135, 136, 143, 200}
	icmpCodes  = []uint8{0, 1, 4, 77}
	networks4  = prefixes("10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.128/25", "192.0.2.0/24", "224.0.0.22/32", "128.0.0.0/1")
	networks6  = prefixes("2001:db8::/32", "2001:db8::/64", "2001:db8::1/128", "2001:db8::2/128", "fe80::/10", "fe80::1/128", "ff02::16/128")
)

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// draw draws parts of rulesets.
type draw struct {
	*rapid.T
	policy pf.StatePolicy // the default policy of rules
	files  *int           // number of files: each table has its own, for Open

	translating bool // rules have words for a packet's way
	limited     bool // the main ruleset has limiters
}

// limiters draws the limiters of the main ruleset: for each kind a limiter with the name "little",
// and one whose limits are never reached.
func (d draw) limiters(rs *pf.Ruleset) {
	rate := pf.Rate{}
	if d.seldom("rate") {
		rate = pf.Rate{Number: 1000000, Seconds: d.number("seconds", 1, 5)}
	}
	rs.StateLimiters = []pf.StateLimiter{
		{Name: "little", ID: 1, Limit: d.number("limit", 1, 5)},
		{Name: "two words", ID: uint8(d.number("id", 2, 255)), Limit: math.MaxInt32, Rate: rate},
	}
	rs.SourceLimiters = []pf.SourceLimiter{
		{Name: "little", ID: 1, Entries: 1, Limit: math.MaxInt32, InetMask: 32, Inet6Mask: 128},
		{Name: "two words", ID: uint8(d.number("id", 2, 255)), Entries: 1000, Limit: math.MaxInt32, Rate: rate,
			InetMask: uint8(d.number("inet mask", 0, 32)), Inet6Mask: uint8(d.number("inet6 mask", 0, 128))},
	}
	if d.translating && d.seldom("table") {
		l := &rs.SourceLimiters[1]
		l.Table, l.Above = one(d, "table", tables...), 1000000
		l.Below = d.number("below", 0, 10)
	}
}

// limiter draws the limiter that a rule names.
func (d draw) limiter(what string) (l pf.Limiter) {
	if !d.limited {
		return l
	}
	switch one(d, what, "", "", "name", "little", "id") {
	case "name":
		l.Name = "two words"
	case "little":
		l.Name = "little"
	case "id":
		l.ID = 1
	default:
		return l
	}
	l.NoMatch = d.often("no-match")
	return l
}

func one[T any](d draw, what string, from ...T) T { return rapid.SampledFrom(from).Draw(d.T, what) }

// often and seldom draw whether something is present.
func (d draw) often(what string) bool  { return rapid.IntRange(0, 3).Draw(d.T, what) > 0 }
func (d draw) seldom(what string) bool { return rapid.IntRange(0, 5).Draw(d.T, what) == 5 }

func (d draw) number(what string, low, high uint32) uint32 {
	return rapid.Uint32Range(low, high).Draw(d.T, what)
}

// body draws the tables and rules of a ruleset, with anchors up to this depth.
func (d draw) body(rs *pf.Ruleset, depth int) {
	for _, name := range tables {
		if d.seldom("table " + name) {
			rs.Tables = append(rs.Tables, d.table(name))
		}
	}
	if depth > 0 {
		// in the parser's order
		for _, part := range []pf.Part{pf.ScrubPart, pf.RDRPart, pf.NATPart | pf.RDRPart, pf.NATPart} {
			if d.seldom("part of an anchor") {
				rs.Rules = append(rs.Rules, d.part(part))
			}
		}
	}
	used := map[string]bool{} // names of bodies; all must differ
	for range rapid.IntRange(0, 12).Draw(d.T, "rules") {
		r := d.rule()
		if depth > 0 && d.seldom("anchor") {
			r = d.anchor(depth, used)
		}
		rs.Rules = append(rs.Rules, r)
	}
}

func (d draw) table(name string) pf.Table {
	t := pf.Table{Name: name, Persist: d.often("persist"), Const: d.seldom("const"), Counters: d.seldom("counters")}
	if !d.often("given") {
		return t
	}
	t.Given = true
	if d.seldom("file") {
		for range rapid.IntRange(1, 2).Draw(d.T, "files") {
			*d.files++
			t.Files = append(t.Files, fmt.Sprintf("/etc/%s %d", name, *d.files))
		}
	}
	all := rapid.Permutation(slices.Concat(networks4, networks6)).Draw(d.T, "entries")
	for _, prefix := range all[:rapid.IntRange(0, 5).Draw(d.T, "count")] {
		t.Entries = append(t.Entries, pf.TableEntry{Not: d.seldom("not"), Prefix: prefix})
	}
	if t.Files != nil { // the rest goes with the first
		for i := rapid.IntRange(0, len(t.Entries)).Draw(d.T, "listed"); i < len(t.Entries); i++ {
			t.Entries[i].FromFile = true
		}
	}
	return t
}

// rule draws a rule that is not an anchor.
func (d draw) rule() pf.Rule {
	r := pf.Rule{Action: one(d, "action", pf.Pass, pf.Block, pf.Match)}
	d.conditions(&r)
	if d.seldom("log") {
		r.Log = pf.Logged | pf.Log(one(d, "log options", 0, pf.LogAll, pf.LogMatches, pf.LogUser, pf.LogAll|pf.LogMatches))
		r.LogTo = one(d, "log to", "", "", "pflog1")
	}
	if d.seldom("label") {
		r.Label = one(d, "label", labels...)
		for range rapid.IntRange(0, 4).Draw(d.T, "more labels") {
			r.Labels = append(r.Labels, one(d, "label", labels...))
		}
	}
	if d.seldom("ridentifier") {
		r.ID = d.number("ridentifier", 0, 1<<32-1)
	}
	if r.HasProto && (r.Proto == reference.TCP || r.Proto == reference.UDP) {
		if d.seldom("user") {
			r.User = d.owner("user")
		}
		if d.seldom("group") {
			r.Group = d.owner("group")
		}
	}
	if d.seldom("set prio") {
		r.SetPrio = [2]uint8{one[uint8](d, "set prio", 1, 4, 8), one[uint8](d, "set prio of ACKs", 1, 6, 8)}
	}
	if r.Action != pf.Block && d.seldom("scrub") {
		r.Scrub = pf.Scrub{
			NoDF: d.seldom("no-df"), RandomID: d.seldom("random-id"),
			MinTTL: one[uint8](d, "min-ttl", 0, 0, 64, 65, 255), MaxMSS: one[uint16](d, "max-mss", 0, 0, 1, 1440, 65535),
			ReassembleTCP: d.seldom("reassemble tcp"),
		}
		if d.seldom("set tos") {
			r.Scrub.SetTOS, r.Scrub.TOS = true, one[uint8](d, "set tos", 0, 0x10, 0xb8, 255)
		}
	}
	switch r.Action {
	case pf.Block:
		d.answer(&r)
	case pf.Pass:
		d.state(&r)
		if r.State != pf.NoState {
			r.StateLimiter, r.SourceLimiter = d.limiter("state limiter"), d.limiter("source limiter")
		}
		r.AllowOpts = d.seldom("allow-opts")
	}
	if r.Action != pf.Match {
		r.Once = d.seldom("once")
	}
	if d.translating {
		d.forward(&r)
	}
	return r
}

// forward draws the words for the way of a rule's packets.
func (d draw) forward(r *pf.Rule) {
	keeps := r.Action == pf.Pass && r.State != pf.NoState
	if r.Direction == pf.Both && d.often("direction") {
		r.Direction = one(d, "direction", pf.In, pf.Out)
	}
	if r.Direction != pf.Both && (keeps || r.Action == pf.Match) {
		switch one(d, "translation", "", "rdr", "nat", "both", "af") {
		case "rdr":
			r.Translations = []pf.Translation{d.translation(r, pf.RdrTo)}
		case "nat":
			r.Translations = []pf.Translation{d.translation(r, pf.NatTo)}
		case "both":
			r.Translations = []pf.Translation{d.translation(r, pf.RdrTo), d.translation(r, pf.NatTo)}
		case "af":
			if r.Action == pf.Pass && r.Direction == pf.In && r.Family != 0 {
				r.Translations = []pf.Translation{d.translation(r, pf.AfTo)}
			}
		}
	}
	other := len(r.Translations) > 0 && r.Translations[0].Kind == pf.AfTo // continues in the other family
	if keeps && !other && d.seldom("route") {
		r.Route = &pf.Route{Kind: one(d, "route", pf.RouteTo, pf.ReplyTo, pf.DupTo)}
		if r.Direction == pf.Both {
			r.Route.Kind = pf.DupTo
		}
		if r.Route.Pool = d.pool(r.Family, true); r.Route.Pool.Interface != "" {
			r.Route.Pool.Modes = []string{"peer"}
			if r.Route.Pool.Method == pf.Single {
				r.Route.Pool.Method = pf.RoundRobin
			}
		}
		if r.Route.Pool.Interface != "" && r.Route.Pool.Method == pf.Bitmask {
			r.Route.Pool.Method = pf.Random
		}
	}
	if r.Action != pf.Match && d.seldom("divert") {
		v := &pf.Divert{Kind: one(d, "divert", pf.DivertTo, pf.DivertReply, pf.DivertPacket), Port: 8021}
		switch {
		case v.Kind == pf.DivertTo && (r.Direction == pf.Out || r.Family == 0),
			v.Kind == pf.DivertReply && r.Direction == pf.In:
			v.Kind = pf.DivertPacket
		case v.Kind == pf.DivertTo && r.Family == pf.Inet:
			v.Addr = netip.MustParseAddr("127.0.0.1")
		case v.Kind == pf.DivertTo:
			v.Addr = netip.MustParseAddr("::1")
		}
		if v.Kind == pf.DivertReply {
			v.Port = 0
		}
		r.Divert = v
	}
}

func (d draw) translation(r *pf.Rule, kind pf.TranslationKind) pf.Translation {
	t := pf.Translation{Kind: kind}
	family := r.Family
	if kind == pf.AfTo {
		family = pf.Inet + pf.Inet6 - r.Family
		t.Family = family
	}
	t.Pool = d.pool(family, false)
	switch {
	case kind != pf.RdrTo && d.seldom("port"):
		t.Ports = one(d, "ports", pf.PoolPorts{Low: 1024, High: 65535}, pf.PoolPorts{Low: 7, High: 7})
	case kind == pf.NatTo && d.seldom("static-port"):
		t.Static = true
	case kind != pf.RdrTo:
		t.Ports = pf.PoolPorts{Low: pf.NatPortLow, High: pf.NatPortHigh}
	case d.often("port"):
		if t.Ports = one(d, "ports", pf.PoolPorts{Low: 80}, pf.PoolPorts{Low: 8000, High: 8010}); t.Ports.High != 0 {
			t.First = r.To.Port.Lo
		}
	}
	t.EndpointIndependent = kind == pf.NatTo && !t.Static && d.seldom("endpoint-independent")
	if kind != pf.AfTo {
		return t
	}
	network := func(p pf.Pool) bool { // a prefix to put in front of addresses
		return len(p.Addrs) == 1 && !p.Addrs[0].IsSingleIP()
	}
	if d.often("to") {
		t.ToPort = one[uint16](d, "to port", 0, 53)
		if t.To = d.pool(family, false); d.seldom("network") {
			t.To = pf.Pool{Addrs: prefixes(one(d, "prefix", map[pf.Family][]string{
				pf.Inet: {"192.0.2.0/24"}, pf.Inet6: {"64:ff9b::/96", "2001:db8::/32"},
			}[family]...))}
		}
		if network(t.To) && t.To.Method == pf.Single && family == pf.Inet6 {
			t.Embed = uint8(t.To.Addrs[0].Bits())
		}
		return t
	}
	t.Embed = 96
	if h := r.To.Host; family == pf.Inet && h.Kind == pf.Prefix && h.Bits >= 32 && h.Bits <= 96 && !r.To.Not {
		t.Embed = uint8(h.Bits)
	}
	if family == pf.Inet6 {
		t.Pool = pf.Pool{Addrs: prefixes(one(d, "prefix", "64:ff9b::/96", "2001:db8::/32", "2001:db8::1/128")), Sticky: t.Pool.Sticky}
		if network(t.Pool) {
			t.Embed = uint8(t.Pool.Addrs[0].Bits())
		}
	}
	return t
}

// pool draws a pool with addresses of a family.
func (d draw) pool(family pf.Family, route bool) pf.Pool {
	var p pf.Pool
	several := true
	kinds := []string{"table", "interface"}
	if family != 0 { // otherwise the rule would get the addresses' family
		kinds = append(kinds, "addresses", "addresses")
	}
	switch kind := one(d, "pool", kinds...); {
	case kind == "table":
		p.Table = "pool"
	case kind == "interface":
		p.Interface, p.Modes = one(d, "interface", "em0", "em1", "egress"), one(d, "modes", nil, []string{"0"}, []string{"network"})
		if several = !slices.Contains(p.Modes, "0") || p.Interface == "egress"; d.seldom("mask") && !route {
			p.Bits = 24
		}
	default:
		all := []string{"192.0.2.1/32", "192.0.2.16/28", "198.51.100.7/32"}
		if family == pf.Inet6 {
			all = []string{"2001:db8::1/128", "2001:db8:1::/64", "2001:db8::7/128"}
		}
		p.Addrs = prefixes(all[:rapid.IntRange(1, 3).Draw(d.T, "addresses")]...)
		if several = len(p.Addrs) > 1; d.seldom("weights") {
			p.Weights = []uint16{7, 1, 65535}[:len(p.Addrs)]
		}
	}
	p.Sticky = d.seldom("sticky-address")
	p.Method = one(d, "method", pf.Single, pf.Bitmask, pf.Random, pf.SourceHash, pf.RoundRobin, pf.LeastStates)
	if several && (p.Method == pf.Single || p.Method == pf.Bitmask) {
		p.Method = pf.RoundRobin
	}
	if p.Method == pf.SourceHash && d.often("key") {
		p.Key = [16]byte{1, 15: 255}
	}
	return p
}

// anchor draws the call of an anchor.
func (d draw) anchor(depth int, used map[string]bool) pf.Rule {
	r := pf.Rule{Action: pf.CallAnchor, Anchor: &pf.Anchor{}}
	d.conditions(&r)
	name := one(d, "anchor name", append([]string{""}, anchors...)...)
	if used[name] {
		name = ""
	}
	if name == "" || d.often("body") {
		used[name] = name != ""
		r.Anchor.Name, r.Anchor.Body = name, &pf.Ruleset{}
		d.body(r.Anchor.Body, depth-1)
		return r
	}
	r.Anchor.Name = one(d, "path", "", "/", "deep/") + name + one(d, "wildcard", "", "/*")
	return r
}

// part draws the call of a part of an anchor, as nat-anchor.
func (d draw) part(part pf.Part) pf.Rule {
	r := pf.Rule{Action: pf.CallAnchor, Anchor: &pf.Anchor{Name: one(d, "anchor name", anchors...) + one(d, "wildcard", "", "/*"), Only: part}}
	r.Direction = map[pf.Part]pf.Direction{pf.NATPart: pf.Out, pf.RDRPart: pf.In}[part]
	if d.seldom("on") {
		r.On = d.port("on")
	}
	r.Family = one(d, "family", 0, 0, pf.Inet, pf.Inet6)
	r.From.Not, r.From.Host = d.host(r.Family)
	return r
}

// owner draws a condition on the owner of a socket.
func (d draw) owner(what string) *pf.Owner {
	o := &pf.Owner{Op: one(d, what, pf.PortEqual, pf.PortNotEqual, pf.PortLess, pf.PortAtMost, pf.PortGreater, pf.PortAtLeast, pf.PortInside, pf.PortOutside)}
	names := []string{"root", "1000", "two words"}
	if o.Op <= pf.PortNotEqual {
		names = append(names, "unknown", "unknown")
	}
	if o.Lo = one(d, "name", names...); o.Op >= pf.PortInside {
		o.Hi = one(d, "last name", names...)
	}
	return o
}

// conditions draws conditions that rules of all actions can have, and tags.
func (d draw) conditions(r *pf.Rule) {
	r.Direction = one(d, "direction", pf.Both, pf.Both, pf.In, pf.Out)
	r.Quick = d.seldom("quick")
	if d.seldom("on") {
		r.On = d.port("on")
	}
	if d.seldom("received") {
		r.ReceivedOn = d.port("received-on")
	}
	r.Family = one(d, "family", 0, 0, pf.Inet, pf.Inet6)
	if r.HasProto = rapid.Bool().Draw(d.T, "has proto"); r.HasProto {
		r.Proto = one(d, "proto", protocols...)
		switch r.Proto { // each belongs to one family
		case reference.ICMP:
			r.Family = pf.Inet
		case reference.ICMPv6:
			r.Family = pf.Inet6
		}
	}
	r.From.Not, r.From.Host = d.host(r.Family)
	r.To.Not, r.To.Host = d.host(r.Family)
	if r.To.Host.Kind == pf.URPFFailed { // only valid for sources
		r.To.Host.Kind = pf.NoRoute
	}
	if r.Fragment = d.seldom("fragment"); !r.Fragment {
		d.transport(r)
	}
	if r.HasTOS = d.seldom("tos"); r.HasTOS {
		r.TOS = one[uint8](d, "tos", 0x10, 0x08, 0xb8)
	}
	if r.HasPrio = d.seldom("prio"); r.HasPrio {
		r.Prio = one[uint8](d, "prio", 0, 3, 7)
	}
	if d.seldom("probability") {
		percent := float64(rapid.IntRange(1, 10000).Draw(d.T, "probability")) / 100
		r.Probability = percent / 100
	}
	if d.seldom("tag") {
		r.Tag = one(d, "tag", tags...)
	}
	if d.seldom("tagged") {
		r.Tagged, r.NotTagged = one(d, "tagged", tags...), rapid.Bool().Draw(d.T, "not tagged")
	}
}

// transport draws conditions on the header behind IP's.
func (d draw) transport(r *pf.Rule) {
	if r.HasProto && (r.Proto == reference.TCP || r.Proto == reference.UDP) {
		r.From.Port, r.To.Port = d.portCondition("source port"), d.portCondition("destination port")
	}
	if (!r.HasProto || r.Proto == reference.TCP) && d.seldom("flags") {
		r.Flags.Of = uint8(d.number("flags of", 1, 255))
		r.Flags.Set = r.Flags.Of & uint8(d.number("flags", 0, 255))
	}
	types := map[uint8][]uint8{reference.ICMP: icmpTypes, reference.ICMPv6: icmp6Types}[r.Proto]
	if types != nil && d.often("icmp") {
		r.HasICMP, r.ICMPType = true, one(d, "icmp type", types...)
		if r.HasCode = d.seldom("code"); r.HasCode {
			r.ICMPCode = one(d, "icmp code", icmpCodes...)
		}
	}
}

func (d draw) port(what string) pf.Interface {
	names := []string{"any"}
	for _, p := range Ports() {
		names = append(append(names, p.Name), p.Groups...)
	}
	return pf.Interface{Name: one(d, what, names...), Not: d.seldom("not on")}
}

func (d draw) portCondition(what string) pf.Port {
	p := pf.Port{Op: pf.PortOp(one(d, what, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9))}
	switch p.Op {
	case pf.AnyPort:
		return p
	case pf.PortInside, pf.PortOutside, pf.PortRange:
		i := rapid.IntRange(0, len(ports)-2).Draw(d.T, "low")
		p.Lo, p.Hi = ports[i], ports[rapid.IntRange(i+1, len(ports)-1).Draw(d.T, "high")]
	default:
		p.Lo = one(d, "port", ports...)
	}
	return p
}

// host draws a host of a family, and whether it is negated.
func (d draw) host(family pf.Family) (not bool, h pf.Host) {
	networks := networks4
	if family == pf.Inet6 {
		networks = networks6
	}
	kinds := []pf.HostKind{pf.AnyHost, pf.AnyHost, pf.AnyHost, pf.AnyHost, pf.InTable, pf.Dynamic}
	if family != 0 {
		kinds = append(kinds, pf.Prefix, pf.Prefix, pf.Prefix, pf.Range)
	}
	if d.seldom("no host") && d.seldom("no-route") {
		kinds = []pf.HostKind{pf.NoRoute, pf.URPFFailed}
	}
	if h.Kind = one(d, "host", kinds...); h.Kind == pf.AnyHost {
		return false, h
	}
	prefix := one(d, "network", networks...)
	switch h.Kind {
	case pf.Prefix:
		h.Addr, h.Bits = prefix.Addr(), prefix.Bits()
	case pf.Range:
		h.Addr = prefix.Addr()
		h.Last = h.Addr.Next().Next()
	case pf.InTable:
		h.Name = one(d, "table", tables...)
	case pf.Dynamic:
		h.Name, h.Bits = one(d, "dynamic", "em0", "em1"), one(d, "mask", -1, -1, 24, 64)
		if h.Bits > 32 && family == pf.Inet {
			h.Bits = -1 // that is not a valid mask
		}
		if d.seldom("mode") {
			h.Modes = append(h.Modes, one(d, "mode", "network", "broadcast", "peer"))
		}
		if d.seldom("no aliases") {
			h.Modes = append(h.Modes, "0")
		}
	}
	return d.seldom("not"), h
}

// answer draws the answer of a block rule.
func (d draw) answer(r *pf.Rule) {
	r.Return = one(d, "return", pf.ReturnDrop, pf.ReturnDrop, pf.ReturnAll, pf.ReturnICMP, pf.ReturnRST)
	switch {
	case r.Return == pf.ReturnRST && (!r.HasProto || r.Proto != reference.TCP):
		r.Return = pf.ReturnDrop
	case r.Return == pf.ReturnRST:
		r.ReturnTTL = one[uint8](d, "ttl", 0, 64)
	case r.Return == pf.ReturnICMP && d.often("code"):
		if r.Family != pf.Inet6 {
			r.ReturnICMP4 = pf.ICMPCode{Type: 3, Code: one[uint8](d, "return code", 0, 1, 77)}
		}
		if r.Family != pf.Inet {
			r.ReturnICMP6 = pf.ICMPCode{Type: 1, Code: one[uint8](d, "return code of IPv6", 0, 1, 77)}
		}
	}
}

// state draws how a pass rule keeps state, and the flags that depend on it.
func (d draw) state(r *pf.Rule) {
	r.State = one(d, "state", pf.NoState, pf.KeepState, pf.KeepState, pf.ModulateState, pf.SynproxyState)
	tcp := !r.HasProto || r.Proto == reference.TCP
	if !tcp && r.State != pf.NoState {
		r.State = pf.KeepState
	}
	if r.State == pf.NoState {
		return
	}
	if tcp && !r.Fragment && r.Flags.Of == 0 && d.often("flags by default") {
		r.Flags = pf.TCPFlags{Set: pf.SYN, Of: pf.SYN | pf.ACK}
	}
	if d.seldom("state options") {
		r.StateOpts = d.stateOptions()
		if r.State != pf.KeepState {
			r.StateOpts.Sloppy = false
		}
	}
	if r.StateOpts.Policy == pf.DefaultPolicy {
		r.StateOpts.Policy = d.policy
	}
}

// stateOptions draws options, with the options that follow from others.
func (d draw) stateOptions() pf.StateOptions {
	o := pf.StateOptions{NoSync: d.seldom("no-sync"), Sloppy: d.seldom("sloppy"), Pflow: d.seldom("pflow")}
	o.Policy = one(d, "policy", pf.DefaultPolicy, pf.Floating, pf.IfBound)
	for _, name := range []pf.TimeoutName{pf.TCPFirst, pf.TCPTsdiff, pf.OtherMultiple, pf.SrcTrack} {
		if d.seldom("timeout") {
			o.Timeouts[name] = pf.Timeout{Given: true, Value: d.number("timeout", 1, 1000)}
		}
	}
	if d.seldom("max") {
		o.Max = d.number("max", 1, 1000)
		o.Timeouts[pf.AdaptiveStart] = pf.Timeout{Given: true, Value: d.number("adaptive.start", 1, 100)}
		o.Timeouts[pf.AdaptiveEnd] = pf.Timeout{Given: true, Value: d.number("adaptive.end", 100, 1000)}
	}
	o.SourceTrack = one(d, "source-track", pf.NoSourceTrack, pf.SourceTrackGlobal, pf.SourceTrackRule)
	if o.SourceTrack != pf.NoSourceTrack && d.seldom("max-src-states") {
		o.MaxSrcStates = d.number("max-src-states", 1, 100)
	}
	if o.SourceTrack != pf.SourceTrackRule {
		return o
	}
	if d.often("max-src-nodes") {
		o.MaxSrcNodes = d.number("max-src-nodes", 1, 100)
	}
	if d.often("max-src-conn") {
		o.MaxSrcConn = d.number("max-src-conn", 1, 100)
	}
	if d.often("max-src-conn-rate") {
		o.MaxSrcConnRate, o.MaxSrcConnSecs = d.number("connections", 1, 100), d.number("seconds", 1, 100)
		o.Timeouts[pf.SrcTrack] = pf.Timeout{Given: true, Value: o.MaxSrcConnSecs + d.number("src.track", 0, 10)}
	}
	if (o.MaxSrcConn != 0 || o.MaxSrcConnRate != 0) && d.often("overload") {
		o.Overload = one(d, "overload", tables...)
		o.OverloadFlush = d.often("flush")
		o.OverloadGlobal = o.OverloadFlush && d.often("global")
	}
	return o
}

func (d draw) ether() pf.EtherRule {
	r := pf.EtherRule{
		Action:    one(d, "action", pf.Pass, pf.Block),
		Direction: one(d, "direction", pf.Both, pf.In, pf.Out),
		Quick:     d.seldom("quick"),
		From:      d.mac(),
		To:        d.mac(),
	}
	if d.often("on") {
		r.On = d.port("on")
	}
	if r.HasProto = d.often("has proto"); r.HasProto {
		r.Proto = one[uint16](d, "proto", 0x0800, 0x86dd, 0x0806, 0x88cc)
	}
	family := map[uint16]pf.Family{0x0800: pf.Inet, 0x86dd: pf.Inet6}[r.Proto]
	if family != 0 && d.often("l3") {
		r.L3FromNot, r.L3From = d.l3(family)
		r.L3ToNot, r.L3To = d.l3(family)
	}
	if d.seldom("tag") {
		r.Tag = one(d, "tag", tags...)
	}
	if d.seldom("tagged") {
		r.Tagged, r.NotTagged = one(d, "tagged", tags...), rapid.Bool().Draw(d.T, "not tagged")
	}
	if d.seldom("label") {
		r.Labels = rapid.SliceOfN(rapid.SampledFrom(labels), 1, 5).Draw(d.T, "labels")
	}
	if d.seldom("ridentifier") {
		r.ID = d.number("ridentifier", 1, 1<<32-1)
	}
	return r
}

// l3 draws a host that an ether rule can have.
func (d draw) l3(family pf.Family) (not bool, h pf.Host) {
	for {
		if not, h = d.host(family); h.Kind == pf.AnyHost || h.Kind == pf.Prefix || h.Kind == pf.InTable {
			return not, h
		}
	}
}

func (d draw) mac() pf.EtherHost {
	var h pf.EtherHost
	if !d.often("mac") {
		return h
	}
	h.Not = d.seldom("not")
	h.Mask = one(d, "mask", [6]byte{255, 255, 255, 255, 255, 255}, [6]byte{255, 255, 255}, [6]byte{255, 240}, [6]byte{0, 0, 0, 255, 255, 255})
	for i, b := range []byte{0x02, 0xab, 0x10, 0, 0, byte(d.number("mac", 0, 3))} {
		h.MAC[i] = b & h.Mask[i]
	}
	return h
}

// options draws options, in an order in which they can be set.
func (d draw) options() pf.Options {
	var o pf.Options
	add := func(name string) bool {
		if !d.seldom(name) {
			return false
		}
		o.Order = append(o.Order, name)
		return true
	}
	if add("skip") {
		o.Skip = []pf.Interface{{Name: "em0"}, {Name: "quick"}, {Name: "vm"}}[:rapid.IntRange(1, 3).Draw(d.T, "skip on")]
	}
	if add("block-policy") {
		o.BlockPolicy = one(d, "block-policy", pf.ReturnDrop, pf.ReturnAll)
	}
	if add("state-policy") {
		o.StatePolicy = one(d, "state-policy", pf.Floating, pf.IfBound)
	}
	if add("state-defaults") {
		defaults := d.stateOptions()
		defaults.NoSync = true // without any option it cannot be set
		o.StateDefaults = &defaults
	}
	if add("loginterface") {
		o.LogInterface = one(d, "loginterface", "em0", "none", "quick")
	}
	if add("debug") {
		o.Debug = one(d, "debug", "debug", "notice")
	}
	if add("reassemble") {
		o.Reassemble = one(d, "reassemble", "yes", "no", "yes no-df")
	}
	if add("hostid") {
		o.HostID = fmt.Sprintf("0x%08x", d.number("hostid", 1, 1<<32-1))
	}
	if add("fail-policy") {
		o.FailPolicy = one(d, "fail-policy", "drop", "return")
	}
	o.KeepCounters = add("keepcounters")
	if add("syncookies") {
		o.Syncookies = "never"
	}
	o.IgnoreQueue = add("ignore")
	if add("fingerprints") {
		o.Fingerprints = "/etc/pf.os"
	}
	if add("ruleset-optimization") {
		o.RulesetOpt = one(d, "ruleset-optimization", "none", "basic", "profile")
	}
	if add("limit") {
		for i := range o.Limits {
			if i == 0 || d.seldom("limit") {
				most := uint32(1<<32 - 1)
				switch pf.LimitName(i) {
				case pf.LimitTables:
					most = pf.MaxTables
				case pf.LimitAnchors:
					most = pf.MaxRules
				}
				o.Limits[i] = pf.Limit{Given: true, Value: d.number("limit", 1, most)}
			}
		}
	}
	o.Order = rapid.Permutation(o.Order).Draw(d.T, "order")
	// an optimization sets these timeouts, which may be set again behind it
	optimized := d.seldom("optimization")
	if optimized {
		o.Optimization = one(d, "optimization", "normal", "aggressive", "satellite")
		o.Order = append(o.Order, "optimization")
	}
	if optimized || d.seldom("timeout") {
		o.Order = append(o.Order, "timeout")
		for i := range o.Timeouts {
			if i == 0 || optimized && i <= int(pf.TCPTsdiff) || d.seldom("timeout") {
				most := uint32(1<<32 - 1)
				if pf.TimeoutName(i) == pf.Interval {
					most /= 8
				}
				o.Timeouts[i] = pf.Timeout{Given: true, Value: d.number("timeout", 0, most)}
			}
		}
	}
	if len(o.Order) == 0 {
		o.Order = nil
	}
	return o
}
