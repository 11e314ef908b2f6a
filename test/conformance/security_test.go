// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

var securityCases = []conformance{
	{name: "locked", hooks: both, run: locked},
	{name: "mab", hooks: both, run: mab},
	{name: "mab_limit", hooks: both, run: mabLimit},
	{name: "block_non_ip", hooks: both, run: blockNonIP},
	{name: "fdb_full_drop", hooks: both, run: fdbFullDrop},
	{name: "move_max", hooks: both, run: moveMax},
	{name: "loop_guard", hooks: both, run: loopGuard},
	{name: "loop_guard_moves", hooks: tcx, run: loopGuardMoves},
}

func locked(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	spare := l.NewEnds(1)[0]
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, b, B)
	learn(l, a, C)

	// A port that learns would unlock itself.
	for _, args := range [][]string{
		{"port", "set", "br0", a.Port, "--locked"},
		{"port", "set", "br0", a.Port, "--locked", "--learn"},
		{"port", "add", "br0", spare.Port, "--locked"},
		{"port", "add", "br0", spare.Port, "--learn", "--locked"},
	} {
		if r := l.Refused([]string{args[3], "--learn=off"}, args...); r.Exit != 1 {
			t.Errorf("%v: the exit status should be 1", r)
		}
	}
	l.Reach(a, l.Frames(5, B, C), b)
	l.Bascule("port", "set", "br0", a.Port, "--locked", "--learn=off")
	l.Refused([]string{a.Port, "--locked=off"}, "port", "set", "br0", a.Port, "--learn")
	l.Bascule("port", "set", "br0", c.Port, "--learn=off")
	l.Bascule("port", "set", "br0", c.Port, "--locked")

	fdb := []string{dynamic(B, 0, b), dynamic(C, 0, a)}
	l.Reach(a, l.Frames(5, B, A))
	l.Reach(a, l.Frames(5, netlab.Station(9), A))
	l.Reach(a, l.Frames(5, netlab.Broadcast, A))
	l.Reach(a, l.Frames(5, B, B)) // another port's address
	wantDrops(t, l, a, "locked", 20)
	wantFDB(t, l, "br0", fdb...)

	// Addresses that were learned before are known, and stations behind the port can be
	// reached.
	l.Reach(a, l.Frames(5, B, C), b)
	l.Reach(b, l.Frames(5, C, B), a)
	l.Reach(b, l.Frames(5, A, B), a, c)

	// A static entry unlocks the port. Without it, the port is locked at once.
	for range 2 {
		l.Bascule("fdb", "add", "br0", A.String(), a.Port)
		l.Reach(a, l.Frames(50, B, A), b)
		l.Reach(a, l.Frames(5, netlab.Broadcast, A), b, c)
		l.Bascule("fdb", "del", "br0", A.String())
		l.Reach(a, l.Frames(5, B, A))
	}
	wantDrops(t, l, a, "locked", 30)
	// An entry of another VLAN does not, nor one at another port.
	l.Bascule("fdb", "add", "br0", A.String(), a.Port, "--vlan", "10")
	l.Bascule("fdb", "add", "br0", D.String(), b.Port)
	l.Reach(a, l.Frames(5, B, A))
	l.Reach(a, l.Frames(5, B, D))
	l.Reach(a, []netlab.Frame{l.Frame(netlab.Broadcast, A, 100).Tagged(10, 0)}, b, c)
	wantDrops(t, l, a, "locked", 40)

	// And so does the command that unlocks it.
	l.Bascule("port", "set", "br0", a.Port, "--learn", "--locked=off")
	l.Reach(a, l.Frames(5, B, A), b)
	l.Reach(b, l.Frames(5, A, B), a)
	wantDrops(t, l, a, "locked", 40)
	l.Reach(c, l.Frames(5, B, A))
	wantDrops(t, l, c, "locked", 5)
}

// again exports br0, makes it again from that, and compares the result.
func again(t *testing.T, l *netlab.Lab) {
	t.Helper()
	was := l.Bascule("export", "br0")
	file := filepath.Join(t.TempDir(), "br0.yaml")
	must(t, os.WriteFile(file, []byte(was), 0o600))
	if said := l.Bascule("apply", file); strings.Contains(said, "port") {
		t.Errorf("apply of what runs says %q", said)
	}
	l.Bascule("bridge", "del", "br0")
	l.Bascule("apply", file)
	if is := l.Bascule("export", "br0"); is != was {
		t.Errorf("br0 made of a file is\n%s\nshould be\n%s", is, was)
	}
}

// mabLimit: stations that may not pass cannot fill the bridge's table with locked entries.
func mabLimit(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	l.Refused([]string{a.Port, "--fdb-max=64", "--mab=off"}, "port", "set", "br0", a.Port, "--locked", "--learn=off", "--mab")
	l.Bascule("port", "set", "br0", a.Port, "--locked", "--learn=off", "--mab", "--fdb-max", "8")
	for i := range 40 {
		l.Send(a, l.Frames(1, B, netlab.Station(100+i))...)
	}
	learn(l, b, B, C, D)
	l.Flush()
	if p, q := l.Port("br0", a.Port), l.Port("br0", b.Port); p.FDBCount != 8 || q.FDBCount != 3 {
		t.Errorf("%s has %d addresses, should be 8, and %s %d, should be 3", a.Port, p.FDBCount, b.Port, q.FDBCount)
	}
	l.Refused([]string{a.Port, "--fdb-max=64"}, "port", "set", "br0", a.Port, "--fdb-max", "0")
}

// mab: an address that a locked port does not let in gets a locked entry, which is reported. It
// lets no frame pass, in either direction, until a user permits the address.
func mab(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	locked := func(mac netlab.MAC, e *netlab.End) string { return dynamic(mac, 0, e) + " locked" }
	l.Refused([]string{a.Port, "--locked"}, "port", "set", "br0", a.Port, "--mab")
	l.Bascule("port", "set", "br0", a.Port, "--locked", "--learn=off", "--mab", "--fdb-max", "64")
	l.Bascule("port", "set", "br0", d.Port, "--locked", "--learn=off")
	l.Refused([]string{a.Port, "--mab=off"}, "port", "set", "br0", a.Port, "--locked=off")
	if p := l.Port("br0", a.Port); !p.MAB || !p.Locked {
		t.Errorf("port show has mab %v, locked %v", p.MAB, p.Locked)
	}
	m := l.NewMonitor("br0", c)
	learn(l, b, B)
	saw := func(kind string, mac netlab.MAC, e *netlab.End) {
		t.Helper()
		m.Wait(kind, func(v netlab.Event) bool { return v.Event == kind && v.MAC == mac.String() && v.Ifname == e.Port })
	}
	if r := look(t, l, a, l.Frame(B, A, 60)); r.Verdict != "dropped: locked" || !r.says("it gets a locked entry") {
		t.Errorf("traced: %v", r)
	}

	l.Reach(a, l.Frames(20, B, A))
	saw("locked", A, a)
	l.Reach(a, l.Frames(20, netlab.Broadcast, A))
	wantDrops(t, l, a, "locked", 40)
	wantFDB(t, l, "br0", dynamic(B, 0, b), locked(A, a))
	l.Reach(b, l.Frames(10, A, B), a, c, d) // the entry is not used
	if r := look(t, l, a, l.Frame(B, A, 60)); r.Verdict != "dropped: locked" || !r.says("a locked entry, which is refreshed") {
		t.Errorf("traced: %v", r)
	}
	if r := look(t, l, b, l.Frame(A, B, 60)); r.Verdict != "flooded" || !r.says("a locked entry on "+a.Port) {
		t.Errorf("traced: %v", r)
	}
	// An address of another port is not affected, and a locked port without mab adds no
	// entry.
	l.Reach(a, l.Frames(5, C, B))
	l.Reach(c, l.Frames(5, B, C), b)
	l.Reach(d, l.Frames(5, B, D))
	wantDrops(t, l, a, "locked", 45)
	wantDrops(t, l, d, "locked", 5)
	wantFDB(t, l, "br0", dynamic(B, 0, b), dynamic(C, 0, c), locked(A, a))

	// An authenticator permits it, and removes it.
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	l.Reach(a, l.Frames(20, B, A), b)
	l.Reach(b, l.Frames(20, A, B), a)
	l.Bascule("fdb", "del", "br0", A.String())
	saw("deleted", A, a)
	l.Reach(a, l.Frames(5, B, A))
	wantDrops(t, l, a, "locked", 50)
	// At an unlocked port the address is like any other.
	l.Reach(c, l.Frames(5, B, A), b)
	saw("learned", A, c)
	l.Reach(b, l.Frames(5, A, B), c)
	l.Reach(a, l.Frames(5, B, A))
	wantFDB(t, l, "br0", dynamic(B, 0, b), dynamic(C, 0, c), dynamic(A, 0, c))
	wantDrops(t, l, a, "locked", 55)
	m.Stop()

	// Its entries are deleted with it, and a file restores it.
	l.Reach(a, l.Frames(5, B, D))
	wantFDB(t, l, "br0", dynamic(B, 0, b), dynamic(C, 0, c), dynamic(A, 0, c), locked(D, a))
	if p := l.Port("br0", a.Port); p.FDBCount != 1 {
		t.Errorf("%s has %d addresses, should be 1", a.Port, p.FDBCount)
	}
	l.Bascule("port", "set", "br0", a.Port, "--mab=off")
	wantFDB(t, l, "br0", dynamic(B, 0, b), dynamic(C, 0, c), dynamic(A, 0, c))
	l.Bascule("port", "set", "br0", a.Port, "--mab")
	again(t, l)
	l.Reach(a, l.Frames(5, B, A))
	wantFDB(t, l, "br0", locked(A, a))
	// The table empties without a command.
	l.Bascule("bridge", "set", "br0", "--ageing", "1s")
	l.Wait("the entry to age", func() bool { return l.Bridge("br0").FDBCount == 0 })
}

// of returns the frames with another EtherType. In frames with one tag it is the type behind
// the tag.
func of(typ uint16, frames []netlab.Frame) []netlab.Frame {
	for i, f := range frames {
		at := 12
		if f[12:14] == "\x81\x00" {
			at = 16
		}
		frames[i] = f[:at] + netlab.Frame([]byte{byte(typ >> 8), byte(typ)}) + f[at+2:]
	}
	return frames
}

func blockNonIP(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	learn(l, c, C)
	l.Bascule("port", "set", "br0", a.Port, "--block-non-ip")
	tagged := func(frames []netlab.Frame) []netlab.Frame {
		for i := range frames {
			frames[i] = frames[i].Tagged(10, 3)
		}
		return frames
	}
	l.Send(a, of(0x0800, tagged(l.Frames(1, netlab.Broadcast, A)))...)
	l.Send(b, of(0x0800, tagged(l.Frames(1, netlab.Broadcast, B)))...)

	for _, typ := range []uint16{0x0800, 0x86dd, 0x0806, 0x8035} {
		l.Reach(a, of(typ, l.Frames(3, B, A)), b)
		l.Reach(b, of(typ, l.Frames(3, A, B)), a)
		l.Reach(a, of(typ, l.Frames(3, netlab.Broadcast, A)), b, c)
		l.Reach(b, of(typ, l.Frames(3, netlab.Broadcast, B)), a, c)
		l.Reach(a, of(typ, tagged(l.Frames(3, B, A))), b)
		l.Reach(b, of(typ, tagged(l.Frames(3, A, B))), a)
	}
	wantDrops(t, l, a, "non-ip", 0)
	wantDrops(t, l, b, "non-ip", 0)
	for i, typ := range []uint16{0x88b5, 0x88cc, 0x8863, 46, 0x0801} {
		// On input, also in earlier conversations.
		l.Reach(a, of(typ, l.Frames(3, B, A)))
		l.Reach(a, of(typ, l.Frames(3, netlab.Broadcast, A)))
		l.Reach(a, of(typ, l.Frames(3, netlab.Station(9), A)))
		l.Reach(a, of(typ, tagged(l.Frames(3, B, A))))
		wantDrops(t, l, a, "non-ip", uint64(i+1)*12)
		// On output.
		l.Reach(b, of(typ, l.Frames(3, A, B)))
		l.Reach(b, of(typ, tagged(l.Frames(3, A, B))))
		l.Reach(b, of(typ, l.Frames(3, netlab.Broadcast, B)), c)
		wantDrops(t, l, b, "non-ip", uint64(i+1)*9)
		// Other ports are not affected.
		l.Reach(b, of(typ, l.Frames(3, C, B)), c)
		l.Reach(c, of(typ, l.Frames(3, B, C)), b)
	}
	// Behind a second tag, too.
	l.Reach(a, tagged(tagged(of(0x0800, l.Frames(3, B, A)))), b)
	l.Reach(a, tagged(tagged(l.Frames(3, B, A))))
	wantDrops(t, l, a, "non-ip", 63)
	l.Bascule("port", "set", "br0", a.Port, "--block-non-ip=off")
	l.Reach(a, l.Frames(3, B, A), b)
	l.Reach(b, l.Frames(3, A, B), a)
}

func fdbFullDrop(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, b, B)
	l.Bascule("port", "set", "br0", a.Port, "--fdb-max", "4", "--fdb-full", "drop")
	known, strangers := stations(10, 4), stations(100, 3)
	learn(l, a, known...)
	check := func(drops uint64) {
		t.Helper()
		for _, mac := range strangers {
			l.Reach(a, l.Frames(2, B, mac))
			l.Reach(a, l.Frames(1, netlab.Broadcast, mac))
		}
		wantDrops(t, l, a, "limit", drops)
		for _, mac := range known {
			l.Reach(a, l.Frames(2, B, mac), b)
			l.Reach(b, l.Frames(2, mac, B), a)
		}
		wantDrops(t, l, a, "limit", drops)
	}
	check(9)
	// Also when the ages of known addresses are written.
	l.Wait("a second to pass", func() bool {
		l.Reach(a, l.Frames(1, netlab.Broadcast, known[0]), b, c)
		e := find(l.FDB("br0"), known[1], 0)
		return e != nil && e.Updated != nil && *e.Updated > 0
	})
	check(18)
	if p := l.Port("br0", a.Port); p.Learned != 4 || p.Refused != 18 || p.FDBCount != 4 {
		t.Errorf("%s counts %d learned, %d refused, %d known, should be 4, 18, 4", a.Port, p.Learned, p.Refused, p.FDBCount)
	}
	// A static entry has room, and a free place is used.
	l.Bascule("fdb", "add", "br0", strangers[0].String(), a.Port)
	l.Reach(a, l.Frames(2, B, strangers[0]), b)
	l.Bascule("fdb", "del", "br0", known[3].String())
	l.Reach(a, l.Frames(2, B, strangers[1]), b)
	l.Reach(a, l.Frames(2, B, known[3]))
	wantDrops(t, l, a, "limit", 20)
	// No address moves to a full port; B stays where it was.
	l.Reach(a, l.Frames(2, netlab.Broadcast, B))
	l.Reach(c, l.Frames(1, B, C), b)
	wantDrops(t, l, a, "limit", 22)

	// The bridge's limit: 6 are known. The other ports flood.
	l.Bascule("port", "set", "br0", a.Port, "--fdb-max", "0")
	l.Bascule("bridge", "set", "br0", "--fdb-max", "6")
	l.Reach(a, l.Frames(2, B, known[3]))
	wantDrops(t, l, a, "limit", 24)
	l.Reach(c, l.Frames(2, B, netlab.Station(300)), b)
	wantDrops(t, l, c, "limit", 0)
	l.Bascule("port", "set", "br0", a.Port, "--fdb-full", "flood")
	l.Reach(a, l.Frames(2, B, known[3]), b)
	wantDrops(t, l, a, "limit", 24)
}

func moveMax(t *testing.T, hook string) {
	const most, rounds = 3, 40
	l, ends := setup(t, hook, 3, "--move-max", "3")
	a, b, c := ends[0], ends[1], ends[2]
	m := l.NewMonitor("br0", c)
	learn(l, c, C)
	learn(l, a, A)
	moves := func() uint64 { return l.Port("br0", a.Port).Moves + l.Port("br0", b.Port).Moves }
	refused := func() uint64 { return l.Port("br0", a.Port).Refused + l.Port("br0", b.Port).Refused }

	// Every frame is forwarded, whether its address moves or not.
	start := time.Now()
	for range rounds {
		l.Reach(b, l.Frames(1, netlab.Broadcast, A), a, c)
		l.Reach(a, l.Frames(1, netlab.Broadcast, A), b, c)
	}
	seconds := uint64(time.Since(start)/time.Second) + 2 // in which they were sent
	moved, kept := moves(), refused()
	if moved < most || moved > most*seconds || moved < 2*rounds && kept == 0 {
		t.Errorf("%d moves and %d refused in at most %d seconds, should be at most %d a second", moved, kept, seconds, most)
	}
	e := m.Wait("that a move was refused", func(e netlab.Event) bool { return e.Event == "refused" && e.MAC == A.String() })
	if e.Reason != "damped" || e.Ifname == e.From || !slices.Contains([]string{a.Port, b.Port}, e.From) || e.Count == 0 {
		t.Errorf("the refused move of %v is shown as %+v", A, e)
	}
	// The frames of a conversation, which is remembered, too.
	at, other := a, b
	if e := find(l.FDB("br0"), A, 0); e == nil || e.Ifname == b.Port {
		at, other = b, a
	}
	before := moves()
	l.Reach(other, l.Frames(20, C, A), c)
	l.Reach(at, l.Frames(20, C, A), c)
	if n := moves() - before; n > 2 {
		t.Errorf("%d moves, there was one frame each way to move by", n)
	}

	// It can move again in the next second.
	l.Wait("the address to move again", func() bool {
		l.Reach(b, l.Frames(1, C, A), c)
		e := find(l.FDB("br0"), A, 0)
		return e != nil && e.Ifname == b.Port
	})
	l.Reach(c, l.Frames(5, A, C), b)
	m.Stop()

	// Without a limit all moves are permitted.
	l.Bascule("bridge", "set", "br0", "--move-max", "0")
	before, kept = moves(), refused()
	for range 20 {
		learn(l, a, A)
		learn(l, b, A)
	}
	if n := moves() - before; n != 40 || refused() != kept {
		t.Errorf("%d moves and %d refused, should be 40 and 0", n, refused()-kept)
	}
}

// cabled makes a cable from the switch to itself. Both ends are ports of br0.
func cabled(t *testing.T, l *netlab.Lab, hook string, flags ...string) (x, y string) {
	t.Helper()
	x, y = "x1", "x2"
	attrs := netlink.NewLinkAttrs()
	attrs.Name = x
	must(t, l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: y}))
	l.Keep(x)
	l.Keep(y)
	l.Plug(x)
	side, err := l.Switch.Netlink().LinkByName(y)
	must(t, err)
	l.SetUp(side)
	for _, name := range []string{x, y} {
		// It may report its change of the other end.
		r, err := l.Run(append([]string{"port", "add", "br0", name, "--hook", hook}, flags...)...)
		must(t, err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
	}
	return x, y
}

func loopGuard(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	m := l.NewMonitor("br0", b)
	learn(l, b, B)
	x, y := cabled(t, l, hook, "--loop-guard", "report")
	looped := func() uint64 { return l.Port("br0", x).Drops["loop"] + l.Port("br0", y).Drops["loop"] }
	isLoop := func(e netlab.Event) bool { return e.Event == "loop" }

	// A broadcast circulates, until the guards detect it.
	l.Send(a, l.Frames(1, netlab.Broadcast, A)...)
	e := m.Wait("the loop", isLoop)
	if e.MAC != A.String() || e.Ifname != x && e.Ifname != y || e.From == e.Ifname || e.Count == 0 {
		t.Errorf("the loop of %v is shown as %+v", A, e)
	}
	quiet := func() {
		t.Helper()
		seen := ^uint64(0)
		l.Wait("the loop to be quiet", func() bool {
			l.Flush()
			now := l.Port("br0", x).Stats64.RX.Packets + l.Port("br0", y).Stats64.RX.Packets
			last := seen
			seen = now
			return now == last
		})
	}
	quiet()
	if n := looped(); n == 0 {
		t.Error("no frame is counted as come back")
	}
	if p := l.Port("br0", x); p.State != "forwarding" || p.Drops["blocked"] != 0 {
		t.Errorf("%s was to report, and is %s with drops %v", x, p.State, p.Drops)
	}

	guard := func(what string) {
		t.Helper()
		for _, name := range []string{x, y} {
			l.Bascule("port", "set", "br0", name, "--loop-guard", what)
		}
	}

	// With a time, one end is blocked, which is enough. It is blocked for longer than the
	// test needs.
	guard("3600s")
	blocked := func() (names []string) {
		for _, name := range []string{x, y} {
			if l.Port("br0", name).State == "blocked" {
				names = append(names, name)
			}
		}
		return names
	}
	if names := blocked(); len(names) > 0 {
		t.Errorf("%v are blocked before a loop", names)
	}
	l.Send(a, l.Frames(1, netlab.Broadcast, C)...)
	e = m.Wait("that a port is blocked", func(e netlab.Event) bool { return e.Event == "blocked" })
	if e.Seconds != 3600 || e.MAC != "" || e.Ifname != x && e.Ifname != y {
		t.Errorf("the blocked port is shown as %+v", e)
	}
	quiet()
	if names := blocked(); !slices.Equal(names, []string{e.Ifname}) {
		t.Errorf("%v are blocked, should be %s alone", names, e.Ifname)
	}
	// A blocked port neither receives nor sends: each frame arrives once at its
	// destination.
	from := l.Port("br0", e.Ifname)
	l.Reach(a, l.Frames(20, netlab.Broadcast, D), b)
	l.Reach(a, l.Frames(20, netlab.Station(99), D), b)
	l.Reach(b, l.Frames(20, D, B), a)
	if p := l.Port("br0", e.Ifname); p.Stats64.TX.Packets != from.Stats64.TX.Packets {
		t.Errorf("%s is blocked, and has sent %d frames", e.Ifname, p.Stats64.TX.Packets-from.Stats64.TX.Packets)
	}
	other := x
	if e.Ifname == x {
		other = y
	}
	before := l.Port("br0", e.Ifname).Drops["blocked"]
	outside := l.Listen(l.Switch, other)
	l.Send(outside, l.Frames(3, B, netlab.Station(50))...)
	if n := l.Port("br0", e.Ifname).Drops["blocked"] - before; n != 3 {
		t.Errorf("%s is blocked, and has dropped %d frames of 3", e.Ifname, n)
	}

	// It ends by itself.
	guard("2s")
	isShort := func(e netlab.Event) bool { return e.Event == "blocked" && e.Seconds == 2 }
	l.Wait("a port to be blocked for a short time", func() bool { // one port is blocked after a while
		l.Send(a, l.Frames(1, netlab.Broadcast, C)...)
		return slices.ContainsFunc(m.Events(), isShort)
	})
	if short := m.Wait("that", isShort); short.MAC != "" || short.Ifname != x && short.Ifname != y {
		t.Errorf("the blocked port is shown as %+v", short)
	}
	l.Wait("the ports to forward again", func() bool { return len(blocked()) == 0 })

	// A single frame with a host port's own address is enough. Setting the guard again
	// deletes its findings.
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	own := netlab.MAC(host.Attrs().HardwareAddr)
	guard("3600s")
	l.Send(outside, l.Frames(1, B, own)...)
	if names := blocked(); !slices.Equal(names, []string{e.Ifname}) {
		t.Errorf("%v are blocked, should be %s", names, e.Ifname)
	}
	guard("off")
	if names := blocked(); len(names) > 0 {
		t.Errorf("%v are blocked without a guard", names)
	}
	m.Stop()
}

// loopGuardMoves: addresses that move for good reasons do not count as a loop.
func loopGuardMoves(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	for _, e := range ends {
		l.Bascule("port", "set", "br0", e.Port, "--loop-guard", "3600s")
	}
	// All stations behind a cable are connected elsewhere, announce themselves, and return.
	machines := stations(1000, 200)
	for _, at := range []*netlab.End{a, b, a} {
		for _, mac := range machines {
			l.Send(at, l.Frames(3, netlab.Broadcast, mac)...)
		}
	}
	// A station roams, and sends all the time.
	learn(l, c, C)
	for _, at := range []*netlab.End{a, b, a, b} {
		l.Reach(at, l.Frames(1, netlab.Broadcast, A), others(ends, at)...)
		l.Reach(at, l.Frames(50, C, A), c)
		l.Reach(c, l.Frames(50, A, C), at)
	}
	for _, e := range ends {
		if p := l.Port("br0", e.Port); p.State != "forwarding" || p.Drops["loop"]+p.Drops["blocked"] != 0 {
			t.Errorf("%s is %s, with drops %v", e.Port, p.State, p.Drops)
		}
	}
}
