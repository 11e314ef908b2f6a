// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Fields describes a frame by the fields of its headers. A field that is nil, not valid
// or empty was not given.
type Fields struct {
	// Dst is required, except for an ARP request, which then goes to all stations.
	Dst net.HardwareAddr
	// Src is DefaultSrc if it was not given.
	Src net.HardwareAddr

	VLAN     *uint16 // 802.1Q tag; 0 is a priority tag
	Priority *uint16 // 0 to 7, of all tags
	QinQ     *uint16 // 802.1ad tag before the other tag

	// An IP packet needs both addresses, of one family, and one of TCP (a SYN), UDP and
	// ICMP (an echo request). If SrcPort was not given, it is DefaultSrcPort.
	IP, To           netip.Addr
	TCP, UDP         *uint16 // destination port
	SrcPort          *uint16
	ICMP             bool
	ARP              string // "request" or "reply"
	SenderIP, Target netip.Addr

	EtherType *uint16 // for a frame that has only zeros; EtherTypeTest if not given
	Size      *uint16 // bytes; if not given, as small as Ethernet allows
}

// DefaultSrc is one of the addresses for documentation (RFC 9542 2.1.4): no station has
// it, so a frame from there moves no station's entry.
var DefaultSrc = net.HardwareAddr{0x00, 0x00, 0x5e, 0x00, 0x53, 0x01}

const (
	DefaultSrcPort = 49152  // the first dynamic port (RFC 6335 6)
	EtherTypeTest  = 0x88b5 // for local experiments (IEEE 802, table 4)

	leastEtherType = 0x600 // lower values are lengths (IEEE 802.3 3.2.6)
)

// ErrNoDst reports that Dst is missing.
var ErrNoDst = errors.New("--dst is missing; give the MAC address that the frame is for, such as --dst 02:00:00:00:00:02")

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Build makes the frame, with correct lengths and checksums. If Size is larger than the
// headers, the rest is the innermost payload, filled with zeros.
func (f Fields) Build() ([]byte, error) {
	if err := f.contradiction(); err != nil {
		return nil, err
	}
	if f.Dst == nil {
		f.Dst = broadcast
	}
	if f.Src == nil {
		f.Src = DefaultSrc
	}
	etherType, content := f.content()
	stack := append(f.link(etherType), content...)

	if f.Size != nil {
		inside, err := serialize(stack[1:])
		if err != nil {
			return nil, err
		}
		size, headers := int(*f.Size), headerLen+len(inside)
		if size < headers {
			return nil, fmt.Errorf("--size %d: the headers alone have %d bytes", size, headers)
		}
		frame, err := serialize(append(stack, gopacket.Payload(make([]byte, size-headers))))
		if err != nil {
			return nil, err
		}
		return frame[:size], nil // without the library's padding
	}
	return serialize(stack)
}

func serialize(stack []gopacket.SerializableLayer) ([]byte, error) {
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// contradiction returns an error for fields that exclude each other.
func (f Fields) contradiction() error {
	var contents, transports []string
	note := func(list *[]string, given bool, name string) {
		if given {
			*list = append(*list, name)
		}
	}
	isIP := f.IP.IsValid() || f.To.IsValid()
	note(&transports, f.TCP != nil, "--tcp")
	note(&transports, f.UDP != nil, "--udp")
	note(&transports, f.ICMP, "--icmp")
	note(&contents, isIP || len(transports) > 0, "IP")
	note(&contents, f.ARP != "", "--arp")
	note(&contents, f.EtherType != nil, "--ethertype")

	switch {
	case f.Dst == nil && f.ARP != "request":
		return ErrNoDst
	case f.Priority != nil && f.VLAN == nil:
		return errors.New("--priority needs --vlan: it is in the tag; --vlan 0 is a tag of a priority alone")
	case f.QinQ != nil && f.VLAN == nil:
		return errors.New("--qinq needs --vlan: it is the outer of two tags")
	case len(contents) > 1:
		return fmt.Errorf("%s do not go together: a frame has one content", strings.Join(contents, " and "))
	case len(transports) > 1:
		return fmt.Errorf("%s do not go together: a packet has one of them", strings.Join(transports, " and "))
	case len(transports) == 1 && !(f.IP.IsValid() && f.To.IsValid()):
		return fmt.Errorf("%s needs --ip and --to: the addresses of the packet", transports[0])
	case isIP && f.IP.IsValid() != f.To.IsValid():
		return errors.New("--ip and --to go together: from one address to the other")
	case isIP && len(transports) == 0:
		return errors.New("--ip needs one of --tcp, --udp and --icmp")
	case isIP && f.IP.Is4() != f.To.Is4():
		return fmt.Errorf("--ip %v and --to %v are not of one family", f.IP, f.To)
	case f.SrcPort != nil && f.TCP == nil && f.UDP == nil:
		return errors.New("--sport needs --tcp or --udp")
	case f.ARP == "" && (f.SenderIP.IsValid() || f.Target.IsValid()):
		return errors.New("--spa and --tpa need --arp")
	case f.ARP != "" && !(f.SenderIP.Is4() && f.Target.Is4()):
		return errors.New("--arp needs --spa and --tpa: IPv4 addresses of the sender and the target")
	case f.EtherType != nil && *f.EtherType < leastEtherType:
		return fmt.Errorf("--ethertype %#04x is a length; types begin at %#04x", *f.EtherType, leastEtherType)
	case f.EtherType != nil && isTag(*f.EtherType):
		return fmt.Errorf("--ethertype %#04x is a tag; give --vlan or --qinq", *f.EtherType)
	}
	return nil
}

func isTag(etherType uint16) bool { return etherType == 0x8100 || etherType == 0x88a8 }

// link returns the Ethernet header and the tags.
func (f Fields) link(etherType layers.EthernetType) []gopacket.SerializableLayer {
	eth := &layers.Ethernet{DstMAC: f.Dst, SrcMAC: f.Src, EthernetType: etherType}
	stack := []gopacket.SerializableLayer{eth}
	var priority uint8
	if f.Priority != nil {
		priority = uint8(*f.Priority)
	}
	if f.VLAN != nil {
		eth.EthernetType = layers.EthernetTypeDot1Q
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: *f.VLAN, Priority: priority, Type: etherType})
	}
	if f.QinQ != nil {
		eth.EthernetType = layers.EthernetTypeQinQ
		outer := &layers.Dot1Q{VLANIdentifier: *f.QinQ, Priority: priority, Type: layers.EthernetTypeDot1Q}
		stack = []gopacket.SerializableLayer{eth, outer, stack[1]}
	}
	return stack
}

// content returns the frame's content, and its type.
func (f Fields) content() (layers.EthernetType, []gopacket.SerializableLayer) {
	switch {
	case f.ARP != "":
		return layers.EthernetTypeARP, []gopacket.SerializableLayer{f.arp()}
	case f.IP.IsValid():
		return f.packet()
	case f.EtherType != nil:
		return layers.EthernetType(*f.EtherType), nil
	}
	return EtherTypeTest, nil
}

func (f Fields) arp() *layers.ARP {
	arp := &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, Operation: layers.ARPRequest,
		SourceHwAddress: f.Src, SourceProtAddress: f.SenderIP.AsSlice(),
		DstHwAddress: make([]byte, 6), DstProtAddress: f.Target.AsSlice(), // the request asks for it
	}
	if f.ARP == "reply" {
		arp.Operation, arp.DstHwAddress = layers.ARPReply, f.Dst
	}
	return arp
}

// packet returns an IP packet, and its type.
func (f Fields) packet() (layers.EthernetType, []gopacket.SerializableLayer) {
	srcPort := uint16(DefaultSrcPort)
	if f.SrcPort != nil {
		srcPort = *f.SrcPort
	}
	var protocol layers.IPProtocol
	var transport []gopacket.SerializableLayer
	var sum interface { // a header whose checksum includes the addresses
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}
	switch {
	case f.TCP != nil:
		tcp := &layers.TCP{SrcPort: layers.TCPPort(srcPort), DstPort: layers.TCPPort(*f.TCP), SYN: true, Window: 64240}
		protocol, transport, sum = layers.IPProtocolTCP, []gopacket.SerializableLayer{tcp}, tcp
	case f.UDP != nil:
		udp := &layers.UDP{SrcPort: layers.UDPPort(srcPort), DstPort: layers.UDPPort(*f.UDP)}
		protocol, transport, sum = layers.IPProtocolUDP, []gopacket.SerializableLayer{udp}, udp
	case f.IP.Is4():
		echo := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 1, Seq: 1}
		protocol, transport = layers.IPProtocolICMPv4, []gopacket.SerializableLayer{echo}
	default:
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}
		echo := &layers.ICMPv6Echo{Identifier: 1, SeqNumber: 1}
		protocol, transport, sum = layers.IPProtocolICMPv6, []gopacket.SerializableLayer{icmp, echo}, icmp
	}

	var etherType layers.EthernetType
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	if src, dst := f.IP.AsSlice(), f.To.AsSlice(); f.IP.Is4() {
		etherType = layers.EthernetTypeIPv4
		ip = &layers.IPv4{Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: protocol, SrcIP: src, DstIP: dst}
	} else {
		etherType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: src, DstIP: dst}
	}
	if sum != nil {
		_ = sum.SetNetworkLayerForChecksum(ip) // fails for other layers than these two
	}
	return etherType, append([]gopacket.SerializableLayer{ip}, transport...)
}
