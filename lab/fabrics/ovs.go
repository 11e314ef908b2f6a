// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/pattern"
)

// OVS is an Open vSwitch bridge that forwards by learned addresses, the default without a
// controller (action NORMAL).
//
// If the kernel has Open vSwitch's own datapath, that datapath forwards. Otherwise ovs-vswitchd
// forwards through packet sockets, with userspace-tso-enable on: packets cross with partial
// checksums and up to 64 KiB, as in the kernel. Without this option the checksums of local senders
// are lost and large packets are truncated, so that TCP works only with the ends' offloads off. No
// other option made a measurable difference: emc-insert-inv-prob did not, and more receive queues
// and pmd-cpu-mask do not apply to packet sockets, which the main thread polls.
var OVS = &Fabric{
	Name:     "ovs",
	About:    "an Open vSwitch bridge: the kernel's datapath, or in user space where it has none",
	Path:     path("end", "device veth", "bridge Open vSwitch", "device veth", "end"),
	HostPath: path("host", "device OVS internal port", "bridge Open vSwitch", "device veth", "end"),
	Arrival:  AsBuffers,
	Needs:    ovsPrograms,
	Files:    []string{ovsSchema},
	Modules:  []string{"openvswitch"},
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &ovsKit{net: n})
	},
}

// OVSAFXDP is Open vSwitch in user space with AF_XDP sockets at its ports, if it was built with
// them. It forwards several times as many packets a second as with packet sockets. But partial
// checksums are lost, and no frame may be larger than a page. So the ends' transmit checksum
// offload is off, and therefore they send no large packets.
//
// The ports have the type afxdp-nonpmd: the main thread polls them, as it does packet sockets. A
// thread of the type afxdp has a lower latency and the same throughput, but never sleeps, and would
// take a core from every other fabric of a group of cases.
var OVSAFXDP = &Fabric{
	Name:     "ovs-afxdp",
	About:    "an Open vSwitch bridge in user space with AF_XDP ports; no checksum offload at the ends",
	Path:     OVS.Path,
	HostPath: OVS.HostPath,
	Arrival:  AsBuffers,
	Needs:    append([]ends.Program{{Command: "ethtool", Package: "ethtool"}}, ovsPrograms...),
	build:    buildOVSAFXDP,
}

func buildOVSAFXDP(ctx context.Context, _ Site, n *Net) error {
	const most = 3000 // what certainly remains of a page of 4096
	if n.Spec.Wire.MTU > most {
		return &ends.Unavailable{Reason: fmt.Sprintf("AF_XDP sockets take no frame of more than a page; the MTU is %d", n.Spec.Wire.MTU)}
	}
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "AF_XDP sockets lose the checksums of virtual machines"}
	}
	if err := n.single(ctx, &ovsKit{net: n, afxdp: true}); err != nil {
		return err
	}
	for _, e := range n.Ends {
		if _, err := e.At.Output(ctx, ends.AnyCPU, "ethtool", "-K", e.Ifname, "tx", "off"); err != nil {
			return err
		}
	}
	return nil
}

// OVSConntrack is an Open vSwitch bridge with connection tracking and the lab's policy, which
// forwards by learned addresses.
var OVSConntrack = &Fabric{
	Name:    "ovs+conntrack",
	About:   "an Open vSwitch bridge with stateful flows (by conntrack)",
	Path:    path("end", "device veth", "bridge Open vSwitch", "filter conntrack", "device veth", "end"),
	Arrival: AsBuffers,
	Needs:   append([]ends.Program{{Command: "ovs-ofctl", Package: "openvswitch-switch"}}, ovsPrograms...),
	Files:   OVS.Files,
	Modules: append([]string{"nf_conntrack", "nf_conntrack_netlink"}, OVS.Modules...),
	build: func(ctx context.Context, _ Site, n *Net) error {
		k := &ovsKit{net: n}
		if err := n.single(ctx, k); err != nil {
			return err
		}
		return k.filter(ctx, bridgeName)
	},
}

// filter loads the lab's policy into a bridge.
func (k *ovsKit) filter(ctx context.Context, bridge string) error {
	flows := []string{"table=0,priority=1,arp,actions=NORMAL", "table=0,priority=1,icmp6,actions=NORMAL", "table=0,priority=0,actions=drop",
		"table=0,priority=2,ip,ct_state=-trk,actions=ct(table=1)",
		"table=1,priority=2,ip,ct_state=+trk+est,actions=NORMAL", "table=1,priority=2,ip,ct_state=+trk+rel,actions=NORMAL",
		"table=1,priority=0,actions=drop"}
	for _, proto := range []string{"tcp", "udp", "icmp"} {
		flows = append(flows, fmt.Sprintf("table=1,priority=1,%s,nw_dst=%s,ct_state=+trk+new,actions=ct(commit),NORMAL", proto, labNetwork))
	}
	if err := os.WriteFile(k.path("flows"), []byte(strings.Join(flows, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{{"del-flows", bridge}, {"add-flows", bridge, k.path("flows")}} {
		if _, err := k.run(ctx, "ovs-ofctl", args...); err != nil {
			return err
		}
	}
	if k.datapath != "system" {
		k.net.forget = func(ctx context.Context) error {
			_, err := k.appctl(ctx, "dpctl/flush-conntrack")
			return err
		}
		return nil
	}
	return k.net.conntrack()
}

var ovsPrograms = []ends.Program{
	{Command: "ovs-vswitchd", Package: "openvswitch-switch"},
	{Command: "ovsdb-server", Package: "openvswitch-switch"},
	{Command: "ovsdb-tool", Package: "openvswitch-switch"},
	{Command: "ovs-vsctl", Package: "openvswitch-switch"},
	{Command: "ovs-appctl", Package: "openvswitch-switch"},
}

// ovsSchema is the schema of Open vSwitch's database.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

const ovsAFXDPType = "afxdp-nonpmd"

// ovsPatience is the timeout of a command to the daemons.
const ovsPatience = 20 * time.Second

// ovsKit makes Open vSwitch bridges. A net has its own daemons, which write only to their own
// directory.
type ovsKit struct {
	net      *Net
	afxdp    bool
	dir      string
	datapath string // datapath_type of ovs-vswitchd.conf.db(5)
	daemons  []*daemon
}

// daemon is a program that runs as long as the net.
type daemon struct {
	name   string
	cmd    ends.Cmd
	cancel context.CancelFunc
	said   bytes.Buffer    // valid after the end
	ended  context.Context // its cause is the reason
}

// err returns how a daemon ended; nil while it runs.
func (d *daemon) err() error { return context.Cause(d.ended) }

// how returns how the daemon ended, with its last output.
func (d *daemon) how() error {
	last := strings.TrimSpace(d.said.String())
	last = last[strings.LastIndexByte(last, '\n')+1:]
	if last == "" {
		return fmt.Errorf("%s has ended: %s", d.name, d.cmd.ProcessState)
	}
	return fmt.Errorf("%s has ended: %s: %s", d.name, d.cmd.ProcessState, last)
}

// env separates the programs of Open vSwitch from the machine's own.
func (k *ovsKit) env() []string {
	// This also disables libxdp's dispatcher, which it would pin in the BPF filesystem.
	env := append(os.Environ(), "LIBXDP_SKIP_DISPATCHER=1")
	for _, name := range []string{"RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"} {
		env = append(env, "OVS_"+name+"="+k.dir)
	}
	return env
}

func (k *ovsKit) path(name string) string { return filepath.Join(k.dir, name) }

// run runs a command of Open vSwitch for the daemons. The command ends with them, and the error is
// a daemon's if one has ended.
func (k *ovsKit) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ovsPatience, fmt.Errorf("no answer after %v", ovsPatience))
	defer cancel()
	finished := make(chan struct{})
	defer close(finished)
	for _, d := range k.daemons {
		go func() {
			select {
			case <-d.ended.Done():
				cancel()
			case <-finished:
			}
		}()
	}
	cmd := ends.Command(ctx, name, args...)
	cmd.Env = k.env()
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := k.net.Switch.Start(cmd, ends.AnyCPU)
	if err == nil {
		err = cmd.Wait()
	}
	// ovs-vsctl succeeds even if a port cannot be made.
	if err == nil && strings.Contains(said.String(), "Error detected") {
		err = errors.New("ovs-vswitchd refused")
	}
	if err == nil {
		return out.String(), nil
	}
	for _, d := range k.daemons {
		if gone := d.err(); gone != nil {
			return "", gone
		}
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(said.String()))
}

// vsctl changes the configuration and waits until ovs-vswitchd has applied it.
func (k *ovsKit) vsctl(ctx context.Context, args ...string) error {
	_, err := k.run(ctx, "ovs-vsctl", append([]string{"--db=unix:" + k.path("db.sock")}, args...)...)
	return err
}

// appctl sends a command to ovs-vswitchd.
func (k *ovsKit) appctl(ctx context.Context, args ...string) (string, error) {
	return k.run(ctx, "ovs-appctl", append([]string{"--target=" + k.path("vswitchd.ctl")}, args...)...)
}

// daemon starts a program in the switch's namespace and waits until its socket
// accepts connections: the file exists earlier.
func (k *ovsKit) daemon(ctx context.Context, socket, name string, args ...string) error {
	// They neither detach nor write to the system log: they end with the lab.
	args = append(args, "--no-chdir", "--verbose=console:warn", "--verbose=syslog:off", "--verbose=file:info", "--log-file="+k.path(name+".log"))
	run, cancel := context.WithCancel(ctx)
	d := &daemon{name: name, cmd: ends.Command(run, name, args...), cancel: cancel}
	d.cmd.Env = k.env()
	d.cmd.Stdout, d.cmd.Stderr = &d.said, &d.said
	if err := k.net.Switch.Start(d.cmd, ends.AnyCPU); err != nil {
		cancel()
		return err
	}
	// The new context outlives ctx until the process is gone.
	ended, end := context.WithCancelCause(context.WithoutCancel(ctx))
	d.ended = ended
	go func() {
		// ProcessState has the result.
		_ = d.cmd.Wait()
		end(d.how())
	}()
	k.daemons = append(k.daemons, d)
	k.net.living = append(k.net.living, d.ended)
	deadline := time.After(ovsPatience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", k.path(socket)); err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case <-d.ended.Done():
			return d.err()
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s is not ready after %v", name, ovsPatience)
		}
	}
}

// start starts the daemons of a net.
func (k *ovsKit) start(ctx context.Context) (err error) {
	n := k.net
	if _, err := os.Stat(ovsSchema); err != nil {
		return &ends.Unavailable{Reason: "no " + ovsSchema + "; apt-get install openvswitch-switch"}
	}
	if k.dir, err = ends.MakeDir(fmt.Sprintf("%d-ovs", n.serial)); err != nil {
		return err
	}
	n.undo = append(n.undo, k.stop)
	k.datapath = "netdev"
	how := "userspace datapath with AF_XDP"
	if !k.afxdp {
		how = "userspace datapath (the kernel has none)"
		if _, err := netlink.GenlFamilyGet("ovs_datapath"); err == nil {
			k.datapath = "system"
			how = "kernel datapath"
		}
	}
	version, err := k.run(ctx, "ovs-vswitchd", "--version")
	if err != nil {
		return err
	}
	n.Notes = append(n.Notes, fmt.Sprintf("Open vSwitch %s, %s", ovsVersion(version), how))
	if _, err := k.run(ctx, "ovsdb-tool", "create", k.path("conf.db"), ovsSchema); err != nil {
		return err
	}
	err = k.daemon(ctx, "db.sock", "ovsdb-server", k.path("conf.db"), "--remote=punix:"+k.path("db.sock"), "--unixctl="+k.path("ovsdb.ctl"))
	if err != nil {
		return err
	}
	settings := []string{"--no-wait", "init"}
	if k.datapath == "netdev" && !k.afxdp {
		// It takes effect only if it is set before ovs-vswitchd starts.
		settings = append(settings, "--", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
	}
	if err := k.vsctl(ctx, settings...); err != nil {
		return err
	}
	// The kernel also sees the packets of packet sockets, and must not answer for the host's
	// own interface.
	err = n.Switch.Do(func() error { return ends.Sysctl("net.ipv4.conf.all.arp_ignore", "1") })
	if err != nil {
		return err
	}
	if err := uptime(ctx, ovsAwake); err != nil {
		return err
	}
	return k.daemon(ctx, "vswitchd.ctl", "ovs-vswitchd", "unix:"+k.path("db.sock"), "--unixctl="+k.path("vswitchd.ctl"))
}

// ovsAwake is the minimum uptime of a machine before ovs-vswitchd starts there. It counts the CPUs
// every ten seconds of a clock that starts at boot, for the first time when that clock reaches ten
// seconds. Before that, it logs "Overriding n-handler-threads to 0" and has no thread for frames
// without a flow (seen with Open vSwitch 3.1).
const ovsAwake = 11 * time.Second

// uptime waits until the machine's uptime has reached d.
func uptime(ctx context.Context, d time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	select {
	case <-time.After(d - time.Duration(now.Nano())):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop stops the daemons and removes their files.
func (k *ovsKit) stop() error {
	for _, d := range k.daemons {
		d.cancel()
		<-d.ended.Done()
	}
	return os.RemoveAll(k.dir)
}

// ovsVersion finds the number in "ovs-vswitchd (Open vSwitch) 3.1.0".
func ovsVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	_, version, _ := strings.Cut(line, ") ")
	return cmp.Or(version, "of unknown version")
}

func (k *ovsKit) add(ctx context.Context, bridge string) error {
	if k.dir == "" {
		if err := k.start(ctx); err != nil {
			return err
		}
	}
	args := []string{"add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=" + k.datapath}
	if age := k.net.Spec.Ageing; age != 0 {
		args = append(args, fmt.Sprintf("other_config:mac-aging-time=%.0f", age.Seconds()))
	}
	if most := k.net.Spec.FDBMax; most != 0 {
		args = append(args, fmt.Sprintf("other_config:mac-table-size=%d", most))
	}
	if err := k.vsctl(ctx, args...); err != nil || !k.afxdp {
		return err
	}
	types, err := k.run(ctx, "ovs-vsctl", "--db=unix:"+k.path("db.sock"), "get", "Open_vSwitch", ".", "iface_types")
	if err == nil && !strings.Contains(types, ovsAFXDPType) {
		return &ends.Unavailable{Reason: "this Open vSwitch was built without AF_XDP"}
	}
	return err
}

func (k *ovsKit) plug(ctx context.Context, bridge, device string) error {
	if k.afxdp {
		return k.vsctl(ctx, "add-port", bridge, device, "--",
			"set", "Interface", device, "type="+ovsAFXDPType, "options:xdp-mode=native")
	}
	return k.vsctl(ctx, "add-port", bridge, device)
}

func (k *ovsKit) unplug(ctx context.Context, bridge, device string) error {
	return k.vsctl(ctx, "del-port", bridge, device)
}

// A port of the type internal is a device of the host.
func (k *ovsKit) host(ctx context.Context, bridge, device string) (string, error) {
	// Open vSwitch sets the MTU of its own devices, and reverts changes of others.
	mtu := cmp.Or(k.net.Spec.Wire.MTU, ends.DefaultMTU)
	return device, k.vsctl(ctx, "add-port", bridge, device, "--",
		"set", "Interface", device, "type=internal", fmt.Sprintf("mtu_request=%d", mtu))
}

func (k *ovsKit) flush(ctx context.Context, bridge string) error {
	_, err := k.appctl(ctx, "fdb/flush", bridge)
	return err
}

var ovsKnown = pattern.New(`Current/maximum MAC entries in the table: ([0-9]+)/`)

func (k *ovsKit) known(ctx context.Context, bridge string) (int, error) {
	out, err := k.appctl(ctx, "fdb/stats-show", bridge)
	if err != nil {
		return 0, err
	}
	m := ovsKnown().FindStringSubmatch(out)
	if m == nil {
		return 0, errors.New("ovs-appctl fdb/stats-show does not report how many addresses it has learned")
	}
	return strconv.Atoi(m[1])
}
