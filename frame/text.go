// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// String describes the frame in one line, as tcpdump(8) does, in brief: its time, port
// and direction, its VLAN, addresses and protocols, and its length in bytes.
func (f Seen) String() string {
	line := []string{f.Time.Format("15:04:05.000000"), printable(f.Port), f.Direction.String()}
	if f.Port == "" {
		line[1] = "-"
	}
	if f.Reason != "" {
		line = append(line, printable(f.Reason))
	}
	if f.VLAN != 0 {
		line = append(line, fmt.Sprintf("vlan %d", f.VLAN))
	}
	return strings.Join(append(line, f.Summary()), " ")
}

// Summary describes the contents of the frame.
func (f Seen) Summary() string {
	return fmt.Sprintf("%s, length %d", strings.Join(f.protocols(), " "), f.Length)
}

// Packet describes an IP packet, from its header on.
func Packet(data []byte) string {
	if len(data) > 0 && data[0]>>4 == 6 {
		return strings.Join(ipv6(data), " ")
	}
	return strings.Join(ipv4(data), " ")
}

// cut stands for a header that was not captured, or is wrong.
const cut = "[cut]"

func (f Seen) protocols() []string {
	var ether layers.Ethernet
	if decode(&ether, f.Data) != nil {
		return []string{cut}
	}
	line := []string{fmt.Sprintf("%s > %s", ether.SrcMAC, ether.DstMAC)}
	kind, rest := ether.EthernetType, ether.Payload
	for first := true; kind == layers.EthernetTypeDot1Q || kind == layers.EthernetTypeQinQ; first = false {
		var tag layers.Dot1Q
		if decode(&tag, rest) != nil {
			return append(line, cut)
		}
		switch {
		case kind == layers.EthernetTypeQinQ:
			line = append(line, fmt.Sprintf("802.1ad %d", tag.VLANIdentifier))
		case !first || tag.VLANIdentifier != f.VLAN: // otherwise String has already printed it
			line = append(line, fmt.Sprintf("802.1Q %d", tag.VLANIdentifier))
		}
		kind, rest = tag.Type, tag.Payload
	}
	switch {
	case kind == layers.EthernetTypeLLC || kind < 0x600: // a length, IEEE 802.3 3.2.6
		return append(line, llc(rest)...)
	case kind == layers.EthernetTypeARP:
		return append(line, arp(rest))
	case kind == layers.EthernetTypeIPv4:
		return append(line, ipv4(rest)...)
	case kind == layers.EthernetTypeIPv6:
		return append(line, ipv6(rest)...)
	}
	return append(line, fmt.Sprintf("ethertype %#04x", uint16(kind)))
}

func decode(layer gopacket.DecodingLayer, data []byte) error {
	return layer.DecodeFromBytes(data, gopacket.NilDecodeFeedback)
}

func llc(data []byte) []string {
	var l layers.LLC
	if decode(&l, data) != nil {
		return []string{"LLC", cut}
	}
	if l.DSAP == 0x42 && l.SSAP == 0x42 {
		return []string{"STP"}
	}
	return []string{fmt.Sprintf("LLC %#02x > %#02x", l.SSAP, l.DSAP)}
}

func arp(data []byte) string {
	var a layers.ARP
	if decode(&a, data) != nil {
		return "ARP " + cut
	}
	from, target := address(a.SourceProtAddress), address(a.DstProtAddress)
	switch a.Operation {
	case layers.ARPRequest:
		return fmt.Sprintf("ARP who-has %s tell %s", target, from)
	case layers.ARPReply:
		return fmt.Sprintf("ARP %s is-at %s", from, net.HardwareAddr(a.SourceHwAddress))
	}
	return fmt.Sprintf("ARP operation %d", a.Operation)
}

// address is an IPv4 or IPv6 address; ARP may have others.
func address(b []byte) string {
	if a, ok := netip.AddrFromSlice(b); ok {
		return a.String()
	}
	return fmt.Sprintf("%x", b)
}

func ipv4(data []byte) []string {
	var ip layers.IPv4
	if decode(&ip, data) != nil {
		return []string{"IPv4", cut}
	}
	return packet("IPv4", ip.SrcIP, ip.DstIP, ip.Protocol, ip.FragOffset, ip.Payload)
}

func ipv6(data []byte) []string {
	var ip layers.IPv6
	if decode(&ip, data) != nil {
		return []string{"IPv6", cut}
	}
	next, rest, fragment := ip.NextHeader, ip.Payload, uint16(0)
	if ip.HopByHop != nil { // it is not in the payload
		next = ip.HopByHop.NextHeader
	}
	for fragment == 0 {
		var skip layers.IPv6ExtensionSkipper
		switch next {
		case layers.IPProtocolIPv6Routing, layers.IPProtocolIPv6Destination, layers.IPProtocolIPv6HopByHop:
			if decode(&skip, rest) != nil {
				return packet("IPv6", ip.SrcIP, ip.DstIP, next, 0, nil)
			}
			next, rest = skip.NextHeader, skip.Payload
			continue
		case layers.IPProtocolIPv6Fragment:
			if len(rest) < 8 {
				return packet("IPv6", ip.SrcIP, ip.DstIP, next, 0, nil)
			}
			next, fragment, rest = layers.IPProtocol(rest[0]), uint16(rest[2])<<5|uint16(rest[3])>>3, rest[8:]
			continue
		}
		break
	}
	return packet("IPv6", ip.SrcIP, ip.DstIP, next, fragment, rest)
}

// packet describes the contents of an IP packet.
func packet(version string, src, dst net.IP, protocol layers.IPProtocol, fragment uint16, data []byte) []string {
	addresses := func(srcPort, dstPort int) string {
		return fmt.Sprintf("%s %s > %s", version, endpoint(src, srcPort), endpoint(dst, dstPort))
	}
	if fragment != 0 {
		return []string{addresses(-1, -1), protocol.String(), fmt.Sprintf("fragment at %d", int(fragment)*8)}
	}
	switch protocol {
	case layers.IPProtocolTCP:
		var l layers.TCP
		if decode(&l, data) == nil {
			return []string{addresses(int(l.SrcPort), int(l.DstPort)), "TCP", tcpFlags(&l)}
		}
	case layers.IPProtocolUDP:
		var l layers.UDP
		if decode(&l, data) == nil {
			return []string{addresses(int(l.SrcPort), int(l.DstPort)), "UDP"}
		}
	case layers.IPProtocolICMPv4:
		var l layers.ICMPv4
		if decode(&l, data) == nil {
			return []string{addresses(-1, -1), "ICMP", l.TypeCode.String()}
		}
	case layers.IPProtocolICMPv6:
		var l layers.ICMPv6
		if decode(&l, data) == nil {
			return []string{addresses(-1, -1), "ICMPv6", l.TypeCode.String()}
		}
	default:
		return []string{addresses(-1, -1), protocol.String()}
	}
	return []string{addresses(-1, -1), protocol.String(), cut}
}

// endpoint is an address, with a port unless that is negative.
func endpoint(ip net.IP, port int) string {
	if port < 0 {
		return ip.String()
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// tcpFlags returns flags in tcpdump's notation: [S.] is SYN with ACK.
func tcpFlags(l *layers.TCP) string {
	flags := ""
	for _, f := range []struct {
		set  bool
		name string
	}{{l.FIN, "F"}, {l.SYN, "S"}, {l.RST, "R"}, {l.PSH, "P"}, {l.ACK, "."}, {l.URG, "U"}, {l.ECE, "E"}, {l.CWR, "W"}} {
		if f.set {
			flags += f.name
		}
	}
	return "[" + flags + "]"
}

// printable quotes a name that is not fit for a terminal: the kernel allows nearly
// every byte in the name of a device.
func printable(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}
