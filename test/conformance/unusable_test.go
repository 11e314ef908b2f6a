// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/datapath"
	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
	under "bascule/test/program"
)

// TestUnusable: if the machine does not support the switch, each command prints this first, in
// the same words, and stops.
func TestUnusable(t *testing.T) {
	l, _ := setup(t, "tcx", 1)
	file := filepath.Join(t.TempDir(), "a.yaml")
	must(t, os.WriteFile(file, []byte("bridges:\n  br1:\n"), 0o600))
	l.Setenv("BASCULE_AGENT_DIR", t.TempDir())
	for _, test := range []struct {
		by    []string   // a prefix that runs the program
		fails unix.Errno // the error of all bpf(2) calls, if any
		words []string
	}{
		// A kernel that does not support the calls, whatever its version.
		{nil, unix.EINVAL, []string{"cannot use the switch: kernel ", "has no tcx hook", "boot Linux 6.6 or newer, or a kernel with a backport of it"}},
		{nil, unix.EPERM, []string{"cannot use the switch: the kernel refuses to say whether it has tcx: operation not permitted"}},
		{[]string{"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs none /proc && exec "$@"`, "sh"}, 0, []string{
			"there is no /proc", "mount it"}},
		{[]string{"unshare", "--user", "--map-root-user"}, 0, []string{"in a user namespace CAP_BPF, CAP_SYS_ADMIN and CAP_NET_ADMIN do not count", "run as root outside of it"}},
	} {
		if test.by != nil {
			if _, err := exec.LookPath(test.by[0]); err != nil {
				t.Skip(err)
			}
		}
		for _, args := range []string{
			"bridge add br2", "bridge show", "apply " + file, "apply --dry-run " + file, "agent -f " + file, "pfctl -sr", "monitor br0",
		} {
			inner := l.Command(strings.Fields(args)...)
			words := slices.Concat(test.by, inner.Args)
			if slices.Contains(test.by, "--user") { // it may not enter another namespace
				words = append(append([]string{}, test.by...), append([]string{l.Binary()}, strings.Fields(args)...)...)
			}
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Env = inner.Env
			run := netlab.RunCommand
			if test.fails != 0 {
				run = func(cmd *exec.Cmd) (netlab.Result, error) { return netlab.RunFailing(cmd, "bpf", 0, test.fails) }
			}
			r, err := run(cmd)
			must(t, err)
			if strings.Contains(r.Stderr, "unshare") {
				t.Skip(r.Stderr) // no user namespaces here
			}
			if err := r.CheckRefusal(test.words...); err != nil || r.Stdout != "" {
				t.Errorf("%s: %v, it prints %q", args, err, r.Stdout)
			}
		}
	}
}

// TestRefusedCall: the kernel refuses one bpf(2) call, for example by a security module. The command
// names the refusal, or has done its work. The library tests the kernel with such calls, and takes a
// refusal for a feature that the kernel lacks.
func TestRefusedCall(t *testing.T) {
	const points = 24
	l, _ := setup(t, "tcx", 1)
	add := func() *exec.Cmd { return l.Command("bridge", "add", "br2") }
	r, count, err := netlab.RunCounted(add(), "bpf")
	must(t, err)
	step := count["bpf"]/points + 1
	for n := 1 + rand.IntN(step); r.Exit == 0 && n <= count["bpf"]; n += step {
		l.Bascule("bridge", "del", "br2")
		r, err = netlab.RunFailing(add(), "bpf", n, unix.EPERM)
		must(t, err)
		if r.Exit == 0 {
			continue
		}
		if err := r.CheckRefusal("operation not permitted"); err != nil {
			t.Errorf("call %d of %d is refused: %v", n, count["bpf"], err)
		}
		l.Bascule("bridge", "add", "br2")
		r.Exit = 0
	}
	if r.Exit != 0 {
		t.Error(r)
	}
}

// TestBackport: the kernel's features count, not its version number, since distributions
// backport tcx.
func TestBackport(t *testing.T) {
	l, ends := setup(t, "tcx", 1)
	if _, err := exec.LookPath("setarch"); err != nil {
		t.Skip(err)
	}
	inner := l.Command("port", "show", "br0", ends[0].Port)
	cmd := exec.Command("setarch", append([]string{"--uname-2.6"}, inner.Args...)...) // personality(2), UNAME26
	cmd.Env = inner.Env
	if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 || !strings.Contains(r.Stdout, ends[0].Port) {
		t.Errorf("on a kernel that says that it is 2.6: %v, %v", r, err)
	}
}

// TestOldKernel: Debian 12's own kernel has no tcx, and commands report that. It runs in a
// virtual machine.
func TestOldKernel(t *testing.T) {
	l := netlab.New(t)
	pool := guests.NewPool(l.Binary(), "busybox")
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var missing *ends.Unavailable
	if err := pool.Ready(ctx, 1); errors.As(err, &missing) {
		t.Skip(missing)
	} else if err != nil {
		t.Fatal(err)
	}
	l.Keep("tap0")
	card, takeOut, err := pool.Guest(0).Plug(ctx, l.Switch, guests.Device{Name: "tap0"}, 2, ends.Wire{}, false)
	must(t, err)
	t.Cleanup(func() { takeOut() })
	script := "busybox uname -r; echo 'bridges: {br1: }' > /a.yaml; for c in 'bridge show' 'apply --dry-run /a.yaml' 'agent' 'pfctl -sr' 'monitor br0'; do " +
		guests.ProgramPath + " $c 2>&1 || echo exit $?; done"
	out, err := card.At.Output(ctx, ends.AnyCPU, "busybox", "sh", "-c", script)
	must(t, err)
	release, said, _ := strings.Cut(string(out), "\n")
	if major, minor := 0, 0; len(release) > 0 {
		if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major > 6 || major == 6 && minor >= 6) {
			t.Skipf("the virtual machine's kernel, %s, has tcx", release)
		}
	}
	line := "bascule: cannot use the switch: kernel " + release + " has no tcx hook, which every bridge needs; boot Linux 6.6 or newer, or a kernel with a backport of it\n"
	if want := strings.Repeat(line+"exit 1\n", 5); said != want {
		t.Errorf("on Linux %s it says\n%swant\n%s", release, said, want)
	}
}

// TestWithoutTCX: on a kernel without tcx every command about bridges reports that and does
// nothing, before any other check, even for objects that do not exist. It runs in virtual
// machines (test/kernels), and only on such kernels.
func TestWithoutTCX(t *testing.T) {
	var missing *datapath.MissingError
	if err := datapath.CheckKernel(); err == nil {
		t.Skip("this kernel has tcx")
	} else if !errors.As(err, &missing) {
		t.Fatal(err)
	}
	// Not a lab's namespace: a lab would check that no program is left.
	ns, err := ends.NewNamespace(fmt.Sprintf("bsc-t%d-old", os.Getpid()))
	must(t, err)
	t.Cleanup(func() { must(t, ns.Close()) })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "p1"
	must(t, ns.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "e1"}))
	before, err := ns.Netlink().LinkByName("p1")
	must(t, err)
	agents := t.TempDir()
	binary := under.Path(t)
	run := func(args ...string) netlab.Result {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"-n", ns.Name}, args...)...)
		cmd.Env = append(os.Environ(), "BASCULE_AGENT_DIR="+agents)
		r, err := netlab.RunCommand(cmd)
		must(t, err)
		return r
	}
	file := filepath.Join(t.TempDir(), "a.yaml")
	must(t, os.WriteFile(file, []byte("bridges:\n  br0:\n    ports: {p1: {}}\n"), 0o600))
	rules, pf := filepath.Join(t.TempDir(), "rules"), filepath.Join(t.TempDir(), "pf.conf")
	must(t, errors.Join(os.WriteFile(rules, []byte("block in on p1 arp\n"), 0o600), os.WriteFile(pf, []byte("block\n"), 0o600)))
	var u unix.Utsname
	must(t, unix.Uname(&u))
	line := "bascule: cannot use the switch: kernel " + unix.ByteSliceToString(u.Release[:]) +
		" has no tcx hook, which every bridge needs; boot Linux 6.6 or newer, or a kernel with a backport of it\n"
	commands := []string{
		"bridge add br0", "bridge set br0 --ageing 9s", "bridge del br0", "bridge del --all", "bridge show",
		"port add br0 PORT", "port add br0 PORT --hook xdp", "port add br0 h0 --type host", "port set br0 PORT --hairpin",
		"port del br0 PORT", "port show", "fdb add br0 02:00:00:00:00:01 PORT", "fdb del br0 02:00:00:00:00:01",
		"fdb flush br0", "fdb get br0 02:00:00:00:00:01", "fdb show br0", "span add br0 PORT",
		"span del br0 PORT", "span show",
		"rule add br0 PORT block in", "rule del br0 PORT block in", "rule flush br0", "rule load br0 RULES", "rule show br0",
		"vlan add br0 PORT 10", "vlan del br0 PORT 10", "vlan show", "vlan private br0 10 --isolated 11",
		"binding add br0 PORT 02:00:00:00:00:01 192.0.2.1", "binding del br0 192.0.2.1", "binding show br0", "binding flush br0",
		"apply FILE", "apply --dry-run FILE", "export", "pfctl -b br0 -f PF", "pfctl -sr", "pfctl -e", "pflog",
		"agent", "agent -f FILE", "monitor br0", "stats br0", "capture br0", "trace br0 --dst ff:ff:ff:ff:ff:ff --in PORT",
	}
	for _, command := range commands {
		r := run(strings.Fields(strings.NewReplacer("PORT", "p1", "FILE", file, "RULES", rules, "PF", pf).Replace(command))...)
		if r.Exit != 1 || r.Stdout != "" || r.Stderr != line {
			t.Errorf("%v, should fail with %q", r, line)
		}
	}
	// Each command in the help is included, except for those that need a terminal, which
	// they check first, or an agent, which cannot run.
	help := func(above ...string) string { return run(append([]string{"help"}, above...)...).Stdout }
	for _, c := range leaves(help) {
		if !slices.ContainsFunc(commands, func(have string) bool { return strings.HasPrefix(have+" ", c+" ") }) &&
			!slices.Contains([]string{"top", "agent status", "agent reload"}, c) {
			t.Errorf("%s is not tried", c)
		}
	}
	after, err := ns.Netlink().LinkByName("p1")
	must(t, err)
	if a, b := after.Attrs(), before.Attrs(); a.RawFlags != b.RawFlags || a.Promisc != b.Promisc || a.Allmulti != b.Allmulti {
		t.Errorf("p1 is %+v, was %+v", a, b)
	}
	if left, err := os.ReadDir("/run/bascule"); len(left) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("/run/bascule has %v, %v", left, err)
	}
}

// leaves returns the commands about bridges that have no subcommands, according to the help.
func leaves(help func(above ...string) string, above ...string) (list []string) {
	_, text, found := strings.Cut(help(above...), "\nCommands:\n")
	if !found {
		return []string{strings.Join(above, " ")}
	}
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.Lines(text) {
		if name := strings.Fields(line); line[:2] == "  " && line[2] != ' ' &&
			!slices.Contains([]string{"lab", "completion", "help"}, name[0]) {
			list = append(list, leaves(help, append(slices.Clone(above), name[0])...)...)
		}
	}
	return list
}

// TestDelAll deletes every bridge, and lists them.
func TestDelAll(t *testing.T) {
	l, ends := setup(t, "tcx", 1)
	l.Bascule("bridge", "add", "br1")
	l.Refused([]string{"is not a port of this bridge", "'bascule port add br1 " + ends[0].Port + "'"}, "port", "set", "br1", ends[0].Port, "--isolated")
	if got, want := l.Bascule("bridge", "del", "--all"), "removed bridge br0\nremoved bridge br1\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if got := l.Bascule("-j", "bridge", "del", "--all"); got != "[]\n" {
		t.Errorf("none are left, and it says %q", got)
	}
}

// TestFewFiles: if the limit of open files is too low, the error says so.
func TestFewFiles(t *testing.T) {
	l, _ := setup(t, "tcx", 1)
	if _, err := exec.LookPath("prlimit"); err != nil {
		t.Skip(err)
	}
	said := 0
	for files := 12; files <= 96; files += 4 {
		inner := l.Command("bridge", "add", "few")
		cmd := exec.Command("prlimit", append([]string{fmt.Sprintf("--nofile=%d", files)}, inner.Args...)...)
		cmd.Env = inner.Env
		r, err := netlab.RunCommand(cmd)
		must(t, err)
		if r.Exit == 0 {
			l.Bascule("bridge", "del", "few")
			continue
		}
		if !strings.Contains(r.Stderr, "open files") || strings.Contains(r.Stderr, "verifier") {
			t.Errorf("with %d open files it says %q", files, r.Stderr)
		} else if strings.Contains(r.Stderr, "ulimit -n") {
			said++
		}
	}
	if said == 0 {
		t.Error("nothing says which limit to raise")
	}
}

// TestWaits: a command that waits for another writer names it, and then does its work.
func TestWaits(t *testing.T) {
	l, _ := setup(t, "tcx", 1)
	var unlock func()
	must(t, l.Switch.Do(func() error {
		s, err := datapath.OpenStore()
		if err == nil {
			unlock, err = s.Lock()
		}
		return err
	}))
	cmd := l.Command("bridge", "set", "br0", "--fdb-max", "1000")
	told, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	line, err := bufio.NewReader(told).ReadString('\n')
	if want := fmt.Sprintf("waiting for process %d", os.Getpid()); err != nil || !strings.Contains(line, want) {
		t.Errorf("it says %q, %v; want %q", line, err, want)
	}
	unlock()
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}
