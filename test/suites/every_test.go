// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"os"
	"strings"
	"testing"
)

// TestEveryCase: each case of the suites has a test, or a row in docs/pf.md that describes the
// difference, but not both. There are no tests or rows of other cases. The lists in testdata
// have all names, as FILE:CASE.
func TestEveryCase(t *testing.T) {
	for _, of := range []struct {
		s             suite
		list, heading string
	}{
		{freeBSD, "testdata/freebsd.txt", "### Cases of FreeBSD"},
		{openBSD, "testdata/openbsd.txt", "### Cases of OpenBSD"},
	} {
		tests, rows, listed := map[string]bool{}, rowsOf(t, of.heading), map[string]bool{}
		for file, c := range of.s {
			for name := range c {
				tests[file+":"+name] = true
			}
		}
		text, err := os.ReadFile(of.list)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			name := strings.TrimSpace(line)
			if name == "" || name[0] == '#' {
				continue
			}
			if listed[name] {
				t.Errorf("%s has %s twice", of.list, name)
			}
			listed[name] = true
			switch {
			case tests[name] && rows[name]:
				t.Errorf("%s has a test and a row in docs/pf.md", name)
			case !tests[name] && !rows[name]:
				t.Errorf("%s has neither a test nor a row in docs/pf.md", name)
			}
		}
		for _, name := range append(sorted(tests), sorted(rows)...) {
			if !listed[name] {
				t.Errorf("%s has no %s", of.list, name)
			}
		}
	}
}

// rowsOf returns the names in the first column of the table below a heading of docs/pf.md.
func rowsOf(t *testing.T, heading string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/pf.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/pf.md has no %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	rows := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") {
			continue
		}
		file := ""
		for _, name := range strings.Fields(strings.ReplaceAll(cells[1], "`", "")) {
			switch {
			case strings.HasSuffix(name, ":"): // the following names belong to this file
				file = name
				continue
			case name == "case":
				continue
			case !strings.Contains(name, ":"):
				name = file + name
			}
			if rows[name] {
				t.Errorf("docs/pf.md has two rows for %s", name)
			}
			rows[name] = true
		}
	}
	return rows
}
