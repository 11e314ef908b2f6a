// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

// TestMonitor waits for events of every kind, with the real program.
func TestMonitor(t *testing.T) {
	t.Parallel()
	l, ends := setup(t, "tcx", 3, "--ageing", "10m", "--fdb-max", "4")
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("bridge", "add", "br1")
	l.Bascule("fdb", "add", "br0", D.String(), a.Port)
	m := l.NewMonitor("br0", c)
	saw := func(want netlab.Event) {
		t.Helper()
		m.Wait(want.Event, func(e netlab.Event) bool {
			return e.Event == want.Event && e.Master == "br0" && e.Ifname == want.Ifname && e.MAC == want.MAC &&
				e.VLAN == want.VLAN && e.From == want.From && (want.Reason == "" || e.Reason == want.Reason)
		})
	}
	l.Send(a, l.Frame(netlab.Broadcast, A, 100).Tagged(10, 0))
	saw(netlab.Event{Event: "learned", Ifname: a.Port, MAC: A.String(), VLAN: 10})
	learn(l, a, A)
	saw(netlab.Event{Event: "learned", Ifname: a.Port, MAC: A.String()})
	learn(l, b, A)
	saw(netlab.Event{Event: "moved", Ifname: b.Port, From: a.Port, MAC: A.String()})
	learn(l, b, D)
	saw(netlab.Event{Event: "refused", Ifname: b.Port, From: a.Port, MAC: D.String()})
	learn(l, c, stations(100, 5)...)
	saw(netlab.Event{Event: "refused", Ifname: c.Port})
	l.Reach(a, l.Frames(3, netlab.Broadcast, netlab.Group(1)))
	saw(netlab.Event{Event: "drops", Ifname: a.Port, Reason: "bad-source"})
	l.Bascule("bridge", "set", "br0", "--ageing", "2s")
	saw(netlab.Event{Event: "aged", Ifname: a.Port, MAC: A.String(), VLAN: 10})
	l.Bascule("port", "del", "br0", b.Port)
	saw(netlab.Event{Event: "port-removed", Ifname: b.Port})
	l.Bascule("port", "add", "br0", b.Port)
	saw(netlab.Event{Event: "port-added", Ifname: b.Port})
	// Only this bridge's.
	l.Bascule("port", "del", "br0", b.Port)
	l.Bascule("port", "add", "br1", b.Port)
	learn(l, b, B)
	l.Wait("room for an address", func() bool { return l.Bridge("br0").FDBCount < 4 })
	learn(l, a, C)
	saw(netlab.Event{Event: "learned", Ifname: a.Port, MAC: C.String()})
	for _, e := range m.Events() {
		if e.Master != "br0" || e.MAC == B.String() {
			t.Errorf("shown by a monitor of br0: %+v", e)
		}
	}
	m.Stop()
}

// staticEvents: static entries that are added and deleted are reported, and so are their
// consequences, each once.
func staticEvents(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	m := l.NewMonitor("br0", ends[2])
	count := func(want netlab.Event) (n int) {
		for _, e := range m.Events() {
			if e == want {
				n++
			}
		}
		return n
	}
	once := func(want netlab.Event) {
		t.Helper()
		want.Master = "br0"
		m.Wait(fmt.Sprint(want), func(e netlab.Event) bool { want.Count = e.Count; return e == want })
		if n := count(want); n != 1 {
			t.Errorf("%d times %+v, should be once", n, want)
		}
	}
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	once(netlab.Event{Event: "added", Ifname: a.Port, MAC: A.String()})
	l.Bascule("fdb", "add", "br0", B.String(), b.Port, "--sticky", "--vlan", "7")
	once(netlab.Event{Event: "added", Ifname: b.Port, MAC: B.String(), VLAN: 7})
	l.Bascule("fdb", "add", "br0", A.String(), a.Port) // no change
	learn(l, b, C)
	l.Bascule("fdb", "add", "br0", C.String(), a.Port) // replaces a learned one
	once(netlab.Event{Event: "added", Ifname: a.Port, From: b.Port, MAC: C.String()})

	// A host port's own address; a larger table, into which entries are copied.
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	nl, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	mac := netlab.MAC(nl.Attrs().HardwareAddr).String()
	m.Wait("the host's address", func(e netlab.Event) bool { return e.Event == "added" && e.MAC == mac && e.Ifname == "host0" })
	l.Bascule("bridge", "set", "br0", "--fdb-max", "100000")
	l.Bascule("bridge", "set", "br0", "--ageing", "100s")

	l.Bascule("fdb", "del", "br0", A.String())
	once(netlab.Event{Event: "deleted", Ifname: a.Port, MAC: A.String()})
	l.Bascule("fdb", "flush", "br0", "--static")
	once(netlab.Event{Event: "deleted", Ifname: b.Port, MAC: B.String(), VLAN: 7})
	once(netlab.Event{Event: "deleted", Ifname: a.Port, MAC: C.String()})
	if slices.ContainsFunc(m.Events(), func(e netlab.Event) bool { return e.Event == "deleted" && e.MAC == mac }) {
		t.Error("the host's own address was flushed")
	}
	if n := len(slices.DeleteFunc(m.Events(), func(e netlab.Event) bool { return e.Event != "added" })); n != 4 {
		t.Errorf("%d entries are told to be added, should be 4: %+v", n, m.Events())
	}
	m.Stop()
}

// A port that is the member of another device for a moment is reported, each time.
func TestMonitorTaken(t *testing.T) {
	t.Parallel()
	l, ends := setup(t, "tcx", 2)
	here := l.Switch.Netlink()
	must(t, here.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lxbr0"}}))
	l.Keep("lxbr0")
	m := l.NewMonitor("br0", ends[1])
	port, err := here.LinkByName(ends[0].Port)
	must(t, err)
	master, err := here.LinkByName("lxbr0")
	must(t, err)
	var want []string
	for range 5 {
		must(t, here.LinkSetMaster(port, master))
		must(t, here.LinkSetNoMaster(port))
		want = append(want, "port-taken p1 Linux bridge lxbr0", "port-released p1 ")
	}
	told := func() (got []string) {
		for _, e := range m.Events() {
			if e.Event == "port-taken" || e.Event == "port-released" {
				got = append(got, fmt.Sprintf("%s %s %s", e.Event, e.Ifname, e.Reason))
			}
		}
		return got
	}
	l.Wait("all to be told", func() bool { return len(told()) >= len(want) })
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("told: %q, should be %q", got, want)
	}
	m.Stop()
}
