// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"strconv"
	"strings"
)

// kind is the kind of a token.
type kind uint8

const (
	tokEOF     kind = iota
	tokNewline      // the end of a line, unless it is continued
	tokWord         // a keyword or a name
	tokString       // text in quotes, which is never a keyword
	tokNumber
	tokOp  // = != < <= > >= <> >< -> and single characters
	tokBad // text is an error message
)

// token is a word of the file.
type token struct {
	kind   kind
	first  bool   // the first one on its line
	text   string // as written, without quotes; for a number, in decimal
	number int64  // of tokNumber
	pos    Pos    // for text of a macro, the place where the macro is used
}

// cursor is the position of a lexer. After the name of a macro its value is read first.
// The text behind the name joins the value's last word, as in pf: $ext_if:network is one
// word.
type cursor struct {
	at      int // next byte of the text
	line    int
	start   int // where the line begins
	macro   string
	macroAt int // next byte of the macro's value
}

// lexer splits a file into tokens.
type lexer struct {
	cursor
	name, text string
	macroPos   Pos // place of the macro whose value is read
	newline    bool
	lookup     func(name string) (string, error)
}

func newLexer(name, text string, lookup func(string) (string, error)) *lexer {
	return &lexer{cursor: cursor{line: 1}, name: name, text: text, newline: true, lookup: lookup}
}

// The bytes of words: first bytes, and later bytes. Unlike in pf, quotes and backslashes
// cannot be later bytes: printed text with them could not be read again.
var wordStart, wordPart = wordBytes()

func wordBytes() (start, part [256]bool) {
	for c := byte('!'); c <= '~'; c++ {
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		start[c] = alnum || c == ':' || c == '_'
		part[c] = alnum || !strings.ContainsRune(`(){}<>!=/#,"'\`, rune(c))
	}
	return start, part
}

// raw returns the next byte without taking it, or -1 at the end.
func (l *lexer) raw() int {
	if l.macroAt < len(l.macro) {
		return int(l.macro[l.macroAt])
	}
	if l.at < len(l.text) {
		return int(l.text[l.at])
	}
	return -1
}

// peek does the same, but skips the ends of continued lines. As in pf, a backslash before
// a space or a comment is ignored, and continues no line.
func (l *lexer) peek() int {
	c := l.raw()
	for c == '\\' && l.macroAt >= len(l.macro) {
		rest := strings.TrimPrefix(l.text[l.at+1:], "\r")
		if strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, "\t") || strings.HasPrefix(rest, "#") {
			l.at++
			return l.raw()
		}
		if !strings.HasPrefix(rest, "\n") {
			break
		}
		l.at = len(l.text) - len(rest) + 1
		l.line, l.start = l.line+1, l.at
		c = l.raw()
	}
	return c
}

// take takes the next byte. There must be one.
func (l *lexer) take() {
	if l.macroAt < len(l.macro) {
		l.macroAt++
		return
	}
	if l.text[l.at] == '\n' {
		l.line, l.start = l.line+1, l.at+1
	}
	l.at++
}

// pos returns the place of the next byte.
func (l *lexer) pos() Pos {
	if l.macroAt < len(l.macro) {
		return l.macroPos
	}
	return Pos{l.name, l.line, l.at - l.start + 1}
}

// next returns the next token. After the last token it returns tokEOF for ever.
func (l *lexer) next() token {
	for {
		c := l.peek()
		for c == ' ' || c == '\t' || c == '\r' {
			l.take()
			c = l.peek()
		}
		if c == '#' {
			for c != '\n' && c != -1 {
				l.take()
				c = l.peek()
			}
		}
		t := token{pos: l.pos(), first: l.newline}
		l.newline = false
		if c == '$' && l.macroAt >= len(l.macro) {
			if err := l.expand(t.pos); err != nil {
				t.kind, t.text = tokBad, err.Error()
				return t
			}
			l.newline = t.first
			continue
		}
		l.scan(c, &t)
		return t
	}
}

// expand reads the name of a macro and continues with its value.
func (l *lexer) expand(pos Pos) error {
	l.take()
	begin := l.at
	for l.at < len(l.text) && (wordStart[l.text[l.at]] && l.text[l.at] != ':') {
		l.at++
	}
	value, err := l.lookup(l.text[begin:l.at])
	l.macro, l.macroAt, l.macroPos = value, 0, pos
	return err
}

// scan reads the token that begins with c.
func (l *lexer) scan(c int, t *token) {
	switch {
	case c == -1:
		t.kind = tokEOF
	case c == '\n':
		l.take()
		t.kind, l.newline = tokNewline, true
	case c == '"' || c == '\'':
		l.quoted(c, t)
	case (c == '-' || '0' <= c && c <= '9') && l.number(t):
	case wordStart[byte(c)]:
		t.kind, t.text = tokWord, l.word()
	default:
		l.take()
		t.kind, t.text = tokOp, operator(byte(c), l.peek())
		if len(t.text) == 2 {
			l.take()
		} else if c > '~' {
			// a non-ASCII character is one token
			b := []byte{byte(c)}
			for n := l.raw(); n >= 0x80 && n < 0xc0; n = l.raw() {
				b = append(b, byte(n))
				l.take()
			}
			t.text = string(b)
		}
	}
}

// operator returns the operator that begins with c, if next is the byte behind c.
func operator(c byte, next int) string {
	switch {
	case c == '!' && next == '=':
		return "!="
	case c == '<' && next == '=':
		return "<="
	case c == '>' && next == '=':
		return ">="
	case c == '<' && next == '>':
		return "<>"
	case c == '>' && next == '<':
		return "><"
	case c == '-' && next == '>':
		return "->"
	}
	return string([]byte{c})
}

// quoted reads the text between quotes. As in pf, a literal quote or space has a backslash
// before it, and ends of lines are left out.
func (l *lexer) quoted(quote int, t *token) {
	l.take()
	t.kind = tokString
	if l.macroAt >= len(l.macro) {
		// Usually there is nothing to leave out.
		if n := strings.IndexAny(l.text[l.at:], "\"'\\\n\x00"); n >= 0 && l.text[l.at+n] == byte(quote) {
			t.text = l.text[l.at : l.at+n]
			l.at += n + 1
			return
		}
	}
	var b strings.Builder
	for {
		c := l.raw()
		if c == -1 {
			t.kind, t.text = tokBad, "reached end of file while parsing quoted string that begins here"
			return
		}
		l.take()
		switch {
		case c == quote:
			t.text = b.String()
			return
		case c == '\n':
			continue
		case c == 0:
			t.kind, t.text = tokBad, "a string in quotes has a zero byte"
			return
		case c == '\\':
			switch n := l.raw(); n {
			case quote, ' ', '\t':
				c = n
				l.take()
			case '\n':
				l.take()
				continue
			}
		}
		b.WriteByte(byte(c))
	}
}

// number reads a number, if one follows: 10 is a number, 10.0.0.1 is a word.
func (l *lexer) number(t *token) bool {
	saved, from := l.cursor, l.at
	var buf [24]byte
	digits := buf[:0]
	if l.peek() == '-' {
		digits = append(digits, '-')
		l.take()
	}
	c := l.peek()
	for ; '0' <= c && c <= '9'; c = l.peek() {
		digits = append(digits, byte(c))
		l.take()
	}
	ends := c == -1 || strings.IndexByte(" \t\r\n),/}=", byte(c)) >= 0
	if !ends || string(digits) == "-" {
		l.cursor = saved
		return false
	}
	t.kind = tokNumber
	if len(digits) == l.at-from && saved.macroAt >= len(saved.macro) {
		t.text = l.text[from:l.at]
	} else {
		t.text = string(digits)
	}
	n, err := strconv.ParseInt(t.text, 10, 64)
	if err != nil {
		t.kind, t.text = tokBad, fmt.Sprintf("%q is an invalid number: out of range", t.text)
		return true
	}
	if c := digits[0]; c == '0' || c == '-' {
		t.text = strconv.FormatInt(n, 10) // leading zeros do not make it octal
	}
	t.number = n
	return true
}

// word reads a word.
func (l *lexer) word() string {
	if l.macroAt >= len(l.macro) {
		i := l.at
		for i < len(l.text) && wordPart[l.text[i]] {
			i++
		}
		if i == len(l.text) || l.text[i] != '\\' {
			word := l.text[l.at:i]
			l.at = i
			return word
		}
	}
	var b []byte
	for c := l.peek(); c >= 0 && wordPart[byte(c)]; c = l.peek() {
		b = append(b, byte(c))
		l.take()
	}
	return string(b)
}
