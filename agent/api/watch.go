// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"errors"
	"sync"

	"bascule/answer"
	"bascule/bridge"
)

// watches are monitors of all bridges of a namespace that several streams share: each
// monitor takes about one percent of a core.
type watches struct {
	mu  sync.Mutex
	all map[*bridge.Switch]*watch
}

// A watch hands events to all who follow them.
type watch struct {
	mu      sync.Mutex
	clients map[chan told[answer.Event]]bool
	end     context.CancelFunc
	err     error // why it has ended
	ended   chan struct{}
}

// mostWaiting is how many events may wait for a client. One that is slower has to begin
// again, rather than miss some without a word.
const mostWaiting = 4096

var errSlow = errors.New("the events come faster than they are read; start again")

// follow calls f with each event until ctx ends.
func (m *watches) follow(ctx context.Context, s *bridge.Switch, f func(told[answer.Event]) error) error {
	mine := make(chan told[answer.Event], mostWaiting)
	m.mu.Lock()
	w := m.all[s]
	if w == nil {
		if m.all == nil {
			m.all = map[*bridge.Switch]*watch{}
		}
		run, end := context.WithCancel(context.Background())
		w = &watch{clients: map[chan told[answer.Event]]bool{}, end: end, ended: make(chan struct{})}
		m.all[s] = w
		go m.run(run, s, w)
	}
	w.mu.Lock()
	w.clients[mine] = true
	w.mu.Unlock()
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.clients, mine)
		if len(w.clients) == 0 {
			m.forget(s, w)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.ended:
			return w.err
		case e, ok := <-mine:
			if !ok {
				return errSlow
			}
			if err := f(e); err != nil {
				return err
			}
		}
	}
}

// forget ends a watch that nobody follows any more. The caller has the lock.
func (m *watches) forget(s *bridge.Switch, w *watch) {
	w.end()
	if m.all[s] == w {
		delete(m.all, s)
	}
}

func (m *watches) run(ctx context.Context, s *bridge.Switch, w *watch) {
	w.err = s.Monitor(ctx, "", func(e bridge.Event) error {
		w.tell(tell(answer.OfEvent(e)))
		return nil
	})
	m.mu.Lock()
	m.forget(s, w)
	m.mu.Unlock()
	close(w.ended)
}

// tell hands an event to all who follow.
func (w *watch) tell(e told[answer.Event]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.clients {
		select {
		case c <- e:
		default:
			delete(w.clients, c)
			close(c)
		}
	}
}
