// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

var lifeCases = []conformance{
	{name: "cli_killed_anywhere", hooks: tcx, run: cliKilledAnywhere},
	{name: "change_killed", hooks: tcx, run: changeKilled},
	{name: "rules_killed", hooks: tcx, run: rulesKilled},
	{name: "two_writers", hooks: tcx, run: twoWriters},
	{name: "apply_unread", hooks: tcx, run: applyUnread},
	{name: "reconfigure_under_load", hooks: tcx, run: reconfigureUnderLoad},
	{name: "upgrade_under_load", hooks: both, run: upgradeUnderLoad},
	{name: "no_agent", hooks: tcx, run: noAgent},
	{name: "unprivileged", hooks: tcx, run: unprivileged},
}

// boundaries are the system calls by which a command makes changes. A command is killed as it enters one.
var boundaries = []string{
	"bpf", "mount", "mkdirat", "mkdir", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir",
	"symlinkat", "sendto", "sendmsg", "setns", "ioctl", "flock",
}

// A killPoint is a system call of a command: the n-th call with its name.
type killPoint struct {
	call string
	n    int
}

// cliKilledAnywhere kills each command as it enters a system call. After each kill the next command works and completes
// or undoes the change. Other ports are not affected.
func cliKilledAnywhere(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	spare := l.NewEnds(1)[0]
	learn(l, a, A)
	learn(l, b, B)
	before, err := l.Objects()
	must(t, err)

	has := func(bridge, port string) bool { return slices.Contains(l.Bridge(bridge).Ports, port) }
	exists := func(bridge string) bool {
		var list []netlab.BridgeInfo
		l.JSON(&list, "bridge", "show")
		return slices.ContainsFunc(list, func(i netlab.BridgeInfo) bool { return i.Ifname == bridge })
	}
	ensure := func(there, wanted bool, add, del []string) {
		t.Helper()
		if there && !wanted {
			l.Bascule(del...)
		}
		if !there && wanted {
			l.Bascule(add...)
		}
	}
	words := strings.Fields
	bridge := func(wanted bool) {
		ensure(exists("br1"), wanted, words("bridge add br1"), words("bridge del br1"))
	}
	port := func(wanted bool) {
		ensure(has("br0", spare.Port), wanted, words("port add br0 "+spare.Port), words("port del br0 "+spare.Port))
	}
	host := func(wanted bool) {
		ensure(has("br0", "host0"), wanted, words("port add br0 host0 --type host"), words("port del br0 host0"))
	}
	entry := func(wanted bool) {
		ensure(find(l.FDB("br0"), C, 0) != nil, wanted, words("fdb add br0 "+C.String()+" "+a.Port), words("fdb del br0 "+C.String()))
	}
	number := 0
	setting := func(shown func() int, command string) (args func() []string, after func()) {
		old := 0
		args = func() []string {
			old = shown()
			number++
			return words(command + fmt.Sprint(1000+number))
		}
		after = func() {
			t.Helper()
			if now := shown(); now != old && now != 1000+number {
				t.Errorf("%s: shows %d, was %d and should become %d", command, now, old, 1000+number)
			}
			l.Bascule(words(command + fmt.Sprint(1000+number))...)
			if now := shown(); now != 1000+number {
				t.Errorf("%s: shows %d, should show %d", command, now, 1000+number)
			}
		}
		return args, after
	}
	bridgeSet, bridgeWasSet := setting(func() int { return l.Bridge("br0").FDBMax }, "bridge set br0 --fdb-max ")
	portSet, portWasSet := setting(func() int { return l.Port("br0", b.Port).FDBMax }, "port set br0 "+b.Port+" --fdb-max ")
	always := func(args string) func() []string { return func() []string { return words(args) } }

	for _, c := range []struct {
		name   string
		before func()          // prepares the command
		args   func() []string // returns the command
		after  func()          // checks after a kill, and mends with other commands
	}{
		{"bridge add", func() { bridge(false) }, always("bridge add br1"), func() { bridge(true); l.Bascule("bridge", "set", "br1") }},
		{"bridge set", func() {}, bridgeSet, bridgeWasSet},
		{"bridge del", func() {
			port(false)
			bridge(true)
			if !has("br1", spare.Port) {
				l.Bascule("port", "add", "br1", spare.Port)
			}
		}, always("bridge del br1"), func() { bridge(false); bridge(true); bridge(false) }},
		{"port add", func() { port(false) }, always("port add br0 " + spare.Port), func() { port(true) }},
		{"port set", func() {}, portSet, portWasSet},
		{"port del", func() { port(true) }, always("port del br0 " + spare.Port), func() { port(false) }},
		{"port add host", func() { host(false) }, always("port add br0 host0 --type host"), func() { host(true) }},
		{"port del host", func() { host(true) }, always("port del br0 host0"), func() { host(false) }},
		{"plug", func() { l.Bascule("unplug", "guest"); port(false) }, always("plug guest --bridge br0 --device " + spare.Port + " --binding " + C.String() + "=192.0.2.9"), func() {
			// The port has its ID and its binding, or there is no port.
			if has("br0", spare.Port) && plugged(l, "br0")[spare.Port] != "guest" {
				t.Error("there is a port without its id")
			}
			if bound := strings.Contains(l.Bascule("binding", "show", "br0"), "192.0.2.9"); bound != has("br0", spare.Port) {
				t.Errorf("the port is there: %v, and its binding: %v", !bound, bound)
			}
			l.Bascule("plug", "guest", "--bridge", "br0", "--device", spare.Port)
			wantPlugged(t, l, "br0", map[string]string{spare.Port: "guest"})
		}},
		{"unplug", func() { l.Bascule("plug", "guest", "--bridge", "br0", "--device", spare.Port) }, always("unplug guest"), func() {
			if has("br0", spare.Port) && plugged(l, "br0")[spare.Port] != "guest" {
				t.Error("there is a port without its id")
			}
			l.Bascule("unplug", "guest")
			port(false)
		}},
		{"fdb add", func() { entry(false) }, always("fdb add br0 " + C.String() + " " + a.Port), func() { entry(true) }},
	} {
		c.before()
		points := killPoints(t, l, c.args, func() { c.after(); c.before() })
		c.after()
		if len(points) < 10 {
			t.Fatalf("%s makes only these calls: %v", c.name, points)
		}
		points = somePoints(points, 12)
		kills := 0
		for _, p := range points {
			c.before()
			killed := kill(t, l, p, c.args())
			if killed {
				kills++
			}
			// Through ports that the command was not about.
			l.Reach(a, l.Frames(3, B, A), b)
			l.Reach(b, l.Frames(3, A, B), a)
			c.after()
			l.Reach(a, l.Frames(3, B, A), b)
			if t.Failed() {
				t.Fatalf("the command was %s, killed: %v, in %s number %d", c.name, killed, p.call, p.n)
			}
		}
		t.Logf("%s: killed at %d points of %d", c.name, kills, len(points))
		if kills < len(points)/2 {
			t.Errorf("%s got away from most of its kills", c.name)
		}
	}

	// Everything is as it was.
	bridge(false)
	port(false)
	host(false)
	entry(false)
	wantNoLinks(t, l)
	if err := spare.Unchanged(); err != nil {
		t.Error(err)
	}
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, b))
	l.Bascule("bridge", "set", "br0")
	wantAsMany(t, l, before)
}

// changeKilled kills commands that change a setting, in most cases after the change is made. The next command that
// writes, of any kind, completes the consequences of the change: no state is left that contradicts it.
func changeKilled(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10T20", "10"})
	a, b := ends[0], ends[1]
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(host)
	own := netlab.MAC(host.Attrs().HardwareAddr)
	x, y := cabled(t, l, hook) // A loop that includes the host.
	join(l, "br0", x, "30")
	outside := l.Listen(l.Switch, y)
	before, err := l.Objects()
	must(t, err)
	run := func(commands ...string) func() {
		return func() {
			t.Helper()
			for _, c := range commands {
				l.Bascule(strings.Fields(c)...)
			}
		}
	}
	in := func(port string, vid int) func() bool {
		return func() bool {
			var list []portVLANs
			l.JSON(&list, "vlan", "show", "br0", port)
			for _, v := range list[0].VLANs {
				if v.VLAN == vid || v.VLAN < vid && vid <= v.End {
					return true
				}
			}
			return false
		}
	}
	// The VLANs in which a port has learned addresses, or others.
	known := func(port, kind string, want ...int) {
		t.Helper()
		var got []int
		for _, e := range l.FDB("br0", "--port", port, kind) {
			got = append(got, e.VLAN)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has addresses (%s) in VLANs %v, should be in %v", port, kind, got, want)
		}
	}
	flood := func(n int) []netlab.Frame { return l.Frames(n, netlab.Broadcast, A) }
	crowd := func() {
		var frames []netlab.Frame
		for i := range 20 {
			frames = append(frames, l.Frame(own, netlab.Station(100+i), 60))
		}
		l.Send(a, frames...)
	}
	atMost := func(want int) func() {
		return func() {
			t.Helper()
			if n := len(l.FDB("br0", "--port", a.Port, "--dynamic")); n > want {
				t.Errorf("%d learned addresses at a port, should be %d at most", n, want)
			}
		}
	}

	for _, c := range []struct {
		command string
		before  func()
		made    func() bool // whether the change is made
		check   func()      // what holds after the change
	}{
		{
			"vlan del br0 " + a.Port + " 20",
			func() {
				run("vlan add br0 "+a.Port+" 20", "fdb add br0 "+C.String()+" "+a.Port+" --vlan 20")()
				l.Send(a, tag(20)(l.Frame(netlab.Broadcast, A, 60)))
			},
			func() bool { return !in(a.Port, 20)() },
			func() {
				known(a.Port, "--static")
				if find(l.FDB("br0"), A, 20) != nil {
					t.Error("a learned address is left in the VLAN")
				}
			},
		},
		{"vlan add br0 host0 20", run("vlan add br0 host0 30", "vlan add br0 host0 20", "vlan del br0 host0 20"), in("host0", 20), func() { known("host0", "--static", 20, 30) }},
		{"vlan del br0 host0 20", run("vlan add br0 host0 20"), func() bool { return !in("host0", 20)() }, func() { known("host0", "--static", 30) }},
		{
			"bridge set br0 --fdb-max 5",
			func() { run("bridge set br0 --fdb-max 1000")(); crowd() },
			func() bool { return l.Bridge("br0").FDBMax == 5 }, atMost(5),
		},
		{
			"port set br0 " + a.Port + " --fdb-max 5",
			func() { run("bridge set br0 --fdb-max 1000", "port set br0 "+a.Port+" --fdb-max 0")(); crowd() },
			func() bool { return l.Port("br0", a.Port).FDBMax == 5 }, atMost(5),
		},
		{
			"port set br0 " + a.Port + " --storm-bcast 1000pps",
			func() {
				run("port set br0 "+a.Port+" --storm-bcast none", "port set br0 "+a.Port+" --storm-bcast 1pps")()
				l.Send(a, flood(30)...) // more than the bucket has
			},
			func() bool { return l.Port("br0", a.Port).StormBcast == "1000pps" },
			func() { l.Reach(a, flood(10), b) },
		},
		{
			"port set br0 " + b.Port + " --rate-out 1000pps",
			func() {
				run("port set br0 "+a.Port+" --storm-bcast none", "port set br0 "+b.Port+" --rate-out none", "port set br0 "+b.Port+" --rate-out 1pps:8")()
				l.Send(a, flood(30)...) // more than the bucket has
			},
			func() bool { return l.Port("br0", b.Port).RateOut == "1000pps" },
			func() { l.Reach(a, flood(10), b) },
		},
		{
			"port set br0 " + x + " --loop-guard 1800s",
			func() {
				run("port set br0 " + x + " --loop-guard 3600s")()
				l.Wait(x+" to be blocked", func() bool { // one port is blocked after a while
					l.Send(outside, l.Frames(1, B, own)...) // returns to its origin
					return l.Port("br0", x).State == "blocked"
				})
			},
			func() bool { return l.Port("br0", x).LoopGuard == "1800s" },
			func() {
				t.Helper()
				if state := l.Port("br0", x).State; state != "forwarding" {
					t.Errorf("%s is %s with another guard, should be forwarding", x, state)
				}
			},
		},
		{
			"bridge set br0 --vlan-filtering=off",
			func() {
				l.Bascule("bridge", "set", "br0", "--vlan-filtering")
				learn(l, a, A)
			},
			func() bool { return !l.Bridge("br0").VLANFiltering },
			func() {
				known("host0", "--static", 0)
				known(a.Port, "--dynamic")
			},
		},
	} {
		args := strings.Fields(c.command)
		c.before()
		points := slices.DeleteFunc(killPoints(t, l, fixed(args), c.before), func(p killPoint) bool {
			return !slices.Contains([]string{"bpf", "renameat", "unlinkat", "mkdirat"}, p.call)
		})
		points = somePoints(points, 8)
		made := 0
		for _, p := range points {
			c.before()
			killed := kill(t, l, p, args)
			l.Bascule("fdb", "flush", "br0", "--vlan", "4000") // completes or undoes the killed change
			if c.made() {
				c.check()
				if killed {
					made++
				}
			}
			if t.Failed() {
				t.Fatalf("the command was %s, killed: %v, in %s number %d", c.command, killed, p.call, p.n)
			}
		}
		t.Logf("%s: killed at %d points of %d after the change was made", c.command, made, len(points))
		if made == 0 {
			t.Errorf("%s was never killed after the change was made", c.command)
		}
	}
	run("port set br0 " + b.Port + " --rate-out none")()
	wantAsMany(t, l, before)
}

// rulesKilled kills a change of MAC rules while the two sets of programs alternate. The next command finds all of the
// new rules or none of them. Counts are kept, and no rule starts with another's count.
func rulesKilled(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	l.AddBridge("br0", hook, ends)
	a, b := ends[0], ends[1]
	rules := func() (list []string) {
		var all []struct {
			Rule    string `json:"rule"`
			Packets uint64 `json:"packets"`
		}
		l.JSON(&all, "rule", "show", "br0", "--stats")
		for _, r := range all {
			list = append(list, fmt.Sprintf("%s: %d", r.Rule, r.Packets))
		}
		return list
	}
	kept, added := "pass in on "+a.Port+" src "+A.String(), "block in on "+a.Port+" src "+C.String()
	l.Bascule("rule", "add", "br0", a.Port, "pass", "in", "src", A.String())
	counted := 0
	add := []string{"rule", "add", "br0", a.Port, "block", "in", "src", C.String()}
	del := slices.Clone(add)
	del[1] = "del"
	l.Bascule(add...)
	points := slices.DeleteFunc(killPoints(t, l, fixed(del), func() { l.Bascule(add...) }), func(p killPoint) bool {
		return !slices.Contains([]string{"bpf", "renameat", "unlinkat", "mkdirat"}, p.call)
	})
	points = somePoints(points, 16)
	there := false
	for _, p := range points {
		for _, change := range [][]string{add, del} {
			if (change[1] == "add") == there {
				continue // the last one was killed before the change
			}
			kill(t, l, p, change)
			l.Bascule("fdb", "flush", "br0") // completes or undoes the killed change
			l.Reach(a, l.Frames(3, netlab.Broadcast, A), b)
			counted += 3
			var blocked []*netlab.End
			got := rules()
			if there = len(got) == 2; !there {
				blocked = append(blocked, b)
			}
			want := []string{fmt.Sprintf("%s: %d", kept, counted), added + ": 0"}
			if !there {
				want = want[:1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("rules are %q, want %q", got, want)
			}
			l.Reach(a, l.Frames(2, netlab.Broadcast, C), blocked...)
			l.Bascule("port", "set", "br0", b.Port, "--fdb-max", fmt.Sprint(counted)) // with the other set
			l.Reach(a, l.Frames(2, netlab.Broadcast, C), blocked...)
			if there { // its count disappears with it
				l.Bascule(del...)
				l.Bascule(add...)
			}
			if t.Failed() {
				t.Fatalf("the command was %s, in %s number %d", change[1], p.call, p.n)
			}
		}
	}
}

// wantAsMany waits until the switch has as many objects in the kernel as before. Replaced programs and maps are freed a
// moment later.
func wantAsMany(t *testing.T, l *netlab.Lab, before netlab.Objects) {
	t.Helper()
	var now netlab.Objects
	deadline := time.Now().Add(patience)
	for {
		var err error
		now, err = l.Objects()
		must(t, err)
		if len(now.Maps) == len(before.Maps) && len(now.Programs) == len(before.Programs) && len(now.Links) == len(before.Links) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the switch has more or less in the kernel than before: %v; before %v", now, before)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// killPoints runs a command to its end and returns the system calls that it makes. A command makes more of them if it
// waits for something, or if the second set of programs is missing. If again prepares the command for another run, the
// points are the common ones of three runs.
func killPoints(t *testing.T, l *netlab.Lab, args func() []string, again func()) (points []killPoint) {
	t.Helper()
	for run := range 3 {
		if run > 0 {
			again()
		}
		r, count, err := netlab.RunCounted(l.Command(args()...), boundaries...)
		must(t, err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		if run > 0 {
			points = slices.DeleteFunc(points, func(p killPoint) bool { return p.n > count[p.call] })
			continue
		}
		for _, call := range boundaries {
			for n := range count[call] {
				points = append(points, killPoint{call, n + 1})
			}
		}
	}
	return points
}

// somePoints returns about n random points of a command at which to kill it. They include the first bpf call and the
// last four unlinkat calls: a command makes its change between them, since it removes the former files afterwards. With
// -short it returns a third as many. Otherwise they include one of each call. It returns all points if the environment
// variable BASCULE_KILL is "everywhere".
func somePoints(points []killPoint, n int) []killPoint {
	if os.Getenv("BASCULE_KILL") == "everywhere" {
		return points
	}
	seen := map[string]bool{}
	if testing.Short() {
		n /= 3
		for _, p := range points {
			seen[p.call] = true
		}
	}
	last := 0
	for _, p := range points {
		if p.call == "unlinkat" {
			last = max(last, p.n)
		}
	}
	var first, more []killPoint
	for _, i := range rand.Perm(len(points)) {
		p := points[i]
		if p.call == "unlinkat" && p.n > last-4 || p == (killPoint{"bpf", 1}) || !seen[p.call] {
			first = append(first, p)
		} else {
			more = append(more, p)
		}
		seen[p.call] = true
	}
	return append(first, more[:min(len(more), max(n-len(first), 0))]...)
}

// fixed returns a function that returns the same command each time.
func fixed(args []string) func() []string { return func() []string { return args } }

// kill runs a command and kills it at a point. The command may survive: the number of its calls varies, for example if
// it waits for another command.
func kill(t *testing.T, l *netlab.Lab, p killPoint, args []string) (killed bool) {
	t.Helper()
	r, err := netlab.RunKilled(l.Command(args...), p.call, p.n)
	must(t, err)
	if r.Exit != 0 && r.Exit != -1 {
		t.Errorf("%v: should succeed or be killed", r)
	}
	return r.Exit == -1
}

// twoWriters has eight writers change one bridge at the same time. Each changes objects of its own, or shared ones
// where the result shows whether the changes were serialized.
func twoWriters(t *testing.T, hook string) {
	const writers, prizes = 8, 40
	operations := netlab.Tenth(600)
	l := netlab.New(t)
	far := l.NewNamespace()
	var own, spare []*netlab.End
	for range writers {
		own = append(own, l.NewEnd(far))
		spare = append(spare, l.NewEnd(far))
	}
	shared := l.NewEnd(far)
	l.AddBridge("br0", hook, append(own, shared))
	prize := func(n int) netlab.MAC { return netlab.Station(10000 + n) }

	type outcome struct {
		err     error
		entries map[string]string // own entries, by MAC, with their ports
		last    int               // last value of the shared port's setting, 0 for none
		set     int               // last fdb-max of the own port
		added   bool              // whether the own spare device is a port
		bridge  bool              // whether the own bridge exists
		prizes  []int             // addresses that it has claimed for its own port
	}
	outcomes := make([]outcome, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			o := &outcomes[w]
			o.entries = map[string]string{}
			random := rand.New(rand.NewPCG(1, uint64(w)))
			must := func(args ...string) {
				r, err := l.Run(args...)
				if err == nil && (r.Exit != 0 || r.Stderr != "") {
					err = errors.New(r.String())
				}
				o.err = errors.Join(o.err, err)
			}
			bridge := fmt.Sprintf("brw%d", w)
			order := random.Perm(prizes)
			for i := range operations / writers {
				if o.err != nil {
					return
				}
				number := 1 + w*1000 + i
				switch n := random.IntN(100); {
				case n < 25: // an entry of its own
					mac, port := netlab.Station(20000+number).String(), own[random.IntN(writers)].Port
					must("fdb", "add", "br0", mac, port)
					o.entries[mac] = port
				case n < 35: // delete one
					for mac := range o.entries {
						must("fdb", "del", "br0", mac)
						delete(o.entries, mac)
						break
					}
				case n < 60: // an address that only one writer can get
					if len(order) == 0 {
						continue
					}
					p := order[0]
					order = order[1:]
					r, err := l.Run("fdb", "add", "br0", prize(p).String(), own[w].Port)
					switch {
					case err != nil:
						o.err = err
					case r.Exit == 0:
						o.prizes = append(o.prizes, p)
					default:
						o.err = r.CheckRefusal(prize(p).String())
					}
				case n < 80: // two settings in one command, on a port that all writers change
					must("port", "set", "br0", shared.Port, "--fdb-max", fmt.Sprint(number), "--protected", fmt.Sprint(1+number%31))
					o.last = number
				case n < 90: // a setting of its own
					must("port", "set", "br0", own[w].Port, "--fdb-max", fmt.Sprint(number))
					o.set = number
				case n < 96: // a port of its own
					verb := map[bool]string{true: "del", false: "add"}[o.added]
					must("port", verb, "br0", spare[w].Port)
					o.added = !o.added
				default: // a bridge of its own
					verb := map[bool]string{true: "del", false: "add"}[o.bridge]
					must("bridge", verb, bridge)
					o.bridge = !o.bridge
				}
			}
		})
	}
	wg.Wait()

	entries := map[string]string{}
	for _, e := range l.FDB("br0") {
		entries[e.MAC] = e.Ifname
	}
	wanted := 0
	var lasts []int
	winners := map[int]int{}
	for w, o := range outcomes {
		if o.err != nil {
			t.Errorf("writer %d: %v", w, o.err)
		}
		for mac, port := range o.entries {
			if entries[mac] != port {
				t.Errorf("writer %d put %s on %s, it is on %q", w, mac, port, entries[mac])
			}
		}
		for _, p := range o.prizes {
			winners[p]++
			if entries[prize(p).String()] != own[w].Port {
				t.Errorf("writer %d put %s on %s, it is on %q", w, prize(p), own[w].Port, entries[prize(p).String()])
			}
		}
		wanted += len(o.entries) + len(o.prizes)
		lasts = append(lasts, o.last)
		if got := l.Port("br0", own[w].Port).FDBMax; got != o.set {
			t.Errorf("writer %d set its port's fdb-max to %d, it is %d", w, o.set, got)
		}
		if added := slices.Contains(l.Bridge("br0").Ports, spare[w].Port); added != o.added {
			t.Errorf("writer %d: its spare device is a port: %v, should be %v", w, added, o.added)
		}
		r, err := l.Run("bridge", "show", fmt.Sprintf("brw%d", w))
		must(t, err)
		if there := r.Exit == 0; there != o.bridge {
			t.Errorf("writer %d: its bridge exists: %v, should: %v", w, there, o.bridge)
		}
	}
	for p, n := range winners {
		if n > 1 {
			t.Errorf("%d writers were told that %v is theirs", n, prize(p))
		}
	}
	if len(entries) != wanted {
		t.Errorf("%d entries, the writers have made %d", len(entries), wanted)
	}
	p := l.Port("br0", shared.Port)
	if !slices.Contains(lasts, p.FDBMax) || !slices.Equal(p.Protected, []int{1 + p.FDBMax%31}) {
		t.Errorf("the port that all change has fdb-max %d and domains %v; the last that each wrote: %v", p.FDBMax, p.Protected, lasts)
	}
	// After all this the switch works.
	l.Reach(own[0], l.Frames(5, netlab.Station(5), own[0].MAC), delivered(l, own, spare, shared)...)
}

// delivered returns the ends that receive an unknown frame of the first port of twoWriters: the ends of all other
// ports.
func delivered(l *netlab.Lab, own, spare []*netlab.End, shared *netlab.End) []*netlab.End {
	ports := l.Bridge("br0").Ports
	return slices.DeleteFunc(slices.Concat(own[1:], spare, []*netlab.End{shared}), func(e *netlab.End) bool {
		return !slices.Contains(ports, e.Port)
	})
}

// underLoad makes a bridge of four ports under load: known unicast in both directions between the first two, and
// broadcasts from the first to all.
func underLoad(t *testing.T, hook string) (*netlab.Lab, []*netlab.End, *netlab.Load) {
	t.Helper()
	l, ends := setup(t, hook, 4)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	l.Bascule("fdb", "add", "br0", D.String(), ends[3].Port)
	load := l.StartLoad(ends,
		netlab.Flow{From: a, Dst: B, Src: A, To: []*netlab.End{b}},
		netlab.Flow{From: b, Dst: A, Src: B, To: []*netlab.End{a}},
		netlab.Flow{From: a, Dst: netlab.Broadcast, Src: A, To: ends[1:]},
		netlab.Flow{From: b, Dst: D, Src: B, To: ends[3:]})
	return l, ends, load
}

func reconfigureUnderLoad(t *testing.T, hook string) {
	changes := netlab.Tenth(300)
	l, ends, load := underLoad(t, hook)
	l.Wait("traffic to flow", load.Flowing(5000))
	before, err := l.Objects()
	must(t, err)
	c := ends[2].Port
	// None of them affects the frames on their way.
	settings := [][]string{
		{"port", "set", "br0", c, "--learn=off"},
		{"port", "set", "br0", c, "--hairpin"},
		{"port", "set", "br0", ends[0].Port, "--protected", "5"},
		{"port", "set", "br0", c, "--discover=off", "--mcast-flood=off"},
		{"bridge", "set", "br0", "--group-fwd-mask", "0x4000"},
		{"port", "set", "br0", c, "--fdb-max", "7"},
		{"bridge", "set", "br0", "--ageing", "600s"},
		{"port", "set", "br0", c, "--learn", "--hairpin=off"},
		{"port", "set", "br0", ends[0].Port, "--protected", "none"},
		{"port", "set", "br0", c, "--discover", "--mcast-flood", "--fdb-max", "0"},
		{"bridge", "set", "br0", "--group-fwd-mask", "0", "--ageing", "300s"},
	}
	for i := range changes {
		l.Bascule(settings[i%len(settings)]...)
		if load.Failed() {
			t.Errorf("after %d changes:", i+1)
			break
		}
	}
	l.Wait("traffic to flow on", load.Flowing(5000))
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	l.Flush()
	for _, e := range ends {
		if got := e.Received(); len(got) > 0 {
			t.Errorf("%d frames too many at %s, first %v", len(got), e.Port, got[0])
		}
	}
	t.Logf("%d frames delivered during %d changes", load.Delivered(), changes)
	wantAsMany(t, l, before)
}

func upgradeUnderLoad(t *testing.T, hook string) {
	newer, err := netlab.Build("upgrade", "-tags", "newer", "-ldflags", "-X main.version=upgrade-test")
	must(t, err)
	l, ends, load := underLoad(t, hook)
	l.Wait("traffic to flow", load.Flowing(5000))
	before, err := l.Objects()
	must(t, err)
	fdb, ports := l.FDB("br0"), l.Ports("br0")
	older := l.Binary()
	for i := range netlab.Tenth(20) {
		l.SetBinary([]string{newer, older}[i%2])
		l.Bascule("bridge", "set", "br0")
		if load.Failed() {
			t.Errorf("after %d upgrades:", i+1)
			break
		}
	}
	l.SetBinary(newer)
	l.Bascule("bridge", "set", "br0")
	l.Wait("traffic to flow on", load.Flowing(5000))
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	wantAsMany(t, l, before)
	l.Renewed(before)
	// All addresses and counters are kept.
	if now := l.FDB("br0"); len(now) != len(fdb) {
		t.Errorf("entries %v, before the upgrade %v", now, fdb)
	}
	for i, p := range l.Ports("br0") {
		if p.Ifname != ports[i].Ifname || p.Hook != ports[i].Hook || p.Stats64.RX.Packets < ports[i].Stats64.RX.Packets || p.Learned < ports[i].Learned {
			t.Errorf("port %+v, before the upgrade %+v", p, ports[i])
		}
	}
	l.Reach(ends[2], l.Frames(10, B, C), ends[1])
}

// programs returns the processes that run the program in the lab's namespace.
func programs(t *testing.T, l *netlab.Lab) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var running []string
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(text), l.Binary()+"\x00") && strings.Contains(string(text), l.Switch.Name) {
			running = append(running, path)
		}
	}
	return running
}

func noAgent(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("fdb", "add", "br0", D.String(), c.Port)
	l.Bascule("port", "set", "br0", c.Port, "--fdb-max", "2")
	alone := func() {
		t.Helper()
		if running := programs(t, l); len(running) > 0 {
			t.Fatalf("processes of the switch: %v", running)
		}
	}
	alone()
	l.Reach(a, l.Frames(10, B, A), b, c)
	l.Reach(b, l.Frames(10, A, B), a)
	l.Reach(a, l.Frames(100, B, A), b)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c)
	l.Reach(a, l.Frames(10, D, A), c)
	l.Reach(c, l.Frames(10, netlab.Broadcast, A), a, b) // A moves
	l.Reach(b, l.Frames(10, A, B), c)
	l.Reach(c, l.Frames(1, netlab.Broadcast, netlab.Station(5)), a, b)
	l.Reach(c, l.Frames(1, netlab.Broadcast, netlab.Station(6)), a, b) // one too many
	l.Reach(b, l.Frames(10, netlab.Station(5), B), c)
	l.Reach(b, l.Frames(10, netlab.Station(6), B), a, c)
	c.Unplug()
	l.Reach(b, l.Frames(10, A, B), a)
	one, two := a.Host(), b.Host()
	must(t, netlab.Transfer(one, two, two.IPv4, 1<<20))
	alone()
}

func unprivileged(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	spare := l.NewEnds(1)[0]
	learn(l, ends[0], A)
	before := snapshot(l)

	commands := [][]string{
		{"bridge", "add", "br1"}, {"bridge", "set", "br0", "--ageing", "10s"}, {"bridge", "set", "br0"}, {"bridge", "del", "br0"},
		{"port", "add", "br0", spare.Port}, {"port", "add", "br0", "host0", "--type", "host"},
		{"port", "set", "br0", ends[0].Port, "--hairpin"}, {"port", "del", "br0", ends[0].Port},
		{"fdb", "add", "br0", B.String(), ends[0].Port}, {"fdb", "del", "br0", A.String()}, {"fdb", "flush", "br0"},
		{"bridge", "show"}, {"port", "show"}, {"fdb", "show", "br0"}, {"monitor", "br0"},
	}
	nobody := func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return nil
	}
	without := func(caps ...uintptr) func(*exec.Cmd) error {
		return func(*exec.Cmd) error {
			for _, c := range caps {
				// It applies to the child, since that is forked from this thread.
				if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, who := range []struct {
		name  string
		lower func(*exec.Cmd) error
	}{
		{"nobody", nobody},
		{"root without CAP_NET_ADMIN", without(unix.CAP_NET_ADMIN)},
		{"root without CAP_BPF", without(unix.CAP_BPF, unix.CAP_SYS_ADMIN)},
		{"root without both", without(unix.CAP_BPF, unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)},
	} {
		for _, args := range commands {
			for _, inside := range []bool{false, true} {
				cmd := l.Command(args...)
				if inside { // in the namespace already, instead of with -n
					cmd.Args = slices.Delete(cmd.Args, 1, 3)
				}
				r, err := lowered(l, cmd, inside, who.lower)
				must(t, err)
				if err := r.CheckRefusal(); err != nil {
					t.Fatalf("%s: %v", who.name, err)
				}
				if r.Exit != 1 {
					t.Fatalf("%s: %v: the exit status should be 1", who.name, r)
				}
			}
		}
	}
	if after := snapshot(l); after != before {
		t.Errorf("something has changed:\n%s\nbefore:\n%s", after, before)
	}
	l.Reach(ends[1], l.Frames(5, A, B), ends[0])
}

// lowered runs a command from a thread whose privileges are lowered first. The thread ends with it.
func lowered(l *netlab.Lab, cmd *exec.Cmd, inside bool, lower func(*exec.Cmd) error) (r netlab.Result, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		if inside {
			if err = l.Enter(); err != nil {
				return
			}
		}
		if err = lower(cmd); err != nil {
			return
		}
		r, err = netlab.RunCommand(cmd)
	}()
	<-done
	return r, err
}

// snapshot returns everything that the switch shows about itself, except for values that change with time.
func snapshot(l *netlab.Lab) string {
	var bridges []netlab.BridgeInfo
	l.JSON(&bridges, "bridge", "show")
	text := fmt.Sprintf("%+v\n", bridges)
	var ports []netlab.PortInfo
	l.JSON(&ports, "port", "show")
	text += fmt.Sprintf("%+v\n", ports)
	for _, b := range bridges {
		text += fmt.Sprintf("%v\n", l.FDB(b.Ifname))
	}
	strangers, err := l.Strangers()
	return text + fmt.Sprintf("devices %v %v\n", strangers, err)
}

// An apply whose output is not read does not block other commands.
func applyUnread(t *testing.T, _ string) {
	l := netlab.New(t)
	file := filepath.Join(t.TempDir(), "switch.yaml")
	must(t, os.WriteFile(file, []byte("bridges: {br0: , br1: }\n"), 0o600))
	from, to, err := os.Pipe()
	must(t, err)
	defer from.Close()
	fd := int(to.Fd())
	must(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	must(t, unix.SetNonblock(fd, false))
	first := l.Command("apply", file)
	first.Stdout = to
	must(t, first.Start())
	to.Close()
	l.Wait("the bridges", func() bool { return strings.Contains(l.Bascule("bridge", "show"), "br1") })
	l.Bascule("apply", file)
	from.Close()
	var status *exec.ExitError
	if err := first.Wait(); err != nil && !errors.As(err, &status) {
		t.Error(err)
	}
}
