// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"context"
	"errors"
	"sync"

	"bascule/answer"
	"bascule/bridge"
)

// watches are monitors of all bridges of a namespace. Several streams share a monitor,
// since each takes about one percent of a core.
type watches struct {
	mu  sync.Mutex
	all map[*bridge.Switch]*watch
}

// A watch passes events to all streams that follow it.
type watch struct {
	mu      sync.Mutex
	clients map[chan told[answer.Event]]bool
	end     context.CancelFunc
	err     error // why it has ended
	ended   chan struct{}
}

// mostWaiting is the largest number of events that wait for a client. A slower client
// has to begin again, so that it does not miss events silently.
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

// forget ends a watch that no stream follows any more. The caller has the lock.
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

// Passes an event to all streams.
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
