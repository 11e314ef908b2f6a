// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxErrors limits the bad lines of a file that are reported.
const maxErrors = 10

// ParseRule parses a rule from the words of a command line. A rule without "on" applies to port; if
// port is "", "on" is mandatory. The error is an [Error] without file and line.
//
// Like ifconfig(8), ParseRule accepts the words after the port in any order; unlike it, it refuses
// duplicate words. The word "rule" may come first, as in hostname.if(5), and "in/out" means both
// directions, as ifconfig prints them.
func ParseRule(words []string, port string) (Rule, error) {
	p := parser{port: port, end: 1}
	for _, text := range words {
		p.words = append(p.words, word{text, p.end})
		p.end += utf8.RuneCountInString(text) + 1
	}
	r, err := p.rule()
	return r, located(err, Error{Text: strings.Join(words, " ")})
}

// Next returns the words that can continue the beginning of a rule. It returns none if a name or an
// address must follow, or if the words do not begin a rule.
func Next(words []string, port string) (next []string) {
	p := parser{port: port}
	for _, text := range append(slices.Clone(words), "") { // which is not a word of any rule
		p.words = append(p.words, word{text, 1})
	}
	if _, err := p.rule(); err == nil || len(p.words) != 1 {
		return nil
	}
	for _, text := range p.expected {
		text, _, _ = strings.Cut(text, " ") // "on PORT"
		next = append(next, text)
	}
	return next
}

// ParseLine parses the rule on a line like ParseFile. ok is false for a line without a rule.
func ParseLine(line, port string) (r Rule, ok bool, err error) {
	if len(line) >= bufio.MaxScanTokenSize {
		return r, false, Error{Column: 1, Msg: tooLong}
	}
	p := parser{port: port}
	if p.words, p.end = split(line); len(p.words) == 0 {
		return r, false, nil
	}
	r, err = p.rule()
	return r, err == nil, located(err, Error{Text: line})
}

// tooLong is the message for a line above the length limit.
const tooLong = "the line is too long; give one rule on each line"

// ParseFile parses the rules of a file, one on each line, like ParseRule. A word that begins with #
// starts a comment. The errors use the name. Unless reading failed, they are [Errors], with at most
// the first ten bad lines.
func ParseFile(name string, r io.Reader, port string) ([]Rule, error) {
	var rules []Rule
	var bad Errors
	lines := bufio.NewScanner(r)
	line := 0
	for len(bad) < maxErrors && lines.Scan() {
		line++
		rule, ok, err := ParseLine(lines.Text(), port)
		var e Error
		if errors.As(err, &e) {
			e.File, e.Line = name, line
			bad = append(bad, e)
		}
		if ok {
			rules = append(rules, rule)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		bad = append(bad, Error{File: name, Line: line + 1, Column: 1, Msg: tooLong})
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if bad != nil {
		return nil, bad
	}
	return rules, nil
}

// located returns err with the file, line and text from where.
func located(err error, where Error) error {
	var e Error
	if !errors.As(err, &e) {
		return err
	}
	where.Column, where.Msg = e.Column, e.Msg
	return where
}

// A word is a word of a rule, with its column.
type word struct {
	text   string
	column int
}

// split returns the words of a line up to its comment, and the column after them.
func split(line string) (words []word, end int) {
	end = 1
	column, start := 0, -1
	close := func(i int) {
		if start >= 0 {
			text := line[start:i]
			words = append(words, word{text, end})
			end, start = end+utf8.RuneCountInString(text), -1
		}
	}
	for i, c := range line {
		column++
		switch {
		case strings.ContainsRune(" \t\r", c): // the separators of ifconfig
			close(i)
		case start >= 0:
		case c == '#':
			return words, end
		default:
			start, end = i, column
		}
	}
	close(len(line))
	return words, end
}

// A parser parses the words of one rule.
type parser struct {
	words []word // the remaining words
	end   int    // the column after the last
	port  string // of rules without one

	expected []string // words that would have been valid instead of the last unexpected one
}

func (p *parser) at(text string) bool { return len(p.words) > 0 && p.words[0].text == text }

// accept consumes the next word if it is text.
func (p *parser) accept(text string) bool {
	if !p.at(text) {
		return false
	}
	p.words = p.words[1:]
	return true
}

// fault returns an error at a word.
func fault(w word, format string, args ...any) error {
	text := printable(w.text)
	if text == "" {
		text = `""`
	}
	return Error{Column: w.column, Msg: text + ": " + fmt.Sprintf(format, args...)}
}

// unexpected returns the error for the next word, or for a missing one.
func (p *parser) unexpected(expected ...string) error {
	p.expected = expected
	give := "give " + alternatives(expected)
	if len(expected) == 0 {
		give = "the rule is complete without it"
	}
	if len(p.words) == 0 {
		return Error{Column: p.end, Msg: "the rule ends too early; " + give}
	}
	return fault(p.words[0], "not expected here; %s", give)
}

// alternatives returns "a, b or c".
func alternatives(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// argument consumes the argument of the word name; remedy describes a valid one.
func (p *parser) argument(name word, remedy string) (word, error) {
	if len(p.words) == 0 {
		return word{}, Error{Column: p.end, Msg: name.text + ": nothing follows it; " + remedy}
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, nil
}

func (p *parser) rule() (Rule, error) {
	p.accept("rule")
	r := Rule{Direction: In | Out, Port: p.port}
	switch {
	case p.accept("block"):
		r.Action = Block
	case p.accept("pass"):
		r.Action = Pass
	default:
		return Rule{}, p.unexpected("block", "pass")
	}
	expected := []string{"on PORT"}
	switch {
	case p.accept("in"):
		r.Direction = In
	case p.accept("out"):
		r.Direction = Out
	case p.accept("in/out"):
	default:
		expected = []string{"in", "out", "on PORT"}
	}
	switch {
	case p.at("on"):
		if err := p.on(&r); err != nil {
			return Rule{}, err
		}
		expected = nil
	case p.port == "":
		return Rule{}, p.unexpected(expected...)
	}
	for len(p.words) > 0 {
		if err := p.option(&r, expected); err != nil {
			return Rule{}, err
		}
		expected = nil
	}
	return r, nil
}

// on parses "on PORT".
func (p *parser) on(r *Rule) error {
	on := p.words[0]
	p.words = p.words[1:]
	const remedy = "give the name of a port"
	w, err := p.argument(on, remedy)
	if err != nil {
		return err
	}
	n := len(w.text)
	quoted := n > 2 && w.text[0] == '"' && w.text[n-1] == '"' // as portWord prints it
	if quoted {
		w.text = w.text[1 : n-1]
	}
	if err := name(on, w, remedy, quoted); err != nil {
		return err
	}
	if p.port != "" && w.text != p.port {
		return fault(w, "the rule is for port %s; give on %s, or leave it out", printable(p.port), printable(p.port))
	}
	r.Port = w.text
	return nil
}

// An option is a word of a rule after its port.
type option struct {
	name  string
	arp   bool                             // only after arp or rarp
	given func(*Rule) bool                 // reports whether the option, or one that excludes it, was given
	take  func(*parser, *Rule, word) error // parses the option's arguments
}

// options are in the order of the synopsis of ifconfig(8).
var options = []option{
	macOption("src", false, func(r *Rule) **MAC { return &r.Src }),
	macOption("dst", false, func(r *Rule) **MAC { return &r.Dst }),
	{"tag", false, func(r *Rule) bool { return r.Tag != "" }, func(p *parser, r *Rule, name word) (err error) {
		r.Tag, err = p.tag(name)
		return err
	}},
	arpOption("arp", OnlyARP),
	arpOption("rarp", OnlyRARP),
	opOption("request", Request),
	opOption("reply", Reply),
	macOption("sha", true, func(r *Rule) **MAC { return &r.SHA }),
	ipOption("spa", func(r *Rule) *netip.Addr { return &r.SPA }),
	macOption("tha", true, func(r *Rule) **MAC { return &r.THA }),
	ipOption("tpa", func(r *Rule) *netip.Addr { return &r.TPA }),
}

func macOption(name string, arp bool, field func(*Rule) **MAC) option {
	given := func(r *Rule) bool { return *field(r) != nil }
	return option{name, arp, given, func(p *parser, r *Rule, name word) (err error) {
		*field(r), err = p.mac(name)
		return err
	}}
}

func ipOption(name string, field func(*Rule) *netip.Addr) option {
	given := func(r *Rule) bool { return field(r).IsValid() }
	return option{name, true, given, func(p *parser, r *Rule, name word) (err error) {
		*field(r), err = p.ip(name)
		return err
	}}
}

func arpOption(name string, arp ARP) option {
	given := func(r *Rule) bool { return r.ARP != 0 }
	return option{name, false, given, func(_ *parser, r *Rule, _ word) error { r.ARP = arp; return nil }}
}

func opOption(name string, op Op) option {
	given := func(r *Rule) bool { return r.Op != 0 }
	return option{name, true, given, func(_ *parser, r *Rule, _ word) error { r.Op = op; return nil }}
}

// option parses one option. The error lists the options that r may still have, and also.
func (p *parser) option(r *Rule, also []string) error {
	w := p.words[0]
	expected := also
	for _, o := range options {
		belongs := !o.arp || r.ARP != 0
		switch {
		case o.name != w.text:
			if belongs && !o.given(r) {
				expected = append(expected, o.name)
			}
		case !belongs:
			return fault(w, "only after arp or rarp; give one of them before it")
		case o.given(r):
			return fault(w, "%s already; give one only", given(r, w.text))
		default:
			p.words = p.words[1:]
			return o.take(p, r, w)
		}
	}
	return p.unexpected(expected...)
}

// given names the part of r that excludes the word.
func given(r *Rule, text string) string {
	switch text {
	case "arp", "rarp":
		text = map[ARP]string{OnlyARP: "arp", OnlyRARP: "rarp"}[r.ARP]
	case "request", "reply":
		text = map[Op]string{Request: "request", Reply: "reply"}[r.Op]
	}
	return "the rule has " + text
}

// mac parses an address in the notation of ether_aton(3), where a byte may have one digit, or any
// other notation of [net.ParseMAC].
func (p *parser) mac(name word) (*MAC, error) {
	const remedy = "give six bytes such as 02:00:00:00:00:01"
	w, err := p.argument(name, remedy)
	if err != nil {
		return nil, err
	}
	if m, ok := etherAton(w.text); ok {
		return &m, nil
	}
	if m, err := net.ParseMAC(w.text); err == nil && len(m) == len(MAC{}) {
		return (*MAC)(m), nil
	}
	return nil, fault(w, "not a MAC address for %s; %s", name.text, remedy)
}

func etherAton(s string) (m MAC, ok bool) {
	digits := strings.Split(s, ":")
	if len(digits) != len(m) {
		return MAC{}, false
	}
	for i, d := range digits {
		b, err := strconv.ParseUint(d, 16, 8)
		if err != nil || len(d) > 2 {
			return MAC{}, false
		}
		m[i] = byte(b)
	}
	return m, true
}

func (p *parser) ip(name word) (netip.Addr, error) {
	const remedy = "give one such as 192.0.2.1"
	w, err := p.argument(name, remedy)
	if err != nil {
		return netip.Addr{}, err
	}
	a, err := netip.ParseAddr(w.text)
	switch {
	case err != nil:
		return netip.Addr{}, fault(w, "not an IPv4 address for %s; %s", name.text, remedy)
	case !a.Is4():
		return netip.Addr{}, fault(w, "an IPv6 address, and ARP has IPv4 only; %s", remedy)
	}
	return a, nil
}

func (p *parser) tag(tag word) (string, error) {
	remedy := fmt.Sprintf("give a name of 1 to %d bytes", MaxTag)
	w, err := p.argument(tag, remedy)
	if err != nil {
		return "", err
	}
	if len(w.text) > MaxTag {
		return "", fault(w, "a tag of %d bytes is too long; %s", len(w.text), remedy)
	}
	return w.text, name(tag, w, remedy, false)
}

// name returns an error for a name that a file of rules cannot contain, or that has control
// characters for a terminal.
func name(of, w word, remedy string, quoted bool) error {
	odd := func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsGraphic(c) }
	switch {
	case w.text == "":
		return fault(w, "no name for %s; %s", of.text, remedy)
	case w.text[0] == '#' && !quoted:
		return fault(w, "# begins a comment, not the name for %s; %s", of.text, remedy)
	case !utf8.ValidString(w.text) || strings.ContainsFunc(w.text, odd):
		return fault(w, "the name for %s has a character that is no letter, digit or sign; %s", of.text, remedy)
	}
	return nil
}
