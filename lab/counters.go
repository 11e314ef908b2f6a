// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"bascule/lab/report"
)

// counters count two events on every CPU of the machine (perf_event_open(2)).
type counters struct {
	fds [2][]int // by event, then CPU
}

// event is a type and a config of perf_event_open(2).
type event struct {
	kind   uint32
	config uint64
}

// hardware is cycles and instructions, which many virtual machines cannot count.
var hardware = [2]event{
	{unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES},
	{unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS},
}

// openCounters returns nil, which counts nothing, if the machine cannot count both events on all
// CPUs.
func openCounters(events [2]event) *counters {
	c := &counters{}
	for i, e := range events {
		attr := unix.PerfEventAttr{Type: e.kind, Config: e.config}
		attr.Size = uint32(unsafe.Sizeof(attr))
		for cpu := range runtime.NumCPU() {
			fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				c.close()
				return nil
			}
			c.fds[i] = append(c.fds[i], fd)
		}
	}
	return c
}

// counted is a reading of both events, over all CPUs.
type counted struct {
	events [2]uint64
	ok     bool
}

func (c *counters) read() counted {
	if c == nil {
		return counted{}
	}
	out := counted{ok: true}
	for i, fds := range c.fds {
		for _, fd := range fds {
			var b [8]byte
			if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
				return counted{}
			}
			out.events[i] += binary.NativeEndian.Uint64(b[:])
		}
	}
	return out
}

// since puts the counts between two readings into a sample.
func (c counted) since(before counted, s *report.Sample) {
	if c.ok && before.ok {
		s.Cycles, s.Instructions = c.events[0]-before.events[0], c.events[1]-before.events[1]
	}
}

func (c *counters) close() {
	if c == nil {
		return
	}
	for _, fds := range c.fds {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}
