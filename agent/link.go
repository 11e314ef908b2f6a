// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// links receives the events of the devices of a network namespace (rtnetlink(7)). Of
// each device it takes little more than whether it has a link.
type links struct {
	file *os.File
	buf  [32 << 10]byte
}

// A linkEvent is an event of a device. An index of 0 means that some events were lost.
type linkEvent struct {
	index int
	up    bool
	below int  // index of the device below it, such as a macvlan's; 0 for none
	tc    bool // only qdiscs or filters of the device have changed
	addr  bool // only addresses of the device have changed
}

// openLinks starts to receive events.
func openLinks(s *bridge.Switch) (*links, error) {
	l := &links{}
	err := s.Inside(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		l.file = os.NewFile(uintptr(fd), "netlink")
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_TC | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	})
	if err != nil {
		l.close()
		return nil, fmt.Errorf("listen to netlink: %w", err)
	}
	return l, nil
}

func (l *links) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// read waits for events. It returns fs.ErrClosed once links is closed.
func (l *links) read() (list []linkEvent, err error) {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	rerr := raw.Read(func(fd uintptr) bool {
		n, from, e := unix.Recvfrom(int(fd), l.buf[:], 0)
		switch k, ok := from.(*unix.SockaddrNetlink); {
		case errors.Is(e, unix.EAGAIN):
			return false
		case errors.Is(e, unix.ENOBUFS):
			list = append(list, linkEvent{})
		case e != nil:
			err = e
		case ok && k.Pid == nl.PidKernel:
			list = linkEvents(l.buf[:n])
		}
		return true
	})
	if errors.Is(rerr, os.ErrClosed) {
		return nil, fs.ErrClosed
	}
	return list, errors.Join(rerr, err)
}

// linkIsUp reports whether a device has a link now: an event may be older than a state
// that was read.
func linkIsUp(s *bridge.Switch, index int) (up bool) {
	err := s.Inside(func() error {
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return err
		}
		up = l.Attrs().RawFlags&running == running
		return nil
	})
	return up && err == nil
}

// running are the flags of a device that is up and has a carrier.
const running = unix.IFF_UP | unix.IFF_RUNNING

// linkEvents parses the events of a datagram.
func linkEvents(b []byte) (list []linkEvent) {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return append(list, linkEvent{}) // the rest cannot be parsed
		}
		kind, body := binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:size]
		// other families are about ports of Linux bridges
		if (kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK) && len(body) >= unix.SizeofIfInfomsg && body[0] == unix.AF_UNSPEC {
			list = append(list, linkEvent{
				index: int(int32(binary.NativeEndian.Uint32(body[4:]))),
				up:    kind == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(body[8:])&running == running,
				below: linkBelow(body[unix.SizeofIfInfomsg:]),
			})
		}
		switch kind {
		case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
			if len(body) >= unix.SizeofIfInfomsg { // the index is at the same offset as a device's
				list = append(list, linkEvent{index: int(int32(binary.NativeEndian.Uint32(body[4:]))), tc: true})
			}
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			if len(body) >= unix.SizeofIfAddrmsg {
				list = append(list, linkEvent{index: int(int32(binary.NativeEndian.Uint32(body[4:]))), addr: true})
			}
		}
		b = b[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
	return list
}

// linkBelow returns the index of the device of the same network namespace that a device
// is on top of, by the device's attributes; 0 for none.
func linkBelow(b []byte) (index int) {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return 0
		}
		switch value := b[unix.SizeofRtAttr:size]; binary.NativeEndian.Uint16(b[2:]) {
		case unix.IFLA_LINK_NETNSID:
			return 0
		case unix.IFLA_LINK:
			if len(value) == 4 {
				index = int(int32(binary.NativeEndian.Uint32(value)))
			}
		}
		b = b[min((size+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(b)):]
	}
	return index
}

// openPacketSocket returns a socket that sends frames in the switch's namespace and
// receives none.
func openPacketSocket(s *bridge.Switch) (fd int, err error) {
	err = s.Inside(func() error {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}
