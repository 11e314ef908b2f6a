// SPDX-License-Identifier: BSD-2-Clause

// Package peak measures the memory that something takes while it runs.
package peak

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
)

// aloneVar says to a test that it runs alone in its process.
const aloneVar = "BASCULE_TEST_ALONE"

// Alone says whether a test runs in a process of its own, where nothing else
// takes memory. If it does not, Alone runs it in one and fails it if it fails
// there; the caller then returns.
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneVar) == t.Name() {
		return true
	}
	args := []string{"-test.run=^" + t.Name() + "$"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), aloneVar+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// Took calls f and returns how many bytes the process had more at the peak, as
// the kernel counts what is resident. The test must run alone.
func Took(t *testing.T, f func()) int {
	t.Helper()
	debug.FreeOSMemory()
	// proc(5): 5 sets the peak to what is resident now
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	before := status(t, "VmRSS")
	f()
	took := status(t, "VmHWM") - before
	runtime.GC()
	return max(took, 0)
}

// Bound is what reading a text may take at its peak, in bytes: for each byte of
// the text, and for any text.
type Bound struct{ Each, Any int }

// Check calls f, which reads a text of a size, and fails the test if f takes
// more than the bound.
func (b Bound) Check(t *testing.T, name string, size int, f func()) {
	t.Helper()
	took := Took(t, f)
	t.Logf("%-28s %8d bytes took %9d, %4d for each", name, size, took, took/max(size, 1))
	if took > b.Any+b.Each*size {
		t.Errorf("%s: %d bytes took %d, %d for each; want at most %d for each and %d for any text", name, size, took, took/max(size, 1), b.Each, b.Any)
	}
}

// status returns a value of /proc/self/status in bytes.
func status(t *testing.T, name string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	_, text, ok := bytes.Cut(text, []byte(name+":"))
	if _, scanned := fmt.Sscanf(string(text), "%d kB", &n); err != nil || !ok || scanned != nil {
		t.Fatalf("/proc/self/status has no %s", name)
	}
	return n << 10
}
