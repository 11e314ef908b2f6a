// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poll waits for sockets with epoll(7).
type poll struct {
	fd     int
	events []unix.EpollEvent
}

func newPoll() (poll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return poll{}, os.NewSyscallError("epoll_create1", err)
	}
	return poll{fd: fd, events: make([]unix.EpollEvent, 64)}, nil
}

// add adds a socket, until it is closed.
func (p poll) add(fd int, events uint32) error {
	err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// wait returns events, or nothing after the timeout.
func (p poll) wait(most time.Duration) ([]unix.EpollEvent, error) {
	// Rounded up: a remaining time must not become 0 milliseconds.
	n, err := unix.EpollWait(p.fd, p.events, int((max(most, 0)+time.Millisecond-1)/time.Millisecond))
	if err == unix.EINTR {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("epoll_wait", err)
	}
	return p.events[:n], nil
}

func (p poll) close() { unix.Close(p.fd) }
