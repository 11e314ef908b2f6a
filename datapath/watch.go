// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"bascule/locks"
)

// A Watch is a way of observing a bridge. It adds to the cost of the bridge's frames,
// so it is on only while a process watches.
type Watch string

// The watches.
const (
	WatchCapture Watch = "capture" // one at a time
	WatchTalkers Watch = "talkers"
	WatchSample  Watch = "sample"  // one at a time
	WatchPFLog   Watch = "pflog"   // one at a time; has no flag: the rules define which packets are logged
	WatchControl Watch = "control" // one at a time; has no flag: the process that runs the control protocols
)

// Flag is the bridge's flag of the watch, 0 for none.
func (w Watch) Flag() BridgeFlags {
	switch w {
	case WatchCapture:
		return BridgeCapture
	case WatchTalkers:
		return BridgeTalkers
	case WatchSample:
		return BridgeSample
	}
	return 0
}

// ErrWatched reports that another process has the watch.
var ErrWatched = errors.New("somebody else is at it")

// Hold registers the caller as watching, until it calls release or ends. Other
// processes may watch at the same time if the watch is shared.
func (b *Bridge) Hold(w Watch) (release func(), err error) {
	hold, err := b.HoldFolder(w)
	if err != nil {
		return nil, err
	}
	return func() { hold.Release(false) }, nil
}

// HoldFolder is Hold for a process that watches for long, and checks whether it still
// holds the watch.
func (b *Bridge) HoldFolder(w Watch) (*Hold, error) {
	lock := locks.TryShared
	if w != WatchTalkers {
		lock = locks.Try
	}
	if err := os.Mkdir(b.pin(string(w)), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dir, err := b.flock(w, lock)
	if err != nil {
		return nil, err
	}
	return newHold(dir, b.pin(string(w))), nil
}

// Held reports whether any process watches.
func (b *Bridge) Held(w Watch) bool {
	lock := locks.TryShared // others may check at the same moment
	if w == WatchTalkers {
		lock = locks.Try // a shared watch
	}
	dir, err := b.flock(w, lock)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	locks.Close(dir)
	return false
}

// Runs reports whether the watch is held by a process that is not stopped (SIGSTOP). A
// stopped process keeps its locks, and does nothing.
func (b *Bridge) Runs(w Watch) bool {
	if !b.Held(w) {
		return false
	}
	if holdHere(b.pin(string(w))) {
		return true // the calling process is not stopped
	}
	pid := b.holder(w)
	return pid == 0 || !Stopped(pid)
}

// holder returns the process that holds a watch. It is 0 if that is unknown, for
// example in another process namespace.
func (b *Bridge) holder(w Watch) int { return LockHolder(b.pin(string(w))) }

// LockHolder returns the process that has locked a file or folder (flock(2)), 0 if
// there is none or it is unknown. It takes some 12 ms: the kernel stops all processes
// that lock a file, and waits for each CPU, before it lists the locks.
func LockHolder(path string) int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	f, err := os.Open("/proc/locks") // proc_locks(5)
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK ADVISORY WRITE 4711 00:2c:698199 0 EOF
		if words := strings.Fields(lines.Text()); len(words) > 5 && words[1] == "FLOCK" && words[5] == file {
			if pid, err := strconv.Atoi(words[4]); err == nil && pid > 0 {
				return pid
			}
		}
	}
	return 0
}

// Stopped reports whether a process is stopped, by SIGSTOP or a debugger.
func Stopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := text[bytes.LastIndexByte(text, ')')+1:] // behind the name, which may contain any character
	return bytes.HasPrefix(state, []byte(" T")) || bytes.HasPrefix(state, []byte(" t"))
}

func (b *Bridge) flock(w Watch, lock func(*os.File) error) (*os.File, error) {
	dir, err := os.Open(b.pin(string(w)))
	if err != nil {
		return nil, err
	}
	if err := lock(dir); err != nil {
		dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrWatched
		}
		return nil, err
	}
	return dir, nil
}

// maxFilter is the largest number of instructions of a filter in classic BPF
// (BPF_MAXINSNS).
const maxFilter = 4096

// storeFilter stores a filter for programs that are loaded later.
func storeFilter(m *ebpf.Map, filter []unix.SockFilter) error {
	if filter == nil {
		return nil
	}
	if len(filter) > maxFilter {
		return fmt.Errorf("a filter of %d instructions; there can be %d", len(filter), maxFilter)
	}
	if err := m.Put(uint32(0), uint64(len(filter))); err != nil {
		return err
	}
	for i, f := range filter {
		word := uint64(f.Code) | uint64(f.Jt)<<16 | uint64(f.Jf)<<24 | uint64(f.K)<<32
		if err := m.Put(uint32(i+1), word); err != nil {
			return err
		}
	}
	return nil
}

// filter returns the filter of the bridge's capture.
func (b *Bridge) filter() ([]unix.SockFilter, error) {
	m, err := b.openTable(kernelMapCaptureFilter)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var n uint64
	if err := m.Lookup(uint32(0), &n); err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, n)
	for i := range filter {
		var word uint64
		if err := m.Lookup(uint32(i+1), &word); err != nil {
			return nil, err
		}
		filter[i] = unix.SockFilter{Code: uint16(word), Jt: uint8(word >> 16), Jf: uint8(word >> 24), K: uint32(word >> 32)}
	}
	return filter, nil
}

// MaxSnaplen is the most bytes of a frame that can be captured.
const MaxSnaplen = len(kernelCaptureBytes{}.At)

// CapturePoint is the place where a frame was captured.
type CapturePoint = kernelCapturePoint

// The points. CapturePorts is not a point: its bit restricts the capture to ports with
// PortCapture.
const (
	CaptureIn    = kernelCapturePointCAPTURE_IN
	CaptureOut   = kernelCapturePointCAPTURE_OUT
	CaptureDrop  = kernelCapturePointCAPTURE_DROP
	CapturePorts = kernelCapturePointCAPTURE_PORTS
)

// Captured is a captured frame.
type Captured struct {
	Time   time.Duration // CLOCK_MONOTONIC
	Port   uint32        // id
	Point  CapturePoint
	Reason uint8  // for a drop, an index in Reasons
	VLAN   uint16 // 0 for none
	Length int    // bytes of the frame
	Data   []byte // the captured bytes
}

// Frames reads the captured frames of a bridge. There can be one reader only:
// two would take frames from each other.
type Frames struct {
	ring   *ringbuf.Reader
	missed *ebpf.Map
	seen   uint64 // missed frames that Missed has returned
	record ringbuf.Record
}

// OpenFrames opens the bridge's captured frames. The reader stays valid after changes
// of the bridge's configuration, as long as the capture lasts.
func (b *Bridge) OpenFrames() (*Frames, error) {
	m, err := b.openTable(kernelMapCaptureRing)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	missed, err := b.openTable(kernelMapCounters)
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(m)
	if err != nil {
		missed.Close()
		return nil, fmt.Errorf("read captured frames: %w", err)
	}
	return &Frames{ring: ring, missed: missed}, nil
}

// Close ends the reading; Read returns os.ErrClosed.
func (f *Frames) Close() error { return errors.Join(f.ring.Close(), f.missed.Close()) }

// Read returns the next frame, waiting for one until the deadline; then the
// error is os.ErrDeadlineExceeded. The data is good until the next call.
func (f *Frames) Read(deadline time.Time) (Captured, error) {
	f.ring.SetDeadline(deadline)
	if err := f.ring.ReadInto(&f.record); err != nil {
		return Captured{}, err
	}
	raw := f.record.RawSample
	var head kernelCaptured
	size := int(unsafe.Sizeof(head))
	if len(raw) < size {
		return Captured{}, fmt.Errorf("a captured frame of %d bytes", len(raw))
	}
	if _, err := binary.Decode(raw, binary.NativeEndian, &head); err != nil {
		return Captured{}, err
	}
	kept := min(int(head.Kept), len(raw)-size)
	return Captured{
		Time: time.Duration(head.Time), Port: head.Port, Point: CapturePoint(head.Point), Reason: head.Reason,
		VLAN: head.Vlan, Length: int(head.Len), Data: raw[size : size+kept],
	}, nil
}

// Missed returns how many frames were not captured since the last call because the
// reader was late.
func (f *Frames) Missed() (uint64, error) {
	sum, err := counterOf(f.missed, kernelCounterCOUNTER_CAPTURE_MISSED)
	if err != nil {
		return 0, err
	}
	n := sum - f.seen
	f.seen = sum
	return n, nil
}

// maxTalkers is the most addresses that are counted at a time.
const maxTalkers = 8192

// A Talker is an address that sends.
type Talker struct {
	MAC    [6]byte
	VLAN   uint16
	Port   uint32 // id
	Frames uint64 // frames that it has sent
	Bytes  uint64
}

// Talkers returns the addresses that have sent frames since WatchTalkers was switched
// on. If there are very many, it returns only some of them.
func (b *Bridge) Talkers() ([]Talker, error) {
	m, err := b.openTable(kernelMapTalkers)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	found := map[uint64]Talker{} // a table that changes meanwhile may return an address twice
	var key uint64
	var perCPU []kernelTalker
	entries := m.Iterate()
	for entries.Next(&key, &perCPU) {
		found[key] = talkerOf(key, perCPU)
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, err
	}
	return slices.Collect(maps.Values(found)), nil
}

// talkerOf adds up the counts of the CPUs for an address. The address's port is the
// port of its last frame on any CPU.
func talkerOf(key uint64, perCPU []kernelTalker) Talker {
	t := Talker{MAC: macOf(key), VLAN: uint16(key >> macBits)}
	var heard uint32
	for _, c := range perCPU {
		if c.Frames == 0 {
			continue
		}
		if t.Frames == 0 || int32(c.Heard-heard) > 0 {
			t.Port, heard = c.Port, c.Heard
		}
		t.Frames += c.Frames
		t.Bytes += c.Bytes
	}
	return t
}
