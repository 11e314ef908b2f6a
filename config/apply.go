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

// Options say how a file is applied.
type Options struct {
	DryRun bool           // only plan
	Report func([]Action) // is told the plan before anything is done; may be nil
	PF     pf.Source      // of what files of pf include and name

	// Before is called once, when there is something to do and before it is done. An error ends
	// the apply. Nil for nothing.
	Before func() error

	Locked bool // the caller has locked plans (bridge.Switch.LockPlans)
	Yes    bool // what may be a mistake that cuts the host off is done

	restores bool // the file says what was there before

	// Session is the connection by which the caller works from afar, the zero value for none.
	Session Session
}

// A Session is a connection to this host.
type Session struct{ Client, Server netip.Addr }

// tries is how often the running state is read while others change it.
const tries = 3

// Apply makes the bridges that a file names what the file says, and returns the
// actions that it took. It checks everything first: if the error is an
// [Errors], nothing was changed. If it fails for another reason, or the process
// ends, its actions are not undone; the next Apply does the rest. The warnings
// tell of work that could not be done yet, and of things that work but may not
// be meant. Of several at once each waits for the one before it.
//
// A checked action can still be refused, when somebody changed a bridge or a
// device meanwhile. Apply then reads the running state again and does the rest.
func Apply(s *bridge.Switch, f File, o Options) (actions []Action, warnings []string, err error) {
	if !o.DryRun {
		if !o.Locked {
			unlock, err := s.LockPlans()
			if err != nil {
				return nil, nil, err
			}
			defer unlock()
		}
		// what a killed command left is no interface of somebody else's
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
	if !o.restores { // what was there is no mistake of now
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

// tellRoutes warns of routes that go with host ports.
func (p *plan) tellRoutes(s *bridge.Switch) error {
	if p.hostsGo == nil {
		return nil
	}
	net, err := s.HostNet()
	if err != nil {
		return err
	}
	for _, host := range p.hostsGo {
		if n := net.RoutesBy(host[1]); n > 0 {
			p.warnings = append(p.warnings, fmt.Sprintf("bridge %s: the host's routes by port %s (%d) will be lost", host[0], host[1], n))
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

// concerned returns those of the named bridges that a file is about: the ones
// that it names itself, and the ones at the other ends of its patch cables.
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

// ahead returns the addresses that the host's interfaces get by a file, of those that are not there
// or have others. An interface that is made has none that the file does not give.
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

// loadPFTexts returns the file with the rules of pf in it. Those that would
// change nothing are the rules that run. The addresses ahead are those of ahead().
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
			text, err := read(pf.File, files.OpenPlain) // it is compared, and then loaded
			if err != nil {
				bad = append(bad, Error{pf.At, fmt.Sprintf("pf of %s: %v", b.Name, err)})
				continue
			}
			pf.Rules = string(text)
		}
		if strings.TrimSpace(pf.Rules) == "" {
			pf.Rules = "# none\n" // and not: as they are
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
			pf.Rules += "# anew\n" // the same text means something else now
		}
	}
	return want, bad
}

// pfName is what errors call the rules of pf.
func pfName(p *PF) string { return cmp.Or(p.File, "rules") }

func bridgeNamed(f File, name string) *Bridge {
	for i := range f.Bridges {
		if f.Bridges[i].Name == name {
			return &f.Bridges[i]
		}
	}
	return nil
}

// pfErrors returns the mistakes in the rules of pf, as errors of the file that names or has them.
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

// place returns where something in the rules stands, if they are a text of the file.
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

// notePlace is the place that a note about rules begins with.
var notePlace = pattern.New(`^rules:([0-9]{1,9}):([0-9]{1,9}): `)

// placed returns notes about rules with the file's own places.
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
