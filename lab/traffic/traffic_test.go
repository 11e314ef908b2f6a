// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// serving starts a server on the loopback.
func serving(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
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
			var server *Listener
			r, err := Result{}, errNone
			// a busy machine may stall for a while
			for l.Duration = 100 * time.Millisecond; errors.Is(err, errNone) && l.Duration < time.Minute; l.Duration *= 2 {
				server = serving(t)
				l.Server = server.Addr()
				r, err = l.Run(t.Context())
			}
			l.Duration /= 2
			if err != nil {
				t.Fatal(err)
			}
			if r.Transactions == 0 || r.Seconds != l.Duration.Seconds() {
				t.Errorf("%d transactions in %v s", r.Transactions, r.Seconds)
			}
			if !(r.Mean > 0 && r.P50 > 0 && r.P50 <= r.P90 && r.P90 <= r.P99 && r.P99 <= r.P999) {
				t.Errorf("times of %+v", r)
			}
			if l.Interval > 0 && len(r.Intervals) != int(l.Duration/l.Interval) || l.Interval == 0 && r.Intervals != nil {
				t.Errorf("%d intervals", len(r.Intervals))
			}
			want := uint64(l.Connections)
			if l.New {
				want = r.Transactions
			}
			// With new connections, the last one of each worker may have ended too
			// late.
			if n := server.accepted.Load(); n < want || n > want+uint64(l.Connections) || !l.New && n != want {
				t.Errorf("%d connections for %d transactions", n, r.Transactions)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	server := serving(t)
	for want, l := range map[string]Load{
		"0 connections":          {Request: 1, Response: 1, Duration: 1},
		"a duration of":          {Request: 1, Response: 1, Connections: 1},
		"requests of 0 bytes":    {Response: 1, Connections: 1, Duration: 1},
		"responses of 16777217:": {Request: 1, Response: Largest + 1, Connections: 1, Duration: 1},
	} {
		l.Server = server.Addr()
		if _, err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one that says %q", l, err, want)
		}
	}
}

// TestRunWithoutServer checks that a missing server, or one that closes, gives an error and no
// result.
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

// TestHear checks that the split of a client's bytes into reads makes no difference.
func TestHear(t *testing.T) {
	for name, c := range map[string]struct {
		header
		sent    int // number of bytes after the header
		answers int
		over    bool
		fails   bool
	}{
		"until the end":   {header{10, 3, 0}, 30, 3, false, false},
		"as many as said": {header{10, 3, 2}, 30, 2, true, false},
		"half a request":  {header{10, 3, 0}, 25, 2, false, false},
		"nothing":         {header{10, 3, 0}, 0, 0, false, false},
		"too large":       {header{10, Largest + 1, 0}, 10, 0, false, true},
		"empty requests":  {header{0, 3, 0}, 10, 0, false, true},
	} {
		in, err := binary.Append(nil, binary.BigEndian, c.header)
		if err != nil {
			t.Fatal(err)
		}
		if len(in) != headerSize {
			t.Fatalf("a header of %d bytes", len(in))
		}
		in = append(in, make([]byte, c.sent)...)
		for _, size := range []int{1, 7, headerSize, len(in)} {
			var heard conversation
			var owed int
			var failed error
			for part := range slices.Chunk(in, size) {
				n, err := heard.hear(part)
				owed += n
				if failed = err; err != nil {
					break
				}
			}
			if owed != c.answers*int(c.Response) {
				t.Errorf("%s, %d bytes at once: %d bytes of answers, want %d", name, size, owed, c.answers*int(c.Response))
			}
			if heard.over() != c.over || (failed != nil) != c.fails {
				t.Errorf("%s, %d bytes at once: over %v, error %v", name, size, heard.over(), failed)
			}
		}
	}
}

// TestServeNonsense checks that a server closes the connection after invalid or incomplete data,
// and still serves others.
func TestServeNonsense(t *testing.T) {
	server := serving(t)
	for name, said := range map[string]string{
		"a header that asks for too much": strings.Repeat("\xff", headerSize),
		"half a header":                   "12345",
		"half a request":                  "\x00\x00\x00\x09\x00\x00\x00\x01\x00\x00\x00\x00half",
	} {
		c, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes, error %v", name, n, err)
		}
		c.Close()
	}
	c, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x00good")); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 2)); n != 1 {
		t.Errorf("then %d bytes, error %v, should be a response of one", n, err)
	}
}

func TestListenRefuses(t *testing.T) {
	server := serving(t)
	for _, at := range []netip.AddrPort{server.Addr(), netip.MustParseAddrPort("192.0.2.1:5301"), netip.MustParseAddrPort("[::1]:0")} {
		if _, err := Listen(at); err == nil || !strings.Contains(err.Error(), at.String()) {
			t.Errorf("listen on %s: %v", at, err)
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
	// Classes are contiguous up to the longest time.
	last := time.Duration(-1)
	for _, d := range []time.Duration{0, 1, 63, 64, 127, 128, 129, 130, 255, 256, 1 << 40, 1<<62 - 1, 1<<63 - 1} {
		c := class(d)
		if c >= len(a.classes) || top(c) < d || c > 0 && top(c-1) >= d || top(c) <= last {
			t.Errorf("%d is in class %d, which ends with %d and the one before with %d", d, c, top(c), top(max(c-1, 0)))
		}
		last = top(c) - 1
	}
}
