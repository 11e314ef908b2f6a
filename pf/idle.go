// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Idle is a word of a ruleset that is accepted and has no effect. It does not harm packets, but an
// administrator may rely on it.
type Idle struct {
	Pos  Pos    // of the rule or the table
	Word string // such as "pflow"
	Why  string // what happens instead
	More int    // further rules and tables that have the word
}

// Idle returns the words of a ruleset, its anchors and what it loads that have no effect: each once, in the
// order of their first place.
func (r *Ruleset) Idle() []Idle {
	var list []Idle
	last := map[string]Pos{} // lists make several rules of one
	note := func(pos Pos, word, why string) {
		at := slices.IndexFunc(list, func(i Idle) bool { return i.Word == word && i.Why == why })
		switch {
		case at < 0:
			list = append(list, Idle{Pos: pos, Word: word, Why: why})
		case last[word+why] != pos:
			list[at].More++
		}
		last[word+why] = pos
	}
	r.walk(map[*Ruleset]bool{}, func(set *Ruleset) {
		for i := range set.Tables {
			if t := &set.Tables[i]; t.Counters {
				note(t.Pos, "counters", "the addresses of a table are not counted one by one")
			}
		}
		for _, i := range set.Ignored {
			note(i.Pos, i.Word, i.Why)
		}
	}, func(rule *Rule) {
		rule.idle(func(word, why string) { note(rule.Pos, word, why) })
	})
	return list
}

// Never returns the rules of a ruleset, its anchors and what it loads that match no packet of a bridge: one
// entry for each reason. More has the number of its other rules.
func (r *Ruleset) Never() (list []Idle) {
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		for _, o := range []struct {
			*Owner
			word string
		}{{rule.User, "user"}, {rule.Group, "group"}} {
			if !o.never() {
				continue
			}
			if len(list) == 0 {
				list = []Idle{{Pos: rule.Pos, Word: o.word, Why: "user and group say who has a socket of the host, which a switch does not see"}}
			} else {
				list[0].More++
			}
			return
		}
	})
	return list
}

// walk calls begin with the ruleset and then rule with each of its rules. It does the same for anchors
// between braces and for loaded anchors, once for each ruleset: lists in the call of an anchor make several
// calls that share a body.
func (r *Ruleset) walk(seen map[*Ruleset]bool, begin func(*Ruleset), rule func(*Rule)) {
	if r == nil || seen[r] {
		return
	}
	seen[r] = true
	begin(r)
	for i := range r.Rules {
		rule(&r.Rules[i])
		if a := r.Rules[i].Anchor; a != nil {
			a.Body.walk(seen, begin, rule)
		}
	}
	for i := range r.Loads {
		r.Loads[i].Ruleset.walk(seen, begin, rule)
	}
}

// Unfilled returns the tables that rules of a ruleset, its anchors and what it loads name but that nothing
// fills: no file defines them, no rule puts sources there, and they do not exist yet. Each has one Idle, at
// the first rule that names it.
func (r *Ruleset) Unfilled(known func(name string) bool) (list []Idle) {
	filled := map[string]bool{}
	r.walk(map[*Ruleset]bool{}, func(set *Ruleset) {
		for i := range set.Tables {
			filled[set.Tables[i].Name] = true
		}
		for i := range set.SourceLimiters {
			filled[set.SourceLimiters[i].Table] = true
		}
	}, func(rule *Rule) { filled[rule.StateOpts.Overload] = true })
	named := func(at Pos, name string) {
		if !filled[name] && !known(name) {
			filled[name] = true
			list = append(list, Idle{Pos: at, Word: "table <" + name + ">"})
		}
	}
	host := func(at Pos, h Host) {
		if h.Kind == InTable {
			named(at, h.Name)
		}
	}
	r.walk(map[*Ruleset]bool{}, func(set *Ruleset) {
		for i := range set.Ether {
			e := &set.Ether[i]
			host(e.Pos, e.L3From)
			host(e.Pos, e.L3To)
		}
	}, func(rule *Rule) {
		host(rule.Pos, rule.From.Host)
		host(rule.Pos, rule.To.Host)
		for _, name := range rule.PoolTables() {
			named(rule.Pos, name)
		}
	})
	return list
}

// Elsewhere returns the translations and next hops of a ruleset, its anchors and what it loads that never
// have an effect: their rules name ports of the bridge that are not host ports. A name that is no port of
// the bridge now may become one. The word of an Idle is the word of the translation or next hop.
func (r *Ruleset) Elsewhere(ports []CompilePort) []Idle {
	var list []Idle
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		if len(rule.Translations) == 0 && rule.Route == nil {
			return
		}
		why := rule.noHost(ports)
		if why == "" {
			return
		}
		add := func(at Pos, word string) {
			// FreeBSD's lines and lists make several rules of one.
			same := func(l Idle) bool { return l.Pos == at && l.Why == why }
			if !slices.ContainsFunc(list, same) {
				list = append(list, Idle{Pos: at, Word: word, Why: why})
			}
		}
		for i := range rule.Translations {
			add(rule.Translations[i].Place.Pos, rule.Translations[i].Kind.String())
		}
		if rule.Route != nil {
			add(rule.Route.Place.Pos, rule.Route.Kind.String())
		}
	})
	return list
}

// Unrouted returns the next hops and sockets of a ruleset, its anchors and what it loads that have an
// effect only at ports that route, if their rules are tried at host ports that do not. There is one Idle
// for each place, whose Why is the names of these ports.
func (r *Ruleset) Unrouted(ports []CompilePort) (list []Idle) {
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		var names []string
		for _, p := range rule.askedAt(ports) {
			if p.Host && !p.Routes {
				names = append(names, p.Name)
			}
		}
		if len(names) == 0 {
			return
		}
		add := func(at Pos, word string) {
			// lists make several rules of one
			if !slices.ContainsFunc(list, func(i Idle) bool { return i.Pos == at }) {
				list = append(list, Idle{Pos: at, Word: word, Why: strings.Join(names, ", ")})
			}
		}
		if rule.Route != nil {
			add(rule.Route.Place.Pos, rule.Route.Kind.String())
		}
		if rule.Divert != nil {
			add(rule.Divert.Place.Pos, rule.Divert.Kind.String())
		}
	})
	return list
}

// askedAt returns the ports where the rule is tried, without ports that pf skips.
func (r *Rule) askedAt(ports []CompilePort) (list []CompilePort) {
	for _, p := range ports {
		if !p.Skip && (r.On.Name == "" || p.Is(r.On.Name) != r.On.Not) {
			list = append(list, p)
		}
	}
	return list
}

// A Need is a word of a ruleset that needs something from the host.
type Need struct {
	Pos   Pos
	Word  string
	Inet  bool // for packets of IPv4
	Inet6 bool // for packets of IPv6
	Only  bool // only packets of the family that the rule names
}

// Diverts returns the rules of a ruleset, its anchors and what it loads that divert packets to sockets.
func (r *Ruleset) Diverts() (list []Need) {
	r.needs(func(rule *Rule, add func(Place, string)) {
		if rule.Divert != nil && rule.Divert.Kind != DivertPacket {
			add(rule.Divert.Place, rule.Divert.Kind.String())
		}
	}, &list)
	return list
}

// Forwards returns the rules of a ruleset, its anchors and what it loads that are about packets which the
// host forwards: a new source on the way out, and a next hop on the way in.
func (r *Ruleset) Forwards() (list []Need) {
	r.needs(func(rule *Rule, add func(Place, string)) {
		for i := range rule.Translations {
			if t := &rule.Translations[i]; t.Kind == NatTo && rule.Direction != In {
				add(t.Place, t.Kind.String())
			}
		}
		if rule.Route != nil && rule.Route.Kind == RouteTo && rule.Direction != Out {
			add(rule.Route.Place, rule.Route.Kind.String())
		}
	}, &list)
	return list
}

// needs appends the words that find adds for each rule, once for each place.
func (r *Ruleset) needs(find func(rule *Rule, add func(Place, string)), list *[]Need) {
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		find(rule, func(at Place, word string) {
			inet, inet6 := rule.Family != Inet6, rule.Family != Inet
			if i := slices.IndexFunc(*list, func(n Need) bool { return n.Pos == at.Pos }); i >= 0 {
				n := &(*list)[i]
				n.Inet, n.Inet6 = n.Inet || inet, n.Inet6 || inet6
				return
			}
			*list = append(*list, Need{at.Pos, word, inet, inet6, rule.Family != 0})
		})
	})
}

// DefaultBlock returns the rule that blocks all packets of a direction, or of both, that no other rule of
// the ruleset passes; nil if there is none. It ignores anchors.
func (r *Ruleset) DefaultBlock() *Rule {
	var last [2]*Rule // for in and out
	for i := range r.Rules {
		rule := &r.Rules[i]
		if rule.Action != Pass && rule.Action != Block || !rule.matchesAll() {
			continue
		}
		for at, other := range []Direction{Out, In} {
			if rule.Direction != other && (last[at] == nil || !last[at].Quick) {
				last[at] = rule
			}
		}
	}
	for _, rule := range last {
		if rule != nil && rule.Action == Block {
			return rule
		}
	}
	return nil
}

// matchesAll reports whether the rule matches all packets of its direction, at any port where it is tried.
// The condition that a TCP connection begins with a SYN does not count: it is true for the first packet.
func (r *Rule) matchesAll() bool {
	all := func(e Endpoint) bool { return !e.Not && e.Host.Kind == AnyHost && e.Port.Op == 0 }
	return (r.On.Name == "" || r.On.Name == "any" && !r.On.Not) && !r.dynamic() && r.Family == 0 && !r.HasProto &&
		all(r.From) && all(r.To) && !r.HasTOS && !r.Fragment && !r.Once
}

// A Stranger is a name in a ruleset that belongs to no port, and to no group with a port in it.
type Stranger struct {
	PortName
	More int // further places of the name behind the same word
}

// Strangers returns the names of a ruleset, its anchors and what it loads that belong to none of the ports:
// each once behind a word. It ignores `set skip` and `antispoof` on the loopback interface: no packet comes
// to a switch from there or goes there, so the words do no harm. Addresses are not names of ports.
func (r *Ruleset) Strangers(ports []CompilePort) []Stranger {
	return r.strange(ports, func(n *PortName) bool {
		switch strings.TrimSuffix(n.Word, NotIt) {
		case Addresses:
			return false
		case wordSkip, wordAntispoof:
			return GroupName(n.Name) != "lo"
		case SetLogInterface:
			return n.Name != "none"
		}
		return true
	})
}

// Aliens does the same for names of interfaces as addresses that belong to none of the devices. "self"
// means all of them.
func (r *Ruleset) Aliens(devices []CompilePort) []Stranger {
	return r.strange(devices, func(n *PortName) bool { return n.Word == Addresses && n.Name != "self" })
}

// strange returns the names that count and that belong to no known port.
func (r *Ruleset) strange(known []CompilePort, counts func(*PortName) bool) []Stranger {
	var list []Stranger
	at := map[PortName]int{} // without the place
	r.walk(map[*Ruleset]bool{}, func(set *Ruleset) {
		for _, n := range set.Names {
			if !counts(&n) || slices.ContainsFunc(known, func(p CompilePort) bool { return p.Is(n.Name) }) {
				continue
			}
			key := PortName{Word: n.Word, Name: n.Name}
			if i, ok := at[key]; ok {
				list[i].More++
				continue
			}
			at[key] = len(list)
			list = append(list, Stranger{PortName: n})
		}
	}, func(*Rule) {})
	return list
}

// Unseen returns the words of a ruleset, its anchors and what it loads that have no effect at the ports of
// a bridge: each once, in the order of their first place.
func (r *Ruleset) Unseen(ports []CompilePort) []Idle {
	var list []Idle
	add := func(pos Pos, word, why string) {
		if at := slices.IndexFunc(list, func(i Idle) bool { return i.Word == word && i.Why == why }); at >= 0 {
			if list[at].Pos != pos { // lists make several rules of one
				list[at].More++
			}
			return
		}
		list = append(list, Idle{Pos: pos, Word: word, Why: why})
	}
	host := slices.ContainsFunc(ports, func(p CompilePort) bool { return p.Host && !p.Skip })
	stations := slices.ContainsFunc(ports, func(p CompilePort) bool { return !p.Host && !p.Skip })
	// hosts reports whether a rule is tried only at host ports, without ports that pf skips.
	hosts := func(on Interface, named func(Interface, func(CompilePort) bool) bool) bool {
		return host && (!stations && on.Name == "" || named(on, func(p CompilePort) bool { return p.Host }))
	}
	asked := false // a rule has a condition on a tag
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) { asked = asked || rule.Tagged != "" })
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		named := func(i Interface, all func(CompilePort) bool) bool {
			if i.Name == "" || i.Not {
				return false
			}
			n := 0
			for _, p := range ports {
				if p.Is(i.Name) {
					if !all(p) {
						return false
					}
					n++
				}
			}
			return n > 0
		}
		switch {
		case named(rule.On, func(p CompilePort) bool { return p.Skip }):
			add(rule.Pos, "on "+rule.On.Name, "pf does not judge it, as the bridge's pf-ports says")
		case rule.Direction == Out && named(rule.On, func(p CompilePort) bool { return p.Host }) &&
			named(rule.ReceivedOn, func(p CompilePort) bool { return !p.Host }):
			add(rule.Pos, "received-on "+rule.ReceivedOn.Name, "what leaves the host has come to it by one of its own ports; name that")
		case host && asked && rule.Tag != "" && rule.Action == Pass && rule.State == NoState:
			add(rule.Pos, "tag "+rule.Tag, "where the host sends the packet on, as no state keeps it; leave out no state")
		}
		if rule.State == SynproxyState && rule.numbersOf() == "" && hosts(rule.On, named) {
			add(rule.Pos, "synproxy state", "at a host port it is modulate state: the host answers itself")
		}
	})
	return list
}

// A Looped is an rdr-to to addresses of the host's loopback.
type Looped struct {
	Pos   Pos
	Inet  bool // to some IPv4 address of it
	Inet6 bool // to its IPv6 address
	On    Interface
}

// ToLoopback returns the redirections of a ruleset, its anchors and what it loads to the host's loopback:
// one for each place and each port that it names. The contents of tables are not known here, so may reports
// whether a rule redirects there, or to a pool that can get such addresses.
func (r *Ruleset) ToLoopback() (list []Looped, may bool) {
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		for i := range rule.Translations {
			t := &rule.Translations[i]
			if t.Kind != RdrTo {
				continue
			}
			may = may || t.Pool.mayLoop()
			l := Looped{Pos: t.Place.Pos, On: rule.On}
			if GroupName(t.Pool.Interface) == "lo" {
				l.Inet, l.Inet6 = rule.Family != Inet6, rule.Family != Inet
			}
			for _, p := range t.Pool.Addrs {
				l.Inet = l.Inet || loops(p) && p.Addr().Is4()
				l.Inet6 = l.Inet6 || loops(p) && p.Addr().Is6()
			}
			if (l.Inet || l.Inet6) && !slices.Contains(list, l) {
				list = append(list, l)
			}
		}
	})
	return list, may
}

// noHost returns why the rule has no effect at any host port, by the ports that it names; "" if it may have
// one.
func (r *Rule) noHost(ports []CompilePort) string {
	if r.On.Name == "" || r.On.Not {
		return ""
	}
	named := slices.DeleteFunc(slices.Clone(ports), func(p CompilePort) bool { return !p.Is(r.On.Name) })
	switch {
	case len(named) == 0 || slices.ContainsFunc(named, func(p CompilePort) bool { return p.Host }):
		return ""
	case named[0].Name != r.On.Name:
		return "no port of " + r.On.Name + " is a host port"
	}
	return r.On.Name + " is no host port"
}

// Undiverted returns an error for each rule of a ruleset, its anchors and what it loads that diverts
// packets at ports of the bridge that are not host ports, 20 at most.
func (r *Ruleset) Undiverted(ports []CompilePort) ErrorList {
	var list ErrorList
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		if rule.Divert == nil || len(list) == maxErrors {
			return
		}
		at := rule.Divert.Place
		why := rule.noHost(ports)
		if why == "" || slices.ContainsFunc(list, func(e Error) bool { return e.Pos == at.Pos }) {
			return
		}
		list = append(list, Error{Pos: at.Pos, Line: at.Line, Missing: true, Message: fmt.Sprintf(
			"%s: %s, and the host has no sockets elsewhere; give a host port", rule.Divert.Kind, why)})
	})
	list.order()
	return list
}

// Unreached returns an error for each next hop of a ruleset, its anchors and what it loads that the host
// cannot reach, or not through the interface that the file names with it, 20 at most. It checks the first
// address of a network. It leaves out tables and interfaces, whose addresses may change. The interface is
// "" if none is named.
func (r *Ruleset) Unreached(reaches func(hop netip.Addr, by string) bool) ErrorList {
	var list ErrorList
	r.walk(map[*Ruleset]bool{}, func(*Ruleset) {}, func(rule *Rule) {
		if rule.Route == nil {
			return
		}
		at := rule.Route.Place
		for i, p := range rule.Route.Pool.Addrs {
			by, what := "", "interface of the host"
			if rule.Route.Pool.By != nil && rule.Route.Pool.By[i] != "" {
				by = rule.Route.Pool.By[i]
				what = "interface " + by
			}
			if len(list) == maxErrors || slices.ContainsFunc(list, func(e Error) bool { return e.Pos == at.Pos }) {
				return
			}
			if !reaches(p.Addr(), by) {
				list = append(list, Error{Pos: at.Pos, Line: at.Line, Missing: true, Message: fmt.Sprintf(
					"%s: no %s reaches %v; give the address of a router, or add a route to it", rule.Route.Kind, what, p.Addr())})
			}
		}
	})
	list.order()
	return list
}

// numbersOf returns why a rule with modulate or synproxy state does not give the connection the switch's
// sequence numbers or answer; "" if it does.
func (r *Rule) numbersOf() string {
	switch {
	case r.Action != Pass:
	case len(r.Translations) > 0:
		return "it is keep state, as the rule translates the connection"
	case r.Route != nil:
		return "it is keep state, as the rule gives the connection a next hop"
	case r.State == SynproxyState && r.Direction == Out:
		return "it is modulate state on the way out; say it in a rule for the way in"
	}
	return ""
}

// idle calls f for each word of the rule that has no effect.
func (r *Rule) idle(f func(word, why string)) {
	when := func(given bool, word, why string) {
		if given && why != "" {
			f(word, why)
		}
	}
	when(r.Action == Match && r.SetPrio[0] != 0, "set prio", "a match rule sets no priority; say it in the rule that passes")
	when(r.Log&LogUser != 0, "log (user)", "a switch does not know whose a packet is")
	when(r.State == SynproxyState || r.State == ModulateState, keepNames[r.State], r.numbersOf())
	when(r.StateOpts.Pflow, "pflow", "flows are not exported")
	when(r.Scrub.ReassembleTCP && r.Action == Pass && r.State == NoState, "reassemble tcp", "it watches connections that have a state; leave out no state")
	when(r.Scrub.ReassembleTCP && r.Action == Pass && r.StateOpts.Sloppy, "reassemble tcp", "a sloppy state does not look at the packets of its connection; leave out sloppy")
	if r.Action == CallAnchor {
		const call = "the call of an anchor changes no packets; say it in the rules of the anchor"
		scrub := r.Scrub
		scrub.SetTOS, scrub.TOS = false, 0
		when(r.SetPrio[0] != 0, "set prio", call)
		when(r.Scrub.SetTOS, "set tos", call)
		when(scrub != Scrub{}, "scrub", call)
		when(r.AllowOpts, "allow-opts", "the call of an anchor passes nothing; say it in the rules of the anchor")
	}
}
