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

// The lab and the program in a guest send each other JSON values, one after
// the other. Each request has one reply; several may be under way at once.

// The kinds of requests.
const (
	doHello    = "hello"    // nothing: the guest is up
	doPlug     = "plug"     // put a network card into a namespace of its own
	doUnplug   = "unplug"   // remove that namespace
	doOutput   = "output"   // run a program there
	doServe    = "serve"    // start a program there and wait until it listens
	doEnded    = "ended"    // fail when what serve started has ended, or does within a time
	doListen   = "listen"   // wait until what serve started listens again
	doEnd      = "end"      // end what serve started
	doFeatures = "features" // set the offloads of the card
	doCancel   = "cancel"   // end a request that is under way; no reply of its own
)

type request struct {
	ID uint64 `json:"id"`
	Do string `json:"do"`
	// Of is the request that ended, listen, end and cancel mean.
	Of uint64 `json:"of,omitempty"`
	// Within is the time of ended, in nanoseconds.
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

// card is a network card that was plugged in, and what it becomes.
type card struct {
	Found  string `json:"found"` // the hardware address that it is found by
	Ifname string `json:"ifname"`
	MAC    string `json:"mac"`
	Addr   string `json:"addr"` // with the length of the prefix
	MTU    int    `json:"mtu"`
}

type reply struct {
	ID    uint64 `json:"id"`
	Out   []byte `json:"out,omitempty"`
	Error string `json:"error,omitempty"`
}

// line is the lab's end of the connection to a guest.
type line struct {
	ended context.Context // the guest's

	mu      sync.Mutex
	enc     *json.Encoder
	last    uint64
	waiting map[uint64]chan reply
}

// newLine talks over conn, until it is closed, to a guest that lives until
// ended is done, for the cause that ended has.
func newLine(conn io.ReadWriter, ended context.Context) *line {
	l := &line{ended: ended, enc: json.NewEncoder(conn), waiting: map[uint64]chan reply{}}
	go l.read(conn)
	return l
}

func (l *line) read(conn io.Reader) {
	dec := json.NewDecoder(conn)
	for {
		var r reply
		// Only the guest's end stops this loop, and all who wait are
		// told of that end.
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

// send sends a request, and returns its number and where its reply will be.
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

// grace is how long a guest may take for work of a moment.
const grace = 10 * time.Second

// ask sends a request and waits for the reply. When ctx ends first, the
// request is ended in the guest too. The number is the request's.
func (l *line) ask(ctx context.Context, r request) (id uint64, out []byte, err error) {
	if err := context.Cause(l.ended); err != nil {
		return 0, nil, err
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	id, answer, err := l.send(r)
	if err != nil {
		// The process may need a moment to be gone.
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
