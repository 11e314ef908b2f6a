// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// pair returns a line, the guest's side of it, and a function that ends the guest.
func pair(t *testing.T) (*line, net.Conn, context.CancelCauseFunc) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	ended, end := context.WithCancelCause(t.Context())
	return newLine(near, ended), far, end
}

// TestLine checks that replies reach their callers in any order.
func TestLine(t *testing.T) {
	l, far, _ := pair(t)
	go func() {
		dec, enc := json.NewDecoder(far), json.NewEncoder(far)
		var first, second request
		if err := errors.Join(dec.Decode(&first), dec.Decode(&second)); err != nil {
			t.Error(err)
		}
		for _, r := range []request{second, first} {
			re := reply{ID: r.ID, Out: []byte(r.Program)}
			if r.Program == "bad" {
				re.Error = "as it was told"
			}
			if err := enc.Encode(re); err != nil {
				t.Error(err)
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, out, err := l.ask(t.Context(), request{Do: doOutput, Program: "bad"})
		if string(out) != "bad" || err == nil || err.Error() != "as it was told" {
			t.Errorf("what fails: output %q, error %v", out, err)
		}
	}()
	_, out, err := l.ask(t.Context(), request{Do: doOutput, Program: "good"})
	if string(out) != "good" || err != nil {
		t.Errorf("what works: output %q, error %v", out, err)
	}
	<-done
}

// TestLineCancelled checks that a cancelled request is also cancelled in the guest.
func TestLineCancelled(t *testing.T) {
	l, far, _ := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan request, 2)
	go func() {
		dec := json.NewDecoder(far)
		for range 2 {
			var r request
			if err := dec.Decode(&r); err != nil {
				t.Error(err)
			}
			got <- r
			cancel()
		}
		if err := json.NewEncoder(far).Encode(reply{ID: 1, Error: "killed"}); err != nil {
			t.Error(err)
		}
	}()
	if _, _, err := l.ask(ctx, request{Do: doOutput}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
	first, second := <-got, <-got
	if second.Do != doCancel || second.Of != first.ID {
		t.Errorf("after %+v the guest was asked for %+v", first, second)
	}
}

// TestLineEnded checks that requests fail with the reason of the guest's end.
func TestLineEnded(t *testing.T) {
	l, far, end := pair(t)
	go func() {
		if err := json.NewDecoder(far).Decode(&request{}); err != nil {
			t.Error(err)
		}
		end(&EndedError{2, "signal: killed"})
	}()
	for range 2 { // during the request, and after it
		_, _, err := l.ask(t.Context(), request{Do: doHello})
		var ended *EndedError
		if !errors.As(err, &ended) || err.Error() != "virtual machine 2 has ended: signal: killed" {
			t.Errorf("error %v, want an EndedError", err)
		}
	}
}

// entries parses an archive: the type of each entry, its name and its text.
func entries(t *testing.T, text string) (out [][3]string) {
	t.Helper()
	all := text
	take := func(n int) string {
		t.Helper()
		if n > len(text) {
			t.Fatalf("the archive ends in the middle of an entry, after %v", out)
		}
		part := text[:n]
		text = text[n:]
		return part
	}
	align := func() { take(-(len(all) - len(text)) & 3) }
	for {
		head := take(110)
		if head[:6] != "070701" {
			t.Fatalf("an entry begins with %q, after %v", head[:6], out)
		}
		number := func(i int) int {
			n, err := strconv.ParseUint(head[6+8*i:14+8*i], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		name := strings.TrimSuffix(take(number(11)), "\x00")
		align()
		data := take(number(6))
		align()
		if name == trailer {
			return out
		}
		out = append(out, [3]string{strconv.FormatInt(int64(number(1)), 8), name, data})
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := newArchive(&b)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		a.entry("/dev/console", unix.S_IFCHR|0o600, unix.Mkdev(5, 1), nil),
		a.file("/usr/bin/hello", file),
		a.file("/usr/bin/hello", file),
		a.entry("/usr/lib", unix.S_IFDIR|0o755, 0, nil),
		a.close(),
	); err != nil {
		t.Fatal(err)
	}
	want := [][3]string{
		{"40755", "dev", ""}, {"20600", "dev/console", ""},
		{"40755", "usr", ""}, {"40755", "usr/bin", ""}, {"100755", "usr/bin/hello", "hello"},
		{"40755", "usr/lib", ""},
	}
	if diff := cmp.Diff(want, entries(t, b.String())); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// TestArchiveProgram checks that a program has its loader and shared libraries.
func TestArchiveProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	// Go's own test programs may be static, but sh is not.
	if err := build(t.Context(), &b, tree{
		init: self, programs: []string{"sh", "no-such-program"}, links: map[string]string{ProgramPath: initPath},
		drivers: []module{{name: "some", data: []byte("text")}},
	}); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range entries(t, b.String()) {
		found[filepath.Base(e[1])] = true
		if e[1] == ProgramPath[1:] && (e[0] != "120777" || e[2] != initPath) {
			t.Errorf("%s is of mode %s and has %q in it, want a link to %s", ProgramPath, e[0], e[2], initPath)
		}
	}
	for _, name := range []string{"init", "bascule", "sh", "libc.so.6", "00-some.ko", "console"} {
		if !found[name] {
			t.Errorf("there is no %s", name)
		}
	}
	if found["no-such-program"] {
		t.Error("there is a program that is not installed")
	}
}

// TestFindKernel checks that a missing apt is reported in one line, and that a cached kernel is
// found without apt.
func TestFindKernel(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cache := t.TempDir()
	_, err := findKernel(t.Context(), cache)
	var unavailable *ends.Unavailable
	if !errors.As(err, &unavailable) || unavailable.Reason != "no guest kernel: apt-cache is not installed" {
		t.Errorf("without apt: %v", err)
	}
	boot := filepath.Join(cache, "linux-image-6.1.0-1-cloud-amd64", "boot")
	if err := os.MkdirAll(boot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(boot, "vmlinuz-6.1.0-1-cloud-amd64"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if dir, err := findKernel(t.Context(), cache); err != nil || dir != filepath.Dir(boot) {
		t.Errorf("in the cache: %q, error %v", dir, err)
	}
}

func TestTail(t *testing.T) {
	s := &tail{}
	if got := s.last(); got != "" {
		t.Errorf("of nothing the last lines are %q", got)
	}
	panicked := &tail{text: []byte("one\n[0.1] Kernel panic - not syncing\ntrace\nof\ncalls\n")}
	if got := panicked.last(); got != "; the last lines of its console: [0.1] Kernel panic - not syncing; trace; of" {
		t.Errorf("of a panic the last lines are %q", got)
	}
	for _, part := range []string{strings.Repeat("x", 5000), "\r\none\r\n\r\ntwo\r\nth", "ree\r\n"} {
		if _, err := s.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.last(); got != "; the last lines of its console: one; two; three" {
		t.Errorf("the last lines are %q", got)
	}
}
