// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
)

// TestUnusable: where there can be no switch, everything says so first, in the
// same words, and nothing goes on.
func TestUnusable(t *testing.T) {
	l, _ := setup(t, "tcx", 1)
	file := filepath.Join(t.TempDir(), "a.yaml")
	must(t, os.WriteFile(file, []byte("bridges:\n  br1:\n"), 0o600))
	l.Setenv("BASCULE_AGENT_DIR", t.TempDir())
	for _, test := range []struct {
		by    []string // which runs the program
		words []string
	}{
		// a kernel that knows nothing of what it is asked, whatever its version
		{kernelSays("EINVAL"), []string{"cannot use the switch: kernel ", "has no tcx hook", "boot Linux 6.6 or newer, or a kernel that has it from there"}},
		{kernelSays("EPERM"), []string{"cannot use the switch: the kernel refuses to say whether it has tcx: operation not permitted"}},
		{[]string{"unshare", "--user", "--map-root-user"}, []string{"in a user namespace CAP_BPF, CAP_SYS_ADMIN and CAP_NET_ADMIN do not count", "run as root outside of it"}},
	} {
		if _, err := exec.LookPath(test.by[0]); err != nil {
			t.Skip(err)
		}
		for _, args := range []string{
			"bridge add br2", "bridge show", "apply " + file, "apply --dry-run " + file, "agent -f " + file, "pfctl -sr", "monitor br0",
		} {
			inner := l.Command(strings.Fields(args)...)
			words := append(test.by, inner.Args...)
			if test.by[0] == "unshare" { // which may not enter another's network namespace
				words = append(append([]string{}, test.by...), append([]string{l.Binary()}, strings.Fields(args)...)...)
			}
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Env = inner.Env
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // what strace runs outlives it
			timer := time.AfterFunc(time.Minute, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
			r, err := netlab.RunCommand(cmd)
			timer.Stop()
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

// TestBackport: what a kernel has counts, not the version that it says: distributions
// put tcx into older ones.
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

// kernelSays runs a program on a kernel that answers all of bpf(2) by an error.
func kernelSays(errno string) []string {
	return []string{"strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", "inject=bpf:error=" + errno}
}

// TestOldKernel: Debian 12's own kernel has no tcx, and it is that which a command
// misses. A virtual machine has it.
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
	line := "bascule: cannot use the switch: kernel " + release + " has no tcx hook, which every bridge needs; boot Linux 6.6 or newer, or a kernel that has it from there\n"
	if want := strings.Repeat(line+"exit 1\n", 5); said != want {
		t.Errorf("on Linux %s it says\n%swant\n%s", release, said, want)
	}
}

// TestDelAll removes every bridge, and says which.
func TestDelAll(t *testing.T) {
	l, ends := setup(t, "tcx", 1)
	l.Bascule("bridge", "add", "br1")
	l.Refused([]string{"is no port of this bridge", "'bascule port add br1 " + ends[0].Port + "'"}, "port", "set", "br1", ends[0].Port, "--isolated")
	if got, want := l.Bascule("bridge", "del", "--all"), "removed bridge br0\nremoved bridge br1\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if got := l.Bascule("-j", "bridge", "del", "--all"); got != "[]\n" {
		t.Errorf("none are left, and it says %q", got)
	}
}
