// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/config"
)

// How long a change may wait for its confirmation.
const (
	LeastConfirm = time.Second
	MostConfirm  = 24 * time.Hour
)

// ParseConfirm parses the time that a change waits for its confirmation, from LeastConfirm to MostConfirm. A number
// needs its unit: five seconds and five minutes are far apart here. Its error is a *[bridge.UsageError].
func ParseConfirm(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	why := ""
	switch {
	case text != "" && strings.Trim(text, "0123456789") == "":
		why = "a unit is missing"
	case err != nil:
		why = "not a time"
	case d < LeastConfirm || d > MostConfirm:
		why = "out of range"
	default:
		return d, nil
	}
	return 0, &bridge.UsageError{Object: "--confirm " + text, Err: fmt.Errorf("%s; give %v to %s, such as 60s or 5m", why, LeastConfirm, "24h")}
}

// Options control how a state is applied.
type Options struct {
	config.Options
	Who     Who
	What    string        // name of the applied state, for people: "switch.yaml"
	Confirm time.Duration // time until the change is put back, unless it is confirmed; 0 for a change that stays
	ID      string        // shared ID of a change of several network namespaces, "" for a change of one
	Others  []string      // the names of these namespaces

	// Watch starts a process that calls Settle when the time is over; nil for none.
	Watch func() error
}

// NewID returns a word that no other change has.
func NewID() string { return rand.Text() }

// Apply is [config.Apply], and keeps the states before and after the change. If a state cannot be kept, a warning says
// so; with Confirm, the change is refused instead.
func (h *History) Apply(f config.File, o Options) (actions []config.Action, warnings []string, err error) {
	return h.apply(func() (config.File, State, error) { return f, State{}, nil }, o)
}

// apply applies the file that build returns, under the lock of plans. build also returns the state in which the file
// was in force before, or the zero value for a new file.
func (h *History) apply(build func() (f config.File, of State, err error), o Options) (actions []config.Action, warnings []string, err error) {
	if o.DryRun {
		f, _, err := build()
		if err != nil {
			return nil, nil, err
		}
		return config.Apply(h.s, f, o.Options)
	}
	unlock, err := h.s.LockPlans()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	f, of, err := build()
	if err != nil {
		return nil, nil, err
	}
	if !of.Time.IsZero() {
		o.What = of.returnWords()
	}
	var unkept []string // reasons
	c := change{h: h, o: o, file: f, files: digest(f), bridges: names(f)}
	o.Locked = true
	o.Before = func() error {
		var err error
		if unkept, err = c.begin(); err != nil {
			c.waits = nil // nothing is done that must be put back
		}
		return err
	}
	actions, warnings, err = config.Apply(h.s, f, o.Options)
	warnings = append(warnings, unkept...)
	if err == nil && len(actions) == 0 && o.Confirm > 0 { // the change did not begin
		p, err := h.Waiting()
		if err == nil && p != nil {
			err = h.waitsError(p)
		}
		return nil, warnings, err
	}
	switch {
	case c.waits != nil && err != nil:
		more, back := h.putBack(c.waits)
		warnings = append(warnings, more...)
		if back != nil {
			return actions, warnings, errors.Join(err, fmt.Errorf("the part that was done cannot be put back yet: %w", back))
		}
		return nil, warnings, fmt.Errorf("%w; the part that was done is put back", err)
	case err != nil || len(actions) == 0 || c.joins:
		return actions, warnings, err
	case c.waits != nil:
		if !of.Time.IsZero() {
			h.noteReturn(of.Time, actions)
		}
		c.waits.Change = config.Summary(actions)
		c.waits.end(o.Confirm) // from now, since it can be tried now
		if err := h.await(c.waits); err != nil {
			warnings = append(warnings, fmt.Sprintf("the time to confirm the change runs since it began: %v", err))
		}
		return actions, warnings, nil
	}
	h.forgive(c.files)
	if !of.Time.IsZero() {
		h.noteReturn(of.Time, actions)
	}
	if unkept == nil {
		st := State{Time: time.Now(), Who: o.Who.String(), What: o.What, Bridges: c.bridges, Files: c.files, Change: config.Summary(actions)}
		warnings = append(warnings, h.record(st)...)
	}
	return actions, warnings, nil
}

// record keeps the current state. The notes say why it could not be kept.
func (h *History) record(st State) (notes []string) {
	_, text, err := h.exported()
	if err == nil {
		_, err = h.keep(st, text)
	}
	if err != nil {
		return []string{unkeptNote(err)}
	}
	return nil
}

func unkeptNote(err error) string {
	return fmt.Sprintf("the state is not kept for 'bascule apply --back': %v", err)
}

// A change is a change that begins.
type change struct {
	h       *History
	o       Options
	file    config.File
	files   string   // its digest
	bridges []string // affected: the file's, and bridges that lose ends of patch cables
	waits   *Pending // for confirmation; nil for a change that stays
	joins   bool     // it is part of a change that already waits
}

// begin keeps the state before the change, and makes the change wait for its confirmation. If it fails, the change does
// not begin.
func (c *change) begin() (unkept []string, err error) {
	h, o := c.h, c.o
	p, err := h.Waiting()
	switch {
	case err != nil:
		return nil, err
	case p == nil:
	case p.Files == c.files && o.Confirm == 0 && c.files != "":
		c.joins = true
		return nil, nil
	default:
		return nil, h.waitsError(p)
	}
	if h.Denied(c.files) && o.Confirm == 0 && !o.Yes {
		return nil, errDenied
	}
	found, text, err := h.exported()
	var before State
	if err == nil {
		c.bridges = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.bridges, config.Cut(found, c.file)))))
		before, err = h.keep(State{Time: time.Now(), Who: "-", What: foundState}, text)
	}
	if err != nil && o.Confirm == 0 {
		return []string{unkeptNote(err)}, nil
	}
	if err == nil && o.Confirm > 0 {
		c.waits = &Pending{
			ID: cmp.Or(o.ID, NewID()), Time: time.Now(), Who: o.Who.String(), User: o.Who.User, What: o.What,
			Bridges: c.bridges, Before: before.name(), Files: c.files, Others: o.Others,
		}
		if err = h.note(c.waits, found); err == nil {
			c.waits.Cookie, err = h.s.Cookie()
		}
		if err == nil {
			c.waits.end(o.Confirm)
			err = h.await(c.waits)
		}
		if err == nil && o.Watch != nil {
			if err = o.Watch(); err != nil {
				err = errors.Join(err, h.settle(c.waits, false))
				return nil, &refusal{fmt.Sprintf("cannot apply with --confirm: no process would put the change back in time: %v", err), err}
			}
		}
	}
	if err != nil {
		return nil, &refusal{fmt.Sprintf("cannot apply with --confirm: the previous state cannot be saved: %v; see that %s can be written to, or give another folder by BASCULE_STATE_DIR",
			err, Dir()), err}
	}
	return nil, nil
}

// putBackWords begin the description of a state that a put-back restored. The change's description follows.
const putBackWords = "put back, not confirmed: "

// foundState names a state that was not applied as a whole: commands have made it.
const foundState = "as it was found"

// stays returns a line about a change whose time is over but which is still in force, and what to do about it.
func (p *Pending) stays() string {
	return fmt.Sprintf("the change of %s at %s (%s) was not confirmed until %s, and cannot be put back yet; 'bascule apply --back' shows why, and 'bascule apply confirm --yes' keeps the present state",
		p.Who, p.Time.Format(time.TimeOnly), p.What, p.Until.Format(time.TimeOnly))
}

// ErrWaits is the reason why a change is refused while another one waits for its confirmation.
var ErrWaits = errors.New("another change waits to be confirmed")

func (h *History) waitsError(p *Pending) error {
	if p.Overdue() {
		return &refusal{cause: ErrWaits, line: "cannot apply: " + p.stays()}
	}
	if p.hidden {
		return &refusal{cause: ErrWaits, line: fmt.Sprintf("cannot apply: the change of %s at %s (%s) waits to be confirmed until %s, and its files are gone from %s; see that this folder can be read, or wait until then",
			p.Who, p.Time.Format(time.TimeOnly), p.What, p.Until.Format(time.TimeOnly), h.dir)}
	}
	return &refusal{cause: ErrWaits, line: fmt.Sprintf("cannot apply: the change of %s at %s (%s) waits to be confirmed until %s; confirm it with 'bascule apply confirm', or put it back with 'bascule apply --back'",
		p.Who, p.Time.Format(time.TimeOnly), p.What, p.Until.Format(time.TimeOnly))}
}

// ErrDenied is the reason why files are refused that were put back before, because they were not confirmed.
var ErrDenied = errors.New("the files were put back")

var errDenied = &refusal{cause: ErrDenied,
	line: "cannot apply: these files were put back before, because they were not confirmed; fix them, or give --confirm or --yes"}

// returnWords returns the description of a change that applies this state again.
func (st State) returnWords() string {
	const words = "back to the state of "
	if strings.HasPrefix(st.What, words) { // this state is a return to the same state
		return st.What
	}
	return fmt.Sprintf("%s%s (%s)", words, st.Time.Local().Format(time.DateTime), st.What)
}

// A refusal is an error of one line: what is refused, why, and what to do.
type refusal struct {
	line  string
	cause error
}

func (r *refusal) Error() string { return r.line }
func (r *refusal) Unwrap() error { return r.cause }

// Refused reports whether err is a refusal because of earlier changes.
func Refused(err error) bool {
	var r *refusal
	return errors.As(err, &r)
}

// end makes the change wait for its confirmation for this time, from now on.
func (p *Pending) end(wait time.Duration) {
	m := now()
	p.Boot, p.End, p.Until = m.boot, m.since+wait, m.clock.Add(wait)
}

// name is the name of the state's file.
func (st State) name() string { return fmt.Sprintf("%06d%s", st.number, suffix) }

// Arrive opens the history, and puts back a change that was not confirmed in time. Each program calls it before it
// changes the switch. The notes report what was put back, or why that failed; after a failure the next program tries
// again.
func Arrive(s *bridge.Switch, netns string) (h *History, notes []string, err error) {
	if h, err = Open(s, netns); err != nil {
		return nil, nil, err
	}
	change, notes, err := h.Settle()
	switch {
	case err != nil:
		notes = append(notes, err.Error())
	case change != nil:
		notes = append(notes, change.PutBack())
	}
	return h, notes, nil
}

// Settle puts back a change that was not confirmed in time, and returns it, or nil if there was none. After a failure
// the change still waits to be put back.
func (h *History) Settle() (p *Pending, warnings []string, err error) {
	if !h.marked() {
		return nil, nil, nil
	}
	if p, err = h.Pending(); err != nil || p != nil && !p.Overdue() {
		return nil, nil, err
	}
	unlock, err := h.s.LockPlans()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	p, err = h.Pending() // another process may have been faster
	switch {
	case err != nil:
		return nil, nil, err
	case p == nil: // its namespace has ended, or its file could not be removed
		_ = h.settle(&Pending{}, false)
		return nil, nil, nil
	case !p.Overdue():
		return nil, nil, nil
	}
	warnings, err = h.putBack(p)
	return p, warnings, err
}

// putBack restores the bridges of a change as they were before it. The caller has locked plans.
func (h *History) putBack(p *Pending) (warnings []string, err error) {
	before, err := h.before(p)
	if err != nil {
		return nil, err
	}
	return h.restore(p, before)
}

// before returns the state before a change.
func (h *History) before(p *Pending) (config.File, error) {
	path := filepath.Join(h.dir, p.Before)
	_, text, err := readState(path)
	why := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		why = "is gone from " + h.dir
	case errors.Is(err, errDamaged):
		why = "in " + path + " is damaged"
	case err != nil:
		return config.File{}, fmt.Errorf("cannot put the change of %s back: the previous state cannot be read: %w", p.Time.Format(time.DateTime), err)
	default:
		return asFile(path, text)
	}
	return config.File{}, fmt.Errorf("cannot put the change of %s back: the previous state %s; set the bridges up by hand, and remove %s",
		p.Time.Format(time.DateTime), why, h.pendingPath())
}

// errUnnoted means that a change is put back, but would be put back again.
var errUnnoted = errors.New("the change is put back, which cannot be noted")

// restore is putBack with the state before the change.
func (h *History) restore(p *Pending, before config.File) (warnings []string, err error) {
	f, err := h.target(before, p.Bridges)
	if err != nil {
		return nil, err
	}
	notes := h.clear(f)
	if p.Boot == now().boot {
		more, err := h.s.RestoreHostMACs(p.Host)
		if notes = append(notes, more...); err != nil {
			notes = append(notes, err.Error())
		}
		giveMACs(f, p.Host.MACs)
	}
	actions, left, warnings, err := config.Restore(h.s, f, config.Options{Locked: true, Yes: true})
	warnings = append(notes, warnings...)
	if err != nil {
		return warnings, fmt.Errorf("cannot put the change of %s back: %w", p.Time.Format(time.DateTime), err)
	}
	lost, notes := h.giveBack(p)
	warnings = append(warnings, notes...)
	if err := h.s.GiveCarriers(p.Bridges); err != nil { // the agent that has taken one may be stopped
		warnings = append(warnings, err.Error())
	}
	absent, err := config.Absent(h.s, f)
	if err != nil {
		warnings = append(warnings, err.Error())
	}
	absent = slices.DeleteFunc(absent, func(what string) bool { return slices.Contains(p.Missing, what) })
	p.lacks = slices.Compact(slices.Sorted(slices.Values(slices.Concat(left, lost, absent))))
	st := State{Time: time.Now(), Who: p.Who, What: putBackWords + p.What + p.butFor(), Bridges: p.Bridges, Change: config.Summary(actions), again: true}
	warnings = append(warnings, h.record(st)...)
	h.noteReturn(p.Time, actions)
	if err := h.settle(p, true); err != nil {
		// it must not be put back again before the next restart
		if err := h.markSettled(p); err != nil {
			return warnings, fmt.Errorf("%w: %w", errUnnoted, err)
		}
		warnings = append(warnings, fmt.Sprintf("the change is put back, and will be again when the machine restarts, since its file cannot be removed: %v", err))
	}
	return warnings, nil
}

// clear removes ports of a state from where commands have put them since: from bridges outside the state, and ports
// that were plugged by an ID. The notes say which ports were removed, and which could not be.
func (h *History) clear(f config.File) (notes []string) {
	devices, err := h.s.Devices()
	if err != nil {
		return []string{err.Error()}
	}
	about := names(f)
	for _, b := range f.Bridges {
		for _, name := range devicesOf(b) {
			i := slices.IndexFunc(devices, func(d bridge.Device) bool { return d.Name == name })
			if i < 0 {
				continue
			}
			d := devices[i]
			on := cmp.Or(d.Bridge, d.Host)
			if on == "" || d.Owner == "" && slices.Contains(about, on) {
				continue
			}
			more, err := h.s.DelPort(on, name)
			notes = append(notes, more...)
			if err != nil {
				notes = append(notes, err.Error())
				continue
			}
			notes = append(notes, fmt.Sprintf("%s leaves %s, which it has joined since, for %s", name, on, b.Name))
		}
	}
	return notes
}

// giveMACs sets the former addresses of interfaces that are made anew, before they are made. The kernel would give them
// other addresses, and neighbours and DHCP servers would see those first.
func giveMACs(f config.File, macs map[string]net.HardwareAddr) {
	for _, b := range f.Bridges {
		for i := range b.Ports {
			if p := &b.Ports[i]; p.Options.Type == bridge.TypeHost && p.MAC == nil {
				p.MAC = macs[p.Name] // nil if the file has none
				p.OwnMAC = p.OwnMAC && p.MAC == nil
			}
		}
	}
}

// devicesOf returns the names of the ports and span ports of a file's bridge.
func devicesOf(b config.Bridge) (list []string) {
	for _, p := range b.Ports {
		list = append(list, p.Name)
	}
	for _, m := range b.Mirrors {
		list = append(list, m.Device)
	}
	return list
}

// note records in p the parts of the current state that files do not cover.
func (h *History) note(p *Pending, found config.File) (err error) {
	if p.Missing, err = config.Absent(h.s, found); err != nil {
		return err
	}
	if p.Host, err = h.s.HostNet(); err != nil {
		return err
	}
	p.Aside = map[string]map[string]string{}
	for _, name := range p.Bridges {
		rules, err := h.s.AsidePF(name)
		if err != nil && !bridge.Missing(err) {
			return err
		}
		if err == nil {
			p.Aside[name] = rules
		}
	}
	return nil
}

// giveBack restores the parts that files do not cover, once the bridges are restored. left names devices that
// could not be restored, and the notes all parts.
func (h *History) giveBack(p *Pending) (left, notes []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Aside)) {
		if err := h.s.SetAsidePF(name, p.Aside[name]); err != nil {
			notes = append(notes, fmt.Sprintf("rules in anchors of pf of %s are not put back: %v", name, err))
		}
	}
	if p.Boot != now().boot { // after a restart the host's programs have set these up
		return left, notes
	}
	left, more, err := h.s.RestoreHostNet(p.Host)
	notes = append(notes, more...)
	if err != nil {
		notes = append(notes, fmt.Sprintf("routes of the host are not put back: %v", err))
	}
	return left, notes
}

// target returns a state as a file about these bridges. Bridges that the state does not have are marked as gone. A
// state without rules of pf removes the current rules: without them the file would leave these alone.
func (h *History) target(whole config.File, bridges []string) (config.File, error) {
	f := config.File{Path: whole.Path}
	for _, name := range bridges {
		i := slices.IndexFunc(whole.Bridges, func(b config.Bridge) bool { return b.Name == name })
		if i < 0 {
			f.Bridges = append(f.Bridges, config.Bridge{Name: name, Gone: true})
			continue
		}
		b := whole.Bridges[i]
		runs, err := h.s.Read(name)
		if err != nil && !bridge.Missing(err) {
			return f, err
		}
		if runs.PF != nil && (b.PF == nil || b.PF.Rules == "") {
			b.PF = &config.PF{Enabled: b.PF != nil && b.PF.Enabled, Rules: "# none\n"}
		}
		f.Bridges = append(f.Bridges, b)
	}
	return f, nil
}

// Last returns the last state that is kept, as a file about its bridges.
func (h *History) Last() (config.File, error) {
	list, err := h.States()
	if err != nil || len(list) == 0 {
		return config.File{}, err
	}
	f, _, err := list[0].file()
	return f, err
}

// Confirm makes the waiting change permanent, and returns it. If none waits, and the last one was confirmed before, it
// returns that one, and a warning: a caller may have lost the first answer.
func (h *History) Confirm(who Who, yes bool) (p *Pending, warnings []string, err error) {
	unlock, err := h.s.LockPlans()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	p, err = h.Pending()
	switch {
	case errors.Is(err, errUnread) && yes:
		if err := h.settle(&Pending{}, false); err != nil {
			return nil, nil, fmt.Errorf("cannot confirm: this cannot be recorded: %w", err)
		}
		return &Pending{}, h.record(State{Time: time.Now(), Who: who.String(), What: foundState}), nil
	case err != nil:
		return nil, nil, err
	case p == nil:
		if p := h.kept(); p != nil {
			return p, []string{fmt.Sprintf("the change of %s at %s (%s) was confirmed before", p.Who, p.Time.Format(time.DateTime), p.What)}, nil
		}
		return nil, nil, h.nothingWaits()
	case p.Overdue() && !yes:
		return nil, nil, &refusal{line: "cannot confirm: " + p.stays()}
	case who.User != p.User && !yes:
		return nil, nil, &refusal{line: fmt.Sprintf("cannot confirm: the change at %s (%s) was made by %s; let them confirm it, or give --yes", p.Time.Format(time.TimeOnly), p.What, p.Who)}
	}
	if err := h.settle(p, false); err != nil {
		return nil, nil, fmt.Errorf("cannot confirm: this cannot be recorded: %w; the change is put back at %s", err, p.Until.Format(time.TimeOnly))
	}
	h.forgive(p.Files)
	warnings = h.record(State{Time: time.Now(), Who: p.Who, What: p.What, Bridges: p.Bridges, Files: p.Files, Change: p.Change})
	return p, warnings, nil
}

// nothingWaits returns why there is nothing to confirm: no change waits, it was put back, or its files are gone.
func (h *History) nothingWaits() error {
	if p := h.noted(); p != nil {
		return &refusal{line: fmt.Sprintf("cannot confirm: the files of the change of %s at %s (%s) are gone from %s; see that this folder can be read, and confirm it then, before %s",
			p.Who, p.Time.Format(time.TimeOnly), p.What, h.dir, p.Until.Format(time.TimeOnly))}
	}
	if list, err := h.States(); err == nil && len(list) > 0 {
		st := list[0]
		if len(st.Again) > 0 {
			st = st.Again[0]
		}
		if what, ok := strings.CutPrefix(st.What, putBackWords); ok {
			return &refusal{line: fmt.Sprintf("cannot confirm: the change of %s (%s) was not confirmed, and was put back at %s; see 'bascule apply --history'",
				st.Who, what, st.Time.Local().Format(time.DateTime))}
		}
	}
	return &refusal{line: "cannot confirm: no change waits for it; see 'bascule apply --history'"}
}

// Back applies the state that was applied n states ago. With 0 it applies the last kept state, which undoes later
// changes by commands. With 1, a change that waits for its confirmation is put back at once. Back leaves bridges alone
// that no apply since then has changed.
func (h *History) Back(n int, o Options) (actions []config.Action, warnings []string, err error) {
	if p, err := h.Pending(); err != nil {
		return nil, nil, err
	} else if p != nil {
		return h.backAtOnce(n, o)
	}
	return h.apply(func() (f config.File, of State, err error) {
		list, err := h.States()
		switch {
		case err != nil:
			return f, of, err
		case len(list) == 0:
			return f, of, &refusal{line: "cannot go back: no state is kept; apply a file first"}
		case n >= len(list):
			return f, of, &refusal{line: fmt.Sprintf("cannot go back by %d: states are kept from 0 to %d; see 'bascule apply --history'", n, len(list)-1)}
		}
		var about []string
		for _, st := range list[:n+1] {
			about = append(about, st.Bridges...)
		}
		slices.Sort(about)
		whole, _, err := list[n].file()
		if err != nil {
			return f, of, err
		}
		f, err = h.target(whole, slices.Compact(about))
		return f, list[n], err
	}, o)
}

// backAtOnce puts back the change that waits for its confirmation, at once.
func (h *History) backAtOnce(n int, o Options) (actions []config.Action, warnings []string, err error) {
	unlock, err := h.s.LockPlans()
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	p, err := h.Pending()
	switch {
	case err != nil:
		return nil, nil, err
	case p == nil:
		return nil, nil, &refusal{line: "cannot go back: the change that waited has been confirmed, or put back; see 'bascule apply --history'"}
	case n != 1 || o.Confirm > 0:
		return nil, nil, h.waitsError(p)
	case o.Who.User != p.User && !o.Yes && !o.DryRun && !p.Overdue():
		return nil, nil, &refusal{line: fmt.Sprintf("cannot go back: the change at %s (%s) was made by %s, and waits to be confirmed until %s; let them put it back, or give --yes",
			p.Time.Format(time.TimeOnly), p.What, p.Who, p.Until.Format(time.TimeOnly))}
	}
	before, err := h.before(p)
	if err != nil {
		return nil, nil, err
	}
	f, err := h.target(before, p.Bridges)
	if err != nil {
		return nil, nil, err
	}
	plan := o.Options
	plan.DryRun = true // only to list the actions
	if actions, _, warnings, err = config.Restore(h.s, f, plan); err != nil || o.DryRun {
		return actions, warnings, err
	}
	warnings, err = h.putBack(p)
	return actions, warnings, err
}
