// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"bascule/lab/ends"
)

// A backlog counts frames that the host has dropped before the switch or a socket could see
// them. A frame that arrives through a veth without NAPI waits in a queue of its CPU. All
// namespaces share this queue, which has room for net.core.netdev_max_backlog frames. If
// another test fills it, the host drops the next frame, whatever its origin. The kernel then
// counts the frame at the CPU and at its device (enqueue_to_backlog() in net/core/dev.c).
type backlog struct {
	devices []interfaceOf
	at      backlogCounters
}

// An interfaceOf is an interface of a namespace.
type interfaceOf struct {
	namespace *ends.Namespace
	name      string
}

// backlogCounters are numbers of dropped frames: at all CPUs, and at some devices.
type backlogCounters struct{ cpus, devices int }

// newBacklog starts to count the frames that are lost at some devices.
func newBacklog(devices ...interfaceOf) (*backlog, error) {
	b := &backlog{devices: devices}
	var err error
	b.at, err = b.read()
	return b, err
}

// near and far are the two sides of an end's cable.
func (e *End) near() interfaceOf { return interfaceOf{e.lab.Switch, e.Port} }
func (e *End) far() interfaceOf  { return interfaceOf{e.Namespace, e.Ifname} }

// lost returns the number of frames that the host may have lost at the devices since the last
// call. A device counts other frames, too, and so does a CPU. So the smaller number counts.
func (b *backlog) lost() (int, error) {
	now, err := b.read()
	if err != nil {
		return 0, err
	}
	lost := max(0, min(now.cpus-b.at.cpus, now.devices-b.at.devices))
	b.at = now
	return lost, nil
}

func (b *backlog) read() (now backlogCounters, err error) {
	if now.cpus, err = droppedByCPUs(); err != nil {
		return now, err
	}
	for _, d := range b.devices {
		l, err := d.namespace.Netlink().LinkByName(d.name)
		if err != nil {
			continue // a test has moved it
		}
		now.devices += int(l.Attrs().Statistics.RxDropped)
	}
	return now, nil
}

// droppedByCPUs returns the number of frames of all namespaces for which the queues of the CPUs
// had no room. It is the second number of a line of softnet_stat (softnet_seq_show() in
// net/core/net-procfs.c).
func droppedByCPUs() (n int, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			return 0, fmt.Errorf("/proc/net/softnet_stat: a line %q", line)
		}
		dropped, err := strconv.ParseUint(words[1], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("/proc/net/softnet_stat: %w", err)
		}
		n += int(dropped)
	}
	return n, nil
}
