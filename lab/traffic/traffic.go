// SPDX-License-Identifier: BSD-2-Clause

// Package traffic has requests and responses over TCP: a server that answers, and a client that
// counts transactions and their times. The lab runs both at the ends of a fabric, as separate
// programs.
//
// A connection begins with a header of three 32-bit numbers in network byte order: the length of
// each request, the length of each response, and the number of transactions after which the server
// closes, 0 for never. The following bytes have no meaning.
//
// Both sides wait for all their sockets with epoll(7), on a thread for each CPU
// that they may use, with as few system calls as possible: the cost of the ends should stay small.
package traffic

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Largest is the longest request or response, in bytes.
const Largest = 16 << 20

// header begins a connection.
type header struct {
	Request  uint32
	Response uint32
	Count    uint32
}

const headerSize = 12

func (h header) check() error {
	if h.Request < 1 || h.Request > Largest || h.Response < 1 || h.Response > Largest {
		return fmt.Errorf("requests of %d bytes and responses of %d: give 1 to %d", h.Request, h.Response, Largest)
	}
	return nil
}

// Listener is a socket that waits for clients.
type Listener struct {
	fd       int
	addr     netip.AddrPort
	accepted atomic.Uint64
}

// Listen listens at an address; port 0 selects a free port.
func Listen(at netip.AddrPort) (*Listener, error) {
	if !at.Addr().Is4() {
		return nil, fmt.Errorf("listen on %s: give an IPv4 address", at)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, os.NewSyscallError("socket", err))
	}
	l := &Listener{fd: fd}
	if err := l.listen(at); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	return l, nil
}

func (l *Listener) listen(at netip.AddrPort) error {
	// Connections inherit these options. A connection wakes the server only when it has a
	// request.
	for _, option := range []struct{ level, name int }{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT},
	} {
		if err := unix.SetsockoptInt(l.fd, option.level, option.name, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(l.fd, sockaddr(at)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	const backlog = 4096
	if err := unix.Listen(l.fd, backlog); err != nil {
		return os.NewSyscallError("listen", err)
	}
	name, err := unix.Getsockname(l.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	l.addr = netip.AddrPortFrom(at.Addr(), uint16(name.(*unix.SockaddrInet4).Port))
	return nil
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// Addr returns the address of the listener.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// look is the interval at which a waiting loop checks whether it should end.
const look = 100 * time.Millisecond

// chunk is the size of a read or write.
const chunk = 64 << 10

// Serve answers the clients of a listener until ctx ends, and closes the
// listener. An error of a client ends only its connection.
func Serve(ctx context.Context, l *Listener) error {
	defer unix.Close(l.fd)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var wg sync.WaitGroup
	failed := make(chan error, runtime.NumCPU())
	for range runtime.NumCPU() {
		wg.Go(func() {
			s := &server{listener: l, clients: map[int]*client{}, buffer: make([]byte, chunk), nothing: make([]byte, chunk)}
			if err := s.run(ctx); err != nil {
				failed <- fmt.Errorf("serve on %s: %w", l.addr, err)
				fail(err)
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// server has the clients of one thread.
type server struct {
	listener *Listener
	poll     poll
	clients  map[int]*client // the polled ones, by their sockets
	buffer   []byte          // for received bytes
	nothing  []byte          // for sent bytes
}

// client is a server's connection.
type client struct {
	fd int
	conversation
	owed int // bytes still to be written
}

func (s *server) run(ctx context.Context) (err error) {
	if s.poll, err = newPoll(); err != nil {
		return err
	}
	defer s.poll.close()
	defer func() {
		for fd := range s.clients {
			unix.Close(fd)
		}
	}()
	// Only one of the threads wakes for a connection.
	if err := s.poll.add(s.listener.fd, unix.EPOLLIN|unix.EPOLLEXCLUSIVE); err != nil {
		return err
	}
	for ctx.Err() == nil {
		events, err := s.poll.wait(look)
		if err != nil {
			return err
		}
		for _, e := range events {
			c := s.clients[int(e.Fd)]
			if c != nil {
				s.serve(c)
			} else if err := s.accept(); err != nil {
				return err
			}
		}
	}
	return nil
}

// accept accepts a client, and immediately answers the data that it has already sent.
func (s *server) accept() error {
	fd, _, err := unix.Accept4(s.listener.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	switch err {
	case nil:
	case unix.EAGAIN, unix.EINTR, unix.ECONNABORTED:
		return nil
	default:
		return os.NewSyscallError("accept4", err)
	}
	s.listener.accepted.Add(1)
	c := &client{fd: fd}
	if !s.serve(c) {
		return nil
	}
	s.clients[fd] = c
	return s.poll.add(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET)
}

// serve answers a client's data as far as possible, and reports whether more can follow. Otherwise
// it has closed the connection.
func (s *server) serve(c *client) bool {
	for {
		if !c.pay(s.nothing) {
			break
		}
		if c.owed > 0 {
			return true
		}
		if c.over() {
			break
		}
		n, err := unix.Read(c.fd, s.buffer)
		if err == unix.EAGAIN {
			return true
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			break
		}
		owed, err := c.hear(s.buffer[:n])
		if err != nil {
			break
		}
		c.owed = owed
	}
	delete(s.clients, c.fd)
	unix.Close(c.fd)
	return false
}

// pay writes owed bytes as far as possible, and reports success.
func (c *client) pay(nothing []byte) bool {
	for c.owed > 0 {
		n, err := unix.Write(c.fd, nothing[:min(c.owed, len(nothing))])
		if err == unix.EAGAIN {
			return true
		}
		if err != nil && err != unix.EINTR {
			return false
		}
		c.owed -= max(n, 0)
	}
	return true
}

// conversation is the state of a client's data.
type conversation struct {
	head     [headerSize]byte
	heard    int // bytes of the header
	header   header
	missing  int    // bytes of a partial request, otherwise 0
	answered uint32 // number of requests
}

// hear processes a client's data, and returns the number of bytes owed for it.
func (c *conversation) hear(data []byte) (owed int, err error) {
	if c.heard < headerSize {
		n := copy(c.head[c.heard:], data)
		data = data[n:]
		if c.heard += n; c.heard < headerSize {
			return 0, nil
		}
		if _, err := binary.Decode(c.head[:], binary.BigEndian, &c.header); err != nil {
			return 0, err
		}
		if err := c.header.check(); err != nil {
			return 0, err
		}
	}
	for len(data) > 0 && !c.over() {
		if c.missing == 0 {
			c.missing = int(c.header.Request)
		}
		n := min(c.missing, len(data))
		data = data[n:]
		if c.missing -= n; c.missing == 0 {
			owed += int(c.header.Response)
			c.answered++
		}
	}
	return owed, nil
}

// over reports whether all requests that the header announced have arrived.
func (c *conversation) over() bool { return c.header.Count != 0 && c.answered >= c.header.Count }
