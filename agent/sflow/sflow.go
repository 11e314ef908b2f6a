// SPDX-License-Identifier: BSD-2-Clause

// Package sflow sends data about the agent's bridges to a collector, by sFlow version 5:
// samples of incoming frames, dropped frames with the reason, and the counters of ports.
// The datapath takes the samples. It does not wait for the agent, and the agent does not
// wait for the collector.
package sflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"bascule/agent"
	"bascule/bridge"
)

// A reader has the methods of a switch that sampling needs.
type reader interface {
	Names() ([]string, error)
	Ports(bridge string) ([]bridge.Port, error)
	Sample(bridge string, o bridge.SampleOptions) (*bridge.Sampler, error)
	Cookie() (uint64, error)
	LinkSettings(devices []string) ([]bridge.LinkSettings, error)
}

// A sampler has the samples of a bridge; *bridge.Sampler implements it.
type sampler interface {
	Read() (bridge.Sampled, error)
	Counts(index uint32) (frames, drops uint64, err error)
	Close() error
}

// How often samples are read, how often while there are many, and how often the list of
// bridges is read. The datapath keeps 256 samples of each bridge, so some 25 000 a second
// can be read.
const (
	readPeriod = 100 * time.Millisecond
	busyPeriod = 10 * time.Millisecond
	lookPeriod = time.Second
	busy       = 64
)

// sayPeriod is the time without a refusal by the collector's host after which a refusal is
// logged again.
const sayPeriod = time.Minute

// The counts of sent datagrams and samples.
type told struct {
	Datagrams, Flows, Discards, Counters, Missed atomic.Uint64
}

// Service returns a function that sends samples until ctx ends, and then ends the sampling,
// and a function that returns its status.
func (o Options) Service() (run agent.Service, status func() agent.SFlowStatus) {
	stats := &told{}
	status = func() agent.SFlowStatus {
		return agent.SFlowStatus{
			Collector: o.Collector.String(), Rate: o.Rate, Datagrams: stats.Datagrams.Load(), Flows: stats.Flows.Load(),
			Discards: stats.Discards.Load(), Counters: stats.Counters.Load(), Missed: stats.Missed.Load(),
		}
	}
	return o.service(stats), status
}

func (o Options) service(stats *told) agent.Service {
	return func(ctx context.Context, v *agent.View) error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(o.Collector))
		if err != nil {
			return fmt.Errorf("send samples to %s: %w", o.Collector, err)
		}
		defer conn.Close()
		if !o.Agent.IsValid() {
			o.Agent = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
		}
		v.Log().Info("samples of frames are sent", "collector", o.Collector.String(), "rate", o.Rate)
		e := newExporter(o, conn, v.Log())
		e.stats = stats
		defer e.close()
		for {
			now := time.Now()
			if now.Sub(e.looked) >= lookPeriod {
				e.looked = now
				places, err := v.Places(ctx)
				if err != nil {
					return err
				}
				list := map[place]reader{}
				for _, p := range places {
					list[place(p.Netns)] = p.Switch
				}
				e.look(list)
			}
			period := readPeriod
			if e.turn(now) {
				period = busyPeriod
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(period):
			}
		}
	}
}

// A place is a network namespace, as the agent's files name it.
type place string

// A source is a port in a namespace: sFlow has sequence numbers and counts for each.
type source struct {
	sub, index uint32
}

// A sequence has the sequence numbers and counts of a source.
type sequence struct {
	flows, discards, counters uint32
	missed                    uint32 // samples that came too fast to be read
	untold                    uint32 // drops that were not reported
	dropped                   uint64 // the port's count of drops when drops were last reported
}

// A site is a sampled bridge.
type site struct {
	place  place
	bridge string
	sub    uint32
	from   sampler
	missed uint64 // missed samples that were not reported yet

	second time.Time // start of the second in which drops are counted
	told   uint32    // drops that were reported since
}

// An exporter makes datagrams from samples.
type exporter struct {
	o      Options
	stats  *told
	to     interface{ Write([]byte) (int, error) }
	log    *slog.Logger
	began  time.Time
	looked time.Time

	sites     map[place]map[string]*site
	readers   map[place]reader
	subs      map[place]uint32
	datagrams map[uint32]uint32 // their number, by sub-agent
	sequences map[source]*sequence
	polled    map[source]time.Time // when the counters are due next
	said      map[string]string    // the last message that was logged, by subject
	refused   time.Time            // the last time when the collector's host refused a datagram

	sub     uint32 // of the datagram in progress
	samples uint32
	data    buffer // its samples
}

func newExporter(o Options, to interface{ Write([]byte) (int, error) }, log *slog.Logger) *exporter {
	return &exporter{
		o: o, stats: &told{}, to: to, log: log, began: time.Now(), sites: map[place]map[string]*site{}, readers: map[place]reader{},
		subs: map[place]uint32{}, datagrams: map[uint32]uint32{}, sequences: map[source]*sequence{},
		polled: map[source]time.Time{}, said: map[string]string{},
	}
}

// say logs an error once, until another error replaces it or it is over.
func (e *exporter) say(about string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != e.said[about] && err != nil {
		e.log.Warn("sFlow: "+about, "error", err)
	}
	e.said[about] = text
}

// look starts the sampling of new bridges, and forgets bridges that have gone.
func (e *exporter) look(list map[place]reader) {
	for where, sites := range e.sites {
		if list[where] == nil {
			for name, s := range sites {
				e.drop(s, name)
			}
			delete(e.sites, where)
			delete(e.readers, where)
			delete(e.subs, where)
		}
	}
	for where, sw := range list {
		names, err := sw.Names()
		e.say("the bridges of namespace '"+string(where)+"' cannot be listed", err)
		if err != nil {
			continue
		}
		if e.sites[where] == nil {
			e.sites[where], e.readers[where], e.subs[where] = map[string]*site{}, sw, e.o.SubAgent
			if where != "" { // a number that stays the same as long as the namespace exists
				cookie, err := sw.Cookie()
				if err != nil {
					continue
				}
				e.subs[where] += uint32(cookie)
			}
		}
		for _, name := range names {
			if e.sites[where][name] != nil {
				continue
			}
			from, err := sw.Sample(name, bridge.SampleOptions{Rate: e.o.Rate, Drops: e.o.Drops})
			e.say("bridge "+name+" is not sampled", err)
			if err == nil {
				e.sites[where][name] = &site{place: where, bridge: name, sub: e.subs[where], from: from}
			}
		}
	}
}

// drop ends the sampling of a bridge.
func (e *exporter) drop(s *site, name string) {
	delete(e.sites[s.place], name)
	if err := s.from.Close(); err != nil {
		e.log.Warn("sFlow: cannot end the sampling of a bridge", "bridge", name, "error", err)
	}
}

// close ends all sampling.
func (e *exporter) close() {
	for _, sites := range e.sites {
		for name, s := range sites {
			e.drop(s, name)
		}
	}
}

// turn reads and sends samples, and reports whether there were many.
func (e *exporter) turn(now time.Time) (much bool) {
	for _, sites := range e.sites {
		for name, s := range sites {
			d, err := s.from.Read()
			if errors.Is(err, fs.ErrNotExist) {
				e.drop(s, name)
				continue
			}
			e.say("the samples of bridge "+name+" cannot be read", err)
			if err != nil {
				continue
			}
			much = much || len(d.Flows)+len(d.Drops) >= busy
			e.tell(s, d, now)
		}
	}
	if e.o.Polling > 0 {
		e.poll(now)
	}
	e.flush()
	return much
}

func (e *exporter) sequence(of source) *sequence {
	s := e.sequences[of]
	if s == nil {
		s = &sequence{}
		e.sequences[of] = s
	}
	return s
}

// Sends the samples of a bridge. The next sample reports missed samples, on whichever port
// it is: the ports of missed samples are not known.
func (e *exporter) tell(s *site, d bridge.Sampled, now time.Time) {
	s.missed += d.Missed
	e.stats.Missed.Add(d.Missed)
	e.stats.Flows.Add(uint64(len(d.Flows)))
	type counts struct{ frames, drops uint64 }
	known := map[uint32]counts{}
	count := func(index uint32) counts {
		c, ok := known[index]
		if !ok {
			var err error
			c.frames, c.drops, err = s.from.Counts(index)
			e.say("the counters of bridge "+s.bridge+" cannot be read", err)
			known[index] = c
		}
		return c
	}
	for _, f := range d.Flows {
		seq := e.sequence(source{s.sub, f.In})
		seq.flows++
		seq.missed += uint32(s.missed)
		s.missed = 0
		pool := uint32(count(f.In).frames)
		e.add(s.sub, func(b *buffer) { b.flow(f, seq.flows, e.o.Rate, pool, seq.missed) })
	}
	if now.Sub(s.second) >= time.Second {
		s.second, s.told = now, 0
	}
	// drops that the port had counted before were reported by now, or never will be
	last := map[uint32]uint32{}
	for _, f := range d.Drops[:min(len(d.Drops), int(e.o.Drops-s.told))] {
		last[f.In]++
	}
	for index, n := range last {
		count(index)
		seq := e.sequence(source{s.sub, index})
		if told := uint64(seq.discards + n); seq.dropped > told {
			seq.untold = max(seq.untold, uint32(seq.dropped-told))
		}
	}
	for _, f := range d.Drops {
		if s.told >= e.o.Drops {
			break // the port's counters include the others
		}
		s.told++
		seq := e.sequence(source{s.sub, f.In})
		seq.discards++
		e.stats.Discards.Add(1)
		e.add(s.sub, func(b *buffer) { b.discard(f, seq.discards, seq.untold) })
	}
	for index, c := range known {
		e.sequence(source{s.sub, index}).dropped = c.drops
	}
}

// poll sends the counters of ports that are due. The first samples of ports are spread over
// the period, so that not all are due at once (sFlow version 5, section 4.2.3).
func (e *exporter) poll(now time.Time) {
	if due, ok := e.polled[source{}]; ok && now.Before(due) {
		return
	}
	e.polled[source{}] = now.Add(min(lookPeriod, e.o.Polling))
	for where, sites := range e.sites {
		sub := e.subs[where]
		ports, err := e.readers[where].Ports("")
		e.say("the ports of namespace '"+string(where)+"' cannot be read", err)
		var turn []bridge.Port // the ports that are due
		var names []string
		for i, p := range ports {
			if sites[p.Bridge] == nil || p.Type == bridge.TypeSpan {
				continue
			}
			index := uint32(p.Index)
			if index == 0 {
				continue
			}
			of := source{sub, index}
			due, ok := e.polled[of]
			if !ok {
				due = now.Add(e.o.Polling * time.Duration(i%16) / 16)
				e.polled[of] = due
			}
			if now.Before(due) {
				continue
			}
			e.polled[of] = due.Add(e.o.Polling)
			if e.polled[of].Before(now) {
				e.polled[of] = now.Add(e.o.Polling)
			}
			turn = append(turn, p)
			names = append(names, p.Name)
		}
		if len(turn) == 0 {
			continue
		}
		links, err := e.readers[where].LinkSettings(names)
		e.say("the links of namespace '"+string(where)+"' cannot be read", err)
		if err != nil {
			links = make([]bridge.LinkSettings, len(turn))
		}
		for i, p := range turn {
			index := uint32(p.Index)
			seq := e.sequence(source{sub, index})
			seq.counters++
			e.stats.Counters.Add(1)
			e.add(sub, func(b *buffer) { b.counters(p, links[i], index, seq.counters) })
		}
	}
}

// add appends a sample to a datagram.
func (e *exporter) add(sub uint32, f func(*buffer)) {
	before := len(e.data)
	if e.samples > 0 && e.sub != sub {
		e.flush()
		before = 0
	}
	e.sub = sub
	f(&e.data)
	if e.samples > 0 && len(e.data)+headRoom > mostDatagram {
		last := append(buffer{}, e.data[before:]...)
		e.data = e.data[:before]
		e.flush()
		e.data = last
	}
	e.samples++
}

// headRoom is the largest size of a datagram's beginning, in bytes.
const headRoom = 40

// flush sends the datagram in progress.
func (e *exporter) flush() {
	if e.samples == 0 {
		return
	}
	e.datagrams[e.sub]++
	e.stats.Datagrams.Add(1)
	var b buffer
	b.head(e.o.Agent, e.sub, e.datagrams[e.sub], uint32(time.Since(e.began).Milliseconds()))
	b = binary.BigEndian.AppendUint32(b, e.samples)
	b = append(b, e.data...)
	e.data, e.samples = e.data[:0], 0
	// without a collector, or with a full queue, the datagram is lost, as the sequence
	// numbers show
	_, err := e.to.Write(b)
	if errors.Is(err, syscall.ECONNREFUSED) { // the error is about the previous datagram, and this one was not sent
		if time.Since(e.refused) > sayPeriod {
			e.log.Warn("sFlow: cannot send the samples", "collector", e.o.Collector.String(), "error", err)
		}
		e.refused = time.Now()
		_, err = e.to.Write(b)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		e.say("samples cannot be sent to "+e.o.Collector.String(), err)
	}
}
