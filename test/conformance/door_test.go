// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bascule/test/netlab"

	"github.com/vishvananda/netlink"
)

var doorCases = []conformance{
	{name: "libvirt_hook", hooks: tcx, run: libvirtHook},
	{name: "bridge_helper", hooks: tcx, run: bridgeHelper},
	{name: "bridge_helper_stopped", hooks: tcx, run: helperStopped},
	{name: "command_stopped", hooks: tcx, run: commandStopped},
	{name: "bridge_helper_socket_full", hooks: tcx, run: helperSocketFull},
	{name: "bridge_helper_tap_kept", hooks: tcx, run: helperTapKept},
}

// named returns a command that runs the program under another name, in the switch's network
// namespace.
func named(t *testing.T, l *netlab.Lab, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Symlink(l.Binary(), filepath.Join(dir, name)))
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + l.Switch.Name, filepath.Join(dir, name)}, args...)...)
}

// newTap makes a persistent tap.
func newTap(t *testing.T, l *netlab.Lab, name string) {
	t.Helper()
	l.Keep(name)
	must(t, l.Switch.Do(func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP})
	}))
}

// owners returns the devices of ports by their owners' IDs.
func owners(l *netlab.Lab) map[string]string {
	var ports []struct {
		Name  string `json:"ifname"`
		Owner *struct {
			ID string `json:"id"`
		} `json:"owner"`
	}
	if err := json.Unmarshal([]byte(l.Bascule("-j", "port", "show")), &ports); err != nil {
		panic(err)
	}
	list := map[string]string{}
	for _, p := range ports {
		if p.Owner != nil {
			list[p.Owner.ID] = p.Name
		}
	}
	return list
}

// libvirtHook: the settings in a domain's metadata are in force before the guest starts, and
// removed when libvirt has released it.
func libvirtHook(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0", "--vlan-filtering")
	newTap(t, l, "guest0")
	xml := func(bridge string) string {
		return `<domain><name>web</name><uuid>c7a5fdbd-edaf-9455-926a-d65c16db1809</uuid><metadata>
<b:guest xmlns:b='urn:bascule:guest:1'><b:interface mac='52:54:00:00:00:01' bridge='` + bridge + `' vlan='10'><b:binding address='192.0.2.7'/>
<b:pf>block in proto udp to port 67</b:pf></b:interface></b:guest></metadata><devices><interface type='ethernet'>
<mac address='52:54:00:00:00:01'/><target dev='guest0'/></interface></devices></domain>`
	}
	hook := func(operation, step, in string) netlab.Result {
		t.Helper()
		cmd := named(t, l, "bascule-libvirt-hook", "web", operation, step, "-")
		cmd.Stdin = strings.NewReader(in)
		r, err := netlab.RunCommand(cmd)
		must(t, err)
		return r
	}
	const id = "libvirt/c7a5fdbd-edaf-9455-926a-d65c16db1809/52:54:00:00:00:01"
	plugged := func(want string) {
		t.Helper()
		if got := owners(l)[id]; got != want {
			t.Errorf("the guest has port %q, not %q", got, want)
		}
	}
	if r := hook("prepare", "begin", xml("br0")); r.Exit != 0 {
		t.Error(r)
	}
	plugged("")
	for range 2 { // twice, as when libvirt restarts
		if r := hook("start", "begin", xml("br0")); r.Exit != 0 {
			t.Error(r)
		}
		plugged("guest0")
	}
	if got := l.Bascule("vlan", "show", "br0"); !strings.Contains(got, "guest0  10    PVID, Egress Untagged") {
		t.Errorf("VLANs: %s", got)
	}
	if got := l.Bascule("binding", "show", "br0"); !strings.Contains(got, "192.0.2.7") {
		t.Errorf("bindings: %s", got)
	}
	if r := hook("reconnect", "begin", xml("br9")); r.Exit != 0 || !strings.Contains(r.Stderr, "br9") {
		t.Error(r)
	}
	plugged("guest0")
	if r := hook("start", "begin", xml("br9")); r.Exit != 1 || strings.Count(r.Stderr, "\n") != 1 {
		t.Error(r)
	}
	if r := hook("start", "begin", "nonsense"); r.Exit != 1 || strings.Count(r.Stderr, "\n") != 1 {
		t.Error(r)
	}
	for range 2 {
		if r := hook("release", "end", xml("br0")); r.Exit != 0 {
			t.Error(r)
		}
		plugged("")
	}
	if got := l.Bascule("binding", "show", "br0"); strings.Contains(got, "192.0.2.7") {
		t.Errorf("a binding is left: %s", got)
	}
}

// bridgeHelper: a QEMU without privileges gets a tap on a permitted bridge, as a port with the
// settings of the access list, and on no other bridge.
func bridgeHelper(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0", "--vlan-filtering")
	l.Bascule("bridge", "add", "br1")
	helper, as := newHelper(t, l)
	refused := func(what, list, want string, args ...string) {
		t.Helper()
		r, err := netlab.RunCommand(as(list, args...))
		must(t, err)
		if r.Exit == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: %v, want %s", what, r, want)
		}
	}
	refused("no socket", "allow br0", "is not a Unix socket", helper, "--use-vnet", "--fd=0", "--br=br0")
	refused("other words", "allow br0", "QEMU runs this", helper, "bridge", "del", "--all")
	refused("the name of the program", "allow br0", "QEMU runs this", "bash", "-c", "exec -a bascule "+helper+" bridge del br0")
	if got := l.Bascule("-j", "bridge", "show"); strings.Count(got, `"ifname"`) != 2 {
		t.Errorf("a bridge is gone: %s", got)
	}

	qemu := []string{"qemu-system-x86_64", "-machine", "none", "-nodefaults", "-display", "none", "-S", "-netdev", "tap,id=n0,br=br0,helper=" + helper}
	if _, err := exec.LookPath(qemu[0]); err != nil {
		t.Skip("there is no QEMU: make test installs it")
	}
	refused("another bridge", "allow br1", "does not allow user 65534", qemu...)
	refused("no list", "deny all", "does not allow user 65534", qemu...)
	refused("a list that cannot be read", "allow br0\nnonsense\n", "unknown word", qemu...)
	if got := owners(l); len(got) != 0 {
		t.Errorf("ports are left: %v", got)
	}

	// While the helper has privileges, it does not use its caller's environment.
	calls := 0
	ask := as("allow all", append([]string{"env", "GODEBUG=gctrace=1"}, qemu...)...)
	for i, arg := range ask.Args {
		ask.Args[i] = strings.Replace(arg, "br=br0", "br=br9", 1)
	}
	r, err := netlab.RunWatched(ask, []string{"bpf", "flock", "mkdirat", "ioctl", "sendto", "setns"}, func(string, int) netlab.Answer {
		exes, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range exes {
			if is, err := os.Readlink(exe); err != nil || is != helper {
				continue
			}
			if text, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "environ")); err == nil {
				if calls++; len(text) > 0 {
					t.Errorf("the helper has the environment %q", text)
				}
			}
		}
		return netlab.Answer{}
	})
	must(t, err)
	if r.Exit == 0 || calls == 0 || !strings.Contains(r.Stderr, "br9") {
		t.Errorf("of the helper %d calls were watched: %v", calls, r)
	}

	run := as("allow br0 user 65534 vlan 10 fdb-max=3", qemu...)
	must(t, run.Start())
	l.Wait("a tap to be plugged", func() bool { return owners(l)["qemu/guest0"] == "guest0" })
	if got := l.Bascule("vlan", "show", "br0"); !strings.Contains(got, "guest0  10    PVID, Egress Untagged") {
		t.Errorf("VLANs: %s", got)
	}
	if got := l.Bascule("-j", "port", "show", "br0"); !strings.Contains(got, `"fdb_max":3`) {
		t.Errorf("settings: %s", got)
	}
	run.Process.Kill()
	run.Wait()
	h := l.Switch.Netlink()
	l.Wait("the tap to go", func() bool { _, err := h.LinkByName("guest0"); return err != nil })

	// The next run removes the port of a device that has gone.
	again := as("allow br0", qemu...)
	must(t, again.Start())
	l.Wait("another tap to be plugged", func() bool {
		return len(owners(l)) == 1 && strings.Contains(l.Bascule("-j", "port", "show", "br0"), `"state":"forwarding"`)
	})
	again.Process.Kill()
	again.Wait()
	l.Wait("the tap to go", func() bool { _, err := h.LinkByName("guest0"); return err != nil })
}
