// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// An Entry is an address in the FDB.
type Entry struct {
	MAC     [6]byte
	VLAN    uint16
	Port    uint32 // id
	Static  bool
	Sticky  bool
	Locked  bool          // seen on a locked port, where it is not authorized
	Updated time.Duration // time since its last frame; 0 if Static or Sticky
}

const (
	fdbStatic  = 1 << 31
	fdbSticky  = 1 << 30
	fdbPinned  = fdbStatic | fdbSticky
	fdbLocked  = 1 << 63
	fdbClaimed = 1<<64 - 1
	macBits    = 48
)

// key returns the entry's key in the FDB: vlan << 48 | mac, the MAC's first
// byte lowest.
func key(mac [6]byte, vlan uint16) uint64 {
	k := uint64(vlan) << macBits
	for i, b := range mac {
		k |= uint64(b) << (8 * i)
	}
	return k
}

func macOf(key uint64) (mac [6]byte) {
	for i := range mac {
		mac[i] = byte(key >> (8 * i))
	}
	return mac
}

// control runs the control program, which writes its answer into the request.
func (g *generation) control(r kernelControl) (int, error) {
	return runControl(g.coll.Programs[kernelProgBasculeControl], r)
}

func runControl(p *ebpf.Program, r kernelControl) (int, error) {
	if err := runWith(p, &r); err != nil {
		return 0, fmt.Errorf("control program: %w", err)
	}
	if r.Result < 0 {
		return 0, unix.Errno(-r.Result)
	}
	return int(r.Result), nil
}

// runWith runs a program of type syscall with a context, which the program may write to.
// The system call is made here and not by the library, since nearly every command makes it:
// the library would first load programs to test whether the kernel can run any.
func runWith(p *ebpf.Program, context *kernelControl) error {
	var pins runtime.Pinner // the kernel gets its address
	defer pins.Unpin()
	pins.Pin(context)
	// union bpf_attr of linux/bpf.h, for BPF_PROG_TEST_RUN
	run := struct {
		program  uint32
		_        [9]uint32 // for packets
		size, to uint32
		context  uint64
		_        uint64
		_        [4]uint32
	}{program: uint32(p.FD()), size: uint32(unsafe.Sizeof(*context)), context: uint64(uintptr(unsafe.Pointer(context)))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
	runtime.KeepAlive(p)
	if errno != 0 {
		return errno
	}
	return nil
}

// clock runs the clock program. The request is the mark of its frame.
func (g *generation) clock(op kernelClockOp) error {
	return runClock(g.coll.Programs[kernelProgBasculeClock], op)
}

func runClock(p *ebpf.Program, op kernelClockOp) error {
	frame := make([]byte, 64)                             // the kernel takes no shorter frame
	mark := struct{ _, _, mark uint32 }{mark: uint32(op)} // the first fields of struct __sk_buff
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&frame[0])
	pins.Pin(&mark)
	// as in runWith
	run := struct {
		program uint32
		result  int32
		size    uint32
		_       uint32
		frame   uint64
		_       uint64
		_       [2]uint32
		context uint32
		_       uint32
		at      uint64
		_       uint64
		_       [4]uint32
	}{
		program: uint32(p.FD()), size: uint32(len(frame)), frame: uint64(uintptr(unsafe.Pointer(&frame[0]))),
		context: uint32(unsafe.Sizeof(mark)), at: uint64(uintptr(unsafe.Pointer(&mark))),
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
	runtime.KeepAlive(p)
	if errno != 0 {
		return fmt.Errorf("clock program: %w", errno)
	}
	if run.result < 0 {
		return unix.Errno(-run.result)
	}
	return nil
}

func (b *Bridge) control(r kernelControl) (int, error) {
	p, err := openProgram(b.pin(b.gen, controlPin))
	if err != nil {
		return 0, err
	}
	defer p.Close()
	return runControl(p, r)
}

// ErrFull reports that the FDB has no room for an entry in the buckets that its address may
// use.
var ErrFull = errors.New("the FDB has no room for the address")

// Put stores an entry in the FDB, instead of the address's former entry. A new static or
// sticky entry causes an event.
func (b *Bridge) Put(e Entry) error {
	word := uint64(e.Port)
	if e.Static {
		word |= fdbStatic
	}
	if e.Sticky {
		word |= fdbSticky
	}
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: key(e.MAC, e.VLAN), Word: word, Pinned: 1})
	if errors.Is(err, unix.ENOSPC) {
		return ErrFull
	}
	return err
}

// Delete removes the entry of an address; the error is os.ErrNotExist if there is none.
func (b *Bridge) Delete(mac [6]byte, vlan uint16) error {
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_DELETE, Key: key(mac, vlan)})
	if errors.Is(err, unix.ENOENT) {
		return os.ErrNotExist
	}
	return err
}

// A Match selects the entries to flush.
type Match struct {
	Port    uint32 // id, 0 for any
	VLAN    *uint16
	Dynamic bool // learned entries
	Pinned  bool // static and sticky entries
	Keep    uint32
}

// Flush removes the entries that match, and returns their number. It stops removing learned
// entries when only Keep of them are left.
func (b *Bridge) Flush(m Match) (int, error) {
	r := kernelControl{Op: kernelControlOpCONTROL_FLUSH, Port: m.Port, Vlan: -1, Keep: m.Keep}
	if m.VLAN != nil {
		r.Vlan = int32(*m.VLAN)
	}
	if m.Dynamic {
		r.Dynamic = 1
	}
	if m.Pinned {
		r.Pinned = 1
	}
	return b.control(r)
}

// entries calls f with every used entry of the FDB, in the kernel's present state.
func (b *Bridge) entries(f func(key, word uint64)) error {
	m, err := b.openTable(kernelMapFdb)
	if err != nil {
		return err
	}
	defer m.Close()
	size := int(m.MaxEntries() * m.ValueSize())
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map the FDB: %w", err)
	}
	defer unix.Munmap(mem)
	table := unsafe.Slice((*kernelFdbEntry)(unsafe.Pointer(&mem[0])), size/int(unsafe.Sizeof(kernelFdbEntry{})))
	for i := range table {
		e := &table[i]
		k := atomic.LoadUint64(&e.Key)
		if k == 0 || k == fdbClaimed {
			continue
		}
		w := atomic.LoadUint64(&e.Word)
		if atomic.LoadUint64(&e.Key) == k {
			f(k, w)
		}
	}
	return nil
}

// FDB returns the bridge's addresses, in no particular order: only addresses of present
// ports, and no dynamic ones that have aged.
func (b *Bridge) FDB() ([]Entry, error) {
	now, err := b.now()
	if err != nil {
		return nil, err
	}
	var list []Entry
	err = b.entries(func(k, w uint64) {
		age := uint32(max(int32(now-uint32(w&^fdbLocked>>32)), 0))
		pinned := w&fdbPinned != 0
		port := uint32(w) &^ fdbPinned
		if PortAt(&b.Config, port) == nil || !pinned && age >= b.Config.Ageing {
			return
		}
		e := Entry{
			MAC: macOf(k), VLAN: uint16(k >> macBits), Port: port,
			Static: w&fdbStatic != 0, Sticky: w&fdbSticky != 0, Locked: w&fdbLocked != 0,
		}
		if !pinned {
			e.Updated = time.Duration(age) * time.Second
		}
		list = append(list, e)
	})
	return list, err
}

// now returns the datapath's clock, in seconds.
func (b *Bridge) now() (uint32, error) {
	c, err := b.clock()
	return c.Now, err
}

func (b *Bridge) clock() (c kernelClock, err error) {
	err = b.shared(func(s *kernelShared) { c = s.Clock })
	return c, err
}

// shared calls f with the kernel's memory that all CPUs share for the bridge.
func (b *Bridge) shared(f func(*kernelShared)) error {
	m, err := b.openTable(kernelMapShared)
	if err != nil {
		return err
	}
	defer m.Close()
	return withShared(m, f)
}

func (g *generation) shared(f func(*kernelShared)) error {
	return withShared(g.coll.Maps[kernelMapShared], f)
}

func withShared(m *ebpf.Map, f func(*kernelShared)) error {
	mem, unmap, err := mapTable(m, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer unmap()
	f((*kernelShared)(unsafe.Pointer(&mem[0])))
	return nil
}

func (b *Bridge) lookup(table string, index uint32, value any) error {
	m, err := b.openTable(table)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Lookup(index, value)
}

// copyFDB copies the bridge's addresses to the FDB of g, except for addresses about which g
// has newer entries.
func (b *Bridge) copyFDB(g *generation) error {
	var failed error
	err := b.entries(func(k, w uint64) {
		_, err := g.control(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: k, Word: w})
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			failed = err
		}
	})
	return errors.Join(err, failed)
}

// Usage returns the number of dynamic entries of the bridge, in place of slot 0, and of
// each port, by slot.
func (b *Bridge) Usage() ([]uint32, error) {
	counts := make([]uint32, MaxPorts+1)
	err := b.shared(func(s *kernelShared) { copy(counts, s.Usage[b.Config.FdbTurn&1][:b.Config.Slots]) })
	return counts, err
}

// counterOf returns a counter of the bridge, summed over the CPUs.
func counterOf(m *ebpf.Map, which kernelCounter) (sum uint64, err error) {
	var perCPU []uint64
	err = m.Lookup(uint32(which), &perCPU)
	for _, n := range perCPU {
		sum += n
	}
	return sum, err
}

// zeroCounters sets counters of the bridge to zero.
func zeroCounters(m *ebpf.Map, list ...kernelCounter) error {
	zero := make([]uint64, ebpf.MustPossibleCPU())
	for _, which := range list {
		if err := m.Put(uint32(which), zero); err != nil {
			return fmt.Errorf("zero counter %d: %w", which, err)
		}
	}
	return nil
}

// Stats are a port's counters, summed over the CPUs.
type Stats = kernelPortStats

// PortStats returns the counters of a port.
func (b *Bridge) PortStats(p *Port) (sum Stats, err error) {
	var perCPU []Stats
	if err := b.lookup(kernelMapStats, Slot(p.Id), &perCPU); err != nil {
		return sum, err
	}
	return sumStats(perCPU), nil
}

// AllPortStats returns the counters of all ports by slot.
func (b *Bridge) AllPortStats() ([]Stats, error) {
	m, err := b.openTable(kernelMapStats)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	slots := int(min(b.Config.Slots, m.MaxEntries()))
	perCPU, err := perCPUs[Stats](m, slots)
	if err != nil {
		return nil, fmt.Errorf("read the ports' counters: %w", err)
	}
	sums := make([]Stats, slots)
	for i, cpus := 0, len(perCPU)/max(slots, 1); i < slots; i++ {
		sums[i] = sumStats(perCPU[i*cpus : (i+1)*cpus])
	}
	return sums, nil
}

func sumStats(perCPU []Stats) (sum Stats) {
	for _, s := range perCPU {
		sum.RxFrames += s.RxFrames
		sum.RxBytes += s.RxBytes
		sum.TxFrames += s.TxFrames
		sum.TxBytes += s.TxBytes
		sum.Learned += s.Learned
		sum.Moves += s.Moves
		sum.Refused += s.Refused
		sum.Routed += s.Routed
		for i, n := range s.Drops {
			sum.Drops[i] += n
		}
	}
	return sum
}

// Blocked returns the ids of the ports that are blocked by their loop guards.
func (b *Bridge) Blocked() (map[uint32]bool, error) {
	guarded := slices.DeleteFunc(Ports(&b.Config), func(p *Port) bool { return p.BlockTime == 0 })
	if len(guarded) == 0 {
		return nil, nil
	}
	blocked := map[uint32]bool{}
	err := b.shared(func(s *kernelShared) {
		for _, p := range guarded {
			blocked[p.Id] = s.PortStates[Slot(p.Id)].Until > s.Clock.Now
		}
	})
	return blocked, err
}

// Unblock makes the port's loop guard forget its findings.
func (b *Bridge) Unblock(p *Port) error {
	_, err := b.control(kernelControl{Op: kernelControlOpCONTROL_UNBLOCK, Port: p.Id})
	return err
}

// whileShort repeats a call as long as it fails because the kernel is short of memory. The
// kernel makes timers, and entries of tables without preallocated memory, without waiting
// for memory: it takes from its reserve, and refills that a moment later. So even a machine
// with free memory may refuse, while others take much.
func whileShort(do func() error) error {
	const tries = 1000
	for try := 1; ; try++ {
		err := do()
		if !errors.Is(err, unix.ENOMEM) || try == tries {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// put sets an entry of a table without preallocated memory.
func put(m *ebpf.Map, key, value any) error {
	return whileShort(func() error { return m.Put(key, value) })
}

// putMany is put for many entries.
func putMany[K, V any](m *ebpf.Map, keys []K, values []V) error {
	return whileShort(func() error {
		_, err := m.BatchUpdate(keys, values, nil)
		return err
	})
}
