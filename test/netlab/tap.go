// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// A Tap is a tap device in the switch's namespace, and the program that holds
// its file.
type Tap struct {
	lab    *Lab
	name   string
	fd     int
	header int // bytes of the virtio-net header before each packet
	buf    []byte
}

// The virtio-net header (virtio 1.2, section 5.1.6) of taps, and its parts.
const (
	vnetHeader    = 10
	vnetNeedsCsum = 1
)

// NewTap makes a tap. Its program takes packets as they are, unfinished and
// of any size, if it is able to; otherwise what a wire would carry.
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

// NewTun makes a device without Ethernet frames, which is there until the test
// ends.
func (l *Lab) NewTun(name string) {
	l.t.Helper()
	l.must(l.Switch.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		l.t.Cleanup(func() { unix.Close(fd) })
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}))
	l.Keep(name)
}

// Close ends the program; the device goes with it.
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

// read returns the next packet; ok is false when there is none now.
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

// Received takes the frames that the program has got so far.
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

// AwaitUDP returns the IPv4 UDP packets that the program gets until there are
// n, at most until it has waited in vain.
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

// The lengths of headers, and where things are in a UDP packet over IPv4 in an
// Ethernet frame.
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
	if sum := checksum(pseudoHeader([]byte(f[ipAt:udpAt]), length), datagram); sum != 0 {
		return fmt.Errorf("%v: its UDP checksum is wrong", f)
	}
	return nil
}

// pseudoHeader sums up what UDP's checksum covers of the IP header (RFC 768).
func pseudoHeader(ip []byte, length int) uint32 {
	sum := uint32(unix.IPPROTO_UDP) + uint32(length)
	for i := 12; i < ipLen; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	return sum
}

// SendUnfinishedUDP sends an IPv4 UDP packet of n bytes from the program, and
// leaves it to others to fill in its checksum.
func (tap *Tap) SendUnfinishedUDP(dst, src MAC, to netip.AddrPort, n int) error {
	f := make([]byte, payloadAt+n)
	copy(f, dst[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip, udp := f[ipAt:udpAt], f[udpAt:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(f)-ipAt))
	copy(ip[12:], []byte{198, 18, 0, tapHost})
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
	binary.BigEndian.PutUint16(udp, 9)
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	for i := udpLen; i < len(udp); i++ {
		udp[i] = byte(i)
	}
	// the sum of the pseudo header alone, not yet complemented
	binary.BigEndian.PutUint16(udp[udpChecksumPos:], ^checksum(pseudoHeader(ip, len(udp)), nil))
	header := make([]byte, vnetHeader)
	header[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(header[6:], udpAt)
	binary.NativeEndian.PutUint16(header[8:], udpChecksumPos)
	return tap.write(header[:tap.header], f)
}

// tapHost is the number of the host that the tap's program plays.
const tapHost = 50

// SendUDP sends a datagram of n bytes to the tap's program, which has the
// given address. The stack leaves the checksum, and, if segment is not 0, the
// cutting up into pieces of so many bytes, to the device.
func (h *Host) SendUDP(to MAC, n, segment int) error {
	addr := netip.AddrFrom4([4]byte{198, 18, 0, tapHost})
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

// ReceiveUDP opens a port, lets send send a datagram to it, and waits for the
// datagram, of n bytes.
func (h *Host) ReceiveUDP(n int, send func(to netip.AddrPort) error) error {
	var c *net.UDPConn
	err := h.Namespace.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.IPv4, 0)))
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
	got, err := c.Read(buf)
	if err == nil && got != n {
		err = fmt.Errorf("%d bytes instead of %d", got, n)
	}
	for i := 0; err == nil && i < n; i++ {
		if buf[i] != byte(i+udpLen) {
			err = fmt.Errorf("byte %d is wrong", i)
		}
	}
	if err != nil {
		return fmt.Errorf("UDP to %s: %w", h.Ifname, err)
	}
	return nil
}
