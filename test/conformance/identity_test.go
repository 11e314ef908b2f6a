// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var identityCases = []conformance{
	{name: "mac_after_a_restart", hooks: tcx, run: macAfterARestart},
	{name: "mac_of_namesakes", hooks: tcx, run: macOfNamesakes},
	{name: "host_mtu", hooks: both, run: hostMTU},
	{name: "mac_given", hooks: tcx, run: macGiven},
	{name: "mac_exported", hooks: tcx, run: macExported},
	{name: "mac_twice", hooks: tcx, run: macTwice},
}

// restart deletes the switch's namespace and makes it again with the same name. Bridges and devices are gone, as after
// a restart of the machine.
func restart(t *testing.T, l *netlab.Lab) {
	t.Helper()
	name := l.Switch.Name
	l.Bascule("bridge", "del", "--all")
	must(t, l.Switch.Close())
	ns, err := ends.NewNamespace(name)
	must(t, err)
	*l.Switch = *ns // the lab removes it
}

// assigned returns the device's addr_assign_type: 3 if its address was set, so that udev does not change it
// (systemd.link(5), MACAddressPolicy=).
func assigned(t *testing.T, l *netlab.Lab, device string) string {
	t.Helper()
	text, err := exec.Command("ip", "netns", "exec", l.Switch.Name, "cat", "/sys/class/net/"+device+"/addr_assign_type").Output()
	must(t, err)
	return strings.TrimSpace(string(text))
}

// addressIn returns a device's address in the output of ip-link(8).
func addressIn(t *testing.T, l *netlab.Lab, device string) string {
	t.Helper()
	nl, err := l.Switch.Netlink().LinkByName(device)
	must(t, err)
	return nl.Attrs().HardwareAddr.String()
}

// switchEndOf returns the name of the other end of a host port's interface.
func switchEndOf(t *testing.T, l *netlab.Lab, host string) string {
	t.Helper()
	here := l.Switch.Netlink()
	nl, err := here.LinkByName(host)
	must(t, err)
	end, err := here.LinkByIndex(nl.Attrs().ParentIndex)
	must(t, err)
	return end.Attrs().Name
}

// macExported: a file has the address of a bridge whose automatic address would be another one now, as after another
// version has made it. Here the network namespace gets another name.
func macExported(t *testing.T, hook string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0")
	before := l.Bridge("br0").Address
	if out := l.Bascule("export"); strings.Contains(out, "mac:") {
		t.Errorf("the file has the address that the bridge gets by itself:\n%s", out)
	}
	const first = "bsc-" // of two names the first one in the alphabet is used
	other := filepath.Join("/run/netns", first+"0-"+strings.TrimPrefix(l.Switch.Name, first))
	must(t, os.WriteFile(other, nil, 0o600))
	defer os.Remove(other)
	must(t, unix.Mount(filepath.Join("/run/netns", l.Switch.Name), other, "", unix.MS_BIND, ""))
	defer unix.Unmount(other, unix.MNT_DETACH)
	path := filepath.Join(t.TempDir(), "exported.yaml")
	must(t, os.WriteFile(path, []byte(l.Bascule("export")), 0o600))
	l.Bascule("bridge", "del", "br0")
	l.Bascule("apply", path)
	if after := l.Bridge("br0").Address; after != before {
		t.Errorf("the bridge has %s, and had %s", after, before)
	}
	l.Bascule("bridge", "set", "br0", "--mac", "auto")
	if after := l.Bridge("br0").Address; after == before {
		t.Errorf("it gets %s by itself, as before", after)
	}
}

// macAfterARestart: a bridge and a host port get their former addresses, which no other device of the machine has.
func macAfterARestart(t *testing.T, _ string) {
	l, other := netlab.New(t), netlab.New(t)
	up := func(l *netlab.Lab) (macs []string) {
		for _, b := range []string{"br0", "br1"} {
			l.Bascule("bridge", "add", b)
			l.Bascule("port", "add", b, "host-"+b, "--type", "host")
			end := switchEndOf(t, l, "host-"+b)
			macs = append(macs, l.Bridge(b).Address, addressIn(t, l, "host-"+b), addressIn(t, l, end))
			for _, device := range []string{"host-" + b, end} {
				if kind := assigned(t, l, device); kind != "3" {
					t.Errorf("the address of %s has type %s: udev would give it another", device, kind)
				}
			}
		}
		return macs
	}
	was := up(l)
	seen := map[string]bool{}
	for _, mac := range append(was, up(other)...) {
		if seen[mac] {
			t.Errorf("%s belongs to two", mac)
		}
		seen[mac] = true
	}
	restart(t, l)
	if now := up(l); fmt.Sprint(now) != fmt.Sprint(was) {
		t.Errorf("%v after a restart, before it %v", now, was)
	}
	// An interface that is renamed keeps its address, and the next one with its former name gets another.
	here := l.Switch.Netlink()
	host, err := here.LinkByName("host-br0")
	must(t, err)
	must(t, here.LinkSetName(host, "lan0"))
	l.Bascule("port", "add", "br0", "host-br0", "--type", "host")
	if a, b := addressIn(t, l, "lan0"), addressIn(t, l, "host-br0"); a != was[1] || b == a {
		t.Errorf("the renamed interface has %s, which was %s, and the next one has %s", a, was[1], b)
	}
}

// macOfNamesakes: two network namespaces that have the same name at a time share no address. The second one is in
// another mount namespace, or is made again while a process is left in the first. After the end of the first one, the
// next gets its addresses.
func macOfNamesakes(t *testing.T, _ string) {
	l := netlab.New(t)
	switchOf := func(name string) string {
		return fmt.Sprintf(`bascule -n %[1]s bridge add br0
bascule -n %[1]s port add br0 host0 --type host
bascule -n %[1]s -j bridge show br0 | jq -r .[].address
ip -n %[1]s -j link | jq -r '.[] | select(.link_type == "ether") | .address'
`, name)
	}
	run := func(script string, args ...string) (macs []string) {
		t.Helper()
		cmd := exec.Command("bash", append([]string{"-e", "-c", "bascule() { " + l.Binary() + " \"$@\"; }\n" + script, "bash"}, args...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		must(t, err)
		return strings.Fields(string(out))
	}
	check := func(what string, first, second []string) {
		t.Helper()
		if len(first) != 3 || len(second) != 3 {
			t.Fatalf("%s: the addresses are %v and %v", what, first, second)
		}
		for _, mac := range first {
			if slices.Contains(second, mac) {
				t.Errorf("%s: both have %s", what, mac)
			}
		}
	}
	name := l.Switch.Name
	inside := run(switchOf(name))
	private := run("exec unshare --mount bash -e -c \"$1\"", "bascule() { "+l.Binary()+" \"$@\"; }\nmount -t tmpfs tmpfs /run/netns\nip netns add "+name+"\n"+
		switchOf(name)+"bascule -n "+name+" bridge del br0 >&2\nip netns del "+name)
	check("in another mount namespace", inside, private)

	ns := l.NewNamespace()
	first := run(switchOf(ns.Name))
	process := exec.Command("ip", "netns", "exec", ns.Name, "sleep", "infinity")
	must(t, process.Start())
	defer process.Process.Kill()
	l.Wait("the process to be in the namespace", func() bool {
		a, err1 := os.Stat(fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid))
		b, err2 := os.Stat("/run/netns/" + ns.Name)
		return err1 == nil && err2 == nil && os.SameFile(a, b)
	})
	again := "ip netns del " + ns.Name + "; ip netns add " + ns.Name + "\n" + switchOf(ns.Name)
	check("made anew", first, run(again))
	run("nsenter --net=/proc/$1/ns/net $2 bridge del br0 >&2; bascule -n $3 bridge del br0 >&2", fmt.Sprint(process.Process.Pid), l.Binary(), ns.Name)
	if third := run(again); fmt.Sprint(third) != fmt.Sprint(first) {
		t.Errorf("the next one has %v, and not %v, which nobody has any more", third, first)
	}
	run("bascule -n $1 bridge del br0 >&2", ns.Name)
}

// macGiven: addresses that a user sets are used, changed while frames pass, and exported.
func macGiven(t *testing.T, _ string) {
	const one, two = "02:00:00:00:be:01", "02:00:00:00:be:02"
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0", "--mac", one)
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--mac", two)
	check := func(bridge, host string) {
		t.Helper()
		if got := l.Bridge("br0").Address; got != bridge {
			t.Errorf("the bridge has %s, want %s", got, bridge)
		}
		if got, shown := addressIn(t, l, "host0"), l.Port("br0", "host0").Address; got != host || shown != host {
			t.Errorf("host0 has %s, shown as %s, want %s", got, shown, host)
		}
		wantFDB(t, l, "br0", host+" vlan 0 host0 static")
	}
	check(one, two)
	text := l.Bascule("export")
	for _, want := range []string{"    mac: " + one, `{type: host, mac: "` + two + `", up: off}`} {
		if !strings.Contains(text, want) {
			t.Errorf("export has no %s:\n%s", want, text)
		}
	}
	file := filepath.Join(t.TempDir(), "switch.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	restart(t, l)
	l.Bascule("apply", file)
	check(one, two)

	l.Bascule("bridge", "set", "br0", "--mac", two)
	l.Bascule("port", "set", "br0", "host0", "--mac", one)
	check(two, one)
	l.Bascule("bridge", "set", "br0", "--ageing", "10s")
	check(two, one)
	l.Bascule("apply", file)
	check(one, two)

	l.Bascule("bridge", "set", "br0", "--mac", "auto")
	l.Bascule("port", "set", "br0", "host0", "--mac", "auto")
	bridge, host := l.Bridge("br0").Address, addressIn(t, l, "host0")
	check(bridge, host)
	if text := l.Bascule("export"); strings.Contains(text, "mac:") {
		t.Errorf("addresses that they get by themselves are written:\n%s", text)
	}
	must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {host0: {type: host, mac: auto}}}}"), 0o600))
	l.Bascule("port", "set", "br0", "host0", "--mac", one)
	l.Bascule("apply", file)
	check(bridge, host)
	restart(t, l)
	l.Bascule("apply", file)
	check(bridge, host)

	l.Bascule("port", "add", "br0", "host1", "--type", "host")
	l.Refused([]string{"two interfaces would have it"}, "port", "set", "br0", "host0", "host1", "--mac", one)
	l.Refused([]string{"--mac 01:00:00:00:00:01"}, "port", "set", "br0", "host0", "--mac", "01:00:00:00:00:01")
	e := l.NewEnd(l.NewNamespace())
	l.Refused([]string{"only a host port"}, "port", "add", "br0", e.Port, "--mac", one)
	l.Bascule("port", "del", "br0", "host1")
	check(bridge, host)
}

// macTwice: one address has one owner, in each VLAN.
func macTwice(t *testing.T, hook string) {
	const one, two = "02:00:00:00:be:01", "02:00:00:00:be:02"
	l := netlab.New(t)
	e := l.NewEnd(l.NewNamespace())
	file := filepath.Join(t.TempDir(), "switch.yaml")
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.Bascule("port", "add", "br0", "host1", "--type", "host", "--mac", one)
	twice := []string{one + " is also the address of host port host1", "give another MAC"}
	l.Refused(twice, "port", "set", "br0", "host0", "--mac", one)
	l.Refused(twice, "port", "add", "br0", "host2", "--type", "host", "--mac", one)
	must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {host0: {type: host, mac: '"+two+"'}, host1: {type: host, mac: '"+two+"'}}}}"), 0o600))
	l.Refused([]string{"port host1 of br0: mac " + two + " is also the one of port host0; give another"}, "apply", file)
	apart := "bridges: {br0: {vlan-filtering: on, ports: {host0: {type: host, pvid: 5, mac: '" + two + "'}, host1: {type: host, pvid: 6, mac: '" + two + "'}}}}"
	must(t, os.WriteFile(file, []byte(apart), 0o600))
	l.Bascule("apply", file) // as with a router that has an address in each VLAN
	l.Bascule("bridge", "del", "br0")
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", e.Port)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.Send(e, l.Frames(1, netlab.Broadcast, netlab.Station(9))...)
	l.Wait("the station to be learned", func() bool { return len(l.FDB("br0")) == 2 })
	for _, args := range [][]string{{"set", "br0", "host0"}, {"add", "br0", "host2", "--type", "host"}} {
		r, err := l.Run(append(append([]string{"port"}, args...), "--mac", netlab.Station(9).String())...)
		must(t, err)
		if r.Exit != 0 || !strings.Contains(r.Stderr, "which a station behind "+e.Port+" also has: one of the two gets no frames") {
			t.Error(r)
		}
		l.Bascule("port", "set", "br0", "host0", "--mac", "auto")
		l.Send(e, l.Frames(1, netlab.Broadcast, netlab.Station(9))...)
	}
}

// hostMTU: both ends of a host port have one MTU, at whichever end it is set. Its initial value is the smallest MTU of
// the ports. The stations' ping is the oracle.
func hostMTU(t *testing.T, hook string) {
	l := netlab.New(t)
	e := l.NewEnd(l.NewNamespace())
	e.SetMTU(9000)
	other := l.NewEnd(l.NewNamespace())
	other.SetMTU(8000)
	l.AddBridge("br0", hook, []*netlab.End{e})
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--hook", "tcx")
	r, err := l.Run("port", "add", "br0", other.Port)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "MTU 8000, other ports up to 9000") {
		t.Error(r)
	}
	l.Bascule("port", "add", "br0", "host1", "--type", "host")
	if got := l.Port("br0", "host1").MTU; got != 8000 {
		t.Errorf("a host port beside an MTU of 8000 begins with %d", got)
	}
	l.Bascule("port", "del", "br0", "host1", other.Port)
	here := l.Switch.Netlink()
	host, err := here.LinkByName("host0")
	must(t, err)
	l.SetUp(host)
	far, err := e.Namespace.Netlink().LinkByName(e.Ifname)
	must(t, err)
	must(t, here.AddrAdd(host, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 200).To4(), Mask: net.CIDRMask(24, 32)}}))
	must(t, e.Namespace.Netlink().AddrAdd(far, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 201).To4(), Mask: net.CIDRMask(24, 32)}}))
	ping := func(ns, to string, size int) bool {
		return exec.Command("ip", "netns", "exec", ns, "ping", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", fmt.Sprint(size-28), to).Run() == nil
	}
	check := func(what string, mtu int) {
		t.Helper()
		if got := l.Port("br0", "host0").MTU; got != mtu {
			t.Errorf("%s: host0 has MTU %d, want %d", what, got, mtu)
		}
		time.Sleep(1100 * time.Millisecond) // decisions are remembered for a second
		for _, size := range []int{mtu, mtu + 1} {
			want := size == mtu
			if got := ping(e.Namespace.Name, "192.0.2.200", size); got != want && size <= 9000 {
				t.Errorf("%s: %d bytes to the host: %t", what, size, got)
			}
			if got := ping(l.Switch.Name, "192.0.2.201", size); got != want {
				t.Errorf("%s: %d bytes from the host: %t", what, size, got)
			}
		}
	}
	check("at first", 9000)
	must(t, here.LinkSetMTU(host, 1400)) // without an agent, and without a command after it
	drops := l.Port("br0", e.Port).Drops["mtu"]
	check("set by ip(8)", 1400)
	if now := l.Port("br0", e.Port).Drops["mtu"]; now != drops+1 {
		t.Errorf("%d drops of reason mtu, %d before a packet that is too large", now, drops)
	}
	must(t, here.LinkSetMTU(host, 9000))
	check("set larger", 9000)
	r, err = l.Run("port", "set", "br0", "host0", "--mtu", "3000")
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "host0 has MTU 3000, other ports up to 9000") {
		t.Error(r)
	}
	check("set by a command", 3000)
	end, err := here.LinkByName(switchEndOf(t, l, "host0"))
	must(t, err)
	must(t, here.LinkSetMTU(end, 2000)) // the other end: the next command follows
	l.Bascule("bridge", "set", "br0")
	check("set at the switch's end", 2000)
	if text := l.Bascule("export"); !strings.Contains(text, "mtu: 2000") {
		t.Errorf("export has no mtu:\n%s", text)
	}
	file := filepath.Join(t.TempDir(), "switch.yaml")
	must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {"+e.Port+": {}, host0: {type: host, mtu: 4000}}}}"), 0o600))
	r, err = l.Run("apply", file)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stdout, "mtu 2000 -> 4000") {
		t.Error(r)
	}
	check("set by a file", 4000)
	l.Refused([]string{"out of range"}, "port", "set", "br0", "host0", "--mtu", "67")
	l.Refused([]string{"only a host port"}, "port", "set", "br0", e.Port, "--mtu", "1400")
	check("refused", 4000)
}
