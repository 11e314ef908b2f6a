// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"bascule/bridge"
)

// Restore is Apply for a return to a former state. It leaves out parts that the host prevents, so that the rest does
// not wait for them. left lists these parts, and the warnings have the reasons.
func Restore(s *bridge.Switch, f File, o Options) (actions []Action, left, warnings []string, err error) {
	defer s.Restoring()()
	report := o.Report
	o.Report, o.restores = nil, true // of attempts
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
		var parts []*part
		why := err
		if f, parts, err = leaveOut(s, f); err == nil {
			err = oneByOne(parts, why, apply)
		}
		if err != nil {
			return nil, nil, warnings, err
		}
		for _, p := range parts {
			if p.why != nil {
				left = append(left, p.what)
				warnings = append(warnings, fmt.Sprintf("%s is left out%s: %s", p.what, p.then, whyLeft(p.why, p.what)))
			}
		}
	}
	if report != nil {
		report(actions)
	}
	return actions, left, warnings, nil
}

// oneByOne applies a file without the parts that may prevent it, and then adds the parts that are possible.
func oneByOne(parts []*part, why error, apply func() error) error {
	if len(parts) == 0 {
		return why
	}
	for _, p := range parts {
		p.leave(why)
	}
	if err := apply(); err != nil {
		return err
	}
	failed := false
	for _, p := range parts {
		p.leave(nil)
		bad := apply()
		if failed = bad != nil; failed {
			p.leave(bad)
		}
	}
	if failed { // it may have succeeded partly
		return apply()
	}
	return nil
}

// A part is a piece of a file that the host may prevent.
type part struct {
	what string
	then string            // the consequence of leaving it out
	set  []func(why error) // removes the part from the file, or puts it back for nil
	why  error             // the reason for leaving it out, or nil
}

func (p *part) leave(why error) {
	p.why = why
	for _, set := range p.set {
		set(why)
	}
}

// mark marks a port or mirror as one that cannot be made.
func mark(left *string) func(error) {
	return func(why error) {
		*left = ""
		if why != nil {
			*left = why.Error()
		}
	}
}

const waitsForDevice = ", and waits for its device"

// leaveOut returns a file and its parts that can be left out: ports that do not run, XDP, and the
// settings of the host's interfaces.
func leaveOut(s *bridge.Switch, f File) (_ File, parts []*part, err error) {
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
	cables := map[string]*part{} // by the other end
	for i := range f.Bridges {
		b := &f.Bridges[i]
		b.Ports, b.Mirrors = slices.Clone(b.Ports), slices.Clone(b.Mirrors)
		for j := range b.Ports {
			p := &b.Ports[j]
			name, _ := plainName(p.Name)
			what := "port " + name + " of " + b.Name
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
			cable := cables[b.Name+"/"+name]
			switch {
			case runs:
			case cable != nil:
				cable.set = append(cable.set, mark(&p.left))
			default:
				new := &part{what: what, then: waitsForDevice, set: []func(error){mark(&p.left)}}
				if p.Options.Type == bridge.TypePatch {
					cables[p.Options.Peer] = new
				}
				parts = append(parts, new)
			}
			if p.Options.Hook == bridge.HookXDP {
				parts = append(parts, &part{what: "hook xdp of " + what, set: []func(error){func(why error) {
					p.Options.Hook = bridge.HookXDP
					if why != nil {
						p.Options.Hook = bridge.HookTCX
					}
				}}})
			}
			parts = append(parts, interfaceParts(p, what, d, runs && p.Options.Type == bridge.TypeHost)...)
		}
		for j := range b.Mirrors {
			m := &b.Mirrors[j]
			if d, there := device(m.Device); there && d.Bridge != b.Name {
				parts = append(parts, &part{what: "span port " + m.Device + " of " + b.Name, then: waitsForDevice, set: []func(error){mark(&m.left)}})
			}
		}
	}
	return f, parts, nil
}

// interfaceParts returns the parts of a port that concern the host's interface of a host port. With runs, d is that
// interface, and parts that it has already are left out of the list.
func interfaceParts(p *Port, what string, d bridge.Device, runs bool) (parts []*part) {
	whole := *p
	var drops []func() // by part
	set := func(error) {
		p.MAC, p.OwnMAC, p.MTU, p.Addresses, p.Up, p.Description = whole.MAC, whole.OwnMAC, whole.MTU, whole.Addresses, whole.Up, whole.Description
		for i, part := range parts {
			if part.why != nil {
				drops[i]()
			}
		}
	}
	add := func(name string, needed bool, drop func()) {
		if needed {
			parts, drops = append(parts, &part{what: name + " of " + what, set: []func(error){set}}), append(drops, drop)
		}
	}
	if runs && d.Away {
		add("interface", true, func() {
			p.MAC, p.OwnMAC, p.MTU, p.Addresses, p.Up, p.Description = nil, false, 0, nil, nil, nil
		})
		return parts
	}
	add("mac", runs && (p.OwnMAC || p.MAC != nil && !bytes.Equal(p.MAC, d.MAC)), func() { p.MAC, p.OwnMAC = nil, false })
	add("mtu", runs && p.MTU != 0 && p.MTU != d.MTU, func() { p.MTU = 0 })
	add("addresses", runs && p.Addresses != nil && !sameAddresses(d.Kept, p.Addresses), func() { p.Addresses = nil })
	add("IPv6", slices.ContainsFunc(p.Addresses, isIPv6), func() { p.Addresses = slices.DeleteFunc(slices.Clone(p.Addresses), isIPv6) })
	add("up", runs && (p.Up == nil || *p.Up) != d.Up, func() { p.Up = &d.Up })
	add("description", runs && p.Description != nil && *p.Description != d.Description, func() { p.Description = nil })
	return parts
}

// Absent lists the ports and mirrors of a file whose devices do not exist, in the words of Restore.
func Absent(s *bridge.Switch, f File) (list []string, err error) {
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, d := range devices {
		there[d.Name] = true
	}
	for _, b := range f.Bridges {
		for _, p := range b.Ports {
			name, plain := plainName(p.Name)
			if plain && p.Options.Type != bridge.TypeHost && p.Options.Type != bridge.TypePatch && !there[name] {
				list = append(list, "port "+name+" of "+b.Name)
			}
		}
		for _, m := range b.Mirrors {
			if !there[m.Device] {
				list = append(list, "span port "+m.Device+" of "+b.Name)
			}
		}
	}
	return list, nil
}

func isIPv6(a netip.Prefix) bool { return a.Addr().Is6() }

// wired reports whether one end of a patch cable runs.
func wired(was File, name, port, peer string) bool {
	b := bridgeNamed(was, name)
	return b != nil && slices.ContainsFunc(b.Ports, func(p Port) bool {
		plain, _ := plainName(p.Name)
		return plain == port && p.Options.Type == bridge.TypePatch && p.Options.Peer == peer
	})
}

// whyLeft returns why a port cannot be made, without the file position and the port, which the caller adds.
func whyLeft(err error, what string) string {
	text := err.Error()
	if bad := (Errors)(nil); errors.As(err, &bad) && len(bad) > 0 {
		text = bad[0].Msg
	}
	return strings.TrimPrefix(text, what+": ")
}
