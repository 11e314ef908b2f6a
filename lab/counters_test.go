// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"testing"

	"golang.org/x/sys/unix"

	"bascule/lab/report"
)

// TestCounters counts software events, which every machine has, in place of hardware events.
func TestCounters(t *testing.T) {
	needRoot(t)
	c := openCounters([2]event{
		{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_CLOCK},
		{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_PAGE_FAULTS},
	})
	if c == nil {
		t.Fatal("events of the kernel cannot be counted")
	}
	defer c.close()
	before := c.read()
	page := make([]byte, 64<<20)
	for i := 0; i < len(page); i += 4096 {
		page[i] = 1
	}
	var s report.Sample
	c.read().since(before, &s)
	if s.Cycles == 0 || s.Instructions == 0 {
		t.Errorf("counted %d and %d", s.Cycles, s.Instructions)
	}
}

// TestNoCounters checks that a machine without counters counts nothing, without an error.
func TestNoCounters(t *testing.T) {
	c := openCounters([2]event{{kind: 0xffff}, {kind: 0xffff}})
	if c != nil {
		t.Fatal("events that do not exist are counted")
	}
	s := report.Sample{}
	c.read().since(c.read(), &s)
	c.close()
	if s.Cycles != 0 || s.Instructions != 0 {
		t.Errorf("counted %d and %d of nothing", s.Cycles, s.Instructions)
	}
}
