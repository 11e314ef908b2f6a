// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stalls adds up how late each processor wakes who sleeps on it, until the test
// ends: about that long it may have run no timer either. What it returns is the sum
// so far, of all of them, since a timer may run on any.
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
				return // it has gone meanwhile
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
