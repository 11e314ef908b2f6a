// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// A libvirt is Debian's libvirtd in a lab's network namespace, with its own files.
type libvirt struct {
	*netlab.Lab
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	logs netlab.OutputFile
}

func newLibvirt(t *testing.T, l *netlab.Lab) *libvirt {
	for _, need := range []string{"libvirtd", "virsh", "qemu-system-x86_64"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("there is no %s: make test installs it", need)
		}
	}
	v := &libvirt{Lab: l, t: t, dir: t.TempDir(), logs: netlab.NewOutputFile(t)}
	// without a manager of cgroups, other users, and a log daemon
	conf := map[string]string{
		"qemu.conf": "user=\"root\"\ngroup=\"root\"\nsecurity_driver=\"none\"\nremember_owner=0\ncgroup_controllers=[]\nstdio_handler=\"file\"\n",
		// An own host UUID: guests can migrate to this host.
		"libvirtd.conf": fmt.Sprintf("auth_unix_rw=\"none\"\nhost_uuid=%q\n", newUUID()),
	}
	for name, text := range conf {
		must(t, os.WriteFile(filepath.Join(v.dir, name), []byte(text), 0o644))
	}
	must(t, os.Symlink(l.Binary(), filepath.Join(v.dir, "bascule-libvirt-hook")))
	hook, err := os.ReadFile("../../share/libvirt/bascule")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(v.dir, "hook"), hook, 0o755))
	for _, folder := range []string{"run", "lib", "cache", "log"} { // state that it keeps across restarts
		must(t, os.Mkdir(filepath.Join(v.dir, folder), 0o755))
	}
	t.Cleanup(func() {
		if v.cmd != nil {
			_, _ = v.virsh("destroy", "web")
			v.kill()
		}
	})
	v.start()
	return v
}

// start starts libvirtd with the folders of the test.
func (v *libvirt) start() {
	v.t.Helper()
	const inside = `set -e
for d in run lib cache log; do
	at=/var/$d/libvirt; test $d != run || at=/run/libvirt
	mkdir -p $at; mount --bind "$0/$d" $at
done
for f in passwd group; do # Debian's libvirt-daemon-system makes the user, and starts services
	{ cat /etc/$f; echo libvirt-qemu:x:64055:64055:::; } >"$0/$f"
	mount --bind "$0/$f" /etc/$f
done
echo "127.0.0.1 localhost $1" >"$0/hosts"
mount --bind "$0/hosts" /etc/hosts
hostname "$1"
mkdir -p /etc/libvirt /usr/local/libexec
mount -t tmpfs none /etc/libvirt
mkdir -p /etc/libvirt/hooks/qemu.d
cp "$0"/*.conf /etc/libvirt
cp "$0/hook" /etc/libvirt/hooks/qemu.d/bascule
mount -t tmpfs none /usr/local/libexec
cp -P "$0/bascule-libvirt-hook" /usr/local/libexec
exec libvirtd -f /etc/libvirt/libvirtd.conf --pid-file /run/libvirt/libvirtd.pid`
	v.cmd = exec.Command("nsenter", "--net=/run/netns/"+v.Switch.Name, "unshare", "--mount", "--uts", "--propagation", "private",
		"sh", "-c", inside, v.dir, v.Switch.Name)
	v.cmd.Stdout, v.cmd.Stderr = v.logs.File, v.logs.File
	must(v.t, v.cmd.Start())
	v.Wait("libvirtd to answer", func() bool {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", v.cmd.Process.Pid)); err != nil || strings.Contains(string(stat), ") Z ") {
			log, _ := os.ReadFile(v.logs.Name())
			v.t.Fatalf("libvirtd has ended: %s", log)
		}
		_, err := v.virsh("list")
		return err == nil
	})
}

func (v *libvirt) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
	v.cmd = nil
}

func (v *libvirt) virsh(args ...string) (string, error) {
	args = append([]string{"--target", strconv.Itoa(v.cmd.Process.Pid), "--mount", "--net", "virsh", "-c", "qemu:///system"}, args...)
	out, err := exec.Command("nsenter", args...).CombinedOutput()
	return string(out), err
}

// web returns the description of a guest whose metadata has an interface.
func (v *libvirt) web(inner string) string {
	path := filepath.Join(v.dir, "web.xml")
	must(v.t, os.WriteFile(path, []byte(`<domain type='qemu'><name>web</name><uuid>c7a5fdbd-edaf-9455-926a-d65c16db1809</uuid><memory unit='MiB'>32</memory>
<metadata><b:guest xmlns:b='urn:bascule:guest:1'>`+inner+`</b:guest></metadata>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<interface type='ethernet'><mac address='52:54:00:00:00:01'/><target dev='guest0'/><model type='virtio'/></interface></devices></domain>`), 0o644))
	return path
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// The guest of Debian's libvirt is attached to the switch as its description says. It stays attached when libvirtd is
// killed and restarted. It does not start if its description has a mistake.
func TestLibvirt(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	v := newLibvirt(t, l)
	l.Keep("guest0")
	l.Bascule("bridge", "add", "br0", "--vlan-filtering")
	plugged := func() string {
		var ports []struct{ Ifname, State string }
		must(t, json.Unmarshal([]byte(l.Bascule("-j", "port", "show")), &ports))
		if len(ports) == 0 {
			return ""
		}
		return ports[0].Ifname + " " + l.Bascule("vlan", "show", "br0") + l.Bascule("binding", "show")
	}
	for inner, want := range map[string]string{
		`<b:interface mac='52:54:00:00:00:01' bridge='br0' vlna='10'/>`:                                  `has no attribute "vlna"`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:set name='fdb-mx'>4</b:set></b:interface>`: `"fdb-mx" is not a setting`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br9'/>`:                                            `br9`,
		`<b:interface mac='52:54:00:00:00:01' bridge='../../x'/>`:                                        `../../x`,
		`<b:interface mac='52:54:00:00:00:01' bridge='$(touch /tmp/bsc-x)'/>`:                            `$(touch`,
		`<b:interface mac='52:54:00:00:00:01' bridge='br0'><b:pf>blok</b:pf></b:interface>`:              `blok`,
	} {
		out, err := v.virsh("create", v.web(inner))
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s, should say %s", inner, err, out, want)
		}
		if got := plugged(); got != "" {
			t.Errorf("%s: there is a port: %s", inner, got)
		}
	}
	if out, err := v.virsh("create", v.web(`<b:interface mac='52:54:00:00:00:01' bridge='br0' vlan='10'><b:set name='source-guard'>on</b:set>
<b:binding address='192.0.2.7'/></b:interface>`)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	good := plugged()
	if !strings.HasPrefix(good, "guest0 ") || !strings.Contains(good, "10    PVID, Egress Untagged") || !strings.Contains(good, "192.0.2.7") {
		t.Errorf("the guest is plugged as %s", good)
	}
	v.kill()
	v.start()
	// It answers before it has found its guests again, and would take a request then for a failure of the guests.
	l.Wait("libvirtd to talk with the guest's QEMU", func() bool {
		out, err := v.virsh("qemu-monitor-command", "web", `{"execute":"query-status"}`)
		return err == nil && strings.Contains(out, `"running":true`)
	})
	if got := plugged(); got != good {
		t.Errorf("after libvirtd was killed the guest is plugged as %s, and was as %s", got, good)
	}
	if out, err := v.virsh("destroy", "web"); err != nil {
		log, _ := os.ReadFile(filepath.Join(v.dir, "log", "qemu", "web.log"))
		t.Errorf("%v: %s\n%s", err, out, log)
	}
	l.Wait("the guest to be off the switch", func() bool { return plugged() == "" })
}

// A guest migrates live from one libvirt to another. A cable joins their switches. The hooks of both handle the guest's
// port: it is added before the guest starts, and removed with it. On each switch the guest's MAC moves once, by the
// frames in which its QEMU announces it.
func TestLibvirtMigrate(t *testing.T) {
	t.Parallel()
	one := netlab.New(t)
	two := one.Beside()
	here, there := newLibvirt(t, one), newLibvirt(t, two)
	ends := []*netlab.End{one.NewEnds(1)[0], two.NewEnds(1)[0]}
	one.Cable("uplink", two, "uplink")
	for i, l := range []*netlab.Lab{one, two} {
		l.Bascule("bridge", "add", "br0")
		l.Bascule("port", "add", "br0", ends[i].Port, "uplink")
		l.Keep("guest0")
	}
	near, far := one.NewMonitor("br0", ends[0]), two.NewMonitor("br0", ends[1])
	if out, err := here.virsh("create", here.web(`<b:interface mac='52:54:00:00:00:01' bridge='br0'/>`)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const mac = "52:54:00:00:00:01"
	of := func(event, ifname string) func(netlab.Event) bool {
		return func(e netlab.Event) bool { return e.MAC == mac && e.Event == event && e.Ifname == ifname }
	}
	// The guest has no system that would send frames.
	if out, err := here.virsh("qemu-monitor-command", "web",
		`{"execute":"announce-self","arguments":{"initial":50,"max":50,"rounds":2,"step":0}}`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	near.Wait("the guest's MAC at its tap", of("learned", "guest0"))
	far.Wait("the guest's MAC at the cable", of("learned", "uplink"))
	if out, err := here.virsh("migrate", "--live", "web", "qemu+unix:///system?socket="+filepath.Join(there.dir, "run", "libvirt-sock"),
		"--migrateuri", "unix://"+filepath.Join(there.dir, "moves")); err != nil {
		log, _ := os.ReadFile(there.logs.Name())
		t.Fatalf("%v: %s\n%s", err, out, log)
	}
	near.Wait("that the MAC moves to the cable", of("moved", "uplink"))
	far.Wait("that the MAC moves to the tap", of("moved", "guest0"))
	owned := func(l *netlab.Lab) (names []string) {
		for _, p := range l.Ports("br0") {
			if p.Owner != nil {
				names = append(names, p.Ifname+" "+p.State)
			}
		}
		return names
	}
	one.Wait("the hook to take the port off", func() bool { return len(owned(one)) == 0 })
	if got := owned(two); len(got) != 1 || got[0] != "guest0 forwarding" {
		t.Errorf("on the host that the guest has moved to there is %v", got)
	}
	if out, err := there.virsh("destroy", "web"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	two.Wait("the guest to be off the switch", func() bool { return len(owned(two)) == 0 })
	for _, m := range []struct {
		*netlab.Monitor
		want string
	}{{near, "[learned guest0  moved uplink guest0]"}, {far, "[learned uplink  moved guest0 uplink]"}} {
		m.Stop()
		var got []string
		for _, e := range m.Events() {
			if e.MAC == mac && (e.Event == "learned" || e.Event == "moved") {
				got = append(got, fmt.Sprintf("%s %s %s", e.Event, e.Ifname, e.From))
			}
		}
		if fmt.Sprint(got) != m.want {
			t.Errorf("of the guest's MAC one monitor shows %v, should show %v", got, m.want)
		}
	}
}
