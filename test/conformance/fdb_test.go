// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"slices"
	"strings"
	"testing"

	"bascule/test/netlab"
)

var fdbCases = []conformance{
	{name: "fdb_max_bridge", hooks: tcx, run: fdbMaxBridge},
	{name: "fdb_max_port", hooks: tcx, run: fdbMaxPort},
	{name: "fdb_shrink", hooks: tcx, run: fdbShrink},
	{name: "fdb_flush", hooks: tcx, run: fdbFlush},
	{name: "fdb_get", hooks: tcx, run: fdbGet},
	{name: "delete_port_flushes", hooks: tcx, run: deletePortFlushes},
	{name: "static_never_moves", hooks: tcx, run: staticNeverMoves},
	{name: "static_on_wrong_port_refused", hooks: tcx, run: staticOnWrongPortRefused},
	{name: "malformed_mac_refused", hooks: tcx, run: malformedMACRefused},
	{name: "delete_unknown_refused", hooks: tcx, run: deleteUnknownRefused},
	{name: "static_per_vlan", hooks: tcx, run: staticPerVLAN},
	{name: "sticky", hooks: tcx, run: stickyEntry},
}

// stations returns n stations' addresses, from the first-th on.
func stations(first, n int) []netlab.MAC {
	list := make([]netlab.MAC, n)
	for i := range list {
		list[i] = netlab.Station(first + i)
	}
	return list
}

// full checks a bridge of three ports whose table is full, with known
// addresses at port a and none of strangers.
func full(l *netlab.Lab, a, b, c *netlab.End, known, strangers []netlab.MAC) {
	for _, mac := range strangers {
		// Their frames are forwarded, and frames to them are flooded.
		l.Reach(a, l.Frames(2, netlab.Broadcast, mac), b, c)
		l.Reach(b, l.Frames(2, mac, netlab.Station(500)), a, c)
	}
	for _, mac := range known {
		l.Reach(b, l.Frames(2, mac, netlab.Station(500)), a)
	}
}

func fdbMaxBridge(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--fdb-max", "5")
	a, b, c := ends[0], ends[1], ends[2]
	known, strangers := stations(1, 4), stations(100, 3)
	learn(l, b, netlab.Station(500))
	learn(l, a, known...)
	full(l, a, b, c, known, strangers)

	if n := l.Bridge("br0").FDBCount; n != 5 {
		t.Errorf("%d addresses known, should be 5", n)
	}
	if p := l.Port("br0", a.Port); p.Learned != 4 || p.Refused != uint64(2*len(strangers)) || p.FDBCount != 4 {
		t.Errorf("%s counts %d learned, %d refused, %d known, should be 4, %d, 4", a.Port, p.Learned, p.Refused, p.FDBCount, 2*len(strangers))
	}
	// There is always room for a static entry, also for a stranger's.
	for i, mac := range slices.Concat(stations(200, 10), strangers[:1]) {
		l.Bascule("fdb", "add", "br0", mac.String(), ends[i%3].Port)
		if i%3 != 1 {
			l.Reach(b, l.Frames(2, mac, netlab.Station(500)), ends[i%3])
		}
	}
	full(l, a, b, c, known, strangers[1:])

	// A known address can move in a full table.
	l.Reach(c, l.Frames(1, netlab.Broadcast, known[0]), a, b)
	l.Reach(b, l.Frames(2, known[0], netlab.Station(500)), c)
	if n := l.Bridge("br0").FDBCount; n != 5 {
		t.Errorf("%d addresses known, should be 5", n)
	}

	// And a free place is used.
	l.Bascule("fdb", "del", "br0", known[1].String())
	l.Reach(a, l.Frames(1, netlab.Broadcast, strangers[2]), b, c)
	l.Reach(b, l.Frames(2, strangers[2], netlab.Station(500)), a)
}

func fdbMaxPort(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("port", "set", "br0", a.Port, "--fdb-max", "4")
	known, strangers := stations(1, 4), stations(100, 3)
	learn(l, b, netlab.Station(500))
	learn(l, a, known...)
	full(l, a, b, c, known, strangers)
	if p := l.Port("br0", a.Port); p.FDBMax != 4 || p.Learned != 4 || p.Refused != uint64(2*len(strangers)) || p.FDBCount != 4 {
		t.Errorf("%s counts %d learned, %d refused, %d of %d known, should be 4, %d, 4 of 4", a.Port, p.Learned, p.Refused, p.FDBCount, p.FDBMax, 2*len(strangers))
	}

	// The other ports have no such limit.
	learn(l, c, stations(300, 20)...)
	for _, mac := range stations(300, 20) {
		l.Reach(b, l.Frames(1, mac, netlab.Station(500)), c)
	}
	// An address that leaves makes room, and one that arrives finds no room.
	learn(l, c, known[0])
	learn(l, a, netlab.Station(300), netlab.Station(301))
	l.Reach(b, l.Frames(1, known[0], netlab.Station(500)), c)
	l.Reach(b, l.Frames(1, netlab.Station(300), netlab.Station(500)), a)
	l.Reach(b, l.Frames(1, netlab.Station(301), netlab.Station(500)), c)

	l.Bascule("fdb", "add", "br0", netlab.Station(900).String(), a.Port)
	l.Bascule("fdb", "add", "br0", netlab.Station(901).String(), a.Port)
	wantFDBCount(t, l, a, 4)
	l.Bascule("port", "set", "br0", a.Port, "--fdb-max", "0")
	learn(l, a, stations(400, 20)...)
	wantFDBCount(t, l, a, 24)
}

func wantFDBCount(t *testing.T, l *netlab.Lab, e *netlab.End, want int) {
	t.Helper()
	if n := l.Port("br0", e.Port).FDBCount; n != want {
		t.Errorf("%s has %d learned addresses, should have %d", e.Port, n, want)
	}
	if n := len(l.FDB("br0", "--port", e.Port, "--dynamic")); n != want {
		t.Errorf("%d learned addresses of %s are listed, should be %d", n, e.Port, want)
	}
}

// shrunk runs a command that must report, in one line, that it has dropped addresses.
func shrunk(t *testing.T, l *netlab.Lab, dropped string, args ...string) {
	t.Helper()
	r, err := l.Run(args...)
	if err != nil {
		t.Fatal(err)
	}
	said := r.Stdout + r.Stderr
	if r.Exit != 0 || strings.Count(said, "\n") != 1 || !strings.Contains(said, " "+dropped+" ") {
		t.Errorf("%v: should succeed and say in one line that %s addresses were dropped", r, dropped)
	}
}

func fdbShrink(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	learn(l, a, stations(1, 6)...)
	learn(l, b, stations(10, 6)...)
	fixed := []string{static(C, 0, a), static(netlab.Station(700), 0, b), sticky(netlab.Station(701), 0, b)}
	l.Bascule("fdb", "add", "br0", C.String(), a.Port) // learned before
	l.Bascule("fdb", "add", "br0", netlab.Station(700).String(), b.Port)
	l.Bascule("fdb", "add", "br0", netlab.Station(701).String(), b.Port, "--sticky")

	// 11 learned ones are left.
	shrunk(t, l, "7", "bridge", "set", "br0", "--fdb-max", "4")
	if i := l.Bridge("br0"); i.FDBCount != 4 || i.FDBMax != 4 {
		t.Errorf("%d of %d addresses known, should be 4 of 4", i.FDBCount, i.FDBMax)
	}
	keep := func() {
		t.Helper()
		var got []string
		for _, e := range l.FDB("br0", "--static") {
			got = append(got, e.String())
		}
		if !slices.Equal(got, fixed) {
			t.Errorf("entries made by hand: %q, should be %q", got, fixed)
		}
	}
	keep()
	if n := len(l.FDB("br0", "--dynamic")); n != 4 {
		t.Errorf("%d learned addresses are listed, should be 4", n)
	}

	// The same at one port.
	l.Bascule("fdb", "flush", "br0")
	learn(l, a, A, B)
	learn(l, b, D)
	shrunk(t, l, "1", "port", "set", "br0", a.Port, "--fdb-max", "1")
	wantFDBCount(t, l, a, 1)
	wantFDBCount(t, l, b, 1)
	keep()

	// Nothing to drop, nothing to report.
	l.Bascule("bridge", "set", "br0", "--fdb-max", "3")
	l.Bascule("bridge", "set", "br0", "--fdb-max", "300000")
	keep()
	wantFDBCount(t, l, a, 1)
	wantFDBCount(t, l, b, 1)
	learn(l, b, stations(1000, 200)...)
	wantFDBCount(t, l, b, 201)
}

func fdbFlush(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	tagged := func(e *netlab.End, mac netlab.MAC, vlan uint16) {
		for _, f := range l.Frames(1, netlab.Broadcast, mac) {
			l.Send(e, f.Tagged(vlan, 0))
		}
	}
	fill := func() {
		learn(l, a, A)
		learn(l, b, B)
		tagged(a, A, 10)
		tagged(b, B, 10)
		tagged(b, B, 20)
	}
	S, K := netlab.Station(700), netlab.Station(701)
	l.Bascule("fdb", "add", "br0", S.String(), a.Port)
	l.Bascule("fdb", "add", "br0", S.String(), b.Port, "--vlan", "10")
	l.Bascule("fdb", "add", "br0", K.String(), a.Port, "--sticky")
	fixed := []string{static(S, 0, a), static(S, 10, b), sticky(K, 0, a)}
	a0, b0 := dynamic(A, 0, a), dynamic(B, 0, b)
	a10, b10, b20 := dynamic(A, 10, a), dynamic(B, 10, b), dynamic(B, 20, b)

	for _, c := range []struct {
		args []string
		left []string // learned addresses
	}{
		{nil, nil},
		{[]string{"--port", a.Port}, []string{b0, b10, b20}},
		{[]string{"--port", c.Port}, []string{a0, a10, b0, b10, b20}},
		{[]string{"--vlan", "10"}, []string{a0, b0, b20}},
		{[]string{"--vlan", "11"}, []string{a0, a10, b0, b10, b20}},
		{[]string{"--vlan", "0"}, []string{a10, b10, b20}},
		{[]string{"--vlan", "10", "--port", b.Port}, []string{a0, a10, b0, b20}},
	} {
		fill()
		wantFDB(t, l, "br0", slices.Concat(fixed, []string{a0, b0, a10, b10, b20})...)
		l.Bascule(append([]string{"fdb", "flush", "br0"}, c.args...)...)
		if c.args == nil {
			fill()
			want := "5 entries removed; 3 static or sticky ones stay, which --static removes\n"
			if said := l.Bascule("fdb", "flush", "br0"); said != want {
				t.Errorf("flush says %q, should say %q", said, want)
			}
		}
		wantFDB(t, l, "br0", slices.Concat(fixed, c.left)...)
		if n := l.Bridge("br0").FDBCount; n != len(c.left) {
			t.Errorf("flush %v: %d addresses counted, should be %d", c.args, n, len(c.left))
		}
	}
	// Flushed addresses are unknown at once.
	fill()
	l.Reach(c, l.Frames(2, A, C), a)
	l.Bascule("fdb", "flush", "br0")
	l.Reach(c, l.Frames(2, A, C), a, b)

	fill()
	l.Bascule("fdb", "flush", "br0")
	l.Bascule("fdb", "flush", "br0", "--static", "--port", b.Port)
	wantFDB(t, l, "br0", fixed[0], fixed[2])
	fill()
	l.Bascule("fdb", "flush", "br0", "--static")
	if left := l.FDB("br0", "--static"); len(left) != 0 {
		t.Errorf("static entries after a flush of these: %v", left)
	}
	l.Bascule("fdb", "flush", "br0")
	wantFDB(t, l, "br0")

	l.Refused([]string{"nosuch"}, "fdb", "flush", "br0", "--port", "nosuch")
	l.Refused([]string{"nosuch"}, "fdb", "flush", "nosuch")
	l.Refused([]string{"4095"}, "fdb", "flush", "br0", "--vlan", "4095")
}

func fdbGet(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	l.Bascule("fdb", "add", "br0", A.String(), b.Port, "--vlan", "10")
	get := func(want string, args ...string) {
		t.Helper()
		var got []netlab.FDBEntry
		l.JSON(&got, append([]string{"fdb"}, args...)...)
		if len(got) != 1 || got[0].String() != want {
			t.Errorf("%q gives %v, should give %s", args, got, want)
		}
	}
	get(dynamic(A, 0, a), "get", "br0", A.String())
	get(static(A, 10, b), "get", "br0", A.String(), "--vlan", "10")
	learn(l, b, B)
	get(dynamic(B, 0, b), "show", "br0", "--mac", B.String())
	get(static(A, 10, b), "show", "br0", "--mac", A.String(), "--vlan", "10")
	if list := l.FDB("br0", "--mac", A.String()); len(list) != 2 {
		t.Errorf("entries of %s in all VLANs: %v, should be 2", A, list)
	}
	l.Refused([]string{C.String(), "br0", "does not have it"}, "fdb", "get", "br0", C.String())
	l.Refused([]string{B.String(), "VLAN 10"}, "fdb", "get", "br0", B.String(), "--vlan", "10")

	// If VLANs are filtered, there is only one entry.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Bascule("vlan", "add", "br0", b.Port, "20")
	l.Bascule("fdb", "add", "br0", C.String(), b.Port, "--vlan", "20")
	get(static(C, 20, b), "get", "br0", C.String())
	l.Bascule("fdb", "add", "br0", C.String(), b.Port)
	l.Refused([]string{"--vlan", "1,20"}, "fdb", "get", "br0", C.String())
}

func deletePortFlushes(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A, B)
	learn(l, b, C)
	learn(l, c, D)
	l.Bascule("fdb", "add", "br0", netlab.Station(700).String(), a.Port)
	l.Bascule("fdb", "add", "br0", netlab.Station(701).String(), b.Port)

	l.Bascule("port", "del", "br0", a.Port)
	left := []string{dynamic(C, 0, b), dynamic(D, 0, c), static(netlab.Station(701), 0, b)}
	wantFDB(t, l, "br0", left...)
	if n := l.Bridge("br0").FDBCount; n != 2 {
		t.Errorf("%d addresses counted, should be 2", n)
	}
	l.Reach(c, l.Frames(5, A, D), b)
	l.Reach(c, l.Frames(5, C, D), b)
	l.Reach(c, l.Frames(5, netlab.Station(700), D), b)
	l.Reach(a, l.Frames(5, netlab.Broadcast, A))

	// The same device as a port again has no former state.
	l.AddPort("br0", hook, a)
	wantFDB(t, l, "br0", left...)
	l.Reach(c, l.Frames(5, A, D), a, b)
	if p := l.Port("br0", a.Port); p.Learned != 0 || p.FDBCount != 0 || p.Stats64.RX.Packets != 0 {
		t.Errorf("a new port has counted before its time: %+v", p)
	}
}

func staticNeverMoves(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, b, A) // a static entry replaces a learned one
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	m := l.NewMonitor("br0", c)
	wantFDB(t, l, "br0", static(A, 0, a))

	// Another port claims it: its frames are forwarded, and the entry stays.
	l.Reach(b, l.Frames(10, netlab.Broadcast, A), a, c)
	l.Reach(c, l.Frames(10, A, C), a)
	wantFDB(t, l, "br0", static(A, 0, a), dynamic(C, 0, c))
	if p := l.Port("br0", b.Port); p.Refused != 10 || p.Moves != 0 {
		t.Errorf("%s counts %d refused, %d moves, should be 10, 0", b.Port, p.Refused, p.Moves)
	}
	e := m.Wait("that the move was refused", func(e netlab.Event) bool { return e.Event == "refused" })
	if e.Ifname != b.Port || e.MAC != A.String() {
		t.Errorf("the refused move of %v to %s is shown as %+v", A, b.Port, e)
	}
	m.Stop()

	// Its own port may use it.
	l.Reach(a, l.Frames(10, C, A), c)
	if p := l.Port("br0", a.Port); p.Refused != 0 || p.Learned != 0 {
		t.Errorf("%s counts %d refused, %d learned, should be 0, 0", a.Port, p.Refused, p.Learned)
	}
	// Added again, it is the same.
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	wantFDB(t, l, "br0", static(A, 0, a), dynamic(C, 0, c))
	// Deleted, it is learned like any other.
	l.Bascule("fdb", "del", "br0", A.String())
	l.Reach(c, l.Frames(10, A, C), a, b)
	l.Reach(b, l.Frames(10, netlab.Broadcast, A), a, c)
	l.Reach(c, l.Frames(10, A, C), b)
}

func staticOnWrongPortRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	stray := l.NewEnds(1)[0]
	l.Bascule("bridge", "add", "br1")
	l.AddPort("br1", hook, stray)
	l.Refused([]string{"br0", stray.Port}, "fdb", "add", "br0", A.String(), stray.Port) // of another bridge
	l.Refused([]string{"br0", "lo"}, "fdb", "add", "br0", A.String(), "lo")
	l.Refused([]string{"br0", "nosuch"}, "fdb", "add", "br0", A.String(), "nosuch")
	l.Refused([]string{"nosuch"}, "fdb", "add", "nosuch", A.String(), ends[0].Port)
	wantFDB(t, l, "br0")
	wantFDB(t, l, "br1")

	// A static entry of one port cannot be replaced by another port's.
	l.Bascule("fdb", "add", "br0", A.String(), ends[0].Port)
	l.Refused([]string{A.String()}, "fdb", "add", "br0", A.String(), ends[1].Port)
	l.Refused([]string{A.String()}, "fdb", "add", "br0", A.String(), ends[1].Port, "--sticky")
	wantFDB(t, l, "br0", static(A, 0, ends[0]))
	l.Bascule("fdb", "add", "br0", A.String(), ends[1].Port, "--vlan", "5")
	wantFDB(t, l, "br0", static(A, 0, ends[0]), static(A, 5, ends[1]))
}

func malformedMACRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	for _, mac := range []string{
		"02:00:00:00:00", "02:00:00:00:00:00:01", "02:00:00:00:00:0g", "0200:0000:0000:0001", "02:00:00:00:00:1ff",
		"p1", " ", "02:00:00:00:00:00:00:01",
		"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "33:33:00:00:00:01", "01:80:c2:00:00:00",
	} {
		r := l.Refused([]string{mac}, "fdb", "add", "br0", mac, ends[0].Port)
		if r.Exit != 2 {
			t.Errorf("%v: the exit status should be 2", r)
		}
		l.Refused([]string{mac}, "fdb", "del", "br0", mac)
	}
	l.Refused(nil, "fdb", "add", "br0", "", ends[0].Port)
	wantFDB(t, l, "br0")
	// Valid spellings of an address.
	for _, mac := range []string{"02-57-00-00-00-01", "0257.0000.0001", "02:57:00:00:00:01"} {
		l.Bascule("fdb", "add", "br0", mac, ends[0].Port)
		wantFDB(t, l, "br0", static(A, 0, ends[0]))
		l.Bascule("fdb", "del", "br0", mac)
	}
}

func deleteUnknownRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	l.Bascule("fdb", "add", "br0", B.String(), ends[1].Port, "--vlan", "10")
	for range 2 {
		for _, c := range [][]string{
			{C.String()}, {B.String()}, {A.String(), "--vlan", "10"}, {B.String(), "--vlan", "11"},
		} {
			r := l.Refused([]string{c[0], "br0"}, append([]string{"fdb", "del", "br0"}, c...)...)
			if r.Exit != 1 {
				t.Errorf("%v: the exit status should be 1", r)
			}
		}
	}
	wantFDB(t, l, "br0", dynamic(A, 0, ends[0]), static(B, 10, ends[1]))
	l.Bascule("fdb", "del", "br0", A.String())
	l.Bascule("fdb", "del", "br0", B.String(), "--vlan", "10")
	l.Refused([]string{A.String()}, "fdb", "del", "br0", A.String())
	wantFDB(t, l, "br0")
	l.Refused([]string{"p9"}, "port", "del", "br0", "p9")
	l.Refused([]string{"nosuch"}, "bridge", "del", "nosuch")
}

func staticPerVLAN(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	l.Bascule("fdb", "add", "br0", A.String(), a.Port, "--vlan", "10")
	l.Bascule("fdb", "add", "br0", A.String(), b.Port, "--vlan", "20")
	l.Bascule("fdb", "add", "br0", A.String(), b.Port, "--vlan", "4094")
	wantFDB(t, l, "br0", static(A, 10, a), static(A, 20, b), static(A, 4094, b))
	to := func(vlan uint16, ends ...*netlab.End) {
		t.Helper()
		f := l.Frames(3, A, D)
		for i := range f {
			f[i] = f[i].Tagged(vlan, 5)
		}
		l.Reach(d, f, ends...)
	}
	to(10, a)
	to(20, b)
	to(4094, b)
	to(30, a, b, c)
	to(0, a, b, c) // a priority tag, without a VLAN
	l.Reach(d, l.Frames(3, A, D), a, b, c)

	// It is learned independently, too.
	l.Send(c, l.Frame(netlab.Broadcast, A, 100).Tagged(30, 0))
	learn(l, a, A)
	to(30, c)
	to(10, a)
	l.Reach(d, l.Frames(3, A, D), a)
	to(0, a)

	if got := l.FDB("br0", "--vlan", "10", "--port", a.Port); len(got) != 1 || got[0].String() != static(A, 10, a) {
		t.Errorf("entries of VLAN 10 on %s: %v", a.Port, got)
	}
	for _, vlan := range []string{"0", "4095", "5000", "-1", "x", "65546", "10.5", ""} {
		r := l.Refused([]string{"vlan", vlan}, "fdb", "add", "br0", B.String(), a.Port, "--vlan", vlan)
		if r.Exit != 2 {
			t.Errorf("%v: the exit status should be 2", r)
		}
		if vlan != "0" { // it means the entry without a VLAN
			l.Refused([]string{"vlan", vlan}, "fdb", "del", "br0", A.String(), "--vlan", vlan)
		}
	}
	if n := len(l.FDB("br0", "--static")); n != 3 {
		t.Errorf("%d static entries, should be 3", n)
	}
}

func stickyEntry(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, b, A)
	l.Bascule("fdb", "add", "br0", A.String(), a.Port, "--sticky")
	wantFDB(t, l, "br0", sticky(A, 0, a))
	m := l.NewMonitor("br0", c)
	l.Reach(b, l.Frames(10, netlab.Broadcast, A), a, c)
	l.Reach(c, l.Frames(10, A, C), a)
	wantFDB(t, l, "br0", sticky(A, 0, a), dynamic(C, 0, c))
	e := m.Wait("that the move was refused", func(e netlab.Event) bool { return e.Event == "refused" })
	if e.Ifname != b.Port || e.MAC != A.String() {
		t.Errorf("the refused move of %v to %s is shown as %+v", A, b.Port, e)
	}
	m.Stop()
	if p := l.Port("br0", b.Port); p.Refused != 10 {
		t.Errorf("%s counts %d refused moves, should be 10", b.Port, p.Refused)
	}
	// A learned entry that is made sticky stays at its port.
	learn(l, b, B)
	l.Bascule("fdb", "add", "br0", B.String(), b.Port, "--sticky")
	l.Reach(a, l.Frames(5, netlab.Broadcast, B), b, c)
	l.Reach(c, l.Frames(5, B, C), b)
}
