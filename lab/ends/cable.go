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

// End is an Ethernet interface that sends or receives the traffic.
type End struct {
	// At runs the end's programs.
	At Place
	// Namespace has the end's interface; nil for a guest's.
	Namespace *Namespace
	Ifname    string
	Ifindex   int
	MAC       net.HardwareAddr
	Addr      netip.Prefix
	// Gateway is the hardware address of the end's router; nil if the other ends are on the
	// same link.
	Gateway net.HardwareAddr
}

// Number is the n-th station of the lab, from 1: its hardware and IP address.
// The IP addresses are from 198.18.0.0/15, which RFC 2544 reserves for benchmarks.
func Number(n int) (net.HardwareAddr, netip.Prefix) {
	mac := net.HardwareAddr{0x02, 0xb5, 0xc0, 0, byte(n >> 8), byte(n)}
	addr := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
	return mac, netip.PrefixFrom(addr, 15)
}

// Wire has the properties of a cable. The zero value is a default cable.
type Wire struct {
	// Queues is the number of queues on each side, 0 for one. Frames from different CPUs share
	// one queue, or use several in parallel.
	Queues int
	// MTU is the largest packet in bytes, 0 for DefaultMTU.
	MTU int
}

// DefaultMTU is Ethernet's MTU.
const DefaultMTU = 1500

func (w Wire) mtu() int {
	if w.MTU == 0 {
		return DefaultMTU
	}
	return w.MTU
}

// Cable connects the device near in namespace at with an end's interface far in another namespace,
// and gives the end the n-th station's addresses. Both sides are up.
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
// namespace at. The device is the interface of an end, in another namespace or the same one, and
// gets the n-th station's addresses. It is up.
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

// Pair connects two devices of the namespace with a cable. Both are up and have no addresses.
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

// Congestion is the congestion control of every connection between ends. An algorithm with pacing,
// such as BBR, would hide the cost of the fabric.
const Congestion = "cubic"

// Adopt makes an end of an existing interface in the namespace: it adds an address, sets the
// interface up, and selects Congestion for TCP to the others.
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
	// The route sets it, because the sysctl accepts only the machine's default.
	others := netip.PrefixFrom(addr.Addr(), 16).Masked()
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(others), Congctl: Congestion}
	if err := n.link.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return End{}, fmt.Errorf("route with %s by %s: %w", Congestion, ifname, err)
	}
	return End{At: n, Namespace: n, Ifname: ifname, Ifindex: l.Attrs().Index, MAC: l.Attrs().HardwareAddr, Addr: addr}, nil
}

// Behind moves an end to a subnet of its own. The subnet's router has the address gateway and the
// hardware address mac. The end reaches other subnets through the router.
func (e *End) Behind(addr netip.Prefix, gateway netip.Addr, mac net.HardwareAddr) error {
	what := fmt.Sprintf("%s in %s, behind %s", e.Ifname, e.Namespace.Name, gateway)
	l, err := e.Namespace.link.LinkByIndex(e.Ifindex)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	// A device loses its routes with its last address.
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

// Subnet gives an interface an address, and selects Congestion for TCP to the rest of its subnet.
func (n *Namespace) Subnet(ifname string, addr netip.Prefix) error {
	l, err := n.link.LinkByName(ifname)
	if err == nil {
		err = n.link.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr)})
	}
	if err == nil {
		// This replaces the automatic route of the address.
		err = n.link.RouteReplace(&netlink.Route{
			LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(addr.Masked()), Congctl: Congestion,
		})
	}
	if err != nil {
		return fmt.Errorf("%s of %s in %s: %w", addr, ifname, n.Name, err)
	}
	return nil
}

// Neighbour adds a permanent neighbor entry for an address on an interface's link, so that no frame
// waits for its resolution.
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

// Features are the offloads of an interface that the lab controls.
type Features struct {
	Segmentation bool // tso and gso: the sender passes packets of up to 64 KiB
	GRO          bool // the receiver merges packets; on a veth it also enables XDP frames
}

// SetFeatures sets the offloads of an interface, as
// `ethtool -K IFNAME tso X gso X gro Y` does. It returns an Unavailable for a driver that always
// accepts large packets.
func (n *Namespace) SetFeatures(ifname string, f Features) error {
	l, err := n.link.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("offloads of %s in %s: %w", ifname, n.Name, err)
	}
	// See ALWAYS_ON_OFFLOADS in the kernel's macvlan.c. A limit of one segment in each packet
	// (gso_max_segs) would stall TCP.
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

// Traffic is the number of bytes and frames that an interface has received and sent since its
// creation.
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
