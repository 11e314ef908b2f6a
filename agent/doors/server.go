// SPDX-License-Identifier: BSD-2-Clause

package doors

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Limits of a client. Its header must arrive within headTime, and header and body within bodyTime. An answer has
// writeTime from its first byte on. A stream extends that time with each message (Extend).
const (
	headTime  = 5 * time.Second
	bodyTime  = 30 * time.Second
	writeTime = 30 * time.Second
	idleTime  = 2 * time.Minute
	maxHead   = 16 << 10 // bytes
	// MaxBody is the largest size of a request, in bytes.
	MaxBody = 4 << 20
)

// A Server answers HTTP requests. It has places for a number of connections. If all are taken, the connection that has
// been silent for the longest time makes room. A connection whose request is complete keeps its place until it has its
// answer.
type Server struct {
	http *http.Server
	log  *slog.Logger
	most int

	mu     sync.Mutex
	quiet  []net.Conn // without a complete request, in the order of their last bytes
	all    map[net.Conn]bool
	turned uint64    // number of connections that were closed for others since the last log line
	logged time.Time // time of the last log line
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// NewServer returns a server with room for this number of connections.
func NewServer(h http.Handler, logger *slog.Logger, most int) *Server {
	s := &Server{log: logger, most: most, all: map[net.Conn]bool{}}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b := &body{ReadCloser: http.MaxBytesReader(w, r.Body, MaxBody), s: s, conn: r.Context().Value(connKey{}).(net.Conn), w: w}
			if r.Body == http.NoBody {
				b.whole()
			}
			// When it answers, the library checks the body of its own request. With another body there it
			// would wait for one that it has not requested.
			r = r.WithContext(r.Context())
			r.Body = b
			h.ServeHTTP(&reply{ResponseWriter: w}, r)
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ReadHeaderTimeout: headTime, ReadTimeout: bodyTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: maxHead, DisableGeneralOptionsHandler: true,
		ConnState: s.state,
		ErrorLog:  log.New(complaints{logger}, "", 0),
		Protocols: func() *http.Protocols {
			p := &http.Protocols{}
			p.SetHTTP1(true)
			return p
		}(),
	}
	return s
}

// A body is the body of a request. Its connection is no longer silent when some bytes arrive, and is busy when all have
// arrived.
type body struct {
	io.ReadCloser
	s    *Server
	conn net.Conn
	w    http.ResponseWriter
}

func (b *body) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	switch {
	case errors.Is(err, io.EOF):
		b.whole()
	case n > 0:
		b.s.spoke(b.conn)
	}
	return n, err
}

// whole ends the client's time limit, since an answer may take long. The library would take the limit's end for the
// client's.
func (b *body) whole() {
	b.s.busy(b.conn)
	_ = http.NewResponseController(b.w).SetReadDeadline(time.Time{})
}

// A reply is the answer to a request. The library's own limit would begin at the request's header, and the time until
// the first byte of the answer is not known then.
type reply struct {
	http.ResponseWriter
	begun bool
}

func (r *reply) begin() {
	if !r.begun {
		r.begun = true
		_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTime))
	}
}

func (r *reply) WriteHeader(status int) { r.begin(); r.ResponseWriter.WriteHeader(status) }

func (r *reply) Write(b []byte) (int, error) { r.begin(); return r.ResponseWriter.Write(b) }

// Unwrap implements the interface that [http.ResponseController] needs.
func (r *reply) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// complaints are the library's log lines: about clients, which can be very many, and about panics, which are defects of
// ours.
type complaints struct{ log *slog.Logger }

func (c complaints) Write(text []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(text, []byte("panic")) {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, "a request failed", "why", string(bytes.TrimSpace(text)))
	return len(text), nil
}

// Extend gives a stream more time for its next message. It fails if the client has gone.
func Extend(w http.ResponseWriter) error {
	c := http.NewResponseController(w)
	return errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Now().Add(writeTime)))
}

// Serve answers requests of a listener until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	end := context.AfterFunc(ctx, func() { s.http.Close() })
	defer end()
	// streams end with the agent, not only with their clients
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	err := s.http.Serve(&crowd{l, s})
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// A crowd is a listener that accepts no more connections than there is room for.
type crowd struct {
	net.Listener
	s *Server
}

func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil { // for example too many open files
			c.s.log.Error("no connections are possible; trying again", "address", c.Addr().String(), "error", err)
			time.Sleep(time.Second)
			continue
		}
		if c.s.enter(conn) {
			return conn, nil
		}
		conn.Close()
	}
}

// enter finds a place for a connection.
func (s *Server) enter(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= s.most {
		s.turned++
		if now := time.Now(); now.Sub(s.logged) >= time.Minute {
			s.log.Warn("too many clients: idle ones are disconnected", "room", s.most, "turned_away", s.turned)
			s.logged, s.turned = now, 0
		}
		if len(s.quiet) == 0 {
			return false
		}
		s.forget(s.quiet[0])
	}
	s.all[conn] = true
	s.quiet = append(s.quiet, conn)
	return true
}

// forget closes a connection and frees its place. The caller has the lock.
func (s *Server) forget(conn net.Conn) {
	conn.Close()
	delete(s.all, conn)
	s.quiet = slices.DeleteFunc(s.quiet, func(other net.Conn) bool { return other == conn })
}

// busy protects a connection from making room: its request is complete, and is being answered.
func (s *Server) busy(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = slices.DeleteFunc(s.quiet, func(other net.Conn) bool { return other == conn })
}

// spoke moves a connection to the end of those that make room.
func (s *Server) spoke(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.quiet, conn); i >= 0 {
		s.quiet = append(slices.Delete(s.quiet, i, i+1), conn)
	}
}

// state is called when a connection's state changes.
func (s *Server) state(conn net.Conn, now http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now {
	case http.StateIdle:
		if s.all[conn] {
			s.quiet = append(s.quiet, conn)
		}
	case http.StateClosed, http.StateHijacked:
		s.forget(conn)
	}
}
