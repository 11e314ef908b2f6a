// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"

	"bascule/bridge"
)

// A View gives access to the agent for parts that show it: metrics, a page, an API. Its
// methods may be called from any goroutine.
type View struct{ a *agent }

// A Service shows the agent to clients, until ctx ends.
type Service func(ctx context.Context, v *View) error

// A Place is a network namespace that the agent serves.
type Place struct {
	Netns  string // "" for the agent's own
	Switch *bridge.Switch
}

// errEnds is the answer of an agent that ends before it can answer.
var errEnds = errors.New("the agent ends; restart it")

// inLoop runs f in the agent's loop, and waits for it.
func (v *View) inLoop(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case v.a.todo <- func() { f(); close(done) }:
	case <-v.a.ctx.Done():
		return errEnds
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-v.a.ctx.Done():
		return errEnds
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Status returns the agent's status.
func (v *View) Status(ctx context.Context) (st Status, err error) {
	var now Status
	if err := v.inLoop(ctx, func() { now = v.a.status() }); err != nil {
		return Status{}, err
	}
	return now, nil
}

// Places returns the network namespaces that the agent serves, its own first.
func (v *View) Places(ctx context.Context) ([]Place, error) {
	var list []Place
	err := v.inLoop(ctx, func() {
		for _, s := range v.a.sites {
			name := s.name
			if s == v.a.home {
				name = ""
			}
			list = append(list, Place{name, s.sw})
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(x, y Place) int { return strings.Compare(x.Netns, y.Netns) })
	return list, nil
}

// Reload makes the agent apply its files again, and waits for the result.
func (v *View) Reload(ctx context.Context, how Reload) error {
	result := make(chan error, 1)
	if err := v.inLoop(ctx, func() { v.a.reload(how, func(err error) { result <- err }) }); err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-v.a.ctx.Done():
		return errEnds
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Watch starts a process that puts a change of a network namespace back. netns is a name
// from [View.Places].
func (v *View) Watch(netns string) error {
	if v.a.o.Watch == nil {
		return nil
	}
	return v.a.o.Watch(cmp.Or(netns, v.a.o.Netns))
}

// Log returns the agent's log.
func (v *View) Log() *slog.Logger { return v.a.log }

// beginServices starts the services beside the agent. The function that it returns waits
// for their end, after the agent's context has ended.
func (a *agent) beginServices() (wait func()) {
	var all sync.WaitGroup
	for _, service := range a.o.Services {
		all.Go(func() {
			a.keep(a.ctx, a.log, "showing the agent", func() error { return service(a.ctx, &View{a}) })
		})
	}
	return all.Wait
}

// mostRequests is the largest number of HTTP connections at the agent's socket.
const mostRequests = 64

// isRequest reports whether a line is the first line of an HTTP request (RFC 9112 section
// 3), and not a word of a command's request.
func isRequest(line []byte) bool {
	return bytes.Contains(line, []byte(" HTTP/"))
}

// A handover is a listener for connections that were accepted elsewhere.
type handover struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), ended: make(chan struct{})}
}

// take passes a connection to the listener, and reports whether it could.
func (h *handover) take(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.ended:
		return false
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.ended) })
	return nil
}

func (h *handover) Addr() net.Addr { return &net.UnixAddr{Name: "handed over", Net: "unix"} }

// begun is a connection from which some bytes were already read.
type begun struct {
	net.Conn
	first io.Reader
}

func (b *begun) Read(p []byte) (int, error) { return b.first.Read(p) }
