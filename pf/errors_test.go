// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"testing"
)

// TestBrief: mistakes become one line, without the rule and its caret.
func TestBrief(t *testing.T) {
	one := Error{Pos: Pos{File: "f", Line: 2, Column: 1}, Line: "blck", Message: "expected a rule, found `blck`"}
	two := Error{Pos: Pos{File: "f", Line: 3, Column: 5}, Line: "pass x", Message: "wrong; give y"}
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("no rules"), "no rules"},
		{ErrorList{one}, "f:2:1: expected a rule, found `blck`; see pf.conf(5)"},
		{fmt.Errorf("cannot load: %w", ErrorList{two, one}), "cannot load: f:3:5: wrong; give y (the first of 2 mistakes)"},
	} {
		if got := Brief(test.err); got != test.want {
			t.Errorf("%q, not %q", got, test.want)
		}
	}
}
