// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is an Ethernet interface that traffic starts from or arrives at.
type End struct {
	// At is where the end's programs run.
	At Place
	// Namespace is where its interface is; nil for a guest's.
	Namespace *Namespace
	Ifname    string
	Ifindex   int
	MAC       net.HardwareAddr
	Addr      netip.Prefix
	// Gateway is the hardware address of the router that it sends by; nil where
	// the other ends are on its own link.
	Gateway net.HardwareAddr
}

// Number is the n-th station of the lab, from 1: its hardware and IP address.
// The IP addresses are of 198.18.0.0/15, which RFC 2544 set aside for
// benchmarks.
func Number(n int) (net.HardwareAddr, netip.Prefix) {
	mac := net.HardwareAddr{0x02, 0xb5, 0xc0, 0, byte(n >> 8), byte(n)}
	addr := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	return mac, netip.PrefixFrom(addr, 15)
}

// Wire has the properties of a cable. Its zero value is an ordinary one.
type Wire struct {
	// Queues is how many queues each side has, 0 for one. Frames that are sent
	// from different CPUs meet in one queue or go side by side in several.
	Queues int
	// MTU is the largest packet in bytes, 0 for DefaultMTU.
	MTU int
}

// DefaultMTU is Ethernet's.
const DefaultMTU = 1500

func (w Wire) mtu() int {
	if w.MTU == 0 {
		return DefaultMTU
	}
	return w.MTU
}

// Cable joins near, in namespace at, to an end's interface far in another
// namespace, and gives the end the n-th station's addresses. Both sides are up.
func Cable(at *Namespace, near string, to *Namespace, far string, n int, wire Wire) (End, error) {
	mac, addr := Number(n)
	queues := max(wire.Queues, 1)
	mtu := wire.mtu()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = near
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues
	attrs.MTU = mtu
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         far,
		PeerHardwareAddr: mac,
		PeerNamespace:    netlink.NsFd(int(to.handle)),
		PeerNumTxQueues:  uint32(queues),
		PeerNumRxQueues:  uint32(queues),
		PeerMTU:          uint32(mtu),
	}
	what := fmt.Sprintf("cable from %s in %s to %s in %s", near, at.Name, far, to.Name)
	if err := at.link.LinkAdd(veth); err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	end, err := to.Adopt(far, addr)
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	l, err := at.link.LinkByName(near)
	if err == nil {
		err = at.link.LinkSetUp(l)
	}
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	return end, nil
}

// Macvlan makes a macvlan device in bridge mode on the device parent of
// namespace at, as an end's interface in another namespace or the same one, and
// gives the end the n-th station's addresses. It is up.
func Macvlan(at *Namespace, parent string, to *Namespace, ifname string, n int, wire Wire) (End, error) {
	what := fmt.Sprintf("macvlan %s in %s on %s in %s", ifname, to.Name, parent, at.Name)
	l, err := at.link.LinkByName(parent)
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	mac, addr := Number(n)
	queues := max(wire.Queues, 1)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ifname
	attrs.HardwareAddr = mac
	attrs.ParentIndex = l.Attrs().Index
	attrs.Namespace = netlink.NsFd(int(to.handle))
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues
	attrs.MTU = l.Attrs().MTU
	if err := at.link.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	end, err := to.Adopt(ifname, addr)
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", what, err)
	}
	return end, nil
}

// Pair joins two devices of the namespace by a cable. Both are up and have no
// addresses.
func (n *Namespace) Pair(a, b string, wire Wire) error {
	queues := max(wire.Queues, 1)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues
	attrs.MTU = wire.mtu()
	veth := &netlink.Veth{
		LinkAttrs:       attrs,
		PeerName:        b,
		PeerNumTxQueues: uint32(queues),
		PeerNumRxQueues: uint32(queues),
		PeerMTU:         uint32(attrs.MTU),
	}
	if err := n.link.LinkAdd(veth); err != nil {
		return fmt.Errorf("cable from %s to %s in %s: %w", a, b, n.Name, err)
	}
	for _, name := range []string{a, b} {
		l, err := n.link.LinkByName(name)
		if err == nil {
			err = n.link.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("%s up in %s: %w", name, n.Name, err)
		}
	}
	return nil
}

// Congestion is the congestion control of every connection between ends. One
// that paces, such as BBR, would hide the cost of the fabric.
const Congestion = "cubic"

// Adopt makes an end of an interface that is in the namespace already: gives
// it an address, sets it up, and has TCP use Congestion towards the others.
func (n *Namespace) Adopt(ifname string, addr netip.Prefix) (End, error) {
	l, err := n.link.LinkByName(ifname)
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", ifname, err)
	}
	if err := n.link.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return End{}, fmt.Errorf("address of %s: %w", ifname, err)
	}
	if err := n.link.LinkSetUp(l); err != nil {
		return End{}, fmt.Errorf("%s up: %w", ifname, err)
	}
	// The route asks for it because the sysctl may only be set to what the
	// machine's own default is.
	others := netip.PrefixFrom(addr.Addr(), 16).Masked()
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(others), Congctl: Congestion}
	if err := n.link.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return End{}, fmt.Errorf("route with %s by %s: %w", Congestion, ifname, err)
	}
	return End{At: n, Namespace: n, Ifname: ifname, Ifindex: l.Attrs().Index, MAC: l.Attrs().HardwareAddr, Addr: addr}, nil
}

// Behind moves an end into a subnet of its own. The subnet's router has the
// address gateway there and the hardware address mac. The end sends to other
// subnets by the router.
func (e *End) Behind(addr netip.Prefix, gateway netip.Addr, mac net.HardwareAddr) error {
	what := fmt.Sprintf("%s in %s, behind %s", e.Ifname, e.Namespace.Name, gateway)
	l, err := e.Namespace.link.LinkByIndex(e.Ifindex)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	// With its last address a device loses its routes.
	if err := e.Namespace.link.AddrDel(l, &netlink.Addr{IPNet: ipNet(e.Addr)}); err != nil {
		return fmt.Errorf("%s: its former address: %w", what, err)
	}
	_, all := Number(0)
	err = errors.Join(
		e.Namespace.Subnet(e.Ifname, addr),
		e.Namespace.Neighbour(e.Ifname, gateway, mac),
	)
	if err == nil {
		err = e.Namespace.link.RouteAdd(&netlink.Route{
			LinkIndex: e.Ifindex, Gw: gateway.AsSlice(), Dst: ipNet(all.Masked()), Congctl: Congestion,
		})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	e.Addr, e.Gateway = addr, mac
	return nil
}

// SetMAC gives an interface a hardware address.
func (n *Namespace) SetMAC(ifname string, mac net.HardwareAddr) error {
	l, err := n.link.LinkByName(ifname)
	if err == nil {
		err = n.link.LinkSetHardwareAddr(l, mac)
	}
	if err != nil {
		return fmt.Errorf("address %s of %s in %s: %w", mac, ifname, n.Name, err)
	}
	return nil
}

// Subnet gives an interface an address, and has TCP use Congestion towards the
// rest of its subnet.
func (n *Namespace) Subnet(ifname string, addr netip.Prefix) error {
	l, err := n.link.LinkByName(ifname)
	if err == nil {
		err = n.link.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr)})
	}
	if err == nil {
		// In place of the route that comes with the address.
		err = n.link.RouteReplace(&netlink.Route{
			LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(addr.Masked()), Congctl: Congestion,
		})
	}
	if err != nil {
		return fmt.Errorf("%s of %s in %s: %w", addr, ifname, n.Name, err)
	}
	return nil
}

// Neighbour notes for good which hardware address an address on an interface's
// link has, so that no frame waits until that is asked for.
func (n *Namespace) Neighbour(ifname string, addr netip.Addr, mac net.HardwareAddr) error {
	l, err := n.link.LinkByName(ifname)
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	if err == nil {
		err = n.link.NeighSet(&netlink.Neigh{
			LinkIndex:    l.Attrs().Index,
			Family:       family,
			State:        netlink.NUD_PERMANENT,
			IP:           addr.AsSlice(),
			HardwareAddr: mac,
		})
	}
	if err != nil {
		return fmt.Errorf("neighbour %s of %s in %s: %w", addr, ifname, n.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Features are the offloads of an interface that the lab sets.
type Features struct {
	Segmentation bool // tso and gso: the sender hands over packets of up to 64 KiB
	GRO          bool // the receiver joins packets; on a veth also: takes XDP frames
}

// SetFeatures sets the offloads of an interface, as
// `ethtool -K IFNAME tso X gso X gro Y` does. Unavailable tells of a driver that
// takes large packets whatever it is told.
func (n *Namespace) SetFeatures(ifname string, f Features) error {
	l, err := n.link.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("offloads of %s in %s: %w", ifname, n.Name, err)
	}
	// ALWAYS_ON_OFFLOADS of the kernel's macvlan.c. To limit the segments of a
	// packet to one instead (gso_max_segs) stalls TCP.
	if l.Type() == "macvlan" && !f.Segmentation {
		return &Unavailable{"offloads cannot be off: a macvlan device always takes large packets"}
	}
	err = n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(ifname, map[string]bool{
			"tx-tcp-segmentation":          f.Segmentation,
			"tx-tcp-ecn-segmentation":      f.Segmentation,
			"tx-tcp-mangleid-segmentation": f.Segmentation,
			"tx-tcp6-segmentation":         f.Segmentation,
			"tx-generic-segmentation":      f.Segmentation,
			"rx-gro":                       f.GRO,
		})
	})
	if err != nil {
		return fmt.Errorf("offloads of %s in %s: %w", ifname, n.Name, err)
	}
	return nil
}

// Traffic is the traffic that an interface received and sent since it was made.
type Traffic struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
}

// Traffic reads the counters of an interface.
func (n *Namespace) Traffic(ifname string) (Traffic, error) {
	l, err := n.link.LinkByName(ifname)
	if err != nil {
		return Traffic{}, fmt.Errorf("counters of %s in %s: %w", ifname, n.Name, err)
	}
	s := l.Attrs().Statistics
	if s == nil {
		return Traffic{}, nil
	}
	return Traffic{RxPackets: s.RxPackets, RxBytes: s.RxBytes, TxPackets: s.TxPackets, TxBytes: s.TxBytes}, nil
}
