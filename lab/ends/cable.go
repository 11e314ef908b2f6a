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

// Wire is what a cable is like. Its zero value is an ordinary one.
type Wire struct {
	// Queues is how many queues each side has, 0 for one. Frames that are sent
	// from different CPUs meet in one queue or go side by side in several.
	Queues int
	// MTU is the largest packet in bytes, 0 for DefaultMTU.
	MTU int
}

// DefaultMTU is Ethernet's.
const DefaultMTU = 1500

// Cable joins near, in namespace at, to an end's interface far in another
// namespace, and gives the end the n-th station's addresses. Both sides are up.
func Cable(at *Namespace, near string, to *Namespace, far string, n int, wire Wire) (End, error) {
	mac, addr := Number(n)
	queues := max(wire.Queues, 1)
	mtu := wire.MTU
	if mtu == 0 {
		mtu = DefaultMTU
	}
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

// Congestion is the congestion control of every connection between ends. One
// that paces, such as BBR, would hide what the fabric costs.
const Congestion = "cubic"

// Adopt makes an end of an interface that is in the namespace already: gives
// it an address, sets it up, and has TCP use Congestion towards the others.
func (n *Namespace) Adopt(ifname string, addr netip.Prefix) (End, error) {
	l, err := n.link.LinkByName(ifname)
	if err != nil {
		return End{}, fmt.Errorf("%s: %w", ifname, err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), 32)}}
	if err := n.link.AddrAdd(l, ip); err != nil {
		return End{}, fmt.Errorf("address of %s: %w", ifname, err)
	}
	if err := n.link.LinkSetUp(l); err != nil {
		return End{}, fmt.Errorf("%s up: %w", ifname, err)
	}
	// The route asks for it because the sysctl may only be set to what the
	// machine's own default is.
	others := &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(16, 32)}
	others.IP = others.IP.Mask(others.Mask)
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: others, Congctl: Congestion}
	if err := n.link.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return End{}, fmt.Errorf("route with %s by %s: %w", Congestion, ifname, err)
	}
	return End{At: n, Namespace: n, Ifname: ifname, Ifindex: l.Attrs().Index, MAC: l.Attrs().HardwareAddr, Addr: addr}, nil
}

// Features are the offloads of an interface that the lab sets.
type Features struct {
	Segmentation bool // tso and gso: the sender hands over packets of up to 64 KiB
	GRO          bool // the receiver joins packets; on a veth also: takes XDP frames
}

// SetFeatures sets the offloads of an interface, as
// `ethtool -K IFNAME tso X gso X gro Y` does.
func (n *Namespace) SetFeatures(ifname string, f Features) error {
	err := n.Do(func() error {
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

// Traffic is what an interface received and sent since it was made.
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
