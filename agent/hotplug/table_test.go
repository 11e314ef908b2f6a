// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bascule/bridge"
	"bascule/config"
)

// file is the desired state of most cases.
func file(bridges ...config.Bridge) config.File { return config.File{Bridges: bridges} }

func bridgeOf(name string, ports ...string) config.Bridge {
	b := config.Bridge{Name: name}
	for _, p := range ports {
		name, typ, _ := strings.Cut(p, " ")
		b.Ports = append(b.Ports, config.Port{Name: name, Options: bridge.PortOptions{Type: typ}})
	}
	return b
}

// ether is a device that can be a port.
func ether(index int, name string) device {
	return device{index: index, name: name, kind: "tuntap", ethernet: true, mtu: 1500, peerNetns: -1}
}

func with(d device, change func(*device)) device {
	change(&d)
	return d
}

func TestPlaces(t *testing.T) {
	f := file(
		bridgeOf("br0", "tap*", "tap7", "vm[0-9]", "host0 host", "to1 patch", "bad["),
		bridgeOf("br1", "tap?", "eth1", "vm*"),
	)
	f.Bridges[1].Mirrors = []config.Mirror{{Device: "tap9"}}
	for name, want := range map[string]string{
		"tap0": "br0/tap*", "tap7": "br0/tap7", "tap9": "", // a mirror's device is nothing else
		"vm3": "br0/vm[0-9]", "vm33": "br1/vm*",
		"eth1": "br1/eth1", "eth10": "", "host0": "", "to1": "", "bad[": "", "lo": "",
	} {
		got := ""
		if p := newPlaces(f).of(name); p != nil {
			got = p.bridge + "/" + p.port.Name
		}
		if got != want {
			t.Errorf("the place of %s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"tap0": "br1", "tap7": "", "tap77": "", "vm3": "br1", "vm33": "", "eth1": ""} {
		got, all := "", newPlaces(f)
		if p := all.rival(name, all.of(name)); p != nil {
			got = p.bridge
		}
		if got != want {
			t.Errorf("the bridge that %s is of as well is %q, want %q", name, got, want)
		}
	}
}

// A port with a backup, and the backup, need an apply of the file.
func TestPlacesBackup(t *testing.T) {
	f := file(bridgeOf("br0", "p1", "p2", "p3", "tap*"))
	f.Bridges[0].Ports[0].Options.Changes = []bridge.Change{{Name: "hairpin", Value: "on"}, {Name: "backup", Value: "p2"}}
	f.Bridges[0].Ports[3].Options.Changes = []bridge.Change{{Name: "backup", Value: "p2"}}
	all := newPlaces(f)
	for name, want := range map[string]bool{"p1": true, "p2": true, "p3": false, "tap0": true} {
		if got := all.says(name); got != want {
			t.Errorf("the file says more of %s: %v, want %v", name, got, want)
		}
	}
}

// A pattern that is longer than a device's name does not cost other patterns
// their berths.
func TestPlacesBerths(t *testing.T) {
	f := file(bridgeOf("br0", "one", "veth-[0-9a-f]*-ext", "tap-012345678-*", "tap-0123456789-*"), bridgeOf("br1", "vm*"))
	var got []string
	for _, b := range newPlaces(f).berths("br0", berths) {
		got = append(got, b.Pattern)
	}
	if diff := cmp.Diff([]string{"tap-012345678-*"}, got); diff != "" {
		t.Errorf("berths (-want +got):\n%s", diff)
	}
}

// list returns the work, a line for each thing.
func (w work) list() (lines []string) {
	for _, a := range w.attach {
		line := fmt.Sprintf("attach %s#%d to %s as %s", a.name, a.index, a.place.bridge, a.place.port.Name)
		if a.moves {
			line += " later"
		}
		lines = append(lines, line)
	}
	for _, a := range w.raise {
		lines = append(lines, fmt.Sprintf("raise %s#%d in %s", a.name, a.index, a.place.bridge))
	}
	for _, d := range w.leave {
		lines = append(lines, fmt.Sprintf("leave %s %s#%d", d.bridge, d.name, d.index))
	}
	for name, indexes := range w.gone {
		lines = append(lines, fmt.Sprintf("gone %s %v", name, indexes))
	}
	for name, u := range w.ports {
		lines = append(lines, fmt.Sprintf("compare %s %s", name, map[urgency]string{later: "later", now: "now"}[u]))
	}
	if w.apply {
		lines = append(lines, "apply")
	}
	if w.pf {
		lines = append(lines, "pf")
	}
	for _, n := range w.notes {
		lines = append(lines, fmt.Sprintf("%v %s %s: %s", n.level, n.bridge, n.device, n.why))
	}
	return lines
}

// do does all of the work, like a switch that refuses nothing.
func (w work) do(t *table) {
	for _, d := range w.leave {
		t.detached(d)
	}
	for _, a := range w.attach {
		t.attached(a)
	}
}

func TestTable(t *testing.T) {
	standard := file(bridgeOf("br0", "tap*", "eth1"), bridgeOf("br1", "veth-*"))
	attached := func(tb *table, list ...device) {
		for _, d := range list {
			tb.appeared(d)
		}
		tb.todo().do(tb)
		tb.todo()
	}
	rich := file(bridgeOf("br0", "tap*"))
	rich.Bridges[0].Mirrors = []config.Mirror{{Device: "mon0"}}
	rich.Bridges[0].Rules = []config.Rule{{Text: "block in on tap5"}}
	waits := func(tb *table, name string) { // tap0 is no port, and eth1 is one that is down
		tb.setFile(standard)
		tb.hold([]string{name})
		tb.synchronise([]device{ether(2, "tap0"), ether(3, "eth1")}, []bridge.Port{
			{Bridge: "br0", Name: "eth1", Type: bridge.TypeNetdev, Index: 3, State: "disabled"},
		})
	}
	veth := with(ether(5, "veth-a"), func(d *device) { d.kind, d.peer, d.peerNetns = "veth", 9, 3 })
	tests := []struct {
		name   string
		before func(*table) // and its work is done
		then   func(*table)
		want   []string
	}{
		{
			name: "a new device",
			then: func(tb *table) { tb.appeared(ether(2, "tap0")) },
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "a device that has no place",
			then: func(tb *table) { tb.appeared(ether(2, "other")) },
		},
		{
			name: "many at once",
			then: func(tb *table) {
				tb.appeared(ether(3, "eth1"))
				tb.appeared(ether(2, "tap0"))
				tb.appeared(ether(2, "tap0"))
			},
			want: []string{"attach tap0#2 to br0 as tap*", "attach eth1#3 to br0 as eth1"},
		},
		{
			name: "it has gone before anything was done",
			then: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.vanished(2)
			},
		},
		{
			name:   "a port of a pattern goes",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.vanished(2) },
			want:   []string{"gone br0 [2]"},
		},
		{
			name: "one goes that may have become a port",
			before: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.refuse(tb.todo().attach[0], "it has gone")
			},
			then: func(tb *table) { tb.vanished(2) },
			want: []string{"gone br0 [2]"},
		},
		{
			name:   "a named port goes",
			before: func(tb *table) { attached(tb, ether(2, "eth1")) },
			then:   func(tb *table) { tb.vanished(2) },
		},
		{
			name: "a named port comes again",
			before: func(tb *table) {
				attached(tb, ether(2, "eth1"))
				tb.vanished(2)
				tb.todo()
			},
			then: func(tb *table) { tb.appeared(ether(7, "eth1")) },
			want: []string{"attach eth1#7 to br0 as eth1"},
		},
		{
			name:   "made anew with the same index",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.vanished(2)
				tb.appeared(ether(2, "tap0"))
			},
			want: []string{"attach tap0#2 to br0 as tap*", "gone br0 [2]"},
		},
		{
			name:   "another device with the index of one that has gone",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.vanished(2)
				tb.appeared(ether(2, "veth-x"))
			},
			want: []string{"attach veth-x#2 to br1 as veth-*", "gone br0 [2]"},
		},
		{
			name:   "renamed within its pattern",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.appeared(ether(2, "tap1")) },
			want:   []string{"pf"},
		},
		{
			name:   "renamed out of its pattern",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.appeared(ether(2, "x")) },
			want:   []string{"leave br0 x#2", "pf"},
		},
		{
			name:   "renamed into a pattern",
			before: func(tb *table) { attached(tb, ether(2, "x")) },
			then:   func(tb *table) { tb.appeared(ether(2, "tap0")) },
			want:   []string{"attach tap0#2 to br0 as tap*", "pf"},
		},
		{
			name:   "renamed into another bridge",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.appeared(ether(2, "veth-0")) },
			want:   []string{"attach veth-0#2 to br1 as veth-* later", "leave br0 veth-0#2", "pf"},
		},
		{
			name:   "renamed into a name of the file",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.appeared(ether(2, "eth1")) },
			want:   []string{"attach eth1#2 to br0 as eth1 later", "leave br0 eth1#2", "pf"},
		},
		{
			name:   "renamed and back at once",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.appeared(ether(2, "x"))
				tb.appeared(ether(2, "tap0"))
			},
			want: []string{"pf"},
		},
		{
			name: "renamed within its pattern to a name that a rule has",
			before: func(tb *table) {
				tb.setFile(rich)
				attached(tb, ether(2, "tap0"))
			},
			then: func(tb *table) { tb.appeared(ether(2, "tap5")) },
			want: []string{"leave br0 tap5#2", "pf", "apply"},
		},
		{
			name: "renamed within its pattern from a name that a rule has",
			before: func(tb *table) {
				tb.setFile(rich)
				attached(tb, ether(2, "tap5"))
				tb.synchronise([]device{ether(2, "tap5")}, []bridge.Port{{Bridge: "br0", Name: "tap5", Index: 2, Type: bridge.TypeNetdev}})
				tb.todo()
			},
			then: func(tb *table) { tb.appeared(ether(2, "tap0")) },
			want: []string{"attach tap0#2 to br0 as tap* later", "leave br0 tap0#2", "pf", "apply"},
		},
		{
			name: "renamed from a name that a rule has and back at once",
			before: func(tb *table) {
				tb.setFile(rich)
				attached(tb, ether(2, "tap5"))
				tb.synchronise([]device{ether(2, "tap5")}, []bridge.Port{{Bridge: "br0", Name: "tap5", Index: 2, Type: bridge.TypeNetdev}})
				tb.todo()
			},
			then: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.appeared(ether(2, "tap5"))
			},
			want: []string{"pf", "apply"},
		},
		{
			name:   "a mirror's device is renamed",
			before: func(tb *table) { tb.setFile(rich); attached(tb, ether(2, "mon0")) },
			then:   func(tb *table) { tb.appeared(ether(2, "x")) },
			want:   []string{"pf", "apply"},
		},
		{
			name:   "another group",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.appeared(with(ether(2, "tap0"), func(d *device) { d.group = 7 }))
			},
			want: []string{"pf"},
		},
		{
			name: "devices that can't be ports",
			then: func(tb *table) {
				tb.appeared(with(ether(2, "tap2"), func(d *device) { d.loopback = true }))
				tb.appeared(with(ether(3, "tap3"), func(d *device) { d.ethernet = false }))
				tb.appeared(with(ether(4, "tap4"), func(d *device) { d.kind = "bridge" }))
				tb.appeared(with(ether(5, "tap5"), func(d *device) { d.switchEnd = true }))
				tb.appeared(with(ether(6, "tap6"), func(d *device) { d.kind, d.peer = "veth", 5 }))
				tb.appeared(ether(16, "tap\x1b[31m"))
				tb.appeared(with(ether(7, "tap7"), func(d *device) { d.master = 4 }))
			},
			want: []string{
				"DEBUG br0 tap\x1b[31m: no port can have its name",
				"DEBUG br0 tap2: it is the loopback interface",
				"DEBUG br0 tap3: it has no Ethernet frames",
				"DEBUG br0 tap4: it is a Linux bridge",
				"DEBUG br0 tap5: it belongs to a bridge",
				"DEBUG br0 tap6: it belongs to a bridge",
				"DEBUG br0 tap7: it belongs to another device",
			},
		},
		{
			name:   "that was said",
			before: func(tb *table) { attached(tb, with(ether(7, "tap7"), func(d *device) { d.master = 4 })) },
			then:   func(tb *table) { tb.appeared(with(ether(7, "tap7"), func(d *device) { d.master, d.mtu = 4, 1400 })) },
		},
		{
			name:   "released from its master",
			before: func(tb *table) { attached(tb, with(ether(7, "tap7"), func(d *device) { d.master = 4 })) },
			then:   func(tb *table) { tb.appeared(ether(7, "tap7")) },
			want:   []string{"attach tap7#7 to br0 as tap*"},
		},
		{
			name:   "a port that gets a master", // other events report it
			before: func(tb *table) { attached(tb, ether(7, "tap7")) },
			then:   func(tb *table) { tb.appeared(with(ether(7, "tap7"), func(d *device) { d.master = 4 })) },
		},
		{
			name: "refused, and the same as before",
			before: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.refuse(tb.todo().attach[0], "no")
			},
			then: func(tb *table) { tb.appeared(ether(2, "tap0")) },
		},
		{
			name: "refused, and changed",
			before: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.refuse(tb.todo().attach[0], "no")
			},
			then: func(tb *table) { tb.appeared(with(ether(2, "tap0"), func(d *device) { d.mtu = 1400 })) },
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "refused for a device above it, which goes",
			before: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.appeared(with(ether(3, "mv0"), func(d *device) { d.below = 2 }))
				tb.refuse(tb.todo().attach[0], "mv0 is above it")
				if !tb.stacked(tb.devices[2].device) || !tb.stacked(tb.devices[3].device) {
					t.Error("neither is in a stack of devices")
				}
			},
			then: func(tb *table) {
				tb.vanished(3)
				if tb.stacked(tb.devices[2].device) {
					t.Error("it is in a stack of devices")
				}
			},
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "refused, and another file",
			before: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.refuse(tb.todo().attach[0], "no")
			},
			then: func(tb *table) { tb.setFile(file(bridgeOf("br9", "tap*"))) },
			want: []string{"attach tap0#2 to br9 as tap*"},
		},
		{
			name:   "the same file again",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then:   func(tb *table) { tb.setFile(file(bridgeOf("br0", "eth1", "tap*"))) },
		},
		{
			name: "begins with ports that are there",
			then: func(tb *table) {
				tb.synchronise([]device{ether(2, "tap0"), ether(3, "tap1"), ether(4, "tap2")}, []bridge.Port{
					{Bridge: "br0", Name: "tap0", Type: bridge.TypeNetdev, Index: 2, State: "forwarding"},
					{Bridge: "br1", Name: "tap2", Type: bridge.TypeNetdev, Index: 4, State: "disabled"},
					{Bridge: "br0", Name: "tap8", Type: bridge.TypeNetdev, Index: 8, State: "gone"},
					{Bridge: "br0", Name: "eth1", Type: bridge.TypeNetdev, Index: 9, State: "gone"},
					{Bridge: "br0", Name: "by-hand", Type: bridge.TypeNetdev, Index: 10, State: "gone"},
				})
			},
			want: []string{
				"attach tap1#3 to br0 as tap*", "raise tap0#2 in br0", "gone br0 [8]", "compare br0 later", "compare br1 later",
				"DEBUG br0 tap2: it is a port of bridge br1",
			},
		},
		{
			name:   "a tap that is set down where it was set up",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.appeared(with(ether(2, "tap0"), func(d *device) { d.up = true }))
				tb.notes = append(tb.notes, tb.todo().notes...)
				tb.appeared(ether(2, "tap0"))
			},
		},
		{
			name: "a tap that is set down where it was seen up, and the file is read again",
			before: func(tb *table) {
				attached(tb, with(ether(2, "tap0"), func(d *device) { d.up = true }))
			},
			then: func(tb *table) {
				tb.appeared(ether(2, "tap0"))
				tb.setFile(standard)
				tb.synchronise([]device{ether(2, "tap0")}, []bridge.Port{
					{Bridge: "br0", Name: "tap0", Type: bridge.TypeNetdev, Index: 2, State: "disabled"},
				})
			},
			want: []string{"compare br0 later"},
		},
		{
			name: "ports of any kind that are down, by name or pattern, and one that is up",
			then: func(tb *table) {
				list := []device{
					ether(2, "eth1"),
					with(ether(3, "tap3"), func(d *device) { d.kind = "veth" }),
					with(ether(4, "tap4"), func(d *device) { d.up = true }),
				}
				tb.synchronise(list, []bridge.Port{
					{Bridge: "br0", Name: "eth1", Type: bridge.TypeNetdev, Index: 2, State: "disabled"},
					{Bridge: "br0", Name: "tap3", Type: bridge.TypeNetdev, Index: 3, State: "disabled"},
					{Bridge: "br0", Name: "tap4", Type: bridge.TypeNetdev, Index: 4, State: "forwarding"},
				})
			},
			want: []string{"compare br0 later", "raise eth1#2 in br0", "raise tap3#3 in br0"},
		},
		{
			name: "host ports",
			then: func(tb *table) {
				tb.synchronise([]device{ether(2, "tap0"), ether(3, "bsc01234567")}, []bridge.Port{
					{Bridge: "br1", Name: "tap0", Type: bridge.TypeHost, Index: 2, State: "forwarding"},
				})
			},
			want: []string{"DEBUG br0 tap0: it belongs to a bridge"},
		},
		{
			name:   "a person took it out",
			before: func(tb *table) { attached(tb, ether(2, "tap0"), ether(3, "tap1")) },
			then: func(tb *table) {
				tb.synchronise([]device{ether(2, "tap0"), ether(3, "tap1")}, []bridge.Port{
					{Bridge: "br0", Name: "tap1", Type: bridge.TypeNetdev, Index: 3, State: "forwarding"},
				})
			},
			want: []string{"compare br0 later"},
		},
		{
			name: "a change of the bridge waits",
			then: func(tb *table) { waits(tb, "br0") },
			want: []string{"compare br0 later"},
		},
		{
			name:   "a change of the bridge waits, and a device comes",
			before: func(tb *table) { waits(tb, "br0"); tb.todo() },
			then:   func(tb *table) { tb.appeared(ether(7, "tap7")) },
			want:   []string{"attach tap7#7 to br0 as tap*"},
		},
		{
			name:   "a change of the bridge has waited",
			before: func(tb *table) { waits(tb, "br0"); tb.todo() },
			then:   func(tb *table) { tb.setFile(standard) },
			want:   []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "a change of another bridge waits",
			then: func(tb *table) { waits(tb, "br1") },
			want: []string{"attach tap0#2 to br0 as tap*", "compare br0 later", "raise eth1#3 in br0"},
		},
		{
			name: "a bridge can't be read",
			before: func(tb *table) {
				attached(tb, ether(2, "tap0"))
				tb.synchronise([]device{ether(2, "tap0"), ether(3, "tap1"), ether(4, "tap2")}, []bridge.Port{
					{Bridge: "br0", Name: "tap0", Type: bridge.TypeNetdev, Index: 2, State: "forwarding"},
					{Bridge: "br1", Name: "tap1", Type: bridge.TypeHost, Index: 3, State: "forwarding"},
					{Bridge: "br1", Name: "tap2", Type: bridge.TypeNetdev, Index: 4, State: "forwarding"},
				})
				tb.todo()
			},
			then: func(tb *table) {
				tb.synchronise([]device{ether(2, "tap0"), ether(3, "tap1"), ether(4, "tap2")}, nil, "br0", "br1")
			},
		},
		{
			name:   "a person took it out, and the bridge can't be read before the file is",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.setFile(standard)
				tb.synchronise([]device{ether(2, "tap0")}, nil, "br0")
				tb.synchronise([]device{ether(2, "tap0")}, nil)
			},
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "a person took it out, and the file is read again",
			before: func(tb *table) {
				attached(tb, ether(2, "tap0"))
				tb.synchronise([]device{ether(2, "tap0")}, nil)
				tb.todo()
			},
			then: func(tb *table) { tb.setFile(standard) },
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name:   "a person took it out, and nobody noticed before the file is read again",
			before: func(tb *table) { attached(tb, ether(2, "tap0")) },
			then: func(tb *table) {
				tb.setFile(standard)
				tb.synchronise([]device{ether(2, "tap0")}, nil)
			},
			want: []string{"attach tap0#2 to br0 as tap*"},
		},
		{
			name: "a person took it out, and it gets the name of another place",
			before: func(tb *table) {
				attached(tb, ether(2, "tap0"))
				tb.synchronise([]device{ether(2, "tap0")}, nil)
				tb.todo()
			},
			then: func(tb *table) { tb.appeared(ether(2, "eth1")) },
			want: []string{"attach eth1#2 to br0 as eth1", "pf"},
		},
		{
			name:   "events were lost: one has gone, one has the index of another",
			before: func(tb *table) { attached(tb, ether(2, "tap0"), ether(3, "tap1")) },
			then: func(tb *table) {
				tb.synchronise([]device{ether(3, "tap3")}, []bridge.Port{
					{Bridge: "br0", Name: "tap0", Type: bridge.TypeNetdev, Index: 2, State: "gone"},
					{Bridge: "br0", Name: "tap1", Type: bridge.TypeNetdev, Index: 3, State: "gone"},
				})
			},
			want: []string{"attach tap3#3 to br0 as tap*", "gone br0 [2 3]", "pf"},
		},
		{
			name:   "the other end goes to another namespace",
			before: func(tb *table) { attached(tb, with(veth, func(d *device) { d.peerNetns = -1 })) },
			then:   func(tb *table) { tb.appeared(veth) },
			want:   []string{"compare br1 later"},
		},
		{
			name:   "the other end comes home",
			before: func(tb *table) { attached(tb, veth) },
			then:   func(tb *table) { tb.appeared(with(veth, func(d *device) { d.peerNetns = -1 })) },
			want:   []string{"compare br1 now"},
		},
		{
			name:   "the other end comes up",
			before: func(tb *table) { attached(tb, veth) },
			then:   func(tb *table) { tb.appeared(with(veth, func(d *device) { d.running = true })) },
			want:   []string{"compare br1 later"},
		},
		{
			name:   "nothing of a veth that matters",
			before: func(tb *table) { attached(tb, veth) },
			then:   func(tb *table) { tb.appeared(with(veth, func(d *device) { d.mtu = 9000 })) },
		},
		{
			name:   "a mirror's device comes",
			before: func(tb *table) { tb.setFile(rich); tb.todo() },
			then:   func(tb *table) { tb.appeared(ether(2, "mon0")) },
			want:   []string{"apply"},
		},
		{
			name:   "a mirror's device comes while the file is applied again",
			before: func(tb *table) { tb.setFile(rich); tb.todo() },
			then: func(tb *table) {
				tb.appeared(ether(2, "mon0"))
				tb.setFile(rich)
				tb.synchronise([]device{ether(2, "mon0")}, nil)
			},
			want: []string{"apply"},
		},
		{
			name:   "a mirror's device came before the file said so",
			before: func(tb *table) { tb.appeared(ether(2, "mon0")); tb.todo() },
			then:   func(tb *table) { tb.setFile(rich) },
			want:   []string{"apply"},
		},
		{
			name:   "a file is applied again",
			before: func(tb *table) { tb.setFile(rich); tb.todo() },
			then:   func(tb *table) { tb.setFile(rich) },
		},
		{
			name: "a device comes that has rules, by which alone it is attached",
			before: func(tb *table) {
				tb.setFile(rich)
				tb.todo()
				attached(tb, ether(3, "tap6"))
			},
			then: func(tb *table) { tb.appeared(ether(2, "tap5")) },
			want: []string{"apply"},
		},
		{
			name: "the files were applied for it, and it is no port",
			before: func(tb *table) {
				tb.setFile(rich)
				tb.appeared(ether(2, "tap5"))
				tb.todo()
			},
			then: func(tb *table) {
				tb.setFile(rich)
				tb.synchronise([]device{ether(2, "tap5")}, nil)
			},
		},
		{
			name: "that changes",
			before: func(tb *table) {
				tb.setFile(rich)
				tb.appeared(ether(2, "tap5"))
				tb.todo()
			},
			then: func(tb *table) {
				d := ether(2, "tap5")
				d.mtu = 9000
				tb.appeared(d)
			},
			want: []string{"apply"},
		},
		{
			name: "a device that has rules gets another name while the files are applied for it",
			before: func(tb *table) {
				tb.setFile(rich)
				tb.appeared(ether(2, "tap5"))
				tb.todo()
			},
			then: func(tb *table) { tb.appeared(ether(2, "tap6")) },
			want: []string{"attach tap6#2 to br0 as tap*", "pf", "apply"},
		},
		{
			name: "a port had a name with rules between two looks",
			before: func(tb *table) {
				tb.setFile(rich)
				tb.todo()
				attached(tb, ether(2, "tap6"))
			},
			then: func(tb *table) {
				tb.appeared(ether(2, "tap5"))
				tb.appeared(ether(2, "tap6"))
			},
			want: []string{"pf", "apply"},
		},
		{
			name: "addresses",
			then: func(tb *table) { tb.addressed() },
			want: []string{"pf"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tb := newTable(standard)
			tb.heeded = map[string]bool{"br0": true, "br1": true}
			if tt.before != nil {
				tt.before(tb)
			}
			tt.then(tb)
			got := tb.todo().list()
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("to be done (-want +got):\n%s", diff)
			}
			if again := tb.todo().list(); again != nil {
				t.Errorf("asked again, there is still to be done: %q", again)
			}
		})
	}
}

// A late event may report that a device has gone although its successor of the
// same index has become a port already, and has another name since.
func TestFormerly(t *testing.T) {
	table := newTable(file(bridgeOf("br0", "p*"), bridgeOf("br1", "other*")))
	table.appeared(ether(7, "p3"))
	w := table.todo()
	table.attached(w.attach[0])
	table.vanished(7)
	table.appeared(ether(7, "other"))
	(&Watcher{t: table}).settle(chores{}) // it keeps the place, since there is a device of that index
	w = table.todo()
	if got := w.list(); !slices.Contains(got, "attach other#7 to br1 as other*") {
		t.Fatalf("there is to do: %q", got)
	}
	if at := table.formerly(7); at == nil || at.bridge != "br0" {
		t.Fatalf("it was a port by %v", at)
	}
	table.found(7)
	w = table.todo()
	if got := w.list(); !slices.Equal(got, []string{"attach other#7 to br1 as other* later", "leave br0 other#7"}) {
		t.Errorf("there is to do, after it was found in br0: %q", got)
	}
}

// Devices that have gone leave nothing behind.
func TestForgotten(t *testing.T) {
	table := newTable(file(bridgeOf("br0", "p*", "one")))
	for index, name := range []string{"p0", "p1", "one"} {
		table.appeared(ether(index, name))
	}
	table.todo().do(table)
	table.vanished(0)
	table.vanished(2)
	(&Watcher{t: table}).settle(chores{})
	if len(table.joined) != 1 || table.formerly(1) == nil {
		t.Errorf("one device is left, and %v is known", table.joined)
	}
}
