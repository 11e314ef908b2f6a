// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"

	"bascule/datapath"
)

// Telling sets the function that receives notes about a change, which are not part of the answer to
// its request: that a change has taken over a bridge of another version of bascule, and what that
// bridge has lost.
func Telling(f func(bridge, note string)) Option { return func(s *Switch) { s.tell = f } }

// adopt takes over a bridge of a former layout, for which store.Open has returned an error. The
// notes list what was lost.
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

// adopted takes over a bridge for which store.Open has returned an error, and opens it. It returns
// nil if the bridge stays as it is, because its layout has no record or something prevents the
// change. Only commands about that bridge fail then.
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
	// If the work is not finished, mend continues it.
	s.say(name, fmt.Sprintf("another version of bascule has made it; it has this version's programs and tables now (layout %d, before %d)",
		datapath.Layout, is.Layout))
	for _, l := range notes {
		s.say(name, l)
	}
	return now, nil
}

func (s *Switch) say(bridge, note string) {
	if s.tell != nil {
		s.outside.call(func() { s.tell(bridge, note) })
	}
}

// notRead returns the error of a command about a bridge of another layout.
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
