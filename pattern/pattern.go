// SPDX-License-Identifier: BSD-2-Clause

// Package pattern makes regular expressions when they are asked for: most commands need
// none, and would spend a tenth of their beginning with all that the program has.
package pattern

import (
	"regexp"
	"sync"
)

// New returns what has the regular expression of a text, which is compiled at the first
// call. It panics then if the text is none.
func New(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}
