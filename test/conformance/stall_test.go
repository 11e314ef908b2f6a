// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stalls measures how late each processor wakes a sleeping thread, until the test ends. The
// processor may not have run timers for about that time either. The returned function returns
// the sum for all processors so far, since a timer may run on any of them.
func stalls(t *testing.T) func() time.Duration {
	t.Helper()
	const nap, late = 10 * time.Millisecond, 50 * time.Millisecond
	var allowed unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &allowed))
	var total atomic.Int64
	for cpu := range len(allowed) * 64 {
		if !allowed.IsSet(cpu) {
			continue
		}
		go func() {
			runtime.LockOSThread() // and never unlocked
			var one unix.CPUSet
			one.Set(cpu)
			if unix.SchedSetaffinity(0, &one) != nil {
				return // the processor has gone
			}
			for t.Context().Err() == nil {
				start := time.Now()
				time.Sleep(nap)
				if over := time.Since(start) - nap; over > late {
					total.Add(int64(over))
				}
			}
		}()
	}
	return func() time.Duration { return time.Duration(total.Load()) }
}
