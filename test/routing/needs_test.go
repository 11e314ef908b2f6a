// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// Rules that need a setting of the host, or of a port, cause a note at the load, with the remedy.
// After the remedy there is no note, and the rules have their effect.
func TestPFNeeds(t *testing.T) {
	s := newSite(t, "tcx")
	s.stations()
	s.sysctl("ipv6/conf/lo/disable_ipv6", 0)
	s.run("ip", "link", "set", "lo", "up")
	d := divertSite{s, false}
	says := func(rules string, want ...string) {
		t.Helper()
		got := s.said(rules)
		for _, word := range want {
			if !strings.Contains(got, word) {
				t.Errorf("%s\nsays %q, and not %q", rules, got, word)
			}
		}
		if n := strings.Count(got, "\n"); n != len(want) {
			t.Errorf("%s\nsays %q: %d notes, should be %d", rules, got, n, len(want))
		}
		if dry := s.said(rules, "-n"); dry != got {
			t.Errorf("%s\nsays %q, and by -n %q", rules, got, dry)
		}
	}
	// obey runs the commands in the notes.
	obey := func(notes string) {
		t.Helper()
		list := regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(notes, -1)
		if len(list) == 0 {
			t.Errorf("%q tells no way out", notes)
		}
		for _, m := range list {
			words := strings.Fields(m[1])
			if words[0] == "bascule" {
				s.lab.Bascule(words[1:]...)
				continue
			}
			s.run(words[0], words[1:]...)
		}
	}
	packet := recipe{dst: netip.MustParseAddr("10.9.0.1"), ttl: 64, proto: unix.IPPROTO_UDP, size: 16, tag: -1,
		begin: []byte{0x40, 0, 0, 80, 0, 16, 0, 0}} // to port 80, without a checksum
	drops := func(reason, counted string) {
		t.Helper()
		count := func() uint64 { return s.lab.Port("br0", s.sides[0].end.Port).Drops[reason] }
		before := count()
		s.send([]netlab.Frame{packet.frame(s, 1)})
		if got := count() - before; got != 1 {
			t.Errorf("%d are dropped as %s, want 1", got, reason)
		}
		steps, verdict := s.trace(packet.frame(s, 2))
		last := steps[len(steps)-1]
		if verdict != "dropped: "+reason || !strings.Contains(last, counted) {
			t.Errorf("trace says %q, %q, should say %q", verdict, last, counted)
		}
	}

	// A port without --route.
	s.lab.Bascule("port", "set", "br0", "gw1", "--route=off")
	hop := fmt.Sprintf("pass\npass in on gw1 inet proto udp to port 80 route-to %s\n", s.sides[1].station4)
	const unrouted = "which gw1 does not have: what it matches is dropped there; 'bascule port set br0 gw1 --route'\n"
	says(hop, "stdin:2:42: route-to holds only at ports with --route, "+unrouted)
	drops("pf-route", "that needs --route, which gw1 does not have")
	says(fmt.Sprintf("pass\npass in inet proto udp to port 80 dup-to %s\n", s.sides[1].station4),
		"dup-to holds only at ports with --route, which gw1 does not have: there are no copies; ")
	says("pass\npass in on ! gw1 inet proto udp to port 80 route-to 10.0.2.2\n")
	obey(s.said(hop))
	says(hop)
	if steps, verdict := s.trace(packet.frame(s, 3)); verdict != "forwarded" {
		t.Errorf("with --route the verdict is %q: %q", verdict, steps)
	}

	// A socket without an ip rule for the mark.
	s.lab.Bascule("port", "set", "br0", "gw1", "--route=off")
	divert := "pass\npass in on gw1 inet proto { tcp udp } to port 80 divert-to 127.0.0.1 port 8021\n"
	const unmarked = "stdin:2:50: divert-to has no effect yet: the host drops packets that reach it this way; " +
		"run 'ip rule add fwmark 0xba5cd1 lookup 100' and 'ip route add local default dev lo table 100'\n"
	says(divert, "stdin:2:50: divert-to holds only at ports with --route, "+unrouted, unmarked)
	drops("pf-divert", "that needs --route, which gw1 does not have")
	tcp := d.tcp("127.0.0.1:8021")
	d.udp("127.0.0.1:8021")
	drops("pf-divert", "that needs --route, which gw1 does not have")
	s.lab.Bascule("port", "set", "br0", "gw1", "--route")
	says(divert, unmarked)
	s.run("ip", "rule", "add", "fwmark", "0xba5cd1", "lookup", "100") // half of it
	says(divert, unmarked)
	s.run("ip", "rule", "del", "fwmark", "0xba5cd1")
	obey(s.said(divert))
	says(divert)
	conn, err := s.dial(0, "tcp", "", "10.9.0.1:80")
	s.must(err)
	s.echoTCP(tcp, conn, 1000)
	says("pass\npass in on gw1 inet6 proto tcp to port 80 divert-to ::1 port 8021\npass out on gw2 inet6 proto tcp divert-reply\n",
		"stdin:2:43: divert-to has no effect yet: the host drops packets that reach it this way; run 'ip -6 rule add fwmark 0xba5cd1 lookup 100' and 'ip -6 route add local default dev lo table 100'\n",
		"stdin:3:33: divert-reply has no effect yet: ")
	// A rule for both families, if the host has IPv6.
	says("pass\npass out on gw2 proto tcp divert-reply\n", "'ip -6 rule add fwmark 0xba5cd1 lookup 100'")
	s.run("ip", "-6", "rule", "add", "fwmark", "0xba5cd1/0xffffff", "lookup", "77")
	s.run("ip", "-6", "route", "add", "local", "default", "dev", "lo", "table", "77")
	says("pass\npass out on gw2 proto tcp divert-reply\n")

	// A host that does not forward.
	nat := "pass\nmatch out on gw2 inet nat-to (gw2)\nmatch out on gw1 inet nat-to (gw1)\n" + strings.TrimPrefix(hop, "pass\n")
	nat6 := "pass\nmatch out on gw2 inet6 nat-to (gw2)\n"
	says(nat)
	says(nat6)
	s.sysctl("ipv4/ip_forward", 0)
	const four = "the host forwards no IPv4; set net/ipv4/ip_forward=1"
	says(nat, "stdin:2:23: nat-to translates only what the host itself sends: "+four+" (1 more)\n",
		"stdin:4:42: route-to drops what it matches: "+four+"\n")
	says("pass\npass in on gw1 inet proto udp to port 80 rdr-to 10.0.1.1\n") // to the host itself
	s.sysctl("ipv4/conf/gw1/forwarding", 1)
	says(nat)
	says(nat6)
	s.sysctl("ipv6/conf/all/forwarding", 0)
	says(nat6, "stdin:2:24: nat-to translates only what the host itself sends: the host forwards no IPv6; set net/ipv6/conf/all/forwarding=1\n")
	says(nat)
}
