// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/test/netlab"
)

var xdpCases = []conformance{
	{name: "xdp_under_load", hooks: []string{"xdp"}, run: xdpUnderLoad},
	{name: "xdp_killed", hooks: []string{"xdp"}, run: xdpKilled},
}

// xdpUnderLoad: a port changes to XDP and back while another one is on XDP. No datagram between
// the two is lost or has a wrong checksum, although their stations leave the checksums to their
// devices and have GRO off.
func xdpUnderLoad(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	a, b := ends[0], ends[1]
	for _, e := range ends {
		if f := e.Features(); !f["tx-checksum-ip-generic"] || f["rx-gro"] {
			t.Fatalf("%s has nothing to give up: %v", e.Port, f)
		}
	}
	l.AddBridge("br0", "tcx", ends)
	talk := l.NewTalk(a, b)
	talk.Start()
	run := func(port, hook string, args ...string) {
		t.Helper()
		l.Wait("the talk to go on", talk.Flowing(3))
		r, err := l.Run(args...)
		must(t, err)
		if r.Exit != 0 {
			t.Error(r)
		}
		if talk.Failed() {
			t.Errorf("while %s went to %s", port, hook)
		}
	}
	set := func(port, hook string) {
		t.Helper()
		run(port, hook, "port", "set", "br0", port, "--hook", hook)
	}
	apply := func(port, hook string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), hook+".yaml")
		text := fmt.Appendf(nil, "bridges: {br0: {ports: {%s: {hook: %s}, %s: {hook: xdp}}}}", port, hook, b.Port)
		must(t, os.WriteFile(file, text, 0o600))
		run(port, hook, "apply", file)
		if now := l.Port("br0", port).Hook; now != hook {
			t.Errorf("%s is on hook %s, should be on %s", port, now, hook)
		}
	}
	set(b.Port, "xdp")
	const rounds = 20
	for i := range rounds {
		if t.Failed() {
			break
		}
		change := []func(port, hook string){set, apply}[i%2]
		change(a.Port, "xdp")
		change(a.Port, "tcx")
	}
	must(t, talk.Stop())
}

// xdpKilled: a command is killed while it moves a port to XDP, next to another one, or from it.
// At any point the port's packets are right at once. The next command completes the change, or
// undoes it.
func xdpKilled(t *testing.T, _ string) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	a, b := ends[0], ends[1]
	had := a.Features()
	l.AddBridge("br0", "tcx", ends)
	bascule := func(command string) {
		t.Helper()
		r, err := l.Run(strings.Fields(strings.ReplaceAll(command, "PORT", a.Port))...)
		must(t, err)
		if r.Exit != 0 { // it may warn
			t.Fatal(r)
		}
	}
	bascule("port set br0 " + b.Port + " --hook xdp")
	talk := l.NewTalk(a, b)

	hook := func() string { // "" if it is no port
		if !slices.Contains(l.Bridge("br0").Ports, a.Port) {
			return ""
		}
		return l.Port("br0", a.Port).Hook
	}
	// Restores the port's state before the command.
	ensure := func(want string) {
		t.Helper()
		switch now := hook(); {
		case now == want:
		case want == "":
			bascule("port del br0 PORT")
		case now == "":
			bascule("port add br0 PORT --hook " + want)
		default:
			bascule("port set br0 PORT --hook " + want)
		}
	}
	whole := func(t *testing.T) {
		t.Helper()
		xdp := hook() == "xdp"
		for feature, on := range a.Features() {
			switch feature {
			case "tx-checksum-ip-generic", "tx-checksum-sctp", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert":
				if xdp && on {
					t.Errorf("the port is on XDP, and its other end has %s on", feature)
				}
			case "rx-gro":
				if xdp && !on {
					t.Error("the port is on XDP, and its other end has GRO off")
				}
			}
			if !xdp && on != had[feature] {
				t.Errorf("the port is on hook %q, and its other end has %s %v, had %v", hook(), feature, on, had[feature])
			}
		}
		if hook() == "" {
			if err := a.Unchanged(); err != nil {
				t.Error(err)
			}
		}
	}

	for _, c := range []struct{ from, command string }{
		{"tcx", "port set br0 PORT --hook xdp"},
		{"xdp", "port set br0 PORT --hook tcx"},
		{"", "port add br0 PORT --hook xdp"},
		{"", "port add br0 PORT --hook tcx"},
		{"xdp", "port del br0 PORT"},
	} {
		t.Run(c.command, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(c.command, "PORT", a.Port))
			ensure(c.from)
			points := slices.DeleteFunc(killPoints(t, l, fixed(args), func() { ensure(c.from) }), func(p killPoint) bool {
				return !slices.Contains([]string{"bpf", "renameat", "unlinkat", "mkdirat", "ioctl", "sendto"}, p.call)
			})
			points = somePoints(points, 12)
			kills := 0
			after := map[string]int{}
			for _, p := range points {
				ensure(c.from)
				whole(t)
				killed := kill(t, l, p, args)
				if killed {
					kills++
				}
				wantPromiscuous(t, l, a)
				if c.from != "" && hook() != "" { // it was a port all the time
					if err := talk.Exchange(20); err != nil {
						t.Errorf("before the next command: %v", err)
					}
				}
				l.Bascule("fdb", "flush", "br0", "--vlan", "4000") // completes or undoes the change
				whole(t)
				if hook() != "" {
					if err := talk.Exchange(20); err != nil {
						t.Error(err)
					}
				}
				after[hook()]++
				if t.Failed() {
					t.Fatalf("killed: %v, in %s number %d; the hook is %q", killed, p.call, p.n, hook())
				}
			}
			t.Logf("killed at %d points of %d; hooks after that: %v", kills, len(points), after)
			if kills < len(points)/2 {
				t.Error("it got away from most of its kills")
			}
			if len(after) < 2 {
				t.Error("it was killed on one side of the change alone")
			}
		})
	}
}

// wantPromiscuous checks that a device is promiscuous if the switch has a program on it.
func wantPromiscuous(t *testing.T, l *netlab.Lab, e *netlab.End) {
	t.Helper()
	device, err := l.Switch.Netlink().LinkByIndex(e.PortIndex)
	must(t, err)
	forwards := false
	must(t, l.Switch.Do(func() (err error) {
		forwards, err = netlab.Forwards(e.PortIndex)
		return err
	}))
	if forwards && device.Attrs().Promisc == 0 {
		t.Errorf("%s is not promiscuous, and has a program", e.Port)
	}
}
