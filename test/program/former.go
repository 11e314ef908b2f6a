// SPDX-License-Identifier: BSD-2-Clause

package program

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const numberFile = "datapath/config.go"

var numberIn = regexp.MustCompile(`(?m)^\tlayout +=\s*(\d+)`)

// A Source is the source of a former version.
type Source struct {
	Dir  string    // with its files, for the time of the test
	Made time.Time // when it was committed
}

// Former is the source of the last version that pinned its tables in a layout, from the history of the repository.
func Former(t testing.TB, layout int) Source {
	t.Helper()
	if out, err := exec.Command("git", "rev-parse", "--is-shallow-repository").Output(); err != nil || strings.TrimSpace(string(out)) != "false" {
		t.Skip("needs the history of the repository")
	}
	top := strings.TrimSpace(git(t, "", "rev-parse", "--show-toplevel"))
	commit := lastWith(t, top, layout)
	made, err := time.Parse(time.RFC3339, strings.TrimSpace(git(t, top, "log", "-1", "--format=%cI", commit)))
	if err != nil {
		t.Fatal(err)
	}
	s := Source{t.TempDir(), made}
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", s.Dir)
	unpack.Stdin = strings.NewReader(git(t, top, "archive", commit))
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return s
}

// Build builds its program.
func (s Source) Build(t testing.TB, path string) {
	t.Helper()
	// without the folder's name in it, so that Go's cache has it the next time
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "./cmd/bascule")
	build.Dir = s.Dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in a former version: %v\n%s", err, out)
	}
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
	return string(out)
}

// lastWith is the last version with a layout.
func lastWith(t testing.TB, top string, layout int) string {
	t.Helper()
	for commit := range strings.FieldsSeq(git(t, top, "log", "--format=%H", "--", numberFile)) {
		if layoutAt(t, top, commit) > layout && layoutAt(t, top, commit+"^") == layout {
			return strings.TrimSpace(git(t, top, "rev-parse", commit+"^"))
		}
	}
	t.Fatalf("no version with layout %d is in the history", layout)
	return ""
}

// layoutAt is the number of the layout in a version.
func layoutAt(t testing.TB, top, commit string) int {
	t.Helper()
	found := numberIn.FindStringSubmatch(git(t, top, "show", commit+":"+numberFile))
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(fmt.Errorf("layout of %s: %w", commit, err))
	}
	return n
}
