// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"
	"bascule/lab/ends"
)

// TestCompletionAlone completes in a bash without the package bash-completion, and expects no error
// output.
func TestCompletionAlone(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	var script, complaints strings.Builder
	if status := runWith(&fakeSwitch{}, &script, &complaints, "completion", "bash"); status != exitDone {
		t.Fatal(complaints.String())
	}
	file := filepath.Join(t.TempDir(), "bascule")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--norc", "--noprofile", "-c", `. "$1"
bascule() { printf 'bridge\tmake bridges\n:4\n'; }
compopt() { :; } # only bash itself may call it
COMP_WORDS=(bascule br) COMP_CWORD=1 COMP_LINE="bascule br" COMP_POINT=10 COMP_TYPE=9 COMP_KEY=9
__start_bascule
echo "${COMPREPLY[@]}"`, "bash", file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if strings.TrimSpace(stdout.String()) != "bridge" || stderr.Len() > 0 {
		t.Errorf("it completes to %q and says %q", stdout.String(), stderr.String())
	}
}

// TestCompletionDevices checks that the switch's end of a host port is not offered as a port or
// span port.
func TestCompletionDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes a network namespace, which takes root")
	}
	ns, err := ends.NewNamespace(ends.NameFor("complete"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s, err := bridge.Open(ns.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.AddBridge("br0", nil); err != nil {
		t.Fatal(err)
	}
	defer s.DelBridge("br0")
	if _, err := s.AddPort("br0", "host0", bridge.PortOptions{Type: bridge.TypeHost}); err != nil {
		t.Fatal(err)
	}
	p := &program{netns: word{text: ns.Name}, open: (&fakeSwitch{}).open}
	// the fake switch does not have host0 as a port
	if names := p.interfaces(nil, nil); !slices.Equal(names, []string{"host0\tveth"}) {
		t.Errorf("%q are offered", names)
	}
}

// TestCompletionShell checks that only words without a meaning to the shell are offered, since a
// shell expands inserted text.
func TestCompletionShell(t *testing.T) {
	given := []string{"eth0.1\tveth", "tap-0", "$(reboot)a\ttuntap", "`id`", "a;b", "a'b", "a b", "a\\b", "*", "~root", "#x", "a\x1b[2J", "\xff", "802.1Q"}
	for _, value := range []string{"PORT", "LIST"} {
		if got, _ := completed(value, given, ""); !slices.Equal(got, []string{"eth0.1\tveth", "tap-0", "802.1Q"}) {
			t.Errorf("for %s it offers %q", value, got)
		}
	}
	if len(given) != 14 || given[2] != "$(reboot)a\ttuntap" {
		t.Error("it changes what it is given")
	}
}
