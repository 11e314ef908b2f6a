// SPDX-License-Identifier: BSD-2-Clause

package oracle

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// The stations of two networks between which the host routes: two senders behind their gateway
// gw1, and the oracle behind gw2.
var (
	farSender   = station{sender.mac, addr("10.1.0.1"), addr("fd01::1")}
	farNobody   = station{nobody.mac, addr("10.1.0.66"), addr("fd01::66")}
	farReceiver = station{receiver.mac, addr("10.2.0.2"), addr("fd02::2")}
	farAnyone   = []station{farSender, farNobody}

	routable = []string{"udp4", "udp6", "tcp4", "tcp6", "icmp4", "icmp6", "error4", "error6"}
	datagram = []string{"udp4", "udp6"}
)

// ofFar returns whether a packet is from the senders, unchanged.
func ofFar(s sighting) bool {
	return s.from == farSender.ip4 || s.from == farSender.ip6 || s.from == farNobody.ip4 || s.from == farNobody.ip6
}

func ofFarNobody(s sighting) bool { return s.from == farNobody.ip4 || s.from == farNobody.ip6 }

// takenIP returns whether the oracle has accepted a packet that is not from the host itself.
func takenIP(s sighting) bool {
	own := s.from.IsLinkLocalUnicast() || s.from.IsUnspecified() || s.from == addr("10.2.0.254") || s.from == addr("fd02::254")
	return (any4(s) || atSockets(s)) && !own
}

// routedFilters hold back packets that the host routes.
var routedFilters = []filter{
	{
		name: "pf in", kinds: routable, froms: farAnyone,
		on: pfRules("pass no state\nblock drop in on gw1\n"), off: pfOff, alarm: takenIP,
	},
	{
		name: "pf out", kinds: routable, froms: farAnyone,
		on: pfRules("pass\nblock drop out on gw2\n"), off: pfOff, alarm: takenIP,
	},
	{
		name: "pf port in", kinds: datagram, froms: farAnyone,
		on: pfRules(fmt.Sprintf("pass no state\nblock drop in on gw1 proto udp to port %d\n", portOpen)), off: pfOff,
		alarm:  func(s sighting) bool { return s.by == socketUDP && s.ports[1] == portOpen },
		passes: "udp4 also", from: farSender,
	},
	{
		name: "pf port out", kinds: datagram, froms: farAnyone,
		on: pfRules(fmt.Sprintf("pass\nblock drop out on gw2 proto udp to port %d\n", portOpen)), off: pfOff,
		alarm:  func(s sighting) bool { return s.by == socketUDP && s.ports[1] == portOpen },
		passes: "udp6 also", from: farSender,
	},
	{
		name: "pf address in", kinds: routable, froms: []station{farNobody},
		on: pfRules(fmt.Sprintf("pass\nblock drop in on gw1 from { %v %v }\n", farNobody.ip4, farNobody.ip6)), off: pfOff,
		alarm:  func(s sighting) bool { return takenIP(s) && ofFarNobody(s) },
		passes: "udp4", from: farSender,
	},
	{
		name: "pf address out", kinds: routable, froms: []station{farNobody},
		on: pfRules(fmt.Sprintf("pass no state\nblock drop out on gw2 from { %v %v }\n", farNobody.ip4, farNobody.ip6)), off: pfOff,
		alarm:  func(s sighting) bool { return takenIP(s) && ofFarNobody(s) },
		passes: "udp6", from: farSender,
	},
	{
		name: "ether in", kinds: routable, froms: farAnyone,
		on: pfRules("ether block in on gw1 proto { 0x0800 0x86dd }\n"), off: pfOff, alarm: takenIP,
	},
	{
		name: "ether out", kinds: routable, froms: farAnyone,
		on: pfRules("ether block out on gw2 proto { 0x0800 0x86dd }\n"), off: pfOff, alarm: takenIP,
	},
	{
		name: "ether address out", kinds: routable, froms: []station{farNobody},
		on: pfRules(fmt.Sprintf("ether block out on gw2 l3 from %v\nether block out on gw2 l3 from %v\n", farNobody.ip4, farNobody.ip6)), off: pfOff,
		alarm:  func(s sighting) bool { return takenIP(s) && ofFarNobody(s) },
		passes: "udp4", from: farSender,
	},
	{ // A frame from the host enters the switch through the host's port.
		name: "rule out of the host", kinds: routable, froms: farAnyone,
		on:  func(s *site) { s.lab.Bascule("rule", "add", "br0", "gw2", "block", "in") },
		off: macOff, alarm: takenIP,
	},
	{
		name: "source guard", kinds: routable, froms: []station{farNobody, {sender.mac, farNobody.ip4, farNobody.ip6}},
		on: func(s *site) {
			for _, a := range []netip.Addr{farSender.ip4, farSender.ip6} {
				s.lab.Bascule("binding", "add", "br0", s.in(), sender.mac.String(), a.String(), "--vlan", "11")
			}
			s.lab.Bascule("port", "set", "br0", s.in(), "--source-guard")
		},
		off: func(s *site) {
			s.lab.Bascule("port", "set", "br0", s.in(), "--source-guard=off")
			s.lab.Bascule("binding", "flush", "br0")
		},
		alarm:  func(s sighting) bool { return takenIP(s) && ofFarNobody(s) },
		passes: "udp4", from: farSender,
	},
	{ // No packet leaves unchanged.
		name: "nat-to", kinds: routable, froms: farAnyone,
		on:  pfRules("match out on gw2 inet from 10.1.0.0/16 nat-to 10.2.0.9\nmatch out on gw2 inet6 from fd01::/64 nat-to fd02::9\npass\n"),
		off: pfOff, alarm: func(s sighting) bool { return takenIP(s) && ofFar(s) },
		passes: "udp4 also", from: farSender,
	},
	{
		name: "binat-to", kinds: routable, froms: []station{farNobody},
		on:  pfRules(fmt.Sprintf("match on gw2 from %v binat-to 10.2.0.9\nmatch on gw2 from %v binat-to fd02::9\npass\n", farNobody.ip4, farNobody.ip6)),
		off: pfOff, alarm: func(s sighting) bool { return takenIP(s) && ofFarNobody(s) },
		passes: "udp6 also", from: farNobody,
	},
	{ // No packet reaches its original destination.
		name: "rdr-to", kinds: datagram, froms: farAnyone,
		on: pfRules(fmt.Sprintf("match in on gw1 inet proto udp to port %d rdr-to %v port %d\nmatch in on gw1 inet6 proto udp to port %[1]d rdr-to %[4]v port %[3]d\npass\n",
			portOpen, farReceiver.ip4, portAlso, farReceiver.ip6)),
		off: pfOff, alarm: func(s sighting) bool { return s.by == socketUDP && s.ports[1] == portOpen },
		passes: "udp4", from: farSender,
	},
}

// newRoutedSite makes a host that routes between the sender and the oracle. Each has a VLAN of
// its own, with a host port as its gateway. With route the datapath routes.
func newRoutedSite(t *testing.T, hook string, route, tapped bool) *site {
	l := netlab.New(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(l.Switch.Do(func() (err error) {
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv6/conf/default/accept_dad": "0", "ipv6/conf/default/disable_ipv6": "0",
		} {
			err = errors.Join(err, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644))
		}
		return err
	}))
	s := &site{t: t, lab: l, kind: bridge{vlans: true, host: []string{"--type", "host"}}, routed: true}
	s.ports[0] = s.addSender(tapped)
	at := l.NewEnd(l.NewNamespace())
	s.ports[1] = at.Port
	s.addBridge(hook, "--vlan-filtering", "--qinq")
	if route {
		s.kind.host = append(s.kind.host, "--route")
	}
	for i, net4 := range []string{"10.1.0.", "10.2.0."} {
		gateway, vlan, net6 := fmt.Sprintf("gw%d", i+1), fmt.Sprint(11+i), fmt.Sprintf("fd0%d::", i+1)
		l.Bascule(append([]string{"port", "add", "br0", gateway}, s.kind.host...)...)
		for _, port := range []string{s.ports[i], gateway} {
			l.Bascule("vlan", "add", "br0", port, vlan, "--pvid", "--untagged")
			l.Bascule("vlan", "del", "br0", port, "1")
		}
		end := hostEnd(t, l, gateway)
		for a, bits := range map[string]int{net4 + "254": 24, net6 + "254": 64} {
			ip := net.IPNet{IP: addr(a).AsSlice(), Mask: net.CIDRMask(bits, addr(a).BitLen())}
			must(l.Switch.Netlink().AddrAdd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: end.Ifindex}}, &netlink.Addr{IPNet: &ip, Flags: unix.IFA_F_NODAD}))
		}
		for _, of := range map[int][]station{0: farAnyone, 1: {farReceiver}}[i] {
			for _, a := range []netip.Addr{of.ip4, of.ip6} {
				must(l.Switch.Netlink().NeighSet(&netlink.Neigh{
					LinkIndex: end.Ifindex, IP: a.AsSlice(), HardwareAddr: of.mac[:], State: netlink.NUD_PERMANENT,
				}))
			}
		}
		if i == 0 {
			s.to = station{end.MAC, farReceiver.ip4, farReceiver.ip6}
		}
	}
	at.FinishChecksums()
	s.oracle = newOracle(t, at, farReceiver)
	s.await(farSender)
	return s
}

// Packets do not bypass a filter where the host or the datapath routes.
func TestRoutedOracle(t *testing.T) {
	for _, at := range []struct{ hook, by string }{{"tcx", "stack"}, {"tcx", "datapath"}, {"xdp", "datapath"}} {
		t.Run(at.hook+"/"+at.by, func(t *testing.T) {
			t.Parallel()
			newRoutedSite(t, at.hook, at.by == "datapath", false).holdsEach(t, routedFilters)
		})
	}
}
