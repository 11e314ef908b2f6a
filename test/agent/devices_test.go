// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	labends "bascule/lab/ends"
	"bascule/test/netlab"
)

// deviceCases are the agent's reactions to changes of devices that no command made.
var deviceCases = []struct {
	name string
	run  func(t *testing.T, l *netlab.Lab, r *runner)
}{
	{"host_mac_changes", hostMACChanges},
	{"macvlan_comes", macvlanComes},
	{"host_carrier", hostCarrier},
	{"host_carrier_vlans", hostCarrierVLANs},
	{"host_carrier_stp", hostCarrierSTP},
	{"host_carrier_killed", hostCarrierKilled},
	{"carrier_lost", carrierLost},
	{"port_taken", portTaken},
	{"port_findings", portFindings},
	{"device_above", deviceAbove},
	{"port_comes_back", portComesBack},
	{"addresses_told", addressesTold},
	{"neighbours_told", neighboursTold},
	{"own_address", ownAddress},
	{"rules_follow", rulesFollow},
}

func TestDevices(t *testing.T) {
	for _, c := range deviceCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := netlab.New(t)
			c.run(t, l, newRunner(t, l))
		})
	}
}

// Rules of a bridge that is in no file follow the addresses of the host's interfaces.
func rulesFollow(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	rules := filepath.Join(t.TempDir(), "pf.conf")
	must(t, os.WriteFile(rules, []byte("pass\nblock in quick from (host0)\n"), 0o600))
	l.Bascule("pfctl", "-b", "br0", "-f", rules)
	r.start()
	blocked := func() bool {
		told := l.Bascule("trace", "br0", "--in", ends[0].Port, "--dst", netlab.Station(1).String(), "--ip", "10.7.7.7", "--to", "192.0.2.2", "--udp", "53")
		return strings.Contains(told, "dropped: pf")
	}
	if blocked() {
		t.Fatal("the rule has an address that no interface has")
	}
	address, err := netlink.ParseAddr("10.7.7.7/32")
	must(t, err)
	must(t, l.Switch.Netlink().AddrAdd(device(t, l, "host0"), address))
	l.Wait("the rule to follow", blocked)
	must(t, l.Switch.Netlink().AddrDel(device(t, l, "host0"), address))
	l.Wait("the rule to follow again", func() bool { return !blocked() })
}

// device returns a device of the switch's namespace.
func device(t *testing.T, l *netlab.Lab, name string) netlink.Link {
	t.Helper()
	nl, err := l.Switch.Netlink().LinkByName(name)
	must(t, err)
	return nl
}

// carrier waits until the host's interface has a carrier, or has none.
func carrier(t *testing.T, l *netlab.Lab, name string, want bool) {
	t.Helper()
	l.Wait(fmt.Sprintf("a carrier of %s: %v", name, want), func() bool { return hasCarrier(t, l, name) == want })
}

func hasCarrier(t *testing.T, l *netlab.Lab, name string) bool {
	t.Helper()
	return device(t, l, name).Attrs().RawFlags&unix.IFF_RUNNING != 0
}

// The FDB follows the address of a host port's interface without a command.
func hostMACChanges(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	r.start()
	l.Bascule("port", "add", "br0", "host0", "--type", "host") // the port was added since then
	host := device(t, l, "host0")
	old := netlab.MAC(host.Attrs().HardwareAddr)
	for _, mac := range []netlab.MAC{netlab.Station(70), netlab.Station(71)} {
		must(t, l.Switch.Netlink().LinkSetHardwareAddr(host, mac[:]))
		want := []string{fmt.Sprintf("%s vlan 0 host0 static", mac)}
		l.Wait("the FDB to follow", func() bool {
			var got []string
			for _, e := range l.FDB("br0") {
				got = append(got, e.String())
			}
			return slices.Equal(got, want)
		})
	}
	l.Send(ends[0], l.Frames(1, netlab.Broadcast, old)...)
	l.Reach(ends[1], l.Frames(10, old, netlab.Station(72)), ends[0])
	r.stop()
}

// A routed host port learns of the macvlans above its interface without a command.
func macvlanComes(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(1)
	l.AddBridge("br0", "tcx", ends)
	l.Bascule("port", "add", "br0", "gw0", "--type", "host", "--route")
	nl := l.Switch.Netlink()
	must(t, nl.LinkSetUp(device(t, l, "gw0")))
	mac := netlab.MAC{0, 0, 0x5e, 0, 1, 7}
	l.Bascule("fdb", "add", "br0", mac.String(), "gw0")
	r.start()
	knows := func(want bool) {
		t.Helper()
		l.Wait(fmt.Sprintf("the port to know the macvlan: %v", want), func() bool {
			told := l.Bascule("trace", "br0", "--in", ends[0].Port, "--dst", mac.String(), "--ip", "192.0.2.1", "--to", "192.0.2.2", "--udp", "53")
			if !strings.Contains(told, "left to the host") {
				t.Fatalf("a trace does not tell of routes:\n%s", told)
			}
			return strings.Contains(told, "left to the host: other") != want
		})
	}
	knows(false)
	for range 2 {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = "vrrp7", device(t, l, "gw0").Attrs().Index, mac[:]
		must(t, nl.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}))
		knows(true)
		must(t, nl.LinkDel(device(t, l, "vrrp7")))
		knows(false)
	}
	r.stop()
}

// The agent removes the learned addresses of a port that has lost its carrier. Ports of two bridges have the same IDs,
// and each its own carrier.
func carrierLost(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(4)
	l.AddBridge("br0", "tcx", ends[:2])
	l.AddBridge("br1", "tcx", ends[2:])
	r.start()
	for i, e := range []*netlab.End{ends[0], ends[2]} {
		bridge := []string{"br0", "br1"}[i]
		l.Send(e, l.Frames(1, netlab.Broadcast, netlab.Station(100+i))...)
		if n := len(l.FDB(bridge)); n != 1 {
			t.Fatalf("%d addresses of %s", n, bridge)
		}
		e.Leave()
		l.Pull(e.Port)
		r.says(1, "lost its carrier", bridge, e.Port)
		l.Wait("the address to be forgotten", func() bool { return len(l.FDB(bridge)) == 0 })
	}
	for _, e := range []*netlab.End{ends[0], ends[2]} {
		l.Plug(e.Port)
		e.Return()
	}
	r.stop()
}

// The host's interface has a carrier while another port has one, as with the Linux bridge.
func hostCarrier(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.Bascule("bridge", "add", "br0")
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	must(t, l.Switch.Netlink().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lxbr0"}}))
	l.Keep("lxbr0")
	l.Keep("oracle0")
	l.Keep("oracle1")
	for _, name := range []string{"host0", "lxbr0"} {
		must(t, l.Switch.Netlink().LinkSetUp(device(t, l, name)))
	}
	carrier(t, l, "host0", true) // without an agent
	r.start()
	// The oracle has a port of its own, with the same link.
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "oracle0"}, PeerName: "oracle1"}
	must(t, l.Switch.Netlink().LinkAdd(pair))
	must(t, l.Switch.Netlink().LinkSetMaster(device(t, l, "oracle0"), device(t, l, "lxbr0")))
	must(t, l.Switch.Netlink().LinkSetUp(device(t, l, "oracle0")))
	same := func(what string, link bool) {
		t.Helper()
		set := l.Switch.Netlink().LinkSetDown
		if link {
			set = l.Switch.Netlink().LinkSetUp
		}
		must(t, set(device(t, l, "oracle1")))
		carrier(t, l, "lxbr0", link)
		carrier(t, l, "host0", link)
		// The agent may not have processed the last event yet: if one port's link comes up as another's goes
		// down, the carrier is right at first, may go down, and comes back.
		l.Wait(fmt.Sprintf("%s: the host port shown as one with a carrier: %v", what, link), func() bool {
			return (l.Port("br0", "host0").State == "forwarding") == link
		})
	}
	// A bridge without ports has no carrier, nor has a bridge with only a host port, or with a span port.
	same("no ports", false)
	for i, e := range ends {
		l.Pull(e.Port)
		l.Bascule("port", "add", "br0", e.Port)
		same(fmt.Sprintf("port %d, which is down", i), false)
	}
	l.Plug(ends[0].Port)
	same("one port", true)
	l.Plug(ends[1].Port)
	l.Pull(ends[0].Port)
	same("another port", true)
	must(t, ends[1].Namespace.Netlink().LinkSetDown(func() netlink.Link {
		nl, err := ends[1].Namespace.Netlink().LinkByName(ends[1].Ifname)
		must(t, err)
		return nl
	}()))
	same("the other end is down", false)
	l.Bascule("port", "set", "br0", "host0", "--hairpin") // A command does not set it.
	l.Bascule("bridge", "set", "br0")
	same("after commands", false)

	// A patch cable has a carrier, as a cable between two bridges has.
	l.Bascule("port", "add", "br0", "to1", "--type", "patch", "--peer", "br1/to0")
	same("a patch cable", true)
	l.Bascule("port", "del", "br1", "to0")
	same("none", false)
	l.Bascule("span", "add", "br0", func() string { l.NewTap("tap0", false); return "tap0" }())
	same("a span port", false)

	// The interface of another host port counts as a station if it was moved to another namespace.
	l.Bascule("port", "add", "br0", "host1", "--type", "host")
	l.Switch.Netlink().LinkSetUp(device(t, l, "host1"))
	same("another host port", false)
	elsewhere := l.NewNamespace()
	handle, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer handle.Close()
	must(t, l.Switch.Netlink().LinkSetNsFd(device(t, l, "host1"), int(handle)))
	moved, err := elsewhere.Netlink().LinkByName("host1")
	must(t, err)
	must(t, elsewhere.Netlink().LinkSetUp(moved))
	l.Bascule("port", "set", "br0", "host0", "--hairpin=off")
	same("a host port elsewhere", true)
	l.Bascule("port", "del", "br0", "host1")
	same("none again", false)

	// An agent that ends restores the carrier.
	r.stop()
	carrier(t, l, "host0", true)
}

// On a bridge that filters, the ports of the host port's VLANs count, as for the
// VLAN devices of a Linux bridge.
func hostCarrierVLANs(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends, "--vlan-filtering", "--default-pvid", "none")
	for i, vlan := range []string{"10", "20"} {
		host := fmt.Sprintf("host%d", i)
		l.Bascule("port", "add", "br0", host, "--type", "host")
		l.SetUp(device(t, l, host))
		l.Bascule("vlan", "add", "br0", host, vlan, "--untagged", "--pvid")
		l.Bascule("vlan", "add", "br0", ends[i].Port, vlan)
	}
	r.start()
	l.Pull(ends[0].Port)
	carrier(t, l, "host0", false)
	r.says(1, "host port has no carrier", "host0", "no port that has one is in a VLAN with it")
	carrier(t, l, "host1", true)
	l.Bascule("vlan", "add", "br0", ends[1].Port, "10")
	carrier(t, l, "host0", true)
	l.Bascule("vlan", "del", "br0", ends[1].Port, "20")
	carrier(t, l, "host1", false)
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	carrier(t, l, "host1", true)
	r.stop()
}

// A port that spanning tree keeps from forwarding does not count.
func hostCarrierSTP(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(1)
	l.AddBridge("br0", "tcx", ends)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.SetUp(device(t, l, "host0"))
	_, err := l.Run("bridge", "set", "br0", "--stp", "rstp") // it warns that no agent runs
	must(t, err)
	r.start()
	r.serves(1, "br0")
	carrier(t, l, "host0", false)
	r.says(1, "host port has no carrier", "host0", "spanning tree lets no port that has one forward")
	l.Wait("the port to forward", func() bool { return l.Port("br0", ends[0].Port).State == "forwarding" })
	carrier(t, l, "host0", true)
	l.Wait("the host port to forward", func() bool { return l.Port("br0", "host0").State == "forwarding" })
	l.Pull(ends[0].Port)
	carrier(t, l, "host0", false)
	r.says(1, "host port has no carrier", "host0", "no other port has one")
	r.stop()
}

// An agent that is killed leaves the carrier as it is. The next change by a command restores it, and the next agent
// continues.
func hostCarrierKilled(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(1)
	l.AddBridge("br0", "tcx", ends)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.SetUp(device(t, l, "host0"))
	r.start()
	for range 3 {
		l.Pull(ends[0].Port)
		carrier(t, l, "host0", false)
		shows(t, l, "host0", "no-carrier=agent", "the agent has taken its carrier")
		r.kill()
		l.Plug(ends[0].Port)
		if hasCarrier(t, l, "host0") {
			t.Error("a carrier comes by itself")
		}
		shows(t, l, "host0", "no-carrier=agent-ended", "the agent that took its carrier has ended; 'bascule bridge set br0' gives it back")
		l.Bascule("bridge", "set", "br0", "--ageing", "200s")
		carrier(t, l, "host0", true)
		if out := l.Bascule("port", "show", "br0"); strings.Contains(out, "no-carrier=") {
			t.Errorf("a carrier that was given back is shown as\n%s", out)
		}
		left, err := filepath.Glob(fmt.Sprintf("/run/bascule/%d%%*", r.cookie))
		if err != nil || len(left) > 0 {
			t.Errorf("of an agent that was killed there is left %v, %v", left, err)
		}
		l.Reach(ends[0], l.Frames(10, netlab.Broadcast, netlab.Station(70)))
		l.Pull(ends[0].Port)
		r.start()
		carrier(t, l, "host0", false)
		l.Plug(ends[0].Port)
		carrier(t, l, "host0", true)
	}
	r.stop()
	if left, err := filepath.Glob(fmt.Sprintf("/run/bascule/%d%%*", r.cookie)); err != nil || len(left) > 0 {
		t.Errorf("of an agent that has ended there is left %v, %v", left, err)
	}
}

// shows checks for words in the list of ports, and in the output for one port.
func shows(t *testing.T, l *netlab.Lab, port, inList, inFacts string) {
	t.Helper()
	if out := l.Bascule("port", "show", "br0"); !slices.Contains(strings.Fields(out), inList) {
		t.Errorf("the list does not say %q:\n%s", inList, out)
	}
	if out := l.Bascule("port", "show", "br0", port); !strings.Contains(strings.Join(strings.Fields(out), " "), inFacts) {
		t.Errorf("%s is not said to be so, %q:\n%s", port, inFacts, out)
	}
}

// Frames with a host port's own source address that enter by another port are most likely a loop, and are reported. The
// report does not repeat each second for ever.
func ownAddress(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.SetUp(device(t, l, "host0"))
	static := netlab.Station(70)
	l.Bascule("fdb", "add", "br0", static.String(), ends[1].Port)
	r.start()
	r.serves(1)
	own := netlab.MAC(device(t, l, "host0").Attrs().HardwareAddr)
	frames := append(l.Frames(3, netlab.Broadcast, own), l.Frames(3, netlab.Broadcast, static)...)
	l.Send(ends[0], frames...)
	r.says(1, "level=WARN", "frames of a host port's own address come in by another port: a loop?", ends[0].Port, "host0", own.String())
	r.says(1, "level=WARN", "an address is not learned or moved", ends[0].Port, static.String(), "reason=static")
	r.stop()
}

// A port that becomes a member of another device is reported.
func portTaken(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(3)
	l.AddBridge("br0", "tcx", ends[:2])
	r.start()
	m := l.NewMonitor("br0", ends[1])
	here := l.Switch.Netlink()
	must(t, here.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lxbr0"}}))
	defer here.LinkDel(device(t, l, "lxbr0"))
	for range 2 {
		must(t, here.LinkSetMaster(device(t, l, ends[0].Port), device(t, l, "lxbr0")))
		l.Wait("the log to say so", func() bool { return r.logs.Lines("level=WARN", ends[0].Port, "Linux bridge lxbr0") == 1 })
		m.Wait("that it was taken", func(e netlab.Event) bool {
			return e.Event == "port-taken" && e.Ifname == ends[0].Port && e.Reason == "Linux bridge lxbr0"
		})
		if p := l.Port("br0", ends[0].Port); p.TakenBy != "Linux bridge lxbr0" || p.State != "forwarding" {
			t.Errorf("the port is shown as %+v", p)
		}
		for _, args := range [][]string{{"port", "show", "br0"}, {"port", "show", "br0", ends[0].Port}} {
			if out := l.Bascule(args...); !strings.Contains(out, "lxbr0") {
				t.Errorf("%v does not say what the port belongs to:\n%s", args, out)
			}
		}
		must(t, here.LinkSetNoMaster(device(t, l, ends[0].Port)))
		m.Wait("that it was released", func(e netlab.Event) bool { return e.Event == "port-released" && e.Ifname == ends[0].Port })
		l.Wait("the log to say so", func() bool { return r.logs.Lines("no longer a member of another device", ends[0].Port) == 1 })
		if p := l.Port("br0", ends[0].Port); p.TakenBy != "" {
			t.Errorf("the port is shown as %+v", p)
		}
		r.stop()
		// Hot-plug reports nothing more.
		r.start("-f", r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: {%s: {}, %s: {}}}}", ends[0].Port, ends[1].Port)))
		m.Stop()
		m = l.NewMonitor("br0", ends[1])
	}
	m.Stop()
	r.stop()
}

// A setting of the host at a port's device that has no effect there is reported when it appears and when it disappears.
// So is a changed MTU.
func portFindings(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	a := ends[0].Port
	here := l.Switch.Netlink()
	r.start()
	r.serves(1)
	tc := func(args ...string) {
		t.Helper()
		_, err := l.Switch.Output(t.Context(), labends.AnyCPU, "tc", args...)
		must(t, err)
	}
	tc("qdisc", "add", "dev", a, "clsact")
	tc("filter", "add", "dev", a, "ingress", "protocol", "ip", "u32", "match", "u32", "0", "0", "action", "mirred", "egress", "mirror", "dev", ends[1].Port)
	r.says(1, "level=WARN", "has no effect", a, "tc ingress u32")
	tc("qdisc", "del", "dev", a, "clsact")
	r.says(1, "level=INFO", "without effect is gone", a, "tc ingress u32")

	above := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: device(t, l, a).Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	must(t, here.LinkAdd(above))
	r.says(1, "level=WARN", "has no effect", a, "macvlan mv0 is above "+a)
	must(t, here.LinkDel(above))
	r.says(1, "level=INFO", "without effect is gone", a, "macvlan mv0")

	must(t, here.LinkSetMTU(device(t, l, a), 1400))
	r.says(1, "level=WARN", "MTU", a, "other ports up to 1500")
	must(t, here.LinkSetMTU(device(t, l, a), 1500))
	r.says(1, "level=INFO", "MTU", a, "no frame is lost")
	r.stop()

	// Settings that existed before are reported at the start.
	must(t, here.LinkAdd(above))
	r.start()
	r.says(1, "level=WARN", "has no effect", a, "macvlan mv0 is above "+a)
	must(t, here.LinkDel(above))
	r.stop()
}

// Hot-plug does not add a device below other devices as a port, and adds it when these have gone. A file can name it as
// a port anyway.
func deviceAbove(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(2)
	l.Bascule("bridge", "add", "br0")
	a, b := ends[0].Port, ends[1].Port
	here := l.Switch.Netlink()
	above := func() *netlink.Macvlan {
		return &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: device(t, l, a).Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	}
	must(t, here.LinkAdd(above()))
	isPort := func() bool {
		return slices.ContainsFunc(l.Ports("br0"), func(p netlab.PortInfo) bool { return p.Ifname == a })
	}
	r.start("-f", r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: {%q: {}, %s: {}}}}", a[:len(a)-1]+"["+a[len(a)-1:]+"]", b)))
	r.says(1, "leaves "+a+" out", "macvlan mv0 is above it", "force: on")
	if isPort() {
		t.Error("a device that another is above became a port")
	}
	must(t, here.LinkDel(device(t, l, "mv0")))
	l.Wait("the device to be a port", isPort)
	r.stop()
	l.Bascule("port", "del", "br0", a)
	must(t, here.LinkAdd(above()))
	r.start("-f", r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: {%q: {force: on}, %s: {}}}}", a[:len(a)-1]+"["+a[len(a)-1:]+"]", b)))
	l.Wait("the device to be a port", isPort)
	must(t, here.LinkDel(device(t, l, "mv0")))
	r.stop()
}

// A port that was moved to another namespace and returns is the same port as before.
func portComesBack(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(3)
	a, b, c := ends[0], ends[1], ends[2]
	l.AddBridge("br0", "tcx", ends)
	known := netlab.Station(70)
	l.Bascule("fdb", "add", "br0", known.String(), a.Port)
	l.Bascule("port", "set", "br0", a.Port, "--hairpin")
	elsewhere := l.NewNamespace()
	away, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer away.Close()
	home, err := netns.GetFromName(l.Switch.Name)
	must(t, err)
	defer home.Close()
	here, there := l.Switch.Netlink(), elsewhere.Netlink()
	leave := func() {
		t.Helper()
		must(t, here.LinkSetNsFd(device(t, l, a.Port), int(away)))
		if state := l.Port("br0", a.Port).State; state != "gone" {
			t.Errorf("a port whose device is elsewhere is shown as %s", state)
		}
	}
	back := func() {
		t.Helper()
		nl, err := there.LinkByName(a.Port)
		must(t, err)
		must(t, there.LinkSetNsFd(nl, int(home)))
		must(t, here.LinkSetUp(device(t, l, a.Port)))
	}
	filed := false // with the port's settings from a file
	works := func() {
		t.Helper()
		l.Wait("the port to forward", func() bool { return l.Port("br0", a.Port).State == "forwarding" })
		l.AwaitWriter()
		if len(l.FDB("br0", "--static")) != 1 && !filed {
			t.Error("the port has lost its static address")
		}
		l.Bascule("fdb", "add", "br0", known.String(), a.Port)
		if !l.Port("br0", a.Port).Hairpin {
			t.Error("the port has not the settings that it had")
		}
		l.Wait("its link", func() bool { return device(t, l, a.Port).Attrs().RawFlags&unix.IFF_RUNNING != 0 })
		l.Reach(b, l.Frames(10, known, netlab.Station(71)), a)
		l.Reach(c, l.Frames(10, netlab.Broadcast, netlab.Station(72)), a, b)
		l.Reach(b, l.Frames(10, netlab.Broadcast, netlab.Station(71)), a, c)
	}
	r.start()
	leave()
	back()
	works()
	// While no agent runs, and with another index, since another device has the former one.
	leave()
	r.kill()
	index := a.PortIndex
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "other", index
	must(t, here.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other2"}))
	l.Keep("other")
	l.Keep("other2")
	back()
	if a.PortIndex = device(t, l, a.Port).Attrs().Index; a.PortIndex == index {
		t.Fatal("the device has its index again")
	}
	r.start()
	works()
	if out := l.Bascule("port", "show", "br0"); strings.Contains(out, "other") || strings.Contains(out, "gone") {
		t.Errorf("another device is taken for it:\n%s", out)
	}
	r.stop()

	// Without an agent 'port add' makes it a new port, and reports that.
	leave()
	back()
	res, err := l.Run("port", "add", "br0", a.Port)
	must(t, err)
	if res.Exit != 0 || strings.Count(res.Stderr, "\n") != 1 || !strings.Contains(res.Stderr, a.Port) || !strings.Contains(res.Stderr, "gone") {
		t.Errorf("%v: should succeed, and say that the port that was gone is a new one", res)
	}
	if l.Port("br0", a.Port).Hairpin {
		t.Error("the new port has the settings of the former")
	}

	filed = true
	r.start("-f", r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: {%s: {hairpin: on}, %s: {}, %s: {}}}}", a.Port, b.Port, c.Port)))
	leave()
	back()
	works()
	r.stop()
}

// The log reports the addresses of a device that becomes a port.
func addressesTold(t *testing.T, l *netlab.Lab, r *runner) {
	ends := l.NewEnds(1)
	r.start("-f", r.file("br0.yaml", `bridges: {br0: {ports: {"p*": {}, "v*": {}}}}`))
	// They are reported as the device becomes a port, and once more if the check of all ports finds the address
	// again.
	told := func(name string) {
		t.Helper()
		l.Wait("a word about the address of "+name, func() bool { return r.logs.Lines("level=WARN", name, "192.0.2.1/24", "--type host") > 0 })
	}
	address, err := netlink.ParseAddr("192.0.2.1/24")
	must(t, err)
	l.Bascule("port", "del", "br0", ends[0].Port) // first: the agent checks ports for addresses that appear later
	must(t, l.Switch.Netlink().AddrAdd(device(t, l, ends[0].Port), address))
	l.Bascule("agent", "reload")
	told(ends[0].Port)
	// Through a berth: it has its address before its name.
	must(t, l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "x0"}, PeerName: "x1"}))
	l.Keep("x1")
	l.Keep("v0")
	must(t, l.Switch.Netlink().AddrAdd(device(t, l, "x0"), address))
	must(t, l.Switch.Netlink().LinkSetName(device(t, l, "x0"), "v0"))
	told("v0")
	r.stop()
}
