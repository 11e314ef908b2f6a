// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestModified checks the addresses of an interface with each modifier, as in pf.conf(5). The
// link-local network belongs to no interface.
func TestModified(t *testing.T) {
	address := func(text string, scope int, broadcast, peer string) netlink.Addr {
		ip, network, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		a := netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: network.Mask}, Scope: scope, Broadcast: net.ParseIP(broadcast)}
		if peer != "" {
			a.Peer = &net.IPNet{IP: net.ParseIP(peer)}
		}
		return a
	}
	addresses := []netlink.Addr{
		address("192.0.2.1/24", unix.RT_SCOPE_UNIVERSE, "192.0.2.255", ""),
		address("169.254.1.2/16", unix.RT_SCOPE_LINK, "169.254.255.255", ""),
		address("fe80::1/64", unix.RT_SCOPE_LINK, "", ""),
		address("2001:db8::1/64", unix.RT_SCOPE_UNIVERSE, "", "2001:db8::2"),
	}
	for modes, want := range map[string]string{
		"":          "192.0.2.1/32 169.254.1.2/32 fe80::1/128 2001:db8::1/128",
		"network":   "192.0.2.1/24 169.254.1.2/16 2001:db8::1/64", // (em0:network)/28 masks the address
		"network 0": "192.0.2.1/24 2001:db8::1/64",
		"0":         "192.0.2.1/32 2001:db8::1/128",
		"broadcast": "192.0.2.255/32 169.254.255.255/32",
		"peer":      "2001:db8::2/128",
	} {
		var got []string
		for _, p := range modified(addresses, strings.Fields(modes), true) {
			got = append(got, p.String())
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: %s, want %s", modes, got, want)
		}
	}
}

// TestBroadcast checks for the kernel's broadcast addresses of an IPv4 network, whether an address
// comes with one or not, and for none if a device or a network has none.
func TestBroadcast(t *testing.T) {
	for _, c := range []struct {
		address, broadcast string
		broadcasts         bool
		want               string
	}{
		{"192.0.2.1/24", "192.0.2.255", true, "192.0.2.255/32"},
		{"192.0.2.1/24", "", true, "192.0.2.255/32"},
		{"192.0.2.1/24", "192.0.2.0", true, "192.0.2.0/32 192.0.2.255/32"},
		{"192.0.2.1/24", "192.0.2.255", false, "192.0.2.255/32"},
		{"192.0.2.1/24", "", false, ""},
		{"192.0.2.1/30", "", true, "192.0.2.3/32"},
		{"192.0.2.0/31", "", true, ""},
		{"192.0.2.1/32", "", true, ""},
		{"2001:db8::1/64", "", true, ""},
	} {
		ip, network, err := net.ParseCIDR(c.address)
		if err != nil {
			t.Fatal(err)
		}
		a := netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: network.Mask}, Broadcast: net.ParseIP(c.broadcast)}
		var got []string
		for _, p := range modified([]netlink.Addr{a}, []string{"broadcast"}, c.broadcasts) {
			got = append(got, p.String())
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s brd %q, broadcasts %v: %q, want %q", c.address, c.broadcast, c.broadcasts, got, c.want)
		}
	}
}

// TestHostModifiers: modifiers apply to interfaces only, except for :0, which applies to hosts,
// too.
func TestHostModifiers(t *testing.T) {
	hosts := func(string, []string) ([]netip.Prefix, error) {
		return []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128"),
			netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("2001:db8::2/128")}, nil
	}
	for modes, want := range map[string]int{"": 4, "0": 2, "network": 0, "network 0": 0, "broadcast": 0, "peer": 0} {
		list, err := pfAddresses("no-device.example", strings.Fields(modes), hosts, nil)
		if len(list) != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v; want %d addresses", modes, list, err, want)
		}
	}
	if list, err := pfAddresses("no-device.example", []string{"0"}, hosts, nil); err != nil || list[0].String() != "192.0.2.1/32" || list[1].String() != "2001:db8::1/128" {
		t.Errorf(":0 is %v, %v; want the first of each family", list, err)
	}
}
