// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// combinations returns the number of rules that lists make, or a number above limit.
func combinations(limit int, lengths ...int) int {
	n := 1
	for _, l := range lengths {
		if n *= max(l, 1); n > limit {
			return n
		}
	}
	return n
}

// reserve counts n more rules.
func (p *parser) reserve(n int, pos Pos) {
	if *p.rules += n; *p.rules > maxRules {
		what := "there are"
		if n > 1 {
			what = "lists expand to"
		}
		p.limitf(pos, enough{}, "%s more than %d rules; use tables", what, maxRules)
	}
}

// orOne returns the list, or one zero value for an empty list, which means any.
func orOne[T any](list []T, zero *[1]T) []T {
	if len(list) == 0 {
		return zero[:]
	}
	return list
}

// expand adds a rule for each combination of the items of a rule's lists, in the order
// of pfctl's expand_rule(). It leaves out rules whose addresses are of different
// families.
func (p *parser) expand(s *spec) {
	each := 1
	if s.nat != nil && s.nat.binat {
		each = 2
	}
	p.reserve(combinations(maxRules, len(s.on), len(s.protos), len(s.icmps), len(s.from.hosts), len(s.to.hosts),
		len(s.from.ports), len(s.to.ports), len(s.users), len(s.groups), each), s.rule.Pos)
	var (
		anyInterface [1]Interface
		anyProto     [1]uint8
		anyICMP      [1]icmpType
		anyHost      [1]host
		anyPort      [1]Port
	)
	family := s.rule.Family
	if family == 0 {
		family = commonFamily(s.from.hosts)
	}
	if family == 0 {
		family = commonFamily(s.to.hosts)
	}
	family, ok := p.forwardFamily(s, family)
	if !ok {
		return
	}
	added := false
	for _, on := range orOne(s.on, &anyInterface) {
		for _, proto := range orOne(s.protos, &anyProto) {
			for _, icmp := range orOne(s.icmps, &anyICMP) {
				for i := range max(len(s.from.hosts), 1) {
					from := &orOne(s.from.hosts, &anyHost)[i]
					for j := range max(len(s.to.hosts), 1) {
						to := &orOne(s.to.hosts, &anyHost)[j]
						r := s.rule
						r.On = on
						if !combine(&r, family, from, to) {
							continue
						}
						if !p.narrow(s, &r, proto, icmp) {
							return
						}
						r.From, r.To = Endpoint{Not: from.not, Host: from.Host}, Endpoint{Not: to.not, Host: to.Host}
						for _, r.From.Port = range orOne(s.from.ports, &anyPort) {
							for _, r.To.Port = range orOne(s.to.ports, &anyPort) {
								if !p.addOwned(s, r) {
									return
								}
								added = true
							}
						}
					}
				}
			}
		}
	}
	if !added {
		pos := s.at[optHosts]
		if s.at[optFamily].Line != 0 {
			pos = s.at[optFamily]
		}
		p.errorf(pos, "rule expands to no valid combination; its address families do not fit together")
	}
}

// commonFamily returns the family of all hosts, or 0 if they differ.
func commonFamily(hosts []host) Family {
	if len(hosts) == 0 {
		return 0
	}
	family := hosts[0].family()
	for i := range hosts {
		if hosts[i].family() != family {
			return 0
		}
	}
	return family
}

// combine sets a rule's family and, for link-local addresses, its interface. It reports false if
// no packet can have both hosts.
func combine(r *Rule, family Family, from, to *host) bool {
	for _, h := range [2]*host{from, to} {
		f := h.family()
		if f != 0 && family != 0 && f != family {
			return false
		}
		if family == 0 {
			family = f
		}
		if h.zone == "" {
			continue
		}
		if r.On.Name == "" {
			r.On.Name = h.zone
		} else if r.On.Name != h.zone {
			return false
		}
	}
	r.Family = family
	return true
}

// narrow sets a rule's protocol and the fields that depend on it, and checks
// them.
func (p *parser) narrow(s *spec, r *Rule, proto uint8, icmp icmpType) bool {
	r.HasProto, r.Proto = proto != 0, proto
	if proto != 0 && proto != protoTCP {
		r.Flags = TCPFlags{}
		if r.State == ModulateState || r.State == SynproxyState {
			r.State = KeepState
		}
	}
	remedy := "give the rule a proto"
	if proto != 0 {
		remedy = "the rule has proto " + ProtocolName(proto)
	}
	ok := true
	bad := func(o option, format string, args ...any) {
		p.errorf(s.at[o], format, args...)
		ok = false
	}
	if icmp.proto != 0 {
		r.HasICMP, r.ICMPType = true, icmp.kind
		r.HasCode, r.ICMPCode = icmp.hasCode, icmp.code
		switch {
		case proto != protoICMP && proto != protoICMPv6:
			bad(optICMP, "icmp-type/code only applies to icmp; %s", remedy)
		case proto != icmp.proto:
			bad(optICMP, "icmp-type mismatch; icmp-type is of proto icmp, and icmp6-type of proto icmp6")
		}
		if r.Family == 0 {
			bad(optICMP, "must indicate address family with icmp-type/code; give the rule inet or inet6")
		}
	}
	if (len(s.from.ports) > 0 || len(s.to.ports) > 0) && proto != protoTCP && proto != protoUDP {
		bad(optPort, "port only applies to tcp/udp; %s", remedy)
	}
	if proto == protoICMP && r.Family == Inet6 {
		bad(optProto, "proto icmp doesn't match address family inet6")
	}
	if proto == protoICMPv6 && r.Family == Inet {
		bad(optProto, "proto icmp6 doesn't match address family inet")
	}
	if r.Fragment && (r.Flags.Of != 0 || r.HasICMP || len(s.from.ports) > 0 || len(s.to.ports) > 0) {
		bad(optFragment, "fragments can be filtered only on IP header fields")
	}
	if r.Return == ReturnRST && proto != protoTCP {
		bad(optReturn, "return-rst can only be applied to TCP rules; give the rule proto tcp")
	}
	return ok
}

// addOwned adds a rule for each of the users and groups.
func (p *parser) addOwned(s *spec, r Rule) bool {
	var anyOwner [1]*Owner
	for _, r.User = range orOne(s.users, &anyOwner) {
		for _, r.Group = range orOne(s.groups, &anyOwner) {
			if !p.add(s, r) {
				return false
			}
		}
	}
	return true
}

// add adds a rule.
func (p *parser) add(s *spec, r Rule) bool {
	for _, h := range [2]*Host{&r.From.Host, &r.To.Host} {
		// As in pf, a mask that keeps the whole address is no mask.
		if h.Kind == Dynamic && (h.Bits >= 128 || h.Bits >= 32 && r.Family == Inet) {
			h.Bits = -1
		}
	}
	if s.nat != nil && s.nat.binat {
		return p.addBinat(s, r)
	}
	return p.forward(s, &r) && p.append(s, r)
}

// append appends a rule to the ruleset.
func (p *parser) append(s *spec, r Rule) bool {
	if s.old == nil && !p.anyOrder {
		p.flushOld()
	}
	if strings.Contains(r.Label+strings.Join(r.Labels, ""), "$") || strings.Contains(r.Tag, "$") || strings.Contains(r.Tagged, "$") {
		if !p.expandNames(s, &r) {
			return false
		}
	}
	if s.old != nil {
		return p.addOld(s, r)
	}
	if n := len(p.set.Rules); n == cap(p.set.Rules) {
		// A rule is large. This way it is copied once on average; append would copy it
		// five times.
		p.set.Rules = append(make([]Rule, 0, max(16, 2*n)), p.set.Rules...)
	}
	p.set.Rules = append(p.set.Rules, r)
	return true
}

// expandNames replaces $if and similar words in the label and the tags of a rule by their values.
func (p *parser) expandNames(s *spec, r *Rule) bool {
	type text struct {
		text  *string
		at    option
		what  string
		limit int
	}
	texts := []text{{&r.Label, optLabel, "label", maxLabel}, {&r.Tag, optTag, "tag", maxTag}, {&r.Tagged, optTagged, "tag", maxTag}}
	r.Labels = slices.Clone(r.Labels) // the labels of the list's other rules have other words
	for i := range r.Labels {
		texts = append(texts, text{&r.Labels[i], optLabel, "label", maxLabel})
	}
	for _, name := range texts {
		for _, word := range ruleWords {
			if strings.Contains(*name.text, word.name) {
				*name.text = strings.ReplaceAll(*name.text, word.name, word.value(r, len(p.set.Rules)))
			}
		}
		if len(*name.text) > name.limit {
			p.errorf(s.at[name.at], "%s too long when it is expanded, max %d chars", name.what, name.limit)
			return false
		}
	}
	return true
}

// ruleWords are the words that stand for parts of a rule in its label and
// tags, in the order of pfctl.
var ruleWords = []struct {
	name  string
	value func(r *Rule, number int) string
}{
	{"$if", func(r *Rule, _ int) string { return cmp.Or(r.On.Name, "any") }},
	{"$srcaddr", func(r *Rule, _ int) string { return labelAddress(r.From) }},
	{"$dstaddr", func(r *Rule, _ int) string { return labelAddress(r.To) }},
	{"$srcport", func(r *Rule, _ int) string { return labelPort(r.From.Port) }},
	{"$dstport", func(r *Rule, _ int) string { return labelPort(r.To.Port) }},
	{"$proto", func(r *Rule, _ int) string { return labelProto(r.Proto) }},
	{"$nr", func(_ *Rule, number int) string { return strconv.Itoa(number) }},
}

// labelAddress returns an address as a label shows it.
func labelAddress(e Endpoint) string {
	var s string
	switch h := e.Host; h.Kind {
	case Prefix:
		if s = h.Addr.String(); h.Bits == 0 && h.Addr.IsUnspecified() {
			s = "any"
		} else if h.Bits < h.Addr.BitLen() {
			s = netip.PrefixFrom(h.Addr, h.Bits).String()
		}
	case Dynamic:
		s = "(" + h.Name + ")"
	case InTable:
		s = "<" + h.Name + ">"
	case NoRoute:
		s = "no-route"
	case URPFFailed:
		s = "urpf-failed"
	case AnyHost:
		s = "any"
	default:
		s = "?"
	}
	if e.Not {
		return "! " + s
	}
	return s
}

// labelPort returns a port as a label shows it.
func labelPort(port Port) string {
	lo, hi := strconv.Itoa(int(port.Lo)), strconv.Itoa(int(port.Hi))
	switch port.Op {
	case PortEqual:
		return lo
	case PortNotEqual:
		return "!=" + lo
	case PortLess:
		return "<" + lo
	case PortAtMost:
		return "<=" + lo
	case PortGreater:
		return ">" + lo
	case PortAtLeast:
		return ">=" + lo
	case PortInside:
		return lo + "><" + hi
	case PortOutside:
		return lo + "<>" + hi
	case PortRange:
		return lo + ":" + hi
	}
	return ""
}

// labelProto returns a protocol as a label shows it.
func labelProto(proto uint8) string {
	if name, ok := protocolNames[proto]; ok {
		return name
	}
	if proto == 0 {
		return "ip"
	}
	return strconv.Itoa(int(proto))
}

// spoofed is an argument of antispoof: an interface. It means the interface's addresses at the
// time of the load or, in parentheses, its current addresses.
type spoofed struct {
	name    string
	dynamic bool
	pos     Pos
}

// antispoof reads an antispoof rule, and adds the rules that it stands for.
func (p *parser) antispoof(first token) {
	s := p.begin(first.pos, Block)
	s.rule.Return, s.rule.Direction = ReturnDrop, In
	if s.rule.Quick = p.accept("quick"); p.at("log") {
		p.log(&s.rule)
	}
	s.rule.Quick = s.rule.Quick || p.accept("quick")
	p.word("for")
	var list []spoofed
	p.list(func() {
		i := spoofed{pos: p.tok.pos}
		i.dynamic = p.acceptOp("(")
		if i.name = p.interfaceName(wordAntispoof); i.dynamic {
			p.op(")")
		}
		list = append(list, i)
	})
	p.family(s)
	for !p.ends() {
		switch {
		case p.at("label"):
			p.label(s)
		case p.accept("ridentifier"):
			s.rule.ID = uint32(p.number("a number", math.MaxUint32))
		case p.at("rtable"):
			p.outside("rtable")
		default:
			p.expected("`label`")
		}
	}
	base := s.rule
	for _, i := range list {
		networks, err := p.addressesOf(i, []string{"network"})
		hosts := []host(nil)
		if err == nil {
			hosts, err = p.addressesOf(i, nil)
		}
		some := p.block(base, Interface{i.name, true}, networks)
		if !loopback(hosts) && !(i.dynamic && GroupName(i.name) == "lo") {
			some = p.block(base, Interface{}, hosts) || some
		}
		if some {
			continue
		}
		if err == nil {
			err = errors.New("it has no address")
			if base.Family != 0 {
				err = errors.New("it has no address of " + familyNames[base.Family])
			}
		}
		p.names = slices.DeleteFunc(p.names, func(n PortName) bool { return n.Pos == i.pos }) // one note
		p.set.Ignored = append(p.set.Ignored, Idle{Pos: i.pos, Word: wordAntispoof + " " + i.name,
			Why: fmt.Sprintf("%v; (%s) follows the addresses that it gets", err, i.name)})
	}
}

// addressesOf returns the hosts of an interface of antispoof. It fails if there is no such
// interface.
func (p *parser) addressesOf(i spoofed, modes []string) ([]host, error) {
	if i.dynamic {
		return []host{{Host: Host{Kind: Dynamic, Name: i.name, Modes: modes, Bits: -1}, pos: i.pos}}, nil
	}
	if p.source.Lookup == nil {
		p.failf(i.pos, "the addresses of %s are not known here; give it in parentheses", i.name)
	}
	prefixes, err := p.source.Lookup(i.name, modes)
	if err != nil {
		return nil, err
	}
	hosts := make([]host, len(prefixes))
	for n, prefix := range prefixes {
		prefix = netip.PrefixFrom(prefix.Addr().WithZone(""), prefix.Bits()).Masked()
		hosts[n] = host{Host: Host{Kind: Prefix, Addr: prefix.Addr(), Bits: prefix.Bits()}, pos: i.pos}
	}
	return hosts, nil
}

// loopback reports whether hosts are the addresses of the machine's loopback. The machine talks to
// itself through it from all of its addresses, not only from 127.0.0.1 and ::1.
func loopback(hosts []host) bool {
	return slices.ContainsFunc(hosts, func(h host) bool { return h.Addr.IsLoopback() })
}

// block adds the rules of antispoof for some addresses, and reports whether there are any. As in
// pfctl, an interface without addresses has none.
func (p *parser) block(base Rule, on Interface, hosts []host) bool {
	s := &p.spec
	s.rule, s.from.hosts = base, s.from.hosts[:0]
	for _, h := range hosts {
		if f := h.family(); f == 0 || base.Family == 0 || f == base.Family {
			s.from.hosts = append(s.from.hosts, h)
		}
	}
	if len(s.from.hosts) == 0 {
		return false
	}
	if s.on = s.on[:0]; on.Name != "" {
		s.on = append(s.on, on)
	}
	p.expand(s)
	return true
}
