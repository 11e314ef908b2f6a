// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"slices"
	"time"

	"bascule/agent/hotplug"
	"bascule/config"
)

// Changes, of the agent's files or of commands, that wait for their confirmation. The agent puts back a change that is
// not confirmed in time, unless the process that waits for the change has done so. Files that were put back are not in
// force until they change.

// endTrials puts back the changes whose time is over. If the agent's files were applied while a change waited, they are
// applied again. Otherwise they are left alone, so that manual changes since their last application remain.
func (a *agent) endTrials() {
	var overdue []*site
	for _, s := range a.sites {
		waits, late := s.history.Waits(), false
		if waits {
			p, err := s.history.Pending()
			late = err == nil && p != nil && p.Overdue()
		}
		switch {
		case s.trial && (!waits || late):
			a.reload(Reload{}, nil)
			return
		case late:
			overdue = append(overdue, s)
		}
	}
	if len(overdue) == 0 || !a.job.IsZero() {
		return
	}
	a.job = time.Now()
	go func() {
		for _, s := range overdue {
			s.putBack()
		}
		a.post(func() {
			a.job = time.Time{}
			a.nextJob()
		})
	}()
}

// followHistory makes hot-plug retry devices after a return to an earlier state. The return has removed devices from
// bridges that were added after that state.
func (s *site) followHistory() {
	changed := s.history.Changed()
	if changed.Equal(s.changed) {
		return
	}
	s.changed = changed
	back := s.history.Returned()
	if back.At.Equal(s.returned) {
		return
	}
	s.returned = back.At
	if s.plug != nil {
		s.plug.Again(hotplug.Restored{Of: back.Of, Ports: back.Ports})
	}
}

// putBack puts back a change that was not confirmed in time.
func (s *site) putBack() {
	p, warnings, err := s.history.Settle()
	for _, w := range warnings {
		s.log.Warn(w)
	}
	switch {
	case err != nil:
		s.log.Error("cannot put back a change that was not confirmed; trying again", "error", err)
	case p != nil:
		s.log.Warn(p.PutBack())
	}
}

// keepGood stores for the next agent which files are in force for good.
func (s *site) keepGood(f config.File) {
	if err := s.history.KeepGood(f); err != nil {
		s.log.Warn("cannot save the files for an agent that starts after a put-back", "error", err)
	}
}

// instead returns what is in force instead of files that were put back: the files before, or without these the last
// state that was applied. Missing bridges of that state are made, since the machine has been restarted then.
func (s *site) instead() (config.File, error) {
	if s.good != nil {
		return *s.good, nil
	}
	f, err := s.history.Last()
	if err != nil {
		return f, err
	}
	holds := f
	if good := s.history.Good(); good != nil {
		holds = *good
	}
	_, err = s.remake(f)
	return holds, err
}

// holdFormer keeps the previous agent's files in force if the files of a starting agent cannot be: one mistake in a
// file must not keep guests, or the host's own uplink, off the switch. After a restart of the machine it makes their
// bridges as they were last applied.
func (s *site) holdFormer(r *result) {
	good := s.history.Good()
	if s.good != nil || good == nil {
		return
	}
	r.files[s.cookie], r.former[s.cookie] = *good, true
	s.log.Warn("the files cannot be put in force; until they can, devices become ports by the former files")
	if s.history.Waits() { // the waiting change may have removed bridges
		return
	}
	last, err := s.history.Last()
	last.Bridges = slices.DeleteFunc(last.Bridges, func(b config.Bridge) bool {
		return !slices.ContainsFunc(good.Bridges, func(g config.Bridge) bool { return g.Name == b.Name })
	})
	var made []string
	if err == nil {
		made, err = s.remake(last)
	}
	if err != nil {
		s.log.Error("bridges of the former files cannot be created", "error", err)
	}
	for _, name := range made {
		s.log.Warn("the bridge is created as it was last applied", "bridge", name)
	}
}

// remake makes the missing bridges of a state, and returns their names.
func (s *site) remake(f config.File) (made []string, err error) {
	names, err := s.sw.Names()
	if err != nil {
		return nil, err
	}
	lost := config.File{Path: f.Path}
	for _, b := range f.Bridges {
		if !slices.Contains(names, b.Name) {
			lost.Bridges = append(lost.Bridges, b)
			made = append(made, b.Name)
		}
	}
	if len(lost.Bridges) == 0 {
		return nil, nil
	}
	_, warnings, err := config.Apply(s.sw, lost, config.Options{Yes: true})
	for _, w := range warnings {
		s.log.Warn(w)
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}
