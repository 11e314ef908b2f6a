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

// maxErrors is how many errors of a file are told.
const maxErrors = 20

// maxKeptErrors is how many are kept of a file, of which those nearest to its
// beginning are told.
const maxKeptErrors = 10 * maxErrors

// An Error is something wrong in a file.
type Error struct {
	At  Position
	Msg string
}

// Error returns the error as compilers print it, in one line, without
// characters that a terminal might obey.
func (e Error) Error() string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsGraphic(c) {
			return unicode.ReplacementChar
		}
		return c
	}, e.At.String()+": "+e.Msg)
}

// Errors are the mistakes in files, by file and place. There is always one.
type Errors []Error

// Error returns all errors, one on each line.
func (list Errors) Error() string {
	lines := make([]string, len(list))
	for i, e := range list {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// faults gathers the mistakes in files.
type faults struct {
	path  string // of the file that is read, "" where several are compared
	list  Errors
	found map[string]int // by path, also those that were left out, so that a hostile file takes no memory
}

// add notes an error at a place of a file.
func (f *faults) add(at Position, format string, args ...any) {
	if f.found == nil {
		f.found = map[string]int{}
	}
	if f.found[at.Path]++; f.found[at.Path] <= maxKeptErrors {
		f.list = append(f.list, Error{at, shortened(fmt.Sprintf(format, args...))})
	}
}

// shortened leaves out the middle of a message about a long text: its end says
// what to do.
func shortened(msg string) string {
	const begin, end = 400, 200
	if len(msg) <= begin+end {
		return msg
	}
	return strings.ToValidUTF8(msg[:begin], "") + "..." + strings.ToValidUTF8(msg[len(msg)-end:], "")
}

// collect adds to a list, as long as nothing is wrong in the file: else nobody
// gets the list, and its elements may be much larger than their text.
func collect[T any](f *faults, list []T, it T) []T {
	if f.list != nil {
		return nil
	}
	return append(list, it)
}

// offer is offer, as long as somebody can be told.
func (f *faults) offer(name string, known func() []string) string {
	if f.found[f.path] >= maxKeptErrors {
		return ""
	}
	return offer(name, known())
}

// errors returns the first errors of each file in the order of their places,
// and how many there are besides; nil for none.
func (f *faults) errors() (list Errors) {
	slices.SortStableFunc(f.list, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.At.Path, b.At.Path), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	told := 0 // of the same file
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

// offer says which names may have been meant by an unknown one: the nearest, or
// if none is near, all that there are.
func offer(name string, known []string) string {
	const few = 8 // that a line has room for
	near := nearest(name, known)
	wrong := levenshtein.Distance(name[:min(len(name), longest)], near, nil)
	switch {
	case wrong <= min(3, len(near)/2) || len(name) > 1 && strings.HasPrefix(near, name):
		return "the nearest that there is: " + near
	case len(known) <= few:
		return "there are " + strings.Join(known, ", ")
	}
	return "see config.md, which explains the files"
}

// longest is the length of the longest name that somebody can have meant.
const longest = 64

// nearest returns the known name that is the fewest changes of letters away
// from name. Of several it takes one that begins like name, else the first.
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
