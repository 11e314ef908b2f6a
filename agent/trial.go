// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"slices"

	"bascule/config"
)

// Changes that wait to be confirmed, of the agent's files or of commands. The agent puts back
// what nobody confirms, unless the process has done so that waits for it. From then on its files
// are not in force, until they change.

// tryEnds reports whether the files have to be looked at again, since a change has to be put
// back, or waits no more.
func (a *agent) tryEnds() bool {
	for _, s := range a.sites {
		waits := s.history.Waits()
		if s.trial && !waits {
			return true
		}
		if !waits {
			continue
		}
		if p, err := s.history.Pending(); err == nil && p != nil && p.Overdue() {
			return true
		}
	}
	return false
}

// followHistory has hot-plug try devices again that a state of before has thrown off its bridges,
// since they have come after it.
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
		s.plug.Again(back.Of)
	}
}

// putBack puts a change back that nobody has confirmed in time.
func (s *site) putBack() {
	p, warnings, err := s.history.Settle()
	for _, w := range warnings {
		s.log.Warn(w)
	}
	switch {
	case err != nil:
		s.log.Error("a change that was not confirmed cannot be put back, which is tried again", "error", err)
	case p != nil:
		s.log.Warn(p.PutBack())
	}
}

// keepGood has the next agent know which files are in force for good.
func (s *site) keepGood(f config.File) {
	if err := s.history.KeepGood(f); err != nil {
		s.log.Warn("the files are not kept for an agent that starts after a put-back", "error", err)
	}
}

// instead returns what holds in the place of files that were put back: the files of before, or without
// these the last state that was applied. Bridges of that state which are not there are made, as the
// machine has been restarted then.
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
	names, err := s.sw.Names()
	if err != nil {
		return f, err
	}
	lost := config.File{Path: f.Path}
	for _, b := range f.Bridges {
		if !slices.Contains(names, b.Name) {
			lost.Bridges = append(lost.Bridges, b)
		}
	}
	if len(lost.Bridges) == 0 {
		return holds, nil
	}
	_, warnings, err := config.Apply(s.sw, lost, config.Options{Yes: true})
	for _, w := range warnings {
		s.log.Warn(w)
	}
	return holds, err
}
