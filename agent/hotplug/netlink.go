// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bascule/bridge"
)

// receiveBuffer, in bytes, has room for some thousand events: as many devices as can be made while
// an edit of a large bridge runs. If more come, a list of all devices makes up for the lost events.
const receiveBuffer = 16 << 20

// largestMessage is larger than any datagram of events, in bytes.
const largestMessage = 64 << 10

// A listener receives the events of the devices, addresses and default routes of a network
// namespace (rtnetlink(7)).
type listener struct {
	events *os.File
	conn   *netlink.Handle // for requests
	links  func() ([]netlink.Link, error)
	buf    []byte
}

// listen starts to receive events in the switch's namespace.
func listen(s *bridge.Switch) (*listener, error) {
	l := &listener{buf: make([]byte, largestMessage)}
	err := s.Inside(func() (err error) {
		if l.conn, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		l.links = l.conn.LinkList
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		l.events = os.NewFile(uintptr(fd), "netlink")
		// the limit net.core.rmem_max does not apply with CAP_NET_ADMIN
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
			return err
		}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, defaultRoutes()); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{
			Family: unix.AF_NETLINK,
			Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE,
		})
	})
	if err != nil {
		l.close()
		return nil, fmt.Errorf("listen to netlink: %w", err)
	}
	return l, nil
}

func (l *listener) close() {
	if l.conn != nil {
		l.conn.Close()
	}
	if l.events != nil {
		l.events.Close()
	}
}

// defaultRoutes returns a socket filter that drops the events of all routes but default routes: a
// routing daemon may change a million routes at once.
func defaultRoutes() *unix.SockFprog {
	const (
		load     = unix.BPF_LD | unix.BPF_ABS
		jumpSame = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		kindAt   = 4                     // nlmsg_type
		bitsAt   = unix.NLMSG_HDRLEN + 1 // rtm_dst_len
		all      = 0xffffffff
	)
	// A filter loads words in network byte order, and the kernel writes messages in its own.
	kind := func(k uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, k)))
	}
	program := []unix.SockFilter{
		{Code: load | unix.BPF_H, K: kindAt},
		{Code: jumpSame, K: kind(unix.RTM_NEWROUTE), Jt: 1},
		{Code: jumpSame, K: kind(unix.RTM_DELROUTE), Jf: 2},
		{Code: load | unix.BPF_B, K: bitsAt},
		{Code: jumpSame, K: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: all},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
}

// errOverrun means that events were lost.
var errOverrun = errors.New("events were lost")

// next waits for events, until the read deadline, and passes all that have come to the table. It
// returns their number. The error is errOverrun if events are missing.
func (l *listener) next(t *table) (n int, err error) {
	raw, err := l.events.SyscallConn()
	if err != nil {
		return 0, err
	}
	var trouble error
	err = raw.Read(func(fd uintptr) bool {
		for {
			size, from, err := unix.Recvfrom(int(fd), l.buf, 0)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return n > 0 || trouble != nil
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.ENOBUFS):
				trouble = errOverrun
			case err != nil:
				trouble = err
				return true
			default:
				if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != nl.PidKernel {
					continue
				}
				k, err := tell(t, l.buf[:size])
				n += k
				if err != nil {
					trouble = err
				}
			}
		}
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, errors.Join(err, trouble)
}

// Passes the events of one datagram to the table.
func tell(t *table, b []byte) (n int, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return n, errOverrun // the rest can't be parsed
		}
		body := b[unix.NLMSG_HDRLEN:size]
		switch kind := binary.NativeEndian.Uint16(b[4:]); kind {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			n++
			t.addressed()
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			// messages of other families are about other things than devices, such as
			// ports of Linux bridges
			if len(body) < unix.SizeofIfInfomsg || body[0] != unix.AF_UNSPEC {
				break
			}
			n++
			if kind == unix.RTM_DELLINK {
				t.vanished(int(int32(binary.NativeEndian.Uint32(body[4:]))))
				break
			}
			link, err := netlink.LinkDeserialize(nil, body)
			if err != nil {
				return n, fmt.Errorf("read an event of netlink: %w", err)
			}
			t.appeared(describe(link))
		}
		b = b[min(nlmsgAlign(size), len(b)):]
	}
	return n, nil
}

func nlmsgAlign(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// errRestless means that devices come and go too fast to be listed.
var errRestless = errors.New("list interfaces: they change too fast")

// devices lists all devices of the namespace.
func (l *listener) devices() ([]device, error) {
	for range 10 {
		links, err := l.links()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue // devices came or went meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		list := make([]device, 0, len(links))
		for _, link := range links {
			list = append(list, describe(link))
		}
		return list, nil
	}
	return nil, errRestless
}

// there reports whether a device still exists under its name.
func (l *listener) there(d device) bool {
	link, err := l.conn.LinkByIndex(d.index)
	return err == nil && link.Attrs().Name == d.name
}

// describe sets a device's description.
func (l *listener) describe(d device, text string) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: d.index, Name: d.name}}
	return l.conn.LinkSetAlias(link, text)
}

// setUp sets a device up, or down.
func (l *listener) setUp(d device, up bool) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: d.index, Name: d.name}}
	if up {
		return l.conn.LinkSetUp(link)
	}
	return l.conn.LinkSetDown(link)
}

func describe(l netlink.Link) device {
	a := l.Attrs()
	d := device{
		index: a.Index, name: a.Name, kind: l.Type(),
		ethernet: a.EncapType == "ether", loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
		switchEnd: bridge.IsSwitchEnd(l), master: a.MasterIndex, group: a.Group, mtu: a.MTU,
		xdp:       a.Xdp != nil && a.Xdp.Attached,
		alias:     a.Alias,
		up:        a.RawFlags&unix.IFF_UP != 0,
		running:   a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_RUNNING != 0,
		below:     bridge.LowerOf(l),
		peerNetns: -1,
	}
	if d.kind == "veth" {
		d.peer, d.peerNetns = a.ParentIndex, a.NetNsID
	}
	return d
}
