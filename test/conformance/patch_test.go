// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

var patchCases = []conformance{
	{name: "patch", hooks: both, run: patchTwo},
	{name: "patch_three", hooks: both, run: patchThree},
	{name: "patch_loop", hooks: both, run: patchLoop},
	{name: "patch_again", hooks: tcx, run: patchAgain},
	{name: "patch_vlans", hooks: both, run: patchVLANs},
	{name: "patch_flags", hooks: tcx, run: patchFlags},
	{name: "patch_refused", hooks: tcx, run: patchRefused},
	{name: "patch_comes_and_goes", hooks: tcx, run: patchComesAndGoes},
	{name: "patch_killed", hooks: tcx, run: patchKilled},
	{name: "patch_second_fails", hooks: tcx, run: patchSecondFails},
	{name: "patch_writers", hooks: tcx, run: patchWriters},
	{name: "patch_reconfigure_under_load", hooks: tcx, run: patchReconfigureUnderLoad},
}

// patched makes bridges, br0 and so on, with two ends each, and cables "br0/a br1/b" between
// them.
func patched(t *testing.T, hook string, bridges int, cables ...string) (*netlab.Lab, []*netlab.End) {
	t.Helper()
	l := netlab.New(t)
	ends := l.NewEnds(2 * bridges)
	for i := range bridges {
		l.AddBridge(fmt.Sprintf("br%d", i), hook, ends[2*i:2*i+2])
	}
	for _, c := range cables {
		l.Bascule(cable(c)...)
	}
	return l, ends
}

// cable returns the command that makes a cable.
func cable(ends string) []string {
	one, other, _ := strings.Cut(ends, " ")
	bridge, port, _ := strings.Cut(one, "/")
	return []string{"port", "add", bridge, port, "--type", "patch", "--peer", other}
}

// wantPatch checks the numbers of frames that a patch port counts, in, out and dropped.
func wantPatch(t *testing.T, l *netlab.Lab, bridge, port string, rx, tx, loops uint64) {
	t.Helper()
	p := l.Port(bridge, port)
	if p.Stats64.RX.Packets != rx || p.Stats64.TX.Packets != tx || p.Drops["patch-loop"] != loops {
		t.Errorf("%s %s counts %d frames in, %d out and %d patch-loop, should be %d, %d and %d", bridge, port,
			p.Stats64.RX.Packets, p.Stats64.TX.Packets, p.Drops["patch-loop"], rx, tx, loops)
	}
}

// patchTwo: two bridges with a cable work like one switch.
func patchTwo(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2, "br0/right br1/left")
	a, b := ends[0], ends[2]
	l.Reach(a, l.Frames(100, netlab.Broadcast, A), ends[1:]...)
	l.Reach(a, l.Frames(100, netlab.Group(1), A), ends[1:]...)
	l.Reach(a, l.Frames(100, B, A), ends[1:]...) // unknown
	l.Reach(b, l.Frames(100, A, B), a)
	l.Reach(a, l.Frames(100, B, A), b)
	frames := l.Frames(100, B, A)
	if got := l.Deliver(a, frames...); !slices.Equal(got[b], frames) {
		t.Errorf("frames changed their order, or not all arrived")
	}
	l.Reach(a, []netlab.Frame{l.Frame(B, A, 1514)}, b)
	wantPatch(t, l, "br0", "right", 100, 501, 0)
	wantPatch(t, l, "br1", "left", 501, 100, 0)
	wantFDB(t, l, "br0", dynamic(A, 0, a), B.String()+" vlan 0 right")
	wantFDB(t, l, "br1", dynamic(B, 0, b), A.String()+" vlan 0 left")

	// A station that moves over the cable.
	l.Reach(ends[3], l.Frames(10, B, A), b)
	l.Reach(b, l.Frames(10, A, B), ends[3])
	l.Reach(a, l.Frames(10, B, A), b)
	l.Reach(b, l.Frames(10, A, B), a)

	one, other := ends[1].Host(), ends[3].Host()
	const size = 4 << 20
	for _, err := range []error{
		one.Ping(other.IPv4), other.Ping(one.IPv6),
		netlab.Transfer(one, other, other.IPv4, size), netlab.Transfer(other, one, one.IPv6, size),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// patchThree: three bridges in a row, and the path of a frame through the middle.
func patchThree(t *testing.T, hook string) {
	l, ends := patched(t, hook, 3, "br0/r br1/l", "br1/r br2/l")
	a, m, b := ends[0], ends[2], ends[4]
	l.Reach(m, l.Frames(100, netlab.Broadcast, C), others(ends, m)...)
	l.Reach(a, l.Frames(100, netlab.Broadcast, A), ends[1:]...)
	l.Reach(b, l.Frames(100, A, B), a)
	l.Reach(a, l.Frames(100, B, A), b)
	l.Reach(a, l.Frames(100, C, A), m)
	wantPatch(t, l, "br1", "l", 300, 200, 0)
	wantPatch(t, l, "br1", "r", 100, 300, 0)
	wantPatch(t, l, "br2", "l", 300, 100, 0)
	wantFDB(t, l, "br1", dynamic(C, 0, m), A.String()+" vlan 0 l", B.String()+" vlan 0 r")

	// Deleted only in the middle.
	l.Bascule("fdb", "flush", "br1")
	l.Reach(a, l.Frames(1, B, A), m, ends[3], b)
	l.Reach(b, l.Frames(100, A, B), a)
	l.Reach(a, l.Frames(100, B, A), b)
}

// patchLoop: cables that form a loop do no harm, and frames that return are counted.
func patchLoop(t *testing.T, hook string) {
	l, ends := patched(t, hook, 3, "br0/one br1/zero", "br1/two br2/one", "br2/zero br0/two")
	for i, from := range ends {
		l.Reach(from, l.Frames(100, netlab.Broadcast, netlab.Station(10+i)), others(ends, from)...)
	}
	var loops uint64
	for i := range 3 {
		for _, p := range l.Ports(fmt.Sprintf("br%d", i)) {
			loops += p.Drops["patch-loop"]
			if p.Type == "patch" && p.State != "forwarding" {
				t.Errorf("%s is %s", p.Ifname, p.State)
			}
		}
	}
	// Each goes round in both directions, and returns once each way.
	if want := uint64(2 * 100 * len(ends)); loops != want {
		t.Errorf("%d frames counted as patch-loop, should be %d", loops, want)
	}
	l.Bascule("port", "del", "br0", "two")
	l.Reach(ends[0], l.Frames(100, netlab.Broadcast, A), ends[1:]...)
	l.Reach(ends[5], l.Frames(100, A, B), ends[0])
	l.Reach(ends[0], l.Frames(100, B, A), ends[5])
}

// patchFlags: a patch port has settings and entries like any port.
func patchFlags(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2)
	a, b := ends[0], ends[2]
	l.Bascule("port", "add", "br0", "r", "--type", "patch", "--peer", "br1/l", "--isolated")
	if p, other := l.Port("br0", "r"), l.Port("br1", "l"); !p.Isolated || other.Isolated || p.Hook != "" || p.MTU != 0 {
		t.Errorf("ends are %+v and %+v", p, other)
	}
	l.Bascule("port", "set", "br0", a.Port, "--isolated")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), ends[1])
	l.Reach(b, l.Frames(10, netlab.Broadcast, B), ends[1], ends[3])
	l.Reach(a, l.Frames(10, B, A))
	wantDrops(t, l, a, "protected", 10)
	l.Bascule("port", "set", "br0", "r", "--isolated=off", "--bcast-flood=off")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), ends[1])
	l.Reach(a, l.Frames(10, B, A), b)
	l.Bascule("port", "set", "br1", "l", "--learn=off")
	l.Bascule("fdb", "flush", "br1")
	l.Reach(a, l.Frames(10, B, A), b, ends[3])
	l.Bascule("fdb", "add", "br0", C.String(), "r")
	wantFDB(t, l, "br0", dynamic(A, 0, a), B.String()+" vlan 0 r", C.String()+" vlan 0 r static")
	l.Reach(a, l.Frames(10, C, A), b, ends[3])
	l.Bascule("port", "set", "br0", "r", "--hairpin", "--bcast-flood")
	// Frames that would return over the cable came from there.
	l.Reach(b, l.Frames(10, netlab.Broadcast, B), ends[0], ends[1], ends[3])
	wantPatch(t, l, "br1", "l", 10+10+10+10, 10+10, 10)
}

// patchRefused: impossible commands are refused in one line, and nothing changes.
func patchRefused(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2, "br0/a br1/b")
	before := l.Bascule("port", "show")
	words := strings.Fields
	for _, c := range []struct {
		args string
		exit int
		says string
	}{
		{"port add br0 x --type patch", 2, "BRIDGE/PORT"},
		{"port add br0 x --type patch --peer br1", 2, "br1 BRIDGE/PORT"},
		{"port add br0 x --type patch --peer br1/", 2, "br1/ BRIDGE/PORT"},
		{"port add br0 x --type patch --peer /y", 2, "BRIDGE/PORT"},
		{"port add br0 x --type patch --peer br1/y/z", 2, "br1/y/z BRIDGE/PORT"},
		{"port add br0 x --type patch --peer br1/sixteen-letters0", 2, "sixteen-letters0 15"},
		{"port add br0 sixteen-letters0 --type patch --peer br1/y", 2, "sixteen-letters0 15"},
		{"port add br0 x --type patch --peer br0/y", 1, "itself"},
		{"port add br0 x --type patch --peer nosuch/y", 1, "nosuch"},
		{"port add nosuch x --type patch --peer br0/y", 1, "nosuch"},
		{"port add br0 a --type patch --peer br1/y", 1, "br0 a"},
		{"port add br0 x --type patch --peer br1/b", 1, "br1 b"},
		{"port add br0 " + ends[0].Port + " --type patch --peer br1/y", 1, ends[0].Port},
		{"port add br0 x --type patch --peer br1/" + ends[2].Port, 1, ends[2].Port},
		{"port add br0 x --type patch --peer br1/y --hook xdp", 2, "hook"},
		{"port add br0 x --peer br1/y", 2, "--type patch"},
		{"port add br0 a --type host", 1, "a patch port"},
		{"port set br0 a --hook tcx", 1, "hook"},
		{"port add br0 x --type cable --peer br1/y", 2, "cable"},
	} {
		if r := l.Refused(words(c.says), words(c.args)...); r.Exit != c.exit {
			t.Errorf("%s: exit status %d, should be %d", c.args, r.Exit, c.exit)
		}
	}
	if after := l.Bascule("port", "show"); after != before {
		t.Errorf("ports were\n%sand are\n%s", before, after)
	}
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:]...)
}

// patchComesAndGoes: a cable is deleted with either end, and with a bridge.
func patchComesAndGoes(t *testing.T, hook string) {
	l, ends := patched(t, hook, 3)
	before, err := l.Objects()
	must(t, err)
	alone := func(when string) {
		t.Helper()
		l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1])
		for i := range 2 {
			if n := len(l.Bridge(fmt.Sprintf("br%d", i)).Ports); n != 2 {
				t.Errorf("%s: br%d has %d ports", when, i, n)
			}
		}
	}
	for _, del := range [][]string{{"port", "del", "br0", "x"}, {"port", "del", "br1", "y"}} {
		l.Bascule(cable("br0/x br1/y")...)
		l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:4]...)
		l.Bascule(del...)
		alone(strings.Join(del, " "))
		wantAsMany(t, l, before)
	}
	l.Bascule(cable("br0/x br2/y")...)
	l.Bascule(cable("br1/x br2/x")...)
	l.Bascule(cable("br0/y br1/y")...)
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:]...)
	l.Bascule("bridge", "del", "br2")
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:4]...)
	if got, want := l.Bridge("br1").Ports, []string{ends[2].Port, ends[3].Port, "y"}; !slices.Equal(got, want) {
		t.Errorf("br1 has ports %v, should have %v", got, want)
	}
	l.Bascule("bridge", "del", "br1")
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1])
}

// patchKilled kills commands about cables as they enter system calls. The next command
// completes or undoes the change: there is never half a cable.
func patchKilled(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2)
	before, err := l.Objects()
	must(t, err)
	a := ends[0]
	words := strings.Fields
	has := func() bool { return slices.Contains(l.Bridge("br0").Ports, "x") }
	cableIs := func(wanted bool) {
		t.Helper()
		if there := has(); there && !wanted {
			l.Bascule("port", "del", "br0", "x")
		} else if !there && wanted {
			l.Bascule(cable("br0/x br1/y")...)
		}
	}
	bridgeThere := func() {
		t.Helper()
		var list []netlab.BridgeInfo
		l.JSON(&list, "bridge", "show")
		if !slices.ContainsFunc(list, func(b netlab.BridgeInfo) bool { return b.Ifname == "br1" }) {
			l.Bascule("bridge", "add", "br1")
		}
		for _, e := range ends[2:] {
			if !slices.Contains(l.Bridge("br1").Ports, e.Port) {
				l.AddPort("br1", hook, e)
			}
		}
	}
	for _, c := range []struct {
		args   []string
		before func()
		after  func()
	}{
		{cable("br0/x br1/y"), func() { cableIs(false) }, func() {}},
		{words("port del br1 y"), func() { cableIs(true) }, func() {}},
		{words("bridge del br1"), func() { cableIs(true) }, bridgeThere},
	} {
		c.before()
		points := killPoints(t, l, fixed(c.args), func() { c.after(); c.before() })
		c.after()
		points = somePoints(points, 15)
		kills := 0
		for _, p := range points {
			c.before()
			killed := kill(t, l, p, c.args)
			if killed {
				kills++
			}
			l.Bascule("bridge", "set", "br0") // completes or undoes the killed change
			c.after()
			there := has()
			if other := slices.Contains(l.Bridge("br1").Ports, "y"); there != other {
				t.Errorf("half a cable: at br0 %v, at br1 %v", there, other)
			}
			want := ends[1:2]
			if there {
				want = ends[1:]
			}
			l.Reach(a, l.Frames(3, netlab.Broadcast, A), want...)
			cableIs(true)
			l.Reach(a, l.Frames(3, netlab.Broadcast, A), ends[1:]...)
			cableIs(false)
			l.Reach(a, l.Frames(3, netlab.Broadcast, A), ends[1])
			if t.Failed() {
				t.Fatalf("the command was %v, killed: %v, in %s number %d", c.args, killed, p.call, p.n)
			}
		}
		t.Logf("%v: killed at %d points of %d", c.args, kills, len(points))
		if kills < len(points)/2 {
			t.Errorf("%v got away from most of its kills", c.args)
		}
	}
	wantAsMany(t, l, before)
}

// patchSecondFails: if one of the two bridges can't be changed, the other is not changed
// either.
func patchSecondFails(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2)
	before, err := l.Objects()
	must(t, err)
	for _, when := range []int{1, 2} {
		// A rename makes a bridge's next configuration current.
		r, err := netlab.RunFailing(l.Command(cable("br0/x br1/y")...), "renameat", when, unix.EIO)
		must(t, err)
		if err := r.CheckRefusal("x", "br0", "input/output error"); err != nil {
			t.Errorf("bridge %d of 2: %v", when, err)
		}
		for i := range 2 {
			if ports := l.Bridge(fmt.Sprintf("br%d", i)).Ports; len(ports) != 2 {
				t.Errorf("bridge %d of 2 failed, and br%d has ports %v", when, i, ports)
			}
		}
		l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1])
		wantAsMany(t, l, before)
		l.Bascule(cable("br0/x br1/y")...)
		l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:]...)
		l.Bascule("port", "del", "br0", "x")
	}
}

// patchWriters: several writers make and remove cables at the same time.
func patchWriters(t *testing.T, hook string) {
	const writers = 4
	rounds := netlab.Tenth(12)
	l, ends := patched(t, hook, 3)
	before, err := l.Objects()
	must(t, err)
	failed := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			run := func(args ...string) {
				r, err := l.Run(args...)
				if err == nil && (r.Exit != 0 || r.Stderr != "") {
					err = errors.New(r.String())
				}
				failed[w] = errors.Join(failed[w], err)
			}
			from, to := w%3, (w+1)%3
			for range rounds {
				run(cable(fmt.Sprintf("br%d/x%d br%d/y%d", from, w, to, w))...)
				run("port", "set", fmt.Sprintf("br%d", to), fmt.Sprintf("y%d", w), "--hairpin")
				run("port", "del", fmt.Sprintf("br%d", to), fmt.Sprintf("y%d", w))
			}
			run(cable(fmt.Sprintf("br%d/x%d br%d/y%d", from, w, to, w))...)
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, A), ends[1:]...)
	for i := range 3 {
		for _, p := range l.Ports(fmt.Sprintf("br%d", i)) {
			if p.State != "forwarding" {
				t.Errorf("br%d %s is %s", i, p.Ifname, p.State)
			}
		}
	}
	for w := range writers {
		l.Bascule("port", "del", fmt.Sprintf("br%d", w%3), fmt.Sprintf("x%d", w))
	}
	wantAsMany(t, l, before)
}

// patchReconfigureUnderLoad changes each bridge of a row while frames pass through all of them.
// No frame is lost.
func patchReconfigureUnderLoad(t *testing.T, hook string) {
	l, ends := patched(t, hook, 3, "br0/r br1/l", "br1/r br2/l")
	a, b := ends[0], ends[4]
	learn(l, a, A)
	learn(l, b, B)
	before, err := l.Objects()
	must(t, err)
	load := l.StartLoad(ends,
		netlab.Flow{From: a, Dst: B, Src: A, To: []*netlab.End{b}},
		netlab.Flow{From: b, Dst: A, Src: B, To: []*netlab.End{a}},
		netlab.Flow{From: ends[2], Dst: netlab.Broadcast, Src: C, To: others(ends, ends[2])},
	)
	l.Wait("traffic to flow", load.Flowing(1000))
	settings := []string{
		"bridge set br0", "bridge set br1", "bridge set br2",
		"port set br1 l --hairpin", "port set br1 l --hairpin=off", "bridge set br1 --fdb-max 200000", "bridge set br1 --fdb-max 1000",
		"port add br2 other --type patch --peer br0/another --discover=off --bcast-flood=off --mcast-flood=off --learn=off", "port del br0 another",
	}
	for i := range netlab.Tenth(90) {
		l.Bascule(strings.Fields(settings[i%len(settings)])...)
		if load.Failed() {
			t.Errorf("after %s:", settings[i%len(settings)])
			break
		}
	}
	l.Wait("traffic to flow on", load.Flowing(1000))
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	t.Logf("%d frames delivered", load.Delivered())
	wantAsMany(t, l, before)
}

// patchVLANs: a cable between bridges that filter VLANs is a port in VLANs like any other,
// separately at each end.
func patchVLANs(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	l.AddBridge("br0", hook, ends[:2], "--vlan-filtering")
	l.AddBridge("br1", hook, ends[2:], "--vlan-filtering")
	l.Bascule(cable("br0/right br1/left")...)
	// Both ends are in the default VLAN, untagged.
	l.Reach(a, l.Frames(50, netlab.Broadcast, A), b, c, d)
	l.Reach(c, l.Frames(50, A, C), a)

	// A trunk of 10 and 20, with stations in one VLAN each.
	for _, end := range []string{"br0 right", "br1 left"} {
		bridge, port, _ := strings.Cut(end, " ")
		l.Bascule("vlan", "del", bridge, port, "1")
		l.Bascule("vlan", "add", bridge, port, "10,20")
	}
	for i, e := range ends {
		bridge := []string{"br0", "br1"}[i/2]
		l.Bascule("vlan", "del", bridge, e.Port, "1")
		l.Bascule("vlan", "add", bridge, e.Port, []string{"10", "20"}[i%2], "--untagged", "--pvid")
	}
	l.Reach(a, l.Frames(50, netlab.Broadcast, A), c)
	l.Reach(b, l.Frames(50, netlab.Broadcast, B), d)
	l.Reach(c, l.Frames(50, A, C), a)
	l.Reach(d, l.Frames(50, A, D), b) // unknown in VLAN 20
	wantFDB(t, l, "br0", dynamic(A, 10, a), dynamic(B, 20, b), C.String()+" vlan 10 right", D.String()+" vlan 20 right")
	// One end leaves a VLAN.
	l.Bascule("vlan", "del", "br1", "left", "10")
	l.Reach(a, l.Frames(50, netlab.Broadcast, A))
	l.Reach(b, l.Frames(50, netlab.Broadcast, B), d)
	if p := l.Port("br1", "left"); p.Drops["vlan"] != 50 {
		t.Errorf("the cable drops %v", p.Drops)
	}

	// New ports in the same slots do not inherit VLANs.
	l.Bascule("port", "del", "br1", "left")
	l.Bascule(cable("br0/again br1/once")...)
	l.Reach(a, l.Frames(50, netlab.Broadcast, A))
	l.Reach(b, l.Frames(50, netlab.Broadcast, B))
}

// patchAgain: a cable that is made again carries its first frame.
func patchAgain(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2)
	for range 4 {
		l.Bascule(cable("br0/right br1/left")...)
		l.Reach(ends[0], l.Frames(1, netlab.Broadcast, A), ends[1:]...)
		l.Bascule("port", "del", "br0", "right")
	}
}
