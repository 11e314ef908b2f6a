// SPDX-License-Identifier: BSD-2-Clause

// Package traffic is requests and responses over TCP: a server that answers,
// and a client that counts transactions and their times. The lab runs both at
// the ends of a fabric, as programs of their own.
//
// A connection begins with a header of three 32-bit numbers in network order:
// the length of each request, the length of each response, and after how many
// transactions the server closes, 0 for never. What follows has no meaning.
//
// Both sides wait for all their sockets with epoll(7), on a thread for each CPU
// that they may use, and make no more system calls than they must: what the ends
// cost is not what is measured.
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

// Listen waits at an address, at any port where that is 0.
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
	// Connections inherit the options that are set here. A connection is
	// worth a wakeup when there is a request on it.
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

// Addr is where it waits.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// look is how often a loop that waits sees whether it should end.
const look = 100 * time.Millisecond

// chunk is how much is read or written at once.
const chunk = 64 << 10

// Serve answers the clients of a listener until ctx ends, and closes the
// listener. An error of one client ends that client's connection only.
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

// server is the clients of one thread.
type server struct {
	listener *Listener
	poll     poll
	clients  map[int]*client // those that are waited for, by their sockets
	buffer   []byte          // what is read, until it was looked at
	nothing  []byte          // what is written
}

// client is a connection that a server has.
type client struct {
	fd int
	conversation
	owed int // bytes that are to be written
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
	// One of the threads is woken for a connection.
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

// accept takes a client in, and at once answers what the client has sent
// already.
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

// serve answers what a client has sent, as far as it goes, and tells whether
// there is more to come. Otherwise it has closed the connection.
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

// pay writes what is owed, as far as it goes, and tells whether that went well.
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

// conversation is what a client has said so far.
type conversation struct {
	head     [headerSize]byte
	heard    int // of the header
	header   header
	missing  int    // of a request that has begun, 0 before
	answered uint32 // requests
}

// hear takes what a client has sent, and tells how many bytes it gets for it.
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

// over tells whether all was asked for that the header has announced.
func (c *conversation) over() bool { return c.header.Count != 0 && c.answered >= c.header.Count }
