// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/agent/rstp"
	"bascule/lab/ends"
	"bascule/test/netlab"
)

// run runs a program in the node's namespace, which must succeed.
func (n *node) run(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	cmd := ends.Command(context.Background(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	must(t, n.Switch.Start(cmd, ends.AnyCPU))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, said.String())
	}
	return out.String()
}

// A linuxBridge is a bridge of the kernel, with its spanning tree according to IEEE
// 802.1D-1998.
type linuxBridge struct {
	t testing.TB
	n *node
}

// addLinux adds a bridge of the kernel with the shortest times.
func (w *network) addLinux(priority int) *node {
	w.t.Helper()
	n := &node{Lab: w.lab(), bridge: "br0"}
	b := &linuxBridge{w.t, n}
	n.foreign = b
	w.place(n)
	n.Keep("br0")
	b.ip("link", "add", "br0", "type", "bridge", "stp_state", "1", "priority", fmt.Sprint(priority),
		"hello_time", "100", "max_age", "600", "forward_delay", "400")
	w.t.Cleanup(func() { b.ip("link", "del", "br0") }) // the lab needs the former state
	b.ip("link", "set", "br0", "up")
	b.join(n.end.Port)
	return n
}

func (b *linuxBridge) ip(args ...string) string {
	b.t.Helper()
	return b.n.run(b.t, nil, "ip", args...)
}

func (b *linuxBridge) join(port string) { b.ip("link", "set", port, "master", "br0") }

func (b *linuxBridge) flush() {} // it forwards within the sender's system call

func (b *linuxBridge) view() view {
	type link struct {
		Name string `json:"ifname"`
		Info struct {
			Bridge struct {
				ID   string `json:"bridge_id"`
				Port int    `json:"root_port"`
			} `json:"info_data"`
			Port struct {
				State string `json:"state"`
				No    string `json:"no"`
				Root  string `json:"root_id"`   // designated; the bridge's own is wrong in iproute2 6.1
				From  string `json:"bridge_id"` // designated
			} `json:"info_slave_data"`
		} `json:"linkinfo"`
	}
	list := func(args ...string) (l []link) {
		b.t.Helper()
		text := b.ip(append([]string{"-d", "-j", "link", "show"}, args...)...)
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			b.t.Fatalf("%v in %s", err, text)
		}
		return l
	}
	own := list("br0")[0].Info.Bridge
	v := view{root: linuxID(own.ID), isIt: own.Port == 0, ports: map[string]place{}}
	for _, l := range list("master", "br0") {
		p := l.Info.Port
		var number int
		if _, err := fmt.Sscanf(p.No, "0x%x", &number); err != nil {
			b.t.Fatalf("port number %q: %v", p.No, err)
		}
		role := "alternate"
		switch {
		case !v.isIt && number == own.Port:
			role = "root"
			v.root = linuxID(p.Root)
		case p.From == own.ID:
			role = "designated"
		}
		state := p.State
		if state == "blocking" || state == "listening" {
			state = "discarding"
		}
		v.ports[l.Name] = place{role, state}
	}
	return v
}

// linuxID converts an identifier of ip(8), which has colons and no leading zeros, to our form.
func linuxID(id string) string {
	priority, mac, _ := strings.Cut(id, ".")
	var high uint16
	var low [6]byte
	fmt.Sscanf(priority, "%x", &high)
	fmt.Sscanf(mac, "%x:%x:%x:%x:%x:%x", &low[0], &low[1], &low[2], &low[3], &low[4], &low[5])
	return rstp.NewBridgeID(high, low[:]).String()
}

// An ovs is Open vSwitch in user space, with its rapid spanning tree.
type ovs struct {
	t   testing.TB
	n   *node
	dir string
}

// addOVS adds a bridge of a separate Open vSwitch.
func (w *network) addOVS(priority int) *node {
	w.t.Helper()
	const schema = "/usr/share/openvswitch/vswitch.ovsschema"
	if _, err := os.Stat(schema); err != nil {
		w.t.Skip("no Open vSwitch: apt-get install openvswitch-switch")
	}
	n := &node{Lab: w.lab(), bridge: "br0"}
	o := &ovs{w.t, n, w.t.TempDir()}
	n.foreign = o
	w.place(n)
	for _, name := range []string{"br0", "ovs-netdev"} {
		n.Keep(name)
	}
	n.run(w.t, o.env(), "ovsdb-tool", "create", o.path("conf.db"), schema)
	o.start("db.sock", "ovsdb-server", o.path("conf.db"), "--remote=punix:"+o.path("db.sock"), "--unixctl="+o.path("db.ctl"))
	o.vsctl("--no-wait", "init")
	o.start("vswitchd.ctl", "ovs-vswitchd", "unix:"+o.path("db.sock"), "--unixctl="+o.path("vswitchd.ctl"))
	o.vsctl("add-br", "br0", "--", "set", "Bridge", "br0", "datapath_type=netdev", "rstp_enable=true",
		fmt.Sprintf("other_config:rstp-priority=%d", priority))
	w.t.Cleanup(func() { o.vsctl("del-br", "br0") }) // ports return to their former state
	o.join(n.end.Port)
	o.vsctl("set", "Port", n.end.Port, "other_config:rstp-port-admin-edge=true")
	return n
}

func (o *ovs) path(name string) string { return filepath.Join(o.dir, name) }

func (o *ovs) env() (env []string) {
	for _, name := range []string{"RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"} {
		env = append(env, "OVS_"+name+"="+o.dir)
	}
	return env
}

// start starts a daemon, which ends before the lab.
func (o *ovs) start(socket, name string, args ...string) {
	o.t.Helper()
	cmd := ends.Command(context.Background(), name, append(args, "--no-chdir", "--verbose=console:warn", "--verbose=syslog:off")...)
	cmd.Env = append(os.Environ(), o.env()...)
	var logs netlab.Output
	cmd.Stdout, cmd.Stderr = &logs, &logs
	must(o.t, o.n.Switch.Start(cmd, ends.AnyCPU))
	o.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if o.t.Failed() {
			o.t.Logf("%s:\n%s", name, logs.String())
		}
	})
	o.n.Wait(name+" to answer", func() bool {
		c, err := net.Dial("unix", o.path(socket))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (o *ovs) vsctl(args ...string) {
	o.t.Helper()
	o.n.run(o.t, o.env(), "ovs-vsctl", append([]string{"--timeout=60", "--db=unix:" + o.path("db.sock")}, args...)...)
}

func (o *ovs) join(port string) { o.vsctl("add-port", "br0", port) }

// flush waits for the process, and deletes its cached decisions. It forwards by the cache until
// its revalidators have checked it, which on a busy machine is long after the spanning tree has
// opened a port. The process handles frames and requests alternately: there is a whole turn
// between two answers.
func (o *ovs) flush() {
	o.t.Helper()
	const linger = 200 * time.Millisecond
	time.Sleep(linger)
	for range 2 {
		o.appctl("revalidator/purge")
	}
}

// appctl returns a response of the switch's process.
func (o *ovs) appctl(args ...string) string {
	o.t.Helper()
	return o.n.run(o.t, o.env(), "ovs-appctl", append([]string{"--target=" + o.path("vswitchd.ctl")}, args...)...)
}

// view parses the output of `ovs-appctl rstp/show`: settings of the root, of the bridge, then a
// table of ports.
func (o *ovs) view() view {
	o.t.Helper()
	text := o.appctl("rstp/show", "br0")
	v := view{ports: map[string]place{}}
	var id [2]string // of the root, then of the bridge
	k := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case strings.Contains(line, "Bridge ID:"):
			k = 1
		case len(f) == 2 && f[0] == "stp-priority":
			var priority int
			if _, err := fmt.Sscan(f[1], &priority); err != nil {
				o.t.Fatal(err)
			}
			id[k] = fmt.Sprintf("%04x", priority)
		case len(f) == 2 && f[0] == "stp-system-id":
			id[k] += "." + strings.ReplaceAll(f[1], ":", "")
		case len(f) == 5 && strings.Contains(f[4], "."):
			role := strings.ToLower(f[1])
			if role == "backup" {
				role = "alternate"
			}
			v.ports[f[0]] = place{role, strings.ToLower(f[2])}
		}
	}
	v.root, v.isIt = id[0], id[0] == id[1]
	return v
}
