// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"
	"bascule/pf"
)

// TestLockouts checks that changes that may cut the host off by mistake are refused, with their position, and other
// changes are not.
func TestLockouts(t *testing.T) {
	const was = "bridges: {br0: {ports: {eth0: {}, eth5: {}, h0: {type: host, addresses: [192.0.2.9/24, 192.0.2.10/24]}}}, br2: {ports: {enp1s0: {}}}}"
	devices := []bridge.Device{
		{Name: "eth0", Ethernet: true, Bridge: "br0", Link: true}, {Name: "eth5", Ethernet: true, Bridge: "br0"},
		{Name: "h0", Ethernet: true, Own: true, Host: "br0", Up: true, Addresses: []string{"192.0.2.9/24", "192.0.2.10/24"},
			Kept: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("192.0.2.10/24")}, Above: []string{"mv0"}, Master: "lb0"},
		{Name: "enp1s0", Ethernet: true, Bridge: "br2", Link: true},
		{Name: "wan", Ethernet: true, Addresses: []string{"198.51.100.7/24"}},
		{Name: "mv0", Ethernet: true, Addresses: []string{"203.0.113.7/24"}}, {Name: "lb0", Ethernet: true, Addresses: []string{"203.0.113.8/24"}},
	}
	// the addresses of the session
	none, home, away, link, wanlink := "", "192.0.2.9", "198.51.100.7", "fe80::9%h0", "fe80::9%wan"
	above, master := "203.0.113.7", "203.0.113.8"
	for _, c := range []struct{ name, session, want, refusal string }{
		{"misspelt", none, "bridges: {br0: {ports: {eht0: {}, eth5: {}, h0: {type: host}}}}",
			"want.yaml:1:25: port eht0 of br0: there is no such device, and port eth0, which has a carrier, would be removed; write eth0; if that is intended, give --yes"},
		{"another slot", none, "bridges: {br0: {ports: {enp3s0: {}, eth0: {}, h0: {type: host}}}, br2: {ports: {eno1: {}}}}",
			"want.yaml:1:81: port eno1 of br2: there is no such device, and port enp1s0, which has a carrier, would be removed; write enp1s0; if that is intended, give --yes"},
		{"a pattern", none, "bridges: {br0: {ports: {eth0: {}, h0: {type: host}}}, br2: {ports: {'enp[2-9]s0': {}}}}",
			"pattern enp[2-9]s0 of br2: no device matches it, and port enp1s0, which has a carrier, would be removed; write enp1s0; if that is intended, give --yes"},
		{"a pattern of others", none, "bridges: {br2: {ports: {'vm*': {}}}}", ""},
		{"both are named", none, "bridges: {br0: {ports: {eht0: {}, eth0: {}, h0: {type: host}}}}", ""},
		{"no carrier", none, "bridges: {br0: {ports: {eth0: {}, eth6: {}, h0: {type: host}}}}", ""},
		{"another name", none, "bridges: {br0: {ports: {wlan: {}, h0: {type: host}}}}", ""},
		{"goes, and nothing waits", none, "bridges: {br0: {ports: {h0: {type: host}}}}", ""},
		{"the session's port", home, "bridges: {br0: {ports: {eth5: {}, h0: {type: host}}}}", "this ssh session comes through port eth0, which would be removed"},
		{"another port", home, "bridges: {br0: {ports: {eth0: {}, h0: {type: host}}}}", ""},
		{"the address", home, "bridges: {br0: {ports: {eth0: {}, h0: {type: host, addresses: 192.0.2.10/24}}}}", "this ssh session uses its address 192.0.2.9, which would be removed"},
		{"another address", home, "bridges: {br0: {ports: {eth0: {}, h0: {type: host, addresses: 192.0.2.9/24}}}}", ""},
		{"its port down", none, "bridges: {br0: {ports: {eth0: {up: off}, h0: {type: host}}}}", ""},
		{"its port down by the session", home, "bridges: {br0: {ports: {eth0: {up: off}, h0: {type: host}}}}", "port eth0 of br0: this ssh session comes through it, and it would be down; if that is intended, give --yes"},
		{"down", home, "bridges: {br0: {ports: {eth0: {}, h0: {type: host, up: off}}}}", "and the port would be down"},
		{"the host port", home, "bridges: {br0: {ports: {eth0: {}}}}", "uses the address 192.0.2.9 of port h0, which would be removed"},
		{"the address moves", home, "bridges: {br0: {ports: {eth0: {}, h1: {type: host, addresses: 192.0.2.9/24}}}}", ""},
		{"a port of another bridge", home, "bridges: {br1: {ports: {wan: {}}}}", ""},
		{"the device becomes a port", away, "bridges: {br1: {ports: {wan: {}}}}", "this ssh session uses its address 198.51.100.7, which is cut off"},
		{"link: the session's port", link, "bridges: {br0: {ports: {eth5: {}, h0: {type: host}}}}", "this ssh session comes through port eth0, which would be removed"},
		{"link: the host port", link, "bridges: {br0: {ports: {eth0: {}}}}", "uses the address fe80::9%h0 of port h0, which would be removed"},
		{"link: other addresses", link, "bridges: {br0: {ports: {eth0: {}, h0: {type: host, addresses: 192.0.2.99/24}}}}", ""},
		{"link: down", link, "bridges: {br0: {ports: {eth0: {}, h0: {type: host, up: off}}}}", "and the port would be down"},
		{"link: the device becomes a port", wanlink, "bridges: {br1: {ports: {wan: {}}}}", "this ssh session uses its address fe80::9%wan, which is cut off"},
		{"the device becomes a span port", away, "bridges: {br1: {mirrors: {wan: {}}}}", "want.yaml:1:27: span port wan of br1: this ssh session uses its address 198.51.100.7, which is cut off; move the address to a host port; if that is intended, give --yes"},
		{"link: the device becomes a span port", wanlink, "bridges: {br1: {mirrors: {wan: {}}}}", "span port wan of br1: this ssh session uses its address fe80::9%wan, which is cut off"},
		{"another device becomes a span port", home, "bridges: {br1: {mirrors: {wan: {}}}}", ""},
		{"the port below", above, "bridges: {br0: {ports: {eth0: }}}", "bridge br0: this ssh session uses mv0, which would be removed with port h0; if that is intended, give --yes"},
		{"the port below, down", above, "bridges: {br0: {ports: {eth0: , h0: {type: host, up: off}}}}", "port h0 of br0: this ssh session uses mv0, and the port below it would be down"},
		{"the port below, link-local", "fe80::9%mv0", "bridges: {br0: {ports: {eth0: }}}", "this ssh session uses mv0, which would be removed with port h0"},
		{"the port below stays", above, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: 192.0.2.99/24}}}}", ""},
		{"the port below goes, and the address moves", above, "bridges: {br0: {ports: {eth0: , h1: {type: host, addresses: 203.0.113.7/24}}}}", ""},
		{"the master's port", master, "bridges: {br0: {ports: {eth0: }}}", "bridge br0: this ssh session uses lb0, which would lose port h0"},
		{"its address moves, and it becomes a span port", away, "bridges: {br1: {mirrors: {wan: {}}, ports: {h1: {type: host, addresses: 198.51.100.7/24}}}}", ""},
		{"its address moves", away, "bridges: {br1: {ports: {wan: {}, h1: {type: host, addresses: 198.51.100.7/24}}}}", ""},
	} {
		var session Session
		if c.session != none {
			session = Session{Client: netip.MustParseAddr("192.0.2.77"), Server: netip.MustParseAddr(c.session)}
		}
		p := newPlan(fileOf(t, "was", was), fileOf(t, "want", c.want), devices)
		if bad := p.want.bad.errors(); bad != nil {
			t.Fatalf("%s: %v", c.name, bad)
		}
		p.refuseLockouts()
		if session.Server.IsValid() {
			p.refuseSession(session, p.was, func(host, _ netip.Addr) bridge.Station {
				return bridge.Station{Interface: "h0", Next: host, At: []bridge.Berthed{{Bridge: "br0", Port: "eth0"}}}
			})
		}
		bad := p.want.bad.errors()
		if c.refusal == "" && bad != nil || c.refusal != "" && (len(bad) != 1 || !strings.Contains(bad[0].Error(), c.refusal)) {
			t.Errorf("%s: %v", c.name, bad)
		}
	}
}

// TestUnknownWay has a session whose port is unknown. Removing the last port that the session may use is refused;
// removing another one gives a warning.
func TestUnknownWay(t *testing.T) {
	session := Session{Client: netip.MustParseAddr("192.0.2.77"), Server: netip.MustParseAddr("192.0.2.9")}
	const was = "bridges: {br0: {vlan-filtering: on, ports: {eth0: , eth5: , h0: {type: host, addresses: 192.0.2.9/24}}}}"
	for _, c := range []struct {
		want           string
		both           bool // ports have a carrier
		warns, refuses string
	}{
		{"{eth5: , h0: {type: host}}", true, "this ssh session may come through port eth0", ""},
		{"{eth0: {up: off}, eth5: , h0: {type: host}}", true, "this ssh session may come through port eth0", ""},
		{"{eth0: {pvid: 5}, eth5: , h0: {type: host}}", true, "", ""},
		{"{eth5: , h0: {type: host}}", false, "", "this ssh session may come only through port eth0, which would be removed"},
		{"{eth0: {up: off}, eth5: , h0: {type: host}}", false, "", "port eth0 of br0: this ssh session may come only through it, and it would be down"},
		{"{eth0: {pvid: 5}, eth5: , h0: {type: host}}", false, "", "may come only through port eth0, and would no longer have a VLAN to port h0"},
		{"{eth0: , eth5: , h0: {type: host, pvid: 5}}", true, "", "may come only through port eth0 or eth5, and would no longer have a VLAN to port h0"},
		{"{h0: {type: host}}", true, "", "may come only through port eth0 or eth5, which would be removed"},
		{"{eth0: , h0: {type: host}}", false, "", ""}, // eth5 has no carrier
	} {
		devices := []bridge.Device{
			{Name: "eth0", Ethernet: true, Bridge: "br0", Link: true, Up: true}, {Name: "eth5", Ethernet: true, Bridge: "br0", Link: c.both, Up: true},
			{Name: "h0", Ethernet: true, Own: true, Host: "br0", Up: true, Addresses: []string{"192.0.2.9/24"}},
		}
		p := newPlan(fileOf(t, "was", was), fileOf(t, "want", "bridges: {br0: {vlan-filtering: on, ports: "+c.want+"}}"), devices)
		p.refuseSession(session, p.was, func(host, _ netip.Addr) bridge.Station { return bridge.Station{Interface: "h0", Next: host} })
		bad := p.want.bad.errors()
		if c.refuses == "" && bad != nil || c.refuses != "" && (len(bad) != 1 || !strings.Contains(bad[0].Error(), c.refuses)) {
			t.Errorf("%s: %v", c.want, bad)
		}
		if c.warns == "" && len(p.warnings) > 0 || !strings.Contains(strings.Join(p.warnings, "\n"), c.warns) {
			t.Errorf("%s: %q", c.want, p.warnings)
		}
	}
}

// TestTakers checks which addresses at host ports take the route to the client of a session, and that such changes are
// refused. A client at the taker's own bridge is still reached.
func TestTakers(t *testing.T) {
	const was = "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: [192.0.2.9/24, '2001:db8::9/64']}}}, br1: {}}"
	const other, near = "bridges: {br1: {ports: {h1: {type: host, addresses: %s}}}}", "bridges: {br0: {ports: {eth0: , h0: {type: host}, h1: {type: host, addresses: %s}}}}"
	direct := bridge.Station{Interface: "h0", Bits: 24, At: []bridge.Berthed{{Bridge: "br0", Port: "eth0"}}}
	slow, gateway, outside, six := direct, direct, direct, direct
	slow.Metric, gateway.Gateway = 100, true
	outside.Interface, outside.At = "wan", nil
	six.Bits, six.Metric = 64, 1024
	sourced := gateway
	sourced.Source = netip.MustParseAddr("192.0.2.8")
	const four, sixth = "192.0.2.77 192.0.2.9", "2001:db8::77 2001:db8::9"
	const words = "would take the route to "
	for _, c := range []struct {
		name, session, want, address string
		station                      bridge.Station
		refusal                      string
	}{
		{"longer prefix", four, other, "192.0.2.3/25", direct, "port h1 of br1: this ssh session is routed through h0, and the port's address 192.0.2.3/25 " + words + "192.0.2.77; if that is intended, give --yes"},
		{"longer prefix without the client", four, other, "192.0.2.200/25", direct, ""},
		{"same prefix", four, other, "192.0.2.3/24", direct, ""},
		{"same prefix, smaller metric", four, other, "192.0.2.3/24", slow, words},
		{"shorter prefix", four, other, "192.0.2.3/16", slow, ""},
		{"at the client's bridge", four, near, "192.0.2.3/25", direct, ""},
		{"down", four, other, "192.0.2.3/25, up: off", direct, ""},
		{"behind a gateway", four, near, "192.0.2.3/25", gateway, words},
		{"outside the switch", four, near, "192.0.2.3/25", outside, "this ssh session is routed through wan"},
		{"outside becomes a port", four, "bridges: {br1: {ports: {wan: , h1: {type: host, addresses: %s}}}}", "[192.0.2.3/25, 198.51.100.9/24]", outside, ""},
		{"IPv6, metric", sixth, other, "'2001:db8::3/64'", six, words + "2001:db8::77"},
		{"IPv6, prefix", sixth, other, "'2001:db8::3/65'", six, words + "2001:db8::77"},
		{"IPv6, shorter prefix", sixth, other, "'2001:db8::3/63'", six, ""},
		{"the client's address", four, other, "192.0.2.77/32", direct, "port h1 of br1: its address 192.0.2.77 is the address of the client of this ssh session"},
		{"the client's address, down", four, other, "192.0.2.77/32, up: off", direct, "is the address of the client"},
		{"the client's address at its port", four, strings.Replace(near, "h1: {type: host, addresses: %s}", "", 1), "", direct, ""},
		{"the client's address beside the host's", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: %s}}}}", "[192.0.2.9/24, 192.0.2.77/32]", direct, "is the address of the client"},
		{"the client's IPv6 address", sixth, other, "'2001:db8::77/128'", six, "is the address of the client"},
		{"a session of the host's own", "192.0.2.9 192.0.2.9", near, "192.0.2.3/25", bridge.Station{Interface: "lo", Bits: 32}, ""},
		{"the gateway's address", four, other, "192.0.2.1/32", gateway, "port h1 of br1: its address 192.0.2.1 is the address of the gateway of this ssh session; if that is intended, give --yes"},
		{"the gateway's address beside the host's", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: %s}}}}", "[192.0.2.9/24, 192.0.2.1/24]", gateway, "port h0 of br0: its address 192.0.2.1 is the address of the gateway"},
		{"the address of no gateway", four, other, "192.0.2.1/32", direct, ""},
		{"the source of the route", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: %s}}}}", "192.0.2.9/24", sourced,
			"port h0 of br0: this ssh session is routed with the source address 192.0.2.8, which would be removed, and the route with it; if that is intended, give --yes"},
		{"the source of the route stays", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: %s}}}}", "[192.0.2.9/24, 192.0.2.8/32]", sourced, ""},
		{"the source of the route moves", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: 192.0.2.9/24}, h1: {type: host, addresses: %s}}}}", "192.0.2.8/32", sourced, ""},
		{"the way becomes a port", "203.0.113.77 192.0.2.9", "bridges: {br1: {ports: {wan: , h1: {type: host, addresses: %s}}}}", "198.51.100.200/24", outside, "port wan of br1: this ssh session is routed through it to 203.0.113.77, which is cut off"},
		{"the way becomes a span port", "203.0.113.77 192.0.2.9", "bridges: {br1: {mirrors: {wan: }, ports: {h1: {type: host, addresses: %s}}}}", "198.51.100.200/24", outside, "span port wan of br1: this ssh session is routed through it to 203.0.113.77, which is cut off"},
		{"a small MTU", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, mtu: %s}}}}", "575", direct, "port h0 of br0: this ssh session uses its address 192.0.2.9, and an MTU of 575 is too small for it: give 576 or more"},
		{"a small MTU, with the address", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, addresses: 192.0.2.9/24, mtu: %s}}}}", "68", direct, "an MTU of 68 is too small"},
		{"an MTU that suffices", four, "bridges: {br0: {ports: {eth0: , h0: {type: host, mtu: %s}}}}", "576", direct, ""},
		{"a small MTU elsewhere", four, "bridges: {br1: {ports: {h1: {type: host, mtu: %s}}}}", "68", direct, ""},
	} {
		devices := []bridge.Device{
			{Name: "eth0", Ethernet: true, Bridge: "br0", Link: true, Up: true},
			{Name: "h0", Ethernet: true, Own: true, Host: "br0", Up: true, MTU: 1500, Addresses: []string{"192.0.2.9/24", "192.0.2.8/32", "2001:db8::9/64"}, Kept: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24"), netip.MustParsePrefix("192.0.2.8/32"), netip.MustParsePrefix("2001:db8::9/64")}},
			{Name: "wan", Ethernet: true, Up: true, Addresses: []string{"198.51.100.9/24"}},
		}
		client, server, _ := strings.Cut(c.session, " ")
		session := Session{Client: netip.MustParseAddr(client), Server: netip.MustParseAddr(server)}
		p := newPlan(fileOf(t, "was", was), fileOf(t, "want", strings.Replace(c.want, "%s", c.address, 1)), devices)
		if bad := p.want.bad.errors(); bad != nil {
			t.Fatalf("%s: %v", c.name, bad)
		}
		p.refuseSession(session, p.was, func(host, _ netip.Addr) bridge.Station {
			c.station.Next = host
			if c.station.Gateway {
				c.station.Next = netip.MustParseAddr("192.0.2.1")
			}
			return c.station
		})
		bad := p.want.bad.errors()
		if c.refusal == "" && bad != nil || c.refusal != "" && (len(bad) != 1 || !strings.Contains(bad[0].Error(), c.refusal)) {
			t.Errorf("%s: %v", c.name, bad)
		}
	}
}

// TestHostMACs checks that the address of a host port is judged like a static entry of the FDB.
func TestHostMACs(t *testing.T) {
	const client, host = "02:00:00:00:00:07", "02:00:00:00:00:09"
	const was = "bridges: {br0: {vlan-filtering: on, ports: {eth0: , c0: {type: patch, peer: br1/c1}}}, " +
		"br1: {vlan-filtering: on, private-vlans: {20: {community: 21}}, ports: {c1: {type: patch, peer: br0/c0}, h0: {type: host, addresses: 192.0.2.9/24}}}}"
	with := func(bridge, ports string) string {
		if bridge == "br0" {
			return "bridges: {br0: {vlan-filtering: on, ports: {eth0: , c0: {type: patch, peer: br1/c1}, " + ports + "}}}"
		}
		return "bridges: {br1: {vlan-filtering: on, private-vlans: {20: {community: 21}}, ports: {c1: {type: patch, peer: br0/c0}, " + ports + "}}}"
	}
	for _, c := range []struct{ name, want, refusal string }{
		{"the client's", with("br1", "h0: {type: host}, h1: {type: host, mac: '"+client+"'}"), "frames for " + client + " would go to host port h1, which would have that address; if that is intended, give --yes"},
		{"the client's, on the way", with("br0", "h1: {type: host, mac: '"+client+"'}"), "would go to host port h1"},
		{"the client's, at the host", with("br1", "h0: {type: host, mac: '"+client+"'}"), "would go to host port h0"},
		{"the client's, in another VLAN", with("br1", "h0: {type: host}, h1: {type: host, pvid: 5, mac: '"+client+"'}"), ""},
		{"the client's, on a trunk", with("br1", "h0: {type: host}, h1: {type: host, pvid: 5, tagged: 1, mac: '"+client+"'}"), "would go to host port h1"},
		{"the client's, in a private VLAN", with("br1", "h0: {type: host}, h1: {type: host, pvid: 21, mac: '"+client+"'}"), ""},
		{"the host's, on the way", with("br0", "h1: {type: host, mac: '"+host+"'}"), "frames for " + host + " would go to host port h1"},
		{"others'", with("br0", "h1: {type: host, mac: '02:00:00:00:00:01'}"), ""},
	} {
		mac := func(text string) net.HardwareAddr { m, _ := net.ParseMAC(text); return m }
		devices := []bridge.Device{
			{Name: "eth0", Ethernet: true, Bridge: "br0", Link: true, Up: true},
			{Name: "h0", Ethernet: true, Own: true, Host: "br1", Up: true, MAC: mac(host), OwnMAC: mac(host), Addresses: []string{"192.0.2.9/24"}, Kept: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}},
		}
		p := newPlan(fileOf(t, "was", was), fileOf(t, "want", c.want), devices)
		wantSession(t, c.name, p, bridge.Station{MAC: mac(client), At: []bridge.Berthed{{Bridge: "br0", Port: "eth0", VLAN: 1}}}, c.refusal)
	}
}

// wantSession wants a plan to be refused for a session of 192.0.2.77 with 192.0.2.9, or accepted if refusal is empty.
// Interface h0 leads to the client's station.
func wantSession(t *testing.T, name string, p *plan, client bridge.Station, refusal string) {
	t.Helper()
	if bad := p.want.bad.errors(); bad != nil {
		t.Fatalf("%s: %v", name, bad)
	}
	session := Session{Client: netip.MustParseAddr("192.0.2.77"), Server: netip.MustParseAddr("192.0.2.9")}
	p.refuseSession(session, p.was, func(to, _ netip.Addr) bridge.Station {
		client.Interface, client.Next, client.Bits = "h0", to, 24
		return client
	})
	bad := p.want.bad.errors()
	if refusal == "" && bad != nil || refusal != "" && (len(bad) != 1 || !strings.Contains(bad[0].Error(), refusal)) {
		t.Errorf("%s: %v", name, bad)
	}
}

// TestPlainBridgeBetween has a bridge without VLAN filtering between two that filter. Its FDB looks a frame up in the
// VLAN of an 802.1Q tag, and a frame with a service tag in no VLAN. The addresses of its host ports are in no VLAN.
func TestPlainBridgeBetween(t *testing.T) {
	const client = "02:00:00:00:00:07"
	state := func(protocol, middle string) string {
		return strings.NewReplacer("PROTOCOL", protocol, "MIDDLE", middle).Replace("bridges: {" +
			"br0: {vlan-filtering: on, vlan-protocol: PROTOCOL, ports: {eth0: {pvid: 10}, a0: {type: patch, peer: br1/a1, tagged: 10}}}, " +
			"br1: {ports: {a1: {type: patch, peer: br0/a0}, b1: {type: patch, peer: br2/b2}, eth5: MIDDLE}, " +
			"br2: {vlan-filtering: on, vlan-protocol: PROTOCOL, ports: {b2: {type: patch, peer: br1/b1, tagged: 10}, h0: {type: host, pvid: 10, addresses: 192.0.2.9/24}}}}")
	}
	entry := func(vlan string) string { return "}, fdb: [{mac: '" + client + "', port: eth5" + vlan + "}]" }
	const own = ", h1: {type: host, mac: '" + client + "'}}"
	const byEntry, byHost = "an FDB entry would send frames for " + client + " to port eth5", "would go to host port h1"
	for _, c := range []struct{ name, protocol, middle, refusal string }{
		{"nothing", "802.1Q", "}", ""},
		{"an entry in the VLAN", "802.1Q", entry(", vlan: 10"), byEntry},
		{"an entry in another VLAN", "802.1Q", entry(", vlan: 11"), ""},
		{"an entry in no VLAN", "802.1Q", entry(""), ""},
		{"a host port", "802.1Q", own, ""},
		{"service tags", "802.1ad", "}", ""},
		{"service tags, an entry in no VLAN", "802.1ad", entry(""), byEntry},
		{"service tags, an entry in the VLAN", "802.1ad", entry(", vlan: 10"), ""},
		{"service tags, a host port", "802.1ad", own, byHost},
	} {
		mac := func(text string) net.HardwareAddr { m, _ := net.ParseMAC(text); return m }
		devices := []bridge.Device{
			{Name: "eth0", Ethernet: true, Bridge: "br0", Link: true, Up: true}, {Name: "eth5", Ethernet: true, Bridge: "br1", Link: true, Up: true},
			{Name: "h0", Ethernet: true, Own: true, Host: "br2", Up: true, MAC: mac("02:00:00:00:00:09"), Addresses: []string{"192.0.2.9/24"}, Kept: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}},
		}
		p := newPlan(fileOf(t, "was", state(c.protocol, "}")), fileOf(t, "want", state(c.protocol, c.middle)), devices)
		wantSession(t, c.name, p, bridge.Station{MAC: mac(client), At: []bridge.Berthed{{Bridge: "br0", Port: "eth0", VLAN: 10}}}, c.refusal)
	}
}

func TestLineDiff(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "pass\n", "+pass"},
		{"pass\n", "# none\n", "-pass"},
		{"a\nb\nc\nd\n", "a\nc\nx\nd\n", "-b +x"},
		{"a\nb\n", "b\na\n", "-a +a"},
		{"table <t> persist { 192.0.2.1 }\n", "table <t> persist\n", ""},
		{"anchor x {\n  pass\n}\n", "anchor x {\n  block\n}\n", "-pass +block"},
		{strings.Repeat("a\n", 3000), strings.Repeat("a\n", 3001), "+a"},
	} {
		var words []string
		for _, l := range lineDiff(c.before, c.after) {
			words = append(words, string(l.op)+l.text)
		}
		if got := strings.Join(words, " "); got != c.want {
			t.Errorf("%.40q to %.40q is %s and not %s", c.before, c.after, got, c.want)
		}
	}
	long := func(word string) string { return "first\n" + strings.Repeat(word+"\n", 3000) + "last\n" }
	if n := len(lineDiff(long("a"), long("b"))); n != 6000 {
		t.Errorf("very long texts have %d changed lines", n)
	}
}

// TestPFPlaces checks that mistakes in a file's pf rules are reported with the file's own lines and columns.
func TestPFPlaces(t *testing.T) {
	for text, want := range map[string]string{
		"bridges:\n  br0:\n    pf:\n      rules: |\n        pass\n        block frm any\n": "f.yaml:6:15",
		"bridges:\n  br0:\n    pf: {rules: block frm any}\n":                               "f.yaml:3:23",
		"bridges:\n  br0:\n    pf:\n      rules: \"pass\\nblock frm any\"\n":               "f.yaml:4:27",
	} {
		b := fileOf(t, "f", text).Bridges[0]
		_, err := pf.Parse("rules", []byte(b.PF.Rules), pf.Source{})
		bad := pfErrors(b.PF, "br0", err)
		if len(bad) != 1 || bad[0].At.String() != want || !strings.HasPrefix(bad[0].Msg, "pf of br0: ") || strings.Contains(bad[0].Msg, "rules:") {
			t.Errorf("%q: %v, not at %s", text, bad, want)
		}
	}
	b := fileOf(t, "f", "bridges:\n  br0:\n    pf:\n      rules: |\n        pass\n").Bridges[0]
	notes := b.PF.placed([]string{"rules:1:1: a note", "other"})
	if !slices.Equal(notes, []string{"f.yaml:5:9: a note", "other"}) {
		t.Error(notes)
	}
	if bad := pfErrors(b.PF, "br0", errors.New("no room")); len(bad) != 1 || bad[0].At != b.PF.At {
		t.Error(bad)
	}
}
