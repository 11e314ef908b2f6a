// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"slices"
	"strings"
	"testing"
)

// TestNext checks the candidates after the beginning of a rule.
func TestNext(t *testing.T) {
	for _, c := range []struct{ words, port, want string }{
		{"", "", "block pass"},
		{"block", "", "in out on"},
		{"block", "p1", "in out on src dst tag arp rarp"},
		{"block in", "", "on"},
		{"block in", "p1", "on src dst tag arp rarp"},
		{"block in on p1", "", "src dst tag arp rarp"},
		{"pass on p1 src 02:00:00:00:00:01 arp", "", "dst tag request reply sha spa tha tpa"},
		{"pass on p1 arp request", "", "src dst tag sha spa tha tpa"},
		{"block on", "", ""},          // a name
		{"block on p1 src", "", ""},   // an address
		{"block nonsense", "", ""},    // not the beginning of a rule
		{"block on p1 sha", "p1", ""}, // not either
		{"nonsense block in", "p1", ""},
	} {
		if got := Next(strings.Fields(c.words), c.port); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%q: %q, want %s", c.words, got, c.want)
		}
	}
}
