// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"

	"bascule/bridge"
	"bascule/test/netlab"
)

// There is no command for berths: a permanent process fills them.
var berthCases = []conformance{
	{name: "berth_port", hooks: tcx, run: berthPort},
	{name: "berth_looked_at", hooks: tcx, run: berthLookedAt},
	{name: "berth_settings", hooks: tcx, run: berthSettings},
	{name: "berth_not_ok", hooks: tcx, run: berthNotOK},
	{name: "berth_device_goes", hooks: tcx, run: berthDeviceGoes},
	{name: "berth_two_processes", hooks: tcx, run: berthTwoProcesses},
	{name: "berth_killed_anywhere", hooks: tcx, run: berthKilledAnywhere},
}

// occupyWord is the argument by which the test's own program occupies a berth.
const occupyWord = "occupy"

// occupy is that program. Its arguments are -n, the namespace, the word, the bridge, the
// pattern and the device. It prints whether the device is a port.
func occupy(args []string) int {
	s, err := bridge.Open(args[1])
	if err == nil {
		var ok bool
		ok, _, err = s.Occupy(args[3], args[4], args[5])
		fmt.Print(ok)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// openSwitch opens the lab's switch without the command line.
func openSwitch(t *testing.T, l *netlab.Lab) *bridge.Switch {
	t.Helper()
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	t.Cleanup(func() {
		s.Close()
		// The objects that a generation was made from stay mapped until they are
		// collected.
		runtime.GC()
		runtime.GC()
	})
	return s
}

func setBerths(t *testing.T, s *bridge.Switch, list ...bridge.Berth) {
	t.Helper()
	must(t, s.SetBerths("br0", list))
}

// wantOccupied moves a device into a berth, which must succeed.
func wantOccupied(t *testing.T, s *bridge.Switch, pattern, device string, want bool) {
	t.Helper()
	ok, warnings, err := s.Occupy("br0", pattern, device)
	if ok != want || len(warnings) > 0 || err != nil {
		t.Fatalf("%s in a berth of %s: %v, warnings %q, error %v; want %v", device, pattern, ok, warnings, err, want)
	}
}

func wantBerths(t *testing.T, s *bridge.Switch, want ...bridge.Berth) {
	t.Helper()
	list, err := s.Berths("br0")
	must(t, err)
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("berths (-want +got)\n%s", diff)
	}
}

func berthPort(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	more := l.NewEnds(3)
	c, d, e := more[0], more[1], more[2]
	E, F := netlab.Station(5), netlab.Station(6)
	s := openSwitch(t, l)
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 2})
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
	if ports := l.Bridge("br0").Ports; len(ports) != 2 {
		t.Errorf("ports with vacant berths: %q", ports)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events := make(chan bridge.Event, 100)
	var monitor sync.WaitGroup
	monitor.Go(func() {
		_ = s.Monitor(ctx, "br0", func(e bridge.Event) error {
			if e.Kind == "learned" || strings.HasPrefix(e.Kind, "port-") {
				events <- e
			}
			return nil
		})
	})
	learn(l, a, B) // a monitor that has shown this event shows all later ones
	for seen := false; !seen; {
		select {
		case <-events:
			seen = true
		case <-time.After(100 * time.Millisecond):
			l.Bascule("fdb", "flush", "br0")
			learn(l, a, B)
		}
	}

	// The monitor compares its view with the state at each look: it has to look before the
	// next change.
	told := func(want string) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if e.Kind == "learned" {
					continue
				}
				if got := e.Kind + " " + e.Port; got != want {
					t.Fatalf("the monitor told %q, want %q", got, want)
				}
				return
			case <-time.After(patience):
				t.Fatalf("the monitor did not tell %q", want)
			}
		}
	}

	wantOccupied(t, s, "p*", c.Port, true)
	told("port-added " + c.Port)
	if p := l.Port("br0", c.Port); p.State != "forwarding" || p.Type != "netdev" || p.Hook != "tcx" || p.Ifindex != c.PortIndex || !slices.Contains(p.Flags, "PROMISC") {
		t.Errorf("the port in a berth is shown as %+v", p)
	}
	l.Reach(c, l.Frames(3, netlab.Broadcast, C), a, b)
	l.Reach(a, l.Frames(3, C, A), c)
	l.Reach(c, l.Frames(3, A, C), a)
	l.Reach(b, l.Frames(3, netlab.Broadcast, D), a, c)
	wantOccupied(t, s, "p*", c.Port, false)
	wantOccupied(t, s, "p*", d.Port, true)
	told("port-added " + d.Port)
	wantOccupied(t, s, "p*", e.Port, false)
	l.Reach(d, l.Frames(3, C, E), c)
	wantBerths(t, s)
	if ports := l.Bridge("br0").Ports; len(ports) != 4 {
		t.Errorf("ports: %q", ports)
	}
	l.Bascule("fdb", "add", "br0", F.String(), d.Port)

	// Whatever is changed now, they are ordinary ports.
	l.Bascule("bridge", "set", "br0", "--ageing", "200")
	entries := l.FDB("br0")
	for _, want := range []string{dynamic(C, 0, c), dynamic(E, 0, d), static(F, 0, d)} {
		if !slices.ContainsFunc(entries, func(e netlab.FDBEntry) bool { return e.String() == want }) {
			t.Errorf("no %s in the FDB after a change: %v", want, entries)
		}
	}
	l.Reach(c, l.Frames(3, F, C), d)
	l.Reach(d, l.Frames(3, netlab.Broadcast, E), a, b, c)
	l.Bascule("port", "set", "br0", c.Port, "--learn=off")
	l.Bascule("port", "del", "br0", d.Port)
	told("port-removed " + d.Port)
	if err := d.Unchanged(); err != nil {
		t.Error(err)
	}
	l.Bascule("port", "del", "br0", c.Port)
	told("port-removed " + c.Port)
	if err := c.Unchanged(); err != nil {
		t.Error(err)
	}

	// They may also be deleted while they are in the berth.
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
	wantOccupied(t, s, "p*", e.Port, true)
	told("port-added " + e.Port)
	l.Bascule("port", "del", "br0", e.Port)
	told("port-removed " + e.Port)
	if err := e.Unchanged(); err != nil {
		t.Error(err)
	}
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
	stop()
	monitor.Wait()
}

// berthLookedAt captures and traces frames of a port in a berth.
func berthLookedAt(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a := ends[0]
	c := l.NewEnds(1)[0]
	s := openSwitch(t, l)
	learn(l, a, A)
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
	run := startCapture(t, l)
	l.Wait("the capture to show a frame", func() bool {
		l.Send(a, l.Frames(1, netlab.Broadcast, A)...)
		return run.stdout.String() != ""
	})
	wantOccupied(t, s, "p*", c.Port, true)
	learn(l, c, C)
	for _, way := range []struct {
		in, out  *netlab.End
		dst, src netlab.MAC
	}{{a, c, C, A}, {c, a, A, C}} {
		var list []traceResult
		f := l.Frame(way.dst, way.src, 100)
		l.JSON(&list, "trace", "br0", "--in", way.in.Port, hex.EncodeToString([]byte(f)))
		if len(list) != 1 || !slices.Equal(list[0].Out, []string{way.out.Port}) {
			t.Errorf("from %s to %s: traced %v", way.in.Port, way.out.Port, list)
		}
		l.Reach(way.in, []netlab.Frame{f}, way.out)
	}
	run.stop()
	for _, want := range []string{
		fmt.Sprintf("%s out %s > %s", c.Port, A, C),
		fmt.Sprintf("%s in %s > %s", c.Port, C, A),
	} {
		if !strings.Contains(run.stdout.String(), want) {
			t.Errorf("the capture does not show %q:\n%s", want, run.stdout.String())
		}
	}
}

// berthSettings: a port in a berth has the berth's settings and VLANs.
func berthSettings(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10T20", "20", "1"})
	l.Bascule("bridge", "set", "br0", "--default-pvid", "1") // none of them follows this
	a, b, c := ends[0], ends[1], ends[2]
	more := l.NewEnds(2)
	d, e := more[0], more[1]
	s := openSwitch(t, l)
	berths := []bridge.Berth{
		{Pattern: "x*", Count: 1},
		{
			Pattern: "y*", Count: 2,
			Options: bridge.PortOptions{Changes: []bridge.Change{{Name: "learn", Value: "off"}, {Name: "fdb-max", Value: "7"}, {Name: "storm-bcast", Value: "1000pps"}}},
			VLANs: []bridge.VLANRange{
				{First: 10, Last: 10, VLANOptions: bridge.VLANOptions{Untagged: true, PVID: true}},
				{First: 20, Last: 21},
			},
		},
	}
	setBerths(t, s, berths...)
	wantBerths(t, s, berths...)
	before, err := l.Objects()
	must(t, err)
	slices.Reverse(berths[1].VLANs) // in any order
	setBerths(t, s, berths...)
	slices.Reverse(berths[1].VLANs)
	now, err := l.Objects()
	must(t, err)
	if diff := cmp.Diff(before, now); diff != "" {
		t.Errorf("the same berths made something else of the bridge (-was +is)\n%s", diff)
	}
	wantOccupied(t, s, "x*", d.Port, true)
	wantOccupied(t, s, "y*", e.Port, true)
	p := l.Port("br0", e.Port)
	if p.Learning || p.FDBMax != 7 || p.StormBcast != "1000pps" {
		t.Errorf("the port is shown as %+v", p)
	}
	for range 2 {
		l.Reach(d, l.Frames(3, netlab.Broadcast, D), c)
		l.Reach(e, l.Frames(3, netlab.Broadcast, netlab.Station(5)), a)
		tagged := func(frames []netlab.Frame) (list []netlab.Frame) {
			for _, f := range frames {
				list = append(list, f.Tagged(20, 0))
			}
			return list
		}
		frames := l.Frames(3, netlab.Broadcast, B)
		got := l.Deliver(b, frames...)
		for _, at := range []*netlab.End{a, e} {
			if !slices.Equal(got[at], tagged(frames)) {
				t.Errorf("%s got %v of VLAN 20", at.Port, got[at])
			}
		}
		l.Bascule("bridge", "set", "br0") // an ordinary port now
		berths[1].Count = 1
		wantBerths(t, s, berths[1])
	}
	// Other berths with the same number of ports.
	other := bridge.Berth{Pattern: "y*", Count: 3, VLANs: []bridge.VLANRange{}}
	setBerths(t, s, other)
	wantBerths(t, s, other)
	// A berth follows the default VLAN like a port.
	setBerths(t, s, bridge.Berth{Pattern: "x*", Count: 1})
	l.Bascule("bridge", "set", "br0", "--default-pvid", "2")
	wantBerths(t, s, bridge.Berth{Pattern: "x*", Count: 1})

	// As many as there is room for.
	for range 2 {
		setBerths(t, s, bridge.Berth{Pattern: "x*", Count: 5000})
		wantBerths(t, s, bridge.Berth{Pattern: "x*", Count: 1023 - len(l.Bridge("br0").Ports)})
	}

	var usage *bridge.UsageError
	for _, b := range []bridge.Berth{
		{Count: 1},
		{Pattern: "sixteen-letters*", Count: 1},
		{Pattern: "p*", Count: 1, Options: bridge.PortOptions{Type: "host"}},
		{Pattern: "p*", Count: 1, Options: bridge.PortOptions{Peer: "br1/x"}},
		{Pattern: "p*", Count: 1, Options: bridge.PortOptions{Hook: "xtc"}},
		{Pattern: "p*", Count: 1, VLANs: []bridge.VLANRange{{First: 2, Last: 1}}},
		{Pattern: "p*", Count: 1, VLANs: []bridge.VLANRange{{First: 1, Last: 3}, {First: 2, Last: 2}}},
		{Pattern: "p*", Count: 1, VLANs: []bridge.VLANRange{{First: 1, Last: 3, VLANOptions: bridge.VLANOptions{PVID: true}}}},
		{Pattern: "p*", Count: 1, Options: bridge.PortOptions{Changes: []bridge.Change{{Name: "learned", Value: "on"}}}},
	} {
		if err := s.SetBerths("br0", []bridge.Berth{b}); !errors.As(err, &usage) {
			t.Errorf("%+v: error %v", b, err)
		}
	}
	if err := s.SetBerths("br0", []bridge.Berth{{Pattern: "p*", Count: 1}, {Pattern: "p*", Count: 1}}); !errors.As(err, &usage) {
		t.Errorf("a pattern twice: error %v", err)
	}
	if err := s.SetBerths("br9", nil); err == nil {
		t.Error("no error of a bridge that is not there")
	}
	setBerths(t, s)
	wantBerths(t, s)
}

// berthNotOK: Occupy does not handle the devices that need AddPort.
func berthNotOK(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a := ends[0]
	spare, gone := l.NewEnds(1)[0], l.NewEnds(1)[0]
	s := openSwitch(t, l)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	l.Bascule("port", "add", "br0", gone.Port)
	gone.Unplug()
	gone.PlugAgain(0)
	l.NewTun("tun0")
	setBerths(t, s, bridge.Berth{Pattern: "*", Count: 2}, bridge.Berth{Pattern: "q*", Count: 1, Options: bridge.PortOptions{Hook: "xdp"}})
	wantBerths(t, s, bridge.Berth{Pattern: "*", Count: 2})
	for _, device := range []string{"nowhere", "lo", "tun0", "host0", a.Port, gone.Port} {
		wantOccupied(t, s, "*", device, false)
	}
	wantOccupied(t, s, "q*", spare.Port, false)
	wantOccupied(t, s, "p*", spare.Port, false)
	if _, _, err := s.Occupy("br9", "*", spare.Port); err == nil {
		t.Error("no error of a bridge that is not there")
	}
	if _, _, err := s.Occupy("br0", "*", "a b"); err == nil {
		t.Error("no error of a name that no device has")
	}
	l.Bascule("bridge", "add", "br1")
	l.Bascule("port", "add", "br1", spare.Port)
	wantOccupied(t, s, "*", spare.Port, false)
	l.Bascule("bridge", "del", "br1")

	rules := t.TempDir() + "/pf.conf"
	must(t, os.WriteFile(rules, []byte("block in on "+spare.Port+"\npass\n"), 0o644))
	pfctl(t, l, "", "-b", "br0", "-f", rules)
	wantOccupied(t, s, "*", spare.Port, false)
	pfctl(t, l, "", "-b", "br0", "-F", "all")
	wantBerths(t, s, bridge.Berth{Pattern: "*", Count: 2})
	if ports := l.Bridge("br0").Ports; len(ports) != 4 {
		t.Errorf("ports %q", ports)
	}
}

// berthDeviceGoes: a berth whose device was deleted is vacant, and the next device inherits no
// state.
func berthDeviceGoes(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	c := l.NewEnds(1)[0]
	s := openSwitch(t, l)
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
	wantOccupied(t, s, "p*", c.Port, true)
	F := netlab.Station(6)
	learn(l, c, C)
	l.Bascule("fdb", "add", "br0", F.String(), c.Port)
	index := c.PortIndex
	c.Unplug()
	l.Wait("the berth to be vacant", func() bool { return len(l.Bridge("br0").Ports) == 2 })
	l.Reach(a, l.Frames(3, C, A), b)
	wantFDB(t, l, "br0", dynamic(A, 0, a))
	c.PlugAgain(index)
	wantOccupied(t, s, "p*", c.Port, false)
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
	wantBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
	wantOccupied(t, s, "p*", c.Port, true)
	wantFDB(t, l, "br0", dynamic(A, 0, a))
	l.Reach(c, l.Frames(3, netlab.Broadcast, D), a, b)
	l.Reach(a, l.Frames(3, F, A), b, c)

	// A device that is renamed, and one that is moved away.
	link, err := l.Switch.Netlink().LinkByIndex(c.PortIndex)
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetDown(link))
	must(t, l.Switch.Netlink().LinkSetName(link, "other"))
	must(t, l.Switch.Netlink().LinkSetUp(link))
	if ports := l.Bridge("br0").Ports; !slices.Contains(ports, "other") {
		t.Errorf("ports %q after one was renamed", ports)
	}
	must(t, l.Switch.Netlink().LinkSetDown(link))
	must(t, l.Switch.Netlink().LinkSetName(link, c.Port))
	must(t, l.Switch.Netlink().LinkSetUp(link))
	elsewhere := l.NewNamespace()
	handle, err := netns.GetFromName(elsewhere.Name)
	must(t, err)
	defer handle.Close()
	must(t, l.Switch.Netlink().LinkSetNsFd(link, int(handle)))
	c.Leave()
	if ports := l.Bridge("br0").Ports; len(ports) != 2 {
		t.Errorf("ports %q after one was moved away", ports)
	}
	l.Reach(a, l.Frames(3, D, A), b)
	l.Bascule("bridge", "set", "br0")
	wantBerths(t, s, bridge.Berth{Pattern: "p*", Count: 1})
}

// berthTwoProcesses: processes occupy berths at the same time.
func berthTwoProcesses(t *testing.T, hook string) {
	const berths, devices = 5, 8
	l, ends := setup(t, hook, 1)
	far := l.NewNamespace()
	var more []*netlab.End
	for range devices {
		more = append(more, l.NewEnd(far))
	}
	s := openSwitch(t, l)
	setBerths(t, s, bridge.Berth{Pattern: "p*", Count: berths})
	var wg sync.WaitGroup
	ok := make([]string, 2*devices)
	for i := range ok { // each device twice
		wg.Go(func() {
			out, err := exec.Command(os.Args[0], "-n", l.Switch.Name, occupyWord, "br0", "p*", more[i/2].Port).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			ok[i] = string(out)
		})
	}
	wg.Wait()
	var ports []*netlab.End
	for i, e := range more {
		switch {
		case ok[2*i] == "true" && ok[2*i+1] == "true":
			t.Errorf("%s is a port twice", e.Port)
		case ok[2*i] == "true" || ok[2*i+1] == "true":
			ports = append(ports, e)
		}
	}
	if n := len(l.Bridge("br0").Ports); len(ports) != berths || n != berths+1 {
		t.Errorf("%d devices were said to be in berths, and the bridge has %d ports; there were %d berths", len(ports), n, berths)
	}
	for range 2 {
		l.Reach(ends[0], l.Frames(3, netlab.Broadcast, A), ports...)
		l.Reach(ports[0], l.Frames(3, A, B), ends[0])
		l.Bascule("bridge", "set", "br0")
	}
}

// berthKilledAnywhere kills a process that occupies a berth as it enters a system call.
func berthKilledAnywhere(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	spare := l.NewEnds(1)[0]
	s := openSwitch(t, l)
	learn(l, a, A)
	learn(l, b, B)
	before, err := l.Objects()
	must(t, err)

	program := l.Binary()
	args := []string{occupyWord, "br0", "p*", spare.Port}
	ready := func() {
		t.Helper()
		if slices.Contains(l.Bridge("br0").Ports, spare.Port) {
			l.Bascule("port", "del", "br0", spare.Port)
		}
		setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 2})
		wantBerths(t, s, bridge.Berth{Pattern: "p*", Count: 2})
	}
	withProgram := func(path string, f func()) {
		l.SetBinary(path)
		defer l.SetBinary(program)
		f()
	}
	var points []killPoint
	ready()
	withProgram(os.Args[0], func() {
		points = killPoints(t, l, fixed(args), func() { withProgram(program, ready); l.SetBinary(os.Args[0]) })
	})
	if len(points) < 10 {
		t.Fatalf("it makes only these calls: %v", points)
	}
	points = somePoints(points, 30)
	kills, ports := 0, 0
	for i, p := range points {
		ready()
		killed := false
		withProgram(os.Args[0], func() { killed = kill(t, l, p, args) })
		if killed {
			kills++
		}
		wantPromiscuous(t, l, spare)
		l.Reach(a, l.Frames(3, B, A), b)
		l.Reach(b, l.Frames(3, A, B), a)
		switch i % 3 { // the next command
		case 0:
			l.Bascule("bridge", "set", "br0")
		case 1:
			ok, _, err := s.Occupy("br0", "p*", spare.Port)
			must(t, err)
			if !ok { // it is a port, or there is something to mend
				l.Bascule("bridge", "set", "br0")
			}
		case 2:
			setBerths(t, s, bridge.Berth{Pattern: "p*", Count: 3})
		}
		if slices.Contains(l.Bridge("br0").Ports, spare.Port) {
			ports++
		} else {
			l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
			if err := spare.Unchanged(); err != nil {
				t.Errorf("no port: %v", err)
			}
			l.Bascule("port", "add", "br0", spare.Port)
		}
		l.Reach(spare, l.Frames(3, netlab.Broadcast, C), a, b)
		l.Reach(a, l.Frames(3, C, A), spare)
		if p := l.Port("br0", spare.Port); !slices.Contains(p.Flags, "PROMISC") {
			t.Errorf("the port is not promiscuous: %v", p.Flags)
		}
		if t.Failed() {
			t.Fatalf("killed: %v, in %s number %d", killed, p.call, p.n)
		}
	}
	t.Logf("killed at %d points of %d, after which the device was a port %d times", kills, len(points), ports)
	if kills < len(points)/2 || ports == 0 || ports == len(points) {
		t.Error("it got away from most of its kills, or the device was always a port, or never")
	}
	ready()
	if err := spare.Unchanged(); err != nil {
		t.Error(err)
	}
	setBerths(t, s)
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, b))
	wantAsMany(t, l, before)
}
