// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Packets come in by gw1, or by the port behind "by", and leave by the port to their
// address: gwN leads to 10.0.N/24.
var hops = []struct {
	name, rules string
	packets     []string // packet => what leaves, each with its port and address
}{
	{"route-to in", "pass; pass in on gw1 route-to 10.0.3.2; block out on gw2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => gw1 10.0.1.2", // an answer
	}},
	{"the rules are asked where it goes out", "pass; pass in on gw1 route-to 10.0.3.2; block out on gw3", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => ",
	}},
	{"route-to out", "pass; pass out on gw2 route-to 10.0.3.2; block out on gw3", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => gw1 10.0.1.2",
		"udp 10.0.1.2:6 10.0.3.9:53 => ", // the rules are tried, as no rule sends it there
	}},
	{"in, and then out", "pass; pass in on gw1 route-to 10.0.3.2; pass out on gw3 route-to 10.0.2.9", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.9",
	}},
	{"reply-to", "pass; pass in on gw1 reply-to 10.0.3.2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => gw3 10.0.3.2",
	}},
	{"reply-to out", "pass; pass out on gw2 reply-to 10.0.3.2; block out on gw1", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => gw3 10.0.3.2", // no rules are tried at gw1
	}},
	{"dup-to", "pass; pass in on gw1 dup-to 10.0.3.2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2, gw2 10.0.2.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => gw3 10.0.3.2, gw1 10.0.1.2",
	}},
	{"a copy begins the connection", "pass; pass in on gw1 dup-to 10.0.3.2; block out on gw2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2, gw2 10.0.2.2",
	}},
	{"dup-to out", "pass; pass out on gw2 dup-to 10.0.3.2; block out on gw3", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2, gw2 10.0.2.2",
	}},
	{"a pool", "pass; pass in on gw1 inet route-to { 10.0.3.2, 10.0.2.9 } round-robin", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
		"udp 10.0.1.2:6 10.0.2.2:53 => gw2 10.0.2.9",
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
	}},
	{"an empty pool", "table <none> persist; pass; pass in on gw1 inet route-to <none>", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => ",
	}},
	{"no way there", "pass; pass in on gw1 route-to 10.9.9.9", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => ",
	}},
	{"rdr-to first", "pass; pass in on gw1 inet to 10.0.2.2 rdr-to 10.0.2.7 route-to 10.0.3.2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw3 10.0.3.2",
	}},
	{"divert-to", "pass; pass in on gw1 inet proto udp divert-to 127.0.0.1 port 7", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => socket 127.0.0.1",
		"tcp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.2",
	}},
	{"divert-reply", "pass; pass out on gw2 divert-reply", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.2",
		"udp 10.0.2.2:53 10.0.1.2:5 by gw2 => socket invalid IP",
	}},
	{"errors go where answers do", "pass; pass in on gw1 reply-to 10.0.3.2", []string{
		"udp 10.0.1.2:5 10.0.2.2:53 => gw2 10.0.2.2",
		"icmp 10.0.2.2 10.0.1.2 3 about udp 10.0.1.2:5 10.0.2.2:53 by gw2 => gw3 10.0.3.2",
	}},
}

func TestForward(t *testing.T) {
	via := func(a netip.Addr) Port {
		for n := range 4 {
			if netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", n)).Contains(a) {
				return Port{Name: fmt.Sprintf("gw%d", n)}
			}
		}
		return Port{}
	}
	for _, test := range hops {
		t.Run(test.name, func(t *testing.T) {
			rt := router(t, test.rules)
			for _, step := range test.packets {
				packet, want, _ := strings.Cut(step, " => ")
				packet, port, named := strings.Cut(packet, " by ")
				p := routed(t, "in "+packet)
				p.Port.Name = "gw1"
				if named {
					p.Port.Name = port
				}
				var out []string
				for _, l := range rt.Forward(p, via) {
					if l.Socket != nil {
						out = append(out, fmt.Sprint("socket ", l.Socket.Addr))
						continue
					}
					out = append(out, fmt.Sprint(l.Port.Name, " ", l.To))
				}
				if got := strings.Join(out, ", "); got != want {
					t.Errorf("%s\ngot  %s\nwant %s", step, got, want)
				}
			}
		})
	}
}
