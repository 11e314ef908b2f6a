// SPDX-License-Identifier: BSD-2-Clause

// Package clock has the kernel's clocks that do not jump, as they are outside of all time namespaces
// (time_namespaces(7)). What is compared with them comes from elsewhere: from the datapath, or from a
// process in another time namespace.
package clock

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is the datapath's clock: the time since the machine started, but for when it was suspended.
func Monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC, "monotonic") }

// Boot is the time since the machine started, suspended or not.
func Boot() time.Duration { return read(unix.CLOCK_BOOTTIME, "boottime") }

func read(id int32, name string) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // which never fails: every Linux has them
	return time.Duration(t.Nano()) - shift(id, name)
}

// shift is by how much the time namespace of this process shifts a clock. Kernels write the clock's name, or its
// number.
func shift(id int32, name string) time.Duration {
	text, _ := os.ReadFile("/proc/self/timens_offsets") // a kernel without time namespaces has none
	for line := range strings.Lines(string(text)) {
		var clock string
		var seconds, nanoseconds int64
		if _, err := fmt.Sscan(line, &clock, &seconds, &nanoseconds); err == nil && (clock == name || clock == fmt.Sprint(id)) {
			return time.Duration(seconds)*time.Second + time.Duration(nanoseconds)
		}
	}
	return 0
}
