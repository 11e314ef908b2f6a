// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// egressGroup is the group of the interfaces that have an IPv4 or IPv6 default route, of any
// metric, as on OpenBSD (ifconfig(8)). Only default routes in the table main count here, as in
// OpenBSD's routing table 0.
const egressGroup = "egress"

// egress returns the indexes of the namespace's devices in that group.
func egress() (map[int]bool, error) {
	devices := map[int]bool{}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		for tries := 0; ; tries++ {
			again, err := defaultRoutes(family, devices)
			if err != nil {
				return nil, fmt.Errorf("list the default routes: %w", err)
			}
			if !again || tries == minLists {
				break
			}
		}
	}
	return devices, nil
}

// defaultRoutes adds the devices of a family's default routes. again reports that the routes have
// changed meanwhile. A router may have a million routes. The kernel sends IPv4 routes in the order
// of their addresses, and makes the list while it is read, so defaultRoutes stops reading after the
// default routes.
func defaultRoutes(family uint8, devices map[int]bool) (again bool, err error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer socket.Close()
	// With this option, the kernel filters by table.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return false, err
	}
	ask := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	ask.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}})
	if err := socket.Send(ask); err != nil {
		return false, err
	}
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			return false, err
		}
		for _, m := range messages {
			if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				again = true
			}
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if len(m.Data) < 4 {
					return again, nil
				}
				n := int32(binary.NativeEndian.Uint32(m.Data))
				if n >= 0 || unix.Errno(-n) == unix.ENOENT { // the table does not exist
					return again, nil
				}
				return false, unix.Errno(-n)
			case unix.RTM_NEWROUTE:
				if routeOut(m.Data, family, devices) {
					return again, nil
				}
			}
		}
	}
}

// routeOut adds the devices of a route if it is a default route. last reports that no IPv4 default
// route can come after this one.
func routeOut(b []byte, family uint8, devices map[int]bool) (last bool) {
	if len(b) < unix.SizeofRtMsg || b[0] != family {
		return false
	}
	bits, table, kind := b[1], b[4], b[7]
	attributes, err := nl.ParseRouteAttr(b[unix.SizeofRtMsg:])
	if err != nil {
		return false
	}
	if bits != 0 {
		for _, a := range attributes { // 0.0.0.0/8 precedes 0/0
			if a.Attr.Type == unix.RTA_DST && family == unix.AF_INET {
				return nl.NativeEndian().Uint32(a.Value) != 0
			}
		}
		return false
	}
	if table != unix.RT_TABLE_MAIN || kind != unix.RTN_UNICAST {
		return false
	}
	for _, a := range attributes {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			devices[int(binary.NativeEndian.Uint32(a.Value))] = true
		case unix.RTA_MULTIPATH:
			// of struct rtnexthop: length, flags, hops, interface
			for v := a.Value; len(v) >= unix.SizeofRtNexthop; {
				devices[int(binary.NativeEndian.Uint32(v[4:]))] = true
				n := int(binary.NativeEndian.Uint16(v))
				if n < unix.SizeofRtNexthop {
					break
				}
				v = v[min((n+3)&^3, len(v)):]
			}
		}
	}
	return false
}
