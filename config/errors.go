// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/agext/levenshtein"
)

// maxErrors limits the errors reported for a file.
const maxErrors = 20

// maxKeptErrors limits the errors kept for a file. The ones nearest to its beginning are reported.
const maxKeptErrors = 10 * maxErrors

// An Error is a mistake in a file.
type Error struct {
	At  Position
	Msg string
}

// Error returns the error on one line in the format of compilers, without control characters that a
// terminal might interpret.
func (e Error) Error() string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsGraphic(c) {
			return unicode.ReplacementChar
		}
		return c
	}, e.At.String()+": "+e.Msg)
}

// Errors are the mistakes in files, sorted by file and place. The list is never empty.
type Errors []Error

// Error returns all errors, one on each line.
func (list Errors) Error() string {
	lines := make([]string, len(list))
	for i, e := range list {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// faults collects the mistakes in files.
type faults struct {
	path  string // of the file that is being read, "" if several are compared
	list  Errors
	found map[string]int // by path, with the ones left out: only a count, so that a hostile file takes no memory
}

// add records an error at a place in a file.
func (f *faults) add(at Position, format string, args ...any) {
	if f.found == nil {
		f.found = map[string]int{}
	}
	if f.found[at.Path]++; f.found[at.Path] <= maxKeptErrors {
		f.list = append(f.list, Error{at, shortened(fmt.Sprintf(format, args...))})
	}
}

// shortened leaves out the middle of a message about a long text: the end has the advice.
func shortened(msg string) string {
	const begin, end = 400, 200
	if len(msg) <= begin+end {
		return msg
	}
	return strings.ToValidUTF8(msg[:begin], "") + "..." + strings.ToValidUTF8(msg[len(msg)-end:], "")
}

// collect appends to a list as long as the file has no error. After an error the list is not used,
// and its elements may be much larger than their text.
func collect[T any](f *faults, list []T, it T) []T {
	if f.list != nil {
		return nil
	}
	return append(list, it)
}

// offer is the function offer, as long as an error can still be reported.
func (f *faults) offer(name string, known func() []string) string {
	if f.found[f.path] >= maxKeptErrors {
		return ""
	}
	return offer(name, known())
}

// errors returns the first errors of each file, sorted by place, and the count of the others; nil
// if there are none.
func (f *faults) errors() (list Errors) {
	slices.SortStableFunc(f.list, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.At.Path, b.At.Path), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	told := 0 // of this file so far
	for i, e := range f.list {
		if told++; told <= maxErrors {
			list = append(list, e)
		}
		if i+1 < len(f.list) && f.list[i+1].At.Path == e.At.Path {
			continue
		}
		switch more := f.found[e.At.Path] - maxErrors; {
		case more == 1:
			list = append(list, Error{Position{Path: e.At.Path}, "1 more error"})
		case more > 1:
			list = append(list, Error{Position{Path: e.At.Path}, fmt.Sprintf("%d more errors", more)})
		}
		told = 0
	}
	return list
}

// offer suggests names for an unknown one: the nearest, or all known ones if none is near.
func offer(name string, known []string) string {
	const few = 8 // that fit on a line
	near := nearest(name, known)
	wrong := levenshtein.Distance(name[:min(len(name), longest)], near, nil)
	switch {
	case wrong <= min(3, len(near)/2) || len(name) > 1 && strings.HasPrefix(near, name):
		return "the nearest is " + near
	case len(known) <= few:
		return "there are " + strings.Join(known, ", ")
	}
	return "see config.md, which explains the files"
}

// longest is the length of the longest name that may be a misspelt one.
const longest = 64

// nearest returns the known name with the smallest edit distance from name. Of equally near names
// it prefers one with the same beginning, then the first.
func nearest(name string, known []string) string {
	name = name[:min(len(name), longest)]
	far := func(s string) int {
		d := 2 * levenshtein.Distance(name, s, nil)
		if name == "" || s[0] != name[0] {
			d++
		}
		return d
	}
	return slices.MinFunc(known, func(a, b string) int { return cmp.Compare(far(a), far(b)) })
}
