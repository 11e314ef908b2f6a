// SPDX-License-Identifier: BSD-2-Clause

package machines

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A Page is a page of the docs with a table: a row for each case, a column for each machine. A column has the results
// of one run. The results of former runs are dropped.
type Page struct {
	Path  string
	By    string // the command that makes it, such as make test-kernels
	Cases []Case // the rows; one without a test is named after its About
	// Compare orders the columns, as for slices.SortFunc.
	Compare func(a, b string) int
}

// begin returns the line before the table. tableEnd is the line after it.
func (p Page) begin() string { return "<!-- made by " + p.By + " -->" }

const tableEnd = "<!-- end -->"

// A table has the result of each machine, by column and row.
type table map[string]map[string]Result

// Update writes the results of a run into a column. Cases without a result are empty. It removes the other columns for
// which replaced returns true. A run without any results changes nothing.
func (p Page) Update(column string, results map[string]Result, replaced func(other string) bool) error {
	if len(results) == 0 {
		return nil
	}
	text, err := os.ReadFile(p.Path)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), p.begin()+"\n")
	old, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		return fmt.Errorf("%s has no lines %q and %q", p.Path, p.begin(), tableEnd)
	}
	t := parseTable(old)
	for other := range t {
		if other != column && replaced(other) {
			delete(t, other)
		}
	}
	t[column] = results
	return os.WriteFile(p.Path, []byte(before+p.begin()+"\n"+p.write(t)+tableEnd+after), 0o644)
}

// row returns the name of a case in results.
func (c Case) row() string {
	if c.Test == "" {
		return c.About
	}
	return c.Test
}

// write formats the table.
func (p Page) write(t table) string {
	var columns []string
	for c := range t {
		columns = append(columns, c)
	}
	slices.SortFunc(columns, p.Compare)
	var b strings.Builder
	b.WriteString("\n| | case |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, c := range p.Cases {
		name := c.Test
		if name != "" {
			name = "`" + name + "`"
		}
		fmt.Fprintf(&b, "| %s | %s |", c.About, name)
		for _, column := range columns {
			fmt.Fprintf(&b, " %s |", t[column][c.row()])
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	return b.String()
}

// parseTable parses the output of write.
func parseTable(text string) table {
	t := table{}
	var columns []string
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) < 3 || cells[1] == "---":
		case cells[1] == "case":
			columns = cells[2:]
			for _, c := range columns {
				t[c] = map[string]Result{}
			}
		default:
			row := Case{About: cells[0], Test: strings.Trim(cells[1], "`")}.row()
			for i, cell := range cells[2:] {
				if cell != "" {
					t[columns[i]][row] = Result(cell)
				}
			}
		}
	}
	return t
}
