// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// columns is the width of output for people.
const columns = 80

// printJSON prints a value as JSON on one line.
func (p *program) printJSON(v any) error {
	e := json.NewEncoder(p.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printList prints items as one JSON array, or as a table under a heading; an empty list prints no
// table.
func printList[T, J any](p *program, items []T, toJSON func(T) J, heading string, toRow func(T) []string) error {
	if p.json {
		list := make([]J, len(items))
		for i, item := range items {
			list[i] = toJSON(item)
		}
		return p.printJSON(list)
	}
	if len(items) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(strings.Fields(heading), "\t"))
	for _, item := range items {
		fmt.Fprintln(table, row(toRow(item)))
	}
	return table.Flush()
}

// row returns a line of a table. A cell cannot begin another cell or line: other users name files and devices.
func row(cells []string) string {
	line := make([]string, len(cells))
	for i, cell := range cells {
		line[i] = strings.Map(func(r rune) rune {
			if unicode.IsGraphic(r) {
				return r
			}
			return utf8.RuneError
		}, cell)
	}
	return strings.Join(line, "\t")
}

// A fact is one line about one thing.
type fact struct{ name, value string }

// printFacts prints a name, followed by its facts, indented and aligned.
func printFacts(w io.Writer, name string, facts []fact) {
	width := 0
	for _, f := range facts {
		width = max(width, len(f.name))
	}
	fmt.Fprintln(w, name)
	for _, f := range facts {
		printItem(w, f.name, width, orDash(f.value))
	}
}

// printItem prints a term and its explanation in two columns.
func printItem(w io.Writer, term string, width int, text string) {
	indent := strings.Repeat(" ", width+4)
	if len(term) > width {
		fmt.Fprintf(w, "  %s\n%s", term, indent)
	} else {
		fmt.Fprintf(w, "  %-*s  ", width, term)
	}
	fmt.Fprintln(w, strings.Join(wrap(text, columns-len(indent)), "\n"+indent))
}

// wrap breaks text between words into lines of at most width letters; a
// longer word gets its own line. The result has at least one line.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// orDash returns a dash for an empty cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// counted formats a number of objects.
func counted(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprint(n, " ", many)
}

// printable returns a text without control characters that a terminal might interpret: other users
// name devices.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}

// A printer writes text after printable.
type printer struct {
	to   io.Writer
	rest []byte // of an incomplete character
	raw  bool   // the output is binary, and is written unchanged
}

func (p *printer) Write(b []byte) (int, error) {
	if p.raw {
		return p.to.Write(b)
	}
	text := append(p.rest, b...)
	whole := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	p.rest = slices.Clone(text[whole:])
	if _, err := io.WriteString(p.to, printable(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(b), nil
}
