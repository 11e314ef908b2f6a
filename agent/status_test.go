// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A flaky listener fails on the first Accept, and then has one client.
type flaky struct {
	refusals int
	clients  chan net.Conn
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.refusals > 0 {
		f.refusals--
		return nil, errors.New("too many open files")
	}
	c, ok := <-f.clients
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (f *flaky) Close() error   { return nil }
func (f *flaky) Addr() net.Addr { return nil }

// TestReadReply reads the answer of an agent, up to its largest size.
func TestReadReply(t *testing.T) {
	client, agent := net.Pipe()
	go json.NewEncoder(agent).Encode(reply{Error: "why"})
	if r, err := readReply(client); err != nil || r.Error != "why" {
		t.Errorf("read %+v, %v", r, err)
	}
	text := io.MultiReader(strings.NewReader(`{"error": "`), strings.NewReader(strings.Repeat("x", maxAnswer)), strings.NewReader(`"}`))
	if _, err := readReply(text); err == nil || err.Error() != "its answer has more than 16777216 bytes" {
		t.Errorf("too large an answer: %v", err)
	}
}

// TestServe: the socket outlives a lack of descriptors. However many clients are
// silent, a client that sends a request is answered at once.
func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{log: slog.New(slog.DiscardHandler), ctx: context.Background(), todo: make(chan func(), 1)}
		l := &flaky{refusals: 3, clients: make(chan net.Conn)}
		go a.serve(l)
		time.Sleep(time.Minute) // for the refusals
		start := time.Now()
		for range 2000 {
			_, silent := net.Pipe()
			l.clients <- silent
		}
		go func() { (<-a.todo)() }()
		client, server := net.Pipe()
		l.clients <- server
		if waited := time.Since(start); waited != 0 {
			t.Errorf("it waited %v for those that say nothing", waited)
		}
		client.Write([]byte("nonsense\n"))
		b := make([]byte, 100)
		if n, err := client.Read(b); err != nil || n == 0 {
			t.Errorf("no answer: %v", err)
		}
		close(l.clients)
		time.Sleep(statusTime) // for the others
		synctest.Wait()
	})
}
