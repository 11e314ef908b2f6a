// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

var forwardingCases = []conformance{
	{name: "backup_port", hooks: both, run: backupPort},
	{name: "unicast_two_hosts", hooks: both, run: unicastTwoHosts},
	{name: "learn_then_unicast", hooks: both, run: learnThenUnicast},
	{name: "unknown_unicast_flood", hooks: both, run: unknownUnicastFlood},
	{name: "broadcast_flood", hooks: both, run: broadcastFlood},
	{name: "multicast_flood", hooks: both, run: multicastFlood},
	{name: "move", hooks: both, run: move},
	{name: "move_damping", hooks: tcx, run: moveDamping},
	{name: "age_out", hooks: tcx, run: ageOut},
	{name: "age_refresh", hooks: tcx, run: ageRefresh},
	{name: "many_ports", hooks: tcx, run: manyPorts},
	{name: "many_addresses", hooks: tcx, run: manyAddresses},
	{name: "delete_bridge_with_ports", hooks: both, run: deleteBridgeWithPorts},
	{name: "distinct_bridge_mac", hooks: tcx, run: distinctBridgeMAC},
}

// Some stations.
var A, B, C, D = netlab.Station(1), netlab.Station(2), netlab.Station(3), netlab.Station(4)

func unicastTwoHosts(t *testing.T, hook string) {
	_, ends := setup(t, hook, 3)
	a, b := ends[0].Host(), ends[1].Host()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	check(a.Ping(b.IPv4))
	check(b.Ping(a.IPv4))
	check(a.Ping(b.IPv6))
	check(b.Ping(a.IPv6))
	const size = 4 << 20
	check(netlab.Transfer(a, b, b.IPv4, size))
	check(netlab.Transfer(b, a, a.IPv4, size))
	check(netlab.Transfer(a, b, b.IPv6, size))
	check(netlab.Transfer(b, a, a.IPv6, size))
}

func learnThenUnicast(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Reach(a, l.Frames(1, B, A), b, c) // unknown
	l.Reach(b, l.Frames(1, A, B), a)    // the answer
	l.Reach(a, l.Frames(100, B, A), b)
	l.Reach(b, l.Frames(100, A, B), a)
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, b))

	// In the order of sending.
	frames := l.Frames(100, B, A)
	if got := l.Deliver(a, frames...); !slices.Equal(got[b], frames) {
		t.Errorf("frames changed their order")
	}

	// XDP takes a known frame before the port's device sees it.
	tap := l.Listen(l.Switch, a.Port)
	want := map[string]int{"tcx": 100, "xdp": 0}[hook]
	for start := time.Now(); ; {
		tap.Received()
		burst := time.Now()
		l.Reach(a, l.Frames(100, B, A), b)
		n := len(tap.Received())
		if n == want {
			break
		}
		// Except for the first frame of each second, for which tcx updates the time of the
		// source's last frame. In this case another burst has to pass unseen.
		seconds := int(time.Since(burst)/time.Second) + 2 // in which the burst was sent
		if hook != "xdp" || n > seconds || time.Since(start) > patience {
			t.Errorf("a capture at %s sees %d frames of 100, should see %d on hook %s", a.Port, n, want, hook)
			break
		}
	}

	// A third station receives none of it, and is found when it sends.
	l.Reach(c, l.Frames(100, A, C), a)
	l.Reach(a, l.Frames(100, C, A), c)
}

func unknownUnicastFlood(t *testing.T, hook string) {
	l, ends := setup(t, hook, 5)
	for i, from := range ends {
		l.Reach(from, l.Frames(100, netlab.Station(100), netlab.Station(i)), others(ends, from)...)
	}
	// A frame of the largest size.
	l.Reach(ends[0], []netlab.Frame{l.Frame(netlab.Station(100), A, 1514)}, ends[1:]...)
}

func broadcastFlood(t *testing.T, hook string) {
	l, ends := setup(t, hook, 5)
	for i, from := range ends {
		l.Reach(from, l.Frames(100, netlab.Broadcast, netlab.Station(i)), others(ends, from)...)
	}
	l.Reach(ends[0], []netlab.Frame{l.Frame(netlab.Broadcast, A, 1514)}, ends[1:]...)
	wantStats(t, l, ends[4], 100, 400+1)
}

// wantStats compares the numbers of frames that a port counts, into the switch and out of it.
func wantStats(t *testing.T, l *netlab.Lab, e *netlab.End, rx, tx uint64) {
	t.Helper()
	p := l.Port("br0", e.Port)
	if p.Stats64.RX.Packets != rx || p.Stats64.TX.Packets != tx {
		t.Errorf("%s counts %d frames in and %d out, should be %d and %d", e.Port,
			p.Stats64.RX.Packets, p.Stats64.TX.Packets, rx, tx)
	}
}

func multicastFlood(t *testing.T, hook string) {
	l, ends := setup(t, hook, 5)
	for i, from := range ends {
		l.Reach(from, l.Frames(100, netlab.Group(1), netlab.Station(i)), others(ends, from)...)
	}
	before := len(l.FDB("br0"))

	// Multicast, broadcast and zero addresses are no valid sources.
	for _, src := range []netlab.MAC{netlab.Group(1), netlab.Broadcast, {}} {
		l.Reach(ends[0], l.Frames(5, netlab.Broadcast, src))
		l.Reach(ends[0], l.Frames(5, netlab.Station(1), src))
	}
	wantDrops(t, l, ends[0], "bad-source", 30)
	if n := len(l.FDB("br0")); n != before {
		t.Errorf("%d addresses known, %d before the frames with bad sources", n, before)
	}
	// And a multicast address is still flooded.
	l.Reach(ends[1], l.Frames(5, netlab.Group(1), A), others(ends, ends[1])...)
}

func move(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	at, other := a, c
	for range 50 {
		l.Reach(b, l.Frames(3, A, B), at)
		at, other = other, at
		// With the first frame there, to another station or to all.
		l.Reach(at, l.Frames(1, B, A), b)
		l.Reach(b, l.Frames(1, A, B), at)
	}
	l.Reach(c, l.Frames(1, netlab.Broadcast, A), a, b)
	l.Reach(b, l.Frames(1, A, B), c)
	wantFDB(t, l, "br0", dynamic(A, 0, c), dynamic(B, 0, b))
	if m := l.Port("br0", a.Port).Moves; m != 25 {
		t.Errorf("%d moves to %s, should be 25", m, a.Port)
	}
	if m := l.Port("br0", c.Port).Moves; m != 26 {
		t.Errorf("%d moves to %s, should be 26", m, c.Port)
	}
}

func moveDamping(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	m := l.NewMonitor("br0", c)
	learn(l, c, C)
	learn(l, a, A)

	// Two ports claim A a thousand times a second, for a little more than three seconds.
	const rounds = 3200
	moved := a
	start := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var sent []netlab.Frame
	l.Deliver(c) // discards earlier frames
	for range rounds {
		<-tick.C
		if moved = a; len(sent)%2 == 0 {
			moved = b
		}
		f := l.Frames(1, C, A)
		l.Send(moved, f...)
		sent = append(sent, f...)
	}
	took := time.Since(start)
	if got := c.Received(); !slices.Equal(got, sent) {
		t.Errorf("%d frames of the flapping station arrived, %d were sent", len(got), len(sent))
	}
	if n := l.Port("br0", a.Port).Moves + l.Port("br0", b.Port).Moves; n != rounds {
		t.Errorf("%d moves are counted, there were %d", n, rounds)
	}
	isMove := func(e netlab.Event) bool { return e.Event == "moved" && e.MAC == A.String() }
	first := m.Wait("the move", isMove)
	if first.Ifname != b.Port || first.From != a.Port || first.Master != "br0" {
		t.Errorf("the first move was from %s to %s, and is shown as %+v", a.Port, b.Port, first)
	}
	// A mark after all other events of the monitor.
	learn(l, c, D)
	m.Wait("the mark", func(e netlab.Event) bool { return e.MAC == D.String() })
	var lines []netlab.Event
	for _, e := range m.Events() {
		if isMove(e) {
			lines = append(lines, e)
		}
	}
	seconds := int(took/time.Second) + 1
	if len(lines) < 2 || len(lines) > seconds+1 {
		t.Errorf("the monitor shows %d moves in %v, should be about one a second: %+v", len(lines), took, lines)
	}
	m.Stop()
}

func ageOut(t *testing.T, hook string) {
	const ageing = 3 * time.Second
	l, ends := setup(t, hook, 3, "--ageing", ageing.String())
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("fdb", "add", "br0", D.String(), c.Port)
	stalled := stalls(t)
	unknown := time.Now()
	learn(l, a, A)
	learned := time.Now()
	l.Reach(b, l.Frames(1, A, netlab.Station(100)), a)
	if n := l.Bridge("br0").FDBCount; n != 2 {
		t.Fatalf("%d addresses known, should be 2", n)
	}

	// No process runs but this test: the switch itself deletes old addresses.
	var known, flooded time.Duration // the least age at which A was known, and the greatest
	l.Wait("A to be unknown again", func() bool {
		sent := time.Since(learned)
		got := l.Deliver(b, l.Frames(1, A, B)...)
		flooded = time.Since(unknown)
		if len(got[a]) != 1 {
			t.Fatalf("%d frames of 1 arrived", len(got[a]))
		}
		if len(got[c]) > 0 {
			return true
		}
		known = sent
		return false
	})
	// Ages are in whole seconds.
	if flooded < ageing-time.Second-time.Second/4 {
		t.Errorf("A was forgotten after %v, the ageing time is %v", flooded, ageing)
	}
	if known > ageing+2*time.Second {
		t.Errorf("A was still known after %v, the ageing time is %v", known, ageing)
	}
	if e := find(l.FDB("br0"), A, 0); e != nil && flooded < 2*ageing {
		if *e.Updated < 2 {
			t.Errorf("A is flooded and shown as %v, %d s old", e, *e.Updated)
		}
	}
	// And B has just sent a frame.
	quiet := time.Now()
	// A late step of the sweep delays all later ones.
	before := func(deadline time.Time, what string, holds func() bool) {
		t.Helper()
		for {
			asked := time.Now()
			if holds() {
				return
			}
			if late := stalled(); asked.After(deadline.Add(late)) {
				t.Fatalf("waited in vain for %s, the machine stood still for %v", what, late)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	before(learned.Add(2*ageing+2*time.Second), "A's entry to be gone", func() bool {
		return find(l.FDB("br0"), A, 0) == nil
	})
	before(quiet.Add(2*ageing+2*time.Second), "all learned entries to be gone", func() bool {
		return l.Bridge("br0").FDBCount == 0
	})
	wantFDB(t, l, "br0", static(D, 0, c))
	l.Reach(b, l.Frames(1, D, B), c)
}

func ageRefresh(t *testing.T, hook string) {
	const ageing = 5 * time.Second // some seconds more than the delays of a busy machine
	l, ends := setup(t, hook, 3, "--ageing", ageing.String())
	a, b, c := ends[0], ends[1], ends[2]
	m := l.NewMonitor("br0", c)
	learn(l, a, A)
	learn(l, b, B)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	var heard time.Time
	for start := time.Now(); time.Since(start) < 2*ageing+time.Second; {
		<-tick.C
		heard = time.Now()
		l.Reach(a, l.Frames(10, B, A), b)
		l.Reach(b, l.Frames(10, A, B), a)
	}
	for _, e := range m.Events() {
		if e.Event == "aged" && (e.MAC == A.String() || e.MAC == B.String()) {
			t.Errorf("a station that talks has aged out: %+v", e)
		}
	}
	entries := l.FDB("br0")
	// Ages are in whole seconds, of a clock that is a little late.
	oldest := int((time.Since(heard)+time.Second/4)/time.Second) + 1
	for _, e := range entries {
		if e.Updated == nil || *e.Updated > oldest {
			t.Errorf("%v was heard %v ago, and is shown otherwise", e, time.Since(heard))
		}
	}
	m.Stop()
}

func manyPorts(t *testing.T, hook string) {
	const ports = 256
	l := netlab.New(t)
	far := l.NewNamespace()
	for range ports {
		l.NewEnd(far)
	}
	l.Bascule("bridge", "add", "br0")
	for _, e := range l.Ends {
		l.Bascule("port", "add", "br0", e.Port, "--hook", hook)
	}
	shown := l.Ports("br0")
	if len(shown) != ports || len(l.Bridge("br0").Ports) != ports {
		t.Fatalf("%d ports are listed", len(shown))
	}
	for i, p := range shown {
		if p.Ifname != l.Ends[i].Port || p.State != "forwarding" {
			t.Errorf("port %d is listed as %s, %s", i+1, p.Ifname, p.State)
		}
	}
	for _, from := range []*netlab.End{l.Ends[0], l.Ends[100], l.Ends[ports-1]} {
		l.Reach(from, l.Frames(10, netlab.Broadcast, from.MAC), others(l.Ends, from)...)
	}
	l.Reach(l.Ends[0], l.Frames(10, l.Ends[ports-1].MAC, l.Ends[0].MAC), l.Ends[ports-1])

	// The last, the first and some in between are removed. The others continue.
	removed := []*netlab.End{l.Ends[ports-1], l.Ends[0], l.Ends[99], l.Ends[101], l.Ends[102]}
	for _, e := range removed {
		l.Bascule("port", "del", "br0", e.Port)
	}
	from := l.Ends[100]
	l.Reach(from, l.Frames(10, netlab.Broadcast, from.MAC), others(l.Ends, append(removed, from)...)...)
	if n := len(l.Ports("br0")); n != ports-len(removed) {
		t.Errorf("%d ports are listed, %d of %d were removed", n, len(removed), ports)
	}
}

func manyAddresses(t *testing.T, hook string) {
	const addresses, few = 100_000, 10_000
	l, ends := setup(t, hook, 2, "--fdb-max", "131072")
	learn(l, ends[1], B)
	frames := make([]netlab.Frame, addresses)
	for i := range frames {
		frames[i] = l.Frames(1, B, netlab.Station(1000+i))[0]
	}
	// list lists all addresses, and returns the CPU time of that.
	list := func() (string, time.Duration) {
		cmd := l.Command("-j", "fdb", "show", "br0")
		r, err := netlab.RunCommand(cmd)
		must(t, err)
		if r.Exit != 0 || r.Stderr != "" {
			t.Fatal(r)
		}
		return r.Stdout, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	l.Reach(ends[0], frames[:few], ends[1])
	_, fewTook := list()
	l.Reach(ends[0], frames[few:], ends[1])
	if n := l.Bridge("br0").FDBCount; n != addresses+1 {
		t.Fatalf("%d addresses known, should be %d", n, addresses+1)
	}
	out, took := list()
	// Ten times the addresses take at most ten times the time. Other programs may delay either.
	for begin := time.Now(); took > 2*addresses/few*fewTook; out, took = list() {
		if time.Since(begin) > patience {
			t.Errorf("listing %d addresses took %v of the processor, and %d took %v", addresses, took, few, fewTook)
			break
		}
	}
	var entries []netlab.FDBEntry
	if err := json.Unmarshal([]byte(out), &entries); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		seen[e.MAC] = true
	}
	for i := range addresses {
		if mac := netlab.Station(1000 + i).String(); !seen[mac] {
			t.Fatalf("%s is not listed", mac)
		}
	}
	t.Logf("%d addresses: %v of the processor, %d: %v", few, fewTook, addresses, took)
	if len(entries) != addresses+1 {
		t.Errorf("%d addresses are listed, should be %d", len(entries), addresses+1)
	}
	// Every one of them was learned at the right port.
	l.Reach(ends[1], l.Frames(1, netlab.Station(1000+addresses/2), B), ends[0])
	if n := strings.Count(l.Bascule("fdb", "flush", "br0"), "\n"); n > 1 {
		t.Errorf("flushing %d addresses takes %d lines to say", addresses, n)
	}
	if n := l.Bridge("br0").FDBCount; n != 0 {
		t.Errorf("%d addresses known after a flush", n)
	}
}

func deleteBridgeWithPorts(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	// Another program captures on a device while it becomes a port.
	stop := ends[0].Capture()
	l.AddBridge("br0", hook, ends)
	stop()
	for _, p := range l.Ports("br0") {
		if !slices.Contains(p.Flags, "PROMISC") {
			t.Errorf("%s is a port and not promiscuous: %v", p.Ifname, p.Flags)
		}
	}
	stop = ends[1].Capture() // and while it is deleted as a port
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.Bascule("bridge", "add", "br1") // another bridge, which stays
	other := l.NewEnds(2)
	l.AddPort("br1", hook, other[0])
	l.AddPort("br1", hook, other[1])
	for _, e := range ends {
		learn(l, e, e.MAC)
	}
	l.Bascule("fdb", "add", "br0", A.String(), ends[0].Port)
	before, err := l.Objects()
	must(t, err)

	l.Bascule("bridge", "del", "br0")
	stop()
	for _, e := range ends {
		if err := e.Unchanged(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Switch.Netlink().LinkByName("host0"); err == nil {
		t.Error("the interface of the host port is still there")
	}
	l.Refused([]string{"br0"}, "bridge", "show", "br0")
	l.Refused([]string{"br0"}, "port", "show", "br0")
	l.Refused([]string{"br0"}, "fdb", "show", "br0")
	for _, e := range ends {
		l.Reach(e, l.Frames(10, netlab.Broadcast, e.MAC))
	}
	// The other bridge is not affected.
	l.Reach(other[0], l.Frames(10, netlab.Broadcast, A), other[1])

	l.Bascule("bridge", "del", "br1")
	if err := l.Nothing(before); err != nil {
		t.Error(err)
	}

	// And it can be made again, without former state.
	l.AddBridge("br0", hook, ends)
	wantFDB(t, l, "br0")
	l.Reach(ends[0], l.Frames(10, A, B), ends[1:]...)
}

func distinctBridgeMAC(t *testing.T, hook string) {
	one, two := netlab.New(t), netlab.New(t)
	for _, l := range []*netlab.Lab{one, two} {
		l.Bascule("bridge", "add", "br0")
		l.Bascule("bridge", "add", "br1")
	}
	seen := map[string]bool{}
	for _, l := range []*netlab.Lab{one, two} {
		for _, name := range []string{"br0", "br1"} {
			mac := l.Bridge(name).Address
			if seen[mac] {
				t.Errorf("%s belongs to two bridges", mac)
			}
			seen[mac] = true
			if len(mac) != 17 || !strings.Contains("26ae", mac[1:2]) {
				t.Errorf("%q is not a locally administered unicast address", mac)
			}
			l.Bascule("bridge", "set", name, "--ageing", "100s")
			if now := l.Bridge(name).Address; now != mac {
				t.Errorf("a change of settings changed the address from %s to %s", mac, now)
			}
		}
	}
}

// backupPort: frames to a port without a carrier leave by its backup, and by the port again when
// the carrier is back, without any process.
func backupPort(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	const uplink, far = "up0", "far0"
	l.Cable(uplink, l, far)
	// With XDP the command reports its change of the other end.
	if r, err := l.Run("port", "add", "br0", uplink, "--hook", hook, "--backup", b.Port); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	end := l.Listen(l.Switch, far)
	learn(l, a, A)
	learn(l, c, C)
	l.Send(end, l.Frames(1, netlab.Broadcast, B)...)
	end.Received()
	if p := l.Port("br0", uplink); p.BackupPort != b.Port {
		t.Errorf("port show has backup %q", p.BackupPort)
	}
	// by sends frames to B, which leave by the uplink or by its backup.
	by := func(backup bool) {
		t.Helper()
		for _, from := range []struct {
			end *netlab.End
			mac netlab.MAC
		}{{a, A}, {c, C}} {
			frames := l.Frames(50, B, from.mac)
			if backup {
				l.Reach(from.end, frames, b)
				continue
			}
			l.Reach(from.end, frames)
			n := 0
			l.Wait("frames to come by the uplink", func() bool { n += len(end.Received()); return n >= len(frames) })
			if n != len(frames) {
				t.Errorf("%d frames come by %s, should be %d", n, uplink, len(frames))
			}
		}
	}
	side := func() netlink.Link {
		link, err := l.Switch.Netlink().LinkByName(far)
		must(t, err)
		return link
	}
	by(false)
	for range 2 {
		l.Pull(far)
		by(true)
		l.SetUp(side())
		end = l.Listen(l.Switch, far) // the old socket has an error from before
		by(false)
	}
	// The device itself is down.
	l.Pull(uplink)
	by(true)
	if r := look(t, l, a, l.Frame(B, A, 60)); r.Verdict != "forwarded" || !slices.Equal(r.Out, []string{b.Port}) || !r.says(uplink+" is down, and "+b.Port+" stands in for it") {
		t.Errorf("traced: %v", r)
	}
	// Floods do not need it, and frames from the backup do not return to it.
	l.Reach(a, l.Frames(10, netlab.Station(99), A), b, c)
	l.Reach(b, l.Frames(10, B, netlab.Station(50)))
	wantDrops(t, l, b, "same-port", 10)
	wantDrops(t, l, a, "same-port", 0)
	// The port's own checks apply to it.
	l.Bascule("port", "set", "br0", a.Port, "--isolated")
	l.Bascule("port", "set", "br0", b.Port, "--isolated")
	l.Reach(a, l.Frames(10, B, A))
	wantDrops(t, l, a, "protected", 10)
	l.Bascule("port", "set", "br0", a.Port, "--isolated=off")
	l.Bascule("port", "set", "br0", b.Port, "--isolated=off")

	// Set, unset, and in a file.
	l.Refused([]string{uplink, "its own backup"}, "port", "set", "br0", uplink, "--backup", uplink)
	l.Refused([]string{"nosuch"}, "port", "set", "br0", uplink, "--backup", "nosuch")
	l.Bascule("port", "set", "br0", uplink, "--learn=off")
	by(true)
	if hook == "tcx" {
		again(t, l)
		if p := l.Port("br0", uplink); p.BackupPort != b.Port {
			t.Errorf("by a file the backup is %q", p.BackupPort)
		}
	}
	l.Bascule("fdb", "add", "br0", B.String(), uplink)
	by(true)
	l.Bascule("port", "set", "br0", uplink, "--backup", "none")
	l.Reach(a, l.Frames(10, B, A))
	l.Bascule("port", "set", "br0", uplink, "--backup", b.Port)
	by(true)
	// A device that replaces the backup is the backup.
	b.Unplug()
	b.PlugAgain(0)
	if hook == "xdp" {
		b.ReadyForXDP()
	}
	r, err := l.Run("port", "add", "br0", b.Port, "--hook", hook)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, b.Port+": a new port replaces the one of this name, which was gone") {
		t.Errorf("%v, should say that the port is another", r)
	}
	by(true)
	r, err = l.Run("port", "del", "br0", b.Port)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "port "+uplink+" has no backup any more") {
		t.Errorf("%v, should say whose backup it was", r)
	}
	if p := l.Port("br0", uplink); p.BackupPort != "" {
		t.Errorf("the backup that has left is %q", p.BackupPort)
	}
	l.Reach(a, l.Frames(10, B, A))
}
