// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/cilium/ebpf"

	"bascule/pf"
)

// A table becomes smaller when its limit does. Its entries stay. As long as frames meet
// the former programs, more may come, up to the former limit. So a change that lowers a
// limit keeps the table. The next change, which is due if Oversized reports so, makes the
// table anew: by then there are only as many entries as fit.

// Oversized reports whether a table of the bridge is larger than its limit and its entries
// need. If so, a change that brings Tables.PF, even unchanged, gives memory back.
func (b *Bridge) Oversized() (bool, error) {
	if buckets(b.Config.FdbMax) < b.Config.FdbBuckets {
		next := b.Config
		if err := b.settleFDB(&next); err != nil || next.FdbBuckets < b.Config.FdbBuckets {
			return err == nil, err
		}
	}
	if !b.PFLoaded() {
		return false, nil
	}
	c := &b.Config.Pf
	states, err := b.statesAtMost(c.StatesMax)
	if err != nil || bucketsFor(states, kernelFeature(c.Features)) < c.Buckets {
		return err == nil, err
	}
	limits := Tables{PF: &PF{NodesMax: c.NodesMax, TableEntries: c.TableEntries}}
	for _, t := range pinned(&b.Config) {
		if t.grows == nil {
			continue
		}
		m, err := b.openTable(t.name)
		if err != nil {
			return false, err
		}
		other, err := b.resize(t, m, t.count(&making{Config: &b.Config}), limits)
		m.Close()
		if err != nil || other {
			return other, err
		}
	}
	return false, nil
}

// resize reports whether a table of b has to be made anew with n entries.
func (b *Bridge) resize(t *table, m *ebpf.Map, n uint32, tables Tables) (bool, error) {
	has := m.MaxEntries()
	switch {
	case t.grows == nil || has == n:
		return false, nil
	case has < n:
		return true, nil
	case tables.PF == nil || t.grows.less == nil:
		return false, nil
	}
	return t.grows.less(b, m, n, tables.PF)
}

// holds reports whether a table of n entries has room for the entries of m, and for
// those that come into m until the limit changes.
func holds(n, was, next uint32, m *ebpf.Map, count func(*ebpf.Map) (int, error)) (bool, error) {
	if was > next {
		return false, nil
	}
	has, err := count(m)
	return has <= int(n), err
}

func countOf[K, V any](m *ebpf.Map) (n int, err error) {
	err = eachOf(m, func(keys []K, _ []V) error {
		n += len(keys)
		return nil
	})
	return n, err
}

// statesAtMost returns how many states there must be room for from now on, when the limit
// becomes next.
func (b *Bridge) statesAtMost(next uint32) (uint32, error) {
	if !b.PFLoaded() {
		return next, nil
	}
	shared, err := b.pfShared()
	if err != nil {
		return 0, err
	}
	// A table that is nine tenths full finds no place for one entry in a hundred. These
	// spare places make sure that the present entries find one.
	const spare = 64
	there := uint64(shared.States)*5/4 + spare
	if shared.States == 0 {
		there = 0
	}
	return uint32(min(max(uint64(next), uint64(b.Config.Pf.StatesMax), there), math.MaxUint32)), nil
}

// settleFDB sets the size of the FDB in next.
func (b *Bridge) settleFDB(next *Config) error {
	if b.gen == "" {
		return nil
	}
	next.FdbBuckets = buckets(max(next.FdbMax, b.Config.FdbMax))
	if next.FdbBuckets >= b.Config.FdbBuckets {
		return nil
	}
	usage, err := b.Usage()
	if err != nil {
		return err
	}
	// A smaller table would drop the surplus without a report. The command that lowers the
	// limit removes the surplus after the change.
	surplus := usage[0] > next.FdbMax
	for _, p := range Ports(next) {
		surplus = surplus || p.FdbMax != 0 && usage[Slot(p.Id)] > p.FdbMax
	}
	if surplus {
		next.FdbBuckets = b.Config.FdbBuckets
		return nil
	}
	var n uint32 // entries, including those that do not count for limits
	if err := b.entries(func(uint64, uint64) { n++ }); err != nil {
		return err
	}
	next.FdbBuckets = min(max(next.FdbBuckets, buckets(n)), b.Config.FdbBuckets)
	return nil
}

// The memory of tables for a limit, in bytes, when they are full.

// StatesMemory is the memory for a value of set limit states under the rules of a program.
func StatesMemory(limit uint32, p *pf.Program) uint64 { return statesMemory(limit, featuresOf(p)) }

// StatesMemoryOf is the same for the limit and the rules of c.
func StatesMemoryOf(c *Config) uint64 {
	return statesMemory(c.Pf.StatesMax, kernelFeature(c.Pf.Features))
}

func statesMemory(limit uint32, features kernelFeature) uint64 {
	size := unsafe.Sizeof(kernelPfState{}) + unsafe.Sizeof(kernelPfBucket{})/stateWays
	if features&kernelFeatureFEATURE_PF_REASSEMBLE != 0 {
		size += unsafe.Sizeof(kernelPfReassembly{})
	}
	return uint64(bucketsFor(limit, features)) * stateWays * uint64(size)
}

// SourcesMemory is the memory for a value of set limit src-nodes.
func SourcesMemory(limit uint32) uint64 {
	return hashMemory(limit, unsafe.Sizeof(kernelPfSourceKey{}), unsafe.Sizeof(kernelPfSource{}))
}

// FragmentsMemory is the memory for a value of set limit frags.
func FragmentsMemory(limit uint32) uint64 {
	return hashMemory(limit, unsafe.Sizeof(kernelPfFragmentKey{}), unsafe.Sizeof(kernelPfFragment{}))
}

// AddressesMemory is the memory for a value of set limit table-entries.
func AddressesMemory(limit uint32) uint64 {
	return hashMemory(limit, unsafe.Sizeof(kernelPfAddress{}), unsafe.Sizeof(kernelPfHost{}))
}

// FDBMemory is the memory for a value of a bridge's fdb-max.
func FDBMemory(limit uint32) uint64 {
	return uint64(buckets(limit)+fdbWindow) * uint64(unsafe.Sizeof(kernelFdbBucket{}))
}

// hashMemory is the memory of a hash map with n entries: the heads of the lists, as many
// as the next power of two, and the entries (kernel/bpf/hashtab.c).
func hashMemory(n uint32, key, value uintptr) uint64 {
	const list, element = 16, 48
	lists := uint64(1) << bits.Len64(uint64(max(n, 1))-1)
	return lists*list + uint64(n)*(element+uint64(key+7)&^7+uint64(value+7)&^7)
}

// PFTakes is the present memory of pf's tables, in bytes.
type PFTakes struct {
	States, Sources, Fragments, Addresses uint64
	Rules                                 uint64 // with their counters and their text
}

// PFTakes returns the memory of pf's tables; all zero if the bridge has no pf.
func (b *Bridge) PFTakes() (sum PFTakes, err error) {
	if !b.PFLoaded() {
		return sum, nil
	}
	for _, t := range pinned(&b.Config) {
		if t.takes == nil {
			continue
		}
		n, err := b.tableMemory(t.name)
		if err != nil {
			return sum, err
		}
		*t.takes(&sum) += n
	}
	return sum, nil
}

// tableMemory returns the memory of a table as the kernel reports it.
func (b *Bridge) tableMemory(name string) (uint64, error) {
	m, err := b.openTable(name)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("ask what %s takes: %w", name, err)
	}
	n, _ := info.Memlock()
	return n, nil
}
