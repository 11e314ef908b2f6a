// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bascule/bridge"
)

// Restore is Apply, for who brings bridges back to what they were. A port or span port that cannot
// come is left out then, since somebody else has its device or name now: the rest must not wait for
// it. left are the ports that are, and the warnings say why.
func Restore(s *bridge.Switch, f File, o Options) (actions []Action, left, warnings []string, err error) {
	report := o.Report
	o.Report = nil // of what is tried
	apply := func() error {
		done, notes, err := Apply(s, f, o)
		if !o.DryRun {
			done = append(actions, done...)
		}
		if err == nil || !o.DryRun {
			actions, warnings = done, notes
		}
		return err
	}
	if err = apply(); err != nil {
		var list []missing
		why := err
		if f, list, err = leaveOut(s, f, why); err == nil {
			left, err = oneByOne(list, why, apply)
		}
		if err != nil {
			return nil, nil, warnings, err
		}
		for _, m := range list {
			if why := *m.left[0]; why != "" {
				warnings = append(warnings, fmt.Sprintf("%s is left out, and waits for its device: %s", m.what, why))
			}
		}
	}
	if report != nil {
		report(actions)
	}
	return actions, left, warnings, nil
}

// oneByOne applies a file without what is missing, which keeps it from being applied, and then with
// what can come of that.
func oneByOne(list []missing, why error, apply func() error) (left []string, err error) {
	if len(list) == 0 {
		return nil, why
	}
	if err := apply(); err != nil {
		return nil, err
	}
	failed := false
	for _, m := range list {
		m.leave("")
		bad := apply()
		if failed = bad != nil; failed {
			m.leave(whyLeft(bad, m.what))
			left = append(left, m.what)
		}
	}
	if failed { // it may have done a part
		err = apply()
	}
	return left, err
}

// A missing is a port, a span port, or both ends of a patch cable, that does not run.
type missing struct {
	what string
	left []*string // of it in the file
}

func (m missing) leave(why string) {
	for _, l := range m.left {
		*l = why
	}
}

// leaveOut returns a file without what does not run of it and may not be able to come, for a reason.
func leaveOut(s *bridge.Switch, f File, why error) (_ File, list []missing, err error) {
	devices, err := s.Devices()
	if err != nil {
		return f, nil, err
	}
	names, err := bridgesOf(s)
	if err != nil {
		return f, nil, err
	}
	was, _, err := readBridges(s, devices, concerned(f, names), false)
	if err != nil {
		return f, nil, err
	}
	device := func(name string) (d bridge.Device, there bool) {
		i := slices.IndexFunc(devices, func(d bridge.Device) bool { return d.Name == name })
		if i < 0 {
			return d, false
		}
		return devices[i], true
	}
	f.Bridges = slices.Clone(f.Bridges)
	cables := map[string]int{} // by the other end, where in the list
	for i := range f.Bridges {
		b := &f.Bridges[i]
		b.Ports, b.Mirrors = slices.Clone(b.Ports), slices.Clone(b.Mirrors)
		for j := range b.Ports {
			p := &b.Ports[j]
			name, _ := plainName(p.Name)
			d, there := device(name)
			runs := false
			switch p.Options.Type {
			case bridge.TypeHost:
				runs = there && d.Host == b.Name && d.Owner == ""
			case bridge.TypePatch:
				runs = wired(was, b.Name, name, p.Options.Peer)
			default:
				runs = !there || d.Bridge == b.Name && d.Owner == ""
			}
			if runs {
				continue
			}
			if at, ok := cables[b.Name+"/"+name]; ok {
				list[at].left = append(list[at].left, &p.left)
				continue
			}
			if p.Options.Type == bridge.TypePatch {
				cables[p.Options.Peer] = len(list)
			}
			list = append(list, missing{"port " + name + " of " + b.Name, []*string{&p.left}})
		}
		for j := range b.Mirrors {
			m := &b.Mirrors[j]
			if d, there := device(m.Device); there && d.Bridge != b.Name {
				list = append(list, missing{"span port " + m.Device + " of " + b.Name, []*string{&m.left}})
			}
		}
	}
	for _, m := range list {
		m.leave(why.Error())
	}
	return f, list, nil
}

// wired reports whether one end of a patch cable runs.
func wired(was File, name, port, peer string) bool {
	b := bridgeNamed(was, name)
	return b != nil && slices.ContainsFunc(b.Ports, func(p Port) bool {
		plain, _ := plainName(p.Name)
		return plain == port && p.Options.Type == bridge.TypePatch && p.Options.Peer == peer
	})
}

// whyLeft is why a port cannot come, without the place in a file and without the port, which the
// caller names.
func whyLeft(err error, what string) string {
	text := err.Error()
	if bad := (Errors)(nil); errors.As(err, &bad) && len(bad) > 0 {
		text = bad[0].Msg
	}
	return strings.TrimPrefix(text, what+": ")
}
