// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// hostState returns the addresses of an interface in the kernel's order, with their properties, and the namespace's
// routes. Times that pass are left out.
func hostState(t *testing.T, l *netlab.Lab, device string) string {
	t.Helper()
	ip := func(args ...string) []map[string]any {
		out, err := exec.Command("ip", append([]string{"-n", l.Switch.Name, "-j", "-d"}, args...)...).Output()
		must(t, err)
		var list []map[string]any
		must(t, json.Unmarshal(out, &list))
		return list
	}
	var lines []string
	for _, link := range ip("address", "show", "dev", device) {
		infos, _ := link["addr_info"].([]any)
		for _, info := range infos {
			a := info.(map[string]any)
			for _, life := range []string{"valid_life_time", "preferred_life_time"} {
				if n, _ := a[life].(float64); n > 0 && n < 1<<32-1 {
					a[life] = "limited"
				}
			}
			delete(a, "tentative")
			lines = append(lines, fmt.Sprint(a))
		}
	}
	var routes []string
	for _, family := range []string{"-4", "-6"} {
		for _, r := range ip(family, "route", "show", "table", "all") {
			routes = append(routes, fmt.Sprint(r))
		}
	}
	slices.Sort(routes)
	return strings.Join(append(lines, routes...), "\n")
}

// confirmAddresses puts a change back that removes the interface, its addresses, or sets it down. Its addresses have
// again what no file has, in the same order, and the host has the same routes.
func confirmAddresses(t *testing.T, l *netlab.Lab) {
	must(t, exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.default.accept_dad=0").Run())
	const base = "bridges: {br0: {ports: {p1: , p2: , h0: {type: host%s}}}}"
	changes := []string{"bridges: {br0: {ports: {p1: , p2: }}}", fmt.Sprintf(base, ", up: off, addresses: 203.0.113.77/24")}
	for _, c := range []struct {
		name  string
		setup []string
	}{
		{"point to point", []string{"address add 192.0.2.10 peer 192.0.2.1/32 dev h0", "route add default via 192.0.2.1 dev h0"}},
		{"point to point, network", []string{"address add 192.0.2.10 peer 192.0.2.1/24 dev h0"}},
		{"point to point, IPv6", []string{"address add 2001:db8::10 peer 2001:db8::1/128 dev h0", "-6 route add default via 2001:db8::1 dev h0"}},
		{"order", []string{"address add 192.0.2.20/24 dev h0", "address add 192.0.2.10/24 dev h0", "address add 198.51.100.1/24 dev h0", "address add 192.0.2.15/24 dev h0"}},
		{"order, IPv6", []string{"address add 2001:db8::20/64 dev h0", "address add 2001:db8::10/64 dev h0", "address add 2001:db8::30/64 dev h0"}},
		{"no route to the network", []string{"address add 192.0.2.10/24 dev h0 noprefixroute", "address add 2001:db8::10/64 dev h0 noprefixroute", "route add 192.0.2.0/25 dev h0"}},
		{"metric", []string{"address add 192.0.2.10/24 dev h0 metric 77", "address add 2001:db8::10/64 dev h0 metric 78"}},
		{"scope", []string{"address add 192.0.2.10/24 dev h0 scope link", "address add 192.0.2.10/32 dev h0"}},
		{"label", []string{"address add 192.0.2.10/24 dev h0 label h0:1 broadcast 192.0.2.200"}},
		{"no broadcast address", []string{"address add 192.0.2.10/24 brd - dev h0"}},
		{"deprecated", []string{"address add 2001:db8::10/64 dev h0 preferred_lft 0", "address add 2001:db8::11/64 dev h0", "address add 192.0.2.10/24 dev h0 preferred_lft 0"}},
		{"link-local", []string{"address add fe80::10/64 dev h0", "-6 route add default via fe80::1 dev h0"}},
		{"lease", []string{"address add 192.0.2.9/24 dev h0", "address add 192.0.2.10/24 dev h0 metric 7 valid_lft 5000 preferred_lft 4000", "address add 2001:db8::10/64 dev h0 valid_lft 5000 preferred_lft 0"}},
		{"lease first", []string{"address add 192.0.2.10/24 dev h0 valid_lft 5000 preferred_lft 4000", "address add 192.0.2.9/24 dev h0", "route add default via 192.0.2.1"}},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", fmt.Sprintf(base, "")))
		for _, words := range c.setup {
			ipIn(t, l, strings.Fields(words)...)
		}
		before := hostState(t, l, "h0")
		for _, change := range changes {
			tried(t, l, "1h", change)
			if said := putBackNow(t, l); !strings.Contains(said, "is put back") || strings.Contains(said, "but for") || strings.Contains(said, "cannot be given back") {
				t.Errorf("%s: the command says %s", c.name, said)
			}
			if after := hostState(t, l, "h0"); after != before {
				t.Errorf("%s: after %s there is\n%s\nand was\n%s", c.name, change, after, before)
			}
		}
		l.Bascule("port", "del", "br0", "h0", "--yes")
	}
}

// applyAddresses removes addresses of an interface that stays. The other addresses keep what no file has, and the
// host keeps its routes, also if the kernel removes all addresses of a network with the first one.
func applyAddresses(t *testing.T, l *netlab.Lab) {
	const base = "bridges: {br0: {ports: {p1: , h0: {type: host, addresses: [%s]}}}}"
	for _, promotes := range []string{"0", "1"} {
		apply(t, l, "--yes", file(t, "first.yaml", fmt.Sprintf(base, "192.0.2.10/24, 192.0.2.11/24")))
		must(t, exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv4.conf.all.promote_secondaries="+promotes, "net.ipv4.conf.h0.promote_secondaries="+promotes).Run())
		for _, words := range []string{
			"address add 192.0.2.12/24 dev h0 label h0:1", "address add 192.0.2.13/24 dev h0 valid_lft 5000 preferred_lft 4000",
			"address add 203.0.113.10 peer 203.0.113.1/32 dev h0", "route add default via 192.0.2.1", "route add 198.51.100.0/24 via 203.0.113.1", "route add 198.51.101.0/24 via 192.0.2.1 src 192.0.2.10",
		} {
			ipIn(t, l, strings.Fields(words)...)
		}
		r, err := l.Run("export")
		must(t, err)
		if want := "addresses of h0 of br0 have only their networks' lengths here: 203.0.113.10/32,192.0.2.12/24; no file has their peers"; !strings.Contains(r.Stderr, want) {
			t.Errorf("%v, and should say %s", r, want)
		}
		apply(t, l, file(t, "then.yaml", fmt.Sprintf(base, "192.0.2.11/24, 192.0.2.12/24")))
		if plan := apply(t, l, file(t, "then.yaml", fmt.Sprintf(base, "192.0.2.11/24, 192.0.2.12/24"))); len(plan) > 0 {
			t.Errorf("it is applied again: %q", plan)
		}
		after := hostState(t, l, "h0")
		for want, there := range map[string]bool{
			"label:h0:1": true, "local:192.0.2.11 ": true, "local:192.0.2.13 ": true, "dst:default ": true,
			"local:192.0.2.10 ": false, "local:203.0.113.": false, "198.51.101.": false,
		} {
			if strings.Contains(after, want) != there {
				t.Errorf("promote_secondaries=%s: %s in this: %v\n%s", promotes, want, !there, after)
			}
		}
		l.Bascule("port", "del", "br0", "h0", "--yes")
	}
}

// doorsOfSession has files and commands cut a session off by its device, by the source address of its route, and by
// the address of its gateway.
func doorsOfSession(t *testing.T, l *netlab.Lab) {
	const base = "bridges: {br0: {ports: {p1: , h0: {type: host, addresses: [%s]}}}}"
	apply(t, l, file(t, "good.yaml", fmt.Sprintf(base, "192.0.2.10/24, 203.0.113.5/32")))
	for _, words := range []string{"address add 198.51.100.10/24 dev p3", "route add default via 192.0.2.1 src 203.0.113.5"} {
		ipIn(t, l, strings.Fields(words)...)
	}
	for _, c := range []struct{ session, change, words string }{
		{"198.51.100.7 198.51.100.10", "span add br0 p3", "span port p3 of br0: this ssh session uses its address 198.51.100.10, which is cut off"},
		{"198.51.100.7 198.51.100.10", "bridges: {br0: {mirrors: {p3: }}}", "span port p3 of br0: this ssh session uses its address 198.51.100.10, which is cut off"},
		{"198.18.0.7 192.0.2.10", fmt.Sprintf(base, "192.0.2.10/24"), "this ssh session is routed with the source address 203.0.113.5, which would be removed"},
		{"198.18.0.7 192.0.2.10", fmt.Sprintf(base, "192.0.2.10/24, 203.0.113.5/32, 192.0.2.1/24"), "its address 192.0.2.1 is the address of the gateway of this ssh session"},
	} {
		from, to, _ := strings.Cut(c.session, " ")
		l.Setenv("SSH_CONNECTION", from+" 50000 "+to+" 22")
		args := strings.Fields(c.change)
		if strings.HasPrefix(c.change, "bridges:") {
			args = []string{"apply", file(t, "change.yaml", c.change)}
		}
		before := l.Bascule("export")
		l.Refused([]string{c.words, "if that is intended, give --yes"}, args...)
		if after := l.Bascule("export"); after != before {
			t.Errorf("what was refused has changed\n%sto\n%s", before, after)
		}
		if r, err := l.Run(append(args, "--yes", "--dry-run")...); err != nil || r.Exit != 3 {
			t.Error(r, err)
		}
	}
}

// confirmUppers puts a change back that removes a host port with devices of the host above it, or below a Linux bridge
// or a VRF.
func confirmUppers(t *testing.T, l *netlab.Lab) {
	must(t, exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.default.accept_dad=0").Run())
	const base, without = "bridges: {br0: {ports: {p1: , p2: , h0: {type: host}}}}", "bridges: {br0: {ports: {p1: , p2: }}}"
	for _, c := range []struct {
		name  string
		setup []string
		warns string
		lost  string // what cannot be restored
	}{
		{"macvlan", []string{"link add mv0 link h0 address 02:00:00:00:00:55 mtu 1400 type macvlan mode bridge", "link set mv0 up", "address add 203.0.113.10/24 dev mv0 label mv0:1", "route add default via 203.0.113.1"},
			"bridge br0: the host's device mv0 above port h0 will be removed with it", ""},
		{"VLAN device", []string{"link add v7 link h0 type vlan id 7 egress 1:2", "link set v7 up", "address add 203.0.113.10/24 dev v7", "link set v7 alias seven"},
			"bridge br0: the host's device v7 above port h0 will be removed with it", ""},
		{"two", []string{"link add v7 link h0 type vlan protocol 802.1ad id 7", "link add mv0 link v7 type macvlan mode private", "link set mv0 up", "address add 203.0.113.10/24 dev mv0"},
			"bridge br0: the host's device mv0 above port h0 will be removed with it", ""},
		{"Linux bridge", []string{"link add lb0 type bridge", "link set h0 master lb0", "link set lb0 up", "address add 203.0.113.10/24 dev lb0"}, "bridge br0: lb0 will lose port h0", ""},
		{"Linux bridge above a VLAN device", []string{"link add lb0 type bridge", "link add v7 link h0 type vlan id 7", "link set v7 master lb0"}, "the host's device v7 above port h0", ""},
		{"macvtap", []string{"link add mt0 link h0 type macvtap"}, "the host's device mt0 above port h0", "macvtap mt0 above h0"},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", base))
		ipIn(t, l, "link", "set", "h0", "up")
		if strings.Contains(strings.Join(c.setup, " "), "type vlan") {
			out, err := exec.Command("ip", "-n", l.Switch.Name, "link", "add", "v0", "link", "h0", "type", "vlan", "id", "5").CombinedOutput()
			if strings.Contains(string(out), "Unknown device type") {
				t.Logf("%s: the kernel has no VLAN devices", c.name)
				continue
			}
			must(t, err)
			ipIn(t, l, "link", "del", "v0")
		}
		for _, words := range c.setup {
			ipIn(t, l, strings.Fields(words)...)
		}
		look := func() (state string) {
			out, err := exec.Command("ip", "-n", l.Switch.Name, "-d", "-j", "link", "show").Output()
			must(t, err)
			var list []map[string]any
			must(t, json.Unmarshal(out, &list))
			for _, d := range list {
				if name := d["ifname"].(string); name == "h0" || name == "mv0" || name == "v7" || name == "mt0" {
					info := d["linkinfo"].(map[string]any)
					delete(info, "info_slave_data") // it has timers
					state += fmt.Sprintln(name, d["link"], d["mtu"], d["address"], info, d["ifalias"], d["master"], slices.Contains(d["flags"].([]any), any("UP")))
					state += hostState(t, l, name)
				}
			}
			return state
		}
		before := look()
		r, err := l.Run("apply", "--dry-run", file(t, "without.yaml", without))
		must(t, err)
		if !strings.Contains(r.Stderr, c.warns) {
			t.Errorf("%s: %v, and should say %s", c.name, r, c.warns)
		}
		tried(t, l, "1h", without)
		said := putBackNow(t, l)
		if c.lost == "" && (strings.Contains(said, "but for") || look() != before) {
			t.Errorf("%s: the command says %s; there is\n%s\nand was\n%s", c.name, said, look(), before)
		}
		if c.lost != "" && (!strings.Contains(said, ", but for "+c.lost) || !strings.Contains(said, c.lost+" is left out: the kernel has removed it with h0; make it again")) {
			t.Errorf("%s: the command says %s", c.name, said)
		}
		l.Bascule("port", "del", "br0", "h0", "--yes")
		_ = exec.Command("ip", "-n", l.Switch.Name, "link", "del", "lb0").Run()
	}
}
