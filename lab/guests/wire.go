// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"bascule/lab/ends"
)

// The lab and the program in a guest exchange JSON values, one after the other. Each request has
// one reply; several requests can be pending.

// The kinds of requests.
const (
	doHello    = "hello"    // no operation: the guest is up
	doPlug     = "plug"     // put a network card into a separate namespace
	doUnplug   = "unplug"   // remove that namespace
	doOutput   = "output"   // run a program there
	doServe    = "serve"    // start a program there and wait until it listens
	doEnded    = "ended"    // fail if a program from serve has ended, or ends within a time
	doListen   = "listen"   // wait until a program from serve listens again
	doEnd      = "end"      // stop a program from serve
	doFeatures = "features" // set the offloads of the card
	doCancel   = "cancel"   // cancel a pending request; has no reply
)

type request struct {
	ID uint64 `json:"id"`
	Do string `json:"do"`
	// Of is the number of the request that ended, listen, end or cancel refers to.
	Of uint64 `json:"of,omitempty"`
	// Within is the duration for ended, in nanoseconds.
	Within time.Duration `json:"within,omitempty"`
	// Net is the namespace in the guest.
	Net      string        `json:"net,omitempty"`
	Card     *card         `json:"card,omitempty"`
	Program  string        `json:"program,omitempty"`
	Args     []string      `json:"args,omitempty"`
	Listen   ends.Listen   `json:"listen"`
	Ifname   string        `json:"ifname,omitempty"`
	Features ends.Features `json:"features"`
}

// card is a network card that was plugged in, with its configuration.
type card struct {
	Found  string `json:"found"` // its present hardware address
	Ifname string `json:"ifname"`
	MAC    string `json:"mac"`
	Addr   string `json:"addr"` // with the prefix length
	MTU    int    `json:"mtu"`
}

type reply struct {
	ID    uint64 `json:"id"`
	Out   []byte `json:"out,omitempty"`
	Error string `json:"error,omitempty"`
}

// line is the lab's end of the connection to a guest.
type line struct {
	ended context.Context // of the guest

	mu      sync.Mutex
	enc     *json.Encoder
	last    uint64
	waiting map[uint64]chan reply
}

// newLine communicates over conn, until it is closed, with a guest whose context is ended.
func newLine(conn io.ReadWriter, ended context.Context) *line {
	l := &line{ended: ended, enc: json.NewEncoder(conn), waiting: map[uint64]chan reply{}}
	go l.read(conn)
	return l
}

func (l *line) read(conn io.Reader) {
	dec := json.NewDecoder(conn)
	for {
		var r reply
		// Only the guest's end stops this loop. All waiting callers watch the guest's
		// context.
		if err := dec.Decode(&r); err != nil {
			return
		}
		l.mu.Lock()
		c := l.waiting[r.ID]
		delete(l.waiting, r.ID)
		l.mu.Unlock()
		if c != nil {
			c <- r
		}
	}
}

// send sends a request, and returns its number and the channel for its reply.
func (l *line) send(r request) (uint64, chan reply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	r.ID = l.last
	c := make(chan reply, 1)
	if r.Do != doCancel {
		l.waiting[r.ID] = c
	}
	if err := l.enc.Encode(r); err != nil {
		delete(l.waiting, r.ID)
		return 0, nil, err
	}
	return r.ID, c, nil
}

// grace is the timeout of short work in a guest.
const grace = 10 * time.Second

// ask sends a request and waits for the reply. If ctx ends first, the request is also cancelled in
// the guest. id is the request's number.
func (l *line) ask(ctx context.Context, r request) (id uint64, out []byte, err error) {
	if err := context.Cause(l.ended); err != nil {
		return 0, nil, err
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	id, answer, err := l.send(r)
	if err != nil {
		// The process may need a moment to end.
		select {
		case <-l.ended.Done():
			return 0, nil, context.Cause(l.ended)
		case <-time.After(grace):
			return 0, nil, fmt.Errorf("%s: %w", r.Do, err)
		}
	}
	select {
	case a := <-answer:
		if a.Error != "" {
			return id, a.Out, errors.New(a.Error)
		}
		return id, a.Out, nil
	case <-l.ended.Done():
		return id, nil, context.Cause(l.ended)
	case <-ctx.Done():
	}
	if _, _, err := l.send(request{Do: doCancel, Of: id}); err == nil {
		select {
		case <-answer:
		case <-l.ended.Done():
		case <-time.After(grace):
		}
	}
	return id, nil, ctx.Err()
}
