// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	socketBuffer = 64 << 20 // bytes; a socket that overflows nevertheless fails the test
	largestFrame = 1 << 17  // bytes: more than any GSO packet of 64 KiB with its headers
)

// packetSocket opens a packet socket on an interface, in the network namespace
// of the calling thread. It gets every frame that arrives at the interface,
// whatever its address, and none that leaves.
func packetSocket(ifindex int) (int, error) {
	fd, err := sendSocket()
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: ifindex}),
	)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket on interface %d: %w", ifindex, err)
	}
	return fd, nil
}

// sendSocket opens a packet socket that only sends.
func sendSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	return fd, nil
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }

// receive returns the next frame of a packet socket; ok is false when there is
// none now.
func receive(fd int, buf []byte) (f Frame, ok bool, err error) {
	var oob [128]byte
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob[:], unix.MSG_DONTWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("receive: %w", err)
	case flags&unix.MSG_TRUNC != 0:
		return "", false, fmt.Errorf("receive: a frame of more than %d bytes", len(buf))
	}
	f = Frame(buf[:n])
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return "", false, fmt.Errorf("receive: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA {
			continue
		}
		aux := (*unix.TpacketAuxdata)(unsafe.Pointer(&m.Data[0]))
		if aux.Status&unix.TP_STATUS_VLAN_VALID != 0 {
			f = f.withTag(aux.Vlan_tpid, aux.Vlan_tci)
		}
	}
	return f, true, nil
}

// await waits until the file can be read, at most until the deadline.
func await(fd int, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// overflowed reports how many frames a packet socket had no room for since the
// last call.
func overflowed(fd int) (uint32, error) {
	var stats unix.TpacketStats
	size := uint32(unsafe.Sizeof(stats))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS,
		uintptr(unsafe.Pointer(&stats)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("packet socket statistics: %w", errno)
	}
	return stats.Drops, nil
}

// onCPU runs fn with the calling thread kept on one CPU.
func onCPU(cpu int, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("CPU affinity: %w", err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("CPU affinity: %w", err)
	}
	return errors.Join(fn(), unix.SchedSetaffinity(0, &before))
}
