// SPDX-License-Identifier: BSD-2-Clause

package soak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

const (
	headerLen = 14
	typeData  = 0x88b5 // EtherType of netlab's frames
	udpPort   = 4444   // port of the conversation that pf sees
	ownNumber = 1 << 31
)

// conversation returns functions for the UDP frames of two ends, for which pf has a state. The
// UDP payload has the frame's number where netlab's frames have theirs.
func conversation(from, to *netlab.End) func(uint32) (netlab.Frame, netlab.Frame) {
	return func(number uint32) (netlab.Frame, netlab.Frame) {
		b := []byte(netlab.NewFrame(to.MAC, from.MAC, number, 64))
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
		ip := b[headerLen : headerLen+20]
		clear(ip)
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-headerLen))
		copy(ip[12:], []byte{198, 18, 0, from.MAC[5]})
		copy(ip[16:], []byte{198, 18, 0, to.MAC[5]})
		var sum uint32
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		udp := b[headerLen+20:]
		binary.BigEndian.PutUint16(udp, udpPort)
		binary.BigEndian.PutUint16(udp[2:], udpPort)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		binary.BigEndian.PutUint16(udp[6:], 0) // no checksum
		binary.BigEndian.PutUint32(udp[8:], number)
		return netlab.Frame(b), netlab.Frame(b)
	}
}

// trunked returns a function for frames that are sent with a tag and arrive without.
func trunked(dst, src netlab.MAC, vlan uint16) func(uint32) (netlab.Frame, netlab.Frame) {
	return func(number uint32) (netlab.Frame, netlab.Frame) {
		f := netlab.NewFrame(dst, src, number, 60)
		return f.Tagged(vlan, 0), f
	}
}

// ofLoad reports whether a frame belongs to the load, whose frames are counted.
func ofLoad(f netlab.Frame) bool {
	if len(f) < headerLen+32 {
		return false
	}
	b := []byte(f)
	if binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_8021Q {
		b = b[4:]
	}
	switch binary.BigEndian.Uint16(b[12:]) {
	case typeData:
		return binary.BigEndian.Uint32(b[headerLen:]) >= ownNumber
	case unix.ETH_P_IP:
		return b[headerLen+9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[headerLen+20:]) == udpPort
	}
	return false
}

// A wire is a socket at the far side of a cable. Unlike an end's socket, it may miss frames.
type wire struct {
	fd, index int
	buf       []byte
}

func listen(ns *ends.Namespace, index int) (*wire, error) {
	w := &wire{index: index, buf: make([]byte, 1<<16)}
	err := ns.Do(func() (err error) {
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(w.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8, Ifindex: index}),
		)
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket at interface %d: %w", index, err)
	}
	return w, nil
}

// burst is the number of frames that are sent at a time. It keeps the kernel's queues, which
// the load uses as well, from overflowing.
const burst = 16

func (w *wire) send(frames ...netlab.Frame) error {
	for i, f := range frames {
		if err := unix.Sendto(w.fd, []byte(f), 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
			return fmt.Errorf("send %v: %w", f, err)
		}
		if i%burst == burst-1 {
			time.Sleep(500 * time.Microsecond)
		}
	}
	return nil
}

// received reads the frames that have arrived.
func (w *wire) received() []netlab.Frame {
	var got []netlab.Frame
	for {
		n, _, err := unix.Recvfrom(w.fd, w.buf, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
			continue // ENETDOWN is returned once when the interface goes down
		}
		if err != nil {
			return got
		}
		got = append(got, netlab.Frame(w.buf[:n]))
	}
}

func (w *wire) close() { unix.Close(w.fd) }

// astray checks the frames that arrived at a station outside the load. It may receive the
// load's broadcasts, each once.
func astray(got []netlab.Frame) error {
	seen := map[netlab.Frame]bool{}
	for _, f := range got {
		if !ofLoad(f) {
			continue
		}
		if f.Dst() != netlab.Broadcast {
			return fmt.Errorf("%v came to a port that it is not for", f)
		}
		if seen[f] {
			return fmt.Errorf("%v came twice", f)
		}
		seen[f] = true
	}
	return nil
}
