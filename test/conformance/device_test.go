// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/test/netlab"
)

var deviceCases = []conformance{
	{name: "mtu_mismatch", hooks: tcx, run: mtuMismatch},
	{name: "port_vanishes", hooks: tcx, run: portVanishes},
	{name: "port_renamed", hooks: tcx, run: portRenamed},
	{name: "port_moved_to_netns", hooks: tcx, run: portMovedToNetns},
	{name: "port_gives_back", hooks: both, run: givesBack},
	{name: "host_port", hooks: both, run: hostPort},
	{name: "host_port_by_xdp", hooks: both, run: hostPortByXDP},
	{name: "host_port_moved", hooks: tcx, run: hostPortMoved},
	{name: "host_port_address", hooks: tcx, run: hostPortAddress},
	{name: "host_port_addresses", hooks: tcx, run: hostPortAddresses},
	{name: "router_from_nothing", hooks: tcx, run: routerFromNothing},
	{name: "description", hooks: tcx, run: description},
	{name: "add_in_vlans", hooks: tcx, run: addInVLANs},
	{name: "file_sets_up", hooks: both, run: fileSetsUp},
	{name: "host_interfaces_come_back", hooks: tcx, run: hostInterfacesComeBack},
	{name: "host_mac_changes", hooks: both, run: hostMACChanges},
	{name: "host_port_elsewhere", hooks: tcx, run: hostPortElsewhere},
	{name: "device_with_addresses", hooks: tcx, run: deviceWithAddresses},
	{name: "address_behind_an_end", hooks: both, run: addressBehindAnEnd},
	{name: "tap", hooks: tcx, run: tap},
	{name: "tap_by_xdp", hooks: both, run: tapByXDP},
	{name: "gso", hooks: tcx, run: gso},
	{name: "guests", hooks: []string{"xdp"}, run: realGuests},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mtuMismatch(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	a, b, c := ends[0], ends[1], ends[2]
	b.SetMTU(1400)
	l.AddBridge("br0", hook, []*netlab.End{a})
	r, err := l.Run("port", "add", "br0", b.Port)
	must(t, err)
	if r.Exit != 0 || r.Stdout != "" || strings.Count(r.Stderr, "\n") != 1 ||
		!strings.Contains(r.Stderr, "1400") || !strings.Contains(r.Stderr, "1500") || !strings.Contains(r.Stderr, b.Port) {
		t.Errorf("%v: should succeed and warn in one line of MTU 1400 against 1500 on %s", r, b.Port)
	}
	r, err = l.Run("port", "add", "br0", c.Port)
	must(t, err)
	if r.Exit != 0 {
		t.Errorf("%v: should succeed", r)
	}
	learn(l, a, A)
	learn(l, b, B)

	const header = 14
	fits, large := l.Frame(B, A, 1400+header), l.Frame(B, A, 1401+header)
	l.Reach(a, []netlab.Frame{fits}, b)
	l.Reach(a, []netlab.Frame{large})
	wantDrops(t, l, a, "mtu", 1)
	l.Reach(a, []netlab.Frame{l.Frame(B, A, 1500+header)})
	wantDrops(t, l, a, "mtu", 2)
	// A flood leaves by the ports whose MTU permits it.
	l.Reach(a, []netlab.Frame{l.Frame(netlab.Broadcast, A, 1500+header)}, c)
	wantDrops(t, l, a, "mtu", 3)
	l.Reach(c, []netlab.Frame{l.Frame(netlab.Station(100), C, 1400+header)}, a, b)
	l.Reach(b, []netlab.Frame{l.Frame(A, B, 1400+header)}, a)
	// A tag does not count towards the MTU.
	l.Reach(a, []netlab.Frame{l.Frame(netlab.Broadcast, A, 1400+header).Tagged(10, 0)}, b, c)

	// A changed MTU takes effect at once, without a command.
	b.SetMTU(1500)
	l.Reach(a, []netlab.Frame{l.Frame(B, A, 1500+header)}, b)
	b.SetMTU(1000)
	l.Wait("a smaller MTU to count", func() bool {
		return len(l.Deliver(a, l.Frame(B, A, 1400+header))[b]) == 0
	})

	b.SetMTU(1400)
	dropped := l.Port("br0", a.Port).Drops["mtu"]

	// A packet whose segments fit is not too large.
	one, two := a.Host(), b.Host()
	must(t, one.Ping(two.IPv4))
	largest := b.Largest()
	must(t, netlab.Transfer(one, two, two.IPv4, 8<<20))
	if n := largest(); n <= 1400+header {
		t.Errorf("the largest packet that arrived has %d bytes: the stream was cut up", n)
	}
	must(t, netlab.Transfer(two, one, one.IPv4, 8<<20))
	wantDrops(t, l, a, "mtu", dropped)
}

func portVanishes(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	learn(l, a, A)
	learn(l, b, B)
	learn(l, c, C)
	l.Bascule("fdb", "add", "br0", D.String(), c.Port)
	index := c.PortIndex

	l.Reach(a, l.Frames(10, C, A), c)
	l.Reach(a, l.Frames(10, D, A), c)

	// under the traffic of other ports
	load := startLoad(l, others(ends, c), a, b)
	l.Wait("traffic to flow", load.Flowing(2000))
	c.Unplug()
	l.Wait("traffic to flow on", load.Flowing(2000))
	must(t, load.Stop())

	p := l.Port("br0", c.Port)
	if p.State != "gone" {
		t.Errorf("the port of a deleted device is shown as %q", p.State)
	}
	l.Reach(a, l.Frames(10, C, A), b, d)
	l.Reach(a, l.Frames(10, D, A), b, d)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, d)
	for _, e := range l.FDB("br0") {
		if e.Ifname == c.Port {
			t.Errorf("an entry of the deleted device is shown: %v", e)
		}
	}

	// A new device has its index, and even its name.
	c.PlugAgain(index)
	if c.PortIndex != index {
		t.Fatalf("the new device has index %d, not %d", c.PortIndex, index)
	}
	foreign := func() {
		t.Helper()
		l.Reach(a, l.Frames(10, C, A), b, d)
		l.Reach(a, l.Frames(10, D, A), b, d)
		l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, d)
		l.Reach(a, l.Frames(10, B, A), b)
		l.Reach(c, l.Frames(10, A, C))
		l.Reach(c, l.Frames(10, netlab.Broadcast, C))
		if err := c.Unchanged(); err != nil {
			t.Errorf("the new device is no port: %v", err)
		}
	}
	foreign()
	if p := l.Port("br0", c.Port); p.State != "gone" {
		t.Errorf("the port of a deleted device is shown as %q, since another has its index", p.State)
	}
	// Nor by a change of settings or of programs.
	l.Bascule("port", "set", "br0", a.Port, "--hairpin")
	l.Bascule("port", "set", "br0", a.Port, "--hairpin=off")
	l.Bascule("bridge", "set", "br0")
	foreign()

	// The dead port is deleted by its name, and the new device becomes an ordinary port.
	l.Bascule("port", "del", "br0", c.Port)
	if ports := l.Bridge("br0").Ports; slices.Contains(ports, c.Port) {
		t.Errorf("ports after one is removed: %v", ports)
	}
	foreign()
	l.AddPort("br0", hook, c)
	works := func() {
		t.Helper()
		l.Bascule("fdb", "flush", "br0")
		learn(l, a, A)
		l.Reach(a, l.Frames(10, C, A), b, c, d)
		l.Reach(c, l.Frames(10, A, C), a)
		l.Reach(a, l.Frames(10, C, A), c)
	}
	works()

	// A dead port and a live one with the same index, many times.
	dead := []string{c.Port}
	for i := range 12 {
		c.Unplug()
		c.Port = fmt.Sprintf("again%d", i)
		c.PlugAgain(index)
		l.AddPort("br0", hook, c)
		works()
		dead = append(dead, c.Port)
	}
	if p := l.Port("br0", c.Port); p.State != "forwarding" {
		t.Errorf("the live port of an index that dead ones had is shown as %q", p.State)
	}
	for _, name := range dead[:len(dead)-1] {
		l.Bascule("port", "del", "br0", name)
	}
	works()
	if ports := l.Bridge("br0").Ports; !slices.Equal(ports, []string{a.Port, b.Port, d.Port, c.Port}) {
		t.Errorf("ports after the dead ones are removed: %v", ports)
	}
}

func portRenamed(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	l.Bascule("fdb", "add", "br0", D.String(), b.Port)
	rename := func(e *netlab.End, name string) {
		t.Helper()
		nl, err := l.Switch.Netlink().LinkByName(e.Port)
		must(t, err)
		must(t, l.Switch.Netlink().LinkSetName(nl, name))
		l.Keep(name)
		e.Port = name
	}
	old := b.Port
	load := startLoad(l, others(ends, c), a, b)
	l.Wait("traffic to flow", load.Flowing(1000))
	rename(b, "uplink0")
	l.Wait("traffic to flow on", load.Flowing(1000))
	must(t, load.Stop())

	if p := l.Port("br0", "uplink0"); p.State != "forwarding" || p.Ifindex != b.PortIndex {
		t.Errorf("the renamed port is shown as %+v", p)
	}
	if ports := l.Bridge("br0").Ports; !slices.Equal(ports, []string{a.Port, "uplink0", c.Port}) {
		t.Errorf("ports after a rename: %v", ports)
	}
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, b), static(D, 0, b))
	l.Refused([]string{old}, "port", "show", "br0", old)
	l.Refused([]string{old}, "port", "set", "br0", old, "--hairpin")
	l.Refused([]string{old}, "port", "del", "br0", old)

	// Another device that takes the old name is not the port.
	rename(c, old)
	if ports := l.Bridge("br0").Ports; !slices.Equal(ports, []string{a.Port, "uplink0", old}) {
		t.Errorf("ports after a second rename: %v", ports)
	}
	l.Bascule("port", "set", "br0", "uplink0", "--learn=off")
	if l.Port("br0", "uplink0").Learning || !l.Port("br0", old).Learning {
		t.Error("a setting went to the wrong port")
	}
	l.Reach(a, l.Frames(10, B, A), b)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c)
	l.Bascule("port", "del", "br0", old)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	l.Bascule("port", "del", "br0", "uplink0")
	for _, e := range []*netlab.End{b, c} {
		if err := e.Unchanged(); err != nil {
			t.Error(err)
		}
	}
}

func portMovedToNetns(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	learn(l, a, A)
	learn(l, b, B)
	learn(l, c, C)
	l.Bascule("fdb", "add", "br0", D.String(), c.Port)

	elsewhere := l.NewNamespace()
	load := startLoad(l, others(ends, c), a, b)
	l.Wait("traffic to flow", load.Flowing(1000))
	handle, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer handle.Close()
	nl, err := l.Switch.Netlink().LinkByName(c.Port)
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetNsFd(nl, int(handle)))
	c.Leave()
	l.Wait("traffic to flow on", load.Flowing(1000))
	must(t, load.Stop())

	moved, err := elsewhere.Netlink().LinkByName(c.Port)
	must(t, err)
	must(t, elsewhere.Netlink().LinkSetUp(moved))
	if p := l.Port("br0", c.Port); p.State != "gone" {
		t.Errorf("the port of a device in another namespace is shown as %q", p.State)
	}
	c.Received() // from before
	nothingArrives := func() {
		t.Helper()
		for _, dst := range []netlab.MAC{C, D, netlab.Broadcast} {
			l.Reach(a, l.Frames(10, dst, A), b, d)
		}
		if got := c.Received(); len(got) > 0 {
			t.Errorf("%d frames reached the device in another namespace, first %v", len(got), got[0])
		}
		// And its frames go nowhere.
		for _, dst := range []netlab.MAC{A, netlab.Broadcast} {
			for e, frames := range l.Deliver(c, l.Frames(10, dst, C)...) {
				if len(frames) > 0 {
					t.Errorf("%d frames from another namespace reached %s", len(frames), e.Port)
				}
			}
		}
	}
	nothingArrives()
	l.Bascule("bridge", "set", "br0")
	nothingArrives()

	l.Bascule("port", "del", "br0", c.Port)
	must(t, elsewhere.Do(func() error { return netlab.NoPrograms(moved.Attrs().Index) }))
	nothingArrives()
	if ports := l.Bridge("br0").Ports; !slices.Equal(ports, []string{a.Port, b.Port, d.Port}) {
		t.Errorf("ports after one is removed: %v", ports)
	}

	// A bridge of the other namespace can have it now.
	l.Bascule("-n", elsewhere.Name, "bridge", "add", "br0")
	l.Bascule("-n", elsewhere.Name, "port", "add", "br0", c.Port)
	l.Bascule("-n", elsewhere.Name, "bridge", "del", "br0")
	must(t, elsewhere.Do(func() error { return netlab.NoPrograms(moved.Attrs().Index) }))
}

func hostPort(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	nl, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	mac := netlab.MAC(nl.Attrs().HardwareAddr)
	p := l.Port("br0", "host0")
	if p.Type != "host" || p.Ifindex != nl.Attrs().Index {
		t.Errorf("the host port is shown as %+v", p)
	}
	wantFDB(t, l, "br0", fmt.Sprintf("%s vlan 0 host0 static", mac))

	// Frames to the host reach no other port. The host receives all floods.
	l.SetUp(nl)
	port := l.Listen(l.Switch, "host0")
	to := func(dst netlab.MAC, frames int, also ...*netlab.End) {
		t.Helper()
		port.Received()
		sent := l.Frames(10, dst, B)
		l.Reach(b, sent, also...)
		if got := len(port.Received()); got != frames {
			t.Errorf("%d frames to %v reached the host, should be %d", got, dst, frames)
		}
	}
	to(mac, 10)
	to(netlab.Broadcast, 10, others(ends, b)...)
	to(netlab.Station(100), 10, others(ends, b)...)
	learn(l, a, a.MAC)
	to(a.MAC, 0, a)

	host, one := l.NewHost(l.Switch, "host0", 100), a.Host()
	must(t, host.Ping(one.IPv4))
	must(t, one.Ping(host.IPv4))
	must(t, one.Ping(host.IPv6))
	must(t, netlab.Transfer(host, one, one.IPv4, 4<<20))
	must(t, netlab.Transfer(one, host, host.IPv4, 4<<20))
	must(t, netlab.Transfer(one, host, host.IPv6, 4<<20))

	// Its devices are deleted with it.
	l.Bascule("port", "del", "br0", "host0")
	wantNoLinks(t, l)
	if e := find(l.FDB("br0"), mac, 0); e != nil {
		t.Errorf("the host port is deleted, its address is still known: %v", e)
	}
	// Again, with the same name and with settings.
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--isolated")
	if !l.Port("br0", "host0").Isolated {
		t.Error("a setting of a new host port is not shown")
	}
	// Deleted behind the switch's back, and then by its name.
	nl, err = l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	must(t, l.Switch.Netlink().LinkDel(nl))
	if p := l.Port("br0", "host0"); p.State != "gone" {
		t.Errorf("a host port without its device is shown as %q", p.State)
	}
	l.Bascule("port", "del", "br0", "host0")
	wantNoLinks(t, l)
}

// wantNoLinks fails if there are devices that the lab did not make.
func wantNoLinks(t *testing.T, l *netlab.Lab) {
	t.Helper()
	if names, err := l.Strangers(); err != nil || len(names) > 0 {
		t.Errorf("devices are left: %v, %v", names, err)
	}
}

func tap(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	dev := l.NewTap("tap0", false)
	l.Bascule("port", "add", "br0", "tap0")
	if p := l.Port("br0", "tap0"); p.Type != "netdev" || p.Hook != "tcx" {
		t.Errorf("a tap is shown as %+v", p)
	}
	T := netlab.Station(50)

	// From the tap's program to the others.
	frames := l.Frames(20, netlab.Broadcast, T)
	got := l.Deliver(dev, frames...)
	for _, e := range ends {
		if !slices.Equal(got[e], frames) {
			t.Errorf("%d of %d frames from the tap reached %s as they were", len(got[e]), len(frames), e.Port)
		}
	}
	// And from the others to it.
	from := func(e *netlab.End, n int, f []netlab.Frame, also ...*netlab.End) {
		t.Helper()
		dev.Received()
		l.Reach(e, f, also...)
		if got := dev.Received(); len(got) != n || n > 0 && !slices.Equal(got, f) {
			t.Errorf("%d frames reached the tap, should be %d: %v", len(got), n, f[0])
		}
	}
	from(a, 20, l.Frames(20, T, A))
	from(b, 20, l.Frames(20, netlab.Broadcast, B), a)
	from(b, 20, l.Frames(20, netlab.Station(100), B), a)
	from(b, 0, l.Frames(20, A, B), a)
	from(a, 1, []netlab.Frame{l.Frame(T, A, 1514)})
	from(a, 1, []netlab.Frame{l.Frame(netlab.Broadcast, A, 1000).Tagged(7, 3)}, b)
	// A program can send frames that no network card would: frames that are too short.
	for n := 14; n < 60; n++ {
		l.Deliver(dev, l.Frame(A, T, 60)[:n])
		l.Deliver(dev, l.Frame(A, T, 60).Tagged(7, 3)[:n])
	}
	l.Reach(dev, l.Frames(1, A, T), a)

	// The program ends, and its tap with it.
	dev.Close()
	l.Wait("the port of the ended program to be gone", func() bool { return l.Port("br0", "tap0").State == "gone" })
	l.Reach(a, l.Frames(10, T, A), b)
	l.Bascule("port", "del", "br0", "tap0")
}

func gso(t *testing.T, hook string) {
	const size = 32 << 20

	// stream sends in both directions and logs the largest packet of each.
	whole := func(t *testing.T, l *netlab.Lab, one, two *netlab.Host, atOne, atTwo *netlab.Socket) {
		t.Helper()
		must(t, one.Ping(two.IPv4))
		for _, way := range []struct {
			from, to *netlab.Host
			at       *netlab.Socket
		}{{one, two, atTwo}, {two, one, atOne}} {
			largest := way.at.Largest()
			must(t, netlab.Transfer(way.from, way.to, way.to.IPv4, size))
			if n := largest(); n <= 1514 {
				t.Errorf("the largest packet from %s to %s has %d bytes: the stream was cut up", way.from.Ifname, way.to.Ifname, n)
			}
			must(t, netlab.Transfer(way.from, way.to, way.to.IPv6, size/4))
		}
	}

	t.Run("veth", func(t *testing.T) {
		l, ends := setup(t, "tcx", 3)
		whole(t, l, ends[0].Host(), ends[1].Host(), ends[0].Socket, ends[1].Socket)
		wantNoDrops(t, l)
	})
	t.Run("veth_same_namespace", func(t *testing.T) {
		l := netlab.New(t)
		a, b := l.NewEnd(l.NewNamespace()), l.NewEnd(l.Switch)
		l.AddBridge("br0", "tcx", []*netlab.End{a, b})
		whole(t, l, a.Host(), b.Host(), a.Socket, b.Socket)
		wantNoDrops(t, l)
	})
	t.Run("host", func(t *testing.T) {
		l, ends := setup(t, "tcx", 2)
		l.Bascule("port", "add", "br0", "host0", "--type", "host")
		whole(t, l, ends[0].Host(), l.NewHost(l.Switch, "host0", 100), ends[0].Socket, l.Listen(l.Switch, "host0"))
		wantNoDrops(t, l)
	})
	t.Run("flood", func(t *testing.T) {
		// Every packet is flooded, since no address is ever learned.
		l, ends := setup(t, "tcx", 3)
		for _, e := range ends {
			l.Bascule("port", "set", "br0", e.Port, "--learn=off")
		}
		whole(t, l, ends[0].Host(), ends[1].Host(), ends[0].Socket, ends[1].Socket)
		wantNoDrops(t, l)
	})
	t.Run("berth", func(t *testing.T) {
		l, ends := setup(t, "tcx", 1)
		c := l.NewEnds(1)[0]
		s := openSwitch(t, l)
		setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
		wantOccupied(t, s, "p*", c.Port, true)
		whole(t, l, ends[0].Host(), c.Host(), ends[0].Socket, c.Socket)
		wantNoDrops(t, l)
	})
	t.Run("xdp", func(t *testing.T) {
		// XDP takes no packets larger than a page. The kernel decides whether the stream is
		// segmented, but it must arrive.
		_, ends := setup(t, "xdp", 3)
		one, two := ends[0].Host(), ends[1].Host()
		must(t, netlab.Transfer(one, two, two.IPv4, size))
		must(t, netlab.Transfer(two, one, one.IPv6, size))
	})
	t.Run("xdp_and_tcx", func(t *testing.T) {
		l, ends := setup(t, "tcx", 3)
		l.Bascule("port", "del", "br0", ends[0].Port)
		l.AddPort("br0", "xdp", ends[0])
		one, two := ends[0].Host(), ends[1].Host()
		must(t, netlab.Transfer(one, two, two.IPv4, size))
		must(t, netlab.Transfer(two, one, one.IPv6, size))
	})
	t.Run("big", gsoBig)
	t.Run("xdp_unprepared", gsoXDPUnprepared)
	t.Run("tap", gsoTap)
	t.Run("vxlan", func(t *testing.T) {
		// Two bridges joined by a tunnel, which segments the packets itself.
		one, two := netlab.New(t), netlab.New(t)
		a, b := one.NewEnds(2), two.NewEnds(2)
		netlab.Tunnel(one, two, "vx0", 1400)
		for _, s := range []struct {
			l    *netlab.Lab
			ends []*netlab.End
		}{{one, a}, {two, b}} {
			for _, e := range s.ends {
				e.SetMTU(1400)
			}
			s.l.AddBridge("br0", "tcx", s.ends)
			s.l.Bascule("port", "add", "br0", "vx0")
		}
		h1, h2 := a[0].Host(), two.NewHost(b[1].Namespace, b[1].Ifname, 200)
		must(t, h1.Ping(h2.IPv4))
		must(t, netlab.Transfer(h1, h2, h2.IPv4, size))
		must(t, netlab.Transfer(h2, h1, h1.IPv6, size))
		wantNoDrops(t, one)
		wantNoDrops(t, two)
	})
}

// gsoBig sends packets of more than 64 KiB ("BIG TCP"). IPv6 packets have a header with their size,
// which their segments lack: full segments fit.
func gsoBig(t *testing.T) {
	l, ends := setup(t, "tcx", 3)
	one, two := ends[0].Host(), ends[1].Host()
	nl := ends[0].Namespace.Netlink()
	link, err := nl.LinkByName(ends[0].Ifname)
	must(t, err)
	const most = 400000
	must(t, nl.LinkSetGSOMaxSize(link, most))
	must(t, nl.LinkSetGSOIPv4MaxSize(link, most))
	// Otherwise TCP would send smaller packets on a slow machine: as large as it sends in a
	// millisecond, and larger ones only if answers arrive within half of that.
	must(t, ends[0].Namespace.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_tso_rtt_log", []byte("31"), 0o644)
	}))
	tap := l.Listen(l.Switch, ends[0].Port)
	try := func(what string) {
		for _, to := range []netip.Addr{two.IPv4, two.IPv6} {
			largest := tap.Largest()
			if err := netlab.Transfer(one, two, to, 64<<20); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if n := largest(); n <= 1<<16+14 {
				t.Errorf("%s: the largest packet to %v has %d bytes", what, to, n)
			}
		}
		wantNoDrops(t, l)
	}
	try("known")
	for _, e := range ends {
		l.Bascule("port", "set", "br0", e.Port, "--learn=off")
	}
	l.Bascule("fdb", "flush", "br0")
	try("flooded")
	l.Bascule("span", "add", "br0", l.NewEnds(1)[0].Port)
	try("with a span port")
	loadPF(t, l, "pass\n")
	try("with pf")
}

// gsoXDPUnprepared sets XDP on veths whose other ends leave checksums to the device and are not
// ready for XDP. The switch prepares them, prints that, and restores them.
func gsoXDPUnprepared(t *testing.T) {
	l := netlab.New(t)
	ends := append(l.NewEnds(2), l.NewEnd(l.Switch))
	l.Bascule("bridge", "add", "br0")
	before := make([]map[string]bool, len(ends))
	for i, e := range ends {
		before[i] = e.Features()
		r, err := l.Run("port", "add", "br0", e.Port, "--hook", "xdp")
		must(t, err)
		if r.Exit != 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, e.Port) || !strings.Contains(r.Stderr, "checksum") {
			t.Errorf("%v: should succeed and tell in one line that checksum offload of its other end is off", r)
		}
	}
	one, two, three := ends[0].Host(), ends[1].Host(), ends[2].Host()
	must(t, netlab.Transfer(one, two, two.IPv4, 1<<20))
	must(t, netlab.Transfer(two, one, one.IPv6, 1<<20))
	must(t, netlab.Transfer(one, three, three.IPv4, 1<<20))
	must(t, netlab.Transfer(three, two, two.IPv4, 1<<20))

	// With another hook, when it leaves the bridge, and with its end.
	l.Bascule("port", "set", "br0", ends[0].Port, "--hook", "tcx")
	l.Bascule("port", "del", "br0", ends[1].Port)
	l.Bascule("bridge", "del", "br0")
	for i, e := range ends {
		if now := e.Features(); !maps.Equal(now, before[i]) {
			for f, on := range before[i] {
				if now[f] != on {
					t.Errorf("%s of the end behind %s was %v, and is %v", f, e.Port, on, now[f])
				}
			}
		}
	}
}

// wantNoDrops fails if a port counts a drop, except for floods without an output port.
func wantNoDrops(t *testing.T, l *netlab.Lab) {
	t.Helper()
	for _, p := range l.Ports("br0") {
		for reason, n := range p.Drops {
			t.Errorf("%s counts %d drops by %s", p.Ifname, n, reason)
		}
	}
}

// gsoTap sends large packets with unfinished checksums to a tap. Its program receives complete,
// right packets.
func gsoTap(t *testing.T) {
	l, ends := setup(t, "tcx", 2)
	a := ends[0].Host()
	peer := netlab.Station(50)

	// A program without offloads receives packets as on a wire.
	plain := l.NewTap("tap0", false)
	l.Bascule("port", "add", "br0", "tap0")
	l.Deliver(plain, l.Frames(1, netlab.Broadcast, peer)...)
	must(t, a.SendUDP(peer, 1000, 0))
	arrives := func(tap *netlab.Tap, n int) {
		t.Helper()
		got := tap.AwaitUDP(n)
		for _, f := range got {
			must(t, netlab.CheckUDP(f))
		}
		if len(got) != n {
			t.Errorf("%d datagrams reached %v, should be %d", len(got), tap, n)
		}
	}
	arrives(plain, 1)
	// Six segments in one packet: segmented on output, each right.
	must(t, a.SendUDP(peer, 6000, 1000))
	arrives(plain, 6)
	// The same as a flood.
	must(t, a.SendUDP(netlab.Station(51), 6000, 1000))
	arrives(plain, 6)

	// A program with offloads receives them whole.
	able := l.NewTap("tap1", true)
	l.Bascule("port", "add", "br0", "tap1")
	other := netlab.Station(52)
	l.Deliver(able, l.Frames(1, netlab.Broadcast, other)...)
	must(t, a.SendUDP(other, 6000, 1000))
	if got := able.AwaitUDP(1); len(got) != 1 || len(got[0]) < 6000 {
		t.Errorf("%d packets reached the tap, should be one of 6000 bytes", len(got))
	}
	// Its own unfinished packets are completed for receivers that need it.
	b := ends[1].Host()
	must(t, b.ReceiveUDP(b.IPv4, 1, 1200, func(to netip.AddrPort) error {
		return able.SendUnfinishedUDP(ends[1].MAC, other, to, 1200, 0)
	}))
	must(t, able.SendUnfinishedUDP(peer, other, netip.AddrPortFrom(b.IPv4, 9), 1200, 0))
	arrives(plain, 1)
}

// tapByXDP sets XDP on a tap whose program leaves checksums and segmentation to others. Its requests
// are in a header outside the packet, which XDP does not see.
func tapByXDP(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	T, b := netlab.Station(50), ends[1].Host()
	must(t, b.KnowTap(T))
	tap := l.NewTap("tap0", true)
	declines := func(args ...string) {
		t.Helper()
		r, err := l.Run(append(args, "--hook", "xdp")...)
		must(t, err)
		if r.Exit != 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "tap0: what comes in by it goes by tcx") {
			t.Errorf("%v: should succeed and tell in one line that what comes in by it goes by tcx", r)
		}
	}
	declines("port", "add", "br0", "tap0")
	if p := l.Port("br0", "tap0"); p.Hook != "xdp" {
		t.Errorf("a tap is shown as %+v", p)
	}
	// Both addresses are known, and stay fresh for a second: frames that XDP takes do not
	// refresh them.
	known := func() {
		l.Deliver(tap, l.Frames(1, netlab.Broadcast, T)...)
		l.Deliver(ends[1], l.Frames(1, netlab.Broadcast, ends[1].MAC)...)
	}
	const many = 10
	sound := func() {
		t.Helper()
		for _, addr := range []netip.Addr{b.IPv4, b.IPv6} {
			for _, segment := range []int{0, 300} {
				each, pieces := 1200, 1
				if segment > 0 {
					each, pieces = segment, each/segment
				}
				known()
				if err := b.ReceiveUDP(addr, many*pieces, each, func(to netip.AddrPort) error {
					for range many {
						if err := tap.SendUnfinishedUDP(ends[1].MAC, T, to, 1200, segment); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Errorf("in pieces of %d bytes: %v", each, err)
				}
			}
			var server net.Listener
			must(t, b.Namespace.Do(func() (err error) {
				server, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
				return err
			}))
			defer server.Close()
			to := server.Addr().(*net.TCPAddr).AddrPort()
			known()
			for port := range uint16(many) {
				must(t, tap.SendUnfinishedSYN(ends[1].MAC, T, 1000+port, to))
				if err := tap.AwaitSYNACK(1000+port, to); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	sound()
	// Frames to the tap still use XDP.
	known()
	tap.Received()
	frames := l.Frames(20, T, A)
	l.Reach(ends[0], frames)
	if got := tap.Received(); !slices.Equal(got, frames) {
		t.Errorf("%d of %d frames reached the tap as they were", len(got), len(frames))
	}

	// The same hook is set again, and a command examines all ports.
	l.Bascule("port", "set", "br0", "tap0", "--hook", "tcx")
	declines("port", "set", "br0", "tap0")
	l.Bascule("bridge", "set", "br0", "--ageing", "200s")
	sound()
	wantNoDrops(t, l)
}

// startLoad sends frames between A behind one end and B behind another, in both directions. No other
// end may receive any.
func startLoad(l *netlab.Lab, ends []*netlab.End, a, b *netlab.End) *netlab.Load {
	return l.StartLoad(ends,
		netlab.Flow{From: a, Dst: B, Src: A, To: []*netlab.End{b}},
		netlab.Flow{From: b, Dst: A, Src: B, To: []*netlab.End{a}})
}

// A host port may be on XDP as well, from its beginning.
func hostPortByXDP(t *testing.T, hook string) {
	l, ends := setup(t, hook, 1)
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--hook", "xdp")
	nl, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(nl)
	host, one := l.NewHost(l.Switch, "host0", 100), ends[0].Host()
	must(t, host.Ping(one.IPv4))
	must(t, netlab.Transfer(host, one, one.IPv4, 4<<20))
	must(t, netlab.Transfer(one, host, host.IPv4, 4<<20))
}

// A host port whose interface was moved away is still the port. A device that gets its index is not.
func hostPortMoved(t *testing.T, _ string) {
	l, _ := setup(t, "tcx", 1)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	here := l.Switch.Netlink()
	nl, err := here.LinkByName("host0")
	must(t, err)
	elsewhere := l.NewNamespace()
	handle, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer handle.Close()
	must(t, here.LinkSetNsFd(nl, int(handle)))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "other", nl.Attrs().Index
	other := &netlink.Veth{LinkAttrs: attrs, PeerName: "other2"}
	must(t, here.LinkAdd(other))
	defer here.LinkDel(other)

	if p := l.Port("br0", "host0"); p.Type != "host" {
		t.Errorf("the port is shown as %+v", p)
	}
	l.Refused([]string{"other"}, "port", "del", "br0", "other")
	l.Bascule("port", "set", "br0", "host0", "--hairpin")
	l.Bascule("port", "del", "br0", "host0")
	if _, err := elsewhere.Netlink().LinkByName("host0"); err == nil {
		t.Error("the port is deleted, and its interface is still there")
	}
	if _, err := here.LinkByName("other"); err != nil {
		t.Errorf("a device of the same index is gone with the port: %v", err)
	}
}

// The FDB follows the address of the host's interface at the next command.
func hostPortAddress(t *testing.T, _ string) {
	l, _ := setup(t, "tcx", 1)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	here := l.Switch.Netlink()
	nl, err := here.LinkByName("host0")
	must(t, err)
	for _, mac := range []netlab.MAC{C, D} {
		must(t, here.LinkSetHardwareAddr(nl, mac[:]))
		l.Bascule("bridge", "set", "br0")
		wantFDB(t, l, "br0", fmt.Sprintf("%s vlan 0 host0 static", mac))
	}
}

// Frames to another station behind an end reach the end, but its stack must not accept them.
func addressBehindAnEnd(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	for _, mac := range []netlab.MAC{C, b.MAC} {
		l.Bascule("fdb", "add", "br0", mac.String(), b.Port)
	}
	learn(l, a, A)
	fd := -1
	must(t, b.Namespace.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		// The frames' ethertype 0x88b5, in network order.
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0xb588, Ifindex: b.Ifindex})
	}))
	defer unix.Close(fd)
	for dst, want := range map[netlab.MAC]uint8{C: unix.PACKET_OTHERHOST, b.MAC: unix.PACKET_HOST} {
		l.Reach(a, l.Frames(10, dst, A), b)
		for range 10 {
			_, from, err := unix.Recvfrom(fd, make([]byte, 2000), 0)
			must(t, err)
			if got := from.(*unix.SockaddrLinklayer).Pkttype; got != want {
				t.Errorf("a frame to %v has packet type %d, should be %d (packet(7))", dst, got, want)
			}
		}
	}
}

// The host's interface gets another address. The next command that changes anything updates the FDB,
// and a station may have the old address.
func hostMACChanges(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--fdb-max", "2")
	a, b := ends[0], ends[1]
	l.Bascule("bridge", "add", "other")
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.Bascule("port", "add", "br0", "host1", "--type", "host")
	here := l.Switch.Netlink()
	device := func(name string) netlink.Link {
		nl, err := here.LinkByName(name)
		must(t, err)
		return nl
	}
	host, second := device("host0"), netlab.MAC(device("host1").Attrs().HardwareAddr)
	l.SetUp(host)
	port := l.Listen(l.Switch, "host0")
	first := netlab.MAC(host.Attrs().HardwareAddr)
	is := func(mac netlab.MAC, name string) string { return fmt.Sprintf("%s vlan 0 %s static", mac, name) }
	wantFDB(t, l, "br0", is(first, "host0"), is(second, "host1"))
	learn(l, a, A, B) // no further address is learned
	reaches := func(mac netlab.MAC) {
		t.Helper()
		port.Received()
		l.Reach(a, l.Frames(10, mac, A))
		if n := len(port.Received()); n != 10 {
			t.Errorf("%d of 10 frames for %v reached the host", n, mac)
		}
	}
	reaches(first)

	must(t, here.LinkSetHardwareAddr(host, C[:]))
	l.Bascule("bridge", "set", "other", "--ageing", "200s")
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, a), is(C, "host0"), is(second, "host1"))
	reaches(C)

	// A station has the old address now.
	l.Bascule("bridge", "set", "br0", "--fdb-max", "3")
	learn(l, b, first)
	l.Reach(a, l.Frames(10, first, A), b)
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, a), dynamic(first, 0, b), is(C, "host0"), is(second, "host1"))

	// Two interfaces swap their addresses, and the host gets a station's address again.
	must(t, here.LinkSetHardwareAddr(host, second[:]))
	must(t, here.LinkSetHardwareAddr(device("host1"), C[:]))
	l.Bascule("fdb", "flush", "other")
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, a), dynamic(first, 0, b), is(second, "host0"), is(C, "host1"))
	reaches(second)
	must(t, here.LinkSetHardwareAddr(host, first[:]))
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	wantFDB(t, l, "br0", fmt.Sprintf("%s vlan 1 host0 static", first), fmt.Sprintf("%s vlan 1 host1 static", C))
	reaches(first)

	// In another network namespace the address is followed, too.
	elsewhere := l.NewNamespace()
	handle, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer handle.Close()
	must(t, here.LinkSetNsFd(host, int(handle)))
	moved, err := elsewhere.Netlink().LinkByName("host0")
	must(t, err)
	l.Bascule("bridge", "set", "other", "--ageing", "300s")
	wantFDB(t, l, "br0", dynamic(A, 1, a), fmt.Sprintf("%s vlan 1 host0 static", first), fmt.Sprintf("%s vlan 1 host1 static", C))
	must(t, elsewhere.Netlink().LinkSetHardwareAddr(moved, D[:]))
	l.Bascule("bridge", "set", "other", "--ageing", "200s")
	wantFDB(t, l, "br0", dynamic(A, 1, a), fmt.Sprintf("%s vlan 1 host0 static", D), fmt.Sprintf("%s vlan 1 host1 static", C))
}

// The switch's end of a host port belongs to its bridge, and cannot be a port of another one.
func hostPortElsewhere(t *testing.T, _ string) {
	l, ends := setup(t, "tcx", 1)
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br0", "h0", "--type", "host")
	l.Bascule("port", "add", "br1", "h1", "--type", "host")
	nl, err := l.Switch.Netlink().LinkByName("h0")
	must(t, err)
	own, err := l.Switch.Netlink().LinkByIndex(nl.Attrs().ParentIndex)
	must(t, err)
	end := own.Attrs().Name
	for _, args := range [][]string{
		{"port", "add", "br1", "h0"}, {"port", "add", "br0", "h0"}, {"port", "add", "br0", "h1"}, {"span", "add", "br1", "h0"},
		{"port", "add", "br1", end}, {"port", "add", "br0", end}, {"span", "add", "br1", end},
	} {
		name := args[3]
		owner := "br0"
		if name == "h1" {
			owner = "br1"
		}
		l.Refused([]string{args[3], "host port", owner}, args...)
	}
	l.Refused([]string{"--type patch"}, "port", "add", "br1", "h0") // the way to connect bridges
	path := filepath.Join(t.TempDir(), "switch.yaml")
	must(t, os.WriteFile(path, fmt.Appendf(nil, "bridges: {br0: {ports: {%s: {}, h0: {type: host}}}, br1: {ports: {h0: {}, h1: {type: host}}}}", ends[0].Port), 0o644))
	l.Refused([]string{"h0", "host", "type: patch"}, "apply", path)
}

// The addresses of a device that becomes a port no longer reach the host, which the command reports.
// It also reports the host's protocols that use the device.
func deviceWithAddresses(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(4)
	l.Bascule("bridge", "add", "br0")
	for _, e := range ends[:3] {
		nl, err := l.Switch.Netlink().LinkByName(e.Port)
		must(t, err)
		must(t, l.Switch.Do(func() error {
			return os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", e.Port, "disable_ipv6"), []byte("0"), 0o644)
		}))
		for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"} {
			address, err := netlink.ParseAddr(text)
			must(t, err)
			must(t, l.Switch.Netlink().AddrAdd(nl, address))
		}
	}
	warns := func(r netlab.Result, name string) {
		t.Helper()
		if r.Exit != 0 || strings.Count(r.Stderr, "\n") != 1 || strings.Contains(r.Stderr, "fe80::1") ||
			!strings.Contains(r.Stderr, name) || !strings.Contains(r.Stderr, "192.0.2.1/24") || !strings.Contains(r.Stderr, "2001:db8::1/64") || !strings.Contains(r.Stderr, "--type host") {
			t.Errorf("%v: should succeed and warn in one line of the addresses of %s but the link-local one, with a host port as the way", r, name)
		}
	}
	run := func(args ...string) netlab.Result {
		t.Helper()
		r, err := l.Run(args...)
		must(t, err)
		return r
	}
	warns(run("port", "add", "br0", ends[0].Port), ends[0].Port)
	warns(run("span", "add", "br0", ends[1].Port), ends[1].Port)
	l.Bascule("port", "add", "br0", ends[3].Port)

	// A file is reported once, also with --dry-run.
	path := filepath.Join(t.TempDir(), "switch.yaml")
	must(t, os.WriteFile(path, fmt.Appendf(nil, "bridges: {br0: {ports: {%s: {}, %q: {}}, mirrors: {%s: {}}}}", ends[0].Port, ends[2].Port+"*", ends[1].Port), 0o644))
	dry := run("apply", "--dry-run", path)
	dry.Exit = 0
	warns(dry, ends[2].Port)
	warns(run("apply", path), ends[2].Port)
	if r := run("apply", path); r.Exit != 0 || r.Stderr != "" {
		t.Errorf("applied again: %v", r)
	}
}

// OpenBSD's files add addresses to the host's interface, at which stations reach the host. Another
// file removes the addresses that are not leased.
func hostPortAddresses(t *testing.T, _ string) {
	l := netlab.New(t)
	e := l.NewEnds(1)[0]
	one := e.Host()
	near := one.IPv4.As4()
	near[3] = 250
	first := netip.PrefixFrom(netip.AddrFrom4(near), 24)
	near[3] = 251
	second := netip.PrefixFrom(netip.AddrFrom4(near), 24)
	dir := t.TempDir()
	write := func(name, format string, args ...any) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644))
		return path
	}
	write("hostname.veb0", "add %s add vport0\nup\n", e.Port)
	write("hostname.vport0", "inet %s 255.255.255.0\ninet6 2001:db8::1 64\ninet alias %s/24\nup\n", first.Addr(), second.Addr())
	has := func(want ...string) {
		t.Helper()
		nl, err := l.Switch.Netlink().LinkByName("vport0")
		must(t, err)
		list, err := l.Switch.Netlink().AddrList(nl, netlink.FAMILY_ALL)
		must(t, err)
		var got []string
		for _, a := range list {
			if a.Scope != unix.RT_SCOPE_LINK {
				got = append(got, a.IPNet.String())
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("vport0 has the addresses %v, should have %v", got, want)
		}
	}
	v6 := "2001:db8::1/64"
	if r, err := l.Run("apply", dir); err != nil || r.Exit != 1 || !strings.Contains(r.Stderr, "'sysctl net.ipv6.conf.vport0.disable_ipv6=0'") {
		t.Errorf("an address of IPv6 where the interface has none: %v, %v", r, err)
	}
	l.Bascule("bridge", "del", "veb0")
	must(t, l.Switch.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0o644) }))
	if out := l.Bascule("apply", dir); !strings.Contains(out, "addresses "+first.String()+","+v6+","+second.String()) {
		t.Errorf("the plan does not name the addresses: %s", out)
	}
	has(first.String(), second.String(), v6)
	must(t, one.Ping(first.Addr()))
	if out := l.Bascule("apply", dir); out != "" {
		t.Errorf("applied again, it says %q", out)
	}

	// After the first address of its network was deleted the second stays, and so does a leased
	// one.
	nl, err := l.Switch.Netlink().LinkByName("vport0")
	must(t, err)
	leased, err := netlink.ParseAddr("203.0.113.9/24")
	must(t, err)
	leased.ValidLft, leased.PreferedLft = 3600, 3600
	must(t, l.Switch.Netlink().AddrAdd(nl, leased))
	file := write("switch.yaml", "bridges: {veb0: {vlan-filtering: on, ports: {%s: , vport0: {type: host, addresses: [%s, 198.51.100.77/32]}}}}", e.Port, second)
	l.Bascule("apply", file)
	has(second.String(), "198.51.100.77/32", leased.IPNet.String())
	must(t, one.Ping(second.Addr()))

	// A file without addresses does not change them, and an empty list removes them.
	l.Bascule("apply", write("alone.yaml", "bridges: {veb0: {vlan-filtering: on, ports: {%s: , vport0: {type: host}}}}", e.Port))
	has(second.String(), "198.51.100.77/32", leased.IPNet.String())
	l.Bascule("apply", write("none.yaml", "bridges: {veb0: {vlan-filtering: on, ports: {%s: , vport0: {type: host, addresses: []}}}}", e.Port))
	has(leased.IPNet.String())

	l.Refused([]string{"br", "neither a bridge"}, "apply", write("hostname.br0", "up"))
	l.Refused([]string{"only a host port has addresses"}, "apply", write("port.yaml", "bridges: {veb0: {ports: {%s: {addresses: %s}}}}", e.Port, first))
}

// newHostLab makes a lab with a station, whose host ports have IPv6. at returns an address of the
// station's network, and write writes a file in a folder of the test.
func newHostLab(t *testing.T) (l *netlab.Lab, e *netlab.End, one *netlab.Host, at func(byte) netip.Prefix, write func(name, format string, args ...any) string) {
	l = netlab.New(t)
	must(t, l.Switch.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("0"), 0o644) }))
	e = l.NewEnds(1)[0]
	one = e.Host()
	at = func(last byte) netip.Prefix {
		near := one.IPv4.As4()
		near[3] = last
		return netip.PrefixFrom(netip.AddrFrom4(near), 24)
	}
	dir := t.TempDir()
	write = func(name, format string, args ...any) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644))
		return path
	}
	return l, e, one, at, write
}

// A router's file is applied to an empty switch. Its rules name interfaces that the file itself
// makes, with the addresses that it assigns. No temporary problem is reported.
func routerFromNothing(t *testing.T, _ string) {
	l, e, one, at, write := newHostLab(t)
	lan, moved := at(250), at(251)
	router := func(lan netip.Prefix) string {
		return write("router.yaml", "bridges: {br0: {pf-ports: host, ports: {%s: , lan0: {type: host, addresses: [%s, '2001:db8:1::1/64']},"+
			" wan0: {type: host, addresses: 203.0.113.2/24}}, pf: {file: pf.conf}}}", e.Port, lan)
	}
	run := func(args ...string) netlab.Result {
		t.Helper()
		r, err := l.Run(args...)
		must(t, err)
		return r
	}
	rules := func() string { return l.Bascule("pfctl", "-sr") }
	quiet := func(r netlab.Result, says ...string) {
		t.Helper()
		for _, word := range says {
			if !strings.Contains(r.Stdout, word) {
				t.Errorf("%v: should say %q", r, word)
			}
		}
		if r.Exit != 0 || strings.Contains(r.Stderr, "no effect") || strings.Contains(r.Stderr, "no address") || len(says) == 0 && r.Stdout != "" {
			t.Errorf("%v: should succeed, without a word of what it makes itself", r)
		}
	}

	write("pf.conf", "%s", `
set block-policy drop
block in on lan0
antispoof for lan0
match out on wan0 inet from lan0:network nat-to (wan0)
pass in on lan0 inet proto icmp from lan0:network to lan0
pass on lan inet6 proto icmp6 from any to (lan0)
`)
	file := router(lan)
	dry := run("apply", "--dry-run", file)
	if dry.Exit != 3 {
		t.Errorf("a dry run: %v, should say that there is something to do", dry)
	}
	if _, err := l.Switch.Netlink().LinkByName("lan0"); err == nil {
		t.Error("a dry run makes lan0")
	}
	quiet(run("apply", file), "+ port lan0", "+ bridge br0")
	must(t, one.Ping(lan.Addr()))
	first := rules()
	for _, want := range []string{"from " + lan.Masked().String() + " to any nat-to", "block drop in on ! lan0 inet from " + lan.Masked().String(),
		"block drop in on ! lan0 inet6 from 2001:db8:1::/64", "inet6 from fe80::", "to " + lan.Addr().String()} {
		if !strings.Contains(first, want) {
			t.Errorf("the rules have no %q:\n%s", want, first)
		}
	}
	quiet(run("apply", file))

	// The rules follow addresses that the file changes, also at an existing interface.
	quiet(run("apply", router(moved)), "port lan0", "pf")
	must(t, one.Ping(moved.Addr()))
	if now := rules(); !strings.Contains(now, "to "+moved.Addr().String()) || strings.Contains(now, lan.Addr().String()) {
		t.Errorf("the rules are about %s still:\n%s", lan.Addr(), now)
	}
	quiet(run("apply", router(lan)), "pf")
	if now := rules(); now != first {
		t.Errorf("back at the first addresses the rules are\n%s\nand were\n%s", now, first)
	}

	// An interface whose addresses are not in the file.
	write("pf.conf", "pass in on wan9 inet from wan9:network\n")
	later := write("later.yaml", "bridges: {br0: {ports: {%s: , wan9: {type: host, up: off}}, pf: {file: pf.conf}}}", e.Port)
	l.Refused([]string{"wan9:network", "no address", "(wan9:network)"}, "apply", later)
	write("pf.conf", "pass in on wan9 inet from (wan9:network)\n")
	if r := run("apply", later); r.Exit != 0 || strings.Contains(r.Stderr, "no effect") {
		t.Errorf("%v: should succeed", r)
	}

	// As on OpenBSD, antispoof makes no rule for an interface without an address. A note reports
	// this.
	write("pf.conf", "antispoof quick for { egress nosuch0 wan9 }\nblock in on wan9\n")
	r := run("apply", later)
	for _, name := range []string{"egress", "nosuch0", "wan9"} {
		if strings.Count(r.Stderr, "antispoof for "+name+" has no effect") != 1 || !strings.Contains(r.Stderr, "("+name+")") {
			t.Errorf("%v: should tell once of antispoof for %s, with the way out", r, name)
		}
	}
	if now := rules(); r.Exit != 0 || strings.TrimSpace(now) != "block drop in on wan9 all" {
		t.Errorf("exit %d, rules %q", r.Exit, now)
	}
}

// A port's description is its device's alias, which other programs can read and set, too.
func description(t *testing.T, _ string) {
	l := netlab.New(t)
	e := l.NewEnds(3)
	here := l.Switch.Netlink()
	alias := func(name, want string) {
		t.Helper()
		nl, err := here.LinkByName(name)
		must(t, err)
		if got := nl.Attrs().Alias; got != want {
			t.Errorf("the alias of %s is %q, should be %q", name, got, want)
		}
	}
	l.Bascule("bridge", "add", "br0")
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br0", e[0].Port, "--description", "desk 7")
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--description", "the host")
	l.Bascule("port", "add", "br0", e[1].Port)
	l.Bascule("port", "add", "br0", "to1", "--type", "patch", "--peer", "br1/to0")
	l.Bascule("port", "set", "br0", e[1].Port, "--description", "été", "--isolated")
	alias(e[0].Port, "desk 7")
	alias("host0", "the host")
	alias(e[1].Port, "été")
	nl, err := here.LinkByName(e[0].Port)
	must(t, err)
	must(t, here.LinkSetAlias(nl, "by another"))
	var ports []struct{ Ifname, Description string }
	l.JSON(&ports, "port", "show", "br0")
	if got := fmt.Sprint(ports); got != fmt.Sprintf("[{%s by another} {host0 the host} {%s été} {to1 }]", e[0].Port, e[1].Port) {
		t.Error(got)
	}

	// A refused command changes nothing.
	l.Refused([]string{"a patch port has no device that has a description"}, "port", "set", "br0", "to1", "--description", "x")
	l.Refused([]string{"a patch port has no device that has a description"}, "port", "add", "br0", "to2", "--type", "patch", "--peer", "br1/to3", "--description", "x")
	l.Refused([]string{"a locked port"}, "port", "set", "br0", e[1].Port, "--description", "x", "--locked", "--learn")
	l.Refused([]string{"is not a port of this bridge"}, "port", "set", "br0", e[1].Port, "none", "--description", "x")
	l.Refused(nil, "port", "add", "br0", e[2].Port, "host0", "--description", "x")
	alias(e[1].Port, "été")
	alias(e[2].Port, "")

	// A file has it. A file without it does not change it.
	saved := l.Bascule("export")
	for _, line := range []string{e[0].Port + `: {description: "by another"}`, `host0: {type: host, addresses: [], up: off, description: "the host"}`} {
		if !strings.Contains(saved, line) && !strings.Contains(strings.ReplaceAll(saved, "type: host, up: off", "type: host, addresses: [], up: off"), line) {
			t.Errorf("%s is not in\n%s", line, saved)
		}
	}
	if out := l.Bascule("apply", writeFile(t, saved)); out != "" {
		t.Errorf("what is exported does %s", out)
	}
	rest := "to1: {type: patch, peer: br1/to0}"
	file := func(first, second string) string {
		return writeFile(t, fmt.Sprintf("bridges: {br0: {ports: {%s: {description: %s}, %s: {isolated: on%s}, host0: {type: host}, %s}}}", e[0].Port, first, e[1].Port, second, rest))
	}
	l.Bascule("apply", file("''", ""))
	alias(e[0].Port, "")
	alias(e[1].Port, "été")
	alias("host0", "the host")
	l.Bascule("port", "set", "br0", "host0", "--description", "")
	alias("host0", "")

	dir := t.TempDir() // as in OpenBSD's files
	for name, text := range map[string]string{
		"hostname.veb7":   "add vport7\nup",
		"hostname.vport7": "inet 192.0.2.7 255.255.255.0\nlladdr 2:0:0:0:0:77 mtu 1400\ndescription 'the LAN'\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	l.Bascule("apply", dir)
	alias("vport7", "the LAN")
	it, err := here.LinkByName("vport7")
	must(t, err)
	if a := it.Attrs(); a.HardwareAddr.String() != "02:00:00:00:00:77" || a.MTU != 1400 || a.Flags&net.FlagUp == 0 {
		t.Errorf("the interface has %v, %d, %v", a.HardwareAddr, a.MTU, a.Flags)
	}

	// Another program's alias may contain anything.
	must(t, here.LinkSetAlias(nl, "\x1b[2Jgone\nfast"))
	for _, args := range [][]string{{"port", "show"}, {"port", "show", "br0", e[0].Port}, {"-j", "port", "show"}} {
		if out := l.Bascule(args...); strings.Contains(out, "\x1b") || !strings.Contains(out, "gone") {
			t.Errorf("%v prints %q", args, out)
		}
	}
	r, err := l.Run("export")
	must(t, err)
	if r.Exit != 0 || strings.Contains(r.Stdout, "gone") || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "the description of "+e[0].Port+" of br0 is left out") {
		t.Error(r)
	}

	// The alias of a container's device contains the ID by which the device is found again.
	must(t, here.LinkSetAlias(nl, "web"))
	l.Bascule("plug", "web", "--bridge", "br0", "--device", e[0].Port)
	l.Refused([]string{"its device has the id web there"}, "port", "set", "br0", e[0].Port, "--description", "x")
	alias(e[0].Port, "web")
}

// One command adds a port to all its VLANs, or fails.
func addInVLANs(t *testing.T, _ string) {
	l := netlab.New(t)
	e := l.NewEnds(4)
	in := func() map[string]string {
		t.Helper()
		var list []struct {
			Ifname string
			VLANs  []struct {
				VLAN, VLANEnd int
				Flags         []string
			}
		}
		l.JSON(&list, "vlan", "show", "br0")
		got := map[string]string{}
		for _, p := range list {
			for _, v := range p.VLANs {
				got[p.Ifname] += fmt.Sprintf("%d-%d%v ", v.VLAN, v.VLANEnd, v.Flags)
			}
		}
		return got
	}
	l.Bascule("bridge", "add", "br0")
	l.Refused([]string{"cannot add port " + e[0].Port + " to br0", "does not filter VLANs"}, "port", "add", "br0", e[0].Port, "--vlan", "10")
	l.Refused([]string{"does not filter VLANs"}, "port", "add", "br0", "host0", "--type", "host", "--vlan", "10")
	if _, err := l.Switch.Netlink().LinkByName("host0"); err == nil {
		t.Error("what is refused leaves an interface")
	}
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	if got := in(); len(got) > 0 {
		t.Errorf("what is refused leaves %v", got)
	}
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br0", e[0].Port, "--vlan", "10", "--tagged", "20,30")
	l.Bascule("port", "add", "br0", e[1].Port, e[2].Port, "--vlan", "20")
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--tagged", "10,20")
	l.Bascule("port", "add", "br0", "to1", "--type", "patch", "--peer", "br1/to0", "--tagged", "10-12")
	l.Bascule("port", "add", "br0", e[3].Port)
	want := map[string]string{
		e[0].Port: "10-0[PVID Egress Untagged] 20-0[] 30-0[] ", e[1].Port: "20-0[PVID Egress Untagged] ", e[2].Port: "20-0[PVID Egress Untagged] ",
		"host0": "10-0[] 20-0[] ", "to1": "10-12[] ", e[3].Port: "1-0[PVID Egress Untagged] ",
	}
	if got := in(); !maps.Equal(got, want) {
		t.Errorf("the VLANs are %q, should be %q", got, want)
	}
	got := l.Deliver(e[1], l.Frames(10, netlab.Broadcast, netlab.Station(1))...)
	if len(got[e[2]]) != 10 || len(got[e[0]]) != 10 || len(got[e[3]]) != 0 { // e[0] receives them tagged
		t.Errorf("of 10 frames %d, %d and %d arrived", len(got[e[2]]), len(got[e[0]]), len(got[e[3]]))
	}
}

// Ports of a file are set up, unless it says that they are down, and export writes just that.
func fileSetsUp(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(4)
	a, b, down, new := ends[0], ends[1], ends[2], ends[3]
	isUp := func(e *netlab.End) bool {
		t.Helper()
		nl, err := l.Switch.Netlink().LinkByName(e.Port)
		must(t, err)
		return nl.Attrs().RawFlags&unix.IFF_UP != 0
	}
	apply := func(text string, plan ...string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "switch.yaml")
		must(t, os.WriteFile(path, []byte(text), 0o644))
		r, err := l.Run("apply", "--dry-run", path)
		must(t, err)
		if want := strings.Join(append(plan, ""), "\n"); r.Stdout != want {
			t.Errorf("%v: the plan should be\n%s", r, want)
		}
		if r, err := l.Run("apply", path); err != nil || r.Exit != 0 { // XDP causes a warning
			t.Error(r, err)
		}
		if out := l.Bascule("apply", path); out != "" {
			t.Errorf("applied again it does %s", out)
		}
	}
	l.Pull(a.Port)
	l.Pull(b.Port)
	head := "bridges: {br0: {ports: {" + a.Port + ": {hook: " + hook + "}"
	apply(head+", "+b.Port+": , "+down.Port+": {up: off}}}}",
		"+ bridge br0", "+ port "+a.Port+" of br0: hook "+hook+", up on", "+ port "+b.Port+" of br0: up on", "+ port "+down.Port+" of br0: up off")
	if !isUp(a) || !isUp(b) || isUp(down) {
		t.Errorf("%s up: %v, %s: %v, %s: %v", a.Port, isUp(a), b.Port, isUp(b), down.Port, isUp(down))
	}
	saved := l.Bascule("export")
	if strings.Count(saved, "up: off") != 1 || strings.Contains(saved, "up: on") || !strings.Contains(saved, down.Port+": {up: off}") {
		t.Errorf("it is exported as\n%s", saved)
	}

	// A port that a user sets down stays down until the file is applied.
	l.Pull(b.Port)
	if out := l.Bascule("port", "set", "br0", b.Port, "--learn=off"); out != "" || isUp(b) {
		t.Errorf("%s up: %v; %s", b.Port, isUp(b), out)
	}
	l.Bascule("port", "set", "br0", b.Port, "--learn=on")
	apply(head+", "+b.Port+": , "+down.Port+": , "+new.Port+": }}}",
		"~ port "+b.Port+" of br0: up off -> on", "~ port "+down.Port+" of br0: up off -> on", "+ port "+new.Port+" of br0")
	l.Reach(a, l.Frames(10, netlab.Broadcast, netlab.Station(1)), b, down, new)
	apply(head+", \"p*\": {up: off}}}}",
		"~ port "+b.Port+" of br0: up on -> off", "~ port "+down.Port+" of br0: up on -> off", "~ port "+new.Port+" of br0: up on -> off")
	if !isUp(a) || isUp(b) || isUp(down) || isUp(new) {
		t.Errorf("%s up: %v, %s: %v, %s: %v, %s: %v", a.Port, isUp(a), b.Port, isUp(b), down.Port, isUp(down), new.Port, isUp(new))
	}

	// A port that cannot be set up is still added, and reported.
	lower := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "lower1"}
	lower.Name = "lower0"
	here := l.Switch.Netlink()
	must(t, here.LinkAdd(lower))
	l.Keep("lower0")
	l.Keep("lower1")
	nl, err := here.LinkByName("lower0")
	must(t, err)
	above := &netlink.Macvlan{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.MACVLAN_MODE_BRIDGE}
	above.Name, above.ParentIndex, above.HardwareAddr = "above0", nl.Attrs().Index, nl.Attrs().HardwareAddr
	must(t, here.LinkAdd(above))
	l.Keep("above0")
	r, err := l.Run("apply", writeFile(t, "bridges: {br1: {ports: {above0: }}}"))
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "above0 is not set up: address already in use") {
		t.Error(r)
	}
}

// writeFile writes a file with a switch.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// The exported file restores the interfaces of host ports: up or down, and with the addresses that
// are not leased. A vport with addresses for DHCP or autoconfiguration is set up, since no client
// could work otherwise.
func hostInterfacesComeBack(t *testing.T, _ string) {
	l, e, one, at, write := newHostLab(t)
	lan := at(250)
	here := l.Switch.Netlink()
	state := func() (list []string) {
		t.Helper()
		for _, name := range []string{"lan0", "lan1", "lan2", "lan3"} {
			nl, err := here.LinkByName(name)
			must(t, err)
			addrs, err := here.AddrList(nl, netlink.FAMILY_ALL)
			must(t, err)
			words := []string{name, fmt.Sprint(nl.Attrs().RawFlags&unix.IFF_UP != 0)}
			for _, a := range addrs {
				if a.Scope != unix.RT_SCOPE_LINK {
					words = append(words, a.IPNet.String())
				}
			}
			slices.Sort(words[2:])
			list = append(list, strings.Join(words, " "))
		}
		return list
	}
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", e.Port)
	for n, addresses := range [][]string{{lan.String(), "2001:db8:1::1/64"}, {"198.51.100.1/28"}, nil, nil} {
		name := fmt.Sprintf("lan%d", n)
		l.Bascule("port", "add", "br0", name, "--type", "host")
		nl, err := here.LinkByName(name)
		must(t, err)
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			must(t, err)
			must(t, here.AddrAdd(nl, a))
		}
		if n%2 == 0 { // lan1 has an address, and is down; lan2 is up without one
			must(t, here.LinkSetUp(nl))
		}
	}
	want := []string{"lan0 true " + lan.String() + " 2001:db8:1::1/64", "lan1 false 198.51.100.1/28", "lan2 true", "lan3 false"}
	if got := state(); !slices.Equal(got, want) {
		t.Fatalf("the interfaces are %q, should be %q", got, want)
	}
	saved := l.Bascule("export")
	file := write("saved.yaml", "%s", saved)
	if out := l.Bascule("apply", file); out != "" {
		t.Errorf("what is exported changes what runs: %s\n%s", out, saved)
	}
	l.Bascule("bridge", "del", "br0")
	l.Bascule("apply", file)
	if got := state(); !slices.Equal(got, want) {
		t.Errorf("after export and apply the interfaces are %q, should be %q; the file is\n%s", got, want, saved)
	}
	must(t, one.Ping(lan.Addr()))
	if again := l.Bascule("export"); again != saved {
		t.Errorf("it is exported as\n%s\nand was\n%s", again, saved)
	}

	// A file says which interfaces are down.
	l.Bascule("apply", write("turned.yaml", "bridges: {br0: {ports: {%s: , lan0: {type: host, up: off}, lan1: {type: host, up: on}, lan2: {type: host}, lan3: {type: host}}}}", e.Port))
	// An interface that goes down loses its IPv6 addresses.
	want = []string{"lan0 false " + lan.String(), "lan1 true 198.51.100.1/28", "lan2 true", "lan3 true"}
	if got := state(); !slices.Equal(got, want) {
		t.Errorf("the interfaces are %q, should be %q", got, want)
	}

	// A state that a file can't express is reported.
	nl, err := here.LinkByName("lan3")
	must(t, err)
	leased, err := netlink.ParseAddr("203.0.113.9/24")
	must(t, err)
	leased.ValidLft, leased.PreferedLft = 3600, 3600
	must(t, here.AddrAdd(nl, leased))
	r, err := l.Run("export")
	must(t, err)
	if r.Exit != 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "lan3 of br0") || strings.Contains(r.Stdout, "203.0.113.9") {
		t.Errorf("%v: should tell in a line of the leased address of lan3", r)
	}

	folder := t.TempDir()
	for name, text := range map[string]string{"veb7": "add vport7\nadd vport8\nadd vport9\nup\n", "vport7": "inet autoconf\n", "vport8": "dhcp\nup\n", "vport9": "inet autoconf\ndown\n"} {
		must(t, os.WriteFile(filepath.Join(folder, "hostname."+name), []byte(text), 0o644))
	}
	if r, err = l.Run("apply", folder); err != nil || r.Exit != 0 {
		t.Errorf("%v, %v", r, err)
	}
	for name, up := range map[string]bool{"vport7": true, "vport8": true, "vport9": false} {
		nl, err := here.LinkByName(name)
		must(t, err)
		if nl.Attrs().RawFlags&unix.IFF_UP != 0 != up {
			t.Errorf("%s: up is %t, should be %t", name, !up, up)
		}
	}
}
