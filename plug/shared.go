// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"net"
	"slices"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
)

// An Undo has what takes back the steps of a request, if a later one fails.
type Undo []func()

// Add adds how the step that was just done is taken back.
func (u *Undo) Add(f func()) { *u = append(*u, f) }

// Do takes the steps back, the last first.
func (u *Undo) Do() {
	for _, f := range slices.Backward(*u) {
		f()
	}
}

// Shared is what a network has for all of its containers. It stays when they leave.
type Shared struct {
	Gateway    *Gateway     // the host as a router; nil for none
	By         string       // the front door
	Masquerade []*net.IPNet // addresses in the networks that leave the host with its own; nil for none
}

// Judge says why Make would be refused, as far as the present state tells. It changes nothing.
func (m Shared) Judge(s *bridge.Switch) error {
	if m.Gateway != nil {
		if err := m.Gateway.judge(); err != nil {
			return err
		}
	}
	return judgeMasquerade(s, m.By, m.Masquerade)
}

// Make makes all of it and returns the gateway's interface. With an error all is as it was before, except that the rule
// of a first network stays if the kernel refuses to load the rule of a second one, which [Shared.Judge] cannot foresee.
// Containers that are there depend on it, so a request makes it last: then no other step can fail.
func (m Shared) Make(s *bridge.Switch) (link netlink.Link, warnings []string, err error) {
	if m.Gateway == nil && len(m.Masquerade) == 0 {
		return nil, nil, nil
	}
	// Another request finds nothing that is taken back behind it.
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
