// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
		// a kernel that says that it is one of before tcx (personality(2), UNAME26)
		{[]string{"setarch", "--uname-2.6"}, []string{"kernel 2.6.", "too old", "boot Linux 6.6 or newer"}},
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
			timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
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
