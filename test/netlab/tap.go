// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A Tap is a tap device in the switch's namespace, with the program that holds its file.
type Tap struct {
	lab    *Lab
	name   string
	fd     int
	header int // bytes of the virtio-net header in front of each packet
	buf    []byte
}

// The virtio-net header (virtio 1.2, section 5.1.6) of taps, and its fields.
const (
	vnetHeader       = 10
	vnetTunnelHeader = 24 // of a program that supports segmentation of tunnels
)

// NewTap makes a tap. If able, its program accepts unfinished packets of any size. Otherwise it receives packets as on
// a wire.
func (l *Lab) NewTap(name string, able bool) *Tap {
	l.t.Helper()
	tap := &Tap{lab: l, name: name, buf: make([]byte, largestFrame)}
	l.must(l.Switch.Do(func() (err error) {
		tap.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if able {
			flags |= unix.IFF_VNET_HDR
			tap.header = vnetHeader
		}
		r.SetUint16(flags)
		if err := unix.IoctlIfreq(tap.fd, unix.TUNSETIFF, r); err != nil {
			return fmt.Errorf("tap %s: %w", name, err)
		}
		if able {
			// No limit for its packets on their way, as QEMU sets it: otherwise no packet passes the
			// driver's XDP.
			if err := unix.IoctlSetPointerInt(tap.fd, unix.TUNSETSNDBUF, math.MaxInt32); err != nil {
				return fmt.Errorf("buffer of tap %s: %w", name, err)
			}
			offloads := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6
			if err := unix.IoctlSetInt(tap.fd, unix.TUNSETOFFLOAD, offloads); err != nil {
				return fmt.Errorf("offloads of tap %s: %w", name, err)
			}
		}
		return nil
	}))
	l.t.Cleanup(tap.Close)
	l.Keep(name)
	nl, err := l.Switch.Netlink().LinkByName(name)
	l.must(err)
	l.must(l.Switch.Netlink().LinkSetUp(nl))
	return tap
}

// Tunnels has the program offer segmentation of tunnels, too. It returns false if the kernel is older than Linux 6.17.
func (tap *Tap) Tunnels() bool {
	tap.lab.t.Helper()
	const tunnels = 0x80 | 0x100 // TUN_F_UDP_TUNNEL_GSO, TUN_F_UDP_TUNNEL_GSO_CSUM
	offloads := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6 | tunnels
	if err := unix.IoctlSetPointerInt(tap.fd, unix.TUNSETVNETHDRSZ, vnetTunnelHeader); err != nil {
		tap.lab.t.Fatalf("header of tap %s: %v", tap.name, err)
	}
	if unix.IoctlSetInt(tap.fd, unix.TUNSETOFFLOAD, offloads) != nil {
		tap.lab.must(unix.IoctlSetPointerInt(tap.fd, unix.TUNSETVNETHDRSZ, vnetHeader))
		return false
	}
	tap.header = vnetTunnelHeader
	return true
}

// A Tun is a device without Ethernet in the switch's namespace.
type Tun struct {
	lab *Lab
	fd  int
}

// NewTun makes a device without Ethernet, which exists until the test ends.
func (l *Lab) NewTun(name string) *Tun {
	l.t.Helper()
	tun := &Tun{lab: l}
	l.must(l.Switch.Do(func() (err error) {
		tun.fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		l.t.Cleanup(func() { unix.Close(tun.fd) })
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(tun.fd, unix.TUNSETIFF, r)
	}))
	l.Keep(name)
	return tun
}

// Received returns the packets that the device has sent so far.
func (tun *Tun) Received() (packets []string) {
	tun.lab.t.Helper()
	buf := make([]byte, largestFrame)
	for {
		n, err := unix.Read(tun.fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return packets
		}
		tun.lab.must(err)
		packets = append(packets, string(buf[:n]))
	}
}

// Close closes the program's file. The device disappears with it.
func (tap *Tap) Close() {
	if tap.fd >= 0 {
		unix.Close(tap.fd)
		tap.fd = -1
	}
}

func (tap *Tap) String() string { return tap.name }

func (tap *Tap) send(frames ...Frame) error {
	return onCPU(tap.lab.cpu, func() error {
		for _, f := range frames {
			if err := tap.write(make([]byte, tap.header), []byte(f)); err != nil {
				return fmt.Errorf("send %v: %w", f, err)
			}
		}
		return nil
	})
}

func (tap *Tap) write(header, packet []byte) error {
	if _, err := unix.Write(tap.fd, append(header, packet...)); err != nil {
		return fmt.Errorf("write to %s: %w", tap.name, err)
	}
	return nil
}

// Packets sends packets with their claims from the tap's program, and waits until all have arrived: see Ring.Send. The
// kernel refuses some of them.
func (tap *Tap) Packets(packets []Packet, took func()) (refused int) {
	l := tap.lab
	l.t.Helper()
	for len(packets) > 0 {
		n := 0
		l.must(onCPU(l.cpu, func() error {
			// No more than a CPU queues.
			for pieces := 0; n < len(packets) && n < ringSlots && pieces < window*8; n++ {
				p := packets[n]
				pieces += p.pieces()
				switch _, err := unix.Write(tap.fd, append(p.vnet(tap.header), p.Frame...)); {
				case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EFAULT):
					refused++
				case err != nil:
					return fmt.Errorf("write to %s: %w", tap.name, err)
				}
			}
			return nil
		}))
		packets = packets[n:]
		l.mark()
		l.mark()
		took()
	}
	return refused
}

// SendUnfinished sends a frame with an unfinished checksum, which covers the bytes from start on, and belongs
// offset bytes behind start. The kernel refuses some places (EINVAL).
func (tap *Tap) SendUnfinished(f Frame, start, offset int) error {
	return onCPU(tap.lab.cpu, func() error { return tap.write(unfinishedHeader(f, start, offset), []byte(f)) })
}

// unfinishedHeader returns the virtio header of a frame with an unfinished checksum.
func unfinishedHeader(f Frame, start, offset int) []byte {
	v := make([]byte, vnetHeader)
	v[0] = ClaimNeedsCsum
	binary.NativeEndian.PutUint16(v[2:], uint16(len(f)))
	binary.NativeEndian.PutUint16(v[6:], uint16(start))
	binary.NativeEndian.PutUint16(v[8:], uint16(offset))
	return v
}

// VnetSocket returns a function that sends like SendUnfinished, through a packet socket at the end.
func (e *End) VnetSocket() (send func(f Frame, start, offset int) error) {
	l := e.lab
	l.t.Helper()
	fd := -1
	l.must(e.Namespace.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: e.Ifindex}))
	}))
	l.t.Cleanup(func() { unix.Close(fd) })
	return func(f Frame, start, offset int) error {
		return onCPU(l.cpu, func() error {
			_, err := unix.Write(fd, append(unfinishedHeader(f, start, offset), f...))
			return err
		})
	}
}

// read returns the next packet. ok is false if there is none now.
func (tap *Tap) read() (f Frame, ok bool, err error) {
	n, err := unix.Read(tap.fd, tap.buf)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read from %s: %w", tap.name, err)
	}
	return Frame(tap.buf[tap.header:n]), true, nil
}

// Received returns the frames that the program has received so far.
func (tap *Tap) Received() []Frame {
	tap.lab.t.Helper()
	var got []Frame
	for {
		f, ok, err := tap.read()
		tap.lab.must(err)
		if !ok {
			return got
		}
		got = append(got, f)
	}
}

// AwaitUDP returns the IPv4 UDP packets that the program receives. It waits until there are n, or time is over.
func (tap *Tap) AwaitUDP(n int) []Frame {
	tap.lab.t.Helper()
	var got []Frame
	for deadline := time.Now().Add(patience); len(got) < n; {
		f, ok, err := tap.read()
		tap.lab.must(err)
		if !ok {
			if await(tap.fd, deadline) != nil {
				break
			}
			continue
		}
		if isUDP(f) {
			got = append(got, f)
		}
	}
	return got
}

// Lengths of headers, and offsets in a UDP packet over IPv4 in an Ethernet frame.
const (
	ipLen, udpLen  = 20, 8
	ipAt           = headerLen
	udpAt          = ipAt + ipLen
	payloadAt      = udpAt + udpLen
	udpChecksumPos = 6
)

func isUDP(f Frame) bool {
	return len(f) >= payloadAt && f.ethertype() == unix.ETH_P_IP && f[ipAt] == 0x45 && f[ipAt+9] == unix.IPPROTO_UDP
}

// CheckUDP checks the checksums of an IPv4 UDP packet.
func CheckUDP(f Frame) error {
	if !isUDP(f) {
		return fmt.Errorf("no UDP packet: %v", f)
	}
	if sum := checksum(0, []byte(f[ipAt:udpAt])); sum != 0 {
		return fmt.Errorf("%v: its IP header's checksum is wrong", f)
	}
	length := int(f.uint16(udpAt + 4))
	if length < udpLen || udpAt+length > len(f) {
		return fmt.Errorf("%v: its UDP header says %d bytes", f, length)
	}
	datagram := []byte(f[udpAt : udpAt+length])
	if sum := checksum(pseudoHeader([]byte(f[ipAt+12:udpAt]), unix.IPPROTO_UDP, length), datagram); sum != 0 {
		return fmt.Errorf("%v: its UDP checksum is wrong", f)
	}
	return nil
}

// pseudoHeader returns the sum of the pseudo-header of TCP and UDP (RFC 9293, section 3.1; RFC 8200, section 8.1).
func pseudoHeader(addresses []byte, protocol byte, length int) uint32 {
	sum := uint32(protocol) + uint32(length)
	for i := 0; i < len(addresses); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(addresses[i:]))
	}
	return sum
}

// SendUnfinishedUDP sends a UDP packet with n bytes from the program. Its checksum is unfinished. If segment is not 0,
// the packet needs segmentation into pieces of segment bytes.
func (tap *Tap) SendUnfinishedUDP(dst, src MAC, to netip.AddrPort, n, segment int) error {
	udp := make([]byte, udpLen+n)
	binary.BigEndian.PutUint16(udp, 9)
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	for i := udpLen; i < len(udp); i++ {
		udp[i] = byte(i)
	}
	return tap.sendUnfinished(dst, src, to.Addr(), unix.IPPROTO_UDP, udp, udpChecksumPos, segment)
}

// SendUnfinishedSYN sends a TCP SYN from a port of the program, with an unfinished checksum.
func (tap *Tap) SendUnfinishedSYN(dst, src MAC, from uint16, to netip.AddrPort) error {
	tcp := make([]byte, tcpLen)
	binary.BigEndian.PutUint16(tcp, from)
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	tcp[12], tcp[tcpFlagsPos] = tcpLen/4<<4, tcpSYN
	binary.BigEndian.PutUint16(tcp[14:], 1024) // window
	return tap.sendUnfinished(dst, src, to.Addr(), unix.IPPROTO_TCP, tcp, 16, 0)
}

// AwaitSYNACK waits until the program receives the answer to such a SYN.
func (tap *Tap) AwaitSYNACK(from uint16, to netip.AddrPort) error {
	l4 := ipAt + ipLen
	if to.Addr().Is6() {
		l4 = ipAt + ip6Len
	}
	for deadline := time.Now().Add(patience); ; {
		f, ok, err := tap.read()
		if err == nil && !ok {
			err = await(tap.fd, deadline)
		}
		if err != nil {
			return fmt.Errorf("answer of %v to port %d of %s: %w", to, from, tap.name, err)
		}
		if len(f) >= l4+tcpLen && f.uint16(l4) == to.Port() && f.uint16(l4+2) == from && f[l4+tcpFlagsPos]&0x3f == tcpSYN|tcpACK {
			return nil
		}
	}
}

// Fields of a TCP header.
const (
	ip6Len, tcpLen = 40, 20
	tcpFlagsPos    = 13
	tcpSYN, tcpACK = 0x02, 0x10
)

// sendUnfinished sends a packet with an unfinished checksum, which is checksumAt bytes into its TCP or UDP header.
func (tap *Tap) sendUnfinished(dst, src MAC, to netip.Addr, protocol byte, l4 []byte, checksumAt, segment int) error {
	f := append(append(append([]byte{}, dst[:]...), src[:]...), 0, 0)
	from, header := tapAddr(to.Is6()), make([]byte, ipLen)
	addresses := append(from.AsSlice(), to.AsSlice()...)
	if to.Is6() {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IPV6)
		header = make([]byte, ip6Len)
		header[0], header[6], header[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(l4)))
		copy(header[8:], addresses)
	} else {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		header[0], header[8], header[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(l4)))
		copy(header[12:], addresses)
		binary.BigEndian.PutUint16(header[10:], checksum(0, header))
	}
	// The sum of the pseudo-header alone, not yet complemented.
	binary.BigEndian.PutUint16(l4[checksumAt:], ^checksum(pseudoHeader(addresses, protocol, len(l4)), nil))
	f = append(f, header...)
	v := make([]byte, vnetHeader)
	v[0] = ClaimNeedsCsum
	if segment > 0 {
		v[1] = ClaimGSOUDPL4
		binary.NativeEndian.PutUint16(v[2:], uint16(len(f)+udpLen))
		binary.NativeEndian.PutUint16(v[4:], uint16(segment))
	}
	binary.NativeEndian.PutUint16(v[6:], uint16(len(f)))
	binary.NativeEndian.PutUint16(v[8:], uint16(checksumAt))
	return tap.write(v[:tap.header], append(f, l4...))
}

// tapHost is the number of the host that the tap's program imitates.
const tapHost = 50

// tapAddr is that host's address.
func tapAddr(six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0xfd, 0xba, 15: tapHost})
	}
	return netip.AddrFrom4([4]byte{198, 18, 0, tapHost})
}

// KnowTap adds the Ethernet address of the tap's program to the host's neighbour table.
func (h *Host) KnowTap(mac MAC) error {
	return errors.Join(h.neighbour(tapAddr(false), mac), h.neighbour(tapAddr(true), mac))
}

// SendUDP sends a datagram of n bytes to the tap's program, which has the given address. The stack leaves the checksum
// to the device, and, if segment is not 0, the segmentation into pieces of segment bytes.
func (h *Host) SendUDP(to MAC, n, segment int) error {
	addr := tapAddr(false)
	if err := h.neighbour(addr, to); err != nil {
		return err
	}
	err := h.Namespace.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if segment > 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, segment); err != nil {
				return err
			}
		}
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i)
		}
		return unix.Sendto(fd, payload, 0, &unix.SockaddrInet4{Port: 9, Addr: addr.As4()})
	})
	if err != nil {
		return fmt.Errorf("UDP from %s to %v: %w", h.Ifname, addr, err)
	}
	return nil
}

// ReceiveUDP opens a port at an address of the host, calls send, and waits for the given number of datagrams, all of n
// bytes.
func (h *Host) ReceiveUDP(addr netip.Addr, datagrams, n int, send func(to netip.AddrPort) error) error {
	var c *net.UDPConn
	err := h.Namespace.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := send(c.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(patience))
	buf := make([]byte, n+1)
	for d := range datagrams {
		got, err := c.Read(buf)
		if err == nil && got != n {
			err = fmt.Errorf("%d bytes instead of %d", got, n)
		}
		for i := 0; err == nil && i < n; i++ {
			if first := buf[0] - udpLen; buf[i] != byte(i+udpLen)+first {
				err = fmt.Errorf("byte %d is wrong", i)
			}
		}
		if err != nil {
			return fmt.Errorf("UDP to %s, datagram %d: %w", h.Ifname, d+1, err)
		}
	}
	return nil
}
