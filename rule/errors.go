// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"fmt"
	"strings"
	"unicode"
)

// An Error is a mistake in a rule.
type Error struct {
	File         string // "" for a rule without a file
	Line, Column int    // from 1; columns are characters, and a tab is one. Line is 0 without a file
	Text         string // the line, or the rule's words
	Msg          string // the mistake, and a valid alternative
}

// Error returns one line, FILE:LINE:COLUMN: message; without a file, only the message.
func (e Error) Error() string {
	if e.File == "" {
		return e.Msg
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// Detail returns three lines: the error, the source line, and a caret below the place.
func (e Error) Detail() string {
	// a tab below a tab has the same width on any terminal
	blank := strings.Map(func(c rune) rune {
		if c == '\t' {
			return c
		}
		return ' '
	}, firstRunes(e.Text, e.Column-1))
	return fmt.Sprintf("%s\n    %s\n    %s^\n", e.Error(), printable(e.Text), blank)
}

// firstRunes returns the first n characters of s, and spaces where s ends
// before.
func firstRunes(s string, n int) string {
	runes := []rune(s)
	if len(runes) < n {
		return s + strings.Repeat(" ", n-len(runes))
	}
	return string(runes[:n])
}

// printable returns s with a mark for each control character that a terminal might interpret,
// except tabs.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\t' && !unicode.IsGraphic(c) {
			return unicode.ReplacementChar
		}
		return c
	}, s)
}

// Errors are the mistakes in a file of rules, one for each bad line. The list is never empty.
type Errors []Error

// Error returns one line: the first error, and the number of the others.
func (list Errors) Error() string {
	switch n := len(list) - 1; n {
	case 0:
		return list[0].Error()
	case 1:
		return list[0].Error() + " (and 1 more error)"
	default:
		return fmt.Sprintf("%s (and %d more errors)", list[0].Error(), n)
	}
}

// Detail returns the Detail of every error.
func (list Errors) Detail() string {
	var b strings.Builder
	for _, e := range list {
		b.WriteString(e.Detail())
	}
	return b.String()
}
