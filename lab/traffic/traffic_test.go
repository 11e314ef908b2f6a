// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// serving starts a server on the loopback, counting its connections.
func serving(t *testing.T) (netip.AddrPort, *counting) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &counting{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, counted) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), counted
}

// counting is a listener that counts.
type counting struct {
	net.Listener
	accepted uint64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted++
	}
	return conn, err
}

func TestRun(t *testing.T) {
	for name, l := range map[string]Load{
		"one byte":              {Request: 1, Response: 1, Connections: 1},
		"many connections":      {Request: 10, Response: 100, Connections: 20},
		"large requests":        {Request: 300_000, Response: 1, Connections: 2},
		"large responses":       {Request: 1, Response: 300_000, Connections: 2},
		"new connections":       {Request: 1, Response: 1, Connections: 3, New: true},
		"new, large both ways":  {Request: 100_000, Response: 100_000, Connections: 2, New: true},
		"longer than the parts": {Request: 1, Response: 1, Connections: 1, Interval: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			server, counted := serving(t)
			l.Server, l.Duration = server, 100*time.Millisecond
			r, err := l.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if r.Transactions == 0 || r.Seconds != 0.1 {
				t.Errorf("%d transactions in %v s", r.Transactions, r.Seconds)
			}
			if !(r.Mean > 0 && r.P50 > 0 && r.P50 <= r.P90 && r.P90 <= r.P99 && r.P99 <= r.P999) {
				t.Errorf("times of %+v", r)
			}
			if l.Interval > 0 && len(r.Intervals) != 5 || l.Interval == 0 && r.Intervals != nil {
				t.Errorf("%d intervals", len(r.Intervals))
			}
			want := uint64(l.Connections)
			if l.New {
				want = r.Transactions
			}
			// Of new ones, the last of each worker may have ended too late.
			if n := counted.accepted; n < want || n > want+uint64(l.Connections) || !l.New && n != want {
				t.Errorf("%d connections for %d transactions", n, r.Transactions)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	server, _ := serving(t)
	for want, l := range map[string]Load{
		"0 connections":          {Request: 1, Response: 1, Duration: 1},
		"a duration of":          {Request: 1, Response: 1, Connections: 1},
		"requests of 0 bytes":    {Response: 1, Connections: 1, Duration: 1},
		"responses of 16777217:": {Request: 1, Response: Largest + 1, Connections: 1, Duration: 1},
	} {
		l.Server = server
		if _, err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one that says %q", l, err, want)
		}
	}
}

// A server that is not there, or that closes, is an error and no result.
func TestRunWithoutServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	load := Load{Server: l.Addr().(*net.TCPAddr).AddrPort(), Request: 1, Response: 1, Connections: 2, Duration: time.Minute}
	for _, fresh := range []bool{false, true} {
		load.New = fresh
		if r, err := load.Run(t.Context()); err == nil {
			t.Errorf("new=%v: a server that closes gave %+v", fresh, r)
		}
	}
	l.Close()
	if r, err := load.Run(t.Context()); err == nil {
		t.Errorf("no server gave %+v", r)
	}
}

// stream is what a server reads, and what it wrote.
type stream struct {
	io.Reader
	bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func TestAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		header
		sent    int // bytes after the header
		answers int
		fails   bool
	}{
		"until the end":   {header{10, 3, 0}, 30, 3, false},
		"as many as said": {header{10, 3, 2}, 30, 2, false},
		"half a request":  {header{10, 3, 0}, 25, 2, true},
		"nothing":         {header{10, 3, 0}, 0, 0, false},
		"too large":       {header{10, Largest + 1, 0}, 10, 0, true},
		"empty requests":  {header{0, 3, 0}, 10, 0, true},
	} {
		in, err := binary.Append(nil, binary.BigEndian, c.header)
		if err != nil {
			t.Fatal(err)
		}
		if len(in) != headerSize {
			t.Fatalf("a header of %d bytes", len(in))
		}
		s := &stream{Reader: bytes.NewReader(append(in, make([]byte, c.sent)...))}
		err = answer(s)
		if got := s.Len(); got != c.answers*int(c.Response) {
			t.Errorf("%s: %d bytes of answers, want %d", name, got, c.answers*int(c.Response))
		}
		if (err != nil) != c.fails {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestHistogram(t *testing.T) {
	var a, b histogram
	for i := range 10_000 {
		h := &a
		if i%3 == 0 {
			h = &b
		}
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	a.merge(&b)
	if want := 10_000 * 10_001 / 2 * time.Microsecond; a.n != 10_000 || a.sum != want {
		t.Errorf("%d times, %v together, want %v", a.n, a.sum, want)
	}
	for p, want := range map[float64]time.Duration{
		0.01: time.Microsecond, 50: 5 * time.Millisecond, 99: 9900 * time.Microsecond, 100: 10 * time.Millisecond,
	} {
		if got := a.percentile(p); got < want || got > want+want/perDouble {
			t.Errorf("percentile %v is %v, want %v or up to 1/%d more", p, got, want, perDouble)
		}
	}
	// Classes follow one another without holes, up to the longest time.
	last := time.Duration(-1)
	for _, d := range []time.Duration{0, 1, 63, 64, 127, 128, 129, 130, 255, 256, 1 << 40, 1<<62 - 1, 1<<63 - 1} {
		c := class(d)
		if c >= len(a.classes) || top(c) < d || c > 0 && top(c-1) >= d || top(c) <= last {
			t.Errorf("%d is in class %d, which ends with %d and the one before with %d", d, c, top(c), top(max(c-1, 0)))
		}
		last = top(c) - 1
	}
}
