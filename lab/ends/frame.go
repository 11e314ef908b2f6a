// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Broadcast is the broadcast address.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// NoStation is an address of the lab's network without a station.
var NoStation = netip.AddrFrom4([4]byte{198, 19, 255, 254})

// Frame returns an Ethernet frame of size bytes with a UDP datagram, from one end to a hardware
// address and an IP address. The size includes the checksum, which software never sees. Ethernet's
// minimum is 64 bytes.
func Frame(size int, from End, to net.HardwareAddr, dst netip.Addr) []byte {
	const eth, ip = 14, 20
	f := make([]byte, size-4)
	copy(f, to)
	copy(f[6:], from.MAC)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	h := f[eth:]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(len(f)-eth))
	h[8] = 64
	h[9] = unix.IPPROTO_UDP
	copy(h[12:], from.Addr.Addr().AsSlice())
	copy(h[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^sum16(h[:ip], 0))
	udp := h[ip:]
	binary.BigEndian.PutUint16(udp, 9)
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	return f
}

// segment is the largest TCP payload of a packet on a default cable, with Linux's timestamps.
const segment = 1448

// LargeFrame returns a frame for a packet socket that is larger than the cable's MTU
// (PACKET_VNET_HDR of packet(7)): a TCP packet with payload bytes. A receiver that cannot accept it
// cuts it into segments, and computes their checksums. A virtio header precedes it.
func LargeFrame(payload int, from End, to net.HardwareAddr, dst netip.Addr) []byte {
	const virtio, eth, ip, tcp = 10, 14, 20, 32
	// A UDP datagram of the same length, whose headers are replaced by TCP's.
	f := Frame(4+eth+ip+tcp+payload, from, to, dst)
	f[eth+9] = unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(f[eth+10:], 0)
	binary.BigEndian.PutUint16(f[eth+10:], ^sum16(f[eth:eth+ip], 0))
	t := f[eth+ip:]
	clear(t)
	binary.BigEndian.PutUint16(t, 9)
	binary.BigEndian.PutUint16(t[2:], 9)
	t[12] = tcp / 4 << 4
	t[13] = 0x10                                              // ACK
	copy(t[20:], []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1}) // timestamps
	// The sum of the pseudo-header; the receiver adds the rest.
	pseudo := append(append([]byte{}, f[eth+12:eth+20]...), 0, unix.IPPROTO_TCP)
	binary.BigEndian.PutUint16(t[16:], sum16(pseudo, uint32(len(t))))
	head := make([]byte, virtio, virtio+len(f))
	head[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	head[1] = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	binary.NativeEndian.PutUint16(head[2:], eth+ip+tcp)
	binary.NativeEndian.PutUint16(head[4:], segment)
	binary.NativeEndian.PutUint16(head[6:], eth+ip)
	binary.NativeEndian.PutUint16(head[8:], 16)
	return append(head, f...)
}

// sum16 adds up 16-bit words for IP checksums (RFC 1071).
func sum16(words []byte, sum uint32) uint16 {
	for i := 0; i < len(words); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(words[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Send sends a frame once, through a packet socket.
func (e End) Send(frame []byte) error {
	err := e.Namespace.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: e.Ifindex})
	})
	if err != nil {
		return fmt.Errorf("send from %s in %s: %w", e.Ifname, e.Namespace.Name, err)
	}
	return nil
}
