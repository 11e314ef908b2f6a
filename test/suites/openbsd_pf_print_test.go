// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// IPv6 addresses are printed in their shortest form, with zeros in any place.
var _ = openBSD.has("pf_print", cases{
	"pf_print_test": func(r *router) {
		r.load("pass")
		list := []string{
			"1::", "1::1", "0:1::1:0", "0:1::", "1:2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:0", "1:0:3:0:5:0:7:8",
			"1:2:3:4:5:6::", "0:2:3::6:7:8", "1:2:0:4:5::8", "1::4:5:0:0:8", "1::5:0:0:8", "1:0:0:4::8", "0:0:3:4:5::",
			"2001:db8:ab:cdef:1234:5678:90ab:cdef",
		}
		for _, a := range list {
			r.sends(r.stations[0], r.frame(r.stations[0], ip6(netip.MustParseAddr(a), r.self.v6, layers.IPProtocolUDP),
				&layers.UDP{SrcPort: 1000, DstPort: 9}, gopacket.Payload("print")))
		}
		// And addresses that no packet has.
		table := append([]string{"::", "::1", "::1:2:0", "::1:0:0:0", "::3:4:5:6:7:8", "::4:5:6:0:0", "::4:5:0:0:0"}, list...)
		r.pfctl(append([]string{"-q", "-t", "print", "-T", "add"}, table...)...)
		r.t.Cleanup(func() { r.pfctl("-q", "-t", "print", "-T", "kill") })
		shown := strings.Fields(r.pfctl("-t", "print", "-T", "show"))
		for _, a := range table {
			if !slices.Contains(shown, a) {
				r.t.Errorf("%s is not printed among %q", a, shown)
			}
		}
		for _, a := range list {
			if len(r.states(" "+a+"[1000] ")) == 0 && len(r.states(a+"[1000]")) == 0 {
				r.t.Errorf("%s is in no state of\n%s", a, r.pfctl("-s", "states"))
			}
		}
	},
})
