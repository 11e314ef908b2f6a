// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"net"
	"slices"

	"bascule/datapath"
	"bascule/pattern"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A host port is a veth. One end is the host's interface, with the port's name. The other end is
// the port's device, which the switch recognizes by its name and interface group.
const switchEndGroup = 0xb5c

var switchEndForm = pattern.New(`^bsc[0-9a-f]{8}$`)

// switchEndName returns the name of the switch's end of a host port, unless another device has that
// name.
func switchEndName(bridge, port string) string {
	for name := range switchEndNames(bridge, port) {
		return name
	}
	return ""
}

// switchEndNames returns names for the switch's end of a host port, in the order in which they are
// tried. A port whose interface was renamed keeps its end, with the name that belongs to the former
// one.
func switchEndNames(bridge, port string) iter.Seq[string] {
	return func(yield func(string) bool) {
		h := fnv.New32a()
		h.Write([]byte(bridge + "/" + port))
		for n := h.Sum32(); yield(fmt.Sprintf("bsc%08x", n)); n++ {
		}
	}
}

// isSwitchEnd reports whether a device was made by addHost.
func isSwitchEnd(l netlink.Link) bool {
	return l.Type() == "veth" && l.Attrs().Group == switchEndGroup && switchEndForm().MatchString(l.Attrs().Name)
}

// isOwnEnd reports whether a device is an end of a host port of any bridge in this namespace.
func isOwnEnd(l netlink.Link) bool {
	if isSwitchEnd(l) {
		return true
	}
	if l.Type() != "veth" || !hostHere(l) {
		return false
	}
	other := otherEnd(l)
	return other != nil && isSwitchEnd(other)
}

// The MTU of a host port is the MTU of the host's end: ip(8) sets it there, the host's stack obeys
// it, and the datapath reads it there. So the switch's end accepts frames of any size.
const (
	endMTU   = 65535 // ETH_MAX_MTU
	usualMTU = 1500  // RFC 894
)

// MinMTU and MaxMTU are the limits of a host port's MTU (veth_setup() in drivers/net/veth.c).
const (
	MinMTU = 68 // RFC 791
	MaxMTU = endMTU
)

// IPv6MTU is the minimum MTU for IPv6 (RFC 8200, 5).
const IPv6MTU = 1280

// ParseMTU parses the MTU of a host port, in bytes. The error is a *[UsageError].
func ParseMTU(s string) (int, error) {
	n, err := parseUint(s, MinMTU, MaxMTU)
	if err != nil {
		return 0, usagef(s, "%w", err)
	}
	return int(n), nil
}

// mtuApart reports whether the MTU of the switch's end limits the host's end, because it was set
// there, or an earlier build made the port. A program of XDP at the host's end may prohibit a
// larger MTU.
func mtuApart(device, host netlink.Link) bool {
	end, mtu := device.Attrs().MTU, host.Attrs().MTU
	if xdp := host.Attrs().Xdp; xdp != nil && xdp.Attached {
		return end < mtu
	}
	return end <= mtu && end < endMTU
}

// joinMTU makes the MTU of a host port one number. If the MTU of the switch's end was set and is
// smaller, it becomes the host's.
func joinMTU(device, host netlink.Link) error {
	if !mtuApart(device, host) {
		return nil
	}
	if end := device.Attrs().MTU; end < host.Attrs().MTU {
		if err := netlink.LinkSetMTU(host, end); err != nil {
			return err
		}
	}
	err := netlink.LinkSetMTU(device, endMTU)
	if errors.Is(err, unix.EINVAL) {
		return nil // XDP at the host's end prohibits it, and both are equal now
	}
	return err
}

// fitsIndex returns the index of the device whose MTU a port has, or 0 if it is in another
// namespace.
func fitsIndex(p *datapath.Port) uint32 {
	if p.Notes&datapath.PortHost != 0 {
		return p.HostIfindex
	}
	return p.Ifindex
}

// smallestMTU returns the MTU of a new host port among the ports of c.
func (w *world) smallestMTU(c *datapath.Config) int {
	list := w.mtusOf(c, func(p *datapath.Port) bool {
		return p.Notes&datapath.PortHost == 0 && p.Facts&(datapath.PortPatch|datapath.PortSpan) == 0
	})
	if len(list) == 0 {
		return usualMTU
	}
	return slices.Min(list)
}

// addHost makes the two ends of a host port and brings the switch's end up. The host's end has the
// address mac, or its default one if mac is nil. Both ends have their addresses from the start, so
// that udev does not change them (MACAddressPolicy= of systemd.link(5) applies to devices whose
// addr_assign_type is not NET_ADDR_SET).
func addHost(store *datapath.Store, bridge, port string, mac net.HardwareAddr, mtu int) (netlink.Link, error) {
	own, err := ownIdentity()
	if err != nil {
		return nil, fmt.Errorf("name its interface: %w", err)
	}
	used, err := own.used(store, bridge)
	if err != nil {
		return nil, err
	}
	n := 0
	if mac == nil {
		mac, n = own.free(used, 0, ofHost, bridge, port)
	}
	attrs := netlink.NewLinkAttrs()
	for attrs.Name = range switchEndNames(bridge, port) {
		if !isDevice(attrs.Name) {
			break
		}
	}
	attrs.Group = switchEndGroup
	attrs.MTU = endMTU
	attrs.HardwareAddr, _ = own.free(used, n, ofHostEnd, bridge, port) // ends in other namespaces are not in used
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: port, PeerHardwareAddr: mac, PeerMTU: uint32(mtu)}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make its interface: %w", err)
	}
	speakUp(port)
	l, err := netlink.LinkByName(attrs.Name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		netlink.LinkDel(veth)
		return nil, fmt.Errorf("make its interface: %w", err)
	}
	return l, nil
}

// planHost plans changes of the host's end of p.
func (c *draft) planHost(what, bridge string, p *datapath.Port, o PortOptions) error {
	device, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil || !c.hasDevice(p) {
		return refused(what, "its interface is gone", "delete the port, and add it again")
	}
	if !hostHere(device) {
		return refused(what, "its interface is in another network namespace", "set it there with ip(8)")
	}
	host := otherEnd(device)
	if host == nil {
		return refused(what, "its interface is gone", "delete the port, and add it again")
	}
	mac, was := o.MAC, host.Attrs().HardwareAddr
	if o.OwnMAC {
		own, err := ownIdentity()
		if err != nil {
			return failed(what, err)
		}
		used, err := own.used(c.bridge.Store(), bridge)
		if err != nil {
			return failed(what, err)
		}
		delete(used, was.String())
		mac, _ = own.free(used, 0, ofHost, bridge, host.Attrs().Name)
	}
	c.plansHost(p.Id, PortOptions{MAC: mac, MTU: o.MTU})
	if mtu, was := o.MTU, host.Attrs().MTU; mtu != 0 && mtu != was {
		c.warn(c.world.mtuTold(c.next, p, host.Attrs().Name, mtu)...)
		c.before = append(c.before, func() error {
			c.undo = append(c.undo, func() error { return netlink.LinkSetMTU(host, was) })
			if err := netlink.LinkSetMTU(host, mtu); err != nil {
				return fmt.Errorf("give %s MTU %d: %w", host.Attrs().Name, mtu, err)
			}
			return nil
		})
	}
	if mac == nil || bytes.Equal(mac, was) {
		return nil
	}
	id := p.Id
	c.before = append(c.before, func() error {
		p := datapath.PortAt(c.next, id)
		if p == nil {
			return nil // it has been removed again
		}
		speakUp(host.Attrs().Name) // a former version may have made it
		c.undo = append(c.undo, func() error { return netlink.LinkSetHardwareAddr(host, was) })
		if err := netlink.LinkSetHardwareAddr(host, mac); err != nil {
			return fmt.Errorf("give %s its address: %w", host.Attrs().Name, err)
		}
		p.Host = datapath.MACWord([6]byte(mac))
		return nil
	})
	return nil
}

// checkMACs refuses an address of a host port that another host port in the same VLAN has, because
// only one of the two would get frames to it. It warns of an address that a station has.
func (c *draft) checkMACs(what string) error {
	if len(c.hosts) == 0 || c.restores {
		return nil
	}
	entries, err := c.bridge.FDB()
	if err != nil {
		return failed(what, err)
	}
	for _, p := range datapath.Ports(c.next) {
		mac := c.hosts[p.Id].MAC
		if mac == nil {
			continue
		}
		for _, o := range datapath.Ports(c.next) {
			has := o.Host != 0 && datapath.MACWord([6]byte(mac)) == o.Host
			if given := c.hosts[o.Id].MAC; given != nil {
				has = bytes.Equal(given, mac)
			}
			if o != p && has && c.meet(p, o) {
				return refused(what, fmt.Sprintf("%s is also the address of host port %s, and frames to it would reach only one of the two", mac, datapath.PortName(o)), "give another MAC")
			}
		}
		for _, e := range entries {
			by := datapath.PortAt(&c.bridge.Config, e.Port)
			if bytes.Equal(e.MAC[:], mac) && by != nil && by.Notes&datapath.PortHost == 0 {
				c.warn(fmt.Sprintf("%s gets %s, which a station behind %s also has: one of the two gets no frames", datapath.PortName(p), mac, datapath.PortName(by)))
			}
		}
	}
	return nil
}

// meet reports whether two ports share a VLAN. Without VLAN filtering, all do.
func (c *draft) meet(a, b *datapath.Port) bool {
	v := c.vlans.now
	if !filters(c.next) || v == nil {
		return true
	}
	for i := range v {
		if inSet(&v[i].Member, datapath.Slot(a.Id)) && inSet(&v[i].Member, datapath.Slot(b.Id)) {
			return true
		}
	}
	return false
}

// setHost makes p a host port, with the host's end of device.
func setHost(p *datapath.Port, device netlink.Link) error {
	host := otherEnd(device)
	if host == nil {
		return errors.New("its interface is gone")
	}
	setBits(&p.Notes, datapath.PortHost, true)
	learnHost(p, device, host)
	return nil
}

// learnHost stores the properties of the host's end in p.
func learnHost(p *datapath.Port, device, host netlink.Link) {
	p.Host, p.HostIfindex = addressOf(host), hostIndex(device, host)
	// A VRF, or another bridge, has addresses of its own.
	setBits(&p.Notes, datapath.PortApart, p.HostIfindex == 0 || host.Attrs().MasterIndex != 0)
	var table uint32
	if vrf, ok := host.Attrs().Slave.(*netlink.VrfSlave); ok && p.HostIfindex != 0 {
		table = vrf.Table
	}
	datapath.SetHostTable(p, table)
}

// isHostEnd reports whether a device of this namespace is the host's end of p. The device of p must
// exist.
func isHostEnd(l netlink.Link, p *datapath.Port) bool {
	a := l.Attrs()
	return p.Notes&datapath.PortHost != 0 && l.Type() == "veth" && a.ParentIndex == int(p.Ifindex) && a.NetNsID < 0
}

// hostName returns the name of a host port: the name of the host's end if it is in this namespace.
func hostName(p *datapath.Port) string {
	if l, err := netlink.LinkByIndex(int(p.Ifindex)); err == nil && hostHere(l) {
		if host := otherEnd(l); host != nil {
			return host.Attrs().Name
		}
	}
	return datapath.PortName(p)
}

// hostHere reports whether the host's end of a host port is in this namespace. device
// is the port's own device.
func hostHere(device netlink.Link) bool { return device.Attrs().NetNsID < 0 }

// otherEnd returns the other end of a veth, in any namespace, or nil if it cannot be found.
func otherEnd(l netlink.Link) netlink.Link {
	const targetNetnsID = 46 // IFLA_TARGET_NETNSID
	if l.Type() != "veth" {
		return nil
	}
	if l.Attrs().NetNsID < 0 {
		other, err := endHere(l)
		if err != nil {
			return nil
		}
		return other
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(l.Attrs().ParentIndex) // for a veth, the index of the other end
	req.AddData(info)
	req.AddData(nl.NewRtAttr(targetNetnsID, nl.Uint32Attr(uint32(l.Attrs().NetNsID))))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil || len(msgs) == 0 {
		return nil
	}
	other, err := netlink.LinkDeserialize(nil, msgs[0])
	if err != nil {
		return nil
	}
	return other
}

// addressOf returns the MAC address of a device, or 0 if it has none.
func addressOf(l netlink.Link) uint64 {
	if l == nil || len(l.Attrs().HardwareAddr) != 6 {
		return 0
	}
	return datapath.MACWord([6]byte(l.Attrs().HardwareAddr))
}

// peerOutside returns the address of a veth's other end if it is in another network namespace, so
// that the datapath can pass frames to it directly. It returns 0 otherwise.
func peerOutside(l netlink.Link) uint64 {
	if l.Type() != "veth" || l.Attrs().NetNsID < 0 {
		return 0
	}
	return addressOf(otherEnd(l)) // if 0, frames take the usual way
}

// learnDevice stores in p where its device l leads to, and reports whether that has changed.
func learnDevice(p *datapath.Port, l netlink.Link) (changed bool) {
	was := *p
	p.Peer = peerOutside(l)
	if p.Notes&datapath.PortHost != 0 {
		host := otherEnd(l)
		if addressOf(host) != 0 { // otherwise the kernel does not report it at present
			learnHost(p, l, host)
		}
	}
	return *p != was
}

// hostIndex returns the index of the host's end of a port, or 0 if the end is in another network
// namespace.
func hostIndex(device, host netlink.Link) uint32 {
	if !hostHere(device) {
		return 0
	}
	return uint32(host.Attrs().Index)
}

// hostsMoved reports whether the host's interface of a host port of b differs from b's
// configuration.
func hostsMoved(b *datapath.Bridge) bool {
	return slices.ContainsFunc(datapath.Ports(&b.Config), func(p *datapath.Port) bool { return hostMoved(b, p) }) || b.GatewaysMoved()
}

// hostMoved reports whether the host's end of p differs from the configuration: it has another
// address, is in another network namespace, or belongs to another device.
func hostMoved(b *datapath.Bridge, p *datapath.Port) bool {
	if p.Notes&datapath.PortHost == 0 || !b.HasDevice(p) {
		return false
	}
	l, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil {
		return false
	}
	if hostHere(l) {
		if host := otherEnd(l); host != nil && mtuApart(l, host) {
			return true
		}
	}
	now := *p
	learnDevice(&now, l)
	return now.Host != p.Host || now.HostIfindex != p.HostIfindex || now.HostTable != p.HostTable || (now.Notes^p.Notes)&datapath.PortApart != 0
}
