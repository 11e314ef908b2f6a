// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"bascule/datapath"
)

// Changes calls changed at once, and again each time that a bridge of the namespace may have been
// added, deleted or changed, until ctx ends. Changes during a call of changed lead to one more
// call. Changes does not poll: it costs nothing as long as nothing changes.
func (s *Switch) Changes(ctx context.Context, changed func()) error {
	var n *datapath.Notifier
	err := s.read(func(store *datapath.Store) (err error) {
		n, err = store.Notify()
		return err
	})
	if err != nil {
		return failed("follow the bridges", err)
	}
	stop := context.AfterFunc(ctx, func() { n.Close() })
	defer stop()
	for {
		changed()
		if err := n.Wait(); err != nil {
			if errors.Is(err, fs.ErrClosed) {
				return nil
			}
			n.Close()
			return failed("follow the bridges", err)
		}
	}
}

// Names returns the names of all bridges in order, including bridges of other versions of bascule.
func (s *Switch) Names() (names []string, err error) {
	err = s.read(func(store *datapath.Store) (err error) {
		names, err = store.Names()
		return failed("list the bridges", err)
	})
	return names, err
}

// Renew replaces the programs of another build in a bridge by this build's, as SetBridge without
// changes does. No frame is lost. renewed reports whether the bridge had another build's programs.
func (s *Switch) Renew(name string) (renewed bool, notes []string, err error) {
	err = s.each("renew bridge "+name, name, func(_ string, b *datapath.Bridge) error {
		renewed = !b.Ours()
		return nil
	})
	if former := new(datapath.FormerError); errors.As(err, &former) { // SetBridge takes such a bridge over
		renewed, err = true, nil
	}
	if err != nil || !renewed {
		return false, nil, err
	}
	notes, err = s.SetBridge(name, nil)
	return err == nil, notes, err
}

// Events counts the events of a bridge. It consumes no events of other readers. It reads at most as
// many events at a time as the kernel keeps.
type Events struct {
	s *Switch
	w *listener

	merged uint64 // the number of merged events at the last Read
}

// OpenEvents starts to count the events of a bridge.
func (s *Switch) OpenEvents(bridge string) (*Events, error) {
	e := &Events{s: s}
	err := s.each("follow bridge "+bridge, bridge, func(name string, b *datapath.Bridge) error {
		log, err := b.OpenLog()
		if err != nil {
			return err
		}
		e.w = &listener{name: name, log: log, names: map[uint32]string{}}
		e.w.adopt(b)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Close stops counting.
func (e *Events) Close() { e.w.log.Close() }

// Renew reads the bridge's present ports. same is false if the bridge was deleted, or is another
// one with the same name.
func (e *Events) Renew() (same bool, err error) {
	if e.w.bridge.Current() {
		return true, nil
	}
	err = e.s.each("follow bridge "+e.w.name, e.w.name, func(_ string, b *datapath.Bridge) error {
		if same = b.Config.HashSeed == e.w.bridge.Config.HashSeed; same {
			e.w.adopt(b)
		}
		return nil
	})
	return same, err
}

// A Digest has the events of a bridge during an interval. Every event of an address is in one of
// the three counts.
type Digest struct {
	Counts map[string]uint64 // events that were read, by the kinds of Event
	Missed uint64            // events lost because they came too fast
	Merged uint64            // repetitions of an event within a second, which have no events of their own

	// Notable are events that concern a port as a whole: refusals, loops and blocks. Events of
	// a kind and reason are merged into one event with a count.
	Notable []Event
}

// Read returns the events since the last call.
func (e *Events) Read() (d Digest, err error) {
	list, missed, err := e.w.log.Read()
	if err != nil {
		return Digest{}, err
	}
	d = e.w.digest(list, missed)
	d.Merged, e.merged = e.w.log.Merged()-e.merged, e.w.log.Merged()
	return d, nil
}

func (w *listener) digest(list []datapath.Event, missed uint64) Digest {
	d := Digest{Counts: map[string]uint64{}, Missed: missed}
	type kind struct {
		port uint32
		kind datapath.EventKind
		own  bool // most likely a loop; other events must not look like one
	}
	merged := map[kind]Event{}
	for _, event := range list {
		if name, plain := plainKinds[event.Kind]; plain {
			d.Counts[name]++
			continue
		}
		out := w.event(event)
		d.Counts[out.Kind]++
		k := kind{event.Port, event.Kind, out.Own}
		out.Count = merged[k].Count + max(out.Count, 1) // 1 for a blocked port
		merged[k] = out
	}
	for _, k := range slices.SortedFunc(maps.Keys(merged), func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.kind, b.kind), compareBool(a.own, b.own))
	}) {
		d.Notable = append(d.Notable, merged[k])
	}
	return d
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// plainKinds are the kinds of events that are about one address. Such events can be numerous.
var plainKinds = map[datapath.EventKind]string{
	datapath.EventLearned: "learned", datapath.EventMoved: "moved",
	datapath.EventAged: "aged", datapath.EventDeleted: "deleted",
	datapath.EventAdded: "added",
}
