// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// An xsk is an AF_XDP socket that sends from an end. Each frame has metadata with the place of
// its unfinished checksum. The kernel accepts any place within the frame, also in the Ethernet
// header, which it refuses from packet sockets and taps.
type xsk struct {
	t        *testing.T
	e        *netlab.End
	fd       int
	umem     []byte
	tx, done []byte
	off      unix.XDPMmapOffsets
	sent     uint32
}

const (
	xskFrames = 64
	xskChunk  = 2048
	xskMeta   = 24 // struct xsk_tx_metadata of linux/if_xdp.h
)

func newXSK(t *testing.T, e *netlab.End) *xsk {
	t.Helper()
	s := &xsk{t: t, e: e, fd: -1}
	must(t, e.Namespace.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(s.fd) })
	var err error
	s.umem, err = unix.Mmap(-1, 0, xskFrames*xskChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(s.umem) })
	const metadataLen = 1 << 2 // XDP_UMEM_TX_METADATA_LEN
	set := func(option int, p unsafe.Pointer, size uintptr) {
		t.Helper()
		if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, uintptr(option), uintptr(p), size, 0); errno != 0 {
			t.Fatalf("AF_XDP, option %d: %v", option, errno)
		}
	}
	umem := struct {
		addr, length           uint64
		chunk, headroom, flags uint32
		meta                   uint32
	}{uint64(uintptr(unsafe.Pointer(&s.umem[0]))), uint64(len(s.umem)), xskChunk, 0, metadataLen, xskMeta}
	set(unix.XDP_UMEM_REG, unsafe.Pointer(&umem), unsafe.Sizeof(umem))
	size := uint32(xskFrames)
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		set(ring, unsafe.Pointer(&size), unsafe.Sizeof(size))
	}
	length := uint32(unsafe.Sizeof(s.off))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&s.off)), uintptr(unsafe.Pointer(&length)), 0); errno != 0 {
		t.Fatal(errno)
	}
	mapRing := func(at int64, desc uint64, size int) []byte {
		m, err := unix.Mmap(s.fd, at, int(desc)+xskFrames*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		must(t, err)
		t.Cleanup(func() { unix.Munmap(m) })
		return m
	}
	s.tx = mapRing(unix.XDP_PGOFF_TX_RING, s.off.Tx.Desc, 16)
	s.done = mapRing(unix.XDP_UMEM_PGOFF_COMPLETION_RING, s.off.Cr.Desc, 8)
	must(t, unix.Bind(s.fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(e.Ifindex), QueueID: 0}))
	return s
}

// send sends a frame whose checksum covers the bytes from start on, and is written offset bytes
// behind start.
func (s *xsk) send(f netlab.Frame, start, offset int) error {
	n := s.sent % xskFrames
	chunk := s.umem[n*xskChunk:]
	clear(chunk[:xskMeta])
	binary.NativeEndian.PutUint64(chunk, 1<<1) // XDP_TXMD_FLAGS_CHECKSUM
	binary.NativeEndian.PutUint16(chunk[8:], uint16(start))
	binary.NativeEndian.PutUint16(chunk[10:], uint16(offset))
	copy(chunk[xskMeta:], f)
	desc := s.tx[s.off.Tx.Desc+uint64(n)*16:]
	binary.NativeEndian.PutUint64(desc, uint64(n*xskChunk+xskMeta))
	binary.NativeEndian.PutUint32(desc[8:], uint32(len(f)))
	binary.NativeEndian.PutUint32(desc[12:], 1<<1) // XDP_TX_METADATA
	s.sent++
	word := func(ring []byte, at uint64) *uint32 { return (*uint32)(unsafe.Pointer(&ring[at])) }
	atomic.StoreUint32(word(s.tx, s.off.Tx.Producer), s.sent)
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	atomic.StoreUint32(word(s.done, s.off.Cr.Consumer), atomic.LoadUint32(word(s.done, s.off.Cr.Producer)))
	if errno != 0 {
		return fmt.Errorf("AF_XDP: %w", errno)
	}
	return nil
}

// unfinishedHeader: the sender of an unfinished checksum may choose any place for it. The
// datapath accepts no place in the Ethernet header or in the tag, on which VLANs and locked
// ports rely: with any place, frames arrive only where they may, with the header that was
// examined.
func unfinishedHeader(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4, "--vlan-filtering")
	a, untagged, other, trunk := ends[0], ends[1], ends[2], ends[3]
	const vlan, second, forbidden = 10, 11, 20
	tap := l.NewTap("t0", true)
	l.Bascule("port", "add", "br0", "t0")
	for port, list := range map[string][]string{
		a.Port: {"10 --untagged --pvid", "11"}, "t0": {"10 --untagged --pvid", "11"}, untagged.Port: {"10 --untagged --pvid"},
		other.Port: {"20 --untagged --pvid"}, trunk.Port: {"10", "11", "20"},
	} {
		l.Bascule("vlan", "del", "br0", port, "1")
		for _, v := range list {
			l.Bascule(append([]string{"vlan", "add", "br0", port}, strings.Fields(v)...)...)
		}
	}
	for i, port := range []string{a.Port, "t0"} {
		for _, v := range []string{"10", "11"} {
			l.Bascule("fdb", "add", "br0", []netlab.MAC{A, B}[i].String(), port, "--vlan", v)
		}
		l.Bascule("port", "set", "br0", port, "--locked", "--learn=off")
	}
	for _, e := range ends[1:] {
		e.FinishChecksums()
	}
	const typ = 0x88b5
	const largest = 60 // number of places from which a checksum is computed
	socket, packetSocket := newXSK(t, a), a.VnetSocket()
	for _, sender := range []struct {
		name string
		own  netlab.MAC
		send func(f netlab.Frame, start, offset int) error
	}{
		{"AF_XDP", A, socket.send},
		{"packet socket", A, packetSocket},
		{"tap", B, tap.SendUnfinished},
	} {
		t.Run(sender.name, func(t *testing.T) {
			sent := map[netlab.Frame]bool{}
			arrived, changed, number := 0, 0, 0
			for start := 0; start <= largest; start++ {
				for _, offset := range []int{0, 1, 2, 5, 6, 13} {
					for _, src := range []netlab.MAC{sender.own, C} {
						number++
						plain := etherFrame(netlab.Broadcast, src, typ, be16(number), []byte(strings.Repeat("\x5a", 78)))
						for _, f := range []netlab.Frame{
							plain, plain.Tagged(0, 3), plain.Tagged(vlan, 0), plain.Tagged(second, 0), plain.Tagged(forbidden, 0),
							plain.Tagged(forbidden, 0).Tagged(vlan, 0),
						} {
							sent[f] = true
							if err := sender.send(f, start, offset); err != nil && !errors.Is(err, unix.EINVAL) {
								t.Fatal(err)
							}
						}
					}
				}
				l.Flush()
				if got := other.Received(); len(got) > 0 {
					t.Fatalf("from %d: in another VLAN arrives %v", start, got)
				}
				for _, e := range []*netlab.End{untagged, trunk} {
					for _, f := range e.Received() {
						header := etherFrame(netlab.Broadcast, sender.own, typ)[:14]
						allowed := []netlab.Frame{header}
						if e == trunk {
							allowed = []netlab.Frame{header.Tagged(vlan, 0), header.Tagged(vlan, 3), header.Tagged(second, 0)}
						}
						if !slices.ContainsFunc(allowed, func(h netlab.Frame) bool { return strings.HasPrefix(string(f), string(h)) }) {
							t.Fatalf("from %d: at %s arrives %x", start, e.Port, []byte(f))
						}
						arrived++
						if e == untagged && !sent[f] && !sent[f.Tagged(0, 3)] && !sent[f.Tagged(vlan, 0)] {
							changed++
						}
					}
				}
			}
			t.Logf("%d frames arrive; with the checksum made: %d", arrived, changed)
			if changed < 100 {
				t.Error("no checksums are made")
			}
		})
	}
}
