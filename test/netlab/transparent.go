// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Transparent is the Control function of a socket for addresses that the host does not have
// (IP_TRANSPARENT). The socket also returns the destination of datagrams: see OriginalDst.
func Transparent(_, _ string, c syscall.RawConn) (err error) {
	set := func(fd uintptr) {
		// Only one of the two is for the socket's family.
		err4 := unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		err6 := unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		if err4 != nil && err6 != nil {
			err = err4
			return
		}
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_RECVORIGDSTADDR, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR, 1)
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err := c.Control(set); err != nil {
		return err
	}
	return err
}

// OriginalDst returns the destination of a datagram from its control messages.
func OriginalDst(messages []byte) (to netip.AddrPort, err error) {
	list, err := unix.ParseSocketControlMessage(messages)
	for i := range list {
		a, err := unix.ParseOrigDstAddr(&list[i])
		if err != nil {
			continue
		}
		switch a := a.(type) {
		case *unix.SockaddrInet4:
			to = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
		case *unix.SockaddrInet6:
			to = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
		}
	}
	return to, err
}
