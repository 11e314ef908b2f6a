// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"time"
)

// A Stream is a series of numbered frames that an end sends at a steady pace while a test does
// something else.
type Stream struct {
	from *End
	dst  MAC
	src  MAC
	at   []*End
	sent []time.Time // by number
	got  map[*End]map[uint32]int
	stop chan struct{}
	done chan error
}

// An Arrival is the result of a stream at an end.
type Arrival struct {
	Sent  int
	Lost  int           // frames that never arrived
	Twice int           // frames that arrived more than once
	Gap   time.Duration // the longest time without an arrival, by the times of sending
}

// collectEvery is the number of frames between two reads of the receiving sockets.
const collectEvery = 64

// StartStream sends frames until Stop, one each period. Only the stream may read from the given
// ends meanwhile. They may belong to other labs.
func StartStream(from *End, dst, src MAC, period time.Duration, at ...*End) *Stream {
	s := &Stream{from: from, dst: dst, src: src, at: at, got: map[*End]map[uint32]int{}, stop: make(chan struct{}), done: make(chan error, 1)}
	for _, e := range at {
		s.got[e] = map[uint32]int{}
	}
	go func() { s.done <- s.run(period) }()
	return s
}

func (s *Stream) run(period time.Duration) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return nil
		case <-tick.C:
		}
		s.sent = append(s.sent, time.Now())
		if err := s.from.send(NewFrame(s.dst, s.src, uint32(len(s.sent)-1), minLen)); err != nil {
			return err
		}
		if len(s.sent)%collectEvery == 0 {
			if err := s.collect(); err != nil {
				return err
			}
		}
	}
}

// collect reads the frames that have arrived.
func (s *Stream) collect() error {
	var errs []error
	for _, e := range s.at {
		errs = append(errs, e.drain(), e.checkOverflow())
		for _, f := range e.inbox {
			if len(f) >= minLen && f.ethertype() == typeData && f.Src() == s.src {
				s.got[e][f.uint32(headerLen)]++
			}
		}
		e.inbox = nil
	}
	return errors.Join(errs...)
}

// Stop stops sending.
func (s *Stream) Stop() error {
	close(s.stop)
	return <-s.done
}

// Arrivals returns the frames of a stopped stream that have arrived by now.
func (s *Stream) Arrivals() (map[*End]Arrival, error) {
	if err := s.collect(); err != nil {
		return nil, err
	}
	arrivals := map[*End]Arrival{}
	for _, e := range s.at {
		a := Arrival{Sent: len(s.sent)}
		last := 0
		for n := range s.sent {
			switch times := s.got[e][uint32(n)]; {
			case times == 0:
				a.Lost++
				if n == len(s.sent)-1 {
					a.Gap = max(a.Gap, s.sent[n].Sub(s.sent[last]))
				}
				continue
			case times > 1:
				a.Twice++
			}
			if n > last+1 {
				a.Gap = max(a.Gap, s.sent[n].Sub(s.sent[last]))
			}
			last = n
		}
		arrivals[e] = a
	}
	return arrivals, nil
}
