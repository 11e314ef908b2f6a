// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/datapath"
)

// TestDeviceGone: if a device disappears during a command, the error names it and the remedy.
func TestDeviceGone(t *testing.T) {
	const want = "cannot add port p to br0: the device of port p has gone meanwhile; nothing was changed: try again"
	err := &datapath.PortError{Port: "p", Hook: HookXDP, Err: fmt.Errorf("device 10: %w", unix.ENODEV)}
	if got := failed("add port p to br0", err); got.Error() != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// TestSpanState: a span port whose device has gone, or has no carrier, is not shown as active.
func TestSpanState(t *testing.T) {
	b := newBench(t, 1)
	b.must(b.AddBridge("br0", nil))
	_, err := b.AddSpan("br0", "p1", SpanOptions{})
	b.must(err)
	want := func(state string) {
		t.Helper()
		list, err := b.Spans("br0")
		b.must(err)
		if len(list) != 1 || list[0].Port != "p1" || list[0].State != state {
			t.Errorf("span ports %+v, should be p1 in state %s", list, state)
		}
	}
	want("forwarding")
	l, err := b.ns.Netlink().LinkByName("p1")
	b.must(err)
	b.must(b.ns.Netlink().LinkSetDown(l))
	want("disabled")
	b.must(b.ns.Netlink().LinkDel(l))
	want("gone")
}
