// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A HostAddress is an IP address of a host port's interface, as a message of rtnetlink(7). The message
// also has what no file has: the peer, the label, the scope, the metric of the network's route, flags
// and lifetimes.
type HostAddress struct {
	Device  string `json:"device"`
	Message []byte `json:"message"`
}

// The size of struct ifaddrmsg of linux/if_addr.h, with which a message about an address begins, and
// the offsets of its members.
const (
	ifaddrmsgSize   = 8
	ifaddrmsgLength = 1
	ifaddrmsgFlags  = 2
	ifaddrmsgScope  = 3
	ifaddrmsgIndex  = 4

	ifaRTPriority = 9  // IFA_RT_PRIORITY
	ifaProto      = 11 // IFA_PROTO
)

// Offsets in struct ifa_cacheinfo of linux/if_addr.h, and the size of its part that a request may set.
const (
	cachePreferred = 0
	cacheValid     = 4
	cacheSize      = 16
)

// forever is INFINITY_LIFE_TIME of net/addrconf.h.
const forever = 1<<32 - 1

// givenFlags are the flags of an address that the kernel takes from a request. Others are its state.
const givenFlags = unix.IFA_F_NODAD | unix.IFA_F_HOMEADDRESS | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MCAUTOJOIN

// addressMessages returns the kernel's messages about all addresses of the namespace, in its order.
func addressMessages() (list [][]byte, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		ask := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		ask.AddData(nl.NewIfAddrmsg(family))
		messages, err := ask.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return addressMessages()
		}
		if err != nil {
			return nil, fmt.Errorf("addresses: %w", err)
		}
		for _, m := range messages {
			if len(m) >= ifaddrmsgSize && m[0] == byte(family) {
				list = append(list, m)
			}
		}
	}
	return list, nil
}

// hostAddresses returns the addresses of an interface in the kernel's order, without the temporary
// ones of IPv6, which the kernel makes itself.
func hostAddresses(index int, name string) ([]HostAddress, error) {
	messages, err := addressMessages()
	if err != nil {
		return nil, err
	}
	return addressesAmong(messages, index, name), nil
}

// addressesAmong does the same as hostAddresses, with the messages about all addresses.
func addressesAmong(messages [][]byte, index int, name string) (list []HostAddress) {
	for _, m := range messages {
		if binary.NativeEndian.Uint32(m[ifaddrmsgIndex:]) == uint32(index) {
			if a, ok := hostAddress(m, name); ok {
				list = append(list, a)
			}
		}
	}
	return list
}

// hostAddress turns the kernel's message about an address into one that requests the address.
func hostAddress(m []byte, name string) (a HostAddress, ok bool) {
	attributes, err := nl.ParseRouteAttr(m[ifaddrmsgSize:])
	if err != nil {
		return a, false
	}
	flags := uint32(m[ifaddrmsgFlags])
	for _, at := range attributes {
		if at.Attr.Type == unix.IFA_FLAGS && len(at.Value) == 4 {
			flags = binary.NativeEndian.Uint32(at.Value)
		}
	}
	if m[0] == unix.AF_INET6 && flags&unix.IFA_F_TEMPORARY != 0 {
		return a, false
	}
	a = HostAddress{name, slices.Clone(m[:ifaddrmsgSize])}
	a.Message[ifaddrmsgFlags] = 0
	binary.NativeEndian.PutUint32(a.Message[ifaddrmsgIndex:], 0)
	for _, at := range attributes {
		value := slices.Clone(at.Value)
		switch at.Attr.Type {
		case unix.IFA_LOCAL, unix.IFA_ADDRESS, unix.IFA_BROADCAST, unix.IFA_LABEL, ifaRTPriority, ifaProto:
		case unix.IFA_FLAGS:
			binary.NativeEndian.PutUint32(value, flags&givenFlags)
		case unix.IFA_CACHEINFO:
			if len(value) < cacheSize {
				continue
			}
			clear(value[cacheValid+4:]) // times of changes
			if flags&unix.IFA_F_DEPRECATED != 0 {
				binary.NativeEndian.PutUint32(value[cachePreferred:], 0)
			}
		default:
			continue
		}
		a.Message = append(a.Message, nl.NewRtAttr(int(at.Attr.Type), value).Serialize()...)
	}
	return a, true
}

// attribute returns a part of the message, which a change of it changes, or nil.
func (a HostAddress) attribute(kind uint16) []byte {
	for rest := a.Message[min(ifaddrmsgSize, len(a.Message)):]; len(rest) >= unix.SizeofRtAttr; {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofRtAttr || length > len(rest) {
			return nil
		}
		if binary.NativeEndian.Uint16(rest[2:]) == kind {
			return rest[unix.SizeofRtAttr:length]
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return nil
}

// is6 reports whether it is an address of IPv6.
func (a HostAddress) is6() bool { return len(a.Message) > 0 && a.Message[0] == unix.AF_INET6 }

// local returns the host's own address.
func (a HostAddress) local() netip.Addr {
	own := a.attribute(unix.IFA_LOCAL)
	if own == nil {
		own = a.attribute(unix.IFA_ADDRESS)
	}
	ip, _ := netip.AddrFromSlice(own)
	return ip
}

// prefix returns the address as files have it: with the length of its network, or with its full length if it has a
// peer, as package netlink has it.
func (a HostAddress) prefix() netip.Prefix {
	own := a.local()
	if peer := a.attribute(unix.IFA_ADDRESS); peer != nil && !bytes.Equal(peer, own.AsSlice()) {
		return netip.PrefixFrom(own, own.BitLen())
	}
	return netip.PrefixFrom(own, int(a.Message[ifaddrmsgLength]))
}

// lifetimes returns the remaining seconds in which the address is preferred and valid.
func (a HostAddress) lifetimes() (preferred, valid uint32) {
	cache := a.attribute(unix.IFA_CACHEINFO)
	if len(cache) < cacheSize {
		return forever, forever
	}
	return binary.NativeEndian.Uint32(cache[cachePreferred:]), binary.NativeEndian.Uint32(cache[cacheValid:])
}

// kept reports whether the address is permanent, and no lease.
func (a HostAddress) kept() bool {
	_, valid := a.lifetimes()
	return valid == forever
}

// later returns the address with the lifetimes that remain after a time. ok is false if it has expired.
func (a HostAddress) later(gone uint32) (_ HostAddress, ok bool) {
	preferred, valid := a.lifetimes()
	a.Message = slices.Clone(a.Message)
	if cache := a.attribute(unix.IFA_CACHEINFO); len(cache) >= cacheSize {
		if preferred != forever {
			preferred -= min(preferred, gone)
		}
		if valid != forever {
			valid -= min(valid, gone)
		}
		binary.NativeEndian.PutUint32(cache[cachePreferred:], preferred)
		binary.NativeEndian.PutUint32(cache[cacheValid:], valid)
	}
	return a, valid > 0
}

// same reports whether two addresses are equal. A lease may have been renewed.
func (a HostAddress) same(b HostAddress) bool {
	key := func(a HostAddress) []byte {
		preferred, _ := a.lifetimes()
		a.Message = slices.Clone(a.Message)
		if cache := a.attribute(unix.IFA_CACHEINFO); len(cache) >= cacheSize {
			state := [cacheSize]byte{0: 1}
			if a.kept() {
				state[1] = 1
				if preferred == 0 {
					state[2] = 1
				}
			}
			copy(cache, state[:])
		}
		return a.Message
	}
	return a.Device == b.Device && bytes.Equal(key(a), key(b))
}

// add gives an interface the address.
func (a HostAddress) add(l netlink.Link) error {
	err := a.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, l)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// remove takes the address from an interface.
func (a HostAddress) remove(l netlink.Link) error {
	err := a.request(unix.RTM_DELADDR, 0, l)
	if errors.Is(err, unix.EADDRNOTAVAIL) { // the kernel has removed it with another one
		return nil
	}
	return err
}

func (a HostAddress) request(kind, flags int, l netlink.Link) error {
	m := slices.Clone(a.Message)
	if len(m) < ifaddrmsgSize {
		return unix.EINVAL
	}
	binary.NativeEndian.PutUint32(m[ifaddrmsgIndex:], uint32(l.Attrs().Index))
	ask := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	ask.AddRawData(m)
	_, err := ask.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// asAdded puts addresses of one family, in the kernel's order, into the order in which they have to be added: the
// kernel has the newest address of IPv6 first.
func asAdded(list []HostAddress) []HostAddress {
	if len(list) > 0 && list[0].is6() {
		slices.Reverse(list)
	}
	return list
}

// ofFamily returns the addresses of one family.
func ofFamily(list []HostAddress, six bool) (some []HostAddress) {
	for _, a := range list {
		if a.is6() == six {
			some = append(some, a)
		}
	}
	return some
}

// restoreAddresses gives interfaces the addresses back that they lack, with all their properties and in the order of
// before, because the first address of a network is the source of the host's packets.
func (n HostNet) restoreAddresses(devices map[string]netlink.Link) (notes []string) {
	gone := uint32(max(0, time.Since(n.Time)/time.Second))
	byDevice := map[string][]HostAddress{}
	for _, was := range n.Addresses {
		if a, ok := was.later(gone); ok {
			byDevice[a.Device] = append(byDevice[a.Device], a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byDevice)) {
		l := devices[name]
		if l == nil {
			continue
		}
		now, err := hostAddresses(l.Attrs().Index, name)
		if err != nil {
			notes = append(notes, err.Error())
			continue
		}
		for _, six := range []bool{false, true} {
			notes = append(notes, restoreFamily(l, asAdded(ofFamily(byDevice[name], six)), asAdded(ofFamily(now, six)))...)
		}
	}
	return notes
}

// restoreFamily makes want the addresses of an interface, which has the addresses now. It leaves others there, which
// the host has got since then.
func restoreFamily(l netlink.Link, want, now []HostAddress) (notes []string) {
	note := func(a HostAddress, err error) {
		if err != nil {
			notes = append(notes, fmt.Sprintf("address %s of %s cannot be given back: %v", a.prefix(), a.Device, err))
		}
	}
	var mine, others []HostAddress
	for _, a := range now {
		if slices.ContainsFunc(want, func(w HostAddress) bool { return w.local() == a.local() }) {
			mine = append(mine, a)
		} else {
			others = append(others, a)
		}
	}
	n := 0
	for n < min(len(want), len(mine)) && want[n].same(mine[n]) {
		n++
	}
	for _, a := range slices.Backward(mine[n:]) {
		note(a, a.remove(l))
	}
	for _, a := range want[n:] {
		note(a, a.add(l))
	}
	if n < len(mine) { // the kernel may have removed these with the first address of their network
		for _, a := range others {
			note(a, a.add(l))
		}
	}
	return notes
}

// plain reports whether a file has all of the address.
func (a HostAddress) plain() bool {
	own, peer, label, flags := a.attribute(unix.IFA_LOCAL), a.attribute(unix.IFA_ADDRESS), a.attribute(unix.IFA_LABEL), a.attribute(unix.IFA_FLAGS)
	preferred, _ := a.lifetimes()
	return (own == nil || bytes.Equal(own, peer)) && a.Message[ifaddrmsgScope] == unix.RT_SCOPE_UNIVERSE &&
		(label == nil || string(bytes.TrimRight(label, "\x00")) == a.Device) && a.attribute(ifaRTPriority) == nil &&
		(len(flags) != 4 || binary.NativeEndian.Uint32(flags)&unix.IFA_F_NOPREFIXROUTE == 0) && preferred == forever
}

// beyondFiles returns the permanent addresses of an interface that have more than a file has.
func beyondFiles(messages [][]byte, index int, name string) (list []netip.Prefix) {
	for _, a := range addressesAmong(messages, index, name) {
		if a.kept() && !a.plain() && !(a.is6() && a.local().IsLinkLocalUnicast()) {
			list = append(list, a.prefix())
		}
	}
	return list
}
