// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// maxName is the maximum length of an interface's name.
const maxName = unix.IFNAMSIZ - 1

// physical is the kind that netlink gives to devices with a driver of their own.
const physical = "device"

// usable returns why a device cannot be a port, and the remedy, or "" if it can.
func usable(l netlink.Link) (why, remedy string) {
	a := l.Attrs()
	switch {
	case a.RawFlags&unix.IFF_LOOPBACK != 0:
		return "it is the loopback interface", "give an Ethernet interface"
	case a.EncapType != "ether":
		return fmt.Sprintf("it is a layer-3 device (link/%s), without Ethernet frames", a.EncapType), "give an Ethernet interface"
	case l.Type() == "vrf":
		return "it is a VRF, which has no frames of its own", "add its devices instead"
	case l.Type() == "bridge":
		return "it is a Linux bridge", "add its ports instead, or join it by a veth pair ('ip link add type veth')"
	case a.MasterIndex != 0:
		return "it belongs to " + nameOf(a.MasterIndex), fmt.Sprintf("remove it first with 'ip link set %s nomaster'", a.Name)
	}
	return "", ""
}

// AddressWarning is the text about IP addresses of a device that becomes a port. The host can't be
// reached at these addresses, because a port's device never delivers a frame to the host. They
// belong on the host port host, which is "" if there is none.
func AddressWarning(bridge, host, device string, addresses []string) string {
	noun, it := "address", "it"
	if len(addresses) > 1 {
		noun, it = "addresses", "them"
	}
	to := "host port " + host
	if host == "" {
		to = "a host port ('bascule port add " + bridge + " host0 --type host')"
	}
	return fmt.Sprintf("%s has the %s %s, which no longer reaches the host: a port belongs to the switch; give %s to %s",
		device, noun, strings.Join(addresses, ", "), it, to)
}

// hostPortOf returns the name of a host port of a bridge, or "" if it has none.
func hostPortOf(config *datapath.Config) string {
	for _, p := range datapath.Ports(config) {
		if p.Notes&datapath.PortHost != 0 {
			return hostName(p)
		}
	}
	return ""
}

// addressWarning returns the warning about the IP addresses of a device that becomes a port.
func (w *world) addressWarning(bridge, host string, l netlink.Link) []string {
	if w.addresses == nil {
		if !addressed(l) {
			return nil
		}
		w.addresses = addresses()
	}
	var list []string
	for _, a := range w.addresses[l.Attrs().Index] {
		list = append(list, a.prefix.String())
	}
	if list == nil {
		return nil
	}
	return []string{AddressWarning(bridge, host, l.Attrs().Name, list)}
}

// addressed reports whether a device may have IP addresses other than those that it gives itself.
// It requests only the addresses of this device from the kernel: most devices have none, and the
// others may have many.
func addressed(l netlink.Link) bool {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	defer socket.Close()
	if unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) != nil {
		return true
	}
	ask := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	ask.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	message := nl.NewIfAddrmsg(netlink.FAMILY_ALL)
	message.Index = uint32(l.Attrs().Index)
	ask.AddData(message)
	list, err := ask.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	return err != nil || slices.ContainsFunc(list, func(m []byte) bool {
		a := nl.DeserializeIfAddrmsg(m)
		return a.Family != unix.AF_INET6 || a.Scope != unix.RT_SCOPE_LINK
	})
}

// A deviceAddress is an IP address of a device, with its prefix length.
type deviceAddress struct {
	prefix netip.Prefix
	kept   bool // it is permanent, and no lease
}

// asDeviceAddress converts an address of package netlink. ok is false for an address that each
// device gives itself.
func asDeviceAddress(a netlink.Addr) (d deviceAddress, ok bool) {
	if a.IPNet == nil || a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() {
		return d, false
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	length, _ := a.Mask.Size()
	return deviceAddress{netip.PrefixFrom(ip.Unmap(), length), a.Flags&unix.IFA_F_PERMANENT != 0}, ok
}

// addresses returns the IP addresses of the namespace's devices by index, except for addresses that
// each device gives itself. If they can't be listed, it returns none.
func addresses() map[int][]deviceAddress {
	list, _ := netlink.AddrList(nil, netlink.FAMILY_ALL) // an incomplete list is good enough
	byIndex := map[int][]deviceAddress{}
	for _, a := range list {
		if d, ok := asDeviceAddress(a); ok {
			byIndex[a.LinkIndex] = append(byIndex[a.LinkIndex], d)
		}
	}
	return byIndex
}

// nameOf describes the master device with an index.
func nameOf(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("device %d", index)
	}
	return kindAndName(l)
}

// kindAndName describes a device by its kind and name.
func kindAndName(l netlink.Link) string {
	if l.Type() == "bridge" {
		return "Linux bridge " + l.Attrs().Name
	}
	return l.Type() + " " + l.Attrs().Name
}

// The list is read again if devices came or went meanwhile, for maxList and at least minLists
// times, because a busy machine may suspend this process for that long. If containers start by the
// hundred, a list of several pieces is rarely consistent.
const (
	maxList  = 2 * time.Second
	minLists = 20
)

// links returns all devices of the namespace by index.
func links() (map[int]netlink.Link, error) {
	deadline := time.Now().Add(maxList)
	for tries := 0; tries < minLists || time.Now().Before(deadline); tries++ {
		list, err := listLinks()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		byIndex := make(map[int]netlink.Link, len(list))
		for _, l := range list {
			byIndex[l.Attrs().Index] = l
		}
		return byIndex, nil
	}
	return nil, errors.New("list interfaces: they change too fast")
}

// skipStats requests devices without their statistics (RTEXT_FILTER_SKIP_STATS of
// include/uapi/linux/rtnetlink.h).
const skipStats = 1 << 3

// listLinks is netlink.LinkList without statistics and virtual functions, which are half of the
// kernel's answer.
func listLinks() (list []netlink.Link, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	var wrong error
	err = req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWLINK, func(m []byte) bool {
		l, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			wrong = err
			return false
		}
		list = append(list, l)
		return true
	})
	return list, errors.Join(wrong, err)
}

// flagNames are the names of interface flags in the order of ip(8).
var flagNames = []struct {
	bit  uint32
	name string
}{
	{unix.IFF_LOOPBACK, "LOOPBACK"}, {unix.IFF_BROADCAST, "BROADCAST"}, {unix.IFF_POINTOPOINT, "POINTOPOINT"},
	{unix.IFF_MULTICAST, "MULTICAST"}, {unix.IFF_NOARP, "NOARP"}, {unix.IFF_ALLMULTI, "ALLMULTI"},
	{unix.IFF_PROMISC, "PROMISC"}, {unix.IFF_MASTER, "MASTER"}, {unix.IFF_SLAVE, "SLAVE"},
	{unix.IFF_DEBUG, "DEBUG"}, {unix.IFF_DYNAMIC, "DYNAMIC"}, {unix.IFF_AUTOMEDIA, "AUTOMEDIA"},
	{unix.IFF_PORTSEL, "PORTSEL"}, {unix.IFF_NOTRAILERS, "NOTRAILERS"}, {unix.IFF_UP, "UP"},
	{unix.IFF_LOWER_UP, "LOWER_UP"}, {unix.IFF_DORMANT, "DORMANT"}, {unix.IFF_ECHO, "ECHO"},
}

func flagList(raw uint32) []string {
	names := []string{}
	if raw&unix.IFF_UP != 0 && raw&unix.IFF_RUNNING == 0 {
		names = append(names, "NO-CARRIER")
	}
	for _, f := range flagNames {
		if raw&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// The XDP features of a driver, from enum netdev_xdp_act (include/uapi/linux/netdev.h).
const (
	xdpBasic    = 1 << 0 // NETDEV_XDP_ACT_BASIC
	xdpRedirect = 1 << 1 // NETDEV_XDP_ACT_REDIRECT
	xdpXmit     = 1 << 2 // NETDEV_XDP_ACT_NDO_XMIT
)

// xdpTarget reports whether a device accepts frames redirected by XDP, according to its driver.
func xdpTarget(family *netlink.GenlFamily, ifindex uint32) (bool, error) {
	has, err := xdpFeatures(family, ifindex)
	return has&xdpXmit != 0, err
}

// xdpFeatures returns the XDP features that a device's driver declares (the kernel's netdev netlink
// family, Linux 6.3).
func xdpFeatures(family *netlink.GenlFamily, ifindex uint32) (uint64, error) {
	const (
		cmdDevGet    = 1 // NETDEV_CMD_DEV_GET
		attrIfindex  = 1 // NETDEV_A_DEV_IFINDEX
		attrFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
	)
	// The request is for one device, because the parts of this family's dump are not marked as
	// such.
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// nl.Genlmsg does not clear the header's reserved bytes, and the kernel requires zeros
	req.AddRawData(append([]byte{cmdDevGet, 1, 0, 0}, nl.NewRtAttr(attrIfindex, nl.Uint32Attr(ifindex)).Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) == 0 {
		return 0, fmt.Errorf("XDP features of device %d: %w", ifindex, err)
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return 0, fmt.Errorf("XDP features of device %d: %w", ifindex, err)
	}
	for _, a := range attrs {
		if a.Attr.Type == attrFeatures {
			return nl.NativeEndian().Uint64(a.Value), nil
		}
	}
	return 0, nil
}

// mtus returns the MTUs of devices by index, in bytes, and 0 for devices that are gone. It uses the
// calls of netdevice(7), which cost a tenth of netlink's.
func mtus(indexes []uint32) []int {
	list := make([]int, len(indexes))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return list
	}
	defer unix.Close(fd)
	for i, index := range indexes {
		r, err := unix.NewIfreq("")
		if err != nil {
			return list
		}
		r.SetUint32(index)
		if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, r) != nil || unix.IoctlIfreq(fd, unix.SIOCGIFMTU, r) != nil {
			continue
		}
		list[i] = int(r.Uint32())
	}
	return list
}
