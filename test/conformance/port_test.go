// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"slices"
	"testing"

	"bascule/test/netlab"
)

var portCases = []conformance{
	{name: "no_hairpin", hooks: both, run: noHairpin},
	{name: "hairpin", hooks: both, run: hairpin},
	{name: "isolated", hooks: both, run: isolated},
	{name: "protected_domains", hooks: both, run: protectedDomains},
	{name: "learn_off", hooks: tcx, run: learnOff},
	{name: "discover_off", hooks: tcx, run: discoverOff},
	{name: "flood_flags", hooks: tcx, run: floodFlags},
	{name: "reserved_addresses", hooks: tcx, run: reservedAddresses},
}

func noHairpin(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A, B)
	learn(l, c, C)
	l.Reach(a, l.Frames(100, B, A)) // both are behind one port: the destination has received it already
	l.Reach(a, l.Frames(100, A, A)) // to itself
	wantDrops(t, l, a, "same-port", 200)
	l.Reach(a, l.Frames(100, netlab.Broadcast, A), b, c)
	l.Reach(a, l.Frames(100, netlab.Group(1), A), b, c)
	l.Reach(a, l.Frames(100, netlab.Station(100), A), b, c)
	wantDrops(t, l, a, "same-port", 200)
}

func hairpin(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A, B)
	learn(l, c, C)
	l.Bascule("port", "set", "br0", a.Port, "--hairpin")
	if !l.Port("br0", a.Port).Hairpin {
		t.Error("hairpin is not shown")
	}
	l.Reach(a, l.Frames(100, B, A), a)
	l.Reach(a, l.Frames(100, netlab.Broadcast, A), a, b, c)
	l.Reach(a, l.Frames(100, netlab.Group(1), A), a, b, c)
	l.Reach(a, l.Frames(100, netlab.Station(100), A), a, b, c)
	l.Reach(a, l.Frames(100, C, A), c)
	// Only at the port with the setting.
	l.Reach(c, l.Frames(100, A, C), a)
	l.Reach(c, l.Frames(100, C, C))
	l.Reach(c, l.Frames(100, netlab.Broadcast, C), a, b)
	l.Bascule("port", "set", "br0", a.Port, "--hairpin=off")
	l.Reach(a, l.Frames(100, B, A))
	l.Reach(a, l.Frames(100, netlab.Broadcast, A), b, c)
}

// talk checks which ports reach which: from each port with every kind of frame.
func talk(t *testing.T, l *netlab.Lab, ends []*netlab.End, reaches func(from, to int) bool) {
	t.Helper()
	for i, from := range ends {
		learn(l, from, from.MAC)
		var to []*netlab.End
		for j, e := range ends {
			if i != j && reaches(i, j) {
				to = append(to, e)
			}
		}
		l.Reach(from, l.Frames(20, netlab.Broadcast, from.MAC), to...)
		l.Reach(from, l.Frames(20, netlab.Group(1), from.MAC), to...)
		l.Reach(from, l.Frames(20, netlab.Station(100), from.MAC), to...)
	}
	for i, from := range ends {
		for j, e := range ends {
			before := l.Port("br0", from.Port).Drops["protected"]
			frames := l.Frames(20, e.MAC, from.MAC)
			switch {
			case i == j:
			case reaches(i, j):
				l.Reach(from, frames, e)
			default:
				l.Reach(from, frames)
				wantDrops(t, l, from, "protected", before+20)
			}
		}
	}
}

func isolated(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	everybody := func(from, to int) bool { return true }
	for _, e := range ends[:2] {
		l.Bascule("port", "set", "br0", e.Port, "--isolated")
		if p := l.Port("br0", e.Port); !p.Isolated || !slices.Equal(p.Protected, []int{1}) {
			t.Errorf("%s is isolated, and shown as %v, in domains %v", e.Port, p.Isolated, p.Protected)
		}
	}
	talk(t, l, ends, func(from, to int) bool { return from > 1 || to > 1 })
	l.Bascule("port", "set", "br0", ends[0].Port, "--isolated=off")
	talk(t, l, ends, everybody)
}

func protectedDomains(t *testing.T, hook string) {
	l, ends := setup(t, hook, 5)
	domains := [][]int{{1}, {2}, {1, 2}, {3, 31}, {}}
	show := []string{"1", "2", "1,2", "31,3", "none"}
	for i, e := range ends {
		l.Bascule("port", "set", "br0", e.Port, "--protected", show[i])
		if p := l.Port("br0", e.Port); !slices.Equal(p.Protected, domains[i]) {
			t.Errorf("%s is in domains %v, and shown in %v", e.Port, domains[i], p.Protected)
		}
	}
	share := func(i, j int) bool {
		return slices.ContainsFunc(domains[i], func(d int) bool { return slices.Contains(domains[j], d) })
	}
	talk(t, l, ends, func(from, to int) bool { return !share(from, to) })
	domains[4] = []int{31}
	l.Bascule("port", "set", "br0", ends[4].Port, "--protected", "31")
	talk(t, l, ends, func(from, to int) bool { return !share(from, to) })
}

func learnOff(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("port", "set", "br0", a.Port, "--learn=off")
	if l.Port("br0", a.Port).Learning {
		t.Error("the port is shown as learning")
	}
	learn(l, a, A)
	learn(l, b, B)
	wantFDB(t, l, "br0", dynamic(B, 0, b))
	l.Reach(b, l.Frames(10, A, B), a, c)
	l.Reach(a, l.Frames(10, B, A), b) // known addresses are still used
	// Nor does an address move there.
	l.Reach(a, l.Frames(10, netlab.Broadcast, B), b, c)
	l.Reach(c, l.Frames(10, B, C), b)
	// A static entry works.
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	l.Reach(b, l.Frames(10, A, B), a)
	l.Bascule("fdb", "del", "br0", A.String())
	l.Bascule("port", "set", "br0", a.Port, "--learn")
	learn(l, a, A)
	l.Reach(b, l.Frames(10, A, B), a)
}

func discoverOff(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("port", "set", "br0", b.Port, "--discover=off")
	if l.Port("br0", b.Port).Flood {
		t.Error("the port is shown as flooding")
	}
	l.Reach(a, l.Frames(10, netlab.Station(100), A), c)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c)
	l.Reach(a, l.Frames(10, netlab.Group(1), A), b, c)
	l.Reach(b, l.Frames(10, netlab.Station(100), B), a, c) // the other direction
	l.Reach(a, l.Frames(10, B, A), b)                      // known by now
	l.Bascule("port", "set", "br0", b.Port, "--discover")
	l.Reach(a, l.Frames(10, netlab.Station(100), A), b, c)
}

func floodFlags(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	flags := []string{"discover", "mcast-flood", "bcast-flood"}
	kinds := []netlab.MAC{netlab.Station(100), netlab.Group(1), netlab.Broadcast}
	for set := range 1 << len(flags) {
		args := []string{"port", "set", "br0", b.Port}
		for i, f := range flags {
			word := map[bool]string{true: "on", false: "off"}[set>>i&1 == 1]
			args = append(args, fmt.Sprintf("--%s=%s", f, word))
		}
		l.Bascule(args...)
		p := l.Port("br0", b.Port)
		for i, shown := range []bool{p.Flood, p.McastFlood, p.BcastFlood} {
			on := set>>i&1 == 1
			if shown != on {
				t.Errorf("--%s=%v is shown as %v", flags[i], on, shown)
			}
			to := []*netlab.End{c}
			if on {
				to = append(to, b)
			}
			l.Reach(a, l.Frames(10, kinds[i], A), to...)
			l.Reach(b, l.Frames(10, kinds[i], B), a, c)
		}
	}
	// A flood without an output port is a drop.
	for _, e := range []*netlab.End{b, c} {
		l.Bascule("port", "set", "br0", e.Port, "--discover=off", "--mcast-flood=off", "--bcast-flood=off")
	}
	for i, kind := range kinds {
		l.Reach(a, l.Frames(10, kind, A))
		wantDrops(t, l, a, "no-member", uint64(10*(i+1)))
	}
}

func reservedAddresses(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	reserved := func(x int) netlab.MAC { return netlab.MAC{0x01, 0x80, 0xc2, 0, 0, byte(x)} }
	for x := range 16 {
		l.Reach(a, l.Frames(2, reserved(x), A))
	}
	wantDrops(t, l, a, "reserved", 32)
	// The neighbours of the block are ordinary groups.
	for _, mac := range []netlab.MAC{reserved(0x10), reserved(0x21), reserved(0xff), {0x01, 0x80, 0xc2, 0, 1, 0}, {0x01, 0x80, 0xc3, 0, 0, 0}} {
		l.Reach(a, l.Frames(2, mac, A), b)
	}
	for bit := range 16 {
		l.Bascule("bridge", "set", "br0", "--group-fwd-mask", fmt.Sprintf("%#x", 1<<bit))
		if m := l.Bridge("br0").GroupFwdMask; m != 1<<bit {
			t.Errorf("mask %#x is shown as %#x", 1<<bit, m)
		}
		for x := range 16 {
			if x == bit {
				l.Reach(a, l.Frames(2, reserved(x), A), b)
			} else {
				l.Reach(a, l.Frames(2, reserved(x), A))
			}
		}
	}
	l.Bascule("bridge", "set", "br0", "--group-fwd-mask", "65535")
	for x := range 16 {
		l.Reach(a, l.Frames(2, reserved(x), A), b)
	}
	l.Bascule("bridge", "set", "br0", "--group-fwd-mask", "0")
	l.Reach(a, l.Frames(2, reserved(14), A))
	// A reserved address in a tagged frame is also reserved.
	l.Reach(a, []netlab.Frame{l.Frame(reserved(0), A, 100).Tagged(10, 0)})
}
