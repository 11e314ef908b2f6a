// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/test/netlab"
)

// alter runs a command that writes, but does not load rules.
func (s *site) alter() {
	s.t.Helper()
	s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--hairpin=off")
}

// source returns the address of a new connection from side 0 as the station of side 1 sees it, or ""
// if no packet arrives.
func (s *site) source(l net.PacketConn) string {
	s.t.Helper()
	conn, err := s.dial(0, "udp", "", l.LocalAddr().String())
	s.must(err)
	defer conn.Close()
	return s.echoUDP(l, conn, 10).Addr().String()
}

// said returns the messages of a load of rules.
func (s *site) said(rules string, args ...string) string {
	s.t.Helper()
	r := s.try("br0", s.named(rules), append(args, "-f", "-")...)
	if r.Exit != 0 {
		s.t.Fatal(r)
	}
	return r.Stderr
}

// The group egress contains the host ports with a default route, of either family and any metric. It
// works in all places that name a port or an address. Each command that changes something updates
// it.
func TestEgress(t *testing.T) {
	s := newSite(t, "tcx")
	s.stations()
	four := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
	const rules = "pass\nmatch out on egress inet from 10.0.0.0/8 nat-to (egress)\n"
	note := s.said(rules)
	for _, want := range []string{
		"stdin:2:14: on egress has no effect: no interface of the host has a default route now\n",
		"stdin:2:50: (egress) has no address now: no interface of the host has a default route\n",
	} {
		if !strings.Contains(note, want) {
			t.Errorf("loading says %q, want %q", note, want)
		}
	}
	want := func(what, address string) {
		t.Helper()
		s.alter()
		if got := s.source(four); got != address {
			t.Errorf("%s: the station sees %s, want %s", what, got, address)
		}
		s.pfctl("", "-F", "states")
	}
	want("without a default route", "10.0.1.2")
	s.ip("route add default via 10.0.2.3 dev gw2 metric 500")
	want("with one", "10.0.2.1")
	if note := s.said(rules); note != "" {
		t.Errorf("loading says %q", note)
	}
	if got := s.pfctl("", "-s", "Interfaces", "-i", "egress"); got != "egress\ngw2\n" {
		t.Errorf("-s Interfaces -i egress prints %q", got)
	}
	s.source(four)
	if got := s.pfctl("", "-s", "states", "-i", "egress"); strings.Count(got, "\n") != 1 {
		t.Errorf("-s states -i egress prints %q", got)
	}
	if got := s.try("br0", "", "-F", "states", "-i", "egress").Stderr; !strings.Contains(got, "1 states cleared") {
		t.Errorf("-F states -i egress says %q", got)
	}
	s.ip("route replace default via 10.0.1.3 dev gw1 metric 500", "route add default metric 600 nexthop via 10.0.1.3 dev gw1 nexthop via 10.0.2.3 dev gw2")
	s.alter()
	if got := s.pfctl("", "-s", "Interfaces", "-i", "egress"); got != "egress\ngw1\ngw2\n" {
		t.Errorf("with several default routes, -s Interfaces -i egress prints %q", got)
	}
	if got := s.source(four); got != "10.0.1.1" && got != "10.0.2.1" {
		t.Errorf("with several default routes, the station sees %s", got)
	}
	s.pfctl("", "-F", "states")
	s.ip("route del default metric 600")
	want("by the other port", "10.0.1.2")
	s.ip("route del default", "route add default via fd02::3 dev gw2 metric 10")
	want("of IPv6", "10.0.2.1")
	s.ip("route del default via fd02::3", "route add default via 10.0.1.3 dev gw1 table 100", "route add blackhole default", "route add blackhole default table 101")
	want("a black hole, and a route in another table", "10.0.1.2")
	s.ip("route del blackhole default", "route add default dev gw2")
	want("an interface alone", "10.0.2.1")

	// The other places.
	block := func(rules string, blocks bool) {
		t.Helper()
		s.loadAnew(rules)
		conn, err := s.dial(0, "udp", "", "10.0.2.2:7")
		s.must(err)
		defer conn.Close()
		before := s.lab.Port("br0", "gw2").Drops["pf"] + s.lab.Port("br0", s.sides[0].end.Port).Drops["pf"]
		_, err = conn.Write([]byte("one"))
		s.must(err)
		if !blocks {
			s.heard(four)
			return
		}
		s.lab.Wait(rules+" to block", func() bool {
			return s.lab.Port("br0", "gw2").Drops["pf"]+s.lab.Port("br0", s.sides[0].end.Port).Drops["pf"] > before
		})
	}
	block("block out on egress\n", true)
	block("block out on ! egress\npass out on e2\n", false)
	block("block in to (egress:network)\n", true)
	block("block in to egress:network\n", true)
	block("block in from (egress:network)\n", false)
	block("block out received-on egress\n", true) // for packets from the host itself, that is the host port
	block("set skip on egress\nblock out on gw2\n", false)
	block("set loginterface egress\nblock out on egress\n", true)
	if got := s.pfctl("", "-s", "info"); !strings.Contains(got, "Interface Stats for gw2 ") {
		t.Errorf("set loginterface egress: -s info prints\n%s", got)
	}
	s.load("antispoof quick for egress\n")
	const spoof = "block drop in quick on ! egress inet from 10.0.2.0/24 to any\n"
	if got := s.pfctl("", "-s", "rules"); !strings.Contains(got, spoof) {
		t.Errorf("antispoof is\n%s", got)
	}

	// A default route through a device that is no port.
	s.run("ip", "link", "add", "ppp0", "type", "veth", "peer", "name", "other")
	defer s.run("ip", "link", "del", "ppp0")
	s.run("ip", "link", "set", "ppp0", "up")
	s.ip("route replace default dev ppp0")
	if note := s.said("block out on egress\n"); !strings.Contains(note, "stdin:1:14: on egress has no effect: the host's default route is by ppp0, which is not a host port of br0\n") {
		t.Errorf("loading says %q", note)
	}
}

// heard reads a datagram.
func (s *site) heard(l net.PacketConn) {
	s.t.Helper()
	s.must(l.SetReadDeadline(time.Now().Add(patience)))
	_, _, err := l.ReadFrom(make([]byte, 100))
	s.must(err)
}

// A host port is in the link group of the host's interface, whose name is in the file of ip-link(8).
func TestLinkGroup(t *testing.T) {
	s := newSite(t, "tcx")
	s.stations()
	where := "/etc/iproute2/group"
	if _, err := os.Stat(where); err != nil {
		where = "/usr/share/iproute2/group"
	}
	names := filepath.Join(t.TempDir(), "group")
	s.must(os.WriteFile(names, []byte("0 default\n77 uplinks\n"), 0o644))
	pfctl := func(rules string, args ...string) string {
		t.Helper()
		it := s.lab.Command(append([]string{"pfctl", "-b", "br0"}, args...)...)
		cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-ec", `mount --bind "$0" "$1"; shift; exec "$@"`, names, where}, it.Args...)...)
		cmd.Env, cmd.Stdin = it.Env, strings.NewReader(s.named(rules))
		r, err := netlab.RunCommand(cmd)
		s.must(err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		return r.Stdout + r.Stderr
	}
	four := s.listen(1, "udp", "10.0.2.2:7").(net.PacketConn)
	s.run("ip", "link", "set", "gw2", "group", "77")
	s.run("ip", "link", "set", s.sides[0].end.Port, "group", "77")
	if note := pfctl("pass\nmatch out on uplinks inet from 10.0.0.0/8 nat-to (gw2)\nantispoof for uplinks\n", "-f", "-"); note != "" {
		t.Errorf("loading says %q", note)
	}
	if got := s.source(four); got != "10.0.2.1" {
		t.Errorf("the station sees %s", got)
	}
	if got := pfctl("", "-s", "Interfaces", "-i", "uplinks"); got != strings.Join(slices.Sorted(slices.Values([]string{s.sides[0].end.Port, "gw2", "uplinks"})), "\n")+"\n" {
		t.Errorf("-s Interfaces prints %q", got)
	}
	if got := pfctl("", "-s", "rules"); !strings.Contains(got, "block drop in on ! uplinks inet from 10.0.2.0/24 to any\n") {
		t.Errorf("the rules are\n%s", got)
	}
	s.run("ip", "link", "set", "gw2", "group", "0")
	pfctl("", "-z")
	s.pfctl("", "-F", "states")
	if got := s.source(four); got != "10.0.1.2" {
		t.Errorf("out of the group, the station sees %s", got)
	}
}

// Names without a port or group are reported with their places.
func TestNamesOfNoPort(t *testing.T) {
	s := newSite(t, "tcx")
	s.run("ip", "link", "add", "wg0", "type", "veth", "peer", "name", "other")
	defer s.run("ip", "link", "del", "wg0")
	const rules = `set skip on { lo lo0 nope }
set loginterface gw
block in on { e1 typo0 } from (typo1)
pass out on typo0 received-on typo2
antispoof for { (lo0) (typo3) gw1 }
pass on wg0 from (self)
pass on lo0
anchor on ! typo0 {
	pass on gw1 from (gw1) to (typo1:network)
}
table <known> persist
pass from <known> to <typo4>
pass proto tcp from <typo4> keep state (max-src-conn 9, overload <filled>)
pass proto tcp from <filled>
`
	want := `bascule: warning: stdin:1:22: set skip on nope has no effect: no port of br0, and no group of its ports, has this name now
bascule: warning: stdin:3:18: on typo0 has no effect: no port of br0, and no group of its ports, has this name now (1 more)
bascule: warning: stdin:4:31: received-on typo2 has no effect: no port of br0, and no group of its ports, has this name now
bascule: warning: stdin:5:24: antispoof for typo3 has no effect: no port of br0, and no group of its ports, has this name now
bascule: warning: stdin:6:9: on wg0 has no effect: it is an interface of the host, and no port of br0
bascule: warning: stdin:7:9: on lo0 has no effect: the host's packets to itself pass no switch
bascule: warning: stdin:8:13: on ! typo0 holds at every port: no port of br0, and no group of its ports, has this name now
bascule: warning: stdin:2:18: set loginterface gw has no effect: it is a group of several ports (gw1, gw2), and one port is counted; name it
bascule: warning: stdin:3:32: (typo1) has no address now: no interface of the host, and no group of them, has this name (1 more)
bascule: warning: stdin:12:1: table <typo4> is empty: no file defines it, and no command has filled it
`
	want = strings.NewReplacer("3:18", "3:1"+string(rune('6'+len(s.sides[0].end.Port))), "3:32", "3:3"+string(rune('0'+len(s.sides[0].end.Port)))).Replace(want)
	for _, args := range [][]string{nil, {"-n"}} {
		if got := s.said(rules, args...); got != want {
			t.Errorf("%q: loading says\n%swant\n%s", args, got, want)
		}
	}
}

// The last address of an interface's network is a broadcast address, even if the interface's address
// lacks it.
func TestBroadcastOfItself(t *testing.T) {
	s := newSite(t, "tcx")
	s.run("ip", "address", "add", "10.0.7.1/24", "dev", "gw1") // without brd
	s.load("pass\nblock in to (gw1:broadcast)\n")
	before := s.lab.Port("br0", s.sides[0].end.Port).Drops["pf"]
	s.send([]netlab.Frame{to(netlab.Broadcast, s.udp4(netip.MustParseAddr("10.0.7.255"), 1))})
	if n := s.lab.Port("br0", s.sides[0].end.Port).Drops["pf"] - before; n != 1 {
		t.Errorf("%d packets to the broadcast address are dropped, want 1", n)
	}
}

// Without an agent, each command that changes something updates the addresses of (gw2).
func TestAddressesWithoutAgent(t *testing.T) {
	s := newSite(t, "tcx")
	port := s.sides[0].end.Port
	blocked := func() bool {
		t.Helper()
		_, verdict := s.trace(s.udp4(netip.MustParseAddr("10.7.7.7"), 1))
		return verdict == "dropped: pf"
	}
	for _, command := range []string{
		"port set br0 " + port + " --hairpin=off", "bridge set br0 --ageing=300", "fdb add br0 02:00:00:00:00:77 " + port + " --vlan 11",
		"fdb flush br0 --vlan 4000", "rule add br0 pass in on " + port, "vlan add br0 " + port + " 77", "binding add br0 " + port + " 02:00:00:00:00:78 10.0.1.77 --vlan 11",
		"pfctl -b br0 -t bad -T add 192.0.2.1", "pfctl -b br0 -t bad -T flush", "pfctl -b br0 -F states", "pfctl -b br0 -F info", "pfctl -b br0 -F Sources",
		"pfctl -b br0 -k 192.0.2.9", "pfctl -b br0 -K 192.0.2.9", "pfctl -b br0 -z", "pfctl -b br0 -x err", "pfctl -b br0 -a some -F rules",
	} {
		s.ip("address replace 10.7.7.7/32 dev gw2")
		s.load("table <bad> persist\npass\nanchor some { pass }\nblock in quick on e1 to (gw2)\n")
		if !blocked() {
			t.Fatal("the rule does not hold")
		}
		s.ip("address del 10.7.7.7/32 dev gw2")
		r, err := s.lab.Run(strings.Fields(command)...)
		s.must(err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		if blocked() {
			t.Errorf("%q leaves the address that is gone in the rules", command)
		}
	}
}
