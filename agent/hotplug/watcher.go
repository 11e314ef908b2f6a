// SPDX-License-Identifier: BSD-2-Clause

// Package hotplug attaches the devices of a network namespace to bridges as a file has it, when
// devices come, go, are renamed, and come back.
//
// A device whose name has a place in the file becomes a port as soon as the kernel reports the
// device. If a berth is ready for its pattern, that takes about a millisecond. If not, one edit
// of the bridge serves all devices that wait. A port that came by a pattern goes with its
// device. A port that the file names stays, shown as gone, until the device comes back. A
// renamed device moves to the place of its new name.
//
// A person's change of a bridge remains until the file is read again ([Watcher.SetFile]). A
// device that was removed with `bascule port del` stays out until then, until it is made anew,
// or until it gets a name that has another place.
package hotplug

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"bascule/bridge"
	"bascule/config"
)

// A Watcher attaches the devices of one network namespace to its bridges.
type Watcher struct {
	s      *bridge.Switch
	log    *slog.Logger
	berths int // number to keep ready for each pattern
	apply  func()
	berth  func(bridge string)
	listen func(*bridge.Switch) (*listener, error)

	mu    sync.Mutex
	file  *config.File // the next file, nil for none
	of    time.Time    // time of the state that was restored with file, zero if none was
	held  []string     // see Hold
	again []Restored   // see Again
	stats Stats
	wake  func() // interrupts a wait for events

	t *table // kept for the next Run if Run fails
	l *listener

	unlisted string // why the last list was incomplete, as last logged
}

// Stats count the actions of a watcher since it was made.
type Stats struct {
	Events   uint64 `json:"events"`   // of devices, addresses and default routes, as the kernel sent them
	Overruns uint64 `json:"overruns"` // how often events were lost, after which all devices were listed
	Attached uint64 `json:"attached"` // devices that became ports
	Berths   uint64 `json:"berths"`   // of these, through a berth
	Removed  uint64 `json:"removed"`  // ports that went with their devices, or because of a new name
	Refused  uint64 `json:"refused"`  // devices of the file that did not become ports
	Reloads  uint64 `json:"reloads"`  // bridges updated after a change of an address or a veth's other end
}

// New returns a watcher of the switch's namespace for the desired state f. It
// logs its changes and refusals to log.
func New(s *bridge.Switch, f config.File, log *slog.Logger) *Watcher {
	return &Watcher{
		s: s, log: log, berths: berths, apply: func() {}, berth: func(string) {}, listen: listen,
		file: &f, wake: func() {}, t: newTable(config.File{}),
	}
}

// OnArrival sets the function to call when a device has come for which the file has more than
// the port: it is a mirror or has a backup, or rules, bindings, entries or backups name it. Such
// a device needs an apply of the file. Call OnArrival before Run, which waits for f.
func (w *Watcher) OnArrival(f func()) { w.apply = f }

// Hold leaves bridges as they are until the next file: a change of them waits for its confirmation. Devices that exist
// and are not their ports stay out, and ports are not set up or down. Devices that come later become ports. Call Hold
// before Run.
func (w *Watcher) Hold(bridges []string) { w.held = bridges }

// OnBerth sets the function to call with the name of a bridge when a device has come to one of
// its berths. [bridge.Switch.Changes] does not report that. Call OnBerth before Run, which waits
// for f.
func (w *Watcher) OnBerth(f func(bridge string)) { w.berth = f }

// SetFile makes another file the desired state. Devices that were refused, or removed from a
// bridge by a person, are tried again. Ports that the new file does not have are removed by the
// apply of the file. SetFile does not wait.
func (w *Watcher) SetFile(f config.File) { w.setFile(f, time.Time{}) }

// RestoreFile makes a former file the desired state again, since a state of a time was restored.
// Devices that were there at that time stay as the state has them. It does not wait.
func (w *Watcher) RestoreFile(f config.File, of time.Time) { w.setFile(f, of) }

func (w *Watcher) setFile(f config.File, of time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.file, w.of = &f, of
	w.wake()
}

// A Restored is a former state of bridges that was restored.
type Restored struct {
	Of    time.Time // when the state was made
	Ports []string  // names of the ports that were removed since the state does not have them
}

// Again retries devices that a restored state has removed from their bridges because they came after
// it was made. It does not wait.
func (w *Watcher) Again(r Restored) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = append(w.again, r)
	w.wake()
}

// Stats returns the watcher's counts so far.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Watcher) count(f func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

// Work that can wait is done when no event has come for quiet, and after patience at the latest.
const (
	quiet    = 200 * time.Millisecond
	patience = 2 * time.Second
)

// berths is the number of berths to keep ready for each pattern.
const berths = 4

// retryPeriod is the time until all is listed again after a failure.
const retryPeriod = time.Second

// Run attaches devices until ctx ends, and begins with the devices that exist. It fails with
// ctx's error, or if it cannot receive events of devices. Failures of a device or a bridge are
// logged. Run may be called again after an error: it goes on with its file, and makes up for
// missed events.
func (w *Watcher) Run(ctx context.Context) error {
	l, err := w.listen(w.s)
	if err != nil {
		return err
	}
	defer l.close()
	w.l = l
	w.mu.Lock()
	w.wake = func() { _ = l.events.SetReadDeadline(time.Now()) } // a closed listener does not wait
	w.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wake()
	})()
	var rest chores
	list := time.Now()      // when to list all, zero for never
	var restored []Restored // the states from Again
	for ctx.Err() == nil {
		switch f, of := w.newFile(); {
		case f == nil:
		case of.IsZero():
			w.t.setFile(*f)
			w.t.hold(w.held)
			w.held, list = nil, time.Now()
		default:
			w.t.restoreFile(*f, of)
			list = time.Now()
		}
		if again := w.tryAgain(); len(again) > 0 {
			restored, list = append(restored, again...), time.Now()
		}
		if due(list) {
			for _, b := range w.t.bridges {
				rest.of(b)
			}
			if list, err = w.synchronise(); err != nil {
				return err
			}
			if list.IsZero() {
				for _, r := range restored {
					w.t.again(r)
				}
				restored = nil
			}
		}
		w.act(w.t.todo(), &rest)
		deadline := rest.deadline()
		if !w.mayWait(ctx, earlier(deadline, list)) {
			continue
		}
		n, err := l.next(w.t)
		w.count(func(s *Stats) { s.Events += uint64(n) })
		switch {
		case errors.Is(err, errOverrun):
			w.count(func(s *Stats) { s.Overruns++ })
			w.log.Warn("events of devices were lost; all devices are listed again")
			list = time.Now()
		case err != nil:
			return err
		case due(deadline):
			w.settle(rest)
			rest = chores{}
		}
	}
	return ctx.Err()
}

// due reports whether a time has come. The zero time never comes.
func due(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

// earlier returns the earlier of two times; the zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Chores are the work that waits for a quiet moment, by bridge: a new device would have to wait
// for it otherwise. The work of a bridge is done in one step.
type chores struct {
	bridges map[string]*chore
	since   time.Time
}

type chore struct {
	gone    []int // devices whose ports must be removed
	compare bool  // the ports must be compared with their devices
}

// of returns the chores of a bridge.
func (c *chores) of(bridge string) *chore {
	if c.bridges == nil {
		c.bridges, c.since = map[string]*chore{}, time.Now()
	}
	if c.bridges[bridge] == nil {
		c.bridges[bridge] = &chore{}
	}
	return c.bridges[bridge]
}

// deadline returns when the chores are due if no event comes until then, zero if there are none.
func (c *chores) deadline() time.Time {
	if c.bridges == nil {
		return time.Time{}
	}
	return time.Now().Add(min(quiet, max(0, patience-time.Since(c.since))))
}

// newFile returns the next file, nil for none. of is the time of the state that was restored with it,
// zero if none was.
func (w *Watcher) newFile() (f *config.File, of time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, of = w.file, w.of
	w.file = nil
	return f, of
}

// tryAgain returns the states from Again since the last call.
func (w *Watcher) tryAgain() []Restored {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.again
	w.again = nil
	return list
}

// mayWait sets how long to wait for events. It reports false if there is something else to do.
func (w *Watcher) mayWait(ctx context.Context, deadline time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil || len(w.again) > 0 || ctx.Err() != nil {
		return false
	}
	_ = w.l.events.SetReadDeadline(deadline) // if it fails, the read fails, too
	return true
}

// synchronise passes all devices and ports to the table. It returns when to do that again after
// a failure, zero for never.
func (w *Watcher) synchronise() (again time.Time, err error) {
	devices, err := w.l.devices()
	if errors.Is(err, errRestless) {
		return w.unable(err), nil
	}
	if err != nil {
		return again, err
	}
	var ports []bridge.Port
	var unread []string
	var trouble error
	for _, name := range w.t.bridges {
		list, err := w.s.Ports(name)
		if err == nil {
			ports = append(ports, list...)
			continue
		}
		if names, err := w.s.Names(); err == nil && !slices.Contains(names, name) {
			w.log.Warn("a bridge does not exist", "bridge", name)
			continue
		}
		unread, trouble = append(unread, name), errors.Join(trouble, err)
	}
	w.t.synchronise(devices, ports, unread...)
	if trouble == nil || w.unlisted == "" { // otherwise it was passed already
		w.t.addressed()
	}
	return w.unable(trouble), nil
}

// unable logs, once, why not all could be listed, and returns when to try again; never without
// an error.
func (w *Watcher) unable(err error) (again time.Time) {
	if err == nil {
		w.unlisted = ""
		return again
	}
	if why := err.Error(); why != w.unlisted {
		w.unlisted = why
		w.log.Warn("cannot list all devices and ports; trying again every second", "err", err)
	}
	return time.Now().Add(retryPeriod)
}

// act does urgent work at once, the fastest first. Work that can wait is added to rest.
func (w *Watcher) act(todo work, rest *chores) {
	slow := map[string][]attachment{}
	full := map[*place]bool{}
	for _, a := range todo.attach {
		if o := w.t.places.rival(a.name, a.place); o != nil {
			w.refused(a, fmt.Errorf("it matches %s of %s and %s of %s, but a device is a port of only one bridge; change one of the patterns", a.place.port.Name, a.place.bridge, o.port.Name, o.bridge))
			continue
		}
		if !a.place.up() && a.up { // before it forwards
			w.raise(a)
		}
		if full[a.place] || a.moves || !w.occupy(a) {
			full[a.place] = true
			slow[a.place.bridge] = append(slow[a.place.bridge], a)
		}
		rest.of(a.place.bridge)
	}
	for _, a := range todo.raise {
		w.raise(a)
	}
	for _, n := range todo.notes {
		w.log.Log(context.Background(), n.level, n.text, "device", n.device, "bridge", n.bridge, "why", n.why)
	}
	for name, gone := range todo.gone {
		c := rest.of(name)
		c.gone = append(c.gone, gone...)
	}
	for _, d := range todo.leave {
		w.leave(d)
	}
	for _, name := range w.t.bridges {
		if list := slow[name]; list != nil {
			c := rest.of(name)
			w.change(name, c.gone, list)
			c.gone = nil
		}
	}
	if todo.apply {
		w.apply()
	}
	if todo.pf {
		w.refreshPF()
	}
	for name, u := range todo.ports {
		if u == now {
			w.refresh(name)
			continue
		}
		rest.of(name).compare = true
	}
}

// settle does the work that waited for a quiet moment.
func (w *Watcher) settle(rest chores) {
	w.t.calm()
	for _, name := range w.t.bridges {
		c := rest.bridges[name]
		if c == nil {
			continue
		}
		w.tidy(name, c.gone)
		if c.compare {
			w.refresh(name)
		}
	}
}
