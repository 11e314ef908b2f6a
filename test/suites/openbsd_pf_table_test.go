// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
	"strings"
)

// A table with nested entries, with and without !: the smallest one decides.
var _ = openBSD.has("pf_table", cases{
	"hit":  func(r *router) { tested(r, true) },
	"miss": func(r *router) { tested(r, false) },
	"cleanup": func(r *router) {
		nestedTable(r)
		r.pfctl("-t", "nested", "-T", "kill")
		if got := r.pfctl("-s", "Tables"); got != "" {
			r.t.Errorf("there are still %s", got)
		}
	},
})

// nested returns the entries of the table, from the largest to the smallest, of both families.
func nested() (list []string) {
	list = []string{"10.5.1.0/24", "!10.5.1.37", "!10.5.1.64/30", "10.6.0.0/24", "!fd05::/32", "fd05:0:1:1::/64", "!fd05:0:1:1::ba", "!fd05:0:1:1:fe::/80"}
	for i, not := 16, false; i <= 32; i, not = i+1, !not {
		list = append(list, entryOf(netip.PrefixFrom(netip.MustParseAddr("10.7.0.0"), i), not))
	}
	for i, not := 40, false; i <= 57; i, not = i+1, !not {
		list = append(list, entryOf(netip.PrefixFrom(netip.MustParseAddr("fd05:0:2::"), i), not))
	}
	return append(list, "fd05:0:2::/128")
}

func entryOf(p netip.Prefix, not bool) string {
	if not {
		return "!" + p.String()
	}
	return p.String()
}

func nestedTable(r *router) {
	r.t.Helper()
	r.with(strings.Join(nested(), "\n")+"\n", "-t", "nested", "-T", "add", "-f", "-")
	r.t.Cleanup(func() { r.try("", "-q", "-t", "nested", "-T", "kill") })
}

// tested tests addresses at the edges of the table's entries: all are in it, or all are not.
func tested(r *router, in bool) {
	r.t.Helper()
	nestedTable(r)
	hits, misses := []string{
		"10.5.1.0", "10.5.1.1", "10.5.1.36", "10.5.1.38", "10.5.1.63", "10.5.1.68", "10.5.1.255", "10.6.0.0", "10.6.0.255",
		"fd05:0:1:1::1", "fd05:0:1:1:ffff::", "fd05:0:1:1:fd:ffff:ffff:ffff", "fd05:0:1:1:ff::",
	}, []string{
		"0.0.0.1", "10.5.0.255", "10.5.2.0", "10.5.1.37", "10.5.1.64", "10.5.1.67", "10.6.1.0", "fd05:1::", "fd06::1",
		"fd05:0:1:1::ba", "fd05:0:1:1:fe::", "fd05:0:1:1:fe:ffff:ffff:ffff",
	}
	// The last address of a network that is in no smaller one.
	last := func(base string, first, end int) {
		for i, not := first, false; i < end; i, not = i+1, !not {
			p := netip.PrefixFrom(netip.MustParseAddr(base), i)
			b := p.Addr().AsSlice()
			b[i/8] |= 0x80 >> (i % 8)
			a, _ := netip.AddrFromSlice(b)
			if not {
				misses = append(misses, a.String())
			} else {
				hits = append(hits, a.String())
			}
		}
	}
	last("10.7.0.0", 16, 32)
	last("fd05:0:2::", 40, 57)
	hits = append(hits, "fd05:0:2::", "10.7.0.0")
	list := hits
	if !in {
		list = misses
	}
	for _, a := range list {
		if result := r.try("", "-q", "-t", "nested", "-T", "test", a); (result.Exit == 0) != in {
			r.t.Errorf("%s: in the table is %t; %v", a, !in, result)
		}
	}
}
