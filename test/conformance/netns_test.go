// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"os/exec"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// TestNetns runs the program in its namespace in every way that there is: they
// are all about the same bridges. `ip netns exec` gives it mounts of its own
// besides.
func TestNetns(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	ip, err := exec.LookPath("ip")
	must(t, err)
	name := l.Switch.Name
	ways := [][]string{
		{l.Binary(), "-n", name},
		{l.Binary(), "-n", "/run/netns/" + name},
		{ip, "netns", "exec", name, l.Binary()},
		{ip, "netns", "exec", name, l.Binary(), "-n", name},
	}
	next := 0
	run := func(args ...string) netlab.Result {
		t.Helper()
		way := ways[next%len(ways)]
		next++
		r, err := netlab.RunCommand(exec.Command(way[0], append(way[1:], args...)...))
		must(t, err)
		if r.Exit != 0 || r.Stderr != "" {
			t.Fatalf("%v: %v", way, r)
		}
		return r
	}
	for range ways {
		run("bridge", "add", "br0")
		run("port", "add", "br0", ends[0].Port)
		run("port", "add", "br0", ends[1].Port)
		run("fdb", "add", "br0", A.String(), ends[0].Port)
		run("bridge", "set", "br0", "--ageing", "100s")
		shown := run("-j", "bridge", "show").Stdout
		for range len(ways) - 1 {
			if got := run("-j", "bridge", "show").Stdout; got != shown {
				t.Errorf("bridges are shown as %q, and as %q", got, shown)
			}
		}
		l.Reach(ends[1], l.Frames(5, A, B), ends[0])
		run("bridge", "del", "br0")
		next++ // another way for each command the next time
	}
	// the caller's own namespace has none of it
	elsewhere := l.NewNamespace()
	l.Bascule("-n", elsewhere.Name, "bridge", "add", "br0")
	l.Refused([]string{"br0"}, "bridge", "show", "br0")
	l.Bascule("-n", elsewhere.Name, "bridge", "del", "br0")
}

// TestFirst runs the machine's first commands, many at once, where nothing is
// mounted yet: they find each other's bridges.
func TestFirst(t *testing.T) {
	l := netlab.New(t)
	const script = `
		umount -l /run/bascule 2>/dev/null # in a mount namespace of our own
		! grep ' /run/bascule ' /proc/self/mounts || exit
		for i in $(seq 20); do
			"$0" bridge show &
		done
		wait
		grep -c ' /run/bascule bpf ' /proc/self/mounts`
	for range 40 { // it seldom happens
		out, err := exec.Command("unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--propagation", "private", "sh", "-c", script, l.Binary()).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "1" {
			t.Fatalf("should have mounted once: %v: %s", err, out)
		}
	}
}
