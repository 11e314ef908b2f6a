// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// HostNet has the host's settings of host ports' interfaces that no file contains: routes,
// permanent neighbours, and addresses with all their properties, leased ones too. They are lost when
// the interface is deleted or set down, so a change that is rolled back restores them.
type HostNet struct {
	Time       time.Time       `json:"time"`
	Addresses  []HostAddress   `json:"addresses,omitempty"`
	Routes     []HostRoute     `json:"routes,omitempty"`
	Neighbours []HostNeighbour `json:"neighbours,omitempty"`

	// Uppers are the devices above the interfaces. Masters has the names of the interfaces' and
	// these devices' own masters, such as a Linux bridge or a VRF, by their names.
	Uppers  []HostUpper       `json:"uppers,omitempty"`
	Masters map[string]string `json:"masters,omitempty"`

	// MACs are the MAC addresses of the interfaces, by name. A new interface may get another
	// one than before as long as a device has the former address, which neighbours remember.
	MACs map[string]net.HardwareAddr `json:"macs,omitempty"`
}

// A HostNeighbour is a permanent neighbour, which an administrator has set.
type HostNeighbour struct {
	Device  string           `json:"device"`
	Address netip.Addr       `json:"address"`
	MAC     net.HardwareAddr `json:"mac"`
}

// A HostRoute is a route by interfaces of host ports, as a message of rtnetlink(7). Devices has the
// names of the interfaces by the indexes in the message.
type HostRoute struct {
	Devices map[uint32]string `json:"devices"`
	Message []byte            `json:"message"`
}

// HostNet returns the host's settings of those interfaces of host ports that are in the namespace.
func (s *Switch) HostNet() (it HostNet, err error) {
	err = s.read(func(store *datapath.Store) error {
		names, err := store.Names()
		if err != nil {
			return err
		}
		devices, err := links()
		if err != nil {
			return err
		}
		it = HostNet{Time: time.Now(), MACs: map[string]net.HardwareAddr{}}
		hosts := map[uint32]string{}
		err = eachOpen(store, names, func(_ string, b *datapath.Bridge) error {
			for _, p := range datapath.Ports(&b.Config) {
				l := shownDevice(b, p, devices)
				// it is here, and not in another namespace
				if l != nil && p.Notes&datapath.PortHost != 0 && l.Attrs().Index != int(p.Ifindex) {
					hosts[uint32(l.Attrs().Index)] = l.Attrs().Name
					it.MACs[l.Attrs().Name] = l.Attrs().HardwareAddr
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		var indexes []int
		for index := range hosts {
			indexes = append(indexes, int(index))
		}
		it.Uppers, it.Masters = uppersOf(devices, indexes), map[string]string{}
		for index, l := range devices {
			a := l.Attrs()
			if slices.ContainsFunc(it.Uppers, func(u HostUpper) bool { return u.Name == a.Name }) {
				hosts[uint32(index)] = a.Name
			}
			if master := devices[a.MasterIndex]; master != nil && hosts[uint32(index)] != "" {
				it.Masters[a.Name] = master.Attrs().Name
			}
		}
		messages, err := addressMessages()
		if err != nil {
			return err
		}
		for _, index := range slices.Sorted(maps.Keys(hosts)) {
			it.Addresses = append(it.Addresses, addressesAmong(messages, int(index), hosts[index])...)
		}
		if it.Neighbours, err = neighbours(hosts); err != nil {
			return err
		}
		it.Routes, err = routesBy(hosts)
		return err
	})
	return it, err
}

// RoutesBy returns the number of routes by the interface of a host port.
func (n HostNet) RoutesBy(device string) (count int) {
	for _, r := range n.Routes {
		if slices.Contains(slices.Collect(maps.Values(r.Devices)), device) {
			count++
		}
	}
	return count
}

// neighbours returns the permanent neighbours of interfaces. hosts has their names by index.
func neighbours(hosts map[uint32]string) (list []HostNeighbour, err error) {
	for index, name := range hosts {
		all, err := netlink.NeighList(int(index), netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("neighbours of %s: %w", name, err)
		}
		for _, n := range all {
			if a, ok := netip.AddrFromSlice(n.IP); ok && n.State&netlink.NUD_PERMANENT != 0 && n.HardwareAddr != nil {
				list = append(list, HostNeighbour{name, a.Unmap(), n.HardwareAddr})
			}
		}
	}
	return list, nil
}

// The size of struct rtmsg of linux/rtnetlink.h, with which a message about a route begins, and the
// offsets of its members.
const (
	rtmsgSize     = 12
	rtmsgTable    = 4
	rtmsgProtocol = 5
	rtmsgFlags    = 8

	rtaNHID = 30 // RTA_NH_ID
)

// routesBy returns the routes by interfaces, except for routes that the kernel adds itself.
func routesBy(hosts map[uint32]string) (list []HostRoute, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		ask := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		ask.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		messages, err := ask.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("routes: %w", err)
		}
		for _, m := range messages {
			if r, ok := hostRoute(m, hosts); ok {
				list = append(list, r)
			}
		}
	}
	return list, nil
}

// hostRoute parses a message about a route. ok reports whether the route is by one of the
// interfaces, and the kernel would not add it by itself.
func hostRoute(m []byte, hosts map[uint32]string) (r HostRoute, ok bool) {
	if len(m) < rtmsgSize {
		return r, false
	}
	flags := binary.NativeEndian.Uint32(m[rtmsgFlags:])
	switch protocol := m[rtmsgProtocol]; {
	case flags&unix.RTM_F_CLONED != 0, m[rtmsgTable] == unix.RT_TABLE_LOCAL:
		return r, false
	case protocol == unix.RTPROT_KERNEL, protocol == unix.RTPROT_REDIRECT, protocol == unix.RTPROT_RA:
		return r, false
	}
	r = HostRoute{Devices: map[uint32]string{}, Message: slices.Clone(m[:rtmsgSize])}
	binary.NativeEndian.PutUint32(r.Message[rtmsgFlags:], flags&unix.RTNH_F_ONLINK) // other flags are state
	attributes, err := nl.ParseRouteAttr(m[rtmsgSize:])
	if err != nil {
		return r, false
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_CACHEINFO || a.Attr.Type == rtaNHID {
			continue
		}
		r.Message = append(r.Message, nl.NewRtAttr(int(a.Attr.Type), slices.Clone(a.Value)).Serialize()...)
	}
	known := true
	r.hops(func(index []byte) {
		i := binary.NativeEndian.Uint32(index)
		name, there := hosts[i]
		r.Devices[i], known = name, known && there
	})
	return r, known && len(r.Devices) > 0
}

// hops calls f with each part of the message that is the index of an interface.
func (r HostRoute) hops(f func(index []byte)) {
	const multipath, hopSize = unix.RTA_MULTIPATH, unix.SizeofRtNexthop
	for rest := r.Message[min(rtmsgSize, len(r.Message)):]; len(rest) >= unix.SizeofRtAttr; {
		length, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if length < unix.SizeofRtAttr || length > len(rest) {
			return
		}
		value := rest[unix.SizeofRtAttr:length]
		switch {
		case kind == unix.RTA_OIF && len(value) == 4:
			f(value)
		case kind == multipath:
			for len(value) >= hopSize { // struct rtnexthop
				value[2] &= unix.RTNH_F_ONLINK
				f(value[4:8])
				value = value[min(len(value), max(hopSize, int(binary.NativeEndian.Uint16(value)+3)&^3)):]
			}
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
}

// RestoreHostMACs restores the MAC addresses that HostNet has returned. It must precede anything
// that restarts IPv6 on the interface, because IPv6 derives an address from the MAC address.
func (s *Switch) RestoreHostMACs(was HostNet) (notes []string, err error) {
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if mac := was.MACs[d.Name]; d.Host != "" && !d.Away && mac != nil && !bytes.Equal(mac, d.MAC) {
			more, err := s.SetPorts(d.Host, []string{d.Name}, PortOptions{MAC: mac})
			notes = append(notes, more...)
			if err != nil {
				notes = append(notes, err.Error())
			}
		}
	}
	return notes, nil
}

// RestoreHostNet restores what HostNet has returned and is missing now. left names devices that cannot
// be restored, and the notes have all that cannot be, with the reasons.
func (s *Switch) RestoreHostNet(was HostNet) (left, notes []string, err error) {
	if notes, err = s.RestoreHostMACs(was); err != nil {
		return nil, notes, err
	}
	err = s.Inside(func() error {
		var more []string
		var err error
		if left, more, err = was.restoreUppers(); err != nil {
			return err
		}
		notes = append(notes, more...)
		devices, err := links()
		if err != nil {
			return err
		}
		byName := map[string]netlink.Link{}
		hosts := map[uint32]string{}
		for index, l := range devices {
			byName[l.Attrs().Name], hosts[uint32(index)] = l, l.Attrs().Name
		}
		notes = append(notes, was.restoreAddresses(byName)...)
		notes = append(notes, was.restoreNeighbours(byName)...)
		more, err = was.restoreRoutes(byName, hosts)
		notes = append(notes, more...)
		return err
	})
	return left, notes, err
}

func (n HostNet) restoreNeighbours(devices map[string]netlink.Link) (notes []string) {
	for _, was := range n.Neighbours {
		l := devices[was.Device]
		if l == nil {
			continue
		}
		err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, IP: was.Address.AsSlice(), HardwareAddr: was.MAC, State: netlink.NUD_PERMANENT,
		})
		if err != nil {
			notes = append(notes, fmt.Sprintf("neighbour %s of %s cannot be given back: %v", was.Address, was.Device, err))
		}
	}
	return notes
}

func (n HostNet) restoreRoutes(devices map[string]netlink.Link, hosts map[uint32]string) (notes []string, err error) {
	there, err := routesBy(hosts)
	if err != nil {
		return nil, err
	}
	var missing []HostRoute
	for _, r := range n.Routes {
		now := HostRoute{Devices: map[uint32]string{}, Message: slices.Clone(r.Message)}
		known := len(r.Message) >= rtmsgSize
		now.hops(func(index []byte) {
			name := r.Devices[binary.NativeEndian.Uint32(index)]
			l := devices[name]
			if known = known && l != nil; known {
				binary.NativeEndian.PutUint32(index, uint32(l.Attrs().Index))
				now.Devices[uint32(l.Attrs().Index)] = name
			}
		})
		if known && !slices.ContainsFunc(there, func(t HostRoute) bool { return slices.Equal(t.Message, now.Message) }) {
			missing = append(missing, now)
		}
	}
	// a route by a gateway needs the route to the gateway first, but they may be listed in any
	// order
	for begun, tries := time.Now(), 0; len(missing) > 0; {
		var failed []HostRoute
		var why error
		for _, r := range missing {
			if err := r.add(); err != nil {
				failed, why = append(failed, r), err
			}
		}
		if len(failed) == len(missing) {
			tries++
			if !waitForAddresses(failed, tries, time.Since(begun)) {
				return []string{fmt.Sprintf("routes by host ports cannot be given back: %d: %v", len(failed), why)}, nil
			}
			time.Sleep(addressStep)
		}
		missing = failed
	}
	return nil, nil
}

// The kernel adds the route to the peer of an IPv6 address, and permits the address as a source, a moment after the
// address has passed duplicate address detection, which takes two seconds with its default settings.
const (
	addressStep = 5 * time.Millisecond
	addressMore = 20 // tries at least: the route follows the address
	addressWait = 4 * time.Second
)

// waitForAddresses reports whether routes that cannot be added may succeed later, because the host has new IPv6
// addresses.
func waitForAddresses(failed []HostRoute, tries int, waited time.Duration) bool {
	if waited > addressWait || !slices.ContainsFunc(failed, func(r HostRoute) bool { return r.Message[0] == unix.AF_INET6 }) {
		return false
	}
	list, err := netlink.AddrList(nil, netlink.FAMILY_V6)
	return tries < addressMore || err == nil && slices.ContainsFunc(list, func(a netlink.Addr) bool {
		return a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == unix.IFA_F_TENTATIVE
	})
}

// add adds the route. An IPv4 route replaces another to the same destination.
func (r HostRoute) add() error {
	flags := unix.NLM_F_CREATE | unix.NLM_F_ACK
	if r.Message[0] == unix.AF_INET {
		flags |= unix.NLM_F_REPLACE
	} else {
		flags |= unix.NLM_F_EXCL
	}
	ask := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, flags)
	ask.AddRawData(r.Message)
	_, err := ask.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
