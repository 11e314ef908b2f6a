// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Event is a line of the output of `bascule -j monitor`.
type Event struct {
	Event   string  `json:"event"`
	Master  string  `json:"master"`
	Ifname  string  `json:"ifname"`
	MAC     string  `json:"mac"`
	VLAN    int     `json:"vlan"`
	From    string  `json:"from"`
	Reason  string  `json:"reason"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
}

// A Monitor is a running `bascule monitor`.
type Monitor struct {
	lab  *Lab
	stop func() error

	mu     sync.Mutex
	events []Event
	broken error
}

// NewMonitor starts a monitor of a bridge. When it returns, the monitor shows all events: it
// has shown an address that was learned from a frame, which the given end sent for this
// purpose.
func (l *Lab) NewMonitor(bridge string, end *End) *Monitor {
	l.t.Helper()
	m := &Monitor{lab: l}
	cmd := l.Command("-j", "monitor", bridge)
	out, err := cmd.StdoutPipe()
	l.must(err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	l.must(cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e Event
			err := json.Unmarshal(lines.Bytes(), &e)
			m.mu.Lock()
			if err != nil {
				m.broken = fmt.Errorf("monitor printed %q: %w", lines.Text(), err)
			}
			m.events = append(m.events, e)
			m.mu.Unlock()
		}
	}()
	m.stop = sync.OnceValue(func() error {
		cmd.Process.Signal(os.Interrupt)
		kill := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		defer kill.Stop()
		<-done
		if err := cmd.Wait(); err != nil || errs.Len() > 0 {
			return fmt.Errorf("monitor, interrupted: %v, stderr %q", err, errs.String())
		}
		return m.broken
	})
	l.t.Cleanup(func() { m.stop() })

	for n := 0; ; n++ {
		// A new address each time: a known one causes no event.
		mac := MAC{0x02, 0xcc, 0, 0, byte(n >> 8), byte(n)}
		l.Send(end, l.Frames(1, Broadcast, mac)...)
		seen := func(e Event) bool { return e.MAC == mac.String() }
		for range 20 {
			if slices.ContainsFunc(m.Events(), seen) {
				l.Bascule("fdb", "flush", bridge)
				return m
			}
			select {
			case <-done:
				l.t.Fatalf("the monitor ended: %v", m.stop())
			case <-time.After(10 * time.Millisecond):
			}
		}
		if n == 100 {
			l.t.Fatalf("the monitor does not show that %v was learned", mac)
		}
	}
}

// Events returns the events that the monitor has shown so far.
func (m *Monitor) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

// Wait waits for an event.
func (m *Monitor) Wait(what string, is func(Event) bool) Event {
	m.lab.t.Helper()
	var found Event
	m.lab.Wait("monitor to show "+what, func() bool {
		events := m.Events()
		i := slices.IndexFunc(events, is)
		if i >= 0 {
			found = events[i]
		}
		return i >= 0
	})
	return found
}

// Stop ends the monitor with SIGINT, as Ctrl-C does, which must not be an error.
func (m *Monitor) Stop() {
	m.lab.t.Helper()
	m.lab.must(m.stop())
}
