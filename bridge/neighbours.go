// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Stations keep the MAC address of a neighbour's IP address for minutes. So a host that takes over
// an address has to announce it (RFC 5227 3; RFC 4861 7.2.6). The frames are the host's own: the
// switch forwards them like its others.

// speakUp makes the kernel announce a host's interface to its neighbours when it comes up or gets
// another MAC address, and each IPv6 address after duplicate address detection. The kernel does not
// announce an IPv4 address that comes later, nor an IPv6 address that is used at once.
func speakUp(name string) {
	for _, path := range []string{"ipv4/conf/" + name + "/arp_notify", "ipv6/conf/" + name + "/ndisc_notify"} {
		// the file may be read-only, and IPv6 may be off
		_ = os.WriteFile(filepath.Join("/proc/sys/net", path), []byte("1"), 0)
	}
}

// TellNeighbours announces addresses of an interface in the calling thread's network namespace to
// all stations. It skips addresses that the interface does not have, and those under duplicate
// address detection. Errors have no consequence: a station that misses the frame sends a request in
// the end.
func TellNeighbours(l netlink.Link, list []netip.Prefix) {
	if len(list) == 0 {
		return
	}
	l, err := netlink.LinkByIndex(l.Attrs().Index)
	if err != nil || l.Attrs().RawFlags&(unix.IFF_UP|unix.IFF_NOARP) != unix.IFF_UP || len(l.Attrs().HardwareAddr) != 6 {
		return
	}
	all, _ := netlink.AddrList(l, netlink.FAMILY_ALL) // an incomplete list is good enough
	var frames [][]byte
	for _, a := range all {
		if d, ok := asDeviceAddress(a); ok && slices.Contains(list, d.prefix) && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			frames = append(frames, gratuitous(l, d.prefix.Addr()))
		}
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, frame := range frames {
		_ = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index})
	}
}

// gratuitous returns the frame that announces an address.
func gratuitous(l netlink.Link, addr netip.Addr) []byte {
	mac := l.Attrs().HardwareAddr
	eth := &layers.Ethernet{SrcMAC: mac, DstMAC: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EthernetType: layers.EthernetTypeARP}
	stack := []gopacket.SerializableLayer{eth, &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, Operation: layers.ARPRequest,
		SourceHwAddress: mac, SourceProtAddress: addr.AsSlice(), DstHwAddress: make([]byte, 6), DstProtAddress: addr.AsSlice(),
	}}
	if addr.Is6() {
		all := netip.IPv6LinkLocalAllNodes()
		eth.EthernetType, eth.DstMAC = layers.EthernetTypeIPv6, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
		ip := &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6, SrcIP: addr.AsSlice(), DstIP: all.AsSlice()}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeNeighborAdvertisement, 0)}
		_ = icmp.SetNetworkLayerForChecksum(ip) // it fails for other layers
		const override, router = 1 << 5, 1 << 7
		flags := uint8(override)
		if forwarding, _ := os.ReadFile("/proc/sys/net/ipv6/conf/" + l.Attrs().Name + "/forwarding"); len(forwarding) > 0 && forwarding[0] != '0' {
			flags |= router
		}
		stack = []gopacket.SerializableLayer{eth, ip, icmp, &layers.ICMPv6NeighborAdvertisement{
			Flags: flags, TargetAddress: addr.AsSlice(), Options: layers.ICMPv6Options{{Type: layers.ICMPv6OptTargetAddress, Data: mac}},
		}}
	}
	b := gopacket.NewSerializeBuffer()
	// it fails for addresses of other lengths
	_ = gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...)
	return b.Bytes()
}
