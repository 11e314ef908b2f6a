// SPDX-License-Identifier: BSD-2-Clause

// Package pattern compiles regular expressions on first use: most commands need none,
// and compiling all of the program's would take a tenth of their startup time.
package pattern

import (
	"regexp"
	"sync"
)

// New returns a function that returns the regular expression of a text, which is
// compiled at the first call. That call panics if the text is not a regular expression.
func New(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
