// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/answer"
	"bascule/test/netlab"
)

// confirmCases are the cases of changes that have to be confirmed.
var confirmCases = []struct {
	name string
	run  func(t *testing.T, l *netlab.Lab)
}{
	{"put_back", confirmPutBack},
	{"put_back_devices", confirmPutBackDevices},
	{"host_and_anchors", confirmHostAndAnchors},
	{"addresses", confirmAddresses},
	{"uppers", confirmUppers},
	{"confirmed", confirmConfirmed},
	{"cable", confirmCable},
	{"small_mtu", confirmSmallMTU},
	{"busy", confirmBusy},
	{"parts", confirmParts},
	{"twins", confirmTwins},
	{"interface", confirmInterface},
	{"slow", confirmSlow},
	{"stuck", confirmStuck},
	{"others", confirmOthers},
	{"stderr_full", confirmStderrFull},
	{"agent_stopped", confirmAgentStopped},
	{"descriptors", confirmDescriptors},
	{"unopened", confirmUnopened},
	{"relative_dirs", confirmRelativeDirs},
	{"namespace_gone", confirmNamespaceGone},
	{"pid_namespace", confirmPIDNamespace},
	{"guests", func(t *testing.T, l *netlab.Lab) {
		confirmGuests(t, l, func() { putBackNow(t, l) })
	}},
	{"guests_by_agent", func(t *testing.T, l *netlab.Lab) {
		confirmGuests(t, l, func() {
			killWatchers(t, l)
			overdue(t, l)
			l.Wait("the agent to put the change back", func() bool { return !waiting(l) })
		})
	}},
	{"guests_of_files", confirmGuestsOfFiles},
	{"failed", confirmFailed},
	{"session_killed", confirmSessionKilled},
	{"watcher_killed", confirmWatcherKilled},
	{"command_killed_anywhere", confirmKilledAnywhere},
	{"restart", confirmRestart},
	{"restart_agent", confirmRestartAgent},
	{"agent", confirmAgent},
	{"agent_anew", confirmAgentAnew},
	{"agent_unreadable", confirmAgentUnreadable},
	{"agent_restarted", confirmAgentRestarted},
	{"agent_broken", confirmAgentBroken},
	{"uplink_gone", confirmUplinkGone},
	{"same", confirmSame},
	{"files_removed", confirmFilesRemoved},
	{"again", confirmAgain},
	{"not_begun", confirmNotBegun},
	{"files_hidden", confirmFilesHidden},
	{"good_since", confirmGoodSince},
	{"time_namespaces", confirmTimeNamespaces},
	{"api", confirmAPI},
	{"namespace_anew", confirmNamespaceAnew},
	{"two_namespaces", confirmTwoNamespaces},
	{"nested", confirmNested},
	{"of_another", confirmOfAnother},
	{"front_doors", confirmFrontDoors},
	{"session", commandsOfSession},
	{"session_ways", waysOfSession},
	{"session_doors", doorsOfSession},
	{"full_disk", confirmFullDisk},
	{"read_only_later", confirmReadOnlyLater},
	{"other_versions", confirmOtherVersions},
	{"denied", confirmDenied},
	{"back", applyBack},
	{"history", applyHistory},
}

func TestConfirm(t *testing.T) {
	for _, c := range confirmCases {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t)
			l.NewEnds(3)
			setFolders(t, l)
			c.run(t, l)
		})
	}
}

// setFolders gives a lab folders of its own for states and for the agent. The processes that wait
// for a confirmation write to both, and end before the folders are removed.
func setFolders(t testing.TB, l *netlab.Lab) {
	t.Helper()
	l.Setenv("BASCULE_AGENT_DIR", t.TempDir())
	dir := filepath.Join(os.TempDir(), l.Switch.Name+"-states")
	t.Cleanup(func() {
		for list := watchers(l); len(list) > 0; list = watchers(l) { // they would make the folder again
			for _, pid := range list {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			time.Sleep(time.Millisecond)
		}
		os.RemoveAll(dir)
	})
	must(t, os.MkdirAll(dir, 0o700))
	l.Setenv("BASCULE_STATE_DIR", dir)
}

// ofLab returns the folder of the lab's own states.
func ofLab(l *netlab.Lab) string {
	return filepath.Join(os.TempDir(), l.Switch.Name+"-states", "netns-"+l.Switch.Name)
}

// good is the state before. bad cuts p1 off and changes everything else, too.
const (
	good = "bridges: {br0: {ports: {p1: {}, p2: {}}}}"
	bad  = `bridges: {br0: {vlan-filtering: on, ports: {p2: {pvid: 7}, p3: {pvid: 7}, h0: {type: host, pvid: 7, addresses: 192.0.2.9/24}},
  rules: [block in on p3 arp], fdb: [{mac: 02:00:00:00:00:01, port: p2, vlan: 7}], pf: {rules: block}}, br1: {ports: {p1: {}}}}`
)

// works checks that the switch is in the state good: frames pass between p1 and p2, and p3 gets none.
func works(l *netlab.Lab) {
	e := l.Ends
	l.Reach(e[0], l.Frames(3, netlab.Broadcast, e[0].MAC), e[1])
	l.Reach(e[1], l.Frames(3, netlab.Broadcast, e[1].MAC), e[0])
}

// isBack waits until the waiting process has put the change back, and then checks that the switch has the
// state before it.
func isBack(t *testing.T, l *netlab.Lab) {
	t.Helper()
	l.Wait("the change to be put back", func() bool { return !waiting(l) })
	stateIs(t, l)
}

func stateIs(t *testing.T, l *netlab.Lab) {
	t.Helper()
	out := strings.ReplaceAll(l.Bascule("export"), "    pf: off\n", "") // it was set since then
	if lines := linesOf(out); !slices.Equal(slices.Sorted(slices.Values(lines)), []string{"      p1: {}", "      p2: {}", "    ports:", "  br0:", "bridges:"}) {
		t.Errorf("what runs is\n%s", out)
	}
	works(l)
}

// waiting reports whether a change waits to be confirmed. It runs no command, since a command would put back
// an overdue change.
func waiting(l *netlab.Lab) bool {
	_, err := os.Stat(filepath.Join(ofLab(l), "pending.json"))
	return err == nil
}

// tried applies a file that is put back after a time, and checks that the change is in force now.
func tried(t *testing.T, l *netlab.Lab, wait, text string) string {
	t.Helper()
	path := file(t, "bad.yaml", text)
	r, err := l.Run("apply", "--confirm", wait, path)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "put back in "+wait+", unless 'bascule apply confirm' comes before") {
		t.Fatal(r)
	}
	return path
}

// watchers returns the processes in the lab's namespace that wait to put a change back.
func watchers(l *netlab.Lab) (list []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		if bytes.Contains(text, []byte("\x00-n\x00"+l.Switch.Name+"\x00apply\x00--overdue\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			list = append(list, pid)
		}
	}
	return list
}

func killWatchers(t *testing.T, l *netlab.Lab) {
	t.Helper()
	list := watchers(l)
	if len(list) == 0 {
		t.Fatal("no process waits to put the change back")
	}
	for _, pid := range list {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	l.Wait("the process to end", func() bool { return len(watchers(l)) == 0 })
}

// overdue has the time to confirm end, according to the monotonic clock.
func overdue(t *testing.T, l *netlab.Lab) {
	t.Helper()
	edit(t, l, func(p map[string]any) { p["end"] = 1 })
}

// edit edits the file of the waiting change.
func edit(t *testing.T, l *netlab.Lab, f func(map[string]any)) {
	t.Helper()
	path := filepath.Join(ofLab(l), "pending.json")
	text, err := os.ReadFile(path)
	must(t, err)
	p := map[string]any{}
	must(t, json.Unmarshal(text, &p))
	f(p)
	text, err = json.Marshal(p)
	must(t, err)
	must(t, os.WriteFile(path+".new", text, 0o600)) // other processes may read it meanwhile
	must(t, os.Rename(path+".new", path))
}

func confirmPutBack(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	tried(t, l, "1h", bad)
	if out := l.Bascule("port", "show", "br1"); !strings.Contains(out, "p1") {
		t.Errorf("the change is not in force meanwhile: %s", out)
	}
	l.Bascule("port", "set", "br0", "p3", "--hairpin") // changes by commands in between are undone, too
	overdue(t, l)
	isBack(t, l)
	if text := l.Bascule("apply", "--history"); !strings.Contains(text, "put back, not confirmed: ") {
		t.Errorf("the history is\n%s", text)
	}
	l.Wait("the process to end", func() bool { return len(watchers(l)) == 0 })
}

// Device settings in a file are put back with the rest, even if the former file did not have them.
func confirmPutBackDevices(t *testing.T, l *netlab.Lab) {
	const rest = "p3: {up: off}, h0: {type: host}, h1: {type: host, up: off, mtu: 1300, mac: '02:00:00:00:00:77'}}}}"
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {ports: {p1: , p2: {description: roof}, "+rest))
	state := func() (list []string) {
		for _, name := range []string{"p1", "p2", "p3", "h0", "h1"} {
			a := device(t, l, name).Attrs()
			list = append(list, fmt.Sprint(name, " ", a.RawFlags&unix.IFF_UP != 0, " ", a.HardwareAddr, " ", a.MTU, " ", a.Alias))
		}
		return list
	}
	before := state()
	const change = "bridges: {br0: {ports: {p1: {up: off, description: x}, p2: {description: ''}, p3: , h0: {type: host, up: off, description: y, mac: '02:00:00:00:00:78', mtu: 1400}," +
		" h1: {type: host, mtu: 9000, mac: auto}}}}"
	for _, back := range []func(){
		func() {
			overdue(t, l)
			l.Wait("the change to be put back", func() bool { return !waiting(l) })
		},
		func() {
			killWatchers(t, l)
			if r, err := l.Run("apply", "--back"); err != nil || r.Exit != 0 { // with warnings about MTUs
				t.Error(r, err)
			}
		},
	} {
		tried(t, l, "1h", change)
		for i, now := range state() {
			if now == before[i] {
				t.Errorf("meanwhile there is %s, before there was %s", now, before[i])
			}
		}
		back()
		if got := state(); !slices.Equal(got, before) {
			t.Errorf("it is put back to %q, and was %q", got, before)
		}
	}
}

// confirmHostAndAnchors: state that is in no file is put back as well: the host's routes, neighbours and
// leases at its port, rules in pf's anchors, and a MAC and MTU that a file does not set.
func confirmHostAndAnchors(t *testing.T, l *netlab.Lab) {
	ip := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", append([]string{"-n", l.Switch.Name}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	out, err := exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=0").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	apply(t, l, file(t, "good.yaml", `bridges: {br0: {ports: {p1: {}, p2: {}, h0: {type: host, addresses: [192.0.2.9/24, "2001:db8::9/64"]}}, pf: {rules: "anchor own\nanchor none\npass"}}}`))
	ip("address", "add", "192.0.2.77/24", "dev", "h0", "valid_lft", "5000", "preferred_lft", "4000")
	ip("route", "add", "default", "via", "192.0.2.1", "metric", "7")
	ip("-6", "route", "add", "default", "via", "2001:db8::1", "metric", "8")
	ip("neighbour", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:61", "dev", "h0", "nud", "permanent")
	ip("neighbour", "add", "2001:db8::1", "lladdr", "02:00:00:00:00:61", "dev", "h0", "nud", "permanent")
	ip("route", "add", "198.51.100.0/24", "nexthop", "via", "192.0.2.2", "weight", "3", "nexthop", "via", "192.0.2.3")
	ip("route", "add", "203.0.113.0/24", "dev", "h0", "src", "192.0.2.9", "mtu", "1200", "table", "42")
	l.Bascule("pfctl", "-b", "br0", "-q", "-a", "own", "-f", file(t, "own.conf", "block in proto udp from any to any port = 9\n"))
	look := func() string {
		links := linesOf(ip("-o", "link", "show", "h0")) // its index and the index of its other end are new
		mac, mtu := strings.Fields(links[0]), ""
		for i, word := range mac {
			if word == "mtu" || word == "link/ether" {
				mtu += word + " " + mac[i+1] + "\n"
			}
		}
		leased := ""
		for _, line := range linesOf(ip("-o", "-4", "address", "show", "dev", "h0")) {
			leased += strings.Fields(line)[3] + "\n"
		}
		return mtu + leased + ip("-4", "route", "show", "table", "all", "proto", "boot") + ip("-6", "route", "show", "table", "all", "proto", "boot") +
			ip("neighbour", "show", "nud", "permanent") + l.Bascule("pfctl", "-b", "br0", "-q", "-a", "*", "-s", "rules")
	}
	before := look()
	r, err := l.Run("apply", "--dry-run", file(t, "none.yaml", "bridges: {br0: {}}"))
	must(t, err)
	if want := "bridge br0: the host's routes through port h0 (4) will be lost"; strings.Count(r.Stderr, want) != 1 {
		t.Errorf("%v, and should say %s", r, want)
	}
	for _, text := range []string{
		"bridges: {br0: {}}",
		"bridges: {br0: {ports: {p1: {}, h0: {type: host, addresses: 203.0.113.9/24, mac: 02:00:00:00:00:99, mtu: 900}}, pf: {rules: pass}}}",
		"bridges: {br0: {ports: {p1: {}, p2: {}, h0: {type: host, up: off}}}}",
	} {
		tried(t, l, "1h", text)
		l.Run("pfctl", "-b", "br0", "-q", "-a", "none", "-f", file(t, "none.conf", "block\n"))
		l.Run("pfctl", "-b", "br0", "-q", "-a", "own", "-F", "rules")
		l.Run("port", "set", "br0", "h0", "--mac", "02:00:00:00:00:98", "--mtu", "1000")
		if strings.Contains(text, "up: off") { // a device has the address while the interface is made again
			l.Run("port", "set", "br0", "h0", "--mac", "auto")
			ip("link", "set", "h0", "name", "h8")
		}
		heard := netlab.NewOutputFile(t)
		monitor := exec.Command("ip", "-n", l.Switch.Name, "monitor", "link")
		monitor.Stdout = heard
		must(t, monitor.Start())
		l.Wait("ip to monitor interfaces", func() bool {
			ip("link", "set", "lo", "alias", "noticed")
			return heard.Lines("loopback") > 0
		})
		overdue(t, l)
		l.Wait("the change to be put back", func() bool { return !waiting(l) })
		must(t, monitor.Process.Kill())
		_ = monitor.Wait()
		mac, name := strings.Fields(before)[3], ""
		for _, line := range linesOf(heard.String()) {
			words := strings.Fields(line)
			if len(words) > 1 && strings.HasSuffix(words[1], ":") {
				name, _, _ = strings.Cut(words[1], "@")
			}
			if name == "h0" && len(words) > 1 && words[0] == "link/ether" && words[1] != mac && !slices.Contains([]string{"02:00:00:00:00:98", "02:00:00:00:00:99"}, words[1]) {
				t.Errorf("after %s an interface that is made anew has %s first, and not %s", text, words[1], mac)
			}
		}
		if strings.Contains(ip("-6", "address", "show", "dev", "h0"), "fe80::ff:fe00:9") {
			t.Errorf("after %s the host has the link-local address of a MAC that was tried", text)
		}
		if after := look(); after != before {
			t.Errorf("after %s there is\n%s and was\n%s", text, after, before)
		}
	}
}

func confirmConfirmed(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := tried(t, l, "1h", bad)
	before := l.Bascule("export")
	// The waiting change is already in force, and continues to wait.
	l.Refused([]string{"waits to be confirmed until", "bascule apply confirm"}, "apply", "--confirm", "2h", path)
	r, err := l.Run("apply", path)
	must(t, err)
	if r.Exit != 0 || !waiting(l) || !strings.Contains(r.Stderr, "is to be confirmed until") {
		t.Error(r)
	}
	l.Bascule("apply", "confirm")
	if waiting(l) {
		t.Error("it waits still")
	}
	l.Wait("the process to end", func() bool { return len(watchers(l)) == 0 })
	if after := l.Bascule("export"); after != before {
		t.Errorf("the confirm changed\n%sto\n%s", before, after)
	}
	wantLines(t, apply(t, l, path))
	// A file without a change has nothing to confirm.
	r, err = l.Run("apply", "--confirm", "1s", path)
	must(t, err)
	if r.Exit != 0 || waiting(l) || !strings.Contains(r.Stderr, "nothing to confirm") {
		t.Error(r)
	}
}

// confirmFailed has an apply fail in the middle: a device takes no more programs.
func confirmFailed(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	// The host's interface gets no IPv6 address if IPv6 is disabled by default.
	out, err := exec.Command("ip", "netns", "exec", l.Switch.Name, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := l.Run("apply", "--confirm", "1h", file(t, "bad.yaml", strings.Replace(bad, "192.0.2.9/24", "2001:db8::2/64", 1)))
	must(t, err)
	if r.Exit != 1 || !strings.Contains(r.Stderr, "the part that was done is put back") {
		t.Error(r)
	}
	if waiting(l) {
		t.Error("what is put back waits still")
	}
	stateIs(t, l)
}

// confirmSessionKilled ends the whole session of the command, like the end of an ssh session.
func confirmSessionKilled(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := file(t, "bad.yaml", bad)
	cmd := l.Command("apply", "--confirm", "2s", path)
	shell := exec.Command("sh", "-c", `"$@"; echo done; sleep 3600`, "sh")
	shell.Args = append(shell.Args, cmd.Args...)
	shell.Env = cmd.Env
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := shell.StdoutPipe()
	must(t, err)
	must(t, shell.Start())
	var said []byte
	for !bytes.Contains(said, []byte("done\n")) {
		b := make([]byte, 4096)
		n, err := out.Read(b)
		must(t, err)
		said = append(said, b[:n]...)
	}
	must(t, syscall.Kill(-shell.Process.Pid, syscall.SIGHUP))
	must(t, syscall.Kill(-shell.Process.Pid, syscall.SIGKILL))
	_ = shell.Wait()
	isBack(t, l)
}

func confirmWatcherKilled(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	tried(t, l, "1h", bad)
	killWatchers(t, l)
	overdue(t, l)
	r, err := l.Run("bridge", "show") // any next command
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "was not confirmed, and is put back") || strings.Contains(r.Stdout, "br1") {
		t.Error(r)
	}
	stateIs(t, l)
}

// confirmKilledAnywhere kills the command at any system call, together with the waiting process. The next
// command restores everything.
func confirmKilledAnywhere(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := file(t, "bad.yaml", bad)
	calls := []string{"bpf", "mkdirat", "renameat", "unlinkat", "sendto", "flock"}
	for i := range 24 {
		if !netlab.Place() {
			continue
		}
		call := calls[i%len(calls)]
		ended, swept := make(chan struct{}), make(chan struct{})
		go func() { // The waiting process is watched like the command, whose wait ends with both.
			defer close(swept)
			for {
				for _, pid := range watchers(l) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				select {
				case <-ended:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}()
		_, err := netlab.RunKilled(l.Command("apply", "--yes", "--confirm", "1h", path), call, 1+i*i%60)
		close(ended)
		<-swept
		must(t, err)
		if waiting(l) {
			overdue(t, l)
		}
		_, err = l.Run("bridge", "show") // it prints what it puts back
		must(t, err)
		stateIs(t, l)
		if t.Failed() {
			t.Fatalf("after a kill at call %d of %s", 1+i*i%60, call)
		}
	}
}

// restart affects the namespace and the switch's state like a restart of the machine.
func restart(t *testing.T, l *netlab.Lab) {
	t.Helper()
	for _, pid := range watchers(l) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	if waiting(l) { // The commands here belong to the former boot.
		edit(t, l, func(p map[string]any) { p["boot"], p["cookie"] = "the boot before", 1 })
	}
	path := filepath.Join(ofLab(l), "pending.json")
	aside := filepath.Join(filepath.Dir(ofLab(l)), "pending.json")
	if waiting(l) {
		must(t, os.Rename(path, aside))
		defer func() { must(t, os.Rename(aside, path)) }()
	}
	l.Bascule("bridge", "del", "--all")
}

func confirmRestart(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := tried(t, l, "1h", bad)
	restart(t, l)
	// The unit applies the file at each boot.
	r, err := l.Run("apply", path)
	must(t, err)
	if r.Exit != 1 || !strings.Contains(r.Stderr, "is put back") || !strings.Contains(r.Stderr, "these files were put back before") {
		t.Error(r)
	}
	stateIs(t, l)
}

// confirmRestartAgent has the agent apply unconfirmed files at the next boot.
func confirmRestartAgent(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	path := file(t, "switch.yaml", good)
	r.start("-f", path)
	must(t, os.WriteFile(path, []byte(bad), 0o600))
	if out, err := l.Run("agent", "reload", "--confirm", "1h"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	if out := l.Bascule("bridge", "show"); !strings.Contains(out, "br1") || !waiting(l) {
		t.Fatalf("the files are not applied to be confirmed: %s", out)
	}
	r.kill()
	restart(t, l)
	r.start("-f", path)
	stateIs(t, l)
	if out := l.Bascule("-j", "agent", "status"); !strings.Contains(out, "these files were put back before") {
		t.Errorf("the agent says\n%s", out)
	}
	r.kill()
	restart(t, l) // and a second time, when no change waits any more
	r.start("-f", path)
	stateIs(t, l)
	// Corrected files are applied.
	must(t, os.WriteFile(path, []byte(good), 0o600))
	l.Bascule("agent", "reload")
	if out := l.Bascule("-j", "agent", "status"); strings.Contains(out, "put back") {
		t.Errorf("the agent says\n%s", out)
	}
}

// confirmAgent has an agent run from the start, with patterns, and an agent that starts while a change
// waits.
func confirmAgent(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	path := file(t, "switch.yaml", `bridges: {br0: {ports: {"p[12]": {}}}}`)
	r.start("-f", path)
	stateIs(t, l)
	// The agent's own files: it puts them back itself, and uses the former patterns.
	must(t, os.WriteFile(path, []byte(`bridges: {br0: {ageing: 90s, ports: {"p[23]": {}}}}`), 0o600))
	if out, err := l.Run("agent", "reload", "--confirm", "1h"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	killWatchers(t, l)
	overdue(t, l)
	l.Wait("the agent to put it back", func() bool { return !waiting(l) })
	stateIs(t, l)
	l.Wait("the agent to say so", func() bool {
		return strings.Contains(l.Bascule("-j", "agent", "status"), "these files were put back before")
	})
	if out, err := l.Run("agent", "reload"); err != nil || out.Exit != 1 || !strings.Contains(out.Stderr, "these files were put back before") {
		t.Error(out, err)
	}
	stateIs(t, l)
	if out, err := l.Run("agent", "reload", "--confirm", "1h"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	l.Bascule("apply", "confirm")
	l.Bascule("agent", "reload")
	if out := l.Bascule("export"); !strings.Contains(out, "90s") {
		t.Error(out)
	}
	// A command's change of a bridge that is not in the agent's files: the files wait meanwhile.
	text := `bridges: {br0: {ports: {p1: {}, p2: {}}}}`
	tried(t, l, "1h", text)
	if out, err := l.Run("agent", "reload"); err != nil || out.Exit != 1 || !strings.Contains(out.Stderr, "waits to be confirmed") {
		t.Error(out, err)
	}
	killWatchers(t, l)
	r.kill()
	overdue(t, l)
	r.start("-f", path) // an agent that starts while the change waits
	if waiting(l) {
		t.Error("it waits still")
	}
	if out := l.Bascule("export"); !strings.Contains(out, "90s") {
		t.Error(out)
	}
}

// confirmAgentAnew kills the agent after a put-back, and while a change waits. The next agent continues to
// add devices according to the former files.
func confirmAgentAnew(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	path := file(t, "switch.yaml", `bridges: {br0: {ports: {"p[12]": {}, "vm*": {}}, pf: {rules: pass}}}`)
	r.start("-f", path)
	guest := func(name string) {
		t.Helper()
		must(t, l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "end-" + name}))
		t.Cleanup(func() { must(t, l.Switch.Netlink().LinkDel(device(t, l, name))) })
		l.Wait("a guest to be plugged", func() bool {
			return strings.Contains(l.Bascule("port", "show", "br0"), name)
		})
	}
	must(t, os.WriteFile(path, []byte(`bridges: {br0: {ageing: 90s, ports: {"p[23]": {}}}}`), 0o600))
	if out, err := l.Run("agent", "reload", "--confirm", "1h", "--yes"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	l.Bascule("apply", "--back")
	guest("vm1")
	r.kill()
	r.start("-f", path)
	if out := l.Bascule("-j", "agent", "status"); !strings.Contains(out, "these files were put back before") {
		t.Errorf("the agent says\n%s", out)
	}
	guest("vm2")
	// A command's change waits when the agent starts.
	tried(t, l, "1h", "bridges: {br1: {}}")
	r.kill()
	r.start("-f", path)
	if out := l.Bascule("-j", "agent", "status"); !strings.Contains(out, "waits to be confirmed") {
		t.Errorf("the agent says\n%s", out)
	}
	guest("vm3")
	l.Bascule("apply", "--back")
}

// confirmAgentUnreadable has an agent start while a file of its folder cannot be read. The former agent's
// configuration stays in force, for new guests and after a restart of the machine. An unconfirmed change is
// put back anyway.
func confirmAgentUnreadable(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "switch.yaml"), []byte(`bridges: {br0: {ports: {"p[12]": {}, "vm*": {}}, pf: {rules: "block in proto udp\npass"}}}`), 0o600))
	broken := filepath.Join(dir, "zebra.yaml")
	spoil := func() { must(t, os.WriteFile(broken, []byte("bridges: {\n"), 0o600)) }
	guest := func(name string) {
		t.Helper()
		must(t, l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "end-" + name}))
		t.Cleanup(func() { must(t, l.Switch.Netlink().LinkDel(device(t, l, name))) })
		l.Wait("a guest to be plugged", func() bool {
			out, err := l.Run("port", "show", "br0")
			must(t, err)
			return strings.Contains(out.Stdout, name)
		})
	}
	says := func() {
		t.Helper()
		for _, look := range []struct {
			args []string
			want []string
		}{
			{[]string{"agent", "status"}, []string{"not in force", "zebra.yaml", "devices become ports by the former files"}},
			{[]string{"check"}, []string{"not in force as they are now", "zebra.yaml"}},
		} {
			out := strings.Join(strings.Fields(l.Bascule(look.args...)), " ")
			for _, want := range look.want {
				if !strings.Contains(out, want) {
					t.Errorf("%v does not say %q: %s", look.args, want, out)
				}
			}
		}
		for _, want := range []string{"zebra.yaml", "devices become ports by the former files"} {
			if !strings.Contains(r.logs.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, r.logs.String())
			}
		}
	}
	r.start("-f", dir)
	r.kill()
	spoil()
	r.start("-f", dir)
	guest("vm1")
	says()

	// A command's unconfirmed change, whose waiting process is killed with the agent.
	tried(t, l, "1h", "bridges: {br0: {ageing: 90s, ports: {p1: {}}}}")
	killWatchers(t, l)
	r.kill()
	overdue(t, l)
	r.start("-f", dir)
	if out := l.Bascule("export"); waiting(l) || strings.Contains(out, "90s") || !strings.Contains(out, "p2") {
		t.Errorf("the change is not put back: %s", out)
	}
	guest("vm2")
	r.kill()

	restart(t, l)
	r.start("-f", dir)
	if out := l.Bascule("export"); !strings.Contains(out, "p1") || !strings.Contains(out, "p2") || !strings.Contains(out, "in proto udp") {
		t.Errorf("after a restart there is\n%s", out)
	}
	guest("vm3")
	says()

	must(t, os.Remove(broken))
	l.Bascule("agent", "reload")
	if out := l.Bascule("agent", "status"); !strings.Contains(out, "in force since") || strings.Contains(out, "before") {
		t.Errorf("the mended files are not in force: %s", out)
	}
}

// confirmUplinkGone removes devices while a change waits. Ports that cannot come back with the rest are
// reported; ports that did not exist before are not.
func confirmUplinkGone(t *testing.T, l *netlab.Lab) {
	other := l.NewNamespace().Name
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {ports: {p1: {}, p2: {}, none: {}}, mirrors: {p3: {ports: p1}}}}"))
	tried(t, l, "1h", "bridges: {br0: {ports: {p1: {}}}}")
	killWatchers(t, l)
	must(t, l.Switch.Netlink().LinkSetName(device(t, l, "p2"), "elsewhere"))
	defer func() { must(t, l.Switch.Netlink().LinkSetName(device(t, l, "elsewhere"), "p2")) }()
	if out, err := exec.Command("ip", "-n", l.Switch.Name, "link", "set", "p3", "netns", other).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	overdue(t, l)
	r, err := l.Run("bridge", "show")
	must(t, err)
	const but = ", but for port p2 of br0 and span port p3 of br0"
	if !strings.Contains(r.Stderr, "was not confirmed, and is put back"+but+"\n") {
		t.Error(r)
	}
	if out := l.Bascule("apply", "--history"); !strings.Contains(out, "bad.yaml"+but+" ") {
		t.Errorf("the history is\n%s", out)
	}
	if out, err := exec.Command("ip", "-n", other, "link", "set", "p3", "netns", l.Switch.Name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// confirmTimeNamespaces runs commands in time namespaces of their own, whose clocks are shifted. A change is
// put back neither earlier nor later.
func confirmTimeNamespaces(t *testing.T, l *netlab.Lab) {
	shifted := func(args ...string) string {
		t.Helper()
		cmd := l.Command(args...)
		cmd = exec.Command("unshare", append([]string{"--time", "--monotonic", "100000", "--boottime", "100000"}, cmd.Args...)...)
		cmd.Env = l.Command().Env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
		return string(out)
	}
	apply(t, l, file(t, "good.yaml", good))
	tried(t, l, "10h", bad)
	killWatchers(t, l)
	if out := shifted("port", "show"); strings.Contains(out, "is put back") || !waiting(l) {
		t.Errorf("a shifted clock has put it back too soon: %s", out)
	}
	l.Bascule("apply", "--back")
	shifted("apply", "--yes", "--confirm", "1s", file(t, "bad.yaml", bad))
	for _, pid := range watchers(l) { // it may have ended, in time or too late
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	l.Wait("the change to be put back by a command", func() bool {
		_, err := l.Run("bridge", "show")
		must(t, err)
		return !waiting(l)
	})
	stateIs(t, l)
}

// confirmFilesRemoved removes or spoils the files of a waiting change, which is put back anyway. A confirmed
// change is not put back. An unreadable file does not block later commands for ever.
// cutStates keeps so many bytes of the file of each state, or leaves out so many.
func cutStates(t *testing.T, l *netlab.Lab, bytes int64) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(ofLab(l), "0*.yaml"))
	for _, path := range paths {
		info, err := os.Stat(path)
		must(t, err)
		keeps := bytes
		if bytes < 0 {
			keeps += info.Size()
		}
		must(t, os.Truncate(path, keeps))
	}
}

// whole reports whether one of the files is complete.
func whole(t *testing.T, paths []string) bool {
	t.Helper()
	return slices.ContainsFunc(paths, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && bytes.HasSuffix(text, []byte("\n")) && bytes.Contains(text, []byte("      p2: "))
	})
}

func confirmFilesRemoved(t *testing.T, l *netlab.Lab) {
	// A process does not hold a namespace whose name was deleted.
	other := l.NewNamespace()
	in := func(args ...string) {
		t.Helper()
		cmd := l.Command()
		cmd = exec.Command(cmd.Path, args...)
		cmd.Env = l.Command().Env
		var r netlab.Result
		var err error
		must(t, other.Do(func() error { r, err = netlab.RunCommand(cmd); return err }))
		if r.Exit != 0 {
			t.Fatal(r)
		}
	}
	own := func() (list []int) {
		paths, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range paths {
			text, _ := os.ReadFile(path)
			words, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			if bytes.Contains(text, []byte("BASCULE_STATE_DIR="+filepath.Dir(ofLab(l))+"\x00")) && bytes.Contains(words, []byte("\x00--overdue\x00")) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				list = append(list, pid)
			}
		}
		return list
	}
	in("apply", "--yes", "--confirm", "1h", file(t, "other.yaml", "bridges: {br0: {}}"))
	if len(own()) == 0 {
		t.Fatal("no process waits to put the change back")
	}
	name := filepath.Join("/run/netns", other.Name)
	// Another namespace has the name then.
	must(t, unix.Mount(filepath.Join("/run/netns", l.Switch.Name), name, "", unix.MS_BIND, ""))
	defer func() { must(t, unix.Unmount(name, unix.MNT_DETACH)) }()
	l.Wait("the process to let go of the namespace", func() bool { return len(own()) == 0 })
	apply(t, l, file(t, "good.yaml", good))
	pending := filepath.Join(ofLab(l), "pending.json")
	id := func() string {
		p := map[string]any{}
		text, _ := os.ReadFile(pending)
		_ = json.Unmarshal(text, &p)
		return fmt.Sprint(p["id"])
	}
	for _, remove := range []func(){
		func() { _ = os.RemoveAll(filepath.Dir(ofLab(l))) }, // files may be written meanwhile
		func() { must(t, os.Remove(pending)) },
		func() { must(t, os.WriteFile(pending, []byte("{"), 0o600)) },
		func() {
			paths, _ := filepath.Glob(filepath.Join(ofLab(l), "0*.yaml"))
			for _, path := range paths {
				must(t, os.Remove(path))
			}
		},
		func() { cutStates(t, l, 0) },
		func() { cutStates(t, l, 120) },
		func() { cutStates(t, l, -4) },
	} {
		tried(t, l, "1h", bad)
		was := id()
		remove() // the process has read them before the change is made
		l.Wait("the files to be there again", func() bool {
			states, _ := filepath.Glob(filepath.Join(ofLab(l), "0*.yaml"))
			return id() == was && len(states) > 0 && whole(t, states)
		})
		overdue(t, l)
		isBack(t, l)
		l.Wait("the process to end", func() bool { return len(watchers(l)) == 0 })
	}
	for range 3 {
		tried(t, l, "1h", bad)
		l.Bascule("apply", "confirm")
		must(t, os.RemoveAll(ofLab(l)))
		l.Bascule("apply", "--yes", file(t, "again.yaml", good+"\n---\nbridges: {br1: {}}"))
		l.Run("apply", "--yes", file(t, "off.yaml", "bridges: {br0: {ageing: 60s}}"))
	}
	l.Wait("the processes to end", func() bool { return len(watchers(l)) == 0 })
	if waiting(l) || !strings.Contains(l.Bascule("export"), "60s") {
		t.Errorf("what was confirmed is put back: %s", l.Bascule("export"))
	}
	must(t, os.WriteFile(pending, []byte("{"), 0o600))
	path := file(t, "base.yaml", "bridges: {br0: {ageing: 70s}}")
	if r, err := l.Run("apply", path); err != nil || r.Exit != 1 || !strings.Contains(r.Stderr, "'bascule apply confirm --yes' keeps the present state") {
		t.Error(r, err)
	}
	l.Run("apply", "confirm", "--yes")
	apply(t, l, path)
}

// confirmSame puts a change back to the last state in the history. The history and a late confirm report
// that, and states keep their numbers.
func confirmSame(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {ageing: 60s}}"))
	for n := range 3 {
		tried(t, l, "1h", fmt.Sprintf("bridges: {br0: {ageing: %ds}}", 90+n))
		killWatchers(t, l)
		overdue(t, l)
		if r, err := l.Run("bridge", "show"); err != nil || r.Exit != 0 {
			t.Fatal(r, err)
		}
		var list []answer.State
		l.JSON(&list, "apply", "--history")
		if len(list) != n+3 || list[n+1].Back == nil || *list[n+1].Back != 0 || !strings.HasSuffix(list[n+1].What, "good.yaml") {
			t.Fatalf("the history is %+v", list)
		}
		for i, st := range list[:n+1] {
			if st.Back != nil || !strings.HasPrefix(st.What, "put back, not confirmed: ") || i > 0 && st.Time.After(list[i-1].Time) {
				t.Errorf("row %d of the history is %+v", i, st)
			}
		}
		l.Refused([]string{"bad.yaml) was not confirmed, and was put back at " + list[0].Time.Local().Format(time.DateTime)}, "apply", "confirm")
	}
	apply(t, l, file(t, "next.yaml", "bridges: {br0: {ageing: 80s}}"))
	apply(t, l, "--back")
	if out := l.Bascule("export"); !strings.Contains(out, "60s") {
		t.Error(out)
	}
}

// confirmAPI does the same with requests to the API.
func confirmAPI(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	apply(t, l, file(t, "good.yaml", good))
	r.start()
	ask := func(want int, method, path, body string) string {
		t.Helper()
		conn := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(r.dir, fmt.Sprint(r.cookie)+".sock"))
		}}}
		defer conn.CloseIdleConnections()
		request, err := http.NewRequest(method, "http://localhost/api/v1"+path, strings.NewReader(body))
		must(t, err)
		if body != "" {
			request.Header.Set("Content-Type", "application/yaml")
		}
		answer, err := conn.Do(request)
		must(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		if answer.StatusCode != want {
			t.Fatalf("%s is answered by %d: %s", path, answer.StatusCode, text)
		}
		return string(text)
	}
	ask(422, "POST", "/apply?confirm=never", bad)
	ask(422, "POST", "/apply/dry-run?confirm=60s", bad)
	ask(200, "POST", "/apply?confirm=1h", bad)
	if out := ask(200, "GET", "/apply/history", ""); !strings.Contains(out, `"who":"the API"`) || !strings.Contains(out, `"until":`) {
		t.Error(out)
	}
	ask(409, "POST", "/apply", "bridges: {br0: {ports: {p2: }}}")
	ask(200, "POST", "/apply/back", "")
	stateIs(t, l)
	ask(409, "POST", "/apply", bad)
	ask(409, "POST", "/apply/confirm", "")
	ask(200, "POST", "/apply?confirm=1h", bad)
	ask(200, "POST", "/apply/confirm", "")
	ask(200, "POST", "/apply/back?n=0&dry-run=true", "")
	ask(200, "POST", "/apply/back?n=2", "")
	stateIs(t, l)
	ask(200, "POST", "/apply?confirm=1s&yes=true", bad)
	isBack(t, l)
	ask(200, "POST", "/agent/reload?confirm=60s", "")
}

// confirmNamespaceAnew has a change wait in a namespace that no longer exists.
func confirmNamespaceAnew(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	tried(t, l, "1h", bad)
	killWatchers(t, l)
	edit(t, l, func(p map[string]any) { p["cookie"], p["end"] = 1, 1 })
	l.Bascule("bridge", "show")
	before := l.Bascule("export")
	if !strings.Contains(before, "br1") {
		t.Errorf("what another namespace of the name had was taken back:\n%s", before)
	}
}

func confirmTwoNamespaces(t *testing.T, l *netlab.Lab) {
	other := l.NewNamespace().Name
	both := func(settings string) string {
		return fmt.Sprintf("bridges: {br0: {ageing: %s}}\n---\nnetns: %s\nbridges: {br0: {ageing: %s}}\n", settings, other, settings)
	}
	run := func(args ...string) netlab.Result {
		t.Helper()
		cmd := l.Command()
		cmd = exec.Command(cmd.Path, args...)
		cmd.Env = l.Command().Env
		var r netlab.Result
		var err error
		must(t, l.Switch.Do(func() error { r, err = netlab.RunCommand(cmd); return err }))
		if r.Exit != 0 {
			t.Fatal(r)
		}
		return r
	}
	ageing := func() string {
		return run("-j", "export").Stdout + run("-n", other, "-j", "export").Stdout
	}
	run("apply", file(t, "a.yaml", both("60s")))
	before := ageing()
	run("apply", "--confirm", "10s", file(t, "b.yaml", both("90s"))) // enough time to check
	if after := ageing(); strings.Count(after, "90s") != 2 {
		t.Fatal(after)
	}
	l.Wait("both to be put back", func() bool { return ageing() == before })
	run("apply", "--yes", "--confirm", "1h", file(t, "b.yaml", both("90s")))
	run("apply", "confirm")
	for _, netns := range []string{l.Switch.Name, other} {
		if out := run("-n", netns, "apply", "--history").Stdout; strings.Contains(out, "to be confirmed") {
			t.Errorf("in %s one waits still:\n%s", netns, out)
		}
	}
}

func confirmNested(t *testing.T, l *netlab.Lab) {
	path := file(t, "good.yaml", good)
	apply(t, l, path)
	pending := tried(t, l, "1h", bad)
	third := file(t, "third.yaml", "bridges: {br0: {ageing: 90s, ports: {p2: {}}}}")
	for _, args := range [][]string{{"apply", third}, {"apply", "--confirm", "60s", third}, {"apply", "--back", "2"}, {"apply", "--back", "0"}} {
		l.Refused([]string{"waits to be confirmed"}, args...)
	}
	wantLines(t, apply(t, l, pending)) // The same change again is no other change.
	l.Bascule("port", "set", "br0", "p3", "--hairpin")
	wantLines(t, apply(t, l, pending), "~ port p3 of br0: hairpin on -> off")
	if !waiting(l) {
		t.Error("to apply the same files again has confirmed them")
	}
	l.Bascule("apply", "--back")
	stateIs(t, l)
	if waiting(l) {
		t.Error("it waits still")
	}
	l.Refused([]string{"bad.yaml) was not confirmed, and was put back at "}, "apply", "confirm")
}

// confirmFrontDoors: the programs that attach guests and containers act like other commands. They put back
// an unconfirmed change first.
func confirmFrontDoors(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	dir := t.TempDir()
	for _, door := range []struct {
		name, stdin string
		args, env   []string
	}{
		{"bascule", "", []string{"plug", "one", "--bridge", "br0", "--device", "p3"}, nil},
		{"bascule", "", []string{"unplug", "one"}, nil},
		{"bascule-cni", `{"cniVersion": "1.0.0", "name": "net", "type": "bascule-cni", "bridge": "br0"}`, nil,
			[]string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=none", "CNI_IFNAME=eth0", "CNI_PATH=" + dir}},
		{"bascule-libvirt-hook", "<domain><name>none</name><uuid>3f0c1d8e-6f6b-4a7e-9d6a-0d0d0d0d0d0d</uuid></domain>", []string{"none", "release", "end", "-"}, nil},
		{"bascule-netavark", `{"container_id": "none", "container_name": "none", "network": {"name": "n", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
			"driver": "bascule", "network_interface": "br0", "subnets": [{"subnet": "192.0.2.0/24", "gateway": "192.0.2.1"}]},
			"network_options": {"interface_name": "eth0", "static_ips": ["192.0.2.5"]}}`, []string{"teardown", "/proc/self/ns/net"}, nil},
	} {
		path := filepath.Join(dir, door.name)
		if _, err := os.Lstat(path); err != nil {
			must(t, os.Symlink(l.Binary(), path))
		}
		tried(t, l, "1h", bad)
		killWatchers(t, l)
		overdue(t, l)
		cmd := exec.Command("ip", append([]string{"netns", "exec", l.Switch.Name, path}, door.args...)...)
		cmd.Env, cmd.Stdin = append(l.Command().Env, door.env...), strings.NewReader(door.stdin)
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), "was not confirmed, and is put back") || waiting(l) {
			t.Errorf("%s %v: %v: %s", door.name, door.args, err, out)
		}
		if door.name == "bascule" && err != nil {
			t.Errorf("%v: %v: %s", door.args, err, out)
		}
		l.Bascule("unplug", "one")
		stateIs(t, l)
	}
}

// commandsOfSession are commands from an ssh session that would cut it off. They are refused, as files are,
// unless --yes is given, and then they work.
func commandsOfSession(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10}, p2: {pvid: 10}, h0: {type: host, pvid: 10, addresses: 192.0.2.9/24}}}}"))
	client := l.Ends[0]
	for _, args := range [][]string{
		{"-n", client.Namespace.Name, "address", "add", "192.0.2.7/24", "dev", client.Ifname},
		{"netns", "exec", client.Namespace.Name, "ping", "-qc1", "-W20", "192.0.2.9"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	l.Setenv("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.9 22")
	const port, address, vlan = "this ssh session comes through port p1, which would be removed", "this ssh session uses the address 192.0.2.9 of port h0, which would be removed",
		"this ssh session comes through port p1, and would no longer have a VLAN to port h0"
	for _, c := range []struct{ command, words string }{
		{"port del br0 p1", port}, {"port del br0 p2 p1", port}, {"port del br0 h0", address}, {"bridge del br0", address}, {"bridge del --all", address},
		{"vlan del br0 p1 10", vlan}, {"vlan del br0 h0 10", vlan}, {"vlan add br0 p1 10", vlan}, {"vlan add br0 h0 20 --pvid --untagged", vlan},
	} {
		before := l.Bascule("export")
		args := strings.Fields(c.command)
		l.Refused([]string{c.words, "if that is intended, give --yes"}, args...)
		l.Refused([]string{c.words}, append(args, "--dry-run")...)
		if after := l.Bascule("export"); after != before {
			t.Errorf("the refused '%s' has changed\n%sto\n%s", c.command, before, after)
		}
		r, err := l.Run(append(args, "--yes", "--dry-run")...)
		must(t, err)
		if r.Exit != 3 || r.Stdout == "" {
			t.Error(r)
		}
	}
	// Changes that do not cut the session off are permitted.
	l.Bascule("vlan", "add", "br0", "p1", "20")
	l.Bascule("port", "set", "br0", "p1", "--learn=off")
	l.Bascule("port", "del", "br0", "p2")
	// A command that flushes the FDB does not keep the next one from its check.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	if out := l.Bascule("-j", "fdb", "show", "br0"); strings.Contains(out, client.MAC.String()) {
		t.Errorf("the FDB knows the client still: %s", out)
	}
	l.Refused([]string{"this ssh session may come only through port p1, which would be removed"}, "port", "del", "br0", "p1")
	l.Bascule("port", "del", "br0", "p1", "--yes")
	if out := l.Bascule("port", "show", "br0"); strings.Contains(out, "p1") {
		t.Errorf("with --yes nothing was done: %s", out)
	}
}

// waysOfSession tries changes that may cut a session off by the path of its frames, by its address or by its
// route. A refused change changes nothing, and cuts the client off with --yes. After a change that is not
// refused, the client still gets answers.
func waysOfSession(t *testing.T, l *netlab.Lab) {
	const (
		cables = "bridges: {br0: {ports: {p1: , p2: , c0: {type: patch, peer: br1/c1}}}, br1: {ports: {c1: {type: patch, peer: br0/c0}, h0: {type: host, addresses: 192.0.2.9/24}}}}"
		plain  = "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, addresses: [192.0.2.9/24, \"2001:db8::9/64\"]}}}, br1: {}}"
		vlans  = "bridges: {br0: {vlan-filtering: on, ports: {p1: , p2: , h0: {type: host, addresses: 192.0.2.9/24}}}, br1: {}}"
		tagged = "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10}, c0: {type: patch, peer: br1/c1, tagged: 10}}}, " +
			"br1: {vlan-filtering: on, ports: {c1: {type: patch, peer: br0/c0, tagged: 10}, h0: {type: host, pvid: 10, addresses: 192.0.2.9/24}}}}"
		mac     = "02:00:00:00:77:07"
		direct  = "192.0.2.7 192.0.2.9"
		sixth   = "2001:db8::7 2001:db8::9"
		distant = "198.51.100.7 192.0.2.9"
	)
	client := l.Ends[0]
	in := func(ns string, args ...string) error {
		out, err := exec.Command("ip", append([]string{"netns", "exec", ns}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	}
	for _, ns := range []string{l.Switch.Name, client.Namespace.Name} {
		must(t, in(ns, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0", "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.default.accept_dad=0"))
	}
	for _, words := range []string{"link set " + client.Ifname + " address " + mac, "link set lo up", "address add 192.0.2.7/24 dev " + client.Ifname,
		"address add 2001:db8::7/64 nodad dev " + client.Ifname, "address add 198.51.100.7/32 dev lo"} {
		must(t, in(client.Namespace.Name, append([]string{"ip"}, strings.Fields(words)...)...))
	}
	for _, c := range []struct{ name, base, session, change, words string }{
		{"cable by a file", cables, direct, "bridges: {br0: {ports: {p1: }}}", "bridge br0: this ssh session comes through port c0, which would be removed"},
		{"cable of a file", cables, direct, "bridges: {br1: {ports: {h0: {type: host}}}}", "bridge br1: this ssh session comes through port c1, which would be removed"},
		{"card before a cable", cables, direct, "port del br0 p1", "bridge br0: this ssh session comes through port p1, which would be removed"},
		{"another card", cables, direct, "bridges: {br0: {ports: {p2: , c0: {type: patch, peer: br1/c1}}}}", "this ssh session comes through port p1, which would be removed"},
		{"card set down", cables, direct, "bridges: {br0: {ports: {'p?': {up: off}, c0: {type: patch, peer: br1/c1}}}}", "port p1 of br0: this ssh session comes through it, and it would be down"},
		{"cable by a command", cables, direct, "port del br0 c0", "which would be removed"},
		{"its far end", cables, direct, "port del br1 c1", "which would be removed"},
		{"its bridge", cables, direct, "bridge del br0", "which would be removed"},
		{"isolated before a cable", cables, direct, "bridges: {br0: {ports: {p1: {isolated: on}, p2: , c0: {type: patch, peer: br1/c1, isolated: on}}}}", "would share a protected domain"},
		{"another port", cables, direct, "bridges: {br0: {ports: {p1: , c0: {type: patch, peer: br1/c1}}}}", ""},
		{"another cable", cables, direct, "bridges: {br0: {ports: {p1: , c9: {type: patch, peer: br1/c8}}}}", ""},
		{"to the card's bridge", cables, direct, "bridges: {br0: {ports: {p1: , h0: {type: host, addresses: 192.0.2.9/24}}}, br1: {}}", ""},
		{"away from it", plain, direct, "bridges: {br0: {ports: {p1: }}, br1: {ports: {h0: {type: host, addresses: 192.0.2.9/24}}}}", "from which no frame would reach port h0"},
		{"cable's VLAN", tagged, direct, "vlan del br1 c1 10", "this ssh session comes through port p1, and would no longer have a VLAN to port h0"},
		{"VLAN in the cable", tagged, direct, "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10}, c0: {type: patch, peer: br1/c1, tagged: 20}}}}", "would no longer have a VLAN"},
		{"filters no more", tagged, direct, "bridges: {br0: {ports: {p1: , c0: {type: patch, peer: br1/c1}}}}", "would no longer have a VLAN"},
		{"admit", vlans, direct, "port set br0 p1 --admit tagged", "port p1 would admit only tagged frames"},
		{"admit by a file", vlans, direct, strings.Replace(vlans, "p1: ", "p1: {admit: tagged}", 1), "port p1 would admit only tagged frames"},
		{"admit of the host", vlans, direct, "port set br0 h0 --admit tagged", "port h0 would admit only tagged frames"},
		{"admit what comes", vlans, direct, "port set br0 p1 --admit untagged", ""},
		{"isolated VLAN", vlans, direct, "vlan private br0 25 --isolated 1", "would no longer have a VLAN"},
		{"isolated VLAN by a file", vlans, direct, strings.Replace(vlans, "ports:", "private-vlans: {25: {isolated: 1}}, ports:", 1), "would no longer have a VLAN"},
		{"community", vlans, direct, "vlan private br0 25 --community 1", ""},
		{"host in the primary", vlans, direct, "bridges: {br0: {vlan-filtering: on, private-vlans: {25: {isolated: 1}}, ports: {p1: , p2: , h0: {type: host, pvid: 25}}}}", ""},
		{"isolated", plain, direct, "bridges: {br0: {ports: {p1: {isolated: on}, h0: {type: host, isolated: on}}}}", "ports h0 and p1 would share a protected domain"},
		{"isolated from others", plain, direct, "port set br0 p1 --isolated", ""},
		{"entry", plain, direct, "fdb add br0 " + mac + " h0", "an FDB entry would send frames for " + mac + " to port h0"},
		{"entry by a file", plain, direct, "bridges: {br0: {ports: {p1: , p2: , h0: {type: host}}, fdb: [{mac: \"" + mac + "\", port: p2}]}}", "to port p2"},
		{"right entry", plain, direct, "fdb add br0 " + mac + " p1", ""},
		{"MAC", plain, direct, "port add br0 h8 --type host --mac " + mac, "frames for " + mac + " would go to host port h8"},
		{"MAC of the host's port", plain, direct, "port set br0 h0 --mac " + mac, "frames for " + mac + " would go to host port h0"},
		{"MAC by a file", plain, direct, "bridges: {br0: {ports: {p1: , p2: , h0: {type: host}, h6: {type: host, mac: \"" + mac + "\"}}}}", "would go to host port h6"},
		{"MAC in another VLAN", vlans, direct, "bridges: {br0: {vlan-filtering: on, ports: {p1: , p2: , h0: {type: host}, h6: {type: host, pvid: 9, mac: \"" + mac + "\"}}}}", ""},
		{"MAC on the way", cables, direct, "port add br0 h8 --type host --mac " + mac, "would go to host port h8"},
		{"host's MAC on the way", strings.Replace(cables, "type: host,", "type: host, mac: \"02:00:00:00:77:09\",", 1), direct, "port add br0 h8 --type host --mac 02:00:00:00:77:09",
			"frames for 02:00:00:00:77:09 would go to host port h8"},
		{"client's address", plain, direct, "bridges: {br1: {ports: {h1: {type: host, addresses: 192.0.2.7/32}}}}", "its address 192.0.2.7 is the address of the client of this ssh session"},
		{"longer prefix", plain, direct, "bridges: {br1: {ports: {h1: {type: host, addresses: 192.0.2.3/25}}}}", "address 192.0.2.3/25 would take the route to 192.0.2.7"},
		{"longer prefix of IPv6", plain, sixth, "bridges: {br1: {ports: {h1: {type: host, addresses: \"2001:db8::3/80\"}}}}", "would take the route to 2001:db8::7"},
		{"same prefix", plain, direct, "bridges: {br1: {ports: {h1: {type: host, addresses: 192.0.2.3/24}}}}", ""},
		{"longer prefix at the client's bridge", plain, direct, "bridges: {br0: {ports: {p1: , p2: , h0: {type: host}, h1: {type: host, addresses: 192.0.2.3/25}}}}", ""},
		{"client's network, behind a gateway", plain, distant, "bridges: {br1: {ports: {h1: {type: host, addresses: 198.51.100.3/25}}}}", "would take the route to 198.51.100.7"},
		{"smallest MTU", plain, direct, "port set br0 h0 --mtu 68", "this ssh session uses its address 192.0.2.9, and an MTU of 68 is too small for it"},
		{"small MTU", plain, sixth, "port set br0 h0 --mtu 1000", "port h0 of br0: this ssh session uses its address 2001:db8::9, which would be lost: IPv6 needs"},
		{"small MTU by a file", plain, sixth, "bridges: {br0: {ports: {p1: , p2: , h0: {type: host, mtu: 1000}}}}", "which would be lost: IPv6 needs an MTU of 1280"},
		{"small MTU of others", plain, direct, "port set br0 h0 --mtu 1000", ""},
		{"route", plain, distant, "bridges: {br0: {ports: {p1: , h1: {type: host, addresses: [192.0.2.9/24]}}}}", "this ssh session uses the gateway 192.0.2.7, and the route to it would be removed"},
		{"gateway's port", plain, distant, "port del br0 p1", "this ssh session comes through port p1, which would be removed"},
		{"gateway's network", plain, distant, "bridges: {br0: {ports: {p1: , h0: {type: host, addresses: 192.0.2.9/32}}}}", ""},
		{"gateway's port without an address", plain, distant, "bridges: {br0: {ports: {p1: , h0: {type: host, addresses: []}, h1: {type: host, addresses: 192.0.2.9/24}}}}", "and the route to it would be removed"},
		{"no route of its own", plain, direct, "bridges: {br0: {ports: {p1: , h1: {type: host, addresses: [192.0.2.9/24]}}}}", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			l.Setenv("SSH_CONNECTION", "")
			if r, err := l.Run("bridge", "del", "--all"); err != nil {
				t.Fatal(r, err)
			}
			apply(t, l, "--yes", file(t, "base.yaml", c.base))
			must(t, in(l.Switch.Name, "ip", "route", "replace", "198.51.100.0/24", "via", "192.0.2.7"))
			from, to, _ := strings.Cut(c.session, " ")
			answers := func() bool { return in(client.Namespace.Name, "ping", "-qc1", "-W1", "-I", from, to) == nil }
			l.Wait("the client's answer", answers)
			l.Setenv("SSH_CONNECTION", from+" 50000 "+to+" 22")
			args := strings.Fields(c.change)
			if strings.HasPrefix(c.change, "bridges:") {
				args = []string{"apply", file(t, "change.yaml", c.change)}
			}
			if c.words == "" {
				r, err := l.Run(args...) // it may warn
				must(t, err)
				if r.Exit != 0 {
					t.Fatal(r)
				}
				l.Wait("the client's answer afterwards", answers)
				return
			}
			before := l.Bascule("export")
			l.Refused([]string{c.words, "if that is intended, give --yes"}, args...)
			if after := l.Bascule("export"); after != before {
				t.Errorf("what was refused has changed\n%sto\n%s", before, after)
			}
			r, err := l.Run(append(args, "--yes", "--dry-run")...)
			must(t, err)
			if r.Exit != 3 || r.Stdout == "" || strings.Contains(c.change, "mtu") && !strings.Contains(r.Stdout, "addresses 192.0.2.9/24,2001:db8::9/64 -> 192.0.2.9/24") {
				t.Error(r)
			}
			if r, err = l.Run(append(args, "--yes")...); err != nil || r.Exit != 0 {
				t.Fatal(r, err)
			}
			still := true // three times, since an answer may have been on its way
			for range 3 {
				still = still && answers()
			}
			if still {
				t.Error("it was refused, and the client has answers afterwards")
			}
			if strings.HasPrefix(c.change, "port set br0 h0 --mtu") { // the file in force has no MTU
				l.Setenv("SSH_CONNECTION", "")
				l.Refused([]string{"give mtu: 1280, or undo what commands have changed with 'bascule apply --back 0'"}, "apply", file(t, "again.yaml", c.base))
				l.Bascule("apply", "--back", "0")
				l.Wait("the answer of the address that has come back", answers)
			}
		})
	}
}

func confirmOfAnother(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	l.Setenv("SUDO_USER", "alice")
	l.Setenv("SSH_CONNECTION", "192.0.2.77 50000 192.0.2.9 22")
	tried(t, l, "1h", bad)
	l.Setenv("SUDO_USER", "bob")
	l.Refused([]string{"was made by alice from 192.0.2.77; let them confirm it, or give --yes"}, "apply", "confirm")
	if !waiting(l) {
		t.Fatal("it is confirmed")
	}
	l.Bascule("apply", "confirm", "--yes")
	var list []answer.State
	l.JSON(&list, "apply", "--history")
	if len(list) < 2 || list[0].Who != "alice from 192.0.2.77" || *list[0].Back != 0 || !slices.Equal(list[0].Bridges, []string{"br0", "br1"}) {
		t.Errorf("the history is %+v", list)
	}
}

// confirmFullDisk has no room for states. A change with --confirm is refused before it begins. Other changes
// continue with a warning.
func confirmFullDisk(t *testing.T, l *netlab.Lab) {
	dir := filepath.Join(t.TempDir(), "disk")
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	apply(t, l, file(t, "good.yaml", good))
	l.Setenv("BASCULE_STATE_DIR", filepath.Join(dir, "states"))
	full := filepath.Join(dir, "full")
	_ = os.WriteFile(full, make([]byte, 32<<10), 0o600) // as much as there is room for
	path := file(t, "bad.yaml", bad)
	l.Refused([]string{"cannot apply with --confirm", "no space left", "BASCULE_STATE_DIR"}, "apply", "--confirm", "60s", path)
	stateIs(t, l)
	r, err := l.Run("apply", path)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "the state is not kept for 'bascule apply --back'") || !strings.Contains(r.Stdout, "br1") {
		t.Error(r)
	}
	apply(t, l, file(t, "again.yaml", good+"\n---\nbridges: {br2: {}}"), file(t, "none.yaml", "bridges: {br1: {}}"))
	l.Bascule("bridge", "del", "br1")
	l.Bascule("bridge", "del", "br2")
	// With room for it, and without room when it is put back.
	must(t, os.Remove(full))
	if r, err := l.Run("apply", "--confirm", "1h", path); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	_ = os.WriteFile(full, make([]byte, 32<<10), 0o600)
	pending := filepath.Join(dir, "states", "netns-"+l.Switch.Name, "pending.json")
	r, err = l.Run("apply", "--back")
	must(t, err)
	if _, gone := os.Stat(pending); r.Exit != 0 || gone == nil {
		t.Error(r, gone)
	}
	l.Refused([]string{"these files were put back before"}, "apply", path)
}

// confirmReadOnlyLater remounts the file system of the states read-only while a change waits.
func confirmReadOnlyLater(t *testing.T, l *netlab.Lab) {
	dir := filepath.Join(t.TempDir(), "disk")
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	l.Setenv("BASCULE_STATE_DIR", dir)
	apply(t, l, file(t, "good.yaml", good))
	path := tried(t, l, "1h", bad)
	killWatchers(t, l)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	l.Refused([]string{"this cannot be recorded", "read-only file system", "the change is put back at"}, "apply", "confirm")
	r, err := l.Run("apply", "--back")
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "will be again when the machine restarts") {
		t.Error(r)
	}
	stateIs(t, l)
	l.Bascule("port", "add", "br0", "p3") // it is not put back
	if out := l.Bascule("port", "show", "br0"); !strings.Contains(out, "p3") {
		t.Errorf("a change that was put back is put back again: %s", out)
	}
	l.Refused([]string{"these files were put back before"}, "apply", path)
}

// confirmOtherVersions has another version of the program write the waiting change, with more fields and
// with fewer.
func confirmOtherVersions(t *testing.T, l *netlab.Lab) {
	for _, change := range []func(map[string]any){
		func(p map[string]any) { p["new"] = map[string]any{"of": []int{1}}; p["end"] = 1 },
		func(p map[string]any) {
			for _, key := range []string{"id", "cookie", "others", "user", "until", "files", "end"} {
				delete(p, key)
			}
		},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", good))
		path := file(t, "bad.yaml", bad)
		if r, err := l.Run("apply", "--yes", "--confirm", "1h", path); err != nil || r.Exit != 0 {
			t.Fatal(r, err)
		}
		killWatchers(t, l)
		edit(t, l, change)
		_, err := l.Run("bridge", "show") // it prints what it puts back
		must(t, err)
		stateIs(t, l)
	}
	// An unreadable file is reported, and does not block other commands.
	must(t, os.WriteFile(filepath.Join(ofLab(l), "pending.json"), []byte("{"), 0o600))
	r, err := l.Run("bridge", "show")
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "does not name the change that waits") {
		t.Error(r)
	}
}

func confirmDenied(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := tried(t, l, "1h", bad)
	l.Bascule("apply", "--back")
	l.Refused([]string{"these files were put back before", "--confirm or --yes"}, "apply", path)
	// The same content in another file counts as the same file.
	l.Refused([]string{"these files were put back before"}, "apply", file(t, "copy.yaml", "# anew\n"+bad))
	tried(t, l, "1h", bad)
	l.Bascule("apply", "confirm")
	apply(t, l, file(t, "good.yaml", good), file(t, "none.yaml", "bridges: {br1: {}}"))
	apply(t, l, path) // it was confirmed since then
}

func applyBack(t *testing.T, l *netlab.Lab) {
	l.Bascule("bridge", "add", "own") // not in the files
	l.Bascule("bridge", "add", "br0")
	l.Bascule("port", "add", "br0", "p1", "p2")
	states := []string{l.Bascule("export")}
	for i, text := range []string{
		"bridges: {br0: {ageing: 60s, ports: {p1: {}, p2: {}, h0: {type: host, addresses: 192.0.2.1/24}}}}",
		"bridges: {br0: {ageing: 70s, ports: {p1: {}, p2: {}, h0: {type: host, addresses: []}}, pf: {rules: pass}}, br1: {ports: {p3: {}}}}",
		"bridges: {br1: {ageing: 80s, ports: {p3: {}}}}",
	} {
		apply(t, l, file(t, fmt.Sprintf("%d.yaml", i), text))
		states = append(states, l.Bascule("export"))
	}
	l.Bascule("bridge", "set", "br1", "--ageing", "81s")
	l.Bascule("bridge", "add", "later")
	is := func(n int) {
		t.Helper()
		got := strings.Replace(l.Bascule("export"), "  later: {}\n", "", 1)
		want := states[n]
		if n < 2 { // pf was changed since then
			got = strings.ReplaceAll(got, "    pf: off\n", "")
		}
		if got != want {
			t.Errorf("state %d is\n%sand not\n%s", n, got, want)
		}
	}
	r, err := l.Run("apply", "--back", "0", "--dry-run")
	must(t, err)
	if r.Exit != 3 || r.Stdout != "~ bridge br1: ageing 81s -> 80s\n" {
		t.Error(r)
	}
	apply(t, l, "--back", "0")
	is(3)
	// back to the present state, which is a state, too
	wantLines(t, apply(t, l, "--back"), "~ bridge br1: ageing 80s -> 81s")
	wantLines(t, apply(t, l, "--back"), "~ bridge br1: ageing 81s -> 80s")
	for n, what := range []string{"as it was found", "0.yaml"} {
		var list []answer.State
		l.JSON(&list, "apply", "--history")
		at := len(list) - 1
		for !strings.HasSuffix(list[at].What, what) {
			at--
		}
		apply(t, l, "--back", strconv.Itoa(*list[at].Back), "--confirm", "1h")
		is(n)
		apply(t, l, "--back")
		is(3)
	}
	for _, args := range [][]string{{"--back", "20"}, {"--back=19"}} {
		l.Refused([]string{"states are kept from 0 to"}, append([]string{"apply"}, args...)...)
	}
}

// applyHistory has more states than are kept, and other files in their folder.
func applyHistory(t *testing.T, l *netlab.Lab) {
	l.Refused([]string{"no state is kept"}, "apply", "--back")
	for i := range 25 {
		apply(t, l, file(t, "a.yaml", fmt.Sprintf("bridges: {br0: {ageing: %ds}}", 100+i)))
	}
	must(t, os.WriteFile(filepath.Join(ofLab(l), "999999.yaml"), []byte("bridges: {}"), 0o600))
	must(t, os.WriteFile(filepath.Join(ofLab(l), "notes.txt"), []byte("mine"), 0o600))
	var list []answer.State
	l.JSON(&list, "apply", "--history")
	if len(list) != 20 {
		t.Errorf("%d states are kept", len(list))
	}
	for i, st := range list {
		if *st.Back != i || time.Since(st.Time) > time.Hour || st.Who == "" || !strings.HasSuffix(st.What, "a.yaml") {
			t.Errorf("state %d is %+v", i, st)
		}
	}
	// The history distinguishes states of one file, and shows which one was applied again.
	if list[0].Change != "~ bridge br0: ageing 123s -> 124s" || list[1].Change != "~ bridge br0: ageing 122s -> 123s" {
		t.Errorf("the last changes are %q and %q", list[0].Change, list[1].Change)
	}
	again := list[19]
	apply(t, l, "--back", "19")
	if out := l.Bascule("export"); !strings.Contains(out, "ageing: 105s") {
		t.Error(out)
	}
	l.JSON(&list, "apply", "--history")
	if want := fmt.Sprintf("back to the state of %s (%s)", again.Time.Local().Format(time.DateTime), again.What); list[0].What != want {
		t.Errorf("the last state is %q, want %q", list[0].What, want)
	}
	if out := l.Bascule("apply", "--history"); !strings.Contains(out, "~ bridge br0: ageing 124s -> 105s") {
		t.Errorf("the history is\n%s", out)
	}
}

// confirmFilesHidden hides the files of a waiting change behind another file system, or behind a file. The process that
// waits puts the change back from its memory, unless it was confirmed before.
func confirmFilesHidden(t *testing.T, l *netlab.Lab) {
	dir := filepath.Dir(ofLab(l))
	aside := dir + "-aside"
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // if it is still there
		os.RemoveAll(aside)
		os.RemoveAll(dir + "-other")
	})
	for _, c := range []struct {
		name       string
		hide, show func()
	}{
		{"mounted", func() { must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "")) }, func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }},
		{"file", func() {
			must(t, os.Rename(dir, aside))
			must(t, os.WriteFile(dir, nil, 0o600))
		}, func() {
			must(t, os.Remove(dir))
			must(t, os.Rename(aside, dir))
		}},
	} {
		apply(t, l, "--yes", file(t, "good.yaml", good))
		tried(t, l, "20s", bad)
		l.Setenv("BASCULE_STATE_DIR", dir+"-other")
		l.Refused([]string{"cannot apply: the change of ", " waits to be confirmed until "}, "apply", file(t, "other.yaml", "bridges: {br2: {}}"))
		l.Setenv("BASCULE_STATE_DIR", dir)
		c.hide()
		r, err := l.Run("apply", "confirm")
		must(t, err)
		if r.Exit != 1 || !strings.Contains(r.Stderr, "cannot confirm: the files of the change of ") || !strings.Contains(r.Stderr, " are gone from "+dir) {
			t.Errorf("%s: %v", c.name, r)
		}
		others := func() {
			t.Helper()
			other := file(t, "other.yaml", "bridges: {br2: {}}")
			for _, args := range [][]string{{"apply", other}, {"apply", "--confirm", "1h", other}} {
				l.Refused([]string{"cannot apply: the change of ", " waits to be confirmed until ", ", and its files are gone from "}, args...)
			}
			l.Setenv("SUDO_USER", "bob")
			r, err := l.Run("bridge", "set", "br0", "--ageing", "90s")
			l.Setenv("SUDO_USER", "")
			must(t, err)
			if r.Exit != 0 || strings.Count(r.Stderr, "waits to be confirmed until") != 1 {
				t.Errorf("%s: %v", c.name, r)
			}
		}
		others()
		l.Wait("the process to have put the change back", func() bool { return len(watchers(l)) == 0 })
		stateIs(t, l)
		l.Refused([]string{"no change waits for it"}, "apply", "confirm")
		c.show()
		l.Bascule("port", "add", "br0", "p3") // it is not put back again
		if out := l.Bascule("port", "show", "br0"); !strings.Contains(out, "p3") {
			t.Errorf("%s: a change that was put back is put back again: %s", c.name, out)
		}

		// A change that was confirmed stays. The process learns of it when the files are hidden.
		apply(t, l, "--yes", file(t, "good.yaml", good))
		tried(t, l, "9s", bad)
		signal := func(s syscall.Signal) {
			for _, pid := range watchers(l) {
				must(t, syscall.Kill(pid, s))
			}
		}
		l.Wait("the process to wait", func() bool { return len(watchers(l)) > 0 })
		signal(syscall.SIGSTOP)
		l.Bascule("apply", "confirm")
		c.hide()
		signal(syscall.SIGCONT)
		l.Wait("the process to end", func() bool { return len(watchers(l)) == 0 })
		if out := l.Bascule("export"); !strings.Contains(out, "br1") {
			t.Errorf("%s: a change that was confirmed is put back: %s", c.name, out)
		}
		c.show()
		l.Bascule("bridge", "del", "--all")
	}
}

// confirmGoodSince has the agent's files put back: its status reports since when the files before them are in force.
func confirmGoodSince(t *testing.T, l *netlab.Lab) {
	r := newRunner(t, l)
	path := file(t, "switch.yaml", "bridges: {br0: }")
	r.start("-f", path)
	first := r.status().Applied
	must(t, os.WriteFile(path, []byte("bridges: {br0: {ageing: 90s}}"), 0o600))
	if out, err := l.Run("agent", "reload", "--confirm", "1h"); err != nil || out.Exit != 0 {
		t.Fatal(out, err)
	}
	if tried := r.status().Applied; !tried.After(*first) {
		t.Errorf("the files that are tried are in force since %v, the others since %v", tried, first)
	}
	apply(t, l, "--back")
	l.Wait("the agent to refuse the files", func() bool { return strings.Contains(r.status().Error, "these files were put back before") })
	if now := r.status().Applied; now == nil || !now.Equal(*first) {
		t.Errorf("the last good files are in force since %v, not %v", now, first)
	}
	must(t, os.WriteFile(path, []byte("bridges: {br0: {ageing: 80s}}"), 0o600))
	l.Bascule("agent", "reload")
	if now := r.status().Applied; !now.After(*first) {
		t.Errorf("the new files are in force since %v", now)
	}
}
