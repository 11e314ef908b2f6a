// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// The host's egress filters and queues at a port's device apply to the switch's frames, too.
var egressCases = []conformance{
	{name: "egress_rate", hooks: both, run: egressRate},
	{name: "egress_filter", hooks: both, run: egressFilter},
	{name: "egress_routed", hooks: tcx, run: egressRouted},
	{name: "egress_end", hooks: both, run: egressEnd},
	{name: "egress_netfilter", hooks: tcx, run: egressNetfilter},
	{name: "egress_counters", hooks: both, run: egressCounters},
	{name: "carrier_lost", hooks: both, run: carrierLost},
	{name: "carrier_lost_routed", hooks: both, run: carrierLostRouted},
}

// words replaces the line ends of a text by spaces.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// inside runs a program in a network namespace.
func inside(t *testing.T, ns *ends.Namespace, line ...string) (out string, err error) {
	t.Helper()
	text, err := exec.Command("ip", append([]string{"netns", "exec", ns.Name}, line...)...).CombinedOutput()
	return string(text), err
}

// mustInside is like inside, but must succeed.
func mustInside(t *testing.T, ns *ends.Namespace, line ...string) string {
	t.Helper()
	out, err := inside(t, ns, line...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", line, err, out)
	}
	return out
}

// waitEgress waits until the switch has seen the state of a port's device, without an agent. This
// takes less than a second, but a test must not depend on time.
func waitEgress(l *netlab.Lab, port string, want ...string) {
	l.Wait(fmt.Sprintf("%s to be seen at %s", want, port), func() bool { return slices.Equal(l.Port("br0", port).Egress, want) })
}

// pings reports whether a station reaches an address.
func pings(t *testing.T, from *ends.Namespace, to string) bool {
	t.Helper()
	_, err := inside(t, from, "ping", "-c", "1", "-W", "1", to)
	return err == nil
}

// iperf returns the rate of one TCP connection, in Mbit/s.
func iperf(t *testing.T, from, to *ends.Namespace, address string) float64 {
	t.Helper()
	server := exec.Command("ip", "netns", "exec", to.Name, "iperf3", "-s", "-1", "--forceflush")
	stdout, err := server.StdoutPipe()
	must(t, err)
	must(t, server.Start())
	defer server.Wait()
	defer server.Process.Kill()
	if _, err := stdout.Read(make([]byte, 1<<10)); err != nil { // it prints a line when it listens
		t.Fatal(err)
	}
	out := mustInside(t, from, "iperf3", "-C", "cubic", "-c", address, "-t", "3", "-J")
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	must(t, json.Unmarshal([]byte(out), &report))
	return report.End.Received.Rate / 1e6
}

// egressRate: a limit of tc applies if it is added to a port's device, and if it was there before.
// The device's own queue has seen the frames.
func egressRate(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	tc := func(line ...string) { mustInside(t, l.Switch, append([]string{"tc", "qdisc"}, line...)...) }
	limited := func(what string) {
		t.Helper()
		waitEgress(l, b.Port, "qdisc")
		// tbf at 8 Mbit/s passes 7.7 Mbit/s of TCP payload, and its burst of 64 kB.
		if rate := iperf(t, from.Namespace, to.Namespace, to.IPv4.String()); rate < 5 || rate > 8.4 {
			t.Errorf("%s: %.1f Mbit/s of 8", what, rate)
		}
	}
	tbf := []string{"root", "tbf", "rate", "8mbit", "burst", "64kb", "latency", "100ms"}
	tc(append([]string{"add", "dev", b.Port}, tbf...)...)
	limited("of a port")
	if out := mustInside(t, l.Switch, "tc", "-s", "qdisc", "show", "dev", b.Port); strings.Contains(out, "Sent 0 bytes") {
		t.Errorf("the device's queue has seen nothing:\n%s", out)
	}
	l.Bascule("port", "del", "br0", b.Port)
	l.AddPorts("br0", hook, []*netlab.End{b})
	limited("there before")
	l.Bascule("bridge", "set", "br0", "--ageing", "200s") // loads other programs
	limited("after a change")
	// "noqueue" is no queue, whether it was chosen or is the default.
	tc("replace", "dev", b.Port, "root", "noqueue")
	waitEgress(l, b.Port)
	if rate := iperf(t, from.Namespace, to.Namespace, to.IPv4.String()); rate < 50 {
		t.Errorf("%.1f Mbit/s without a limit", rate)
	}
	if way := l.Port("br0", b.Port).Way; way != "straight" {
		t.Errorf("without a limit frames leave by the way %q", way)
	}
}

// dropper returns a program that drops all packets.
func dropper(t *testing.T, kind ebpf.ProgramType, action int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()},
	})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

const (
	tcShot  = 2
	xdpDrop = 1
)

// A stopper drops packets that leave a device, until it is removed.
type stopper struct {
	name, shown string
	put         func(t *testing.T, l *netlab.Lab, device string) (end func())
}

var stoppers = []stopper{
	{"tcx", "tcx", func(t *testing.T, l *netlab.Lab, device string) func() {
		side, err := l.Switch.Netlink().LinkByName(device)
		must(t, err)
		var held link.Link
		must(t, l.Switch.Do(func() error {
			held, err = link.AttachTCX(link.TCXOptions{
				Interface: side.Attrs().Index, Program: dropper(t, ebpf.SchedCLS, tcShot), Attach: ebpf.AttachTCXEgress,
			})
			return err
		}))
		return func() { held.Close() }
	}},
	{"clsact", "tcx", func(t *testing.T, l *netlab.Lab, device string) func() {
		side, err := l.Switch.Netlink().LinkByName(device)
		must(t, err)
		mustInside(t, l.Switch, "tc", "qdisc", "add", "dev", device, "clsact")
		must(t, l.Switch.Netlink().FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: side.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS, Protocol: 3, Priority: 1},
			Fd:          dropper(t, ebpf.SchedCLS, tcShot).FD(), DirectAction: true, Name: "drop",
		}))
		return func() { mustInside(t, l.Switch, "tc", "qdisc", "del", "dev", device, "clsact") }
	}},
}

// egressFilter: a filter of the host drops frames that leave by a port.
func egressFilter(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	for _, s := range stoppers {
		if !pings(t, from.Namespace, to.IPv4.String()) {
			t.Fatalf("%s: no answer before", s.name)
		}
		end := s.put(t, l, b.Port)
		waitEgress(l, b.Port, s.shown)
		if pings(t, from.Namespace, to.IPv4.String()) {
			t.Errorf("%s: frames go past it", s.name)
		}
		end()
		waitEgress(l, b.Port)
	}
	if !pings(t, from.Namespace, to.IPv4.String()) {
		t.Error("no answer when all is gone again")
	}
}

// egressRouted: the same for packets that the datapath routes, past pf's rules, translated and
// translated to the other family.
func egressRouted(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	routed := router(t, l, a, b)
	must(t, b.Namespace.Do(func() error {
		server, err := net.Listen("tcp", "10.0.2.2:4000")
		if err == nil {
			t.Cleanup(func() { server.Close() })
		}
		return err
	}))
	connects := func() bool {
		return a.Namespace.Do(func() error {
			c, err := net.DialTimeout("tcp", "10.0.2.2:4000", time.Second)
			if err == nil {
				c.Close()
			}
			return err
		}) == nil
	}
	for _, rules := range []string{"", "pass\n", "pass\nmatch out on host1 inet from 10.0.1.2 nat-to 10.0.2.1\n"} {
		if rules != "" {
			loadPF(t, l, rules)
		}
		before := routed()
		l.Wait("packets to be routed", func() bool { return connects() && routed() > before })
		for _, s := range stoppers {
			end := s.put(t, l, b.Port)
			waitEgress(l, b.Port, s.shown)
			if connects() {
				t.Errorf("%s, with rules %q: packets go past it", s.name, rules)
			}
			end()
			waitEgress(l, b.Port)
			if !connects() {
				t.Errorf("%s, with rules %q: no answer when it is gone again", s.name, rules)
			}
		}
	}
}

// router makes the bridge a router between two stations, 10.0.1.2 and 10.0.2.2. routed returns the
// number of packets that the datapath has routed.
func router(t *testing.T, l *netlab.Lab, a, b *netlab.End) (routed func() uint64) {
	t.Helper()
	l.Bascule("port", "add", "br0", "host0", "host1", "--type", "host", "--route")
	for _, words := range []string{
		"sysctl -qw net.ipv4.ip_forward=1", "sysctl -qw net.ipv4.conf.all.arp_ignore=1", "ip link set host0 up", "ip link set host1 up",
		"ip addr add 10.0.1.1/24 dev host0", "ip addr add 10.0.2.1/24 dev host1",
	} {
		mustInside(t, l.Switch, strings.Fields(words)...)
	}
	for i, e := range []*netlab.End{a, b} {
		for _, words := range []string{
			"ip addr add 10.0.%d.2/24 dev " + e.Ifname, "ip link set " + e.Ifname + " up", "ip route add default via 10.0.%d.1",
		} {
			if strings.Contains(words, "%d") {
				words = fmt.Sprintf(words, i+1)
			}
			mustInside(t, e.Namespace, strings.Fields(words)...)
		}
	}
	return func() uint64 { return l.Port("br0", "host0").Routed["done"] + l.Port("br0", "host1").Routed["done"] }
}

// egressEnd: an XDP program at a veth's other end sees the frames that arrive there.
func egressEnd(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	far, err := b.Namespace.Netlink().LinkByName(b.Ifname)
	must(t, err)
	if !pings(t, from.Namespace, to.IPv4.String()) {
		t.Fatal("no answer before")
	}
	var held link.Link
	must(t, b.Namespace.Do(func() error {
		held, err = link.AttachXDP(link.XDPOptions{Interface: far.Attrs().Index, Program: dropper(t, ebpf.XDP, xdpDrop), Flags: link.XDPDriverMode})
		return err
	}))
	waitEgress(l, b.Port, "end-xdp")
	if pings(t, from.Namespace, to.IPv4.String()) {
		t.Error("frames go past the program")
	}
	must(t, held.Close())
	waitEgress(l, b.Port)
	if !pings(t, from.Namespace, to.IPv4.String()) {
		t.Error("no answer when it is gone again")
	}
}

// egressNetfilter: the kernel evaluates netfilter for no redirected frame. So the switch reports that
// such rules have no effect.
func egressNetfilter(t *testing.T, hook string) {
	const note = "rules of netfilter at the hook egress of its device see no frame"
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	rules := fmt.Sprintf("add table netdev t; add chain netdev t c { type filter hook egress device %q priority 0; policy drop; }", b.Port)
	mustInside(t, l.Switch, "nft", rules)
	waitEgress(l, b.Port, "netfilter")
	if !pings(t, from.Namespace, to.IPv4.String()) {
		t.Error("the kernel asks netfilter about frames that were redirected: the switch need not say that it does not")
	}
	if out := l.Bascule("port", "show", "br0", b.Port); !strings.Contains(words(out), note) {
		t.Errorf("port show says nothing of the rules:\n%s", out)
	}
	l.Bascule("port", "del", "br0", b.Port)
	r, err := l.Run("port", "add", "br0", b.Port)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, note) {
		t.Errorf("port add says nothing of the rules: %v", r)
	}
	mustInside(t, l.Switch, "nft", "flush ruleset")
	rules = strings.Replace(rules, "drop", "accept", 1) // the lab's own markers leave through the device
	mustInside(t, l.Switch, "nft", rules)
	waitEgress(l, b.Port, "netfilter")
	m := l.NewMonitor("br0", a)
	is := func(kind string) func(netlab.Event) bool {
		return func(e netlab.Event) bool {
			return e.Event == kind && e.Ifname == b.Port && strings.Contains(e.Reason, "rules of netfilter")
		}
	}
	m.Wait("the rules that are there", is("port-finding"))
	for range 3 { // the notification of a change is faster than the timer
		mustInside(t, l.Switch, "nft", "flush ruleset")
		m.Wait("that the rules went", is("port-cleared"))
		told(t, l, b.Port, "egress-rules", "rules of netfilter", false)
		mustInside(t, l.Switch, "nft", rules)
		m.Wait("rules that come later", is("port-finding"))
		told(t, l, b.Port, "egress-rules", "rules of netfilter", true)
	}
	m.Stop()
}

// egressCounters: only the switch counts frames that go directly to the other end, and port show
// reports that. The device counts frames that XDP sends, and frames that pass through it.
func egressCounters(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	passed := func() uint64 {
		side, err := l.Switch.Netlink().LinkByName(b.Port)
		must(t, err)
		return side.Attrs().Statistics.TxPackets
	}
	send := func() (device, ours uint64) {
		t.Helper()
		device, ours = passed(), l.Port("br0", b.Port).Stats64.TX.Packets
		for range 10 {
			if !pings(t, from.Namespace, to.IPv4.String()) {
				t.Fatal("no answer")
			}
		}
		return passed() - device, l.Port("br0", b.Port).Stats64.TX.Packets - ours
	}
	send()
	if device, ours := send(); device < 5 != (hook == "tcx") || ours < 10 { // a veth counts frames that XDP sends
		t.Errorf("straight: the device has counted %d frames of %d", device, ours)
	}
	if out := l.Bascule("port", "show", "br0", b.Port); !strings.Contains(words(out), "do not see them") {
		t.Errorf("port show does not say who counts:\n%s", out)
	}
	mustInside(t, l.Switch, "tc", "qdisc", "add", "dev", b.Port, "clsact")
	waitEgress(l, b.Port, "tcx")
	if device, ours := send(); device < 10 || ours < 10 { // others may send, too
		t.Errorf("by the device: it has counted %d frames of %d", device, ours)
	}
}

// carrierLost: addresses behind a port that has lost its carrier are deleted without an agent, and
// frames to them are flooded meanwhile. Frames to a static address there are dropped, with a reason.
func carrierLost(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, c := ends[0], ends[1]
	const uplink, far = "up0", "far0"
	l.Cable(uplink, l, far)
	if r, err := l.Run("port", "add", "br0", uplink, "--hook", hook); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	learn(l, a, A)
	for _, lost := range []string{uplink, far} { // the device is down, or has no carrier
		end := l.Listen(l.Switch, far)
		arrive := func(to netlab.MAC) {
			t.Helper()
			end.Received()
			frames, n := l.Frames(20, to, A), 0
			l.Reach(a, frames)
			l.Wait("frames to come by the uplink", func() bool { n += len(end.Received()); return n >= len(frames) })
			if n != len(frames) {
				t.Errorf("%d frames come by %s, should be %d", n, uplink, len(frames))
			}
		}
		l.Send(end, l.Frames(1, netlab.Broadcast, B)...)
		arrive(B)
		sent := func() uint64 { return l.Port("br0", uplink).Stats64.TX.Packets }
		begin := sent()
		l.Pull(lost)
		l.Wait("the address to be forgotten", func() bool { return find(l.FDB("br0"), B, 0) == nil })
		l.Reach(a, l.Frames(20, B, A), c) // the station may be there by now
		if r := look(t, l, a, l.Frame(B, A, 60)); r.Verdict != "flooded" || !slices.Equal(r.Out, []string{c.Port}) {
			t.Errorf("%s is down: traced: %v", lost, r)
		}
		l.Bascule("fdb", "add", "br0", D.String(), uplink)
		dropped := l.Port("br0", a.Port).Drops["no-carrier"]
		l.Reach(a, l.Frames(20, D, A))
		if n := l.Port("br0", a.Port).Drops["no-carrier"] - dropped; n != 20 {
			t.Errorf("%s is down: %d of 20 frames to a static address are dropped as no-carrier", lost, n)
		}
		if r := look(t, l, a, l.Frame(D, A, 60)); r.Verdict != "dropped: no-carrier" {
			t.Errorf("%s is down: traced: %v", lost, r)
		}
		if n := sent() - begin; n != 0 {
			t.Errorf("%s is down: %d frames count as sent to nobody", lost, n)
		}
		side, err := l.Switch.Netlink().LinkByName(lost)
		must(t, err)
		l.SetUp(side)
		end = l.Listen(l.Switch, far) // the old socket has an error from before
		l.Wait("the switch to send there again", func() bool { return look(t, l, a, l.Frame(D, A, 60)).Verdict == "forwarded" })
		arrive(D)
		l.Bascule("fdb", "del", "br0", D.String())
	}
	// A link that comes and goes, faster than the timer runs.
	side, err := l.Switch.Netlink().LinkByName(far)
	must(t, err)
	for range 10 {
		l.SetUp(side)
		l.Send(l.Listen(l.Switch, far), l.Frames(1, netlab.Broadcast, B)...)
		l.Pull(far)
	}
	l.Wait("the address to be forgotten again", func() bool { return find(l.FDB("br0"), B, 0) == nil })
}

// carrierLostRouted: a routed packet to a station whose port has lost its carrier reaches the station
// at its new port, although the station is silent. Packets to a static address behind such a port are
// dropped, with a reason, and trace shows that.
func carrierLostRouted(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	routed := router(t, l, a, b)
	nl := b.Namespace.Netlink()
	far, err := nl.LinkByName(b.Ifname)
	must(t, err)
	mac := far.Attrs().HardwareAddr.String()
	answers := func() bool { return pings(t, a.Namespace, "10.0.2.2") }
	known := func() (at string) {
		for _, e := range l.FDB("br0") {
			if e.MAC == mac {
				at = e.Ifname
			}
		}
		return at
	}
	l.Wait("packets to be routed", func() bool {
		before := routed()
		return answers() && routed() > before
	})
	// The same station at another port, where it is silent.
	for _, words := range []string{
		"ip link set %s down", "ip link set %s address " + mac, "ip addr add 10.0.2.2/24 dev %s", "ip link set %s up",
		"ip route replace default via 10.0.2.1 dev %s",
	} {
		mustInside(t, c.Namespace, strings.Fields(fmt.Sprintf(words, c.Ifname))...)
	}
	if at := known(); at != b.Port {
		t.Fatalf("the station is known at %q, not at %s", at, b.Port)
	}
	mustInside(t, b.Namespace, "ip", "link", "set", b.Ifname, "down")
	l.Wait("the address to be forgotten", func() bool { return known() == "" })
	if !answers() {
		t.Error("the station is not found at its other port")
	}
	if at := known(); at != c.Port {
		t.Errorf("the station is known at %q, not at %s", at, c.Port)
	}
	l.Bascule("fdb", "add", "br0", mac, b.Port)
	dropped := func() (n uint64) {
		for _, port := range []string{a.Port, "host0", "host1"} {
			n += l.Port("br0", port).Drops["no-carrier"]
		}
		return n
	}
	before := dropped()
	if answers() {
		t.Error("what is for a static address behind a port without a carrier comes to another port")
	}
	if dropped() == before {
		t.Errorf("nothing is counted as no-carrier")
	}
	gateway, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	at := []string{"trace", "br0", "--in", a.Port, "--dst", gateway.Attrs().HardwareAddr.String(), "--ip", "10.0.1.2", "--to", "10.0.2.2", "--udp", "9"}
	if out := l.Bascule(at...); !strings.Contains(out, "no-carrier") {
		t.Errorf("traced:\n%s", out)
	}
	mustInside(t, c.Namespace, "ip", "link", "set", c.Ifname, "down")
	mustInside(t, b.Namespace, "ip", "link", "set", b.Ifname, "up")
	mustInside(t, b.Namespace, "ip", "route", "replace", "default", "via", "10.0.2.1")
	l.Wait("a carrier of "+b.Port, func() bool {
		side, err := l.Switch.Netlink().LinkByName(b.Port)
		must(t, err)
		return side.Attrs().OperState == netlink.OperUp
	})
	if !answers() {
		t.Error("no answer though the carrier is back")
	}
}
