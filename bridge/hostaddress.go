// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	mathbits "math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ParsePrefix parses an interface address with its prefix length, such as 192.0.2.1/24. The error
// is a *[UsageError] if s is malformed, or if an interface of a host port cannot have the address.
func ParsePrefix(s string) (netip.Prefix, error) {
	address, length, ok := strings.Cut(s, "/")
	switch {
	case s == "dhcp" || s == "autoconf" || s == "slaac":
		return netip.Prefix{}, usagef(s, "the host's own programs request addresses from servers and routers; leave addresses out")
	case strings.ContainsAny(s, " \t"):
		return netip.Prefix{}, usagef(s, "not one address with the length of its network; put a comma between two, and a slash before a length")
	}
	a, err := ParseAddress(address)
	switch {
	case err != nil:
		return netip.Prefix{}, usagef(s, "%w", errors.Unwrap(err))
	case !ok:
		return netip.Prefix{}, usagef(s, "the length of its network is missing; give it as 192.0.2.1/24 or 2001:db8::1/64")
	}
	if mask, err := netip.ParseAddr(length); err == nil && a.Is4() && mask.Is4() {
		n, err := MaskLength(mask)
		if err != nil {
			return netip.Prefix{}, usagef(s, "%w", err)
		}
		return netip.Prefix{}, usagef(s, "a mask in the place of its length; give %s/%d", address, n)
	}
	if a.IsLinkLocalUnicast() && a.Is6() {
		return netip.Prefix{}, usagef(s, "a link-local address, which each interface assigns itself; add others with ip-address(8)")
	}
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Bits() == 0 {
		return p, usagef(s, "not a prefix length; give 1 to %d", a.BitLen())
	}
	return p, nil
}

// MaskLength returns the prefix length of an IPv4 network mask such as 255.255.255.0.
func MaskLength(mask netip.Addr) (int, error) {
	b := mask.As4()
	bits := binary.BigEndian.Uint32(b[:])
	ones := mathbits.LeadingZeros32(^bits)
	if bits<<ones != 0 {
		return 0, fmt.Errorf("the mask %s has a hole; give one such as 255.255.255.0", mask)
	}
	return ones, nil
}

// A HostInterface is the configuration of the host's interface of a host port.
type HostInterface struct {
	// Addresses are its permanent addresses; others are removed, except for link-local ones.
	// Nil leaves all addresses unchanged.
	Addresses []netip.Prefix
	Up        *bool // nil brings it up if it has Addresses, and leaves it unchanged otherwise
}

// SetHostInterface configures the host's interface of a host port. The rules of pf follow at once.
func (s *Switch) SetHostInterface(bridge, port string, want HostInterface) error {
	what := "set up the interface of " + port + " of " + bridge
	err := s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		host, err := hostInterface(b, what, bridge, port)
		if err != nil {
			return err
		}
		speakUp(host.Attrs().Name)
		down := want.Up != nil && !*want.Up
		had, err := keptAddresses(host)
		if down && err == nil { // first, because the kernel removes IPv6 addresses with it
			err = netlink.LinkSetDown(host)
		}
		if err == nil && want.Addresses != nil {
			err = setAddresses(host, want.Addresses)
		}
		if err == nil && !down && (want.Up != nil || len(want.Addresses) > 0) {
			err = bringUp(host)
		}
		if err == nil {
			TellNeighbours(host, slices.DeleteFunc(slices.Clone(want.Addresses), func(p netip.Prefix) bool { return slices.Contains(had, p) }))
		}
		if errors.Is(err, unix.EACCES) { // only root may do it
			name := host.Attrs().Name
			return refused(what, "IPv6 is disabled at "+name, "enable it: 'sysctl net.ipv6.conf."+name+".disable_ipv6=0'")
		}
		return failed(what, err)
	})
	if err != nil {
		return err
	}
	list, err := s.Bridges() // rules of any bridge may name the interface
	for _, b := range list {
		_, bad := s.RefreshPF(b.Name)
		err = cmp.Or(err, bad)
	}
	return err
}

// hostInterface returns the host's interface of a host port.
func hostInterface(b *datapath.Bridge, what, bridge, port string) (netlink.Link, error) {
	for _, p := range datapath.Ports(&b.Config) {
		if p.Notes&datapath.PortHost == 0 || !b.HasDevice(p) || hostName(p) != port {
			continue
		}
		device, err := netlink.LinkByIndex(int(p.Ifindex))
		if err != nil {
			return nil, failed(what, err)
		}
		if !hostHere(device) {
			return nil, refused(what, "its interface is in another network namespace", "give it addresses there")
		}
		if host := otherEnd(device); host != nil {
			return host, nil
		}
	}
	return nil, refused(what, "there is no host port of this name", "see 'bascule port show "+bridge+"'")
}

// setAddresses makes want the permanent addresses of an interface. It adds new ones first, so that the host always has
// the addresses that stay.
func setAddresses(l netlink.Link, want []netip.Prefix) error {
	name := l.Attrs().Name
	had, err := hostAddresses(l.Attrs().Index, name)
	if err != nil {
		return err
	}
	for _, p := range want {
		if slices.ContainsFunc(had, func(a HostAddress) bool { return a.kept() && a.prefix() == p }) {
			continue
		}
		if err := netlink.AddrAdd(l, linkAddress(p)); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	now, err := hostAddresses(l.Attrs().Index, name)
	if err != nil {
		return err
	}
	leave := func(a HostAddress) bool {
		return a.kept() && !(a.is6() && a.local().IsLinkLocalUnicast()) && !slices.Contains(want, a.prefix())
	}
	if !slices.ContainsFunc(now, leave) {
		return nil
	}
	routes, err := routesBy(map[uint32]string{uint32(l.Attrs().Index): name})
	if err != nil {
		return err
	}
	for _, a := range now {
		if leave(a) {
			if err := a.remove(l); err != nil {
				return fmt.Errorf("address %s: %w", a.prefix(), err)
			}
		}
	}
	// With the first address of a network, the kernel removes the others (promote_secondaries), and with the last
	// address of an interface its routes.
	for _, six := range []bool{false, true} {
		for _, a := range asAdded(ofFamily(now, six)) {
			if leave(a) {
				continue
			}
			if err := a.add(l); err != nil {
				return fmt.Errorf("address %s: %w", a.prefix(), err)
			}
		}
	}
	// Some routes have no gateway any more, or no source address.
	_, err = HostNet{Routes: routes}.restoreRoutes(map[string]netlink.Link{name: l}, map[uint32]string{uint32(l.Attrs().Index): name})
	return err
}

// bringUp brings an interface up, and waits until it has its link-local address, which rules may
// refer to. The kernel adds that address a moment after the command.
func bringUp(l netlink.Link) error {
	if l.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	setting := func(name string) string {
		text, _ := os.ReadFile("/proc/sys/net/ipv6/conf/" + l.Attrs().Name + "/" + name)
		return strings.TrimSpace(string(text))
	}
	const none = "1" // of IN6_ADDR_GEN_MODE_NONE
	if setting("disable_ipv6") != "0" || setting("addr_gen_mode") == none {
		return nil
	}
	for range 200 { // a second: the rules hold without the address
		list, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err != nil || slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.IsLinkLocalUnicast() }) {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// linkAddress converts an address for package netlink. An IPv4 address gets the last address of its
// network as the broadcast address, as by "broadcast +" of ip-address(8).
func linkAddress(p netip.Prefix) *netlink.Addr {
	n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	a := &netlink.Addr{IPNet: n}
	if p.Addr().Is4() && p.Bits() < 31 { // RFC 3021: a /31 network has no broadcast address
		last := slices.Clone(n.IP.To4())
		for i := range last {
			last[i] |= ^n.Mask[i]
		}
		a.Broadcast = last
	}
	return a
}

// linkAddresses converts addresses for package netlink.
func linkAddresses(list []netip.Prefix) []netlink.Addr {
	addrs := make([]netlink.Addr, len(list))
	for i, p := range list {
		addrs[i] = *linkAddress(p)
	}
	return addrs
}

// keptAddresses returns the permanent addresses of an interface, without link-local ones.
func keptAddresses(l netlink.Link) (list []netip.Prefix, err error) {
	all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return keptAddresses(l)
	}
	for _, a := range all {
		if d, ok := asDeviceAddress(a); ok && d.kept {
			list = append(list, d.prefix)
		}
	}
	return list, err
}
