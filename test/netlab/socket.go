// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

const (
	socketBuffer = 64 << 20 // bytes; a socket that overflows anyway fails the test
	largestFrame = 1 << 17  // bytes: more than any GSO packet of 64 KiB with its headers
)

// A Socket receives and sends frames at an interface.
type Socket struct {
	name  string
	index int // index of the interface
	cpu   int // the CPU that sends
	fd    int
	buf   []byte
	inbox []Frame
	t     testing.TB
}

// Listen opens a socket at an interface of a namespace. It receives every frame that arrives
// there, with any destination address, and none that leaves.
func (l *Lab) Listen(ns *ends.Namespace, ifname string) *Socket {
	l.t.Helper()
	s := l.open(ns, ifname)
	l.sockets = append(l.sockets, s)
	return s
}

// Queue opens a socket of the end that keeps frames in the kernel until Received reads them.
func (e *End) Queue() *Socket {
	e.lab.t.Helper()
	s := e.lab.open(e.Namespace, e.Ifname)
	e.lab.t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// QueueOf opens such a socket at an interface of a namespace, for frames of one EtherType. The
// kernel delivers frames to it that were not taken before its protocol handlers.
func (l *Lab) QueueOf(ns *ends.Namespace, ifname string, ethertype uint16) *Socket {
	l.t.Helper()
	s := l.openFor(ns, ifname, ethertype)
	l.t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

func (l *Lab) open(ns *ends.Namespace, ifname string) *Socket {
	l.t.Helper()
	return l.openFor(ns, ifname, unix.ETH_P_ALL)
}

func (l *Lab) openFor(ns *ends.Namespace, ifname string, ethertype uint16) *Socket {
	l.t.Helper()
	nl, err := ns.Netlink().LinkByName(ifname)
	l.must(err)
	s := &Socket{name: ifname, index: nl.Attrs().Index, cpu: l.cpu, buf: make([]byte, largestFrame), t: l.t}
	l.must(ns.Do(func() (err error) {
		s.fd, err = packetSocket(s.index, ethertype)
		return err
	}))
	return s
}

func (s *Socket) String() string { return s.name }

// send sends frames, one by one.
func (s *Socket) send(frames ...Frame) error {
	return onCPU(s.cpu, func() error {
		for _, f := range frames {
			err := sendFrame(s.fd, f, s.index)
			if err != nil {
				return fmt.Errorf("send %v from %s: %w", f, s.name, err)
			}
		}
		return nil
	})
}

// Send sends frames without waiting. Lab.Send waits until the switch has finished them.
func (s *Socket) Send(frames ...Frame) {
	s.t.Helper()
	if err := s.send(frames...); err != nil {
		s.t.Fatal(err)
	}
}

// drain reads the frames that have arrived.
func (s *Socket) drain() error {
	for {
		f, ok, err := receive(s.fd, s.buf)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if !ok {
			return nil
		}
		s.inbox = append(s.inbox, f)
	}
}

// discard discards the frames that have arrived, and the count of frames without room.
func (s *Socket) discard() error {
	s.inbox = nil
	for {
		_, _, err := unix.Recvfrom(s.fd, s.buf[:1], unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	_, err := overflowed(s.fd)
	return err
}

// Received returns the frames that have arrived so far, without markers.
func (s *Socket) Received() []Frame {
	s.t.Helper()
	err := s.drain()
	if err == nil {
		err = s.checkOverflow()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.inbox
	s.inbox = nil
	return slices.DeleteFunc(got, func(f Frame) bool { return len(f) >= headerLen && f.ethertype() == typeMarker })
}

func (s *Socket) checkOverflow() error {
	lost, err := overflowed(s.fd)
	if err == nil && lost > 0 {
		err = fmt.Errorf("%s: the test's own socket overflowed by %d frames", s.name, lost)
	}
	return err
}

// awaitMarker reads frames until the marker has arrived.
func (s *Socket) awaitMarker(marker uint32, deadline time.Time) error {
	for {
		f, ok, err := receive(s.fd, s.buf)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", s.name, err)
		case !ok:
			if err := await(s.fd, deadline); err != nil {
				return fmt.Errorf("%s: the marker did not arrive: %w", s.name, err)
			}
		case len(f) >= minLen && f.ethertype() == typeMarker:
			if f.uint32(headerLen) == marker {
				return nil
			}
		default:
			s.inbox = append(s.inbox, f)
		}
	}
}

// Largest watches an interface. The function that it returns ends that, and returns the size of
// the largest packet that arrived meanwhile, in bytes.
func (s *Socket) Largest() func() int {
	s.t.Helper()
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		s.t.Fatal(err)
	}
	result := make(chan int)
	go func() {
		largest := 0
		for {
			fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
			unix.Poll(fds, -1)
			for {
				n, _, err := unix.Recvfrom(s.fd, s.buf[:1], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
				if err != nil {
					break
				}
				largest = max(largest, n)
			}
			if fds[1].Revents != 0 {
				result <- largest
				return
			}
		}
	}()
	return func() int {
		unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		defer unix.Close(stop)
		return <-result
	}
}

// packetSocket opens a packet socket on an interface, for frames of an EtherType, in the
// network namespace of the calling thread.
func packetSocket(ifindex int, ethertype uint16) (int, error) {
	fd, err := sendSocket()
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(ethertype), Ifindex: ifindex}),
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

// receive returns the next frame of a packet socket. ok is false if there is none now.
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
	if f, err = whole(buf[:n], oob[:oobn]); err != nil {
		return "", false, err
	}
	return f, true, nil
}

// whole returns a received frame with the tag that the kernel stores in the control messages.
func whole(frame, notes []byte) (Frame, error) {
	f := Frame(frame)
	messages, err := unix.ParseSocketControlMessage(notes)
	if err != nil {
		return "", fmt.Errorf("receive: %w", err)
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
	return f, nil
}

// await waits until the file is readable, at most until the deadline.
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

// overflowed returns the number of frames for which a packet socket had no room since the last
// call.
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

// sendFrame sends a frame through a packet socket. A device without room refuses the frame, and
// the kernel returns an error. This happens on a busy machine: the queue of a veth whose other
// end has an XDP program stays full until that end is scheduled. The CPU's queue may be full,
// too: see backlog.
func sendFrame(fd int, f Frame, index int) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := unix.Sendto(fd, []byte(f), 0, &unix.SockaddrLinklayer{Ifindex: index})
		if err != unix.ENOBUFS || time.Now().After(deadline) {
			return err
		}
	}
}
