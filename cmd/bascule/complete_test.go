// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletionAlone completes in a bash that has nothing of the package
// bash-completion, and makes no noise.
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
