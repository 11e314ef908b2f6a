// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"bascule/bridge"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Space is the network namespace of a container.
type Space struct {
	*netlink.Handle
	ns netns.NsHandle
}

// OpenSpace opens a network namespace by its path.
func OpenSpace(path string) (*Space, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%q is not the path of a network namespace; give an absolute path", path)
	}
	ns, err := bridge.NetnsAt(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		ns.Close()
		return nil, fmt.Errorf("netlink in %s: %w", path, err)
	}
	return &Space{h, ns}, nil
}

// Close closes the namespace.
func (s *Space) Close() {
	s.Handle.Close()
	s.ns.Close()
}

// Is reports whether s is the network namespace of the calling thread.
func (s *Space) Is() bool {
	own, err := netns.Get()
	if err != nil {
		return false
	}
	defer own.Close()
	return s.ns.Equal(own)
}

// Inside calls f on a thread in the namespace. f must not start goroutines.
func (s *Space) Inside(f func() error) error {
	done := make(chan error)
	go func() {
		// The thread stays locked, so it ends with the goroutine.
		runtime.LockOSThread()
		err := netns.Set(s.ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// DeviceName returns the name of an id's device on a switch. It depends only on the id, so that objects of an
// unfinished request are found again.
func DeviceName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "veth" + hex.EncodeToString(sum[:])[:11] // IFNAMSIZ - 1 in all
}

// PeerName returns the name of the other end of an id's device, until it gets the container's name.
func PeerName(id string) string { return "peer" + DeviceName(id)[len("veth"):] }

// A Wire is a veth. One end is in the switch's namespace, the other one is a container's interface.
type Wire struct {
	ID   string
	MTU  int              // of both ends; 0 for the kernel's default
	MAC  net.HardwareAddr // of the container's end; nil for a random one
	Name string           // of the container's end
	To   *Space           // namespace of the container's end; nil for the switch's
}

// ErrUnfinished means that an id's device exists already: another request for it is in progress, or was killed.
var ErrUnfinished = errors.New("its device already exists: another request is in progress or was interrupted")

// ErrInUse means that an id's device exists already, and that its other end is up in some namespace.
var ErrInUse = errors.New("it already exists, and its interface is up; remove it first")

// Make makes the wire. The switch's device is up, and its alias is the id of its owner.
func (w *Wire) Make() (device netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = DeviceName(w.ID), w.MTU, net.FlagUp
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU, veth.PeerHardwareAddr = w.Name, uint32(w.MTU), w.MAC
	if w.To != nil {
		veth.PeerNamespace = netlink.NsFd(int(w.To.ns))
	}
	if err := netlink.LinkAdd(veth); errors.Is(err, unix.EEXIST) {
		if l, there := netlink.LinkByName(attrs.Name); there == nil {
			if l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0 { // both ends are up
				return nil, ErrInUse
			}
			return nil, ErrUnfinished
		}
		return nil, fmt.Errorf("it already has an interface %s", w.Name)
	} else if err != nil {
		return nil, fmt.Errorf("add a veth: %w", err)
	}
	// The kernel ignores an alias when a device is made (rtnl_create_link()).
	if device, err = netlink.LinkByName(attrs.Name); err == nil {
		err = netlink.LinkSetAlias(device, w.ID)
	}
	if err != nil {
		_ = netlink.LinkDel(veth)
		return nil, fmt.Errorf("record the owner of device %s: %w", attrs.Name, err)
	}
	return device, nil
}

// Cut removes the device of an id, and with it the container's end. It keeps a device with this name that has another
// id. A missing device is not an error.
func Cut(id string) error {
	l, err := netlink.LinkByName(DeviceName(id))
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	if alias := l.Attrs().Alias; l.Type() != "veth" || alias != id && alias != "" { // killed before the alias
		return nil
	}
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// Wires returns the ids of Make's devices in the switch's namespace, filtered by a prefix of the id.
func Wires(prefix string) (ids []string, err error) {
	list, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range list {
		if id := l.Attrs().Alias; l.Type() == "veth" && strings.HasPrefix(id, prefix) && l.Attrs().Name == DeviceName(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// A Gateway is the host's own interface on a bridge, which routes a network.
type Gateway struct {
	Bridge, Name string
	VLAN         uint16 // of its port; 0 for a new port's VLANs
	MTU          int    // of the network; 0 leaves the interface's MTU unchanged
	Owner        bridge.Owner
	Addresses    []*net.IPNet
	Force        bool // replace other addresses in the same networks, which are refused otherwise
	Promisc      bool
}

func (g *Gateway) plug() Plug {
	return Plug{Owner: g.Owner, Bridge: g.Bridge, Device: g.Name, Host: true, MTU: g.MTU, VLANs: VLANs(g.VLAN, nil)}
}

// judge refuses a gateway that cannot have its addresses, or whose MTU would remove addresses of others.
func (g *Gateway) judge() error {
	link, err := netlink.LinkByName(g.Name)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("look for %s: %w", g.Name, err)
	}
	mtu := g.MTU
	ip6 := slices.IndexFunc(g.Addresses, func(a *net.IPNet) bool { return a.IP.To4() == nil })
	var lost net.IP
	if ip6 >= 0 {
		lost = g.Addresses[ip6].IP
	}
	if err == nil {
		mtu = cmp.Or(mtu, link.Attrs().MTU)
		there, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list the addresses of %s: %w", g.Name, err)
		}
		for _, a := range there {
			if lost == nil && a.IP.To4() == nil && !a.IP.IsLinkLocalUnicast() {
				lost = a.IP
			}
		}
		for _, want := range g.Addresses {
			if other := g.others(there, want); len(other) > 0 && !g.Force {
				return fmt.Errorf("%s has the address %s, not %s; remove that, or set forceAddress", g.Name, other[0].IPNet, want)
			}
		}
	}
	if lost != nil && mtu != 0 && mtu < bridge.IPv6MTU {
		return fmt.Errorf("the gateway's interface %s cannot have the address %s with MTU %d: IPv6 needs at least %d", g.Name, lost, mtu, bridge.IPv6MTU)
	}
	return nil
}

// fits returns the MTU of the gateway's interface: the network's, or a smaller one of a container that shares the
// gateway. Otherwise the host would send packets that are too large for that container.
func (g *Gateway) fits(s *bridge.Switch) (mtu int, err error) {
	if g.MTU == 0 {
		return 0, nil
	}
	state, err := s.Read(g.Bridge)
	if bridge.Missing(err) {
		return g.MTU, nil
	}
	if err != nil {
		return 0, err
	}
	vid := cmp.Or(g.VLAN, state.Bridge.Config.DefaultPVID)
	mtu = g.MTU
	for _, p := range state.Ports {
		shares := !state.Bridge.Config.VLANFiltering || slices.ContainsFunc(state.VLANs, func(v bridge.PortVLANs) bool {
			return v.Port == p.Name && slices.ContainsFunc(v.Ranges, func(r bridge.VLANRange) bool { return r.First <= vid && vid <= r.Last })
		})
		if shares && p.Owner != nil && p.Type == bridge.TypeNetdev && p.MTU > 0 {
			mtu = min(mtu, p.MTU)
		}
	}
	return mtu, nil
}

// others returns the addresses that conflict with one for the gateway: for IPv4 all other addresses, for IPv6 the ones
// in the same network. It returns none if the interface has the address already.
func (g *Gateway) others(there []netlink.Addr, want *net.IPNet) (list []netlink.Addr) {
	for _, a := range there {
		switch {
		case (a.IP.To4() != nil) != (want.IP.To4() != nil):
		case a.IPNet.String() == want.String():
			return nil
		case a.IP.To4() != nil || a.IPNet.Contains(want.IP) || want.Contains(a.IP):
			list = append(list, a)
		}
	}
	return list
}

// ensure makes the gateway's port, if it is missing, and gives it its addresses. It also turns on forwarding for their
// families.
func (g *Gateway) ensure(s *bridge.Switch, back *Undo) (_ netlink.Link, warnings []string, err error) {
	was, err := netlink.LinkByName(g.Name)
	if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil, fmt.Errorf("look for %s: %w", g.Name, err)
	}
	fits := *g
	if was != nil {
		if fits.MTU, err = g.fits(s); err != nil {
			return nil, nil, err
		}
	}
	if warnings, err = Put(s, fits.plug()); err != nil {
		return nil, warnings, err
	}
	if fits.MTU < g.MTU {
		warnings = append(warnings, fmt.Sprintf("the gateway's interface %s has MTU %d, which containers of other networks have, and drops larger packets of this network (MTU %d)",
			g.Name, fits.MTU, g.MTU))
	}
	if was == nil {
		back.Add(func() { _, _, _ = Remove(s, g.Owner.ID) })
	} else {
		back.Add(func() { _ = netlink.LinkSetMTU(was, was.Attrs().MTU) })
	}
	link, err := netlink.LinkByName(g.Name)
	if err != nil {
		return nil, warnings, fmt.Errorf("look for %s: %w", g.Name, err)
	}
	_ = setSysctl("net/ipv6/conf/"+g.Name+"/accept_ra", "0", back) // IPv6 may be absent
	if g.Promisc && link.Attrs().Promisc == 0 {
		if err := netlink.SetPromiscOn(link); err != nil {
			return nil, warnings, fmt.Errorf("make %s promiscuous: %w", g.Name, err)
		}
		back.Add(func() { _ = netlink.SetPromiscOff(link) })
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, warnings, fmt.Errorf("set %s up: %w", g.Name, err)
		}
		back.Add(func() { _ = netlink.LinkSetDown(link) })
	}
	var come []netip.Prefix
	for _, a := range g.Addresses {
		if a.IP.To4() == nil {
			if err := setSysctl("net/ipv6/conf/"+g.Name+"/disable_ipv6", "0", back); err != nil {
				return nil, warnings, err
			}
		}
		added, err := g.address(link, a, back)
		if err != nil {
			return nil, warnings, err
		}
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && added {
			come = append(come, prefix)
		}
		name := "net/ipv4/ip_forward"
		if a.IP.To4() == nil {
			name = "net/ipv6/conf/all/forwarding"
		}
		if err := setSysctl(name, "1", back); err != nil {
			return nil, warnings, err
		}
	}
	bridge.TellNeighbours(link, come)
	return link, warnings, nil
}

// address adds an address to the interface. It reports whether the address was missing.
func (g *Gateway) address(link netlink.Link, want *net.IPNet, back *Undo) (added bool, err error) {
	there, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list the addresses of %s: %w", g.Name, err)
	}
	if slices.ContainsFunc(there, func(a netlink.Addr) bool { return a.IPNet.String() == want.String() }) {
		return false, nil
	}
	for _, a := range g.others(there, want) {
		if err := netlink.AddrDel(link, &a); err != nil {
			return false, fmt.Errorf("remove %s from %s: %w", a.IPNet, g.Name, err)
		}
		back.Add(func() { _ = netlink.AddrAdd(link, &a) })
	}
	address := &netlink.Addr{IPNet: want}
	if want.IP.To4() == nil {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, address); err != nil && !errors.Is(err, unix.EEXIST) {
		return false, fmt.Errorf("give %s the address %s: %w", g.Name, want, err)
	}
	back.Add(func() { _ = netlink.AddrDel(link, address) })
	return true, nil
}

// sysctl writes a value unless it is set already: /proc/sys may be read-only.
func sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", name)
	if now, err := os.ReadFile(path); err == nil && string(bytes.TrimSpace(now)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}

// setSysctl is sysctl with an undo function.
func setSysctl(name, value string, back *Undo) error {
	was, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err := sysctl(name, value); err != nil {
		return err
	}
	if before := string(bytes.TrimSpace(was)); err == nil && before != value {
		back.Add(func() { _ = sysctl(name, before) })
	}
	return nil
}

// FirstOf returns the first host address of a network, where the gateway is by convention.
func FirstOf(n net.IPNet) net.IP {
	ip := slices.Clone(n.IP.Mask(n.Mask))
	for i := len(ip) - 1; i >= 0; i-- {
		if ip[i]++; ip[i] != 0 {
			break
		}
	}
	return ip
}

// A Route is a route of a container.
type Route struct {
	Dst                   net.IPNet
	Gateway               net.IP // nil for none
	MTU, AdvMSS, Priority int    // 0 for the kernel's default
	Table, Scope          *int   // nil for the kernel's default
}

// Configure gives an interface of the space its addresses, brings it up, and adds routes. With dad it waits until
// duplicate address detection of the IPv6 addresses has finished; otherwise they are usable at once. The kernel then
// announces each address, so that neighbors update their entries for it. A route with the same destination and metric
// as an existing one is added before that one.
func (s *Space) Configure(link netlink.Link, addresses []*net.IPNet, routes []Route, dad bool) error {
	name := link.Attrs().Name
	if len(addresses) > 0 {
		if err := s.Inside(func() error {
			accept := "0"
			if dad {
				accept = "1"
				_ = sysctl("net/ipv6/conf/"+name+"/enhanced_dad", "1")
			}
			_ = sysctl("net/ipv6/conf/"+name+"/accept_dad", accept) // IPv6 may be absent
			_ = sysctl("net/ipv6/conf/"+name+"/ndisc_notify", "1")
			_ = sysctl("net/ipv4/conf/"+name+"/arp_notify", "1")
			return nil
		}); err != nil {
			return fmt.Errorf("enter the container's network namespace: %w", err)
		}
	}
	var late []*net.IPNet // IPv6 addresses
	for _, a := range addresses {
		if a.IP.To4() == nil {
			late = append(late, a)
		} else if err := s.AddrAdd(link, &netlink.Addr{IPNet: a}); err != nil {
			return fmt.Errorf("give %s of the container the address %s: %w", name, a, err)
		}
	}
	if len(late) > 0 { // a runtime may have disabled it for all other interfaces
		if err := s.Inside(func() error {
			return errors.Join(sysctl("net/ipv6/conf/lo/disable_ipv6", "0"), sysctl("net/ipv6/conf/"+name+"/disable_ipv6", "0"),
				sysctl("net/ipv6/conf/"+name+"/keep_addr_on_down", "1"))
		}); err != nil {
			return err
		}
	}
	if err := s.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s of the container up: %w", name, err)
	}
	// The kernel announces IPv4 addresses when the link comes up (arp_notify), and each IPv6 address when it
	// becomes usable (ndisc_notify), which may be while the link is still down.
	for _, a := range late {
		if err := s.AddrAdd(link, &netlink.Addr{IPNet: a}); err != nil {
			return fmt.Errorf("give %s of the container the address %s: %w", name, a, err)
		}
	}
	if len(late) > 0 {
		if err := s.settle(link); err != nil {
			return err
		}
	}
	for _, r := range routes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &r.Dst, Gw: r.Gateway, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority}
		if r.Table != nil {
			route.Table = *r.Table
		}
		switch {
		case r.Scope != nil:
			route.Scope = netlink.Scope(*r.Scope)
		case r.Gateway == nil:
			route.Scope = netlink.SCOPE_LINK
		}
		if err := s.RouteAddEcmp(route); err != nil && !errors.Is(err, unix.EEXIST) { // the same route exists
			return fmt.Errorf("add the container's route to %s: %w", r.Dst.String(), err)
		}
	}
	return nil
}

// dadTime is the timeout of duplicate address detection.
const dadTime = 10 * time.Second

// settle waits until the IPv6 addresses of an interface are usable.
func (s *Space) settle(link netlink.Link) error {
	name := link.Attrs().Name
	for wait, until := time.Millisecond, time.Now().Add(dadTime); ; wait = min(2*wait, 20*time.Millisecond) {
		addresses, err := s.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return fmt.Errorf("list the addresses of %s of the container: %w", name, err)
		}
		tentative := ""
		for _, a := range addresses {
			if a.Flags&unix.IFA_F_DADFAILED != 0 {
				return fmt.Errorf("%s of the container cannot have the address %s: another station has it", name, a.IP)
			}
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				tentative = a.IP.String()
			}
		}
		if tentative == "" {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s of the container could not use the address %s after %s: duplicate address detection did not finish", name, tentative, dadTime)
		}
		time.Sleep(wait)
	}
}

// link returns an interface of the space; a nil space means the calling thread's namespace.
func (s *Space) link(name string) (l netlink.Link, err error) {
	if s == nil {
		l, err = netlink.LinkByName(name)
	} else {
		l, err = s.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s of the container: %w", name, err)
	}
	return l, nil
}
