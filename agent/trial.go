// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"slices"
	"strings"
	"time"

	"bascule/agent/hotplug"
	"bascule/config"
)

// Changes, of the agent's files or of commands, that wait for their confirmation. The agent puts back a change that is
// not confirmed in time, unless the process that waits for the change has done so. Files that were put back are not in
// force until they change.

// putBackRetry is the time after which the agent tries again to put a change back.
const putBackRetry = 5 * time.Second

// endTrials puts back the changes whose time is over. If the agent's files were tried while a change waited, they are
// tried once more when it has ended. Otherwise they are left alone, so that manual changes since their last application
// remain.
func (a *agent) endTrials() {
	if !a.job.IsZero() {
		return
	}
	now := time.Now()
	var overdue []*site
	for _, s := range a.sites {
		p, err := s.history.Waiting()
		switch {
		case err != nil: // it is not known whether a change waits
		case p == nil && s.trial:
			a.reload(Reload{}, nil)
			return
		case p != nil && p.Overdue() && now.After(s.backAt):
			s.backAt = now.Add(putBackRetry)
			overdue = append(overdue, s)
		}
	}
	if len(overdue) == 0 {
		return
	}
	a.job = now
	go func() {
		for _, s := range overdue {
			s.putBack()
		}
		a.post(func() {
			a.job = time.Time{}
			a.nextJob()
			a.endTrials() // hot-plug may have files that were put back
		})
	}()
}

// tellWaits logs that the files are not applied because of a change that waits for its confirmation.
func (s *site) tellWaits() {
	if p, err := s.history.Waiting(); err == nil && p != nil {
		s.log.Warn("a change waits to be confirmed; the agent leaves its bridges alone, and applies the files when the change is confirmed or put back",
			"bridges", strings.Join(p.Bridges, ","))
	}
}

// follow records which file hot-plug follows. While a change waits, the file may be put back. digest is not "" if the
// file is that change.
func (s *site) follow(f config.File, waits bool, digest string) {
	switch {
	case !waits:
		s.good, s.tried = &f, nil
	case !s.former:
		s.tried, s.digest = &f, digest
	}
}

// endTrial decides which file hot-plug follows after a change has ended, if the agent's files cannot be applied now:
// the file of the change if the change was confirmed, or else the file before.
func (s *site) endTrial() {
	f := s.tried
	if f == nil {
		return
	}
	s.tried = nil
	if s.digest == "" || !s.history.Denied(s.digest) {
		s.good = f
		s.keepGood(*f)
		return
	}
	if s.good == nil {
		s.good, s.former = s.history.Good(), true
	}
	if s.good != nil {
		s.setFile(*s.good, true, nil)
	}
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
	before := s.unback
	s.unback = ""
	switch {
	case err != nil:
		if s.unback = err.Error(); s.unback != before {
			s.log.Error("cannot put back a change that was not confirmed; trying again", "error", err)
		}
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

const formerNote = "the files cannot be put in force; until they can, devices become ports by the former files"

// holdFormer keeps the previous agent's files in force if the files of a starting agent cannot be: one mistake in a
// file must not keep guests, or the host's own uplink, off the switch. After a restart of the machine it makes their
// bridges as they were last applied. It does not touch what a waiting change has made of its bridges.
func (s *site) holdFormer(r *result) {
	good := s.history.Good()
	if s.good != nil || s.tried != nil || good == nil {
		return
	}
	p, err := s.history.Waiting()
	if p != nil || err != nil { // the change may have removed bridges, and ports
		if !s.former { // otherwise hot-plug has the files
			r.files[s.cookie], r.former[s.cookie], r.held[s.cookie] = *good, true, bridgesOf(*good)
			if p != nil {
				r.held[s.cookie] = p.Bridges
			}
			s.log.Warn(formerNote)
		}
		return
	}
	r.files[s.cookie], r.former[s.cookie] = *good, true
	s.log.Warn(formerNote)
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

// bridgesOf returns the names of a file's bridges.
func bridgesOf(f config.File) (list []string) {
	for _, b := range f.Bridges {
		list = append(list, b.Name)
	}
	return list
}
