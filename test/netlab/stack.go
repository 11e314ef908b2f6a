// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// A Host is an interface with its namespace's own IP stack.
type Host struct {
	Namespace *ends.Namespace
	Ifname    string
	IPv4      netip.Addr
	IPv6      netip.Addr
}

// NewHost adds the n-th addresses of one IPv4 and one IPv6 subnet to an interface.
func (l *Lab) NewHost(ns *ends.Namespace, ifname string, n int) *Host {
	l.t.Helper()
	h := &Host{
		Namespace: ns, Ifname: ifname,
		IPv4: netip.AddrFrom4([4]byte{198, 18, 0, byte(n)}),
		IPv6: netip.AddrFrom16([16]byte{0xfd, 0xba, 15: byte(n)}),
	}
	l.must(ns.Do(func() error {
		dir := filepath.Join("/proc/sys/net/ipv6/conf", ifname)
		return errors.Join(
			// The address is unique: no need for duplicate address detection.
			os.WriteFile(filepath.Join(dir, "accept_dad"), []byte("0"), 0o644),
			os.WriteFile(filepath.Join(dir, "disable_ipv6"), []byte("0"), 0o644),
		)
	}))
	nl, err := ns.Netlink().LinkByName(ifname)
	l.must(err)
	l.must(ns.Netlink().LinkSetUp(nl))
	for _, a := range []struct {
		addr netip.Addr
		bits int
	}{{h.IPv4, 24}, {h.IPv6, 64}} {
		ip := &net.IPNet{IP: a.addr.AsSlice(), Mask: net.CIDRMask(a.bits, a.addr.BitLen())}
		l.must(ns.Netlink().AddrAdd(nl, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
	}
	return h
}

// Host adds the addresses with the end's number to its interface.
func (e *End) Host() *Host {
	e.lab.t.Helper()
	return e.lab.NewHost(e.Namespace, e.Ifname, int(e.MAC[5]))
}

// neighbour adds the Ethernet address of another host to the host's neighbour table, so that it sends no
// requests.
func (h *Host) neighbour(addr netip.Addr, mac MAC) error {
	nl, err := h.Namespace.Netlink().LinkByName(h.Ifname)
	if err != nil {
		return err
	}
	return h.Namespace.Netlink().NeighSet(&netlink.Neigh{
		LinkIndex: nl.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac[:],
	})
}

// Tunnel joins two switches' namespaces by a cable, and by a VXLAN tunnel over the cable. The tunnel
// ends in a device with the given name and MTU in each namespace.
func Tunnel(one, two *Lab, name string, mtu int) {
	t := one.t
	t.Helper()
	cable := one.NewEnd(two.Switch)
	two.Keep(cable.Ifname)
	ip := func(n byte) net.IP { return net.IPv4(198, 19, 0, n) }
	for i, side := range []struct {
		lab    *Lab
		device string
	}{{one, cable.Port}, {two, cable.Ifname}} {
		nl, err := side.lab.Switch.Netlink().LinkByName(side.device)
		one.must(err)
		here, there := ip(byte(i+1)), ip(byte(2-i))
		one.must(side.lab.Switch.Netlink().AddrAdd(nl, &netlink.Addr{IPNet: &net.IPNet{IP: here, Mask: net.CIDRMask(24, 32)}}))
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, mtu
		vxlan := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 7, SrcAddr: here, Group: there, Port: 4789}
		one.must(side.lab.Switch.Netlink().LinkAdd(vxlan))
		one.must(side.lab.Switch.Netlink().LinkSetUp(vxlan))
		side.lab.Keep(name)
	}
}

// NewTunnel makes one end of a VXLAN tunnel over the end's cable, and the host on it.
func (l *Lab) NewTunnel(e *End, name string, here, there netip.Addr) *Host {
	l.t.Helper()
	nl, err := e.Namespace.Netlink().LinkByName(e.Ifname)
	l.must(err)
	l.must(e.Namespace.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", e.Ifname, "disable_ipv6"), []byte("0"), 0o644)
	}))
	bits := 24
	if here.Is6() {
		bits = 64
	}
	ip := &net.IPNet{IP: here.AsSlice(), Mask: net.CIDRMask(bits, here.BitLen())}
	l.must(e.Namespace.Netlink().AddrAdd(nl, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, 1400
	vxlan := &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: 7, VtepDevIndex: nl.Attrs().Index, SrcAddr: here.AsSlice(), Group: there.AsSlice(), Port: 4789,
		UDP6ZeroCSumTx: false, UDPCSum: true,
	}
	l.must(e.Namespace.Netlink().LinkAdd(vxlan))
	return l.NewHost(e.Namespace, name, int(e.MAC[5]))
}

// Ping sends echo requests to an address until it receives a reply.
func (h *Host) Ping(to netip.Addr) error {
	err := h.Namespace.Do(func() error {
		family, protocol, request, reply := unix.AF_INET, unix.IPPROTO_ICMP, byte(8), byte(0)
		if to.Is6() {
			family, protocol, request, reply = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128, 129
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		id := uint16(rand.Uint32())
		deadline := time.Now().Add(patience)
		buf := make([]byte, 1500)
		for seq := uint16(1); ; seq++ {
			msg := make([]byte, 64)
			msg[0] = request
			binary.BigEndian.PutUint16(msg[4:], id)
			binary.BigEndian.PutUint16(msg[6:], seq)
			binary.BigEndian.PutUint16(msg[2:], checksum(0, msg)) // for ICMPv6 the kernel writes it
			if to.Is6() {
				err = unix.Sendto(fd, msg, 0, &unix.SockaddrInet6{Addr: to.As16()})
			} else {
				err = unix.Sendto(fd, msg, 0, &unix.SockaddrInet4{Addr: to.As4()})
			}
			if err != nil {
				return err
			}
			again := time.Now().Add(time.Second)
			for await(fd, again) == nil {
				n, _, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					return err
				}
				m := buf[:n]
				if to.Is4() && n > 20 {
					m = m[int(m[0]&15)*4:]
				}
				if len(m) >= 8 && m[0] == reply && binary.BigEndian.Uint16(m[4:]) == id {
					return nil
				}
			}
			if time.Now().After(deadline) {
				return errors.New("no answer")
			}
		}
	})
	if err != nil {
		return fmt.Errorf("ping from %s to %v: %w", h.Ifname, to, err)
	}
	return nil
}

// checksum is the Internet checksum (RFC 1071) of b, added to a former sum.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Transfer sends n bytes over TCP from one host to an address of another, and
// checks that they arrive unchanged.
func Transfer(from, to *Host, addr netip.Addr, n int64) error {
	return transfer(from, to, addr, n, func(fn func() error) error { return fn() })
}

// TransferInOrder is a Transfer whose segments arrive in the order in which the stacks send them: all of
// them are sent on the lab's CPU. On two CPUs an acknowledgement that the reader causes may overtake one
// that the stack sends on reception, or the reverse. A receiver may refuse the older one for its
// timestamp (RFC 7323, 5.3), and so may pf.
func (l *Lab) TransferInOrder(from, to *Host, addr netip.Addr, n int64) error {
	return transfer(from, to, addr, n, func(fn func() error) error { return onCPU(l.cpu, fn) })
}

// transfer is Transfer; `keep` runs a host's functions.
func transfer(from, to *Host, addr netip.Addr, n int64, keep func(fn func() error) error) error {
	var listener *net.TCPListener
	err := to.Namespace.Do(func() (err error) {
		listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	deadline := time.Now().Add(patience)
	listener.SetDeadline(deadline)

	type digest [sha256.Size]byte
	var got digest
	received := make(chan error, 1)
	go func() {
		received <- keep(func() error {
			c, err := listener.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(deadline)
			h := sha256.New()
			_, err = io.Copy(h, c)
			got = digest(h.Sum(nil))
			return err
		})
	}()

	var sent digest
	send := func() error {
		d := net.Dialer{Deadline: deadline}
		c, err := d.Dial("tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(deadline)
		h := sha256.New()
		seed := [32]byte{byte(n)}
		// In large pieces. With small ones, packets stay small on a machine that sends faster
		// than the test writes.
		w := bufio.NewWriterSize(c, 1<<20)
		_, err = io.CopyN(io.MultiWriter(w, h), rand.NewChaCha8(seed), n)
		sent = digest(h.Sum(nil))
		return errors.Join(err, w.Flush())
	}
	err = from.Namespace.Do(func() error { return keep(send) })
	if err == nil {
		err = <-received
	}
	if err == nil && got != sent {
		err = errors.New("what arrived is not what was sent")
	}
	if err != nil {
		return fmt.Errorf("TCP from %s to %v on %s: %w", from.Ifname, addr, to.Ifname, err)
	}
	return nil
}
