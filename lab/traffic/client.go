// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Load is the work of a client: on each of its connections, one transaction after the other, a
// request and its response.
type Load struct {
	Server   netip.AddrPort
	Request  int // bytes
	Response int // bytes
	// New makes a connection for each transaction. The server closes it first, so that the
	// client's port is free at once, and the connection stays in TIME_WAIT at the server. TCP
	// timestamps allow the reuse of the port before that state ends (RFC 6191), so ports do not
	// run out.
	New         bool
	Connections int // in parallel
	Duration    time.Duration
	Interval    time.Duration // for Result.Intervals, 0 for none
}

// Result is a client's measurement.
type Result struct {
	Transactions uint64  `json:"transactions"` // completed in time
	Seconds      float64 `json:"seconds"`
	// Durations of transactions in microseconds; with New, they include connecting and closing.
	// Percentiles are up to 2 % too high.
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p99.9_us"`
	// Intervals are the transactions per second in equal parts of the time.
	Intervals []float64 `json:"intervals,omitempty"`
}

// patience is the timeout of an answer after the end.
const patience = 5 * time.Second

// Run executes the load and returns the result. The first error on a connection ends it.
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

	// Each loop has its share of the connections.
	loops := make([]*loop, min(l.Connections, runtime.NumCPU()))
	for i := range loops {
		loops[i] = &loop{load: l, first: append(head, make([]byte, l.Request)...), buffer: make([]byte, chunk)}
		loops[i].connections = make([]connection, l.Connections/len(loops))
		if i < l.Connections%len(loops) {
			loops[i].connections = append(loops[i].connections, connection{})
		}
	}
	var done atomic.Uint64
	var wg sync.WaitGroup
	begin := time.Now()
	for _, w := range loops {
		wg.Go(func() {
			if err := w.run(ctx, begin.Add(l.Duration), &done); err != nil {
				fail(fmt.Errorf("transaction with %s: %w", l.Server, err))
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
	for _, w := range loops {
		all.merge(&w.times)
	}
	if all.n == 0 {
		return Result{}, errNone
	}
	r.Transactions = all.n
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	r.Mean = micros(all.sum) / float64(all.n)
	r.P50, r.P90 = micros(all.percentile(50)), micros(all.percentile(90))
	r.P99, r.P999 = micros(all.percentile(99)), micros(all.percentile(99.9))
	return r, nil
}

// errNone is the error of a load without a transaction: the fabric carries nothing, or the machine
// had no time for either end.
var errNone = errors.New("no transaction ended in time")

// watch returns the transactions per second in every interval.
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

// loop has the connections of one thread.
type loop struct {
	load        Load
	first       []byte // the first request of a connection, after the header
	buffer      []byte // for received bytes, which are only counted
	poll        poll
	connections []connection
	byFD        map[int]*connection
	busy        int // connections with a pending transaction
	times       histogram
}

// connection is a connection, or a sequence of them if each transaction has its own.
type connection struct {
	fd    int
	begin time.Time
	out   []byte // unsent part of the request
	in    int    // missing bytes of the response
}

// run makes transactions until the end. Later ones do not count.
func (w *loop) run(ctx context.Context, end time.Time, done *atomic.Uint64) (err error) {
	if w.poll, err = newPoll(); err != nil {
		return err
	}
	defer w.poll.close()
	w.byFD = map[int]*connection{}
	defer func() {
		for fd := range w.byFD {
			unix.Close(fd)
		}
	}()
	for i := range w.connections {
		if err := w.open(&w.connections[i]); err != nil {
			return err
		}
	}
	deadline := end.Add(patience)
	for w.busy > 0 && ctx.Err() == nil {
		now := time.Now()
		if now.After(deadline) {
			return os.ErrDeadlineExceeded
		}
		events, err := w.poll.wait(min(look, deadline.Sub(now)))
		if err != nil {
			return err
		}
		for _, e := range events {
			c := w.byFD[int(e.Fd)]
			over, err := w.progress(c, e.Events)
			if err != nil {
				return err
			}
			if !over {
				continue
			}
			w.busy--
			now := time.Now()
			if now.After(end) {
				continue
			}
			w.times.add(now.Sub(c.begin))
			done.Add(1)
			if w.load.New {
				err = w.reopen(c)
			} else {
				w.ask(c, w.first[headerSize:])
				_, err = w.progress(c, unix.EPOLLOUT)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ask begins a transaction.
func (w *loop) ask(c *connection, request []byte) {
	c.begin, c.out, c.in = time.Now(), request, w.load.Response
	w.busy++
}

// open makes a connection, and begins a transaction on it.
func (w *loop) open(c *connection) error {
	w.ask(c, w.first)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	c.fd = fd
	w.byFD[fd] = c
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, sockaddr(w.load.Server)); err != nil && err != unix.EINPROGRESS {
		return os.NewSyscallError("connect", err)
	}
	return w.poll.add(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
}

// reopen closes a connection and opens another one.
func (w *loop) reopen(c *connection) error {
	delete(w.byFD, c.fd)
	if err := unix.Close(c.fd); err != nil {
		return os.NewSyscallError("close", err)
	}
	return w.open(c)
}

// progress sends and receives as much as possible after events, and reports whether the transaction
// is complete.
func (w *loop) progress(c *connection, events uint32) (over bool, err error) {
	for len(c.out) > 0 && events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		n, err := unix.Write(c.fd, c.out)
		if err == unix.EAGAIN {
			break
		}
		if err != nil && err != unix.EINTR {
			return false, os.NewSyscallError("write", err)
		}
		c.out = c.out[max(n, 0):]
	}
	if events&^unix.EPOLLOUT == 0 {
		return false, nil
	}
	for {
		n, err := unix.Read(c.fd, w.buffer)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false, nil
		case err != nil:
			return false, os.NewSyscallError("read", err)
		case n > c.in:
			return false, errors.New("more came than was asked for")
		case n == 0 && (c.in > 0 || !w.load.New):
			return false, io.ErrUnexpectedEOF
		}
		c.in -= n
		// The server closes first. The same event as the last bytes shows that it has
		// closed, and that no more bytes can follow.
		closed := n == 0 || n < len(w.buffer) && events&unix.EPOLLRDHUP != 0
		if c.in == 0 && (!w.load.New || closed) {
			return true, nil
		}
		if n < len(w.buffer) && !closed {
			return false, nil
		}
	}
}
