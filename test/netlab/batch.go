// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A message is struct mmsghdr of recvmmsg(2).
type message struct {
	unix.Msghdr
	length uint32
	_      [4]byte
}

// A batch is a buffer for frames that are received with one system call.
type batch struct {
	messages [64]message
	pieces   [64]unix.Iovec
	frames   [64][batchFrame]byte
	notes    [64][batchNotes]byte
}

// The largest frame that a batch receives, and the room for its control messages (cmsg(3)), in
// bytes.
const batchFrame, batchNotes = 4096, 64

func newBatch() *batch {
	b := new(batch)
	for i := range b.messages {
		b.pieces[i].Base = &b.frames[i][0]
		b.pieces[i].SetLen(batchFrame)
		b.messages[i].Iov = &b.pieces[i]
		b.messages[i].SetIovlen(1)
		b.messages[i].Control = &b.notes[i][0]
	}
	return b
}

// receive reads the frames that have arrived at a socket, as many as the batch has room for.
func (b *batch) receive(s *Socket) ([]Frame, error) {
	for i := range b.messages {
		b.messages[i].SetControllen(batchNotes)
	}
	n, err := messages(unix.SYS_RECVMMSG, s.fd, b.messages[:])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: receive: %w", s.name, err)
	}
	frames := make([]Frame, n)
	for i := range frames {
		m := &b.messages[i]
		if m.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			return nil, fmt.Errorf("%s: receive: a frame of more than %d bytes", s.name, batchFrame)
		}
		if frames[i], err = whole(b.frames[i][:m.length], b.notes[i][:m.Controllen]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return frames, nil
}

// sendMany sends frames with one system call, from the CPU of the calling
// thread.
func (s *Socket) sendMany(frames []Frame) error {
	list, pieces := make([]message, len(frames)), make([]unix.Iovec, len(frames))
	for i, f := range frames {
		pieces[i].Base = unsafe.StringData(string(f))
		pieces[i].SetLen(len(f))
		list[i].Iov = &pieces[i]
		list[i].SetIovlen(1)
	}
	for deadline := time.Now().Add(patience); len(list) > 0; {
		n, err := messages(unix.SYS_SENDMMSG, s.fd, list)
		if errors.Is(err, unix.ENOBUFS) && time.Now().Before(deadline) {
			// the first was not sent: see sendFrame
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("send %v from %s: %w", frames[len(frames)-len(list)], s.name, err)
		}
		list = list[n:]
	}
	return nil
}

// messages calls sendmmsg(2) or recvmmsg(2), without waiting.
func messages(call uintptr, fd int, list []message) (int, error) {
	n, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
