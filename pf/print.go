// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"bascule/pattern"
)

// String returns the ruleset as `pfctl -nvf` prints it: options, tables, ether
// rules, rules and the rulesets of anchors, one line each, and the bodies of
// anchors between braces. It parses back to the same ruleset.
func (r *Ruleset) String() string {
	p := printer{explicit: r.Options.StateDefaults != nil}
	for _, line := range r.Options.Lines() {
		p.line(line)
	}
	p.ruleset(r)
	return p.text.String()
}

// String returns the rule as pfctl prints it, without a newline; the call of an
// anchor with a body has several lines.
func (r *Rule) String() string {
	var p printer
	p.rule(r)
	return strings.TrimSuffix(p.text.String(), "\n")
}

// String returns the definition of the table, without a newline. It lists files, but
// not the entries from them.
func (t *Table) String() string {
	var w words
	w.add("table", "<"+word(t.Name)+">")
	w.when(t.Const, "const")
	w.when(t.Persist, "persist")
	w.when(t.Counters, "counters")
	var listed words
	for _, e := range t.Entries {
		if !e.FromFile {
			listed.add(e.String())
		}
	}
	switch {
	case len(listed) > 0:
		w.add("{", listed.String(), "}")
	case t.Given && len(t.Files) == 0:
		w.add("{", "}")
	}
	for _, file := range t.Files {
		w.add("file", quoted(file))
	}
	return w.String()
}

// String returns the entry as in a list: !10.0.0.1 or 10.0.0.0/8.
func (e TableEntry) String() string {
	s := e.Prefix.String()
	if e.Prefix.IsSingleIP() {
		s = e.Prefix.Addr().String()
	}
	if e.Not {
		return "!" + s
	}
	return s
}

// Lines returns the lines that set the options: first the ones in Order, then the
// others.
func (o *Options) Lines() []string {
	lines := map[string][]string{}
	set := func(name, value string) {
		if value != "" {
			lines[name] = append(lines[name], "set "+name+" "+value)
		}
	}
	if len(o.Skip) > 0 {
		var ports words
		for _, port := range o.Skip {
			ports.add(port.String())
		}
		set("skip", "on { "+ports.String()+" }")
	}
	set("block-policy", map[Return]string{ReturnDrop: "drop", ReturnAll: "return"}[o.BlockPolicy])
	set("state-policy", policyNames[o.StatePolicy])
	if o.StateDefaults != nil {
		set("state-defaults", strings.Join(o.StateDefaults.words(), ", "))
	}
	optimized := optimizations[o.Optimization]
	for i, t := range o.Timeouts {
		// The optimization implies these values.
		if t.Given && !(o.Optimization != "" && i < len(optimized) && t.Value == optimized[i]) {
			set("timeout", fmt.Sprint(timeoutNames[i], " ", t.Value))
		}
	}
	for i, l := range o.Limits {
		if l.Given {
			set("limit", fmt.Sprint(limitNames[i], " ", l.Value))
		}
	}
	set("optimization", o.Optimization)
	set("ruleset-optimization", o.RulesetOpt)
	if o.LogInterface != "" {
		set("loginterface", portName(o.LogInterface))
	}
	set("debug", o.Debug)
	set("reassemble", o.Reassemble)
	set("hostid", o.HostID)
	set("fail-policy", o.FailPolicy)
	if o.KeepCounters {
		lines["keepcounters"] = []string{"set keepcounters"}
	}
	set("syncookies", o.Syncookies)
	if o.IgnoreQueue {
		set("ignore", "queue")
	}
	if o.Fingerprints != "" {
		set("fingerprints", quoted(o.Fingerprints))
	}

	var all []string
	for _, name := range slices.Concat(o.Order, optionNames) {
		all = append(all, lines[name]...)
		delete(lines, name)
	}
	return all
}

// The names of the options, in the order of Options.
var optionNames = []string{"skip", "block-policy", "state-policy", "state-defaults", "timeout", "limit",
	"optimization", "ruleset-optimization", "loginterface", "debug", "reassemble", "hostid", "fail-policy", "keepcounters",
	"syncookies", "ignore", "fingerprints"}

var policyNames = map[StatePolicy]string{Floating: "floating", IfBound: "if-bound"}

// String returns the rule as FreeBSD's pfctl prints it, without a newline.
func (r *EtherRule) String() string {
	w := words{"ether", actionNames[r.Action]}
	w.add(directionNames[r.Direction])
	w.when(r.Quick, "quick")
	w.interfaceIs("on", r.On)
	if r.HasProto {
		w.add(fmt.Sprintf("proto 0x%04x", r.Proto))
	}
	if r.From.Mask != [6]byte{} {
		w.add("from", r.From.String())
	}
	if r.To.Mask != [6]byte{} {
		w.add("to", r.To.String())
	}
	from, to := Endpoint{Not: r.L3FromNot, Host: r.L3From}, Endpoint{Not: r.L3ToNot, Host: r.L3To}
	if !from.isAny() || !to.isAny() {
		w.add("l3 from", from.String(), "to", to.String())
	}
	for _, label := range r.Labels {
		w.add("label", quoted(label))
	}
	if r.ID != 0 {
		w.add("ridentifier", strconv.FormatUint(uint64(r.ID), 10))
	}
	w.tags(r.Tag, r.Tagged, r.NotTagged)
	return w.String()
}

// String returns the address. A mask that is a prefix is printed as a number of bits.
func (h EtherHost) String() string {
	var s string
	if h.Not {
		s = "! "
	}
	s += hexBytes(h.MAC)
	var mask uint64
	for _, b := range h.Mask {
		mask = mask<<8 | uint64(b)
	}
	switch n := bits.LeadingZeros64(^(mask << 16)); {
	case n == 48:
		return s
	case mask == 1<<48-1<<(48-n):
		return s + "/" + strconv.Itoa(n)
	}
	return s + "&" + hexBytes(h.Mask)
}

func hexBytes(mac [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
}

// printer writes rulesets in lines, indented by two spaces for each anchor around them.
type printer struct {
	text  strings.Builder
	depth int
	// state-defaults are set: a rule without options of its own must say keep
	// state, or it would get them
	explicit bool
}

func (p *printer) line(s string) {
	p.text.WriteString(strings.Repeat("  ", p.depth) + s + "\n")
}

// ruleset writes a ruleset without its options.
func (p *printer) ruleset(r *Ruleset) {
	for i := range r.Tables {
		p.line(r.Tables[i].String())
	}
	for i := range r.StateLimiters {
		p.line(r.StateLimiters[i].String())
	}
	for i := range r.SourceLimiters {
		p.line(r.SourceLimiters[i].String())
	}
	for i := range r.Ether {
		p.line(r.Ether[i].String())
	}
	for i := range r.Rules {
		p.rule(&r.Rules[i])
	}
	for _, load := range r.Loads {
		p.line("load anchor " + quoted(load.Name) + " from " + quoted(load.File))
	}
}

func (p *printer) rule(r *Rule) {
	head := r.head(p.explicit)
	if r.Anchor == nil || r.Anchor.Body == nil {
		p.line(head)
		return
	}
	p.line(head + " {")
	p.depth++
	p.ruleset(r.Anchor.Body)
	p.depth--
	p.line("}")
}

var (
	actionNames    = map[Action]string{Pass: "pass", Block: "block", Match: "match", CallAnchor: "anchor"}
	directionNames = map[Direction]string{In: "in", Out: "out"}
	familyNames    = map[Family]string{Inet: "inet", Inet6: "inet6"}
	keepNames      = map[Keep]string{KeepState: "keep state", ModulateState: "modulate state", SynproxyState: "synproxy state"}
)

// head returns the line of the rule, for an anchor without its body. Its parts have the
// order of print_rule() of OpenBSD's pfctl, except probability: pfctl prints it between
// the state and its options, where it does not parse.
func (r *Rule) head(explicit bool) string {
	w := words{actionNames[r.Action]}
	only := Part(0)
	if r.Anchor != nil && r.Anchor.Only != 0 {
		only = r.Anchor.Only
		w = words{partAnchors[only]}
	}
	if r.Anchor != nil && r.Anchor.Name != "" {
		w.add(quoted(r.Anchor.Name))
	}
	if r.Action == Block {
		w.add(r.answer())
	}
	if only == 0 { // the part implies the direction
		w.add(directionNames[r.Direction])
	}
	w.add(r.log())
	w.when(r.Quick, "quick")
	w.interfaceIs("on", r.On)
	w.add(familyNames[r.Family])
	if r.HasProto {
		w.add("proto", named(protocolNames, r.Proto, r.Proto))
	}
	if r.From.isAny() && r.To.isAny() {
		w.add("all")
	} else {
		w.add("from", r.From.String(), "to", r.To.String())
	}
	if r.ReceivedOn.Name != "" {
		keyword := "received-on"
		if r.ReceivedOn.Not {
			keyword = "!received-on"
		}
		w.add(keyword, portName(r.ReceivedOn.Name))
	}
	r.User.words(&w, "user")
	r.Group.words(&w, "group")
	switch {
	case r.Flags.Of != 0:
		w.add("flags", r.Flags.String())
	case r.Action == Pass && r.State != NoState && !r.Fragment && (!r.HasProto || r.Proto == protoTCP):
		w.add("flags any") // without it, the meaning would be S/SA
	}
	r.icmp(&w)
	if r.HasTOS {
		w.add(fmt.Sprintf("tos 0x%02x", r.TOS))
	}
	if r.HasPrio {
		w.add("prio", strconv.Itoa(int(r.Prio)))
	}
	r.sets(&w)
	r.state(&w, explicit)
	r.StateLimiter.print(&w, "state limiter")
	r.SourceLimiter.print(&w, "source limiter")
	if r.Probability != 0 {
		w.add("probability", percent(r.Probability)+"%")
	}
	w.when(r.Fragment, "fragment")
	if scrub := r.scrub(); len(scrub) > 0 {
		w.add("scrub (" + scrub.String() + ")")
	}
	w.when(r.AllowOpts, "allow-opts")
	if r.Label != "" {
		w.add("label", quoted(r.Label))
	}
	for _, label := range r.Labels {
		w.add("label", quoted(label))
	}
	if r.ID != 0 {
		w.add("ridentifier", strconv.FormatUint(uint64(r.ID), 10))
	}
	w.when(r.Once, "once")
	w.tags(r.Tag, r.Tagged, r.NotTagged)
	w.add(r.forward()...)
	return w.String()
}

// partAnchors are the words that call a part of an anchor.
var partAnchors = map[Part]string{NATPart: "nat-anchor", RDRPart: "rdr-anchor", NATPart | RDRPart: "binat-anchor", ScrubPart: "scrub-anchor"}

// words adds the condition to the words of a rule.
func (o *Owner) words(w *words, keyword string) {
	switch {
	case o == nil:
	case o.Op == PortInside, o.Op == PortOutside:
		w.add(keyword, word(o.Lo), map[PortOp]string{PortInside: "><", PortOutside: "<>"}[o.Op], word(o.Hi))
	default:
		w.add(keyword, portOps[o.Op], word(o.Lo))
	}
}

// answer returns the text of a block rule's answer.
func (r *Rule) answer() string {
	switch r.Return {
	case ReturnDrop:
		return "drop"
	case ReturnAll:
		return "return"
	case ReturnRST:
		if r.ReturnTTL != 0 {
			return fmt.Sprintf("return-rst(ttl %d)", r.ReturnTTL)
		}
		return "return-rst"
	case ReturnICMP:
		code4, code6 := "port-unr", "port-unr"
		if r.ReturnICMP4 != (ICMPCode{}) {
			code4 = named(icmpCodeNames, r.ReturnICMP4, r.ReturnICMP4.Code)
		}
		if r.ReturnICMP6 != (ICMPCode{}) {
			code6 = named(icmp6CodeNames, r.ReturnICMP6, r.ReturnICMP6.Code)
		}
		switch {
		case r.Family == Inet && r.ReturnICMP6 == (ICMPCode{}):
			return "return-icmp(" + code4 + ")"
		case r.Family == Inet6 && r.ReturnICMP4 == (ICMPCode{}):
			return "return-icmp6(" + code6 + ")"
		}
		return "return-icmp(" + code4 + ", " + code6 + ")"
	}
	return ""
}

func (r *Rule) log() string {
	if r.Log == 0 {
		return ""
	}
	var options []string
	for _, o := range []struct {
		bit  Log
		name string
	}{{LogAll, "all"}, {LogMatches, "matches"}, {LogUser, "user"}} {
		if r.Log&o.bit != 0 {
			options = append(options, o.name)
		}
	}
	if r.LogTo != "" {
		options = append(options, "to "+word(r.LogTo))
	}
	if options == nil {
		return "log"
	}
	return "log (" + strings.Join(options, ", ") + ")"
}

// sets adds the words for what the rule sets in packets and for them.
func (r *Rule) sets(w *words) {
	var list []string
	switch first, second := int(r.SetPrio[0])-1, int(r.SetPrio[1])-1; {
	case first < 0:
	case first == second:
		list = append(list, fmt.Sprintf("prio %d", first))
	default:
		list = append(list, fmt.Sprintf("prio(%d, %d)", first, second))
	}
	if r.Scrub.SetTOS {
		list = append(list, fmt.Sprintf("tos 0x%02x", r.Scrub.TOS))
	}
	if len(list) > 0 {
		w.add("set (" + strings.Join(list, ", ") + ")")
	}
}

// scrub returns the words behind scrub, in pfctl's order.
func (r *Rule) scrub() words {
	var w words
	s := &r.Scrub
	w.when(s.NoDF, "no-df")
	w.when(s.RandomID, "random-id")
	if s.MinTTL != 0 {
		w.add("min-ttl", strconv.Itoa(int(s.MinTTL)))
	}
	w.when(s.ReassembleTCP, "reassemble tcp")
	if s.MaxMSS != 0 {
		w.add("max-mss", strconv.Itoa(int(s.MaxMSS)))
	}
	return w
}

func (r *Rule) icmp(w *words) {
	if !r.HasICMP {
		return
	}
	keyword, types, codes := "icmp-type", icmpTypeNames, icmpCodeNames
	if r.Family == Inet6 {
		keyword, types, codes = "icmp6-type", icmp6TypeNames, icmp6CodeNames
	}
	w.add(keyword, named(types, r.ICMPType, r.ICMPType))
	if r.HasCode {
		w.add("code", named(codes, ICMPCode{r.ICMPType, r.ICMPCode}, r.ICMPCode))
	}
}

// state adds the words for how the rule keeps state, unless it is the default.
func (r *Rule) state(w *words, explicit bool) {
	if r.Action == CallAnchor {
		return
	}
	options := r.StateOpts.words()
	switch {
	case r.State == NoState:
		w.when(r.Action == Pass, "no state")
		return
	case r.State != KeepState || len(options) > 0 || explicit:
		w.add(keepNames[r.State])
	}
	if len(options) > 0 {
		w.add("(" + strings.Join(options, ", ") + ")")
	}
}

// words returns the options in pfctl's order, to be joined by commas.
func (o *StateOptions) words() []string {
	var list []string
	add := func(given bool, format string, values ...any) {
		if given {
			list = append(list, fmt.Sprintf(format, values...))
		}
	}
	add(o.Max != 0, "max %d", o.Max)
	add(o.NoSync, "no-sync")
	add(o.SourceTrack == SourceTrackRule, "source-track rule")
	add(o.SourceTrack == SourceTrackGlobal, "source-track global")
	add(o.MaxSrcStates != 0, "max-src-states %d", o.MaxSrcStates)
	add(o.MaxSrcConn != 0, "max-src-conn %d", o.MaxSrcConn)
	add(o.MaxSrcConnRate != 0, "max-src-conn-rate %d/%d", o.MaxSrcConnRate, o.MaxSrcConnSecs)
	add(o.MaxSrcNodes != 0, "max-src-nodes %d", o.MaxSrcNodes)
	if o.Overload != "" {
		overload := words{"overload", "<" + word(o.Overload) + ">"}
		overload.when(o.OverloadFlush || o.OverloadGlobal, "flush")
		overload.when(o.OverloadGlobal, "global")
		list = append(list, overload.String())
	}
	add(o.Policy != DefaultPolicy, "%s", policyNames[o.Policy])
	add(o.Sloppy, "sloppy")
	add(o.Pflow, "pflow")
	for i, t := range o.Timeouts {
		add(t.Given, "%s %d", timeoutNames[i], t.Value)
	}
	return list
}

// String returns the flags as pfctl prints them: S/SA, or any.
func (f TCPFlags) String() string {
	if f.Of == 0 {
		return "any"
	}
	letters := func(set uint8) string {
		var s []byte
		for i, letter := range []byte("FSRPAUEW") {
			if set&(1<<i) != 0 {
				s = append(s, letter)
			}
		}
		return string(s)
	}
	return letters(f.Set) + "/" + letters(f.Of)
}

func (e Endpoint) isAny() bool {
	return !e.Not && e.Host.Kind == AnyHost && e.Port.Op == AnyPort
}

// String returns the endpoint as pfctl prints it after from and to.
func (e Endpoint) String() string {
	var w words
	w.when(e.Not, "!")
	w.add(e.Host.String())
	if e.Port.Op != AnyPort {
		w.add("port", e.Port.String())
	}
	return w.String()
}

// String returns the host as pfctl prints it.
func (h Host) String() string {
	switch h.Kind {
	case Prefix:
		if h.Bits == h.Addr.BitLen() {
			return h.Addr.String()
		}
		return h.Addr.String() + "/" + strconv.Itoa(h.Bits)
	case Range:
		return h.Addr.String() + " - " + h.Last.String()
	case InTable:
		return "<" + word(h.Name) + ">"
	case Dynamic:
		s := "(" + word(strings.Join(append([]string{h.Name}, h.Modes...), ":")) + ")"
		if h.Bits >= 0 {
			s += "/" + strconv.Itoa(h.Bits)
		}
		return s
	case NoRoute:
		return "no-route"
	case URPFFailed:
		return "urpf-failed"
	}
	return "any"
}

// String returns the condition as pfctl prints it after port.
func (p Port) String() string {
	switch p.Op {
	case PortInside:
		return fmt.Sprintf("%d >< %d", p.Lo, p.Hi)
	case PortOutside:
		return fmt.Sprintf("%d <> %d", p.Lo, p.Hi)
	case PortRange:
		return fmt.Sprintf("%d:%d", p.Lo, p.Hi)
	case AnyPort:
		return ""
	}
	return fmt.Sprintf("%s %d", portOps[p.Op], p.Lo)
}

var portOps = map[PortOp]string{PortEqual: "=", PortNotEqual: "!=", PortLess: "<", PortAtMost: "<=", PortGreater: ">", PortAtLeast: ">="}

// String returns the interface as pfctl prints it after on.
func (i Interface) String() string {
	if i.Not {
		return "! " + portName(i.Name)
	}
	return portName(i.Name)
}

// portName returns the name of a port. Any and all are keywords here.
func portName(name string) string {
	if name == "any" || name == "all" {
		return name
	}
	return word(name)
}

// percent returns the shortest number whose hundredth is p. The product of p and 100
// may be slightly off.
func percent(p float64) string {
	product := p * 100
	best := ""
	for _, n := range []float64{product, math.Nextafter(product, 0), math.Nextafter(product, 101)} {
		if s := strconv.FormatFloat(n, 'f', -1, 64); best == "" || n/100 == p && len(s) < len(best) {
			best = s
		}
	}
	return best
}

// words are the parts of a line.
type words []string

// add appends the words that are not empty.
func (w *words) add(list ...string) {
	for _, s := range list {
		if s != "" {
			*w = append(*w, s)
		}
	}
}

func (w *words) when(given bool, s string) {
	if given {
		w.add(s)
	}
}

func (w *words) interfaceIs(keyword string, i Interface) {
	if i.Name != "" {
		w.add(keyword, i.String())
	}
}

func (w *words) tags(tag, tagged string, not bool) {
	if tag != "" {
		w.add("tag", word(tag))
	}
	if tagged != "" {
		w.when(not, "!")
		w.add("tagged", word(tagged))
	}
}

func (w words) String() string { return strings.Join(w, " ") }

// named returns the name of key, or number if it has none.
func named[K comparable](names map[K]string, key K, number uint8) string {
	if name, ok := names[key]; ok {
		return name
	}
	return strconv.Itoa(int(number))
}

// A word that needs no quotes, unless it is a keyword.
var bareWord = pattern.New(`^[A-Za-z_][A-Za-z0-9_.:-]*$`)

// word returns s as a file has it: between quotes if necessary.
func word(s string) string {
	if bareWord().MatchString(s) && !keywords[s] {
		return s
	}
	return quoted(s)
}

// quoted returns s between quotes. Between quotes only a quote needs a backslash.
func quoted(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}
