// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// VLAN is a VLAN of a bridge: sets of ports by slot, 64 to a word, and its relation to
// other VLANs.
type VLAN = kernelVlan

// VLANs are a bridge's VLANs by identifier; 0 and 4095 are unused.
type VLANs [4096]VLAN

// The kinds of VLANs (RFC 5517).
const (
	VLANOrdinary  = kernelVlanKindVLAN_ORDINARY
	VLANPrimary   = kernelVlanKindVLAN_PRIMARY
	VLANIsolated  = kernelVlanKindVLAN_ISOLATED
	VLANCommunity = kernelVlanKindVLAN_COMMUNITY
)

// PortSet is a set of ports by slot.
type PortSet = [len(VLAN{}.Member)]uint64

// VLANs returns the bridge's VLANs, nil if it has never had any. The caller must not
// change them: they are read once for a generation, as they take more than a megabyte,
// and most changes read them several times.
func (b *Bridge) VLANs() (*VLANs, error) {
	if b.gen != "" && b.vlansOf == b.gen {
		return b.vlans, nil
	}
	m, err := b.openTable(kernelMapVlans)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	var vlans *VLANs
	if int(m.MaxEntries()) >= len(vlans) {
		vlans = new(VLANs)
		if err := eachVLAN(m, func(mem []VLAN) { copy(vlans[:], mem) }); err != nil {
			return nil, err
		}
	}
	b.vlans, b.vlansOf = vlans, b.gen
	return vlans, nil
}

// EachVLAN calls f with the bridge's VLANs, by number. A single call takes less time and
// memory than VLANs. f must not keep the VLAN.
func (b *Bridge) EachVLAN(f func(vid uint16, v *VLAN)) error {
	if b.gen != "" && b.vlansOf == b.gen {
		if b.vlans != nil {
			b.vlans.each(f)
		}
		return nil
	}
	m, err := b.openTable(kernelMapVlans)
	if err != nil {
		return err
	}
	defer m.Close()
	if int(m.MaxEntries()) < len(VLANs{}) {
		return nil
	}
	return eachVLAN(m, func(mem []VLAN) { (*VLANs)(mem).each(f) })
}

func (v *VLANs) each(f func(vid uint16, v *VLAN)) {
	for vid := 1; vid < len(v)-1; vid++ {
		f(uint16(vid), &v[vid])
	}
}

// keepVLANs notes the bridge's VLANs in its new generation: vlans or, if that is nil,
// the VLANs of the former generation.
func (b *Bridge) keepVLANs(vlans *VLANs, before string) {
	switch {
	case vlans != nil:
		b.vlans, b.vlansOf = vlans, b.gen
	case b.vlansOf == before:
		b.vlansOf = b.gen
	}
}

// VLANStats are the counters of a VLAN, summed over the CPUs.
type VLANStats = kernelVlanStats

// VLANStats returns the counters of the VLANs in list, in its order; they are zero if
// the bridge does not count.
func (b *Bridge) VLANStats(list []uint16) ([]VLANStats, error) {
	sums := make([]VLANStats, len(list))
	m, err := b.openTable(kernelMapVlanStats)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	for i, vid := range list {
		if uint32(vid) >= m.MaxEntries() {
			continue
		}
		var perCPU []VLANStats
		if err := m.Lookup(uint32(vid), &perCPU); err != nil {
			return nil, err
		}
		for _, s := range perCPU {
			sums[i].RxFrames += s.RxFrames
			sums[i].RxBytes += s.RxBytes
			sums[i].TxFrames += s.TxFrames
			sums[i].TxBytes += s.TxBytes
		}
	}
	return sums, nil
}

// store fills a map that no running program uses yet.
func (v *VLANs) store(m *ebpf.Map) error {
	return eachVLAN(m, func(mem []VLAN) { copy(mem, v[:]) })
}

func eachVLAN(m *ebpf.Map, f func([]VLAN)) error {
	size := int(m.MaxEntries() * m.ValueSize())
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map the VLANs: %w", err)
	}
	defer unix.Munmap(mem)
	f(unsafe.Slice((*VLAN)(unsafe.Pointer(&mem[0])), int(m.MaxEntries())))
	return nil
}
