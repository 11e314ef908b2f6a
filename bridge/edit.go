// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"io"

	"bascule/datapath"
)

// An Edit is any number of changes to one bridge that are made in one step. Each method plans a
// change, on top of earlier ones, and has no other effect. An error in one change is an error of
// the whole Edit. Otherwise the methods are the same as a Switch's.
type Edit struct {
	bridge string
	draft  *draft
	err    error // of the first change that can't be made
}

// Edit changes a bridge in one step, by the changes that f adds: with one new generation of its
// programs, or none if nothing is different. Nothing changes if f returns an error, or if one of
// the changes is refused. The warnings are about things that work but may not be intended.
func (s *Switch) Edit(bridge string, f func(*Edit) error) (warnings []string, err error) {
	return s.EditFor("change bridge "+bridge, bridge, f)
}

// EditFor does the same as Edit, with the caller's words: errors of the whole change begin with
// "cannot" and what.
func (s *Switch) EditFor(what, bridge string, f func(*Edit) error) (warnings []string, err error) {
	return s.one(step{what, bridge, planOf(bridge, f)}, nil)
}

// Try plans the same as [Switch.EditFor], and changes nothing. The error is the one that EditFor
// would return. If a port of another bridge has the id leaves, Try assumes that it has left that
// bridge.
func (s *Switch) Try(what, bridge, leaves string, f func(*Edit) error) error {
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		c := newDraft(b)
		c.joins, c.force, c.leaves = s.joining, s.force, leaves
		if err := c.planned(what, planOf(bridge, f)); err != nil {
			return err
		}
		if err := s.checkMemory(what, c.demands()); err != nil || s.rehearsal == nil {
			return err
		}
		return s.rehearsal.draft(bridge, c)
	})
}

func planOf(bridge string, f func(*Edit) error) func(*draft) error {
	return func(c *draft) error {
		e := &Edit{bridge: bridge, draft: c}
		if err := f(e); err != nil {
			return err
		}
		return e.err
	}
}

// A step is one change to a bridge. plan adds the change to an existing plan. A change that could
// never be right has been refused before.
type step struct {
	what   string // for errors
	bridge string
	plan   func(*draft) error
}

// one makes a change of a single step, or returns err if the step was refused.
func (s *Switch) one(st step, err error) (warnings []string, _ error) {
	if err != nil {
		return nil, err
	}
	var made *draft
	err = s.change(st.what, st.bridge, func(c *draft) error {
		made = c
		return st.plan(c)
	})
	if err != nil {
		return nil, err
	}
	return made.warnings, nil
}

// add adds a step to the edit, unless err is set because the step was refused.
func (e *Edit) add(st step, err error) error {
	if e.err != nil {
		return e.err
	}
	if err == nil {
		err = st.plan(e.draft)
	}
	e.err = err
	return err
}

// Set changes the bridge's settings.
func (e *Edit) Set(changes []Change) error { return e.add(setBridge(e.bridge, changes), nil) }

// AddPort adds a device to the bridge, or makes a host port. A patch cable
// concerns two bridges: see [Switch.AddPort].
func (e *Edit) AddPort(port string, o PortOptions) error { return e.add(addPort(e.bridge, port, o)) }

// SetPort changes a port's settings or its hook.
func (e *Edit) SetPort(port string, o PortOptions) error { return e.add(setPort(e.bridge, port, o)) }

// DelPort takes a port out of the bridge. Its device can be added again by
// another Edit only.
func (e *Edit) DelPort(port string) error { return e.add(delPort(e.bridge, port), nil) }

// AddVLANs puts a port into VLANs with the options o, even if the port is already in one of them
// with other options.
func (e *Edit) AddVLANs(port string, list []uint16, o VLANOptions) error {
	return e.add(addVLANs(e.bridge, port, list, o))
}

// DelVLANs takes a port out of VLANs. The port must be in at least one of them.
func (e *Edit) DelVLANs(port string, list []uint16) error {
	return e.add(delVLANs(e.bridge, port, list), nil)
}

// SetVLANs puts a port into exactly these VLANs.
func (e *Edit) SetVLANs(port string, ranges []VLANRange) error {
	return e.add(setVLANs(e.bridge, port, ranges))
}

// SetPrivateVLANs sets the private VLANs below a primary VLAN.
func (e *Edit) SetPrivateVLANs(primary uint16, below PrivateVLANs) error {
	return e.add(setPrivateVLANs(e.bridge, primary, below))
}

// AddSpan makes a device a span port of the bridge.
func (e *Edit) AddSpan(device string, o SpanOptions) error {
	return e.add(addSpan(e.bridge, device, o))
}

// DelSpan takes a span port out of the bridge.
func (e *Edit) DelSpan(device string) error { return e.add(delSpan(e.bridge, device), nil) }

// ReplaceRules replaces all rules of the bridge by the rules of a text. Errors use name for the
// text. See [Switch.LoadRules].
func (e *Edit) ReplaceRules(name string, text io.Reader) error {
	return e.add(loadRules(e.bridge, "", name, text))
}

// setVLANs puts a port into exactly the VLANs of the ranges.
func setVLANs(bridge, port string, ranges []VLANRange) (step, error) {
	return exactVLANs("set the VLANs of port "+port+" of "+bridge, bridge, port, ranges)
}

// inVLANs returns a step that adds a port, and puts it into exactly the VLANs of the ranges unless
// they are nil.
func inVLANs(add step, port string, ranges []VLANRange) (step, error) {
	if ranges == nil {
		return add, nil
	}
	join, err := exactVLANs(add.what, add.bridge, port, ranges)
	if err != nil {
		return step{}, err
	}
	return step{add.what, add.bridge, func(c *draft) error {
		if err := add.plan(c); err != nil {
			return err
		}
		return join.plan(c)
	}}, nil
}

func exactVLANs(what, bridge, port string, ranges []VLANRange) (step, error) {
	ranges, err := sortRanges("VLANs of port "+port, ranges)
	if err != nil {
		return step{}, err
	}
	return changeVLANs(what, bridge, func(c *draft, v *datapath.VLANs) error {
		p, _, err := findMember(c, what, bridge, port)
		if err != nil {
			return err
		}
		joinRanges(v, p, ranges)
		return nil
	}), nil
}
