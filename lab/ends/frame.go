// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Broadcast is the address that every station listens to.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Nobody is an IP address of the lab's network that no station has.
var Nobody = netip.AddrFrom4([4]byte{198, 19, 255, 254})

// Frame is an Ethernet frame of size bytes (its checksum included, which
// software never sees) with a UDP datagram in it, from one end to a hardware
// address and an IP address. The smallest frame of Ethernet is 64 bytes.
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
	var sum uint32
	for i := 0; i < ip; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	udp := h[ip:]
	binary.BigEndian.PutUint16(udp, 9)
	binary.BigEndian.PutUint16(udp[2:], 9)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	return f
}

// Send puts a frame on the wire once, through a packet socket.
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
