// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	stationA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	stationB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	began    = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.Local)
)

// build makes a frame of layers, and sets their checksums.
func build(t *testing.T, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var network gopacket.NetworkLayer
	for _, l := range list {
		switch l := l.(type) {
		case gopacket.NetworkLayer:
			network = l
		case interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}:
			if err := l.SetNetworkLayerForChecksum(network); err != nil {
				t.Fatal(err)
			}
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func ether(dst net.HardwareAddr, kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: stationA, DstMAC: dst, EthernetType: kind}
}

func tag(vlan uint16, kind layers.EthernetType) *layers.Dot1Q {
	return &layers.Dot1Q{VLANIdentifier: vlan, Type: kind}
}

func overIPv4(protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: protocol, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
}

func overIPv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: net.ParseIP("fe80::1"), DstIP: net.ParseIP("ff02::2")}
}

// seenFrames returns one frame of each form.
func seenFrames(t *testing.T) []Seen {
	const (
		v4, v6, q, ad = layers.EthernetTypeIPv4, layers.EthernetTypeIPv6, layers.EthernetTypeDot1Q, layers.EthernetTypeQinQ
	)
	syn := &layers.TCP{SrcPort: 51000, DstPort: 443, SYN: true, Seq: 1, Window: 100}
	dns := &layers.UDP{SrcPort: 53, DstPort: 1024}
	ask := func(op uint16) *layers.ARP {
		return &layers.ARP{
			AddrType: layers.LinkTypeEthernet, Protocol: v4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
			SourceHwAddress: stationA, SourceProtAddress: []byte{10, 0, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 0, 0, 2},
		}
	}
	fragment := overIPv4(layers.IPProtocolUDP)
	fragment.FragOffset = 185
	bpdu := &layers.Ethernet{SrcMAC: stationA, DstMAC: net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, EthernetType: layers.EthernetTypeLLC, Length: 7}
	// extension headers: destination options, then a fragment
	options := gopacket.Payload{byte(layers.IPProtocolIPv6Fragment), 0, 1, 4, 0, 0, 0, 0}
	first := gopacket.Payload{byte(layers.IPProtocolUDP), 0, 0, 1, 0, 0, 0, 9}
	later := gopacket.Payload{byte(layers.IPProtocolUDP), 0, 5, 200, 0, 0, 0, 9}
	ports := gopacket.Payload{0, 53, 4, 0, 0, 8, 0, 0}

	frames := []Seen{
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v4), overIPv4(layers.IPProtocolTCP), syn)},
		{Port: "veth1", Direction: Out, Data: build(t, ether(stationB, v4), overIPv4(layers.IPProtocolTCP), syn)},
		{Port: "veth0", Direction: Dropped, Reason: "protected", VLAN: 10, Data: build(t, ether(broadcast, q), tag(10, layers.EthernetTypeARP), ask(layers.ARPRequest))},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, layers.EthernetTypeARP), ask(layers.ARPReply))},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, layers.EthernetTypeARP), ask(3))},
		{Port: "veth0", Direction: In, VLAN: 20, Data: build(t, ether(stationB, q), tag(20, q), tag(21, v4), overIPv4(layers.IPProtocolUDP), dns)},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, ad), tag(100, q), tag(10, v6), overIPv6(layers.IPProtocolUDP), dns)},
		{Port: "veth0", Direction: In, VLAN: 5, Data: build(t, ether(stationB, v4), overIPv4(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)})},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v6), overIPv6(layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)})},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v4), overIPv4(layers.IPProtocolGRE), gopacket.Payload("inside"))},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v4), fragment, gopacket.Payload("rest"))},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v6), overIPv6(layers.IPProtocolIPv6Destination), options, first, ports)},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, v6), overIPv6(layers.IPProtocolIPv6Destination), options, later, ports)},
		{Port: "veth0", Direction: Dropped, Reason: "reserved", Data: build(t, bpdu, gopacket.Payload{0x42, 0x42, 3, 0, 0, 0, 0})},
		{Port: "veth0", Direction: In, Data: build(t, bpdu, gopacket.Payload{0xaa, 0xab, 3, 0, 0, 0, 0})},
		{Port: "veth0", Direction: In, Data: build(t, ether(stationB, 0x88b5), gopacket.Payload("what"))},
		{Port: "we\x1b[2Jird\xff", Direction: In, Data: build(t, ether(stationB, 0x88b5))},
		{Port: "hôte", Direction: In, Data: build(t, ether(stationB, 0x88b5))},
		{Direction: Dropped, Reason: "malformed", Data: []byte{2, 0, 0}},
	}
	for i := range frames {
		frames[i].Time = began.Add(time.Duration(i) * 1001 * time.Microsecond)
		frames[i].Length = len(frames[i].Data)
	}
	// truncated
	for _, n := range []int{0, 14, 20, 33, 34, 53} {
		f := frames[0]
		f.Data = f.Data[:n]
		frames = append(frames, f)
	}
	return frames
}
