// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// The minimum size of a terminal, in characters.
const minWidth, minHeight = 40, 8

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true // restores the former content at the end
	return v
}

// lines returns the view as plain text, at most as large as the terminal.
func (m *Model) lines() []string {
	switch {
	case m.width == 0:
		return nil // the size is still unknown
	case m.width < minWidth || m.height < minHeight:
		return []string{cut(fmt.Sprintf("too small: %dx%d, needs %dx%d", m.width, m.height, minWidth, minHeight), m.width)}
	case m.help:
		return m.helpLines()
	}
	t := m.table()
	above := m.panes[m.pane].offset
	rows := t.rows[above:]
	below := max(0, len(rows)-m.page(t))
	rows = rows[:len(rows)-below]

	shown, hidden := t.fit(m.width)
	lines := m.head(t)
	for _, line := range t.draw(shown, rows) {
		lines = append(lines, cut(line, m.width))
	}
	if len(t.rows) == 0 {
		lines = append(lines, cut(t.empty, m.width))
	}
	for len(lines) < m.height-m.foot(t) {
		lines = append(lines, "")
	}
	if m.foot(t) > 1 {
		lines = append(lines, cut(more(above, below, hidden), m.width))
	}
	return append(lines, parts(m.width, "? help", "q quit", "tab pane", "s sort", "r reverse", "p pause"))
}

// head returns the lines above the table.
func (m *Model) head(t table) []string {
	s := &m.shown
	title := []string{"bascule top " + clean(m.title), s.at.Format(time.TimeOnly)}
	if m.paused {
		title = append(title, "PAUSED")
	}
	if s.elapsed > 0 {
		title = append(title, "over "+s.elapsed.Round(100*time.Millisecond).String())
	} else {
		title = append(title, "first reading")
	}
	var names []string
	for i, name := range paneNames {
		if i == m.pane {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	c := t.columns[t.sort]
	order := map[bool]string{true: "largest first", false: "A to Z"}
	if m.panes[m.pane].reverse {
		order = map[bool]string{true: "smallest first", false: "Z to A"}
	}
	lines := []string{
		parts(m.width, title...),
		parts(m.width, strings.Join(names, " "), "by "+c.name, order[c.number]),
	}
	if s.err != nil {
		lines = append(lines, cut(clean(s.err.Error()), m.width))
	}
	return lines
}

// foot returns the number of lines below the table: the keys, and before them a line about hidden
// rows and columns, if any.
func (m *Model) foot(t table) int {
	_, hidden := t.fit(m.width)
	if hidden > 0 || len(t.rows) > m.height-len(m.head(t))-2 {
		return 2
	}
	return 1
}

// page returns the number of visible rows, at least 1.
func (m *Model) page(t table) int {
	return max(1, m.height-len(m.head(t))-1-m.foot(t))
}

// more describes the hidden part.
func more(above, below, columns int) string {
	var list []string
	if below > 0 || above > 0 {
		list = append(list, fmt.Sprintf("%d more below", below))
	}
	if above > 0 {
		list = append(list, fmt.Sprintf("%d above", above))
	}
	if columns > 0 {
		list = append(list, fmt.Sprintf("%d more %s", columns, plural(columns, "column")))
	}
	return strings.Join(list, ", ")
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

const gap = "  "

// heading returns a column's name, marked if it is the sort column.
func (t table) heading(i int) string {
	if i == t.sort {
		return ">" + t.columns[i].name
	}
	return t.columns[i].name
}

// fit selects the columns that fit into a width: the first, the sort column, and as many of the
// others as possible from the left. It returns the number of hidden columns.
func (t table) fit(width int) (shown []int, hidden int) {
	left := width - t.widths[0]
	if t.sort != 0 {
		left -= len(gap) + t.widths[t.sort]
	}
	full := false
	for i := range t.columns {
		if i == 0 || i == t.sort {
			shown = append(shown, i)
			continue
		}
		left -= len(gap) + t.widths[i]
		if full = full || left < 0; !full {
			shown = append(shown, i)
		}
	}
	return shown, len(t.columns) - len(shown)
}

// draw returns the heading and the rows.
func (t table) draw(columns []int, rows []row) []string {
	line := func(text func(int) string) string {
		var words []string
		for _, i := range columns {
			width := t.widths[i]
			if !t.columns[i].number {
				width = -width // left-aligned
			}
			words = append(words, fmt.Sprintf("%*s", width, cut(text(i), t.widths[i])))
		}
		return strings.TrimRight(strings.Join(words, gap), " ")
	}
	lines := []string{line(t.heading)}
	for _, r := range rows {
		lines = append(lines, line(func(i int) string { return r[i].text }))
	}
	return lines
}

func (m *Model) helpLines() []string {
	lines := []string{
		"bascule top: keys (any key goes back)",
		"q         quit",
		"tab       next pane",
		"1-6       sort by that column",
		"s < >     sort by another, also arrows",
		"r         reverse the order",
		"p         pause, and go on",
		"up down   scroll, also pgup pgdn",
		"",
		"- is no rate yet; k, M, G: 1000, ...",
		"> marks the column sorted by",
	}
	return lines[:min(len(lines), m.height)]
}

// parts joins as many of the first words as fit.
func parts(width int, words ...string) string {
	line := cut(words[0], width)
	for _, w := range words[1:] {
		if utf8.RuneCountInString(line+gap+w) > width {
			break
		}
		line += gap + w
	}
	return line
}

// cut shortens a line that is too long, and marks the cut.
func cut(line string, width int) string {
	const mark = "..."
	letters := []rune(line)
	if len(letters) <= width {
		return line
	}
	return string(letters[:max(0, width-len(mark))]) + mark[:min(width, len(mark))]
}

// clean removes control characters for the terminal. A device's name may contain anything except
// spaces and slashes.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, s)
}

// scale formats a number with three digits and the letter of a power of 1000.
func scale(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 0.1:
		return "<0.1"
	case n < 9.95 && n != float64(int(n)):
		return fmt.Sprintf("%.1f", n)
	case n < 999.5:
		return fmt.Sprintf("%.0f", n)
	}
	letters := "kMGTPE"
	i := 0
	for n /= 1000; n >= 999.5 && i < len(letters)-1; n /= 1000 {
		i++
	}
	digits := 0
	switch {
	case n < 9.995:
		digits = 2
	case n < 99.95:
		digits = 1
	}
	return fmt.Sprintf("%.*f%c", digits, n, letters[i])
}
