// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"net"
	"slices"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// An Undo has functions that revert the steps of a request if a later step fails.
type Undo []func()

// Add adds a function that reverts the latest step.
func (u *Undo) Add(f func()) { *u = append(*u, f) }

// Do reverts the steps, the last one first.
func (u *Undo) Do() {
	for _, f := range slices.Backward(*u) {
		f()
	}
}

// Shared describes the objects that all containers of a network share. They stay when containers leave.
type Shared struct {
	Gateway    *Gateway     // the host as a router; nil for none
	By         string       // the front end
	Masquerade []*net.IPNet // networks that leave the host with the host's address; nil for none
}

// Judge returns the error with which Make would refuse, as far as the present state shows it. It changes nothing.
func (m Shared) Judge(s *bridge.Switch) error {
	if m.Gateway != nil {
		if err := m.Gateway.judge(); err != nil {
			return err
		}
	}
	return judgeMasquerade(s, m.By, m.Masquerade)
}

// Make makes all objects and returns the gateway's interface. After an error the former state is restored, with one
// exception: the rule of a first network stays if the kernel refuses to load the rule of a second one, which
// [Shared.Judge] cannot foresee. Existing containers depend on these objects, so a request calls Make as its last step:
// no later step can fail.
func (m Shared) Make(s *bridge.Switch) (link netlink.Link, warnings []string, err error) {
	if m.Gateway == nil && len(m.Masquerade) == 0 {
		return nil, nil, nil
	}
	// The lock prevents other requests from using objects that are reverted later.
	unlock, err := s.LockPlans()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if err := m.Judge(s); err != nil {
		return nil, nil, err
	}
	var back Undo
	defer func() {
		if err != nil {
			back.Do()
		}
	}()
	if m.Gateway != nil {
		var notes []string
		link, notes, err = m.Gateway.ensure(s, &back)
		warnings = append(warnings, notes...)
		if err != nil {
			return nil, warnings, err
		}
	}
	notes, err := Masquerade(s, m.By, m.Masquerade)
	warnings = append(warnings, notes...)
	if err != nil {
		return nil, warnings, fmt.Errorf("masquerade: %w", err)
	}
	return link, warnings, nil
}
