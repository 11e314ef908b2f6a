// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"os/exec"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// TestNetns runs the program in its namespace in all possible ways: all use the same bridges.
// `ip netns exec` also has mounts of its own.
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
		next++ // the next command uses another way
	}
	// The caller's own namespace has no bridge.
	elsewhere := l.NewNamespace()
	l.Bascule("-n", elsewhere.Name, "bridge", "add", "br0")
	l.Refused([]string{"br0"}, "bridge", "show", "br0")
	l.Bascule("-n", elsewhere.Name, "bridge", "del", "br0")
}

// TestOtherMounts runs the program with another /run/bascule, as in a container with the host's
// network. A port of a bridge here cannot be added there, and a device that is no port can.
func TestOtherMounts(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(4)
	l.AddBridge("br0", "tcx", ends[:2])
	l.Bascule("bridge", "add", "br1")
	l.Bascule("span", "add", "br1", ends[2].Port)
	const script = `
		mount -t tmpfs tmpfs /run || exit
		"$0" bridge add brx || exit
		for port in $1 $2 $3 $4; do
			"$0" port add brx $port 2>&1 || echo "exit $?"
		done
		"$0" span add brx $1 2>&1 || echo "exit $?"
		"$0" bridge del --all`
	args := []string{"-m", "-p", "-f", "--mount-proc", "--propagation", "private", "sh", "-c", script, l.Binary()}
	for _, e := range ends {
		args = append(args, e.Port)
	}
	var out []byte
	must(t, l.Switch.Do(func() (err error) {
		out, err = exec.Command("unshare", args...).CombinedOutput()
		return err
	}))
	const why = ": it is a port of a bridge that is not in this /run/bascule; give it up there first, or run bascule with the mounts of that bridge\nexit 1\n"
	var want string
	for _, e := range ends[:3] {
		want += "bascule: cannot add port " + e.Port + " to brx" + why
	}
	want += "bascule: cannot add span port " + ends[0].Port + " to brx" + why + "removed bridge brx\n"
	if got := string(out); got != want {
		t.Errorf("says\n%s\nwant\n%s", got, want)
	}
	l.Reach(ends[0], l.Frames(5, A, B), ends[1])
}

// TestFirst runs the machine's first commands, many at once, while nothing is mounted yet. They
// find each other's bridges.
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
	for range 40 { // the race is rare
		out, err := exec.Command("unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--propagation", "private", "sh", "-c", script, l.Binary()).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "1" {
			t.Fatalf("should have mounted once: %v: %s", err, out)
		}
	}
}
