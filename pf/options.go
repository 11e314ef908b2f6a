// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// option reads a `set` statement.
func (p *parser) option(first token) {
	if p.anchors > 0 {
		p.failf(first.pos, "set: options are of the whole ruleset; they cannot be in an anchor")
	}
	if p.tok.kind != tokWord {
		p.expected("the name of an option")
	}
	name := p.tok
	p.next()
	o := &p.set.Options
	switch name.text {
	case "skip":
		p.skipOn(o)
	case "block-policy":
		switch {
		case p.accept("drop"):
			o.BlockPolicy = ReturnDrop
		case p.accept("return"):
			o.BlockPolicy = ReturnAll
		default:
			p.expected("`drop` or `return`")
		}
		p.blockPolicy = o.BlockPolicy
	case "state-policy":
		switch {
		case p.accept("if-bound"):
			o.StatePolicy, p.statePolicy = IfBound, IfBound
		case p.accept("floating"):
			o.StatePolicy, p.statePolicy = Floating, DefaultPolicy
		default:
			p.expected("`if-bound` or `floating`")
		}
	case "state-defaults":
		if o.StateDefaults != nil {
			p.failf(name.pos, "cannot redefine state-defaults")
		}
		defaults := p.stateOptions()
		o.StateDefaults, p.stateDefaults = &defaults, &defaults
	case "timeout":
		p.list(func() {
			i, value := p.timeout()
			o.Timeouts[i] = Timeout{true, value}
		})
	case "limit":
		p.list(func() { p.limit(o) })
	case "optimization":
		p.optimization(o)
	case "ruleset-optimization":
		o.RulesetOpt = p.oneOf("none", "basic", "profile")
	case "loginterface":
		if o.LogInterface = "all"; !p.accept("all") {
			o.LogInterface = p.interfaceName(SetLogInterface)
		}
	case "debug":
		o.Debug = p.oneOf("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
			"none", "urgent", "misc", "loud")
	case "reassemble":
		o.Reassemble = p.oneOf("yes", "no")
		if p.accept("no-df") {
			o.Reassemble += " no-df"
		}
	case "hostid":
		pos := p.tok.pos
		n := p.anyNumber("a number", math.MaxUint32)
		if n == 0 {
			p.failf(pos, "hostid must be non-zero")
		}
		o.HostID = fmt.Sprintf("0x%08x", n)
	case "fail-policy":
		o.FailPolicy = p.oneOf("drop", "return")
	case "keepcounters":
		o.KeepCounters = true
	case "require-order":
		// Printed rules are in order, and do not have this option.
		p.anyOrder = p.oneOf("yes", "no") == "no"
	case "syncookies":
		if !p.at("never") {
			p.failf(name.pos, "set syncookies: %s", outside["set syncookies"])
		}
		o.Syncookies = p.oneOf("never", "never")
	case "ignore":
		if !p.accept("queue") {
			p.expected("`queue`")
		}
		o.IgnoreQueue, p.ignoreQueues = true, true
	case "fingerprints":
		o.Fingerprints = p.name("the name of a file in quotes")
	default:
		if why, ok := outside["set "+name.text]; ok {
			p.failf(name.pos, "set %s: %s", name.text, why)
		}
		p.failf(name.pos, "unknown option `%s`", shorten(name.text))
	}
	// An option that is set again applies from there on.
	p.idleOption(name.text, first.pos)
	o.Order = append(slices.DeleteFunc(o.Order, func(s string) bool { return s == name.text }), name.text)
	if name.text == "optimization" && !slices.Contains(o.Order, "timeout") {
		o.Order = append(o.Order, "timeout")
	}
}

// idleOption records a note about an option that has no effect.
func (p *parser) idleOption(name string, pos Pos) {
	o := &p.set.Options
	word := "set " + name
	p.set.Ignored = slices.DeleteFunc(p.set.Ignored, func(i Idle) bool { return i.Word == word })
	why := ""
	switch {
	case name == "reassemble" && o.Reassemble != "no":
		why = notReassembled
	case name == "fail-policy" && o.FailPolicy == "return":
		why = "what cannot be translated, routed or counted is dropped"
	}
	if why != "" {
		p.set.Ignored = append(p.set.Ignored, Idle{Pos: pos, Word: word, Why: why})
	}
}

const notReassembled = "fragments are not put together; of each the ports of its packet's first one are remembered"

// oneOf takes one of some words.
func (p *parser) oneOf(words ...string) string {
	if p.tok.kind == tokWord || p.tok.kind == tokString {
		if s := p.tok.text; slices.Contains(words, s) {
			p.next()
			return s
		}
	}
	p.expected("`" + strings.Join(words[:len(words)-1], "`, `") + "` or `" + words[len(words)-1] + "`")
	return ""
}

// anyNumber takes a number that may be octal or hexadecimal as well.
func (p *parser) anyNumber(what string, limit int64) int64 {
	if p.tok.kind == tokWord || p.tok.kind == tokString {
		n, err := strconv.ParseUint(p.tok.text, 0, 63)
		if err != nil {
			p.expected(what)
		}
		p.tok.kind, p.tok.number = tokNumber, int64(n)
	}
	return p.number(what, limit)
}

// skipOn reads the arguments of `set skip`.
func (p *parser) skipOn(o *Options) {
	if !p.accept("on") {
		p.expected("`on` and ports")
	}
	if p.at("none") {
		p.next()
		o.Skip = nil
		return
	}
	pos := p.tok.pos
	list := p.interfaces(nil, wordSkip)
	for _, i := range list {
		if i.Not {
			p.errorf(pos, "skip on ! <interface> is not supported")
			return
		}
	}
	for _, i := range list {
		if !slices.Contains(o.Skip, i) {
			o.Skip = append(o.Skip, i)
		}
	}
}

// timeout takes the name of a timeout and its value.
func (p *parser) timeout() (TimeoutName, uint32) {
	i := slices.Index(timeoutNames[:], p.tok.text)
	if i < 0 || p.tok.kind != tokWord && p.tok.kind != tokString {
		if strings.HasPrefix(p.tok.text, "sctp.") {
			p.failf(p.tok.pos, "%s: SCTP uses the timeouts other.first, other.single and other.multiple", shorten(p.tok.text))
		}
		if p.tok.kind == tokWord {
			p.failf(p.tok.pos, "unknown timeout %s; there are %s", shorten(p.tok.text), strings.Join(timeoutNames[:], ", "))
		}
		p.expected("the name of a timeout")
	}
	p.next()
	unit, most := "seconds", int64(math.MaxUint32)
	switch name := TimeoutName(i); {
	case name == AdaptiveStart, name == AdaptiveEnd:
		unit = "states"
	case name == Interval && !p.source.Kept:
		most = maxInterval
	}
	return TimeoutName(i), uint32(p.number("a number of "+unit, most))
}

// limit takes the name of a limit and its value.
func (p *parser) limit(o *Options) {
	i := slices.Index(limitNames[:], p.tok.text)
	if i < 0 || p.tok.kind != tokWord && p.tok.kind != tokString {
		if p.at("pktdelay-pkts") {
			p.failf(p.tok.pos, "pktdelay-pkts: %s", outside["set delay"])
		}
		if p.tok.kind == tokWord {
			p.failf(p.tok.pos, "unknown limit %s; there are %s", shorten(p.tok.text), strings.Join(limitNames[:], ", "))
		}
		p.expected("the name of a limit")
	}
	p.next()
	most := int64(math.MaxUint32) // tables of that size are refused because of their memory
	switch {
	case p.source.Kept:
	case LimitName(i) == LimitTables:
		most = MaxTables
	case LimitName(i) == LimitAnchors:
		most = MaxRules
	}
	pos := p.tok.pos
	n := p.number("a limit of "+limitNames[i], most)
	if n == 0 && !p.source.Kept {
		p.errorf(pos, "set limit %s 0 would allow %s, and does not mean without limit; give 1 or more, or leave it out", limitNames[i], zeroLimit[i])
	}
	o.Limits[i] = Limit{true, uint32(n)}
}

// zeroLimit has the effects of a limit of 0.
var zeroLimit = [LimitCount]string{
	LimitStates:       "no state at all",
	LimitSrcNodes:     "no source to be tracked",
	LimitFrags:        "the ports of no fragment to be remembered",
	LimitTables:       "no table",
	LimitTableEntries: "no address in a table",
	LimitAnchors:      "no anchor",
}

// optimization reads the name of a set of timeouts and sets them.
func (p *parser) optimization(o *Options) {
	pos, name := p.tok.pos, p.tok.text
	if p.tok.kind != tokWord && p.tok.kind != tokString {
		p.expected("the name of an optimization")
	}
	seconds, ok := optimizations[name]
	if !ok {
		p.failf(pos, "unknown optimization %s; there are %s", shorten(name),
			strings.Join(slices.Sorted(maps.Keys(optimizations)), ", "))
	}
	p.next()
	o.Optimization = name
	for i, s := range seconds {
		o.Timeouts[TCPFirst+TimeoutName(i)] = Timeout{true, s}
	}
}

// stateOptions reads the options of keep state, without parentheses.
func (p *parser) stateOptions() StateOptions {
	var o StateOptions
	bare := false // source-track without an argument
	var seen [len(stateOptionNames)]bool
	once := func(name string, pos Pos) {
		i := slices.Index(stateOptionNames[:], name)
		if seen[i] {
			p.errorf(pos, "state option '%s' multiple definitions", name)
		}
		seen[i] = true
	}
	positive := func(name string) uint32 {
		pos := p.tok.pos
		n := p.number("a number", math.MaxUint32)
		if n == 0 {
			p.errorf(pos, "'%s' must be > 0", name)
		}
		return uint32(n)
	}
	for {
		if p.tok.kind != tokWord {
			p.expected("an option of the state")
		}
		pos, name := p.tok.pos, p.tok.text
		switch {
		case name == "floating":
			once("if-bound", pos) // they exclude each other
			p.next()
		case slices.Contains(stateOptionNames[:], name):
			once(name, pos)
			p.next()
		}
		switch name {
		case "max":
			o.Max = uint32(p.number("a number of states", math.MaxUint32))
		case "no-sync":
			o.NoSync = true
		case "source-track":
			o.SourceTrack = SourceTrackGlobal
			if p.accept("rule") {
				o.SourceTrack = SourceTrackRule
			} else {
				bare = !p.accept("global")
			}
		case "max-src-states":
			o.MaxSrcStates = positive(name)
		case "max-src-nodes":
			o.MaxSrcNodes = positive(name)
		case "max-src-conn":
			o.MaxSrcConn = positive(name)
		case "max-src-conn-rate":
			pos := p.tok.pos
			o.MaxSrcConnRate = uint32(p.number("a number of connections", math.MaxUint32))
			p.op("/")
			o.MaxSrcConnSecs = uint32(p.number("a number of seconds", math.MaxUint32))
			if o.MaxSrcConnRate == 0 || o.MaxSrcConnSecs == 0 {
				p.errorf(pos, "'max-src-conn-rate' values must be > 0")
			}
			if o.MaxSrcConnRate > maxConnRate {
				p.errorf(pos, "'max-src-conn-rate' maximum rate must be < %d", maxConnRate)
			}
		case "overload":
			o.Overload = p.tableName()
			if p.accept("flush") {
				o.OverloadFlush = true
				o.OverloadGlobal = p.accept("global")
			}
		case "if-bound":
			o.Policy = IfBound
		case "floating":
			o.Policy = Floating
		case "sloppy":
			o.Sloppy = true
		case "pflow":
			o.Pflow = true
		default:
			if slices.Contains(timeoutNames[:], name) && !strings.Contains(name, ".") {
				p.failf(pos, "illegal state timeout %s; it is not of a state: use set timeout", name)
			}
			if !slices.Contains(timeoutNames[:], name) {
				p.failf(pos, "expected an option of the state, found %s", p.tok)
			}
			i, value := p.timeout()
			if o.Timeouts[i].Given {
				p.errorf(pos, "state timeout %s multiple definitions", name)
			}
			o.Timeouts[i] = Timeout{true, value}
		}
		if !p.acceptOp(",") && p.tok.kind != tokWord {
			if bare && o.limitsRule() {
				o.SourceTrack = SourceTrackRule
			}
			return o
		}
	}
}

// stateOptionNames are the options of states, timeouts aside.
var stateOptionNames = [...]string{"max", "no-sync", "source-track", "max-src-states", "max-src-nodes",
	"max-src-conn", "max-src-conn-rate", "overload", "if-bound", "sloppy", "pflow"}

// limitsRule reports whether the options limit a number that is counted for each rule.
func (o *StateOptions) limitsRule() bool {
	return o.MaxSrcNodes > 0 || o.MaxSrcConn > 0 || o.MaxSrcConnRate > 0
}

// complete adds the values that pfctl adds to options: the source tracking, and the
// timeouts that follow from max and max-src-conn-rate.
func (o *StateOptions) complete() {
	switch {
	case o.limitsRule():
		o.SourceTrack = SourceTrackRule
	case o.SourceTrack == NoSourceTrack && o.MaxSrcStates > 0:
		o.SourceTrack = SourceTrackGlobal
	}
	if o.Max >= 10 && !o.Timeouts[AdaptiveStart].Given && !o.Timeouts[AdaptiveEnd].Given {
		o.Timeouts[AdaptiveStart] = Timeout{true, o.Max / 10 * 6}
		o.Timeouts[AdaptiveEnd] = Timeout{true, uint32(min(uint64(o.Max)/10*12, math.MaxUint32))}
	}
	if o.Timeouts[SrcTrack].Value < o.MaxSrcConnSecs {
		o.Timeouts[SrcTrack] = Timeout{true, o.MaxSrcConnSecs}
	}
}

// checkState records the errors of options. pos is their place.
func (p *parser) checkState(o *StateOptions, pos Pos) {
	if o.SourceTrack == SourceTrackGlobal {
		for _, limit := range []struct {
			name  string
			value uint32
		}{
			{"max-src-nodes", o.MaxSrcNodes}, {"max-src-conn", o.MaxSrcConn}, {"max-src-conn-rate", o.MaxSrcConnRate},
		} {
			if limit.value > 0 {
				p.errorf(pos, "'%s' is incompatible with 'source-track global'", limit.name)
			}
		}
	}
	if o.Overload != "" && o.MaxSrcConn == 0 && o.MaxSrcConnRate == 0 {
		p.errorf(pos, "'overload' requires 'max-src-conn' or 'max-src-conn-rate'")
	}
}
