// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bascule/test/netlab"
)

var aroundCases = []conformance{
	{name: "ingress_filters", hooks: both, run: ingressFilters},
	{name: "ingress_of_others", hooks: tcx, run: ingressOfOthers},
	{name: "device_above", hooks: tcx, run: deviceAbove},
	{name: "device_above_elsewhere", hooks: tcx, run: deviceAboveElsewhere},
	{name: "device_below", hooks: tcx, run: deviceBelow},
	{name: "stacks", hooks: tcx, run: stacks},
	{name: "mtu_changes", hooks: tcx, run: mtuChanges},
	{name: "address_later", hooks: tcx, run: addressLater},
}

// finding returns the text of a finding about a thing in port show. The second result is false if
// there is none.
func finding(l *netlab.Lab, port, kind, what string) (text string, told bool) {
	for _, p := range l.Ports("br0") {
		for _, f := range p.Findings {
			if p.Ifname == port && f.Kind == kind && f.What == what {
				return f.Text, true
			}
		}
	}
	return "", false
}

// Checks that all places that report findings have this one, or that none of them has it.
func told(t *testing.T, l *netlab.Lab, port, kind, what string, is bool) {
	t.Helper()
	text, found := finding(l, port, kind, what)
	if found != is {
		t.Errorf("port show tells of %s %s at %s: %v, should be %v", kind, what, port, found, is)
	}
	if !is {
		text = what
	}
	flat := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if out := l.Bascule("port", "show", "br0", port); strings.Contains(flat(out), flat(kind+" "+text)) != is {
		t.Errorf("what is shown of %s should tell of %s %s: %v\n%s", port, kind, what, is, out)
	}
	if out := l.Bascule("check"); strings.Contains(flat(out), "br0/"+port+" note "+flat(text)) != is {
		t.Errorf("check should tell of %s %s at %s: %v\n%s", kind, what, port, is, out)
	}
}

// warns checks that a command prints one line of warning for each list of words.
func warns(t *testing.T, l *netlab.Lab, args []string, lines ...[]string) {
	t.Helper()
	r, err := l.Run(args...)
	must(t, err)
	got := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
	if r.Stderr == "" {
		got = nil
	}
	if r.Exit != 0 || len(got) != len(lines) {
		t.Fatalf("%v: should succeed, with %d warnings", r, len(lines))
	}
	for i, words := range lines {
		for _, word := range words {
			if !strings.Contains(got[i], word) {
				t.Errorf("%q should say %q", got[i], word)
			}
		}
	}
}

// counted returns a counter of a chain of nftables.
func counted(t *testing.T, l *netlab.Lab, chain string) int {
	t.Helper()
	out := inNamespace(t, l.Switch, "nft", "list", "chain", "netdev", "t", chain)
	n, err := strconv.Atoi(regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(out)[1])
	must(t, err)
	return n
}

// Ingress filters of the host at a device apply to its frames, and to none when it is a port. This
// is reported at once, and as long as it lasts. A chain or qdisc without a filter is not reported.
func ingressFilters(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	a, b, c := ends[0], ends[1], ends[2]
	ports := []*netlab.End{a, b, c}
	if hook == "xdp" {
		for _, e := range ports {
			e.ReadyForXDP()
		}
	}
	tc := func(args ...string) { inNamespace(t, l.Switch, "tc", args...) }
	nft := func(text string) { inNamespace(t, l.Switch, "nft", text) }
	must(t, l.Switch.Netlink().LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "ifb0"}}))
	l.Keep("ifb0")
	tc("qdisc", "add", "dev", a.Port, "ingress")
	tc("filter", "add", "dev", a.Port, "parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0",
		"action", "mirred", "egress", "redirect", "dev", "ifb0")
	nft("add table netdev t; add chain netdev t in { type filter hook ingress devices = { " + b.Port + " } priority 0; }; " +
		"add rule netdev t in counter drop; " +
		"add chain netdev t none { type filter hook ingress devices = { " + c.Port + " } priority 0; }")
	tc("qdisc", "add", "dev", c.Port, "clsact")

	frames := l.Frames(3, netlab.Broadcast, A)
	l.Send(b, frames...)
	before := counted(t, l, "in")
	if before < len(frames) {
		t.Fatalf("the chain has met %d frames of a device that is no port: the test is blind", before)
	}
	l.Bascule("bridge", "add", "br0")
	add := []string{"port", "add", "br0", a.Port, "--hook", hook}
	if hook == "xdp" { // in addition to its other warnings
		r, err := l.Run(add...)
		must(t, err)
		if r.Exit != 0 || !strings.Contains(r.Stderr, "tc ingress u32") {
			t.Errorf("%v: should succeed, and warn of the filter", r)
		}
		l.Bascule("port", "del", "br0", a.Port)
		add = add[:4]
	}
	warns(t, l, add, []string{a.Port, "tc ingress u32", "pf"})
	warns(t, l, []string{"port", "add", "br0", b.Port}, []string{b.Port, "nftables netdev t in"})
	warns(t, l, []string{"port", "add", "br0", c.Port})
	told(t, l, a.Port, "ingress-filter", "tc ingress u32", true)
	told(t, l, b.Port, "ingress-filter", "nftables netdev t in", true)
	if found := l.Port("br0", c.Port).Findings; found != nil {
		t.Errorf("filters that filter nothing are told of: %+v", found)
	}
	before = counted(t, l, "in")
	l.Reach(b, frames, a, c)
	l.Reach(a, frames, b, c)
	if n := counted(t, l, "in"); n != before {
		t.Errorf("the chain has met %d frames of a port", n-before)
	}

	m := l.NewMonitor("br0", c)
	is := func(kind, port, word string) func(netlab.Event) bool {
		return func(e netlab.Event) bool {
			return e.Event == kind && e.Ifname == port && strings.Contains(e.Reason, word)
		}
	}
	m.Wait("the filter that is there", is("port-finding", a.Port, "tc ingress u32"))
	tc("qdisc", "del", "dev", a.Port, "ingress")
	m.Wait("that the filter went", is("port-cleared", a.Port, "tc ingress u32"))
	told(t, l, a.Port, "ingress-filter", "tc ingress u32", false)
	nft("add rule netdev t none counter drop")
	m.Wait("a filter that comes later", is("port-finding", c.Port, "nftables netdev t none"))
	nft("delete table netdev t")
	m.Wait("that it went", is("port-cleared", c.Port, "nftables netdev t none"))
	tc("filter", "add", "dev", c.Port, "ingress", "protocol", "all", "u32", "match", "u32", "0", "0",
		"action", "mirred", "egress", "redirect", "dev", "ifb0")
	m.Wait("a filter of clsact", is("port-finding", c.Port, "tc ingress u32"))
	tc("qdisc", "del", "dev", c.Port, "clsact")
	m.Stop()
}

// Another program at the same hook sees no frame if it was attached after the port's program. If it
// was attached before, it sees all frames.
func ingressOfOthers(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	a, b := ends[0], ends[1]
	attach := func(port, name string) link.Link {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: name, Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
		must(t, err)
		t.Cleanup(func() { p.Close() })
		nl, err := l.Switch.Netlink().LinkByName(port)
		must(t, err)
		var at link.Link
		must(t, l.Switch.Do(func() (err error) {
			at, err = link.AttachTCX(link.TCXOptions{Interface: nl.Attrs().Index, Program: p, Attach: ebpf.AttachTCXIngress})
			return err
		}))
		return at
	}
	first := attach(a.Port, "theirs_first")
	defer first.Close()
	l.AddBridge("br0", "tcx", ends)
	if found := l.Port("br0", a.Port).Findings; found != nil {
		t.Errorf("a program that sees all frames is told of: %+v", found)
	}
	m := l.NewMonitor("br0", b)
	last := attach(a.Port, "theirs_last")
	m.Wait("the program", func(e netlab.Event) bool {
		return e.Event == "port-finding" && e.Ifname == a.Port && strings.Contains(e.Reason, "tcx program theirs_last")
	})
	told(t, l, a.Port, "ingress-filter", "tcx program theirs_last", true)
	must(t, last.Close())
	m.Wait("that the program went", func(e netlab.Event) bool { return e.Event == "port-cleared" && e.Ifname == a.Port })
	told(t, l, a.Port, "ingress-filter", "tcx program theirs_last", false)
	m.Stop()

	// An XDP program runs before the switch, and is no finding.
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // XDP_DROP
	})
	must(t, err)
	defer p.Close()
	nl, err := l.Switch.Netlink().LinkByName(a.Port)
	must(t, err)
	var drops link.Link
	must(t, l.Switch.Do(func() (err error) {
		drops, err = link.AttachXDP(link.XDPOptions{Interface: nl.Attrs().Index, Program: p, Flags: link.XDPGenericMode})
		return err
	}))
	l.Reach(a, l.Frames(3, netlab.Broadcast, A))
	if found := l.Port("br0", a.Port).Findings; found != nil {
		t.Errorf("a program that meets all frames is told of: %+v", found)
	}
	must(t, drops.Close())
	l.Wait("the program to go", func() bool { // another test's command that starts at this moment may hold it, too
		now, err := l.Switch.Netlink().LinkByName(a.Port)
		return err == nil && (now.Attrs().Xdp == nil || !now.Attrs().Xdp.Attached)
	})
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
}

// macvlan makes a macvlan above another device.
func macvlan(t *testing.T, l *netlab.Lab, name, below string) netlink.Link {
	t.Helper()
	nl, err := l.Switch.Netlink().LinkByName(below)
	must(t, err)
	above := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: nl.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	must(t, l.Switch.Netlink().LinkAdd(above))
	must(t, l.Switch.Netlink().LinkSetUp(above))
	t.Cleanup(func() { _ = l.Switch.Netlink().LinkDel(above) }) // otherwise the lower device stays promiscuous
	nl, err = l.Switch.Netlink().LinkByName(name)
	must(t, err)
	return nl
}

// A device below others is refused, by all commands, unless that is forced. Devices above a port's
// device receive nothing, and that is reported, also if one is added later.
func deviceAbove(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	a, b, c := ends[0], ends[1], ends[2]
	mv := macvlan(t, l, "mv0", a.Port)
	macvlan(t, l, "mv1", a.Port)
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", b.Port)
	words := []string{a.Port, "macvlan mv0, macvlan mv1", "--type host", "--force"}
	l.Refused(words, "port", "add", "br0", a.Port)
	l.Refused(words, "span", "add", "br0", a.Port)
	l.Refused(words, "plug", "guest7", "--bridge", "br0", "--device", a.Port)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "switch.yaml")
		must(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	byName := file("bridges: {br0: {ports: {" + a.Port + ": {}, " + b.Port + ": {}}}}")
	words = []string{a.Port, "macvlan mv0, macvlan mv1", "--type host", "force: on"}
	l.Refused(words, "apply", byName)
	l.Refused(words, "apply", file("bridges: {br0: {ports: {"+b.Port+": {}}, mirrors: {"+a.Port+": {}}}}"))
	warns(t, l, []string{"apply", file("bridges: {br0: {ports: {'" + a.Port + "*': {}, " + b.Port + ": {}}}}")}, []string{a.Port, "mv0", "force: on"})
	if n := len(l.Ports("br0")); n != 1 {
		t.Errorf("the bridge has %d ports, should have one", n)
	}

	above := [][]string{{"macvlan mv0 is above " + a.Port}, {"macvlan mv1 is above " + a.Port}}
	for _, way := range [][]string{
		{"port", "add", "br0", a.Port, "--force"},
		{"span", "add", "br0", a.Port, "--force"},
		{"plug", "guest7", "--bridge", "br0", "--device", a.Port, "--force"},
		{"apply", file("bridges: {br0: {ports: {" + a.Port + ": {force: on}, " + b.Port + ": {}}}}")},
		{"apply", "--force", byName},
	} {
		warns(t, l, way, above...)
		told(t, l, a.Port, "device-above", "macvlan mv0", true)
		l.Bascule("port", "del", "br0", a.Port)
	}
	warns(t, l, []string{"port", "add", "br0", a.Port, "--force"}, above...)
	out := l.Bascule("export")
	if !strings.Contains(out, a.Port+": {force: on}") {
		t.Errorf("what is exported cannot be applied:\n%s", out)
	}
	l.Bascule("apply", file(out)) // as it is

	// The former macvlan receives nothing, and the port receives everything.
	heard := l.Listen(l.Switch, "mv0")
	l.Reach(b, l.Frames(3, netlab.MAC(mv.Attrs().HardwareAddr), B), a)
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
	if got := heard.Received(); len(got) > 0 {
		t.Errorf("a device above a port has got %d frames", len(got))
	}

	m := l.NewMonitor("br0", b)
	l.Bascule("port", "add", "br0", c.Port)
	later := macvlan(t, l, "mv2", c.Port)
	m.Wait("the device that came later", func(e netlab.Event) bool {
		return e.Event == "port-finding" && e.Ifname == c.Port && strings.Contains(e.Reason, "macvlan mv2 is above "+c.Port)
	})
	told(t, l, c.Port, "device-above", "macvlan mv2", true)
	must(t, l.Switch.Netlink().LinkDel(later))
	m.Wait("that it went", func(e netlab.Event) bool {
		return e.Event == "port-cleared" && e.Ifname == c.Port && e.Reason == "macvlan mv2"
	})
	told(t, l, c.Port, "device-above", "macvlan mv2", false)
	m.Stop()

	// A device above a host port's interface receives its frames, as before.
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	macvlan(t, l, "mv3", "host0")
	if found := l.Port("br0", "host0").Findings; found != nil {
		t.Errorf("a device above a host port is told of: %+v", found)
	}
}

// Devices above may be in other network namespaces, like containers' devices.
func deviceAboveElsewhere(t *testing.T, _ string) {
	l := netlab.New(t)
	end := l.NewEnds(1)[0]
	here, elsewhere := l.Switch.Netlink(), l.NewNamespace()
	// A device of no guest.
	must(t, here.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}, VxlanId: 7, Port: 4789}))
	l.Keep("uplink0")
	uplink, err := here.LinkByName("uplink0")
	must(t, err)
	to, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer to.Close()
	macvlan := func() {
		t.Helper()
		must(t, here.LinkAdd(&netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{Name: "eth7", ParentIndex: uplink.Attrs().Index, Namespace: netlink.NsFd(to)},
			Mode:      netlink.MACVLAN_MODE_BRIDGE,
		}))
	}
	gone := func() {
		t.Helper()
		away, err := elsewhere.Netlink().LinkByName("eth7")
		must(t, err)
		must(t, elsewhere.Netlink().LinkDel(away))
	}
	what := "macvlan eth7 of network namespace " + elsewhere.Name
	macvlan()
	l.AddBridge("br0", "tcx", []*netlab.End{end})
	l.Refused([]string{"uplink0", what, "--force"}, "port", "add", "br0", "uplink0")
	gone()
	r, err := l.Run("port", "add", "br0", "uplink0")
	must(t, err)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	m := l.NewMonitor("br0", end)
	macvlan()
	m.Wait("the device", func(e netlab.Event) bool {
		return e.Event == "port-finding" && e.Ifname == "uplink0" && strings.Contains(e.Reason, what)
	})
	told(t, l, "uplink0", "device-above", what, true)
	gone()
	m.Wait("that it went", func(e netlab.Event) bool { return e.Event == "port-cleared" && e.Ifname == "uplink0" })
	told(t, l, "uplink0", "device-above", what, false)
	m.Stop()
	l.Bascule("port", "del", "br0", "uplink0")
}

// A device above a port's device receives nothing, and is refused.
func deviceBelow(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	a := ends[0].Port
	macvlan(t, l, "mv0", a)
	l.Bascule("bridge", "add", "br1")
	for _, bridge := range []string{"br0", "br1"} {
		words := []string{"mv0", "above " + a, "a port of br0", "--type patch", "--force"}
		l.Refused(words, "port", "add", bridge, "mv0")
		l.Refused(words, "span", "add", bridge, "mv0")
	}
	warns(t, l, []string{"port", "add", "br1", "mv0", "--force"}, []string{"mv0", "above " + a, "a port of br0"})
	if i := slices.IndexFunc(l.Ports("br1"), func(p netlab.PortInfo) bool {
		return len(p.Findings) == 1 && p.Findings[0].Kind == "port-below" && p.Findings[0].What == a
	}); i < 0 {
		t.Errorf("port show tells of %+v", l.Ports("br1"))
	}
	l.Bascule("port", "del", "br1", "mv0")

	// A device above a host port's interface is like any other.
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	macvlan(t, l, "mv1", "host0")
	l.Bascule("port", "add", "br1", "mv1")
	l.Bascule("bridge", "del", "br1")
	l.Bascule("span", "add", "br0", l.NewEnds(1)[0].Port)
}

// Each kind of device that this kernel can put above another one is refused, above and below, and is
// reported when it is added later.
func stacks(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	here := l.Switch.Netlink()
	a, err := here.LinkByName(ends[0].Port)
	must(t, err)
	b := ends[1].Port
	at := netlink.LinkAttrs{Name: "upper0", ParentIndex: a.Attrs().Index}
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", b)
	for kind, upper := range map[string]netlink.Link{
		"vlan":    &netlink.Vlan{LinkAttrs: at, VlanId: 10},
		"macvlan": &netlink.Macvlan{LinkAttrs: at, Mode: netlink.MACVLAN_MODE_BRIDGE},
		"macvtap": &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: at, Mode: netlink.MACVLAN_MODE_BRIDGE}},
		"ipvlan":  &netlink.IPVlan{LinkAttrs: at, Mode: netlink.IPVLAN_MODE_L2},
		"macsec":  &netlink.GenericLink{LinkAttrs: at, LinkType: "macsec"},
	} {
		if err := here.LinkAdd(upper); err != nil {
			t.Logf("this kernel makes no %s: %v", kind, err)
			continue
		}
		way := "--type host"
		if kind == "vlan" {
			way = "VLAN 10"
		}
		l.Refused([]string{ends[0].Port, kind + " upper0 is above it", way, "--force"}, "port", "add", "br0", ends[0].Port)
		must(t, here.LinkDel(upper))
		l.Bascule("port", "add", "br0", ends[0].Port)
		must(t, here.LinkAdd(upper))
		told(t, l, ends[0].Port, "device-above", kind+" upper0", true)
		l.Refused([]string{"upper0", "above " + ends[0].Port + ", a port of br0", "--force"}, "port", "add", "br0", "upper0")
		must(t, here.LinkDel(upper))
		l.Bascule("port", "del", "br0", ends[0].Port)
	}
}

// A later change of an MTU is reported, as port add reports it.
func mtuChanges(t *testing.T, _ string) {
	l, ends := setup(t, "tcx", 3)
	a, b := ends[0], ends[1]
	if found := l.Port("br0", b.Port).Findings; found != nil {
		t.Errorf("ports alike are told of: %+v", found)
	}
	m := l.NewMonitor("br0", ends[2])
	for _, change := range []struct {
		end  *netlab.End
		mtu  int
		says string
	}{
		{b, 1400, "MTU 1400, other ports up to 1500: larger frames to " + b.Port + " will be dropped"},
		{b, 1500, "MTU 1500, and no frame is lost by that"},
		{a, 9000, "MTU 9000, other ports down to 1500: larger frames from " + a.Port + " to those will be dropped"},
	} {
		change.end.SetMTU(change.mtu)
		m.Wait(change.says, func(e netlab.Event) bool {
			return e.Event == "port-mtu" && e.Ifname == change.end.Port && strings.Contains(e.Reason, change.says)
		})
		told(t, l, b.Port, "mtu", "1400", change.mtu == 1400)
	}
	told(t, l, b.Port, "mtu", "1500", true)
	if found := l.Port("br0", a.Port).Findings; found != nil {
		t.Errorf("the port of the largest MTU is told of: %+v", found)
	}
	m.Stop()
}

// An address that is added to a port's device later is reported, too.
func addressLater(t *testing.T, _ string) {
	l, ends := setup(t, "tcx", 2)
	a, b := ends[0], ends[1]
	m := l.NewMonitor("br0", b)
	nl, err := l.Switch.Netlink().LinkByName(a.Port)
	must(t, err)
	address, err := netlink.ParseAddr("192.0.2.1/24")
	must(t, err)
	must(t, l.Switch.Netlink().AddrAdd(nl, address))
	m.Wait("the address", func(e netlab.Event) bool {
		return e.Event == "port-finding" && e.Ifname == a.Port && strings.Contains(e.Reason, "192.0.2.1/24")
	})
	told(t, l, a.Port, "address", "192.0.2.1/24", true)
	must(t, l.Switch.Netlink().AddrDel(nl, address))
	m.Wait("that it went", func(e netlab.Event) bool { return e.Event == "port-cleared" && e.Reason == "192.0.2.1/24" })
	m.Stop()
}
