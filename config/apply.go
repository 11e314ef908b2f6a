// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/files"
	"bascule/pattern"
	"bascule/pf"
)

// Options select how a file is applied.
type Options struct {
	DryRun bool           // only plan
	Report func([]Action) // called with the plan before anything is done; may be nil
	PF     pf.Source      // opens the files that rules of pf include and name

	// Before is called once if there is something to do, before it is done. Its error ends the
	// apply. It may be nil.
	Before func() error

	Locked bool // the caller has locked plans (bridge.Switch.LockPlans)
	Yes    bool // do also what may cut the host off by mistake

	restores bool // the file records a former state

	// Session is the caller's remote connection; the zero value means none.
	Session Session
}

// A Session is a connection to this host.
type Session struct{ Client, Server netip.Addr }

// tries is how often the running state is read again while other processes change it.
const tries = 3

// Apply brings the bridges that a file names into the file's state and returns the actions that it
// took. All checks come first: if the error is an [Errors], nothing was changed. After any other
// failure, or if the process ends, completed actions stay and the next Apply does the rest. The
// warnings list work that could not be done yet, and settings that work but may be unintended.
// Concurrent calls run one after the other.
//
// An action that passed the checks can still be refused if a bridge or a device has changed
// meanwhile. Apply then reads the running state again and does the rest.
func Apply(s *bridge.Switch, f File, o Options) (actions []Action, warnings []string, err error) {
	if !o.DryRun {
		if !o.Locked {
			unlock, err := s.LockPlans()
			if err != nil {
				return nil, nil, err
			}
			defer unlock()
		}
		// remove what a killed command left behind: it is not a user's interface
		if err := s.Mend(); err != nil {
			return nil, nil, err
		}
	}
	told := map[Action]bool{}
	for try := 1; ; try++ {
		p, again := makePlan(s, f, o)
		if again != nil {
			if try == 1 {
				err = again
			}
			return actions, warnings, err
		}
		fresh := slices.DeleteFunc(slices.Clone(p.actions), func(a Action) bool { return told[a] })
		for _, a := range fresh {
			told[a] = true
		}
		actions = append(actions, fresh...)
		if o.Before != nil && len(actions) > 0 && !o.DryRun {
			if err := o.Before(); err != nil {
				return nil, p.warnings, err
			}
			o.Before = nil
		}
		if o.Report != nil {
			o.Report(fresh)
		}
		if o.DryRun {
			return actions, p.warnings, nil
		}
		var notes []string
		notes, err = p.act(s, o)
		warnings = append(warnings, notes...)
		if err == nil || try == tries || !bridge.Refused(err) {
			warnings = slices.DeleteFunc(warnings, func(w string) bool { return slices.Contains(p.warnings, w) })
			return actions, append(p.warnings, warnings...), err
		}
	}
}

// makePlan reads the running state and compares it with the file.
func makePlan(s *bridge.Switch, f File, o Options) (*plan, error) {
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	names, err := bridgesOf(s)
	if err != nil {
		return nil, err
	}
	was, _, err := readBridges(s, devices, concerned(f, names), false)
	if err != nil {
		return nil, err
	}
	want, bad := loadPFTexts(s, was, f, ahead(f, devices), o)
	p := newPlan(was, want, devices)
	for _, e := range bad {
		p.want.bad.add(e.At, "%s", e.Msg)
	}
	if !o.restores { // a former state is no mistake
		p.want.refuseTwins()
	}
	if !o.Yes && p.want.bad.list == nil {
		p.refuseLockouts()
		if o.Session.Server.IsValid() {
			p.refuseSession(o.Session, resolve(wholeState(s, devices, names), nil, nil), s.Behind)
		}
	}
	if bad := p.want.bad.errors(); bad != nil {
		return nil, bad
	}
	return p, p.tellRoutes(s)
}

// tellRoutes adds warnings about routes and devices of the host that disappear with host ports.
func (p *plan) tellRoutes(s *bridge.Switch) error {
	if p.hostsGo == nil {
		return nil
	}
	net, err := s.HostNet()
	if err != nil {
		return err
	}
	for _, host := range p.hostsGo {
		for _, d := range p.devices {
			if d.Name != host[1] {
				continue
			}
			for _, name := range d.Above {
				p.warnings = append(p.warnings, fmt.Sprintf("bridge %s: the host's device %s above port %s will be removed with it", host[0], name, host[1]))
			}
			if d.Master != "" {
				p.warnings = append(p.warnings, fmt.Sprintf("bridge %s: %s will lose port %s", host[0], d.Master, host[1]))
			}
		}
		if n := net.RoutesBy(host[1]); n > 0 {
			p.warnings = append(p.warnings, fmt.Sprintf("bridge %s: the host's routes through port %s (%d) will be lost", host[0], host[1], n))
		}
	}
	return nil
}

// act executes the plan.
func (p *plan) act(s *bridge.Switch, o Options) (notes []string, err error) {
	for _, stage := range p.stages {
		for _, do := range stage {
			list, err := do(s, o)
			notes = append(notes, list...)
			if err != nil {
				return notes, err
			}
		}
	}
	return notes, nil
}

// concerned returns the named bridges that a file affects: the ones it lists, and the ones at the
// other ends of its patch cables.
func concerned(f File, names []string) []string {
	about := map[string]bool{}
	for _, b := range f.Bridges {
		about[b.Name] = true
		for _, p := range b.Ports {
			far, _, _ := strings.Cut(p.Options.Peer, "/")
			about[far] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !about[name] })
}

// ahead returns the addresses that a file gives to the host's interfaces that are missing or have
// other addresses. A new interface has only the addresses from the file.
func ahead(f File, devices []bridge.Device) map[string][]netip.Prefix {
	list := map[string][]netip.Prefix{}
	for _, b := range f.Bridges {
		for _, p := range b.Ports {
			if p.Options.Type != bridge.TypeHost {
				continue
			}
			at := slices.IndexFunc(devices, func(d bridge.Device) bool { return d.Name == p.Name })
			if at < 0 || p.Addresses != nil && !sameAddresses(devices[at].Kept, p.Addresses) {
				list[p.Name] = p.Addresses
			}
		}
	}
	return list
}

// loadPFTexts returns the file with the text of its pf rules. Rules without a change are replaced
// by the running ones. The parameter ahead is the result of ahead().
func loadPFTexts(s *bridge.Switch, was, f File, ahead map[string][]netip.Prefix, o Options) (File, Errors) {
	var bad Errors
	want := f
	want.Bridges = append([]Bridge(nil), f.Bridges...)
	for i := range want.Bridges {
		b := &want.Bridges[i]
		if b.PF == nil || b.PF.File == "" && b.PF.Rules == "" {
			continue
		}
		pf := *b.PF
		b.PF = &pf
		if pf.File != "" {
			if !filepath.IsAbs(pf.File) {
				pf.File = filepath.Join(filepath.Dir(pf.At.Path), pf.File)
			}
			text, err := read(pf.File, files.OpenPlain) // it is compared first, and loaded later
			if err != nil {
				bad = append(bad, Error{pf.At, fmt.Sprintf("pf of %s: %v", b.Name, err)})
				continue
			}
			pf.Rules = string(text)
		}
		if strings.TrimSpace(pf.Rules) == "" {
			pf.Rules = "# none\n" // an empty text would leave the rules as they are
		}
		name := b.Name
		if runs := bridgeNamed(was, name); runs == nil {
			name = ""
		}
		same, printed, err := s.ComparePF(name, bridge.PFLoad{Name: pfName(&pf), Text: []byte(pf.Rules), Source: o.PF, Ahead: ahead})
		if err != nil {
			bad = append(bad, pfErrors(&pf, b.Name, err)...)
			continue
		}
		pf.printed = printed
		if runs := bridgeNamed(was, name); same {
			pf.Rules = runs.PF.Rules
		} else if runs != nil && runs.PF != nil && pf.Rules == runs.PF.Rules {
			pf.Rules += "# anew\n" // the same text has another meaning now
		}
	}
	return want, bad
}

// pfName returns the name of the pf rules for errors.
func pfName(p *PF) string { return cmp.Or(p.File, "rules") }

func bridgeNamed(f File, name string) *Bridge {
	for i := range f.Bridges {
		if f.Bridges[i].Name == name {
			return &f.Bridges[i]
		}
	}
	return nil
}

// pfErrors turns mistakes in pf rules into errors of the file that names or contains the rules.
func pfErrors(p *PF, name string, err error) (bad Errors) {
	var list pf.ErrorList
	if !errors.As(err, &list) {
		return Errors{{p.At, fmt.Sprintf("pf of %s: %v", name, err)}}
	}
	for _, e := range list {
		text := e.Brief()
		if at, ok := p.place(e.Pos.File, e.Pos.Line, e.Pos.Column); ok {
			bad = append(bad, Error{at, fmt.Sprintf("pf of %s: %s", name, strings.TrimPrefix(text, e.Pos.String()+": "))})
			continue
		}
		bad = append(bad, Error{p.At, fmt.Sprintf("pf of %s: %s", name, text)})
	}
	return bad
}

// place returns the file's position for a place in the rules, if the file contains the rules as
// text.
func (p *PF) place(file string, line, column int) (Position, bool) {
	if p.File != "" || file != pfName(p) || line < 1 || line > len(p.lines) {
		return Position{}, false
	}
	at := p.lines[line-1]
	if at.Column > 0 {
		at.Column += max(column, 1) - 1
	}
	return at, true
}

// notePlace matches the place at the beginning of a note about rules.
var notePlace = pattern.New(`^rules:([0-9]{1,9}):([0-9]{1,9}): `)

// placed returns notes about rules, with the places changed to positions in the file.
func (p *PF) placed(notes []string) []string {
	for i, note := range notes {
		m := notePlace().FindStringSubmatch(note)
		if m == nil {
			continue
		}
		line, _ := strconv.Atoi(m[1])
		column, _ := strconv.Atoi(m[2])
		if at, ok := p.place("rules", line, column); ok {
			notes[i] = at.String() + ": " + note[len(m[0]):]
		}
	}
	return notes
}
