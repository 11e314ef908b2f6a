// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeviceGone: if a device disappears while it is made a port, the error says so,
// with the port's name.
func TestDeviceGone(t *testing.T) {
	s := newShelf(t, 1)
	s.create("br0", 1)
	err := s.rack.do(func() error {
		b, err := s.store.Open("br0")
		if err != nil {
			return err
		}
		g, err := b.load(&b.Config, Tables{})
		if err != nil {
			return err
		}
		defer g.coll.Close()
		c := b.Config
		p := NewPort(&c, "gone")
		p.Ifindex = 1 << 30
		return g.place(p)
	})
	var port *PortError
	if !errors.As(err, &port) || port.Port != "gone" || !errors.Is(err, unix.ENODEV) {
		t.Errorf("it says %v, want one of port gone, which has no device", err)
	}
}
