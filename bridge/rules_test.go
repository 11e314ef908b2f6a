// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"strings"
	"testing"

	"bascule/rule"
)

// Errors about rules of missing ports have their places.
func TestMissingPorts(t *testing.T) {
	const text = "# on p9\n\npass on p1\r\n\tblock in  on p9 src 02:00:00:00:00:01\n  # more\nrule pass on on tag on\nblock on p9 # on p9"
	rules, err := rule.ParseFile("f", strings.NewReader(text), "")
	if err != nil {
		t.Fatal(err)
	}
	err = missingPorts("f", text, rules, map[string]bool{"p9": true, "on": true}, "br0")
	const want = "f:4:15: p9: no port of bridge br0; see 'bascule port show br0'\n" +
		"f:6:14: on: no port of bridge br0; see 'bascule port show br0'\n" +
		"f:7:10: p9: no port of bridge br0; see 'bascule port show br0'\n"
	var list rule.Errors
	if !errors.As(err, &list) {
		t.Fatal(err)
	}
	got := ""
	for _, e := range list {
		got += e.Error() + "\n"
	}
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// If many rules match nothing, notes report some of them, and the number of the others.
func TestNeverNotes(t *testing.T) {
	for _, c := range []struct{ rules, notes int }{{0, 0}, {1, 1}, {3, 3}, {4, 4}, {100, 4}} {
		text := "pass on p1\n" + strings.Repeat("block on p1 src ff:ff:ff:ff:ff:ff\n", c.rules)
		rules, err := rule.ParseFile("f", strings.NewReader(text), "")
		if err != nil {
			t.Fatal(err)
		}
		if notes := neverNotes(rules); len(notes) != c.notes {
			t.Errorf("%d rules: %q", c.rules, notes)
		}
	}
}
