// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// spec is a rule before its lists are expanded. An empty list means any.
type spec struct {
	rule     Rule
	on       []Interface
	protos   []uint8
	icmps    []icmpType
	from, to side
	users    []*Owner
	groups   []*Owner
	nat, rdr *redirect // nat-to, binat-to and af-to; rdr-to
	route    *redirect
	divert   *diversion
	old      *oldRule // from a line that begins with nat, rdr or binat
	oldKind  string
	at       [optionCount]Pos // of the words of the rule; zero if a word is missing
}

// side has the hosts and ports behind from or to.
type side struct {
	hosts []host
	ports []Port
}

// icmpType is the argument of icmp-type or icmp6-type.
type icmpType struct {
	proto, kind, code uint8
	hasCode           bool
}

// The words that a rule may have once.
type option int

const (
	optFlags option = iota
	optICMP
	optPrio
	optTOS
	optState
	optFragment
	optAllowOpts
	optLabel
	optTag
	optTagged
	optProbability
	optReceivedOn
	optOnce
	optSetPrio
	optSetTOS
	optScrub
	optNoDF
	optRandomID
	optMinTTL
	optMaxMSS
	optReassemble
	optProto
	optFamily
	optPort
	optReturn
	optHosts
	optNat
	optRdr
	optRoute
	optDivert
	optUser
	optGroup
	optID
	optStateLimiter
	optSourceLimiter
	optionCount
)

// once records the place of a word of the rule.
func (p *parser) once(o option, name string) {
	if p.spec.at[o].Line != 0 {
		p.errorf(p.tok.pos, "%s cannot be redefined", name)
	}
	p.spec.at[o] = p.tok.pos
}

// begin makes the spec empty.
func (p *parser) begin(pos Pos, action Action) *spec {
	s := &p.spec
	s.rule = Rule{Pos: pos, Action: action}
	s.on, s.protos, s.icmps = s.on[:0], s.protos[:0], s.icmps[:0]
	s.users, s.groups = s.users[:0], s.groups[:0]
	s.from.hosts, s.from.ports = s.from.hosts[:0], s.from.ports[:0]
	s.to.hosts, s.to.ports = s.to.hosts[:0], s.to.ports[:0]
	s.nat, s.rdr, s.route, s.divert, s.old = nil, nil, nil, nil, nil
	s.at = [optionCount]Pos{}
	return s
}

// rule reads a pass, block or match rule.
func (p *parser) rule(first token) {
	var s *spec
	switch first.text {
	case "pass":
		s = p.begin(first.pos, Pass)
	case "match":
		s = p.begin(first.pos, Match)
	default:
		s = p.begin(first.pos, Block)
		p.answer(&s.rule)
	}
	p.direction(&s.rule.Direction)
	if s.rule.Quick = p.accept("quick"); p.at("log") {
		p.log(&s.rule)
	}
	s.rule.Quick = s.rule.Quick || p.accept("quick")
	p.conditions(s)
	p.options(s)
	p.finish(s)
	p.expand(s)
}

// direction takes in or out.
func (p *parser) direction(d *Direction) {
	if p.accept("in") {
		*d = In
	} else if p.accept("out") {
		*d = Out
	}
}

// answer reads the words behind block.
func (p *parser) answer(r *Rule) {
	pos := p.tok.pos
	switch {
	case p.accept("drop"):
		r.Return = ReturnDrop
	case p.accept("return"):
		r.Return = ReturnAll
	case p.accept("return-rst"):
		r.Return, p.spec.at[optReturn] = ReturnRST, pos
		if p.acceptOp("(") {
			p.word("ttl")
			r.ReturnTTL = uint8(p.number("a TTL", math.MaxUint8))
			p.op(")")
		}
	case p.accept("return-icmp"):
		r.Return = ReturnICMP
		if p.acceptOp("(") {
			r.ReturnICMP4 = p.returnCode(ICMPCode{3, 3}, icmpCodeNames)
			if p.acceptOp(",") || !p.atOp(")") {
				r.ReturnICMP6 = p.returnCode(ICMPCode{1, 4}, icmp6CodeNames)
			}
			p.op(")")
		}
	case p.accept("return-icmp6"):
		r.Return = ReturnICMP
		if p.acceptOp("(") {
			r.ReturnICMP6 = p.returnCode(ICMPCode{1, 4}, icmp6CodeNames)
			p.op(")")
		}
	default:
		r.Return = p.blockPolicy
	}
}

// returnCode takes the code of the unreachable to answer with. usual is zero in rules.
func (p *parser) returnCode(usual ICMPCode, names map[ICMPCode]string) ICMPCode {
	code := usual
	if p.tok.kind == tokNumber {
		code.Code = uint8(p.number("a code of ICMP", math.MaxUint8))
	} else {
		pos := p.tok.pos
		name, ok := p.name("a code of ICMP"), false
		if code.Code, ok = icmpCode(names, usual.Type, name); !ok {
			p.failf(pos, "unknown icmp code %s", shorten(name))
		}
	}
	if code == usual {
		return ICMPCode{}
	}
	return code
}

// log reads log and its options.
func (p *parser) log(r *Rule) {
	p.next()
	r.Log = Logged
	if !p.acceptOp("(") {
		return
	}
	for {
		switch {
		case p.accept("all"):
			r.Log |= LogAll
		case p.accept("matches"):
			r.Log |= LogMatches
		case p.accept("user"):
			r.Log |= LogUser
		case p.accept("to"):
			pos := p.tok.pos
			name := p.name("a pflog interface")
			n, err := strconv.ParseUint(strings.TrimPrefix(name, "pflog"), 10, 8)
			if err != nil || !strings.HasPrefix(name, "pflog") {
				p.failf(pos, "%s: should be a pflog interface", shorten(name))
			}
			if r.LogTo = ""; n > 0 {
				r.LogTo = "pflog" + strconv.FormatUint(n, 10)
			}
		default:
			p.expected("`all`, `matches`, `user` or `to`")
		}
		if p.acceptOp(")") {
			return
		}
		p.acceptOp(",")
	}
}

// conditions reads the words behind quick, up to the hosts.
func (p *parser) conditions(s *spec) {
	if p.accept("on") {
		s.on = p.interfaces(s.on, wordOn)
	}
	if s.old == nil && s.rule.Action != CallAnchor && (p.at("route-to") || p.at("reply-to") || p.at("dup-to")) {
		p.oneOption(ruleOptions, s) // as in FreeBSD
	}
	p.family(s)
	if p.at("proto") {
		s.at[optProto] = p.tok.pos
		p.next()
		p.list(func() { s.protos = append(s.protos, p.protocol()) })
	}
	p.fromTo(s)
}

// family takes inet or inet6.
func (p *parser) family(s *spec) {
	pos := p.tok.pos
	if p.accept("inet") {
		s.rule.Family, s.at[optFamily] = Inet, pos
	} else if p.accept("inet6") {
		s.rule.Family, s.at[optFamily] = Inet6, pos
	}
}

// protocol takes the name or number of a protocol.
func (p *parser) protocol() uint8 {
	var n uint8
	pos := p.tok.pos
	if p.tok.kind == tokNumber {
		n = uint8(p.number("a protocol", math.MaxUint8))
	} else {
		name, ok := p.tok.text, false
		// The word skip is a protocol, too.
		if p.tok.kind != tokWord && p.tok.kind != tokString {
			p.expected("a protocol")
		}
		if n, ok = protocolNumbers[strings.ToLower(name)]; !ok {
			if keywords[name] {
				p.expected("a protocol")
			}
			p.failf(pos, "unknown protocol %s", shorten(name))
		}
		p.next()
	}
	if n == 0 {
		p.failf(pos, "proto 0 cannot be used")
	}
	return n
}

// fromTo reads the hosts of a rule.
func (p *parser) fromTo(s *spec) {
	if p.accept("all") {
		return
	}
	if p.accept("from") {
		p.side(s, &s.from)
	}
	if p.at("os") {
		p.errorf(p.tok.pos, "os: %s", outside["os"])
		p.next()
		p.list(func() { p.name("the name of a system") })
	}
	if p.accept("to") {
		p.side(s, &s.to)
		for i := range s.to.hosts {
			if h := &s.to.hosts[i]; h.Kind == URPFFailed {
				p.failf(h.pos, "\"urpf-failed\" is not permitted in a destination address")
			}
		}
	}
}

// side reads the hosts and ports of one side.
func (p *parser) side(s *spec, side *side) {
	if !p.at("port") {
		pos := p.tok.pos
		side.hosts = p.hosts(side.hosts)
		if s.at[optHosts].Line == 0 && len(side.hosts) > 0 {
			s.at[optHosts] = pos
		}
	}
	if p.at("port") {
		if s.at[optPort].Line == 0 {
			s.at[optPort] = p.tok.pos
		}
		p.next()
		p.list(func() { side.ports = append(side.ports, p.port()) })
	}
}

var unaryOps = map[string]PortOp{
	"=": PortEqual, "!=": PortNotEqual, "<": PortLess, "<=": PortAtMost, ">": PortGreater, ">=": PortAtLeast,
}

// port reads a condition on a port.
func (p *parser) port() Port {
	pos, op := p.tok.pos, AnyPort
	if p.tok.kind == tokOp {
		if op = unaryOps[p.tok.text]; op != AnyPort {
			p.next()
		}
	}
	port, isRange := p.portRange()
	var binary PortOp
	switch {
	case op != AnyPort:
		port.Op = op
	case p.atOp("><"):
		binary = PortInside
	case p.atOp("<>"):
		binary = PortOutside
	}
	if binary != AnyPort {
		p.next()
		hi, hiRange := p.portRange()
		isRange = isRange || hiRange
		port = Port{binary, port.Lo, hi.Lo}
	}
	if isRange && (op != AnyPort || binary != AnyPort) {
		p.failf(pos, "':' cannot be used with an other port operator")
	}
	if port.Hi < port.Lo && port.Op >= PortInside || port.Op == PortInside && port.Hi == port.Lo {
		p.failf(pos, "invalid port range; no port is in it")
	}
	return port
}

// portRange reads a port or `lo:hi`.
func (p *parser) portRange() (port Port, isRange bool) {
	if p.tok.kind != tokNumber && !p.isName() {
		p.expected("a port")
	}
	pos := p.tok.pos
	lo, hi, isRange := strings.Cut(p.tok.text, ":")
	p.next()
	port = Port{Op: PortEqual, Lo: p.service(pos, lo)}
	if isRange {
		if hi := p.service(pos, hi); hi != port.Lo {
			return Port{PortRange, port.Lo, hi}, true
		}
	}
	return port, false
}

// service returns the number of a port.
func (p *parser) service(pos Pos, name string) uint16 {
	if n, err := strconv.ParseUint(name, 0, 63); err == nil {
		if n > math.MaxUint16 {
			p.failf(pos, "illegal port value %d; give at most %d", n, math.MaxUint16)
		}
		return uint16(n)
	}
	n, ok := services()[name]
	if !ok {
		p.failf(pos, "unknown port %s; give its number", shorten(name))
	}
	return n
}

// options reads the words behind the hosts of a rule.
func (p *parser) options(s *spec) {
	for !p.ends() && !p.atOp("{") {
		if p.acceptOp("!") {
			switch {
			case p.at("tagged"):
				p.tagged(s, true)
			case p.at("received-on"):
				p.receivedOn(s, true)
			default:
				p.expected("`tagged` or `received-on`")
			}
			continue
		}
		if p.tok.kind != tokWord {
			p.expected("an option of the rule")
		}
		switch name := p.tok.text; {
		case p.oneOption(ruleOptions, s):
		case name == "tagged":
			p.tagged(s, false)
		case name == "label":
			p.label(s)
		case name == "received-on":
			p.receivedOn(s, false)
		case name == "set":
			p.sets(s)
		case name == "state", name == "source":
			p.limits(s)
		default:
			p.otherOption(name)
		}
	}
}

// A ruleOption is a word that a rule may have once, with its arguments.
type ruleOption struct {
	is     option
	called string // its name in errors, "" for the word itself
	read   func(p *parser, s *spec, word string)
}

// oneOption reads the next option if it is in the table.
func (p *parser) oneOption(table map[string]ruleOption, s *spec) bool {
	word := p.tok.text
	o, ok := table[word]
	if !ok || !p.at(word) {
		return false
	}
	p.once(o.is, cmp.Or(o.called, word))
	p.next()
	o.read(p, s, word)
	return true
}

// ruleOptions are the options behind the hosts of a rule.
var ruleOptions = map[string]ruleOption{
	"flags":       {optFlags, "", func(p *parser, s *spec, _ string) { p.flags(&s.rule) }},
	"icmp-type":   {optICMP, "", func(p *parser, s *spec, _ string) { p.list(func() { p.icmp(s, protoICMP) }) }},
	"icmp6-type":  {optICMP, "", func(p *parser, s *spec, _ string) { p.list(func() { p.icmp(s, protoICMPv6) }) }},
	"prio":        {optPrio, "", func(p *parser, s *spec, _ string) { s.rule.HasPrio, s.rule.Prio = true, p.prio() }},
	"tos":         {optTOS, "", func(p *parser, s *spec, _ string) { s.rule.HasTOS, s.rule.TOS = true, p.tos() }},
	"no":          stateOption,
	"keep":        stateOption,
	"modulate":    stateOption,
	"synproxy":    stateOption,
	"fragment":    {optFragment, "", func(_ *parser, s *spec, _ string) { s.rule.Fragment = true }},
	"allow-opts":  {optAllowOpts, "", func(_ *parser, s *spec, _ string) { s.rule.AllowOpts = true }},
	"user":        {optUser, "", func(p *parser, s *spec, _ string) { p.list(func() { s.users = append(s.users, p.owner()) }) }},
	"group":       {optGroup, "", func(p *parser, s *spec, _ string) { p.list(func() { s.groups = append(s.groups, p.owner()) }) }},
	"ridentifier": {optID, "", func(p *parser, s *spec, _ string) { s.rule.ID = uint32(p.number("a number", math.MaxUint32)) }},
	"tag":         {optTag, "", func(p *parser, s *spec, _ string) { p.tags, s.rule.Tag = p.tok.pos, p.short("tag", "tag", maxTag) }},
	"probability": {optProbability, "", func(p *parser, s *spec, _ string) { s.rule.Probability = p.probability() }},
	"once":        {optOnce, "", func(_ *parser, s *spec, _ string) { s.rule.Once = true }},
	"scrub":       {optScrub, "", func(p *parser, s *spec, _ string) { p.scrub(s) }},

	"nat-to":        {optNat, natWords, func(p *parser, s *spec, word string) { s.nat = p.redirect(word, s.at[optNat]) }},
	"binat-to":      {optNat, natWords, func(p *parser, s *spec, word string) { s.nat = p.redirect(word, s.at[optNat]) }},
	"af-to":         {optNat, natWords, func(p *parser, s *spec, word string) { s.nat = p.afTo(s.at[optNat]) }},
	"rdr-to":        {optRdr, "", func(p *parser, s *spec, word string) { s.rdr = p.redirect(word, s.at[optRdr]) }},
	"route-to":      routeOption,
	"reply-to":      routeOption,
	"dup-to":        routeOption,
	"divert-to":     divertOption,
	"divert-reply":  divertOption,
	"divert-packet": divertOption,
}

const natWords = "nat-to, binat-to or af-to"

var (
	routeOption = ruleOption{optRoute, "route-to, reply-to or dup-to", func(p *parser, s *spec, word string) {
		s.route = p.redirect(word, s.at[optRoute])
	}}
	divertOption = ruleOption{optDivert, "divert-to, divert-reply or divert-packet", func(p *parser, s *spec, word string) {
		s.divert = p.diversion(word, s.at[optDivert])
	}}
)

var stateOption = ruleOption{optState, "modulate or keep", func(p *parser, s *spec, word string) { p.state(&s.rule, word) }}

// setOptions are the options behind set in a rule.
var setOptions = map[string]ruleOption{
	"prio": {optSetPrio, "", func(p *parser, s *spec, _ string) { p.setPrio(&s.rule) }},
	"tos":  {optSetTOS, "set tos", func(p *parser, s *spec, _ string) { s.rule.Scrub.SetTOS, s.rule.Scrub.TOS = true, p.tos() }},
}

// scrubOptions are the options behind scrub in a rule.
var scrubOptions = map[string]ruleOption{
	"no-df":     {optNoDF, "", func(_ *parser, s *spec, _ string) { s.rule.Scrub.NoDF = true }},
	"random-id": {optRandomID, "", func(_ *parser, s *spec, _ string) { s.rule.Scrub.RandomID = true }},
	"min-ttl": {optMinTTL, "", func(p *parser, s *spec, word string) {
		s.rule.Scrub.MinTTL = uint8(p.number(word, math.MaxUint8))
	}},
	"max-mss": {optMaxMSS, "", func(p *parser, s *spec, word string) {
		s.rule.Scrub.MaxMSS = uint16(p.number(word, math.MaxUint16))
	}},
}

// otherOption handles a word that is not an option of a rule on a bridge.
func (p *parser) otherOption(name string) {
	switch {
	case outside[name] != "":
		p.outside(name)
	case slices.Contains(answers, name):
		p.failf(p.tok.pos, "`%s` stands right behind `block`, and nowhere else", name)
	case name == "port":
		p.failf(p.tok.pos, "`port` stands behind `from` or `to`, and an address if there is one: to port 80")
	case slices.Contains(ruleOrder, name):
		p.failf(p.tok.pos, "`%s` stands too late or twice; the order is in, log, quick, on, inet, proto, from, to, options", name)
	default:
		p.expected("an option of the rule")
	}
}

// ruleOrder are the words of a rule that have a fixed place.
var ruleOrder = []string{"in", "out", "log", "quick", "on", "inet", "inet6", "proto", "from", "to", "all"}

// answers are the words of a block rule for the answer to its packets.
var answers = []string{"drop", "return", "return-rst", "return-icmp", "return-icmp6"}

// outside records that an option makes no sense on a bridge, and skips it.
func (p *parser) outside(name string) {
	if p.ignores(p.tok.pos, name) {
		p.next()
		p.queues()
		return
	}
	p.errorf(p.tok.pos, "%s: %s", name, outside[name])
	p.next()
	p.skipArguments()
}

// queues reads the queues of a rule's packets: one, or two in parentheses.
func (p *parser) queues() {
	one := func() {
		if p.tok.kind == tokNumber {
			p.next()
			return
		}
		p.name("a queue")
	}
	if !p.acceptOp("(") {
		one()
		return
	}
	one()
	p.acceptOp(",")
	if !p.atOp(")") {
		one()
	}
	p.op(")")
}

// ignores reports whether words about queues are left out, and records a note if so.
func (p *parser) ignores(pos Pos, name string) bool {
	if outside[name] != needsQueues || !p.source.IgnoreQueues && !p.ignoreQueues {
		return false
	}
	p.set.Ignored = append(p.set.Ignored, Idle{Pos: pos, Word: strings.TrimPrefix(name, "set "), Why: "queues are ignored, and the host's own hold; see tc(8)"})
	return true
}

// beginsOption reports whether a word begins an option of a rule.
func beginsOption(word string) bool {
	_, ok := ruleOptions[word]
	return ok || otherOptions[word] || outside[word] != ""
}

// otherOptions are the words that the method options reads itself.
var otherOptions = wordSet("tagged", "received-on", "label", "set", "state", "source")

// skipArguments skips the arguments of an option that makes no sense on a bridge.
func (p *parser) skipArguments() {
	for braces, parens := p.braces, 0; p.tok.kind != tokEOF; p.next() {
		switch {
		case p.atOp("("):
			parens++
		case p.atOp(")"):
			if parens == 0 {
				return
			}
			parens--
		case p.braces > braces:
		case p.ends() || p.tok.kind == tokBad:
			return
		case parens > 0:
		case p.atOp("!") || p.atOp(","):
			return
		case p.tok.kind == tokWord && beginsOption(p.tok.text):
			return
		}
	}
}

// short takes a name of limited length.
func (p *parser) short(what, name string, limit int) string {
	pos := p.tok.pos
	s := p.name("a " + what)
	if len(s) > limit {
		p.errorf(pos, "%s too long, max %d chars", name, limit)
	}
	return s
}

// maxLabels is the largest number of labels of a rule in FreeBSD.
const maxLabels = 5

// label reads a label. As in FreeBSD, a rule may have several.
func (p *parser) label(s *spec) {
	r := &s.rule
	s.at[optLabel] = p.tok.pos
	if p.next(); len(r.Labels) == maxLabels-1 {
		p.failf(p.tok.pos, "a rule may have %d labels at most", maxLabels)
	}
	switch label := p.short("label", "rule label", maxLabel); {
	case r.Label == "":
		r.Label = label
	case label != "":
		r.Labels = append(slices.Clip(r.Labels), label)
	}
}

// owner reads a condition on the owner of a socket: a name, a number or `unknown`.
func (p *parser) owner() *Owner {
	name := func() string {
		if p.tok.kind == tokNumber {
			return strconv.FormatInt(p.number("a name or a number", math.MaxUint32), 10)
		}
		return p.name("a name or a number")
	}
	o := &Owner{Op: PortEqual}
	pos := p.tok.pos
	if p.tok.kind == tokOp {
		op, ok := unaryOps[p.tok.text]
		if !ok {
			p.expected("a name or a number")
		}
		o.Op = op
		p.next()
		o.Lo = name()
	} else {
		o.Lo = name()
		switch {
		case p.acceptOp("><"):
			o.Op, o.Hi = PortInside, name()
		case p.acceptOp("<>"):
			o.Op, o.Hi = PortOutside, name()
		}
	}
	if (o.Lo == unknownOwner || o.Hi == unknownOwner) && o.Op != PortEqual && o.Op != PortNotEqual {
		p.failf(pos, "`unknown` can be compared by = and != alone")
	}
	return o
}

func (p *parser) tagged(s *spec, not bool) {
	p.once(optTagged, "tagged")
	p.tags = p.tok.pos
	p.next()
	s.rule.Tagged, s.rule.NotTagged = p.short("tag", "tag", maxTag), not
}

func (p *parser) receivedOn(s *spec, not bool) {
	p.once(optReceivedOn, "received-on")
	p.next()
	s.rule.ReceivedOn = Interface{p.interfaceName(negated(wordReceived, not)), not}
}

// flags reads `S/SA`, `/SA` or `any`.
func (p *parser) flags(r *Rule) {
	if p.accept("any") {
		return
	}
	pos := p.tok.pos
	if !p.atOp("/") {
		r.Flags.Set = p.flagSet()
	}
	if !p.acceptOp("/") {
		p.expected("`/` and the flags that are looked at, as in S/SA")
	}
	r.Flags.Of = p.flagSet()
	if r.Flags.Set&^r.Flags.Of != 0 {
		p.errorf(pos, "flags always false; those before the slash must stand behind it, too")
	}
}

// flagSet takes letters of flags.
func (p *parser) flagSet() uint8 {
	if !p.isName() {
		p.expected("flags of TCP such as S/SA, or `any`")
	}
	var flags uint8
	for _, c := range p.tok.text {
		i := strings.IndexRune("FSRPAUEW", c)
		if i < 0 {
			p.failf(p.tok.pos, "bad flags %s; flags are letters of FSRPAUEW", shorten(p.tok.text))
		}
		flags |= 1 << i
	}
	p.next()
	return flags
}

// icmp reads a type of ICMP or ICMPv6, with or without a code.
func (p *parser) icmp(s *spec, proto uint8) {
	t := icmpType{proto: proto}
	keyword, types, codes := "icmp", icmpTypes, icmpCodeNames
	if proto == protoICMPv6 {
		keyword, types, codes = "icmp6", icmp6Types, icmp6CodeNames
	}
	if p.tok.kind == tokNumber {
		t.kind = uint8(p.number("an "+keyword+"-type", math.MaxUint8))
	} else {
		// The word skip is a type, too.
		if p.tok.kind != tokWord && p.tok.kind != tokString {
			p.expected("an " + keyword + "-type")
		}
		kind, ok := types[p.tok.text]
		if !ok {
			p.failf(p.tok.pos, "unknown %s-type %s", keyword, shorten(p.tok.text))
		}
		t.kind = kind
		p.next()
	}
	if p.accept("code") {
		t.hasCode = true
		if p.tok.kind == tokNumber {
			t.code = uint8(p.number("an "+keyword+"-code", math.MaxUint8))
		} else {
			pos := p.tok.pos
			name, ok := p.name("an "+keyword+"-code"), false
			if t.code, ok = icmpCode(codes, t.kind, name); !ok {
				p.failf(pos, "unknown %s-code %s", keyword, shorten(name))
			}
		}
	}
	s.icmps = append(s.icmps, t)
}

// prio takes a priority.
func (p *parser) prio() uint8 {
	if p.tok.kind == tokNumber && (p.tok.number < 0 || p.tok.number > maxPrio) {
		p.failf(p.tok.pos, "prio must be 0 - %d", maxPrio)
	}
	return uint8(p.number("a priority", maxPrio))
}

// tos takes a type of service.
func (p *parser) tos() uint8 {
	if p.tok.kind == tokWord || p.tok.kind == tokString {
		if v, ok := tosValues[strings.ToLower(p.tok.text)]; ok {
			p.next()
			return v
		}
		if !strings.HasPrefix(p.tok.text, "0x") {
			p.failf(p.tok.pos, "illegal tos value %s", shorten(p.tok.text))
		}
	}
	return uint8(p.anyNumber("a tos value", math.MaxUint8))
}

// state reads how state is kept.
func (p *parser) state(r *Rule, name string) {
	p.word("state")
	switch name {
	case "no":
		r.State = NoState
		return
	case "keep":
		r.State = KeepState
	case "modulate":
		r.State = ModulateState
	case "synproxy":
		r.State = SynproxyState
	}
	if p.acceptOp("(") {
		r.StateOpts = p.stateOptions()
		p.op(")")
	}
}

// probability reads a share of the packets: 0.2 or 20%.
func (p *parser) probability() float64 {
	pos, text := p.tok.pos, p.tok.text
	if p.tok.kind != tokNumber && p.tok.kind != tokWord && p.tok.kind != tokString {
		p.expected("a probability")
	}
	p.next()
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if percent {
		f /= 100
	}
	if err != nil || !(f >= 0 && f <= 1) {
		p.failf(pos, "invalid probability: %s; give 0%% to 100%%", shorten(text))
	}
	// As in pf, the smallest probability is more than never.
	return max(f, 1.0/math.MaxUint32)
}

// sets reads the words behind set in a rule.
func (p *parser) sets(s *spec) {
	p.next()
	if !p.acceptOp("(") {
		p.setOne(s)
		return
	}
	for {
		p.setOne(s)
		if p.acceptOp(")") {
			return
		}
		p.acceptOp(",")
	}
}

// setPrio reads one or two priorities.
func (p *parser) setPrio(r *Rule) {
	if !p.acceptOp("(") {
		r.SetPrio[0] = p.prio() + 1
		r.SetPrio[1] = r.SetPrio[0]
		return
	}
	r.SetPrio[0] = p.prio() + 1
	p.acceptOp(",")
	r.SetPrio[1] = p.prio() + 1
	p.op(")")
}

func (p *parser) setOne(s *spec) {
	switch {
	case p.oneOption(setOptions, s):
	case p.at("queue"), p.at("delay"):
		p.outside("set " + p.tok.text)
	default:
		p.expected("`prio` or `tos`")
	}
}

// scrub reads the words behind scrub.
func (p *parser) scrub(s *spec) {
	p.op("(")
	for {
		if p.tok.kind != tokWord {
			p.expected("an option of scrub")
		}
		switch {
		case p.oneOption(scrubOptions, s):
		case p.at("reassemble"):
			p.once(optReassemble, "reassemble tcp")
			p.next()
			p.word("tcp")
			s.rule.Scrub.ReassembleTCP = true
		default:
			p.expected("`no-df`, `random-id`, `min-ttl`, `max-mss` or `reassemble tcp`")
		}
		if p.acceptOp(")") {
			return
		}
		p.acceptOp(",")
	}
}

// finish gives a rule its defaults, and checks the parts that do not depend on
// the items of lists.
func (p *parser) finish(s *spec) {
	r := &s.rule
	if r.Once && r.Action != Pass && r.Action != Block {
		p.errorf(s.at[optOnce], "'once' only applies to pass/block rules")
	}
	if s.at[optFlags].Line != 0 && r.Flags.Of != 0 && len(s.protos) > 0 && !slices.Contains(s.protos, protoTCP) {
		p.errorf(s.at[optFlags], "flags only apply to tcp")
	}
	p.checkForward(s)
	if r.Action == CallAnchor {
		p.checkLimits(s)
		if r.State != NoState {
			p.errorf(s.at[optState], "cannot specify state handling on anchors")
		}
		return
	}
	if r.State != NoState && r.Action != Pass {
		p.errorf(s.at[optState], "keep state is great, but only for pass rules")
	}
	if r.AllowOpts && r.Action != Pass {
		p.errorf(s.at[optAllowOpts], "allow-opts can only be specified for pass rules")
	}
	if r.Action == Pass && s.at[optState].Line == 0 {
		r.State = KeepState
		if p.stateDefaults != nil {
			r.StateOpts = *p.stateDefaults
		}
	}
	p.checkLimits(s)
	if r.State == NoState {
		return
	}
	pos := s.at[optState]
	if pos.Line == 0 {
		pos = r.Pos
	}
	if r.StateOpts.Sloppy && r.State != KeepState {
		p.errorf(pos, "sloppy state matching cannot be used with synproxy state or modulate state")
	}
	p.checkState(&r.StateOpts, pos)
	r.StateOpts.complete()
	if r.StateOpts.Policy == DefaultPolicy {
		r.StateOpts.Policy = p.statePolicy
	}
	if r.Action == Pass && s.at[optFlags].Line == 0 && !r.Fragment {
		r.Flags = TCPFlags{SYN, SYN | ACK}
	}
}

// anchor reads an anchor rule and its body.
func (p *parser) anchor(first token) {
	s := p.begin(first.pos, CallAnchor)
	anchor := &Anchor{}
	namePos := p.tok.pos
	if p.isName() {
		anchor.Name = p.anchorName()
	}
	s.rule.Anchor = anchor
	p.direction(&s.rule.Direction)
	s.rule.Quick = p.accept("quick")
	p.conditions(s)
	p.options(s)
	p.finish(s)
	if !p.atOp("{") {
		if anchor.Name == "" {
			p.failf(namePos, "anchors without explicit rules must specify a name")
		}
		p.expand(s)
		return
	}
	if strings.Contains(anchor.Name, "/") {
		p.errorf(namePos, "anchor paths containing '/' cannot be used for inline anchors.")
	}
	if p.anchors++; p.anchors >= maxAnchorDepth {
		p.limitf(p.tok.pos, enough{}, "anchors may be in each other %d deep", maxAnchorDepth-1)
	}
	outer, saved := p.set, *s
	anchor.Body = &Ruleset{}
	p.set, p.spec = anchor.Body, spec{}
	p.next()
	p.statements(p.anchors - 1)
	p.flushOld()
	p.set, p.spec = outer, saved
	p.anchors--
	if !p.atOp("}") {
		p.failf(p.tok.pos, "expected `}` of the anchor at %s, found %s", first.pos, p.tok)
	}
	p.next()
	p.inlineOnce(anchor, namePos)
	p.expand(&p.spec)
}

// inlineOnce checks that the body of a name is given once. Lists in an anchor rule make
// several rules with one body. Each prints the body, so the same body may be given
// again.
func (p *parser) inlineOnce(anchor *Anchor, pos Pos) {
	if anchor.Name == "" {
		return
	}
	other, ok := p.inline[inRuleset{p.set, anchor.Name}]
	if !ok {
		p.inline[inRuleset{p.set, anchor.Name}] = anchor
		return
	}
	if !reflect.DeepEqual(other.Body.placeless(), anchor.Body.placeless()) {
		p.failf(pos, "inline anchor '%s' already exists", anchor.Name)
	}
	anchor.Body = other.Body
}

// placeless returns a copy of a ruleset that has no positions.
func (r *Ruleset) placeless() *Ruleset {
	if r == nil {
		return nil
	}
	c := *r
	c.Rules, c.Tables, c.Loads = slices.Clone(r.Rules), slices.Clone(r.Tables), slices.Clone(r.Loads)
	c.Ignored = nil
	c.StateLimiters, c.SourceLimiters = slices.Clone(r.StateLimiters), slices.Clone(r.SourceLimiters)
	for i := range c.Rules {
		c.Rules[i] = c.Rules[i].placeless()
		if a := c.Rules[i].Anchor; a != nil {
			c.Rules[i].Anchor = &Anchor{a.Name, a.Body.placeless(), a.Only}
		}
	}
	for i := range c.Tables {
		c.Tables[i].Pos = Pos{}
	}
	for i := range c.StateLimiters {
		c.StateLimiters[i].Place = Place{}
	}
	for i := range c.SourceLimiters {
		c.SourceLimiters[i].Place = Place{}
	}
	for i := range c.Loads {
		c.Loads[i].Pos = Pos{}
		c.Loads[i].Ruleset = c.Loads[i].Ruleset.placeless()
	}
	return &c
}
