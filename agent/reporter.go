// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"log/slog"
	"maps"
	"time"

	"bascule/bridge"
)

// A reporter counts what happens on a bridge and logs what somebody should see.
//
// The datapath keeps the last 4096 events and waits for nobody. They are read
// every reportPeriod, more often while there are many; what was overwritten
// before that is counted as missed.
type reporter struct {
	events *bridge.Events
	log    *slog.Logger

	counts map[string]uint64
	missed uint64
	merged uint64
	said   map[saying]*said
}

// How often events are read, and how many at once call for reading them more
// often: with that, some 200 000 a second can be read. Waking up is most of the
// cost of an idle agent.
const (
	reportPeriod = 250 * time.Millisecond
	busyPeriod   = 20 * time.Millisecond
	busyEvents   = 256
)

// sayPeriod is how long nothing more is logged of something that has happened to a
// port, at first. Where it goes on that is twice as long each time, up to
// longestPeriod.
const (
	sayPeriod     = time.Second
	longestPeriod = time.Minute
)

// mostSaid is how many messages are kept, not counting those of the last
// minute.
const mostSaid = 1024

// A saying is something that is logged of a port.
type saying struct {
	kind, reason, port string
	own                bool
}

type said struct {
	next   time.Time     // when it may be logged again
	period time.Duration // how long that is after it was logged
	held   uint64        // times that it was not logged since
	last   func()        // logs the last of those, with their number
}

func newReporter(events *bridge.Events, log *slog.Logger) *reporter {
	return &reporter{events: events, log: log, counts: map[string]uint64{}, said: map[saying]*said{}}
}

// read reads what has happened, and reports whether that was much.
func (w *reporter) read(now time.Time) (busy bool, err error) {
	d, err := w.events.Read()
	if err != nil {
		return false, err
	}
	return w.digest(d, now), nil
}

func (w *reporter) digest(d bridge.Digest, now time.Time) (busy bool) {
	var sum uint64
	for kind, n := range d.Counts {
		w.counts[kind] += n
		sum += n
	}
	w.missed += d.Missed
	w.merged += d.Merged
	for _, e := range d.Notable {
		w.tell(e, now)
	}
	if d.Missed > 0 {
		w.say(saying{kind: "missed"}, now, time.Minute, d.Missed, "events came faster than they are read; forwarding is not concerned")
	}
	for _, s := range w.said {
		if s.held > 0 && !now.Before(s.next) { // it has ceased, but not without a word of the last
			s.tell(now)
		}
	}
	return sum+d.Missed >= busyEvents
}

// tell logs an event of a port.
func (w *reporter) tell(e bridge.Event, now time.Time) {
	var args []any
	if e.Port != "" {
		args = append(args, "port", e.Port)
	}
	if e.Own {
		args = append(args, "host", e.From)
	} else if e.From != "" {
		args = append(args, "from", e.From)
	}
	if e.MAC != nil {
		args = append(args, "mac", e.MAC.String())
	}
	if e.VLAN != 0 {
		args = append(args, "vlan", e.VLAN)
	}
	if e.Reason != "" && !e.Own {
		args = append(args, "reason", e.Reason)
	}
	if e.For != 0 {
		args = append(args, "for", e.For)
	}
	what := map[string]string{
		"loop":    "a loop: a frame of the switch has come back",
		"blocked": "a port is blocked by its loop guard",
		"refused": "an address is not learned or moved",
		"locked":  "a locked port does not let an address in",
	}[e.Kind]
	if what == "" {
		what = e.Kind
	}
	if e.Own {
		what = "frames of a host port's own address come in by another port: a loop?"
	}
	w.say(saying{e.Kind, e.Reason, e.Port, e.Own}, now, sayPeriod, e.Count, what, args...)
}

// say logs something that has happened n times, if it is not too soon: not within a
// period after the last time, which grows while it goes on.
func (w *reporter) say(key saying, now time.Time, period time.Duration, n uint64, msg string, args ...any) {
	s := w.said[key]
	if s == nil {
		s = &said{}
		w.said[key] = s
	}
	s.held += n
	s.last = func() { w.log.Warn(msg, append(args, "count", s.held)...) }
	if len(w.said) > mostSaid { // ports come and go
		maps.DeleteFunc(w.said, func(_ saying, s *said) bool { return s.held == 0 && now.Sub(s.next) > time.Minute })
	}
	if now.Before(s.next) {
		return
	}
	if s.period == 0 || now.Sub(s.next) >= s.period { // it had ceased
		s.period = period
	} else {
		s.period = min(2*s.period, max(period, longestPeriod))
	}
	s.tell(now)
}

// tell logs the message that was held.
func (s *said) tell(now time.Time) {
	s.last()
	s.next, s.held = now.Add(s.period), 0
}

// close ends the report.
func (w *reporter) close() { w.events.Close() }

// status is what the reporter has counted.
func (w *reporter) status() EventStatus {
	return EventStatus{Counts: maps.Clone(w.counts), Missed: w.missed, Merged: w.merged}
}
