// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The limits of a file. Without them, a small file could expand to any amount of memory.
const (
	maxRules  = MaxRules // including the rules of anchors
	maxList   = 200_000  // items of a list between braces
	maxNested = 16       // files that include each other, and nested lists
	maxMacro  = 64 << 10 // bytes of the value of a macro
	maxText   = 32 << 20 // bytes of all files, and of macros for each use; see spent

	maxAnchorDepth = 64 // as in pfctl
	maxAnchorName  = 1023
	maxTableName   = 31
	maxLabel       = 63
	maxTag         = 63
	maxInterface   = 15
	plugged        = "plug/"           // begins names of ports by IDs, which no device can have
	maxConnRate    = 0xffffffff / 1000 // PF_THRESHOLD_MAX
	maxPrio        = 7
	maxInterval    = 0xffffffff / 8 // seconds; a sweep of states takes an eighth of it
)

// Source opens files and looks up hosts for Parse.
type Source struct {
	// Open returns the contents of a file that is included, or from which a table is read.
	// Nil: there are none.
	Open func(name string) ([]byte, error)
	// Lookup returns the addresses of a name that is used as an address: the name of an
	// interface, with the modifiers of Host.Modes, or of a host. Nil: there are none.
	Lookup func(name string, modes []string) ([]netip.Prefix, error)
	// Kept marks text that String has returned for an accepted ruleset. The limits of options
	// are not checked again.
	Kept bool
	// IgnoreQueues is `set ignore queue`: words about queues are left out, and noted.
	IgnoreQueues bool
	// Macros are the macros given with -D. They override the file's.
	Macros map[string]string
	// Defined is called for each macro that the file defines. It may be nil.
	Defined func(name, value string)
}

// Parse parses the pf.conf with the given name. Its error is an ErrorList if the text is at
// fault.
//
// The language is OpenBSD's pf.conf(5), with the ether rules of FreeBSD's. As in pfctl, `set`
// applies to the rules behind it.
func Parse(name string, text []byte, source Source) (*Ruleset, error) {
	rules := 0
	p := &parser{source: source, spent: &spent{}, rules: &rules}
	set := p.file(name, string(text))
	if len(p.errs) > 0 {
		p.errs.order()
		return nil, p.errs
	}
	return set, nil
}

// parser reads the statements of a file and of the files that it includes. After some errors the
// rest of a statement has no meaning. Such an error is recorded and raised as bail, which
// [parser.statement] catches. Other errors are only recorded.
type parser struct {
	source Source
	lex    *lexer
	tok    token // the next token, not taken yet
	errs   ErrorList
	texts  map[string]string // of the files, for errors
	macros map[string]string
	spent  *spent
	rules  *int // number of rules

	set     *Ruleset // where statements are added
	inline  map[inRuleset]*Anchor
	anchors int // depth of anchors' bodies around the statement
	nested  int // depth of files around the statement
	pools   []poolTable
	old     map[*Ruleset]oldRules
	marked  *chained // a rule from an old line that has a mark
	tags    Pos      // place of a tag or tagged of the file
	names   []PortName
	braces  int // braces that are open before tok
	orphans int // braces of anchors whose beginning had an error

	// the defaults that `set` gives to later rules
	blockPolicy   Return
	statePolicy   StatePolicy
	stateDefaults *StateOptions
	ignoreQueues  bool
	anyOrder      bool // set require-order no

	inTable bool // the addresses of a table are being read

	spec spec // the rule that is being read
}

// inRuleset is a name in a ruleset.
type inRuleset struct {
	set  *Ruleset
	name string
}

// bail is the panic of an error that ends a statement, and enough the panic of an error that ends
// all reading.
type (
	bail   struct{}
	enough struct{}
)

// file reads a file that was not included.
func (p *parser) file(name, text string) *Ruleset {
	p.set = &Ruleset{}
	p.macros = make(map[string]string)
	p.texts = make(map[string]string)
	p.inline = make(map[inRuleset]*Anchor)
	p.old = make(map[*Ruleset]oldRules)
	p.blockPolicy = ReturnDrop
	p.statePolicy = DefaultPolicy
	func() {
		defer func() {
			if r := recover(); r != nil && r != (enough{}) {
				panic(r)
			}
		}()
		p.include(name, text)
		p.flushOld()
		p.checkPools(p.set)
		p.checkMarks()
	}()
	if p.set.Options.StatePolicy == IfBound {
		floating(p.set)
	}
	p.set.Names = p.names
	return p.set
}

// floating gives rules before `set state-policy if-bound` the policy with which they were read.
func floating(set *Ruleset) {
	for i := range set.Rules {
		r := &set.Rules[i]
		if r.State != NoState && r.StateOpts.Policy == DefaultPolicy {
			r.StateOpts.Policy = Floating
		}
		if r.Anchor != nil && r.Anchor.Body != nil {
			floating(r.Anchor.Body)
		}
	}
}

// include reads the statements of a file.
func (p *parser) include(name, text string) {
	lex, tok, braces := p.lex, p.tok, p.braces
	p.nested++
	p.texts[name] = text
	p.lex, p.braces = newLexer(name, text, p.macro), 0
	p.spend(len(text), Pos{name, 1, 1})
	p.tok = p.lex.next()
	p.statements(p.anchors)
	p.nested--
	p.lex, p.tok, p.braces = lex, tok, braces
}

// spent is the number of bytes read: of files, and of macros for each use. A short file that
// often uses a long macro would take much memory. pools is the number of addresses in the pools
// of rules.
type spent struct{ text, macros, pools int }

// most is the largest number of bytes to read.
func (s *spent) most() int { return min(maxText, 1<<19+9*s.text) }

func (s *spent) over() bool { return s.text+s.macros > s.most() }

// spend counts text as it is read.
func (p *parser) spend(n int, pos Pos) {
	if p.spent.text += n; p.spent.over() {
		p.limitf(pos, enough{}, "macros and files expand to more than %d bytes", p.spent.most())
	}
}

// macro returns the value of a macro.
func (p *parser) macro(name string) (string, error) {
	value, ok := p.source.Macros[name]
	if !ok {
		value, ok = p.macros[name]
	}
	if !ok {
		return "", fmt.Errorf("macro '%s' not defined", name)
	}
	if p.spent.macros += len(value); p.spent.over() {
		return "", fmt.Errorf("macros and files expand to more than %d bytes", p.spent.most())
	}
	return value, nil
}

// errorf records an error.
func (p *parser) errorf(pos Pos, format string, args ...any) {
	p.record(pos, p.spent.over(), fmt.Sprintf(format, args...))
}

// limitf records an error of a file that is correct, but too large. It gives up the statement or
// the whole file.
func (p *parser) limitf(pos Pos, giveUp any, format string, args ...any) {
	p.record(pos, true, fmt.Sprintf(format, args...))
	panic(giveUp)
}

// lineAt returns the line of a place, without its end.
func (p *parser) lineAt(pos Pos) string {
	line := p.texts[pos.File]
	for range pos.Line - 1 {
		_, line, _ = strings.Cut(line, "\n")
	}
	line, _, _ = strings.Cut(line, "\n")
	return strings.TrimSuffix(line, "\r")
}

func (p *parser) record(pos Pos, limit bool, message string) {
	line := p.lineAt(pos)
	pos.Column = min(pos.Column, len(line)+1)
	p.errs = append(p.errs, Error{Pos: pos, Line: line, Message: message, Limit: limit})
	if len(p.errs) == maxErrors {
		panic(enough{})
	}
}

// failf records an error and gives up the statement.
func (p *parser) failf(pos Pos, format string, args ...any) {
	p.errorf(pos, format, args...)
	panic(bail{})
}

// expected fails with an error about the next token.
func (p *parser) expected(what string) {
	if p.tok.kind == tokBad {
		p.failf(p.tok.pos, "%s", p.tok.text)
	}
	p.failf(p.tok.pos, "expected %s, found %s", what, p.tok)
}

// String names a token, for errors.
func (t token) String() string {
	switch text := shorten(t.text); t.kind {
	case tokEOF:
		return "the end of the file"
	case tokNewline:
		return "the end of the line"
	case tokString:
		return `"` + text + `"`
	default:
		return "`" + text + "`"
	}
}

// shorten returns the beginning of a long text.
func shorten(s string) string { return cut(s, 40) }

// cut returns the first bytes of a text.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// next takes the next token.
func (p *parser) next() {
	if p.tok.kind == tokOp {
		switch p.tok.text {
		case "{":
			p.braces++
		case "}":
			p.braces--
		}
	}
	p.tok = p.lex.next()
}

// at reports whether the next token is a word.
func (p *parser) at(word string) bool { return p.tok.kind == tokWord && p.tok.text == word }

// atOp reports whether the next token is an operator.
func (p *parser) atOp(op string) bool { return p.tok.kind == tokOp && p.tok.text == op }

// accept takes a word if it is next.
func (p *parser) accept(word string) bool {
	if !p.at(word) {
		return false
	}
	p.next()
	return true
}

// acceptOp takes an operator if it is next.
func (p *parser) acceptOp(op string) bool {
	if !p.atOp(op) {
		return false
	}
	p.next()
	return true
}

// word takes a word, which must be next.
func (p *parser) word(word string) {
	if !p.accept(word) {
		p.expected("`" + word + "`")
	}
}

// op takes an operator, which must be next.
func (p *parser) op(op string) {
	if !p.acceptOp(op) {
		p.expected("`" + op + "`")
	}
}

// newlines skips ends of lines, as between braces.
func (p *parser) newlines() {
	for p.tok.kind == tokNewline {
		p.next()
	}
}

// ends reports whether a statement may end here.
func (p *parser) ends() bool {
	return p.tok.kind == tokNewline || p.tok.kind == tokEOF || p.anchors > 0 && p.atOp("}")
}

// isName reports whether the next token can be a name.
func (p *parser) isName() bool {
	return p.tok.kind == tokString || p.tok.kind == tokWord && !keywords[p.tok.text]
}

// name takes a name, which is quoted or not a keyword.
func (p *parser) name(what string) string {
	if !p.isName() {
		if p.tok.kind == tokWord {
			p.failf(p.tok.pos, "expected %s, found `%s`, which is a keyword; if it is meant, quote it", what, p.tok.text)
		}
		p.expected(what)
	}
	s := p.tok.text
	p.next()
	return s
}

// number takes a number from 0 to limit.
func (p *parser) number(what string, limit int64) int64 {
	if p.tok.kind != tokNumber {
		p.expected(what)
	}
	n := p.tok.number
	if n < 0 {
		p.failf(p.tok.pos, "only positive values permitted")
	}
	if n > limit {
		p.failf(p.tok.pos, "%d is too large for %s; give at most %d", n, what, limit)
	}
	p.next()
	return n
}

// list reads the items between braces, one by one. A single item needs no braces.
func (p *parser) list(item func()) {
	if !p.atOp("{") {
		item()
		return
	}
	p.next()
	p.newlines()
	for n := 0; ; n++ {
		if n == maxList {
			p.limitf(p.tok.pos, bail{}, "a list may have %d items at most; use a table", maxList)
		}
		item()
		p.newlines()
		if p.acceptOp("}") {
			return
		}
		if p.acceptOp(",") {
			p.newlines()
		}
	}
}

// starters are the words that only begin a statement.
var starters = wordSet("pass", "block", "match", "anchor", "antispoof", "set", "table", "load", "include", "ether",
	"nat", "rdr", "binat", "altq", "scrub", "nat-anchor", "rdr-anchor", "binat-anchor", "scrub-anchor", "dummynet-anchor")

// statements reads statements up to the end of the file, or up to the brace that closes an
// anchor's body. depth is the number of bodies around this file.
func (p *parser) statements(depth int) {
	for {
		p.newlines()
		switch {
		case p.tok.kind == tokEOF:
			return
		case !p.atOp("}"):
			p.statement()
		case p.orphans > 0:
			p.orphans--
			p.next()
			p.braces++
		case p.anchors > depth:
			return
		default:
			p.errorf(p.tok.pos, "`}` closes nothing")
			p.next()
			p.braces++
		}
	}
}

// statement reads one statement.
func (p *parser) statement() {
	braces, anchor := p.braces, p.at("anchor")
	defer func() {
		switch r := recover(); r {
		case nil:
		case bail{}:
			p.skip(braces, anchor)
		default:
			panic(r)
		}
	}()
	p.dispatch()
	if !p.ends() {
		p.expected("the end of the line")
	}
}

// skip moves behind a statement that had an error: to the end of its line, or of the line in
// which its braces are closed. If they are not closed, it moves to a line that begins like a
// statement.
func (p *parser) skip(braces int, anchor bool) {
	for p.tok.kind != tokEOF {
		if p.tok.first && p.tok.kind == tokWord && starters[p.tok.text] && p.braces > braces {
			break
		}
		if p.braces <= braces && (p.tok.kind == tokNewline || p.anchors > 0 && p.atOp("}")) {
			return
		}
		p.next()
	}
	if anchor && p.braces > braces {
		// the tokens that follow are the anchor's body
		p.orphans += p.braces - braces
	} else {
		p.braces = braces
	}
}

// dispatch reads a statement by its first word.
func (p *parser) dispatch() {
	if p.tok.kind == tokBad || p.tok.kind != tokWord && p.tok.kind != tokString {
		p.expected("a rule, an option, a table or a macro")
	}
	first := p.tok
	p.next()
	if p.atOp("=") {
		p.define(first)
		return
	}
	if first.kind == tokString {
		p.failf(first.pos, "expected a rule, an option, a table or a macro, found %s", first)
	}
	if why, ok := outside[first.text]; ok {
		if !p.ignores(first.pos, first.text) {
			p.errorf(first.pos, "%s: %s", first.text, why)
		}
		p.skipLine()
		return
	}
	switch first.text {
	case "pass", "block", "match":
		p.rule(first)
	case "anchor":
		p.anchor(first)
	case "set":
		p.option(first)
	case "table":
		p.table(first)
	case "antispoof":
		p.antispoof(first)
	case "include":
		p.includeFile()
	case "load":
		p.load(first)
	case "ether":
		p.ether(first)
	case "nat", "rdr", "binat":
		p.oldNAT(first, first, false)
	case "scrub":
		p.oldScrub(first, first, false)
	case "nat-anchor", "rdr-anchor", "binat-anchor", "scrub-anchor":
		p.oldAnchor(first)
	case "dummynet-anchor":
		p.set.Ignored = append(p.set.Ignored, Idle{Pos: first.pos, Word: first.text, Why: "no anchor has rules of dummynet here"})
		p.skipLine()
	case "no":
		kind := p.tok
		switch {
		case p.accept("nat"), p.accept("rdr"), p.accept("binat"):
			p.oldNAT(first, kind, true)
		case p.accept("scrub"):
			p.oldScrub(first, kind, true)
		default:
			p.expected("`nat`, `rdr`, `binat` or `scrub`")
		}
	case "state", "source":
		if !p.at("limiter") {
			p.failf(first.pos, "expected a rule, an option, a table or a macro, found %s", first)
		}
		p.limiter(first)
	default:
		p.failf(first.pos, "expected a rule, an option, a table or a macro, found %s", first)
	}
}

// skipLine skips the rest of a statement.
func (p *parser) skipLine() {
	braces := p.braces
	for p.tok.kind != tokEOF && (p.braces > braces || !p.ends()) {
		p.next()
	}
	if p.braces > braces {
		p.expected("`}`")
	}
}

// define reads the value of a macro.
func (p *parser) define(name token) {
	if name.kind == tokWord && keywords[name.text] {
		p.failf(name.pos, "`%s` is a keyword; give the macro another name", name.text)
	}
	if strings.ContainsAny(name.text, " \t\r\n\v\f") {
		p.failf(name.pos, "macro name cannot contain whitespace")
	}
	p.next()
	var value strings.Builder
	for n := 0; n == 0 || !p.ends(); n++ {
		if p.tok.kind != tokNumber && !p.isName() {
			if p.tok.kind == tokBad || p.tok.kind == tokNewline || p.tok.kind == tokEOF {
				p.expected("the value of the macro")
			}
			p.failf(p.tok.pos, "expected the value of the macro, found %s; quote the value", p.tok)
		}
		if n > 0 {
			value.WriteByte(' ')
		}
		value.WriteString(p.tok.text)
		if value.Len() > maxMacro {
			p.limitf(name.pos, bail{}, "the value of a macro may have %d bytes at most", maxMacro)
		}
		p.next()
	}
	p.macros[name.text] = value.String()
	if p.source.Defined != nil {
		p.source.Defined(name.text, value.String())
	}
}

// open returns the contents of a file.
func (p *parser) open(name string) (string, error) {
	if p.source.Open == nil {
		return "", errors.New("files cannot be read here")
	}
	text, err := p.source.Open(name)
	return string(text), err
}

// includeFile reads `include "file"` and the file.
func (p *parser) includeFile() {
	pos := p.tok.pos
	name := p.name("the name of a file in quotes")
	if !p.ends() {
		p.expected("the end of the line")
	}
	if p.nested >= maxNested {
		p.limitf(pos, bail{}, "failed to include file %s: files may include each other %d deep", name, maxNested)
	}
	text, err := p.open(name)
	if err != nil {
		p.failf(pos, "failed to include file %s: %v", name, err)
	}
	p.include(name, text)
}

// load reads `load anchor "name" from "file"` and the file.
func (p *parser) load(first token) {
	p.word("anchor")
	pos := p.tok.pos
	name := p.anchorName()
	p.word("from")
	filePos := p.tok.pos
	file := p.name("the name of a file in quotes")
	if p.nested >= maxNested {
		p.limitf(filePos, bail{}, "cannot load %s: files may load each other %d deep", file, maxNested)
	}
	text, err := p.open(file)
	if err != nil {
		p.failf(filePos, "cannot load %s: %v", file, err)
	}
	if strings.HasSuffix(name, "*") {
		p.failf(pos, "anchor '%s' invalid; rules are loaded into one anchor", name)
	}
	// As in pfctl, the loaded file is independent: it has neither this file's macros nor its
	// settings.
	sub := &parser{source: p.source, spent: p.spent, rules: p.rules, nested: p.nested}
	loaded := sub.file(file, text)
	for _, e := range sub.errs {
		if p.errs = append(p.errs, e); len(p.errs) == maxErrors {
			panic(enough{})
		}
	}
	if len(sub.errs) == 0 { // the marks of packets are shared by both files
		p.marked, p.tags = cmp.Or(p.marked, sub.marked), cmp.Or(p.tags, sub.tags)
	}
	p.set.Loads = append(p.set.Loads, AnchorLoad{Pos: first.pos, Name: name, File: file, Ruleset: loaded})
}

// anchorName takes the name of an anchor.
func (p *parser) anchorName() string {
	pos := p.tok.pos
	name := p.name("the name of an anchor")
	switch {
	case name == "":
		p.failf(pos, "anchor name must not be empty")
	case len(name) > maxAnchorName:
		p.failf(pos, "anchor name is longer than %d", maxAnchorName)
	case name[0] == '_' || strings.Contains(name, "/_"):
		p.failf(pos, "anchor names beginning with '_' are reserved for internal use")
	case strings.HasSuffix(name, "/"):
		p.failf(pos, "bad anchor name %s; it ends with a slash", name)
	}
	return name
}

// tableName takes `<name>`.
func (p *parser) tableName() string {
	p.op("<")
	pos, name := p.tok.pos, p.tok.text
	if p.tok.kind != tokWord && p.tok.kind != tokString || name == "" {
		p.expected("the name of a table")
	}
	if len(name) > maxTableName {
		p.failf(pos, "table name '%s' too long, max %d chars", shorten(name), maxTableName)
	}
	p.next()
	p.op(">")
	return name
}

// interfaceName takes the name of a port or of a group of ports, or "any". word is the word in
// front of it, or "" if a name that belongs to no port needs no note.
func (p *parser) interfaceName(word string) string {
	pos := p.tok.pos
	if p.at("rdomain") {
		p.errorf(pos, "rdomain: %s", outside["rdomain"])
		p.next()
		p.number("the number of a routing domain", 255)
		return ""
	}
	if p.accept("any") {
		return "any"
	}
	name := p.name("a port, a group of ports or `any`")
	if name == "" {
		p.failf(pos, "expected a port, a group of ports or `any`, found \"\"")
	}
	if len(name) > maxInterface && !strings.HasPrefix(name, plugged) {
		p.failf(pos, "interface name '%s' too long, max %d chars", shorten(name), maxInterface)
	}
	p.named(pos, word, name)
	return name
}

// The words of PortName, in addition to Addresses.
const (
	wordOn          = "on"
	wordReceived    = "received-on"
	wordSkip        = "set skip on"
	SetLogInterface = "set loginterface"
	wordAntispoof   = "antispoof for"
)

// NotIt ends the Word of a name that is excluded: "on !".
const NotIt = " !"

func negated(word string, not bool) string {
	if not {
		return word + NotIt
	}
	return word
}

// named records the use of a name of a port, an interface or a group. The limit of rules applies
// to names, too: further names are not recorded.
func (p *parser) named(pos Pos, word, name string) {
	if word != "" && len(p.names) < maxRules && !p.source.Kept {
		p.names = append(p.names, PortName{pos, word, name})
	}
}

// interfaces reads one interface or a list of them.
func (p *parser) interfaces(to []Interface, word string) []Interface {
	p.list(func() {
		not := p.acceptOp("!")
		to = append(to, Interface{p.interfaceName(negated(word, not)), not})
	})
	return to
}

// wordSet makes a set of words.
func wordSet(words ...string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}

// Why parts of pf.conf make no sense on a bridge.
const (
	needsQueues = "bandwidth queues belong to the host; see tc(8), or set ignore queue"
)

// outside has the statements and options of pf that make no sense on a bridge, with the reason.
// docs/pf.md lists them with the same words.
var outside = map[string]string{
	"rtable":  "the host chooses the table of routes; see ip-rule(8)",
	"rdomain": "routing domains are VRFs of the host; name ports instead",
	"route":   "Linux routes have no labels; list the networks in a table",
	"os":      "there are no fingerprints of operating systems",
	"queue":   needsQueues, "set queue": needsQueues, "altq": needsQueues, "dnpipe": needsQueues, "dnqueue": needsQueues,
	"dummynet":            needsQueues,
	"set delay":           "delays packets; see tc-netem(8)",
	"max-pkt-rate":        "rules count no packet rates; --rate-in, --rate-out and storm limits of ports limit rates",
	"max-pkt-size":        "packet sizes are not compared",
	"set syncookies":      "answers for hosts without a rule; use synproxy state",
	"prefer-ipv6-nexthop": "a next hop has the family of its packets; write a rule for inet, and one for inet6",
	"bridge-to":           "frames go to their destination addresses",
}
