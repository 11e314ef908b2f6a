// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"os"
	"time"
)

// A Monitor lets a program in a Machine change the machine's devices.
type Monitor struct {
	port *os.File
	qmp  *qmp
}

// monitorBound is the timeout of a change to the machine. It detects a hang: emulated drivers can
// take many seconds.
const monitorBound = 2 * time.Minute

// OpenMonitor opens the monitor of the Machine of this process. Only one process can have it open.
func OpenMonitor() (*Monitor, error) {
	port, err := openPort(monitorName)
	if err != nil {
		return nil, err
	}
	m := &Monitor{port, newQMP(port, context.Background(), monitorBound)}
	// This fails if another process has opened the monitor before.
	_ = m.qmp.run("qmp_capabilities", map[string]any{})
	return m, nil
}

// PutIn adds a device with QEMU's properties; "driver" is its kind and "id" its name. When it
// returns, the kernel may not have found the device yet.
func (m *Monitor) PutIn(properties map[string]any) error {
	return m.qmp.run("device_add", properties)
}

// TakeOut removes the named device, and returns when the kernel has released it.
func (m *Monitor) TakeOut(name string) error { return m.qmp.takeOut(name) }

// Close closes the monitor without a change to the machine.
func (m *Monitor) Close() error { return m.port.Close() }
