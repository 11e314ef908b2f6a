// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	labends "bascule/lab/ends"
	"bascule/test/netlab"
)

// former is the station that had an address before.
var former = net.HardwareAddr{2, 0, 0, 0, 0xf0, 1}

// remember adds entries for former to a station's neighbour table, like those that stay for minutes
// after a conversation.
func remember(t *testing.T, e *netlab.End, addresses ...string) {
	t.Helper()
	for _, a := range addresses {
		must(t, e.Namespace.Netlink().NeighSet(&netlink.Neigh{LinkIndex: e.Ifindex, State: netlink.NUD_STALE, IP: net.ParseIP(a), HardwareAddr: former}))
	}
}

// believes reports whether a station's neighbour table has a MAC address for some addresses. The
// station has sent nothing.
func believes(t *testing.T, e *netlab.End, mac net.HardwareAddr, addresses ...string) bool {
	t.Helper()
	list, err := e.Namespace.Netlink().NeighList(e.Ifindex, netlink.FAMILY_ALL)
	must(t, err)
	n := 0
	for _, a := range addresses {
		for _, have := range list {
			if have.IP.Equal(net.ParseIP(a)) && bytes.Equal(have.HardwareAddr, mac) {
				n++
			}
		}
	}
	return n == len(addresses)
}

// An address or MAC address that is added to a host port is announced to the stations of its VLAN,
// and to no others: by a command, after ip(8), and by the agent.
func neighboursTold(t *testing.T, l *netlab.Lab, r *runner) {
	must(t, l.Switch.Do(func() error {
		return errors.Join(labends.Sysctl("net.ipv6.conf.all.disable_ipv6", "0"), labends.Sysctl("net.ipv6.conf.default.disable_ipv6", "0"))
	}))
	stations := l.NewEnds(2)
	here, elsewhere := stations[0], stations[1]
	file := filepath.Join(t.TempDir(), "switch.yaml")
	const first4, first6, later4, later6 = "198.18.0.200", "fdba::200", "198.18.0.201", "fdba::201"
	apply := func(more string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte("bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10}, p2: {pvid: 20}, host0: {type: host, pvid: 10"+more+"}}}}"), 0o600))
		l.Bascule("apply", file)
	}
	apply("")
	for _, e := range stations {
		e.Host()
	}
	host := device(t, l, "host0")
	own := host.Attrs().HardwareAddr
	heard := func(what string, mac net.HardwareAddr, addresses ...string) {
		t.Helper()
		l.Wait("the stations to hear of "+what, func() bool { return believes(t, here, mac, addresses...) })
		if !believes(t, elsewhere, former, addresses...) {
			t.Errorf("a station in another VLAN hears of %s", what)
		}
	}
	all := func(addresses ...string) {
		t.Helper()
		for _, e := range stations {
			remember(t, e, addresses...)
		}
	}
	all(first4, first6)
	apply(", addresses: [" + first4 + "/24, '" + first6 + "/64']")
	heard("addresses of an interface that comes up", own, first4, first6)

	all(later4, later6)
	apply(", addresses: [" + first4 + "/24, '" + first6 + "/64', " + later4 + "/24, '" + later6 + "/64']")
	heard("addresses of an interface that is up", own, later4, later6)

	mac := net.HardwareAddr{2, 0, 0, 0, 0xf0, 2}
	all(first4, first6, later4, later6)
	l.Bascule("port", "set", "br0", "host0", "--mac", mac.String())
	heard("another MAC address", mac, first4, first6, later4, later6)

	all(first4, first6)
	must(t, l.Switch.Netlink().LinkSetHardwareAddr(host, own))
	heard("a MAC address that ip(8) gives", own, first4, first6)

	r.start()
	const by4, by6, at6 = "198.18.0.202", "fdba::202", "fdba::203"
	all(by4, by6, at6)
	for _, text := range []string{by4 + "/24", by6 + "/64", at6 + "/64"} {
		a, err := netlink.ParseAddr(text)
		must(t, err)
		if text == at6+"/64" {
			a.Flags = 2 // IFA_F_NODAD: it is used at once, without an event of the kernel
		}
		must(t, l.Switch.Netlink().AddrAdd(host, a))
	}
	heard("addresses that ip(8) gives", own, by4, by6, at6)

	l.Bascule("port", "del", "br0", "p1")
	carrier(t, l, "host0", false)
	all(by4)
	l.Bascule("port", "add", "br0", "p1")
	l.Bascule("vlan", "add", "br0", "p1", "10", "--pvid", "--untagged")
	l.Bascule("vlan", "del", "br0", "p1", "1")
	heard("addresses of an interface that gets a carrier", own, by4)
}
