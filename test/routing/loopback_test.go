// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// A rule redirects packets to a socket at the host's loopback, for a captive portal or a proxy. The
// load reports the necessary setting of the host. No other packet of a station reaches it, and no
// packet with such a source address passes.
func TestRdrToLoopback(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		s.run("ip", "link", "set", "lo", "up")
		d := divertSite{s, false}
		const asked = "10.9.0.1:80"
		tcp, udp := d.tcp("127.0.0.1:8021"), d.udp("127.0.0.1:8021")
		const rules = "pass\npass in on gw1 inet proto { tcp udp } to port 80 rdr-to 127.0.0.1 port 8021\n"
		const note = "stdin:2:50: rdr-to 127.0.0.1 has no effect yet: the host drops what comes to its loopback from elsewhere; " +
			"set net/ipv4/conf/gw1/route_localnet=1: other packets from and to 127.0.0.0/8 are dropped by pf\n"
		if got := s.said(rules); !strings.HasSuffix(got, "warning: "+note) {
			t.Errorf("loading says %q, want %q", got, note)
		}
		s.sysctl("ipv4/conf/gw1/route_localnet", 1)
		if got := s.said(rules); got != "" {
			t.Errorf("loading says %q", got)
		}
		if got := s.said("pass in on gw1 inet6 proto tcp to port 80 rdr-to ::1 port 8021\n", "-n"); !strings.Contains(got, "stdin:1:43: rdr-to ::1 has no effect: ") {
			t.Errorf("loading says %q", got)
		}
		bad := func() uint64 { return s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-normalize"] }
		for _, on := range []bool{true, false} {
			s.route(on)
			conn, err := s.dial(0, "tcp", "", asked)
			s.must(err)
			s.echoTCP(tcp, conn, 100000)
			conn, err = s.dial(0, "udp", "", asked)
			s.must(err)
			s.echoUDP(udp, conn, 100)
			if text := s.pfctl("", "-s", "states"); !strings.Contains(text, " -> 127.0.0.1:8021 (10.9.0.1:80) ") {
				t.Errorf("the states are\n%s", text)
			}
			// Around the rule.
			all := d.udp("0.0.0.0:8022")
			ports := []byte{0x40, 0, 0x1f, 0x56, 0, 16, 0, 0} // 16384 to 8022, without a checksum
			for n, r := range []recipe{
				{dst: netip.MustParseAddr("127.0.0.1")},
				{dst: netip.MustParseAddr("127.9.9.9"), src: netip.MustParseAddr("10.0.1.2")},
				{dst: netip.MustParseAddr("127.0.0.1"), src: netip.MustParseAddr("10.0.1.2"), options: []byte{1, 1, 1, 1}},
				{dst: netip.MustParseAddr("10.0.1.1"), src: netip.MustParseAddr("127.0.0.1")},
			} {
				r.ttl, r.proto, r.size, r.tag, r.begin = 64, unix.IPPROTO_UDP, 16, -1, ports
				before := bad()
				s.send([]netlab.Frame{r.frame(s, uint16(n))})
				if got := bad() - before; got != 1 {
					t.Errorf("%v: %d are dropped as pf-normalize, want 1", r, got)
				}
			}
			// The socket has received the station's packet by now, and no other before it.
			last, err := s.dial(0, "udp", "", "10.0.1.1:8022")
			s.must(err)
			_, err = last.Write([]byte("last"))
			s.must(err)
			if text, _, _ := d.originally(all); text != "last" {
				t.Errorf("the socket got %q", text)
			}
			all.Close()
		}
		// The table no longer has the address.
		s.load("table <portal> persist { 127.0.0.1 }\npass\npass in on gw1 inet proto udp to port 80 rdr-to <portal> port 8021\n")
		for range 2 {
			r := recipe{dst: netip.MustParseAddr("127.0.0.1"), ttl: 64, proto: unix.IPPROTO_UDP, size: 16, tag: -1, begin: []byte{0x40, 0, 0x1f, 0x56, 0, 16, 0, 0}}
			before := bad()
			s.send([]netlab.Frame{r.frame(s, 9)})
			if got := bad() - before; got != 1 {
				t.Errorf("with the table\n%s%d are dropped as pf-normalize, want 1", s.pfctl("", "-t", "portal", "-T", "show"), got)
			}
			s.pfctl("", "-t", "portal", "-T", "flush")
		}
		if got := s.said("pass\n"); !strings.Contains(got, "gw1: stations reach the host's 127.0.0.0/8, since no rule redirects there; set net/ipv4/conf/gw1/route_localnet=0\n") {
			t.Errorf("without the rule, loading says %q", got)
		}
	})
}
