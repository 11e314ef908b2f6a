// SPDX-License-Identifier: BSD-2-Clause

// Package doors makes the agent accessible by HTTP. It has addresses to listen at, and a server
// from which many clients, or slow and silent ones, take few resources.
package doors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An Address is an address to listen at: a unix socket, or an address and port of TCP.
type Address struct {
	Path  string         // of a unix socket, "" for TCP
	Group string         // group that may use the socket as well as its owner, "" for none
	TCP   netip.AddrPort // if Path is ""
}

// ParseAddress parses "unix:PATH", "unix:PATH,group=NAME" or "ADDRESS:PORT". The path is absolute.
// The address is numeric, or "localhost", which is 127.0.0.1: any other name would need a resolver.
func ParseAddress(text string) (Address, error) {
	if rest, ok := strings.CutPrefix(text, "unix:"); ok {
		path, group, grouped := strings.Cut(rest, ",")
		group, named := strings.CutPrefix(group, "group=")
		switch {
		case !filepath.IsAbs(path) || strings.HasSuffix(path, "/"):
			return Address{}, fmt.Errorf("%q is not an absolute path of a socket; give one such as unix:/run/NAME.sock", path)
		case len(path) > maxPath:
			return Address{}, fmt.Errorf("%q has more than %d bytes, more than the path of a socket can have", path, maxPath)
		case grouped && (!named || group == ""):
			return Address{}, errors.New("only group=NAME can follow the path of a socket")
		}
		return Address{Path: filepath.Clean(path), Group: group}, nil
	}
	const remedy = "give unix:PATH, or an address and a port, such as 127.0.0.1:9810"
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Address{}, fmt.Errorf("%q is not an address to listen at; %s", text, remedy)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return Address{}, fmt.Errorf("%q is not numeric; %s", host, remedy)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Address{}, fmt.Errorf("%q is not a port; %s", port, remedy)
	}
	return Address{TCP: netip.AddrPortFrom(addr, uint16(n))}, nil
}

// maxPath is the longest path of a unix socket, in bytes: sun_path of unix(7) ends with a zero
// byte.
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// String returns the address in the form that [ParseAddress] reads.
func (a Address) String() string {
	if a.Path == "" {
		return a.TCP.String()
	}
	if a.Group != "" {
		return "unix:" + a.Path + ",group=" + a.Group
	}
	return "unix:" + a.Path
}

// Local reports whether the address is out of reach from other machines.
func (a Address) Local() bool { return a.Path != "" || a.TCP.Addr().IsLoopback() }

// A Door is a listener. Closing it removes its socket, unless another socket has taken its place.
type Door struct {
	net.Listener
	Address Address
	Absent  bool        // the host does not have the address yet, so clients cannot connect yet
	made    os.FileInfo // the socket's file
}

// Listen starts to listen. It takes over a socket on which no process listens any more. It refuses
// any other file at the path, a socket in use, and another user's socket. An address that the host
// does not have is accepted: it may be an address of a host port that the agent is about to make.
func (a Address) Listen() (*Door, error) {
	if a.Path == "" {
		config := net.ListenConfig{Control: mayBeAbsent}
		l, err := config.Listen(context.Background(), "tcp", a.TCP.String())
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("cannot listen at %s: another program does; end it, or give another port", a)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("cannot listen at %s: no permission; give a port above 1023", a)
		case err != nil:
			return nil, fmt.Errorf("cannot listen at %s: %w; give another address", a, root(err))
		}
		return &Door{Listener: l, Address: a, Absent: absent(a.TCP.Addr())}, nil
	}
	gid := -1
	if a.Group != "" {
		g, err := user.LookupGroup(a.Group)
		if err == nil {
			gid, err = strconv.Atoi(g.Gid)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot listen at %s: there is no group %s; see group(5)", a, a.Group)
		}
	}
	if err := clearPath(a); err != nil {
		return nil, err
	}
	l, err := bind(a.Path, gid)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w; give another path", a, root(err))
	}
	l.SetUnlinkOnClose(false) // by then the file may be another program's
	made, err := os.Lstat(a.Path)
	if err == nil && gid >= 0 {
		if st, is := made.Sys().(*syscall.Stat_t); !is || int(st.Gid) != gid {
			err = fmt.Errorf("the folder gives files a group of its own; run 'chmod g-s %s'", filepath.Dir(a.Path))
		}
	}
	if err != nil {
		l.Close()
		os.Remove(a.Path)
		return nil, fmt.Errorf("cannot listen at %s: %w", a, root(err))
	}
	return &Door{Listener: l, Address: a, made: made}, nil
}

// mayBeAbsent lets a socket bind to an address that the host does not have yet.
func mayBeAbsent(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		// IPv6 also uses this option of IPv4 (inet_can_nonlocal_bind() of the kernel)
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	})
	return cmp.Or(err, failed)
}

// absent reports whether the host lacks an address.
func absent(addr netip.Addr) bool {
	conn, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.EADDRNOTAVAIL)
}

// bind makes a socket that has its mode and group from the start: no other client can connect
// before. A user who can change the folder has no moment to replace the socket by a file that would
// get them. With a gid below 0 the socket is for root alone.
func bind(path string, gid int) (*net.UnixListener, error) {
	mask := 0o177
	if gid >= 0 {
		mask = 0o117
		runtime.LockOSThread() // the group of new files belongs to the thread
		defer runtime.UnlockOSThread()
		own, err := unix.SetfsgidRetGid(gid)
		if err != nil {
			return nil, err
		}
		defer unix.Setfsgid(own)
	}
	defer unix.Umask(unix.Umask(mask))
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// clearPath removes a socket on which no process listens.
func clearPath(a Address) error {
	st, err := os.Lstat(a.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w", a, root(err))
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("cannot listen at %s: a file that is not a socket is there; move it away, or give another path", a)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("cannot listen at %s: the socket there is of user %d; give another path", a, sys.Uid)
	}
	conn, err := net.DialTimeout("unix", a.Path, time.Second)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot listen at %s: another program does; end it, or give another path", a)
	}
	if err := os.Remove(a.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot listen at %s: %w", a, root(err))
	}
	return nil
}

// Close stops listening.
func (d *Door) Close() error {
	if d.made != nil {
		if now, err := os.Lstat(d.Address.Path); err == nil && os.SameFile(d.made, now) {
			os.Remove(d.Address.Path)
		}
	}
	return d.Listener.Close()
}

// root returns the cause of an error of package net or os, without the operation and the address,
// which the caller adds.
func root(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return cmp.Or(errors.Unwrap(err), err)
}
