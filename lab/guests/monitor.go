// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"os"
	"time"
)

// A Monitor is what a program in a Machine changes the machine by that it runs in.
type Monitor struct {
	port *os.File
	qmp  *qmp
}

// monitorBound is how long the machine may take to do something that it is asked for.
// It catches one that hangs: drivers that are emulated take many seconds.
const monitorBound = 2 * time.Minute

// OpenMonitor opens the monitor of the Machine that this process runs in. One process
// at a time has it open.
func OpenMonitor() (*Monitor, error) {
	port, err := openPort(monitorName)
	if err != nil {
		return nil, err
	}
	m := &Monitor{port, newQMP(port, context.Background(), monitorBound)}
	// It is an error where another process has had it open before.
	_ = m.qmp.run("qmp_capabilities", map[string]any{})
	return m, nil
}

// PutIn adds a device, by QEMU's properties of it, of which "driver" is its kind and
// "id" its name. When it returns, the kernel need not have found the device yet.
func (m *Monitor) PutIn(properties map[string]any) error {
	return m.qmp.run("device_add", properties)
}

// TakeOut removes the device of a name, and returns when the kernel has let it go.
func (m *Monitor) TakeOut(name string) error { return m.qmp.takeOut(name) }

// Close leaves the machine as it is.
func (m *Monitor) Close() error { return m.port.Close() }
