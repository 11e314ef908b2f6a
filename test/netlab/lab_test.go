// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// linuxBridge joins all ends with the kernel's own bridge, a switch with known behaviour.
func linuxBridge(t *testing.T, l *Lab) {
	t.Helper()
	nl := l.Switch.Netlink()
	snooping := false
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, MulticastSnooping: &snooping}
	l.must(nl.LinkAdd(br))
	l.must(nl.LinkSetUp(br))
	for _, e := range l.Ends {
		port, err := nl.LinkByName(e.Port)
		l.must(err)
		l.must(nl.LinkSetMaster(port, br))
	}
	for _, from := range l.Ends {
		l.Wait("the bridge's ports to forward", func() bool {
			return l.reach(from, l.Frames(1, Broadcast, from.MAC), slices.DeleteFunc(slices.Clone(l.Ends), func(e *End) bool { return e == from })) == nil
		})
	}
}

// TestCounting counts frames through a switch that is known to be correct.
func TestCounting(t *testing.T) {
	l := New(t)
	l.NewEnds(2)
	l.NewEnd(l.Switch)
	a, b, c := l.Ends[0], l.Ends[1], l.Ends[2]
	linuxBridge(t, l)
	b.SetOffloads(true, true) // queues of another kind

	l.Reach(a, l.Frames(500, Broadcast, Station(1)), b, c)
	l.Reach(b, l.Frames(500, Station(1), Station(2)), a)
	l.Reach(a, l.Frames(500, Station(2), Station(1)), b)
	l.Reach(c, l.Frames(500, Station(3), Station(4)), a, b)
	tagged := []Frame{l.Frame(Broadcast, Station(1), 1000).Tagged(10, 3), l.Frame(Broadcast, Station(1), 60).Tagged(0, 7)}
	l.Reach(c, tagged, a, b)

	// Errors are detected, too.
	frames := l.Frames(3, Station(1), Station(2))
	if err := l.reach(b, frames, []*End{a, c}); err == nil {
		t.Error("frames that did not arrive were not missed")
	}
	if err := l.reach(b, frames, nil); err == nil {
		t.Error("frames that should not have arrived were not noticed")
	}
}

func TestCompare(t *testing.T) {
	a, b := NewFrame(Broadcast, Station(1), 1, 60), NewFrame(Broadcast, Station(1), 2, 60)
	for _, c := range []struct {
		name      string
		got, want []Frame
		same      bool
	}{
		{"same", []Frame{a, b}, []Frame{a, b}, true},
		{"none", nil, nil, true},
		{"missing", []Frame{a}, []Frame{a, b}, false},
		{"twice", []Frame{a, a}, []Frame{a}, false},
		{"other", []Frame{b}, []Frame{a}, false},
		{"changed", []Frame{a[:59] + "x"}, []Frame{a}, false},
	} {
		if err := compare(c.got, c.want); (err == nil) != c.same {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestTagged(t *testing.T) {
	f := NewFrame(Station(1), Station(2), 7, 64).Tagged(0x123, 5)
	if len(f) != 68 || f.Dst() != Station(1) || f.Src() != Station(2) || !slices.Equal([]byte(f[12:16]), []byte{0x81, 0, 0xa1, 0x23}) {
		t.Errorf("%x", f)
	}
}

// A command's message that it waits for another only shows that the machine is busy.
func TestWithoutWaits(t *testing.T) {
	const wait = "bascule: another command changes bridges of this network namespace; waiting for process 17772\n"
	for text, want := range map[string]string{
		"": "", wait: "", wait + wait: "", "bascule: p1: no such port\n": "bascule: p1: no such port\n",
		"bascule: one\n" + wait + "bascule: two": "bascule: one\nbascule: two",
	} {
		if got := withoutWaits(text); got != want {
			t.Errorf("of %q there is left %q, want %q", text, got, want)
		}
	}
}
