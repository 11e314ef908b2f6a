// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// A Spool writes lines to a writer that may wait without limit for its reader: a pipe, a terminal, the journal. Write
// never waits. Lines for which there is no room are lost, and counted.
type Spool struct {
	w    io.Writer
	wake chan struct{} // has room for one value; closed by Close
	done chan struct{} // closed when all is written

	mu     sync.Mutex
	lines  []byte
	lost   int              // lines after these
	missed func(int) []byte // returns the line that reports lost lines; may be nil
	closed bool
}

const (
	spoolSize = 256 << 10   // most bytes that wait to be written
	spoolTime = time.Second // that Close waits for
)

// NewSpool returns a spool that writes to w until Close.
func NewSpool(w io.Writer) *Spool {
	s := &Spool{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s
}

// Write takes whole lines.
func (s *Spool) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.lost > 0 || len(s.lines)+len(b) > spoolSize { // a line must not precede a lost one
		s.lost += bytes.Count(b, []byte("\n"))
		return len(b), nil
	}
	s.lines = append(s.lines, b...)
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
	return len(b), nil
}

func (s *Spool) run() {
	defer close(s.done)
	for range s.wake {
		for {
			s.mu.Lock()
			lines, lost, missed := s.lines, s.lost, s.missed
			s.lines, s.lost = nil, 0
			s.mu.Unlock()
			if lost > 0 && missed != nil {
				lines = append(lines, missed(lost)...)
			}
			if len(lines) == 0 {
				break
			}
			_, _ = s.w.Write(lines) // an error of the log has no other place to go to
		}
	}
}

// Close writes the last lines, unless that takes longer than a second.
func (s *Spool) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.wake)
	}
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-time.After(spoolTime):
	}
}
