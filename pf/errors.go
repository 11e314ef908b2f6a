// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxErrors is the largest number of errors of a file to report: people rarely read more.
const maxErrors = 20

// An Error is an error in a pf.conf.
type Error struct {
	Pos     Pos    // for text in a macro, the place where the macro is used
	Line    string // the line that Pos is in, without its end
	Message string // what is wrong, and what to write instead
	Limit   bool   // the text is correct, but exceeds a limit
	Missing bool   // the text is correct, but the datapath, or the host, cannot carry it out
}

// Error returns three lines, without the last newline: the place and the message, the
// line, and a caret below the place.
func (e Error) Error() string {
	line, at := excerpt(e.Line, min(max(e.Pos.Column-1, 0), len(e.Line)))
	before := line[:at]
	// A tab is as wide below as above, whatever the terminal's tab stops are.
	blank := strings.Map(func(c rune) rune {
		if c == '\t' {
			return c
		}
		return ' '
	}, before)
	return fmt.Sprintf("%s: %s\n    %s\n    %s^", e.Pos, printable(e.Message), printable(line), blank)
}

// Brief returns the place, the message and what to do, in one line.
func (e Error) Brief() string {
	remedy := ""
	if !strings.Contains(e.Message, "; ") {
		remedy = "; see pf.conf(5)"
	}
	return fmt.Sprintf("%s: %s%s", e.Pos, printable(e.Message), remedy)
}

// Brief returns the text of err in one line. For mistakes in rules it returns the first
// one, without its line and caret.
func Brief(err error) string {
	var list ErrorList
	if !errors.As(err, &list) || len(list) == 0 {
		return err.Error()
	}
	brief := list[0].Brief()
	if len(list) > 1 {
		brief += fmt.Sprintf(" (the first of %d mistakes)", len(list))
	}
	return strings.Replace(err.Error(), list.Error(), brief, 1)
}

// maxShown is the number of bytes of a line to show on each side of a mistake. If a
// terminal broke the line, the caret below would point nowhere.
const maxShown = 120

// excerpt returns the part of a line around a byte, and the byte's place in it. It returns
// a short line whole.
func excerpt(line string, at int) (string, int) {
	const gap = "..."
	if len(line) <= 2*maxShown {
		return line, at
	}
	if end := at + maxShown; end < len(line) {
		for !utf8.RuneStart(line[end]) {
			end--
		}
		line = line[:end] + gap
	}
	if begin := at - maxShown; begin > 0 {
		for begin < at && !utf8.RuneStart(line[begin]) {
			begin++
		}
		line, at = gap+line[begin:], at-begin+len(gap)
	}
	return line, at
}

// printable returns s with a mark for each control character, except tabs: a terminal
// might obey these.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\t' && !unicode.IsGraphic(c) {
			return unicode.ReplacementChar
		}
		return c
	}, s)
}

// String returns FILE:LINE:COLUMN.
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// An ErrorList has the errors of a pf.conf and the files that it includes, in reading
// order: at least one, at most 20.
type ErrorList []Error

// order sorts neighbouring errors of one file by place. Some errors are found only at the
// end of a rule.
func (list ErrorList) order() {
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Pos.File == list[0].Pos.File {
			n++
		}
		slices.SortStableFunc(list[:n], func(a, b Error) int {
			return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column))
		})
		list = list[n:]
	}
}

// OnlyLimits reports whether all errors are exceeded limits.
func (list ErrorList) OnlyLimits() bool {
	return !slices.ContainsFunc(list, func(e Error) bool { return !e.Limit })
}

// OnlyMissing reports whether all errors are about words that the datapath does not carry
// out.
func (list ErrorList) OnlyMissing() bool {
	return !slices.ContainsFunc(list, func(e Error) bool { return !e.Missing })
}

// Error returns the three lines of every error.
func (list ErrorList) Error() string {
	texts := make([]string, len(list))
	for i, e := range list {
		texts[i] = e.Error()
	}
	return strings.Join(texts, "\n")
}
