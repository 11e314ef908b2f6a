// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"log/slog"
	"maps"
	"time"

	"bascule/bridge"
)

// A reporter counts the events of a bridge, and logs events that an administrator
// should see.
//
// The datapath keeps the last 4096 events, and does not wait for a reader. The
// reporter reads them every reportPeriod, and more often while there are many.
// Events that were overwritten before that are counted as missed.
type reporter struct {
	events *bridge.Events
	log    *slog.Logger

	counts map[string]uint64
	missed uint64
	merged uint64
	said   map[saying]*said
}

// How often events are read, and the number of events in one read above which the
// next read comes sooner: with that, some 200 000 events a second can be read.
// Waking up is most of the cost of an idle agent.
const (
	reportPeriod = 250 * time.Millisecond
	busyPeriod   = 20 * time.Millisecond
	busyEvents   = 256
)

// sayPeriod is the first period in which a repeated event of a port is not logged
// again. While the event goes on, each period is twice as long as the last, up to
// longestPeriod.
const (
	sayPeriod     = time.Second
	longestPeriod = time.Minute
)

// mostSaid is the number of messages that are kept, without the messages of the
// last minute.
const mostSaid = 1024

// A saying identifies a message about a port.
type saying struct {
	kind, reason, port string
	own                bool
}

type said struct {
	next   time.Time     // time from which it may be logged again
	period time.Duration // time from its last logging until next
	held   uint64        // how often it was not logged since then
	last   func()        // logs the last message that was held, with their number
}

func newReporter(events *bridge.Events, log *slog.Logger) *reporter {
	return &reporter{events: events, log: log, counts: map[string]uint64{}, said: map[saying]*said{}}
}

// read reads events, and reports whether there were many.
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
		w.say(saying{kind: "missed"}, now, time.Minute, d.Missed, "events came faster than they were read; forwarding is not affected")
	}
	for _, s := range w.said {
		if s.held > 0 && !now.Before(s.next) { // the event has ceased, but its last message was held
			s.tell(now)
		}
	}
	return sum+d.Missed >= busyEvents
}

// Logs an event of a port.
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

// say logs an event that has happened n times, unless it was logged within the last
// period. The period grows while the event goes on.
func (w *reporter) say(key saying, now time.Time, period time.Duration, n uint64, msg string, args ...any) {
	s := w.said[key]
	if s == nil {
		s = &said{}
		w.said[key] = s
	}
	s.held += n
	s.last = func() { w.log.Warn(msg, append(args, "count", s.held)...) }
	if len(w.said) > mostSaid { // forgets old messages: ports come and go
		maps.DeleteFunc(w.said, func(_ saying, s *said) bool { return s.held == 0 && now.Sub(s.next) > time.Minute })
	}
	if now.Before(s.next) {
		return
	}
	if s.period == 0 || now.Sub(s.next) >= s.period { // the event had ceased
		s.period = period
	} else {
		s.period = min(2*s.period, max(period, longestPeriod))
	}
	s.tell(now)
}

// Logs the message that was held.
func (s *said) tell(now time.Time) {
	s.last()
	s.next, s.held = now.Add(s.period), 0
}

// close ends the reporter.
func (w *reporter) close() { w.events.Close() }

// status returns the counts of the reporter.
func (w *reporter) status() EventStatus {
	return EventStatus{Counts: maps.Clone(w.counts), Missed: w.missed, Merged: w.merged}
}
