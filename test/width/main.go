// SPDX-License-Identifier: BSD-2-Clause

// Command width lists the lines of Markdown files and the comments of Go and C files that end behind column 120. It
// takes the files as arguments, as `make check` does. The exit status is 1 if there is such a line.
//
// A tab stop is 8 columns. These may be wider: a row of a table with a link in it, a comment that is one word (an
// address), a go:generate directive, and what a program wrote.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

const most = 120

// generated are the Markdown files that programs write.
var generated = []string{
	// by bascule lab report --summary
	"docs/lab/bench.md",
	"docs/lab/exact.md",
	"docs/lab/report.md",
}

func main() {
	status := 0
	for _, name := range os.Args[1:] {
		text, err := os.ReadFile(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "width:", err)
			os.Exit(2)
		}
		for _, l := range wide(name, string(text)) {
			fmt.Printf("%s:%d: ends at column %d; %d is the last\n", name, l.number, l.columns, most)
			status = 1
		}
	}
	os.Exit(status)
}

// A line is one that is too wide.
type line struct{ number, columns int }

var byProgram = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// wide returns the lines of a file that are too wide.
func wide(name, text string) []line {
	var judged []bool
	switch path.Ext(name) {
	case ".md":
		if slices.Contains(generated, path.Clean(name)) {
			return nil
		}
	case ".go", ".h", ".c":
		if byProgram.MatchString(text) {
			return nil
		}
		judged = comments(text)
	default:
		return nil
	}
	var found []line
	for i, l := range strings.Split(text, "\n") {
		n := columns(l)
		if n <= most || judged != nil && !judged[i] || judged == nil && free(l) || judged != nil && oneWord(l) {
			continue
		}
		found = append(found, line{i + 1, n})
	}
	return found
}

// free reports whether a line of Markdown may be wider.
func free(l string) bool { return strings.HasPrefix(l, "|") && strings.Contains(l, "](") }

// oneWord reports whether a comment has nothing to wrap.
func oneWord(l string) bool {
	text := strings.TrimLeft(l, "/* \t")
	return strings.HasPrefix(l, "//go:generate ") || strings.Contains(text, "://") && !strings.Contains(text, " ")
}

// columns returns the column that a line ends at, from 1.
func columns(l string) int {
	n := 0
	for _, r := range l {
		if n++; r == '\t' {
			n = (n + 7) / 8 * 8
		}
	}
	return n
}

// comments reports for each line of a source in Go or C whether a comment, or a part of one, is in it.
func comments(source string) []bool {
	text := []byte(source)
	has := make([]bool, bytes.Count(text, []byte("\n"))+1)
	number := 0
	for i := 0; i < len(text); {
		rest := text[i:]
		end, comment := 1, false
		switch {
		case bytes.HasPrefix(rest, []byte("//")):
			end, comment = until(rest, "\n"), true
		case bytes.HasPrefix(rest, []byte("/*")):
			end, comment = 2+until(rest[2:], "*/"), true
		case rest[0] == '`':
			end = 1 + until(rest[1:], "`")
		case rest[0] == '"' || rest[0] == '\'':
			for end < len(rest) && rest[end] != rest[0] && rest[end] != '\n' {
				if rest[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(rest))
		}
		for _, b := range rest[:end] {
			has[number] = has[number] || comment
			if b == '\n' {
				number++
			}
		}
		i += end
	}
	return has
}

// until returns how much of a text there is up to the first mark and with it.
func until(text []byte, mark string) int {
	if i := bytes.Index(text, []byte(mark)); i >= 0 {
		return i + len(mark)
	}
	return len(text)
}
