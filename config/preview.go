// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bascule/bridge"
)

// Preview returns what do would change through the switch, in the words of a plan. It changes
// nothing. The error is the reason why do would be refused, which includes cutting off the session;
// the zero session means none.
func Preview(s *bridge.Switch, session Session, do func() error) (actions []Action, err error) {
	r, err := s.Rehearse(do)
	if err != nil {
		return nil, err
	}
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	was, want := File{}, File{}
	for _, name := range names {
		after, changes := r.After[name]
		before, err := s.Read(name)
		if err != nil {
			if changes && after == nil { // a bridge that another version made, which can only be deleted
				actions = append(actions, Action{Delete, name, "bridge " + name, ""})
			}
			continue
		}
		was.Bridges = append(was.Bridges, wholeBridge(name, before, devices, nil))
		switch {
		case !changes:
			want.Bridges = append(want.Bridges, wholeBridge(name, before, devices, nil))
		case after == nil:
			want.Bridges = append(want.Bridges, Bridge{Name: name, Gone: true})
		default:
			want.Bridges = append(want.Bridges, wholeBridge(name, *after, devices, r))
		}
	}
	for name, after := range r.After {
		if after != nil && !slices.Contains(names, name) {
			want.Bridges = append(want.Bridges, wholeBridge(name, *after, devices, r))
		}
	}
	for i := range devices { // the switch has checked everything that is refused for these devices
		devices[i].Owner, devices[i].Cut, devices[i].Refusal = "", "", ""
	}
	p := newPlan(was, want, devices)
	if bad := p.want.bad.errors(); bad != nil {
		err := fmt.Errorf("cannot find out what would be changed: %w", withoutPlaces(bad))
		if session.Server.IsValid() {
			return nil, &LockoutError{fmt.Errorf("%w, and whether this ssh session would be cut off%s", err, insist)}
		}
		return nil, err
	}
	if session.Server.IsValid() {
		p.refuseSession(session, p.was, s.Behind)
	}
	if bad := p.want.bad.errors(); bad != nil {
		return nil, &LockoutError{withoutPlaces(bad)}
	}
	actions = append(actions, p.actions...)
	for _, e := range r.More {
		if e.Object == "programs" && slices.ContainsFunc(actions, func(a Action) bool { return a.Bridge == e.Bridge }) {
			continue // every change loads them
		}
		op := Change
		if e.Removes {
			op = Delete
		}
		actions = append(actions, Action{op, e.Bridge, fmt.Sprintf("%s of %s", e.Object, e.Bridge), e.Detail})
	}
	return actions, nil
}

// A LockoutError refuses a change that would cut off a session.
type LockoutError struct{ error }

func (e *LockoutError) Unwrap() error { return e.error }

// withoutPlaces returns the mistakes without positions, since there is no file.
func withoutPlaces(bad Errors) error {
	var words []string
	for _, e := range bad {
		words = append(words, e.Msg)
	}
	return errors.New(strings.Join(words, "; "))
}

// wholeState returns the running state of bridges, with ports that were plugged by an id, and without
// bridges that another version made.
func wholeState(s *bridge.Switch, devices []bridge.Device, names []string) (f File) {
	for _, name := range names {
		if state, err := s.Read(name); err == nil {
			f.Bridges = append(f.Bridges, wholeBridge(name, state, devices, nil))
		}
	}
	return f
}

// wholeBridge converts a running bridge to a file's bridge, with ports that were plugged by an id.
// then has the planned changes to devices; nil means none.
func wholeBridge(name string, state bridge.State, devices []bridge.Device, then *bridge.Rehearsal) Bridge {
	there, taken := map[string]bridge.Device{}, map[string]bool{}
	for _, d := range devices {
		there[d.Name] = d
	}
	r := reader{State: state, file: Bridge{Name: name}, out: map[string]bool{}, plugged: true}
	r.file.Settings = differing(bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), state.Bridge.Config)
	r.ports(there, taken)
	r.private()
	r.rest()
	for i := range r.file.Ports {
		p := &r.file.Ports[i]
		if then == nil || p.Options.Type == bridge.TypePatch {
			continue
		}
		if text, ok := then.Texts[p.Name]; ok {
			p.Description = &text
		}
		o := then.Hosts[p.Name]
		if o.MAC != nil {
			p.MAC = o.MAC
		}
		p.MTU = cmp.Or(o.MTU, p.MTU)
		if o.MTU != 0 && o.MTU < bridge.IPv6MTU && slices.ContainsFunc(p.Addresses, isIPv6) {
			p.Addresses = slices.DeleteFunc(slices.Clone(p.Addresses), isIPv6) // the kernel removes them
		}
	}
	if pf := r.file.PF; pf != nil {
		pf.printed = pf.Rules
	}
	return r.file
}
