// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Load is what a client does: on each of its connections one transaction after
// the other, a request and its response.
type Load struct {
	Server   netip.AddrPort
	Request  int // bytes
	Response int // bytes
	// New makes a connection for each transaction. The server closes it, so
	// that the client's port is free at once.
	New         bool
	Connections int // at once
	Duration    time.Duration
	Interval    time.Duration // of Result.Intervals, 0 for none
}

// Result is what a client saw.
type Result struct {
	Transactions uint64  `json:"transactions"` // that ended in time
	Seconds      float64 `json:"seconds"`
	// Times of transactions in microseconds, with the connecting and closing
	// of new connections. Percentiles are up to 2 % too high.
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p99.9_us"`
	// Intervals are the transactions a second of equal parts of the time.
	Intervals []float64 `json:"intervals,omitempty"`
}

// patience is how long after the end an answer is waited for.
const patience = 5 * time.Second

// Run does the load and returns what it saw. The first thing that goes wrong
// on a connection ends it.
func (l Load) Run(ctx context.Context) (Result, error) {
	h := header{Request: uint32(l.Request), Response: uint32(l.Response)}
	switch {
	case l.Connections < 1:
		return Result{}, fmt.Errorf("%d connections: give 1 or more", l.Connections)
	case l.Duration <= 0:
		return Result{}, fmt.Errorf("a duration of %v: give more than 0", l.Duration)
	case l.New:
		h.Count = 1
	}
	if err := h.check(); err != nil {
		return Result{}, err
	}
	head, err := binary.Append(nil, binary.BigEndian, h)
	if err != nil {
		return Result{}, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	workers := make([]*worker, l.Connections)
	for i := range workers {
		w := &worker{load: l, request: append(head, make([]byte, l.Request)...)}
		w.response = make([]byte, l.Response)
		workers[i] = w
		if !l.New {
			if err := w.connect(time.Now().Add(patience)); err != nil {
				return Result{}, err
			}
			defer w.conn.Close()
		}
	}
	var done atomic.Uint64
	var wg sync.WaitGroup
	begin := time.Now()
	for _, w := range workers {
		wg.Go(func() {
			if err := w.run(ctx, begin.Add(l.Duration), &done); err != nil {
				fail(err)
			}
		})
	}
	r := Result{Seconds: l.Duration.Seconds()}
	if l.Interval > 0 {
		r.Intervals = watch(ctx, begin, l.Duration, l.Interval, &done)
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Result{}, err
	}
	var all histogram
	for _, w := range workers {
		all.merge(&w.times)
	}
	if all.n == 0 {
		return Result{}, errors.New("no transaction ended in time")
	}
	r.Transactions = all.n
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	r.Mean = micros(all.sum) / float64(all.n)
	r.P50, r.P90 = micros(all.percentile(50)), micros(all.percentile(90))
	r.P99, r.P999 = micros(all.percentile(99)), micros(all.percentile(99.9))
	return r, nil
}

// watch tells the transactions a second of every interval.
func watch(ctx context.Context, begin time.Time, length, interval time.Duration, done *atomic.Uint64) []float64 {
	var out []float64
	var last uint64
	at := begin
	for next := begin.Add(interval); !next.After(begin.Add(length)); next = next.Add(interval) {
		select {
		case <-ctx.Done():
			return out
		case <-time.After(time.Until(next)):
		}
		n, now := done.Load(), time.Now()
		out = append(out, float64(n-last)/now.Sub(at).Seconds())
		last, at = n, now
	}
	return out
}

// worker is one connection after the other, or one that stays.
type worker struct {
	load     Load
	conn     *net.TCPConn
	request  []byte // with the header of a new connection before it
	response []byte
	times    histogram
}

// connect opens the connection, which fails when it is used after the deadline.
func (w *worker) connect(deadline time.Time) error {
	d := net.Dialer{Deadline: deadline, KeepAlive: -1}
	c, err := d.Dial("tcp", w.load.Server.String())
	if err != nil {
		return err
	}
	w.conn = c.(*net.TCPConn)
	return nil
}

// run does transactions until the end. Those that end later do not count.
func (w *worker) run(ctx context.Context, end time.Time, done *atomic.Uint64) error {
	deadline := end.Add(patience)
	if !w.load.New {
		if err := w.conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	request := w.request
	for begin := time.Now(); ctx.Err() == nil && begin.Before(end); {
		if err := w.transaction(request, deadline); err != nil {
			return fmt.Errorf("transaction with %s: %w", w.load.Server, err)
		}
		now := time.Now()
		if now.After(end) {
			break
		}
		w.times.add(now.Sub(begin))
		done.Add(1)
		begin = now
		if !w.load.New {
			request = w.request[headerSize:]
		}
	}
	return nil
}

// transaction is one request and its response.
func (w *worker) transaction(request []byte, deadline time.Time) error {
	if w.load.New {
		if err := w.connect(deadline); err != nil {
			return err
		}
		defer w.conn.Close()
		if err := w.conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := w.conn.Write(request); err != nil {
		return err
	}
	if _, err := io.ReadFull(w.conn, w.response); err != nil {
		return err
	}
	if !w.load.New {
		return nil
	}
	// The server closes first.
	switch n, err := w.conn.Read(w.response); {
	case n > 0:
		return errors.New("more came than was asked for")
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}
