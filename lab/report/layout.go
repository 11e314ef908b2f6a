// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// lineWidth is the maximum width of a line of text, in columns.
const lineWidth = 120

// sheet is a table of text, a row of cells each.
type sheet [][]string

// wider marks a cell that belongs to the one before it: a heading for two columns.
const wider = "\t"

// add adds a row.
func (s *sheet) add(cells ...string) { *s = append(*s, cells) }

// write prints the table with two spaces between columns.
func (s sheet) write(b *strings.Builder) {
	var widths []int
	for _, row := range s {
		for i, text := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if text != wider {
				row[i] = printable(text)
			}
		}
	}
	// Cells over few columns come first: a wide heading needs only the room that the cells
	// below it leave.
	for span := 1; span <= len(widths); span++ {
		for _, row := range s {
			for i, text := range row {
				to := i + 1
				for to < len(row) && row[to] == wider {
					to++
				}
				// The last column of a row is not padded.
				if text == wider || to-i != span || to == len(row) {
					continue
				}
				room := 2 * (span - 1)
				for _, w := range widths[i:to] {
					room += w
				}
				widths[to-1] += max(0, utf8.RuneCountInString(text)-room)
			}
		}
	}
	for _, row := range s {
		line, at := "", 0
		for i, text := range row {
			if text != "" && text != wider {
				line += strings.Repeat(" ", max(0, at-utf8.RuneCountInString(line))) + text
			}
			at += widths[i] + 2
		}
		fmt.Fprintln(b, line)
	}
}

// folded prints a text in lines of up to lineWidth: the first one begins with an indent, and the
// others with two more spaces.
func folded(b *strings.Builder, indent, text string) {
	for i, line := range fold(text, lineWidth-len(indent)-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintln(b, indent+line)
	}
}

// fold breaks a text into lines of up to width. A longer word gets its own line.
func fold(text string, width int) []string {
	var out []string
	for word := range strings.FieldsSeq(text) {
		word, n := printable(word), len(out)
		if n > 0 && utf8.RuneCountInString(out[n-1])+1+utf8.RuneCountInString(word) <= width {
			out[n-1] += " " + word
		} else {
			out = append(out, word)
		}
	}
	return out
}

// wrapped prints a row of cells, each one in lines of up to its column's width.
func wrapped(b *strings.Builder, widths []int, texts ...string) {
	var columns [][]string
	height := 0
	for i, text := range texts {
		columns = append(columns, fold(text, widths[i]))
		height = max(height, len(columns[i]))
	}
	for l := range height {
		line := ""
		for i, lines := range columns {
			cell := ""
			if l < len(lines) {
				cell = lines[l]
			}
			line += "  " + cell + strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
		}
		fmt.Fprintln(b, strings.TrimRight(line, " "))
	}
}
