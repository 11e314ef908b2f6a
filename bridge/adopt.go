// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"

	"bascule/datapath"
)

// Telling has f called with what a change has to say beside the answer to its request: that
// it has taken over a bridge that another version of bascule made, and what of it.
func Telling(f func(bridge, note string)) Option { return func(s *Switch) { s.tell = f } }

// adopt takes over a bridge of a former layout, which store.Open has returned with its
// error. The notes say what was lost.
func adopt(name string, b *datapath.Bridge) (notes []string, err error) {
	what := "take over bridge " + name
	killed := b.Dirty()
	next, lost, err := b.Adopt()
	if err != nil {
		return nil, failed(what, err)
	}
	for _, l := range lost {
		notes = append(notes, "this version does not have "+l+": it is lost")
	}
	c := newDraft(next)
	c.reload, c.recompile, c.unmended = true, true, killed
	if err = c.planned(what, func(*draft) error { return nil }); err == nil {
		err = c.make(what)
	}
	notes = append(notes, c.warnings...)
	return notes, errors.Join(err, next.Abandon())
}

// adopted takes over a bridge that store.Open has returned with an error, and opens it. It
// returns nil if the bridge stays as it is: its layout has no record, or something is
// in the way. That is an error of commands about the bridge, and of no others.
func (s *Switch) adopted(store *datapath.Store, name string, b *datapath.Bridge, former error) (*datapath.Bridge, error) {
	var is *datapath.FormerError
	if !errors.As(former, &is) || is.Err != nil {
		return nil, nil
	}
	notes, err := adopt(name, b)
	now, reopened := store.Open(name)
	if reopened != nil {
		store.Kept[name] = err
		return nil, nil
	}
	// If the work is not finished, mend goes on with it.
	s.say(name, fmt.Sprintf("another version of bascule has made it; it has this version's programs and tables now (layout %d, before %d)",
		datapath.Layout, is.Layout))
	for _, l := range notes {
		s.say(name, l)
	}
	return now, nil
}

func (s *Switch) say(bridge, note string) {
	if s.tell != nil {
		s.tell(bridge, note)
	}
}

// notRead is the error of a command about a bridge of another layout.
func notRead(store *datapath.Store, what, name string, err error) error {
	var former *datapath.FormerError
	switch {
	case store.Kept[name] != nil: // this command has tried
		err = store.Kept[name]
	case errors.As(err, &former) && former.Err == nil:
		return because(refused(what, err.Error(), "'bascule bridge set "+name+"' takes it over, as every change and the agent do"), err)
	}
	return because(refused(what, err.Error(), "use that version, or delete it with 'bascule bridge del "+name+"' and add it again"), err)
}
