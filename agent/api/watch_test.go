// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"bascule/answer"
	"bascule/bridge"
)

// TestWatchSlow: a client that takes no events gets an error, so that it begins again,
// and holds up no other client.
func TestWatchSlow(t *testing.T) {
	var m watches
	w := &watch{clients: map[chan told[answer.Event]]bool{}, end: func() {}, ended: make(chan struct{})}
	m.all = map[*bridge.Switch]*watch{nil: w}
	slow := make(chan error)
	hold := make(chan struct{})
	go func() {
		slow <- m.follow(t.Context(), nil, func(told[answer.Event]) error { <-hold; return nil })
	}()
	for n := 0; n == 0; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n = len(w.clients)
		w.mu.Unlock()
	}
	for range mostWaiting + 2 {
		w.tell(tell(answer.Event{Kind: "moved"}))
	}
	close(hold)
	if err := <-slow; !errors.Is(err, errSlow) {
		t.Errorf("a slow client: %v", err)
	}
	if len(m.all) != 0 {
		t.Error("a watch that nobody follows stays")
	}
}

// An event of several streams is converted to JSON once.
func TestTold(t *testing.T) {
	made := 0
	v := tell(counting{&made})
	for range 3 {
		if line, err := v.line(); err != nil || string(line) != "1\n" {
			t.Errorf("%q, %v", line, err)
		}
	}
}

type counting struct{ made *int }

func (c counting) MarshalJSON() ([]byte, error) {
	*c.made++
	return fmt.Append(nil, *c.made), nil
}
