// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/bridge"
	"bascule/config"
	"bascule/history"
	"bascule/test/netlab"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// ipIn runs ip(8) in the switch's namespace.
func ipIn(t *testing.T, l *netlab.Lab, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", l.Switch.Name}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// putBackNow has the next command put the waiting change back, and returns the command's output.
func putBackNow(t *testing.T, l *netlab.Lab) string {
	t.Helper()
	killWatchers(t, l)
	overdue(t, l)
	r, err := l.Run("bridge", "show")
	must(t, err)
	return r.Stderr
}

// confirmCable has a change cut a patch cable whose other end is in a bridge that is in no file. That end
// has its filter again when the cable is put back.
func confirmCable(t *testing.T, l *netlab.Lab) {
	e := l.Ends
	bridges := []string{"br0", "brx"}
	for _, name := range bridges {
		l.Bascule("bridge", "add", name)
	}
	l.Bascule("port", "add", "br0", "p1", "p2")
	l.Bascule("port", "add", "brx", "p3")
	l.Bascule("port", "add", "br0", "cab", "--type", "patch", "--peer", "brx/cab0")
	l.Bascule("rule", "add", "brx", "cab0", "block", "in", "src", e[0].MAC.String())
	l.Bascule("port", "set", "brx", "cab0", "--isolated")
	before := l.Bascule("export")
	filtered := func() {
		t.Helper()
		l.Reach(e[0], l.Frames(3, netlab.Broadcast, e[0].MAC), e[1])
		l.Reach(e[1], l.Frames(3, netlab.Broadcast, e[1].MAC), e[0], e[2])
	}
	filtered()
	const text = "bridges: {br0: {ports: {p1: , p2: }}}"
	for _, back := range []func(){
		func() { putBackNow(t, l) },
		func() { l.Bascule("apply", "--back") },
		func() { // after a change that was confirmed
			l.Bascule("apply", "confirm")
			apply(t, l, "--back")
		},
	} {
		r, err := l.Run("apply", "--yes", "--confirm", "1h", file(t, "cut.yaml", text))
		must(t, err)
		want := "- port cab of br0: type patch, peer brx/cab0\n- port cab0 of brx: type patch, peer br0/cab\n"
		if r.Exit != 0 || r.Stdout != want {
			t.Errorf("%v, and should have printed\n%s", r, want)
		}
		back()
		if after := strings.ReplaceAll(l.Bascule("export"), "    pf: off\n", ""); after != before {
			t.Errorf("there is\n%sand was\n%s", after, before)
		}
		filtered()
	}
	// A bridge that loses nothing by the change is not touched.
	tried(t, l, "1h", "bridges: {br0: {ageing: 77s, ports: {p1: , p2: , cab: {type: patch, peer: brx/cab0}}}}")
	l.Bascule("bridge", "set", "brx", "--ageing", "99s")
	putBackNow(t, l)
	if out := l.Bascule("export"); !strings.Contains(out, "ageing: 99s") || strings.Contains(out, "77s") {
		t.Error(out)
	}
}

// confirmSmallMTU sets an MTU that removes IPv6 from the host's interface.
func confirmSmallMTU(t *testing.T, l *netlab.Lab) {
	out, err := exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const six = "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, addresses: [192.0.2.9/24, '2001:db8::9/64']%s}}}}"
	apply(t, l, file(t, "good.yaml", fmt.Sprintf(six, "")))
	before := l.Bascule("export")
	l.Refused([]string{"port h0 of br0: address 2001:db8::9/64 is IPv6, which needs an MTU of 1280, not 576; give mtu: 1280"},
		"apply", file(t, "six.yaml", fmt.Sprintf(six, ", mtu: 576")))
	tried(t, l, "1h", "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, mtu: 576}}}}")
	if out := l.Bascule("export"); strings.Contains(out, "2001") {
		t.Errorf("IPv6 is there still: %s", out)
	}
	l.Refused([]string{"which needs an MTU of 1280, not 576"}, "apply", "--dry-run", file(t, "again.yaml", fmt.Sprintf(six, "")))
	if said := putBackNow(t, l); !strings.Contains(said, "is put back") {
		t.Error(said)
	}
	if after := l.Bascule("export"); after != before {
		t.Errorf("there is\n%sand was\n%s", after, before)
	}
}

// confirmBusy has another program use a device that should become a port again. The device comes back from
// where commands have put it. The rest comes back without a device that the host uses.
func confirmBusy(t *testing.T, l *netlab.Lab) {
	const before = "bridges: {br0: {ports: {p1: , p2: , p3: , h0: {type: host}}, rules: [block in on p3 arp], mirrors: {m0: {ports: [p3]}}}}"
	ipIn(t, l, "link", "add", "m0", "type", "veth", "peer", "name", "m1")
	defer ipIn(t, l, "link", "del", "m0")
	for _, c := range []struct {
		name      string
		take      func()
		free      func()
		left, why string // the part that cannot come back, "" for none
	}{
		{"plugged", func() { l.Bascule("plug", "guest", "--bridge", "br0", "--device", "p3") }, func() {}, "", "p3 leaves br0, which it has joined since, for br0"},
		{"macvlan", func() { ipIn(t, l, "link", "add", "mv0", "link", "p3", "type", "macvlan") }, func() { ipIn(t, l, "link", "del", "mv0") }, "port p3", "mv0"},
		{"enslaved", func() {
			ipIn(t, l, "link", "add", "lb0", "type", "bridge")
			ipIn(t, l, "link", "set", "p3", "master", "lb0")
		}, func() { ipIn(t, l, "link", "del", "lb0") }, "port p3", "lb0"},
		{"other_switch", func() {
			l.Bascule("bridge", "add", "other")
			l.Bascule("port", "add", "other", "p3")
		}, func() { l.Bascule("bridge", "del", "other") }, "", "p3 leaves other, which it has joined since, for br0"},
		{"mirror", func() {
			l.Bascule("bridge", "add", "other")
			l.Bascule("port", "add", "other", "m0")
		}, func() { l.Bascule("bridge", "del", "other") }, "", "m0 leaves other, which it has joined since, for br0"},
		{"name", func() { ipIn(t, l, "link", "add", "h0", "type", "veth", "peer", "name", "h1") }, func() { ipIn(t, l, "link", "del", "h0") }, "port h0", "an interface of this name exists"},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", before))
		tried(t, l, "1h", "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 7}}}}")
		c.take()
		said := putBackNow(t, l)
		leaves := c.left != ""
		if !strings.Contains(said, c.why) || !strings.Contains(said, "is put back") || strings.Contains(said, c.left+" of br0 is left out, and waits for its device: ") != leaves {
			t.Errorf("%s: the command says %s", c.name, said)
		}
		if waiting(l) {
			t.Errorf("%s: it waits still", c.name)
		}
		to := l.Ends[1:3]
		if c.left == "port p3" {
			to = l.Ends[1:2]
		}
		l.Reach(l.Ends[0], l.Frames(3, netlab.Broadcast, l.Ends[0].MAC), to...)
		if text := strings.SplitN(l.Bascule("apply", "--history"), "\n", 3)[1]; strings.Contains(text, ", but for "+c.left+" of br0") != leaves {
			t.Errorf("%s: the history begins with %s", c.name, text)
		}
		out := l.Bascule("export")
		for _, port := range []string{"p1", "p2", "p3", "h0", "m0"} {
			there := strings.Contains(out, " "+port+":")
			if lost := leaves && (strings.HasSuffix(c.left, port) || port == "m0" && c.left == "port p3"); there == lost {
				t.Errorf("%s: %s is there: %v\n%s", c.name, port, there, out)
			}
		}
		c.free()
	}
}

// confirmParts has the host remove a part of a port's device: the rest is put back.
func confirmParts(t *testing.T, l *netlab.Lab) {
	nl, err := l.Switch.Netlink().LinkByName("p2")
	must(t, err)
	allows := func(port string, six bool) {
		value := map[bool]string{true: "0", false: "1"}[six]
		out, err := exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf."+port+".disable_ipv6="+value).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var theirs link.Link
	for _, c := range []struct {
		name, before, change string
		take                 func()
		said, left           string
		after                string // commands before it, and the export after it
	}{
		// their program passes all frames
		{"xdp", "ports: {p1: , p2: {hook: xdp}}", "ports: {p2: {hook: tcx}}", func() {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
			})
			must(t, err)
			defer p.Close()
			must(t, l.Switch.Do(func() (err error) {
				theirs, err = link.AttachXDP(link.XDPOptions{Interface: nl.Attrs().Index, Program: p, Flags: link.XDPDriverMode})
				return err
			}))
		}, "another XDP program is on p2", "hook xdp of port p2 of br0", "p1: {}"},
		{"ipv6", "ports: {p1: , p2: , h0: {type: host, addresses: [192.0.2.9/24, '2001:db8::9/64']}}", "ports: {p2: }",
			func() { allows("default", false) }, "", "IPv6 of port h0 of br0", `h0: {type: host, addresses: ["192.0.2.9/24"`},
	} {
		allows("default", true)
		apply(t, l, "--yes", file(t, "good.yaml", "bridges: {br0: {"+c.before+"}}"))
		tried(t, l, "1h", "bridges: {br0: {"+c.change+"}}")
		c.take()
		said := putBackNow(t, l)
		if !strings.Contains(said, c.left+" is left out") || !strings.Contains(said, c.said) || !strings.Contains(said, "is put back") || waiting(l) {
			t.Errorf("%s: the command says %s; it waits: %v", c.name, said, waiting(l))
		}
		if text := strings.SplitN(l.Bascule("apply", "--history"), "\n", 3)[1]; !strings.Contains(text, ", but for "+c.left+"  ") {
			t.Errorf("%s: the history begins with %s", c.name, text)
		}
		if out := l.Bascule("export"); !strings.Contains(out, c.after) {
			t.Errorf("%s: there is\n%s", c.name, out)
		}
		l.Reach(l.Ends[0], l.Frames(3, netlab.Broadcast, l.Ends[0].MAC), l.Ends[1])
		if theirs != nil {
			must(t, theirs.Close())
			theirs = nil
		}
	}
}

// confirmSlow has a change that takes longer than the time to confirm it. The time starts again when the
// change is made, and the waiting process continues.
func confirmSlow(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	tried(t, l, "1h", bad)
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	unlock, err := s.LockPlans() // the lock of apply
	must(t, err)
	var end any
	edit(t, l, func(p map[string]any) { end, p["end"] = p["end"], 1 })
	l.Wait("the process to wait for the apply", func() bool {
		text, err := os.ReadFile("/proc/locks")
		return err == nil && slices.ContainsFunc(watchers(l), func(pid int) bool {
			return slices.ContainsFunc(linesOf(string(text)), func(line string) bool {
				return strings.Contains(line, "->") && strings.Contains(line, fmt.Sprintf(" %d ", pid))
			})
		})
	})
	edit(t, l, func(p map[string]any) { p["end"] = end })
	unlock()
	l.Wait("the process to have looked", func() bool {
		text, err := os.ReadFile("/proc/locks")
		return err == nil && !slices.ContainsFunc(watchers(l), func(pid int) bool { return strings.Contains(string(text), fmt.Sprintf(" %d ", pid)) })
	})
	if !waiting(l) {
		t.Error("it is put back before its time is over")
	}
	overdue(t, l)
	isBack(t, l)
}

// confirmTwins has the host give one address to two host ports, which does not prevent the put-back.
func confirmTwins(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {ports: {p1: , p2: , h0: {type: host}, h1: {type: host}}}}"))
	ipIn(t, l, "link", "set", "h0", "address", "02:00:00:00:be:07")
	ipIn(t, l, "link", "set", "h1", "address", "02:00:00:00:be:07")
	before := l.Bascule("export")
	tried(t, l, "1h", "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, mac: '02:00:00:00:be:08'}}}}")
	if said := putBackNow(t, l); !strings.Contains(said, "is put back") || waiting(l) {
		t.Errorf("the command says %s; it waits: %v", said, waiting(l))
	}
	if after := l.Bascule("export"); after != before {
		t.Errorf("there is\n%sand was\n%s", after, before)
	}
}

// confirmInterface has the host take an interface of a host port, or refuse one of its settings. The rest is put back.
func confirmInterface(t *testing.T, l *netlab.Lab) {
	const (
		before = `bridges: {br0: {ageing: 60s, ports: {p1: , h0: {type: host, mtu: 9000, mac: "02:00:00:00:00:71", addresses: 192.0.2.9/24, description: uplink}}, pf: {rules: "pass on h0 from h0:network"}}}`
		change = `bridges: {br0: {ageing: 70s, ports: {p2: , h0: {type: host, mtu: 1400, mac: "02:00:00:00:00:72", addresses: 203.0.113.9/24, description: x, up: off}}}}`
		none   = `bridges: {br0: {ageing: 70s, ports: {p2: }}}`
	)
	other := l.NewNamespace().Name
	const whole = "interface of port h0 of br0"
	for _, c := range []struct {
		name, change string
		take         func()
		left, why    string // the part that cannot come back, "" for none
	}{
		{"away", change, func() { ipIn(t, l, "link", "set", "h0", "netns", other) }, whole, "its interface is in another network namespace"},
		{"away_renamed", change, func() { ipIn(t, l, "link", "set", "h0", "netns", other, "name", "h9") }, whole, "its interface is in another network namespace"},
		{"away_replaced", change, func() {
			ipIn(t, l, "link", "set", "h0", "netns", other)
			ipIn(t, l, "link", "add", "h0", "type", "veth", "peer", "name", "h1")
		}, "addresses of port h0 of br0", "its interface is in another network namespace"},
		{"gone", change, func() { ipIn(t, l, "link", "del", "h0") }, "", ""},
		{"renamed", change, func() { ipIn(t, l, "link", "set", "h0", "name", "h9") }, "", ""},
		{"name_taken", none, func() { ipIn(t, l, "link", "add", "h0", "type", "veth", "peer", "name", "h1") }, "port h0 of br0", "an interface of this name exists"},
		{"mtu", change, func() { // a program at the other end limits the MTU
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
			})
			must(t, err)
			defer p.Close()
			end := device(t, l, "h0").Attrs().ParentIndex
			must(t, l.Switch.Do(func() error {
				x, err := link.AttachXDP(link.XDPOptions{Interface: end, Program: p, Flags: link.XDPDriverMode})
				if err == nil {
					t.Cleanup(func() { x.Close() })
				}
				return err
			}))
		}, "mtu of port h0 of br0", "give h0 MTU 9000"},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", before))
		tried(t, l, "1h", c.change)
		c.take()
		said := putBackNow(t, l)
		if !strings.Contains(said, "is put back") || !strings.Contains(said, c.why) || strings.Contains(said, c.left+" is left out") != (c.left != "") || waiting(l) {
			t.Errorf("%s: the command says %s; it waits: %v", c.name, said, waiting(l))
		}
		if text := strings.SplitN(l.Bascule("apply", "--history"), "\n", 3)[1]; c.left != "" && !strings.Contains(text, ", but for ") || !strings.Contains(text, c.left) {
			t.Errorf("%s: the history begins with %s", c.name, text)
		}
		r, err := l.Run("export") // it warns of an interface elsewhere
		must(t, err)
		out := r.Stdout
		for _, want := range []string{"ageing: 60s", " p1:", "pass on h0"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %s is missing in\n%s", c.name, want, out)
			}
		}
		if c.left == "" || c.name == "mtu" {
			for _, want := range []string{"192.0.2.9/24", "02:00:00:00:00:71", "uplink"} {
				if !strings.Contains(out, want) || strings.Contains(out, "up: off") {
					t.Errorf("%s: %s is missing in\n%s", c.name, want, out)
				}
			}
		}
		l.Bascule("bridge", "del", "br0")
		_ = exec.Command("ip", "-n", l.Switch.Name, "link", "del", "h0").Run()
	}
}

// confirmStuck has a change that cannot be put back. All commands report the same, and there is a way out.
func confirmStuck(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := tried(t, l, "1h", bad)
	killWatchers(t, l) // it would write the state again
	paths, err := filepath.Glob(filepath.Join(ofLab(l), "0*.yaml"))
	must(t, err)
	for _, path := range paths {
		must(t, os.Remove(path))
	}
	overdue(t, l)
	r, err := l.Run("bridge", "show")
	must(t, err)
	if !strings.Contains(r.Stderr, "the previous state is gone") {
		t.Error(r)
	}
	const words = "was not confirmed until"
	for _, args := range [][]string{{"apply", "confirm"}, {"apply", "--yes", path + "x"}, {"apply", "--back", "2"}} {
		if args[1] == "--yes" {
			args[2] = file(t, "other.yaml", "bridges: {br2: {}}")
		}
		r, err := l.Run(args...)
		must(t, err)
		if r.Exit != 1 || !strings.Contains(r.Stderr, words) || !strings.Contains(r.Stderr, "'bascule apply confirm --yes' keeps the present state") {
			t.Error(r)
		}
	}
	r, err = l.Run("apply", "--history")
	must(t, err)
	if !strings.Contains(r.Stdout, "not confirmed until") {
		t.Error(r)
	}
	r, err = l.Run("apply", "confirm", "--yes")
	must(t, err)
	if r.Exit != 0 || waiting(l) {
		t.Error(r)
	}
	if out := l.Bascule("export"); !strings.Contains(out, "br1") {
		t.Error(out)
	}
	apply(t, l, "--yes", file(t, "good.yaml", good), file(t, "none.yaml", "bridges: {br1: {}}"))
}

// confirmGuests has devices become ports by the agent's pattern while a change waits, or after a state was
// recorded. They are ports again after a put-back. A port that a user deleted before stays deleted.
func confirmGuests(t *testing.T, l *netlab.Lab, putBack func()) {
	r := newRunner(t, l)
	path := file(t, "switch.yaml", `bridges: {br0: {ports: {p1: , p2: , "w*": {isolated: on}}}}`)
	plug := func(name string) {
		ipIn(t, l, "link", "add", name, "type", "veth", "peer", "name", "x"+name)
		t.Cleanup(func() { _ = exec.Command("ip", "-n", l.Switch.Name, "link", "del", name).Run() })
	}
	is := func(name string, want bool) bool {
		return strings.Contains(l.Bascule("export", "br0"), " "+name+": {isolated: on}") == want
	}
	plug("w1")
	plug("w2")
	r.start("-f", path)
	l.Wait("the guests of before", func() bool { return is("w1", true) && is("w2", true) })
	plug("w3")
	l.Wait("one that comes", func() bool { return is("w3", true) }) // so the agent has seen these two
	l.Bascule("port", "del", "br0", "w1")                           // with a command
	apply(t, l, file(t, "state.yaml", "bridges: {br9: {}}"))
	change := "bridges: {br0: {ageing: 90s, ports: {p1: , p2: , w2: {isolated: on}%s}}}"
	tried(t, l, "1h", fmt.Sprintf(change, ""))
	plug("w5")
	plug("w7")
	l.Wait("the guests to come", func() bool { return is("w5", true) && is("w7", true) })
	l.Bascule("port", "del", "br0", "w7") // with a command
	l.Bascule("port", "del", "br0", "w2") // with a command, and put back
	putBack()
	if waiting(l) {
		t.Error("it waits still")
	}
	l.Wait("the guest to come again", func() bool { return is("w5", true) && is("w2", true) })
	if !is("w1", false) || !is("w7", false) {
		t.Error("what was taken out by hand is a port again")
	}
	plug("w6")
	l.Wait("another guest to come", func() bool { return is("w6", true) })
	lines := apply(t, l, "--back", "2")
	if !slices.Contains(lines, "- port w6 of br0: isolated on") {
		t.Errorf("the plan is %q", lines)
	}
	l.Wait("the guests to come again", func() bool { return is("w6", true) && is("w5", true) && is("w3", true) && is("w1", true) })
	if !is("w7", false) {
		t.Error("what was taken out by hand is a port again")
	}
	l.Reach(l.Ends[0], l.Frames(3, netlab.Broadcast, l.Ends[0].MAC), l.Ends[1])
}

// confirmGuestsOfFiles puts files of the agent back that have other settings for a pattern. A device that was removed
// with a command before stays out. The others have the settings of the files before.
func confirmGuestsOfFiles(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	const before = `bridges: {br0: {ports: {p1: , p2: , "w*": {isolated: on}}}}`
	path := file(t, "switch.yaml", before)
	plug := func(name string) {
		ipIn(t, l, "link", "add", name, "type", "veth", "peer", "name", "x"+name)
		t.Cleanup(func() { _ = exec.Command("ip", "-n", l.Switch.Name, "link", "del", name).Run() })
	}
	has := func(line string) bool { return strings.Contains(l.Bascule("export", "br0"), line+"\n") }
	plug("w1")
	plug("w2")
	r.start("-f", path)
	plug("w3")
	l.Wait("the guests", func() bool { return has(" w3: {isolated: on}") && has(" w2: {isolated: on}") })
	l.Bascule("port", "del", "br0", "w2")
	must(t, os.WriteFile(path, []byte(strings.ReplaceAll(before, "{isolated: on}", "")), 0o600))
	if out, err := l.Run("agent", "reload", "--confirm", "1h"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	l.Wait("the new files to be in force", func() bool { return has(" w1: {}") && has(" w2: {}") })
	plug("w4")
	l.Wait("a guest to come", func() bool { return has(" w4: {}") })
	killWatchers(t, l)
	overdue(t, l)
	l.Wait("the agent to put its files back", func() bool { return !waiting(l) && has(" w4: {isolated: on}") && has(" w1: {isolated: on}") })
	plug("w5")
	l.Wait("another guest to come", func() bool { return has(" w5: {isolated: on}") })
	if out := l.Bascule("export", "br0"); strings.Contains(out, " w2:") {
		t.Errorf("a port that was removed with a command is there again: %s", out)
	}
}

// confirmOthers has another user work while a change waits. Each command warns that its change may be lost,
// and the waiting change is put back only with --yes.
func confirmOthers(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	l.Setenv("SUDO_USER", "alice")
	tried(t, l, "1h", bad)
	l.Bascule("port", "set", "br0", "p3", "--hairpin") // the other user's change
	l.Setenv("SUDO_USER", "bob")
	l.Bascule("port", "show", "br0")
	for _, args := range [][]string{
		{"port", "set", "br0", "p3", "--hairpin=off"}, {"bridge", "set", "br0", "--ageing", "90s"}, {"bridge", "del", "br1"}, {"bridge", "add", "br2"},
		{"rule", "flush", "br0"}, {"fdb", "flush", "br0"}, {"plug", "guest", "--bridge", "br0", "--device", "p1"}, {"unplug", "guest"}, {"bridge", "del", "--all"},
	} {
		r, err := l.Run(args...)
		must(t, err)
		const words = "warning: a change of alice ("
		if r.Exit != 0 || strings.Count(r.Stderr, words) != 1 || !strings.Contains(r.Stderr, "if it is not, br0, br1 and the ports there become what they were before it") {
			t.Error(r)
		}
	}
	l.Refused([]string{"cannot go back: the change at", "was made by alice", "let them put it back, or give --yes"}, "apply", "--back")
	if !waiting(l) {
		t.Fatal("it is put back")
	}
	if r, err := l.Run("apply", "--back", "--dry-run"); err != nil || r.Exit != 3 {
		t.Error(r, err)
	}
	l.Bascule("apply", "--back", "--yes")
	stateIs(t, l)
}

// plug makes a device for a guest in the switch's namespace.
func plug(t *testing.T, l *netlab.Lab, name string) {
	t.Helper()
	ipIn(t, l, "link", "add", name, "type", "veth", "peer", "name", "x"+name)
	t.Cleanup(func() { _ = exec.Command("ip", "-n", l.Switch.Name, "link", "del", name).Run() })
}

// confirmAgentRestarted restarts the agent while a command's change waits. The change stays in force. When it ends, the
// agent applies its files, or if it cannot read them, its former files.
func confirmAgentRestarted(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	dir := t.TempDir()
	const text = `bridges: {br0: {ports: {p1: {description: roof}, p2: , "w*": }}, br1: {ports: {"v*": }}}`
	must(t, os.WriteFile(filepath.Join(dir, "switch.yaml"), []byte(text), 0o600))
	broken := filepath.Join(dir, "zebra.yaml")
	has := func(bridge, port string) bool { return strings.Contains(l.Bascule("export", bridge), " "+port+":") }
	plug(t, l, "w1")
	for i, c := range []struct {
		name string
		bad  bool // another file of the folder is
		end  []string
	}{
		{"confirmed", false, []string{"apply", "confirm"}},
		{"put back", false, []string{"apply", "--back"}},
		{"confirmed, and the files are bad", true, []string{"apply", "confirm"}},
	} {
		r.start("-f", dir)
		l.Wait("the files to be in force", func() bool { return has("br0", "w1") && has("br0", "p2") })
		tried(t, l, "1h", "bridges: {br0: {ports: {p1: {up: off, description: cellar}}}}")
		r.kill()
		if c.bad {
			must(t, os.WriteFile(broken, []byte("bridges: {\n"), 0o600))
		}
		r.start("-f", dir)
		// Guests that come now become ports. Then the agent has seen all former devices.
		late, other := fmt.Sprint("w9", i), fmt.Sprint("v", i)
		plug(t, l, late)
		plug(t, l, other)
		l.Wait("the guests that come", func() bool { return has("br0", late) && has("br1", other) })
		remains := func(when string) {
			t.Helper()
			out := l.Bascule("export", "br0")
			if strings.Contains(out, " p2:") || strings.Contains(out, " w1:") || !strings.Contains(out, "cellar") || !strings.Contains(out, "up: off") {
				t.Errorf("%s: %s there is\n%s", c.name, when, out)
			}
		}
		remains("after the start")
		if out, err := l.Run("agent", "reload"); err != nil || out.Exit != 1 || !c.bad && !strings.Contains(out.Stderr, "waits to be confirmed") {
			t.Error(out, err)
		}
		plug(t, l, late+"b")
		l.Wait("another guest", func() bool { return has("br0", late+"b") })
		remains("after a reload")
		if n := r.logs.Lines("a change waits to be confirmed", "br0"); n != 1 {
			t.Errorf("%s: the log has %d lines about the change:\n%s", c.name, n, r.logs.String())
		}
		l.Bascule(c.end...)
		l.Wait("the files to be applied", func() bool { return has("br0", "w1") && has("br0", "p2") && has("br0", late) })
		if out := l.Bascule("export", "br0"); !c.bad && !strings.Contains(out, `p1: {description: "roof"}`) {
			t.Errorf("%s: at the end there is\n%s", c.name, out)
		}
		r.kill()
	}
}

// confirmAgentBroken has the agent's files break while they wait to be confirmed. When the change ends, the agent reads
// the files once. It follows the files before, or the files that were confirmed.
func confirmAgentBroken(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	const before, since = `bridges: {br0: {ports: {p1: , p2: , "w*": }}}`, `bridges: {br0: {ageing: 90s, ports: {p1: , p2: , "v*": }}}`
	for i, c := range []struct {
		end        []string
		has, lacks string // the guests of these files become ports
	}{
		{[]string{"apply", "--back"}, "w", "v"},
		{[]string{"apply", "confirm"}, "v", "w"},
	} {
		path := file(t, "switch.yaml", before)
		r.start("-f", path)
		must(t, os.WriteFile(path, []byte(since), 0o600))
		if out, err := l.Run("agent", "reload", "--confirm", "1h", "--yes"); err != nil || out.Exit != 0 {
			t.Fatal(out, err)
		}
		must(t, os.WriteFile(path, []byte("bridges: {\n"), 0o600))
		l.Bascule(c.end...)
		l.Wait("the agent to try the files", func() bool { return strings.Contains(r.status().Error, "switch.yaml") })
		tries := r.count("RELOADING=1")
		for range 4 { // the agent looks for its socket when it looks for changes
			socket := filepath.Join(r.dir, fmt.Sprint(r.cookie, ".sock"))
			must(t, os.Remove(socket))
			l.Wait("the agent to look", func() bool { _, err := os.Stat(socket); return err == nil })
		}
		if n := r.count("RELOADING=1") - tries; n > 1 {
			t.Errorf("%v: the agent has tried the files %d times more", c.end, n)
		}
		plug(t, l, fmt.Sprint(c.lacks, i))
		plug(t, l, fmt.Sprint(c.has, i))
		l.Wait("the guest of the files", func() bool { return strings.Contains(l.Bascule("export"), fmt.Sprintf(" %s%d:", c.has, i)) })
		if out := l.Bascule("export"); strings.Contains(out, fmt.Sprintf(" %s%d:", c.lacks, i)) {
			t.Errorf("%v: the agent follows the other files:\n%s", c.end, out)
		}
		must(t, os.WriteFile(path, []byte(since), 0o600))
		if out, err := l.Run("agent", "reload", "--yes"); err != nil || out.Exit != 0 || r.status().Error != "" {
			t.Error(out, err)
		}
		r.kill()
	}
}

// confirmAgain confirms with nothing to confirm: before any change, a second time, after a put-back, and after another
// change. The status is 0 only if the last change was confirmed.
func confirmAgain(t *testing.T, l *netlab.Lab) {
	confirm := func(status int, words string) {
		t.Helper()
		r, err := l.Run("apply", "confirm")
		must(t, err)
		if r.Exit != status || r.Stdout != "" || words == "" && r.Stderr != "" || !strings.Contains(r.Stderr, words) || strings.Count(r.Stderr, "\n") > 1 {
			t.Error(r)
		}
	}
	const none, before, back = "cannot confirm: no change waits for it; see 'bascule apply --history'", "bad.yaml) was confirmed before", "bad.yaml) was not confirmed, and was put back at "
	confirm(1, none)
	apply(t, l, file(t, "good.yaml", good))
	confirm(1, none)
	path := tried(t, l, "1h", bad)
	confirm(0, "")
	confirm(0, before)
	l.Setenv("SUDO_USER", "bob")
	confirm(0, before)
	l.Setenv("SUDO_USER", "")
	r, err := l.Run("apply", "--confirm", "1h", path) // nothing is changed
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "nothing to confirm") {
		t.Error(r)
	}
	confirm(0, before)
	tried(t, l, "1h", "bridges: {br0: {ageing: 90s}}")
	l.Bascule("apply", "--back")
	confirm(1, back)
	tried(t, l, "1h", "bridges: {br0: {ageing: 80s}}")
	putBackNow(t, l)
	confirm(1, back)
	tried(t, l, "1h", "bridges: {br0: {ageing: 70s}}")
	confirm(0, "")
	apply(t, l, file(t, "next.yaml", "bridges: {br0: {ageing: 60s}}"))
	confirm(1, none)
	tried(t, l, "1h", "bridges: {br0: {ageing: 50s}}")
	confirm(0, "")
	apply(t, l, "--back")
	confirm(1, none)
}

// confirmNotBegun has no process that puts the change back, so the change does not begin. Nothing is put back.
func confirmNotBegun(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	run := t.TempDir()
	l.Setenv("BASCULE_AGENT_DIR", run)
	t.Setenv("BASCULE_AGENT_DIR", run)
	t.Setenv("BASCULE_STATE_DIR", filepath.Dir(ofLab(l)))
	h, err := history.Open(s, l.Switch.Name)
	must(t, err)
	files, err := config.Load(file(t, "bad.yaml", bad))
	must(t, err)
	actions, warnings, err := h.Apply(files[0], history.Options{Confirm: time.Hour, Watch: func() error { return errors.New("no process") }})
	if err == nil || !strings.Contains(err.Error(), "cannot apply with --confirm") || strings.Contains(err.Error(), "put back") || actions != nil || warnings != nil {
		t.Error(actions, warnings, err)
	}
	stateIs(t, l)
	if text := l.Bascule("apply", "--history"); strings.Contains(text, "put back") || waiting(l) {
		t.Errorf("the history is\n%s", text)
	}
	l.Refused([]string{"no change waits for it"}, "apply", "confirm")
}
