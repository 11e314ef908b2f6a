// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// patience is the time limit for events that have to happen.
const patience = 20 * time.Second

// A call is a packet, or a connection, from one host to another. The stacks and sockets of both
// show its result.
type call struct {
	proto string // ping, udp or tcp
	from  *host
	src   netip.AddrPort // the caller's source: a port alone, or nothing, is valid
	to    netip.AddrPort // destination; ping ignores the port
	at    *host          // the receiver; nil if there is none, and for ping
	seen  netip.AddrPort // the receiver's address, of any family, if it is not the destination
	size  int            // bytes of a datagram or an echo; 0 for the default
	tos   int            // type of service, or traffic class
}

// An outcome is the result of a call so far.
type outcome struct {
	arrived  bool           // it has reached the receiver; for ping, only its answer shows that
	source   netip.AddrPort // the caller's address as the receiver sees it
	answered bool           // the receiver's answer has reached the caller
	refused  error          // the error of the caller's stack: ECONNREFUSED, EHOSTUNREACH, ...
}

// ping, udp and tcp return common calls.
func ping(from *host, to netip.Addr) call {
	return call{proto: "ping", from: from, to: netip.AddrPortFrom(to, 0)}
}

func udp(from *host, to netip.Addr, port uint16, at *host) call {
	return call{proto: "udp", from: from, to: netip.AddrPortFrom(to, port), at: at}
}

func tcp(from *host, to netip.Addr, port uint16, at *host) call {
	return call{proto: "tcp", from: from, to: netip.AddrPortFrom(to, port), at: at}
}

func (c call) String() string {
	return fmt.Sprintf("%s from %s %v to %v", c.proto, c.from.ifname, c.src, c.to)
}

// passes makes a call, which must be answered, and returns the source that the receiver sees.
func (r *router) passes(c call) netip.AddrPort {
	r.t.Helper()
	o := r.make(c, func(o outcome) bool { return o.answered }, true)
	if !o.answered {
		r.t.Errorf("%v is not answered: %+v", c, o)
	}
	return o.source
}

// blocked makes a call that must not reach the receiver, and about which the caller gets no
// answer and no error.
func (r *router) blocked(c call) {
	r.t.Helper()
	o := r.make(c, func(o outcome) bool { return o.arrived || o.answered || o.refused != nil }, false)
	if o != (outcome{}) {
		r.t.Errorf("%v is not blocked: %+v", c, o)
	}
}

// refused makes a call that must fail with the given error at the caller.
func (r *router) refused(c call, with error) {
	r.t.Helper()
	o := r.make(c, func(o outcome) bool { return o.answered || o.refused != nil }, true)
	if !errors.Is(o.refused, with) {
		r.t.Errorf("%v should be refused by %v: %+v", c, with, o)
	}
}

// make makes a call, until its outcome is enough. If that may not happen, the call ends when
// all its packets have arrived.
func (r *router) make(c call, enough func(outcome) bool, sure bool) (o outcome) {
	r.t.Helper()
	w := r.call(c)
	defer w.close()
	for deadline, rounds := time.Now().Add(patience), 0; ; rounds++ {
		w.look(&o)
		if enough(o) || time.Now().After(deadline) || !sure && rounds == 4 {
			return o
		}
		r.Flush()
		if sure && rounds > 4 {
			time.Sleep(time.Millisecond)
		}
	}
}

// A way is a call with its sockets.
type way struct {
	r        *router
	c        call
	client   int
	server   int // -1 for none
	accepted int // for TCP; -1 before that
	id       uint16
}

// call sends the first packet of a call.
func (r *router) call(c call) *way {
	r.t.Helper()
	r.fresh()
	w := &way{r: r, c: c, client: -1, server: -1, accepted: -1}
	family, kind := familyOf(c.to), unix.SOCK_STREAM
	if c.proto == "udp" {
		kind = unix.SOCK_DGRAM
	}
	open := func(at *host, family, kind, protocol int, bound netip.AddrPort, then func(fd int) error) (fd int) {
		r.t.Helper()
		r.must(at.ns.Do(func() (err error) {
			if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
				return err
			}
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), bindTo(fd, family, bound),
				r.OnCPU(func() error { return then(fd) }))
		}))
		return fd
	}
	if c.at != nil && c.proto != "ping" {
		at := c.to
		if c.seen.IsValid() {
			at = c.seen
		}
		w.server = open(c.at, familyOf(at), kind, 0, at, func(fd int) error {
			if kind == unix.SOCK_STREAM {
				return unix.Listen(fd, 8)
			}
			return nil
		})
	}
	protocol := 0
	if c.proto == "ping" { // the stack answers, so the caller's socket is enough
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_ICMP
		if family == unix.AF_INET6 {
			protocol = unix.IPPROTO_ICMPV6
		}
	}
	w.client = open(c.from, family, kind, protocol, c.src, func(fd int) error {
		if c.tos != 0 {
			level, option := unix.IPPROTO_IP, unix.IP_TOS
			if family == unix.AF_INET6 {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
			}
			if err := unix.SetsockoptInt(fd, level, option, c.tos); err != nil {
				return err
			}
		}
		err := unix.Connect(fd, sockaddr(c.to))
		switch {
		case c.proto == "tcp" && errors.Is(err, unix.EINPROGRESS):
			return nil
		case err != nil || c.proto == "tcp":
			return err
		}
		_, err = unix.Write(fd, w.message())
		return err
	})
	return w
}

// message returns the payload of a datagram, or an echo request that is different from other
// calls'.
func (w *way) message() []byte {
	if w.c.proto == "udp" {
		return append([]byte("call"), make([]byte, max(0, w.c.size-4))...)
	}
	w.id = uint16(time.Now().UnixNano())
	b := append([]byte{8, 0, 0, 0, byte(w.id >> 8), byte(w.id), 0, 1}, make([]byte, max(16, w.c.size))...)
	if w.c.to.Addr().Is6() {
		b[0] = 128 // the kernel computes the checksum
	} else {
		sum := uint32(0)
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		}
		if len(b)%2 == 1 {
			sum += uint32(b[len(b)-1]) << 8
		}
		sum = sum>>16 + sum&0xffff
		sum = ^(sum>>16 + sum)
		b[2], b[3] = byte(sum>>8), byte(sum)
	}
	return b
}

// look adds new events to the outcome, and has the receiver answer.
func (w *way) look(o *outcome) {
	r := w.r
	r.t.Helper()
	answer := make([]byte, 1<<16)
	if w.server >= 0 && !o.arrived {
		switch w.c.proto {
		case "udp":
			if n, from, err := unix.Recvfrom(w.server, answer, 0); err == nil {
				o.arrived, o.source = true, addrPort(from)
				// If the answer is blocked, the receiver may get an error at
				// once.
				_ = r.OnCPU(func() error { return unix.Sendto(w.server, answer[:n], 0, from) })
			}
		case "tcp":
			if fd, from, err := unix.Accept4(w.server, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK); err == nil {
				w.accepted, o.arrived, o.source = fd, true, addrPort(from)
				r.must(r.OnCPU(func() error { _, err := unix.Write(fd, []byte("x")); return err }))
			}
		}
	}
	n, err := unix.Read(w.client, answer)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
	case err != nil:
		o.refused = err
	case w.c.proto != "ping":
		o.answered = n > 0
	default:
		for ; err == nil; n, err = unix.Read(w.client, answer) {
			m, reply := answer[:n], byte(129)
			if w.c.to.Addr().Is4() && n > 20 {
				m, reply = m[int(m[0]&15)*4:], 0
			}
			if len(m) >= 8 && m[0] == reply && uint16(m[4])<<8|uint16(m[5]) == w.id {
				o.answered, o.arrived = true, true
			}
		}
	}
}

func (w *way) close() {
	for _, fd := range []int{w.client, w.accepted, w.server} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func familyOf(a netip.AddrPort) int {
	if a.Addr().Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// bindTo binds a socket to an address, to a port alone, or to nothing.
func bindTo(fd, family int, at netip.AddrPort) error {
	switch {
	case at == netip.AddrPort{}:
		return nil
	case at.Addr().IsValid():
	case family == unix.AF_INET6:
		at = netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
	default:
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
	return unix.Bind(fd, sockaddr(at))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	s := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if ifname := a.Addr().Zone(); ifname != "" {
		if i, err := net.InterfaceByName(ifname); err == nil { // in the caller's namespace
			s.ZoneId = uint32(i.Index)
		}
	}
	return s
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
