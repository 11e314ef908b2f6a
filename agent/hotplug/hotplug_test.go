// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/config"
	"bascule/datapath"
	"bascule/lab/ends"
	"bascule/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A running is a watcher of a lab's switch, and its log.
type running struct {
	*Watcher
	t     testing.TB
	l     *netlab.Lab
	ctx   context.Context
	ended chan error

	said netlab.Output
}

// watch makes the missing bridges of a file and starts a watcher, which stops with the test. If the test fails, the
// watcher's log is shown.
func watch(t testing.TB, l *netlab.Lab, f config.File, change ...func(*Watcher)) *running {
	t.Helper()
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	had, err := s.Names()
	must(t, err)
	for _, b := range f.Bridges {
		if !slices.Contains(had, b.Name) {
			must(t, s.AddBridge(b.Name, b.Settings))
		}
	}
	r := &running{t: t, l: l}
	r.Watcher = New(s, f, slog.New(slog.NewTextHandler(&r.said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, c := range change {
		c(r.Watcher)
	}
	var cancel func()
	r.ctx, cancel = context.WithCancel(context.Background())
	r.run()
	t.Cleanup(func() {
		cancel()
		if err := <-r.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watcher ended with %v", err)
		}
		s.Close()
		runtime.GC() // it unmaps the tables of programs that this process has loaded
		if t.Failed() {
			t.Logf("the watcher's log:\n%s", r.said.String())
		}
	})
	return r
}

func (r *running) run() {
	r.ended = make(chan error, 1)
	go func() {
		defer close(r.ended)
		r.ended <- r.Run(r.ctx)
	}()
}

// fail ends the watcher with an error. It receives no events of devices until it runs again.
func (r *running) fail() {
	r.t.Helper()
	r.Stats() // the count shows that Run has its listener
	must(r.t, r.Watcher.l.events.Close())
	if <-r.ended == nil {
		r.t.Error("the watcher ended without an error")
	}
}

// ports waits until a bridge has exactly these ports, in any order, and they forward. NAME! is a port whose device has
// gone.
func (r *running) ports(bridge string, want ...string) {
	r.t.Helper()
	slices.Sort(want)
	var got []string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("ports of %s: %q, want %q", bridge, got, want)
		}
	}()
	r.l.Wait(fmt.Sprintf("the ports of %s to be %q", bridge, want), func() bool {
		list, err := r.s.Ports(bridge)
		must(r.t, err)
		got = nil
		for _, p := range list {
			name := p.Name
			if p.State == "gone" {
				name += "!"
			}
			got = append(got, name)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
	r.l.AwaitWriter()
}

// vacant waits until a bridge has that many vacant berths.
func (r *running) vacant(bridge string, want int) {
	r.t.Helper()
	r.l.Wait(fmt.Sprintf("%d berths of %s", want, bridge), func() bool {
		list, err := r.s.Berths(bridge)
		must(r.t, err)
		n := 0
		for _, b := range list {
			n += b.Count
		}
		return n == want
	})
}

// settled waits until the watcher has done all work that it does by itself. Any reload follows addresses and other
// ends, too, and those do not count as its reloads.
func (r *running) settled(bridge string) {
	r.t.Helper()
	r.vacant(bridge, berths)
	// the watcher reads no more events before that work is done
	before := r.Stats().Events
	addDevice(r.t, r.l, "later0")
	r.l.Wait("the watcher to go on", func() bool { return r.Stats().Events > before })
}

// addDevice makes an Ethernet device whose driver does nothing with frames and
// has no XDP.
func addDevice(t testing.TB, l *netlab.Lab, name string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	device := &netlink.Ifb{LinkAttrs: attrs}
	must(t, l.Switch.Netlink().LinkAdd(device))
	l.Keep(name)
	return device
}

func rename(t testing.TB, l *netlab.Lab, from, to string) {
	t.Helper()
	link, err := l.Switch.Netlink().LinkByName(from)
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetName(link, to))
	l.Keep(to)
}

// Devices that match are ports as long as they exist.
func TestFollow(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(2)
	r := watch(t, l, file(bridgeOf("br0", "p*", "one"), bridgeOf("br1", "other*")))
	a, b := stations[0], stations[1]
	r.ports("br0", "p1", "p2")
	l.Reach(a, l.Frames(10, netlab.Broadcast, netlab.Station(1)), b)

	// one that appears
	c := l.NewEnd(l.NewNamespace())
	r.ports("br0", "p1", "p2", "p3")
	l.Reach(a, l.Frames(10, netlab.Broadcast, netlab.Station(1)), b, c)
	l.Reach(c, l.Frames(10, netlab.Station(1), netlab.Station(3)), a)

	// It goes, and comes back with the same index.
	c.Unplug()
	r.ports("br0", "p1", "p2")
	c.PlugAgain(c.PortIndex)
	r.ports("br0", "p1", "p2", "p3")
	l.Reach(c, l.Frames(10, netlab.Broadcast, netlab.Station(3)), a, b)

	// It goes and comes back at once, unnoticed: the device that the watcher tries to attach may have gone, which
	// counts as refused, and another is there.
	before := r.Stats()
	for range 3 {
		c.Unplug()
		c.PlugAgain(c.PortIndex)
	}
	r.ports("br0", "p1", "p2", "p3")
	l.Wait("frames to pass", func() bool { return len(l.Deliver(a, l.Frames(1, netlab.Broadcast, netlab.Station(1))...)[c]) == 1 })
	churned := r.Stats()

	// under other names
	for _, step := range []struct {
		to       string
		br0, br1 []string
	}{
		{"p33", []string{"p1", "p2", "p33"}, nil},
		{"one", []string{"p1", "p2", "one"}, nil},
		{"other", []string{"p1", "p2"}, []string{"other"}},
		{"nobodys", []string{"p1", "p2"}, nil},
		{"p3", []string{"p1", "p2", "p3"}, nil},
	} {
		link, err := l.Switch.Netlink().LinkByIndex(c.PortIndex)
		must(t, err)
		rename(t, l, link.Attrs().Name, step.to)
		r.ports("br0", step.br0...)
		r.ports("br1", step.br1...)
	}
	l.Reach(c, l.Frames(10, netlab.Broadcast, netlab.Station(3)), a, b)

	// It moves to another namespace, and back.
	elsewhere := l.NewNamespace()
	there, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer there.Close()
	home, err := netns.GetFromName(l.Switch.Name)
	must(t, err)
	defer home.Close()
	link, err := l.Switch.Netlink().LinkByIndex(c.PortIndex)
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetNsFd(link, int(there)))
	r.ports("br0", "p1", "p2")
	link, err = elsewhere.Netlink().LinkByName("p3")
	must(t, err)
	must(t, elsewhere.Netlink().LinkSetNsFd(link, int(home)))
	r.ports("br0", "p1", "p2", "p3")
	link, err = l.Switch.Netlink().LinkByName("p3")
	must(t, err)
	c.PortIndex = link.Attrs().Index
	must(t, l.Switch.Netlink().LinkSetUp(link))
	waitCable(t, l, c)
	l.Reach(c, l.Frames(10, netlab.Broadcast, netlab.Station(3)), a, b)

	if s := r.Stats(); s.Overruns != 0 || before.Refused != 0 || s.Refused != churned.Refused {
		t.Errorf("%+v, before the churn %+v, after it %+v", s, before, churned)
	}
}

// waitCable waits until both ends of a cable are up.
func waitCable(t testing.TB, l *netlab.Lab, e *netlab.End) {
	t.Helper()
	l.Wait("the cable to be up", func() bool {
		near, err := l.Switch.Netlink().LinkByName(e.Port)
		must(t, err)
		far, err := e.Namespace.Netlink().LinkByName(e.Ifname)
		must(t, err)
		return near.Attrs().OperState == netlink.OperUp && far.Attrs().OperState == netlink.OperUp
	})
}

// A port that the file names stays when its device goes, and gets the device back.
func TestNamed(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(2)
	a, b := stations[0], stations[1]
	f := file(bridgeOf("br0", "p*", "p2"))
	f.Bridges[0].Ports[1].Options.Changes = []bridge.Change{{Name: "isolated", Value: "on"}}
	r := watch(t, l, f)
	r.ports("br0", "p1", "p2")
	b.Unplug()
	r.ports("br0", "p1", "p2!")
	b.PlugAgain(0)
	r.ports("br0", "p1", "p2")
	if p := l.Port("br0", "p2"); !p.Isolated {
		t.Errorf("the port that came again is %+v, and was to be isolated", p)
	}
	l.Reach(a, l.Frames(10, netlab.Broadcast, netlab.Station(1)), b)
}

// A device that can't be a port is left alone, and is tried again when it changes.
func TestUnfit(t *testing.T) {
	l := netlab.New(t)
	linux := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	linux.Name = "linux0"
	must(t, l.Switch.Netlink().LinkAdd(linux))
	l.Keep(linux.Name)
	device := addDevice(t, l, "d0")
	must(t, l.Switch.Netlink().LinkSetMaster(device, linux))
	l.NewTun("d1")
	r := watch(t, l, file(bridgeOf("br0", "*", "host0 host")))
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	_, err = s.AddPort("br0", "host0", bridge.PortOptions{Type: bridge.TypeHost})
	must(t, err)
	addDevice(t, l, "d2")
	r.ports("br0", "host0", "d2")
	for _, device := range []string{"device=lo ", "device=linux0 ", "device=d0 ", "device=d1 ", "device=bsc"} {
		l.Wait(device+"to be spoken of", func() bool { return r.said.Lines("left alone", "level=DEBUG", device) == 1 })
	}
	must(t, l.Switch.Netlink().LinkSetNoMaster(device))
	r.ports("br0", "host0", "d2", "d0")
	// It is enslaved once more: it stays.
	must(t, l.Switch.Netlink().LinkSetMaster(device, linux))
	r.ports("br0", "host0", "d2", "d0")
	for _, name := range []string{"d0", "d1", "d2", "linux0"} {
		if n := r.said.Lines("left alone", "device="+name+" "); n > 1 {
			t.Errorf("%d lines about %s", n, name)
		}
	}
}

// A refusal is logged once, and counted, and does not keep other devices out.
func TestRefused(t *testing.T) {
	l := netlab.New(t)
	f := file(bridgeOf("br0", "d*"), bridgeOf("br1"))
	f.Bridges[0].Ports[0].Options.Hook = bridge.HookXDP // its driver has no XDP
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	f.Bridges[0].Ports = append(f.Bridges[0].Ports, config.Port{Name: "e*"})
	r := watch(t, l, f)
	device := addDevice(t, l, "d0")
	addDevice(t, l, "e0")
	r.ports("br0", "e0")
	l.Wait("a refusal", func() bool { return r.said.Lines("level=WARN", "device=d0", "XDP") == 1 })
	must(t, l.Switch.Netlink().LinkSetMTU(device, 1400))
	l.Wait("another try", func() bool { return r.Stats().Refused == 2 })
	if n := r.said.Lines("level=WARN", "device=d0"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
	// with another file
	f.Bridges[0].Ports[0].Options.Hook = ""
	f.Bridges[1].Ports = append(f.Bridges[1].Ports, config.Port{Name: "*1"})
	r.SetFile(f)
	r.ports("br0", "d0", "e0")
	// a device that has a place in both bridges is in neither
	addDevice(t, l, "e1")
	l.Wait("a refusal", func() bool { return r.said.Lines("level=WARN", "device=e1", "br0", "br1") == 1 })
	addDevice(t, l, "e2")
	r.ports("br0", "d0", "e0", "e2")
}

// A device that a person took out stays out, until the file is read again.
func TestTakenOut(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(3)
	f := file(bridgeOf("br0", "p*"))
	r := watch(t, l, f)
	r.ports("br0", "p1", "p2", "p3")
	l.Bascule("port", "del", "br0", "p2")
	stations[0].SetMTU(1400)
	stations[1].SetMTU(1400)
	stations[2].Unplug()
	r.ports("br0", "p1")
	stations[2].PlugAgain(0)
	r.ports("br0", "p1", "p3")
	r.SetFile(f)
	r.ports("br0", "p1", "p2", "p3")
}

// Devices that come at the same time are attached in few steps.
func TestBurst(t *testing.T) {
	const n = 60
	l := netlab.New(t)
	r := watch(t, l, file(bridgeOf("br0", "d*")))
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf("d%d", i))
		addDevice(t, l, want[i])
	}
	r.ports("br0", want...)
	r.vacant("br0", berths) // none of the ports is in a berth: ports that leave a berth are not taken out
	for i := range n {
		link, err := l.Switch.Netlink().LinkByName(want[i])
		must(t, err)
		must(t, l.Switch.Netlink().LinkDel(link))
	}
	r.ports("br0")
	l.Wait("all to be counted", func() bool { s := r.Stats(); return s.Attached == n && s.Removed == n })
	if s := r.Stats(); s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// Devices that come one by one find a berth with the settings of their pattern, and new berths are readied for the next
// devices.
func TestBerths(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(1)
	f := file(bridgeOf("br0", "p*", "veth-[0-9a-f]*-ext")) // its name is too long for berths
	f.Bridges[0].Settings = []bridge.Change{{Name: "vlan-filtering", Value: "on"}}
	f.Bridges[0].Ports[0].Options.Changes = []bridge.Change{{Name: "learn", Value: "off"}}
	f.Bridges[0].Ports[0].VLANs = []bridge.VLANRange{{First: 7, Last: 7, VLANOptions: bridge.VLANOptions{PVID: true, Untagged: true}}}
	var told atomic.Uint64
	r := watch(t, l, f, func(w *Watcher) { w.OnBerth(func(bridge string) { told.Add(1) }) })
	r.ports("br0", "p1")
	for n := range uint64(3) {
		r.vacant("br0", berths)
		e := l.NewEnd(l.NewNamespace())
		l.Wait("its port", func() bool { return r.Stats().Berths == n+1 })
		if p := l.Port("br0", e.Port); p.Learning || p.State != "forwarding" {
			t.Errorf("%+v", p)
		}
		l.Reach(e, l.Frames(10, netlab.Broadcast, netlab.Station(1)), stations...)
		l.Reach(stations[0], l.Frames(10, netlab.Broadcast, netlab.Station(2)), e)
		list, err := r.s.VLANs("br0")
		must(t, err)
		for _, v := range list {
			if !slices.Equal(v.Ranges, f.Bridges[0].Ports[0].VLANs) {
				t.Errorf("port %s is in VLANs %v", v.Port, v.Ranges)
			}
		}
		e.Unplug()
		r.ports("br0", "p1")
	}
	if s := r.Stats(); s.Attached != 4 || s.Removed > 3 || s.Refused != 0 || told.Load() != 3 {
		t.Errorf("%+v, told of %d", s, told.Load())
	}
}

// A device that the file makes a port is set up, or down if the file says so, once, no matter what made it a port.
func TestTap(t *testing.T) {
	l := netlab.New(t)
	tap := func(name string) {
		fd := openTap(t, l, name)
		t.Cleanup(func() { unix.Close(fd) })
		l.Keep(name)
	}
	up := func(name string) bool {
		link, err := l.Switch.Netlink().LinkByName(name)
		must(t, err)
		return link.Attrs().Flags&net.FlagUp != 0
	}
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	f := file(bridgeOf("br0", "one", "tap*", "off*", "two"))
	for i := range 2 {
		off := false
		f.Bridges[0].Ports[2+i].Up = &off
	}
	text := "of the file"
	f.Bridges[0].Ports[1].Description, f.Bridges[0].Ports[3].Description = &text, &text
	told := func(name string) {
		t.Helper()
		l.Wait(name+" to be described", func() bool {
			link, err := l.Switch.Netlink().LinkByName(name)
			must(t, err)
			return link.Attrs().Alias == text
		})
	}
	must(t, s.AddBridge("br0", nil))
	for _, name := range []string{"tap0", "one"} { // before the agent starts
		tap(name)
		_, err := s.AddPort("br0", name, bridge.PortOptions{})
		must(t, err)
	}
	r := watch(t, l, f)
	for _, name := range []string{"tap0", "one"} {
		l.Wait(name+" to be up", func() bool { return up(name) })
	}
	tap("tap1")
	l.Wait("tap1 to be up", func() bool { return up("tap1") })
	r.ports("br0", "one", "tap0", "tap1")
	for _, name := range []string{"off0", "two"} { // they are up before they are ports
		tap("none")
		l.Plug("none")
		rename(t, l, "none", name)
		l.Wait(name+" to be down", func() bool { return !up(name) })
	}
	r.ports("br0", "one", "tap0", "tap1", "off0", "two")
	for _, name := range []string{"tap0", "tap1", "two"} {
		told(name)
	}
	l.Pull("tap0")
	l.Pull("one")
	r.SetFile(f)
	tap("tap2")
	l.Wait("tap2 to be up", func() bool { return up("tap2") })
	for _, name := range []string{"one", "tap0"} {
		if up(name) {
			t.Errorf("%s is up", name)
		}
	}
}

// The same applies to a device that a command has made a port before the watcher could.
func TestTapOfOthers(t *testing.T) {
	l := netlab.New(t)
	defer runtime.GC() // it unmaps the tables of programs that this process has loaded
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	must(t, s.AddBridge("br0", nil))
	defer unix.Close(openTap(t, l, "tap0"))
	l.Keep("tap0")
	f := file(bridgeOf("br0", "tap*"))
	w := New(s, f, slog.New(slog.DiscardHandler))
	w.l, err = listen(s)
	must(t, err)
	defer w.l.close()
	devices, err := w.l.devices()
	must(t, err)
	w.t.setFile(f)
	w.t.synchronise(devices, nil)
	_, err = s.AddPort("br0", "tap0", bridge.PortOptions{})
	must(t, err)
	w.act(w.t.todo(), &chores{})
	link, err := l.Switch.Netlink().LinkByName("tap0")
	must(t, err)
	if link.Attrs().Flags&net.FlagUp == 0 {
		t.Error("it is down")
	}
}

// A bridge follows a veth whose other end moves.
func TestOtherEnd(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(1)
	e := l.NewEnd(l.Switch)
	r := watch(t, l, file(bridgeOf("br0", "p*")))
	r.ports("br0", "p1", "p2")
	r.settled("br0")
	elsewhere := l.NewNamespace()
	there, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer there.Close()
	home, err := netns.GetFromName(l.Switch.Name)
	must(t, err)
	defer home.Close()
	a := stations[0]
	before := r.Stats().Reloads

	move := func(from, to *ends.Namespace, fd netns.NsHandle) {
		t.Helper()
		link, err := from.Netlink().LinkByName(e.Ifname)
		must(t, err)
		must(t, from.Netlink().LinkSetNsFd(link, int(fd)))
		link, err = to.Netlink().LinkByName(e.Ifname)
		must(t, err)
		must(t, to.Netlink().LinkSetUp(link))
	}
	move(l.Switch, elsewhere, there)
	l.Wait("the other end to be followed away", func() bool { return r.Stats().Reloads == before+1 })
	move(elsewhere, l.Switch, home)
	l.Wait("the other end to be followed home", func() bool { return r.Stats().Reloads == before+2 })
	// frames that are handed to it in another namespace would be lost now
	e.Socket = l.Listen(l.Switch, e.Ifname)
	waitCable(t, l, e)
	l.Wait("frames to pass", func() bool {
		return len(l.Deliver(a, l.Frames(1, netlab.Broadcast, netlab.Station(1))...)[e]) == 1
	})
	l.Send(e, l.Frames(1, netlab.Broadcast, e.MAC)...)
	l.Reach(a, l.Frames(10, e.MAC, netlab.Station(1)), e)
}

// Rules that name a device's addresses follow the addresses.
func TestAddresses(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(2)
	r := watch(t, l, file(bridgeOf("br0", "p*")))
	r.ports("br0", "p1", "p2")
	r.settled("br0")
	device := addDevice(t, l, "wan0")
	rules := t.TempDir() + "/pf.conf"
	must(t, os.WriteFile(rules, []byte("block all\npass from (wan0) no state\n"), 0o600))
	l.Bascule("pfctl", "-b", "br0", "-f", rules)

	a, b := stations[0], stations[1]
	passes := func(from string) bool {
		f := packet(l, netip.MustParseAddr(from))
		return len(l.Deliver(a, f)[b]) == 1
	}
	if passes("192.0.2.1") {
		t.Error("a packet passed that no rule lets through")
	}
	set := func(change func(netlink.Link, *netlink.Addr) error, addr string) {
		t.Helper()
		ip, err := netlink.ParseAddr(addr)
		must(t, err)
		must(t, change(device, ip))
	}
	// a reload is counted when it is done, which is after it takes effect
	reloads := r.Stats().Reloads
	followed := func(what string) {
		t.Helper()
		reloads++
		l.Wait(what+" to be counted", func() bool { return r.Stats().Reloads >= reloads })
	}
	set(l.Switch.Netlink().AddrAdd, "192.0.2.1/24")
	l.Wait("the address to be let through", func() bool { return passes("192.0.2.1") })
	followed("the address")
	if passes("192.0.2.2") {
		t.Error("a packet from another address passed")
	}
	set(l.Switch.Netlink().AddrDel, "192.0.2.1/24")
	l.Wait("the address to be blocked", func() bool { return !passes("192.0.2.1") })
	followed("that it is gone")
	set(l.Switch.Netlink().AddrAdd, "192.0.2.2/24")
	l.Wait("the other address to be let through", func() bool { return passes("192.0.2.2") })
	followed("the other address")
	if passes("192.0.2.1") {
		t.Error("a packet from the address that was taken away passed")
	}
	// addresses of other devices have no effect
	before := r.Stats()
	other := addDevice(t, l, "lan0")
	ip, err := netlink.ParseAddr("198.51.100.1/24")
	must(t, err)
	must(t, l.Switch.Netlink().AddrAdd(other, ip))
	l.Wait("the event", func() bool { return r.Stats().Events > before.Events })
	rename(t, l, "wan0", "wan1")
	l.Wait("the address to go with the name", func() bool { return !passes("192.0.2.2") })
	followed("the name")
	if n := r.Stats().Reloads; n != reloads {
		t.Errorf("the rules were loaded %d times for %d changes", n, reloads)
	}
}

// Rules that name the group egress follow the default routes, also when these go with their interface, without an event
// of their own. Other routes have no effect, however many there are.
func TestDefaultRoutes(t *testing.T) {
	l := netlab.New(t)
	stations := l.NewEnds(2)
	r := watch(t, l, file(bridgeOf("br0", "p*")))
	r.ports("br0", "p1", "p2")
	nl := l.Switch.Netlink()
	device := func(name, address string) netlink.Link {
		d := addDevice(t, l, name)
		ip, err := netlink.ParseAddr(address)
		must(t, err)
		must(t, nl.AddrAdd(d, ip))
		must(t, nl.LinkSetUp(d))
		return d
	}
	one, two := device("wan0", "192.0.2.1/24"), device("wan1", "198.51.100.1/24")
	rules := t.TempDir() + "/pf.conf"
	must(t, os.WriteFile(rules, []byte("block all\npass from (egress) no state\n"), 0o600))
	if _, err := l.Run("pfctl", "-b", "br0", "-f", rules); err != nil {
		t.Fatal(err)
	}
	passes := func(want ...string) bool {
		got := []string{}
		for _, from := range []string{"192.0.2.1", "198.51.100.1"} {
			if len(l.Deliver(stations[0], packet(l, netip.MustParseAddr(from)))[stations[1]]) == 1 {
				got = append(got, from)
			}
		}
		return slices.Equal(got, want)
	}
	if !passes() {
		t.Error("without a default route, packets pass")
	}
	zero := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	by := func(link netlink.Link) *netlink.Route {
		return &netlink.Route{LinkIndex: link.Attrs().Index, Dst: zero, Scope: netlink.SCOPE_LINK}
	}
	must(t, nl.RouteAdd(by(one)))
	l.Wait("the default route to be followed", func() bool { return passes("192.0.2.1") })
	must(t, nl.RouteReplace(by(two)))
	l.Wait("another one to be followed", func() bool { return passes("198.51.100.1") })
	must(t, nl.LinkSetDown(two))
	l.Wait("the interface to go down", func() bool { return passes() })
	six := &netlink.Route{LinkIndex: one.Attrs().Index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	must(t, l.Switch.Do(func() error { return ends.Sysctl("net.ipv6.conf.wan0.disable_ipv6", "0") }))
	must(t, nl.RouteAdd(six))
	l.Wait("that of IPv6 to be followed", func() bool { return passes("192.0.2.1") })
	must(t, nl.RouteDel(six))
	l.Wait("that of IPv6 to go", func() bool { return passes() })

	before := r.Stats().Events
	for n := range 100 {
		to := &net.IPNet{IP: net.IPv4(10, 1, byte(n), 0).To4(), Mask: net.CIDRMask(24, 32)}
		must(t, nl.RouteAdd(&netlink.Route{LinkIndex: one.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}))
	}
	must(t, nl.RouteAdd(by(one)))
	l.Wait("the default route to be followed again", func() bool { return passes("192.0.2.1") })
	if n := r.Stats().Events - before; n >= 100 {
		t.Errorf("%d events for one default route among 101 routes", n)
	}
}

// A port that was plugged by an ID stays when its device goes, and no pattern takes the next device of its name: that
// device would lack the rules of the plug.
func TestPluggedStays(t *testing.T) {
	for name, pf := range map[string]bool{"with rules": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			l := netlab.New(t)
			r := watch(t, l, file(bridgeOf("br0", "d*")))
			addDevice(t, l, "d1")
			r.ports("br0", "d1")
			plug := []string{"plug", "g1", "--bridge", "br0", "--device", "d1"}
			if pf {
				rules := t.TempDir() + "/guest.conf"
				must(t, os.WriteFile(rules, []byte("block\n"), 0o600))
				plug = append(plug, "--pf", rules)
			}
			l.Bascule(plug...)
			old, err := l.Switch.Netlink().LinkByName("d1")
			must(t, err)
			must(t, l.Switch.Netlink().LinkDel(old))
			r.ports("br0", "d1!")
			addDevice(t, l, "d1")
			addDevice(t, l, "d2")
			r.ports("br0", "d1!", "d2")
			l.Wait("the log to say why", func() bool { return strings.Contains(r.said.String(), "plugged with the id g1") })
			l.Bascule(plug...)
			r.ports("br0", "d1", "d2")
			// It does not leave with its name either.
			rename(t, l, "d1", "e1")
			addDevice(t, l, "d3")
			r.ports("br0", "d2", "d3", "e1")
		})
	}
}

// packet is a UDP packet from an address.
func packet(l *netlab.Lab, from netip.Addr) netlab.Frame {
	b := []byte(l.Frame(netlab.Broadcast, netlab.Station(1), 60))
	b[12], b[13] = 0x08, 0x00
	ip := b[14:34]
	clear(b[14:])
	ip[0], ip[3], ip[8], ip[9] = 0x45, 46, 64, unix.IPPROTO_UDP
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], []byte{203, 0, 113, 1})
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = sum>>16 + sum&0xffff
	ip[10], ip[11] = ^byte(sum>>8), ^byte(sum)
	b[14+20+5] = 26 // UDP's length
	return netlab.Frame(b)
}

// Lost events are noticed, and have no further effect.
func TestOverrun(t *testing.T) {
	l := netlab.New(t)
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	ear, err := listen(s)
	must(t, err)
	defer ear.close()
	raw, err := ear.events.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { must(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)) }))
	const n = 40
	for i := range n {
		addDevice(t, l, fmt.Sprintf("d%d", i))
	}
	tb := newTable(file(bridgeOf("br0", "d*")))
	if _, err := ear.next(tb); !errors.Is(err, errOverrun) {
		t.Fatalf("error %v, want that events were lost", err)
	}
	devices, err := ear.devices()
	must(t, err)
	tb.synchronise(devices, nil)
	if got := len(tb.todo().attach); got != n {
		t.Errorf("%d devices are to be attached, want %d", got, n)
	}
}

// A watcher that runs again after an error still has the file, and the changes by a person. It makes up for missed
// events.
func TestRunAgain(t *testing.T) {
	l := netlab.New(t)
	r := watch(t, l, file(bridgeOf("br0", "d*")))
	addDevice(t, l, "d0")
	gone := addDevice(t, l, "d1")
	addDevice(t, l, "d2")
	r.ports("br0", "d0", "d1", "d2")
	r.fail()
	l.Bascule("port", "del", "br0", "d0")
	must(t, l.Switch.Netlink().LinkDel(gone))
	addDevice(t, l, "d3")
	r.run()
	r.ports("br0", "d2", "d3")
	r.vacant("br0", berths)
	addDevice(t, l, "d4")
	r.ports("br0", "d2", "d3", "d4")
}

// If devices come and go too fast to be listed, they are listed later.
func TestRestless(t *testing.T) {
	l := netlab.New(t)
	addDevice(t, l, "d0")
	r := watch(t, l, file(bridgeOf("br0", "d*")), func(w *Watcher) {
		w.listen = func(s *bridge.Switch) (*listener, error) {
			ear, err := listen(s)
			if err != nil {
				return nil, err
			}
			n := 0
			ear.links = func() ([]netlink.Link, error) {
				if n++; n <= 25 {
					return nil, netlink.ErrDumpInterrupted
				}
				return ear.conn.LinkList()
			}
			return ear, nil
		}
	})
	r.ports("br0", "d0")
	if n := r.said.Lines("level=WARN", "they change too fast"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

// A bridge that can't be read for a moment keeps its ports.
func TestUnread(t *testing.T) {
	l := netlab.New(t)
	r := watch(t, l, file(bridgeOf("br0", "d*")))
	addDevice(t, l, "d0")
	r.ports("br0", "d0")
	r.vacant("br0", berths) // and does not change
	r.fail()
	cookie, err := l.Switch.Cookie()
	must(t, err)
	config := fmt.Sprintf("%s/%d/br0/current/config", datapath.Root, cookie)
	must(t, os.Rename(config, config+"-aside"))
	defer os.Rename(config+"-aside", config) // in case the test fails in between
	r.run()
	l.Wait("a warning", func() bool { return r.said.Lines("level=WARN", "cannot list all", "br0") == 1 })
	must(t, os.Rename(config+"-aside", config))
	rename(t, l, "d0", "other")
	r.ports("br0")
	addDevice(t, l, "d1")
	r.ports("br0", "d1")
}
