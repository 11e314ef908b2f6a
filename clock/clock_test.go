// SPDX-License-Identifier: BSD-2-Clause

package clock

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTimeNamespaces asks for the clocks in a time namespace that shifts each by another time.
func TestTimeNamespaces(t *testing.T) {
	const inside = "BASCULE_TEST_CLOCK"
	if os.Getenv(inside) != "" {
		fmt.Println("clocks", int64(Monotonic()), int64(Boot()))
		return
	}
	if os.Getuid() != 0 {
		t.Skip("time namespaces want root")
	}
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		t.Skip("the kernel has no time namespaces")
	}
	for _, shift := range []string{"100000", "200000"} {
		cmd := exec.Command("unshare", "--time", "--monotonic", shift, "--boottime", "1"+shift, os.Args[0], "-test.run", "^TestTimeNamespaces$")
		cmd.Env = append(os.Environ(), inside+"=1")
		before := []time.Duration{Monotonic(), Boot()}
		out, err := cmd.CombinedOutput()
		after := []time.Duration{Monotonic(), Boot()}
		_, text, _ := strings.Cut(string(out), "clocks ")
		got := make([]time.Duration, 2)
		if n, _ := fmt.Sscan(text, &got[0], &got[1]); err != nil || n != 2 {
			t.Fatalf("%v: %s", err, out)
		}
		for i, name := range []string{"monotonic", "boot"} {
			if got[i] < before[i] || got[i] > after[i] {
				t.Errorf("clock %s shifted by %s s is %v, and not from %v to %v", name, shift, got[i], before[i], after[i])
			}
		}
	}
}
